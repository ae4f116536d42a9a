"""Checks by mutation that the tests of the formulas fail if a formula is wrong.

    python benchmarks/mutation_check.py
    python benchmarks/mutation_check.py --modules algorithms/objectives/kl.py rewards/ties.py

Makes one small mistake at a time in each function of agent_gspo/algorithms and agent_gspo/rewards
(a sign, a side of a clip, a mask, a mean for a sum, an epsilon, a stop-gradient, a comparison) and
runs the tests of that module on it. Prints the share of mistakes that they catch and each one
that survives, and writes benchmarks/results/mutation_check.json. --list shows the mistakes and runs
none.

Each mutant runs in a forked child of one process that has imported jax and pytest: the child
imports the changed source as the module and runs the tests until the first failure; those that
name the changed function come first. JAX_COMPILATION_CACHE_DIR, if set, caches compiled programs
for the next run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import dataclasses
import functools
import importlib.abc
import importlib.util
import inspect
import io
import json
import linecache
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.common import ROOT

# Module -> its tests; those that fail soonest come first.
_ALL = 'algorithms/test_advantages.py'  # properties of every estimator
TESTS: dict[str, tuple[str, ...]] = {
  'algorithms/advantages/estimators.py': (_ALL,),
  'algorithms/advantages/group_baselines.py': ('algorithms/test_group_baselines.py',),
  'algorithms/advantages/hierarchical.py': ('algorithms/test_hierarchical.py', _ALL),
  'algorithms/advantages/message_worth.py': ('algorithms/test_worth_advantages.py', _ALL),
  'algorithms/attribution.py': ('algorithms/test_attribution.py',),
  'algorithms/budgets.py': ('algorithms/test_budgets.py',),
  'algorithms/advantages/inputs.py': (_ALL,),
  'algorithms/advantages/groups.py': ('algorithms/test_groups.py', _ALL),
  'algorithms/objectives/kl.py': ('algorithms/test_kl.py',),
  'algorithms/objectives/off_policy.py': ('algorithms/test_off_policy.py',),
  'algorithms/objectives/losses.py': ('algorithms/test_objectives.py', 'algorithms/test_spans.py'),
  'algorithms/options.py': (
    'algorithms/test_objectives.py',
    'algorithms/test_budgets.py',
    'algorithms/test_terms.py',
    'config/test_config.py',
  ),
  'algorithms/presets.py': (),  # a table
  'algorithms/objectives/parts.py': ('algorithms/test_objectives.py', 'algorithms/test_spans.py'),
  'algorithms/objectives/minibatch_order.py': ('algorithms/test_minibatch_order.py',),
  'algorithms/selection.py': ('algorithms/test_selection.py',),
  'algorithms/objectives/spans.py': ('algorithms/test_spans.py',),
  'algorithms/advantages/turn_level.py': ('algorithms/test_turn_level.py', _ALL),
  'algorithms/terms.py': ('algorithms/test_terms.py',),
  'rewards/bounds.py': ('rewards/test_rewards.py',),
  'rewards/communication.py': ('rewards/test_rewards.py', 'teams/test_tools.py'),
  'rewards/options.py': (
    'rewards/test_rewards.py',
    'rewards/test_scores.py',
    'config/test_config.py',
  ),
  'rewards/length_rewards.py': ('rewards/test_length_rewards.py', 'rewards/test_rewards.py'),
  'rewards/returns.py': ('environments/test_environment.py',),
  'rewards/scores.py': ('rewards/test_scores.py',),
  'rewards/ties.py': ('rewards/test_ties.py',),
}

# (module, function, mutation) that no test can tell from the original, and why.
EQUIVALENT: dict[tuple[str, str, str], str] = {
  (
    'algorithms/advantages/group_baselines.py',
    'rloo',
    'np.maximum(others, 1.0) -> np.maximum(others, 0.0)',
  ): 'where nothing is left to compare with, the quotient is not taken',
  (
    'algorithms/advantages/message_worth.py',
    'worth',
    'np.maximum(total(measured), 1.0) -> np.maximum(total(measured), 0.0)',
  ): 'of a group in which nothing was measured, no mean is read',
  ('rewards/bounds.py', '_length_reward_gap', 'max -> min'): (
    'a told budget below half of the cost punishes both ends alike, too'
  ),
  (
    'rewards/length_rewards.py',
    'efficient',
    'np.clip(_ratio(lengths - mean, std), -30.0, 30.0) -> '
    'np.clip(_ratio(lengths - mean, std), -30.0, 30000.0)',
  ): 'above 30 the sigmoid is 1 to 1e-13, and exp(-z) only underflows to 0',
  ('rewards/ties.py', 'estimator.estimate', 'ones / 2 -> ones'): (
    'read by spo_single alone, whose whitening takes a constant out'
  ),
}

# Name -> its replacement; a dotted name only in that spelling.
_SWAPS = {
  'minimum': 'maximum',
  'min': 'max',
  'argmin': 'argmax',
  'clip_low': 'clip_high',
  'low': 'high',
  'mean': 'sum',
}
_SWAPS |= {new: old for old, new in _SWAPS.items()}
_SWAPS |= {
  'median': 'mean',
  'message_mean': 'message_sum',
  'weighted_mean': 'message_mean',
  'message_sum': 'message_mean',
  'aggregation.sequence_mean': 'aggregation.token_sum',
  'aggregation.token_sum': 'aggregation.sequence_mean',
  'aggregation.token_mean': 'aggregation.token_sum',
}
_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_COMPARISONS = {
  ast.Lt: ast.GtE,
  ast.LtE: ast.Gt,
  ast.Eq: ast.NotEq,
  ast.Is: ast.IsNot,
  ast.In: ast.NotIn,
}
_COMPARISONS |= {new: old for old, new in _COMPARISONS.items()}
_MASK = re.compile(r'mask|weight|share|scale|kept|keep|alive|valid|real|inside|gate|silent')
_FLOORED = ('maximum', 'max', 'clip')
_EPSILON = 1e-2


@dataclasses.dataclass(frozen=True)
class Mutant:
  """One mistake.

  Attributes:
    module: File below `agent_gspo/`.
    function: Function that it changes.
    line: Line number in the file.
    change: Old and new expression.
    source: Source of the whole changed module.
  """

  module: str
  function: str
  line: int
  change: str
  source: str

  @property
  def key(self) -> tuple[str, str, str]:
    return self.module, self.function, self.change

  def __str__(self) -> str:
    return f'agent_gspo/{self.module}:{self.line} {self.function}: {self.change}'


def mutants(module: str) -> Iterator[Mutant]:
  """Yields every mutant of the functions of a module."""
  tree = ast.parse((ROOT / 'agent_gspo' / module).read_text(encoding='utf-8'))
  for function, parent, field, index in _places(tree):
    old = getattr(parent, field) if index is None else getattr(parent, field)[index]
    floor = _is_floor(parent, field, index)
    right = ast.unparse(parent if floor else old)
    for new in _mistakes(old, floor):
      _put(parent, field, index, new)
      change = f'{right} -> {ast.unparse(parent if floor else new)}'
      yield Mutant(module, function, old.lineno, change, ast.unparse(tree))
      _put(parent, field, index, old)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
  if index is None:
    setattr(parent, field, node)
  else:
    getattr(parent, field)[index] = node


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.AST, str, int | None]]:
  """Yields `(function, parent, field, index)` of each expression inside a function."""

  def visit(node: ast.AST, name: str):
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
      return  # messages
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      name = f'{name}.{node.name}' if name else node.name
    inside = name and not isinstance(node, ast.ClassDef)
    for field, value in ast.iter_fields(node):
      if field in ('annotation', 'returns', 'decorator_list', 'bases'):
        continue
      for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
        if not isinstance(child, ast.AST):
          continue
        if inside and isinstance(child, ast.expr | ast.AugAssign) and _in_function(node, tree):
          yield name, node, field, index
        yield from visit(child, name)

  yield from visit(tree, '')


def _in_function(node: ast.AST, tree: ast.Module) -> bool:
  """Returns whether `node` is a function or inside one (not only in a class or the module)."""
  functions = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)]
  return any(node is inner for f in functions for inner in ast.walk(f))


def _is_floor(parent: ast.AST, field: str, index: int | None) -> bool:
  """Returns whether an argument is a bound, as in `maximum(x, bound)`."""
  call = isinstance(parent, ast.Call) and field == 'args' and index
  return bool(call) and _last_name(parent.func) in _FLOORED


def _last_name(node: ast.AST) -> str:
  return node.attr if isinstance(node, ast.Attribute) else getattr(node, 'id', '')


def _mistakes(node: ast.AST, floor: bool) -> Iterator[ast.AST]:
  """Yields the replacements of `node`."""
  changed = lambda **fields: _with(node, **fields)
  match node:
    case ast.BinOp(left=left, op=op, right=right):
      text = isinstance(left, ast.Constant | ast.JoinedStr) and not _number(left)
      if type(op) in _OPERATORS and not text:
        yield changed(op=_OPERATORS[type(op)]())
      if isinstance(op, ast.Div):
        yield left  # a mean becomes a sum
      if isinstance(op, ast.Mult | ast.BitAnd):
        both = isinstance(op, ast.BitAnd)
        if both or _MASK.search(ast.unparse(right)):
          yield left
        if both or _MASK.search(ast.unparse(left)):
          yield right
    case ast.AugAssign(op=op) if type(op) in _OPERATORS:
      yield changed(op=_OPERATORS[type(op)]())
    case ast.UnaryOp(op=ast.USub() | ast.Invert() | ast.Not(), operand=operand):
      yield operand
    case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
      yield changed(ops=[_COMPARISONS[type(op)]()])
    case ast.Call(func=function, args=[_, first, second]) if _last_name(function) == 'where':
      yield from (first, second)
    case ast.Call(func=function, args=[inner, *_]) if _last_name(function) == 'stop_gradient':
      yield inner
    case ast.Attribute(attr=name):
      dotted = _SWAPS.get(ast.unparse(node))
      if dotted:
        yield ast.parse(dotted, mode='eval').body
      elif name in _SWAPS:
        yield changed(attr=_SWAPS[name])
    case ast.Name(id=name, ctx=ast.Load()) if name in _SWAPS:
      yield changed(id=_SWAPS[name])
    case ast.Constant() if _number(node):
      if node.value and (floor or abs(node.value) <= _EPSILON):
        yield changed(value=0.0)
        yield changed(value=node.value * 1000)


def _number(node: ast.AST) -> bool:
  return isinstance(getattr(node, 'value', None), int | float) and not isinstance(node.value, bool)


def _with(node: ast.AST, **fields: Any) -> ast.AST:
  new = copy.copy(node)
  for name, value in fields.items():
    setattr(new, name, value)
  return new


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Imports one module from a source of its own."""

  def __init__(self, module: str, source: str):
    self.name = 'agent_gspo.' + module.removesuffix('.py').replace('/', '.')
    self.file, self.source = str(ROOT / 'agent_gspo' / module), source

  def find_spec(self, name, path=None, target=None):
    if name == self.name:
      return importlib.util.spec_from_file_location(name, self.file, loader=self)
    return None

  def create_module(self, spec):
    return None

  def exec_module(self, module):
    exec(compile(self.source, self.file, 'exec'), module.__dict__)


