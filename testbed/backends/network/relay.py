"""Relays packets with delay, jitter and loss, where the kernel has no netem.

    device's eth0 (TUN) ---- up ----> hub's dN (TUN)
    device's eth0 (TUN) <--- down --- hub's dN (TUN)

`python -m fairbed.testbed.backends.network.relay PARENT` serves requests on stdin until stdin ends
or the parent ends. Its TUN links then lose their carrier, and are removed with their namespaces.
One loop without threads waits for packets and for the next due time, exact to the microsecond. It
has a real-time priority: each millisecond that it is late lengthens every round trip of its links.
"""

import heapq
import os
import random
import select
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

from fairbed.testbed.backends.network.enter import enter
from fairbed.testbed.backends.network.plan.delay import DelayLine, Impairment
from fairbed.testbed.backends.network.plan.names import DEVICE_LINK
from fairbed.testbed.backends.network.plan.relay_protocol import (
    RelayedLink,
    RelayedLinkState,
    RelayReply,
    RelayRequest,
    RelaySetup,
)
from fairbed.testbed.backends.network.tun import open_tun, set_carrier
from fairbed.testbed.backends.priority import run_first
from fairbed.testbed.host.guard import die_with_parent

MAX_PACKET_BYTES = 2048
"""More than the MTU of the links, 1500."""

PACKETS_AT_ONCE = 64
"""Packets that are read from one link before other links are served."""

MAX_IN_FLIGHT = 16_384
"""Packets in flight in one direction: 240 ms of a gigabit, 2 s of 100 Mbit/s. More are dropped."""

READ_BYTES = 1 << 16


class Direction:
    """One direction of one link: reads packets at one descriptor and writes them at the other."""

    def __init__(self, entry: int, line: DelayLine) -> None:
        self.entry, self.line = entry, line
        self.exit = -1
        """Descriptor for writing: the entry of the other direction; see `Ends`."""
        self.in_flight: deque[tuple[float, bytes]] = deque()
        """(due, packet); bounded by `MAX_IN_FLIGHT`: at the limit new packets are dropped."""
        self.n_lost = 0
        self.is_plugged = True

    def receive(self) -> bool:
        """Read packets; return whether the first packet in flight is new.

        Each has its whole delay, also if it came while others were read.
        """
        was_idle = not self.in_flight
        for _ in range(PACKETS_AT_ONCE):
            try:
                packet = os.read(self.entry, MAX_PACKET_BYTES)
            except OSError:  # no more packets, or the link is down
                break
            due = self.line.due(time.monotonic()) if self.is_plugged else None
            if due is None or len(self.in_flight) >= MAX_IN_FLIGHT:
                self.n_lost += 1
            else:
                self.in_flight.append((due, packet))
        return was_idle and bool(self.in_flight)

    def send_due(self, now: float) -> None:
        """Write the packets that are due."""
        in_flight = self.in_flight
        while in_flight and in_flight[0][0] <= now:
            _, packet = in_flight.popleft()
            try:
                os.write(self.exit, packet)
            except OSError:  # the link is down, or its queue is full
                self.n_lost += 1


class Ends:
    """The two TUN links of one device."""

    def __init__(self, hub: int, device: int, impairment: Impairment, seed: str) -> None:
        self.down = Direction(hub, _delay_line(impairment, f"{seed}/down"))
        self.up = Direction(device, _delay_line(impairment, f"{seed}/up"))
        self.down.exit, self.up.exit = device, hub
        self._is_plugged = True

    def change(self, state: RelayedLinkState) -> None:
        """Change the link; packets in flight keep their arrival times.

        Raises:
            OSError: The kernel refuses to change the carrier.
        """
        for direction in (self.down, self.up):
            direction.line.impairment = state.impairment
            direction.is_plugged = state.is_plugged  # the kernel needs up to a second
            if not state.is_plugged:
                direction.n_lost += len(direction.in_flight)
                direction.in_flight.clear()
        if state.is_plugged != self._is_plugged:
            self._is_plugged = state.is_plugged
            for descriptor in (self.down.entry, self.up.entry):
                set_carrier(descriptor, is_plugged=state.is_plugged)


class Relay:
    """All links of one process."""

    def __init__(self, setup: RelaySetup) -> None:
        self._ends = {name: _open_ends(setup, name, each) for name, each in setup.links.items()}
        self._poll = select.epoll()
        self._by_entry: dict[int, Direction] = {}
        for ends in self._ends.values():
            for direction in (ends.down, ends.up):
                self._by_entry[direction.entry] = direction
                self._poll.register(direction.entry, select.EPOLLIN)
        self._next: list[tuple[float, int]] = []
        """Heap of (due, entry): the first packet of each direction that has packets in flight."""

    def relay_until_request(self, stdin: int) -> bytes:
        """Relay until there is data on stdin; return it, empty at the end of stdin."""
        while True:
            wait_s = max(0.0, self._next[0][0] - time.monotonic()) if self._next else None
            # The timeout of select is exact to the microsecond, that of epoll to the millisecond.
            # It watches the descriptor of epoll, because select accepts none above 1023.
            ready, _, _ = select.select([self._poll.fileno(), stdin], [], [], wait_s)
            if ready:
                for entry, _ in self._poll.poll(0):
                    direction = self._by_entry[entry]
                    if direction.receive():
                        heapq.heappush(self._next, (direction.in_flight[0][0], entry))
                    self._send_due()
            self._send_due()
            if stdin in ready:
                return os.read(stdin, READ_BYTES)

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._next and self._next[0][0] <= now:
            _, entry = heapq.heappop(self._next)
            direction = self._by_entry[entry]
            direction.send_due(now)
            if direction.in_flight:
                heapq.heappush(self._next, (direction.in_flight[0][0], entry))

    def handle(self, request: RelayRequest) -> RelayReply:
        """Change links; return the counters."""
        problem = ""
        for name, state in request.changes.items():
            try:
                self._ends[name].change(state)
            except OSError as exc:
                problem = f"{name}: cannot change the carrier of its link: {exc.strerror}"
        lost = {name: ends.down.n_lost + ends.up.n_lost for name, ends in self._ends.items()}
        return RelayReply(lost=lost, problem=problem)


def _open_ends(setup: RelaySetup, name: str, link: RelayedLink) -> Ends:
    enter(Path(setup.hub), setup.host)
    hub = open_tun(link.hub_link)
    enter(Path(link.namespace), setup.host)
    device = open_tun(DEVICE_LINK)
    return Ends(hub, device, link.impairment, f"{setup.seed}/{name}")


def _delay_line(impairment: Impairment, seed: str) -> DelayLine:
    rng = random.Random(seed)
    return DelayLine(impairment, rng.random, lambda: rng.gauss(0.0, 1.0))


def _send_reply(reply: RelayReply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Relay; the first argument is the parent's process id."""
    die_with_parent(int(sys.argv[1]))
    run_first()
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=RelaySetup)
    try:
        relay = Relay(setup)
    except (OSError, RuntimeError) as exc:
        _send_reply(RelayReply(lost={}, problem=str(exc)))
        return 1
    _send_reply(relay.handle(RelayRequest()))
    stdin = sys.stdin.fileno()
    rest = b""
    while data := relay.relay_until_request(stdin):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            _send_reply(relay.handle(msgspec.json.decode(line, type=RelayRequest)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
