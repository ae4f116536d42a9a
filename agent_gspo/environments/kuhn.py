"""Defines Kuhn poker: two agents with a card each bet on which card is higher.

The rules of Kuhn (1950): cards J, Q and K, an ante of one chip each, one bet of one more chip.
The first player passes or bets. After a pass the second one may bet as well; whoever faces a bet
calls it with `bet` or folds with `pass`. Without a fold the higher card takes the pot.

    K : pass bet        what an agent observes: its card, the moves so far
    bet                 its move

Any other text, silence too, forfeits the author's chips in the pot. A player earns the chips that
it wins, below 0 if it loses. With `talk` each first observes `talk K :`, and writes a message that
the other reads.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.environments.base import Environment, takes_turns
from agent_gspo.options import check_fields, option
from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.teams.topology import Topology
from agent_gspo.types import Message, Question

CARDS, MOVES = 'JQK', ('pass', 'bet')
DEALS = tuple(itertools.permutations(CARDS, 2))
LINES = (('pass', 'bet', 'bet'), ('bet', 'bet'))
"""Games that go through every information set, each with all deals."""


@dataclasses.dataclass(frozen=True)
class Hand:
  """State of an episode.

  Attributes:
    cards: Card of each player.
    moves: Moves so far.
    untold: Players that have not talked yet.
    won: Chips that the first player has won; 0 before the end.
  """

  cards: tuple[str, ...]
  moves: tuple[str, ...] = ()
  untold: frozenset[int] = frozenset()
  won: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class Kuhn(Environment):
  """Kuhn poker; question `i` has deal `i % 6`, and its answer is that the first player wins.

  Raises:
    ValueError: if an option is out of range.
  """

  name = 'kuhn'
  hears_silence = True

  talk: bool = False  # a message of each player before the first move
  train_size: int = option(60, least=6, most=10**6)
  validation_size: int = option(60, least=6, most=10**6)
  test_size: int = option(60, least=6, most=10**6)

  def __post_init__(self):
    check_fields(self, 'task.options')

  @property
  def least_team(self) -> tuple[int, int]:
    """Returns two players, for the longest game."""
    return 2, 3 if self.talk else 2

  def needs(self, topology: Topology) -> str:
    """Requires a turn for each move of the longest game."""
    turns = [0, 1] * self.talk + [0, 1, 0]
    return '' if takes_turns(topology, turns) else 'turns for the longest game'

  def _split(self, split: str) -> Sequence[Question]:
    make = lambda i: Question(f'{split}/{i}', '', 'win')  # no text, which both players could read
    return LazyQuestions(getattr(self, f'{split}_size'), make)

  def begin(self, question: Question, sample: int) -> Hand:
    """Returns the deal of a question's index."""
    index = question.id.partition('/')[2]
    if not index.isdecimal():
      raise ValueError(
        f'question {question.id!r} has no deal: deals are those of the questions of splits'
      )
    return Hand(DEALS[int(index) % len(DEALS)], untold=frozenset({0, 1} if self.talk else ()))

  def observe(self, state: Hand, agent: int) -> str | None:
    """Returns card and moves; None if it is the other player's turn."""
    turn = min(state.untold, default=len(state.moves) % 2)
    if agent != turn:
      return None
    prefix = 'talk ' if agent in state.untold else ''
    return prefix + information_set(state.cards[agent], state.moves)

  def act(self, state: Hand, texts: Mapping[int, str]) -> tuple[Hand, dict[int, float], bool]:
    """Takes the move of the player whose turn it is."""
    ((agent, text),) = texts.items()
    if agent in state.untold:
      return dataclasses.replace(state, untold=state.untold - {agent}), {}, False
    move = text.strip().lower()
    if move not in MOVES:
      state = dataclasses.replace(state, won=1 if agent else -1)  # it has paid the ante only
    else:
      moves = (*state.moves, move)
      state = dataclasses.replace(state, moves=moves, won=payoff(state.cards, moves))
    return state, {0: float(state.won), 1: float(-state.won)}, state.won != 0

  def outcome(self, state: Hand) -> str:
    """Returns the result of the first player: win, loss, or none for a game cut short."""
    return 'win' if state.won > 0 else 'loss' if state.won else 'none'

  def policy_figures(
    self,
    play: Callable[[Callable[[Any], str], Sequence[Question]], Sequence[Message]],
    log_probability: Callable[[Sequence[Message], str], np.ndarray],
  ) -> dict[str, float]:
    """Returns the exploitability of a policy that plays both sides, and its rate of legal moves.

    {} with talk, which adds information sets, and with too few rounds for a game. See
    `Task.policy_figures`.
    """
    if self.talk:
      return {}
    found: dict[str, Message] = {}  # by information set
    deals = self.questions('train')[: len(DEALS)]
    for line in LINES:
      played = play(functools.partial(_next_move, line), deals)
      found |= {message.told[0]: message for message in played}
    if len(found) < 12:  # too few rounds for a whole game
      return {}
    moves = {move: np.exp(log_probability([*found.values()], move)) for move in MOVES}
    legal = moves['pass'] + moves['bet']
    bets = dict(zip(found, (moves['bet'] / legal).tolist(), strict=True))
    return {'game/exploitability': exploitability(bets), 'game/legal': float(legal.mean())}

  def demonstration(
    self, question, agent, delivered, rng, *, state, silence_probability, **_: Any
  ) -> str:
    """Writes a uniformly random move; as talk a random card, or '' by `silence_probability`."""
    if agent in state.untold:
      return '' if rng.random() < silence_probability else f'I have {rng.choice(CARDS)}'
    return rng.choice(MOVES)

  def vocabulary(self) -> list[str]:
    """Returns the words of observations and demonstrations."""
    return [*CARDS, ':', *MOVES, 'I', 'have', *['talk'] * self.talk]


