"""Trains configs/tiny.py with a LoRA adapter and a rate for each agent, and a frozen solver.

SFT trains the base, as the model is from scratch; RL trains the informants' adapters alone.

  python launch/train.py --config=configs/tiny_adapters.py --workdir=runs/tiny_adapters

Seeds 0, 1 and 2 (`--config.seed`), 200 held-out questions, two shared cores of an AMD EPYC,
2026-11-26: before RL as configs/tiny.py (docs/results/learning.md), after it 35.4 [30.9,
39.5] tokens, accuracy 76.3 [74.5, 79.0] %, silent with an irrelevant note 89.8 [70.5, 100.0] %. At
rates of 3e-3 accuracy fell instead (seed 0).
"""

from ml_collections import config_dict

from configs import tiny


def get_config() -> config_dict.ConfigDict:
  config = tiny.get_config().unlock()
  config.model.lora_rank = 8
  config.policy.sharing = 'adapters'
  config.policy.frozen = ('solver',)
  # One for each agent of `team.agents`; that of a frozen agent is ignored.
  config.policy.learning_rates = (1e-3, 1e-3, 1e-3, 1e-3, 0.0)
  return config.lock()
