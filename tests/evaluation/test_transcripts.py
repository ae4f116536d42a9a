"""Tests records of messages: prompts as the model read them, tokens, log-probs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scripted_teams as st

from agent_gspo.evaluation import transcripts
from agent_gspo.teams.rollout import rollout


def records(batch, tokenizer, episodes=(0,), **options):
  return transcripts.records(
    batch, episodes, [tokenizer] * len(batch.agent_names), step=0, split='test', **options
  )


@pytest.mark.parametrize('style', ['plain', 'chat'])
def test_prompts_and_tokens_of_an_author_are_all_that_the_model_read(style):
  tokenizer = st.byte_tokenizer()
  team = st.team('debate', style=style, rounds=3, max_message_tokens=4)

  def says(turn):
    ids = tokenizer.encode('abc'[turn.agent] * (1 + turn.round))
    ends = turn.agent != 1  # the messages of agent 1 are cut off
    return [*ids, tokenizer.eos_id] if ends else (ids * 4)[:4], ends

  batch = rollout(team, st.Echo(), tokenizer, st.questions(2, notes=2), 1, st.IdsPolicy(says))
  (record,) = records(batch, tokenizer, [1])
  for agent, name in enumerate(team.names):
    *_, last = (m for m in batch.messages if (m.episode, m.agent) == (1, agent))
    read = ''
    for message in record['messages']:
      if message['agent'] == name:
        read += message['prompt'] + ''.join(text for text, _ in message['tokens'])
    assert read == tokenizer.decode(last.path)


def test_tokens_have_their_log_probs():
  policy, tokenizer = st.model_policy()
  batch = rollout(st.team('single'), st.Echo(), tokenizer, st.questions(1), 1, policy)
  (message,) = batch.messages
  first = np.arange(len(message.token_ids)) == 0
  variants = (
    message,
    dataclasses.replace(message, inserted=first),
    dataclasses.replace(message, usage=(9, 9)),
  )
  whole, by_tool, remote = (
    records(dataclasses.replace(batch, messages=(m,)), tokenizer)[0]['messages'][0]
    for m in variants
  )
  assert [text for text, _ in whole['tokens']] == [tokenizer.decode([i]) for i in message.token_ids]
  found = [logprob for _, logprob in whole['tokens']]
  np.testing.assert_allclose(found, message.logprobs, atol=5e-4)
  assert whole['logprob'] == pytest.approx(message.logprobs.sum(), abs=5e-4)
  assert [logprob for _, logprob in by_tool['tokens']] == [None, *found[1:]]
  assert by_tool['logprob'] == pytest.approx(message.logprobs[1:].sum(), abs=5e-4)
  assert not {'tokens', 'logprob'} & remote.keys()
  assert remote['prompt'] == whole['prompt']


def test_who_learns_elsewhere_is_an_opponent_and_a_frozen_teammate_is_none():
  tokenizer = st.byte_tokenizer()
  policy = st.IdsPolicy(lambda turn: ([*tokenizer.encode('a'), tokenizer.eos_id], True))
  batch = rollout(st.team('debate'), st.Echo(), tokenizer, st.questions(1), 1, policy)
  fixed = [dataclasses.replace(m, learns=m.agent == 0) for m in batch.messages]
  batch = dataclasses.replace(batch, messages=tuple(fixed), sides=('x', 'y', 'y'))
  (record,) = records(batch, tokenizer, learners=(0, 1))
  assert [m['side'] for m in record['messages']] == ['x', 'y, opponent', 'y']
