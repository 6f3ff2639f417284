"""Places emulated devices on hosts so that none is over-committed. Pure.

Of a host's devices, any m may work at the same time, so it needs what `capacity` demands of one
machine for all of its devices, and memory for each:

    1.05 * sum of the m largest speeds / k + 0.5 <= cores        at time dilation k
    sum of memory <= memory of the host

Devices of one group, such as a cell, stay together. Groups are placed fastest first, each on the
host with room that then has the least speed per free core. If that leaves devices over, they are
placed again, each on the fullest host with room; the better of the two counts. Both are greedy: a
fleet that uses all hosts to the last core may be refused although an arrangement exists.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairbed.testbed.emulation.capacity import Demand, fits, free_cores
from fairbed.testbed.emulation.capacity import fitting_dilation as dilation_on_one


@dataclass(frozen=True, slots=True)
class HostRoom:
    """What a host offers to devices."""

    name: str
    cores: float
    memory_bytes: int
    core_speed: float = 1.0
    """Speed of one of its cores, in cores of this machine."""


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """What a device needs of its host."""

    name: str
    speed: float
    """In cores of this machine; 0 is a device that is not slowed, which demands nothing."""
    threads: int
    memory_bytes: int
    group: str = ""
    """Devices with the same group share a host; an empty one is the device alone."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Hosts of devices."""

    hosts: Mapping[str, str]
    """Host of each device that is placed, by name."""
    left: tuple[str, ...]
    """Devices for which no host has room, in the order of the fleet."""

    def on(self, host: str) -> list[str]:
        """Return the devices of a host, in the order in which they were placed."""
        return [device for device, name in self.hosts.items() if name == host]


@dataclass(slots=True)
class _Load:
    """What the devices of a host demand of it, in its own cores."""

    room: HostRoom
    n_concurrent: int
    fastest: list[float] = field(default_factory=list)
    """The largest speeds, ascending, at most `n_concurrent`."""
    speed: float = 0.0
    """Sum of all speeds."""
    thread_cores: float = 0.0
    memory_bytes: int = 0

    def plus(self, devices: Iterable[DeviceNeed]) -> "_Load":
        """Return the load with further devices."""
        new = _Load(
            self.room,
            self.n_concurrent,
            list(self.fastest),
            self.speed,
            self.thread_cores,
            self.memory_bytes,
        )
        for device in devices:
            speed = device.speed / self.room.core_speed
            insort(new.fastest, speed)
            del new.fastest[: -self.n_concurrent]
            new.speed += speed
            new.thread_cores = max(new.thread_cores, speed / device.threads)
            new.memory_bytes += device.memory_bytes
        return new

    @property
    def demand(self) -> Demand:
        """The processor demand, as on one machine."""
        return Demand(concurrent_cores=sum(self.fastest), thread_cores=self.thread_cores)

    def has_room(self, dilation: float) -> bool:
        """Return whether the host has the cores and the memory."""
        has_memory = self.memory_bytes <= self.room.memory_bytes
        return has_memory and fits(self.demand, self.room.cores, dilation)


def _spread(load: _Load) -> tuple[float, float]:
    free = free_cores(load.room.cores)
    return load.speed / free, load.memory_bytes / max(load.room.memory_bytes, 1)


def _packed(load: _Load) -> tuple[float, float]:
    free = free_cores(load.room.cores)
    share = load.memory_bytes / max(load.room.memory_bytes, 1)
    return -load.demand.concurrent_cores / free, -share


def place(
    devices: Sequence[DeviceNeed],
    rooms: Sequence[HostRoom],
    *,
    n_concurrent: int,
    dilation: float = 1.0,
    present: Mapping[str, Sequence[DeviceNeed]] | None = None,
) -> Placement:
    """Place devices on hosts; the same arguments give the same result.

    Args:
        devices: The devices to place; their names differ.
        rooms: The hosts; their names differ.
        n_concurrent: Number of devices that work at the same time, at least 1.
        dilation: Seconds of the hosts in one second of the fleet, for devices not dilated yet.
        present: Devices that each host has already, by its name.

    Raises:
        ValueError: `n_concurrent` is below 1.
    """
    if n_concurrent < 1:
        raise ValueError(f"n_concurrent must be at least 1, got {n_concurrent}")
    spread = _place(devices, rooms, n_concurrent, dilation, present or {}, _spread)
    if not spread.left:
        return spread
    packed = _place(devices, rooms, n_concurrent, dilation, present or {}, _packed)
    return min(spread, packed, key=lambda placement: len(placement.left))


def fitting_dilation(
    devices: Sequence[DeviceNeed], rooms: Sequence[HostRoom], n_concurrent: int
) -> int | None:
    """Return the smallest integer dilation found at which a fleet fits; None: too little memory.

    It is found by bisection, and the fleet fits with it.
    """
    alone = [_Load(room, n_concurrent).plus(devices) for room in rooms]
    longest = max((dilation_on_one(load.demand, load.room.cores) for load in alone), default=1)

    def is_fitting(dilation: int) -> bool:
        return not place(devices, rooms, n_concurrent=n_concurrent, dilation=dilation).left

    low, high = 0, longest
    if not is_fitting(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_fitting(middle) else (middle, high)
    return high


def _place(
    devices: Sequence[DeviceNeed],
    rooms: Sequence[HostRoom],
    n_concurrent: int,
    dilation: float,
    present: Mapping[str, Sequence[DeviceNeed]],
    preference: Callable[[_Load], tuple[float, float]],
) -> Placement:
    loads = [_Load(room, n_concurrent).plus(present.get(room.name, ())) for room in rooms]
    hosts = dict[str, str]()
    for group in _groups(devices):
        new = [load.plus(group) for load in loads]
        numbers = [number for number, load in enumerate(new) if load.has_room(dilation)]
        if not numbers:
            continue
        best = min(numbers, key=lambda number: (*preference(new[number]), number))
        loads[best] = new[best]
        hosts.update({device.name: rooms[best].name for device in group})
    left = tuple(device.name for device in devices if device.name not in hosts)
    return Placement(hosts, left)


def _groups(devices: Sequence[DeviceNeed]) -> list[list[DeviceNeed]]:
    """Return the groups, the one with the fastest device first, else in the order of the fleet."""
    found = defaultdict[str, list[DeviceNeed]](list)
    for device in devices:
        found[f"group {device.group}" if device.group else device.name].append(device)
    return sorted(found.values(), key=lambda group: -max(device.speed for device in group))
