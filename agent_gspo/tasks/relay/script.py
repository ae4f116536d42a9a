"""Writes demonstrations for the relay task: verbose informants, a solver that adds what it reads.

SFT imitates them before RL, so that a model trained from scratch starts from a team that
solves the task and writes too much.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Sequence

from agent_gspo.types import Question

# 8 to 21 words and marks with a fact ("Ann has 7 pens") in place of {note}.
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
  """Returns every word and punctuation mark of the phrases, without numbers and notes."""
  phrases = _CARRIES_NOTE + _EMPTY_NOTE + _SOLVER_KNOWS + _SOLVER_GUESS
  words = {word for phrase in phrases for word in phrase.split() if not word.startswith('{')}
  return words | {_TERSE_NOTHING, 'and'}


def parse_fact(note: str) -> tuple[str, int, str] | None:
  """Parses `(owner, count, object)` from a note such as "Ann has 7 pens."; None if not a fact."""
  words = note.replace('.', ' ').split()
  if len(words) == 4 and words[1] == 'has' and words[2].isdecimal():
    return words[0], int(words[2]), words[3]
  return None


def facts_in(text: str, owners: Collection[str]) -> dict[str, str]:
  """Returns the count that a text gives each owner: the last number after the owner's name."""
  found, owner = {}, ''
  for word in re.findall(r'\w+', text):
    if word in owners:
      owner = word
    elif owner and word.isdecimal():
      found[owner] = word
  return found


def states(messages: Sequence[str], fact: tuple[str, int, str]) -> bool:
  """Returns whether the owner and the number of a fact are words of one of the messages."""
  words = (set(re.findall(r'\w+', message)) for message in messages)
  return any({fact[0], str(fact[1])} <= said for said in words)


def talkative_message(
  render: Callable[[str], str],
  question: Question,
  agent: int,
  rng: random.Random,
  terse_probability: float,
  silence_probability: float,
  passed_on: Sequence[str] = (),
) -> str:
  """Writes a verbose informant's message about its note.

  Args:
    render: Renders words in the text style of the task.
    question: Question with notes.
    agent: Index of the informant.
    rng: Random generator.
    terse_probability: Share of messages with only owner and number ("Ann 7"), or
      "nothing" for a note without a fact.
    silence_probability: Share of messages about irrelevant notes that are "". Messages about
      relevant notes never are: training should start from a team that solves its task.
    passed_on: Facts that the message repeats before its own note; never silent with one.
  """
  silent = not question.relevant[agent] and rng.random() < silence_probability
  if silent and not passed_on:
    return ''
  notes = [*passed_on, *([] if silent else [question.notes[agent]])]
  if rng.random() < terse_probability:
    facts = [f'{fact[0]} {fact[1]}' for fact in map(parse_fact, notes) if fact]
    return ' '.join(facts) or _TERSE_NOTHING
  note = ' and '.join(note.rstrip(' .') for note in notes if note)
  if not note:
    return render(rng.choice(_EMPTY_NOTE))
  return render(rng.choice(_CARRIES_NOTE).format(note=note))


def solver_message(
  render: Callable[[str], str],
  max_count: int,
  question: Question,
  delivered: Sequence[str],
  rng: random.Random,
  terse_probability: float,
) -> str:
  """Writes the solver's answer.

  Args:
    render: Renders words in the text style of the task.
    max_count: Highest count of a fact.
    question: Question whose relevant notes state a fact each.
    delivered: Messages. A fact counts as delivered if a message `states` it.
    rng: Random generator.
    terse_probability: Share of answers that are only the number.

  Returns:
    The right answer if every relevant fact was delivered, else a guess that is uniform
    over the answers consistent with the delivered facts.
  """
  known, missing = [], 0
  for note, relevant in zip(question.notes, question.relevant, strict=True):
    fact = parse_fact(note) if relevant else None
    if fact is None:
      continue
    if states(delivered, fact):
      known.append(fact[1])
    else:
      missing += 1
  answer = sum(known) + rng.randint(missing, missing * max_count)
  if rng.random() < terse_probability:
    return str(answer)
  phrases = _SOLVER_GUESS if missing else _SOLVER_KNOWS
  terms = ' and '.join(map(str, known))
  return render(rng.choice(phrases).format(terms=terms, answer=answer))
