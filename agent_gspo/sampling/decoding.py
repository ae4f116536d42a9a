"""Defines the programs of a sampler: prefill into a pool, then decode of many rows at a time.

Arrays of rows are one block of rows per shard, and rows move only within a block, see `sampler`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from agent_gspo.models.config import ModelConfig
from agent_gspo.models.transformer import ROUTING, KVCache, routing
from agent_gspo.ops.attention import masks
from agent_gspo.sampling import categorical


@chex.dataclass(frozen=True)
class Decoding:
  """State of the decode loop; `N` rows, `C` cache columns, `W` new tokens at most."""

  cache: KVCache  # keys and values [N, K, C, d] of each layer
  seen: chex.Array  # bool [N, C]: cache columns the row attends to
  length: chex.Array  # int32 [N]: prompt tokens
  limit: chex.Array  # int32 [N]: most tokens the row may write
  keys: chex.Array  # [N]
  tokens: chex.Array  # int32 [N, W]
  logprobs: chex.Array  # float32 [N, W]
  adapter: chex.Array | None  # int32 [N]: adapter of the row
  log_speak: chex.Array | None  # float32 [N]
  experts: chex.Array | None  # int [N, W, num_layers, k]: experts of each new token that was read
  count: chex.Array  # int32 [N]: tokens written so far
  live: chex.Array  # bool [N]
  t: chex.Array  # int32 scalar: tokens written by the live rows


def _by_block(function: Callable[..., Any], shards: int) -> Callable[..., Any]:
  """Maps `function` over the block of rows of each shard."""
  if shards == 1:
    return function
  split = lambda x: x.reshape(shards, -1, *x.shape[1:])
  join = lambda x: x.reshape(-1, *x.shape[2:])
  mapped = jax.vmap(function)
  return lambda *args: jax.tree.map(join, mapped(*jax.tree.map(split, args)))


def _expert_dtype(c: ModelConfig) -> Any:
  """Returns the dtype of a mixture's expert ids, which leaves room for -1."""
  return jnp.int8 if c.num_experts <= 128 else jnp.int16


def _experts(c: ModelConfig, sown: Any) -> jax.Array | None:
  """Returns the experts of each token, `[B, T, num_layers, k]`; None for a dense model."""
  routed = routing(sown)
  return routed['experts'].astype(_expert_dtype(c)) if routed else None


def _no_experts(c: ModelConfig, *shape: int) -> jax.Array | None:
  each = c.num_layers, c.experts_per_token
  return jnp.zeros((*shape, *each), _expert_dtype(c)) if c.num_experts else None


def empty_pool(c: ModelConfig, rows: int, width: int):
  kv = lambda: jnp.zeros((rows, c.num_kv_heads, width, c.head_dim), c.dtype)  # [R, K, T, d]
  return (
    tuple((kv(), kv()) for _ in range(c.num_layers)),
    jnp.zeros((rows, width, c.embed_dim), c.dtype),  # hidden states [R, T, D]
    _no_experts(c, rows, width),
  )


def prefill(model, shards, params, pool, inputs, first):
  tokens, positions, subtree_end, adapter = inputs
  mask = masks.TreeMask(subtree_end)
  # hidden [R, T, D]; keys and values [R, K, T, d] of each layer
  (hidden, kv), sown = model.apply(
    {'params': params}, tokens, positions, mask, adapter=adapter, mutable=[ROUTING]
  )
  write = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, first, axis=0)
  return jax.tree.map(_by_block(write, shards), pool, (kv, hidden, _experts(model.config, sown)))


def start(model, draw, shards, params, pool, rows, max_new_tokens) -> Decoding:
  """Gathers each row's cache from the pool and samples its first token."""
  source, length, limit, keys, adapter, speak, silence, temperature, stops = rows
  if silence is not None:
    draw = functools.partial(categorical.draw_first, draw, speak, silence)
  n, columns = source.shape  # [N, P], P prompt columns of the C = P + W cache columns
  kv, hidden, _ = pool  # [R, K, T, d] of each layer, [R, T, D]
  row, column = source // hidden.shape[1], source % hidden.shape[1]
  widen = ((0, 0), (0, 0), (0, max_new_tokens), (0, 0))

  def gather(x, row, column):
    # [N, P, K, d] -> [N, K, P, d] -> [N, K, C, d]
    return jnp.pad(x[row, :, column].swapaxes(1, 2), widen)

  cache = jax.tree.map(lambda x: _by_block(gather, shards)(x, row, column), kv)
  seen = jnp.arange(columns)[None, :] < length[:, None]  # [N, P]
  state = Decoding(
    cache=cache,
    seen=jnp.pad(seen, ((0, 0), (0, max_new_tokens))),
    length=length,
    limit=limit,
    keys=keys,
    tokens=jnp.zeros((n, max_new_tokens), jnp.int32),
    logprobs=jnp.zeros((n, max_new_tokens), jnp.float32),
    adapter=adapter,
    log_speak=None,
    experts=_no_experts(model.config, n, max_new_tokens),
    count=jnp.zeros(n, jnp.int32),
    live=limit > 0,
    t=jnp.int32(0),
  )
  last = jnp.arange(n), length - 1  # last prompt token of each row
  ends = _by_block(lambda x, row, column: x[row, column], shards)
  return _write(
    model, draw, params, state, ends(hidden, row[last], column[last]), temperature, stops
  )


