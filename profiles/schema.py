"""Schema of device profiles and links: numbers, each with its source.

A profile describes one kind of device in units that do not depend on the machine that emulates
it. The reference is one core of an Intel N100 at 3.4 GHz: its `core_speed` is 1.

The docstring of an optional field states the meaning of its absence. Files of the first version,
without optional fields, keep their meaning.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field, structs

from fairbed.profiles.quantities import (
    Correlation,
    Episodes,
    Moment,
    Quantity,
    Seconds,
    Share,
    Strict,
    Text,
    Varying,
)
from fairbed.profiles.traces.trace import MAX_CLOCK_RATIO

Kind: TypeAlias = Literal["board", "phone", "computer"]
Name: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,32}$")]
Cores: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
BusyCores: TypeAlias = Annotated[float, Meta(ge=0.0, le=4096.0)]
Speed: TypeAlias = Annotated[float, Meta(gt=0.0, le=1000.0)]
Bytes: TypeAlias = Annotated[int, Meta(ge=1 << 20, le=1 << 50)]
Flops: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e16)]
Efficiency: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.0)]
Examples: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 20)]
StepSeconds: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e6)]
BytesPerSecond: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e12)]
BitsPerSecond: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e12)]
Rate: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e12)]
"""Rate at one time, bit/s; 0 is an outage."""
Delay: TypeAlias = Annotated[float, Meta(ge=0.0, le=60.0)]
Loss: TypeAlias = Annotated[float, Meta(ge=0.0, lt=1.0)]
QueueMs: TypeAlias = Annotated[float, Meta(gt=0.0, le=60_000.0)]
"""Depth of a queue, milliseconds at the fastest rate of its link."""
QueueBytes: TypeAlias = Annotated[int, Meta(ge=3028, le=1 << 24)]
"""Depth of a queue, bytes of Ethernet frames: two full packets to 16 MiB."""
Discipline: TypeAlias = Literal["drop-tail", "fq_codel"]
"""`drop-tail`: one queue, which drops what does not fit. `fq_codel`: a queue for each connection,
each kept short (RFC 8290)."""
ClockRatio: TypeAlias = Annotated[float, Meta(gt=0.0, le=MAX_CLOCK_RATIO)]
Celsius: TypeAlias = Annotated[float, Meta(ge=-60.0, le=150.0)]
Watts: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e5)]


ROOM_CELSIUS = 22.0
"""Temperature of the air where a profile states none."""

_UNKNOWN = "unknown; the emulation takes the default"


def _unknown(value: float, meaning: str) -> Varying[float, float]:
    return Varying(value=value, tag="unknown", source=f"{_UNKNOWN}, {meaning}")


# What the emulation takes for the numbers of a device that its file lacks; stated here only.
UNKNOWN_STORAGE = Quantity(
    value=85e6, tag="unknown", source=f"{_UNKNOWN}, a microSD card in a UHS-I slot"
)
UNKNOWN_LOAD = _unknown(0.05, "system services at 5 % of a core")
UNKNOWN_RATE = _unknown(94e6, "TCP payload of Fast Ethernet")
UNKNOWN_DELAY = _unknown(0.0002, "half of a round trip of 0.4 ms in a local network")


@dataclass(frozen=True, slots=True)
class LinkQueue:
    """The queue of each direction of a link: `testbed.emulation.queues` computes its size."""

    depth_s: float | None = None
    """Time in which the fastest rate of the direction sends a full queue; None is not stated."""
    depth_bytes: int | None = None
    """Bytes of Ethernet frames; None is not stated."""
    discipline: Discipline = "drop-tail"


DROP_TAIL = LinkQueue()
"""The queue of a link that states none."""


class Link(Strict, frozen=True, kw_only=True):
    """Access link of a device; rates are of TCP payload."""

    down: Varying[BitsPerSecond, Rate] = field(name="down_bps", default=UNKNOWN_RATE)
    """Downlink rate (to the device), bit/s; absent is unknown."""
    up: Varying[BitsPerSecond, Rate] = field(name="up_bps", default=UNKNOWN_RATE)
    """Uplink rate (from the device), bit/s; absent is unknown."""
    delay: Varying[Delay, Delay] = field(name="delay_s", default=UNKNOWN_DELAY)
    """One-way delay, seconds: half the round-trip time of the idle link; absent is unknown."""
    jitter: Varying[Delay, Delay] | None = field(name="jitter_s", default=None)
    """Standard deviation of the one-way delay, seconds; absent is 0, a constant delay."""
    loss: Varying[Loss, Loss] | None = field(name="loss_ratio", default=None)
    """Share of packets lost in each direction; absent is 0."""
    outages: Episodes | None = field(name="outage_every_s", default=None)
    """State without coverage: time between two of them, and their lengths; absent: none, except
    where a rate is 0."""
    degraded: Episodes | None = field(name="degraded_every_s", default=None)
    """State in which both rates fall to a share of what they are otherwise; absent: none."""
    coupling: Quantity[Correlation] | None = None
    """Correlation of the scores of the two rates; absent is 0: each is drawn by itself."""
    queue_depth: Quantity[QueueMs] | None = field(name="queue_ms", default=None)
    """Depth of the queue of each direction, as time at the fastest rate of the link, milliseconds;
    excludes `queue_bytes`; absent is 100 ms and at least 10 packets."""
    queue_size: Quantity[QueueBytes] | None = field(name="queue_bytes", default=None)
    """Depth of the queue of each direction, bytes of Ethernet frames; absent: see `queue_ms`."""
    discipline: Quantity[Discipline] | None = field(name="queue", default=None)
    """`drop-tail` or `fq_codel`; absent is `drop-tail`."""

    def __post_init__(self) -> None:
        if self.queue_depth is not None and self.queue_size is not None:
            raise ValueError(
                f"queue_ms and queue_bytes exclude each other, got {self.queue_depth.value:g} ms "
                f"and {self.queue_size.value} bytes; remove one"
            )
        for key, episodes in (("outage", self.outages), ("degraded", self.degraded)):
            if episodes is None:
                continue
            if (key == "outage") != (episodes.rate_ratio == 0.0):
                rule = "must be 0" if key == "outage" else "must be more than 0"
                raise ValueError(
                    f"{key}_every_s.rate_ratio: {rule}, got {episodes.rate_ratio:g}; without "
                    "coverage a link is in an outage"
                )
            if any(each.trace or each.series for each in (self.down, self.up)):
                raise ValueError(
                    f"{key}_every_s: must not be given beside rates of a series or a trace, which "
                    "have their own states; remove one"
                )

    @property
    def is_drawn_together(self) -> bool:
        """Its rates share states, or are correlated."""
        return not (self.outages is None and self.degraded is None and self.coupling is None)

    @property
    def queue(self) -> LinkQueue:
        """The queue of each direction."""
        depth, size, discipline = self.queue_depth, self.queue_size, self.discipline
        return LinkQueue(
            depth_s=None if depth is None else depth.value / 1000.0,
            depth_bytes=None if size is None else size.value,
            discipline="drop-tail" if discipline is None else discipline.value,
        )

    @property
    def down_bps(self) -> float:
        """Downlink rate, bit/s."""
        return self.down.value

    @property
    def up_bps(self) -> float:
        """Uplink rate, bit/s."""
        return self.up.value

    @property
    def delay_s(self) -> float:
        """One-way delay, seconds."""
        return self.delay.value

    @property
    def jitter_s(self) -> float:
        """Standard deviation of the one-way delay, seconds."""
        return self.jitter.value if self.jitter is not None else 0.0

    @property
    def loss_ratio(self) -> float:
        """Share of packets lost in each direction."""
        return self.loss.value if self.loss is not None else 0.0


class LinkProfile(Strict, frozen=True, kw_only=True):
    """`profiles/links/NAME.toml`: a kind of access link."""

    name: Name
    """Name of the file without `.toml`; not a key in it."""
    title: Text
    licence: Text
    """Licence of the sources, and the reason why the numbers may be redistributed."""
    link: Link

    def __post_init__(self) -> None:
        for key in ("down", "up", "delay"):
            number: Varying[float, float] = getattr(self.link, key)
            if number.tag == "unknown":
                name = "delay_s" if key == "delay" else f"{key}_bps"
                raise ValueError(f"link: must have the key {name}, got none")


CellShare: TypeAlias = Literal["equal", "proportional-fair", "priority"]
"""How devices share the rate of a cell (`testbed.emulation.cell`)."""


class CellProfile(Strict, frozen=True, kw_only=True):
    """`profiles/cells/NAME.toml`: a kind of cell, whose devices share its rates of TCP payload."""

    name: Name
    """Name of the file without `.toml`; not a key in it."""
    title: Text
    licence: Text
    """Licence of the sources, and the reason why the numbers may be redistributed."""
    rule: Quantity[CellShare] = field(name="share")
    """How the devices share the rates."""
    down: Quantity[BitsPerSecond] = field(name="down_bps")
    """Rate towards the devices, all together, bit/s."""
    up: Quantity[BitsPerSecond] = field(name="up_bps")
    """Rate away from the devices, all together, bit/s."""

    @property
    def share(self) -> CellShare:
        """How the devices share the rates."""
        return self.rule.value

    @property
    def down_bps(self) -> float:
        """Rate towards the devices, all together, bit/s."""
        return self.down.value

    @property
    def up_bps(self) -> float:
        """Rate away from the devices, all together, bit/s."""
        return self.up.value


class Thermal(Strict, frozen=True, kw_only=True):
    """Temperature of a device under load, and the clock at which it is too hot.

    The heat h follows the load, a share of all cores, with two lags: the chip is hot within
    seconds, its board and case within minutes.

        dh_fast/dt = (load - h_fast) / fast_constant_s
        dh_slow/dt = (load - h_slow) / time_constant_s
        h          = fast_share h_fast + (1 - fast_share) h_slow
        celsius    = idle_celsius + rise_celsius h
        throttled while celsius >= limit_celsius

    Without `rise_celsius` the clock drops at the heat of `onset_s` of full load from rest.
    """

    sustained: Quantity[ClockRatio] = field(name="sustained_clock_ratio")
    """Mean clock while throttled, relative to the nominal one."""
    onset: Quantity[Moment] | None = field(name="onset_s", default=None)
    """Time of full load on all cores, from idle, until the clock first drops, seconds; absent: it
    follows from `rise_celsius`, which excludes it."""
    time_constant: Quantity[Seconds] = field(name="time_constant_s")
    """Time constant of the slow lag, seconds: of board and case."""
    fast_share: Quantity[Share] | None = None
    """Share of the rise that follows the fast lag; absent is 0, one lag."""
    fast_constant: Quantity[Seconds] | None = field(name="fast_constant_s", default=None)
    """Time constant of the fast lag, seconds: of the chip."""
    idle_celsius: Quantity[Celsius] | None = None
    """Temperature of the processor at rest; absent is unknown."""
    rise_celsius: Quantity[Celsius] | None = None
    """Temperature in the end under full load on all cores at full clock, less that at rest."""
    limit_celsius: Quantity[Celsius] | None = None
    """Temperature at which the clock drops; absent is unknown."""
    ambient_celsius: Quantity[Celsius] | None = None
    """Temperature of the air for which `idle_celsius` holds; absent: 22, a room."""

    def __post_init__(self) -> None:
        if (self.fast_share is None) != (self.fast_constant is None):
            raise ValueError("fast_share and fast_constant_s belong together; state both or none")
        if (self.onset is None) == (self.rise_celsius is None):
            raise ValueError("must have one of onset_s and rise_celsius; the other follows from it")
        if self.rise_celsius is not None:
            if self.rise_celsius.value <= 0.0:
                raise ValueError(f"rise_celsius must be positive, got {self.rise_celsius.value:g}")
            if self.idle_celsius is None or self.limit_celsius is None:
                raise ValueError("rise_celsius needs idle_celsius and limit_celsius; state both")

    @property
    def sustained_clock_ratio(self) -> float:
        """Mean clock while throttled, relative to the nominal one."""
        return self.sustained.value

    @property
    def time_constant_s(self) -> float:
        """Time constant of the slow lag, seconds."""
        return self.time_constant.value

    @property
    def fast_lag(self) -> tuple[float, float]:
        """Share and time constant, seconds, of the fast lag."""
        if self.fast_share is None or self.fast_constant is None:
            return 0.0, self.time_constant_s
        return self.fast_share.value, self.fast_constant.value

    @property
    def limit(self) -> float:
        """The heat at which the clock drops; above 1 it never does."""
        rise, idle, limit = self.rise_celsius, self.idle_celsius, self.limit_celsius
        if self.onset is not None:
            return self.heat_after(self.onset.value)
        assert rise is not None  # checked above
        assert idle is not None
        assert limit is not None
        return max(0.0, (limit.value - idle.value) / rise.value)

    @property
    def throttles(self) -> bool:
        """Whether full load on all cores makes it too hot."""
        return self.limit < 1.0

    @property
    def onset_s(self) -> float:
        """Time of full load, from idle, until the clock first drops, seconds; inf is never."""
        if self.onset is not None:
            return self.onset.value
        if not self.throttles:
            return math.inf
        low, high = 0.0, 1.0
        while self.heat_after(high) < self.limit:
            high *= 2.0
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.heat_after(middle) >= self.limit else (middle, high)
        return high

    def heat_after(self, seconds: float) -> float:
        """Return the heat after so long a full load on all cores, from rest."""
        share, fast_s = self.fast_lag
        slow = -math.expm1(-seconds / self.time_constant_s)
        return share * -math.expm1(-seconds / fast_s) + (1.0 - share) * slow

    def in_case(
        self,
        resistance: float = 1.0,
        constant_s: float | None = None,
        ambient_celsius: float | None = None,
    ) -> "Thermal":
        """Return the model of the board in another case, or with a fan, or in other air.

        The rise over the air is proportional to the thermal resistance, and so is the slow lag of
        the same mass. A heatsink adds mass, so its lag does not follow from its resistance.

        Args:
            resistance: From the chip to the air, relative to the case of the profile.
            constant_s: Time constant of the slow lag; None: that of the same mass.
            ambient_celsius: Temperature of the air; None: that of the profile.

        Raises:
            ValueError: Temperatures are needed, and the profile has none.
        """
        if resistance == 1.0 and constant_s is None and ambient_celsius is None:
            return self
        idle, rise = self.idle_celsius, self.rise_celsius
        if idle is None or rise is None:
            raise ValueError(
                "another case needs idle_celsius and rise_celsius in [thermal] of the profile"
            )
        air = ROOM_CELSIUS if self.ambient_celsius is None else self.ambient_celsius.value
        other = air if ambient_celsius is None else ambient_celsius
        moved = structs.replace(idle, value=other + resistance * (idle.value - air))
        slow_s = resistance * self.time_constant_s if constant_s is None else constant_s
        return structs.replace(
            self,
            idle_celsius=moved,
            rise_celsius=structs.replace(rise, value=resistance * rise.value),
            time_constant=structs.replace(self.time_constant, value=slow_s),
            ambient_celsius=structs.replace(moved, value=other),
        )


class Availability(Strict, frozen=True, kw_only=True):
    """Availability of a device over time."""

    share: Varying[Share, Share] = field(name="available")
    """Share of the time in which the device is available; its schedule is 1 (available) or 0."""
    session: Quantity[Seconds] | None = field(name="session_s", default=None)
    """Mean length of a session, seconds, without a schedule; absent is one session per day."""


class Power(Quantity[Watts], frozen=True, kw_only=True):
    """A power, with the range of its sources where they differ."""

    low: Watts | None = None
    """Smallest published power, watts; absent: `value`."""
    high: Watts | None = None
    """Largest published power, watts; absent: `value`."""

    def __post_init__(self) -> None:
        if not self.range[0] <= self.value <= self.range[1]:
            raise ValueError(
                f"value must be from low to high, {self.range[0]:g} to {self.range[1]:g}, "
                f"got {self.value:g}"
            )

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest power, watts."""
        return (
            self.value if self.low is None else self.low,
            self.value if self.high is None else self.high,
        )


