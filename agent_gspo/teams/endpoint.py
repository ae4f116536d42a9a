"""Implements a policy over an OpenAI-compatible endpoint, for models that do not fit here."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.teams.policies import EndpointError, RefusedError, Reply, Turn
from agent_gspo.teams.roles import ENDPOINT, Role
from agent_gspo.values import is_whole, shown

if TYPE_CHECKING:
  import openai

T = TypeVar('T')
_TOO_MANY = 2**31  # tokens
_AGAIN = 2  # retries after a reply outside the protocol, mostly a gateway's page
_OF_THE_REQUEST = (400, 403, 413, 422, 451)  # statuses about one request; others affect all
_INSTEAD = ('refusal', 'tool_calls', 'function_call')  # fields that replace an answer
_BROKEN_OFF = ('content_filter', 'tool_calls', 'function_call', 'error', 'abort')
NO_KEY = 'none'
_SECRET = 8  # least length of a key that cannot be a common word


class BrokenError(EndpointError):
  """A reply does not follow the protocol."""


@dataclasses.dataclass(frozen=True)
class EndpointPolicy:
  """Policy that sends each turn's prompt as a user message and returns the reply.

  Token counts are the endpoint's `usage`; readers get the message as text.
  """

  base_url: str  # such as 'https://host/v1'; without credentials, as files and messages show it
  model: str  # the endpoint's name for the model
  tokenizer: Tokenizer  # builds the prompts
  temperature: float
  api_key: str = dataclasses.field(default=NO_KEY, repr=False)
  timeout_s: float = 120.0  # for the connection, and between two pieces of a reply
  retries: int = 4  # after a connection failure or a temporary refusal
  parallel: int = 8  # concurrent requests
  deadline_s: float = 300.0  # for a whole reply, with all retries
  most_bytes: int = 2**21  # read of a reply; the rest is dropped

  path: ClassVar[str] = '/chat/completions'

  def __post_init__(self):
    check_address(self.base_url, self.api_key)
    import openai  # noqa: F401 (here: it takes a second, which must not count to a deadline)

    _loop()  # before several threads could each make one

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]:
    """Returns a message for each turn.

    Raises:
      EndpointError: Some turns got no reply; says how many, and why the first one failed.
      RefusedError: All of the missing replies were withheld.
    """
    read = [functools.partial(self._read, turn) for turn in turns]
    asked = list(map(self._ask, itertools.repeat(self.path), self._requests(turns), read))
    found, failed = [], []
    for turn, reply in zip(turns, asked, strict=True):
      try:
        found.append(self._message(turn, reply.result()))
      except EndpointError as error:
        failed.append(error)
    if failed:
      withheld = all(isinstance(error, RefusedError) for error in failed)
      raise (RefusedError if withheld else EndpointError)(
        f'{self.base_url}: {len(failed)} of {len(turns)} requests to {self.model!r} failed, the '
        f'first one with {failed[0]}'
      )
    return found

  def _requests(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Returns the fields of each turn's request."""
    return [
      {
        'model': self.model,
        'messages': [{'role': 'user', 'content': self.tokenizer.decode(turn.prompt_ids.tolist())}],
        'temperature': self.temperature,
        'max_tokens': turn.limit,
      }
      for turn in turns
    ]

  def _read(self, turn: Turn, body: bytes) -> Any:
    """Parses a body for `_message`; runs in the event loop's thread.

    Raises:
      EndpointError: See `_read`.
    """
    return _read(body)

  def _message(self, turn: Turn, found: Any) -> Reply:
    text, ended, usage = found
    return Reply.given(self._ids(text, ended, turn), ended, usage=usage)

  def post(self, path: str, fields: Mapping[str, Any]) -> bytes:
    """Returns the body of the reply to a request.

    Raises:
      EndpointError: There is no reply, or its status is an error.
    """
    try:
      return self._ask(path, fields, lambda body: body).result()
    except EndpointError as error:
      raise EndpointError(f'{self.base_url}{path}: {error}') from error

  @functools.cached_property
  def _free(self) -> asyncio.Semaphore:  # made by the first request, in the event loop's thread
    return asyncio.Semaphore(self.parallel)

  @property
  def _client(self) -> openai.AsyncOpenAI:
    return _client(
      self.base_url, self.api_key, self.timeout_s, self.retries, most_bytes=self.most_bytes
    )

  def _ask(
    self, path: str, fields: Mapping[str, Any], read: Callable[[bytes], T]
  ) -> futures.Future[T]:
    """Begins a request; its future raises EndpointError."""
    return asyncio.run_coroutine_threadsafe(self._reply(path, fields, read), _loop())

  async def _reply(self, path: str, fields: Mapping[str, Any], read: Callable[[bytes], T]) -> T:
    async with self._free:
      try:
        async with asyncio.timeout(self.deadline_s):
          left = min(self.retries, _AGAIN)
          while True:
            try:
              return read(await self._body(path, fields))
            except BrokenError:
              if not left:
                raise
              left -= 1
              await asyncio.sleep(0.5)
      except TimeoutError:
        raise EndpointError(f'no whole reply within {self.deadline_s:g} s') from None
      except EndpointError as error:
        raise type(error)(self._clean(str(error))) from None

  async def _body(self, path: str, fields: Mapping[str, Any]) -> bytes:
    import openai

    try:
      reply = await self._client.post(path, body=fields, cast_to=openai.HttpxBinaryResponseContent)
    except openai.OpenAIError as error:
      status, told = 0, f'{error} {error.__cause__ or ""}'
      if isinstance(error, openai.APIStatusError):
        status = error.status_code
        told = f'status {status}: {error.response.content.decode(errors="replace")}'
        if 300 <= status < 400:
          told = f'status {status}: it redirects elsewhere. Give that address.'
      told = f'{type(error).__name__}: {told}'
      raise (RefusedError if status in _OF_THE_REQUEST else EndpointError)(told) from None
    body = reply.content
    # A short key may be a common word of any reply; a long one must not reach a transcript.
    secret = self.api_key.encode() if len(self.api_key) >= _SECRET else b''
    return body.replace(secret, b'[api_key]') if secret else body

  def _clean(self, text: str) -> str:
    """Returns a printable line of at most 300 characters without the key, in any quoting."""
    if self.api_key != NO_KEY:
      for key in {self.api_key, repr(self.api_key)[1:-1], json.dumps(self.api_key)[1:-1]}:
        text = re.sub(re.escape(key), '[api_key]', text, flags=re.IGNORECASE)
    text = ' '.join(''.join(c if c.isprintable() else ' ' for c in text).split())
    return text if len(text) <= 300 else f'{text[:297]}...'

  def _ids(self, text: str, ended: bool, turn: Turn) -> np.ndarray:
    # As plain text: special tokens in a remote reply must not end a turn or open another. EOS is
    # not appended either: the agent's next prompt is sent as text, which would spell it out.
    try:
      ids = self.tokenizer.encode(text, special=False)
    except ValueError as error:
      raise RefusedError(self._clean(f'a reply that is not understood: {error}')) from None
    return np.asarray([*ids, *[turn.end_id] * ended], np.int32)


