"""Implements length rewards from the literature, as terms added to the task score.

Every function returns a term float64 `[E]` to be *added* to the task score, so that `task + term`
is the published reward. `E` episodes; a group is the episodes of one question; an episode is right
if its score is 1. Positional arguments are arrays `[E]`, named as in `INPUTS`;
keyword arguments are options, with the paper's default if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from agent_gspo import plugins

Array = np.ndarray


INPUTS = ('scores', 'lengths', 'questions', 'price', 'budgets', 'reference_nll')
"""Arrays that length rewards may read, see `term`."""


def linear(scores: Array) -> Array:
  """Computes 0: the price alone (Agent-GSPO, arXiv 2510.22477)."""
  return np.zeros(len(scores))


def hinge(lengths: Array, price: Array | float, *, limit: float) -> Array:
  """Computes Leash (arXiv 2512.21540): `-lambda max(0, l / L - 1)`.

  Here lambda is `price * L`, so that the price keeps its unit (score per token). Its dual
  update is `budgets.dual`. The price then charges nothing else.
  """
  return -price * np.maximum(lengths - limit, 0.0)


def optima(
  scores: Array,
  lengths: Array,
  questions: Array,
  reference_nll: Array | None,
  *,
  token_weight: float = 0.5,
  loss_weight: float = 0.5,
  min_tokens: float = 40.0,
  loss_floor: float = 0.1,
) -> Array:
  """Computes Optima (arXiv 2410.08115): `-a l / max_group(l) + b / NLL under the reference`.

  An episode of fewer than `min_tokens` has reward -1 whatever its score. The NLL is at least
  `loss_floor`: otherwise a message certain under the reference would be worth more than any
  answer. Without `reference_nll` the second term is 0.
  """
  term = -token_weight * _ratio(lengths, _group_max(lengths, questions))
  if reference_nll is not None:
    if not (np.asarray(reference_nll) >= 0).all():
      raise ValueError('reference_nll must not be negative: it is a mean of -log probabilities.')
    term = term + loss_weight / np.maximum(reference_nll, loss_floor)
  return np.where(lengths < min_tokens, -1.0 - scores, term)


def l1_exact(lengths: Array, *, target: float, alpha: float = 3e-4) -> Array:
  """Computes L1-Exact (arXiv 2503.04697): `c - alpha abs(n - l)`."""
  return -alpha * np.abs(target - lengths)


def told_budget(lengths: Array, budgets: Array, *, weight: float = 0.5) -> Array:
  """Computes a relative L1-Exact (arXiv 2503.04697) for teams: `-w min(abs(l - b) / b, 1)`.

  `b` is the question's budget (`budget.mode='target'`). The term is bounded, so that no length
  outweighs the task.
  """
  return -weight * np.minimum(np.abs(lengths - budgets) / budgets, 1.0)


def l1_max(
  scores: Array, lengths: Array, *, target: float, alpha: float = 3e-4, delta: float = 0.5
) -> Array:
  """Computes L1-Max (arXiv 2503.04697): `c clip(alpha (n - l) + delta, 0, 1)`."""
  return scores * np.clip(alpha * (target - lengths) + delta, 0.0, 1.0) - scores


def kimi(scores: Array, lengths: Array, questions: Array, *, weight: float = 0.4) -> Array:
  """Computes the length reward of Kimi k1.5 (arXiv 2501.12599), as in public ports.

  `f = 0.5 - (l - min) / (max - min)` over the group; right episodes get `w f`, wrong ones
  `w min(0, f)`, all 0 where the lengths of a group are equal.
  """
  low, high = -_group_max(-lengths, questions), _group_max(lengths, questions)
  factor = 0.5 - _ratio(lengths - low, high - low)
  factor = np.where(scores >= 1, factor, np.minimum(factor, 0.0))
  return np.where(high > low, weight * factor, 0.0)


def efficient(scores: Array, lengths: Array, questions: Array, *, alpha: float = 0.1) -> Array:
  """Computes the reward of Arora and Zanette (arXiv 2502.04463): `c (1 - alpha sigmoid(z))`.

  `z` is the length standardized over the right episodes of the question; 0 if those are equally
  long or there are none.
  """
  right = scores >= 1
  mean = _group_mean(lengths, questions, right)
  std = np.sqrt(_group_mean((lengths - mean) ** 2, questions, right))
  # The clip changes the sigmoid by less than 1e-13.
  z = np.clip(_ratio(lengths - mean, std), -30.0, 30.0)
  return -alpha * scores / (1.0 + np.exp(-z))


def laser(scores: Array, lengths: Array, *, target: float, weight: float = 0.5) -> Array:
  """Computes LASER (arXiv 2505.15612): `c (1 + w 1[l <= L])`."""
  return weight * scores * (lengths <= target)


def overlong(lengths: Array, *, limit: float, buffer: float = 4096.0, weight: float = 0.5) -> Array:
  """Computes DAPO's soft punishment (arXiv 2503.14476): `w clip(-(l - (L - b)) / b, -1, 0)`.

  The paper's weight is 1 on rewards of -1 and 1, which is 0.5 on scores of 0 and 1.
  """
  return weight * np.clip(-(lengths - (limit - buffer)) / buffer, -1.0, 0.0)


LENGTH_REWARDS: dict[str, Callable[..., Array]] = {
  'linear': linear,
  'hinge': hinge,
  'optima': optima,
  'l1_exact': l1_exact,
  'told_budget': told_budget,
  'l1_max': l1_max,
  'kimi': kimi,
  'efficient': efficient,
  'laser': laser,
  'overlong': overlong,
}


def term(
  name: str,
  options: Mapping[str, float],
  *,
  scores: Array,
  lengths: Array,
  questions: Array,
  price: Array | float = 0.0,
  budgets: Array | None = None,
  reference_nll: Array | None = None,
) -> Array:
  """Computes the term of the length reward `name`, float64 `[E]`.

  Args:
    name: Key of `LENGTH_REWARDS`, or 'module:function' of a user.
    options: Options of the length reward.
    scores: Task scores, in `[0, 1]`, `[E]`.
    lengths: Costs of the episodes in the unit of `reward.cost`, tokens written by default, `[E]`.
    questions: Index of each episode's question, int `[E]`.
    price: `lambda_tok`, scalar or `[E]`.
    budgets: Budgets shown to the team, `[E]`; None without budget conditioning.
    reference_nll: Highest mean NLL (nats per token) of an episode's messages under the reference
      policy, `[E]`; None if not measured, which is 1 for a user's length reward.
  """
  if reference_nll is None and plugins.is_plugin(name):
    reference_nll = np.ones(len(scores))
  values = (scores, lengths, questions, price, budgets, reference_nll)
  columns = dict(zip(INPUTS, values, strict=True))
  given = [columns[field] for field in read_by(name)]
  field = 'reward.length_reward'
  found = plugins.call(field, name, length_reward(name), *given, **options)
  return plugins.vector(f'{field}={name!r}', found, len(scores), 'episode')


def parse_options(name: str, text: str) -> dict[str, float]:
  """Parses options of a length reward from text such as 'target=20, weight=0.5'.

  Raises:
    ValueError: An option is unknown, repeated, missing or out of range; names
      `reward.length_reward_options` and the remedy.
  """
  where = 'reward.length_reward_options'
  found: dict[str, float] = {}
  for item in filter(None, (part.strip() for part in text.split(','))):
    key, _, value = (part.strip() for part in item.partition('='))
    if key in found:
      raise ValueError(f'{where}={text!r}: {key!r} is given twice.')
    try:
      found[key] = float(value)
    except ValueError:
      raise ValueError(f'{where}={text!r}: {key}={value!r} is not a number.') from None
  known = plugins.options_of(length_reward(name))
  plugins.check_options(where, name, found, known)
  limit, buffer = ({**known, **found}.get(key) for key in ('limit', 'buffer'))
  if limit is not None and buffer is not None and buffer > limit:
    raise ValueError(
      f'{where}={text!r}: buffer={buffer:g} must be at most limit={limit:g}: otherwise '
      'even the shortest answer is penalized.'
    )
  return found


def length_reward(name: str) -> Callable[..., Array]:
  """Returns a length reward by name: key of `LENGTH_REWARDS`, or 'module:function' of a user.

  Raises:
    ValueError: No such length reward, or a user's reads what is not in `INPUTS`.
  """
  found = plugins.find(LENGTH_REWARDS, name, 'reward.length_reward')
  if plugins.is_plugin(name):
    plugins.check_parameters(name, 'reward.length_reward', found, INPUTS)
  return found


def read_by(name: str) -> tuple[str, ...]:
  """Returns those of `INPUTS` that a length reward reads."""
  return plugins.inputs_of(length_reward(name))


def defaults(name: str) -> dict[str, float]:
  """Returns the options of a length reward that have a default."""
  options = plugins.options_of(length_reward(name))
  return {key: value for key, value in options.items() if value is not None}


def _ratio(over: Array, under: Array) -> Array:
  """Returns `over / under`, 0 where `under` is 0 (an all-silent group, equal lengths)."""
  over, under = np.broadcast_arrays(np.asarray(over, float), np.asarray(under, float))
  return np.divide(over, under, out=np.zeros_like(over), where=under != 0)


def _dense(questions: Array) -> Array:
  """Numbers the questions of episodes from 0, int `[E]`."""
  return np.unique(questions, return_inverse=True)[1].reshape(-1)


def _group_mean(values: Array, questions: Array, where: Array) -> Array:
  """Computes each episode's group mean over the episodes `where`, `[E]`, 0 if there are none."""
  dense = _dense(questions)
  kept = where.astype(float)
  return _ratio(np.bincount(dense, values * kept), np.bincount(dense, kept))[dense]


def _group_max(values: Array, questions: Array) -> Array:
  dense = _dense(questions)
  top = np.full(len(dense), -np.inf)
  np.maximum.at(top, dense, values)
  return top[dense]
