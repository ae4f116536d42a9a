"""Computes policy objectives on packed messages as ratio x surrogate x aggregation, see `parts`.

`T` loss tokens, `M` messages. Every objective returns an unreduced `(total, count)`: micro-batches
and devices are summed first and divided once, so that the mean does not depend on how the batch
was split. `total / count` is to be *maximized*. To add one, write a function here and a line in
`OBJECTIVES`.
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
from agent_gspo.algorithms.objectives import kl, off_policy, parts
from agent_gspo.algorithms.objectives.parts import PackedTokens, message_mean
from agent_gspo.algorithms.options import ObjectiveOptions


@chex.dataclass(frozen=True)
class Objective:
  """Sum and count of an objective, with per-message diagnostics.

  Attributes:
    total: Sum of the terms that the objective averages, float32 scalar.
    count: Number of those terms (messages, spans or tokens), float32 scalar.
    ratio: Importance ratio of each message (mean over its tokens for token-level ratios), float32
      `[M]`; arbitrary for padding.
    clipped: Share of the message's tokens that were clipped, float32 `[M]`; arbitrary for padding.
  """

  total: chex.Array
  count: chex.Array
  ratio: chex.Array
  clipped: chex.Array


def _compose(
  x: PackedTokens,
  log_ratio: Callable[[PackedTokens], jax.Array],
  surrogate: Callable[[jax.Array, PackedTokens], parts.Surrogate],
  aggregate: Callable[[jax.Array, PackedTokens], parts.Aggregate],
) -> Objective:
  parts.check(x)
  log_r = log_ratio(x)  # [T]
  values, clipped = surrogate(log_r, x)  # [T] each
  if x.importance is not None:
    values *= x.importance
  if x.token_penalty is not None:
    values -= x.token_penalty
  total, count = aggregate(values, x)  # scalars
  by_message = lambda v: message_mean(v, x) * x.message_mask
  return Objective(
    total=total, count=count, ratio=by_message(jnp.exp(log_r)), clipped=by_message(clipped)
  )


def _clip(low: float, high: float) -> functools.partial:
  return functools.partial(parts.clip, low=low, high=high)


def gspo(x: PackedTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Objective:
  """Computes Group Sequence Policy Optimization (Zheng et al. 2025, arXiv 2507.18071, eq. 5-7).

  `s_i = exp(mean_t (log pi(y_it) - log pi_old(y_it)))`,
  `J = mean_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)`.
  The mean is over sequences, never over tokens.
  """
  return _compose(x, parts.sequence_ratio, _clip(clip_low, clip_high), parts.sequence_mean)


def gspo_token(x: PackedTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Objective:
  """Computes GSPO-token (arXiv 2507.18071, eq. 13-14).

  `s_it = sg[s_i] * pi(y_it) / sg[pi(y_it)]`,
  `J = mean_i mean_t min(s_it A_it, clip(s_it) A_it)`. Here `A_it = A_i`, so value and gradient
  equal those of `gspo`.
  """
  return _compose(x, parts.sequence_token_ratio, _clip(clip_low, clip_high), parts.sequence_mean)


def luspo(x: PackedTokens, *, clip_low: float = 2e-3, clip_high: float = 2.5e-3) -> Objective:
  """Computes Length-Unbiased Sequence Policy Optimization (arXiv 2602.05261).

  `J = mean_i |y_i| min(s_i A_i, clip(s_i) A_i)`: GSPO without the bias of the mean over tokens
  towards short sequences. Serves as control: does the price or the loss shorten messages?
  """
  return _compose(x, parts.sequence_ratio, _clip(clip_low, clip_high), parts.token_sum)


def grpo(x: PackedTokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Objective:
  """Computes Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300, eq. 3).

  Token-level ratios, `J = mean_i mean_t min(r_it A_i, clip(r_it) A_i)`.
  """
  return _compose(x, parts.token_ratio, _clip(clip_low, clip_high), parts.sequence_mean)


def dr_grpo(
  x: PackedTokens, *, max_length: float, clip_low: float = 0.2, clip_high: float = 0.2
) -> Objective:
  """Computes Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): `mean_i sum_t min(...) / max_length`.

  Used with the advantage `r - mu` (`group_mean`).

  Args:
    x: Packed tokens.
    max_length: Cap on a message's tokens, specific to the run, hence without default.
    clip_low, clip_high: Bounds of the token ratio around 1.
  """
  aggregate = functools.partial(parts.constant_length, max_length=max_length)
  return _compose(x, parts.token_ratio, _clip(clip_low, clip_high), aggregate)


def dapo(x: PackedTokens, *, clip_low: float = 0.2, clip_high: float = 0.28) -> Objective:
  """Computes DAPO (Yu et al. 2025, arXiv 2503.14476, eq. 8): clip-higher, mean over all tokens.

  `J = sum_it min(r_it A_i, clip(r_it) A_i) / number of tokens`. `count` is the number of tokens.
  """
  return _compose(x, parts.token_ratio, _clip(clip_low, clip_high), parts.token_mean)


def cispo(x: PackedTokens, *, clip_low: float = 1.0, clip_high: float = 4.0) -> Objective:
  """Computes CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4-5).

  `J = sum_it sg[clip(r_it, 1 - clip_low, 1 + clip_high)] A_i log pi(y_it) / number of tokens`.
  The paper has no lower bound, hence 1.0, and gives no number for the upper one: 4.0 limits the
  weight to 5.
  """
  surrogate = functools.partial(parts.weighted_likelihood, low=clip_low, high=clip_high)
  return _compose(x, parts.token_ratio, surrogate, parts.token_mean)


def gmpo(x: PackedTokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> Objective:
  """Computes Geometric-Mean Policy Optimization (arXiv 2507.20673).

  `J = mean_i A_i exp(mean_t c_it)`, with `c_it` the token's log-ratio clipped to `clip_high` where
  `A_i > 0` and to `-clip_low` where `A_i < 0`: the bounds apply to the *log*-ratio.

  Raises:
    ValueError: Spans are given; the clip would need all tokens of a span at once.
  """
  if x.span_log_ratio is not None:
    raise ValueError('objective.ratio_span must be "message" with gmpo.')
  surrogate = functools.partial(parts.geometric_mean, low=clip_low, high=clip_high)
  return _compose(x, parts.token_ratio, surrogate, parts.sequence_mean)


def sapo(x: PackedTokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Objective:
  """Computes Soft Adaptive Policy Optimization (arXiv 2511.20347): a sigmoid gate, not a clip.

  `J = mean_i mean_t (4 / tau) sigmoid(tau (r_it - 1)) A_i`, where `tau` is `tau_positive` if
  `A_i > 0`, else `tau_negative`, which makes gradients decay faster. `clipped` is 0.
  """
  surrogate = functools.partial(
    parts.soft_gate, tau_positive=tau_positive, tau_negative=tau_negative
  )
  return _compose(x, parts.token_ratio, surrogate, parts.sequence_mean)


def reinforce(x: PackedTokens) -> Objective:
  """Computes the plain policy gradient: `J = mean_i A_i sum_t log pi(y_it)`.

  Multiplies the log-likelihood of the whole message by its advantage, without ratio, clip or
  stop-gradient. RLOO (arXiv 2402.14740) and REINFORCE++ (arXiv 2501.03262) use it with different
  advantages. Exact only for the first optimizer step of a rollout.
  """
  return _compose(x, parts.token_ratio, parts.likelihood, parts.token_sum)


def imitation(x: PackedTokens) -> Objective:
  """Computes the mean log-likelihood per token, `J = mean_it log pi(y_it)`, for SFT.

  `count` is the number of tokens; advantages and old log-probs are not read. A mean over messages
  would weigh the one token of a silent message like all tokens of a long one, and silence would be
  overrepresented.
  """
  parts.check(x)
  total, count = parts.token_mean(parts.logprobs(x), x)
  zeros = jnp.zeros_like(x.message_mask)
  return Objective(total=total, count=count, ratio=zeros, clipped=zeros)


def reverse_kl(x: PackedTokens) -> Objective:
  """Computes on-policy distillation: minus the mean of `kl.k2` per token.

  `old_logprobs` are the teacher's, see `training.distillation`. The expected gradient is that of
  `KL(pi || teacher)` at each token given the tokens before it: MiniLLM's (arXiv 2306.08543) without
  the return of later tokens. Advantages are not read; all ratios are 1.
  """
  parts.check(x)
  total, count = parts.token_mean(-kl.k2(x.logprobs, x.old_logprobs), x)
  mask = x.message_mask
  return Objective(total=total, count=count, ratio=mask, clipped=jnp.zeros_like(mask))


@dataclasses.dataclass(frozen=True)
class ObjectiveSpec:
  """Callable objective with metadata for configs.

  Attributes:
    function: `function(x, **options) -> Objective`, with the paper's defaults.
    sequence_ratio: True for sequence-level ratios, False for token-level ones.
    spans: True if a sequence may be a span of messages.
  """

  function: Callable[..., Objective]
  sequence_ratio: bool = False
  spans: bool = True

  def __call__(self, x: PackedTokens, **options: float) -> Objective:
    return self.function(x, **options)

  @property
  def options(self) -> dict[str, float | None]:
    """Returns the options with their defaults; None for required ones."""
    parameters = list(inspect.signature(self.function).parameters.values())[1:]
    return {p.name: None if p.default is p.empty else p.default for p in parameters}


OBJECTIVES: dict[str, ObjectiveSpec] = {
  'gspo': ObjectiveSpec(gspo, sequence_ratio=True),
  'gspo_token': ObjectiveSpec(gspo_token, sequence_ratio=True),
  'luspo': ObjectiveSpec(luspo, sequence_ratio=True),
  'grpo': ObjectiveSpec(grpo),
  'dr_grpo': ObjectiveSpec(dr_grpo),
  'dapo': ObjectiveSpec(dapo),
  'cispo': ObjectiveSpec(cispo),
  'gmpo': ObjectiveSpec(gmpo, spans=False),
  'sapo': ObjectiveSpec(sapo),
  'reinforce': ObjectiveSpec(reinforce),
}


# Options set by fields of the config section `objective`, not by its `options`.
CLIP_FIELDS = ('clip_low', 'clip_high')


def spec(name: str) -> ObjectiveSpec:
  """Returns a named objective: key of `OBJECTIVES`, or 'module:function' of a user.

  A user's function takes `PackedTokens`, and its options as keywords. It is assumed to have
  token-level ratios; provide an `ObjectiveSpec` to change that.

  Raises:
    ValueError: No such objective, or it has `*args` or `**kwargs`.
  """
  found = plugins.find(OBJECTIVES, name, 'objective.name')
  found = found if isinstance(found, ObjectiveSpec) else ObjectiveSpec(found)
  if plugins.is_plugin(name):
    with plugins.guard(f'objective.name={name!r}', ''):
      parameters = inspect.signature(found.function).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters) or not parameters:
      raise plugins.PluginError(
        f'objective.name={name!r} must take PackedTokens, then each option by its name.'
      )
  return found


def make(
  name: str, *, opsm_threshold: float | None = None, **options: float
) -> Callable[[PackedTokens], Objective]:
  """Binds the options of a named objective, with an optional off-policy mask.

  Args:
    name: Name, see `spec`.
    opsm_threshold: Threshold of `off_policy.opsm`; None for no mask.
    **options: Options, see `ObjectiveSpec.options`.

  Raises:
    ValueError: The name is unknown, or an option is unknown, missing or out of range.
  """
  objective = spec(name)
  plugins.check_options('objective.options', name, options, objective.options)
  call = functools.partial(_called, name, objective, options)
  if opsm_threshold is None:
    return call
  return lambda x: call(off_policy.opsm(x, threshold=opsm_threshold))


def _called(
  name: str, objective: ObjectiveSpec, options: Mapping[str, float], x: PackedTokens
) -> Objective:
  """Calls an objective; checks shapes and types of a user's own."""
  found = plugins.call('objective.name', name, objective, x, **options)
  if not plugins.is_plugin(name):
    return found
  where = f'objective.name={name!r}'
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
  """Converts a value returned by a user's objective to float32 and checks its shape."""
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
  """Traces a user's objective and its gradient once, without computing them.

  Args:
    name: Name of the objective; keys of `OBJECTIVES` are not traced.
    objective: Objective with its options bound, see `from_config`.
    given: Optional fields of `PackedTokens` passed in training.

  Raises:
    PluginError: It cannot be traced, or returns a wrong shape.
  """
  if not plugins.is_plugin(name):
    return
  tokens, messages = jnp.zeros(6), jnp.zeros(3)  # [T], [M]: different, to detect mixed-up shapes
  by_message = ('span_log_ratio', 'span_share')
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


def clip_band(options: ObjectiveOptions) -> dict[str, float]:
  """Returns the clip bounds of the config section `objective`, by field.

  Unset bounds are the objective's defaults; fields that it does not have are omitted.

  Raises:
    ValueError: A bound is set that the objective does not have.
  """
  name, band = options.name, {}
  known = spec(name).options
  for field in CLIP_FIELDS:
    given = getattr(options, field)
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
  options: ObjectiveOptions, *, max_length: int
) -> Callable[[PackedTokens], Objective]:
  """Builds the objective of the config section `objective`.

  Args:
    options: Resolved section.
    max_length: Tokens of the longest message, for objectives that divide by it.

  Raises:
    ValueError: The objective does not support an option or the ratio span.
  """
  if options.teacher:
    return reverse_kl
  name = options.name
  given = clip_band(options) | options.options
  objective = spec(name)
  if 'max_length' in objective.options:
    given.setdefault('max_length', float(max_length))
  if options.ratio_span != 'message' and not objective.spans:
    raise ValueError(f'objective.ratio_span={options.ratio_span!r} must be "message" for {name!r}.')
  return make(name, opsm_threshold=options.opsm_threshold, **given)
