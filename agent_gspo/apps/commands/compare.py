"""Compares two evaluations of the same questions: differences with paired intervals.

    python launch/compare.py A B

A and B are folders of launch/evaluate.py --out, or FOLDER:LABEL for one of the baselines in
it, such as evaluations/svamp:chain. Task options may differ, as between a team and the agent that
it was distilled into, if the gold answers are the same. The interval is a bootstrap over questions
(see agent_gspo/evaluation/statistics.py); if it excludes 0, A and B differ.
"""

from __future__ import annotations

import os

from agent_gspo.apps.commands import command, evaluation_folder
from agent_gspo.apps.reporting import tables
from agent_gspo.evaluation import results
from agent_gspo.workdir import disk


def cli() -> None:
  """Parses the arguments and runs the command."""
  parser = command.arguments(__doc__)
  parser.add_argument('systems', nargs=2, metavar='DIR[:LABEL]', help='folder of an evaluation')
  options = parser.parse_args()
  try:
    (first, a), (second, b) = (_read(system) for system in options.systems)
    named = [(figures['task']['name'], figures['split']) for figures in (first, second)]
    if named[0] != named[1]:
      raise ValueError('the evaluations are of different tasks or splits.')
    failed = {*first['failed'], *second['failed']}
    a, b = ([r for r in records if r['question_id'] not in failed] for records in (a, b))
    rows = results.differences(a, b)
  except (ValueError, OSError) as error:
    command.fail(str(error), error)
  names = [str(first['label']), str(second['label'])]
  if names[0] == names[1]:
    names = list(options.systems)
  print(tables.render_text(tables.difference_table(names, rows)))
  count = len({record['question_id'] for record in a})
  print(f'{count} questions' + f', {len(failed)} that failed in one left out' * bool(failed))


def _read(system: str):
  text = str(disk.folder(system, 'DIR'))
  colons = [i for i, character in enumerate(text) if character == ':']
  ends = [i for i in (len(text), *colons) if os.path.isdir(text[:i])]
  end = (*ends, *colons, len(text))[0]  # labels may hold colons, too
  return evaluation_folder.read(text[:end], text[end + 1 :])
