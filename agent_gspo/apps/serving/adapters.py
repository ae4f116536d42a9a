"""Trains and samples LoRA adapters of one frozen model, with data and losses from clients."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from agent_gspo.ops.attention.masks import TreeMask
from agent_gspo.packing import prefix_tree
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler, Samples
from agent_gspo.sampling.shapes import bucket
from agent_gspo.sharding.placement import ONE_DEVICE
from agent_gspo.training import state as state_lib
from agent_gspo.training.state import Flat

_ROWS = 4  # most rows of a forward pass
_COLUMNS = 64, 512  # of a row: fewest, and most unless a sequence is longer
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
  """Per-token loss, summed over tokens and sequences.

  Attributes:
    function: Maps target log-probs, inputs and options to losses, `[N]` each.
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
  """Training sequence.

  Attributes:
    tokens: Input tokens, int32 `[T]`.
    inputs: `target_tokens`, int32 `[T]`, and the inputs of the loss, float32 `[T]` each.
  """

  tokens: np.ndarray
  inputs: Mapping[str, np.ndarray]


@dataclasses.dataclass
class Adapter:
  """LoRA adapter with its optimizer.

  Attributes:
    config: Architecture with the adapter's rank.
    trainable: Parameters, a flat dict of float32 arrays.
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
    self._frozen: Flat = flax.traverse_util.flatten_dict(_committed(params))
    self._samplers: dict[tuple[int, int], Sampler] = {}
    self._gradients = functools.cache(self._compile)
    self._stepped = jax.jit(_stepped)

  def make(self, rank: int, seed: int) -> Adapter:
    """Returns a new adapter, which adds 0 to the model until its first step."""
    config = self.config.replace(lora_rank=rank)
    drawn = init_adapters(config, jax.random.key(seed))
    return Adapter(config, *_committed((drawn, _adamw(_INITIAL).init(drawn))))

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
    for some, batch in _packed(data, LOSSES[loss].inputs):
      trainable = adapter.trainable if adapter else {}
      (_, outputs), gradient = program(trainable, self._frozen, batch, given)
      if adapter and backward:
        earlier = adapter.gradient
        adapter.gradient = gradient if earlier is None else jax.tree.map(jnp.add, earlier, gradient)
      ends = np.cumsum([len(data[i].tokens) for i in some])
      logprobs, losses = (np.split(np.asarray(x)[: ends[-1]], ends[:-1]) for x in outputs)
      found |= dict(zip(some, zip(logprobs, losses, strict=True), strict=True))
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
    prompts: Sequence[np.ndarray],
    seeds: Sequence[int],
    *,
    temperature: float,
    stop_ids: Sequence[int],
    limits: Sequence[int],
  ) -> Samples:
    """Samples a continuation of each prompt `[P]`, with a seed and a limit in tokens of its own."""
    config, columns = adapter.config if adapter else self.config, bucket(max(limits), _NEW_TOKENS)
    which = config.lora_rank, columns
    if which not in self._samplers:
      self._samplers[which] = Sampler(config, max_new_tokens=columns)
    return self._samplers[which](
      state_lib.merge(adapter.trainable if adapter else {}, self._frozen),
      prompts,
      keys.of_seeds(seeds),
      temperature=temperature,
      stop_ids=stop_ids,
      limits=np.asarray(limits),
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
      mask = TreeMask(batch['subtree_end'])
      hidden, _ = model.apply({'params': params}, batch['tokens'], batch['positions'], mask)
      logprobs, _ = lm_head.token_logprobs(
        hidden.reshape(-1, hidden.shape[-1])[batch['source']],  # [R, T, D] -> [P, D]
        head_kernel(head_params(params)),
        batch['target'],
        batch['target'] >= 0,
        entropy=False,
        unsaid=config.unsaid,
        cap=config.logit_cap,
      )
      logprobs = logprobs[batch['pair']]  # [P] -> [N]
      losses = jnp.where(batch['used'], function(logprobs, batch, options), 0)
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


def _committed(tree: Any) -> Any:
  """Commits arrays to the device, so that no program is compiled twice."""
  return ONE_DEVICE.put(tree, None)


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


def _packed(
  data: Sequence[Datum], inputs: Sequence[str]
) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
  """Packs sequences into batches of rows; yields the indices of its sequences with each batch.

  Sequences of a row share the columns of equal prefixes, and the log-probs of equal targets there:
  `P` pairs of `source`, a column of the `R * T`, and `target` (-1 in padding). `pair` maps each of
  `N` tokens, sequence by sequence, to its pair; `used` is False in padding.
  """
  fewest, most = _COLUMNS
  sequences = [datum.tokens for datum in data]
  tree = prefix_tree.pack(sequences, bucket(max([most, *map(len, sequences)]), fewest))
  rows, width = tree.tokens.shape
  if rows == 1:
    width = min(width, bucket(tree.used, fewest))
  for first in range(0, rows, _ROWS):
    some = np.flatnonzero((tree.row >= first) & (tree.row < first + _ROWS)).tolist()
    count = bucket(min(rows - first, _ROWS), 1, halves=False)
    place = np.minimum(np.arange(first, first + count), rows - 1), slice(width)
    targets = np.concatenate([data[i].inputs['target_tokens'] for i in some])
    sources = np.concatenate([(tree.row[i] - first) * width + tree.columns[i] for i in some])
    pairs, pair = np.unique(np.stack([sources, targets]), axis=1, return_inverse=True)
    # Padding is skipped, and each size is compiled: few of them.
    size, room = (bucket(n, most, halves=False) for n in (len(targets), pairs.shape[1]))
    padded = lambda x, to, value=0: np.pad(x, (0, to - len(x)), constant_values=value)
    given = {name: np.concatenate([data[i].inputs[name] for i in some]) for name in inputs}
    yield (
      some,
      {
        'tokens': tree.tokens[place],
        'positions': tree.positions[place],
        'subtree_end': tree.subtree_end[place],
        'source': padded(pairs[0].astype(np.int32), room),
        'target': padded(pairs[1].astype(np.int32), room, -1),
        'pair': padded(pair.reshape(-1).astype(np.int32), size),
        'used': padded(np.ones(len(targets), bool), size, False),
        **{name: padded(x.astype(np.float32), size) for name, x in given.items()},
      },
    )


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
  found = _committed({tuple(name.split('/')): x for name, x in flat.items()})
  if jax.tree.map(np.shape, found) != jax.tree.map(np.shape, like.trainable):
    raise ValueError(f'{file.stem} is an adapter of another model or rank.')
  if moments and any(x is None for x in saved):
    raise ValueError(f'{file.stem} holds no optimizer state; load it without.')
  like.trainable, like.gradient = found, None
  like.moments = _committed(
    jax.tree.unflatten(tree, saved) if moments else _adamw(_INITIAL).init(found)
  )
