"""Assigns opponents to the side that learns: past copies of its parameters, or another run's.

The train state has their parameters (`TrainState.pool`) and so has a checkpoint: a resumed run
has the same opponents. All episodes of a question have the same side that learns and the same
opponent, so that a group compares like with like.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp

from agent_gspo import streams
from agent_gspo.config import Config
from agent_gspo.sharding import hosts
from agent_gspo.teams.options import RolloutOptions
from agent_gspo.teams.policies import Policy, Reply, Turn, divided
from agent_gspo.training import engine
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import Flat, TrainState
from agent_gspo.types import Question
from agent_gspo.workdir import checkpoints, disk
from agent_gspo.workdir.checkpoints import Saved


class Match(NamedTuple):
  """Assignment of a question: the side that learns, and the pool member that plays the others.

  Without a member all sides learn.
  """

  side: str
  member: int | None


def policy(
  setup: Setup,
  state: TrainState,
  step: int,
  found: Mapping[str, Match],
  must_speak: Callable[[Turn], bool] | None = None,
) -> Policy:
  """Returns the policy of a training rollout, with opponents if the config has any.

  Args:
    setup: Run setup.
    state: Training state.
    step: Finished steps when the rollout is learned from, at least those of `state`.
    found: Assignment of each question of the rollout, over all processes, see `matches`.
    must_speak: See `ModelPolicy`.
  """
  of = lambda trainable, **options: setup.policy(
    state_lib.merge(trainable, state.frozen),
    stream='train',
    step=step,
    temperature=setup.config.rollout.temperature,
    **options,
  )
  learner = of(state.trainable, must_speak=must_speak)
  if state.pool is None:
    return engine.policy(setup, learner)
  # In one order in all processes, which exchange parameters here.
  playing = {match.member for match in found.values() if match.member is not None}
  members: dict[int | None, Policy] = {m: of(state.pool[m]) for m in sorted(playing)}
  policies = {None: learner, **members}

  def author(turn: Turn) -> int | None:
    """Returns the pool member that takes a turn, None for the learner."""
    side, member = found[turn.question.id]
    return None if setup.team.sides[turn.agent] == side else member

  def speak(turns: Sequence[Turn]) -> list[Reply]:
    replies = divided(turns, author, policies)
    return [r._replace(learns=author(t) is None) for r, t in zip(replies, turns, strict=True)]

  return speak


def matches(
  setup: Setup, step: int, questions: Sequence[Question], asked: int, version: int
) -> dict[str, Match]:
  """Draws the assignment of each question; sides learn in equal parts of those with opponents.

  A side whose agents are all frozen is played by opponents alone.

  Args:
    setup: Run setup.
    step: Finished steps when the rollout is learned from.
    questions: Questions of the rollout.
    asked: Questions asked before in this step.
    version: Finished steps when the pool was taken.
  """
  options, names = setup.config.rollout, setup.team.sides
  sides = list(
    dict.fromkeys(side for agent, side in enumerate(names) if setup.sharing.learns(agent))
  )
  rng = streams.generator(setup.config.seed, streams.OPPONENTS, step, asked)
  places = rng.permutation(len(questions))
  filled = _filled(options, version)
  members = rng.integers(filled, size=len(questions))
  share, end = options.opponent_share, asked + len(questions)
  played = places < max(not asked, round(share * end) - round(share * asked))
  return {
    question.id: Match(sides[(place + step + asked) % len(sides)], int(member) if against else None)
    for question, place, member, against in zip(questions, places, members, played, strict=True)
  }


def _filled(options: RolloutOptions, step: int) -> int:
  """Returns the number of different pool members after `step` steps."""
  if options.opponents_run:
    return 1
  return min(1 + step // options.pool_every, options.pool_size)


def kept(options: RolloutOptions, state: TrainState) -> tuple[Flat, ...] | None:
  """Returns the pool after a step: every `pool_every` steps a copy replaces the oldest member.

  `state` has the updated parameters; its `step` counts the steps before this one.
  """
  copies, rest = divmod(int(state.step) + 1, options.pool_every)
  if state.pool is None or options.opponents_run or rest:
    return state.pool
  place = copies % options.pool_size
  # A copy: the next update donates these buffers.
  copy = jax.tree.map(jnp.array, state.trainable)
  return (*state.pool[:place], copy, *state.pool[place + 1 :])


def begin(setup: Setup, state: TrainState) -> TrainState:
  """Returns the state at step 0 with the parameters of frozen opponents, if there are any.

  Raises:
    ValueError, FileNotFoundError: See `frozen_checkpoint`.
  """
  saved = frozen_checkpoint(setup.config)
  if saved is None:
    return state
  params = flax.traverse_util.flatten_dict(saved.restore_params(setup.config, setup.params))
  pool = ({path: params[path] for path in state.trainable},)
  return setup_lib.place_state(setup, dataclasses.replace(state, pool=pool))


def frozen_checkpoint(config: Config) -> Saved | None:
  """Finds the checkpoint of frozen opponents, one for all processes; None without such opponents.

  Raises:
    ValueError: It is of another model, or its folder is an address.
    FileNotFoundError: There is none.
  """
  run = config.rollout.opponents_run
  if not run:
    return None
  where = f'rollout.opponents={config.rollout.opponents!r}'
  if config.model.lora_rank and config.model.source.startswith('random:'):
    raise ValueError(
      f'{where} with model.lora_rank={config.model.lora_rank} and model.source='
      f'{config.model.source!r}: that run has other base weights. Set '
      'model.lora_rank=0, or take a pretrained model.'
    )
  try:
    folder = disk.folder(run) / 'checkpoints'
    # Another process may read the folder later, with a newer checkpoint.
    step = hosts.agreed(lambda: checkpoints.newest(folder).step)
    saved = checkpoints.chosen(folder, str(step))
    saved.check_params(config)
  except (ValueError, FileNotFoundError) as error:
    raise type(error)(f'{where}: {error}') from error
  return saved
