"""Makes the evaluations of one run, and reuses those already in its workdir."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from agent_gspo.evaluation import transcripts
from agent_gspo.models.transformer import Params
from agent_gspo.sharding import hosts
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.progress import Progress
from agent_gspo.training.setup import Setup
from agent_gspo.values import is_number
from agent_gspo.workdir import records
from agent_gspo.workdir.writers import RunWriter


class RunEvaluations:
  """Makes each evaluation once, however often the run is stopped.

  Args:
    setup: Run setup.
    workdir: Run folder.
    writer: Writer of the run's records.
    interruption: Signal handling of the run.
    progress: Progress display.
  """

  def __init__(
    self,
    setup: Setup,
    workdir: pathlib.Path,
    writer: RunWriter,
    interruption: Interruption,
    progress: Progress,
  ):
    self._setup, self._workdir, self._writer = setup, workdir, writer
    self._interruption, self._progress = interruption, progress

  def made(self) -> list[dict[str, Any]]:
    """Returns all records of `eval.jsonl`."""
    return hosts.agreed(lambda: records.evaluations(self._workdir))

  def make(
    self, params: Params, step: int, label: str, told: float | None = None
  ) -> dict[str, Any]:
    """Returns the record of an evaluation, made unless `eval.jsonl` has it from before a stop.

    Args:
      params: Parameters of the team.
      step: Training step of the parameters.
      label: Label of the evaluation, see `records`.
      told: Price or budget of a conditioned team; None for that of evaluations.
    """
    found, asked = self._found(step, label), self._asked(label)
    if found is not None and _serves(found, asked):
      return found
    setup, questions, split = self._setup, asked['questions'], asked['split']
    show = lambda done, total: self._progress.phase(f'evaluate, {label} team', done, total)
    with self._interruption.named('this evaluation'):
      record, batch = setup.evaluate(
        params, label=label, step=step, questions=questions, split=split, told=told, progress=show
      )
      record |= {'spread': asked['spread']}
      baselines = setup.baselines(params, questions, show) if label == records.UNTRAINED else []
    most = setup.config.evaluation.transcripts
    kept = transcripts.records(
      batch, range(min(most, len(batch.episodes))), step=step, split=split, label=label
    )
    with self._interruption.deferred('this evaluation'):
      # Drop what a killed process wrote of this evaluation; its record comes last.
      self._writer.drop(step, {label, *(b['label'] for b in baselines)})
      self._writer.transcripts(kept)
      for baseline in baselines:
        self._writer.evaluation(baseline)
      self._writer.evaluation(record)
    self._progress.note(
      f'step {step}: {label}, {record["questions"]} {split} questions: accuracy '
      f'{record["task/accuracy"]:.1%}, {record["tokens/written_per_question"]:.1f} tokens written, '
      f'{record["comm/silence_rate"]:.0%} silent'
    )
    self._interruption.meet()
    return record

  def make_untrained(self, params: Params, step: int) -> None:
    """Evaluates the team that the run began with, or notes that it is gone.

    Args:
      params: Current parameters of the team.
      step: Training step of the parameters; above 0 if the run resumed from a checkpoint.
    """
    if not step:
      self.make(params, 0, records.UNTRAINED)
    elif not self._setup.config.sft.is_asked_for:
      self.make(self._setup.params, 0, records.UNTRAINED)  # as the model was loaded
    else:
      found = self._found(0, records.UNTRAINED)
      if found is not None and not _serves(found, self._asked(records.UNTRAINED)):
        count, split, temperature = map(found.get, ('questions', 'split', 'temperature'))
        self._progress.note(
          f'the untrained team was asked {count} {split} questions at temperature {temperature}; '
          'it is gone'
        )

  def _asked(self, label: str) -> dict[str, Any]:
    """Returns the settings of an evaluation in the config, in the form of its record."""
    options = self._setup.config.evaluation
    which = {records.DURING: 'questions_during', records.SEEN: 'seen_questions'}.get(
      label, 'questions'
    )
    split = 'train' if label == records.SEEN else options.split
    return {
      'split': split,
      'questions': min(getattr(options, which), len(self._setup.task.questions(split))),
      'temperature': options.temperature,
      'spread': options.spread,
    }

  def _found(self, step: int, label: str) -> dict[str, Any] | None:
    """Returns the newest record of an evaluation in `eval.jsonl`, None without one."""
    found = reversed(self.made())
    return next((r for r in found if (r.get('step'), r.get('label')) == (step, label)), None)


def _serves(record: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
  """Returns whether a record is usable for an evaluation with these settings."""
  return records.asks_alike(record, asked) and is_number(record.get('task/accuracy'))
