"""Checks that eight host devices sample, update and train as one does."""

import functools
import json
import subprocess
import sys

import jax
import micro_run
import numpy as np
import pytest
import tiny
import unsaid_ids

from agent_gspo.config import check as config_lib
from agent_gspo.sharding import placement
from agent_gspo.training import setup as setup_lib

ONE = (1, 1, 1)
# data, fsdp, tensor; not all axes of the model are multiples of 8, nor of 3.
SOME = [(2, 2, 2)]
OTHERS = [(8, 1, 1), (1, 8, 1), (2, 4, 1), (1, 1, 8), (1, 3, 1), (3, 1, 2)]
MESHES = [*SOME, *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in OTHERS)]

_UPDATE = """
import dataclasses
import jax, numpy as np, optax
import tiny
from agent_gspo.algorithms.objectives import losses
from agent_gspo.models import partition
from agent_gspo.models.transformer import Transformer
from agent_gspo.sharding import placement
from agent_gspo.packing import train_batches
from agent_gspo.training import state as state_lib
from agent_gspo.training.policy_loss import Programs

rng = np.random.default_rng(0)
draw = lambda n: rng.integers(5, 300, n).astype(np.int32)
old = lambda n: -rng.random(n).astype(np.float32)
messages = [
  tiny.message(draw(6), draw(n), old(n), agent=i % 2) for i, n in enumerate((1, 3, 5) * 8)
]
weights = rng.normal(size=len(messages)).astype(np.float32)
found = {}
for mesh in MESHES:
  where = placement.make_placement(dict(zip(placement.AXES, mesh)))
  for name in LOSSES:
    loss, adapted = name.split(',')[0], name.endswith('adapters')
    config = tiny.MIXTURE if 'experts' in name else tiny.CONFIG
    config = config.replace(lora_rank=4, num_adapters=2) if adapted else config
    updater = Programs(
      Transformer(config, partition.layout(config, where, where.replica_rows)),
      losses.make(loss), optax.sgd(0.1), 0.8,
      entropy=False, placement=where, replay_routing='trainer',
    )
    shardings = lambda tree: partition.shardings(tree, config, where)
    params = jax.tree.map(lambda x: x if x.any() else x + 0.1, tiny.params(config))  # of adapters
    state = state_lib.init(params, optax.sgd(0.1), lora=adapted, shardings=shardings)
    packed = train_batches.pack_messages(
      messages, pack_length=24, micro_batch_size=24, adapters=[0, 1] if adapted else None
    )
    batches = train_batches.with_values(packed, advantages=weights)
    same = np.tile(np.arange(5, 105, dtype=np.int32), (24, 1))
    batches = [dataclasses.replace(b, loss_any=same) for b in batches]
    scored, experts = zip(*updater.scored(state, batches))
    batches = [dataclasses.replace(b, old_experts=e) for b, e in zip(batches, experts)]
    state, metrics = updater.optimizer_step(state, batches)
    used = len(jax.tree.leaves(state.trainable)[0].sharding.device_set)
    flat = np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.trainable)])
    found[f'{name} {mesh}'] = [
      used, metrics['policy/objective'], metrics['policy/grad_norm'],
      metrics['policy/clip_fraction'], metrics.get('router/balance', 0),
      float(np.abs(flat).sum()), float((flat * np.cos(np.arange(flat.size))).sum()),
      float(sum(np.abs(x).sum() for x in scored)),
    ]
"""


