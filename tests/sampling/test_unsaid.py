"""Tests ids that decode to no text: they are never sampled and enter no sum."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raw_gguf
import scripted_teams as st
import tiny
import tokenizers
import unsaid_ids

from agent_gspo.models import load
from agent_gspo.models.io import hf
from agent_gspo.models.text.tokenizer import Tokenizer, word_level
from agent_gspo.ops import lm_head
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler


@pytest.mark.parametrize('lora_rank', [0, 4])
def test_ratios_are_one_on_the_first_minibatch(lora_rank):
  found = unsaid_ids.first_update((1, 1, 1), lora_rank=lora_rank)
  assert set(found['tokens']) <= set(unsaid_ids.said().tolist())
  assert len(set(found['tokens'])) > 20
  assert found['metrics']['policy/ratio_error_max'] < 1e-4
  assert found['metrics']['policy/sampler_gap_max'] < 1e-4
  assert found['metrics']['policy/grad_norm'] > 0.01
  assert 0 < found['metrics']['policy/entropy'] <= np.log(len(unsaid_ids.said()))
  assert found['finite']


def test_a_model_with_more_rows_than_tokens_says_its_tokens_alone(tmp_path):
  """Tests an embedding of 559 rows with a tokenizer of 259 ids."""
  tokenizer = st.byte_tokenizer()
  config = tiny.CONFIG.replace(vocab_size=559, tie_embeddings=False)
  params = jax.tree.map(np.array, tiny.params(config))
  params['lm_head']['kernel'][:, tokenizer.vocab_size :] *= 3  # the likeliest of all
  hf.export_hf(config, params, tmp_path, tokenizer)
  model = load.load_model(f'hf:{tmp_path}')
  assert model.config.unsaid == ((259, 559),)
  sample = Sampler(model.config, max_new_tokens=8)
  for temperature in (0.0, 1.0):
    prompts = [np.asarray([n, 5]) for n in range(16)]
    row_keys = keys.row_keys(jax.random.key(0), np.arange(16)[:, None])
    stops = (tokenizer.eos_id,)
    found = sample(model.params, prompts, row_keys, temperature=temperature, stop_ids=stops)
    assert max(map(max, found.token_ids)) < 259
    assert all(tokenizer.decode(ids) for ids in found.token_ids)


def _head(unsaid=(), temperature=0.7):
  rng = np.random.default_rng(0)
  hidden, kernel = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((40, 8), (8, 300)))
  targets = jnp.asarray(rng.choice(unsaid_ids.said(), 40))
  weights = jnp.asarray(rng.normal(size=40), jnp.float32)

  def of(hidden, kernel, targets, unsaid=()):
    found = lm_head.token_logprobs(
      hidden, kernel, targets, jnp.ones(40, bool), temperature=temperature, unsaid=unsaid
    )
    return (found[0] * weights).sum(), found

  return of, hidden, kernel, targets


def test_the_trainers_sums_are_those_of_a_head_without_these_rows():
  of, hidden, kernel, targets = _head()
  said = unsaid_ids.said()
  grad = lambda *args: jax.grad(of, argnums=(0, 1), has_aux=True)(*args)
  (dhidden, dkernel), found = grad(hidden, kernel, targets, unsaid_ids.UNSAID)
  smaller = grad(hidden, kernel[:, said], jnp.searchsorted(jnp.asarray(said), targets))
  (expected_dhidden, expected_dkernel), expected = smaller
  for ours, theirs in zip((*found, dhidden), (*expected, expected_dhidden), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  np.testing.assert_allclose(dkernel[:, said], expected_dkernel, atol=1e-5)
  assert not np.delete(np.asarray(dkernel), said, axis=1).any()


def _sentencepiece() -> Tokenizer:
  """As Llama 2's: a word mark is a space behind another token, and nothing by itself."""
  vocab = {'<s>': 0, '</s>': 1, '▁': 2, 'a': 3, 'b': 5, '\x00': 6}
  backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
  decoders = tokenizers.decoders
  backend.decoder = decoders.Sequence(
    [
      decoders.Replace('▁', ' '),
      decoders.Replace('\x00', ''),
      decoders.Fuse(),
      decoders.Strip(' ', 1, 0),
    ]
  )
  backend.add_special_tokens(['<s>', '</s>'])
  return Tokenizer(backend, eos_token='</s>', bos_token='<s>')


def test_what_no_text_shows_is_found():
  """Finds rows beyond the vocabulary, gaps, and tokens without text; no words or word marks."""
  assert word_level(['a', 'b']).unsaid(5) == ()
  assert word_level(['a', 'b']).unsaid(8) == ((5, 8),)
  assert st.byte_tokenizer().unsaid(259) == ()
  assert _sentencepiece().unsaid(9) == ((4, 5), (6, 9))


def test_unused_tokens_of_gguf_are_unsaid(tmp_path):
  (tmp_path / 'm.gguf').write_bytes(raw_gguf.valid().data())
  assert load.open_model(f'gguf:{tmp_path / "m.gguf"}').config.unsaid == ((259, 260),)


def test_a_message_of_a_word_mark_alone_is_shown():
  tokenizer = _sentencepiece()
  assert tokenizer.decode([2, 3]) == 'a'
  assert tokenizer.decode([2]) == '▁'
  assert tokenizer.decode([]) == tokenizer.backend.decode([0], skip_special_tokens=True) == ''
  assert tokenizer.decode([0, 3]) == '<s>a'  # special tokens are spelled out


def test_an_exported_model_says_nothing_of_it(tmp_path):
  """Other programs read config.json; ours finds the ids again."""
  config = tiny.CONFIG.replace(vocab_size=300, unsaid=((259, 300),))
  hf.export_hf(config, tiny.params(), tmp_path, st.byte_tokenizer())
  assert 'unsaid' not in json.loads((tmp_path / 'config.json').read_text())
  assert load.open_model(f'hf:{tmp_path}').config == config
