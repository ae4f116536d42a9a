"""Tests strict and legacy graders on hand-written and on hostile answers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import grader_cases
import pytest
import scripted_teams
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_gspo.tasks.grading import graders, math_grader
from agent_gspo.tasks.grading.choice_grader import extract_choice, grade_choice
from agent_gspo.tasks.grading.math_grader import canonical_math, grade_math, same_expression

GRADERS = {
  'number': graders.NUMBER,
  'letter': graders.choice('ABCDE', graders.legacy_aqua),
  'letter of four': graders.choice('ABCD', graders.legacy_mmlu),
  'maths': graders.MATH,
}
ids = [f'{kind}-{text[:30]!r}-{gold[:10]}' for kind, text, gold, *_ in grader_cases.CASES]


@pytest.mark.parametrize(('kind', 'text', 'gold', 'strict', 'legacy'), grader_cases.CASES, ids=ids)
def test_table(kind, text, gold, strict, legacy):
  assert GRADERS[kind]['strict'].grade(text, gold) == strict
  assert GRADERS[kind]['legacy'].grade(text, gold) == legacy


@pytest.mark.parametrize(('kind', 'text', 'gold'), grader_cases.MARKED)
def test_where_an_answer_stands(kind, text, gold):
  assert GRADERS[kind]['strict'].grade(text, gold) == 1


@pytest.mark.parametrize('grader', ['strict', 'legacy'])
@pytest.mark.parametrize(('kind', 'text', 'gold'), grader_cases.UNMARKED)
def test_reasoning_and_what_stands_beside_an_answer_are_none(kind, text, gold, grader):
  assert GRADERS[kind][grader].grade(text, gold) == 0
  assert GRADERS[kind][grader].extract(text) != gold


_SAID = {'letter': ('B', 'A'), 'letter of four': ('B', 'A')}


@pytest.mark.parametrize(('kind', 'name'), [(k, name) for k in GRADERS for name in GRADERS[k]])
def test_every_grader_and_vote_reads_the_same_part_of_a_message(kind, name):
  grader, (answer, other) = GRADERS[kind][name], _SAID.get(kind, ('1 + 2 = 3', '7 + 1 = 8'))
  answer = answer[-1] if name != 'equation' else answer
  for text in (
    f'<think>{other}</think>\n\n{answer}',
    f'{other}</think>{other} <answer>\n{answer}</answer> {other}',
  ):
    assert grader.grade(text, answer[-1]) == 1
    assert grader.extract(text) == grader.extract(answer)


def test_a_vote_on_another_task_reads_no_reasoning():
  task = scripted_teams.Echo()
  assert task.canonical('<think>no</think>\n yes ') == task.canonical('yes') == 'yes'
  assert task.canonical('<think>no</think>\n') is None


def test_a_gold_answer_that_is_none():
  with pytest.raises(ValueError, match="gold answer 'E' is not one of the options ABCD"):
    grade_choice('A', 'E', 'ABCD')
  with pytest.raises(ValueError, match="gold answer '' is not one"):
    grade_choice('A', '')
  with pytest.raises(ValueError, match='gold answer is empty'):
    grade_math('1', ' ')


def test_votes_compare_answers_in_one_spelling():
  same = ('0.5', r'\boxed{\frac{1}{2}}', 'The answer is 1/2. That took 3 steps.', r'$\frac{2}{4}$')
  assert {canonical_math(text) for text in same} == {'1/2'}
  assert canonical_math(r'\boxed{\frac{\sqrt2}{2}}') == canonical_math(r'$\frac{\sqrt{2}}{2}$')
  assert canonical_math('The answer is Evelyn.') == canonical_math(r'\boxed{\text{Evelyn}}')
  assert canonical_math(r'\boxed{52_9}') == canonical_math(r'\boxed{52_{9}}') == '52_9'
  assert canonical_math(r'\boxed{52_8}') == '52_8'
  assert canonical_math('') is None
  assert extract_choice('(b)') == extract_choice('The answer is B, as A is wrong.') == 'B'


@pytest.mark.parametrize(
  ('answer', 'gold', 'same'),
  [
    ('52_9', '52_8', False),
    ('52_9', '52_{9}', True),
    ('(52)_9', '52_{(9)}', True),
    ('052_9', '52_9', True),
    ('-52_9', '52_9', False),
    ('2516_7', '2516_8', False),
    ('2517_8', '2516_8', False),
    ('4210_{6}', '4210_{5}', False),
    ('A3_{16}', 'A3_{12}', False),
    ('A3_{16}', 'A3_{16}', True),
    ('52', '52_9', True),
    ('52_9', '52', True),
    ('53', '52_9', False),
    ('June 20', r'\text{June 20}', True),
    (r'\text{June 20}', r'\text{June 20}', True),
    ('June 21', r'\text{June 20}', False),
    ('June', r'\text{June 20}', False),
    ('1 4/5', r'1\frac{4}{5}', True),
    ('1 4/5', r'\frac{9}{5}', True),
    ('-1 4/5', '-1.8', True),
    ('1 4/5', r'\frac{14}{5}', False),
    ('14/5', r'1\frac{4}{5}', False),
  ],
)
def test_bases_dates_and_mixed_numbers(answer, gold, same):
  assert same_expression(answer, gold) is same


def test_a_wrong_expression_is_no_answer():
  text = 'The answer is $5$. A common incorrect answer is $6$.'
  assert (grade_math(text, '5'), grade_math(text, '6')) == (1, 0)


@pytest.mark.parametrize(
  'latex',
  [r'9^{9^{9^9}}', r'(x+y)^{3000}', r'\sum_{k=1}^{10^9} \sin k', '(' * 400, '{' * 400, '9' * 490],
)
def test_hostile_expressions_cost_seconds_at_most(latex):
  start = time.perf_counter()
  assert grade_math(rf'\boxed{{{latex}}}', r'x+\sqrt{2}') == 0
  assert time.perf_counter() - start < 60  # 2 s of processor time and a restart
  assert grade_math(r'\boxed{\sqrt{2}+x}', r'x+\sqrt{2}') == 1


@pytest.mark.parametrize(
  'text',
  [
    'the answer is ' * 20_000,
    r'\boxed{' * 100_000,
    '$' * 100_000,
    r'\(x \[ ' * 50_000,
    'A (' * 50_000,
    '####' * 100_000,
    '#### 1. Step\n' * 50_000,
    '<think>' * 100_000,
    '</think ' * 100_000,
    '<answer>' * 100_000,
    'A. ' + '\n' * 100_000 + '.',
    'A cat\n' * 50_000,
    '12 + 3 = 15\n' * 50_000,
  ],
  ids=lambda text: repr(text[:14]),
)
def test_long_texts_are_quick(text):
  """Measures processor time: quadratic work took 10 s and more."""
  for kind, gold in (('number', '1'), ('letter', 'A'), ('letter of four', 'A'), ('maths', '1')):
    for name, grader in GRADERS[kind].items():
      start = time.process_time()
      assert grader.grade(text, gold) in (0, 1)
      assert time.process_time() - start < 5, (kind, name)


def test_threads_share_the_worker():
  scores = []

  def grade(i):
    scores.append(grade_math(rf'\boxed{{x+{i}+y}}', f'y+x+{i % 2}'))

  threads = [threading.Thread(target=grade, args=(i,)) for i in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert sorted(scores) == [0] * 6 + [1] * 2


def test_a_worker_that_was_killed_is_replaced():
  assert math_grader.ask({'gold': 'x', 'answer': 'x'}) is True
  os.kill(math_grader._process.pid, 9)
  math_grader._process.wait()
  assert math_grader.ask({'gold': 'x', 'answer': 'x'}) is True


def test_a_worker_survives_ctrl_c_and_ends_with_a_parent_that_was_killed():
  script = """