class _NearestFirst:
  """Sorts tests: first those with the function's name in theirs, then those that mention it."""

  def __init__(self, module: str, function: str):
    self.words = function.split('.')[-1].strip('_'), pathlib.Path(module).stem.removesuffix('s')

  def pytest_collection_modifyitems(self, items: list[Any]) -> None:
    items.sort(key=self._distance)  # keeps the order of equals

  def _distance(self, item: Any) -> int:
    code = item.function.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    texts = item.name, ''.join(inspect.getblock(lines))
    hits = [word in text for word in self.words for text in texts]
    return hits.index(True) if any(hits) else len(hits)


def tests_pass(mutant: Mutant, tests: Sequence[str], limit_s: int) -> bool:
  """Returns whether the tests pass in a forked child with the mutant's source."""
  child = os.fork()
  if not child:
    _in_child(mutant, tests, limit_s)
  _, status = os.waitpid(child, 0)
  return status == 0


def _in_child(mutant: Mutant, tests: Sequence[str], limit_s: int) -> None:
  import pytest

  code = 1
  try:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
      os.dup2(nothing, stream)
    signal.alarm(limit_s)  # a mutant that never ends is caught, too
    sys.meta_path.insert(0, _Finder(mutant.module, mutant.source))
    files = [str(ROOT / 'tests' / test) for test in tests]
    options = ['-x', '-q', '--tb=no', '-p', 'no:cacheprovider', f'--rootdir={ROOT}']
    order = _NearestFirst(mutant.module, mutant.function)
    code = pytest.main([*options, *files], plugins=[order])
  finally:
    os._exit(int(code))


