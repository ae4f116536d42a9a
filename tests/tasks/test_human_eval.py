"""Tests HumanEval: questions, extraction of code, grading in the sandbox."""

from __future__ import annotations

import gzip
import sys
import textwrap
import time

import grader_cases
import pytest
from loopback_server import serve
from official_files import DATA, needs_data

from agent_gspo.tasks.benchmarks import human_eval
from agent_gspo.tasks.benchmarks.human_eval import HumanEval, complete_program, extract_code
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.registry import make_task

FILE = 'humaneval/data/HumanEval.jsonl'
pytestmark = pytest.mark.skipif(sys.platform != 'linux', reason='the sandbox needs Linux')


@pytest.fixture(scope='module')
def task():
  return make_task('human_eval', data_dir=DATA)


PROMPT = '''from typing import List


def helper(x: int) -> int:
    return 2 * x


def double(xs: List[int]) -> List[int]:
    """ Double each.
    >>> double([1])
    [2]
    """
'''
BODY = '    result = []\n    for x in xs:\n        result.append(helper(x))\n    return result\n'
ALONE = f'def double(xs):\n{BODY}'
FENCE = '```'
MESSAGES = {
  'body': BODY,
  'body after blank lines': f'\n  \n{BODY}',
  'body, then more functions': f'{BODY}\n\ndef other():\n    return 1 +\n',
  'body, then prose': f'{BODY}\nThis doubles each (see above).',
  'restated': PROMPT + BODY,
  'function alone': ALONE,
  'prose around': f'Here is the code:\n\n{ALONE}\nIt doubles each element, so we are done.',
  'prose with statement words': f'from the examples we see it.\nimport nothing here.\n\n{ALONE}',
  'fenced': f'Sure!\n\n{FENCE}python\n{PROMPT}{BODY}{FENCE}\n\nThis works because ...',
  'fenced, no language': f'{FENCE}\n{ALONE}{FENCE}',
  'fenced, other case': f'{FENCE}Python3 title="a.py"\n{ALONE}\n{FENCE}',
  'fenced with tildes': f'~~~python\n{ALONE}~~~',
  'fence after words': f'Answer: {FENCE}python\n{ALONE}{FENCE}\nDone.',
  'fenced in a list': textwrap.indent(f'{FENCE}python\n{ALONE}{FENCE}', '   '),
  'fenced body': f'{FENCE}python\n{BODY}{FENCE}',
  'fenced body without indent': f'{FENCE}python\n{textwrap.dedent(BODY)}{FENCE}',
  'fence never closed': f'{FENCE}python\n{ALONE}',
  'example after it': f'{FENCE}python\n{ALONE}{FENCE}\nUse:\n{FENCE}python\ndouble([1])\n{FENCE}',
  'install before it': f'{FENCE}bash\npip install x\n{FENCE}\n{FENCE}python\n{ALONE}{FENCE}',
  'corrected': f'{FENCE}\ndef double(xs): return xs\n{FENCE}\nNo:\n{FENCE}\n{ALONE}{FENCE}',
  'own helper': f'def helper(x):\n    return x + x\n\n{ALONE}',
  'helper after': 'def double(xs):\n    return [h(x) for x in xs]\n\nh = lambda x: x + x\n',
  'future import': f'{FENCE}python\nfrom __future__ import annotations\n{ALONE}{FENCE}',
  'class and constant': f'import math\nN = 2\nclass A:\n    pass\n\n{ALONE}',
  'main guard': f'{ALONE}\nif __name__ == "__main__":\n    raise ValueError\n',
  'windows lines': ALONE.replace('\n', '\r\n'),
  'wrapped signature': f'def double(\n    xs,\n):\n{BODY}',
  'opened in the prompt': f'{ALONE}{FENCE}\nThis doubles each.',
  'opened in the prompt, body': f'{BODY}{FENCE}\nThis doubles each.',
  'opened in the prompt, tests behind': f'{BODY}{FENCE}\nTry:\n{FENCE}\ndef t(): 1 / 0\n{FENCE}',
  'opened in the prompt, one line': f'return [2 * x for x in xs]\n{FENCE}\nThis doubles each.',
  'opened in the prompt, closed behind code': f'{ALONE.rstrip()}{FENCE}\nThis doubles each.',
  'opened in the prompt, windows lines': f'{ALONE}~~~\nDone.'.replace('\n', '\r\n'),
  'opened in the prompt, with its language': f'python\n{ALONE}{FENCE}\nDone.',
  'opened in the prompt, example never closed': f'{ALONE}{FENCE}\nTry:\n{FENCE}python\ndouble([',
  'first line at the margin': BODY.lstrip(),
  'first line at the margin, in a fence': f'{FENCE}\n{BODY.lstrip()}{FENCE}',
  'first line at the margin, fence in the prompt': f'{BODY.lstrip()}{FENCE}\nDone.',
  'first line at the margin, prose behind': f'{BODY.lstrip()}\nThis doubles each.',
  'first line lost a space': BODY[1:],
  'one line at the margin': 'return [2 * x for x in xs]',
  'import at the margin': f'import math\n{BODY}',
  'comment at the margin': f'# Each one.\n{BODY}',
  'helper at the margin': 'def h(x):\n        return 2 * x\n    return [h(x) for x in xs]\n',
  'block at the margin': 'for _ in xs:\n        return [2 * x for x in xs]\n',
  'block at the margin, and more': 'if not xs:\n        return xs\n    return [2 * x for x in xs]',
  'bracket at the margin': 'ys = [\n        2 * x\n        for x in xs\n    ]\n    return ys\n',
  'reasoning': f'<think>\n{FENCE}\ndef double(xs): pass\n{FENCE}\n</think>\n\n{BODY}',
  'reasoning never ends': f'<think>\n{FENCE}\n{ALONE}{FENCE}',
  'in a tag': f'<answer>\n{BODY}</answer>\n{FENCE}\ndef double(xs): pass\n{FENCE}',
}


