"""Builds SFT messages: demonstrations of a task, in the team's own prompts."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo import streams
from agent_gspo.algorithms import terms
from agent_gspo.config import Config
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.plugins import PluginError
from agent_gspo.tasks import base, checked
from agent_gspo.tasks.base import Task
from agent_gspo.teams import addressing
from agent_gspo.teams.policies import ScriptedPolicy, Turn
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import Team
from agent_gspo.teams.tools import Toolbox
from agent_gspo.training.options import SFTOptions
from agent_gspo.types import Message, Question, RolloutBatch

_DRAWN = 8  # candidate texts, of which the one closest to the tokens left is used


@dataclasses.dataclass(frozen=True)
class Demonstrations:
  """The demonstrations of a run, split into steps.

  Attributes:
    task: Task with a `demonstration` method.
    team: Team whose prompts and topology are used.
    tokenizer: Tokenizer of the policy.
    config: Resolved run configuration.
    sheet: Term sheet of a conditioned team, drawn from as in training.
  """

  task: Task
  team: Team
  tokenizer: Tokenizer
  config: Config
  sheet: terms.TermSheet | None = None

  @property
  def options(self) -> SFTOptions:
    return self.config.sft

  @functools.cached_property
  def _writers(self) -> tuple[PromptWriter, ...]:
    return self.team.prompt_writers(self.tokenizer)

  @functools.cached_property
  def _toolboxes(self) -> tuple[Toolbox, ...]:
    return self.team.toolboxes(self.tokenizer)

  @functools.cached_property
  def questions(self) -> Sequence[Question]:
    """Returns the questions of the training split and the task's further demonstrations."""
    return base.demonstrated(self.task, self.options.held_back)

  @functools.cached_property
  def note_holders(self) -> int:
    """Returns the number of agents with a note; these are the first ones."""
    return base.note_holders(self.questions)

  @property
  def seed(self) -> int:
    """Returns the seed of their order and wording."""
    return self.options.seed_of(self.config.seed)

  @property
  def steps(self) -> int:
    """Returns the number of SFT steps."""
    return self.options.steps_of(len(self.questions))

  def of_step(self, step: int) -> tuple[list[Message], float]:
    """Returns the messages of a step, and the share of its messages that was left out."""
    shown, left_out = self.shown(step)
    drawn = random.Random(f'{self.seed}/{step}/shares')
    kept = [m for m in shown if self._share(m) >= 1 or drawn.random() < self._share(m)]
    if not kept:  # small shares of few questions
      kept = [m for m in shown if self._share(m)][:1]
    return kept, left_out

  def shown(self, step: int) -> tuple[list[Message], float]:
    """Returns a step's messages before `role_shares` apply, and the share that was left out."""
    count = self.options.questions
    places = range(step * count, (step + 1) * count)
    batch = self._on_terms([self.questions[self._drawn(place)] for place in places], step)
    return self._messages(batch, random.Random(f'{self.seed}/{step}'))

  def of_validation(self) -> dict[str, list[Message]]:
    """Returns messages of the validation split by role, the same in every call."""
    shown, _ = self._messages(self._validation_questions, random.Random('validation'))
    by_role: dict[str, list[Message]] = {}
    for message in shown:
      if self._share(message):
        by_role.setdefault(self.team.roles[message.agent].name, []).append(message)
    return by_role

  def silent_validation(self) -> RolloutBatch:
    """Returns episodes about the same validation questions in which all agents are silent."""
    policy = ScriptedPolicy(lambda turn: '', self.tokenizer, tokenizers=self.team.tokenizers)
    return rollout(self.team, self.task, self.tokenizer, self._validation_questions, 1, policy)

  @property
  def _validation_questions(self) -> Sequence[Question]:
    found = self.task.questions('validation')
    count = min(self.options.validation_questions, len(found))
    return self._on_terms([found[i] for i in range(count)], 0)

  def _on_terms(self, questions: Sequence[Question], step: int) -> Sequence[Question]:
    if self.sheet is None:
      return questions
    return terms.put(
      questions, self.sheet.draw(len(questions), (self.seed, streams.SFT_TERMS, step))
    )

  def _share(self, message: Message) -> float:
    """Returns the trained share of the messages of the author's role."""
    return self.options.role_shares.get(self.team.roles[message.agent].name, 1.0)

  def _drawn(self, place: int) -> int:
    """Returns the question index at a place of SFT; each epoch shuffles all questions anew."""
    epoch, within = divmod(place, len(self.questions))
    return int(_order(self.seed, epoch, len(self.questions))[within])

  def _messages(
    self, questions: Sequence[Question], rng: random.Random
  ) -> tuple[list[Message], float]:
    """Returns the messages to imitate of scripted episodes, and the share that is left out.

    Left out are messages without a demonstration, and all messages of a question where one would
    exceed the cap: the other agents would lack the missing part. In outspoken episodes irrelevant
    notes are sent too, so that readers see them; those messages are read, not imitated.
    """
    share = self.options.outspoken_probability
    outspoken = {i for i in range(len(questions)) if share and rng.random() < share}
    questions = [dataclasses.replace(q) for q in questions]  # one may occur twice in a step
    places = {id(question): i for i, question in enumerate(questions)}
    nothing: set[tuple[int, int, int]] = set()
    too_long: set[int] = set()
    heard: dict[tuple[int, int], dict[int, str]] = {}  # (place, reader) -> author -> last message

    def speak(turn: Turn) -> str:
      place = places[id(turn.question)]
      known = heard.setdefault((place, turn.agent), {})
      known |= {author: told for author, told in turn.delivered.items() if told}
      text = self._text(turn, known, rng, outspoken=place in outspoken)
      if text is None:
        nothing.add((place, turn.agent, turn.round))
        return ''
      if self._length(turn, text) >= turn.limit:
        too_long.add(place)
        return ''
      return text

    policy = ScriptedPolicy(speak, self.tokenizer, self._inserted, self.team.tokenizers)
    spoken = rollout(self.team, self.task, self.tokenizer, questions, 1, policy)
    if not spoken.messages:
      raise PluginError(
        f'{checked.name_of(self.task)}: no agent takes a turn (observe returned None for all, or '
        'converse yields none).'
      )
    shown, left_out = [], 0
    for message in spoken.messages:
      if not message.learns:
        continue
      place, agent = message.episode, message.agent
      if place in too_long or (place, agent, message.round) in nothing:
        left_out += 1
      elif place not in outspoken or all(questions[place].relevant[agent : agent + 1]):
        shown.append(message)
    return shown, left_out / len(spoken.messages)

  def _inserted(self, turn: Turn, ids: np.ndarray) -> np.ndarray:
    """Returns the tokens that a tool inserted, bool `[W]`; they are not imitated."""
    return self._toolboxes[turn.agent].inserted(ids, turn.question)

  def _text(
    self, turn: Turn, heard: Mapping[int, str], rng: random.Random, *, outspoken: bool
  ) -> str | None:
    task: Any = self.task  # config.check ensures that it has `demonstration`
    on_terms = self._at_brevity(turn.question)
    in_environment = {} if turn.state is None else {'state': turn.state}
    authors = self.team.num_agents if in_environment else len(turn.question.notes)

    def demonstrated() -> str | None:
      return task.demonstration(
        turn.question,
        turn.agent,
        [heard.get(agent, '') for agent in range(authors)],
        rng,
        **in_environment,
        terse_probability=on_terms(self.options.terse_probability),
        silence_probability=0.0 if outspoken else on_terms(self.options.silence_probability),
      )

    text = demonstrated()
    length = lambda text: self._length(turn, text or '')
    if self._fits_what_is_left(turn):
      others = [text, *(demonstrated() for _ in range(_DRAWN - 1))]
      text = min(others, key=lambda text: abs(length(text) - turn.left))
    elif turn.limit < self.team.message_cap(turn.agent):  # shortened by team.max_episode_tokens
      tries = 1
      while length(text) >= turn.limit and tries < _DRAWN:
        text, tries = demonstrated(), tries + 1
    if text:
      text = self._addressed(turn, text, rng)
    return text and self._writers[turn.agent].as_written(text)

  def _length(self, turn: Turn, text: str) -> int:
    """Returns the tokens of a text in the author's tokenizer."""
    return len(self._writers[turn.agent].tokenizer.encode(text, special=False))

  def _fits_what_is_left(self, turn: Turn) -> bool:
    """Returns whether the author's prompt shows the budget left and demonstrations follow it."""
    told = self.sheet is not None and self.sheet.kind == 'budget'
    follows = self.options.follows_terms > 0
    return told and follows and self.team.roles[turn.agent].shows_left

  def _addressed(self, turn: Turn, text: str, rng: random.Random) -> str:
    """Returns the text, with some probability addressed to a few of its possible readers."""
    share = self.options.addressed_probability
    hearers = self.team.hearers(turn.agent, turn.round) if share else []
    if not hearers or rng.random() >= share:
      return text
    called = 1
    while called < len(hearers) and rng.random() < 0.5:
      called += 1
    return addressing.begin(rng.sample(hearers, called), text)

  def _at_brevity(self, question: Question) -> Callable[[float], float]:
    """Returns a function that raises a probability of brevity by a question's terms."""
    if self.sheet is None or question.terms is None:
      return lambda probability: probability
    asked = self.options.follows_terms * self.sheet.brevity(question.terms)
    return lambda probability: probability + asked * (1 - probability)


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
  draw = (epoch,) if epoch else ()
  return streams.generator(seed, streams.SFT_ORDER, *draw).permutation(count)
