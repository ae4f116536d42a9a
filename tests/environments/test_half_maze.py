"""Tests the half-maze: mazes, walks, demonstrations."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import random

import hypothesis
import hypothesis.strategies as st
import pytest

from agent_gspo.environments.half_maze import HalfMaze, Piece
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.tasks.registry import make_task
from agent_gspo.teams.policies import Reply, ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from agent_gspo.types import Question
from configs import half_maze as config_file

SMALL = HalfMaze()
TOKENIZER = word_level([*SMALL.vocabulary(), ';', 'say', 'move'])


def reached(task, state) -> dict[str, int]:
  """Returns the number of paths from the piece's cell to each cell without backtracking."""
  ways, todo = {}, [(state.cell, '')]
  while todo:
    cell, before = todo.pop()
    ways[cell] = ways.get(cell, 0) + 1
    assert len(todo) < 99  # a loop
    for edge in task._edges:
      pair = edge.split('-')
      if cell in pair and edge not in state.walls:
        other = pair[pair[0] == cell]
        if other != before:
          todo.append((other, cell))
  return ways


@pytest.mark.parametrize('size', [3, 4, 5])
def test_every_two_cells_are_joined_by_one_path(size):
  task = HalfMaze(size=size)
  for i in range(40):
    state = task.begin(task.questions('train')[i], 0)
    assert reached(task, state) == dict.fromkeys(task._cells, 1)
    path = task.shortest_path(state.cell, state.goal, state.walls, random.Random(0))
    assert len(path) >= size


def test_questions_depend_on_the_seed_and_splits_share_no_maze():
  mazes = lambda task, split: [
    task.begin(task.questions(split)[i], sample) for i in range(200) for sample in (0, 1)
  ]
  first = mazes(SMALL, 'train')
  assert first == mazes(HalfMaze(), 'train')
  assert first[::2] == first[1::2]  # all samples of a question have one maze
  assert first != mazes(HalfMaze(seed=1), 'train')
  walls = [
    {tuple(sorted(x.walls)) for seed in (0, 1) for x in mazes(HalfMaze(seed=seed), split)}
    for split in ('train', 'validation', 'test')
  ]
  assert min(map(len, walls)) > 10
  assert not walls[0] & walls[1] | walls[0] & walls[2] | walls[1] & walls[2]


def test_each_agent_sees_its_part_and_together_they_see_all():
  state = SMALL.begin(SMALL.questions('train')[0], 0)
  first, second = SMALL.known(state, 0), SMALL.known(state, 1)
  assert not first & second
  assert first | second == {*state.walls}
  assert HalfMaze(view='full').known(state, 1) == {*state.walls}
  assert SMALL.observe(state, 0) == f'{state.cell} to {state.goal} : {" ".join(sorted(first))}'


MAZE = Piece('a1', 'c1', ('b1-c1', 'a1-a2', 'a2-b2', 'b3-c3'))


@pytest.mark.parametrize(
  ('text', 'cell', 'note', 'found', 'done'),
  [
    ('go b1 b2 c2 c1', 'c1', '', (), True),
    ('I see b3-c3 go b1 b2', 'b2', '', (), False),
    ('go b1 c1 b2', 'b1', 'wall', ('b1-c1',), False),  # a wall ends the walk
    ('go c1', 'a1', 'far', (), False),
    ('go b1 please', 'b1', 'far', (), False),
    ('go b1 go b2', 'b1', 'far', (), False),
    ('b1 b2 c2 c1', 'a1', '', (), False),  # talk
    ('go', 'a1', '', (), False),
    ('go b1 b2 c2 c1 c2', 'c1', '', (), True),
  ],
)
def test_a_walk_ends_where_no_step_leads_on(text, cell, note, found, done):
  state, rewards, over = SMALL.act(MAZE, {1: text})
  assert (state.cell, state.note, state.found, over) == (cell, note, found, done)
  assert rewards == float(done)
  assert {*found} <= SMALL.known(state, 0) & SMALL.known(state, 1)  # from now on all know it


