"""Checks the direction of imports: the core runs without the apps, and no modules form a cycle."""

import ast
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
_CORE = [
  file
  for file in sorted((ROOT / 'agent_gspo').rglob('*.py'))
  if not file.is_relative_to(ROOT / 'agent_gspo/apps')
]


def _imported(source: str, package: str) -> set[str]:
  """Returns the full names that a module imports, within functions and type checks too."""
  found = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      above = package.split('.')[: 1 - node.level or None] if node.level else []
      home = '.'.join([*above, *([node.module] if node.module else [])])
      found |= {home, *(f'{home}.{alias.name}' for alias in node.names)}
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      found.add(node.value)  # of `importlib`, `lazy` or `python -m`
  return found


def _name(file: pathlib.Path) -> str:
  return '.'.join(file.relative_to(ROOT).with_suffix('').parts)


def _is_app(name: str) -> bool:
  return name == 'agent_gspo.apps' or name.startswith('agent_gspo.apps.')


@pytest.mark.parametrize('file', _CORE, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_core_does_not_import_the_apps(file):
  package = '.'.join(file.relative_to(ROOT).parent.parts)
  assert not list(filter(_is_app, _imported(file.read_text(), package)))


def test_no_modules_import_each_other_in_a_cycle():
  files = {_name(file): file for file in (ROOT / 'agent_gspo').rglob('*.py')}
  imported = {
    name: _imported(file.read_text(), name.rpartition('.')[0]) & files.keys() - {name}
    for name, file in files.items()
  }
  assert imported['agent_gspo.training.loop'] >= {'agent_gspo.training.setup'}
  graphlib.TopologicalSorter(imported).prepare()  # names a cycle


@pytest.mark.parametrize(
  'source',
  [
    'import agent_gspo.apps.sweep',
    'from agent_gspo import apps',
    'from agent_gspo.apps.reporting import tables',
    'from ..apps import sweep',
    'def f():\n  from agent_gspo.apps import sweep',
    "importlib.import_module('agent_gspo.apps.sweep')",
  ],
)
def test_every_way_to_import_them_is_seen(source):
  assert list(filter(_is_app, _imported(source, 'agent_gspo.training')))
