"""Formats errors of the endpoint as in OpenAI's protocol."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

_LOG = logging.getLogger('uvicorn.error')
_LONGEST = 500  # characters; a message may quote a request of megabytes


class RequestError(ValueError):
  """Error: a request that cannot be answered.

  Attributes:
    field: Invalid field, '' for the whole request.
    status: HTTP status.
  """

  def __init__(self, message: str, field: str = '', status: int = 400):
    super().__init__(message)
    self.field, self.status = field, status


def form(message: str, status: int, field: str = '') -> dict[str, Any]:
  """Returns an error as a JSON object, its text clipped and valid UTF-8."""
  plain = [text.encode('utf-8', 'backslashreplace').decode() for text in (message, field)]
  text = plain[0] if len(plain[0]) <= _LONGEST else f'{plain[0][: _LONGEST - 3]}...'
  kind = 'server_error' if status >= 500 else 'invalid_request_error'
  return {'error': {'message': text, 'type': kind, 'param': plain[1][:80] or None, 'code': None}}


def response(
  message: str, status: int, field: str = '', headers: Mapping[str, str] | None = None
) -> JSONResponse:
  """Returns the answer to a request that failed."""
  return JSONResponse(form(message, status, field), status, headers)


def of_fault(error: Exception) -> tuple[str, int, str]:
  """Returns message, status and field of an exception.

  A `ValueError` is the client's error. Any other is the server's: its traceback is logged.
  """
  if isinstance(error, RequestError):
    return str(error), error.status, error.field
  if isinstance(error, ValueError):
    return str(error), 400, ''
  _LOG.error('A conversation failed.', exc_info=error)
  return f'the server failed: {type(error).__name__}: {error}', 500, ''


async def answered(answer: Callable[[Request], Awaitable[Response]], http: Request) -> Response:
  """Returns the answer to a request, or that of its error."""
  try:
    return await answer(http)
  except ClientDisconnect:
    return Response(status_code=499)  # the client has disconnected
  except Exception as error:
    return response(*of_fault(error))


async def of_route(http: Request, error: Exception) -> JSONResponse:
  """Answers requests that match no route or whose route failed."""
  if isinstance(error, HTTPException):
    message = f'{http.method} {http.url.path[:200]}: {error.detail}.'
    return response(message, error.status_code, headers=error.headers)
  return response(f'the server failed: {type(error).__name__}: {error}', 500)
