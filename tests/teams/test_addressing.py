"""Tests messages with addressees: who reads them, and which tokens are counted."""

from __future__ import annotations

import dataclasses
import json

import pytest
import scripted_teams
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo.config import learned_topology
from agent_gspo.evaluation import results, text_counts
from agent_gspo.teams import addressing, counts
from agent_gspo.teams.options import TeamOptions
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import metrics

TOKENIZER = scripted_teams.byte_tokenizer()
SAID = {
  (0, 0): '@agent3 alpha',
  (1, 0): '@agent1 @agent3: beta',
  (2, 0): 'gamma',
  (0, 1): '@nobody delta',
  (1, 1): '',
  (2, 1): '@agent1 3',
}


def team(**changes):
  return scripted_teams.team(
    'complete', **{'rounds': 2, 'max_message_tokens': 40, 'addressing': True, **changes}
  )


def talk(texts, who=None):
  """Returns a conversation of three agents in two rounds, scripted, and its turns."""
  turns = []

  def speak(turn):
    turns.append(turn)
    return texts[turn.agent, turn.round]

  questions = scripted_teams.questions(4)[3:]
  policy = ScriptedPolicy(speak, TOKENIZER)
  batch = rollout(who or team(), scripted_teams.Echo(), TOKENIZER, questions, 1, policy)
  return batch, {(turn.agent, turn.round): turn for turn in turns}


@pytest.mark.parametrize(
  ('text', 'names', 'body'),
  [
    ('seven pens', None, 'seven pens'),
    ('', None, ''),
    ('write to me@home', None, 'write to me@home'),
    ('@solver seven pens', ('solver',), 'seven pens'),
    (' @solver, @b2: seven  pens ', ('solver', 'b2'), 'seven  pens '),
    ('@solver', ('solver',), ''),
    ('@ seven', ('',), 'seven'),
    ('pens @solver', None, 'pens @solver'),
  ],
)
def test_a_message_is_for_those_whose_names_it_begins_with(text, names, body):
  assert addressing.split(text) == (names, body)


@given(
  st.lists(st.sampled_from(['a', 'solver', 'agent10']), min_size=1), st.text('xyz @', max_size=9)
)
def test_what_is_begun_with_names_is_split_into_them(names, text):
  body = text.lstrip(' @')
  assert addressing.split(addressing.begin(names, body)) == (tuple(names), body)


def test_only_the_addressees_are_handed_a_message():
  batch, turns = talk(SAID)
  prompt = {at: TOKENIZER.decode(turn.prompt_ids.tolist()) for at, turn in turns.items()}
  assert 'alpha' not in prompt[1, 0]
  assert 'from agent1 : @agent3 alpha\n' in prompt[2, 0]  # as it was sampled
  assert 'beta' in prompt[2, 0]
  assert 'beta' in prompt[0, 1]  # agent1 hears agent2 of the round before
  assert 'gamma' in prompt[0, 1]
  assert 'gamma' in prompt[1, 1]
  assert not any('delta' in prompt[reader, 1] for reader in (1, 2))
  assert turns[1, 0].delivered == {0: ''}
  assert turns[2, 0].delivered == {0: 'alpha', 1: 'beta'}  # without the names
  to = {(m.agent, m.round): m.addressees for m in batch.messages}
  assert to == {(0, 0): {2}, (1, 0): {0, 2}, (2, 0): None, (0, 1): set(), (1, 1): None, (2, 1): {0}}


def test_names_are_words_without_addressing():
  batch, turns = talk(SAID, team(addressing=False))
  assert all(m.addressees is None for m in batch.messages)
  assert turns[1, 0].delivered == {0: '@agent3 alpha'}


def test_the_answer_is_what_follows_the_names():
  batch, _ = talk(SAID)
  assert batch.answers[0] == '3'
  assert batch.task_scores[0] == 1


@pytest.mark.parametrize('style', ['plain', 'chat'])
def test_readers_are_those_whose_prompts_carry_it(style):
  batch, _ = talk(SAID, team(style=style))
  for index, message in enumerate(batch.messages):
    assert message.readers == scripted_teams.carried(batch, index)
  who = team(style=style)
  said = {(m.agent, m.round): m for m in batch.messages}
  assert who.readers(said[0, 0]) == ['agent3']
  assert who.readers(said[1, 0]) == ['agent3', 'agent1']
  assert who.readers(said[0, 1]) == []
  assert who.hearers(0, 1) == ['agent2', 'agent3']