PYTHON = f'{FENCE}python\n'
DOCUMENTED = (
  f'def double(xs):\n  """Doubles.\n\n  {FENCE}\n  double([1])\n  {FENCE}\n  """\n'
  '  return [2 * x for x in xs]\n'
)
WRONG = 'def double(xs):\n    return xs\n'
TESTS = 'def test_double():\n    raise ValueError\n\ntest_double()\n'
WANTED = {
  'tests after it': f'{PYTHON}{ALONE}{FENCE}\nTests:\n{PYTHON}{TESTS}{FENCE}',
  'tests before it': f'{PYTHON}{TESTS}{FENCE}\nIt:\n{PYTHON}{ALONE}{FENCE}',
  'another function after it': f'{PYTHON}{ALONE}{FENCE}\n{PYTHON}def other(): pass\n{FENCE}',
  'a longer name after it': f'{PYTHON}{ALONE}{FENCE}\n{PYTHON}def double_all(): pass\n{FENCE}',
  'corrected': f'{PYTHON}{WRONG}{FENCE}\nNo:\n{PYTHON}{ALONE}{FENCE}\n{PYTHON}{TESTS}{FENCE}',
  'helper in its own block': (
    f'{PYTHON}def twice(x):\n    return 2 * x\n{FENCE}\n'
    f'{PYTHON}def double(xs):\n    return [twice(x) for x in xs]\n{FENCE}\n{PYTHON}{TESTS}{FENCE}'
  ),
  'helper of a helper, the newest': (
    f'{PYTHON}from operator import (\n    add,  # a sum\n)\n{FENCE}\n{PYTHON}def twice(x): 1 / 0\n'
    f'{FENCE}\n{PYTHON}# For double.\ndef twice(x):\n    return add(x, x)\n{FENCE}\n'
    f'{PYTHON}def double(xs):\n    return [twice(x) for x in xs]\n{FENCE}'
  ),
  'star import in its own block': (
    f'{PYTHON}from operator import *\n{FENCE}\n'
    f'{PYTHON}def double(xs):\n    return [add(x, x) for x in xs]\n{FENCE}'
  ),
  'use before it': (
    f'{PYTHON}from typing import List\nfor x in double([1]):\n    print(x)\n{FENCE}\n'
    f'{PYTHON}def double(xs: List[int]) -> List[int]:\n    return [2 * x for x in xs]\n{FENCE}'
  ),
  'install before it': f'{FENCE}\nimport from pip\n{FENCE}\n{PYTHON}{ALONE}{FENCE}',
  'fence in a docstring': f'{PYTHON}{DOCUMENTED}{FENCE}\nDone.\n{PYTHON}{TESTS}{FENCE}',
  'fence in a docstring, in a list': (
    f'1. Code:\n{textwrap.indent(PYTHON + DOCUMENTED + FENCE, "   ")}\n2. Done.'
  ),
  'fence in a docstring, behind a list marker': (
    '- ' + textwrap.indent(f'{PYTHON}{DOCUMENTED}{FENCE}\nDone.', '  ').lstrip()
  ),
  'fence in a docstring, never closed': PYTHON + DOCUMENTED.replace('  ', '    '),
  'fence that closes deeper': f'{PYTHON}{ALONE} {FENCE}\nDone.\n',
}


