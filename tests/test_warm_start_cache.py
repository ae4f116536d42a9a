"""A warm start is made once for all runs that begin alike, and for no other."""

import micro_run
import numpy as np
import pytest

from agent_gspo import config as config_lib
from agent_gspo.training import warm_start_cache

_PARAMS = {'a': {'kernel': np.arange(6, dtype=np.float32).reshape(2, 3)}, 'b': np.float32(3)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path))


def _config(**values):
  return config_lib.resolve(micro_run.changed(**values))


@pytest.mark.parametrize(
  'change', [{}, {'budget__lambda_tok': 0.5}, {'steps': 3}, {'algorithm': 'grpo'}]
)
def test_runs_that_begin_alike_share_it(change):
  assert warm_start_cache.load(_config(), _PARAMS) is None
  warm_start_cache.save(_config(), _PARAMS)
  found = warm_start_cache.load(_config(**change), _PARAMS)
  np.testing.assert_array_equal(found['a']['kernel'], _PARAMS['a']['kernel'])
  assert found['b'] == 3


@pytest.mark.parametrize(
  'change',
  [
    {'seed': 1},
    {'warm_start__steps': 3},
    {'warm_start__learning_rate': 0.5},
    {'task__options__max_count': 4},
    {'team__max_message_tokens': 5},
    {'model__lora_rank': 2},
    {'learner__row_tokens': 128},
  ],
)
def test_runs_that_begin_otherwise_do_not(change):
  warm_start_cache.save(_config(), _PARAMS)
  assert warm_start_cache.load(_config(**change), _PARAMS) is None


def test_another_program_or_model_does_not(monkeypatch):
  warm_start_cache.save(_config(), _PARAMS)
  assert warm_start_cache.load(_config(), {'c': np.zeros(1)}) is None
  monkeypatch.setattr(warm_start_cache, '_program', lambda: 'changed')
  assert warm_start_cache.load(_config(), _PARAMS) is None
