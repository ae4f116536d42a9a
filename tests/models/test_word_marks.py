"""Compares prompts encoded in pieces with transformers, for tokenizers with word marks."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.roles import Role
from agent_gspo.types import Question

_PHI3 = (
  "{% for m in messages %}{{'<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n'}}{% endfor %}"
  '{% if add_generation_prompt %}<|assistant|>\n{% endif %}'
)
_MISTRAL = (
  "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{'[INST] ' + m['content'] "
  "+ ' [/INST]'}}{% else %}{{m['content'] + eos_token}}{% endif %}{% endfor %}"
)
_KINDS = ['Prepend', 'first', 'always']


def _tokenizer(kind: str, template: str = _PHI3) -> Tokenizer:
  """Returns a SentencePiece vocabulary as Llama 2's; `kind` is how the mark comes before texts."""
  turns = ('<|end|>', '<|user|>', '<|assistant|>')
  vocab = {name: i for i, name in enumerate(('<unk>', '<s>', '</s>', *turns))}
  pieces = [f'<0x{i:02X}>' for i in range(256)]
  pieces += sorted({*'▁abcdefghijklmnopqrstuvwxyzINST[]/:;.=+0123456789'})
  merges = [('▁', '▁'), ('▁', '4'), ('▁4', '2'), ('▁', '.'), ('I', 'N'), ('▁', '['), ('▁', 'b')]
  for piece in (*pieces, *(a + b for a, b in merges)):
    vocab.setdefault(piece, len(vocab))
  backend = tokenizers.Tokenizer(
    models.BPE(vocab, merges, unk_token='<unk>', fuse_unk=True, byte_fallback=True)
  )
  if kind == 'Prepend':
    backend.normalizer = normalizers.Sequence(
      [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
    )
  else:
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
  backend.decoder = decoders.Sequence(
    [
      *(decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()),
      decoders.Strip(' ', 1, 0),
    ]
  )
  backend.add_special_tokens(['<unk>', '<s>', '</s>'])
  added = [tokenizers.AddedToken(x, rstrip=True, normalized=False, special=True) for x in turns]
  backend.add_special_tokens(added)
  return Tokenizer(backend, '</s>', '<s>', chat_template=template)


def _whole(tokenizer: Tokenizer, text: str) -> list[int]:
  transformers = pytest.importorskip('transformers')
  fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)
  return fast(text, add_special_tokens=False)['input_ids']


def _two_turns(role: Role, tokenizer: Tokenizer) -> list[int]:
  """Returns the prompt behind a turn with the message 'b a', after two messages 42 of others."""
  writer = PromptWriter(role, tokenizer)
  context = writer.begin(Question('q', 'ab 42', '1'), 0)
  context.prompt([])
  context.wrote([*writer.written_ids('b a'), writer.end_id], ended=True)
  heard = tokenizer.encode(' 42')
  return context.prompt([('bc', heard), ('cd', heard)]).tolist()


@pytest.mark.parametrize('kind', _KINDS)
@pytest.mark.parametrize('template', [_PHI3, _MISTRAL])
def test_chat_prompts_in_pieces_are_those_in_one_piece(kind, template):
  tokenizer = _tokenizer(kind, template)
  role = Role(
    'solver', style='chat', opening='{question}\n', incoming='{sender}:{message}\n', cue='go'
  )
  user = [{'role': 'user', 'content': x} for x in ('ab 42\ngo', 'bc: 42\ncd: 42\ngo')]
  messages = [user[0], {'role': 'assistant', 'content': 'b a'}, user[1]]
  text = tokenizer.render_chat(messages, add_generation_prompt=True)
  assert _two_turns(role, tokenizer) == _whole(tokenizer, text)


@pytest.mark.parametrize('kind', _KINDS)
@pytest.mark.parametrize('system', ['ab.\n', ''])
def test_plain_prompts_in_pieces_are_those_in_one_piece(kind, system):
  tokenizer = _tokenizer(kind)
  role = Role(
    'solver', system=system, opening='{question}\n', incoming='{sender}:{message}\n', cue='go:'
  )
  text = f'{system}ab 42\ngo: b a\nbc: 42\ncd: 42\ngo:'
  assert _two_turns(role, tokenizer) == _whole(tokenizer, text)


@pytest.mark.parametrize('kind', _KINDS)
def test_texts_that_continue_others_are_read_back(kind):
  tokenizer = _tokenizer(kind)
  for text in ('42', ' 42', '\n', ' b\n', '.', 'b é 42 </s> ', ' <|end|>42'):
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
  guarded = tokenizer.encode('<|end|>' + tokenizer.guarded('b </s> 42'))
  recurs = kind != 'first'
  assert guarded[1:] == tokenizer.encode('b </s> 42', special=False, begins=recurs)
  assert len(tokenizer.encode('\n')) == 1
  assert tokenizer.encode(' 42') == tokenizer.encode('42', begins=True)
