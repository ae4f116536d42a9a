"""Tests `team.topology='learned:<workdir>'`: the evaluation it reads, and its errors."""

from __future__ import annotations

import json

import pytest

from agent_gspo.config import learned_topology
from agent_gspo.teams.options import TeamOptions
from agent_gspo.workdir import records

TEAM = {'agents': ['agent', 'agent'], 'roles': {'agent': {}}, 'topology': 'complete', 'rounds': 2}


def write_run(folder, labels, team=TEAM):
  """Writes a run with evaluations of these labels; `agent1` speaks if trained."""
  (folder / 'config.json').write_text(json.dumps({'team': team}))
  pair = {'author': 'agent1', 'reader': 'agent2', 'turns': 2.0, 'tokens': 4.0}
  lines = []
  for step, label in enumerate(labels):
    said = float(label == 'trained')
    edges = [{**pair, 'said': said, 'told': said}]
    lines.append(json.dumps({'step': step, 'label': label, 'edges': edges}) + '\n')
  (folder / 'eval.jsonl').write_text(''.join(lines))


def resolve(folder):
  return learned_topology.resolve(TeamOptions(**TEAM | {'topology': f'learned:{folder}'}))


@pytest.mark.parametrize(
  'labels',
  [
    ['during', 'trained', 'untrained'],
    ['trained', 'trained, price 0', 'trained, price 0.5', records.SEEN],
    ['untrained', 'trained', 'trained, budget 4'],
  ],
)
def test_the_graph_is_the_trained_teams_whatever_was_written_last(tmp_path, labels):
  write_run(tmp_path, labels)
  assert resolve(tmp_path).edges == ((0, 1),)


def test_a_run_in_the_home_folder_is_found_and_an_address_refused(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  write_run(tmp_path, ['trained'])
  assert resolve('~').edges == ((0, 1),)
  with pytest.raises(ValueError, match=r'team\.topology=gs://bucket/run: must be a folder of this'):
    resolve('gs://bucket/run')


def test_without_the_trained_team_it_is_that_of_training(tmp_path):
  write_run(tmp_path, ['during', 'untrained'])
  assert resolve(tmp_path).edges == ()
  write_run(tmp_path, [records.SEEN])
  with pytest.raises(ValueError, match='of that run has no evaluation with edges'):
    resolve(tmp_path)


@pytest.mark.parametrize(
  'team',
  ['x', None, {**TEAM, 'roles': [1]}, {**TEAM, 'agents': 3}, {**TEAM, 'rounds': 0}, {'pets': 1}],
)
def test_a_damaged_team_is_said_to_be_of_the_other_folder(tmp_path, team):
  write_run(tmp_path, ['trained'], team)
  with pytest.raises(ValueError, match='has no valid team: ') as raised:
    resolve(tmp_path)
  (line,) = str(raised.value).splitlines()
  assert line.startswith(f"team.topology='learned:{tmp_path}': {tmp_path / 'config.json'} has no")


@pytest.mark.parametrize('folder', ['', ' '])
def test_a_folder_must_be_named(tmp_path, monkeypatch, folder):
  write_run(tmp_path, ['trained'])
  monkeypatch.chdir(tmp_path)  # which an empty path would name
  with pytest.raises(ValueError, match=r"team\.topology='learned: ?' has no folder"):
    resolve(folder)


def test_a_folder_without_a_run_is_named_with_its_field(tmp_path):
  with pytest.raises(
    FileNotFoundError, match=r"team\.topology='learned:.*' holds|nowhere holds"
  ) as raised:
    resolve(tmp_path / 'nowhere')
  assert str(raised.value).startswith("team.topology='learned:")
