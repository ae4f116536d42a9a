"""Builds packed tokens, and computes every objective by float64 loops from the formulas."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.algorithms.objectives.losses import OBJECTIVES, imitation
from agent_gspo.algorithms.objectives.parts import PackedTokens
from agent_gspo.algorithms.objectives.spans import span_statistics

LOW, HIGH = 0.1, 0.2  # asymmetric, so that a swapped pair shows
LENGTHS = (1, 5, 3, 8, 1, 2, 4, 1, 6, 3)
TOKENS = sum(LENGTHS)
MESSAGES = len(LENGTHS)
PADDED_MESSAGES, PADDED_TOKENS = 2, 7
PER_TOKEN = ('logprobs', 'old_logprobs', 'message_ids', 'token_mask')

# Options that differ from the defaults and from each other.
OPTIONS = {
  **{name: {'clip_low': LOW, 'clip_high': HIGH} for name in ('gspo', 'gspo_token', 'luspo')},
  **{name: {'clip_low': LOW, 'clip_high': HIGH} for name in ('grpo', 'dapo', 'cispo', 'gmpo')},
  'dr_grpo': {'clip_low': LOW, 'clip_high': HIGH, 'max_length': 16.0},
  'sapo': {'tau_positive': 0.7, 'tau_negative': 1.9},
  'reinforce': {},
  'imitation': {},
}
WITH_CLIP = tuple(name for name, options in OPTIONS.items() if 'clip_low' in options)
SEQUENCE_RATIO = ('gspo', 'gspo_token', 'luspo')

# Author and episode of each message, and the span it belongs to.
EPISODE = np.asarray([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
AGENT = np.asarray([0, 1, 0, 0, 1, 2, 2, 0, 2, 1])
SPAN_OF = {
  'message': np.arange(10),
  'agent': np.asarray([0, 1, 0, 2, 3, 6, 6, 4, 6, 5]),
  'episode': EPISODE,
}


def objective(name: str):
  """Returns the objective with its `OPTIONS`."""
  return imitation if name == 'imitation' else functools.partial(OBJECTIVES[name], **OPTIONS[name])


@functools.cache
def _compiled(name: str):
  def total(logprobs, x):
    result = objective(name)(x.replace(logprobs=logprobs))
    return result.total, result

  return jax.jit(jax.value_and_grad(total, has_aux=True))


def run(name: str, x: PackedTokens):
  """Returns the objective, and the gradient of its total with respect to the log-probs."""
  (_, result), gradient = _compiled(name)(x.logprobs, x)
  return result, np.asarray(gradient)


def case(seed: int = 0, spread: float = 0.3, dtype=np.float32, scramble: bool = True):
  """Returns packed tokens with ratios on both sides of both clips, and `A` of both signs."""
  rng = np.random.default_rng(seed)
  owner = np.repeat(np.arange(MESSAGES), LENGTHS)
  drift = np.tile([-0.5, 0.5, -0.03, 0.04, 0.6], 2)[owner]
  old = rng.normal(-2.0, 1.0, len(owner))
  new = old + drift + rng.normal(0.0, spread, len(owner))
  # Padding holds junk, and says that it belongs to message 0.
  junk = rng.normal(0.0, 30.0, (2, PADDED_TOKENS))
  new, old = np.concatenate([new, junk[0]]), np.concatenate([old, junk[1]])
  owner = np.concatenate([owner, np.zeros(PADDED_TOKENS, int)])
  mask = np.arange(len(owner)) < TOKENS
  order = rng.permutation(len(owner)) if scramble else np.arange(len(owner))
  advantages = np.concatenate([[1.3, 0.7, -0.4, -2.0, 0.9], [-1.1, -0.6, 0.8, 0.0, -0.2], [5, -5]])
  return PackedTokens(
    logprobs=jnp.asarray(new[order], dtype),
    old_logprobs=jnp.asarray(old[order], dtype),
    message_ids=jnp.asarray(owner[order], jnp.int32),
    token_mask=jnp.asarray(mask[order], dtype),
    advantages=jnp.asarray(advantages, dtype),
    message_mask=jnp.asarray(np.arange(len(advantages)) < MESSAGES, dtype),
  )


def with_options(x: PackedTokens, seed: int = 0) -> PackedTokens:
  """Adds token weights (some 0), importance weights and a penalty."""
  rng = np.random.default_rng(seed)
  weights = rng.choice([0.0, 0.3, 1.0], len(x.logprobs))
  weights[np.asarray(x.message_ids) == 6] = 0.0  # a message of which nothing is selected
  dtype = x.logprobs.dtype
  return x.replace(
    token_weights=jnp.asarray(weights, dtype),
    importance=jnp.asarray(rng.uniform(0.2, 2.0, len(weights)), dtype),
    token_penalty=jnp.asarray(rng.normal(size=len(weights)), dtype),
  )


def spanned(ratio_span: str, seed: int = 0, constant: bool = True):
  """Returns a case whose messages form spans; `constant` gives a span one advantage."""
  x = case(seed)
  span = np.concatenate([SPAN_OF[ratio_span], [10, 11]])
  gap = np.asarray(x.logprobs - x.old_logprobs, np.float64) * np.asarray(x.token_mask)
  owner = np.asarray(x.message_ids)
  sums = np.bincount(owner, gap, len(span))
  tokens = np.bincount(owner, np.asarray(x.token_mask), len(span))
  log_ratio, share = span_statistics(sums, tokens, span)
  by_span = np.asarray([1.3, -2.0, 0.6, -0.7, 0.9, -1.1, 0.8, 0.4, -0.3, 1.0, 0.0, 0.0])
  advantages = by_span[span] if constant else np.asarray(x.advantages)
  return x.replace(
    span_log_ratio=jnp.asarray(log_ratio),
    span_share=jnp.asarray(share),
    advantages=jnp.asarray(advantages, jnp.float32),
  ), span


def _ppo(r, advantage, low, high):
  """Returns `(value, whether it was clipped)`, by cases, without min and clip."""
  if advantage > 0 and r > 1 + high:
    return advantage * (1 + high), True
  if advantage < 0 and r < 1 - low:
    return advantage * (1 - low), True
  return advantage * r, False


def _token_values(name, new, old, live, advantage, weights, options):
  """Returns surrogate, ratio and clip of each token of one message."""
  low, high = options.get('clip_low'), options.get('clip_high')
  if name in ('gspo', 'luspo') and (weights == 1).all():
    ratios = np.full(len(new), np.prod(np.exp(live - old)) ** (1 / len(new)))
  elif name in SEQUENCE_RATIO:
    ratios = np.prod(np.exp(new - old)) ** (1 / len(new)) * np.exp(live) / np.exp(new)
  else:
    ratios = np.exp(live - old)
  if name in (*SEQUENCE_RATIO, 'grpo', 'dr_grpo', 'dapo'):
    terms = [_ppo(r, advantage, low, high) for r in ratios]
    return np.asarray([t[0] for t in terms]), ratios, [t[1] for t in terms]
  if name == 'cispo':
    frozen = np.exp(new - old)
    weight = np.where(frozen > 1 + high, 1 + high, np.where(frozen < 1 - low, 1 - low, frozen))
    return weight * advantage * live, ratios, weight != frozen
  if name == 'gmpo':
    cut = [_ppo(1 + np.log(r), np.sign(advantage), low, high) for r in ratios]
    clipped_log = np.asarray([v * np.sign(advantage) - 1 for v, _ in cut])
    mean = np.prod(np.exp(clipped_log * weights)) ** (1 / max(weights.sum(), 1e-9))
    return np.full(len(new), mean * advantage), ratios, [c for _, c in cut]
  nothing = np.zeros(len(new))
  if name == 'sapo':
    tau = options['tau_positive' if advantage > 0 else 'tau_negative']
    gate = 4 / tau / (1 + np.exp(-tau * (ratios - 1)))
    return gate * advantage, ratios, nothing
  return live * (advantage if name == 'reinforce' else 1.0), ratios, nothing


def oracle(name: str, x: PackedTokens, live=None, **options):
  """Returns `(total, count, ratio [M], clipped [M])`, by a loop over messages in float64.

  `live` replaces `x.logprobs` where the gradient of the objective flows, not behind a
  stop-gradient: the derivative with respect to `live` is the gradient.
  """
  options = options or OPTIONS[name]
  x = {k: np.asarray(v, np.float64) for k, v in x.items() if v is not None}
  live = x['logprobs'] if live is None else np.asarray(live, np.float64)
  messages = len(x['advantages'])
  ratio, clipped, total, count = np.zeros(messages), np.zeros(messages), 0.0, 0.0
  for m in range(messages):
    if not x['message_mask'][m]:
      continue
    mine = (x['message_ids'] == m) & (x['token_mask'] > 0)
    new, old, advantage = x['logprobs'][mine], x['old_logprobs'][mine], x['advantages'][m]
    weights = x['token_weights'][mine] if 'token_weights' in x else np.ones(len(new))
    values, ratios, cut = _token_values(name, new, old, live[mine], advantage, weights, options)
    if 'importance' in x and name != 'imitation':
      values = values * x['importance'][mine]
    if 'token_penalty' in x and name != 'imitation':
      values = values - x['token_penalty'][mine]
    if name in ('dapo', 'cispo', 'imitation'):
      total, count = total + (weights * values).sum(), count + weights.sum()
    elif name in ('luspo', 'reinforce', 'dr_grpo'):
      total, count = total + (weights * values).sum() / options.get('max_length', 1.0), count + 1
    else:
      mean = (weights * values).sum() / weights.sum() if weights.sum() else 0.0
      total, count = total + mean, count + 1
    if name != 'imitation':
      ratio[m], clipped[m] = np.mean(ratios), np.mean(cut)
  return total, count, ratio, clipped


def slope(function, at: np.ndarray, h: float = 1e-6) -> np.ndarray:
  """Returns central differences of a scalar `function` in each entry of `at`."""
  at = np.asarray(at, np.float64)
  steps = h * np.eye(len(at))
  return np.asarray([(function(at + s) - function(at - s)) / (2 * h) for s in steps])
