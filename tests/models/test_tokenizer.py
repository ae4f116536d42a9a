"""Compares tokenizers with two references that share no code with ours.

1. Byte-level BPE written out below in Python (`regex` for the word splitting), for the
   smollm, qwen2 and llama-bpe ways of splitting.
2. transformers: `AutoTokenizer(gguf_file=...)`, its Qwen2 tokenizer, and its Auto classes on
   what we save. Its GGUF converter forgets that SmolLM splits digits off first, which
   shows where two or more spaces stand before a digit; those strings are left to 1.
"""

from __future__ import annotations

import itertools
import json
import random
import re

import pretrained
import pytest
import tokenizers

from agent_gspo.models.text import tokenizer_backends
from agent_gspo.models.text.tokenizer import Tokenizer, word_level

_HANDMADE = [
  '',
  ' ',
  '   ',
  '\n',
  '\n\n\n',
  '\t\tx',
  'a  1',
  '   1\n\n 22',
  '12345',
  ' 12345',
  '3.14159 + 2,718 = 5.859',
  '-17%',
  '1/2 ½ ² ٣ Ⅷ',
  'x=1;  y = 2\n\tz',
  "I'm sure they'll say it's fine, don't we've I'D",
  'Café naïve Ångström',
  'e\u0301 combining',
  '你好，世界！12个',
  '日本語とカタカナ ー',
  'Россия и Україна',
  'مرحبا بالعالم',
  'ไทย हिन्दी',
  '😀👍🏽🇺🇸 ❤️ 👩‍👩‍👧',
  '\u00a0nbsp\u2003em\u200bzero',
  '\ufeffbom',
  'line\r\nline\rline',
  'trailing   ',
  '   leading',
  'def f(x):\n    return x ** 2  # squared\n\n\nclass A:\n  pass\n',
  'for (int i = 0; i < 10; ++i) { a[i] += i; }',
  '{"key": [1, 2, {"a": null}], "b": "\\n"}',
  '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n',
  'a<|im_end|>b <|im_end|> c<|endoftext|><|endoftext|>',
  '<|im_end|',
  '<repo_name>x/y<file_sep>z',
  '\\boxed{42} $\\frac{1}{2}$',
  'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
  '!!!???...---',
  '\x00\x01\x7f',
]
_PIECES = (
  *(
    ' ',
    '  ',
    '\n',
    '\n\n',
    '\t',
    '\r\n',
    '0',
    '7',
    '42',
    '1000',
    '.',
    ',',
    '!',
    '(',
    ')',
    '=',
    '+',
  ),
  *(
    'the',
    'Ann',
    ' has',
    ' eggs',
    'tokenization',
    "'s",
    "'ll",
    'é',
    '你',
    'ß',
    'ДА',
    '🙂',
    '_',
    '"',
    '{',
  ),
  *('x', ' import', ' numpy', '<|im_end|>', '<|im_start|>', '#', '-', '\u00a0', '²'),
)


def _strings(count: int = 400) -> list[str]:
  rng = random.Random(0)
  made = [''.join(rng.choices(_PIECES, k=rng.randint(1, 14))) for _ in range(count)]
  return _HANDMADE + made


def _byte_symbols() -> dict[int, str]:
  """GPT-2's printable stand-in for each byte."""
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  table = {byte: chr(byte) for byte in printable}
  others = [byte for byte in range(256) if byte not in table]
  return table | {byte: chr(256 + i) for i, byte in enumerate(others)}