def _next_move(line: Sequence[str], turn: Any) -> str:
  return line[len(turn.state.moves)]


def information_set(card: str, moves: Sequence[str]) -> str:
  """Returns the name of an information set, as its player observes it."""
  return ' '.join([card, ':', *moves])


def payoff(cards: Sequence[str], moves: Sequence[str]) -> int:
  """Returns the chips that the first player wins, 0 before the end of the game."""
  if tuple(moves) in (('pass', 'pass'), ('bet', 'bet'), ('pass', 'bet', 'bet')):
    stake = 2 if 'bet' in moves else 1
    return stake if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -stake
  return {('bet', 'pass'): 1, ('pass', 'bet', 'pass'): -1}.get(tuple(moves), 0)


def exploitability(bets: Mapping[str, float]) -> float:
  """Computes how many chips a game a best response wins from a policy, over both seats.

  Half of the sum of the best responses' values against it (NashConv / 2): 0 for an equilibrium.

  Args:
    bets: Probability of a bet at each of the 12 information sets, see `information_set`.
  """
  return sum(_best_response(bets, player) for player in (0, 1)) / 2


def _best_response(bets: Mapping[str, float], player: int) -> float:
  """Returns the mean chips that the best response of `player` wins against a policy."""

  def value(moves: tuple[str, ...], card: str, others: Mapping[str, float]) -> float:
    """Sums chips over `others`: the other's card -> probability that it has it and moved so."""
    seated = lambda other: (other, card) if player else (card, other)
    results = {other: payoff(seated(other), moves) for other in others}
    if all(results.values()):
      return sum((1 - 2 * player) * results[other] * reach for other, reach in others.items())
    if len(moves) % 2 == player:  # one move for all cards that the other may hold
      return max(value((*moves, move), card, others) for move in MOVES)
    bet = {other: reach * bets[information_set(other, moves)] for other, reach in others.items()}
    no_bet = {other: reach - bet[other] for other, reach in others.items()}
    return value((*moves, 'bet'), card, bet) + value((*moves, 'pass'), card, no_bet)

  deal = 1 / len(DEALS)
  return sum(value((), card, {o: deal for o in CARDS if o != card}) for card in CARDS)
