"""Exchanges episodes between runs that train side by side (SAPO, arXiv 2509.08721).

Each node writes the texts of its newest groups into a shared folder, and learns from groups of the
others as if its own policy had written them: messages are encoded by its own tokenizer in its own
prompts, graded by its own task, and their old log-probs are those of its current weights, so that
ratios start at 1. A node takes groups whose task scores differ, drawn from each other node's newest
step. So nodes may have other models; what they draw depends on their speed. `config.seed` names a
node.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo import streams
from agent_gspo.algorithms import selection as selection_lib
from agent_gspo.rewards.scores import scored
from agent_gspo.teams import batches
from agent_gspo.teams import rollout as rollout_lib
from agent_gspo.teams.policies import Reply, Turn
from agent_gspo.training import state as state_lib
from agent_gspo.training.answer_values import with_logprobs
from agent_gspo.training.learner import Learner
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import Question, RolloutBatch
from agent_gspo.workdir import disk, json_lines


def open_folder(folder: str) -> None:
  """Makes the folder of `rollout.share`, if it is set.

  Raises:
    ValueError: It cannot be made, or is an address.
  """
  if not folder:
    return
  path = disk.folder(folder, 'rollout.share')
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise ValueError(
      f"rollout.share={folder!r} must be a folder to write to ({error}). Set another one, or ''."
    ) from error


def extended(
  setup: Setup, learner: Learner, state: TrainState, rollout: RolloutBatch
) -> tuple[RolloutBatch, dict[str, float]]:
  """Publishes a rollout and appends groups of other nodes.

  Messages of other nodes are treated as sampled with the weights of `state`.

  Returns:
    The rollout with at most `rollout.shared` more questions; and metrics: the groups found, refused
    (another question, turn or vocabulary) and added.
  """
  config, step = setup.config, int(state.step)
  if not config.rollout.share:
    return rollout, {}
  folder = disk.folder(config.rollout.share)
  json_lines.replace(folder / f'{config.seed}.jsonl', _lines(setup, rollout))
  others = sorted(path for path in folder.glob('*.jsonl') if path.stem != str(config.seed))
  found = [group for path in others for group in json_lines.iterate(path)]
  order = streams.generator(config.seed, streams.SHARED_EPISODES, step).permutation(len(found))
  added: list[RolloutBatch] = []
  refused = 0
  for i in order:
    if len(added) == config.rollout.shared:
      break
    group = _encoded(setup, found[i])
    if group is None:
      refused += 1
    elif selection_lib.informative(group.task_scores, group.episode_question, 1).all():
      added.append(group)
  metrics = {
    'share/found': float(len(found)),
    'share/refused': float(refused),
    'share/groups': float(len(added)),
  }
  if not added:
    return rollout, metrics
  joined = batches.join(added)
  messages = list(joined.messages)
  own = [i for i, message in enumerate(messages) if message.learns]
  logprobs = learner.score_authors(
    functools.partial(state_lib.of_model, state), [messages[i] for i in own]
  )
  for i, values in zip(own, logprobs, strict=True):
    messages[i] = dataclasses.replace(with_logprobs(messages[i], values), version=step)
  joined = dataclasses.replace(joined, messages=tuple(messages))
  return batches.join([rollout, joined]), metrics


def _lines(setup: Setup, rollout: RolloutBatch) -> Iterator[bytes]:
  """Yields one JSON line for each question: its episodes, each a list of messages."""
  episodes = collections.defaultdict[int, list[list[Any]]](list)
  for m in rollout.messages:
    eos = setup.tokenizers[m.agent].eos_id
    end = ('eos' if m.token_ids[-1] == eos else 'stop') if m.ended else ''
    episodes[m.episode].append([m.agent, m.round, m.text, end])
  for number, question in enumerate(rollout.questions):
    own = np.flatnonzero(rollout.episode_question == number).tolist()
    record = {
      'question': int(rollout.drawn[number]),
      'digest': _digest(question),
      'episodes': [episodes[e] for e in own],
    }
    yield json.dumps(record).encode() + b'\n'


def _digest(question: Question) -> str:
  """Hashes a question, to detect another one at the same index in another node's task."""
  return hashlib.sha256(repr((question.id, question.text, question.notes)).encode()).hexdigest()


def _encoded(setup: Setup, record: Mapping[str, Any]) -> RolloutBatch | None:
  """Returns a group of another node as messages of this team, None if that is impossible."""
  try:
    place, said = int(record['question']), _Said(setup, record['episodes'])
  except (KeyError, OverflowError, TypeError, ValueError):  # no record of a node
    return None
  if not 0 <= place < len(setup.questions) or not said.episodes:
    return None
  question = setup.questions[place]
  if _digest(question) != record.get('digest'):
    return None
  group = rollout_lib.rollout(
    setup.team, setup.task, setup.tokenizer, [question], said.episodes, said
  )
  if said.failed or said.taken < len(said.texts):
    return None
  group = scored(setup.config.reward, group, setup.task.canonical)
  return dataclasses.replace(group, drawn=np.asarray([place]))


class _Said:
  """Policy that repeats the messages of recorded episodes.

  Attributes:
    texts: Text of each message, and what ended it ('' for its cap), by episode, agent and round.
    episodes: Number of episodes.
    taken: Messages repeated so far.
    failed: Whether a turn had no message, or one that the vocabulary cannot write.
  """

  def __init__(self, setup: Setup, episodes: Sequence[Sequence[Any]]):
    self.texts = {
      (sample, int(agent), int(round_)): (str(text), str(end))
      for sample, messages in enumerate(episodes)
      for agent, round_, text, end in messages
    }
    self.episodes, self.taken, self.failed = len(episodes), 0, False
    self._tokenizers = setup.tokenizers  # of each agent

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]:
    return [self._reply(turn) for turn in turns]

  def _reply(self, turn: Turn) -> Reply:
    text, end = self.texts.get((turn.sample, turn.agent, turn.round), (None, 'stop'))
    tokenizer = self._tokenizers[turn.agent]
    try:
      ids = tokenizer.encode(text, special=False) if text else []
    except ValueError:  # a word that the vocabulary does not have
      text, ids = None, []
    self.taken, self.failed = self.taken + 1, self.failed or text is None
    ids += [tokenizer.eos_id if end == 'eos' else turn.end_id] if end else []
    # Another node may have another cap, or a vocabulary of longer pieces.
    return Reply.given(ids[: turn.limit], bool(end) and len(ids) <= turn.limit)
