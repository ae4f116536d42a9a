"""Jitted prefill and decode on bucketed static shapes.

Prompts are prefilled as token trees, so whatever they share (few-shot examples, a
question, the samples of a group) is computed once. Their keys and values are then
gathered into one cache row a sample, and many rows decode together until each has ended.
Rows that have ended leave the batch whenever half of it has.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.models.config import ModelConfig
from agent_gspo.models.transformer import KVCache, Params, Transformer
from agent_gspo.packing import prefix_tree
from agent_gspo.sampling import categorical
from agent_gspo.sharding.placement import ONE_DEVICE, Placement

_NO_TOKEN = -1  # fills the stop-id array; no id equals it


@dataclasses.dataclass(frozen=True)
class Samples:
  """What was sampled for `N` prompts.

  Attributes:
    token_ids: `N` int32 arrays, the sampled tokens with the stop token if there is one.
    logprobs: `N` float32 arrays as long, under the very distribution sampled from.
    ended: bool `[N]`, whether a stop token was sampled (else the limit cut the row).
    prefill_positions: token positions computed for the prompts.
  """

  token_ids: list[np.ndarray]
  logprobs: list[np.ndarray]
  ended: np.ndarray
  prefill_positions: int


@chex.dataclass(frozen=True)
class _Decoding:
  """State of the decode loop; `N` rows, `C` cache columns, `W` new tokens at most."""

  cache: KVCache
  seen: chex.Array  # bool [N, C]: cache columns this row may attend to
  length: chex.Array  # int32 [N]: tokens of the prompt
  limit: chex.Array  # int32 [N]: tokens this row may write
  keys: chex.Array  # [N]
  tokens: chex.Array  # int32 [N, W]
  logprobs: chex.Array  # float32 [N, W]
  adapter: chex.Array | None  # int32 [N]: adapter of the row
  count: chex.Array  # int32 [N]: tokens written so far
  live: chex.Array  # bool [N]
  t: chex.Array  # int32 scalar: tokens written by the live rows


def bucket(n: int, smallest: int) -> int:
  """Least number >= n among `smallest * {1, 1.5} * 2^k`: few shapes, at most a third idle."""
  size = smallest
  while size < n:
    if size % 2 == 0 and size * 3 // 2 >= n:
      return size * 3 // 2
    size *= 2
  return size


class Sampler:
  """Samples messages from a model; holds compiled functions and no other state.

  Args:
    config: of the model whose parameters will be handed to `__call__`.
    max_new_tokens: longest message, in tokens.
    prefill_length: columns of a prefill row; longer prompts get longer rows.
    prefill_rows: rows that a device computes at a time.
    decode_rows: rows that it decodes together; their cache is most of the memory that sampling
      takes.
    smallest_batch: rows of the smallest decode batch, of all devices.
    placement: of rows; each device has the prompts' keys and values whole.
  """

  def __init__(
    self,
    config: ModelConfig,
    *,
    max_new_tokens: int,
    prefill_length: int = 512,
    prefill_rows: int = 2,
    decode_rows: int = 96,
    smallest_batch: int = 8,
    placement: Placement = ONE_DEVICE,
  ):
    self.config = config
    self.max_new_tokens = max_new_tokens
    self.prefill_length = prefill_length
    self.prefill_rows = prefill_rows * placement.devices
    self.decode_rows = decode_rows * placement.devices
    # The devices divide every bucket evenly, those that are 1.5 times a power of two as well.
    self.smallest_batch = math.lcm(smallest_batch, 2 * placement.devices)
    self.placement = placement
    model, whole, cut = Transformer(config), placement.replicated, placement.batch_sharded
    shardings: dict[str, Any] = {f.name: cut for f in dataclasses.fields(_Decoding)}
    state = _Decoding(**(shardings | {'t': whole}))
    jit = jax.jit
    self._prefill = jit(functools.partial(_prefill, model), donate_argnums=1, out_shardings=whole)
    self._start = jit(functools.partial(_start, model), static_argnums=3, out_shardings=state)
    self._decode = jit(functools.partial(_decode, model), donate_argnums=1, out_shardings=state)
    # A partial of its own: jit shares its cache between wrappers of one function.
    self._keep = jit(functools.partial(_keep_rows), out_shardings=state)
    self._take = jit(functools.partial(_take_rows), out_shardings=cut)

  def compilations(self) -> int:
    """Number of programs that this sampler has compiled so far."""
    # Any: their types do not tell of the count.
    jitted: tuple[Any, ...] = (self._prefill, self._start, self._decode, self._keep, self._take)
    return sum(f._cache_size() for f in jitted)

  def __call__(
    self,
    params: Params,
    prompts: Sequence[np.ndarray],
    keys: jax.Array,
    *,
    temperature: float,
    stop_ids: Sequence[int],
    limits: np.ndarray | None = None,
    adapters: np.ndarray | None = None,
  ) -> Samples:
    """Samples one continuation for each of `N` prompts.

    Args:
      params: of the model, on all devices.
      prompts: `N` non-empty int arrays; equal ones are prefilled once.
      keys: `[N]`, one a row (see `keys.row_keys`); row noise depends on nothing else.
      temperature: >= 0; 0 is greedy. A new value compiles nothing.
      stop_ids: ids that end a row. A new set of at most 8 compiles nothing.
      limits: int `[N]`, tokens each row may write, 1 to `max_new_tokens` (the default).
      adapters: int `[N]`, adapter that each row goes through, -1 for none; by default the
        one that there is. Other ids compile nothing.

    Raises:
      ValueError: a prompt with its message would not fit the model's context, or there is
        no such adapter.
    """
    limits = np.full(len(prompts), self.max_new_tokens) if limits is None else np.asarray(limits)
    self._check(prompts, limits, temperature, adapters)
    longest = max(map(len, prompts))
    # Rows of different adapters share no prefix: the same tokens have other hidden states there.
    tree = prefix_tree.pack(prompts, max(self.prefill_length, bucket(longest, 64)), keys=adapters)
    pool = self._fill_pool(params, tree, adapters is not None)

    stops = np.full(bucket(len(stop_ids), 8), _NO_TOKEN, np.int32)
    stops[: len(stop_ids)] = stop_ids
    control = (jnp.float32(temperature), stops)
    n, columns = len(prompts), bucket(longest, 32)
    tokens = np.zeros((n, self.max_new_tokens), np.int32)
    logprobs = np.zeros((n, self.max_new_tokens), np.float32)
    count = np.zeros(n, np.int32)
    for first in range(0, n, self.decode_rows):
      chunk = np.arange(first, min(first + self.decode_rows, n))
      rows = self._rows(tree, chunk, columns, limits, keys, adapters)
      state = self._start(params, pool, (*rows, *control), self.max_new_tokens)
      if chunk[-1] == n - 1:
        del pool
      tokens[chunk], logprobs[chunk], count[chunk] = self._finish(
        params, state, chunk.size, control
      )

    last = tokens[np.arange(n), np.maximum(count - 1, 0)]
    return Samples(
      token_ids=[row[:c] for row, c in zip(tokens, count, strict=True)],
      logprobs=[row[:c] for row, c in zip(logprobs, count, strict=True)],
      ended=np.isin(last, np.asarray(stop_ids)) & (count > 0),
      prefill_positions=tree.used,
    )

  def _rows(self, tree: prefix_tree.TokenTree, chunk, columns, limits, keys, adapters):
    """What `_start` is told about the prompts `chunk`, filled up to a bucket of rows."""
    rows = bucket(chunk.size, self.smallest_batch)
    source = np.zeros((rows, columns), np.int32)
    length = np.ones(rows, np.int32)
    for i, n in enumerate(chunk):
      length[i] = len(tree.columns[n])
      source[i, : length[i]] = tree.row[n] * tree.tokens.shape[1] + tree.columns[n]
    limit = np.zeros(rows, np.int32)
    limit[: chunk.size] = limits[chunk]
    some = chunk[np.minimum(np.arange(rows), chunk.size - 1)]
    adapter = None if adapters is None else np.asarray(adapters, np.int32)[some]
    return self.placement.shard_batch((source, length, limit, keys[some], adapter))

  def _finish(self, params, state: _Decoding, n: int, control):
    """Tokens, log-probs and counts of the first `n` rows, decoded until each has ended."""
    tokens = np.zeros((n, self.max_new_tokens), np.int32)
    logprobs = np.zeros((n, self.max_new_tokens), np.float32)
    count = np.zeros(n, np.int32)
    owner = np.arange(n)  # which row of these each row of the decode batch is
    while True:
      rows = state.live.shape[0]
      shrink_at = rows // 2 if rows > self.smallest_batch else 0
      state = self._decode(params, state, (jnp.int32(shrink_at), *control))
      tokens[owner] = np.asarray(state.tokens)[: len(owner)]
      logprobs[owner] = np.asarray(state.logprobs)[: len(owner)]
      count[owner] = np.asarray(state.count)[: len(owner)]
      live = np.nonzero(np.asarray(state.live))[0]
      if not live.size:
        return tokens, logprobs, count
      owner = owner[live]
      kept = np.zeros(bucket(live.size, self.smallest_batch), np.int32)
      kept[: live.size] = live
      # Layer by layer, each old one let go: there are never two whole caches.
      cache = list(state.cache)
      state = self._keep(
        dataclasses.replace(state, cache=()), kept, np.arange(kept.size) < live.size
      )
      for i in range(len(cache)):
        cache[i] = self._take(cache[i], kept)
      state = dataclasses.replace(state, cache=tuple(cache))

  def _check(self, prompts, limits, temperature, adapters) -> None:
    if temperature < 0:
      raise ValueError(
        f'temperature={temperature} is negative; 0 is greedy, 1 is the model itself.'
      )
    if limits.min() < 1 or limits.max() > self.max_new_tokens:
      raise ValueError(
        f'limits span {limits.min()}..{limits.max()}; a row may write 1 to '
        f'max_new_tokens={self.max_new_tokens} tokens.'
      )
    if adapters is not None and not (
      self.config.lora_rank and -1 <= min(adapters) <= max(adapters) < self.config.num_adapters
    ):
      raise ValueError(
        f'adapters span {min(adapters)}..{max(adapters)}; the model has '
        f'{self.config.num_adapters if self.config.lora_rank else 0}.'
      )
    needed = max(map(len, prompts)) + self.max_new_tokens
    if needed > self.config.max_positions:
      raise ValueError(
        f'a prompt of {needed - self.max_new_tokens} tokens and a message of up to '
        f'{self.max_new_tokens} do not fit the context of {self.config.max_positions}; shorten the '
        'prompt (examples, rounds) or lower max_message_tokens.'
      )

  def _fill_pool(self, params, tree: prefix_tree.TokenTree, adapted: bool):
    """Runs the rows a few at a time into one buffer of keys, values and hidden states."""
    c, step = self.config, self.prefill_rows
    width = tree.tokens.shape[1]
    total = bucket(-(-len(tree.tokens) // step), 1) * step
    kv_shape = (total, c.num_kv_heads, width, c.head_dim)
    pool = (
      tuple(
        (jnp.zeros(kv_shape, c.dtype), jnp.zeros(kv_shape, c.dtype)) for _ in range(c.num_layers)
      ),
      jnp.zeros((total, width, c.embed_dim), c.dtype),
    )
    pool = self.placement.replicate(pool)
    for first in range(0, len(tree.tokens), step):
      rows = np.arange(first, first + step).clip(max=len(tree.tokens) - 1)
      adapter = tree.keys[rows] if adapted else None
      inputs = (tree.tokens[rows], tree.positions[rows], tree.subtree_end[rows], adapter)
      pool = self._prefill(params, pool, self.placement.shard_batch(inputs), first)
    return pool


def _prefill(model, params, pool, inputs, first):
  tokens, positions, subtree_end, adapter = inputs
  mask = prefix_tree.mask(subtree_end)
  hidden, kv = model.apply({'params': params}, tokens, positions, mask, adapter=adapter)
  return jax.tree.map(
    lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, first, axis=0),
    pool,
    (kv, hidden),
  )


def _start(model, params, pool, rows, max_new_tokens) -> _Decoding:
  """Gathers each row's cache from the pool and samples its first token."""
  source, length, limit, keys, adapter, temperature, stops = rows
  n, columns = source.shape
  kv, hidden = pool
  row, column = source // hidden.shape[1], source % hidden.shape[1]
  widen = ((0, 0), (0, 0), (0, max_new_tokens), (0, 0))

  def gather(x):
    return jnp.pad(x[row, :, column].swapaxes(1, 2), widen)

  cache = jax.tree.map(gather, kv)
  seen = jnp.arange(columns)[None, :] < length[:, None]
  state = _Decoding(
    cache=cache,
    seen=jnp.pad(seen, ((0, 0), (0, max_new_tokens))),
    length=length,
    limit=limit,
    keys=keys,
    tokens=jnp.zeros((n, max_new_tokens), jnp.int32),
    logprobs=jnp.zeros((n, max_new_tokens), jnp.float32),
    adapter=adapter,
    count=jnp.zeros(n, jnp.int32),
    live=limit > 0,
    t=jnp.int32(0),
  )
  last = jnp.arange(n), length - 1
  return _write(model, params, state, hidden[row[last], column[last]], temperature, stops)


