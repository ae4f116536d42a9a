"""Lets agents call tools while they write (`Role.tools`).

A message is sampled up to a tool's mark, the tool's result is inserted, and the agent continues
after it. Results are not sampled: they count as read tokens, not as written ones, and the loss
masks them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from agent_gspo import plugins
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.tasks.grading import equations
from agent_gspo.teams.policies import Policy, Reply, Turn
from agent_gspo.values import is_text


@dataclasses.dataclass(frozen=True)
class Tool:
  """Function that continues a message.

  Attributes:
    mark: Text of one token, with or without a space before it, after which the tool is called.
    result: Maps the message so far, which ends with the mark, to the text to insert after it;
      None for nothing.
  """

  mark: str
  result: Callable[[str], str | None]


TOOLS = {
  'calculator': Tool('=', equations.completion),  # completes `a op b =`
}


_FIELD = 'team.roles.*.tools'


def find(name: str, field: str) -> Tool:
  """Returns the tool of a name: a key of `TOOLS`, or 'module:TOOL'.

  Raises:
    ValueError: if there is none; names `field` and the remedy.
  """
  if not plugins.is_plugin(name):
    return plugins.find(TOOLS, name, field)
  found = plugins.load(name, field)
  if not isinstance(found, Tool):
    raise ValueError(f'{field}={name!r} is a {type(found).__name__}; must be a teams.tools.Tool.')
  return found


class Toolbox:
  """Tools of one role, for messages of one tokenizer; false without tools.

  Args:
    names: Names of tools, see `find`.
    tokenizer: Tokenizer of the team.
  """

  def __init__(self, names: Sequence[str], tokenizer: Tokenizer):
    self._tools = {name: find(name, _FIELD) for name in names}
    self._tokenizer = tokenizer

  def __bool__(self) -> bool:
    return bool(self._tools)

  @functools.cached_property
  def _called_by(self) -> dict[int, list[str]]:
    """Returns the names of the tools that each token id calls.

    Raises:
      ValueError: if the vocabulary has no token for a mark.
    """
    called: dict[int, list[str]] = {}
    for name, tool in self._tools.items():
      spellings = [f'{before}{tool.mark}' for before in ('', ' ', '2 ', '2')]
      known = [text for text in spellings if not self._tokenizer.unknown_words(text)]
      last = {self._tokenizer.encode(text)[-1] for text in known}
      found = [i for i in last if self._tokenizer.decode([i]).strip() == tool.mark]
      if not found:
        raise ValueError(
          f'{_FIELD} holds {name!r}, which needs a vocabulary with a token for '
          f'{tool.mark!r}; that of the model has none. Leave the tool out.'
        )
      for i in found:
        called.setdefault(i, []).append(name)
    return called

  @functools.cached_property
  def mark_ids(self) -> tuple[int, ...]:
    """Returns the ids of tokens that call a tool."""
    return tuple(sorted(self._called_by))

  def result(self, ids: np.ndarray) -> np.ndarray:
    """Returns the int32 ids that the first tool with a result inserts after `ids` `[W]`."""
    for name in self._called_by.get(int(ids[-1]), ()) if len(ids) else ():
      value = plugins.call(
        _FIELD, name, self._tools[name].result, self._tokenizer.decode(ids.tolist())
      )
      if value is None:
        continue
      if not is_text(value):
        raise plugins.PluginError(
          f'{_FIELD}: {name!r} returned {plugins.kind_of(value)}; must return a text or None.'
        )
      text = value if self._tokenizer.is_word_level else f' {value}'
      if not self._tokenizer.unknown_words(text):
        return np.asarray(self._tokenizer.encode(text), np.int32)
    return np.zeros(0, np.int32)

  def inserted(self, ids: np.ndarray) -> np.ndarray:
    """Marks tool results in a finished message of a script; bool like `ids`."""
    found = np.zeros(len(ids), bool)
    for place in np.flatnonzero(np.isin(ids, self.mark_ids)):
      result = self.result(ids[: place + 1])
      end = place + 1 + len(result)
      if np.array_equal(ids[place + 1 : end], result):
        found[place + 1 : end] = True
    return found


def speak(policy: Policy, turns: Sequence[Turn], toolboxes: Sequence[Toolbox]) -> list[Reply]:
  """Samples a message for each turn, with results of tools inserted.

  An agent with tools stops at each mark; what follows the result is sampled with a key of its own.

  Args:
    policy: Policy that writes the messages.
    turns: Turns that are taken at once.
    toolboxes: Tools of each agent of the team.
  """
  if not any(toolboxes[turn.agent] for turn in turns):
    return policy(turns)

  def stopping_at_marks(turn: Turn) -> Turn:
    box = toolboxes[turn.agent]
    stop_ids = sorted({*turn.stop_ids, *box.mark_ids}) if box else turn.stop_ids
    return dataclasses.replace(turn, stop_ids=tuple(stop_ids))

  drafts = [Reply.given((), ended=False)] * len(turns)  # messages so far
  unfinished = {i: stopping_at_marks(turn) for i, turn in enumerate(turns)}
  while unfinished:
    replies = policy(list(unfinished.values()))
    for i, reply in zip(list(unfinished), replies, strict=True):
      turn = turns[i]
      ended = reply.ended and int(reply.token_ids[-1]) in turn.stop_ids
      draft = drafts[i] = _joined(drafts[i], reply._replace(ended=ended))
      del unfinished[i]
      if ended or not reply.ended:
        continue
      room = turn.limit - len(draft.token_ids)
      result = toolboxes[turn.agent].result(draft.token_ids)[:room]
      inserted = Reply.given(result, False, inserted=np.ones(len(result), bool))
      draft = drafts[i] = _joined(draft, inserted)
      room -= len(result)
      if room:
        unfinished[i] = dataclasses.replace(
          stopping_at_marks(turn),
          prompt_ids=np.concatenate([turn.prompt_ids, draft.token_ids]),
          limit=room,
          offset=len(draft.token_ids),
        )
  return drafts


def _joined(draft: Reply, more: Reply) -> Reply:
  """Returns an unfinished message with what follows it."""
  return Reply(
    token_ids=np.concatenate([draft.token_ids, more.token_ids]),
    logprobs=np.concatenate([draft.logprobs, more.logprobs]),
    ended=more.ended,
    inserted=np.concatenate([draft.inserted_mask, more.inserted_mask]),
  )
