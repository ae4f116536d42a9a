"""Checks that slices of stored arrays equal the file's, and are read anew each time."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import raw_gguf
import tiny
from flax import traverse_util

from agent_gspo.models import partition
from agent_gspo.models.io import gguf, hf, stored
from agent_gspo.sharding.placement import ONE_DEVICE

_CONFIGS = {
  'hf': tiny.CONFIG,
  'hf, joint projections': tiny.CONFIG.replace(family='phi3'),
  'hf, experts': tiny.MIXTURE,
  'gguf': raw_gguf.CONFIG,
}


@functools.cache
def _opened(kind, folder):
  """Returns the stored arrays of a file by path, and their values."""
  if kind != 'gguf':
    config, folder = _CONFIGS[kind], folder / kind
    hf.export_hf(config, tiny.params(config), folder)
    trees = hf.open_hf(folder)[1], tiny.params(config)
    return tuple(traverse_util.flatten_dict(tree, sep='/') for tree in trees)
  file = folder / 'm.gguf'  # of the family whose queries and keys are stored in another order
  file.write_bytes(raw_gguf.valid().data())
  params = gguf.open_gguf(file).params
  return tuple(traverse_util.flatten_dict(x, sep='/') for x in (params, stored.read(params)))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('weights')


@pytest.mark.parametrize('kind', _CONFIGS)
@hypothesis.given(data=st.data())
@hypothesis.settings(deadline=None, max_examples=40)
def test_a_part_is_what_the_whole_has_there(kind, folder, data):
  arrays, whole = _opened(kind, folder)
  path = data.draw(st.sampled_from(sorted(arrays)))
  ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in arrays[path].shape]
  index = tuple(slice(*pair) for pair in ends)
  np.testing.assert_array_equal(arrays[path].part(index), whole[path][index])


@pytest.mark.parametrize('kind', _CONFIGS)
def test_a_part_may_be_nothing(kind, folder):
  arrays, whole = _opened(kind, folder)
  rows, columns = whole['embed/embedding'].shape
  assert arrays['embed/embedding'].part((slice(rows), slice(columns, columns))).shape == (rows, 0)


@pytest.mark.parametrize('kind', _CONFIGS)
def test_placed_parameters_are_those_of_the_file(kind, folder):
  arrays, whole = _opened(kind, folder)
  placed = partition.place(
    traverse_util.unflatten_dict(arrays, sep='/'), _CONFIGS[kind], ONE_DEVICE
  )
  for path, x in traverse_util.flatten_dict(placed, sep='/').items():
    assert isinstance(x, jax.Array)
    np.testing.assert_array_equal(x, whole[path], err_msg=path)


@pytest.mark.parametrize('kind', _CONFIGS)
def test_what_was_opened_is_exported_unread(kind, folder, tmp_path):
  arrays, whole = _opened(kind, folder)
  hf.export_hf(_CONFIGS[kind], traverse_util.unflatten_dict(arrays, sep='/'), tmp_path)
  again = traverse_util.flatten_dict(stored.read(hf.open_hf(tmp_path)[1]), sep='/')
  assert again.keys() == whole.keys()
  for path, x in again.items():
    np.testing.assert_array_equal(x, whole[path], err_msg=path)


def test_weights_that_are_not_finite_are_found_where_they_are_read(tmp_path):
  params = traverse_util.flatten_dict(tiny.params(), sep='/')
  kernel = params['layers_1/mlp/up/kernel'].copy()
  kernel[3, 40] = np.inf
  hf.export_hf(
    tiny.CONFIG,
    traverse_util.unflatten_dict(params | {'layers_1/mlp/up/kernel': kernel}, sep='/'),
    tmp_path,
  )
  array = traverse_util.flatten_dict(hf.open_hf(tmp_path)[1], sep='/')['layers_1/mlp/up/kernel']
  assert np.isfinite(array.part((slice(None), slice(0, 40)))).all()
  with pytest.raises(ValueError, match=r'layers\.1\.mlp\.up_proj\.weight.* holds NaN or infinite'):
    array.part((slice(0, 4), slice(None)))
