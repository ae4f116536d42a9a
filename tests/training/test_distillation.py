"""Tests distillation of a team into one agent: gradient, context, learning, errors."""

from __future__ import annotations

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import pytest
import tiny

from agent_gspo.algorithms import selection
from agent_gspo.algorithms.objectives import losses
from agent_gspo.config import check as config_lib
from agent_gspo.config import teacher
from agent_gspo.models.io import hf
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.models.transformer import Params
from agent_gspo.rewards import communication
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import costs, distillation, prompt_checks
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.advantages import message_advantages
from agent_gspo.training.collect import collect
from agent_gspo.training.progress import Progress
from agent_gspo.training.train_step import observe, train_step

ALONE = {
  'team__agents': ('solver',),
  'team__topology': 'single',
  'sft__steps': 0,
  'rollout__questions': 16,
  'objective__teacher': 'team.json',
}


def student() -> tuple[setup_lib.Setup, Params]:
  """Returns a setup whose teacher is the micro run's team with the same weights."""
  team = setup_lib.build(config_lib.check(micro_run.changed()))
  values = micro_run.changed(**ALONE)
  values['task']['options']['whole_problem'] = True
  parts = config_lib.check(values)
  taught_by = config_lib.check(micro_run.changed(), training=False)
  return dataclasses.replace(team, **vars(parts), teacher=taught_by), team.params


def test_expected_gradient_is_that_of_the_reverse_kl():
  logits, teacher = np.random.default_rng(0).normal(size=(2, 7)).astype(np.float32)
  teacher = jax.nn.log_softmax(teacher)

  def objective(logits, token):
    one, logprobs = jnp.ones(1), jax.nn.log_softmax(logits)
    x = losses.PackedTokens(
      logprobs=logprobs[token][None],
      old_logprobs=teacher[token][None],
      message_ids=jnp.zeros(1, int),
      token_mask=one,
      advantages=one,
      message_mask=one,
    )
    return losses.reverse_kl(x).total

  gradients = jnp.stack([jax.grad(objective)(logits, token) for token in range(7)])
  divergence = lambda z: jnp.sum(jax.nn.softmax(z) * (jax.nn.log_softmax(z) - teacher))
  expected = -jax.grad(divergence)(logits)
  np.testing.assert_allclose(jax.nn.softmax(logits) @ gradients, expected, atol=1e-6)


