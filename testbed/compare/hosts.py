"""Hosts that replay the cells of a grid beside this machine, as a grid sees them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from fairbed.testbed.compare.cell import CellOutcome
from fairbed.testbed.compare.needed_files import NeededFile
from fairbed.testbed.compare.worker import CellJob


class CellHosts(Protocol):
    """Hosts of a grid of replays."""

    def check_files(self, files: Sequence[NeededFile]) -> None:
        """Check that all hosts have the files that a grid reads.

        Raises:
            BackendError: A host lacks one; one line.
        """
        ...

    async def run(
        self,
        jobs: Sequence[CellJob],
        n_parallel: int | None,
        report: Callable[[CellJob, CellOutcome], None],
        note: Callable[[str], None],
    ) -> None:
        """Replay cells, each as a whole or not at all.

        Args:
            jobs: The cells.
            n_parallel: Largest number at a time; None is one per core.
            report: Called with each outcome as soon as it is known.
            note: Called with lines about hosts.
        """
        ...
