"""Encodes control tokens of templates, and keeps untrusted text from spelling any."""

from __future__ import annotations

import functools
import itertools
import json

import tokenizers

from agent_gspo.models.text import tokenizer_backends, word_marks
from agent_gspo.values import is_text

BREAK = '\ud801'
"""Mark that no control token may span: half a surrogate pair, which valid text does not contain."""


class ControlTokens:
  """Control tokens of a model: special tokens, and other added ones in its chat template.

  Untrusted text is encoded without them.

  Attributes:
    special: Ids of the special tokens.
    ids: Ids of all control tokens.
    names: Spellings of all control tokens.
  """

  def __init__(self, backend: tokenizers.Tokenizer, template: str | None):
    self._backend = backend
    self._added = backend.get_added_tokens_decoder()
    self.special = frozenset(i for i, token in self._added.items() if token.special)
    written = lambda name: name.strip() != '' and name in (template or '')
    others = (i for i, token in self._added.items() if written(token.content))
    self.ids = self.special.union(others)
    self.names = frozenset(self._added[i].content for i in self.ids)

  def guarded(self, text: str) -> str:
    """Returns untrusted text with marks at its ends and within each control token it spells.

    `encode` reads no control token across a mark. White space stays outside, where templates may
    strip it.

    Raises:
      ValueError: The text is invalid Unicode, or spells a control token of a single character.
    """
    if not is_text(text):
      raise ValueError(
        f'the text {text[:80]!r} has half a surrogate pair, which is invalid Unicode; leave it out.'
      )
    marked = text.strip()
    if not marked:
      return text
    before, _, behind = text.partition(marked)
    while found := self._spans(marked):
      for _, start, end in reversed(found):
        start = end - len(marked[start:end].lstrip())
        if BREAK in marked[start:end] or len(marked[start:end].rstrip()) < 2:
          raise _unbreakable(marked[start:end])
        marked = marked[: start + 1] + BREAK + marked[start + 1 :]
    return f'{before}{BREAK}{marked}{BREAK}{behind}'

  def encode(self, text: str, begins: bool) -> list[int]:
    """Returns the token ids of a text without its marks; no control token spans a mark.

    If no mark prevents a control token, the ids equal those of the text without marks.
    `begins`: no text is before it, see `word_marks`.
    """
    plain = text.replace(BREAK, '')
    own = self._spans(text) if plain != text else []
    if plain == text or [i for i, *_ in own] == [i for i, *_ in self._spans(plain)]:
      before = word_marks.Before() if begins else self.before
      # As `encode`, without the unused offsets, which take a fifth of the time.
      read = self._backend.encode_batch_fast([before.text + plain], add_special_tokens=False)
      return read[0].ids[len(before.ids) :]
    found, last = [], 0
    for i, start, end in own:
      found += [*self._without(text[last:start], begins), i]
      last, begins = end, self.before.recurs
    return found + self._without(text[last:], begins)

  def _spans(self, text: str) -> list[tuple[int, int, int]]:
    """Returns `(id, start, end)` of each control token in a text."""
    if self._literals and not any(name in text for name in self._literals):
      return []
    read = self._finder.encode(text.replace(BREAK, self._filler), add_special_tokens=False)
    spans = zip(read.ids, read.offsets, strict=True)
    return [(i, start, end) for i, (start, end) in spans if i in self.ids]

  @functools.cached_property
  def _literals(self) -> tuple[str, ...]:
    """Returns the spellings of all added tokens; none if the backend rewrites texts first."""
    literal = self._backend.normalizer is None
    return tuple(token.content for token in self._added.values()) if literal else ()

  @functools.cached_property
  def _finder(self) -> tokenizers.Tokenizer:
    """Returns a tokenizer that reads added tokens as the backend does, and nothing else."""
    vocab = {token.content: i for i, token in self._added.items()}
    rest = '?' + ''.join(vocab)  # longer than any of them
    finder = tokenizers.Tokenizer(
      tokenizers.models.WordLevel({**vocab, rest: max(self._added, default=0) + 1}, rest)
    )
    if self._backend.normalizer is not None:
      finder.normalizer = self._backend.normalizer
    finder.add_tokens(list(self._added.values()))
    return finder

  @functools.cached_property
  def _filler(self) -> str:
    """Returns a printable character that no added token contains."""
    held = ''.join(token.content for token in self._added.values())
    return next(c for c in map(chr, itertools.count(0xA4)) if c.isprintable() and c not in held)

  @functools.cached_property
  def before(self) -> word_marks.Before:
    """Returns the prefix for encoding and decoding texts that continue others."""
    return word_marks.find(self._backend)

  def _without(self, text: str, begins: bool) -> list[int]:
    """Returns the token ids of a text, with control tokens as ordinary text."""
    pieces, found = [text.replace(BREAK, '')], list[int]()
    while pieces:
      piece = pieces.pop()
      before = word_marks.Before() if begins and not found else self.before
      cut, n = len(before.text), len(before.ids)
      read = self.plain.encode(before.text + piece, add_special_tokens=False)
      ids = read.ids[n:]
      spans = [(i, (a - cut, b - cut)) for i, (a, b) in zip(ids, read.offsets[n:], strict=True)]
      # The vocabulary of some models contains control tokens, too.
      spelled = [
        (start, end)
        for i, (start, end) in spans
        if i in self.ids and (i != self._unknown or piece[start:end] in self.names)
      ]
      if not spelled:
        found += ids
        continue
      for start, end in spelled:
        if end - start < 2:
          raise _unbreakable(piece[start:end])
      cuts = [0, *(start + 1 for start, _ in spelled), len(piece)]
      pieces += [piece[start:end] for start, end in itertools.pairwise(cuts)][::-1]
    return found

  @property
  def plain(self) -> tokenizers.Tokenizer:
    """Returns a copy of the backend that reads no control tokens."""
    return self._plain_and_unknown[0]

  @property
  def _unknown(self) -> int | None:
    """Returns the id of the unknown token, None if there is none."""
    return self._plain_and_unknown[1]

  @functools.cached_property
  def _plain_and_unknown(self) -> tuple[tokenizers.Tokenizer, int | None]:
    added = sorted(self._backend.get_added_tokens_decoder().items())
    for i, token in added:
      token.special |= i in self.ids
    backend = tokenizer_backends.with_added(self._backend, [token for _, token in added])
    backend.encode_special_tokens = True
    model = self._backend.model
    if isinstance(model, tokenizers.models.Unigram):
      return backend, json.loads(model.__getstate__())['unk_id']
    return backend, None if model.unk_token is None else backend.token_to_id(model.unk_token)


def _unbreakable(text: str) -> ValueError:
  return ValueError(f'the text holds {text!r}, which is a control token only; leave it out')
