"""Tests client and harness on endpoints that withhold, miscount, drip, echo or end."""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import time
from typing import Any

import micro_run
import numpy as np
import pytest
import scripted_teams
from raw_endpoint import drips, endless, http, reply, replying, sends, serve

from agent_gspo.apps.commands import evaluation_folder
from agent_gspo.apps.reporting import tables
from agent_gspo.evaluation import harness, probes, variants
from agent_gspo.evaluation.options import EvaluationOptions
from agent_gspo.teams import endpoint
from agent_gspo.teams.rollout import rollout
from agent_gspo.types import Question

TOKENIZER = scripted_teams.byte_tokenizer()
ONE = scripted_teams.team('single', opening='{question}', cue='', max_message_tokens=40)
KEY = 'sk-Secret-0123456789'


def policy(url: str, **options) -> endpoint.EndpointPolicy:
  options = {'retries': 0, 'timeout_s': 5.0, 'deadline_s': 10.0, **options}
  return endpoint.EndpointPolicy(url, 'm', TOKENIZER, 0.0, **options)


def asked(speaker: endpoint.EndpointPolicy, text: str = 'How many?'):
  """Returns the message of an endpoint for a question."""
  question = Question('q', text, '3')
  return rollout(ONE, scripted_teams.Echo(), TOKENIZER, [question], 1, speaker).messages[0]


def said(found: Any, status: int = 200, **options):
  with replying(lambda prompt: (status, found)) as (url, _):
    return asked(policy(url, **options))


def with_message(found: dict, **fields) -> dict:
  found['choices'][0]['message'] |= fields
  return found


# Silence


def test_empty_text_that_ended_by_itself_is_silence():
  found = with_message(reply(''), refusal=None, tool_calls=[], reasoning_content='')
  found['usage']['completion_tokens'] = 0
  message = said(found)
  assert (message.silent, message.ended, message.written) == (True, True, 0)


@pytest.mark.parametrize(
  ('found', 'named'),
  [
    (reply(None), r"finish_reason 'stop', content None\)"),
    (reply(None, 'content_filter'), "'content_filter'"),
    (with_message(reply(None, 'tool_calls'), tool_calls=[{'id': 'c'}]), 'with tool_calls'),
    (with_message(reply(''), refusal='I cannot'), 'with refusal'),
    (with_message(reply(''), function_call={'name': 'f'}), 'with function_call'),
    (with_message(reply(''), reasoning_content='Hm'), 'with reasoning_content'),
    (with_message(reply(None, 'length'), reasoning='Hm'), r'Raise team\.max_message_tokens'),
    (reply('', 'length'), "finish_reason 'length'"),
    (reply('', None), 'finish_reason None'),
    (reply('It is', 'content_filter'), "content 'It is'"),
    (reply('It is', 'error'), "finish_reason 'error'"),
  ],
)
def test_a_withheld_reply_is_not_silence(found, named):
  with pytest.raises(endpoint.RefusedError, match=named):
    said(found)


def test_a_reply_that_stays_withheld_is_not_paid_for_again():
  with replying(lambda prompt: (200, reply(None, 'content_filter'))) as (url, prompts):
    with pytest.raises(endpoint.RefusedError):
      asked(policy(url, retries=4))
    assert len(prompts) == 1


def test_a_page_in_place_of_a_reply_is_asked_for_again():
  found = iter([{'error': 'busy'}, [], reply()])
  with replying(lambda prompt: (200, next(found))) as (url, prompts):
    assert asked(policy(url, retries=4)).text == 'It is 3.'
    assert len(prompts) == 3


# Malformed replies


def _reset(connection: socket.socket) -> None:
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
  connection.close()


