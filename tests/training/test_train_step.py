"""Tests training steps: every algorithm, the order of mini-batches, spans, resampling.

The model is replaced by arithmetic: the tests check which message is trained when, and with which
values.
"""

from __future__ import annotations

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import optax
import packed_cases
import pytest
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.algorithms.presets import PRESETS
from agent_gspo.config import check as config_lib
from agent_gspo.environments.kuhn import Kuhn
from agent_gspo.models import presets as model_presets
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.sharding.placement import ONE_DEVICE
from agent_gspo.teams.policies import Reply
from agent_gspo.training import collect as collect_lib
from agent_gspo.training import policy_loss, prompt_checks, run_evaluations
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.collect import collect
from agent_gspo.training.learner import Learner
from agent_gspo.training.metrics import no_update_warning
from agent_gspo.training.policy_loss import NonFiniteLossError
from agent_gspo.training.train_step import train_step


def _config(**values):
  small = {
    'rollout__questions': 4,
    'rollout__group_size': 4,
    'sft__steps': 0,
    'model__lora_rank': 2,
  }
  return micro_run.changed(**(small | values))


class _Policy:
  """Writes random words or silence; every other answer is right."""

  def __init__(self, tokenizer, step):
    self.tokenizer, self.rng = tokenizer, np.random.default_rng(step)

  def __call__(self, turns):
    ids = []
    for turn in turns:
      words = self.rng.integers(5, 12, self.rng.integers(0, 3)).tolist()
      if turn.agent == 2 and self.rng.random() < 0.5:
        words = self.tokenizer.encode(turn.question.answer)
      ids.append(np.asarray([*words, self.tokenizer.eos_id], np.int32))
    return [Reply(i, -self.rng.random(len(i)).astype(np.float32), True) for i in ids]


class _Progress:
  def phase(self, *unused):
    pass


class _Setup(setup_lib.Setup):
  def policy(self, params, *, stream, step, temperature, must_speak=None):
    return _Policy(self.tokenizer, step)


def _setup(**values) -> setup_lib.Setup:
  parts = config_lib.check(_config(**values))
  return _Setup(
    **vars(parts),
    model=Transformer(tiny.CONFIG),
    params={'a': {'lora_b': jnp.zeros(2)}},
    tokenizer=prompt_checks.tokenizer_from_scratch(parts),
    sampler=None,
    placement=ONE_DEVICE,
    source='',
  )


class _Programs:
  """Moves all log-probs of trained tokens by `move` in each optimizer step."""

  def __init__(self, move: float = 0.1):
    self.move, self.done, self.seen, self.scores = move, 0, [], 0

  def optimizer_step(self, state, micro_batches):
    self.seen.append(micro_batches)
    self.done += 1
    metrics = {k: 1.0 for k in ('ratio_mean', 'ratio_error_max', 'logprob_gap_mean', 'grad_norm')}
    metrics |= {
      'objective': 0.0,
      'sampler_gap_mean': 1.0,
      'sampler_gap_max': 1.0,
      'clip_fraction': 0.0,
    }
    return state, {f'policy/{k}': v for k, v in metrics.items()}

  def scored(self, state, micro_batches):
    return [(logprobs, None) for logprobs in self.logprobs(state, micro_batches)]

  def logprobs(self, state, micro_batches):
    self.scores += 1
    return [(b.sampler_logprobs + self.done * self.move) * b.loss_mask for b in micro_batches]


def _state(setup, step: int = 0):
  state = setup_lib.init_state(setup, setup.params)
  return state.replace(step=jnp.int32(step))


def _learner(setup, programs) -> Learner:
  return Learner(programs, setup.config, setup.sharing)


def _step(programs, step: int = 0, **values):
  """Takes a step from the first state, with programs that record their inputs."""
  setup = _setup(**values)
  return train_step(setup, _learner(setup, programs), _state(setup, step), _Progress())


