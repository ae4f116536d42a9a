"""Implements the decoder of all families (`families.py`) as a pure function.

The mask is an argument: the same module runs a prefill, a prefix tree of samples with shared
context, and one decode step against a KV cache.

Operands of matrix products are rounded to `config.dtype`; sums and elementwise operations are
float32, so the three uses agree on a log-prob up to bfloat16 rounding.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agent_gspo.models import lora, rope
from agent_gspo.models.config import ModelConfig
from agent_gspo.ops import experts as experts_lib
from agent_gspo.ops import lm_head, soft_cap
from agent_gspo.ops.attention import KEPT, masks
from agent_gspo.ops.attention.attend import attend
from agent_gspo.ops.precision import matmul, operand

Params = Any
KVCache = tuple[tuple[jax.Array, jax.Array], ...]
"""One `(keys, values)` per layer, each `[B, num_kv_heads, S, head_dim]`."""

ROUTING = 'routing'
"""Flax collection into which mixtures of experts sow."""

# Std 1 / sqrt(inputs): models trained from scratch here are small, and the customary 0.02
# would make their initial residual stream an order of magnitude too small.
_INIT = nn.initializers.lecun_normal()
_STACK_INIT = nn.initializers.lecun_normal(batch_axis=0)
_EMBED_INIT = nn.initializers.variance_scaling(1.0, 'fan_out', 'normal')

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  'silu': nn.silu,
  'gelu_tanh': functools.partial(nn.gelu, approximate=True),
}

_REMAT_POLICIES = {
  'nothing': None,
  'attention': jax.checkpoint_policies.save_only_these_names(KEPT),
}


@dataclasses.dataclass(frozen=True)
class Layout:
  """Sharding constraints of a compiled decoder on a mesh, where the compiler would guess wrong.

  Attributes:
    rows: Sharding of the residual stream by rows. None without a mesh.
    lookup: Shardings of the tokens and of their embeddings `[B, T, D]` if the table is sharded
      along its width: each device looks up its part of the width, then devices exchange rows.
    weights: Shardings of kernels and adapters, as stored and as used, by path suffix (`q/kernel`);
      empty where both are the same. Weights are all-gathered in the operand dtype once per layer
      and pass; their gradients have the sharding of the backward pass.
    waits: Whether the all-gather waits for the other operand; else it starts with the block
      before, so that communication overlaps computation. Without either barrier the compiler
      gathers ahead until memory is full.
    heads: Spec of queries, keys and values `[B, K, ...]`, the mesh (None: that of the enclosing
      `shard_map`) and its axes that are still automatic there. Each device computes the attention
      of its shard. None leaves attention to the compiler.
    experts: Spec of rows `[B, ...]`, the axis that shards the width of experts (or None), mesh and
      axes as in `heads`. Each device routes the tokens of its rows.
  """

  rows: NamedSharding | PartitionSpec | None = None
  lookup: tuple[NamedSharding, NamedSharding] | None = None
  weights: Mapping[str, tuple[NamedSharding, NamedSharding]] = dataclasses.field(
    default_factory=dict
  )
  waits: bool = False
  heads: tuple[PartitionSpec, Mesh | None, frozenset[str]] | None = None
  experts: tuple[PartitionSpec, str | None, Mesh | None, frozenset[str]] | None = None

  def residual(self, x: jax.Array) -> jax.Array:
    return x if self.rows is None else jax.lax.with_sharding_constraint(x, self.rows)

  def looked_up(self, embed: Callable[[jax.Array], jax.Array], tokens: jax.Array) -> jax.Array:
    if self.lookup is None:
      return self.residual(embed(tokens))
    of_tokens, of_embeddings = self.lookup
    x = embed(jax.lax.with_sharding_constraint(tokens, of_tokens))
    return self.residual(jax.lax.with_sharding_constraint(x, of_embeddings))

  def by_heads(self, attention: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Wraps `attention(q, k, v, mask, parts)` in a `shard_map`, as kernels need."""
    if self.heads is None:
      return attention
    of_heads, mesh, axes = self.heads
    rows = PartitionSpec(*of_heads[:1])
    return jax.shard_map(
      attention,
      mesh=mesh,
      in_specs=(of_heads, of_heads, of_heads, rows, of_heads),
      out_specs=of_heads,
      axis_names=axes,
      check_vma=False,
    )

  def by_experts(self, mixture: Callable[..., tuple[jax.Array, ...]]) -> Callable[..., Any]:
    """Wraps `mixture(x, experts, router, gate, up, down)`, of which `x` and `experts` have rows."""
    if self.experts is None:
      return mixture
    rows, width, mesh, axes = self.experts

    def summed(*args: jax.Array) -> tuple[jax.Array, ...]:
      found, *routing = mixture(*args)  # found: of this device's part of the width
      return jax.lax.psum(found, width) if width else found, *routing

    wide = PartitionSpec(None, None, width)
    return jax.shard_map(
      summed,
      mesh=mesh,
      in_specs=(rows, rows, PartitionSpec(), wide, wide, PartitionSpec(None, width)),
      out_specs=rows,
      axis_names=axes,
      check_vma=False,
    )

  def gathered(
    self, weight: jax.Array, name: str, x: jax.Array, earlier: jax.Array | None
  ) -> jax.Array:
    """Returns `weight` all-gathered for a product with `x`; `earlier` starts the block before."""
    if name in self.weights:
      awaited = x if self.waits or earlier is None else earlier
      weight, _ = jax.lax.optimization_barrier((weight, awaited))
    for sharding in self.weights.get(name, ()):
      weight = jax.lax.with_sharding_constraint(weight, sharding)
    return weight


