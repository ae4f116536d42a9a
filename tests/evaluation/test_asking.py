"""Tests asking a team: whose turn it is, what is shown, what is refused."""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import re

import jax
import pytest
import scripted_teams
from rich.console import Console

from agent_gspo.apps.reporting.conversation import ConversationDisplay
from agent_gspo.evaluation import asking
from agent_gspo.models.presets import PRESETS
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.models.transformer import init_params
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.tasks.registry import make_task
from agent_gspo.teams import batches, tools
from agent_gspo.teams.policies import ModelPolicy, ScriptedPolicy, Turn
from agent_gspo.types import Message

TOKENIZER = scripted_teams.byte_tokenizer()
TASK = make_task('relay')
WIDE = {'max_message_tokens': 20}


def _say(turn: Turn) -> str:
  """Writes agent and round; agent 1 is silent in its first turn."""
  if (turn.agent, turn.round) == (1, 0):
    return ''
  return f'[b]{turn.agent}{turn.round}[/b] = {turn.agent + turn.round}'


def _ask(team, question):
  heard: list[Message] = []
  policy = ScriptedPolicy(_say, TOKENIZER)
  batch, (answer,) = asking.ask(team, TASK, TOKENIZER, [question], policy, heard.append)
  return batch, answer, heard


def test_each_message_is_heard_once_in_order_and_the_last_one_answers():
  team = scripted_teams.team('debate', rounds=2, **WIDE)
  question = asking.asked(team, 3, ' How many? ', ['a note', '', 'another'])
  assert (question.text, question.notes) == ('How many?', ('a note', '', 'another'))
  batch, answer, heard = _ask(team, question)
  assert [(m.round, m.agent) for m in heard] == [(r, a) for r in range(2) for a in range(3)]
  assert [m.text for m in heard] == [m.text for m in batch.messages]
  assert 'Q How many? note a note' in TOKENIZER.decode(heard[0].prompt_ids)
  assert answer == '3'


def test_questions_are_asked_in_one_batch():
  """One call of the policy for each layer; episodes and answers are those of single questions."""
  team, sizes = scripted_teams.team('star', **WIDE), []
  script = ScriptedPolicy(lambda turn: f'{turn.agent} {len(turn.question.text)}', TOKENIZER)

  def policy(turns):
    sizes.append(len(turns))
    return script(turns)

  questions = [asking.asked(team, n, 'How many' + '?' * n) for n in range(3)]
  batch, answers = asking.ask(team, TASK, TOKENIZER, questions, policy, lambda message: None)
  assert sizes == [6, 3]
  assert answers == ['8', '9', '10']
  for n, question in enumerate(questions):
    alone, _ = asking.ask(team, TASK, TOKENIZER, [question], script, lambda message: None)
    texts = lambda found: [message.text for message in found.messages]
    assert texts(batches.select(batch, [n])) == texts(alone)


def _begun(team, tokenizer):
  """Returns the growing texts of each turn, and the listener that collects them."""
  texts: dict[tuple[int, int], list[str]] = collections.defaultdict(list)
  tell = lambda agent, round_, text: texts[agent, round_].append(text)
  return texts, asking.as_text(team, tokenizer, tell)


def test_a_message_is_text_while_it_is_written():
  """Shows neither half a character nor the stop token."""
  team, said = scripted_teams.team('star', max_message_tokens=40), ['Größe 3 €', '', '👍 = 3']
  texts, hear = _begun(team, TOKENIZER)
  policy = ScriptedPolicy(lambda turn: said[turn.agent], TOKENIZER)
  policy = scripted_teams.told(policy, hear)
  asking.ask(team, TASK, TOKENIZER, [asking.asked(team, 0, 'Q?')], policy, lambda message: None)
  for agent, text in enumerate(said):
    grown = [begun for begun in dict.fromkeys(texts[agent, 0]) if begun]
    assert grown == [text[:end] for end in range(1, len(text) + 1)]


