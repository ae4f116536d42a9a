"""Defines the `advantage`, `selection`, `objective` and `budget` sections of a config.

Empty fields ('' or None) are set by `config.algorithm`, see `presets`. Names that a user may add to
are validated by `config.check`, against the registries in their modules.
"""

from __future__ import annotations

import dataclasses
import math

from agent_gspo.options import Section, option
from agent_gspo.values import is_text, shown

COSTS = ('inside', 'apart')
GROUPINGS = (
  'question', 'question_agent', 'question_turn_agent', 'question_side', 'episode_turn_agent'
)  # fmt: skip
RATIO_SPANS = ('message', 'agent', 'episode')
TIS_LEVELS = ('message', 'token')


@dataclasses.dataclass(frozen=True)
class AdvantageOptions(Section, name='advantage'):
  """Estimator of advantages from rewards.

  Attributes:
    name: One of `advantages.estimators.ADVANTAGES`, or 'module:function'.
    costs: inside: the estimator sees the price; apart: it is subtracted afterwards.
    grouping: Messages whose rewards are compared.
    options: Estimator options, see its signature.
  """

  name: str = ''
  costs: str = option('', choices=COSTS)
  grouping: str = option('', choices=GROUPINGS)
  options: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class SelectionOptions(Section, name='selection'):
  """Rule that selects the next questions.

  Attributes:
    name: Selection rule: uniform, spo, or 'module:function'.
    resample: Extra rollouts for questions with tied scores, at most.
  """

  name: str = ''
  resample: int = option(None, least=0, most=1000)


@dataclasses.dataclass(frozen=True)
class ObjectiveOptions(Section, name='objective'):
  """Objective maximized by an optimizer step.

  Attributes:
    name: One of `objectives.losses.OBJECTIVES`, or 'module:function'.
    clip_low: Width of the clip range below a ratio of 1. None: the algorithm's own.
    clip_high: Width of the clip range above a ratio of 1. None: the algorithm's own.
    options: Further options of the objective.
    ratio_span: Span of one sequence ratio.
    opsm_threshold: Nats per token beyond which an off-policy message is masked (see
      `objectives/off_policy.py`). None: the algorithm's own, or no mask.
    tis_cap: Cap of the importance weights between trainer and sampler (see
      `objectives/off_policy.py`), 0 for none, else at least 1. None: 2 if old log-probs are the
      trainer's, else 0.
    tis_level: Level of one weight; empty: that of the objective's ratio.
    kl_coef: Weight of the KL penalty towards the policy at the start of RL, after SFT.
    kl_estimator: Estimator of the KL divergence.
    teacher: Config file of a team to distill into one agent, such as `team.json` of an export whose
      weights are `model.source`; replaces the objective with its name, clip, options and mask, see
      `training.distillation`.
  """

  name: str = ''
  clip_low: float | None = option(None, above=0)
  clip_high: float | None = option(None, above=0)
  options: dict = dataclasses.field(default_factory=dict)
  ratio_span: str = option('message', choices=RATIO_SPANS)
  opsm_threshold: float | None = option(None, least=0)
  tis_cap: float = option(None, least=0)
  tis_level: str = option('', choices=TIS_LEVELS)
  kl_coef: float = option(0.0, least=0)
  kl_estimator: str = option('k3', choices=('k2', 'k3'))
  teacher: str = ''

  def __post_init__(self):
    super().__post_init__()
    if self.tis_cap and self.tis_cap < 1:
      raise ValueError(f'objective.tis_cap={self.tis_cap} must be 0 (no correction) or at least 1.')
    if self.teacher and (self.kl_coef or self.ratio_span != 'message'):
      raise ValueError(
        f'objective.teacher={self.teacher!r} replaces the objective: set objective.kl_coef=0 and '
        "objective.ratio_span='message'."
      )

  @property
  def needs_reference(self) -> bool:
    """Returns whether the loss reads the reference policy."""
    return self.kl_coef > 0 or bool(self.teacher)


