"""Writes the policy of a run as a folder that transformers or peft loads.

    python launch/export.py --workdir=runs/quickstart --out=models/quickstart
    python launch/export.py --workdir=runs/team --agent=solver --format=peft --out=models/solver

The checkpoint is the newest intact one, that of --step=N, or with --step=best the best by the run's
own evaluations; the config is the checkpoint's. `hf` is a whole model, adapters merged into its
weights; `peft` is the adapter alone, with its base model in `base` if that has no Hugging Face
folder of its own. If each agent has its own policy, --agent selects one.
"""

import pathlib

from absl import flags

from agent_gspo.apps.commands import command

FORMATS = ('hf', 'peft')

_CHECKPOINT = command.define_checkpoint()
_OUT = flags.DEFINE_string('out', None, 'Folder for the model; made if it does not exist.')
_AGENT = flags.DEFINE_string('agent', None, 'Whose policy, where they are several.')
_FORMAT = flags.DEFINE_enum('format', 'hf', FORMATS, 'A whole model, or the adapter alone.')


def main() -> None:
  """Runs the command."""
  # The checkpoint last, since `chosen` reads all of it.
  if not _OUT.value or (saved := _CHECKPOINT.chosen()) is None:
    raise ValueError('give both --workdir (of a run) and --out (a folder for the model).')
  out = pathlib.Path(_OUT.value)
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise ValueError(f'--out={out} must be a new or an empty folder: it holds something already.')
  from agent_gspo.config import check as config_lib
  from agent_gspo.models import lora
  from agent_gspo.models.io import hf
  from agent_gspo.training import setup as setup_lib
  from agent_gspo.workdir import disk

  parts = config_lib.check(command.config_here(saved), training=False)
  adapter = _adapter(parts, _AGENT.value)
  setup = setup_lib.build(parts)
  params = saved.restore_params(setup.config, setup.params)
  params = lora.one_adapter(params, adapter)
  with disk.writing('the model', _OUT.value):
    if _FORMAT.value == 'peft':
      _write_peft(setup, params, _OUT.value)
    else:
      model = setup.model.config
      hf.export_hf(model, lora.merge_adapters(model, params), _OUT.value, setup.tokenizer)
  whose = f' of {_AGENT.value}' if _AGENT.value else ''
  print(f'wrote the policy{whose} of step {saved.step} to {_OUT.value}')


def _adapter(parts, agent: str | None) -> int:
  """Returns the index of the adapter to write, -1 for none."""
  adapters = parts.sharing.adapters
  known = ', '.join(parts.team.names)
  if adapters is None:
    if agent:
      raise ValueError(f'--agent={agent}: all agents share one policy; leave it out.')
    return 0
  if agent not in parts.team.names:
    given = '--agent is missing' if agent is None else f'--agent={agent}'
    raise ValueError(f'{given}: each agent has a policy of its own; name one of {known}.')
  return adapters[parts.team.names.index(agent)]


def _write_peft(setup, params, out: str) -> None:
  from agent_gspo.models import lora
  from agent_gspo.models.io import hf, peft

  kind, _, base = setup.source.partition(':')
  if kind != 'hf':
    base = str(pathlib.Path(out).absolute() / 'base')
  revision = None
  if kind == 'hf' and not pathlib.Path(base).is_dir():
    base, _, revision = base.partition('@')
  peft.export_peft(setup.model.config, params, out, base, revision)
  if kind != 'hf':
    config = setup.model.config.without_adapters()
    hf.export_hf(config, lora.one_adapter(params, -1), base, setup.tokenizer)


def cli() -> None:
  """Parses the flags and runs the command."""
  command.run(main)
