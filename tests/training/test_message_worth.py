"""Compares gains of messages with the model run on prompts written by hand."""

from __future__ import annotations

import dataclasses
import types

import jax
import micro_run
import numpy as np
import pytest
import scripted_teams

from agent_gspo.algorithms import attribution
from agent_gspo.config import check as config_lib
from agent_gspo.models.io.stored import StoredArray
from agent_gspo.rewards import communication
from agent_gspo.tasks.relay.task import RelayTask
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import message_worth, run_evaluations
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.answer_values import GoldAnswers, Replays, scored_message
from agent_gspo.training.metrics import price_warning
from agent_gspo.training.policy_loss import PolicyParams
from agent_gspo.training.train_step import train_step

TOKENIZER = scripted_teams.byte_tokenizer()


class _Gold(scripted_teams.Echo):
  """Accepts two spellings of an answer."""

  def gold_messages(self, question):
    return ('', '12'), ('is ', 'twelve')

  def plain_message(self, question, agent):
    return 'delta' if agent == 0 else ''


def _begun(config):
  """Returns setup, learner and first state of a run."""
  setup = setup_lib.build(config_lib.check(config))
  return setup, setup_lib.make_learner(setup), setup_lib.init_state(setup, setup.params)


def _measured(said, name='leave_one_out', topology='star', value=None, **team):
  """Returns rollout, gains and scoring calls; `value(prompt, answer)` is in nats."""
  team = scripted_teams.team(topology, max_message_tokens=40, **team)
  policy = ScriptedPolicy(lambda turn: said[turn.sample][turn.agent], TOKENIZER)
  task, questions = _Gold(), scripted_teams.questions(1)
  batch = rollout(team, task, TOKENIZER, questions, len(said), policy)
  calls = []

  def logprobs(messages):
    calls.append(messages)
    decode = lambda ids: TOKENIZER.decode(ids.tolist())
    values = [value(decode(m.prompt_ids), decode(m.token_ids[:-1])) for m in messages]
    # Each message's value, spread over its sampled tokens.
    return [
      np.full(m.sampled.sum(), v / m.sampled.sum()) for m, v in zip(messages, values, strict=True)
    ]

  parts = team, task, TOKENIZER, batch
  found = message_worth.measure(*parts, name, GoldAnswers(*parts, logprobs))
  return batch, found, calls


def _told(prompt, answer):
  """Returns the value of a prompt by its words, equal for both spellings of the answer."""
  del answer
  return -10.0 + 4 * ('alpha' in prompt) + 5 * ('beta' in prompt) + 1 * ('delta' in prompt)


def test_leave_one_out_and_the_plain_note():
  batch, found, calls = _measured(
    [('alpha', 'beta', '12'), ('', 'beta', '12'), ('alpha', 'gamma', '9')], value=_told
  )
  gain = {(m.episode, m.agent): g for m, g in zip(batch.messages, found.gain, strict=True)}
  assert [gain[e, 0] for e in range(3)] == pytest.approx([4, 0, 4])
  assert [gain[e, 1] for e in range(3)] == pytest.approx([5, 5, 0])
  assert all(np.isnan(gain[e, 2]) for e in range(3))  # the answering agent's own
  plain = {(m.episode, m.agent): g for m, g in zip(batch.messages, found.plain_gain, strict=True)}
  assert plain[0, 0] == pytest.approx(1)
  assert sum(~np.isnan(list(plain.values()))) == 1  # agent 1 has no note
  assert found.plain_written[0] == len(' delta')
  prompts = {m.prompt_ids.tobytes() for m in calls[0]}
  forms = len(calls[0]) / len(prompts)
  assert len(calls) == 1
  assert forms == round(forms)  # equal prompts are scored once, with all forms
  assert len(prompts) < 3 * 4


def test_all_that_was_read_gives_the_prompt_that_was_read():
  batch, _, calls = _measured([('alpha', 'beta', '12')], value=_told)
  answered = next(m for m in batch.messages if m.agent == 2)
  assert answered.prompt_ids.tobytes() in {m.prompt_ids.tobytes() for m in calls[0]}


