"""Computes the metrics of a step for `metrics.jsonl`, beyond its reward terms."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agent_gspo.algorithms.advantages import estimators, groups
from agent_gspo.algorithms.advantages.inputs import Advantage
from agent_gspo.algorithms.objectives import losses
from agent_gspo.config import Config
from agent_gspo.packing import train_batches
from agent_gspo.rewards import communication
from agent_gspo.rewards.communication import RewardTerms
from agent_gspo.teams import counts
from agent_gspo.teams.sharing import Sharing
from agent_gspo.training.advantages import group_ids
from agent_gspo.training.learner import Minibatch
from agent_gspo.types import RolloutBatch

_RELEVANT_PAYS = 0.5  # least share of relevant notes that should gain more than they cost
_NOISE_CLIPPED = 0.02  # share of messages of a first mini-batch


class Clock:
  """Clock of the phases of a step."""

  def __init__(self):
    self._seconds: dict[str, float] = {}
    self._last = time.monotonic()

  def lap(self, phase: str) -> None:
    """Ends a phase and starts the next one."""
    now = time.monotonic()
    self._seconds[phase], self._last = now - self._last, now

  def metrics(self) -> dict[str, float]:
    """Returns the seconds of each phase and of the step."""
    seconds = {f'time/{phase}_s': value for phase, value in self._seconds.items()}
    return {**seconds, 'time/step_s': sum(self._seconds.values())}


def of_step(
  config: Config,
  sharing: Sharing,
  rollout: RolloutBatch,
  learned: RolloutBatch,
  everything: RolloutBatch,
  rewards: RewardTerms,
  advantages: Advantage,
  minibatches: Sequence[Minibatch],
  updates: Mapping[str, Sequence[Mapping[str, float]]],
) -> dict[str, float]:
  """Returns the metrics of a step except prices and time; arguments as in `train_step`."""
  kept = advantages.kept > 0  # bool [M]
  trained = [m for m, x in zip(learned.messages, kept, strict=True) if x]
  ids = group_ids(config.advantage.grouping, rollout)
  return {
    'advantage/tied_groups': groups.tied_groups(rewards.task, ids),
    'advantage/abs_mean': float(np.abs(advantages.values).mean()),
    'advantage/kept': float(kept.mean()),
    **communication.summary(config.reward, rewards, rollout),
    'task/accuracy': float(everything.task_scores.mean()),
    'selection/questions_asked': float(len(everything.questions)),
    **of_rollout(everything),
    **of_candidates(rollout),
    **(of_graph(everything) if config.team.addressing else {}),
    **train_batches.positions(
      [m for m in trained if sharing.learns(m.agent)],
      [micro_batch for minibatch in minibatches for micro_batch in minibatch],
    ),
    **{
      f'{key}/{model}' if model else key: value
      for model, results in updates.items()
      for key, value in _measured(config, of_updates(results)).items()
    },
    'memory/peak_mb': peak_mb(),
  }


def of_rollout(rollout: RolloutBatch) -> dict[str, float]:
  """Returns token counts and silence rates of a rollout; omits rates without messages."""
  rates: dict[str, Any] = counts.silence_rates(rollout, np.ones(len(rollout.agent), bool))
  rates |= {f'silence_rate/{row["name"]}': row['silence_rate'] for row in counts.agents(rollout)}
  return {
    'tokens/written_per_question': counts.per_question(rollout, rollout.written),
    'tokens/read_per_question': counts.per_question(rollout, rollout.read),
    'comm/tokens_per_message': float(rollout.written.mean()),
    'comm/truncated_rate': float(rollout.truncated.mean()),
    **counts.tools(rollout),
    **{f'comm/{name}': rate for name, rate in rates.items() if rate is not None},
  }


def of_candidates(rollout: RolloutBatch) -> dict[str, float]:
  """Returns the tokens of all candidates; {} without `rollout.branches`."""
  if rollout.taken.all():
    return {}
  return {'tokens/candidates_per_question': counts.per_question(rollout, rollout.written)}


def of_graph(rollout: RolloutBatch) -> dict[str, float]:
  """Returns metrics of the addressing graph: for each edge, the share of possible messages sent.

  `graph/sparsity` is the share of possible messages, over all edges, that were not sent.
  """
  edges = counts.edges(rollout)
  if not edges:
    return {}
  total = lambda field: sum(edge[field] for edge in edges)
  return {
    'tokens/heard_per_question': total('tokens'),
    'graph/sparsity': 1 - total('told') / total('turns'),
    **{f'graph/{e["author"]}_to_{e["reader"]}': e['told'] / e['turns'] for e in edges},
  }


def of_updates(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """Returns means over the mini-batches, and the on-policy first one apart; {} if none."""
  if not results:
    return {}
  keys = sorted({key for result in results for key in result} - {'policy/ratio_error_max'})
  metrics = {k: float(np.mean([r[k] for r in results if k in r])) for k in keys if '_gap_' not in k}
  first = results[0]
  return metrics | {
    'policy/clip_fraction_first_minibatch': first['policy/clip_fraction'],
    'policy/ratio_first_minibatch_mean': first['policy/ratio_mean'],
    'policy/ratio_first_minibatch_error_max': first['policy/ratio_error_max'],
    'policy/sampler_trainer_diff_mean': first['policy/sampler_gap_mean'],
    'policy/sampler_trainer_diff_max': first['policy/sampler_gap_max'],
  }


def _measured(config: Config, metrics: Mapping[str, float]) -> dict[str, float]:
  """Drops metrics that the run does not compute, which would read as 0."""
  computed = {
    'policy/kl': config.objective.kl_coef > 0,
    'policy/entropy': config.learner.entropy,
    # A teacher's log-probs have taken the place of the sampler's.
    'policy/sampler_trainer_diff_mean': not config.objective.teacher,
    'policy/sampler_trainer_diff_max': not config.objective.teacher,
    'router/changed_update': config.learner.old_logprobs == 'trainer',
  }
  return {key: value for key, value in metrics.items() if computed.get(key, True)}


def clip_warning(config: Config, metrics: Mapping[str, float]) -> str | None:
  """Returns a warning if rounding alone leaves the clip band, None otherwise.

  Before the first mini-batch nothing was updated, so all ratios should be 1. Clipping there, on
  one side of the band, measures the numerical gap between the update and the old log-probs. A
  band of two standard deviations of a message's mean clips 2 %.
  """
  clipped = metrics.get('policy/clip_fraction_first_minibatch', 0.0)
  options, learner = config.objective, config.learner
  stale = config.rollout.ahead + config.rollout.replay > 0  # no ratio starts at 1
  if clipped <= _NOISE_CLIPPED or (stale and learner.old_logprobs == 'sampler'):
    return None
  fields = [f'objective.{k}={v}' for k, v in losses.clip_band(options).items()]
  band = ' and '.join(fields) or repr(options.name)  # a custom objective may have other options
  remedy = "Set learner.old_logprobs='trainer'"
  if learner.old_logprobs == 'trainer':
    remedy = "Set model.dtype='float32'" if config.model.remat else 'Set model.remat=True'
  return (
    f'{clipped:.0%} of the messages were clipped before anything was updated, where all ratios '
    f'should be 1 (they are off by up to {metrics["policy/ratio_first_minibatch_error_max"]:.1e}): '
    f'the band of {band} is narrower than rounding. {remedy}, or widen the band.'
  )


def price_warning(config: Config, metrics: Mapping[str, float]) -> str | None:
  """Returns a warning if most relevant notes gain less than they cost, None otherwise."""
  pays = metrics.get('worth/relevant_plain_pays', 1.0)
  if pays >= _RELEVANT_PAYS:
    return None
  has_unit = 'nats' in estimators.options_of(config.advantage.name)
  lower = 'budget.lambda_tok or advantage.options.nats' if has_unit else 'budget.lambda_tok'
  return (
    f'at budget.lambda_tok={metrics["budget/lambda_tok"]:g} only {pays:.0%} of the relevant notes, '
    'said plainly, gain the answering agent what they cost: the price teaches silence about the '
    f'others. Lower {lower}, or train the answering agent '
    f'longer first: sft.steps={config.sft.steps}, sft.epochs={config.sft.epochs}.'
  )


def no_update_warning(config: Config, metrics: Mapping[str, float]) -> str | None:
  """Returns a warning if a step updated nothing, None otherwise."""
  if 'policy/objective' in metrics:
    return None
  return (
    f'nothing was updated, since advantage.name={config.advantage.name!r} dropped every '
    'message: of such steps metrics.jsonl has no policy/*. If that is not because the team is '
    'right, use another estimator or more rollout.group_size.'
  )


def peak_mb() -> float:
  """Returns the peak memory of the accelerator, or of this process on CPU, in MB (10^6 bytes)."""
  stats = jax.local_devices()[0].memory_stats()
  if stats and 'peak_bytes_in_use' in stats:
    return stats['peak_bytes_in_use'] / 1e6
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak / 1e6 if sys.platform == 'darwin' else peak * 1024 / 1e6
