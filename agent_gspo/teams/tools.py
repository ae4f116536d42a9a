"""Lets agents call tools while they write (`Role.tools`).

A message is sampled up to a tool's mark, the tool's result is inserted, and the agent continues
after it. Results are not sampled: they count as read tokens, not as written ones, and the loss
masks them. A failed call also has a result, such as `error: timeout`.

    3 + 4 = 7                                      calculator
    ```python print(3 ** 4)``` 81                  python
    search capital of France ? Paris is in ...     retriever

To add a tool, write its function and a line in `TOOLS`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Sequence
from concurrent import futures

import numpy as np

from agent_gspo import plugins, sandbox
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.tasks.grading import equations
from agent_gspo.teams.policies import Policy, Reply, Turn
from agent_gspo.types import Question
from agent_gspo.values import is_text, shown

_PYTHON_LIMITS = sandbox.Limits(cpu_seconds=2, output_bytes=1 << 14)
_TIMES = ('wall time', 'idle', 'cpu time')  # limits of `sandbox.Outcome.stopped`
_PYTHON_WORDS = (
  '``` python print ( ) + - * error: nothing printed timeout SyntaxError: NameError: TypeError: '
  'ValueError: ZeroDivisionError: unreadable'
)
_SEARCH_WORDS = 'search ? error: nothing found'
_UNREADABLE = 'error: unreadable'  # result that the vocabulary cannot write


@dataclasses.dataclass(frozen=True)
class Tool:
  """Function that continues a message.

  Attributes:
    mark: Text of one token, with or without a space before it, after which the tool is called.
    result: Maps the message so far, which ends with the mark, and the question to the text to
      insert after it; None if the message does not call the tool.
    words: Words of calls and results that a vocabulary from scratch gets.
    check: Called before a run; raises if the tool cannot be used on this machine.
  """

  mark: str
  result: Callable[[str, Question], str | None]
  words: tuple[str, ...] = ()
  check: Callable[[], object] = lambda: None


def _calculator(message: str, question: Question) -> str | None:
  """Completes `a op b =`."""
  del question
  return equations.completion(message)


def _python(message: str, question: Question) -> str | None:
  """Returns what the code between ` ```python` and ` ``` ` at the end of a message prints."""
  del question
  call = re.fullmatch(r'.*```\s*python\b(.*)```\s*', message, re.DOTALL)
  return None if call is None or '```' in call[1] else _printed(call[1].strip())


@functools.lru_cache(maxsize=4096)  # samples of a group often write the same code
def _printed(program: str) -> str:
  """Runs a program in the sandbox; returns what it printed, or its error."""
  outcome = sandbox.run(program, _PYTHON_LIMITS)
  if outcome.stopped:
    return f'error: {"timeout" if outcome.stopped in _TIMES else outcome.stopped}'
  if outcome.returncode:
    last = outcome.stderr.rstrip().rpartition('\n')[2]
    return f'error: {last or f"exit status {outcome.returncode}"}'
  return outcome.stdout if outcome.stdout.strip() else 'error: nothing printed'


def _retriever(message: str, question: Question) -> str | None:
  """Returns the question's document that fits best the words between `search` and `?`."""
  call = re.search(r'\bsearch\b([^?]*)\?\s*$', message)
  if call is None:
    return None
  documents = question.documents or question.notes
  scores = _bm25(call[1], documents)
  best = max(range(len(documents)), key=scores.__getitem__, default=None)
  return documents[best] if best is not None and scores[best] > 0 else 'error: nothing found'


def _bm25(query: str, documents: Sequence[str]) -> list[float]:
  """Returns the Okapi BM25 score of each document, with the usual parameters."""
  k1, b = 1.5, 0.75
  words = lambda text: re.findall(r'\w+', text.lower())
  texts = [words(document) for document in documents]
  mean_length = sum(map(len, texts)) / max(len(texts), 1) or 1.0
  scores = [0.0] * len(texts)
  for word in words(query):
    holders = sum(word in text for text in texts)
    idf = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
    for i, text in enumerate(texts):
      count = text.count(word)
      scores[i] += idf * count * (k1 + 1) / (count + k1 * (1 - b + b * len(text) / mean_length))
  return scores


