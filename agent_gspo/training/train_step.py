"""Runs one training step of a team, in the order of the algorithm."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agent_gspo.algorithms import budgets
from agent_gspo.algorithms import selection as selection_lib
from agent_gspo.config import Config
from agent_gspo.rewards import communication
from agent_gspo.rewards.returns import returns_to_go
from agent_gspo.rewards.scores import label_agreement, scored
from agent_gspo.training import distillation, exchange, message_worth, opponents, replay
from agent_gspo.training import metrics as metrics_lib
from agent_gspo.training.advantages import message_advantages
from agent_gspo.training.ahead import Ahead
from agent_gspo.training.collect import collect
from agent_gspo.training.learner import Learner, Minibatch, reference_nll
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
    rollout: New episodes that it learned from, `M` messages, with the task's scores.
    rewards: Reward terms of each message, `[M]`.
    advantages: Advantage of each message, float32 `[M]`.
    worth: Gains of the messages, or None if the estimator reads none.
    memory: Groups to remember, see `replay`.
  """

  state: TrainState
  metrics: dict[str, float]
  rollout: RolloutBatch
  rewards: communication.RewardTerms
  advantages: np.ndarray
  worth: message_worth.MessageWorth | None = None
  memory: replay.Memory = ()


def train_step(
  setup: Setup,
  learner: Learner,
  state: TrainState,
  progress: Progress,
  interruptible: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
  ahead: Ahead | None = None,
  memory: replay.Memory = (),
) -> StepResult:
  """Runs rollout, rewards, advantages, update and controllers once (arXiv 2510.22477).

  Args:
    setup: Team, task and resolved config.
    learner: Learner of the policy, with those of other models that learn.
    state: State before the step; the update donates its trainable buffers.
    progress: Progress display.
    interruptible: Opens a block that Ctrl-C may interrupt; nothing has changed by its end.
    ahead: Rollouts ahead of the learner; None to sample with the weights of `state`.
    memory: Groups of earlier steps, see `replay`.

  Raises:
    NonFiniteLossError: Non-finite loss; names the mini-batch, the step and the questions.
  """
  config, step, clock = setup.config, int(state.step), metrics_lib.Clock()
  with interruptible():  # `group_size` episodes of the team about each question
    graded, everything, selection = (ahead or collect)(setup, state, progress)
  clock.lap('wait' if ahead else 'rollout')

  progress.phase('score')
  rollout, seen = (  # [E]: with the scores of `reward.score`, which may not read labels
    scored(config.reward, batch, setup.task.canonical) for batch in (graded, everything)
  )
  learned = replay.extended(config, memory, rollout, step)  # new messages come first
  learned, shared = exchange.extended(setup, learner, state, learned)
  prices = budgets.prices(config.budget, state.budget, learned.terms)
  nll = reference_nll(learner, state, learned) if config.reward.needs_reference else None
  returns = returns_to_go(learned, config.reward.discount)
  rewards = communication.reward_terms(  # [M]: the task score, or returns, minus the priced costs
    config.reward, learned, **prices, returns=returns, reference_nll=nll, new=rollout.num_episodes
  )
  clock.lap('score')
  worth = message_worth.of_step(setup, learner, state, learned, prices)
  clock.lap('worth')
  advantages = message_advantages(config, learned, rewards, selection, state.baselines, worth)

  learned = message_worth.learned(config, learned, worth) if worth else learned
  learned = distillation.taught(setup, learner, state, learned)
  minibatches, updates = list[Minibatch](), {}
  for one in learner.models:  # each learns from the messages of its agents
    packed = one.pack(learned, advantages, step)
    state, updates[one.name] = one.update(state, packed, learned, progress)
    minibatches += packed

  budget, selection = observe(config, state, selection, seen, updates)
  clock.lap('update')
  rewards = replay.of_rollout(rewards, rollout)
  metrics = {
    **metrics_lib.of_step(
      config, setup.sharing, rollout, learned, everything, rewards, advantages, minibatches, updates
    ),
    **label_agreement(config.reward, everything.task_scores, seen.task_scores),
    **budgets.metrics(prices, budget),
    **(worth.metrics(rollout) if worth else {}),
    **(ahead.metrics(rollout, step) if ahead else {}),
    **(replay.metrics(rollout, learned, step) if config.rollout.replay else {}),
    **shared,
    **clock.metrics(),
  }
  state = dataclasses.replace(
    state,
    step=state.step + 1,
    budget=budget,
    selection=selection,
    baselines=advantages.baselines,
    pool=opponents.kept(config.rollout, state),
  )
  values = advantages.values[: len(rollout.messages)]  # [M]
  memory = replay.remembered(config.rollout, memory, rollout, step)
  return StepResult(state, metrics, graded, rewards, values, worth, memory)


def observe(
  config: Config,
  state: TrainState,
  selection: selection_lib.SelectionState,
  rollout: RolloutBatch,
  updates: Mapping[str, Sequence[Mapping[str, float]]],
) -> tuple[budgets.BudgetState, selection_lib.SelectionState]:
  """Returns the states of the budget and of the selection rule after a step.

  Both observe all episodes. Resampling drops questions that are all right or all wrong; the rest
  alone would be biased.

  Args:
    config: Resolved run configuration.
    state: Training state.
    selection: State of the selection rule after the draws.
    rollout: All episodes, with the scores that training sees.
    updates: Metrics of each optimizer step of each model, by name.
  """
  gaps = [u['policy/logprob_gap_mean'] for of in updates.values() for u in of]
  if config.objective.teacher:  # to whose log-probs they are
    gaps = []
  budget = budgets.update(
    config.budget,
    state.budget,
    budgets.Observation(
      accuracy=float(rollout.task_scores.mean()),
      episode_cost=float(communication.episode_costs(config.reward, rollout).mean()),
      message_tokens=communication.mean_length(config.reward, rollout),
    ),
  )
  selection = selection_lib.observe(
    selection,
    rollout.drawn[rollout.episode_question],
    rollout.task_scores,
    divergence=float(np.mean(gaps or [0.0])),
  )
  return budget, selection
