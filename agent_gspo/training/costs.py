"""Estimates the cost of a run before it starts: questions, positions, FLOPs, time."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.config import check as config_lib
from agent_gspo.models import flops
from agent_gspo.models.config import ModelConfig
from agent_gspo.tasks.data import held_back
from agent_gspo.teams.team import Team
from agent_gspo.training.prompt_checks import PromptLengths


@dataclasses.dataclass(frozen=True)
class Work:
  """Upper bound on a part of a run: prompts at their longest, messages at their caps.

  Attributes:
    name: Name of the part.
    questions: Questions asked, repeats included.
    positions: Positions that a model reads, writes or learns from.
    flops: FLOPs over all devices.
  """

  name: str
  questions: int
  positions: int
  flops: float


def rollout(
  model: ModelConfig, team: Team, prompts: Sequence[PromptLengths], questions: int, group: int
) -> Work:
  """Returns the work of `group` episodes per question; their common opening is read once."""
  loads = [layer_load(layer, round_, prompts, questions, group) for round_, _, layer in team.turns]
  read, written = sum(read for read, _ in loads), _written(team, questions, group)
  longest = max(max(p.turns) for p in prompts)
  work = flops.forward(model, read, longest / 2, written)
  work += flops.forward(model, written, longest, written)
  return Work('rollout', questions, read + written, work)


def layer_load(
  layer: Sequence[int], turn: int, prompts: Sequence[PromptLengths], questions: int, group: int
) -> tuple[int, int]:
  """Returns prompt positions that a layer of agents reads at a turn, and messages it writes."""
  own = [prompts[agent] for agent in layer]
  read = sum(p.opening + group * (p.turns[min(turn, len(p.turns) - 1)] - p.opening) for p in own)
  return questions * read, questions * group * len(layer)


def update(
  parts: config_lib.Parts,
  model: ModelConfig,
  prompts: Sequence[PromptLengths],
  questions: int,
  group: int,
  scored: int = 0,
  shares: Mapping[str, float] | None = None,
) -> Work:
  """Returns the work of learning from such episodes, and of scoring them `scored` times.

  `shares` maps a role to the share of its messages that is trained, 1 by default.
  """
  team, share = parts.team, shares or {}
  of_each = [
    share.get(team.roles[agent].name, 1)
    * (p.opening + group * (p.turns[-1] - p.opening + team.message_cap(agent)))
    for agent, p in enumerate(prompts)
  ]
  learnt = math.ceil(questions * sum(of_each))
  seen, written = parts.config.learner.pack_length / 2, _written(team, questions, group)
  work = flops.update(model, learnt, seen, written)
  work += scored * flops.forward(model, learnt, seen, written)
  return Work('update', questions, learnt, work)


def step(parts: config_lib.Parts, model: ModelConfig, prompts: Sequence[PromptLengths]) -> Work:
  """Returns the work of a training step."""
  config = parts.config
  questions, group = config.rollout.questions, config.rollout.group_size
  scored = sum(
    (
      config.learner.old_logprobs == 'trainer',
      config.objective.kl_coef > 0,
      config.objective.ratio_span != 'message',
      config.advantage.token_share < 1,
      ORDERS[config.learner.order].multipliers is not None,
    )
  )
  there_are = len(held_back.asked(parts.task, config.sft.held_back))
  asked = min(questions * (1 + config.selection.resample), there_are)
  talk = rollout(model, parts.team, prompts, asked, group)
  learning = update(parts, model, prompts, questions, group, scored)
  return Work('step', questions, talk.positions + learning.positions, talk.flops + learning.flops)


def of_run(
  parts: config_lib.Parts, model: ModelConfig, prompts: Sequence[PromptLengths]
) -> list[Work]:
  """Returns the parts of a whole run: SFT, training steps, evaluations."""
  config, options = parts.config, parts.config.evaluation
  available = lambda count, split: min(count, len(parts.task.questions(split)))
  asked = available(options.questions, options.split)
  told = len(options.told) * asked
  found = []
  if parts.training:
    found += _supervised(parts, model, prompts)
    if config.steps:
      found.append(_times(step(parts, model, prompts), config.steps, 'training steps'))
    between = max(config.steps - 1, 0) // options.every if options.every else 0
    asked *= 3 if parts.team.num_agents > 1 else 2  # the trained team, the untrained one, alone
    asked += between * available(options.questions_during, options.split)
    asked += available(options.seen_questions, 'train')
  evaluations = rollout(model, parts.team, prompts, asked + told, 1)
  return [*found, dataclasses.replace(evaluations, name='evaluations')]


def lines(found: Sequence[Work], rate: float, devices: int) -> list[str]:
  """Returns lines that describe the cost to the user.

  Args:
    found: Parts of the run.
    rate: FLOPs per second of a device.
    devices: Number of devices that share the work.
  """
  total = sum(work.flops for work in found)
  told = [
    f'{work.name}: {work.questions:,} questions, at most {work.positions:,} positions, '
    f'{work.flops:.1e} FLOPs, {_hours(work.flops / (rate * devices))}'
    for work in found
  ]
  told.append(
    f'in all {total:.1e} FLOPs, {_hours(total / (rate * devices))} at {rate:.1e} FLOPs a second, '
    'which products of matrices reach on a device here. Shorter prompts and messages than the '
    'longest make it less; writing token by token, which memory bounds, more.'
  )
  return told


def measured_rate(dtype: str, size: int = 2048, seconds: float = 1.0) -> float:
  """Measures the FLOPs per second of square matrix products on the first device."""
  square = jnp.ones((size, size), dtype)
  product = jax.jit(jnp.dot)
  product(square, square).block_until_ready()  # compiles
  count, start = 0, time.monotonic()
  while time.monotonic() - start < seconds:
    product(square, square).block_until_ready()
    count += 1
  return count * 2 * size**3 / (time.monotonic() - start)


def _supervised(
  parts: config_lib.Parts, model: ModelConfig, prompts: Sequence[PromptLengths]
) -> list[Work]:
  options = parts.config.sft
  if not options.is_asked_for:
    return []
  steps = options.steps_of(len(held_back.demonstrated(parts.task, options.held_back)))
  one = update(parts, model, prompts, options.questions, 1, shares=options.role_shares)
  return [_times(one, steps, 'SFT')]


def _times(work: Work, count: int, name: str) -> Work:
  return Work(name, count * work.questions, count * work.positions, count * work.flops)


def _written(team: Team, questions: int, group: int) -> int:
  caps = sum(team.message_cap(agent) for _, _, layer in team.turns for agent in layer)
  return questions * group * caps


def _hours(seconds: float) -> str:
  if seconds < 3600:
    return f'{seconds / 60:.1f} minutes' if seconds >= 60 else f'{seconds:.0f} s'
  return f'{seconds / 3600:.1f} hours'