_BODY = json.dumps(reply()).encode()
_HEAD = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n'
_CHUNKED = _HEAD + b'Transfer-Encoding: chunked\r\n\r\n'
_CUT = http(_BODY)[:-30]
_CHOICE = reply()['choices'][0]
_WIRES = {
  'nothing': lambda connection: None,
  'a reset': _reset,
  'never': lambda connection: time.sleep(3),
  'a cut body': sends(_CUT),
  'a reset in the body': sends(_CUT, _reset),
  'a body that stops': sends(_CUT, lambda connection: time.sleep(3)),
  'a dripping head': drips(http(_BODY)),
  'an endless head': endless(_HEAD, b'X-A: b\r\n'),
  'an endless line': endless(_HEAD + b'X-A: ', b'b' * 999),
  'an endless body': endless(_HEAD + b'\r\n', b' ' * 65536),
  'endless interim replies': endless(b'', b'HTTP/1.1 103 Early\r\n\r\n'),
  'bad chunks': sends(_CHUNKED + b'zz\r\n' + _BODY),
  'no gzip': sends(http(_BODY, Content_Encoding='gzip')),
  'a gzip bomb': sends(http(gzip.compress(b' ' * 10**8), Content_Encoding='gzip')),
  'a body longer than its length': sends(http(_BODY, Content_Length=5)),
  'no HTTP': sends(b'SSH-2.0-x\r\n'),
}
_BODIES = (
  None, [], 3, {}, {'detail': 'no'}, {'error': 'busy'}, reply(error={'message': f'bad key {KEY}'}),
  *(reply(choices=x) for x in (None, [], {}, [None], [_CHOICE, _CHOICE])),
  *(reply(choices=[{**_CHOICE, 'message': x}]) for x in (None, 'x')),
  *(reply(usage=x) for x in (None, [], {'total_tokens': 12})),
  *(reply(x) for x in (7, {}, [], ['x'])),
)  # fmt: skip
_PAGES = (b'', b'<html>busy</html>', b'[' * 99999, b'\xff\xfe', b'1' * 9999, KEY.encode() * 9)


@pytest.mark.parametrize(
  'wire',
  [
    *(pytest.param(wire, id=name) for name, wire in _WIRES.items()),
    *(pytest.param(sends(http(json.dumps(x).encode())), id=str(x)[:70]) for x in _BODIES),
    *(pytest.param(sends(http(x, Content_Type='text/html')), id=repr(x[:9])) for x in _PAGES),
  ],
)
def test_malformed_replies_end_in_a_short_error_in_time(wire):
  start = time.monotonic()
  with pytest.raises(endpoint.EndpointError) as told:
    asked(policy(serve(lambda prompt: wire), timeout_s=0.5, deadline_s=1.0, api_key=KEY))
  assert time.monotonic() - start < 10
  assert len(str(told.value)) < 600
  assert KEY not in str(told.value)


@pytest.mark.parametrize(
  'data',
  [
    _CHUNKED + b'%x\r\n%s\r\n0\r\n\r\n' % (len(_BODY), _BODY),
    http(gzip.compress(_BODY), Content_Encoding='gzip'),
    http(b'\xef\xbb\xbf' + _BODY),
    http(_BODY, Content_Type='text/plain'),
  ],
  ids=['chunks', 'gzip', 'byte order mark', 'plain text'],
)
def test_a_reply_may_come_in_other_forms(data):
  assert asked(policy(serve(lambda prompt: sends(data)))).text == 'It is 3.'


# Counts


@pytest.mark.parametrize('field', ['prompt_tokens', 'completion_tokens'])
@pytest.mark.parametrize('count', [-4, 2**40, 0, True, '10', 10.5, None, 1e30, float('nan'), 2**31])
def test_impossible_token_counts_are_refused(field, count):
  found = reply()
  found['usage'][field] = count
  with pytest.raises(
    endpoint.EndpointError, match=rf'usage\.{field} is .*; must be a whole number'
  ):
    said(found)


# Time, place, secrets


def test_a_dripping_reply_is_given_up():
  url = serve(lambda prompt: drips(http(json.dumps(reply()).encode())))
  start = time.monotonic()
  with pytest.raises(endpoint.EndpointError, match=r'no whole reply within 1 s'):
    asked(policy(url, deadline_s=1.0, retries=4))
  assert time.monotonic() - start < 3


def test_a_question_is_not_sent_elsewhere():
  seen = []
  there = serve(seen.append)
  redirect = http(b'', '307 X', Location=f'{there}/chat/completions')
  with pytest.raises(endpoint.EndpointError, match='status 307: it redirects elsewhere'):
    asked(policy(serve(lambda prompt: sends(redirect))))
  assert not seen


@pytest.mark.parametrize('status', [200, 400, 401, 500])
@pytest.mark.parametrize('before', ['', 'x' * 230 + ' '])  # where a long message is cut
def test_the_key_is_in_no_message(status, before):
  found = {'error': {'message': f'{before}Incorrect API key: {KEY} \x1b[2J'}}
  with pytest.raises(endpoint.EndpointError) as told:
    said(found, status, api_key=KEY)
  assert KEY[:8] not in str(told.value)
  assert '\x1b' not in str(told.value)
  assert told.value.__cause__ is None


def test_the_key_is_in_no_transcript():
  assert said(reply(f'Bearer {KEY}'), api_key=KEY).text == 'Bearer [api_key]'
  assert KEY not in repr(policy('http://x/v1', api_key=KEY))


