"""Checks links and references of the documentation: files, and code by `path::symbol`."""

import importlib
import inspect
import operator
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest

from agent_gspo import algorithms
from agent_gspo.algorithms import selection
from agent_gspo.algorithms.advantages import estimators
from agent_gspo.algorithms.objectives import losses
from agent_gspo.rewards.length_rewards import LENGTH_REWARDS
from agent_gspo.rewards.options import SCORES
from agent_gspo.training import train_step

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FILES = sorted([*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'), ROOT / 'benchmarks/README.md'])
# Folders in which short paths are looked up, in order.
_BASES = ('.', 'agent_gspo', 'agent_gspo/algorithms', 'benchmarks')

_each_file = pytest.mark.parametrize('file', _FILES, ids=lambda f: str(f.relative_to(ROOT)))


@_each_file
def test_links_lead_somewhere(file):
  links = re.findall(r'\]\(([^)#:]+)(#[^)]*)?\)', file.read_text())
  missing = [path for path, _ in links if not (file.parent / path).exists()]
  assert not missing


@_each_file
def test_files_that_are_named_exist(file):
  named = re.findall(r'`([\w/]+/[\w/]*\.(?:py|md|json|yml))\b', file.read_text())
  assert not [path for path in named if _find(path) is None]


@_each_file
def test_code_is_where_it_is_named(file):
  """Checks for each `path::symbol` that the file has the symbol and that its link is right."""
  for path, symbol, target in _symbols(file.read_text()):
    found = _find(path)
    assert found, f'{path}::{symbol}: no such file'
    if target:
      assert (file.parent / target).resolve() == found, f'{path}::{symbol} links to {target}'
    module = importlib.import_module('.'.join(found.relative_to(ROOT).with_suffix('').parts))
    try:
      operator.attrgetter(symbol)(module)
    except AttributeError as error:
      raise AssertionError(f'{path}::{symbol}: {error}') from None


def test_every_algorithm_is_named_with_its_code():
  assert len(_symbols((ROOT / 'docs/algorithms.md').read_text())) > 50


@pytest.mark.parametrize(
  ('field', 'known'),
  [
    ('objective.name', losses.OBJECTIVES),
    ('advantage.name', estimators.ADVANTAGES),
    ('selection.name', selection.SELECTIONS),
    ('reward.length_reward', LENGTH_REWARDS),
    ('reward.score', SCORES[1:]),
  ],
)
def test_a_name_beside_a_field_is_a_value_of_it(field, known):
  """Checks that docs/algorithms.md lists exactly the values of each field."""
  rows = rf'^\| `(\w+)` \| `{re.escape(field)}`'
  assert set(re.findall(rows, (ROOT / 'docs/algorithms.md').read_text(), re.M)) == set(known)


@_each_file
def test_no_line_numbers(file):
  assert not re.findall(r'\.py(?:#L|:)\d+', file.read_text())


def _symbols(text: str) -> list[tuple[str, str, str]]:
  """Returns path, symbol and link target of each reference, '' without a link."""
  found = re.findall(r'`([\w/]+\.py)::([A-Za-z_][\w.]*\w)[^`]*`(?:\]\(([^)#]+)\))?', text)
  return [(path, symbol, target) for path, symbol, target in found]


def _find(path: str) -> pathlib.Path | None:
  candidates = (ROOT / base / path for base in _BASES)
  return next((file.resolve() for file in candidates if file.is_file()), None)


def test_the_page_on_the_training_step_shows_it_as_it_is():
  shown = re.search(r'```python\n(.*?)```', (ROOT / 'docs/training_step.md').read_text(), re.S)
  source = inspect.getsource(train_step.train_step)
  assert shown
  assert shown[1] == source
  body = source.rpartition('"""\n')[2]  # behind the docstring
  assert 20 < len([line for line in body.splitlines() if line.strip()]) <= 56  # one screen


def test_readme_is_short_and_names_every_subpackage():
  text = (ROOT / 'README.md').read_text()
  assert len(text.split()) <= 900
  named = set(re.findall(r'^\| `(\w+)` \|', text.split('## Packages')[1], re.M))
  assert {file.parent.name for file in (ROOT / 'agent_gspo').glob('*/__init__.py')} <= named


def test_the_algorithm_in_readme_is_that_of_the_library():
  block = re.search(r'## Algorithm.*?```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.S)
  assert block
  assert len(block[1].splitlines()) <= 30
  shown = {}
  exec(block[1], shown)
  rng = np.random.default_rng(0)
  logprobs, old = (-rng.random((4, 5)).astype(np.float32) for _ in range(2))
  mask = np.arange(5) < rng.integers(1, 6, (4, 1))
  tokens = mask.sum(-1).astype(np.float32)
  for score in (np.float32([1, 0, 1, 1]), np.ones(4, np.float32), np.float32([0, 0, 0, 1])):
    found = shown['advantages'](score, tokens, 0.02)
    cost = 0.02 * tokens * (score.mean() >= 0.5)
    messages = algorithms.AdvantageInputs(
      task=score,
      costs=cost,
      groups=np.zeros(4, np.int32),
      question=np.zeros(4, np.int32),
      episode=np.arange(4, dtype=np.int32),
      agent=np.zeros(4, np.int32),
      turn=np.zeros(4, np.int32),
    )
    expected = algorithms.advantage(messages, 'per_component').values
    np.testing.assert_allclose(found, expected, atol=1e-5)
    batch = algorithms.PackedTokens(
      logprobs=jnp.asarray(logprobs[mask]),
      old_logprobs=jnp.asarray(old[mask]),
      message_ids=jnp.asarray(np.nonzero(mask)[0]),
      token_mask=jnp.ones(mask.sum()),
      advantages=jnp.asarray(expected),
      message_mask=jnp.ones(4),
    )
    result = algorithms.gspo(batch)
    np.testing.assert_allclose(
      shown['objective'](logprobs, old, mask, found), result.total / result.count, rtol=1e-5
    )