def _collected(**values):
  setup = _setup(**values)
  return collect(setup, _state(setup), _Progress())


@pytest.mark.parametrize('score', ['vote', 'weighted_vote', 'consistency', 'collective_vote'])
def test_without_labels_training_does_not_read_them(score):
  """Wrong labels change transcripts, but no token, draw, price or advantage."""

  alone = {'team__topology': 'debate', 'team__decision': 'majority'}

  def steps(grade):
    setup = _setup(
      **(alone if score == 'collective_vote' else {}),
      reward__score=score,
      reward__gate='group_accuracy',
      reward__length_reward='kimi',
      selection__name='spo',
      selection__resample=2,
      advantage__name='spo_single',
      budget__mode='accuracy_floor',
      budget__floor=0.4,
      budget__lambda_max=0.05,
    )
    setup.task.score = lambda question, answer: grade(float(answer == question.answer))
    programs, state, results = _Programs(), _state(setup), []
    for _ in range(3):
      results.append(train_step(setup, _learner(setup, programs), state, _Progress()))
      state = results[-1].state
    return programs.seen, results

  (packed, results), (others, unlabelled) = steps(lambda right: right), steps(lambda right: 0.0)
  jax.tree.map(np.testing.assert_array_equal, packed, others)
  labelled = {'task/accuracy', 'reward/label_agreement'}
  for a, b in zip(results, unlabelled, strict=True):
    for field in ('budget', 'selection'):
      jax.tree.map(np.testing.assert_array_equal, getattr(a.state, field), getattr(b.state, field))
    np.testing.assert_array_equal(a.advantages, b.advantages)
    assert a.metrics['task/accuracy'] > b.metrics['task/accuracy'] == 0
    assert a.rollout.task_scores.any()
    assert not b.rollout.task_scores.any()
    for key in a.metrics.keys() - labelled - {'memory/peak_mb'}:
      if not key.startswith('time/'):
        assert a.metrics[key] == b.metrics[key], key
  assert any(np.abs(result.advantages).max() > 0 for result in results)
  assert all(result.state.budget.running_accuracy > 0 for result in results)


def test_labels_agree_with_scores_only_where_these_have_none():
  assert 'reward/label_agreement' not in _step(_Programs()).metrics
  free = _step(_Programs(), reward__score='vote')
  agreed = (free.rewards.task >= 0.5) == (free.rollout.task_scores[free.rollout.episode] >= 0.5)
  assert free.metrics['reward/label_agreement'] == pytest.approx(agreed.mean())


TOLD = {
  'budget__mode': 'conditioned',
  'budget__lambda_max': 0.05,
  'budget__told_words': ('nothing', 'little', 'much'),
  'team__roles__informant__opening': '{price} : {question} note : {note}',
}


def test_each_question_has_a_price_of_its_own_which_is_told_and_charged():
  batch, *_ = _collected(**TOLD)
  prices = [question.terms for question in batch.questions]
  assert len({price.value for price in prices}) == 4
  tokenizer = _setup(**TOLD).tokenizer
  for message in batch.messages:
    price = prices[batch.episode_question[message.episode]]
    shown = tokenizer.decode(message.prompt_ids).split()[0]
    assert shown == (price.words if message.agent < 2 else 'How')  # the solver sees no price
  result = _step(_Programs(), **TOLD)
  assert [q.terms for q in result.rollout.questions] == prices
  found = result.rollout
  of_message = np.asarray([prices[q].value for q in found.question])
  scores = found.task_scores[found.episode]
  np.testing.assert_allclose(result.rewards.total, scores - of_message * found.written, atol=1e-6)
  assert result.metrics['budget/lambda_tok'] == pytest.approx(np.mean([p.value for p in prices]))


