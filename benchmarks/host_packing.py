"""Times packing the messages of a large step on one core, as prompts and as training rows.

    taskset -c 0 python benchmarks/host_packing.py

Shared prefixes are packed once, so there are fewer positions than tokens.
"""

from __future__ import annotations

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

from agent_gspo.packing import prefix_tree, train_batches
from agent_gspo.types import Message
from benchmarks import common

_QUESTIONS, _AGENTS, _SAMPLES = 128, 4, 8
_SHARED, _OWN, _WRITTEN = 500, 204, 128  # tokens: of a question, of an agent's prompt, of a message
_ROW = 4096


def main() -> None:
  """Runs the benchmark."""
  messages = _messages()
  tokens = sum(len(m.path) for m in messages)
  start = time.perf_counter()
  prefix_tree.pack([m.prompt_ids for m in messages], _ROW)
  prompts = time.perf_counter() - start
  start = time.perf_counter()
  batches = train_batches.pack_messages(messages, pack_length=_ROW, micro_batch_size=8)
  rows = time.perf_counter() - start
  positions = sum(b.tokens.size for b in batches)
  head = (f'{len(messages)} messages, {tokens / 1e6:.1f} M tokens', 'seconds')
  print(
    common.table(
      head,
      [
        ('prompts', f'{prompts:.2f}'),
        (f'training rows, {positions / 1e6:.1f} M positions', f'{rows:.2f}'),
      ],
    )
  )


def _messages() -> list[Message]:
  rng = np.random.default_rng(0)
  draw = lambda n: rng.integers(0, 30_000, n).astype(np.int32)
  found = []
  for _ in range(_QUESTIONS):
    shared = draw(_SHARED)
    for agent in range(_AGENTS):
      prompt = np.concatenate([shared, draw(_OWN)])
      for _ in range(_SAMPLES):
        ids, logprobs = draw(_WRITTEN), np.zeros(_WRITTEN, np.float32)
        found.append(Message(0, 0, agent, 0, prompt, ids, logprobs, False, ''))
  return found


if __name__ == '__main__':
  main()
