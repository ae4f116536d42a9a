"""Exports the team of a run as a relocatable folder, with weights for transformers or peft.

    python launch/export.py --workdir=runs/quickstart --out=models/quickstart
    python launch/ask.py --workdir=models/quickstart --question="..."
    python launch/export.py --workdir=runs/quickstart --out=models/q --push_to_hub=OWNER/NAME
    python launch/export.py --workdir=runs/team --agent=solver --format=peft --out=models/solver

The folder has weights, tokenizer, `team.json` (config with roles, topology, tools and prices), one
example question and a model card; `ask`, `serve` and `evaluate` take it as --workdir, from the hub
as hf:OWNER/NAME. The checkpoint is the newest intact one, that of --step=N, or with --step=best the
best by the run's own evaluations. `hf` is a whole model, with a merged adapter if any; `peft` is
adapters alone, with their base model in `base` if the hub lacks it. If each agent has its own
policy, all are written as `peft`, or with --agent the policy of one, without the team.
Other trained models are in `members/<role>`.
--push_to_hub uploads the folder to a private repository.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from absl import flags

from agent_gspo.apps.commands import command

if TYPE_CHECKING:
  from agent_gspo.config.check import Parts
  from agent_gspo.models.transformer import Params
  from agent_gspo.training.setup import Setup

FORMATS = ('hf', 'peft')
_BASE = 'base'  # folder of the base model of adapters

_CHECKPOINT = command.define_checkpoint()
_OUT = command.define_folder('out', None, 'Folder for the team; made if it does not exist.')
_AGENT = flags.DEFINE_string('agent', None, 'Agent whose policy alone is exported.')
_FORMAT = flags.DEFINE_enum(
  'format', None, FORMATS, 'A whole model, or adapters; by default whole if one policy is written.'
)
_PUSH = flags.DEFINE_string('push_to_hub', None, 'OWNER/NAME to upload the folder to, private.')


def main() -> None:
  """Runs the command."""
  # The checkpoint comes last, since `chosen` reads all of it.
  if not _OUT.value or (saved := _CHECKPOINT.chosen()) is None:
    raise ValueError('give both --workdir (of a run) and --out (a folder for the model).')
  out = pathlib.Path(_OUT.value)
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise ValueError(f'--out={out} must be a new or an empty folder: it holds something already.')
  from agent_gspo.apps.commands import exported, model_card
  from agent_gspo.config import check as config_lib
  from agent_gspo.models import lora
  from agent_gspo.models.io import hf
  from agent_gspo.training import setup as setup_lib
  from agent_gspo.training import state as state_lib
  from agent_gspo.workdir import disk

  parts = config_lib.check(command.config_here(saved), training=False)
  adapters = _adapters(parts)
  whole = _FORMAT.value == 'hf' or (_FORMAT.value is None and list(adapters) == ['.'])
  setup = setup_lib.build(parts, only_weights=True)
  params = saved.restore_params(setup.config, setup.params)
  members, params = params.get(state_lib.MEMBERS, {}), state_lib.without_members(params)
  agent, workdir = _AGENT.value, _CHECKPOINT.workdir.value
  with disk.writing('the model', out):
    if whole:
      model, params = setup.model.config, lora.one_adapter(params, adapters['.'])
      hf.export_hf(model, lora.merge_adapters(model, params), out, setup.tokenizer)
      source, adapters = 'hf:.', {}
    else:
      source = _write_adapters(setup, params, out, adapters)
    if not agent:
      for member in (m for m in setup.members.values() if m.name):
        folder = out / exported.member_folder(member.name)
        weights = members[member.name]
        hf.export_hf(member.sampler.config, weights, folder, member.model.tokenizer)
      exported.write_team(out, parts, source, saved.step, list(adapters))
    title, license = pathlib.Path(workdir).resolve().name, model_card.license_of(setup.source)
    card = model_card.card(
      parts,
      f'{title}, {agent}' if agent else title,
      saved.step,
      license=license,
      figures=model_card.last_evaluation(workdir, saved.step),
      adapters=list(adapters),
      base=source.removeprefix('hf:').partition('@')[0],
      workdir=None if agent else f'hf:{_PUSH.value}' if _PUSH.value else '.',
    )
    (out / model_card.CARD).write_text(card, encoding='utf-8')
  print(f'wrote the {f"policy of {agent}" if agent else "team"} of step {saved.step} to {out}')
  if license == 'unknown':
    print(f'the license of {setup.source} was not found: set `license` in {out / model_card.CARD}')
  if _PUSH.value:
    print(f'uploaded to {exported.push(out, _PUSH.value)} (private)')


def _adapters(parts: Parts) -> dict[str, int]:
  """Returns the adapter to write in each folder; `.` alone for one policy."""
  agent, own, names = _AGENT.value, parts.sharing.adapters, parts.team.names
  if own is None:
    if agent:
      raise ValueError(f'--agent={agent}: all agents share one policy; leave it out.')
    return {'.': 0}
  if agent is None and _FORMAT.value != 'hf':
    return {f'adapters/{name}': i for name, i in zip(names, own, strict=True) if i >= 0}
  if agent not in names:
    given = '--agent is missing' if agent is None else f'--agent={agent}'
    raise ValueError(
      f'{given}: each agent has a policy of its own; name one of {", ".join(names)}.'
    )
  return {'.': own[names.index(agent)]}


def _write_adapters(
  setup: Setup, params: Params, out: pathlib.Path, adapters: dict[str, int]
) -> str:
  """Writes adapters, and their base model if the hub has none; returns the source of that."""
  from agent_gspo.models import lora
  from agent_gspo.models.io import hf, peft

  kind, _, base = setup.source.partition(':')
  on_hub = kind == 'hf' and not pathlib.Path(base).expanduser().is_dir()
  # A path would break when the folder is moved: peft looks it up from the current folder.
  name, _, revision = base.partition('@') if on_hub else (_BASE, '', '')
  for folder, index in adapters.items():
    one = lora.one_adapter(params, index)
    peft.export_peft(setup.model.config, one, out / folder, name, revision or None)
  if on_hub:
    return setup.source
  config = setup.model.config.without_adapters()
  hf.export_hf(config, lora.one_adapter(params, -1), out / _BASE, setup.tokenizer)
  return f'hf:{_BASE}'


def cli() -> None:
  """Parses the flags and runs the command."""
  command.run(main)
