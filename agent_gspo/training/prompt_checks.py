"""Checks that a model can read the team's prompts: vocabulary, chat format, length."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config import Config, compatibility
from agent_gspo.config import check as config_lib
from agent_gspo.evaluation import evaluate as evaluation
from agent_gspo.models.text.tokenizer import WORD_LEVEL_SPECIAL, Tokenizer, word_level
from agent_gspo.packing import prefix_tree
from agent_gspo.teams import addressing, tools
from agent_gspo.teams.conversation import ENVIRONMENT
from agent_gspo.teams.prompts import Incoming, PromptWriter
from agent_gspo.teams.roles import Role
from agent_gspo.teams.team import Team
from agent_gspo.training.demonstrations import Demonstrations
from agent_gspo.types import Question, Terms

_QUESTIONS_READ = 1000  # training questions checked for unknown words
# Training questions measured for length: all of a benchmark, since one that is too long ends the
# run. A larger split is generated question by question, which takes longer, so it is sampled.
_LARGEST_SPLIT, _OF_LARGER_SPLITS = 20_000, 2000
# Blank question: fills a template so that only the role's own words remain.
_EMPTY = Question('', ' ', ' ', notes=(' ',), terms=Terms('', 0.0, ' '))
# Candidates for the longest question: the longest by characters, of these the longest by tokens.
_LONGEST, _MOST_TOKENS = 500, 64


def tokenizer_from_scratch(parts: config_lib.Parts) -> Tokenizer:
  """Returns a word-level tokenizer of the words of the task, roles, tools and term sheet.

  Raises:
    ValueError: The task has no vocabulary.
  """
  task, team = parts.task, parts.team
  if not hasattr(task, 'vocabulary'):
    sources = [parts.config.model.source, *(role.model for role in team.roles)]
    source = next(source for source in sources if source.startswith('random:'))
    raise ValueError(
      f'a model of source {source!r} needs a task with a vocabulary of its own; '
      f'{task.name!r} has none. Use a pretrained model.'
    )
  known = dict.fromkeys(task.vocabulary())
  for words in parts.config.budget.told_words:
    known.update(dict.fromkeys(words.split()))
  if team.addressing:
    known.update(dict.fromkeys(map(addressing.tag, team.names)))
  for role, name in zip(team.roles, team.names, strict=True):
    shown = [part for pair in role.examples for part in pair]
    incoming = role.incoming.format(sender=name, message=' ')
    for other in [*team.names, *([ENVIRONMENT] if task.converse else [])]:
      incoming += ' ' + role.incoming.format(sender=other, message=' ')
    opening = role.opening_of(_EMPTY, 0)
    texts = [role.system, opening, incoming, role.cue_at(0), role.separator, *shown]
    if role.shows_left:
      texts += map(str, range(_most_left(parts) + 1))
    texts += [' '.join(tools.find(tool, 'team.roles.*.tools').words) for tool in role.tools]
    for text in texts:
      known.update(dict.fromkeys(text.split()))
  return word_level([word for word in known if word not in WORD_LEVEL_SPECIAL])


def _most_left(parts: config_lib.Parts) -> int:
  """Returns the largest number that a cue can contain."""
  config = parts.config
  return compatibility.largest_left(parts.team, config.budget.to_dict(), config.evaluation.told)


@dataclasses.dataclass(frozen=True)
class PromptLengths:
  """Tokens of an agent's longest prompts, all earlier messages at their caps.

  Attributes:
    opening: Tokens of the prefix that all episodes about a question share.
    turns: Tokens of the prompt of each of the agent's turns.
    common: Tokens of the prefix that all questions share, the role's own words.
  """

  opening: int
  turns: tuple[int, ...]
  common: int = 0


def check(
  parts: config_lib.Parts, tokenizer: Tokenizer, contexts: Mapping[str, int]
) -> tuple[PromptLengths, ...]:
  """Checks the prompts that the questions of a run lead to, before anything is computed.

  Args:
    parts: Parts of the run.
    tokenizer: Tokenizer of the trained model.
    contexts: Context length of each model by `Role.model`, positions.

  Returns:
    The prompt lengths of each agent.

  Raises:
    ValueError: The chat template is broken, a word-level tokenizer lacks a word, or a prompt
      cannot fit the model's context or a packed row.
  """
  writers = parts.team.prompt_writers(tokenizer)
  for writer in writers:
    role, source = writer.role, _source(parts, writer.role)
    if role.style == 'chat':
      try:
        writer.tokenizer.check_chat(system=bool(role.system), variables=role.chat_variables)
      except ValueError as error:
        raise ValueError(f'{source}, for team.roles.{role.name}.style="chat": {error}') from error
  for toolbox in parts.team.toolboxes(tokenizer):
    toolbox.check()
  if any(writer.tokenizer.is_word_level for writer in writers):
    _check_words(parts, tokenizer, _questions(parts, _read))
  lengths = _check_lengths(parts, writers, _questions(parts, _measured), contexts)
  _check_demonstrations(parts, tokenizer)
  return lengths


def _source(parts: config_lib.Parts, role: Role) -> str:
  """Returns the config field and value of a role's model."""
  field = f'team.roles.{role.name}.model={role.model!r}'
  return field if role.model else f'model.source={parts.config.model.source!r}'