class _PlainBPE:
  """Implements reference 1."""

  _GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
  _QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
  )
  _LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
  )

  def __init__(self, metadata, pre: str):
    self.regex = pytest.importorskip('regex')
    tokens, kinds = metadata['tokenizer.ggml.tokens'], metadata['tokenizer.ggml.token_type']
    self.pre = pre
    self.ids = {token: i for i, token in enumerate(tokens)}
    self.ranks = {
      tuple(merge.split(' ')): i for i, merge in enumerate(metadata['tokenizer.ggml.merges'])
    }
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)]
    self.special = re.compile('(' + '|'.join(map(re.escape, sorted(special, key=len)[::-1])) + ')')
    self.symbols = _byte_symbols()

  def _words(self, text: str) -> list[str]:
    if self.pre == 'smollm':
      parts = [part for part in self.regex.split(r'(\p{N})', text) if part]
      return [word for part in parts for word in self.regex.findall(self._GPT2, part)]
    return self.regex.findall(self._QWEN2 if self.pre == 'qwen2' else self._LLAMA3, text)

  def _merge(self, word: str) -> list[str]:
    parts = [self.symbols[byte] for byte in word.encode('utf-8')]
    if self.pre == 'llama-bpe' and ''.join(parts) in self.ids:
      return [''.join(parts)]
    while len(parts) > 1:
      pairs = [self.ranks.get(pair, 1 << 30) for pair in itertools.pairwise(parts)]
      best = min(range(len(pairs)), key=pairs.__getitem__)
      if pairs[best] == 1 << 30:
        break
      parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts

  def encode(self, text: str) -> list[int]:
    import unicodedata

    ids = []
    for i, piece in enumerate(self.special.split(text)):
      if i % 2:
        ids.append(self.ids[piece])
        continue
      piece = unicodedata.normalize('NFC', piece) if self.pre == 'qwen2' else piece
      ids += [self.ids[part] for word in self._words(piece) for part in self._merge(word)]
    return ids


@pytest.fixture(scope='module')
def metadata():
  from agent_gspo.models.io import gguf

  return gguf.open_gguf(pretrained.smollm_file()).metadata


@pytest.fixture(scope='module')
def smollm(metadata):
  return Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize('pre', ['smollm', 'qwen2', 'llama-bpe'])
def test_ids_equal_plain_bpe(metadata, pre):
  tokenizer = Tokenizer.from_gguf({**metadata, 'tokenizer.ggml.pre': pre})
  reference = _PlainBPE(metadata, pre)
  strings = _strings()
  assert len(strings) > 300
  for text in strings:
    assert tokenizer.encode(text) == reference.encode(text), repr(text)


@pytest.mark.slow
def test_ids_equal_transformers_on_the_gguf_file(smollm):
  pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  file = pretrained.smollm_file()
  reference = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
  strings = [text for text in _strings() if not re.search(r'\s\s\d|[²½٣Ⅷ]', text)]
  assert len(strings) > 300
  for text in strings:
    assert smollm.encode(text) == reference.encode(text, add_special_tokens=False), repr(text)
  assert smollm.eos_id == reference.eos_token_id == 2
  assert smollm.pad_id == reference.pad_token_id == 2
  assert smollm.vocab_size == len(reference) == 49_152


def test_qwen2_ids_equal_transformers(metadata):
  transformers = pytest.importorskip('transformers')
  tokenizer = Tokenizer.from_gguf({**metadata, 'tokenizer.ggml.pre': 'qwen2'})
  tokens = metadata['tokenizer.ggml.tokens']
  reference = transformers.Qwen2Tokenizer(
    vocab={token: i for i, token in enumerate(tokens)},
    merges=[tuple(merge.split(' ')) for merge in metadata['tokenizer.ggml.merges']],
    additional_special_tokens=tokens[:17],
    unk_token=tokens[0],
  )
  for text in _strings():
    assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False), repr(text)


def test_saved_tokenizer_is_the_same_in_transformers_and_here(smollm, tmp_path):
  transformers = pytest.importorskip('transformers')
  smollm.save(tmp_path)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  ours = Tokenizer.from_folder(tmp_path)
  assert ours.fingerprint == smollm.fingerprint
  for text in _strings():
    ids = smollm.encode(text)
    assert theirs.encode(text) == ids, repr(text)
    assert ours.encode(text) == ids
    assert theirs.decode(ids) == smollm.decode(ids)
  for name in ('eos_id', 'bos_id', 'pad_id', 'vocab_size', 'chat_template'):
    assert getattr(ours, name) == getattr(smollm, name)


def test_decode_gives_back_the_text(smollm):
  for text in _strings():
    assert smollm.decode(smollm.encode(text)) == text
  assert smollm.backend.decode(smollm.encode('a<|im_end|>b'), skip_special_tokens=True) == 'ab'


