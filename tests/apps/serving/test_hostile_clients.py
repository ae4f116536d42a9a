"""Tests the server on other pages' requests, endless bodies and abandoned requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import micro_run
import pytest
import served_team
from served_team import serving

from agent_gspo.apps.serving import app, completions, guard

JSON = {'Content-Type': 'application/json'}
PATH = '/v1/chat/completions'
HEAD = f'POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n'.encode()


def _asks(question: str = 'How many?', **fields) -> bytes:
  return json.dumps({'messages': [{'role': 'user', 'content': question}], **fields}).encode()


def _port(address: str) -> int:
  return int(address.rpartition(':')[2])


@contextlib.contextmanager
def _connected(address: str, sent: bytes = b'') -> Iterator[socket.socket]:
  with socket.create_connection(('127.0.0.1', _port(address)), timeout=10) as made:
    made.sendall(sent)
    yield made


def _posts(body: bytes) -> bytes:
  """Returns a whole request as bytes."""
  return HEAD + f'Content-Length: {len(body)}\r\n\r\n'.encode() + body


def _send(address, body=None, method='POST', path=PATH, **headers) -> http.client.HTTPResponse:
  """Returns the response; `headers` with _ for -, None removes one."""
  named = {k.replace('_', '-'): v for k, v in {**_FRIENDLY, **headers}.items() if v is not None}
  connection = http.client.HTTPConnection('127.0.0.1', _port(address), timeout=10)
  connection.putrequest(method, path, skip_host='Host' in named, skip_accept_encoding=True)
  for name, value in named.items():
    connection.putheader(name, value)
  connection.putheader('Content-Length', str(len(body or b'')))
  connection.endheaders(body)
  return connection.getresponse()


_FRIENDLY = {'Content_Type': 'application/json'}


def _message(answer: http.client.HTTPResponse, kind: str = 'invalid_request_error') -> str:
  """Returns the text of an error, which must have the protocol's form."""
  assert answer.status >= 400
  assert answer.headers.get_content_type() == 'application/json'
  told = json.loads(answer.read())['error']
  assert told['type'] == kind
  return told['message']


def _until(condition, seconds: float = 5.0) -> None:
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.01)


# Access


@pytest.mark.parametrize(
  ('headers', 'status'),
  [
    ({'Origin': 'https://example.com', 'Content_Type': 'text/plain'}, 403),
    ({'Origin': 'https://example.com'}, 403),
    ({'Origin': 'http://127.0.0.1:1'}, 403),
    ({'Origin': 'http://localhost'}, 403),
    ({'Origin': 'null'}, 403),
    ({'Origin': ''}, 403),
    ({'Host': 'example.com'}, 403),
    ({'Host': 'example.com:8000', 'Origin': 'http://example.com:8000'}, 403),
    ({'Host': '127.0.0.1.example.com'}, 403),
    ({'Host': 'localhost@example.com'}, 403),
    ({'Host': '10.1.2.3'}, 403),
    ({'Host': ''}, 403),
    ({'Content_Type': 'text/plain'}, 415),
    ({'Content_Type': 'text/plain; application/json'}, 415),
    ({'Content_Type': 'application/x-www-form-urlencoded'}, 415),
    ({'Content_Type': None}, 415),
  ],
)
def test_requests_of_other_pages_are_refused(served, address, headers, status):
  answer = _send(address, _asks(), **headers)
  assert answer.status == status
  _message(answer)
  assert not served.questions


def test_preflight_requests_of_other_pages_are_refused(address):
  answer = _send(
    address,
    method='OPTIONS',
    Origin='https://example.com',
    Access_Control_Request_Method='POST',
    Access_Control_Request_Headers='content-type',
  )
  assert answer.status == 403
  assert not [name for name in answer.headers if name.lower().startswith('access-control')]


@pytest.mark.parametrize('host', ['127.0.0.1', 'localhost', 'LOCALHOST:9', '[::1]', '127.0.0.2'])
def test_the_servers_own_page_may_ask(served, address, host):
  answer = _send(address, _asks(), Host=host, Origin=f'http://{host.lower()}')
  assert answer.status == 200
  assert len(served.questions) == 1


def test_programs_need_no_origin(address):
  assert _send(address, _asks(), Content_Type='Application/JSON; charset=utf-8').status == 200