@functools.cache
def _client(
  base_url: str, api_key: str, timeout_s: float, retries: int, *, most_bytes: int
) -> openai.AsyncOpenAI:
  """Returns the client, reused with its connections by all policies of a server."""
  import openai

  class Limited(openai.DefaultAsyncHttpxClient):
    """Client that reads a bounded part of a body and follows no redirects."""

    async def send(self, request, **options):
      found = await super().send(request, **{**options, 'stream': True})
      body = bytearray()
      try:
        async for piece in found.aiter_bytes():
          body += piece
          if len(body) > most_bytes:
            break
      finally:
        await found.aclose()
      # The body is already decoded, and may be cut off.
      drop = ('content-encoding', 'content-length', 'transfer-encoding')
      headers = [(k, v) for k, v in found.headers.multi_items() if k.lower() not in drop]
      content = bytes(body[:most_bytes])
      return type(found)(found.status_code, headers=headers, content=content, request=request)

  return openai.AsyncOpenAI(
    base_url=base_url,
    api_key=api_key,
    timeout=timeout_s,
    max_retries=retries,
    http_client=Limited(follow_redirects=False),
  )


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
  """Returns the event loop of all requests, run by a daemon thread."""
  loop = asyncio.new_event_loop()
  threading.Thread(target=loop.run_forever, daemon=True).start()
  return loop


