"""Runs SFT, in which a team imitates its task's demonstrations, and caches its result."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from agent_gspo import cache, plugins, provenance
from agent_gspo.algorithms import terms
from agent_gspo.algorithms.objectives import losses
from agent_gspo.config import Config
from agent_gspo.models import load as models
from agent_gspo.models import lora, partition
from agent_gspo.models.transformer import Params
from agent_gspo.packing import train_batches
from agent_gspo.sharding import hosts
from agent_gspo.tasks import base
from agent_gspo.teams.sharing import Sharing
from agent_gspo.training import members
from agent_gspo.training import state as state_lib
from agent_gspo.training.demonstrations import Demonstrations
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.learner import Learner, Minibatch
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import NonFiniteLossError, Programs
from agent_gspo.training.progress import Progress
from agent_gspo.training.run_evaluations import judgement_figures
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import Flat, TrainState
from agent_gspo.types import Message, RolloutBatch
from agent_gspo.workdir import checkpoints as checkpoints_lib
from agent_gspo.workdir import records
from agent_gspo.workdir.checkpoints import Checkpoints
from agent_gspo.workdir.writers import RunWriter

VALIDATION = 'sft/validation_nats'
# Sections that the parameters after SFT depend on, beside the code itself.
_SECTIONS = ('model', 'task', 'team', 'policy', 'sft')
_LEARNER = ('pack_length', 'micro_batch_size', 'b1_dtype')


class Stage:
  """SFT on the training split, from the parameters of the setup.

  Demonstrations use the team's own prompts, so training inputs match those of the rollout. In a
  pretrained model with adapters only these are trained; in a model from scratch everything else, so
  that the adapters start from a trained base. Each model that learns takes one optimizer step per
  SFT step, on the messages of its own agents.
  """

  def __init__(
    self,
    setup: Setup,
    checkpoints: Checkpoints,
    writer: RunWriter,
    interruption: Interruption,
    progress: Progress,
  ):
    """Builds the programs and the state.

    Args:
      setup: Run setup.
      checkpoints: SFT checkpoints; resumes from the newest one. With `sft.patience` the best step
        is kept, however old it is.
      writer: Writer of the run; records after the newest checkpoint are dropped.
      interruption: Signals, which are deferred to the end of a step.
      progress: Progress display.
    """
    config, model, placement = setup.config, setup.model, setup.placement
    params = setup.params
    self.setup, self.checkpoints, self.writer = setup, checkpoints, writer
    self.interruption, self.progress = interruption, progress
    adapted = config.model.lora_rank > 0
    self._aside: Flat = {}
    if adapted and config.model.source.startswith('random:'):
      flat = flax.traverse_util.flatten_dict(params)
      self._aside = {k: v for k, v in flat.items() if lora.is_adapter(k[-1])}
      params, adapted = lora.one_adapter(params, -1), False
      model = model.clone(config=model.config.without_adapters())
    self.demonstrations = Demonstrations(
      setup.task, setup.team, setup.tokenizer, config, setup.term_sheet
    )
    self.options, self.steps = self.demonstrations.options, self.demonstrations.steps
    optimizer = state_lib.make_optimizer(
      LearnerOptions(
        learning_rate=self.options.learning_rate,
        schedule='cosine',
        b1_dtype=config.learner.b1_dtype,
        warmup_updates=max(self.steps // 20, 1),
      ),
      updates=self.steps,
    )
    sharing = Sharing(trained=setup.team.written_by(''))
    if adapted and (adapters := setup.sharing.adapters):  # those frozen in RL are trained in SFT
      sharing = Sharing(adapters, frozenset(a for a, n in enumerate(adapters) if n >= 0))
    decoders = {**setup.decoders, '': model}
    main, *others = (
      Learner(
        Programs(
          decoders[name],
          losses.imitation,
          optimizer,
          temperature=1.0,
          entropy=False,
          placement=placement,
        ),
        config,
        own if name else sharing,
        name,
      )
      for name, own in members.sharings(setup).items()
    )
    self.learner = dataclasses.replace(main, others=tuple(others))
    make = functools.partial(
      state_lib.init,
      optimizer=optimizer,
      members={one.name: optimizer for one in others},
      lora=adapted,
      shardings=lambda state: partition.shardings(state, model.config, placement),
    )
    self.state: TrainState
    if checkpoints.latest_step is None:
      self.state = make(partition.place(params, model.config, placement))
    else:
      shapes = partition.shapes(make, params, model.config, placement)
      self.state = checkpoints.restore(shapes)
    start = int(self.state.step)
    for line in writer.truncate_supervised_after(start):
      progress.note(line)
    if start:
      progress.note(f'resumed from step {start} of SFT')
    # Only the first process has records.
    so_far = hosts.agreed(lambda: records.supervised(checkpoints.directory.parent))
    self.validations = {  # step -> nats per token
      int(record['step']): record[VALIDATION]
      for record in so_far
      if record.get(VALIDATION) is not None
    }
    self._validation: tuple[dict[str, tuple[Learner, Minibatch]], RolloutBatch] | None = None

  def imitate(self) -> tuple[Params, int]:
    """Returns the parameters after SFT, and the number of steps taken.

    Raises:
      NonFiniteLossError: Non-finite loss; names the step.
      ValueError: The checkpoint of the best step is gone or damaged.
      KeyboardInterrupt: Interrupted, after saving the last finished step.
    """
    try:
      self._go()
    except KeyboardInterrupt:
      if int(self.state.step) and state_lib.is_whole(self.state):  # else its buffers were donated
        self._save()
      self.checkpoints.wait()
      raise
    return self._result(), int(self.state.step)

  def _go(self) -> None:
    """Runs all steps, or until the validation loss has stopped falling."""
    with futures.ThreadPoolExecutor(1, 'demonstrations') as host:
      shown = host.submit(self.demonstrations.of_step, int(self.state.step))
      for step in range(int(self.state.step), self.steps):
        if self._has_stopped_falling():
          return
        now = shown
        if step + 1 < self.steps:  # written while devices update
          shown = host.submit(self.demonstrations.of_step, step + 1)
        with self.interruption.deferred('this step of SFT'):
          self._step(step, now)
        self.interruption.meet()

  def _step(self, step: int, shown: futures.Future[tuple[list[Message], float]]) -> None:
    start, done = time.monotonic(), step + 1
    messages, left_out = shown.result()
    state, nats, figures = self.state, list[float](), {'sft/left_out_rate': left_out}
    for one in self.learner.models:
      micro_batches = self._micro_batches(one, messages)
      if not micro_batches:  # no message of its agents: its parameters and moments stay
        continue
      of = f'/{one.name}' * bool(one.name)
      try:
        own, metrics = one.programs.optimizer_step(
          state_lib.of_model(state, one.name), micro_batches
        )
      except NonFiniteLossError as error:
        raise NonFiniteLossError(
          f'{error} in step {done} of SFT{of}. Lower sft.learning_rate.'
        ) from None
      state = state_lib.with_model(state, one.name, own)
      nats.append(-metrics['policy/objective'])
      figures |= {f'sft/loss_nats{of}': nats[-1]}
      figures |= {f'sft/grad_norm{of}': metrics['policy/grad_norm']}
    self.state = dataclasses.replace(state, step=state.step + 1)
    saves, is_last = done % self.options.save_every == 0, done == self.steps
    if (saves or is_last) and self.options.validation_questions:
      figures |= self._validate()
      self.validations[done] = figures[VALIDATION]
    self.writer.supervised(done, {**figures, 'time/step_s': time.monotonic() - start})
    if saves and not is_last:  # the final parameters are the run's own first checkpoint
      self._save()
    mean = sum(nats) / max(len(nats), 1)
    self.progress.phase(f'SFT, {mean:.3f} nats per token', done, self.steps)

  def _micro_batches(self, one: Learner, messages: Sequence[Message]) -> Minibatch:
    """Packs the messages of a model's agents."""
    micro_batches = one.rows(messages)
    if self.options.decision_weight != 1:
      holds = np.asarray([m.agent < self.demonstrations.note_holders for m in messages])
      weights = np.where(holds, self.options.decision_weight, 1.0)
      micro_batches = train_batches.with_first_token_weights(micro_batches, weights)
    return micro_batches

  def _save(self) -> None:
    may_be_result = self.options.patience > 0 and self.validations
    self.checkpoints.save(self.state, also_keep=[self._best] if may_be_result else [])

  def _validate(self) -> dict[str, float]:
    """Returns validation loss by role and overall, nats per token, and judgment metrics."""
    if self._validation is None:
      shown = self.demonstrations
      packed = dict[str, tuple[Learner, Minibatch]]()
      for role, said in shown.of_validation().items():
        one = self.learner.author(said[0].agent)
        packed[role] = one, one.rows(said, train=False)
      self._validation = packed, shown.silent_validation()
    by_role, unsaid = self._validation
    sums, counts = {}, {}
    for role, (one, micro_batches) in by_role.items():
      own = state_lib.of_model(self.state, one.name)
      logprobs = one.programs.logprobs(own, micro_batches)
      sums[role] = -float(sum(x.sum(dtype=np.float64) for x in logprobs))
      counts[role] = float(sum(b.loss_mask.sum() for b in micro_batches))
    if not counts:
      raise ValueError(
        f'sft.validation_questions={self.options.validation_questions}: none of them has a '
        "demonstration that fits into the team's messages. Raise it, or team.max_message_tokens."
      )
    return {
      VALIDATION: sum(sums.values()) / sum(counts.values()),
      **{f'{VALIDATION}_{role}': sums[role] / counts[role] for role in sums},
      **judgement_figures(
        self.setup.team,
        self.setup.tokenizer,
        self.learner,
        functools.partial(state_lib.of_model, self.state),
        unsaid,
      ),
    }

  @property
  def _best(self) -> int:
    """Returns the step with the lowest validation loss."""
    return min(self.validations, key=self.validations.__getitem__)

  def _has_stopped_falling(self) -> bool:
    since = [step for step in self.validations if step > self._best]
    return self.options.patience > 0 and len(since) >= self.options.patience

  def _result(self) -> Params:
    """Returns the final parameters, with `sft.patience` those of the best step."""
    params = self.state.params
    if self.options.patience and self._best != int(self.state.step):
      self.checkpoints.wait()
      folder = self.checkpoints.directory
      try:
        saved = checkpoints_lib.chosen(folder, str(self._best))
      except ValueError as error:
        raise ValueError(
          f'sft.patience={self.options.patience}: SFT ends with its best step, '
          f'{self._best}, whose checkpoint is gone or damaged. Remove {folder}: the same command '
          'runs SFT anew.'
        ) from error
      params = saved.restore_params(self.setup.config, params)
    if self._aside:
      flat = flax.traverse_util.flatten_dict(params)
      params = flax.traverse_util.unflatten_dict({**flat, **self._aside})
    return params


