"""The notebook is well-formed, and its cells are Python that fits the project."""

from __future__ import annotations

import ast
import importlib
import json
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NOTEBOOKS = sorted((_ROOT / 'notebooks').glob('*.ipynb'))


def python_of(cell) -> str:
  """The source, with commands for the shell and the notebook itself replaced."""
  return re.sub(r'^(\s*)[!%].*$', r'\1pass', ''.join(cell['source']), flags=re.MULTILINE)


@pytest.mark.parametrize('file', _NOTEBOOKS, ids=lambda file: file.stem)
def test_well_formed_and_without_outputs(file):
  notebook = json.loads(file.read_text(encoding='utf-8'))
  assert notebook['nbformat'] == 4
  for cell in notebook['cells']:
    assert cell['cell_type'] in ('markdown', 'code')
    assert all(isinstance(line, str) for line in cell['source'])
    if cell['cell_type'] == 'code':
      assert cell['outputs'] == []
      assert cell['execution_count'] is None


@pytest.mark.parametrize('file', _NOTEBOOKS, ids=lambda file: file.stem)
def test_cells_compile_and_name_what_exists(file):
  cells = json.loads(file.read_text(encoding='utf-8'))['cells']
  code = [cell for cell in cells if cell['cell_type'] == 'code']
  assert code
  for cell in code:
    tree = ast.parse(python_of(cell))
    for node in ast.walk(tree):
      if isinstance(node, ast.ImportFrom) and node.module.startswith('agent_gspo'):
        package = importlib.import_module(node.module)
        for alias in node.names:
          if not hasattr(package, alias.name):
            importlib.import_module(f'{node.module}.{alias.name}')
    for named in re.findall(r'(?:launch|configs)/\w+\.py', ''.join(cell['source'])):
      assert (_ROOT / named).is_file(), named
