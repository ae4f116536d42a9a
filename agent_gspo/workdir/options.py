"""The `checkpoint` and `logging` sections of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class CheckpointOptions(Section, name='checkpoint'):
  """When a run is saved."""

  every: int = option(10, least=1, most=10**9)  # steps; also saved at the end and on Ctrl-C
  # Newest ones; where one is damaged, the run goes on from the one before.
  keep: int = option(2, least=1, most=10**9)
  # And so many of those that evaluation.every (above 0) found the best; each that it evaluates is
  # then saved.
  keep_best: int = option(0, least=0, most=10**9)


@dataclasses.dataclass(frozen=True)
class LoggingOptions(Section, name='logging'):
  """What is written down beside the figures."""

  transcripts: int = option(4, least=0, most=10**9)  # episodes kept of each training step
  wandb_project: str = ''