_SAMPLE = """
import jax, numpy as np
import tiny
from agent_gspo.models import partition
from agent_gspo.sharding import placement
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler

CONFIG = tiny.MIXTURE if 'experts' in LOSSES else tiny.CONFIG
rng = np.random.default_rng(0)
prompts = [rng.integers(0, 300, n).astype(np.int32) for n in range(5, 45) for _ in range(2)]
columns = [(0, 7, n, 0, 0) for n in range(len(prompts))]
noise = keys.row_keys(keys.stream(0, 'train'), np.asarray(columns))
found = {}
for mesh in MESHES:
  where = placement.make_placement(dict(zip(placement.AXES, mesh)))
  for once in (True, False) if where.cut_by_fsdp else (True,):
    # Few rows per device: several chunks, and rows that leave before the others end.
    sampler = Sampler(
      CONFIG, max_new_tokens=8, prefill_length=64, decode_rows=8, placement=where,
      gather_once=once,
    )
    decode, programs = sampler.decode, []

    def seen(*args):
      programs[:] = programs or decode.lower(*args).compile().as_text().split('\\n}\\n')
      return decode(*args)

    sampler.decode = seen
    params = partition.place(tiny.params(CONFIG), CONFIG, where)
    stops, flags = tuple(range(4, 300, 5)), np.arange(len(prompts)) % 3 == 0
    samples = sampler(
      params, prompts, noise, temperature=0.8, stop_ids=stops, must_speak=flags, silence_ids=stops,
      experts=True,
    )
    few = sampler(
      params, prompts[:3], noise[:3], temperature=0.8, stop_ids=stops, experts=True
    )
    gathers = [text.count(' all-gather(') for text in programs]
    found[f'{mesh} {"once" if once else "each token"}'] = {
      'tokens': [ids.tolist() for ids in samples.token_ids],
      'logprobs': [float(x.sum()) for x in [*samples.logprobs, samples.log_speak]],
      'experts': [np.sort(x).tolist() for x in (samples.experts or []) + (few.experts or [])],
      'gathered first': sum(n for n, text in zip(gathers, programs) if '\\nENTRY' in text),
      'gathered': sum(gathers),
    }
"""

_UNSAID = """
import unsaid_ids

found = {
  f'{rank} {mesh}': unsaid_ids.first_update(mesh, lora_rank=rank)
  for mesh in MESHES for rank in (0, 4)
}
"""

_LAYOUT = """
import jax
import tiny
from flax import traverse_util
from agent_gspo.models import partition
from agent_gspo.sharding import placement

where = placement.make_placement({'data': 2, 'fsdp': 4, 'tensor': 1})
found = {}
for model, adapters in (('dense', 1), ('dense', 2), ('mixture', 2)):
  config = tiny.MIXTURE.replace(num_experts=8) if model == 'mixture' else tiny.CONFIG
  config = config.replace(lora_rank=4, num_adapters=adapters)
  shardings = partition.shardings(tiny.params(config), config, where)
  shardings = traverse_util.flatten_dict(shardings, sep='/')
  told = partition.layout(config, where, where.rows).weights
  found[f'{model}, {adapters}'] = {
    path: '/'.join(path.split('/')[-2:]) in told
    for path, sharding in shardings.items() if 'fsdp' in sharding.spec
  }
"""

_PLAN = """
import micro_run
from agent_gspo.config import check
from agent_gspo.training import plan, setup

found, both = {}, {}  # `both`: with a larger model beside, which in 'auto' has too little room
for gather in ('once', 'each_token', 'auto'):
  parts = check.check(micro_run.changed(mesh__fsdp=4, sampler__gather_weights=gather))
  found[gather] = {}
  for memory in (None, 2**30, 2**20):
    plan._memory = lambda: memory
    writing = setup.plan(parts).programs[1]
    found[gather][str(memory)] = writing.name, writing.bytes
  plan._memory = lambda: None
  parts = check.check(micro_run.changed(
    mesh__fsdp=4,
    sampler__gather_weights=gather,
    team__roles__solver__model='random:small',
    team__roles__solver__trains=True,
  ))
  if gather == 'auto':
    large = setup.plan(parts)
    room = sum(large.state.values()) + large.programs[3].bytes - 1
    plan._memory = lambda: room
  both[gather] = [p.name for p in setup.plan(parts).programs[1:4:2]]
found['both'] = both
"""

