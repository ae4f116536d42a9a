"""Tests the flag --config: names, a run's own config, and fields missing in the file."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import micro_run
import pytest

from agent_gspo.apps.commands import config_flag
from agent_gspo.config import check as config_lib

_LOAD = """
import json, sys
from agent_gspo.apps.commands import command, config_flag
holder = config_flag.define()
command._parse_flags(sys.argv)
print(json.dumps(config_flag.load(holder)))
"""


def _loaded(*arguments: str, config=micro_run.CONFIG, cwd=None) -> subprocess.CompletedProcess[str]:
  """Loads the micro run's config with flags in a process of its own; prints it as JSON."""
  line = [sys.executable, '-c', _LOAD, f'--config={config}', *arguments]
  env = {**micro_run.environment(), 'PYTHONPATH': str(pathlib.Path(__file__).parents[2])}
  return subprocess.run(line, env=env, capture_output=True, text=True, check=False, cwd=cwd)


def test_options_that_the_file_does_not_write_can_be_set(tmp_path):
  (tmp_path / 'flags').write_text('--config.advantage.options.eps=1e-3\n')
  done = _loaded(
    '--config.objective.options.tau_positive=2.0',
    *('--config.objective.name=sapo', '--config.objective.options.tau_negative=3'),
    *('--config.advantage.options.whiten', f'--flagfile={tmp_path}/flags'),
    *('--config.task.options.num_teams=x', '--config.task.options.max_count=5'),
    '--config.team.roles.solver.max_tokens=3',
    '--config.sft.role_shares.informant=0.25',
  )
  assert done.returncode == 0, done.stderr
  config = json.loads(done.stdout)
  assert config['objective']['options'] == {'tau_positive': 2.0, 'tau_negative': 3}
  assert config['advantage']['options'] == {'eps': 1e-3, 'whiten': True}
  assert config['task']['options']['num_teams'] == 'x'
  assert config['task']['options']['max_count'] == 5
  assert config['team']['roles']['solver']['max_tokens'] == 3
  assert config['sft']['role_shares'] == {'informant': 0.25}
  with pytest.raises(ValueError, match=r'options\.num_teams is unknown'):
    config_lib.check(config)
  del config['task']['options']['num_teams']
  del config['team']['roles']['solver']['max_tokens']
  config_lib.check(config)


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    (
      'objective.options.clip=0.3',
      r"objective.options.clip is unknown; 'gspo' takes clip_low, clip_high",
    ),
    ('advantage.options.std_flor=1', r"std_flor is unknown; 'per_component' takes std_floor, eps"),
    ('advantage.options.eps=abc', r"advantage.options.eps='abc' must be a finite number"),
    ('advantage.options.eps=nan', r"advantage.options.eps='nan' must be a finite number"),
    ('advantage.options.whiten=1', r'advantage.options.whiten=1: its default is False'),
    ('task.options.text_stile=plain', r"text_stile is unknown; .* Did you mean 'text_style'"),
    ('team.roles.solver.openning=x', 'openning'),
    ('sft.role_shares.nobody=0.5', 'nobody'),
  ],
)
def test_unknown_options_are_refused_by_name(argument, message):
  done = _loaded(f'--config.{argument}')
  assert done.returncode == 0, done.stderr
  with pytest.raises(ValueError, match=message):
    config_lib.check(json.loads(done.stdout))


@pytest.mark.parametrize(
  'argument',
  [
    'team.roles.nobody.opening=x',
    'objective.optoins.eps=1',
    'budget.options.x=1',
    'zzz.options.x=1',
  ],
)
def test_other_fields_are_refused_as_before(argument):
  done = _loaded(f'--config.{argument}')
  assert done.returncode == 2
  assert 'the config has no field' in done.stderr
  assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
  ('argument', 'meant'),
  [
    ('lambda_tok=0.1', 'budget.lambda_tok'),  # of a section
    ('learner.learning_rat=1', 'learner.learning_rate'),
    ('bugdet.lambda_tok=0.1', 'budget.lambda_tok'),
    ('num_generations=8', 'rollout.group_size'),  # of another library
  ],
)
def test_a_similar_field_is_suggested(argument, meant):
  done = _loaded(f'--config.{argument}')
  assert done.returncode == 2
  assert f'Did you mean --config.{meant}?' in done.stderr


def test_a_name_that_is_no_flag_is_refused(tmp_path):
  field = '--config.team.roles.my-critic.opening'
  done = _loaded(f'{field}=x')
  assert done.returncode == 2
  assert f'{field}: a name on the command line must have letters, digits and _ alone' in done.stderr


def test_a_config_is_found_by_its_name_from_anywhere(tmp_path):
  found = _loaded('--config.seed=3', config='multiarith_dealt:worth', cwd=tmp_path)
  assert found.returncode == 0, found.stderr
  config = json.loads(found.stdout)
  assert (config['seed'], config['algorithm']) == (3, 'worth')
  done = _loaded(config='tinny', cwd=tmp_path)
  assert done.returncode == 2
  assert 'flag --config=tinny: no such file or name; there are' in done.stderr
  assert 'Did you mean tiny?' in done.stderr
  (tmp_path / 'configs').mkdir()
  own = (micro_run.CONFIG).read_text()
  (tmp_path / 'configs' / 'tiny.py').write_text(own)  # the user's own comes first
  assert (
    json.loads(_loaded(config='tiny', cwd=tmp_path).stdout)['model']['source'] == 'random:micro'
  )


@pytest.mark.parametrize('file', ['config.json', 'team.json'])
def test_a_folder_is_no_config(tmp_path, monkeypatch, file):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'tiny').mkdir()
  with pytest.raises(ValueError, match='has no field'):  # so that of configs/ is found
    config_flag.check_fields('tiny', ['no_such_field'])
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').touch()
  (tmp_path / 'run' / file).touch()
  with pytest.raises(ValueError, match=f'--config=run: is a folder; take run/{file}'):
    config_flag.check_fields('run', [])


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'own.py').write_text(micro_run.CONFIG.read_text())
  config = json.dumps(config_lib.resolve(micro_run.get_config().to_dict()).to_dict())
  (tmp_path / 'config.json').write_text(config)
  for file in ('~/own.py', '~/config.json'):
    with pytest.raises(ValueError, match='has no field'):
      config_flag.check_fields(file, ['no_such_field'])


def test_the_config_that_a_run_saved_is_one(tmp_path):
  given = json.loads(_loaded('--config.sft.role_shares.informant=0.25').stdout)
  file = tmp_path / 'config.json'
  file.write_text(json.dumps({**given, 'model_source': 'resolved'}))
  again = _loaded('--config.seed=7', config=file)
  assert again.returncode == 0, again.stderr
  assert json.loads(again.stdout) == {**given, 'seed': 7}
  file.write_text('{"steps": 3}')
  assert 'no config of a run' in _loaded(config=file).stderr
