"""Tests trees of candidates: each turn has several, and one is continued."""

from __future__ import annotations

import collections
import dataclasses
import random

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from test_environment import TOKENIZER, play

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config import check as config_lib
from agent_gspo.environments.half_maze import HalfMaze
from agent_gspo.evaluation import transcripts
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.packing import train_batches
from agent_gspo.rewards import communication
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.rewards.returns import returns_to_go
from agent_gspo.sampling import keys
from agent_gspo.teams import batches
from agent_gspo.teams.policies import ModelPolicy, ScriptedPolicy, Turn
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from agent_gspo.training import metrics
from agent_gspo.training.advantages import estimator_inputs
from agent_gspo.types import Question
from agent_gspo.workdir import records
from configs import half_maze as config_file

TEXTS = ('so', 'up', '', 'up', 'so so')  # the first `up` goes on


def tree(samples=1):
  return play(lambda turn: TEXTS[turn.branch], samples=samples, branches=len(TEXTS))


def test_the_episode_goes_on_from_the_candidate_that_earns_most():
  batch, path = tree(), play(lambda turn: 'up')
  taken = batches.taken(batch)
  assert [m.reward for m in taken.messages] == [1.0, 1.0, 1.0]  # its teammate's half is not paid
  columns = ('agent', 'round', 'layer', 'written', 'read', 'readers', 'text', 'read_from', 'taken')
  for field in columns:
    assert [*getattr(taken, field)] == [*getattr(path, field)], field
  assert (taken.answers, taken.task_scores.tolist()) == (path.answers, path.task_scores.tolist())
  rivals = collections.defaultdict(list)
  for m in batch.messages:
    if not m.taken:
      rivals[m.agent, m.round].append((m.text, m.reward, m.readers))
  assert list(rivals) == [(0, 0), (1, 0), (0, 1)]
  for found in rivals.values():
    assert found == [('so', 0.0, 0), ('', 0.0, 0), ('up', 1.0, 0), ('so so', 0.0, 0)]
  prompts = {(m.agent, m.round): m.prompt_ids.tobytes() for m in path.messages}
  assert all(m.prompt_ids.tobytes() == prompts[m.agent, m.round] for m in batch.messages)


def test_agents_of_a_layer_have_joint_candidates():
  says = {(0, 0): 'up', (1, 0): 'up', (0, 1): 'so', (1, 1): 'up'}  # by (agent, branch)
  batch = play(lambda turn: says[turn.agent, turn.branch], branches=2, topology='debate', rounds=1)
  taken = [(m.agent, m.text, m.reward) for m in batch.messages if m.taken]
  assert taken == [(0, 'so', 0.5), (1, 'up', 1.0)]
  left = [(m.agent, m.text, m.reward) for m in batch.messages if not m.taken]
  assert left == [(0, 'up', 0.5), (1, 'up', 0.5)]


def test_advantages_compare_the_candidates_for_one_turn():
  price, batch = 0.1, tree(samples=2)
  returns = returns_to_go(batch, 0.0)
  terms = communication.reward_terms(RewardOptions(gate='always'), batch, price, returns=returns)
  inputs = estimator_inputs(
    batch, terms, grouping='episode_turn_agent', probability=np.full(1, 0.5)
  )
  found = estimators.advantage(inputs, 'group_std', costs='inside').values
  expected, siblings = np.zeros(len(found)), collections.defaultdict(list)
  for i, m in enumerate(batch.messages):
    siblings[m.episode, m.agent, m.round].append((i, m.reward - price * m.written))
  assert len(siblings) == 2 * 3
  for group in siblings.values():
    assert len(group) == len(TEXTS)
    mean = sum(reward for _, reward in group) / len(group)
    deviation = (sum((reward - mean) ** 2 for _, reward in group) / len(group)) ** 0.5
    for i, reward in group:
      expected[i] = (reward - mean) / deviation
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  # Metrics: an episode costs what its own messages cost.
  summary = communication.summary(RewardOptions(), terms, batch)
  assert summary['reward/token_cost'] == pytest.approx(3 * price)
  assert metrics.of_candidates(batch) == {'tokens/candidates_per_question': 3 * (1 + 1 + 1 + 2)}
  assert metrics.of_candidates(batches.taken(batch)) == {}


def test_mars2_knows_the_tree_of_a_rollout():
  """Gives each step five candidates, of which two earn 1; the first of these is continued."""
  batch = tree(samples=2)
  terms = communication.reward_terms(RewardOptions(), batch, 0.0, returns=returns_to_go(batch, 0.0))
  inputs = estimator_inputs(
    batch, terms, grouping='episode_turn_agent', probability=np.full(1, 0.5)
  )
  found = estimators.advantage(inputs, 'mars2').values
  # Baselines: siblings alone in the first turn, where both episodes have one root, else half of
  # the parent's 1.
  first = {1.0: 1 + 0.5 * (1 - 3 / 9), 0.0: -0.5 * 4 / 9}
  later = {1.0: 1 + 0.5 * (1 - (0.5 + 0.5 * 1 / 4)), 0.0: -0.5 * (0.5 + 0.5 * 2 / 4)}
  shaped = np.array([(later if m.agent or m.round else first)[m.reward] for m in batch.messages])
  for agent in (0, 1):
    own = shaped[batch.agent == agent]
    expected = (own - own.mean()) / own.std()
    np.testing.assert_allclose(found[batch.agent == agent], expected, rtol=1e-4)


