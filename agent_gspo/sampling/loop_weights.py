"""Rounds, and under FSDP gathers, parameters for the decode loop: once, or for each token."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from agent_gspo.models import partition
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.transformer import Layout, Params, head_params
from agent_gspo.ops.precision import operand
from agent_gspo.sharding.placement import Placement

# Maps parameters to a function of the step `t` that returns decoder and LM-head parameters.
LoopWeights = Callable[[Params], Callable[[jax.Array], tuple[Params, Params]]]


def make(
  config: ModelConfig, placement: Placement, layout: Layout, *, gather_once: bool
) -> tuple[Layout, LoopWeights]:
  """Returns the decoder layout in the decode loop and the function that gathers its weights."""
  if placement.cut_by_fsdp and not gather_once:
    return dataclasses.replace(layout, waits=True), _in_the_loop
  if placement.cut_by_fsdp:
    layout = dataclasses.replace(layout, weights={})
  return layout, functools.partial(_once, config, placement)


def _once(
  config: ModelConfig, placement: Placement, params: Params
) -> Callable[[jax.Array], tuple[Params, Params]]:
  """Gathers all parameters on each device, and rounds matrices, before the first token.

  Routers of experts stay float32.

  XLA does not hoist loop invariants on GPUs: rounding within the loop would repeat for each token
  and move four times the bytes.
  """
  whole = partition.gathered(params, config, placement)

  def rounded(path: Any, x: jax.Array) -> jax.Array:
    is_operand = x.ndim > 1 and 'router' not in jax.tree_util.keystr(path)
    return operand(x, config.dtype) if is_operand else x

  whole = jax.tree_util.tree_map_with_path(rounded, whole)
  # Embeddings are looked up in their shards, unrounded.
  found = {**whole, 'embed': params['embed']}, head_params(whole)
  return lambda t: found


def _in_the_loop(params: Params) -> Callable[[jax.Array], tuple[Params, Params]]:
  """Gathers layers and LM head anew for each token (`Layout.waits`)."""
  return lambda t: (params, jax.lax.optimization_barrier((head_params(params), t))[0])
