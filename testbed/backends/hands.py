"""Who starts agents and ends them, as a crew needs it."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from testbed.launcher import Launch


class Hands(Protocol):
    """Satisfied by `Agents`, which has a nursery, and by `Containers`."""

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the agents that are alive."""
        ...

    async def start(self, launches: Sequence[Launch]) -> None:
        """Start agents, all at once; return when every process exists."""
        ...

    async def end(self, names: Iterable[str], number: int) -> None:
        """Send a signal to the agents that are alive; return when they are gone."""
        ...

    async def signal(self, names: Iterable[str], number: int) -> None:
        """Send a signal to the agents that are alive, and wait for nothing."""
        ...