def cache_file(
  config: Config, sources: Sequence[str], vocabulary: str, task: base.Task | None = None
) -> pathlib.Path:
  """Returns the cache file of an SFT result, named by a fingerprint of all it depends on.

  Runs of a sweep with the same SFT share it. Call this before SFT starts: weight files may be
  overwritten meanwhile.

  Args:
    config: Resolved run configuration.
    sources: Source of each model, see `Model.source`, that of `model.source` first.
    vocabulary: Fingerprint of the tokenizer; it sets the embeddings of a model from scratch.
    task: Task. Lists of questions count by their contents; others follow from the options.
  """
  told: dict[str, Any] = {'vocabulary': vocabulary}
  told |= {name: getattr(config, name).to_dict() for name in _SECTIONS}
  told |= {name: getattr(config.learner, name) for name in _LEARNER}
  told['model'] |= {'source': [*map(_version, sources)]}
  told['sft'] |= {'seed': config.sft.seed_of(config.seed)}
  if config.model.lora_rank or any(source.startswith('random:') for source in sources):
    told['seed'] = config.seed  # parameters are drawn
  if sheet := terms.make(config.budget):
    told['terms'] = dataclasses.asdict(sheet)
  texts = [os.path.expanduser(x) for x in config.task.options.values() if isinstance(x, str)]
  told['files'] = [_stamp(pathlib.Path(x)) for x in texts if os.path.isfile(x)]  # of questions
  if task is not None:
    learned = [task.questions('train'), task.further_demonstrations()]
    if config.sft.patience:
      learned.append(task.questions('validation'))
    told['questions'] = [base.digest(questions) for questions in learned]
  own = plugins.digest(told)
  text = json.dumps([told, jax.__version__, provenance.code(), own], sort_keys=True)
  name = hashlib.sha256(text.encode()).hexdigest()[:32]
  return cache.folder() / 'sft' / f'{name}.safetensors'


