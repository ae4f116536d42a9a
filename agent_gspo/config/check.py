"""Validates options across config sections, before a model is loaded."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, TypeVar

from agent_gspo import plugins
from agent_gspo.algorithms import terms as terms_lib
from agent_gspo.algorithms.advantages import estimators
from agent_gspo.algorithms.objectives import losses
from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.algorithms.presets import PRESETS
from agent_gspo.algorithms.selection import SELECTIONS
from agent_gspo.config import (
  Config,
  episode_scores,
  hints,
  learned_topology,
  models,
  team_size,
  worth,
)
from agent_gspo.environments.base import Environment
from agent_gspo.options import Section
from agent_gspo.rewards import length_rewards
from agent_gspo.rewards.bounds import check_bound
from agent_gspo.tasks.base import Task, asked, demonstrated
from agent_gspo.tasks.registry import make_task
from agent_gspo.teams.exploration import audible_turns
from agent_gspo.teams.sharing import Sharing, make_sharing
from agent_gspo.teams.team import Team, make_team
from agent_gspo.types import Terms
from agent_gspo.values import shown

S = TypeVar('S', bound=Section)

_MAX_UPDATES = 2**31 - 1  # limit of the optimizer's step counter
_MAX_TRAINING_QUESTIONS = 10**7  # a run stores data for each

# Values that `rollout.branches` needs: candidates are compared before later turns exist.
_WITH_BRANCHES = {
  'advantage.grouping': 'episode_turn_agent',
  'reward.discount': 0,
  'reward.cost': 'tokens',
  'reward.p_read': 0,
  'reward.credit': 'own_cost',
  'reward.length_reward': 'linear',
  'budget.lambda_rep': 0,
  'selection.resample': 0,
  'objective.ratio_span': 'message',
  'learner.order': 'shuffled',
}
_READ_WITH_BRANCHES = {'rewards', 'task', 'costs', 'groups', 'lengths', 'silent'}


def resolve(values: Mapping[str, Any]) -> Config:
  """Returns the config of a nested dict, with empty fields filled in from its algorithm's preset.

  A learned topology is replaced by its graph.

  Raises:
    FileNotFoundError, ValueError: A field is invalid on its own, or see `learned_topology.resolve`.
  """
  config = Config.from_dict(values)
  preset = PRESETS[config.algorithm]
  learner = _filled(
    config.learner,
    order=preset.order,
    # In bfloat16 sampler and trainer differ by more than GSPO's own clip band.
    old_logprobs='trainer' if config.model.dtype == 'bfloat16' else 'sampler',
  )
  own_objective = config.objective.name in ('', preset.objective)
  objective = _filled(
    config.objective,
    name=preset.objective,
    clip_low=preset.clip_low if own_objective else None,
    clip_high=preset.clip_high if own_objective else None,
    opsm_threshold=preset.opsm_threshold,
    # TIS is on if old log-probs come from the trainer, not the sampler.
    tis_cap=2.0 if learner.old_logprobs == 'trainer' else 0.0,
  )
  by_message = losses.spec(objective.name).sequence_ratio
  return dataclasses.replace(
    config,
    team=learned_topology.resolve(config.team),
    advantage=_filled(
      config.advantage,
      name=preset.advantage,
      costs=preset.costs,
      grouping='episode_turn_agent' if config.rollout.branches > 1 else preset.grouping,
    ),
    selection=_filled(config.selection, name=preset.selection, resample=preset.resample),
    objective=_filled(objective, tis_level='message' if by_message else 'token'),
    learner=learner,
  )


def _filled(section: S, **values: Any) -> S:
  """Replaces empty fields of a section."""
  empty = {field: new for field, new in values.items() if getattr(section, field) in ('', None)}
  return dataclasses.replace(section, **empty)


@dataclasses.dataclass(frozen=True)
class Parts:
  """Objects built from a valid config.

  Attributes:
    config: Resolved config, see `resolve`.
    task, team: Objects of the sections of the same names.
    sharing: Policies and learning rates of the agents.
    note: Message to the user before the run, '' for none.
    training: Whether the config is for training, not only for evaluation.
  """

  config: Config
  task: Task
  team: Team
  sharing: Sharing
  note: str
  training: bool

  @property
  def term_sheet(self) -> terms_lib.TermSheet | None:
    """Returns the terms that prompts state per question, None if they state none."""
    return terms_lib.make(self.config.budget)

  def terms(self, value: float | None = None) -> Terms | None:
    """Returns the terms stated at `value`, by default that of evaluations; None for no terms."""
    if self.term_sheet is None:
      return None
    return self.term_sheet.of(self.config.budget.evaluated_terms if value is None else value)

  @property
  def keeps_reference(self) -> bool:
    """Returns whether the loss or the reward needs the reference (initial) policy."""
    return self.config.objective.needs_reference or self.config.reward.needs_reference

  @property
  def running_roles(self) -> int:
    """Returns the number of roles whose running baseline the estimator reads."""
    if 'baselines' not in estimators.fields_of(self.config.advantage.name):
      return 0
    return len(set(self.team.sides or self.team.names))


def check(values: Mapping[str, Any], *, training: bool = True) -> Parts:
  """Builds the cheap parts and checks the rest, before a model is loaded.

  Args:
    values: Run configuration, a nested dict.
    training: Whether training questions are required.

  Raises:
    ValueError: A field is invalid; names field, value and remedy.
    FileNotFoundError: The task's data are missing.
  """
  config = resolve(values)
  plugins.find(SELECTIONS, config.selection.name, 'selection.name')
  if config.rollout.questions < config.learner.minibatches:
    raise ValueError(
      f'learner.minibatches={config.learner.minibatches} is more than rollout.questions='
      f'{config.rollout.questions}: mini-batches are cut between questions.'
    )
  # With an axis of -1 the number of devices decides: see setup.build.
  if training and -1 not in config.mesh.to_dict().values():
    check_micro_batch(config, config.mesh.data * config.mesh.fsdp)
  if training and config.checkpoint.keep_best and not config.evaluation.every:
    raise ValueError(
      f'checkpoint.keep_best={config.checkpoint.keep_best} with evaluation.every=0: no step is '
      'evaluated, so the best is unknown. Set evaluation.every to the steps between two '
      'evaluations, or checkpoint.keep_best=0.'
    )
  team = make_team(config.team)
  models.check(config, team)
  _check_algorithm(config, team)
  _check_terms(config, team)
  _check_sides(config, team)
  task = make_task(config.task.name, **config.task.options)
  # An environment pays on a scale of its own.
  note = '' if task.converse else check_bound(config.reward, config.budget, team)
  splits = list(dict.fromkeys([*(['train'] if training else []), config.evaluation.split]))
  team_size.check(task, team, splits)
  sharing = make_sharing(
    config.policy,
    team.names,
    lora_rank=config.model.lora_rank,
    learning_rate=config.learner.learning_rate,
    others=team.others,
    learners=[agent for agent, role in enumerate(team.roles) if role.trains],
  )
  if training:
    _check_sft(config, task, team)
    worth.check(config, task, team, sharing)
    hints.check(config, task, team, sharing)
    _check_branches(config, task)
    _check_own_rewards(config, task)
    episode_scores.check(config, task, team)
    available = len(asked(task, config.sft.held_back))
    if available > _MAX_TRAINING_QUESTIONS:
      raise ValueError(
        f'task.options: task {task.name!r} has {available} training questions; a run stores data '
        f'for at most {_MAX_TRAINING_QUESTIONS}. Give it fewer.'
      )
    if config.rollout.questions > available:
      of_them = ' that sft.held_back leaves to RL' if config.sft.held_back else ''
      raise ValueError(
        f'rollout.questions={config.rollout.questions} is more than the {available} training '
        f'questions of task {task.name!r}{of_them}.'
      )
  _check_must_speak(config, team, sharing)
  return Parts(
    config=config,
    task=task,
    team=team,
    sharing=sharing,
    note='\n'.join(filter(None, (note, task.note(splits)))),
    training=training,
  )


def check_micro_batch(config: Config, row_shards: int) -> None:
  """Raises unless `row_shards = mesh.data * mesh.fsdp` divides the micro-batch size."""
  if config.learner.micro_batch_size % row_shards:
    raise ValueError(
      f'learner.micro_batch_size={config.learner.micro_batch_size} is not a multiple of '
      f'mesh.data * mesh.fsdp = {row_shards}: each device takes the same number of rows.'
    )


def _check_algorithm(config: Config, team: Team) -> None:
  name, reward = config.advantage.name, config.reward
  estimators.check(name, config.advantage.options)
  planner = estimators.settings(config.advantage).get('planner', 0) if name == 'hiper' else 0
  if planner not in range(team.num_agents):
    raise ValueError(
      f'advantage.options.planner={planner} must be the number of an agent, 0 to '
      f'{team.num_agents - 1}.'
    )
  compared = {'groups', 'question'} & set(estimators.fields_of(name))
  if config.objective.teacher:  # whose loss reads no advantages
    if config.selection.resample:
      raise ValueError(
        f'selection.resample={config.selection.resample} with objective.teacher: questions whose '
        'scores tie are learned from, too. Set selection.resample=0.'
      )
  elif config.rollout.group_size == config.rollout.branches == 1:
    if compared and not plugins.is_plugin(name):
      raise ValueError(
        f'rollout.group_size=1: advantage.name={name!r} compares episodes of one question. '
        "Take 2 or more, or advantage.name='reinforce_pp' or 'spo_single' with "
        "advantage.costs='inside'."
      )
    if config.advantage.costs == 'apart' and (
      config.budget.charges or reward.length_reward != 'linear'
    ):
      raise ValueError(
        "rollout.group_size=1 with advantage.costs='apart': the cost of an episode is compared "
        'with those of other episodes about its question. Set '
        "advantage.costs='inside', or take 2 or more."
      )
    if config.selection.resample:
      raise ValueError(
        f'selection.resample={config.selection.resample} with rollout.group_size=1: a '
        'group of one always ties. Set selection.resample=0, or take 2 or more.'
      )
  given = (('credit', reward.credit, 'own_cost'), ('length_reward', reward.length_reward, 'linear'))
  for field, value, right in given if name in estimators.SUMS_OWN_COSTS else ():
    if value != right:
      raise ValueError(
        f'reward.{field}={value!r} with advantage.name={name!r}, which sums costs over an '
        f"author's turns: an episode's cost would count every turn. Set reward.{field}={right!r}."
      )
  objective = config.objective
  for field in losses.CLIP_FIELDS:
    if field in objective.options:
      raise ValueError(
        f'objective.options.{field}={shown(objective.options[field])}: must be '
        f'set as objective.{field}.'
      )
  spanned = objective.ratio_span != 'message'
  optional = {
    'importance': objective.tis_cap > 0,
    'sampler_logprobs': True,
    'token_penalty': objective.kl_coef > 0,
    'span_log_ratio': spanned,
    'span_share': spanned,
  }
  losses.trace(
    objective.name,
    losses.from_config(objective, max_length=team.max_message_tokens),
    [field for field, given in optional.items() if given],
  )
  cap = objective.tis_cap
  if cap and config.learner.old_logprobs == 'sampler':
    raise ValueError(
      f"objective.tis_cap={cap} with learner.old_logprobs='sampler': ratios already use the "
      "sampler's log-probs; nothing to correct. Set learner.old_logprobs='trainer', "
      'or objective.tis_cap=0.'
    )
  order, span = ORDERS[config.learner.order], objective.ratio_span
  if order.by_turn and span != 'message':
    raise ValueError(
      f'objective.ratio_span={span!r} with learner.order={config.learner.order!r}: '
      'mini-batches of one turn would split a sequence of several turns. '
      "Set objective.ratio_span='message', or learner.order='shuffled'."
    )
  updates = config.steps * order.updates(config.learner.minibatches, len(team.turns))
  if updates > _MAX_UPDATES:
    raise ValueError(
      f'steps={config.steps} of {updates // config.steps} optimizer steps are more than '
      f'{_MAX_UPDATES}. Lower steps or learner.minibatches.'
    )


def _check_sides(config: Config, team: Team) -> None:
  """Checks the options that need `team.sides` or name agents."""
  opponents, grouping = config.rollout.opponents, config.advantage.grouping
  for field, value, needs in (
    ('rollout.opponents', opponents, opponents != 'self'),
    ('advantage.grouping', grouping, grouping == 'question_side'),
  ):
    if needs and not team.sides:
      raise ValueError(
        f'{field}={value!r} with team.sides={{}}: all agents are on one side. Set team.sides.'
      )
  if config.advantage.name == 'advantage_alignment' and opponents != 'self':
    raise ValueError(
      f"rollout.opponents={opponents!r} with advantage.name='advantage_alignment', which compares "
      "both sides; opponents' messages are not trained on. Set rollout.opponents='self'."
    )
  for field in ('payers', 'prices'):
    named = getattr(config.reward, field)
    if any(name not in team.names for name in named):
      raise ValueError(f'reward.{field}={named} must be names of agents: {", ".join(team.names)}.')


def _check_branches(config: Config, task: Task) -> None:
  """Raises for candidates that cannot be compared, and for a comparison without candidates."""
  branches, name = config.rollout.branches, config.advantage.name
  if branches == 1:
    if config.advantage.grouping == 'episode_turn_agent':
      raise ValueError(
        "advantage.grouping='episode_turn_agent' with rollout.branches=1: it compares candidates "
        'for one turn. Set rollout.branches to 2 or more.'
      )
    return
  where = f'rollout.branches={branches}'
  if not isinstance(task, Environment):
    raise ValueError(
      f'{where}: task {task.name!r} is not an environment: candidates get no immediate reward. '
      "Set rollout.branches=1, with advantage.grouping='question_turn_agent'."
    )
  for field, right in _WITH_BRANCHES.items():
    if (value := operator.attrgetter(field)(config)) != right:
      raise ValueError(
        f'{field}={value!r} with {where}, which compares the candidates for one turn by '
        f'immediate reward and cost. Set {field}={right!r}.'
      )
  fields = set(estimators.fields_of(name))
  if (over := fields - _READ_WITH_BRANCHES) and 'taken' not in fields:
    raise ValueError(
      f'advantage.name={name!r} with {where}: it also reads {", ".join(sorted(over))}, which '
      "candidates for one turn share. Set advantage.name='group_std', 'per_component' or 'mars2'."
    )


def _check_own_rewards(config: Config, task: Task) -> None:
  """Raises for an estimator that reads rewards of single messages where there are none."""
  name, paid = config.advantage.name, config.reward.score == 'collective_vote'
  if 'reward' in estimators.fields_of(name) and not task.converse and not paid:
    raise ValueError(
      f'advantage.name={name!r} reads `reward`, rewards of an environment for each message, but '
      f'task {task.name!r} is not an environment. Read `own_rewards`: the task score in the '
      "author's last message, minus costs."
    )


def _check_terms(config: Config, team: Team) -> None:
  """Checks that prompts, rewards and evaluations state and read the same terms."""
  sheet, reward = terms_lib.make(config.budget), config.reward
  kind, mode = sheet.kind if sheet else '', f'budget.mode={config.budget.mode!r}'
  for wrong, right in (('price', 'conditioned'), ('budget', 'target')):
    for role in team.roles:
      if role.shows_terms(wrong) and wrong != kind:
        raise ValueError(
          f'team.roles.{role.name}.opening={role.opening!r} shows a {wrong}, but {mode} draws none '
          f'per question. Set budget.mode={right!r}.'
        )
  reads_budget = 'budgets' in length_rewards.read_by(reward.length_reward)
  if reads_budget != (kind == 'budget'):
    raise ValueError(
      f'reward.length_reward={reward.length_reward!r} with {mode}: '
      "set mode='target' and length_reward='told_budget', or neither."
    )
  if sheet is None:
    for field in ('evaluation.told', 'sft.follows_terms'):
      if value := operator.attrgetter(field)(config):
        raise ValueError(
          f'{field}={shown(value)}: agents are shown no price or budget with {mode}. Set the mode '
          "to 'conditioned' or 'target'."
        )
    return
  if kind == 'budget' and any(role.shows_left for role in team.roles):
    unit = (reward.cost, reward.p_write, reward.p_read, reward.p_tool, reward.prices, reward.payers)
    if unit != ('tokens', 1.0, 0.0, 0.0, {}, ()):
      raise ValueError(
        f'team.roles.*.cue shows {{left}}, counted in tokens written; the budget is in another '
        f'unit with reward.cost={reward.cost!r}, p_write={reward.p_write}, '
        f'p_read={reward.p_read}, p_tool={reward.p_tool}, prices={reward.prices}, '
        f"payers={reward.payers}. Set 'tokens', 1, 0, 0, no prices, no payers, or remove {{left}}."
      )
  if not any(role.shows_terms(kind) for role in team.roles):
    raise ValueError(
      f'{mode}, but no prompt shows the {kind}: write {{{kind}}} into the opening of a role '
      '(team.roles.*.opening).'
    )


def _check_sft(config: Config, task: Task, team: Team) -> None:
  options = config.sft
  if not options.is_asked_for:
    return
  if not demonstrated(task, options.held_back):
    raise ValueError(
      f'sft.held_back={options.held_back} leaves no training question of task {task.name!r} to '
      'demonstrate; lower it.'
    )
  if not hasattr(task, 'demonstration'):
    raise ValueError(
      f'{options.length}, but task {task.name!r} has no demonstrations; set it to 0.'
    )
  if config.evaluation.untrained == 'last':
    raise ValueError(
      f"evaluation.untrained='last' with {options.length}: the team after "
      "SFT is not kept that long. Set it to 'first'."
    )
  roles = sorted({role.name for role in team.roles})
  for role in options.role_shares:
    if role not in roles:
      raise ValueError(f'sft.role_shares.{role}: role must be one of {", ".join(roles)}.')
  shares = [options.role_shares.get(role.name, 1) for role in team.roles if role.learns]
  if shares and not any(shares):
    raise ValueError(f'sft.role_shares={dict(options.role_shares)} trains no role.')
  if options.addressed_probability and not team.addressing:
    raise ValueError(
      f'sft.addressed_probability={options.addressed_probability} needs messages with addressees: '
      'set team.addressing=True.'
    )
  if options.validation_questions:
    task.questions('validation')  # raises where there are none


def _check_must_speak(config: Config, team: Team, sharing: Sharing) -> None:
  count, size = config.rollout.must_speak, config.rollout.group_size
  if count and count >= size:
    raise ValueError(
      f'rollout.must_speak={count} must be below rollout.group_size={size}, so that silence is '
      'sampled too.'
    )
  if count and not audible_turns(team, sharing):
    raise ValueError(
      f'rollout.must_speak={count}: no message of a trained agent is read by another; set it to 0.'
    )
