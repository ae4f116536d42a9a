"""Checks that processes of a run meet, or all learn which one is missing or differs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

import micro_run
import pytest
import several_processes

from agent_gspo.sharding import partners, places

_FACTS = {'jax': '0.10.2', 'code': 'ab12', 'seed': 0, 'budget': {'lambda_tok': 0.02}}


def _meet(place: places.Place, facts, seconds=10.0, problem='') -> str:
  """Returns the error of a process, '' if it meets the others."""
  try:
    partners.Partners(place).meet(facts, seconds, problem)
  except ValueError as error:
    return str(error)
  return ''


def _all_meet(told: list[dict], **options) -> list[str]:
  """Returns the error of each process, given its facts."""
  address = f'127.0.0.1:{several_processes.free_port()}'
  those = [places.Place(address, len(told), index) for index in range(len(told))]
  with concurrent.futures.ThreadPoolExecutor() as pool:
    return [*pool.map(lambda place, facts: _meet(place, facts, **options), those, told)]


@pytest.mark.parametrize('count', [2, 3])
def test_processes_that_agree_meet(count):
  assert _all_meet([_FACTS] * count) == [''] * count


@pytest.mark.parametrize(
  ('other', 'line'),
  [
    ({**_FACTS, 'seed': 1}, 'seed is 0 in process 0, 1 in process 2 of 3; must be the same in all'),
    ({**_FACTS, 'budget': {'lambda_tok': 0.5}}, 'budget.lambda_tok is 0.02 in process 0, 0.5 in'),
    ({**_FACTS, 'budget': {}}, 'budget.lambda_tok is 0.02 in process 0, absent in process 2'),
    ({**_FACTS, 'code': 'cd34'}, "code is 'ab12' in process 0, 'cd34' in process 2 of 3"),
    ({**_FACTS, 'jax': '0.9'}, "jax is '0.10.2' in process 0, '0.9' in process 2 of 3"),
    ({**_FACTS, 'more': None}, 'more is absent in process 0, None in process 2 of 3'),
    ({**_FACTS, 'seed': False}, 'seed is 0 in process 0, False in process 2 of 3'),
    ({**_FACTS, 'seed': float('nan')}, 'seed is 0 in process 0, nan in process 2 of 3'),
  ],
)
def test_all_hear_which_fact_differs(other, line):
  start = time.monotonic()
  found = _all_meet([_FACTS, _FACTS, other])
  assert time.monotonic() - start < 5
  assert all(line in text and '\n' not in text for text in found), found


def test_facts_that_are_equal_are_equal():
  odd = {'x': float('nan'), 'y': (1, 2), 'z': {}, 'path': object, '': None}
  assert _all_meet([odd, {**odd, 'y': [1, 2]}]) == ['', '']


@pytest.mark.parametrize('index', [0, 1])
def test_a_process_that_cannot_take_part_says_why(index):
  address = f'127.0.0.1:{several_processes.free_port()}'
  with concurrent.futures.ThreadPoolExecutor() as pool:
    bad = pool.submit(_meet, places.Place(address, 2, index), {}, 5.0, 'steps=-1 is wrong.')
    good = pool.submit(_meet, places.Place(address, 2, 1 - index), _FACTS)
  assert bad.result()
  assert 'steps=-1 is wrong.' in good.result()


def test_one_that_does_not_come_is_named_at_once(capsys):
  place = places.Place(f'127.0.0.1:{several_processes.free_port()}', 3, 0)
  line = _meet(place, _FACTS, 2.5)
  assert f'processes 1, 2 of 3 did not come to {place.coordinator} within 2.5 s' in line
  assert f'waiting for processes 1, 2 of 3 at {place.coordinator} (' in capsys.readouterr().err
  line = _meet(places.Place(place.coordinator, 3, 2), _FACTS, 2.5)
  assert 'process 0 of 3 at ' in line
  assert f'{place.coordinator} did not come within 2.5 s (Connection refused)' in line
  assert capsys.readouterr().err.startswith('waiting for process 0 of 3 at ')


@pytest.mark.parametrize('address', ['127.0.0.1', '0.0.0.0'])
def test_a_port_that_is_taken_is_one_line(address):
  with socket.create_server((address, 0)) as taken:
    place = places.Place(f'127.0.0.1:{taken.getsockname()[1]}', 2, 0)
    assert 'process 0 cannot listen there (Address already in use)' in _meet(place, _FACTS)


def test_two_first_processes_end_both(monkeypatch):
  monkeypatch.setattr(partners, '_LATE_SECONDS', 1.0)
  address = f'127.0.0.1:{several_processes.free_port()}'
  with concurrent.futures.ThreadPoolExecutor() as pool:
    found = [*pool.map(lambda _: _meet(places.Place(address, 2, 0), _FACTS, 9.0), range(2))]
  assert all('start one process alone with --process_id=0' in line for line in found), found


def test_two_processes_with_one_index_and_another_count(monkeypatch):
  monkeypatch.setattr(partners, '_LATE_SECONDS', 1.0)
  address = f'127.0.0.1:{several_processes.free_port()}'
  for others, line in (
    ([(3, 1), (3, 1)], 'two processes have --process_id=1; give each its own'),
    ([(3, 1), (4, 2)], '--num_processes is 3 in process 0, 4 in process 2'),
    ([(3, 1), (3, 5)], '--process_id=5 must be from 0 to 2'),
  ):
    those = [places.Place(address, n, index) for n, index in [(3, 0), *others]]
    with concurrent.futures.ThreadPoolExecutor() as pool:
      found = [*pool.map(lambda place: _meet(place, _FACTS), those)]
    assert all(line in text for text in found), found


def test_strangers_at_the_port_are_passed_over():
  address = f'127.0.0.1:{several_processes.free_port()}'
  with contextlib.ExitStack() as open_, concurrent.futures.ThreadPoolExecutor() as pool:
    first = pool.submit(_meet, places.Place(address, 2, 0), _FACTS)
    while True:
      try:
        silent = open_.enter_context(socket.create_connection(tuple(address.split(':'))))
        break
      except OSError:
        time.sleep(0.02)
    for said in (b'', b'GET / HTTP/1.1\r\n\r\n', b'[]\n', b'{"index": 1}\n', b'\xff' * 99):
      open_.enter_context(socket.create_connection(silent.getpeername())).sendall(said)
    assert [_meet(places.Place(address, 2, 1), _FACTS), first.result()] == ['', '']


def test_another_program_at_the_port_is_told(monkeypatch):
  monkeypatch.setattr(partners, '_ANSWER_SECONDS', 1.0)
  with socket.create_server(('127.0.0.1', 0)) as taken:
    address = f'127.0.0.1:{taken.getsockname()[1]}'
    line = _meet(places.Place(address, 2, 1), _FACTS)
    assert f'{address} is another program, or a process of a run under way' in line

    def answer():
      taken.accept()
      taken.accept()[0].sendall(b'HTTP/1.1 400 Bad Request\r\n\r\n')

    threading.Thread(target=answer, daemon=True).start()
    assert f'{address} is another program' in _meet(places.Place(address, 2, 1), _FACTS)


@pytest.mark.parametrize(
  'address', ['localhost', '127.0.0.1', 'localhost:', ':80', 'x:0', 'x:65536', 'x:y', 'x:-1']
)
def test_an_address_that_is_none_is_refused(address):
  with pytest.raises(ValueError, match='must be host:port, with a port from 1 to 65535'):
    places.find(address, 2, 0)


def test_an_address_of_another_host_is_refused():
  line = _meet(places.Place('192.0.2.1:4000', 2, 0), _FACTS)
  assert 'process 0 cannot listen there (Cannot assign requested address)' in line
  assert 'cannot listen there (no such host)' in _meet(places.Place('no.invalid:4000', 2, 0), {})


def test_process_0_listens_at_the_address_alone_that_it_is_named_by():
  port = several_processes.free_port()
  with partners._listen(places.Place(f'127.0.0.1:{port}', 2, 0)) as listener:
    assert listener.getsockname() == ('127.0.0.1', port)


# Argument: address, number of processes, index. Each says that it has met; the last of them ends
# as standard input says.
_PROCESS = """
import sys, time
from agent_gspo.sharding import partners, places
partners._GRACE_SECONDS = 1.0
address, count, index = sys.argv[1], *map(int, sys.argv[2:])
partners.meet(places.Place(address, count, index))
print('met', flush=True)
problem = sys.stdin.readline().strip()
if problem == 'well':
  partners.leave()
