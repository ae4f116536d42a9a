"""Plans what a run needs of each device before weights are read: memory, positions, FLOPs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import optax

from agent_gspo.config import check as config_lib
from agent_gspo.models import partition
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.transformer import init_params
from agent_gspo.ops import device_kind
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding import hosts
from agent_gspo.sharding.placement import Placement
from agent_gspo.training import costs, host_memory, prompt_checks
from agent_gspo.training import state as state_lib
from agent_gspo.training.prompt_checks import PromptLengths

# Relative margin by which an estimate may exceed the compiler's need before a run is refused.
_TOLERANCE = 0.15
# Memory of a CPU, relative to the plan, from which freed memory is kept: the process then holds
# 1.25 times the plan.
_ROOM_TO_KEEP = 1.5
# Bytes of libraries and compiled programs, which share a CPU's memory with the arrays.
_PROCESS = 1 << 30
_CUT = ('fsdp', 'tensor')  # axes over which parameters are cut
_SMALLER = (
  'Lower learner.micro_batch_size or learner.pack_length, or, on an accelerator, set '
  'model.remat=True.'
)


@dataclasses.dataclass(frozen=True)
class Program:
  """Memory of one program on a device, beside the state of the run.

  Attributes:
    name: Program name.
    arrays: Bytes of its arrays, by content.
    temporaries: Estimate of `training.costs`, bytes.
    remedy: Advice that reduces its memory.
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
  """Memory and work of a run on a device.

  Attributes:
    devices: Number of devices.
    state: Bytes that stay between programs, by content.
    programs: Programs, which run one after another.
    memory: Memory of a device, bytes; None if unknown.
    positions: Upper bound on the positions that a step reads and learns from.
    flops: FLOPs of such a step over all devices.
    run: Cost of the parts of the whole run.
    actors: Plan of the devices that only sample, see `mesh.actors`; None if all learn.
  """

  devices: int
  state: Mapping[str, int]
  programs: tuple[Program, ...]
  memory: int | None
  positions: int
  flops: float
  run: tuple[costs.Work, ...] = ()
  actors: Plan | None = None

  @property
  def largest(self) -> Program:
    return max(self.programs, key=lambda program: program.bytes)

  @property
  def bytes(self) -> int:
    """Returns the bytes at the peak of a step."""
    return self._with(self.largest)

  def has_room_for(self, program: Program) -> bool:
    """Returns whether a program fits; True if the device memory is unknown."""
    return self.memory is None or self._with(program) <= self.memory

  def keeps_freed(self) -> bool:
    """Returns whether a CPU has room for freed memory, see `host_memory.keep`."""
    return self.memory is None or self.bytes * _ROOM_TO_KEEP <= self.memory

  def check(self) -> None:
    """Checks that the run fits on a device.

    Raises:
      ValueError: A program needs more than a device has; names it, and fields to change.
    """
    if self.actors:
      self.actors.check()
    if self.memory is None or self.bytes * (1 - _TOLERANCE) <= self.memory:
      return
    raise ValueError(
      f'the run does not fit: {self.largest.name} needs about {_size(self.bytes)} per device, '
      f'which has {_size(self.memory)} ({self._state()}; {_parts(self.largest)}). {self._remedy()}'
    )

  def lines(self, *, parts: bool = True) -> list[str]:
    """Returns lines that describe the plan to the user.

    Args:
      parts: What each program needs, too.
    """
    plans = {'per learner': self, 'per actor': self.actors} if self.actors else {'per device': self}
    found = []
    for device, plan in plans.items():
      of = '' if plan.memory is None else f' of {_size(plan.memory)}'
      line = f'memory {device}: {_size(plan.bytes)}{of} at the peak, in {plan.largest.name}'
      found.append(f'{line}; always {plan._state()}' if parts else line)
      if parts:
        found += [f'  {p.name}: {_size(p.bytes)} more ({_parts(p)})' for p in plan.programs]
    if parts:
      found.append(
        f'a step: at most {self.positions:,} positions, {self.flops:.1e} FLOPs on {self.devices} '
        f'device{"s" * (self.devices > 1)}'
      )
    for plan in plans.values():
      if plan.memory is not None and plan.bytes > plan.memory:
        found.append(f'this may not fit. {plan._remedy()}')
    return found

  def _with(self, program: Program) -> int:
    """Returns the bytes in use while a program runs."""
    return sum(self.state.values()) + program.bytes

  def _remedy(self) -> str:
    """Returns advice that reduces memory, about the state if it alone takes most of a device."""
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
  members: Mapping[str, Sampler] = MappingProxyType({}),
  teacher: costs.Teacher | None = None,
) -> Plan:
  """Makes the plan of a run.

  Args:
    parts: Parts of the run.
    placement: Placement of parameters and rows.
    sampler: Sampler of the run, with the model's config.
    optimizer: Optimizer of the trainable parameters.
    prompts: Prompt lengths of each agent.
    members: Samplers of the other models, by `Role.model`.
    teacher: Team that training distills, None without one.

  Raises:
    ValueError: `model.remat_keeps` has no effect on these devices.
  """
  config, team = parts.config, parts.team
  writers = {'': sampler, **members}
  models = {source: writer.config for source, writer in writers.items()}
  actors = config.mesh.actors if parts.training else 0
  learning = [sampler, *(members[source] for source in team.trained)]
  frozen = {source: member for source, member in members.items() if source not in team.trained}
  states = [
    state_bytes(
      one.config,
      placement,
      optimizer,
      reference=parts.keeps_reference,
      opponents=config.rollout.pool_members,
    )
    for one in learning
  ]
  state = _summed(states)
  copied = _summed(
    [
      state_bytes(one.config, one.placement, optimizer, opponents=config.rollout.pool_members)
      for one in learning
    ]
  )
  copies = config.rollout.ahead
  if config.rollout.schedule == 'free':  # the newest, and those of the layers under way
    copies = min(copies, 3 if parts.team.has_tools else 2)
  state['weights of rollouts ahead'] = copies * copied['parameters']
  if not parts.training:
    state = {name: size for name, size in state.items() if name.endswith('parameters')}
  state['frozen models'] = sum(_weight_bytes(m.config, m.placement) for m in frozen.values())
  state['process'] = _PROCESS // jax.local_device_count() if device_kind.current() == 'cpu' else 0
  held = concurrent_episodes(parts)
  batch, group = held[-1]
  shards = sampler.shards * hosts.count()
  longest = max(max(p.turns) for p in prompts)
  width = sampler.prompt_columns(longest)
  rows = messages = 1
  for questions, each in held:
    for round_, _, layer in team.turns:
      read, spoken = costs.layer_load(layer, round_, prompts, questions, each)
      # Each row stores the roles' own words once.
      common = [prompts[agent].common for agent in layer]
      read -= questions * sum(common)
      rows = max(rows, -(-read // ((width - max(common)) * shards)))
      messages = max(messages, -(-spoken // shards))
  programs: tuple[Program, ...] = ()
  updates: tuple[Program, ...] = ()
  for writer in writers.values():  # as if each wrote for all agents
    programs += rollout_programs(
      writer,
      width=width,
      rows=writer.pool_rows(rows),
      columns=writer.cache_columns(longest),
      messages=writer.batch_rows(min(messages, writer.decode_rows)),
    )
  if not actors and any(sampler.placement.size(x) != placement.size(x) for x in _CUT):
    # Each process gathers parameters that are cut over several, see `Setup.own_copy`.
    own_copy = {'its parameters': copied['parameters'] + copied['frozen parameters']}
    programs = tuple(dataclasses.replace(p, arrays={**p.arrays, **own_copy}) for p in programs)
  work = costs.rollout(models, team, prompts, batch, group)
  if parts.training:
    learner = config.learner
    rows, length = learner.micro_batch_size // placement.row_shards, learner.pack_length
    for one, own in zip(learning, states, strict=True):
      # XLA's CPU compiler recomputes all blocks before it needs the first: remat saves no memory.
      model = one.config.replace(remat=one.config.remat and device_kind.current() != 'cpu')
      _check_kept(model, length)
      updates += learner_programs(model, placement, own, rows=rows, length=length)
    answering = frozen.get(team.roles[-1].model)
    if answering and prompt_checks.scores_gold_answers(config):
      moved = answering.placement != placement
      arrays = {'its parameters': moved * _weight_bytes(answering.config, placement)}
      estimate = costs.score_bytes(answering.config, placement, rows, length)
      updates += (Program('scoring gold answers', arrays, estimate, _SMALLER),)
    if config.rollout.ahead and not actors:  # its thread writes messages during updates
      beside = {'rollouts ahead': max(p.bytes for p in programs[1::2])}
      updates = tuple(dataclasses.replace(p, arrays={**p.arrays, **beside}) for p in updates)
    work = costs.step(parts, models, prompts, teacher)
  plan = Plan(
    devices=placement.devices + actors * hosts.count(),
    state=state,
    programs=programs + updates,
    memory=_memory(),
    positions=work.positions,
    flops=work.flops,
    run=tuple(costs.of_run(parts, models, prompts, teacher)),
  )
  if not actors:
    return plan
  copied['moments'] = 0
  sampling = dataclasses.replace(plan, state={**state, **copied}, programs=programs)
  state = {**state, 'weights of rollouts ahead': 0, 'frozen models': 0}
  return dataclasses.replace(plan, state=state, programs=updates, actors=sampling)


def _summed(states: Sequence[Mapping[str, int]]) -> dict[str, int]:
  """Returns the bytes of each part over all models."""
  return {part: sum(state[part] for state in states) for part in states[0]}


def concurrent_episodes(parts: config_lib.Parts) -> list[tuple[int, int]]:
  """Returns concurrent episodes, `(questions, episodes each)`: evaluation, then rollout.

  Evaluations run beside the training state, so they have to fit as rollouts do.
  """
  config, options = parts.config, parts.config.evaluation
  asked = [(options.questions, options.split)]
  if parts.training:
    asked.append((options.questions_during if options.every else 0, options.split))
    asked.append((options.seen_questions, 'train'))
  largest = max(min(count, len(parts.task.questions(split))) for count, split in asked)
  batch = max(1, options.batch_questions // options.samples)
  found = [(min(batch, largest), options.samples)]
  if parts.training:
    episodes = config.rollout.group_size * config.rollout.branches
    found.append((config.rollout.questions, episodes))
  return found


def state_bytes(
  model: ModelConfig,
  placement: Placement,
  optimizer: optax.GradientTransformation,
  *,
  reference: bool = False,
  opponents: int = 0,
) -> dict[str, int]:
  """Returns the bytes of the state on a device, by part."""
  make = functools.partial(
    state_lib.init,
    optimizer=optimizer,
    lora=model.lora_rank > 0,
    keep_reference=reference,
    opponents=opponents,
  )
  shapes = jax.eval_shape(make, _params(model))
  cut = lambda tree: _bytes(tree, partition.shardings(tree, model, placement))
  return {
    'parameters': cut(shapes.trainable),
    'frozen parameters': cut(shapes.frozen),
    'moments': cut(shapes.opt_state),
    'reference policy': cut(shapes.reference),
    'opponents': cut(shapes.pool),
  }


def rollout_programs(
  sampler: Sampler, *, width: int, rows: int, columns: int, messages: int
) -> tuple[Program, ...]:
  """Returns the programs of a rollout.

  Args:
    sampler: Sampler of the run.
    width: Columns of a prompt row.
    rows: Rows of the prompt pool on a device.
    columns: Columns of a KV cache, without those for the message.
    messages: Messages that a device decodes at a time.

  Returns:
    Prefill and decode.
  """
  model, placement = sampler.config, sampler.placement
  step = min(sampler.prefill_rows, rows)
  pool = sum(_pool_bytes(sampler, rows, width))
  cache, _ = _pool_bytes(sampler, messages, columns + sampler.max_new_tokens)
  of_prompts = costs.forward_bytes(model, placement, step, width)
  of_tokens = costs.decode_bytes(
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


def _check_kept(model: ModelConfig, length: int) -> None:
  """Raises ValueError where attention in rows of `length` columns has nothing that remat keeps."""
  attention = costs.attention(model, length)
  if model.remat and model.remat_keeps != 'nothing' and attention in ('reference', 'gpu'):
    raise ValueError(
      f'model.remat_keeps={model.remat_keeps!r} needs blockwise attention; these devices use '
      f"{attention!r} for rows of {length} columns. Set model.remat_keeps='nothing'."
    )


def learner_programs(
  model: ModelConfig, placement: Placement, state: Mapping[str, int], *, rows: int, length: int
) -> tuple[Program, ...]:
  """Returns the programs of an update.

  Args:
    model: Model config.
    placement: Placement of parameters.
    state: Result of `state_bytes`.
    rows: Rows of a micro-batch on a device.
    length: Columns of a row.
  """
  gradients = state['parameters']
  estimate = costs.update_bytes(model, placement, rows, length, _weights(model))
  return (
    Program('the update', {'gradients': gradients}, estimate, _SMALLER),
    Program("the optimizer's step", {'gradients': gradients}, gradients, _SMALLER),
  )


def _params(model: ModelConfig) -> Any:
  return _traced(model.replace(remat=False))  # the same shapes with and without


@functools.cache  # a call takes half a second
def _traced(model: ModelConfig) -> Any:
  return jax.eval_shape(functools.partial(init_params, model), jax.random.key(0))


def _weight_bytes(model: ModelConfig, placement: Placement) -> int:
  """Returns the bytes of a model's parameters on a device."""
  return _bytes(params := _params(model), partition.shardings(params, model, placement))


def _weights(model: ModelConfig) -> int:
  """Returns the number of parameters of a model."""
  return sum(x.size for x in jax.tree.leaves(_params(model)))


def _pool_bytes(sampler: Sampler, rows: int, width: int) -> tuple[int, int]:
  """Returns the bytes of keys and values, and of the rest of a pool of `rows` rows of a device."""
  kv, *others = jax.eval_shape(lambda: sampler.pool(rows * sampler.shards, width))
  return _bytes(kv, sampler.decoding.cache), _bytes(others, sampler.placement.rows)


def _bytes(tree: Any, shardings: Any) -> int:
  """Returns the bytes of a device's shard of the arrays.

  `shardings` has one for each array, or is one for all, or None where arrays are whole.
  """
  arrays = jax.tree.leaves(tree)
  alike = shardings is None or isinstance(shardings, jax.sharding.Sharding)
  each = [shardings] * len(arrays) if alike else jax.tree.leaves(shardings)
  return sum(
    math.prod(s.shard_shape(x.shape) if s else x.shape) * x.dtype.itemsize
    for x, s in zip(arrays, each, strict=True)
  )


def _memory() -> int | None:
  """Returns the memory of a local device, bytes; on CPU a share of the process.

  Returns None if it is unknown: always that of a device elsewhere.
  """
  if device_kind.current() != jax.default_backend():
    return None
  device = jax.local_devices()[0]
  if stats := device.memory_stats():
    return stats.get('bytes_limit')
  if device.platform != 'cpu':
    return None
  return host_memory.available() // jax.local_device_count()


def _size(size: float) -> str:
  return f'{size / 2**30:.2f} GiB' if size >= 2**30 / 10 else f'{size / 2**20:.2f} MiB'


def _parts(program: Program) -> str:
  parts = {**program.arrays, 'temporaries, estimated': program.temporaries}
  return ', '.join(f'{name} {_size(size)}' for name, size in parts.items())