_TRAIN = """
import contextlib, io, os, pathlib, tempfile
import micro_run
from agent_gspo.workdir import json_lines
from agent_gspo.training import loop

found = {}
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
  for name, meshes in {'one': (1, 1), 'four': (4, 4), 'four, then one': (4, 1)}.items():
    workdir = pathlib.Path(folder) / name
    os.environ['AGENT_GSPO_CACHE'] = f'{workdir}_cache'  # each makes its own SFT
    for steps, devices in zip((1, 2), meshes):
      config = micro_run.changed(
        steps=steps, mesh__data=devices, budget__lambda_tok=0.05, rollout__group_size=8
      )
      loop.train(config, workdir)
    found[name] = [*json_lines.iterate(workdir / 'metrics.jsonl')]
"""


_PUBLISH = """
import jax, numpy as np
import tiny
from jax._src.array import ArrayImpl
from agent_gspo.models import partition
from agent_gspo.sharding import placement

def through_the_host(array):
  raise AssertionError('copied through the host')

found, read = {}, ArrayImpl._value
for *mesh, actors in ((1, 1, 1, 1), (1, 1, 1, 3), (4, 1, 1, 4), (2, 2, 1, 4), (1, 2, 2, 2)):
  learners = placement.make_placement(dict(zip(placement.AXES, mesh)), actors)
  own = placement.own_devices(learners, actors)
  params = partition.place(tiny.params(tiny.CONFIG), tiny.CONFIG, learners)
  ArrayImpl._value = property(through_the_host)
  copy = partition.own_copy(params, tiny.CONFIG, own)
  ArrayImpl._value = read
  jax.tree.map(np.testing.assert_array_equal, params, copy)
  used = sorted({device.id for x in jax.tree.leaves(copy) for device in x.devices()})
  found[str((*mesh, actors))] = [used, own.mesh.devices.shape]
"""

_ACTORS = """
import contextlib, io, os, pathlib, tempfile
import micro_run, run_comparison
from agent_gspo.training import loop

KEPT = {'rollout__ahead': 1, 'rollout__group_size': 8, 'learner__micro_batch_size': 8, 'steps': 6}
KEPT |= {'learner__learning_rate': 3e-3, 'logging__transcripts': 16, 'checkpoint__every': 2}
KEPT |= {'advantage__costs': 'inside'}
SPLIT = {'mesh__data': -1, 'mesh__fsdp': 2, 'mesh__actors': 4}

def killed(step, metrics):
  if step == 3:
    raise SystemExit('killed')

found = {}
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
  for name in LOSSES:
    options = {'samples': 2} if name != 'per_component' else {}  # which the learner samples
    kept = {**KEPT, 'advantage__name': name, 'advantage__options': options}
    if name == 'hill':
      kept['team__roles__informant__opening'] = '{question} note {note} {answer}'
    os.environ['AGENT_GSPO_CACHE'] = f'{folder}/{name}_cache'
    one, split, cut = (pathlib.Path(folder) / f'{name}_{run}' for run in ('one', 'split', 'cut'))
    loop.train(micro_run.changed(**kept), one)
    loop.train(micro_run.changed(**kept, **SPLIT), split)
    with contextlib.suppress(SystemExit):
      loop.train(micro_run.changed(**kept, **SPLIT), cut, on_step=killed)
    assert run_comparison.saved(cut)[0] == 2
    loop.train(micro_run.changed(**kept, **SPLIT), cut)
    run_comparison.assert_same_run(cut, split, 6)
    for run in (one, split):
      texts = [
        [message['text'] for message in line['messages']]
        for line in run_comparison.records(run, 'transcripts.jsonl')
      ]
      found[run.name] = texts, run_comparison.records(run, 'metrics.jsonl')
"""


def _found(script: str, mesh: tuple[int, int, int], *losses: str) -> dict:
  return _run(script, tuple(OTHERS if mesh in OTHERS else SOME), losses)


