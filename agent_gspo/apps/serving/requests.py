"""Parses requests of OpenAI's chat completions, as far as they apply to a team."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gspo.apps.serving.errors import RequestError
from agent_gspo.values import is_number, is_text, is_whole, shown

MAX_CHARACTERS = 1 << 18
"""Most characters of question and notes together, checked before encoding."""

# Fields of the protocol that do not affect the answer.
_IGNORED = (
  'user', 'metadata', 'store', 'safety_identifier', 'prompt_cache_key', 'prompt_cache_options',
  'prompt_cache_retention',
)  # fmt: skip
# Values that request a team's normal behavior. So does null, for every field.
_NEUTRAL: Mapping[str, Sequence[Any]] = {
  'n': (1,),
  'top_p': (1,),
  'frequency_penalty': (0,),
  'presence_penalty': (0,),
  'logit_bias': ({},),
  'logprobs': (False,),
  'top_logprobs': (0,),
  'stop': ([], ''),
  'response_format': ({'type': 'text'},),
  'modalities': (['text'],),
  'verbosity': ('medium',),
  'service_tier': ('auto', 'default'),
  'tools': ([],),
  'tool_choice': ('none', 'auto'),
  'parallel_tool_calls': (False, True),
  'functions': ([],),
  'function_call': ('none', 'auto'),
}


@dataclasses.dataclass(frozen=True)
class ChatRequest:
  """Question to a team; None means the value of evaluations."""

  question: str  # shown to all agents
  notes: tuple[str, ...] = ()  # private note of each of the first agents
  price: float | None = None  # token price
  budget: float | None = None  # target cost of the episode
  temperature: float | None = None
  max_tokens: int = 0  # cap on the tokens of all agents together; 0: the team's own caps alone
  seed: int | None = None  # of the sampling noise; None: another one for each request
  stream: bool = False  # send messages as they are written
  include_usage: bool = False  # end a stream with the token counts


def decode(body: bytes) -> Any:
  """Returns the JSON of a body.

  Raises:
    RequestError: The body is not JSON, or has a number or text that JSON cannot represent.
  """
  try:
    found = json.loads(body)
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # no NaN, no lone surrogates
  except (ValueError, RecursionError) as error:  # the latter of thousands of brackets
    raise RequestError(f'the body is not JSON: {error}.') from None
  return found


def read(body: Any, model: str) -> ChatRequest:
  """Returns the request to `model` in the decoded JSON of a body.

  Raises:
    RequestError: A field is missing, unknown or has an unsupported value.
  """
  fields = fields_of(body, model, _NEUTRAL)
  streaming = fields.pop('stream_options', {})
  options = _given(streaming) if isinstance(streaming, Mapping) else {'': None}
  if options.get('include_obfuscation') is False:
    options.pop('include_obfuscation')
  if not options.keys() <= {'include_usage'}:
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
    seed=_seed(fields.pop('seed', None)),
    stream=_flag('stream', fields.pop('stream', False)),
    include_usage=_flag('stream_options.include_usage', options.get('include_usage', False)),
  )
  if fields:
    name = min(fields)
    raise RequestError(
      f'{name[:80]}={shown(fields[name])}: a team cannot follow {name[:80]}; leave it out (its '
      'caps and prompts are those of its config).',
      name,
    )
  count = len(request.question) + sum(map(len, request.notes))
  if count > MAX_CHARACTERS:
    raise RequestError(
      f'question and notes have {count} characters; must be at most {MAX_CHARACTERS}; shorten '
      'them.',
      'messages',
    )
  return request


def fields_of(
  body: Any, model: str, neutral: Mapping[str, Sequence[Any]], who: str = 'a team'
) -> dict[str, Any]:
  """Returns the fields of a request to `model` that are given and affect the answer.

  Raises:
    RequestError: No object, another model, or another value than the `neutral` ones of a field.
  """
  if not isinstance(body, Mapping):
    raise RequestError(f'the body must be a JSON object, got {shown(body)}.')
  fields = _given(body)
  if fields.pop('model', model) != model:
    raise RequestError(
      f'the model {shown(body["model"])} is not served; {model!r} is.', 'model', status=404
    )
  for name in _IGNORED:
    fields.pop(name, None)
  for name, values in neutral.items():
    if name in fields and not any(map(functools.partial(_same, fields.pop(name)), values)):
      raise RequestError(f'{name}={shown(body[name])}: {who} gives {name}={values[0]}.', name)
  return fields


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
  return {name: value for name, value in fields.items() if value is not None}


def _same(value: Any, neutral: Any) -> bool:
  """Returns whether a value equals a neutral one; unlike in Python, JSON's true is not 1."""
  return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _question(messages: Any) -> str:
  whole = isinstance(messages, list) and all(isinstance(m, Mapping) for m in messages)
  roles = [message.get('role') for message in messages] if whole else []
  if roles != ['user']:
    instead = ''
    if strange := [(i, role) for i, role in enumerate(roles) if role != 'user']:
      instead = f' messages[{strange[0][0]}] is of role {shown(strange[0][1])}; leave it out.'
    raise RequestError(
      'messages must be one message of the user: a team answers one question, and its agents have '
      f'system prompts of their own.{instead}',
      'messages',
    )
  content: Any = messages[0].get('content')
  if others := _given(messages[0]).keys() - {'role', 'content', 'name'}:
    raise RequestError(
      f'messages[0] has {shown(min(others))}; must have role and content alone; leave it out.',
      'messages',
    )
  if isinstance(content, list) and content:
    content = ''.join(map(_part, content))
  if not is_text(content) or not content.strip():
    raise RequestError(f'messages[0].content={shown(content)} must be text.', 'messages')
  return content


def _part(part: Any) -> str:
  """Returns the text of a part of a message."""
  given = _given(part) if isinstance(part, Mapping) else {}
  others = given.keys() - {'type', 'text', 'prompt_cache_breakpoint'}
  if given.get('type') != 'text' or not is_text(given.get('text')) or others:
    raise RequestError(
      f'messages[0].content holds {shown(part)}; each part must be text: '
      '{"type": "text", "text": "..."}.',
      'messages',
    )
  return given['text']


def _notes(notes: Any) -> tuple[str, ...]:
  if not isinstance(notes, list) or not all(map(is_text, notes)):
    raise RequestError(f'notes={shown(notes)} must be a list of texts, one an agent.', 'notes')
  return tuple(notes)


def _amount(name: str, value: Any) -> float | None:
  if value is not None and (not is_number(value) or value < 0):
    raise RequestError(f'{name}={shown(value)} must be a number, 0 or more.', name)
  return value


def _seed(value: Any) -> int | None:
  if value is not None and not is_whole(value):
    raise RequestError(f'seed={shown(value)} must be a whole number.', 'seed')
  return value


def _cap(*given: Any) -> int:
  """Returns the lower of the values under both names, 0 without any."""
  found = [value for value in given if value is not None]
  for value in found:
    if not is_whole(value) or value < 1:
      raise RequestError(f'max_tokens={shown(value)} must be a whole number above 0.', 'max_tokens')
  return min(found, default=0)


def _flag(name: str, value: Any) -> bool:
  if not isinstance(value, bool):
    raise RequestError(f'{name}={shown(value)} must be true or false.', name)
  return value
