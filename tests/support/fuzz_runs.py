"""Malformed leftovers of runs: checkpoints, and the records that reports are made of."""

from __future__ import annotations

import functools
import json
import math
import pathlib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import micro_run
from fuzzing import Case

from agent_gspo.apps.commands import compare, evaluation_folder, report
from agent_gspo.config import check as config_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.workdir import checkpoints, writers

# Checkpoints


def _state(value: float) -> state_lib.TrainState:
  optimizer = state_lib.make_optimizer(LearnerOptions(learning_rate=1.0), updates=1)
  params = {'a': {'lora_a': jnp.full((2, 3), value)}, 'b': {'kernel': jnp.full(4, value)}}
  return state_lib.init(params, optimizer, lora=True).replace(step=jnp.int32(1))


@functools.cache
def _checkpoints() -> dict[str, bytes]:
  """The files of a folder with one checkpoint."""
  config = config_lib.resolve(micro_run.get_config().to_dict())
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch, 'checkpoints')
    made = checkpoints.Checkpoints(folder, config)
    made.save(_state(1.5))
    made.wait()
    return _files(folder)


def _files(folder: pathlib.Path) -> dict[str, bytes]:
  found = sorted(path for path in folder.rglob('*') if path.is_file())
  return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _write(files: dict[str, bytes], folder: pathlib.Path) -> None:
  for name, content in files.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def _checkpoint(name: str, damage: Callable[[pathlib.Path], None], how: str, invalid: bool) -> Case:
  def run(place: pathlib.Path) -> None:
    folder = place / 'checkpoints'
    folder.mkdir()
    _write(_checkpoints(), folder)
    damage(folder)
    config = config_lib.resolve(micro_run.get_config().to_dict())
    like = _state(0.0)
    if how == 'resume':
      checkpoints.Checkpoints(folder, config).restore(like)
    else:
      params = state_lib.merge(like.trainable, like.frozen)
      restored = checkpoints.newest(folder).restore_params(config, params)
      assert jax.tree.all(jax.tree.map(lambda x: bool((x == 1.5).all()), restored))

  return Case(f'{how}: {name}', run, invalid, ('checkpoints',) if invalid else ())


def checkpoint_cases(seed: int = 0) -> list[Case]:
  """Damaged folders of checkpoints."""
  rng = random.Random(f'{seed}/checkpoints')
  files = _checkpoints()
  found = [_checkpoint('untouched', lambda f: None, how, False) for how in ('resume', 'read')]
  for i, name in enumerate(sorted(files)):
    content = files[name]
    at = rng.randrange(len(content)) if content else 0
    flipped = content[:at] + bytes([(content[at] if content else 0) ^ 4]) + content[at + 1 :]
    for what, new in (
      ('deleted', None),
      ('empty', b''),
      (f'the first {at} bytes', content[:at]),
      (f'byte {at} flipped', flipped),
      ('noise', rng.randbytes(50)),
      ('no JSON', b'{"a": '),
    ):
      if new == content:
        continue

      def damage(folder, name=name, new=new):
        (folder / name).unlink()
        if new is not None:
          (folder / name).write_bytes(new)

      found.append(_checkpoint(f'{name}: {what}', damage, ('resume', 'read')[i % 2], True))
  for how in ('resume', 'read'):
    for name in ('x', '2', '-1', '1.tmp', '999999999999999999999', ' 1'):
      found.append(
        _checkpoint(f'a file {name!r}', lambda f, n=name: (f / n).write_text(''), how, False)
      )
      found.append(_checkpoint(f'a folder {name!r}', lambda f, n=name: (f / n).mkdir(), how, False))

    def other(folder):
      shutil.rmtree(folder)
      folder.write_text('')

    found.append(_checkpoint('a file instead', other, how, True))
  return found


# Records

_POOL = (
  None,
  3,
  -1,
  10**30,
  1.5,
  math.nan,
  math.inf,
  '',
  'x',
  '\ud800',
  True,
  [],
  {},
  [3],
  {'x': 1},
)


def _episode(i: int, **head: Any) -> dict[str, Any]:
  """An episode as `transcripts.jsonl` and `results.jsonl` hold it."""
  said = {
    'round': 0, 'layer': 0, 'read': 20, 'readers': 1, 'silent': False, 'ended': True,
    'reward': 0.5, 'advantage': -0.5,
  }  # fmt: skip
  return {
    **head,
    'question_id': f'q{i}',
    'question': 'How many bolts are there?',
    'gold': '12',
    'answer': 'The answer is 12',
    'task_score': 1.0,
    'reward': 0.5,
    'messages': [
      {**said, 'agent': 'holder', 'text': '12 bolts', 'written': 3, 'note': '12', 'relevant': True},
      {
        **{**said, 'agent': 'solver', 'read_from': [['holder', 0]], 'text': 'The answer is 12'},
        **{'written': 5, 'note': '', 'relevant': None},
      },
    ],
  }


