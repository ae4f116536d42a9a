"""Tests training and sampling through the server with the public `tinker` client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import micro_run
import numpy as np
import pytest
from served_team import Served, serving

from agent_gspo.config import check as config_lib
from agent_gspo.training import setup as setup_lib

httpx = pytest.importorskip('httpx')
tinker = pytest.importorskip('tinker')
tinker_api = pytest.importorskip('agent_gspo.apps.serving.tinker_api')

PROMPT, ANSWER = [5, 6, 7], [9, 3, 9, 4]


class _Model(Served):
  """Serves a team whose model can be adapted."""

  def __init__(self):
    super().__init__()
    setup = setup_lib.build(config_lib.check(micro_run.changed()))
    self.loaded = setup, setup.params


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('weights')


@pytest.fixture(scope='module')
def service(folder):
  with serving(_Model(), tinker=str(folder)) as address:
    client = tinker.ServiceClient(base_url=address, api_key='tml-any')
    yield client
    client.close('success').result()


def _datum(**inputs):
  ids = PROMPT + ANSWER
  weights = [0.0] * (len(PROMPT) - 1) + [1.0] * len(ANSWER)
  given = {'target_tokens': ids[1:], 'weights': weights, **inputs}
  return tinker.types.Datum(
    model_input=tinker.types.ModelInput.from_ints(ids[:-1]),
    loss_fn_inputs={name: np.asarray(x) for name, x in given.items() if x is not None},
  )


def _taught(service, steps: int = 40):
  """Trains as in the docstring of `TrainingClient`, with data and more steps."""
  training = service.create_lora_training_client(base_model='team', rank=8, seed=0).result()
  losses = []
  for _ in range(steps):
    forward_backward = training.forward_backward([_datum()], 'cross_entropy')
    step = training.optim_step(tinker.types.AdamParams(learning_rate=0.02))
    losses.append(forward_backward.result().metrics['loss:sum'])
    assert step.result().metrics['grad_norm:mean'] > 0
  return training, losses


@pytest.fixture(scope='module')
def taught(service):
  return _taught(service)


def _sample(client, count=1, **params):
  client = client.result()
  prompt = tinker.types.ModelInput.from_ints(PROMPT)
  given = tinker.types.SamplingParams(**{'max_tokens': len(ANSWER), 'stop': [], **params})
  return client.sample(prompt=prompt, num_samples=count, sampling_params=given).result()


def test_the_example_of_the_client_learns(taught):
  training, losses = taught
  assert losses[-1] < 0.1 * losses[0]
  assert training.get_info().lora_rank == 8
  client = training.save_weights_and_get_sampling_client()
  (sequence,) = _sample(client, temperature=0.0).sequences
  assert (sequence.tokens, sequence.stop_reason) == (ANSWER, 'length')
  (sequence,) = _sample(client, temperature=0.0, stop=[3]).sequences
  assert (sequence.tokens, sequence.stop_reason) == (ANSWER[:2], 'stop')


def test_samples_follow_the_seed_and_have_the_trainers_log_probs(service, taught):
  training, _ = taught
  client = training.save_weights_and_get_sampling_client()
  one, again = (_sample(client, 3, seed=7, temperature=1.0).sequences for _ in range(2))
  assert [x.tokens for x in one] == [x.tokens for x in again]
  assert len({x.sequence_id for x in one}) == 3
  for sequence in one:
    whole = tinker.types.ModelInput.from_ints(PROMPT + sequence.tokens)
    scored = client.result().compute_logprobs(whole).result()
    assert scored[0] is None
    np.testing.assert_allclose(scored[len(PROMPT) :], sequence.logprobs, atol=1e-5)
    datum = _datum(target_tokens=PROMPT[1:] + sequence.tokens)
    datum = tinker.types.Datum(
      tinker.types.ModelInput.from_ints((PROMPT + sequence.tokens)[:-1]), datum.loss_fn_inputs
    )
    found = training.forward([datum], 'cross_entropy').result()
    np.testing.assert_allclose(
      found.loss_fn_outputs[0]['logprobs'].to_numpy(), scored[1:], atol=1e-5
    )
  untouched = service.create_sampling_client(base_model='team')
  assert _sample(untouched, temperature=0.0).sequences[0].tokens != ANSWER


def test_policy_losses_start_at_a_ratio_of_1(taught):
  training, _ = taught
  logprobs = training.forward([_datum()], 'cross_entropy').result().loss_fn_outputs[0]['logprobs']
  datum = _datum(
    logprobs=logprobs.to_numpy(),
    advantages=np.full(len(logprobs.to_numpy()), 2.0, np.float32),
    weights=None,
  )
  for name in ('importance_sampling', 'ppo'):
    found = training.forward([datum], name).result()
    assert found.metrics['loss:sum'] == pytest.approx(-2.0 * len(logprobs.to_numpy()), rel=1e-5)
  with pytest.raises(tinker.BadRequestError, match=r"loss_fn_config\['beta'\]=None must be"):
    training.forward([datum], 'dro').result()


def test_saved_state_goes_on_where_it_was(service, taught, folder):
  training, _ = taught
  path = training.save_state('half-way').result().path
  again = service.create_training_client_from_state_with_optimizer(path).result()
  for client in (training, again):
    client.forward_backward([_datum()], 'cross_entropy').result()
    client.optim_step(tinker.types.AdamParams(learning_rate=0.02)).result()
  scores = [c.forward([_datum()], 'cross_entropy').result().metrics for c in (training, again)]
  assert scores[0] == scores[1]
  with pytest.raises(tinker.RequestFailedError, match='half-way exists'):
    training.save_state('half-way').result()
  saved = training.save_weights_for_sampler('v0.1').result().path
  training.save_weights_for_sampler('v0.2').result()
  with pytest.raises(tinker.RequestFailedError, match='no optimizer state'):
    service.create_training_client_from_state_with_optimizer(saved).result()
  client = service.create_sampling_client(model_path=saved)
  assert _sample(client, temperature=0.0).sequences[0].tokens == ANSWER
  assert len(list(folder.rglob('*.safetensors'))) == 3


def test_a_loss_of_the_clients_own_is_differentiated_by_the_server(service):
  pytest.importorskip('torch')
  training = service.create_lora_training_client(base_model='team', rank=2, seed=1).result()

  def squared(data, logprobs):
    return sum((x**2).sum() for x in logprobs), {}

  before = training.forward_backward_custom([_datum()], squared).result()
  training.optim_step(tinker.types.AdamParams(learning_rate=0.01)).result()
  after = training.forward_backward_custom([_datum()], squared).result()
  total = lambda found: sum((x['logprobs'].to_numpy() ** 2).sum() for x in found.loss_fn_outputs)
  assert total(after) < total(before)


@pytest.mark.parametrize(
  ('ask', 'error'),
  [
    (
      lambda t: t.forward([_datum()], 'gspo'),
      r"loss_fn='gspo' must be one of cross_entropy, .*custom",
    ),
    (lambda t: t.forward([_datum(weights=None)], 'cross_entropy'), r"'weights'\] is missing"),
    (lambda t: t.forward([_datum(weights=[1.0])], 'cross_entropy'), 'must hold 6 finite numbers'),
    (lambda t: t.forward([_datum(target_tokens=[10**6] * 6)], 'cross_entropy'), 'ids of the vocab'),
    (lambda t: t.forward([_datum(target_tokens=[1.5] * 6)], 'cross_entropy'), 'integers of 0 to'),
    (lambda t: t.forward([_datum()], 'cross_entropy', {'beta': 1.0}), 'no such option'),
    (
      lambda t: t.optim_step(tinker.types.AdamParams(learning_rate=-1)),
      'learning_rate=-1.*0 or more',
    ),
    (lambda t: t.optim_step(tinker.types.AdamParams(eps=1e39)), r'eps=1e\+39 .* below inf'),
    (lambda t: t.optim_step(tinker.types.AdamParams(beta1=1)), 'beta1=1.*and below 1 '),
    (lambda t: t.optim_step(tinker.types.AdamParams(beta2=1 - 1e-12)), 'beta2=.*and below 1 '),
    (lambda t: t.optim_step(tinker.types.AdamParams(eps=1e-50)), 'eps=1e-50 must be above 0'),
    (lambda t: t.optim_step(tinker.types.AdamParams()), 'call forward_backward before'),
    (
      lambda t: t.forward([_datum()], 'ppo', {'clip_low_threshold': 'x'}),
      'must be a finite number',
    ),
    (lambda t: t.save_state('../../x'), r'path=.* must be tinker://'),
  ],
)
def test_unsupported_training_requests_are_refused(service, ask, error):
  training = service.create_lora_training_client(base_model='team', rank=1).result()
  with pytest.raises((tinker.BadRequestError, tinker.RequestFailedError), match=error):
    ask(training).result()


@pytest.mark.parametrize(
  ('params', 'error'),
  [
    ({'top_p': 0.9}, 'top_p=0.9 must be 1'),
    ({'max_tokens': 10**6}, 'the room after the prompt'),
    ({'stop': ['answer answer']}, 'must be one token'),
    *(({'stop': [3, id_]}, 'stop must hold ids of the vocab') for id_ in (-1, 999_999, 2**40)),
    ({'temperature': 1e38}, r'temperature=1e\+38 must be 0 to 1e37'),
  ],
)
def test_sampling_that_is_not_offered_is_refused(service, params, error):
  client = service.create_sampling_client(base_model='team')
  with pytest.raises(tinker.BadRequestError, match=error):
    _sample(client, **params)


@pytest.mark.parametrize('params', [{'stop': [True]}, {'stop': [3, True]}, {'max_tokens': True}])
def test_booleans_are_not_numbers(folder, params):
  with serving(_Model(), tinker=str(folder)) as address:
    body = {'prompt': {'chunks': [{'type': 'encoded_text', 'tokens': PROMPT}]}}
    body |= {'sampling_session_id': 'any', 'seq_id': 0, 'sampling_params': params}
    answer = httpx.post(f'{address}/api/v1/asample', json=body)
  assert (answer.status_code, 'should be a valid' in answer.text) == (400, True)


def test_a_client_keeps_the_adapters_that_it_used_last(service, monkeypatch):
  monkeypatch.setattr(tinker_api, '_SNAPSHOTS', 2)
  training = service.create_lora_training_client(base_model='team', rank=1, seed=2**63).result()
  saved = lambda: training.save_weights_and_get_sampling_client()
  untouched = service.create_sampling_client(base_model='team')
  path = training.save_weights_for_sampler('mine').result().path
  used, unused = saved(), saved()
  for _ in range(2):
    _sample(used)
    newest = saved()
    _sample(newest)
  loaded = []
  for _ in range(3):
    loaded.append(service.create_sampling_client(model_path=path))
    loaded[-1].result()  # those that wait together arrive in any order
  for client in (used, newest, untouched, *loaded[1:]):
    assert _sample(client).sequences
  for client in (unused, loaded[0]):
    with pytest.raises(tinker.NotFoundError, match='is unknown: save again'):
      _sample(client)


def test_a_sampler_that_is_asked_for_again_takes_the_place_of_no_other(folder, monkeypatch):
  monkeypatch.setattr(tinker_api, '_SNAPSHOTS', 2)
  with serving(_Model(), tinker=str(folder)) as address:
    post = lambda path, body: httpx.post(f'{address}/api/v1/{path}', json=body).json()
    client = tinker.ServiceClient(base_url=address, api_key='tml-any')
    training = client.create_lora_training_client(base_model='team', rank=1, seed=0).result()
    first = training.save_weights_and_get_sampling_client()
    save = {'model_id': training.get_info().model_id, 'seq_id': 99, 'sampling_session_seq_id': 99}
    for _ in range(2):
      promised = post('save_weights_for_sampler', save)
      post('retrieve_future', {'request_id': promised['request_id']})
    assert _sample(first).sequences
    path = training.save_weights_for_sampler('mine').result().path
    body = {'session_id': 'any', 'model_path': path}
    create = lambda i: post('create_sampling_session', body | {'sampling_session_seq_id': i})
    made = [create(0)]
    with ThreadPoolExecutor(8) as pool:
      made += pool.map(create, [1] * 8)
    ids = {answer['sampling_session_id'] for answer in made}
    assert len(ids) == 2
    for id_ in ids:
      assert httpx.get(f'{address}/api/v1/samplers/{id_}').status_code == 200
    client.close('success').result()


def test_another_model_is_not_served(service):
  with pytest.raises(tinker.NotFoundError, match="base_model='other' is not served; 'team' is"):
    service.create_lora_training_client(base_model='other').result()


def test_a_request_that_is_sent_again_is_not_run_again(folder):
  model = _Model()
  with serving(model, tinker=str(folder)) as address:
    client = tinker.ServiceClient(base_url=address, api_key='tml-any')
    training = client.create_lora_training_client(base_model='team', rank=1, seed=0).result()
    training.forward_backward([_datum()], 'cross_entropy').result()
    step = {'model_id': training.get_info().model_id, 'seq_id': 99, 'adam_params': {}}
    post = lambda path, body: httpx.post(f'{address}/api/v1/{path}', json=body).json()
    (id_,) = {post('optim_step', step)['request_id'] for _ in range(2)}
    for _ in range(2):  # without a gradient a second step would fail
      assert post('retrieve_future', {'request_id': id_})['metrics']
    client.close('success').result()
    assert 'is unknown; create it' in post('optim_step', step)['error']['message']


def test_the_api_key_is_that_of_the_client(folder):
  with serving(_Model(), tinker=str(folder), api_key='tml-secret') as address:
    with pytest.raises(tinker.AuthenticationError, match='missing or wrong'):
      tinker.ServiceClient(base_url=address, api_key='tml-any').create_sampling_client(
        base_model='team'
      ).result()
    client = tinker.ServiceClient(base_url=address, api_key='tml-secret')
    assert client.create_sampling_client(base_model='team').result()
