"""Tests teams behind an endpoint: our own server, and one that fails."""

from __future__ import annotations

import json

import micro_run
import numpy as np
import pytest
import scripted_teams
from raw_endpoint import reply, replying
from served_team import TOKENIZER, Served, serving

from agent_gspo.evaluation import evaluate
from agent_gspo.teams import endpoint
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.types import Question

QUESTIONS = [Question(f'q{i}', 'How many' + ' more' * i + '?', f'It is {i}.') for i in range(5)]
ONE = scripted_teams.team('single', opening='{question}', cue='', max_message_tokens=400)


class Debate(Served):
  """Answers with the number of words; two of three agents are silent at even numbers."""

  def say(self, turn):
    words = turn.question.text.count('more')
    if turn.agent == 2:
      return f'It is {words}.'
    return '' if words % 2 == 0 else 'many'

  def ask(self, questions, listener, *, temperature, max_tokens, begun):
    policy = ScriptedPolicy(self.say, TOKENIZER)
    batch = rollout(self.team, scripted_teams.Echo(), TOKENIZER, questions, 1, policy)
    return batch, [None]


def policy(address: str, **options) -> endpoint.EndpointPolicy:
  return endpoint.EndpointPolicy(address, 'team', TOKENIZER, 0.0, **options)


class _Graded(scripted_teams.Echo):
  def score(self, question, answer_text):
    return float(answer_text == question.answer)


def test_an_evaluation_through_the_endpoint_has_the_figures_of_the_direct_one():
  served = Debate()
  direct, _ = evaluate.evaluate(
    served.team, _Graded(), TOKENIZER, QUESTIONS, ScriptedPolicy(served.say, TOKENIZER)
  )
  with serving(served) as address:
    far, batch = evaluate.evaluate(ONE, _Graded(), TOKENIZER, QUESTIONS, policy(f'{address}/v1'))
  for figure in (
    'task/accuracy',
    'tokens/written_per_question',
    'tokens/written_per_question_high',
    'tokens/read_per_question',
  ):
    assert far[figure] == direct[figure], figure
  assert far['task/accuracy'] == 1.0
  assert [m.text for m in batch.messages] == [q.answer for q in QUESTIONS]
  assert all(m.ended and not m.silent for m in batch.messages)


def test_an_agent_reads_its_own_replies_as_text_between_separators(monkeypatch):
  sent = []

  async def reply(self, path, fields, read):
    sent.append(fields['messages'][0]['content'])
    return 'seven', True, (1, 1)

  monkeypatch.setattr(endpoint.EndpointPolicy, '_reply', reply)
  tokenizer = scripted_teams.byte_tokenizer()
  team = scripted_teams.team('debate', rounds=2)
  far = endpoint.EndpointPolicy('http://x/v1', 'm', tokenizer, 0.0, parallel=1)
  questions = scripted_teams.questions(1)
  batch = rollout(team, scripted_teams.Echo(), tokenizer, questions, 1, far)
  assert [m.text for m in batch.messages] == ['seven'] * 6
  assert '<|im_end|>' not in ''.join(sent)
  heard = 'from agent2 : seven\nfrom agent3 : seven\n'
  assert sent[3] == f'{sent[0]}seven\n{heard}say :'


@pytest.fixture
def flaky():
  """Yields an endpoint that rejects each request once and cuts off its reply."""
  seen = set()

  def answer(text):
    if 'never' in text:
      return 400, {'error': {'message': 'no such thing'}}
    if text not in seen:
      seen.add(text)
      return 503, {'error': {'message': 'busy'}}
    return 200, reply(f'{text}<|im_end|>', 'length')

  with replying(answer) as (url, _):
    yield url


def test_what_is_turned_away_is_asked_again_and_usage_is_what_counts(flaky):
  batch = rollout(ONE, scripted_teams.Echo(), TOKENIZER, QUESTIONS, 1, policy(flaky))
  assert len(batch.messages) == 5
  for message, question in zip(batch.messages, QUESTIONS, strict=True):
    assert message.text == f'{question.text}<|im_end|>'  # text, not the token
    assert (message.read, message.written, message.ended) == (9, 3, False)
    assert TOKENIZER.eos_id not in np.asarray(message.token_ids)


