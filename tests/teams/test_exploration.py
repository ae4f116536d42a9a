"""Tests groups in which some messages must not be silent: draws and weights."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import types

import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import optax
import pytest
import scripted_teams as st
import tiny

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.algorithms.advantages.inputs import AdvantageInputs
from agent_gspo.config import check as config_lib
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Samples
from agent_gspo.teams import batches
from agent_gspo.teams.exploration import Exploration, audible_turns
from agent_gspo.teams.policies import ModelPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.sharing import Sharing
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.advantages import message_advantages
from agent_gspo.training.train_step import train_step

AUTHORS = ((0, 0), (1, 0))
SILENT = (0.9, 0.4)  # probability that each author is silent


def _exploration(count=2, group_size=4, turns=AUTHORS, step=0):
  return Exploration(turns, count, group_size, seed=0, step=step)


def _batch(episodes):
  """Returns episodes of two authors; entries say who speaks, None for no turn."""
  messages = []
  for e, spoken in enumerate(episodes):
    for agent, speaks in enumerate(spoken):
      if speaks is not None:
        message = tiny.message([1], [5, 0] if speaks else [0], agent=agent)
        log_speak = float(np.log1p(-SILENT[agent]))
        messages.append(dataclasses.replace(message, episode=e, log_speak=log_speak))
  return batches.from_messages(
    messages,
    questions=st.questions(1),
    agent_names=('a', 'b'),
    episode_question=[0] * len(episodes),
    sample=range(len(episodes)),
    answers=[''] * len(episodes),
    task_scores=np.zeros(len(episodes)),
  )


def _weights(exploration, batch):
  """Returns the weight of each episode; its messages all have the same."""
  by_episode = {m.episode: m.weight for m in exploration.weighted(batch).messages}
  return np.asarray([by_episode[e] for e in range(batch.num_episodes)])


def _turn_of(question, sample, agent):
  return types.SimpleNamespace(question=question, sample=sample, agent=agent, round=0)


def _turn(question=0, sample=0, agent=0):
  return _turn_of(st.questions(question + 1)[question], sample, agent)


# The formula.


def _score(agent, speaks):
  """Returns the derivative of the log-probability of an action by the logit of speaking."""
  return SILENT[agent] if speaks else -(1 - SILENT[agent])


def _reward(spoken):
  """Returns the reward: two messages help together, and each costs."""
  return 3.0 * (spoken[0] and spoken[1]) - 0.5 * spoken[0] - 0.2 * spoken[1]


@pytest.mark.parametrize('count', [1, 2, 3])
def test_weighted_policy_gradients_are_unbiased_and_unweighted_ones_are_not(count):
  """Sums over all outcomes of a group's episodes, weighted by probability under the mask."""
  size = 4
  exploration = _exploration(count, size)
  outcomes = list(itertools.product((False, True), repeat=2))
  # Either author is drawn as often in each of the first episodes.
  strata = [(share, forced) for forced in AUTHORS for share in [count / size / 2]]
  strata.append((1 - count / size, None))
  weight = dict(zip(outcomes, _weights(exploration, _batch(outcomes)), strict=True))
  estimate, unweighted, truth = np.zeros(2), np.zeros(2), np.zeros(2)
  for spoken in outcomes:
    terms = np.asarray([_score(a, spoken[a]) for a in range(2)]) * _reward(spoken)
    of_policy = np.prod([1 - SILENT[a] if spoken[a] else SILENT[a] for a in range(2)])
    truth += of_policy * terms
    for share, forced in strata:
      sampled = of_policy
      if forced:
        sampled = of_policy / (1 - SILENT[forced[0]]) if spoken[forced[0]] else 0.0
      estimate += share * sampled * weight[spoken] * terms
      unweighted += share * sampled * terms
  np.testing.assert_allclose(estimate, truth, rtol=1e-12)
  assert np.all(np.abs(unweighted - truth) > 0.05)
  assert max(weight.values()) <= size / (size - count)


def test_a_turn_that_was_not_taken_leaves_the_density_as_it_is():
  whole, without = _weights(_exploration(1, 2), _batch([(True, True), (None, True)]))
  assert whole == pytest.approx(1 / (0.5 + 0.5 * (1 / 0.1 + 1 / 0.6) / 2))
  assert without == pytest.approx(1 / (0.5 + 0.5 * (1 + 1 / 0.6) / 2))


def test_the_first_episodes_draw_each_turn_equally_often():
  drawn: collections.Counter = collections.Counter()
  exploration = _exploration(count=2)
  for question in range(400):
    flags = {
      (s, a): exploration.must_speak(_turn(question, s, a)) for s in range(4) for a in range(3)
    }
    assert [sum(flags[s, a] for a in range(3)) for s in range(4)] == [1, 1, 0, 0]
    assert flags[0, 0] != flags[1, 0]  # both before one comes again
    drawn[flags[0, 0]] += 1
  assert 160 < drawn[True] < 240
  first = lambda step: [_exploration(step=step).must_speak(_turn(q)) for q in range(40)]
  assert first(0) == first(0) != first(1)


# The policy.


