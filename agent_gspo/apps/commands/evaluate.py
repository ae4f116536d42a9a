"""Evaluates a team, untrained or from a checkpoint, and baselines.

    python launch/evaluate.py --config=configs/quickstart.py [--workdir=runs/quickstart] \\
      [--step=N] [--out=DIR] [--baseline=single,self_consistency,chain,...] [--probes]
    python launch/evaluate.py --workdir=runs/a --partner=runs/b --partner_agents=solver
    OPENAI_API_KEY=... python launch/evaluate.py --config=configs/quickstart.py \\
      --endpoint=https://host/v1 --endpoint_model=NAME --out=DIR

Without --workdir (a run, an export or hf:OWNER/NAME) the team is untrained; without --config the
config is that of the run. --step selects another checkpoint than the newest: its step, or "best" by
the run's own evaluations. Questions, their number and the temperature are those of
config.evaluation. --out=DIR saves every answer (results.jsonl) and the figures (result.json); the
same command resumes a stopped evaluation. --dry_run prints the memory, questions, positions and
time of the team (each baseline needs as much again), and ends. With --partner the newest
checkpoint of another run of the same team plays --partner_agents. With --endpoint all agents use a
remote model over OpenAI's protocol, and token counts are its `usage`; of config.model only the
tokenizer is used. See docs/evaluation.md.
"""

import contextlib
import dataclasses
import functools
import json
import math
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from agent_gspo.apps.commands import command, config_flag

_CONFIG = config_flag.define()
_CHECKPOINT = command.define_checkpoint()
_OUT = command.define_folder('out', None, 'Folder for answers and figures.')
_BASELINE = flags.DEFINE_list('baseline', ['single'], 'Systems to compare with, or "all".')
_MATCH = command.define_folder(
  'match', None, 'Folder of an evaluation whose tokens are matched; by default those of the team.'
)
_PARTNER = command.define_folder('partner', None, 'Run or exported team that plays some agents.')
_PARTNER_AGENTS = flags.DEFINE_list('partner_agents', [], 'Names of the agents that it plays.')
_ENDPOINT = flags.DEFINE_string('endpoint', '', 'Address of an OpenAI-compatible endpoint.')
_ENDPOINT_MODEL = flags.DEFINE_string('endpoint_model', '', 'Name of the model at --endpoint.')
_PROBES = flags.DEFINE_bool('probes', False, 'Mute agents, blank and shuffle messages.')
_DRY_RUN = flags.DEFINE_bool('dry_run', False, 'Print what the evaluation costs, and end.')
_WRITTEN = command.define_amount('price_written', 'Price per million tokens written.')
_READ = command.define_amount('price_read', 'Price per million tokens read.')

_SILENCE = 10.0  # seconds between lines of progress in a log


def main() -> None:
  """Runs the command."""
  saved = None
  if _CONFIG.value is None and (saved := _CHECKPOINT.chosen()):
    config = command.config_here(saved)
  else:
    config = config_flag.load(_CONFIG)
  from agent_gspo.config import check as config_lib
  from agent_gspo.evaluation import reference_systems
  from agent_gspo.workdir import lock

  parts = config_lib.check(config, training=False)
  _check_endpoint(parts.team)
  _check_probes(parts.team, parts.task, parts.config.evaluation.split)
  partner = _partner(parts)
  has_single = len(parts.config.team.agents) > 1 and not parts.task.converse
  names = _names(reference_systems.BASELINES, has_single)
  if _DRY_RUN.value:
    from agent_gspo.training import loop

    loop.print_plan(config, training=False, whole=True)
    return
  out, saved = _OUT.value, saved or _CHECKPOINT.chosen()
  with lock.hold(out, '--out') if out else contextlib.nullcontext():
    _evaluate(parts, saved, partner, names)


