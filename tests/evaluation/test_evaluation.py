"""Tests figures from records, token counts of text, and interrupted evaluations."""

from __future__ import annotations

import collections
import dataclasses
import json

import numpy as np
import pytest
import scripted_teams as st

from agent_gspo.evaluation import evaluate, harness, results, statistics, text_counts
from agent_gspo.evaluation.options import EvaluationOptions
from agent_gspo.evaluation.variants import itself
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.tasks.base import Task
from agent_gspo.teams import counts
from agent_gspo.teams.policies import EndpointError, ModelPolicy
from agent_gspo.teams.rollout import rollout

HEAD = {'step': 0, 'split': 'test', 'label': 'x'}


class Numbers(Task):
  """Has nine questions; an answer is right if it ends with the question's number."""

  name = 'numbers'

  def _split(self, split):
    return st.questions(9, notes=2)

  def score(self, question, answer_text):
    return float(answer_text.split()[-1:] == [question.answer])


def numbers(tokenizer, *values):
  first = tokenizer.backend.token_to_id('0')
  return [first + v for v in values]


def recite(tokenizer, calls=None):
  """Says the question's number and its own; agent 1 of a team is silent on odd questions."""

  def ids(turn):
    if calls is not None:
      calls.append(turn.question.id)
    number = int(turn.question.text)
    if turn.agent == 1 and number % 2:
      return [tokenizer.eos_id], True
    said = numbers(tokenizer, *[turn.agent] * (1 + turn.round), number)
    return [*said, tokenizer.eos_id], True

  return st.IdsPolicy(ids)


def talk(name, rounds=2, decision='last'):
  tokenizer = st.numbers_tokenizer(40)
  team = st.team(name, rounds=rounds, decision=decision)
  asked = st.questions(5, notes=2)
  batch = rollout(team, st.Echo(), tokenizer, asked, 1, recite(tokenizer))
  return team, tokenizer, batch


# Figures from records


@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
def test_records_hold_all_that_is_counted(name):
  team, tokenizer, batch = talk(name, decision='judge' if name == 'debate' else 'last')
  records = json.loads(json.dumps(results.of_questions(batch, team, st.Echo(), tokenizer, **HEAD)))
  again = results.of_records(records, team.names)
  order = np.argsort(batch.episode, kind='stable')  # records go episode by episode
  names = {field.name for field in dataclasses.fields(batch)} - {'questions', 'messages'}
  of_episodes = {'episode_question', 'sample', 'answers', 'task_scores', 'agent_names', 'drawn'}
  of_episodes |= {'sides'}
  for name in names:
    expected, found = list(getattr(batch, name)), list(getattr(again, name))
    assert found == (expected if name in of_episodes else [expected[m] for m in order]), name
  assert counts.critical_path(again).sum() == counts.critical_path(batch).sum()


def test_figures_by_hand():
  team, tokenizer, batch = talk('star', rounds=1)
  records = results.of_questions(batch, team, st.Echo(), tokenizer, **HEAD)
  figures = results.figures(records, team.names, results.Prices(2.0, 0.5, 'here'))
  written = np.array([6, 4, 6, 4, 6])  # two numbers each; agent 1 is silent on 1 and 3
  assert figures['questions'] == 5
  assert figures['task/accuracy'] == 1.0
  ends = figures['task/accuracy_low'], figures['task/accuracy_high']
  assert ends == statistics.wilson_interval(5, 5)
  assert figures['tokens/written_per_question'] == written.mean()
  low, high = statistics.bootstrap_interval(written)
  assert figures['tokens/written_per_question_low'] == low
  assert figures['tokens/written_per_question_high'] == high
  read = sum(len(m.prompt_ids) for m in batch.messages) / 5
  assert figures['tokens/read_per_question'] == read
  assert figures['tokens/critical_path_per_question'] == 4.0
  assert figures['comm/calls_per_question'] == 3.0
  assert figures['comm/silence_rate'] == pytest.approx(2 / 15)
  assert figures['comm/silence_rate_relevant'] == 0.0
  assert figures['comm/silence_rate_irrelevant'] == pytest.approx(2 / 5)
  assert figures['money/per_question'] == pytest.approx((2.0 * written.mean() + 0.5 * read) / 1e6)
  told = {'written': 2.0, 'read': 0.5, 'source': 'here', 'inserted': 0.0, 'factors': {}}
  assert figures['money/prices_per_million'] == told
  prices = results.Prices(2.0, 0.5, 'here', factors={'agent2': 3.0})
  dear = results.figures(records, team.names, prices)['money/per_question']
  theirs = figures['agents'][1]
  more = 2 * (2.0 * theirs['written_per_question'] + 0.5 * theirs['read_per_question'])
  assert 1e6 * (dear - figures['money/per_question']) == pytest.approx(more)
  assert [a['written_per_question'] for a in figures['agents']] == [2.0, 1.2, 2.0]
  assert sum(r['read_per_question'] for r in figures['rounds']) == read
  for rows in ('agents', 'rounds'):
    total = sum(row['text_read_per_question'] for row in figures[rows])
    assert total == pytest.approx(figures['tokens/text_read_per_question'])
  assert 'money/per_question' not in results.figures(records, team.names)