_WORDS = st.sampled_from(['go', '-', 'a1-a2', 'z9', '', '\x00', 'A1', *SMALL._cells])
_TEXTS = st.one_of(st.text(max_size=40), st.lists(_WORDS, max_size=12).map(' '.join))


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.dictionaries(st.integers(0, 1), _TEXTS, min_size=1))
def test_no_text_is_an_error_or_earns_a_reward_away_from_the_goal(texts):
  before = pickle.dumps(MAZE)
  state, reward, done = SMALL.act(MAZE, texts)
  assert pickle.dumps(MAZE) == before
  assert state.cell in SMALL._cells
  assert done == (state.cell == state.goal)
  assert reward == float(done)
  assert pickle.loads(pickle.dumps(state)) == copy.deepcopy(state) == state
  assert {*state.found} <= {*state.walls}
  for agent in (0, 1):
    words = SMALL.observe(state, agent).split()
    assert {*words} <= {*SMALL.vocabulary()}


_IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=12)
_MORE = st.lists(st.sampled_from([*SMALL.vocabulary(), ';', '']), max_size=9).map(' '.join)


class Odd(HalfMaze):
  """Adds words to its observations."""

  def observe(self, state, agent):
    return f'{super().observe(state, agent)} {self.more}'


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.lists(_IDS, min_size=1), _MORE)
def test_no_episode_of_odd_tokens_and_observations_fails_or_pays_away_from_the_goal(said, more):
  task = Odd()
  task.more = more
  team = make_team({**config_file.get_config().team.to_dict(), 'rounds': 3})
  written = itertools.cycle(said)
  asked = [task.questions('test')[0]] * 2
  policy = lambda turns: [Reply.given(next(written)[: turn.limit], True) for turn in turns]
  batch = rollout(team, task, TOKENIZER, asked, 2, policy)
  for e, score in enumerate(batch.task_scores):
    earned = sum(m.reward for m in batch.messages if m.episode == e)
    assert earned == (2 if score else 0)


@pytest.mark.parametrize(
  ('options', 'agents', 'right'),
  [
    ({}, ('guide', 'mover'), 1.0),
    ({'size': 5}, ('guide', 'mover'), 1.0),
    ({'size': 5, 'gaps': 8}, ('guide', 'mover'), 1.0),
    ({'view': 'full'}, ('mover',), 1.0),
    ({'view': 'half'}, ('mover',), 0.9),
  ],
)
def test_demonstrations_solve_what_their_agents_can_know(options, agents, right):
  task = make_task('half_maze', **options)
  config = config_file.get_config().team.to_dict()
  config |= {'agents': agents, 'max_message_tokens': 40}
  team = make_team({**config, 'topology': 'complete' if len(agents) > 1 else 'single'})
  rng = random.Random(0)

  def script(turn):
    heard = [turn.delivered.get(agent, '') for agent in range(len(agents))]
    return task.demonstration(
      turn.question,
      turn.agent,
      heard,
      rng,
      state=turn.state,
      terse_probability=0.5,
      silence_probability=0.0,
    )

  tokenizer = word_level([*task.vocabulary(), ';', 'say', 'move'])
  asked = [task.questions('test')[i] for i in range(50)]
  batch = rollout(team, task, tokenizer, asked, 1, ScriptedPolicy(script, tokenizer))
  scores = batch.task_scores.tolist()
  if right == 1:
    assert scores == [1.0] * 50
    assert {m.round for m in batch.messages} == {0}
  else:
    assert 0.1 < sum(scores) / 50 < right
  rewards = sum(m.reward for m in batch.messages)
  assert rewards == sum(scores) * len(agents)  # one to each


def test_what_has_no_maze_is_refused():
  with pytest.raises(ValueError, match="question 'asked-1' has no maze"):
    SMALL.begin(Question('asked-1', 'a1 to c3', ''), 0)
  with pytest.raises(ValueError, match=r'task\.options\.size=1 '):
    HalfMaze(size=1)
  with pytest.raises(ValueError, match=r'task\.options\.gaps=1: must be at most 0 with'):
    HalfMaze(gaps=1)
  with pytest.raises(ValueError, match=r"task.options.view='some' is unknown"):
    dataclasses.replace(SMALL, view='some')
