"""Seconds of an environment's own code in a rollout, beside the seconds of a training step.

    python benchmarks/environment_time.py --config=configs/half_maze.py --workdir=runs/half_maze

Demonstrations play the episodes of three rollouts; a step is the median of the run's.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import runpy
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.config import check as config_lib
from agent_gspo.teams.policies import ScriptedPolicy, Turn
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import setup as setup_lib


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--config', required=True)
  parser.add_argument('--workdir', required=True, type=pathlib.Path)
  options = parser.parse_args()
  config = runpy.run_path(options.config)['get_config']()
  setup = setup_lib.build(config_lib.check(config))
  task, rng, spent = setup.task, random.Random(0), [0.0]

  def timed(function):
    def call(*arguments, **keywords):
      start = time.perf_counter()
      try:
        return function(*arguments, **keywords)
      finally:
        spent[0] += time.perf_counter() - start

    return call

  for name in ('begin', 'observe', 'act', 'outcome', 'score'):
    setattr(task, name, timed(getattr(task, name)))

  def script(turn: Turn) -> str:
    heard = [turn.delivered.get(agent, '') for agent in range(setup.team.num_agents)]
    probabilities = {'terse_probability': 0.5, 'silence_probability': 0.0}
    return task.demonstration(
      turn.question, turn.agent, heard, rng, state=turn.state, **probabilities
    )

  policy, questions, seconds = ScriptedPolicy(script, setup.tokenizer), task.questions('train'), []
  count, group_size = config.rollout.questions, config.rollout.group_size
  for i in range(3):
    spent[0], asked = 0.0, [questions[i * count + j] for j in range(count)]
    rollout(setup.team, task, setup.tokenizer, asked, group_size, policy)
    seconds.append(spent[0])
  lines = (options.workdir / 'metrics.jsonl').read_text().splitlines()
  step = statistics.median(json.loads(line)['time/step_s'] for line in lines)
  share = statistics.median(seconds) / step
  print(f'environment {statistics.median(seconds):.3f} s of a step of {step:.2f} s: {share:.1%}')


if __name__ == '__main__':
  main()
