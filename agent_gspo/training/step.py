"""One training step: questions, conversations, credit, optimiser steps, the next price."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from agent_gspo.algorithms import budgets
from agent_gspo.algorithms.advantages import estimators, groups
from agent_gspo.algorithms.advantages.down_sampling import d3s_share
from agent_gspo.algorithms.objectives import losses
from agent_gspo.algorithms.objectives.trust_region import etr_clip_scale
from agent_gspo.algorithms.selection import posterior, rules
from agent_gspo.models.transformer import Params
from agent_gspo.packing import train_batches
from agent_gspo.reporting.progress import Progress
from agent_gspo.rewards import communication
from agent_gspo.teams import batches, counts
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import advantage_inputs as credit_lib
from agent_gspo.training import learner as learner_lib
from agent_gspo.training import metrics as metrics_lib
from agent_gspo.training import reference_nll
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.training.update import NonFiniteLossError, Updater
from agent_gspo.types import RolloutBatch


@dataclasses.dataclass(frozen=True)
class Conversations:
  """What a rollout gave.

  Attributes:
    batch: about `B` questions.
    places: int `[B]`, index of each question in the training split.
    selection: that knows what was drawn.
    asked: questions that were rolled out, those dropped again included.
    seconds: that it took.
  """

  batch: RolloutBatch
  places: np.ndarray
  selection: rules.SelectionState
  asked: int
  seconds: float


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What learning from conversations gave.

  Attributes:
    state: after the step.
    metrics: for `metrics.jsonl`.
    rewards, advantages: float32 `[M]`, of the messages.
  """

  state: TrainState
  metrics: dict[str, float]
  rewards: np.ndarray
  advantages: np.ndarray


