"""Runs the work of `work.py` with Tunix's GRPOLearner (JAX)."""

from __future__ import annotations

import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers
import work
from flax import nnx
from tunix.models.llama3 import model as llama
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

options = work.options()
clock = work.Clock(options)
shape = work.SHAPES[options.shape]
model = llama.Llama3(
  llama.ModelConfig(
    num_layers=shape['layers'],
    vocab_size=work.VOCABULARY,
    embed_dim=shape['width'],
    hidden_dim=shape['mlp'],
    num_heads=shape['heads'],
    head_dim=work.HEAD_DIM,
    num_kv_heads=shape['kv_heads'],
    rope_theta=int(work.ROPE_THETA),
    norm_eps=work.NORM_EPS,
    weight_tying=True,
  ),
  rngs=nnx.Rngs(0),
)
# Tunix leaves some matrices at 0, since it expects a checkpoint.
rng = np.random.default_rng(0)
draw = lambda x: jnp.asarray(rng.normal(0.0, work.INIT_STD, x.shape), jnp.float32)
nnx.update(model, jax.tree.map(lambda x: draw(x) if x.ndim > 1 else x, nnx.state(model)))
count = sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
assert count == work.parameters(shape), (count, work.parameters(shape))

steps = options.warmup + options.steps
mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ('fsdp', 'tp'))
roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
optimizer = optax.chain(
  optax.clip_by_global_norm(work.GRAD_CLIP), optax.adamw(work.LEARNING_RATE, weight_decay=0.0)
)
cluster = rl_cluster.RLCluster(
  actor=model,
  reference=None,
  tokenizer=transformers.PreTrainedTokenizerFast(
    tokenizer_object=work.backend(), pad_token=work.PAD, eos_token=work.EOS, padding_side='left'
  ),
  cluster_config=rl_cluster.ClusterConfig(
    role_to_mesh=dict.fromkeys(roles, mesh),
    rollout_engine='vanilla',
    offload_to_cpu=False,
    training_config=rl_cluster.RLTrainingConfig(
      actor_optimizer=optimizer, eval_every_n_steps=10**9, max_steps=steps
    ),
    rollout_config=base_rollout.RolloutConfig(
      max_tokens_to_generate=work.WRITTEN_TOKENS,
      max_prompt_length=work.PROMPT_TOKENS,
      kv_cache_size=work.PROMPT_TOKENS + work.WRITTEN_TOKENS,
      temperature=1.0,
      top_p=1.0,
      top_k=None,
      eos_tokens=[work.VOCABULARY + 1],
    ),
  ),
)
learner = grpo_learner.GRPOLearner(
  rl_cluster=cluster,
  algo_config=grpo_learner.GRPOConfig(
    num_generations=work.SAMPLES,
    num_iterations=1,
    beta=0.0,
    epsilon=work.CLIP_LOW,
    loss_algo='gspo-token',
  ),
  reward_fns=lambda prompts, completions, **_: [work.score(text) for text in completions],
)
generate, update = cluster.generate, clock.timed('update', cluster.update_actor)


def timed_generate(*arguments, **named):
  found = clock.timed('rollout', generate)(*arguments, **named)
  clock.wrote(sum(len(tokens) for tokens in found.tokens))
  return found


def timed_update(*arguments, **named):
  update(*arguments, **named)
  waited = clock.now()
  jax.block_until_ready(nnx.state(cluster.actor_trainer.model))
  clock.add('update', waited)
  clock.end_step()


cluster.generate, cluster.update_actor = timed_generate, timed_update
texts = work.questions(steps)
groups = [texts[i : i + work.PROMPTS] for i in range(0, len(texts), work.PROMPTS)]
clock.start()
learner.train([{'prompts': np.asarray(group)} for group in groups])
clock.report({name: importlib.metadata.version(name) for name in ('google-tunix', 'jax', 'flax')})
