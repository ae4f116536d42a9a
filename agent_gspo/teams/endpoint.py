"""Agents that speak through an endpoint of OpenAI's protocol: models that do not fit here."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from concurrent import futures
from typing import TYPE_CHECKING

import numpy as np

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.sampling.sampler import Samples
from agent_gspo.teams.policies import Turn
from agent_gspo.teams.team import Team

if TYPE_CHECKING:
  import openai


class EndpointError(ConnectionError):
  """An endpoint did not answer, or not as the protocol says."""


@dataclasses.dataclass(frozen=True)
class EndpointPolicy:
  """Sends each turn's prompt as a message of the user, and takes the reply for its message.

  Tokens are those that the endpoint says it used; who reads the message is shown it as text.

  Attributes:
    base_url: such as 'https://host/v1'.
    model: as the endpoint calls it.
    tokenizer: that prompts are put together with.
    temperature: of sampling.
    api_key: of the endpoint.
    timeout_s: of a request.
    retries: of a request that failed on the way or was turned away for now.
    parallel: requests at a time.
  """

  base_url: str
  model: str
  tokenizer: Tokenizer
  temperature: float
  api_key: str = 'none'
  timeout_s: float = 120.0
  retries: int = 4
  parallel: int = 8

  def __call__(self, turns: Sequence[Turn]) -> Samples:
    """Writes a message for each turn.

    Raises:
      EndpointError: some got no reply; says how many, and why the first one.
    """
    with futures.ThreadPoolExecutor(self.parallel) as pool:
      asked = [pool.submit(self._reply, self._client, turn) for turn in turns]
      futures.wait(asked)
    failed = [reply.exception() for reply in asked if reply.exception() is not None]
    if failed:
      raise EndpointError(
        f'{self.base_url}: {len(failed)} of {len(turns)} requests to {self.model!r} failed, the '
        f'first one with {type(failed[0]).__name__}: {failed[0]}'
      ) from failed[0]
    replies = [reply.result() for reply in asked]
    ids = [
      self._ids(text, ended, turn) for turn, (text, ended, _) in zip(turns, replies, strict=True)
    ]
    return Samples(
      token_ids=ids,
      logprobs=[np.zeros(len(i), np.float32) for i in ids],
      ended=np.asarray([ended for _, ended, _ in replies]),
      prefill_positions=0,
      usage=[usage for _, _, usage in replies],
    )

  @functools.cached_property
  def _client(self) -> openai.OpenAI:
    """Kept over the layers of a conversation, and its connections with it."""
    import openai

    return openai.OpenAI(
      base_url=self.base_url,
      api_key=self.api_key,
      timeout=self.timeout_s,
      max_retries=self.retries,
    )

  def _reply(self, client: openai.OpenAI, turn: Turn) -> tuple[str, bool, tuple[int, int]]:
    """The text, whether it ended by itself, and the tokens read and written."""
    prompt = self.tokenizer.decode(turn.prompt_ids.tolist())
    found = client.chat.completions.create(
      model=self.model,
      messages=[{'role': 'user', 'content': prompt}],
      temperature=self.temperature,
      max_tokens=turn.limit,
    )
    if not found.choices or found.usage is None:
      raise EndpointError('a reply without choices or usage')
    choice = found.choices[0]
    usage = (found.usage.prompt_tokens, found.usage.completion_tokens)
    return choice.message.content or '', choice.finish_reason != 'length', usage

  def _ids(self, text: str, ended: bool, turn: Turn) -> np.ndarray:
    # As plain text: what a model far away writes must not end a turn or open another here. Nor is
    # EOS written behind it: the agent's next prompt is sent as text, which would spell it out.
    ids = self.tokenizer.encode(text, special=False)
    return np.asarray([*ids, *[turn.end_id] * ended], np.int32)


def check(team: Team) -> None:
  """Refuses a team whose prompts an endpoint cannot be sent.

  Raises:
    ValueError: a role has a chat template, which the endpoint has itself, or a tool.
  """
  for role in team.roles:
    if role.style != 'plain':
      raise ValueError(
        f'team.roles.{role.name}.style={role.style!r}: an endpoint puts its own template around a '
        "prompt. Set style='plain'."
      )
    if role.calculator:
      raise ValueError(
        f'team.roles.{role.name}.calculator=True: an endpoint cannot be interrupted at each "=". '
        'Set it to False.'
      )