def test_evaluate_gives_the_figures_of_its_conversations():
  tokenizer = st.numbers_tokenizer(40)
  team, asked = st.team('star'), Numbers().questions('test')
  figures, batch = evaluate.evaluate(
    team, Numbers(), tokenizer, asked, recite(tokenizer), batch_questions=4
  )
  assert [q.id for q in batch.questions] == [q.id for q in asked]
  records = results.of_questions(batch, team, st.Echo(), tokenizer, **HEAD)
  del figures['seconds']
  assert figures == results.figures(records, team.names)


# Plain text


def test_text_of_a_chat_is_counted_without_its_template():
  tokenizer = st.byte_tokenizer()  # a byte a token, but "ab" is one
  team = st.team(
    'chain',
    style='chat',
    rounds=2,
    max_message_tokens=8,
    system='Sys.',
    examples=(('c', 'dd'),),
    opening='Q{question}{note}',
    incoming='[{sender}|{message}]',
    cue='!',
  )
  said = {(0, 0): 'ab', (1, 0): '', (2, 0): 'xyz', (0, 1): 'u', (1, 1): 'vv', (2, 1): 'w'}
  policy = st.IdsPolicy(
    lambda t: ([*tokenizer.encode(said[t.agent, t.round]), tokenizer.eos_id], True)
  )
  asked = st.questions(1, notes=1)
  batch = rollout(team, st.Echo(), tokenizer, asked, 1, policy)
  head = len('Sys.') + len('c!') + len('dd')
  frame = len('[agentN|]')
  expected = {
    # agent 1 opens: question "0", and its note "7"
    (0, 0): head + len('Q07') + len('!'),
    (1, 0): head + len('Q0') + frame + 1 + len('!'),  # reads "ab", one token
    (2, 0): head + len('Q0') + len('!'),  # agent 2 was silent
  }
  expected[0, 1] = expected[0, 0] + 1 + len('!')  # its own "ab"; agent 2 said nothing
  expected[1, 1] = expected[1, 0] + 0 + frame + 3 + frame + 1 + len('!')  # "xyz" and "u"
  expected[2, 1] = expected[2, 0] + 3 + frame + 2 + len('!')
  found = text_counts.count(team, tokenizer, batch)
  for message, (read, written) in zip(batch.messages, found, strict=True):
    turn = message.agent, message.round
    assert (turn, read) == (turn, expected[turn])
    assert written == message.written
    assert read < message.read  # the template costs


def test_text_of_a_plain_prompt_is_the_prompt():
  team, tokenizer, batch = talk('star', rounds=1)
  assert text_counts.count(team, tokenizer, batch) == [(m.read, m.written) for m in batch.messages]


def test_pieces_that_spell_no_word_count_as_they_were_sampled():
  words = ['door', 'doors', '##shells', *(str(n) for n in range(10)), '?']
  tokenizer = word_level(words)
  said = [tokenizer.backend.token_to_id(token) for token in ('door', '##shells')]
  with pytest.raises(ValueError, match="unknown word 'doorshells'"):
    tokenizer.encode(tokenizer.decode(said))
  team = st.team('single', opening='{question}', incoming='{message}', cue=' ?')
  policy = st.IdsPolicy(lambda turn: ([*said, tokenizer.eos_id], True))
  batch = rollout(team, st.Echo(), tokenizer, st.questions(1), 1, policy)
  assert [message.text for message in batch.messages] == ['doorshells']
  assert text_counts.count(team, tokenizer, batch) == [(2, 2)]


# Every token is counted where it is sampled


