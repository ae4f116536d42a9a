"""Composes the config of a run from the sections of all packages."""

from __future__ import annotations

import dataclasses
from typing import Any

from ml_collections import config_dict

from agent_gspo.algorithms.options import (
  AdvantageOptions,
  BudgetOptions,
  ObjectiveOptions,
  SelectionOptions,
)
from agent_gspo.algorithms.presets import PRESETS
from agent_gspo.evaluation.options import EvaluationOptions
from agent_gspo.models.options import ModelOptions
from agent_gspo.options import Section, option, types_of
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.sampling.options import SamplerOptions
from agent_gspo.sharding.options import MeshOptions
from agent_gspo.tasks.options import TaskOptions
from agent_gspo.teams.options import PolicyOptions, RolloutOptions, TeamOptions
from agent_gspo.training.options import LearnerOptions, SFTOptions
from agent_gspo.workdir.options import CheckpointOptions, LoggingOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Section, name=''):
  """Configuration of a run: one attribute a section. Each new section is added here.

  `from_dict` and `to_dict` convert it from and to what config files and run folders hold.

  Attributes:
    seed: Seed of parameters, samples and question order.
    steps: Training steps.
    algorithm: Named combination of objective, advantage and selection; fills in empty fields ('' or
      None), see `algorithms/presets.py`.
    model: Weights, LoRA, dtype and attention.
    task: Task and its options.
    team: Agents, roles, topology and caps on messages.
    rollout: Questions and episodes of a training step.
    sampler: Batch shapes of prefill and decode.
    reward: Cost of communication and where it is charged.
    budget: Price of communication and its controller.
    policy: Parameter sharing, frozen agents, learning rates of agents.
    advantage: Estimator of advantages.
    selection: Rule that selects the next questions.
    objective: Objective, clipping, KL penalty.
    mesh: Data parallelism, FSDP, tensor parallelism.
    learner: Mini-batches and the optimizer.
    sft: SFT before RL.
    evaluation: Schedule and sampling of evaluations.
    checkpoint: Frequency and retention of checkpoints.
    logging: Transcripts and W&B.
  """

  seed: int = option(0, least=0, most=2**32 - 1)  # limit of a PRNG key
  steps: int = option(30, least=0, most=10**7)
  algorithm: str = option('agent_gspo', choices=tuple(PRESETS))
  model: ModelOptions
  task: TaskOptions
  team: TeamOptions
  rollout: RolloutOptions
  sampler: SamplerOptions
  reward: RewardOptions
  budget: BudgetOptions
  policy: PolicyOptions
  advantage: AdvantageOptions
  selection: SelectionOptions
  objective: ObjectiveOptions
  mesh: MeshOptions
  learner: LearnerOptions
  sft: SFTOptions
  evaluation: EvaluationOptions
  checkpoint: CheckpointOptions
  logging: LoggingOptions


SECTIONS: dict[str, type[Section]] = {
  name: kind for name, (kind, _) in types_of(Config).items() if issubclass(kind, Section)
}
"""Options class by section name."""


def default_config() -> config_dict.ConfigDict:
  """Returns a config with every field; `configs/*.py` change some and lock it."""
  sections: dict[str, Any] = {name: options() for name, options in SECTIONS.items()}
  return changeable(Config(**sections))


def changeable(section: Section) -> config_dict.ConfigDict:
  """Returns a section as a ConfigDict; None becomes a placeholder of the field's type."""
  found: dict[str, Any] = {}
  for field, (kind, _) in types_of(type(section)).items():
    value = getattr(section, field)
    if isinstance(value, Section):
      value = changeable(value)
    found[field] = config_dict.placeholder(kind) if value is None else value
  return config_dict.ConfigDict(found)
