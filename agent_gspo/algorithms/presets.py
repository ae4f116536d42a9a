"""Defines the presets of `config.algorithm`: objective, advantage, groups and question order.

Each is the paper's own combination (docs/algorithms.md has the papers); 'agent_gspo' is this
project's. A config field that is set overrides the preset.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Preset:
  """Combination of algorithms that fills in empty config fields.

  Attributes:
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
  'agent_gspo': Preset('gspo', 'per_component', costs='apart'),
  'gspo': Preset('gspo'),
  'gspo_token': Preset('gspo_token'),
  'luspo': Preset('luspo'),
  'grpo': Preset(),
  'dr_grpo': Preset('dr_grpo', 'group_mean'),
  'dapo': Preset('dapo', resample=3),
  'cispo': Preset('cispo'),
  'gmpo': Preset('gmpo'),
  'sapo': Preset('sapo'),
  'opsm': Preset(opsm_threshold=0.5),
  'rloo': Preset('reinforce', 'rloo'),
  'reinforce_pp': Preset(advantage='reinforce_pp'),
  'reinforce_pp_baseline': Preset(advantage='reinforce_pp_baseline'),
  'seeupo': Preset('gspo', 'seeupo', order='reverse_turns'),
  'gdpo': Preset(advantage='per_component', costs='apart'),
  'dr_mas': Preset(grouping='question_agent'),
  'at_grpo': Preset(grouping='question_turn_agent'),
  'mars': Preset(advantage='agent_turn'),
  'gigpo': Preset(advantage='gigpo'),
  'hgpo': Preset(advantage='hgpo'),
  'ngrpo': Preset(advantage='ngrpo', clip_low=0.16, clip_high=0.24),
  'opo': Preset(advantage='opo'),
  'spo_single': Preset(advantage='spo_single', selection='spo'),
  'counterfactual': Preset('gspo', 'counterfactual', costs='apart', grouping='question_turn_agent'),
  'worth': Preset('gspo', 'worth', grouping='question_turn_agent'),
}
