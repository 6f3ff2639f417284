"""What a device profile and a link say: numbers, each with its source.

A profile describes one kind of device in units that do not depend on the machine that emulates
it. The reference machine is one core of an Intel N100 at 3.4 GHz: its `core_speed` is 1.

What may be left out says so, with what its absence means. A file of the first version, which had
only what must be given, means the same as ever.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from fairbed.profiles.quantities import Moment, Quantity, Seconds, Share, Strict, Varying, Words

Kind: TypeAlias = Literal["board", "phone", "computer"]
Name: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,32}$")]
Cores: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
BusyCores: TypeAlias = Annotated[float, Meta(ge=0.0, le=4096.0)]
Speed: TypeAlias = Annotated[float, Meta(gt=0.0, le=1000.0)]
Bytes: TypeAlias = Annotated[int, Meta(ge=1 << 20, le=1 << 50)]
BytesPerSecond: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e12)]
BitsPerSecond: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e12)]
Rate: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e12)]
"""Bit/s at one moment: 0 is a hole."""
Delay: TypeAlias = Annotated[float, Meta(ge=0.0, le=60.0)]
Loss: TypeAlias = Annotated[float, Meta(ge=0.0, lt=1.0)]
ClockRatio: TypeAlias = Annotated[float, Meta(gt=0.0, le=4.0)]
Celsius: TypeAlias = Annotated[float, Meta(ge=-60.0, le=150.0)]
Watts: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e5)]


class Link(Strict, frozen=True, kw_only=True):
    """Rates and delay of a device's access link, as the payload of TCP sees them."""

    down: Varying[BitsPerSecond, Rate] = field(name="down_bps")
    """Towards the device, bit/s."""
    up: Varying[BitsPerSecond, Rate] = field(name="up_bps")
    """Away from the device, bit/s."""
    delay: Varying[Delay, Delay] = field(name="delay_s")
    """One way, seconds: half a round trip on the idle link."""
    jitter: Varying[Delay, Delay] | None = field(name="jitter_s", default=None)
    """Standard deviation of the delay, one way, seconds; absent is 0, a steady delay."""
    loss: Varying[Loss, Loss] | None = field(name="loss_ratio", default=None)
    """Share of packets lost, each way; absent is 0."""

    @property
    def down_bps(self) -> float:
        """Bit/s towards the device."""
        return self.down.value

    @property
    def up_bps(self) -> float:
        """Bit/s away from the device."""
        return self.up.value

    @property
    def delay_s(self) -> float:
        """One way, seconds."""
        return self.delay.value

    @property
    def jitter_s(self) -> float:
        """Standard deviation of the delay, one way, seconds."""
        return self.jitter.value if self.jitter is not None else 0.0

    @property
    def loss_ratio(self) -> float:
        """Share of packets lost, each way."""
        return self.loss.value if self.loss is not None else 0.0


class LinkProfile(Strict, frozen=True, kw_only=True):
    """`profiles/links/NAME.toml`: a kind of access link."""

    name: Name
    """Not in the file: the file's name without `.toml`."""
    title: Words
    licence: Words
    """Of the sources, and why these numbers may be redistributed."""
    link: Link


class Thermal(Strict, frozen=True, kw_only=True):
    """How a device slows down under load that lasts.

    Heat follows the load, a share of all cores, with a lag. The clock drops when the heat reaches
    what `onset_s` of full load bring, and comes back when it has cooled below that:

        dh/dt = (load - h) / time_constant_s
        throttled while h >= 1 - exp(-onset_s / time_constant_s)
    """

    sustained: Quantity[ClockRatio] = field(name="sustained_clock_ratio")
    """Mean clock while throttled, relative to the nominal one."""
    onset: Quantity[Moment] = field(name="onset_s")
    """Full load on all cores, from idle, until the clock first drops, seconds."""
    time_constant: Quantity[Seconds] = field(name="time_constant_s")
    """Of the temperature, seconds."""
    idle_celsius: Quantity[Celsius] | None = None
    """Temperature of the processor at rest; absent is not known."""
    limit_celsius: Quantity[Celsius] | None = None
    """Temperature at which the clock drops; absent is not known."""

    @property
    def sustained_clock_ratio(self) -> float:
        """Mean clock while throttled, relative to the nominal one."""
        return self.sustained.value

    @property
    def onset_s(self) -> float:
        """Full load from idle until the clock first drops, seconds."""
        return self.onset.value

    @property
    def time_constant_s(self) -> float:
        """Of the temperature, seconds."""
        return self.time_constant.value


class Availability(Strict, frozen=True, kw_only=True):
    """When a device can be had."""

    share: Varying[Share, Share] = field(name="available")
    """Share of the time; its course is 1 while the device is there, 0 while it is away."""
    session: Quantity[Seconds] | None = field(name="session_s", default=None)
    """Mean length of one stay, seconds, for a share without a course; absent is one stay a day."""


class Energy(Strict, frozen=True, kw_only=True):
    """Power of the whole device by what it does; absent is not known."""

    idle_w: Quantity[Watts] | None = None
    train_w: Quantity[Watts] | None = None
    """All cores busy."""
    transmit_w: Quantity[Watts] | None = None


class Profile(Strict, frozen=True, kw_only=True):
    """`profiles/devices/NAME.toml`: a kind of device."""

    name: Name
    """Not in the file: the file's name without `.toml`."""
    title: Words
    kind: Kind = field(name="class")
    licence: Words
    """Of the sources, and why these numbers may be redistributed."""
    core_count: Quantity[Cores] = field(name="cores")
    one_core: Quantity[Speed] = field(name="core_speed")
    """Speed of one core in dense training; one Intel N100 core at 3.4 GHz is 1."""
    memory: Quantity[Bytes] = field(name="memory_bytes")
    storage_read: Quantity[BytesPerSecond] = field(name="storage_read_bytes_per_s")
    """Sequential read of the storage that holds the data."""
    busy: Varying[BusyCores, BusyCores] = field(name="background_load")
    """Cores busy with other work than ours, on average."""
    threads: Quantity[Cores] = field(name="engine_threads")
    """Threads of one training step."""
    link: Link
    """The link of this device unless an experiment names another."""
    clock: Varying[ClockRatio, ClockRatio] | None = field(name="clock_ratio", default=None)
    """Clock relative to the one that `core_speed` holds for, whatever the load; absent is 1."""
    cold_start: Quantity[Moment] | None = field(name="cold_start_s", default=None)
    """Loading session and data in a cold round of the task that its source names, seconds; absent
    follows from the storage and the processor. An emulated device always takes what follows."""
    thermal: Thermal | None = None
    """Absent: the clock holds under any load."""
    availability: Availability | None = None
    """Absent: always there."""
    energy: Energy | None = None
    """Absent: nothing is known."""

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
        """Speed of one core in dense training, in cores of the reference machine."""
        return self.one_core.value

    @property
    def memory_bytes(self) -> int:
        """Main memory, bytes."""
        return self.memory.value

    @property
    def storage_read_bytes_per_s(self) -> float:
        """Sequential read, bytes/s."""
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
        """Cores that training can have: all but the background load."""
        return self.cores - self.background_load

    @property
    def training_speed(self) -> float:
        """Speed of one training step, in cores of the reference machine."""
        return self.core_speed * min(float(self.engine_threads), self.free_cores)