@pytest.mark.parametrize(
  'address',
  [
    'http://user:hunter2@host/v1',
    'http://hunter2@host/v1',
    'https://host/v1?api_key=hunter2',
    'https://host/v1#hunter2',
    'https://host/hunter2?',
    'https://host/v1&api_key=hunter2',
    'https://user%3Ahunter2%40host/v1',
    'https://user:hunter2@[::1',
    'https://user:hunter2/x@host/v1',
    'user:hunter2@host/v1',
    'http://host\\@hunter2',
    'http://host /hunter2',
    'http://a..b/hunter2',
    'ftp://host/hunter2',
    'host/hunter2',
    'http:///hunter2',
    'http://host:hunter2/v1',
    'http://\u200bhost/hunter2',
    '\nhttp://host/hunter2',
  ],
)
def test_an_address_with_credentials_is_refused_and_not_shown(address):
  with pytest.raises(ValueError, match=r'^--endpoint .*must be') as told:
    policy(address)
  assert 'hunter2' not in str(told.value)


def test_a_key_in_the_path_is_refused():
  with pytest.raises(ValueError, match='Give the key as OPENAI_API_KEY'):
    policy(f'https://host/{KEY}/v1', api_key=KEY)


@pytest.mark.parametrize('address', ['http://host', 'https://host:8080/v1/', 'http://[::1]:9/v1'])
def test_plain_addresses_are_taken(address):
  assert policy(address).base_url == address


@pytest.mark.parametrize('key', ['sk-hunter2\n', 'sk hunter2', 'sk-hunter2\u2026'])
def test_a_key_that_no_header_holds(key):
  with pytest.raises(ValueError, match='OPENAI_API_KEY') as told:
    policy('http://x/v1', api_key=key)
  assert 'hunter2' not in str(told.value)


# The harness


class _Task(scripted_teams.Echo):
  """Has twenty questions."""

  def questions(self, split):
    return [Question(f'q{i}', f'number {i:02}?', '3') for i in range(20)]

  def score(self, question, answer_text):
    return float(answer_text == 'It is 3.')


def evaluation(url: str, answers=None, **options) -> harness.Harness:
  options = {'team': ONE, **options}
  return harness.Harness(
    task=_Task(),
    tokenizer=TOKENIZER,
    policy=lambda temperature, stream: policy(url),
    options=EvaluationOptions(questions=20),
    answers=answers or harness.Answers(),
    alone=4,
    **options,
  )


def refusing(*numbers: int, status: int = 400):
  """Refuses the questions of these numbers."""

  def answer(prompt: str):
    number = int(re.search(r'number (\d+)', prompt)[1])
    return (status, {'error': 'policy'}) if number in numbers else (200, reply())

  return answer


def test_a_question_fails_by_itself_and_is_asked_again_later():
  answers = harness.Answers()
  with replying(refusing(3, 17)) as (url, prompts):
    figures, records = evaluation(url, answers).run('team', variants.itself(ONE))
    assert len(prompts) == 20
    assert len(records) == figures['questions'] == 18
    assert figures['failed'].keys() == {'q3', 'q17'}
    assert all('BadRequestError: status 400' in reason for reason in figures['failed'].values())
    assert (figures['task/accuracy'], figures['task/accuracy_over_all']) == (1.0, 0.9)
    assert figures['comm/silence_rate'] == 0
  with replying(refusing()) as (url, prompts):
    again, _ = evaluation(url, answers).run('team', variants.itself(ONE))
    assert sorted(prompts) == ['number 03?', 'number 17?']
  assert (again['questions'], 'failed' in again) == (20, False)
  for table in (tables.evaluation_table(figures), tables.comparison_table([figures, again])):
    shown = tables.render_text(table, 200)
    assert 'failed' in shown
  assert '90.0 %' in tables.render_text(tables.evaluation_table(figures))
  assert 'failed' not in tables.render_text(tables.evaluation_table(again))


@pytest.mark.parametrize('status', [400, 401, 500])
def test_an_evaluation_is_given_up_after_failures_in_a_row(status):
  with replying(refusing(*range(20), status=status)) as (url, prompts):
    with pytest.raises(endpoint.EndpointError, match=rf'10 conversations in a row.*{status}'):
      evaluation(url).run('team', variants.itself(ONE))
    time.sleep(0.2)
    assert len(prompts) <= 10 + endpoint.EndpointPolicy.parallel  # and those under way; of 20


def test_an_endpoint_that_ends_is_given_up_and_what_it_answered_is_kept():
  answers = harness.Answers()
  with replying(refusing(*range(5, 20), status=503)) as (url, _):
    with pytest.raises(endpoint.EndpointError, match='10 conversations in a row'):
      evaluation(url, answers).run('team', variants.itself(ONE))
  with replying(refusing()) as (url, prompts):
    figures, _ = evaluation(url, answers).run('team', variants.itself(ONE))
    assert (figures['questions'], len(prompts)) == (20, 15)


