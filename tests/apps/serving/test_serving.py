"""Tests the server of a scripted team with OpenAI's client."""

from __future__ import annotations

import json
import time
import typing
import urllib.request

import openai
import pytest
from openai.types.chat import completion_create_params as protocol

from agent_gspo.apps.serving.requests import RequestError, read

USER = [{'role': 'user', 'content': 'How many?'}]


@pytest.fixture
def client(address):
  return openai.OpenAI(base_url=f'{address}/v1', api_key='none', max_retries=0)


def test_the_team_answers_as_one_model_and_usage_counts_them_all(served, client):
  found = client.chat.completions.create(
    model='team', messages=USER, temperature=0, extra_body={'notes': ['abc']}
  )
  (choice,) = found.choices
  assert (choice.message.role, choice.message.content) == ('assistant', 'It is 3.')
  assert choice.finish_reason == 'stop'
  (question,) = served.questions
  assert (question.text, question.notes, served.temperatures) == ('How many?', ('abc',), [0])
  messages = found.team['messages']
  assert [(m['agent'], m['silent'], m['text']) for m in messages] == [
    ('agent1', False, 'abc'),
    ('agent2', True, ''),
    ('agent3', False, 'It is 3.'),
  ]
  assert messages[0]['readers'] == ['agent3']
  assert found.usage.completion_tokens == sum(m['written'] for m in messages) > 3
  assert found.usage.prompt_tokens == sum(m['read'] for m in messages)
  assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
  assert found.team['answer'] == '3'


def test_a_stream_holds_the_same(client):
  whole = client.chat.completions.create(model='team', messages=USER, extra_body={'notes': ['abc']})
  chunks = list(
    client.chat.completions.create(
      model='team',
      messages=USER,
      stream=True,
      stream_options={'include_usage': True},
      extra_body={'notes': ['abc']},
    )
  )
  text = ''.join(c.choices[0].delta.content or '' for c in chunks if c.choices)
  assert text == whole.choices[0].message.content
  messages = [m for c in chunks for m in getattr(c, 'team', {}).get('messages', [])]
  assert messages == whole.team['messages']
  assert chunks[-1].usage == whole.usage
  assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == 'stop'


@pytest.mark.parametrize(
  ('own', 'max_tokens', 'reason'),
  [
    (False, 2, 'length'),  # two silent messages
    (False, 11, 'stop'),  # and the nine tokens of the answer
    (True, None, 'stop'),
    (True, 3, 'stop'),
    (True, 1, 'length'),
  ],
)
def test_the_finish_reason_tells_whether_a_cap_ended_the_episode(
  served, client, own, max_tokens, reason
):
  if own:

    def converse(talk):  # two of three turns
      yield from talk.layer((0,), 0)
      yield from talk.layer((1,), 0)
      return 'It is 3.'

    served.task.converse = converse
  found = client.chat.completions.create(model='team', messages=USER, max_tokens=max_tokens)
  assert found.choices[0].finish_reason == reason


def test_a_stream_tells_of_messages_while_they_are_written(served, client):
  served.solution = 'It is 3 € 👍.'
  chunks = list(
    client.chat.completions.create(
      model='team', messages=USER, stream=True, extra_body={'notes': ['a €', 'b']}
    )
  )
  told = [chunk.team for chunk in chunks if hasattr(chunk, 'team')]
  written = [piece['written'] for piece in told if 'written' in piece]
  messages = [m for piece in told for m in piece.get('messages', [])]
  texts = {m['agent']: m['text'] for m in messages}
  assert texts == {'agent1': 'a €', 'agent2': '', 'agent3': served.solution}
  for agent, text in texts.items():
    pieces = [piece['text'] for piece in written if piece['agent'] == agent]
    assert ''.join(pieces) == text
    assert len(pieces) == len(text.replace(' ', ''))  # a space comes with what follows it
  content = [c.choices[0].delta.content for c in chunks if c.choices[0].delta.content]
  assert content == [piece['text'] for piece in written if piece['agent'] == 'agent3']


def test_the_indentation_of_an_answer_is_kept(served, client):
  """It may be the body of a function."""
  served.solution = '\n    x = 1\n    return x\n'
  found = client.chat.completions.create(model='team', messages=USER)
  assert found.choices[0].message.content == '    x = 1\n    return x'
  chunks = client.chat.completions.create(model='team', messages=USER, stream=True)
  text = ''.join(chunk.choices[0].delta.content or '' for chunk in chunks)
  assert text == found.choices[0].message.content


def test_a_seed_repeats_the_noise(served, client):
  for seed in (5, -1, 5, None, None):
    client.chat.completions.create(model='team', messages=USER, seed=seed)
  ids = [question.id for question in served.questions]
  assert ids[0] == ids[2]
  assert len(set(ids)) == 4


def test_models(client):
  assert [model.id for model in client.models.list()] == ['team']
  assert client.models.retrieve('team').owned_by == 'agent_gspo'
  with pytest.raises(openai.NotFoundError, match="the model 'gpt' is not served"):
    client.models.retrieve('gpt')


