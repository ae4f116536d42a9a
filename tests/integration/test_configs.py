"""Checks the configs of the repository, and that every field has a reader."""

from __future__ import annotations

import ast
import functools
import json
import math
import os
import pathlib
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pretrained
import pytest
from ml_collections import config_dict

from agent_gspo.config import check as config_lib
from agent_gspo.config import default_config
from agent_gspo.models import transformer
from agent_gspo.models.io import hf, hf_config
from agent_gspo.ops.attention import masks
from agent_gspo.tasks import base
from agent_gspo.tasks.registry import make_task
from agent_gspo.training import loop

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FILES = sorted((_ROOT / 'configs').glob('*.py'))
_GENERATED = (
  'relay',
  'half_maze',
  'kuhn',
  'memory',
  'saboteur',
  'common_pool',
  'configs.tasks.codes:Codes',
  'configs.tasks.guessing:Guessing',
  'configs.tasks.lookup:Lookup',
)  # tasks without official files
_DATA = os.environ.get('AGENT_GSPO_DATA_DIR', '')
_PUBLISHED = {  # config.json of Qwen/Qwen2.5-0.5B-Instruct
  'model_type': 'qwen2',
  'vocab_size': 151936,
  'hidden_size': 896,
  'intermediate_size': 4864,
  'num_hidden_layers': 24,
  'num_attention_heads': 14,
  'num_key_value_heads': 2,
  'max_position_embeddings': 32768,
  'rms_norm_eps': 1e-6,
  'rope_theta': 1e6,
  'tie_word_embeddings': True,
  'use_sliding_window': False,
}
_PUBLISHED_PARAMETERS = 494_032_768


def config_of(file: pathlib.Path) -> config_dict.ConfigDict:
  return runpy.run_path(str(file))['get_config']()


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp('cache')


def plain(file: pathlib.Path, cache: pathlib.Path) -> dict:
  """Returns a config as nested dicts; skips the test without the data of its benchmark."""
  config = config_of(file).to_dict()
  if config['task']['name'] not in _GENERATED:
    if not _DATA:
      pytest.skip('set $AGENT_GSPO_DATA_DIR to a folder with the official files')
    config['task']['options']['cache_dir'] = str(cache)
  return config


@pytest.mark.parametrize('file', _FILES, ids=lambda file: file.stem)
def test_valid_and_locked(file, cache):
  assert config_of(file).is_locked
  parts = config_lib.check(plain(file, cache))
  assert parts.team.num_agents > 1


@pytest.mark.parametrize('file', _FILES, ids=lambda file: file.stem)
def test_docstring_says_how_to_run_it(file):
  text = ast.get_docstring(ast.parse(file.read_text(encoding='utf-8'))) or ''
  assert text
  for named in re.findall(r'--config=(\S+)', text):
    assert named.partition(':')[0] == f'configs/{file.name}'


def test_examples_in_the_docs_are_short_and_measured():
  text = (_ROOT / 'docs' / 'usage.md').read_text(encoding='utf-8').partition('### Examples')[2]
  examples = re.findall(r'^\| \[`\w+`\]\(\.\./(\S+)\)', text, re.MULTILINE)
  assert len(examples) == 5
  for file in examples:
    code = (_ROOT / file).read_text(encoding='utf-8')
    assert len(code.splitlines()) <= 40
    told = ast.get_docstring(ast.parse(code))
    pages = [
      (_ROOT / page).read_text(encoding='utf-8') for page in re.findall(r'docs/\S+\.md', told)
    ]
    assert re.search(r'20\d\d-\d\d-\d\d', ''.join([told, *pages]))  # when measured


def _fields(config, prefix='') -> list[str]:
  found = []
  for key, value in config.items():
    path = f'{prefix}{key}'
    if isinstance(value, dict) and path not in ('task.options', 'team.roles'):
      found += _fields(value, f'{path}.')
    else:
      found.append(path)
  return found


def test_every_field_is_read_somewhere():
  sources = [p for folder in ('agent_gspo', 'launch') for p in (_ROOT / folder).rglob('*.py')]
  own = pathlib.Path(config_lib.__file__).parent
  code = '\n'.join(p.read_text(encoding='utf-8') for p in sources if p.parent != own)
  fields = _fields(default_config().to_dict())
  assert len(fields) > 60
  reads = lambda key: re.search(rf"""['"]{key}['"]|\w\.{key}\b(?!\s*=[^=])""", code)
  assert not [field for field in fields if not reads(field.rpartition('.')[2])]


@functools.cache
def _split_texts(task: str, cache: pathlib.Path) -> frozenset[str]:
  questions = make_task(task, cache_dir=cache)
  texts = (q.text for split in base.SPLITS for q in questions.questions(split))
  return frozenset(map(_words, texts))


