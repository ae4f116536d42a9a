"""Defines one piece of work for several libraries, and the clock that times it.

A step: 8 prompts of 64 tokens, 8 completions of exactly 64 tokens for each (temperature 1, the
whole vocabulary, without a stop token), a reward on the decoded text,
one AdamW update on GSPO's clipped sequence ratios, float32, no KL term. Random Llama weights.
Needs the standard library, numpy and tokenizers only: each library brings its own environment.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tokenizers

PROMPTS, SAMPLES = 8, 8
PROMPT_TOKENS, WRITTEN_TOKENS = 64, 64
VOCABULARY = 4096
PAD, EOS = '<pad>', '<eos>'  # the two ids after the model's vocabulary
LEARNING_RATE, GRAD_CLIP, CLIP_LOW, CLIP_HIGH = 1e-5, 1.0, 3e-4, 4e-4
ROPE_THETA, NORM_EPS, INIT_STD = 1e6, 1e-6, 0.02
SHAPES = {
  'small': {'layers': 4, 'width': 256, 'heads': 4, 'kv_heads': 2, 'mlp': 704},
  'large': {'layers': 8, 'width': 512, 'heads': 8, 'kv_heads': 4, 'mlp': 1408},
}
HEAD_DIM = 64


def parameters(shape: dict[str, int]) -> int:
  """Returns the number of parameters, which must be the same in every library."""
  width, kv = shape['width'], shape['kv_heads'] * HEAD_DIM
  layer = 2 * width * shape['heads'] * HEAD_DIM + 2 * width * kv + 3 * width * shape['mlp']
  return VOCABULARY * width + shape['layers'] * (layer + 2 * width) + width


def backend() -> tokenizers.Tokenizer:
  """Returns a word-level tokenizer, in which word `w17` is token 17."""
  words = [*(f'w{i}' for i in range(VOCABULARY)), PAD, EOS]
  found = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token='w0')
  )
  found.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  found.add_special_tokens([PAD, EOS])
  return found


def questions(steps: int) -> list[str]:
  """Returns the prompts of all steps, each once."""
  drawn = np.random.default_rng(0).integers(0, VOCABULARY, (steps * PROMPTS, PROMPT_TOKENS))
  return [' '.join(f'w{i}' for i in row) for row in drawn]


def score(text: str) -> float:
  """Returns the share of even words."""
  words = text.split()
  return sum(int(word[1:]) % 2 == 0 for word in words) / max(len(words), 1)


def options() -> argparse.Namespace:
  """Parses the flags of a process that does the work."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--shape', choices=SHAPES, required=True)
  parser.add_argument('--steps', type=int, required=True)
  parser.add_argument('--warmup', type=int, required=True)
  return parser.parse_args()


class Clock:
  """Records wall and processor seconds of the phases of each step."""

  def __init__(self, options: argparse.Namespace):
    self.options = options
    self.steps: list[dict[str, float]] = []
    self._first_ended = 0.0
    self._step: dict[str, float] = {}
    self._begin = _now()

  def start(self) -> None:
    """Starts the first step."""
    self._begin = _now()

  def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that its time is added to a phase."""

    def wrapped(*arguments, **named):
      begin = _now()
      try:
        return function(*arguments, **named)
      finally:
        self.add(phase, begin)

    return wrapped

  def add(self, phase: str, begin: tuple[float, float]) -> None:
    """Adds the time since `begin` (see `now`) to a phase."""
    for kind, a, b in zip(('s', 'cpu_s'), begin, _now(), strict=True):
      key = f'{phase}_{kind}'
      self._step[key] = self._step.get(key, 0.0) + b - a

  now = staticmethod(lambda: _now())

  def wrote(self, tokens: int) -> None:
    """Checks the number of tokens that a step wrote."""
    assert tokens == PROMPTS * SAMPLES * WRITTEN_TOKENS, f'{tokens} tokens written'

  def end_step(self) -> None:
    """Ends a step and starts the next one."""
    self.add('step', self._begin)
    self.steps.append(self._step)
    self._first_ended = self._first_ended or time.time()
    self._step, self._begin = {}, _now()

  def report(self, versions: dict[str, str]) -> None:
    """Prints all figures as the last line of the output."""
    found = {
      'versions': versions,
      'first_step_ended': self._first_ended,  # seconds since the epoch
      'steps': self.steps[self.options.warmup :],
      'peak_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print('\n' + json.dumps(found))


def _now() -> tuple[float, float]:
  return time.perf_counter(), time.process_time()
