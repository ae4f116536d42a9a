"""Tests ranges of fields, and that a config file loads without JAX."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import micro_run
import pytest

from agent_gspo import options
from agent_gspo.config import default_config
from agent_gspo.config.defaults import SECTIONS, Config

_FILES = sorted((micro_run.ROOT / 'configs').glob('*.py'))
_HEAVY = ('jax', 'jaxlib', 'flax', 'optax', 'orbax', 'chex', 'tokenizers', 'transformers')


def _imported(code: str) -> list[str]:
  """Returns the modules that a fresh Python has imported after some code."""
  done = subprocess.run(
    [sys.executable, '-c', f'import json, sys\n{code}\nprint(json.dumps(list(sys.modules)))'],
    cwd=micro_run.ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  return json.loads(done.stdout)


@pytest.mark.parametrize('file', _FILES, ids=lambda file: file.stem)
def test_a_config_file_loads_without_jax(file):
  found = _imported(f"import runpy\nrunpy.run_path({str(file)!r})['get_config']()")
  assert 'agent_gspo.config.defaults' in found
  assert not [name for name in found if name.partition('.')[0] in _HEAVY]


def test_the_check_does_not_import_training():
  found = _imported('import agent_gspo.config.check')
  assert [name for name in found if name.startswith('agent_gspo.training.')] == [
    'agent_gspo.training.options'
  ]


def test_fields_are_attributes_inside_the_package():
  by_string = re.compile(r'\b(config|options|section|own)\[[\'"]')
  files = (micro_run.ROOT / 'agent_gspo').rglob('*.py')
  assert [file for file in files if by_string.search(file.read_text())] == []


def test_defaults_are_those_of_the_sections():
  config = default_config()
  for name, section in SECTIONS.items():
    assert config[name].to_dict() == dataclasses.asdict(section())
  assert config.objective.get_type('clip_low') is float
  assert config.selection.get_type('resample') is int
  assert set(config) == {*options.types_of(Config)}
  assert Config.from_dict(config.to_dict()).to_dict() == config.to_dict()


@dataclasses.dataclass(frozen=True)
class _Options(options.Section, name='section'):
  share: float = options.option(0.5, least=0, most=1)
  decay: float = options.option(0.5, least=0, below=1)
  part: float | None = options.option(None, above=0, most=1)
  price: float = options.option(0.0, least=0)
  rate: float = options.option(1.0, above=0)
  count: int = options.option(1, least=1)
  number: int | None = options.option(None, least=2, most=4)
  kind: str = options.option('', choices=('one', 'three'))
  names: tuple = ()
  free: dict = dataclasses.field(default_factory=dict)
  flag: bool = False


@pytest.mark.parametrize(
  ('field', 'value', 'message'),
  [
    ('share', 1.5, 'section.share=1.5 must be at least 0 and at most 1.'),
    ('decay', 1.0, 'section.decay=1.0 must be at least 0 and below 1.'),
    ('part', 0.0, 'section.part=0.0 must be above 0 and at most 1.'),
    ('part', 'x', "config.section.part='x' must be None or a finite number."),
    ('price', -1, 'section.price=-1 must be at least 0.'),
    ('price', None, 'config.section.price=None must be a finite number.'),
    ('rate', 0.0, 'section.rate=0.0 must be above 0.'),
    ('count', 0, 'section.count=0 must be a whole number, 1 or more.'),
    ('count', True, 'config.section.count=True must be a whole number.'),
    ('number', 5, 'section.number=5 must be a whole number from 2 to 4.'),
    ('number', 2.0, 'config.section.number=2.0 must be a whole number or None.'),
    ('kind', 'two', "section.kind='two' is unknown; use one of one, three."),
    (
      'kind',
      'thre',
      "section.kind='thre' is unknown; use one of one, three. Did you mean 'three'?",
    ),
    ('names', 'x', "config.section.names='x' must be a tuple."),
    ('free', 3, 'config.section.free=3 must be a section of fields.'),
    ('free', {3: 1}, 'config.section.free holds 3; its fields must have names.'),
    ('flag', 1, 'config.section.flag=1 must be True or False.'),
  ],
)
def test_a_section_names_field_value_and_remedy(field, value, message):
  with pytest.raises(ValueError, match='section') as error:
    _Options(**{field: value})
  assert str(error.value) == message


def test_what_a_section_takes():
  given = {'share': 1, 'part': 1.0, 'number': 4, 'kind': 'one', 'names': ['a'], 'free': {'a': 1}}
  assert dataclasses.replace(_Options(), **given).share == 1
  whole = dataclasses.asdict(_Options())
  assert _Options.from_dict(whole) == _Options()
  with pytest.raises(ValueError, match=r'^config.section=3 must be a section of fields\.$'):
    _Options.from_dict(3)
  with pytest.raises(ValueError, match=r'config.section.shar is unknown. Did you mean section.sh'):
    _Options.from_dict({**whole, 'shar': 1})
  del whole['share']
  with pytest.raises(ValueError, match=r'^config.section.share is missing; start from default'):
    _Options.from_dict(whole)
