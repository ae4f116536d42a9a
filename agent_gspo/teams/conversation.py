"""Runs one episode: schedules turns, delivers messages to their readers, ends with an answer.

An episode is a generator. It yields the turns that are taken at once, is sent a reply to each, and
returns the team's answer. `rollout` runs many in lockstep, so that one call of the policy samples
a layer of all of them. `converse` follows the team's topology. A task may bring an episode of its
own (`Task.converse`), for example with an environment that answers the agents:

    def converse(self, talk):
      for round_ in range(3):
        guess = yield from talk.turn(0, round_)
        if guess is None or guess.text.strip() == talk.question.answer:
          break
        talk.tell(0, 'wrong')
      return guess.text if guess else ''

`configs/tasks/guessing.py` is a whole example; `environments.base` runs any environment this way.

The topology bounds an episode: it has at most the turns of the topology, each once, and messages
are read as the topology says. So prices, caps and memory are checked before a run.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.teams.policies import Reply, Turn
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.team import Team
from agent_gspo.types import Message, Question
from agent_gspo.values import is_number, is_text, shown

ENVIRONMENT = 'environment'
"""Sender name of texts of the environment, see `Conversation.tell`."""

Episode = Generator[list[Turn], list[Reply], str]


class Conversation:
  """State of one unfinished episode.

  Args:
    team: Team of agents.
    writers: Prompt writer of each agent.
    question: Question of the episode.
    episode: Index of the episode in its rollout.
    sample: Index of the episode in the question's group.
    canonical: Normalizes answers for votes, see `Task.canonical`.
    branches: Candidates for each step of an environment.

  Attributes:
    branches: As above.
    state: State of the episode's environment, which demonstrations read; None without one.
  """

  def __init__(
    self,
    team: Team,
    writers: Sequence[PromptWriter],
    question: Question,
    episode: int,
    sample: int,
    canonical: Callable[[str], str | None],
    branches: int = 1,
  ):
    self.team, self.question, self.sample, self._canonical = team, question, sample, canonical
    self._writers, self._episode, self.branches = writers, episode, branches
    self.state: Any = None
    self._contexts = [writer.begin(question, agent) for agent, writer in enumerate(writers)]
    self.written: list[Message] = []  # messages so far, their readers not yet counted
    self._not_taken: list[Message] = []  # candidates, see `leave`
    self._readers: list[int] = []  # of each message: later turns whose prompt contains it
    self._rewards: list[float | None] = []  # of each message, see `reward`
    self._carried: list[list[int]] = [[] for _ in writers]  # messages in each agent's prompts
    # Unread texts of the environment by agent, with the number of messages before them.
    self._told: dict[int, list[tuple[int, str]]] = collections.defaultdict(list)
    self._by_turn: dict[tuple[int, int], int] = {}  # (agent, round) -> message
    self._spent = self._content = 0  # tokens with and without stop tokens

  @property
  def messages(self) -> list[Message]:
    """Returns all messages in the order in which they were written, then other candidates."""
    columns = zip(self.written, self._readers, self._rewards, strict=True)
    said = [dataclasses.replace(m, readers=count, reward=reward) for m, count, reward in columns]
    return said + self._not_taken

  def layer(
    self, agents: Sequence[int], round_: int
  ) -> Generator[list[Turn], list[Reply], list[Message]]:
    """Lets agents that do not read one another write at once; returns their messages.

    Each agent reads the messages that the topology assigns to it in this round. An agent for which
    the episode's cap leaves no token writes no message.

    Raises:
      ValueError: if the topology has no such turn, it was taken before, or is named twice.
    """
    (written,) = yield from self.candidates(agents, round_, 1)
    self.take(written)
    return written

  def candidates(
    self, agents: Sequence[int], round_: int, count: int
  ) -> Generator[list[Turn], list[Reply], list[list[Message]]]:
    """Lets agents write `count` times as in `layer`; returns the messages of each candidate.

    All candidates have the same prompts. The conversation continues from that passed to `take`.
    """
    if len(set(agents)) < len(agents):
      raise ValueError(f'the episode lets agents {agents} write at once; each must be named once.')
    place = max(self._place(agent, round_) for agent in agents)
    limits = [self.team.message_cap(agent) for agent in agents]
    if self.team.max_episode_tokens:
      limits = fair_shares(self.team.tokens_left(self._spent), limits)
    turns = [
      self._turn(agent, round_, limit) for agent, limit in zip(agents, limits, strict=True) if limit
    ]
    if count > 1:
      turns = [dataclasses.replace(turn, branch=i) for turn in turns for i in range(count)]
    replies = yield turns
    written = [self._message(*pair, place) for pair in zip(turns, replies, strict=True)]
    return [written[i::count] for i in range(count)]

  def turn(self, agent: int, round_: int) -> Generator[list[Turn], list[Reply], Message | None]:
    """Lets one agent write; returns its message, or None if the episode's cap is spent."""
    written = yield from self.layer((agent,), round_)
    return written[0] if written else None

  def tell(self, agent: int, text: str) -> None:
    """Adds a text of the environment to an agent's next prompt, framed as a teammate's message.

    Raises:
      TypeError: There is no such agent, or `text` is not a string.
    """
    if agent not in range(self.team.num_agents) or not is_text(text):
      raise TypeError(
        f'talk.tell({shown(agent)}, {shown(text)}): must be an agent, '
        f'0..{self.team.num_agents - 1}, and a text.'
      )
    if text:
      self._told[agent].append((len(self.written), text))

  def reward(self, agent: int, value: float) -> None:
    """Adds a reward of the environment to an agent's last message, if it has written any.

    In an episode with any reward, each message is credited with its own and its author's later
    rewards, in place of the task score.

    Raises:
      TypeError: There is no such agent, or `value` is not a finite number.
    """
    if agent not in range(self.team.num_agents) or not is_number(value):
      raise TypeError(
        f'talk.reward({shown(agent)}, {shown(value)}): must be an agent, '
        f'0..{self.team.num_agents - 1}, and a finite number.'
      )
    own = [i for i, message in enumerate(self.written) if message.agent == agent]
    if own:
      self._rewards[own[-1]] = (self._rewards[own[-1]] or 0.0) + value

  def take(self, messages: Sequence[Message]) -> None:
    """Adds the messages of one candidate to the conversation."""
    for message in messages:
      agent = message.agent
      self._contexts[agent].wrote(message.token_ids, message.ended)
      self._by_turn[agent, message.round] = len(self.written)
      self._spent += message.spent
      self._content += message.written
      if not message.silent:  # its author's own later prompts contain it as well
        self._carried[agent].append(len(self.written))
      self.written.append(message)
      self._readers.append(0)
      self._rewards.append(None)

  def leave(self, messages: Sequence[Message], rewards: Mapping[int, float]) -> None:
    """Keeps the messages of another candidate, with the reward of each author, for training."""
    self._not_taken += [
      dataclasses.replace(m, taken=False, reward=float(rewards[m.agent])) for m in messages
    ]

  def decide(self) -> str:
    """Returns the answer that the team's decision rule takes from the last round's messages."""
    last_round = self.team.topology.rounds - 1
    places = [self._by_turn.get((a, last_round)) for a in range(self.team.num_agents)]
    texts = ['' if i is None else self.team.body(self.written[i].text) for i in places]
    return self.team.decide(texts, self._canonical)

  def _place(self, agent: int, round_: int) -> int:
    """Returns the index of the layer that has this turn."""
    topology = self.team.topology
    layers = topology.turns(round_) if 0 <= round_ < topology.rounds else ()
    for place, layer in enumerate(layers):
      if agent in layer and (agent, round_) not in self._by_turn:
        return place
    raise ValueError(
      f'the episode takes a turn of agent {agent} in round {round_}, which was taken before or '
      f'which a team of {self.team.num_agents} agents with team.rounds={topology.rounds} does not '
      'have. Change Task.converse, or raise team.rounds.'
    )

  def _turn(self, agent: int, round_: int, limit: int) -> Turn:
    left = self.team.told_left(self.question.terms, self._spent, self._content)
    writer = self._writers[agent]
    incoming, delivered = [], {}
    observed = self._told.pop(agent, [])
    told = collections.deque(
      (place, (ENVIRONMENT, writer.observed_ids(text))) for place, text in observed
    )
    for author, when in self.team.topology.reads(agent, round_):
      index = self._by_turn.get((author, when))
      if index is None:
        continue
      message = self.written[index]
      reaches = message.reaches(agent)
      delivered[author] = self.team.body(message.text) if reaches else ''
      while told and told[0][0] <= index:
        incoming.append(told.popleft()[1])
      if reaches:
        said = self._writers[author].said(message, self.team.message_cap(author), writer)
        incoming.append((self.team.names[author], said))
        self._carried[agent].append(index)
    incoming += [text for _, text in told]
    for index in self._carried[agent]:
      self._readers[index] += 1
    return Turn(
      question=self.question,
      sample=self.sample,
      agent=agent,
      round=round_,
      prompt_ids=self._contexts[agent].prompt(incoming, left),
      delivered=delivered,
      limit=limit,
      stop_ids=writer.stop_ids,
      silence_ids=writer.silence_ids,
      left=left,
      end_id=writer.end_id,
      told=tuple(text for _, text in observed),
      state=self.state,
      model=writer.role.model,
    )

  def _message(self, turn: Turn, reply: Reply, place: int) -> Message:
    agent, ids, inserted = turn.agent, reply.token_ids, reply.inserted
    writer = self._writers[agent]
    text = writer.text(ids, reply.ended)
    learns = reply.learns and writer.role.learns
    return Message(
      episode=self._episode,
      agent=agent,
      round=turn.round,
      layer=place,
      prompt_ids=turn.prompt_ids,
      token_ids=np.asarray(ids, np.int32),
      logprobs=np.asarray(reply.logprobs, np.float32),
      ended=reply.ended,
      text=text,
      read_from=tuple(
        turn_ for turn_ in self.team.topology.reads(agent, turn.round) if turn_ in self._by_turn
      ),
      addressees=self.team.addressees(text),
      inserted=inserted if inserted is not None and inserted.any() else None,
      usage=reply.usage,
      tail=writer.tail(int(ids[-1])) if reply.ended else (),
      told=turn.told,
      learns=learns,
      version=reply.version if learns else -1,
      log_speak=reply.log_speak,
      experts=reply.experts,
    )


def converse(talk: Conversation) -> Episode:
  """Runs the turns of the team's topology; returns the team's answer."""
  for round_, _, agents in talk.team.turns:
    yield from talk.layer(agents, round_)
  return talk.decide()


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
