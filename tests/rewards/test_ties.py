"""Tests what groups without a task signal teach, through rewards and advantages."""

from __future__ import annotations

import types

import numpy as np
import pytest

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.algorithms.advantages.inputs import Advantage
from agent_gspo.rewards import communication, ties
from agent_gspo.rewards.options import RewardOptions


def learned(fields, name, costs='inside', lambda_tok=0.005, length=20, lambda_turn=0.0, **options):
  return ties.what_ties_teach(
    RewardOptions(**{'gate': 'always'} | fields),
    ties.estimator(name, costs=costs, **options),
    lambda_tok=lambda_tok,
    length=length,
    lambda_turn=lambda_turn,
  )


@pytest.mark.parametrize('lambda_tok', [1e-4, 0.005])
def test_division_by_the_spread_cancels_the_price(lambda_tok):
  found = learned({}, 'group_std', lambda_tok=lambda_tok)
  for kind in ('all right', 'all wrong'):
    # Two silent, two talkative ones: their costs standardised are +1 and -1.
    assert found.silence[kind] == pytest.approx(2, rel=2e-3)
  assert found.text.count('whatever lambda_tok is') == 2
  assert found.right == pytest.approx(2, rel=0.05)
  assert 'A group of answers all wrong favors silence by 2 whatever' in found.text
  assert 'collapse into silence' in found.text


@pytest.mark.parametrize(
  ('name', 'costs'), [('per_component', 'inside'), ('group_mean', 'inside'), ('group_std', 'apart')]
)
def test_costs_apart_keep_the_price(name, costs):
  found = learned({}, name, costs)
  for kind in ('all right', 'all wrong'):
    assert found.silence[kind] == pytest.approx(0.005 * 20, rel=1e-4)
  assert found.text.count('at lambda_tok=0.005 (it depends on the price)') == 2
  assert 'collapse' not in found.text


def test_groups_of_those_that_pay_are_told_of():
  one_side = {'payers': ('solver',), 'prices': {'solver': 3.0}}
  assert learned(one_side, 'group_std').text == learned({}, 'group_std').text


@pytest.mark.parametrize('gate', ['correct', 'group_accuracy', 'top_groups'])
@pytest.mark.parametrize('name', ['group_std', 'per_component'])
def test_gates_spare_the_all_wrong_groups(gate, name):
  found = learned({'gate': gate, 'gate_accuracy': 0.5}, name)
  assert found.silence['all wrong'] == 0
  assert 'A group of answers all wrong teaches nothing about talk.' in found.text
  assert found.silence['all right'] > 0.09
  assert 'collapse' not in found.text


def test_without_a_price_ties_teach_nothing():
  found = learned({}, 'group_std', lambda_tok=0.0)
  assert (found.silence['all right'], found.silence['all wrong']) == (0, 0)
  assert found.right == pytest.approx(2, rel=1e-4)


def test_length_rewards_that_multiply_the_score_teach_all_wrong_groups_nothing():
  found = learned({'length_reward': 'efficient'}, 'group_std', lambda_tok=0.0)
  assert found.silence['all wrong'] == 0
  assert found.silence['all right'] > 0.1
  kimi = learned({'length_reward': 'kimi'}, 'group_std', lambda_tok=0.0)
  assert kimi.silence['all wrong'] == pytest.approx(2, rel=1e-3)
  assert 'collapse' in kimi.text  # wrong and long is penalized, which a small spread amplifies


def test_length_rewards_without_a_price_do_not_change_with_it():
  found = learned({'length_reward': 'kimi'}, 'per_component', lambda_tok=0.0)
  assert found.silence['all right'] == pytest.approx(0.4)
  assert 'whatever lambda_tok is' in found.text


def test_a_target_can_prefer_talk():
  options = {'length_reward': 'l1_exact', 'length_reward_options': 'target=20, alpha=0.01'}
  found = learned(options, 'per_component', lambda_tok=0.0)
  assert found.silence['all right'] == pytest.approx(-0.2, rel=1e-4)
  assert 'favors talk by 0.2' in found.text


def test_half_of_the_talk_as_a_told_budget_prefers_neither():
  found = learned({'length_reward': 'told_budget'}, 'per_component', lambda_tok=0.0)
  assert found.silence['all right'] == found.silence['all wrong'] == 0


