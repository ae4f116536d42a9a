"""Tests the relay task: balance, splits, determinism, options, scripted teams."""

from __future__ import annotations

import collections
import itertools
import random
import re

import pytest
from official_files import digest

from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.tasks import base
from agent_gspo.tasks.registry import make_task
from agent_gspo.tasks.relay import grammar
from agent_gspo.tasks.relay.script import parse_fact, solver_message, talkative_message
from agent_gspo.tasks.relay.task import RelayTask

SETTINGS = [
  {},
  {'text_style': 'words'},
  {'num_informants': 5, 'num_irrelevant': 2, 'max_count': 4},
  {'operation': 'lookup', 'num_irrelevant': 2},
  {'irrelevant_notes': 'off_topic', 'text_style': 'words'},
  {'irrelevant_notes': 'empty', 'num_informants': 4, 'num_irrelevant': 2},
  {'operation': 'lookup', 'num_irrelevant': 2, 'irrelevant_notes': 'off_topic'},
  {'num_irrelevant': 0},
]

DIGESTS = (
  '066a06709a41',
  'f41fb392a39e',
  '47b711d4f462',
  '2522414bdb3b',
  '945dc23da9eb',
  '5cb6c2497d9a',
  '7457642393f3',
  '776b4b88835a',
)


def content(question):
  """Returns the content that determines the split, read from the finished question."""
  facts = sorted(note for note in question.notes if parse_fact(note))
  asked = sorted(re.findall(r'\b[A-Z][a-z]+\b', question.text.removeprefix('How')))
  return tuple(asked), tuple(facts)


def chi_square(counts, options):
  expected = sum(counts.values()) / len(options)
  return sum((counts[option] - expected) ** 2 / expected for option in options)


@pytest.mark.parametrize('options', SETTINGS)
def test_notes_give_the_answer(options):
  task = RelayTask(**options)
  for split in base.SPLITS:
    for question in task.questions(split)[:200]:
      assert len(question.notes) == len(question.relevant) == task.num_informants
      assert sum(question.relevant) == task.num_relevant
      needed = [n for n, flag in zip(question.notes, question.relevant, strict=True) if flag]
      idle = [n for n, flag in zip(question.notes, question.relevant, strict=True) if not flag]
      facts = [parse_fact(note) for note in needed]
      assert sum(count for _, count, _ in facts) == int(question.answer)
      assert all(1 <= count <= task.max_count for _, count, _ in facts)
      assert {owner for owner, _, _ in facts} == set(content(question)[0])
      assert {noun for _, _, noun in facts} == {question.text.split()[2]}
      owners = [parse_fact(note)[0] for note in question.notes if parse_fact(note)]
      assert len(set(owners)) == len(owners)
      if task.irrelevant_notes == 'other_owner':
        assert all(parse_fact(note)[2] == facts[0][2] for note in idle)
      elif task.irrelevant_notes == 'off_topic':
        assert all(note and parse_fact(note) is None for note in idle)
        assert not any(name in note for note in idle for name in content(question)[0])
        assert len(set(idle)) == len(idle)
      else:
        assert idle == [''] * task.num_irrelevant


@pytest.mark.parametrize('relevant', [1, 2, 3])
def test_gold_equations_add_the_relevant_counts_in_any_order(relevant):
  operation = 'lookup' if relevant == 1 else 'sum'
  task = RelayTask(
    num_informants=4, num_irrelevant=4 - relevant, operation=operation, gold='equation'
  )
  for question in task.questions('test')[:50]:
    given, forms = zip(*task.gold_messages(question), strict=True)
    assert set(given) == {''}
    assert all(task.score(question, form) == 1 for form in forms)
    notes = zip(question.notes, question.relevant, strict=True)
    counts = [parse_fact(note)[1] for note, flag in notes if flag]
    if relevant == 2:
      a, b = counts
      assert set(forms) == {f'{a} + {b} = {a + b}', f'{b} + {a} = {a + b}'}
    assert len(set(forms)) == len(forms)


@pytest.mark.parametrize('options', SETTINGS)
def test_splits_share_no_content(options):
  task = RelayTask(**options, train_size=3000, validation_size=500, test_size=500)
  contents = {split: {content(q) for q in task.questions(split)} for split in base.SPLITS}
  for one, other in itertools.combinations(base.SPLITS, 2):
    assert not contents[one] & contents[other]
  ids = [question.id for split in base.SPLITS for question in task.questions(split)]
  assert len(set(ids)) == len(ids)


