"""Builders of `tokenizers.Tokenizer` objects: byte-level BPE from GGUF, and word level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # ggml's token types
PIECE = '##'  # begins a token that continues a word

# Both split text into words before BPE; they differ in how many digits a piece may have.
_QWEN2 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
_LLAMA3 = _QWEN2.replace(r'\p{N}|', r'\p{N}{1,3}|')
_PRE = ('smollm', 'qwen2', 'llama-bpe')


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
  if pre == 'smollm':
    return pre_tokenizers.Sequence(
      [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
  pattern = tokenizers.Regex(_QWEN2 if pre == 'qwen2' else _LLAMA3)
  return pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(pattern, behavior='isolated'),
      pre_tokenizers.ByteLevel(False, use_regex=False),
    ]
  )


def bpe_from_gguf(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
  """Byte-level BPE with the vocabulary, merges and special tokens of a GGUF file.

  Args:
    metadata: the file's, key -> value; reads `tokenizer.ggml.*`.

  Raises:
    ValueError: the tokenizer is not byte-level BPE, or splits words in an unknown way.
  """
  kind, pre = metadata.get('tokenizer.ggml.model'), metadata.get('tokenizer.ggml.pre')
  if kind != 'gpt2':
    raise ValueError(
      f'tokenizer.ggml.model={kind!r}: only byte-level BPE ("gpt2") is read from GGUF. '
      'Load the same model as hf:<folder>.'
    )
  if pre not in _PRE:
    raise ValueError(
      f'tokenizer.ggml.pre={pre!r} is not supported, only {", ".join(_PRE)}. '
      'Load the same model as hf:<folder>.'
    )
  tokens = metadata['tokenizer.ggml.tokens']
  types = metadata['tokenizer.ggml.token_type']
  merges = [tuple(merge.split(' ')) for merge in metadata['tokenizer.ggml.merges']]
  # Unused tokens only fill the embedding up to a round number of rows.
  vocab = {t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
  backend = tokenizers.Tokenizer(
    models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == 'llama-bpe')
  )
  if pre == 'qwen2':
    backend.normalizer = normalizers.NFC()
  backend.pre_tokenizer = _pre_tokenizer(pre)
  backend.decoder = decoders.ByteLevel()
  added = [
    tokenizers.AddedToken(t, special=kind == _CONTROL, normalized=False)
    for t, kind in zip(tokens, types, strict=True)
    if kind in (_CONTROL, _USER_DEFINED)
  ]
  backend.add_tokens(added)
  return backend


def word_level(words: Sequence[str], special: Sequence[str]) -> tokenizers.Tokenizer:
  """One token a word; ids are `special`, then the newline, then `words` in their order.

  Entries that begin with '##' are pieces: a word that is no entry is split into the longest entry
  that it begins with and the longest pieces that go on ('Mara' is 'Ma' and '##ra').
  Text is split at whitespace, of which only the newline is a token. Decoding puts one
  space between words and none beside a newline.

  Raises:
    ValueError: a word is empty, contains whitespace or occurs twice.
  """
  bad = [word for word in words if not word or word.split() != [word]]
  if bad:
    raise ValueError(f'words must be non-empty and without whitespace, not {bad[:5]}.')
  vocab = {token: i for i, token in enumerate([*special, '\n', *words])}
  if len(vocab) != len(special) + 1 + len(words):
    raise ValueError(f'words must differ from each other and from {", ".join(special)}.')
  backend = tokenizers.Tokenizer(models.WordPiece(vocab, continuing_subword_prefix=PIECE))
  backend.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split('\n', behavior='isolated'),
      pre_tokenizers.Split(tokenizers.Regex(r'[^\S\n]+'), behavior='removed'),
    ]
  )
  backend.decoder = decoders.Sequence(
    [
      decoders.WordPiece(prefix=PIECE, cleanup=False),
      decoders.Fuse(),
      decoders.Replace(' \n', '\n'),
      decoders.Replace('\n ', '\n'),
    ]
  )
  backend.add_special_tokens(
    [tokenizers.AddedToken(token, special=True, normalized=False) for token in special]
  )
  return backend