def test_content_in_parts(served, client):
  parts = [{'type': 'text', 'text': 'How '}, {'type': 'text', 'text': 'many?'}]
  client.chat.completions.create(model='team', messages=[{'role': 'user', 'content': parts}])
  assert served.questions[0].text == 'How many?'


def test_errors_reach_the_client(served, client):
  with pytest.raises(openai.NotFoundError, match="'gpt' is not served; 'team' is"):
    client.chat.completions.create(model='gpt', messages=USER)
  with pytest.raises(openai.BadRequestError, match='4 notes for 3 agents') as caught:
    client.chat.completions.create(model='team', messages=USER, extra_body={'notes': ['a'] * 4})
  assert caught.value.type == 'invalid_request_error'
  served.fails = ValueError('the prompt is too long')
  with pytest.raises(openai.BadRequestError, match='the prompt is too long'):
    client.chat.completions.create(model='team', messages=USER)
  with pytest.raises(openai.APIError, match='the prompt is too long'):
    list(client.chat.completions.create(model='team', messages=USER, stream=True))


@pytest.mark.parametrize('fault', [RuntimeError('no memory'), StopIteration(), SystemExit(0)])
def test_a_server_error_is_reported_as_one(served, client, fault):
  served.fails = fault
  with pytest.raises(openai.InternalServerError, match=type(fault).__name__) as caught:
    client.chat.completions.create(model='team', messages=USER)
  assert caught.value.type == 'server_error'
  with pytest.raises(openai.APIError, match=type(fault).__name__) as caught:
    list(client.chat.completions.create(model='team', messages=USER, stream=True))
  assert caught.value.type == 'server_error'
  served.fails = None
  assert client.chat.completions.create(model='team', messages=USER).choices


@pytest.mark.parametrize(
  ('fields', 'field', 'message'),
  [
    ({'messages': None}, 'messages', 'messages must be one message of the user'),
    ({'messages': []}, 'messages', 'messages must be one message of the user'),
    ({'messages': USER * 2}, 'messages', 'messages must be one message of the user'),
    (
      {'messages': [{'role': 'system', 'content': 'x'}, *USER]},
      'messages',
      r"\[0\] is of role 'sy",
    ),
    ({'messages': [3]}, 'messages', 'messages must be one message of the user'),
    ({'messages': [{'role': 'user', 'content': ' '}]}, 'messages', r"content=' ' must be text"),
    ({'messages': [{'role': 'user', 'content': 3}]}, 'messages', r'content=3 must be text'),
    ({'n': 2}, 'n', 'n=2: a team gives n=1'),
    ({'top_p': 0.5}, 'top_p', 'top_p=0.5: a team gives top_p=1'),
    ({'logprobs': True}, 'logprobs', 'logprobs=True: a team gives logprobs=False'),
    ({'temperature': -1}, 'temperature', 'temperature=-1 must be a number, 0 or more'),
    ({'temperature': 'hot'}, 'temperature', "temperature='hot' must be a number"),
    ({'price': -1}, 'price', 'price=-1 must be a number, 0 or more'),
    ({'notes': 'abc'}, 'notes', "notes='abc' must be a list of texts"),
    ({'notes': [1]}, 'notes', r'notes=\[1\] must be a list of texts'),
    ({'stream': 1}, 'stream', 'stream=1 must be true or false'),
    ({'stream_options': {'x': 1}}, 'stream_options', "may hold 'include_usage' alone"),
    ({'max_tokens': 0}, 'max_tokens', 'max_tokens=0 must be a whole number above 0'),
    ({'seed': 1.5}, 'seed', r'seed=1.5 must be a whole number'),
    ({'tools': [{}]}, 'tools', r'tools=\[{}\]: a team gives tools=\[\]'),
    ({'n': True}, 'n', 'n=True: a team gives n=1'),
    ({'logprobs': 0}, 'logprobs', 'logprobs=0: a team gives logprobs=False'),
    ({'top_logprobs': 3}, 'top_logprobs', 'top_logprobs=3: a team gives top_logprobs=0'),
    ({'stop': ['x']}, 'stop', r"stop=\['x'\]: a team gives stop=\[\]"),
    ({'tool_choice': 'required'}, 'tool_choice', "'required': a team gives tool_choice=none"),
    ({'service_tier': 'priority'}, 'service_tier', "'priority': a team gives service_tier=auto"),
    ({'modalities': ['audio']}, 'modalities', r"\['audio'\]: a team gives modalities="),
    ({'response_format': {'type': 'json_object'}}, 'response_format', 'a team gives response_for'),
    ({'reasoning_effort': 'high'}, 'reasoning_effort', 'cannot follow reasoning_effort'),
    ({'messages': [{**USER[0], 'tool_calls': [{}]}]}, 'messages', "has 'tool_calls'; must have"),
    ({'notes': ['x' * 2**18]}, 'messages', 'have 262153 characters; must be at most 262144'),
  ],
)
def test_bad_requests_name_the_field(fields, field, message):
  with pytest.raises(RequestError, match=message) as caught:
    read({'model': 'team', 'messages': USER, **fields}, 'team')
  assert caught.value.field == field


