"""Defines HumanEval: functions to write, graded by running their tests (arXiv 2107.03374)."""

from __future__ import annotations

import bisect
import concurrent.futures
import dataclasses
import functools
import gzip
import os
import re
import textwrap
from collections.abc import Collection, Sequence

from agent_gspo import sandbox
from agent_gspo.options import option
from agent_gspo.tasks.benchmarks.official import FileTask
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.grading import answer_marks, graders
from agent_gspo.types import Question

_SOURCE = sources.Source(
  'humaneval/data/HumanEval.jsonl',
  'openai/human-eval',
  '6d43fb9',
  '1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2',
  remote_path='data/HumanEval.jsonl.gz',
  rewrite=gzip.decompress,
)

# The indentation of a fence in a list is that of the text of its item.
_FENCE = re.compile(r'(?P<indent>\s*+(?:(?:[-*+]|\d++[.)])\s++)?+)[^`~]*+(?P<marks>```+|~~~+)[^`]*')
_FUNCTION = re.compile(r'^(?:async )?def (\w+)', re.MULTILINE)
_CLASS = re.compile(r'^class (\w+)', re.MULTILINE)
_IMPORTS = re.compile(r'^(?:from [\w.]+ )?import (\([^()]*\)|[^#\n]*)', re.MULTILINE)
_NAME = r'[A-Za-z_][\w.]*(?: as \w+)?'
_STATEMENT = re.compile(
  rf'(?:from [\w.]+ import .+|import {_NAME}(?:, ?{_NAME})*'
  r'|(?:async )?def \w+ ?\(.*|class \w.*:|@\w.*)\s*'
)
# Possible beginning of a body that lost the indentation of its first line.
_BODY = re.compile(
  r'(?:return|raise|yield|assert|del|pass|global|nonlocal)\b|(?:if|for|while|with|try|match)\b.*:'
  r'|[^\s=#][^=\n]*=(?!=)|[\w.]+\(|#.*\n[^\S\n]'
)
_INDENTED = re.compile(r'\s|$|#')  # comments may have any indentation
_CONTINUED = re.compile(r'\s|$|#|[)\]}]|[A-Za-z_]\w* ?(?::[^=]*)?[-+*/|]?=(?!=)|if __name__\b')
_FUTURE = re.compile(r'^from __future__ import .*\n?', re.MULTILINE)