def test_hinge_charges_long_episodes_only():
  options = {'length_reward': 'hinge', 'length_reward_options': 'limit=15'}
  assert learned(options, 'per_component', length=15).silence['all right'] == 0
  found = learned(options, 'per_component', length=25)
  assert found.silence['all right'] == pytest.approx(0.005 * 10, rel=1e-4)
  assert 'depends on the price' in found.text


@pytest.mark.parametrize('name', sorted(estimators.ADVANTAGES))
def test_there_is_an_answer_for_every_advantage(name):
  found = learned({'gate': 'correct'}, name)
  assert found.text.startswith('A group of answers all right')
  assert found.right > 0
  if name in ('group_std', 'group_mean', 'per_component', 'rloo'):
    assert found.silence['all wrong'] == 0


def test_what_an_estimator_drops_teaches_nothing(monkeypatch):
  drops = lambda rewards: Advantage(values=rewards, kept=0 * rewards)
  monkeypatch.setitem(estimators.ADVANTAGES, 'drops', drops)
  assert learned({}, 'drops').right == 0


def test_half_as_strong_as_a_right_answer_is_a_collapse():
  """Kimi takes half its weight from wrong and long: silence is worth w / 2, right 2 + w / 4."""
  for weight, collapse in ((2.5, False), (4.0, True)):
    found = learned(
      {'length_reward': 'kimi', 'length_reward_options': f'weight={weight}'},
      'per_component',
      lambda_tok=0.0,
    )
    assert found.silence['all wrong'] == pytest.approx(weight / 2)
    assert found.right == pytest.approx(2 + weight / 4)
    assert ('collapse' in found.text) == collapse


@pytest.mark.parametrize(
  ('fields', 'lambda_tok', 'lambda_turn', 'silence'),
  [
    ({'p_read': 0.5}, 0.005, 0.0, 0.15),  # one reader of each message of 20 tokens
    ({}, 0.0, 0.03, 0.03),
    # Prompts of 20 tokens: 40 for who talks, 20 for who does not.
    (
      {
        'cost': 'money', 'p_write': 1e6, 'p_read': 1e6,
        'length_reward': 'hinge', 'length_reward_options': 'limit=30',
      },
      0.005, 0.0, 0.05,
    ),
  ],
)  # fmt: skip
def test_what_talk_costs(fields, lambda_tok, lambda_turn, silence):
  found = learned(fields, 'per_component', lambda_tok=lambda_tok, lambda_turn=lambda_turn)
  assert found.silence['all wrong'] == pytest.approx(silence, rel=1e-4)
  assert found.silence['all right'] == pytest.approx(silence, rel=1e-4)


def own(reward, costs, baselines, groups, history):
  of_group = np.bincount(groups, reward - costs) / np.bincount(groups)
  return reward - costs - of_group[groups] + 0 * baselines * history[2]


def test_an_estimator_may_read_what_training_gives_it():
  found, expected = learned({}, f'{__name__}:own'), learned({}, 'group_mean')
  assert found.silence == pytest.approx(expected.silence)


def test_lengths_count_the_stop_token():
  """OPO weighs 0 and 9 written tokens by 1 and 10."""
  zeros, written = np.zeros(2, int), np.array([0, 9])
  rollout = types.SimpleNamespace(
    episode=np.arange(2), question=zeros, agent=zeros, round=zeros, written=written,
    readers=zeros, tool_tokens=zeros, silent=written == 0, task_scores=np.array([1.0, 0.0]),
    num_episodes=2, agent_names=('agent',),
  )  # fmt: skip
  terms = communication.reward_terms(RewardOptions(), rollout, 0.0)
  found = ties.estimator('opo')(terms, rollout)
  np.testing.assert_allclose(found, [10 / 11, -1 / 11], rtol=1e-5)


@pytest.mark.parametrize('gate', ['always', 'group_accuracy'])
def test_a_tournament_teaches_silence_where_the_gate_lets_costs_count(gate):
  fields = {'score': 'tournament', 'gate': gate}
  found = learned(fields, 'per_component', 'apart', lambda_tok=0.0)
  assert found.silence['all right'] == pytest.approx(2, rel=1e-3)  # ranks 5/6 and 1/6, standardised
  assert found.right > 0
  assert ('collapse' in found.text) == (gate == 'always')
  assert bool(found.silence['all wrong']) == (gate == 'always')
