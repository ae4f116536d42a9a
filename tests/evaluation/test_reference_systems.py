"""Tests baselines of a team: single agents, other topologies, pruned teams."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scripted_teams as st

from agent_gspo.apps.reporting import tables
from agent_gspo.environments.kuhn import Kuhn
from agent_gspo.evaluation import harness, pruning, reference_systems, results, variants
from agent_gspo.evaluation.options import EvaluationOptions
from agent_gspo.tasks.base import Task
from agent_gspo.teams.rollout import rollout
from agent_gspo.types import Terms

TOKENIZER = st.numbers_tokenizer(60)
FIRST = TOKENIZER.backend.token_to_id('0')


class Notes(Task):
  """Gives agent 1 the relevant note, agent 2 an irrelevant one."""

  name = 'notes'

  def _split(self, split):
    shift = {'train': 0, 'validation': 8, 'test': 16}[split]
    return [
      dataclasses.replace(
        q, id=f'{split}{i}', notes=(str(20 + shift + i), '7'), relevant=(True, False)
      )
      for i, q in enumerate(st.questions(8))
    ]

  def score(self, question, answer_text):
    # The gold answer is the first note, also where nobody is dealt it.
    split = question.id.rstrip('0123456789')
    return float(self._split(split)[int(question.id[len(split) :])].notes[0] in answer_text.split())


def relay(turn):
  """Writes an agent's own note and all that it has read."""
  notes = turn.question.notes
  said = [notes[turn.agent]] if turn.agent < len(notes) else []
  said += [turn.delivered[a] for a in sorted(turn.delivered)]
  ids = TOKENIZER.encode(' '.join(filter(None, said)))[: turn.limit - 1]
  return [*ids, TOKENIZER.eos_id], True


class Recorder:
  """Makes policies that record their turns."""

  def __init__(self, ids=relay):
    self.ids, self.made = ids, []

  def __call__(self, temperature, stream):
    self.made.append((temperature, stream, st.IdsPolicy(self.ids)))
    return self.made[-1][2]

  def turns(self, stream='eval'):
    return [turn for _, s, policy in self.made if s == stream for turn in policy.turns]


def make(team=None, policy=None, task=None, temperature=0.0, questions=4, **fields):
  return harness.Harness(
    team=team or st.team('star'),
    task=task or Notes(),
    tokenizer=TOKENIZER,
    policy=policy or Recorder(),
    options=EvaluationOptions(temperature=temperature, questions=questions),
    **fields,
  )


def asked_of(run):
  return run.run('team', variants.itself(run.team))[0]


# Single agent and self-consistency


def test_single_agent_is_the_last_one_without_teammates():
  policy = Recorder()
  run = make(policy=policy)
  found = reference_systems.baseline(run, 'single', asked_of(run))
  assert found['label'] == 'single agent'
  assert [a['name'] for a in found['agents']] == ['agent3']
  assert found['comm/calls_per_question'] == 1.0
  turns = policy.made[-1][2].turns
  assert {turn.agent for turn in turns} == {2}  # its own index
  assert all(turn.delivered == {} and turn.question.notes == () for turn in turns)


def test_a_single_agent_keeps_its_own_note():
  run = make(st.team('chain'))
  two = dataclasses.replace(run.team, roles=run.team.roles[:2], names=run.team.names[:2])
  variant = variants.self_consistency(two, 2)
  question = variant.question(Notes().questions('test')[0])
  assert (question.notes, question.relevant) == (('7', '7'), (False, False))


class UnmarkedNotes(Notes):
  """Does not mark notes as relevant."""

  def _split(self, split):
    return [dataclasses.replace(q, relevant=()) for q in super()._split(split)]


@pytest.mark.parametrize('name', ['single', 'self_consistency', 'debate', 'random_pruning'])
def test_notes_of_which_nobody_knows_whether_they_are_needed(name):
  run = make(policy=(policy := Recorder()), task=UnmarkedNotes())
  found = reference_systems.baseline(run, name, asked_of(run))
  assert found['comm/silence_rate_relevant'] is None
  asked = [turn.question for _, _, ids in policy.made for turn in ids.turns]
  assert asked
  assert all(question.relevant == () for question in asked)


