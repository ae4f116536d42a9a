"""Measures the worth of each message to the answering agent.

The value of a set of messages is that of the answering agent's prompt after it has read these and
no others: the log-probability of the gold answer, for which nothing is sampled, or the mean score
of answers sampled anew. `algorithms.attribution` divides it. Messages count that the answering
agent reads itself, without their effect through other readers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_gspo.algorithms import attribution
from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config import Config
from agent_gspo.evaluation import judgement
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.rewards import communication
from agent_gspo.tasks.base import Task
from agent_gspo.teams import batches, counts
from agent_gspo.teams.team import Team
from agent_gspo.training import state as state_lib
from agent_gspo.training.answer_values import (
  GoldAnswers,
  Prompt,
  Read,
  Replays,
  Values,
  scored_message,
)
from agent_gspo.training.hints import Hints
from agent_gspo.types import Message, Question, RolloutBatch

if TYPE_CHECKING:
  from agent_gspo.training.learner import Learner
  from agent_gspo.training.policy_loss import PolicyParams
  from agent_gspo.training.setup import Setup
  from agent_gspo.training.state import TrainState

PRICES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Prices of the oracle frontier, nats per token."""

_KINDS = {'relevant': 1, 'irrelevant': 0}


@dataclasses.dataclass(frozen=True)
class MessageWorth:
  """Worth of `M` messages.

  In nats; in units of task score under 'replay' and 'spo_segment'; of signal under 'hill'.

  Attributes:
    gain: float32 `[M]`, nats, NaN where it was not measured.
    plain_gain: float32 `[M]`, nats of the author's plain note in the place of its message; in one
      episode of a question for each author and turn, NaN elsewhere.
    plain_written: int `[M]`, tokens of that note.
    plain_costs: float32 `[M]`, its costs, weights applied; None where nothing has a price.
    plain_needed: float32 `[M]`, nats above which its gain exceeds its cost over silence; None
      likewise.
    silence_costs: float32 `[M]`, costs of silence in the message's place; None likewise.
    figures: Further metrics.
    gold: Gold answers that could replace the answering agent's last messages, by index; in the
      form that is likeliest at the same prompt, with its log-probabilities. Empty without a text,
      or where its wording is left to the agent.
  """

  gain: np.ndarray
  plain_gain: np.ndarray
  plain_written: np.ndarray
  plain_costs: np.ndarray | None = None
  plain_needed: np.ndarray | None = None
  silence_costs: np.ndarray | None = None
  figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
  gold: Mapping[int, Message] = dataclasses.field(default_factory=dict)

  def metrics(self, batch: RolloutBatch) -> dict[str, float]:
    """Returns mean gains by relevance and per token, AUC, and the gold answer's log-prob."""
    told = ~np.isnan(self.gain) & ~batch.silent
    kinds = {kind: self.gain[told & (batch.relevant == flag)] for kind, flag in _KINDS.items()}
    found = {f'worth/{kind}_nats': float(x.mean()) for kind, x in kinds.items() if len(x)}
    found |= self.figures
    if self.plain_needed is not None:
      plain = ~np.isnan(self.plain_gain) & (batch.relevant == 1)
      if plain.any():
        pays = self.plain_gain[plain] >= self.plain_needed[plain]
        found['worth/relevant_plain_pays'] = float(pays.mean())
    if told.any():
      found['worth/nats_per_token'] = float(self.gain[told].sum() / batch.written[told].sum())
    if self.gold:
      found['worth/gold_nats'] = float(np.mean([m.logprobs.sum() for m in self.gold.values()]))
    if all(map(len, kinds.values())):
      found['worth/auc'] = judgement.auc(kinds['irrelevant'], kinds['relevant'])
    return found


