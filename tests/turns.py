"""Which tests run side by side, and in which order, on several workers (`pytest -n 2`).

A test marked `alone` measures this machine, or looks for what others leave on it: while it runs,
no other test does. All others run side by side. The tests that are alone come first, in one block,
so that a worker waits once and not between any two of them; then come the long ones, so that no
worker ends minutes after the others.
"""

import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "win32":
    import fcntl

FOLDER = "turns"
"""Key under which a worker is told where the locks are."""


class Turns:
    """A plugin of pytest: each test waits for its turn, outside of its own time-out.

    Without workers no test waits, and the order stays.
    """

    def __init__(self) -> None:
        self._made = ExitStack()
        self._folder: Path | None = None
        self._block = ExitStack()
        """Holds the turn of a block of tests that are alone."""
        self._is_in_block = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where the locks are; called in the process that starts the workers."""
        if self._folder is None:
            name = self._made.enter_context(tempfile.TemporaryDirectory(prefix="fairbed-turns-"))
            self._folder = Path(name)
        node.workerinput[FOLDER] = str(self._folder)

    def pytest_unconfigure(self) -> None:
        """Remove the locks."""
        self._block.close()
        self._made.close()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Sort the tests of a worker; all workers sort alike."""
        if FOLDER in getattr(config, "workerinput", {}):
            items.sort(key=_rank)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Run one test with its fixtures, in its turn."""
        folder = getattr(item.config, "workerinput", {}).get(FOLDER)
        if folder is None:
            return (yield)
        if not self._is_in_block:
            self._block.enter_context(turn(Path(folder), alone=_is_alone(item)))
        try:
            return (yield)
        finally:
            self._is_in_block = nextitem is not None and _is_alone(item) and _is_alone(nextitem)
            if not self._is_in_block:
                self._block.close()


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _rank(item: pytest.Item) -> int:
    """Return 0 for a test that is alone, 1 for a long one, 2 for another."""
    if _is_alone(item):
        return 0
    return 1 if item.get_closest_marker("slow") is not None else 2


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Wait until it is our turn, and have it for the length of a block.

    Whoever waits holds the gate, so that others, one after another, cannot keep it from one that
    wants to be alone.
    """
    with ExitStack() as room:
        with _locked(folder / "gate", shared=False):
            room.enter_context(_locked(folder / "room", shared=not alone))
        yield


@contextmanager
def _locked(path: Path, *, shared: bool) -> Iterator[None]:
    if sys.platform == "win32":
        raise OSError("tests run one at a time on Windows: leave out -n")
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that a test forked holds the file, too