class RMSNorm(nn.Module):
  """Root-mean-square norm over the last axis; multiplies by `scale + norm_offset`."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    offset = self.config.spec.norm_offset
    scale = self.param('scale', nn.initializers.constant(1 - offset), (x.shape[-1],)) + offset
    y = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.config.norm_eps)
    return y * scale.reshape((1,) * (x.ndim - 1) + (-1,))


class Linear(nn.Module):
  """Float32 `x @ kernel (+ bias)`, plus LoRA adapters (Hu et al. 2021) if `lora_rank > 0`.

  One adapter is `[in, rank]` and `[rank, out]`; several are stacked, `[N, in, rank]` and
  `[N, rank, out]`.
  """

  config: ModelConfig
  features: int
  use_bias: bool = False
  layout: Layout = Layout()

  @nn.compact
  def __call__(
    self, x: jax.Array, adapter: jax.Array | None = None, earlier: jax.Array | None = None
  ) -> jax.Array:
    c = self.config
    kernel = self.param('kernel', _INIT, (x.shape[-1], self.features))
    whole = lambda weight, kind: self.layout.gathered(
      operand(weight, c.dtype), f'{self.name}/{kind}', x, earlier
    )
    y = matmul(x, whole(kernel, 'kernel'), c.dtype)
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros, (self.features,))
      y += bias.reshape((1,) * (x.ndim - 1) + (-1,))
    if c.lora_rank:
      stack = (c.num_adapters,) if c.num_adapters > 1 else ()
      init = nn.initializers.he_uniform(batch_axis=tuple(range(len(stack))))
      a = self.param('lora_a', init, (*stack, x.shape[-1], c.lora_rank))
      b = self.param('lora_b', nn.initializers.zeros, (*stack, c.lora_rank, self.features))
      change = _low_rank(x, whole(a, 'lora_a'), whole(b, 'lora_b'), adapter, c.dtype)
      adapted = y + (c.lora_alpha / c.lora_rank) * change
      # Chosen, not added as 0: without an adapter no bit of `y` may change (-0.0 + 0.0 would).
      y = adapted if adapter is None else jnp.where(adapter[..., None] >= 0, adapted, y)
    return y


def _low_rank(
  x: jax.Array, a: jax.Array, b: jax.Array, adapter: jax.Array | None, dtype: str
) -> jax.Array:
  """Returns `x @ a @ b` of each token's own adapter; arbitrary where its id is below 0.

  Applies all adapters and zeroes the channels, of `N * rank`, that belong to others: two matrix
  products, without a copy of weights per token.
  """
  if a.ndim == 2:
    return matmul(matmul(x, a, dtype), b, dtype)
  assert adapter is not None  # with several adapters each token needs an id
  own = adapter[..., None] == jnp.arange(a.shape[0]).reshape((1,) * adapter.ndim + (-1,))
  x, a, b = (operand(v, dtype) for v in (x, a, b))
  # channels: [..., N, rank]
  channels = jnp.einsum('...i,nir->...nr', x, a, preferred_element_type=jnp.float32)
  channels = operand(jnp.where(own[..., None], channels, 0), dtype)
  return jnp.einsum('...nr,nro->...o', channels, b, preferred_element_type=jnp.float32)


class Attention(nn.Module):
  """Grouped-query attention, with rotary positions unless `cos` is None."""

  config: ModelConfig
  layout: Layout = Layout()

  @nn.compact
  def __call__(self, x, cos, sin, mask, cache, write_at, adapter, earlier):
    c = self.config
    batch, length, _ = x.shape
    bias = c.spec.has('attn/q/bias')

    def heads(name: str, n: int) -> jax.Array:
      y = Linear(c, n * c.head_dim, bias, self.layout, name=name)(x, adapter, earlier)
      # Norms are over a head [d], or over all heads [n * d].
      normed = c.spec.axes(f'attn/{name}_norm/scale')
      y = y.reshape(batch, length, n, c.head_dim) if normed in ('', 'H') else y
      y = RMSNorm(c, name=f'{name}_norm')(y) if normed else y
      return y.reshape(batch, length, n, c.head_dim)

    # q: [B, T, H, d]; k, v: [B, T, K, d]
    q, k, v = heads('q', c.num_heads), heads('k', c.num_kv_heads), heads('v', c.num_kv_heads)
    if cos is not None:  # this layer has rotary positions
      q, k = rope.rotate(q, cos, sin), rope.rotate(k, cos, sin)
    q = q * (c.query_scalar or c.head_dim) ** -0.5
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)  # [B, K, T, d], as cached
    q, k, v = (operand(x, c.dtype) for x in (q, k, v))
    parts = None
    if cache is not None:
      parts = cache, (k, v)
      k, v = (
        jax.lax.dynamic_update_slice_in_dim(old, new, write_at, axis=2)
        for old, new in zip(*parts, strict=True)
      )
    # q, and the result of attention: [B, K, H / K, T, d]; k, v: [B, K, S, d]
    q = q.reshape(batch, length, c.num_kv_heads, -1, c.head_dim).transpose(0, 2, 3, 1, 4)
    plain = functools.partial(attend, implementation=c.attention, cap=c.attention_cap)
    attention = self.layout.by_heads(plain)
    out = attention(q, k, v, mask, parts).transpose(0, 3, 1, 2, 4).reshape(batch, length, -1)
    return Linear(c, c.embed_dim, layout=self.layout, name='o')(out, adapter, earlier), (k, v)


class MLP(nn.Module):
  """Gated MLP: SwiGLU or GeGLU (Shazeer 2020, arXiv 2002.05202)."""

  config: ModelConfig
  layout: Layout = Layout()

  @nn.compact
  def __call__(self, x, adapter, earlier, experts):
    del experts
    c = self.config
    linear = lambda name, features: Linear(c, features, layout=self.layout, name=name)
    gate = _ACTIVATIONS[c.spec.activation](linear('gate', c.mlp_dim)(x, adapter, earlier))
    up = linear('up', c.mlp_dim)(x, adapter, earlier)
    return linear('down', c.embed_dim)(gate * up, adapter, earlier)


class Kernel(nn.Module):
  """Float32 kernel `[in, out]`, or a stack of them `[E, in, out]`."""

  shape: tuple[int, ...]

  @nn.compact
  def __call__(self) -> jax.Array:
    return self.param('kernel', _INIT if len(self.shape) == 2 else _STACK_INIT, self.shape)


class Mixture(nn.Module):
  """Mixture of gated MLPs (experts); each token is routed to `experts_per_token`.

  Sows the experts that the router chooses, int32 `[B, T, k]`, and the probabilities of all, float32
  `[B, T, E]`, as `experts` and `probabilities` of the collection `ROUTING`. Tokens go through the
  `experts` of the call instead, unless they are None or negative.
  """

  config: ModelConfig
  layout: Layout = Layout()

  @nn.compact
  def __call__(self, x, adapter, earlier, experts):
    del adapter  # routers and experts have none
    c = self.config

    def kernel(name: str, inputs: int, features: int) -> jax.Array:
      stack = Kernel((c.num_experts, inputs, features), name=name)()
      return self.layout.gathered(operand(stack, c.dtype), f'{name}/kernel', x, earlier)

    kernels = (
      kernel('gate', c.embed_dim, c.mlp_dim),
      kernel('up', c.embed_dim, c.mlp_dim),
      kernel('down', c.mlp_dim, c.embed_dim),
    )
    router = Kernel((c.embed_dim, c.num_experts), name='router')()

    def mix(x, experts, router, *kernels):
      chosen, probabilities = experts_lib.route(x, router, c.experts_per_token)
      experts = chosen if experts is None else jnp.where(experts < 0, chosen, experts)
      weights = experts_lib.weights_of(experts, probabilities, normalize=c.norm_topk)
      flat = lambda of_token: of_token.reshape(-1, of_token.shape[-1])
      found = experts_lib.apply(
        flat(x), flat(weights), flat(experts), kernels, _ACTIVATIONS[c.spec.activation], c.dtype
      )
      return found.reshape(x.shape), chosen, probabilities

    found, chosen, probabilities = self.layout.by_experts(mix)(x, experts, router, *kernels)
    self.sow(ROUTING, 'experts', chosen)
    self.sow(ROUTING, 'probabilities', probabilities)
    return found


class Block(nn.Module):
  """Attention and MLP, each added to the residual stream.

  Their inputs are normalized and, in families with such parameters, their outputs.
  """

  config: ModelConfig
  layout: Layout = Layout()

  @nn.compact
  def __call__(self, x, cos, sin, mask, cache, write_at, adapter, earlier, experts):
    c = self.config
    norm = lambda name, y: RMSNorm(c, name=name)(y) if c.spec.has(f'{name}/scale') else y
    attention = Attention(c, self.layout, name='attn')
    mlp = (Mixture if c.spec.is_mixture else MLP)(c, self.layout, name='mlp')
    y = norm('attn_norm', x)
    y, kv = attention(y, cos, sin, mask, cache, write_at, adapter, earlier)
    x = self.layout.residual(x + norm('post_attn_norm', y))
    y = mlp(norm('mlp_norm', x), adapter, earlier, experts)
    return x + norm('post_mlp_norm', y), kv


class Transformer(nn.Module):
  """Decoder-only language model.

  `apply({'params': params}, tokens, positions, mask)` returns the final hidden states;
  `apply(..., hidden, method='logits')` maps selected ones to logits, so the LM head runs only
  at positions that are used.

  Attributes:
    config: Architecture.
    layout: Sharding constraints; on a mesh those of `partition.layout`.
  """

  config: ModelConfig
  layout: Layout = Layout()

  def setup(self):
    c = self.config
    block = nn.remat(Block, policy=_REMAT_POLICIES[c.remat_keeps]) if c.remat else Block
    self.embed = nn.Embed(c.vocab_size, c.embed_dim, embedding_init=_EMBED_INIT)
    self.layers = [block(c, self.layout) for _ in range(c.num_layers)]
    self.final_norm = RMSNorm(c)
    if not c.tie_embeddings:
      # The head has no adapter: its cost would grow with the vocabulary.
      self.lm_head = Linear(c.without_adapters(), c.vocab_size)

  def __call__(
    self,
    tokens: jax.Array,
    positions: jax.Array,
    mask: masks.Mask,
    cache: KVCache | None = None,
    write_at: jax.Array | int = 0,
    adapter: jax.Array | None = None,
    experts: jax.Array | None = None,
  ) -> tuple[jax.Array, KVCache]:
    """Runs the decoder.

    Args:
      tokens: Token ids, int32 `[B, T]`.
      positions: Rotary positions, int32 `[B, T]`.
      mask: Keys visible to each token: a `TreeMask` (`S = T`), or with a cache of `S` columns a
        `CacheMask`.
      cache: Keys and values `[B, heads, S, d]` per layer; new ones are written to columns
        `write_at .. write_at + T - 1` before they are read.
      write_at: First column to write, scalar.
      adapter: Adapter of each token, int32 `[B, T]`, -1 for none; optional with one adapter.
      experts: Experts of each token in a mixture, int `[B, T, num_layers, k]`; by default, and
        where negative, those that the router chooses.

    Returns:
      Hidden states after the final norm `[B, T, D]`, in `config.dtype`, and the cache (without
      one: the keys and values of these tokens, `S = T`).
    """
    c = self.config
    if adapter is None and c.num_adapters > 1:
      raise ValueError(f'there are {c.num_adapters} adapters; say which one each token takes.')
    x = self.layout.looked_up(self.embed, tokens)
    if c.spec.scaled_embeddings:
      x *= c.embed_dim**0.5
    # Cosines, sines and mask of layers without and with a sliding window.
    full = (*rope.rotation(rope.frequencies(c), positions), mask)
    if c.sliding is not None:
      near = mask.within(c.sliding.width, positions)
      local = (*rope.rotation(rope.frequencies(c, sliding=True), positions), near)
    kv: list[tuple[jax.Array, jax.Array]] = []
    earlier = x
    for i, layer in enumerate(self.layers):
      layer_cache, began = None if cache is None else cache[i], x
      cos, sin, seen = local if c.sliding and c.sliding.layers[i] else full
      rotary = c.rope_layers is None or c.rope_layers[i]
      x, layer_kv = layer(
        x,
        cos if rotary else None,
        sin if rotary else None,
        seen,
        layer_cache,
        write_at,
        adapter,
        earlier,
        None if experts is None else experts[:, :, i],
      )
      kv.append(layer_kv)
      earlier = began
    return operand(self.final_norm(x), c.dtype), tuple(kv)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Returns float32 logits `[..., V]` of hidden states `[..., D]`; -inf for `config.unsaid`."""
    c = self.config
    if c.tie_embeddings:
      found = matmul(hidden, self.embed.embedding.T, c.dtype)
    else:
      found = self.lm_head(hidden)
    return lm_head.mask_unsaid(soft_cap.apply(found, c.logit_cap), c.unsaid, -jnp.inf)

  def init_everything(self, tokens, positions, mask):
    """Touches every parameter; for `init` only."""
    hidden, _ = self(tokens, positions, mask, adapter=jnp.zeros_like(tokens))
    return self.logits(hidden)


