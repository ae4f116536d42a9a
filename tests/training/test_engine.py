"""Tests rollouts sampled by a server: ours, one with vLLM's protocol, faulty replies."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import re
import subprocess
import urllib.error
import urllib.request

import hypothesis
import hypothesis.strategies as st
import jax
import micro_run
import numpy as np
import pytest
import raw_endpoint
import run_comparison
import scripted_teams
import served_team

from agent_gspo.apps.commands.team_of_run import TeamOfRun
from agent_gspo.config import check as config_lib
from agent_gspo.models import lora
from agent_gspo.models.io import hf
from agent_gspo.sampling import keys
from agent_gspo.teams.endpoint import EndpointError
from agent_gspo.teams.engine import EnginePolicy
from agent_gspo.teams.policies import RefusedError, Turn
from agent_gspo.training import engine, loop, train_step
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.types import Question

TOKENIZER = scripted_teams.byte_tokenizer()
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@contextlib.contextmanager
def _served(tmp_path):
  """Yields the address of the micro run's untrained model, served by the command."""
  command = micro_run.command('serve', f'--config={micro_run.CONFIG}', '--engine', '--port=0')
  where = {'env': micro_run.environment(), 'cwd': tmp_path}
  with (
    (tmp_path / 'served.log').open('w') as log,
    subprocess.Popen(command, **where, stdout=subprocess.PIPE, stderr=log, text=True) as process,
  ):
    try:
      yield re.search(r'http://\S+', process.stdout.readline())[0]
    finally:
      process.terminate()


def _trained(workdir, monkeypatch, **values):
  """Trains two steps; returns the ids and the log-probs of all messages, and the metrics."""
  collect, ids, logprobs = train_step.collect, [], []

  def spied(*args):
    rollout, *more = collect(*args)
    ids.append([(m.prompt_ids.tolist(), m.token_ids.tolist()) for m in rollout.messages])
    logprobs.append(np.concatenate([m.logprobs for m in rollout.messages]))
    return rollout, *more

  with monkeypatch.context() as patch:
    patch.setattr(train_step, 'collect', spied)
    loop.train(micro_run.changed(steps=2, **values), workdir)
  return ids, np.concatenate(logprobs), run_comparison.records(workdir, 'metrics.jsonl')


@pytest.mark.slow
def test_a_run_through_our_server_writes_the_same_tokens(tmp_path, monkeypatch):
  direct = _trained(tmp_path / 'direct', monkeypatch)
  with _served(tmp_path) as address:
    far = _trained(tmp_path / 'far', monkeypatch, rollout__engine=f'{address}/v1#team')
  assert far[0] == direct[0]
  np.testing.assert_allclose(far[1], direct[1], atol=1e-5)
  for ours, theirs in zip(far[2], direct[2], strict=True):
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


@hypothesis.settings(deadline=None)
@hypothesis.given(seeds=st.lists(NUMBERS, min_size=1, max_size=4))
def test_keys_are_seeds_of_64_bits(seeds):
  assert keys.to_seeds(keys.of_seeds(seeds)) == seeds


def test_small_seeds_are_those_of_jax():
  np.testing.assert_array_equal(
    jax.random.key_data(keys.of_seeds([7]))[0], jax.random.key_data(jax.random.key(7))
  )


# Written by the fields and values that vllm-project/vllm@25cdfea checks and documents in
# tests/entrypoints/openai/test_return_token_ids.py and in the classes CompletionRequest and
# CompletionResponse (vllm/entrypoints/openai/completion/protocol.py): "token_ids" hold the stop
# token, of which "text" says nothing, and "stop_reason" names it.
SENT = {
  'model': 'm',
  'prompt': [72, 105],
  'temperature': 1.0,
  'max_tokens': 4,
  'stop_token_ids': [10, TOKENIZER.eos_id],
  'seed': -2,
  'ignore_eos': True,
  'top_p': 1.0,
  'top_k': -1,
  'min_p': 0.0,
  'repetition_penalty': 1.0,
  'logprobs': 1,
  'return_token_ids': True,
}
RECORDED = {
  'id': 'cmpl-5f0b2f6e6b0d4e4f8a4e8f1c0f6a7d3b',
  'object': 'text_completion',
  'created': 1764201600,
  'model': 'm',
  'choices': [
    {
      'index': 0,
      'text': 'ok',
      'logprobs': {
        'text_offset': [0, 1, 2],
        'token_logprobs': [-0.5, -1.25, -0.03125],
        'tokens': ['o', 'k', '\n'],
        'top_logprobs': [{'o': -0.5}, {'k': -1.25, 'h': -0.75}, {'\n': -0.03125}],
      },
      'finish_reason': 'stop',
      'stop_reason': 10,
      'token_ids': [111, 107, 10],
      'prompt_logprobs': None,
      'prompt_token_ids': [72, 105],
    }
  ],
  'service_tier': None,
  'system_fingerprint': None,
  'usage': {'prompt_tokens': 2, 'total_tokens': 5, 'completion_tokens': 3},
  'kv_transfer_params': None,
}
TURN = Turn(
  Question('q', '?', ''),
  sample=0,
  agent=0,
  round=0,
  prompt_ids=np.asarray([72, 105], np.int32),
  delivered={},
  limit=4,
  stop_ids=(10, TOKENIZER.eos_id),
)


