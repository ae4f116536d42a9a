"""Stops runs while rollouts wait in a queue, and resumes them: they must end as if undisturbed.

Under the free schedule runs are not reproducible; there it checks that no rollout is lost.

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
import numpy as np
import run_comparison
import several_processes

import agent_gspo.training.ahead  # noqa: F401 (records to decode)
from agent_gspo.sharding import encoding
from agent_gspo.teams.policies import Reply

STEPS = 30
_STOPS_OF_A_RUN = 5
_AHEAD = 2
_OPTIONS = [
  f'--config.steps={STEPS}',
  f'--config.rollout.ahead={_AHEAD}',
  '--config.rollout.questions=2',
  '--config.evaluation.every=10',
  '--config.evaluation.seen_questions=0',
  '--config.sft.steps=0',
  '--config.logging.transcripts=99',  # all: with the questions drawn
]
_OF_SCHEDULE = {
  'fixed': ['--config.selection.name=spo', '--config.checkpoint.every=3'],
  # Questions in an order that no timing changes; many checkpoints, all with rollouts to keep.
  'free': ['--config.rollout.schedule=free', '--config.checkpoint.every=1'],
}
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
  folder: pathlib.Path,
  kills: int,
  terms: int,
  processes: int,
  seed: int = 0,
  actors: int = 0,
  schedule: str = 'fixed',
) -> int:
  """Delivers the signals while rollouts are queued; returns the number of runs, all compared.

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
    options = [*_OPTIONS, *_OF_SCHEDULE[schedule], f'--config.mesh.actors={actors}']
    made = several_processes.commands(folder / run, processes, 1 + actors, options)
    for index, command in enumerate(made):
      stops = stop is not None and index == stop[0]
      command[:2] = ['@'.join(map(str, ['train', *stop[1:]])) if stops else 'train']
    commands.append(made)
  pause = '0.1' if schedule == 'free' else '0'  # so that some are under way when a run is saved
  environment = {**several_processes.environment(1 + actors), 'LAYER_SECONDS': pause}
  for (run, stop), ends in zip(plan, _ends(commands, environment), strict=True):
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
  held = 0
  for run in runs:
    if schedule == 'free':
      held += _assert_nothing_lost(folder / run, folder / 'whole', STEPS)
    else:
      run_comparison.assert_same_run(folder / run, folder / 'whole', STEPS)
  assert held or schedule != 'free'
  return len(runs)


def _assert_nothing_lost(workdir: pathlib.Path, reference: pathlib.Path, steps: int) -> int:
  """Checks that each rollout was learned from once, with all saved replies.

  Returns the number of messages that the run resumed with.
  """
  for name in ('metrics.jsonl', 'eval.jsonl'):
    given, wanted = (run_comparison.records(run, name) for run in (workdir, reference))
    assert [x['step'] for x in given] == [x['step'] for x in wanted], name
  told, wanted = (run_comparison.records(run, 'transcripts.jsonl') for run in (workdir, reference))
  assert [_episode(x) for x in told] == [_episode(x) for x in wanted]
  names = [*dict.fromkeys(m['agent'] for episode in told for m in episode['messages'])]
  written = {}  # version and log-prob by episode, agent and round
  for episode in told:
    for m in episode['messages'] if episode['label'] == 'train' else ():
      at = (*_episode(episode)[1:], m['agent'], m['round'])
      written[at] = m['version'], m['logprob']
      assert 0 <= episode['step'] - 1 - m['version'] <= _AHEAD
  assert len({x['step'] for x in told if x['label'] == 'train'}) == steps
  finished = unfinished = 0
  for file in workdir.glob('held_*'):
    for step, _, _, replies, collected in encoding.decode(file.read_bytes()):
      for key, reply in replies.items():
        question, sample, agent, round_, *_ = key
        found = Reply(*reply)
        at = step + 1, question, sample, names[agent], round_
        assert written[at] == (found.version, _logprob(found.logprobs))
        unfinished += 1
      for m in collected.rollout.messages if collected else ():
        rollout = collected.rollout
        question = rollout.questions[rollout.episode_question[m.episode]].id
        at = step + 1, question, rollout.sample[m.episode], names[m.agent], m.round
        assert written[at] == (m.version, _logprob(m.logprobs))
        finished += 1
  print(f'{workdir.name}: checkpoints held {finished} messages of finished rollouts, ', end='')
  print(f'{unfinished} of others')
  return finished + unfinished


def _episode(record: dict) -> tuple:
  return record['label'], record['step'], record['question_id'], record['sample']


def _logprob(tokens: np.ndarray) -> float:
  """Returns the log-prob of a message, rounded as in transcripts."""
  return round(float(tokens.astype(float).sum()), 3)


def _ends(
  commands: list[list[list[str]]], environment: dict[str, str]
) -> list[tuple[tuple[int, str, str], ...]]:
  """Runs commands of several processes, one after another; returns statuses and outputs."""
  servers = [
    subprocess.Popen(
      [sys.executable, str(micro_run.CONFIG.parent / 'forked_commands.py')],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env=environment,
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
