"""Stops runs while rollouts wait in a queue, and resumes them: they must end as if undisturbed.

A process sends itself a signal at a drawn call of one of `POINTS`, in whichever thread that is, and
only if a rollout of a later step than the learner's is waiting, under way or done.
"""

from __future__ import annotations

import json
import pathlib
import random
import re
import signal
import subprocess
import sys

import micro_run
import run_comparison
import several_processes

STEPS = 30
_STOPS_OF_A_RUN = 5
_OPTIONS = [
  f'--config.steps={STEPS}',
  '--config.rollout.ahead=2',
  '--config.rollout.questions=2',
  '--config.selection.name=spo',
  '--config.checkpoint.every=3',
  '--config.evaluation.every=10',
  '--config.evaluation.seen_questions=0',
  '--config.sft.steps=0',
  '--config.logging.transcripts=99',  # all: with the questions drawn
]
# Functions, with the most calls before the signal: so few that the run has as many left.
POINTS = {
  'agent_gspo.training.ahead:collect': 4,  # a rollout begins
  'agent_gspo.sampling.sampler:Sampler._finish': 8,  # decodes
  'agent_gspo.sharding.hosts:ThreadMeetings.gather': 4,  # has ended, and others wait for it
  'agent_gspo.training.ahead:Ahead._begin': 4,  # a step begins
  'agent_gspo.training.policy_loss:Programs.optimizer_step': 4,  # updates
  'agent_gspo.training.loop:Run._keep': 4,  # writes its records
  'agent_gspo.workdir.checkpoints:Checkpoints._finish': 2,  # a checkpoint is half written
}


def trial(
  folder: pathlib.Path, kills: int, terms: int, processes: int, seed: int = 0, actors: int = 0
) -> int:
  """Delivers so many signals in mid-queue; returns the number of runs, all of which are equal.

  Each process has `actors` devices and one that learns.
  """
  rng = random.Random(seed)
  signals = [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
  rng.shuffle(signals)
  plan: list[tuple[str, tuple[int, str, int, signal.Signals] | None]] = [('whole', None)]
  for first in range(0, len(signals), _STOPS_OF_A_RUN):
    for number in signals[first : first + _STOPS_OF_A_RUN]:
      point = rng.choice([*POINTS])
      stop = rng.randrange(processes), point, rng.randint(1, POINTS[point]), number
      plan.append((f'run{first}', stop))
    plan.append((f'run{first}', None))
  commands = []
  for run, stop in plan:
    options = [*_OPTIONS, f'--config.mesh.actors={actors}']
    made = several_processes.commands(folder / run, processes, 1 + actors, options)
    for index, command in enumerate(made):
      stops = stop is not None and index == stop[0]
      command[:2] = ['@'.join(map(str, ['train', *stop[1:]])) if stops else 'train']
    commands.append(made)
  for (run, stop), ends in zip(plan, _ends(commands, 1 + actors), strict=True):
    statuses, told = [status for status, *_ in ends], [error[-2000:] for *_, error in ends]
    if stop is None:
      assert not any(statuses), (run, told)
      continue
    victim, point, calls, number = stop
    found = re.search('waiting at .*', ends[victim][2])
    assert found, (run, stop, told)
    print(f'{run}: {number.name} to process {victim}, call {calls}: {found[0]}: {statuses}')
    if number == signal.SIGTERM:
      assert statuses == [130] * processes, (run, told)
      continue
    assert statuses.pop(victim) == -number, (run, told)
    # Without process 0, which coordinates, JAX may abort before the process ends.
    assert set(statuses) <= {2, *([] if victim else [-signal.SIGABRT])}, (run, told)
  runs = {run for run, _ in plan} - {'whole'}
  for run in runs:
    run_comparison.assert_same_run(folder / run, folder / 'whole', STEPS)
  return len(runs)


def _ends(commands: list[list[list[str]]], devices: int) -> list[tuple[tuple[int, str, str], ...]]:
  """Runs commands of several processes, one after another: their statuses and outputs."""
  servers = [
    subprocess.Popen(
      [sys.executable, str(micro_run.CONFIG.parent / 'forked_commands.py')],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env=several_processes.environment(devices),
      cwd=micro_run.folder(),
      text=True,
    )
    for _ in commands[0]
  ]
  try:
    for server, lines in zip(servers, zip(*commands, strict=True), strict=True):
      with server.stdin as stdin:
        json.dump(lines, stdin)
    return [*zip(*(json.load(server.stdout) for server in servers), strict=True)]
  finally:
    for server in servers:
      server.kill()  # it has ended, if nothing was wrong
      server.wait()
