"""Divides the value of the messages that an agent read among them.

`v(S)` is the value of a set `S` of messages: here the log-probability of the gold answer for an
agent that has read only these. `N` is the set of all messages written, without silent ones. Each
function returns a credit for every slot, the authors' turns in reading order, silent ones included:

- leave-one-out, a difference reward: `v(N) - v(N - {i})`;
- potential: `v(N) - v(before i)`, the return from slot `i` on of the shaped rewards
  `v(up to i) - v(before i)` (Ng et al. 1999), which telescope to `v(N) - v({})`;
- segment: `v(up to i) - v(before i)`, which sum to `v(N) - v({})`;
- Shapley: the mean of `v(S + {i}) - v(S)` over the orders in which messages can arrive.

In the first two the baseline subtracted from `v(N)` does not depend on the message of slot `i`, if
no other author reads it (a star), so the expected gradient is that of `v(N)`: without a price the
optimum is unchanged. Shapley's credit has no such guarantee, and splits the value of two redundant
messages evenly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

Coalition = frozenset[int]
Values = Mapping[Coalition, float]


def leave_one_out(values: Values, said: Coalition, slots: Sequence[int]) -> list[float]:
  """Returns `v(N) - v(N - {i})` of each slot: 0 for a silent one."""
  return [values[said] - values[said - {slot}] for slot in slots]


def potential(values: Values, said: Coalition, slots: Sequence[int]) -> list[float]:
  """Returns `v(N) - v(before i)` of each slot."""
  return [values[said] - values[said & {*slots[:place]}] for place in range(len(slots))]


def segment(values: Values, said: Coalition, slots: Sequence[int]) -> list[float]:
  """Returns `v(up to i) - v(before i)` of each slot: 0 for a silent one."""
  until = [values[said & {*slots[:place]}] for place in range(len(slots) + 1)]
  return [after - before for before, after in itertools.pairwise(until)]


def shapley(values: Values, said: Coalition, slots: Sequence[int]) -> list[float]:
  """Returns the Shapley value of each slot: 0 for a silent one; they sum to `v(N) - v({})`."""
  players = len(said)
  weight = lambda size: 1 / (players * math.comb(players - 1, size))
  return [
    sum(weight(len(s)) * (values[s | {slot}] - values[s]) for s in _subsets(said - {slot}))
    if slot in said
    else 0.0
    for slot in slots
  ]


def _subsets(of: Iterable[int]) -> list[Coalition]:
  members = sorted(of)
  sizes = range(len(members) + 1)
  return [frozenset(s) for size in sizes for s in itertools.combinations(members, size)]


ATTRIBUTIONS: dict[str, Callable[[Values, Coalition, Sequence[int]], list[float]]] = {
  'leave_one_out': leave_one_out,
  'potential': potential,
  'segment': segment,
  'shapley': shapley,
}


def most_coalitions(name: str, slots: int) -> int:
  """Returns the number of coalitions whose values an attribution reads where nobody is silent."""
  return 2**slots if name == 'shapley' else slots + 1


def coalitions(name: str, said: Coalition, slots: Sequence[int]) -> list[Coalition]:
  """Returns the coalitions whose values an attribution reads, the full one, `said`, first.

  `name` is a key of `ATTRIBUTIONS`, or 'hint' (`training.hints`).
  """
  prefixes = lambda: [said & {*slots[:place]} for place in range(len(slots))]
  found = {
    'hint': lambda: [said - {slot} for slot in slots],
    'leave_one_out': lambda: [said - {slot} for slot in slots],
    'potential': prefixes,
    'segment': prefixes,
    'shapley': lambda: _subsets(said),
  }[name]()
  return list(dict.fromkeys([said, *found]))