def test_unmarked_notes_are_dealt_to_the_members_and_back():
  variant = variants.pruned(st.team('chain'), [1])  # agents 1 and 2
  question = dataclasses.replace(st.questions(1)[0], notes=('5', '6', '7'))
  dealt = variant.question(question)
  assert (dealt.notes, dealt.relevant) == (('6', '7'), ())
  policy = st.IdsPolicy(relay)
  rollout(variant.team, st.Echo(), TOKENIZER, [dealt], 1, variant.policy(policy))
  assert {(turn.question.notes, turn.question.relevant) for turn in policy.turns} == {
    (('', '6', '7'), ())
  }


def test_a_question_whose_notes_are_marked_in_part_is_refused():
  with pytest.raises(ValueError, match=r"question 'q0': relevant=\(True,\), but it has 2"):
    dataclasses.replace(st.questions(1)[0], notes=('5', '6'), relevant=(True,))


def test_samples_draw_noise_of_their_own_and_the_first_is_the_single_agent():
  team, asked = st.team('star'), Notes().questions('test')[:2]
  seen = {}
  for k in (1, 3):
    variant, policy = variants.self_consistency(team, k), st.IdsPolicy(relay)
    rollout(
      variant.team, Notes(), TOKENIZER, [variant.question(q) for q in asked], 1,
      variant.policy(policy),
    )  # fmt: skip
    seen[k] = [(t.question.id, t.sample, t.agent, t.round) for t in policy.turns]
  assert len(set(seen[3])) == 6
  assert set(seen[1]) <= set(seen[3])


def test_majority_of_samples():
  def ids(turn):
    said = [5, 9, 9, 5, 9][turn.sample]
    return [FIRST + said, TOKENIZER.eos_id], True

  variant = variants.self_consistency(st.team('star'), 5)
  batch = rollout(
    variant.team, Notes(), TOKENIZER, Notes().questions('test')[:1], 1,
    variant.policy(st.IdsPolicy(ids)),
  )  # fmt: skip
  assert batch.answers[0] == '9'


@pytest.mark.parametrize(
  ('target', 'one', 'k'), [(10, 4, 2), (11, 4, 3), (1, 4, 1), (0, 4, 1), (9, 0, 1), (12.1, 3, 4)]
)
def test_k_is_within_half_a_sample(target, one, k):
  found = variants.samples_at_equal_tokens(target, one)
  assert found == k
  if one and target >= one:
    assert abs(found * one - target) <= one / 2


def test_self_consistency_at_equal_tokens():
  def ids(turn):  # informants write 3 tokens, the last one 2, alone or not
    return [*[FIRST + turn.agent] * (2 if turn.agent == 2 else 3), TOKENIZER.eos_id], True

  policy = Recorder(ids)
  run = make(policy=policy, diverse_temperature=0.7)
  whole = asked_of(run)
  found = reference_systems.baseline(run, 'self_consistency', whole)
  assert whole['tokens/written_per_question'] == found['tokens/written_per_question'] == 8.0
  assert (found['samples'], found['tokens_of_one'], found['target_tokens']) == (4, 2.0, 8.0)
  assert found['label'] == 'self-consistency (k=4)'
  assert found['temperature'] == policy.made[-1][0] == 0.7  # greedy samples would be alike
  assert (
    reference_systems.baseline(
      run, 'self_consistency', whole, {'tokens/written_per_question': 3.0}
    )['samples']
    == 2
  )
  warm = make(policy=Recorder(ids), temperature=0.4)
  assert reference_systems.baseline(warm, 'self_consistency', asked_of(warm))['temperature'] == 0.4


def test_samples_cost_what_their_agent_costs():
  ids = lambda turn: ([FIRST, TOKENIZER.eos_id], True)
  prices = results.Prices(1e6, 0.0, 'here', factors={'agent3': 10.0})
  run = make(policy=Recorder(ids), prices=prices)
  cost = lambda k: run.run('x', variants.self_consistency(run.team, k))[0]['money/per_question']
  assert cost(1) > 0
  assert cost(3) == pytest.approx(3 * cost(1))
  assert asked_of(run)['money/per_question'] == pytest.approx(1.2 * cost(1))


# Topologies


@pytest.mark.parametrize(
  ('shape', 'edges', 'rounds'),
  [
    ('chain', {(0, 1), (1, 2)}, 1),
    ('star', {(0, 2), (1, 2)}, 1),
    ('complete', {(0, 1), (0, 2), (1, 2)}, 1),
    ('debate', set(), 2),
  ],
)
def test_roles_of_the_team_in_another_topology(shape, edges, rounds):
  run = make(st.team('star'))
  team = variants.rewired(run.team, shape).team
  assert (team.roles, team.names, team.decision) == (run.team.roles, run.team.names, 'last')
  assert (team.topology.edges, team.topology.rounds) == (edges, rounds)
  found = reference_systems.baseline(run, shape, asked_of(run))
  assert found['label'] == shape
  assert found['comm/calls_per_question'] == 3 * rounds
  assert found['task/accuracy'] == 1.0  # the note arrives by every way


