"""Builds the parts that training and evaluation share from a config."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.traverse_util
import jax
import optax

from agent_gspo.algorithms.objectives import losses
from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.config import check as config_lib
from agent_gspo.evaluation import evaluate as evaluation
from agent_gspo.evaluation import variants
from agent_gspo.models import partition
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.load import Model, check_spec, open_model
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import Params, Transformer, init_params
from agent_gspo.ops.attention.attend import check as check_attention
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding.placement import Placement, make_placement, own_devices
from agent_gspo.tasks.data import held_back
from agent_gspo.teams.policies import ModelPolicy
from agent_gspo.training import message_worth, prompt_checks, scoring
from agent_gspo.training import plan as plan_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.plan import Plan
from agent_gspo.training.programs import Programs
from agent_gspo.training.state import TrainState
from agent_gspo.types import Question, RolloutBatch

BASELINES = ('constant answer', 'single agent')


@dataclasses.dataclass(frozen=True)
class Setup(config_lib.Parts):
  """Parts of a config, with the loaded model.

  Attributes:
    model: Decoder, with adapters if configured.
    params: Initial parameters, before any SFT.
    tokenizer: Tokenizer of the model.
    sampler: Sampler of the model.
    placement: Placement of parameters and batch rows.
    source: Exact source of the weights.
    plan: Memory plan of the run; None if a setup is built by hand.
  """

  model: Transformer
  params: Params
  tokenizer: Tokenizer
  sampler: Sampler
  placement: Placement
  source: str
  plan: Plan | None = None

  @functools.cached_property
  def questions(self) -> Sequence[Question]:
    """Returns the questions that RL trains on."""
    return held_back.asked(self.task, self.config.sft.held_back)

  @functools.cached_property
  def scoring(self) -> Programs:
    """Returns programs that score messages at temperature 1; they never step."""
    return Programs(
      self.model,
      losses.imitation,
      optax.identity(),
      temperature=1.0,
      entropy=False,
      placement=self.placement,
    )

  def own_copy(self, params: Params) -> Params:
    """Returns parameters on the devices on which this process samples; reads those of a file."""
    return partition.own_copy(params, self.model.config, self.sampler.placement)

  def policy(self, params: Params, *, stream: str, step: int, temperature: float) -> ModelPolicy:
    """Returns the team's policy with the given parameters.

    Args:
      params: Parameters of the model, see `own_copy`.
      stream: Random stream ('train' or 'eval').
      step: Finished steps, folded into the keys.
      temperature: Sampling temperature.
    """
    return ModelPolicy(
      sampler=self.sampler,
      params=self.own_copy(params),
      root=keys.stream(self.config.seed, stream),
      step=step,
      temperature=temperature,
      adapters=self.sharing.adapters,
    )

  def evaluated_questions(
    self, count: int, split: str = '', told: float | None = None
  ) -> list[Question]:
    """Returns `count` evaluation questions, of the configured split by default."""
    found = evaluation.evaluated_questions(self.task, self.config.evaluation, count, split)
    terms = self.terms(told)
    return [dataclasses.replace(question, terms=terms) for question in found]

  def evaluate(
    self,
    params: Params,
    *,
    label: str,
    step: int,
    questions: int,
    split: str = '',
    told: float | None = None,
    alone: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
  ) -> tuple[dict[str, Any], RolloutBatch]:
    """Record for `eval.jsonl` and conversations on questions of a split.

    Every evaluation of a split uses the same questions and the same noise. A team that is told a
    price or a budget is told `told`, or that of evaluations. `alone` asks the deciding agent
    without its teammates.
    """
    options = self.config.evaluation
    # Once, for the sampler and for scoring: untrained parameters may be in a file.
    params = partition.place(params, self.model.config, self.placement)
    who = variants.self_consistency(self.team, 1) if alone else variants.itself(self.team)
    policy = self.policy(params, stream='eval', step=0, temperature=options.temperature)
    figures, batch = evaluation.evaluate(
      who.team,
      self.task,
      self.tokenizer,
      [who.question(question) for question in self.evaluated_questions(questions, split, told)],
      who.policy(policy),
      batch_questions=options.batch_questions,
      progress=progress,
    )
    if not alone:
      scored = scoring.PolicyParams.of(params)
      figures |= scoring.judgement_figures(self, self.scoring, scored, batch)
      figures |= message_worth.of_evaluation(self, scored, batch)
    head = {
      'step': step,
      'label': label,
      'split': split or options.split,
      'temperature': options.temperature,
    }
    return {**head, **figures}, batch

  def baselines(
    self,
    params: Params,
    questions: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
  ) -> list[dict[str, Any]]:
    """Returns records of `BASELINES`: a constant answer, and one agent without its teammates.

    A team of one has no single-agent baseline, nor has a task with an episode of its own.
    """
    constant = evaluation.constant_answer(
      self.evaluated_questions(questions), self.config.evaluation.split
    )
    found = [{'step': 0, **constant}]
    if self.team.num_agents > 1 and not self.task.converse:
      label = BASELINES[1]
      alone, _ = self.evaluate(
        params, label=label, step=0, questions=questions, alone=True, progress=progress
      )
      found.append(alone)
    return found


def build(parts: config_lib.Parts) -> Setup:
  """Loads the model of a config and builds its setup.

  Args:
    parts: Result of `config.check`.

  Raises:
    ValueError, FileNotFoundError: See `plan`; or the run does not fit the devices, or the weights
      cannot be read.
  """
  found = _find(parts)
  found.plan.check()
  config, placement = found.sampler.config, found.placement
  params = found.model.params
  if config.lora_rank:
    params = _with_adapters(config, params, parts.config.seed)
  return Setup(
    **vars(parts),
    model=Transformer(config, partition.layout(config, placement, placement.replica_rows)),
    params=params,
    tokenizer=found.model.tokenizer,
    sampler=found.sampler,
    placement=placement,
    source=found.model.source,
    plan=found.plan,
  )


def plan(parts: config_lib.Parts) -> Plan:
  """Returns the memory plan of a run; reads no weights.

  Raises:
    ValueError, FileNotFoundError: See `models.load.open_model`, `prompt_checks.check` and
      `placement.make_placement`.
  """
  return _find(parts).plan


@dataclasses.dataclass(frozen=True)
class _Found:
  """Parts of a run that need no weights."""

  model: Model
  placement: Placement
  sampler: Sampler
  plan: Plan


def _find(parts: config_lib.Parts) -> _Found:
  config, options = parts.config, parts.config.model
  placement = make_placement(config.mesh.to_dict())
  check_attention(options.attention, options.dtype)
  if parts.training:
    config_lib.check_micro_batch(config, placement.row_shards)
  tokenizer = None
  if check_spec(options.source)[0] == 'random':
    tokenizer = prompt_checks.tokenizer_from_scratch(parts)
  model = open_model(options.source, tokenizer=tokenizer, seed=config.seed)
  prompts = prompt_checks.check(parts, model.tokenizer, model.config.max_positions)
  optimizer = make_optimizer(parts)

  def planned(gather_once: bool) -> tuple[Sampler, Plan]:
    sampler = _sampler(parts, model.config, own_devices(placement), gather_once=gather_once)
    return sampler, plan_lib.make(parts, placement, sampler, optimizer, prompts)

  gather = config.sampler.gather_weights
  sampler, found = planned(gather != 'each_token')
  if gather == 'auto' and sampler.placement.cut_by_fsdp:
    _, writing, *_ = found.programs
    if not found.has_room_for(writing):
      sampler, found = planned(False)
  return _Found(model, placement, sampler, found)


def _sampler(
  parts: config_lib.Parts, model: ModelConfig, placement: Placement, *, gather_once: bool
) -> Sampler:
  options, own = parts.config.model, parts.config.sampler
  return Sampler(
    model.replace(
      dtype=options.dtype,
      remat=options.remat,
      remat_keeps=options.remat_keeps,
      attention=options.attention,
      lora_rank=options.lora_rank,
      lora_alpha=options.lora_alpha,
      num_adapters=parts.sharing.num_adapters,
    ),
    max_new_tokens=parts.team.max_message_tokens,
    prefill_length=own.prefill_length,
    prefill_rows=own.prefill_rows,
    decode_rows=own.decode_rows,
    cache_length=own.cache_length,
    gather_once=gather_once,
    placement=placement,
  )


def make_optimizer(parts: config_lib.Parts) -> optax.GradientTransformation:
  """Returns the optimizer of a run."""
  config, options = parts.config, parts.config.learner
  learns = parts.sharing.learns
  turns = [layer for _, _, layer in parts.team.turns if any(map(learns, layer))]
  updates = ORDERS[options.order].updates(options.minibatches, len(turns))
  return state_lib.make_optimizer(
    options,
    updates=config.steps * updates,
    adapter_scale=parts.sharing.scale,
  )


def make_programs(setup: Setup) -> Programs:
  """Returns the programs of the update, with the config's objective and optimizer."""
  config = setup.config
  return Programs(
    setup.model,
    losses.from_config(config.objective, max_length=setup.team.max_message_tokens),
    make_optimizer(setup),
    config.rollout.temperature,
    placement=setup.placement,
    entropy=config.learner.entropy,
    kl_coef=config.objective.kl_coef,
    kl_estimator=config.objective.kl_estimator,
    tis_cap=config.objective.tis_cap,
    tis_level=config.objective.tis_level,
  )


