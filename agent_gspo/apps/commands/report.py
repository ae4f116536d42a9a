"""Writes an HTML report on one run, or on several side by side.

    python launch/report.py DIR [DIR...] [--out=FILE]

DIR is the workdir of a run, finished or not, or a folder of workdirs (such as a sweep's).
The report is one file that opens in any browser, without a network.
"""

from __future__ import annotations

import pathlib
import warnings

from agent_gspo.apps.commands import command
from agent_gspo.apps.reporting import html_report


def cli() -> None:
  """Parses the arguments and runs the command."""
  parser = command.arguments(__doc__)
  parser.add_argument('folders', nargs='+', metavar='DIR', help='workdir, or folder of workdirs')
  parser.add_argument(
    '--out', metavar='FILE', help='what to write; report.html in DIR, or here if DIR is several'
  )
  options = parser.parse_args()
  folder = pathlib.Path(options.folders[0]) if len(options.folders) == 1 else pathlib.Path()
  warnings.formatwarning = lambda message, *_: f'warning: {message}\n'
  try:
    out = html_report.write_report(options.folders, options.out or folder / 'report.html')
  except (ValueError, OSError) as error:
    command.fail(str(error), error)
  print(f'wrote {out} ({out.stat().st_size / 1e6:.1f} MB)')
