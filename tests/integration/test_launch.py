"""Tests the commands: their output, and how they end on errors."""

from __future__ import annotations

import atexit
import functools
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import pytest
import small_checkpoints

from agent_gspo.apps.commands import command
from agent_gspo.config import Config
from agent_gspo.config import check as config_lib
from agent_gspo.models import load, lora, presets
from agent_gspo.models.io import hf
from agent_gspo.models.text.tokenizer import Tokenizer, word_level
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.ops.attention import masks
from agent_gspo.training import run_evaluations
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.workdir import checkpoints, json_lines

MICRO = f'--config={micro_run.CONFIG}'

_BAD_CONFIGS = {
  'raises': 'def get_config():\n  raise ValueError("no such trick")\n',
  'syntax': 'def get_config(:\n',
  'import': 'import no_such_module\n',
  'empty': 'x = 1\n',
  'nothing': 'def get_config():\n  return {}\n',
  'half': 'from agent_gspo.config import default_config\n'
  'def get_config():\n  c = default_config()\n  del c.team\n  return c.lock()\n',
  'field': 'from agent_gspo.config import default_config\n'
  'def get_config():\n  c = default_config()\n  c.budget.lambda_tokk = 1.0\n  return c.lock()\n',
}


@functools.cache
def _taken() -> socket.socket:
  """Occupies a port for the life of this process."""
  listening = socket.create_server(('127.0.0.1', 0))
  atexit.register(listening.close)
  return listening


