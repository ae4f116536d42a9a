"""Measures what each message was worth to the agent that answers; nothing is sampled.

The value of a set of messages is the log-probability of the gold answer for the answering agent
after it has read these and no others, in nats: the log-sum over the forms of `Task.gold_messages`,
given how they are worded, each ended as the policy ends a message. `algorithms.attribution` divides
it.

Measured are the messages that the answering agent reads itself. What a message did through other
readers is not, nor is what the answering agent wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_gspo.algorithms import attribution
from agent_gspo.algorithms.advantages import estimators
from agent_gspo.evaluation import judgement
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.rewards import communication
from agent_gspo.tasks.base import Task
from agent_gspo.teams import batches
from agent_gspo.teams.calculator import Calculator
from agent_gspo.teams.counts import MessageCounts, count_messages
from agent_gspo.teams.team import Team
from agent_gspo.training import scoring
from agent_gspo.types import Message, Question, RolloutBatch

if TYPE_CHECKING:
  from agent_gspo.training.setup import Setup
  from agent_gspo.training.state import TrainState

PRICES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Prices of the oracle frontier, nats a token."""

_KINDS = {'relevant': 1, 'irrelevant': 0}
_Gold = tuple[np.ndarray, np.ndarray]  # ids, and which of them are not scored


@dataclasses.dataclass(frozen=True)
class MessageWorth:
  """What messages were worth; `M` messages.

  Attributes:
    gain: float32 `[M]`, nats, NaN where it was not measured.
    plain_gain: float32 `[M]`, nats of the author's plain note in the place of its message; in one
      episode of a question for each author and turn, NaN elsewhere.
    plain_written: int `[M]`, tokens of that note.
    plain_costs: float32 `[M]`, its costs, weights applied; None where nothing has a price.
    plain_needed: float32 `[M]`, nats that it must gain to be worth them; None likewise.
  """

  gain: np.ndarray
  plain_gain: np.ndarray
  plain_written: np.ndarray
  plain_costs: np.ndarray | None = None
  plain_needed: np.ndarray | None = None

  def metrics(self, counts: MessageCounts) -> dict[str, float]:
    """Returns mean gains of relevant and irrelevant notes that were told, and how they part."""
    told = ~np.isnan(self.gain) & ~counts.silent
    kinds = {kind: self.gain[told & (counts.relevant == flag)] for kind, flag in _KINDS.items()}
    found = {f'worth/{kind}_nats': float(x.mean()) for kind, x in kinds.items() if len(x)}
    if self.plain_needed is not None:
      plain = ~np.isnan(self.plain_gain) & (counts.relevant == 1)
      if plain.any():
        pays = self.plain_gain[plain] >= self.plain_needed[plain]
        found['worth/relevant_plain_pays'] = float(pays.mean())
    if told.any():
      found['worth/nats_per_token'] = float(self.gain[told].sum() / counts.written[told].sum())
    if all(map(len, kinds.values())):
      found['worth/auc'] = judgement.auc(kinds['irrelevant'], kinds['relevant'])
    return found


def of_step(
  setup: Setup,
  state: TrainState,
  batch: RolloutBatch,
  counts: MessageCounts,
  prices: Mapping[str, Any],
) -> MessageWorth | None:
  """Returns the worth of a rollout's messages under the current policy.

  Args:
    setup: The run; its estimator says how values are divided.
    state: The policy.
    batch: Its episodes.
    counts: Of their messages.
    prices: As `communication.reward_terms` takes them.

  Returns:
    None where the estimator reads no gains.
  """
  estimator = setup.config['advantage']['name']
  name = estimators.GAINS.get(estimator)
  if name is None:
    return None
  logprobs = lambda scored: scoring.message_logprobs(setup, setup.scoring, state, scored)
  found = measure(setup.team, setup.task, setup.tokenizer, batch, name, logprobs)
  scores, _ = batches.task_scores(batch)
  plain = communication.reward_terms(
    setup.reward,
    dataclasses.replace(counts, written=found.plain_written, silent=found.plain_written == 0),
    scores,
    **prices,
    texts=[''] * len(batch.messages),
  )
  options = {**estimators.options_of(estimator), **setup.config['advantage']['options']}
  return dataclasses.replace(
    found, plain_costs=plain.costs, plain_needed=plain.costs * np.float32(options['nats'])
  )