def test_a_model_tells_what_it_writes_with_what_tools_insert(monkeypatch):
  monkeypatch.setitem(tools.TOOLS, 'calculator', tools.Tool('=', lambda message, question: '7'))
  tokenizer = word_level(['Q', 'note', ':', 'from', 'say', 'agent1', 'agent2', '?', '=', '7'])
  model = PRESETS['micro'].replace(vocab_size=tokenizer.vocab_size, num_layers=1)
  params = jax.jit(init_params, static_argnums=0)(model, jax.random.key(0))
  policy = ModelPolicy(
    Sampler(model, max_new_tokens=12), params, keys.stream(0, 'eval'), step=0, temperature=1.0
  )
  team = scripted_teams.team('star', tools=('calculator',), max_message_tokens=12)
  inserted = 0
  for n in range(8):
    question = asking.asked(team, n, 'Q ?')
    ask = lambda policy, question=question: (
      asking.ask(team, TASK, tokenizer, [question], policy, lambda message: None)[0].messages
    )
    texts, hear = _begun(team, tokenizer)
    found = ask(dataclasses.replace(policy, listener=hear))
    for message, alone in zip(found, ask(policy), strict=True):
      assert message.text == alone.text
      begun = texts[message.agent, message.round]
      assert all(message.text.startswith(text) for text in begun)
      inserted += message.inserted is not None and '= 7' in begun[-1]
  assert inserted > 2


def test_a_conversation_is_printed():
  team = scripted_teams.team('debate', rounds=2, **WIDE)
  question = asking.asked(team, 0, 'How [many]?')
  out = io.StringIO()
  shown = ConversationDisplay(team, Console(file=out, width=40, highlight=False))
  shown.begin(question)
  batch, answer, heard = _ask(team, question)
  for message in heard:
    shown.message(message)
  shown.end(batch, answer, 1.5)
  lines = out.getvalue().splitlines()
  written, read = (sum(getattr(m, kind) for m in batch.messages) for kind in ('written', 'read'))
  first = heard[0].written
  assert lines == [
    'question How [many]?',
    f'agent1 ({first} tokens, read by agent2, agent3) [b]00[/b] = 0',
    'agent2 is silent',
    f'agent3 ({first} tokens, read by agent1, agent2) [b]20[/b] = 2',
    'round 2',
    *(f'agent{a + 1} ({first} tokens) [b]{a}1[/b] = {a + 1}' for a in range(3)),
    'answer 3',
    f'{written} tokens written, {read} read; 1 of 6 turns silent; 1.5 s',
  ]


def test_a_missing_answer_is_printed():
  team = scripted_teams.team('single', **WIDE)
  policy = ScriptedPolicy(lambda turn: 'who knows', TOKENIZER)
  question = asking.asked(team, 0, 'How many?')
  batch, (answer,) = asking.ask(team, TASK, TOKENIZER, [question], policy, lambda message: None)
  out = io.StringIO()
  ConversationDisplay(team, Console(file=out)).end(batch, answer, 1.0)
  assert answer is None
  assert out.getvalue().startswith('answer none was found\n')


