"""Deals MultiArith to the team of configs/svamp_dealt.py: 280 training questions, two steps each.

They are few, and memorized in eight epochs; so the split has eight more copies of each, with other
numbers and other irrelevant notes, and one epoch of that is enough.

  python launch/train.py --config=configs/multiarith_dealt.py --workdir=runs/multiarith

The ablation over the token price:

  python launch/sweep.py --config=configs/multiarith_dealt.py --workdir=runs/multiarith_prices \
    --lambdas=0,0.05 --seeds=0,1

The form `worth` also demonstrates the stories of SVAMP and GSM8K to informants, holds out two
fifths of MultiArith's for RL, and rewards each message by the gain of the solver:

  python launch/train.py --config=configs/multiarith_dealt.py:worth --workdir=runs/worth

Results of SFT and RL are in docs/message_worth.md.

Results of this and of earlier settings are in docs/results/benchmarks.md. Since 2026-11-30 no story
held back has a copy in SFT, and GSM8K's notes are demonstrated with their numbers in words.
"""

from ml_collections import config_dict

from configs import svamp_dealt


def get_config(form: str = 'dealt') -> config_dict.ConfigDict:
  config = svamp_dealt.get_config('dealt' if form == 'worth' else form).unlock()
  if form == 'worth':
    return _worth(config).lock()
  config.steps = 24
  config.task.options.benchmark = 'multiarith'
  config.task.options.apart_from = ()
  config.task.options.redrawn_copies = 8
  # The values below are those of the measured runs; configs/svamp_dealt.py has changed since.
  config.task.options.misleading_share = 0.0
  config.team.roles.solver.tools = ()
  config.sft.held_back = 0.0
  config.sft.silence_probability = 0.8
  config.sft.terse_probability = 0.5
  config.sft.save_every = 35
  config.sft.validation_questions = 26
  if form == 'dealt':
    config.sft.role_shares.informant = 0.5
  config.reward.gate_accuracy = 0.5
  config.budget.lambda_tok = 0.05
  config.learner.learning_rate = 1.5e-5  # at 5e-5 skills of SFT are lost on the test split
  config.evaluation.questions = 175
  return config.lock()


def _worth(config: config_dict.ConfigDict) -> config_dict.ConfigDict:
  """Returns the config of `svamp_dealt` on MultiArith, with many stories and credit by worth."""
  config.steps = 16
  config.task.options.benchmark = 'multiarith'
  config.task.options.apart_from = ('svamp',)
  config.task.options.also_from = ('svamp', 'gsm8k')
  config.sft.epochs, config.sft.steps = 0.0, 320
  config.sft.held_back = 0.4
  config.sft.learning_rate = 2e-4
  config.sft.silence_probability = 1.0
  config.sft.role_shares.informant = 0.4
  config.sft.decision_weight = 8.0
  config.sft.save_every = 80
  config.sft.validation_questions = 26
  config.sft.patience = 0
  config.algorithm = 'worth'
  config.advantage.options.imitation = 1.0  # else the solver unlearns where to stop
  config.rollout.questions, config.rollout.group_size = 8, 4  # gains need no large groups
  config.reward.gate_accuracy = 0.0  # gains are per message, at any group accuracy
  config.budget.lambda_tok = 0.02  # at 0.05 a lone relevant note gains less than it costs
  config.evaluation.questions = 175
  return config
