"""Checks that packing loses nothing, and that a token attends to its own past only."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_gspo.models import transformer
from agent_gspo.ops.attention import masks
from agent_gspo.packing import prefix_tree

_ROW = 14
# Three ids make shared prefixes and equal sequences common; one of them is 0, the padding.
_SEQUENCES = st.lists(
  st.lists(st.integers(0, 2), min_size=1, max_size=_ROW).map(lambda ids: np.asarray(ids, np.int32)),
  min_size=1,
  max_size=12,
)
_FEW = settings(deadline=None, max_examples=100)


def _visible(tree: prefix_tree.TokenTree) -> np.ndarray:
  """Returns bool `[R, T, T]` by the definition in the module's docstring, as a loop."""
  rows, width = tree.tokens.shape
  seen = np.zeros((rows, width, width), bool)
  for r in range(rows):
    for i in range(width):
      for j in range(i + 1):
        seen[r, i, j] = i < tree.subtree_end[r, j]
  return seen


@_FEW
@given(_SEQUENCES)
@example([np.int32([0, 0, 0]), np.int32([0]), np.int32([0, 0, 0]), np.int32([0, 0, 1])])
def test_each_sequence_can_be_read_back(sequences):
  tree = prefix_tree.pack(sequences, _ROW)
  assert tree.tokens.shape == tree.positions.shape == tree.subtree_end.shape
  assert len(tree.columns) == len(tree.row) == len(sequences)
  for sequence, row, columns in zip(sequences, tree.row, tree.columns, strict=True):
    np.testing.assert_array_equal(tree.tokens[row, columns], sequence)
    np.testing.assert_array_equal(tree.positions[row, columns], np.arange(len(sequence)))
    assert (np.diff(columns) > 0).all()


@_FEW
@given(_SEQUENCES)
def test_each_token_sees_exactly_its_own_path(sequences):
  tree = prefix_tree.pack(sequences, _ROW)
  seen = np.asarray(masks.TreeMask(tree.subtree_end).dense())
  np.testing.assert_array_equal(seen, _visible(tree))
  in_use = np.zeros(tree.tokens.shape, bool)
  for row, columns in zip(tree.row, tree.columns, strict=True):
    in_use[row, columns] = True
    for depth, column in enumerate(columns):
      np.testing.assert_array_equal(np.nonzero(seen[row, column])[0], columns[: depth + 1])
  # Padding attends to itself alone (softmax needs a column), and no token attends to it.
  for row, column in zip(*np.nonzero(~in_use), strict=True):
    np.testing.assert_array_equal(np.nonzero(seen[row, column])[0], [column])
    assert seen[row, :, column].sum() == 1


@_FEW
@given(_SEQUENCES, st.integers(_ROW, 40))
def test_counts_of_columns(sequences, row_tokens):
  tree = prefix_tree.pack(sequences, row_tokens)
  in_use = {
    (int(row), int(column))
    for row, columns in zip(tree.row, tree.columns, strict=True)
    for column in columns
  }
  assert tree.used == len(in_use) <= sum(map(len, sequences))
  assert tree.tokens.shape[1] == row_tokens
  assert len(tree.tokens) <= len(sequences)
  # A row stores a prefix once.
  prefixes = {
    (int(row), tuple(sequence[:n].tolist()))
    for sequence, row in zip(sequences, tree.row, strict=True)
    for n in range(1, len(sequence) + 1)
  }
  assert tree.used == len(prefixes)


@_FEW
@given(_SEQUENCES, st.data())
def test_loads_of_a_row_stay_within_the_limit(sequences, data):
  loads = data.draw(st.lists(st.integers(0, 9), min_size=len(sequences), max_size=len(sequences)))
  tree = prefix_tree.pack(sequences, _ROW, loads=loads, max_load=9)
  assert np.bincount(tree.row, weights=loads).max() <= 9
  for sequence, row, columns in zip(sequences, tree.row, tree.columns, strict=True):
    np.testing.assert_array_equal(tree.tokens[row, columns], sequence)


