"""Hostile replies of an endpoint: what its client makes of them, over loopback."""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import itertools
import json
import math
import random
import re
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import scripted_teams
from fuzzing import Case

from agent_gspo.apps import endpoint
from agent_gspo.teams.rollout import rollout
from agent_gspo.types import Question

KEY = 'sk-Secret/of-the+fuzz=1234'
LONGEST = 10.0  # seconds that a case may take, be it waiting
_Answer = Callable[[socket.socket], Any]
_TEAM = scripted_teams.team('single', opening='{question}', cue='', max_message_tokens=40)
_TOKENIZER = scripted_teams.byte_tokenizer()


class _Handler(socketserver.BaseRequestHandler):
  """Answers one request as its path says, byte by byte if need be."""

  def handle(self):
    with contextlib.suppress(OSError):
      data = b''
      while b'\r\n\r\n' not in data:
        data += (piece := self.request.recv(65536))
        if not piece:
          return
      head, _, body = data.partition(b'\r\n\r\n')
      length = int(re.search(rb'(?i)content-length: *(\d+)', head)[1])
      while len(body) < length:
        body += self.request.recv(65536)
      name = head.split()[1].split(b'/')[1].decode()
      self.server.answers[name](self.request)


class Server(socketserver.ThreadingTCPServer):
  """Answers by the first part of the path."""

  daemon_threads = True
  allow_reuse_address = True
  request_queue_size = 64

  def __init__(self):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.answers: dict[str, _Answer] = {}
    threading.Thread(target=self.serve_forever, daemon=True).start()

  def url(self, name: str, answer: _Answer) -> str:
    """Returns the address at which an answer is given from now on."""
    self.answers[name] = answer
    return f'http://127.0.0.1:{self.server_address[1]}/{name}/v1'


_numbers = itertools.count()


@functools.cache
def server() -> Server:
  """Returns the one server of this process."""
  return Server()


def reply(content: Any = 'It is 3.', finish: Any = 'stop', **more: Any) -> dict[str, Any]:
  """Returns a good reply with a message of this content; `more` are fields of the reply."""
  choice = {'index': 0, 'message': {'role': 'assistant', 'content': content}}
  usage = {'prompt_tokens': 9, 'completion_tokens': 3, 'total_tokens': 12}
  choices = [{**choice, 'finish_reason': finish}]
  return {'id': 'x', 'object': 'chat.completion', 'choices': choices, 'usage': usage, **more}


def http(body: bytes, status: str = '200 OK', **headers: Any) -> bytes:
  """Returns a whole response."""
  fields = {'Content-Type': 'application/json', 'Content-Length': len(body), 'Connection': 'close'}
  fields |= {name.replace('_', '-'): value for name, value in headers.items()}
  lines = ''.join(f'{name}: {value}\r\n' for name, value in fields.items())
  return f'HTTP/1.1 {status}\r\n{lines}\r\n'.encode('latin-1') + body


def sends(data: bytes, then: _Answer = lambda connection: None) -> _Answer:
  """Returns an answer of these bytes."""

  def answer(connection: socket.socket) -> None:
    connection.sendall(data)
    then(connection)

  return answer


def drips(data: bytes, pause: float = 0.05) -> _Answer:
  """Returns an answer whose bytes come one by one, each in time."""

  def answer(connection: socket.socket) -> None:
    for byte in data:
      connection.sendall(bytes([byte]))
      time.sleep(pause)

  return answer


def _endless(head: bytes, piece: bytes) -> _Answer:
  def answer(connection: socket.socket) -> None:
    connection.sendall(head)
    while True:
      connection.sendall(piece)

  return answer


def _reset(connection: socket.socket) -> None:
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
  connection.close()


def _silent_rightly(found: Any) -> bool:
  """Checks by the rule, apart from the client: empty text that ended by itself, nothing behind."""
  choice = found['choices'][0]
  message = dict(choice['message'])
  content = message.pop('content')
  if isinstance(content, list):
    content = ''.join(part['text'] for part in content)
  message.pop('role', None)
  return content == '' and choice['finish_reason'] == 'stop' and not any(message.values())