@pytest.mark.parametrize(
  ('message', 'names'),
  [*((message, ()) for message in MESSAGES.values()), *((m, ('double',)) for m in WANTED.values())],
  ids=[*MESSAGES, *(f'wanted, {name}' for name in WANTED)],
)
def test_code_of_a_message(message, names):
  namespace = {'__name__': 'candidate'}
  program = complete_program(PROMPT, extract_code(message, names), 'double')
  exec(compile(program, 'candidate', 'exec'), namespace)
  assert namespace['double']([1, 2]) == [2, 4]


def test_a_coroutine_may_be_wanted():
  message = f'{PYTHON}async def double(xs): return xs\n{FENCE}\n{PYTHON}{TESTS}{FENCE}'
  assert extract_code(message, ('double',)) == 'async def double(xs): return xs'


def test_without_the_wanted_function_the_last_one_counts():
  message = f'{PYTHON}{WRONG}{FENCE}\n{PYTHON}{TESTS}{FENCE}'
  assert extract_code(message) == extract_code(message, ('other',)) == TESTS.strip('\n')


@pytest.mark.parametrize(
  'message',
  [
    ' ' * 100_000,
    '1' * 100_000,
    f'a {FENCE}\n {FENCE}\n' * 100_000,
    FENCE * 100_000,
    f'{FENCE}\n' * 200_000,
    'class ' + 'a' * 100_000,
    f'{FENCE}\n' + 'import (\n' * 100_000 + f'{FENCE}\n{FENCE}\ndef double(): pass\n{FENCE}',
    ''.join(f'{FENCE}\ndef f{i}(): pass\n{FENCE}\n' for i in range(20_000))
    + f'{FENCE}\ndef double():\n'
    + ''.join(f'  f{i}()\n' for i in range(100_000)),
  ],
  ids=lambda message: repr(message[:12]),
)
def test_code_of_a_hostile_message_is_quick(message):
  """Measures processor time: quadratic work took 10 s and more."""
  begun = time.process_time()
  extract_code(message, ('double',))
  assert time.process_time() - begun < 5


@pytest.mark.parametrize('message', ['', ' \n', 'I do not know.', 'double', f'{FENCE}\n{FENCE}'])
def test_messages_without_code(message):
  assert extract_code(message) is None


def test_prompt_stub_is_no_answer():
  """The prompt's empty function does not count as an answer."""
  code = extract_code('def other(xs):\n    return xs')
  namespace = {}
  exec(complete_program(PROMPT, code, 'double'), namespace)
  assert namespace['double']([1]) is None


def test_name_is_not_taken_for_a_longer_one():
  program = complete_program(PROMPT, '    return double_all(xs)', 'double')
  assert program.startswith(PROMPT)
  assert program.endswith('    return double_all(xs)\n')


@needs_data
def test_questions(task):
  found = task.questions('test')
  assert [question.id for question in found] == [f'HumanEval/{i}' for i in range(164)]
  assert found[0].text.startswith('from typing import List')
  assert found[0].answer.startswith('    for idx, elem')
  with pytest.raises(ValueError, match='has tests only'):
    task.questions('train')


@needs_data
def test_votes(task):
  """Votes compare solutions, not tests."""
  assert task.canonical(MESSAGES['fenced']) == task.canonical(MESSAGES['restated'])
  assert task.canonical('no code') is None
  behind = f'\n{FENCE}\nTests:\n{PYTHON}def test_add():\n    assert add(1, 1) == 2\n{FENCE}'
  for code in ('def add(x, y): return x + y', 'def add(x, y): return x - y'):
    assert task.canonical(f'{PYTHON}{code}{behind}') == code


