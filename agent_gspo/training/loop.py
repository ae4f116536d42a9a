"""The training loop: roll out, score, update, log, evaluate, checkpoint; resumes by itself."""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agent_gspo import config as config_lib
from agent_gspo.algorithms import advantages as advantage_lib
from agent_gspo.algorithms import budgets, objectives
from agent_gspo.evaluation import transcripts
from agent_gspo.models.transformer import Params
from agent_gspo.reporting import html_report, json_lines, records
from agent_gspo.reporting.progress import Progress
from agent_gspo.reporting.tables import closing_table
from agent_gspo.reporting.writers import RunWriter
from agent_gspo.rewards import communication
from agent_gspo.teams import accountant
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import metrics as metrics_lib
from agent_gspo.training import packing
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.checkpoint import Checkpoints
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.state import TrainState
from agent_gspo.training.update import NonFiniteLossError, Updater
from agent_gspo.training.warm_start import warm_start
from agent_gspo.types import Message, Question, RolloutBatch


def train(config: Mapping[str, Any], workdir: str | pathlib.Path) -> dict[str, Any]:
  """Trains a team as the config says and writes everything to `workdir`.

  If the workdir holds a checkpoint, the run goes on from it, to the very parameters it
  would have had without the interruption.

  Args:
    config: plain nested dict, see `agent_gspo.config.default_config`.
    workdir: of the run.

  Returns:
    The record of the trained team's evaluation, as in `eval.jsonl`.

  Raises:
    ValueError, FileNotFoundError: a bad config, or a workdir of another one, before a
      model is loaded.
    NonFiniteLossError: names the step and questions; the last checkpoint stays.
    KeyboardInterrupt: after saving the last finished step.
  """
  run = Run(config, pathlib.Path(workdir))
  try:
    return run.go()
  finally:
    run.close()