@dataclasses.dataclass(eq=False, kw_only=True)
class HumanEval(FileTask):
  """HumanEval's 164 functions with their tests, all in the test split.

  A question is the official prompt: signature and docstring of the function, sometimes
  with imports and helpers before it. Its answer is the official solution, the body of
  the function. An answer is right if all official tests pass in the sandbox (pass@1).

  The grader 'legacy' makes a program of an answer as AgentPrune and AgentDropout do
  (`graders.legacy_program`). It runs in the sandbox, under the same limits, on the official prompts
  and tests; theirs are 161 reworded ones.

  Raises:
    sandbox.SandboxUnavailableError: if code cannot be run safely on this machine; raised
      here, before any answer is sampled.
  """

  name = 'human_eval'
  GRADERS = dict.fromkeys(('strict', 'legacy'))

  # Processor time of a solution. The official harness allows 3 seconds of wall time, which on a
  # busy machine fails right answers.
  cpu_seconds: int = option(5, least=1)
  # Time of a solution and its tests. One that only sleeps is stopped after
  # `sandbox.Limits.idle_seconds`.
  wall_seconds: float = option(30.0, above=0)
  workers: int | None = option(None, least=1)  # answers graded in parallel; None: one per core

  def __post_init__(self):
    super().__post_init__()
    sandbox.mechanisms()
    records = sources.parse_lines(self._fetch(_SOURCE).read_text(encoding='utf-8'))
    self._records = {record['task_id']: record for record in records}
    self._questions = tuple(
      Question(id=record['task_id'], text=record['prompt'], answer=record['canonical_solution'])
      for record in records
    )

  def _split(self, split: str) -> Sequence[Question]:
    return self._questions if split == 'test' else ()

  def _empty_remedy(self, split: str) -> str:
    return f'HumanEval has tests only; use split=test, and another task for {split}'

  def gold_messages(self, question: Question) -> tuple[tuple[str, str], ...]:
    """Returns (), as the official program is one of many right ones."""
    del question
    return ()

  def canonical(self, answer_text: str) -> str | None:
    """Returns the code in the answer, without blank lines; equal programs may differ.

    The question of a vote is unknown, so the wanted function of any question counts.
    """
    names = [record['entry_point'] for record in self._records.values()]
    legacy = self.grader == 'legacy'
    code = graders.legacy_program(answer_text) if legacy else extract_code(answer_text, names)
    return code and '\n'.join(line.rstrip() for line in code.split('\n') if line.strip())

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1 if the code in the answer passes all official tests, else 0."""
    record = self._records[question.id]
    prompt, name = record['prompt'], record['entry_point']
    if self.grader == 'legacy':
      program = graders.legacy_program(answer_text)
    elif (code := extract_code(answer_text, (name,))) is not None:
      program = complete_program(prompt, code, name)
    else:
      return 0.0
    outcome = sandbox.run_tests(
      program,
      name,
      f'{record["test"]}\ncheck({name})\n',
      setup=prompt,  # Some tests call a helper that the prompt defines.
      limits=sandbox.Limits(cpu_seconds=self.cpu_seconds, wall_seconds=self.wall_seconds),
    )
    return float(outcome.ok)

  def score_all(self, questions: Sequence[Question], answer_texts: Sequence[str]) -> list[float]:
    """Returns the `score` of each pair, in order; grades several in parallel."""
    workers = self.workers or len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
      graded = [
        pool.submit(self.score, *pair) for pair in zip(questions, answer_texts, strict=True)
      ]
      return [future.result() for future in graded]


def extract_code(message: str, names: Collection[str] = ()) -> str | None:
  """Returns the code in a model's message, None if there is none.

  Fenced blocks come first: the last one that defines a wanted function, after the helpers of
  earlier blocks that it needs. Later blocks, such as tests, are left out. If none does: the last
  one that defines any function, else the first one. An unclosed block extends to the end
  of the message. Without fences: from the first line that begins a definition or an import to
  the first later line at the margin that is prose. A message that begins with an indented line,
  or like a body, continues the prompt, up to its next line at the margin.

  The first fence may close a block that the prompt opened: no block defines a wanted function,
  and the text before the fence does, or is a continuation with an odd number of fences.

  Args:
    message: Model output, of which `answer_marks.passage` is read.
    names: Wanted function; several if it is unknown which of them is wanted.
  """
  message = re.sub(r'\A(?:\s*\n)+', '', answer_marks.passage(message))
  lines = message.split('\n')
  blocks = _fenced(lines)
  if not any(_wanted(block, names) for block in blocks):
    opened = _opened_before(lines, names)
    if opened and not _wanted(opened[0], names):
      return opened[0]
    blocks = opened or blocks
  for i in reversed(range(len(blocks))):
    wanted = _functions(blocks[i]).intersection(names)
    if wanted:
      return '\n'.join([*_helpers(blocks[:i], blocks[i], wanted), blocks[i]])
  if blocks:
    return ([block for block in blocks if _functions(block)][-1:] or blocks[:1])[0]
  return _unfenced(lines, names)


def _unfenced(lines: Sequence[str], names: Collection[str]) -> str | None:
  """Returns the code in lines, the first of which is not blank; None if there is none."""
  if lines[0][:1].isspace() and lines[0].strip():
    return _upto(lines, _INDENTED)
  start = next((i for i, line in enumerate(lines) if _STATEMENT.fullmatch(line)), len(lines))
  if start and _BODY.match('\n'.join(lines[:2])) and not _wanted('\n'.join(lines[start:]), names):
    return '\n'.join([lines[0], _upto(lines[1:], _INDENTED)]).rstrip()
  kept = re.compile(f'{_STATEMENT.pattern}|{_CONTINUED.pattern}')
  return _upto(lines[start:], kept) or None


def _opened_before(lines: Sequence[str], names: Collection[str]) -> list[str]:
  """Returns the blocks of a message whose first fence closes one, [] otherwise."""
  fences = [(i, match) for i, line in enumerate(lines) if (match := _FENCE.fullmatch(line))]
  if not fences:
    return []
  at, fence = fences[0]
  head = [*lines[:at], fence.string[: fence.start('marks')]]
  code = _unfenced(head, names)
  if code is None:
    return []
  closes = len(fences) % 2 and not fence.string[fence.end('marks') :].strip()
  if _wanted(code, names) or (closes and code.startswith(head[0].rstrip())):
    return [code, *_fenced(lines[at + 1 :])]
  return []


def complete_program(prompt: str, code: str, name: str) -> str:
  """Joins the prompt and the code of an answer to a program that defines the function `name`.

  The code may repeat the function, with or without the imports and helpers of the prompt, or
  be only its body, with or without indentation, possibly of the first line alone.
  """
  if re.search(rf'^(?:async )?def {re.escape(name)}\b', code, re.MULTILINE):
    future = ''.join(_FUTURE.findall(code))  # Allowed at the very beginning only.
    return f'{future}{prompt}\n{_FUTURE.sub("", code)}\n'
  return f'{prompt}{_indented(code)}\n'


def _indented(body: str) -> str:
  """Indents the body of a function; its first line aligns with the rest of its block."""
  first, *rest = body.lstrip('\n').split('\n')
  own = len(first) - len(first.lstrip())
  code = [line for line in rest if not re.match(r'\s*(?:#|$)', line)]
  indents = [line[: len(line) - len(line.lstrip())] for line in code]
  least = min(indents, key=len, default='')
  # All the others may be the block that the first line opens.
  if own < len(least) and not (
    first.partition('#')[0].rstrip().endswith(':') and indents[0] == least
  ):
    return '\n'.join([least + first.lstrip(), *rest])
  return body if own else textwrap.indent(body, '    ')


def _fenced(lines: Sequence[str]) -> list[str]:
  """Returns the fenced blocks that are not blank, without their common indentation.

  A closing fence is no deeper than its opening one, since deeper ones belong to docstrings; if
  there is none, it may be up to three spaces deeper, as in Markdown.
  """
  stripped = ((i, line, line.lstrip()) for i, line in enumerate(lines))
  fences = [
    (i, len(line) - len(bare), bare)
    for i, line, bare in stripped
    if bare.startswith(('```', '~~~'))
  ]

  @functools.cache  # avoids quadratic time for messages with many unclosed fences
  def closing(marks: str, most: int) -> list[int]:
    return [i for i, depth, bare in fences if depth <= most and bare.startswith(marks)]

  blocks, start = [], 0
  while start < len(lines):
    opening = _FENCE.fullmatch(lines[start])
    start += 1
    if opening is None:
      continue
    end = len(lines)
    for deeper in (3, 0):
      at = closing(opening['marks'], len(opening['indent']) + deeper)
      following = bisect.bisect_left(at, start)
      end = at[following] if following < len(at) else end
    blocks.append(textwrap.dedent('\n'.join(lines[start:end])).strip('\n'))
    start = end + 1
  return [block for block in blocks if block.strip()]


def _helpers(earlier: Sequence[str], block: str, wanted: Collection[str]) -> list[str]:
  """Returns the blocks of `earlier`, in order, with a definition or import that `block` lacks.

  Blocks that define or call a wanted function are left out: they are older versions, or
  examples of its use, which fail before its definition.
  """
  call = re.compile(rf'\b(?:{"|".join(map(re.escape, wanted))})\s*\(')
  used, bound = _words(block) | {'*'}, _bound(block)
  found: list[str] = []
  for other in reversed(earlier):  # The newest version of a helper counts.
    binds = _bound(other)
    if not used.isdisjoint(binds - bound) and not call.search(other):
      used |= _words(other)
      bound |= binds
      found.append(other)
  return found[::-1]


def _functions(code: str) -> set[str]:
  """Returns the functions defined at the margin."""
  return set(_FUNCTION.findall(code))


def _wanted(code: str, names: Collection[str]) -> bool:
  """Returns whether code defines one of the functions, or any function if `names` is empty."""
  return not _functions(code).isdisjoint(names) if names else bool(_functions(code))


def _bound(code: str) -> set[str]:
  """Returns the functions, classes and imports at the margin."""
  imported = (_words(names) for names in _IMPORTS.findall(code))
  return _functions(code).union(_CLASS.findall(code), *imported) - {'as'}


def _words(code: str) -> set[str]:
  return set(re.findall(r'\w+|\*', code))


def _upto(lines: Sequence[str], kept: re.Pattern[str]) -> str:
  """Returns the leading lines that match."""
  end = next((i for i, line in enumerate(lines) if not kept.match(line)), len(lines))
  return '\n'.join(lines[:end]).rstrip()
