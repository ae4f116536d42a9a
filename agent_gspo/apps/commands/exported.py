"""Writes and finds exported teams: weights, tokenizer, `team.json`, examples and a model card.

`team.json` has the run's config, in which sources of exported models are relative to the folder,
and in `exported` the step and the folders of adapters. So the folder may be moved, or uploaded to
the Hugging Face hub.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_gspo.workdir import records

if TYPE_CHECKING:
  from agent_gspo.config import Config
  from agent_gspo.config.check import Parts
  from agent_gspo.models.io.fields import Fields
  from agent_gspo.models.transformer import Params

TEAM, EXAMPLES = records.TEAM, 'examples.jsonl'
_OWN = ('grader', 'question', 'answer')  # exported options of own questions


@dataclasses.dataclass(frozen=True)
class Exported:
  """Location and config of an exported team, used like a checkpoint (`checkpoints.Saved`)."""

  folder: pathlib.Path
  step: int  # finished steps
  config: dict[str, Any]  # config of its run, with its own weights as `model.source`
  adapters: Sequence[str]  # folder of each adapter

  def check_params(self, config: Config) -> None:
    """Checks that a config describes this team's model.

    Raises:
      ValueError: It does not; names the field.
    """
    from agent_gspo.config import compatibility

    ours = type(config).from_dict(self.config)
    for field in (*compatibility.MODEL, 'team.agents') if self.adapters else ('model.source',):
      theirs, own = (operator.attrgetter(field)(c) for c in (config, ours))
      if json.dumps(theirs) != json.dumps(own):
        raise ValueError(
          f'{field}={theirs!r}, but {own!r} in {self.folder / TEAM}: an exported team has its own '
          f'weights. Leave out --config, or begin with --config={self.folder / TEAM}.'
        )

  def restore_params(self, config: Config, like: Params) -> Params:
    """Returns the loaded weights `like` with this team's adapters.

    Raises:
      FileNotFoundError, ValueError: See `check_params`; or an adapter is missing or damaged.
    """
    import flax.traverse_util

    from agent_gspo.models import lora
    from agent_gspo.models.io import hf, peft

    self.check_params(config)
    if not self.adapters:
      return like
    base = hf.read_config(hf.resolve(config.model.source.removeprefix('hf:'))[0])
    found = [peft.read_peft(base, self.folder / name) for name in self.adapters]
    flat = flax.traverse_util.flatten_dict(like, sep='/')
    paths = [path for path in flat if lora.is_adapter(path.rpartition('/')[2])]
    for name, adapter in zip(self.adapters, found, strict=True):
      if absent := sorted({*paths} - adapter.keys()):
        raise ValueError(
          f'{self.folder / name}: the adapter lacks {absent[0]} ({len(absent)} of {len(paths)} '
          'arrays are missing); export the team again.'
        )
    for path in paths:
      array = np.stack([adapter[path] for adapter in found])
      flat[path] = array if flat[path].ndim == 3 else array[0]
    return flax.traverse_util.unflatten_dict(flat, sep='/')

  def asked_config(self, saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a config whose own questions are the examples, as their file is not exported."""
    task = saved['task']
    if task['name'] != 'questions':
      return saved
    kept = {k: v for k, v in task['options'].items() if k in _OWN}
    task = {'name': 'questions', 'options': {**kept, 'file': str(self.folder / EXAMPLES)}}
    return {**saved, 'task': task}


def find(workdir: str) -> Exported | None:
  """Returns the exported team in a folder, or in `hf:<owner>/<name>`; None for other folders.

  Raises:
    FileNotFoundError: The hub has no such team.
    ValueError: `team.json` is damaged.
  """
  from agent_gspo.models.io import fields, hf

  kind, _, name = workdir.partition(':')
  folder = hf.resolve(name, also=[EXAMPLES])[0] if kind == 'hf' else pathlib.Path(workdir)
  file = folder / TEAM
  if not file.is_file():
    if kind == 'hf':
      raise FileNotFoundError(
        f'--workdir={workdir} holds no {TEAM}: it is a model, not a team. Give it to a team as '
        f'--config.model.source={workdir}.'
      )
    return None
  found = fields.Fields(fields.read_object(file), str(file))
  about = found.section('exported')
  step, adapters = about.whole('step', low=0), about.get('adapters')
  config = located(found, folder)
  config.pop('exported')
  return Exported(folder.absolute(), step, config, adapters)