def test_a_server_for_others_is_called_by_its_names(served):
  with serving(served, listens=('team.example', '10.1.2.3')) as address:
    for host in ('team.example', '10.1.2.3:80', socket.gethostname(), 'localhost'):
      assert _send(address, _asks(), Host=host).status == 200
    for host in ('example', 'x.team.example', '10.1.2.4'):
      assert _send(address, _asks(), Host=host).status == 403


def test_a_server_that_listens_everywhere_is_called_by_any_address(served):
  with serving(served, listens=('0.0.0.0',)) as address:
    for host, status in (('10.1.2.3', 200), ('[fe80::1]:80', 200), ('team.example', 403)):
      assert _send(address, _asks(), Host=host).status == status


@pytest.mark.parametrize(
  'given', [None, '', 'Bearer', 'Bearer ', 'Bearer secre', 'Bearer secrets', 'Basic secret', 'é']
)
def test_without_the_key_only_the_page_is_served(served, given):
  given = given and given.encode('latin-1')
  with serving(served, api_key='secret') as address:
    for method, path in (('POST', PATH), ('GET', '/team'), ('GET', '/v1/models'), ('GET', '/x')):
      answer = _send(address, _asks(), method, path, Authorization=given)
      assert answer.status == 401
      assert 'secret' not in _message(answer)
    assert _send(address, None, 'GET', '/').status == 200
    health = _send(address, None, 'GET', '/health', Authorization=given)
    assert json.load(health) == {'status': 'ok', 'model': 'team'}
    assert not served.questions


def test_the_key_gives_full_access(served):
  with serving(served, api_key='secret') as address:
    for given in ('Bearer secret', 'bearer secret'):
      assert _send(address, _asks(), Authorization=given).status == 200
      assert _send(address, None, 'GET', '/team', Authorization=given).status == 200


@pytest.mark.parametrize('address', ['10.1.2.3', '0.0.0.0', '::', 'fe80::1%eth0'])
def test_a_public_address_needs_a_key(address):
  with pytest.raises(ValueError, match='--host=here can be reached from elsewhere; --api_key must'):
    guard.check_key('', 'here', address)
  guard.check_key('secret', 'here', address)


def test_a_key_can_be_sent_in_a_header():
  for address in ('127.0.0.1', '127.1.2.3', '::1'):
    guard.check_key('', 'localhost', address)
  for key in ('two words', 'schlüssel', 'a\n'):
    with pytest.raises(ValueError, match='--api_key must be ASCII'):
      guard.check_key(key, 'localhost', '127.0.0.1')


# Limits


def test_a_large_body_is_refused_before_it_is_sent(served, address):
  with _connected(address, HEAD + b'Content-Length: 50000000\r\n\r\n') as made:
    answer = http.client.HTTPResponse(made)
    answer.begin()
    assert answer.status == 413
    assert 'must be at most 1048576 bytes' in _message(answer)


def test_a_body_without_an_end_is_refused(served, address):
  piece = b'10000\r\n' + b' ' * 2**16 + b'\r\n'
  with _connected(address, HEAD + b'Transfer-Encoding: chunked\r\n\r\n' + 17 * piece) as made:
    answer = http.client.HTTPResponse(made)
    answer.begin()
    assert answer.status == 413
    _message(answer)
  assert not served.questions


def test_a_client_that_sends_all_of_a_large_body_is_told(address):
  answer = _send(address, _asks('x' * 20_000_000))
  assert answer.status == 413


def test_a_body_that_comes_too_slowly_is_given_up(monkeypatch, address):
  monkeypatch.setattr(completions, 'BODY_SECONDS', 0.2)
  with _connected(address, HEAD + b'Content-Length: 50\r\n\r\n{') as made:
    answer = http.client.HTTPResponse(made)
    answer.begin()
    assert answer.status == 408
    _message(answer)


def test_a_long_question_does_not_stop_the_others(served, address):
  going_on = threading.Event()
  served.check_words = lambda question: going_on.wait(10)
  with _connected(address, _posts(_asks())) as made:
    time.sleep(0.1)
    start = time.monotonic()
    assert _send(address, None, 'GET', '/v1/models').status == 200
    assert time.monotonic() - start < 1
    going_on.set()
    assert b' 200 ' in made.recv(99)


