"""Distills a team into one agent, on-policy: the team's transcript is the teacher's context.

The student answers alone. The teacher is the policy at the start of RL, which reads what the team's
answering agent would have read at the student's place; the loss is `losses.reverse_kl`. The
student learns the team's answers, right or wrong, without its messages or gold answers.
"""

from __future__ import annotations

import dataclasses

from agent_gspo.sharding import hosts
from agent_gspo.tasks import base
from agent_gspo.teams import batches
from agent_gspo.teams import rollout as rollout_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.answer_values import with_logprobs
from agent_gspo.training.learner import Learner
from agent_gspo.training.policy_loss import PolicyParams
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import RolloutBatch


def taught(
  setup: Setup, learner: Learner, state: TrainState, rollout: RolloutBatch
) -> RolloutBatch:
  """Returns a rollout whose log-probs are the teacher's, for `losses.reverse_kl`.

  The team runs one episode for each question; all answers to it are scored in that context.

  Raises:
    ValueError: The team's task has other questions.
  """
  found = setup.teacher
  if found is None:
    return rollout
  asked = base.asked(found.task, setup.config.sft.held_back)
  terms = found.terms()
  questions = [dataclasses.replace(asked[int(i)], terms=terms) for i in rollout.drawn]
  if [q.id for q in questions] != [q.id for q in rollout.questions]:
    raise ValueError(
      f'objective.teacher={setup.config.objective.teacher!r} has other questions: take '
      'its `task` and sft.held_back.'
    )
  policy = setup.policy(
    state_lib.merge(state.reference, state.frozen),
    stream='teacher',
    step=int(state.step),
    temperature=setup.config.rollout.temperature,
  )
  own = questions[hosts.share(len(questions))]
  team = dataclasses.replace(found.team, max_episode_tokens=0)  # the last agent always writes
  talk = rollout_lib.rollout(team, found.task, setup.tokenizer, own, 1, policy)
  talk = batches.join(hosts.gather(talk), as_one=True)
  # The last prompt of the answering agent about each question.
  read = {m.episode: m.prompt_ids for m in talk.messages if m.agent == team.num_agents - 1}
  pairs = zip(rollout.messages, rollout.question.tolist(), strict=True)
  answers = [
    dataclasses.replace(m, prompt_ids=read[question], experts=None) for m, question in pairs
  ]
  scored = learner.score(PolicyParams(state.reference, state.frozen), answers)
  return dataclasses.replace(rollout, messages=tuple(map(with_logprobs, rollout.messages, scored)))
