"""The web application: `/v1/chat/completions`, `/v1/models`, and a page."""

from __future__ import annotations

import json
import pathlib
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_gspo.evaluation import asking
from agent_gspo.serving.requests import ChatRequest, RequestError, read
from agent_gspo.teams import batches
from agent_gspo.teams.team import Team
from agent_gspo.types import Message, Question, RolloutBatch

_PAGE = pathlib.Path(__file__).parent / 'assets' / 'page.html'


class ServedTeam(Protocol):
  """What the application asks of a team.

  Attributes:
    name: of the model that it is served as.
    team: who talks.
  """

  name: str
  team: Team

  @property
  def told(self) -> str:
    """What its agents read of the cost of talk: 'price', 'budget' or ''."""

  def question(self, request: ChatRequest) -> Question:
    """The question of a request.

    Raises:
      ValueError: it cannot be put to this team.
    """

  def ask(
    self,
    question: Question,
    listener: Callable[[Message], None],
    *,
    temperature: float | None,
    max_tokens: int,
  ) -> tuple[RolloutBatch, str | None]:
    """The conversation, and the answer in its canonical form (see `asking.ask`)."""


def make_app(served: ServedTeam) -> Starlette:
  """The application of one team, which answers one request at a time."""
  turn = threading.Lock()

  def converse(request: ChatRequest, question: Question, listener: Callable[[Message], None]):
    with turn:
      start = time.monotonic()
      batch, answer = served.ask(
        question, listener, temperature=request.temperature, max_tokens=request.max_tokens
      )
      return batch, answer, time.monotonic() - start

  async def completions(http: Request) -> Response:
    try:
      request = read(await _body(http), served.name)
      question = served.question(request)
      if request.stream:
        events = _events(served, request, lambda hear: converse(request, question, hear))
        return StreamingResponse(events, media_type='text/event-stream')
      found = await run_in_threadpool(converse, request, question, lambda message: None)
    except ValueError as error:
      return _refused(error)
    return JSONResponse(_completion(served, *found))

  async def models(http: Request) -> Response:
    model = {'id': served.name, 'object': 'model', 'created': 0, 'owned_by': 'agent_gspo'}
    wanted = http.path_params.get('model')
    if wanted is None:
      return JSONResponse({'object': 'list', 'data': [model]})
    if wanted != served.name:
      return _refused(RequestError(f'the model {wanted!r} is not served.', 'model', status=404))
    return JSONResponse(model)

  async def team(http: Request) -> Response:
    return JSONResponse(
      {
        'model': served.name,
        'agents': served.team.names,
        'note_holders': asking.note_holders(served.team),
        'told': served.told,
      }
    )

  async def page(http: Request) -> Response:
    return HTMLResponse(_PAGE.read_text(encoding='utf-8'))

  return Starlette(
    routes=[
      Route('/', page),
      Route('/team', team),
      Route('/v1/models', models),
      Route('/v1/models/{model}', models),
      Route('/v1/chat/completions', completions, methods=['POST']),
    ]
  )


async def _body(http: Request) -> Any:
  try:
    return await http.json()
  except (ValueError, RecursionError) as error:  # the latter of thousands of brackets
    raise RequestError(f'the body is not JSON: {error}.') from None


def _refused(error: ValueError) -> Response:
  field = getattr(error, 'field', '') or None
  told = {'message': str(error), 'type': 'invalid_request_error', 'param': field, 'code': None}
  return JSONResponse({'error': told}, status_code=getattr(error, 'status', 400))


def _completion(
  served: ServedTeam, batch: RolloutBatch, answer: str | None, seconds: float
) -> dict[str, Any]:
  text = batch.episodes[0].answer.strip()
  choice = {
    'index': 0,
    'message': {'role': 'assistant', 'content': text},
    'finish_reason': _finish(served.team, batch),
    'logprobs': None,
  }
  return {
    **_head(served, 'chat.completion'),
    'choices': [choice],
    'usage': _usage(batch),
    'team': {
      'answer': answer,
      'messages': [_told(served.team, message) for message in batch.messages],
      'seconds': seconds,
    },
  }


def _events(
  served: ServedTeam,
  request: ChatRequest,
  converse: Callable[[Callable[[Message], None]], tuple[RolloutBatch, str | None, float]],
) -> Iterator[str]:
  """Server-sent events: a chunk for each message of the team, then one with the answer."""
  heard: queue.Queue[Message | ValueError | tuple] = queue.Queue()

  def work() -> None:
    try:
      heard.put(converse(heard.put))
    except Exception as error:  # whoever listens must not wait for ever
      heard.put(error if isinstance(error, ValueError) else ValueError(repr(error)))

  threading.Thread(target=work, daemon=True).start()
  head = _head(served, 'chat.completion.chunk')
  event = lambda told: f'data: {json.dumps(told)}\n\n'
  chunk = lambda delta, finish=None, **more: event(
    {**head, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}], **more}
  )
  yield chunk({'role': 'assistant', 'content': ''})
  while isinstance(found := heard.get(), Message):
    yield chunk({}, team={'messages': [_told(served.team, found)]})
  if isinstance(found, ValueError):
    yield event({'error': {'message': str(found), 'type': 'invalid_request_error'}})
    return
  batch, answer, seconds = found
  yield chunk({'content': batch.episodes[0].answer.strip()})
  yield chunk(
    {}, _finish(served.team, batch), team={'answer': answer, 'messages': [], 'seconds': seconds}
  )
  if request.include_usage:
    yield event({**head, 'choices': [], 'usage': _usage(batch)})
  yield 'data: [DONE]\n\n'


def _head(served: ServedTeam, kind: str) -> dict[str, Any]:
  created = int(time.time())
  return {
    'id': f'chatcmpl-{uuid.uuid4().hex}',
    'object': kind,
    'created': created,
    'model': served.name,
  }


def _finish(team: Team, batch: RolloutBatch) -> str:
  turns = sum(len(layer) for _, _, layer in team.turns)
  return 'stop' if len(batch.messages) == turns and batch.messages[-1].ended else 'length'


def _usage(batch: RolloutBatch) -> dict[str, int]:
  """All that the agents read and wrote."""
  completion, prompt = batches.written_and_read(batch)
  return {
    'prompt_tokens': prompt,
    'completion_tokens': completion,
    'total_tokens': prompt + completion,
  }


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
