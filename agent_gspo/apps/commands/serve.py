"""Serves a team on this machine: as one model in OpenAI's protocol, and as a chat page.

    python launch/serve.py --workdir=runs/quickstart      # http://127.0.0.1:8000

    from openai import OpenAI
    client = OpenAI(base_url='http://127.0.0.1:8000/v1', api_key='none')
    client.chat.completions.create(
      model='team',
      messages=[{'role': 'user', 'content': 'How many pens do Mara and Tom have together?'}],
      extra_body={'notes': ['Mara has 3 pens.', 'The sky is blue.', 'Tom has 4 pens.']},
    )

The team is that of a run or an export (see `ask`), or with --config=FILE in place of --workdir the
untrained one. `usage` counts the tokens that all agents read and wrote; `team` has their messages,
which a stream sends piece by piece. `notes` (one per agent, in their order) and `price` or
`budget` (for a conditioned team) extend OpenAI's fields; unsupported fields are refused, not
ignored. Requests are answered one at a time; those of other web pages are refused. A --host that
other machines can reach needs an --api_key, or AGENT_GSPO_API_KEY, which the list of processes does
not show: clients send it as their API key, and the page asks for it.

    python launch/serve.py --config=configs/tiny.py --engine
    python launch/train.py --config=configs/tiny.py --workdir=runs/tiny \
      --config.rollout.engine=http://127.0.0.1:8000/v1#team
    python launch/serve.py --config=configs/quickstart.py --tinker=runs/adapters  # see `tinker_api`
"""

from __future__ import annotations

import contextlib
import os
import socket

from absl import flags

from agent_gspo.apps.commands import command, team_of_run

_TEAM = team_of_run.define_flags()
_HOST = flags.DEFINE_string('host', '127.0.0.1', 'Address to listen on.')
_PORT = flags.DEFINE_integer('port', 8000, 'Port to listen on.', lower_bound=0, upper_bound=65535)
_KEY = flags.DEFINE_string('api_key', None, 'Key of clients; by default $AGENT_GSPO_API_KEY.')
_ENGINE = flags.DEFINE_bool(
  'engine', False, 'Also sample for runs with rollout.engine, which load weights from folders here.'
)
_TINKER = command.define_folder(
  'tinker',
  '',
  "Folder of the weights of `tinker` clients, which train adapters of the team's model.",
)
_NAME = flags.DEFINE_string('name', 'team', 'Name of the model in requests.')


def main() -> None:
  """Runs the command."""
  _TEAM.check()
  if _ENGINE.value and _TINKER.value:
    raise ValueError('--engine replaces the weights that --tinker adapts. Serve them apart.')
  served = team_of_run.TeamOfRun(_TEAM)
  if len(set(served.parts.sharing.adapters or ())) > 1 and (_ENGINE.value or _TINKER.value):
    raise ValueError(
      f'--{"engine" if _ENGINE.value else "tinker"} serves one policy, but with policy.sharing='
      f'{served.parts.config.policy.sharing!r} the team has several. Serve a team that shares one.'
    )
  try:
    from agent_gspo.apps.serving import app, guard

    if _TINKER.value:
      import tinker  # noqa: F401
  except ImportError as error:
    extra = 'tinker' if _TINKER.value else 'serve'
    raise ImportError(f'{error}: pip install "agent_gspo[{extra}]"') from error
  with _listen(_HOST.value, _PORT.value) as listening:  # before the slow model load
    host, port = listening.getsockname()[:2]
    key = os.environ.get(guard.KEY_VARIABLE, '') if _KEY.value is None else _KEY.value
    guard.check_key(key, _HOST.value, host)
    _ = served.loaded
    address = f'http://[{host}]:{port}' if ':' in host else f'http://{host}:{port}'
    print(
      f'{_NAME.value}: {", ".join(served.team.names)}, step {served.step}, at {address}', flush=True
    )
    web = app.make_app(
      served,
      _NAME.value,
      listens=(_HOST.value, host),
      api_key=key,
      engine=_ENGINE.value,
      tinker=_TINKER.value,
    )
    server = app.server(web, log_level='info')
    with contextlib.suppress(KeyboardInterrupt):  # the server has shut down
      server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  try:
    return socket.create_server((host, port), family=family)
  except OSError as error:
    raise OSError(
      f'--host={host} --port={port}: {error.strerror}. Take another --port (0: any that is free) '
      'or --host.'
    ) from error


def cli() -> None:
  """Parses the flags and runs the command."""
  command.run(main)
