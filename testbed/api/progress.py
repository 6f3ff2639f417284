"""Progress of long work, as the caller of a function wants it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from fairbed.testbed.progress import Bar, progress

Progress: TypeAlias = "Callable[[int, int], object] | bool | None"
"""What shows progress: None is a bar on a terminal and in a notebook, and nothing elsewhere; False
is nothing; a function is called with the finished and the planned rounds, or runs of a grid."""


def count_rounds(bar: Bar, rounds: int) -> None:
    """Count the rounds that were not empty; those before a resumed run have no rate."""
    bar.skip(max(rounds - 1 - bar.done, 0))
    bar.update(rounds)


@contextmanager
def shown(
    wanted: Progress, total: int | None, unit: str, label: str, *, is_ticking: bool = False
) -> Iterator[Bar]:
    """Show the progress of some work until it ends; the other arguments are those of `progress`."""
    if wanted is None or wanted is True:
        with progress(total, unit, label, is_ticking=is_ticking) as bar:
            yield bar
    else:
        yield _Reporter(wanted or (lambda done, total: None), total, unit, label)


class _Reporter(Bar):
    """Calls a function with the finished and planned units."""

    def __init__(
        self, report: Callable[[int, int], object], total: int | None, unit: str, label: str
    ) -> None:
        super().__init__(total, unit, label, sys.stderr)
        self._report = report

    def update(self, done: float) -> None:
        super().update(done)
        self._report(round(done), round(self.total or 0))

    def line(self, text: str) -> None:
        """Print nothing: the run stores what happens."""
