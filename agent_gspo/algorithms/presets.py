"""Defines the presets of `config.algorithm`: objective, advantage, groups and question order.

Each is the paper's own combination; 'agent_gspo' is this project's. A config field that is set
overrides the preset.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Preset:
  """Attributes:
  paper: arXiv id.
  objective: Key of `objectives.OBJECTIVES`.
  advantage: Key of `advantages.ADVANTAGES`.
  costs: Treatment of the price, one of `options.COSTS`.
  grouping: Groups for comparing rewards, one of `options.GROUPINGS`.
  selection: Selection rule of questions, key of `selection.SELECTIONS`.
  order: Order of mini-batches, see `learner.order` of the config.
  clip_low, clip_high: Clip bounds; None for the objective's own.
  opsm_threshold: Threshold of `off_policy.opsm`, None for no mask.
  resample: Most extra rollouts to replace questions without task-score variance (DAPO).
  """

  paper: str
  objective: str = 'grpo'
  advantage: str = 'group_std'
  costs: str = 'inside'
  grouping: str = 'question'
  selection: str = 'uniform'
  order: str = 'shuffled'
  clip_low: float | None = None
  clip_high: float | None = None
  opsm_threshold: float | None = None
  resample: int = 0


PRESETS: dict[str, Preset] = {
  'agent_gspo': Preset('2510.22477', 'gspo', 'per_component', costs='apart'),
  'gspo': Preset('2507.18071', 'gspo'),
  'gspo_token': Preset('2507.18071', 'gspo_token'),
  'luspo': Preset('2602.05261', 'luspo'),
  'grpo': Preset('2402.03300'),
  'dr_grpo': Preset('2503.20783', 'dr_grpo', 'group_mean'),
  'dapo': Preset('2503.14476', 'dapo', resample=3),
  'cispo': Preset('2506.13585', 'cispo'),
  'gmpo': Preset('2507.20673', 'gmpo'),
  'sapo': Preset('2511.20347', 'sapo'),
  'opsm': Preset('DeepSeek-V3.2', opsm_threshold=0.5),
  'rloo': Preset('2402.14740', 'reinforce', 'rloo'),
  'reinforce_pp': Preset('2501.03262', advantage='reinforce_pp'),
  'reinforce_pp_baseline': Preset('2501.03262', advantage='reinforce_pp_baseline'),
  'seeupo': Preset('2602.06554', 'gspo', 'seeupo', order='reverse_turns'),
  'gdpo': Preset('2601.05242', advantage='per_component', costs='apart'),
  'dr_mas': Preset('2602.08847', grouping='question_agent'),
  'at_grpo': Preset('2510.11062', grouping='question_turn_agent'),
  'mars': Preset('2510.15414', advantage='agent_turn'),
  'gigpo': Preset('2505.10978', advantage='gigpo'),
  'hgpo': Preset('2602.22817', advantage='hgpo'),
  'ngrpo': Preset('2509.18851', advantage='ngrpo', clip_low=0.16, clip_high=0.24),
  'opo': Preset('2505.23585', advantage='opo'),
  'spo_single': Preset('2509.13232', advantage='spo_single', selection='spo'),
  'counterfactual': Preset(
    'ours', 'gspo', 'counterfactual', costs='apart', grouping='question_turn_agent'
  ),
  'worth': Preset('ours', 'gspo', 'worth', grouping='question_turn_agent'),
}