def test_an_unreadable_frame_of_new_readers_is_named():
  team = st.team('star')
  silent = dataclasses.replace(team.roles[0], name='informant', incoming='{sender}:{message}\n')
  run = make(dataclasses.replace(team, roles=(silent, silent, team.roles[2])))
  with pytest.raises(
    ValueError, match=r"'chain': unknown word 'agent1:' .* Give team\.roles\.informant\.incoming kn"
  ):
    reference_systems.baseline(run, 'chain', asked_of(run))


def test_a_judge_stays_a_judge():
  team = st.team('star', decision='judge', rounds=2)
  again = variants.rewired(team, 'chain').team
  assert again.num_agents == 4
  assert again.topology.last_round_only == {3}
  assert {(0, 3), (1, 3), (2, 3)} <= again.topology.edges


# Pruning


def test_pruned_agents_are_those_that_no_longer_reach_the_answer():
  team = st.team('chain')
  assert variants.edges(team) == ((0, 1), (1, 2))  # one round: nothing flows back
  cut = variants.pruned(team, [1])
  assert cut.agents == (1, 2)
  assert cut.team.names == ('agent2', 'agent3')
  assert cut.team.topology.edges == {(0, 1)}
  assert variants.pruned(team, [0]).agents == (2,)
  assert variants.pruned(team, [0, 1]).team == dataclasses.replace(
    team, topology=dataclasses.replace(team.topology, previous_round=frozenset())
  )
  question = cut.question(Notes().questions('test')[0])
  assert (question.notes, question.relevant) == (('7',), (False,))
  assert variants.pruned(team, [0, 1], dropped=[0]).agents == (1, 2)


def test_pruned_edges_between_rounds_and_of_voters():
  team = st.team('debate', rounds=2, decision='majority')
  edges = variants.edges(team)
  assert len(edges) == 6
  cut = variants.pruned(team, [edges.index((0, 1))])
  assert cut.agents == (0, 1, 2)  # all vote
  assert cut.team.topology.previous_round == {(0, 1)}
  assert variants.pruned(team, range(6), dropped=[1]).agents == (0, 2)
  last = variants.pruned(st.team('debate', rounds=2), [edges.index((0, 2))])
  assert last.agents == (0, 2)
  judged = st.team('star', decision='judge')
  same = variants.pruned(judged, range(len(variants.edges(judged)))).team.topology
  assert same == dataclasses.replace(judged.topology, previous_round=frozenset())


def test_random_edges_come_closest_to_the_target():
  team = st.team('star')
  written = {'agent1': 5.0, 'agent2': 5.0, 'agent3': 2.0}
  sizes = {t: len(pruning.random_edges(team, written, t, seed=0)) for t in (0, 4, 5, 9, 10, 99)}
  assert sizes == {0: 0, 4: 0, 5: 1, 9: 1, 10: 2, 99: 2}
  first = {tuple(pruning.random_edges(team, written, 7, seed=s)) for s in range(20)}
  assert first == {(0,), (1,)}  # either edge, by the seed
  with pytest.raises(ValueError, match='every agent votes'):
    pruning.random_edges(st.team('debate', rounds=2, decision='majority'), written, 1, 0)


def test_random_pruning_says_what_it_kept():
  run = make()
  whole = asked_of(run)
  assert [a['written_per_question'] for a in whole['agents']] == [1.0, 1.0, 2.0]
  found = reference_systems.baseline(
    run, 'random_pruning', whole, {'tokens/written_per_question': 3.0}
  )
  assert len(found['edges_kept']) == 1
  assert found['edges_kept'][0][1] == 'agent3'
  assert (found['edges_of_the_team'], found['target_tokens']) == (2, 3.0)
  assert found['tokens/written_per_question'] == 2.0  # the informant and the solver
  assert reference_systems.baseline(run, 'random_pruning', whole)['edges_of_the_team'] == 2


def needs(edges):
  """Returns a scorer of graphs, right if all of `edges` are kept, and a record of its calls."""
  seen = []

  def play(first, masks):
    seen.append((first, len(masks)))
    return masks[:, list(edges)].all(axis=1).astype(float)

  return play, seen