def _words(text: str) -> str:
  """Returns the words of a problem, equal for problems that differ in numbers only."""
  return ' '.join(re.findall('[a-z]+', text.lower()))


@pytest.mark.parametrize('file', _FILES, ids=lambda file: file.stem)
def test_examples_are_in_no_split(file, cache):
  config = plain(file, cache)
  task = config['task']['name']
  if task in _GENERATED:
    return  # generated, without examples
  shown = [
    _words(line.partition(':')[2])
    for role in config['team']['roles'].values()
    for context, _ in role.get('examples', ())
    for line in context.splitlines()
  ]
  if task == 'dealt':  # demonstrations take the place of examples
    assert not any(shown)
    return
  texts = _split_texts(task, cache)
  assert len(texts) > 1000
  assert not texts & {line for line in shown if line}


def shapes_of(config):
  return jax.eval_shape(functools.partial(transformer.init_params, config), jax.random.key(0))


@pytest.mark.slow
def test_qwen_config_fits_the_published_model():
  config = config_of(_ROOT / 'configs' / 'qwen_gsm8k.py')
  model_config = hf_config.config_from_hf(_PUBLISHED).replace(
    dtype=config.model.dtype, remat=config.model.remat, lora_alpha=config.model.lora_alpha
  )
  count = lambda params: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
  assert count(shapes_of(model_config)) == _PUBLISHED_PARAMETERS
  model_config = model_config.replace(lora_rank=config.model.lora_rank)
  params = shapes_of(model_config)
  rank, width, kv, mlp = config.model.lora_rank, 896, 128, 4864
  inputs_and_outputs = 2 * (width + width) + 2 * (width + kv) + 3 * (width + mlp)
  assert count(params) - _PUBLISHED_PARAMETERS == 24 * rank * inputs_and_outputs

  shape = config.learner.micro_batch_size, config.learner.pack_length
  ids = jax.ShapeDtypeStruct(shape, jnp.int32)
  mask = masks.TreeMask(ids)
  model = transformer.Transformer(model_config)
  hidden, _ = jax.eval_shape(lambda p, *x: model.apply({'params': p}, *x), params, ids, ids, mask)
  assert (hidden.shape, hidden.dtype) == ((*shape, width), jnp.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['qwen_gsm8k', 'gsm8k_dealt'])
def test_qwen_configs_train_a_narrow_model(name, cache, tmp_path):
  """A small step of each: chat template and adapters, or sft; bfloat16, remat, random weights."""
  config = plain(_ROOT / 'configs' / f'{name}.py', cache)
  tokenizer = pretrained.smollm().tokenizer
  narrow = hf_config.config_from_hf(
    _PUBLISHED
    | {
      'vocab_size': tokenizer.vocab_size,
      'hidden_size': 32,
      'intermediate_size': 64,
      'num_hidden_layers': 1,
      'num_attention_heads': 4,
    }
  )
  noise = np.random.default_rng(0)
  params = jax.tree.map(
    lambda leaf: noise.normal(size=leaf.shape, scale=0.1).astype(np.float32), shapes_of(narrow)
  )
  hf.export_hf(narrow, params, tmp_path / 'model', tokenizer)
  config['steps'] = 1
  config['model']['source'] = f'hf:{tmp_path / "model"}'
  config['team']['max_message_tokens'] = 48
  if 'planner' in config['team']['roles']:
    config['team']['roles']['planner']['max_tokens'] = 16
  if config['sft']['epochs']:
    config['team']['max_message_tokens'] = 352  # as long as official rationales
    config['sft'] |= {'epochs': 0.0, 'steps': 2, 'questions': 4, 'save_every': 2}
    config['sft'] |= {'validation_questions': 4, 'patience': 0}
  columns = 832 if config['sft']['steps'] else 512
  config['rollout'] |= {'questions': 4, 'group_size': 2}
  config['learner'] |= {'pack_length': columns, 'micro_batch_size': 1}
  config['sampler'] |= {'prefill_length': columns, 'prefill_rows': 2}
  config['evaluation'] |= {'questions': 2, 'every': 0}
  record = loop.train(config, tmp_path / 'run')
  assert (record['label'], record['step'], record['questions']) == ('trained', 1, 2)
  step = json.loads((tmp_path / 'run' / 'metrics.jsonl').read_text())
  assert step['tokens/written_per_question'] > 32
  assert step['comm/truncated_rate'] > 0.5  # random weights do not stop
  assert math.isfinite(step['policy/grad_norm'])
  assert step['policy/ratio_first_minibatch_error_max'] < 1e-5  # in bfloat16, of the trainer's own
  assert step['policy/tis_weight_mean'] == pytest.approx(1, abs=0.05)
