"""Defines odd and hostile answers, graded by every grader of a benchmark's answers."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable

from fuzzing import Case

from agent_gspo.tasks.grading import graders

_GOLD = {'number': '12', 'equation': '12', 'letter': 'A', 'maths': r'\sqrt{2}+x'}
_GRADERS = {
  'number': graders.NUMBER['strict'],
  'equation': graders.NUMBER['equation'],
  'letter': graders.choice('ABCDE', str)['strict'],
  'maths': graders.MATH['strict'],
}
_MILLION = 10**6
# Golds that a hostile answer may be compared with by another way than the first.
_OTHER_GOLDS = ('x=1,y=2', r'(-\infty,3)\cup(3,\infty)', r'\cos 58^\circ', r'\frac{1}{2004!}', '0')

_SHORT = (
  *(
    '',
    ' ',
    '\0',
    '1\x002',
    '\ud800',
    '\ufeff12',
    '١٢',
    '１２',
    '²',
    '½',
    '۱۲/۳',
    '¹²',
    '-',
    '--1',
  ),
  *('.', '1.', '1..2', '1,2,3', ',,,', '1e999999999', '1e-999999999', 'nan', 'inf', '-inf', '1/0'),
  *('1_000', '0x10', '1e', '0/0', '=', '12 =', '= 12 =', '1 + 1 = 3, 3 / 0 = 1', '5 / 0 = 1'),
  *('####', '#### ', r'\boxed', r'\boxed{', r'\boxed{}', r'\boxed{{}', '$', '$$', r'\('),
  *('<answer>', r'\frac', r'\frac{}{}', r'\frac{1}{0}', r'\sqrt', r'\sqrt{-1}', r'\overline'),
  *(r'0.\overline{}', r'0.\overline{0}', r'\dot', r'0.\dot', '0....', '...', r'^\circ'),
  *(r'\sin^\circ', r'\sin', 'x=', '=x', 'x==1', 'x=y=', '(x,y)=', '(x,y)=(1)', r'\in', r'x\in'),
  *(r'\{', r'\{x:\}', 'x<', '<x<', '<', r'x<x', r'1<2', r'x\ne', r'\ne1,2', 'x<y<z', r'\cup'),
  *(r'(1,2)\cup', '(1,2', ']1,2[', '(,)', '(2,1)', r'\text', r'\text{or}', r'\text{and}', 'or'),
  *('and or and', 'x<1 or', '|x', '||x|-1|<|', '!', '5!!!', r'\begin{cases}'),
  *(r'\begin{cases}x=1\\\end{cases}', r'\end{pmatrix}', r'\left(', r'\right)', '%'),
  *(r'\infty-\infty', r'\frac{0}{0}', r'0^0', r'0^{-1}', '(-1)!', '0.5!', r'\log 0'),
  r'\binom{1}{2}',
)
# Each takes forever to expand.
_BOMBS = (
  *('9^{9^{9^9}}', '9^{-9^{9^9}}', r'\frac{1}{9^{9^{9^9}}}', '10^{10^{10}}+1', '99999999!'),
  *('(9!)!', r'\binom{10^9}{5\cdot10^8}', '(x+y+z)^{3000}', 'x^{10^{10}}'),
  *(r'\sum_{k=1}^{10^9}\sin k', r'\prod_{k=1}^{10^9}k', r'\int_0^1 x^x e^{x^x} dx'),
  *(r'\sin^{99999}x', r'\sqrt[99999999]{2}', 'x^{999}-x^{998}+x^5<1'),
  *(r'|x^{50}-|x^{49}-|x^{48}-1|||<1', r'\sin(x^x)<\cos x', '1e99999999'),
  *('x=9^{9^{9^9}},y=9^{9^{9^9}}', r'\{x:x^{99}+x>\pi\}', r'\tan(10^{99999})^\circ'),
  r'\pi^{\pi^{\pi^\pi}}',
)
_NESTED = (
  *('{', '(', '[', r'\left(', r'\sqrt{', r'\frac{1}{', r'\text{', r'\boxed{', '|', '-', '2^{'),
  'f(',
)
_REPEATED = (
  *('9', '1,', '1 ', '1.', '.', '0.3...', r'0.\overline{3}', r'1\dot{2}', '1/', '1e', '-', 'x=1,'),
  *('x=', '(', ')', '{', '}', '$', '\\', r'\boxed{', r'\boxed{1}', '####', '#### 1\n'),
  *('the answer is ', 'A ', '(A) ', 'A or B ', '\n', ' ', r'\,', '°', r'^\circ', 'degrees '),
  *('sin ', 'x<1 or ', '1 + 1 = 2, ', '=', r'\text{and}', r'\begin{cases}', '<think>', '</think>'),
  *('<answer>', 'so ', 'twelve ', '\0', '½', '１', '\u0305'),
)


def _case(name: str, kind: str, text: str, gold: str) -> Case:
  def run(unused_folder: pathlib.Path) -> None:
    grader = _GRADERS[kind]
    score, found = grader.grade(text, gold), grader.extract(text)
    assert 0 <= score <= 1, score
    assert found is None or isinstance(found, str), found

  return Case(f'{kind}: {name}', run)


def _soup(rng: random.Random) -> str:
  """Returns a text of fragments that graders look for."""
  words = (
    'The answer is ',
    'x',
    '=',
    '12',
    ',',
    '.',
    '^',
    '{',
    '}',
    '(',
    ')',
    '$',
    ' or ',
    '<',
    *_SHORT,
  )
  return ''.join(rng.choice(words) for _ in range(rng.randrange(2, 20)))


def cases(seed: int = 0) -> list[Case]:
  """Returns cases of answers without a correct reading, for each of the graders."""
  rng = random.Random(f'{seed}/graders')
  marks: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: rf'So \boxed{{{text}}}.',
    lambda text: f'The answer is ${text}$.',
    lambda text: f'#### {text}',
  )
  found = []
  for kind, gold in _GOLD.items():
    found.append(_case('untouched', kind, f'The answer is ${gold}$.', gold))
    texts = [
      *((repr(text), rng.choice(marks)(text)) for text in _SHORT),
      *(
        (f'{start!r} nested {n}', rng.choice(marks)(start * n))
        for start in _NESTED
        for n in (30, 5000)
      ),
      *(
        (f'{part!r} for a million', rng.choice(marks[:2])(part * (_MILLION // len(part))))
        for part in rng.sample(_REPEATED, len(_REPEATED) // 2)
      ),
      *((f'soup {i}', _soup(rng)) for i in range(20)),
    ]
    found += [_case(name, kind, text, gold) for name, text in texts]
  for text in _BOMBS:
    found.append(
      _case(text, 'maths', rf'\boxed{{{text}}}', rng.choice((_GOLD['maths'], *_OTHER_GOLDS)))
    )
  return found
