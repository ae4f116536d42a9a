"""Loads the team of a run or an export, or an untrained one, for `ask` and `serve`."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from agent_gspo.apps.commands import command, config_flag

if TYPE_CHECKING:
  from agent_gspo.config.check import Parts
  from agent_gspo.models.transformer import Params
  from agent_gspo.training.setup import Setup
  from agent_gspo.types import Message, Question, RolloutBatch, Terms

flags.disclaim_key_flags()  # so that --help of a command lists the flags defined here for it


@dataclasses.dataclass(frozen=True)
class Flags:
  """Flags --config, or --workdir and --step, which select a team."""

  config: flags.FlagHolder
  checkpoint: command.CheckpointFlags

  def check(self) -> None:
    """Checks that the flags select one team.

    Raises:
      ValueError: Both or none of --config and --workdir are given.
    """
    if bool(self.checkpoint.workdir.value) == (self.config.value is not None):
      raise ValueError(
        'give --workdir (of a run), or --config (for the untrained team): one of them.'
      )


def define_flags() -> Flags:
  """Defines the flags in the module that calls."""
  return Flags(config_flag.define(), command.define_checkpoint())


class TeamOfRun:
  """Team of a run, an export or a config, whose model is loaded on first use."""

  def __init__(self, which: Flags):
    """Finds the team.

    Raises:
      ValueError, FileNotFoundError: No such run or checkpoint, or its config is invalid.
    """
    from agent_gspo.apps.commands import exported
    from agent_gspo.config import check as config_lib

    self._saved = which.checkpoint.chosen()
    if self._saved is None:
      config = config_flag.load(which.config)
    else:
      config = command.config_here(self._saved)
    if isinstance(self._saved, exported.Exported):
      config = self._saved.asked_config(config)
    self.parts: Parts = config_lib.check(config, training=False)
    self.team = self.parts.team
    self.step = self._saved.step if self._saved else 0
    workdir = which.checkpoint.workdir.value
    task = self.parts.config.task.name
    self.run = pathlib.Path(workdir).resolve().name if workdir else f'untrained {task}'

  @property
  def about(self) -> dict[str, Any]:
    """Returns the run's name and step, and a question of its task, for the page."""
    question = self.parts.task.questions(self.parts.config.evaluation.split)[0]
    example = {'question': question.text, 'notes': question.notes}
    return {'run': self.run, 'step': self.step, 'example': example}

  @functools.cached_property
  def loaded(self) -> tuple[Setup, Params]:
    """Reads the model and the team's parameters."""
    from agent_gspo.training import setup as setup_lib

    setup = setup_lib.build(self.parts)
    params = setup.params
    if self._saved is not None:
      params = self._saved.restore_params(self.parts.config, params)
    return setup, setup.own_copy(params)

  def load_weights(self, folder: str, step: int) -> None:
    """Replaces the parameters of `model.source` by those in the folder of an export.

    Raises:
      ValueError, FileNotFoundError: It has no weights, or those of another architecture.
    """
    import jax
    import numpy as np

    from agent_gspo.models.io import hf
    from agent_gspo.training import state as state_lib

    setup, params = self.loaded
    _, found = hf.open_hf(folder)
    shapes = lambda tree: jax.tree.map(np.shape, tree)
    if shapes(found) != shapes(state_lib.without_members(params)):
      raise ValueError(
        f'{folder} holds another model than {setup.source}, which is served. Serve the --config of '
        'the run that trains, without adapters (model.lora_rank=0).'
      )
    self.loaded = setup, {**params, **setup.own_copy(found)}
    self.step = step

  @property
  def told(self) -> str:
    """Returns the kind of terms in the agents' prompts: 'price', 'budget' or ''."""
    return self.parts.term_sheet.kind if self.parts.term_sheet else ''

  @property
  def answering(self) -> tuple[int, int] | None:
    """Returns agent and round of the message whose text is the answer; None if there is none."""
    team = self.team
    if team.decision == 'majority' or team.addressing or self.parts.task.converse:
      return None
    return team.num_agents - 1, team.topology.rounds - 1

  def terms(self, **told: float | None) -> Terms | None:
    """Returns the terms of a question, those of evaluations unless `price` or `budget` is given.

    Raises:
      ValueError: The team was not trained with such terms.
    """
    given = {kind: value for kind, value in told.items() if value is not None}
    for kind, value in given.items():
      if kind != self.told:
        mode = {'price': 'conditioned', 'budget': 'target'}[kind]
        raise ValueError(
          f'{kind}={value:g}: this team is told no {kind}. Train one with budget.mode={mode!r}.'
        )
    return self.parts.terms(given.get(self.told))

  def check_words(self, question: Question) -> None:
    """Raises ValueError if the team cannot read a question, see `asking.check_words`."""
    from agent_gspo.evaluation import asking

    example = self.about['example']['question']
    setup, _ = self.loaded
    asking.check_words(setup.team, setup.tokenizer, question, example)

  def ask(
    self,
    questions: Sequence[Question],
    listener: Callable[[Message], Any],
    *,
    temperature: float | None = None,
    max_tokens: int = 0,
    begun: Callable[[int, int, str], Any] | None = None,
  ) -> tuple[RolloutBatch, list[str | None]]:
    """Returns an episode about each question and its answer, see `asking.ask`.

    `temperature` is that of evaluations by default. `max_tokens` caps the tokens of all agents
    together; with 0 only the team's own caps apply. `begun` is called after each token with agent,
    round and text of an unfinished message.
    """
    from agent_gspo.evaluation import asking

    setup, params = self.loaded
    if temperature is None:
      temperature = self.parts.config.evaluation.temperature
    policy = setup.policy(params, stream='eval', step=0, temperature=temperature)
    if begun is not None:
      listening = asking.as_text(setup.team, setup.tokenizer, begun)
      policy = dataclasses.replace(policy, listener=listening)
    team = setup.team.capped(max_tokens)
    return asking.ask(team, setup.task, setup.tokenizer, questions, policy, listener)
