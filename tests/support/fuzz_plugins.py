"""Defines faulty plug-ins: each replaces one of those in docs/library.md.

A case runs a step from the config to rewards and advantages, without a
model: what needs one (a loss that is NaN, a count of 0) is in tests/integration/test_plugins.py.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fuzz_configs
import micro_run
from fuzzing import Case
from scripted_teams import IdsPolicy

from agent_gspo.algorithms import selection
from agent_gspo.config import check as config_lib
from agent_gspo.evaluation import evaluate
from agent_gspo.rewards import ties
from agent_gspo.training import prompt_checks

_FIELDS = {
  'task.name': 'Sums',
  'team.topology': 'everybody_to_the_last',
  'objective.name': 'policy_gradient',
  'advantage.name': 'price_of_a_role',
  'reward.length_reward': 'tax',
  'selection.name': 'in_order',
}
"""Plug-in of the docs, by field."""


@functools.cache
def _docs() -> tuple[str, str]:
  """Returns the module and the config of docs/library.md."""
  text = (micro_run.ROOT / 'docs' / 'library.md').read_text()
  blocks = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  place = next(i for i, block in enumerate(blocks) if "'mine:" in block)
  mine, config = blocks[place - 1 : place + 1]
  return mine, config.replace(
    '  return config', "  config.team.decision = 'majority'\n  return config"
  )


def write(folder: pathlib.Path, module: str, code: str) -> list[str]:
  """Writes the plug-ins of the docs, followed by `code`; returns the command of the run."""
  mine, config = _docs()
  (folder / f'{module}.py').write_text(f'{mine}\n\n{code}\n', encoding='utf-8')
  path = f'import sys\n\nsys.path.insert(0, {str(folder)!r})\n'
  (folder / 'config.py').write_text(path + config.replace('mine:', f'{module}:'), encoding='utf-8')
  return ['train', f'--config={folder}/config.py', f'--workdir={folder}/new']


def _go(config: dict[str, Any]) -> None:
  """Runs a step with plug-ins, without the update."""
  fuzz_configs.check(config)
  parts = config_lib.check(config)
  options = parts.config.advantage
  ties.what_ties_teach(
    parts.config.reward,
    ties.estimator(options.name, costs=options.costs, **options.options),
    lambda_tok=parts.config.budget.highest_lambda_tok,
    length=4,
  )
  train = parts.task.questions('train')
  drawn, _ = selection.choose(parts.config.selection.name, selection.init(len(train)), 2, seed=0)
  tokenizer = prompt_checks.tokenizer_from_scratch(parts)
  say = lambda turn: ([*tokenizer.encode('1'), turn.stop_ids[0]], True)
  asked = [train[int(i)] for i in drawn]
  head = {'step': 0, 'split': 'train', 'label': ''}
  evaluate.converse(parts.team, parts.task, tokenizer, asked, IdsPolicy(say), **head)


def _case(number: int, field: str, name: str, code: str, value: str = '') -> Case:
  """Returns a case, invalid if it has a field.

  Args:
    number: Number of the case, from which its module is named.
    field: Field that names the faulty plug-in.
    name: Name of the fault.
    code: Code after the docs' module; a whole second module if `value` contains OTHER.
    value: Value of the field; the docs' plug-in by default.
  """
  module = f'faulty_{number}'
  other = value.replace('OTHER', f'{module}_other')

  def run(folder: pathlib.Path) -> None:
    write(folder, module, '' if value else code)
    (folder / f'{module}_other.py').write_text(code, encoding='utf-8')
    importlib.invalidate_caches()
    found: dict[str, Any] = {}
    with mock.patch.object(sys, 'path', [str(folder), *sys.path]):
      try:
        exec((folder / 'config.py').read_text(), found)
        config = found['get_config']().to_dict()
        section, _, key = field.partition('.')
        if other:
          config[section][key] = other
        _go(config)
      finally:
        sys.modules.pop(module, None)
        sys.modules.pop(f'{module}_other', None)

  if not field:
    return Case(name, run)
  part = other or f'{module}:{_FIELDS[field]}'
  unknown_option = (f"'{part}' takes ", f'of task {part};')
  return Case(f'{field}, {name}', run, True, (f'{field}={part!r}', *unknown_option))


_IMPORTS = {  # code of a module
  'raises when imported': 'raise RuntimeError("no")',
  'exits when imported': 'import sys; sys.exit(0)',
  'is no Python': 'def f(:',
  'needs what is not there': 'import no_such_module_at_all',
  'raises for a name': 'def __getattr__(name): raise OSError(name)',
  'is empty': '',
  'is a number': 'NAME = 3',
}
_VALUES = {'no module': 'no_such_module_at_all:f', 'no name': ':f', 'no attribute': 'OTHER:'}


def _names() -> Iterator[tuple[str, str, str, str]]:
  for field, part in _FIELDS.items():
    for name, code in _IMPORTS.items():
      yield field, name, code.replace('NAME', part), f'OTHER:{part}'
    for name, value in _VALUES.items():
      yield field, name, '', value


_CALLS = {  # (field, what is replaced): its parameters
  ('task.name', 'Sums.__init__'): 'self, *, largest=4',
  ('task.name', 'Sums._split'): 'self, split',
  ('task.name', 'Sums.score'): 'self, question, answer_text',
  ('task.name', 'Sums.score_all'): 'self, questions, answer_texts',
  ('task.name', 'Sums.graded_by'): 'self, grader, question, answer_text',
  ('task.name', 'Sums.canonical'): 'self, answer_text',
  ('task.name', 'Sums.demonstration'): 'self, question, agent, delivered, rng, **probabilities',
  ('task.name', 'Sums.vocabulary'): 'self',
  ('task.name', 'Sums.note'): 'self, splits',
  ('team.topology', 'everybody_to_the_last'): 'num_agents, rounds',
  ('objective.name', 'policy_gradient'): 'x, *, scale=1.0',
  ('advantage.name', 'price_of_a_role'): 'rewards',
  ('reward.length_reward', 'tax'): 'lengths, *, rate=0.01',
  ('selection.name', 'in_order'): 'state, free, count, seed',
}
_FAULTS = {
  'raises': 'raise KeyError("x")',
  'raises without a word': 'raise RuntimeError',
  'raises a page': 'raise ValueError("line\\n" * 2000)',
  'raises what cannot be written': (
    'class Bad(Exception):\n    def __str__(self): raise ValueError\n  raise Bad'
  ),
  'raises no Exception': 'class Bad(BaseException): pass\n  raise Bad("x")',
  'exits': 'import sys; sys.exit(0)',
  'exits with a word': 'raise SystemExit("all is well")',
  'ends an iteration': 'raise StopIteration',
  'returns a number too many': 'return 1, None',
  'returns an object': 'return object()',
  'returns None': 'return None',
  'returns text': 'return "all is well"',
  'returns a generator': 'return (x for x in ())',
}
_FINE = {  # what is a value that there may be
  ('Sums.__init__', 'returns None'), ('Sums.canonical', 'returns None'),
  ('Sums.canonical', 'returns text'), ('Sums.demonstration', 'returns text'),
  ('Sums.note', 'returns text'), ('Sums.demonstration', 'returns None'),
}  # fmt: skip


def _calls() -> Iterator[tuple[str, str, str, str]]:
  graders = "Sums.graders = ('strict', 'other')\n"
  for (field, replaced), parameters in _CALLS.items():
    start = graders if replaced == 'Sums.graded_by' else ''
    for name, body in _FAULTS.items():
      if (replaced, name) not in _FINE:
        yield (
          field,
          f'{replaced} {name}',
          f'{start}def f({parameters}):\n  {body}\n{replaced} = f',
          '',
        )
    yield (
      field,
      f'{replaced} takes another',
      f'{start}def f(self, zzz): return 1\n{replaced} = f',
      '',
    )
    yield field, f'{replaced} is a number', f'{start}{replaced} = 3', ''


_SCORES = (
  'float("nan")', 'float("inf")', '2.0', '-0.5', '1.001', '10**400', '"1.0"', 'b"1"', '[1.0]',
  '{}', 'np.ones(1)', 'np.array("1")', 'np.float32("nan")', 'jnp.float32(2)', '1j',
  'np.datetime64("now")', 'lambda: 1.0', 'type("R", (), {"__repr__": lambda s: 1 / 0})()',
  'np.array(None)', 'jnp.ones(2)',
)  # fmt: skip
_SCORE_LISTS = (
  '[]', '[1.0]', '[1.0] * 99', 'np.ones((2, 1))', '1.0', '"11"', '{0.0, 1.0}', '{0: 1, 1: 1}',
  '[None] * 2', '["1"] * 2', '[[1.0, 1.0]]', 'iter([1.0])', '[True, 2]',
)  # fmt: skip
_QUESTION = 'Question(id="1", text="1 + ?", answer="1"'
_QUESTIONS = (
  '["x"]', '[None]', '{1: 2}', '3', '"x"', 'None', '(x for x in [])', 'object()',
  f'[{_QUESTION})] * 2', f'[{_QUESTION}), "x"]', f'[{_QUESTION}, notes="ab", relevant=(1, 0))]',
  f'[{_QUESTION}, notes=(1,), relevant=(True,))]',
  f'[{_QUESTION}, notes=("a",), relevant=("no",))]', f'[{_QUESTION}, notes=None)]',
  f'[{_QUESTION}, notes=("a",), relevant=([],))]', f'[{_QUESTION}, notes=("a",), relevant=None)]',
  f'[{_QUESTION}, notes=("a",), relevant=(True, True))]', f'[{_QUESTION}, story=None)]',
  f'[{_QUESTION}, documents="ab")]',
  f'[{_QUESTION}, derivation=3)]', '[Question("1", "1 + ?", 1)]', '[Question("1", 3, "1")]',
  '[Question(1, "1", "1")]', '[Question("", "1", "1")]', '[Question(["1"], "1", "1")]',
  '[Question("1", "\\ud800", "1")]', '[Question("1", None, "1")]',
  'type("L", (), {"__len__": lambda s: -1, "__getitem__": lambda s, i: 1 / 0})()',
  'type("L", (), {"__len__": lambda s: 5, "__getitem__": lambda s, i: 1 / 0})()',
  'type("L", (), {"__len__": lambda s: 5, "__getitem__": lambda s, i: "x"})()',
)  # fmt: skip
_TASKS = (
  'del Sums.name', 'Sums.name = 3', 'Sums.name = None', 'Sums.graders = "strict"',
  'Sums.graders = 3', 'Sums.graders = (1,)', 'del Sums.score', 'class Sums: pass', 'Sums = Sums()',
  'class Sums(Task):\n  def __init__(self, needed): pass', 'Sums.vocabulary = lambda self: [1, 2]',
  'Sums.graders = property(lambda self: 1 / 0)', 'Sums.name = property(lambda self: 1 / 0)',
  'Sums.vocabulary = property(lambda self: 1 / 0)', 'def Sums(*, largest): return Task',
)  # fmt: skip
_TOPOLOGIES = (
  'Topology(3)', 'Topology(2, rounds=2)', 'Topology(2, frozenset({(0, 5)}))',
  'Topology(2, {(1, 1)})', 'Topology(2, frozenset({(0, 1), (1, 0)}))',
  'Topology(2, frozenset({(0,)}))', 'Topology(2.0)', 'Topology(2, rounds=1.0)',
  'Topology(2, [(0, 1)])', 'Topology(2, frozenset({(0.0, 1.0)}))',
  'Topology(2, last_round_only=frozenset({7}))', 'Topology(2, last_round_only=frozenset({"a"}))',
  'Topology("2")', 'Topology(2, frozenset({("a", "b")}))', 'Topology', '(Topology(2),)',
  'Topology(2, frozenset({(0.5, 1)}))', 'Topology(2, None)', 'Topology(0)', 'Topology(-1)',
)  # fmt: skip
_VECTORS = (
  '0.0', 'X[:-1]', 'np.append(X, 0)', 'X[:, None]', 'X * np.nan',
  'type("R", (), {"__repr__": lambda s: 1 / 0})()', 'np.where(X == X, np.inf, X)',
  'X * 1e300 + 1e300', '[]', '{}', '[None for x in X]', '["1" for x in X]', 'X.astype(str)',
  'X * 1j', 'jnp.asarray(X)[1:]', '[X, X[:1]]', 'X.sum()', 'sum', 'X.astype("M8[s]")', '[X]',
)  # fmt: skip
_ADVANTAGES = (
  'Advantage(values=X, kept=X[1:])', 'Advantage(values=X, kept=None)',
  'Advantage(values=X, kept=X * np.nan)', 'Advantage(values=None, kept=X)',
  'Advantage(values=X[1:], kept=X[1:])', 'Advantage',
)  # fmt: skip
_CHOICES = (
  '[0, 0]', '[-1, 0]', '[0, 10**6]', '[0]', '[0, 1, 2]', '[]', '[0.0, 1.0]', '[[0, 1]]', '"01"',
  '0', 'free', '[True, False]', '[None, 1]', '["a", "b"]', '[0, 10**30]', '{0, 1}',
  'np.float32([0, 1])', '[[0], [1, 2]]', 'jnp.array([0, -1])', '[np.nan, 1]', 'object()',
  'range(10**6, 10**6 + 2)',
)  # fmt: skip
_OBJECTIVES = (
  'GOOD.replace(total=x.logprobs)', 'GOOD.replace(total=None)', 'GOOD.replace(total="x")',
  'GOOD.replace(count=None)', 'GOOD.replace(count=x.message_mask)', 'GOOD.replace(ratio=1.0)',
  'GOOD.replace(ratio=x.logprobs)', 'GOOD.replace(clipped=None)',
  'GOOD.replace(clipped=jnp.ones((2, 2)))', 'GOOD.replace(total=1j * GOOD.total)',
  '(GOOD.total, GOOD.count)', 'GOOD.total', '{"total": 1}', 'GOOD.replace(total=GOOD.total[None])',
  'GOOD if GOOD.total > 0 else GOOD', 'float(GOOD.total)', 'GOOD.replace(total=x.logprobs[:1])',
  'GOOD.replace(zzz=1)', 'Objective', 'x', 'x.logprobs @ x.advantages',
  'GOOD.replace(total=jax.lax.while_loop(lambda v: v < 1, lambda v: v + 1, GOOD.total))',
)  # fmt: skip
_SIGNATURES = {
  'objective.name': ('lambda: 1', 'lambda *x: 1', 'lambda x, **options: 1', 'lambda x, *, a: 1'),
  'advantage.name': ('lambda zzz: 1', 'lambda *x: 1', 'lambda **x: 1', 'lambda task, *, a: 1',
                     'lambda task, *, a=None: 1', 'print', 'lambda rewards, budgets: 1'),
  'reward.length_reward': ('lambda zzz: 1', 'lambda *x: 1', 'lambda scores, *, a="x": 1', 'max'),
  'selection.name': ('lambda: 1', 'lambda state: 1', 'lambda *, state: 1'),
  'team.topology': ('lambda: 1', 'lambda n: 1', 'lambda agents, rounds: 1'),
}  # fmt: skip


def _returned() -> Iterator[tuple[str, str, str, str]]:
  """Yields faults: values of a wrong type, shape or range, each returned by one plug-in."""
  task, start = 'task.name', 'from agent_gspo.algorithms import Advantage\n'
  for value in _SCORES:
    yield task, f'score {value}', f'Sums.score = lambda self, q, a: {value}', ''
    code = f"Sums.graders = ('strict', 'other')\nSums.graded_by = lambda self, g, q, a: {value}"
    yield task, f'graded_by {value}', code, ''
  for value in _SCORE_LISTS:
    yield task, f'score_all {value}', f'Sums.score_all = lambda self, q, a: {value}', ''
  for value in _QUESTIONS:
    yield task, f'_split {value}', f'Sums._split = lambda self, split: {value}', ''
  for code in _TASKS:
    yield task, code, code, ''
  for value in _TOPOLOGIES:
    code = f'everybody_to_the_last = lambda num_agents, rounds: {value}'
    yield 'team.topology', value, code, ''
  for value in (*_VECTORS, *_ADVANTAGES):
    code = f'{start}price_of_a_role = lambda rewards: {value.replace("X", "rewards")}'
    yield 'advantage.name', value, code, ''
  for value in _VECTORS:
    code = f'tax = lambda lengths, *, rate=1.0: {value.replace("X", "lengths")}'
    yield 'reward.length_reward', value, code, ''
  for value in _CHOICES:
    code = f'in_order = lambda state, free, count, seed: {value}'
    yield 'selection.name', value, code, ''
  for value in _OBJECTIVES:
    code = f'good = policy_gradient\npolicy_gradient = lambda x, *, scale=1.0: {value}'
    yield 'objective.name', value, code.replace('GOOD', 'good(x)'), ''
  for field, values in _SIGNATURES.items():
    for value in values:
      yield field, value, f'{_FIELDS[field]} = {value}', ''


_GOOD = (  # odd, but right
  'Sums.score = lambda self, q, a: True',
  'Sums.score = lambda self, q, a: np.bool_(True)',
  'Sums.score = lambda self, q, a: np.array(0.5)',
  'Sums.score = lambda self, q, a: jnp.float32(0.5)',
  'Sums.score = lambda self, q, a: 0.1 + 0.2 + 0.7 + 1e-12',
  'import fractions\nSums.score = lambda self, q, a: fractions.Fraction(1, 2)',
  'Sums.score_all = lambda self, q, a: (1.0 for _ in q)',
  'Sums.score_all = lambda self, q, a: np.zeros(len(q), bool)',
  'Sums.score_all = lambda self, q, a: jnp.zeros(len(q))',
  'Sums.vocabulary = lambda self: (str(n) for n in [*range(9), "+", "?"])',
  'price_of_a_role = lambda rewards: jnp.asarray(rewards)',
  'price_of_a_role = lambda rewards: [0] * len(rewards)',
  'def price_of_a_role(task, costs):\n  task -= 1\n  costs[:] = 9\n  return task',
  'def tax(lengths, scores, *, rate=1.0):\n  scores[:] = 0\n  lengths *= 0\n  return lengths',
  'in_order = lambda state, free, count, seed: np.flatnonzero(free)[:count].astype(np.uint8)',
  'def in_order(state, free, count, seed):\n  free[:] = False\n  return range(count)',
  'everybody_to_the_last = lambda num_agents, rounds: Topology(np.int64(2), {(np.int8(0), 1)})',
  'good = policy_gradient\npolicy_gradient = lambda x, scale=1.0: good(x).replace(count=2)',
)


def cases(seed: int = 0) -> list[Case]:
  """Returns all cases of faulty plug-ins."""
  del seed  # none is drawn
  wrong = itertools.chain(_names(), _calls(), _returned())
  found = [_case(0, '', 'untouched', '')]
  found += [_case(1000 + i, '', f'right: {code}', code) for i, code in enumerate(_GOOD, 1)]
  return found + [_case(i, *case) for i, case in enumerate(wrong, 1)]
