"""Writes one HTML file with the curves, evaluations and transcripts of runs."""

from __future__ import annotations

import datetime
import html
import json
import pathlib
import string
from collections.abc import Iterable
from typing import Any

from agent_gspo.apps.reporting import report_data
from agent_gspo.workdir import json_lines, records

_ASSETS = pathlib.Path(__file__).parent / 'assets'
_SCRIPTS = ('dom', 'charts', 'summary', 'curves', 'agents', 'transcripts', 'main')


def write_report(
  workdirs: Iterable[records.PathLike] | records.PathLike, out: records.PathLike
) -> pathlib.Path:
  """Writes a report on one run, or on several side by side.

  The file is self-contained: styles, scripts and data are inlined, and its content-security policy
  forbids network access.

  Args:
    workdirs: Workdirs of runs, finished or not; a folder of workdirs means all of them.
    out: File to write, atomically.

  Raises:
    FileNotFoundError: A folder has no run.
    ValueError: `workdirs` is empty, or `out` is a folder.
  """
  folders = [workdirs] if isinstance(workdirs, str | pathlib.Path) else list(workdirs)
  if not folders:
    raise ValueError('workdirs is empty: name the workdir of a run at least')
  runs = records.load_runs(folders)
  data = report_data.build(runs)
  now = datetime.datetime.now(datetime.UTC)
  data['written'] = now.strftime('%Y-%m-%d %H:%M UTC')
  title = runs[0].name if len(runs) == 1 else f'{len(runs)} runs'
  out = pathlib.Path(out)
  if out.is_dir():
    raise ValueError(f'{out} is a folder: name a file, such as {out / "report.html"}')
  out.parent.mkdir(parents=True, exist_ok=True)
  json_lines.replace(out, [render(title, data).encode(errors='replace')])
  return out


def render(title: str, data: Any) -> str:
  """Returns the HTML page for the result of `report_data.build`."""
  asset = lambda name: (_ASSETS / name).read_text(encoding='utf-8')
  return string.Template(asset('report.html')).substitute(
    title=html.escape(f'agent_gspo: {title}'),
    style=asset('report.css'),
    script='\n'.join(asset(f'{name}.js') for name in _SCRIPTS),
    data=script_json(data),
  )


def script_json(data: Any) -> str:
  """Returns JSON that is safe inside a script element.

  It has no "<", so neither "</script>" nor "<!--" can end the element, whatever the agents wrote.
  It is ASCII, as decoded tokens may contain lone surrogates.

  Raises:
    ValueError: The data has NaN or infinity.
  """
  text = json.dumps(data, allow_nan=False, separators=(',', ':'))
  return text.replace('&', '\\u0026').replace('<', '\\u003c').replace('>', '\\u003e')
