"""Runs one training step of a team, in the order of the algorithm."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np

from agent_gspo.algorithms import budgets
from agent_gspo.algorithms.selection import rules
from agent_gspo.rewards import communication
from agent_gspo.teams import batches
from agent_gspo.teams.counts import count_messages
from agent_gspo.training import message_worth, reference_nll
from agent_gspo.training import metrics as metrics_lib
from agent_gspo.training.advantages import message_advantages
from agent_gspo.training.collect import collect
from agent_gspo.training.minibatches import pack_minibatches, update_on_minibatches
from agent_gspo.training.programs import Programs
from agent_gspo.training.progress import Progress
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import RolloutBatch


@dataclasses.dataclass(frozen=True)
class StepResult:
  """Result of a training step.

  Attributes:
    state: State after the step.
    metrics: Metrics for `metrics.jsonl`.
    rollout: Episodes it learned from, `M` messages.
    rewards, advantages: Reward and advantage of each message, float32 `[M]`.
    worth: Gains of the messages, or None if the estimator reads none.
  """

  state: TrainState
  metrics: dict[str, float]
  rollout: RolloutBatch
  rewards: np.ndarray
  advantages: np.ndarray
  worth: message_worth.MessageWorth | None = None


def train_step(
  setup: Setup,
  programs: Programs,
  state: TrainState,
  progress: Progress,
  interruptible: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> StepResult:
  """Rollout, counts, rewards, advantages, packing, update, next prices (arXiv 2510.22477).

  Args:
    setup: the team, its task and the resolved config.
    programs: the compiled parts of the update.
    state: before the step; what is trained of it is consumed by the update.
    progress: is told what is being done.
    interruptible: opens a block that Ctrl-C may break into; nothing has changed by its end.

  Raises:
    NonFiniteLossError: names the mini-batch, the step and the questions.
  """
  config, clock = setup.config, metrics_lib.Clock()
  with interruptible():  # the team talks: `group_size` conversations about each question
    rollout = collect(setup, state, progress)
  batch, counts = rollout.batch, count_messages(rollout.batch)
  scores, _ = batches.task_scores(batch)
  clock.lap('rollout')

  progress.phase('score')
  prices = budgets.prices(config.budget, state.budget, batches.terms(batch))
  rewards = communication.reward_terms(  # of each message: the task score, less what was said
    config.reward,
    counts,
    scores,
    **prices,
    texts=[message.text for message in batch.messages],
    reference_nll=reference_nll.of_episodes(setup, programs, state, batch),
  )
  clock.lap('score')
  worth = message_worth.of_step(setup, programs, state, batch, counts, prices)
  clock.lap('worth')
  advantages = message_advantages(setup, state, rollout, counts, rewards, worth)

  minibatches = pack_minibatches(setup, state, batch.questions, counts, advantages)
  state, updates = update_on_minibatches(
    setup, programs, state, minibatches, counts, advantages, progress
  )

  # Of all that was held: questions that resampling drops are those that are all right or all wrong.
  all_scores, question = batches.task_scores(rollout.held)
  all_counts = counts if rollout.held is batch else count_messages(rollout.held)
  next_budget = budgets.update(
    config.budget,
    state.budget,
    budgets.Observation(
      accuracy=float(all_scores.mean()),
      episode_cost=float(communication.episode_costs(config.reward, all_counts).mean()),
      message_tokens=float(all_counts.written.mean()),
    ),
  )
  next_selection = rules.observe(
    config.selection.name,
    rollout.selection,
    rollout.asked[question],
    all_scores,
    divergence=float(np.mean([u['policy/logprob_gap_mean'] for u in updates] or [0.0])),
  )
  clock.lap('update')

  metrics = {
    **metrics_lib.of_step(setup, rollout, all_counts, rewards, advantages, minibatches, updates),
    **budgets.metrics(prices, next_budget),
    **(worth.metrics(counts) if worth else {}),
    **clock.metrics(),
  }
  state = dataclasses.replace(
    state, step=state.step + 1, budget=next_budget, selection=next_selection
  )
  return StepResult(state, metrics, batch, rewards.total, advantages.values, worth)
