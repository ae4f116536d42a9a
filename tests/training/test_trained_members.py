"""Tests several learning models in one run: gradients, resume, use, errors."""

from __future__ import annotations

import functools
import types

import jax
import micro_models
import micro_run
import numpy as np
import optax
import pytest
import run_comparison

from agent_gspo.algorithms import budgets
from agent_gspo.algorithms.advantages.inputs import Advantage
from agent_gspo.apps.commands import command, exported, team_of_run
from agent_gspo.config import check as config_lib
from agent_gspo.packing import train_batches
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.sharing import Sharing
from agent_gspo.training import loop, message_worth, run_evaluations
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.collect import collect
from agent_gspo.training.learner import Learner, reference_nll
from agent_gspo.training.progress import Progress
from agent_gspo.training.state import MEMBERS
from agent_gspo.training.train_step import train_step
from agent_gspo.workdir import checkpoints

SOLVER = 'solver'


def changed(source: str, trains: bool = True, role: str = SOLVER, **values) -> dict:
  config = micro_run.changed(**values)
  config['team']['roles'][role] |= {'model': source, 'trains': trains}
  return config


def built(source: str, trains: bool = True, **values) -> setup_lib.Setup:
  return setup_lib.build(config_lib.check(changed(source, trains, **values)))


@pytest.fixture(scope='module')
def same() -> str:
  return micro_models.source(permuted=False)


@pytest.fixture(scope='module')
def permuted() -> str:
  return micro_models.source(permuted=True)


def arrays(flat) -> dict:
  return {path: np.array(x) for path, x in flat.items()}


def change(before, after) -> dict:
  return {path: np.asarray(after[path]) - x for path, x in before.items()}


@pytest.mark.parametrize('trains', [False, True])
def test_gains_are_those_of_the_solver_whose_model_is_another(permuted, trains):
  """The same weights in another vocabulary value the same talk alike."""

  def says(turn):
    return ' '.join(turn.question.note(turn.agent).split()[:2]) or turn.question.answer

  found = []
  for source, learns in (('', False), (permuted, trains)):
    values = {'advantage__name': 'worth', 'advantage__costs': 'inside'}
    setup = built(source, trains=learns, **values)
    policy = ScriptedPolicy(says, setup.tokenizer, tokenizers=setup.team.tokenizers)
    batch = rollout(setup.team, setup.task, setup.tokenizer, setup.questions[:3], 1, policy)
    learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, setup.params)
    found.append(
      message_worth.of_step(
        setup, learner, state, batch, budgets.prices(setup.config.budget, state.budget, batch.terms)
      )
    )
  one, other = found
  assert np.nanmax(np.abs(one.gain)) > 1e-4
  np.testing.assert_allclose(other.gain, one.gain, atol=1e-4)
  np.testing.assert_allclose(other.plain_gain, one.plain_gain, atol=1e-4)
  np.testing.assert_array_equal(other.plain_written, one.plain_written)


@pytest.mark.parametrize(
  ('role', 'trains'),
  [
    (SOLVER, True),
    ('informant', False),
    pytest.param(SOLVER, False, marks=pytest.mark.slow),
    pytest.param('informant', True, marks=pytest.mark.slow),
  ],
)
def test_an_evaluation_measures_the_same_in_another_vocabulary(permuted, role, trains):
  records = []
  for source in ('', permuted):
    values = {'evaluation__worth_questions': 3, 'evaluation__temperature': 0.0}
    config = changed(source, bool(source) and trains, role, **values)
    setup = setup_lib.build(config_lib.check(config))
    scorer = setup_lib.make_scorer(setup)
    record, _ = run_evaluations.evaluate(
      setup, scorer, setup.params, label='untrained', step=0, count=4
    )
    records.append(record)
  one, other = ({k: v for k, v in r.items() if k.startswith('worth/')} for r in records)
  assert {'worth/agents', 'worth/frontier'} <= set(one)
  near = lambda x: pytest.approx(x, abs=1e-4) if isinstance(x, float) else x
  assert jax.tree.leaves(other) == [near(x) for x in jax.tree.leaves(one)]
  judged = [{k: v for k, v in r.items() if k.startswith('judgement/')} for r in records]
  frozen = role == 'informant' and not trains  # no model that the run trains writes notes
  assert judged[0]
  assert judged[1] == ({} if frozen else pytest.approx(judged[0]))


