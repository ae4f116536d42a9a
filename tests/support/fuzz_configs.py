"""Defines malformed configs, as files and flags would give them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pathlib
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import micro_run
from fuzzing import Case

from agent_gspo.config import check as config_lib
from agent_gspo.models import load, presets
from agent_gspo.training import setup as setup_lib

_HUGE = 10**400
_FREE_FORM = ('task.options', 'team.roles', 'advantage.options', 'objective.options')


def check(config: dict[str, Any]) -> None:
  """Runs all checks of a config before computation; builds no model from scratch."""
  with (
    mock.patch.object(setup_lib, 'open_model', _unmade),
    mock.patch.object(setup_lib, '_with_adapters', lambda config, params, seed: params),
  ):
    setup_lib.build(config_lib.check(config))


def _unmade(source: str, tokenizer=None, seed: int = 0) -> load.Model:
  kind, name = load.check_spec(source)
  if kind != 'random':
    return load.open_model(source, tokenizer, seed)
  shape = presets.PRESETS[name].replace(vocab_size=tokenizer.vocab_size)
  return load.Model(shape, tokenizer, source, dict)


@dataclasses.dataclass(frozen=True)
class _Change:
  """Sets fields of a config, or deletes those with value `_GONE`."""

  values: tuple[tuple[str, Any], ...]

  def __call__(self, config: dict) -> None:
    for path, value in self.values:
      *sections, field = path.split('.') if isinstance(path, str) else path
      section = functools.reduce(dict.__getitem__, sections, config)
      if value is _GONE:
        del section[field]
      else:
        section[field] = copy.deepcopy(value)


_GONE = type('Gone', (), {'__repr__': lambda self: '_GONE'})()
_FILE = """import sys

sys.path.insert(0, {folder!r})

import fuzz_configs
import micro_run
from ml_collections import config_dict

_GONE, nan, inf = fuzz_configs._GONE, float('nan'), float('inf')


def get_config():
  config = micro_run.get_config().to_dict()
  fuzz_configs._Change({values!r})(config)
  return config_dict.ConfigDict(config)
