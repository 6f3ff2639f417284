"""Whose topic tree it is: one coordinator at a time, and who came first stays.

A newcomer says that it is here but not on (`off` with its own boot, not retained: devices pass
over it). Whoever is on answers `on`, and the newcomer gives up. A retained `on` that nobody
stands behind, of a coordinator whose last will never came, is passed over after `ANSWER_S`.
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
"""A coordinator that is alive and linked answers within this."""

LOOKER = 1 << 40
"""Boot of one that only looks: the largest, so that it gives way to whoever wants the tree."""


class AnotherCoordinatorError(Exception):
    """The topic tree is another coordinator's."""


class CoordinatorLease:
    """One coordinator's claim to a topic tree.

    Two that start in the same instant may both find the tree free; then, as after a time in which
    the first one had no link, the smaller boot stays.

    Args:
        transport: The link; it may come and go.
        topics: The tree.
        boot: Of this coordinator process.
        on_lost: Called when the tree was ours and turns out to be another's.
    """

    def __init__(
        self,
        transport: Transport,
        topics: Topics,
        boot: int,
        *,
        on_lost: Callable[[AnotherCoordinatorError], None] = lambda why: None,
    ) -> None:
        self.is_ours = False
        """We are on, and say so to whoever asks."""
        self._transport = transport
        self._topics = topics
        self._boot = boot
        self._on_lost = on_lost
        self._is_echoed = False
        self._rival: int | None = None
        """Boot of one that may be alive."""
        self._owner: CoordinatorStatus | None = None
        """One that is alive."""
        self._is_doubted = self._was_on = False
        self._moved = anyio.Event()

    async def take(self) -> None:
        """Return when the tree is ours; nothing has been written to it before.

        Raises:
            AnotherCoordinatorError: It is another's.
        """
        challenge = CoordinatorStatus(state="off", boot=self._boot)
        with suppress(Disconnected):  # the filter is remembered
            await self._transport.subscribe(self._topics.coordinator, qos=1)
        while not self._is_echoed and self._owner is None:
            with suppress(Disconnected):
                await self._transport.publish(self._topics.coordinator, encode(challenge), qos=1)
            await self._wait(lambda: self._is_echoed or self._owner is not None, once=True)
        await self._wait(lambda: self._rival is None or self._owner is not None)
        if self._owner is not None:
            raise self._taken_by(self._owner)
        self.is_ours = True

    async def doubted(self) -> bool:
        """Wait until we should say again that we are on.

        Returns:
            Somebody else has said so of himself: what we keep in the broker may be cleared.
        """
        while not self._is_doubted:
            await self._moved.wait()
        was_on, self._is_doubted, self._was_on = self._was_on, False, False
        return was_on

    def give_up(self) -> bool:
        """Answer nobody any more; tell whether the tree was ours."""
        was_ours, self.is_ours = self.is_ours, False
        return was_ours

    def on_link_up(self) -> None:
        """Ask again: what was asked before may be lost."""
        self._move()

    def on_packet(self, packet: Packet) -> None:
        """Deal with what somebody says of his presence; what is no status is passed over."""
        try:
            status = decode_to_device(packet.payload)
        except DecodeError:
            return
        if not isinstance(status, CoordinatorStatus):
            return
        if self.is_ours:
            self._defend(status, is_live=not packet.retained)
        elif status.boot == self._boot:
            self._is_echoed = True
        elif status.state == "on" and not packet.retained:
            self._owner = status
        elif status.state == "on":
            self._rival = status.boot
        elif status.boot == self._rival:
            self._rival = None  # its last will
        elif status.boot < self._boot and not packet.retained:
            self._rival = status.boot  # it begins as we do, and goes first
        self._move()

    def _defend(self, status: CoordinatorStatus, *, is_live: bool) -> None:
        is_own, is_on = status.boot == self._boot, status.state == "on"
        if not is_live or (is_own and is_on):
            return
        if is_on and status.boot < self._boot:
            self.is_ours = False
            self._on_lost(self._taken_by(status))
        else:  # a newcomer asks, or a last will, even our own that comes late, hides that we are on
            self._is_doubted = True
            self._was_on |= is_on

    async def _wait(self, holds: Callable[[], bool], *, once: bool = False) -> None:
        """Wait until something holds, or with `once` for any news; at most `ANSWER_S`."""
        with anyio.move_on_after(ANSWER_S):
            while not holds():
                await self._moved.wait()
                if once:
                    return

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    def _taken_by(self, status: CoordinatorStatus) -> AnotherCoordinatorError:
        return AnotherCoordinatorError(
            f"{self._topics.base}: must have one coordinator at a time, got another one that is "
            f"on (run {status.run!r}); stop that one, or give this one a broker.tenant of its own"
        )


async def look(transport: Transport, topics: Topics) -> None:
    """Return when the tree is free, and leave no trace.

    Raises:
        AnotherCoordinatorError: A coordinator is on.
        Refused: The broker refused us.
    """
    claim = CoordinatorLease(transport, topics, LOOKER)
    failure: Exception | None = None

    async def take(scope: anyio.CancelScope) -> None:
        nonlocal failure
        try:
            await claim.take()
        except AnotherCoordinatorError as exc:  # leaves the group as itself, not in a group
            failure = exc
        scope.cancel()

    async with transport, anyio.create_task_group() as group:
        group.start_soon(take, group.cancel_scope)
        try:
            async for event in transport.events():
                if isinstance(event, LinkUp):
                    claim.on_link_up()
                elif isinstance(event, Packet):
                    claim.on_packet(event)
        except Refused as exc:
            failure = exc
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure
