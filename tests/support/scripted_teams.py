"""Builds teams, tokenizers and policies for tests in which every token is known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
import tokenizers

from agent_gspo.models.presets import PRESETS
from agent_gspo.models.text.tokenizer import Tokenizer, word_level
from agent_gspo.models.transformer import init_params
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.tasks.base import Task
from agent_gspo.teams.policies import ModelPolicy, Policy, Reply, Turn
from agent_gspo.teams.team import Team, make_team
from agent_gspo.types import Question, RolloutBatch

# As SmolLM2's: every message is closed by the token that ends a message.
CHATML = (
  "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
  "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
  "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TOPOLOGIES = {
  'single': {'num_agents': 1},
  'chain': {'num_agents': 3},
  'star': {'num_agents': 3},
  'complete': {'num_agents': 3},
  'debate': {'num_agents': 3},
  'layered': {'num_agents': 4, 'layers': (1, 2, 1)},
  'dag': {'num_agents': 4, 'edges': ((0, 2), (1, 2), (0, 3))},
}
"""Arguments of every topology."""


def byte_tokenizer() -> Tokenizer:
  """Returns a tokenizer of bytes and one merge, "ab": ids of "a", "b" and of "ab" decode alike."""
  alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  vocab = {token: i for i, token in enumerate([*alphabet, 'ab'])}
  backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[('a', 'b')]))
  backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = tokenizers.decoders.ByteLevel()
  backend.add_special_tokens(
    [tokenizers.AddedToken(t, special=True) for t in ('<|im_start|>', '<|im_end|>')]
  )
  return Tokenizer(backend, eos_token='<|im_end|>', chat_template=CHATML)


def numbers_tokenizer(count: int) -> Tokenizer:
  """Returns a tokenizer of the words in prompts of `team`, and `count` numbers."""
  words = ['Q', 'note', ':', 'from', 'say', *(f'agent{i}' for i in range(1, 9)), 'agent', 'judge']
  return word_level([*words, *map(str, range(count))])


def team(
  topology: str,
  *,
  style: str = 'plain',
  rounds: int = 1,
  decision: str = 'last',
  max_message_tokens: int = 6,
  max_episode_tokens: int = 0,
  addressing: bool = False,
  **role,
) -> Team:
  """Returns a team of agents of one role in one of `TOPOLOGIES`."""
  arguments = {'edges': (), 'layers': (), **TOPOLOGIES[topology]}
  role = {
    'style': style,
    'opening': 'Q {question} note {note}\n',
    'incoming': 'from {sender} : {message}\n',
    'cue': 'say :',
    **role,
  }
  return make_team(
    {
      'agents': ('agent',) * arguments['num_agents'],
      'roles': {'agent': role, 'judge': role},
      'topology': topology,
      'rounds': rounds,
      'edges': arguments['edges'],
      'layers': arguments['layers'],
      'decision': decision,
      'max_message_tokens': max_message_tokens,
      'max_episode_tokens': max_episode_tokens,
      'addressing': addressing,
    }
  )


def questions(count: int, notes: int = 0) -> list[Question]:
  """Returns questions "0", "1", ...; `notes` agents have notes, every second one relevant."""
  return [
    Question(
      id=f'q{i}',
      text=str(i),
      answer=str(i),
      notes=('7',) * notes,
      relevant=tuple(a % 2 == 0 for a in range(notes)),
    )
    for i in range(count)
  ]


@functools.cache
def model_policy() -> tuple[ModelPolicy, Tokenizer]:
  """Returns a random model for teams of `numbers_tokenizer`; few shapes compile fast."""
  tokenizer = numbers_tokenizer(20)
  config = PRESETS['micro'].replace(vocab_size=tokenizer.vocab_size, num_layers=1)
  sampler = Sampler(config, max_new_tokens=6, prefill_length=768, prefill_rows=4, smallest_batch=96)
  params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
  return ModelPolicy(sampler, params, keys.stream(0, 'train'), step=3, temperature=1.0), tokenizer


class Echo(Task):
  """Grades an answer as right if its last word is the gold answer."""

  name = 'echo'

  def _split(self, split):
    return questions(4)

  def score(self, question, answer_text):
    return float(answer_text.split()[-1:] == [question.answer])


class IdsPolicy:
  """Returns the ids of a function as samples, and records turns and batch sizes.

  `ids(turn)` returns `(token ids with the stop token, ended)`.
  """

  def __init__(self, ids: Callable[[Turn], tuple[Sequence[int], bool]]):
    self._ids = ids
    self.turns: list[Turn] = []
    self.calls: list[int] = []

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]:
    self.turns += turns
    self.calls.append(len(turns))
    sampled = [self._ids(turn) for turn in turns]
    return [Reply.given(ids, ended) for ids, ended in sampled]


def told(policy: Policy, hear: Callable[[Turn, np.ndarray], None]) -> Policy:
  """Returns a policy that reports its messages to `hear` token by token, in step within a layer."""

  def write(turns: Sequence[Turn]) -> list[Reply]:
    replies = policy(turns)
    for end in range(1, max(len(reply.token_ids) for reply in replies) + 1):
      for turn, reply in zip(turns, replies, strict=True):
        hear(turn, reply.token_ids[:end])
    return replies

  return write


def carried(batch: RolloutBatch, index: int) -> int:
  """Counts later prompts that contain the ids of a message, which must occur nowhere else."""
  message = batch.messages[index]
  written = message.token_ids[: message.length].tolist()
  if not written:
    return 0
  return sum(
    holds(later.prompt_ids.tolist(), written)
    for later in batch.messages[index + 1 :]
    if later.episode == message.episode
  )


def holds(sequence: Sequence[int], part: Sequence[int]) -> bool:
  """Returns whether `part` is a contiguous part of `sequence`."""
  return any(sequence[i : i + len(part)] == part for i in range(len(sequence) - len(part) + 1))