@functools.cache
def _run(
  script: str, meshes: tuple[tuple[int, int, int], ...] = (), losses: tuple[str, ...] = ()
) -> dict:
  """Returns the script's `found`, for one device and several meshes."""
  support = micro_run.ROOT / 'tests' / 'support'
  head = f'import json, sys\nsys.path[:0] = [{str(micro_run.ROOT)!r}, {str(support)!r}]\n'
  head += f'MESHES, LOSSES = {[ONE, *meshes]}, {losses}\n'
  done = subprocess.run(
    [sys.executable, '-c', f'{head}{script}\nprint(json.dumps(found))'],
    env=micro_run.environment(devices=8),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
  'name',
  [
    'gspo, experts, adapters',
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in ('gspo', 'gspo, adapters', 'gspo, experts', 'dapo')
    ),
  ],
)
@pytest.mark.parametrize('mesh', MESHES)
def test_mesh_changes_no_update(name, mesh):
  found = _found(_UPDATE, mesh, name)
  used, *figures = found[f'{name} {mesh}']
  assert used == np.prod(mesh)
  assert figures == pytest.approx(found[f'{name} {ONE}'][1:], rel=1e-4)
  assert figures[1] > (1e-3 if 'experts' in name else 0.01)  # there is a gradient to compare


@pytest.mark.slow
@pytest.mark.parametrize('model', [(), ('experts',)])
@pytest.mark.parametrize('mesh', MESHES)
def test_mesh_changes_no_sample(mesh, model):
  found = _found(_SAMPLE, mesh, *model)
  one = found[f'{ONE} once']
  for gather in ('once', 'each token') if mesh[1] > 1 else ('once',):
    many = found[f'{mesh} {gather}']
    assert many['tokens'] == one['tokens'], gather
    assert many['logprobs'] == pytest.approx(one['logprobs'], abs=1e-4)
    assert many['experts'] == one['experts']
  assert len({len(ids) for ids in one['tokens']}) > 5
  assert bool(one['experts']) == bool(model)


@pytest.mark.slow
@pytest.mark.parametrize('rank', [0, 4])
def test_ids_that_no_text_shows_are_not_sampled_on_a_mesh(rank):
  """Some parts of a vocabulary that is cut hold nothing else; ratios are 1 as on one device."""
  mesh = (2, 1, 4)
  found = _run(_UNSAID, (mesh,))
  one, many = found[f'{rank} {ONE}'], found[f'{rank} {mesh}']
  assert many['tokens'] == one['tokens']
  assert set(many['tokens']) <= set(unsaid_ids.said().tolist())
  assert many['metrics']['policy/ratio_error_max'] < 1e-4
  for name in ('policy/entropy', 'policy/grad_norm'):
    assert many['metrics'][name] == pytest.approx(one['metrics'][name], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [(2, 2, 2), (2, 4, 1)])  # 3 divides no axis of the model
def test_weights_are_gathered_where_it_is_said(mesh):
  found = _found(_SAMPLE, mesh)
  kernels = 7 * tiny.CONFIG.num_layers
  once, each = found[f'{mesh} once'], found[f'{mesh} each token']
  assert once['gathered first'] >= kernels
  assert once['gathered'] - once['gathered first'] < kernels // 2  # of embeddings and draws
  assert each['gathered'] - each['gathered first'] >= kernels


@pytest.mark.parametrize(
  ('model', 'count'), [('dense, 1', 14), ('dense, 2', 14), ('mixture, 2', 11)]
)
def test_all_that_fsdp_cuts_of_a_block_is_gathered_where_it_is_said(model, count):
  """Otherwise the compiler kept all kernels until the gradients of adapters."""
  told = _run(_LAYOUT)[model]
  of_blocks = {path: said for path, said in told.items() if path.startswith('layers_')}
  assert all(of_blocks.values()), of_blocks
  # Of 7 kernels, and half of an adapter of each; experts have none.
  assert len(of_blocks) == count * tiny.CONFIG.num_layers


@pytest.mark.slow
def test_weights_are_gathered_once_if_that_fits():
  found = _run(_PLAN)
  each_token = 'writing messages, weights gathered for each token'
  assert found['once'] == {memory: found['once']['None'] for memory in found['once']}
  assert found['once']['None'][0] == 'writing messages'
  assert {name for name, _ in found['each_token'].values()} == {each_token}
  assert found['each_token']['None'][1] < found['once']['None'][1]
  for memory, gather in (('None', 'once'), (str(2**30), 'once'), (str(2**20), 'each_token')):
    assert found['auto'][memory] == found[gather][memory]
  once = ['writing messages'] * 2
  assert found['both'] == {'once': once, 'each_token': [each_token] * 2, 'auto': [each_token] * 2}


