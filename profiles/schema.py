"""Schema of device profiles and links: numbers, each with its source.

A profile describes one kind of device in units that do not depend on the machine that emulates
it. The reference is one core of an Intel N100 at 3.4 GHz: its `core_speed` is 1.

The docstring of an optional field states the meaning of its absence. Files of the first version,
without optional fields, keep their meaning.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

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
    """Thermal throttling of a device under sustained load.

    The heat h follows the load, a share of all cores, with a lag. The clock drops when h reaches
    its value after `onset_s` of full load, and recovers when h is below that:

        dh/dt = (load - h) / time_constant_s
        throttled while h >= 1 - exp(-onset_s / time_constant_s)
    """

    sustained: Quantity[ClockRatio] = field(name="sustained_clock_ratio")
    """Mean clock while throttled, relative to the nominal one."""
    onset: Quantity[Moment] = field(name="onset_s")
    """Time of full load on all cores, from idle, until the clock first drops, seconds."""
    time_constant: Quantity[Seconds] = field(name="time_constant_s")
    """Time constant of the temperature, seconds."""
    idle_celsius: Quantity[Celsius] | None = None
    """Temperature of the processor at rest; absent is unknown."""
    limit_celsius: Quantity[Celsius] | None = None
    """Temperature at which the clock drops; absent is unknown."""

    @property
    def sustained_clock_ratio(self) -> float:
        """Mean clock while throttled, relative to the nominal one."""
        return self.sustained.value

    @property
    def onset_s(self) -> float:
        """Time of full load, from idle, until the clock first drops, seconds."""
        return self.onset.value

    @property
    def time_constant_s(self) -> float:
        """Time constant of the temperature, seconds."""
        return self.time_constant.value


class Availability(Strict, frozen=True, kw_only=True):
    """Availability of a device over time."""

    share: Varying[Share, Share] = field(name="available")
    """Share of the time in which the device is available; its schedule is 1 (available) or 0."""
    session: Quantity[Seconds] | None = field(name="session_s", default=None)
    """Mean length of a session, seconds, without a schedule; absent is one session per day."""


class Energy(Strict, frozen=True, kw_only=True):
    """Power of the whole device by activity; absent is unknown."""

    idle_w: Quantity[Watts] | None = None
    train_w: Quantity[Watts] | None = None
    """All cores busy."""
    compute_w: Quantity[Watts] | None = None
    """The agent computes with `engine_threads`; absent: computed from `idle_w` and `train_w`."""
    transmit_w: Quantity[Watts] | None = None
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
