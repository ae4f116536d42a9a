"""Policy objectives on packed messages: ratio x surrogate x aggregation, each a few lines.

`T` loss tokens, `M` messages. Every objective returns an unreduced `(total, count)`:
micro-batches and devices are summed first and divided once, so that the mean does not
depend on how the batch was cut. `total / count` is to be *maximised*. A new one is a function
here and a line in `OBJECTIVES`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from agent_gspo import plugins
from agent_gspo.algorithms.objectives import aggregation, masks, packed, ratios, surrogates
from agent_gspo.algorithms.objectives.packed import PackedTokens, message_mean

__all__ = [
  'CLIP_FIELDS',
  'OBJECTIVES',
  'Objective',
  'ObjectiveSpec',
  'PackedTokens',
  'clip_band',
  'from_config',
  'make',
  'message_mean',
  'spec',
]


@chex.dataclass(frozen=True)
class Objective:
  """Sum and count of an objective, and what it did to each message.

  Attributes:
    total: float32 scalar, sum over what the objective is a mean of.
    count: float32 scalar, how many those are: messages, spans or tokens.
    ratio: float32 `[M]`, importance ratio of each message (mean over its tokens for
      token-level ratios).
    clipped: float32 `[M]`, share of the message's tokens at which the clip acted. What either
      holds for padding is not read.
  """

  total: chex.Array
  count: chex.Array
  ratio: chex.Array
  clipped: chex.Array


def _compose(
  x: PackedTokens,
  log_ratio: Callable[[PackedTokens], jax.Array],
  surrogate: Callable[[jax.Array, PackedTokens], surrogates.Surrogate],
  aggregate: Callable[[jax.Array, PackedTokens], aggregation.Aggregate],
) -> Objective:
  packed.check(x)
  log_r = log_ratio(x)
  values, clipped = surrogate(log_r, x)
  if x.importance is not None:
    values *= x.importance
  if x.token_penalty is not None:
    values -= x.token_penalty
  total, count = aggregate(values, x)
  by_message = lambda v: message_mean(v, x) * x.message_mask
  return Objective(
    total=total, count=count, ratio=by_message(jnp.exp(log_r)), clipped=by_message(clipped)
  )


def _clip(low: float, high: float) -> functools.partial:
  return functools.partial(surrogates.clip, low=low, high=high)


def gspo(x: PackedTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Objective:
  """Group Sequence Policy Optimization (Zheng et al. 2025, arXiv 2507.18071, eq. 5-7).

  `s_i = exp(mean_t (log pi(y_it) - log pi_old(y_it)))`,
  `J = mean_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)`.
  The mean is over sequences, never over tokens.
  """
  return _compose(x, ratios.sequence, _clip(clip_low, clip_high), aggregation.sequence_mean)


def gspo_token(x: PackedTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Objective:
  """GSPO-token (arXiv 2507.18071, eq. 13-14).

  `s_it = sg[s_i] * pi(y_it) / sg[pi(y_it)]`,
  `J = mean_i mean_t min(s_it A_it, clip(s_it) A_it)`. Here `A_it = A_i`, where value and
  gradient equal those of `gspo`.
  """
  return _compose(x, ratios.sequence_token, _clip(clip_low, clip_high), aggregation.sequence_mean)


def luspo(x: PackedTokens, *, clip_low: float = 2e-3, clip_high: float = 2.5e-3) -> Objective:
  """Length-Unbiased Sequence Policy Optimization (arXiv 2602.05261).

  `J = mean_i |y_i| min(s_i A_i, clip(s_i) A_i)`: GSPO without the advantage that the mean over
  tokens gives to short sequences. The control for "is it the price or the loss that shortens?".
  """
  return _compose(x, ratios.sequence, _clip(clip_low, clip_high), aggregation.token_sum)


def grpo(x: PackedTokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Objective:
  """Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300, eq. 3).

  Token-level ratios, `J = mean_i mean_t min(r_it A_i, clip(r_it) A_i)`.
  """
  return _compose(x, ratios.token, _clip(clip_low, clip_high), aggregation.sequence_mean)


def dr_grpo(
  x: PackedTokens, *, max_length: float, clip_low: float = 0.2, clip_high: float = 0.2
) -> Objective:
  """Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): `mean_i (1 / max_length) sum_t min(...)`.

  Goes with the advantage `r - mu` (`group_mean`).

  Args:
    x: packed tokens.
    max_length: the cap on a message's tokens. It has no default: it belongs to the run.
    clip_low, clip_high: bounds of the token ratio around 1.
  """
  aggregate = functools.partial(aggregation.constant_length, max_length=max_length)
  return _compose(x, ratios.token, _clip(clip_low, clip_high), aggregate)


def dapo(x: PackedTokens, *, clip_low: float = 0.2, clip_high: float = 0.28) -> Objective:
  """DAPO (Yu et al. 2025, arXiv 2503.14476, eq. 8): clip-higher, mean over all tokens.

  `J = sum_it min(r_it A_i, clip(r_it) A_i) / number of tokens`. `count` is of tokens.
  """
  return _compose(x, ratios.token, _clip(clip_low, clip_high), aggregation.token_mean)


def cispo(x: PackedTokens, *, clip_low: float = 1.0, clip_high: float = 4.0) -> Objective:
  """CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4-5).

  `J = sum_it sg[clip(r_it, 1 - clip_low, 1 + clip_high)] A_i log pi(y_it) / number of tokens`.
  The paper has no lower bound, hence 1.0, and gives no figure for the upper one: 4.0 bounds
  the weight at 5.
  """
  surrogate = functools.partial(surrogates.weighted_likelihood, low=clip_low, high=clip_high)
  return _compose(x, ratios.token, surrogate, aggregation.token_mean)


def gmpo(x: PackedTokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> Objective:
  """Geometric-Mean Policy Optimization (arXiv 2507.20673).

  `J = mean_i A_i exp(mean_t c_it)`, `c_it` the token's log-ratio clipped to `clip_high` where
  `A_i > 0` and to `-clip_low` where `A_i < 0`: the bounds are of the *log*-ratio.

  Raises:
    ValueError: spans are given; the clip would need all tokens of a span at once.
  """
  if x.span_log_ratio is not None:
    raise ValueError('gmpo takes no spans: set the ratio span to "message".')
  surrogate = functools.partial(surrogates.geometric_mean, low=clip_low, high=clip_high)
  return _compose(x, ratios.token, surrogate, aggregation.sequence_mean)


def sapo(x: PackedTokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Objective:
  """Soft Adaptive Policy Optimization (arXiv 2511.20347): a sigmoid gate instead of a clip.

  `J = mean_i mean_t (4 / tau) sigmoid(tau (r_it - 1)) A_i`, `tau` is `tau_positive` where
  `A_i > 0`, else `tau_negative`, at which gradients fade faster. There is no clip to report.
  """
  surrogate = functools.partial(
    surrogates.soft_gate, tau_positive=tau_positive, tau_negative=tau_negative
  )
  return _compose(x, ratios.token, surrogate, aggregation.sequence_mean)


def reinforce(x: PackedTokens) -> Objective:
  """Plain policy gradient: `J = mean_i A_i sum_t log pi(y_it)`.

  The log-likelihood of the whole message times its advantage, without a ratio, a clip or a
  stopped gradient. What RLOO (arXiv 2402.14740) and REINFORCE++ (arXiv 2501.03262) build on:
  they differ in the advantage. Exact for the first optimiser step of a rollout only.
  """
  return _compose(x, ratios.token, surrogates.likelihood, aggregation.token_sum)


def imitation(x: PackedTokens) -> Objective:
  """Mean log-likelihood a token: `J = mean_it log pi(y_it)`; `count` is of tokens.

  For warm starts; advantages and old log-probs are not read. Not the mean over messages,
  in which the one token of a silent message would weigh as much as all of a long one and
  silence would be learnt far more often than it was shown.
  """
  packed.check(x)
  total, count = aggregation.token_mean(packed.logprobs(x), x)
  zeros = jnp.zeros_like(x.message_mask)
  return Objective(total=total, count=count, ratio=zeros, clipped=zeros)


@dataclasses.dataclass(frozen=True)
class ObjectiveSpec:
  """An objective with what a config needs to know of it; called, it is the function.

  Attributes:
    function: `function(x, **options) -> Objective`; its own defaults are the paper's.
    paper: arXiv id.
    sequence_ratio: whether a ratio is that of a whole sequence, not of a token.
    spans: whether a sequence may be a span of messages.
  """

  function: Callable[..., Objective]
  paper: str
  sequence_ratio: bool = False
  spans: bool = True

  def __call__(self, x: PackedTokens, **options: float) -> Objective:
    return self.function(x, **options)

  @property
  def options(self) -> dict[str, float | None]:
    """The options it takes and their defaults; None where it must be set."""
    parameters = list(inspect.signature(self.function).parameters.values())[1:]
    return {p.name: None if p.default is p.empty else p.default for p in parameters}


OBJECTIVES: dict[str, ObjectiveSpec] = {
  'gspo': ObjectiveSpec(gspo, '2507.18071', sequence_ratio=True),
  'gspo_token': ObjectiveSpec(gspo_token, '2507.18071', sequence_ratio=True),
  'luspo': ObjectiveSpec(luspo, '2602.05261', sequence_ratio=True),
  'grpo': ObjectiveSpec(grpo, '2402.03300'),
  'dr_grpo': ObjectiveSpec(dr_grpo, '2503.20783'),
  'dapo': ObjectiveSpec(dapo, '2503.14476'),
  'cispo': ObjectiveSpec(cispo, '2506.13585'),
  'gmpo': ObjectiveSpec(gmpo, '2507.20673', spans=False),
  'sapo': ObjectiveSpec(sapo, '2511.20347'),
  'reinforce': ObjectiveSpec(reinforce, '2402.14740'),
}


# Options that are fields of the config's section `objective`, never of its `options`.
CLIP_FIELDS = ('clip_low', 'clip_high')


def spec(name: str) -> ObjectiveSpec:
  """A named objective: key of `OBJECTIVES`, or 'module:function' of a user's own.

  A function of your own takes `PackedTokens`, and its options as keywords. It is taken for one
  with ratios of tokens; hand in an `ObjectiveSpec` to say otherwise.

  Raises:
    ValueError: there is no such objective, or one with parameters that have no name.
  """
  found = plugins.find(OBJECTIVES, name, 'objective.name')
  found = found if isinstance(found, ObjectiveSpec) else ObjectiveSpec(found, paper='')
  if plugins.is_plugin(name):
    with plugins.guard(plugins.described('objective.name', name), ''):
      parameters = inspect.signature(found.function).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters) or not parameters:
      raise plugins.PluginError(
        f'objective.name={name!r} must take PackedTokens, then each option by its name.'
      )
  return found


def make(
  name: str, *, opsm_threshold: float | None = None, **options: float
) -> Callable[[PackedTokens], Objective]:
  """A named objective with its options bound, behind the off-policy mask if one is wanted.

  Args:
    name: see `spec`.
    opsm_threshold: of `masks.opsm`; None for no mask.
    **options: see `ObjectiveSpec.options`.

  Raises:
    ValueError: an unknown name, an option that it does not take, or one that is missing.
  """
  objective = spec(name)
  known = objective.options
  if unknown := sorted(set(options) - set(known)):
    takes = ', '.join(known) or 'none'
    raise ValueError(f'objective {name!r} has no option {unknown[0]!r}; it takes {takes}.')
  if missing := [k for k, default in known.items() if default is None and k not in options]:
    raise ValueError(f'objective {name!r} needs option {missing[0]!r}.')
  call = functools.partial(_called, name, objective, options)
  if opsm_threshold is None:
    return call
  return lambda x: call(masks.opsm(x, threshold=opsm_threshold))


def _called(
  name: str, objective: ObjectiveSpec, options: Mapping[str, float], x: PackedTokens
) -> Objective:
  """Returns what an objective returns; of the user's own, shapes and types are checked."""
  found = plugins.call('objective.name', name, objective, x, **options)
  if not plugins.is_plugin(name):
    return found
  where = plugins.described('objective.name', name)
  if not isinstance(found, Objective):
    raise plugins.PluginError(
      f'{where} returned {plugins.kind_of(found)}; must return an agent_gspo.algorithms.Objective.'
    )
  by_message = x.advantages.shape
  return Objective(
    total=_array(f'{where}: total', found.total, ()),
    count=_array(f'{where}: count', found.count, ()),
    ratio=_array(f'{where}: ratio', found.ratio, by_message),
    clipped=_array(f'{where}: clipped', found.clipped, by_message),
  )


