"""Defines the HTTP server below the application."""

from __future__ import annotations

from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

GRACE_SECONDS = 2.0
"""Limits the time of a running episode when the server shuts down."""


class Connection(H11Protocol):
  """HTTP connection that lets the server shut down; uvicorn waits for a body that never ends."""

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
