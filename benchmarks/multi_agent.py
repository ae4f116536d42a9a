"""Compares a step of teams that talk much with and without shared prefixes and KV caches.

    taskset -c 0 python benchmarks/multi_agent.py

Two teams, 8 questions of 8 samples each, messages of up to 32 tokens, a decoder from scratch of 3
layers: 4 agents who all read one another for 2 rounds, and a debate of 3 agents over 3 rounds. The
naive step computes the whole row again for each token, and trains on one row per message; tokens
and log-probs must be equal. Seconds are of the third run: in the second, early turns compile for
the pool that late turns of the first have enlarged.

Caches are dropped after each message: at its next turn an agent's prompt is prefilled again.
Keeping them could save at most the share of prompt positions that the agent had read or written
before, of the seconds of calls for one token per message. Prints two markdown tables and writes
benchmarks/results/multi_agent.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.config import check as config_lib
from agent_gspo.config import default_config
from agent_gspo.ops.attention import masks
from agent_gspo.packing import prefix_tree, train_batches
from agent_gspo.sampling import categorical
from agent_gspo.sampling.sampler import Sampler, Samples
from agent_gspo.sampling.shapes import bucket
from agent_gspo.teams.policies import ModelPolicy, Policy, Reply, Turn
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import host_memory
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.policy_loss import Programs
from agent_gspo.types import Message, TrainBatch
from benchmarks import common

_RUNS = 3
_TEAMS = {
  '4 agents, complete, 2 rounds': ('complete', 4, 2),
  '3 agents, debate, 3 rounds': ('debate', 3, 3),
}


def main() -> None:
  """Runs the benchmark."""
  argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  ).parse_args()
  host_memory.keep()  # as all commands do
  rows, figures = [], {}
  for name, team in _TEAMS.items():
    found = figures[name] = _measured(setup_lib.build(config_lib.check(_config(*team))))
    for part in ('rollout', 'update', 'step'):
      ours, naive = found['shared'][part], found['naive'][part]
      rows.append(
        (
          f'{name}: {part}',
          *(f'{x["positions"]:,}' for x in (ours, naive)),
          *(f'{x["seconds"]:.2f}' for x in (ours, naive)),
          f'{naive["seconds"] / ours["seconds"]:.1f}',
        )
      )
  head = ('team', 'positions', 'naive', 'seconds', 'naive', 'times faster')
  print(common.table(head, rows))
  again = ('read again', 'positions', 'of all prompts', 'seconds at most', 'of a step')
  rows = [
    (
      name,
      f'{found["again"]["positions"]:,}',
      f'{found["again"]["share"]:.0%}',
      f'{found["again"]["seconds"]:.2f}',
      f'{found["again"]["seconds"] / found["shared"]["step"]["seconds"]:.0%}',
    )
    for name, found in figures.items()
  ]
  print('\n' + common.table(again, rows))
  worst = max(found['logprob_difference'] for found in figures.values())
  print(f'\nall tokens equal; log-probs differ by {worst:.1e} at most')
  file = common.save('multi_agent', {'machine': common.machine(), 'teams': figures})
  print(f'wrote {file.relative_to(common.ROOT)}')


def _config(topology: str, agents: int, rounds: int) -> dict[str, Any]:
  config = default_config()
  config.model.source = 'random:tiny'
  config.task.name = 'relay'
  config.task.options = {
    'num_informants': agents - 1,
    'num_irrelevant': 0,
    'text_style': 'words',
  }
  config.team.agents = ('informant',) * (agents - 1) + ('solver',)
  config.team.topology, config.team.rounds = topology, rounds
  words = {'incoming': ' {sender} : {message}', 'cue': ' say :'}
  config.team.roles.informant = {'opening': '{question} note : {note}', **words}
  config.team.roles.solver = {'opening': '{question}', **words}
  config.team.max_message_tokens = 32
  config.rollout.questions = config.rollout.group_size = 8
  config.learner.pack_length = 1024
  config.learner.minibatches = 1
  return config.to_dict()


def _measured(setup: setup_lib.Setup) -> dict[str, Any]:
  """Returns positions and seconds by part, with and without sharing and caches."""
  programs = setup_lib.make_learner(setup).programs
  policy = setup.policy(setup.params, stream='train', step=0, temperature=1.0)
  naive_policy = _NaivePolicy(setup, policy)
  talk = lambda voice: (
    rollout(setup.team, setup.task, setup.tokenizer, setup.questions[:8], 8, voice).messages
  )
  counted = _Counted(policy.sampler)
  counting = dataclasses.replace(policy, sampler=counted)
  ours, seconds = _timed(lambda: talk(counting))
  theirs, naive_seconds = _timed(lambda: talk(naive_policy))
  differences = []
  for message, other in zip(ours, theirs, strict=True):
    np.testing.assert_array_equal(message.token_ids, other.token_ids)
    differences.append(float(np.abs(message.logprobs - other.logprobs).max()))
  written = sum(len(message.token_ids) for message in ours)
  found = {
    'shared': {'rollout': {'positions': counted.positions // _RUNS + written, 'seconds': seconds}},
    'naive': {'rollout': {'positions': naive_policy.positions // _RUNS, 'seconds': naive_seconds}},
  }
  length, size = setup.config.learner.pack_length, 2
  longest = bucket(max(len(message.path) for message in ours), 32)
  batches = {
    'shared': train_batches.pack_messages(ours, pack_length=length, micro_batch_size=size),
    'naive': _row_a_message(ours, longest, micro_batch_size=length * size // longest),
  }
  advantages = np.random.default_rng(0).normal(size=len(ours)).astype(np.float32)
  of_token = {}
  for name, packed in batches.items():
    packed = train_batches.with_values(packed, advantages=advantages)
    of_token[name] = _logprobs(programs, setup, packed, len(ours))
    update = lambda packed=packed: programs.optimizer_step(
      setup_lib.init_state(setup, setup.params), packed
    )
    _, seconds = _timed(update)
    positions = sum(batch.tokens.size for batch in packed)
    found[name]['update'] = {'positions': positions, 'seconds': seconds}
    parts = found[name]['rollout'], found[name]['update']
    found[name]['step'] = {key: sum(part[key] for part in parts) for key in parts[0]}
  for one, other in zip(*of_token.values(), strict=True):
    differences.append(float(np.abs(one - other).max()))
  assert max(differences) < 1e-4, max(differences)
  again = _read_again(setup, policy, talk)
  return {**found, 'again': again, 'written': written, 'logprob_difference': max(differences)}


def _read_again(
  setup: setup_lib.Setup,
  policy: ModelPolicy,
  talk: Callable[[Policy], Sequence[Message]],
) -> dict[str, float]:
  """Returns prompt positions that their agent had read or written before, and their seconds."""
  known: dict[tuple[str, int, int], int] = {}  # tokens of each agent's conversation so far
  positions, seconds, again = 0, [], 0

  def voice(turns: Sequence[Turn]) -> list[Reply]:
    nonlocal positions, again
    who = [(turn.question.id, turn.sample, turn.agent) for turn in turns]
    prompts = [turn.prompt_ids for turn in turns]
    tree = prefix_tree.pack(prompts, policy.sampler.prompt_columns(max(map(len, prompts))))
    old = {
      (row, column)
      for row, columns, key in zip(tree.row, tree.columns, who, strict=True)
      for column in columns[: known.get(key, 0)].tolist()
    }
    one_token = [dataclasses.replace(turn, limit=1) for turn in turns]
    _, took = _timed(lambda: policy(one_token))
    positions, again = positions + tree.used, again + len(old)
    seconds.append(took * len(old) / tree.used)
    found = policy(turns)
    for key, prompt, reply in zip(who, prompts, found, strict=True):
      known[key] = len(prompt) + len(reply.token_ids)
    return found

  talk(voice)
  return {'positions': again, 'share': again / positions, 'seconds': sum(seconds)}


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
  """Returns the result and the seconds of the last of `_RUNS` calls."""
  for _ in range(_RUNS - 1):
    jax.block_until_ready(run())
  start = time.perf_counter()
  result = run()
  jax.block_until_ready(result)
  return result, time.perf_counter() - start


class _Counted:
  """Sampler that counts prefilled positions."""

  def __init__(self, sampler: Sampler):
    self.sampler, self.positions = sampler, 0

  def __call__(self, *arguments: Any, **options: Any) -> Samples:
    found = self.sampler(*arguments, **options)
    self.positions += found.prefill_positions
    return found


class _NaivePolicy:
  """Policy that samples the same tokens, computing the whole row for each of them."""

  def __init__(self, setup: setup_lib.Setup, policy: ModelPolicy):
    self.policy, self.positions = policy, 0
    model = setup.model

    @jax.jit
    def token(params, tokens, length, row_keys, t):
      ends = length + t
      positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
      mask = masks.causal(ends, tokens.shape[1])
      hidden, _ = model.apply({'params': params}, tokens, positions, mask)
      last = jnp.take_along_axis(hidden, (ends - 1)[:, None, None], axis=1)[:, 0]
      logits = model.apply({'params': params}, last, method='logits')
      at = jax.vmap(jax.random.fold_in, in_axes=(0, None))(row_keys, t)
      found, logprob = categorical.draw(logits, jax.vmap(jax.random.uniform)(at), jnp.float32(1.0))
      return tokens.at[jnp.arange(len(tokens)), ends].set(found), found, logprob

    self._token = token

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]:
    lengths = np.asarray([len(turn.prompt_ids) for turn in turns])
    limits = np.asarray([turn.limit for turn in turns])
    columns = bucket(int(lengths.max() + limits.max()), 32)
    tokens = jnp.asarray([np.pad(t.prompt_ids, (0, columns - len(t.prompt_ids))) for t in turns])
    row_keys = self.policy.row_keys(turns)
    written, logprobs = [], []
    live, count = np.ones(len(turns), bool), np.zeros(len(turns), int)
    ended = np.zeros(len(turns), bool)
    while live.any():
      arguments = (tokens, lengths, row_keys, len(written))
      tokens, new, logprob = self._token(self.policy.params, *arguments)
      self.positions += tokens.size
      written.append(np.asarray(new))
      logprobs.append(np.asarray(logprob))
      count += live
      stopped = np.asarray([n in t.stop_ids for n, t in zip(written[-1], turns, strict=True)])
      ended |= live & stopped
      live &= ~stopped & (count < limits)
    cut = lambda of: [np.stack(of, axis=1)[i, :n] for i, n in enumerate(count)]
    columns = cut(written), cut(logprobs), ended.tolist()
    return [Reply(*row) for row in zip(*columns, strict=True)]


def _row_a_message(
  messages: Sequence[Message], length: int, micro_batch_size: int
) -> list[TrainBatch]:
  """Returns micro-batches with one message per row."""
  pack = lambda m: train_batches.pack_messages([m], pack_length=length, micro_batch_size=1)[0]
  rows = [
    dataclasses.replace(pack(message), message=np.full((1, length), i, np.int32))
    for i, message in enumerate(messages)
  ]
  rows += [
    dataclasses.replace(
      rows[-1], loss_mask=0 * rows[-1].loss_mask, message_mask=0 * rows[-1].message_mask
    )
  ] * (-len(rows) % micro_batch_size)
  join = lambda *of: np.concatenate(of)
  return [
    jax.tree.map(join, *rows[i : i + micro_batch_size])
    for i in range(0, len(rows), micro_batch_size)
  ]


def _logprobs(
  programs: Programs, setup: setup_lib.Setup, batches: Sequence[TrainBatch], messages: int
) -> list[np.ndarray]:
  """Returns the trainer's log-probs of each message's tokens."""
  state = setup_lib.init_state(setup, setup.params)
  found: list[np.ndarray] = [np.zeros(0)] * messages
  for batch, logprobs in zip(batches, programs.logprobs(state, batches), strict=True):
    for row, slot in np.argwhere(batch.message_mask > 0):
      own = (batch.loss_message[row] == slot) & (batch.loss_mask[row] > 0)
      found[batch.message[row, slot]] = logprobs[row][own]
  return found


if __name__ == '__main__':
  main()