@pytest.mark.parametrize(
  ('text', 'notes', 'message'),
  [
    (' ', [], 'the question is empty'),
    ('Q?', ['a'] * 4, '4 notes for 3 agents (agent1, agent2, agent3); give each one note at most'),
  ],
)
def test_bad_questions_and_notes_are_refused(text, notes, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    asking.asked(scripted_teams.team('star'), 0, text, notes)


def test_a_note_that_nobody_would_read_is_refused():
  team = scripted_teams.team('star', opening='Q {question}\n')
  assert asking.note_holders(team) == []
  with pytest.raises(ValueError, match=r"note 'a' is for agent1, whose .* to the agents none"):
    asking.asked(team, 0, 'Q?', ['a'])


def test_questions_of_a_file(tmp_path):
  team, file = scripted_teams.team('star'), tmp_path / 'questions.jsonl'
  lines = [{'question': 'One?'}, {'question': 'Two?', 'notes': ['a', '', 'b']}]
  file.write_text('\n\n'.join(map(json.dumps, lines)), encoding='utf-8')
  found = asking.read(team, file)
  assert [(q.text, q.notes) for q in found] == [('One?', ()), ('Two?', ('a', '', 'b'))]
  assert len({q.id for q in found}) == 2


def test_a_file_of_a_task_can_be_asked(tmp_path):
  """Its answers are not used."""
  team, file = scripted_teams.team('star'), tmp_path / 'own.csv'
  file.write_text('id,question,answer,note1,relevant1,split,topic\nx,One?,1,a,1,test,sums\n')
  assert [(q.text, q.notes) for q in asking.read(team, file)] == [('One?', ('a',))]


@pytest.mark.parametrize('separator', ['\u2028', '\u2029', '\x85'])
def test_a_line_of_a_file_ends_where_json_lines_do(tmp_path, separator):
  file = tmp_path / 'questions.jsonl'
  line = json.dumps({'question': f'One{separator}two?'}, ensure_ascii=False)
  file.write_bytes(f'{line}\r\n{line}\n'.encode())
  found = asking.read(scripted_teams.team('star'), file)
  assert [q.text for q in found] == [f'One{separator}two?'] * 2


def test_a_byte_order_mark_is_no_part_of_a_question(tmp_path):
  file = tmp_path / 'questions.jsonl'
  line = b'\xef\xbb\xbf' + json.dumps({'question': 'One?', 'notes': ['\ufeffa']}).encode() + b'\n'
  file.write_bytes(line + b'\xef\xbb\xbf\n' + line)  # two files in one
  found = asking.read(scripted_teams.team('star'), file)
  assert [(q.text, q.notes) for q in found] == [('One?', ('a',))] * 2
  with pytest.raises(ValueError, match='the question is empty'):
    asking.asked(scripted_teams.team('star'), 0, '\ufeff ')


def test_a_file_has_the_fields_of_the_teams_own_questions(tmp_path):
  file = tmp_path / 'questions.jsonl'
  row = {'prompt': 'Q?', 'gold': '5', 'documents': ['Ann had 5 pens'], 'split': 'test'}
  file.write_text(json.dumps(row))
  team = scripted_teams.team('star')
  (found,) = asking.read(team, file, names=('prompt', 'gold'))
  assert (found.text, found.answer, found.documents) == ('Q?', '', ('Ann had 5 pens',))
  with pytest.raises(ValueError, match=r"no field 'question', only .*'prompt'"):
    asking.read(team, file)
  file.write_text(json.dumps({'question': 'Q?', 'documents': ['\ud800']}))
  with pytest.raises(ValueError, match='has half a surrogate pair'):
    asking.read(team, file)


def test_an_error_does_not_repeat_a_long_text(tmp_path):
  team, file = scripted_teams.team('star', opening='Q {question}\n'), tmp_path / 'questions.jsonl'
  file.write_text(json.dumps({'question': ['x' * 10**6]}))
  with pytest.raises(ValueError, match='is not of the form') as caught:
    asking.read(team, file)
  assert len(str(caught.value)) < 500
  with pytest.raises(ValueError, match='is for agent1') as caught:
    asking.asked(team, 0, 'Q?', ['x' * 10**6])
  assert len(str(caught.value)) < 500


def test_a_file_that_is_not_utf8_is_named(tmp_path):
  file = tmp_path / 'questions.jsonl'
  file.write_bytes('{"question": "Wie groß?"}'.encode('latin-1'))
  with pytest.raises(
    ValueError, match=rf'{re.escape(str(file))} is not UTF-8 .*; save it as UTF-8'
  ):
    asking.read(scripted_teams.team('star'), file)


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('{', r'line 2: no JSON \(Expecting'),
    pytest.param('[' * 100_000, r'line 2: no JSON \(maximum recursion depth', id='deep'),
    ('[]', r'line 2: \[\] must be an object'),
    ('{"question": 3}', 'line 2: .* is not of the form'),
    ('{"question": "Q?", "notes": "a"}', 'line 2: .* is not of the form'),
    ('{"question": "Q?", "documents": "a"}', 'line 2: .* is not of the form'),
    ('{"question": "Q?", "note": ["a"]}', "line 2: field 'note' is not read; must be 'notes'"),
    ('{"notes": ["a"]}', "line 2: there is no field 'question', only .'notes'"),
    (r'{"question": "Q?", "notes": ["\ud800"]}', 'line 2: .* has half a surrogate pair'),
    (r'{"question": "Q\udc00?"}', 'line 2: .* has half a surrogate pair'),
  ],
)
def test_lines_that_are_no_questions(tmp_path, line, message):
  file = tmp_path / 'questions.jsonl'
  file.write_text('{"question": "One?"}\n' + line, encoding='utf-8')
  with pytest.raises(ValueError, match=message):
    asking.read(scripted_teams.team('star'), file)


def test_an_unknown_word_is_named():
  team, words = scripted_teams.team('star'), word_level(['how', 'many'])
  asking.check_words(team, words, asking.asked(team, 0, 'how many', ['many']))
  for text, note in (('how zebra', ''), ('how many', 'zebra many')):
    question = asking.asked(team, 0, text, [note])
    with pytest.raises(
      ValueError, match=r"'zebra': this team knows only the words of its task.*, as in 'how many'\."
    ):
      asking.check_words(team, words, question, example='how many')


def test_a_file_without_questions(tmp_path):
  file = tmp_path / 'questions.jsonl'
  file.write_text('\n', encoding='utf-8')
  with pytest.raises(ValueError, match='holds no question'):
    asking.read(scripted_teams.team('star'), file)
