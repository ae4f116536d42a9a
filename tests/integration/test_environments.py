"""Tests runs in environments: the example of docs/environments.md, and a killed run."""

from __future__ import annotations

import json
import re
import signal

import micro_run
import pytest
import run_comparison
import test_resume

_PAGE = (micro_run.ROOT / 'docs' / 'environments.md').read_text()


@pytest.mark.slow
def test_an_environment_of_ones_own_from_an_empty_folder(tmp_path):
  pennies, config = re.findall(r'```python\n(.*?)```', _PAGE, re.S)
  assert len(pennies.splitlines()) <= 60
  (tmp_path / 'pennies.py').write_text(pennies)
  (tmp_path / 'config.py').write_text(config)
  micro_run.train_alone(tmp_path)
  step = json.loads((tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()[0])
  assert step['policy/grad_norm'] > 0
  for line in (tmp_path / 'run' / 'transcripts.jsonl').open():
    episode = json.loads(line)
    won, faces = 0, {'even': '?', 'odd': '?'}
    for shown in range(3):
      own = {m['side'].split(',')[0]: m for m in episode['messages'] if m['round'] == shown}
      if not own:
        break  # nobody wrote in the round before
      assert all(m['observed'] == [f'{faces["even"]} {faces["odd"]}'] for m in own.values())
      legal = {side: m['text'] in ('heads', 'tails') for side, m in own.items()}
      faces = {side: m['text'] if legal[side] else '?' for side, m in own.items()}
      same = faces['even'] == faces['odd']
      earned = (1 if same else -1) if all(legal.values()) else legal['even'] - legal['odd']
      if any(m['text'] for m in own.values()):
        assert (own['even']['earned'], own['odd']['earned']) == (earned, -earned)
        won += earned
    assert (episode['answer'] == 'win') == (won > 0)


_SMALL = {
  'steps': 5,
  'sft.steps': 4,
  'sft.questions': 4,
  'rollout.questions': 2,
  'rollout.group_size': 4,
  'reward.gate_accuracy': 0.01,
  'evaluation.questions': 8,
  'learner.micro_batch_size': 2,
}


_TREE = {'rollout.branches': 3, 'reward.discount': 0, 'advantage.grouping': 'episode_turn_agent'}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('config', 'more'),
  [
    ('half_maze.py', {}),
    ('half_maze.py', _TREE),
    ('kuhn.py:pool', {'rollout.pool_every': 1, 'rollout.pool_size': 3, 'advantage.name': 'rae'}),
    ('kuhn.py:pool', {'rollout.pool_every': 1, 'rollout.ahead': 2, 'checkpoint.every': 1}),
  ],
)
def test_a_killed_run_ends_where_it_would_have_ended(tmp_path, config, more):
  fields = [f'--config.{field}={value}' for field, value in {**_SMALL, **more}.items()]
  config = f'--config={micro_run.ROOT}/configs/{config}'
  command = lambda name: micro_run.command('train', config, f'--workdir={tmp_path}/{name}', *fields)
  whole = micro_run.run(command('whole'))
  assert whole.returncode == 0, whole.stderr
  status, output = test_resume.stop(command('killed'), tmp_path / 'killed', 2, signal.SIGKILL)
  assert status == -signal.SIGKILL, output
  resumed = micro_run.run(command('killed'))
  assert resumed.returncode == 0, resumed.stderr
  run_comparison.assert_same_run(tmp_path / 'killed', tmp_path / 'whole', _SMALL['steps'])
