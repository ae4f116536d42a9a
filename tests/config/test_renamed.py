"""Who uses the old name of a field is told the new one."""

from __future__ import annotations

import copy
import json

import micro_run
import pytest
import small_checkpoints
from ml_collections import config_dict

from agent_gspo.config import check as config_lib
from agent_gspo.config import default_config, renamed
from agent_gspo.training import loop
from agent_gspo.workdir import checkpoints


def _flat(section, prefix=''):
  for key, value in section.items():
    yield f'{prefix}{key}'
    if isinstance(value, dict):
      yield from _flat(value, f'{prefix}{key}.')


def _old(config: dict) -> dict:
  """A config as an earlier version wrote it."""
  config = copy.deepcopy(config)
  for old, new in renamed.RENAMED.items():
    *path, field = new.split('.')
    holder = config[path[0]] if path else config
    value = holder.pop(field)
    *path, field = old.split('.')
    (config[path[0]] if path else config)[field] = value
  return config


@pytest.mark.parametrize(('old', 'new'), renamed.RENAMED.items())
def test_an_old_name_is_refused_with_the_new_one(old, new):
  fields = set(_flat(default_config().to_dict()))
  assert new in fields
  assert old not in fields
  config = micro_run.get_config().unlock()
  value = config_dict.ConfigDict({'steps': 1}) if old == 'warm_start' else 1
  section, _, field = old.rpartition('.')
  (config[section] if section else config)[field] = value
  with pytest.raises(ValueError, match=rf'^config\.{old} is now config\.{new}\.$'):
    config_lib.check(config.to_dict())


def test_names_within_a_renamed_section():
  assert renamed.told('warm_start.steps') == 'config.warm_start.steps is now config.sft.steps'
  assert renamed.told('warm_startz') == ''
  assert renamed.told('sft.steps') == ''
  assert renamed.told_of_word('row_tokens') == (
    'config.sampler.row_tokens is now config.sampler.prefill_length; '
    'config.learner.row_tokens is now config.learner.pack_length'
  )


def test_fields_that_have_come_since_have_their_defaults(tmp_path):
  """So a run of an earlier version goes on, and can be exported and asked."""
  config = micro_run.get_config().to_dict()
  earlier = copy.deepcopy(config)
  del earlier['sampler']['gather_weights'], earlier['mesh']
  earlier['sampler']['decode_rows'] = 7
  first = checkpoints.Checkpoints(tmp_path / 'checkpoints', earlier)
  first.save(small_checkpoints.state(0.0))
  first.wait()
  saved = checkpoints.newest(tmp_path / 'checkpoints').config
  assert saved['sampler'] == {**config['sampler'], 'decode_rows': 7}
  assert saved['mesh'] == config['mesh']
  assert saved['task'] == json.loads(json.dumps(config['task']))  # options are left alone
  config_lib.check(saved, training=False)


def test_a_run_of_an_earlier_version_is_refused_with_all_new_names(tmp_path, monkeypatch):
  config = micro_run.get_config().to_dict()
  first = checkpoints.Checkpoints(tmp_path / 'checkpoints', _old(config))
  first.save(small_checkpoints.state(0.0))
  first.wait()
  with pytest.raises(
    ValueError,
    match=r'^the checkpoint at step 0 is of an earlier version: config.rollout.samples is now '
    r'config.rollout.group_size; .*config.warm_start is now config.sft\. .*another --workdir\.$',
  ):
    loop.train(config, tmp_path)
  saved = checkpoints.newest(tmp_path / 'checkpoints')
  with pytest.raises(ValueError, match=r'config.learner.rows is now config.learner.micro_batch'):
    config_lib.check(saved.config, training=False)  # as launch/export.py does
  saved.check_params(config)  # what parameters are has no new names