@_FEW
@given(_SEQUENCES)
def test_packing_does_not_depend_on_token_ids(sequences):
  """Token 0 is a token like any other: renaming the ids moves no column and no mask."""
  tree = prefix_tree.pack(sequences, _ROW)
  renamed = prefix_tree.pack([s + 7 for s in sequences], _ROW)
  for field in ('positions', 'subtree_end', 'row', 'used'):
    np.testing.assert_array_equal(getattr(renamed, field), getattr(tree, field))
  for one, other in zip(renamed.columns, tree.columns, strict=True):
    np.testing.assert_array_equal(one, other)


def test_the_example_of_the_docstring():
  a, b, c, d, x, y = range(1, 7)
  tree = prefix_tree.pack([np.array([a, b, c, x, y]), np.array([a, b, c, d])], 8)
  np.testing.assert_array_equal(tree.tokens, [[a, b, c, d, x, y, 0, 0]])
  np.testing.assert_array_equal(tree.positions, [[0, 1, 2, 3, 3, 4, 0, 0]])
  np.testing.assert_array_equal(tree.subtree_end, [[6, 6, 6, 4, 6, 6, 7, 8]])
  assert tree.used == 6


def test_a_shared_context_is_stored_once():
  context = np.arange(50)
  tree = prefix_tree.pack([np.append(context, [60 + i, 1]) for i in range(8)], 66)
  assert tree.used == 50 + 8 * 2
  assert len(tree.tokens) == 1
  same = prefix_tree.pack([context] * 30, 50)
  assert same.used == 50


@pytest.mark.parametrize('length', [0, 9])
def test_sequence_that_does_not_fit_is_refused(length):
  with pytest.raises(ValueError, match=f'sequence 1 has {length} tokens; a row holds 1 to 8'):
    prefix_tree.pack([np.arange(3), np.arange(length)], 8)


def test_load_that_fits_no_row_is_refused():
  with pytest.raises(ValueError, match='sequence 1 has load 5'):
    prefix_tree.pack([np.arange(3), np.arange(2)], 8, loads=[1, 5], max_load=4)


def test_hidden_states_are_those_of_rows_without_sharing():
  rng = np.random.default_rng(0)
  context = rng.integers(0, 300, 9)
  sequences = [np.append(context[:n], rng.integers(0, 300, m)) for n, m in _BRANCHES]
  sequences += [context, context, rng.integers(0, 300, 20), np.zeros(6, np.int64)]
  tree = prefix_tree.pack(sequences, 40)
  assert tree.used < sum(map(len, sequences)) - 20
  apply = functools.partial(jax.jit(_hidden), tiny.params())
  hidden = apply(tree.tokens, tree.positions, masks.TreeMask(tree.subtree_end))

  # The contents of padding must not matter.
  in_use = np.zeros(tree.tokens.shape, bool)
  for row, columns in zip(tree.row, tree.columns, strict=True):
    in_use[row, columns] = True
  assert not in_use.all()
  dirty = dataclasses.replace(tree, tokens=np.where(in_use, tree.tokens, 17))
  other = apply(dirty.tokens, dirty.positions, masks.TreeMask(dirty.subtree_end))
  np.testing.assert_array_equal(np.asarray(other)[in_use], np.asarray(hidden)[in_use])

  width = max(map(len, sequences))
  alone = np.full((len(sequences), width), 5, np.int32)
  for n, sequence in enumerate(sequences):
    alone[n, : len(sequence)] = sequence
  positions = np.tile(np.arange(width, dtype=np.int32), (len(sequences), 1))
  mask = masks.causal(np.full(len(sequences), width), width)
  expected = apply(alone, positions, mask)
  for n, sequence in enumerate(sequences):
    np.testing.assert_allclose(
      hidden[tree.row[n], tree.columns[n]], expected[n, : len(sequence)], atol=1e-5
    )


_BRANCHES = ((9, 4), (9, 4), (9, 1), (5, 6), (5, 2), (2, 8), (9, 7))


def _hidden(params, tokens, positions, mask):
  model = transformer.Transformer(tiny.CONFIG)
  return model.apply({'params': params}, tokens, positions, mask)[0]