def words_in(question):
  """Returns a question's words, and its sentences without names and numbers."""
  texts = (question.text, *question.notes)
  return {word.strip('.,?') for text in texts for word in text.split()}


@pytest.mark.parametrize('seed', [0, 1])
def test_notes_of_a_split_are_unseen_in_the_others(seed):
  options = {'num_informants': 6, 'num_irrelevant': 4, 'irrelevant_notes': 'off_topic'}
  found, pools = {}, {'names': grammar.NAMES, 'objects': grammar.OBJECTS}
  joined = {what: {w.replace('-', '') for w in pool} for what, pool in pools.items()}
  for split in base.SPLITS:
    task = RelayTask(**options, seed=seed if split == 'test' else 0)
    questions = task.questions(split)[:500]
    shown = set().union(*map(words_in, questions))
    found[split] = {what: shown & words for what, words in joined.items()}
    idle = {note for q in questions for note, r in zip(q.notes, q.relevant, strict=True) if not r}
    found[split]['sentences'] = idle
    found[split]['frames'] = {re.sub(r'{\w+}', '_', frame) for frame in grammar.IDLE_FRAMES[split]}
  for one, other in itertools.combinations(base.SPLITS, 2):
    for what in ('names', 'objects', 'sentences', 'frames'):
      assert found[one][what]
      assert not found[one][what] & found[other][what], (one, other, what)


def test_idle_notes_are_many_and_have_no_simple_mark():
  task = RelayTask(num_informants=4, num_irrelevant=2, irrelevant_notes='off_topic')
  people = {name.replace('-', '') for name in grammar.NAMES}
  for split in ('train', 'test'):
    idle = [
      note
      for q in task.questions(split)[:500]
      for note, flag in zip(q.notes, q.relevant, strict=True)
      if not flag
    ]
    assert len(set(idle)) > 500
    assert 0.15 < sum(bool(re.search('[0-9]', note)) for note in idle) / len(idle) < 0.6
    assert 0.25 < sum(bool(people & set(note[:-1].split())) for note in idle) / len(idle) < 0.7


def test_unseen_words_are_spelled_in_seen_pieces():
  task = RelayTask(
    num_informants=4, num_irrelevant=2, irrelevant_notes='off_topic', text_style='words'
  )
  tokenizer, seen = word_level(task.vocabulary()), set()
  for question in task.questions('train')[:2000]:
    for text in (question.text, *question.notes):
      seen.update(tokenizer.encode(text))
  for split in ('validation', 'test'):
    for question in task.questions(split):
      for text in (question.text, *question.notes):
        assert set(tokenizer.encode(text)) <= seen, text


@pytest.mark.parametrize('options', SETTINGS)
def test_answers_and_places_are_balanced(options):
  task = RelayTask(**options)
  questions = task.questions('train')[: len(task.answers) * 100]
  answers = collections.Counter(int(question.answer) for question in questions)
  assert set(answers.values()) == {100}
  places = collections.Counter(question.relevant for question in questions)
  # The last block of places may be cut off: the counts differ by one at most.
  assert max(places.values()) - min(places.values()) <= 1
  for i in range(task.num_informants):
    share = sum(question.relevant[i] for question in questions) / len(questions)
    assert share == pytest.approx(task.num_relevant / task.num_informants, abs=0.01)
  constant = base.most_common_share(task.questions('test'))
  assert constant <= 1 / len(task.answers) + 2 / len(task.questions('test'))


def test_place_and_answer_are_independent():
  questions = RelayTask().questions('train')[:5100]
  cells = collections.Counter((q.relevant, q.answer) for q in questions)
  # 51 cells of 100: 99.9 % quantile of chi-square with 50 degrees of freedom is 86.7.
  assert chi_square(cells, list(cells)) < 86.7
  assert len(cells) == 51


def test_addends_are_uniform_given_the_answer():
  questions = RelayTask(num_irrelevant=0, num_informants=3, max_count=4).questions('train')
  triples = collections.Counter(
    tuple(parse_fact(note)[1] for note in q.notes) for q in questions[:10_000] if q.answer == '6'
  )
  expected = [t for t in itertools.product(range(1, 5), repeat=3) if sum(t) == 6]
  assert set(triples) == set(expected)
  # 10 triples: 99.9 % quantile of chi-square with 9 degrees of freedom is 27.9.
  assert chi_square(triples, expected) < 27.9