def test_questions_that_are_always_refused_do_not_end_an_evaluation():
  answers = harness.Answers()
  with replying(refusing(*range(5, 20))) as (url, prompts):
    figures, _ = evaluation(url, answers).run('team', variants.itself(ONE))
    assert len(prompts) == 20
    again, _ = evaluation(url, answers).run('team', variants.itself(ONE))
    assert len(prompts) == 35
  assert figures['failed'].keys() == again['failed'].keys()


def test_answers_are_kept_as_they_come(tmp_path):
  def answer(prompt):
    if prompt == 'number 19?':  # until the others have been written
      deadline = time.monotonic() + 5
      while len((tmp_path / 'results.jsonl').read_text().splitlines()) < 19:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return 200, reply()

  folder = evaluation_folder.Folder(tmp_path, {'team': harness.describe(variants.itself(ONE))})
  with replying(answer) as (url, _):
    _, records = evaluation(url, folder).run('team', variants.itself(ONE))
  assert len(records) == 20


def test_probes_of_what_both_answered():
  team = scripted_teams.team('star', opening='{question}', cue='', max_message_tokens=40)
  with replying(refusing(6, 11)) as (url, _):
    run = evaluation(url, team=team)
    whole, records = run.run('team', variants.itself(team))
    rows = probes.run_all(run, whole, records)
  assert len(records) == 18
  by_name = {row['probe']: row for row in rows}
  # A question's messages go to its partner: with it the pair fails.
  assert by_name['messages shuffled']['failed'].keys() == {'q6', 'q7', 'q10', 'q11'}
  assert by_name['messages blanked']['failed'].keys() == {'q6', 'q11'}
  assert by_name['messages shuffled']['task/accuracy_lost'] == 0


def test_training_questions_that_fail_teach_nothing():
  team = scripted_teams.team('star', opening='{question}', cue='', max_message_tokens=40)
  with replying(refusing(1, 2)) as (url, _):
    run = evaluation(url, team=team)
    graph = lambda mask: variants.pruned(team, np.flatnonzero(mask).tolist())
    masks = np.ones((4, len(variants.edges(team))), bool)
    with pytest.warns(UserWarning, match='a training question counts as wrong'):
      assert run.play(graph)(0, masks).tolist() == [1, 0, 0, 1]


# The command


def evaluated(*arguments: str):
  command = micro_run.command('evaluate', f'--config={micro_run.CONFIG}', '--baseline=', *arguments)
  return micro_run.run(command)


@pytest.mark.slow
def test_the_command_counts_and_names_what_failed(tmp_path, monkeypatch):
  monkeypatch.setenv('OPENAI_API_KEY', KEY)
  out, healed = tmp_path / 'out', False

  def answer(prompt):
    if prompt == prompts[0] and not healed:
      return 400, {'error': f'not this one, {KEY}'}
    return 200, reply('the answer is 1 .')

  with replying(answer) as (url, prompts):
    arguments = (
      f'--endpoint={url}',
      '--endpoint_model=far',
      f'--out={out}',
      '--config.budget.lambda_tok=0.0',
    )
    done = evaluated(*arguments)
    assert done.returncode == 1, done.stderr
    assert re.search(
      r'far: [1-9] questions failed \(.*\); the same command asks them again', done.stderr
    )
    assert 'questions that failed' in done.stdout
    first = json.loads((out / 'result.json').read_text())['evaluations'][0]
    assert first['failed']
    assert first['questions'] + len(first['failed']) == 4
    healed, before = True, len(prompts)
    done = evaluated(*arguments)
    assert done.returncode == 0, done.stderr
    assert 0 < len(prompts) - before <= 3 * len(first['failed'])
  figures, records = evaluation_folder.read(out)
  assert (figures['failed'], len(records)) == ([], 4)
  assert not [path for path in out.iterdir() if KEY in path.read_text()]


def test_credentials_in_the_address_reach_nothing(tmp_path):
  out = tmp_path / 'out'
  arguments = ('--endpoint=http://user:hunter2@127.0.0.1:1/v1', '--endpoint_model=far')
  done = evaluated(*arguments, f'--out={out}')
  assert done.returncode == 2
  assert re.fullmatch(r'error: --endpoint holds .* OPENAI_API_KEY\.\n', done.stderr)
  assert 'hunter2' not in done.stdout + done.stderr
  assert not out.exists()
