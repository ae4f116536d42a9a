"""Computes the cost of a compiled program from its HLO text (`compiled.as_text()`).

For programs compiled for a TPU without a TPU: nothing is timed, and `cost_analysis` counts the body
of a loop once. Here bodies count once per trip (once if the text has no trip count). Figures are
for comparing variants of one program; of a conditional, the branch with most HBM bytes counts.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
import re
from collections.abc import Iterator

_BYTES = {
  **dict.fromkeys(('pred', 's8', 'u8', 'f8e4m3fn', 'f8e5m2'), 1),
  **dict.fromkeys(('bf16', 'f16', 's16', 'u16'), 2),
  **dict.fromkeys(('f32', 's32', 'u32'), 4),
  **dict.fromkeys(('f64', 's64', 'u64'), 8),
}
_ARRAY = re.compile(r'\b([a-z]+\d*(?:e\d+m\d+(?:fn)?)?)\[([\d,]*)\](?:\{([^{}]*)\})?')
_HEAD = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$')
_LINE = re.compile(r'^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$')
_TILE = re.compile(r'T\((\d+),(\d+)\)')
_CALLED = re.compile(r'(?:calls|to_apply|body|called_computation)=%?([\w.\-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TWO_BRANCHES = re.compile(r'(?:true|false)_computation=%?([\w.\-]+)')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COLLECTIVES = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute')
# Operations without traffic; asynchronous ones are counted at their start.
_FREE = frozenset(
  'parameter constant tuple get-tuple-element bitcast reshape iota broadcast after-all opt-barrier '
  'partition-id replica-id copy-done slice-done async-done async-update custom-call-done '
  'all-gather-done all-reduce-done collective-permute-done send-done recv-done'.split()
)
_VIEWS = ('bitcast', 'reshape')


@dataclasses.dataclass(frozen=True)
class Array:
  """Shape of one array.

  Attributes:
    dtype: Dtype as HLO writes it.
    shape: Sizes of the axes.
    hbm_bytes: Bytes in HBM, with the padding of tiles; 0 if it is in another memory.
  """

  dtype: str
  shape: tuple[int, ...]
  hbm_bytes: int


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line: name, arrays of its result, operation, names of its operands, attributes."""

  name: str
  results: tuple[Array, ...]
  op: str
  operands: tuple[str, ...]
  attributes: str
  root: bool

  @property
  def hbm_bytes(self) -> int:
    return sum(array.hbm_bytes for array in self.results)

  @property
  def bytes(self) -> int:
    """Returns the bytes of the result in any memory, without padding."""
    return sum(_BYTES[a.dtype] * math.prod(a.shape) for a in self.results)