def _evaluate(parts, saved, partner, names: Sequence[str]) -> None:
  """Evaluates the team of `parts` and the baselines `names`; prints and saves the figures."""
  from agent_gspo.apps.commands import evaluation_folder
  from agent_gspo.apps.reporting import formatting, tables
  from agent_gspo.evaluation import evaluate, harness, probes, reference_systems, variants
  from agent_gspo.teams import endpoint, policies
  from agent_gspo.training import setup as setup_lib
  from agent_gspo.workdir import records as workdir_records

  start = time.monotonic()
  if told := parts.task.note([parts.config.evaluation.split]):
    print(told)
  matched = evaluation_folder.read(_MATCH.value)[0] if _MATCH.value else None
  if saved:
    saved.check_params(parts.config)
  setup = setup_lib.build(parts)
  step, label = (saved.step, f'step {saved.step}') if saved else (0, 'untrained')
  policy: Any  # (temperature, name of the noise stream) -> the policy
  alone = 0
  if _ENDPOINT.value:
    label, speaker = _ENDPOINT_MODEL.value, f'{_ENDPOINT.value} {_ENDPOINT_MODEL.value}'
    first = endpoint.EndpointPolicy(
      _ENDPOINT.value, _ENDPOINT_MODEL.value, setup.tokenizer, 0.0, endpoint.api_key()
    )
    policy, alone = lambda t, stream: dataclasses.replace(first, temperature=t), first.parallel
  else:
    params = saved.restore_params(parts.config, setup.params) if saved else setup.params
    params = setup.own_copy(params)  # once, not for each baseline
    speaker = harness.digest_of_weights(params)
    policy = lambda t, stream: setup.policy(params, stream=stream, step=0, temperature=t)
    if partner:
      theirs = setup.own_copy(partner.restore_params(parts.config, setup.params))
      agents = _partner_agents(setup.team)
      speaker = f'{speaker}, {agents}: {harness.digest_of_weights(theirs)}'
      label = f'{label}, {" and ".join(_PARTNER_AGENTS.value)} of {_PARTNER.value}'
      ours = policy
      policy = lambda t, stream: functools.partial(
        policies.divided,
        author=lambda turn: turn.agent in agents,
        policies={
          False: ours(t, stream),
          True: setup.policy(theirs, stream=stream, step=0, temperature=t),
        },
      )
  run = _harness(setup, policy, step, alone)
  fingerprint = _fingerprint(setup, speaker, step)
  if _OUT.value:
    run = dataclasses.replace(run, answers=evaluation_folder.Folder(_OUT.value, fingerprint))
  before = run.answers.held()

  whole, records = run.run(label, variants.itself(setup.team))
  found = [whole]
  for value in parts.config.evaluation.told:
    told = dataclasses.replace(run, terms=setup.terms(value))
    name = workdir_records.told(told.terms, label)
    found.append(told.run(name, variants.itself(setup.team))[0])
  if not setup.task.converse:
    found.append(evaluate.constant_answer(run.asked, run.options.split))
  left_out = {}
  for name in names:
    try:
      found.append(reference_systems.baseline(run, name, whole, matched))
    except ValueError as error:  # a baseline that does not apply does not stop the others
      left_out[name] = str(error)
  probed = probes.run_all(run, whole, records) if _PROBES.value else []
  if _OUT.value:
    ids = [question.id for question in run.asked]
    result = {'evaluations': found, 'left_out': left_out, 'probes': probed, 'question_ids': ids}
    run.answers.finish({**result, 'evaluation': fingerprint, 'config': parts.config.to_dict()})
  shown = [tables.evaluation_table(whole), tables.comparison_table(found)]
  shown += [tables.probe_table(probed)] if probed else []
  for table in shown:
    print(tables.render_text(table, width=160))
  old = sum((r['variant'], r['asked'], r['sample']) in before for r in records)
  share = f'{len(records) - old} of {len(records)}' if old else f'{len(records)}'
  rest = ', the others before' if old else ''
  print(f'{share} episodes in {formatting.duration(time.monotonic() - start)}{rest}')
  short_of = [figures for figures in (*found, *probed) if 'failed' in figures]
  for figures in short_of:
    print(_failed(figures), file=sys.stderr)
  for name, reason in left_out.items():
    print(f'left out --baseline={name}: {" ".join(reason.split())}', file=sys.stderr)
  if left_out or short_of:
    raise SystemExit(1)


def _failed(figures) -> str:
  """Returns a line with the number and names of failed questions, and the first error."""
  failed = figures['failed']
  names = textwrap.shorten(', '.join(failed), 200, placeholder=' ...')
  label = figures.get('label') or figures['probe']
  told = f'{label}: {len(failed)} questions failed ({names}); the same command asks them again'
  return f'{told}. The first one: {" ".join(next(iter(failed.values())).split())}'


def _names(known, has_single: bool) -> list[str]:
  """Returns the requested baselines; `single` only if the team has one, or it is named."""
  names = list(known) if _BASELINE.value == ['all'] else [n for n in _BASELINE.value if n]
  for name in names:
    if name not in known:
      raise ValueError(f'--baseline={name} is unknown; use {", ".join(known)}, or all.')
  named = flags.FLAGS['baseline'].present and 'single' in _BASELINE.value
  return [name for name in names if has_single or named or name != 'single']


