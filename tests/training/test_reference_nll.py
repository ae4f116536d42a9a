"""Compares the reference policy's NLL of messages with separate model calls."""

from __future__ import annotations

import dataclasses
import functools
import types

import flax
import numpy as np
import optax
import pytest
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models import lora
from agent_gspo.models.transformer import Transformer
from agent_gspo.teams.sharing import Sharing
from agent_gspo.training import state as state_lib
from agent_gspo.training.learner import Learner, reference_nll
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import Programs

_TEMPERATURE, _EOS = 0.7, 0
_BASE = tiny.CONFIG.replace(num_layers=1)
# Two words and a remark; a silence and four words; two silences.
_SAID = [[5, 9, _EOS], [7, _EOS], [_EOS], [8, 8, 1, 2, _EOS], [_EOS], [_EOS]]


def _messages():
  rng = np.random.default_rng(0)
  return [
    dataclasses.replace(
      tiny.message(rng.integers(1, 300, 6), tokens, np.full(len(tokens), -9.0)), episode=i // 2
    )
    for i, tokens in enumerate(_SAID)
  ]


def _loss(params, message) -> float:
  ids = np.concatenate([message.prompt_ids, message.token_ids])
  logits = np.asarray(tiny.logits(_BASE, params, ids[:-1]), np.float64) / _TEMPERATURE
  logits = logits[len(message.prompt_ids) - 1 :]
  chosen = logits[np.arange(len(logits)), message.token_ids]
  return float(np.mean(np.log(np.exp(logits).sum(-1)) - chosen))


def _of_episodes(config, state, reference, messages=None, adapters=None):
  updater = Programs(
    model=Transformer(config),
    objective=functools.partial(losses.gspo, clip_low=0.1, clip_high=0.1),
    optimizer=optax.sgd(1.0),
    temperature=_TEMPERATURE,
  )
  messages = _messages() if messages is None else messages
  config = types.SimpleNamespace(learner=LearnerOptions(pack_length=32, micro_batch_size=2))
  learner = Learner(updater, config, Sharing(adapters))
  batch = types.SimpleNamespace(messages=messages, num_episodes=3)
  return reference_nll(learner, state.replace(reference=reference), batch)


@pytest.mark.slow
@pytest.mark.parametrize('adapted', [False, True])
def test_highest_mean_loss_of_what_was_said(adapted):
  """The policy has moved; the reference, here with adapters that do nothing, has not."""
  base = flax.traverse_util.flatten_dict(tiny.params(_BASE))
  config, reference, moved = _BASE, base, {path: 1.1 * x for path, x in base.items()}
  if adapted:
    config = _BASE.replace(lora_rank=2)
    full = flax.traverse_util.flatten_dict(tiny.params(config))
    reference = {p: x for p, x in full.items() if p[-1].startswith('lora_')}
    moved = base | {p: x + 0.1 for p, x in reference.items()}
  nested = flax.traverse_util.unflatten_dict
  state = state_lib.init(nested(moved), optax.sgd(1.0), lora=adapted)
  found = _of_episodes(config, state, reference)
  losses = [_loss(nested(base), m) for m in _messages()]
  np.testing.assert_allclose(found[:2], [max(losses[:2]), losses[3]], rtol=1e-5)
  assert np.isposinf(found[2])  # all were silent


def test_each_author_is_read_by_its_own_reference():
  """The first and the last of three agents have an adapter, that between them is the base."""
  config = _BASE.replace(lora_rank=2, num_adapters=2)
  rng = np.random.default_rng(3)
  noisy = lambda path, x: (
    rng.normal(0, 0.1, x.shape).astype(np.float32) if path[-1] == 'lora_b' else x
  )
  flat = flax.traverse_util.flatten_dict(tiny.params(config))
  params = flax.traverse_util.unflatten_dict({path: noisy(path, x) for path, x in flat.items()})
  state = state_lib.init(params, optax.sgd(1.0), lora=True, keep_reference=True)
  said = [dataclasses.replace(_messages()[0], agent=agent, episode=agent) for agent in range(3)]
  found = _of_episodes(config, state, state.reference, said, adapters=(0, -1, 1))
  one = config.replace(num_adapters=1)
  expected = [
    _loss(lora.merge_adapters(one, lora.one_adapter(params, n)), said[0]) for n in (0, -1, 1)
  ]
  np.testing.assert_allclose(found, expected, rtol=1e-4)
  assert np.ptp(expected) > 1e-3


def test_an_episode_in_which_all_are_silent_alone():
  state = state_lib.init(tiny.params(_BASE), optax.sgd(1.0), lora=False)
  found = _of_episodes(_BASE, state, state.trainable, _messages()[4:])
  assert np.isposinf(found).all()
