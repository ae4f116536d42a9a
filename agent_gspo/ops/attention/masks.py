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

  Attributes:
    subtree_end: Column after the last descendant, int32 `[B, T]`, above the token's own column.
  """

  subtree_end: jax.Array

  def dense(self) -> jax.Array:
    """Returns the dense mask, bool `[B, T, T]` (query, key)."""
    column = jnp.arange(self.subtree_end.shape[1])
    return (column[None, None, :] <= column[None, :, None]) & (
      column[None, :, None] < self.subtree_end[:, None, :]
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CacheMask:
  """Mask by which all queries of a row attend to the same KV cache columns.

  Attributes:
    seen: Visible columns, bool `[B, S]`.
    before: Visible columns before the query's own keys and values were written, bool `[B, S]`;
      None if unknown.
  """

  seen: jax.Array
  before: jax.Array | None = None

  def dense(self) -> jax.Array:
    """Returns the dense mask, bool `[B, 1, S]`, the same for each query."""
    return self.seen[:, None, :]


Mask = TreeMask | CacheMask


def causal(lengths: jax.Array, width: int) -> TreeMask:
  """Returns the causal mask of right-padded rows of int32 lengths `[B]`, `width` columns each."""
  column = jnp.arange(width, dtype=jnp.int32)[None, :]
  lengths = lengths[:, None].astype(jnp.int32)
  return TreeMask(jnp.where(column < lengths, lengths, column + 1))
