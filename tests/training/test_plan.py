"""Checks that the plan counts what a run allocates, and refuses what cannot fit."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import pytest
import tiny
from jax.sharding import AbstractMesh

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config import check as config_lib
from agent_gspo.models import flops, load
from agent_gspo.models.transformer import Transformer
from agent_gspo.ops import device_kind
from agent_gspo.ops.attention import masks
from agent_gspo.packing import train_batches
from agent_gspo.sharding.placement import AXES, ONE_DEVICE, Placement
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import (
  answer_values,
  costs,
  host_memory,
  loop,
  message_worth,
  plan,
  prompt_checks,
)
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.prompt_checks import PromptLengths
from agent_gspo.types import Message
from benchmarks.model_shapes import MODELS


def _nbytes(tree) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(tree))


@pytest.fixture(scope='module')
def setup():
  config = micro_run.changed(objective__kl_coef=0.1, rollout__ahead=2)
  return setup_lib.build(config_lib.check(config))


def test_state_and_gradients_are_those_of_the_run(setup):
  programs = setup_lib.make_learner(setup).programs
  state = setup_lib.init_state(setup, setup.params)
  assert setup.plan.state == {
    'parameters': _nbytes(state.trainable),
    'frozen parameters': 0,
    'moments': _nbytes(state.opt_state),
    'reference policy': _nbytes(state.reference),
    'opponents': _nbytes(state.pool),
    'weights of rollouts ahead': 2 * _nbytes(state.trainable),
    'frozen models': 0,
    'process': plan._PROCESS // jax.local_device_count(),
  }
  gradients, _ = programs.no_totals(state.trainable)
  _, writing, *learning = setup.plan.programs
  for program in learning:
    assert program.arrays == {'gradients': _nbytes(gradients), 'rollouts ahead': writing.bytes}


def test_a_free_schedule_holds_two_copies_at_most(setup):
  for ahead, copies in (1, 1), (2, 2), (8, 2):
    config = micro_run.changed(rollout__ahead=ahead, rollout__schedule='free')
    state = setup_lib.plan(config_lib.check(config)).state
    assert state['weights of rollouts ahead'] == copies * setup.plan.state['parameters']


def test_pool_and_cache_are_those_of_the_sampler(setup):
  sampler = setup.sampler
  reading, writing = plan.rollout_programs(sampler, width=256, rows=3, columns=64, messages=8)
  pool = _nbytes(sampler.pool(3, 256))
  cache, *_ = sampler.pool(8, 64 + sampler.max_new_tokens)
  assert sum(reading.arrays.values()) == pool
  assert sum(writing.arrays.values()) == pool + _nbytes(cache)


def test_a_rollout_reads_no_more_prompts_than_planned(setup):
  """The first layer, whose prompts are fixed, reads nearly as many as planned."""
  config = setup.config.rollout
  questions = list(setup.questions[: config.questions])
  prompts = [
    np.asarray(writer.begin(q, agent).prompt([]))
    for q in questions
    for agent, writer in enumerate(setup.team.prompt_writers(setup.tokenizer)[:2])
  ]
  longest = [PromptLengths(max(map(len, prompts)), (max(map(len, prompts)),))] * 2
  read, written = costs.layer_load((0, 1), 0, longest, config.questions, config.group_size)
  assert sum(map(len, prompts)) <= read <= 1.3 * sum(map(len, prompts))
  assert written == 2 * config.questions * config.group_size


@pytest.mark.slow
def test_a_run_has_room_for_its_own_evaluations():
  """Evaluations have larger batches than rollouts, at most the number of questions."""

  def planned(training=True, **fields):
    fields = {'evaluation__batch_questions': 32, **fields}
    return setup_lib.plan(config_lib.check(micro_run.changed(**fields), training=training))

  few, many = planned(), planned(evaluation__questions=32)
  alone = planned(training=False, evaluation__questions=32)
  for small, large, own in zip(few.programs[:2], many.programs[:2], alone.programs, strict=True):
    assert small.bytes < large.bytes
    assert large.arrays == own.arrays
  assert few.positions == many.positions  # of a step
  assert few.programs == planned(evaluation__batch_questions=4).programs
  for field in ('evaluation__questions_during', 'evaluation__seen_questions'):
    assert planned(**{field: 32}).programs == many.programs
  assert planned(evaluation__questions_during=32, evaluation__every=0).programs == few.programs


def test_processes_that_cut_parameters_hold_a_whole_copy_while_they_sample(monkeypatch, setup):
  planned = lambda: setup_lib.plan(config_lib.check(micro_run.changed()))
  alone = planned().programs
  cut = Placement(AbstractMesh((1, 2, 1), AXES))  # over two processes
  monkeypatch.setattr(setup_lib, 'make_placement', lambda *_: cut)
  monkeypatch.setattr(setup_lib, 'own_devices', lambda *_: ONE_DEVICE)
  whole = {'its parameters': _nbytes(setup.params)}
  for one, two in zip(alone[:2], planned().programs, strict=False):
    assert two.arrays == {**one.arrays, **whole}


@pytest.mark.slow
@pytest.mark.parametrize('attention', ['reference', 'blockwise'])
@pytest.mark.parametrize('remat', [False, True])
def test_temporaries_are_near_those_of_this_machines_compiler(remat, attention):
  """The fit is of another compiler; it must be right within a factor of two."""
  rows, length = 8, 512
  config = micro_run.changed(
    model__remat=remat,
    model__attention=attention,
    learner__micro_batch_size=rows,
    learner__pack_length=length,
  )
  setup = setup_lib.build(config_lib.check(config))
  programs = setup_lib.make_learner(setup).programs
  state = setup_lib.init_state(setup, setup.params)
  messages = [tiny.message(np.arange(5, 9, dtype=np.int32), np.ones(2, np.int32), np.zeros(2))]
  (batch,) = train_batches.pack_messages(messages, pack_length=length, micro_batch_size=rows)
  totals = programs.no_totals(state.trainable)
  lowered = programs.accumulate.lower(state.trainable, state.frozen, None, totals, batch)
  found = lowered.compile().memory_analysis().temp_size_in_bytes
  _, _, update, _ = setup.plan.programs
  assert 0.5 < update.temporaries / found < 2


@pytest.mark.parametrize(
  ('kind', 'changes', 'as_if'),
  [
    ('gpu', {'dtype': 'float32'}, 'reference'),
    ('gpu', {'dtype': 'bfloat16', 'attention_cap': 50.0}, 'reference'),
    ('gpu', {'dtype': 'bfloat16'}, 'gpu'),
    ('tpu', {'dtype': 'float32'}, 'tpu'),
    ('cpu', {'dtype': 'float32'}, 'blockwise'),
  ],
)
def test_scores_count_where_the_attention_of_a_device_stores_them(kind, changes, as_if):
  config = tiny.CONFIG.replace(head_dim=64, **changes)
  needed = lambda attention: costs.update_bytes(
    config.replace(attention=attention), ONE_DEVICE, 8, 1024, 10**6
  )
  with device_kind.planned_for(kind):
    assert needed('auto') == needed(as_if)
  assert needed('blockwise') == needed('gpu') < needed('reference') / 2


def test_nothing_is_kept_of_attention_that_is_computed_whole():
  kept = {'model__remat': True, 'model__remat_keeps': 'attention'}
  parts = config_lib.check(micro_run.changed(**kept))
  setup_lib.plan(parts)  # a CPU recomputes nothing
  with device_kind.planned_for('gpu'):
    with pytest.raises(ValueError, match=r"'reference' for rows of \d+ .*\.remat_keeps='nothing'"):
      setup_lib.plan(parts)


def test_a_plan_for_other_devices_follows_their_rules():
  config = micro_run.changed(model__remat=True, learner__pack_length=512)
  here = setup_lib.plan(config_lib.check(config))
  with device_kind.planned_for('tpu'):
    there = setup_lib.plan(config_lib.check(config))
  assert here.memory is not None
  assert there.memory is None
  assert there.state['process'] == 0
  (_, writing, update, _), (_, more_rows, recomputed, _) = here.programs, there.programs
  assert more_rows.arrays['cache'] > writing.arrays['cache']  # padded to few shapes
  assert recomputed.temporaries < update.temporaries


@pytest.mark.parametrize(('questions', 'rows'), [(8, 32), (3, 12), (64, 96)])
def test_decode_has_one_shape_no_larger_than_the_largest_layer_elsewhere(questions, rows):
  config = micro_run.changed(rollout__questions=questions, rollout__group_size=2)
  config['evaluation'].update(batch_questions=2)
  with device_kind.planned_for('gpu'):
    sampler = setup_lib.build(config_lib.check(config)).sampler
  assert {sampler.batch_rows(n) for n in range(1, rows + 1)} == {rows}


@pytest.mark.parametrize('predicted', [0, 96])
def test_flops_are_those_that_the_compiler_counts(predicted):
  config = tiny.CONFIG.replace(embed_dim=64, head_dim=32, num_heads=2, num_kv_heads=1, mlp_dim=256)
  model, length = Transformer(config), 96
  tokens = jnp.zeros((1, length), jnp.int32)
  mask = masks.causal(jnp.full(1, length), length)

  def run(params):
    hidden, _ = model.apply({'params': params}, tokens, tokens, mask)
    if not predicted:
      return hidden
    return model.apply({'params': params}, hidden, method='logits')

  params = jax.eval_shape(lambda: load.init_params(config, jax.random.key(0)))
  counted = jax.jit(run).lower(params).compile().cost_analysis()['flops']
  # All pairs are computed, masked ones too.
  assert flops.forward(config, length, length, predicted) == pytest.approx(counted, rel=0.1)


@pytest.mark.slow
def test_weights_of_a_mixture_are_those_of_the_model_card():
  """Qwen3-30B-A3B: 30.5 billion parameters, 3.3 of them (with embedding and head) for a token."""
  config = MODELS['qwen3-30b-a3b']
  assert plan._weights(config) == pytest.approx(30.5e9, rel=0.005)
  table = config.vocab_size * config.embed_dim
  assert flops.body_weights(config) + 2 * table == pytest.approx(3.35e9, rel=0.005)


def test_an_update_costs_three_passes_and_without_weights_two(setup):
  config = setup.model.config
  forward = flops.forward(config, 100, 50, 100)
  assert flops.update(config, 100, 50, 100) == pytest.approx(3 * forward)
  with_adapters = flops.update(config.replace(lora_rank=4), 100, 50, 100)
  assert 2 * forward < with_adapters < 3 * forward


def test_what_cannot_fit_is_refused_before_weights_are_read(monkeypatch, tmp_path):
  monkeypatch.setattr(load.Model, 'params', property(lambda self: pytest.fail('weights were read')))
  monkeypatch.setattr(plan, '_memory', lambda: 3 * 2**20)
  monkeypatch.setattr(plan, '_PROCESS', 0)
  with pytest.raises(ValueError, match=r'does not fit: the update needs about .* Lower learner\.'):
    loop.train(micro_run.changed(), tmp_path)
  config = micro_run.changed(sampler__prefill_rows=64)
  with pytest.raises(ValueError, match=r'reading prompts needs .* Lower sampler\.prefill_rows'):
    setup_lib.build(config_lib.check(config, training=False))
  monkeypatch.setattr(plan, '_memory', lambda: 2**20)
  with pytest.raises(ValueError, match=r'Raise mesh\.fsdp, or train adapters alone'):
    loop.train(micro_run.changed(), tmp_path)


@pytest.mark.parametrize('of_plan', [1.4, 1.6])
def test_freed_memory_is_kept_only_with_half_as_much_to_spare(monkeypatch, of_plan):
  told, parts = [], config_lib.check(micro_run.changed())
  needed = setup_lib.plan(parts).bytes
  monkeypatch.setattr(host_memory, 'release', lambda: told.append('release'))
  monkeypatch.setattr(plan, '_memory', lambda: int(needed * of_plan))
  setup_lib.build(parts)
  assert told == ['release'] * (of_plan < 1.5)


def test_an_export_needs_no_memory_of_a_run(monkeypatch):
  monkeypatch.setattr(plan, '_memory', lambda: 2**20)
  parts = config_lib.check(micro_run.changed(), training=False)
  with pytest.raises(ValueError, match='does not fit'):
    setup_lib.build(parts)
  assert setup_lib.build(parts, only_weights=True).params


def test_a_plan_reads_no_weights_and_writes_nothing(monkeypatch, capsys):
  monkeypatch.setattr(load.Model, 'params', property(lambda self: pytest.fail('weights were read')))
  loop.print_plan(micro_run.changed())
  told = capsys.readouterr().out.splitlines()
  assert told[0].startswith('memory per device: ')
  assert 'in the update; always parameters' in told[0]
  for line, name in zip(
    told[1:], ('reading prompts', 'writing messages', 'the update'), strict=False
  ):
    assert line.strip().startswith(f'{name}: ')
  assert told[-1].startswith('a step: at most ')
  short = setup_lib.plan(config_lib.check(micro_run.changed())).lines(parts=False)
  assert short == [told[0].partition(';')[0]]


def test_a_dry_run_tells_what_the_whole_run_costs(monkeypatch, capsys):
  """Counts by hand: two steps of two questions, twice two of SFT, evaluations of four."""
  monkeypatch.setattr(costs, 'measured_rate', lambda dtype: 1e6)
  config = micro_run.changed(steps=2, evaluation__every=1, sft__questions=2)
  loop.print_plan(config, whole=True)
  told = {
    name: rest
    for name, _, rest in (x.partition(': ') for x in capsys.readouterr().out.splitlines())
  }
  count = lambda name: int(told[name].partition(' ')[0])
  assert count('SFT') == 4
  assert count('training steps') == 4
  # The untrained team and its single agent, after one step, the trained one, training questions.
  assert count('evaluations') == 4 + 4 + 4 + 4 + 3
  setup = setup_lib.build(config_lib.check(config))
  total = sum(work.flops for work in setup.plan.run)
  assert f'in all {total:.1e} FLOPs, ' in '\n'.join(f'{k}: {v}' for k, v in told.items())
  step = next(work for work in setup.plan.run if work.name == 'training steps')
  assert (step.positions, step.flops) == (2 * setup.plan.positions, 2 * setup.plan.flops)


@pytest.mark.slow
def test_a_dry_run_counts_whatever_is_scored_or_asked_again():
  def positions(**fields):
    plan = setup_lib.build(config_lib.check(micro_run.changed(steps=2, **fields))).plan
    return {work.name: work.positions for work in plan.run}

  plain = positions()
  told = {
    'budget__mode': 'conditioned',
    'budget__told_words': ('free', 'dear'),
    'team__roles__informant__opening': '{price} : {question} note : {note}',
    'evaluation__told': (0.0, 0.01),
  }
  assert positions(**told)['evaluations'] > 1.2 * plain['evaluations']
  assert positions(selection__resample=2)['training steps'] > plain['training steps']
  flops = lambda **fields: setup_lib.build(config_lib.check(micro_run.changed(**fields))).plan.flops
  assert flops(objective__ratio_span='episode') > flops()
  optima = {'reward__length_reward': 'optima', 'reward__gate': 'correct'}
  assert flops(**optima) == pytest.approx(flops(objective__kl_coef=0.1))


def test_a_dry_run_counts_validation_and_the_worth_of_evaluations():
  def work(**fields):
    values = micro_run.changed(steps=9, **fields)
    return {one.name: one for one in setup_lib.plan(config_lib.check(values)).run}

  plain = work(sft__steps=5)
  told = work(sft__steps=5, sft__save_every=2, sft__validation_questions=4)
  assert told['SFT'] == plain['SFT']
  assert told['SFT validation'].questions == 3 * 4  # steps 2, 4 and 5
  assert told['SFT validation'].positions == 3 * plain['SFT'].positions // 5  # of 4 questions too
  assert told['SFT validation'].flops == pytest.approx(plain['SFT'].flops / 5)  # a third of 3
  one, two = (work(sft__steps=5, evaluation__worth_questions=n)['evaluations'] for n in (1, 2))
  assert one.questions == plain['evaluations'].questions
  assert one.positions > plain['evaluations'].positions
  assert two.positions - one.positions == one.positions - plain['evaluations'].positions


def test_a_role_that_is_trained_less_costs_less(setup):
  parts, model = config_lib.check(micro_run.changed()), {'': setup.model.config}
  prompts = (PromptLengths(10, (20,)),) * 3
  whole = costs.update(parts, model, prompts, 8, 1)
  half = costs.update(parts, model, prompts, 8, 1, shares={'informant': 0.5})
  assert whole.positions == 8 * 3 * 24
  assert half.positions == 8 * 2 * 24
  assert half.flops < whole.flops


@pytest.mark.parametrize('name', ['worth', 'potential', 'shapley', 'spo_segment'])
def test_the_plan_bounds_what_is_read_to_value_messages(name):
  config = micro_run.changed(rollout__questions=3)
  config['advantage'].update(name=name, costs='inside')
  setup = setup_lib.build(config_lib.check(config))
  read: list[Message] = []

  def logprobs(messages):
    read.extend(messages)
    return [np.zeros(message.sampled.sum()) for message in messages]

  policy = setup.policy(setup.params, stream='train', step=0, temperature=1.0)
  parts = setup.team, setup.task, setup.tokenizer
  batch = rollout(*parts, setup.questions[:3], 2, policy)
  values = answer_values.GoldAnswers(*parts, batch, logprobs)
  message_worth.measure(*parts, batch, estimators.GAINS[name], values)
  whole = [(*m.prompt_ids.tolist(), *m.token_ids.tolist()) for m in read]
  done = len({ids[:end] for ids in whole for end in range(1, len(ids) + 1)})  # of a prefix tree
  contexts = {'': setup.model.config.max_positions}
  prompts = prompt_checks.check(setup, setup.tokenizer, contexts)
  bound = costs.worth(setup, {'': setup.model.config}, prompts, 3, 2)
  assert 0.4 * bound.positions < done <= bound.positions
  plain = setup_lib.build(config_lib.check(micro_run.changed(rollout__questions=3)))
  assert setup.plan.positions == plain.plan.positions + bound.positions
  assert setup.plan.flops == pytest.approx(plain.plan.flops + bound.flops)


def test_the_plan_bounds_what_evaluations_read_to_value_messages():
  setup = setup_lib.build(config_lib.check(micro_run.changed(evaluation__worth_questions=3)))
  read, rng = list[Message](), np.random.default_rng(0)

  def logprobs(messages):
    read.extend(messages)
    return [rng.normal(size=message.sampled.sum()) for message in messages]

  policy = setup.policy(setup.params, stream='eval', step=0, temperature=1.0)
  batch = rollout(setup.team, setup.task, setup.tokenizer, setup.questions[:4], 2, policy)
  scorer = types.SimpleNamespace(frozen_answers=logprobs)
  message_worth.of_evaluation(setup, scorer, lambda _: None, batch)
  whole = [(*m.prompt_ids.tolist(), *m.token_ids.tolist()) for m in read]
  done = len({ids[:end] for ids in whole for end in range(1, len(ids) + 1)})  # of a prefix tree
  prompts = prompt_checks.check(setup, setup.tokenizer, {'': setup.model.config.max_positions})
  models = {'': setup.model.config}
  bound = costs.worth(setup, models, prompts, 3, 2, 'leave_one_out')
  assert 0.3 * bound.positions < done <= bound.positions


def test_hints_are_read_three_times_where_all_answers_are_right():
  works = []
  for name in ('spo_segment', 'hill'):
    fields = {'advantage__options': {'samples': 4}, 'advantage__costs': 'inside'}
    fields['team__roles__informant__opening'] = '{question} note {note} {answer}'
    setup = setup_lib.build(config_lib.check(micro_run.changed(advantage__name=name, **fields)))
    prompts = prompt_checks.check(setup, setup.tokenizer, {'': setup.model.config.max_positions})
    works.append(costs.worth(setup, {'': setup.model.config}, prompts, 3, 2))
  coalitions = setup.team.num_agents  # of its messages: all, and all but one
  opening = 3 * prompts[-1].opening
  sampled, hints = (work.positions - opening for work in works)
  assert hints / sampled == pytest.approx((coalitions + 2 * (coalitions - 1)) / coalitions)


def test_the_measured_rate_is_one_of_this_machine():
  rate = costs.measured_rate('float32')
  assert 1e6 < rate < 1e16
