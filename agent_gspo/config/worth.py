"""Checks that the worth of messages can be measured, before a model is loaded."""

from __future__ import annotations

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config.defaults import Config
from agent_gspo.tasks.base import Task
from agent_gspo.teams.team import Team

_MOST_PLAYERS = 6  # messages per episode: the Shapley value needs all 2**n subsets


def check(config: Config, task: Task, team: Team) -> None:
  """Raises for an estimator of `estimators.GAINS` whose gains cannot be measured.

  Raises:
    ValueError: Names the field, its value and the remedy.
  """
  name = config.advantage.name
  if name not in estimators.GAINS:
    return
  where, reader = f'advantage.name={name!r}', team.num_agents - 1
  rounds = range(team.topology.rounds)
  players = sum(a != reader for r in rounds for a, _ in team.topology.reads(reader, r))
  if team.decision == 'majority':
    raise ValueError(
      f"{where} with team.decision='majority': no single agent answers. Set team.decision='last', "
      "or advantage.name='per_component'."
    )
  if task.converse:
    raise ValueError(
      f'{where}: task {task.name!r} brings its own episode, whose prompts without a message are '
      "unknown. Set advantage.name='per_component'."
    )
  if not players:
    raise ValueError(
      f'{where}, but the last agent, {team.names[reader]!r}, reads nobody: no message is worth '
      "anything to it. Choose another team.topology, or advantage.name='per_component'."
    )
  if name == 'shapley' and players > _MOST_PLAYERS:
    raise ValueError(
      f'{where}: the last agent reads {players} messages, and {2**players} sets of them are too '
      f"many; at most {_MOST_PLAYERS}. Set advantage.name='worth'."
    )
  if team.roles[reader].shows_left:
    raise ValueError(
      f'team.roles.{team.roles[reader].name}.cue tells {{left}}, which depends on the messages '
      f'that {where} leaves out. Remove {{left}} from it.'
    )
  if config.advantage.costs == 'apart':
    raise ValueError(
      f"advantage.costs='apart' with {where}, which weighs costs itself. Set 'inside'."
    )
  samples = config.advantage.options.get('samples', 1)
  if samples != int(samples):
    raise ValueError(
      f'advantage.options.samples={samples} must be a whole number: answers that {where} samples.'
    )
  if name == 'replay':
    return
  forms = task.gold_messages(task.questions('train')[0])
  if not forms:
    raise ValueError(
      f'{where}: task {task.name!r} has no gold answers in words (Task.gold_messages). Set '
      "advantage.name='replay'."
    )
  imitation = config.advantage.options.get('imitation', 0)
  if imitation and all(given for given, _ in forms):
    raise ValueError(
      f'advantage.options.imitation={imitation}: task {task.name!r} leaves the wording of '
      'answers to the agent (Task.gold_messages), so there is no whole text to learn. Set it to 0.'
    )
