"""Compares rendered chat templates with transformers'."""

from __future__ import annotations

import json

import micro_run
import pytest
import raw_gguf
import scripted_teams as st

from agent_gspo.config import check as config_lib
from agent_gspo.models.text import chat
from agent_gspo.models.text.tokenizer import Tokenizer, word_level
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.roles import make_role
from agent_gspo.training import setup as setup_lib
from agent_gspo.types import Question

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


_NAMES = ('bos_token', 'pad_token', 'unk_token', 'sep_token', 'cls_token', 'mask_token')
_NAMED = [
  {},
  {
    'bos_token': '<s>',
    'unk_token': '<s>',
    'cls_token': {'__type': 'AddedToken', 'content': '<eos>'},
  },
  {'pad_token': '<pad>', 'sep_token': '<eos>', 'mask_token': '<s>'},
]


def _naming(folder, named):
  """Saves a tokenizer whose files name these tokens, and whose template writes all names."""
  word_level(['<s>']).save(folder)
  template = '|'.join('{{ ' + name + ' }}' for name in (*_NAMES, 'eos_token'))
  config = {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': '<eos>', **named}
  file = folder / 'tokenizer_config.json'
  file.write_text(json.dumps({**config, 'chat_template': template}))


@pytest.mark.parametrize('named', _NAMED)
def test_templates_read_the_special_tokens_that_files_name(tmp_path, named):
  _naming(tmp_path, named)
  (tmp_path / 'config.json').write_text(json.dumps({'pad_token_id': 1}))
  tokens = [named.get(name, '') for name in _NAMES]
  text = '|'.join(x if isinstance(x, str) else x['content'] for x in [*tokens, '<eos>'])
  tokenizer = Tokenizer.from_folder(tmp_path)
  assert tokenizer.render_chat(_CHAT) == text
  assert tokenizer.within(4).render_chat(_CHAT) == text
  tokenizer.save(tmp_path)
  assert Tokenizer.from_folder(tmp_path).render_chat(_CHAT) == text


@pytest.mark.parametrize('named', _NAMED)
def test_templates_read_the_special_tokens_of_transformers(tmp_path, named):
  transformers = pytest.importorskip('transformers')
  _naming(tmp_path, named)
  reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
  expected = reference.apply_chat_template(_CHAT, tokenize=False)
  assert Tokenizer.from_folder(tmp_path).render_chat(_CHAT) == expected


def test_templates_read_the_special_tokens_of_gguf():
  tokens = ['<pad>', '<eos>', '<mask>', 'a', 'b', 'ab']
  fields = {'model': 'gpt2', 'pre': 'qwen2', 'tokens': tokens, 'token_type': [3, 3, 3, 1, 1, 1]}
  fields |= {'merges': ['a b'], 'eos_token_id': 1, 'mask_token_id': 2, 'unknown_token_id': 0}
  metadata = {f'tokenizer.ggml.{name}': value for name, value in fields.items()}
  metadata['tokenizer.chat_template'] = '{{ unk_token }}{{ mask_token }}{{ pad_token }}'
  assert Tokenizer.from_gguf(metadata).render_chat(_CHAT) == '<pad><mask>'


def test_a_prompt_is_the_same_on_every_day():
  """The date is the default of Llama 3's template."""
  assert chat.render("{{ strftime_now('%d %b %Y') }}", _CHAT) == '26 Jul 2024'


def test_chat_template_errors_are_value_errors():
  with pytest.raises(ValueError, match='roles must alternate'):
    chat.render("{{ raise_exception('roles must alternate') }}", _CHAT)
  with pytest.raises(ValueError, match='cannot render'):
    chat.render('{{ messages.append(1) }}', _CHAT)  # the sandbox forbids changes
  with pytest.raises(ValueError, match='no chat template'):
    word_level(['a']).render_chat(_CHAT)
  assert (
    chat.render('{{ enable_thinking }}', _CHAT, variables={'enable_thinking': False}) == 'False'
  )


_THINKING = (
  '{% if strict is defined and strict %}{{ raise_exception("strict") }}{% endif %}'
  "{% if not date is defined %}{% set date = 'today' %}{% endif %}{{ date }}{{ bos_token }}"
  "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
  '{% if add_generation_prompt %}[assistant]'
  '{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}'
  '{% endif %}'
)


def _thinking() -> Tokenizer:
  tokenizer = st.byte_tokenizer()
  return Tokenizer(tokenizer.backend, eos_token='<|im_end|>', chat_template=_THINKING)


def test_a_role_sets_variables_of_the_template():
  tokenizer = _thinking()

  def prompt(**variables):
    role = make_role('r', {'style': 'chat', 'cue': '', 'chat_variables': variables})
    begun = PromptWriter(role, tokenizer).begin(Question('q', 'Hi', ''), 0)
    return tokenizer.decode(begun.prompt([]))

  assert prompt() == 'today[user]Hi\n[assistant]'
  assert prompt(enable_thinking=True) == prompt()
  assert prompt(enable_thinking=False) == 'today[user]Hi\n[assistant]<think></think>'
  assert prompt(date='May 1') == 'May 1[user]Hi\n[assistant]'


def test_roles_with_other_variables_write_other_prompts():
  roles = [
    make_role('r', {'style': 'chat', 'chat_variables': {'date': date}}) for date in ('a', 'b', 'a')
  ]
  assert roles[0] != roles[1]
  assert roles[0] == roles[2]
  assert len(set(roles)) == 2


@pytest.mark.parametrize(
  ('variables', 'message'),
  [
    ({'enable_thinkin': False}, "'enable_thinkin'.*never reads.*date, enable_thinking, strict"),
    ({'m': 1}, "'m'.*never reads"),
    ({'strict': True}, 'The chat template cannot render.*strict'),
    ({'template': 1, 'self': 2}, "'self'.*never reads"),
    ({'raise_exception': 1}, 'never reads'),
  ],
)
def test_variables_that_the_template_cannot_take_are_refused(variables, message):
  _thinking().check_chat(system=True, variables={'enable_thinking': False, 'date': ''})
  with pytest.raises(ValueError, match=message):
    _thinking().check_chat(system=True, variables=variables)


def test_the_run_names_the_role_of_a_variable_and_keeps_it_in_its_config(tmp_path):
  (tmp_path / 'm.gguf').write_bytes(raw_gguf.valid().data())  # its template reads none
  config = micro_run.changed(model__source=f'gguf:{tmp_path / "m.gguf"}', sft__steps=0)
  config['task']['options']['text_style'] = 'plain'
  config['learner']['pack_length'] = 2048
  for role in config['team']['roles'].values():
    role['style'] = 'chat'
  config['team']['roles']['solver']['chat_variables'] = {'enable_thinking': False}
  parts = config_lib.check(config)
  kept = json.loads(json.dumps(parts.config.to_dict()))['team']['roles']['solver']
  assert kept['chat_variables'] == {'enable_thinking': False}
  with pytest.raises(ValueError, match=r"team\.roles\.solver.*'enable_thinking'.*\(none\)"):
    setup_lib.plan(parts)
