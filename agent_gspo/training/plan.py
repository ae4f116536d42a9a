"""What a run needs of each device, told before weights are read: memory, positions, FLOPs."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from agent_gspo.config import check as config_lib
from agent_gspo.models import partition
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.transformer import init_params
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding import hosts
from agent_gspo.sharding.placement import Placement
from agent_gspo.training import costs, temporaries
from agent_gspo.training import state as state_lib
from agent_gspo.training.prompt_checks import PromptLengths

# An estimate may be so much above what the compiler needs: less is no reason to refuse a run.
_TOLERANCE = 0.15


@dataclasses.dataclass(frozen=True)
class Program:
  """What one program needs of a device beside the state of the run.

  Attributes:
    name: of the program.
    arrays: bytes by what they hold.
    temporaries: estimate of `training.temporaries`, bytes.
    remedy: what makes it need less.
  """

  name: str
  arrays: Mapping[str, int]
  temporaries: int
  remedy: str

  @property
  def bytes(self) -> int:
    return sum(self.arrays.values()) + self.temporaries


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run needs of a device.

  Attributes:
    devices: of the run.
    state: bytes by what they hold, of what stays between programs.
    programs: which run one after another.
    memory: of a device, bytes; None if it does not tell.
    positions: most that a step reads and learns from, no prompt shared.
    flops: of a step so large, of all devices.
    run: what the parts of the whole run cost.
  """

  devices: int
  state: Mapping[str, int]
  programs: tuple[Program, ...]
  memory: int | None
  positions: int
  flops: float
  run: tuple[costs.Work, ...] = ()

  @property
  def largest(self) -> Program:
    return max(self.programs, key=lambda program: program.bytes)

  @property
  def bytes(self) -> int:
    """At the peak of a step."""
    return self._with(self.largest)

  def has_room_for(self, program: Program) -> bool:
    """Whether one of the programs fits, as far as is known."""
    return self.memory is None or self._with(program) <= self.memory

  def check(self) -> None:
    """Refuses what cannot fit.

    Raises:
      ValueError: a program needs more than a device has; names it, and fields to change.
    """
    if self.memory is None or self.bytes * (1 - _TOLERANCE) <= self.memory:
      return
    raise ValueError(
      f'the run does not fit: {self.largest.name} needs about {_size(self.bytes)} a device, which '
      f'has {_size(self.memory)} ({self._state()}; {_parts(self.largest)}). {self._remedy()}'
    )

  def lines(self) -> list[str]:
    """For the user, before the run."""
    of = '' if self.memory is None else f' of {_size(self.memory)}'
    found = [
      f'memory a device: {_size(self.bytes)}{of} at the peak, in {self.largest.name}; '
      f'always {self._state()}'
    ]
    found += [f'  {p.name}: {_size(p.bytes)} more ({_parts(p)})' for p in self.programs]
    found.append(
      f'a step: at most {self.positions:,} positions, {self.flops:.1e} FLOPs on {self.devices} '
      f'device{"s" * (self.devices > 1)}'
    )
    if self.memory is not None and self.bytes > self.memory:
      found.append(f'this may not fit. {self._remedy()}')
    return found

  def _with(self, program: Program) -> int:
    """Bytes while one of the programs runs."""
    return sum(self.state.values()) + program.bytes

  def _remedy(self) -> str:
    """What helps: something else where the state alone takes most of a device."""
    if self.memory is not None and sum(self.state.values()) > self.memory / 2:
      return 'Raise mesh.fsdp, or train adapters alone (model.lora_rank=16).'
    return self.largest.remedy

  def _state(self) -> str:
    return ', '.join(f'{name} {_size(size)}' for name, size in self.state.items() if size)