class Run:
  """One process of one run."""

  def __init__(self, config: Mapping[str, Any], workdir: pathlib.Path):
    self.config, self.workdir = config, workdir
    parts = config_lib.check(config)
    self.checkpoints = Checkpoints(
      workdir / 'checkpoints', config, keep=config['checkpoint']['keep']
    )
    self.setup = setup_lib.build(config, parts)
    self.questions = self.setup.task.questions('train')
    self.order = np.random.default_rng((config['seed'], 0)).permutation(len(self.questions))
    options = config['learner']
    objective = objectives.OBJECTIVES[config['objective']['name']]
    clips = {k: config['objective'][k] for k in ('clip_low', 'clip_high')}
    self.optimizer = state_lib.make_optimizer(
      updates=config['steps'] * options['minibatches'],
      **{
        k: options[k]
        for k in (
          'learning_rate', 'schedule', 'warmup_updates', 'weight_decay', 'b1', 'b2', 'grad_clip'
        )
      },
    )  # fmt: skip
    self.updater = Updater(
      model=self.setup.model,
      objective=functools.partial(objective, **{k: v for k, v in clips.items() if v is not None}),
      optimizer=self.optimizer,
      temperature=config['rollout']['temperature'],
      kl_coef=config['objective']['kl_coef'],
      entropy=options['entropy'],
    )
    self.writer = RunWriter(workdir, wandb_project=config['logging']['wandb_project'])

  def close(self) -> None:
    self.writer.close()
    self.checkpoints.close()

  def go(self) -> dict[str, Any]:
    config = self.config
    self.writer.config({**config, 'model_source': self.setup.source})
    with Interruption() as self.interruption:
      fresh, start = self._begin()
      title = f'{config["task"]["name"]}, {len(self.setup.team.names)} agents, {self.setup.source}'
      with Progress(config['steps'], start, title) as progress:
        state = None
        try:
          if start:
            progress.note(f'resumed from the checkpoint at step {start}')
          state = self._warm_start(fresh, progress)
          del fresh  # or its memory would stay taken
          self.reference = self._reference(state)
          untrained = config['evaluation']['untrained']
          if untrained == 'first' and not start:  # later that team is gone
            self._evaluate_state(state, 'untrained', progress)
          every = config['evaluation']['every']
          for step in range(start, config['steps']):
            # Here and not after the step: a run that was killed in between does it as well.
            if every and step and step % every == 0:
              self._evaluate_state(state, 'during', progress)
            batch, seconds = self._roll_out(state, step, progress)
            with self.interruption.deferred():
              state, metrics = self._learn(state, step, batch, seconds, progress)
              self.writer.metrics(step + 1, metrics)
              progress.step(step + 1, metrics)
              if (step + 1) % config['checkpoint']['every'] == 0:
                self.checkpoints.save(state)
          with self.interruption.deferred():
            self.checkpoints.save(state)
          record = self._evaluate_state(state, 'trained', progress)
          if untrained == 'last':
            self._evaluate_once(self.setup.params, 0, 'untrained', progress)
        except KeyboardInterrupt:
          self._save_interrupted(state, progress)
          raise
        progress.note(self._closing_table(record))
        report = html_report.write_report(self.workdir, self.workdir / 'report.html')
        progress.note(f'curves and transcripts: {report}')
    return record

  def _save_interrupted(self, state: TrainState | None, progress: Progress) -> None:
    """Saves the last finished step, if there is one and it is whole."""
    whole = state is not None and not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    if whole:  # a second Ctrl-C breaks into a step, which has consumed the state before it
      progress.note('interrupted: saving ...')
      self.checkpoints.save(state)
    saved = self.checkpoints.latest_step
    progress.note(
      'interrupted before anything was finished; the same command starts anew'
      if saved is None
      else f'saved step {saved}; the same command goes on from there'
    )

  def _begin(self) -> tuple[TrainState, int]:
    """A fresh state, or that of the newest checkpoint."""
    state = state_lib.init(
      self.setup.params,
      self.optimizer,
      self.config['budget']['lambda_tok'],
      lora=self.config['model']['lora_rank'] > 0,
    )
    self.resumed = self.checkpoints.latest_step is not None
    if self.resumed:
      state = self.checkpoints.restore(state)
    # Without a checkpoint nothing counts, not even an evaluation at step 0.
    self.writer.truncate_after(int(state.step) if self.resumed else -1)
    return state, int(state.step)

  def _warm_start(self, state: TrainState, progress: Progress) -> TrainState:
    steps = self.config['warm_start']['steps']
    if not steps or self.resumed:
      return state
    start = time.monotonic()
    setup = self.setup
    params = warm_start(
      setup.model,
      state_lib.merge(state.trainable, state.frozen),
      setup.task,
      setup.team,
      setup.tokenizer,
      self.config,
      lambda done, logprob: progress.phase(f'warm start, {logprob:.3f} nats a token', done, steps),
    )
    state = state_lib.init(
      params,
      self.optimizer,
      self.config['budget']['lambda_tok'],
      lora=self.config['model']['lora_rank'] > 0,
    )
    with self.interruption.deferred():
      self.checkpoints.save(state)
    progress.note(f'warm start: {steps} steps in {time.monotonic() - start:.0f} s')
    return state

  def _reference(self, state: TrainState):
    """`trainable` of the policy that the KL term holds on to: the untrained one."""
    if not self.config['objective']['kl_coef']:
      return None
    if self.config['model']['lora_rank']:  # adapter off
      return jax.tree.map(lambda x: x * 0, state.trainable)
    return state_lib.init(self.setup.params, self.optimizer, 0.0, lora=False).trainable

  def _questions_at(self, step: int) -> list[Question]:
    """Each question once an epoch; what comes at a step depends on nothing else."""
    count = self.config['rollout']['questions']
    at = [(step * count + i) % len(self.order) for i in range(count)]
    return [self.questions[int(self.order[i])] for i in at]

  def _roll_out(self, state, step, progress) -> tuple[RolloutBatch, float]:
    start = time.monotonic()
    setup = self.setup
    batch = rollout(
      setup.team,
      setup.task,
      setup.tokenizer,
      self._questions_at(step),
      self.config['rollout']['samples'],
      setup.policy(
        state_lib.merge(state.trainable, state.frozen),
        stream='train',
        step=step,
        temperature=self.config['rollout']['temperature'],
      ),
      lambda done, total: progress.phase('rollout', done, total),
    )
    return batch, time.monotonic() - start

  def _learn(
    self, state: TrainState, step: int, batch: RolloutBatch, rollout_s: float, progress: Progress
  ) -> tuple[TrainState, dict[str, float]]:
    """Reward, advantage, packing and the K mini-batches of one step."""
    config = self.config
    start = time.monotonic()
    progress.phase('score')
    ledger = accountant.ledger(batch)
    scores = np.asarray([e.task_score for e in batch.episodes])
    terms = communication.reward_terms(
      self.setup.reward,
      ledger,
      scores,
      float(state.budget.lambda_tok),
      [m.text for m in batch.messages],
    )
    groups = advantage_lib.group_ids(
      config['advantage']['grouping'], ledger.question, ledger.agent, ledger.round
    )
    advantages = np.asarray(
      advantage_lib.advantages(
        config['advantage']['normalize'],
        terms.task,
        terms.costs,
        groups,
        std_floor=config['advantage']['std_floor'],
      )
    )
    metrics = {
      'task/accuracy': float(scores.mean()),
      **communication.summary(self.setup.reward, terms, ledger.num_episodes),
      **metrics_lib.of_talk(ledger),
      'advantage/tied_groups': advantage_lib.tied_groups(terms.task, groups),
      'budget/lambda_tok': float(state.budget.lambda_tok),
    }
    minibatches = self._pack(step, batch, ledger, advantages)
    metrics |= packing.positions(batch.messages, [b for m in minibatches for b in m])
    if config['learner']['old_logprobs'] == 'trainer':
      minibatches = [self.updater.score(state, m) for m in minibatches]
    score_s = time.monotonic() - start

    start = time.monotonic()
    results = []
    for k, micro_batches in enumerate(minibatches):
      progress.phase('update', k, len(minibatches))
      try:
        state, result = self.updater.minibatch(state, micro_batches, self.reference)
      except NonFiniteLossError as error:
        ids = ', '.join(q.id for q in batch.questions)
        saved = self.checkpoints.latest_step
        good = 'there is no checkpoint yet' if saved is None else f'checkpoint {saved} is good'
        raise NonFiniteLossError(
          f'{error} in mini-batch {k + 1} of {len(minibatches)} of step {step + 1}, questions '
          f'{ids}. Nothing of this step was saved; {good}. Lower learner.learning_rate or look at '
          'these questions.'
        ) from None
      results.append(result)
    metrics |= metrics_lib.of_updates(results)
    state = state.replace(step=state.step + 1, budget=self._budget(state, float(scores.mean())))
    metrics |= {
      'budget/running_accuracy': float(state.budget.running_accuracy),
      'time/rollout_s': rollout_s,
      'time/score_s': score_s,
      'time/update_s': time.monotonic() - start,
      'time/step_s': rollout_s + score_s + time.monotonic() - start,
      'memory/peak_mb': metrics_lib.peak_mb(),
    }
    kept = range(min(config['logging']['transcripts'], ledger.num_episodes))
    self.writer.transcripts(
      transcripts.records(
        batch, kept, step=step + 1, split='train', rewards=terms.total, advantages=advantages
      )
    )
    return state, metrics

  def _pack(self, step, batch, ledger, advantages) -> list[list]:
    """K mini-batches, cut between questions, each a list of packed micro-batches."""
    options = self.config['learner']
    shuffled = np.random.default_rng((self.config['seed'], 2, step)).permutation(
      len(batch.questions)
    )
    minibatches = []
    for part in np.array_split(shuffled, options['minibatches']):
      chosen = np.nonzero(np.isin(ledger.question, part))[0]
      messages: Sequence[Message] = [batch.messages[m] for m in chosen]
      minibatches.append(
        packing.pack_messages(
          messages, advantages[chosen], row_tokens=options['row_tokens'], rows=options['rows']
        )
      )
    return minibatches

  def _budget(self, state: TrainState, accuracy: float) -> budgets.BudgetState:
    options = self.config['budget']
    budget = budgets.observe(state.budget, accuracy, options['accuracy_decay'])
    if options['mode'] == 'fixed':
      return budget
    return budgets.accuracy_floor(
      budget, **{k: options[k] for k in ('floor', 'floor_of_best', 'eta', 'lambda_max')}
    )

  def _evaluate_state(self, state: TrainState, label: str, progress: Progress) -> dict[str, Any]:
    params = state_lib.merge(state.trainable, state.frozen)
    return self._evaluate_once(params, int(state.step), label, progress)

  def _evaluate_once(
    self, params: Params, step: int, label: str, progress: Progress
  ) -> dict[str, Any]:
    """Evaluates, unless `eval.jsonl` holds this evaluation already (from before a stop)."""
    for record in self._evaluations():
      if (record.get('step'), record.get('label')) == (step, label):
        return record
    options = self.config['evaluation']
    questions = options['questions_during' if label == 'during' else 'questions']
    show = lambda done, total: progress.phase(f'evaluate, {label} team', done, total)
    record, batch = self.setup.evaluate(
      params, label=label, step=step, questions=questions, progress=show
    )
    baselines = self.setup.baselines(params, questions, show) if label == 'untrained' else []
    kept = range(min(options['transcripts'], len(batch.episodes)))
    with self.interruption.deferred():
      # What a killed process has written of this evaluation; its record comes last.
      self.writer.drop(step, {label, *(b['label'] for b in baselines)})
      self.writer.transcripts(
        transcripts.records(batch, kept, step=step, split=options['split'], label=label)
      )
      for baseline in baselines:
        self.writer.evaluation(baseline)
      self.writer.evaluation(record)
    progress.note(
      f'step {step}: {label} team, {record["questions"]} {options["split"]} questions: accuracy '
      f'{record["task/accuracy"]:.1%}, {record["tokens/written_per_question"]:.1f} tokens written, '
      f'{record["comm/silence_rate"]:.0%} silent'
    )
    return record

  def _evaluations(self) -> list[dict[str, Any]]:
    return list(json_lines.iterate(self.workdir / records.EVALUATIONS))

  def _closing_table(self, trained: Mapping[str, Any]):
    by_label = {record['label']: record for record in self._evaluations()}
    baselines = [by_label[k] for k in setup_lib.BASELINES if k in by_label]
    return closing_table(by_label.get('untrained', {}), trained, baselines=baselines)
