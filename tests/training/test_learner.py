"""From a rollout to optimiser steps: every algorithm, the order of mini-batches, spans, resampling.

The model is replaced by arithmetic: what is tested is which message is trained when, and with
what.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import optax
import pytest

from agent_gspo.algorithms.objectives import losses
from agent_gspo.algorithms.presets import PRESETS
from agent_gspo.config import check as config_lib
from agent_gspo.models import presets as model_presets
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.sampling.sampler import Samples
from agent_gspo.sharding.placement import ONE_DEVICE
from agent_gspo.teams import batches, counts
from agent_gspo.training import prompt_checks
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training import step as step_lib
from agent_gspo.training.update import Updater


def _config(**values):
  small = {
    'rollout__questions': 4,
    'rollout__group_size': 4,
    'sft__steps': 0,
    'model__lora_rank': 2,
  }
  return micro_run.changed(**(small | values))


class _Policy:
  """Random words, half of the messages silent; the answer is right every other time."""

  def __init__(self, tokenizer, step):
    self.tokenizer, self.rng = tokenizer, np.random.default_rng(step)

  def __call__(self, turns):
    ids = []
    for turn in turns:
      words = self.rng.integers(5, 12, self.rng.integers(0, 3)).tolist()
      if turn.agent == 2 and self.rng.random() < 0.5:
        words = self.tokenizer.encode(turn.question.answer)
      ids.append(np.asarray([*words, self.tokenizer.eos_id], np.int32))
    logprobs = [-self.rng.random(len(i)).astype(np.float32) for i in ids]
    return Samples(
      token_ids=ids, logprobs=logprobs, ended=np.ones(len(ids), bool), prefill_positions=0
    )


class _Progress:
  def phase(self, *unused):
    pass


class _Setup(setup_lib.Setup):
  def policy(self, params, *, stream, step, temperature):
    return _Policy(self.tokenizer, step)


def _setup(**values) -> setup_lib.Setup:
  parts = config_lib.check(_config(**values))
  return _Setup(
    config=parts.config,
    task=parts.task,
    team=parts.team,
    reward=parts.reward,
    sharing=parts.sharing,
    model=None,
    params={'a': {'lora_b': jnp.zeros(2)}},
    tokenizer=prompt_checks.tokenizer_from_scratch(parts.task, parts.team, 'random:micro'),
    sampler=None,
    placement=ONE_DEVICE,
    source='',
  )


class _Updater:
  """Each optimiser step moves all log-probs of trained tokens by `move`."""

  def __init__(self, move: float = 0.1):
    self.move, self.done, self.seen = move, 0, []

  def minibatch(self, state, batches):
    self.seen.append(batches)
    self.done += 1
    metrics = {k: 1.0 for k in ('ratio_mean', 'ratio_error_max', 'logprob_gap_mean', 'grad_norm')}
    metrics |= {'sampler_gap_mean': 1.0, 'sampler_gap_max': 1.0, 'clip_fraction': 0.0}
    return state, {f'policy/{k}': v for k, v in metrics.items()}

  def entropies(self, state, batches):
    return [np.abs(b.old_logprobs) * b.loss_mask for b in batches]

  def score(self, state, batches):
    return [
      b.replace(old_logprobs=(b.old_logprobs + self.done * self.move) * b.loss_mask)
      for b in batches
    ]


def _trainer(updater=None, **values):
  trainer = step_lib.Trainer(_setup(**values))
  trainer.learner.updater = updater or _Updater()
  return trainer


def _step(trainer):
  state = trainer.init(trainer.setup.params)
  talk = trainer.roll_out(state, _Progress())
  return trainer.learn(state, talk, _Progress()), talk


@pytest.mark.parametrize('algorithm', PRESETS)
def test_every_algorithm_takes_a_step(algorithm):
  trainer = _trainer(algorithm=algorithm, budget__lambda_tok=0.01)
  outcome, talk = _step(trainer)
  assert int(outcome.state.step) == 1
  assert np.isfinite(outcome.advantages).all()
  assert np.abs(outcome.advantages).max() > 0
  assert all(np.isfinite(v) for v in outcome.metrics.values())
  assert len(talk.batch.questions) == 4
  trained = [b for step in trainer.learner.updater.seen for b in step]
  assert sum(b.message_mask.sum() for b in trained) == pytest.approx(
    outcome.metrics['advantage/kept'] * len(talk.batch.messages)
  )


@pytest.mark.parametrize('name', ['gspo', 'sapo', 'dr_grpo'])
@pytest.mark.parametrize('span', ['message', 'episode'])
def test_objectives_fit_the_update(name, span):
  """Traced, not compiled: shapes and options of the real update."""
  setup = _setup(algorithm=name, objective__ratio_span=span)
  model_config = model_presets.PRESETS['micro'].replace(vocab_size=30)
  model = Transformer(model_config)
  updater = Updater(
    model,
    losses.from_config(setup.config['objective'], max_length=setup.team.max_message_tokens),
    optax.sgd(1.0),
    temperature=1.0,
  )
  trainer = _trainer(algorithm=name, objective__ratio_span=span, advantage__token_share=0.5)
  _step(trainer)
  (batch, *_), *_ = trainer.learner.updater.seen
  assert (batch.span_share is None) == (span == 'message')
  assert batch.token_weights is not None
  params = jax.eval_shape(lambda: init_params(model_config, jax.random.key(0)))
  state = jax.eval_shape(lambda p: state_lib.init(p, optax.sgd(1.0)), params)
  gradient, sums = jax.eval_shape(
    jax.grad(updater._objective, has_aux=True), state.trainable, {}, None, batch
  )
  assert set(gradient) == set(state.trainable)
  assert sums['objective'].shape == ()


def test_optima_pays_for_what_the_reference_finds_likely():
  trainer = _trainer(
    budget__lambda_tok=0.0,
    reward__length_reward='optima',
    reward__length_reward_options='token_weight=0, min_tokens=0, loss_floor=0.4',
  )
  outcome, talk = _step(trainer)
  worst = np.full(len(talk.batch.episodes), np.inf)
  for m in talk.batch.messages:
    if not m.silent:
      loss = -m.logprobs.mean()  # the stand-in scores as the sampler did
      worst[m.episode] = loss if np.isinf(worst[m.episode]) else max(loss, worst[m.episode])
  scores, _ = batches.task_scores(talk.batch)
  expected = scores + 0.5 / np.maximum(worst, 0.4)
  episode = [m.episode for m in talk.batch.messages]
  np.testing.assert_allclose(outcome.rewards, expected[episode], rtol=1e-5)


@pytest.mark.parametrize(
  ('asks', 'kept'),
  [
    ({}, False),
    ({'objective__kl_coef': 0.1}, True),
    ({'reward__length_reward': 'optima', 'reward__length_reward_options': 'min_tokens=0'}, True),
    ({'objective__kl_coef': 0.1, 'model__lora_rank': 4}, True),
  ],
)
def test_a_reference_policy_is_held_where_somebody_asks_for_it(asks, kept):
  trainer = _trainer(**{'model__lora_rank': 0, **asks})
  state = trainer.init(trainer.setup.params)
  assert (state.reference is not None) == kept
  if kept:  # a copy, since updates consume what is trained
    jax.tree.map(lambda x: x.delete(), state.trainable)
    jax.tree.map(np.testing.assert_array_equal, state.reference, {('a', 'lora_b'): np.zeros(2)})


def test_evaluations_ask_the_first_questions_or_evenly_from_the_split():
  found = [_setup(evaluation__spread=spread) for spread in (False, True)]
  split = found[0].task.questions('test')
  first, evenly = ([q.id for q in setup.asked(4)] for setup in found)
  assert first == [split[i].id for i in range(4)]
  assert evenly == [split[i * len(split) // 4].id for i in range(4)]
  assert first != evenly


def test_a_preset_gives_way_to_what_is_set():
  resolved = config_lib.resolve(_config(algorithm='ngrpo', advantage__costs='apart'))
  assert resolved['advantage']['name'] == 'ngrpo'
  assert resolved['advantage']['costs'] == 'apart'
  assert resolved['objective']['clip_low'] == 0.16
  other = config_lib.resolve(_config(algorithm='ngrpo', objective__name='sapo'))
  assert other['objective']['clip_low'] is None  # of another objective than the preset's


@pytest.mark.parametrize(
  ('dtype', 'given', 'used'),
  [
    ('float32', '', 'sampler'),
    ('bfloat16', '', 'trainer'),
    ('bfloat16', 'sampler', 'sampler'),
    ('float32', 'trainer', 'trainer'),
  ],
)
def test_ratios_begin_with_the_trainers_logprobs_in_bfloat16(dtype, given, used):
  config = config_lib.check(_config(model__dtype=dtype, learner__old_logprobs=given)).config
  assert config['learner']['old_logprobs'] == used
  assert config['objective']['tis_cap'] == (2.0 if used == 'trainer' else 0.0)


@pytest.mark.parametrize(('objective', 'level'), [('gspo', 'message'), ('dapo', 'token')])
def test_what_the_sampler_did_differently_is_corrected_at_the_level_of_the_ratio(objective, level):
  fields = {'learner__old_logprobs': 'trainer', 'objective__name': objective}
  config = config_lib.check(_config(**fields)).config
  assert config['objective']['tis_level'] == level
  other = {'token': 'message', 'message': 'token'}[level]
  kept = config_lib.check(_config(objective__tis_level=other, objective__tis_cap=0.0, **fields))
  assert kept.config['objective']['tis_level'] == other
  assert kept.config['objective']['tis_cap'] == 0.0


def _messages_of(batches):
  return np.concatenate([b.message[b.message_mask > 0] for b in batches])


def test_minibatches_part_the_messages():
  trainer = _trainer(learner__minibatches=3)
  outcome, _talk = _step(trainer)
  seen = trainer.learner.updater.seen
  assert len(seen) == 3
  # A message's slot carries its own advantage, whatever the order of packing.
  expected = np.sort(outcome.advantages)
  found = np.sort(np.concatenate([b.advantages[b.message_mask > 0] for s in seen for b in s]))
  np.testing.assert_allclose(found, expected)


def test_reverse_turns_update_the_last_turn_first_and_weigh_the_others():
  trainer = _trainer(_Updater(move=0.1), algorithm='seeupo', learner__minibatches=1)
  outcome, talk = _step(trainer)
  seen = trainer.learner.updater.seen
  ledger = counts.ledger(talk.batch)
  last = np.flatnonzero(ledger.turn == ledger.turn.max())
  assert len(seen) == 2  # informants and solver
  assert sum(b.message_mask.sum() for b in seen[0]) == len(last)
  solver = np.sort(np.concatenate([b.advantages[b.message_mask > 0] for b in seen[0]]))
  np.testing.assert_allclose(solver, np.sort(outcome.advantages[last]), rtol=1e-6)
  informants = np.concatenate([b.advantages[b.message_mask > 0] for b in seen[1]])
  # Every token of the solver went up by 0.1 nats, so its ratio is e^0.1.
  first = np.flatnonzero(ledger.turn == 0)
  expected = outcome.advantages[first] * np.exp(0.1)
  np.testing.assert_allclose(np.sort(informants), np.sort(expected), rtol=1e-5)


def test_an_episode_is_one_sequence():
  trainer = _trainer(_Updater(move=0.1), objective__ratio_span='episode', learner__minibatches=2)
  _step(trainer)
  first, second = trainer.learner.updater.seen
  for part, moved in ((first, 0.0), (second, 0.1)):
    inside = np.concatenate([b.message_mask.reshape(-1) for b in part]) > 0
    ratio = np.concatenate([b.span_log_ratio.reshape(-1) for b in part])[inside]
    share = np.concatenate([b.span_share.reshape(-1) for b in part])[inside]
    np.testing.assert_allclose(ratio, moved, atol=1e-6)
    assert share.sum() == pytest.approx(8)  # 2 questions of 4 episodes
    assert share.max() < 1


def test_old_logprobs_of_the_trainer_are_taken_before_the_first_update():
  sampled = _trainer(_Updater(move=1.0))
  rescored = _trainer(_Updater(move=1.0), learner__old_logprobs='trainer')
  for trainer in (sampled, rescored):
    _step(trainer)
  for a, b in zip(sampled.learner.updater.seen, rescored.learner.updater.seen, strict=True):
    for x, y in zip(a, b, strict=True):
      np.testing.assert_allclose(x.old_logprobs, y.old_logprobs)  # no step was done yet


def test_dropped_messages_are_not_trained():
  trainer = _trainer(algorithm='d3s')
  state = trainer.init(trainer.setup.params)
  kept = []
  for step in (0, 5, 10):  # of 10: ever more is kept
    state = state.replace(step=jnp.int32(step))
    talk = trainer.roll_out(state, _Progress())
    outcome = trainer.learn(state, talk, _Progress())
    kept.append(outcome.metrics['advantage/kept'])
  assert kept == pytest.approx([0.5, 0.75, 1.0], abs=0.1)


@pytest.mark.parametrize('minibatches', [1, 2])
def test_which_tokens_are_trained_depends_on_the_mini_batch_not_on_its_rows(minibatches):
  trained = {}
  for rows in (1, 2, 8):
    trainer = _trainer(
      advantage__token_share=0.3, learner__micro_batch_size=rows, learner__minibatches=minibatches
    )
    _step(trainer)
    seen = trainer.learner.updater.seen
    assert len(seen) == minibatches
    for part in seen:
      weights, mask = (np.concatenate([b[k] for b in part]) for k in ('token_weights', 'loss_mask'))
      assert set(weights[mask > 0]) == {0.0, 1.0}
      assert weights.sum() == pytest.approx(0.3 * mask.sum(), abs=1)
      assert not weights[mask == 0].any()
    trained[rows] = [
      sorted(t for b in part for t in b.old_logprobs[b.token_weights > 0]) for part in seen
    ]
  assert trained[1] == trained[2] == trained[8]


def test_tied_questions_make_room_for_others():
  plain = _trainer(selection__resample=0)
  _, talk = _step(plain)
  picky = _trainer(selection__resample=5)
  outcome, chosen = _step(picky)
  assert len(chosen.batch.questions) == len(talk.batch.questions) == 4
  assert outcome.metrics['selection/questions_asked'] >= 4
  assert int(outcome.state.selection.drawn) == chosen.asked
  scores = np.asarray([e.task_score for e in chosen.batch.episodes]).reshape(4, 4)
  assert (scores.max(axis=1) > scores.min(axis=1)).all()
  ids = [q.id for q in chosen.batch.questions]
  assert [plain.questions[int(i)].id for i in chosen.places] == ids


@pytest.mark.parametrize('name', ['uniform', 'vade', 'spo'])
def test_a_step_asks_no_question_twice(name):
  """It would be answered with the same noise again."""
  trainer = _trainer(
    selection__name=name,
    selection__resample=3,
    rollout__questions=3,
    learner__minibatches=1,
    task__options__train_size=8,
  )
  trainer.setup.task.score = lambda question, answer: 0.0  # all tie, so all are asked that can be
  state = trainer.init(trainer.setup.params)
  asked = []
  converse = trainer._converse
  trainer._converse = lambda state, places, p: asked.append(places) or converse(state, places, p)
  talk = trainer.roll_out(state, _Progress())
  assert [len(places) for places in asked] == [3, 3]  # only two others are left after them
  assert len(set(np.concatenate(asked).tolist())) == talk.asked == 6
  np.testing.assert_array_equal(talk.places, asked[-1])  # and are trained on as they are


def test_choice_of_questions_depends_on_the_state_alone():
  trainer = _trainer(selection__name='vade')
  state = trainer.init(trainer.setup.params)
  first = trainer.roll_out(state, _Progress())
  again = trainer.roll_out(state, _Progress())
  assert [q.id for q in first.batch.questions] == [q.id for q in again.batch.questions]
  after = trainer.learn(state, first, _Progress()).state
  evidence = np.asarray(after.selection.posterior.a + after.selection.posterior.b)
  assert (evidence[first.places] > 2.5).all()  # four episodes were seen


def test_frozen_agents_are_not_packed():
  trainer = _trainer(policy__sharing='mix', policy__frozen=('solver',))
  _outcome, talk = _step(trainer)
  total = sum(b.message_mask.sum() for s in trainer.learner.updater.seen for b in s)
  assert total == sum(m.agent != 2 for m in talk.batch.messages)


def test_lessons_without_messages_say_why():
  trainer = _trainer()
  state = trainer.init(trainer.setup.params)
  talk = trainer.roll_out(state, _Progress())
  batch = dataclasses.replace(
    talk.batch,
    messages=tuple(
      dataclasses.replace(m, token_ids=m.token_ids[:0], logprobs=m.logprobs[:0], ended=False)
      for m in talk.batch.messages
    ),
  )
  with pytest.raises(ValueError, match=r'step 1: no message is left to learn from'):
    trainer.learn(state, dataclasses.replace(talk, batch=batch), _Progress())
