"""Defines roles: system prompt, worked examples and the frame of a turn."""

from __future__ import annotations

import dataclasses
import itertools
import string
from collections.abc import Callable, Mapping
from typing import Any

from agent_gspo.models.text.chat import OWN_VARIABLES
from agent_gspo.options import check_fields, option
from agent_gspo.teams import tools
from agent_gspo.types import Question
from agent_gspo.values import is_json, is_text, shown

STYLES = ('plain', 'chat')
ENDPOINT = 'endpoint:'
_LEFT = '{left}'


@dataclasses.dataclass(frozen=True)
class Role:
  """Prompts and limits of an agent, as set in a config.

  Attributes:
    name: Name of the role, from which agents are named.
    style: 'plain' text that the model continues, or 'chat' in the model's template.
    system: System prompt.
    examples: `(context, message)` pairs before the conversation; an empty message demonstrates
      silence.
    opening: Template of the text shown once; may use `{question}`, `{note}`, `{price}`, `{budget}`
      and `{answer}`, the gold answer: the role then gives hints, in training alone.
    incoming: Template of a teammate's message; must contain `{message}`, may use `{sender}`.
    cue: Text at the end of every turn's prompt; may use `{left}`, the remaining tokens of the
      question's budget or, without one, of the team's caps.
    separator: Text that ends a plain message; the sampler's stop tokens derive from it.
    max_tokens: Cap on this role's messages, 0 for the team's.
    tools: Tools that the agent may call while it writes, keys of `tools.TOOLS` or 'module:TOOL'.
    tool_calls: Most tool calls per message, 0 for no limit; a further mark is an ordinary token.
    tool_tokens: Most tokens of a tool's result; the rest is cut off.
    chat_variables: Variables for the chat template, such as `enable_thinking`; plain JSON.
    model: Model that writes this role's messages, a source as `model.source`, or
      `endpoint:<address>#<name>` for one behind an OpenAI-compatible server; '': that of
      `model.source`.
    trains: Whether the role's own `model` learns too, in SFT and RL, with all of its parameters and
      an optimizer state of its own; else it is frozen.
  """

  name: str
  style: str = option('plain', choices=STYLES)
  system: str = ''
  examples: tuple[tuple[str, str], ...] = ()
  opening: str = '{question}\n'
  incoming: str = '{sender}:{message}\n'
  cue: str = 'Answer:'
  separator: str = '\n'
  max_tokens: int = option(0, least=0)
  tools: tuple[str, ...] = ()
  tool_calls: int = option(0, least=0)
  tool_tokens: int = option(64, least=1)
  chat_variables: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
  model: str = ''
  trains: bool = False

  @property
  def learns(self) -> bool:
    """Returns whether the model that writes for the role is trained."""
    return self.trains or not self.model

  @property
  def shows_note(self) -> bool:
    """Returns whether the prompt shows the agent's note."""
    return 'note' in _fields(self.opening)

  @property
  def shows_answer(self) -> bool:
    """Returns whether the prompt shows the gold answer."""
    return 'answer' in _fields(self.opening)

  @property
  def shows_left(self) -> bool:
    """Returns whether the prompt shows the remaining tokens."""
    return _LEFT in self.cue

  def cue_at(self, left: int) -> str:
    """Returns the cue of a turn with `left` remaining tokens."""
    return self.cue.replace(_LEFT, str(left))

  def preamble(self, guard: Callable[[str], str] = str) -> list[str]:
    """Returns the texts that plain prompts begin with, split as messages are in a conversation.

    As a single text, a message could share a token with its separator (".\\n"), and examples would
    end unlike the conversation's messages. `guard` is applied to examples.
    """
    examples = [
      (guard(context) + self.cue, guard(s), self.separator) for context, s in self.examples
    ]
    return [text for text in (self.system, *itertools.chain(*examples)) if text]

  def shows_terms(self, kind: str) -> bool:
    """Returns whether the prompt shows a question's terms, 'price' or 'budget'."""
    return kind in _fields(self.opening)

  def opening_of(self, question: Question, agent: int, guard: Callable[[str], str] = str) -> str:
    """Returns the opening for a question; `guard` is applied to its texts."""
    terms = question.terms.words if question.terms else ''
    return self.opening.format(
      question=guard(question.text),
      note=guard(question.note(agent)),
      answer=guard(question.answer),
      price=terms,
      budget=terms,
    )

  def __post_init__(self):
    where = f'team.roles.{self.name}'
    check_fields(self, where)
    for pair in self.examples:
      if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(map(is_text, pair)):
        raise ValueError(f'{where}.examples must be (context, message) pairs, got {pair!r}.')
    # Config files may hold lists, which cannot be hashed.
    object.__setattr__(self, 'examples', tuple(map(tuple, self.examples)))
    object.__setattr__(self, 'tools', tuple(self.tools))
    known = {'question', 'note', 'answer', 'price', 'budget'}
    _template_fields(f'{where}.opening', self.opening, known)
    fields = _template_fields(f'{where}.incoming', self.incoming, {'sender', 'message'})
    if fields.count('message') != 1:
      raise ValueError(f'{where}.incoming={self.incoming!r} must contain {{message}} once.')
    if self.style == 'plain' and not self.separator:
      raise ValueError(f'{where}.separator is empty; must be the text that ends a plain message.')
    if self.shows_left and self.examples:
      raise ValueError(
        f'{where}.cue={self.cue!r} shows {{left}}, which examples lack. Set examples=().'
      )
    variables = f'{where}.chat_variables={shown(self.chat_variables)}'
    if self.chat_variables and self.style != 'chat':
      raise ValueError(f"{variables} needs a chat template; set {where}.style='chat'.")
    if own := [name for name in self.chat_variables if name in OWN_VARIABLES]:
      raise ValueError(f'{variables} holds {own[0]!r}, which is set for each prompt; leave it out.')
    if not is_json(self.chat_variables):
      raise ValueError(
        f'{variables} must be plain JSON: texts, finite numbers, true, false, null, and lists and '
        'objects of these.'
      )
    if self.trains and (not self.model or self.model.startswith(ENDPOINT)):
      raise ValueError(
        f'{where}.trains=True with {where}.model={self.model!r}: must be a model with weights of '
        "its own, such as 'hf:FOLDER' (model.source always learns). Set another, or trains=False."
      )
    for tool in self.tools:
      if not is_text(tool):
        raise ValueError(f'{where}.tools={shown(self.tools)} must be names of tools.')
      tools.find(tool, f'{where}.tools')


