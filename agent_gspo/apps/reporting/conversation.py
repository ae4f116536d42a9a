"""Shows episodes as text, message by message: while they run, or from the records of a run."""

from __future__ import annotations

import itertools

from rich.console import Console
from rich.text import Text

from agent_gspo.apps.reporting import formatting
from agent_gspo.teams import batches
from agent_gspo.teams.team import Team
from agent_gspo.types import Message, Question, RolloutBatch
from agent_gspo.workdir import records


def show_transcripts(workdir: records.PathLike, label: str = 'trained', most: int = 2) -> None:
  """Prints the first recorded episodes of an evaluation, such as 'untrained' or 'trained'.

  Evaluations under several labels begin with the same questions.

  Raises:
    ValueError: The run has recorded no episode under the label.
  """
  episodes = (episode for _, episode in records.numbered_transcripts(workdir))
  kept = (episode for episode in episodes if episode.get('label') == label)
  shown = list(itertools.islice(kept, most))
  if not shown:
    raise ValueError(f'{workdir} holds no transcript {label!r}; see evaluation.transcripts.')
  for episode in shown:
    print(records.as_text(episode), end='\n\n')


class ConversationDisplay:
  """Terminal display of episodes, one after another."""

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