def _heard(team, tokenizer, must_speak):
  """Runs a team that writes a tool's mark and ends; returns also what the sampler was told."""
  asked, mark = [], team.toolboxes(tokenizer)[0].mark_ids()[0]

  def sampler(params, prompts, *_, **told):
    asked.append(told)
    written = [tokenizer.eos_id if p[-1] == mark else mark for p in prompts]
    return Samples(
      token_ids=[np.asarray([i], np.int32) for i in written],
      logprobs=[np.zeros(1, np.float32)] * len(prompts),
      ended=np.ones(len(prompts), bool),
      prefill_positions=0,
      log_speak=np.arange(len(prompts)) if 'must_speak' in told else None,
    )

  root = keys.stream(0, 'train')
  policy = ModelPolicy(sampler, {}, root, step=0, temperature=1.0, must_speak=must_speak)
  return rollout(team, st.Echo(), tokenizer, st.questions(1), 2, policy), asked


def test_the_sampler_is_told_who_must_speak_and_what_silence_is():
  """A message that begins with a tool's mark is not silent."""
  tokenizer = st.byte_tokenizer()
  team = st.team('star', style='chat', tools=('calculator',))
  (mark,), end = team.toolboxes(tokenizer)[0].mark_ids(), tokenizer.eos_id
  batch, asked = _heard(team, tokenizer, lambda turn: turn.agent == 1)
  first, more = asked[:2]
  assert first['silence_ids'] == (end,)
  assert set(first['stop_ids']) == {end, mark}
  np.testing.assert_array_equal(first['must_speak'], [False, True, False, True])
  assert 'must_speak' not in more
  assert [m.log_speak for m in batch.messages[:4]] == [0, 1, 2, 3]
  assert [m.token_ids.tolist() for m in batch.messages[:4]] == [[mark, end]] * 4
  _, asked = _heard(team, tokenizer, None)
  assert not any('must_speak' in told for told in asked)


def test_only_messages_of_trained_agents_that_are_read_are_drawn():
  team = st.team('star')  # the last agent reads the others
  assert audible_turns(team, Sharing()) == ((0, 0), (1, 0))
  assert audible_turns(team, Sharing(trained=frozenset({1, 2}))) == ((1, 0),)
  assert audible_turns(st.team('single'), Sharing()) == ()


# A step.


def test_a_step_weights_advantages_and_begins_with_ratios_of_one():
  config = micro_run.changed(rollout__group_size=4, rollout__must_speak=2)
  setup = setup_lib.build(config_lib.check(config))
  learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, setup.params)
  result = train_step(setup, learner, state, types.SimpleNamespace(phase=lambda *args: None))
  assert result.metrics['policy/ratio_first_minibatch_error_max'] < 1e-4
  batch, turns = result.rollout, audible_turns(setup.team, setup.sharing)
  assert turns == ((0, 0), (1, 0))
  exploration = _exploration()  # seed 0, two of four episodes, as the config
  flags = [
    exploration.must_speak(_turn_of(batch.questions[q], batch.sample[e], m.agent))
    for m, q, e in zip(batch.messages, batch.question, batch.episode, strict=True)
  ]
  assert sum(flags) == 2 * len(batch.questions)
  assert not batch.silent[flags].any()
  weights = np.asarray([m.weight for m in batch.messages])
  np.testing.assert_allclose(weights, _weights(exploration, batch)[batch.episode])
  assert np.all(weights != 1)
  plain = dataclasses.replace(
    batch, messages=tuple(dataclasses.replace(m, weight=1.0) for m in batch.messages)
  )
  unweighted = message_advantages(setup.config, plain, result.rewards, state.selection).values
  np.testing.assert_allclose(result.advantages, unweighted * weights, rtol=1e-6)
  assert np.abs(result.advantages).max() > 0


# The purpose.


def _learned(count, steps=150, size=8, groups=4):
  """Trains the logit of one author who is silent at first, though speaking is worth 1.

  Returns the last probability that it speaks; Adam and the group's advantages as in a run.
  """
  rng, optimizer = np.random.default_rng(0), optax.adam(0.1)
  logit = jnp.float32(-11.5)  # 1e-5: a silent sample in all but one of 3,000 groups
  state = optimizer.init(logit)
  exploration = _exploration(count, size, turns=((0, 0),))
  index, zeros = np.arange(groups * size), np.zeros(groups * size, np.float32)
  for _ in range(steps):
    speaks = float(jax.nn.sigmoid(logit))
    spoken = rng.random((groups, size)) < speaks
    spoken[:, :count] = True
    spoken = spoken.ravel()
    batch = _batch([(bool(x),) for x in spoken])
    log_speak = float(jax.nn.log_sigmoid(logit))
    messages = tuple(dataclasses.replace(m, log_speak=log_speak) for m in batch.messages)
    weights = _weights(exploration, dataclasses.replace(batch, messages=messages))
    asked = index // size
    inputs = AdvantageInputs(
      task=spoken.astype(np.float32),
      costs=zeros,
      groups=asked,
      question=asked,
      episode=index,
      agent=index * 0,
      turn=index * 0,
    )
    values = estimators.advantage(inputs, 'group_std', costs='inside').values
    ascent = np.mean(weights * values * (spoken - speaks))
    updates, state = optimizer.update(jnp.float32(-ascent), state)
    logit = optax.apply_updates(logit, updates)
  return float(jax.nn.sigmoid(logit))


def test_a_silent_team_learns_to_speak_again():
  assert _learned(count=0) < 1e-4
  assert _learned(count=1) > 0.9