@pytest.mark.slow
@pytest.mark.parametrize('name', ['four', 'four, then one'])
def test_device_count_changes_no_run(name):
  """SFT, evaluations, rollouts and updates; a checkpoint goes on with other devices."""
  found = _run(_TRAIN)
  _assert_same_curves(found['one'], found[name])


def _assert_same_curves(curve: list[dict], other: list[dict]) -> None:
  # Of the clock, of the machine, and what is rounding altogether.
  free = ('time/', 'memory/', 'policy/ratio_first_minibatch_error', 'policy/sampler_trainer_diff')
  for one, two in zip(curve, other, strict=True):
    assert one.keys() == two.keys()
    for key, value in one.items():
      if not key.startswith(free):
        assert two[key] == pytest.approx(value, rel=1e-3, abs=1e-6), key
  assert curve[1]['policy/grad_norm'] > 0


def test_weights_are_published_from_device_to_device():
  """Onto the last devices; `tensor` and `fsdp` are kept if both fit there, else neither."""
  assert _run(_PUBLISH) == {
    '(1, 1, 1, 1)': [[7], [1, 1, 1]],
    '(1, 1, 1, 3)': [[5, 6, 7], [3, 1, 1]],
    '(4, 1, 1, 4)': [[4, 5, 6, 7], [4, 1, 1]],
    '(2, 2, 1, 4)': [[4, 5, 6, 7], [2, 2, 1]],
    '(1, 2, 2, 2)': [[6, 7], [2, 1, 1]],
  }


@pytest.mark.slow
@pytest.mark.parametrize('name', ['per_component', 'spo_segment', 'hill'])
def test_actors_write_the_tokens_of_one_device_and_a_killed_run_ends_bit_for_bit(name):
  found = _run(_ACTORS, losses=(name,))
  (texts, curve), (others, split) = found[f'{name}_one'], found[f'{name}_split']
  assert others == texts
  assert len({tuple(line) for line in texts}) > 10
  _assert_same_curves(curve, split)


def test_parameters_are_put_on_the_device_once():
  """Numpy's, as weights are loaded, would travel to it with every call of the sampler."""
  setup = setup_lib.build(config_lib.check(micro_run.get_config().to_dict()))
  loaded = jax.tree.map(np.asarray, setup.params)
  policy = setup.policy(loaded, stream='eval', step=0, temperature=0.0)
  assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(policy.params))


@pytest.mark.parametrize(
  ('shape', 'here'),
  [
    ((1, 1, 1), (1, 1, 1)),
    ((-1, 1, 1), (-1, 1, 1)),
    ((8, 1, 1), (1, -1, 1)),
    ((1, -1, 3), (1, -1, 1)),
  ],
)
def test_a_mesh_that_is_not_here_cuts_over_what_is(shape, here):
  found = placement.on_this_machine(dict(zip(placement.AXES, shape, strict=True)))
  assert tuple(found.values()) == here


@pytest.mark.slow
def test_a_team_of_two_devices_answers_on_one(tmp_path):
  workdir = tmp_path / 'run'
  two = micro_run.environment(devices=2)
  mesh = ['--config.mesh.data=2', '--config.learner.micro_batch_size=4', '--config.steps=1']
  subprocess.run(micro_run.train_command(workdir, *mesh), env=two, check=True)
  question = config_lib.check(micro_run.get_config().to_dict()).task.questions('test')[0]
  notes = [f'--note={note}' for note in question.notes]
  for command in (
    micro_run.command('ask', f'--workdir={workdir}', f'--question={question.text}', *notes),
    micro_run.command('export', f'--workdir={workdir}', f'--out={tmp_path / "model"}'),
  ):
    done = micro_run.run(command)
    assert (done.returncode, done.stderr) == (0, '')
