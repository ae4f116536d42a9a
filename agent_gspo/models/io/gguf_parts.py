"""A GGUF file, or the parts that llama.cpp split one into, read as one."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from agent_gspo.models.io import gguf_header
from agent_gspo.models.io.fields import Fields
from agent_gspo.models.io.gguf_header import TensorInfo

_NAME = re.compile(r'(.*)-\d{5}-of-(\d{5})\.gguf', re.DOTALL)
_JOIN = 'Or join the parts with llama-gguf-split --merge.'

Headers = dict[pathlib.Path, tuple[dict[str, Any], dict[str, TensorInfo]]]


def files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the parts that belong to a file by its name, in their order; else the file itself."""
  found = _NAME.fullmatch(path.name)
  if not found:
    return [path]
  stem, count = found[1], int(found[2])
  return [path.with_name(f'{stem}-{i + 1:05}-of-{count:05}.gguf') for i in range(count)] or [path]


def read(path: pathlib.Path) -> Headers:
  """Reads the headers of a file and, if it is one part of several, of all parts.

  Returns:
    File -> metadata and tensors. Of parts the first file has the metadata of the model.

  Raises:
    FileNotFoundError: a part is not beside the others.
    ValueError: a header is damaged, or the parts do not belong together.
  """
  header = gguf_header.read(path)
  number, count = _part(path, header[0])
  if count == 1:
    return {path: header}
  paths = files(path)
  this = f'{path}: is part {number + 1} of {count} of a GGUF file'
  if len(paths) != count or paths[number] != path:
    raise ValueError(
      f'{this}; must be named <name>-{number + 1:05}-of-{count:05}.gguf, so that the others are '
      f'found beside it. {_JOIN}'
    )
  missing = [file.name for file in paths if not file.is_file()]
  if missing:
    more = ', ...' * (len(missing) > 3)
    raise FileNotFoundError(
      f'{this}; {", ".join(missing[:3])}{more} must be beside it. Fetch all parts into one folder.'
    )
  headers = {file: header if file == path else gguf_header.read(file) for file in paths}
  seen: set[str] = set()
  for i, (file, (metadata, tensors)) in enumerate(headers.items()):
    if _part(file, metadata) != (i, count):
      raise ValueError(
        f'{file}: must be part {i + 1} of {count} by its name, yet its metadata say split.no='
        f'{metadata.get("split.no")}, split.count={metadata.get("split.count")}. Fetch it again.'
      )
    if twice := seen & tensors.keys():
      raise ValueError(
        f'{file}: tensor {min(twice)!r} is in another part, too. Fetch all parts again.'
      )
    seen |= tensors.keys()
    total = Fields(metadata, f'{file}: the metadata').whole('split.tensors.count', low=0)
    if total != headers[paths[0]][0].get('split.tensors.count'):
      raise ValueError(f'{file}: is part of another GGUF file than {paths[0].name}.')
  if len(seen) != total:
    raise ValueError(
      f'{path}: the {count} parts hold {len(seen)} tensors; must be split.tensors.count={total}. '
      'Fetch all parts again.'
    )
  return headers


def _part(path: pathlib.Path, metadata: dict[str, Any]) -> tuple[int, int]:
  """Returns the number of a part from 0, and how many there are; 0 and 1 of a whole file."""
  fields = Fields(metadata, f'{path}: the metadata')
  count = max(fields.whole('split.count', 1, low=0, high=2**16 - 1), 1)
  return fields.whole('split.no', 0 if count == 1 else None, low=0, high=count - 1), count
