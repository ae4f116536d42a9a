"""Checks that TPU's compiler keeps one copy of an all-gathered array's gradient."""

import pytest
import tpu_programs

# A tied table: its lookup's gradient, of another layout, is added to that of the head.
_SCRIPT = """
from benchmarks import tpu_compiler
tpu_compiler.prepare()

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from agent_gspo.ops import lm_head
from agent_gspo.sharding.placement import AXES, ROWS, Placement

vocab, width, rows, columns = 32_768, 1152, 32, 256
devices = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x4').devices
placement = Placement(Mesh(np.asarray(devices).reshape(1, 8, 1), AXES))
of_table, of_rows = placement.sharding(None, 'fsdp'), placement.sharding(ROWS)
constrain = jax.lax.with_sharding_constraint

def loss(table, tokens):
  embeddings = jnp.take(table, constrain(tokens, placement.sharding()), axis=0)
  embeddings = constrain(constrain(embeddings, placement.sharding(None, None, 'fsdp')), of_rows)
  return placement.by_rows(logprobs, of_table)(table, embeddings, tokens).sum()

def logprobs(table, hidden, tokens):
  hidden, used = hidden.reshape(-1, width).astype(jnp.bfloat16), jnp.ones(tokens.size, bool)
  found, _ = lm_head.token_logprobs(hidden, table.T, tokens.reshape(-1), used)
  return found.reshape(tokens.shape)

step = jax.jit(jax.grad(loss), in_shardings=(of_table, of_rows), out_shardings=of_table)
table = jax.ShapeDtypeStruct((vocab, width), jnp.float32)
lowered = step.lower(table, jax.ShapeDtypeStruct((rows, columns), jnp.int32))
print(lowered.compile().memory_analysis().temp_size_in_bytes / (4 * vocab * width))
"""


@pytest.mark.slow
@tpu_programs.needs_compiler
def test_the_gradient_of_a_tied_table_is_not_transposed_whole():
  assert tpu_programs.printed(_SCRIPT) < 1.5  # 2.8 tables where it is
