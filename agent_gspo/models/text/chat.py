"""Renders chat templates (jinja2) as transformers does."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox

# Prompts must not depend on the date, or those of a resumed run would differ. This is the default
# date of Llama 3's template.
_TODAY = datetime.datetime(2024, 7, 26)
SLOT = '\ud800'
"""Placeholder for a message while a template renders its surroundings: no text holds half a
surrogate pair, and templates copy it unchanged."""

_FIRST_MARK = 0xD810  # first of several further placeholders
TOKENS = (
  *('bos_token', 'eos_token', 'pad_token'),
  *('unk_token', 'sep_token', 'cls_token', 'mask_token'),
)
"""Special tokens that templates read by name, if the tokenizer has them."""
OWN_VARIABLES = ('messages', 'add_generation_prompt', 'tools', 'documents', *TOKENS)
"""Template variables that users cannot set."""


class _Generation(jinja2.ext.Extension):
  """`{% generation %}`, which marks the assistant's text; only its body is rendered."""

  tags = {'generation'}  # noqa: RUF012 (jinja2's own interface)

  def parse(self, parser):
    next(parser.stream)
    return parser.parse_statements(('name:endgeneration',), drop_needle=True)


def _raise(message: str) -> None:
  raise jinja2.TemplateError(message)


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
  # jinja2's own filter escapes HTML; models are trained without that.
  return json.dumps(
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


@functools.cache
def _environment() -> jinja2.Environment:
  # Sandboxed, since templates come with downloaded models.
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
  )
  environment.filters['tojson'] = _to_json
  environment.globals['raise_exception'] = _raise
  environment.globals['strftime_now'] = _TODAY.strftime
  return environment


@functools.lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
  return _environment().from_string(template)


def render(
  template: str,
  messages: Sequence[Mapping[str, Any]],
  add_generation_prompt: bool = False,
  variables: Mapping[str, Any] | None = None,
) -> str:
  """Renders messages (`{'role': ..., 'content': ...}`) with a chat template and its `variables`.

  Raises:
    ValueError: The template is not valid, or refuses these messages.
  """
  try:
    return _compile(template).render(
      {
        # Templates test these with `is none`, which an undefined variable is not.
        'tools': None,
        'documents': None,
        **(variables or {}),
        'messages': list(messages),
        'add_generation_prompt': add_generation_prompt,
      }
    )
  except Exception as error:  # an external program may raise anything
    kind = '' if isinstance(error, jinja2.TemplateError) else f'{type(error).__name__}: '
    raise ValueError(
      f'The chat template cannot render roles {[m.get("role") for m in messages]}: {kind}{error}'
    ) from error


def check_variables(template: str, variables: Mapping[str, Any]) -> None:
  """Checks that a template reads the variables that a user sets.

  Raises:
    ValueError: The template is not valid, or never reads one of them; names those it reads.
  """
  if not variables:
    return
  try:
    read = jinja2.meta.find_undeclared_variables(_environment().parse(template))
  except Exception as error:  # an external program
    raise ValueError(f'The chat template is not valid: {error}') from error
  read -= {*OWN_VARIABLES, *_environment().globals}
  if strange := sorted(set(variables) - read):
    known = ', '.join(sorted(read)) or 'none'
    raise ValueError(
      f'chat_variables holds {strange[0]!r}, which the chat template never reads; names must be '
      f'those of its variables ({known}).'
    )


def check(template: str, *, system: bool, variables: Mapping[str, Any] | None = None) -> None:
  """Checks that a template renders each message once and in order.

  Raises:
    ValueError: The template is not valid, refuses a conversation of several turns, or omits or
      repeats a message.
  """
  roles = ['system'] * system + ['user', 'assistant', 'user']
  marks = [chr(_FIRST_MARK + i) for i in range(len(roles))]
  said = [{'role': role, 'content': mark} for role, mark in zip(roles, marks, strict=True)]
  text = render(template, said, add_generation_prompt=True, variables=variables)
  if [character for character in text if character in marks] != marks:
    raise ValueError(
      f'The chat template does not write down what is said by {", ".join(roles)} once each and '
      'in this order: agents would not read it.'
    )
