"""The coordinator lease: one coordinator per topic tree; the first one keeps it.

A new coordinator publishes a challenge: `off` with its own boot, not retained; devices ignore it.
A coordinator that holds the tree answers `on`, and the new one gives up. A retained `on` of a
coordinator that died without a last will is ignored after `ANSWER_S` without an answer.
"""

from collections.abc import Callable
from contextlib import suppress

import anyio

from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.errors import DecodeError, Disconnected, Refused
from fairbed.wire.messages import CoordinatorStatus
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet, Transport

ANSWER_S = 5.0
"""Longest wait for the answer of a live, connected coordinator."""

UNANSWERED = 12
"""Challenges on a live link, each of which may wait `ANSWER_S`, until a start fails."""

OBSERVER_BOOT = 1 << 40
"""Boot of an observer: the largest, so that any coordinator takes precedence."""


class AnotherCoordinatorError(Exception):
    """Another coordinator holds the topic tree."""


class NoEchoError(Exception):
    """The broker does not deliver what a coordinator publishes on its own topic."""


class CoordinatorLease:
    """One coordinator's lease of a topic tree.

    Two coordinators that start in the same instant may both find the tree free. Then the smaller
    boot keeps it; the same rule applies after the holder was disconnected.

    Args:
        transport: The link to the broker; it may be lost and restored.
        topics: The topic tree.
        boot: Random number of this coordinator process.
        on_lost: Called when the lease is lost to another coordinator.
    """

    def __init__(
        self,
        transport: Transport,
        topics: Topics,
        boot: int,
        *,
        on_lost: Callable[[AnotherCoordinatorError], None] = lambda error: None,
    ) -> None:
        self.is_ours = False
        """This coordinator holds the tree and answers `on`."""
        self._transport = transport
        self._topics = topics
        self._boot = boot
        self._on_lost = on_lost
        self._is_echoed = False
        self._rival: int | None = None
        """Boot of another coordinator that may be alive."""
        self._owner: CoordinatorStatus | None = None
        """Status of another coordinator that is alive."""
        self._needs_renewal = self._other_was_on = False
        self._changed = anyio.Event()

    async def acquire(self) -> None:
        """Wait until this coordinator holds the tree; it retains nothing in it before.

        Raises:
            AnotherCoordinatorError: Another coordinator holds it.
            NoEchoError: The broker delivers nothing on the topic of the tree.
        """
        challenge = CoordinatorStatus(state="off", boot=self._boot)
        with suppress(Disconnected):  # the transport keeps the filter
            await self._transport.subscribe(self._topics.coordinator, qos=1)
        unanswered = 0
        while not self._is_echoed and self._owner is None:
            if unanswered == UNANSWERED:
                raise NoEchoError(
                    f"{self._topics.coordinator}: the broker must deliver what a client with a "
                    f"subscription publishes there, got none of {UNANSWERED} messages in "
                    f"{UNANSWERED * ANSWER_S:.0f} s; let the login read and write that topic"
                )
            is_sent = False
            with suppress(Disconnected):
                await self._transport.publish(self._topics.coordinator, encode(challenge), qos=1)
                is_sent = True
            is_late = await self._wait(
                lambda: self._is_echoed or self._owner is not None, once=True
            )
            unanswered += is_sent and is_late
        await self._wait(lambda: self._rival is None or self._owner is not None)
        if self._owner is not None:
            raise self._taken_by(self._owner)
        self.is_ours = True

    async def wait_renewal(self) -> bool:
        """Wait until `on` must be published again.

        Returns:
            Whether another coordinator was on: it may have cleared the retained chunks.
        """
        while not self._needs_renewal:
            await self._changed.wait()
        was_on, self._needs_renewal, self._other_was_on = self._other_was_on, False, False
        return was_on

    def release(self) -> bool:
        """Stop answering; return whether this coordinator held the tree."""
        was_ours, self.is_ours = self.is_ours, False
        return was_ours

    def on_link_up(self) -> None:
        """Publish the challenge again, because the last one may be lost."""
        self._notify()

    def on_packet(self, packet: Packet) -> None:
        """Handle the status of any coordinator; other messages are ignored."""
        try:
            status = decode_to_device(packet.payload)
        except DecodeError:
            return
        if not isinstance(status, CoordinatorStatus):
            return
        if self.is_ours:
            self._answer(status, is_live=not packet.retained)
        elif status.boot == self._boot:
            self._is_echoed = True
        elif status.state == "on" and not packet.retained:
            self._owner = status
        elif status.state == "on":
            self._rival = status.boot
        elif status.boot == self._rival:
            self._rival = None  # its last will
        elif status.boot < self._boot and not packet.retained:
            self._rival = status.boot  # it starts too, and takes precedence
        self._notify()

    def _answer(self, status: CoordinatorStatus, *, is_live: bool) -> None:
        is_own, is_on = status.boot == self._boot, status.state == "on"
        if not is_live or (is_own and is_on):
            return
        if is_on and status.boot < self._boot:
            self.is_ours = False
            self._on_lost(self._taken_by(status))
        else:  # a challenge, or a last will (even our own, delayed) that replaced our status
            self._needs_renewal = True
            self._other_was_on |= is_on

    async def _wait(self, holds: Callable[[], bool], *, once: bool = False) -> bool:
        """Wait at most `ANSWER_S` until a condition holds, or with `once` for any status.

        Returns:
            Whether the time was over.
        """
        with anyio.move_on_after(ANSWER_S) as scope:
            while not holds():
                await self._changed.wait()
                if once:
                    break
        return scope.cancelled_caught

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _taken_by(self, status: CoordinatorStatus) -> AnotherCoordinatorError:
        return AnotherCoordinatorError(
            f"{self._topics.base}: must have one coordinator at a time, got another one that is "
            f"on (run {status.run!r}); stop that one, or give this one a broker.tenant of its own"
        )


async def check_tree_is_free(transport: Transport, topics: Topics) -> None:
    """Wait until the tree is known to be free; retain nothing in it.

    Raises:
        AnotherCoordinatorError: A coordinator holds it.
        Refused: The broker refused the connection.
    """
    lease = CoordinatorLease(transport, topics, OBSERVER_BOOT)
    failure: Exception | None = None

    async def acquire(scope: anyio.CancelScope) -> None:
        nonlocal failure
        try:
            await lease.acquire()
        except AnotherCoordinatorError as exc:  # raised after the group: not in an ExceptionGroup
            failure = exc
        scope.cancel()

    async with transport, anyio.create_task_group() as group:
        group.start_soon(acquire, group.cancel_scope)
        try:
            async for event in transport.events():
                if isinstance(event, LinkUp):
                    lease.on_link_up()
                elif isinstance(event, Packet):
                    lease.on_packet(event)
        except Refused as exc:
            failure = exc
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure
