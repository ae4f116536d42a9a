"""Checks that SFT of several models trains each as if it were alone."""

from __future__ import annotations

import contextlib
import os
import shutil

import flax.traverse_util
import jax
import micro_models
import micro_run
import numpy as np
import pytest

from agent_gspo.config import check as config_lib
from agent_gspo.models.io import hf
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import sft
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.progress import Progress
from agent_gspo.training.state import MEMBERS, without_members
from agent_gspo.workdir import records
from agent_gspo.workdir.checkpoints import Checkpoints
from agent_gspo.workdir.writers import RunWriter

SOLVER = 'solver'
SFT = {'sft__steps': 4, 'sft__save_every': 2, 'sft__validation_questions': 4}


def built(solver: str = '', trains: bool = False, **values) -> setup_lib.Setup:
  config = micro_run.changed(**{**SFT, **values})
  config['team']['roles'][SOLVER] |= {'model': solver, 'trains': trains}
  return setup_lib.build(config_lib.check(config))


def taught(setup: setup_lib.Setup, folder, stop: int = 0):
  """Returns parameters after SFT from the newest checkpoint, and the records of its steps."""
  saves, interruption = Checkpoints(folder / 'sft', setup.config), Interruption()

  def meet():
    if len(records.supervised(folder)) == stop:
      raise KeyboardInterrupt

  interruption.meet = meet
  try:
    with contextlib.closing(RunWriter(folder)) as writer:
      params, _ = sft.Stage(setup, saves, writer, interruption, Progress()).imitate()
  finally:
    saves.wait()
  return jax.tree.map(np.asarray, params), records.supervised(folder)


def flat(params) -> dict:
  return {path: np.asarray(x) for path, x in flax.traverse_util.flatten_dict(params).items()}


def assert_equal(a, b) -> None:
  a, b = flat(a), flat(b)
  assert a.keys() == b.keys()
  for path, x in a.items():
    np.testing.assert_array_equal(x, b[path])


def differs(a, b) -> bool:
  a, b = flat(a), flat(b)
  return all(not np.array_equal(a[path], b[path]) for path in a if path[-1] == 'kernel')


@pytest.fixture(scope='module')
def permuted() -> str:
  return micro_models.source(permuted=True)


@pytest.mark.parametrize(
  'values', [{}, pytest.param({'sft__decision_weight': 3.0}, marks=pytest.mark.slow)]
)
def test_each_model_learns_as_if_it_alone_were_taught(permuted, tmp_path, values):
  both, told = taught(built(permuted, True, **values), tmp_path / 'both')
  informants = built(sft__role_shares={SOLVER: 0.0}, **values)
  solver = built(model__source=permuted, sft__role_shares={'informant': 0.0}, **values)
  for own, setup, of, role in (
    (without_members(both), informants, '', 'informant'),
    (both[MEMBERS][SOLVER], solver, f'/{SOLVER}', SOLVER),
  ):
    alone, told_alone = taught(setup, tmp_path / role)
    assert_equal(own, alone)
    assert differs(own, setup.params)
    for name, figure in (
      (f'sft/loss_nats{of}', 'sft/loss_nats'),
      (f'sft/grad_norm{of}', 'sft/grad_norm'),
      (f'{sft.VALIDATION}_{role}', sft.VALIDATION),
    ):
      assert [x.get(name) for x in told] == [x.get(figure) for x in told_alone]
  by_role = [told[-1][f'{sft.VALIDATION}_{role}'] for role in ('informant', SOLVER)]
  assert min(by_role) < told[-1][sft.VALIDATION] < max(by_role)


@pytest.mark.parametrize(
  'values', [{}, pytest.param({'model__lora_rank': 2}, marks=pytest.mark.slow)]
)
def test_it_goes_on_where_it_was_stopped(permuted, tmp_path, values):
  values = {**values, 'model__source': micro_models.source(permuted=False)}
  whole, told = taught(built(permuted, True, **values), tmp_path / 'whole')
  with pytest.raises(KeyboardInterrupt):
    taught(built(permuted, True, **values), tmp_path / 'cut', stop=3)
  again, retold = taught(built(permuted, True, **values), tmp_path / 'cut')
  assert_equal(whole, again)
  untimed = lambda records: [{**r, 'time/step_s': 0} for r in records]
  assert untimed(retold) == untimed(told)


def test_a_frozen_member_and_one_without_a_share_stay(permuted, tmp_path):
  source = built(permuted, True).params[MEMBERS][SOLVER]
  frozen = built(permuted, False)
  params, told = taught(frozen, tmp_path / 'frozen')
  assert MEMBERS not in params
  assert not any(name.endswith(SOLVER) for record in told for name in record)
  assert_equal(frozen.members[permuted].params, source)
  silent = {'sft__role_shares': {SOLVER: 0.0}}
  untaught, told = taught(built(permuted, True, **silent), tmp_path / 'untaught')
  assert_equal(untaught[MEMBERS][SOLVER], source)
  assert_equal(without_members(untaught), params)
  assert not any(name.endswith(SOLVER) for record in told for name in record)
  alone, told = taught(
    built(permuted, True, sft__role_shares={'informant': 0.0}), tmp_path / 'alone'
  )
  assert_equal(without_members(alone), built().params)
  assert differs(alone[MEMBERS][SOLVER], source)
  assert 'sft/loss_nats' not in told[0]


def test_members_from_scratch_have_weights_of_their_own_by_seed():
  setups = [built('random:micro', True, seed=seed) for seed in (0, 0, 1)]
  member, same, other = (setup.params[MEMBERS][SOLVER] for setup in setups)
  assert_equal(member, same)
  assert differs(member, other)
  assert differs(member, without_members(setups[0].params))
  assert setups[0].team.tokenizers['random:micro'].fingerprint == setups[0].tokenizer.fingerprint


def test_its_cache_tells_models_apart(permuted, tmp_path, monkeypatch):
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path))
  folder = shutil.copytree(permuted.removeprefix('hf:'), tmp_path / 'model')
  pretrained = {'sft__seed': 0, 'model__source': micro_models.source(permuted=False)}

  def kept(source: str, trains: bool = True, **values):
    setup = built(source, trains, **{**pretrained, **values})
    return setup, sft.cache_file(setup.config, setup.sources, setup.tokenizer.fingerprint)

  setup, file = kept(f'hf:{folder}')
  sft.save_cached(file, setup.params)
  assert_equal(sft.load_cached(file, setup.params), setup.params)
  assert kept(f'hf:{folder}', seed=1)[1] == file
  scratch = [kept('random:micro', seed=seed)[1] for seed in (0, 1)]
  os.utime(folder / 'model.safetensors', ns=(0, 0))
  overwritten = kept(f'hf:{folder}')[1]
  assert len({file, *scratch, overwritten, kept(f'hf:{folder}', trains=False)[1]}) == 5


def test_a_task_word_outside_a_models_vocabulary_is_refused(tmp_path):
  setup = built()
  words = [setup.tokenizer.decode([i]) for i in range(3, setup.tokenizer.vocab_size)]
  lacking = word_level([word for word in words if word != 'hello'])
  model = setup.model.config.replace(vocab_size=lacking.vocab_size, unsaid=())
  params = setup.params | {'embed': {'embedding': setup.params['embed']['embedding'][:-1]}}
  hf.export_hf(model, jax.tree.map(np.asarray, params), tmp_path / 'model', lacking)
  message = r"'hello' of task 'relay' is not in the vocabulary of team\.roles\.solver\.model='hf"
  with pytest.raises(ValueError, match=message):
    built(f'hf:{tmp_path}/model', True)
