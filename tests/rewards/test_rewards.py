"""Tests charges of each cost, gate and credit, and the bound on the price."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import types

import numpy as np
import pytest
import scripted_teams as st
from advantage_batches import NORMALIZATIONS, normalized

from agent_gspo.algorithms.advantages import groups as groups_lib
from agent_gspo.algorithms.options import BudgetOptions
from agent_gspo.rewards import bounds, communication
from agent_gspo.rewards import options as reward_options
from agent_gspo.rewards.length_rewards import LENGTH_REWARDS
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.teams import batches
from agent_gspo.teams.rollout import rollout

LAMBDA_MESSAGE, MESSAGE_LIMIT = 0.005, 2.5
LAMBDA_TURN, LAMBDA_REP = 0.01, 0.03
# Costs are always charged unless a test sets a gate.
options_of = functools.partial(RewardOptions, gate='always', gate_accuracy=0.0)
COMBINATIONS = list(
  itertools.product(reward_options.COSTS, reward_options.GATES, reward_options.CREDITS)
)


def talk(team, lengths, samples=4):
  """Returns a conversation of 3 questions with `lengths(turn)` equal tokens per message."""
  tokenizer = st.numbers_tokenizer(100)
  first = tokenizer.backend.token_to_id('0')

  def ids(turn):
    length = lengths(turn)
    ended = length < turn.limit
    word = first + len(turn.question.id) + turn.agent
    return [*[word] * length, *[tokenizer.eos_id] * ended], ended

  return rollout(team, st.Echo(), tokenizer, st.questions(3), samples, st.IdsPolicy(ids))


def terms_of(options, batch, scores, price, **given):
  """Returns the reward terms of a batch with these task scores."""
  batch = dataclasses.replace(batch, task_scores=np.asarray(scores, float))
  return communication.reward_terms(options, batch, price, **given)


def random_lengths(seed):
  def lengths(turn):
    key = f'{seed}/{turn.question.id}/{turn.sample}/{turn.agent}/{turn.round}'
    return random.Random(key).choice([0, 1, min(4, turn.limit), turn.limit])

  return lengths


def by_hand(options: RewardOptions, batch, scores, price: float) -> list[float]:
  """Returns the reward of every message by the definition, one at a time."""
  groups = batch.episode_question.tolist()
  accuracy = {}
  for g in groups:
    group = [s for s, other in zip(scores, groups, strict=True) if other == g]
    accuracy[g] = sum(group) / len(group)
  best = sorted(accuracy.values(), reverse=True)
  last = best[math.ceil(options.gate_fraction * len(best)) - 1]
  charged = [
    {
      'always': True,
      'correct': score == 1,
      'group_accuracy': accuracy[g] >= options.gate_accuracy,
      'top_groups': accuracy[g] >= max(last, 1e-9),
    }[options.gate]
    for score, g in zip(scores, groups, strict=True)
  ]
  grams = [m.text.split() for m in batch.messages]
  grams = [[tuple(w[i : i + 3]) for i in range(len(w) - 2)] for w in grams]
  own = []
  for index, m in enumerate(batch.messages):
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
    mates = [j for j, o in enumerate(batch.messages) if o.episode == m.episode]
    before = {g for j in mates if j < index for g in grams[j]}
    new = set(grams[index]) - before
    total = sum(len(grams[j]) for j in mates)
    repeated = (len(grams[index]) - len(new)) / total if total else 0.0
    turn = 0 if m.text == '' else 1
    over = LAMBDA_MESSAGE * max(0, m.written - MESSAGE_LIMIT)
    own.append(price * cost + LAMBDA_TURN * turn + LAMBDA_REP * repeated + over)
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
  options = options_of(
    cost=cost,
    gate=gate,
    credit=credit,
    gate_accuracy=0.5,
    gate_fraction=0.6,
    **money,
  )
  terms = terms_of(
    options,
    batch,
    scores,
    0.002,
    lambda_turn=LAMBDA_TURN,
    lambda_rep=LAMBDA_REP,
    lambda_message=LAMBDA_MESSAGE,
    message_limit=MESSAGE_LIMIT,
  )
  np.testing.assert_allclose(terms.total, by_hand(options, batch, scores, 0.002), atol=1e-6)
  np.testing.assert_array_equal(terms.task, [scores[m.episode] for m in batch.messages])
  assert terms.total.dtype == np.float32
  assert (terms.costs >= 0).all()
  assert (terms.token_cost > 0).any()
  assert (terms.turn_cost > 0).any()
  assert (terms.repetition_cost > 0).any()
  assert (terms.message_cost > 0).any()
  assert not terms.length_reward.any()


def test_gate_opens_at_the_accuracy_it_names():
  batch = talk(st.team('single'), lambda turn: 2)
  scores = np.array([1.0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
  terms = lambda tau: terms_of(
    options_of(gate='group_accuracy', gate_accuracy=tau), batch, scores, 0.1
  )
  charged = lambda tau: [bool(c) for c in terms(tau).token_cost.reshape(3, 4).any(axis=1)]
  assert charged(0.0) == [True, True, True]
  assert charged(0.25) == [True, True, False]
  assert charged(0.5) == [True, False, False]
  assert charged(0.6) == [False, False, False]
  assert terms(0.5).token_cost[:4].tolist() == pytest.approx([0.2] * 4)


@pytest.mark.parametrize('gate', ['group_accuracy', 'top_groups'])
def test_episodes_and_questions_without_messages_move_no_gate(gate):
  full = talk(st.team('single'), lambda turn: 2)
  options = options_of(gate=gate, gate_accuracy=1.0, gate_fraction=0.5)
  # An episode that nobody wrote in, and question ids of which every second is not there.
  sparse = dataclasses.replace(full, question=full.question * 2)
  scores = np.array([0.0] * 4 + [1.0] * 8)
  more = np.append(scores, 0.0)
  for batch, own in ((full, scores), (full, more), (sparse, more)):
    with np.errstate(all='raise'):
      terms = terms_of(options, batch, own, 0.1)
    np.testing.assert_allclose(terms.token_cost, np.repeat([0, 0.2, 0.2], 4), rtol=1e-6)
  lower = 0.5 if gate == 'top_groups' else 1.0  # the second of three groups, none, some, all right
  more[4:8] = lower
  open_ = communication.gate(options, dataclasses.replace(full, task_scores=more))
  assert open_.tolist() == [False] * 4 + [True] * 8 + [False]


@pytest.mark.parametrize(
  ('options', 'alone', 'charged'),
  [
    # Groups of new episodes: all right, none right, half right; an old group: three quarters.
    ({'gate': 'group_accuracy', 'gate_accuracy': 0.5}, [1, 0, 1], [1, 0, 1, 1]),
    ({'gate': 'group_accuracy', 'gate_accuracy': 1.0}, [1, 0, 0], [1, 0, 0, 0]),
    ({'gate': 'top_groups', 'gate_fraction': 0.3}, [1, 0, 0], [1, 0, 0, 0]),
    ({'gate': 'top_groups', 'gate_fraction': 0.6}, [1, 0, 1], [1, 0, 1, 1]),
    ({'gate': 'always'}, [1, 1, 1], [1, 1, 1, 1]),
  ],
)
def test_episodes_of_earlier_steps_are_charged_as_the_new_ones_of_their_question(
  options, alone, charged
):
  new = talk(st.team('single'), lambda turn: 2)
  scores = [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0]
  both = batches.join([new, new])
  place = np.array([0, 1, 2, 0, 1, 3])  # wrong ones, right ones, and an old group of its own
  old = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0]
  both = dataclasses.replace(
    both, question=place[both.question], task_scores=np.array([*scores, *old], float)
  )
  options = options_of(**options)
  first = dataclasses.replace(new, task_scores=np.array(scores, float))
  for gated in (communication.gate(options, first), communication.gate(options, first, 12)):
    assert gated.tolist() == np.repeat(alone, 4).astype(bool).tolist()
  gated = communication.gate(options, both, 12)
  assert gated.tolist() == np.array(charged)[np.repeat(place, 4)].astype(bool).tolist()
  terms = communication.reward_terms(options, both, 0.1, new=12)
  assert (terms.token_cost > 0).tolist() == gated[both.episode].tolist()


def test_a_limit_of_messages_is_kept_by_those_who_pay():
  batch = talk(st.team('star'), lambda turn: [0, 4, 6][turn.agent])
  written = lambda *agents: batch.written[np.isin(batch.agent, agents)].mean()
  length = lambda **given: communication.mean_length(options_of(**given), batch)
  assert length() == written(0, 1, 2)
  assert length(payers=batch.agent_names[:2]) == written(0, 1) != written(0, 1, 2)
  silent = dataclasses.replace(batch, agent=0 * batch.agent)
  assert communication.mean_length(options_of(payers=batch.agent_names[1:]), silent) == 0


def test_a_price_of_zero_costs_nothing():
  batch = talk(st.team('complete'), random_lengths(0))
  terms = terms_of(options_of(p_read=1.0), batch, np.ones(12), 0.0)
  assert not terms.costs.any()
  np.testing.assert_array_equal(terms.total, 1.0)


@pytest.mark.parametrize(
  ('texts', 'shares'),
  [
    ([], []),
    ([''], [0.0]),
    (['a b', ''], [0.0, 0.0]),
    (['a b c d'], [0.0]),
    (['a b c a b c'], [1 / 4]),
    (['a a a a a'], [2 / 3]),
    (['a b c\na b  c'], [1 / 4]),
    (['a b c', 'a b c'], [0.0, 1 / 2]),  # the author of the repetition pays
    (['a b c', '', 'x a b c', 'a b c'], [0.0, 0.0, 1 / 4, 1 / 4]),
    (['a b', 'c a b c'], [0.0, 0.0]),  # n-grams do not reach over messages
  ],
)
def test_repetition_is_the_share_of_trigrams_that_the_episode_has_seen(texts, shares):
  alone = communication.repetition(texts, np.zeros(len(texts), int))
  assert alone.tolist() == pytest.approx(shares)
  # Another episode in between, with the same words, changes nothing.
  both = [text for text in texts for _ in range(2)]
  found = communication.repetition(both, np.tile([0, 3], len(texts)))
  assert found[::2].tolist() == pytest.approx(shares)
  assert found[1::2].tolist() == pytest.approx(shares)


@pytest.mark.parametrize(
  ('accuracies', 'fraction', 'charged'),
  [
    ((1.0, 0.5, 0.0), 0.2, (True, False, False)),
    ((1.0, 0.5, 0.0), 0.5, (True, True, False)),
    ((0.5, 1.0, 1.0), 0.3, (False, True, True)),  # tied groups are admitted together
    ((1.0, 0.25, 0.0), 1.0, (True, True, False)),  # but never a group without a right answer
    ((0.0, 0.0, 0.0), 0.2, (False, False, False)),
  ],
)
def test_top_groups_are_the_best_answered_ones(accuracies, fraction, charged):
  batch = talk(st.team('single'), lambda turn: 2)
  scores = np.concatenate([np.arange(4) < 4 * a for a in accuracies]).astype(float)
  options = options_of(gate='top_groups', gate_fraction=fraction)
  terms = terms_of(options, batch, scores, 0.1)
  assert terms.token_cost.reshape(3, 4).astype(bool).all(axis=1).tolist() == list(charged)
  assert terms.token_cost.reshape(3, 4).astype(bool).any(axis=1).tolist() == list(charged)


@pytest.mark.parametrize(
  ('fraction', 'groups', 'charged'),
  [(0.28, 25, 7), (0.281, 25, 8), (0.14, 50, 7), (1 / 3, 9, 3), (1e-12, 9, 1), (1.0, 9, 9)],
)
def test_top_groups_are_no_more_than_their_fraction(fraction, groups, charged):
  """0.28 * 25 is 7.000000000000001."""
  full = talk(st.team('single'), lambda turn: 2)
  scores = np.linspace(0.1, 0.9, groups)
  batch = dataclasses.replace(
    batches.join([full] * 5),
    question=np.arange(60) % groups,
    task_scores=scores[np.arange(60) % groups],
  )
  gated = communication.gate(options_of(gate='top_groups', gate_fraction=fraction), batch)
  assert len(set(batch.question[gated[batch.episode]])) == charged


@pytest.mark.parametrize('credit', reward_options.CREDITS)
def test_length_reward_is_one_term_of_the_whole_episode(credit):
  batch = talk(st.team('star', rounds=2), random_lengths(1))
  scores = np.tile([1.0, 0, 1, 1], 3)
  options = options_of(
    length_reward='l1_exact', length_reward_options='target=7, alpha=0.01', credit=credit
  )
  terms = terms_of(options, batch, scores, 0.003)
  plain = terms_of(options_of(credit=credit), batch, scores, 0.003)
  written = [sum(m.written for m in batch.messages if m.episode == e) for e in range(12)]
  expected = [-0.01 * abs(7 - written[m.episode]) for m in batch.messages]
  np.testing.assert_allclose(terms.length_reward, expected, rtol=1e-5)
  np.testing.assert_allclose(terms.total, plain.total + expected, rtol=1e-5)
  np.testing.assert_allclose(terms.task - terms.costs, terms.total, rtol=1e-6)
  costs = communication.episode_costs(options, batch)
  np.testing.assert_array_equal(costs, written)


def test_hinge_is_the_only_charge_of_its_price():
  batch = talk(st.team('star'), lambda turn: 1 + turn.sample)  # 3, 6, 9, 12 tokens per episode
  options = options_of(length_reward='hinge', length_reward_options='limit=7')
  terms = terms_of(options, batch, np.ones(12), 0.01)
  assert not terms.token_cost.any()
  expected = {0: 0.0, 1: 0.0, 2: -0.02, 3: -0.05}
  for m, value in zip(batch.messages, terms.length_reward, strict=True):
    assert value == pytest.approx(expected[m.episode % 4], abs=1e-7)


def test_the_gate_stands_before_the_length_reward_too():
  batch = talk(st.team('single'), lambda turn: 3)
  scores = np.array([1.0, 0, 1, 0] + [0.0] * 8)
  options = options_of(
    gate='correct', length_reward='l1_exact', length_reward_options='target=13, alpha=0.1'
  )
  terms = terms_of(options, batch, scores, 0.0)
  np.testing.assert_allclose(terms.length_reward, -1.0 * scores)


def test_reference_nll_reaches_the_length_reward():
  batch = talk(st.team('single'), lambda turn: 2)
  options = options_of(length_reward='optima', length_reward_options='min_tokens=0')
  terms = lambda loss: terms_of(options, batch, np.ones(12), 0.0, reference_nll=loss)
  loss = np.linspace(1, 4, 12)
  by_message = loss[[m.episode for m in batch.messages]]
  np.testing.assert_allclose(
    terms(loss).length_reward - terms(None).length_reward, 0.5 / by_message, rtol=1e-5
  )


@pytest.mark.parametrize('normalize', NORMALIZATIONS)
@pytest.mark.parametrize('gate', reward_options.GATES)
def test_right_and_short_is_better_than_right_and_long(normalize, gate):
  batch = talk(st.team('single'), lambda turn: turn.sample + 1)
  scores = np.array([1.0, 1, 1, 0] * 3)
  terms = terms_of(options_of(gate=gate), batch, scores, 0.01)
  first, second, third, wrong = terms.total[:4]
  assert first > second > third > wrong
  groups = np.repeat(np.arange(3), 4)
  found = normalized(normalize, terms.task, terms.costs, groups)
  first, second, third, wrong = np.asarray(found)[:4]
  assert first > second > third > wrong


@pytest.mark.parametrize('name', LENGTH_REWARDS)
def test_silent_groups_and_silent_agents_have_finite_rewards_and_advantages(name):
  """Question 0: nobody speaks, every message is its EOS. Agent 1 never speaks at all."""

  def lengths(turn):
    if turn.question.id == 'q0' or turn.agent == 1:
      return 0
    return 1 + turn.sample

  batch = talk(st.team('star'), lengths)
  scores = np.array([1.0, 0, 0, 0] + [1, 1, 1, 0] + [0.0] * 4)
  needed = {'hinge': 'limit=3', 'overlong': 'limit=9, buffer=5'}
  target = 'target=3' if name in ('l1_exact', 'l1_max', 'laser') else ''
  options = options_of(
    length_reward=name, length_reward_options=needed.get(name, target), p_read=0.5
  )
  terms = terms_of(
    options,
    batch,
    scores,
    0.01,
    lambda_message=0.01,
    message_limit=2.0,
    budgets=np.full(len(scores), 3.0),
  )
  for part in (terms.token_cost, terms.turn_cost, terms.message_cost):
    assert not part[batch.silent].any()
  assert np.isfinite(terms.total).all()
  assert batch.silent[batch.agent == 1].all()
  groups = groups_lib.joint_ids(batch.question, batch.agent)
  for normalize in NORMALIZATIONS:
    found = normalized(normalize, terms.task, terms.costs, groups)
    assert np.isfinite(np.asarray(found)).all()


# The bound.


@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
@pytest.mark.parametrize('cost', ['tokens', 'critical_path'])
@pytest.mark.parametrize(('p_read', 'cap'), [(0.0, 0), (0.5, 0), (0.5, 9)])
@pytest.mark.parametrize(
  'charged', [{}, {'prices': {'agent1': 3.0}}, {'payers': ('agent1',), 'prices': {'agent1': 0.5}}]
)
def test_no_episode_costs_more_than_the_bound_says(name, cost, p_read, cap, charged):
  options = options_of(cost=cost, p_read=p_read, **charged)
  team = st.team(name, rounds=2, max_episode_tokens=cap)
  bound = bounds.max_episode_cost(options, team)
  for seed in range(3):
    batch = talk(team, random_lengths(seed), samples=1)
    costs = communication.message_costs(options, batch)
    assert np.bincount(batch.episode, costs).max() <= bound + 1e-9
  everything = talk(team, lambda turn: turn.limit, samples=1)
  reached = np.bincount(everything.episode, communication.message_costs(options, everything)).max()
  if not cap and not (charged and cost == 'critical_path'):
    assert reached == pytest.approx(bound)


def test_capped_episode_costs_at_most_its_cap_in_the_dearest_tokens():
  for p_read in (0.0, 0.5):
    team = st.team('star', max_message_tokens=20, max_episode_tokens=40)
    readers = [team.topology.readers(agent, r) for r, _, layer in team.turns for agent in layer]
    assert len(set(readers)) > 1
    found = bounds.max_episode_cost(options_of(p_read=p_read), team)
    assert found == pytest.approx(40 * (1 + p_read * max(readers)))


def test_bound_counts_those_that_pay_alone():
  team, budget = st.team('star'), BudgetOptions(lambda_turn=0.4)
  with pytest.raises(ValueError, match=r'budget\.lambda_turn times its 3 turns'):
    bounds.check_bound(options_of(), budget, team)
  assert bounds.check_bound(options_of(payers=('agent1', 'agent3')), budget, team) == ''


@pytest.mark.parametrize('cost', ['tokens', 'critical_path'])
@pytest.mark.parametrize('credit', reward_options.CREDITS)
@pytest.mark.parametrize('name', ['single', 'chain', 'complete', 'layered'])
def test_within_the_bound_right_always_beats_wrong_and_silent(cost, credit, name):
  options = options_of(cost=cost, p_read=0.5, credit=credit)
  prices = {'lambda_turn': 0.005, 'lambda_rep': 0.01}
  team = st.team(name, rounds=2)
  turns = sum(len(layer) for _, _, layer in team.turns)
  price = 0.999 * (1 - 0.005 * turns - 0.01) / bounds.max_episode_cost(options, team)
  assert bounds.check_bound(options, BudgetOptions(lambda_tok=price, **prices), team) == ''
  with pytest.raises(ValueError, match='a wrong and silent episode can outrank a right one'):
    bounds.check_bound(options, BudgetOptions(lambda_tok=price * 1.01, **prices), team)
  for lengths in (lambda turn: turn.limit, random_lengths(name)):
    batch = talk(team, lengths)
    right = terms_of(options, batch, np.ones(12), price, **prices)
    assert right.total.min() > 0  # a wrong and silent episode has reward 0


@pytest.mark.parametrize(
  ('gate', 'charged'),
  [
    ('correct', 'episodes that solved the task'),
    ('group_accuracy', 'questions of which 30% of the episodes are right'),
    ('top_groups', 'the best 20% of the questions of a step'),
  ],
)
def test_bound_warns_where_a_gate_alone_prevents_it(gate, charged):
  team = st.team('star', max_message_tokens=20)
  note = bounds.check_bound(
    options_of(gate=gate, gate_accuracy=0.3), BudgetOptions(lambda_tok=0.02), team
  )
  assert note.endswith(f'reward.gate={gate!r} charges {charged} only.')
  assert 'An episode at all its caps costs 1.2 (1.2 by lambda_tok=0.02 times 60' in note


def test_bound_of_a_capped_episode_and_of_prompts_of_unknown_length():
  capped = st.team('star', max_message_tokens=20, max_episode_tokens=40)
  assert bounds.check_bound(options_of(), BudgetOptions(lambda_tok=0.02), capped) == ''
  assert bounds.check_bound(options_of(cost='money'), BudgetOptions(lambda_tok=1.0), capped) == ''


def shaped(name, text, **fields):
  return {'length_reward': name, 'length_reward_options': text, **fields}


LIMIT = {'mode': 'dual', 'budget_message': 4.0, 'tolerance': 0.0}


@pytest.mark.parametrize(
  ('fields', 'price', 'given', 'found'),
  [
    # Missed by no more than rounding errors.
    ({}, (1 - 1e-12) / 18, {}, '>= 1, so'),
    ({}, (1 - 1e-7) / 18, {}, ''),
    (shaped('l1_exact', 'target=5, alpha=0.125'), 0.01, {}, 'Soften'),
    (shaped('l1_exact', f'target=5, alpha={(1 - 1e-12) / 8!r}'), 0.01, {}, 'Soften'),
    (shaped('l1_exact', f'target=5, alpha={(1 - 1e-7) / 8!r}'), 0.01, {}, 'Keep lambda_tok below'),
    # A told budget of half the cost punishes silence as much as the dearest episode.
    (shaped('told_budget', 'weight=0.5'), (1 - 1e-12) / 18, {}, '>= 1, so'),
    ({**shaped('told_budget', 'weight=0.5'), 'p_write': 0.0}, 0.05, {}, ''),  # nothing costs
    # Remedies.
    ({}, 0.06, {}, r'Keep lambda_tok below 0\.056, or set reward\.gate="correct"'),
    ({}, 0.0, {'lambda_turn': 0.5}, r'Lower budget\.lambda_turn, budget\.lambda_rep or'),
    (
      shaped('l1_exact', 'target=5, alpha=0.0625'),
      0.0,
      {'lambda_turn': 0.2},
      r'0\.5 by .* 1\.1 >= 1.* Lower budget\.lambda_turn',
    ),
    (shaped('hinge', 'limit=8'), 0.099, {}, ''),
    (shaped('hinge', 'limit=8'), 0.1, {}, r'Keep lambda_tok below 0\.1,'),
    ({}, 0.0, {'lambda_max': 0.16, **LIMIT}, ''),
    ({}, 0.0, {'lambda_max': 0.17, **LIMIT}, 'lambda_message=0.17 on messages beyond 4'),
    # 18 tokens in 3 messages of 6, 2 of each beyond the limit: (1 - 0.3 - 0.3 - 0.08) / 18.
    (
      shaped('l1_exact', 'target=5, alpha=0.01'),
      0.05,
      {'lambda_turn': 0.1, 'lambda_max': 0.05, **LIMIT},
      r'0\.9 by lambda_tok=0\.05 .* 0\.3 by budget\.lambda_turn times its 3 turns \+ 0\.3 by '
      r'lambda_message.* 0\.08 by reward\.length_reward=.l1_exact.: 1\.58 >= 1.* below 0\.018',
    ),
    # The price of money is unknown, other prices are not.
    ({'cost': 'money'}, 1.0, {}, ''),
    ({'cost': 'money'}, 1.0, {'lambda_turn': 0.5}, r'1\.5 by budget\.lambda_turn .* Lower budget'),
    # A wrong, silent episode misses its target by 18, which gate 'correct' does not charge.
    (shaped('l1_exact', 'target=36, alpha=0.03'), 0.0, {}, ''),
    (shaped('l1_exact', 'target=38, alpha=0.055', gate='correct'), 0.0, {}, 'costs 1.1 '),
  ],
)
def test_bound(fields, price, given, found):
  """Three messages of at most 6 tokens."""
  options, team = options_of(**fields), st.team('star')
  budget = BudgetOptions(lambda_tok=price, **given)
  if options.gate != 'always' or not found:
    warned = bounds.check_bound(options, budget, team)
    assert found in warned if found else not warned
  else:
    with pytest.raises(ValueError, match=found):
      bounds.check_bound(options, budget, team)


@pytest.mark.parametrize(
  ('name', 'safe', 'unsafe'),
  [
    ('l1_exact', 'target=5, alpha=0.01', 'target=5, alpha=0.2'),
    ('l1_max', 'target=18, alpha=0.1', 'target=5, alpha=0.1'),
    ('optima', 'min_tokens=5', 'min_tokens=19'),
    ('optima', 'min_tokens=0', 'min_tokens=0, token_weight=1'),
    ('kimi', 'weight=0.4', 'weight=2'),
    ('efficient', 'alpha=0.5', 'alpha=1.2'),  # above 1 where the others are right and short
    ('laser', 'target=5', None),
    ('laser', 'target=5, weight=1.5', None),  # a bonus for right answers alone
    ('overlong', 'limit=18, buffer=5', 'limit=18, buffer=5, weight=1'),
  ],
)
def test_bound_knows_the_length_rewards(name, safe, unsafe):
  """Tests a longest episode of 18 tokens."""
  team = st.team('star')
  bounds.check_bound(
    options_of(length_reward=name, length_reward_options=safe), BudgetOptions(), team
  )
  if unsafe is None:
    return
  options = options_of(length_reward=name, length_reward_options=unsafe)
  with pytest.raises(
    ValueError, match=f'by reward.length_reward={name!r}: .* Soften reward.length_reward_opt'
  ):
    bounds.check_bound(options, BudgetOptions(), team)
  if name != 'optima':  # which punishes right answers as well
    gated = dataclasses.replace(options, gate='group_accuracy')
    assert 'more than a right answer earns' in bounds.check_bound(gated, BudgetOptions(), team)


def test_what_the_bound_refuses_does_prefer_a_wrong_silence():
  """The refused options, through the reward itself, on one question; the accepted ones do not."""
  batch = talk(st.team('star'), lambda turn: (turn.limit, 0, 1, 0)[turn.sample])
  scores = np.tile([1.0, 0.0], 6)
  for name, text, wrong_wins in [
    ('l1_exact', 'target=5, alpha=0.2', True),
    ('l1_exact', 'target=5, alpha=0.01', False),
    ('kimi', 'weight=2.1', True),
    ('kimi', 'weight=0.4', False),
    ('efficient', 'alpha=0.5', False),
  ]:
    options = options_of(length_reward=name, length_reward_options=text)
    terms = terms_of(options, batch, scores, 0.0)
    right, wrong = (terms.total[batch.episode == e].mean() for e in (0, 1))
    assert (wrong > right) == wrong_wins, (name, text)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'cost': 'time'}, "reward.cost='time' is unknown; use one of tokens"),
    ({'prices': {'a': -1.0}}, 'reward.prices holds -1.0; must be numbers, 0 or more'),
    ({'prices': {'a': 'x'}}, "reward.prices holds 'x'; must be numbers"),
    ({'gate': 'never'}, "reward.gate='never' is unknown; use one of always"),
    ({'credit': 'all'}, "reward.credit='all' is unknown; use one of own_cost"),
    ({'gate_fraction': 0.0}, r'reward.gate_fraction=0.0 must be above 0 and at most 1'),
    (
      {'length_reward': 'lazer'},
      r"reward.length_reward='lazer' is unknown; .* Did you mean 'laser'\?",
    ),
    (
      {'length_reward': 'laser'},
      r"'laser' needs the option 'target'; set it in reward.length_reward_options",
    ),
    (
      {'length_reward_options': 'target=3'},
      r"length_reward_options.target is unknown; 'linear' takes none",
    ),
    (
      shaped('laser', 'targt=3'),
      r"options.targt is unknown; 'laser' takes target, weight. Did you mean 'target'\?",
    ),
    (shaped('laser', 'target=3,target=4'), r"'target' is given twice"),
    (shaped('laser', 'target=x'), r"target='x' is not a number"),
    (shaped('laser', 'target=0'), r'target=0.0 must be above 0'),
    (shaped('overlong', 'limit=0'), r'limit=0.0 must be above 0'),
    (shaped('optima', 'loss_floor=0'), 'loss_floor=0.0 must be above 0'),  # it is divided by
    (shaped('overlong', 'limit=5, buffer=5, weight=-1'), 'weight=-1.0 must be 0 or more'),
    (shaped('overlong', 'limit=100'), 'buffer=4096 must be at most limit=100'),
    (shaped('kimi', 'weight=-1'), r'weight=-1.0 must be 0 or more'),
    (shaped('kimi', 'weight=inf'), r'weight=inf must be a finite number'),
    ({'gate_accuracy': 1.5}, r'reward.gate_accuracy=1.5 must be at least 0 and at most 1'),
  ],
)
def test_option_errors_name_the_field(fields, message):
  with pytest.raises(ValueError, match=message):
    options_of(**fields)


@pytest.mark.parametrize(
  ('text', 'options'),
  [
    ('target=20', {'target': 20.0}),
    (' target = 2e1 , weight=0,', {'target': 20.0, 'weight': 0.0}),
  ],
)
def test_length_reward_options_are_read_from_text(text, options):
  assert (
    options_of(length_reward='laser', length_reward_options=text).length_reward_arguments == options
  )


@pytest.mark.parametrize('credit', reward_options.CREDITS)
def test_summary_keeps_the_terms_apart(credit):
  batch = talk(st.team('star'), lambda turn: 2)
  options = options_of(
    credit=credit, length_reward='l1_exact', length_reward_options='target=11, alpha=0.01'
  )
  prices = {'lambda_turn': 0.01, 'lambda_message': 0.004, 'message_limit': 1.0}
  terms = terms_of(options, batch, np.ones(12), 0.005, **prices)
  found = communication.summary(options, terms, batch)
  assert found['reward/task'] == 1.0
  assert found['reward/token_cost'] == pytest.approx(3 * 2 * 0.005)
  assert found['reward/turn_cost'] == pytest.approx(3 * 0.01)
  assert found['reward/repetition'] == 0.0
  assert found['reward/message_cost'] == pytest.approx(3 * 1 * 0.004)
  assert found['reward/shape'] == pytest.approx(-0.05)
  messages = 3 if credit == 'episode' else 1
  costs = messages * (2 * 0.005 + 0.01 + 0.004)
  assert found['reward/mean'] == pytest.approx(1 - costs - 0.05)


@pytest.mark.parametrize('credit', reward_options.CREDITS)
def test_summary_has_the_costs_of_those_who_pay(credit):
  batch = talk(st.team('star'), lambda turn: 2)
  terms = terms_of(options_of(credit=credit, payers=('agent2',)), batch, np.ones(12), 0.005)
  found = communication.summary(options_of(credit=credit, payers=('agent2',)), terms, batch)
  assert found['reward/token_cost'] == pytest.approx(2 * 0.005)


@pytest.mark.parametrize('credit', reward_options.CREDITS)
def test_summary_counts_each_episode_once(credit):
  """A cap ended one conversation after its first message, the other one after its third."""
  taken = np.ones(4, bool)
  batch = types.SimpleNamespace(
    episode=np.asarray([0, 1, 1, 1]), taken=taken, num_episodes=2, agent=np.zeros(4, int),
    agent_names=('agent',),
  )  # fmt: skip
  nothing = np.zeros(4, np.float32)
  cost = [0.4, 0.1, 0.2, 0.3] if credit == 'own_cost' else [0.4, 0.6, 0.6, 0.6]
  names = [field.name for field in dataclasses.fields(communication.RewardTerms)]
  terms = communication.RewardTerms(
    **{**dict.fromkeys(names, nothing), 'token_cost': np.asarray(cost, np.float32)}
  )
  found = communication.summary(options_of(credit=credit), terms, batch)
  assert found['reward/token_cost'] == pytest.approx((0.4 + 0.6) / 2)


def test_only_a_length_reward_that_reads_the_reference_needs_it():
  assert RewardOptions(length_reward='optima').needs_reference
  assert not RewardOptions(length_reward='linear').needs_reference


@pytest.mark.parametrize('credit', reward_options.CREDITS)
@pytest.mark.parametrize('cost', reward_options.COSTS)
def test_only_payers_pay(credit, cost):
  """Counts only the payers' tokens, and charges no one else."""
  batch = talk(st.team('complete'), lambda turn: 2)
  payers = batch.agent_names[:2]
  pays = np.isin(batch.agent, [0, 1])
  prices = {'lambda_turn': 0.1, 'lambda_rep': 0.2, 'lambda_message': 0.3, 'message_limit': 1.0}
  terms = lambda **given: communication.reward_terms(
    options_of(credit=credit, cost=cost, **given), batch, 0.01, **prices
  )
  found, everybody = terms(payers=payers), terms()
  assert not found.costs[~pays].any()
  assert found.costs[pays].all()
  np.testing.assert_array_equal(found.task, everybody.task)
  if credit == 'own_cost':
    np.testing.assert_allclose(found.costs, everybody.costs * pays, rtol=1e-6)
  else:
    own = dataclasses.replace(options_of(cost=cost, payers=payers), credit='own_cost')
    single = communication.reward_terms(own, batch, 0.01, **prices).costs
    expected = np.bincount(batch.episode, single)[batch.episode] * pays
    np.testing.assert_allclose(found.costs, expected, rtol=1e-5)
