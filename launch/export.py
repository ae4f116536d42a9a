"""Writes the policy of a run as a Hugging Face folder, which transformers loads.

    python launch/export.py --workdir=runs/quickstart --out=models/quickstart

The newest checkpoint is taken, with the config that it was made with; adapters are merged
into the weights.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from absl import flags

from launch import command

_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of a run.')
_OUT = flags.DEFINE_string('out', None, 'Folder for the model; made if it does not exist.')


def main() -> None:
  """Runs the command."""
  if not _WORKDIR.value or not _OUT.value:
    raise ValueError('give both --workdir (of a run) and --out (a folder for the model).')
  from agent_gspo import config as config_lib
  from agent_gspo.models import hf, lora
  from agent_gspo.training import checkpoint
  from agent_gspo.training import setup as setup_lib

  folder = pathlib.Path(_WORKDIR.value) / 'checkpoints'
  config = checkpoint.saved_config(folder)
  setup = setup_lib.build(config, config_lib.check(config))
  params, step = checkpoint.restore_params(folder, config, setup.params)
  model_config = setup.model.config
  hf.export_hf(model_config, lora.merge_adapters(model_config, params), _OUT.value, setup.tokenizer)
  print(f'wrote the policy of step {step} to {_OUT.value}')


if __name__ == '__main__':
  command.run(main)