@functools.cache
def seconds(tests: tuple[str, ...]) -> float:
  """Returns the seconds of the tests without any mutation.

  Raises:
    SystemExit: They fail.
  """
  start = time.monotonic()
  if not tests_pass(Mutant('', '', 0, '', ''), tests, 1800):
    raise SystemExit(f'{", ".join(tests)} fail without any mutation.')
  return time.monotonic() - start


def check(module: str) -> dict[str, Any]:
  """Runs all mutants of a module.

  Returns:
    `mutants`, `caught`, `equivalent` (counts) and `survivors` (lines of text).
  """
  tests = TESTS[module]
  found = [m for m in mutants(module) if m.key not in EQUIVALENT]
  equivalent = sum(m.key in EQUIVALENT for m in mutants(module))
  start = time.monotonic()
  limit_s = int(60 + 5 * seconds(tests)) if found else 0
  survivors = []
  for mutant in found:
    if tests_pass(mutant, tests, limit_s):
      survivors.append(str(mutant))
      print(f'  survives: {mutant}', flush=True)
  caught = len(found) - len(survivors)
  print(
    f'{module}: {caught} of {len(found)} caught, {equivalent} equivalent, '
    f'{time.monotonic() - start:.0f} s',
    flush=True,
  )
  return {
    'mutants': len(found),
    'caught': caught,
    'equivalent': equivalent,
    'survivors': survivors,
  }


