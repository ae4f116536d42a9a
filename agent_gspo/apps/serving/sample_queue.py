"""Batches the prompts of concurrent requests for the sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from agent_gspo.apps.serving.adapters import Adapter
from agent_gspo.sampling.sampler import Samples


@dataclasses.dataclass(eq=False)
class Ask:
  """Prompt to continue.

  Attributes:
    adapter: Adapter of the model; None for the model alone.
    prompt: Token ids, int32 `[P]`.
    seeds: Seed of each continuation.
    limit: Most tokens of a continuation.
    temperature: Sampling temperature.
    stop_ids: Tokens that end a continuation.
    found: Token ids, log-probs and whether a stop token ended it, of each continuation; empty
      until they are sampled.
  """

  adapter: Adapter | None
  prompt: np.ndarray
  seeds: list[int]
  limit: int
  temperature: float
  stop_ids: tuple[int, ...]
  found: list[tuple[np.ndarray, np.ndarray, bool]] = dataclasses.field(default_factory=list)

  def is_like(self, other: Ask) -> bool:
    """Returns whether one call of the sampler can continue both."""
    settings = self.temperature, self.stop_ids
    return self.adapter is other.adapter and settings == (other.temperature, other.stop_ids)


class SampleQueue:
  """Queue of prompts. Noise depends on the seeds alone, so results do not depend on batches."""

  def __init__(self, sample: Callable[..., Samples], rows: int = 96):
    """Initializes an empty queue.

    Args:
      sample: Function like `Adapters.sample`.
      rows: Most continuations of a call, which bounds the KV cache of their prompts.
    """
    self._sample, self._rows, self._waiting = sample, rows, list[Ask]()

  def __len__(self) -> int:
    return len(self._waiting)

  def add(self, ask: Ask) -> None:
    """Adds a prompt, which must be taken or dropped later; from any thread."""
    self._waiting.append(ask)

  def drop(self, ask: Ask) -> None:
    """Removes a prompt, if it still waits."""
    if ask in self._waiting:
      self._waiting.remove(ask)

  def take(self, ask: Ask) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """Returns the continuations of a prompt, sampled with others that wait and are like it."""
    try:
      if not ask.found:
        self._continue(self._joined(ask))
      return ask.found
    finally:
      self.drop(ask)

  def _joined(self, ask: Ask) -> list[Ask]:
    """Returns a prompt and others like it, with at most `rows` continuations if it has fewer."""
    joined, rows = [ask], len(ask.seeds)
    for one in list(self._waiting):
      fits = rows + len(one.seeds) <= self._rows
      if fits and one is not ask and not one.found and one.is_like(ask):
        joined.append(one)
        rows += len(one.seeds)
    return joined

  def _continue(self, asks: list[Ask]) -> None:
    rows = [ask for ask in asks for _ in ask.seeds]
    samples = self._sample(
      asks[0].adapter,
      [ask.prompt for ask in rows],
      [seed for ask in asks for seed in ask.seeds],
      temperature=asks[0].temperature,
      stop_ids=asks[0].stop_ids,
      limits=[ask.limit for ask in rows],
    )
    found = iter(zip(samples.token_ids, samples.logprobs, samples.ended.tolist(), strict=True))
    for ask in asks:
      ask.found = [next(found) for _ in ask.seeds]
