"""Runs the episodes of a team about questions in lockstep, with one policy."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent import futures

import numpy as np

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task
from agent_gspo.teams import batches
from agent_gspo.teams.conversation import Conversation, converse
from agent_gspo.teams.policies import Policy, Reply, Turn, muted
from agent_gspo.teams.team import Team
from agent_gspo.teams.tools import speak
from agent_gspo.types import Message, Question, RolloutBatch
from agent_gspo.values import is_text, shown


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
  branches: int = 1,
) -> RolloutBatch:
  """Runs `group_size` episodes for each question, see `conversation`.

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
    branches: Candidates for each step of an environment; those not taken are in the table too.
  """
  blocks = [block for block in np.array_split(np.arange(len(questions)), parts) if block.size]
  total = len(team.turns) * max(len(blocks), 1)
  shared = _OneAtATime(policy, lambda done: progress(min(done, total), total))
  begun_parts = []
  with (
    futures.ThreadPoolExecutor(task.threads) as episodes,
    futures.ThreadPoolExecutor(max(len(blocks), 1)) as threads,
  ):
    # Own episodes of all parts share their threads.
    each = episodes.map if task.converse and (task.threads > 1 or len(blocks) > 1) else map
    run = functools.partial(
      _run_episodes, team, task, tokenizer, group_size, branches, shared, listener, each
    )
    if len(blocks) < 2:
      return run(questions)
    try:
      for block in blocks:
        begun = threading.Event()
        begun_parts.append(threads.submit(run, [questions[i] for i in block], begun.set))
        begun.wait()  # the next part builds its first prompts while this one is sampled
      for part in futures.wait(begun_parts, return_when=futures.FIRST_EXCEPTION).done:
        part.result()
      return batches.join([part.result() for part in begun_parts], as_one=True)
    except BaseException:
      shared.stop()
      raise


def without_hints(policy: Policy, team: Team, tokenizer: Tokenizer) -> Policy:
  """Returns a policy under which agents that read the gold answer are silent."""
  stop_ids = [own.eos_id for own in team.tokenizers_of_agents(tokenizer)]
  return muted(policy, team.hinters, stop_ids) if team.hinters else policy


def _run_episodes(
  team, task, tokenizer, group_size, branches, policy, listener, each, questions, begun=lambda: None
) -> RolloutBatch:
  """Runs all episodes of some questions in lockstep and grades them.

  `each` maps a function over episodes. Calls `begun` right before sampling starts, or upon failure.
  """
  try:
    writers, toolboxes = team.prompt_writers(tokenizer), team.toolboxes(tokenizer)
    talks = [
      Conversation(
        team, writers, question, q * group_size + sample, sample, task.canonical, branches
      )
      for q, question in enumerate(questions)
      for sample in range(group_size)
    ]
    running = list(each(functools.partial(_Running, task), talks))
  finally:
    begun()
  while live := [episode for episode in running if episode.answer is None]:
    turns = [turn for episode in live for turn in episode.turns]
    sampled = iter(speak(policy, turns, toolboxes) if turns else ())
    replies = [[next(sampled) for _ in episode.turns] for episode in live]
    for messages in each(_Running.advance, live, replies):
      for message in messages:
        listener(message)
    policy.layer_has_spoken()
  answers = [str(episode.answer) for episode in running]
  scores = checked.scores(task, [talk.question for talk in talks], answers)
  index = np.arange(len(talks))
  return batches.from_messages(
    batches.in_order(message for talk in talks for message in talk.messages),
    questions=questions,
    agent_names=team.names,
    episode_question=index // group_size,
    sample=index % group_size,
    answers=answers,
    task_scores=scores,
    sides=team.sides,
  )


class _Running:
  """Unfinished episode.

  Attributes:
    turns: Turns to take next.
    answer: Answer of the team; None until the episode has ended.
  """

  def __init__(self, task: Task, talk: Conversation):
    self._talk = talk
    own = functools.partial(checked.call, task, 'converse')
    self._call = own if task.converse else lambda function, *args: function(*args)
    self.turns: list[Turn] = []
    self.answer: str | None = None
    self._episode = self._call(task.converse or converse, talk)
    self.advance(None)

  def advance(self, replies: list[Reply] | None) -> list[Message]:
    """Sends the replies to `turns`; returns the messages they became."""
    before = len(self._talk.written)
    self._call(self._step, replies)
    return self._talk.written[before:]

  def _step(self, replies: list[Reply] | None) -> None:
    try:
      self.turns = self._episode.send(replies)
      if not isinstance(self.turns, list) or not all(isinstance(t, Turn) for t in self.turns):
        raise TypeError(f'yielded {shown(self.turns)}; write: yield from talk.turn(...)')
    except StopIteration as end:
      self.turns, self.answer = [], end.value
      if not is_text(end.value):
        raise TypeError(f'returned {shown(end.value)}; must return a text') from None


class _OneAtATime:
  """Policy shared by several threads, called by one at a time; counts their finished layers."""

  def __init__(self, policy: Policy, progress: Callable[[int], None]):
    self._policy, self._progress = policy, progress
    self._writing, self._counting = threading.Lock(), threading.Lock()
    self._stopped, self._layers = False, 0
    progress(0)

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]:
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