def _policy(address, **options):
  of = lambda turns: keys.of_seeds([-2] * len(turns))
  return EnginePolicy(address, 'm', TOKENIZER, 1.0, row_keys=of, retries=0, **options)


def test_vllms_protocol():
  with raw_endpoint.replying(lambda sent: (200, RECORDED)) as (address, sent):
    (reply,) = _policy(address)([TURN])
  assert sent == [SENT]
  assert reply.token_ids.tolist() == [111, 107, 10]
  assert reply.logprobs.tolist() == [-0.5, -1.25, -0.03125]
  assert (reply.token_ids.dtype, reply.logprobs.dtype) == (np.int32, np.float32)
  assert (reply.ended, reply.usage, reply.learns) == (True, None, True)


def test_a_message_that_is_cut_at_its_limit_has_not_ended():
  cut = _choice(token_ids=[1, 2, 3, 4], token_logprobs=[-1] * 4, finish_reason='length')
  with raw_endpoint.replying(lambda sent: (200, cut)) as (address, _):
    (reply,) = _policy(address)([TURN])
  assert (reply.token_ids.tolist(), reply.ended) == ([1, 2, 3, 4], False)


def _choice(**fields):
  found = copy.deepcopy(RECORDED)
  choice = found['choices'][0]
  choice['logprobs']['token_logprobs'] = fields.pop('token_logprobs', [-0.5, -1.25, -0.03125])
  choice.update(fields)
  return found


@pytest.mark.parametrize(
  ('reply', 'error', 'told'),
  [
    (_choice(token_ids=None), EndpointError, '`token_ids` is None'),
    (_choice(token_ids=[]), EndpointError, r'`token_ids` is \[\]'),
    (_choice(token_ids=['o', 'k', 10]), EndpointError, 'must be ids of the vocabulary'),
    (_choice(token_ids=[111, 10**30, 10]), EndpointError, 'must be ids of the vocabulary'),
    (_choice(token_ids=[111, 7, 10]), EndpointError, 'must be ids of the vocabulary'),  # unsaid
    (_choice(logprobs=None), EndpointError, '`logprobs.token_logprobs` is None'),
    (_choice(token_logprobs=[-1, None, -1]), EndpointError, 'must be log-probs'),
    (_choice(token_logprobs=[-1, 0.5, -1]), EndpointError, 'must be log-probs'),
    (_choice(token_logprobs=[-1, float('nan'), -1]), EndpointError, 'must be log-probs'),
    (_choice(token_logprobs=[-1, -1]), EndpointError, '3 tokens with 2 log-probs'),
    (_choice(prompt_token_ids=[1, 72, 105]), EndpointError, 'another prompt'),
    (_choice(token_ids=[111, 10, 107]), EndpointError, 'neither cut at 4 nor ended'),
    (_choice(token_ids=[10, 107, 10]), EndpointError, 'neither cut at 4 nor ended'),
    (_choice(token_ids=[111, 107, 33]), EndpointError, 'neither cut at 4 nor ended'),
    (_choice(token_ids=[111, 107, 33], finish_reason='length'), EndpointError, 'neither cut'),
    (
      _choice(token_ids=[1, 2, 3, 4, 10], token_logprobs=[-1] * 5),
      EndpointError,
      'neither cut at 4 nor ended',
    ),
    (_choice(finish_reason='abort'), RefusedError, "broken off .finish_reason 'abort'"),
    (_choice(finish_reason='content_filter'), RefusedError, 'broken off'),
    (_choice(finish_reason=None), RefusedError, 'broken off'),
    ({'choices': []}, EndpointError, 'must be a list of one'),
  ],
)
def test_malformed_replies_are_named_errors(reply, error, told):
  with (
    raw_endpoint.replying(lambda sent: (200, reply)) as (address, _),
    pytest.raises(error, match=told) as raised,
  ):
    _policy(address, unsaid=((5, 9),))([TURN])
  assert raised.type is error


@pytest.mark.parametrize(
  ('values', 'told'),
  [
    ({'rollout__engine': 'http://x/v1'}, 'names no model; write http://x/v1#<its name>'),
    ({'rollout__engine': 'x#m'}, 'rollout.engine must be an address'),
    ({'rollout__engine': 'http://me:secret@x/v1#m'}, 'rollout.engine holds a user'),
    ({'rollout__publish': 'a:b'}, "set rollout.publish=''"),
    ({'rollout__engine': 'http://x/v1#m', 'rollout__publish': 'nowhere:f'}, 'cannot be imported'),
    ({'rollout__engine': 'http://x/v1#m', 'rollout__must_speak': 1}, 'rollout.must_speak=0'),
    (
      {'rollout__engine': 'http://x/v1#m', 'policy__sharing': 'adapters', 'model__lora_rank': 2},
      "Set policy.sharing='shared'",
    ),
  ],
)
def test_unsupported_options_are_refused_before_a_model_is_loaded(values, told, monkeypatch):
  monkeypatch.setattr(setup_lib, 'open_model', lambda *args, **options: pytest.fail('loaded'))
  with pytest.raises(ValueError, match=re.escape(told)):
    setup_lib.build(config_lib.check(micro_run.changed(**values)))


