"""Tests that queued prompts share one sampler call, each continued as if alone."""

from __future__ import annotations

import numpy as np
import pytest

from agent_gspo.apps.serving.adapters import Adapter
from agent_gspo.apps.serving.sample_queue import Ask, SampleQueue
from agent_gspo.sampling.sampler import Samples

ONE, OTHER = (Adapter(None, {}, None) for _ in range(2))


class _Sampler:
  """Continues a prompt by its last token, the seed and the limit."""

  def __init__(self):
    self.calls = []

  def __call__(self, adapter, prompts, seeds, *, temperature, stop_ids, limits):
    self.calls.append(len(prompts))
    if temperature < 0:
      raise MemoryError('too many rows')
    rows = zip(prompts, seeds, limits, strict=True)
    ids = [np.asarray([prompt[-1], seed, limit]) for prompt, seed, limit in rows]
    return Samples(ids, [np.zeros(3)] * len(ids), np.asarray([x[0] in stop_ids for x in ids]), 0)


def _ask(token: int, seeds=(1,), adapter=ONE, limit=5, temperature=1.0, stop_ids=(3,)) -> Ask:
  return Ask(adapter, np.asarray([9, token]), list(seeds), limit, temperature, stop_ids)


def test_what_is_alike_is_sampled_at_once():
  sampler = _Sampler()
  queue = SampleQueue(sampler)
  asks = [_ask(2, (4, 5)), _ask(3, (6,), limit=7), _ask(2, (4,))]
  others = [_ask(2, adapter=OTHER), _ask(2, adapter=None), _ask(2, temperature=0.5)]
  others.append(_ask(2, stop_ids=()))
  for ask in [*asks, *others]:
    queue.add(ask)
  found = [queue.take(ask) for ask in asks]
  assert sampler.calls == [4]
  assert [[x.tolist() for x, _, _ in of] for of in found] == [
    [[2, 4, 5], [2, 5, 5]],
    [[3, 6, 7]],
    [[2, 4, 5]],
  ]
  assert [[ended for _, _, ended in of] for of in found] == [[False, False], [True], [False]]
  for ask in others:
    queue.take(ask)
  assert sampler.calls == [4, 1, 1, 1, 1]
  late = _ask(2)
  queue.add(late)
  queue.take(late)
  assert sampler.calls[5:] == [1]  # nothing that was taken waits


def test_a_call_has_as_many_rows_as_decode_together():
  sampler = _Sampler()
  queue = SampleQueue(sampler)
  asks = [_ask(2, range(n)) for n in (40, 50, 10, 6, 100)]
  for ask in asks:
    queue.add(ask)
  assert [len(queue.take(ask)) for ask in asks] == [40, 50, 10, 6, 100]
  assert sampler.calls == [96, 10, 100]


def test_a_fault_is_each_requests_own():
  sampler = _Sampler()
  queue = SampleQueue(sampler)
  asks = [_ask(2, temperature=-1.0) for _ in range(3)]
  for ask in asks:
    queue.add(ask)
  for ask in asks:
    with pytest.raises(MemoryError):
      queue.take(ask)
  assert sampler.calls == [3, 2, 1]
