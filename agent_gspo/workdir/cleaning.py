"""Validates lines of a run's files; drops and reports invalid fields.

Files may come from another version, another program or a damaged disk. Cleaned records can be
displayed: names are text, figures are finite numbers or None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Any

from agent_gspo.values import finite, is_real

Check = Callable[[Any], bool]
# A cleaned record, None if nothing is left; and the names of the dropped fields.
Cleaned = tuple[dict[str, Any] | None, list[str]]

_DEPTH = 8  # greatest nesting of lists and dicts


@dataclasses.dataclass(frozen=True)
class _Objects:
  """A list of objects with these fields; those without a field of `needed` are dropped."""

  fields: Mapping[str, Check]
  needed: Set[str]


def metrics(record: Mapping[str, Any]) -> Cleaned:
  """Keeps the step and its figures from a line of `metrics.jsonl` or `sft.jsonl`."""
  kept, odd = _clean(record, {'step': _number, 'non_finite': _plain}, _number_or_none)
  return (kept, odd) if 'step' in kept else (None, [*odd, 'the whole line (no step)'])


def evaluation(record: Mapping[str, Any]) -> Cleaned:
  """Keeps figures, `group/name`, and those of each agent from a line of `eval.jsonl`."""
  figures = {key: _number_or_none for key in record if '/' in key}
  return _clean(record, {**figures, **_EVALUATION})


def transcript(record: Mapping[str, Any]) -> Cleaned:
  """Keeps an episode with its messages from a line of `transcripts.jsonl`."""
  kept, odd = _clean({**record, 'messages': record.get('messages') or []}, _TRANSCRIPT)
  return {'messages': [], **kept}, odd


def config(record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """Keeps plain JSON fields of `config.json`."""
  return _clean(record, {})


def _clean(
  record: Mapping[str, Any], fields: Mapping[str, Check | _Objects], otherwise: Check | None = None
) -> tuple[dict[str, Any], list[str]]:
  """Returns the valid fields and the names of the others; unknown ones must be plain JSON."""
  kept: dict[str, Any] = {}
  odd: list[str] = []
  for key, value in record.items():
    check = fields.get(key, otherwise or _plain)
    if isinstance(check, _Objects) and isinstance(value, list):
      members = [_clean(x if isinstance(x, dict) else {}, check.fields) for x in value]
      kept[key] = [member for member, _ in members if member.keys() >= check.needed]
      for i, (member, dropped) in enumerate(members):
        odd += [f'{key}[{i}][{name}]' for name in dropped]
        odd += [f'{key}[{i}]'] * (not member.keys() >= check.needed)
    elif not isinstance(check, _Objects) and check(value):
      kept[key] = value
    else:
      odd.append(repr(key[:60]))
  return kept, odd


def _number(value: Any) -> bool:
  """Returns whether a value is a number that a browser can represent."""
  return is_real(value) and finite(value) is not None


def _number_or_none(value: Any) -> bool:
  return value is None or _number(value)


_text: Check = lambda value: isinstance(value, str)
_text_or_none: Check = lambda value: isinstance(value, str | None)
_flag_or_none: Check = lambda value: isinstance(value, bool | None)


def _read_from(value: Any) -> bool:
  pairs = isinstance(value, list) and all(isinstance(x, list) and len(x) == 2 for x in value)
  return pairs and all(_text(author) and _number(round_) for author, round_ in value)


def _plain(value: Any, depth: int = _DEPTH) -> bool:
  if isinstance(value, dict | list):
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_plain(x, depth - 1) for x in inner)
  return isinstance(value, str | bool) or _number_or_none(value)


_EDGE: dict[str, Check] = {
  **dict.fromkeys(('author', 'reader'), _text),
  **dict.fromkeys(('turns', 'said', 'told', 'tokens'), _number),
}
_EVALUATION: dict[str, Check | _Objects] = {
  **dict.fromkeys(('label', 'split'), _text),
  **dict.fromkeys(('step', 'questions', 'temperature'), _number),
  'agents': _Objects({'name': _text}, {'name'}),
  'edges': _Objects(_EDGE, _EDGE.keys()),
}
_MESSAGE: dict[str, Check] = {
  'agent': _text,
  'round': _number,
  'read_from': _read_from,
  **dict.fromkeys(('text', 'note'), _text_or_none),
  **dict.fromkeys(('written', 'read', 'reward', 'advantage'), _number_or_none),
  **dict.fromkeys(('silent', 'ended', 'relevant'), _flag_or_none),
}
_TRANSCRIPT: dict[str, Check | _Objects] = {
  'step': _number,
  **dict.fromkeys(('split', 'label'), _text),
  **dict.fromkeys(('question_id', 'question', 'gold', 'answer'), _text_or_none),
  **dict.fromkeys(('task_score', 'reward'), _number_or_none),
  'messages': _Objects(_MESSAGE, {'agent'}),
}
