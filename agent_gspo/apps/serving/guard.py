"""Rejects requests from other web pages, to other host names, or without the API key."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_gspo.apps.serving import errors

_HOST = re.compile(r'(\[[0-9a-f:.]+\]|[^:@/\[\]]+)(:\d{1,5})?')

PROTOBUF = 'application/x-protobuf'
_KINDS = ('application/json', PROTOBUF)  # browsers ask permission before another page sends them
HEALTH = '/health'  # needs no key, as `/`
KEY_VARIABLE = 'AGENT_GSPO_API_KEY'


def check_key(key: str, host: str, address: str) -> None:
  """Checks the API key: sendable in a header, and set if other machines can reach the server.

  Raises:
    ValueError: The key fails either check.
  """
  if not all('!' <= character <= '~' for character in key):
    raise ValueError('--api_key must be ASCII without spaces; take another one.')
  if not key and not ipaddress.ip_address(address).is_loopback:
    raise ValueError(
      f'--host={host} can be reached from elsewhere; --api_key must be set; give one (or '
      f'${KEY_VARIABLE}), or take --host=127.0.0.1.'
    )


class Guard:
  """Middleware that accepts requests of this server's own page and of the user's programs.

  Another web page can make the user's browser send requests to this server. `Origin` reveals such
  a page; `Host` reveals a name that was made to point here (DNS rebinding); and a browser asks
  for permission before it sends JSON to another origin.
  """

  def __init__(self, app: ASGIApp, listens: Sequence[str], api_key: str):
    """Prepares the checks for a server that listens at these names and addresses."""
    self._app, self._key = app, api_key.encode()
    self._names = {name.lower() for name in listens} | {'localhost'}
    self._addresses = {ip for name in self._names if (ip := _address(name))}
    if not all(ip.is_loopback for ip in self._addresses):
      self._names.add(socket.gethostname().lower())

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers one request."""
    if scope['type'] == 'http' and (found := self._refusal(scope)):
      message, status, headers = found
      await errors.response(message, status, headers=headers)(scope, receive, send)
    else:
      await self._app(scope, receive, send)

  def _refusal(self, scope: Scope) -> tuple[str, int, dict[str, str]] | None:
    headers = Headers(scope=scope)
    host = headers.get('host', '').lower()
    if not self._is_ours(host):
      return f'the Host {host[:80]!r} is not this server; call it by its address.', 403, {}
    origins = headers.getlist('origin')
    if any(origin.lower() not in (f'http://{host}', f'https://{host}') for origin in origins):
      return f'the Origin {origins[0][:80]!r} is another page; use that of this server.', 403, {}
    if self._key and scope['path'] not in ('/', HEALTH) and not self._has_key(headers):
      message = 'the API key is missing or wrong; send it as "Authorization: Bearer KEY".'
      return message, 401, {'WWW-Authenticate': 'Bearer'}
    kind = headers.get('content-type', '').partition(';')[0].strip().lower()
    if scope['method'] == 'POST' and kind not in _KINDS:
      return f'Content-Type is {kind[:80]!r}; must be application/json.', 415, {}
    return None

  def _is_ours(self, host: str) -> bool:
    """Returns whether a `Host` names this server, at any port, as ports may be forwarded.

    A server that listens on all addresses accepts any address: only names can be rebound.
    """
    found = _HOST.fullmatch(host)
    if found is None:
      return False
    name = found[1].strip('[]')
    if (ip := _address(name)) is None:
      return name in self._names
    everywhere = any(bound.is_unspecified for bound in self._addresses)
    return ip.is_loopback or ip in self._addresses or everywhere

  def _has_key(self, headers: Headers) -> bool:
    scheme, _, given = headers.get('authorization', '').partition(' ')
    bearer = hmac.compare_digest(given.strip().encode(), self._key) and scheme.lower() == 'bearer'
    return bearer or hmac.compare_digest(headers.get('x-api-key', '').encode(), self._key)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
  try:
    return ipaddress.ip_address(name)
  except ValueError:
    return None