def of_step(
  setup: Setup,
  learner: Learner,
  state: TrainState,
  batch: RolloutBatch,
  prices: Mapping[str, Any],
) -> MessageWorth | None:
  """Returns the worth of a rollout's messages under the current policy.

  None where the estimator reads no gains. `prices` are those of `communication.reward_terms`.
  """
  estimator = setup.config.advantage.name
  name = estimators.GAINS.get(estimator)
  if name is None:
    return None
  known = estimators.settings(setup.config.advantage)
  parts = setup.team, setup.task, setup.tokenizer, batch
  values: Values
  scored = learner.frozen_answers or functools.partial(
    learner.score_authors, functools.partial(state_lib.of_model, state)
  )
  if known.get('samples'):
    temperature = setup.config.rollout.temperature
    policy = setup.policy(
      state.params, stream='train', step=int(state.step), temperature=temperature
    )
    replays = Replays(*parts, policy, int(known['samples']))
    values = Hints(replays, scored, known['temperature']) if name == 'hint' else replays
  else:
    values = GoldAnswers(*parts, scored)
  found = measure(*parts, name, values)
  written, topology = found.plain_written, setup.team.topology
  notes = dataclasses.replace(  # with plain notes in place of the messages
    batch,
    written=written,
    silent=written == 0,
    text=('',) * len(written),
    tool_tokens=np.zeros_like(batch.tool_tokens),
    read=batch.read - batch.tool_tokens,
    readers=np.asarray([topology.readers(m.agent, m.round) for m in batch.messages], int),
  )
  nothing = dataclasses.replace(
    notes, written=np.zeros_like(written), silent=np.ones(len(written), bool)
  )
  plain, silence = (
    communication.reward_terms(setup.config.reward, said, **prices).costs
    for said in (notes, nothing)
  )
  needed = (plain - silence) * np.float32(known.get('nats', 1.0))
  return dataclasses.replace(found, plain_costs=plain, plain_needed=needed, silence_costs=silence)


def learned(config: Config, batch: RolloutBatch, worth: MessageWorth) -> RolloutBatch:
  """Returns the messages to train on with the advantages of a rollout.

  Under an estimator with imitation, gold answers replace those of the answering agent.
  """
  known = estimators.settings(config.advantage)
  if not known.get('imitation'):
    return batch
  messages = tuple(worth.gold.get(m, message) for m, message in enumerate(batch.messages))
  return dataclasses.replace(batch, messages=messages)


def of_evaluation(
  setup: Setup, learner: Learner, policy: Callable[[str], PolicyParams], batch: RolloutBatch
) -> dict[str, Any]:
  """Returns the worth of messages in the first episodes of an evaluation.

  Besides `MessageWorth.metrics`: `worth/agents`, mean gains of each author, and `worth/frontier`,
  see `_frontier`. Nothing is sampled; `learner` scores at temperature 1. `policy` maps the name of
  a model in the state to its parameters.
  """
  count = min(setup.config.evaluation.worth_questions, len(batch.questions))
  if not count:
    return {}
  batch = batches.select(batch, range(count))
  parts = setup.team, setup.task, setup.tokenizer, batch
  scored = learner.frozen_answers or functools.partial(learner.score_authors, policy)
  values = GoldAnswers(*parts, scored)
  reader = _Reader(*parts, values)
  found, of_prompts = _measured(reader, 'leave_one_out', values)
  told, by_agent = ~np.isnan(found.gain) & ~batch.silent, []
  for agent, name in enumerate(batch.agent_names):
    row: dict[str, Any] = {'name': name}
    for kind, flag in _KINDS.items():
      of = found.gain[told & (batch.agent == agent) & (batch.relevant == flag)]
      row[f'{kind}_nats'] = float(of.mean()) if len(of) else None
    by_agent.append(row)
  frontier = _frontier(reader, values, of_prompts, found.gain)
  return {**found.metrics(batch), 'worth/agents': by_agent, 'worth/frontier': frontier}


