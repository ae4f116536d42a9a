"""Tests the warning about a clip band narrower than rounding."""

from __future__ import annotations

import sys
import types

import micro_run
import pytest

from agent_gspo.algorithms.objectives import losses
from agent_gspo.config import check as config_lib
from agent_gspo.training import loop
from agent_gspo.training.metrics import clip_warning


def _warning(clipped: float, **fields) -> str | None:
  config = config_lib.resolve(micro_run.changed(**fields))
  found = {
    'policy/clip_fraction_first_minibatch': clipped,
    'policy/ratio_first_minibatch_error_max': 0.00234,
  }
  return clip_warning(config, found)


@pytest.mark.parametrize(
  ('fields', 'remedy'),
  [
    ({'learner__old_logprobs': 'sampler'}, "Set learner.old_logprobs='trainer', or widen the band"),
    ({'model__dtype': 'bfloat16'}, 'Set model.remat=True, or widen'),
    ({'model__dtype': 'bfloat16', 'model__remat': True}, "Set model.dtype='float32', or widen"),
  ],
)
def test_the_warning_names_the_band_and_the_remedy(fields, remedy):
  assert _warning(0.02, **fields) is None
  text = _warning(0.28, **fields)
  assert text.startswith('28% of the messages were clipped before anything was updated')
  assert 'off by up to 2.3e-03' in text
  assert 'objective.clip_low=0.0003 and objective.clip_high=0.0004' in text
  assert remedy in text
  assert 'clip_low=0.1 ' in _warning(0.28, objective__clip_low=0.1)


def test_ratios_of_stale_messages_are_no_rounding():
  stale = lambda source: _warning(0.28, rollout__ahead=1, learner__old_logprobs=source)
  assert stale('sampler') is None
  assert stale('trainer')


def _of_width(x, *, width: float = 3e-4):
  return losses.gspo(x, clip_low=width, clip_high=width)


def _half(x, *, clip_high: float = 3e-4):
  return losses.gspo(x, clip_low=1.0, clip_high=clip_high)


@pytest.mark.parametrize(
  ('function', 'band'),
  [(_of_width, "of 'mine:function' is"), (_half, 'of objective.clip_high=0.0003 is')],
)
def test_an_objective_of_ones_own_may_have_another_band_or_none(monkeypatch, function, band):
  monkeypatch.setitem(sys.modules, 'mine', types.SimpleNamespace(function=function))
  assert f'the band {band} narrower than rounding' in _warning(
    0.28, objective__name='mine:function'
  )


def test_a_step_without_an_update_was_not_clipped():
  assert clip_warning(config_lib.resolve(micro_run.changed()), {}) is None


@pytest.mark.slow
def test_a_run_warns_once(tmp_path, capsys):
  """Includes float32, with a band narrow enough."""
  fields = {
    'steps': 3,
    'budget__lambda_tok': 0.01,  # so that there are advantages at all
    'objective__clip_low': 1e-9,
    'objective__clip_high': 1e-9,
    'sft__steps': 0,
    'evaluation__every': 0,
  }
  loop.train(micro_run.changed(**fields), tmp_path / 'run')
  told = capsys.readouterr().out.replace('\n', ' ')
  assert told.count('is narrower than rounding') == 1
