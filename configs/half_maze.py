"""Trains two agents, each of which sees half of the walls of a maze, to lead a piece to its goal.

In each of two rounds the guide writes first, then the mover. Demonstrations name most walls, many
of them in sentences, and take a shortest path by what they know.

  python launch/train.py --config=configs/half_maze.py --workdir=runs/half_maze
  python launch/sweep.py --config=configs/half_maze.py --workdir=runs/half_maze_prices \\
    --lambdas=0.05,0 --seeds=0,1,2
  python launch/train.py --config=configs/half_maze.py:alone --workdir=runs/half_maze_all \\
    --config.task.options.view=full   # one agent that sees all walls; without the flag, half

Goal reached, %, and tokens of 200 test questions: 3 x 3 cells, mazes that training does not have;
mean [lowest, highest] of seeds 0, 1, 2, two shared cores of an AMD EPYC, 3 to 5 minutes per run,
2026-11-26. Rates and price were chosen on seed 0:

  after SFT                                61.8 [59.0, 65.5]   12.4
  price 0                                  86.0 [82.0, 89.0]   14.1 [13.1, 15.5]
  price 0.05                               86.0 [83.5, 89.0]    9.0 [8.8, 9.2]
  alone, price 0.05, all walls (seed 0)    89.0                 6.2
  alone, price 0.05, half (seed 0)         78.5                 7.5

5 x 5 cells with 8 of 16 walls, three rounds; SFT takes 8000 steps, since planning needs them (after
1000 a pair reaches the goal in 49 % of mazes, and one agent that sees all 8 walls in 50 %):

  python launch/sweep.py --config=configs/half_maze.py:pair_5 --workdir=runs/half_maze_5 \\
    --lambdas=0,0.05 --seeds=0,1,2

Seeds 0, 1, 2, half an hour per seed, otherwise as above; the guide's tokens are talk, the mover's
mostly steps:

  after SFT    87.2 [84.5, 89.5]   16.7                 guide 6.0
  price 0      92.3 [90.0, 94.0]   20.7 [18.9, 24.0]    guide 7.8 [7.2, 8.4]
  price 0.05   90.5 [89.0, 92.0]   13.4 [13.1, 13.7]    guide 2.5 [2.2, 3.0]

The same with --config.steps=400, 8 minutes more per run:

  price 0      93.3 [93.0, 93.5]   21.7 [21.0, 23.1]    guide 7.6 [7.3, 8.0]
  price 0.05   92.0 [91.0, 93.5]   12.8 [12.4, 12.9]    guide 1.9 [1.7, 2.0]

Talk falls to a quarter, all tokens to 59 %: most of the rest is the path, which takes 8.7 for one
agent that sees all walls. At 0.1 the guide falls silent too early (100 steps, seeds 0 and 1: 83.8 %
with 12.7 tokens).

One agent alone (:alone_5, price 0.05, seed 0): all walls 87.5 with 8.7 tokens (90.5 after SFT),
half of them 88.5 with 11.8 (90.0). It finds walls by walking into them, in three turns: the other
half of the walls is worth few points here.

Cross-play at price 0.05, the guide of one seed (row) with the mover of another (column):

  92.0  89.0  90.5
  92.5  89.0  92.0
  87.0  88.5  90.5

  python launch/evaluate.py --workdir=runs/A --partner=runs/B --partner_agents=mover --out=x/A_B
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config(form: str = 'pair') -> config_dict.ConfigDict:
  team, _, size = form.partition('_')
  if team not in ('pair', 'alone') or size not in ('', '5'):
    raise ValueError(f'configs/half_maze.py:{form}: there are pair, alone, pair_5 and alone_5.')
  config = default_config()
  config.steps = 250
  config.model.source = 'random:micro'
  config.task.name = 'half_maze'
  config.task.options = config_dict.ConfigDict({'size': 3, 'gaps': 0, 'view': 'half'})
  config.team.agents = ('guide', 'mover') if team == 'pair' else ('mover',)
  config.team.topology = 'complete' if team == 'pair' else 'single'
  config.team.rounds = 2
  config.team.max_message_tokens = 16
  role = {'opening': '', 'incoming': ' {message} ;', 'cue': ' say :'}
  config.team.roles.guide = role
  config.team.roles.mover = {**role, 'cue': ' move :'}
  config.rollout.questions = 32
  config.rollout.group_size = 16
  config.advantage.grouping = 'question_turn_agent'
  config.budget.lambda_tok = 0.05
  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-4
  config.learner.pack_length = 192
  config.learner.micro_batch_size = 6
  config.sft.steps = 300
  config.sft.questions = 32
  config.sft.learning_rate = 5e-3
  config.sft.silence_probability = 0.3
  config.sft.terse_probability = 0.2
  config.evaluation.questions = 200
  config.evaluation.temperature = 1.0
  if size:
    config.task.options.update(size=5, gaps=8)
    config.steps = 100
    config.team.rounds = 3
    config.team.max_message_tokens = 28
    config.rollout.questions = 16
    config.learner.learning_rate = 5e-4
    config.learner.pack_length = 384
    config.learner.micro_batch_size = 3
    config.sft.steps = 8000
    config.sft.learning_rate = 3e-3
  return config.lock()
