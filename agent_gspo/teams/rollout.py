"""Runs a team's conversations about questions with a policy."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.sampling.sampler import Samples
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task
from agent_gspo.teams import batches, calculator
from agent_gspo.teams.policies import Policy, Turn
from agent_gspo.teams.team import Team
from agent_gspo.types import Episode, Message, Question, RolloutBatch


def rollout(
  team: Team,
  task: Task,
  tokenizer: Tokenizer,
  questions: Sequence[Question],
  group_size: int,
  policy: Policy,
  progress: Callable[[int, int], None] = lambda done, total: None,
  listener: Callable[[Message], None] = lambda message: None,
  parts: int = 1,
) -> RolloutBatch:
  """Runs `group_size` episodes for each question.

  One call of `policy` samples all agents of a layer, over all episodes of a part.

  Args:
    team: Team of agents.
    task: Task that grades the answers.
    tokenizer: Tokenizer of the policy.
    questions: `B` questions.
    group_size: Episodes per question (`G`).
    policy: Policy that writes the messages.
    progress: Callback with (finished layers, total layers).
    listener: Callback with each message after its layer is sampled, before it has readers.
    parts: Parts of the questions, one thread each: while the policy samples one, the others
      build prompts and grade answers. Results differ by rounding only.
  """
  blocks = [block for block in np.array_split(np.arange(len(questions)), parts) if block.size]
  voice = _OneAtATime(policy, lambda done: progress(done, len(team.turns) * max(len(blocks), 1)))
  hold = functools.partial(_hold, team, task, tokenizer, group_size, voice, listener)
  if len(blocks) < 2:
    return hold(questions)
  held = []
  with futures.ThreadPoolExecutor(len(blocks)) as threads:
    try:
      for block in blocks:
        begun = threading.Event()
        held.append(threads.submit(hold, [questions[i] for i in block], begun.set))
        begun.wait()  # the next part builds its first prompts while this one is sampled
      for part in futures.wait(held, return_when=futures.FIRST_EXCEPTION).done:
        part.result()
      return batches.merge([part.result() for part in held])
    except BaseException:
      voice.stop()
      raise


def _hold(
  team, task, tokenizer, group_size, voice, listener, questions, begun=lambda: None
) -> RolloutBatch:
  """Runs all episodes of some questions and grades them.

  Calls `begun` right before sampling starts, or upon failure.
  """
  try:
    table = _Table(team, tokenizer, questions, group_size, listener)
  finally:
    begun()
  for round_, place, layer in team.turns:
    table.take_turns(round_, place, layer, voice)
    voice.layer_has_spoken()
  return table.finish(task)


class _OneAtATime:
  """Policy shared by several threads, called by one at a time.

  Args:
    policy: Policy that writes the messages.
    progress: Callback with the number of finished layers over all threads.
  """

  def __init__(self, policy: Policy, progress: Callable[[int], None]):
    self._policy, self._progress = policy, progress
    self._writing, self._counting = threading.Lock(), threading.Lock()
    self._stopped, self._layers = False, 0
    progress(0)

  def __call__(self, turns: Sequence[Turn]) -> Samples:
    with self._writing:
      if self._stopped:
        raise futures.CancelledError
      return self._policy(turns)

  def layer_has_spoken(self) -> None:
    with self._counting:
      self._layers += 1
      self._progress(self._layers)

  def stop(self) -> None:
    """Cancels all calls that have not started."""
    self._stopped = True


def fair_shares(total: int, caps: Sequence[int]) -> list[int]:
  """Returns the share of `total` for each of several simultaneous agents.

  Shares are equal but for caps: the remainder of a low cap is split among the others. If the
  division is uneven, the first of those with equal caps get one more.
  """
  shares = [0] * len(caps)
  for done, i in enumerate(sorted(range(len(caps)), key=lambda i: caps[i])):
    shares[i] = min(caps[i], -(-total // (len(caps) - done)))
    total -= shares[i]
  return shares


class _Table:
  """State of all unfinished episodes of a rollout."""

  def __init__(self, team, tokenizer, questions, group_size, listener):
    self.team, self.tokenizer = team, tokenizer
    self.questions, self.group_size = tuple(questions), group_size
    self.listener = listener
    self.writers = team.prompt_writers(tokenizer)
    self.calculator = calculator.Calculator(tokenizer)
    self.messages: list[Message] = []
    self.by_turn: dict[tuple[int, int, int], int] = {}  # (episode, agent, round) -> message
    self.conversations = {
      (e, a): self.writers[a].begin(question, a)
      for e, question in enumerate(q for q in self.questions for _ in range(group_size))
      for a in range(team.num_agents)
    }
    # Messages in each agent's prompt so far, for counting readers.
    self.carried: dict[tuple[int, int], list[int]] = {key: [] for key in self.conversations}
    self.readers: list[int] = []
    self.spent = np.zeros(self.num_episodes, np.int64)  # tokens, stop tokens included
    self.written = np.zeros(self.num_episodes, np.int64)  # tokens without stop tokens

  @property
  def num_episodes(self) -> int:
    return len(self.questions) * self.group_size

  def take_turns(self, round_: int, place: int, layer: Sequence[int], policy: Policy) -> None:
    turns, owners = [], []
    caps = [self.team.message_cap(agent) for agent in layer]
    for episode in range(self.num_episodes):
      limits = caps
      if self.team.max_episode_tokens:
        limits = fair_shares(self.team.tokens_left(int(self.spent[episode])), caps)
      for agent, limit in zip(layer, limits, strict=True):
        if limit:  # else the episode's cap is spent: the turn is skipped
          turns.append(self._turn(episode, agent, round_, limit))
          owners.append(episode)
    if not turns:
      return
    has_calculator = lambda turn: self.team.roles[turn.agent].calculator
    out = calculator.speak(policy, turns, has_calculator, self.calculator)
    nothing: list[Any] = [None] * len(turns)
    for episode, turn, ids, logprobs, ended, of_tools, usage in zip(
      owners,
      turns,
      out.token_ids,
      out.logprobs,
      out.ended,
      out.inserted or nothing,
      out.usage or nothing,
      strict=True,
    ):
      self._write(episode, place, turn, ids, logprobs, bool(ended), of_tools, usage)

  def _turn(self, episode: int, agent: int, round_: int, limit: int) -> Turn:
    question = self.questions[episode // self.group_size]
    spent, written = int(self.spent[episode]), int(self.written[episode])
    left = self.team.told_left(question.terms, spent, written)
    incoming, delivered = [], {}
    for author, when in self.team.topology.reads(agent, round_):
      index = self.by_turn.get((episode, author, when))
      if index is None:
        continue
      message = self.messages[index]
      reaches = message.reaches(agent)
      delivered[author] = self.team.body(message.text) if reaches else ''
      if reaches:
        incoming.append((self.team.names[author], message.said))
        self.carried[episode, agent].append(index)
    for index in self.carried[episode, agent]:
      self.readers[index] += 1
    return Turn(
      question=question,
      sample=episode % self.group_size,
      agent=agent,
      round=round_,
      prompt_ids=self.conversations[episode, agent].prompt(incoming, left),
      delivered=delivered,
      limit=limit,
      stop_ids=self.writers[agent].stop_ids,
      left=left,
      end_id=self.writers[agent].end_id,
    )

  def _write(self, episode, place, turn, ids, logprobs, ended, inserted, usage) -> None:
    agent = turn.agent
    self.conversations[episode, agent].wrote(ids, ended)
    self.by_turn[episode, agent, turn.round] = len(self.messages)
    self.readers.append(0)
    tail = self.writers[agent].tail(int(ids[-1])) if ended else ()
    text = self.writers[agent].text(ids, ended)
    message = Message(
      episode=episode,
      agent=agent,
      round=turn.round,
      layer=place,
      prompt_ids=turn.prompt_ids,
      token_ids=np.asarray(ids, np.int32),
      logprobs=np.asarray(logprobs, np.float32),
      ended=ended,
      text=text,
      read_from=tuple(
        turn_
        for turn_ in self.team.topology.reads(agent, turn.round)
        if (episode, *turn_) in self.by_turn
      ),
      addressees=self.team.addressees(text),
      inserted=inserted if inserted is not None and inserted.any() else None,
      usage=usage,
      tail=tail,
    )
    self.spent[episode] += message.spent
    self.written[episode] += message.written
    if not message.silent:  # its author's own later prompts contain it as well
      self.carried[episode, agent].append(len(self.messages))
    self.messages.append(message)
    self.listener(message)

  def finish(self, task: Task) -> RolloutBatch:
    asked = [e // self.group_size for e in range(self.num_episodes)]
    answers = [self._answer(e, task) for e in range(self.num_episodes)]
    scores = checked.scores(task, [self.questions[q] for q in asked], answers)
    return RolloutBatch(
      questions=self.questions,
      episodes=tuple(
        Episode(question=q, sample=e % self.group_size, answer=answer, task_score=score)
        for e, (q, answer, score) in enumerate(zip(asked, answers, scores, strict=True))
      ),
      messages=tuple(
        dataclasses.replace(m, readers=n) for m, n in zip(self.messages, self.readers, strict=True)
      ),
      agent_names=self.team.names,
    )

  def _answer(self, episode: int, task: Task) -> str:
    last_round = self.team.topology.rounds - 1
    indices = [self.by_turn.get((episode, a, last_round)) for a in range(self.team.num_agents)]
    texts = ['' if i is None else self.team.body(self.messages[i].text) for i in indices]
    return self.team.decide(texts, task.canonical)
