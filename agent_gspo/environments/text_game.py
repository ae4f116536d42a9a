"""Adapts games with the interface of TextArena: `reset`, `get_observation`, `step`, `close`.

A game object changes in place, so an episode's state is its list of actions, which can be copied
and pickled, and each call replays the game from its seed.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Mapping
from typing import Any

from agent_gspo import plugins
from agent_gspo.environments.drawn import DrawnWorld
from agent_gspo.options import option
from agent_gspo.types import Question

_DRAWING = threading.Lock()  # Python's generator is shared by all threads


@dataclasses.dataclass(frozen=True)
class Played:
  """State of an episode.

  Attributes:
    seed: Seed of the game.
    actions: Texts of the players so far.
    result: Reward of player 0 at the end.
  """

  seed: int
  actions: tuple[str, ...] = ()
  result: float = 0.0


@dataclasses.dataclass(eq=False, kw_only=True)
class TextGame(DrawnWorld):
  """Games of a factory, one seed a question; agent `i` is player `i`.

  Rewards are the game's own, at its end. The score is the reward of player 0, within `[0, 1]`.

  Raises:
    ValueError: if the factory is not found, or an option is out of range.
  """

  name = 'text_game'

  game: str = ''  # 'module:factory' of your own, which makes a game without arguments
  players: int = option(1, least=1, most=100)

  def __post_init__(self):
    super().__post_init__()
    self._factory = plugins.load_function(self.game, 'task.options.game')

  @property
  def least_team(self) -> tuple[int, int]:
    """Returns the players, for one round."""
    return self.players, 1

  def draw(self, rng: random.Random, split: str) -> tuple[int, str, str, Played]:
    """Draws a seed."""
    seed = rng.randrange(2**31)
    return seed, '', '1', Played(seed)

  def _replayed(self, state: Played) -> tuple[Any, bool]:
    """Returns the game after a state's actions, and whether it is over.

    TextArena's games seed Python's own generator and draw from it, so it is put back.
    """
    with _DRAWING:
      drawn = random.getstate()
      try:
        game, done = self._factory(), False
        game.reset(num_players=self.players, seed=state.seed)
        for action in state.actions:
          game.get_observation()  # marks it as read, else later observations repeat it
          done, *_ = game.step(action)
        return game, bool(done)
      finally:
        random.setstate(drawn)

  def observe(self, state: Played, agent: int) -> str | None:
    """Returns the new text for the player whose turn it is; None for others."""
    game, _ = self._replayed(state)
    player, told = game.get_observation()
    if player != agent:
      return None
    return told if isinstance(told, str) else '\n'.join(item[1] for item in told)

  def act(
    self, state: Played, texts: Mapping[int, str]
  ) -> tuple[Played, Mapping[int, float], bool]:
    """Plays the text of the player whose turn it is.

    If the game raises, the text was not an action: the episode ends without a reward.

    Raises:
      PluginError: The game has a bug: an attribute, a name or a module is missing. A missing
        attribute of None is no bug, but an unchecked regex match of a text that is no action.
    """
    (text,) = texts.values()
    state = dataclasses.replace(state, actions=(*state.actions, text))
    try:
      game, done = self._replayed(state)
    except Exception as error:
      unmatched = isinstance(error, AttributeError) and error.obj is None
      if unmatched or not isinstance(error, (AttributeError, ImportError, NameError)):
        return state, {}, True
      with plugins.guard(f'task.options.game={self.game!r}', self.game.partition(':')[0]):
        raise
    if not done:
      return state, {}, False
    rewards = game.close()
    rewards = rewards[0] if isinstance(rewards, tuple) else rewards  # with the game's information
    earned = {player: float(reward) for player, reward in (rewards or {}).items()}
    return dataclasses.replace(state, result=earned.get(0, 0.0)), earned, True

  def outcome(self, state: Played) -> str:
    """Returns the reward of player 0."""
    return str(state.result)

  def score(self, question: Question, answer_text: str) -> float:
    """Returns the reward of player 0, within `[0, 1]`."""
    return min(max(float(answer_text), 0.0), 1.0)
