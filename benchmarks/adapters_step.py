"""Times a step in which four agents have an adapter each, and one with a shared adapter.

    python benchmarks/adapters_step.py --preset=small --rank=8

A step is one sampler call for the turns of all agents and one optimizer step on their
messages, on random weights and random prompts; messages run to their cap, so that both variants
compute the same positions. The variants alternate, the ratio is that of their medians.
On shared cores compare the processor time.
Prints a markdown table and writes benchmarks/results/adapters_step.json.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models import presets
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.packing import train_batches
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import Programs
from agent_gspo.types import Message
from benchmarks import common

_VOCABULARY = 512
_EXAMPLES, _QUESTION, _WRITTEN = 40, 20, 16  # tokens
_QUESTIONS, _SAMPLES = 4, 4
_ROW = 384


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--preset', choices=presets.PRESETS, default='small')
  parser.add_argument('--rank', type=int, default=8)
  parser.add_argument('--agents', type=int, default=4)
  parser.add_argument('--repeats', type=int, default=7)
  options = parser.parse_args()
  steps = {n: _step(options, n) for n in (1, options.agents)}
  for step in steps.values():
    step()  # compiles
  seconds = {n: collections.defaultdict(list) for n in steps}
  for _ in range(options.repeats):
    for n, step in steps.items():
      for phase, value in step().items():
        seconds[n][phase].append(value)
  medians = {
    n: {phase: statistics.median(x) for phase, x in phases.items()} for n, phases in seconds.items()
  }
  ratio = {phase: x / medians[1][phase] for phase, x in medians[options.agents].items()}
  figures = {
    **vars(options),
    'machine': common.machine(),
    'seconds': medians,
    'ratio': ratio,
    'all_seconds': seconds,
  }
  header = ('median seconds', '1 adapter', f'{options.agents} adapters', 'ratio')
  rows = [
    (phase, *(f'{medians[n][phase]:.3f}' for n in steps), f'{ratio[phase]:.2f}') for phase in ratio
  ]
  print(common.table(header, rows))
  file = common.save('adapters_step', figures)
  print(f'\nwrote {file.relative_to(common.ROOT)}')


def _step(options: argparse.Namespace, adapters: int) -> Callable[[], dict[str, float]]:
  """Returns a step with this number of adapters, a function to the seconds of its phases."""
  config = presets.PRESETS[options.preset].replace(
    vocab_size=_VOCABULARY, lora_rank=options.rank, num_adapters=adapters
  )
  optimizer = state_lib.make_optimizer(LearnerOptions(learning_rate=1e-4), updates=100)
  programs = Programs(Transformer(config), losses.gspo, optimizer, 1.0, entropy=False)
  sampler = Sampler(config, max_new_tokens=_WRITTEN, prefill_length=_ROW)
  params = init_params(config, jax.random.key(0))
  state = state_lib.init(params, optimizer, lora=True)
  agents, prompts = _prompts(options.agents)
  own = agents if adapters > 1 else None
  row_keys = keys.row_keys(keys.stream(0, 'train'), np.arange(len(prompts))[:, None])
  advantages = np.random.default_rng(1).normal(size=len(prompts)).astype(np.float32)

  def step() -> dict[str, float]:
    nonlocal state
    start, busy = time.monotonic(), time.process_time()
    params = state_lib.merge(state.trainable, state.frozen)
    samples = sampler(params, prompts, row_keys, temperature=1.0, stop_ids=(), adapters=own)
    sampled = time.monotonic()
    messages = [
      Message(0, int(agent), 0, 0, prompt, ids, logprobs, False, '')
      for agent, prompt, ids, logprobs in zip(
        agents, prompts, samples.token_ids, samples.logprobs, strict=True
      )
    ]
    batches = train_batches.pack_messages(
      messages,
      pack_length=_ROW,
      micro_batch_size=2,
      adapters=None if own is None else range(options.agents),
    )
    batches = train_batches.with_values(batches, advantages=advantages)
    state, _ = programs.optimizer_step(state, batches)
    jax.block_until_ready(state.trainable)
    end = time.monotonic()
    return {
      'sample': sampled - start,
      'update': end - sampled,
      'step': end - start,
      'processor time of the step': time.process_time() - busy,
    }

  return step


def _prompts(agents: int) -> tuple[np.ndarray, list[np.ndarray]]:
  """Returns author and prompt of each row: its agent's examples, then a question of all agents."""
  rng = np.random.default_rng(0)
  draw = lambda count, length: rng.integers(0, _VOCABULARY, (count, length)).astype(np.int32)
  examples, questions = draw(agents, _EXAMPLES), draw(_QUESTIONS, _QUESTION)
  authors = np.repeat(np.arange(agents), _QUESTIONS * _SAMPLES)
  asked = np.tile(np.repeat(np.arange(_QUESTIONS), _SAMPLES), agents)
  return authors, [
    np.concatenate([examples[a], questions[q]]) for a, q in zip(authors, asked, strict=True)
  ]


if __name__ == '__main__':
  main()
