"""The relay: a process beside a live run that answers viewers on other machines with its rows.

    python -m fairbed.testbed.remote.relay FOLDER

The run starts it when a viewer asks, and closes its standard input at the end. It reads the store
as a control room of this machine does, has a connection of its own and the lowest priority, and
answers each viewer at most once a second with one page of `RowSource`. It keeps no rows: a viewer
that is slow, gone or new asks with its own cursor. `Relay` has neither sockets nor clock.
"""

import logging
import math
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.replication import SCHEMA, RowSource, decode_cursor, encode_page
from fairbed.testbed.broker.named import room_login
from fairbed.testbed.broker.permissions import COORDINATOR
from fairbed.testbed.errors import UsageError
from fairbed.testbed.run_folder import read_endpoint
from fairbed.wire.codec import decode_rows_request, encode
from fairbed.wire.console import log_lines
from fairbed.wire.errors import DecodeError, Disconnected, TransportError, innermost
from fairbed.wire.messages import MAX_PART_BYTES, MAX_PARTS, RowsPart, RowsRequest
from fairbed.wire.topics import ANY, Topics
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet, Transport
from fairbed.wire.transport.client import MqttTransport

MAX_VIEWERS = 16
"""Viewers at a time."""
INTERVAL_S = 1.0
"""Shortest time between two pages of one viewer, unless the first has more to follow."""
HOLD_S = 5.0
"""Longest time until a request is answered although the run has no new rows."""
TICK_S = 0.25
"""Time between two looks for new rows: the commit interval of the store."""
RATE_BYTES_PER_S = 512 * 1024
"""Most bytes of pages per second, all viewers together: 4 Mbit/s of the network of the devices."""
IDLE_S = 30.0
"""Time without a request after which a viewer is forgotten, and the relay ends."""
END_S, QUIET_S = 5.0, 1.0
"""Longest time for last rows after the run, and the time without a request that ends it before."""
NICENESS = 19

OVERHEAD_BYTES = 200
"""Largest size of a part without its bytes."""

_LOG = logging.getLogger("relay")


@dataclass(slots=True)
class _Viewer:
    requested_s: float
    """Instant of its newest request."""
    request: RowsRequest | None = None
    """The newest one, until it is answered."""
    due_s: float = -math.inf
    """Earliest instant of the next answer."""
    version: int = -1
    """Version of the data at the last answer."""


class Relay:
    """Decides which viewer gets a page, and when.

    Args:
        source: Reads the pages.
        data_version: Returns another number when the store has new rows.
        run_version: Version of Fairbed that the run uses.
    """

    def __init__(
        self, source: RowSource, data_version: Callable[[], int], run_version: str
    ) -> None:
        self._source, self._data_version, self._run_version = source, data_version, run_version
        self._viewers: dict[str, _Viewer] = {}
        self._last_request_s: float | None = None

    def on_request(self, viewer: str, request: RowsRequest, now_s: float) -> RowsPart | None:
        """Note a request, in place of an older one; return a refusal that is due at once."""
        known = self._viewers.get(viewer)
        if known is None and len(self._viewers) >= MAX_VIEWERS:
            text = f"a run has at most {MAX_VIEWERS} viewers on other machines; close one of them"
            return RowsPart(id=request.id, problem=text)
        if request.schema != SCHEMA:
            text = (
                f"the run is of Fairbed {self._run_version}, whose tables differ from those of "
                f"this viewer; install it here: pip install 'fairbed=={self._run_version}'"
            )
            return RowsPart(id=request.id, problem=text)
        self._last_request_s = now_s
        if known is None:
            known = self._viewers[viewer] = _Viewer(now_s)
        known.requested_s, known.request = now_s, request
        return None

    def forget_silent(self, now_s: float) -> int:
        """Forget viewers without a request for `IDLE_S`; return the number of the others."""
        for name, viewer in list(self._viewers.items()):
            if now_s - viewer.requested_s > IDLE_S:
                del self._viewers[name]
        return len(self._viewers)

    def silence_s(self, now_s: float) -> float:
        """Return the time since the newest request, seconds; infinite if there was none."""
        return math.inf if self._last_request_s is None else now_s - self._last_request_s

    def due(self, now_s: float, *, at_once: bool = False) -> list[str]:
        """Return the viewers that get a page now, longest wait first.

        Args:
            now_s: Instant.
            at_once: The run is over: no viewer waits for new rows.
        """
        waiting = [
            (x.requested_s, name) for name, x in self._viewers.items() if x.request is not None
        ]
        if not waiting:
            return []
        version = self._data_version()
        due = []
        for requested_s, name in sorted(waiting):
            viewer = self._viewers[name]
            assert viewer.request is not None
            is_new = not viewer.request.after or viewer.version != version
            if at_once or (now_s >= viewer.due_s and (is_new or now_s - requested_s >= HOLD_S)):
                due.append(name)
        return due

    def take(self, viewer: str) -> RowsRequest:
        """Return the request of a viewer that is `due`; it is answered then."""
        known = self._viewers[viewer]
        request, known.request = known.request, None
        assert request is not None
        known.version = self._data_version()
        return request

    def parts(self, request: RowsRequest, part_bytes: int) -> tuple[list[RowsPart], bool]:
        """Return the page that a viewer asked for, and whether more follows; a thread may call it.

        Args:
            request: The request.
            part_bytes: Largest part.
        """
        try:
            page = self._source.page(decode_cursor(request.after))
        except StoreError as exc:
            return [RowsPart(id=request.id, problem=str(exc))], False
        body = encode_page(page)
        starts = range(0, len(body), part_bytes)
        if len(starts) > MAX_PARTS:
            text = f"a page must have at most {MAX_PARTS} parts, got {len(starts)}"
            return [RowsPart(id=request.id, problem=f"{text}; watch the run where it runs")], False
        return [
            RowsPart(id=request.id, part=i, parts=len(starts), body=body[at : at + part_bytes])
            for i, at in enumerate(starts)
        ], page.has_more

    def note_answer(self, viewer: str, now_s: float, *, has_more: bool) -> None:
        """Note that a viewer has its page: the next one waits, unless it is the rest of this."""
        if viewer in self._viewers:
            self._viewers[viewer].due_s = now_s if has_more else now_s + INTERVAL_S


