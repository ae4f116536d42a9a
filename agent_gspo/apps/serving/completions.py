"""Answers `/v1/chat/completions`: queues requests, and cancels those of disconnected clients."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agent_gspo.apps.serving import errors, requests
from agent_gspo.apps.serving.errors import RequestError
from agent_gspo.apps.serving.requests import ChatRequest
from agent_gspo.evaluation import asking
from agent_gspo.teams import batches
from agent_gspo.teams.team import Team
from agent_gspo.types import Message, Question, RolloutBatch

if TYPE_CHECKING:
  from agent_gspo.apps.commands.team_of_run import TeamOfRun

MAX_BYTES = 1 << 20
"""Largest body of a request, bytes."""
MAX_REQUESTS = 128
"""Most concurrent requests; with `MAX_BYTES` this bounds their memory."""
BODY_SECONDS = 20.0
"""Seconds within which the whole body of a request must arrive."""

_Found: TypeAlias = tuple[RolloutBatch, str | None, float]


class _Begun(NamedTuple):
  """Unfinished message; `text` is all of it so far."""

  agent: int
  round: int
  text: str


_Heard: TypeAlias = _Begun | Message


class Completions:
  """ASGI application that answers requests to one team.

  One thread parses requests, another runs episodes, in order of arrival. So neither blocks the
  event loop, and at most one question is encoded at a time.
  """

  def __init__(self, served: TeamOfRun, name: str):
    """Prepares both threads; `name` is that of the model in the protocol."""
    self.served, self.name = served, name
    self.reader = ThreadPoolExecutor(1, 'reader')
    self.speaker = ThreadPoolExecutor(1, 'speaker')
    self._in_hand = 0
    self._numbers = itertools.count()

  def read(self, body: bytes) -> tuple[ChatRequest, Question]:
    """Returns the request in a body, and its question.

    Raises:
      ValueError: The body is no request, or this team cannot read the question.
    """
    request, served = requests.read(requests.decode(body), self.name), self.served
    terms = served.terms(price=request.price, budget=request.budget)
    # The number seeds the noise, so that a seed repeats an answer.
    number = next(self._numbers) if request.seed is None else request.seed
    question = asking.asked(served.team, number, request.question, request.notes, terms)
    served.check_words(question)
    return request, question

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers one request."""
    http = Request(scope, receive)
    if self._in_hand >= MAX_REQUESTS:
      busy = f'{MAX_REQUESTS} requests are waiting already; send it again later.'
      return await errors.response(busy, 503, headers={'Retry-After': '5'})(scope, receive, send)
    self._in_hand += 1
    try:
      await _Exchange(self, await body_of(http)).answer(scope, receive, send)
    except RequestError as error:
      await errors.response(*errors.of_fault(error))(scope, receive, send)
    except ClientDisconnect:
      pass  # the client has disconnected
    finally:
      self._in_hand -= 1


async def answer_json(answer: Callable[[Any], Awaitable[Any]], http: Request) -> Response:
  """Returns the result of `answer` for the JSON of a body, as JSON."""
  return JSONResponse(await answer(requests.decode(await body_of(http))))


async def body_of(http: Request) -> bytes:
  """Returns the body, reading at most `MAX_BYTES`.

  Raises:
    RequestError: The body is too large, or takes too long.
  """
  too_large = RequestError(
    f'the body is too large; must be at most {MAX_BYTES} bytes; shorten question and notes.',
    status=413,
  )
  announced = http.headers.get('content-length', '')
  if announced.isdecimal() and int(announced[:20]) > MAX_BYTES:
    raise too_large
  found = bytearray()
  with anyio.move_on_after(BODY_SECONDS):
    async for piece in http.stream():
      found += piece
      if len(found) > MAX_BYTES:
        raise too_large
    return bytes(found)
  raise RequestError(f'the body took more than {BODY_SECONDS:g} seconds.', status=408)