def _array(where: str, value: Any, shape: tuple[int, ...]) -> jax.Array:
  """Returns what a user's own objective returned as float32 of this shape."""
  must = f'must be real numbers of shape {shape}'
  try:
    found = jnp.asarray(value)
  except (TypeError, ValueError):
    raise plugins.PluginError(f'{where} is {plugins.kind_of(value)}; {must}.') from None
  if found.shape != shape or jnp.iscomplexobj(found):
    raise plugins.PluginError(f'{where} is {found.dtype} of shape {found.shape}; {must}.')
  return found.astype(jnp.float32)


def trace(
  name: str, objective: Callable[[PackedTokens], Objective], given: Collection[str] = ()
) -> None:
  """Traces an objective of the user's own and its gradient once; computes nothing.

  Args:
    name: of the objective; those of `OBJECTIVES` are known to be right.
    objective: with its options bound, see `from_config`.
    given: optional fields of `PackedTokens` that it is called with.

  Raises:
    PluginError: it cannot be traced, or returns another shape than it must.
  """
  if not plugins.is_plugin(name):
    return
  tokens, messages = jnp.zeros(6), jnp.zeros(3)  # two lengths, so that none stands for the other
  by_message = ('clip_scale', 'span_log_ratio', 'span_share')
  x = PackedTokens(
    logprobs=tokens,
    old_logprobs=tokens,
    message_ids=tokens.astype(jnp.int32),
    token_mask=tokens,
    advantages=messages,
    message_mask=messages,
    **{field: messages if field in by_message else tokens for field in given},
  )
  total = lambda logprobs, x: objective(dataclasses.replace(x, logprobs=logprobs)).total
  plugins.call('objective.name', name, jax.eval_shape, jax.grad(total), tokens, x)


