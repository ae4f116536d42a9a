"""Defines the `checkpoint` and `logging` sections of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class CheckpointOptions(Section, name='checkpoint'):
  """Frequency and retention of checkpoints.

  Attributes:
    every: Steps between checkpoints; also saved at the end and on Ctrl-C.
    keep: Newest checkpoints to keep; if one is damaged, the run resumes from the one before.
    keep_best: Best checkpoints to keep as well, by `evaluation.every` (above 0); each evaluated
      step is then saved.
  """

  every: int = option(10, least=1, most=10**9)
  keep: int = option(2, least=1, most=10**9)
  keep_best: int = option(0, least=0, most=10**9)


@dataclasses.dataclass(frozen=True)
class LoggingOptions(Section, name='logging'):
  """Transcripts and W&B.

  Attributes:
    transcripts: Episodes saved per training step.
    wandb_project: Project of Weights & Biases to log to, '' for none; needs the extra wandb.
  """

  transcripts: int = option(4, least=0, most=10**9)
  wandb_project: str = ''
