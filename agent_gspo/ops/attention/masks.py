"""Who sees whom, said in a few numbers a token.

An implementation of attention reads the numbers; only the reference makes the `[T, S]` array of
them.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeMask:
  """Tokens of a row see their ancestors in a tree, and themselves (see `packing.prefix_tree`).

  Token `i` sees token `j` iff `j <= i < subtree_end[j]`. A row of plain text is a tree without
  branches, see `causal`.

  Attributes:
    subtree_end: int32 `[B, T]`, column behind the last descendant, above the token's own column.
  """

  subtree_end: jax.Array

  def dense(self) -> jax.Array:
    """Bool `[B, T, T]`: which columns each column sees."""
    column = jnp.arange(self.subtree_end.shape[1])
    return (column[None, None, :] <= column[None, :, None]) & (
      column[None, :, None] < self.subtree_end[:, None, :]
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CacheMask:
  """All queries of a row see the same columns of its cache.

  Attributes:
    seen: bool `[B, S]`.
    before: bool `[B, S]`, those of them that were there before the keys and values of the query
      itself were written. None says nothing of it.
  """

  seen: jax.Array
  before: jax.Array | None = None

  def dense(self) -> jax.Array:
    """Bool `[B, 1, S]`, the same for each query."""
    return self.seen[:, None, :]


Mask = TreeMask | CacheMask


def causal(lengths: jax.Array, width: int) -> TreeMask:
  """The mask of right-padded rows of int32 lengths `[B]`, `width` columns each."""
  column = jnp.arange(width, dtype=jnp.int32)[None, :]
  lengths = lengths[:, None].astype(jnp.int32)
  return TreeMask(jnp.where(column < lengths, lengths, column + 1))
