"""Resolves `objective.teacher` to the team that is distilled into one agent."""

from __future__ import annotations

import json
import pathlib

from agent_gspo.config import check as config_lib
from agent_gspo.tasks import base


def resolve(parts: config_lib.Parts) -> config_lib.Parts | None:
  """Returns the team of `objective.teacher`, None without one.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It is no config, or its team cannot teach this one.
  """
  config, name = parts.config, parts.config.objective.teacher
  if not name:
    return None
  where = f'objective.teacher={name!r}'
  file = pathlib.Path(name).expanduser()
  if not file.is_file():
    raise FileNotFoundError(f'{where}: no such file. Give team.json of launch/export.py.')
  try:
    values = json.loads(file.read_text(encoding='utf-8'))
    values = {k: v for k, v in values.items() if k in config.to_dict()}
    found = config_lib.check(values, training=False)
  except (ValueError, AttributeError) as error:
    raise ValueError(f'{where} is not a team config: {error}') from error
  ours, theirs = parts.team, found.team
  end = lambda team: (team.roles[-1].style, team.roles[-1].separator)
  asked = [len(base.asked(of.task, config.sft.held_back)) for of in (parts, found)]
  for wrong, remedy in (
    (ours.num_agents > 1, "teaches one agent: set team.topology='single' and one of team.agents"),
    (ours.topology.rounds > 1, 'teaches one turn: set team.rounds=1'),
    (theirs.others, 'has several models: give a team of one'),
    (theirs.decision == 'majority', 'is a team that votes: give one whose last agent answers'),
    (found.task.converse, 'is a team in an environment: give one that talks by its topology'),
    (found.sharing.adapters, 'has a policy for each agent: give a team that shares one'),
    (asked[0] != asked[1], 'has other questions: take its `task`'),
    (end(ours) != end(theirs), 'ends text differently: take its style and separator'),
    (
      ours.max_message_tokens < theirs.max_message_tokens,
      f'writes longer: set team.max_message_tokens={theirs.max_message_tokens}',
    ),
    (config.model.source.startswith('random:'), 'needs its export as model.source'),
    (config.learner.old_logprobs == 'trainer', "needs learner.old_logprobs='sampler'"),
  ):
    if wrong:
      raise ValueError(f'{where} {remedy}.')
  return found