def test_potential_telescopes_over_rounds():
  said = [('alpha', 'beta', '12')]
  batch, found, _ = _measured(
    said, 'potential', 'complete', value=_told, rounds=2, addressing=False
  )
  read = [g for g in found.gain if not np.isnan(g)]
  assert max(read) == pytest.approx(9)
  assert batch.turn.max() > 1


def test_segments_are_differences_of_values_that_end_in_the_score():
  """SPO's `V(s_{k+1}) - V(s_k)`: the probability of the gold answer, after it the task score."""
  said = [('alpha', 'beta', '0'), ('', 'beta', '1')]
  batch, found, _ = _measured(said, 'segment', value=_told)
  value = lambda told: 2 * np.exp(_told(told, ''))  # two forms
  expected = {
    (0, 0): value('alpha') - value(''),
    (0, 1): value('alpha beta') - value('alpha'),
    (0, 2): 1 - value('alpha beta'),
    (1, 0): 0.0,
    (1, 1): value('beta') - value(''),
    (1, 2): 0 - value('beta'),
  }
  gain = {(m.episode, m.agent): g for m, g in zip(batch.messages, found.gain, strict=True)}
  assert gain == pytest.approx(expected, rel=1e-5)
  assert batch.task_scores.tolist() == [1, 0]
  total = sum(gain[0, agent] for agent in range(3))
  assert total == pytest.approx(batch.task_scores[0] - value(''))


def test_unread_messages_have_no_gain():
  """In a chain the answering agent reads its predecessor alone."""
  batch, found, _ = _measured([('alpha', 'beta', '12')], topology='chain', value=_told)
  measured = {m.agent for m, g in zip(batch.messages, found.gain, strict=True) if not np.isnan(g)}
  assert measured == {1}


def test_replays_grade_answers_that_are_sampled_anew():
  """The answering agent is right iff it has read "alpha"; equal prompts are sampled once."""
  team, task = scripted_teams.team('star', max_message_tokens=40), _Gold()
  said = [('alpha', 'beta', '0'), ('', 'beta', '0'), ('', 'beta', '0')]
  speak = lambda turn: said[turn.sample][turn.agent]
  questions = scripted_teams.questions(1)
  parts = team, task, TOKENIZER
  batch = rollout(*parts, questions, len(said), ScriptedPolicy(speak, TOKENIZER))
  asked = []

  def answer(turn):
    asked.append((turn.sample, turn.prompt_ids.tobytes()))
    return '0' if 'alpha' in TOKENIZER.decode(turn.prompt_ids.tolist()) else '1'

  replays = Replays(*parts, batch, ScriptedPolicy(answer, TOKENIZER), samples=3)
  found = message_worth.measure(*parts, batch, 'leave_one_out', replays)
  gain = {(m.episode, m.agent): g for m, g in zip(batch.messages, found.gain, strict=True)}
  assert (gain[0, 0], gain[0, 1], gain[1, 1], gain[2, 1]) == (1.0, 0.0, 0.0, 0.0)
  segments = message_worth.measure(*parts, batch, 'segment', replays).gain[batch.episode == 0]
  assert segments.tolist() == [1.0, 0.0, 0.0]  # Monte Carlo values 0, 1, 1 and the score, 1
  asked = asked[: len({prompt for _, prompt in asked}) * 3]
  assert min(sample for sample, _ in asked) == len(said)  # keys of their own
  assert len({sample for sample, _ in asked}) == len(asked) == 3 * len({p for _, p in asked})