def _check_demonstrations(parts: config_lib.Parts, tokenizer: Tokenizer) -> None:
  """Raises ValueError if the first SFT step has no demonstration that fits."""
  if not parts.training or not parts.config.sft.is_asked_for:
    return
  shown, _ = Demonstrations(
    parts.task, parts.team, tokenizer, parts.config, parts.term_sheet
  ).shown(0)
  if not shown:
    raise ValueError(
      f'sft: none of {parts.config.sft.questions} questions of task {parts.task.name!r} has '
      "a demonstration that fits into the team's messages. Raise "
      'team.max_message_tokens, team.roles.*.max_tokens or, where it is set, '
      'team.max_episode_tokens; or raise sft.terse_probability, if the task has shorter ones.'
    )


def _questions(
  parts: config_lib.Parts, picked: Callable[[Sequence[Question]], Sequence[int]]
) -> list[Question]:
  """Returns the questions of evaluations and validation, and those `picked` of what is learned."""
  options, sft = parts.config.evaluation, parts.config.sft
  found = evaluation.evaluated_questions(parts.task, options, options.questions)
  if parts.training:
    found += evaluation.evaluated_questions(parts.task, options, options.questions_during)
    found += evaluation.evaluated_questions(parts.task, options, options.seen_questions, 'train')
    learned = [parts.task.questions('train')]
    if sft.is_asked_for:
      learned.append(parts.task.further_demonstrations())
      if sft.validation_questions:
        validation = parts.task.questions('validation')
        found += [validation[i] for i in range(min(sft.validation_questions, len(validation)))]
    found += [questions[i] for questions in learned for i in picked(questions)]
  longest = max(parts.config.budget.told_words, key=len, default='')
  return [dataclasses.replace(q, terms=Terms('', 0.0, longest)) for q in found]


def _read(questions: Sequence[Question]) -> Sequence[int]:
  """Returns indices of the questions whose words are looked up."""
  return range(min(len(questions), _QUESTIONS_READ))


def _measured(questions: Sequence[Question]) -> Sequence[int]:
  """Returns indices of the questions whose prompts are measured."""
  size = len(questions)
  count = size if size <= _LARGEST_SPLIT else _OF_LARGER_SPLITS
  return evaluation.question_indices(size, count, spread=True)


def _check_words(parts: config_lib.Parts, tokenizer: Tokenizer, questions: list[Question]) -> None:
  """Raises ValueError for a word that the vocabulary lacks, over all joins of texts."""
  for agent, writer in enumerate(parts.team.prompt_writers(tokenizer)):
    for shown, text in _texts(parts, agent, writer, questions):
      if unknown := writer.tokenizer.unknown_words(text):
        raise ValueError(_about_word(unknown[0], writer, shown, parts))
  sft = parts.config.sft
  if parts.training and sft.is_asked_for:
    words: list[str] = getattr(parts.task, 'vocabulary', list)()
    for writer in parts.team.prompt_writers(tokenizer):
      if writer.role.learns and (unknown := writer.tokenizer.unknown_words(' '.join(words))):
        raise ValueError(
          f'{sft.length}: the word {unknown[0]!r} of task {parts.task.name!r} is not in the '
          f'vocabulary of {_source(parts, writer.role)}. Use a model that knows it.'
        )


