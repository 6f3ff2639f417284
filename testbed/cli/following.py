"""What follows a run while its command lasts, as the exporter of metrics: parts of rooms."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol


class Follower(Protocol):
    """Reads the store of a run, and does not change the run."""

    @property
    def lines(self) -> Sequence[str]:
        """What a person should know when the run starts."""
        ...

    def following(self, folder: Path) -> AbstractContextManager[None]:
        """Follow the run in a folder, which need not exist yet, until the context ends."""
        ...


class Followers:
    """All followers that the options of a command ask for."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self._followers = followers

    @property
    def lines(self) -> list[str]:
        """What a person should know when the run starts."""
        return [line for follower in self._followers for line in follower.lines]

    @contextmanager
    def following(self, folder: Path) -> Iterator[None]:
        """Follow the run in a folder, which need not exist yet, until the context ends."""
        with ExitStack() as stack:
            for follower in self._followers:
                stack.enter_context(follower.following(folder))
            yield


@contextmanager
def followers_of(options: argparse.Namespace) -> Iterator[Followers]:
    """Open what the options ask for, before the run starts.

    Raises:
        UsageError: An option cannot be used.
        RunError: An address is taken, or a folder cannot be written.
    """
    with ExitStack() as stack:
        found = list[Follower]()
        if options.has_rooms:
            from fairbed.testbed import rooms

            for make in rooms.parts("follower"):
                found.append(stack.enter_context(make(options)))
        yield Followers(found)