def _write(model, draw, params, state, hidden, temperature, stops) -> Decoding:
  """Samples token `t` of the live rows from the hidden states `[N, D]` before it."""
  logits = model.apply({'params': params}, hidden, method='logits')  # [N, V]
  at = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.keys, state.t)
  uniforms = jax.vmap(jax.random.uniform)(at)
  token, logprob, *log_speak = draw(logits, uniforms, temperature)  # [N] each
  put = lambda table, new: jax.lax.dynamic_update_slice_in_dim(
    table,
    jnp.where(state.live, new, jax.lax.dynamic_slice_in_dim(table, state.t, 1, 1)[:, 0])[:, None],
    state.t,
    axis=1,
  )
  count = state.count + state.live
  stopped = (token[:, None] == stops[None, :]).any(axis=-1)  # [N]
  return state.replace(
    tokens=put(state.tokens, token),
    logprobs=put(state.logprobs, logprob),
    log_speak=log_speak[0] if log_speak else state.log_speak,
    count=count,
    live=state.live & ~stopped & (count < state.limit),
    t=state.t + 1,
  )


def decode(model, draw, weights, shards, params, state: Decoding, control) -> Decoding:
  """Decodes until at most `shrink_at` rows per shard are live, or `pause_at` tokens are written.

  With `shrink_at` 0, the first condition is that all rows have ended.
  """
  shrink_at, pause_at, temperature, stops = control
  weights_at = weights(params)
  columns = state.seen.shape[1] - state.tokens.shape[1]  # prompt columns of the cache
  column = jnp.arange(state.seen.shape[1])[None, :]
  written = state.length[:, None] + column - columns
  positions = jnp.where(column < columns, column, written)  # [N, C]

  def more(state):
    enough_live = state.live.reshape(shards, -1).sum(axis=1).max() > shrink_at
    return enough_live & (state.t < pause_at)

  def step(state):
    at = state.t - 1  # the token to read: the last one written
    of_tokens, of_logits = weights_at(at)
    token = jax.lax.dynamic_slice_in_dim(state.tokens, at, 1, axis=1)  # [N, 1]
    seen = state.seen | (jnp.arange(state.seen.shape[1]) == columns + at)[None, :]
    # hidden [N, 1, D]; the token's keys and values are written to cache column `columns + at`
    (hidden, cache), sown = model.apply(
      {'params': of_tokens},
      token,
      (state.length + at)[:, None],
      masks.CacheMask(seen, state.seen, positions),
      state.cache,
      columns + at,
      None if state.adapter is None else state.adapter[:, None],
      mutable=[ROUTING],
    )
    experts = _experts(model.config, sown)  # [N, 1, num_layers, k]
    if experts is not None:
      experts = jax.lax.dynamic_update_slice_in_dim(state.experts, experts, at, axis=1)
    state = dataclasses.replace(state, cache=cache, seen=seen, experts=experts)
    return _write(model, draw, of_logits, state, hidden[:, 0], temperature, stops)

  return jax.lax.while_loop(more, step, state)


def keep_rows(shards, state: Decoding, kept, real) -> Decoding:
  """Selects rows `kept` of each block of the decode state; rows not `real` are padding."""
  state = jax.tree.map(lambda x: take_rows(shards, x, kept) if x.ndim else x, state)
  return dataclasses.replace(state, live=state.live & real)


def take_rows(shards, tree, kept):
  """Selects rows `kept` of each block of every array in a pytree."""
  return jax.tree.map(lambda x: _by_block(lambda x, kept: x[kept], shards)(x, kept), tree)
