"""Runs the evaluations of a run, each exactly once across restarts."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.evaluation import evaluate as evaluation
from agent_gspo.evaluation import judgement, transcripts, variants
from agent_gspo.models import partition
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import Params
from agent_gspo.plugins import PluginError
from agent_gspo.sharding import hosts
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import Team
from agent_gspo.training import host_memory, message_worth
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.answer_values import scored_message
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.learner import Learner
from agent_gspo.training.policy_loss import PolicyParams
from agent_gspo.training.progress import Progress
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import Message, Question, RolloutBatch
from agent_gspo.values import is_number
from agent_gspo.workdir import records
from agent_gspo.workdir.writers import RunWriter

BASELINES = ('constant answer', 'single agent')
JUDGED = 256
"""Episodes of an evaluation whose authors' judgment is measured, at most."""

Show = Callable[[int, int], None]
"""Called with finished and all questions."""


def questions(
  setup: Setup, count: int, split: str = '', told: float | None = None
) -> list[Question]:
  """Returns `count` evaluation questions, of the configured split by default.

  Prompts of a conditioned team state `told`, a price or budget, by default that of evaluations.
  """
  found = evaluation.evaluated_questions(setup.task, setup.config.evaluation, count, split)
  terms = setup.terms(told)
  return [dataclasses.replace(question, terms=terms) for question in found]


def evaluate(
  setup: Setup,
  scorer: Learner,
  params: Params,
  *,
  label: str,
  step: int,
  count: int,
  split: str = '',
  told: float | None = None,
  alone: bool = False,
  show: Show = lambda done, total: None,
) -> tuple[dict[str, Any], RolloutBatch]:
  """Evaluates a team; every evaluation of a split has the same questions and the same noise.

  Args:
    setup: Run setup.
    scorer: Scores messages, see `setup.make_scorer`.
    params: Parameters of the team.
    label: Label of the record.
    step: Training step of the parameters.
    count: Number of questions.
    split: Split of the questions; the configured one by default.
    told: Price or budget of a conditioned team; None for that of evaluations.
    alone: Evaluates the deciding agent without its teammates.
    show: Displays progress.

  Returns:
    Record for `eval.jsonl`, and the episodes.
  """
  options = setup.config.evaluation
  host_memory.give_back()
  # Once, for the sampler and for scoring: untrained parameters may be in a file.
  params = partition.place(params, setup.model.config, setup.placement)
  who = variants.self_consistency(setup.team, 1) if alone else variants.itself(setup.team)
  policy = setup.policy(params, stream='eval', step=0, temperature=options.temperature)
  figures, batch = evaluation.evaluate(
    who.team,
    setup.task,
    setup.tokenizer,
    [who.question(question) for question in questions(setup, count, split, told)],
    who.policy(policy),
    samples=options.samples,
    batch_questions=options.batch_questions,
    progress=show,
  )
  if not alone:
    of_model = functools.partial(PolicyParams.of, params)
    figures |= judgement_figures(setup.team, setup.tokenizer, scorer, of_model, batch)
    figures |= message_worth.of_evaluation(setup, scorer, of_model, batch)
  head = {
    'step': step,
    'label': label,
    'split': split or options.split,
    'temperature': options.temperature,
  }
  record = {**head, **figures}
  if not alone and not setup.team.others:
    record = joined(setup.task, record, policy_figures(setup, scorer, of_model))
  return record, batch


def joined(task: Task, record: Mapping[str, Any], figures: Mapping[str, float]) -> dict[str, Any]:
  """Returns a record with the figures that a task reads from the policy.

  Raises:
    PluginError: The record has one of their names.
  """
  if both := record.keys() & figures.keys():
    raise PluginError(
      f'{checked.name_of(task)}: policy_figures returned {min(both)!r}, which evaluations already '
      'report; rename it.'
    )
  return {**record, **{name: float(figure) for name, figure in figures.items()}}


def line(record: Mapping[str, Any]) -> str:
  """Returns a record in words; "-" for the silence rate of teams in which nobody took a turn."""
  silent = record['comm/silence_rate']
  return (
    f'step {record["step"]}: {record["label"]}, {record["questions"]} {record["split"]} questions: '
    f'accuracy {record["task/accuracy"]:.1%}, '
    f'{record["tokens/written_per_question"]:.1f} tokens written, '
    f'{"-" if silent is None else f"{silent:.0%}"} silent'
    + ''.join(f', {k[5:]} {x:.3f}' for k, x in record.items() if k.startswith('game/'))
  )


def baselines(
  setup: Setup, scorer: Learner, params: Params, count: int, show: Show
) -> list[dict[str, Any]]:
  """Returns records of `BASELINES`: a constant answer, and one agent without its teammates.

  A team of one has no single-agent baseline. A task with its own episode has no baselines: its
  graded text is not one that an agent could write in a single message.
  """
  if setup.task.converse:
    return []
  constant = evaluation.constant_answer(questions(setup, count), setup.config.evaluation.split)
  found = [{'step': 0, **constant}]
  if setup.team.num_agents > 1:
    label = BASELINES[1]
    alone, _ = evaluate(
      setup, scorer, params, label=label, step=0, count=count, alone=True, show=show
    )
    found.append(alone)
  return found


