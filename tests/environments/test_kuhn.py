"""Tests Kuhn poker: rules, invalid moves, best responses."""

from __future__ import annotations

import itertools
import random
import types

import numpy as np
import pytest

from agent_gspo.environments import kuhn
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from agent_gspo.training import run_evaluations
from agent_gspo.types import Question

TOKENIZER = word_level([*kuhn.Kuhn(talk=True).vocabulary(), ';', 'move', 'call', 'please'])


def team(game, **options):
  return make_team(
    {
      'agents': ('player', 'player'),
      'roles': {'player': {'opening': '', 'incoming': '{message} ; ', 'cue': 'move :'}},
      'topology': 'complete',
      'rounds': 3 if game.talk else 2,
      'max_message_tokens': 4,
      'sides': {'first': ('player1',), 'second': ('player2',)},
      **options,
    }
  )


def play(script, **options):
  game = kuhn.Kuhn(**options)
  policy = ScriptedPolicy(script, TOKENIZER)
  return rollout(team(game), game, TOKENIZER, game.questions('test')[:6], 1, policy)


def earned(batch, episode=0):
  """Returns the chips of both players."""
  own = [m for m in batch.messages if m.episode == episode]
  return [sum(m.reward for m in own if m.agent == agent) for agent in (0, 1)]


@pytest.mark.parametrize(
  ('line', 'stake'),
  [
    ('pass pass', 1),
    ('bet bet', 2),
    ('pass bet bet', 2),
    ('bet pass', None),
    ('pass bet pass', None),
  ],
)
def test_the_pot_goes_to_the_higher_card_or_to_whoever_did_not_fold(line, stake):
  moves = line.split()
  batch = play(lambda turn: moves[len(turn.state.moves)])
  for episode, question in enumerate(batch.questions):
    cards = kuhn.DEALS[int(question.id.removeprefix('test/')) % 6]
    first, second = map('JQK'.index, cards)
    won = (stake if first > second else -stake) if stake else (1, -1)[len(moves) - 2]
    assert earned(batch, episode) == [won, -won]
    assert batch.task_scores[episode] == float(won > 0)
    own = [m for m in batch.messages if m.episode == episode]
    assert [m.agent for m in own] == [0, 1, 0][: len(moves)]
    for place, message in enumerate(own):
      assert message.told == (' '.join([cards[message.agent], ':', *moves[:place]]),)


def test_no_player_reads_the_others_card():
  game, role = kuhn.Kuhn(), {'incoming': '{message} ; ', 'cue': 'move :'}  # with default opening
  policy = ScriptedPolicy(lambda turn: 'pass', TOKENIZER)
  own_team = team(game, roles={'player': role})
  batch = rollout(own_team, game, TOKENIZER, game.questions('test')[:6], 1, policy)
  for message in batch.messages:
    read = TOKENIZER.decode(message.prompt_ids.tolist()).split()
    assert sum(word in kuhn.CARDS for word in read) == 1


def test_a_question_that_is_no_deal_is_refused():
  with pytest.raises(ValueError, match="question 'asked-0' has no deal"):
    kuhn.Kuhn().begin(Question('asked-0', 'J', ''), 0)


@pytest.mark.parametrize('text', ['', 'call', 'bet please', 'pass bet', 'I have K'])
@pytest.mark.parametrize('before', [(), ('pass',), ('bet',), ('pass', 'bet')])
def test_invalid_moves_forfeit_the_ante(text, before):
  batch = play(lambda turn: [*before, text][len(turn.state.moves)])
  author = len(before) % 2
  for episode in range(6):
    paid = earned(batch, episode)
    assert paid[author] == -1
    assert paid[1 - author] == (1 if before else 0)  # who has written nothing yet is not credited
    own = [m for m in batch.messages if m.episode == episode]
    assert len(own) == len(before) + 1


def test_no_message_earns_by_garbage():
  """Random words, which are no moves, earn nothing."""
  words, rng = [*kuhn.MOVES, 'call', '', 'J', 'bet bet'], random.Random(0)
  for _ in range(50):
    batch = play(lambda turn: rng.choice(words))
    for message in batch.messages:
      if message.text not in kuhn.MOVES:
        assert message.reward == -1


