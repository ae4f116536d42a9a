"""Turns a conversation into prompts, token by token and append-only.

An agent's prompt in a later turn is its earlier prompt, its own message as it was
sampled, and what is new. Sampled ids are never decoded and tokenized again, neither in the
author's prompts nor in a reader's. There are two exceptions: of a stop token that also contains
text (".\\n") readers receive the ids of its text, and a reader with another tokenizer encodes the
text of the message, once.

The question, notes and examples are untrusted text: special tokens in them are not parsed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from agent_gspo.models.text.chat import SLOT
from agent_gspo.models.text.tokenizer import WORD_LEVEL_SPECIAL, Tokenizer
from agent_gspo.teams.roles import Role
from agent_gspo.types import Message, Question

_LONGER = 2  # most tokens that a reader's tokenizer may need for a token of the author's


@dataclasses.dataclass(frozen=True)
class Incoming:
  """New information for an agent in a turn."""

  senders: Sequence[str] = ()  # authors of the unread messages
  left: int = 0  # remaining tokens shown by a cue, see `Team.told_left`


class PromptWriter:
  """Writes the prompts of one role with one tokenizer."""

  def __init__(self, role: Role, tokenizer: Tokenizer):
    self.role = role
    self.tokenizer = tokenizer

  @functools.cached_property
  def stop_ids(self) -> tuple[int, ...]:
    """Returns the ids that end a message: those of the model, and those of the separator."""
    ids = {*self.tokenizer.end_ids, self.end_id}
    if self.role.style == 'plain':
      # Also tokens that contain it and more, such as "\n\n" and ".\n".
      ids |= {*self.tokenizer.tokens_with(self.role.separator)}
    return tuple(sorted(ids))

  @functools.cached_property
  def silence_ids(self) -> tuple[int, ...]:
    """Returns the stop ids without a tail: a message that begins with one is silent."""
    return tuple(i for i in self.stop_ids if not self.tail(i))

  @functools.cached_property
  def end_id(self) -> int:
    """Returns the id after a message of this role in prompts: the separator or template end.

    Raises:
      ValueError: if the separator is not a single token.
    """
    if self.role.style == 'chat':
      return self.tokenizer.chat_end_id
    separator = self.encode(self.role.separator)
    if len(separator) != 1:
      raise ValueError(
        f'team.roles.{self.role.name}.separator={self.role.separator!r} is '
        f'{len(separator)} tokens; must be a single token.'
      )
    return int(separator[0])

  def tail(self, stop_id: int) -> tuple[int, ...]:
    """Returns the ids of the text before the separator in a stop token: "." of ".\\n"."""
    if self.role.style != 'plain':
      return ()
    said = self.tokenizer.tokens_with(self.role.separator).get(stop_id, '').rstrip()
    return tuple(self.tokenizer.encode(said, special=False))

  def text(self, ids: Sequence[int] | np.ndarray, ended: bool) -> str:
    """Returns the text of a sampled message, with the tail of its stop token if it `ended`."""
    tail = self.tail(int(ids[-1])) if ended else ()
    return self.tokenizer.decode([*ids[: len(ids) - int(ended)], *tail])

  def text_so_far(self, ids: np.ndarray) -> str:
    """Returns the text of a message that is being sampled; `ids` may include its stop token."""
    if ids[-1] in self.stop_ids:
      return self.text(ids, True)
    return self.tokenizer.decode_begun(ids.tolist())

  def longest_said(self, cap: int, reader: PromptWriter | None = None) -> int:
    """Returns the most tokens that a reader receives of a message of at most `cap` tokens."""
    longest = max(cap, cap - 1 + self._longest_tail)
    return longest if reader is None or reader.reads_as(self) else _LONGER * longest

  def reads_as(self, author: PromptWriter) -> bool:
    """Returns whether this role reads the author's token ids, in one vocabulary."""
    ours, theirs = self.tokenizer, author.tokenizer
    return ours is theirs or ours.fingerprint == theirs.fingerprint

  def said(self, message: Message, cap: int, reader: PromptWriter) -> np.ndarray:
    """Returns the int32 ids that a reader receives of a message of at most `cap` tokens.

    A reader with another tokenizer encodes the text, up to `longest_said` tokens; words that a
    word-level vocabulary lacks are left out.
    """
    if reader.reads_as(self):
      return message.said
    text = message.text.strip()
    if unknown := reader.tokenizer.unknown_words(text, special=False):
      text = ' '.join(word for word in text.split() if word not in unknown)
    return reader.observed_ids(text)[: self.longest_said(cap, reader)]

  @functools.cached_property
  def _longest_tail(self) -> int:
    return max(len(self.tail(stop_id)) for stop_id in self.stop_ids)

  def begin(self, question: Question, agent: int) -> Context:
    """Starts an agent's context in an episode."""
    return Context(self, self.opening(question, agent))

  def opening(self, question: Question, agent: int) -> str:
    """Returns the opening text for an agent, with question and note guarded."""
    return self.role.opening_of(question, agent, self.tokenizer.guarded)

  def texts(self, opening: str, turns: Sequence[Incoming]) -> list[str]:
    """Returns the new text of the last of `turns`, split where sampled ids are inserted.

    Args:
      opening: Text shown once, in the first turn.
      turns: New information of each turn; the agent's own message follows all but the last.

    Returns:
      The texts before, between and after the teammates' messages: one more than the last turn
      has senders.
    """
    style = self._plain if self.role.style == 'plain' else self._chat
    return style(opening, turns)

  def _frame(self, turn: Incoming) -> str:
    heard = ''.join(self.role.incoming.format(sender=s, message=SLOT) for s in turn.senders)
    return heard + self.role.cue_at(turn.left)

  def _plain(self, opening: str, turns: Sequence[Incoming]) -> list[str]:
    return (opening * (len(turns) == 1) + self._frame(turns[-1])).split(SLOT)

  def _chat(self, opening: str, turns: Sequence[Incoming]) -> list[str]:
    role, guard = self.role, self.tokenizer.guarded
    messages = [{'role': 'system', 'content': role.system}] if role.system else []
    for context, message in role.examples:
      messages.append({'role': 'user', 'content': guard(context) + role.cue})
      messages.append({'role': 'assistant', 'content': guard(message)})
    for i, turn in enumerate(turns):
      text = (opening if i == 0 else '') + self._frame(turn)
      messages.append({'role': 'user', 'content': text})
      messages.append({'role': 'assistant', 'content': SLOT})
    text = self.tokenizer.render_chat(
      messages[:-1], add_generation_prompt=True, variables=role.chat_variables
    )
    pieces = text.split(SLOT)
    return pieces[len(pieces) - len(turns[-1].senders) - 1 :]

  @property
  def preamble_texts(self) -> list[str]:
    """Returns the texts that all plain conversations begin with; none for chat templates."""
    return self.role.preamble(self.tokenizer.guarded) if self.role.style == 'plain' else []

  @functools.cached_property
  def preamble(self) -> np.ndarray:
    """Returns the int32 ids of the preamble, with BOS first if the model's texts begin with it."""
    texts = enumerate(self.preamble_texts)
    ids = np.concatenate([_ids([]), *(self.encode(text, begins=i == 0) for i, text in texts)])
    bos = _ids(self.tokenizer.begins_with)
    is_written = np.array_equal(ids[: len(bos)], bos)
    return ids if self.role.style == 'chat' or is_written else np.concatenate([bos, ids])

  def as_written(self, text: str) -> str:
    """Returns a text as it follows the cue: with a leading space in plain subword prompts.

    Also in chats, if the tokenizer puts one behind the special token that opens a message.
    """
    return f' {text}' if text and self._writes_space else text

  @functools.cached_property
  def _writes_space(self) -> bool:
    if self.role.style == 'plain':
      return not self.tokenizer.is_word_level
    marked = self.tokenizer.marked_after
    return bool(marked) and int(self.encode(self.texts('', [Incoming()])[-1])[-1]) in marked

  def written_ids(self, text: str) -> np.ndarray:
    """Returns the int32 ids of a message, without special tokens and stop token."""
    return _ids(self.tokenizer.encode(self.as_written(text), special=False))

  def observed_ids(self, text: str) -> np.ndarray:
    """Returns the int32 ids of an environment's text, which may quote what a policy wrote.

    A word-level vocabulary cannot spell the special tokens in it: they are left out.
    """
    for name in WORD_LEVEL_SPECIAL if self.tokenizer.is_word_level else ():
      text = text.replace(name, ' ')
    return self.written_ids(text)

  def encode(self, text: str, begins: bool = False) -> np.ndarray:
    """Returns the int32 ids of a text, special tokens included; `begins` if none is before it."""
    return _ids(self.tokenizer.encode(text, begins=begins))