def test_the_teacher_reads_what_the_answering_agent_of_the_team_read():
  setup, params = student()
  learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, params)
  answers, *_ = collect(setup, state, Progress())
  taught = distillation.taught(setup, learner, state, answers)
  policy = setup.policy(params, stream='teacher', step=0, temperature=1.0)
  team, questions = setup.teacher.team, setup.teacher.task.questions('train')
  asked = [questions[i] for i in answers.drawn]
  talk = rollout(team, setup.teacher.task, setup.tokenizer, asked, 1, policy)
  read = {m.episode: m.prompt_ids for m in talk.messages if m.agent == 2}
  assert any(len(m.token_ids) > 1 and m.agent < 2 for m in talk.messages)  # not all are silent
  for question, message in zip(answers.question, taught.messages, strict=True):
    ids = np.concatenate([read[question], message.token_ids])
    logits = np.asarray(tiny.logits(setup.model.config, params, ids[:-1]))
    logprobs = jax.nn.log_softmax(logits[len(read[question]) - 1 :])
    expected = np.take_along_axis(logprobs, message.token_ids[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(message.logprobs, expected, atol=1e-4)
  for own, message in zip(answers.messages, taught.messages, strict=True):
    assert own.token_ids is message.token_ids
    assert own.prompt_ids is message.prompt_ids


def test_the_student_approaches_its_teacher():
  setup, params = student()
  learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, params)
  gaps = []
  for _ in range(16):
    result = train_step(setup, learner, state, Progress())
    state = result.state
    gaps.append(-result.metrics['policy/objective'])
    assert not any('sampler_trainer_diff' in key for key in result.metrics)
  assert np.mean(gaps[-4:]) < 0.8 * np.mean(gaps[:4]), gaps


@pytest.mark.parametrize(('name', 'rho'), [('', 0.875), ('team.json', 0.96)])
def test_the_distance_to_a_teacher_ages_no_evidence(name, rho):
  setup, params = student()
  state = setup_lib.init_state(setup, params)
  objective = dataclasses.replace(setup.config.objective, teacher=name)
  config = dataclasses.replace(setup.config, objective=objective)
  answers, _, drawn = collect(setup, state, Progress())
  moved = {'': [{'policy/logprob_gap_mean': 5.0}]}
  _, found = observe(config, state, drawn, answers, moved)
  evidence = (found.posterior.a + found.posterior.b)[answers.drawn[0]]
  episodes = int((answers.episode_question == 0).sum())
  assert evidence == pytest.approx(rho * 2 + episodes)


@pytest.mark.parametrize('size', [1, 4])
def test_groups_that_tie_are_learned_from(size):
  values = micro_run.changed(**ALONE, algorithm='ngrpo', rollout__group_size=size)
  values['task']['options']['whole_problem'] = True
  parts = config_lib.check(values)
  words = [*parts.task.vocabulary(), 'answer', 'solver']
  tokenizer = word_level(list(dict.fromkeys(words)))
  asked = parts.task.questions('train')[:2]
  policy = ScriptedPolicy(lambda turn: turn.question.answer, tokenizer)
  batch = rollout(parts.team, parts.task, tokenizer, asked, size, policy)
  assert batch.task_scores.all()
  batch = dataclasses.replace(batch, drawn=np.arange(2))
  terms = communication.reward_terms(parts.config.reward, batch, 0.0)
  found = message_advantages(parts.config, batch, terms, selection.init(2))
  assert found.kept.tolist() == [1.0] * 2 * size


def test_what_the_teacher_reads_must_fit_into_a_packed_row():
  setup, params = student()

  def check(row: int) -> None:
    learner = dataclasses.replace(setup.config.learner, pack_length=row)
    parts = dataclasses.replace(setup, config=dataclasses.replace(setup.config, learner=learner))
    prompt_checks.check_teacher(parts, setup.teacher, setup.tokenizer)

  with pytest.raises(ValueError, match='pack_length=16 is too short') as refused:
    check(16)
  needed = int(re.search(r'can read (\d+) tokens', str(refused.value))[1])
  check(needed)
  with pytest.raises(ValueError, match=f'can read {needed} tokens'):
    check(needed - 1)
  policy = setup.policy(params, stream='teacher', step=0, temperature=1.0)
  asked = setup.teacher.task.questions('train')[:64]
  talk = rollout(setup.teacher.team, setup.teacher.task, setup.tokenizer, asked, 1, policy)
  read = max(len(m.prompt_ids) for m in talk.messages if m.agent == 2)
  assert 0 <= needed - setup.team.message_cap(0) - read <= 2  # 0 if all messages reach their cap


def test_a_teacher_is_read_once(tmp_path):
  team, path = setup_lib.build(config_lib.check(micro_run.changed())), tmp_path / 'team.json'
  hf.export_hf(team.model.config, team.params, tmp_path / 'model', team.tokenizer)
  path.write_text(json.dumps(micro_run.changed()))
  files = {'model__source': f'hf:{tmp_path / "model"}', 'objective__teacher': str(path)}
  values = micro_run.changed(**{**ALONE, **files})
  values['task']['options']['whole_problem'] = True
  setup = setup_lib.build(config_lib.check(values))
  path.unlink()
  assert setup.teacher.team.names == team.team.names
  # Its talk is planned, and the answers behind it: about as much as the team's own rollout.
  alone = micro_run.changed(**{**ALONE, **files, 'objective__teacher': ''})
  alone['task']['options']['whole_problem'] = True
  more = setup.plan.positions - setup_lib.plan(config_lib.check(alone)).positions
  prompts = prompt_checks.check_teacher(setup, setup.teacher, setup.tokenizer)
  talk = costs.rollout({'': setup.model.config}, team.team, prompts, 16, 1).positions
  answers = 16 * setup.config.rollout.group_size
  assert more == talk + answers * (prompts[-1].turns[-1] + setup.team.message_cap(0))


def test_another_team_is_refused(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  path = tmp_path / 'team.json'
  path.write_text(json.dumps({**micro_run.changed(), 'exported': {'step': 1}}))
  files = {'model__source': 'hf:model', 'objective__teacher': str(path)}

  def of(**fields):
    values = micro_run.changed(**{**ALONE, **files, **fields})
    values['task']['options']['whole_problem'] = True
    return teacher.resolve(config_lib.check(values))

  for name in (str(path), '~/team.json'):
    assert of(objective__teacher=name).team.names == ('informant1', 'informant2', 'solver')
  team = {k: v for k, v in micro_run.changed().items() if k != 'model'}
  for fields, error in (
    ({'model__source': 'random:micro'}, 'needs its export as model.source'),
    ({'team__max_message_tokens': 3}, 'set team.max_message_tokens=4'),
    ({'team__agents': team['team']['agents'], 'team__topology': 'star'}, 'teaches one agent'),
    ({'team__rounds': 2}, 'teaches one turn: set team.rounds=1'),
    ({'learner__old_logprobs': 'trainer'}, "needs learner.old_logprobs='sampler'"),
    ({'task__options__train_size': 40}, 'has other questions: take its `task`'),
    ({'objective__kl_coef': 0.1}, 'replaces the objective: set objective.kl_coef=0'),
  ):
    with pytest.raises(ValueError, match=error):
      of(**fields)
  with pytest.raises(FileNotFoundError, match='no such file'):
    of(objective__teacher=str(tmp_path / 'none.json'))
  path.write_text('[]')
  with pytest.raises(ValueError, match='is not a team config'):
    of()