@functools.cache
def _workdir() -> dict[str, bytes]:
  """The files of a run's workdir that a report reads."""
  figures = {'task/accuracy': 0.5, 'tokens/written_per_question': 9.0, 'time/step_s': 1.0}
  with tempfile.TemporaryDirectory() as scratch:
    with writers.RunWriter(scratch) as writer:
      writer.config({'task': {'name': 'notes'}, 'team': {'agents': ['holder', 'solver']}})
      for step in (1, 2, 3):
        writer.metrics(step, {**figures, 'bad': math.nan})
        writer.transcripts([_episode(step, step=step, split='train')])
      for step, label in ((0, 'untrained'), (3, 'trained')):
        writer.evaluation({**figures, 'step': step, 'label': label, 'split': 'test', 'agents': []})
        writer.transcripts([_episode(0, step=step, split='test', label=label)])
    return {k: v for k, v in _files(pathlib.Path(scratch)).items() if k.endswith(('json', 'jsonl'))}


def _evaluation() -> dict[str, bytes]:
  """The files of a finished evaluation of two systems on three questions."""
  episodes = [
    _episode(i, variant=variant, split='test') for variant in ('team', 'alone') for i in range(3)
  ]
  systems = [
    {'label': label, 'variant': variant, 'split': 'test', 'agents': []}
    for label, variant in (('untrained', 'team'), ('single agent', 'alone'))
  ]
  result = {
    'evaluations': systems,
    'evaluation': {'task': {'name': 'notes', 'options': {}}},
    'question_ids': ['q0', 'q1', 'q2'],
  }
  lines = ''.join(json.dumps(evaluation_folder.sealed(e)) + '\n' for e in episodes)
  return {
    'result.json': json.dumps(evaluation_folder.sealed(result)).encode(),
    'results.jsonl': lines.encode(),
  }


def _report(place: pathlib.Path) -> list[str]:
  return ['report', str(place), f'--out={place}/report.html']


def _compare(place: pathlib.Path) -> list[str]:
  return ['compare', str(place), f'{place}:single agent']


def _record_case(
  name: str, files: dict[str, bytes], arguments: Callable[[pathlib.Path], list[str]], invalid: bool
) -> Case:
  def command(place: pathlib.Path) -> list[str]:
    _write(files, place)
    return arguments(place)

  def run(place: pathlib.Path) -> None:
    line = command(place)
    with mock.patch.object(sys, 'argv', line):
      {'report': report, 'compare': compare}[line[0]].cli()

  return Case(name, run, invalid, (), command)


def _paths(value: Any, path: tuple = ()) -> Iterator[tuple]:
  """Every place in a JSON value."""
  if path:
    yield path
  items = dict(enumerate(value)) if isinstance(value, list) else value
  for key, inner in items.items() if isinstance(items, dict) else ():
    yield from _paths(inner, (*path, key))


def _damaged_lines(lines: list[bytes], rng: random.Random) -> tuple[str, bytes]:
  """A file of JSON lines with something else somewhere."""
  at, lines = rng.randrange(len(lines)), list(lines)
  what = rng.choice(('field', 'field', 'field', 'delete', 'text', 'cut', 'noise', 'none', 'twice'))
  line = lines[at]
  if what in ('field', 'delete'):
    record = json.loads(line)
    *parents, last = path = rng.choice(list(_paths(record)))
    inside = functools.reduce(lambda x, key: x[key], parents, record)
    value = rng.choice(_POOL)
    if what == 'delete':
      del inside[last]
    else:
      inside[last] = value
    what += f' {".".join(map(str, path))}' + (f'={value!r}' if what == 'field' else '')
    lines[at] = json.dumps(record).encode() + b'\n'
  elif what == 'text':
    lines[at] = rng.choice((b'[]\n', b'3\n', b'null\n', b'{}\n', b'"x"\n', b'\n', b'{"a": 1}\n'))
  elif what == 'cut':
    lines[at] = line[: rng.randrange(len(line))]
  elif what == 'noise':
    lines[at] = rng.randbytes(40)
  elif what == 'none':
    lines = []
  else:
    lines.append(line)
  return f'line {at + 1}: {what}', b''.join(lines)


def record_cases(seed: int = 0) -> list[Case]:
  """Damaged records of runs and evaluations."""
  rng = random.Random(f'{seed}/records')
  found = [
    _record_case('report, untouched', _workdir(), _report, False),
    _record_case('report of nothing', {}, _report, True),
    _record_case('compare, untouched', _evaluation(), _compare, False),
    _record_case('compare nothing', {}, _compare, True),
  ]
  for files, arguments in ((_workdir(), _report), (_evaluation(), _compare)):
    names = sorted(files)
    for i in range(120):
      name = rng.choice(names)
      lines = name.endswith('.jsonl')
      what, content = _damaged_lines(
        files[name].splitlines(keepends=True) if lines else [files[name]], rng
      )
      case = f'{arguments.__name__[1:]} {i}: {name}, {what}'
      found.append(_record_case(case, {**files, name: content}, arguments, False))
  for content in (b'', b'{', b'[]', b'3', b'null', b'\xff\xfe', b'[' * 99999):
    files = {**_evaluation(), 'result.json': content}
    found.append(_record_case(f'compare, result.json {content[:9]!r}', files, _compare, True))
  return found
