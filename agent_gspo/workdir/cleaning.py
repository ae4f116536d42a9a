"""Validates lines of a run's files; drops and reports invalid fields.

Files may come from another version, another program or a damaged disk. Cleaned records can be
displayed: names are text, figures are finite numbers or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agent_gspo.values import finite, is_real

Check = Callable[[Any], bool]
# A cleaned record, None if nothing is left; and the names of the dropped fields.
Cleaned = tuple[dict[str, Any] | None, list[str]]

_EDGE = ('author', 'reader', 'turns', 'said', 'told', 'tokens')  # two names and four numbers
_DEPTH = 8  # greatest nesting of lists and dicts


def metrics(record: Mapping[str, Any]) -> Cleaned:
  """Keeps the step and its figures from a line of `metrics.jsonl` or `sft.jsonl`."""
  kept, odd = _fields(record, {'step': _number, 'non_finite': _plain}, _number_or_none)
  return (kept, odd) if 'step' in kept else (None, [*odd, 'the whole line (no step)'])


def evaluation(record: Mapping[str, Any]) -> Cleaned:
  """Keeps figures, `group/name`, and those of each agent from a line of `eval.jsonl`."""
  known = dict.fromkeys(('label', 'split'), _text)
  known |= dict.fromkeys(('step', 'questions', 'temperature'), _number)
  figures = {key: _number_or_none for key in record if '/' in key}
  kept, odd = _fields(record, {**figures, **known, 'agents': _anything, 'edges': _anything}, _plain)
  if 'agents' in kept:
    kept['agents'] = list(_members(kept['agents'], 'agents', {'name': _text}, ('name',), odd))
  if 'edges' in kept:
    edge = {**dict.fromkeys(_EDGE[:2], _text), **dict.fromkeys(_EDGE[2:], _number)}
    kept['edges'] = list(_members(kept['edges'], 'edges', edge, _EDGE, odd))
  return kept, odd


def transcript(record: Mapping[str, Any]) -> Cleaned:
  """Keeps an episode with its messages from a line of `transcripts.jsonl`."""
  known = dict.fromkeys(('split', 'label'), _text)
  known |= dict.fromkeys(('question_id', 'question', 'gold', 'answer'), _text_or_none)
  known |= {'step': _number, 'task_score': _number_or_none, 'reward': _number_or_none}
  kept, odd = _fields(record, {**known, 'messages': _anything}, _plain)
  message = dict.fromkeys(('text', 'note'), _text_or_none)
  message |= dict.fromkeys(('written', 'read', 'reward', 'advantage'), _number_or_none)
  message |= dict.fromkeys(('silent', 'ended', 'relevant'), _flag_or_none)
  message |= {'agent': _text, 'round': _number, 'read_from': _read_from}
  found = kept.get('messages') or []
  kept['messages'] = list(_members(found, 'messages', message, ('agent',), odd))
  return kept, odd


def config(record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """Keeps plain JSON fields of `config.json`."""
  return _fields(record, {}, _plain)


def _fields(
  record: Mapping[str, Any], known: Mapping[str, Check], otherwise: Check
) -> tuple[dict[str, Any], list[str]]:
  kept = {k: v for k, v in record.items() if known.get(k, otherwise)(v)}
  return kept, [repr(key[:60]) for key in record if key not in kept]


def _members(
  value: Any, name: str, known: Mapping[str, Check], needed: tuple[str, ...], odd: list[str]
) -> Iterator[dict[str, Any]]:
  """Yields the dicts of a list that have all fields of `needed`."""
  if not isinstance(value, list):
    odd.append(repr(name))
    return
  for i, member in enumerate(value):
    if not isinstance(member, dict):
      odd.append(f'{name}[{i}]')
      continue
    kept, left_out = _fields(member, known, _plain)
    odd += [f'{name}[{i}][{key}]' for key in left_out]
    if kept.keys() >= set(needed):
      yield kept
    else:
      odd.append(f'{name}[{i}]')


def _number(value: Any) -> bool:
  """Returns whether a value is a number that a browser can represent."""
  return is_real(value) and finite(value) is not None


def _number_or_none(value: Any) -> bool:
  return value is None or _number(value)


_text: Check = lambda value: isinstance(value, str)
_text_or_none: Check = lambda value: isinstance(value, str | None)
_flag_or_none: Check = lambda value: isinstance(value, bool | None)
_anything: Check = lambda value: True


def _read_from(value: Any) -> bool:
  pairs = isinstance(value, list) and all(isinstance(x, list) and len(x) == 2 for x in value)
  return pairs and all(_text(author) and _number(round_) for author, round_ in value)


def _plain(value: Any, depth: int = _DEPTH) -> bool:
  if isinstance(value, dict | list):
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_plain(x, depth - 1) for x in inner)
  return isinstance(value, str | bool) or _number_or_none(value)