def of_evaluation(
  setup: Setup, policy: scoring.PolicyParams, batch: RolloutBatch
) -> dict[str, Any]:
  """Returns what messages were worth in the first episodes of an evaluation.

  Besides `MessageWorth.metrics`: `worth/agents`, mean gains of each author, and `worth/frontier`,
  what would be left had every message that gains less than a price been left unsaid: tokens a
  question, and the mean probability of the gold answer at temperature 1. Nothing is sampled.

  Args:
    setup: The run; `evaluation.worth_questions` episodes are measured.
    policy: The answering agent's parameters.
    batch: One episode a question.
  """
  count = min(setup.config['evaluation']['worth_questions'], len(batch.questions))
  if not count:
    return {}
  batch = batches.select(batch, range(count))
  counts = count_messages(batch)
  logprobs = lambda scored: scoring.message_logprobs(setup, setup.scoring, policy, scored)
  reader = _Reader(setup.team, setup.task, setup.tokenizer, batch)
  found = _measured(reader, 'leave_one_out', logprobs)
  told, by_agent = ~np.isnan(found.gain) & ~counts.silent, []
  for agent, name in enumerate(batch.agent_names):
    row: dict[str, Any] = {'name': name}
    for kind, flag in _KINDS.items():
      of = found.gain[told & (counts.agent == agent) & (counts.relevant == flag)]
      row[f'{kind}_nats'] = float(of.mean()) if len(of) else None
    by_agent.append(row)
  frontier = []
  for price in PRICES:
    unsaid = told & (found.gain < price * counts.written)
    left_out = {*np.flatnonzero(unsaid).tolist()}
    places = [reader.without(read, left_out) for read in reader.episodes]
    values = reader.values(logprobs)[places]
    frontier.append(
      {
        'nats_per_token': price,
        'tokens': counts.per_question(counts.written, ~unsaid),
        'gold_probability': float(np.exp(values).mean()) if len(values) else None,
      }
    )
  return {**found.metrics(counts), 'worth/agents': by_agent, 'worth/frontier': frontier}


def measure(
  team: Team,
  task: Task,
  tokenizer: Tokenizer,
  batch: RolloutBatch,
  name: str,
  logprobs: Callable[[Sequence[Message]], np.ndarray],
) -> MessageWorth:
  """Returns the worth of the messages of some episodes.

  Args:
    team: Whose last agent answers.
    task: Gives the gold answers and plain notes.
    tokenizer: Of the policy.
    batch: The episodes, `M` messages.
    name: Key of `attribution.ATTRIBUTIONS`. The plain note is measured for 'leave_one_out' only.
    logprobs: Log-probabilities of messages, float `[m]`, nats.
  """
  return _measured(_Reader(team, task, tokenizer, batch), name, logprobs)


def _measured(
  reader: _Reader, name: str, logprobs: Callable[[Sequence[Message]], np.ndarray]
) -> MessageWorth:
  """Reads all episodes of a fresh reader, see `measure`."""
  for episode in range(len(reader.batch.episodes)):
    reader.read(episode, name)
  values = reader.values(logprobs)
  count = len(reader.batch.messages)
  gain, plain_gain = np.full(count, np.nan, np.float32), np.full(count, np.nan, np.float32)
  divide = attribution.ATTRIBUTIONS[name]
  for read in reader.episodes:
    of = {coalition: values[place] for coalition, place in read.places.items()}
    gain[read.slots] = divide(of, read.said, read.slots)
  for slot, (with_plain, without) in reader.plain.items():
    plain_gain[slot] = values[with_plain] - values[without]
  return MessageWorth(gain, plain_gain, reader.plain_written)


@dataclasses.dataclass(frozen=True)
class _Read:
  """An episode as the answering agent read it.

  Attributes:
    episode: Index in the batch.
    said: Messages that were read.
    slots: All slots in reading order, indices of messages.
    places: Of the value of each coalition that an attribution reads.
  """

  episode: int
  said: attribution.Coalition
  slots: list[int]
  places: dict[attribution.Coalition, int]


