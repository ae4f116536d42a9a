"""Defines the half-maze: agents that each see a part of the walls move one piece to a goal.

After *The Collaboration Gap* (arXiv 2511.02687): no agent can plan alone, so that they talk first
and act then. Cells are named as on a chess board, a wall by the two cells that it separates:

    a1 to c2 : a2-a3 b1-c1        what an agent observes: piece, goal, walls that it knows
    my walls are a1-a2 b2-b3      talk
    go b1 b2 c2                   an action: the piece walks from cell to cell

A step into a wall ends the walk and shows the wall to all agents.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Collection, Mapping

from agent_gspo.environments.drawn import DrawnWorld
from agent_gspo.options import option

_TALK = ('my walls are', 'I see walls', 'please note the walls', 'hello , I can see the walls')


@dataclasses.dataclass(frozen=True)
class Piece:
  """State of an episode.

  Attributes:
    cell, goal: Cells of the piece and of its goal.
    walls: All walls, in the order in which they are dealt to the agents.
    found: Walls that the piece has hit.
    note: Why the walk of the last message ended early, '' if it did not, or there was none.
  """

  cell: str
  goal: str
  walls: tuple[str, ...]
  found: tuple[str, ...] = ()
  note: str = ''


@dataclasses.dataclass(eq=False, kw_only=True)
class HalfMaze(DrawnWorld):
  """Perfect mazes, in which one path joins every two cells, or with `gaps` several.

  No maze, a set of walls, is in two splits.

  Raises:
    ValueError: if an option is out of range.
  """

  name = 'half_maze'
  hears_silence = False
  noun = 'maze'
  drawn_by = ('size',)

  size: int = option(3, least=3, most=9)  # cells a side
  parts: int = option(2, least=1, most=9)  # agent i sees part i % parts of the walls
  # half: each agent sees its part of the walls; full: all of them.
  view: str = option('half', choices=('half', 'full'))
  gaps: int = option(0, least=0, most=64)  # walls that are left out

  def __post_init__(self):
    super().__post_init__()
    most = (self.size - 1) ** 2 - 4  # fewer walls are too few mazes for three splits
    if self.gaps > most:
      raise ValueError(
        f'task.options.gaps={self.gaps}: must be at most {most} with task.options.size={self.size}.'
      )
    places = range(self.size)
    self._cells = [f'{chr(ord("a") + x)}{y + 1}' for x in places for y in places]
    self._edges = [f'{a}-{b}' for a in self._cells for b in self._cells if a < b and _near(a, b)]

  def draw(self, rng: random.Random, split: str) -> tuple[str, str, str, Piece]:
    """Draws mazes until a goal is at least `size` steps away; the key is the set of walls."""
    del split
    while True:
      edges = rng.sample(self._edges, len(self._edges))
      trees = {cell: {cell} for cell in self._cells}
      walls = []
      for edge in edges:
        a, b = edge.split('-')
        if trees[a] is trees[b]:
          walls.append(edge)
          continue
        trees[a] |= trees[b]
        trees.update(dict.fromkeys(trees[b], trees[a]))
      cell, goal = rng.sample(self._cells, 2)
      walls = walls[self.gaps :]
      if len(self.shortest_path(cell, goal, walls, rng)) >= self.size:
        piece = Piece(cell, goal, tuple(walls))
        return '/'.join(sorted(walls)), f'{cell} to {goal}', goal, piece

  def observe(self, state: Piece, agent: int) -> str:
    """Returns piece, goal and the walls that an agent knows."""
    note = f' {state.note}' if state.note else ''
    return ' '.join([f'{state.cell}{note} to {state.goal} :', *sorted(self.known(state, agent))])

  def known(self, state: Piece, agent: int) -> set[str]:
    """Returns the walls that an agent sees, and those that the piece has hit."""
    part = slice(agent % self.parts, None, self.parts)
    seen = state.walls if self.view == 'full' else state.walls[part]
    return {*seen, *state.found}

  def act(self, state: Piece, texts: Mapping[int, str]) -> tuple[Piece, float, bool]:
    """Walks the cells after `go` of each text, until one cannot be entered."""
    for text in texts.values():
      if state.cell != state.goal:
        state = self._walk(state, text)
    done = state.cell == state.goal
    return state, float(done), done

  def _walk(self, state: Piece, text: str) -> Piece:
    rest = f' {text} '.partition(' go ')[2]
    state = dataclasses.replace(state, note='')
    for cell in rest.split():
      if cell not in self._cells or not _near(state.cell, cell):
        return dataclasses.replace(state, note='far')
      wall = '-'.join(sorted((state.cell, cell)))
      if wall in state.walls:
        return dataclasses.replace(state, note='wall', found=(*state.found, wall))
      state = dataclasses.replace(state, cell=cell)
      if cell == state.goal:
        break
    return state

  def outcome(self, state: Piece) -> str:
    """Returns the last cell of the piece; the goal is the answer."""
    return state.cell

  def demonstration(
    self, question, agent, delivered, rng, *, state, terse_probability, silence_probability
  ) -> str:
    """Writes a wall list, or as the last agent a shortest path by known and received walls.

    `silence_probability` is the share of walls that the list omits.
    """
    known = self.known(state, agent)
    if agent == len(delivered) - 1:
      known |= {word for text in delivered for word in text.split() if word in self._edges}
      return ' '.join(['go', *self.shortest_path(state.cell, state.goal, known, rng)])
    if delivered[-1]:
      return ''  # its walls were sent before
    told = [wall for wall in sorted(known) if rng.random() >= silence_probability]
    if not told:
      return ''
    phrase = '' if rng.random() < terse_probability else rng.choice(_TALK)
    return ' '.join([*phrase.split(), *rng.sample(told, len(told))])

  def shortest_path(
    self, cell: str, goal: str, walls: Collection[str], rng: random.Random
  ) -> list[str]:
    """Returns the cells after `cell` on a random shortest path between `walls`."""
    came: dict[str, str] = {goal: goal}
    queue = collections.deque([goal])
    while cell not in came:
      last = queue.popleft()
      near = [c for c in self._cells if _near(c, last) and c not in came]
      for other in rng.sample(near, len(near)):
        if '-'.join(sorted((last, other))) not in walls:
          came[other] = last
          queue.append(other)
    path = [cell]
    while path[-1] != goal:
      path.append(came[path[-1]])
    return path[1:]

  def vocabulary(self) -> list[str]:
    """Returns the words of observations and demonstrations."""
    talk = ' '.join(_TALK).split()
    return [*dict.fromkeys([*self._cells, *self._edges, *talk, 'go', 'to', ':', 'far', 'wall'])]


def _near(a: str, b: str) -> bool:
  """Returns whether two cells are side by side."""
  return abs(ord(a[0]) - ord(b[0])) + abs(int(a[1]) - int(b[1])) == 1
