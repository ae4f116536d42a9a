"""Provides objectives, advantages, budgets and selection rules as functions of arrays.

They work without the rest of the package, see docs/library.md. Names are imported on first use.
"""

from __future__ import annotations

from typing import Any

from agent_gspo import lazy

_OBJECTIVES = 'agent_gspo.algorithms.objectives.'
_ADVANTAGES = 'agent_gspo.algorithms.advantages.'
_PUBLIC = {
  **dict.fromkeys(
    ('OBJECTIVES', 'Objective', 'ObjectiveSpec', 'cispo', 'dapo', 'dr_grpo', 'gmpo', 'grpo', 'gspo',
     'gspo_token', 'imitation', 'luspo', 'make', 'reinforce', 'sapo'),
    _OBJECTIVES + 'losses',
  ),
  'PackedTokens': _OBJECTIVES + 'parts',
  **dict.fromkeys(('opsm', 'truncated_weights'), _OBJECTIVES + 'off_policy'),
  **dict.fromkeys(('k1', 'k2', 'k3'), _OBJECTIVES + 'kl'),
  **dict.fromkeys(('ADVANTAGES', 'advantage'), _ADVANTAGES + 'estimators'),
  **dict.fromkeys(('Advantage', 'AdvantageInputs'), _ADVANTAGES + 'inputs'),
  'PRESETS': 'agent_gspo.algorithms.presets',
}  # fmt: skip

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
  return lazy.find(__name__, _PUBLIC, name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
