"""Describes attention masks by a few numbers per token.

Implementations read these numbers; only the reference (and cuDNN) builds a dense `[T, S]` array.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeMask:
  """Mask by which tokens attend to their tree ancestors and themselves (`packing.prefix_tree`).

  Token `i` attends to token `j` iff `j <= i < subtree_end[j]`. Plain text is a tree without
  branches, see `causal`.

  With a window, `positions[i] - positions[j] < window` must hold, too: the last `window` tokens
  of the token's own sequence, whatever branches lie between them in the row.

  Attributes:
    subtree_end: Column after the last descendant, int32 `[B, T]`, above the token's own column.
    positions: Positions in the sequence, int32 `[B, T]`; None without a window.
    window: Width of the window in tokens, the token itself included; None for no window.
  """

  subtree_end: jax.Array
  positions: jax.Array | None = None
  window: int | None = dataclasses.field(default=None, metadata={'static': True})

  def within(self, window: int, positions: jax.Array) -> TreeMask:
    """Returns the mask with a window, of tokens at `positions` `[B, T]`."""
    return TreeMask(self.subtree_end, positions, window)

  def dense(self) -> jax.Array:
    """Returns the dense mask, bool `[B, T, T]` (query, key)."""
    return self.block(0, 0, self.subtree_end.shape[1])

  def block(self, i: jax.Array | int, j: jax.Array | int, size: int) -> jax.Array:
    """Returns block `i` of queries and `j` of keys of the dense mask, bool `[B, size, size]`."""
    cut = lambda x, at: jax.lax.dynamic_slice_in_dim(x, at * size, size, 1)
    column = jnp.arange(size)
    query, key = (i * size + column)[None, :, None], (j * size + column)[None, None, :]
    seen = (key <= query) & (query < cut(self.subtree_end, j)[:, None, :])
    if self.window is None:
      return seen
    assert self.positions is not None
    query, key = cut(self.positions, i)[:, :, None], cut(self.positions, j)[:, None, :]
    return seen & (query - key < self.window)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CacheMask:
  """Mask by which all queries of a row attend to the same KV cache columns.

  Attributes:
    seen: Visible columns, bool `[B, S]`.
    before: Visible columns before the query's own keys and values were written, bool `[B, S]`;
      None if unknown.
    positions: Positions of the columns in the row's sequence, int32 `[B, S]`; for windows only.
  """

  seen: jax.Array
  before: jax.Array | None = None
  positions: jax.Array | None = None

  def within(self, window: int, positions: jax.Array) -> CacheMask:
    """Returns the mask without columns `window` or more before the query, `[B, 1]`."""
    assert self.positions is not None
    near = positions - self.positions < window
    return CacheMask(self.seen & near, None if self.before is None else self.before & near)

  def dense(self) -> jax.Array:
    """Returns the dense mask, bool `[B, 1, S]`, the same for each query."""
    return self.seen[:, None, :]


Mask = TreeMask | CacheMask


def causal(lengths: jax.Array, width: int) -> TreeMask:
  """Returns the causal mask of right-padded rows of int32 lengths `[B]`, `width` columns each."""
  column = jnp.arange(width, dtype=jnp.int32)[None, :]
  lengths = lengths[:, None].astype(jnp.int32)
  return TreeMask(jnp.where(column < lengths, lengths, column + 1))