class Context:
  """Ids that one agent has read and written so far."""

  def __init__(self, writer: PromptWriter, opening: str):
    self._writer = writer
    self._opening = opening
    self._turns: list[Incoming] = []
    self._ids: np.ndarray = writer.preamble
    self._last_id: int | None = None  # the stop token of the agent's last message

  def prompt(self, incoming: Sequence[tuple[str, ArrayLike]], left: int = 0) -> np.ndarray:
    """Returns int32 ids `[P]` of the next turn's prompt.

    Args:
      incoming: `(sender, written ids)` of unread messages, without silent ones.
      left: Remaining tokens, for a role whose cue shows them.
    """
    self._turns.append(Incoming([sender for sender, _ in incoming], left))
    texts = self._writer.texts(self._opening, self._turns)
    first, *others = map(self._writer.encode, texts)
    if len(self._turns) == 1 and not self._writer.preamble_texts:
      first = self._writer.encode(texts[0], begins=True)
    ends = self._writer.role.style == 'chat' and len(first) > 0 and first[0] == self._last_id
    if ends:
      first = first[1:]  # the agent has already sampled the template's end of message
    new = [first]
    for (_, ids), text_ids in zip(incoming, others, strict=True):
      new += [_ids(ids), text_ids]
    self._ids = np.concatenate([self._ids, *new])
    return self._ids

  def wrote(self, token_ids: ArrayLike, ended: bool) -> None:
    """Appends the agent's own message; `token_ids` include its stop token if it `ended`."""
    new = [_ids(token_ids)]
    self._last_id = int(new[0][-1]) if ended else None
    if not ended and self._writer.role.style == 'plain':
      new.append(self._writer.encode(self._writer.role.separator))
    self._ids = np.concatenate([self._ids, *new])


def _ids(values: ArrayLike) -> np.ndarray:
  return np.asarray(values, np.int32)
