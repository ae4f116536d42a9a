"""Defines the interface of progress displays, and plain lines as the default one."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from agent_gspo.values import is_real


class Progress:
  """Progress display that shows nothing; subclasses override what they show."""

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *unused_exception) -> None:
    pass

  def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
    """Reports `done` of `total` parts of a phase, such as "rollout"; called from inner loops."""

  def step(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Reports a finished step; any metric, `group/name` -> number, may be missing."""

  def note(self, text: str) -> None:
    """Shows a message to the user."""

  def ended(self, workdir: pathlib.Path, trained: Mapping[str, Any]) -> None:
    """Reports the end of a run that did all its steps; must not raise.

    `trained` is the evaluation of the trained team, as in `eval.jsonl`.
    """


class PlainLog(Progress):
  """Prints a line for each step and message."""

  _SHOWN = (
    ('task/accuracy', 'accuracy'),
    ('reward/mean', 'reward'),
    ('tokens/written_per_question', 'tokens written'),
    ('comm/silence_rate', 'silence rate'),
    ('time/step_s', 'seconds'),
  )

  def __init__(self, total_steps: int, start_step: int = 0, title: str = ''):
    """Prints the title; `start_step` is unused."""
    self._total = total_steps
    print(title, flush=True)

  def step(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Prints the step's number and its main metrics."""
    found = (f'{name} {metrics[key]:.4g}' for key, name in self._SHOWN if is_real(metrics.get(key)))
    print(f'step {step} of {self._total}: {", ".join(found)}', flush=True)

  def note(self, text: str) -> None:
    """Prints the message."""
    print(text, flush=True)
