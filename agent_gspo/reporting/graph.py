"""Who heard whom, from transcripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Edge:
  """What one agent hears of another, means over episodes.

  Attributes:
    source: name of the agent that writes.
    reader: name of the agent whose prompts carry what `source` wrote.
    messages: messages delivered an episode.
    tokens: tokens of them an episode, each message counted once.
    silence: share of the turns of `source` that this reader would have heard, had they not
      been silent.
  """

  source: str
  reader: str
  messages: float
  tokens: float
  silence: float


def who_hears_whom(transcripts: Sequence[Mapping[str, Any]]) -> list[Edge]:
  """The edges of the team's topology and what travelled along them.

  Args:
    transcripts: as they stand in `transcripts.jsonl`; those without `read_from` say nothing.

  Returns:
    Edges by falling number of tokens.
  """
  turns: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
  for transcript in transcripts:
    messages = transcript.get('messages') or []
    written = {(m.get('agent'), m.get('round')): m for m in messages}
    for reader in messages:
      for author, round_ in reader.get('read_from') or ():
        if (author, round_) in written:
          edge = (author, str(reader.get('agent')))
          turns.setdefault(edge, []).append(written[author, round_])
  edges = []
  for (source, reader), read in turns.items():
    spoken = [m for m in read if not m.get('silent')]
    edges.append(
      Edge(
        source=source,
        reader=reader,
        messages=len(spoken) / len(transcripts),
        tokens=sum(m.get('written') or 0 for m in spoken) / len(transcripts),
        silence=1 - len(spoken) / len(read),
      )
    )
  return sorted(edges, key=lambda edge: -edge.tokens)