def _case(name: str, answer: _Answer, invalid: bool, found: Any = None) -> Case:
  def run(unused_place) -> None:
    start = time.monotonic()
    url = server().url(str(next(_numbers)), answer)
    speaker = endpoint.EndpointPolicy(
      url, 'm', _TOKENIZER, 0.0, api_key=KEY, timeout_s=0.5, retries=0, deadline_s=1.0
    )
    question = Question('q', 'How many?', '3')
    told = ''
    try:
      batch = rollout(_TEAM, scripted_teams.Echo(), _TOKENIZER, [question], 1, speaker)
    except endpoint.EndpointError as error:
      told = str(error)
      raise
    finally:
      assert KEY not in told
      assert len(told) < 600
      assert time.monotonic() - start < LONGEST
    message = batch.messages[0]
    assert KEY not in message.text
    assert type(message.read) is type(message.written) is int
    assert 0 < message.read < 2**31
    assert 0 <= message.written < 2**31
    message.text.encode()
    if message.silent:
      assert _silent_rightly(found)

  return Case(name, run, invalid, ('127.0.0.1',) if invalid else ())


def _json_case(name: str, found: Any, invalid: bool, status: str = '200 OK') -> Case:
  return _case(name, sends(http(json.dumps(found).encode(), status)), invalid, found)


def _withheld() -> Iterator[Case]:
  """Yields replies that say nothing, for some reason or by themselves."""
  behind: tuple[dict[str, Any], ...] = (
    {},
    {'refusal': 'I cannot'},
    {'tool_calls': [{'id': 'c', 'function': {'name': 'f', 'arguments': '{}'}}]},
    {'function_call': {'name': 'f', 'arguments': '{}'}},
    {'reasoning': 'Let me think'},
    {'reasoning_content': 'Let me think'},
    {'thinking_blocks': [{'text': 'Hm'}]},
    {'refusal': None, 'tool_calls': [], 'reasoning': '', 'annotations': []},
  )
  finishes = ('stop', 'length', 'content_filter', 'tool_calls', None, {})
  for content in (None, '', [{'type': 'text', 'text': ''}]):
    for finish in finishes:
      for fields in behind:
        found = reply(content, finish)
        found['choices'][0]['message'] |= fields
        invalid = content is None or finish != 'stop' or any(fields.values())
        name = f'content {content!r}, {finish!r}, {[*fields]}'
        yield _json_case(name + ', untouched' * (not invalid), found, invalid)
  for finish in ('content_filter', 'tool_calls', 'function_call'):
    yield _json_case(f'the beginning of a text, {finish}', reply('It is', finish), True)
  hidden = reply('')
  hidden['usage']['completion_tokens_details'] = {'reasoning_tokens': 40}
  yield _json_case('nothing but hidden reasoning', hidden, True)
  yield _json_case('no parts', reply([]), True)
  yield _json_case('spaces that were cut', reply('\n \t', 'length'), True)
  yield _json_case('spaces, untouched', reply('\n \t'), False)


def _counts() -> Iterator[Case]:
  for name in ('prompt_tokens', 'completion_tokens'):
    for count in (-4, 2**40, 0, True, '10', 10.5, 1e30, math.nan, math.inf, None, [], {}, 2**31,
                  10**400, -(10**30), 10.0):  # fmt: skip
      found = reply()
      found['usage'][name] = count
      yield _json_case(f'{name} {str(count)[:20]}', found, True)
  for usage in (None, {}, [], 3, 'x', True, {'total_tokens': 12}, [9, 3]):
    yield _json_case(f'usage {usage!r}', reply(usage=usage), True)