def _prepare(cache: str) -> None:
  """Imports what every child needs, without starting a JAX backend."""
  import warnings

  import chex  # noqa: F401
  import flax.struct  # noqa: F401
  import jax
  import pytest
  import tokenizers  # noqa: F401

  with contextlib.redirect_stdout(io.StringIO()):
    pytest.main(['--version'])  # imports its plugins
  warnings.filterwarnings('ignore', message='os.fork')  # the parent runs no JAX
  jax.config.update('jax_compilation_cache_dir', cache)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def check_tables() -> None:
  """Checks that every module has its tests, and every reason its mutant.

  Raises:
    SystemExit: A table names too little or too much.
  """
  package = ROOT / 'agent_gspo'
  found = [f for room in ('algorithms', 'rewards') for f in (package / room).rglob('[!_]*.py')]
  files = {file.relative_to(package).as_posix() for file in found}
  if missing := sorted(files ^ set(TESTS)):
    raise SystemExit(f'TESTS and the modules differ: {", ".join(missing)}.')
  if missing := [t for tests in TESTS.values() for t in tests if not (ROOT / 'tests' / t).exists()]:
    raise SystemExit(f'TESTS names files that there are not: {", ".join(missing)}.')
  found = {m.key for module in {key[0] for key in EQUIVALENT} for m in mutants(module)}
  if stale := sorted(set(EQUIVALENT) - found):
    raise SystemExit(f'EQUIVALENT names mutants that there are not: {stale}.')


def _known() -> dict[str, dict[str, Any]]:
  """Returns the results of earlier runs."""
  file = common.RESULTS / 'mutation_check.json'
  return json.loads(file.read_text(encoding='utf-8')) if file.exists() else {}


def _save(module: str, result: dict[str, Any]) -> None:
  """Adds to the results of earlier runs, and drops modules that are gone."""
  results = {**_known(), module: result}
  common.save('mutation_check', {m: results[m] for m in sorted(results) if m in TESTS})


def _print_table() -> None:
  """Prints the results of all modules that were ever run."""
  columns = ('mutants', 'caught', 'equivalent')
  results = _known()
  sums = {c: sum(r[c] for r in results.values()) for c in columns}
  rows = [(m, *(str(r[c]) for c in columns)) for m, r in {**results, 'all': sums}.items()]
  print(common.table(('module', *columns), rows))
  print(f'{100 * sums["caught"] / max(sums["mutants"], 1):.1f} % caught')


def main() -> None:
  """Runs the check."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--modules', nargs='+', choices=sorted(TESTS), default=sorted(TESTS))
  parser.add_argument('--list', action='store_true', help='show the mutants, run none')
  options = parser.parse_args()
  check_tables()
  if options.list:
    for module in options.modules:
      for mutant in mutants(module):
        known = EQUIVALENT.get(mutant.key, '')
        print(f'{mutant}  {known}'.rstrip())
    return
  with tempfile.TemporaryDirectory() as fresh:
    _prepare(os.environ.get('JAX_COMPILATION_CACHE_DIR', fresh))
    for module in options.modules:
      _save(module, check(module))
  _print_table()


if __name__ == '__main__':
  main()
