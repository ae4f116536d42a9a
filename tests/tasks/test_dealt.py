"""Tests dealt word problems: sentences, relevance, places, demonstrations."""

from __future__ import annotations

import collections
import random

import pytest
from official_files import DATA, digest, needs_data

from agent_gspo.tasks import base
from agent_gspo.tasks.benchmarks.word_problems import GSM8K, WordProblems
from agent_gspo.tasks.data import draws
from agent_gspo.tasks.data.near_duplicates import far_from
from agent_gspo.tasks.dealt import script
from agent_gspo.tasks.dealt import task as dealt
from agent_gspo.tasks.dealt.sentences import context_and_question, sentences
from agent_gspo.tasks.grading.numeric import numbers_in
from agent_gspo.tasks.registry import make_task
from agent_gspo.types import Question

_THINGS = ('pens', 'cups', 'hats', 'figs', 'nuts', 'bags', 'keys', 'maps')


def _problems(split: str, count: int) -> list[Question]:
  """Problems of one, two and four context sentences, and one in eight without any."""
  found = []
  for i in range(count):
    a, b, thing = 20 + i, 3 + i % 7, _THINGS[i % len(_THINGS)]
    kind = i % 8
    text, derivation, answer = {
      0: (f'How many {thing} are {a} and {b} {thing}?', f'( {a} + {b} )', a + b),
      1: (f'Ann saw {a} {thing}. Bob took {b}. How many are left?', f'( {a} - {b} )', a - b),
      2: (f'Mr. Orr has {a} {thing} and 2.5 kg of {b} sorts. How many?', f'( {a} * {b} )', a * b),
    }.get(
      kind,
      (
        f'Eve likes {thing}. She got {a} of them. Then it rained. She lost {b} of them. How many '
        'does she have?',
        f'( {a} - {b} )',
        a - b,
      ),
    )
    found.append(Question(f'{split}-{i}', text, str(answer), derivation=derivation))
  return found


class Small(WordProblems):
  """Defines a benchmark without files."""

  name = 'small'

  read = None

  def __post_init__(self):
    self.graders = (self.grader, 'strict')
    self._questions = {'train': _problems('train', 96), 'test': _problems('test', 48)}


class Rationales(Small, GSM8K):
  """Defines a benchmark whose solutions are rationales."""


def demonstration(task, question, agent, heard):
  """Returns the plainest demonstration of a message."""
  return task.demonstration(
    question, agent, heard, random.Random(0), terse_probability=0.0, silence_probability=0.0
  )


@pytest.fixture(autouse=True)
def small(monkeypatch):
  monkeypatch.setitem(dealt.BENCHMARKS, 'small', Small)
  monkeypatch.setitem(dealt.BENCHMARKS, 'rationales', Rationales)


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('Mr. Lee has 2.5 kg. he eats it.', ['Mr. Lee has 2.5 kg.', 'he eats it.']),
    ('J. Roe left at 5 p.m. on foot. He ran.', ['J. Roe left at 5 p.m. on foot.', 'He ran.']),
    ('It cost $ 3.50! Why? No.', ['It cost $ 3.50!', 'Why?', 'No.']),
    ('He said "stop." Then he left.', ['He said "stop."', 'Then he left.']),
    ('one sentence', ['one sentence']),
    ('', []),
  ],
)
def test_sentences(text, expected):
  assert sentences(text) == expected


@pytest.mark.parametrize(
  ('text', 'context', 'question'),
  [
    ('Ann has 5. Bob has 6. How many?', ['Ann has 5.', 'Bob has 6.'], 'How many?'),
    (
      'Ed had 8 figs. If he eats 3, how many are left?',
      ['Ed had 8 figs.', 'If he eats 3.'],
      'How many are left?',
    ),
    (
      'there are 8 figs. if each bag holds 2 then how many bags are there?',
      ['There are 8 figs.', 'If each bag holds 2.'],
      'How many bags are there?',
    ),
    (
      'if he needs 635 lbs of metal and has 276 lbs how much more does he need?',
      ['If he needs 635 lbs of metal and has 276 lbs.'],
      'How much more does he need?',
    ),
    # A condition after the question, and an opening without facts.
    ('How many are left if he eats 3 of 8?', [], 'How many are left if he eats 3 of 8?'),
    ('He ate 8. On Monday, how many were left?', ['He ate 8.'], 'On Monday, how many were left?'),
    ('How many are 3 figs? Each has 4.', ['Each has 4.'], 'How many are 3 figs?'),
    ('Find the sum of 3 and 4.', [], 'Find the sum of 3 and 4.'),
  ],
)
def test_context_and_question(text, context, question):
  assert context_and_question(text) == (context, question)


