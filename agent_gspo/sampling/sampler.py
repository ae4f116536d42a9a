"""Runs jitted prefill and decode on bucketed static shapes.

Prompts are prefilled as prefix trees, so shared prefixes (few-shot examples, a question, the
samples of a group) are computed once. Their keys and values are then gathered into one KV cache
row per sample, and many rows decode together until each has ended. Once half of the rows have
ended, they leave the batch.

On a mesh each of the `row_shards` has its own prompts, with their trees, keys and values: an array
of rows is one block of rows per shard, and rows move only within a block.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.models import partition
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.transformer import Params, Transformer
from agent_gspo.ops import device_kind
from agent_gspo.packing import prefix_tree
from agent_gspo.sampling import categorical, decoding, loop_weights, shapes
from agent_gspo.sampling import keys as keys_lib
from agent_gspo.sampling.shapes import bucket
from agent_gspo.sharding.placement import ONE_DEVICE, Placement


@dataclasses.dataclass(frozen=True)
class Samples:
  """Continuations sampled for `N` prompts.

  Attributes:
    token_ids: Sampled tokens, the stop token included if there is one, `N` int32 arrays.
    logprobs: Log-probs under the sampling distribution, `N` float32 arrays like `token_ids`.
    ended: True if a stop token was sampled, False if truncated at the limit, bool `[N]`.
    prefill_positions: Token positions computed in prefill.
    log_speak: Log-prob that a row does not begin with a silence id, float32 `[N]`; None without.
    experts: Experts of each token but the last, prompt first, in a mixture: `N` int8 or
      int16 arrays `[P + W - 1, num_layers, k]`. None for a dense model, or if not asked for.
  """

  token_ids: list[np.ndarray]
  logprobs: list[np.ndarray]
  ended: np.ndarray
  prefill_positions: int
  log_speak: np.ndarray | None = None
  experts: list[np.ndarray] | None = None


class Sampler:
  """Samples messages from a model; caches compiled functions and pool sizes.

  Args:
    config: Model config of the parameters passed to `__call__`.
    max_new_tokens: Longest message, in tokens.
    prefill_length: Columns of a prefill row; longer prompts get longer rows.
    prefill_rows: Rows prefilled at a time per device.
    decode_rows: Rows decoded together per device; their KV cache is most of the sampling memory.
    cache_length: Prompt columns of the KV cache; longer prompts get a longer one.
    few_shapes: Round sizes to fewer shapes, with more padding; by default on accelerators. On an
      H100 a decode program takes 10 s to compile, and a batch of messages less than 1 s to write.
    smallest_batch: Rows of the smallest decode batch, over all devices; by default 8, or with
      `few_shapes` all `decode_rows`, so that no batch is shrunk as its messages end.
    batches_at_once: Parts of `decode_rows` that decode concurrently, one thread each; by default 2
      for wide models on a multi-core CPU, else 1.
    gather_once: Gathers FSDP-sharded parameters once before decode; else a layer at a time for
      each token, which takes less memory and much more time.
    placement: Sharding of rows and of key-value heads.
  """

  def __init__(
    self,
    config: ModelConfig,
    *,
    max_new_tokens: int,
    prefill_length: int = 512,
    prefill_rows: int = 2,
    decode_rows: int = 96,
    cache_length: int = 32,
    few_shapes: bool | None = None,
    smallest_batch: int | None = None,
    batches_at_once: int | None = None,
    gather_once: bool = True,
    placement: Placement = ONE_DEVICE,
  ):
    self.config = config
    self.max_new_tokens = max_new_tokens
    self.prefill_length = prefill_length
    self.prefill_rows = prefill_rows
    self.decode_rows = decode_rows
    self.cache_length = cache_length
    self.few_shapes = device_kind.current() != 'cpu' if few_shapes is None else few_shapes
    if smallest_batch is None:
      smallest_batch = decode_rows * placement.row_shards if self.few_shapes else 8
    self.smallest_batch = -(-smallest_batch // placement.row_shards)
    self.batches_at_once = batches_at_once or shapes.batches_at_once(config, placement)
    self.gather_once = gather_once
    self.placement, self.shards = placement, placement.row_shards
    rows = placement.rows
    layout = partition.layout(config, placement, rows)
    model = Transformer(config, layout)
    cache = partition.cache_sharding(config, placement)
    shardings: dict[str, Any] = {f.name: rows for f in dataclasses.fields(decoding.Decoding)}
    state = self.decoding = decoding.Decoding(
      **(shardings | {'cache': cache, 't': placement.replicated})
    )
    # Rows per shard of the largest pool by (prompts, columns); reused, since another shape would
    # be compiled.
    self._largest_pool: dict[tuple[int, int], int] = {}
    self.pool = jax.jit(
      functools.partial(decoding.empty_pool, config),
      static_argnums=(0, 1),
      out_shardings=placement.one_device or (cache, rows, rows),
    )
    program = lambda function, *fixed, **options: jax.jit(
      functools.partial(function, *fixed, self.shards), **options
    )
    self.prefill = program(
      decoding.prefill, model, donate_argnums=1, out_shardings=(cache, rows, rows)
    )
    draw = functools.partial(categorical.draw, parts=placement.size('tensor'))
    self.start = program(decoding.start, model, draw, static_argnums=3, out_shardings=state)
    of_loop, weights = loop_weights.make(config, placement, layout, gather_once=gather_once)
    reader = Transformer(config, of_loop)
    self.decode = program(
      decoding.decode, reader, draw, weights, donate_argnums=1, out_shardings=state
    )
    self.keep = program(decoding.keep_rows, out_shardings=state)
    self.take = program(decoding.take_rows, out_shardings=cache)

  def prompt_columns(self, longest: int) -> int:
    """Returns the columns of a prefill row for prompts of at most `longest` tokens."""
    return max(self.prefill_length, bucket(longest, 64))

  def pool_rows(self, rows: int) -> int:
    """Returns the pool rows per shard for so many prefill rows, with half as many in reserve.

    Messages may get longer, and a larger pool is another shape to compile.
    """
    batches = -(-rows * 3 // (2 * self.prefill_rows))
    return bucket(batches, 1, halves=not self.few_shapes) * self.prefill_rows

  def cache_columns(self, longest: int) -> int:
    """Returns the prompt columns of the KV cache for prompts of at most `longest` tokens."""
    columns = bucket(longest, 128, halves=False) if self.few_shapes else bucket(longest, 32)
    return max(self.cache_length, columns)

  def batch_rows(self, messages: int) -> int:
    """Returns the rows per shard of a decode batch for so many messages."""
    return bucket(messages, self.smallest_batch)

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
    listener: Callable[[int, np.ndarray], None] | None = None,
    must_speak: np.ndarray | None = None,
    silence_ids: Sequence[int] = (),
    experts: bool = False,
  ) -> Samples:
    """Samples one continuation for each of `N` prompts.

    Args:
      params: Model parameters, placed by `partition.place`.
      prompts: `N` non-empty int arrays; equal ones are prefilled once.
      keys: Random key of each row, `[N]` (see `keys.row_keys`); noise depends on nothing else.
      temperature: 0 (greedy) or above. A new value does not recompile.
      stop_ids: Ids that end a row. A new set of at most 8 does not recompile.
      limits: Most tokens each row may write, int `[N]`, 1 to `max_new_tokens` (the default).
      adapters: Adapter of each row, int `[N]`, -1 for none; by default the model's only one.
        New ids do not recompile.
      listener: Called after each token from the second on with the index of each prompt of a batch
        and the tokens written for it so far, by one thread per batch. It changes no token; decoding
        pauses for it, which costs 5 % with SmolLM2-135M on a CPU. Its exceptions end sampling.
      must_speak: Rows that may not begin with one of `silence_ids`, bool `[N]`; log-probs stay
        those of the model. New rows do not recompile.
      silence_ids: The stop ids that leave no text.
      experts: Returns the experts of a mixture in `Samples.experts`.

    Raises:
      ValueError: A prompt and its limit exceed the model's context, or an adapter does not exist.
    """
    limits = np.full(len(prompts), self.max_new_tokens) if limits is None else np.asarray(limits)
    self._check(prompts, limits, temperature, adapters)
    n, longest = len(prompts), max(map(len, prompts))
    # One block of prompts per shard: the samples of a group are adjacent, so they share a shard.
    blocks = np.array_split(np.arange(n), self.shards)
    width = self.prompt_columns(longest)
    trees = [
      prefix_tree.pack(
        [prompts[n] for n in some],
        width,
        # No shared prefix across adapters: hidden states of equal tokens differ.
        keys=None if adapters is None else adapters[some],
      )
      # A shard without prompts computes prompt 0.
      for some in (block if block.size else np.arange(1) for block in blocks)
    ]
    control = (jnp.float32(temperature), shapes.padded_ids(stop_ids))
    silence = None if must_speak is None else shapes.padded_ids(silence_ids)
    columns = self.cache_columns(longest)
    out = {
      'tokens': np.zeros((n, self.max_new_tokens), np.int32),  # [N, W]
      'logprobs': np.zeros((n, self.max_new_tokens), np.float32),  # [N, W]
      'count': np.zeros(n, np.int32),  # [N]
    }
    if silence is not None:
      out['log_speak'] = np.zeros(n, np.float32)  # [N]
    longest_block = len(blocks[0])
    finish = functools.partial(self._finish, params, control, out, listener)
    with self.placement.turn:
      pool = self._fill_pool(params, trees, n, adapters is not None)
      if experts and pool[-1] is not None:
        shape = (n, self.max_new_tokens, *pool[-1].shape[2:])  # [N, W, num_layers, k]
        out['experts'] = np.zeros(shape, pool[-1].dtype)
      for first in range(0, longest_block, self.decode_rows):
        last = min(first + self.decode_rows, longest_block)
        batches = []
        for begin, end in self._batches(first, last):
          some = [block[begin:end] for block in blocks]
          owner = shapes.padded(some, self.batch_rows(end - begin))
          rows = self._rows(trees, owner, begin, columns, limits, keys, adapters, must_speak)
          inputs = (*rows, silence, *control)
          batches.append((self.start(params, pool, inputs, self.max_new_tokens), owner))
        if last == longest_block:
          of_prompts = self._of_prompts(trees, pool[-1])[:n] if 'experts' in out else ()
          del pool
        with futures.ThreadPoolExecutor(len(batches)) as threads:
          list(threads.map(finish, *zip(*batches, strict=True)))
    tokens, logprobs, count = out['tokens'], out['logprobs'], out['count']
    final = tokens[np.arange(n), np.maximum(count - 1, 0)]
    routed = None
    if 'experts' in out:
      parts = zip(of_prompts, out['experts'], count, strict=True)
      routed = [np.concatenate([read, new[: c - 1]]) for read, new, c in parts]
    return Samples(
      token_ids=[row[:c] for row, c in zip(tokens, count, strict=True)],
      logprobs=[row[:c] for row, c in zip(logprobs, count, strict=True)],
      ended=np.isin(final, np.asarray(stop_ids)) & (count > 0),
      prefill_positions=sum(tree.used for tree in trees),
      log_speak=out.get('log_speak'),
      experts=routed,
    )

  def _of_prompts(self, trees, pooled: jax.Array) -> list[np.ndarray]:
    """Returns the experts of each prompt, `[P, num_layers, k]`, those of empty shards last."""
    blocks = np.split(np.asarray(pooled), self.shards)  # [R, T, num_layers, k] of each shard
    return [
      block[row, at]
      for block, tree in zip(blocks, trees, strict=True)
      for row, at in zip(tree.row, tree.columns, strict=True)
    ]

  def _rows(self, trees, owner: np.ndarray, first: int, columns, limits, keys, adapters, speak):
    """Builds inputs of `start` for the prompts `owner` `[shards, rows]`, from `first` per tree."""
    source = np.zeros((*owner.shape, columns), np.int32)  # pool position [shards, rows, columns]
    length = np.ones(owner.shape, np.int32)  # [shards, rows]
    for shard, tree in enumerate(trees):
      for i in range((owner[shard] >= 0).sum()):
        at = tree.columns[first + i]
        length[shard, i] = len(at)
        source[shard, i, : len(at)] = tree.row[first + i] * tree.tokens.shape[1] + at
    limit = np.where(owner < 0, 0, limits[owner])
    # Padding rows get the key, adapter and flag of prompt 0.
    some = np.maximum(owner, 0).reshape(-1)
    adapter = None if adapters is None else np.asarray(adapters, np.int32)[some]
    speak = None if speak is None else speak[some]
    flat = lambda x: x.reshape(-1, *x.shape[2:]).astype(np.int32)
    rows = (flat(source), flat(length), flat(limit), keys_lib.take(keys, some), adapter, speak)
    return self.placement.shard_rows(rows)

  def _batches(self, first: int, last: int) -> list[tuple[int, int]]:
    """Splits rows `first` to `last` of each shard into batches that decode concurrently."""
    count = self.batches_at_once if last - first >= 2 * self.smallest_batch else 1
    ends = np.linspace(first, last, count + 1).astype(int)
    return list(itertools.pairwise(ends.tolist()))

  def _finish(
    self, params, control, out, listener, state: decoding.Decoding, owner: np.ndarray
  ) -> None:
    """Decodes until each row has ended; writes fields of the state into `out`."""
    tokens, count = out['tokens'], out['count']
    while True:
      rows = owner.shape[1]
      shrink_at = rows // 2 if rows >= 2 * self.smallest_batch else 0
      pause_at = int(state.t) + 1 if listener else self.max_new_tokens
      bounds = (jnp.int32(shrink_at), jnp.int32(pause_at))
      state = self.decode(params, state, (*bounds, *control))
      real = owner >= 0
      for name, found in out.items():
        found[owner[real]] = np.asarray(getattr(state, name))[real.reshape(-1)]
      live = np.asarray(state.live).reshape(owner.shape)
      for n in owner[real] if listener else ():
        listener(n, tokens[n, : count[n]])
      if not live.any():
        return
      if live.sum(axis=1).max() > shrink_at:
        continue  # paused for the listener
      # Only by halves, so that each batch size has one program that shrinks it.
      kept = shapes.padded([np.flatnonzero(x) for x in live], shrink_at)
      owner = np.where(kept < 0, -1, np.take_along_axis(owner, np.maximum(kept, 0), axis=1))
      real, kept = self.placement.shard_rows(
        (kept.reshape(-1) >= 0, np.maximum(kept, 0).reshape(-1))
      )
      # Layer by layer, freeing each old one: two whole caches never coexist.
      cache = list(state.cache)
      state = self.keep(dataclasses.replace(state, cache=()), kept, real)
      for i in range(len(cache)):
        cache[i] = self.take(cache[i], kept)
      state = dataclasses.replace(state, cache=tuple(cache))

  def _check(self, prompts, limits, temperature, adapters) -> None:
    if not 0 <= temperature <= categorical.HIGHEST:
      raise ValueError(
        f'temperature={temperature} must be 0 (greedy) to 1e37; 1 is the model itself.'
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
    lengths = np.asarray([len(prompt) for prompt in prompts])
    row = int(np.argmax(lengths + limits))  # a continued message has a lower limit
    if lengths[row] + limits[row] > self.config.max_positions:
      raise ValueError(
        f'a prompt of {lengths[row]} tokens and a message of up to {limits[row]} do not fit the '
        f'context of {self.config.max_positions}; shorten the prompt (examples, rounds) or lower '
        'max_message_tokens.'
      )

  def _fill_pool(self, params, trees: Sequence[prefix_tree.TokenTree], prompts: int, adapted: bool):
    """Prefills each tree, a few rows at a time, into one pool of keys, values, hidden states."""
    step, count = self.prefill_rows, max(len(tree.tokens) for tree in trees)
    width = trees[0].tokens.shape[1]
    like = (bucket(prompts, 8), width)
    rows = self._largest_pool.get(like, 0)
    if count > rows:
      rows = self._largest_pool[like] = self.pool_rows(count)
    pool = self.pool(self.shards * rows, width)
    for first in range(0, count, step):
      some = np.arange(first, first + step)
      tokens, positions, subtree_end, adapter = (
        np.concatenate([x[some.clip(max=len(x) - 1)] for x in of_trees])
        for of_trees in zip(
          *((t.tokens, t.positions, t.subtree_end, t.keys) for t in trees), strict=True
        )
      )
      inputs = (tokens, positions, subtree_end, adapter if adapted else None)
      pool = self.prefill(params, pool, self.placement.shard_rows(inputs), first)
    return pool
