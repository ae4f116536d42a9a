"""Tests prompts that show an agent how many tokens are left at its turn."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import scripted_teams

from agent_gspo.evaluation import asking, text_counts
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.roles import Role
from agent_gspo.teams.rollout import rollout
from agent_gspo.types import Terms

TOKENIZER = scripted_teams.byte_tokenizer()
CUE = 'left {left} say :'


def talk(team, texts):
  """Returns a conversation scripted by agent and round."""
  policy = ScriptedPolicy(lambda turn: texts[turn.agent, turn.round], TOKENIZER)
  question = scripted_teams.questions(1)
  return rollout(team, scripted_teams.Echo(), TOKENIZER, question, 1, policy)


@pytest.mark.parametrize('style', ['plain', 'chat'])
def test_each_turn_tells_what_is_left_then(style):
  team = scripted_teams.team(
    'debate', rounds=2, cue=CUE, style=style, max_message_tokens=20, max_episode_tokens=70
  )
  said = {(agent, round_): 'x' * (agent + 3 * round_) for agent in range(3) for round_ in range(2)}
  batch = talk(team, said)
  first = sum(len(said[agent, 0]) + 1 for agent in range(3))  # and a stop token each
  for message in batch.messages:
    told = re.findall(r'left (\d+) say', TOKENIZER.decode(message.prompt_ids.tolist()))
    assert told == ['70', str(70 - first)][: message.round + 1]
  # Earlier turns are not repeated.
  own = {m.agent: m for m in batch.messages if m.round == 0}
  for message in batch.messages[3:]:
    begun = own[message.agent].path
    np.testing.assert_array_equal(message.prompt_ids[: len(begun)], begun)


def test_without_a_cap_the_messages_own_caps_are_what_is_left():
  team = scripted_teams.team('chain', cue=CUE, max_message_tokens=10)
  batch = talk(team, {(0, 0): 'aaa', (1, 0): '', (2, 0): 'x'})
  told = [
    re.findall(r'left (\d+)', TOKENIZER.decode(m.prompt_ids.tolist())) for m in batch.messages
  ]
  assert told == [['30'], ['26'], ['25']]


def test_counts_as_text_are_of_the_numbers_that_were_told():
  """For plain roles these equal the prompt's own counts."""
  team = scripted_teams.team(
    'debate', rounds=2, cue=CUE, max_message_tokens=60, max_episode_tokens=110
  )
  said = {(agent, round_): 'x' * 7 for agent in range(3) for round_ in range(2)}
  batch = talk(team, said)
  counts = text_counts.count(team, TOKENIZER, batch)
  for message, (read, _) in zip(batch.messages[:3], counts[:3], strict=True):
    assert read == len(message.prompt_ids)
  assert '86' in TOKENIZER.decode(batch.messages[3].prompt_ids.tolist())  # a digit less than 110
  # Stop tokens are no text: one of each message that the prompt holds, and a separator's place.
  stops = {len(m.prompt_ids) - read for m, (read, _) in zip(batch.messages, counts, strict=True)}
  assert stops == {0, 1}


def test_examples_would_tell_a_wrong_number():
  with pytest.raises(ValueError, match=r'shows \{left\}, which examples lack'):
    Role('x', cue=CUE, examples=(('context', 'message'),))


def test_braces_of_other_words_stay():
  role = Role('x', cue='{left} of {this} :')
  assert (role.shows_left, role.cue_at(12)) == (True, '12 of {this} :')
  assert (Role('x').shows_left, Role('x', cue='{} :').cue_at(12)) == (False, '{} :')


def test_of_a_budget_told_with_the_question_what_was_written_is_taken_off():
  team = scripted_teams.team('debate', rounds=3, cue=CUE, max_message_tokens=20)
  said = {(agent, round_): 'xyz' * (agent + 1) for agent in range(3) for round_ in range(3)}
  policy = ScriptedPolicy(lambda turn: said[turn.agent, turn.round], TOKENIZER)
  (question,) = scripted_teams.questions(1)
  question = dataclasses.replace(question, terms=Terms('budget', 30.4, 'thirty'))
  batch = rollout(team, scripted_teams.Echo(), TOKENIZER, [question], 1, policy)
  for message in batch.messages:
    told = re.findall(r'left (\d+) say', TOKENIZER.decode(message.prompt_ids.tolist()))
    assert told == ['30', '12', '0'][: message.round + 1]  # stop tokens are no part of it
  counts = text_counts.count(team, TOKENIZER, batch)
  for message, (read, _) in zip(batch.messages[:3], counts[:3], strict=True):
    assert read == len(message.prompt_ids)


def test_a_price_leaves_what_the_caps_leave():
  team = scripted_teams.team('chain', cue=CUE, max_message_tokens=10)
  assert team.told_left(Terms('price', 0.01, 'dear'), 7, 5) == 23
  assert team.told_left(None, 7, 5) == 23


def test_a_budget_that_the_vocabulary_cannot_count_is_refused():
  team = scripted_teams.team('chain', cue=CUE)
  words = scripted_teams.numbers_tokenizer(20)
  question = dataclasses.replace(scripted_teams.questions(1)[0], terms=Terms('budget', 19.0, ''))
  asking.check_words(team, words, question)
  question = dataclasses.replace(question, terms=Terms('budget', 20.0, ''))
  with pytest.raises(ValueError, match='budget=20: the team is told how many tokens are left'):
    asking.check_words(team, words, question)