class _Reader:
  """The answering agent, with the prompts of every coalition of messages that it could read."""

  def __init__(self, team: Team, task: Task, tokenizer: Tokenizer, batch: RolloutBatch):
    self._team, self._task, self.batch = team, task, batch
    self._agent = team.num_agents - 1
    self._writers = team.prompt_writers(tokenizer)
    self._calculator = None
    if team.roles[self._agent].calculator:
      self._calculator = Calculator(tokenizer)
    self._by_turn = {(m.episode, m.agent, m.round): i for i, m in enumerate(batch.messages)}
    self._own: dict[int, list[Message]] = {}
    for message in batch.messages:
      if message.agent == self._agent:
        self._own.setdefault(message.episode, []).append(message)
    self._ends = self._usual_ends()
    self._gold: dict[int, list[_Gold]] = {}
    self._plain_notes: dict[tuple[int, int], np.ndarray] = {}  # by author and question
    self._places: dict[tuple[int, bytes], int] = {}
    self._prompts: list[tuple[int, np.ndarray]] = []  # question and prompt of each value
    self.episodes: list[_Read] = []
    self.plain: dict[int, tuple[int, int]] = {}  # slot -> places with the plain note, and without
    self.plain_written = np.zeros(len(batch.messages), int)
    self._values = np.zeros(0)
    self._seen: set[tuple[int, int, int]] = set()  # question, agent, round with a plain note

  def read(self, episode: int, name: str) -> None:
    """Collects the prompts that an attribution needs of an episode."""
    own, question = self._own.get(episode, []), self.batch.episodes[episode].question
    if not own or not self._gold_of(question):
      return
    messages, agent = self.batch.messages, self._agent
    slots = [self._by_turn[episode, *turn] for m in own for turn in m.read_from if turn[0] != agent]
    said = {slot: messages[slot].said for slot in slots if messages[slot].reaches(agent)}
    value = lambda told: self._place(question, self._prompt(own, question, told))
    kept = lambda coalition: {slot: said[slot] for slot in coalition}
    everything = frozenset(said)
    coalitions = attribution.coalitions(name, everything, slots)
    places = {coalition: value(kept(coalition)) for coalition in coalitions}
    self.episodes.append(_Read(episode, everything, slots, places))
    for slot in slots:
      note = self._plain_note(messages[slot].agent, question)
      self.plain_written[slot] = len(note)
      key = (question, messages[slot].agent, messages[slot].round)
      if name == 'leave_one_out' and len(note) and key not in self._seen:
        self._seen.add(key)
        without = kept(everything - {slot})
        self.plain[slot] = value({**without, slot: note}), value(without)

  def values(self, logprobs: Callable[[Sequence[Message]], np.ndarray]) -> np.ndarray:
    """Returns the log-probability of the gold answer after each prompt, float64 `[places]`."""
    known = len(self._values)
    scored = [
      scoring.scored_message(place, self._agent, prompt, ids, inserted=inserted)
      for place, (question, prompt) in enumerate(self._prompts[known:], known)
      for ids, inserted in self._gold_of(question)
    ]
    self._values = np.pad(self._values, (0, len(self._prompts) - known), constant_values=-np.inf)
    if scored:
      np.logaddexp.at(self._values, [message.episode for message in scored], logprobs(scored))
    return self._values

  def without(self, read: _Read, slots: Collection[int]) -> int:
    """Returns the place of the value of an episode had some slots been silent."""
    messages = self.batch.messages
    kept = {slot: messages[slot].said for slot in sorted(read.said - {*slots})}
    question = self.batch.episodes[read.episode].question
    return self._place(question, self._prompt(self._own[read.episode], question, kept))

  def _place(self, question: int, prompt: np.ndarray) -> int:
    place = self._places.setdefault((question, prompt.tobytes()), len(self._prompts))
    if place == len(self._prompts):
      self._prompts.append((question, prompt))
    return place

  def _prompt(
    self, own: Sequence[Message], question: int, told: Mapping[int, np.ndarray]
  ) -> np.ndarray:
    """Returns int32 `[P]`, the last prompt of the answering agent had it read `told` alone."""
    asked: Question = self.batch.questions[question]
    conversation = self._writers[self._agent].begin(asked, self._agent)
    for message in own:
      slots = ((turn[0], self._by_turn[message.episode, *turn]) for turn in message.read_from)
      new = [(self._team.names[author], told[slot]) for author, slot in slots if slot in told]
      prompt = conversation.prompt(new)
      conversation.wrote(message.token_ids, message.ended)
    return prompt

  def _usual_ends(self) -> list[int]:
    """Returns the stop tokens that the answering agent ends messages with, in this batch."""
    writer = self._writers[self._agent]
    used = {int(m.token_ids[-1]) for own in self._own.values() for m in own if m.ended}
    return sorted(end for end in used if not writer.tail(end)) or [writer.end_id]

  def _gold_of(self, question: int) -> list[_Gold]:
    """Returns ids of each gold answer with a stop token, and which are given or a tool's."""
    if question not in self._gold:
      writer, cap = self._writers[self._agent], self._team.message_cap(self._agent)
      found: list[_Gold] = []
      for given, text in self._task.gold_messages(self.batch.questions[question]):
        ids = writer.written_ids(given + text)
        unscored = len(writer.written_ids(given))
        for end in self._ends if 0 < len(ids) - unscored < cap else ():
          whole = np.append(ids, np.int32(end))
          inserted = np.arange(len(whole)) < unscored
          if self._calculator:
            inserted |= self._calculator.inserted(whole)
          found.append((whole, inserted))
      self._gold[question] = found
    return self._gold[question]

  def _plain_note(self, author: int, question: int) -> np.ndarray:
    """Returns int32 ids of the author's plain note, cut to its cap."""
    if (author, question) not in self._plain_notes:
      text = self._task.plain_message(self.batch.questions[question], author)
      ids = self._writers[author].written_ids(text)
      self._plain_notes[author, question] = ids[: self._team.message_cap(author)]
    return self._plain_notes[author, question]
