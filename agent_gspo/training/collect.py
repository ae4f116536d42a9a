"""Draws questions of the training split and holds the conversations of a step about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from agent_gspo.algorithms import terms
from agent_gspo.algorithms.selection import rules
from agent_gspo.reporting.progress import Progress
from agent_gspo.sharding import hosts
from agent_gspo.teams import batches
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import state as state_lib
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import Question, RolloutBatch

_TERMS = 2  # which randomness of the run's seed


@dataclasses.dataclass(frozen=True)
class CollectedRollout:
  """The conversations of one step, and what was drawn for them.

  Attributes:
    batch: about `B` questions.
    question_index: int `[B]`, index of each question in the training split.
    selection: the state of the selection rule, which knows what was drawn.
    questions_asked: number of questions rolled out, those dropped again included.
  """

  batch: RolloutBatch
  question_index: np.ndarray
  selection: rules.SelectionState
  questions_asked: int


def collect(setup: Setup, state: TrainState, progress: Progress) -> CollectedRollout:
  """Holds the conversations of the next step with the current parameters.

  Under `selection.resample`, questions whose task scores all tie make room for others, as long as
  there are others that this step has not asked.
  """
  options = setup.config['selection']
  missing, selection = setup.config['rollout']['questions'], state.selection
  found, kept = [], []
  asked: list[int] = []
  retries = options['resample']
  while missing:
    drawn, selection = rules.choose(
      options['name'], selection, missing, seed=setup.config['seed'], asked=asked
    )
    questions = [setup.questions[int(i)] for i in drawn]
    if setup.term_sheet is not None:
      seed = (setup.config['seed'], _TERMS, int(state.step), len(asked))
      questions = terms.put(questions, setup.term_sheet.draw(missing, seed))
    batch = _converse(setup, state, questions, progress)
    asked += drawn.tolist()
    good = np.arange(missing)
    if retries:
      scores, question = batches.task_scores(batch)
      good = np.flatnonzero(rules.informative(scores, question, missing))
      if missing - len(good) > len(setup.questions) - len(asked):
        good = np.arange(missing)
    found.append(batches.select(batch, good.tolist()) if len(good) < missing else batch)
    kept.append(drawn[good])
    missing, retries = missing - len(good), retries - 1
  return CollectedRollout(
    batch=batches.join(found) if len(found) > 1 else found[0],
    question_index=np.concatenate(kept),
    selection=selection,
    questions_asked=len(asked),
  )


def _converse(
  setup: Setup, state: TrainState, questions: Sequence[Question], progress: Progress
) -> RolloutBatch:
  """`group_size` conversations about each of some questions; a process holds its share."""
  options = setup.config['rollout']
  policy = setup.policy(
    state_lib.merge(state.trainable, state.frozen),
    stream='train',
    step=int(state.step),
    temperature=options['temperature'],
  )
  own = rollout(
    setup.team,
    setup.task,
    setup.tokenizer,
    questions[hosts.share(len(questions))],
    options['group_size'],
    policy,
    lambda done, total: progress.phase('rollout', done, total),
  )
  return batches.merge(hosts.gather(own))
