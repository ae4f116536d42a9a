"""Runs one config at several settings and seeds, and reports on them together.

    python launch/sweep.py --config=configs/tiny.py --workdir=runs/lambda \\
      --lambdas=0,0.005,0.01,0.02,0.04 --seeds=0,1,2

Settings come from --lambdas (values of budget.lambda_tok), from --vary=FIELD=V1,V2 (several
make a grid) or from --setting="NAME: FIELD=VALUE FIELD=VALUE", once each. Finished runs are
skipped, stopped ones resume, and a failed one does not stop the others.
--config.<field>=<value> applies to all runs. Writes sweep.json, sweep.md (mean over seeds, lowest
and highest) and report.html to the workdir. To compare with baselines, give launch/report.py the
workdir and the folders of `launch/evaluate.py --out`.
"""

from __future__ import annotations

import functools
import json
import math
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from agent_gspo.apps import sweep
from agent_gspo.apps.commands import command, config_flag
from agent_gspo.apps.reporting import html_report
from agent_gspo.workdir import disk, json_lines, lock

_Number = TypeVar('_Number', int, float)


def cli() -> NoReturn:
  """Parses the arguments and runs the command; ends with status 1 if a run failed."""
  parser = command.arguments(__doc__)
  parser.add_argument('--config', required=True, help='name or file of the config')
  parser.add_argument('--workdir', required=True, help='folder of the runs')
  parser.add_argument('--lambdas', default='', help='values of budget.lambda_tok')
  parser.add_argument('--vary', action='append', default=[], metavar='FIELD=V1,V2')
  parser.add_argument('--setting', action='append', default=[], metavar='"NAME: FIELD=VALUE"')
  parser.add_argument('--seeds', default='0,1,2', help='comma between them')
  parser.add_argument('--jobs', type=int, default=1, help='runs at a time')
  options, overrides = parser.parse_known_args()
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  # A shell's background job ignores it, but the runs do not.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    options.workdir = disk.folder(options.workdir, '--workdir')
    for argument in overrides:
      if not argument.startswith('--config.') or '=' not in argument:
        raise ValueError(f'unknown argument {argument!r}; fields are --config.<field>=<value>.')
    settings = _settings(options.lambdas, options.vary, options.setting)
    seeds = _numbers('seeds', options.seeds, int)
    fields = [argument.removeprefix('--config.').partition('=')[0] for argument in overrides]
    fields += [field for setting in settings for field in setting.fields]
    if 'seed' in fields:
      raise ValueError('seed is set by --seeds; give the values there.')
    config_flag.check_fields(options.config, fields)
    todo = sweep.points(options.workdir, settings, seeds)
    if options.jobs < 1:
      raise ValueError(f'--jobs={options.jobs} must be at least 1.')
    with lock.hold(options.workdir):
      status = _sweep(options, overrides, todo)
  except (ValueError, OSError) as error:
    command.fail(str(error), error)
  except KeyboardInterrupt:
    raise SystemExit(130) from None
  sys.exit(status)


def _sweep(options, overrides, todo) -> int:
  show = functools.partial(print, flush=True)
  failed = sweep.run_missing(todo, options.config, overrides, jobs=options.jobs, note=show)
  found = sweep.summary(todo)
  if not any(setting['seeds'] for setting in found):
    print('no run has ended: nothing to show', file=sys.stderr)
    return 1
  folder = options.workdir
  record = dict(config=options.config, overrides=overrides, settings=found)
  json_lines.replace(folder / 'sweep.json', [(json.dumps(record, indent=2) + '\n').encode()])
  text = f'{sweep.table(found)}\n\nmean [lowest, highest] over seeds'
  json_lines.replace(folder / 'sweep.md', [(text + '\n').encode()])
  print(text)
  runs = [folder / name for setting in found for name in setting['workdirs']]
  html_report.write_report(runs, folder / 'report.html')
  print(f'wrote sweep.json, sweep.md and report.html to {folder}')
  return 1 if failed else 0


def _settings(lambdas: str, varied: Sequence[str], named: Sequence[str]) -> list[sweep.Setting]:
  axes = []
  if lambdas:
    _numbers('lambdas', lambdas, float)
    axes.append(('budget.lambda_tok', lambdas.split(',')))
  for text in varied:
    field, equals, values = text.partition('=')
    if not equals or not values:
      raise ValueError(f'--vary={text}: write FIELD=VALUE,VALUE.')
    axes.append((field, values.split(',')))
  settings = sweep.grid(axes) if axes else []
  for text in named:
    name, colon, fields = text.partition(':')
    pairs = [pair.partition('=') for pair in fields.split()]
    if not colon or not name.strip() or not all(field and equals for field, equals, _ in pairs):
      raise ValueError(f'--setting={text}: write "NAME: FIELD=VALUE FIELD=VALUE".')
    if twice := sweep.twice([field for field, _, _ in pairs]):
      raise ValueError(f'--setting={text}: {twice} is given twice; give it once.')
    settings.append(sweep.Setting(name.strip(), {field: value for field, _, value in pairs}))
  if not settings:
    raise ValueError('nothing to sweep: give --lambdas, --vary or --setting.')
  return settings


def _numbers(flag: str, text: str, kind: Callable[[str], _Number]) -> list[_Number]:
  """Returns the comma-separated numbers of a flag; they must be distinct."""
  found: list[_Number] = []
  for part in text.split(','):
    try:
      number = kind(part)
    except ValueError as error:
      what = 'whole number; write such as 0,1,2' if kind is int else 'number'
      raise ValueError(f'--{flag}={text}: {part!r} is no {what}.') from error
    if isinstance(number, float) and not math.isfinite(number):
      raise ValueError(f'--{flag}={text}: {part!r} must be a finite number.')
    if number in found:
      raise ValueError(f'--{flag}={text}: {part!r} is given twice; give each number once.')
    found.append(number)
  return found
