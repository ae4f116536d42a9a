"""Asks a team a question and shows the episode, message by message.

    python launch/ask.py --workdir=runs/quickstart \\
      --question="How many pens do Mara and Tom have together?" \\
      --note="Mara has 3 pens." --note="The sky is blue." --note="Tom has 4 pens."
    python launch/ask.py --workdir=runs/quickstart                      # asks for it
    python launch/ask.py --workdir=runs/quickstart --file=mine.jsonl --json

The team is that of a run: its newest intact checkpoint, or that of --step=N or --step=best; or an
exported one (--workdir=FOLDER or hf:OWNER/NAME). With --config=FILE in place of --workdir it is
untrained. Notes are for the agents in order; an agent with an empty --note= has none. A line of
--file is {"question": "...", "notes": ["...", ...]}, or as task.name='questions' reads it; its
questions are asked in batches of evaluation.batch_questions. --json prints one object per episode,
its messages as in transcripts.jsonl. The temperature is that of the config's evaluation, or
--temperature. --price=0.01 or --budget=20 replace the price or budget of evaluations, for a team
trained with budget.mode='conditioned' or 'target'. --max_tokens=40 limits the tokens that all
agents together write.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from agent_gspo.apps.commands import command, team_of_run

if TYPE_CHECKING:
  from agent_gspo.apps.commands.team_of_run import TeamOfRun
  from agent_gspo.types import Question, RolloutBatch, Terms

_TEAM = team_of_run.define_flags()
_QUESTION = flags.DEFINE_string('question', None, 'Question, which all agents read.')
_NOTE = flags.DEFINE_multi_string('note', [], 'Private note of the next agent.')
_FILE = flags.DEFINE_string('file', None, 'Questions, one JSON object per line.')
_JSON = flags.DEFINE_bool('json', False, 'Print JSON objects, not text.')
_PRICE = command.define_amount('price', 'Price of a token, for a price-conditioned team.')
_BUDGET = command.define_amount('budget', 'Tokens of an episode, for a budget-conditioned team.')
_MAX_TOKENS = flags.DEFINE_integer(
  'max_tokens', 0, 'Most tokens of all agents together; 0: the caps of the team.', lower_bound=0
)
_TEMPERATURE = command.define_amount('temperature', 'Sampling temperature; 0 is greedy.')


def main() -> None:
  """Runs the command."""
  _check_flags()
  from agent_gspo.apps.reporting.conversation import ConversationDisplay
  from agent_gspo.evaluation import asking, evaluate
  from agent_gspo.tasks.own_questions import OwnQuestions

  asked = team_of_run.TeamOfRun(_TEAM)
  terms = asked.terms(price=_PRICE.value, budget=_BUDGET.value)
  parts: Iterable[Sequence[Question]]
  if _FILE.value:
    task = asked.parts.task
    own = task if isinstance(task, OwnQuestions) else OwnQuestions
    questions = asking.read(asked.team, _FILE.value, terms, (own.question, own.answer))
    for question in questions:  # before the first one is asked
      try:
        asked.check_words(question)
      except ValueError as error:
        line = question.id.removeprefix('asked-')
        raise ValueError(f'{_FILE.value}, line {line}: {error}') from error
    size = asked.parts.config.evaluation.batch_questions
    parts = evaluate.in_batches(questions, size)
  elif _QUESTION.value is not None:
    parts = [[asking.asked(asked.team, 0, _QUESTION.value, _NOTE.value, terms)]]
  else:
    parts = ([question] for question in _typed(asked, terms))
  display = _Lines(asked) if _JSON.value else ConversationDisplay(asked.team)
  _ = asked.loaded  # before the first prompt for input
  for part in parts:
    try:
      _ask(asked, part, display)
    except ValueError as error:
      if isinstance(parts, list):
        raise
      print(f'error: {error}', file=sys.stderr)  # an interactive user can try again


def _ask(asked: TeamOfRun, questions: Sequence[Question], display: Any) -> None:
  """Asks some questions at once; shows the messages about a single one as they are written."""
  from agent_gspo.teams import batches

  for question in questions:
    asked.check_words(question)
  start, live = time.monotonic(), len(questions) == 1
  if live:
    display.begin(questions[0])
  batch, answers = asked.ask(
    questions,
    display.message if live else lambda message: None,
    temperature=_TEMPERATURE.value,
    max_tokens=_MAX_TOKENS.value,
  )
  seconds = (time.monotonic() - start) / len(questions)
  for i, (question, answer) in enumerate(zip(questions, answers, strict=True)):
    episode = batches.select(batch, [i])
    if not live:
      display.begin(question)
      for message in episode.messages:
        display.message(message)
    display.end(episode, answer, seconds)


class _Lines:
  """Display that prints a JSON object per episode."""

  def __init__(self, asked: TeamOfRun):
    self._asked = asked
    self.begin = self.message = lambda shown: None

  def end(self, batch: RolloutBatch, answer: str | None, seconds: float) -> None:
    from agent_gspo.evaluation import transcripts

    tokenizers = self._asked.loaded[0].tokenizers
    (record,) = transcripts.records(batch, [0], tokenizers, step=self._asked.step, split='')
    told = {key: record[key] for key in ('step', 'question', 'messages')}
    print(json.dumps({**told, 'answer': answer, 'seconds': round(seconds, 3)}), flush=True)


def _check_flags() -> None:
  _TEAM.check()
  if _FILE.value and (_QUESTION.value is not None or _NOTE.value):
    raise ValueError('--file has questions and notes of its own: leave out --question and --note.')
  if _NOTE.value and _QUESTION.value is None:
    raise ValueError('--note is given without --question.')
  if not _FILE.value and _QUESTION.value is None and sys.stdin is None:
    raise ValueError('standard input is closed; give --question or --file.')


def _typed(asked: TeamOfRun, terms: Terms | None) -> Iterator[Question]:
  """Yields questions from the keyboard, until end of input (Ctrl-D)."""
  from agent_gspo.evaluation import asking

  team = asked.team
  for number in itertools.count():
    try:
      text = _line('question: ')
      notes = [''] * team.num_agents
      for agent in asking.note_holders(team) if text.strip() else ():
        notes[agent] = _line(f'note of {team.names[agent]}: ')
      if not text.strip():
        continue
      question = asking.asked(team, number, text, notes, terms)
    except EOFError:
      print(file=sys.stderr if _JSON.value else None)
      return
    except ValueError as error:
      print(f'error: {error}', file=sys.stderr)
      continue
    yield question


def _line(prompt: str) -> str:
  """Reads a line from the keyboard; under --json prompts do not go to stdout."""
  if not _JSON.value:
    return input(prompt)
  print(prompt, end='', file=sys.stderr, flush=True)
  return input()


def cli() -> None:
  """Parses the flags and runs the command."""
  command.run(main)