@pytest.mark.parametrize('informants', [1, 2, 3, 5])
def test_every_problem_is_dealt_whole(informants):
  """Each context sentence is dealt once and in order; all others are irrelevant."""
  task = make_task('dealt', benchmark='small', num_informants=informants)
  for split in ('train', 'test'):
    originals = {q.id: q for q in _problems(split, 96)}
    asked = task.questions(split)
    assert task.undealt(split) == (12 if split == 'train' else 6)  # no context sentence
    own = {s for q in asked for s in context_and_question(originals[q.id].text)[0]}
    for question in asked:
      original = originals[question.id]
      context, text = context_and_question(original.text)
      operands = Small.operands(original)
      assert (question.text, question.answer) == (text, original.answer)
      assert len(question.notes) == len(question.relevant) == informants
      told = [s for note in question.notes for s in sentences(note)]
      assert sorted(s for s in told if s in context) == sorted(context)
      for note, relevant in zip(question.notes, question.relevant, strict=True):
        assert relevant == any(n in operands for n in numbers_in(note))
        strange = [s for s in sentences(note) if s not in context]
        assert set(strange) <= own  # of other problems of the split
        assert not (strange and relevant)
      needed = [note for note, flag in zip(question.notes, question.relevant, strict=True) if flag]
      assert needed
      assert needed == sorted(needed, key=lambda n: original.text.index(sentences(n)[0]))


@pytest.mark.parametrize(
  ('note', 'derivation', 'needed'),
  [
    ('Bob has twice as many.', '( 7 * 2 )', True),
    ('Half of them broke.', '( 7 * 0.5 )', True),
    ('Then their number DOUBLED.', '( 7 * 2 )', True),
    ('She halves them.', '( 7 / 2 )', True),
    ('Bob has triple that.', '( 7 * 3 )', True),
    ('Bob has a dozen.', '( 7 + 12 )', True),
    ('Bob has twice as many.', '( 7 - 3 )', False),
    ('She came by the double decker bus.', '( 7 - 2 )', False),
    ('It rained in the second half.', '( 7 - 2 )', False),
  ],
)
def test_a_note_is_needed_for_a_number_in_words(note, derivation, needed, monkeypatch):
  asked = Question('x', f'Ann has 7 pens. {note} How many?', '1', derivation=derivation)
  monkeypatch.setattr(Small, '_split', lambda self, split: [asked])
  (dealt_one,) = make_task('dealt', benchmark='small', num_informants=2).questions('train')
  assert dict(zip(dealt_one.notes, dealt_one.relevant, strict=True))[note] == needed


def test_more_informants_than_other_sentences_are_refused():
  task = make_task('dealt', benchmark='small', num_informants=100)
  with pytest.raises(ValueError, match=r'num_informants=100: the split of .* Lower it'):
    task.questions('test')


def test_places_are_balanced():
  task = make_task('dealt', benchmark='small', num_informants=3)
  subsets = collections.defaultdict(collections.Counter)
  for question in task.questions('train'):
    subsets[sum(question.relevant)][question.relevant] += 1
  for count, found in subsets.items():
    assert len(found) == {1: 3, 2: 3}[count]
    assert max(found.values()) - min(found.values()) <= 1


def test_the_whole_problem_for_a_solver_alone():
  dealt_ones = make_task('dealt', benchmark='small')
  whole = make_task('dealt', benchmark='small', whole_problem=True)
  asked = whole.questions('test')
  assert [q.id for q in asked] == [q.id for q in dealt_ones.questions('test')]
  assert asked == [q for q in _problems('test', 48) if q.id in {a.id for a in asked}]
  assert demonstration(whole, asked[0], 0, []) == Small.solution(asked[0])


def test_grades_the_equation_and_tells_what_the_others_say():
  task = make_task('dealt', benchmark='small')
  question = task.questions('test')[0]
  a, b = sorted((int(n) for n in Small.operands(question)), reverse=True)
  assert question.answer == str(a - b)
  assert task.score(question, f'{a} - {b} = 0') == 1.0
  assert task.score(question, question.answer) == 0.0
  assert task.graded_by('strict', question, question.answer) == 1.0
  assert task.graded_by('strict', question, f'{a} - {b} = 0') == 0.0
  assert task.canonical(f'{a} - {b} = 0') == question.answer
  left_out = 'relevant: 12 of 96 (train), 0 of 0 (validation), 6 of 48 (test).'
  assert left_out in task.note(base.SPLITS)


