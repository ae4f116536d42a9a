"""Serves an endpoint on loopback whose replies a test writes, byte by byte if needed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Wire = Callable[[socket.socket], Any]
"""Actions on the connection of a request after it was read."""


class _Handler(socketserver.BaseRequestHandler):
  """Reads one request, and answers as its path says."""

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
      fields = json.loads(body)
      prompt = fields['messages'][0]['content'] if 'messages' in fields else fields
      self.server.answers[name](prompt)(self.request)


class _Server(socketserver.ThreadingTCPServer):
  daemon_threads = True
  allow_reuse_address = True
  request_queue_size = 64


@functools.cache
def _server() -> _Server:
  """Returns the one server of this process."""
  server = _Server(('127.0.0.1', 0), _Handler)
  server.answers = {}  # by the first part of the path
  threading.Thread(target=server.serve_forever, daemon=True).start()
  return server


_numbers = itertools.count()


def serve(answer: Callable[[Any], Wire]) -> str:
  """Returns an address; `answer` gets each chat's prompt, and all fields of other requests."""
  name = str(next(_numbers))
  _server().answers[name] = answer
  return f'http://127.0.0.1:{_server().server_address[1]}/{name}/v1'


@contextlib.contextmanager
def replying(answer: Callable[[Any], tuple[int, Any]]) -> Iterator[tuple[str, list[Any]]]:
  """Yields an address whose answers map a prompt to status and body, and the prompts that came."""
  prompts: list[Any] = []

  def respond(prompt: Any) -> Wire:
    prompts.append(prompt)
    status, found = answer(prompt)
    return sends(http(json.dumps(found).encode(), f'{status} X', Retry_After_Ms=1))

  yield serve(respond), prompts


def reply(content: Any = 'It is 3.', finish: Any = 'stop', **more: Any) -> dict[str, Any]:
  """Returns a valid reply with a message of this content; `more` are fields of the reply."""
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


def sends(data: bytes, then: Wire = lambda connection: None) -> Wire:
  """Sends these bytes."""

  def wire(connection: socket.socket) -> None:
    connection.sendall(data)
    then(connection)

  return wire


def drips(data: bytes) -> Wire:
  """Sends bytes one by one, each in time."""

  def wire(connection: socket.socket) -> None:
    for byte in data:
      connection.sendall(bytes([byte]))
      time.sleep(0.05)

  return wire


def endless(head: bytes, piece: bytes) -> Wire:
  """Sends a piece again and again behind a head."""

  def wire(connection: socket.socket) -> None:
    connection.sendall(head)
    while True:
      connection.sendall(piece)

  return wire
