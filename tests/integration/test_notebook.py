"""Checks that the notebook is well-formed and that its cells fit the package."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import pathlib
import re
import urllib.request

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NOTEBOOKS = sorted((_ROOT / 'notebooks').glob('*.ipynb'))


def python_of(cell) -> str:
  """Returns the source, with shell and notebook commands replaced."""
  return re.sub(r'^(\s*)[!%].*$', r'\1pass', ''.join(cell['source']), flags=re.MULTILINE)


@pytest.mark.parametrize('file', _NOTEBOOKS, ids=lambda file: file.stem)
def test_well_formed_with_few_saved_outputs(file):
  notebook = json.loads(file.read_text(encoding='utf-8'))
  assert notebook['nbformat'] == 4
  code = []
  for cell in notebook['cells']:
    assert cell['cell_type'] in ('markdown', 'code')
    assert all(isinstance(line, str) for line in cell['source'])
    code += [cell] if cell['cell_type'] == 'code' else []
  assert [cell['execution_count'] for cell in code] == list(range(1, len(code) + 1))
  outputs = [output for cell in code for output in cell['outputs']]
  assert 0 < len(outputs) <= 2 * len(code)
  assert {output['output_type'] for output in outputs} <= {
    'stream',
    'display_data',
    'execute_result',
  }
  told = ''.join(line for output in outputs for line in output.get('text', ()))
  assert '\x1b' not in told
  assert not re.search(r'/(tmp|root|home|work)/', told)
  assert len(told.splitlines()) < 250


def test_the_first_cell_finds_the_clone(monkeypatch):
  (file,) = _NOTEBOOKS
  cells = json.loads(file.read_text(encoding='utf-8'))['cells']
  first = next(cell for cell in cells if cell['cell_type'] == 'code')
  found = {}
  for folder in (_ROOT / 'notebooks', _ROOT):
    monkeypatch.chdir(folder)
    exec(python_of(first), found)
    assert pathlib.Path.cwd() == _ROOT
  quoted = 'fileId=https%3A%2F%2Fgithub.com%2Fowner%2Fname%2Fblob%2Fmain%2Fnotebooks%2Fa.ipynb'
  answer = io.BytesIO(json.dumps([{'path': quoted}]).encode())
  monkeypatch.setattr(urllib.request, 'urlopen', lambda address: answer)
  assert found['colab_repository']() == 'https://github.com/owner/name'


@pytest.mark.parametrize('file', _NOTEBOOKS, ids=lambda file: file.stem)
def test_cells_compile_and_call_what_exists(file):
  cells = json.loads(file.read_text(encoding='utf-8'))['cells']
  code = [cell for cell in cells if cell['cell_type'] == 'code']
  assert code
  imported, called = {}, []
  for cell in code:
    for node in ast.walk(ast.parse(python_of(cell))):
      if isinstance(node, ast.ImportFrom) and node.module.startswith('agent_gspo'):
        package = importlib.import_module(node.module)
        for alias in node.names:
          if not hasattr(package, alias.name):
            importlib.import_module(f'{node.module}.{alias.name}')
          imported[alias.name] = getattr(package, alias.name)
      if isinstance(node, ast.Call):
        called.append(node)
    for named in re.findall(r'(?:launch|configs)/\w+\.py', ''.join(cell['source'])):
      assert (_ROOT / named).is_file(), named
  bound = 0
  for call in called:
    name, _, attribute = ast.unparse(call.func).partition('.')
    if name in imported:
      function = getattr(imported[name], attribute) if attribute else imported[name]
      keywords = {keyword.arg: keyword.value for keyword in call.keywords}
      inspect.signature(function).bind(*call.args, **keywords)
      bound += 1
  assert bound
