"""Runs commands of launch/ that end early, many in one process: the imports are paid once.

`python forked_commands.py` reads a JSON list of argument lists, the first of each naming the
command, and writes a list of `[exit status, stdout, stderr]`.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import runpy
import sys
import tempfile

# A script finds what lies beside it, not the package above.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import micro_run

import agent_gspo.training.loop  # noqa: F401 (what a command would import)


def main() -> None:
  gc.freeze()  # children would walk all that is imported as they end: a third of a second each
  results = []
  for name, *arguments in json.load(sys.stdin):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
      child = os.fork()
      if not child:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        file = str(micro_run.ROOT / 'launch' / f'{name}.py')
        sys.argv = [file, *arguments]
        runpy.run_path(file, run_name='__main__')
        os._exit(0)  # commands exit by themselves
      _, status = os.waitpid(child, 0)
      texts = []
      for file in (out, err):
        file.seek(0)
        texts.append(file.read().decode())
      results.append([os.waitstatus_to_exitcode(status), *texts])
  json.dump(results, sys.stdout)


if __name__ == '__main__':
  main()