async def serve(
    relay: Relay, transport: Transport, topics: Topics, part_bytes: int, over: anyio.Event
) -> None:
    """Answer viewers until none has asked for `IDLE_S`, or the run is over and they have its end.

    Raises:
        Refused: The broker refused the connection.
    """
    wakeup = anyio.Event()

    async def publish(viewer: str, part: RowsPart) -> None:
        with suppress(Disconnected):  # the viewer asks again
            await transport.publish(topics.rows(viewer), payload := encode(part))
            await anyio.sleep(len(payload) / RATE_BYTES_PER_S)

    async def receive() -> None:
        async for event in transport.events():
            match event:
                case LinkUp() | LinkDown():
                    continue
                case Packet(retained=False):
                    pass
                case _:
                    continue
            try:
                viewer = topics.viewer_of(event.topic)
                request = decode_rows_request(event.payload)
            except DecodeError as exc:
                _LOG.debug("%s: %s", event.topic, exc)
                continue
            if viewer is None:
                continue
            refusal = relay.on_request(viewer, request, anyio.current_time())
            if refusal is not None:
                await publish(viewer, refusal)
            wakeup.set()

    async def answer() -> None:
        nonlocal wakeup
        started_s, ends_s = anyio.current_time(), math.inf
        while True:
            now_s = anyio.current_time()
            if over.is_set():
                ends_s = min(ends_s, now_s + END_S)
            has_viewers = relay.forget_silent(now_s) > 0
            for viewer in relay.due(now_s, at_once=over.is_set()):
                request = relay.take(viewer)
                parts, has_more = await anyio.to_thread.run_sync(relay.parts, request, part_bytes)
                for part in parts:
                    await publish(viewer, part)
                relay.note_answer(viewer, now_s, has_more=has_more)
            silence_s = relay.silence_s(now_s)
            if over.is_set() and (now_s >= ends_s or silence_s > QUIET_S):
                return
            if not has_viewers and now_s - started_s > IDLE_S:
                return
            with anyio.move_on_after(TICK_S):
                await wakeup.wait()
            wakeup = anyio.Event()

    async with transport, anyio.create_task_group() as group:
        group.start_soon(receive, name="relay.receive")
        with suppress(Disconnected):
            await transport.subscribe(topics.watch(ANY))
        await answer()
        group.cancel_scope.cancel()


async def _end_of_input(over: anyio.Event) -> None:
    while not over.is_set():
        await anyio.wait_readable(sys.stdin.fileno())
        if not os.read(sys.stdin.fileno(), 16):
            over.set()


async def _main(folder: Path) -> None:
    endpoint = read_endpoint(folder)
    if endpoint is None:
        return  # the run is over
    url = room_login(endpoint, COORDINATOR) or endpoint.url
    over = anyio.Event()
    with RunReader(folder) as reader:
        relay = Relay(RowSource(reader), reader.data_version, reader.run().row.version)
        part_bytes = min(MAX_PART_BYTES, endpoint.max_chunk_bytes - OVERHEAD_BYTES)
        transport = MqttTransport(url, f"relay-{secrets.token_hex(6)}")
        async with anyio.create_task_group() as group:
            group.start_soon(_end_of_input, over, name="relay.stdin")
            await serve(relay, transport, Topics(endpoint.tenant), part_bytes, over)
            group.cancel_scope.cancel()


def main() -> int:
    """Answer viewers of the run in the folder of the first argument; return the exit code."""
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    log_lines("warning", "relay: %(message)s")
    try:
        anyio.run(_main, Path(sys.argv[1]))
    except Exception as exc:
        cause = innermost(exc)
        if not isinstance(cause, StoreError | UsageError | TransportError | OSError):
            raise
        _LOG.error("%s", cause)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