def located(found: Fields, folder: pathlib.Path) -> dict[str, Any]:
  """Returns the values of `team.json` with sources relative to `folder` made absolute."""

  def here(fields: Fields, field: str) -> dict[str, Any]:
    source = str(fields.get(field, ''))
    inside = folder.absolute() / source.removeprefix('hf:')
    is_inside = source.startswith('hf:') and inside.is_dir()
    return {**fields.values, field: f'hf:{inside}' if is_inside else source}

  team = found.section('team')
  roles = team.section('roles')
  own = {name: here(roles.section(name), 'model') for name in roles.values}
  model = here(found.section('model'), 'source')
  return {**found.values, 'model': model, 'team': {**team.values, 'roles': own}}


def write_team(
  folder: pathlib.Path, parts: Parts, source: str, step: int, adapters: Sequence[str]
) -> None:
  """Writes `team.json` and an example question beside exported weights.

  Other models that learned are in `members/<name>`, see `Team.trained`. `source`, that of the
  weights, and the folder of each adapter (none if the weights are whole) are relative to `folder`.
  """
  from agent_gspo.models.io.fields import write_object
  from agent_gspo.tasks.data import sources

  saved = parts.config.to_dict()
  saved['model'] |= {'source': source} | ({} if adapters else {'lora_rank': 0})
  roles = {role.name: dataclasses.asdict(role) for role in parts.team.roles}
  for role in roles.values():
    del role['name']
    if role['trains']:
      role['model'] = f'hf:{member_folder(parts.team.trained[role["model"]])}'
  saved['team'] |= {'roles': roles}
  options = parts.config.task.options
  saved['task']['options'] = {k: v for k, v in options.items() if k not in sources.OF_MACHINE}
  saved['logging']['wandb_project'] = ''
  write_object(folder / TEAM, {**saved, 'exported': {'step': step, 'adapters': list(adapters)}})
  split = parts.config.evaluation.split
  question = parts.task.questions(split)[0]
  names = options if parts.config.task.name == 'questions' else {}
  row: dict[str, Any] = {names.get('question', 'question'): question.text}
  row |= {names.get('answer', 'answer'): question.answer, 'notes': question.notes}
  row |= {'documents': question.documents, 'split': split}
  (folder / EXAMPLES).write_text(json.dumps(row), encoding='utf-8')


def member_folder(name: str) -> str:
  """Returns the folder of another model that learned, relative to the export's."""
  return f'members/{name}'


def push(folder: pathlib.Path, name: str) -> str:
  """Uploads a folder to a private repository of the Hugging Face hub; returns its address.

  Raises:
    ConnectionError: The hub refused it.
    ValueError: The repository is there and public.
  """
  import huggingface_hub
  from huggingface_hub import errors

  try:
    huggingface_hub.create_repo(name, private=True, exist_ok=True)  # one that exists stays as it is
    if not huggingface_hub.model_info(name).private:
      raise ValueError(
        f'--push_to_hub={name}: that repository is public; must be private or new. {folder} is '
        f'written: make the repository private, or publish it with `hf upload {name} {folder}`.'
      )
    return str(huggingface_hub.upload_folder(repo_id=name, folder_path=folder))
  except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
    raise ConnectionError(
      f'--push_to_hub={name}: the hub refused it ({error}). {folder} is written; log in with '
      '`hf auth login`, then `hf upload OWNER/NAME FOLDER`.'
    ) from error