class Energy(Strict, frozen=True, kw_only=True):
    """Power of the whole device by activity; absent is unknown."""

    idle_w: Power | None = None
    train_w: Power | None = None
    """All cores busy."""
    compute_w: Power | None = None
    """The agent computes with `engine_threads`; absent: computed from `idle_w` and `train_w`."""
    transmit_w: Power | None = None
    """The agent transfers a model; absent: `idle_w`."""


class StepTime(Strict, frozen=True, kw_only=True):
    """A published training step of a class of model on this device."""

    model: Name
    """The class, which an experiment names by `model.like`, such as `resnet-18`."""
    batch_size: Examples
    threads: Cores
    """Threads of the measured step; 1 for a GPU."""
    step: Quantity[StepSeconds] = field(name="step_s")
    """Time of the step, seconds."""


class Profile(Strict, frozen=True, kw_only=True):
    """`profiles/devices/NAME.toml`: a kind of device."""

    name: Name
    """Name of the file without `.toml`; not a key in it."""
    title: Text
    kind: Kind = field(name="class")
    licence: Text
    """Licence of the sources, and the reason why the numbers may be redistributed."""
    core_count: Quantity[Cores] = field(name="cores")
    one_core: Quantity[Speed] = field(name="core_speed")
    """Speed of one core in dense training; one Intel N100 core at 3.4 GHz is 1."""
    memory: Quantity[Bytes] = field(name="memory_bytes")
    storage_read: Quantity[BytesPerSecond] = field(
        name="storage_read_bytes_per_s", default=UNKNOWN_STORAGE
    )
    """Rate of sequential reads from the storage of the data, bytes/s; absent is unknown."""
    busy: Varying[BusyCores, BusyCores] = field(name="background_load", default=UNKNOWN_LOAD)
    """Cores busy with other work, on average; absent is unknown."""
    threads: Quantity[Cores] = field(name="engine_threads")
    """Threads of one training step."""
    matrix: Quantity[Flops] | None = field(name="matrix_flops", default=None)
    """Rate of all cores together in large float32 matrix products, operations per second; absent:
    the time of a step follows from `core_speed` alone."""
    core_matrix: Quantity[Flops] | None = field(name="core_matrix_flops", default=None)
    """The same of one thread alone on the fastest core; absent: a share of `matrix_flops`."""
    moved: Quantity[BytesPerSecond] | None = field(name="memory_bytes_per_s", default=None)
    """Rate at which all cores together read and write main memory, bytes/s; absent: unlimited."""
    scaling: Quantity[Efficiency] | None = field(name="thread_scaling", default=None)
    """Speed with a thread on every core, relative to as many single threads; absent is 1."""
    train_s: tuple[StepTime, ...] = ()
    """Published training steps, used for the classes of model that they name."""
    link: Link = Link()
    """Default link; an experiment may name another."""
    clock: Varying[ClockRatio, ClockRatio] | None = field(name="clock_ratio", default=None)
    """Clock relative to that of `core_speed`, independent of the load; absent is 1."""
    cold_start: Quantity[Moment] | None = field(name="cold_start_s", default=None)
    """Time to load session and data in a cold round, for the task named in `source`, seconds;
    absent: computed from storage and processor, as an emulated device always does."""
    thermal: Thermal | None = None
    """Absent: no throttling."""
    availability: Availability | None = None
    """Absent: always available."""
    energy: Energy | None = None
    """Absent: unknown."""

    def __post_init__(self) -> None:
        if self.engine_threads > self.cores:
            raise ValueError(
                f"engine_threads must be at most the {self.cores} cores, got {self.engine_threads}"
            )
        busiest = self.busy.highest
        if busiest >= self.cores:
            raise ValueError(
                f"background_load must be less than the {self.cores} cores, got {busiest}"
            )
        one, all_cores = self.core_matrix, self.matrix
        if one is not None and all_cores is None:
            raise ValueError("core_matrix_flops needs matrix_flops, got none; state both")
        if one is not None and all_cores is not None and one.value > all_cores.value:
            raise ValueError(
                f"core_matrix_flops must be at most matrix_flops, {all_cores.value:g}, "
                f"got {one.value:g}"
            )

    @property
    def cores(self) -> int:
        """Number of cores."""
        return self.core_count.value

    @property
    def core_speed(self) -> float:
        """Speed of one core in dense training, in reference cores."""
        return self.one_core.value

    @property
    def memory_bytes(self) -> int:
        """Main memory, bytes."""
        return self.memory.value

    @property
    def storage_read_bytes_per_s(self) -> float:
        """Rate of sequential reads, bytes/s."""
        return self.storage_read.value

    @property
    def background_load(self) -> float:
        """Cores busy with other work, on average."""
        return self.busy.value

    @property
    def engine_threads(self) -> int:
        """Threads of one training step."""
        return self.threads.value

    @property
    def free_cores(self) -> float:
        """Cores without the background load."""
        return self.cores - self.background_load

    @property
    def training_speed(self) -> float:
        """Speed of one training step, in reference cores."""
        return self.core_speed * min(float(self.engine_threads), self.free_cores)
