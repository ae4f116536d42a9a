"""Compares mathematical expressions in a process of its own, by math-verify and sympy.

A request is one line of JSON on standard input, its reply one line on standard output:

  {"gold": latex, "answer": latex}  ->  true if they are equal, else false
  {"expression": latex}             ->  sympy's spelling of it, or null

A request that takes too much processor time ends this process without a reply, by a
signal that no library catches; so does the end of the input. Not part of the package's
imports: `math_grader` runs this file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import signal
import sys

import math_verify

_SECONDS = 2.0
_MEMORY_BYTES = 4 << 30


def _parse(latex: str) -> list:
  # Without its own timeout, which is by signal; ours is harder.
  config = [math_verify.LatexExtractionConfig()]
  return math_verify.parse(f'${latex}$', config, fallback_mode='no_fallback', parsing_timeout=None)


def _reply(request: dict[str, str]) -> bool | str | None:
  if 'expression' in request:
    found = _parse(request['expression'])
    return str(found[0]) if found else None
  gold, answer = _parse(request['gold']), _parse(request['answer'])
  return bool(gold and answer and math_verify.verify(gold, answer, timeout_seconds=None))


def _main() -> None:
  logging.disable(logging.CRITICAL)
  with contextlib.suppress(ValueError, OSError):  # Not every system has this limit.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
  for line in sys.stdin:
    # Its signal is not handled, so it ends the process wherever it is.
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
      reply = _reply(json.loads(line))
    # A sampled text may make the parser do anything, recursion and memory included.
    except Exception:
      reply = None
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(reply), flush=True)


if __name__ == '__main__':
  _main()
