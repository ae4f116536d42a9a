"""What the documentation points at is there."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FILES = sorted([*ROOT.glob('docs/*.md'), ROOT / 'README.md', ROOT / 'benchmarks/README.md'])


@pytest.mark.parametrize('file', _FILES, ids=lambda f: f.name)
def test_links_lead_somewhere(file):
  links = re.findall(r'\]\(([^)#:]+)(#[^)]*)?\)', file.read_text())
  missing = [path for path, _ in links if not (file.parent / path).exists()]
  assert not missing


def test_algorithms_are_where_the_table_says():
  rows = re.findall(r'\.\./(\S+?\.py)#L(\d+)\) `(\w+)`', (ROOT / 'docs/algorithms.md').read_text())
  assert len(rows) > 50
  for path, line, name in rows:
    text = (ROOT / path).read_text().splitlines()[int(line) - 1]
    assert re.match(rf'(def|class) {name}\b', text), f'{path}:{line} is {text!r}, not {name}'
