"""The evaluations of one run: those that its workdir holds already, and those still to make."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from agent_gspo.evaluation import transcripts
from agent_gspo.models.transformer import Params
from agent_gspo.sharding import hosts
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.options import SFTOptions
from agent_gspo.training.progress import Progress
from agent_gspo.training.setup import Setup
from agent_gspo.values import is_number
from agent_gspo.workdir import records
from agent_gspo.workdir.writers import RunWriter


class RunEvaluations:
  """Makes each evaluation once, however often the run is stopped.

  Args:
    setup: of the run.
    workdir: of the run.
    writer: of the workdir.
    interruption: stops between batches of questions.
    progress: shows how far one is.
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
    """All that `eval.jsonl` holds."""
    return hosts.agreed(lambda: records.evaluations(self._workdir))

  def make(
    self, params: Params, step: int, label: str, told: float | None = None
  ) -> dict[str, Any]:
    """The record of an evaluation, made unless `eval.jsonl` holds it (from before a stop).

    Args:
      params: of the team.
      step: after which it has them.
      label: what is evaluated, see `records`.
      told: what a team that is told a price or a budget is told; else that of evaluations.
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
    most = setup.config['evaluation']['transcripts']
    kept = transcripts.records(
      batch, range(min(most, len(batch.episodes))), step=step, split=split, label=label
    )
    with self._interruption.deferred('this evaluation'):
      # What a killed process has written of this evaluation; its record comes last.
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
    """Evaluates the team as the run began with it, or says why that cannot be done.

    Args:
      params: of the team as it is.
      step: after which it has them; later than 0 where the run goes on from a checkpoint.
    """
    if not step:
      self.make(params, 0, records.UNTRAINED)
    elif not SFTOptions(**self._setup.config['sft']).is_asked_for:
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
    """What the config wants an evaluation to ask, as its record says it."""
    options = self._setup.config['evaluation']
    which = {records.DURING: 'questions_during', records.SEEN: 'seen_questions'}.get(
      label, 'questions'
    )
    split = 'train' if label == records.SEEN else options['split']
    return {
      'split': split,
      'questions': min(options[which], len(self._setup.task.questions(split))),
      'temperature': options['temperature'],
      'spread': options['spread'],
    }

  def _found(self, step: int, label: str) -> dict[str, Any] | None:
    """What `eval.jsonl` holds of an evaluation."""
    found = reversed(self.made())
    return next((r for r in found if (r.get('step'), r.get('label')) == (step, label)), None)


def _serves(record: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
  """Whether the record of an evaluation says what one that asks so would."""
  return records.asks_alike(record, asked) and is_number(record.get('task/accuracy'))
