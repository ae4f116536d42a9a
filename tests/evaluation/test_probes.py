"""Tests muting, blanking and shuffling on scripted teams."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scripted_teams as st

from agent_gspo.environments.kuhn import Kuhn
from agent_gspo.evaluation import harness, probes, results, variants
from agent_gspo.evaluation.options import EvaluationOptions
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.tasks.base import Task
from agent_gspo.teams import policies
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team

TOKENIZER = st.numbers_tokenizer(60)
FIRST = TOKENIZER.backend.token_to_id('0')
EOS = TOKENIZER.eos_id
STOPS = (EOS,) * 3  # of three agents


class Notes(Task):
  """Accepts answers with the number in agent 1's note, which is the question's."""

  name = 'notes'

  def __init__(self, size=7):
    self.size = size

  def _split(self, split):
    return [
      dataclasses.replace(q, notes=(str(20 + i), '7'), relevant=(True, False))
      for i, q in enumerate(st.questions(self.size))
    ]

  def score(self, question, answer_text):
    return float(question.notes[0] in answer_text.split())


def relay(turn, tokenizer=TOKENIZER):
  """Writes notes as agents 1 and 2 (2 on even questions only); agent 3 repeats what it reads."""
  if turn.agent < 2:
    said = turn.question.notes[turn.agent]
    if turn.agent == 1 and int(turn.question.text) % 2:
      said = ''
  else:
    said = ' '.join(turn.delivered[a] for a in sorted(turn.delivered)).strip()
  return [*tokenizer.encode(said), tokenizer.eos_id], True


def make(team=None, size=7, questions=None, batch_questions=2, **fields):
  return harness.Harness(
    team=team or st.team('star'),
    task=Notes(size),
    tokenizer=TOKENIZER,
    policy=lambda temperature, stream: st.IdsPolicy(relay),
    options=EvaluationOptions(questions=questions or size, batch_questions=batch_questions),
    **fields,
  )


def shuffled(policy, team, asked, others):
  """Returns a policy that answers `asked` with messages about `others`, by position."""
  partners = {q.id: other for q, other in zip(asked, others, strict=True)}
  return probes.shuffled(policy, partners, team, st.Echo(), TOKENIZER)


def test_a_muted_agent_writes_a_stop_token_and_is_heard_by_nobody():
  team, asked = st.team('star'), Notes().questions('test')
  inner = st.IdsPolicy(relay)
  batch = rollout(team, Notes(), TOKENIZER, asked, 1, policies.muted(inner, (0,), STOPS))
  assert all(turn.agent != 0 for turn in inner.turns)
  for m in batch.messages:
    if m.agent == 0:
      assert (m.token_ids.tolist(), m.ended) == ([TOKENIZER.eos_id], True)
      assert m.token_ids[0] in team.prompt_writers(TOKENIZER)[0].stop_ids
    if m.agent == 2:
      assert m.text == ('7' if int(batch.questions[m.episode].text) % 2 == 0 else '')
  assert batch.task_scores.sum() == 0


def test_a_muted_agent_with_a_calculator_falls_silent():
  tokenizer = st.byte_tokenizer()  # whose "=" comes before all that ends a message
  team = st.team('star', tools=('calculator',))
  inner = st.IdsPolicy(lambda turn: ([*tokenizer.encode('hi'), tokenizer.eos_id], True))
  muted = policies.muted(inner, (0,), (tokenizer.eos_id,) * 3)
  batch = rollout(team, st.Echo(), tokenizer, st.questions(2), 1, muted)
  assert [m.text for m in batch.messages if m.agent != 0] == ['hi'] * 4
  own = [m for m in batch.messages if m.agent == 0]
  assert all(
    (m.text, m.ended, m.silent, m.written, m.readers) == ('', True, True, 0, 0) for m in own
  )
  assert len(inner.turns) == 4


def counted(policy):
  """Returns a policy with reported token counts, which rise with the question."""

  def speak(turns):
    number = lambda turn: int(turn.question.text)
    usage = [(100 + number(turn), 2 + turn.agent + number(turn)) for turn in turns]
    replies = zip(policy(turns), usage, strict=True)
    return [reply._replace(usage=counts) for reply, counts in replies]

  return speak


@pytest.mark.parametrize('name', ['star', 'chain'])  # beside others in its layer, and alone
def test_what_an_endpoint_has_counted_counts_beside_a_muted_agent(name):
  muted = policies.muted(counted(st.IdsPolicy(relay)), (0,), STOPS)
  asked = Notes(2).questions('test')
  batch = rollout(st.team(name), Notes(2), TOKENIZER, asked, 1, muted)
  for m in batch.messages:
    expected = (100 + m.episode, 2 + m.agent + m.episode) if m.agent else (0, 0)
    assert (m.read, m.written) == expected


def test_what_an_endpoint_has_counted_counts_of_shuffled_messages():
  team, asked = st.team('star', max_message_tokens=6), Notes(2).questions('test')
  # More of our tokens than the cap, fewer of the endpoint's.
  long = counted(st.IdsPolicy(lambda turn: ([*[FIRST + int(turn.question.text)] * 8, EOS], True)))
  policy = shuffled(long, team, asked, asked[::-1])
  batch = rollout(team, Notes(2), TOKENIZER, asked, 1, policy)
  for m in batch.messages:
    author = m.episode if m.agent == 2 else 1 - m.episode
    assert (m.text, m.ended) == (' '.join([str(author)] * 8), True)
    assert m.read == 100 + m.episode  # each has read its own question
    assert m.written == 2 + m.agent + author


def test_what_a_tool_wrote_stays_nobodys_in_probes():
  team, asked = st.team('star'), st.questions(2)
  script = ScriptedPolicy(lambda turn: '7 7', TOKENIZER, lambda turn, ids: np.arange(len(ids)) == 1)
  for policy in (
    policies.muted(script, (0,), STOPS),
    shuffled(script, team, asked, asked[::-1]),
  ):
    batch = rollout(team, st.Echo(), TOKENIZER, asked, 1, policy)
    assert {m.written for m in batch.messages if m.agent == 1} == {1}


def test_everybody_muted_asks_nobody():
  inner = st.IdsPolicy(relay)
  batch = rollout(
    st.team('chain'),
    Notes(),
    TOKENIZER,
    Notes().questions('test'),
    1,
    policies.muted(inner, (0, 1, 2), STOPS),
  )
  assert inner.calls == []
  assert all(m.silent for m in batch.messages)


def test_shuffled_messages_are_the_partners_and_answers_stay():
  team, asked = st.team('star'), Notes(4).questions('test')
  policy = shuffled(st.IdsPolicy(relay), team, asked, [asked[i] for i in (1, 0, 3, 2)])
  batch = rollout(team, Notes(4), TOKENIZER, asked, 1, policy)
  text = {(m.episode, m.agent): m.text for m in batch.messages}
  for episode, other in enumerate((1, 0, 3, 2)):
    assert text[episode, 0] == str(20 + other)
    assert text[episode, 1] == ('7' if other % 2 == 0 else '')
    # The answer is what this question's solver makes of the wrong messages.
    assert text[episode, 2] == f'{text[episode, 0]} {text[episode, 1]}'.strip()
  assert batch.task_scores.sum() == 0


def test_shuffled_in_two_rounds_and_by_vote():
  team = st.team('debate', rounds=2, decision='majority')
  asked = Notes(2).questions('test')

  def ids(turn):
    return [FIRST + 10 * turn.round + 3 * int(turn.question.text) + turn.agent], False

  tight = st.team('debate', rounds=2, decision='majority', max_message_tokens=1)
  policy = shuffled(st.IdsPolicy(ids), tight, asked, asked[::-1])
  batch = rollout(tight, Notes(2), TOKENIZER, asked, 1, policy)
  for m in batch.messages:
    about = 1 - m.episode if m.round == 0 else m.episode  # the last round holds the votes
    assert m.token_ids.tolist() == [FIRST + 10 * m.round + 3 * about + m.agent]
    assert not m.ended
  assert probes.read_turns(team, Notes(2))


def pass_on(turn):
  """Writes the note as agent 1; the others repeat all that they read."""
  heard = [turn.delivered[a] for a in sorted(turn.delivered)]
  own = turn.question.notes[:1] if turn.agent == turn.round == 0 else ()
  return [*TOKENIZER.encode(' '.join((*heard, *own)).strip()), EOS], True


@pytest.mark.parametrize(
  ('topology', 'rounds'), [('chain', 1), ('layered', 1), ('complete', 1), ('debate', 3)]
)
def test_what_is_passed_on_does_not_come_back_to_its_question(topology, rounds):
  team = st.team(topology, rounds=rounds, max_message_tokens=20)
  run = dataclasses.replace(make(team), policy=lambda *_: st.IdsPolicy(pass_on))
  whole, records = run.run('team', variants.itself(team))
  rows = {row['probe']: row for row in probes.run_all(run, whole, records)}
  assert whole['task/accuracy'] == 1
  assert rows['messages blanked']['task/accuracy'] == 0
  assert rows['messages shuffled']['task/accuracy'] == 0


@pytest.mark.parametrize('alone', [0, 2])
@pytest.mark.parametrize('batch', [1, 4, 64])
def test_what_shuffled_messages_make_of_answers_does_not_depend_on_batches(batch, alone):
  team = st.team('chain')
  run = make(team, batch_questions=batch, alone=alone)
  run = dataclasses.replace(
    run,
    policy=lambda *_: st.IdsPolicy(pass_on),
    options=dataclasses.replace(run.options, samples=2, temperature=1.0),
  )
  probes.run_all(run, *run.run('team', variants.itself(team)))
  found = [r for r in run.answers._found.values() if r['label'] == 'messages shuffled']
  answers = {(r['question_id'], r['sample']): r['answer'] for r in found}
  # Of seven questions the last has the messages about the one before.
  partners = (1, 0, 3, 2, 5, 4, 5)
  assert answers == {(f'q{i}', n): str(20 + p) for i, p in enumerate(partners) for n in (0, 1)}


def test_which_messages_are_neither_answers_nor_actions():
  turns = lambda *args, **fields: probes.read_turns(st.team(*args, **fields), Notes(2))
  assert turns('star') == {(0, 0), (0, 1)}
  assert turns('complete', decision='judge')
  assert not turns('complete', decision='majority')  # there are only votes
  assert not turns('single')
  assert not turns('debate')  # one round: no agent reads
  assert not probes.read_turns(st.team('star'), Kuhn())  # any message may be an action


def test_a_shuffled_message_keeps_to_the_limit_of_its_turn():
  team = st.team('star')
  turn = lambda question, limit, round_=0: type(
    'T', (), {'question': question, 'sample': 0, 'agent': 0, 'round': round_, 'limit': limit,
              'stop_ids': (1,)}
  )()  # fmt: skip
  a, b, c = st.questions(3)
  long = lambda t: ([FIRST, FIRST + 1, 1], True)
  policy = shuffled(st.IdsPolicy(long), team, (a, b, c), (b, a, a))
  out = policy([turn(a, 2), turn(b, 3), turn(c, 3, round_=1)])  # all were silent there
  assert [reply.token_ids.tolist() for reply in out] == [
    [FIRST, FIRST + 1],
    [FIRST, FIRST + 1, 1],
    [1],
  ]
  assert [reply.ended for reply in out] == [False, True, True]
  assert [len(reply.logprobs) for reply in out] == [2, 3, 1]


def test_all_probes_by_hand():
  run = make()
  whole, records = run.run('team', variants.itself(run.team))
  assert whole['task/accuracy'] == 1.0
  rows = {row['probe']: row for row in probes.run_all(run, whole, records)}
  assert list(rows) == [
    'muted: agent1',
    'muted: agent2',
    'muted: agent3',
    'messages blanked',
    'messages shuffled',
    'wrong number: agent1',
    'wrong number: agent2',
  ]
  lost = {name: row['task/accuracy_lost'] for name, row in rows.items()}
  assert lost == dict(zip(rows, [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0], strict=True))
  first, second = rows['muted: agent1'], rows['muted: agent2']
  # A token a question, and all of the accuracy: 100 points for it, 10,000 for a hundred.
  assert (first['agent'], first['agent_written_per_question']) == ('agent1', 1.0)
  assert first['points_per_100_tokens'] == pytest.approx(10_000)
  assert second['points_per_100_tokens'] == 0.0
  assert (first['silence_rate_relevant'], first['silence_rate_irrelevant']) == (0.0, None)
  assert second['silence_rate_relevant'] is None
  assert second['silence_rate_irrelevant'] == pytest.approx(3 / 7)
  assert (first['task/accuracy_lost_low'], first['task/accuracy_lost_high']) == (1.0, 1.0)
  # Blanked messages are written, and heard by nobody: the solver has nothing to repeat.
  # Whatever agent 1 says of its note is repeated; agent 2 says its own four times in seven.
  errors = [rows[f'wrong number: agent{i}'] for i in (1, 2)]
  assert [row['planted'] for row in errors] == [1.0, pytest.approx(4 / 7)]
  assert [row['answers_changed'] for row in errors] == [1.0, 1.0]
  notes = 1 + 4 / 7
  assert rows['messages blanked']['tokens/written_per_question'] == pytest.approx(notes)


@pytest.mark.parametrize('cap', [0, 16])
def test_a_blanked_team_takes_the_turns_of_the_whole_team(cap):
  team = st.team('complete', rounds=2, max_message_tokens=8, max_episode_tokens=cap)
  talk = lambda team: rollout(
    team, Notes(2), TOKENIZER, Notes(2).questions('test'), 1, st.IdsPolicy(relay)
  )
  whole, blanked = talk(team), talk(dataclasses.replace(team, blanked=True))
  turns = lambda batch: [(m.episode, m.round, m.layer, m.agent) for m in batch.messages]
  assert turns(blanked) == turns(whole)
  assert whole.readers.max() > 3  # later turns of its author and of readers
  assert (blanked.readers <= 1).all()  # those of its author
  assert max(m.read for m in blanked.messages) < max(m.read for m in whole.messages)


@pytest.mark.parametrize(
  ('said', 'wrong'),
  [('7', '8'), ('59 3', '58 3'), ('0', '1'), ('', None), ('note :', None)],
)
def test_a_planted_error_is_one_off_and_in_the_vocabulary(said, wrong):
  ids = np.asarray(TOKENIZER.encode(said), np.int32)
  found = probes.falsified(st.team('star'), TOKENIZER, ids)
  assert found == (None if wrong is None else TOKENIZER.encode(wrong))


def test_addressees_are_no_part_of_what_is_falsified_or_emptied():
  tokenizer, team = st.byte_tokenizer(), st.team('star', addressing=True)
  said = np.asarray(tokenizer.encode('@agent3 7 pens'), np.int32)
  assert tokenizer.decode(probes.falsified(team, tokenizer, said)) == '@agent3 8 pens'
  empty = probes.emptied(team, tokenizer, said)
  assert len(empty) == len(said)
  assert tokenizer.decode(empty) == '@agent3' + '.' * 7
  assert team.addressees(tokenizer.decode(empty)) == {2}


def test_an_error_is_planted_in_one_turn_and_heard_from_there():
  team = st.team('debate', rounds=2, decision='judge')
  number = lambda turn: ([FIRST + 10 * turn.round + 2 * turn.agent, EOS], True)
  wrong = lambda turn, ids: (
    probes.falsified(team, TOKENIZER, ids) if (turn.round, turn.agent) == (0, 1) else None
  )
  policy = probes.reworded(st.IdsPolicy(number), wrong)
  batch = rollout(team, Notes(2), TOKENIZER, Notes(2).questions('test'), 1, policy)
  for m in batch.messages:
    assert m.text == str(10 * m.round + 2 * m.agent + ((m.round, m.agent) == (0, 1)))
    assert m.ended
  later = [m for m in batch.messages if (0, 1) in {(r, a) for a, r in m.read_from}]
  assert later
  assert all(FIRST + 3 in m.prompt_ids and FIRST + 2 not in m.prompt_ids for m in later)


def test_emptied_messages_cost_as_much_and_say_nothing():
  tokenizer = word_level(
    [*'. Q note : from say agent1 agent2 agent3'.split(), *map(str, range(30))]
  )
  run = dataclasses.replace(make(), tokenizer=tokenizer)

  def tells(turn):
    said = ' '.join(turn.delivered.values()) if turn.agent == 2 else turn.question.notes[turn.agent]
    return [*tokenizer.encode(said), tokenizer.eos_id], True

  run = dataclasses.replace(run, policy=lambda temperature, stream: st.IdsPolicy(tells))
  whole, records = run.run('team', variants.itself(run.team))
  row = next(r for r in probes.run_all(run, whole, records) if r['probe'] == 'messages emptied')
  assert (whole['task/accuracy'], row['task/accuracy']) == (1.0, 0.0)
  assert row['tokens/written_per_question'] == whole['tokens/written_per_question']


def test_agents_of_two_vocabularies_lose_as_much_as_those_of_one():
  words = [*'. Q note : from say agent1 agent2 agent3'.split(), *map(str, range(30))]
  here, there = word_level(words), word_level(words[::-1])
  alone = st.team('star')
  first, second, third = alone.roles
  mixed = dataclasses.replace(
    alone,
    roles=(first, dataclasses.replace(second, model='other'), third),
    tokenizers={'other': there},
  )
  found = []
  for team in (alone, mixed):
    own = team.tokenizers_of_agents(here)

    def tells(turn, own=own):
      tokenizer = own[turn.agent]
      return [*tokenizer.encode(here.decode(relay(turn, here)[0][:-1])), tokenizer.eos_id], True

    policy = st.IdsPolicy(tells)
    run = dataclasses.replace(make(team), tokenizer=here, policy=lambda *_, policy=policy: policy)
    found.append(probes.run_all(run, *run.run('team', variants.itself(team))))
  assert found[0] == found[1]
  errors = [row['planted'] for row in found[0] if row['probe'].startswith('wrong number')]
  assert errors == [1.0, pytest.approx(4 / 7)]


def test_an_agent_that_says_nothing_has_no_price():
  row = {
    'name': 'a',
    'written_per_question': 0.0,
    'silence_rate': 1.0,
    'silence_rate_relevant': None,
    'silence_rate_irrelevant': 1.0,
  }
  assert probes.value({'task/accuracy_lost': 0.0}, row)['points_per_100_tokens'] is None


@pytest.mark.parametrize(('size', 'questions', 'batch'), [(7, 7, 2), (7, 7, 64), (8, 5, 3)])
def test_partners_do_not_depend_on_batches(size, questions, batch):
  run = make(size=size, questions=questions, batch_questions=batch)
  whole, records = run.run('team', variants.itself(run.team))
  probes.run_all(run, whole, records)
  expected = [str(20 + (i ^ 1 if i ^ 1 < size else i - 1)) for i in range(questions)]
  shuffled = [r for r in run.answers._found.values() if r['label'] == 'messages shuffled']
  assert [r['messages'][0]['text'] for r in shuffled] == expected


def test_a_probe_that_was_stopped_gives_the_same():
  run = make()
  whole, records = run.run('team', variants.itself(run.team))
  expected = probes.run_all(run, whole, records)
  answers = harness.Answers()
  answers.add([r for i, r in enumerate(run.answers._found.values()) if i % 5])
  again = make(answers=answers)
  whole, records = again.run('team', variants.itself(run.team))
  assert probes.run_all(again, whole, records) == expected


def test_probes_need_readers_and_two_questions():
  with pytest.raises(ValueError, match='no agent of this team reads another'):
    probes.check(st.team('single'), Notes(2), 'test')
  with pytest.raises(ValueError, match="split 'test' has one question"):
    probes.check(st.team('star'), Notes(1), 'test')
  # There are only votes: nothing is shuffled.
  probes.check(st.team('complete', decision='majority'), Notes(1), 'test')


def test_others_draw_the_same_noise_when_one_is_muted():
  """Checks on a real model that the other agents of the layer write the same."""
  policy, tokenizer = st.model_policy()
  team, asked = st.team('star'), st.questions(4)
  say = lambda voice: {
    (m.episode, m.agent): m.token_ids.tolist()
    for m in rollout(team, st.Echo(), tokenizer, asked, 1, voice).messages
  }
  whole, muted = say(policy), say(policies.muted(policy, (0,), (tokenizer.eos_id,) * 3))
  for e in range(4):
    assert muted[e, 1] == whole[e, 1]
    assert len(muted[e, 0]) == 1


def test_loss_is_paired():
  messages = [{'written': 2}, {'written': 3}]
  record = lambda i, s: {'question_id': f'q{i}', 'task_score': s, 'messages': messages}
  whole, probed = ([record(*x) for x in enumerate(s)] for s in ((1, 1, 0, 1), (1, 0, 0, 0)))
  lost = probes.loss('x', whole, probed)
  assert (lost['task/accuracy'], lost['task/accuracy_lost']) == (0.25, 0.5)
  assert lost['task/accuracy_lost_low'] == 0.0
  assert lost['tokens/written_per_question'] == 5.0
  np.testing.assert_array_equal(results.per_question(whole, 'written'), [5.0] * 4)


def test_messages_with_results_of_tools_are_changed_whole():
  tokenizer = word_level('. Q say answer + = hi and so 3 4 5 6 7 8 0 1'.split())
  role = {'opening': 'Q {question}', 'incoming': ' {message}'}
  roles = {'scout': role | {'cue': ' say', 'tools': ('calculator',)}}
  agents = {'agents': ('scout', 'solver'), 'topology': 'chain', 'max_message_tokens': 12}
  team = make_team(agents | {'roles': roles | {'solver': role | {'cue': ' answer'}}})

  def tells(turn):
    if turn.agent == 0:
      turn_begins = {'0': '3 + 4 =', '1': 'hi'}[turn.question.text]
      text = 'so 5' if turn.offset else turn_begins
      return [*tokenizer.encode(text), *[tokenizer.eos_id] * (not text.endswith('='))], True
    return [*tokenizer.encode(turn.delivered.get(0, '')), tokenizer.eos_id], True

  run = dataclasses.replace(make(team, size=2), tokenizer=tokenizer)
  run = dataclasses.replace(run, policy=lambda temperature, stream: st.IdsPolicy(tells))
  whole, records = run.run('team', variants.itself(team))
  probes.run_all(run, whole, records)
  texts, written = {}, {}
  for record in run.answers._found.values():
    texts.setdefault(record['label'], []).append(record['messages'][0]['text'])
    written.setdefault(record['label'], []).append(record['messages'][0]['written'])
  assert texts['team'] == ['3 + 4 = 7 so 5', 'hi']
  assert texts['messages shuffled'] == ['hi', '3 + 4 = 7 so 5']
  assert texts['messages emptied'] == ['. . . . . . .', '.']
  assert texts['wrong number: scout'] == ['4 + 4 = 7 so 5', 'hi']
  assert written['team'] == written['messages emptied'] == written['wrong number: scout'] == [6, 1]
  # The solver reads the result and repeats it; the scout has not written it.
  assert whole['tokens/heard_per_question'] == (7 + 1) / 2
  prices = results.Prices(0.0, 0.0, 'here', inserted=3.0)
  money = results.figures(records, team.names, prices)['money/per_question']
  assert money == pytest.approx(3e-6 / 2)
  assert whole['tokens/text_written_per_question'] == (6 + 7 + 1 + 1) / 2
  own, heard = [(3 + 1), (3 + 0)], [(3 + 7), (3 + 1)]  # Q, number, cue; result or message
  assert whole['tokens/text_read_per_question'] == sum(own + heard) / 2
