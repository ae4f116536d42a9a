"""Writes runs to report on, and parses report pages."""

from __future__ import annotations

import contextlib
import html.parser

from agent_gspo.workdir import writers

VOID = {'meta', 'link', 'br', 'input', 'img', 'hr'}


def episode(step, text='The crate holds 12 bolts.', right=True):
  """Returns a transcript of two agents: `holder` writes to `solver` and reads no reply."""
  question = f'How many bolts? ({step})'
  return {
    'step': step,
    'split': 'train',
    'question_id': f'q{step}',
    'question': question,
    'gold': '12',
    'answer': '12' if right else '13',
    'task_score': float(right),
    'reward': 0.5,
    'messages': [
      {
        'agent': 'holder',
        'round': 0,
        'text': text,
        'written': 8 if text else 0,
        'read': 20,
        'silent': not text,
        'ended': True,
        'note': 'the crate: 12',
        'relevant': True,
        'reward': 0.5,
        'advantage': 1.0,
      },
      {
        'agent': 'solver',
        'round': 0,
        'read_from': [['holder', 0]],
        'text': 'The answer is 12',
        'written': 5,
        'read': 30,
        'silent': False,
        'ended': False,
        'note': '',
        'relevant': None,
        'reward': 0.5,
        'advantage': -1.0,
      },
    ],
  }


def write_run(workdir, steps=5, episodes=None):
  with contextlib.closing(writers.RunWriter(workdir)) as writer:
    writer.config({'task': {'name': 'notes'}, 'layers': [1, 2]})
    for step in range(1, steps + 1):
      writer.metrics(step, {'task/accuracy': step / steps, 'time/step_s': 1.0, 'bad': float('nan')})
    writer.evaluation({'step': 0, 'label': 'untrained', 'task/accuracy': 0.125, 'agents': []})
    writer.evaluation({'step': steps, 'label': 'trained', 'task/accuracy': 0.875, 'agents': []})
    writer.transcripts(episodes or [episode(step) for step in range(1, steps + 1)])
  return workdir


class Checker(html.parser.HTMLParser):
  """Counts elements and refuses tags that do not match."""

  def __init__(self):
    super().__init__()
    self.open, self.seen, self.data = [], [], ''
    self._in_data = False

  def handle_starttag(self, tag, attrs):
    self.seen.append((tag, dict(attrs)))
    self._in_data = dict(attrs).get('id') == 'data'
    if tag not in VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag
    self._in_data = False

  def handle_data(self, text):
    if self._in_data:
      self.data += text


def parse(path):
  checker = Checker()
  checker.feed(path.read_text(encoding='utf-8'))
  checker.close()
  assert checker.open == []
  return checker