def log_probability(
  team: Team,
  tokenizer: Tokenizer,
  learner: Learner,
  policy: Callable[[str], TrainState | PolicyParams],
  messages: Sequence[Message],
  text: str = '',
) -> np.ndarray:
  """Returns the log-probability that each author writes a text, float64 `[M]`, nats.

  Args:
    team: Team of the authors.
    tokenizer: Tokenizer of `model.source`.
    learner: Scores messages.
    policy: Maps the name of a model in the state to its parameters.
    messages: Messages whose prompts are read; equal prompts of an agent are computed once.
    text: Whole message; '' for silence.
  """
  writers = team.prompt_writers(tokenizer)
  keys = [(m.agent, m.prompt_ids.tobytes()) for m in messages]
  # By the ids that end a message: one to score for each key.
  asked = collections.defaultdict[tuple[int, ...], dict[tuple[int, bytes], Message]](dict)
  for key, m in zip(keys, messages, strict=True):
    writer = writers[m.agent]
    some = asked[writer.silence_ids]
    if key not in some:
      ids = np.append(writer.written_ids(text), writer.silence_ids[0])
      some[key] = scored_message(m.episode, m.agent, m.prompt_ids, ids)
  found: dict[tuple[int, bytes], float] = {}
  for ends, some in asked.items():
    scored = learner.score_authors(policy, [*some.values()], any_of=ends)
    found |= {key: float(tokens.sum()) for key, tokens in zip(some, scored, strict=True)}
  return np.asarray([found[key] for key in keys])


def judgement_figures(
  team: Team,
  tokenizer: Tokenizer,
  learner: Learner,
  policy: Callable[[str], TrainState | PolicyParams],
  batch: RolloutBatch,
) -> dict[str, float]:
  """Returns how well authors tell relevant notes from irrelevant ones, see `judgement.figures`.

  The first message of each author counts, in the first `JUDGED` episodes, but for authors that
  read the gold answer or have a frozen model of their own. Empty for tasks without known relevance.
  Arguments as of `log_probability`.
  """
  judges = {a for a, role in enumerate(team.roles) if role.learns} - team.hinters
  counted = lambda m: not m.round and m.episode < JUDGED and m.agent in judges
  first = [m for m, x in enumerate(batch.messages) if counted(x) and batch.relevant[m] >= 0]
  relevant = batch.relevant[first]
  if not {0, 1} <= {*relevant.tolist()}:
    return {}
  found = log_probability(team, tokenizer, learner, policy, [batch.messages[m] for m in first])
  return judgement.figures(found, relevant == 1)


def policy_figures(
  setup: Setup, scorer: Learner, policy: Callable[[str], PolicyParams]
) -> Mapping[str, float]:
  """Returns the figures of `Task.policy_figures`. Arguments as of `evaluate`."""
  task, tokenizer = setup.task, setup.tokenizer
  team = dataclasses.replace(setup.team, max_episode_tokens=0)  # every script ends
  play = lambda script, questions: (
    rollout(team, task, tokenizer, questions, 1, ScriptedPolicy(script, tokenizer)).messages
  )
  return task.policy_figures(
    play, functools.partial(log_probability, team, tokenizer, scorer, policy)
  )


class RunEvaluations:
  """Runs each evaluation exactly once across restarts."""

  def __init__(
    self,
    setup: Setup,
    workdir: pathlib.Path,
    writer: RunWriter,
    interruption: Interruption,
    progress: Progress,
  ):
    self._setup, self._workdir, self._writer = setup, workdir, writer
    self._scorer = setup_lib.make_scorer(setup)  # one, so that it is compiled once
    self._interruption, self._progress = interruption, progress

  def make(
    self, params: Params, step: int, label: str, told: float | None = None
  ) -> dict[str, Any]:
    """Returns the record of an evaluation; runs it unless `eval.jsonl` has the record.

    `params` are those of training step `step`; for `told` see `questions`.
    """
    found, asked = self._found(step, label), self._asked(label)
    if found is not None and _serves(found, asked):
      return found
    setup, scorer, count, split = self._setup, self._scorer, asked['questions'], asked['split']
    show = lambda done, total: self._progress.phase(f'evaluate, {label} team', done, total)
    with self._interruption.named('this evaluation'):
      record, batch = evaluate(
        setup,
        scorer,
        params,
        label=label,
        step=step,
        count=count,
        split=split,
        told=told,
        show=show,
      )
      record |= {'spread': asked['spread']}
      others = baselines(setup, scorer, params, count, show) if label == records.UNTRAINED else []
    most = setup.config.evaluation.transcripts
    kept = transcripts.records(
      batch,
      range(min(most, batch.num_episodes)),
      setup.tokenizers,
      step=step,
      split=split,
      label=label,
    )
    with self._interruption.deferred('this evaluation'):
      # Drop what a killed process wrote of this evaluation; its record comes last.
      self._writer.drop(step, {label, *(other['label'] for other in others)})
      self._writer.transcripts(kept)
      for other in others:
        self._writer.evaluation(other)
      self._writer.evaluation(record)
    self._progress.note(line(record))
    self._interruption.meet()
    return record

  def make_untrained(self, params: Params, step: int) -> None:
    """Evaluates the team that the run began with, or notes that its parameters are gone.

    `params` are those of training step `step`, above 0 if the run resumed from a checkpoint.
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
      **({'samples_per_question': options.samples} if options.samples > 1 else {}),
    }

  def _found(self, step: int, label: str) -> dict[str, Any] | None:
    """Returns the newest record of an evaluation in `eval.jsonl`, None without one."""
    found = reversed(hosts.agreed(lambda: records.evaluations(self._workdir)))
    return next((r for r in found if (r.get('step'), r.get('label')) == (step, label)), None)


def _serves(record: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
  """Returns whether a record is usable for an evaluation with these settings."""
  return records.asks_alike(record, asked) and is_number(record.get('task/accuracy'))