def test_agent_prune_keeps_the_edges_that_matter():
  for needed, batches in (((1,), 20), ((0, 3), 15)):
    play, seen = needs(needed)
    kept = pruning.agent_prune(play, 5, seed=0, batches=batches, batch=16, rate=0.2)
    assert kept.edges == list(needed)
    assert sorted(kept.order) == list(range(5))  # an edge leaves every five batches
    assert seen == [(16 * i, 16) for i in range(batches)]  # each training question once


def test_agent_prune_counts_as_the_rule_says():
  sizes = []
  play = lambda first, masks: (sizes.append(len(masks)), np.zeros(len(masks)))[1]
  assert pruning.agent_prune(play, 12, seed=0).kept == 12 - 3 - 2  # a quarter of 12, then of 9
  assert sizes == [4] * 10
  assert pruning.agent_prune(play, 2, seed=0).kept == 1  # at least one leaves, one stays


def test_a_ranking_is_cut_where_the_tokens_heard_come_closest():
  ranking = pruning.Ranking(order=[2, 0, 1], kept=2)
  assert ranking.edges == [0, 2]
  heard = [5.0, 1.0, 10.0]
  for target, edges in ((0, []), (4, []), (9, [2]), (12, [2]), (14, [0, 2]), (99, [0, 1, 2])):
    assert ranking.closest(heard, target) == edges


@pytest.mark.parametrize('name', ['agent_prune_equal', 'agent_dropout_equal'])
def test_learnt_edges_at_the_tokens_of_another_team(name):
  run = make(st.team('complete'))
  whole = asked_of(run)
  alone = {'tokens/heard_per_question': 0.0}
  found = reference_systems.baseline(run, name, whole, alone)
  assert (found['edges_kept'], found['edges_of_the_team']) == ([], 3)
  assert found['tokens/heard_per_question'] == found['target_tokens_heard'] == 0
  own = reference_systems.baseline(run, name, whole)
  assert own['target_tokens_heard'] == whole['tokens/heard_per_question'] > 0
  assert len(own['edges_kept']) == 3 if name == 'agent_prune_equal' else len(own['edges_kept']) > 0


def test_logits_follow_the_score_function():
  """One step: the gradient of `mean score log P` at probability 1/2, by hand; Adam's sign."""
  learner = pruning._Logits(3, 0.1, seed=0)
  rng = np.random.default_rng(0)
  masks = rng.random((4, 3)) < 0.5
  scores = np.array([1.0, 0.0, 1.0, 0.0])
  gradient = (scores[:, None] * (masks - 0.5)).mean(axis=0)
  learner.learn(lambda first, drawn: (np.testing.assert_array_equal(drawn, masks), scores)[1], 0, 4)
  np.testing.assert_allclose(learner.logits, 0.1 * np.sign(gradient), atol=1e-5)


def test_agent_dropout_drops_the_agent_that_does_not_matter():
  # Agents 0, 1 and 2 report to 3; the answer needs 0 and 2.
  edges = [(0, 3), (1, 3), (2, 3)]
  play, seen = needs((0, 2))
  found = pruning.agent_dropout(
    play, edges, 4, seed=0, node_batches=10, nuclear=0.0, hinge=0.0, rate=0.1, learning_rate=0.3
  )
  assert found.dropped == 1
  assert 1 not in found.edges
  assert found.order[-1] == 1
  assert seen[:2] == [(0, 20), (20, 20)]
  assert seen[10:] == [(200 + 10 * i, 10) for i in range(4)]


def test_agent_dropout_leaves_a_pair_alone_and_spares_the_decider():
  play, _ = needs(())
  assert pruning.agent_dropout(play, [(0, 1)], 2, seed=0) == pruning.Ranking([0], 1, None)
  for seed in range(4):
    found = pruning.agent_dropout(play, [(0, 1), (0, 2), (1, 2)], 3, seed=seed)
    assert found.dropped in (0, 1)


@pytest.mark.parametrize('name', ['agent_prune', 'agent_dropout'])
def test_masks_are_learnt_on_training_questions_and_once(name):
  policy = Recorder()
  run = make(st.team('complete'), policy)
  whole = asked_of(run)
  found = reference_systems.baseline(run, name, whole)
  learnt = policy.turns('masks')
  assert learnt
  assert all(t.question.id.startswith('train') for t in learnt)
  assert all(t.question.id.startswith('test') for t in policy.turns('eval'))
  assert found['edges_of_the_team'] == 3
  assert 0 < len(found['edges_kept']) < 3
  count = len(learnt)
  assert reference_systems.baseline(run, name, whole) == found  # without training or sampling
  assert len(policy.turns('masks')) == count


