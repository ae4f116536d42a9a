"""Implements the policy of training rollouts that a server samples, token ids in and out.

The protocol is that of vLLM: `/v1/completions` with token ids as the prompt and `return_token_ids`
(vllm#22587), which SGLang (sglang#30917) and `launch/serve.py --engine` answer too. Nothing is
tokenized again. The server must return log-probs of the distribution that it samples from: where
`rollout.temperature` is not 1, vLLM needs `--logprobs-mode=processed_logprobs`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from agent_gspo.sampling import keys
from agent_gspo.teams import endpoint
from agent_gspo.teams.endpoint import BrokenError
from agent_gspo.teams.policies import RefusedError, Reply, Turn
from agent_gspo.values import is_real, is_whole, shown

# Neither a model's own stop tokens nor the sampling defaults of its generation_config.json.
_PLAIN = {
  'ignore_eos': True,
  'top_p': 1.0,
  'top_k': -1,
  'min_p': 0.0,
  'repetition_penalty': 1.0,
  'logprobs': 1,
  'return_token_ids': True,
}


@dataclasses.dataclass(frozen=True)
class EnginePolicy(endpoint.EndpointPolicy):
  """Policy that samples each turn on a server, and returns tokens and log-probs.

  Attributes:
    row_keys: Returns the PRNG key of each turn, `[N]`; sent as seeds.
    unsaid: Ranges of ids that the model never writes, see `ModelConfig`.
  """

  row_keys: Callable[[Sequence[Turn]], jax.Array] = dataclasses.field(kw_only=True)
  unsaid: Sequence[tuple[int, int]] = ()
  timeout_s: float = 600.0
  parallel: int = 256
  deadline_s: float = 1200.0
  most_bytes: int = 2**26

  path: ClassVar[str] = '/completions'

  @functools.cached_property
  def _said(self) -> np.ndarray:
    """Returns the mask of ids that the model writes, bool `[V]`."""
    said = np.ones(self.tokenizer.vocab_size, bool)
    for first, end in self.unsaid:
      said[first:end] = False
    return said

  def _requests(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
    return [
      {
        'model': self.model,
        'prompt': turn.prompt_ids.tolist(),
        'temperature': self.temperature,
        'max_tokens': turn.limit,
        'stop_token_ids': list(turn.stop_ids),
        'seed': seed,
        **_PLAIN,
      }
      for turn, seed in zip(turns, keys.to_seeds(self.row_keys(turns)), strict=True)
    ]

  def _read(self, turn: Turn, body: bytes) -> Reply:
    """Returns the message in a reply.

    Raises:
      RefusedError: The server gave up, or withheld the message.
      BrokenError: Ids or log-probs are missing, or do not cover the whole message.
    """
    _, choice = endpoint.read_choice(body)
    ids, finish = choice.get('token_ids'), choice.get('finish_reason')
    logprobs = endpoint.inside(choice, 'logprobs').get('token_logprobs')
    if finish not in ('stop', 'length'):
      raise RefusedError(f'a reply that was broken off (finish_reason {shown(finish)})')
    known = isinstance(ids, list) and all(is_whole(i) and 0 <= i < len(self._said) for i in ids)
    if not known or not ids or not self._said[ids].all():
      raise BrokenError(
        f'a reply whose `token_ids` is {shown(ids)}; must be ids of the vocabulary. Take a server '
        'that answers `return_token_ids`, with the model that is trained'
      )
    if not isinstance(logprobs, list) or not all(
      is_real(x) and -math.inf < x < 0.01 for x in logprobs
    ):
      raise BrokenError(
        f'a reply whose `logprobs.token_logprobs` is {shown(logprobs)}; must be log-probs'
      )
    if len(logprobs) != len(ids):
      raise BrokenError(f'a reply of {len(ids)} tokens with {len(logprobs)} log-probs')
    if choice.get('prompt_token_ids') not in (None, turn.prompt_ids.tolist()):
      raise BrokenError('a reply to another prompt: its `prompt_token_ids` are not those sent')
    stops = np.flatnonzero(np.isin(ids, turn.stop_ids)).tolist()
    ended = stops == [len(ids) - 1]
    whole = len(ids) <= turn.limit if ended else not stops and len(ids) == turn.limit
    if not whole or (finish == 'stop' and not ended):
      raise BrokenError(
        f'a reply of {len(ids)} tokens (finish_reason {shown(finish)}, the last one {ids[-1]}), '
        f'neither cut at {turn.limit} nor ended by the first of {list(turn.stop_ids)}'
      )
    return Reply(np.asarray(ids, np.int32), np.asarray(logprobs, np.float32), ended)

  def _message(self, turn: Turn, found: Reply) -> Reply:
    return found
