"""Scripted speakers for the relay task: talkative informants and a solver that adds.

A model trained from scratch imitates them before reinforcement learning starts, so
that it begins with a team that solves the task and talks too much.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_gspo.types import Question

if TYPE_CHECKING:
  from agent_gspo.tasks.relay.task import RelayTask

# 8 to 21 words and marks with a fact ("Ann has 7 pens") in the place of {note}.
_CARRIES_NOTE = (
  'my note says {note} .',
  'here is what I know : {note} .',
  'hi all , my note says that {note} .',
  'dear team , I can tell you that {note} .',
  'I have a note here , it says that {note} .',
  'I looked at my note , {note} , please use this number .',
  'hello team , I think that this is useful : {note} , please use it .',
  'hello all , I can tell you that {note} , I hope that this helps you .',
  'hello team , I looked at my note and it says that {note} , please use this .',
)
_EMPTY_NOTE = (
  'hi all , my note is empty .',
  'dear team , there is nothing on my note .',
  'hello all , I have nothing to tell you , I hope that this helps .',
  'hello team , I looked at my note and there is nothing on it , please use another .',
)
_TERSE_NOTHING = 'nothing'
_SOLVER_KNOWS = (
  'the answer is {answer} .',
  '{terms} , so the answer is {answer} .',
  'I see that {terms} , so the answer is {answer} .',
  'thank you all , I see that {terms} , so I think that the answer is {answer} .',
)
_SOLVER_GUESS = (
  'I guess that the answer is {answer} .',
  'I do not know , so I guess that the answer is {answer} .',
)


def script_words() -> set[str]:
  """Every word and punctuation mark of the phrases, numbers and notes left out."""
  phrases = _CARRIES_NOTE + _EMPTY_NOTE + _SOLVER_KNOWS + _SOLVER_GUESS
  words = {word for phrase in phrases for word in phrase.split() if not word.startswith('{')}
  return words | {_TERSE_NOTHING, 'and'}


def parse_fact(note: str) -> tuple[str, int, str] | None:
  """`(owner, count, object)` of a note such as "Ann has 7 pens."; None if it is no fact."""
  words = note.replace('.', ' ').split()
  if len(words) == 4 and words[1] == 'has' and words[2].isdecimal():
    return words[0], int(words[2]), words[3]
  return None


def talkative_message(
  task: RelayTask,
  question: Question,
  agent: int,
  rng: random.Random,
  *,
  terse_probability: float = 0.05,
  silence_probability: float = 0.0,
) -> str:
  """What a talkative informant says about its note, in the task's text style.

  Args:
    task: the task that made the question.
    question: the question.
    agent: index of the informant.
    rng: source of the choices.
    terse_probability: share of messages that are only owner and number ("Ann 7"), or
      "nothing" where the note holds no fact.
    silence_probability: share of the messages about an idle note that are "". Never
      those that are needed: training should meet silence, but start from a team that
      solves its task.
  """
  if not question.relevant[agent] and rng.random() < silence_probability:
    return ''
  note = question.notes[agent]
  if rng.random() < terse_probability:
    fact = parse_fact(note)
    return f'{fact[0]} {fact[1]}' if fact else _TERSE_NOTHING
  if not note:
    return task.render(rng.choice(_EMPTY_NOTE))
  return task.render(rng.choice(_CARRIES_NOTE).format(note=note.rstrip(' .')))


def solver_message(
  task: RelayTask,
  question: Question,
  delivered: Sequence[str],
  rng: random.Random,
  *,
  terse_probability: float = 0.05,
) -> str:
  """What the solver answers, in the task's text style.

  Args:
    task: the task that made the question.
    question: the question.
    delivered: what informant `i` said, "" if it was silent; one an informant. A fact
      counts as delivered if its owner and its number stand in the message as words.
    rng: source of the choices.
    terse_probability: share of answers that are only the number.

  Returns:
    The right answer if every needed fact was delivered, else a guess that is uniform
    over the answers that the delivered facts leave open.

  Raises:
    ValueError: if `delivered` has not one entry an informant, or a needed note states no fact.
  """
  if len(delivered) != len(question.notes):
    raise ValueError(
      f'delivered has {len(delivered)} entries for {len(question.notes)} informants; '
      'give one an informant, "" for silence'
    )
  known, missing = [], 0
  for note, relevant, message in zip(question.notes, question.relevant, delivered, strict=True):
    if not relevant:
      continue
    fact = parse_fact(note)
    if fact is None:
      raise ValueError(f'note {note!r} is needed, but states no fact')
    owner, count, _ = fact
    words = message.replace(',', ' ').replace('.', ' ').split()
    if owner in words and str(count) in words:
      known.append(count)
    else:
      missing += 1
  answer = sum(known) + rng.randint(missing, missing * task.max_count)
  if rng.random() < terse_probability:
    return str(answer)
  phrases = _SOLVER_GUESS if missing else _SOLVER_KNOWS
  terms = ' and '.join(map(str, known))
  return task.render(rng.choice(phrases).format(terms=terms, answer=answer))
