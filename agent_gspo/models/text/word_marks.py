"""Finds the mark for a space that tokenizers such as Llama 2's put before texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tokenizers
from tokenizers import models

MARK = '\u2581'
"""Mark for a space in SentencePiece vocabularies."""


@dataclasses.dataclass(frozen=True)
class Before:
  """Prefix for encoding texts that continue others, so that they get no mark.

  It is a character in no longer token, so that its ids can be cut off. Empty for tokenizers that
  put no mark before texts.

  Attributes:
    text: The character.
    ids: Its token ids, of the mark and of the character.
    decoded: Text of `ids`.
    recurs: Whether a mark also follows each special token.
  """

  text: str = ''
  ids: Sequence[int] = ()
  decoded: str = ''
  recurs: bool = False


def find(backend: tokenizers.Tokenizer) -> Before:
  """Returns the prefix of a backend; an empty one also if no character of its vocabulary fits."""
  if not isinstance(backend.model, models.BPE | models.Unigram):
    return Before()
  read = lambda text: backend.encode(text, add_special_tokens=False)
  if not ''.join(read('a').tokens).startswith(MARK):
    return Before()
  vocab = backend.get_vocab(with_added_tokens=True)
  held = {*MARK, *''.join(token for token in vocab if len(token) > 1)}
  single = (c for c in vocab if len(c) == 1 and c not in held and c.isprintable())
  for text in sorted(single, key=lambda c: (c.isalnum(), c)):
    ids, i = read(text).ids, vocab[text]
    if len(ids) == 2 and ids[-1] == i and read(2 * text).ids == [*ids, i]:
      special = (t.content for t in backend.get_added_tokens_decoder().values() if t.special)
      recurs = any(read(name + text).ids[1:] == ids for name in special)
      return Before(text, ids, backend.decode(ids), recurs)
  return Before()
