"""Writes the model of the micro run, in its own vocabulary or with permuted ids."""

from __future__ import annotations

import functools

import jax
import micro_run
import numpy as np

from agent_gspo.config import check as config_lib
from agent_gspo.models.io import hf
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.training import setup as setup_lib


@functools.cache
def source(permuted: bool) -> str:
  """Returns the source of the exported model; if `permuted`, its words have other ids."""
  setup = setup_lib.build(config_lib.check(micro_run.changed()))
  tokenizer, params = setup.tokenizer, jax.tree.map(np.asarray, setup.params)
  if permuted:
    names = [tokenizer.decode([i]) for i in range(3, tokenizer.vocab_size)]
    order = np.asarray([*range(3), *reversed(range(3, tokenizer.vocab_size))])
    embedding = params['embed']['embedding'][order]
    tokenizer = word_level(names[::-1])
    params = {**params, 'embed': {**params['embed'], 'embedding': embedding}}
  folder = micro_run.folder() / f'model{permuted:d}'
  hf.export_hf(setup.model.config.replace(unsaid=()), params, folder, tokenizer)
  return f'hf:{folder}'