def _write(model, params, state, hidden, temperature, stops) -> _Decoding:
  """Samples token `t` of the live rows from the hidden states `[N, D]` before it."""
  logits = model.apply({'params': params}, hidden, method='logits')
  at = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.keys, state.t)
  token, logprob = categorical.draw(logits, jax.vmap(jax.random.uniform)(at), temperature)
  put = lambda table, new: jax.lax.dynamic_update_slice_in_dim(
    table,
    jnp.where(state.live, new, jax.lax.dynamic_slice_in_dim(table, state.t, 1, 1)[:, 0])[:, None],
    state.t,
    axis=1,
  )
  count = state.count + state.live
  stopped = (token[:, None] == stops[None, :]).any(axis=-1)
  return state.replace(
    tokens=put(state.tokens, token),
    logprobs=put(state.logprobs, logprob),
    count=count,
    live=state.live & ~stopped & (count < state.limit),
    t=state.t + 1,
  )


def _decode(model, params, state: _Decoding, control) -> _Decoding:
  """Decodes until `shrink_at` rows or fewer are live (0: until all have ended)."""
  shrink_at, temperature, stops = control
  columns = state.seen.shape[1] - state.tokens.shape[1]

  def more(state):
    return state.live.sum() > shrink_at

  def step(state):
    at = state.t - 1  # the token to read: the last one written
    token = jax.lax.dynamic_slice_in_dim(state.tokens, at, 1, axis=1)
    seen = state.seen | (jnp.arange(state.seen.shape[1]) == columns + at)[None, :]
    hidden, cache = model.apply(
      {'params': params},
      token,
      (state.length + at)[:, None],
      seen[:, None, :],
      state.cache,
      columns + at,
      None if state.adapter is None else state.adapter[:, None],
    )
    state = dataclasses.replace(state, cache=cache, seen=seen)
    return _write(model, params, state, hidden[:, 0], temperature, stops)

  return jax.lax.while_loop(more, step, state)


def _keep_rows(state: _Decoding, kept, real) -> _Decoding:
  """The decode state of the rows `kept`, of which those not `real` are padding."""
  state = jax.tree.map(lambda x: x[kept] if x.ndim else x, state)
  return dataclasses.replace(state, live=state.live & real)


def _take_rows(layer, kept):
  """The rows `kept` of a layer's cache."""
  return jax.tree.map(lambda x: x[kept], layer)