def test_counts_as_text_leave_out_what_is_for_others():
  batch, _ = talk(SAID, team(style='plain'))
  for message, (read, _) in zip(
    batch.messages, text_counts.count(team(), TOKENIZER, batch), strict=True
  ):
    # Of a plain role they are those of the prompt, less the separators behind its own messages.
    assert read == len(message.prompt_ids) - message.round


def test_the_graph_by_hand_and_from_records():
  batch, _ = talk(SAID)
  edges = {(edge['author'], edge['reader']): edge for edge in counts.edges(batch)}
  shares = {pair: (e['turns'], e['said'], e['told']) for pair, e in edges.items()}
  assert shares == {
    ('agent1', 'agent2'): (2, 2, 0),
    ('agent1', 'agent3'): (2, 2, 1),
    ('agent2', 'agent1'): (1, 1, 1),
    ('agent2', 'agent3'): (2, 1, 1),
    ('agent3', 'agent1'): (1, 1, 1),
    ('agent3', 'agent2'): (1, 1, 1),
  }
  assert edges['agent1', 'agent3']['tokens'] == len(TOKENIZER.encode(SAID[0, 0]))
  found = metrics.of_graph(batch)
  assert found['graph/sparsity'] == pytest.approx(1 - 5 / 9)
  assert found['graph/agent1_to_agent3'] == 0.5
  tokens = {pair: len(TOKENIZER.encode(SAID[pair])) for pair in SAID}
  heard = tokens[0, 0] + 2 * tokens[1, 0] + 2 * tokens[2, 0]
  assert found['tokens/heard_per_question'] == heard
  task, head = scripted_teams.Echo(), {'step': 0, 'split': 'test', 'label': 'x'}
  records = results.of_questions(batch, team(), task, TOKENIZER, **head)
  records = json.loads(json.dumps(records))
  assert counts.edges(results.of_records(records, team().names)) == counts.edges(batch)
  assert results.figures(records, team().names)['tokens/heard_per_question'] == heard


def test_names_that_are_no_word_are_refused():
  with pytest.raises(ValueError, match="one is called 'my solver'; rename its role"):
    scripted_teams.make_team(
      {'agents': ('my solver',), 'roles': {'my solver': {}}, 'addressing': True}
    )


def learned(tmp_path, batch, who, **section):
  """Returns the team section with the graph of a run evaluated with these conversations."""
  described = {'agents': ['agent'] * 3, 'roles': {'agent': {}}, 'topology': 'complete', 'rounds': 2}
  (tmp_path / 'config.json').write_text(json.dumps({'team': {**described, 'addressing': True}}))
  record = {'step': 1, 'label': 'trained', 'edges': counts.edges(batch)}
  (tmp_path / 'eval.jsonl').write_text(json.dumps(record) + '\n')
  (tmp_path / 'metrics.jsonl').touch()
  topology = f'learned:{tmp_path}'
  return learned_topology.resolve(TeamOptions(**described | section | {'topology': topology}))


def test_a_learned_graph_is_a_topology(tmp_path):
  batch, _ = talk(SAID)
  section = learned(tmp_path, batch, team(), rounds=3)
  assert section.topology == 'dag'
  assert section.edges == ((0, 2), (1, 2))  # not (0, 1): of two messages none was for it
  assert section.back_edges == ((1, 0), (2, 0), (2, 1))
  made = scripted_teams.make_team(section)
  assert made.topology.rounds == 3
  assert made.topology.reads(2, 0) == ((0, 0), (1, 0))


def test_who_is_silent_has_no_edges(tmp_path):
  batch, _ = talk({**dict.fromkeys(SAID, ''), (2, 1): '3'})
  section = learned(tmp_path, batch, team())
  assert section.edges == section.back_edges == ()


def test_a_run_that_does_not_fit_is_refused(tmp_path):
  batch, _ = talk(SAID)
  with pytest.raises(ValueError, match='the agents of that run are agent1, agent2, agent3, those'):
    learned(tmp_path, batch, team(), agents=['agent'])
  (tmp_path / 'eval.jsonl').write_text('{"step": 1, "label": "trained"}\n')
  with pytest.raises(ValueError, match='of that run has no evaluation with edges'):
    learned_topology.resolve(TeamOptions(topology=f'learned:{tmp_path}'))
  with pytest.raises(FileNotFoundError, match='nowhere'):
    learned_topology.resolve(TeamOptions(topology='learned:nowhere'))


def test_messages_for_agents_that_were_pruned_reach_nobody():
  who = team()
  fewer = dataclasses.replace(who, names=('agent1', 'agent2', 'other'))
  assert fewer.addressees('@agent3 x') == frozenset()
