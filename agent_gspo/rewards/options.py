"""The `reward` section of a config."""

from __future__ import annotations

import dataclasses
import difflib

from agent_gspo.rewards import length_rewards

COSTS = ('tokens', 'critical_path', 'money')
GATES = ('always', 'correct', 'group_accuracy', 'top_groups')
CREDITS = ('own_cost', 'episode')
SHAPES = ('linear', *length_rewards.SHAPES)


@dataclasses.dataclass(frozen=True)
class RewardOptions:
  """What is charged for, and when.

  The cost is also the unit of the budgets: 'tokens' counts tokens written with the default
  prices, and with `p_write=0, p_read=1` the tokens that others read of them.

  Attributes:
    cost: 'tokens' (`p_write * written + p_read * written * readers`), 'critical_path'
      (only the longest message of each layer pays) or 'money' (`p_write` and `p_read`
      are prices per million tokens written and read).
    p_write: price of a written token.
    p_read: price of a token each time it is read.
    lambda_turn: price of a message that is not silent.
    lambda_rep: price of repetition, see `communication.repetition`.
    gate: where the price and the shape act: 'always', 'correct' (episodes that solved the
      task), 'group_accuracy' (questions whose group reaches `gate_accuracy`) or
      'top_groups' (the `gate_fraction` of the questions that are answered best).
    gate_accuracy: share of right answers that opens the gate, 0 to 1.
    gate_fraction: share of a step's questions, above 0 and at most 1.
    credit: 'own_cost' (the team's task score, a message's own cost) or 'episode' (every
      message is credited with the whole episode).
    shape: what else depends on the length of the episode: 'linear' (nothing: the price
      alone) or one of `length_rewards.SHAPES`.
    shape_options: of the shape, as text: 'target=20, weight=0.5'.
  """

  cost: str = 'tokens'
  p_write: float = 1.0
  p_read: float = 0.0
  lambda_turn: float = 0.0
  lambda_rep: float = 0.0
  gate: str = 'always'
  gate_accuracy: float = 0.0
  gate_fraction: float = 0.2
  credit: str = 'own_cost'
  shape: str = 'linear'
  shape_options: str = ''

  def __post_init__(self):
    for field, known in (
      ('cost', COSTS), ('gate', GATES), ('credit', CREDITS), ('shape', SHAPES)
    ):  # fmt: skip
      value = getattr(self, field)
      if value not in known:
        close = difflib.get_close_matches(value, known, 1)
        meant = f' Did you mean {close[0]!r}?' if close else ''
        raise ValueError(
          f'reward.{field}={value!r} is unknown; use one of {", ".join(known)}.{meant}'
        )
    for field in ('p_write', 'p_read', 'lambda_turn', 'lambda_rep'):
      if getattr(self, field) < 0:
        raise ValueError(f'reward.{field}={getattr(self, field)} is negative; prices are not.')
    if not 0 <= self.gate_accuracy <= 1:
      raise ValueError(f'reward.gate_accuracy={self.gate_accuracy} is not between 0 and 1.')
    if not 0 < self.gate_fraction <= 1:
      raise ValueError(f'reward.gate_fraction={self.gate_fraction} must be above 0 and at most 1.')
    length_rewards.parse_options(self.shape, self.shape_options)

  @property
  def shape_arguments(self) -> dict[str, float]:
    """`shape_options`, read."""
    return length_rewards.parse_options(self.shape, self.shape_options)

  @property
  def unit(self) -> str:
    """What one unit of cost, and so of a budget, is."""
    if self.cost == 'money':
      return 'money'
    kind = 'tokens of the critical path' if self.cost == 'critical_path' else 'tokens'
    if not self.p_read:
      return f'{kind} written' if self.p_write == 1 else f'{kind} written, times {self.p_write:g}'
    if not self.p_write:
      return f'{kind} read by others' + ('' if self.p_read == 1 else f', times {self.p_read:g}')
    return f'{kind}: {self.p_write:g} written + {self.p_read:g} read by others'
