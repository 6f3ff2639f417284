"""Names of the devices of a replay, made when somebody asks: a million strings are never kept."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import overload


class Names(Sequence[str]):
    """PREFIX-1, PREFIX-2, ... of one group after the other, by row.

    Args:
        groups: Prefix and number of devices of each group; all prefixes differ.
    """

    def __init__(self, groups: Sequence[tuple[str, int]]) -> None:
        self._prefixes = [prefix for prefix, _ in groups]
        self._starts = list(accumulate((count for _, count in groups), initial=0))

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return self._starts[-1]

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...

    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        """Return the name of a row, or the names of some.

        Raises:
            IndexError: There is no such row.
        """
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        at = row + len(self) if row < 0 else row
        if not 0 <= at < len(self):
            raise IndexError(f"row must be below {len(self)}, got {row}")
        group = self.group(at)
        return f"{self._prefixes[group]}-{at - self._starts[group] + 1}"

    def group(self, row: int) -> int:
        """Return which group a row belongs to, 0 for the first."""
        return bisect_right(self._starts, row) - 1
