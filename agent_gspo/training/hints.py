"""Rewards hints for the learning signal that they give, less where answers rely on them.

Learning to Hint (HiLL, arXiv 2604.00698).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from agent_gspo.training.answer_values import Prompt, Read, Replays, Values
from agent_gspo.types import Message


class Hints(Values):
  """Values hints by `n` answers sampled anew, and by the right ones' log-probs without the hint.

  With `N` the messages that the answering agent has read and `p(S)` the share of right answers
  after a set `S` of them (task score above one half), the gain of a hint `i` is

      D(p(N)) exp(min(reliance, 0) / temperature) - D(p(N - {i}))
      D(p) = 1 - p^n - (1 - p)^n    probability that `n` answers are neither all right nor all wrong
      reliance = mean over right answers y after N, mean over tokens t, of
                 log pi(y_t | N - {i}) - log pi(y_t | N)

  Messages of agents that give no hints have no gain. The paper requests a hint only where all
  answers without one are wrong, so that its second `D` is 0. Here that is a baseline: silence earns
  0. The official code clamps the reward instead, rejects hints that contain the answer, shows its
  hinter a failed answer, and trains the solver on the best of four hints only.
  """

  def __init__(
    self,
    replays: Replays,
    logprobs: Callable[[Sequence[Message]], Sequence[np.ndarray]],
    temperature: float,
  ):
    """Initializes hints.

    Args:
      replays: Samples the answers.
      logprobs: Returns the log-probs of each message's sampled tokens, float `[S]`, nats.
      temperature: A reliance of minus this many nats per token divides the signal by e.
    """
    self._replays, self._logprobs, self._temperature = replays, logprobs, temperature
    self._prompts: Sequence[Prompt] = ()
    self._right: list[list[Message]] = []
    self._figures: dict[str, float] = {}

  def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
    """Returns the share of right answers after each prompt, float64 `[n]`."""
    scores, answers = self._replays.answers(prompts)
    right = scores > 0.5  # [n, samples]
    self._prompts = prompts
    self._right = [
      [answer for answer, is_right in zip(some, flags, strict=True) if is_right]
      for some, flags in zip(answers, right, strict=True)
    ]
    return right.mean(axis=1)

  def credits(self, agent: int) -> bool:
    """Returns whether an author gives hints."""
    return agent in self._replays.team.hinters

  def gains(self, name: str, reads: Sequence[Read], values: np.ndarray) -> list[Sequence[float]]:
    """Returns the gain of each slot, see the class."""
    del name
    places = lambda read, slot: (read.places[read.said], read.places[read.said - {slot}])
    pairs = [places(read, slot) for read in reads for slot in read.slots if slot in read.said]
    reliance = self._reliance(sorted(set(pairs)))
    samples = self._replays.samples
    signal = 1 - values**samples - (1 - values) ** samples

    def gain(read: Read, slot: int) -> float:
      whole, without = places(read, slot)
      transfer = np.exp(min(reliance.get((whole, without), 0.0), 0.0) / self._temperature)
      return signal[whole] * transfer - signal[without]

    rates = {'success': [values[whole] for whole, _ in pairs]}
    rates['success_without'] = [values[without] for _, without in pairs]
    rates['reliance'] = [reliance[pair] for pair in pairs if pair in reliance]
    self._figures = {f'hint/{name}': float(np.mean(x)) for name, x in rates.items() if x}
    return [[gain(read, slot) for slot in read.slots] for read in reads]

  def figures(self) -> dict[str, float]:
    """Returns the success rate with hints and without, and the mean reliance, nats per token."""
    return self._figures

  def _reliance(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Returns the reliance of pairs of places, with a hint and without, that have right answers."""
    asked = [(pair, answer) for pair in pairs for answer in self._right[pair[0]]]
    if not asked:
      return {}
    without = [
      dataclasses.replace(answer, prompt_ids=self._prompts[pair[1]][1]) for pair, answer in asked
    ]
    scored = self._logprobs([answer for _, answer in asked] + without)
    found: dict[tuple[int, int], list[float]] = {}
    for i, (pair, _) in enumerate(asked):
      found.setdefault(pair, []).append(scored[len(asked) + i].mean() - scored[i].mean())
    return {pair: float(np.mean(some)) for pair, some in found.items()}
