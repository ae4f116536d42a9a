"""Measures the effect of messages: mutes agents; blanks, shuffles, falsifies or empties messages.

Each probe wraps the team's policy; agents that it does not change draw the same noise as in the
team. Messages are changed as a whole, with the results of their tools.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.evaluation import results, statistics, variants
from agent_gspo.evaluation.harness import Harness, Probe
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.tasks.base import Task
from agent_gspo.teams import tools
from agent_gspo.teams.policies import Policy, Reply, Turn, muted
from agent_gspo.teams.rollout import rollout, without_hints
from agent_gspo.teams.team import Team
from agent_gspo.types import Question


def shuffled(
  policy: Policy,
  partners: Mapping[str, Question],
  team: Team,
  task: Task,
  tokenizer: Tokenizer,
  samples: int = 1,
) -> Policy:
  """Returns a policy that delivers messages about partner questions; answers are unchanged.

  The message of a turn is the one that the same agent wrote in the same round about the partner, in
  an unchanged episode: it has no information on the question. An author's own later prompts contain
  the delivered message.

  Args:
    policy: Policy of the team.
    partners: Partner by question id, dealt to the team; its episodes are sampled from `policy`.
    team: Team, which determines the turns that are answers.
    task: Task of the questions.
    tokenizer: Tokenizer of the policy.
    samples: Episodes per question.
  """
  stop_ids = [own.eos_id for own in team.tokenizers_of_agents(tokenizer)]
  begun, said = set[str](), dict[tuple[str, int, int, int], Reply]()

  def listen(asked: Sequence[str]) -> None:
    """Samples the episodes about the partners of some questions."""
    begun.update(asked)
    others = [partners[question] for question in asked]
    voice = without_hints(policy, team, tokenizer)
    batch = rollout(team, task, tokenizer, others, samples, voice)
    for m in batch.messages:
      place = asked[m.episode // samples], m.episode % samples, m.agent, m.round
      said[place] = Reply(m.token_ids, m.logprobs, m.ended, m.inserted, m.usage)

  def speak(turns: Sequence[Turn]) -> list[Reply]:
    if new := list(dict.fromkeys(t.question.id for t in turns if t.question.id not in begun)):
      listen(new)
    replies = [*policy(turns)]
    for i, turn in enumerate(turns):
      if not _answers(team, turn.round, turn.agent):
        # Silence if the partner's episode has reached its token cap.
        silence = Reply.silence(stop_ids[turn.agent])
        other = said.pop((turn.question.id, turn.sample, turn.agent, turn.round), silence)
        replies[i] = _delivered(other, turn, replies[i])
    return replies

  return speak


def reworded(policy: Policy, change: Callable[[Turn, np.ndarray], Sequence[int] | None]) -> Policy:
  """Returns a policy that replaces the tokens of some messages, also for their authors.

  Args:
    policy: Policy of the team.
    change: Maps a turn and the tokens of its message, int32 `[W]` without the stop token, to those
      delivered; None for its own.
  """

  def speak(turns: Sequence[Turn]) -> list[Reply]:
    replies = [*policy(turns)]
    for i, (turn, own) in enumerate(zip(turns, replies, strict=True)):
      said, stop = np.split(own.token_ids, [len(own.token_ids) - own.ended])
      other = change(turn, said)
      if other is not None:
        mask = own.inserted if len(other) == len(said) else None
        reply = Reply.given([*other, *stop], own.ended, usage=own.usage, inserted=mask)
        replies[i] = _delivered(reply, turn, own)
    return replies

  return speak


def falsified(team: Team, tokenizer: Tokenizer, ids: np.ndarray) -> list[int] | None:
  """Returns a message whose first number is wrong by one; None if there is no such message.

  Args:
    team: Team, which determines where the text after the addressees begins.
    tokenizer: Tokenizer of the message; the wrong number must be in its vocabulary.
    ids: Message, int32 `[W]`.
  """
  text = tokenizer.decode(ids.tolist())
  number = re.compile('[0-9]+').search(text, len(text) - len(team.body(text)))
  if number is None:
    return None
  right = int(number[0])
  wrong = [str(n) for n in (right + 1, right - 1) if n >= 0]
  texts = [f'{text[: number.start()]}{n}{text[number.end() :]}' for n in wrong]
  return next((tokenizer.encode(t) for t in texts if not tokenizer.unknown_words(t)), None)


def emptied(team: Team, tokenizer: Tokenizer, ids: np.ndarray) -> list[int]:
  """Returns a message to the same addressees, of as many tokens, all of them full stops."""
  text = tokenizer.decode(ids.tolist())
  kept = tokenizer.encode(text[: len(text) - len(team.body(text))].rstrip())
  return [*kept, *tokenizer.encode('.')[-1:] * (len(ids) - len(kept))]


def check(team: Team, task: Task, split: str) -> None:
  """Checks that a team can be probed on a split, without sampling.

  Raises:
    ValueError: The team has no edges, or the split has no second question to shuffle with.
  """
  if not variants.edges(team):
    raise ValueError('no agent of this team reads another; give it edges (config.team.topology).')
  if read_turns(team, task) and len(task.questions(split)) < 2:
    raise ValueError(
      f'split {split!r} has one question; messages are shuffled between two, so take another split.'
    )


def run_all(
  harness: Harness, whole: Mapping[str, Any], records: Sequence[results.Record]
) -> list[dict[str, Any]]:
  """Runs every probe: agents muted in turn; messages blanked, shuffled, emptied; errors planted.

  The team must pass `check`; `whole` and `records` are its figures and records, one per episode.

  Returns:
    `value` of each agent, `loss` of the other probes, and `spread` of each planted error. Without
    `read_turns`, only agents are muted and messages blanked.
  """
  team = harness.team
  rows, same = [], variants.itself(team)
  tokenizers = team.tokenizers_of_agents(harness.tokenizer)
  stop_ids = [tokenizer.eos_id for tokenizer in tokenizers]

  def paired(name: str, variant: variants.Variant = same, probe: Probe | None = None):
    figures, probed = harness.run(name, variant, probe=probe)
    failed = {'failed': figures['failed']} if 'failed' in figures else {}
    pairs = results.paired(records, probed)
    return loss(name, *pairs) | failed, pairs

  lost = lambda *args, **fields: paired(*args, **fields)[0]
  toolboxes = team.toolboxes(harness.tokenizer)  # called by the policy, so that messages are whole
  roles = tuple(dataclasses.replace(role, tools=()) for role in team.roles)
  bare = variants.itself(dataclasses.replace(team, roles=roles))

  def changed(label: str, change: Callable[[Policy], Policy], name: str = '', **fields: Any):
    wrap = lambda policy: change(functools.partial(tools.speak, policy, toolboxes=toolboxes))
    return paired(label, bare, Probe(name or label, wrap, **fields))

  for i, agent in enumerate(whole['agents']):
    name = f'muted: {agent["name"]}'
    probe = Probe(name, functools.partial(muted, agents=(i,), stop_ids=stop_ids))
    rows.append(value(lost(name, probe=probe), agent))
  blanked = dataclasses.replace(team, blanked=True)
  rows.append(lost('messages blanked', variant=variants.itself(blanked)))
  read = sorted(read_turns(team, harness.task))
  if read:
    partners = harness.partners()
    shuffle = functools.partial(
      shuffled,
      partners={question: bare.question(other) for question, other in partners.items()},
      team=bare.team,
      task=harness.task,
      tokenizer=harness.tokenizer,
      samples=harness.options.samples,
    )
    label, name = 'messages shuffled', 'messages of partners'  # the label may have other answers
    rows.append(changed(label, shuffle, name, partners=partners)[0])
  if read and not any(tokenizer.unknown_words('.') for tokenizer in tokenizers):
    empty = lambda turn, ids: (
      emptied(team, tokenizers[turn.agent], ids) if (turn.round, turn.agent) in read else None
    )
    rows.append(changed('messages emptied', functools.partial(reworded, change=empty))[0])
  for place in read:
    wrong = lambda turn, ids, place=place: (
      falsified(team, tokenizers[turn.agent], ids) if (turn.round, turn.agent) == place else None
    )
    round_, agent = place[0], team.names[place[1]]
    name = f'wrong number: {agent}' + f', round {round_ + 1}' * (team.topology.rounds > 1)
    row, (ours, probed) = changed(name, functools.partial(reworded, change=wrong))
    rows.append(row | spread(ours, probed, agent, round_, harness.task.canonical))
  return rows


def read_turns(team: Team, task: Task) -> set[tuple[int, int]]:
  """Returns `(round, author)` of each turn that a teammate reads and that is not an answer.

  Empty for tasks with their own episodes, where every message may be an action.
  """
  if task.converse:
    return set()
  return {
    (author_round, author)
    for round_, _, layer in team.turns
    for agent in layer
    for author, author_round in team.topology.reads(agent, round_)
    if not _answers(team, author_round, author)
  }


def _answers(team: Team, round_: int, agent: int) -> bool:
  """Returns whether the message of an agent in a round is an answer."""
  last = round_ == team.topology.rounds - 1
  return last and (team.decision == 'majority' or agent == team.num_agents - 1)


def spread(
  whole: Sequence[results.Record],
  probed: Sequence[results.Record],
  agent: str,
  round_: int,
  canonical: Callable[[str], str | None],
) -> dict[str, float | None]:
  """Returns the share of episodes with an error planted in a turn, and of changed answers of these.

  `probed` has the episodes of `whole` with the error; `canonical` is `Task.canonical`.
  """

  def text(record: results.Record) -> str | None:
    turn = (m['text'] for m in record['messages'] if (m['agent'], m['round']) == (agent, round_))
    return next(turn, None)

  pairs = [pair for pair in zip(whole, probed, strict=True) if text(pair[0]) != text(pair[1])]
  changed = [canonical(a['answer']) != canonical(b['answer']) for a, b in pairs]
  return {
    'planted': len(pairs) / len(whole),
    'answers_changed': float(np.mean(changed)) if changed else None,
  }


def loss(
  name: str, whole: Sequence[results.Record], probed: Sequence[results.Record]
) -> dict[str, Any]:
  """Returns the accuracy lost under a probe: whole team minus probed team, paired.

  Records are one per episode, in the same order; samples of a question are averaged.
  """
  score = lambda records: results.by_question(records, [r['task_score'] for r in records])
  mean, low, high = statistics.paired_bootstrap(score(whole), score(probed))
  return {
    'probe': name,
    'task/accuracy': float(np.mean(score(probed))),
    'task/accuracy_lost': mean,
    'task/accuracy_lost_low': low,
    'task/accuracy_lost_high': high,
    'tokens/written_per_question': float(results.per_question(probed, 'written').mean()),
  }


def value(lost: Mapping[str, Any], agent: Mapping[str, Any]) -> dict[str, Any]:
  """Adds an agent's value to the loss of muting it: accuracy points per 100 tokens written.

  Args:
    lost: Loss of muting the agent, see `loss`.
    agent: The agent's row in the figures of the whole team.

  Returns:
    The loss with the agent's tokens, `points_per_100_tokens` (None if it writes nothing)
    and its silence rates: overall, and with a relevant or an irrelevant note.
  """
  tokens = agent['written_per_question']
  points = 100 * lost['task/accuracy_lost']
  kept = ('silence_rate', 'silence_rate_relevant', 'silence_rate_irrelevant')
  return {
    **lost,
    'agent': agent['name'],
    'agent_written_per_question': tokens,
    'points_per_100_tokens': 100 * points / tokens if tokens else None,
    **{key: agent[key] for key in kept},
  }


def _delivered(reply: Reply, turn: Turn, own: Reply) -> Reply:
  """Returns a reply within the limit of a turn, in place of its `own` one."""
  ids, limit = reply.token_ids, turn.limit
  written = reply.usage[1] if reply.usage else len(ids)
  if min(written, len(ids)) > limit:
    cut = (reply.logprobs[:limit], False, reply.inserted_mask[:limit])
    reply, written = Reply(ids[:limit], *cut, usage=reply.usage), limit
  # Tokens read are those of the turn's own prompt, whichever message is delivered.
  usage = (own.usage[0], written) if own.usage and reply.usage else None
  return reply._replace(usage=usage)