def test_special_tokens_can_be_read_as_plain_text(smollm):
  text = 'hi<|im_end|><|im_start|>system'
  assert smollm.eos_id in smollm.encode(text)
  plain = smollm.encode(text, special=False)
  assert not set(plain) & set(range(17))
  assert smollm.decode(plain) == text
  assert smollm.encode('no markup', special=False) == smollm.encode('no markup')


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'tokenizer.ggml.model': 't5'}, "model='t5'"),
    ({'tokenizer.ggml.pre': 'tekken'}, "pre='tekken'.*smollm, qwen2, llama-bpe"),
    ({'tokenizer.ggml.eos_token_id': None}, 'eos_token_id'),
  ],
)
def test_other_gguf_tokenizers_are_refused(metadata, change, message):
  with pytest.raises(ValueError, match=message):
    Tokenizer.from_gguf({**metadata, **change})


def _small(pre: str, tokens: list[str], types: list[int], merges: list[str]) -> Tokenizer:
  """Returns 256 bytes (ids in byte order), then `tokens`; the stop token is 257."""
  symbols = [symbol for _, symbol in sorted(_byte_symbols().items())]
  return Tokenizer.from_gguf(
    {
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': pre,
      'tokenizer.ggml.tokens': [*symbols, *tokens],
      'tokenizer.ggml.token_type': [1] * 256 + types,
      'tokenizer.ggml.merges': merges,
      'tokenizer.ggml.eos_token_id': 257,
    }
  )


@pytest.mark.parametrize('rows', [258, 259, 260])
def test_without_added_tokens_the_rest_is_as_if_the_file_lacked_them(rows):
  backend = _small('qwen2', ['ab', '<|end|>'], [1, 3], ['a b']).backend
  backend.add_tokens(['<extra>'])
  backend.add_special_tokens(['<image>'])
  data = json.loads(backend.to_str())
  data['added_tokens'] = [token for token in data['added_tokens'] if token['id'] < rows]
  expected = tokenizers.Tokenizer.from_str(json.dumps(data))
  tokenizer = Tokenizer(backend, '<|end|>').within(rows)
  assert tokenizer.backend.to_str() == expected.to_str()
  for text in ('ab<|end|>é <extra>', '<image>12'):
    assert tokenizer.encode(text) == expected.encode(text).ids
    plain = tokenizer.encode(text, special=False)
    assert not {257, 259} & {*plain}
    assert tokenizer.decode(plain) == text
  assert backend.token_to_id('<image>') == 259


def test_user_defined_and_unused_tokens_of_gguf():
  tokenizer = _small('qwen2', ['ab', '<|end|>', '<tool_call>', '[PAD259]'], [1, 3, 4, 5], ['a b'])
  assert tokenizer.encode('ab<tool_call><|end|>') == [256, 258, 257]
  assert tokenizer.vocab_size == 259
  assert tokenizer.backend.decode([256, 258, 257], skip_special_tokens=True) == 'ab<tool_call>'
  assert tokenizer.bos_id is None
  assert tokenizer.pad_id == tokenizer.eos_id == 257


@pytest.mark.parametrize(
  ('pre', 'told', 'begins'),
  [
    ('llama-bpe', {}, True),
    ('llama-bpe', {'tokenizer.ggml.add_bos_token': False}, False),
    ('qwen2', {}, False),
    ('qwen2', {'tokenizer.ggml.add_bos_token': True}, True),
  ],
)
def test_llama3_begins_with_bos_unless_its_file_says_otherwise(pre, told, begins):
  symbols = [symbol for _, symbol in sorted(_byte_symbols().items())]
  metadata = {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': pre,
    'tokenizer.ggml.tokens': [*symbols, 'ab', '<|begin|>', '<|end|>'],
    'tokenizer.ggml.token_type': [1] * 257 + [3, 3],
    'tokenizer.ggml.merges': ['a b'],
    'tokenizer.ggml.bos_token_id': 257,
    'tokenizer.ggml.eos_token_id': 258,
  }
  assert Tokenizer.from_gguf({**metadata, **told}).begins_with == ((257,) if begins else ())


def test_llama3_takes_a_whole_word_of_the_vocabulary_that_no_merge_reaches():
  tokens, types, merges = ['ab', '<|end|>', 'abc'], [1, 3, 1], ['a b']
  assert _small('llama-bpe', tokens, types, merges).encode('abc') == [258]
  assert _small('smollm', tokens, types, merges).encode('abc') == [256, ord('c')]


