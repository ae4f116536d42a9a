"""Writes an HTML report on one run or evaluation, or on several side by side.

    python launch/report.py DIR [DIR...] [--out=FILE | --serve[=PORT]]

DIR is the workdir of a run, finished or not, a folder of `launch/evaluate.py --out`, or a folder of
these (such as a sweep's). The report is one file that opens in any browser, without a network.
--serve shows it at http://localhost:PORT instead and follows the run.
"""

from __future__ import annotations

import pathlib
import warnings

from agent_gspo.apps.commands import command
from agent_gspo.apps.reporting import html_report
from agent_gspo.workdir import disk


def cli() -> None:
  """Parses the arguments and runs the command."""
  parser = command.arguments(__doc__)
  parser.add_argument(
    'folders', nargs='+', metavar='DIR', help='run, evaluation, or folder of them'
  )
  parser.add_argument(
    '--out', metavar='FILE', help='what to write; report.html in DIR, or here if DIR is several'
  )
  parser.add_argument('--serve', nargs='?', type=int, const=8020, metavar='PORT', help='8020')
  options = parser.parse_args()
  warnings.formatwarning = lambda message, *_: f'warning: {message}\n'
  try:
    folders = [disk.folder(folder, 'DIR') for folder in options.folders]
    if options.serve is not None:
      if options.out:
        raise ValueError('--serve writes no file: leave out --out, or --serve.')
      server = html_report.serve(folders, options.serve)
      print(f'http://localhost:{server.server_port} shows the report; Ctrl-C ends it', flush=True)
      server.serve_forever()
      return
    first = folders[0] if len(folders) == 1 else pathlib.Path()
    out = disk.folder(options.out, '--out') if options.out else first / 'report.html'
    html_report.write_report(folders, out)
  except (ValueError, OSError, OverflowError) as error:  # the last is of a port
    command.fail(str(error), error)
  except KeyboardInterrupt:
    return
  print(f'wrote {out} ({out.stat().st_size / 1e6:.1f} MB)')
