"""The raw parts of a round's updates, which are merged once it is known which of them count.

Small ones are in memory, all others in an unnamed temporary file, which a crash cannot leave.
"""

import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairbed.coordinator.algorithms.aggregation.base import Note
from fairbed.coordinator.algorithms.aggregation.raw import RawRule, RawUpdate

MEMORY_BYTES = 64_000_000
"""Raw parts of a round that are kept in memory."""


class RawMerge(Protocol):
    """Merges the raw parts of the updates of one round; called off the event loop, one at a time.

    An application has its own: it may pass on each one as it arrives, and keep none.
    """

    def add(self, device: str, row: int, n: int, raw: memoryview) -> None:
        """Add the raw part of an update, which the caller reuses afterwards."""
        ...

    def finish(self, counts: Sequence[bool]) -> tuple[bytes, tuple[Note, ...]]:
        """Return the next raw part, and what is remarkable about it.

        Args:
            counts: Whether each update counts, in the order of `add`: one without a weight in the
                merge of the vectors does not.
        """
        ...


class RawMerger(Protocol):
    """Begins the merge of the raw parts of each round."""

    def fault(self, raw: memoryview) -> str | None:
        """Return why the raw part of an update is not valid; None if it is. Off the event loop."""
        ...

    def begin(self, old: bytes, folder: Path) -> RawMerge:
        """Begin a round on a version with the raw part `old`; `folder` may hold temporary files."""
        ...


class RuleMerger:
    """Merges raw parts by a rule."""

    def __init__(self, rule: RawRule) -> None:
        self._rule = rule

    def fault(self, raw: memoryview) -> str | None:
        """Return why the raw part of an update is not valid; None if it is."""
        return self._rule.fault(raw)

    def begin(self, old: bytes, folder: Path) -> "RawUpdates":
        """Begin a round on a version with the raw part `old`."""
        return RawUpdates(self._rule, old, folder)


@dataclass(frozen=True, slots=True)
class _Kept:
    device: str
    row: int
    n: int
    at: int
    size: int


class RawUpdates:
    """Keeps raw parts until the end of a round, and merges them by a rule.

    Args:
        rule: The rule.
        old: The raw part of the version that is trained.
        folder: Of the temporary file.
    """

    def __init__(self, rule: RawRule, old: bytes, folder: Path) -> None:
        self._rule, self._old = rule, old
        self._kept: list[_Kept] = []
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES, dir=str(folder))  # noqa: SIM115 - open as long as this object
        self._end = 0
        weakref.finalize(self, self._file.close)

    def add(self, device: str, row: int, n: int, raw: memoryview) -> None:
        """Add the raw part of an update.

        Raises:
            OSError: The disk is full.
        """
        self._kept.append(_Kept(device, row, n, self._end, len(raw)))
        self._file.write(raw)
        self._end += len(raw)

    def finish(self, counts: Sequence[bool]) -> tuple[bytes, tuple[Note, ...]]:
        """Return the next raw part, and what is remarkable about it.

        The order of arrival changes nothing, except of several updates of one device.
        """
        counted = [one for one, is_counted in zip(self._kept, counts, strict=True) if is_counted]
        return self._rule.merge(self._old, self._read(sorted(counted, key=lambda one: one.row)))

    def _read(self, kept: list[_Kept]) -> Iterator[RawUpdate]:
        for one in kept:
            self._file.seek(one.at)
            yield RawUpdate(one.device, one.n, self._file.read(one.size))
