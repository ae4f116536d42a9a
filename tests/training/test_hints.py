"""Compares rewards of hints with the paper's formula on scripted teams."""

from __future__ import annotations

import dataclasses

import micro_run
import numpy as np
import pytest
import scripted_teams

from agent_gspo.config import check as config_lib
from agent_gspo.evaluation import asking, evaluate
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from agent_gspo.training import message_worth
from agent_gspo.training.answer_values import Replays
from agent_gspo.training.hints import Hints
from configs import guessing

TOKENIZER = scripted_teams.byte_tokenizer()
SAMPLES, TEMPERATURE = 4, 0.3
# Nats per token of a right answer after a prompt with these words.
LOGPROBS = {'alpha': -0.5, 'beta': -1.1, 'alphabeta': -0.2, '': -1.4}


def _read(ids) -> str:
  text = TOKENIZER.decode(ids.tolist())
  return ''.join(word for word in ('alpha', 'beta') if word in text)


def _measured(said, right, logprobs=LOGPROBS, hinters=(0, 1)):
  """Returns gains by episode and agent, and figures; `right[words]` of four answers are right."""
  team, task = scripted_teams.team('star', max_message_tokens=40), scripted_teams.Echo()
  opening = lambda role: f'{{answer}} {role.opening}'
  roles = [
    dataclasses.replace(role, opening=opening(role)) if agent in hinters else role
    for agent, role in enumerate(team.roles)
  ]
  team = dataclasses.replace(team, roles=tuple(roles))
  speak = lambda turn: said[turn.sample][turn.agent]
  parts = team, task, TOKENIZER
  questions = scripted_teams.questions(1)
  batch = rollout(*parts, questions, len(said), ScriptedPolicy(speak, TOKENIZER))
  counts: dict[bytes, int] = {}

  def answer(turn):
    key = turn.prompt_ids.tobytes()
    counts[key] = counts.get(key, 0) + 1
    return questions[0].answer if counts[key] <= right[_read(turn.prompt_ids)] else '9'

  def scored(messages):
    assert all(TOKENIZER.decode(m.token_ids.tolist()).startswith('0') for m in messages)
    # Unequal tokens of the given mean.
    offset = np.asarray([-0.05, 0.05])
    return [logprobs[_read(m.prompt_ids)] + offset[: m.sampled.sum()] for m in messages]

  replays = Replays(*parts, batch, ScriptedPolicy(answer, TOKENIZER), SAMPLES)
  hints = Hints(replays, scored, TEMPERATURE)
  found = message_worth.measure(*parts, batch, 'hint', hints)
  gain = {(m.episode, m.agent): g for m, g in zip(batch.messages, found.gain, strict=True)}
  return gain, found.metrics(batch)


def _signal(right: int) -> float:
  p = right / SAMPLES
  return 1 - p**SAMPLES - (1 - p) ** SAMPLES


def test_a_hint_earns_its_signal_divided_by_what_answers_rely_on():
  right = {'alphabeta': 4, 'alpha': 2, 'beta': 1, '': 0}
  said = [('alpha', '', '0'), ('', 'beta', '0'), ('alpha', 'beta', '0'), ('', '', '0')]
  gain, figures = _measured(said, right)
  weight = lambda whole, without: np.exp((LOGPROBS[without] - LOGPROBS[whole]) / TEMPERATURE)
  assert gain[0, 0] == pytest.approx(_signal(2) * weight('alpha', ''))
  assert gain[1, 1] == pytest.approx(_signal(1) * weight('beta', ''))
  # All answers are right after both: nothing to learn, and less than from either alone.
  assert gain[2, 0] == pytest.approx(-_signal(1))
  assert gain[2, 1] == pytest.approx(-_signal(2))
  assert [gain[0, 1], gain[1, 0], gain[3, 0], gain[3, 1]] == [0, 0, 0, 0]  # silent
  assert all(np.isnan(gain[e, 2]) for e in range(4))
  pairs = [('alpha', ''), ('beta', ''), ('alphabeta', 'beta'), ('alphabeta', 'alpha')]
  mean = lambda values: np.mean([*values])
  assert figures['hint/success'] == pytest.approx(mean(right[whole] / 4 for whole, _ in pairs))
  assert figures['hint/success_without'] == pytest.approx(mean(right[w] / 4 for _, w in pairs))
  reliance = mean(LOGPROBS[without] - LOGPROBS[whole] for whole, without in pairs)
  assert figures['hint/reliance'] == pytest.approx(reliance)


