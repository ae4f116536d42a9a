"""Builds the parts that training and evaluation share from a config."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import flax.traverse_util
import jax
import numpy as np
import optax

from agent_gspo.algorithms.objectives import losses
from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.config import check as config_lib
from agent_gspo.config import teacher as teacher_lib
from agent_gspo.models import partition
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.load import Model, check_spec, open_model
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import Params, Transformer, init_adapters
from agent_gspo.ops import device_kind
from agent_gspo.ops.attention.attend import check as check_attention
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding import hosts
from agent_gspo.sharding.placement import Placement, make_placement, own_devices
from agent_gspo.tasks import base
from agent_gspo.teams import endpoint
from agent_gspo.teams.policies import ModelPolicy, Policy, Turn
from agent_gspo.teams.roles import ENDPOINT
from agent_gspo.teams.sharing import Sharing
from agent_gspo.training import host_memory, members, prompt_checks, run_checks
from agent_gspo.training import plan as plan_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.learner import Learner
from agent_gspo.training.members import Member
from agent_gspo.training.plan import Plan
from agent_gspo.training.policy_loss import PolicyParams, Programs
from agent_gspo.training.state import TrainState
from agent_gspo.types import Message, Question


@dataclasses.dataclass(frozen=True)
class Setup(config_lib.Parts):
  """Parts of a config, with the loaded model.

  Attributes:
    model: Decoder, with adapters if configured.
    params: Initial parameters, before any SFT; those of other models that learn in `MEMBERS`.
    tokenizer: Tokenizer of the model.
    sampler: Sampler of the model.
    placement: Placement of parameters and batch rows.
    source: Exact source of the weights.
    members: Other models that write for some roles, by `Role.model`.
    plan: Memory plan of the run; None if a setup is built by hand.
    teacher: Team that training distills into one agent, None without one.
  """

  model: Transformer
  params: Params
  tokenizer: Tokenizer
  sampler: Sampler
  placement: Placement
  source: str
  members: Mapping[str, Member] = dataclasses.field(default_factory=dict)
  plan: Plan | None = None
  teacher: config_lib.Parts | None = None

  @functools.cached_property
  def questions(self) -> Sequence[Question]:
    """Returns the questions that RL trains on."""
    return base.asked(self.task, self.config.sft.held_back)

  @property
  def tokenizers(self) -> tuple[Tokenizer, ...]:
    """Returns the tokenizer of each agent."""
    return self.team.tokenizers_of_agents(self.tokenizer)

  def own_copy(self, params: Params) -> Params:
    """Returns parameters on the devices on which this process samples; reads those of a file."""
    return partition.own_copy(params, self.model.config, self.sampler.placement)

  @property
  def decoders(self) -> dict[str, Transformer]:
    """Returns the decoder of each model that learns, by its name in the state."""
    learning = (m for m in self.members.values() if m.name)
    others = {m.name: _decoder(m.sampler.config, self.placement) for m in learning}
    return {'': self.model, **others}

  @property
  def sources(self) -> tuple[str, ...]:
    """Returns the exact source of each model with weights, that of `model.source` first."""
    return (self.source, *(member.model.source for member in self.members.values()))

  def policy(
    self,
    params: Params,
    *,
    stream: str,
    step: int,
    temperature: float,
    must_speak: Callable[[Turn], bool] | None = None,
  ) -> ModelPolicy:
    """Returns the team's policy with the given parameters.

    Args:
      params: Parameters of the team, as `params`, see `own_copy`.
      stream: Random stream ('train' or 'eval').
      step: Finished steps, folded into the keys.
      temperature: Sampling temperature.
      must_speak: See `ModelPolicy`; called for models that learn.
    """
    params = self.own_copy(params)
    of = functools.partial(
      ModelPolicy,
      root=keys.stream(self.config.seed, stream),
      step=step,
      temperature=temperature,
      experts=stream == 'train',
    )
    others: dict[str, Policy] = {
      source: of(
        sampler=member.sampler,
        params=state_lib.params_of(params, member.name) if member.name else member.params,
        must_speak=must_speak if member.name else None,
      )
      for source, member in self.members.items()
    }
    for role in self.team.roles:
      if role.model.startswith(ENDPOINT):
        others[role.model] = endpoint.EndpointPolicy(
          *endpoint.parse(role.model), self.tokenizer, temperature, endpoint.api_key()
        )
    return of(
      sampler=self.sampler,
      params=state_lib.without_members(params),
      adapters=self.sharing.adapters,
      must_speak=must_speak,
      others=others,
    )


def build(parts: config_lib.Parts, *, only_weights: bool = False) -> Setup:
  """Loads the model of a config and builds its setup.

  Args:
    parts: Result of `config.check`.
    only_weights: No program will run, so none need fit the devices.

  Raises:
    ValueError, FileNotFoundError: See `plan`; or the run does not fit the devices, or the weights
      cannot be read.
  """
  found, plan, model = _find(parts)
  if not only_weights:
    plan.check()
    if jax.default_backend() == 'cpu' and not plan.keeps_freed():
      host_memory.release()
  config, params = found.sampler.config, model.params
  if config.lora_rank:
    params = _with_adapters(config, params, parts.config.seed)
  if others := {m.name: m.model.params for m in found.members.values() if m.name}:
    params = {**params, state_lib.MEMBERS: others}
  return dataclasses.replace(found, params=params)


def plan(parts: config_lib.Parts) -> Plan:
  """Returns the memory plan of a run; reads no weights.

  Raises:
    ValueError, FileNotFoundError: See `models.load.open_model`, `prompt_checks.check` and
      `placement.make_placement`.
  """
  return _find(parts)[1]


def _find(parts: config_lib.Parts) -> tuple[Setup, Plan, Model]:
  """Returns the setup without parameters, its plan, and the model whose parameters are missing."""
  config, options = parts.config, parts.config.model
  teacher = teacher_lib.resolve(parts) if parts.training else None
  if parts.training:
    run_checks.check(parts)
  actors = config.mesh.actors if parts.training else 0
  placement = make_placement(config.mesh.to_dict(), actors)
  check_attention(options.attention, options.dtype)
  if parts.training:
    run_checks.check_placement(config, placement)
  opened = functools.partial(_opened, parts)
  model = opened(options.source, config.seed)
  run_checks.check_routing(config, model.config)
  own = own_devices(placement, actors)
  found = members.open_members(parts, opened, lambda m: _sampler(parts, _as_run(parts, m), own))
  parts = members.with_tokenizers(parts, found)
  contexts = {source: member.model.config.max_positions for source, member in found.items()}
  prompts = prompt_checks.check(
    parts, model.tokenizer, {'': model.config.max_positions, **contexts}
  )
  taught_by = None
  if teacher:
    lengths = prompt_checks.check_teacher(parts, teacher, model.tokenizer)
    taught_by = teacher.team, lengths
  optimizer = make_optimizer(parts)
  with_adapters = _as_run(parts, model.config).replace(
    lora_rank=options.lora_rank,
    lora_alpha=options.lora_alpha,
    num_adapters=parts.sharing.num_adapters,
  )

  def planned(gather_once: bool) -> tuple[Sampler, dict[str, Sampler], Plan]:
    make = functools.partial(_sampler, parts, placement=own, gather_once=gather_once)
    sampler = make(with_adapters)
    others = {source: make(member.sampler.config) for source, member in found.items()}
    plan = plan_lib.make(parts, placement, sampler, optimizer, prompts, others, taught_by)
    return sampler, others, plan

  gather = config.sampler.gather_weights
  sampler, others, plan = planned(gather != 'each_token')
  if gather == 'auto' and sampler.placement.cut_by_fsdp:
    of_samplers = plan.actors or plan
    writing = of_samplers.programs[1 : 2 * len(found) + 2 : 2]
    if not all(map(of_samplers.has_room_for, writing)):
      sampler, others, plan = planned(False)
  found = {source: dataclasses.replace(m, sampler=others[source]) for source, m in found.items()}
  setup = Setup(
    **vars(parts),
    model=_decoder(sampler.config, placement),
    params={},
    tokenizer=model.tokenizer,
    sampler=sampler,
    placement=placement,
    source=model.source,
    members=found,
    plan=plan,
    teacher=teacher,
  )
  return setup, plan, model


def _opened(parts: config_lib.Parts, source: str, seed: int) -> Model:
  """Opens a model, see `open_model`; one from scratch has the run's words as vocabulary."""
  scratch = check_spec(source)[0] == 'random'
  tokenizer = prompt_checks.tokenizer_from_scratch(parts) if scratch else None
  return open_model(source, tokenizer=tokenizer, seed=seed)