def test_each_model_takes_the_gradient_of_its_own_messages(same, monkeypatch):
  monkeypatch.setattr(setup_lib, 'make_optimizer', lambda *_: optax.sgd(1.0))
  setup = built(same, learner__minibatches=1, objective__kl_coef=0.1)
  learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, setup.params)
  before = {one.name: arrays(state_lib.of_model(state, one.name).trainable)
            for one in learner.models}  # fmt: skip
  for path, x in before[SOLVER].items():
    np.testing.assert_array_equal(x, before[''][path])
  result = train_step(setup, learner, state, Progress())
  alone = setup_lib.build(config_lib.check(micro_run.changed(objective__kl_coef=0.1)))
  for one, agents in zip(learner.models, ({0, 1}, {2}), strict=True):
    found = change(before[one.name], state_lib.of_model(result.state, one.name).trainable)
    chosen = [m for m, message in enumerate(result.rollout.messages) if message.agent in agents]
    own = Learner(one.programs, setup.config, Sharing())
    packed = train_batches.with_values(
      own.rows([result.rollout.messages[m] for m in chosen]), advantages=result.advantages[chosen]
    )
    state, metrics = own.programs.optimizer_step(setup_lib.init_state(alone, alone.params), packed)
    expected = change(before[''], state.trainable)
    assert metrics['policy/ratio_error_max'] < 1e-5
    assert max(np.abs(x).max() for x in expected.values()) > 1e-4
    for path, x in expected.items():
      np.testing.assert_allclose(found[path], x, atol=1e-5)


def test_without_an_advantage_of_its_agents_a_model_stays(same):
  setup = built(same, learner__minibatches=1, learner__weight_decay=0.0)
  learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, setup.params)
  rollout = collect(setup, state, Progress())[0]
  before = arrays(state.trainable)
  values = np.where(rollout.agent == 2, 1, 0).astype(np.float32)
  for one in learner.models:
    packed = one.pack(rollout, Advantage(values=values, kept=np.ones_like(values)), 0)
    state, _ = one.update(state, packed, rollout, Progress())
  moved = {path[0] == MEMBERS for path, x in change(before, state.trainable).items() if x.any()}
  assert moved == {True}


@pytest.mark.parametrize(
  'values',
  [
    {'learner__old_logprobs': 'trainer', 'objective__ratio_span': 'episode', 'rollout__replay': 4},
    pytest.param(
      {'role': 'informant', 'rollout__must_speak': 1, 'model__lora_rank': 2},
      marks=pytest.mark.slow,
    ),
    {
      'team__sides': {'a': ('informant1', 'informant2'), 'b': ('solver',)},
      'rollout__opponents': 'pool',
      'rollout__questions': 8,
      'rollout__group_size': 4,
      'advantage__grouping': 'question_side',
    },
  ],
)
def test_another_vocabulary_begins_at_ratio_one(permuted, values):
  setup = built(permuted, learner__minibatches=1, **values)
  learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, setup.params)
  before = arrays(state.trainable)
  result = train_step(setup, learner, state, Progress())
  role = values.get('role', SOLVER)
  for name in ('', f'/{role}'):
    assert result.metrics[f'policy/ratio_first_minibatch_error_max{name}'] < 1e-4
    assert result.metrics[f'policy/sampler_trainer_diff_max{name}'] < 1e-3
  moved = {path[0] == MEMBERS for path, x in change(before, result.state.trainable).items()
           if x.any()}  # fmt: skip
  learned = {(m.agent == 2) == (role == SOLVER) for m in result.rollout.messages if m.learns}
  assert moved == learned
  if state.pool is None:
    assert moved == {False, True}


def test_the_reference_of_each_model_reads_its_own_messages(same, permuted):
  """The solver is the main model in both vocabularies."""
  found = []
  for source in (same, permuted):
    setup = built(source, objective__kl_coef=0.1, rollout__temperature=1e-6)
    learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, setup.params)
    rollout = collect(setup, state, Progress())[0]
    warm = built(source, objective__kl_coef=0.1)
    found.append(reference_nll(setup_lib.make_learner(warm), state, rollout))
    learner = Learner(setup_lib.make_learner(warm).programs, warm.config, Sharing())
    if source == same:
      alone = state_lib.of_model(state, '')
      found.append(reference_nll(learner, alone, rollout))
  np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
  np.testing.assert_allclose(found[0], found[2], rtol=1e-4)


def test_the_plan_counts_both_models(same):
  setup = built(same, objective__kl_coef=0.1, rollout__ahead=1)
  state = setup_lib.init_state(setup, setup.params)
  nbytes = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))
  held = setup.plan.state
  assert held['parameters'] == held['weights of rollouts ahead'] == nbytes(state.trainable)
  assert held['moments'] == nbytes(state.opt_state)
  assert held['reference policy'] == nbytes(state.reference)
  assert held['frozen models'] == 0
  frozen = setup_lib.plan(config_lib.check(changed(same, trains=False)))
  assert len(setup.plan.programs) == len(frozen.programs) + 2
  assert held['parameters'] == frozen.state['parameters'] + frozen.state['frozen models']


def test_the_plan_counts_the_work_of_each_model(same):
  """Two equal models do the work of one, a frozen one less, a larger one more."""
  planned = lambda *source, **values: setup_lib.plan(config_lib.check(changed(*source, **values)))
  alone = setup_lib.plan(config_lib.check(micro_run.changed()))
  both = planned(same)
  for one, two in zip(alone.run, both.run, strict=True):
    assert (two.name, two.positions) == (one.name, one.positions)
    assert two.flops == pytest.approx(one.flops)
  frozen, larger = planned(same, trains=False), planned('random:small', rollout__ahead=1)
  names = ('SFT', 'training steps', 'evaluations')
  for name, less, whole, more in zip(names, frozen.run, both.run, larger.run, strict=True):
    assert less.name == whole.name == more.name == name
    assert less.positions <= whole.positions == more.positions
    assert more.flops > 2 * whole.flops
    assert (less.flops < whole.flops) == (name != 'evaluations')
  writing = [p.bytes for p in larger.programs if p.name == 'writing messages']
  beside = {p.arrays['rollouts ahead'] for p in larger.programs if 'rollouts ahead' in p.arrays}
  assert beside == {max(writing)} != {writing[0]}
  worth = {'advantage__name': 'worth', 'advantage__costs': 'inside', 'rollout__ahead': 1}
  names = [p.name for p in planned(same, trains=False, **worth).programs]
  assert names.count('scoring gold answers') == 1
  assert 'scoring gold answers' not in [p.name for p in planned(same, **worth).programs]


