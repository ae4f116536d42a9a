"""Builds `tokenizers.Tokenizer` objects: from files, from GGUF metadata, word level."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from agent_gspo.models.io.fields import Fields, named, read_object
from agent_gspo.models.text.word_marks import MARK
from agent_gspo.values import is_number, is_text, shown

_T = TypeVar('_T')

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # ggml token types (0 to 6)
PIECE = '##'  # begins a token that continues a word
_FLAGS = ('lstrip', 'normalized', 'rstrip', 'single_word', 'special')  # of added tokens
_SAVE = (
  'Save a fast one (`transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)`).'
)

# Both split text into words before BPE; they differ in the number of digits per piece.
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


def from_file(file: pathlib.Path) -> tokenizers.Tokenizer:
  """Returns the tokenizer in a tokenizer.json.

  Raises:
    OSError: The file cannot be read.
    ValueError: The file is damaged, or of a kind unknown to the library.
  """
  try:
    found = _guarded(lambda: tokenizers.Tokenizer.from_file(str(file)), str(file))
  except ValueError:
    model = Fields(read_object(file), str(file)).section('model')
    if isinstance(vocab := model.values.get('vocab'), Mapping):
      _check_merges(vocab, model, 'merges', model.values.get('continuing_subword_prefix'))
    raise
  # The file may store truncation and padding; as in transformers, neither is applied.
  found.no_truncation()
  found.no_padding()
  return found


def add_listed(
  backend: tokenizers.Tokenizer, config: Fields, special: Fields, added: Fields
) -> None:
  """Adds the tokens that tokenizer_config.json lists, or sets their flags, as transformers does.

  Args:
    backend: Tokenizer of tokenizer.json.
    config, special, added: Fields of tokenizer_config.json, special_tokens_map.json and
      added_tokens.json.

  Raises:
    ValueError: An entry is invalid, its token has another id, or a token is named without an entry:
      it would be read as plain text.
  """
  entries = config.section('added_tokens_decoder')
  ids = named(
    f'{config.where}: added_tokens_decoder', lambda: {int(name): name for name in entries.values}
  )
  tokens = {i: _added_token(entries.section(ids[i])) for i in sorted(ids)}
  backend.add_tokens([*tokens.values()])
  for i, token in tokens.items():
    if (found := backend.token_to_id(token.content)) != i:
      raise ValueError(
        f'{config.where}: added_tokens_decoder has {token.content!r} as id {i}; with '
        f'tokenizer.json it is {found}. {_SAVE}'
      )
  known = {token.content for token in backend.get_added_tokens_decoder().values()}
  alone = ((added.where, name) for name in added.values)
  for where, name in [*_special_tokens(config), *_special_tokens(special), *alone]:
    if name not in known:
      raise ValueError(f'{where} has {name!r}, which tokenizer.json lacks. {_SAVE}')


def _added_token(entry: Fields) -> tokenizers.AddedToken:
  content = entry.get('content')
  if not is_text(content):
    raise entry.wrong('content', 'a text')
  flags = {flag: entry.flag(flag) for flag in _FLAGS if flag in entry.values}
  return tokenizers.AddedToken(content, **flags)


def _special_tokens(fields: Fields) -> Iterator[tuple[str, str]]:
  """Yields file and field, and token, of each special token without a name of its own."""
  for field in ('additional_special_tokens', 'extra_special_tokens'):
    found = fields.get(field, [])
    found = [*found.values()] if isinstance(found, Mapping) else found
    if not isinstance(found, list):
      raise fields.wrong(field, 'a list of tokens')
    for token in found:
      content = token.get('content') if isinstance(token, Mapping) else token
      if not isinstance(content, str):
        raise fields.wrong(field, 'a list of tokens')
      yield f'{fields.where}: {field}', content


def with_added(
  backend: tokenizers.Tokenizer, added: list[tokenizers.AddedToken]
) -> tokenizers.Tokenizer:
  """Returns a tokenizer with the same model, which is not copied, and these added tokens alone."""
  found = tokenizers.Tokenizer(backend.model)
  for part in ('normalizer', 'pre_tokenizer', 'post_processor', 'decoder'):
    if (value := getattr(backend, part)) is not None:
      setattr(found, part, value)
  found.add_tokens(added)
  return found


def begin_with(backend: tokenizers.Tokenizer, token: str) -> None:
  """Sets a post-processor that begins texts with a special token."""
  backend.post_processor = processors.TemplateProcessing(
    single=f'{token} $A', special_tokens=[(token, backend.token_to_id(token))]
  )


def from_gguf(
  metadata: Mapping[str, Any], where: str = 'the GGUF metadata'
) -> tokenizers.Tokenizer:
  """Returns the tokenizer of a GGUF file: byte-level BPE, or SentencePiece's BPE with scores.

  Raises:
    ValueError: The tokenizer is of another kind, has an unknown pre-tokenizer, or is damaged.
  """
  prefix = 'tokenizer.ggml.'
  own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
  fields = Fields(own, where, prefix)
  kind = own.get('model')
  if kind not in ('gpt2', 'llama'):
    raise ValueError(
      f'{where}: {prefix}model={shown(kind)}: only byte-level BPE ("gpt2") and SentencePiece '
      '("llama") are read from GGUF. Load the same model as hf:<folder>.'
    )
  tokens, types = _texts(fields, 'tokens'), fields.get('token_type')
  if not isinstance(types, list) or len(types) != len(tokens) or set(types) - set(range(7)):
    raise fields.wrong('token_type', f'a list of {len(tokens)} types (0 to 6), one for each token')
  # Unused tokens only pad the embedding to a round number of rows.
  used = [(t, i) for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED]
  vocab = dict(used)
  if len(vocab) < len(used):
    twice = next(t for t, i in used if vocab[t] != i)
    raise ValueError(f'{where}: {prefix}tokens holds {shown(twice)} twice; the file is damaged.')
  make = _byte_level if kind == 'gpt2' else _sentencepiece
  backend = make(fields, vocab)
  # SentencePiece looks for its own tokens, such as runs of spaces, after it has marked spaces.
  marked = kind == 'llama'
  added = [
    tokenizers.AddedToken(t, special=of == _CONTROL, normalized=marked and of == _USER_DEFINED)
    for t, of in zip(tokens, types, strict=True)
    if of in (_CONTROL, _USER_DEFINED)
  ]
  backend.add_tokens(added)
  return backend


def _byte_level(fields: Fields, vocab: dict[str, int]) -> tokenizers.Tokenizer:
  """Returns byte-level BPE with the merges of a GGUF file."""
  pre = fields.values.get('pre')
  if pre not in _PRE:
    raise ValueError(
      f'{fields.where}: {fields.prefix}pre={shown(pre)} is not supported, only {", ".join(_PRE)}. '
      'Load the same model as hf:<folder>.'
    )
  texts = _texts(fields, 'merges')
  _check_merges(vocab, fields, 'merges')
  merges = [(left, right) for left, _, right in (text.partition(' ') for text in texts)]
  backend = _guarded(
    lambda: tokenizers.Tokenizer(
      models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == 'llama-bpe')
    ),
    fields.where,
  )
  if pre == 'qwen2':
    backend.normalizer = normalizers.NFC()
  backend.pre_tokenizer = _pre_tokenizer(pre)
  backend.decoder = decoders.ByteLevel()
  return backend


def _sentencepiece(fields: Fields, vocab: dict[str, int]) -> tokenizers.Tokenizer:
  """Returns BPE that joins, as SentencePiece does, the two pieces whose whole scores highest.

  Characters that are no piece become byte pieces, `<0x00>` to `<0xFF>`.
  """
  if fields.get('add_space_prefix', True) is not False:
    raise fields.wrong('add_space_prefix', 'false; load the same model as hf:<folder>')
  tokens, scores = fields.get('tokens'), fields.get('scores')
  if not isinstance(scores, list) or len(scores) != len(tokens) or not all(map(is_number, scores)):
    raise fields.wrong('scores', f'a list of {len(tokens)} numbers, one for each token')
  unknown = tokens[fields.whole('unknown_token_id', low=0, high=len(tokens) - 1)]
  types = fields.get('token_type')
  pieces = {piece: i for piece, i in vocab.items() if types[i] == _NORMAL}
  merges = [
    (-scores[i], i, pieces[whole[:at]], whole[:at], whole[at:])
    for whole, i in pieces.items()
    for at in range(1, len(whole))
    if whole[:at] in pieces and whole[at:] in pieces
  ]
  pairs = [(left, right) for *_, left, right in sorted(merges)]
  backend = _guarded(
    lambda: tokenizers.Tokenizer(
      models.BPE(vocab=vocab, merges=pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    ),
    fields.where,
  )
  backend.normalizer = normalizers.Replace(' ', MARK)
  backend.decoder = decoders.Sequence(
    [decoders.Replace(MARK, ' '), decoders.ByteFallback(), decoders.Fuse()]
  )
  return backend


def _texts(fields: Fields, field: str) -> list[str]:
  """Returns a field that must be a non-empty list of strings."""
  found = fields.get(field)
  if not isinstance(found, list) or not found or not all(isinstance(t, str) for t in found):
    raise fields.wrong(field, 'a list of texts')
  return found


def _check_merges(
  vocab: Mapping[str, Any], fields: Fields, field: str, prefix: str | None = None
) -> None:
  """Checks that each merge joins two tokens to a third; else the library refuses or panics.

  Raises:
    ValueError: A merge does not; names it.
  """
  merges = fields.get(field, [])
  if not isinstance(merges, list):
    raise fields.wrong(field, 'a list')
  cut = len(prefix) if isinstance(prefix, str) else 0
  for merge in merges:
    pair = merge.split(' ') if isinstance(merge, str) else merge
    fits = isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
    if not fits or any(t not in vocab for t in (*pair, pair[0] + pair[1][cut:])):
      raise ValueError(
        f'{fields.where}: {fields.prefix}{field} holds {shown(merge)}, which does not join two '
        'tokens of the vocabulary to a third; the file is damaged.'
      )


def _guarded(make: Callable[[], _T], where: str) -> _T:
  """Returns `make()`; turns the library's errors and panics (not `Exception`s) into ValueError."""
  try:
    return make()
  except BaseException as error:
    if isinstance(error, KeyboardInterrupt | SystemExit):
      raise
    raise ValueError(
      f'{where}: the tokenizer is damaged or of an unknown kind ({error}).'
    ) from None


def word_level(words: Sequence[str], special: Sequence[str]) -> tokenizers.Tokenizer:
  """Returns a tokenizer with one token per word; ids are `special`, the newline, then `words`.

  Entries that begin with '##' are pieces: a word without an entry is split into its longest
  prefix with an entry and the longest pieces after it ('Mara' is 'Ma' and '##ra').
  Text is split at whitespace; only the newline is a token. Decoding puts one space between words
  and none beside a newline.

  Raises:
    ValueError: A word is empty, contains whitespace or occurs twice.
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
