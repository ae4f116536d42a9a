"""Checks that bad configs are refused by field name before a model is loaded."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import json
import time

import pytest
import scripted_teams as st
from micro_run import changed

from agent_gspo.algorithms.presets import PRESETS
from agent_gspo.config import Config, compatibility, saved
from agent_gspo.config import check as config_lib
from agent_gspo.environments.kuhn import Kuhn
from agent_gspo.models import load, presets
from agent_gspo.models.io import hf
from agent_gspo.models.text.tokenizer import Tokenizer, word_level
from agent_gspo.models.transformer import init_params
from agent_gspo.tasks import base
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import loop, prompt_checks
from agent_gspo.training import setup as setup_lib

_MODELS: dict[tuple, load.Model] = {}


@pytest.fixture
def no_model(monkeypatch):
  """Fails the test if weights are read."""

  def refuse(unused_self):
    pytest.fail('weights were read')

  monkeypatch.setattr(load.Model, 'params', property(refuse))


@pytest.fixture
def one_model(monkeypatch):
  """Makes models with the same vocabulary once."""

  def once(source, tokenizer, seed):
    key = (source, tokenizer.fingerprint, seed)
    if key not in _MODELS:
      _MODELS[key] = load.open_model(source, tokenizer, seed)
    return _MODELS[key]

  monkeypatch.setattr(setup_lib, 'open_model', once)


def test_defaults_are_the_fields_that_a_run_has():
  parts = config_lib.check(changed())
  assert parts.team.names == ('informant1', 'informant2', 'solver')
  assert parts.task.name == 'relay'
  with pytest.raises(ValueError, match=r'model.source is empty; set it'):
    config_lib.check(changed(model__source=''))


@pytest.mark.parametrize(
  ('name', 'values', 'message'),
  [
    (
      'saboteur',
      {'task__options__witnesses': 4},
      r"team.agents: the team has 4 agents, but task 'saboteur' .* must have 5 or more\. Add some",
    ),
    ('memory', {'task__options__facts': 4}, r'team.rounds: the team has 4 rounds, .* have 5'),
    ('memory', {'task__options__chatter': 2}, r'team.rounds: .* 4 rounds, .* have 5'),
    ('memory', {'team__agents': ('scribe', 'solver')}, r'team.agents: .* 2 agents, .* have 3'),
    ('kuhn', {'task__options__talk': True}, r'team.rounds: .* 2 rounds, .* have 3'),
    ('kuhn', {'team__rounds': 1}, r'team.rounds: .* 1 rounds, .* have 2'),
    ('common_pool', {'task__options__months': 4}, r'team.rounds: .* 6 rounds, .* have 8'),
    ('common_pool', {'task__options__agents': 5}, r'team.agents: .* 4 agents, .* have 5'),
  ],
)
def test_a_team_too_small_for_a_world_is_refused(name, values, message):
  config = importlib.import_module(f'configs.{name}').get_config().to_dict()
  for path, value in values.items():
    *sections, field = path.split('__')
    functools.reduce(dict.__getitem__, sections, config)[field] = value
  with pytest.raises(ValueError, match=message):
    config_lib.check(config)


@pytest.mark.parametrize(
  'found', [2, (2,), ('2', 3), lambda self: (2, 2), property(lambda _: {}['x'])]
)
def test_a_least_team_that_is_no_property_of_two_numbers_is_named(found, monkeypatch):
  monkeypatch.setattr(Kuhn, 'least_team', found)
  with pytest.raises(ValueError, match=r"task 'kuhn'.*least_team"):
    config_lib.check(importlib.import_module('configs.kuhn').get_config().to_dict())


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    # Keys and types.
    ({'stepz': 3}, r'config.stepz is unknown. Did you mean steps\?'),
    ({'model__source': None}, r'config.model.source=None must be text'),
    # Values.
    ({'budget__mode': 'free'}, r"budget.mode='free' is unknown; use one of fixed, accuracy_floor"),
    ({'objective__name': 'ppo'}, r"objective.name='ppo' is unknown; use one of"),
    (
      {'objective__tis_cap': 0.5, 'learner__old_logprobs': 'trainer'},
      r'objective.tis_cap=0.5 must be 0 \(no correction\) or at least 1',
    ),
    ({'objective__tis_cap': 2.0}, r"objective.tis_cap=2.0 with learner.old_logprobs='sampler'"),
    (
      {'budget__mode': 'conditioned', 'budget__told_words': ('free', 'dear')},
      r"budget.mode='conditioned', but no prompt shows the price: write \{price\} into",
    ),
    (
      {'team__roles__solver__opening': '{price} {question}'},
      r"team.roles.solver.opening='\{price\} \{question\}' shows a price, but budget.mode='fixed'",
    ),
    (
      {'sft__follows_terms': 0.5},
      r'sft.follows_terms=0.5: agents are shown no price or budget',
    ),
    ({'evaluation__told': (0.1,)}, r'evaluation.told=\(0.1,\): agents are shown no'),
    (
      {'reward__length_reward': 'told_budget'},
      r"length_reward='told_budget' with budget.mode='fixed'",
    ),
    ({'learner__grad_clip': 10**5000}, r'grad_clip=a very long number must be a finite number'),
    ({'steps': 10**5000}, r'steps=a very long number must be a whole number from 0 to'),
    (
      {'rollout__group_size': 1},
      r"rollout.group_size=1: advantage.name='.*' compares episodes .*'reinforce_pp' or 'spo",
    ),
    (
      {'rollout__must_speak': 2},
      r'rollout.must_speak=2 must be below rollout.group_size=2, so that silence is sampled too',
    ),
    (
      {
        'rollout__must_speak': 1,
        'model__lora_rank': 2,
        'policy__sharing': 'mix',
        'policy__frozen': ('informant1', 'informant2'),
      },
      r'rollout.must_speak=1: no message of a trained agent is read by another; set it to 0',
    ),
    # Counts that are too large.
    ({'team__rounds': 10**9}, r'team.rounds=1000000000: .* takes at most 1000 turns'),
    ({'team__agents': ('solver',) * 101}, r'team.agents names 101 .* at most 100 agents'),
    ({'task__options__train_size': 10**9}, r'has 1000000000 training questions; .* at most 1000'),
    (
      {'steps': 10**7, 'learner__minibatches': 250, 'rollout__questions': 250},
      r'steps=10000000 of 250 optimizer steps are more than 2147483647. Lower steps or learner',
    ),
    # Free-form sections.
    ({'advantage__options': {'eps': None}}, r'advantage.options.eps=None must be a finite number'),
    ({'advantage__options': {'eps': -1.0}}, r'advantage.options.eps=-1.0 must be above 0'),
    (
      {'advantage__options': {'std_floor': [1]}},
      r'advantage.options.std_floor=\[1\] must be a fin',
    ),
    (
      {'advantage__name': 'rae', 'advantage__options': {'decay': 1.5}},
      r'advantage.options.decay=1.5 must be at most 1',
    ),
    (
      {'advantage__name': 'hiper', 'advantage__options': {'lam': 2}},
      r'advantage.options.lam=2 must be at most 1',
    ),
    (
      {'advantage__name': 'mars2', 'advantage__options': {'mix': 1.001}},
      r'advantage.options.mix=1.001 must be at most 1',
    ),
    (
      {'advantage__name': 'hiper', 'advantage__options': {'planner': 3}},
      r'advantage.options.planner=3 must be the number of an agent, 0 to 2',
    ),
    (
      {'advantage__name': 'hiper', 'advantage__options': {'planner': 0.5}},
      r'advantage.options.planner=0.5 must be the number of an agent, 0 to 2',
    ),
    ({'advantage__options': {'whiten': 1}}, r'advantage.options.whiten=1: its default is False'),
    (
      {'objective__clip_low': 0.1, 'objective__options': {'clip_low': 0.5}},
      r'objective.options.clip_low=0.5: must be set as objective.clip_low',
    ),
    (
      {'algorithm': 'sapo', 'objective__clip_high': 0.1},
      r"objective.clip_high=0.1: objective 'sapo' takes no clip_high. Set it to None in",
    ),
    (
      {'objective__name': 'sapo', 'objective__options': {'tau_positive': 0.0}},
      r'objective.options.tau_positive=0.0 must be above 0',
    ),
    ({'task__options': {'operation': 3}}, r'config.task.options.operation=3 must be text'),
    ({'task__options': {'name': 'x'}}, 'task.options.name is unknown'),
    (
      {'task__name': 'gsm8k', 'task__options': {'data_dir': 3}},
      r'config.task.options.data_dir=3 must be a folder',
    ),
    ({'team__agents': (1, 2)}, r'team.agents holds 1; each entry must be the name of a role'),
    ({'team__agents': ([],)}, r'team.agents holds \[\]; each entry must be'),
    ({'team__roles__solver': 3}, r'team.roles.solver=3 must be a section of fields'),
    (
      {'team__roles__solver': {'max_tokens': True}},
      r'solver.max_tokens=True must be a whole number',
    ),
    ({'team__roles__solver': {'examples': (3,)}}, r'solver.examples must be .* got 3'),
    ({'team__roles__solver': {'examples': ((1, 2),)}}, r'solver.examples must be .* got \(1, 2\)'),
    ({'team__roles': {3: {}}}, r'config.team.roles holds 3; its fields must have names'),
    ({'team__roles': {' ': {}}}, r"team.roles holds ' '; the name of a role must be a word"),
    (
      {'team__topology': 'layered', 'team__layers': ('a', 2)},
      r"team.layers=\('a', 2\) must be positive sizes",
    ),
    (
      {'team__topology': 'dag', 'team__edges': (3,)},
      r'team.edges: 3 must be agent numbers \(author, reader\)',
    ),
    (
      {'policy__sharing': 'adapters', 'model__lora_rank': 1, 'policy__frozen': (3,)},
      r'policy.frozen=\(3,\) must hold names of agents',
    ),
    (
      {
        'policy__sharing': 'adapters',
        'model__lora_rank': 1,
        'policy__learning_rates': ('a', 1.0, float('nan')),
      },
      r"policy.learning_rates=\('a', 1.0, nan\) must be 3 nonnegative rates",
    ),
    # Fields that cannot be combined.
    ({'learner__minibatches': 3}, r'learner.minibatches=3 is more than rollout.questions=2'),
    (
      {'mesh__data': 3},
      r'learner.micro_batch_size=4 is not a multiple of mesh.data \* mesh.fsdp = 3',
    ),
    ({'mesh__tensor': 0}, r'mesh.tensor=0: an axis has one device or more'),
    ({'mesh__data': -1, 'mesh__fsdp': -1}, r'one axis alone can have what is left'),
    (
      {'objective__name': 'gmpo', 'objective__ratio_span': 'agent'},
      r"objective.ratio_span='agent' must be \"message\" for 'gmpo'",
    ),
    (
      {'rollout__group_size': 1, 'advantage__name': 'spo_single'},
      r"group_size=1 with advantage.costs='apart': .* Set advantage.costs='inside'",
    ),
    (
      {
        'rollout__group_size': 1,
        'advantage__name': 'spo_single',
        'advantage__costs': 'inside',
        'selection__resample': 2,
      },
      r'selection.resample=2 with rollout.group_size=1: .* always ties. Set selection.resample=0',
    ),
    (
      {'objective__teacher': 'team.json', 'selection__resample': 2},
      r'resample=2 with objective.teacher: questions whose scores tie .* selection.resample=0',
    ),
    (
      {'reward__score': 'weighted_vote', 'team__topology': 'debate', 'team__decision': 'majority'},
      r"score='weighted_vote' weighs .* last message, which is not .* Set reward.score=\"vote\"",
    ),
    (
      {
        'reward__score': 'weighted_vote',
        'team__roles__solver__model': 'endpoint:http://localhost:9/v1#m',
      },
      r"score='weighted_vote' weighs .* endpoint of team.roles.solver.model does not give",
    ),
    (
      {'reward__score': 'tournament', 'budget__lambda_tok': 0.0, 'selection__name': 'spo'},
      r"selection.name='spo' with reward.score='tournament', whose mean is 0.5",
    ),
    (
      {'reward__score': 'tournament', 'budget__mode': 'accuracy_floor'},
      r"budget.mode='accuracy_floor' with reward.score='tournament', whose mean is 0.5",
    ),
    (
      {'algorithm': 'mars', 'reward__credit': 'episode'},
      r"reward.credit='episode' with advantage.name='agent_turn', .* every turn. Set reward.credit",
    ),
    (
      {
        'algorithm': 'mars',
        'reward__length_reward': 'overlong',
        'reward__length_reward_options': 'limit=12,buffer=12',
      },
      r"length_reward='overlong' with advantage.name='agent_turn', .* Set reward.length_reward=",
    ),
    (
      {'reward__cost': 'money', 'reward__length_reward': 'optima'},
      r"length_reward='optima' with reward.cost='money': its min_tokens=40 would count money",
    ),
    (
      {'algorithm': 'seeupo', 'objective__ratio_span': 'episode'},
      r"ratio_span='episode' with learner.order='reverse_turns': .* or learner.order='shuffled'",
    ),
    (
      {'learner__order': 'reverse_turns', 'objective__ratio_span': 'agent'},
      r"ratio_span='agent' with learner.order='reverse_turns': .* objective.ratio_span='message'",
    ),
    (
      {'objective__options': {'tau': 1.0}},
      r"objective.options.tau is unknown; 'gspo' takes clip_low, clip_high",
    ),
    ({'policy__sharing': 'adapters'}, r"policy.sharing='adapters' needs adapters: set model.lora"),
    ({'model__remat_keeps': 'attention'}, r"remat_keeps='attention' needs model.remat=True"),
    (
      {'model__remat_keeps': 'attention', 'model__remat': True, 'model__attention': 'gpu'},
      r"model.attention='gpu' has none. Use 'auto'",
    ),
    ({'budget__mode': 'dual'}, r'budget.mode="dual" needs budget.budget_episode'),
    (
      {'checkpoint__keep_best': 2, 'evaluation__every': 0},
      r'checkpoint.keep_best=2 with evaluation.every=0: .* Set evaluation.every to .*keep_best=0',
    ),
    ({'evaluation__untrained': 'last'}, r"evaluation.untrained='last' with sft.steps=2"),
    ({'task__options__train_size': 1}, r'rollout.questions=2 is more than the 1 training'),
    ({'budget__lambda_tok': 0.1}, r'lambda_tok=0.1 times 12, .* Keep lambda_tok below 0.083'),
    ({'budget__mode': 'accuracy_floor', 'budget__lambda_max': 0.1}, r'lambda_tok=0.1 times 12'),
    ({'team__agents': ('solver',), 'team__topology': 'single'}, r'notes to 2 agents, .* has 1'),
    (
      {'team__roles__informant__opening': '{question}'},
      r"informant.opening='\{question\}' shows no note, but task 'relay' deals one to informant1",
    ),
    ({'team__roles': {'solver': {'colour': 1}}}, r'team.roles.solver.colour is unknown'),
    ({'team__roles': {'solver': {}}}, r"names the role 'informant', which team.roles does not"),
    # Models and tasks.
    (
      {'model__source': 'micro'},
      r"model.source='micro' is not of the form hf:<folder or hub id>.* Write random:micro",
    ),
    (
      {'model__source': 'owner/name'},
      r'is not of the form hf:<folder or hub id>.* Write hf:owner/',
    ),
    ({'model__source': 'random:huge'}, r"model\.source='random:huge': no such preset; .* micro"),
    ({'model__source': 'pypi:torch==1'}, r'model\.source: pypi:torch==1 is not known; known are'),
    ({'task__name': 'rely'}, r"task.name='rely' is unknown; .* Did you mean 'relay'\?"),
    ({'task__options': {'max_cnt': 3}}, r"max_cnt is unknown; .* Did you mean 'max_count'"),
  ],
)
def test_bad_configs_are_refused_by_name(values, message, no_model, tmp_path):
  with pytest.raises(ValueError, match=message):
    loop.train(changed(**values), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def by_reward(reward, groups, *, lam=2.0):
  return reward + groups


def test_an_estimator_of_ones_own_that_reads_rewards_needs_an_environment():
  values = {'advantage__name': f'{__name__}:by_reward', 'advantage__options': {'lam': 3.0}}
  with pytest.raises(
    ValueError, match=r"reads `reward`, .* 'relay' is not an env.* Read `own_rewards`"
  ):
    config_lib.check(changed(**values))
  config_lib.check(changed(**values), training=False)
  config_lib.check(_pool(**values))
  votes = {'reward__score': 'collective_vote', 'team__decision': 'majority'}
  config_lib.check(changed(**values, **votes, team__topology='debate'))  # rewards each answer
  values['advantage__name'] = 'hiper'
  config_lib.check(changed(**values | {'advantage__options': {'lam': 1, 'planner': 2}}))


def _pool(**values):
  config = importlib.import_module('configs.common_pool').get_config().to_dict()
  for path, value in values.items():
    *sections, field = path.split('__')
    functools.reduce(dict.__getitem__, sections, config)[field] = value
  return config


def test_an_environment_pays_on_a_scale_of_its_own():
  """A right answer earns other rewards than 1 there, so no price is too high."""
  priced = {'reward__gate': 'always', 'budget__lambda_tok': 0.02}
  assert config_lib.check(_pool(**priced)).note == ''
  with pytest.raises(ValueError, match='a wrong and silent episode can outrank a right one'):
    config_lib.check(changed(reward__gate='always', budget__lambda_tok=0.2))


def _numbers(section, prefix=''):
  for key, value in section.items():
    if isinstance(value, dict):
      yield from _numbers(value, f'{prefix}{key}__')
    elif isinstance(value, int | float) and not isinstance(value, bool):
      yield f'{prefix}{key}', value


@pytest.mark.parametrize(('field', 'value'), list(_numbers(changed())), ids=lambda x: str(x))
def test_every_number_has_a_range(field, value):
  name = field.replace('__', '.')
  if name == 'budget.lambda_min':
    return
  for wrong in (-7, float('nan'), float('inf'), 10**400, 'x', None, True, [1]):
    with pytest.raises(ValueError, match=name.split('.')[-1]):
      config_lib.check(changed(**{field: wrong}))
  if isinstance(value, int) and not field.startswith('task__'):
    with pytest.raises(ValueError, match=name.split('.')[-1]):
      config_lib.check(changed(**{field: 10**12}))


@pytest.mark.slow
def test_the_longest_conversations_are_checked_in_seconds():
  roles = changed()['team']['roles']
  roles['informant']['incoming'] = roles['solver']['incoming']
  for agents, rounds, topology in ((3, 333, 'debate'), (100, 10, 'complete'), (100, 10, 'chain')):
    team = {
      'team__agents': ('informant',) * 2 + ('solver',) * (agents - 2),
      'team__rounds': rounds,
      'team__topology': topology,
      'team__roles': roles,
    }
    config = changed(**team, reward__p_read=1.0, budget__lambda_tok=0.0)
    start = time.process_time()
    parts = config_lib.check(config)
    assert len(parts.team.turns) <= 1000
    with pytest.raises(ValueError, match=r"model's context is 2048|learner.pack_length=64 is too"):
      setup_lib.build(parts)
    assert time.process_time() - start < 20


def test_missing_fields_are_named():
  config = changed()
  del config['budget']['eta']
  with pytest.raises(ValueError, match=r'config.budget.eta is missing'):
    config_lib.check(config)


@pytest.mark.parametrize('split', ['train', 'test'])
def test_empty_split(split, no_model, tmp_path):
  config = changed()
  config['task']['options'][f'{split}_size'] = 0
  with pytest.raises(ValueError, match=f"split '{split}' of task relay is empty: set {split}_size"):
    loop.train(config, tmp_path / 'run')


def test_missing_data_folder_and_file(no_model, tmp_path):
  options = {'data_dir': str(tmp_path / 'nowhere'), 'cache_dir': str(tmp_path / 'cache')}
  config = changed(task__name='gsm8k', task__options=options, sft__steps=0)
  with pytest.raises(FileNotFoundError, match=r"data_dir='.*nowhere' is not a folder; name the"):
    loop.train(config, tmp_path / 'run')
  config['task']['options'] |= {'data_dir': str(tmp_path), 'base_url': f'file://{tmp_path}/none'}
  with pytest.raises(FileNotFoundError, match=r'cannot get gsm8k/.* Remedy: put the file at'):
    loop.train(config, tmp_path / 'run')


def test_word_problems_have_no_warm_start_and_no_vocabulary(no_model, monkeypatch):
  monkeypatch.setattr(config_lib, 'make_task', lambda *_, **__: st.Echo())
  with pytest.raises(ValueError, match=r"sft.steps=2, but task 'echo' has no demonstrations"):
    config_lib.check(changed())
  config = changed(sft__steps=0)
  with pytest.raises(ValueError, match=r"'random:micro' needs a task with a vocabulary of its own"):
    setup_lib.build(config_lib.check(config))


# Errors that depend on the model.


def build(config):
  return setup_lib.build(config_lib.check(config))


@pytest.mark.parametrize('rounds', [1, 2])
@pytest.mark.parametrize('decision', ['last', 'judge'])
def test_the_longest_prompt_is_checked_before_a_run(one_model, rounds, decision):
  """Accepts a row that just holds the longest prompt and message, and no shorter one."""
  roles = changed()['team']['roles']
  roles = {**roles, 'judge': roles['solver']}
  given = {'team__roles': roles, 'team__rounds': rounds, 'team__decision': decision}
  config = changed(**given, learner__pack_length=256, task__options__test_size=20)
  config['task']['options']['train_size'] = 20
  setup = build(config)
  word = setup.tokenizer.encode('has')
  talk = st.IdsPolicy(lambda turn: (word * turn.limit, False))
  questions = [q for split in ('train', 'test') for q in setup.task.questions(split)]
  batch = rollout(setup.team, setup.task, setup.tokenizer, questions, 1, talk)
  longest = max(m.read + m.written for m in batch.messages)

  config['learner']['pack_length'] = longest
  build(config)
  config['learner']['pack_length'] = longest - 1
  with pytest.raises(
    ValueError, match=rf'learner.pack_length={longest - 1} is too short: question'
  ):
    build(config)


def test_prompt_longer_than_the_context(monkeypatch):
  short = presets.PRESETS['micro'].replace(max_positions=20)
  monkeypatch.setitem(presets.PRESETS, 'micro', short)
  with pytest.raises(ValueError, match=r"but the model's context is 20\. Shorten the roles'"):
    build(changed())


def test_another_vocabulary_than_the_models_is_refused(tmp_path):
  few, many = word_level(['a', 'b']), word_level(['a', 'b', 'c'])
  import jax

  config = presets.PRESETS['micro'].replace(vocab_size=few.vocab_size, num_layers=1)
  params = init_params(config, jax.random.key(0))
  hf.export_hf(config, params, tmp_path, many)
  with pytest.raises(ValueError, match=r'the tokenizer has 6 tokens, the embedding .* only 5 rows'):
    build(changed(model__source=f'hf:{tmp_path}'))
  assert json.loads((tmp_path / 'config.json').read_text())['vocab_size'] == 5


@pytest.mark.parametrize(
  ('role', 'fields', 'message'),
  [
    # Questions in plain English, for a model that reads whole words.
    (None, {'text_style': 'plain'}, r'informant\.opening=.*: question relay-.* holds the word'),
    ('solver', {'cue': 'answer :'}, r"solver: the word '\?answer', .* where two texts join .*cue"),
    # The opening joins the cue only if all agents are silent.
    (
      'solver',
      {'incoming': ' {sender} : {message} ', 'cue': 'answer :'},
      r"roles\.solver: the word '\?answer', which the vocabulary of .*'random:micro' lacks",
    ),
    (
      'solver',
      {'incoming': '{sender} : {message}'},
      r"solver: the word '\?informant1', .*incoming",
    ),
    ('informant', {'opening': 'note:{note}'}, r"informant: the word 'note:\w+', .*opening"),
    ('informant', {'opening': '{question}{note}'}, r"informant: the word '\?\w+', "),
    (
      'informant',
      {'examples': [('hello', ' y')], 'cue': 'note :'},
      r"informant: the word 'hellonote', .*examples",
    ),
  ],
)
def test_words_outside_the_vocabulary_are_refused(role, fields, message, no_model):
  config = changed()
  target = config['task']['options'] if role is None else config['team']['roles'][role]
  target.update(fields)
  with pytest.raises(ValueError, match=message):
    build(config)


def test_words_that_a_loaded_vocabulary_lacks(tmp_path):
  parts = config_lib.check(changed())
  setup = setup_lib.build(parts)
  config, params = setup.model.config, setup.params
  hf.export_hf(config, params, tmp_path, setup.tokenizer)
  again = build(changed(model__source=f'hf:{tmp_path}'))
  assert again.tokenizer.fingerprint == setup.tokenizer.fingerprint
  named = changed(model__source=f'hf:{tmp_path}')
  named['team']['roles']['solver']['cue'] = ' then answer :'
  with pytest.raises(ValueError, match=r"roles\.solver\.cue holds the word 'then', which .*'hf:"):
    build(named)
  # 'hello' is said by the scripted team alone.
  words = [w for w in parts.task.vocabulary() if w != 'hello']
  roles = ['note', 'say', 'answer', 'informant1', 'informant2', 'solver']
  word_level(list(dict.fromkeys([*words, *roles]))).save(tmp_path)
  with pytest.raises(ValueError, match=r"sft\.steps=2: the word 'hello' of task 'relay' is"):
    build(changed(model__source=f'hf:{tmp_path}'))
  build(changed(model__source=f'hf:{tmp_path}', sft__steps=0))


def test_message_that_leaves_no_room_for_a_prompt(no_model):
  with pytest.raises(ValueError, match=r'context is 2048.* lower .*max_message_tokens=2048'):
    build(changed(team__max_message_tokens=2048, reward__gate='correct'))
  # A role's own cap is shorter, but the sampler's rows are as long as the team's.
  config = changed(team__max_message_tokens=2040, reward__gate='correct')
  for role in config['team']['roles'].values():
    role['max_tokens'] = 4
  with pytest.raises(ValueError, match=r"but the model's context is 2048\. Shorten the roles'"):
    build(config)


@pytest.mark.parametrize(
  ('template', 'message'),
  [
    (None, 'this tokenizer has no chat template'),
    ('{% for m in messages %}', 'The chat template cannot render .*Unexpected end of template'),
    ('{{ messages[9].content }}', 'cannot render .*UndefinedError|has no element 9'),
    ('{{ 1 // 0 }}', 'cannot render .*ZeroDivisionError'),
    ('{{ messages + 1 }}', 'cannot render .*TypeError'),
    ("{{ raise_exception('roles must alternate') }}", 'roles must alternate'),
    ('Hello', 'does not write down what is said by user, assistant, user once each'),
    ('{% for m in messages | reverse %}{{ m.content }}{% endfor %}', 'does not write down'),
    ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", 'does not write'),
  ],
)
def test_broken_chat_templates(template, message, no_model, monkeypatch):
  plain = prompt_checks.tokenizer_from_scratch
  scratch = lambda *arguments: Tokenizer(
    plain(*arguments).backend, '<eos>', pad_token='<pad>', chat_template=template
  )
  monkeypatch.setattr(prompt_checks, 'tokenizer_from_scratch', scratch)
  config = changed()
  config['team']['roles']['solver']['style'] = 'chat'
  with pytest.raises(
    ValueError, match=rf'random:micro.*team\.roles\.solver\.style="chat": .*({message})'
  ):
    build(config)


def test_words_of_the_prompts_are_in_the_vocabulary(one_model):
  roles = copy.deepcopy(changed()['team']['roles'])
  roles['informant'] |= {'system': 'speak up !', 'separator': ';', 'examples': [(' so', ' it is ')]}
  setup = build(changed(team__roles=roles))
  assert setup.tokenizer.encode('speak up ! so it is ;')


def test_numbers_of_tokens_left_are_in_the_vocabulary(one_model):
  config = changed()
  config['team']['roles']['solver']['cue'] = ' left {left} answer :'
  setup = build(config)
  numbers = range(setup.team.max_tokens + 1)
  assert not setup.tokenizer.unknown_words(' '.join(['left', *map(str, numbers)]))


@pytest.mark.parametrize('algorithm', sorted(PRESETS))
def test_a_saved_config_follows_another_algorithm_and_dtype(algorithm):
  values = changed(algorithm=algorithm, advantage__name='rloo', objective__clip_low=0.07)
  resolved = config_lib.resolve(values)
  bare = saved.emptied(resolved)
  assert config_lib.resolve(bare.to_dict()) == resolved
  other = {'algorithm': 'dapo', 'model': {**values['model'], 'dtype': 'bfloat16'}}
  expected = config_lib.resolve({**values, **other})
  found = config_lib.resolve({**bare.to_dict(), **other})
  assert (found.objective, found.learner, found.selection) == (
    expected.objective,
    expected.learner,
    expected.selection,
  )
  assert found.advantage.costs == expected.advantage.costs


@pytest.mark.parametrize('name', ['hinge', 'l1_max', 'l1_exact', 'laser'])
def test_a_saved_config_keeps_what_a_length_reward_needs(name):
  option = 'limit=20' if name == 'hinge' else 'target=20'
  values = changed(reward__length_reward=name, reward__length_reward_options=option)
  resolved = config_lib.resolve(values)
  assert config_lib.resolve(saved.emptied(resolved).to_dict()) == resolved


def test_a_config_read_from_disk_is_the_one_that_was_written():
  """JSON has lists in place of tuples."""
  told = {'budget__mode': 'target', 'budget__told_words': ('few', 'many')}
  told['budget__budget_episode'] = 9.0
  values = changed(**told, reward__length_reward='told_budget', reward__payers=())
  values['team']['roles']['solver'].update(
    opening='{budget} {question}', cue=' left {left} answer :'
  )
  found = config_lib.check(values).config
  read = json.loads(json.dumps(found.to_dict()))
  assert type(found).from_dict(read) == found
  assert config_lib.check(read).config == found


def test_notes_of_any_question_are_dealt_to_agents_that_there_are(tmp_path):
  file = tmp_path / 'questions.jsonl'
  notes = [['a'], ['a', 'b', 'c', 'd']]
  rows = [
    {'question': f'{split} {i} ?', 'answer': i, 'notes': of, 'split': split}
    for split in ('train', 'validation', 'test')
    for i, of in enumerate(notes)
  ]
  file.write_text('\n'.join(map(json.dumps, rows)))
  with pytest.raises(ValueError, match='deals notes to 4 agents, but the team has 3'):
    config_lib.check(changed(task__name='questions', task__options={'file': str(file)}))


def test_a_generated_split_is_parted_without_building_it():
  start = time.monotonic()
  parts = config_lib.check(changed(sft__held_back=0.25))
  assert time.monotonic() - start < 5
  size = len(parts.task.questions('train'))
  assert size == 10**6
  assert len(base.asked(parts.task, 0.25)) == size / 4
  shown = base.demonstrated(parts.task, 0.25)
  assert [shown[-1].id, base.asked(parts.task, 0.25)[0].id] == [
    parts.task.questions('train')[size * 3 // 4 + i].id for i in (-1, 0)
  ]


@pytest.mark.parametrize(
  'changes',
  [
    {'team__addressing': True},
    {'team__decision': 'judge'},
    {'budget__told_words': ('a', 'b'), 'budget__mode': 'conditioned'},
  ],
)
def test_a_vocabulary_from_scratch_is_that_of_the_checkpoint(changes):
  resolve = lambda **fields: config_lib.resolve(changed(**fields))
  saved_as = compatibility.as_json(resolve())
  compatibility.check_model(saved_as, 1, resolve(seed=3))
  field = next(iter(changes)).replace('__', '.')
  with pytest.raises(ValueError, match=rf'made with another config \({field}: '):
    compatibility.check_model(saved_as, 1, resolve(**changes))


def test_paths_belong_to_a_machine_not_to_a_run():
  of = lambda **options: Config.from_dict(changed(task__name='gsm8k', task__options=options))
  saved_as = compatibility.as_json(of(data_dir='/a', grader='strict'))
  moved = of(data_dir='/b', cache_dir='/c', base_url='http://d', grader='strict')
  assert compatibility.changes(saved_as, 1, moved, ()) == []
  compatibility.check_model(saved_as, 1, moved)
  with pytest.raises(ValueError, match=r"config \(task.options.grader: 'strict' in the checkpoint"):
    compatibility.changes(saved_as, 1, of(data_dir='/a', grader='legacy'), ())


@pytest.mark.parametrize(
  ('change', 'refused'),
  [
    ({'evaluation__told': (9, 61)}, 'evaluation.told'),
    ({'evaluation__told': (9, 60)}, ''),
    ({'evaluation__told': ()}, ''),
    ({'budget__budget_episode': 90.0}, 'budget.budget_episode'),
  ],
)
def test_numbers_in_a_vocabulary_from_scratch_are_those_of_the_checkpoint(change, refused):
  budget = {'mode': 'target', 'budget_episode': 20.0, 'target_high': 60.0, 'told_words': ('a', 'b')}
  fields = {f'budget__{field}': value for field, value in budget.items()}
  config = changed(**fields, evaluation__told=(9,))
  config['team']['roles']['solver']['cue'] = ' left {left} answer :'
  saved_as = compatibility.as_json(config_lib.resolve(config))
  section, field = next(iter(change)).split('__')
  config[section][field] = change[f'{section}__{field}']
  resolved = config_lib.resolve(config)
  if not refused:
    compatibility.check_model(saved_as, 1, resolved)
    assert not compatibility.changes(saved_as, 1, resolved, ())
    return
  for compare in (compatibility.check_model, lambda *of: compatibility.changes(*of, ())):
    with pytest.raises(ValueError, match=rf'made with another config \({refused}: '):
      compare(saved_as, 1, resolved)