def init_state(setup: Setup, programs: Programs, params: Params) -> TrainState:
  """Returns the state at step 0, each array created on its devices."""
  return _state(setup, programs, partition.place(params, setup.model.config, setup.placement))


def state_shapes(setup: Setup, programs: Programs) -> TrainState:
  """Returns the state as `jax.ShapeDtypeStruct`s, without allocating arrays."""
  make = functools.partial(_state, setup, programs)
  return partition.shapes(make, setup.params, setup.model.config, setup.placement)


def _state(setup: Setup, programs: Programs, params: Params) -> TrainState:
  config = setup.config
  return state_lib.init(
    params,
    programs.optimizer,
    shardings=lambda state: partition.shardings(state, setup.model.config, setup.placement),
    lambda_tok=setup.config.budget.lambda_tok,
    lora=config.model.lora_rank > 0,
    keep_reference=setup.keeps_reference,
    num_questions=len(setup.questions),
  )


def place_state(setup: Setup, state: TrainState) -> TrainState:
  """Moves arrays of a state that were made on the host to their devices."""
  return partition.place(state, setup.model.config, setup.placement)


def _with_adapters(model_config, params: Params, seed: int) -> Params:
  """Adds freshly initialized adapters to the loaded weights."""

  @jax.jit  # XLA drops the unused base parameters, so only the adapters are drawn
  def adapters(key: jax.Array) -> dict[str, jax.Array]:
    flat = flax.traverse_util.flatten_dict(init_params(model_config, key), sep='/')
    return {path: x for path, x in flat.items() if path.rpartition('/')[2].startswith('lora_')}

  fresh = adapters(jax.random.key(seed))
  loaded = flax.traverse_util.flatten_dict(params, sep='/')
  return flax.traverse_util.unflatten_dict({**loaded, **fresh}, sep='/')