@pytest.mark.parametrize('name', [*attribution.ATTRIBUTIONS, 'hint'])
def test_of_a_real_rollout(name):
  """Checks values by the model, and that an unread note has worth 0."""
  others = {'leave_one_out': 'worth', 'segment': 'spo_segment', 'hint': 'hill'}
  fields = {'advantage__name': others.get(name, name), 'advantage__costs': 'inside'}
  if name == 'hint':
    fields['advantage__options'] = {'samples': 3}
    fields['team__roles__informant__opening'] = '{question} note {note} {answer}'
  config = micro_run.changed(**fields)
  setup, learner, state = _begun(config)
  policy = setup.policy(setup.params, stream='train', step=0, temperature=1.0)
  batch = rollout(setup.team, setup.task, setup.tokenizer, setup.questions[:2], 2, policy)
  prices = {'lambda_tok': 0.02, 'lambda_turn': 0.0, 'lambda_rep': 0.0}
  found = message_worth.of_step(setup, learner, state, batch, prices)
  asked = batch.agent < 2
  assert np.isfinite(found.gain[asked]).all()
  assert np.isnan(found.gain[~asked]).all() != (name == 'segment')
  assert (found.gain[asked & batch.silent] == 0).all() or name == 'potential'
  np.testing.assert_allclose(found.plain_costs[asked], 0.02 * found.plain_written[asked], rtol=1e-5)
  if name == 'hint':
    assert (np.abs(found.gain[asked]) <= 1).all()
    assert {'hint/success', 'hint/success_without'} <= set(found.metrics(batch))
  if name != 'leave_one_out':
    return
  m = next(m for m in np.flatnonzero(asked) if not batch.silent[m])
  without = next(
    x for x in batch.messages if x.agent == 2 and x.episode == batch.messages[m].episode
  )
  forms = setup.task.gold_messages(batch.questions[batch.question[m]])
  writer = setup.team.prompt_writers(setup.tokenizer)[2]
  ends = {int(x.token_ids[-1]) for x in batch.messages if x.agent == 2 and x.ended}
  ends = ends or {writer.end_id}

  def value(prompt):
    ((given, said),) = forms
    prompt = np.concatenate([prompt, writer.written_ids(given)])
    ids = writer.written_ids(given + said)[len(writer.written_ids(given)) :]
    scored = [scored_message(0, 2, prompt, [*ids, end]) for end in ends]
    alone = [setup_lib.make_scorer(setup).score(state, [x])[0].sum() for x in scored]
    return np.logaddexp.reduce(alone)

  names, others = setup.team.names, [x for x in batch.messages if x.episode == without.episode][:2]
  told = [
    (names[x.agent], x.said) for x in others if x.agent != batch.messages[m].agent and not x.silent
  ]
  prompt = writer.begin(batch.questions[batch.question[m]], 2).prompt(told)
  expected = value(without.prompt_ids) - value(prompt)
  assert found.gain[m] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
  ('name', 'options'),
  [('worth', {}), ('replay', {}), ('spo_segment', {}), ('spo_segment', {'samples': 2})],
)
def test_a_step_learns_from_gains(name, options):
  config = micro_run.changed(
    algorithm='worth', advantage__name=name, advantage__options=options, steps=2
  )
  setup, learner, state = _begun(config)
  result = train_step(setup, learner, state, types.SimpleNamespace(phase=lambda *args: None))
  assert np.isfinite(result.advantages).all()
  assert np.isfinite(result.worth.gain[[m.agent < 2 for m in result.rollout.messages]]).all()
  assert np.abs(result.advantages).max() > 0
  assert {'worth/relevant_nats', 'worth/irrelevant_nats', 'time/worth_s'} <= {*result.metrics}


def test_the_answering_agent_learns_the_gold_answer_at_the_prompt_it_had(monkeypatch):
  """The old log-probs are of the rollout's policy: the first ratio is 1."""
  config = micro_run.changed(algorithm='worth', steps=2, rollout__temperature=0.7)
  config['advantage']['options'] = {'imitation': 1.0}
  with pytest.raises(ValueError, match=r'imitation=1\.0: .*leaves the wording'):
    config_lib.check(config)
  whole = lambda self, question: (('', f'{question.answer} .'),)
  monkeypatch.setattr(RelayTask, 'gold_messages', whole)
  setup, learner, state = _begun(config)
  result = train_step(setup, learner, state, types.SimpleNamespace(phase=lambda *args: None))
  assert result.metrics['policy/ratio_first_minibatch_error_max'] < 1e-4
  said, gold = result.rollout.messages, result.worth.gold
  assert {*gold} == {m for m, message in enumerate(said) if message.agent == 2}
  for m, answer in gold.items():
    np.testing.assert_array_equal(answer.prompt_ids, said[m].prompt_ids)
    question = result.rollout.questions[result.rollout.question[m]]
    assert setup.tokenizer.decode(answer.said.tolist()).strip() in {
      given + text for given, text in setup.task.gold_messages(question)
    }
  answers = list(gold.values())
  after = [x.sum() for x in learner.score(result.state, answers)]
  assert sum(after) > sum(answer.logprobs.sum() for answer in answers)


