"""Checks that a rollout in parts holds the same conversations."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import scripted_teams as st

from agent_gspo.teams.rollout import rollout


def assert_equal(one, other) -> None:
  for field in dataclasses.fields(one):
    if field.name != 'messages':
      assert list(getattr(one, field.name)) == list(getattr(other, field.name)), field.name
  for a, b in zip(one.messages, other.messages, strict=True):
    np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=1e-5)
    for field in dataclasses.fields(a):
      if field.name == 'logprobs':
        continue
      np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name), field.name)


@pytest.mark.parametrize('name', ['chain', 'debate', 'layered'])
@pytest.mark.parametrize('parts', [2, 3, 9])
def test_parts_change_nothing_but_rounding(name, parts):
  policy, tokenizer = st.model_policy()
  team = st.team(name, rounds=2)
  told = []
  talk = lambda parts: rollout(
    team,
    st.Echo(),
    tokenizer,
    st.questions(5, notes=2),
    2,
    policy,
    progress=lambda done, total: told.append((done, total)),
    parts=parts,
  )
  whole = talk(1)
  assert told == [(done, len(team.turns)) for done in range(len(team.turns) + 1)]
  told.clear()
  assert_equal(talk(parts), whole)
  layers = len(team.turns) * min(parts, 5)
  assert told == [(done, layers) for done in range(layers + 1)]


def test_while_one_part_is_written_the_other_is_read():
  """Grades the first part only once the policy writes for the second."""
  tokenizer = st.byte_tokenizer()
  writes_second = threading.Event()

  class Waiting(st.Echo):
    def score(self, question, answer_text):
      assert question.id != 'q0' or writes_second.wait(30)
      return 1.0

  def ids(turn):
    if turn.question.id == 'q1':
      writes_second.set()
    return [tokenizer.eos_id], True

  batch = rollout(
    st.team('single'), Waiting(), tokenizer, st.questions(2), 1, st.IdsPolicy(ids), parts=2
  )
  assert batch.task_scores.tolist() == [1.0, 1.0]


def test_the_policy_writes_for_one_part_at_a_time():
  tokenizer = st.byte_tokenizer()
  inside, most = [], []

  def ids(turn):
    inside.append(turn)
    most.append(len(inside))
    threading.Event().wait(0.002)
    inside.remove(turn)
    return [tokenizer.eos_id], True

  rollout(
    st.team('debate', rounds=3),
    st.Echo(),
    tokenizer,
    st.questions(4),
    1,
    st.IdsPolicy(ids),
    parts=4,
  )
  assert set(most) == {1}


def test_own_episodes_of_all_parts_go_on_one_at_a_time():
  """Their code need not be thread-safe."""
  tokenizer, inside = st.byte_tokenizer(), []

  class Own(st.Echo):
    def converse(self, talk):
      for round_ in range(3):
        inside.append(talk)
        threading.Event().wait(0.002)
        assert inside == [talk]
        inside.remove(talk)
        yield from talk.turn(0, round_)
      return ''

  ids = lambda turn: ([tokenizer.eos_id], True)
  team = st.team('single', rounds=3)
  rollout(team, Own(), tokenizer, st.questions(4), 1, st.IdsPolicy(ids), parts=4)


@pytest.mark.parametrize('broken', ['q0', 'q1'])
def test_an_error_in_one_part_ends_the_others_before_their_next_turn(broken):
  tokenizer = st.byte_tokenizer()
  failed = threading.Event()
  later: list[int] = []

  def ids(turn):
    if failed.is_set():
      later.append(turn.round)
      threading.Event().wait(0.05)
    if turn.question.id == broken and turn.round == 1:
      failed.set()
      raise RuntimeError('out of memory')
    return [tokenizer.eos_id], True

  team, policy = st.team('single', rounds=50), st.IdsPolicy(ids)
  with pytest.raises(RuntimeError, match='out of memory'):
    rollout(team, st.Echo(), tokenizer, st.questions(2), 1, policy, parts=2)
  assert len(later) < 25  # of 50 turns of the other part