def _contents() -> Iterator[Case]:
  for content in (7, 1.5, True, {}, {'text': 'x'}, ['x'], [{}], [{'text': 3}], [{'type': 'image'}],
                  [[{'text': 'x'}]], [{'text': 'x'}, None]):  # fmt: skip
    yield _json_case(f'content {content!r}', reply(content), True)
  good = ('It is 3.', [{'type': 'text', 'text': 'It '}, {'type': 'text', 'text': 'is'}], '\ud800x',
          '\x00', '\x1b[2J', '<|im_end|>', '\u2028' * 3, 'x' * 10**6, KEY)  # fmt: skip
  for i, content in enumerate(good):
    yield _json_case(f'text {i}, untouched', reply(content), False)


def _other_json() -> Iterator[Case]:
  whole = reply()
  choice = whole['choices'][0]
  for choices in (None, [], {}, 'x', 3, [None], [[]], [choice, choice], [{}], {'0': choice},
                  [{**choice, 'message': None}], [{**choice, 'message': 'It is 3.'}],
                  [{'index': 0, 'text': 'It is 3.', 'finish_reason': 'stop'}]):  # fmt: skip
    yield _json_case(f'choices {str(choices)[:70]}', reply(choices=choices), True)
  for other in (None, [], 3, 'x', True, {}, [whole], {'detail': 'no'}, {'response': whole}):
    yield _json_case(f'a body of {str(other)[:30]}', other, True)
  for error in ('busy', {'message': f'bad key {KEY}', 'code': 429}, {'message': None}, [1], True):
    yield _json_case(f'200 with error {error!r}', {'error': error}, True)
    yield _json_case(f'200 with both, error {error!r}', reply(error=error), True)
  for body in (b'', b'{', b'null', b'<html>busy</html>', b'[' * 99999, b'{"a":' * 99999,
               b'\xff\xfe', b'1' * 9999, json.dumps(whole).encode()[:-9],
               b'data: {}\n\ndata: [DONE]\n\n', KEY.encode(), b'\x1b[2J' * 99,
               b'x' * 5_000_000):  # fmt: skip
    yield _case(f'bytes {body[:30]!r}', sends(http(body)), True)
    kind = 'text/html; charset=utf-7'
    yield _case(f'a page of {body[:30]!r}', sends(http(body, Content_Type=kind)), True)
  body = json.dumps(whole).encode()
  for kind in ('text/plain', 'text/event-stream', '', 'x' * 999, 'application/json; charset=x'):
    name = f'content type {kind[:30]!r}, untouched'
    yield _case(name, sends(http(body, Content_Type=kind)), False)
  yield _case('a mark of byte order, untouched', sends(http(b'\xef\xbb\xbf' + body)), False)


def _statuses() -> Iterator[Case]:
  echo = {'error': {'message': f'Incorrect API key: {KEY}', 'code': 'invalid_api_key'}}
  for status in (201, 204, 301, 302, 304, 307, 308, 400, 401, 403, 404, 408, 422, 429, 503, 999):
    for name, body in (
      ('a reply', b'' if status == 204 else json.dumps(reply()).encode()),
      ('the key', json.dumps(echo).encode()),
      ('a page', b'<html>' + KEY.encode() + b'x' * 10**6),
      ('the key, long and in quotes', json.dumps({'error': 'x' * 250 + repr([KEY])}).encode()),
    ):
      # Elsewhere is a good reply: a question must not get there.
      there = http(body, f'{status} X', Location=server().url('good', sends(http(body))))
      good = status == 201 and name == 'a reply'
      yield _case(f'status {status}, {name}' + ', untouched' * good, sends(there), not good)
  for after in ('99999999999', '-5', 'nan', 'inf', '1e400', 'x' * 999,
                'Fri, 31 Dec 9999 23:59:59 GMT', 'Fri, 31 Dec 99999 23:59:59', '0'):  # fmt: skip
    data = http(b'{"error": "slow down"}', '429 Too Many', Retry_After=after)
    yield _case(f'Retry-After {after[:40]}', sends(data), True)
  yield _case('no such place', sends(http(b'', '307 X', Location='http://[')), True)