def make_role(name: str, fields: Mapping[str, Any]) -> Role:
  """Builds a role from the fields of a config.

  Raises:
    ValueError: if a field is unknown or its value invalid.
  """
  if not isinstance(name, str) or not name.strip():
    raise ValueError(f'team.roles holds {name!r}; the name of a role must be a word.')
  if not isinstance(fields, Mapping):
    raise ValueError(f'team.roles.{name}={fields!r} must be a section of fields.')
  known = {field.name for field in dataclasses.fields(Role)} - {'name'}
  for field in fields:
    if field not in known:
      raise ValueError(
        f'team.roles.{name}.{field} is unknown; a role has {", ".join(sorted(known))}.'
      )
  return Role(name=name, **fields)


def _fields(template: str) -> list[str]:
  return [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]


def _template_fields(where: str, template: str, known: set[str]) -> list[str]:
  """Returns a template's fields; raises `ValueError` for unknown or formatted ones."""
  try:
    parsed = list(string.Formatter().parse(template))
  except ValueError as error:
    raise ValueError(
      f'{where}={template!r} is malformed: {error}. Write a literal brace twice.'
    ) from None
  fields = _fields(template)
  formats = [f':{form}' if form else f'!{kind}' for _, _, form, kind in parsed if form or kind]
  strange = sorted(set(fields) - known) + formats
  if strange:
    raise ValueError(
      f'{where}={template!r} uses {", ".join(map(repr, strange))}; it may use '
      f'{", ".join(f"{{{field}}}" for field in sorted(known))}.'
    )
  return fields
