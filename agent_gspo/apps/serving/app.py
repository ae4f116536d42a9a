"""Defines the web application: `/v1/chat/completions`, `/v1/models`, `/health` and a page."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from agent_gspo.apps.serving import errors
from agent_gspo.apps.serving.completions import Completions
from agent_gspo.apps.serving.guard import HEALTH, Guard
from agent_gspo.evaluation import asking
from agent_gspo.values import shown

if TYPE_CHECKING:
  from agent_gspo.apps.commands.team_of_run import TeamOfRun

_PAGE = pathlib.Path(__file__).parent / 'assets' / 'page.html'


def make_app(
  served: TeamOfRun,
  name: str = 'team',
  *,
  listens: Sequence[str] = ('127.0.0.1',),
  api_key: str = '',
) -> Starlette:
  """Returns the application of one team, which answers one request at a time.

  Args:
    served: Team to ask.
    name: Name of the team as a model.
    listens, api_key: See `Guard`.
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

  return Starlette(
    routes=[
      Route('/', page),
      Route('/team', team),
      Route(HEALTH, health),
      Route('/v1/models', models),
      Route('/v1/models/{model}', models),
      Route('/v1/chat/completions', Completions(served, name), methods=['POST']),
    ],
    middleware=[Middleware(Guard, listens=listens, api_key=api_key)],
    exception_handlers={HTTPException: errors.of_route, Exception: errors.of_route},
  )