def _version(source: str) -> Any:
  """Returns path, size and modification time of each local file of a source, else the source."""
  return [_stamp(file) for file in models.local_files(source)] or source


def _stamp(file: pathlib.Path) -> tuple[str, int, int]:
  stat = file.stat()
  return str(file.resolve()), stat.st_size, stat.st_mtime_ns


def load_cached(file: pathlib.Path, like: Params) -> Params | None:
  """Returns cached parameters after SFT, None without a cache entry.

  Warns about a damaged file and ignores it.

  Args:
    file: Cache file, see `cache_file`.
    like: Parameters of the same model, for names, shapes and dtypes.
  """
  if not file.exists():
    return None
  try:
    flat = safetensors.numpy.load_file(file)
    if _shapes(flat) != _shapes(_flat(like)):
      raise ValueError('other weight shapes')
  except (OSError, ValueError, safetensors.SafetensorError) as error:
    warnings.warn(f'{file} is damaged ({error}): SFT runs anew', stacklevel=2)
    return None
  return flax.traverse_util.unflatten_dict(flat, sep='/')


def save_cached(file: pathlib.Path, params: Params) -> None:
  """Caches the parameters after SFT; warns if they cannot be written.

  Args:
    file: Cache file, see `cache_file`.
    params: Nested parameters.

  Raises:
    FloatingPointError: The parameters are not all finite.
  """
  flat = {name: np.asarray(x) for name, x in _flat(params).items()}
  for name, x in flat.items():
    if not np.isfinite(x).all():
      raise FloatingPointError(f'after SFT {name} is not finite. Lower sft.learning_rate.')
  part = file.with_suffix(f'.{os.getpid()}')  # runs of a sweep may finish the same one together
  try:
    file.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(flat, part)
    part.replace(file)
  except (OSError, safetensors.SafetensorError) as error:
    part.unlink(missing_ok=True)
    warnings.warn(f'the result of SFT is not kept for other runs, {file}: {error}', stacklevel=2)


def _flat(params: Params) -> dict[str, Any]:
  return flax.traverse_util.flatten_dict(params, sep='/')


def _shapes(flat: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], Any]]:
  return {name: (x.shape, x.dtype) for name, x in flat.items()}
