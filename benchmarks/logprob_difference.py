"""Measures how far ratios are from 1 before any update, by rounding of log-probs.

    python benchmarks/logprob_difference.py --dtype=bfloat16 --remat

Random weights write messages of one length; an update at a learning rate of 0 computes their ratios
to the log-probs of the sampler and to those of the trainer (`learner.old_logprobs`). All should be
1: messages outside GSPO's clip band are lost to rounding. Prints a markdown table.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import numpy as np
import optax

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models import presets
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.packing import train_batches
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.training import state as state_lib
from agent_gspo.training.policy_loss import Programs
from agent_gspo.types import Message
from benchmarks import common

_VOCABULARY = 4096
_PROMPT, _SAMPLES = 64, 4
_COLUMNS = {
  'policy/logprob_gap_mean': 'a token, mean',
  'policy/logprob_gap_max': 'a token, most',
  'policy/ratio_error_max': 'ratio of a message - 1, most',
  'policy/clip_fraction': 'messages clipped',
}


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--preset', choices=presets.PRESETS, default='small')
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='bfloat16')
  parser.add_argument('--length', type=int, default=66, help='tokens of a message')
  parser.add_argument('--messages', type=int, default=32)
  parser.add_argument('--untied', action='store_true', help='the LM head has its own weights')
  parser.add_argument('--remat', action='store_true', help='as model.remat')
  options = parser.parse_args()
  config = presets.PRESETS[options.preset].replace(
    vocab_size=_VOCABULARY,
    dtype=options.dtype,
    tie_embeddings=not options.untied,
    remat=options.remat,
  )
  params = init_params(config, jax.random.key(0))
  rng = np.random.default_rng(0)
  questions = rng.integers(0, _VOCABULARY, (-(-options.messages // _SAMPLES), _PROMPT))
  prompts = np.repeat(questions.astype(np.int32), _SAMPLES, axis=0)[: options.messages]
  samples = Sampler(config, max_new_tokens=options.length)(
    params,
    list(prompts),
    keys.row_keys(keys.stream(0, 'train'), np.arange(len(prompts))[:, None]),
    temperature=1.0,
    stop_ids=(),
  )
  messages = [
    Message(0, 0, 0, 0, prompt, ids, logprobs, False, '')
    for prompt, ids, logprobs in zip(prompts, samples.token_ids, samples.logprobs, strict=True)
  ]
  signs = np.where(np.arange(len(messages)) % 2, 1.0, -1.0)
  optimizer = optax.sgd(0.0)
  programs = Programs(Transformer(config), losses.gspo, optimizer, 1.0, entropy=False)
  state = state_lib.init(params, optimizer)
  packed = train_batches.pack_messages(messages, pack_length=384, micro_batch_size=2)
  sampler = train_batches.with_values(packed, advantages=signs)
  trainer = train_batches.with_old_logprobs(sampler, programs.scored(state, sampler))
  rows = []
  for name, batches in (('sampler', sampler), ('trainer', trainer)):
    state, metrics = programs.optimizer_step(state, batches)
    rows.append((name, *(f'{metrics[key]:.1e}' for key in _COLUMNS)))
  print(common.table((f'{options.dtype}, old log-probs of', *_COLUMNS.values()), rows))


if __name__ == '__main__':
  main()