def clip_band(section: Mapping[str, Any]) -> dict[str, float]:
  """The bounds of the clip that the config's section `objective` describes, by field.

  They are the section's, or else the objective's own; none where it has no such option.

  Raises:
    ValueError: a bound is set that the objective does not take.
  """
  name, band = section['name'], {}
  known = spec(name).options
  for field in CLIP_FIELDS:
    given = section[field]
    if given is not None and field not in known:
      raise ValueError(
        f'objective.{field}={given}: objective {name!r} takes no {field}. Set it to None in the '
        'config file (no flag can), or set another objective.name.'
      )
    value = known.get(field) if given is None else given
    if value is not None:
      band[field] = value
  return band


def from_config(
  section: Mapping[str, Any], *, max_length: int
) -> Callable[[PackedTokens], Objective]:
  """The objective that the config's section `objective` describes.

  Args:
    section: resolved.
    max_length: tokens of the longest message, for objectives that divide by it.

  Raises:
    ValueError: an option that the objective does not take, or a span that it cannot have.
  """
  name = section['name']
  given = clip_band(section) | section['options']
  objective = spec(name)
  if 'max_length' in objective.options:
    given.setdefault('max_length', float(max_length))
  if section['ratio_span'] != 'message' and not objective.spans:
    raise ValueError(
      f'objective.ratio_span={section["ratio_span"]!r}: {name!r} takes messages only.'
    )
  return make(name, opsm_threshold=section['opsm_threshold'], **given)
