"""Runs the examples of docs/library.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import micro_run
import pytest

import agent_gspo
from agent_gspo import plugins
from agent_gspo.config import check as config_lib

_BLOCKS = re.findall(
  r'```python\n(.*?)```', (micro_run.ROOT / 'docs' / 'library.md').read_text(), re.S
)


def _python(*arguments, cwd, **settings) -> subprocess.CompletedProcess:
  environment = {**micro_run.environment(), 'PYTHONPATH': str(micro_run.ROOT), **settings}
  return subprocess.run(
    [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
  )


def test_the_import_is_light():
  code = (
    'import sys, time; start = time.perf_counter(); import agent_gspo;'
    'assert not {"jax", "flax", "numpy", "ml_collections"} & set(sys.modules);'
    'print(time.perf_counter() - start)'
  )
  seconds = [float(_python('-c', code, cwd=micro_run.ROOT).stdout) for _ in range(3)]
  assert min(seconds) < 0.2


def test_every_public_name_is_there():
  code = (
    'import agent_gspo\n'
    'for module in (agent_gspo, agent_gspo.algorithms):\n'
    '  assert set(module.__all__) <= set(dir(module))\n'
    '  for name in module.__all__: assert getattr(module, name) is not None\n'
    'print(len(agent_gspo.__all__))\n'
  )
  done = _python('-c', code, cwd=micro_run.ROOT)
  assert done.returncode == 0, done.stderr
  assert int(done.stdout) < 25
  with pytest.raises(AttributeError, match='nothing_like_it'):
    agent_gspo.nothing_like_it  # noqa: B018


@pytest.mark.parametrize('block', _BLOCKS[:2])
def test_algorithms_work_alone(block, tmp_path):
  """Checks that `algorithms` imports no models, teams, tasks or config."""
  check = (
    '\nimport sys\nrooms = {m.split(".")[1] for m in sys.modules if m.startswith("agent_gspo.")}\n'
    'assert not rooms & {"models", "teams", "tasks", "training", "config", "sampling"}, rooms\n'
  )
  done = _python('-c', block + check, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert done.stdout


def test_parts_of_ones_own_from_an_empty_folder(tmp_path):
  mine, config = _BLOCKS[2:4]
  (tmp_path / 'mine.py').write_text(mine)
  (tmp_path / 'config.py').write_text(config)
  command = ('-m', 'agent_gspo.apps.commands.train', '--config=config.py', '--workdir=run')
  done = _python(*command, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  steps = [json.loads(line) for line in (tmp_path / 'run' / 'metrics.jsonl').open()]
  assert [step['step'] for step in steps] == [1, 2]
  # The tax of 0.02 a token is in the reward, and the optimizer moved.
  assert all(step['reward/shape'] < 0 for step in steps)
  assert steps[0]['policy/grad_norm'] > 0
  transcripts = [json.loads(line) for line in (tmp_path / 'run' / 'transcripts.jsonl').open()]
  trained = [t['question_id'] for t in transcripts if t['split'] == 'train']
  assert trained[0] == '0+0'  # the first question of the split, in order
  for message in (m for t in transcripts if t['split'] == 'train' for m in t['messages']):
    terms = message.get('task', 0) - message.get('token_cost', 0) + message['length_reward']
    assert message['reward'] == pytest.approx(terms, abs=1e-6)
  wrong = _python(*command[:-1], '--workdir=r2', '--config.task.name=mine:Nothing', cwd=tmp_path)
  assert wrong.returncode == 2
  assert wrong.stderr.startswith("error: task.name='mine:Nothing': module 'mine' holds no 'Nothing")
  assert not (tmp_path / 'r2').exists()


@pytest.mark.slow
def test_callbacks_see_steps_and_evaluations_and_end_a_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  shown: dict = {}
  exec(_BLOCKS[4], shown)
  config = micro_run.get_config().unlock()
  config.evaluation.every = 2
  steps: list[int] = []
  shown['print'] = lambda step, metrics: steps.append(step) if metrics else None
  last = shown['train'](config, enough=0.0)  # of 10 steps
  assert (last['label'], last['step'], steps) == ('trained', 2, [1, 2])
  last = shown['train'](config, enough=1.1)
  assert (last['label'], last['step'], steps) == ('trained', 10, [*range(1, 11)])


_ODD = {
  'odd': (
    'def asks(rewards, cost): return rewards\n'
    'def open_(rewards, **options): return rewards\n'
    'def needs(rewards, *, scale): return rewards\n'
    'def empty(num_agents, rounds): return {}\n'
    'def fails(num_agents=0, rounds=0): return {}["nothing"]\n'
  ),
  'broken': 'def f(:',
  'raises': 'raise ValueError("no")',
}


@pytest.mark.parametrize(
  ('field', 'value', 'message'),
  [
    ('task__name', 'no_such_module:Task', r"task.name='no_such_module:Task': module .* PYTHONPATH"),
    ('team__topology', 'os:sep', r"team.topology='os:sep' is a str, no function or class"),
    ('team__topology', 'odd:empty', r"team.topology='odd:empty' returned dict, not a Topology"),
    ('objective__name', 'os:nothing', r"objective.name='os:nothing': module 'os' holds no"),
    ('advantage__name', ':x', r"advantage.name=':x'"),
    ('reward__length_reward', 'a:', r"reward.length_reward='a:'"),
    ('selection__name', 'os:nothing', r"selection.name='os:nothing': module 'os' holds no"),
    ('selection__name', 'math:pi', r"selection.name='math:pi' is a float, no function or class"),
    ('advantage__name', 'math:pi', r"advantage.name='math:pi' is a float, no function or class"),
    ('advantage__name', 'odd:asks', r'parameter cost is none of task, .* Options are keyword-only'),
    ('advantage__name', 'odd:open_', r'parameter \*\*options: write each parameter by its name'),
    ('advantage__name', 'odd:needs', r"option 'scale' needs a number as its default"),
    ('reward__length_reward', 'odd:asks', r'parameter rewards is none of scores, lengths'),
    ('team__topology', 'odd:fails', r"rounds=1: KeyError: 'nothing'"),
    ('task__name', 'odd:fails', r'odd:fails'),
    ('task__name', 'builtins:dict', r'builtins:dict'),
    ('objective__name', 'broken:f', r"module 'broken' cannot be imported \(SyntaxError"),
    ('objective__name', 'raises:f', r"module 'raises' cannot be imported \(ValueError: no"),
  ],
)
def test_a_wrong_name_is_refused_before_a_model_is_made(
  field, value, message, tmp_path, monkeypatch
):
  for name, text in _ODD.items():
    (tmp_path / f'{name}.py').write_text(text)
    monkeypatch.delitem(sys.modules, name, raising=False)
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match=message):
    config_lib.check(micro_run.changed(**{field: value}))


def test_a_rule_that_draws_a_question_twice_is_refused(monkeypatch, tmp_path):
  from agent_gspo.algorithms import selection

  (tmp_path / 'twice_drawn.py').write_text('def rule(state, free, count, seed): return [0] * count')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match=r'chose \[0, 0\], not 2 different free questions'):
    selection.choose('twice_drawn:rule', selection.init(5), 2, seed=0)


def test_another_source_of_a_part_is_another_warm_start(tmp_path, monkeypatch):
  file = tmp_path / 'changing.py'
  monkeypatch.syspath_prepend(tmp_path)
  found = []
  for text in ('A = 1', 'A = 1', 'A = 2'):
    file.write_text(text)
    plugins.load('changing:A', 'team.topology')
    found.append(plugins.digest({'team': {'tools': ('calculator', 'changing:A')}}))
    assert found[-1] == plugins.digest({'team': {'topology': 'changing:A'}})
  assert found[0] == found[1] != found[2]


_COMMANDS = sorted(file.stem for file in (micro_run.ROOT / 'launch').glob('*.py'))


@pytest.mark.slow
@pytest.mark.parametrize('command', _COMMANDS)
def test_a_command_runs_in_any_folder(command, tmp_path):
  done = _python(str(micro_run.ROOT / 'launch' / f'{command}.py'), '--help', cwd=tmp_path)
  assert f'python launch/{command}.py' in done.stdout


@pytest.mark.parametrize(
  ('command', 'names'),
  [
    ('train', 'config workdir allow_changes'),
    ('evaluate', 'config workdir step baseline'),
    ('export', 'workdir step out'),
    ('ask', 'config workdir step question'),
    ('serve', 'config workdir step port'),
  ],
)
def test_help_lists_the_flags(command, names):
  done = _python(str(micro_run.ROOT / 'launch' / f'{command}.py'), '--help', cwd=micro_run.ROOT)
  usage, _, listed = done.stdout.partition('\nflags:\n')
  assert f'python launch/{command}.py' in usage
  assert set(names.split()) <= set(re.findall(r'^ *--(\w+):', listed, re.MULTILINE))
