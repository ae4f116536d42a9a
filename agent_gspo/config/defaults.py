"""Composes the default config of a run from the sections of all packages."""

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


@dataclasses.dataclass(frozen=True)
class RunOptions(Section, name=''):
  """Fields of a config outside of sections."""

  seed: int = option(0, least=0, most=2**32 - 1)  # limit of a PRNG key
  steps: int = option(30, least=0, most=10**7)  # training steps
  # Fills in empty fields ('' or None), see algorithms/presets.py.
  algorithm: str = option('agent_gspo', choices=tuple(PRESETS))


SECTIONS: dict[str, type[Section]] = {
  options.section: options
  for options in (
    ModelOptions,
    TaskOptions,
    TeamOptions,
    RolloutOptions,
    SamplerOptions,
    RewardOptions,
    BudgetOptions,
    PolicyOptions,
    AdvantageOptions,
    SelectionOptions,
    ObjectiveOptions,
    MeshOptions,
    LearnerOptions,
    SFTOptions,
    EvaluationOptions,
    CheckpointOptions,
    LoggingOptions,
  )
}
"""Options class by section name. Each new section is added here."""


def default_config() -> config_dict.ConfigDict:
  """Returns a config with every field; `configs/*.py` change some and lock it."""
  config = config_dict.ConfigDict(_defaults(RunOptions))
  for name, options in SECTIONS.items():
    config[name] = config_dict.ConfigDict(_defaults(options))
  return config


def _defaults(options: type[Section]) -> dict[str, Any]:
  """Returns defaults by field; None becomes a placeholder of the field's type."""
  kinds, defaults = types_of(options), options()
  found = {field: getattr(defaults, field) for field in kinds}
  return {
    field: config_dict.placeholder(kinds[field][0]) if value is None else value
    for field, value in found.items()
  }