def init_params(config: ModelConfig, key: jax.Array) -> Params:
  """Returns random parameters (std `1 / sqrt(inputs)`; norms 1; adapters He-uniform and 0)."""
  one = jnp.zeros((1, 1), jnp.int32)
  variables = Transformer(config).init(
    key, one, one, masks.causal(jnp.ones(1), 1), method='init_everything'
  )
  return variables['params']


@functools.partial(jax.jit, static_argnums=0)  # XLA removes the draws of other parameters
def init_adapters(config: ModelConfig, key: jax.Array) -> dict[tuple[str, ...], jax.Array]:
  """Returns the adapters of `init_params`, a flat dict by path."""
  flat = flax.traverse_util.flatten_dict(init_params(config, key))
  return {path: x for path, x in flat.items() if lora.is_adapter(path[-1])}


def routing(sown: Mapping[str, Any]) -> dict[str, jax.Array]:
  """Stacks the sown values of a model's mixtures by layer; {} for a dense model.

  Returns:
    `experts` of each token, int32 `[B, T, num_layers, k]`, and `probabilities` of all experts,
    float32 `[B, T, num_layers, E]`.
  """
  layers = sown.get(ROUTING, {})
  found = [layers[f'layers_{i}']['mlp'] for i in range(len(layers))]
  return {name: jnp.stack([x[name][0] for x in found], axis=2) for name in (found or [{}])[0]}


def head_params(params: Params) -> Params:
  """Returns the subtree of parameters that `Transformer.logits` reads."""
  head = 'lm_head' if 'lm_head' in params else 'embed'
  return {head: params[head]}


def head_kernel(params: Params) -> jax.Array:
  """Returns the LM head kernel `[D, V]`; `head_params` are enough."""
  return params['lm_head']['kernel'] if 'lm_head' in params else params['embed']['embedding'].T
