"""Text <-> token ids, without torch or transformers."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from agent_gspo.models import backends, chat

_SPECIAL = ('bos_token', 'eos_token', 'pad_token')


class Tokenizer:
  """A vocabulary with its special tokens and chat template.

  Attributes:
    backend: the `tokenizers.Tokenizer` that does the work.
    eos_id: ends a message.
    bos_id: begins a text, or None. Nothing here adds it: templates write it out.
    pad_id: fills rows; may be `eos_id`, so it says nothing about what is padding.
    vocab_size: largest id + 1.
    chat_template: jinja2 source, or None.
  """

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    eos_token: str,
    bos_token: str | None = None,
    pad_token: str | None = None,
    chat_template: str | None = None,
  ):
    """Raises ValueError if a special token is not in the vocabulary."""
    self.backend = backend
    self.chat_template = chat_template
    self._names = dict(zip(_SPECIAL, (bos_token, eos_token, pad_token or eos_token), strict=True))
    ids = {}
    for name, token in self._names.items():
      ids[name] = None if token is None else backend.token_to_id(token)
      if token is not None and ids[name] is None:
        raise ValueError(f'{name}={token!r} is not in the vocabulary of the tokenizer.')
    self.bos_id, self.eos_id, self.pad_id = (ids[name] for name in _SPECIAL)
    self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1

  @classmethod
  def from_folder(cls, path: str | os.PathLike[str]) -> Tokenizer:
    """Reads a Hugging Face folder: tokenizer.json and the small files beside it.

    Raises:
      FileNotFoundError: there is no tokenizer.json.
      ValueError: no file names the token that ends a message.
    """
    folder = pathlib.Path(path)
    file = folder / 'tokenizer.json'
    if not file.is_file():
      raise FileNotFoundError(
        f'{file}: no such file. Save a fast tokenizer there '
        '(`transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)`).'
      )
    backend = tokenizers.Tokenizer.from_file(str(file))
    config = _read_json(folder / 'tokenizer_config.json')
    sources = [config, _read_json(folder / 'special_tokens_map.json')]
    numbers = [_read_json(folder / name) for name in ('generation_config.json', 'config.json')]
    names = {}
    for name in _SPECIAL:
      ids = [entry.get(f'{name}_id') for entry in numbers]
      ids = [i[0] if isinstance(i, list) else i for i in ids]
      candidates = [_content(entry.get(name)) for entry in sources]
      candidates += [None if i is None else backend.id_to_token(i) for i in ids]
      names[name] = next((token for token in candidates if token is not None), None)
    if names['eos_token'] is None:
      raise ValueError(
        f'{folder}: no eos_token in tokenizer_config.json, special_tokens_map.json, '
        'generation_config.json or config.json. Add "eos_token" to tokenizer_config.json.'
      )
    return cls(backend, chat_template=_template(folder, config), **names)

  @classmethod
  def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
    """Reads the metadata of a GGUF file (`gguf.load_gguf(...).metadata`).

    Raises:
      ValueError: not byte-level BPE with a known word splitting, or no EOS token.
    """
    backend = backends.bpe_from_gguf(metadata)
    tokens = metadata['tokenizer.ggml.tokens']
    eos, bos, pad = (
      metadata.get(f'tokenizer.ggml.{name}_token_id') for name in ('eos', 'bos', 'padding')
    )
    if eos is None:
      raise ValueError('the GGUF metadata lacks tokenizer.ggml.eos_token_id.')
    return cls(
      backend,
      eos_token=tokens[eos],
      bos_token=None if bos is None else tokens[bos],
      pad_token=None if pad is None else tokens[pad],
      chat_template=metadata.get('tokenizer.chat_template'),
    )

  def encode(self, text: str, special: bool = True) -> list[int]:
    """Token ids of a text; BOS and EOS only where the text spells them out.

    Args:
      text: any string.
      special: special tokens spelled out in the text become their ids. False makes
        them ordinary text (for text from strangers), all but those that the model's
        own files call user-defined.

    Raises:
      ValueError: a word-level tokenizer does not know a word; the message names it.
    """
    backend = self.backend if special else self._plain_backend
    try:
      return backend.encode(text, add_special_tokens=False).ids
    except Exception as error:  # a word-level tokenizer has no token for what it does not know
      if not isinstance(backend.model, tokenizers.models.WordPiece):
        raise
      raise ValueError(
        f'unknown word {self._first_unknown(text, backend)!r}: the word-level vocabulary has '
        f'{self.vocab_size} tokens. Add it to the list of words.'
      ) from error

  def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
    """Text of token ids, special tokens spelled out unless `skip_special`."""
    return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

  def render_chat(
    self,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = False,
    **variables: Any,
  ) -> str:
    """Text of a conversation in the model's own chat format (see `chat.render`).

    Raises:
      ValueError: there is no chat template, or it refuses these messages.
    """
    if self.chat_template is None:
      raise ValueError(
        'this tokenizer has no chat template: use a role with a plain prompt, or an "-Instruct" '
        'model, or set `tokenizer.chat_template`.'
      )
    names = {name: token for name, token in self._names.items() if token is not None}
    return chat.render(
      self.chat_template, messages, add_generation_prompt, **{**names, **variables}
    )

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of vocabulary and merges: equal iff ids mean the same text."""
    model = json.loads(self.backend.to_str())['model']
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
    }
    if self.chat_template is not None:
      config['chat_template'] = self.chat_template
    text = json.dumps(config, indent=2, ensure_ascii=False) + '\n'
    (folder / 'tokenizer_config.json').write_text(text, encoding='utf-8')

  @functools.cached_property
  def _plain_backend(self) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
    backend.encode_special_tokens = True
    return backend

  def _first_unknown(self, text: str, backend: tokenizers.Tokenizer) -> str:
    for word in text.split():
      try:
        backend.encode(word, add_special_tokens=False)
      except Exception:
        return word
    return text


def word_level(words: Sequence[str], chat_template: str | None = None) -> Tokenizer:
  """A tokenizer of whole words, for models trained from scratch.

  Ids: `<pad>` 0, `<eos>` 1, newline 2, then `words` in their order. Text is split at
  whitespace; without pieces `encode(decode(ids)) == ids` for all ids.

  Args:
    words: the vocabulary, without whitespace and without doubles; those that begin with '##' are
      pieces that continue a word (see `backends.word_level`).
    chat_template: jinja2 source; every word in it must be in `words`.

  Raises:
    ValueError: a word contains whitespace or occurs twice.
  """
  backend = backends.word_level(words, special=('<pad>', '<eos>'))
  return Tokenizer(backend, eos_token='<eos>', pad_token='<pad>', chat_template=chat_template)


def _read_json(file: pathlib.Path) -> dict[str, Any]:
  return json.loads(file.read_text(encoding='utf-8')) if file.is_file() else {}


def _content(token: str | Mapping[str, Any] | None) -> str | None:
  """Special tokens are a string or `{"content": ...}`, by age of the file."""
  return token['content'] if isinstance(token, Mapping) else token


def _template(folder: pathlib.Path, config: Mapping[str, Any]) -> str | None:
  file = folder / 'chat_template.jinja'
  if file.is_file():
    return file.read_text(encoding='utf-8')
  template = config.get('chat_template')
  if isinstance(template, list):  # several, by name
    template = {entry['name']: entry['template'] for entry in template}.get('default')
  return template