@pytest.mark.parametrize(
  ('cap', 'written', 'limits'),
  [
    (0, 4, [6, 6, 6]),
    (18, 4, [6, 6, 6]),
    (13, 4, [6, 6, 5]),
    (0, 20, [6, 6, 6]),  # a reply beyond its cap leaves the next agent's
    (18, 20, [6, 6]),  # none of the episode's is left
  ],
)
def test_caps_count_the_tokens_of_the_endpoint(monkeypatch, cap, written, limits):
  """Our tokenizer has many more tokens for the same text."""
  asked = []

  async def reply(self, path, fields, read):
    asked.append(fields['max_tokens'])
    return 'Mara has three pens.', True, (30, written)

  monkeypatch.setattr(endpoint.EndpointPolicy, '_reply', reply)
  tokenizer = scripted_teams.byte_tokenizer()
  team = scripted_teams.team(
    'star', max_message_tokens=6, max_episode_tokens=cap, cue='left {left} say :'
  )
  far = endpoint.EndpointPolicy('http://x/v1', 'm', tokenizer, 0.0, parallel=1)
  batch = rollout(team, scripted_teams.Echo(), tokenizer, QUESTIONS[:1], 1, far)
  assert asked == limits
  left = max((cap or 18) - 2 * written, 0)
  for message in batch.messages[2:]:
    assert tokenizer.decode(message.prompt_ids.tolist()).endswith(f'left {left} say :')


def test_partial_failure_is_told(flaky):
  asked = [*QUESTIONS, Question('bad', 'never', '')]
  with pytest.raises(
    endpoint.EndpointError, match=r"1 of 6 requests to 'team' failed, .*BadRequestError: .*no such"
  ):
    rollout(ONE, scripted_teams.Echo(), TOKENIZER, asked, 1, policy(flaky))


def test_an_unreachable_endpoint_is_an_error():
  with pytest.raises(endpoint.EndpointError, match=r'5 of 5 requests .*APIConnectionError'):
    rollout(
      ONE,
      scripted_teams.Echo(),
      TOKENIZER,
      QUESTIONS,
      1,
      policy('http://127.0.0.1:1/v1', retries=0, timeout_s=2.0),
    )


class _Known(Debate):
  """Says what the vocabulary of the micro run holds."""

  def say(self, turn):
    return 'the answer is 1 .' if turn.agent == 2 else ''


def _evaluated(*arguments: str):
  return micro_run.run(
    micro_run.command('evaluate', f'--config={micro_run.CONFIG}', '--baseline=', *arguments)
  )


def test_the_command_measures_a_team_that_is_elsewhere(tmp_path):
  with serving(_Known()) as address:
    done = _evaluated(
      f'--endpoint={address}/v1',
      '--endpoint_model=team',
      f'--out={tmp_path / "out"}',
      '--config.team.max_message_tokens=64',
      '--config.budget.lambda_tok=0.0',
    )
  assert done.returncode == 0, done.stderr
  record = json.loads((tmp_path / 'out' / 'result.json').read_text())['evaluations'][0]
  written = len(TOKENIZER.encode('the answer is 1 .'))
  assert record['label'] == 'team'
  assert record['tokens/written_per_question'] == 3 * written  # three agents, each that team
  assert record['comm/silence_rate'] == 0


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--endpoint=http://x/v1'], '--endpoint and --endpoint_model go together'),
    (['--endpoint_model=x'], '--endpoint and --endpoint_model go together'),
    (['--endpoint=x', '--endpoint_model=x', '--workdir=w'], 'leave out --workdir'),
    (['--endpoint=http://x/v1', '--dry_run'], '--endpoint and --endpoint_model go together'),
  ],
)
def test_flags_that_do_not_fit(arguments, message):
  done = _evaluated(*arguments)
  assert (done.returncode, message in done.stderr) == (2, True)


@pytest.mark.parametrize(
  ('role', 'message'),
  [
    ({'style': 'chat'}, "style='chat': an endpoint puts its own template"),
    ({'tools': ('calculator',)}, r"tools=\('calculator',\): an endpoint cannot be interrupted"),
  ],
)
def test_roles_that_an_endpoint_cannot_play(role, message):
  with pytest.raises(ValueError, match=message):
    endpoint.check(scripted_teams.team('single', **role).roles)