TOOLS = {
  'calculator': Tool('=', _calculator),
  'python': Tool('```', _python, tuple(_PYTHON_WORDS.split()), sandbox.mechanisms),
  'retriever': Tool('?', _retriever, tuple(_SEARCH_WORDS.split())),
}


_FIELD = 'team.roles.*.tools'


def find(name: str, field: str) -> Tool:
  """Returns the tool of a name: a key of `TOOLS`, or 'module:TOOL'.

  Raises:
    ValueError: if there is none, or one of its fields has another type; names `field` and the
      remedy.
  """
  if not plugins.is_plugin(name):
    return plugins.find(TOOLS, name, field)
  found = plugins.load(name, field)
  if not isinstance(found, Tool):
    raise ValueError(f'{field}={name!r} is a {type(found).__name__}; must be a teams.tools.Tool.')
  texts = lambda value: isinstance(value, list | tuple) and all(map(is_text, value))
  for part, fits, must in (
    ('mark', lambda value: is_text(value) and value.strip(), 'a text that is not blank'),
    ('result', callable, 'a function'),
    ('words', texts, 'a tuple of texts'),
    ('check', callable, 'a function'),
  ):
    if not fits(value := getattr(found, part)):
      raise ValueError(f'{field}={name!r}: {part} is {shown(value)}; must be {must}.')
  if len(plugins.call(field, name, plugins.inputs_of, found.result)) != 2:
    raise ValueError(f'{field}={name!r}: result must take two arguments, message and question.')
  return found


class Toolbox:
  """Tools of one role, for messages of one tokenizer; false without tools.

  Args:
    names: Names of tools, see `find`.
    tokenizer: Tokenizer of the team.
    calls: Most calls per message, 0 for no limit.
    tokens: Most tokens of a result; the rest is cut off.
  """

  def __init__(self, names: Sequence[str], tokenizer: Tokenizer, calls: int = 0, tokens: int = 64):
    self._tools = {name: find(name, _FIELD) for name in names}
    self._tokenizer = tokenizer
    self._calls, self._tokens = calls or math.inf, tokens

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

  def check(self) -> None:
    """Checks that the tools can be called, see `_called_by` and `Tool.check`."""
    _ = self._called_by
    for name, tool in self._tools.items():
      plugins.call(_FIELD, name, tool.check)

  def mark_ids(self, calls: int = 0) -> tuple[int, ...]:
    """Returns the ids of tokens that call a tool in a message that has `calls` so far."""
    return tuple(sorted(self._called_by)) if calls < self._calls else ()

  def result(self, ids: np.ndarray, question: Question) -> np.ndarray:
    """Returns the int32 ids that the first tool with a result inserts after `ids` `[W]`."""
    for name in self._called_by.get(int(ids[-1]), ()) if len(ids) else ():
      message = self._tokenizer.decode(ids.tolist())
      value = plugins.call(_FIELD, name, self._tools[name].result, message, question)
      if value is not None and not is_text(value):
        raise plugins.PluginError(
          f'{_FIELD}: {name!r} returned {plugins.kind_of(value)}; must return a text or None.'
        )
      if value and (found := self._encode(value) or self._encode(_UNREADABLE)):
        return np.asarray(found[: self._tokens], np.int32)
    return np.zeros(0, np.int32)

  def _encode(self, text: str) -> list[int]:
    """Returns the ids of a result in one line, without special tokens.

    A word-level vocabulary reads it up to the first unknown word.
    """
    words, tokenizer = text.split(), self._tokenizer
    if tokenizer.is_word_level:
      words = list(itertools.takewhile(lambda word: not tokenizer.unknown_words(word), words))
    before = '' if tokenizer.is_word_level or not words else ' '
    try:
      return tokenizer.encode(before + ' '.join(words), special=False)
    except ValueError:  # spells a special token of one character
      return []

  def inserted(self, ids: np.ndarray, question: Question) -> np.ndarray:
    """Marks tool results in a finished message of a script; bool like `ids`."""
    found = np.zeros(len(ids), bool)
    calls = 0
    for place, token in enumerate(ids.tolist()):
      if found[place] or token not in self.mark_ids(calls):
        continue
      result = self.result(ids[: place + 1], question)
      end = place + 1 + len(result)
      if len(result) and np.array_equal(ids[place + 1 : end], result):
        found[place + 1 : end] = True
        calls += 1
    return found