def read_choice(body: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
  """Returns a reply and its only choice; {} if the choice is not an object.

  Raises:
    BrokenError: The body is not JSON, is an error, or does not have exactly one choice.
  """
  try:
    reply = json.loads(body)
  except (ValueError, RecursionError):
    raise BrokenError(f'a reply that is not JSON: {body.decode(errors="replace")}') from None
  if not isinstance(reply, dict):
    raise BrokenError(f'a reply that is {shown(reply)}; must be an object')
  if reply.get('error'):
    raise BrokenError(f'an error with status 200: {shown(reply["error"])}')
  choices = reply.get('choices')
  if not isinstance(choices, list) or len(choices) != 1:
    raise BrokenError(f'a reply whose `choices` is {shown(choices)}; must be a list of one')
  return reply, choices[0] if isinstance(choices[0], dict) else {}


def _read(body: bytes) -> tuple[str, bool, tuple[int, int]]:
  """Returns the text of a reply, whether it ended before the cap, and the tokens read and written.

  Raises:
    RefusedError: The message was withheld or replaced, such as by a tool call.
    BrokenError: The body does not follow the protocol.
  """
  reply, choice = read_choice(body)
  message, finish = choice.get('message'), choice.get('finish_reason')
  if not isinstance(message, dict):
    raise BrokenError(f'a reply whose `message` is {shown(message)}; must be an object')
  text = _text(message.get('content'))
  said = bool(text and text.strip())
  behind = [name for name, value in message.items() if value and name not in ('role', 'content')]
  if inside(inside(reply, 'usage'), 'completion_tokens_details').get('reasoning_tokens'):
    behind.append('reasoning_tokens')
  if (
    finish in _BROKEN_OFF
    or any(message.get(name) for name in _INSTEAD)
    or (not said and (finish != 'stop' or text is None or behind))
  ):
    told = f', with {", ".join(behind)}' if behind else ''
    more = ' Raise team.max_message_tokens.' if finish == 'length' and not said else ''
    raise RefusedError(
      f'a withheld reply (finish_reason {shown(finish)}, content '
      f'{shown(message.get("content"))}{told}), not a silent one.{more}'
    )
  assert text is not None
  return text, finish != 'length', _usage(reply, least=(1, int(said)))


def _text(content: Any) -> str | None:
  """Returns the text of a message's content, None if there is no content.

  Raises:
    BrokenError: The content is not text.
  """
  if content is None:
    return None
  if not isinstance(content, str):
    raise BrokenError(f'a reply whose `content` is {shown(content)}; must be text')
  # Lone surrogates are not valid text: two halves of a pair are joined, others replaced.
  return content.encode('utf-16-le', 'surrogatepass').decode('utf-16-le', 'replace')


def _usage(reply: Mapping[str, Any], least: tuple[int, int]) -> tuple[int, int]:
  """Returns the tokens read and written.

  Raises:
    BrokenError: A count is not a whole number from its minimum to 2**31 - 1.
  """
  found = []
  for name, low in zip(('prompt_tokens', 'completion_tokens'), least, strict=True):
    count: Any = inside(reply, 'usage').get(name)
    if not is_whole(count) or not low <= count < _TOO_MANY:
      raise BrokenError(
        f'a reply whose usage.{name} is {shown(count)}; must be a whole number of {low} to 2^31 - 1'
      )
    found.append(count)
  return found[0], found[1]


def inside(value: Mapping[str, Any], field: str) -> Mapping[str, Any]:
  """Returns the object in a field, {} if there is none."""
  found = value.get(field)
  return found if isinstance(found, dict) else {}


def api_key() -> str:
  """Returns the key of the environment, `NO_KEY` without one."""
  return os.environ.get('OPENAI_API_KEY') or NO_KEY


def parse(source: str) -> tuple[str, str]:
  """Splits `endpoint:<address>#<name>`, a source of `Role.model`, into address and name."""
  address, _, name = source.removeprefix(ENDPOINT).partition('#')
  return address, name


def check_source(source: str, where: str) -> None:
  """Checks the address and the name in a source, see `parse`.

  Args:
    source: `endpoint:<address>#<name>`, or without the prefix.
    where: Field of the source, for messages.

  Raises:
    ValueError: See `check_address`; or it names no model.
  """
  address, name = parse(source)
  check_address(address, api_key(), where)
  if not name:
    raise ValueError(f'{where}={source!r} names no model; write {source}#<its name>.')


def check_address(base_url: str, api_key: str = NO_KEY, where: str = '--endpoint') -> None:
  """Checks that an address has no credentials, which files and messages would show.

  Args:
    base_url: Address.
    api_key: Key that is sent with each request.
    where: Flag or field of the address, for messages.

  Raises:
    ValueError: The address has credentials or is invalid, or the key cannot be sent in a header.
      Shows neither.
  """
  try:
    parts = urllib.parse.urlsplit(base_url)
    host = (parts.hostname or '').encode('idna')
    whole = parts.scheme in ('http', 'https') and host and parts.port != 0
  except ValueError:
    whole = False
  if not whole or not re.fullmatch(r'[!-~]+', base_url):
    raise ValueError(f'{where} must be an address such as https://host/v1.')
  in_path = len(api_key) >= _SECRET and api_key in base_url
  if in_path or '@' in parts.netloc or re.search(r'[?#\\;&=%]', base_url):
    raise ValueError(
      f'{where} holds a user, a password or a query, which result files would show; must be '
      'scheme, host and path. Give the key as OPENAI_API_KEY.'
    )
  if not re.fullmatch(r'[!-~]+', api_key):
    raise ValueError(
      'OPENAI_API_KEY has a character that a header cannot contain; must be ASCII letters, digits '
      'and signs, without spaces.'
    )


def check(roles: Iterable[Role]) -> None:
  """Checks that the prompts of some roles can be sent to an endpoint.

  Raises:
    ValueError: A role uses a chat template, which the endpoint applies itself, or a tool.
  """
  for role in roles:
    if role.style != 'plain':
      raise ValueError(
        f'team.roles.{role.name}.style={role.style!r}: an endpoint puts its own template around a '
        "prompt. Set style='plain'."
      )
    if role.tools:
      raise ValueError(
        f'team.roles.{role.name}.tools={role.tools}: an endpoint cannot be interrupted while it '
        'writes. Set tools=().'
      )
