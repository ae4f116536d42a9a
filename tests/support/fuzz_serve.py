"""Malformed requests to a served team."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

from fuzzing import Case
from served_team import Served

from agent_gspo.apps.serving import errors
from agent_gspo.apps.serving.app import make_app

_PATH = '/v1/chat/completions'
_HEADERS = (('host', '127.0.0.1:8000'), ('content-type', 'application/json'))
_USER = {'role': 'user', 'content': 'How many?'}
_BODY = {'model': 'team', 'messages': [_USER]}
_SECONDS = 10  # that an answer may take

# Values that no field of a request takes.
_WRONG = (-1, 40, 1.5, 10**30, math.nan, -math.inf, 'x', 'x' * 10**5, [3], [None], {'x': 1}, [[]])
_FIELDS = (
  'messages', 'notes', 'price', 'budget', 'temperature', 'max_tokens', 'max_completion_tokens',
  'stream', 'stream_options', 'n', 'top_p', 'stop', 'response_format', 'tools', 'tool_choice',
  'logprobs', 'top_logprobs', 'logit_bias', 'seed', 'modalities', 'service_tier', 'audio', 'x',
)  # fmt: skip
# But for numbers, which are right in some.
_TAKEN = {
  'price': (40, 1.5, 10**30),
  'budget': (40, 1.5, 10**30),
  'temperature': (40, 1.5, 10**30),
  'max_tokens': (40, 10**30),
  'max_completion_tokens': (40, 10**30),
}
_CONTENTS = (
  None, '', ' \n', 3, True, [], [None], ['x'], [{}], [{'type': 'text'}], {'type': 'text'},
  [{'type': 'text', 'text': None}], [{'type': 'text', 'text': {}}], [{'type': 'text', 'text': 3}],
  [{'type': 'image_url', 'text': 'x'}], '\ud800', 'x\udfff', 'x' * 300_000, [[_USER]],
)  # fmt: skip
_DEEP = ('[', '{"x":', '[{"x":[')


async def _sent(app, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes):
  """Status, headers and body of an answer."""
  pieces = [body[i : i + 65536] for i in range(0, len(body), 65536)] or [b'']
  messages = [
    {'type': 'http.request', 'body': piece, 'more_body': i + 1 < len(pieces)}
    for i, piece in enumerate(pieces)
  ]
  answer: list[dict[str, Any]] = []
  whole = asyncio.Event()

  async def receive():
    if not messages:
      await whole.wait()
    return messages.pop(0) if messages else {'type': 'http.disconnect'}

  async def send(message):
    answer.append(message)
    if message['type'] == 'http.response.body' and not message.get('more_body'):
      whole.set()

  raw = [(name.encode('latin-1'), value.encode('latin-1')) for name, value in headers]
  scope = {
    'type': 'http', 'http_version': '1.1', 'method': method, 'path': path, 'root_path': '',
    'raw_path': path.encode(), 'query_string': b'', 'headers': raw, 'scheme': 'http',
    'server': ('127.0.0.1', 8000), 'client': ('127.0.0.1', 9), 'asgi': {'spec_version': '2.3'},
  }  # fmt: skip
  await app(scope, receive, send)
  sent = b''.join(message.get('body', b'') for message in answer)
  return answer[0]['status'], dict(answer[0]['headers']), sent


def _case(
  name: str, body: Any, invalid: bool = True, method='POST', path=_PATH, headers=_HEADERS
) -> Case:
  """One request; `body` is bytes, or what JSON is made of."""
  sent = body if isinstance(body, bytes) else json.dumps(body).encode()

  def run(unused_folder) -> None:
    start = time.monotonic()
    served = Served()
    with mock.patch.object(errors._LOG, 'error') as logged:
      status, found, text = asyncio.run(_sent(make_app(served), method, path, headers, sent))
    assert not logged.called, logged.call_args
    assert time.monotonic() - start < _SECONDS
    if status < 400:
      return
    assert status < 500, text
    assert found[b'content-type'] == b'application/json'
    told = json.loads(text)
    assert told.keys() == {'error'}
    assert told['error']['type'] == 'invalid_request_error'
    assert len(told['error']['message']) <= 500
    assert not served.questions
    raise ValueError(told['error']['message'])

  return Case(name, run, invalid)


def _changed_bytes(rng: random.Random) -> bytes:
  """The bytes of a request with some of them changed, cut or doubled."""
  body = bytearray(json.dumps({**_BODY, 'notes': ['ä', ''], 'temperature': 0.5}).encode())
  for _ in range(rng.choice((1, 1, 2, 8))):
    at = rng.randrange(len(body))
    how = rng.randrange(4)
    if how == 0:
      body[at] = rng.randrange(256)
    elif how == 1:
      body.insert(at, rng.choice(b'{}[]",:\\0'))
    elif how == 2:
      del body[at : at + rng.randrange(1, 9)]
    else:
      body[at:at] = body[at : at + 20]
  return bytes(body)


def _named(value: Any) -> str:
  text = repr(value)
  return text if len(text) < 60 else f'{text[:40]}... ({len(text)})'


def cases(seed: int = 0) -> list[Case]:
  """Requests with bad fields, bodies, routes and headers."""
  rng = random.Random(f'{seed}/serve')
  found = [
    _case('untouched', _BODY, False),
    _case('untouched, streamed', {**_BODY, 'stream': True}, False),
  ]
  for field, value in itertools.product(_FIELDS, _WRONG):
    invalid = value not in _TAKEN.get(field, ())
    found.append(_case(f'{field}={_named(value)}', {**_BODY, field: value}, invalid))
  for content in _CONTENTS:
    messages = [{'role': 'user', 'content': content}]
    found.append(_case(f'content={_named(content)}', {'messages': messages}))
  for role in (None, 'system', 'assistant', 'tool', 3, [], 'user\ud800'):
    found.append(_case(f'role={role!r}', {'messages': [{**_USER, 'role': role}]}))
  for opening, depth in itertools.product(_DEEP, (100, 300, 480, 900, 990, 1100, 10**5)):
    closing = ''.join({'[': ']', '{': '}'}.get(c, '') for c in reversed(opening))
    deep = f'{opening * depth}1{closing * depth}'
    text = json.dumps({**_BODY, 'stop': 0}).replace('"stop": 0', f'"stop": {deep}')
    found.append(_case(f'{depth} times {opening}', text.encode()))
    found.append(_case(f'{depth} times {opening} alone', deep.encode()))
  for body in (
    b'', b' ', b'null', b'3', b'[]', b'"x"', b'\0', b'\xff\xfe', b'\xef\xbb\xbf', b'{}', b'{"a"',
    b'{"n": 1, "n": 1}', b'{"messages": NaN}', b'{"temperature": -Infinity}', b'{"price": 1e999}',
    b'{"max_tokens": ' + b'9' * 9999 + b'}', b' ' * 2**20 + b'{}', b'[' + b'{},' * 10**5 + b'{}]',
  ):  # fmt: skip
    found.append(_case(f'body {_named(body)}', body))
  for i in range(80):
    found.append(_case(f'changed bytes {i}', _changed_bytes(rng), False))
  for method, path in itertools.product(
    ('GET', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'TRACE', 'x\ud800'),
    (_PATH, '/v1', '/v1/models/x', '/v1/models/' + 'x' * 10**4, '/\0', '/../team', '//'),
  ):
    found.append(_case(f'{method!r} {path[:30]}', b'', True, method, path))
  for name, value in itertools.product(
    ('host', 'origin', 'content-type'),
    ('', ' ', 'null', 'x', 'é', '127.0.0.1@x', 'http://x', '[::1', '999.1.1.1', ':80', 'x' * 10**5),
  ):
    kept = [header for header in _HEADERS if header[0] != name]
    found.append(_case(f'{name}: {value[:30]!r}', _BODY, headers=(*kept, (name, value))))
  for value in ('-1', 'x', '²', '9' * 99, '9' * 9999):
    headers = (*_HEADERS, ('content-length', value))
    found.append(
      _case(f'content-length: {value[:30]} ({len(value)})', _BODY, False, headers=headers)
    )
  return found