@pytest.mark.parametrize(('options', 'expected'), list(zip(SETTINGS, DIGESTS, strict=True)))
def test_questions_stay_the_same_across_versions(options, expected):
  """If this fails, earlier results are on other questions."""
  task = RelayTask(**options)
  shown = [*task.questions('test')[:200], *task.questions('train')[999_800:]]
  assert digest(shown) == expected


def test_random_access():
  task, again = RelayTask(seed=3), RelayTask(seed=3, test_size=900)
  late = task.questions('train')[999_999]
  assert again.questions('train')[999_999] == late == task.questions('train')[-1]
  assert again.questions('test')[:500] == list(task.questions('test'))
  assert RelayTask(seed=4).questions('train')[:20] != task.questions('train')[:20]


def test_sequence_protocol():
  found = RelayTask(test_size=7).questions('test')
  assert len(found) == len(list(found)) == 7
  assert found[2:5] == [found[2], found[3], found[4]]
  with pytest.raises(IndexError):
    found[7]
  with pytest.raises(IndexError):
    found[-8]


def scripted_messages(task, question, rng, terse_probability=0.05, silence_probability=0.0):
  """Returns a scripted conversation: a message per informant, then the solver's."""
  options = {'terse_probability': terse_probability, 'silence_probability': silence_probability}
  said = []
  for agent in range(task.num_informants + 1):
    delivered = said if agent == task.num_informants else []
    said.append(task.demonstration(question, agent, list(delivered), rng, **options))
  return said


def test_vocabulary_covers_everything():
  for options in SETTINGS:
    task = RelayTask(**{**options, 'text_style': 'words'})
    words = set(task.vocabulary())
    assert task.vocabulary() == sorted(words)
    assert {str(task.answers[-1]), '.', ',', '?', ':'} <= words
    rng, tokenizer = random.Random(0), word_level(task.vocabulary())
    for question in task.questions('train')[:300]:
      said = scripted_messages(task, question, rng, terse_probability=0.2, silence_probability=0.2)
      for text in (question.text, *question.notes, *said):
        assert text == ' '.join(text.split())
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize('options', SETTINGS)
def test_scripted_team_solves_the_task_when_nobody_is_silent(options):
  task, rng = RelayTask(**options), random.Random(0)
  for question in task.questions('validation'):
    messages = scripted_messages(task, question, rng)
    assert len(messages) == task.num_informants + 1
    assert task.score(question, messages[-1]) == 1


@pytest.mark.parametrize('options', SETTINGS)
@pytest.mark.parametrize('silence', [0.0, 0.5])
def test_chain_solves_the_task_if_informants_pass_facts_on(options, silence):
  task, alone = RelayTask(**options, pass_on=True), RelayTask(**options)
  solved = {True: 0.0, False: 0.0}
  for passes in solved:
    rng = random.Random(0)
    for question in task.questions('validation'):
      said = ''
      for agent in range(task.num_informants + 1):
        delivered = [said if a == agent - 1 else '' for a in range(task.num_informants)]
        said = (task if passes else alone).demonstration(
          question, agent, delivered, rng, terse_probability=0.2, silence_probability=silence
        )
      solved[passes] += task.score(question, said)
  assert solved[True] == len(task.questions('validation'))
  assert solved[False] < 0.6 * solved[True]


def test_a_whole_problem_shows_all_notes_and_deals_none():
  dealt, whole = (RelayTask(text_style='words', whole_problem=w) for w in (False, True))
  pairs = zip(dealt.questions('test'), whole.questions('test'), strict=True)
  for ours, theirs in itertools.islice(pairs, 20):
    assert theirs.text == ' '.join([*ours.notes, ours.text])
    assert (theirs.id, theirs.answer, theirs.notes) == (ours.id, ours.answer, ())
    (said,) = scripted_messages(whole, theirs, random.Random(0))[:1]
    assert whole.score(theirs, said) == 1
  with pytest.raises(ValueError, match="gold='equation' adds up notes, and whole_problem=True"):
    RelayTask(gold='equation', whole_problem=True)


def test_talkative_messages_carry_the_note_and_vary():
  task = RelayTask(text_style='words')
  rng = random.Random(0)
  lengths = collections.Counter()
  for question in task.questions('train')[:500]:
    message = talkative_message(task.render, question, 0, rng, 0, 0)
    owner, count, _ = parse_fact(question.notes[0])
    assert f'{owner} has {count} ' in message
    lengths[len(message.split())] += 1
  assert min(lengths) == 8
  assert max(lengths) == 21
  assert len(lengths) >= 6
  question = task.questions('train')[0]
  owner, count, _ = parse_fact(question.notes[0])
  assert talkative_message(task.render, question, 0, rng, 1, 0) == f'{owner} {count}'