def test_prices_are_drawn_anew_in_each_step_and_seed():
  def drawn(step=0, **values):
    setup = _setup(**TOLD, **values)
    batch, *_ = collect(setup, _state(setup, step), _Progress())
    return [question.terms.value for question in batch.questions]

  assert drawn() == drawn() != drawn(step=1)
  assert drawn() != drawn(seed=1)


def test_a_rollout_ahead_draws_what_its_own_step_would():
  setup = _setup(**TOLD)
  then, _, _ = collect(setup, _state(setup, 2), _Progress())
  ahead, _, _ = collect(setup, _state(setup), _Progress(), 2)
  assert [q.terms for q in then.questions] == [q.terms for q in ahead.questions]
  assert then.text == ahead.text
  assert set(then.version.tolist()) == {2}
  assert set(ahead.version.tolist()) == {0}


@pytest.mark.parametrize('algorithm', [name for name in PRESETS if name != 'worth'])
def test_every_algorithm_takes_a_step(algorithm):
  programs = _Programs()
  result = _step(programs, algorithm=algorithm, budget__lambda_tok=0.01)
  assert int(result.state.step) == 1
  assert np.isfinite(result.advantages).all()
  assert np.abs(result.advantages).max() > 0
  assert all(np.isfinite(v) for v in result.metrics.values())
  assert len(result.rollout.questions) == 4
  trained = [b for step in programs.seen for b in step]
  assert sum(b.message_mask.sum() for b in trained) == pytest.approx(
    result.metrics['advantage/kept'] * len(result.rollout.messages)
  )


@pytest.mark.parametrize('name', ['gspo', 'sapo', 'dr_grpo'])
@pytest.mark.parametrize('span', ['message', 'episode'])
def test_objectives_fit_the_update(name, span):
  """Traces, without compiling, the shapes and options of the real update."""
  fields = {'algorithm': name, 'objective__ratio_span': span}
  setup, seen = _setup(**fields), _Programs()
  model_config = model_presets.PRESETS['micro'].replace(vocab_size=30)
  setup = dataclasses.replace(setup, model=Transformer(model_config))
  loss = setup_lib.make_learner(setup).programs.loss
  _step(seen, **fields)
  (batch, *_), *_ = seen.seen
  assert (batch.span_share is None) == (span == 'message')
  params = jax.eval_shape(lambda: init_params(model_config, jax.random.key(0)))
  state = jax.eval_shape(lambda p: state_lib.init(p, optax.sgd(1.0)), params)
  gradient, sums = jax.eval_shape(jax.grad(loss, has_aux=True), state.trainable, {}, None, batch)
  assert set(gradient) == set(state.trainable)
  assert sums['objective'].shape == ()


@pytest.mark.parametrize('padding', [8.0, np.nan, np.inf])
def test_what_an_objective_says_of_padding_never_counts(padding):
  x = packed_cases.case(2)
  inside = np.asarray(x.message_mask) > 0
  assert not inside.all()
  entropy = jnp.ones(len(x.logprobs))

  def sums(outside):
    ratio, clipped = (jnp.where(inside, v, outside) for v in (1.5, 0.25))
    found = losses.Objective(total=0.0, count=jnp.sum(inside), ratio=ratio, clipped=clipped)
    return policy_loss._sums(x, found, entropy)

  found, expected = sums(padding), sums(0.0)
  assert found['ratio'] == 1.5 * inside.sum()
  assert found['clipped'] == 0.25 * inside.sum()
  assert {k: float(v) for k, v in found.items()} == {k: float(v) for k, v in expected.items()}


