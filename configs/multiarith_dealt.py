"""MultiArith dealt to the team of configs/svamp_dealt.py: 280 training questions, two steps each.

  python launch/train.py --config=configs/multiarith_dealt.py --workdir=runs/multiarith

The ablation over the token price:

  python launch/sweep.py --config=configs/multiarith_dealt.py --workdir=runs/multiarith_prices \
    --lambdas=0,0.01,0.02,0.05 --seeds=0,1
"""

from ml_collections import config_dict

from configs import svamp_dealt


def get_config(form: str = 'dealt') -> config_dict.ConfigDict:
  config = svamp_dealt.get_config(form).unlock()
  config.task.options.benchmark = 'multiarith'
  config.sft.epochs = 8.0
  config.sft.save_every = 24
  config.sft.validation_questions = 26
  config.evaluation.questions = 175
  return config.lock()
