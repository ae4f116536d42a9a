"""Values a prompt of the answering agent: by the gold answer, or by answers sampled anew."""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from agent_gspo.algorithms import attribution
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.sharding import hosts
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task
from agent_gspo.teams.policies import Policy, Reply, Turn
from agent_gspo.teams.team import Team
from agent_gspo.teams.tools import speak
from agent_gspo.types import Message, RolloutBatch

Prompt = tuple[int, np.ndarray]
"""Index of a question in its batch, and int32 ids `[P]`."""


@dataclasses.dataclass(frozen=True)
class Read:
  """An episode as the answering agent read it.

  Attributes:
    episode: Index in the batch.
    answer: Index of the answering agent's last message.
    said: Messages that were read.
    slots: Slots with a gain in reading order, indices of messages.
    places: Place of the value of each coalition that an attribution reads.
  """

  episode: int
  answer: int
  said: attribution.Coalition
  slots: list[int]
  places: dict[attribution.Coalition, int]


def scored_message(
  episode: int, agent: int, prompt: np.ndarray, tokens: np.ndarray, **fields: Any
) -> Message:
  """Returns a message to be scored: given `tokens`, int `[W]`, after `prompt`, int `[P]`."""
  return Message(
    episode=episode,
    agent=agent,
    round=0,
    layer=0,
    prompt_ids=prompt,
    token_ids=np.asarray(tokens, np.int32),
    logprobs=np.zeros(len(tokens), np.float32),
    ended=True,
    text='',
    **fields,
  )


def with_logprobs(message: Message, logprobs: np.ndarray) -> Message:
  """Returns a message with other log-probs of its sampled tokens, float `[S]`, nats."""
  values = np.zeros(len(message.token_ids), np.float32)
  values[message.sampled] = logprobs
  return dataclasses.replace(message, logprobs=values)


class Values(abc.ABC):
  """Values prompts of the answering agent; here in units of task score, without a gold text."""

  @abc.abstractmethod
  def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
    """Returns the value of each prompt, float64 `[n]`."""

  def covers(self, question: int) -> bool:
    """Returns whether answers to this question have a value."""
    del question
    return True

  def scores(self, values: np.ndarray) -> np.ndarray:
    """Returns values as expected task scores, float64 like `values`."""
    return values

  def gold(self, place: int) -> Message | None:
    """Returns the likeliest whole gold answer to the prompt valued as number `place`, if any."""
    del place
    return None

  def credits(self, agent: int) -> bool:
    """Returns whether an author's messages have a gain."""
    del agent
    return True

  def gains(self, name: str, reads: Sequence[Read], values: np.ndarray) -> list[Sequence[float]]:
    """Returns the gain of each slot of some episodes.

    Args:
      name: See `attribution.coalitions`.
      reads: Episodes.
      values: Value of each place, float64 `[n]`.
    """
    divide = attribution.ATTRIBUTIONS[name]
    of = lambda read: {coalition: values[place] for coalition, place in read.places.items()}
    return [divide(of(read), read.said, read.slots) for read in reads]

  def figures(self) -> dict[str, float]:
    """Returns figures of the last gains, for metrics."""
    return {}


class _Form(NamedTuple):
  """A gold answer.

  Attributes:
    ids: int32 `[W + 1]`, with its stop token.
    unscored: True for ids that are given or a tool's, bool `[W + 1]`.
    whole: True if no id is given.
  """

  ids: np.ndarray
  unscored: np.ndarray
  whole: bool