import os, signal, time
from agent_gspo.tasks.grading import math_grader
ask = lambda: math_grader.ask({'gold': 'x', 'answer': 'x'})
signal.signal(signal.SIGINT, lambda *_: None)
first, worker = ask(), math_grader._process.pid
os.killpg(0, signal.SIGINT)
time.sleep(0.3)
print(first, ask(), math_grader._process.pid == worker, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
  process = subprocess.Popen(
    [sys.executable, '-c', script],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,  # the worker's, too: its end closes it
    text=True,
    start_new_session=True,
  )
  assert process.communicate(timeout=60) == ('True True True\n', '')


def test_after_an_interrupt_no_reply_is_taken_for_another(monkeypatch):
  same, other = {'gold': 'x', 'answer': 'x'}, {'gold': 'x', 'answer': 'x+3'}
  assert math_grader.ask(same) is True
  reply = math_grader._reply

  def interrupted(process, line):
    process.stdin.write(line + '\n')
    process.stdin.flush()
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(math_grader, '_reply', interrupted)
    with pytest.raises(KeyboardInterrupt):
      math_grader.ask(same)
  assert math_grader._reply is reply
  assert [math_grader.ask(request) for request in (other, same)] == [False, True]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='ABCDEab ().,:\nthe answer is or not *#\\boxed{}$', max_size=60))
def test_letter_soup_is_read_without_error(text):
  assert extract_choice(text, 'ABCD') in {None, *'ABCD'}
  assert graders.NUMBER['legacy'].grade(text, '1') in (0, 1)
  assert isinstance(graders.legacy_aqua(text), str)
  assert isinstance(graders.legacy_math(text), str)


@given(st.sampled_from('ABCD'), st.sampled_from('ABCD'))
def test_two_letters_are_no_answer(one, other):
  for text in (f'The answer is {one} or {other}.', f'({one}) ({other})', f'{one} and {other}'):
    assert extract_choice(text, 'ABCD') == (one if one == other else None), text