@pytest.mark.parametrize(
  'fields',
  [
    {'n': 1, 'top_p': 1.0, 'user': 'me', 'max_tokens': None, 'presence_penalty': 0},
    {'response_format': {'type': 'text'}, 'modalities': ['text'], 'verbosity': 'medium'},
    {'stop': []},
    {'stop': ''},
    {'logprobs': False, 'top_logprobs': 0, 'logit_bias': {}},
    {'tools': [], 'tool_choice': 'none', 'parallel_tool_calls': True},
    {'tool_choice': 'auto', 'functions': [], 'function_call': 'auto'},
    {'service_tier': 'auto', 'store': True, 'metadata': {'a': 'b'}, 'prompt_cache_key': 'x'},
    {'stream': True, 'stream_options': {'include_usage': None, 'include_obfuscation': False}},
    {'messages': [{**USER[0], 'name': 'Mara', 'tool_calls': None}]},
  ],
)
def test_what_asks_for_nothing_special_is_taken(fields):
  assert read({'messages': USER, **fields}, 'team').question == 'How many?'


def _fields_of_the_protocol() -> list[str]:
  return sorted(
    set(typing.get_type_hints(protocol.CompletionCreateParamsStreaming)) - {'messages', 'model'}
  )


def test_null_asks_for_nothing_special_in_every_field_of_the_protocol():
  fields = dict.fromkeys(_fields_of_the_protocol())
  assert len(fields) > 30
  assert read({'messages': USER, **fields}, 'team').question == 'How many?'


@pytest.mark.parametrize(
  'part',
  [
    None,
    {},
    'text',
    {'type': 'text'},
    {'type': 'text', 'text': None},
    {'type': 'text', 'text': {'x': 1}},
    {'type': 'text', 'text': ['x']},
    {'type': 'text', 'text': 3},
    {'type': 'text', 'text': 'x', 'image_url': 'y'},
    {'type': 'image_url', 'image_url': {'url': 'x'}},
  ],
)
def test_a_part_that_is_no_text_is_not_asked(part):
  content = [{'type': 'text', 'text': 'How many?'}, part]
  with pytest.raises(RequestError, match=r'messages\[0\].content holds .* each part must be text'):
    read({'messages': [{'role': 'user', 'content': content}]}, 'team')


@pytest.mark.parametrize(
  ('body', 'message'),
  [
    (b'{', 'Expecting'),
    (b'\xff', 'decode'),
    (b'[' * 100_000, 'recursion'),
    *((b'[' * depth + b']' * depth, 'recursion') for depth in (990, 1100)),
    (b'{"messages": [], "temperature": NaN}', 'Out of range'),
    (b'{"temperature": 1e999}', 'Out of range'),
    (b'{"user": "\\ud800"}', 'surrogates not allowed'),
    (b'{"\\udfff": 1}', 'surrogates not allowed'),
    (b'{"max_tokens": ' + b'9' * 5000 + b'}', 'limit'),
  ],
  ids=lambda value: str(value)[:30],
)
def test_a_body_that_is_no_json(address, body, message):
  told, status = _refusal(address, body)
  assert status == 400
  assert 'the body is not JSON' in told
  assert message in told


@pytest.mark.parametrize(
  'fields',
  [
    {'model': 'x' * 300_000},
    {'x' * 300_000: 1},
    {'stop': 'x' * 300_000},
    {'messages': [{'role': 'user', 'content': ['x' * 300_000]}]},
    {'notes': ['', '', '', 'x' * 300_000]},
    {'notes': {'x' * 300_000: 1}},
  ],
  ids=range(6),
)
def test_no_error_sends_a_long_request_back(address, fields):
  told, _ = _refusal(address, json.dumps({'messages': USER, **fields}).encode())
  assert 'xxx' in told or 'characters' in told
  assert len(told) <= 500


def _refusal(address: str, body: bytes) -> tuple[str, int]:
  """Returns message and status of a refused body."""
  request = urllib.request.Request(
    f'{address}/v1/chat/completions', body, {'Content-Type': 'application/json'}
  )
  start = time.monotonic()
  with pytest.raises(urllib.error.HTTPError) as caught:
    urllib.request.urlopen(request)
  assert time.monotonic() - start < 10
  told = json.loads(caught.value.read())['error']
  assert told['type'] == 'invalid_request_error'
  return told['message'], caught.value.code


def test_the_page_knows_whom_to_ask(address):
  with urllib.request.urlopen(f'{address}/team') as found:
    told = json.load(found)
  assert told['agents'] == ['agent1', 'agent2', 'agent3']
  assert (told['note_holders'], told['told']) == ([0, 1, 2], '')
  assert told['layers'] == [['agent1', 'agent2'], ['agent3']]
  assert (told['run'], told['example']['question']) == ('pens', 'How many?')
  with urllib.request.urlopen(address) as found:
    assert b'<title>Ask the team</title>' in found.read()
