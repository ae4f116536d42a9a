"""Packs sequences into rows as prefix trees: shared prefixes are stored once per row.

Sorted sequences, concatenated without the prefix that each shares with its predecessor, are the
depth-first traversal of their prefix tree. In that order the descendants of a token are contiguous
and follow it, so one number per token, `subtree_end`, defines the attention mask
(`ops.attention.masks.TreeMask`):

    token i sees token j   iff   j <= i < subtree_end[j]

    sequences   a b c d          row          a b c d x y
                a b c x y        position     0 1 2 3 3 4
                                 subtree_end  6 6 6 4 6 6

Pad values carry no meaning: each padding column is its own root, and no token attends to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class TokenTree:
  """Packed rows and the location of each sequence.

  Attributes:
    tokens: Token ids, int32 `[R, T]`, 0 in padding.
    positions: Depth in the tree, equal to the position in the sequence, int32 `[R, T]`.
    subtree_end: Column after the last descendant, int32 `[R, T]`.
    keys: Key of the column's sequences, int32 `[R, T]`, 0 in padding.
    row: Row of each sequence, int32 `[N]`.
    columns: Column of each token, `N` int32 arrays `[length]`.
    used: Number of columns that are not padding, over all rows.
  """

  tokens: np.ndarray
  positions: np.ndarray
  subtree_end: np.ndarray
  keys: np.ndarray
  row: np.ndarray
  columns: list[np.ndarray]
  used: int


def shared_prefix(a: np.ndarray, b: np.ndarray) -> int:
  """Returns the length of the longest common prefix of two int arrays."""
  n = min(len(a), len(b))
  differs = a[:n] != b[:n]
  first = int(differs.argmax()) if n else 0
  return first if n and differs[first] else n


def pack(
  sequences: Sequence[np.ndarray],
  row_tokens: int,
  loads: Sequence[int] | None = None,
  max_load: int = 0,
  keys: Sequence[int] | np.ndarray | None = None,
) -> TokenTree:
  """Packs `N` non-empty int sequences into rows of `row_tokens` columns.

  Rows are filled in sorted order. A new row begins with the whole sequence, so a prefix is stored
  once per row.

  Args:
    sequences: Token ids.
    row_tokens: Columns of a row.
    loads: Load of each sequence besides its tokens (loss tokens), or None.
    max_load: Highest sum of loads in a row; 0 for no bound.
    keys: `N` ints; only sequences with equal keys share prefixes, since hidden states of equal
      tokens differ between adapters. By default all have key 0.

  Raises:
    ValueError: A sequence is empty or longer than a row, or its load is above `max_load`.
  """
  sequences = [np.asarray(sequence) for sequence in sequences]
  loads = [0] * len(sequences) if loads is None else loads
  for n, sequence in enumerate(sequences):
    if not 0 < len(sequence) <= row_tokens:
      raise ValueError(
        f'sequence {n} has {len(sequence)} tokens; a row holds 1 to {row_tokens}. '
        'Raise row_tokens or shorten the prompt.'
      )
    if loads[n] > max_load > 0:
      raise ValueError(f'sequence {n} has load {loads[n]}; a row takes up to max_load={max_load}.')
  keys = np.zeros(len(sequences), int) if keys is None else keys
  rows: list[list[_Run]] = []
  row = np.zeros(len(sequences), np.int32)
  columns: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sequences)
  previous, width, load = -1, 0, 0  # the last sequence; columns and load of the last row
  for n in _sorted(sequences, keys):
    sequence = sequences[n]
    stranger = previous < 0 or keys[previous] != keys[n]
    shared = 0 if stranger else shared_prefix(sequences[previous], sequence)
    load += loads[n]
    if previous < 0 or width + len(sequence) - shared > row_tokens or load > max_load > 0:
      rows.append([])
      shared, width, load = 0, 0, loads[n]
    run = _Run(width, shared, sequence[shared:], keys[n])
    width = run.end
    own = np.arange(run.start, run.end, dtype=np.int32)
    columns[n] = np.concatenate([columns[previous][:shared], own])
    rows[-1].append(run)
    row[n] = len(rows) - 1
    previous = n

  shape = (len(rows), row_tokens)
  tree = TokenTree(
    tokens=np.zeros(shape, np.int32),
    positions=np.zeros(shape, np.int32),
    subtree_end=np.tile(np.arange(1, row_tokens + 1, dtype=np.int32), (len(rows), 1)),
    keys=np.zeros(shape, np.int32),
    row=row,
    columns=columns,
    used=sum(runs[-1].end for runs in rows),
  )
  for r, runs in enumerate(rows):
    # By depth: the first later column of that depth or less, `[T]`.
    end = np.full(row_tokens, runs[-1].end, np.int32)
    for run in reversed(runs):
      of_run = slice(run.start, run.end)
      depths = slice(run.depth, run.depth + len(run.tokens))
      tree.tokens[r, of_run] = run.tokens
      tree.positions[r, of_run] = np.arange(depths.start, depths.stop)
      tree.subtree_end[r, of_run] = end[depths]
      tree.keys[r, of_run] = run.key
      end[run.depth :] = run.start
  return tree


@dataclasses.dataclass(frozen=True)
class _Run:
  """Tokens that a sequence adds to its row, from column `start` and tree depth `depth` on."""

  start: int
  depth: int
  tokens: np.ndarray
  key: int

  @property
  def end(self) -> int:
    return self.start + len(self.tokens)


def _sorted(sequences: Sequence[np.ndarray], keys: Sequence[int] | np.ndarray) -> list[int]:
  """Returns indices sorted by key, then lexicographically by tokens."""
  # Big-endian bytes of ids, which are not negative, sort like the ids.
  ordered = [sequence.astype('>u4').tobytes() for sequence in sequences]
  return sorted(range(len(sequences)), key=lambda n: (keys[n], ordered[n]))
