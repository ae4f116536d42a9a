"""Collects the rollout of a step: draws training questions and runs episodes about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from agent_gspo import streams
from agent_gspo.algorithms import selection as selection_lib
from agent_gspo.algorithms import terms
from agent_gspo.rewards.scores import scored
from agent_gspo.sharding import hosts
from agent_gspo.teams import batches
from agent_gspo.teams.exploration import Exploration, audible_turns
from agent_gspo.teams.policies import Policy
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import engine, opponents
from agent_gspo.training.progress import Progress
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import Question, RolloutBatch


def collect(
  setup: Setup,
  state: TrainState,
  progress: Progress,
  step: int | None = None,
  gather: Callable[[RolloutBatch], list[RolloutBatch]] = hosts.gather,
  write: Callable[[Callable[[TrainState], Policy]], Policy] | None = None,
) -> tuple[RolloutBatch, RolloutBatch, selection_lib.SelectionState]:
  """Runs the episodes of a step with the parameters of `state`.

  Replaces questions whose task scores all tie, at most `selection.resample` times, as long as
  enough questions remain that this step has not drawn.

  Args:
    setup: Run setup.
    state: Training state.
    progress: Progress display.
    step: Finished steps when the episodes are learned from, which seed every draw; by default those
      of `state`.
    gather: Returns the episodes of each process.
    write: Makes the policy of the rollout, given the policy of any state; None for that of `state`,
      which is first published to `rollout.engine`.

  Returns:
    Episodes to learn from, about `B` questions, with candidates that were not taken; all episodes,
    about `Q >= B` questions, since those that resampling dropped still count for accuracy and cost;
    and the state of the selection rule after the draws.
  """
  options = setup.config.selection
  step = int(state.step) if step is None else step
  if write is None:
    engine.publish(setup, state)
    write = lambda policy_of: policy_of(state)
  missing, selection = setup.config.rollout.questions, state.selection
  found: list[RolloutBatch] = []
  asked: list[int] = []
  kept: list[int] = []  # indices into `asked`
  retries = options.resample
  while missing:
    drawn, selection = selection_lib.choose(
      options.name, selection, missing, seed=setup.config.seed, asked=asked
    )
    questions = [setup.questions[int(i)] for i in drawn]
    if setup.term_sheet is not None:
      seed = (setup.config.seed, streams.TERMS, step, len(asked))
      questions = terms.put(questions, setup.term_sheet.draw(missing, seed))
    own = _converse(setup, state, step, questions, len(asked), progress, write)
    batch = batches.join(gather(own), as_one=True)
    good = np.arange(missing)
    if retries:
      scores = scored(setup.config.reward, batch, setup.task.canonical).task_scores
      good = np.flatnonzero(selection_lib.informative(scores, batch.episode_question, missing))
      if missing - len(good) > len(setup.questions) - len(asked) - missing:
        good = np.arange(missing)
    found.append(batch)
    kept += (len(asked) + good).tolist()
    asked += drawn.tolist()
    missing, retries = missing - len(good), retries - 1
  everything = dataclasses.replace(batches.join(found), drawn=np.asarray(asked))
  learned = batches.select(everything, kept) if len(kept) < len(asked) else everything
  return learned, batches.taken(everything), selection


def _converse(
  setup: Setup,
  state: TrainState,
  step: int,
  questions: Sequence[Question],
  asked: int,
  progress: Progress,
  write: Callable[[Callable[[TrainState], Policy]], Policy],
) -> RolloutBatch:
  """Runs `group_size` episodes for each question of this process's share."""
  options = setup.config.rollout
  exploration = None
  if options.must_speak:
    turns = audible_turns(setup.team, setup.sharing)
    seeds = (setup.config.seed, step)
    exploration = Exploration(turns, options.must_speak, options.group_size, *seeds)
  matches: Mapping[str, opponents.Match] = {}
  if state.pool is not None:
    matches = opponents.matches(setup, step, questions, asked, int(state.step))

  def policy_of(newer: TrainState) -> Policy:
    """Returns the policy of newer weights against the same opponents."""
    policy = opponents.policy(
      setup,
      dataclasses.replace(newer, pool=state.pool),
      step,
      matches,
      exploration.must_speak if exploration else None,
    )
    version = int(newer.step)
    return lambda turns: [reply._replace(version=version) for reply in policy(turns)]

  own = rollout(
    setup.team,
    setup.task,
    setup.tokenizer,
    questions[hosts.share(len(questions))],
    options.group_size,
    write(policy_of),
    lambda done, total: progress.phase('rollout', done, total),
    parts=options.parts or _parts(setup, len(questions) * options.group_size * options.branches),
    branches=options.branches,
  )
  if exploration:
    own = exploration.weighted(own)
  return own


def _parts(setup: Setup, episodes: int) -> int:
  """Returns the parts of a rollout of `episodes`, over all processes, if the config sets none.

  On a CPU, preparing one part competes with decoding another for cores. On an accelerator, a
  half-empty decode batch reads all weights too.
  """
  if jax.default_backend() == 'cpu':
    return 1
  smallest = min(len(layer) for _, _, layer in setup.team.turns) * episodes // jax.process_count()
  return 2 if smallest >= 2 * setup.sampler.decode_rows * setup.sampler.shards else 1