def _texts(
  parts: config_lib.Parts, agent: int, writer: PromptWriter, questions: list[Question]
) -> Iterator[tuple[Question | None, str]]:
  """Yields the texts that an agent's prompts are built from, some with their question."""
  team, left = parts.team, _most_left(parts)
  for text in writer.preamble_texts:
    yield None, text
  yield None, writer.role.separator
  for round_ in range(min(team.topology.rounds, 2)):
    names = [team.names[author] for author, _ in team.topology.reads(agent, round_)]
    # Silent senders are left out of a prompt: it may contain none, one or all of them.
    for senders in ([], *([name] for name in names), names):
      for text in writer.texts('', [Incoming()] * round_ + [Incoming(senders, left)]):
        yield None, text
    # The opening precedes an agent's first turn: in round 0, for a judge in the last round.
    for question in questions if not round_ or agent in team.topology.last_round_only else ():
      for senders in ([], names[:1]):
        opening = writer.opening(question, agent)
        yield question, writer.texts(opening, [Incoming(senders, left)])[0]


def _about_word(
  word: str, writer: PromptWriter, question: Question | None, parts: config_lib.Parts
) -> str:
  """Returns the error about an unknown word: from the task, a role, or a join of both."""
  role = writer.role
  where = f'team.roles.{role.name}'
  lacks = f'which the vocabulary of {_source(parts, role)} lacks'
  texts = [question.text, question.answer, *question.notes] if question else ()
  if question is not None and word in ' '.join(texts).split():
    return (
      f'{where}.opening={role.opening!r}: question {question.id} of task {parts.task.name!r} holds '
      f'the word {word!r}, {lacks}. Use a model that knows it, or a task that separates '
      "punctuation (relay: task.options.text_style='words')."
    )
  fields = {
    'system': role.system,
    'examples': ' '.join(text for pair in role.examples for text in pair),
    'opening': role.opening_of(_EMPTY, 0),
    'incoming': ' '.join(role.incoming.format(sender=n, message=' ') for n in parts.team.names),
    'cue': role.cue_at(0),
    'separator': role.separator,
  }
  inside = [field for field, text in fields.items() if word in text.split()]
  if inside:
    return f'{where}.{inside[0]} holds the word {word!r}, {lacks}. Use words that it knows.'
  parts_of = [f for f, text in fields.items() if any(piece in word for piece in text.split())]
  return (
    f'{where}: the word {word!r}, {lacks}, arises where two texts join '
    f'({", ".join(parts_of) or "opening"}). Begin and end these with a space or a line break.'
  )


def _check_lengths(
  parts: config_lib.Parts,
  writers: Sequence[PromptWriter],
  questions: list[Question],
  contexts: Mapping[str, int],
) -> tuple[PromptLengths, ...]:
  """Checks the longest prompts that the questions can lead to, all messages at their caps."""
  team, cap, left = parts.team, parts.team.max_message_tokens, _most_left(parts)
  learned, found = (0, ''), []  # most tokens, and the question
  read: dict[str, tuple[int, str]] = {}  # likewise, by model
  # Agents of a role without a note have the same opening.
  longest = functools.cache(functools.partial(_longest, questions))
  # Scored where its model is frozen, too.
  valued = team.num_agents - 1 if scores_gold_answers(parts.config) else None
  for agent, writer in enumerate(writers):
    question, turns = _longest_turns(parts, writers, agent, questions, longest)
    opening, blank = (writer.begin(q, agent).prompt([], left) for q in (question, _EMPTY))
    common = prefix_tree.shared_prefix(*map(np.asarray, (opening, blank)))
    found.append(PromptLengths(len(opening), turns, common))
    # The sampler's rows have room for the team's longest message.
    model = writer.role.model if writer.role.model in contexts else ''
    read[model] = max(read.get(model, (0, '')), (max(turns) + cap, question.id))
    scored = agent == valued and writer.role.model in contexts
    if writer.role.learns or scored:
      learned = max(learned, (max(turns) + team.message_cap(agent), question.id))
  leads = 'question {1} can lead to a prompt and message of {0} tokens'.format
  for model, most in read.items():
    if most[0] > contexts[model]:
      of = f' of {model}' if model else ''
      raise ValueError(
        f"{leads(*most)}, but the model's context{of} is {contexts[model]}. Shorten the roles' "
        f'examples, lower team.rounds or team.max_message_tokens={cap}.'
      )
  if parts.training:
    _check_row(parts, learned[0], leads(*learned))
  return tuple(found)