class Module:
  """Parsed program.

  Attributes:
    computations: Instructions by name of the computation.
    entry: Name of the entry computation.
  """

  def __init__(self, text: str):
    """Parses `compiled.as_text()`.

    Raises:
      ValueError: It has no program.
    """
    self.computations: dict[str, list[Instruction]] = {}
    self.entry, body = '', None
    for line in text.splitlines():
      if head := _HEAD.match(line):
        body = self.computations.setdefault(head[2], [])
        self.entry = head[2] if head[1] else self.entry
      elif line.startswith('}'):
        body = None
      elif body is not None and (found := _LINE.match(line)):
        body.append(_instruction(found))
    if not self.entry:
      raise ValueError('this is no text of a compiled program: it has no ENTRY computation.')

  def loop(self) -> Module:
    """Returns one iteration of the program's first loop, as a program.

    Raises:
      ValueError: There is no loop.
    """
    for instruction in self.computations[self.entry]:
      if instruction.op == 'while':
        body = copy.copy(self)
        body.entry = self._called(instruction)
        return body
    raise ValueError('this program has no loop.')

  def kernels(self, name: str) -> Iterator[tuple[Instruction, float]]:
    """Yields calls of Pallas kernels whose name begins with `name`, and how often each runs."""
    for instruction, _, times in self.executed():
      if instruction.op == 'custom-call' and instruction.name.startswith(name):
        yield instruction, times

  def executed(self) -> Iterator[tuple[Instruction, dict[str, Instruction], float]]:
    """Yields each instruction outside of fusions, its computation by name, how often it runs."""
    yield from self._executed(self.entry, 1.0)

  def _executed(self, name: str, times: float):
    body = {instruction.name: instruction for instruction in self.computations[name]}
    for instruction in body.values():
      if instruction.op == 'while':
        trips = self._trips(instruction)
        yield from self._executed(self._called(instruction), times * trips)
      elif instruction.op == 'conditional':
        yield from self._executed(self._dearest(instruction), times)
      elif instruction.op == 'call':
        yield from self._executed(self._called(instruction), times)
      else:
        yield instruction, body, times

  def flops(self) -> float:
    """Returns the FLOPs of matrix products and convolutions."""
    return sum(times * self._flops(i, body) for i, body, times in self.executed())

  def cycles(self) -> float:
    """Returns the compiler's estimate in cycles; Pallas kernels have none and count 0."""
    total = 0.0
    for instruction, _, times in self.executed():
      if found := _CYCLES.search(instruction.attributes):
        total += times * int(found[1])
    return total

  def hbm_bytes(self) -> float:
    """Returns the bytes read from and written to HBM."""
    return sum(times * self._traffic(i, body) for i, body, times in self.executed())

  def collectives(self) -> dict[str, dict[str, float]]:
    """Returns by kind the `count` of collectives and the `bytes` that one device receives."""
    found: dict[str, dict[str, float]] = {}
    seen: set[str] = set()
    for instruction, _, times in self.executed():
      for kind, size, channel in self._exchanged(instruction):
        if channel and channel in seen:
          continue  # its start, its end and fused computations name the same channel
        seen.add(channel)
        entry = found.setdefault(kind, {'count': 0.0, 'bytes': 0.0})
        entry['count'] += times
        entry['bytes'] += times * size
    return found

  def _exchanged(self, instruction: Instruction) -> Iterator[tuple[str, int, str]]:
    """Yields kind, bytes and channel of the collectives in an instruction."""
    kind = instruction.op.removesuffix('-start')
    if kind in _COLLECTIVES:
      arrays = instruction.results
      if kind == 'collective-permute' and len(arrays) > 1:
        arrays = arrays[1:2]  # inputs, outputs, semaphores
      elif instruction.op.endswith('-start') and kind != 'all-reduce':
        arrays = arrays[len(arrays) // 2 :]  # inputs, outputs
      channel = re.search(r'channel_id=(\d+)', instruction.attributes)
      size = sum(_BYTES[a.dtype] * math.prod(a.shape) for a in arrays)
      yield kind, size, channel[1] if channel else ''
    elif instruction.op in ('fusion', 'async-start') and (name := self._called(instruction)):
      if name.startswith('all-reduce-scatter'):  # a TPU's reduce-scatter, as one fusion
        yield 'reduce-scatter', instruction.bytes, ''
      else:
        for inner in self.computations[name]:
          yield from self._exchanged(inner)

  def _called(self, instruction: Instruction) -> str:
    found = _CALLED.search(instruction.attributes)
    return found[1] if found and found[1] in self.computations else ''

  def _trips(self, loop: Instruction) -> int:
    if known := _TRIPS.search(loop.attributes):
      return int(known[1])
    condition = re.search(r'condition=%?([\w.\-]+)', loop.attributes)
    constants = [
      int(number)
      for i in self._with_called(condition[1] if condition else '')
      if i.op == 'constant' and i.results[0].dtype == 's32' and not i.results[0].shape
      for number in re.findall(r'^\d+', i.attributes)
    ]
    return max(constants, default=0) or 1

  def _with_called(self, name: str) -> Iterator[Instruction]:
    for instruction in self.computations.get(name, ()):
      yield instruction
      yield from self._with_called(self._called(instruction))

  def _dearest(self, condition: Instruction) -> str:
    listed = _BRANCHES.search(condition.attributes)
    names = re.findall(r'%?([\w.\-]+)', listed[1]) if listed else []
    names = names or _TWO_BRANCHES.findall(condition.attributes)
    return max(names, key=lambda name: sum(i.hbm_bytes for i in self.computations[name]))

  def _flops(self, instruction: Instruction, body: dict[str, Instruction]) -> float:
    if instruction.op == 'fusion' and (name := self._called(instruction)):
      inner = {i.name: i for i in self.computations[name]}
      return sum(self._flops(i, inner) for i in inner.values())
    if instruction.op not in ('dot', 'convolution'):
      return 0.0
    left, right = (body[name].results[0] for name in instruction.operands[:2])
    out = math.prod(instruction.results[0].shape)
    if instruction.op == 'dot':
      found = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', instruction.attributes)
      axes = [int(axis) for axis in found[1].split(',') if axis] if found else []
      return 2.0 * out * math.prod(left.shape[axis] for axis in axes)
    return _convolution_flops(instruction, left, right)

  def _traffic(self, instruction: Instruction, body: dict[str, Instruction]) -> float:
    """Returns the HBM bytes of one instruction."""
    op, operands = instruction.op, [body[x] for x in instruction.operands if x in body]
    if op in _FREE:
      return 0
    if op == 'copy-start':
      return sum(array.hbm_bytes for array in instruction.results[:2])
    if op in ('slice-start', 'async-start'):
      target = instruction.results[1 if len(instruction.results) > 1 else 0]
      from_hbm = bool(instruction.results[0].hbm_bytes)
      return target.hbm_bytes + from_hbm * _BYTES[target.dtype] * math.prod(target.shape)
    if op == 'dynamic-update-slice':  # in place
      return 2 * operands[1].hbm_bytes if instruction.hbm_bytes else 0
    if op in ('dynamic-slice', 'gather'):
      return 2 * instruction.hbm_bytes
    if op == 'fusion' and (name := self._called(instruction)):
      return self._fusion_traffic(self.computations[name], instruction)
    return instruction.hbm_bytes + sum(operand.hbm_bytes for operand in operands)

  def _fusion_traffic(self, inner: list[Instruction], fusion: Instruction) -> float:
    by_name = {i.name: i for i in inner}
    users: dict[str, list[Instruction]] = collections.defaultdict(list)
    for i in inner:
      for operand in i.operands:
        users[operand].append(i)

    def reached(name: str) -> Iterator[tuple[Instruction, bool]]:
      """Yields readers of a value, also through views, and whether it is their first operand."""
      for user in users[name]:
        if user.op in _VIEWS:
          yield from reached(user.name)
        else:
          yield user, user.operands[0] == name

    total = 0.0
    for parameter in (i for i in inner if i.op == 'parameter'):
      readers = list(reached(parameter.name))
      slices = ('dynamic-slice', 'gather', 'dynamic-update-slice')
      if readers and all(first and reader.op in slices for reader, first in readers):
        parts = sum(r.bytes for r, _ in readers if r.op != 'dynamic-update-slice')
        total += min(parameter.hbm_bytes, parts)
      else:
        total += parameter.hbm_bytes
    root = next(i for i in inner if i.root)
    outputs = [by_name[x] for x in root.operands] if root.op == 'tuple' else [root]
    for array, output in zip(fusion.results, outputs, strict=False):
      while output.op in _VIEWS:
        output = by_name[output.operands[0]]
      if output.op == 'dynamic-update-slice' and array.hbm_bytes:
        total += by_name[output.operands[1]].bytes
      else:
        total += array.hbm_bytes
    return total


def _convolution_flops(instruction: Instruction, image: Array, kernel: Array) -> float:
  """Returns FLOPs of products outside padding: TPUs write batched products as dilated windows."""
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', instruction.attributes)
  if labels is None:
    return 0.0
  of_image, of_kernel, of_out = labels.groups()
  out = instruction.results[0].shape
  product = 2.0 * out[of_out.index('b')] * out[of_out.index('f')]
  product *= kernel.shape[of_kernel.index('i')]
  window = {
    name: values.split('x')
    for name, values in re.findall(r'(\w+)=([\dx_\-]+)', _part(instruction.attributes, 'window'))
  }
  for axis in (label for label in of_out if label.isdigit()):
    step = lambda name, axis=axis: int(window[name][int(axis)]) if name in window else 1
    low = int(window['pad'][int(axis)].split('_')[0]) if 'pad' in window else 0
    size = image.shape[of_image.index(axis)]
    last, dilate = (size - 1) * step('lhs_dilate'), step('lhs_dilate')
    at = lambda o, tap, step=step, low=low: o * step('stride') + tap * step('rhs_dilate') - low
    product *= sum(
      0 <= at(o, tap) <= last and at(o, tap) % dilate == 0
      for o in range(out[of_out.index(axis)])
      for tap in range(kernel.shape[of_kernel.index(axis)])
    )
  return product


def _part(attributes: str, name: str) -> str:
  found = re.search(rf'\b{name}={{([^}}]*)}}', attributes)
  return found[1] if found else ''


def _instruction(found: re.Match[str]) -> Instruction:
  root, name, kind, op, rest = found.groups()
  depth, end = 1, len(rest)
  for end, char in enumerate(rest):  # noqa: B007 (read after the loop)
    depth += (char == '(') - (char == ')')
    if not depth:
      break
  operands = tuple(re.findall(r'%([\w.\-]+)', rest[:end]))
  # A constant has its value in place of operands.
  attributes = rest if op == 'constant' else rest[end:]
  arrays = tuple(_array(match) for match in _ARRAY.finditer(kind) if match[1] in _BYTES)
  return Instruction(name, arrays, op, operands, attributes, bool(root))


def _array(match: re.Match[str]) -> Array:
  dtype, dims, layout = match[1], match[2], match[3] or ''
  shape = tuple(int(size) for size in dims.split(',') if size)
  padded = list(shape)
  if (tile := _TILE.search(layout)) and len(shape) > 1:
    order = [int(axis) for axis in layout.split(':')[0].split(',')]
    for axis, size in zip(order[:2], (int(tile[2]), int(tile[1])), strict=True):
      padded[axis] = -(-padded[axis] // size) * size
  elsewhere = re.search(r'S\([1-9]', layout)
  return Array(dtype, shape, 0 if elsewhere else _BYTES[dtype] * math.prod(padded))
