"""Tests a run with the tools of docs/usage.md: inserted tokens, and their records."""

from __future__ import annotations

import itertools
import json
import re

import micro_run
import pytest

_PAGE = (micro_run.ROOT / 'docs' / 'usage.md').read_text()


@pytest.mark.slow
def test_a_tool_of_ones_own_beside_the_others_from_an_empty_folder(tmp_path):
  (config,) = re.findall(r'```python\n(from.*?)```', _PAGE, re.S)
  (tmp_path / 'config.py').write_text(config)
  with (tmp_path / 'ages.jsonl').open('w') as lines:
    for n, split in zip(range(30), itertools.cycle(('train', 'validation', 'test'))):
      documents = [f'Ann is {n} .', 'Bob is 7 .']
      question = {'question': 'How old is Ann ?', 'answer': n, 'documents': documents}
      lines.write(json.dumps({**question, 'id': str(n), 'split': split}) + '\n')
  micro_run.train_alone(tmp_path)
  first, second = map(json.loads, (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines())
  assert 0 < first['tools/calls_per_question'] <= 2
  assert first['tools/tokens_per_question'] >= first['tools/calls_per_question']
  assert second['policy/sampler_trainer_diff_max'] < 1e-3
  inserted = []
  for line in (tmp_path / 'run' / 'transcripts.jsonl').open():
    for message in json.loads(line)['messages']:
      tokens = message['tokens']
      runs = [list(run) for tool, run in itertools.groupby(tokens, lambda x: x[1] is None) if tool]
      assert len(runs) <= 2
      inserted += [
        text
        for (_, before), (text, logprob) in itertools.pairwise(tokens)
        if before is not None and logprob is None
      ]
  assert 'noon' in inserted
