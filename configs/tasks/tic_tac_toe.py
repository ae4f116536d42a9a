"""Defines tic-tac-toe of pgx, a library of games in JAX, as a text game (`pip install pgx`).

Arrays become text here, and `text_game` does the rest:

  config.task.name = 'text_game'
  config.task.options = {'game': 'configs.tasks.tic_tac_toe:TicTacToe', 'players': 2}
"""

import functools

import jax
import numpy as np


@functools.cache
def _game():
  import pgx

  env = pgx.make('tic_tac_toe')
  return jax.jit(env.init), jax.jit(env.step)


class TicTacToe:
  """Game with the interface of TextArena: a text is the number of a free field, 1 to 9."""

  def reset(self, num_players: int, seed: int | None = None):
    """Starts with an empty board; the seed draws the first player."""
    init, _ = _game()
    self.state = init(jax.random.key(seed or 0))
    self.fields = ['-'] * 9

  def get_observation(self) -> tuple[int, str]:
    """Returns the player whose turn it is, and the board with that player's marks as x."""
    return int(self.state.current_player), ' '.join(self.fields)

  def step(self, action: str) -> tuple[bool, dict]:
    """Marks a field. A ValueError ends the game without a reward."""
    field = int(action) - 1
    if not 0 <= field < 9 or not self.state.legal_action_mask[field]:
      raise ValueError(f'{action} is no free field')
    self.fields[field] = 'x'
    _, step = _game()
    self.state = step(self.state, field)
    swap = {'x': 'o', 'o': 'x', '-': '-'}
    self.fields = [swap[mark] for mark in self.fields]
    return bool(self.state.terminated), {}

  def close(self) -> dict[int, float]:
    """Returns the reward of each player, -1, 0 or 1."""
    return dict(enumerate(np.asarray(self.state.rewards).tolist()))
