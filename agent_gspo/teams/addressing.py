"""Messages that begin with whom they are for: `@solver @informant2 Anna has 7 pens`."""

from __future__ import annotations

from collections.abc import Collection

_MARK, _ENDS = '@', ',:;.'


def tag(name: str) -> str:
  """What calls an agent of this name."""
  return _MARK + name


def split(text: str) -> tuple[tuple[str, ...] | None, str]:
  """The names that a message begins with, and what follows them.

  None where it calls nobody: then it is for everybody who can hear its author. A name that no
  agent has is returned as well; a message that calls only such reaches nobody.
  """
  rest, names = text.lstrip(), []
  while rest.startswith(_MARK):
    word, *rest_ = rest.split(maxsplit=1)
    names.append(word.removeprefix(_MARK).rstrip(_ENDS))
    rest = rest_[0] if rest_ else ''
  return (tuple(names), rest) if names else (None, text)


def begin(names: Collection[str], text: str) -> str:
  """A message for these agents."""
  return ' '.join([*map(tag, names), text])