def measure(
  team: Team, task: Task, tokenizer: Tokenizer, batch: RolloutBatch, name: str, values: Values
) -> MessageWorth:
  """Returns the worth of the messages of some episodes.

  Args:
    team: Team, whose last agent answers.
    task: Task, with the plain notes.
    tokenizer: Tokenizer of the policy.
    batch: Episodes, `M` messages.
    name: See `attribution.coalitions`. The plain note is measured for 'leave_one_out' only.
    values: Values prompts of the answering agent.
  """
  return _measured(_Reader(team, task, tokenizer, batch, values), name, values)[0]


def _measured(reader: _Reader, name: str, values: Values) -> tuple[MessageWorth, np.ndarray]:
  """Reads all episodes; returns also the value of each prompt, float64 `[places]`."""
  batch = reader.batch
  for episode in range(batch.num_episodes):
    reader.read(episode, name)
  of_prompts = values(reader.prompts)
  if name == 'segment':
    of_prompts = values.scores(of_prompts)
  count, gold = len(batch.messages), {}
  gain, plain_gain = np.full(count, np.nan, np.float32), np.full(count, np.nan, np.float32)
  gains = values.gains(name, reader.episodes, of_prompts)
  for read, of_slots in zip(reader.episodes, gains, strict=True):
    gain[read.slots] = of_slots
    if name == 'segment':
      gain[read.answer] = batch.task_scores[read.episode] - of_prompts[read.places[read.said]]
    if (answer := values.gold(read.places[read.said])) is not None:
      fields = ('token_ids', 'logprobs', 'inserted', 'ended', 'experts')
      changed = {field: getattr(answer, field) for field in fields}
      gold[read.answer] = dataclasses.replace(batch.messages[read.answer], text='', **changed)
  for slot, with_plain, without in reader.plain.values():
    plain_gain[slot] = of_prompts[with_plain] - of_prompts[without]
  figures = values.figures()
  found = MessageWorth(gain, plain_gain, reader.plain_written, figures=figures, gold=gold)
  return found, of_prompts


def _frontier(
  reader: _Reader, values: Values, of_prompts: np.ndarray, gain: np.ndarray
) -> list[dict[str, Any]]:
  """Returns tokens per question and the mean probability of the gold answer, for each of `PRICES`.

  At each price, messages that gain less than they cost are left out.

  Args:
    reader: Episodes that were read.
    values: Values prompts of the answering agent.
    of_prompts: Values of the prompts read so far, float64 `[places]`.
    gain: Gains of the messages, float32 `[M]`; NaN where not measured.
  """
  batch = reader.batch
  unsaid = [~batch.silent & (gain < price * batch.written) for price in PRICES]
  places = [
    [reader.without(read, np.flatnonzero(left_out)) for read in reader.episodes]
    for left_out in unsaid
  ]
  new = reader.prompts[len(of_prompts) :]
  found = np.concatenate([of_prompts, values(new)]) if new else of_prompts
  return [
    {
      'nats_per_token': price,
      'tokens': counts.per_question(batch, batch.written, ~left_out),
      'gold_probability': float(np.exp(found[place]).mean()) if place else None,
    }
    for price, left_out, place in zip(PRICES, unsaid, places, strict=True)
  ]