def test_more_requests_than_can_be_kept_are_turned_away(monkeypatch, served, address):
  monkeypatch.setattr(completions, 'MAX_REQUESTS', 2)
  going_on = threading.Event()
  served.before = lambda turn: going_on.wait(10)
  with _connected(address, _posts(_asks())), _connected(address, _posts(_asks())):
    _until(lambda: served.questions)
    time.sleep(0.1)
    answer = _send(address, _asks())
    assert answer.status == 503
    assert answer.headers['Retry-After']
    _message(answer, 'server_error')
    going_on.set()
    _until(lambda: len(served.questions) == 2)
  _until(lambda: _send(address, _asks()).status == 200)


@pytest.mark.parametrize(
  ('method', 'path', 'status'),
  [('GET', '/x', 404), ('PUT', '/team', 405), ('GET', PATH, 405), ('POST', '/v1/models', 405)],
)
def test_every_refusal_has_the_form_of_the_protocol(address, method, path, status):
  answer = _send(address, _asks(), method, path)
  assert answer.status == status
  assert path in _message(answer)


# Disconnected clients


@pytest.mark.parametrize('stream', [False, True])
def test_an_abandoned_conversation_ends_with_its_layer(served, address, stream):
  speaking, going_on = threading.Event(), threading.Event()

  def before(turn):
    speaking.set()
    going_on.wait(10)

  served.before = before
  with _connected(address, _posts(_asks('Gone?', stream=stream))):
    assert speaking.wait(5)
  time.sleep(0.2)  # the server notices
  going_on.set()
  assert _send(address, _asks('There?')).status == 200
  agents = [agent for question, agent in served.turns if question == 'Gone?']
  assert agents == [0, 1]  # the solver speaks in the next layer
  assert [agent for question, agent in served.turns if question == 'There?'] == [0, 1, 2]


def test_an_abandoned_stream_ends_within_a_message(served, address):
  writing, going_on, told = threading.Event(), threading.Event(), []

  def between(turn):
    told.append((turn.question.text, turn.agent))
    if len(told) == 4:
      writing.set()
      going_on.wait(10)

  served.between = between
  with _connected(address, _posts(_asks('Gone?', stream=True, notes=['a long note']))):
    assert writing.wait(5)
  time.sleep(0.2)  # the server notices
  going_on.set()
  assert _send(address, _asks('There?')).status == 200
  assert len(told) == 4


@pytest.mark.parametrize('stream', [False, True])
def test_a_disconnected_client_is_dropped_from_the_queue(served, address, stream):
  going_on = threading.Event()
  served.before = lambda turn: going_on.wait(10)
  with _connected(address, _posts(_asks('First?'))) as first:
    _until(lambda: served.questions)
    for _ in range(20):
      with _connected(address, _posts(_asks('Gone?', stream=stream))):
        time.sleep(0.02)
    time.sleep(0.2)
    going_on.set()
    assert b' 200 ' in first.recv(99)
  assert _send(address, _asks('Last?')).status == 200
  assert [question.text for question in served.questions] == ['First?', 'Last?']


def test_the_server_ends_whoever_still_sends(tmp_path):
  """Sends the signal while a body, a head and a connection are unfinished."""
  file = tmp_path / 'port'
  command = [sys.executable, served_team.__file__, str(file)]
  with subprocess.Popen(
    command, env=micro_run.environment(), stderr=subprocess.PIPE, text=True
  ) as process:
    _until(lambda: file.exists() and file.read_text(), 60)
    address = f'http://127.0.0.1:{file.read_text()}'
    assert _send(address, _asks()).status == 200
    with (
      _connected(address, HEAD + b'Content-Length: 50\r\n\r\n{'),
      _connected(address, HEAD + b'Transfer-Encoding: chunked\r\n\r\n'),
      _connected(address, HEAD),
      _connected(address),
    ):
      time.sleep(0.2)
      process.send_signal(signal.SIGTERM)
      process.wait(5)
    assert 'Traceback' not in process.stderr.read()


def test_a_conversation_under_way_does_not_hold_the_server(monkeypatch, served):
  monkeypatch.setattr(app, 'GRACE_SECONDS', 0.3)
  going_on = threading.Event()
  served.before = lambda turn: going_on.wait(10)
  with contextlib.ExitStack() as stack:
    with serving(served) as address:
      stack.enter_context(_connected(address, _posts(_asks())))
      _until(lambda: served.questions)
      start = time.monotonic()
    assert time.monotonic() - start < 3
    going_on.set()
