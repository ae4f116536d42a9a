"""Counts tokens as related projects do, in the plain text without a template.

AgentPrune and AgentDropout tokenize the contents of the messages of a prompt and its reply,
without the chat template around them. Such a count is lower than what the model reads; it is
reported in addition to the true one, for comparison with their tables.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable

from agent_gspo.models.text.chat import SLOT
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.teams.conversation import ENVIRONMENT
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.roles import Role
from agent_gspo.teams.team import Team
from agent_gspo.types import Message, RolloutBatch


def count(team: Team, tokenizer: Tokenizer, batch: RolloutBatch) -> list[tuple[int, int]]:
  """Returns `(read, written)` of each message `[M]`, in tokens of plain text.

  `read` sums over the contents of the prompt: system prompt, examples, each turn's text,
  teammates' messages, the author's own earlier ones, results of its tools. Each is tokenized
  separately, so counts can differ from those of the joined text by a token per seam. BOS and EOS
  are not counted.
  Messages of a word-level tokenizer count as sampled: pieces in an order that spells no word
  ('door', '##shells') cannot be tokenized again.
  """
  writers = team.prompt_writers(tokenizer)
  sizes = {writer.role: (writer.tokenizer.guarded, _size(writer.tokenizer)) for writer in writers}

  def heard_by(reader: PromptWriter, said: Message, tokens: int) -> int:
    author, cap = writers[said.agent], team.message_cap(said.agent)
    return tokens if reader.reads_as(author) else len(author.said(said, cap, reader))

  carried: dict[tuple[int, int], int] = {}  # (episode, agent) -> tokens of its prompt so far
  spoken: dict[tuple[int, int, int], tuple[Message, int]] = {}  # (episode, agent, round)
  spent, content = collections.Counter[int](), collections.Counter[int]()  # by episode
  counts = []
  for _, layer in itertools.groupby(batch.messages, lambda m: (m.round, m.layer)):
    simultaneous = list(layer)
    for message in simultaneous:
      key, role = (message.episode, message.agent), team.roles[message.agent]
      own, guard, size = writers[message.agent], *sizes[role]
      heard = [spoken[key[0], author, round_] for author, round_ in message.read_from]
      incoming = [
        (team.names[said.agent], heard_by(own, said, tokens))
        for said, tokens in heard
        if said.reaches(key[1])
      ]
      incoming += [(ENVIRONMENT, size(guard(text))) for text in message.told]
      frame = ''.join(role.incoming.format(sender=sender, message=SLOT) for sender, _ in incoming)
      question = batch.questions[batch.episode_question[key[0]]]
      if key not in carried:
        frame = role.opening_of(question, key[1], guard) + frame
        carried[key] = sum(map(size, _preamble(role, guard)))
      cue = role.cue_at(team.told_left(question.terms, spent[key[0]], content[key[0]]))
      carried[key] += sum(map(size, (frame + cue).split(SLOT)))
      carried[key] += sum(tokens for _, tokens in incoming)
      inserted, words = message.tool_tokens, own.tokenizer.is_word_level
      said = message.written + inserted if words else size(guard(message.text))
      muted = message.usage == (0, 0)
      counts.append((0, 0) if muted else (carried[key] + inserted, said - inserted))
      carried[key] += said
      spoken[(*key, message.round)] = message, said
    for message in simultaneous:
      spent[message.episode] += message.spent
      content[message.episode] += message.written
  return counts


def _size(tokenizer: Tokenizer) -> Callable[[str], int]:
  return functools.lru_cache(maxsize=65536)(lambda text: len(tokenizer.encode(text)))


def _preamble(role: Role, guard: Callable[[str], str]) -> list[str]:
  """Returns the contents that begin every prompt of a role."""
  if role.style == 'plain':
    return role.preamble(guard)
  pairs = [(guard(context) + role.cue, guard(said)) for context, said in role.examples]
  return [role.system, *itertools.chain(*pairs)]