elif problem:
  partners.leave(problem)
  print('error:', problem, file=sys.stderr)
  partners.end_now(2)
else:
  time.sleep(60)
"""


def _processes(count: int) -> list[subprocess.Popen]:
  address = f'127.0.0.1:{several_processes.free_port()}'
  started = [
    subprocess.Popen(
      [sys.executable, '-c', _PROCESS, address, str(count), str(index)],
      env=micro_run.environment() | {'PYTHONPATH': str(micro_run.ROOT)},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for index in range(count)
  ]
  for process in started:
    assert process.stdout.readline() == 'met\n', process.communicate()
  return started


@pytest.mark.parametrize('ended', [0, 2])
@pytest.mark.parametrize('how', ['the disk is full', 'kill'])
def test_what_ends_one_process_ends_all_with_its_line(ended, how):
  started, start = _processes(3), time.monotonic()
  for process in started:
    if process is not started[ended]:
      process.stdin.write('\n')
      process.stdin.flush()
  if how == 'kill':
    started[ended].send_signal(signal.SIGKILL)
    how = 'it was killed, or its host is out of reach'
  else:
    started[ended].stdin.write(f'{how}\n')
    started[ended].stdin.flush()
  for index, process in enumerate(started):
    _, errors = process.communicate(timeout=30)
    if index != ended:
      assert errors == f'error: process {ended} of 3 ended: {how}\n'
      assert process.returncode == 2
  assert time.monotonic() - start < 15


def test_processes_that_end_alike_have_their_own_line_each():
  started = _processes(2)
  for process, problem in zip(started, ['no room here', 'no room there'], strict=True):
    process.stdin.write(f'{problem}\n')
    process.stdin.flush()
  ends = [process.communicate(timeout=30)[1] for process in started]
  assert ends == ['error: no room here\n', 'error: no room there\n']


def test_a_process_that_is_done_ends_no_other():
  started = _processes(2)
  ends = [process.communicate('well\n', timeout=30) for process in started]
  assert [process.returncode for process in started] == [0, 0], ends
