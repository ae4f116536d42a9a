"""Rewards: what each cost, gate and credit charges, and the bound on the price."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
import scripted_teams as st

from agent_gspo.algorithms import advantages
from agent_gspo.rewards import communication
from agent_gspo.rewards.communication import RewardOptions
from agent_gspo.teams import accountant
from agent_gspo.teams.rollout import rollout

COMBINATIONS = list(
  itertools.product(communication.COSTS, communication.GATES, communication.CREDITS)
)


def talk(team, lengths, samples=4):
  """A conversation of 3 questions; `lengths(turn)` tokens a message, the first one repeated."""
  tokenizer = st.numbers_tokenizer(100)
  first = tokenizer.backend.token_to_id('0')

  def ids(turn):
    length = lengths(turn)
    ended = length < turn.limit
    word = first + len(turn.question.id) + turn.agent
    return [*[word] * length, *[tokenizer.eos_id] * ended], ended

  return rollout(team, st.Echo(), tokenizer, st.questions(3), samples, st.IdsPolicy(ids))


def random_lengths(seed):
  def lengths(turn):
    key = f'{seed}/{turn.question.id}/{turn.sample}/{turn.agent}/{turn.round}'
    return random.Random(key).choice([0, 1, 4, turn.limit])

  return lengths


def by_hand(options: RewardOptions, batch, scores, price: float) -> list[float]:
  """The reward of every message, from the definition, one message at a time."""
  groups = [episode.question for episode in batch.episodes]
  charged = []
  for e, score in enumerate(scores):
    group = [s for s, g in zip(scores, groups, strict=True) if g == groups[e]]
    charged.append(
      {
        'always': True,
        'correct': score == 1,
        'group_accuracy': sum(group) / len(group) >= options.gate_accuracy,
      }[options.gate]
    )
  own = []
  for m in batch.messages:
    layer = [
      o for o in batch.messages if (o.episode, o.round, o.layer) == (m.episode, m.round, m.layer)
    ]
    written = m.written
    if options.cost == 'critical_path':
      longest = max(o.written for o in layer)
      written = m.written if m is next(o for o in layer if o.written == longest) else 0
    cost = options.p_write * written + options.p_read * written * m.readers
    if options.cost == 'money':
      cost = (options.p_write * m.written + options.p_read * m.read) / 1e6
    words = m.text.split()
    grams = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
    repeated = 1 - len(set(grams)) / len(grams) if grams else 0.0
    turn = 0 if m.text == '' else 1
    own.append(price * cost + options.lambda_turn * turn + options.lambda_rep * repeated)
  rewards = []
  for i, m in enumerate(batch.messages):
    total = own[i]
    if options.credit == 'episode':
      total = sum(c for c, o in zip(own, batch.messages, strict=True) if o.episode == m.episode)
    rewards.append(scores[m.episode] - total * charged[m.episode])
  return rewards


@pytest.mark.parametrize(('cost', 'gate', 'credit'), COMBINATIONS)
@pytest.mark.parametrize('name', ['chain', 'star', 'complete'])
def test_reward_equals_its_definition(cost, gate, credit, name):
  batch = talk(st.team(name, rounds=2), random_lengths(name))
  scores = [1.0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]
  money = {'p_write': 2000.0, 'p_read': 100.0} if cost == 'money' else {'p_read': 0.25}
  options = RewardOptions(
    cost=cost,
    gate=gate,
    credit=credit,
    gate_accuracy=0.5,
    lambda_turn=0.01,
    lambda_rep=0.03,
    **money,
  )
  ledger = accountant.ledger(batch)
  texts = [m.text for m in batch.messages]
  terms = communication.reward_terms(options, ledger, np.array(scores), 0.002, texts)
  np.testing.assert_allclose(terms.total, by_hand(options, batch, scores, 0.002), atol=1e-6)
  np.testing.assert_array_equal(terms.task, [scores[m.episode] for m in batch.messages])
  assert terms.total.dtype == np.float32
  assert (terms.costs >= 0).all()
  assert (terms.token_cost > 0).any()
  assert (terms.turn_cost > 0).any()
  assert (terms.repetition_cost > 0).any()


def test_gate_opens_at_the_accuracy_it_names():
  batch = talk(st.team('single'), lambda turn: 2)
  scores = np.array([1.0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
  terms = lambda tau: communication.reward_terms(
    RewardOptions(gate='group_accuracy', gate_accuracy=tau),
    accountant.ledger(batch),
    scores,
    0.1,
    [m.text for m in batch.messages],
  )
  charged = lambda tau: [bool(c) for c in terms(tau).token_cost.reshape(3, 4).any(axis=1)]
  assert charged(0.0) == [True, True, True]
  assert charged(0.25) == [True, True, False]
  assert charged(0.5) == [True, False, False]
  assert charged(0.6) == [False, False, False]
  assert terms(0.5).token_cost[:4].tolist() == pytest.approx([0.2] * 4)


def test_a_price_of_zero_costs_nothing():
  batch = talk(st.team('complete'), random_lengths(0))
  terms = communication.reward_terms(
    RewardOptions(p_read=1.0), accountant.ledger(batch), np.ones(12), 0.0, ['x'] * 36
  )
  assert not terms.costs.any()
  np.testing.assert_array_equal(terms.total, 1.0)


@pytest.mark.parametrize(
  ('text', 'share'),
  [
    ('', 0.0),
    ('a b', 0.0),
    ('a b c d', 0.0),
    ('a b c a b c', 1 / 4),
    ('a a a a a', 2 / 3),
    ('a b c\na b  c', 1 / 4),
  ],
)
def test_repetition_is_the_share_of_trigrams_seen_before(text, share):
  assert communication.repetition([text, 'x']).tolist() == pytest.approx([share, 0.0])


@pytest.mark.parametrize('normalize', advantages.NORMALIZATIONS)
@pytest.mark.parametrize('gate', communication.GATES)
def test_right_and_short_is_better_than_right_and_long(normalize, gate):
  batch = talk(st.team('single'), lambda turn: turn.sample + 1)
  scores = np.array([1.0, 1, 1, 0] * 3)
  terms = communication.reward_terms(
    RewardOptions(gate=gate), accountant.ledger(batch), scores, 0.01, [''] * 12
  )
  first, second, third, wrong = terms.total[:4]
  assert first > second > third > wrong
  groups = np.repeat(np.arange(3), 4)
  found = advantages.advantages(normalize, terms.task, terms.costs, groups)
  first, second, third, wrong = np.asarray(found)[:4]
  assert first > second > third > wrong


# The bound.


@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
@pytest.mark.parametrize('cost', ['tokens', 'critical_path'])
@pytest.mark.parametrize(('p_read', 'cap'), [(0.0, 0), (0.5, 0), (0.5, 9)])
def test_no_episode_costs_more_than_the_bound_says(name, cost, p_read, cap):
  options = RewardOptions(cost=cost, p_read=p_read)
  team = st.team(name, rounds=2, max_episode_tokens=cap)
  bound = communication.max_episode_cost(options, team)
  for seed in range(3):
    ledger = accountant.ledger(talk(team, random_lengths(seed), samples=1))
    costs = communication.message_costs(options, ledger)
    assert np.bincount(ledger.episode, costs).max() <= bound + 1e-9
  everything = accountant.ledger(talk(team, lambda turn: turn.limit, samples=1))
  reached = np.bincount(everything.episode, communication.message_costs(options, everything)).max()
  if not cap:
    assert reached == pytest.approx(bound)


@pytest.mark.parametrize('cost', ['tokens', 'critical_path'])
@pytest.mark.parametrize('credit', communication.CREDITS)
@pytest.mark.parametrize('name', ['single', 'chain', 'complete', 'layered'])
def test_within_the_bound_right_always_beats_wrong_and_silent(cost, credit, name):
  options = RewardOptions(cost=cost, p_read=0.5, credit=credit, lambda_turn=0.005, lambda_rep=0.01)
  team = st.team(name, rounds=2)
  turns = sum(len(layer) for _, _, layer in team.turns)
  price = 0.999 * (1 - 0.015 * turns) / communication.max_episode_cost(options, team)
  communication.check_bound(options, price, team)  # no error, no warning
  with pytest.raises(ValueError, match='a wrong and silent episode can outrank a right one'):
    communication.check_bound(options, price * 1.01, team)
  for lengths in (lambda turn: turn.limit, random_lengths(name)):
    batch = talk(team, lengths)
    texts = [m.text for m in batch.messages]
    ledger = accountant.ledger(batch)
    right = communication.reward_terms(options, ledger, np.ones(12), price, texts)
    assert right.total.min() > 0  # a wrong and silent episode has reward 0


def test_bound_names_the_remedy():
  team = st.team('star', max_message_tokens=20)
  options = RewardOptions()
  with pytest.raises(
    ValueError, match=r'Keep lambda_tok below 0.017, or set reward.gate="correct"'
  ):
    communication.check_bound(options, 0.02, team)
  with pytest.raises(ValueError, match=r'Lower reward.lambda_turn or lambda_rep'):
    communication.check_bound(RewardOptions(lambda_turn=0.5), 0.0, team)
  for gate in ('correct', 'group_accuracy'):
    with pytest.warns(UserWarning, match=f"The gate '{gate}' stands before it"):
      communication.check_bound(RewardOptions(gate=gate), 0.02, team)
  communication.check_bound(options, 0.01, team)
  # A cap on the episode is a bound as well; prompts have no known length.
  communication.check_bound(options, 0.02, st.team('star', max_episode_tokens=40))
  communication.check_bound(dataclasses.replace(options, cost='money'), 1.0, team)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'cost': 'time'}, "reward.cost='time' is unknown; use one of tokens"),
    ({'gate': 'never'}, "reward.gate='never' is unknown; use one of always"),
    ({'credit': 'all'}, "reward.credit='all' is unknown; use one of own_cost"),
    ({'p_write': -1.0}, r'reward.p_write=-1.0 is negative'),
    ({'p_read': -1.0}, r'reward.p_read=-1.0 is negative'),
    ({'lambda_turn': -1.0}, r'reward.lambda_turn=-1.0 is negative'),
    ({'lambda_rep': -1.0}, r'reward.lambda_rep=-1.0 is negative'),
    ({'gate_accuracy': 1.5}, r'reward.gate_accuracy=1.5 is not between 0 and 1'),
  ],
)
def test_option_errors_name_the_field(fields, message):
  with pytest.raises(ValueError, match=message):
    RewardOptions(**fields)


@pytest.mark.parametrize('credit', communication.CREDITS)
def test_summary_keeps_the_terms_apart(credit):
  batch = talk(st.team('star'), lambda turn: 2)
  options = RewardOptions(lambda_turn=0.01, credit=credit)
  terms = communication.reward_terms(
    options, accountant.ledger(batch), np.ones(12), 0.005, [''] * 36
  )
  found = communication.summary(options, terms, 12)
  assert found['reward/task'] == 1.0
  assert found['reward/token_cost'] == pytest.approx(3 * 2 * 0.005)
  assert found['reward/turn_cost'] == pytest.approx(3 * 0.01)
  assert found['reward/repetition'] == 0.0
  messages = 3 if credit == 'episode' else 1
  assert found['reward/mean'] == pytest.approx(1 - messages * (2 * 0.005 + 0.01))
