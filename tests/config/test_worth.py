"""Checks that estimators of gains are refused where gains cannot be measured."""

from __future__ import annotations

import pytest
from micro_run import changed

from agent_gspo.config import check as config_lib


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'team__decision': 'majority'}, r"team.decision='majority': no single agent answers"),
    ({'team__topology': 'dag', 'team__edges': ((0, 1),)}, r"'solver', reads no messages"),
    ({'team__topology': 'complete', 'team__rounds': 4, 'advantage__name': 'shapley'}, 'too many'),
    (
      {'team__roles__solver__cue': ' left {left} answer :'},
      r'team.roles.solver.cue shows \{left\}',
    ),
    ({'advantage__options': {'nats': 0.0}}, r'advantage.options.nats=0.0 must be above 0'),
    (
      {'advantage__name': 'replay', 'advantage__options': {'samples': 0.5}},
      r'advantage.options.samples=0.5 must be a whole number',
    ),
    (
      {'advantage__name': 'hill', 'advantage__options': {'samples': 1.0}},
      r'advantage.options.samples=1.0 must be a whole number of at least 2',
    ),
    (
      {'advantage__name': 'hill', 'advantage__options': {'temperature': 0.0}},
      r'advantage.options.temperature=0.0 must be above 0',
    ),
    (
      {
        'advantage__options': {'imitation': 1.0},
        'model__lora_rank': 2,
        'policy__sharing': 'adapters',
        'policy__learning_rates': (1e-3, 1e-3, 0.0),
      },
      r"imitation=1.0: 'solver' imitates gold answers, but does not learn \(policy.frozen, ",
    ),
    (
      {'advantage__name': 'replay', 'team__max_episode_tokens': 24},
      r"max_episode_tokens=24 with advantage.name='replay': the length limit of an answer",
    ),
    ({'advantage__costs': 'apart'}, r"advantage.costs='apart' with advantage.name='worth'"),
    ({'reward__credit': 'episode'}, r"Set reward.credit='own_cost'"),
  ],
)
def test_refused(fields, message):
  base = {'algorithm': 'worth', 'learner__pack_length': 256}
  with pytest.raises(ValueError, match=message):
    config_lib.check(changed(**{**base, **fields}))


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'team__decision': 'majority'}, 'no single agent answers.* or evaluation.worth_questions=0'),
    ({'team__roles__solver__cue': ' left {left} answer :'}, r'solver.cue shows \{left\}'),
    ({'team__max_episode_tokens': 24}, 'tokens=24 with .* or evaluation.worth_questions=0'),
    (
      {'team__roles__solver__model': 'endpoint:http://localhost:9/v1#m'},
      'worth_questions above 0 with .*: endpoints cannot score gold answers',
    ),
  ],
)
def test_evaluations_refuse_unmeasurable_worth(fields, message):
  config_lib.check(changed(**fields))
  with pytest.raises(ValueError, match=message):
    config_lib.check(changed(evaluation__worth_questions=2, **fields))
  # Worth is not measured without training.
  config_lib.check(changed(evaluation__worth_questions=2, **fields), training=False)


def test_a_task_without_gold_texts_is_refused(monkeypatch):
  config = changed(algorithm='worth')
  config_lib.check(config)
  relay = type(config_lib.check(config).task)
  monkeypatch.setattr(relay, 'gold_messages', lambda self, question: ())
  with pytest.raises(ValueError, match=r"task 'relay' has no gold answers"):
    config_lib.check(config)
  config['advantage'].update(name='spo_segment', options={'samples': 4})
  config_lib.check(config)
