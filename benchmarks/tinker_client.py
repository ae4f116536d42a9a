"""Times the training loop of a `tinker` client on SmolLM2 behind `launch/serve.py --tinker`.

    python benchmarks/tinker_client.py

One agent reads quickstart's examples, a question and all its notes, and answers with an equation.
The loop is a client's: it samples all questions of a step at once, scores them, and asks for
gradients of `importance_sampling` with advantages centered by question, then for a step of AdamW.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np
import tinker

from agent_gspo.models import load
from agent_gspo.tasks.registry import make_task
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.team import make_team
from agent_gspo.types import Question
from configs import quickstart

ROOT = pathlib.Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def served(folder: str) -> Iterator[tinker.ServiceClient]:
  """Starts the server in a process of its own and yields a client."""
  with socket.socket() as some:
    some.bind(('127.0.0.1', 0))
    port = some.getsockname()[1]
  command = [sys.executable, str(ROOT / 'launch' / 'serve.py'), f'--port={port}']
  command += [f'--config={ROOT / "configs" / "quickstart.py"}', f'--tinker={folder}']
  process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
  try:
    while True:
      if process.poll() is not None:
        raise RuntimeError(f'the server ended with status {process.returncode}')
      with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port)):
        break
      time.sleep(0.1)
    yield tinker.ServiceClient(base_url=f'http://127.0.0.1:{port}', api_key='tml-any')
  finally:
    process.terminate()
    process.wait()


def prompt_of(solver: PromptWriter, question: Question) -> list[int]:
  """Returns the ids of the solver's prompt, with each note as a message."""
  notes = [('', solver.encode(f' {note}')) for note in question.notes if note]
  return solver.begin(question, len(notes)).prompt(notes).tolist()


def datum(prompt: list[int], sequence: Any, advantage: float) -> tinker.types.Datum:
  """Returns a sequence whose sampled tokens have an advantage, and those of the prompt none."""
  ids, blank = [*prompt, *sequence.tokens], [0.0] * (len(prompt) - 1)
  inputs = {
    'target_tokens': np.asarray(ids[1:]),
    'logprobs': np.asarray([*blank, *sequence.logprobs], np.float32),
    'advantages': np.asarray([*blank, *[advantage] * len(sequence.tokens)], np.float32),
  }
  read = tinker.types.ModelInput.from_ints(ids[:-1])
  return tinker.types.Datum(model_input=read, loss_fn_inputs=inputs)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--steps', type=int, default=7)
  parser.add_argument('--questions', type=int, default=8)
  parser.add_argument('--samples', type=int, default=8, help='of a question')
  parser.add_argument('--learning_rate', type=float, default=1e-3)
  options = parser.parse_args()
  config = quickstart.get_config()
  task = make_task('relay', **config.task.options.to_dict())
  tokenizer = load.open_model(config.model.source).tokenizer
  solver = PromptWriter(make_team(config.team.to_dict()).roles[-1], tokenizer)
  params = tinker.types.SamplingParams(max_tokens=12, temperature=1.0, stop=[*solver.stop_ids])

  with tempfile.TemporaryDirectory() as folder, served(folder) as service:
    training = service.create_lora_training_client(base_model='team', rank=16, seed=0).result()
    print('step  right, %  sample, s  gradient, s  step, s')
    for step in range(options.steps):
      first = step * options.questions
      asked = [task.questions('train')[first + i] for i in range(options.questions)]
      prompts = [prompt_of(solver, question) for question in asked]
      times = [time.monotonic()]
      client = training.save_weights_and_get_sampling_client().result()
      read = [tinker.types.ModelInput.from_ints(prompt) for prompt in prompts]
      futures = [client.sample(prompt, options.samples, params) for prompt in read]
      replies = [future.result().sequences for future in futures]
      times.append(time.monotonic())
      scores = np.asarray(
        [
          [task.score(q, solver.text(x.tokens, x.stop_reason == 'stop')) for x in sequences]
          for q, sequences in zip(asked, replies, strict=True)
        ]
      )
      advantages = scores - scores.mean(axis=1, keepdims=True)
      data = [
        datum(prompt, sequence, advantage)
        for prompt, sequences, own in zip(prompts, replies, advantages, strict=True)
        for sequence, advantage in zip(sequences, own, strict=True)
      ]
      training.forward_backward(data, 'importance_sampling').result()
      times.append(time.monotonic())
      training.optim_step(tinker.types.AdamParams(learning_rate=options.learning_rate)).result()
      times.append(time.monotonic())
      print(f'{step:4} {100 * scores.mean():9.1f}', *(f'{x:10.2f}' for x in np.diff(times)))


if __name__ == '__main__':
  main()
