"""Converts between text and token ids, without torch or transformers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from agent_gspo.models.io.fields import Fields, named, read_object, write_object
from agent_gspo.models.text import chat, tokenizer_backends
from agent_gspo.models.text.control import BREAK, ControlTokens
from agent_gspo.values import is_text

_SPECIAL = ('bos_token', 'eos_token', 'pad_token')
_GGUF_TOKENS = ('bos', 'eos', 'padding', 'unknown', 'seperator', 'cls', 'mask')  # `chat.TOKENS`
WORD_LEVEL_SPECIAL = ('<pad>', '<eos>')
"""Tokens of a word-level vocabulary besides its words and the newline."""


class UnknownWordError(ValueError):
  """Error: a word-level tokenizer does not know a word."""


class Tokenizer:
  """Vocabulary with its special tokens and chat template.

  Attributes:
    backend: Underlying `tokenizers.Tokenizer`.
    eos_id: Token that ends a message.
    eos_ids: All tokens that end a message by the model's files, `eos_id` first.
    bos_id: Token that begins a text, or None. `encode` does not add it: templates spell it out,
      and plain prompts use `begins_with`.
    pad_id: Token that fills rows; may equal `eos_id`, so it does not identify padding.
    vocab_size: Largest id + 1.
    is_word_level: Whether tokens are words, and other words cannot be encoded.
    chat_template: Jinja2 source, or None.
  """

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    eos_token: str,
    bos_token: str | None = None,
    pad_token: str | None = None,
    chat_template: str | None = None,
    more_eos: Sequence[str] = (),
    template_tokens: Mapping[str, str] | None = None,
  ):
    """Looks up the special tokens; raises ValueError if one is not in the vocabulary.

    Args:
      backend: See the class.
      eos_token, bos_token, pad_token: Special tokens; without the last padding is `eos_token`.
      chat_template: See the class.
      more_eos: Tokens of the vocabulary that end a message, too.
      template_tokens: Other `chat.TOKENS` by name, for templates alone.
    """
    self.backend = backend
    self.chat_template = chat_template
    self._more_eos = more_eos
    self._names = dict(zip(_SPECIAL, (bos_token, eos_token, pad_token or None), strict=True))
    self._template_tokens = template_tokens or {}

    def known(name: str, token: str) -> int:
      if (found := backend.token_to_id(token)) is None:
        raise ValueError(f'{name}={token!r} is not in the vocabulary of the tokenizer.')
      return found

    ids = {name: known(name, token) for name, token in self._names.items() if token is not None}
    self.bos_id = ids.get('bos_token')
    self.eos_id = ids['eos_token']
    self.pad_id = ids.get('pad_token', self.eos_id)
    more = (known('more_eos', token) for token in more_eos)
    self.eos_ids = tuple(dict.fromkeys([self.eos_id, *more]))
    # Unlike pretrained WordPiece vocabularies, a word-level one has no unknown token.
    self.is_word_level = isinstance(backend.model, tokenizers.models.WordPiece) and (
      backend.token_to_id(backend.model.unk_token) is None
    )
    self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
    self._with_text: dict[str, Mapping[int, str]] = {}  # results of `tokens_with`

  @classmethod
  def from_folder(cls, path: str | os.PathLike[str]) -> Tokenizer:
    """Reads a Hugging Face folder: tokenizer.json and the small files beside it.

    Raises:
      FileNotFoundError: There is no tokenizer.json.
      ValueError: No file names the token that ends a message, or tokenizer.json lacks tokens that
        other files add, see `tokenizer_backends.add_listed`.
    """
    folder = pathlib.Path(path)
    file = folder / 'tokenizer.json'
    if not file.is_file():
      raise FileNotFoundError(
        f'{file}: no such file. Save a fast tokenizer there '
        '(`transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)`).'
      )
    backend = tokenizer_backends.from_file(file)
    config = _fields(folder / 'tokenizer_config.json')
    special = _fields(folder / 'special_tokens_map.json')
    tokenizer_backends.add_listed(backend, config, special, _fields(folder / 'added_tokens.json'))
    sources = [config, special]
    numbers = [_fields(folder / name) for name in ('generation_config.json', 'config.json')]
    ends = ('bos_token', 'eos_token')
    ids = {name: [_numbered(x, f'{name}_id', backend) for x in numbers] for name in ends}
    names = {}
    for name in chat.TOKENS:
      candidates = [_special(fields, name) for fields in sources]
      if name in ids and (name == 'eos_token' or name not in config.values):  # null: no BOS
        candidates += [token for some in ids[name] for token in some]
      names[name] = next((token for token in candidates if token is not None), None)
    bos, eos, pad = (names.pop(name) for name in _SPECIAL)
    if eos is None:
      raise ValueError(
        f'{folder}: no eos_token in tokenizer_config.json, special_tokens_map.json, '
        'generation_config.json or config.json. Add "eos_token" to tokenizer_config.json.'
      )
    more = next(filter(None, ids['eos_token']), [])  # as transformers, of the first file alone
    others = {name: token for name, token in names.items() if token is not None}
    template = _template(folder, config)
    return named(folder, lambda: cls(backend, eos, bos, pad, template, more, others))

  @classmethod
  def from_gguf(cls, metadata: Mapping[str, Any], where: str = 'the GGUF metadata') -> Tokenizer:
    """Reads the metadata of a GGUF file (`gguf.open_gguf(...).metadata`).

    Raises:
      ValueError: The tokenizer is of another kind (see `tokenizer_backends.from_gguf`), is damaged,
        or has no EOS token.
    """
    backend = tokenizer_backends.from_gguf(metadata, where)
    fields, tokens = Fields(metadata, where), metadata['tokenizer.ggml.tokens']
    names = {}
    for ours, theirs in zip(chat.TOKENS, _GGUF_TOKENS, strict=True):
      field = f'tokenizer.ggml.{theirs}_token_id'
      if metadata.get(field) is not None or ours == 'eos_token':
        names[ours] = tokens[fields.whole(field, low=0, high=len(tokens) - 1)]
    template = _text(fields, 'tokenizer.chat_template')
    # Llama's tokenizers, SentencePiece and byte-level, begin with BOS if the file does not say.
    llama = 'llama' == metadata.get('tokenizer.ggml.model')
    llama |= 'llama-bpe' == metadata.get('tokenizer.ggml.pre')
    begins = metadata.get('tokenizer.ggml.add_bos_token', llama)
    if begins is True and names.get('bos_token'):
      tokenizer_backends.begin_with(backend, names['bos_token'])
    own = {name: names.pop(name) for name in _SPECIAL if name in names}
    return named(where, lambda: cls(backend, **own, chat_template=template, template_tokens=names))

  def within(self, rows: int) -> Tokenizer:
    """Returns the tokenizer without added tokens that an embedding of `rows` rows does not have.

    Gemma 3's text-only models have the tokenizer of the multimodal ones. EOS replaces a padding
    token without a row.
    """
    if self.vocab_size <= rows:
      return self
    added = sorted(self.backend.get_added_tokens_decoder().items())
    backend = tokenizer_backends.with_added(self.backend, [x for i, x in added if i < rows])
    bos, eos, pad = (self._names[name] for name in _SPECIAL)
    assert eos is not None, 'a tokenizer has an EOS token'
    is_left = lambda token: backend.token_to_id(token) is not None
    more = [*filter(is_left, self._more_eos)]
    pad = pad if pad and is_left(pad) else None
    return Tokenizer(backend, eos, bos, pad, self.chat_template, more, self._template_tokens)

  def encode(self, text: str, special: bool = True, begins: bool = False) -> list[int]:
    """Returns the token ids of a text; adds neither BOS nor EOS.

    Args:
      text: Any string.
      begins: Whether no text is before it. Then tokenizers such as Llama 2's mark a space there,
        as in transformers.
      special: Whether special tokens spelled in the text, outside of `guarded` spans, become
        their ids. With False (for untrusted text) they are ordinary text. User-defined tokens of
        the model are ordinary text, unless its chat template spells them out.

    Raises:
      ValueError: A word-level tokenizer does not know a word; the message names it. Or the text
        is invalid Unicode (half a surrogate pair).
    """
    return self._encoded(text, special, begins).tolist()

  @functools.cached_property
  def _encoded(self) -> Callable[[str, bool, bool], np.ndarray]:
    """Returns `_ids`, cached: each message is encoded by its author, its readers and limits."""
    return functools.lru_cache(maxsize=2**13)(self._ids)

  def _ids(self, text: str, special: bool, begins: bool) -> np.ndarray:
    text = text if special else self.guarded(text)
    if unknown := self.unknown_words(text, special):
      raise UnknownWordError(
        f'unknown word {unknown[0]!r} ({len(unknown)} in this text): the word-level vocabulary '
        f'has {self.vocab_size} tokens; must be one of its words.'
      )
    try:
      return np.asarray(self._control.encode(text, begins), np.int32)  # ints take ten times as much
    except Exception as error:  # the library raises nothing narrower
      text = text.replace(BREAK, '')
      raise ValueError(f'the text {text[:80]!r} cannot be encoded ({error}).') from error

  def guarded(self, text: str) -> str:
    """Returns untrusted text, marked so that `encode` reads no special token in it.

    It forms none together with text around it, either.

    Raises:
      ValueError: The text is invalid Unicode, or spells a special token of a single character.
    """
    return self._control.guarded(text)

  def unknown_words(self, text: str, special: bool = True) -> list[str]:
    """Returns words that a word-level tokenizer cannot encode; none for other tokenizers."""
    if not self.is_word_level:
      return []
    names = self._control.names
    if special:
      for name in names:
        text = text.replace(name, ' ')
    words = text.replace(BREAK, '').split()
    return [word for word in words if word in names or not self._knows(word)]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of token ids, special tokens spelled out.

    Tokens that decode to no text are spelled out if there are no others.
    """
    ids = np.asarray(ids, int).tolist()
    text = self._decode(ids)
    return text or ''.join(token for token in map(self.backend.id_to_token, ids) if token)

  def decode_begun(self, ids: Sequence[int]) -> str:
    """Returns the text of the first ids of a text, without an incomplete last character."""
    return self._decode(ids).rstrip('\ufffd')

  def _decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids that continue another text, with its leading space."""
    before = self._control.before
    text = self.backend.decode([*before.ids, *ids], skip_special_tokens=False)
    return text[len(before.decoded) :]

  def unsaid(self, rows: int) -> tuple[tuple[int, int], ...]:
    """Returns ranges `(first, end)` of the ids below `rows` that decode to no text.

    These ids have no token, or one that adds nothing to a text. EOS is not among them.
    """
    texts = self._texts
    other = next((i for i, text in enumerate(texts) if text.strip()), self.eos_id)

    def is_said(i: int) -> bool:
      if i in self.eos_ids or (i < len(texts) and texts[i]):
        return True
      return i < len(texts) and self._decode([other, i, other]) != self._decode([other] * 2)

    runs = [(said, [*run]) for said, run in itertools.groupby(range(rows), is_said)]
    return tuple((run[0], run[-1] + 1) for said, run in runs if not said)

  def tokens_with(self, text: str) -> Mapping[int, str]:
    """Returns the ids of tokens that contain a text, each with its prefix before the text.

    Special tokens are left out. A word-level vocabulary yields none.
    """
    if self.is_word_level:
      return {}
    if text not in self._with_text:
      self._with_text[text] = {
        i: said.partition(text)[0]
        for i, said in enumerate(self._texts)
        if text in said and i not in self._control.special
      }
    return self._with_text[text]

  @functools.cached_property
  def _texts(self) -> list[str]:
    """Returns the text of each id by itself, "" for ids without a token."""
    before = self._control.before
    ids = [[*before.ids, i] for i in range(self.vocab_size)]
    texts = self.backend.decode_batch(ids, skip_special_tokens=False)
    return [text[len(before.decoded) :] for text in texts]

  @functools.cached_property
  def begins_with(self) -> tuple[int, ...]:
    """Returns the ids that the model's post-processor puts before a text: BOS, or nothing."""
    found = self.backend.encode('', add_special_tokens=True).ids[:1]
    return tuple(found) if found == [self.bos_id] else ()

  @property
  def marked_after(self) -> frozenset[int]:
    """Returns the ids behind which `encode` marks a space, as where a text `begins`."""
    return self._control.special if self._control.before.recurs else frozenset()

  @functools.cached_property
  def chat_end_id(self) -> int:
    """Returns the special token with which the chat template closes an assistant message.

    It is EOS except for base models: Qwen2.5's has ChatML and another EOS.

    Raises:
      ValueError: There is no chat template, or it is broken.
    """
    said = [{'role': 'user', 'content': ''}, {'role': 'assistant', 'content': chat.SLOT}]
    behind = self.render_chat(said).partition(chat.SLOT)[2]
    ids = [] if self.unknown_words(behind) else self.encode(behind)
    return ids[0] if ids and ids[0] in self._control.special else self.eos_id

  @property
  def end_ids(self) -> list[int]:
    """Returns the ids that end a message: `eos_ids`, and `chat_end_id` if it is another."""
    ids = [*self.eos_ids]
    if self.chat_template is not None:
      with contextlib.suppress(ValueError):  # a broken template is not used
        ids.append(self.chat_end_id)
    return list(dict.fromkeys(ids))

  def render_chat(
    self,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = False,
    variables: Mapping[str, Any] | None = None,
  ) -> str:
    """Renders a conversation in the model's own chat format (see `chat.render`).

    Raises:
      ValueError: There is no chat template, or it refuses these messages.
    """
    template, names = self._chat()
    return chat.render(template, messages, add_generation_prompt, {**(variables or {}), **names})

  def check_chat(self, *, system: bool, variables: Mapping[str, Any] | None = None) -> None:
    """Checks that the chat template can be used by agents (see `chat.check`).

    Raises:
      ValueError: There is no chat template, it is broken, or does not read one of the variables.
    """
    template, names = self._chat()
    chat.check_variables(template, variables or {})
    chat.check(template, system=system, variables={**(variables or {}), **names})

  def _chat(self) -> tuple[str, dict[str, str]]:
    """Returns the chat template and its variables for special tokens."""
    if self.chat_template is None:
      raise ValueError(
        'this tokenizer has no chat template: use a role with a plain prompt, or an "-Instruct" '
        'model, or set `tokenizer.chat_template`.'
      )
    names = {name: token for name, token in self._names.items() if token is not None}
    return self.chat_template, {**names, **self._template_tokens}

  @functools.cached_property
  def fingerprint(self) -> str:
    """Returns the SHA-256 (hex) of vocabulary and merges: equal iff ids mean the same text."""
    model = json.loads(self.backend.model.__getstate__())
    # Merges are "a b" or ["a", "b"], by version of the file.
    merges = [m if isinstance(m, str) else ' '.join(m) for m in model.get('merges', [])]
    vocab = sorted(self.backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    return hashlib.sha256(json.dumps([vocab, merges]).encode()).hexdigest()

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes tokenizer.json and tokenizer_config.json, for `from_folder` and transformers."""
    folder = pathlib.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    self.backend.save(str(folder / 'tokenizer.json'))
    config = {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'clean_up_tokenization_spaces': False,
      **self._names,
      **self._template_tokens,
    }
    if self.chat_template is not None:
      config |= {'chat_template': self.chat_template}
    write_object(folder / 'tokenizer_config.json', config)

  @functools.cached_property
  def _control(self) -> ControlTokens:
    return ControlTokens(self.backend, self.chat_template)

  @functools.cached_property
  def _knows(self) -> Callable[[str], bool]:
    @functools.lru_cache(maxsize=65536)
    def knows(word: str) -> bool:
      try:
        return bool(self._control.plain.encode(word, add_special_tokens=False).ids)
      except Exception:
        return False

    return knows


def word_level(words: Sequence[str], chat_template: str | None = None) -> Tokenizer:
  """Returns a tokenizer of whole words, for models trained from scratch.

  Ids: `<pad>` 0, `<eos>` 1, newline 2, then `words` in order. Text is split at
  whitespace; without pieces `encode(decode(ids)) == ids` for all ids.

  Args:
    words: Vocabulary, without whitespace and duplicates; entries that begin with '##' are
      pieces that continue a word (see `tokenizer_backends.word_level`).
    chat_template: Jinja2 source; every word in it must be in `words`.

  Raises:
    ValueError: A word contains whitespace or occurs twice.
  """
  backend = tokenizer_backends.word_level(words, special=WORD_LEVEL_SPECIAL)
  return Tokenizer(backend, eos_token='<eos>', pad_token='<pad>', chat_template=chat_template)


def _fields(file: pathlib.Path) -> Fields:
  """Returns the fields of a JSON file, none if there is no such file."""
  return Fields(read_object(file) if file.is_file() else {}, str(file))


def _text(fields: Fields, field: str) -> str | None:
  value = fields.values.get(field)
  if value is not None and not is_text(value):
    raise fields.wrong(field, 'a text')
  return value


def _special(fields: Fields, name: str) -> str | None:
  """Returns a special token, stored as a string or as `{"content": ...}`."""
  if isinstance(fields.values.get(name), Mapping):
    return _text(fields.section(name), 'content')
  return _text(fields, name)


def _numbered(fields: Fields, field: str, backend: tokenizers.Tokenizer) -> list[str]:
  """Returns the tokens of an id or of several; -1 means none in old files."""
  value = fields.values.get(field)
  given = [i for i in (value if isinstance(value, list) else [value]) if i not in (None, -1)]
  ids = [Fields({field: i}, fields.where).whole(field, low=0) for i in given]
  return [token for token in map(backend.id_to_token, ids) if token is not None]


def _template(folder: pathlib.Path, config: Fields) -> str | None:
  file = folder / 'chat_template.jinja'
  if file.is_file():
    try:
      return file.read_text(encoding='utf-8')
    except UnicodeDecodeError as error:
      raise ValueError(f'{file}: not UTF-8 text ({error}).') from error
  if not isinstance(several := config.values.get('chat_template'), list):
    return _text(config, 'chat_template')
  if not all(isinstance(entry, Mapping) for entry in several):
    raise config.wrong('chat_template', 'a text, or a list of {"name": ..., "template": ...}')
  named = {str(entry.get('name')): entry.get('template') for entry in several}
  return _text(Fields(named, config.where, 'chat_template.'), 'default')
