"""Writes one HTML file with the curves, evaluations and transcripts of runs, or serves it."""

from __future__ import annotations

import datetime
import hashlib
import html
import http.server
import json
import pathlib
import string
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from agent_gspo.apps.reporting import report_data
from agent_gspo.workdir import json_lines, records

_ASSETS = pathlib.Path(__file__).parent / 'assets'
_NAMES = ('127.0.0.1', 'localhost')  # of the served page
_SCRIPTS = ('seeds', 'dom', 'charts', 'summary', 'curves', 'agents', 'transcripts', 'main')


def write_report(
  folders: Iterable[records.PathLike] | records.PathLike, out: records.PathLike
) -> pathlib.Path:
  """Writes a report on one run or evaluation, or on several side by side.

  The file is self-contained: styles, scripts and data are inlined, and its content-security policy
  forbids network access.

  Args:
    folders: See `report_data.load`; runs may be unfinished.
    out: File to write, atomically.

  Raises:
    FileNotFoundError: A folder has no run and no evaluation.
    ValueError: `folders` is empty, or `out` is a folder.
  """
  folders = [folders] if isinstance(folders, str | pathlib.Path) else list(folders)
  page = _page(folders)
  out = pathlib.Path(out)
  if out.is_dir():
    raise ValueError(f'{out} is a folder: name a file, such as {out / "report.html"}')
  out.parent.mkdir(parents=True, exist_ok=True)
  json_lines.replace(out, [page])
  return out


def serve(folders: Sequence[records.PathLike], port: int) -> http.server.ThreadingHTTPServer:
  """Returns a server of the report on this machine; the open page follows the files.

  Call its `serve_forever()`. Port 0 takes a free one.

  Raises:
    FileNotFoundError: A folder has no run and no evaluation.
    OSError: The port is taken.
  """
  report_data.find(folders)

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
      # Refuses other host names, which a web page may have pointed here (DNS rebinding). Any port,
      # since ports may be forwarded.
      known = self.headers.get('Host', '').lower().partition(':')[0] in _NAMES
      if not known or self.path != '/':
        self.send_error(404 if known else 403)
        return
      try:
        version = _version(folders)
        body = _page(folders, version) if self.command == 'GET' else b''
      except OSError as error:  # such as a workdir that was removed
        self.send_error(404, explain=str(error))
        return
      self.send_response(200)
      self.send_header('ETag', version)
      self.send_header('Content-Type', 'text/html; charset=utf-8')
      self.end_headers()
      self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *unused_arguments: Any) -> None:
      """Writes no log."""

  class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *where: Any) -> None:
      if not isinstance(sys.exception(), ConnectionError):  # unless the tab was closed
        super().handle_error(*where)

  return Server((_NAMES[0], port), Handler)


def _version(folders: Sequence[records.PathLike]) -> str:
  """Returns a digest of the times of all files that a report reads."""
  files = [path for folder in report_data.find(folders) for path in sorted(folder.iterdir())]
  times = [path.stat().st_mtime_ns for path in files if path.suffix in ('.json', '.jsonl')]
  return hashlib.sha256(repr(times).encode()).hexdigest()


def _page(folders: Sequence[records.PathLike], version: str = '') -> bytes:
  """Returns the page; one with a version asks its server for a newer one."""
  if not folders:
    raise ValueError('folders is empty: name the workdir of a run at least')
  runs = report_data.load(folders)
  now = datetime.datetime.now(datetime.UTC)
  data = report_data.build(runs) | {'written': now.strftime('%Y-%m-%d %H:%M UTC')}
  title = runs[0].name if len(runs) == 1 else f'{len(runs)} runs'
  return render(title, {**data, 'version': version}).encode(errors='replace')


def render(title: str, data: Any) -> str:
  """Returns the HTML page for the result of `report_data.build`."""
  asset = lambda name: (_ASSETS / name).read_text(encoding='utf-8')
  return string.Template(asset('report.html')).substitute(
    title=html.escape(f'agent_gspo: {title}'),
    connect="connect-src 'self'; " if data.get('version') else '',
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