def _check_endpoint(team) -> None:
  if not _ENDPOINT.value and not _ENDPOINT_MODEL.value:
    return
  if not (_ENDPOINT.value and _ENDPOINT_MODEL.value):
    raise ValueError('--endpoint and --endpoint_model go together: give both.')
  if _CHECKPOINT.workdir.value:
    raise ValueError('--endpoint speaks for the team: leave out --workdir.')
  from agent_gspo.teams import endpoint

  endpoint.check_address(_ENDPOINT.value, endpoint.api_key())
  endpoint.check(team.roles)


def _partner(parts):
  """Returns the saved team of --partner, which must be the team of the config; None without one."""
  from agent_gspo.config import compatibility

  if not _PARTNER.value:
    if _PARTNER_AGENTS.value:
      raise ValueError('--partner_agents: of which run? Give its --partner.')
    return None
  if _ENDPOINT.value:
    raise ValueError('--endpoint speaks for the team: leave out --partner.')
  _partner_agents(parts.team)
  partner = command.saved_team(_PARTNER.value)
  try:
    partner.check_params(parts.config)
    compatibility.check_team(partner.config, partner.step, parts.config)
  except ValueError as error:
    raise ValueError(f'--partner={_PARTNER.value} has another team: {error}') from error
  return partner


def _partner_agents(team) -> tuple[int, ...]:
  """Returns the indices of --partner_agents, which the partner plays."""
  chosen = _PARTNER_AGENTS.value
  if not chosen or not {*chosen} <= {*team.names}:
    raise ValueError(
      f'--partner_agents={",".join(chosen)}: must name agents of the team that --partner plays; '
      f'there are {", ".join(team.names)}.'
    )
  return tuple(map(team.names.index, chosen))


def _check_probes(team, task, split: str) -> None:
  """Raises ValueError if --probes finds nothing to probe, before any long computation."""
  from agent_gspo.evaluation import probes

  if _PROBES.value:
    try:
      probes.check(team, task, split)
    except ValueError as error:
      raise ValueError(f'--probes: {error} Or leave out --probes.') from error


def _harness(setup, policy, step: int, alone: int):
  from agent_gspo.evaluation.harness import Harness

  return Harness(
    team=setup.team,
    task=setup.task,
    tokenizer=setup.tokenizer,
    policy=policy,
    options=setup.config.evaluation,
    diverse_temperature=setup.config.rollout.temperature,
    seed=setup.config.seed,
    step=step,
    prices=_prices(setup),
    terms=setup.terms(),
    note=_shower(),
    alone=alone,
  )


def _fingerprint(setup, speaker: str, step: int):
  """Returns the settings that answers depend on, without the number and batches of questions."""
  from agent_gspo.evaluation import harness, variants
  from agent_gspo.tasks.data import sources

  config = setup.config
  # Without paths: each answer has a digest of its question's content, `asked`.
  places = (*sources.OF_MACHINE, 'file')
  options = {k: v for k, v in config.task.options.items() if k not in places}
  return {
    'model': setup.source,
    'dtype': config.model.dtype,
    'weights': speaker,
    'step': step,
    'sharing': json.loads(json.dumps(dataclasses.asdict(setup.sharing), default=sorted)),
    'team': harness.describe(variants.itself(setup.team)),
    'task': {'name': config.task.name, 'options': options},
    'split': config.evaluation.split,
    'temperature': config.evaluation.temperature,
    'seed': config.seed,
  }


def _prices(setup):
  """Returns the prices of the flags, else of a reward in money, else None."""
  from agent_gspo.evaluation.results import Prices

  if _WRITTEN.value is not None or _READ.value is not None:
    return Prices(_WRITTEN.value or 0.0, _READ.value or 0.0, 'flags')
  reward = setup.config.reward
  if reward.cost == 'money':
    factors = dict(reward.prices)
    return Prices(reward.p_write, reward.p_read, 'config.reward', reward.p_tool, factors)
  return None


def _shower() -> Callable[[str], None]:
  """Returns a display of progress on stderr: one line in a terminal, else one every ten seconds."""
  last = -math.inf

  def show(text: str) -> None:
    nonlocal last
    if sys.stderr.isatty():
      print(f'\r\x1b[K{text}', end='', file=sys.stderr)
    elif time.monotonic() - last >= _SILENCE:
      last = time.monotonic()
      print(text, file=sys.stderr)

  return show


def cli() -> None:
  """Parses the flags and runs the command."""
  command.run(main)