def speak(policy: Policy, turns: Sequence[Turn], toolboxes: Sequence[Toolbox]) -> list[Reply]:
  """Samples a message for each turn, with results of tools inserted.

  An agent with tools (`toolboxes` has those of each agent) stops at each mark; what follows the
  result is sampled with a key of its own.
  """
  if not any(toolboxes[turn.agent] for turn in turns):
    return policy(turns)

  def stopping_at_marks(turn: Turn, calls: int) -> Turn:
    box = toolboxes[turn.agent]
    stop_ids = sorted({*turn.stop_ids, *box.mark_ids(calls)}) if box else turn.stop_ids
    return dataclasses.replace(turn, stop_ids=tuple(stop_ids))

  drafts = [Reply.given((), ended=False)] * len(turns)  # messages so far
  calls = [0] * len(turns)
  unfinished = {i: stopping_at_marks(turn, 0) for i, turn in enumerate(turns)}
  with futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    while unfinished:
      replies = policy(list(unfinished.values()))
      stopped = []  # messages that end with a mark
      for i, reply in zip(unfinished, replies, strict=True):
        ended = reply.ended and int(reply.token_ids[-1]) in turns[i].stop_ids
        drafts[i] = _joined(drafts[i], reply._replace(ended=ended))
        if reply.ended and not ended:
          stopped.append(i)
      called = lambda i: toolboxes[turns[i].agent].result(drafts[i].token_ids, turns[i].question)
      unfinished = {}
      for i, result in zip(stopped, threads.map(called, stopped), strict=True):
        turn, draft = turns[i], drafts[i]
        result = result[: turn.limit - len(draft.token_ids)]
        calls[i] += len(result) > 0
        inserted = Reply.given(result, False, inserted=np.ones(len(result), bool))
        draft = drafts[i] = _joined(draft, inserted)
        if room := turn.limit - len(draft.token_ids):
          unfinished[i] = dataclasses.replace(
            stopping_at_marks(turn, calls[i]),
            prompt_ids=np.concatenate([turn.prompt_ids, draft.token_ids]),
            limit=room,
            offset=len(draft.token_ids),
          )
  return drafts


def _joined(draft: Reply, more: Reply) -> Reply:
  """Returns an unfinished message with what follows it."""
  experts = more.experts if draft.experts is None else draft.experts
  if experts is not None and more.experts is not None:  # the draft was prefilled again
    experts = np.concatenate([experts, more.experts[len(experts) :]])
  return Reply(
    token_ids=np.concatenate([draft.token_ids, more.token_ids]),
    logprobs=np.concatenate([draft.logprobs, more.logprobs]),
    ended=more.ended,
    inserted=np.concatenate([draft.inserted_mask, more.inserted_mask]),
    learns=draft.learns and more.learns,
    log_speak=more.log_speak if draft.log_speak is None else draft.log_speak,
    usage=more.usage if draft.usage is None else draft.usage,  # of an endpoint, without tools
    experts=experts,
    version=more.version if draft.version < 0 else draft.version,  # the oldest
  )
