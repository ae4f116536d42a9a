"""Tests benchmarks/untrained_benchmarks.py: its config, benchmarks and table."""

from __future__ import annotations

import os
import re
import runpy

import pytest

from agent_gspo.config import check as config_lib
from agent_gspo.tasks import base
from agent_gspo.tasks.data import sources
from benchmarks import untrained_benchmarks

_get_config = runpy.run_path(str(untrained_benchmarks._CONFIG))['get_config']
needs_data = pytest.mark.skipif(
  not os.environ.get(sources.DATA_DIR_VARIABLE),
  reason=f'set ${sources.DATA_DIR_VARIABLE} to a folder with the official files',
)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize('name', untrained_benchmarks._BENCHMARKS)
def test_every_benchmark_has_a_team_whose_examples_it_does_not_hold(name, tmp_path):
  config = _get_config(name)
  assert config.is_locked
  config = config.to_dict()
  config['task']['options']['cache_dir'] = str(tmp_path)
  parts = config_lib.check(config, training=False)
  assert (parts.task.name, parts.team.num_agents) == (name, 3)
  splits = [s for s in base.SPLITS if parts.task._split(s)]
  held = {_words(q.text) for split in splits for q in parts.task.questions(split)}
  shown = [
    _words(context.removeprefix('Question: '))
    for role in config['team']['roles'].values()
    for context, _ in role['examples']
  ]
  assert shown
  assert not held & set(shown)


def _words(text: str) -> str:
  return ' '.join(re.findall('[a-z]+', text.lower()))


def test_a_benchmark_that_is_none():
  with pytest.raises(ValueError, match="benchmark 'gsm' is unknown; use one of mmlu, gsm8k"):
    _get_config('gsm')


def test_table():
  team = {
    'label': 'untrained',
    'task/accuracy': 0.1,
    'task/accuracy_low': 0.04,
    'task/accuracy_high': 0.21,
    'legacy/accuracy': 0.08,
    'tokens/written_per_question': 150.4,
    'tokens/read_per_question': 900.6,
  }
  rows = [
    team,
    {'label': 'constant answer', 'task/accuracy': 0.3},
    team | {'label': 'self-consistency (k=2)', 'samples': 2},
  ]
  table = untrained_benchmarks._report({'mmlu': rows, 'gsm8k': rows[:1]})
  assert table.splitlines() == [
    '|  | mmlu | gsm8k |',
    '| --- | ---: | ---: |',
    *(
      '| star | **10** [4, 21], 8<br>150 + 901 | **10** [4, 21], 8<br>150 + 901 |',
      '| constant answer | **30** |  |',
      '| self-consistency | **10** [4, 21], 8<br>150 + 901 (k=2) |  |',
    ),
  ]
