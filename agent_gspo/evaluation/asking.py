"""Runs a team on the user's own questions, without gold answers."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.tasks import own_questions
from agent_gspo.tasks.base import Task
from agent_gspo.teams.policies import Policy, Turn
from agent_gspo.teams.rollout import rollout, without_hints
from agent_gspo.teams.team import Team
from agent_gspo.types import Message, Question, RolloutBatch, Terms
from agent_gspo.values import is_text, shown

_BYTE_ORDER_MARK = '\ufeff'  # some editors begin a file with it
# Fields of a line, those of a task's own questions; gold answers and the like are not used.


def ask(
  team: Team,
  task: Task,
  tokenizer: Tokenizer,
  questions: Sequence[Question],
  policy: Policy,
  listener: Callable[[Message], None],
) -> tuple[RolloutBatch, list[str | None]]:
  """Samples one episode about each question (see `asked`), as one batch.

  `task` defines the form of an answer. `listener` is called with each message as soon as its layer
  is complete.

  Returns:
    The episodes, and each answer in its canonical form; None if it has none.

  Raises:
    ValueError: A question is too long for the model, or (see `check_words`) cannot be encoded.
  """
  voice = without_hints(policy, team, tokenizer)
  batch = rollout(team, _Ungraded(task), tokenizer, questions, 1, voice, listener=listener)
  return batch, [task.canonical(answer) for answer in batch.answers]


def as_text(
  team: Team, tokenizer: Tokenizer, listener: Callable[[int, int, str], Any]
) -> Callable[[Turn, np.ndarray], None]:
  """Returns a policy's listener that gets tokens and passes agent, round and text so far."""
  writers = team.prompt_writers(tokenizer)

  def hear(turn: Turn, ids: np.ndarray) -> None:
    listener(turn.agent, turn.round, writers[turn.agent].text_so_far(ids))

  return hear


def asked(
  team: Team,
  number: int | str,
  text: str,
  notes: Sequence[str] = (),
  terms: Terms | None = None,
  documents: Sequence[str] = (),
) -> Question:
  """Makes a question from the user's text and notes.

  Args:
    team: Team that will answer it.
    number: Number of the question, the seed of its sampling noise.
    text: Question, read by all agents.
    notes: Private notes of the first agents, one each, "" for none.
    terms: Price or budget, if prompts state one.
    documents: Texts that the tool `retriever` searches.

  Raises:
    ValueError: The question is empty, a note has no reader, or a text is invalid Unicode.
  """
  text, *notes = (given.lstrip(_BYTE_ORDER_MARK) for given in (text, *notes))
  if broken := [given for given in (text, *notes, *documents) if not is_text(given)]:
    raise ValueError(
      f'{shown(broken[0])} has half a surrogate pair, which is invalid Unicode; leave it out.'
    )
  if not text.strip():
    raise ValueError('the question is empty; write what all agents should read.')
  if len(notes) > team.num_agents:
    raise ValueError(
      f'{len(notes)} notes for {team.num_agents} agents ({", ".join(team.names)}); give each one '
      'note at most.'
    )
  holders = ', '.join(team.names[i] for i in note_holders(team)) or 'none'
  for name, role, note in zip(team.names, team.roles, notes, strict=False):
    if note and not role.shows_note:
      raise ValueError(
        f'note {shown(note)} is for {name}, whose role {role.name!r} shows no note (its opening is '
        f'{role.opening!r}); notes go to the agents {holders}.'
      )
  documents, notes = tuple(documents), tuple(notes)
  return Question(f'asked-{number}', text.strip(), '', notes, terms=terms, documents=documents)


def check_words(team: Team, tokenizer: Tokenizer, question: Question, example: str = '') -> None:
  """Checks that a team's tokenizer knows the words of a question, its notes and its budget.

  Raises:
    ValueError: A word-level tokenizer does not know a word; names it.
  """
  for text in (question.text, *question.notes):
    if unknown := tokenizer.unknown_words(text, special=False):
      raise ValueError(
        f'unknown word {shown(unknown[0])}: this team knows only the words of its task. Ask in '
        f'those{f", as in {shown(example)}" if example else ""}.'
      )
    tokenizer.encode(text, special=False)
  if any(role.shows_left for role in team.roles):
    most = str(team.told_left(question.terms, 0, 0))
    if tokenizer.unknown_words(most):
      raise ValueError(
        f'budget={most}: the team is told how many tokens are left of it, and its vocabulary does '
        'not count so far. Give a smaller one.'
      )


def note_holders(team: Team) -> list[int]:
  """Returns the agents whose prompt shows a note."""
  return [i for i, role in enumerate(team.roles) if role.shows_note]


def read(
  team: Team,
  file: str | pathlib.Path,
  terms: Terms | None = None,
  names: tuple[str, str] = ('question', 'answer'),
) -> list[Question]:
  """Reads questions as a task of own questions does, without their answers.

  Lines are {"question": "...", "notes": ["...", ...]}; see `own_questions.records`.

  Args:
    team: Team that will answer them.
    file: File of questions.
    terms: Price or budget, if prompts state one.
    names: Fields of question and answer.

  Raises:
    ValueError: A line has another form, or `asked` refuses it; names the line. Or the file is
      not UTF-8, or has no question.
    FileNotFoundError: There is no such file.
  """
  found = []
  for where, line, fields in own_questions.records(str(file), '--file'):
    try:
      found.append(_of_fields(team, line, fields, terms, names))
    except ValueError as error:
      raise ValueError(f'{where}: {error}') from error
  if not found:
    raise ValueError(f'{file} holds no question.')
  return found


def _of_fields(
  team: Team,
  line: str,
  fields: Mapping[str, Any],
  terms: Terms | None,
  names: tuple[str, str],
) -> Question:
  own_questions.check_names(fields, names)
  if names[0] not in fields:
    raise ValueError(f'there is no field {names[0]!r}, only {shown(sorted(fields))}.')
  text, notes = fields[names[0]], own_questions.notes(fields)
  documents = fields.get('documents') or []
  lists = [[text], notes, documents]
  if not all(isinstance(x, list) and all(isinstance(y, str) for y in x) for x in lists):
    form = f'{{"{names[0]}": "...", "notes": ["...", ...], "documents": ["...", ...]}}'
    raise ValueError(f'{shown(fields)} is not of the form {form}')
  return asked(team, line, text, notes, terms, documents)


class _Ungraded(Task):
  """Task that canonicalizes answers and gives each a score of 0."""

  def __init__(self, task: Task):
    self.name, self.converse, self._task = task.name, task.converse, task

  def _split(self, split: str) -> Sequence[Question]:
    return self._task._split(split)

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 0, since there is no gold answer."""
    return 0.0

  def canonical(self, answer_text: str) -> str | None:
    """Returns the canonical form by the task."""
    return self._task.canonical(answer_text)
