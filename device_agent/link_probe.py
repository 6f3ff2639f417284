"""Probes of the link, when no recent transfer has measured it.

An empty probe measures the round trip, a probe with a 64 KB payload the uplink, and a probe with a
64 KB reply the downlink. `device_agent.state.link_estimate` decides when probes are due.
"""

import logging
import os
from collections.abc import Callable

import anyio

from fairbed.device_agent.host import Clock
from fairbed.device_agent.notify import Notify
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.state.link_estimate import PROBE_BYTES, LinkEstimate
from fairbed.wire.messages import LinkProbe, LinkProbeReply

_log = logging.getLogger(__name__)


class LinkProber:
    """Sends probes one at a time and handles their replies."""

    def __init__(
        self,
        name: str,
        publisher: DevicePublisher,
        link: LinkEstimate,
        clock: Clock,
        timeout_s: float,
        is_idle: Callable[[], bool],
    ) -> None:
        self._name = name
        self._publisher = publisher
        self._link = link
        self._clock = clock
        self._timeout_s = timeout_s
        self._is_idle = is_idle
        """Returns whether no round is running: probes and transfers of a round would disturb each
        other."""
        self._wakeup = Notify()
        self._seq = 0
        self._replied_at = 0.0
        self._reply = anyio.Event()

    async def run(self) -> None:
        """Measure whenever a rate is too old and no round is running."""
        while True:
            await self._wakeup.wait(self._wait_s())
            if self._is_idle():
                await self.measure()

    def wake(self) -> None:
        """Check again for due probes: the device became idle, or the link came back."""
        self._wakeup.notify()

    async def measure(self) -> None:
        """Probe the directions that are unknown or too old; stop if a reply is missing."""
        due = self._link.due_probes(self._clock.now())
        if not due:
            return
        self._link.on_probe_sent(len(due) * PROBE_BYTES, self._clock.now())
        round_trip_s = await self._probe(b"", 0)
        if round_trip_s is None:
            return
        self._link.on_round_trip(round_trip_s)
        for direction in due:
            if direction == "up":
                elapsed_s = await self._probe(os.urandom(PROBE_BYTES), 0)
            else:
                elapsed_s = await self._probe(b"", PROBE_BYTES)
            if elapsed_s is None:
                return
            self._link.on_transfer(direction, PROBE_BYTES, elapsed_s, self._clock.now())

    def on_reply(self, reply: LinkProbeReply) -> None:
        """Handle the reply to the current probe; a late reply is ignored."""
        if reply.seq == self._seq and not self._reply.is_set():
            self._replied_at = self._clock.now()
            self._reply.set()

    def _wait_s(self) -> float | None:
        """Return the time until a probe is due; None if one is due: then `wake` is awaited."""
        now = self._clock.now()
        due_at = self._link.next_probe_at(now)
        return due_at - now if due_at > now else None

    async def _probe(self, payload: bytes, reply_bytes: int) -> float | None:
        """Return the duration of one probe; None if it was disturbed or got no reply."""
        self._seq += 1
        self._reply = anyio.Event()
        sent_at = self._clock.now()
        probe = LinkProbe(seq=self._seq, payload=payload, reply_bytes=reply_bytes)
        with anyio.move_on_after(self._timeout_s):
            if await self._publisher.send(probe, qos=0):
                await self._reply.wait()
        if not (self._reply.is_set() and self._is_idle()):
            _log.debug("%s: link probe without a usable reply", self._name)
            return None
        return self._replied_at - sent_at
