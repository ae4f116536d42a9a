"""Maps parameter names between ours and Hugging Face's, by one table."""

from __future__ import annotations

import dataclasses

import numpy as np

from agent_gspo.models import families
from agent_gspo.models.config import ModelConfig

_FLOATS = ('float32', 'bfloat16', 'float16', 'float64')


@dataclasses.dataclass(frozen=True)
class Name:
  """Name and shape of one parameter of a model; see `families.Parameter`.

  Some tensors store several parameters: this one begins at row `first` of `rows`. A stack of
  experts is stored as one tensor each, see `parts`.
  """

  ours: str
  hf: str
  shape: tuple[int, ...]
  first: int
  rows: int
  expert: int | None = None

  @property
  def parts(self) -> tuple[Name, ...]:
    """Returns the names of each expert's part of a stack; otherwise this name alone."""
    if '{}' not in self.hf:
      return (self,)
    part = dataclasses.replace(self, shape=self.shape[1:])
    return tuple(
      dataclasses.replace(part, hf=self.hf.format(i), expert=i) for i in range(self.shape[0])
    )

  @property
  def transposed(self) -> bool:
    return self.ours.endswith('/kernel')

  @property
  def stored_shape(self) -> tuple[int, ...]:
    """Returns the shape of the tensor in Hugging Face and GGUF files."""
    return (self.rows, *self._own_shape[1:])

  @property
  def _own_shape(self) -> tuple[int, ...]:
    return self.shape[::-1] if self.transposed else self.shape

  def stored_index(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
    """Returns the index in the stored tensor of a part of the parameter."""
    of_rows, *others = index[::-1] if self.transposed else index
    start, stop, step = of_rows.indices(self._own_shape[0])
    return (slice(self.first + start, self.first + stop, step), *others)


def table(config: ModelConfig) -> tuple[Name, ...]:
  """Returns every base parameter of a model, in layer order (no LoRA adapters)."""
  c = config
  sizes = {'V': c.vocab_size, 'D': c.embed_dim, 'F': c.mlp_dim, 'H': c.head_dim}
  sizes |= {'Q': c.num_heads * c.head_dim, 'K': c.num_kv_heads * c.head_dim, 'E': c.num_experts}

  rows_of = lambda p: sizes[p.axes[-1] if p.ours.endswith('/kernel') else p.axes[0]]

  def name(p: families.Parameter, ours: str = '', hf: str = '') -> Name:
    together = [x for x in c.spec.layer if x.hf == p.hf] or [p]
    rows = [rows_of(x) for x in together]
    shape = tuple(sizes[axis] for axis in p.axes)
    return Name(ours + p.ours, hf + p.hf, shape, sum(rows[: together.index(p)]), sum(rows))

  rows = [name(families.EMBEDDING)]
  for i in range(c.num_layers):
    rows += [name(p, f'layers_{i}/', f'model.layers.{i}.') for p in c.spec.layer]
  rows.append(name(families.FINAL_NORM))
  return tuple(rows if c.tie_embeddings else [*rows, name(families.LM_HEAD)])


def check_names(expected: set[str], found: set[str], where: str) -> None:
  """Compares two sets of tensor names.

  Raises:
    ValueError: Names are missing or not expected; the message lists them.
  """
  problems = []
  for label, names in (('missing', expected - found), ('not expected', found - expected)):
    if names:
      some = ', '.join(sorted(names)[:8])
      problems.append(f'{label} ({len(names)}): {some}{", ..." if len(names) > 8 else ""}')
  if problems:
    raise ValueError(
      f'{where}: the tensors do not fit the architecture in its config. {"; ".join(problems)}. '
      'Check model_type, num_hidden_layers, tie_word_embeddings and the biases.'
    )


def check_shape(name: Name, shape: tuple[int, ...], where: str) -> None:
  """Compares the shape of a checkpoint's tensor with the config's.

  Raises:
    ValueError: The shapes differ.
  """
  if shape != name.stored_shape:
    raise ValueError(
      f'{where} ({name.ours}) has shape {shape}, the config beside it implies {name.stored_shape}.'
    )


def to_ours(name: Name, tensor: np.ndarray, where: str) -> np.ndarray:
  """Returns a checkpoint's float tensor, or a slice of it, as our contiguous float32 array.

  Raises:
    ValueError: The dtype is not a float, or numbers are not finite.
  """
  if tensor.dtype.name not in _FLOATS:
    raise ValueError(
      f'{where} ({name.ours}) holds {tensor.dtype.name} numbers; weights are read from '
      f'{", ".join(_FLOATS)}. Quantised weights must be saved as one of these first.'
    )
  with np.errstate(over='ignore'):  # overflow becomes infinite, and is refused below
    tensor = tensor.astype(np.float32, copy=False)
  if not np.isfinite(tensor).all():
    raise ValueError(
      f'{where} ({name.ours}) holds NaN or infinite weights. The file is damaged, or the run '
      'that wrote it had diverged; take another one.'
    )
  return np.ascontiguousarray(tensor.T if name.transposed else tensor)
