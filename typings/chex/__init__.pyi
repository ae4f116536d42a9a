"""What this package uses of chex, which ships no types of its own.

`Array` takes arrays of JAX and of numpy and may be used as JAX's: both know what is asked of them
here, and without the `Any` every annotation would have to tell them apart.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, dataclass_transform, overload

import jax

Array: TypeAlias = jax.Array | Any
Numeric: TypeAlias = Array | float

_T = TypeVar('_T')

@dataclass_transform()
@overload
def dataclass(cls: type[_T]) -> type[_T]: ...
@overload
def dataclass(
  *, frozen: bool = ..., mappable_dataclass: bool = ...
) -> Callable[[type[_T]], type[_T]]: ...
def assert_equal_shape(inputs: Sequence[Array]) -> None: ...
def assert_rank(inputs: Array | Sequence[Array], expected_ranks: int) -> None: ...
def assert_shape(
  inputs: Array | Sequence[Array], expected_shapes: Sequence[int | None]
) -> None: ...
def assert_type(inputs: Array | Sequence[Array], expected_types: type) -> None: ...
