"""Connects the processes of a run before JAX does, and detects when one ends.

Process 0 listens at the address of JAX's coordinator, so a port that is taken is found here. Each
other process keeps one connection to it for the whole run. A process that fails sends the reason;
one that is killed closes the connection. JAX alone would wait, then abort with a stack trace.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from agent_gspo.sharding.places import Place
from agent_gspo.values import flatten, shown

_MARK = 'agent_gspo'  # key of every message; other programs' messages lack it
_LONGEST = 2**24  # bytes per message
_QUIET_SECONDS = 2.0  # wait before printing which processes are missing
_ANSWER_SECONDS = 5.0  # timeout of process 0's first answer
_LATE_SECONDS = 8.0  # wait of a refusal for processes that have not connected yet
_GRACE_SECONDS = 5.0  # time for a process to end by itself, if all fail alike

_met: Partners | None = None  # this process's connections


class PartnerError(ValueError):
  """Error: the run cannot start or continue with the connected processes."""


class Partners:
  """Connections of one process to the others of its run."""

  def __init__(self, place: Place):
    """Prepares the state; `meet` connects."""
    self.place = place
    self.has_left = False
    self.bound = ''  # listening address of the coordinator
    self._wires: dict[int, socket.socket] = {}  # by process
    self._inbox: queue.SimpleQueue[tuple[socket.socket, dict | None]] = queue.SimpleQueue()
    self._left: set[int] = set()
    self._failed = threading.Event()
    self._first_end, self._end_heard = '', threading.Event()

  def meet(self, facts: Mapping[str, Any], seconds: float, problem: str = '') -> None:
    """Waits for the other processes, and checks that all have the same facts.

    Afterwards a thread watches them, and ends this process if another one fails.

    Args:
      facts: Nested plain data, which must be the same in all processes.
      seconds: Timeout for missing processes.
      problem: Reason why this process cannot take part, sent to the others within a few seconds.

    Raises:
      ValueError: Names a missing process, one that cannot take part and why, or the first fact
        that differs with both values; or process 0 cannot listen at the address.
    """
    hello = {'index': self.place.index, 'of': self.place.processes, 'problem': problem}
    hello['facts'] = written(facts)
    if problem:
      seconds = min(seconds, _LATE_SECONDS)
    verdict = (self._attend if self.place.index else self._preside)(hello, seconds)
    if verdict:
      raise PartnerError(verdict)
    threading.Thread(target=self._watch, daemon=True).start()

  def leave(self, problem: str = '') -> None:
    """Notifies the others that this process ends.

    After a problem, process 0 waits until the others have ended: without its JAX coordinator they
    would abort.
    """
    self.has_left = True
    if problem:
      self._failed.set()
    for wire in [*self._wires.values()]:
      _send(wire, left=self.place.index, problem=problem)
    if problem and not self.place.index:
      self._outlast()

  def cause(self) -> str:
    """Returns the message of the process that ended before this one failed, '' if none did."""
    self._end_heard.wait(_QUIET_SECONDS)
    return self._first_end

  def _outlast(self) -> None:
    """Waits until all others are gone, at most `2 * _GRACE_SECONDS`."""
    until = time.monotonic() + 2 * _GRACE_SECONDS
    while self._wires and time.monotonic() < until:
      time.sleep(0.05)

  def _preside(self, hello: dict[str, Any], seconds: float) -> str:
    """Meets as process 0; returns why the run cannot start, '' if it can."""
    here, problem, wait = {0: hello}, hello['problem'], _Wait(seconds)
    wires: dict[int, socket.socket] = {}
    try:
      listener = _listen(self.place)
    except PartnerError as error:
      with contextlib.suppress(OSError):  # another process 0 may be waiting there
        _send(_connected(self.place, 1.0), **{**hello, 'problem': problem or str(error)})
      raise
    with listener:
      self.bound = _host_port(*listener.getsockname()[:2])
      while len(here) < self.place.processes and not wait.over:
        missing = [i for i in range(self.place.processes) if i not in here]
        wait.say(f'{self.place.named(*missing)} at {self.place.coordinator}')
        if select.select([listener], [], [], 0.05)[0]:
          self._read_from(listener.accept()[0])
        while not self._inbox.empty():
          wire, said = self._inbox.get()
          index = next((i for i, known in wires.items() if known is wire), None)
          if index is not None:
            found = f'{self.place.named(index)} ended before the run began.'
          elif not said or not isinstance(index := said.get('index'), int):
            wire.close()  # from another program
            continue
          else:
            found = self._problem_with(index, said, here)
            _send(wire, here=sorted(here))
            # Of two processes with one index, the second gets the verdict, too.
            wires[index if index not in wires else -len(wires)] = wire
            here.setdefault(index, said)
          if found and not problem:
            problem, wait = found, _Wait(min(wait.left, _LATE_SECONDS))
    missing = [i for i in range(self.place.processes) if i not in here]
    if missing and not problem:
      problem = (
        f'{self.place.named(*missing)} did not come to {self.place.coordinator} within '
        f'{seconds:g} s. Start all with one command and --process_id=0 to '
        f'{self.place.processes - 1}, or raise --start_timeout_s.'
      )
    self._wires = wires
    for wire in wires.values():
      _send(wire, verdict=problem)
    return problem

  def _problem_with(self, index: int, said: dict, here: Mapping[int, dict]) -> str:
    """Returns why a connected process cannot take part, '' if it can."""
    who, processes = self.place.named(index), self.place.processes
    if said.get('problem'):
      return f'{who} cannot take part: {said["problem"]}'
    if said.get('of') != processes:
      return (
        f'--num_processes is {processes} in process 0, {said.get("of")} in process {index}; must '
        'be the same in all.'
      )
    if index in here:
      return f'two processes have --process_id={index}; give each its own, from 0.'
    if not 0 <= index < processes:
      return f'--process_id={index} must be from 0 to {processes - 1}.'
    return _difference(here[0]['facts'], said.get('facts') or {}, who)

  def _attend(self, hello: dict[str, Any], seconds: float) -> str:
    """Meets as a process other than 0; returns why the run cannot start, '' if it can."""
    first, wait = f'{self.place.named(0)} at {self.place.coordinator}', _Wait(seconds)
    wire = None
    while wire is None:
      try:
        wire = _connected(self.place, min(wait.left + 0.1, _ANSWER_SECONDS))
      except OSError as error:
        if wait.over:
          reason = error.strerror or str(error)
          return (
            f'{first} did not come within {seconds:g} s ({reason}). Start it there, or raise '
            '--start_timeout_s.'
          )
        wait.say(first)
        time.sleep(0.1)
    self._wires = {0: wire}
    self._read_from(wire)
    _send(wire, **hello)
    if 'here' not in (self._heard(_ANSWER_SECONDS) or {}):
      return (
        f'{self.place.coordinator} is another program, or a process of a run under way: no answer '
        f'of {self.place.named(0)}. Name another port in all processes.'
      )
    wait = _Wait(seconds + 2 * _ANSWER_SECONDS)
    while (said := self._heard(0.5)) == {} and not wait.over:
      wait.say(f'the others; {first} is here')
    if not said or not isinstance(said.get('verdict'), str):
      return f'{first} ended before the run began.'
    return said['verdict']

  def _heard(self, seconds: float) -> dict | None:
    """Returns the next message, {} after the timeout, None if the connection has ended."""
    try:
      return self._inbox.get(timeout=seconds)[1]
    except queue.Empty:
      return {}

  def _read_from(self, wire: socket.socket) -> None:
    """Starts a thread that puts incoming messages into the inbox; None last."""

    def read() -> None:
      said: dict | None = {}
      while said is not None:
        said = _received(file)
        self._inbox.put((wire, said))

    wire.settimeout(None)
    file = wire.makefile('rb')
    threading.Thread(target=read, daemon=True).start()

  def _watch(self) -> None:
    """Ends this process if another one ends before the run does."""
    while True:
      wire, said = self._inbox.get()
      index = next((i for i, known in self._wires.items() if known is wire), None)
      if index is None:
        continue
      if said is None:
        self._wires.pop(index)
        problem = '' if index in self._left else 'it was killed, or its host is out of reach'
      else:  # process 0 forwards the end of others, too
        index, problem = said.get('left', index), str(said.get('problem', ''))
      known = index in self._left
      self._left.add(index)
      if problem and not known:
        self._first_end = self._first_end or f'{self.place.named(index)} ended: {problem}'
        self._end_heard.set()
        for other in [*self._wires.values()] if not self.place.index else ():
          _send(other, left=index, problem=problem)
        # Without process 0 there is no coordinator, and JAX is about to abort.
        grace = 0.0 if said is None and index == 0 else _GRACE_SECONDS
        threading.Thread(target=self._end, args=(grace,), daemon=True).start()

  def _end(self, grace: float) -> None:
    # If all processes fail alike, each prints its own error.
    if self._failed.wait(grace):
      return
    self._failed.set()
    print('error:', ' '.join(self._first_end.split()), file=sys.stderr)
    if not self.place.index:
      self._outlast()
    end_now(2)


def meet(place: Place, facts: Mapping[str, Any] | None = None, seconds: float = 60.0) -> str:
  """Meets the other processes, once per run; see `Partners.meet`.

  Returns:
    Listening address of JAX's coordinator; '' except in process 0.
  """
  global _met
  if not seconds >= 1:
    raise ValueError(f'--start_timeout_s={seconds:g} must be at least 1.')
  if _met is None:
    others = Partners(place)
    others.meet(facts or {}, seconds)
    _met = others
  return _met.bound


def written(facts: Mapping[str, Any]) -> dict[str, str]:
  """Returns facts as JSON by flat field name, such as 'team.agents'."""
  return {key: json.dumps(value, default=str) for key, value in flatten(facts).items()}


def check_alike(facts: Sequence[Mapping[str, str]]) -> None:
  """Checks that the facts of all processes, each from `written`, are the same.

  Raises:
    ValueError: Names the first fact that differs and both values.
  """
  for index, other in enumerate(facts):
    if found := _difference(facts[0], other, f'process {index} of {len(facts)}'):
      raise PartnerError(found)


def met() -> Partners | None:
  """Returns the connected processes, None before `meet`."""
  return _met


def leave(problem: str = '') -> None:
  """Notifies the connected processes that this one ends; after a problem they all end."""
  if _met is not None:
    _met.leave(problem)


def refuse(place: Place, problem: str) -> None:
  """Notifies the other processes, within seconds, why this one cannot take part."""
  with contextlib.suppress(PartnerError):
    Partners(place).meet({}, _LATE_SECONDS, problem)


def end_now(status: int) -> NoReturn:
  """Ends this process without JAX's own shutdown, which waits for processes that are gone."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


