"""Tests the word-level tokenizer of models that are trained from scratch."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo.models.text.tokenizer import Tokenizer, word_level

_WORDS = ['Ann', 'has', '7', 'eggs', '.', ':', '+', '=', '#s']
_PIECES = ['Ma', '##ra', '##ya', 'has', '##s', 'egg']


@given(st.lists(st.integers(0, len(_WORDS) + 2), max_size=20))
def test_word_level_round_trip_of_ids(ids):
  tokenizer = word_level(_WORDS)
  assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_word_level_text():
  tokenizer = word_level(_WORDS)
  assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id) == (0, 1, None)
  assert tokenizer.vocab_size == 3 + len(_WORDS)
  ids = tokenizer.encode('  Ann has\t7\n\neggs . #s<eos>')
  assert ids == [3, 4, 5, 2, 2, 6, 7, 11, 1]
  assert tokenizer.decode(ids) == 'Ann has 7\n\neggs . #s <eos>'
  assert tokenizer.backend.decode(ids, skip_special_tokens=True) == 'Ann has 7\n\neggs . #s'
  assert tokenizer.encode('') == []


@given(st.lists(st.sampled_from(['Ma', 'Mara', 'Maya', 'has', 'egg', 'eggs', '\n']), max_size=20))
def test_words_are_spelled_in_pieces(words):
  tokenizer = word_level(_PIECES)
  ids = tokenizer.encode(' '.join(words))
  spelled = {'Mara': [3, 4], 'Maya': [3, 5], 'Ma': [3], 'has': [6], 'egg': [8], 'eggs': [8, 7]}
  assert ids == [i for word in words for i in spelled.get(word, [2])]
  assert tokenizer.encode(tokenizer.decode(ids)) == ids
  assert tokenizer.decode(ids).split() == ' '.join(words).split()


def test_what_no_pieces_spell_is_an_unknown_word():
  with pytest.raises(ValueError, match="unknown word 'Maro'"):
    word_level(_PIECES).encode('Mara has Maro')


@pytest.mark.parametrize(('text', 'word'), [('Ann has 8 eggs', '8'), ('Ann  Bob\n', 'Bob')])
def test_word_level_names_the_unknown_word(text, word):
  with pytest.raises(ValueError, match=f"unknown word '{word}'"):
    word_level(_WORDS).encode(text)
  with pytest.raises(ValueError, match="unknown word 'Ann<eos>'"):
    word_level(_WORDS).encode('Ann<eos>', special=False)


@pytest.mark.parametrize('words', [['a b'], [''], ['\n'], ['a', 'a'], ['<eos>']])
def test_word_level_refuses_unusable_words(words):
  with pytest.raises(ValueError, match='words must'):
    word_level(words)


def test_word_level_is_read_by_transformers(tmp_path):
  transformers = pytest.importorskip('transformers')
  tokenizer = word_level(_WORDS, chat_template='{{ messages[0].content }} :')
  tokenizer.save(tmp_path)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  text = 'Ann has 7 eggs .\nAnn : = 7 <eos>'
  ids = tokenizer.encode(text)
  assert theirs.encode(text) == ids
  assert theirs.decode(ids) == tokenizer.decode(ids) == text
  back = Tokenizer.from_folder(tmp_path)
  assert back.encode(text) == ids
  assert back.chat_template == tokenizer.chat_template
  with pytest.raises(ValueError, match="unknown word 'Zoe'"):
    back.encode('Zoe')


def test_fingerprint_depends_on_the_ids_alone():
  one = word_level(['a', 'b']).fingerprint
  assert one == word_level(['a', 'b'], chat_template='x').fingerprint
  assert one != word_level(['b', 'a']).fingerprint


def test_encoded_texts_are_kept_in_few_bytes_and_handed_out_anew():
  words = [f'w{i}' for i in range(2000)]
  tokenizer = word_level(words)
  tokenizer.encode('w0').append(-1)
  texts = [' '.join(words[i:]) for i in range(50)]
  tracemalloc.start()
  try:
    count = sum(len(tokenizer.encode(text)) for text in texts)
    assert tracemalloc.get_traced_memory()[0] < 8 * count
  finally:
    tracemalloc.stop()
  assert tokenizer.encode('w0') == [3]
