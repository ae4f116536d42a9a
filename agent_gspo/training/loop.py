"""Runs the training loop: rollout, scoring, update, logging, evaluation, checkpoints, resuming."""

from __future__ import annotations

import contextlib
import gc
import pathlib
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from agent_gspo import plugins, provenance
from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config import check as config_lib
from agent_gspo.config import compatibility
from agent_gspo.evaluation import transcripts
from agent_gspo.models.transformer import Params
from agent_gspo.rewards import ties
from agent_gspo.sharding import encoding, hosts, partners
from agent_gspo.tasks import base
from agent_gspo.training import costs, exchange, opponents, replay, sft
from agent_gspo.training import metrics as metrics_lib
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.ahead import Ahead
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.policy_loss import NonFiniteLossError
from agent_gspo.training.progress import PlainLog, Progress
from agent_gspo.training.run_evaluations import RunEvaluations
from agent_gspo.training.state import TrainState
from agent_gspo.training.train_step import StepResult, train_step
from agent_gspo.workdir import disk, json_lines, lock, records
from agent_gspo.workdir.checkpoints import Checkpoints
from agent_gspo.workdir.writers import RunWriter, SilentWriter

_WARNINGS = (metrics_lib.clip_warning, metrics_lib.no_update_warning, metrics_lib.price_warning)
_SFT_FOLDER = 'sft'  # SFT checkpoints, kept until training starts


def train(
  config: Mapping[str, Any],
  workdir: str | pathlib.Path,
  allow_changes: Collection[str] = (),
  display: Callable[..., Progress] = PlainLog,
  on_step: Callable[[int, Mapping[str, float]], Any] | None = None,
  on_evaluation: Callable[[Mapping[str, Any]], Any] | None = None,
) -> dict[str, Any]:
  """Trains a team as configured and writes everything to `workdir`.

  Resumes from a checkpoint in the workdir, bit for bit as without the interruption.

  Args:
    config: Plain nested dict, see `agent_gspo.config.default_config`.
    workdir: Run folder on this machine; `~` is the home folder.
    allow_changes: Fields of `compatibility.CHANGEABLE` whose value may differ from the run so
      far; `config.json` records the step of each change.
    display: Makes the display from `total_steps`, `start_step` and `title`; prints plain lines by
      default. Only the first of several processes has one.
    on_step: Called in each process with the number and metrics of a finished step. It, or
      `on_evaluation`, ends training if it returns True: the team is then evaluated as trained.
    on_evaluation: Called with the record of each evaluation between steps and of the trained team.

  Returns:
    The record of the trained team's evaluation, as in `eval.jsonl`.

  Raises:
    ValueError, FileNotFoundError: Invalid config, or a workdir of another config; raised before
      a model is loaded.
    FolderInUseError: Another process trains in this workdir.
    WriteError: Failed write, such as on a full disk; the last checkpoint stays.
    NonFiniteLossError: Non-finite loss; names step and questions. The last checkpoint stays.
    KeyboardInterrupt: Interrupted, after saving the last finished step.
  """
  workdir, parts = disk.folder(workdir, 'workdir'), config_lib.check(config)
  for kind, names in records.OTHERS.items():
    if any(path for name in names for path in workdir.glob(name)):
      raise ValueError(
        f'workdir={workdir} is the folder of {kind}; must be another one, such as '
        f'{workdir / "run"}.'
      )
  # Compared here too: the command has not read the plug-in files that the config names, and a
  # library user has compared nothing.
  values = parts.config.to_dict()
  facts = {**provenance.software(), 'plug-ins': plugins.digest(values), **values}
  partners.check_alike(hosts.gather(partners.written(facts)))
  with (
    lock.hold(workdir) if hosts.is_first() else contextlib.nullcontext(),
    # Several processes must stop together: a signal waits until they synchronize.
    Interruption(hosts.any_of if hosts.count() > 1 else None) as interruption,
  ):
    run = Run(parts, workdir, allow_changes, interruption, display, on_step, on_evaluation)
    try:
      return run.go()
    except disk.WriteError as error:
      raise disk.WriteError(f'{error}. {run.way_on()}') from error
    finally:
      with interruption.deferred('the last save'):
        run.close()