def evaluated(setup, params):
  """Returns the record and the episodes of an evaluation of four questions."""
  scorer = setup_lib.make_scorer(setup)
  return run_evaluations.evaluate(setup, scorer, params, label='trained', step=0, count=4)


def test_an_evaluation_states_worth_by_author_and_what_would_be_left_at_a_price():
  setup = setup_lib.build(config_lib.check(micro_run.changed(evaluation__worth_questions=3)))
  record, batch = evaluated(setup, setup.params)
  assert [row['name'] for row in record['worth/agents']] == list(setup.team.names)
  authors = record['worth/agents'][:2]
  assert any(row[f'{kind}relevant_nats'] is not None for row in authors for kind in ('', 'ir'))
  frontier = record['worth/frontier']
  tokens, first = [row['tokens'] for row in frontier], batch.question < 3
  assert tokens == sorted(tokens, reverse=True)
  answers = batch.written[first & (batch.agent == 2)].sum() / 3
  assert answers <= tokens[-1] <= tokens[0] <= batch.written[first].sum() / 3
  assert all(0 <= row['gold_probability'] <= 1 for row in frontier)
  free = [row for row in frontier if row['tokens'] == tokens[0]]
  assert len({row['gold_probability'] for row in free}) == 1
  other = setup_lib.build(config_lib.check(micro_run.changed()))
  assert 'worth/agents' not in evaluated(other, setup.params)[0]


def test_parameters_in_a_file_are_evaluated_as_those_in_memory():
  setup = setup_lib.build(config_lib.check(micro_run.changed(evaluation__worth_questions=2)))
  stored = jax.tree.map(lambda x: StoredArray(x.shape, np.asarray(x).__getitem__), setup.params)
  records = [evaluated(setup, params)[0] for params in (stored, setup.params)]
  for record in records:
    record.pop('seconds', None)
  assert 'judgement/auc' in records[0]
  assert records[0] == records[1]


@pytest.mark.parametrize(('price', 'told'), [(0.0, False), (0.08, True)])
def test_a_price_above_what_relevant_notes_gain_is_told(price, told):
  config = micro_run.changed(algorithm='worth', steps=2, budget__lambda_tok=price)
  config['advantage']['options'] = {'nats': 1000.0}
  setup, learner, state = _begun(config)
  result = train_step(setup, learner, state, types.SimpleNamespace(phase=lambda *args: None))
  text = price_warning(setup.config, result.metrics)
  assert (text is not None) == (told or result.metrics['worth/relevant_plain_pays'] < 0.5)
  if told:
    assert 'at budget.lambda_tok=0.08 only 0% of the relevant notes' in text