class Trainer:
  """Takes training steps; holds compiled programs and no state that changes."""

  def __init__(self, setup: Setup):
    config = self.config = setup.config
    self.setup = setup
    self.questions = setup.task.questions('train')
    options = config['learner']
    learner = LearnerOptions(**options)
    self.optimizer = state_lib.make_optimizer(
      learner,
      updates=config['steps'] * learner.updates_a_step(len(setup.team.turns)),
      adapter_scale=setup.sharing.scale,
    )
    updater = Updater(
      model=setup.model,
      objective=losses.from_config(config['objective'], max_length=setup.team.max_message_tokens),
      optimizer=self.optimizer,
      temperature=config['rollout']['temperature'],
      kl_coef=config['objective']['kl_coef'],
      kl_estimator=config['objective']['kl_estimator'],
      tis_cap=config['objective']['tis_cap'],
      tis_level=config['objective']['tis_level'],
      entropy=options['entropy'],
      placement=setup.placement,
    )
    self.learner = learner_lib.Learner(
      config, updater, setup.sharing.adapters, setup.sharing.trained
    )
    self.budget = budgets.BudgetOptions(**config['budget'])

  def init(self, params: Params) -> TrainState:
    """The state at step 0 from some parameters."""
    state = state_lib.init(
      params,
      self.optimizer,
      lambda_tok=self.budget.lambda_tok,
      lora=self.config['model']['lora_rank'] > 0,
      keep_reference=(
        self.config['objective']['kl_coef'] > 0 or self.setup.reward.length_reward == 'optima'
      ),
      num_questions=len(self.questions),
    )
    return self.setup.placement.everywhere(state)

  def roll_out(self, state: TrainState, progress: Progress) -> Conversations:
    """Holds the conversations of the next step.

    Under `selection.resample`, questions whose task scores all tie make room for others, as long as
    there are others that this step has not asked.
    """
    start, options = time.monotonic(), self.config['selection']
    missing, chosen = self.config['rollout']['questions'], state.selection
    found, kept, asked = [], [], []
    retries = options['resample']
    while missing:
      places, chosen = rules.choose(
        options['name'], chosen, missing, seed=self.config['seed'], asked=asked
      )
      batch = self._converse(state, places, progress)
      asked += places.tolist()
      good = np.arange(missing)
      if retries:
        scores, question = batches.task_scores(batch)
        good = np.flatnonzero(rules.informative(scores, question, missing))
        if missing - len(good) > len(self.questions) - len(asked):
          good = np.arange(missing)
      found.append(batches.select(batch, good) if len(good) < missing else batch)
      kept.append(places[good])
      missing, retries = missing - len(good), retries - 1
    return Conversations(
      batch=batches.join(found) if len(found) > 1 else found[0],
      places=np.concatenate(kept),
      selection=chosen,
      asked=len(asked),
      seconds=time.monotonic() - start,
    )

  def _converse(self, state: TrainState, places: np.ndarray, progress: Progress) -> RolloutBatch:
    setup, options = self.setup, self.config['rollout']
    return rollout(
      setup.team,
      setup.task,
      setup.tokenizer,
      [self.questions[int(i)] for i in places],
      options['group_size'],
      setup.policy(
        state_lib.merge(state.trainable, state.frozen),
        stream='train',
        step=int(state.step),
        temperature=options['temperature'],
      ),
      lambda done, total: progress.phase('rollout', done, total),
    )

  def learn(self, state: TrainState, talk: Conversations, progress: Progress) -> Outcome:
    """Reward, advantage and the optimiser steps of one training step; `state` is consumed.

    Raises:
      NonFiniteLossError: names the mini-batch, the step and the questions.
    """
    start = time.monotonic()
    progress.phase('score')
    batch = talk.batch
    ledger = counts.ledger(batch)
    scores, question = batches.task_scores(batch)
    terms = communication.reward_terms(
      self.setup.reward,
      ledger,
      scores,
      float(state.budget.lambda_tok),
      [m.text for m in batch.messages],
      lambda_turn=self.budget.lambda_turn,
      lambda_rep=self.budget.lambda_rep,
      lambda_message=float(state.budget.lambda_message),
      message_limit=self.budget.message_limit,
      base_loss=self._base_loss(state, batch),
    )
    done = int(state.step) / max(self.config['steps'], 1)
    lesson, metrics = self._credit(talk, ledger, terms, done)
    metrics |= communication.summary(self.setup.reward, terms, ledger.num_episodes)
    metrics |= {
      'task/accuracy': float(scores.mean()),
      'selection/questions_asked': float(talk.asked),
      **metrics_lib.of_talk(ledger),
    }
    score_s = time.monotonic() - start

    start = time.monotonic()
    state, results, packed = self._update(state, lesson, batch, progress)
    metrics |= train_batches.positions(batch.messages, packed) | metrics_lib.of_updates(results)
    seen = budgets.Observation(
      accuracy=float(scores.mean()),
      episode_cost=float(communication.episode_costs(self.setup.reward, ledger).mean()),
      message_tokens=float(ledger.written.mean()),
    )
    prices = ('lambda_tok', 'lambda_message')  # those of this step, not of the next one
    in_force = {f'budget/{k}': float(getattr(state.budget, k)) for k in prices}
    budget = budgets.update(self.budget, state.budget, seen)
    metrics |= budgets.metrics(budget) | in_force
    state = state.replace(
      step=state.step + 1,
      budget=budget,
      selection=rules.observe(
        self.config['selection']['name'],
        talk.selection,
        talk.places[question],
        scores,
        divergence=float(np.mean([r['policy/logprob_gap_mean'] for r in results])),
      ),
    )
    update_s = time.monotonic() - start
    metrics |= {
      'time/rollout_s': talk.seconds,
      'time/score_s': score_s,
      'time/update_s': update_s,
      'time/step_s': talk.seconds + score_s + update_s,
      'memory/peak_mb': metrics_lib.peak_mb(),
    }
    return Outcome(state=state, metrics=metrics, rewards=terms.total, advantages=lesson.advantages)

  def _base_loss(self, state, batch) -> np.ndarray | None:
    if self.setup.reward.length_reward != 'optima':
      return None
    return reference_nll.of_episodes(
      self.learner.updater,
      state,
      batch.messages,
      len(batch.episodes),
      row_tokens=self.config['learner']['pack_length'],
      rows=self.config['learner']['micro_batch_size'],
      adapters=self.setup.sharing.adapters,
    )

  def _credit(
    self, talk, ledger, terms, done: float
  ) -> tuple[learner_lib.Lesson, dict[str, float]]:
    """Advantages of the messages, and how much signal there was, `done` of the run over."""
    options = self.config['advantage']
    extra = dict(options['options'])
    if options['name'] == 'd3s':  # what it keeps grows over the run, from its option to all
      first = extra.get('share', estimators.options_of('d3s')['share'])
      extra['share'] = d3s_share(done, start=first)
    credit = credit_lib.of_rollout(
      talk.batch,
      ledger,
      terms,
      grouping=options['grouping'],
      roles=[role.name for role in self.setup.team.roles],
      probability=np.asarray(posterior.probability(talk.selection.posterior))[talk.places],
    )
    found = estimators.advantage(credit, options['name'], costs=options['costs'], **extra)
    values, kept = np.asarray(found.values, np.float32), np.asarray(found.kept) > 0
    clip_scale = np.ones_like(values)
    if options['clip_scale'] == 'etr':
      rate = groups.solve_rate(credit.task, credit.groups, credit.episode)
      clip_scale = np.asarray(etr_clip_scale(values, rate))
    lesson = learner_lib.Lesson(
      messages=talk.batch.messages,
      ledger=ledger,
      advantages=values,
      kept=kept,
      clip_scale=clip_scale,
    )
    return lesson, {
      'advantage/tied_groups': estimators.tied_groups(terms.task, credit.groups),
      'advantage/abs_mean': float(np.abs(values).mean()),
      'advantage/kept': float(kept.mean()),
    }

  def _update(self, state, lesson, batch, progress):
    """The state, the metrics of each mini-batch and all packed rows."""
    results, packed, learnt = [], [], state
    options = LearnerOptions(**self.config['learner'])
    total = options.updates_a_step(len(self.setup.team.turns))
    step = int(state.step)
    progress.phase('update', 0, total)
    try:
      for update in self.learner.learn(state, step, lesson):
        learnt, metrics, rows = update
        results.append(metrics)
        packed += rows
        progress.phase('update', len(results), total)
    except NonFiniteLossError as error:
      ids = ', '.join(question.id for question in batch.questions)
      raise NonFiniteLossError(
        f'{error} in mini-batch {len(results) + 1} of {total} of step {step + 1}, questions '
        f'{ids}. Lower learner.learning_rate or look at these questions.'
      ) from None
    if not results:
      raise ValueError(
        f'step {step + 1}: no message is left to learn from (advantage.name='
        f'{self.config["advantage"]["name"]!r} dropped all). Use another or more '
        'rollout.group_size.'
      )
    return learnt, results, packed
