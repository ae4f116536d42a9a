"""Samples for runs that train elsewhere: `/v1/completions` of token ids, and `/v1/weights`."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from agent_gspo.apps.serving import errors, requests
from agent_gspo.apps.serving.completions import answer_json
from agent_gspo.apps.serving.errors import RequestError
from agent_gspo.apps.serving.sample_queue import Ask, SampleQueue
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Samples
from agent_gspo.training import state as state_lib
from agent_gspo.values import is_number, is_whole, shown

if TYPE_CHECKING:
  from agent_gspo.apps.commands.team_of_run import TeamOfRun

MAX_WAITING = 1024
"""Most completions in the queue."""
_GATHERING_S = 0.01  # requests that arrive together are sampled together
_NEUTRAL: Mapping[str, Sequence[Any]] = {
  'n': (1,),
  'top_p': (1,),
  'top_k': (-1, 0),
  'min_p': (0,),
  'repetition_penalty': (1,),
  'frequency_penalty': (0,),
  'presence_penalty': (0,),
  'ignore_eos': (True,),
  'logprobs': (1, 0),
  'return_token_ids': (True,),
  'echo': (False,),
  'stream': (False,),
}


class Engine:
  """Samples queued completions in batches; noise depends on each request's seed alone."""

  def __init__(self, served: TeamOfRun, name: str, speaker: ThreadPoolExecutor):
    """Prepares the queue; `speaker` is the one thread that uses the model."""
    self.served, self.name = served, name
    self._speaker = speaker
    self._queue = SampleQueue(self._sample, rows=MAX_WAITING)

  async def complete(self, http: Request) -> Response:
    """Answers `/v1/completions`."""
    return await errors.answered(functools.partial(answer_json, self._complete), http)

  async def load_weights(self, http: Request) -> Response:
    """Answers `/v1/weights`: the parameters in `folder`, of `step`, replace those served."""
    return await errors.answered(functools.partial(answer_json, self._load_weights), http)

  async def _load_weights(self, body: Any) -> dict[str, Any]:
    fields = requests.fields_of(body, self.name, {})
    folder, step = fields.pop('folder', None), fields.pop('step', None)
    if fields or not isinstance(folder, str) or not is_whole(step):
      raise RequestError(f'the body must be {{"folder": text, "step": number}}, got {shown(body)}.')

    def load(step: int) -> None:
      try:
        self.served.load_weights(folder, step)
      except OSError as error:
        raise RequestError(f'folder={folder!r}: {error}', 'folder') from error

    await asyncio.get_running_loop().run_in_executor(self._speaker, load, step)
    return {'folder': folder, 'step': step}

  async def _complete(self, body: Any) -> dict[str, Any]:
    ask = self._ask(requests.fields_of(body, self.name, _NEUTRAL, 'an engine'))
    if len(self._queue) >= MAX_WAITING:
      raise RequestError(f'{MAX_WAITING} completions are waiting; send it again later.', status=503)
    self._queue.add(ask)
    try:
      await asyncio.sleep(_GATHERING_S)
      speak = functools.partial(self._queue.take, ask)
      found = await asyncio.get_running_loop().run_in_executor(self._speaker, speak)
    finally:
      self._queue.drop(ask)
    ((ids, logprobs, ended),) = found
    choice = {
      'index': 0,
      'text': self.served.loaded[0].tokenizer.decode(ids.tolist()),
      'token_ids': ids.tolist(),
      'logprobs': {'token_logprobs': logprobs.tolist()},
      'finish_reason': 'stop' if ended else 'length',
    }
    usage = {'prompt_tokens': len(ask.prompt), 'completion_tokens': len(ids)}
    usage['total_tokens'] = sum(usage.values())
    return {'object': 'text_completion', 'model': self.name, 'choices': [choice], 'usage': usage}

  def _ask(self, fields: dict[str, Any]) -> Ask:
    """Returns the completion that a request asks for.

    Raises:
      RequestError: A field is missing, unknown or has an unsupported value.
    """
    sampler = self.served.loaded[0].sampler
    config, most = sampler.config, sampler.max_new_tokens
    prompt, limit = fields.pop('prompt', None), fields.pop('max_tokens', most)
    stop_ids, seed = fields.pop('stop_token_ids', []), fields.pop('seed', None)
    temperature = fields.pop('temperature', 1.0)
    seed = secrets.randbits(63) if seed is None else seed
    known = lambda ids: (
      isinstance(ids, list) and all(is_whole(i) and 0 <= i < config.vocab_size for i in ids)
    )
    for name, value, fits, must in (
      ('prompt', prompt, known(prompt) and prompt, 'be token ids of the vocabulary'),
      ('stop_token_ids', stop_ids, known(stop_ids) and stop_ids, 'be ids that end a completion'),
      ('max_tokens', limit, is_whole(limit) and 1 <= limit <= most, f'be 1 to {most}'),
      ('seed', seed, is_whole(seed) and -(2**63) <= seed < 2**63, 'be a whole number of 64 bits'),
      ('temperature', temperature, is_number(temperature) and temperature >= 0, 'be 0 or more'),
      *((name, value, False, 'be left out') for name, value in sorted(fields.items())),
    ):
      if not fits:
        raise RequestError(f'{name[:80]}={shown(value)} must {must}.', name)
    room = config.max_positions - limit
    if len(prompt) > room:
      raise RequestError(
        f'prompt has {len(prompt)} tokens; with max_tokens={limit} the model reads {room}.',
        'prompt',
      )
    prompt = np.asarray(prompt, np.int32)
    return Ask(None, prompt, [seed], limit, float(temperature), tuple(stop_ids))

  def _sample(self, adapter, prompts, seeds, *, limits, **settings) -> Samples:
    """Continues prompts of equal settings, see `SampleQueue`."""
    setup, params = self.served.loaded
    return setup.sampler(
      state_lib.without_members(params),
      prompts,
      keys.of_seeds(seeds),
      limits=np.asarray(limits),
      **settings,
    )