@needs_data
def test_official_solutions_with_tests_behind_them_pass(task):
  """Among them those whose prompts have helpers."""
  found = [task.questions('test')[i] for i in (0, 10, 32, 38, 50)]
  behind = f'{FENCE}\nTests:\n{PYTHON}def test_it():\n    raise ValueError\n\ntest_it()\n{FENCE}'
  answers = [f'{PYTHON}{q.text}{q.answer}{behind}' for q in found]
  assert task.score_all(found, answers) == [1.0] * len(found)


@pytest.mark.slow
@needs_data
def test_official_solutions_pass(task):
  found = task.questions('test')
  begun = time.monotonic()
  scores = task.score_all(found, [question.answer for question in found])
  taken = time.monotonic() - begun
  assert [q.id for q, score in zip(found, scores, strict=True) if score != 1.0] == []
  assert taken < 120, f'{taken:.0f} s'


@needs_data
def test_wrong_answers_fail(task):
  """Other questions' solutions, nothing at all, and programs that end early."""
  found = task.questions('test')[:12]
  shifted = [question.text + question.answer for question in [*found[1:], found[0]]]
  assert task.score_all(found, shifted) == [0.0] * 12
  tricks = ['', '    pass', '    import os; os._exit(0)', '    raise SystemExit(0)']
  tricks += ['no code', f'{FENCE}\nimport os\nos._exit(0)\n{FENCE}']
  assert task.score_all([found[0]] * 6, tricks) == [0.0] * 6


@needs_data
def test_score_is_the_same_alone_and_together(task):
  question = task.questions('test')[32]  # Its test calls a helper of the prompt.
  assert task.score(question, f'{FENCE}python\n{question.text}{question.answer}{FENCE}') == 1.0
  assert task.score_all([question] * 2, [question.answer, '    return 0']) == [1.0, 0.0]
  with pytest.raises(ValueError, match='zip'):
    task.score_all([question], [])


@needs_data
def test_table():
  """Grades all rows of `grader_cases` together by each grader."""
  texts, ids, *want = zip(*grader_cases.CODE, strict=True)
  for grader, scores in zip(HumanEval.GRADERS, want, strict=True):
    task = make_task('human_eval', data_dir=DATA, grader=grader)
    found = {question.id: question for question in task.questions('test')}
    assert task.score_all([found[i] for i in ids], texts) == list(map(float, scores)), grader


@pytest.mark.parametrize(
  ('option', 'value'),
  [('grader', 'lenient'), ('cpu_seconds', 0), ('cpu_seconds', 2.5), ('wall_seconds', 0.0),
   ('wall_seconds', float('nan')), ('workers', 0), ('workers', 'two')],
)  # fmt: skip
def test_an_option_out_of_range_is_refused(option, value):
  with pytest.raises(ValueError, match=rf'task\.options\.{option}={value!r} (must be|is unknown)'):
    HumanEval(data_dir=DATA, **{option: value})


@needs_data
def test_an_endless_program_fails():
  task = HumanEval(data_dir=DATA, cpu_seconds=1)
  assert task.score(task.questions('test')[0], '    while True: pass') == 0.0


@needs_data
def test_download_of_the_packed_file(tmp_path, monkeypatch):
  source = human_eval._SOURCE
  path = tmp_path / 'web' / source.urls('')[0].lstrip('/')
  path.parent.mkdir(parents=True)
  path.write_bytes(gzip.compress((DATA / FILE).read_bytes()))
  monkeypatch.delenv(sources.DATA_DIR_VARIABLE, raising=False)
  with serve(tmp_path / 'web') as address:
    fetched = HumanEval(cache_dir=tmp_path / 'cache', base_url=address)
    path.write_bytes(b'changed')
    with pytest.raises(FileNotFoundError, match=r'jsonl\.gz: Not a gzipped file'):
      HumanEval(cache_dir=tmp_path, base_url=address)
  again = HumanEval(cache_dir=tmp_path / 'cache')  # from the earlier download
  assert len(fetched.questions('test')) == len(again.questions('test')) == 164


def test_a_file_that_is_missing_or_changed(tmp_path):
  with pytest.raises(FileNotFoundError, match='HumanEval'):
    HumanEval(data_dir=tmp_path, cache_dir=tmp_path, base_url='http://127.0.0.1:9')
  (tmp_path / FILE).parent.mkdir(parents=True)
  (tmp_path / FILE).write_text('{}')
  with pytest.raises(ValueError, match='sha256'):
    HumanEval(data_dir=tmp_path)