def _folder(tmp_path, **files):
  word_level(['a', '<s>']).backend.save(str(tmp_path / 'tokenizer.json'))
  for name, content in files.items():
    (tmp_path / f'{name}.json').write_text(json.dumps(content))
  return tmp_path


def test_special_tokens_are_found_in_every_file(tmp_path):
  token = {'content': '<eos>', 'lstrip': False}
  found = Tokenizer.from_folder(_folder(tmp_path, tokenizer_config={'eos_token': token}))
  assert (found.eos_id, found.pad_id, found.bos_id) == (1, 1, None)
  (tmp_path / 'tokenizer_config.json').unlink()
  _folder(tmp_path, generation_config={'eos_token_id': [1, 0], 'bos_token_id': 4})
  _folder(tmp_path, config={'eos_token_id': 3})  # transformers reads the other file
  found = Tokenizer.from_folder(tmp_path)
  assert (found.eos_id, found.bos_id, found.eos_ids) == (1, 4, (1, 0))
  _folder(tmp_path, tokenizer_config={'eos_token': None, 'bos_token': None})  # it sets no BOS
  found = Tokenizer.from_folder(tmp_path)
  assert (found.eos_id, found.bos_id) == (1, None)
  _folder(tmp_path, tokenizer_config={'eos_token': 'a'})
  found = Tokenizer.from_folder(tmp_path)
  assert (found.eos_id, found.end_ids) == (3, [3, 1, 0])
  (tmp_path / 'tokenizer_config.json').unlink()
  _folder(tmp_path, special_tokens_map={'eos_token': 'a', 'pad_token': '<pad>'})
  found = Tokenizer.from_folder(tmp_path)
  assert (found.eos_id, found.pad_id) == (3, 0)
  (tmp_path / 'generation_config.json').unlink()
  assert Tokenizer.from_folder(tmp_path).eos_ids == (3,)


def _config(folder, **fields):
  file = folder / 'tokenizer_config.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture
def adding(tmp_path):
  """Writes a folder whose config changes a token's flags, marks one as added and adds one."""
  tokenizer = _small('qwen2', ['ab', '<|end|>', '<|in|>'], [1, 3, 1], ['a b'])
  tokenizer.save(tmp_path)
  added = {
    '259': {'content': '<|new|>', 'lstrip': True, 'normalized': False, 'special': False},
    '258': {'content': '<|in|>', 'normalized': False, 'special': True},
    '257': {'content': '<|end|>', 'rstrip': True, 'normalized': False, 'special': True},
  }
  _config(tmp_path, added_tokens_decoder=added, extra_special_tokens=['<|in|>', '<|end|>'])
  return tmp_path


_ADDING = 'ab<|end|>\n <|in|> a \n<|new|>b'


def test_added_tokens_of_the_config_are_added(adding):
  tokenizer = Tokenizer.from_folder(adding)
  ids = [256, 257, 258, 32, 97, 259, 98]
  assert tokenizer.encode(_ADDING) == ids
  plain = tokenizer.encode(_ADDING, special=False)
  assert not {257, 258} & {*plain}
  assert tokenizer.vocab_size == 260
  tokenizer.save(adding / 'saved')
  assert Tokenizer.from_folder(adding / 'saved').encode(_ADDING) == ids


def test_added_tokens_of_the_config_are_those_of_transformers(adding):
  theirs = pytest.importorskip('transformers').AutoTokenizer.from_pretrained(adding)
  ours = Tokenizer.from_folder(adding).backend
  assert theirs.encode(_ADDING) == ours.encode(_ADDING).ids
  own = lambda backend: {i: repr(x) for i, x in backend.get_added_tokens_decoder().items()}
  assert own(theirs.backend_tokenizer) == own(ours)


