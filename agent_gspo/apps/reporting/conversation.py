"""Shows an episode in a terminal, message by message."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from agent_gspo.apps.reporting import formatting
from agent_gspo.teams import batches
from agent_gspo.teams.team import Team
from agent_gspo.types import Message, Question, RolloutBatch


class ConversationDisplay:
  """Display of one episode after another."""

  def __init__(self, team: Team, console: Console | None = None):
    """Prepares the display; it writes to standard output by default."""
    self._team = team
    self._console = console or Console(highlight=False)
    self._round = 0

  def begin(self, question: Question) -> None:
    """Shows the question."""
    self._round = 0
    self._print(('question ', 'bold'), (question.text, ''))

  def message(self, message: Message) -> None:
    """Shows an agent's message, its tokens and its readers."""
    if message.round != self._round:
      self._round = message.round
      self._print((f'round {message.round + 1}', 'dim'))
    name = (self._team.names[message.agent], 'bold cyan')
    if message.silent:
      self._print(name, (' is silent', 'dim'))
      return
    count = f'{message.written} token{"s" * (message.written != 1)}'
    readers = self._team.readers(message)
    told = f' ({count}, read by {", ".join(readers)}) ' if readers else f' ({count}) '
    self._print(name, (told, 'dim'), (message.text.strip(), ''))

  def end(self, batch: RolloutBatch, answer: str | None, seconds: float) -> None:
    """Shows the answer, and the cost of the episode."""
    written, read = batches.written_and_read(batch)
    silent = sum(m.silent for m in batch.messages)
    self._print(('answer ', 'bold'), ('none was found' if answer is None else answer, 'bold green'))
    cost = f'{written} tokens written, {read} read; {silent} of {len(batch.messages)} turns silent'
    self._print((f'{cost}; {formatting.duration(seconds)}', 'dim'))

  def _print(self, *parts: tuple[str, str]) -> None:
    # Not markup: a message may hold brackets.
    self._console.print(Text.assemble(*parts), soft_wrap=True)
