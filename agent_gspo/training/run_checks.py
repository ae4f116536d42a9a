"""Validates options of rollouts, devices and processes, before a model is loaded."""

from __future__ import annotations

from agent_gspo import plugins
from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config import Config
from agent_gspo.config import check as config_lib
from agent_gspo.models.config import ModelConfig
from agent_gspo.sharding import hosts
from agent_gspo.sharding.placement import Placement
from agent_gspo.teams import endpoint


def check(parts: config_lib.Parts) -> None:
  """Raises ValueError for options of training that cannot be combined on any devices."""
  config = parts.config
  if config.mesh.actors and not config.rollout.ahead:
    raise ValueError(
      f'mesh.actors={config.mesh.actors} with rollout.ahead=0: devices would sample and learn in '
      'turns. Set rollout.ahead=1 or more, or mesh.actors=0.'
    )
  _check_added(config, 'replay')
  _check_added(config, 'share')
  _check_share(parts)
  _check_engine(parts)


def check_placement(config: Config, placement: Placement) -> None:
  """Raises ValueError if the rows or the rollouts ahead do not suit the devices that learn."""
  config_lib.check_micro_batch(config, placement.row_shards)
  ahead = config.rollout.ahead
  if ahead and not config.mesh.actors and placement.devices > hosts.count():
    raise ValueError(
      f'rollout.ahead={ahead} on {placement.devices} devices: two threads of a process cannot '
      'share programs that span its devices. Set mesh.actors to the devices of a process that '
      'sample, or rollout.ahead=0, or use one device a process (in one process mesh.data=1, '
      'mesh.fsdp=1, mesh.tensor=1).'
    )


def check_routing(config: Config, model: ModelConfig) -> None:
  """Raises ValueError if there are no experts that `learner.replay_routing` could replay."""
  replayed, old = config.learner.replay_routing, config.learner.old_logprobs
  engine, again = config.rollout.engine, config.rollout.replay
  off = "Set learner.replay_routing=''"
  where = f'learner.replay_routing={replayed!r} with'
  if not replayed:
    return
  if not model.num_experts:
    source = config.model.source
    raise ValueError(f'{where} model.source={source!r}, which has no experts. {off}.')
  if replayed == 'trainer' != old:
    raise ValueError(
      f"{where} learner.old_logprobs={old!r}. {off} or learner.old_logprobs='trainer'."
    )
  if replayed == 'sampler' and engine:
    raise ValueError(f"{where} rollout.engine={engine!r}. {off} or rollout.engine=''.")
  if replayed == 'sampler' and again:  # old and new messages share prompts, not their experts
    raise ValueError(f'{where} rollout.replay={again!r}. {off} or rollout.replay=0.')


def _check_added(config: Config, field: str) -> None:
  """Checks that episodes which a field of `rollout` adds have an advantage."""
  name, value = config.advantage.name, getattr(config.rollout, field)
  where, off = f'rollout.{field}={value!r} with', f'Set rollout.{field}={type(value)()!r}'
  if not value:
    return
  if config.objective.teacher:
    raise ValueError(
      f'{where} objective.teacher={config.objective.teacher!r}, which reads no advantages. {off}.'
    )
  if name in estimators.GAINS or 'baselines' in estimators.fields_of(name):
    raise ValueError(
      f'{where} advantage.name={name!r}, which needs episodes of the newest weights. {off}, '
      "or advantage.name='per_component'."
    )


def _check_share(parts: config_lib.Parts) -> None:
  """Checks that the run can exchange episodes with others."""
  folder = parts.config.rollout.share
  if not folder:
    return
  for wrong, what in (
    (hosts.count() > 1, f'{hosts.count()} processes: a node is one process'),
    (
      parts.term_sheet is not None,
      'prices or budgets in prompts: each node draws its own',
    ),
    (parts.team.has_tools, 'tools, whose results are not exchanged'),
    (
      parts.config.reward.score == 'weighted_vote',
      "reward.score='weighted_vote', whose weights are not exchanged",
    ),
  ):
    if wrong:
      raise ValueError(f"rollout.share={folder!r} with {what}. Set rollout.share=''.")


def _check_engine(parts: config_lib.Parts) -> None:
  """Checks that a server can sample for the run."""
  options = parts.config.rollout
  if not options.engine:
    return
  endpoint.check_source(options.engine, 'rollout.engine')
  where = f'rollout.engine={options.engine!r}'
  if parts.sharing.adapters is not None:
    raise ValueError(
      f'{where} with policy.sharing={parts.config.policy.sharing!r}: a server has one set of '
      "weights. Set policy.sharing='shared'."
    )
  if hosts.count() > 1:
    raise ValueError(f"{where} with {hosts.count()} processes. Set rollout.engine='', or use one.")
  if options.publish:
    plugins.load_function(options.publish, 'rollout.publish')
