"""Defines the `checkpoint` and `logging` sections of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class CheckpointOptions(Section, name='checkpoint'):
  """Frequency and retention of checkpoints."""

  every: int = option(10, least=1, most=10**9)  # steps; also saved at the end and on Ctrl-C
  # Newest checkpoints to keep; if one is damaged, the run resumes from the one before.
  keep: int = option(2, least=1, most=10**9)
  # Best checkpoints to keep as well, by evaluation.every (above 0); each evaluated step is then
  # saved.
  keep_best: int = option(0, least=0, most=10**9)


@dataclasses.dataclass(frozen=True)
class LoggingOptions(Section, name='logging'):
  """Transcripts and W&B."""

  transcripts: int = option(4, least=0, most=10**9)  # episodes saved per training step
  wandb_project: str = ''