def test_a_ranking_is_learnt_on_the_terms_that_the_team_is_told():
  policy = Recorder()
  run = make(st.team('star', opening='{price} {question} {note}\n'), policy=policy)

  def at(price):
    """Returns the prices of the questions that a team's ranking is learned on."""
    before = len(policy.turns('masks'))
    told = dataclasses.replace(run, terms=Terms('price', price, '9'))
    reference_systems.baseline(told, 'agent_prune', asked_of(told))
    return {turn.question.terms.value for turn in policy.turns('masks')[before:]}

  assert at(0.0) == {0.0}
  assert at(0.05) == {0.05}
  assert at(0.0) == set()  # known from before


# The table


def test_what_does_not_fit_is_refused():
  alone = make(st.team('single'))
  whole = asked_of(alone)
  for name in ('random_pruning', 'agent_prune', 'agent_dropout'):
    with pytest.raises(ValueError, match='no edges to prune'):
      reference_systems.baseline(alone, name, whole)
  with pytest.raises(ValueError, match="baseline 'nothing' is unknown; use single, "):
    reference_systems.baseline(alone, 'nothing', whole)


@pytest.mark.parametrize('name', ['single', 'self_consistency', 'agent_prune'])
def test_agents_of_an_environment_keep_their_places(name):
  run = dataclasses.replace(make(st.team('star')), task=Kuhn())
  with pytest.raises(ValueError, match=r"'kuhn' has episodes of its own.*Use chain, star, "):
    reference_systems.baseline(run, name, {})


def test_edges_of_a_dropped_agent_are_not_kept(monkeypatch):
  run = make(st.team('complete'))
  whole, edges = asked_of(run), variants.edges(run.team)
  dropped = pruning.Ranking(order=[*range(len(edges))], kept=len(edges), dropped=0)
  monkeypatch.setattr(pruning, 'agent_dropout', lambda *args, **fields: dropped)
  found = reference_systems.baseline(run, 'agent_dropout_equal', whole)
  assert found['dropped'] == ['agent1']
  assert found['edges_kept'] == [['agent2', 'agent3']]


def test_every_baseline_runs_on_a_team_with_a_judge():
  run = make(st.team('chain', decision='judge', rounds=2))
  whole = asked_of(run)
  labels = [
    reference_systems.baseline(run, name, whole)['label'] for name in reference_systems.BASELINES
  ]
  assert len(set(labels)) == len(labels) == 11


def test_members_are_seen_as_the_agents_that_they_are():
  """A policy of the whole team must find notes and messages at the team's indices."""
  team = st.team('complete')
  variant = variants.pruned(team, [0, 1, 2], dropped=[0])
  policy = st.IdsPolicy(relay)
  asked = [variant.question(q) for q in Notes().questions('test')[:1]]
  rollout(variant.team, Notes(), TOKENIZER, asked, 1, variant.policy(policy))
  second, last = policy.turns
  assert (second.agent, last.agent) == (1, 2)
  assert second.question.notes == ('', '7')  # the first agent and its note are gone
  assert second.question.relevant == (False, False)
  assert last.delivered == {1: '7'}


def test_how_much_voters_differ():
  def ids(turn):  # agents 1 and 2 are right on even questions, agent 3 on odd ones or silent
    number = int(turn.question.id.removeprefix('test'))
    right = (number % 2 == 1) == (turn.agent == 2)
    if number == 2 and turn.agent == 2:
      return [TOKENIZER.eos_id], True
    said = int(turn.question.notes[0]) if right else 3
    return [FIRST + said, TOKENIZER.eos_id], True

  run = make(st.team('star', decision='majority'), Recorder(ids))
  found = asked_of(run)
  # Errors 0101, 0101, 1010: covariances 1/4, -1/4, -1/4 and variances 1/4.
  assert found['votes/error_correlation'] == pytest.approx(-1 / 3)
  assert found['votes/independent'] == pytest.approx(9)
  # Two answers with shares 2/3 and 1/3 on three questions, one answer on question 2.
  assert found['votes/channels'] == pytest.approx((3 * 3 / 2 ** (2 / 3) + 1) / 4)
  shown = tables.render_text(tables.comparison_table([found]), 300)
  assert '-0.33 / 9.00 / 1.67' in shown
  assert 'votes/channels' not in asked_of(make())
