"""Requests of OpenAI's chat completions, as far as they mean something to a team."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gspo.values import is_number, is_text, is_whole, shown

# Beside the fields below: what says nothing about the answer.
_IGNORED = ('user', 'metadata', 'store')
# Values that ask for what a team does anyway.
_PLAIN: Mapping[str, Sequence[Any]] = {
  'n': (1,),
  'top_p': (1,),
  'frequency_penalty': (0,),
  'presence_penalty': (0,),
  'logprobs': (False,),
}


class RequestError(ValueError):
  """A request that cannot be answered.

  Attributes:
    field: what is wrong with it, '' for the whole.
    status: of HTTP.
  """

  def __init__(self, message: str, field: str = '', status: int = 400):
    super().__init__(message)
    self.field, self.status = field, status


@dataclasses.dataclass(frozen=True)
class ChatRequest:
  """A question to a team.

  Attributes:
    question: what all agents read.
    notes: what each of the first agents alone reads.
    price: of a token, None for that of evaluations.
    budget: cost that the episode should have, likewise.
    temperature: of sampling, None for that of evaluations.
    max_tokens: that all agents together may write, 0 for the team's own caps alone.
    stream: whether messages are sent as they are written.
    include_usage: whether a stream ends with the tokens that it took.
  """

  question: str
  notes: tuple[str, ...] = ()
  price: float | None = None
  budget: float | None = None
  temperature: float | None = None
  max_tokens: int = 0
  stream: bool = False
  include_usage: bool = False


def read(body: Any, model: str) -> ChatRequest:
  """A request from the body of its message.

  Args:
    body: decoded JSON.
    model: name of the team that is served.

  Raises:
    RequestError: a field is missing, unknown or has a value that a team cannot follow.
  """
  if not isinstance(body, Mapping):
    raise RequestError(f'the body must be a JSON object, got {shown(body)}.')
  fields = {name: value for name, value in body.items() if value is not None}
  if fields.pop('model', model) != model:
    raise RequestError(
      f'the model {shown(body["model"])} is not served; {model!r} is.', 'model', status=404
    )
  for name in _IGNORED:
    fields.pop(name, None)
  for name, values in _PLAIN.items():
    if fields.pop(name, values[0]) not in values:
      raise RequestError(f'{name}={shown(body[name])}: a team gives {name}={values[0]}.', name)
  streaming = fields.pop('stream_options', {})
  if not isinstance(streaming, Mapping) or not streaming.keys() <= {'include_usage'}:
    raise RequestError(
      f"stream_options={shown(streaming)} may hold 'include_usage' alone.", 'stream_options'
    )
  request = ChatRequest(
    question=_question(fields.pop('messages', None)),
    notes=_notes(fields.pop('notes', [])),
    price=_amount('price', fields.pop('price', None)),
    budget=_amount('budget', fields.pop('budget', None)),
    temperature=_amount('temperature', fields.pop('temperature', None)),
    max_tokens=_cap(fields.pop('max_completion_tokens', None), fields.pop('max_tokens', None)),
    stream=_flag('stream', fields.pop('stream', False)),
    include_usage=_flag('stream_options.include_usage', streaming.get('include_usage', False)),
  )
  if fields:
    name = min(fields)
    raise RequestError(
      f'{name}={shown(fields[name])}: a team cannot follow {name}; leave it out (its caps and '
      'prompts are those of its config).',
      name,
    )
  return request


def _question(messages: Any) -> str:
  one_user = isinstance(messages, list) and len(messages) == 1
  if not one_user or not isinstance(messages[0], Mapping) or messages[0].get('role') != 'user':
    raise RequestError(
      'messages must be one message of the user: a team answers one question, and its agents have '
      'system prompts of their own.',
      'messages',
    )
  content = messages[0].get('content')
  if isinstance(content, list) and all(
    isinstance(part, Mapping) and part.get('type') == 'text' for part in content
  ):
    content = ''.join(str(part.get('text', '')) for part in content)
  if not isinstance(content, str) or not is_text(content) or not content.strip():
    raise RequestError(f'messages[0].content={shown(content)} must be text.', 'messages')
  return content


def _notes(notes: Any) -> tuple[str, ...]:
  if not isinstance(notes, list) or not all(map(is_text, notes)):
    raise RequestError(f'notes={shown(notes)} must be a list of texts, one an agent.', 'notes')
  return tuple(notes)


def _amount(name: str, value: Any) -> float | None:
  if value is not None and (not is_number(value) or value < 0):
    raise RequestError(f'{name}={shown(value)} must be a number, 0 or more.', name)
  return value


def _cap(*given: Any) -> int:
  """The lowest of the two names' values."""
  found = [value for value in given if value is not None]
  for value in found:
    if not is_whole(value) or value < 1:
      raise RequestError(f'max_tokens={shown(value)} must be a whole number above 0.', 'max_tokens')
  return min(found, default=0)


def _flag(name: str, value: Any) -> bool:
  if not isinstance(value, bool):
    raise RequestError(f'{name}={shown(value)} must be true or false.', name)
  return value