def test_stories_held_back_are_not_shown_with_other_numbers(monkeypatch):
  task = make_task('dealt', benchmark='small', redrawn_copies=1)
  monkeypatch.setattr(task, 'further_demonstrations', tuple)
  originals = {q.id: draws.masked(q.text) for q in _problems('train', 96)}
  parts = base.demonstrated(task, 0.5), base.asked(task, 0.5)
  shown, asked = ({originals[q.story or q.id] for q in part} for part in parts)
  assert len(shown) + len(asked) == len(shown | asked) == 7
  assert shown
  assert asked
  assert sum(map(len, parts)) == len(task.questions('train')) > 96


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'benchmark': 'drop'}, "task.options.benchmark='drop' is unknown; use one of"),
    ({'apart_from': ('drop',)}, "options.apart_from='drop' is unknown; use one of"),
    ({'num_informants': 0}, 'num_informants=0 must be a whole number from 1 to 100'),
    ({'also_from': ('svmp',)}, "also_from='svmp' is unknown; use one of"),
    ({'also_from': ('small',)}, 'also_from=.* must name each other benchmark once'),
    ({'seed': 0.5}, r'seed=0\.5 must be a whole number'),
    ({'redrawn_copies': -1}, r'redrawn_copies=-1 must be a whole number, 0 or more'),
    ({'misleading_share': 1.5}, r'misleading_share=1\.5 must be at least 0 and at most 1'),
    ({'misleading_share': 0.5}, 'is a share of the redrawn copies, and redrawn_copies=0 makes'),
    (
      {'benchmark': 'gsm8k', 'redrawn_copies': 1},
      'redrawn_copies=1 needs gold equations, and gsm8k has rationales; set it to 0',
    ),
    (
      {'benchmark': 'gsm8k'},
      "grader='equation' needs gold equations, and gsm8k has rationales; set it to 'strict'",
    ),
  ],
)
def test_bad_options(options, message):
  with pytest.raises(ValueError, match=message):
    make_task('dealt', **{'benchmark': 'small', **options})


@pytest.mark.parametrize(
  ('note', 'expected'),
  [
    (
      'Dave had to wash 9 short sleeve shirts and 21 long sleeve shirts before school.',
      'wash 9 short sleeve shirts, 21 long sleeve shirts',
    ),
    ('Jessica spent $10.22 on a toy, and a cage cost her $11.73.', 'spent $10.22, her $11.73'),
    ('He gave 9 cookies to his friend and ate 18.', 'gave 9 cookies, ate 18'),
    ('43 children were there.', '43 children'),
    (
      'It takes 3 cups of sugar 10 cups of flour and 15 of it.',
      'takes 3 cups of sugar, 10 cups of flour, 15',
    ),
    ('Mary is baking a cake.', ''),
    ('', ''),
  ],
)
def test_terse(note, expected):
  assert script.terse(note) == expected
  assert numbers_in(script.terse(note)) == [n for n in numbers_in(note) if note]


def test_informants_speak_in_several_lengths_and_never_keep_a_needed_note_back():
  note, rng = 'Ann has 5 pens and a red pen.', random.Random(0)
  say = lambda relevant, terse, silence: script.message(note, relevant, rng, terse, silence)
  said = {say(True, 0.3, 1.0) for _ in range(300)}
  assert {note, script.terse(note)} < said
  assert len(said) == 5  # and three polite frames
  assert all(numbers_in(text) == [5] for text in said)
  assert {say(False, 0.3, 1.0) for _ in range(20)} == {''}
  share = sum(say(False, 0.0, 0.25) == '' for _ in range(2000)) / 2000
  assert abs(share - 0.25) < 0.04


@pytest.mark.parametrize(
  ('note', 'expected'),
  [
    ('He had 16 red balls and two times more blue balls.', None),
    ('Ann has 12 slices and ate half for lunch.', None),
    ('Ann has 5 pens, and Bob has TWICE as many.', None),
    ('She bought 8 pens and a dozen cups.', None),
    ('Ann scored 13 points in the first half.', 'scored 13 points'),
    ('Ann has 5 pens and one cup.', 'has 5 pens'),
  ],
)
def test_terse_messages_keep_every_number_of_the_note(note, expected):
  assert script.message(note, True, random.Random(0), 1.0, 0.0) == (expected or note)


@pytest.mark.parametrize(
  'options', [{'benchmark': 'small'}, {'benchmark': 'rationales', 'grader': 'strict'}]
)
def test_a_solver_shows_the_chain_of_numbers_that_it_has_heard_or_nothing(options):
  task = make_task('dealt', **options)
  for question in make_task('dealt', benchmark='small').questions('train'):
    assert task.score(question, demonstration(task, question, 3, ['said'] * 3)) == 1.0
    for silent, needed in enumerate(question.relevant):
      heard = ['' if i == silent else 'said' for i in range(3)]
      assert (demonstration(task, question, 3, heard) is None) == needed
  odd = Question('x', 'q', '1/3', ('', '', ''), (True, False, False), derivation='( 1 / 3 )')
  assert demonstration(task, odd, 3, ['said'] * 3) is None


# The official files.

GRADERS = {'svamp': 'equation', 'multiarith': 'equation', 'gsm8k': 'strict'}