def test_answers_likelier_without_a_hint_add_nothing_to_its_signal():
  gain, figures = _measured([('alpha', '', '0')], {'alpha': 2, '': 0}, {'alpha': -1.0, '': -0.4})
  assert gain[0, 0] == pytest.approx(_signal(2))
  assert figures['hint/reliance'] == pytest.approx(0.6)


def test_an_author_who_gives_no_hints_has_no_gain():
  right = {'alphabeta': 4, 'alpha': 2}  # nothing is sampled without the other's message
  gain, figures = _measured([('alpha', 'beta', '0')], right, hinters=(1,))
  assert np.isnan(gain[0, 0])
  assert gain[0, 1] == pytest.approx(-_signal(2))
  assert (figures['hint/success'], figures['hint/success_without']) == (1, 0.5)


def test_without_right_answers_nothing_is_scored():
  gain, figures = _measured([('alpha', '', '0')], {'alpha': 0, '': 0}, {})
  assert gain[0, 0] == 0
  assert 'hint/reliance' not in figures


def _team(**fields):
  roles = {
    'teacher': {'opening': '{question} is {answer}'},
    'solver': {'opening': '{question}'},
  }
  options = {'agents': ('teacher', 'solver'), 'topology': 'chain', 'roles': roles}
  return make_team({**options, **fields})


def test_a_teacher_reads_the_answer_and_is_silent_in_evaluations():
  team, task = _team(), scripted_teams.Echo()
  questions, prompts = scripted_teams.questions(2), []

  def script(turn):
    prompts.append((turn.agent, TOKENIZER.decode(turn.prompt_ids.tolist())))
    return 'hint' if turn.agent == 0 else 'no'

  policy = ScriptedPolicy(script, TOKENIZER)
  rollout(team, task, TOKENIZER, questions, 1, policy)
  read = {agent: [text for a, text in prompts if a == agent] for agent in (0, 1)}
  for question, text in zip(questions, read[0], strict=True):
    assert f'{question.text} is {question.answer}' in text
  assert all('hint' in text and ' is ' not in text for text in read[1])

  prompts.clear()
  figures, batch = evaluate.evaluate(team, task, TOKENIZER, questions, policy)
  asking.ask(team, task, TOKENIZER, questions, policy, lambda message: None)
  assert {agent for agent, _ in prompts} == {1}
  assert not any('hint' in text for _, text in prompts)
  assert figures['agents'][0]['silence_rate'] == 1
  assert [m.silent for m in batch.messages] == [m.agent == 0 for m in batch.messages]


def test_braces_written_twice_show_no_answer():
  roles = {name: {'opening': '{question} \\boxed{{answer}}'} for name in ('teacher', 'solver')}
  assert not _team(roles=roles).hinters


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({}, r"advantage.name='hill' needs an agent that reads the gold answer"),
    (
      {'team__topology': 'dag', 'team__edges': ((0, 1), (1, 2))},
      r"'informant1' gives hints, but the last agent does not read it",
    ),
    (
      {'team__roles__solver__model': 'hf:some/model'},
      r"rewards what 'solver' learns, but it is frozen",
    ),
    (
      {'model__lora_rank': 2, 'policy__sharing': 'mix', 'policy__frozen': ('solver',)},
      r"what 'solver' learns, but it is frozen \(policy.frozen, ",
    ),
  ],
)
def test_hill_needs_hints_that_the_answering_agent_reads(fields, message):
  base = {'advantage__name': 'hill', 'advantage__costs': 'inside'}
  if fields:
    base['team__roles__informant__opening'] = '{question} note {note} {answer}'
  with pytest.raises(ValueError, match=message):
    config_lib.check(micro_run.changed(**base, **fields))


def test_a_task_with_its_own_episode_has_no_hinters():
  config = guessing.get_config().to_dict()
  config['team']['roles']['helper'] = {'opening': '{answer}'}
  config['team']['agents'] = ('helper', 'player')
  with pytest.raises(ValueError, match=r"task 'guessing' brings its own episode"):
    config_lib.check(config)


@pytest.mark.parametrize('decision', ['last', 'majority'])
def test_an_answering_agent_must_not_read_the_gold_answer(decision):
  fields = {'agents': ('solver', 'teacher')} if decision == 'last' else {}
  with pytest.raises(ValueError, match=r'team\.roles\.teacher\.opening=.*shows the gold answer'):
    _team(decision=decision, **fields)