def test_talk_comes_first_is_read_and_costs_no_chips():
  script = lambda turn: 'I have K' if turn.state.untold else 'bet'
  batch = play(script, talk=True)
  own = [m for m in batch.messages if m.episode == 0]
  assert [(m.agent, m.round, m.text) for m in own] == [
    (0, 0, 'I have K'),
    (1, 0, 'I have K'),
    (0, 1, 'bet'),
    (1, 1, 'bet'),
  ]
  assert [m.told for m in own] == [('talk J :',), ('talk Q :',), ('J :',), ('Q : bet',)]
  assert [m.reward for m in own[:2]] == [0, 0]
  assert all('I have K' in TOKENIZER.decode(m.prompt_ids.tolist()) for m in own[1:])
  silent = play(lambda turn: '' if turn.state.untold else 'bet', talk=True)
  assert [earned(silent, e) for e in range(6)] == [earned(batch, e) for e in range(6)]


SETS = [
  kuhn.information_set(card, moves)
  for card in kuhn.CARDS
  for moves in ((), ('pass',), ('bet',), ('pass', 'bet'))
]


def family(alpha):
  """Returns an equilibrium of Kuhn (1950), in which J bets first with probability `alpha`."""
  return {
    **{'J :': alpha, 'Q :': 0, 'K :': 3 * alpha},
    **{'J : pass bet': 0, 'Q : pass bet': alpha + 1 / 3, 'K : pass bet': 1},
    **{'J : pass': 1 / 3, 'Q : pass': 0, 'K : pass': 1},
    **{'J : bet': 0, 'Q : bet': 1 / 3, 'K : bet': 1},
  }


@pytest.mark.parametrize('alpha', [0, 0.1, 1 / 3])
def test_an_equilibrium_cannot_be_exploited(alpha):
  assert kuhn.exploitability(family(alpha)) == pytest.approx(0, abs=1e-12)
  assert kuhn.exploitability({**family(alpha), 'Q : bet': 0}) > 0.01


def test_figures_are_of_whole_games_whatever_the_cap_is(monkeypatch):
  half = lambda *args: np.log(np.full(len(args[4]), 0.5))
  monkeypatch.setattr(run_evaluations, 'log_probability', half)
  game = kuhn.Kuhn()
  setup = types.SimpleNamespace(
    task=game, team=team(game, max_episode_tokens=5), tokenizer=TOKENIZER
  )
  found = run_evaluations.policy_figures(setup, None, None)
  assert found == {'game/exploitability': pytest.approx(11 / 24), 'game/legal': 1}


def test_uniform_play_by_hand():
  """A best response wins 1/2 a game as the first player and 5/12 as the second one.

  First, against a coin: with K it bets (1/2 of 1, 1/2 of 2: 3/2). With Q it bets against J (3/2)
  and K (-1/2): 1/2; a pass and a call give 1/2 * (1 + 2) / 2 - 1/2 * (1 + 2) / 2 = 0. With J a bet
  gives 1/2 - 2/2 = -1/2; a pass and a fold -1. (3/2 + 1/2 - 1/2) / 3 = 1/2.
  Second: the first bets in half of the games. With K it calls (2), and after a pass bets (1/2 of 1,
  1/2 of 2: 3/2): 7/4. With Q it calls (2 or -2: 0), and after a pass bets (3/2 or -1/2: 1/2): 1/4.
  With J it folds (-1), and after a pass bets (-1/2): -3/4. (7/4 + 1/4 - 3/4) / 3 = 5/12.
  """
  uniform = dict.fromkeys(SETS, 0.5)
  assert kuhn.exploitability(uniform) == pytest.approx((1 / 2 + 5 / 12) / 2)


def test_a_best_response_is_the_best_of_all_pure_answers():
  """Compares with an oracle that plays all 64 pure policies of a side through all deals."""
  rng = np.random.default_rng(0)
  bets = dict(zip(SETS, rng.random(len(SETS)).tolist(), strict=True))

  def chips(cards, moves, policies):
    won = kuhn.payoff(cards, moves)
    if won:
      return won
    player = len(moves) % 2
    p = policies[player][kuhn.information_set(cards[player], moves)]
    return p * chips(cards, (*moves, 'bet'), policies) + (1 - p) * chips(
      cards, (*moves, 'pass'), policies
    )

  total = 0.0
  for player, turns in ((0, ((), ('pass', 'bet'))), (1, (('pass',), ('bet',)))):
    own = [kuhn.information_set(card, moves) for card in kuhn.CARDS for moves in turns]
    values = []
    for choice in itertools.product((0, 1), repeat=6):
      pure = dict(zip(own, choice, strict=True))
      policies = (pure, bets) if player == 0 else (bets, pure)
      value = np.mean([chips(cards, (), policies) for cards in kuhn.DEALS])
      values.append(value if player == 0 else -value)
    total += max(values)
  assert kuhn.exploitability(bets) == pytest.approx(total / 2)
