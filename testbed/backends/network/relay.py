"""Delays, jitters and loses packets where the kernel has no netem.

    device's eth0 (TUN) --- way up ---> hub's dN (TUN)
    device's eth0 (TUN) <-- way down -- hub's dN (TUN)

`python -m fairbed.testbed.backends.network.relay PARENT` obeys `orders` on stdin until it ends or
its
parent dies; then its TUN links have no carrier, and go with their namespaces. One loop, no threads:
it waits for packets and for the next one that is due, whichever comes first, to the microsecond.
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
from fairbed.testbed.backends.priority import raise_priority
from fairbed.testbed.host.guard import die_with_parent

MAX_PACKET_BYTES = 2048
"""The links carry 1500."""

PACKETS_AT_ONCE = 64
"""From one link before others have their turn."""

MAX_UNDER_WAY = 16_384
"""Packets on one way: 240 ms of a gigabit, 2 s of 100 Mbit/s. What comes on top is dropped."""

READ_BYTES = 1 << 16


class Direction:
    """One way of one link: what enters at one descriptor leaves at the other."""

    def __init__(self, entry: int, way: DelayLine) -> None:
        self.entry, self.way = entry, way
        self.exit = -1
        """The other direction's entry; see `Ends`."""
        self.under_way: deque[tuple[float, bytes]] = deque()
        """(due, packet); bounded by `MAX_UNDER_WAY`, then the newest is dropped."""
        self.n_lost = 0
        self.is_plugged = True

    def take_in(self, now: float) -> bool:
        """Read what has come; tell whether something is under way where nothing was."""
        was_idle = not self.under_way
        for _ in range(PACKETS_AT_ONCE):
            try:
                packet = os.read(self.entry, MAX_PACKET_BYTES)
            except OSError:  # no more, or the link is down
                break
            due = self.way.due(now) if self.is_plugged else None
            if due is None or len(self.under_way) >= MAX_UNDER_WAY:
                self.n_lost += 1
            else:
                self.under_way.append((due, packet))
        return was_idle and bool(self.under_way)

    def let_out(self, now: float) -> None:
        """Write what is due."""
        under_way = self.under_way
        while under_way and under_way[0][0] <= now:
            _, packet = under_way.popleft()
            try:
                os.write(self.exit, packet)
            except OSError:  # the link is down, or its queue is full
                self.n_lost += 1


class Ends:
    """The two TUN links of one device."""

    def __init__(self, hub: int, device: int, impairment: Impairment, seed: str) -> None:
        self.down = Direction(hub, _way(impairment, f"{seed}/down"))
        self.up = Direction(device, _way(impairment, f"{seed}/up"))
        self.down.exit, self.up.exit = device, hub
        self._is_plugged = True

    def change(self, state: RelayedLinkState) -> None:
        """Be another link from now on; what is under way arrives as it was to.

        Raises:
            OSError: The kernel does not let a plug be pulled.
        """
        for direction in (self.down, self.up):
            direction.way.impairment = state.impairment
            direction.is_plugged = state.is_plugged  # the kernel takes up to a second to notice
            if not state.is_plugged:
                direction.n_lost += len(direction.under_way)
                direction.under_way.clear()
        if state.is_plugged != self._is_plugged:
            self._is_plugged = state.is_plugged
            for descriptor in (self.down.entry, self.up.entry):
                set_carrier(descriptor, is_plugged=state.is_plugged)


class Relay:
    """All links of one process."""

    def __init__(self, told: RelaySetup) -> None:
        self._ends = {name: _open_ends(told, name, each) for name, each in told.links.items()}
        self._poll = select.epoll()
        self._by_entry: dict[int, Direction] = {}
        for ends in self._ends.values():
            for direction in (ends.down, ends.up):
                self._by_entry[direction.entry] = direction
                self._poll.register(direction.entry, select.EPOLLIN)
        self._next: list[tuple[float, int]] = []
        """Heap of (due, entry): the first packet of each direction that has one."""

    def pass_on(self, stdin: int) -> bytes:
        """Relay until there is something on stdin; return it, empty at its end."""
        while True:
            wait_s = max(0.0, self._next[0][0] - time.monotonic()) if self._next else None
            # select, because its timeout is exact to the microsecond, that of epoll to the
            # millisecond; on epoll's own descriptor, because select takes none above 1023
            ready, _, _ = select.select([self._poll.fileno(), stdin], [], [], wait_s)
            if ready:
                for entry, _ in self._poll.poll(0):
                    direction = self._by_entry[entry]
                    if direction.take_in(time.monotonic()):
                        heapq.heappush(self._next, (direction.under_way[0][0], entry))
                    self._let_out()
            self._let_out()
            if stdin in ready:
                return os.read(stdin, READ_BYTES)

    def _let_out(self) -> None:
        now = time.monotonic()
        while self._next and self._next[0][0] <= now:
            _, entry = heapq.heappop(self._next)
            direction = self._by_entry[entry]
            direction.let_out(now)
            if direction.under_way:
                heapq.heappush(self._next, (direction.under_way[0][0], entry))

    def obey(self, order: RelayRequest) -> RelayReply:
        """Change links; return how things are."""
        problem = ""
        for name, state in order.changes.items():
            try:
                self._ends[name].change(state)
            except OSError as exc:
                problem = f"{name}: cannot pull its plug: {exc.strerror}"
        lost = {name: ends.down.n_lost + ends.up.n_lost for name, ends in self._ends.items()}
        return RelayReply(lost=lost, problem=problem)


def _open_ends(told: RelaySetup, name: str, link: RelayedLink) -> Ends:
    enter(Path(told.hub), told.host)
    hub = open_tun(link.hub_link)
    enter(Path(link.namespace), told.host)
    device = open_tun(DEVICE_LINK)
    return Ends(hub, device, link.impairment, f"{told.seed}/{name}")


def _way(impairment: Impairment, seed: str) -> DelayLine:
    dice = random.Random(seed)
    return DelayLine(impairment, dice.random, lambda: dice.gauss(0.0, 1.0))


def _answer(report: RelayReply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Relay; the first argument is our parent's process id."""
    die_with_parent(int(sys.argv[1]))
    raise_priority()
    told = msgspec.json.decode(sys.stdin.buffer.readline(), type=RelaySetup)
    try:
        relay = Relay(told)
    except (OSError, RuntimeError) as exc:
        _answer(RelayReply(lost={}, problem=str(exc)))
        return 1
    _answer(relay.obey(RelayRequest()))
    stdin = sys.stdin.fileno()
    rest = b""
    while heard := relay.pass_on(stdin):
        *lines, rest = (rest + heard).split(b"\n")
        for line in lines:
            _answer(relay.obey(msgspec.json.decode(line, type=RelayRequest)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
