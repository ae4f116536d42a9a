"""Defines the web application and its server: `/v1/...`, `/health` and a page."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent_gspo.apps.serving import errors
from agent_gspo.apps.serving.completions import Completions
from agent_gspo.apps.serving.engine import Engine
from agent_gspo.apps.serving.guard import HEALTH, Guard
from agent_gspo.evaluation import asking
from agent_gspo.values import shown

if TYPE_CHECKING:
  from agent_gspo.apps.commands.team_of_run import TeamOfRun

GRACE_SECONDS = 2.0
"""Seconds that a running episode has when the server shuts down."""

_PAGE = pathlib.Path(__file__).parent / 'assets' / 'page.html'


def make_app(
  served: TeamOfRun,
  name: str = 'team',
  *,
  listens: Sequence[str] = ('127.0.0.1',),
  api_key: str = '',
  engine: bool = False,
  tinker: str = '',
) -> Starlette:
  """Returns the application of one team, which answers one request at a time.

  Args:
    served: Team to ask.
    name: Name of the team as a model.
    listens, api_key: See `Guard`.
    engine: Also sample for runs that train elsewhere, see `engine`.
    tinker: Folder of weights that `tinker` clients save, see `tinker_api`; '' for no such clients.

  Raises:
    ImportError: There is a folder, but no package `tinker`.
  """

  async def models(http: Request) -> Response:
    model = {'id': name, 'object': 'model', 'created': 0, 'owned_by': 'agent_gspo'}
    wanted = http.path_params.get('model')
    if wanted is None:
      return JSONResponse({'object': 'list', 'data': [model]})
    if wanted != name:
      return errors.response(f'the model {shown(wanted)} is not served.', 404, 'model')
    return JSONResponse(model)

  async def team(http: Request) -> Response:
    return JSONResponse(
      {
        'model': name,
        'agents': served.team.names,
        'layers': [[served.team.names[i] for i in layer] for _, _, layer in served.team.turns],
        'note_holders': asking.note_holders(served.team),
        'told': served.told,
        **served.about,
      }
    )

  async def health(http: Request) -> Response:
    return JSONResponse({'status': 'ok', 'model': name})

  async def page(http: Request) -> Response:
    # Keeps other pages from embedding this one.
    alone = {'Content-Security-Policy': "frame-ancestors 'none'"}
    return HTMLResponse(_PAGE.read_text(encoding='utf-8'), headers=alone)

  talk = Completions(served, name)
  sampling = Engine(served, name, talk.speaker)
  of_engine = [
    Route('/v1/completions', sampling.complete, methods=['POST']),
    Route('/v1/weights', sampling.load_weights, methods=['POST']),
  ]
  of_tinker: list[Route] = []
  if tinker:
    from agent_gspo.apps.serving import tinker_api

    of_tinker = tinker_api.TinkerApi(served, name, talk.speaker, tinker).routes()
  return Starlette(
    routes=[
      Route('/', page),
      Route('/team', team),
      Route(HEALTH, health),
      Route('/v1/models', models),
      Route('/v1/models/{model}', models),
      Route('/v1/chat/completions', talk, methods=['POST']),
      *(of_engine if engine else ()),
      *of_tinker,
    ],
    middleware=[Middleware(Guard, listens=listens, api_key=api_key)],
    exception_handlers={HTTPException: errors.of_route, Exception: errors.of_route},
  )


class Connection(H11Protocol):
  """HTTP connection that does not block a shutdown; uvicorn's waits for a body without end."""

  def shutdown(self) -> None:
    """Gives a running episode `GRACE_SECONDS`; aborts a connection that is still sending."""
    super().shutdown()
    if self.cycle is not None and not self.cycle.response_complete:
      seconds = 0.0 if self.cycle.more_body else GRACE_SECONDS
      self.loop.call_later(seconds, self.transport.abort)


def server(app: Any, **options: Any) -> uvicorn.Server:
  """Returns a server that shuts down quickly; `options` are those of `uvicorn.Config`."""
  config = uvicorn.Config(
    app,
    http=Connection,
    ws='none',
    lifespan='off',
    timeout_graceful_shutdown=int(GRACE_SECONDS) + 1,
    **options,
  )
  return uvicorn.Server(config)
