"""Sequences that share context, packed into rows in which every shared prefix stands once.

Sorted sequences written one after the other, each without the prefix it has in common
with the one before, are the depth-first walk of their prefix tree. In that order the
descendants of a token are one contiguous run behind it, so a single number a token,
`subtree_end`, says everything about visibility (`ops.attention.masks.TreeMask`):

    token i sees token j   iff   j <= i < subtree_end[j]

    sequences   a b c d          row          a b c d x y
                a b c x y        position     0 1 2 3 3 4
                                 subtree_end  6 6 6 4 6 6

Nothing is read off pad values: padding is its own root and nobody's context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class TokenTree:
  """Packed rows and where each sequence went.

  Attributes:
    tokens: int32 `[R, T]`, 0 in the padding.
    positions: int32 `[R, T]`, depth in the tree, which is the position in the sequence.
    subtree_end: int32 `[R, T]`, column behind the last descendant.
    keys: int32 `[R, T]`, key of the sequences that the column belongs to, 0 in the padding.
    row: int32 `[N]`, the row of each sequence.
    columns: `N` int32 arrays `[length]`, the column of each of its tokens.
    used: columns in use, over all rows; the rest is padding.
  """

  tokens: np.ndarray
  positions: np.ndarray
  subtree_end: np.ndarray
  keys: np.ndarray
  row: np.ndarray
  columns: list[np.ndarray]
  used: int


def shared_prefix(a: np.ndarray, b: np.ndarray) -> int:
  """Length of the longest common prefix of two int arrays."""
  n = min(len(a), len(b))
  differs = np.nonzero(a[:n] != b[:n])[0]
  return int(differs[0]) if differs.size else n


def pack(
  sequences: Sequence[np.ndarray],
  row_tokens: int,
  loads: Sequence[int] | None = None,
  max_load: int = 0,
  keys: Sequence[int] | np.ndarray | None = None,
) -> TokenTree:
  """Packs `N` non-empty int sequences into rows of `row_tokens` columns.

  Rows are filled in sorted order; a row that is full begins anew with the whole
  sequence, so a prefix stands once a row.

  Args:
    sequences: token ids.
    row_tokens: columns of a row.
    loads: what each sequence adds to its row besides tokens (loss tokens), or None.
    max_load: most that the loads of a row may add up to.
    keys: `N` ints; only sequences of one key share a prefix. Equal tokens are not equal
      hidden states where different adapters read them. By default all have key 0.

  Raises:
    ValueError: a sequence is empty or longer than a row, or its load is above `max_load`.
  """
  loads = [0] * len(sequences) if loads is None else loads
  for n, sequence in enumerate(sequences):
    if not 0 < len(sequence) <= row_tokens:
      raise ValueError(
        f'sequence {n} has {len(sequence)} tokens; a row holds 1 to {row_tokens}. '
        'Raise row_tokens or shorten the prompt.'
      )
    if loads[n] > max_load > 0:
      raise ValueError(f'sequence {n} has load {loads[n]}; a row takes up to max_load={max_load}.')
  keys = [0] * len(sequences) if keys is None else keys
  order = sorted(range(len(sequences)), key=lambda n: (keys[n], *sequences[n]))
  rows: list[list[int]] = []  # token ids of each row
  depths: list[list[int]] = []
  row_keys: list[list[int]] = []
  row = np.zeros(len(sequences), np.int32)
  columns: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sequences)
  previous, load = -1, 0
  for n in order:
    sequence = np.asarray(sequences[n])
    stranger = previous < 0 or keys[previous] != keys[n]
    shared = 0 if stranger else shared_prefix(sequences[previous], sequence)
    load += loads[n]
    full = previous < 0 or len(rows[-1]) + len(sequence) - shared > row_tokens
    if full or load > max_load > 0:
      rows.append([])
      depths.append([])
      row_keys.append([])
      shared, load = 0, loads[n]
    start = len(rows[-1])
    own = np.arange(start, start + len(sequence) - shared, dtype=np.int32)
    columns[n] = own if not shared else np.concatenate([columns[previous][:shared], own])
    rows[-1].extend(sequence[shared:].tolist())
    depths[-1].extend(range(shared, len(sequence)))
    row_keys[-1].extend([keys[n]] * len(own))
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
    used=sum(map(len, rows)),
  )
  for r, (ids, depth) in enumerate(zip(rows, depths, strict=True)):
    tree.tokens[r, : len(ids)] = ids
    tree.keys[r, : len(ids)] = row_keys[r]
    tree.positions[r, : len(ids)] = depth
    tree.subtree_end[r, : len(ids)] = _subtree_end(np.asarray(depth))
  return tree


def _subtree_end(depth: np.ndarray) -> np.ndarray:
  """First later column that is no deeper, for each column of a depth-first walk."""
  end = np.full(len(depth), len(depth), np.int32)
  open_columns: list[int] = []
  for column, d in enumerate(depth):
    while open_columns and depth[open_columns[-1]] >= d:
      end[open_columns.pop()] = column
    open_columns.append(column)
  return end
