"""Measures the link with small probes when no transfer has done it lately.

An empty probe gives the round trip; one with a 64 KB payload the uplink; one that asks for a
64 KB reply the downlink. The rule for when is in `device_agent.state.link_estimate`.
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
    """Sends probes, one at a time, and takes their replies."""

    def __init__(
        self,
        name: str,
        publisher: DevicePublisher,
        link: LinkEstimate,
        clock: Clock,
        timeout_s: float,
        is_quiet: Callable[[], bool],
    ) -> None:
        self._name = name
        self._publisher = publisher
        self._link = link
        self._clock = clock
        self._timeout_s = timeout_s
        self._is_quiet = is_quiet
        """No round is running whose transfers would disturb the probe, or the other way round."""
        self._wakeup = Notify()
        self._seq = 0
        self._replied_at = 0.0
        self._reply = anyio.Event()

    async def run(self) -> None:
        """Measure again whenever the rates are too old and no round is running."""
        while True:
            await self._wakeup.wait(self._wait_s())
            if self._is_quiet():
                await self.measure()

    def wake(self) -> None:
        """The device became idle, or the link came back: look again."""
        self._wakeup.notify()

    async def measure(self) -> None:
        """Probe what is unknown or too old; a probe without a reply is given up."""
        wanted = self._link.wanted_probes(self._clock.now())
        if not wanted:
            return
        self._link.on_probe_sent(len(wanted) * PROBE_BYTES, self._clock.now())
        round_trip_s = await self._probe(b"", 0)
        if round_trip_s is None:
            return
        self._link.on_round_trip(round_trip_s)
        for direction in wanted:
            if direction == "up":
                elapsed_s = await self._probe(os.urandom(PROBE_BYTES), 0)
            else:
                elapsed_s = await self._probe(b"", PROBE_BYTES)
            if elapsed_s is None:
                return
            self._link.on_transfer(direction, PROBE_BYTES, elapsed_s, self._clock.now())

    def on_reply(self, reply: LinkProbeReply) -> None:
        """Handle the reply to the running probe; a late one is ignored."""
        if reply.seq == self._seq and not self._reply.is_set():
            self._replied_at = self._clock.now()
            self._reply.set()

    def _wait_s(self) -> float | None:
        """Return the time to the next look; None while only `wake` can make one useful."""
        now = self._clock.now()
        due = self._link.next_probe_at(now)
        return due - now if due > now else None

    async def _probe(self, payload: bytes, reply_bytes: int) -> float | None:
        """Return the time of one probe; None if it was disturbed or got no reply."""
        self._seq += 1
        self._reply = anyio.Event()
        sent_at = self._clock.now()
        probe = LinkProbe(seq=self._seq, payload=payload, reply_bytes=reply_bytes)
        with anyio.move_on_after(self._timeout_s):
            if await self._publisher.send(probe, qos=0):
                await self._reply.wait()
        if not (self._reply.is_set() and self._is_quiet()):
            _log.debug("%s: link probe without a usable answer", self._name)
            return None
        return self._replied_at - sent_at
