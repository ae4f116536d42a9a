"""Trains and samples LoRA adapters of one frozen model; data and losses are those of clients.

Sequences come whole, one by one, so a row holds one: no prefix tree and no `Learner`.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors
import safetensors.numpy

from agent_gspo.models import lora
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.transformer import (
  Params,
  Transformer,
  head_kernel,
  head_params,
  init_adapters,
)
from agent_gspo.ops import lm_head
from agent_gspo.ops.attention import masks
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler, Samples
from agent_gspo.sampling.shapes import bucket
from agent_gspo.training import state as state_lib
from agent_gspo.training.state import Flat

_ROWS = 4  # sequences of a forward pass
_COLUMNS = 64  # fewest columns of one
_NEW_TOKENS = 16  # fewest columns for sampled tokens

Inputs = Mapping[str, jax.Array]
Settings = Mapping[str, jax.Array]


def _ratio(logprobs: jax.Array, x: Inputs) -> jax.Array:
  return jnp.exp(logprobs - x['logprobs'])


def _clipped(ratio: jax.Array, settings: Settings) -> jax.Array:
  return jnp.clip(ratio, settings['clip_low_threshold'], settings['clip_high_threshold'])


def _cross_entropy(logprobs: jax.Array, x: Inputs, settings: Settings) -> jax.Array:
  return -logprobs * x['weights']


def _importance_sampling(logprobs: jax.Array, x: Inputs, settings: Settings) -> jax.Array:
  return -_ratio(logprobs, x) * x['advantages']


def _ppo(logprobs: jax.Array, x: Inputs, settings: Settings) -> jax.Array:
  ratio = _ratio(logprobs, x)
  return -jnp.minimum(ratio * x['advantages'], _clipped(ratio, settings) * x['advantages'])


def _cispo(logprobs: jax.Array, x: Inputs, settings: Settings) -> jax.Array:
  weight = jax.lax.stop_gradient(_clipped(_ratio(logprobs, x), settings))
  return -weight * logprobs * x['advantages']


def _dro(logprobs: jax.Array, x: Inputs, settings: Settings) -> jax.Array:
  penalty = 0.5 * settings['beta'] * (logprobs - x['logprobs']) ** 2
  return -(logprobs * x['advantages'] - penalty)


_BOUNDS = {'clip_low_threshold': 0.8, 'clip_high_threshold': 1.2}
_OF_POLICY = ('logprobs', 'advantages')


@dataclasses.dataclass(frozen=True)
class Loss:
  """A loss of each token, summed over tokens and sequences.

  Attributes:
    function: Maps target log-probs, inputs and options to losses, `[R, T]` each.
    inputs: Names of its inputs beside `target_tokens`.
    options: Options with their defaults; None for one that must be given.
  """

  function: Callable[[jax.Array, Inputs, Settings], jax.Array]
  inputs: tuple[str, ...] = _OF_POLICY
  options: Mapping[str, float | None] = dataclasses.field(default_factory=dict)


LOSSES = {
  'cross_entropy': Loss(_cross_entropy, ('weights',)),
  'importance_sampling': Loss(_importance_sampling),
  'ppo': Loss(_ppo, options=_BOUNDS),
  'cispo': Loss(_cispo, options=_BOUNDS),
  'dro': Loss(_dro, options={'beta': None}),
}


@dataclasses.dataclass(frozen=True)
class Datum:
  """A sequence to learn from.

  Attributes:
    tokens: Tokens that are read, int32 `[T]`.
    inputs: `target_tokens`, int32 `[T]`, and the inputs of the loss, float32 `[T]` each.
  """

  tokens: np.ndarray
  inputs: Mapping[str, np.ndarray]


@dataclasses.dataclass
class Adapter:
  """A LoRA adapter.

  Attributes:
    config: Architecture with the adapter's rank.
    trainable: Its parameters, float32, flat.
    moments: State of Adam.
    gradient: Gradients since the last step, summed; None if there are none.
  """

  config: ModelConfig
  trainable: Flat
  moments: Any
  gradient: Flat | None = None


class Adapters:
  """Adapters of one model on one device. Not thread-safe."""

  def __init__(self, config: ModelConfig, params: Params):
    """Prepares a model; an adapter of its own is merged into its weights."""
    if config.lora_rank:
      params = lora.merge_adapters(config, lora.one_adapter(params, 0))
    self.config = config.without_adapters()
    self._frozen: Flat = flax.traverse_util.flatten_dict(params)
    self._samplers: dict[tuple[int, int], Sampler] = {}
    self._gradients = functools.cache(self._compile)
    self._stepped = jax.jit(_stepped)

  def make(self, rank: int, seed: int) -> Adapter:
    """Returns a new adapter, which does not change the model yet."""
    config = self.config.replace(lora_rank=rank)
    drawn = init_adapters(config, jax.random.key(seed))
    return Adapter(config, drawn, _adamw(_INITIAL).init(drawn))

  def forward_backward(
    self,
    adapter: Adapter | None,
    data: Sequence[Datum],
    loss: str,
    options: Mapping[str, float],
    *,
    backward: bool = True,
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """Computes log-probs and losses, and adds to the adapter's gradient.

    Args:
      adapter: Adapter of the model; None for the model alone.
      data: Sequences.
      loss: Key of `LOSSES`.
      options: All its options.
      backward: Compute gradients.

    Returns:
      Log-prob of each target, nats, and loss of each token, float32 `[T]`, for each sequence.
    """
    config = adapter.config if adapter else self.config
    program = self._gradients(config, loss, backward)
    given = {name: jnp.float32(value) for name, value in options.items()}
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    order = sorted(range(len(data)), key=lambda i: len(data[i].tokens))
    for first in range(0, len(order), _ROWS):
      some = order[first : first + _ROWS]
      batch = _padded([data[i] for i in some], LOSSES[loss].inputs)
      trainable = adapter.trainable if adapter else {}
      (_, (logprobs, losses)), gradient = program(trainable, self._frozen, batch, given)
      if adapter and backward:
        earlier = adapter.gradient
        adapter.gradient = gradient if earlier is None else jax.tree.map(jnp.add, earlier, gradient)
      for row, i in enumerate(some):
        length = len(data[i].tokens)
        found[i] = np.asarray(logprobs)[row, :length], np.asarray(losses)[row, :length]
    return [found[i] for i in range(len(data))]

  def step(self, adapter: Adapter, options: Mapping[str, float]) -> float:
    """Updates an adapter with AdamW; returns the norm of the gradient before clipping.

    Args:
      adapter: Adapter with a gradient.
      options: `learning_rate`, `beta1`, `beta2`, `eps`, `weight_decay` and `grad_clip_norm` (0:
        not clipped).
    """
    given = {name: jnp.float32(value) for name, value in options.items()}
    adapter.trainable, adapter.moments, norm = self._stepped(
      adapter.trainable, adapter.moments, adapter.gradient, given
    )
    adapter.gradient = None
    return float(norm)

  def sample(
    self,
    adapter: Adapter | None,
    prompt: np.ndarray,
    seeds: Sequence[int],
    *,
    temperature: float,
    stop_ids: Sequence[int],
    limit: int,
  ) -> Samples:
    """Samples continuations of a prompt `[P]`, of at most `limit` tokens, one for each seed."""
    config, columns = adapter.config if adapter else self.config, bucket(limit, _NEW_TOKENS)
    which = config.lora_rank, columns
    if which not in self._samplers:
      self._samplers[which] = Sampler(config, max_new_tokens=columns)
    return self._samplers[which](
      state_lib.merge(adapter.trainable if adapter else {}, self._frozen),
      [prompt] * len(seeds),
      keys.of_seeds(seeds),
      temperature=temperature,
      stop_ids=stop_ids,
      limits=np.full(len(seeds), limit),
    )

  def prompt_logprobs(self, adapter: Adapter | None, prompt: np.ndarray) -> np.ndarray:
    """Returns the log-prob of each token of a prompt, float32 `[P]`; NaN for the first one."""
    if len(prompt) < 2:
      return np.full(len(prompt), np.nan, np.float32)
    inputs = {'target_tokens': prompt[1:], 'weights': np.zeros(len(prompt) - 1, np.float32)}
    datum = Datum(prompt[:-1], inputs)
    ((logprobs, _),) = self.forward_backward(adapter, [datum], 'cross_entropy', {}, backward=False)
    return np.concatenate([[np.float32(np.nan)], logprobs])

  def _compile(self, config: ModelConfig, loss: str, backward: bool) -> Callable[..., Any]:
    """Returns a program from parameters, a batch and options to `((total, outputs), gradient)`."""
    model, function = Transformer(config), LOSSES[loss].function

    def total(trainable, frozen, batch, options):
      params = state_lib.merge(trainable, frozen)
      rows, columns = batch['tokens'].shape
      positions = jnp.broadcast_to(jnp.arange(columns, dtype=jnp.int32), (rows, columns))
      mask = masks.causal(batch['length'], columns)
      hidden, _ = model.apply({'params': params}, batch['tokens'], positions, mask)  # [R, T, D]
      used = positions < batch['length'][:, None]  # [R, T]
      logprobs, _ = lm_head.token_logprobs(
        hidden.reshape(rows * columns, -1),
        head_kernel(head_params(params)),
        batch['target_tokens'].reshape(-1),
        used.reshape(-1),
        entropy=False,
        unsaid=config.unsaid,
        cap=config.logit_cap,
      )
      logprobs = logprobs.reshape(rows, columns)
      losses = jnp.where(used, function(logprobs, batch, options), 0)
      return losses.sum(), (logprobs, losses)

    if backward:
      return jax.jit(jax.value_and_grad(total, has_aux=True))
    return jax.jit(lambda *arguments: (total(*arguments), None))


_INITIAL = {
  'learning_rate': 0.0,
  'beta1': 0.9,
  'beta2': 0.95,
  'eps': 1e-12,
  'weight_decay': 0.0,
  'grad_clip_norm': 0.0,
}


def _adamw(settings: Mapping[str, Any]) -> optax.GradientTransformation:
  bound = settings['grad_clip_norm']
  return optax.chain(
    optax.clip_by_global_norm(jnp.where(bound > 0, bound, jnp.inf)),
    optax.adamw(
      settings['learning_rate'],
      b1=settings['beta1'],
      b2=settings['beta2'],
      eps=settings['eps'],
      weight_decay=settings['weight_decay'],
    ),
  )


def _stepped(trainable: Flat, moments: Any, gradient: Flat, settings: Settings) -> Any:
  """Returns updated parameters and moments, and the norm of the gradient."""
  updates, moments = _adamw(settings).update(gradient, moments, trainable)
  return optax.apply_updates(trainable, updates), moments, optax.tree.norm(gradient)


def _padded(data: Sequence[Datum], inputs: Sequence[str]) -> dict[str, np.ndarray]:
  """Returns `_ROWS` rows of equal length; rows without a sequence have length 0."""
  columns = bucket(max(len(datum.tokens) for datum in data), _COLUMNS)
  batch: dict[str, Any] = {name: np.zeros((_ROWS, columns), np.float32) for name in inputs}
  batch |= {name: np.zeros((_ROWS, columns), np.int32) for name in ('tokens', 'target_tokens')}
  batch['length'] = np.zeros(_ROWS, np.int32)
  for row, datum in enumerate(data):
    length = batch['length'][row] = len(datum.tokens)
    batch['tokens'][row, :length] = datum.tokens
    for name in ('target_tokens', *inputs):
      batch[name][row, :length] = datum.inputs[name]
  return batch


def save(file: pathlib.Path, adapter: Adapter, *, moments: bool) -> None:
  """Writes an adapter, with the state of its optimizer if `moments`."""
  flat = {'/'.join(path): np.asarray(x) for path, x in adapter.trainable.items()}
  if moments:
    flat |= {f'moments/{i}': np.asarray(x) for i, x in enumerate(jax.tree.leaves(adapter.moments))}
  file.parent.mkdir(parents=True, exist_ok=True)
  part = file.with_suffix('.part')
  safetensors.numpy.save_file(flat, part, {'rank': str(adapter.config.lora_rank)})
  part.replace(file)


def rank_of(file: pathlib.Path) -> int:
  """Returns the rank of a saved adapter."""
  with safetensors.safe_open(file, 'numpy') as opened:
    return int(opened.metadata()['rank'])


def load(file: pathlib.Path, like: Adapter, *, moments: bool) -> None:
  """Reads an adapter, with the state of its optimizer if `moments`.

  Args:
    file: Result of `save`.
    like: Adapter that takes the parameters.
    moments: Also restore the optimizer.

  Raises:
    ValueError: The file holds an adapter of another shape, or no optimizer.
  """
  flat = safetensors.numpy.load_file(file)
  leaves, tree = jax.tree.flatten(like.moments)
  saved = [flat.pop(f'moments/{i}', None) for i in range(len(leaves))]
  found = {tuple(name.split('/')): jnp.asarray(x) for name, x in flat.items()}
  if jax.tree.map(np.shape, found) != jax.tree.map(np.shape, like.trainable):
    raise ValueError(f'{file.stem} is an adapter of another model or rank.')
  if moments and any(x is None for x in saved):
    raise ValueError(f'{file.stem} holds no optimizer state; load it without.')
  like.trainable, like.gradient = found, None
  like.moments = (
    jax.tree.unflatten(tree, map(jnp.asarray, saved)) if moments else _adamw(_INITIAL).init(found)
  )
