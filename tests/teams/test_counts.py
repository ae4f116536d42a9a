"""Compares token counts with counts by hand and with the sampler's."""

from __future__ import annotations

import collections
import random

import numpy as np
import pytest
import scripted_teams as st

from agent_gspo.teams import batches, counts
from agent_gspo.teams.rollout import rollout
from agent_gspo.types import RolloutBatch


def talk(name: str, decision: str = 'last', rounds: int = 3) -> RolloutBatch:
  """Returns six episodes whose messages have unique numbers, or none."""
  tokenizer = st.numbers_tokenizer(600)
  first = tokenizer.backend.token_to_id('50')

  def ids(turn):
    rng = random.Random(f'{turn.question.id}/{turn.sample}/{turn.agent}/{turn.round}')
    length = rng.choice([0, 1, 3, turn.limit])
    start = first + 100 * turn.round + 10 * turn.agent
    ended = length < turn.limit
    return [*range(start, start + length), *[tokenizer.eos_id] * ended], ended

  team = st.team(name, rounds=rounds, decision=decision)
  return rollout(team, st.Echo(), tokenizer, st.questions(3, notes=2), 2, st.IdsPolicy(ids))


@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
@pytest.mark.parametrize('decision', ['last', 'judge'])
def test_counts_equal_a_count_by_hand(name, decision):
  found = batch = talk(name, decision)
  assert len(found.episode) == len(batch.messages) > 0
  assert found.num_episodes == 6
  for i, m in enumerate(batch.messages):
    assert (found.episode[i], found.agent[i], found.round[i]) == (m.episode, m.agent, m.round)
    assert found.question[i] == m.episode // 2
    stop = [] if found.truncated[i] else m.token_ids[-1:].tolist()
    assert found.truncated[i] == (len(m.token_ids) == 6)
    assert found.written[i] == len(m.token_ids) - len(stop) == len(m.text.split())
    assert found.silent[i] == (m.text == '')
    assert found.read[i] == len(m.prompt_ids)
    assert found.readers[i] == st.carried(batch, i)
    assert found.relevant[i] == (1, 0, -1)[min(m.agent, 2)]


@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
def test_tables_by_agent_and_round_add_up(name):
  batch = talk(name)
  written = sum(len(m.text.split()) for m in batch.messages) / 6
  read = sum(len(m.prompt_ids) for m in batch.messages) / 6
  for rows in (counts.agents(batch), counts.rounds(batch)):
    assert sum(row['written_per_question'] for row in rows) == pytest.approx(written)
    assert sum(row['read_per_question'] for row in rows) == pytest.approx(read)
  assert counts.per_question(batch, batch.written) == pytest.approx(written)
  assert counts.by_episode(batch, batch.written).mean() == pytest.approx(written)
  assert [row['name'] for row in counts.agents(batch)] == list(batch.agent_names)
  assert {row['calls_per_question'] for row in counts.agents(batch)} == {3.0}


@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
def test_critical_path_is_the_longest_message_of_each_layer(name):
  batch = talk(name)
  longest = collections.defaultdict(int)
  for m in batch.messages:
    key = (m.episode, m.round, m.layer)
    longest[key] = max(longest[key], m.written)
  path = counts.critical_path(batch)
  by_layer = collections.defaultdict(list)
  for m, tokens in zip(batch.messages, path, strict=True):
    assert tokens in (0, m.written)
    by_layer[m.episode, m.round, m.layer].append(int(tokens))
  assert {key: sum(tokens) for key, tokens in by_layer.items()} == longest
  assert all(np.count_nonzero(tokens) <= 1 for tokens in by_layer.values())


def test_silence_is_told_apart_by_relevance():
  batch = talk('star')
  silent = lambda *agents: np.mean([m.text == '' for m in batch.messages if m.agent in agents])
  everybody, nobody = np.ones(len(batch.agent), bool), np.zeros(len(batch.agent), bool)
  names = 'silence_rate', 'silence_rate_relevant', 'silence_rate_irrelevant'
  rates = lambda where: tuple(counts.silence_rates(batch, where)[name] for name in names)
  assert rates(everybody) == (silent(0, 1, 2), silent(0), silent(1))
  assert rates(batch.relevant == -1) == (silent(2), None, None)
  assert rates(nobody) == (None, None, None)
  first, second, third = counts.agents(batch)
  assert (first['silence_rate_relevant'], first['silence_rate_irrelevant']) == (silent(0), None)
  assert (second['silence_rate_relevant'], second['silence_rate_irrelevant']) == (None, silent(1))
  assert (third['silence_rate'], third['silence_rate_relevant']) == (silent(2), None)
  assert 0 < silent(0, 1, 2) < 1


def test_totals_are_the_samplers_own_token_for_token():
  """Counts the sampler's tokens at its calls, in 200 episodes of all topologies."""
  policy, tokenizer = st.model_policy()
  teams = [st.team(name) for name in st.TOPOLOGIES] + [st.team('debate', decision='judge')]
  episodes = silent = truncated = 0
  for team in teams:
    counted = collections.Counter()

    def counting(turns, counted=counted):
      out = policy(turns)
      for turn, reply in zip(turns, out, strict=True):
        written = len(reply.token_ids) - reply.ended
        counted['written'] += written
        counted['read'] += len(turn.prompt_ids)
        counted['turns'] += 1
        counted['written', turn.agent] += written
        counted['read', turn.agent] += len(turn.prompt_ids)
      return out

    batch = rollout(team, st.Echo(), tokenizer, st.questions(5), 5, counting)
    assert batch.written.sum() == counted['written']
    assert batch.read.sum() == counted['read']
    assert len(batch.written) == counted['turns']
    for agent in range(team.num_agents):
      assert batch.written[batch.agent == agent].sum() == counted['written', agent]
      assert batch.read[batch.agent == agent].sum() == counted['read', agent]
    episodes += batch.num_episodes
    silent += batch.silent.sum()
    truncated += batch.truncated.sum()
  assert episodes == 200
  assert silent > 0
  assert truncated > 0


def test_counts_of_an_empty_batch():
  nothing = dict.fromkeys(('questions', 'episode_question', 'sample', 'answers', 'task_scores'), ())
  empty = batches.from_messages((), agent_names=('a',), **nothing)
  assert counts.per_question(empty, empty.written) == 0.0
  assert counts.critical_path(empty).tolist() == []
  assert counts.rounds(empty) == []
  assert counts.agents(empty)[0]['silence_rate'] is None