"""


def _case(name: str, values: dict[Any, Any], invalid: bool, names: tuple[str, ...] = ()) -> Case:
  change = _Change(tuple(values.items()))

  def run(unused_folder: pathlib.Path) -> None:
    config = micro_run.get_config().to_dict()
    change(config)
    check(config)

  def command(folder: pathlib.Path) -> list[str]:
    here = str(pathlib.Path(__file__).resolve().parent)
    file = folder / 'config.py'
    file.write_text(_FILE.format(folder=here, values=change.values), encoding='utf-8')
    return ['train', f'--config={file}', f'--workdir={folder}/new']

  return Case(name, run, invalid, names, command)


def _leaves(section: dict[str, Any], prefix: str = '') -> Iterator[tuple[str, Any]]:
  for key, value in section.items():
    if isinstance(value, dict) and f'{prefix}{key}' not in _FREE_FORM:
      yield f'{prefix}{key}', value
      yield from _leaves(value, f'{prefix}{key}.')
    else:
      yield f'{prefix}{key}', value


def _text(value: Any) -> str:
  if isinstance(value, int) and abs(value) >= 10**30:
    return 'a huge number' if value > 0 else 'minus a huge number'
  return f'{value!r:.30}'


_ROLE_VALUES = (
  None,
  3,
  True,
  [],
  {},
  'x',
  '{',
  '{}',
  '{zzz}',
  '{message}{message}',
  '\ud800',
  _HUGE,
)
_TEXT_FIELDS = ('style', 'system', 'opening', 'incoming', 'cue', 'separator')


def _free_form() -> Iterator[Case]:
  for field in (*_TEXT_FIELDS, 'examples', 'max_tokens', 'zzz'):
    for value in _ROLE_VALUES:
      text = field in _TEXT_FIELDS
      wrong = (isinstance(value, str) != text and value != []) or field == 'zzz' or value is True
      path = f'team.roles.solver.{field}'
      yield _case(f'{path}={_text(value)}', {path: value}, wrong, ())
  for examples in (('x',), (3,), (('x',),), (('a', 'b', 'c'),), ((1, 2),), [None], [[]], ({},)):
    path = 'team.roles.solver.examples'
    yield _case(f'{path}={examples!r}', {path: examples}, True, ('examples',))
  for role in (None, 3, 'x', []):
    yield _case(f'team.roles.solver={role!r}', {'team.roles.solver': role}, True, ('solver',))
  for name in (3, None, '', ' ', ('a',)):
    values = {('team', 'roles', name): {}}
    yield _case(f'a role called {name!r}', values, True, ('team.roles',))
  options = micro_run.get_config().to_dict()['task']['options']
  values = (None, 1.5, 'x', True, [], {}, [1], float('nan'), -7, _HUGE)
  for option in (
    *options,
    'names',
    'objects',
    'seed',
    'train_size',
    'test_size',
    'validation_size',
  ):
    for value in values:
      fine = option == 'seed' and value in (-7, _HUGE)
      path = f'task.options.{option}'
      yield _case(f'{path}={_text(value)}', {path: value}, not fine, (option,))
  for option in (3, None, 'zzz', 'name', 'self', ''):
    yield _case(f'task option {option!r}', {('task', 'options', option): 1}, True)
  for section, name, option in (
    ('advantage', 'per_component', 'eps'),
    ('advantage', 'per_component', 'whiten'),
    ('advantage', 'gigpo', 'divide'),
    ('objective', 'gspo', 'clip_low'),
    ('objective', 'sapo', 'tau_positive'),
    ('objective', 'dr_grpo', 'max_length'),
    ('objective', 'gspo', 'zzz'),
  ):
    for value in (None, 'x', [], {}, float('nan'), float('inf'), _HUGE, -7.0, 'nan'):
      values = {f'{section}.name': name, f'{section}.options': {option: value}}
      yield _case(f'{section} {name}: {option}={_text(value)}', values, True, (option,))


_SOURCES = (
  *('hf:~nobody/x', 'hf:\0', 'hf:/', 'gguf:', 'gguf:/', 'gguf:\0', 'gguf:nowhere.gguf'),
  *('pypi:x', 'random:', 'random:micro ', 'hf:../..', 'zzz:x', ':', 'hf:' + 'x' * 5000),
)


def _sources() -> Iterator[Case]:
  for source in _SOURCES:
    yield _case(f'model.source={source!r:.30}', {'model.source': source}, True, ())
  for task in ('gsm8k', 'mmlu', 'human_eval', 'math500', 'aqua'):
    for option, value in (
      ('data_dir', 3),
      ('data_dir', '/nowhere-at-all'),
      ('data_dir', []),
      ('cache_dir', 3),
      ('grader', 'zzz'),
      ('grader', 3),
      ('base_url', 3),
      ('zzz', 1),
    ):
      values = {'task': {'name': task, 'options': {option: value}}, 'sft.steps': 0}
      yield _case(f'{task}: {option}={value!r}', values, True, (option,))


_POOL = (
  *(None, True, False, 0, 1, -1, 2, 3, 7, 100, 10**9, 2**31, 2**32, 2**63, _HUGE),
  *(0.0, 0.5, 1.0, -0.5, 1e-46, 1e30, 1e300, float('nan'), float('inf')),
  *('', 'x', 'solver', 'star', 'debate', 'chain', 'dual', 'mix', 'adapters', 'judge', 'test'),
  *((), (0,), (1, 2), ('solver',), ('informant', 'solver'), ((0, 2), (1, 2)), {}, {'a': 1}),
)


def _several(rng: random.Random, count: int) -> Iterator[Case]:
  """Yields cases with several random fields, most of them invalid; the outcome is not specified."""
  paths = [p for p, v in _leaves(micro_run.get_config().to_dict()) if not isinstance(v, dict)]
  for i in range(count):
    values = {rng.choice(paths): rng.choice(_POOL) for _ in range(rng.randint(1, 4))}
    name = ', '.join(f'{path}={_text(value)}' for path, value in values.items())
    yield _case(f'{i}: {name}', values, False)


def cases(seed: int = 0) -> list[Case]:
  """Returns all cases of malformed configs."""
  rng = random.Random(f'{seed}/configs')
  untouched = _case('untouched', {}, False)
  return [untouched, *_free_form(), *_sources(), *_several(rng, 200)]
