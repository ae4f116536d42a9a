"""One decoder for the Llama, Qwen2 and Qwen3 families, applied as a pure function.

The mask is an argument, a description of who sees whom: the same module runs a prompt, a tree of
samples that share their context, and one decoding step against a cache.

Operands of matrix products are rounded to `config.dtype`, sums and all that is elementwise are
float32, so that the three agree on a log-prob as far as bfloat16 lets them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agent_gspo.models import rope
from agent_gspo.models.config import ModelConfig
from agent_gspo.ops import lm_head
from agent_gspo.ops.attention import KEPT, masks
from agent_gspo.ops.attention.attend import attend
from agent_gspo.ops.precision import matmul, operand

Params = Any
KVCache = tuple[tuple[jax.Array, jax.Array], ...]
"""One `(keys, values)` a layer, each `[B, num_kv_heads, S, head_dim]`."""

# Std 1 / sqrt(inputs): models trained from scratch here are small, and the customary 0.02
# would start their residual stream an order of magnitude too quiet.
_INIT = nn.initializers.lecun_normal()
_EMBED_INIT = nn.initializers.variance_scaling(1.0, 'fan_out', 'normal')

_REMAT_POLICIES = {
  'nothing': None,
  'attention': jax.checkpoint_policies.save_only_these_names(KEPT),
}


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where a compiled decoder has its arrays on a mesh, said where the compiler would guess wrong.

  Attributes:
    rows: of the residual stream: each device has its rows of it whole. None without a mesh.
    lookup: where the embedding's width is cut: of all tokens, and of their part of each embedding,
      which each device looks up in its part of the table before devices exchange them by rows.
    weights: of kernels and adapters as they are kept and as they are used, by the end of their
      path (`q/kernel`); empty where that is the same. In between they are gathered, in the dtype of
      the operands, once a layer and pass, and their gradients leave as the backward pass has them.
    waits: whether they are gathered only when what they are to be multiplied by is there; else when
      the block before their own begins, so that blocks are gathered while others are computed. Left
      alone, the compiler gathers as many ahead as there is memory.
    heads: how queries, keys and values `[B, K, ...]` are cut, the mesh (None for that of the
      `shard_map` around), and those of its axes that nothing around is cut by hand over. Each
      device computes the attention of its part. None leaves that to the compiler.
  """

  rows: NamedSharding | PartitionSpec | None = None
  lookup: tuple[NamedSharding, NamedSharding] | None = None
  weights: Mapping[str, tuple[NamedSharding, NamedSharding]] = dataclasses.field(
    default_factory=dict
  )
  waits: bool = False
  heads: tuple[PartitionSpec, Mesh | None, frozenset[str]] | None = None

  def residual(self, x: jax.Array) -> jax.Array:
    return x if self.rows is None else jax.lax.with_sharding_constraint(x, self.rows)

  def looked_up(self, embed: Callable[[jax.Array], jax.Array], tokens: jax.Array) -> jax.Array:
    if self.lookup is None:
      return self.residual(embed(tokens))
    of_tokens, of_embeddings = self.lookup
    x = embed(jax.lax.with_sharding_constraint(tokens, of_tokens))
    return self.residual(jax.lax.with_sharding_constraint(x, of_embeddings))

  def by_heads(self, attention: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`attention(q, k, v, mask, parts)`, which no compiler can cut where it is a kernel."""
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

  def gathered(
    self, weight: jax.Array, name: str, x: jax.Array, earlier: jax.Array | None
  ) -> jax.Array:
    """A weight as a module that reads `x` uses it; the block before began with `earlier`."""
    if name in self.weights:
      awaited = x if self.waits or earlier is None else earlier
      weight, _ = jax.lax.optimization_barrier((weight, awaited))
    for sharding in self.weights.get(name, ()):
      weight = jax.lax.with_sharding_constraint(weight, sharding)
    return weight


class RMSNorm(nn.Module):
  """Root-mean-square norm over the last axis."""

  eps: float

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
    y = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
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
  """`x @ a @ b` of each token's own adapter; arbitrary where its id is below 0.

  All adapters are applied, and of their `N * rank` channels those of the others are zeroed in
  between: two matrix products and no copy of weights a token.
  """
  if a.ndim == 2:
    return matmul(matmul(x, a, dtype), b, dtype)
  assert adapter is not None  # there are several: each token names its own
  own = adapter[..., None] == jnp.arange(a.shape[0]).reshape((1,) * adapter.ndim + (-1,))
  x, a, b = (operand(v, dtype) for v in (x, a, b))
  channels = jnp.einsum('...i,nir->...nr', x, a, preferred_element_type=jnp.float32)
  channels = operand(jnp.where(own[..., None], channels, 0), dtype)
  return jnp.einsum('...nr,nro->...o', channels, b, preferred_element_type=jnp.float32)


class Attention(nn.Module):
  """Grouped-query attention with rotary positions."""

  config: ModelConfig
  layout: Layout = Layout()

  @nn.compact
  def __call__(self, x, cos, sin, mask, cache, write_at, adapter, earlier):
    c = self.config
    batch, length, _ = x.shape
    heads = lambda name, n: Linear(c, n * c.head_dim, c.qkv_bias, self.layout, name=name)(
      x, adapter, earlier
    ).reshape(batch, length, n, c.head_dim)
    q, k, v = heads('q', c.num_heads), heads('k', c.num_kv_heads), heads('v', c.num_kv_heads)
    if c.qk_norm:
      q, k = RMSNorm(c.norm_eps, name='q_norm')(q), RMSNorm(c.norm_eps, name='k_norm')(k)
    q = rope.rotate(q, cos, sin) * c.head_dim**-0.5
    k, v = rope.rotate(k, cos, sin).swapaxes(1, 2), v.swapaxes(1, 2)
    q, k, v = (operand(x, c.dtype) for x in (q, k, v))
    parts = None
    if cache is not None:
      parts = cache, (k, v)
      k, v = (
        jax.lax.dynamic_update_slice_in_dim(old, new, write_at, axis=2)
        for old, new in zip(*parts, strict=True)
      )
    q = q.reshape(batch, length, c.num_kv_heads, -1, c.head_dim).transpose(0, 2, 3, 1, 4)
    attention = self.layout.by_heads(functools.partial(attend, implementation=c.attention))
    out = attention(q, k, v, mask, parts).transpose(0, 3, 1, 2, 4).reshape(batch, length, -1)
    return Linear(c, c.embed_dim, layout=self.layout, name='o')(out, adapter, earlier), (k, v)


class MLP(nn.Module):
  """SwiGLU (Shazeer 2020, arXiv 2002.05202)."""

  config: ModelConfig
  layout: Layout = Layout()

  @nn.compact
  def __call__(self, x, adapter, earlier):
    c = self.config
    linear = lambda name, features: Linear(c, features, layout=self.layout, name=name)
    gate = nn.silu(linear('gate', c.mlp_dim)(x, adapter, earlier))
    up = linear('up', c.mlp_dim)(x, adapter, earlier)
    return linear('down', c.embed_dim)(gate * up, adapter, earlier)


class Block(nn.Module):
  """Pre-norm attention and MLP, each added to the residual stream."""

  config: ModelConfig
  layout: Layout = Layout()

  @nn.compact
  def __call__(self, x, cos, sin, mask, cache, write_at, adapter, earlier):
    c = self.config
    y = RMSNorm(c.norm_eps, name='attn_norm')(x)
    attention, mlp = Attention(c, self.layout, name='attn'), MLP(c, self.layout, name='mlp')
    y, kv = attention(y, cos, sin, mask, cache, write_at, adapter, earlier)
    x = self.layout.residual(x + y)
    return x + mlp(RMSNorm(c.norm_eps, name='mlp_norm')(x), adapter, earlier), kv


class Transformer(nn.Module):
  """Decoder-only language model.

  `apply({'params': params}, tokens, positions, mask)` gives the final hidden states;
  `apply(..., hidden, method='logits')` turns those that are needed into logits, so
  that the LM head runs only where somebody reads it.

  Attributes:
    config: its shape.
    layout: on a mesh that of `partition.layout`.
  """

  config: ModelConfig
  layout: Layout = Layout()

  def setup(self):
    c = self.config
    block = nn.remat(Block, policy=_REMAT_POLICIES[c.remat_keeps]) if c.remat else Block
    self.embed = nn.Embed(c.vocab_size, c.embed_dim, embedding_init=_EMBED_INIT)
    self.layers = [block(c, self.layout) for _ in range(c.num_layers)]
    self.final_norm = RMSNorm(c.norm_eps)
    if not c.tie_embeddings:
      # The head is never adapted: LoRA's cost there is the vocabulary.
      self.lm_head = Linear(c.without_adapters(), c.vocab_size)

  def __call__(
    self,
    tokens: jax.Array,
    positions: jax.Array,
    mask: masks.Mask,
    cache: KVCache | None = None,
    write_at: jax.Array | int = 0,
    adapter: jax.Array | None = None,
  ) -> tuple[jax.Array, KVCache]:
    """Runs the decoder.

    Args:
      tokens: int32 `[B, T]`.
      positions: int32 `[B, T]`, rotary position of each token.
      mask: which of the `S` keys each token sees: a `TreeMask` (`S = T`), or with a cache of `S`
        columns a `CacheMask`.
      cache: keys and values `[B, heads, S, d]` a layer; the new ones are written to columns
        `write_at .. write_at + T - 1` before they are read.
      write_at: scalar, first column to write.
      adapter: int32 `[B, T]`, the adapter of each token, -1 for none; by default the one
        that there is.

    Returns:
      Hidden states after the final norm `[B, T, D]`, in `config.dtype`, and the cache (without
      one: the keys and values of these tokens, `S = T`).
    """
    c = self.config
    if adapter is None and c.num_adapters > 1:
      raise ValueError(f'there are {c.num_adapters} adapters; say which one each token takes.')
    x = self.layout.looked_up(self.embed, tokens)
    cos, sin = rope.rotation(c, positions)
    kv: list[tuple[jax.Array, jax.Array]] = []
    earlier = x
    for i, layer in enumerate(self.layers):
      layer_cache, began = None if cache is None else cache[i], x
      x, layer_kv = layer(x, cos, sin, mask, layer_cache, write_at, adapter, earlier)
      kv.append(layer_kv)
      earlier = began
    return operand(self.final_norm(x), c.dtype), tuple(kv)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Float32 logits `[..., V]` of hidden states `[..., D]`; -inf for ids that no text shows."""
    c = self.config
    if c.tie_embeddings:
      found = matmul(hidden, self.embed.embedding.T, c.dtype)
    else:
      found = self.lm_head(hidden)
    return lm_head.mask_unsaid(found, c.unsaid, -jnp.inf)

  def init_everything(self, tokens, positions, mask):
    """Touches every parameter; for `init` only."""
    hidden, _ = self(tokens, positions, mask, adapter=jnp.zeros_like(tokens))
    return self.logits(hidden)


def init_params(config: ModelConfig, key: jax.Array) -> Params:
  """Random parameters (std `1 / sqrt(inputs)`; norms 1; adapters He-uniform and 0)."""
  one = jnp.zeros((1, 1), jnp.int32)
  variables = Transformer(config).init(
    key, one, one, masks.causal(jnp.ones(1), 1), method='init_everything'
  )
  return variables['params']


def head_params(params: Params) -> Params:
  """The part of the parameters that makes logits."""
  head = 'lm_head' if 'lm_head' in params else 'embed'
  return {head: params[head]}


def head_kernel(params: Params) -> jax.Array:
  """`[D, V]`, what hidden states are multiplied by for logits; `head_params` are enough."""
  return params['lm_head']['kernel'] if 'lm_head' in params else params['embed']['embedding'].T