def make(
  parts: config_lib.Parts,
  placement: Placement,
  sampler: Sampler,
  optimizer: optax.GradientTransformation,
  prompts: Sequence[PromptLengths],
) -> Plan:
  """The plan of a run.

  Args:
    parts: of the run.
    placement: of parameters and rows.
    sampler: of the run; knows the shape of the model.
    optimizer: of what is trained.
    prompts: of each agent.
  """
  config, team, model = parts.config, parts.team, sampler.config
  state = state_bytes(model, placement, optimizer, reference=parts.keeps_reference)
  if not parts.training:
    state = {name: size for name, size in state.items() if name.endswith('parameters')}
  held = _held(parts)
  batch, group = held[-1]
  loads = [
    costs.layer_load(layer, round_, prompts, questions, each)
    for questions, each in held
    for round_, _, layer in team.turns
  ]
  shards = sampler.shards * hosts.count()
  longest = max(max(p.turns) for p in prompts)
  width = sampler.prompt_columns(longest)
  rows = -(-max(read for read, _ in loads) // (width * shards))
  messages = -(-max(spoken for _, spoken in loads) // shards)
  programs = rollout_programs(
    sampler,
    width=width,
    rows=sampler.pool_rows(rows),
    columns=sampler.cache_columns(longest),
    messages=sampler.batch_rows(min(messages, sampler.decode_rows)),
  )
  work = costs.rollout(model, team, prompts, batch, group)
  if parts.training:
    learner = config['learner']
    programs += learner_programs(
      recomputing(model),
      placement,
      state,
      rows=learner['micro_batch_size'] // placement.row_shards,
      length=learner['pack_length'],
    )
    work = costs.step(parts, model, prompts)
  return Plan(
    devices=placement.devices,
    state=state,
    programs=programs,
    memory=_memory(),
    positions=work.positions,
    flops=work.flops,
    run=tuple(costs.of_run(parts, model, prompts)),
  )


def _held(parts: config_lib.Parts) -> list[tuple[int, int]]:
  """Conversations at a time, `(questions, of each)`: of evaluations, then of a rollout.

  A run evaluates beside its own state, so its evaluations have to fit as its rollouts do.
  """
  config, options = parts.config, parts.config['evaluation']
  asked = [(options['questions'], options['split'])]
  if parts.training:
    asked.append((options['questions_during'] if options['every'] else 0, options['split']))
    asked.append((options['seen_questions'], 'train'))
  largest = max(min(count, len(parts.task.questions(split))) for count, split in asked)
  found = [(min(options['batch_questions'], largest), 1)]
  if parts.training:
    found.append((config['rollout']['questions'], config['rollout']['group_size']))
  return found


def state_bytes(
  model: ModelConfig,
  placement: Placement,
  optimizer: optax.GradientTransformation,
  *,
  reference: bool = False,
) -> dict[str, int]:
  """What the state of a run takes on a device, by part."""
  make = functools.partial(
    state_lib.init, optimizer=optimizer, lora=model.lora_rank > 0, keep_reference=reference
  )
  shapes = jax.eval_shape(make, _params(model))
  cut = lambda tree: _bytes(tree, partition.shardings(tree, model, placement))
  return {
    'parameters': cut(shapes.trainable),
    'frozen parameters': cut(shapes.frozen),
    'moments': cut(shapes.opt_state),
    'reference policy': cut(shapes.reference),
  }


def rollout_programs(
  sampler: Sampler, *, width: int, rows: int, columns: int, messages: int
) -> tuple[Program, ...]:
  """Those of a rollout.

  Args:
    sampler: of the run.
    width: columns of a prompt row.
    rows: of the pool that a device has.
    columns: of a cache, without those for the message.
    messages: that a device writes at a time.

  Returns:
    Reading prompts, and writing messages.
  """
  model, placement = sampler.config, sampler.placement
  step = min(sampler.prefill_rows, rows)
  pool = sum(_pool_bytes(sampler, rows, width))
  cache, _ = _pool_bytes(sampler, messages, columns + sampler.max_new_tokens)
  of_prompts = temporaries.of_forward(model, placement, step, width)
  of_tokens = temporaries.of_decode(
    model, placement, messages, _weights(model), gather_once=sampler.gather_once
  )
  each_token = placement.cut_by_fsdp and not sampler.gather_once
  return (
    Program(
      'reading prompts',
      {"prompts' keys and values": pool},
      of_prompts,
      'Lower sampler.prefill_rows, rollout.questions or evaluation.batch_questions, or raise '
      'mesh.data.',
    ),
    Program(
      'writing messages' + ', weights gathered for each token' * each_token,
      {"prompts' keys and values": pool, 'cache': cache},
      of_tokens,
      'Lower sampler.decode_rows, rollout.questions or evaluation.batch_questions, or raise '
      'mesh.data.',
    ),
  )


def recomputing(model: ModelConfig) -> ModelConfig:
  """The model as this machine's compiler takes it.

  A CPU's computes all blocks again before it needs the first: `remat` saves no memory there.
  """
  return model.replace(remat=model.remat and jax.default_backend() != 'cpu')


def learner_programs(
  model: ModelConfig, placement: Placement, state: Mapping[str, int], *, rows: int, length: int
) -> tuple[Program, ...]:
  """Those of an update.

  Args:
    model: its shape.
    placement: of its parameters.
    state: of `state_bytes`.
    rows: of a micro-batch that a device has.
    length: columns of a row.
  """
  gradients = state['parameters']
  smaller = (
    'Lower learner.micro_batch_size or learner.pack_length, or, on an accelerator, set '
    'model.remat=True.'
  )
  estimate = temporaries.of_update(model, placement, rows, length, _weights(model))
  return (
    Program('the update', {'gradients': gradients}, estimate, smaller),
    Program("the optimiser's step", {'gradients': gradients}, gradients, smaller),
  )


def _params(model: ModelConfig) -> Any:
  return _traced(model.replace(remat=False))  # the same shapes with and without


@functools.cache  # half a second of the start of a run each
def _traced(model: ModelConfig) -> Any:
  return jax.eval_shape(functools.partial(init_params, model), jax.random.key(0))


def _weights(model: ModelConfig) -> int:
  """How many a model has."""
  return sum(x.size for x in jax.tree.leaves(_params(model)))


def _pool_bytes(sampler: Sampler, rows: int, width: int) -> tuple[int, int]:
  """Keys and values of some rows of a device, and hidden states."""
  kv, hidden = jax.eval_shape(lambda: sampler.pool(rows * sampler.shards, width))
  return _bytes(kv, sampler.decoding.cache), _bytes(hidden, sampler.placement.rows)


def _bytes(tree: Any, shardings: Any) -> int:
  """Of the part of some arrays that a device has."""
  return sum(jax.tree.leaves(_sizes(tree, shardings)))


def _sizes(tree: Any, shardings: Any) -> Any:
  if shardings is None or isinstance(shardings, jax.sharding.Sharding):
    one = shardings
    shardings = jax.tree.map(lambda x: one, tree)
    if one is None:
      return jax.tree.map(lambda x: x.size * np.dtype(x.dtype).itemsize, tree)
  return jax.tree.map(
    lambda x, s: int(np.prod(s.shard_shape(x.shape))) * np.dtype(x.dtype).itemsize, tree, shardings
  )


def _memory() -> int | None:
  """Of one of this process's devices, bytes; of a CPU its share of the machine's."""
  device = jax.local_devices()[0]
  if stats := device.memory_stats():
    return stats.get('bytes_limit')
  if device.platform != 'cpu':
    return None
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // jax.local_device_count()


def _size(size: float) -> str:
  return f'{size / 2**30:.2f} GiB' if size >= 2**30 / 10 else f'{size / 2**20:.2f} MiB'


def _parts(program: Program) -> str:
  parts = {**program.arrays, 'temporaries, estimated': program.temporaries}
  return ', '.join(f'{name} {_size(size)}' for name, size in parts.items())
