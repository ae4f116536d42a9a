"""Teaches a model from scratch to talk, by imitating the task's scripted team."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any

import flax.traverse_util
import numpy as np

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models import lora, partition
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import Params, Transformer
from agent_gspo.packing import train_batches
from agent_gspo.sharding.placement import Placement
from agent_gspo.tasks.base import Task
from agent_gspo.teams.policies import ScriptedPolicy, Turn
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.sharing import Sharing
from agent_gspo.teams.team import Team
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.programs import NonFiniteLossError, Programs


def imitate(
  model: Transformer,
  params: Params,
  task: Task,
  team: Team,
  tokenizer: Tokenizer,
  sharing: Sharing,
  config: Mapping[str, Any],
  placement: Placement,
  progress: Callable[[int, float], None],
) -> Params:
  """Parameters after imitation learning on the training split.

  The scripted agents speak in the team's own prompts, so what is learnt is exactly what
  the rollout asks for.

  Args:
    model: the policy.
    params: to start from.
    task: must have `scripted_turn`.
    team: its roles and topology.
    tokenizer: of the policy.
    sharing: whose adapters are whose.
    config: of the run. Of a pretrained model with adapters these alone are trained; of one
      from scratch all but them, so that it is the base that they adapt.
    placement: of `params`, and of the rows of micro-batches.
    progress: called with (finished steps, loss in nats a token).

  Raises:
    NonFiniteLossError: names the step.
  """
  options = config['sft']
  optimizer = state_lib.make_optimizer(
    LearnerOptions(
      learning_rate=options['learning_rate'],
      schedule='cosine',
      warmup_updates=max(options['steps'] // 20, 1),
    ),
    updates=options['steps'],
  )
  adapted, aside = config['model']['lora_rank'] > 0, {}
  if adapted and config['model']['source'].startswith('random:'):
    flat = flax.traverse_util.flatten_dict(params)
    aside = {k: v for k, v in flat.items() if k[-1].startswith('lora_')}
    params, adapted = lora.one_adapter(params, -1), False
    model = model.clone(config=model.config.without_adapters())
  programs = Programs(
    model, losses.imitation, optimizer, temperature=1.0, entropy=False, placement=placement
  )
  state = state_lib.init(
    params,
    optimizer,
    lora=adapted,
    shardings=lambda state: partition.shardings(state, model.config, placement),
  )
  adapters = sharing.adapters if adapted else None
  trained = adapters and {agent for agent, adapter in enumerate(adapters) if adapter >= 0}
  questions = task.questions('train')
  order = np.random.default_rng((config['seed'], 1)).permutation(len(questions))
  for step in range(options['steps']):
    start = step * options['questions']
    batch = [questions[int(order[(start + i) % len(order)])] for i in range(options['questions'])]
    script = functools.partial(_speak, task, options, random.Random(f'{config["seed"]}/{step}'))
    spoken = rollout(team, task, tokenizer, batch, 1, ScriptedPolicy(script, tokenizer))
    micro_batches = train_batches.pack_messages(
      spoken.messages,
      pack_length=config['learner']['pack_length'],
      micro_batch_size=config['learner']['micro_batch_size'],
      adapters=adapters,
      trained=trained,
    )
    try:
      state, metrics = programs.optimizer_step(state, micro_batches)
    except NonFiniteLossError as error:
      raise NonFiniteLossError(
        f'{error} in step {step + 1} of the warm start. Lower sft.learning_rate.'
      ) from None
    progress(step + 1, -metrics['policy/objective'])
  return state_lib.merge({**state.trainable, **aside}, state.frozen)


def _speak(task: Any, options: Mapping[str, Any], rng: random.Random, turn: Turn) -> str:
  informants = len(turn.question.notes)
  return task.scripted_turn(
    turn.question,
    turn.agent,
    [turn.delivered.get(agent, '') for agent in range(informants)],
    rng,
    terse_probability=options['terse_probability'],
    silence_probability=options['silence_probability'],
  )