class _Reader:
  """The answering agent, with the prompts of every coalition of messages that it could read."""

  def __init__(
    self, team: Team, task: Task, tokenizer: Tokenizer, batch: RolloutBatch, values: Values
  ):
    self._team, self._task, self.batch, self._values = team, task, batch, values
    self._agent = team.num_agents - 1
    self._writers = team.prompt_writers(tokenizer)
    self._by_turn = {(m.episode, m.agent, m.round): i for i, m in enumerate(batch.messages)}
    self._own: dict[int, list[Message]] = {}
    for message in batch.messages:
      if message.agent == self._agent:
        self._own.setdefault(message.episode, []).append(message)
    # By author and question: tokens written, and ids received.
    self._plain_notes: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
    self._places: dict[Hashable, int] = {}
    self.prompts: list[Prompt] = []  # of each place
    self.episodes: list[Read] = []
    # Question, agent and round -> slot, and places of the values with the plain note and without.
    self.plain: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    self.plain_written = np.zeros(len(batch.messages), int)

  def read(self, episode: int, name: str) -> None:
    """Collects the prompts that an attribution needs of an episode."""
    own, question = self._own.get(episode, []), int(self.batch.episode_question[episode])
    if not own or not self._values.covers(question):
      return
    messages, agent = self.batch.messages, self._agent
    slots = [self._by_turn[episode, *turn] for m in own for turn in m.read_from if turn[0] != agent]
    said = {slot: self._said(messages[slot]) for slot in slots if messages[slot].reaches(agent)}
    value = lambda told: self._place(own, question, told)
    kept = lambda coalition: {slot: said[slot] for slot in coalition}
    everything = frozenset(said)
    credited = [slot for slot in slots if self._values.credits(messages[slot].agent)]
    coalitions = attribution.coalitions(name, everything, credited)
    places = {coalition: value(kept(coalition)) for coalition in coalitions}
    answer = self._by_turn[episode, agent, own[-1].round]
    self.episodes.append(Read(episode, answer, everything, credited, places))
    for slot in slots:
      written, note = self._plain_note(messages[slot].agent, question)
      self.plain_written[slot] = written
      key = (question, messages[slot].agent, messages[slot].round)
      if name == 'leave_one_out' and len(note) and key not in self.plain:
        without = kept(everything - {slot})
        self.plain[key] = slot, value({**without, slot: note}), value(without)

  def without(self, read: Read, slots: Iterable[int]) -> int:
    """Returns the place of the prompt of an episode with some slots silent."""
    messages = self.batch.messages
    kept = {slot: self._said(messages[slot]) for slot in sorted(read.said.difference(slots))}
    question = int(self.batch.episode_question[read.episode])
    return self._place(self._own[read.episode], question, kept)

  def _place(self, own: Sequence[Message], question: int, told: Mapping[int, np.ndarray]) -> int:
    """Returns the place of the answering agent's last prompt, with only `told` delivered.

    Episodes of a question with equal messages share the prompt, which is built once.
    """
    messages = self.batch.messages
    author = lambda slot: (messages[slot].agent, messages[slot].round)
    read = tuple(sorted((*author(slot), ids.tobytes()) for slot, ids in told.items()))
    key = question, read, tuple(m.token_ids.tobytes() for m in own[:-1])
    place = self._places.setdefault(key, len(self.prompts))
    if place == len(self.prompts):
      self.prompts.append((question, self._prompt(own, question, told)))
    return place

  def _prompt(
    self, own: Sequence[Message], question: int, told: Mapping[int, np.ndarray]
  ) -> np.ndarray:
    """Returns the last prompt of the answering agent with only `told` delivered, int32 `[P]`."""
    asked: Question = self.batch.questions[question]
    conversation = self._writers[self._agent].begin(asked, self._agent)
    for message in own:
      slots = ((turn[0], self._by_turn[message.episode, *turn]) for turn in message.read_from)
      new = [(self._team.names[author], told[slot]) for author, slot in slots if slot in told]
      prompt = conversation.prompt(new)
      conversation.wrote(message.token_ids, message.ended)
    return prompt

  def _said(self, message: Message) -> np.ndarray:
    """Returns the int32 ids that the answering agent receives of a message."""
    cap = self._team.message_cap(message.agent)
    return self._writers[message.agent].said(message, cap, self._writers[self._agent])

  def _plain_note(self, author: int, question: int) -> tuple[int, np.ndarray]:
    """Returns the length of the author's plain note, cut to its cap, and the ids received."""
    if (author, question) not in self._plain_notes:
      writer, cap = self._writers[author], self._team.message_cap(author)
      text = self._task.plain_message(self.batch.questions[question], author)
      ids = writer.written_ids(text)[:cap]
      note = scored_message(0, author, ids[:0], ids)
      note = dataclasses.replace(note, ended=False, text=writer.text(ids, False))
      self._plain_notes[author, question] = len(ids), self._said(note)
    return self._plain_notes[author, question]
