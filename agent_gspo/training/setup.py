"""From a config to the parts that training and evaluation share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from agent_gspo import config as config_lib
from agent_gspo.evaluation import evaluate as evaluation
from agent_gspo.models.load import load_model
from agent_gspo.models.tokenizer import Tokenizer, word_level
from agent_gspo.models.transformer import Params, Transformer, init_params
from agent_gspo.rewards.communication import RewardOptions
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.tasks.base import Task
from agent_gspo.teams.policies import ModelPolicy
from agent_gspo.teams.team import Team
from agent_gspo.types import RolloutBatch


@dataclasses.dataclass(frozen=True)
class Setup:
  """A model and a team that are ready to talk.

  Attributes:
    config: of the run.
    task, team, reward: built from it.
    model: the decoder, with adapters if the config asks for them.
    params: where the run starts, before any warm start.
    tokenizer: of the model.
    sampler: of the model.
    source: exactly which weights these are.
  """

  config: Mapping[str, Any]
  task: Task
  team: Team
  reward: RewardOptions
  model: Transformer
  params: Params
  tokenizer: Tokenizer
  sampler: Sampler
  source: str

  def policy(self, params: Params, *, stream: str, step: int, temperature: float) -> ModelPolicy:
    """The team's voice under some parameters.

    Args:
      params: of the model.
      stream: which randomness ('train' or 'eval').
      step: finished steps, folded into the keys.
      temperature: of sampling.
    """
    return ModelPolicy(
      sampler=self.sampler,
      params=params,
      root=keys.stream(self.config['seed'], stream),
      step=step,
      temperature=temperature,
    )

  def evaluate(
    self,
    params: Params,
    *,
    label: str,
    step: int,
    questions: int,
    alone: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
  ) -> tuple[dict[str, Any], RolloutBatch]:
    """Record for `eval.jsonl` and conversations on the first questions of the split.

    Every evaluation of a run uses the same questions and the same noise. `alone` asks
    the deciding agent without its teammates.
    """
    options = self.config['evaluation']
    split = self.task.questions(options['split'])
    chosen = [split[i] for i in range(min(questions, len(split)))]
    team = self.team
    if alone:
      team = evaluation.decider_alone(team)
      chosen = [dataclasses.replace(q, notes=(), relevant=()) for q in chosen]
    figures, batch = evaluation.evaluate(
      team,
      self.task,
      self.tokenizer,
      chosen,
      self.policy(params, stream='eval', step=0, temperature=options['temperature']),
      batch_questions=options['batch_questions'],
      progress=progress,
    )
    head = {
      'step': step,
      'label': label,
      'split': options['split'],
      'temperature': options['temperature'],
    }
    return {**head, **figures}, batch


def build(config: Mapping[str, Any]) -> Setup:
  """Checks the config, then loads the model.

  Raises:
    ValueError, FileNotFoundError: see `config.check` and `models.load.load_model`; also a
      prompt that cannot fit the model's context or a packed row.
  """
  parts = config_lib.check(config)
  options = config['model']
  vocabulary = getattr(parts.task, 'vocabulary', None)
  tokenizer = None
  if options['source'].startswith('random:'):
    if vocabulary is None:
      raise ValueError(
        f'model.source={options["source"]!r} needs a task with a vocabulary of its own; '
        f'{parts.task.name!r} has none. Use a pretrained model.'
      )
    tokenizer = word_level(_with_prompt_words(vocabulary(), parts.team))
  loaded = load_model(options['source'], tokenizer=tokenizer, seed=config['seed'])
  model_config = loaded.config.replace(
    dtype=options['dtype'],
    remat=options['remat'],
    lora_rank=options['lora_rank'],
    lora_alpha=options['lora_alpha'],
  )
  params = loaded.params
  if options['lora_rank']:
    params = _with_adapters(model_config, params, config['seed'])
  setup = Setup(
    config=config,
    task=parts.task,
    team=parts.team,
    reward=parts.reward,
    model=Transformer(model_config),
    params=params,
    tokenizer=loaded.tokenizer,
    sampler=Sampler(
      model_config,
      max_new_tokens=parts.team.max_message_tokens,
      row_tokens=config['sampler']['row_tokens'],
      prefill_rows=config['sampler']['prefill_rows'],
    ),
    source=loaded.source,
  )
  _check_prompts(setup)
  return setup


def _with_prompt_words(words: list[str], team: Team) -> list[str]:
  """A word-level vocabulary must also hold the words of the roles' prompts."""
  known = dict.fromkeys(words)
  for role, name in zip(team.roles, team.names, strict=True):
    shown = [part for pair in role.examples for part in pair]
    incoming = role.incoming.format(sender=name, message=' ')
    for other in team.names:
      incoming += ' ' + role.incoming.format(sender=other, message=' ')
    texts = [role.system, role.cue, incoming, role.opening.format(question=' ', note=' '), *shown]
    for text in texts:
      known.update(dict.fromkeys(text.split()))
  return list(known)


def _with_adapters(model_config, params: Params, seed: int) -> Params:
  """Fresh adapters beside the loaded weights."""
  fresh = init_params(model_config, jax.random.key(seed))

  def graft(fresh, loaded):
    if not isinstance(fresh, Mapping):
      return loaded
    return {k: graft(v, loaded[k]) if k in loaded else v for k, v in fresh.items()}

  return graft(fresh, params)


def _check_prompts(setup: Setup) -> None:
  """Looks at the longest prompt that a sample of questions can lead to."""
  team, tokenizer = setup.team, setup.tokenizer
  split = setup.task.questions('train')
  writers = team.prompt_writers(tokenizer)
  filler = [tokenizer.eos_id] * (team.max_message_tokens - 1)
  worst = (0, '')
  for question in (split[i] for i in range(min(64, len(split)))):
    for agent, writer in enumerate(writers):
      note = question.notes[agent] if agent < len(question.notes) else ''
      conversation = writer.begin(question.text, note)
      for round_ in range(team.topology.rounds):
        incoming = [(team.names[a], filler) for a, _ in team.topology.reads(agent, round_)]
        prompt = conversation.prompt(incoming)
        conversation.wrote(np.asarray(filler), ended=False)
      worst = max(worst, (len(prompt), question.id))
  needed, question_id = worst[0] + team.max_message_tokens, worst[1]
  limit = setup.model.config.max_positions
  if needed > limit:
    raise ValueError(
      f'question {question_id} can lead to a prompt and message of {needed} tokens, but the '
      f"model's context is {limit}. Shorten the roles' examples, lower team.rounds or "
      'team.max_message_tokens.'
    )
  row_tokens = setup.config['learner']['row_tokens']
  if needed > row_tokens:
    raise ValueError(
      f'learner.row_tokens={row_tokens} is too short: question {question_id} can lead to a prompt '
      f'and message of {needed} tokens. Set learner.row_tokens={-(-needed // 64) * 64} or more.'
    )