def _cases(folder: pathlib.Path) -> dict[str, tuple[list[str], str]]:
  """Returns command line and expected error by name."""
  new = f'--workdir={folder}/new'
  train = lambda *arguments: ['train', MICRO, new, *arguments]
  several = ['--config.model.lora_rank=2', '--config.policy.sharing=adapters']
  bad = lambda name: ['train', f'--config={folder}/{name}.py', new]
  return {
    'field of a number': (train('--config.steps.foo=1'), '--config: KeyError: Attribute'),
    'wrong type': (
      train('--config.steps=abc'),
      'error: --config.steps=abc: must be a whole number.',
    ),
    'field before file': (['train', '--config.steps=1', MICRO, new], 'before a value for --config'),
    'no config': (
      ['train', new],
      '--config is missing; give a name or a file, such as tiny or configs/tiny.py',
    ),
    'no such config': (
      ['train', '--config=nowhere.py', new],
      "No such file or directory: 'nowhere",
    ),
    'no workdir': (['train', MICRO], '--workdir is missing; name a folder for the run'),
    'config that takes nothing': (
      ['train', f'{MICRO}:foo', new],
      f"{MICRO}:foo: this config takes nothing behind a colon; leave out ':foo'.",
    ),
    'unknown flag': (train('--stepz=3'), "Unknown command line flag 'stepz'"),
    'stray argument': (train('steps=3'), "unexpected argument 'steps=3'; options are written"),
    'config raises': (bad('raises'), 'ValueError: no such trick'),
    'config empty': (bad('empty'), "has no attribute 'get_config'"),
    'config nothing': (bad('nothing'), 'must return a ConfigDict'),
    'workdir is a file': (['train', MICRO, f'--workdir={folder}/empty.py'], 'empty.py'),
    'workdir in a bucket': (
      ['train', MICRO, '--workdir=gs://bucket/new'],
      '--workdir=gs://bucket/new: must be a folder of this machine; mount the bucket, for exampl',
    ),
    'evaluations in a bucket': (
      ['evaluate', MICRO, '--out=s3://bucket/new'],
      '--out=s3://bucket/new: must be a folder of this machine',
    ),
    'compare in a bucket': (['compare', 'gs://a/b', 'c'], 'DIR=gs://a/b: must be a folder of'),
    'report in a bucket': (['report', 'a', '--out=gs://b/r'], '--out=gs://b/r: must be a folder'),
    'no data folder': (
      [
        *['train', f'--config={folder}/gsm8k.py', new],
        f'--config.task.options.data_dir={folder}/nowhere',
      ],
      f"data_dir='{folder}/nowhere' is not a folder; name the folder that holds",
    ),
    'not this run': (
      ['train', MICRO, f'--workdir={folder}/other', '--config.seed=5'],
      'the checkpoint at step 0 was made with another config (seed: 0 in the checkpoint, 5 now)',
    ),
    'vocabulary': (
      ['train', MICRO, f'--workdir={folder}/mismatch', f'--config.model.source=hf:{folder}/model'],
      'the tokenizer has 6 tokens, the embedding of the model only 5 rows',
    ),
    'evaluate nothing': (
      ['evaluate', MICRO, f'--workdir={folder}/nowhere'],
      'nowhere/checkpoints holds no checkpoint',
    ),
    'evaluate half a config': (
      ['evaluate', f'--config={folder}/half.py'],
      'config.team is missing; start from default_config()',
    ),
    'export nothing': (
      ['export', f'--workdir={folder}/nowhere', f'--out={folder}/out'],
      'holds no checkpoint',
    ),
    'damaged': (
      ['train', MICRO, f'--workdir={folder}/damaged'],
      f'no checkpoint in {folder}/damaged/checkpoints is intact (0: ',
    ),
    'export damaged': (
      ['export', f'--workdir={folder}/damaged', f'--out={folder}/out'],
      "'params/_METADATA' is missing). Put the files back from a copy; or remove that folder",
    ),
    'no evaluated step': (
      ['evaluate', MICRO, f'--workdir={folder}/other', '--step=best'],
      'training (see evaluation.every and checkpoint.keep_best). There are steps 0.',
    ),
    'step of no run': (
      ['evaluate', MICRO, '--step=best'],
      '--step=best: of which run? Give its --workdir.',
    ),
    'ask nobody': (['ask', '--question=Q?'], 'give --workdir (of a run), or --config'),
    'ask two teams': (
      ['ask', MICRO, f'--workdir={folder}/other', '--question=Q?'],
      'give --workdir (of a run), or --config (for the untrained team): one of them.',
    ),
    'ask without a question': (['ask', MICRO, '--note=a'], '--note is given without --question.'),
    'ask an empty question': (['ask', MICRO, '--question= '], 'the question is empty'),
    'ask twice': (
      ['ask', MICRO, '--question=Q?', '--file=questions.jsonl'],
      '--file has questions and notes of its own',
    ),
    'ask what no file holds': (
      ['ask', MICRO, '--file=nowhere.jsonl'],
      "--file='nowhere.jsonl': no such file; must be JSONL or CSV of questions.",
    ),
    'ask with a note for nobody': (
      ['ask', MICRO, '--question=Q?', '--note=', '--note=', '--note=red'],
      "note 'red' is for solver, whose role 'solver' shows no note",
    ),
    'ask in words that nobody knows': (
      ['ask', MICRO, '--question=supercalifragilistic'],
      "unknown word 'supercalifragilistic': this team knows only the words of its task. Ask in "
      "those, as in 'How many ",
    ),
    'ask in a later line': (
      ['ask', MICRO, '--file=asked.jsonl', '--config.evaluation.batch_questions=1'],
      "asked.jsonl, line 3: unknown word 'supercalifragilistic': this team knows only the words",
    ),
    'ask half a character': (['ask', MICRO, '--question=Q\udcff?'], 'has half a surrogate pair'),
    'serve everybody without a key': (
      ['serve', MICRO, '--host=0.0.0.0', '--port=0'],
      '--host=0.0.0.0 can be reached from elsewhere; --api_key must be set',
    ),
    'serve at a port in use': (
      ['serve', MICRO, f'--port={_taken().getsockname()[1]}'],
      f'--host=127.0.0.1 --port={_taken().getsockname()[1]}: Address already in use',
    ),
    'serve several policies to runs': (
      ['serve', MICRO, '--port=0', '--engine', *several],
      "--engine serves one policy, but with policy.sharing='adapters' the team has several.",
    ),
    'serve several policies to tinker': (
      ['serve', MICRO, '--port=0', f'--tinker={folder}/adapters', *several],
      '--tinker serves one policy, but with policy.sharing=',
    ),
    'fields of no config': (
      ['evaluate', f'--workdir={folder}/other', '--config.evaluation.questions=4'],
      "flag 'config.evaluation.questions'. Give --config as well (of a run: --config=WORKDIR/conf",
    ),
    'fields of a command without configs': (['export', '--config.steps=4'], "flag 'config.steps'"),
    'price below 0': (['evaluate', MICRO, '--price_written=-5'], 'must be a finite number, 0 or'),
    'price that is none': (['evaluate', MICRO, '--price_read=nan'], '--price_read=nan: must be'),
    'ask at no price': (['ask', MICRO, '--price=inf'], '--price=inf: must be a finite number'),
    'ask at no budget': (['ask', MICRO, '--budget=nan'], '--budget=nan: must be a finite number'),
    'ask at no temperature': (['ask', MICRO, '--temperature=-1'], '--temperature=-1.0: must be'),
    'report to nobody': (['report', 'a', '--serve', '--out=b'], '--serve writes no file'),
    'export without folders': (['export'], 'give both --workdir (of a run) and --out'),
  }