class _Wait:
  """A timeout that prints what it waits for after `_QUIET_SECONDS`."""

  def __init__(self, seconds: float):
    self._start, self._seconds, self._said = time.monotonic(), seconds, ''

  @property
  def left(self) -> float:
    return self._seconds - (time.monotonic() - self._start)

  @property
  def over(self) -> bool:
    return self.left <= 0

  def say(self, whom: str) -> None:
    if whom != self._said and self._seconds - self.left >= _QUIET_SECONDS:
      self._said = whom
      print(f'waiting for {whom} (at most {self.left:.0f} s)', file=sys.stderr, flush=True)


def _connected(place: Place, seconds: float) -> socket.socket:
  wire = socket.create_connection(place.host_and_port, timeout=seconds)
  if wire.getsockname() == wire.getpeername():  # TCP may connect a free port with itself
    wire.close()
    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
  wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  return wire


def _listen(place: Place) -> socket.socket:
  """Listens at the coordinator's address, and at no other one.

  Raises:
    PartnerError: The port is taken, or the address is not one of this host.
  """
  host, port = place.host_and_port
  given = os.environ.get('JAX_COORDINATOR_BIND_ADDRESS', '')
  if given:
    host, port = Place(given, 1, 0).host_and_port
  problem = None
  for family, address in _addresses(host, port, named=bool(given)):
    try:
      return socket.create_server(
        (address, port), family=family, dualstack_ipv6=address == '::', backlog=1024
      )
    except OSError as error:
      problem = error
      if error.errno == errno.EADDRINUSE:
        break
  reason = os.strerror(problem.errno or 0) if problem else 'no such host'
  raise PartnerError(
    f'--coordinator={place.coordinator}: process 0 cannot listen there ({reason}). Name an address '
    'of the host of process 0 and a free port, and start one process alone with --process_id=0.'
  ) from problem