def test_candidates_are_learned_and_share_their_prompt():
  batch = tree()
  (pack,) = train_batches.pack_messages(batch.messages, pack_length=96, micro_batch_size=1)
  learned = pack.loss_target[pack.loss_mask > 0]
  written = np.concatenate([m.token_ids for m in batch.messages])
  assert sorted(learned.tolist()) == sorted(written.tolist())
  paths = {m.path[:n].tobytes() for m in batch.messages for n in range(1, len(m.path))}
  assert (pack.subtree_end[0] > np.arange(1, 97)).sum() + 1 <= len(paths) < 96


def test_candidates_have_keys_of_their_own():
  policy = ModelPolicy(None, {}, keys.stream(0, 'train'), step=3, temperature=1.0)
  turn = Turn(Question('q', '', ''), 0, 0, 0, np.arange(3), {}, 4, (0,))
  turns = [
    dataclasses.replace(turn, sample=s, agent=a, round=r, branch=b)
    for s in (0, 1)
    for a in (0, 1)
    for r in (0, 1)
    for b in (0, 1, 999)
  ]
  found = np.asarray(jax.random.key_data(policy.row_keys(turns)))
  assert len({row.tobytes() for row in found}) == len(turns)
  alone = np.asarray(jax.random.key_data(policy.row_keys(turns[4:5])))
  np.testing.assert_array_equal(found[4:5], alone)
  first = [dataclasses.replace(t, branch=0) for t in turns[::3]]
  np.testing.assert_array_equal(found[::3], jax.random.key_data(policy.row_keys(first)))


def test_transcripts_show_all_candidates():
  batch = tree()
  record, *_ = transcripts.records(
    batch, [0], [TOKENIZER] * len(batch.agent_names), step=1, split='train'
  )
  shown = [(m['text'], m.get('taken', True)) for m in record['messages'][:5]]
  assert shown == [('up', True), ('so', False), ('', False), ('up', False), ('so so', False)]
  # All that an author's chosen messages read and wrote is one text.
  first = ' '.join(
    ' '.join([m['prompt'], *(text for text, _ in m['tokens'])])
    for m in record['messages']
    if m['agent'] == 'a1' and m.get('taken', True)
  )
  last = [m for m in batch.messages if m.taken and m.agent == 0][-1]
  assert first.split() == TOKENIZER.decode(last.path.tolist()).split()
  assert records.as_text(record).count('(not taken)') == 3 * 4


WORDS = ['b2', 'walls', 'to', 'a1-a2', 'a1', 'z9', 'go']
MAZE = HalfMaze(view='full')
MAZE_TOKENIZER = word_level([*MAZE.vocabulary(), ';', 'say', 'move', 'z9'])


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(st.lists(st.lists(st.sampled_from(WORDS), max_size=8), min_size=1, max_size=3))
def test_a_malformed_candidate_earns_nothing_beside_one_that_wins(texts):
  config = config_file.get_config('alone').team.to_dict()
  question = MAZE.questions('test')[0]
  start = MAZE.begin(question, 0)
  path = MAZE.shortest_path(start.cell, start.goal, start.walls, random.Random(0))
  texts = [' '.join(words[: words.index('go')] if 'go' in words else words) for words in texts]
  says = [*texts, ' '.join(['go', *path])]
  script = ScriptedPolicy(lambda turn: says[turn.branch], MAZE_TOKENIZER)
  batch = rollout(
    make_team(config), MAZE, MAZE_TOKENIZER, [question], 1, script, branches=len(says)
  )
  assert [(m.text, m.reward) for m in batch.messages if m.taken] == [(says[-1], 1.0)]
  assert [(m.text, m.reward) for m in batch.messages if not m.taken] == [(t, 0.0) for t in texts]


def valid(**fields):
  config = config_file.get_config()
  given = {'rollout.branches': 4, 'reward.discount': 0.0, 'advantage.grouping': '', **fields}
  with config.unlocked():
    for field, value in given.items():
      config.update_from_flattened_dict({field: value})
  return config.to_dict()


def test_branches_are_compared_unless_said_otherwise():
  parts = config_lib.check(valid(**{'rollout.group_size': 1}))
  assert parts.config.advantage.grouping == 'episode_turn_agent'
  assert config_lib.check(valid(**{'advantage.name': 'mars2'})).config.rollout.branches == 4


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'rollout.branches': 1, 'advantage.grouping': 'episode_turn_agent'}, 'branches to 2 or more'),
    (
      {'task.name': 'relay', 'task.options': {'whole_problem': True}},
      "task 'relay' is not an environment: .* Set rollout.branches=1",
    ),
    ({'advantage.grouping': 'question'}, "Set advantage.grouping='episode_turn_agent'"),
    ({'reward.discount': 1.0}, r'reward.discount=1.0 with rollout.branches=4, .* Set .*=0\.'),
    ({'reward.p_read': 0.5}, r'Set reward.p_read=0\.'),
    ({'reward.credit': 'episode'}, "Set reward.credit='own_cost'"),
    ({'budget.lambda_rep': 0.1}, r'Set budget.lambda_rep=0\.'),
    ({'selection.resample': 2}, r'Set selection.resample=0\.'),
    ({'objective.ratio_span': 'episode'}, "Set objective.ratio_span='message'"),
    ({'learner.order': 'reverse_turns'}, "Set learner.order='shuffled'"),
    ({'advantage.name': 'rloo'}, "advantage.name='rloo' with rollout.branches=4: it also reads ep"),
  ],
)
def test_what_needs_whole_episodes_is_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    config_lib.check(valid(**fields))