@functools.cache
def outcomes() -> dict[str, list]:
  """Returns exit status, stdout and stderr of every case."""
  folder = micro_run.folder() / 'bad'
  folder.mkdir()
  for name, text in _BAD_CONFIGS.items():
    (folder / f'{name}.py').write_text(text)
  gsm8k = "c.unlock()\n  c.task.name = 'gsm8k'\n  c.task.options = {'data_dir': ''}\n"
  text = micro_run.CONFIG.read_text() + '\n\n_micro = get_config\n\n\ndef get_config():\n'
  (folder / 'gsm8k.py').write_text(f'{text}  c = _micro()\n  {gsm8k}  return c.lock()\n')
  asked = ('How many ?', '', 'supercalifragilistic')
  lines = [text and json.dumps({'question': text}) for text in asked]
  (folder / 'asked.jsonl').write_text('\n'.join(lines))
  few, many = word_level(['a', 'b']), word_level(['a', 'b', 'c'])
  shape = presets.PRESETS['micro'].replace(vocab_size=few.vocab_size, num_layers=1)
  hf.export_hf(shape, init_params(shape, jax.random.key(0)), folder / 'model', many)
  optimizer = state_lib.make_optimizer(LearnerOptions(learning_rate=1.0), updates=1)
  config = config_lib.resolve(micro_run.get_config().to_dict())
  other = checkpoints.Checkpoints(folder / 'other' / 'checkpoints', config)
  other.save(state_lib.init({'a': jnp.zeros(1)}, optimizer, lora=False))
  other.wait()
  shutil.copytree(folder / 'other', folder / 'damaged')
  small_checkpoints.DAMAGES['metadata deleted'](folder / 'damaged' / 'checkpoints' / '0')
  cases = _cases(folder)
  done = subprocess.run(
    [sys.executable, str(micro_run.CONFIG.parent / 'forked_commands.py')],
    input=json.dumps([line for line, _ in cases.values()]),
    env=micro_run.environment(),
    cwd=folder,
    capture_output=True,
    text=True,
    check=True,
    timeout=300,
  )
  return dict(zip(cases, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize('name', sorted(_cases(pathlib.Path('x'))))
def test_mistakes_end_with_one_line_and_status_2(name):
  status, stdout, stderr = outcomes()[name]
  _, expected = _cases(micro_run.folder() / 'bad')[name]
  lines = stderr.splitlines()
  assert len(lines) == 1, stderr
  assert lines[0].startswith('error: ')
  assert expected in lines[0]
  assert status == 2
  assert stdout == ''
  assert not (micro_run.folder() / 'bad' / 'new').exists()


@pytest.mark.slow
def test_loss_that_is_not_finite_ends_with_one_line(tmp_path):
  done = micro_run.run(micro_run.train_command(tmp_path, '--config.sft.learning_rate=1e38'))
  assert done.returncode == 2
  assert done.stderr.startswith('error: objective=')
  assert done.stderr.endswith('of SFT. Lower sft.learning_rate.\n')
  assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
  'error',
  [
    MemoryError('cannot allocate 8 GiB'),
    jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 8 GiB'),
  ],
)
def test_too_little_memory_ends_with_one_line(error, monkeypatch, capsys):
  def main():
    raise error

  monkeypatch.setattr(command, 'use_compilation_cache', lambda: None)
  with pytest.raises(SystemExit) as exit_:
    command._guarded(main)
  assert exit_.value.code == 2
  message = capsys.readouterr().err
  assert re.fullmatch(
    r'error: out of memory \(.* 8 GiB\)\. Lower learner\.micro_batch_size, .*\n', message
  )


def test_internal_errors_keep_their_traceback(monkeypatch):
  def main():
    raise jax.errors.JaxRuntimeError('INTERNAL: of the compiler')

  monkeypatch.setattr(command, 'use_compilation_cache', lambda: None)
  with pytest.raises(jax.errors.JaxRuntimeError):
    command._guarded(main)


def test_traceback_on_demand(monkeypatch, capsys):
  def main():
    raise FloatingPointError('objective=nan\nin step 3')

  monkeypatch.setattr(command, 'use_compilation_cache', lambda: None)
  with pytest.raises(SystemExit) as exit_:
    command._guarded(main)
  assert exit_.value.code == 2
  assert capsys.readouterr().err == 'error: objective=nan in step 3\n'
  monkeypatch.setenv('AGENT_GSPO_TRACEBACK', '1')
  with pytest.raises(FloatingPointError):
    command._guarded(main)


# evaluate


def test_evaluate_a_checkpoint(tmp_path):
  workdir, out = micro_run.finished(), tmp_path / 'new' / 'figures'
  done = micro_run.run(micro_run.command('evaluate', MICRO, f'--workdir={workdir}', f'--out={out}'))
  assert done.returncode == 0, done.stderr
  assert done.stderr.startswith('step 10: 0 of 4 questions\n')
  result = json.loads((out / 'result.json').read_text())
  record, constant, alone = result['evaluations']
  assert result['evaluation']['model'] == 'random:micro'
  resolved = config_lib.resolve(micro_run.get_config().to_dict())
  assert result['config'] == json.loads(json.dumps(resolved.to_dict()))
  # The same questions, noise and figures as at the end of the run.
  records = json_lines.iterate(workdir / 'eval.jsonl')
  (trained,) = (record for record in records if record['label'] == 'trained')
  same = {k for k in trained if not k.startswith('judgement/')} - {'label', 'seconds', 'spread'}
  assert {k: record[k] for k in same} == {k: trained[k] for k in same}
  assert (record['label'], record['step']) == ('step 10', 10)
  assert (constant['label'], alone['label']) == run_evaluations.BASELINES
  assert [agent['name'] for agent in alone['agents']] == ['solver']
  episodes = list(json_lines.iterate(out / 'results.jsonl'))
  team = [e for e in episodes if e['variant'] == record['variant']]
  assert [e['question_id'] for e in team] == [f'relay-test-{i}' for i in range(4)]
  for text in (
    'accuracy',
    'tokens written per question (Ctok)',
    'tokens read per question (Ptok)',
    'silent turns',
    'informant1: tokens written',
    'constant answer',
    'single agent',
    '95 % interval',
  ):
    assert text in done.stdout


# ask


def _asked(*arguments: str, typed: str = '') -> str:
  done = subprocess.run(
    micro_run.command('ask', f'--workdir={micro_run.finished()}', *arguments),
    input=typed,
    env=micro_run.environment(),
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ''
  return done.stdout


def test_ask_a_keyboard_that_is_closed():
  done = subprocess.run(
    ['sh', '-c', 'exec "$@" <&-', 'sh', *micro_run.command('ask', MICRO)],
    env=micro_run.environment(),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.stderr == 'error: standard input is closed; give --question or --file.\n'
  assert done.returncode == 2


def test_ask_leaves_stdout_to_json_objects():
  done = subprocess.run(
    micro_run.command('ask', MICRO, '--json'),
    input='',
    env=micro_run.environment(),
    capture_output=True,
    text=True,
    check=False,
  )
  assert (done.returncode, done.stdout, done.stderr) == (0, '', 'question: \n')


def test_ask_goes_on_after_a_line_that_is_not_text():
  done = subprocess.run(
    micro_run.command('ask', MICRO, '--json'),
    input=b'\xff\n\n\n\n\xef\xbb\xbf\n\n\n\n',
    env={**micro_run.environment(), 'PYTHONIOENCODING': 'utf-8:surrogateescape'},
    capture_output=True,
    check=False,
  )
  assert (done.returncode, done.stdout) == (0, b'')
  first, second = [x for x in done.stderr.decode().split('error: ')[1:]]
  assert 'has half a surrogate pair' in first
  assert 'the question is empty' in second


@pytest.mark.slow
def test_ask_a_trained_team(tmp_path):
  """Asks by flag, from a file and from the keyboard: the conversation is the same."""
  talk = next(
    talk
    for talk in json_lines.iterate(micro_run.finished() / 'transcripts.jsonl')
    if talk['label'] == 'trained'
  )
  notes = {message['agent']: message['note'] for message in talk['messages']}
  held = [notes['informant1'], notes['informant2']]
  shown = _asked(f'--question={talk["question"]}', *(f'--note={n}' for n in held))
  assert shown.startswith(f'question {talk["question"]}\ninformant1 ')
  assert re.search(r'\nsolver .*\nanswer .*\n\d+ tokens written, \d+ read; \d of 3 turns', shown)
  file = tmp_path / 'questions.jsonl'
  file.write_text(json.dumps({'question': talk['question'], 'notes': held}) + '\n')
  record = json.loads(_asked(f'--file={file}', '--json', '--temperature=0'))
  assert [m['agent'] for m in record['messages']] == ['informant1', 'informant2', 'solver']
  assert [m['note'] for m in record['messages'][:2]] == held
  assert record['messages'][2]['read_from'] == [['informant1', 0], ['informant2', 0]]
  assert record['step'] == 10
  # A pipe can begin with a byte order mark.
  typed = _asked('--temperature=0', typed='\n'.join([f'\ufeff{talk["question"]}', *held]))
  said = {m['agent']: m['text'].strip() for m in record['messages'] if not m['silent']}
  for name, text in said.items():
    assert re.search(rf'\b{name} \(.*\) {re.escape(text)}\n', typed), typed
  file.write_text(file.read_text() * 2)  # of a batch: the same noise, for each by its line
  lines = _asked(f'--file={file}', '--json', '--temperature=0').splitlines()
  assert [json.loads(line)['messages'] for line in lines] == [record['messages']] * 2
  file.write_text(json.dumps({'question': talk['question'], 'notes': held}))
  limited = json.loads(_asked(f'--file={file}', '--json', '--temperature=0', '--max_tokens=2'))
  # A token each, silent or not: none is left for the solver.
  assert [m['agent'] for m in limited['messages']] == ['informant1', 'informant2']


# export


def _adapted(seed: int = 0):
  """Returns a Qwen-like model with biases, and adapters that change it."""
  config = presets.PRESETS['micro'].replace(
    vocab_size=50,
    family='qwen2',
    num_layers=1,
    tie_embeddings=False,
    lora_rank=3,
    lora_alpha=12.0,
  )
  params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(seed))
  rng = np.random.default_rng(seed)
  fill = lambda path, x: (
    rng.normal(size=x.shape, scale=0.05).astype(np.float32) if path[-1].key == 'lora_b' else x
  )
  return config, jax.tree_util.tree_map_with_path(fill, params)


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params):
  tokens = jnp.arange(24, dtype=jnp.int32).reshape(2, 12)
  positions = jnp.broadcast_to(jnp.arange(12), (2, 12))
  model, variables = Transformer(config), {'params': params}
  mask = masks.causal(jnp.array([12, 12]), 12)
  hidden, _ = model.apply(variables, tokens, positions, mask)
  return model.apply(variables, hidden, method='logits')


def test_merged_adapters_compute_the_same():
  config, params = _adapted()
  merged = lora.merge_adapters(config, params)
  plain = config.replace(lora_rank=0)
  expected = jax.eval_shape(lambda: init_params(plain, jax.random.key(0)))
  assert jax.tree.structure(merged) == jax.tree.structure(expected)
  adapted = _logits(config, params)
  np.testing.assert_allclose(_logits(plain, merged), adapted, atol=1e-5, rtol=1e-5)
  without = jax.tree_util.tree_map_with_path(
    lambda path, x: x * 0 if path[-1].key == 'lora_b' else x, params
  )
  assert np.abs(adapted - _logits(config, without)).max() > 0.05  # they do something


def test_adapters_that_add_nothing_change_no_bit():
  config, params = _adapted()
  off = jax.tree_util.tree_map_with_path(
    lambda path, x: x * 0 if path[-1].key == 'lora_b' else -x, params
  )
  off['layers_0']['attn']['q']['kernel'] = off['layers_0']['attn']['q']['kernel'].at[0].set(-0.0)
  merged = lora.merge_adapters(config, off)
  base = {
    path: x
    for path, x in jax.tree_util.tree_leaves_with_path(off)
    if not path[-1].key.startswith('lora_')
  }
  found = dict(jax.tree_util.tree_leaves_with_path(merged))
  assert found.keys() == base.keys()
  for path, x in base.items():
    assert np.asarray(found[path]).tobytes() == np.asarray(x).tobytes()
  plain = config.replace(lora_rank=0)
  np.testing.assert_array_equal(_logits(plain, merged), _logits(config, off))


def test_export_is_what_transformers_loads(tmp_path):
  transformers = pytest.importorskip('transformers')
  torch = pytest.importorskip('torch')
  workdir = micro_run.finished()
  done = micro_run.run(
    micro_run.command('export', f'--workdir={workdir}', f'--out={tmp_path / "model"}')
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ''
  assert 'wrote the team of step 10 to' in done.stdout
  again = micro_run.run(
    micro_run.command('export', f'--workdir={workdir}', f'--out={tmp_path / "model"}')
  )
  assert again.returncode == 2
  assert 'must be a new or an empty folder' in again.stderr

  config = micro_run.get_config().to_dict()
  like = load.load_model(f'hf:{tmp_path / "model"}')
  params = checkpoints.newest(workdir / 'checkpoints').restore_params(
    Config.from_dict(config), like.params
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'model')
  question = config_lib.check(config).task.questions('test')[0]
  ids = tokenizer(question.text)['input_ids']
  assert ids == Tokenizer.from_folder(tmp_path / 'model').encode(question.text)
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'model').eval()
  with torch.no_grad():
    theirs = model(torch.tensor([ids])).logits[0].numpy()
  tokens, length = jnp.asarray([ids], jnp.int32), len(ids)
  ours = Transformer(like.config)
  hidden, _ = ours.apply(
    {'params': params}, tokens, jnp.arange(length)[None], masks.causal(jnp.array([length]), length)
  )
  logits = ours.apply({'params': params}, hidden, method='logits')[0]
  np.testing.assert_allclose(logits, theirs, atol=1e-4)


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path):
  environment = {
    name: value
    for name, value in micro_run.environment().items()
    if name not in micro_run.programs()
  }
  environment['AGENT_GSPO_CACHE'] = str(tmp_path / 'cache')

  def compiled(workdir: str) -> set[str]:
    train = micro_run.train_command(tmp_path / workdir)
    subprocess.run(train, env=environment, cwd=micro_run.folder(), check=True)
    return {file.name for file in (tmp_path / 'cache' / 'compiled').glob('*-cache')}

  first = compiled('one')
  assert len(first) > 100  # most of them small
  assert compiled('other') == first
