"""Checks that every field has a description, and that configs are printed with them."""

from __future__ import annotations

import re

import micro_run
import pytest

from agent_gspo.config import check, default_config, fields
from agent_gspo.config.defaults import SECTIONS, Config
from agent_gspo.options import meanings, types_of


@pytest.mark.parametrize('section', [Config, *SECTIONS.values()], ids=lambda s: s.__name__)
def test_attributes_of_the_docstring_are_the_fields(section):
  found = meanings(section)
  assert list(found) == list(types_of(section))
  assert not [field for field, text in found.items() if len(text) < 10 or text[-1] != '.']


def test_a_config_is_printed_with_what_differs():
  config = default_config()
  config.steps = 7
  config.task.options = {'max_count': 5}
  config.team.roles.solver = {'system': 'Be brief. ' * 30}
  given = config.to_dict()
  text = fields.described(given, check.resolve(given).to_dict())
  assert max(map(len, text.splitlines())) <= 80
  shown = re.findall(r'^([* ]) ([\w.]+) = (.*)', text, re.MULTILINE)
  marked = [(path, value) for mark, path, value in shown if mark == '*']
  assert marked[:2] == [('steps', '7'), ('task.options.max_count', '5')]
  assert [path for path, _ in marked[2:]] == ['team.roles.solver.system']
  paths = [f'{section}.{field}' for section in SECTIONS for field in types_of(SECTIONS[section])]
  paths = [path for path in paths if path not in ('task.options', 'team.roles')]
  assert set(paths) <= {path for _, path, _ in shown}
  assert "  objective.name = 'gspo'\n" in text  # of the algorithm
  assert 'Training steps. Default: 30.\n' in text


def test_ranges_are_words():
  shown = {field.path: field.allowed for _, found in fields.sections() for field in found}
  assert shown['learner.b1'] == 'at least 0, below 1'
  assert shown['rollout.questions'] == '1 to 100,000'
  assert shown['rollout.temperature'] == 'above 0'
  assert shown['learner.schedule'] == 'one of constant, linear, cosine'
  assert shown['team.agents'] == ''


def test_the_command_prints_and_loads_no_model(tmp_path):
  command = micro_run.train_command(tmp_path / 'run', '--print_config')
  done = micro_run.run([*command, '--config.model.source=hf:nowhere'])
  assert done.returncode == 0, done.stderr
  assert "* model.source = 'hf:nowhere'" in done.stdout
  assert not (tmp_path / 'run').exists()