@pytest.mark.slow
def test_reported_tokens_are_the_samplers_own_on_200_episodes():
  policy, tokenizer = st.model_policy()
  counted = collections.Counter()
  sampler = policy.sampler

  def counting(params, prompts, keys, **arguments):
    out = sampler(params, prompts, keys, **arguments)
    counted['calls'] += len(prompts)
    counted['read'] += sum(map(len, prompts))
    counted['sampled'] += sum(map(len, out.token_ids))
    counted['stops'] += int(np.sum(out.ended))
    counted['silent'] += sum(
      len(ids) == 1 and e for ids, e in zip(out.token_ids, out.ended, strict=True)
    )
    return out

  voice = ModelPolicy(counting, policy.params, policy.root, policy.step, policy.temperature)
  teams = [st.team(name, rounds=1 + (name == 'debate')) for name in st.TOPOLOGIES]
  teams += [st.team('star', decision='majority')]
  asked = [dataclasses.replace(q, text=str(i % 20)) for i, q in enumerate(st.questions(25))]
  total, episodes = collections.Counter(), 0
  for team in teams:
    figures, batch = evaluate.evaluate(team, st.Echo(), tokenizer, asked, voice)
    n = figures['questions']
    total['written'] += round(n * figures['tokens/written_per_question'])
    total['read'] += round(n * figures['tokens/read_per_question'])
    total['calls'] += round(n * figures['comm/calls_per_question'])
    total['silent'] += round(n * figures['comm/calls_per_question'] * figures['comm/silence_rate'])
    assert sum(a['written_per_question'] for a in figures['agents']) == pytest.approx(
      figures['tokens/written_per_question']
    )
    episodes += batch.num_episodes
  assert episodes == 200
  assert total['written'] == counted['sampled'] - counted['stops'] > 0
  assert (total['read'], total['calls']) == (counted['read'], counted['calls'])
  assert total['silent'] == counted['silent'] > 0


# Interruptions


def make(policy, answers=None, alone=0, **options):
  tokenizer = st.numbers_tokenizer(40)
  options = {'questions': 9, 'batch_questions': 2, 'temperature': 1.0, **options}
  return harness.Harness(
    team=st.team('star'),
    task=Numbers(),
    tokenizer=tokenizer,
    policy=lambda temperature, stream: policy,
    options=EvaluationOptions(**options),
    answers=answers or harness.Answers(),
    alone=alone,
  )


def without_time(records):
  return [{k: v for k, v in r.items() if k != 'seconds'} for r in records]


def test_an_interrupted_evaluation_goes_on_where_it_was():
  tokenizer = st.numbers_tokenizer(40)
  calls: list[str] = []
  whole = make(recite(tokenizer, calls))
  expected, records = whole.run('x', itself(whole.team))
  assert len(calls) == 9 * 3

  def dies(turn):
    if turn.question.id == 'q5':
      raise KeyboardInterrupt
    return recite(tokenizer)._ids(turn)

  answers = harness.Answers()
  with pytest.raises(KeyboardInterrupt):
    make(st.IdsPolicy(dies), answers).run('x', itself(whole.team))
  calls.clear()
  found, again = make(recite(tokenizer, calls), answers).run('x', itself(whole.team))
  assert found == expected
  assert without_time(again) == without_time(records)
  assert sorted(set(calls)) == ['q4', 'q5', 'q6', 'q7', 'q8']
  calls.clear()
  assert make(recite(tokenizer, calls), answers).run('x', itself(whole.team))[0] == expected
  assert calls == []


def test_a_batch_is_asked_as_a_whole_but_kept_answers_stay():
  tokenizer = st.numbers_tokenizer(40)
  whole = make(recite(tokenizer), batch_questions=3)
  expected, records = whole.run('x', itself(whole.team))
  answers, calls = harness.Answers(), []
  kept = [r for r in records if r['question_id'] in ('q0', 'q1', 'q2', 'q4')]
  answers.add(kept)
  assert (
    make(recite(tokenizer, calls), answers, batch_questions=3).run('x', itself(whole.team))[0]
    == expected
  )
  assert set(calls) == {'q3', 'q4', 'q5', 'q6', 'q7', 'q8'}
  assert answers.get(kept[3]['variant'], 'q4', 1) == [kept[3]]