def _as_run(parts: config_lib.Parts, model: ModelConfig) -> ModelConfig:
  """Returns a model's config with the dtype and attention of the run."""
  options = parts.config.model
  return model.replace(
    dtype=options.dtype,
    remat=options.remat,
    remat_keeps=options.remat_keeps,
    attention=options.attention,
  )


def _sampler(
  parts: config_lib.Parts, model: ModelConfig, placement: Placement, *, gather_once: bool = True
) -> Sampler:
  own, smallest = parts.config.sampler, None
  if device_kind.current() != 'cpu':  # one shape for all layers, as small as the largest one
    most = max(questions * each for questions, each in plan_lib.concurrent_episodes(parts))
    layer = -(-most * max(len(layer) for _, _, layer in parts.team.turns) // hosts.count())
    smallest = min(own.decode_rows * placement.row_shards, layer)
  return Sampler(
    model,
    max_new_tokens=parts.team.max_message_tokens,
    prefill_length=own.prefill_length,
    prefill_rows=own.prefill_rows,
    decode_rows=own.decode_rows,
    cache_length=own.cache_length,
    smallest_batch=smallest,
    gather_once=gather_once,
    placement=placement,
  )


def _decoder(config: ModelConfig, placement: Placement) -> Transformer:
  return Transformer(config, partition.layout(config, placement, placement.replica_rows))


def make_optimizer(parts: config_lib.Parts, name: str = '') -> optax.GradientTransformation:
  """Returns the optimizer of a model that learns, see `Team.trained`."""
  config, options = parts.config, parts.config.learner
  sharing = members.sharings(parts)[name]
  turns = [layer for _, _, layer in parts.team.turns if any(map(sharing.learns, layer))]
  updates = ORDERS[options.order].updates(options.minibatches, len(turns))
  return state_lib.make_optimizer(
    options,
    updates=config.steps * updates,
    adapter_scale=sharing.scale,
  )


def make_learner(setup: Setup) -> Learner:
  """Returns the learner of a run, with the config's objective and optimizer for each model."""
  programs = functools.partial(_programs, setup)
  return _learner(setup, programs, setup.config.rollout.temperature)


def make_scorer(setup: Setup) -> Learner:
  """Returns a learner that scores messages at temperature 1 and is never updated."""
  return _learner(setup, lambda model, _: _scoring(setup, model, 1.0), 1.0)


def _learner(
  setup: Setup, programs: Callable[[Transformer, str], Programs], temperature: float
) -> Learner:
  """Returns a learner of all models; `programs` maps a decoder and its name in the state."""
  decoders = setup.decoders
  main, *others = (
    Learner(programs(decoders[name], name), setup.config, sharing, name)
    for name, sharing in members.sharings(setup).items()
  )
  frozen_answers = _frozen_answers(setup, temperature)
  return dataclasses.replace(main, others=tuple(others), frozen_answers=frozen_answers)


def _frozen_answers(
  setup: Setup, temperature: float
) -> Callable[[Sequence[Message]], list[np.ndarray]] | None:
  """Returns `Learner.frozen_answers`."""
  role = setup.team.roles[-1]
  member = setup.members.get(role.model)
  if member is None or role.trains:
    return None
  model = _decoder(member.sampler.config, setup.placement)
  scorer = Learner(_scoring(setup, model, temperature), setup.config, Sharing())

  def score(messages: Sequence[Message]) -> list[np.ndarray]:
    params = partition.place(member.params, member.sampler.config, setup.placement)
    return scorer.score(PolicyParams.of(params), messages)

  return score


def _programs(setup: Setup, model: Transformer, name: str) -> Programs:
  config = setup.config
  return Programs(
    model,
    losses.from_config(config.objective, max_length=setup.team.max_message_tokens),
    make_optimizer(setup, name),
    config.rollout.temperature,
    placement=setup.placement,
    takes_turns=config.rollout.ahead > 0,
    entropy=config.learner.entropy,
    replay_routing=config.learner.replay_routing,
    kl_coef=config.objective.kl_coef,
    kl_estimator=config.objective.kl_estimator,
    tis_cap=config.objective.tis_cap,
    tis_level=config.objective.tis_level,
  )


def _scoring(setup: Setup, model: Transformer, temperature: float) -> Programs:
  """Returns the programs of a model that is never updated."""
  return Programs(
    model,
    losses.imitation,
    optax.identity(),
    temperature,
    entropy=False,
    placement=setup.placement,
  )


def init_state(setup: Setup, params: Params) -> TrainState:
  """Returns the state at step 0, each array created on its devices."""
  return _state(setup, partition.place(params, setup.model.config, setup.placement))


def state_shapes(setup: Setup) -> TrainState:
  """Returns the state as `jax.ShapeDtypeStruct`s, without allocating arrays."""
  make = functools.partial(_state, setup)
  return partition.shapes(make, setup.params, setup.model.config, setup.placement)


def _state(setup: Setup, params: Params) -> TrainState:
  config = setup.config
  return state_lib.init(
    params,
    make_optimizer(setup),
    shardings=lambda state: partition.shardings(state, setup.model.config, setup.placement),
    lambda_tok=config.budget.lambda_tok,
    lora=config.model.lora_rank > 0,
    keep_reference=setup.keeps_reference,
    num_questions=len(setup.questions),
    opponents=config.rollout.pool_members,
    roles=setup.running_roles,
    members={name: make_optimizer(setup, name) for name in setup.team.trained.values()},
  )


def place_state(setup: Setup, state: TrainState) -> TrainState:
  """Moves arrays of a state that were made on the host to their devices."""
  return partition.place(state, setup.model.config, setup.placement)


def _with_adapters(model_config, params: Params, seed: int) -> Params:
  """Adds freshly initialized adapters to the loaded weights."""
  fresh = init_adapters(model_config, jax.random.key(seed))
  return flax.traverse_util.unflatten_dict({**flax.traverse_util.flatten_dict(params), **fresh})
