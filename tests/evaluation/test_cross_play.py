"""Tests cross-play: agents of two runs in one team."""

from __future__ import annotations

import json
import re

import micro_run
import numpy as np
import pytest

from agent_gspo.teams.policies import Reply, Turn, divided
from agent_gspo.types import Question


def test_each_policy_is_asked_for_its_agents_alone():
  asked = []

  def player(token):
    def speak(turns):
      asked.append((token, [turn.agent for turn in turns]))
      return [Reply.given([token, turn.agent], True) for turn in turns]

    return speak

  players = {False: player(7), True: player(9)}
  policy = lambda turns: divided(turns, lambda turn: turn.agent in (1, 3), players)
  turn = lambda agent: Turn(Question('q', '', ''), 0, agent, 0, np.arange(3), {}, 4, (0,))
  replies = policy([turn(agent) for agent in (3, 0, 1, 2)])
  assert [r.token_ids.tolist() for r in replies] == [[9, 3], [7, 0], [9, 1], [7, 2]]
  assert asked == [(7, [0, 2]), (9, [3, 1])]
  policy([turn(0)])
  assert asked[2:] == [(7, [0])]  # no policy is called without turns


def _evaluate(*arguments: str):
  return micro_run.run(micro_run.command('evaluate', '--baseline=', *arguments))


@pytest.mark.slow
def test_two_runs_play_in_one_team(tmp_path):
  """Informant 1 writes as after the last step, the others as after SFT."""
  run = f'--workdir={micro_run.finished()}'
  first = ('--step=0', f'--out={tmp_path}/first')
  mixed = (f'--partner={micro_run.finished()}', '--partner_agents=informant1')
  for arguments in (
    (f'--out={tmp_path}/last',),
    first,
    (*mixed, '--step=0', f'--out={tmp_path}/mixed'),
  ):
    done = _evaluate(run, *arguments)
    assert done.returncode == 0, done.stderr
  read = lambda name: [
    {m['agent']: m for m in json.loads(line)['messages']}
    for line in (tmp_path / name / 'results.jsonl').open()
  ]
  told = lambda name, agent: [messages[agent]['text'] for messages in read(name)]
  assert told('mixed', 'informant1') == told('last', 'informant1') != told('first', 'informant1')
  assert told('mixed', 'informant2') == told('first', 'informant2') != told('last', 'informant2')
  result = json.loads((tmp_path / 'mixed' / 'result.json').read_text())
  assert result['evaluations'][0]['label'] == f'step 0, informant1 of {micro_run.finished()}'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--partner={run}', '--partner_agents=boss'), 'informant1, informant2, solver'),
    (('--partner={run}',), '--partner_agents=: must name agents'),
    (('--partner_agents=solver',), 'of which run'),
    (
      ('--partner={run}', '--partner_agents=solver', '--config.team.rounds=2'),
      'another team.*team.rounds: 1 in the checkpoint, 2 now',
    ),
    (
      ('--partner={run}', '--partner_agents=solver', '--config.task.options.max_count=4'),
      'another team.*max_count: 3 in the checkpoint, 4 now',
    ),
  ],
)
def test_a_partner_that_cannot_play_is_refused(arguments, message):
  given = [argument.format(run=micro_run.finished()) for argument in arguments]
  done = _evaluate(f'--config={micro_run.CONFIG}', *given)
  assert done.returncode == 2
  assert re.search(message, done.stderr)