def _wires() -> Iterator[Case]:
  body = json.dumps(reply()).encode()
  good = http(body)
  cut = good[: len(good) - 30]
  yield _case('nothing', lambda connection: None, True)
  yield _case('a reset', _reset, True)
  yield _case('never', lambda connection: time.sleep(3), True)
  yield _case('a cut body', sends(cut), True)
  yield _case('a reset in the body', sends(cut, _reset), True)
  yield _case('a body that stops', sends(cut, lambda connection: time.sleep(3)), True)
  yield _case('a dripping body', sends(good[:-60], drips(good[-60:])), True)
  yield _case('a dripping head', drips(good), True)
  yield _case('an endless head', _endless(b'HTTP/1.1 200 OK\r\n', b'X-A: b\r\n'), True)
  yield _case('an endless line', _endless(b'HTTP/1.1 200 OK\r\nX-A: ', b'b' * 999), True)
  plain = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n'
  yield _case('an endless body', _endless(plain + b'\r\n', b' ' * 65536), True)
  refused = plain.replace(b'200 OK', b'400 No') + b'\r\n'
  yield _case('an endless refusal', _endless(refused, b'x' * 65536), True)
  yield _case('endless interim replies', _endless(b'', b'HTTP/1.1 103 Early\r\n\r\n'), True)
  chunked = plain + b'Transfer-Encoding: chunked\r\n\r\n'
  yield _case(
    'chunks, untouched', sends(chunked + b'%x\r\n%s\r\n0\r\n\r\n' % (len(body), body)), False
  )
  yield _case('bad chunks', sends(chunked + b'zz\r\n' + body), True)
  for kind, data in (
    ('gzip', body),
    ('gzip', gzip.compress(b' ' * 10**8)),
    ('deflate', b'\x00'),
    ('gzip', b''),
  ):
    name = f'{kind} of {data[:9]!r}'
    yield _case(name, sends(http(data, Content_Encoding=kind)), True)
  zipped = http(gzip.compress(body), Content_Encoding='gzip')
  yield _case('gzip, untouched', sends(zipped), False)
  ok = b'HTTP/1.1 200 OK\r\n'
  for line in (b'', b'\r\n\r\n', b'HTTP/9.9 200 OK\r\n\r\n', b'HTTP/1.1 abc OK\r\n\r\n',
               b'\x16\x03\x01', b'SSH-2.0-x\r\n', body, ok + b'Content-Length: -1\r\n\r\n',
               ok + b': x\r\n\r\n', ok + b'A: \x00\r\n\r\n'):  # fmt: skip
    yield _case(f'a head of {line[:20]!r}', sends(line), True)
  more = http(body, Content_Length=len(body) + 50)
  less = http(body, Content_Length=5)
  yield _case('a body shorter than its length', sends(more), True)
  yield _case('a body longer than its length', sends(less), True)


_POOL = (None, True, 0, -1, 3, 10**30, 1.5, math.nan, '', 'x', '\ud800', [], {}, [3], {'x': 1})


def _damaged(rng: random.Random) -> Iterator[Case]:
  """Yields replies with something else somewhere."""
  for i in range(100):
    found = copy.deepcopy(reply(rng.choice(('', 'It is 3.')), 'stop'))
    inside = found
    while True:
      key = rng.choice([*inside] if isinstance(inside, dict) else range(len(inside)))
      if not isinstance(inside[key], dict | list) or rng.random() < 0.3:
        break
      inside = inside[key]
    inside[key] = value = rng.choice(_POOL)
    yield _json_case(f'damaged {i}: {key}={value!r}', found, False)


def cases(seed: int = 0) -> list[Case]:
  """Returns hostile replies; those that are `invalid` must be an error."""
  rng = random.Random(f'{seed}/endpoint')
  groups = (
    _withheld(),
    _counts(),
    _contents(),
    _other_json(),
    _statuses(),
    _wires(),
    _damaged(rng),
  )
  return [case for group in groups for case in group]
