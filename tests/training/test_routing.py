"""Compares routing metrics of a mixture with a loop, and trains one."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import optax
import pytest
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.config import check as config_lib
from agent_gspo.models.transformer import ROUTING, Transformer, routing
from agent_gspo.ops.attention import masks
from agent_gspo.packing import train_batches
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.training import loop
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.policy_loss import Programs
from agent_gspo.workdir import json_lines


def _messages():
  """Returns three samples of one prompt and one of another, with shared contexts and padding."""
  rng = np.random.default_rng(0)
  prompts = [rng.integers(5, 300, 6)] * 3 + [rng.integers(5, 300, 4)]
  lengths = (1, 5, 3, 2)
  return [
    tiny.message(prompt, rng.integers(5, 300, n))
    for prompt, n in zip(prompts, lengths, strict=True)
  ]


def _routed(params, message) -> tuple[np.ndarray, np.ndarray]:
  """Returns experts `[n, layers, k]` and probabilities `[n, layers, E]` at predicted tokens."""
  found = _read(params, jnp.asarray(message.path[:-1])[None])
  source = slice(len(message.prompt_ids) - 1, None)
  return tuple(np.asarray(found[name][0, source]) for name in ('experts', 'probabilities'))


@jax.jit
def _read(params, ids):
  length = ids.shape[1]
  mask, positions = masks.causal(jnp.array([length]), length), jnp.arange(length)[None]
  model = Transformer(tiny.MIXTURE)
  _, sown = model.apply({'params': params}, ids, positions, mask, mutable=[ROUTING])
  return routing(sown)


def test_metrics_equal_a_loop_over_messages():
  torch = pytest.importorskip('torch')
  theirs = pytest.importorskip('transformers.models.qwen3_moe.modeling_qwen3_moe')
  rng = np.random.default_rng(1)
  old = tiny.params(tiny.MIXTURE)
  new = jax.tree.map(lambda x: x + 0.2 * np.float32(rng.normal(size=x.shape) * x.std()), old)
  programs = Programs(Transformer(tiny.MIXTURE), losses.gspo, optax.sgd(0.0), 1.0)
  state = lambda params: state_lib.init(params, optax.sgd(0.0))
  batches = train_batches.pack_messages(_messages(), pack_length=24, micro_batch_size=2)
  scored = programs.scored(state(old), batches)
  batches = [
    dataclasses.replace(batch, old_logprobs=logprobs, old_experts=experts)
    for batch, (logprobs, experts) in zip(batches, scored, strict=True)
  ]
  _, same = programs.optimizer_step(state(old), batches)
  _, found = programs.optimizer_step(state(new), batches)
  assert same['router/changed_update'] == 0

  before, after = ([_routed(params, m) for m in _messages()] for params in (old, new))
  sets = lambda routed: [set(x) for experts, _ in routed for x in experts.reshape(-1, 2).tolist()]
  changed = np.mean([x != y for x, y in zip(sets(before), sets(after), strict=True)])
  assert 0.1 < changed < 0.9
  assert found['router/changed_update'] == pytest.approx(changed)

  probabilities = np.concatenate([p for _, p in after])  # [n, layers, E]
  logits = tuple(torch.from_numpy(np.log(p)) for p in probabilities.swapaxes(0, 1))
  balance = theirs.load_balancing_loss_func(logits, num_experts=6, top_k=2)
  assert found['router/balance'] == pytest.approx(float(balance), rel=1e-5)


def test_the_sampler_tells_the_experts_of_each_token_that_it_read():
  """Compares prompts that share a prefix, and rows that leave the batch early."""
  params, rng = tiny.params(tiny.MIXTURE), np.random.default_rng(2)
  shared = rng.integers(5, 300, 3)
  prompts = [np.concatenate([shared, rng.integers(5, 300, n)]) for n in (1, 4, 4, 2) * 6]
  prompts[2] = prompts[1]
  sampler = Sampler(tiny.MIXTURE, max_new_tokens=6, prefill_length=16, smallest_batch=4)
  row_keys = keys.row_keys(keys.stream(0, 'train'), np.arange(len(prompts))[:, None])
  stops = tuple(range(5, 300, 4))
  found = sampler(params, prompts, row_keys, temperature=1.0, stop_ids=stops, experts=True)
  assert len({len(ids) for ids in found.token_ids}) > 3
  for prompt, ids, experts in zip(prompts, found.token_ids, found.experts, strict=True):
    path = np.concatenate([prompt, ids])
    padded = np.pad(path[:-1], (0, 16 - len(path)))
    expected = np.asarray(_read(params, jnp.asarray(padded)[None])['experts'][0, : len(path) - 1])
    np.testing.assert_array_equal(np.sort(experts), np.sort(expected))


@pytest.mark.parametrize('replay', ['trainer', 'sampler'])
def test_replay_uses_the_experts_of_the_old_policy(replay):
  """The metric still compares the router's own choices."""
  old = tiny.params(tiny.MIXTURE)
  # Other routers: the old experts get other weights, and others would be chosen.
  new = jax.tree.map(lambda x: x[:, ::-1] if x.shape == (32, 6) else x, old)
  messages = _messages()
  if replay == 'sampler':
    told = lambda m: np.asarray(_read(old, jnp.asarray(m.path[:-1])[None])['experts'][0])
    messages = [dataclasses.replace(m, experts=told(m).astype(np.int8)) for m in messages]
  batches = train_batches.pack_messages(messages, pack_length=24, micro_batch_size=2)
  own, replaying = (
    Programs(Transformer(tiny.MIXTURE), losses.gspo, optax.sgd(0.0), 1.0, replay_routing=name)
    for name in ('', replay)
  )
  state = lambda params: state_lib.init(params, optax.sgd(0.0))
  scored = replaying.scored(state(old), batches)
  marked = [
    dataclasses.replace(batch, old_experts=experts)
    for batch, (_, experts) in zip(batches, scored, strict=True)
  ]

  def logprobs(programs, params):
    return np.concatenate(programs.logprobs(state(params), marked))

  np.testing.assert_allclose(logprobs(replaying, old), logprobs(own, old), atol=1e-6)
  assert np.abs(logprobs(replaying, new) - logprobs(own, new)).max() > 0.1
  _, metrics = replaying.optimizer_step(state(new), marked)
  changed = metrics[f'router/changed_{"update" if replay == "trainer" else replay}']
  assert changed > 0.1
  assert metrics['policy/logprob_gap_mean'] == pytest.approx(
    np.abs(logprobs(replaying, new)).sum() / sum(b.loss_mask.sum() for b in marked), rel=1e-5
  )  # the old log-probs of `_messages` are 0

  if replay == 'sampler':  # unknown experts are the router's own
    for batch in marked:
      batch.sampler_experts[:] = -1
    np.testing.assert_allclose(logprobs(replaying, new), logprobs(own, new), atol=1e-5)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({}, r"'trainer' with model.source='random:micro', which has no experts"),
    (
      {'model__source': 'random:micro_moe', 'learner__old_logprobs': 'sampler'},
      r"'trainer' with learner.old_logprobs='sampler'. Set .* or learner.old_logprobs='trainer'",
    ),
    (
      {
        'model__source': 'random:micro_moe',
        'learner__replay_routing': 'sampler',
        'rollout__engine': 'http://localhost:1/v1#a',
      },
      r"'sampler' with rollout.engine='http://localhost:1/v1#a'. Set .* or rollout.engine=''",
    ),
    (
      {
        'model__source': 'random:micro_moe',
        'learner__replay_routing': 'sampler',
        'rollout__replay': 2,
      },
      "'sampler' with rollout.replay=2. Set .* or rollout.replay=0",
    ),
  ],
)
def test_replay_without_known_experts_is_refused(fields, message):
  fields = {'learner__replay_routing': 'trainer', 'learner__old_logprobs': 'trainer', **fields}
  with pytest.raises(ValueError, match=message):
    setup_lib.build(config_lib.check(micro_run.changed(**fields)))


@pytest.mark.slow
@pytest.mark.parametrize('replay', ['trainer', 'sampler'])
def test_a_mixture_trains(tmp_path, replay):
  fields = {'model__source': 'random:micro_moe', 'evaluation__every': 0, 'steps': 2}
  loop.train(
    micro_run.changed(**fields, learner__old_logprobs='trainer', learner__replay_routing=replay),
    tmp_path / 'run',
  )
  steps = [*json_lines.iterate(tmp_path / 'run' / 'metrics.jsonl')]
  assert steps[0]['policy/grad_norm'] > 0
  assert len(steps) == 2
  for step in steps:
    assert 1.9 < step['router/balance'] < 8  # from balanced to one pair of experts for all
    assert 0 <= step['router/changed_update'] < 0.5
    assert 0 <= step['router/changed_sampler'] < 0.5
    assert step['policy/sampler_trainer_diff_max'] < 1e-3
