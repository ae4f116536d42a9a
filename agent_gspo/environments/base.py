"""Defines the interface of an environment, and runs its episodes.

An environment is a task whose episodes have a state. Each layer of the team's topology is one
step: its agents read what they observe, write in parallel, and `act` maps their texts to the next
state. A text may contain talk, an action, or both; the environment parses it, and teammates read it
by the topology. `team.rounds` limits the steps.
"""

from __future__ import annotations

import abc
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from agent_gspo.tasks.base import Task
from agent_gspo.teams.topology import Topology
from agent_gspo.types import Message, Question
from agent_gspo.values import is_number, is_text, shown


def takes_turns(topology: Topology, agents: Sequence[int]) -> bool:
  """Returns whether agents have turns in this order, one step each."""
  layers = (layer for round_ in range(topology.rounds) for layer in topology.turns(round_))
  return all(any(agent in layer for layer in layers) for agent in agents)


class _Step(NamedTuple):
  """Result of one candidate for a step.

  Attributes:
    written: Its messages.
    state: State after it.
    rewards: Reward of each author, and of other agents with a reward.
    acted: Whether `act` was called.
    done: Whether the episode ends.
  """

  written: Sequence[Message]
  state: Any
  rewards: Mapping[int, float]
  acted: bool
  done: bool


class Environment(Task):
  """Task with a state that agents observe and act on.

  States are plain values, which `act` replaces and does not change. A policy may write any text:
  for one that is not an action `act` must return a state that shows this, without a reward.

  Attributes:
    hears_silence: Whether silence is an action: `act` then gets '' for it, and a silent round does
      not end the episode.

  For SFT `demonstration(question, agent, delivered, rng, *, state, terse_probability,
  silence_probability)` returns the text of an agent that observes `state`. `delivered` has the last
  message that it received from each agent, '' for none; the probabilities are those of the section
  `sft`, of a terse text, and of silence where it does no harm.
  """

  hears_silence = False

  @property
  def least_team(self) -> tuple[int, int]:
    """Returns the fewest agents and rounds with which episodes can succeed; a property."""
    return 1, 1

  def needs(self, topology: Topology) -> str:
    """Returns what a topology lacks for episodes to succeed, as text; '' if nothing.

    It is called with teams of at least `least_team`.
    """
    del topology
    return ''

  @abc.abstractmethod
  def begin(self, question: Question, sample: int) -> Any:
    """Returns the first state of an episode; `sample` is its index in the question's group."""

  @abc.abstractmethod
  def observe(self, state: Any, agent: int) -> str | None:
    """Returns what an agent reads before its turn, '' for nothing; None if it takes no turn."""

  @abc.abstractmethod
  def act(
    self, state: Any, texts: Mapping[int, str]
  ) -> tuple[Any, Mapping[int, float] | float, bool]:
    """Returns the state after a step, its rewards, and whether the episode is done.

    Rewards are those of some agents, by agent, or one number that all agents earn.

    Args:
      state: State that the agents observed.
      texts: Text of each agent that wrote something in this step, at least one; with
        `hears_silence` of each agent that took a turn.
    """

  @abc.abstractmethod
  def outcome(self, state: Any) -> str:
    """Returns the result of an episode, which `score` compares with the question's answer."""

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1 for the outcome that the question asks for, else 0."""
    return float(answer_text == question.answer)

  def converse(self, talk) -> Generator[Any, Any, str]:
    """Runs one episode until it is done, a round is silent, or no round is left.

    Each step has `rollout.branches` candidates, which act on the same state. The episode continues
    from the one with the highest reward, the first of equal ones, since candidates of one prompt
    are exchangeable. With `hears_silence` silent rounds count.
    """
    topology = talk.team.topology
    talk.state = self.begin(talk.question, talk.sample)
    for round_ in range(topology.rounds):
      acted = self.hears_silence
      for layer in topology.turns(round_):
        seen = {agent: self._observed(talk.state, agent) for agent in layer}
        agents = [agent for agent, text in seen.items() if text is not None]
        if not agents:
          continue
        for agent in agents:
          talk.tell(agent, seen[agent])
        candidates = yield from talk.candidates(agents, round_, talk.branches)
        steps = [self._try(talk, written) for written in candidates]
        best = max(steps, key=lambda step: sum(step.rewards.values()))
        for step in steps:
          if step is not best:
            talk.leave(step.written, step.rewards)
        talk.take(best.written)
        talk.state = best.state
        for agent, reward in best.rewards.items():
          talk.reward(agent, reward)
        if best.done:
          return self.outcome(talk.state)
        acted |= best.acted
      if not acted:
        break
    return self.outcome(talk.state)

  def _observed(self, state: Any, agent: int) -> str | None:
    """Returns the checked result of `observe`."""
    found = self.observe(state, agent)
    if found is not None and not is_text(found):
      raise TypeError(f'observe returned {shown(found)}; must return a text or None')
    return found

  def _try(self, talk, written: Sequence[Message]) -> _Step:
    """Returns the step that the messages of a layer would make."""
    acts = lambda m: self.hears_silence or not m.silent
    texts = {m.agent: talk.team.body(m.text) for m in written if acts(m)}
    rewards = dict.fromkeys((m.agent for m in written), 0.0)  # silence earns nothing
    if not texts:
      return _Step(written, talk.state, rewards, acted=False, done=False)
    state, earned, done = self._step(talk.state, texts, talk.team.num_agents)
    if talk.branches > 1:  # earlier authors' other candidates had no such step to compare with
      earned = {agent: earned[agent] for agent in rewards if agent in earned}
    return _Step(written, state, {**rewards, **earned}, acted=True, done=done)

  def _step(
    self, state: Any, texts: Mapping[int, str], num_agents: int
  ) -> tuple[Any, Mapping[int, float], bool]:
    """Returns the checked result of `act`, with the reward of each agent.

    Raises:
      TypeError: It is not state, rewards and flag, or a reward is not finite or of no agent.
    """
    found = self.act(state, texts)
    if isinstance(found, tuple) and len(found) == 3:
      state, rewards, done = found
      agents = range(num_agents)
      if not isinstance(rewards, Mapping):
        rewards = dict.fromkeys(agents, rewards)
      if all(agent in agents and is_number(reward) for agent, reward in rewards.items()):
        return state, rewards, done
    raise TypeError(
      f'act returned {shown(found)}; must return (state, rewards, done): finite rewards by agent, '
      f'0..{num_agents - 1}, or one for all'
    )
