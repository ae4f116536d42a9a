"""Validates estimators and evaluations that measure what a message is worth."""

from __future__ import annotations

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config.defaults import Config
from agent_gspo.tasks.base import Task
from agent_gspo.teams.roles import ENDPOINT
from agent_gspo.teams.sharing import Sharing
from agent_gspo.teams.team import Team

_MOST_PLAYERS = 6  # messages per episode: the Shapley value needs all 2**n subsets


def check(config: Config, task: Task, team: Team, sharing: Sharing) -> None:
  """Raises ValueError if an option needs the worth of messages, which cannot be measured."""
  name, reader = config.advantage.name, team.num_agents - 1
  gains = name in estimators.GAINS
  if gains:
    where, other = f'advantage.name={name!r}', "advantage.name='per_component'"
  elif config.evaluation.worth_questions:
    where, other = 'evaluation.worth_questions above 0', 'evaluation.worth_questions=0'
  else:
    return
  players = sum(author != reader for author, _ in team.read_by_answerer)
  if team.decision == 'majority':
    raise ValueError(
      f"{where} with team.decision='majority': no single agent answers. Set team.decision='last', "
      f'or {other}.'
    )
  if task.converse:
    raise ValueError(
      f'{where}: task {task.name!r} brings its own episode, whose prompts without a message are '
      f'unknown. Set {other}.'
    )
  if not players:
    raise ValueError(
      f'{where}, but the last agent, {team.names[reader]!r}, reads no messages, so none '
      f'has a worth. Choose another team.topology, or {other}.'
    )
  if team.roles[reader].shows_left:
    raise ValueError(
      f'team.roles.{team.roles[reader].name}.cue shows {{left}}, which depends on the messages '
      f'that {where} leaves out. Remove {{left}} from it, or set {other}.'
    )
  if config.team.max_episode_tokens:
    raise ValueError(
      f'team.max_episode_tokens={config.team.max_episode_tokens} with {where}: the length limit of '
      f'an answer would depend on the messages that are left out. Set it to 0, or {other}.'
    )
  answers = f'team.roles.{team.roles[reader].name}.model={team.roles[reader].model!r}'
  is_far = team.roles[reader].model.startswith(ENDPOINT)
  if is_far and config.evaluation.worth_questions:
    raise ValueError(
      f'evaluation.worth_questions above 0 with {answers}: endpoints cannot score gold answers. '
      'Set evaluation.worth_questions=0.'
    )
  if not gains:
    return
  if name == 'shapley' and players > _MOST_PLAYERS:
    raise ValueError(
      f'{where}: the last agent reads {players} messages, and {2**players} sets of them are too '
      f"many; at most {_MOST_PLAYERS}. Set advantage.name='worth'."
    )
  if config.advantage.costs == 'apart':
    raise ValueError(
      f"advantage.costs='apart' with {where}, which weighs costs itself. Set 'inside'."
    )
  settings = estimators.settings(config.advantage)
  samples = settings.get('samples', 0)
  if is_far and (name == 'hill' or not samples):
    raise ValueError(
      f'{where} with {answers}: endpoints cannot score gold answers. Set '
      "advantage.name='replay', which samples."
    )
  imitation = settings.get('imitation', 0)
  if imitation and not sharing.learns(reader):
    raise ValueError(
      f'advantage.options.imitation={imitation}: {team.names[reader]!r} imitates gold '
      'answers, but does not learn (policy.frozen, policy.learning_rates, or trains of its role). '
      'Set imitation to 0, or let it learn.'
    )
  least = 2 if name == 'hill' else 0
  if samples != int(samples) or samples < least:
    raise ValueError(
      f'advantage.options.samples={samples} must be a whole number of at least {least}: answers '
      f'that {where} samples.'
    )
  if samples:
    return
  forms = task.gold_messages(task.questions('train')[0])
  if not forms:
    raise ValueError(
      f'{where}: task {task.name!r} has no gold answers in words (Task.gold_messages). Set '
      "advantage.name='replay', or 'spo_segment' with advantage.options.samples=4."
    )
  if imitation and all(given for given, _ in forms):
    raise ValueError(
      f'advantage.options.imitation={imitation}: task {task.name!r} leaves the wording of '
      'answers to the agent (Task.gold_messages), so there is no whole text to learn. Set it to 0.'
    )
