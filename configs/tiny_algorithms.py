"""Trains the team of configs/tiny.py with any algorithm, for ablations.

  python launch/train.py --config=configs/tiny_algorithms.py:dr_mas --workdir=runs/dr_mas
  for name in agent_gspo gspo grpo luspo dapo; do
    python launch/sweep.py --config=configs/tiny_algorithms.py:$name --workdir=runs/$name \
      --lambdas=0,0.02 --seeds=0,1,2
  done

The name is one of agent_gspo/algorithms/presets.py, which says what it stands for. Sequence
ratios of short messages need a wider clip band than the papers' (see docs/decisions.md); all
other options are the algorithm's own, groups included.
"""

from ml_collections import config_dict

from agent_gspo.algorithms.presets import PRESETS
from configs import tiny

_SEQUENCE_RATIOS = ('gspo', 'gspo_token', 'luspo')


def get_config(algorithm: str = 'agent_gspo') -> config_dict.ConfigDict:
  config = tiny.get_config().unlock()
  config.algorithm = algorithm
  config.advantage.grouping = ''
  if algorithm in PRESETS and PRESETS[algorithm].objective not in _SEQUENCE_RATIOS:
    config.objective.clip_low = config.objective.clip_high = None
  return config.lock()