@pytest.fixture(scope='module')
def official(tmp_path_factory):
  cache = tmp_path_factory.mktemp('cache')
  return {
    name: make_task('dealt', benchmark=name, grader=grader, data_dir=DATA, cache_dir=cache)
    for name, grader in GRADERS.items()
  }


@needs_data
@pytest.mark.parametrize(
  ('name', 'sizes', 'expected'),
  [
    ('svamp', [(2787, 32), (300, 6), (1000, 0)], '8d6e72bb93ea'),
    ('multiarith', [(280, 0), (26, 0), (175, 0)], '45734f47e032'),
    ('gsm8k', [(6671, 263), (517, 20), (1273, 46)], '577127e3dfd1'),
  ],
)
def test_questions_stay_the_same_across_versions(name, sizes, expected, official):
  task = official[name]
  assert [(len(task.questions(s)), task.undealt(s)) for s in base.SPLITS] == sizes
  assert digest(q for split in base.SPLITS for q in task.questions(split)) == expected


@needs_data
def test_apart_from_another_benchmark(official):
  """Most of MultiArith stands in the training file of SVAMP: none of its test is left there."""
  apart = make_task('dealt', benchmark='svamp', apart_from=('multiarith',), data_dir=DATA)
  test = make_task('multiarith', data_dir=DATA).questions('test')
  everything = make_task('svamp', data_dir=DATA).questions('train')
  left = {q.id for q in apart.questions('train')}
  far = {q.id for q in far_from(everything, test)}
  assert len(far) < len(everything) - 100
  assert left <= far
  assert left >= far & {q.id for q in official['svamp'].questions('train')}
  assert apart.questions('test') == official['svamp'].questions('test')
  assert apart.undealt('train') == len(everything) - len(left)


@pytest.mark.slow
@needs_data
def test_further_demonstrations_are_of_other_stories(official):
  task = make_task(
    'dealt',
    benchmark='multiarith',
    also_from=('svamp', 'gsm8k'),
    apart_from=('svamp',),
    redrawn_copies=2,
    misleading_share=0.5,
    data_dir=DATA,
  )
  further = task.further_demonstrations()
  assert (digest(task.questions('train')), digest(further)) == ('7d70cf449137', '507c6bb632bc')
  own = [
    q for split in base.SPLITS for q in make_task('multiarith', data_dir=DATA).questions(split)
  ]
  tests = own + list(make_task('svamp', data_dir=DATA).questions('test'))
  whole = {
    q.id: q
    for name in ('svamp', 'gsm8k')
    for q in make_task(name, data_dir=DATA).questions('train')
  }
  assert len(far_from([whole[q.id] for q in further], tests)) == len(further)
  assert {q.id for q in base.demonstrated(task, 0.5)} > {q.id for q in further}
  assert not {q.id for q in base.asked(task, 0.5)} & {q.id for q in further}
  solved = [q for q in further if demonstration(task, q, 3, q.notes) is not None]
  assert {q.id.partition('-')[0] for q in solved} == {'svamp'}  # GSM8K has no equations


@pytest.mark.parametrize(
  ('equation', 'answer', 'forms'),
  [
    ('( 3 + 2 )', '5', ['3 + 2 = 5', '2 + 3 = 5']),
    ('( 6 - 2 )', '4', ['6 - 2 = 4']),
    (
      '( ( 3 + 2 ) * 4 )',
      '20',
      [
        '3 + 2 = 5, 5 * 4 = 20',
        '3 + 2 = 5, 4 * 5 = 20',
        '2 + 3 = 5, 5 * 4 = 20',
        '2 + 3 = 5, 4 * 5 = 20',
      ],
    ),
    ('7', '7', ['7']),
  ],
)
def test_gold_messages_are_the_solution_with_its_operands_exchanged(equation, answer, forms):
  question = Question('x', 'How many?', answer, derivation=equation)
  task = Small(grader='equation')
  assert list(task.gold_messages(question)) == [('', form) for form in forms]


@needs_data
@pytest.mark.parametrize('name', GRADERS)
def test_official_problems(official, name):
  """Each place is needed equally often; every demonstration is right; nothing is in two splits."""
  task = official[name]
  for split in ('train', 'test'):
    asked = task.questions(split)
    shares = [sum(q.relevant[i] for q in asked) / len(asked) for i in range(3)]
    assert max(shares) - min(shares) < 0.02
    assert all(any(q.relevant) for q in asked)
  shown = [(q, demonstration(task, q, 3, q.notes)) for q in task.questions('train')]
  told = [(q, text) for q, text in shown if text is not None]
  assert len(told) > 0.97 * len(shown)
  assert all(task.score(q, text) for q, text in told)
  ids = [{q.id for q in task.questions(split)} for split in base.SPLITS]
  assert len(set().union(*ids)) == sum(map(len, ids))