def _addresses(host: str, port: int, named: bool) -> list[tuple[int, str]]:
  """Returns families and addresses of a host, externally reachable ones first."""
  try:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  except OSError:
    return []
  addresses = [(int(family), str(address[0])) for family, *_, address in found]
  local = [ipaddress.ip_address(a.partition('%')[0]).is_loopback for _, a in addresses]
  if all(local) and not named and host != 'localhost' and host not in {a for _, a in addresses}:
    # Some systems resolve their own host name to loopback, unlike other hosts.
    if socket.has_dualstack_ipv6():
      return [(socket.AF_INET6, '::')]
    return [(socket.AF_INET, '0.0.0.0')]
  return sorted(set(addresses), key=lambda a: local[addresses.index(a)])


def _host_port(address: str, port: int) -> str:
  return f'[{address}]:{port}' if ':' in address else f'{address}:{port}'


def _send(wire: socket.socket, **said: Any) -> None:
  with contextlib.suppress(OSError):  # the reading thread notices a closed connection
    wire.sendall(json.dumps({_MARK: 1, **said}).encode() + b'\n')


def _received(file: Any) -> dict | None:
  """Returns the next message, or None at the end of the connection."""
  try:
    said = json.loads(file.readline(_LONGEST))
  except (OSError, ValueError, RecursionError):
    return None
  return said if isinstance(said, dict) and _MARK in said else None


def _difference(mine: Mapping[str, str], others: Mapping[str, str], who: str) -> str:
  """Returns the first fact that differs, with both values; '' if all are the same."""
  for key in [*mine, *(key for key in others if key not in mine)]:
    one, other = mine.get(key), others.get(key)
    if one != other:
      values = [shown(json.loads(text)) if text else 'absent' for text in (one, other)]
      return (
        f'{key} is {values[0]} in process 0, {values[1]} in {who}; must be the same in all. Start '
        'them with one command and one installation.'
      )
  return ''
