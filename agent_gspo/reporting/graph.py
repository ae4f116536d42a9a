"""Who read whom, worked out from transcripts."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# A shorter text ("42") may stand in a prompt by chance.
_TELLING_LENGTH = 6
_FEWEST_CASES = 3
_SHARE = 0.9

_Slot = tuple[str, Any, str, Any]


@dataclasses.dataclass(frozen=True)
class Edge:
  """What one agent hears of another, means over the episodes looked at.

  Attributes:
    source: name of the agent that writes.
    reader: name of the agent whose prompts carry what `source` wrote.
    messages: messages delivered an episode.
    tokens: tokens of them that were read an episode; a message that stands in two prompts
      counts twice.
    silence: share of the turns of `source` that this reader would have heard, had they not
      been silent.
  """

  source: str
  reader: str
  messages: float
  tokens: float
  silence: float


def who_reads_whom(transcripts: Sequence[Mapping[str, Any]]) -> list[Edge]:
  """Finds the edges of the team's topology that messages travelled along.

  An agent hears another if the prompts of its turn in some round carry what the other wrote
  in some round, in nine of ten episodes at least. Transcripts without prompts say nothing.

  Args:
    transcripts: as they stand in `transcripts.jsonl`.

  Returns:
    Edges by falling number of tokens; empty where nothing can be derived.
  """
  found: collections.Counter[_Slot] = collections.Counter()
  cases: collections.Counter[_Slot] = collections.Counter()
  for transcript in transcripts:
    for slot, message, prompt in _pairs(transcript):
      text = _text(message)
      if len(text) >= _TELLING_LENGTH:
        cases[slot] += 1
        found[slot] += text in prompt
  slots = {s for s, n in cases.items() if n >= _FEWEST_CASES and found[s] >= _SHARE * n}

  episodes = 0
  totals: dict[tuple[str, str], dict[str, float]] = {}
  for transcript in transcripts:
    turns: dict[tuple[str, str, int], tuple[Mapping[str, Any], int]] = {}
    seen = False
    for slot, message, _ in _pairs(transcript):
      seen = True
      if slot in slots:
        key = (slot[0], slot[2], id(message))
        turns[key] = (message, turns.get(key, (message, 0))[1] + 1)
    episodes += seen
    for (source, reader, _), (message, prompts) in turns.items():
      total = totals.setdefault((source, reader), collections.defaultdict(float))
      total['turns'] += 1
      if _text(message):
        total['messages'] += 1
        total['tokens'] += prompts * (message.get('written') or 0)
  edges = [
    Edge(
      source=source,
      reader=reader,
      messages=total['messages'] / episodes,
      tokens=total['tokens'] / episodes,
      silence=1 - total['messages'] / total['turns'],
    )
    for (source, reader), total in totals.items()
  ]
  return sorted(edges, key=lambda edge: -edge.tokens)


def _pairs(transcript: Mapping[str, Any]) -> Iterator[tuple[_Slot, Mapping[str, Any], str]]:
  """Yields every message with every later prompt of every other agent."""
  messages = transcript.get('messages') or []
  question = str(transcript.get('question') or '')
  for i, message in enumerate(messages):
    for later in messages[i + 1 :]:
      if later.get('agent') != message.get('agent') and later.get('prompt'):
        prompt = str(later['prompt'])
        if question:
          prompt = prompt.replace(question, ' ')
        slot = (message.get('agent'), message.get('round'), later['agent'], later.get('round'))
        yield slot, message, prompt


def _text(message: Mapping[str, Any]) -> str:
  return '' if message.get('silent') else str(message.get('text') or '').strip()
