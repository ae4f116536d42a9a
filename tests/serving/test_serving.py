"""A team behind the endpoint, driven by OpenAI's own client; a script speaks for the agents."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
import urllib.request
from collections.abc import Iterator

import openai
import pytest
import scripted_teams
import uvicorn

from agent_gspo.evaluation import asking
from agent_gspo.serving.app import make_app
from agent_gspo.serving.requests import RequestError, read
from agent_gspo.tasks.registry import make_task
from agent_gspo.teams.policies import ScriptedPolicy, Turn

TOKENIZER = scripted_teams.byte_tokenizer()
USER = [{'role': 'user', 'content': 'How many?'}]


class Served:
  """Two informants and a solver; the first one says its note, the second nothing."""

  name = 'team'
  told = ''

  def __init__(self):
    self.team = scripted_teams.team('star', max_message_tokens=40)
    self.questions, self.temperatures, self.fails = [], [], None

  def question(self, request):
    return asking.asked(self.team, 0, request.question, request.notes)

  def ask(self, question, listener, *, temperature, max_tokens):
    self.questions.append(question)
    self.temperatures.append(temperature)

    def say(turn: Turn) -> str:
      if turn.agent == 2:
        heard = ''.join(turn.delivered.values())
        return f'It is {len(heard)}.'
      return question.note(0) if turn.agent == 0 else ''

    if self.fails:
      raise self.fails
    policy = ScriptedPolicy(say, TOKENIZER)
    team = dataclasses.replace(self.team, max_episode_tokens=max_tokens)
    return asking.ask(team, make_task('relay'), TOKENIZER, question, policy, listener)


@contextlib.contextmanager
def serving(served) -> Iterator[str]:
  """The address at which a team is served."""
  server = uvicorn.Server(uvicorn.Config(make_app(served), port=0, log_level='error'))
  thread = threading.Thread(target=server.run, daemon=True)
  thread.start()
  while not server.started:
    time.sleep(0.01)
  host, port = server.servers[0].sockets[0].getsockname()
  try:
    yield f'http://{host}:{port}'
  finally:
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def served():
  return Served()


@pytest.fixture
def address(served):
  with serving(served) as found:
    yield found


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


def test_models(client):
  assert [model.id for model in client.models.list()] == ['team']
  assert client.models.retrieve('team').owned_by == 'agent_gspo'
  with pytest.raises(openai.NotFoundError, match="the model 'gpt' is not served"):
    client.models.retrieve('gpt')


def test_content_in_parts(served, client):
  parts = [{'type': 'text', 'text': 'How '}, {'type': 'text', 'text': 'many?'}]
  client.chat.completions.create(model='team', messages=[{'role': 'user', 'content': parts}])
  assert served.questions[0].text == 'How many?'


def test_what_goes_wrong_is_told(served, client):
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


@pytest.mark.parametrize(
  ('fields', 'field', 'message'),
  [
    ({'messages': None}, 'messages', 'messages must be one message of the user'),
    ({'messages': []}, 'messages', 'messages must be one message of the user'),
    ({'messages': USER * 2}, 'messages', 'messages must be one message of the user'),
    ({'messages': [{'role': 'system', 'content': 'x'}]}, 'messages', 'must be one message of'),
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
    ({'seed': 5}, 'seed', 'seed=5: a team cannot follow seed'),
    ({'tools': []}, 'tools', r'tools=\[\]: a team cannot follow tools'),
  ],
)
def test_bad_requests_name_the_field(fields, field, message):
  with pytest.raises(RequestError, match=message) as caught:
    read({'model': 'team', 'messages': USER, **fields}, 'team')
  assert caught.value.field == field


def test_what_asks_for_nothing_special_is_taken():
  fields = {'n': 1, 'top_p': 1.0, 'user': 'me', 'max_tokens': None, 'presence_penalty': 0}
  assert read({'messages': USER, **fields}, 'team').question == 'How many?'


@pytest.mark.parametrize('body', [b'{', b'\xff', b'[' * 100_000], ids=['half', 'bytes', 'deep'])
def test_a_body_that_is_no_json(address, body):
  request = urllib.request.Request(f'{address}/v1/chat/completions', data=body, method='POST')
  with pytest.raises(urllib.error.HTTPError) as caught:
    urllib.request.urlopen(request)
  told = json.loads(caught.value.read())['error']
  assert caught.value.code == 400
  assert 'the body is not JSON' in told['message']


def test_the_page_knows_whom_to_ask(address):
  with urllib.request.urlopen(f'{address}/team') as found:
    told = json.load(found)
  assert told['agents'] == ['agent1', 'agent2', 'agent3']
  assert (told['note_holders'], told['told']) == ([0, 1, 2], '')
  with urllib.request.urlopen(address) as found:
    assert b'<h1>Ask the team</h1>' in found.read()