def test_another_team_or_temperature_is_another_answer():
  tokenizer = st.numbers_tokenizer(40)
  calls: list[str] = []
  run = make(recite(tokenizer, calls), questions=1)
  keys = set()
  for team in (run.team, st.team('chain'), st.team('star', cue='note :')):
    keys.add(run.run('x', itself(team))[0]['variant'])
  keys.add(run.run('x', itself(run.team), temperature=0.5)[0]['variant'])
  assert len(keys) == 4
  assert len(calls) == 4 * 3


def test_more_questions_go_on_too():
  tokenizer = st.numbers_tokenizer(40)
  calls: list[str] = []
  answers = harness.Answers()
  run = make(recite(tokenizer, calls), answers, questions=4)
  run.run('x', itself(run.team))
  calls.clear()
  found, _ = make(recite(tokenizer, calls), answers, questions=100).run('x', itself(run.team))
  assert found['questions'] == 9
  assert set(calls) == {'q4', 'q5', 'q6', 'q7', 'q8'}


@pytest.mark.parametrize(
  'change', [{'text': '7'}, {'answer': '7'}, {'notes': ('3', '4')}, {'documents': ('3',)}]
)
def test_a_changed_question_is_asked_again(change):
  tokenizer = st.numbers_tokenizer(40)
  calls: list[str] = []
  run = make(recite(tokenizer, calls), alone=1)
  run.run('x', itself(run.team))
  calls.clear()
  asked = Numbers().questions('test')
  task = Numbers()
  task._split = lambda split: [
    dataclasses.replace(q, **change) if q.id == 'q3' else q for q in asked
  ]
  run = dataclasses.replace(run, task=task)
  figures, records = run.run('x', itself(run.team))
  assert set(calls) == {'q3'}
  assert figures['questions'] == len(records) == 9
  assert (records[3]['question'], records[3]['gold']) == (run.asked[3].text, run.asked[3].answer)
  calls.clear()
  run.run('x', itself(run.team))
  assert calls == []


def guess(tokenizer):
  """Answers right in sample `s` of question `i` if `i % 4 > s`; all write one number."""

  def ids(turn):
    number = int(turn.question.text)
    return [*numbers(tokenizer, number if number % 4 > turn.sample else 39), tokenizer.eos_id], True

  return st.IdsPolicy(ids)


def test_samples_of_a_question_are_one_observation():
  tokenizer = st.numbers_tokenizer(40)
  run = make(guess(tokenizer), questions=8, samples=3)
  figures, records = run.run('x', itself(run.team))
  assert [(r['question_id'], r['sample']) for r in records[:4]] == [
    ('q0', 0), ('q0', 1), ('q0', 2), ('q1', 0),
  ]  # fmt: skip
  right = np.array([0, 1, 2, 3] * 2)  # of three
  assert (figures['questions'], figures['samples_per_question']) == (8, 3)
  assert figures['task/accuracy'] == right.mean() / 3
  interval = statistics.wilson_interval((right / 3).sum(), 8)  # has a width where all are right
  assert (figures['task/accuracy_low'], figures['task/accuracy_high']) == interval
  # Two of three samples: with one right of three, two pairs of three have it.
  assert figures['task/pass@2'] == pytest.approx(np.mean([0, 2 / 3, 1, 1]))
  assert figures['task/pass^2'] == pytest.approx(np.mean([0, 0, 1 / 3, 1]))
  assert 'task/pass@4' not in figures
  assert figures['tokens/written_per_question'] == 3.0
  assert figures['tokens/written_per_solved'] == 3.0 / figures['task/accuracy']
  assert 'task/pass@2' not in make(guess(tokenizer)).run('x', itself(run.team))[0]


def test_more_samples_go_on_too():
  tokenizer = st.numbers_tokenizer(40)
  answers = harness.Answers()
  run = make(guess(tokenizer), answers, samples=2)
  run.run('x', itself(run.team))
  kept = answers.held()
  found, _ = make(guess(tokenizer), answers, samples=3).run('x', itself(run.team))
  assert {sample for _, _, sample in answers.held() - kept} == {2}
  assert found == make(guess(tokenizer), samples=3).run('x', itself(run.team))[0]
  again = make(guess(tokenizer), answers, samples=2).run('x', itself(run.team))[0]
  assert again == make(guess(tokenizer), samples=2).run('x', itself(run.team))[0]


