"""Hook of mkdocs: adds pages from outside docs/, all config fields and a reference a subpackage.

Documents link to files, as a forge shows them. In the site a link to a document leads to its page,
one to a module of the package (its text `file.py::symbol` or not) to the docstring in the
reference, and one to any other file (tests, configs) becomes plain text.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
import sys
from collections.abc import Iterable

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from agent_gspo.config import fields  # noqa: E402 (of this clone)
from agent_gspo.teams.roles import Role  # noqa: E402

_PACKAGE = 'agent_gspo'
_PAGES = {  # file of the repository -> page
  'README.md': 'index.md',
  'CONTRIBUTING.md': 'contributing.md',
  'CHANGELOG.md': 'changelog.md',
  'benchmarks/README.md': 'measurements.md',
}
_FIELDS = 'configuration.md'
_SOURCE_OF_FIELDS = f'{_PACKAGE}/config/fields.py'  # what a document links to
# What a search shows after all other pages.
_INTERNALS = ('reference/', 'changelog.md', 'contributing.md', 'decisions.md', 'measurements.md')
_LINK = re.compile(r'(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]*)(?P<anchor>#[^)\s]*)?\)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the documents outside docs/ and the reference; no page has two sources."""
  for source, page in _PAGES.items():
    if files.get_file_from_path(page):
      raise PluginError(f'{source} and another file would both be the page {page}.')
    files.append(File.generated(config, page, content=(_ROOT / source).read_text('utf-8')))
  files.append(File.generated(config, _FIELDS, content=_configuration()))
  package = _ROOT / _PACKAGE
  rooms = {room: _modules((package / room).rglob('*.py')) for room in _rooms()}
  for room, modules in rooms.items():
    text = ''.join(f'\n::: {module}\n' for module in modules)
    files.append(File.generated(config, f'reference/{room}.md', content=f'# {room}\n{text}'))
  listed = ''.join(f'- [{room}]({room}.md)\n' for room in rooms)
  others = ''.join(f'\n::: {module}\n' for module in _modules(package.glob('*.py')))
  index = f'# Reference\n\nFrom the docstrings, a page for each subpackage.\n\n{listed}{others}'
  files.append(File.generated(config, 'reference/index.md', content=index))
  return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
  """Points the links of a document at what the site has."""
  here = page.file.src_uri
  if here.startswith(_INTERNALS):
    page.meta['search'] = {'boost': 0.001}  # titles have a boost of 1000
  source = {page: file for file, page in _PAGES.items()}.get(here, f'docs/{here}')

  def rewritten(match: re.Match[str]) -> str:
    if not match['path'] or here.startswith('reference/'):
      return match[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match['path']))
    if target in _PAGES or target.startswith('docs/'):
      page = _PAGES.get(target, target.removeprefix('docs/'))
      path = posixpath.relpath(page, posixpath.dirname(here) or '.')
      return f'{match["image"]}[{match["text"]}]({path}{match["anchor"] or ""})'
    if target == _SOURCE_OF_FIELDS and '::' not in match['text']:
      return f'[{match["text"]}]({posixpath.relpath(_FIELDS, posixpath.dirname(here) or ".")})'
    if target.startswith(f'{_PACKAGE}/') and target.endswith('.py'):
      symbol = re.search(r'::([\w.]+)', match['text'])
      name = '.'.join(filter(None, [_module(pathlib.Path(target)), symbol and symbol[1]]))
      return f'[{match["text"]}][{name}]'  # autorefs finds it, and a strict build fails where not
    return match['text']

  parts = re.split(r'(^```.*?^```$)', markdown, flags=re.DOTALL | re.MULTILINE)
  return ''.join(p if p.startswith('```') else _LINK.sub(rewritten, p) for p in parts)


def _configuration() -> str:
  """Returns the page of all config fields, each under a heading that a search finds."""
  lines = [
    '# Config fields',
    'Every field is also a flag: `--config.learner.learning_rate=1e-6`. '
    '`agent-gspo-train --config=tiny --print_config` prints the values of a config.',
  ]
  for section, found in fields.sections():
    lines += [f'## {section.section}', fields.summary(section)] if section.section else []
    lines += [line for field in found for line in _entry(field.path, field)]
  lines += [
    '## Fields of a role',
    'A role is a dict of these, all optional: `team.roles.solver.cue`.',
  ]
  for field in fields.of(Role):
    if field.path != 'name':
      lines += _entry(f'team.roles.NAME.{field.path}', field)
  return '\n\n'.join(lines)


def _entry(path: str, field: fields.Field) -> list[str]:
  allowed = f'; {field.allowed}' if field.allowed else ''
  return [
    f'### {path}',
    f'{field.kind.__name__}, default `{field.default!r}`{allowed}. {field.meaning}',
  ]


def _rooms() -> list[str]:
  return sorted(file.parent.name for file in (_ROOT / _PACKAGE).glob('*/__init__.py'))


def _modules(files: Iterable[pathlib.Path]) -> list[str]:
  """Those that say something; an empty `__init__.py` does not."""
  return [_module(f.relative_to(_ROOT)) for f in sorted(files) if f.read_text('utf-8').strip()]


def _module(file: pathlib.Path) -> str:
  return '.'.join(file.with_suffix('').parts).removesuffix('.__init__')
