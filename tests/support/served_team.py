"""Serves a scripted team of three behind the endpoint."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import scripted_teams

from agent_gspo.apps.serving import app
from agent_gspo.evaluation import asking
from agent_gspo.tasks.registry import make_task
from agent_gspo.teams.policies import ScriptedPolicy, Turn

TOKENIZER = scripted_teams.byte_tokenizer()


class Served:
  """Two informants and a solver; the first writes its note, the second is silent.

  Attributes:
    questions: Questions that the team received.
    temperatures: Temperatures of its conversations.
    turns: Turns taken, as (text of the question, agent).
    fails: Exception that a conversation raises, if any.
    before: Called before each turn.
    between: Called before each token of a stream.
    task: Task of the team.
    solution: Message of the solver; by default the number of characters that it read.
  """

  told = ''
  answering = 2, 0

  def __init__(self):
    example = {'question': 'How many?', 'notes': ('abc',)}
    self.about = {'run': 'pens', 'step': 7, 'example': example}
    self.team = scripted_teams.team('star', max_message_tokens=40)
    self.questions, self.temperatures, self.turns = [], [], []
    self.fails: BaseException | None = None
    self.before: Callable[[Turn], Any] = lambda turn: None
    self.between: Callable[[Turn], Any] = lambda turn: None
    self.task, self.solution = make_task('relay'), ''

  def terms(self, **unused_told):
    return None

  def check_words(self, question):
    pass

  def ask(self, questions, listener, *, temperature, max_tokens, begun):
    (question,) = questions
    self.questions.append(question)
    self.temperatures.append(temperature)

    def say(turn: Turn) -> str:
      self.before(turn)
      self.turns.append((question.text, turn.agent))
      if turn.agent == 2:
        heard = ''.join(turn.delivered.values())
        return self.solution or f'It is {len(heard)}.'
      return question.note(0) if turn.agent == 0 else ''

    if self.fails:
      raise self.fails
    policy = ScriptedPolicy(say, TOKENIZER)
    if begun is not None:
      hear = asking.as_text(self.team, TOKENIZER, begun)
      policy = scripted_teams.told(policy, lambda turn, ids: (self.between(turn), hear(turn, ids)))
    team = self.team.capped(max_tokens)
    return asking.ask(team, self.task, TOKENIZER, questions, policy, listener)


@contextlib.contextmanager
def serving(served: Served, **options) -> Iterator[str]:
  """Yields the address at which a team is served.

  Args:
    served: Team.
    **options: Options of `make_app`.
  """
  server = app.server(app.make_app(served, **options), port=0, log_level='error')
  thread = threading.Thread(target=server.run, daemon=True)
  thread.start()
  while not server.started:
    time.sleep(0.01)
  host, port = server.servers[0].sockets[0].getsockname()
  try:
    yield f'http://{host}:{port}'
  finally:
    server.should_exit = True
    thread.join(10)


if __name__ == '__main__':  # a process that can be ended; told the file for its port
  import pathlib
  import socket

  with socket.create_server(('127.0.0.1', 0)) as listening:
    pathlib.Path(sys.argv[1]).write_text(str(listening.getsockname()[1]))
    app.server(app.make_app(Served()), log_level='info').run(sockets=[listening])
