"""Starts relays, and passes orders on to them."""

import math
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from testbed.backends.errors import BackendError
from testbed.backends.helper import ANSWER_TIMEOUT_S, end_helper, open_helper
from testbed.backends.network.orders import AirState, Order, Relayed, RelayedLink, Report

LINKS_PER_RELAY = 50
"""A packet costs a relay 20 to 40 us of a core: 50 devices at 1 Mbit/s take about 15 %."""

MAX_REPORT_BYTES = 1 << 16
"""50 names with their counts take 2 kB."""


class _RelayPipe:
    def __init__(self, name: str, process: Process, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._name, self._log = name, log
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)
        self._lock = anyio.Lock()

    async def tell(self, what: msgspec.Struct) -> Report:
        """Say one line, return the answer; not interrupted by a cancellation."""
        async with self._lock:
            try:
                with anyio.CancelScope(shield=True), anyio.fail_after(ANSWER_TIMEOUT_S):
                    await self._stdin.send(msgspec.json.encode(what) + b"\n")
                    answer = await self._stdout.receive_until(b"\n", MAX_REPORT_BYTES)
            except (
                OSError,
                TimeoutError,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,
                anyio.EndOfStream,
                anyio.IncompleteRead,
            ) as exc:
                raise BackendError(
                    f"{self._name}: must stay alive and answer, got {exc!r}; see {self._log}"
                ) from exc
        report = msgspec.json.decode(answer, type=Report)
        if report.problem:
            raise BackendError(f"{self._name}: {report.problem}")
        return report


class Relays:
    """All relays of a network; see `open_relays`."""

    def __init__(self) -> None:
        self._pipes: list[_RelayPipe] = []
        self._of: dict[str, _RelayPipe] = {}
        self.late_s = 0.0
        """The most that a packet left later than it was due; who looks at it sets it back."""

    @property
    def pids(self) -> list[int]:
        """Process ids of all relays."""
        return [pipe.pid for pipe in self._pipes]

    def add(self, pipe: _RelayPipe, devices: Mapping[str, RelayedLink]) -> None:
        """Know a relay and its devices."""
        self._pipes.append(pipe)
        self._of.update(dict.fromkeys(devices, pipe))

    async def change(self, changes: Mapping[str, AirState]) -> None:
        """Change links; return when the changes hold.

        Raises:
            BackendError: A relay is gone, or could not.
        """
        for pipe in self._pipes:
            own = {name: state for name, state in changes.items() if self._of[name] is pipe}
            if own:
                self._note(await pipe.tell(Order(changes=own)))

    async def lost(self) -> dict[str, int]:
        """Return how many packets of each device were lost.

        Raises:
            BackendError: A relay is gone.
        """
        found: dict[str, int] = {}
        for pipe in self._pipes:
            found.update(self._note(await pipe.tell(Order())))
        return found

    def _note(self, report: Report) -> dict[str, int]:
        self.late_s = max(self.late_s, report.late_s)
        return report.lost


@asynccontextmanager
async def open_relays(
    host: str, hub: Path, seed: int, links: Mapping[str, RelayedLink], log: Path
) -> AsyncIterator[Relays]:
    """Make the TUN links of devices, and relay between them.

    Args:
        host: `identity` of the host's namespace.
        hub: The hub's namespace.
        seed: Of loss and jitter.
        links: Devices; may be none.
        log: Receives what the processes have to say.

    Raises:
        BackendError: A relay does not come up.
    """
    names = iter(links)
    relays = Relays()
    async with AsyncExitStack() as stack:
        for index in range(math.ceil(len(links) / LINKS_PER_RELAY)):
            own = {name: links[name] for name in islice(names, LINKS_PER_RELAY)}
            name = f"relay-{index}"
            try:
                process = await open_helper("testbed.backends.network.relay", log=log)
            except OSError as exc:
                raise BackendError(f"{name}: cannot be started, {exc!r}") from exc
            stack.push_async_callback(end_helper, process, signal.SIGKILL)
            pipe = _RelayPipe(name, process, log)
            await pipe.tell(Relayed(host=host, hub=str(hub), seed=seed, links=own))
            relays.add(pipe, own)
        yield relays