def test_plain_notes_cost_the_same_whatever_was_said_in_their_place():
  config = micro_run.changed(
    algorithm='worth',
    reward__p_read=1.0,
    reward__p_tool=1.0,
    budget__lambda_tok=0.001,
    team__max_message_tokens=16,
    learner__pack_length=160,
  )
  setup, learner, state = _begun(config)
  found = []
  for said in ('', None):
    tells = lambda turn, said=said: (
      setup.task.plain_message(turn.question, turn.agent) if said is None else said
    )
    policy = ScriptedPolicy(tells, setup.tokenizer)
    batch = rollout(setup.team, setup.task, setup.tokenizer, setup.questions[:1], 2, policy)
    called = dataclasses.replace(batch, tool_tokens=batch.written // 2)
    found.append(message_worth.of_step(setup, learner, state, called, {'lambda_tok': 0.5}))
  first = ~np.isnan(found[0].plain_gain)
  assert found[0].plain_costs[first].min() > 0
  np.testing.assert_allclose(found[0].plain_costs[first], found[1].plain_costs[first])


def test_the_warning_names_options_that_there_are():
  found = {'worth/relevant_plain_pays': 0.2, 'budget/lambda_tok': 0.02}
  inside = {'advantage__costs': 'inside', 'algorithm': 'worth'}
  for name, lower in (
    ('worth', 'lambda_tok or advantage.options.nats, or'),
    ('replay', 'lambda_tok, or'),
  ):
    config = config_lib.resolve(micro_run.changed(**inside, advantage__name=name))
    assert f'Lower budget.{lower} train' in price_warning(config, found)


@pytest.mark.parametrize('cost', ['money', 'tokens'])
def test_silence_costs_what_a_silent_message_costs(cost):
  """With 'money' silence is charged for its prompt, which a note need not gain."""
  config = micro_run.changed(
    algorithm='worth',
    reward__cost=cost,
    reward__p_read=0.5,
    budget__lambda_tok=0.001,
    team__max_message_tokens=16,
    learner__pack_length=160,
  )
  setup, learner, state = _begun(config)
  said = lambda turn: '' if turn.sample else setup.task.plain_message(turn.question, turn.agent)
  policy = ScriptedPolicy(said, setup.tokenizer)
  batch = rollout(setup.team, setup.task, setup.tokenizer, setup.questions[:1], 2, policy)
  prices = {'lambda_tok': 1000.0, 'lambda_turn': 0.1}
  found = message_worth.of_step(setup, learner, state, batch, prices)
  real = communication.reward_terms(setup.config.reward, batch, **prices).costs
  first = batch.agent == 0
  silent, spoken = first & batch.silent, first & ~batch.silent
  assert spoken.any()
  assert (real[silent] > 0).all() == (cost == 'money')
  np.testing.assert_allclose(found.silence_costs[silent], real[silent], rtol=1e-6)
  np.testing.assert_allclose(found.silence_costs[spoken], real[silent], rtol=1e-6)
  if cost == 'money':
    more = 1000.0 * batch.written[spoken] / 1e6 + 0.1
    np.testing.assert_allclose(found.plain_needed[spoken], 10 * more, rtol=1e-5)


def test_silence_is_the_probability_of_stopping_at_once():
  setup = setup_lib.build(config_lib.check(micro_run.changed()))
  policy = setup.policy(setup.params, stream='train', step=0, temperature=1.0)
  batch = rollout(setup.team, setup.task, setup.tokenizer, setup.questions[:3], 2, policy)
  params, scorer = PolicyParams.of(setup.params), setup_lib.make_scorer(setup)
  of_model = {'': params}.__getitem__
  found = run_evaluations.log_probability(
    setup.team, setup.tokenizer, scorer, of_model, batch.messages
  )
  writers = setup.team.prompt_writers(setup.tokenizer)
  for m, message in enumerate(batch.messages):
    ends = [
      scored_message(0, message.agent, message.prompt_ids, [stop])
      for stop in writers[message.agent].stop_ids
    ]
    alone = [x.sum() for x in scorer.score(params, ends)]
    assert found[m] == pytest.approx(np.logaddexp.reduce(alone), abs=1e-4)
  batch = dataclasses.replace(batch, relevant=np.full(len(batch.messages), -1))
  parts = setup.team, setup.tokenizer, scorer, of_model, batch
  assert run_evaluations.judgement_figures(*parts) == {}


def test_metrics_tell_relevant_from_irrelevant():
  counts = types.SimpleNamespace(
    silent=np.array([False, False, True, False]),
    relevant=np.array([1, 0, 1, -1]),
    written=np.array([4, 4, 0, 2]),
  )
  gain = np.array([6.0, 0.5, 0.0, np.nan], np.float32)
  found = message_worth.MessageWorth(gain, gain, counts.written).metrics(counts)
  assert found == {
    'worth/relevant_nats': 6.0,
    'worth/irrelevant_nats': 0.5,
    'worth/nats_per_token': pytest.approx(6.5 / 8),
    'worth/auc': 1.0,
  }