def test_a_question_that_fails_in_a_later_sample_is_not_answered():
  tokenizer = st.numbers_tokenizer(40)
  answers = harness.Answers()
  make(recite(tokenizer), answers).run('x', itself(st.team('star')))

  def fails(turn):
    if turn.question.id == 'q3':
      raise EndpointError('none')
    return recite(tokenizer)._ids(turn)

  run = make(st.IdsPolicy(fails), answers, alone=1, samples=2)
  figures, records = run.run('x', itself(run.team))
  assert list(figures['failed']) == ['q3']
  assert (figures['questions'], figures['samples_per_question']) == (8, 2)
  assert figures['task/accuracy'] == sum(r['task_score'] for r in records) / len(records) == 1.0
  assert figures['task/accuracy_over_all'] == 8 / 9


def test_questions_evenly_from_the_whole_split():
  run = make(recite(st.numbers_tokenizer(40)), questions=4, spread=True)
  assert [q.id for q in run.asked] == ['q0', 'q2', 'q4', 'q6']  # of nine
  assert {a: b.id for a, b in run.partners().items()} == {
    'q0': 'q1',
    'q2': 'q3',
    'q4': 'q5',
    'q6': 'q7',
  }
  assert len(make(recite(st.numbers_tokenizer(40)), questions=50).asked) == 9


def test_digest_of_weights_sees_names_types_and_values():
  a = {'x': np.arange(3, dtype=np.float32), 'y': np.zeros(2, np.float32)}
  seen = [
    a,
    {**a, 'x': np.array([0, 1, 3], np.float32)},
    {**a, 'x': np.arange(3, dtype=np.float16)},
    {'x': a['x'], 'z': a['y']},
    {**a, 'y': np.zeros((1, 2), np.float32)},
  ]
  assert len({harness.digest_of_weights(tree) for tree in seen}) == 5
  assert harness.digest_of_weights(a) == harness.digest_of_weights(dict(reversed(a.items())))


# Two evaluations


def test_differences_are_paired_by_question():
  message = lambda written, read: {'written': written, 'read': read}
  record = lambda i, score, written: {
    'question_id': f'q{i}',
    'gold': str(i),
    'task_score': score,
    'messages': [message(written, 10), message(1, 2 * i)],
  }
  a = [record(i, float(i % 2), 5 + i) for i in range(6)]
  b = [record(i, 0.0, 3 + i) for i in range(6)]
  accuracy, written, read = results.differences(a, b[::-1])
  assert (accuracy['a'], accuracy['b'], accuracy['difference']) == (50.0, 0.0, 50.0)
  expected = statistics.paired_bootstrap([100 * r['task_score'] for r in a], [0.0] * 6)
  assert (accuracy['difference_low'], accuracy['difference_high']) == expected[1:]
  # The same for each question: no spread is left.
  assert [written[k] for k in ('difference', 'difference_low', 'difference_high')] == [2.0] * 3
  assert (read['a'], read['difference']) == (15.0, 0.0)
  with pytest.raises(ValueError, match='6 and 5 answers, 5 of them to the same questions'):
    results.differences(a, b[1:])


def test_a_tie_of_thirds_is_no_difference():
  record = lambda i, sample, score: {
    'question_id': f'q{i}',
    'sample': sample,
    'gold': '1',
    'task_score': score,
    'messages': [],
  }
  of = lambda *scores: [record(i, k, s) for i, row in enumerate(scores) for k, s in enumerate(row)]
  none, third, all_ = (0.0,) * 3, (1.0, 0.0, 0.0), (1.0,) * 3
  a, b = of(none, none, none, all_), of(third, third, third, none)
  for pair in ((a, b), (b, a)):
    accuracy = results.differences(*pair)[0]
    assert (accuracy['difference'], accuracy['needed']) == (0.0, None)


def test_one_question_has_no_interval():
  record = lambda score: {'question_id': 'q', 'gold': '1', 'task_score': score, 'messages': []}
  accuracy = results.differences([record(1.0)], [record(0.0)])[0]
  ends = [accuracy[k] for k in ('difference_low', 'difference_high', 'needed')]
  assert (accuracy['difference'], ends) == (100.0, [None] * 3)


def test_the_constant_answer_is_that_of_the_questions_asked():
  asked = [dataclasses.replace(q, answer=a) for q, a in zip(st.questions(4), 'ABAC', strict=True)]
  record = evaluate.constant_answer(asked, 'test')
  assert (record['questions'], record['task/accuracy']) == (4, 0.5)
