"""Estimates a run before it starts: positions, FLOPs and time, and temporary memory.

Temporaries are the memory that compiled programs take beside their arguments and results. The
compiler decides which arrays are live at a time. The sums of `*_bytes` count the large ones, as
many of each as TPU's compiler was seen to keep at its peak (`benchmarks/tpu_fit.py` compares
them), in bytes on one device.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from agent_gspo.algorithms import attribution
from agent_gspo.algorithms.advantages import estimators
from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.config import check as config_lib
from agent_gspo.models import flops
from agent_gspo.models.config import ModelConfig
from agent_gspo.ops import device_kind, lm_head
from agent_gspo.ops.attention import attend
from agent_gspo.sharding.placement import Placement
from agent_gspo.tasks import base
from agent_gspo.teams.team import Team
from agent_gspo.training.prompt_checks import PromptLengths

_FLOAT = 4  # bytes
_QUESTIONS = 256  # whose gold answers are counted
Models = Mapping[str, ModelConfig]
"""Config of each model of a team by `Role.model`, '' for that of `model.source`; no endpoints."""
Teacher = tuple[Team, Sequence[PromptLengths]]
"""Team of `objective.teacher`, and the prompt lengths of each of its agents."""


@dataclasses.dataclass(frozen=True)
class Work:
  """Upper bound on a part of a run: prompts at their longest, messages at their caps.

  Does not include figures of evaluations that read prompts again (`judgement_figures`,
  `Task.policy_figures`).

  Attributes:
    name: Name of the part.
    questions: Questions asked, repeats included.
    positions: Positions that a model reads, writes or learns from.
    flops: FLOPs over all devices.
  """

  name: str
  questions: int
  positions: int
  flops: float


def rollout(
  models: Models, team: Team, prompts: Sequence[PromptLengths], questions: int, group: int
) -> Work:
  """Returns the work of `group` episodes per question; their common opening is read once."""
  longest = max(max(p.turns) for p in prompts)
  positions, work = 0, 0.0
  for source, model in models.items():
    turns = [(round_, _of(team, source, layer)) for round_, _, layer in team.turns]
    loads = [layer_load(layer, round_, prompts, questions, group) for round_, layer in turns]
    read, written = sum(read for read, _ in loads), _written(team, source, questions, group)
    work += flops.forward(model, read, longest / 2, written)
    work += flops.forward(model, written, longest, written)
    positions += read + written
  return Work('rollout', questions, positions, work)


def layer_load(
  layer: Sequence[int], turn: int, prompts: Sequence[PromptLengths], questions: int, group: int
) -> tuple[int, int]:
  """Returns prompt positions that a layer of agents reads at a turn, and messages it writes."""
  own = [prompts[agent] for agent in layer]
  read = sum(p.opening + group * (p.turns[min(turn, len(p.turns) - 1)] - p.opening) for p in own)
  return questions * read, questions * group * len(layer)


def update(
  parts: config_lib.Parts,
  models: Models,
  prompts: Sequence[PromptLengths],
  questions: int,
  group: int,
  scored: int = 0,
  shares: Mapping[str, float] | None = None,
  learns: bool = True,
) -> Work:
  """Returns the work of learning from such episodes, if any, and of scoring them `scored` times.

  Frozen models do neither. `shares` maps a role to the share of its messages that is trained, 1 by
  default.
  """
  team, share = parts.team, shares or {}
  seen, positions, work = parts.config.learner.pack_length / 2, 0, 0.0
  for source in ('', *team.trained):
    of_each = [
      share.get(team.roles[agent].name, 1)
      * (p.opening + group * (p.turns[-1] - p.opening + team.message_cap(agent)))
      for agent, p in enumerate(prompts)
      if team.roles[agent].model == source
    ]
    learnt = math.ceil(questions * sum(of_each))
    written = _written(team, source, questions, group)
    work += learns * flops.update(models[source], learnt, seen, written)
    work += scored * flops.forward(models[source], learnt, seen, written)
    positions += learnt
  return Work('update', questions, positions, work)


def worth(
  parts: config_lib.Parts,
  models: Models,
  prompts: Sequence[PromptLengths],
  questions: int,
  group: int,
  kind: str = '',
) -> Work:
  """Returns the work of valuing the messages of such episodes, see `training.message_worth`.

  Each coalition of messages is a prompt of the answering agent; the question is read once. The
  number of gold answers is the largest of the first questions. No work where the estimator reads no
  gains, or an endpoint answers. `kind` is the attribution of an evaluation, which also values the
  messages kept at each price of the frontier; that of the estimator by default.
  """
  config, team, task = parts.config, parts.team, parts.task
  evaluated, model = bool(kind), models.get(team.roles[-1].model)
  kind = kind or estimators.GAINS.get(config.advantage.name, '')
  if not kind or not questions or model is None:
    return Work('worth', questions, 0, 0.0)
  known = {} if evaluated else estimators.settings(config.advantage)
  reader = team.num_agents - 1
  credited = team.hinters if kind == 'hint' else {*range(reader)}
  slots = sum(author in credited for author, _ in team.read_by_answerer)
  with_plain = slots if kind == 'leave_one_out' else 0
  valued = questions * (group * attribution.most_coalitions(kind, slots) + with_plain)
  if evaluated:  # the messages kept at each price
    valued += questions * group * slots
  if kind == 'hint':  # right answers, here all, are scored with each message and without it
    valued += 2 * questions * group * slots
  asked = base.asked(task, config.sft.held_back)[:_QUESTIONS]
  forms = int(known.get('samples', 0)) or max(len(task.gold_messages(q)) for q in asked)
  lengths, answer = prompts[reader], forms * team.message_cap(reader)
  positions = questions * lengths.opening
  positions += valued * (lengths.turns[-1] - lengths.opening + answer)
  work = flops.forward(model, positions, lengths.turns[-1], valued * answer)
  return Work('worth', questions, positions, work)


def taught(
  parts: config_lib.Parts, models: Models, teacher: Teacher, questions: int, group: int
) -> Work:
  """Returns the work of distillation: rollouts of the teacher, and scores of the answers."""
  (team, prompts), cap = teacher, parts.team.message_cap(0)
  talk = rollout({'': models['']}, team, prompts, questions, 1)
  longest, answers = prompts[-1].turns[-1], questions * group
  scored = flops.forward(models[''], answers * (longest + cap), longest, answers * cap)
  return _joined('taught', questions, talk, Work('', 0, answers * (longest + cap), scored))


def step(
  parts: config_lib.Parts,
  models: Models,
  prompts: Sequence[PromptLengths],
  teacher: Teacher | None = None,
) -> Work:
  """Returns the work of a training step."""
  config = parts.config
  questions, group = config.rollout.questions, config.rollout.group_size * config.rollout.branches
  scored = sum(
    (
      config.learner.old_logprobs == 'trainer',
      config.objective.needs_reference,
      config.reward.needs_reference,
      config.objective.ratio_span != 'message',
      ORDERS[config.learner.order].multipliers is not None,
    )
  )
  there_are = len(base.asked(parts.task, config.sft.held_back))
  asked = min(questions * (1 + config.selection.resample), there_are)
  talk = rollout(models, parts.team, prompts, asked, group)
  added = min(questions, config.rollout.replay)  # at most, as the next line
  learned = questions + (config.rollout.shared if config.rollout.share else added)
  learning = update(parts, models, prompts, learned, group, scored)
  of_step = [talk, learning, worth(parts, models, prompts, learned, group)]
  if teacher:
    of_step.append(taught(parts, models, teacher, questions, group))
  return _joined('step', questions, *of_step)


def of_run(
  parts: config_lib.Parts,
  models: Models,
  prompts: Sequence[PromptLengths],
  teacher: Teacher | None = None,
) -> list[Work]:
  """Returns the parts of a whole run: SFT, training steps, evaluations."""
  config, options = parts.config, parts.config.evaluation
  available = lambda count, split: min(count, len(parts.task.questions(split)))
  asked = available(options.questions, options.split)
  told, valued = len(options.told) * asked, 0
  found = []
  if parts.training:
    found += _supervised(parts, models, prompts)
    if config.steps:
      found.append(_times(step(parts, models, prompts, teacher), config.steps, 'training steps'))
    between = max(config.steps - 1, 0) // options.every if options.every else 0
    during = available(options.questions_during, options.split)
    seen = available(options.seen_questions, 'train')
    among = lambda count: min(options.worth_questions, count)
    valued = (2 + len(options.told)) * among(asked) + between * among(during) + among(seen)
    asked *= 3 if parts.team.num_agents > 1 else 2  # the trained team, the untrained one, alone
    asked += between * during + seen
  talk = rollout(models, parts.team, prompts, asked + told, options.samples)
  values = worth(parts, models, prompts, valued, options.samples, 'leave_one_out')
  return [*found, _joined('evaluations', talk.questions, talk, values)]


def lines(found: Sequence[Work], rate: float, devices: int) -> list[str]:
  """Returns lines that describe the cost to the user.

  Args:
    found: Parts of the run.
    rate: FLOPs per second of a device.
    devices: Number of devices that share the work.
  """
  total = sum(work.flops for work in found)
  told = [
    f'{work.name}: {work.questions:,} questions, at most {work.positions:,} positions, '
    f'{work.flops:.1e} FLOPs, {_hours(work.flops / (rate * devices))}'
    for work in found
  ]
  told.append(
    f'in all {total:.1e} FLOPs, {_hours(total / (rate * devices))} at {rate:.1e} FLOPs per second, '
    'which products of matrices reach on a device here. Shorter prompts and messages than the '
    'longest make it less; writing token by token, which memory bounds, more.'
  )
  return told


def measured_rate(dtype: str) -> float:
  """Measures the FLOPs per second of square matrix products on the first device."""
  size, seconds = 2048, 1.0
  square = jnp.ones((size, size), dtype)
  product = jax.jit(jnp.dot)
  product(square, square).block_until_ready()  # compiles
  count, start = 0, time.monotonic()
  while time.monotonic() - start < seconds:
    product(square, square).block_until_ready()
    count += 1
  return count * 2 * size**3 / (time.monotonic() - start)


def _supervised(
  parts: config_lib.Parts, models: Models, prompts: Sequence[PromptLengths]
) -> list[Work]:
  options = parts.config.sft
  if not options.is_asked_for:
    return []
  steps = options.steps_of(len(base.demonstrated(parts.task, options.held_back)))
  one = update(parts, models, prompts, options.questions, 1, shares=options.role_shares)
  found = [_times(one, steps, 'SFT')]
  if options.validation_questions:
    asked = min(options.validation_questions, len(parts.task.questions('validation')))
    one = update(parts, models, prompts, asked, 1, scored=1, learns=False)
    found.append(_times(one, -(-steps // options.save_every), 'SFT validation'))
  return found


def _joined(name: str, questions: int, *found: Work) -> Work:
  positions, work = sum(one.positions for one in found), sum(one.flops for one in found)
  return Work(name, questions, positions, work)


def _times(work: Work, count: int, name: str) -> Work:
  return Work(name, count * work.questions, count * work.positions, count * work.flops)


def _of(team: Team, source: str, layer: Sequence[int]) -> list[int]:
  """Returns the agents of a layer that a model writes for."""
  return [agent for agent in layer if team.roles[agent].model == source]


def _written(team: Team, source: str, questions: int, group: int) -> int:
  layers = (_of(team, source, layer) for _, _, layer in team.turns)
  caps = sum(team.message_cap(agent) for layer in layers for agent in layer)
  return questions * group * caps


def _hours(seconds: float) -> str:
  if seconds < 3600:
    return f'{seconds / 60:.1f} minutes' if seconds >= 60 else f'{seconds:.0f} s'
  return f'{seconds / 3600:.1f} hours'


def update_bytes(
  config: ModelConfig,
  placement: Placement,
  rows: int,
  length: int,
  weights: int,
) -> int:
  """Estimates the temporaries of a micro-batch's gradients.

  Args:
    config: Model config.
    placement: Placement of parameters.
    rows: Rows of the micro-batch on a device.
    length: Columns of a row.
    weights: Number of parameters of the model.
  """
  tensor = placement.size('tensor')
  positions = rows * length
  layer = _layer(config, tensor, rows, length)
  kept = config.num_layers * (
    _remat_kept(config, tensor, positions) if config.remat else _kept(config, tensor, rows, length)
  )
  chunk = lm_head.chunk_tokens(config.vocab_size, positions)
  logits = chunk * config.vocab_size * _FLOAT // tensor
  table, block = _parts(config, weights)
  # The head's gradient; under LoRA, where it has none, its operand.
  head = logits * 5 // 4 + table * _FLOAT // tensor // (2 if config.lora_rank else 1)
  gathered = 0
  if placement.cut_by_fsdp:  # two blocks' all-gathered operands or more, and outgoing gradients
    gathered = (table + 4 * block) * _size(config) // tensor
  return kept + max(head, layer) + gathered


def forward_bytes(config: ModelConfig, placement: Placement, rows: int, length: int) -> int:
  """Estimates a forward pass without gradients: `rows` per device, `length` columns each."""
  return _layer(config, placement.size('tensor'), rows, length)


def score_bytes(config: ModelConfig, placement: Placement, rows: int, length: int) -> int:
  """Estimates the log-probs of a micro-batch without gradients. Arguments as of `forward_bytes`."""
  tensor = placement.size('tensor')
  chunk = lm_head.chunk_tokens(config.vocab_size, rows * length)
  logits = chunk * config.vocab_size * _FLOAT // tensor
  return max(forward_bytes(config, placement, rows, length), logits * 5 // 4)


def decode_bytes(
  config: ModelConfig, placement: Placement, rows: int, weights: int, *, gather_once: bool
) -> int:
  """Estimates the decode loop over `rows` per device, for a model of `weights` parameters.

  In bfloat16 weights are cast once, before the loop. Under FSDP they are all-gathered there too,
  a tied table as it is stored and then transposed; without `gather_once`, the head and one layer at
  a time are gathered within the loop.
  """
  size = _size(config)
  kept = 0 if config.dtype == 'float32' else size * weights
  if placement.cut_by_fsdp and gather_once:
    kept = size * (weights + config.tie_embeddings * _parts(config, weights)[0])
  elif placement.cut_by_fsdp:
    kept = kept // placement.size('fsdp') + size * sum(_parts(config, weights))
  return (kept + 3 * rows * config.vocab_size * _FLOAT) // placement.size('tensor')


def attention(config: ModelConfig, length: int) -> str:
  """Returns the implementation of attention in rows of `length` columns."""
  return attend.chosen(
    config.attention,
    device_kind.current(),
    jnp.dtype(config.dtype),
    columns=length,
    head_dim=config.head_dim,
    cap=config.attention_cap,
  )


def _size(config: ModelConfig) -> int:
  """Returns the bytes of a weight as an operand."""
  return _FLOAT if config.dtype == 'float32' else 2


def _parts(config: ModelConfig, weights: int) -> tuple[int, int]:
  """Returns the number of weights of the embedding, and of a block."""
  table = config.vocab_size * config.embed_dim
  return table, (weights - table * (2 - config.tie_embeddings)) // config.num_layers


def _layer(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """Returns the peak of one layer: attention scores or MLP activations, whichever is larger."""
  scores = _scores(config, tensor, rows, length)
  mlp = rows * length * _mlp_width(config, tensor) * _FLOAT // tensor
  return 3 * max(scores, mlp)


def _remat_kept(config: ModelConfig, tensor: int, positions: int) -> int:
  """Returns what a rematerialized layer keeps: its input, maybe attention's output."""
  size = config.embed_dim * _FLOAT
  if config.remat_keeps == 'attention':
    head = config.head_dim * (_FLOAT if config.dtype == 'float32' else 2) + _FLOAT
    size += config.num_heads // tensor * head
  return positions * size


def _kept(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """Returns what a layer keeps for its gradient without rematerialization."""
  heads = (config.num_heads + config.num_kv_heads) * config.head_dim
  width = 6 * config.embed_dim + (2 * heads + 4 * _mlp_width(config, tensor)) // tensor
  return rows * length * width * _FLOAT + _scores(config, tensor, rows, length)


def _mlp_width(config: ModelConfig, tensor: int) -> int:
  """Returns the numbers of an MLP activation per position, over all `tensor` devices.

  A mixture has a row per expert of a token, of its input and output as well, which every device
  stores whole.
  """
  if not config.num_experts:
    return config.mlp_dim
  return config.experts_per_token * max(config.mlp_dim, tensor * config.embed_dim)


def _scores(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """Returns the attention scores of a layer; only the reference implementation stores them."""
  if attention(config, length) != 'reference':
    return 0
  return rows * config.num_heads * length**2 * _FLOAT // tensor