@functools.cache
def finished(source: str):
  """Returns an uninterrupted run; do not write there."""
  workdir = micro_run.folder() / 'members'
  record = loop.train(_run(source), workdir)
  return workdir, record


def _run(source: str) -> dict:
  values = {'rollout__ahead': 1, 'objective__kl_coef': 0.01, 'learner__old_logprobs': 'trainer'}
  return changed(source, steps=4, checkpoint__every=2, sft__steps=1, **values)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_nothing_interrupted(permuted, tmp_path):
  whole, _ = finished(permuted)
  config = _run(permuted)

  def kill(step, metrics):
    if step == 3:
      raise RuntimeError('killed')

  with pytest.raises(RuntimeError, match='killed'):
    loop.train(config, tmp_path, on_step=kill)
  assert run_comparison.saved(tmp_path)[0] == 2
  loop.train(config, tmp_path)
  run_comparison.assert_same_run(tmp_path, whole, 4)
  _, saved = run_comparison.saved(tmp_path)
  flat = jax.tree_util.tree_leaves_with_path(saved)
  assert any(f'params/{MEMBERS}/{SOLVER}' in jax.tree_util.keystr(path) for path, _ in flat)


@pytest.mark.slow
def test_a_saved_team_is_used_with_the_weights_that_it_learned(permuted, tmp_path):
  workdir, record = finished(permuted)
  out = tmp_path / 'out'
  done = micro_run.run(micro_run.command('export', f'--workdir={workdir}', f'--out={out}'))
  assert done.returncode == 0, done.stderr
  moved = tmp_path / 'moved'
  out.rename(moved)
  weights, figures = [], []
  for place in (workdir, moved):
    holder = lambda value: types.SimpleNamespace(value=value)
    flags = command.CheckpointFlags(holder(str(place)), holder(None))
    asked = team_of_run.TeamOfRun(team_of_run.Flags(holder(None), flags))
    setup, params = asked.loaded
    policy = setup.policy(params, stream='eval', step=0, temperature=1.0)
    (solver,) = policy.others.values()
    weights.append(jax.tree.map(np.asarray, solver.params))
    scorer = setup_lib.make_scorer(setup)
    found, _ = run_evaluations.evaluate(setup, scorer, params, label='trained', step=4, count=4)
    figures.append({key: found[key] for key in ('task/accuracy', 'tokens/written_per_question')})
  jax.tree.map(np.testing.assert_array_equal, *weights)
  assert figures[0] == figures[1] == {key: record[key] for key in figures[0]}
  state = checkpoints.newest(workdir / 'checkpoints')
  at_start = built(permuted).params[MEMBERS][SOLVER]
  differs = jax.tree.map(lambda a, b: not np.array_equal(a, np.asarray(b)), weights[0], at_start)
  assert any(jax.tree.leaves(differs))
  with pytest.raises(ValueError, match=r'team\.roles\.solver\.trains: True in the checkpoint'):
    state.check_params(config_lib.check(changed(permuted, trains=False)).config)
  assert str(moved) in exported.find(str(moved)).config['team']['roles']['solver']['model']


@pytest.mark.parametrize(
  ('source', 'values', 'message'),
  [
    ('', {}, r"roles\.solver\.trains=True with team\.roles\.solver\.model=''"),
    ('endpoint:http://h/v1#m', {}, r'trains=True with .* must be a model with weights'),
    ('hf:x', {'mesh__tensor': 2}, r'trains=True with mesh\.tensor=2'),
    ('hf:x', {'learner__order': 'reverse_turns'}, r"trains=True with learner\.order='reverse"),
    (
      'hf:x',
      {'model__lora_rank': 2, 'policy__sharing': 'adapters', 'policy__frozen': ('solver',)},
      r"policy\.frozen=\('solver',\) .* solver has its own model, trained",
    ),
  ],
)
def test_refusals(source, values, message):
  with pytest.raises(ValueError, match=message):
    config_lib.check(changed(source, **values))


def test_roles_of_one_model_agree():
  config = changed('hf:x')
  config['team']['roles']['informant']['model'] = 'hf:x'
  config['team']['agents'] = ('informant', 'other', 'solver')
  config['team']['roles']['other'] = {**config['team']['roles']['informant'], 'model': ''}
  with pytest.raises(ValueError, match=r'roles\.informant\.trains=False with the same model'):
    config_lib.check(config)