def test_optima_pays_for_what_the_reference_finds_likely():
  result = _step(
    _Programs(),
    budget__lambda_tok=0.0,
    reward__length_reward='optima',
    reward__length_reward_options='token_weight=0, min_tokens=0, loss_floor=0.4',
  )
  worst = np.full(result.rollout.num_episodes, np.inf)
  for m in result.rollout.messages:
    if not m.silent:
      loss = -m.logprobs.mean()  # the stand-in scores as the sampler did
      worst[m.episode] = loss if np.isinf(worst[m.episode]) else max(loss, worst[m.episode])
  expected = result.rollout.task_scores + 0.5 / np.maximum(worst, 0.4)
  np.testing.assert_allclose(result.rewards.total, expected[result.rollout.episode], rtol=1e-5)


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
  state = _state(_setup(**{'model__lora_rank': 0, **asks}))
  assert (state.reference is not None) == kept
  if kept:  # a copy, since updates consume what is trained
    jax.tree.map(lambda x: x.delete(), state.trainable)
    jax.tree.map(np.testing.assert_array_equal, state.reference, {('a', 'lora_b'): np.zeros(2)})


def test_evaluations_ask_the_first_questions_or_evenly_from_the_split():
  found = [_setup(evaluation__spread=spread) for spread in (False, True)]
  split = found[0].task.questions('test')
  first, evenly = ([q.id for q in run_evaluations.questions(setup, 4)] for setup in found)
  assert first == [split[i].id for i in range(4)]
  assert evenly == [split[i * len(split) // 4].id for i in range(4)]
  assert first != evenly


def test_an_evaluation_in_which_nobody_takes_a_turn_is_told_without_a_silence_rate():
  record = {'step': 3, 'label': 'trained', 'questions': 2, 'split': 'test', 'task/accuracy': 0.5}
  record |= {'tokens/written_per_question': 0.0, 'comm/silence_rate': None, 'game/x': 0.25}
  assert run_evaluations.line(record) == (
    'step 3: trained, 2 test questions: accuracy 50.0%, 0.0 tokens written, - silent, x 0.250'
  )
  assert run_evaluations.line(record | {'comm/silence_rate': 0.5}).endswith(
    'written, 50% silent, x 0.250'
  )


def test_figures_of_a_task_replace_no_figure_of_an_evaluation():
  task, record = Kuhn(), {'task/accuracy': 0.5}
  found = run_evaluations.joined(task, record, {'game/x': np.float32(0.25)})
  assert json.dumps(found) == '{"task/accuracy": 0.5, "game/x": 0.25}'
  with pytest.raises(ValueError, match="'kuhn': policy_figures returned 'task/accuracy', which"):
    run_evaluations.joined(task, record, {'game/x': 0.25, 'task/accuracy': 1.0})


def test_a_preset_gives_way_to_what_is_set():
  resolved = config_lib.resolve(_config(algorithm='ngrpo', advantage__costs='apart'))
  assert resolved.advantage.name == 'ngrpo'
  assert resolved.advantage.costs == 'apart'
  assert resolved.objective.clip_low == 0.16
  other = config_lib.resolve(_config(algorithm='ngrpo', objective__name='sapo'))
  assert other.objective.clip_low is None  # of another objective than the preset's


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
  assert config.learner.old_logprobs == used
  assert config.objective.tis_cap == (2.0 if used == 'trainer' else 0.0)


@pytest.mark.parametrize(('objective', 'level'), [('gspo', 'message'), ('dapo', 'token')])
def test_what_the_sampler_did_differently_is_corrected_at_the_level_of_the_ratio(objective, level):
  fields = {'learner__old_logprobs': 'trainer', 'objective__name': objective}
  config = config_lib.check(_config(**fields)).config
  assert config.objective.tis_level == level
  other = {'token': 'message', 'message': 'token'}[level]
  kept = config_lib.check(_config(objective__tis_level=other, objective__tis_cap=0.0, **fields))
  assert kept.config.objective.tis_level == other
  assert kept.config.objective.tis_cap == 0.0


def _messages_of(batches):
  return np.concatenate([b.message[b.message_mask > 0] for b in batches])


def test_every_price_is_charged():
  fields = {'lambda_tok': 0.02, 'lambda_turn': 0.03, 'lambda_rep': 0.05}
  fields |= {'mode': 'dual', 'budget_message': 0.5, 'lambda_max': 0.02}
  setup = _setup(**{f'budget__{name}': value for name, value in fields.items()})
  state = _state(setup)
  state = state.replace(budget=state.budget.replace(lambda_message=jnp.float32(0.01)))
  result = train_step(setup, _learner(setup, _Programs()), state, _Progress())
  counts = result.rollout
  over = np.maximum(counts.written - 0.55, 0)
  expected = {
    'token_cost': 0.02 * counts.written.sum(),
    'turn_cost': 0.03 * (~counts.silent).sum(),
    'message_cost': 0.01 * over.sum(),
  }
  for name, total in expected.items():
    assert result.metrics[f'reward/{name}'] == pytest.approx(total / counts.num_episodes), name


def test_minibatches_part_the_messages():
  programs = _Programs()
  result = _step(programs, learner__minibatches=3)
  assert len(programs.seen) == 3
  # A message's slot carries its own advantage, whatever the order of packing.
  expected = np.sort(result.advantages)
  packed = [b for step in programs.seen for b in step]
  found = np.sort(np.concatenate([b.advantages[b.message_mask > 0] for b in packed]))
  np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize('minibatches', [1, 2])
def test_reverse_turns_update_the_last_turn_first_and_weigh_the_others(minibatches):
  programs = _Programs(move=0.1 / minibatches)
  result = _step(programs, algorithm='seeupo', learner__minibatches=minibatches)
  turn = result.rollout.turn
  last = np.flatnonzero(turn == turn.max())
  assert len(programs.seen) == 2 * minibatches  # of the solver, then of the informants
  of_solver, of_informants = (
    [b for part in parts for b in part]
    for parts in (programs.seen[:minibatches], programs.seen[minibatches:])
  )
  assert sum(b.message_mask.sum() for b in of_solver) == len(last)
  solver = np.concatenate([b.advantages[b.message_mask > 0] for b in of_solver])
  np.testing.assert_allclose(np.sort(solver), np.sort(result.advantages[last]), rtol=1e-6)
  informants = np.concatenate([b.advantages[b.message_mask > 0] for b in of_informants])
  # The turn's update moved every token of the solver by 0.1 nats, so all its ratios are e^0.1.
  first = np.flatnonzero(turn == 0)
  expected = result.advantages[first] * np.exp(0.1)
  np.testing.assert_allclose(np.sort(informants), np.sort(expected), rtol=1e-5)
  assert programs.scores == minibatches  # the solver's mini-batches, once each


def test_an_order_that_weighs_nothing_scores_nothing():
  programs = _Programs()
  _step(programs)
  assert programs.scores == 0


def test_an_episode_is_one_sequence():
  programs = _Programs(move=0.1)
  _step(programs, objective__ratio_span='episode', learner__minibatches=2)
  first, second = programs.seen
  for part, moved in ((first, 0.0), (second, 0.1)):
    inside = np.concatenate([b.message_mask.reshape(-1) for b in part]) > 0
    ratio = np.concatenate([b.span_log_ratio.reshape(-1) for b in part])[inside]
    share = np.concatenate([b.span_share.reshape(-1) for b in part])[inside]
    np.testing.assert_allclose(ratio, moved, atol=1e-6)
    assert share.sum() == pytest.approx(8)  # 2 questions of 4 episodes
    assert share.max() < 1


def test_old_logprobs_of_the_trainer_are_taken_before_the_first_update():
  sampled, rescored = _Programs(move=1.0), _Programs(move=1.0)
  _step(sampled)
  _step(rescored, learner__old_logprobs='trainer')
  for a, b in zip(sampled.seen, rescored.seen, strict=True):
    for x, y in zip(a, b, strict=True):
      np.testing.assert_allclose(x.old_logprobs, y.old_logprobs)  # no step was done yet


def test_tied_questions_make_room_for_others():
  setup = _setup(selection__resample=5)
  chosen, everything, _ = collect(setup, _state(setup), _Progress())
  assert len(chosen.questions) == len(_collected(selection__resample=0)[0].questions) == 4
  result = _step(_Programs(), selection__resample=5)
  assert result.metrics['selection/questions_asked'] == len(everything.drawn) >= 4
  assert int(result.state.selection.drawn) == len(everything.drawn)
  scores = chosen.task_scores.reshape(4, 4)
  assert (scores.max(axis=1) > scores.min(axis=1)).all()
  ids = [q.id for q in chosen.questions]
  assert [setup.questions[int(i)].id for i in chosen.drawn] == ids


def test_what_resampling_drops_is_seen_by_the_price_and_by_the_choice_of_questions():
  fields = {'selection__resample': 5, 'selection__name': 'spo', 'budget__mode': 'accuracy_floor'}
  setup = _setup(**fields, budget__lambda_max=0.05)
  setup.task.score = lambda question, answer: float(len(question.id) % 2 or answer != '')
  before = _state(setup)
  chosen, everything, _ = collect(setup, before, _Progress())
  all_scores = everything.task_scores
  assert len(everything.drawn) > len(chosen.drawn)
  assert np.mean(all_scores) != np.mean(chosen.task_scores)
  result = train_step(setup, _learner(setup, _Programs()), before, _Progress())
  assert result.metrics['task/accuracy'] == pytest.approx(np.mean(all_scores))
  assert float(result.state.budget.running_accuracy) == pytest.approx(np.mean(all_scores))
  written = sum(message.length for message in everything.messages) / len(all_scores)
  assert result.metrics['tokens/written_per_question'] == pytest.approx(written)
  evidence = np.asarray(result.state.selection.posterior.a + result.state.selection.posterior.b)
  assert (evidence[everything.drawn] > 2.5).all()
  assert result.rollout.num_episodes == chosen.num_episodes


@pytest.mark.parametrize('name', ['uniform', 'spo'])
def test_a_step_asks_no_question_twice(name, monkeypatch):
  """A repeated question would be sampled with the same noise."""
  setup = _setup(
    selection__name=name,
    selection__resample=3,
    rollout__questions=3,
    learner__minibatches=1,
    task__options__train_size=8,
  )
  setup.task.score = lambda question, answer: 0.0  # all tie, so all are asked that can be
  drawn, rollout = [], collect_lib.rollout

  def converse(team, task, tokenizer, questions, *rest, **options):
    drawn.append([q.id for q in questions])
    return rollout(team, task, tokenizer, questions, *rest, **options)

  monkeypatch.setattr(collect_lib, 'rollout', converse)
  chosen, everything, _ = collect(setup, _state(setup), _Progress())
  assert [len(ids) for ids in drawn] == [3, 3]  # only two others are left after them
  assert len({*drawn[0], *drawn[1]}) == len(everything.drawn) == 6
  assert [q.id for q in chosen.questions] == drawn[-1]  # and are trained on as they are


def test_choice_of_questions_depends_on_the_state_alone():
  first, again = (_collected(selection__name='spo')[0] for _ in range(2))
  assert [q.id for q in first.questions] == [q.id for q in again.questions]
  after = _step(_Programs(), selection__name='spo').state
  evidence = np.asarray(after.selection.posterior.a + after.selection.posterior.b)
  assert (evidence[first.drawn] > 2.5).all()  # four episodes were seen


def test_frozen_agents_are_not_packed():
  programs = _Programs()
  result = _step(programs, policy__sharing='mix', policy__frozen=('solver',))
  total = sum(b.message_mask.sum() for step in programs.seen for b in step)
  trained = [m for m in result.rollout.messages if m.agent != 2]
  assert total == len(trained)
  assert result.metrics['packing/unshared_positions'] == sum(len(m.path) - 1 for m in trained)


def test_messages_without_a_token_make_no_minibatch():
  setup = _setup()
  batch, *_ = collect(setup, _state(setup), _Progress())
  batch = dataclasses.replace(
    batch,
    messages=tuple(
      dataclasses.replace(m, token_ids=m.token_ids[:0], logprobs=m.logprobs[:0], ended=False)
      for m in batch.messages
    ),
  )
  ones = np.ones(len(batch.messages))
  advantages = types.SimpleNamespace(values=ones, kept=ones)
  assert _learner(setup, None).pack(batch, advantages, step=0) == []


@pytest.mark.parametrize(
  'fields',
  [
    {'algorithm': 'ngrpo'},
    {'algorithm': 'ngrpo', 'learner__old_logprobs': 'trainer'},
    {'algorithm': 'ngrpo', 'learner__order': 'reverse_turns', 'selection__name': 'spo'},
  ],
)
def test_a_step_in_which_every_message_is_dropped_updates_nothing_and_goes_on(fields):
  """The team is right in the second step of three."""
  setup = _setup(budget__lambda_tok=0.0, **fields)
  programs, state, graded = _Programs(), _state(setup), setup.task.score
  for step in range(3):
    setup.task.score = (lambda q, a: 1.0) if step == 1 else graded
    before, updates = state, len(programs.seen)
    result = train_step(setup, _learner(setup, programs), before, _Progress())
    state, metrics = result.state, result.metrics
    dropped = step == 1
    assert (metrics['advantage/kept'] == 0) == dropped
    assert (len(programs.seen) == updates) == dropped
    assert any(name.startswith('policy/') for name in metrics) != dropped
    assert all(np.isfinite(value) for value in metrics.values())
    assert (no_update_warning(setup.config, metrics) is not None) == dropped
    # All other metrics continue.
    assert int(state.step) == step + 1
    assert int(state.selection.drawn) == 4 * (step + 1)
    evidence = lambda s: float(s.selection.posterior.a.sum() + s.selection.posterior.b.sum())
    assert np.isfinite(evidence(state))
    assert evidence(state) != evidence(before)
    assert float(state.budget.running_accuracy) != float(before.budget.running_accuracy)


@pytest.mark.parametrize(
  ('field', 'values'),
  [
    ('learner.learning_rate', {}),
    (
      'policy.learning_rates',
      {'policy__sharing': 'adapters', 'policy__learning_rates': (1e-3, 0.0, 1e-3)},
    ),
  ],
)
def test_the_update_names_the_questions_of_a_loss_that_is_not_finite(field, values):
  class Broken(_Programs):
    def optimizer_step(self, state, micro_batches):
      if self.done:
        raise NonFiniteLossError('objective=nan')
      return super().optimizer_step(state, micro_batches)

  with pytest.raises(
    NonFiniteLossError, match=rf'nan in mini-batch 2 of 2 of step 1, questions r.*Lower {field} or'
  ):
    _step(Broken(), model__lora_rank=2, **values)


def test_a_schedule_ends_with_the_run_where_agents_that_do_not_learn_take_turns():
  """In a star the informants' turn has no learner; its mini-batch would be empty."""
  programs = _Programs()
  values = {
    'model__lora_rank': 2,
    'policy__sharing': 'mix',
    'policy__frozen': ('informant1', 'informant2'),
    'learner__order': 'reverse_turns',
    'learner__schedule': 'linear',
    'learner__learning_rate': 1.0,
    'steps': 3,
  }
  parts = _setup(**values)
  _step(programs, **values)
  updates = 3 * len(programs.seen)
  optimizer, params = setup_lib.make_optimizer(parts), {'a': jnp.ones(2)}
  state, sizes = optimizer.init(params), []
  for _ in range(updates):
    change, state = optimizer.update({'a': jnp.ones(2)}, state, params)
    sizes.append(float(np.abs(change['a']).max()))
  assert sizes[-1] <= 1.01 / updates * sizes[0]
