"""Starts relay processes and sends requests to them."""

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

from fairbed.testbed.backends.helper import (
    ANSWER_TIMEOUT_S,
    HelperEnded,
    OnEnd,
    end_helper,
    open_helper,
)
from fairbed.testbed.backends.network.plan.relay_protocol import (
    RelayedLink,
    RelayedLinkState,
    RelayReply,
    RelayRequest,
    RelaySetup,
)
from fairbed.testbed.errors import BackendError

LINKS_PER_RELAY = 20
"""A packet takes 50 to 75 us of a core (`fairbed bench network-cost`): 20 devices that receive at
5 Mbit/s take half a core."""

MAX_REPLY_BYTES = 1 << 16
"""Longest reply: 20 names with their counts take 1 kB."""


class _RelayPipe:
    def __init__(self, name: str, process: Process, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._name, self._log, self._process = name, log, process
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)
        self._lock = anyio.Lock()

    async def request(self, message: msgspec.Struct) -> RelayReply:
        """Send one message and return the reply; cancellation does not interrupt it."""
        async with self._lock:
            try:
                with anyio.CancelScope(shield=True), anyio.fail_after(ANSWER_TIMEOUT_S):
                    await self._stdin.send(msgspec.json.encode(message) + b"\n")
                    reply_line = await self._stdout.receive_until(b"\n", MAX_REPLY_BYTES)
            except (
                OSError,
                TimeoutError,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,
                anyio.EndOfStream,
                anyio.IncompleteRead,
            ) as exc:
                raise BackendError(
                    f"{self._name}: must stay alive and reply, got {exc!r}; see {self._log}"
                ) from exc
        reply = msgspec.json.decode(reply_line, type=RelayReply)
        if reply.problem:
            raise BackendError(f"{self._name}: {reply.problem}")
        return reply

    async def watch(self, on_end: OnEnd) -> None:
        """Report the end of the process, which is never requested while this waits."""
        status = await self._process.wait()
        on_end(HelperEnded(self._name, status, was_requested=False, is_device=False))


class Relays:
    """All relays of a network; see `open_relays`."""

    def __init__(self) -> None:
        self._pipes: list[_RelayPipe] = []
        self._of: dict[str, _RelayPipe] = {}

    @property
    def pids(self) -> list[int]:
        """Process ids of all relays."""
        return [pipe.pid for pipe in self._pipes]

    def path(self, name: str) -> list[int]:
        """Return the process id of the relay of a device, if it has one."""
        pipe = self._of.get(name)
        return [] if pipe is None else [pipe.pid]

    def add(self, pipe: _RelayPipe, devices: Mapping[str, RelayedLink]) -> None:
        """Add a relay and its devices."""
        self._pipes.append(pipe)
        self._of.update(dict.fromkeys(devices, pipe))

    async def watch(self, on_end: OnEnd) -> None:
        """Report each relay that ends; without relays, return at once."""
        async with anyio.create_task_group() as tasks:
            for pipe in self._pipes:
                tasks.start_soon(pipe.watch, on_end, name=f"relay[{pipe.pid}].end")

    async def change(self, changes: Mapping[str, RelayedLinkState]) -> None:
        """Change links; return when the changes are in effect.

        Raises:
            BackendError: A relay has ended, or could not apply a change.
        """
        for pipe in self._pipes:
            own = {name: state for name, state in changes.items() if self._of[name] is pipe}
            if own:
                await pipe.request(RelayRequest(changes=own))

    async def lost(self) -> dict[str, int]:
        """Return how many packets of each device were lost.

        Raises:
            BackendError: A relay has ended.
        """
        found: dict[str, int] = {}
        for pipe in self._pipes:
            found.update((await pipe.request(RelayRequest())).lost)
        return found


@asynccontextmanager
async def open_relays(
    host: str, hub: Path, seed: int, links: Mapping[str, RelayedLink], log: Path
) -> AsyncIterator[Relays]:
    """Make the TUN links of devices, and relay between them.

    Args:
        host: `identity` of the host's namespace.
        hub: Path of the hub's namespace.
        seed: Seed of loss and jitter.
        links: The links by device; may be empty.
        log: Receives the output of the processes.

    Raises:
        BackendError: A relay cannot be started.
    """
    names = iter(links)
    relays = Relays()
    async with AsyncExitStack() as stack:
        pipes = []
        for index in range(math.ceil(len(links) / LINKS_PER_RELAY)):
            name = f"relay-{index}"
            try:
                process = await open_helper("fairbed.testbed.backends.network.relay", log=log)
            except OSError as exc:
                raise BackendError(
                    f"{name}: cannot be started, {exc!r}; end other processes"
                ) from exc
            stack.push_async_callback(end_helper, process, signal.SIGKILL)
            pipes.append(_RelayPipe(name, process, log))
        for pipe in pipes:  # after all were started, so that they start in parallel
            own = {name: links[name] for name in islice(names, LINKS_PER_RELAY)}
            await pipe.request(RelaySetup(host=host, hub=str(hub), seed=seed, links=own))
            relays.add(pipe, own)
        yield relays
