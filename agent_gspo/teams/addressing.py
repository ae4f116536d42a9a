"""Parses and writes addressed messages: `@solver @informant2 Anna has 7 pens`."""

from __future__ import annotations

from collections.abc import Collection

_MARK, _ENDS = '@', ',:;.'


def tag(name: str) -> str:
  """Returns the tag that addresses an agent."""
  return _MARK + name


def split(text: str) -> tuple[tuple[str, ...] | None, str]:
  """Splits a message into the names it begins with and its body.

  The names are None if there are none: all readers of the author are then addressed. Unknown
  names are returned as well; a message with only unknown names reaches nobody.
  """
  rest, names = text.lstrip(), []
  while rest.startswith(_MARK):
    word, *rest_ = rest.split(maxsplit=1)
    names.append(word.removeprefix(_MARK).rstrip(_ENDS))
    rest = rest_[0] if rest_ else ''
  return (tuple(names), rest) if names else (None, text)


def begin(names: Collection[str], text: str) -> str:
  """Returns the text, addressed to these agents."""
  return ' '.join([*map(tag, names), text])