_ONLY_UNDER = {  # modes that read a field; it is 0 under the others
  'budget_episode': ('dual', 'target'),
  'budget_message': ('dual',),
  'lambda_min': ('dual',),
}


@dataclasses.dataclass(frozen=True)
class BudgetOptions(Section, name='budget'):
  """Prices of communication and their controllers.

  A budget is in the unit of `reward.cost`; the message budget in tokens written. For the modes see
  `budgets`.

  Attributes:
    mode: fixed: lambda_tok; accuracy_floor: highest price at which accuracy stays above the floor;
      dual: a mean cost is the constraint; conditioned: prompts state a price; target: prompts state
      a budget.
    lambda_tok: Price of a unit of cost; its first value under a controller. accuracy_floor allows a
      start above lambda_max, which applies from the second step on. conditioned: price in
      evaluations.
    lambda_turn: Price of a message that is not silent.
    lambda_rep: Price of repetition, see `communication.repetition`.
    lambda_max: Highest price, above 0 under a controller; accuracy_floor also stays below 1 / the
      mean cost of an episode; for dual, lambda_max * budget_episode of 0.5 to 1 point is enough.
    lambda_min: dual: lowest price of a unit of cost, -lambda_max to 0. At 0 the budget is an upper
      limit; below 0, a team under the budget is rewarded for spending more, so the budget is an
      equality constraint (to compare methods at equal tokens).
    free_probability: conditioned: each question of a step has its own price, which agents read
      where a role's opening contains {price}: 0 with this probability, else log-uniform, price_low
      to lambda_max.
    price_low: conditioned: lowest price above 0.
    target_low: target: each question of a step has its own budget (target cost of an episode),
      log-uniform from target_low to target_high; agents read it where an opening contains {budget},
      and `reward.length_reward='told_budget'` rewards meeting it. Evaluations use budget_episode.
    target_high: target: highest budget.
    told_words: Texts shown to agents, for equal parts of log(price) or log(budget), rising; for
      prices the first one is for price 0.
    floor: accuracy_floor: accuracy to keep.
    floor_of_best: accuracy_floor: also keep this share of the best running accuracy.
    eta: accuracy_floor: change of the integral term per step at a full band, as a share of the
      highest.
    floor_band: accuracy_floor: the price is highest at this accuracy above the floor and 0 as much
      below it; at most half of the room between the floor and 1.
    accuracy_decay: Decay of the running accuracy.
    budget_episode: dual: target mean cost of an episode, 0 keeps lambda_tok fixed; target: budget
      in evaluations.
    budget_message: dual: highest mean tokens of a message, silent ones included; 0 for no limit.
    tolerance: dual: tolerated excess, as a share of budget_message.
    dual_eta: dual: change per step of lambda * budget (in units of task score) per 100 % overshoot.
    dual_lookahead: dual: steps that the trend is extrapolated.
  """

  mode: str = option('fixed', choices=('fixed', 'accuracy_floor', 'dual', 'conditioned', 'target'))
  lambda_tok: float = option(0.0, least=0)
  lambda_turn: float = option(0.0, least=0)
  lambda_rep: float = option(0.0, least=0)
  lambda_max: float = option(0.01, least=0)
  lambda_min: float = 0.0
  free_probability: float = option(0.15, least=0, below=1)
  price_low: float = option(0.001, above=0)
  target_low: float = option(8.0, above=0)
  target_high: float = option(40.0, above=0)
  told_words: tuple = ()
  floor: float = option(0.5, least=0, most=1)
  floor_of_best: float = option(0.0, least=0, most=1)
  eta: float = option(0.002, above=0)
  floor_band: float = option(0.1, above=0)
  accuracy_decay: float = option(0.8, least=0, most=1)
  budget_episode: float = option(0.0, least=0)
  budget_message: float = option(0.0, least=0)
  tolerance: float = option(0.1, least=0)
  dual_eta: float = option(0.04, above=0)
  dual_lookahead: float = option(20.0, least=0)

  def __post_init__(self):
    super().__post_init__()
    for words in self.told_words:
      if not is_text(words) or not words.strip():
        raise ValueError(f'budget.told_words holds {shown(words)}; must be nonblank texts.')
    if self.mode != 'fixed' and not self.lambda_max:
      raise ValueError(f'budget.lambda_max=0 must be above 0 with budget.mode={self.mode!r}.')
    for field, modes in _ONLY_UNDER.items():
      if getattr(self, field) and self.mode not in modes:
        others = ' or '.join(map(repr, modes))
        raise ValueError(
          f'budget.{field}={getattr(self, field)}: budget.mode={self.mode!r} does not read it. Set '
          f'the mode to {others}, or {field}=0.'
        )
    if self.mode == 'dual':
      self._check_dual()
    if self.mode in ('conditioned', 'target'):
      self._check_told()
    elif self.told_words:
      raise ValueError(
        f'budget.told_words={shown(self.told_words)}: budget.mode={self.mode!r} does not '
        "read it. Set the mode to 'conditioned' or 'target', or told_words=()."
      )

  def _check_dual(self) -> None:
    if not self.budget_episode and not self.budget_message:
      raise ValueError(
        'budget.mode="dual" needs budget.budget_episode or budget.budget_message above 0.'
      )
    if self.budget_episode and self.lambda_tok > self.lambda_max:
      raise ValueError(
        f'budget.lambda_tok={self.lambda_tok} starts above budget.lambda_max={self.lambda_max}.'
      )
    if not -self.lambda_max <= self.lambda_min <= 0:
      raise ValueError(
        f'budget.lambda_min={self.lambda_min} must be from -budget.lambda_max='
        f'{-self.lambda_max} to 0.'
      )
    if self.lambda_min and not self.budget_episode:
      raise ValueError(
        f'budget.lambda_min={self.lambda_min} bounds the price of budget.budget_episode alone, '
        'which is 0. Leave out budget.lambda_min.'
      )

  def _check_told(self) -> None:
    words = self.told_words
    if len(words) < 2 or len(set(words)) < len(words):
      raise ValueError(
        f'budget.told_words={shown(words)} must be two or more different texts, by rising '
        'price (from 0) or budget.'
      )
    low, high = (
      ('price_low', 'lambda_max') if self.mode == 'conditioned' else ('target_low', 'target_high')
    )
    if not getattr(self, low) < getattr(self, high):
      raise ValueError(
        f'budget.{low}={getattr(self, low)} must be below budget.{high}={getattr(self, high)}.'
      )
    if self.mode == 'target' and not self.budget_episode:
      raise ValueError(
        "budget.mode='target' needs budget.budget_episode above 0: the budget in evaluations."
      )

  @property
  def evaluated_terms(self) -> float:
    """Returns the price or budget shown to a conditioned team in evaluations."""
    return self.budget_episode if self.mode == 'target' else self.lambda_tok

  @property
  def highest_lambda_tok(self) -> float:
    """Returns the highest price of a unit of cost during the run."""
    moves = self.mode in ('accuracy_floor', 'conditioned') or (
      self.mode == 'dual' and self.budget_episode > 0
    )
    return max(self.lambda_tok, self.lambda_max) if moves else self.lambda_tok

  @property
  def highest_lambda_message(self) -> float:
    """Returns the highest price of a token of a message beyond `message_limit`."""
    return self.lambda_max if self.budget_message else 0.0

  @property
  def charges(self) -> bool:
    """Returns whether the run ever has a price above 0."""
    tokens = self.highest_lambda_tok or self.highest_lambda_message
    return bool(tokens or self.lambda_turn or self.lambda_rep)

  @property
  def message_limit(self) -> float:
    """Returns the free tokens of a message; each one beyond costs `lambda_message`."""
    if not self.budget_message:
      return math.inf
    return self.budget_message * (1 + self.tolerance)
