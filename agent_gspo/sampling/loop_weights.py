"""What the decode loop reads of a model: gathered once, or anew for each token."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax

from agent_gspo.models import partition
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.transformer import Layout, Params, head_params
from agent_gspo.sharding.placement import Placement

# Of parameters: what a token reads of them, the decoder's part and the head's.
LoopWeights = Callable[[Params], Callable[[jax.Array], tuple[Params, Params]]]


def make(
  config: ModelConfig, placement: Placement, layout: Layout, *, gather_once: bool
) -> tuple[Layout, LoopWeights]:
  """Returns the layout of the decoder in the loop, and what gives it its parameters."""
  if not placement.cut_by_fsdp:
    return layout, _as_they_are
  if gather_once:
    once = functools.partial(_gathered, config, placement)
    return dataclasses.replace(layout, weights={}), once
  return dataclasses.replace(layout, waits=True), _in_the_loop


def _as_they_are(params: Params) -> Callable[[jax.Array], tuple[Params, Params]]:
  return lambda t: (params, head_params(params))


def _gathered(
  config: ModelConfig, placement: Placement, params: Params
) -> Callable[[jax.Array], tuple[Params, Params]]:
  """Whole on each device from before the first token."""
  whole = partition.gathered(params, config, placement)
  # Embeddings are looked up where they are kept, not rounded.
  found = {**whole, 'embed': params['embed']}, head_params(whole)
  return lambda t: found


def _in_the_loop(params: Params) -> Callable[[jax.Array], tuple[Params, Params]]:
  """Gathered anew for each token (`Layout.waits`), and so is the head."""
  return lambda t: (params, jax.lax.optimization_barrier((head_params(params), t))[0])
