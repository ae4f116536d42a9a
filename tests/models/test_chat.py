"""Chat templates, rendered by transformers and by us."""

from __future__ import annotations

import pytest

from agent_gspo.models.text import chat
from agent_gspo.models.text.tokenizer import Tokenizer, word_level

_CHAT = [
  {'role': 'system', 'content': 'Be brief & <kind>.'},
  {'role': 'user', 'content': 'What is 2 + 2?\n  Really?'},
  {'role': 'assistant', 'content': '4 ü'},
  {'role': 'user', 'content': ''},
]
_TEMPLATES = {
  'blocks are trimmed': (
    '{% for m in messages %}\n    {% if m.role == "user" %}\n[U] {{ m.content | trim }}\n'
    '    {% else %}\n[{{ m["role"] | upper }}] {{ m.content }}\n    {% endif %}\n{% endfor %}\n'
    '{{ bos_token }}{{ eos_token }}{% if add_generation_prompt %}[A]{% endif %}'
  ),
  'json is not escaped': '{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}',
  'loop controls': (
    '{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}x{% endfor %}'
  ),
  'absent tools': '{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}',
  'chatml': (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
  ),
  'generation': (
    '{% for m in messages %}{% generation %}\n{{ m.content }}\n{% endgeneration %}{% endfor %}'
  ),
  'namespace': (
    '{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}'
    '{{ ns.n }}'
  ),
}


@pytest.mark.parametrize('name', _TEMPLATES)
@pytest.mark.parametrize('prompt', [False, True])
def test_chat_equals_transformers(name, prompt):
  transformers = pytest.importorskip('transformers')
  backend, template = word_level(['<s>']).backend, _TEMPLATES[name]
  reference = transformers.PreTrainedTokenizerFast(
    tokenizer_object=backend, bos_token='<s>', eos_token='<eos>'
  )
  expected = reference.apply_chat_template(
    _CHAT, chat_template=template, tokenize=False, add_generation_prompt=prompt
  )
  ours = Tokenizer(backend, eos_token='<eos>', bos_token='<s>', chat_template=template)
  assert ours.render_chat(_CHAT, prompt) == expected


def test_a_prompt_is_the_same_on_every_day():
  """It has the date that Llama 3's template falls back to."""
  assert chat.render("{{ strftime_now('%d %b %Y') }}", _CHAT) == '26 Jul 2024'


def test_chat_template_errors_are_value_errors():
  with pytest.raises(ValueError, match='roles must alternate'):
    chat.render("{{ raise_exception('roles must alternate') }}", _CHAT)
  with pytest.raises(ValueError, match='cannot render'):
    chat.render('{{ messages.append(1) }}', _CHAT)  # the sandbox forbids changes
  with pytest.raises(ValueError, match='no chat template'):
    word_level(['a']).render_chat(_CHAT)
  assert chat.render('{{ enable_thinking }}', _CHAT, enable_thinking=False) == 'False'