def print_plan(config: Mapping[str, Any], *, training: bool = True, whole: bool = False) -> None:
  """Prints what a run needs of each device; reads no weights.

  Args:
    config: Run configuration.
    training: Plan training; if False, an evaluation alone.
    whole: Also print questions, positions and time of the whole run.

  Raises:
    ValueError, FileNotFoundError: Invalid config; or the run does not fit.
  """
  parts = config_lib.check(config, training=training)
  plan = setup_lib.plan(parts)
  if hosts.is_first():
    print('\n'.join(plan.lines()))
    if whole:
      rate = costs.measured_rate(parts.config.model.dtype)
      print('\n'.join(costs.lines(plan.run, rate, plan.devices)))
  plan.check()


class Run:
  """One process of one run."""

  def __init__(
    self,
    parts: config_lib.Parts,
    workdir: pathlib.Path,
    allow_changes: Collection[str],
    interruption: Interruption,
    display: Callable[..., Progress],
    on_step: Callable[..., Any] | None,
    on_evaluation: Callable[..., Any] | None,
  ):
    config = self.config = parts.config
    self.workdir, self.note = workdir, parts.note
    self.interruption, self.display = interruption, display
    self.on_step, self.on_evaluation = on_step, on_evaluation
    saving = config.checkpoint
    self.checkpoints = Checkpoints(
      workdir / 'checkpoints', config, saving.keep, allow_changes, saving.keep_best
    )
    self._check_steps()
    exchange.open_folder(config.rollout.share)
    if self.checkpoints.latest_step is None:
      opponents.frozen_checkpoint(config)  # raises before a model is loaded
    self.setup = setup_lib.build(parts)
    self.learner = setup_lib.make_learner(self.setup)
    wandb_project = config.logging.wandb_project
    self.writer = (
      RunWriter(workdir, wandb_project=wandb_project) if hosts.is_first() else SilentWriter()
    )
    self.sft_checkpoints: Checkpoints | None = None  # set while SFT runs
    self.ahead: Ahead | None = None  # set while RL runs with `rollout.ahead`
    self.memory: replay.Memory = ()  # what `rollout.replay` remembers
    self.warned: set[str] = set()  # names of warnings already shown
    self.stopped = ''  # why training ended before its last step

  def _check_steps(self) -> None:
    """Raises ValueError if the run has already taken more than `steps` steps."""
    steps, taken = self.config.steps, self.checkpoints.latest_step or 0
    if steps < taken:
      raise ValueError(
        f'steps={steps}, but the run in {self.workdir} has taken {taken}. Set steps={taken} or '
        'more, or use another --workdir.'
      )

  def close(self) -> None:
    """Ends the rollouts ahead, waits for in-flight saves and closes the writer."""
    gc.unfreeze()
    try:
      if self.ahead:
        self.ahead.close()
      self._end_saving()
    finally:
      self.writer.close()

  def _end_saving(self) -> None:
    """Waits for in-flight saves; failed ones only warn, as another error has ended the run."""
    for saves in filter(None, (self.sft_checkpoints, self.checkpoints)):
      try:
        saves.wait()
      except disk.WriteError as error:
        warnings.warn(str(error), stacklevel=2)

  def way_on(self) -> str:
    """Returns advice for a full disk."""
    saved = self._saved()
    if not saved:
      return 'There is no checkpoint yet: make room, and the same command starts anew.'
    return f'Checkpoint {saved} is safe: make room, and the same command goes on from there.'

  def _saved(self) -> str:
    """Returns the step that the same command resumes from, '' for none."""
    saves = self.sft_checkpoints
    if self.checkpoints.latest_step is not None:
      return str(self.checkpoints.latest_step)
    if saves is not None and saves.latest_step is not None:
      return f'{saves.latest_step} of SFT'
    return ''

  def go(self) -> dict[str, Any]:
    config = self.config
    changes = self.checkpoints.changes
    told = {'changes': changes} if changes else {}
    if hosts.is_first():
      (self.workdir / records.DONE).unlink(missing_ok=True)
    self.writer.config({**config.to_dict(), 'model_source': self.setup.source, **told})
    self.resumed = self.checkpoints.latest_step is not None
    start = self.checkpoints.latest_step or 0
    # Without a checkpoint all records are dropped, an evaluation at step 0 included.
    odd = self.writer.truncate_after(start if self.resumed else -1)
    changed = self._record_start(start)
    title = f'{config.task.name}, {len(self.setup.team.names)} agents, {self.setup.source}'
    with self._progress(start, title) as progress:
      self.interruption.tell = lambda what: progress.note(
        f'interrupted: stopping after {what} (a second signal stops at once)'
      )
      evaluations = RunEvaluations(
        self.setup, self.workdir, self.writer, self.interruption, progress
      )
      state = None
      try:
        notes = [
          self.note,
          '\n'.join(self.setup.plan.lines(parts=False)) if self.setup.plan else '',
          self._ties(),
          f'resumed from the checkpoint at step {start}' if self.resumed else '',
          changed,
          *odd,
          *(
            f'that of step {step} is damaged ({reason}): now {step}.damaged'
            for step, reason in self.checkpoints.damaged.items()
          ),
          *map('{field}: {old} until step {step}, {new} from there'.format_map, changes),
        ]
        for note in filter(None, notes):
          progress.note(note)
        with self.interruption.named('SFT'):
          state = self._begin(progress)
        self.interruption.meet()
        untrained = config.evaluation.untrained
        self._remove_sft_checkpoints()
        if untrained == 'first':
          evaluations.make_untrained(state.params, int(state.step))
        if config.rollout.ahead:
          self.ahead = Ahead(self.setup, self.checkpoints.restore_rollouts('rollouts'))
        if found := self.checkpoints.restore_rollouts('remembered'):
          self.memory = encoding.decode(found)
        for step in range(start, config.steps):
          # Before the step, not after the last one: so a run killed in between evaluates as well.
          if self._is_evaluated(step):
            if self.ahead:  # evaluations have the sampler and its memory for themselves
              self.ahead.wait()
            record = evaluations.make(state.params, step, records.DURING)
            self._call('on_evaluation', self.on_evaluation, record)
            self._look_for_plateau()
          if self.stopped:
            break
          with self.interruption.deferred('this update'):
            state = self._step(state, progress)
            if step == start:
              # Later collections would visit the half a million objects of compiled programs.
              gc.collect()
              gc.freeze()  # until `close`
            if self._is_saved(step + 1):
              self._save(state)
          self.interruption.meet()
        with self.interruption.deferred('this save'):
          self._save(state)
        if self.ahead:  # after an early end rollouts may be under way
          self.ahead.close()
        params, step = state.params, int(state.step)
        record = evaluations.make(params, step, 'trained')
        self._call('on_evaluation', self.on_evaluation, record)
        for value in config.evaluation.told:
          evaluations.make(params, step, records.told(self.setup.terms(value)), value)
        if config.evaluation.seen_questions:
          evaluations.make(params, step, records.SEEN)
        if untrained == 'last':
          evaluations.make(self.setup.params, 0, records.UNTRAINED)
        self.checkpoints.wait()
      except KeyboardInterrupt:
        self._save_interrupted(state, progress)
        raise
      except (disk.WriteError, NonFiniteLossError):
        raise
      except Exception:
        # One process alone: others may not have failed. Whatever happens here hides no error.
        if hosts.count() == 1 and state is not None and state_lib.is_whole(state) and state.step:
          with contextlib.suppress(Exception):
            self._save(state)
            self.checkpoints.wait()
            progress.note(f'failed: saved step {self._saved()}; the same command goes on from it')
        raise
      if self.stopped:
        progress.note(f'training ended after step {step} of {config.steps}: {self.stopped}')
      progress.ended(self.workdir, record)
    if hosts.is_first():
      json_lines.replace(self.workdir / records.DONE, [f'{step}\n'.encode()])
    return record

  def _call(self, name: str, callback: Callable[..., Any] | None, *values: Any) -> None:
    """Calls a user's callback; True from any process ends training in all of them."""
    if callback is None:
      return
    found = callback(*values)
    if hosts.any_of(isinstance(found, bool | np.bool_) and bool(found)):
      self.stopped = f'{name} returned True'

  def _look_for_plateau(self) -> None:
    """Ends training after `evaluation.patience` evaluations without a gain."""
    patience = self.config.evaluation.patience
    if not patience:
      return
    since = hosts.agreed(lambda: records.evaluations_off_frontier(self.workdir))
    if since >= patience:
      self.stopped = (
        f'{since} evaluations with neither a higher accuracy nor fewer tokens than an earlier one '
        f'(evaluation.patience={patience})'
      )

  def _is_evaluated(self, step: int) -> bool:
    """Returns whether the state after `step` steps is evaluated before the next one."""
    every = self.config.evaluation.every
    return every > 0 and step > 0 and step % every == 0

  def _is_saved(self, step: int) -> bool:
    """Returns whether the state after `step` steps is saved, wherever the run ends."""
    options = self.config.checkpoint
    may_be_best = options.keep_best > 0 and self._is_evaluated(step)
    return step % options.every == 0 or may_be_best

  def _progress(self, start: int, title: str) -> Progress:
    """Returns the display of this process."""
    if not hosts.is_first():
      return Progress()
    return self.display(total_steps=self.config.steps, start_step=start, title=title)

  def _ties(self) -> str:
    """Describes what reward and advantage jointly reinforce where task scores tie."""
    options, price = self.config.advantage, self.config.budget.highest_lambda_tok
    if options.name in estimators.GAINS:
      if not price:
        return ''
      known = estimators.settings(options)
      least = f'{price:g} of task score'
      if 'nats' in known:
        least = f'{price * known["nats"]:g} nats of the gold answer'
      elif options.name == 'hill':  # divides hints' rewards, not their costs
        least = f'{price * known["std_floor"]:g} of learning signal'
      return f'At lambda_tok={price:g} a token must gain the answering agent {least} to pay.'
    estimate = ties.estimator(options.name, costs=options.costs, **options.options)
    length = self.setup.team.max_message_tokens
    taught = ties.what_ties_teach(
      self.config.reward,
      estimate,
      lambda_tok=price,
      length=length,
      lambda_turn=self.config.budget.lambda_turn,
    )
    return f'Advantages of silence and of {length} tokens where task scores tie: {taught.text}'

  def _record_start(self, start: int) -> str:
    """Records this start from step `start`; returns a note if other questions were asked before."""
    splits = ('train', self.config.evaluation.split)
    asked = [base.digest(self.setup.task.questions(split)) for split in splits]
    earlier = [x for x in json_lines.iterate(self.workdir / records.STARTS) if 'questions' in x]
    self.writer.started(start, {**provenance.start(), 'questions': asked})
    if not earlier or earlier[-1]['questions'] == asked:
      return ''
    return f'the questions of task {self.config.task.name} have changed since the last start'

  def _save(self, state: TrainState) -> None:
    """Saves a state with the rollouts that wait for it, if its step is not saved yet."""
    step = int(state.step)
    if step == self.checkpoints.taken_step:
      return
    rollouts = {  # before the actors' turn, which rollouts under way need
      'rollouts': self.ahead.waiting(step) if self.ahead else b'',
      'remembered': encoding.encode(self.memory) if self.memory else b'',
    }
    with self.setup.sampler.placement.turn:  # its barriers span all devices, actors too
      self.checkpoints.save(state, rollouts=rollouts)

  def _save_interrupted(self, state: TrainState | None, progress: Progress) -> None:
    """Saves the last finished step, unless its buffers were donated."""
    # A second Ctrl-C interrupts a step, which has donated the buffers of the previous state.
    if state is not None and state_lib.is_whole(state):
      awaited = self.ahead and self.config.rollout.schedule == 'fixed'
      ahead = ' after the rollouts under way' if awaited else ''
      progress.note(f'interrupted: saving{ahead} ...')
      self._save(state)
    self.checkpoints.wait()
    saved = self._saved()
    progress.note(
      f'saved step {saved}; the same command goes on from there'
      if saved
      else 'interrupted before anything was finished; the same command starts anew'
    )

  def _begin(self, progress: Progress) -> TrainState:
    """Returns the state of the newest checkpoint, or a fresh one, after SFT if configured."""
    setup = self.setup
    if self.resumed:
      return self.checkpoints.restore(setup_lib.state_shapes(setup))
    if not self.config.sft.is_asked_for:
      self.writer.truncate_supervised_after(0)
      return opponents.begin(setup, setup_lib.init_state(setup, setup.params))
    params, done = self._warm_start(progress)
    state = opponents.begin(setup, setup_lib.init_state(setup, params))
    with self.interruption.deferred('this save'):
      self.checkpoints.save(state)
    progress.note(done)
    return state

  def _warm_start(self, progress: Progress) -> tuple[Params, str]:
    """Returns the parameters after SFT, cached or trained, and a note for the user."""
    start, setup = time.monotonic(), self.setup
    # One process may have it in its cache, another one not.
    file = sft.cache_file(self.config, setup.sources, setup.tokenizer.fingerprint, setup.task)
    kept = hosts.agreed(lambda: sft.load_cached(file, setup.params))
    if kept is not None:
      self.writer.truncate_supervised_after(0)
      return kept, 'SFT: kept from a run that began alike'
    # Of the changeable fields SFT reads the width of packed rows alone.
    saves = self.sft_checkpoints = Checkpoints(
      self.workdir / _SFT_FOLDER, self.config, allow_changes=compatibility.CHANGEABLE
    )
    params, steps = sft.Stage(setup, saves, self.writer, self.interruption, progress).imitate()
    saves.wait()
    if hosts.count() == 1:  # else no process has all parameters
      sft.save_cached(file, params)
    return params, f'SFT: {steps} steps in {time.monotonic() - start:.0f} s'

  def _remove_sft_checkpoints(self) -> None:
    """Removes the SFT checkpoints once the run's first checkpoint is on the disk."""
    self.checkpoints.wait()
    if hosts.is_first():
      shutil.rmtree(self.workdir / _SFT_FOLDER, ignore_errors=True)

  def _step(self, state: TrainState, progress: Progress) -> TrainState:
    """Runs a training step, writes its records and returns the placed state."""
    try:
      result = train_step(
        self.setup,
        self.learner,
        state,
        progress,
        interruptible=lambda: self.interruption.allowed('this rollout'),
        ahead=self.ahead,
        memory=self.memory,
      )
    except NonFiniteLossError as error:
      self._end_saving()
      saved = self.checkpoints.latest_step
      rate = self.config.policy.rate_field
      good = 'there is no checkpoint yet.'
      if saved is not None:
        good = (
          f'checkpoint {saved} is good: to go on from it, add to the command a lower '
          f'--config.{rate} and --allow_changes={rate}.'
        )
      raise NonFiniteLossError(f'{error} Nothing of this step was saved; {good}') from None
    step, self.memory = int(result.state.step), result.memory
    for warning in _WARNINGS:
      text = warning(self.config, result.metrics)
      if text and warning.__name__ not in self.warned:
        progress.note(f'step {step}: {text}')
        self.warned.add(warning.__name__)
    self._keep(step, result)
    progress.step(step, result.metrics)
    self._call('on_step', self.on_step, step, result.metrics)
    return setup_lib.place_state(self.setup, result.state)

  def _keep(self, step: int, result: StepResult) -> None:
    """Writes the first transcripts and the metrics of a step."""
    terms = {name: x for name, x in vars(result.rewards).items() if x.any()}
    columns = {'reward': result.rewards.total, **terms, 'advantage': result.advantages}
    if self.ahead:
      columns['version'] = result.rollout.version
    if result.worth:
      columns['worth'] = result.worth.gain
    kept = range(min(self.config.logging.transcripts, result.rollout.num_episodes))
    self.writer.transcripts(
      transcripts.records(
        result.rollout,
        kept,
        self.setup.tokenizers,
        step=step,
        split='train',
        columns=columns,
        learners=[agent for agent, role in enumerate(self.setup.team.roles) if role.learns],
      )
    )
    self.writer.metrics(step, result.metrics)