def check_teacher(
  parts: config_lib.Parts, teacher: config_lib.Parts, tokenizer: Tokenizer
) -> tuple[PromptLengths, ...]:
  """Checks that a packed row holds an answer at the longest prompt of the team that teaches.

  Returns:
    The prompt lengths of each of its agents.

  Raises:
    ValueError: It does not.
  """
  writers = teacher.team.prompt_writers(tokenizer)
  train = teacher.task.questions('train')
  questions = [train[i] for i in _measured(train)]
  longest, found = functools.partial(_longest, questions), list[PromptLengths]()
  for agent, writer in enumerate(writers):
    question, turns = _longest_turns(teacher, writers, agent, questions, longest)
    opening = writer.begin(question, agent).prompt([], _most_left(teacher))
    found.append(PromptLengths(len(opening), turns))
  needed, name = max(turns) + parts.team.message_cap(0), parts.config.objective.teacher
  reads = f'can read {needed} tokens about question {question.id}, the answer included'
  _check_row(parts, needed, f'the team of objective.teacher={name!r} {reads}')
  return tuple(found)


def _check_row(parts: config_lib.Parts, needed: int, cause: str) -> None:
  """Raises ValueError if a packed row holds fewer tokens than needed."""
  row = parts.config.learner.pack_length
  if needed > row:
    raise ValueError(
      f'learner.pack_length={row} is too short: {cause}. Set '
      f'learner.pack_length={-(-needed // 64) * 64} or more.'
    )


def _longest_turns(
  parts: config_lib.Parts,
  writers: Sequence[PromptWriter],
  agent: int,
  questions: Sequence[Question],
  longest: Callable[[PromptWriter, int], list[Question]],
) -> tuple[Question, tuple[int, ...]]:
  """Returns the question of an agent's longest first prompt, and the tokens in each turn.

  Later turns add the same tokens for every question.
  """
  lengths = functools.partial(_prompt_lengths, parts.team, agent, writers, _most_left(parts))
  noted = max((len(q.notes) for q in questions), default=0)
  candidates = [
    dataclasses.replace(question, terms=Terms('', 0.0, words))
    for question in longest(writers[agent], min(agent, noted))
    for words in parts.config.budget.told_words or ('',)
  ]
  question = max(candidates, key=lambda q: next(lengths(q)))
  return question, tuple(lengths(question))


def scores_gold_answers(config: Config) -> bool:
  """Returns whether gold answers are scored at the prompts of the answering agent."""
  return config.advantage.name in estimators.GAINS or config.evaluation.worth_questions > 0


def _longest(questions: Sequence[Question], writer: PromptWriter, agent: int) -> list[Question]:
  """Returns the questions whose opening has the most tokens for an agent."""
  shown = [writer.role.opening_of(question, agent) for question in questions]
  length = lambda i: len(writer.tokenizer.encode(shown[i], special=False))
  places = sorted(range(len(questions)), key=lambda i: -len(shown[i]))[:_LONGEST]
  return [questions[i] for i in sorted(places, key=lambda i: -length(i))[:_MOST_TOKENS]]


def _prompt_lengths(
  team: Team,
  agent: int,
  writers: Sequence[PromptWriter],
  left: int,
  question: Question,
) -> Iterator[int]:
  """Yields the tokens of an agent's prompts, one count per turn."""
  own, cap = writers[agent], team.message_cap(agent)
  conversation, some_id = own.begin(question, agent), own.tokenizer.eos_id
  for round_ in range(team.topology.rounds):
    if not any(agent in layer for layer in team.topology.turns(round_)):
      continue
    incoming = [
      (team.names[a], [some_id] * writers[a].longest_said(team.message_cap(a), own))
      for a, _ in team.topology.reads(agent, round_)
    ]
    yield len(conversation.prompt(incoming, left))
    conversation.wrote([some_id] * cap, ended=False)