def test_scripted_shares():
  task = RelayTask(text_style='words')
  question, rng = task.questions('train')[0], random.Random(0)
  shares = {}
  for relevant in (True, False):
    agent = question.relevant.index(relevant)
    said = [talkative_message(task.render, question, agent, rng, 0.1, 0.3) for _ in range(4000)]
    terse = sum(len(message.split()) == 2 for message in said)
    shares[relevant] = said.count('') / 4000, terse / 4000
  assert shares[True] == (0, pytest.approx(0.1, abs=0.02))
  assert shares[False] == (pytest.approx(0.3, abs=0.03), pytest.approx(0.07, abs=0.02))


def test_solver_guesses_uniformly_when_a_fact_is_missing():
  task = RelayTask(text_style='words')
  question = next(q for q in task.questions('train')[:50] if q.relevant == (True, True, False))
  known = parse_fact(question.notes[0])[1]
  rng = random.Random(0)
  guesses = collections.Counter()
  for _ in range(3000):
    message = solver_message(
      task.render, task.max_count, question, (question.notes[0], '', ''), rng, 0.05
    )
    guesses[int(re.findall('[0-9]+', message)[-1])] += 1
  options = list(range(known + 1, known + task.max_count + 1))
  assert set(guesses) == set(options)
  assert chi_square(guesses, options) < 26.1  # 99.9 % quantile, 8 degrees of freedom.


def test_solver_hears_only_what_names_owner_and_number():
  task, rng = RelayTask(text_style='words'), random.Random(0)
  question = next(q for q in task.questions('train') if q.relevant == (True, True, False))
  terse = [f'{parse_fact(note)[0]} {parse_fact(note)[1]}' for note in question.notes]
  mute = ['hello team .'] * 3
  hits = lambda heard: sum(
    task.score(question, solver_message(task.render, task.max_count, question, heard, rng, 0.05))
    for _ in range(300)
  )
  assert hits(terse) == 300
  assert hits(mute) < 60


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'num_informants': 0}, 'num_informants=0 must be a whole number from 1 to 100'),
    ({'num_irrelevant': -1}, 'num_irrelevant=-1'),
    ({'num_irrelevant': 2}, "operation='sum' needs 2 or more relevant notes"),
    ({'num_irrelevant': 5}, 'num_informants=3 - num_irrelevant=5 is -2; change one'),
    ({'operation': 'lookup'}, "operation='lookup' needs 1 relevant notes"),
    ({'operation': 'product'}, "operation='product' is unknown; use one of"),
    ({'irrelevant_notes': 'none'}, "irrelevant_notes='none' is unknown"),
    ({'text_style': 'fancy'}, "text_style='fancy' is unknown"),
    ({'max_count': 10**30}, 'max_count=1000'),
    ({'num_informants': 10**9}, 'num_informants=1000000000 must be a whole number from 1 to 100'),
    ({'num_informants': 13}, "needs 13 names, and split 'validation' has 12; lower it, or set val"),
    ({'seed': 'x'}, "seed='x' must be a whole number"),
    ({'train_size': -1}, 'train_size=-1'),
    ({'test_size': None}, 'test_size=None'),
  ],
)
def test_parameters_are_checked(options, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    RelayTask(**options)


def test_unknown_and_empty_splits():
  task = RelayTask(validation_size=0)
  with pytest.raises(ValueError, match="split='dev' of task relay is unknown"):
    task.questions('dev')
  with pytest.raises(
    ValueError, match=r"split 'validation' of task relay is empty: set validation_size > 0"
  ):
    task.questions('validation')
  assert len(task.questions('train')) == 1_000_000


def test_registry():
  task = make_task('relay', num_informants=4, num_irrelevant=2)
  assert isinstance(task, RelayTask)
  assert (task.num_informants, task.max_count) == (4, 9)
  with pytest.raises(ValueError, match=r"task.name='relai' is .* Did you mean 'relay'\?"):
    make_task('relai')
  with pytest.raises(ValueError, match=r"num_informant is .* mean 'num_informants'\?"):
    make_task('relay', num_informant=4)
  with pytest.raises(ValueError, match=r"zzz is unknown; task 'relay' has gold.*_problem\.$"):
    make_task('relay', zzz=4)
