"""Validates `reward.score` across config sections."""

from __future__ import annotations

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config import Config
from agent_gspo.tasks.base import Task
from agent_gspo.teams.roles import ENDPOINT
from agent_gspo.teams.team import Team


def check(config: Config, task: Task, team: Team) -> None:
  """Raises ValueError if training would not see the scores of `reward.score`, or no signal."""
  reward, name = config.reward, config.advantage.name
  if reward.score == 'task':
    return
  where = f'reward.score={reward.score!r}'
  if task.converse:
    raise ValueError(
      f'{where}: task {task.name!r} brings its own episode, whose rewards replace scores; it may '
      "have no answer to compare. Set reward.score='task'."
    )
  if name in estimators.GAINS:
    raise ValueError(
      f"{where} with advantage.name={name!r}, which reads gold answers. Set reward.score='task', "
      "or advantage.name='per_component'."
    )
  if config.rollout.group_size == 1:
    raise ValueError(
      f'{where} compares episodes of one question; rollout.group_size=1 must be 2 or more.'
    )
  if reward.score == 'weighted_vote' and team.decision == 'majority':
    raise ValueError(
      f"{where} weighs answers by the probabilities of each episode's last message, which is not "
      'the answer with team.decision="majority". Set reward.score="vote".'
    )
  if reward.score == 'weighted_vote' and team.roles[-1].model.startswith(ENDPOINT):
    raise ValueError(
      f'{where} weighs answers by their probabilities, which the endpoint of team.roles.'
      f'{team.roles[-1].name}.model does not give. Set reward.score="vote".'
    )
  if reward.score == 'collective_vote' and (
    team.decision != 'majority' or team.topology.rounds > 1 or team.topology.edges
  ):
    raise ValueError(
      f'{where} compares independent answers of agents. Set team.decision="majority", '
      'team.topology="debate" and team.rounds=1.'
    )
  if reward.score != 'tournament':
    return
  selection, mode = config.selection.name, config.budget.mode
  for field, value, reads_accuracy in (
    ('selection.name', selection, selection != 'uniform'),
    ('advantage.name', name, name == 'spo_single'),
    ('budget.mode', mode, mode == 'accuracy_floor'),
  ):
    if reads_accuracy:
      raise ValueError(
        f'{field}={value!r} with {where}, whose mean is 0.5 for every question: it '
        f'cannot rank questions. Set another {field}.'
      )
  if config.budget.charges or reward.length_reward != 'linear':
    raise ValueError(
      f'{where} already ranks by cost; budget.lambda_tok={config.budget.lambda_tok:g} and '
      f'reward.length_reward={reward.length_reward!r} would count costs twice. Set all prices to 0 '
      "and reward.length_reward='linear'."
    )
