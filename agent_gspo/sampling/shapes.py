"""Chooses batch shapes: few of them, so that few programs are compiled."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from agent_gspo.models.config import ModelConfig
from agent_gspo.ops import device_kind
from agent_gspo.sharding.placement import Placement


def bucket(n: int, smallest: int, *, halves: bool = True) -> int:
  """Rounds `n` up to `smallest * {1, 1.5} * 2^k`: few shapes, at most a third is padding.

  Args:
    n: Size to round up.
    smallest: Smallest size.
    halves: Whether sizes at 1.5 are used; without them up to a half is padding.
  """
  size = smallest
  while size < n:
    if halves and size % 2 == 0 and size * 3 // 2 >= n:
      return size * 3 // 2
    size *= 2
  return size


def batches_at_once(config: ModelConfig, placement: Placement) -> int:
  """Returns how many decode batches run concurrently: 2 for wide models on one CPU, else 1.

  Two cores run two small matmuls faster side by side than in sequence. Two batches save a quarter
  of the time at width 256, an eighth at 576, and lose a twelfth at 64 (docs/performance.md).
  An accelerator runs one program at a time, and concurrent programs with collectives may deadlock.
  """
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
  alone = placement.devices == 1 and device_kind.current() == 'cpu'
  return 2 if alone and cores > 1 and config.embed_dim >= 128 else 1


def padded(blocks: Sequence[np.ndarray], width: int) -> np.ndarray:
  """Stacks int arrays as rows, padded with -1."""
  return np.stack([np.pad(block, (0, width - len(block)), constant_values=-1) for block in blocks])


def padded_ids(ids: Sequence[int]) -> np.ndarray:
  """Returns int32 ids, padded to few lengths with -1, which no id equals."""
  return padded([np.asarray(ids, np.int32)], bucket(len(ids), 8))[0]
