"""Compares SentencePiece vocabularies of GGUF files with the algorithm in Python."""

from __future__ import annotations

import itertools
import random
import re

import hypothesis
import numpy as np
import pretrained
import pytest
from hypothesis import strategies as st

from agent_gspo.models.io import gguf
from agent_gspo.models.text.tokenizer import Tokenizer

_BYTES = [f'<0x{i:02X}>' for i in range(256)]
_MARKED = ['<pad>', '<eos>', '<bos>', '<unk>', *_BYTES, '\n', '\n\n', '  ', '   ']
_TYPES = [3, 3, 3, 2, *[6] * 256, *[4] * 4]
_LETTERS = 'abc<0x41>▁'
_TEXT = '▁aab▁cab<0x41>abcb▁ba' * 3
_CUTS = {_TEXT[i : i + n] for n in (2, 3, 4, 6) for i in range(0, len(_TEXT) - n, 2)}
_PIECES = sorted(_CUTS - {*_MARKED})


def _metadata(seed: int) -> dict:
  pieces = [*dict.fromkeys(_LETTERS), *_PIECES]
  ranks = np.random.default_rng(seed).permutation(len(pieces))
  tokens = [*_MARKED, *pieces]
  return {
    'tokenizer.ggml.model': 'llama',
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.scores': [-1000.0] * len(_MARKED) + [-float(rank) for rank in ranks],
    'tokenizer.ggml.token_type': [*_TYPES, *[1] * len(pieces)],
    'tokenizer.ggml.add_space_prefix': False,
    'tokenizer.ggml.unknown_token_id': 3,
    'tokenizer.ggml.bos_token_id': 2,
    'tokenizer.ggml.eos_token_id': 1,
  }


class _Reference:
  """Joins the adjacent pieces whose whole scores highest, the leftmost of equals first."""

  def __init__(self, metadata: dict):
    self.ids = {t: i for i, t in enumerate(metadata['tokenizer.ggml.tokens'])}
    self.kinds, scores = (metadata[f'tokenizer.ggml.{x}'] for x in ('token_type', 'scores'))
    self.score = {t: scores[i] for t, i in self.ids.items() if self.kinds[i] == 1}
    self.alone = {t.replace(' ', '▁'): i for t, i in self.ids.items() if self.kinds[i] == 4}
    control = [re.escape(t) for t, i in self.ids.items() if self.kinds[i] == 3]
    self.control = re.compile(f'({"|".join(sorted(control, key=len, reverse=True))})')
    marked = map(re.escape, sorted(self.alone, key=len, reverse=True))
    self.symbol = re.compile(f'{"|".join(marked)}|.', re.DOTALL)

  def encode(self, text: str) -> list[int]:
    parts = self.control.split(text)
    return [i for n, x in enumerate(parts) for i in ([self.ids[x]] if n % 2 else self._plain(x))]

  def _plain(self, text: str) -> list[int]:
    symbols = self.symbol.findall(text.replace(' ', '▁'))
    joined = lambda a, b: not {a, b} & self.alone.keys() and a + b in self.score
    while True:
      pairs = enumerate(itertools.pairwise(symbols))
      found = [(-self.score[a + b], i) for i, (a, b) in pairs if joined(a, b)]
      if not found:
        break
      i = min(found)[1]
      symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    ids = []
    for symbol in symbols:
      bytes_ = [self.ids[_BYTES[byte]] for byte in symbol.encode()]
      known = self.ids.get(symbol) if symbol in self.score else self.alone.get(symbol)
      ids += bytes_ if known is None else [known]
    return ids


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(st.text('abc<0x41> \n▁é🙂', max_size=40), st.integers(0, 3))
def test_pieces_are_those_of_the_algorithm(text, seed):
  metadata = _metadata(seed)
  tokenizer = Tokenizer.from_gguf(metadata)
  ids = tokenizer.encode(text)
  assert ids == _Reference(metadata).encode(text)
  assert tokenizer.decode(ids) == text.replace('▁', ' ')


def test_texts_begin_with_bos_unless_the_file_says_otherwise(tmp_path):
  tokenizer = Tokenizer.from_gguf(_metadata(0))
  assert tokenizer.begins_with == (2,)
  flag = 'tokenizer.ggml.add_bos_token'
  assert Tokenizer.from_gguf({**_metadata(0), flag: False}).begins_with == ()
  tokenizer.save(tmp_path)
  again = Tokenizer.from_folder(tmp_path)
  assert again.encode('ab  c é<bos>') == tokenizer.encode('ab  c é<bos>')
  assert 2 not in tokenizer.encode('<bos>', special=False)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'add_space_prefix': True}, 'add_space_prefix=True must be false; load .* hf:<folder>'),
    ({'add_space_prefix': None}, 'add_space_prefix=None must be false'),
    ({'scores': [0.0]}, r'scores=\[0.0\] must be a list of'),
    ({'scores': None}, 'lacks tokenizer.ggml.scores'),
    ({'unknown_token_id': 10**6}, 'unknown_token_id=1000000 must be'),
  ],
)
def test_vocabularies_that_are_not_read(change, message):
  change = {f'tokenizer.ggml.{key}': value for key, value in change.items()}
  with pytest.raises(ValueError, match=message):
    Tokenizer.from_gguf({**_metadata(0), **change})


def _odd_strings(count: int) -> list[str]:
  rng = random.Random(0)
  words = [
    *'the Hello 42 3.14 1,000 naïve 日本語 한국어 العربية हिन्दी <eos> <0x41> ▁▁ </table>'.split(),
    *'def \\frac{1}{2} 𝔘 ½ … “q” ﬁ e\u0301 🙂 👩\u200d👧 \ufeff \xa0 \x00 \u2028'.split(' '),
  ]
  blanks = ['', ' ', '\n', '\t', ' ' * 5, ' ' * 40, '\n' * 35, '\r\n']
  draw = lambda: ''.join(rng.choice(words) + rng.choice(blanks) for _ in range(rng.randint(1, 12)))
  return [draw() for _ in range(count)]


@pytest.mark.slow
def test_ids_of_gemmas_file_are_those_of_the_algorithm():
  metadata = gguf.open_gguf(pretrained.gemma_file()).metadata
  tokenizer, reference = Tokenizer.from_gguf(metadata), _Reference(metadata)
  for text in _odd_strings(2000):
    assert tokenizer.encode(text) == reference.encode(text), repr(text)
