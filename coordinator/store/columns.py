"""Many rows of one table, column by column: whoever has columns needs no record for each row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from numpy.typing import NDArray

R = TypeVar("R")

Cells: TypeAlias = NDArray[Any] | list[Any] | str | float | bool | None
"""An array or a list has a cell for each row; anything else stands in every row. NaN is NULL."""


@dataclass(frozen=True, slots=True)
class Columns(Generic[R]):
    """What `n` records of a type would hold."""

    record: type[R]
    n: int
    cells: Mapping[str, Cells]
    """Of every field of the record, by its name."""

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self.n
