"""Serves the protocol of the public `tinker` client: the training loop runs in the client.

    service = tinker.ServiceClient(base_url='http://127.0.0.1:8000', api_key='tml-any')
    training = service.create_lora_training_client(base_model='team', rank=8).result()

Each training client has a LoRA adapter of the served model. Requests are checked at once and run in
order; clients fetch the results by `retrieve_future`. A repeated request is not run again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import pathlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pydantic
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tinker import types
from tinker.proto import tinker_public_pb2 as proto

from agent_gspo.apps.serving import adapters, errors, requests
from agent_gspo.apps.serving.adapters import LOSSES, Adapter, Adapters, Datum
from agent_gspo.apps.serving.completions import MAX_BYTES, answer_json, body_of
from agent_gspo.apps.serving.errors import RequestError
from agent_gspo.apps.serving.guard import PROTOBUF
from agent_gspo.apps.serving.sample_queue import Ask, SampleQueue
from agent_gspo.sampling.categorical import HIGHEST
from agent_gspo.training import state as state_lib
from agent_gspo.values import shown

if TYPE_CHECKING:
  from agent_gspo.apps.commands.team_of_run import TeamOfRun

_WAIT_S = 20.0  # after which a waiting client must poll again
_KEPT = 4096  # results
_SNAPSHOTS = 32  # adapters to sample of each client, the last used
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_PATH = re.compile(r'tinker://([0-9a-f]+:train:\d+)/(weights|sampler_weights)/([\w.-]+)')
_NUMPY = {proto.DTYPE_FLOAT32: np.float32, proto.DTYPE_INT64: np.int64}
_CLIENT = {'parallel_fwdbwd_chunks': False, 'fwdbwd_max_chunk_bytes_count': MAX_BYTES // 2}
_NOT_ADAPTED = 'The unembedding has no adapter here: train_unembed changes nothing.'
# Fields of a request to sample that must keep these values.
_NEUTRAL = {
  'topk_prompt_logprobs': 0,
  'topk_sample_logprobs': 0,
  'target_prompt_logprobs': None,
  'prompt_alt_tokens_k': 0,
  'prompt_logprobs_last_n': None,
  'record_stability_info': None,
}

Result = bytes | dict[str, Any]


class TinkerApi:
  """Sessions, adapters and results of all clients of one served model."""

  def __init__(self, served: TeamOfRun, name: str, speaker: ThreadPoolExecutor, folder: str):
    """Prepares the protocol.

    Args:
      served: Team whose model is adapted.
      name: Name of the model.
      speaker: The one thread that uses the model.
      folder: Folder of saved weights.
    """
    self._served, self._name, self._speaker = served, name, speaker
    self._folder = pathlib.Path(folder)
    self._training: dict[str, Adapter] = {}
    self._sampling: dict[str, Adapter | None] = {}
    self._results: dict[str, asyncio.Future[Result]] = {}
    self._queue = SampleQueue(lambda *given, **options: self._adapters.sample(*given, **options))

  @functools.cached_property
  def _adapters(self) -> Adapters:
    setup, params = self._served.loaded
    if setup.placement.devices > 1:
      raise RequestError('the model lies on several devices; serve it on one, without a mesh.')
    return Adapters(setup.sampler.config, state_lib.without_members(params))

  def routes(self) -> list[Route]:
    """Returns the routes, all below `/api/v1`."""
    answers: dict[str, Callable[[Any], Awaitable[dict[str, Any]]]] = {
      'client/config': self._fixed(_CLIENT),
      'client/dynamic_config': self._fixed({}),
      'create_session': self._create_session,
      'session_heartbeat': self._fixed({'type': 'session_heartbeat'}),
      'telemetry': self._fixed({'status': 'accepted'}),
      'create_sampling_session': self._create_sampling_session,
      'create_model': self._create_model,
      'get_info': self._get_info,
      'weights_info': self._weights_info,
      'optim_step': self._optim_step,
      'asample': self._sample,
      'save_weights': self._save,
      'save_weights_for_sampler': self._save_for_sampler,
      'load_weights': self._load,
      'unload_model': self._unload,
    }
    posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
      name: functools.partial(answer_json, answer) for name, answer in answers.items()
    }
    posts |= {'forward_backward': self._forward_backward, 'retrieve_future': self._retrieve}
    found = [
      Route(f'/api/v1/{name}', functools.partial(errors.answered, post), methods=['POST'])
      for name, post in posts.items()
    ]
    models = {'supported_models': [{'model_name': self._name}]}
    for name, fixed in (('get_server_capabilities', models), ('healthz', {'status': 'ok'})):
      found.append(Route(f'/api/v1/{name}', lambda http, fixed=fixed: JSONResponse(fixed)))
    sampler, finish = (functools.partial(errors.answered, x) for x in (self._sampler, self._finish))
    found.append(Route('/api/v1/samplers/{id}', sampler))
    return [*found, Route('/api/v1/sessions/{id}/finish', finish, methods=['POST'])]

  @staticmethod
  def _fixed(found: dict[str, Any]) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def answer(body: Any) -> dict[str, Any]:
      return found

    return answer

  def _promise(self, id_: str, work: Callable[[], Result]) -> dict[str, Any]:
    """Queues work unless a request of this id did; returns the reference of its result."""
    if id_ not in self._results:
      running = asyncio.get_running_loop().run_in_executor(self._speaker, work)
      self._results[id_] = asyncio.ensure_future(running)
      done = [old for old, result in self._results.items() if result.done()]
      for old in done[: max(0, len(self._results) - _KEPT)]:
        del self._results[old]
    return {'request_id': id_}

  async def _retrieve(self, http: Request) -> Response:
    id_ = _parsed(types.FutureRetrieveRequest, requests.decode(await body_of(http))).request_id
    if id_ not in self._results:
      raise RequestError(f'no request {id_[:80]!r} is known; send it again.', status=410)
    try:
      found = await asyncio.wait_for(asyncio.shield(self._results[id_]), _WAIT_S)
    except TimeoutError:
      return JSONResponse({'type': 'try_again', 'request_id': id_, 'queue_state': 'active'})
    except Exception as error:
      message, status, _ = errors.of_fault(error)
      return JSONResponse({'error': message, 'category': 'user' if status < 500 else 'server'})
    return Response(found, media_type=PROTOBUF) if isinstance(found, bytes) else JSONResponse(found)

  async def _create_session(self, body: Any) -> dict[str, Any]:
    return {'session_id': secrets.token_hex(8), 'warning_message': _NOT_ADAPTED}

  async def _finish(self, http: Request) -> Response:
    """Forgets the adapters and results of a session."""
    held: tuple[dict[str, Any], ...] = (self._training, self._sampling, self._results)
    for of_all in held:
      for id_ in [x for x in list(of_all) if x.startswith(f'{http.path_params["id"]}:')]:
        del of_all[id_]
    return JSONResponse({})

  async def _create_model(self, body: Any) -> dict[str, Any]:
    request = _parsed(types.CreateModelRequest, body)
    self._check_model(request.base_model)
    if request.optimizer_config.type != 'adamw':
      raise RequestError(f'optimizer={request.optimizer_config.type!r} must be adamw.')
    lora = request.lora_config
    if lora is None or not (lora.train_attn and lora.train_mlp):
      raise RequestError('lora_config must adapt attention and MLP (train_attn, train_mlp).')
    if not 1 <= lora.rank <= self._served.loaded[0].sampler.config.embed_dim:
      raise RequestError(f'rank={lora.rank} must be 1 to the width of the model.', 'rank')
    id_ = f'{request.session_id}:train:{request.model_seq_id}'
    seed = secrets.randbits(31) if lora.seed is None else lora.seed % 2**63

    def work() -> Result:
      self._training[id_] = self._adapters.make(lora.rank, seed)
      return {'model_id': id_, 'type': 'create_model'}

    return self._promise(id_, work)

  async def _get_info(self, body: Any) -> dict[str, Any]:
    id_ = _parsed(types.GetInfoRequest, body).model_id
    return {
      'model_id': id_,
      'model_data': {'model_name': self._name},
      'model_name': self._name,
      'is_lora': True,
      'lora_rank': self._adapter(id_).config.lora_rank,
    }

  async def _unload(self, body: Any) -> dict[str, Any]:
    id_ = _parsed(types.UnloadModelRequest, body).model_id
    self._adapter(id_)

    def work() -> Result:
      self._training.pop(id_, None)
      return {'model_id': id_, 'type': 'unload_model'}

    return self._promise(f'{id_}:unload', work)

  async def _forward_backward(self, http: Request) -> Response:
    request = proto.ForwardBackwardRequest()
    try:
      request.ParseFromString(await body_of(http))
    except Exception as error:  # of protobuf, which has several implementations
      raise RequestError(f'the body is no ForwardBackwardRequest: {error}.') from None
    adapter, name = self._adapter(request.model_id), request.loss_fn
    if name not in LOSSES:
      raise RequestError(
        f'loss_fn={name!r} must be one of {", ".join(LOSSES)}; others: forward_backward_custom.',
        'loss_fn',
      )
    texts = [key for key, value in request.loss_fn_config_v2.items() if value.HasField('text')]
    options = _options(name, {**request.loss_fn_config, **dict.fromkeys(texts, math.nan)})
    data = [self._datum(datum, LOSSES[name].inputs) for datum in request.data]

    def work() -> Result:
      backward = not request.forward_only
      found = self._adapters.forward_backward(adapter, data, name, options, backward=backward)
      return _loss_outputs(found)

    return JSONResponse(self._promise(_id(request.model_id, request.seq_id), work))

  async def _optim_step(self, body: Any) -> dict[str, Any]:
    request = _parsed(types.OptimStepRequest, body)
    adapter, options = self._adapter(request.model_id), request.optim_params
    if not isinstance(options, types.AdamParams):
      raise RequestError('optim_params must be AdamParams.')
    given = options.model_dump()
    for name, value in given.items():
      end = 1 if name in ('beta1', 'beta2') else math.inf
      if not 0 <= value <= _FLOAT32_MAX or np.float32(value) >= end:
        raise RequestError(f'{name}={value} must be 0 or more and below {end} (float32).', name)
    if not np.float32(options.eps):
      raise RequestError(f'eps={options.eps} must be above 0 (float32).', 'eps')

    def work() -> Result:
      if adapter.gradient is None:
        raise RequestError('there is no gradient: call forward_backward before optim_step.')
      return {'metrics': {'grad_norm:mean': self._adapters.step(adapter, given)}}

    return self._promise(_id(request.model_id, request.seq_id), work)

  async def _create_sampling_session(self, body: Any) -> dict[str, Any]:
    request = _parsed(types.CreateSamplingSessionRequest, body)
    id_ = f'{request.session_id}:sample:{request.sampling_session_seq_id}'
    if request.model_path is None:
      self._check_model(request.base_model)
      self._sampling[id_] = None
    elif id_ not in self._sampling:
      file = self._file(request.model_path)
      loaded = await asyncio.get_running_loop().run_in_executor(self._speaker, self._loaded, file)
      if id_ not in self._sampling:  # a repeated request may have added it meanwhile
        self._make_room(request.session_id)
        self._sampling[id_] = loaded
    return {'sampling_session_id': id_}

  async def _sampler(self, http: Request) -> Response:
    id_ = http.path_params['id']
    self._sampled(id_)
    return JSONResponse({'sampler_id': id_, 'base_model': self._name})

  def _sampled(self, id_: str) -> Adapter | None:
    """Returns the adapter of a sampling session, None for the model alone."""
    if id_ not in self._sampling:
      raise RequestError(f'sampling_session_id={id_[:80]!r} is unknown: save again.', status=404)
    self._sampling[id_] = adapter = self._sampling.pop(id_)  # now the last one
    return adapter

  def _make_room(self, client: str) -> None:
    """Drops the least recently used sampling adapters of a client, so that one more fits."""
    mine = f'{client}:sample:'
    held = [x for x, adapter in list(self._sampling.items()) if adapter and x.startswith(mine)]
    for id_ in held[: 1 - _SNAPSHOTS]:
      del self._sampling[id_]

  async def _sample(self, body: Any) -> dict[str, Any]:
    request = _parsed(types.SampleRequest, body)
    session, params = request.sampling_session_id or '', request.sampling_params
    adapter, given = self._sampled(session), request.model_dump()
    for field, neutral in _NEUTRAL.items():
      if (given[field] or neutral) != neutral:
        raise RequestError(f'{field}={shown(given[field])} must be left out.', field)
    prompt, count = self._prompt(request.prompt), request.num_samples
    room = self._served.loaded[0].sampler.config.max_positions - len(prompt)
    limit = min(room, 1024) if params.max_tokens is None else params.max_tokens
    for field, value, fits, must in (
      ('num_samples', count, 1 <= count <= 1024, 'be 1 to 1024'),
      ('max_tokens', limit, 1 <= limit <= room, f'be 1 to {room}, the room after the prompt'),
      ('temperature', params.temperature, 0 <= params.temperature <= HIGHEST, 'be 0 to 1e37'),
      ('top_k', params.top_k, params.top_k == -1, 'be -1'),
      ('top_p', params.top_p, params.top_p == 1, 'be 1'),
    ):
      if not fits:
        raise RequestError(f'{field}={value} must {must}.', field)
    stops = tuple(self._stop_ids(params.stop))
    seed = secrets.randbits(62) if params.seed is None else params.seed
    seeds = np.random.default_rng(seed % 2**64).integers(0, 2**63, count).tolist()
    ask = Ask(adapter, prompt, seeds, limit, params.temperature, stops)
    if (id_ := _id(session, request.seq_id)) not in self._results:
      self._queue.add(ask)

    def work() -> Result:
      reply = proto.SampleResponse()
      for ids, logprobs, ended in self._queue.take(ask):
        reply.sequences.add(
          stop_reason=proto.STOP_REASON_STOP if ended else proto.STOP_REASON_LENGTH,
          tokens=np.asarray(ids, np.int32).tobytes(),
          logprobs=np.asarray(logprobs, np.float32).tobytes(),
        )
      if request.prompt_logprobs:
        scored = self._adapters.prompt_logprobs(adapter, prompt)
        reply.prompt_logprobs = np.asarray(scored, np.float32).tobytes()
      return reply.SerializeToString()

    ids = [f'{id_}:{i}' for i in range(count)]
    return {**self._promise(id_, work), 'sample_sequence_ids': ids}

  async def _save(self, body: Any) -> dict[str, Any]:
    request = _parsed(types.SaveWeightsRequest, body)
    return self._saving(request, 'weights', 'save_weights', overwrite=request.overwrite)

  async def _save_for_sampler(self, body: Any) -> dict[str, Any]:
    request = _parsed(types.SaveWeightsForSamplerRequest, body)
    if request.path is not None:
      return self._saving(request, 'sampler_weights', 'save_weights_for_sampler', overwrite=True)
    if request.kind != 'snapshot':
      raise RequestError(f'kind={request.kind!r} must be snapshot.', 'kind')
    adapter = self._adapter(request.model_id)
    session = f'{request.model_id}:sample:{request.sampling_session_seq_id}'
    id_ = _id(request.model_id, request.seq_id)
    if id_ not in self._results:
      self._make_room(request.model_id)

    def work() -> Result:
      self._sampling[session] = Adapter(adapter.config, adapter.trainable, None)
      return {'sampling_session_id': session, 'type': 'save_weights_for_sampler'}

    return self._promise(id_, work)

  def _saving(self, request: Any, kind: str, type_: str, *, overwrite: bool) -> dict[str, Any]:
    adapter, seq = self._adapter(request.model_id), request.seq_id
    path = f'tinker://{request.model_id}/{kind}/{request.path or seq}'
    file = self._file(path, there=False)
    if request.ttl_seconds is not None:
      raise RequestError('ttl_seconds must be left out: saved weights stay.', 'ttl_seconds')

    def work() -> Result:
      if file.exists() and not overwrite:
        raise RequestError(f'{path} exists; take another name, or overwrite=True.')
      adapters.save(file, adapter, moments=kind == 'weights')
      return {'path': path, 'type': type_}

    return self._promise(_id(request.model_id, seq), work)

  async def _load(self, body: Any) -> dict[str, Any]:
    request = _parsed(types.LoadWeightsRequest, body)
    file, new = self._file(request.path), request.model_id is None
    self._check_model(request.base_model or self._name)
    id_ = f'{request.session_id}:train:{request.model_seq_id}' if new else request.model_id
    if not new:
      self._adapter(id_)

    def work() -> Result:
      if new:
        self._training[id_] = self._loaded(file, moments=request.optimizer)
      else:
        adapters.load(file, self._training[id_], moments=request.optimizer)
      return {'path': request.path, 'model_id': id_, 'type': 'load_weights'}

    return self._promise(id_ if new else _id(id_, request.seq_id), work)

  async def _weights_info(self, body: Any) -> dict[str, Any]:
    path = body.get('tinker_path') if isinstance(body, Mapping) else None
    rank = adapters.rank_of(self._file(path if isinstance(path, str) else ''))
    return {'base_model': self._name, 'is_lora': True, 'lora_rank': rank}

  def _loaded(self, file: pathlib.Path, moments: bool = False) -> Adapter:
    """Returns a saved adapter, with the state of its optimizer if `moments`."""
    adapter = self._adapters.make(adapters.rank_of(file), seed=0)
    adapters.load(file, adapter, moments=moments)
    return adapter

  def _file(self, path: str, there: bool = True) -> pathlib.Path:
    """Returns the file of a `tinker://` path, which exists if `there`."""
    found = _PATH.fullmatch(path)
    if not found or set(found[3]) <= {'.'}:
      raise RequestError(
        f'path={path[:200]!r} must be tinker://MODEL_ID/weights/NAME or .../sampler_weights/NAME, '
        'NAME of letters, digits, "_", "." and "-".'
      )
    file = self._folder / found[1] / found[2] / f'{found[3]}.safetensors'
    if there and not file.exists():
      raise RequestError(f'{path} does not exist here.', status=404)
    return file

  def _adapter(self, model_id: str) -> Adapter:
    if model_id not in self._training:
      raise RequestError(f'model_id={model_id[:80]!r} is unknown; create it first.', status=404)
    return self._training[model_id]

  def _check_model(self, name: str | None) -> None:
    if name != self._name:
      raise RequestError(f'base_model={shown(name)} is not served; {self._name!r} is.', status=404)

  def _prompt(self, given: types.ModelInput) -> np.ndarray:
    kinds = {chunk.type for chunk in given.chunks}
    if kinds != {'encoded_text'}:
      raise RequestError(f'a prompt of {shown(sorted(kinds))} must be of encoded text.', 'prompt')
    return self._tokens('prompt', np.asarray(given.to_ints()))

  def _tokens(self, field: str, ids: np.ndarray) -> np.ndarray:
    config = self._served.loaded[0].sampler.config
    if ids.dtype.kind != 'i' or not ids.size or ids.min() < 0 or ids.max() >= config.vocab_size:
      raise RequestError(
        f'{field} must hold ids of the vocabulary, integers of 0 to {config.vocab_size - 1}.'
      )
    if len(ids) > config.max_positions:
      raise RequestError(f'{field} has {len(ids)} tokens; the model reads {config.max_positions}.')
    return ids.astype(np.int32)

  def _stop_ids(self, stop: Any) -> list[int]:
    tokenizer = self._served.loaded[0].tokenizer
    if stop is None:
      return [tokenizer.eos_id]
    found: list[int] = []
    for one in [stop] if isinstance(stop, str) else stop:
      ids = tokenizer.encode(one) if isinstance(one, str) else [one]
      if len(ids) != 1:
        raise RequestError(f'stop={shown(one)} must be one token, here it is {len(ids)}.', 'stop')
      found += ids
    return self._tokens('stop', np.asarray(found)).tolist() if found else []

  def _datum(self, given: Any, names: tuple[str, ...]) -> Datum:
    """Returns a sequence of a request."""
    chunks = given.model_input
    if not chunks or any(chunk.WhichOneof('chunk') != 'encoded_text' for chunk in chunks):
      raise RequestError('model_input must be of encoded text.', 'model_input')
    parts = [np.frombuffer(x.encoded_text.tokens, np.int32) for x in chunks]
    tokens = self._tokens('model_input', np.concatenate(parts))
    inputs = {}
    for name in ('target_tokens', *names):
      if name not in given.loss_fn_inputs:
        raise RequestError(f'loss_fn_inputs[{name!r}] is missing.', 'loss_fn_inputs')
      tensor = given.loss_fn_inputs[name]
      if tensor.WhichOneof('encoding') != 'dense' or tensor.dtype not in _NUMPY:
        raise RequestError(f'loss_fn_inputs[{name!r}] must be a dense tensor.', 'loss_fn_inputs')
      inputs[name] = np.frombuffer(tensor.dense, _NUMPY[tensor.dtype])
      if len(inputs[name]) != len(tokens) or not np.isfinite(inputs[name]).all():
        raise RequestError(
          f'loss_fn_inputs[{name!r}] must hold {len(tokens)} finite numbers, one for each token.',
          'loss_fn_inputs',
        )
    inputs['target_tokens'] = self._tokens('target_tokens', inputs['target_tokens'])
    return Datum(tokens, inputs)


def _id(of: str, seq: int | None) -> str:
  """Returns the id of a request, the same if it is sent again."""
  return f'{of}:{secrets.token_hex(8) if seq is None else seq}'


def _parsed(kind: type[Any], body: Any) -> Any:
  """Returns a request, read strictly (true is no number) and as JSON (lists may be tuples)."""
  try:
    return kind.model_validate_json(json.dumps(body), strict=True)
  except pydantic.ValidationError as error:
    first = error.errors(include_url=False)[0]
    field = '.'.join(map(str, first['loc']))
    raise RequestError(f'{field or "the body"}: {first["msg"]}.', field) from None


def _options(name: str, given: Mapping[str, float]) -> dict[str, float]:
  """Returns all options of a loss."""
  known = LOSSES[name].options
  found: dict[str, float] = {}
  for option, value in {**known, **given}.items():
    if option not in known or value is None or not math.isfinite(value):
      must = 'be a finite number' if option in known else f'be left out: {name} has no such option'
      raise RequestError(f'loss_fn_config[{option!r}]={value} must {must}.')
    found[option] = value
  return found


def _loss_outputs(found: list[tuple[np.ndarray, np.ndarray]]) -> bytes:
  """Returns log-probs and losses of sequences as a `ForwardBackwardOutput`."""
  reply = proto.ForwardBackwardOutput(loss_fn_output_type='ArrayRecord')
  reply.metrics['loss:sum'] = float(sum(losses.sum(dtype=np.float64) for _, losses in found))
  record = reply.loss_fn_outputs.add(num_datums=len(found))
  for name, arrays in zip(('logprobs', 'elementwise_loss'), zip(*found, strict=True), strict=False):
    field = record.fields[name]
    field.dtype = proto.DTYPE_FLOAT32
    field.data = b''.join(np.asarray(x, np.float32).tobytes() for x in arrays)
    offsets = np.cumsum([0, *(4 * len(x) for x in arrays)], dtype=np.int64)
    field.offsets = offsets.tobytes()
  return reply.SerializeToString()
