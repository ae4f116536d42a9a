"""Assigns policies, adapters and learning rates to agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from agent_gspo.teams.options import PolicyOptions
from agent_gspo.values import is_number


@dataclasses.dataclass(frozen=True)
class Sharing:
  """Policies of `N` agents.

  Attributes:
    adapters: Adapter index of each agent, `[N]`, -1 for the base model alone. None: one policy
      for all agents, with the only adapter, if any.
    trained: Agents that learn; None for all.
    scale: Learning-rate factor of each adapter, 0 for a frozen one; None: 1 for all.
  """

  adapters: tuple[int, ...] | None = None
  trained: frozenset[int] | None = None
  scale: tuple[float, ...] | None = None

  @property
  def num_adapters(self) -> int:
    """Returns the number of adapters that the model needs (if it has any)."""
    return 1 if self.adapters is None else max(self.adapters) + 1

  def learns(self, agent: int) -> bool:
    """Returns whether an agent is trained."""
    return self.trained is None or agent in self.trained


def make_sharing(
  options: PolicyOptions,
  names: Sequence[str],
  *,
  lora_rank: int,
  learning_rate: float,
  others: Collection[int] = (),
  learners: Collection[int] = (),
) -> Sharing:
  """Builds the policies from the config's `policy` section.

  Args:
    options: The section.
    names: Names of the agents.
    lora_rank: Rank of the model's adapters, 0 without.
    learning_rate: Learning rate of agents without one of their own.
    others: Agents that another model writes for, see `Team.others`.
    learners: Those of them whose model learns.

  Raises:
    ValueError: if a field is invalid; names field, value and remedy.
  """
  kind, frozen, rates = options.sharing, options.frozen, options.learning_rates
  _check(kind, tuple(frozen), tuple(rates), names, lora_rank)
  if len(others) == len(names):
    raise ValueError(
      'team.roles.*.model is set for every agent, so model.source has no messages to train on. '
      'Leave one empty.'
    )
  frozen_others = frozenset(others).difference(learners)
  if kind == 'shared':
    everybody = frozenset(range(len(names)))
    return Sharing(trained=everybody - frozen_others if frozen_others else None)
  if own := [names[n] for n in sorted(learners) if names[n] in frozen or rates]:
    raise ValueError(
      f'policy.frozen={tuple(frozen)} and policy.learning_rates={tuple(rates)} need adapters, '
      f'but {own[0]} has its own model, trained at learner.learning_rate. Leave '
      f'learning_rates empty and {own[0]} out of frozen.'
    )
  rates = rates or (learning_rate,) * len(names)
  free = [n for n, name in enumerate(names) if name not in frozen and n not in others]
  trained = [n for n in free if rates[n]]
  if not trained:
    raise ValueError(
      f'policy.learning_rates={tuple(rates)} and policy.frozen={tuple(frozen)} train no agent: '
      'give an agent that is not frozen a rate above 0.'
    )
  adapted = [n for n in range(len(names)) if n not in others] if kind == 'adapters' else free
  scale = [rates[n] / learning_rate if n in trained else 0.0 for n in adapted]
  return Sharing(
    adapters=tuple(adapted.index(n) if n in adapted else -1 for n in range(len(names))),
    trained=frozenset(trained).union(learners),
    scale=tuple(scale),
  )


def _check(kind, frozen, rates, names, lora_rank) -> None:
  if kind == 'shared':
    if frozen or rates:
      raise ValueError(
        f'policy.frozen={frozen} and policy.learning_rates={rates} need a policy per agent: '
        "set policy.sharing to 'adapters' or 'mix', or leave both empty."
      )
    return
  if not all(isinstance(name, str) for name in frozen):
    raise ValueError(f'policy.frozen={frozen} must hold names of agents.')
  if not lora_rank:
    raise ValueError(f'policy.sharing={kind!r} needs adapters: set model.lora_rank above 0.')
  unknown = sorted(set(frozen) - set(names))
  if unknown:
    raise ValueError(
      f'policy.frozen: no agent is called {", ".join(unknown)}; there are {", ".join(names)}.'
    )
  if set(frozen) == set(names):
    raise ValueError(f'policy.frozen={frozen} must leave an agent to train.')
  if kind == 'mix' and not frozen:
    raise ValueError("policy.sharing='mix' needs frozen agents: name them in policy.frozen.")
  numbers = all(is_number(rate) and rate >= 0 for rate in rates)
  if rates and (not numbers or len(rates) != len(names)):
    raise ValueError(
      f'policy.learning_rates={rates} must be {len(names)} nonnegative rates, one per agent.'
    )