class GoldAnswers(Values):
  """Log-probability of the gold answer in nats: the log-sum over `Task.gold_messages`.

  Each form is ended as the answering agent ends its messages in the batch.
  """

  def __init__(
    self,
    team: Team,
    task: Task,
    tokenizer: Tokenizer,
    batch: RolloutBatch,
    logprobs: Callable[[Sequence[Message]], Sequence[np.ndarray]],
  ):
    self._team, self._task, self._batch, self._logprobs = team, task, batch, logprobs
    self._agent = team.num_agents - 1
    self._writer = team.prompt_writers(tokenizer)[self._agent]
    self._toolbox = team.toolboxes(tokenizer)[self._agent]
    used = {int(m.token_ids[-1]) for m in batch.messages if m.agent == self._agent and m.ended}
    usual = sorted(end for end in used if not self._writer.tail(end))
    self._ends = usual or [self._writer.end_id]
    self._forms: dict[int, list[_Form]] = {}
    self._likeliest: list[Message | None] = []

  def covers(self, question: int) -> bool:
    """Returns whether a gold answer fits the answering agent's messages."""
    return bool(self._forms_of(question))

  def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
    """Returns the log-probability of the gold answer after each prompt, float64 `[n]`."""
    forms = [self._forms_of(question) for question, _ in prompts]
    asked = [(place, form) for place, some in enumerate(forms) for form in some]
    scored = [
      scored_message(place, self._agent, prompts[place][1], form.ids, inserted=form.unscored)
      for place, form in asked
    ]
    found, best = np.full(len(prompts), -np.inf), np.full(len(prompts), -np.inf)
    likeliest: list[Message | None] = [None] * len(prompts)
    logprobs_of = self._logprobs(scored) if scored else ()
    for (place, form), message, tokens in zip(asked, scored, logprobs_of, strict=True):
      total = tokens.sum()
      found[place] = np.logaddexp(found[place], total)
      if form.whole and total > best[place]:
        best[place], likeliest[place] = total, with_logprobs(message, tokens)
    self._likeliest = likeliest
    return found

  def scores(self, values: np.ndarray) -> np.ndarray:
    """Returns the probability of the gold answer."""
    return np.exp(values)

  def gold(self, place: int) -> Message | None:
    """Returns the likeliest form at a prompt, with its log-probabilities; see `Values`."""
    return self._likeliest[place]

  def _forms_of(self, question: int) -> list[_Form]:
    if question not in self._forms:
      writer, cap = self._writer, self._team.message_cap(self._agent)
      found = []
      for given, text in self._task.gold_messages(self._batch.questions[question]):
        ids = writer.written_ids(given + text)
        before = len(writer.written_ids(given))
        for end in self._ends if 0 < len(ids) - before < cap else ():
          whole = np.append(ids, np.int32(end))
          by_tool = self._toolbox.inserted(whole, self._batch.questions[question])
          unscored = (np.arange(len(whole)) < before) | by_tool
          found.append(_Form(whole, unscored, before == 0))
      self._forms[question] = found
    return self._forms[question]


class Replays(Values):
  """Mean task score of answers sampled anew (as C3, arXiv 2603.06859, does with rollouts).

  For tasks without a gold text. Each process samples its share of the prompts.
  """

  def __init__(
    self,
    team: Team,
    task: Task,
    tokenizer: Tokenizer,
    batch: RolloutBatch,
    policy: Policy,
    samples: int,
  ):
    self.team, self._task, self._batch = team, task, batch
    self._policy, self.samples, self._agent = policy, samples, team.num_agents - 1
    self._writer = team.prompt_writers(tokenizer)[self._agent]
    self._toolboxes = team.toolboxes(tokenizer)

  def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
    """Returns the mean score of `samples` answers to each prompt, float64 `[n]`."""
    scores, _ = self._sampled(prompts)
    return self._of_all(scores, len(prompts)).mean(axis=1)

  def answers(self, prompts: Sequence[Prompt]) -> tuple[np.ndarray, list[list[Message]]]:
    """Returns scores `[n, samples]`, float64, and messages of `samples` answers to each prompt."""
    scores, replies = self._sampled(prompts)
    own = [(reply.token_ids, reply.inserted_mask) for reply in replies]
    written = itertools.chain(*hosts.gather(own))  # in the order of prompts
    answers = [
      [
        scored_message(0, self._agent, prompt, ids, inserted=inserted)
        for ids, inserted in itertools.islice(written, self.samples)
      ]
      for _, prompt in prompts
    ]
    return self._of_all(scores, len(prompts)), answers

  def _of_all(self, scores: Sequence[float], prompts: int) -> np.ndarray:
    """Returns the scores of all processes, float64 `[prompts, samples]`."""
    gathered = np.concatenate([np.asarray(part, float) for part in hosts.gather(scores)])
    return gathered.reshape(prompts, self.samples)

  def _sampled(self, prompts: Sequence[Prompt]) -> tuple[list[float], list[Reply]]:
    """Returns scores and answers of this process's share of the prompts."""
    first = self._batch.num_episodes  # so that no key of a replay is that of an episode
    own = range(len(prompts))[hosts.share(len(prompts))]
    turns = [
      self._turn(*prompts[i], sample=first + i * self.samples + k)
      for i in own
      for k in range(self.samples)
    ]
    scores, replies = list[float](), list[Reply]()
    if turns:
      replies = speak(self._policy, turns, self._toolboxes)
      texts = [self.team.body(self._writer.text(r.token_ids, r.ended)) for r in replies]
      scores = checked.scores(self._task, [turn.question for turn in turns], texts)
    return scores, replies

  def _turn(self, question: int, prompt: np.ndarray, sample: int) -> Turn:
    return Turn(
      question=self._batch.questions[question],
      sample=sample,
      agent=self._agent,
      round=self.team.topology.rounds - 1,
      prompt_ids=prompt,
      delivered={},
      limit=self.team.message_cap(self._agent),
      stop_ids=self._writer.stop_ids,
      end_id=self._writer.end_id,
      model=self._writer.role.model,
    )
