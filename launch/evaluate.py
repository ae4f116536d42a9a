"""Evaluates a team, untrained or from a checkpoint, beside what guessing gives.

    python launch/evaluate.py --config=configs/quickstart.py [--workdir=runs/quickstart]

Without --workdir the team is the untrained one. The questions, their number and the
temperature are those of config.evaluation. --out=FILE.json keeps the figures,
--transcripts=FILE.jsonl the conversations.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from absl import flags

from launch import command

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of a run: its newest checkpoint is read.')
_OUT = flags.DEFINE_string('out', None, 'JSON file for the figures.')
_TRANSCRIPTS = flags.DEFINE_string('transcripts', None, 'JSON-lines file for the conversations.')


def main() -> None:
  """Runs the command."""
  config = command.load_config(_CONFIG)
  from agent_gspo import config as config_lib
  from agent_gspo.evaluation import transcripts
  from agent_gspo.reporting import json_lines, tables
  from agent_gspo.training import checkpoint
  from agent_gspo.training import setup as setup_lib

  setup = setup_lib.build(config, config_lib.check(config))
  params, step, label = setup.params, 0, 'untrained'
  if _WORKDIR.value:
    folder = pathlib.Path(_WORKDIR.value) / 'checkpoints'
    params, step = checkpoint.restore_params(folder, config, params)
    label = f'step {step}'
  for file in filter(None, (_OUT.value, _TRANSCRIPTS.value)):
    pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
  questions, split = config['evaluation']['questions'], config['evaluation']['split']
  record, batch = setup.evaluate(
    params, label=label, step=step, questions=questions, progress=_show
  )
  baselines = setup.baselines(params, questions)
  print(tables.render_text(tables.evaluation_table(record, baselines)))
  if _OUT.value:
    figures = {'model': setup.source, 'config': config, 'evaluations': [record, *baselines]}
    text = json.dumps(json_lines.to_plain(figures, {}), indent=2) + '\n'
    json_lines.replace(_OUT.value, [text.encode()])
  if _TRANSCRIPTS.value:
    episodes = transcripts.records(
      batch, range(len(batch.episodes)), step=step, split=split, label=label
    )
    lines = [json.dumps(json_lines.to_plain(e, {})) + '\n' for e in episodes]
    json_lines.replace(_TRANSCRIPTS.value, [line.encode() for line in lines])


def _show(done: int, total: int) -> None:
  if sys.stderr.isatty():
    print(f'\r{done} of {total} questions', end='\n' if done == total else '', file=sys.stderr)


if __name__ == '__main__':
  command.run(main)