def _setup(**values):
  return setup_lib.build(config_lib.check(micro_run.changed(sft__steps=0, **values)))


def test_the_named_hook_gets_merged_weights_and_the_step(tmp_path, monkeypatch):
  (tmp_path / 'pushes.py').write_text('pushed = []\npush = lambda *given: pushed.append(given)\n')
  monkeypatch.syspath_prepend(tmp_path)
  options = {'engine': 'http://x/v1#m', 'publish': 'pushes:push'}
  setup = _setup(model__lora_rank=2, **{f'rollout__{k}': v for k, v in options.items()})
  state = setup_lib.init_state(setup, jax.tree.map(lambda x: x + 0.5, setup.params))
  other = {(state_lib.MEMBERS, 'solver', 'kernel'): np.zeros(3)}  # learns beside it
  state = dataclasses.replace(state, step=np.int32(3), trainable={**state.trainable, **other})
  engine.publish(setup, state)
  import pushes

  ((params, step),) = pushes.pushed
  assert step == 3
  whole = lora.merge_adapters(setup.model.config, jax.tree.map(lambda x: x + 0.5, setup.params))
  jax.tree.map(np.testing.assert_array_equal, params, whole)
  assert {np.asarray(x).dtype for x in jax.tree.leaves(params)} == {np.dtype(np.float32)}


class _Engine:
  """Serves a setup as the command serves a team."""

  load_weights = TeamOfRun.load_weights

  def __init__(self, setup):
    self.loaded = setup, setup.params


def _post(address, path, fields):
  """Returns status and text of a reply."""
  request = urllib.request.Request(
    f'{address}/v1{path}', json.dumps(fields).encode(), {'Content-Type': 'application/json'}
  )
  try:
    with urllib.request.urlopen(request, timeout=60) as found:
      return found.status, found.read().decode()
  except urllib.error.HTTPError as error:
    return error.code, error.read().decode()


@pytest.fixture(scope='module')
def small():
  setup = _setup()
  with served_team.serving(_Engine(setup), engine=True) as address:
    yield setup, address


GOOD = {'model': 'team', 'prompt': [5, 6], 'max_tokens': 3, 'stop_token_ids': [1]}


@pytest.mark.parametrize(
  ('path', 'fields', 'status', 'told'),
  [
    ('/completions', {'prompt': 'text'}, 400, "prompt='text' must be token ids"),
    ('/completions', {'prompt': []}, 400, 'must be token ids'),
    ('/completions', {'prompt': [[5]]}, 400, 'must be token ids'),
    ('/completions', {'prompt': [10**9]}, 400, 'must be token ids'),
    ('/completions', {'prompt': [5] * 4096}, 400, 'prompt has 4096 tokens'),
    ('/completions', {'stop_token_ids': []}, 400, 'stop_token_ids=[] must'),
    ('/completions', {'max_tokens': 5}, 400, 'max_tokens=5 must be 1 to 4'),
    ('/completions', {'temperature': -1}, 400, 'temperature=-1 must'),
    ('/completions', {'seed': 2**63}, 400, 'whole number of 64 bits'),
    ('/completions', {'top_p': 0.5}, 400, 'top_p=0.5: an engine gives top_p=1'),
    ('/completions', {'best_of': 2}, 400, 'best_of=2 must be left out'),
    ('/completions', {'model': 'other'}, 404, "the model 'other' is not served"),
    ('/weights', {'folder': '/nowhere', 'step': 1}, 400, '/nowhere'),
    ('/weights', {'folder': '/nowhere'}, 400, 'the body must be'),
  ],
)
def test_our_server_refuses_unsupported_requests(small, path, fields, status, told):
  _, address = small
  body = {**GOOD, **fields} if path == '/completions' else fields
  found, text = _post(address, path, body)
  assert (found, told in json.loads(text)['error']['message']) == (status, True), text


@pytest.mark.slow
def test_weights_of_another_model_are_refused_and_those_served_stay(small, tmp_path):
  _, address = small
  before = _post(address, '/completions', {**GOOD, 'seed': 4})
  assert before[0] == 200
  other = _setup(model__source='random:micro_moe')
  hf.export_hf(other.model.config, other.params, tmp_path)
  status, text = _post(address, '/weights', {'folder': str(tmp_path), 'step': 1})
  assert (status, 'holds another model' in text) == (400, True)
  assert _post(address, '/completions', {**GOOD, 'seed': 4}) == before


def test_without_the_flag_there_is_no_engine(small):
  setup, _ = small
  with served_team.serving(_Engine(setup)) as address:
    assert _post(address, '/completions', GOOD)[0] == 404
    assert _post(address, '/weights', {'folder': '/', 'step': 1})[0] == 404