@pytest.mark.parametrize(
  ('file', 'fields', 'message'),
  [
    (
      'tokenizer_config',
      {'added_tokens_decoder': {'9': {'content': '<|call|>'}}},
      'as id 9; .* is 5',
    ),
    ('tokenizer_config', {'added_tokens_decoder': {'x': {'content': '<|call|>'}}}, "'x'"),
    ('tokenizer_config', {'added_tokens_decoder': {'5': {'content': 7}}}, 'content=7 must be'),
    ('tokenizer_config', {'added_tokens_decoder': {'5': {'content': 'b', 'lstrip': 1}}}, 'lstrip'),
    ('tokenizer_config', {'additional_special_tokens': ['<eos>', '<|call|>']}, 'lacks'),
    ('tokenizer_config', {'extra_special_tokens': {'image_token': '<|call|>'}}, 'lacks'),
    ('tokenizer_config', {'extra_special_tokens': '<|call|>'}, 'must be'),
    ('special_tokens_map', {'additional_special_tokens': [{'content': '<|call|>'}]}, 'lacks'),
    ('added_tokens', {'<eos>': 1, '<|call|>': 5}, 'lacks'),
  ],
)
def test_added_tokens_without_their_id_are_refused(tmp_path, file, fields, message):
  _folder(tmp_path, **{file: fields})
  with pytest.raises(ValueError, match=rf'{file}\.json.*{message}'):
    Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize('setting', ['truncation', 'padding'])
def test_what_training_saved_of_lengths_is_left_alone(smollm, tmp_path, setting):
  text = 'Ann has 7 eggs, Ben has 12. How many in all?'
  smollm.save(tmp_path)
  backend = tokenizers.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  if setting == 'truncation':
    backend.enable_truncation(8)
  else:
    backend.enable_padding(length=64)
  backend.save(str(tmp_path / 'tokenizer.json'))
  found = Tokenizer.from_folder(tmp_path)
  assert found.encode(text) == smollm.encode(text)
  assert found.encode(text, special=False) == smollm.encode(text)


def test_texts_begin_with_bos_where_the_model_says_so(smollm, tmp_path):
  assert smollm.begins_with == ()
  backend = tokenizers.Tokenizer.from_str(smollm.backend.to_str())
  tokenizer_backends.begin_with(backend, '<|im_start|>')
  begun = Tokenizer(backend, eos_token='<|im_end|>', bos_token='<|im_start|>')
  assert begun.begins_with == (begun.bos_id,)
  assert begun.encode('a') == smollm.encode('a')
  begun.save(tmp_path)
  assert Tokenizer.from_folder(tmp_path).begins_with == (begun.bos_id,)


def test_the_end_of_a_chat_message_is_that_of_the_template(smollm):
  assert smollm.chat_end_id == smollm.eos_id
  base = Tokenizer(smollm.backend, eos_token='<|endoftext|>', chat_template=smollm.chat_template)
  assert base.decode([base.chat_end_id]) == '<|im_end|>'
  plain = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
  other = Tokenizer(smollm.backend, eos_token='<|endoftext|>', chat_template=plain)
  assert other.chat_end_id == other.eos_id


def test_chat_template_is_found_in_every_place(tmp_path):
  named = [{'name': 'tool_use', 'template': 'T'}, {'name': 'default', 'template': 'D'}]
  config = {'eos_token': '<eos>', 'chat_template': named}
  assert Tokenizer.from_folder(_folder(tmp_path, tokenizer_config=config)).chat_template == 'D'
  (tmp_path / 'chat_template.jinja').write_text('J\n')
  assert Tokenizer.from_folder(tmp_path).chat_template == 'J\n'


def test_folder_errors_say_what_to_do(tmp_path):
  with pytest.raises(FileNotFoundError, match='save_pretrained'):
    Tokenizer.from_folder(tmp_path)
  with pytest.raises(ValueError, match='Add "eos_token"'):
    Tokenizer.from_folder(_folder(tmp_path))
  with pytest.raises(ValueError, match="eos_token='</s>' is not in the vocabulary"):
    Tokenizer.from_folder(_folder(tmp_path, tokenizer_config={'eos_token': '</s>'}))


def test_own_chat_template_of_smollm2(smollm):
  chat = [{'role': 'system', 'content': 'Brief.'}, {'role': 'user', 'content': 'Hi'}]
  text = '<|im_start|>system\nBrief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n'
  assert smollm.render_chat(chat) == text
  assert smollm.render_chat(chat, add_generation_prompt=True) == f'{text}<|im_start|>assistant\n'
  assert smollm.encode(text).count(smollm.eos_id) == 2