class _Exchange:
  """Request and its answer."""

  def __init__(self, desk: Completions, body: bytes):
    self._desk, self._body, self._team = desk, body, desk.served.team
    self._gone = threading.Event()
    self._talk: asyncio.Future[_Found] | None = None

  async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers the request; ends the episode if the client disconnects."""
    try:
      async with anyio.create_task_group() as tasks:

        async def watch() -> None:
          while (await receive())['type'] != 'http.disconnect':
            pass
          tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        response = await self._response()
        await response(scope, receive, send)
        tasks.cancel_scope.cancel()
    finally:
      self._gone.set()
      if self._talk is not None:
        self._talk.cancel()  # if it has not started

  async def _response(self) -> Response:
    try:
      request, question = await self._run(self._desk.reader, lambda: self._desk.read(self._body))
      self._team = self._team.capped(request.max_tokens)
      if request.stream:
        return StreamingResponse(self._events(request, question), media_type='text/event-stream')
      return JSONResponse(self._completion(*await self._begin(request, question)))
    except Exception as error:
      return errors.response(*errors.of_fault(error))

  def _begin(
    self,
    request: ChatRequest,
    question: Question,
    hear: Callable[[_Heard], None] | None = None,
  ) -> asyncio.Future[_Found]:
    """Queues the episode.

    `hear` is called on the event loop with each message, and after each token with the unfinished
    one.
    """
    loop = asyncio.get_running_loop()

    def listen(heard: _Heard) -> None:
      if self._gone.is_set():
        raise CancelledError
      if hear:
        loop.call_soon_threadsafe(hear, heard)

    def converse() -> _Found:
      start = time.monotonic()
      batch, (answer,) = self._desk.served.ask(
        [question],
        listen,
        temperature=request.temperature,
        max_tokens=request.max_tokens,
        begun=(lambda *begun: listen(_Begun(*begun))) if hear else None,
      )
      return batch, answer, time.monotonic() - start

    self._talk = self._run(self._desk.speaker, converse)
    return self._talk

  @staticmethod
  def _run(thread: ThreadPoolExecutor, work: Callable[[], Any]) -> asyncio.Future[Any]:
    def guarded() -> Any:
      try:
        return work()
      # A future cannot carry a StopIteration, and a SystemExit would end the server.
      except (StopIteration, SystemExit) as error:
        raise RuntimeError(repr(error)) from error

    return asyncio.get_running_loop().run_in_executor(thread, guarded)

  async def _events(self, request: ChatRequest, question: Question) -> AsyncIterator[str]:
    """Yields server-sent events: chunks with new text of a message, or a whole message."""
    heard: asyncio.Queue[_Heard | asyncio.Future[_Found]] = asyncio.Queue()
    texts: dict[tuple[int, int], _Sent] = collections.defaultdict(_Sent)  # by agent and round
    content, answering = _Sent(), self._desk.served.answering
    head = self._head('chat.completion.chunk')
    event = lambda told: f'data: {json.dumps(told)}\n\n'
    chunk = lambda delta, finish=None, **more: event(
      {**head, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}], **more}
    )
    self._begin(request, question, heard.put_nowait).add_done_callback(heard.put_nowait)
    yield chunk({'role': 'assistant', 'content': ''})
    while not isinstance(found := await heard.get(), asyncio.Future):
      turn = found.agent, found.round
      if piece := texts[turn].new_of(found.text.strip()):
        delta = {'content': content.new_of(_trimmed(found.text))} if turn == answering else {}
        written = {'agent': self._team.names[found.agent], 'round': found.round, 'text': piece}
        yield chunk(delta, team={'written': written})
      if isinstance(found, Message):
        yield chunk({}, team={'messages': [_told(self._team, found)]})
    try:
      batch, answer, seconds = found.result()
    except Exception as error:  # the status has been sent
      yield event(errors.form(*errors.of_fault(error)))
      return
    yield chunk({'content': content.new_of(_content(batch))})
    told: dict[str, Any] = {'answer': answer, 'messages': [], 'seconds': seconds}
    yield chunk({}, _finish(self._team, batch), team=told)
    if request.include_usage:
      yield event({**head, 'choices': [], 'usage': _usage(batch)})
    yield 'data: [DONE]\n\n'

  def _completion(self, batch: RolloutBatch, answer: str | None, seconds: float) -> dict[str, Any]:
    choice = {
      'index': 0,
      'message': {'role': 'assistant', 'content': _content(batch)},
      'finish_reason': _finish(self._team, batch),
      'logprobs': None,
    }
    messages = [_told(self._team, message) for message in batch.messages]
    return {
      **self._head('chat.completion'),
      'choices': [choice],
      'usage': _usage(batch),
      'team': {'answer': answer, 'messages': messages, 'seconds': seconds},
    }

  def _head(self, kind: str) -> dict[str, Any]:
    number = f'chatcmpl-{uuid.uuid4().hex}'
    return {'id': number, 'object': kind, 'created': int(time.time()), 'model': self._desk.name}


class _Sent:
  """Text that is sent in pieces."""

  def __init__(self) -> None:
    self._text = ''

  def new_of(self, text: str) -> str:
    """Returns the unsent part of a text; '' if it does not begin with what has been sent."""
    if not text.startswith(self._text):
      return ''
    new, self._text = text[len(self._text) :], text
    return new


def _content(batch: RolloutBatch) -> str:
  return _trimmed(batch.answers[0])


def _trimmed(text: str) -> str:
  """Returns a text without blank lines around it; its indentation may be that of code."""
  return text.rstrip().lstrip('\n')


def _finish(team: Team, batch: RolloutBatch) -> str:
  """Returns 'length' if the episode's cap ended it or its last message was cut off, else 'stop'."""
  turns, spent = sum(len(layer) for _, _, layer in team.turns), sum(m.spent for m in batch.messages)
  # A task's own episode may end before all turns.
  whole = len(batch.messages) == turns or not team.max_episode_tokens or team.tokens_left(spent)
  return 'stop' if whole and all(m.ended for m in batch.messages[-1:]) else 'length'


def _usage(batch: RolloutBatch) -> dict[str, int]:
  """Counts the tokens that all agents read and wrote."""
  wrote, read = batches.written_and_read(batch)
  return {'prompt_tokens': read, 'completion_tokens': wrote, 'total_tokens': read + wrote}


def _told(team: Team, message: Message) -> dict[str, Any]:
  return {
    'agent': team.names[message.agent],
    'round': message.round,
    'text': message.text.strip(),
    'silent': message.silent,
    'written': message.written,
    'read': message.read,
    'readers': team.readers(message),
  }
