"""Defines the HTTP server below the application, with time limits on connections."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent_gspo.apps.serving import errors

HEAD_SECONDS = 10.0
"""Limits the time for the head of a request, and for the rest of the body of a refused one."""
GRACE_SECONDS = 2.0
"""Limits the time of a running episode when the server shuts down."""


class Connection(H11Protocol):
  """HTTP connection that closes if no request arrives, and lets the server shut down.

  uvicorn limits only the time between two requests. It would wait without limit for a head that
  never ends, and at shutdown for a body that never ends.
  """

  _timer: asyncio.TimerHandle | None = None

  def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
    """Starts waiting for a request."""
    super().connection_made(transport)
    self._watch()

  def data_received(self, data: bytes) -> None:
    """Reads further data."""
    super().data_received(data)
    self._watch()

  def on_response_complete(self) -> None:
    """Waits for the next request."""
    super().on_response_complete()
    self._watch()

  def connection_lost(self, exc: Exception | None) -> None:
    """Stops the timer."""
    self._stop()
    super().connection_lost(exc)

  def shutdown(self) -> None:
    """Gives a running episode `GRACE_SECONDS`; aborts a connection that is still sending."""
    super().shutdown()
    if self.cycle is not None and not self.cycle.response_complete:
      seconds = 0.0 if self.cycle.more_body else GRACE_SECONDS
      self.loop.call_later(seconds, self.transport.abort)

  def send_400_response(self, msg: str) -> None:
    """Answers invalid HTTP with a JSON error."""
    if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
      body = json.dumps(errors.form(msg, 400)).encode()
      head = [('content-type', 'application/json'), ('connection', 'close')]
      answer = h11.Response(status_code=400, headers=[*head, ('content-length', str(len(body)))])
      for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
        self.transport.write(self.conn.send(event))
    self.transport.close()

  def _watch(self) -> None:
    """Starts the timer if no request is running, stops it otherwise."""
    if self.cycle is not None and not self.cycle.response_complete:
      self._stop()
    elif self._timer is None and not self.transport.is_closing():
      self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

  def _stop(self) -> None:
    if self._timer is not None:
      self._timer.cancel()
      self._timer = None


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
