"""What a device profile and a link say: plain numbers, each with its source.

A profile describes one kind of device in units that do not depend on the machine that emulates
it. The reference machine is one core of an Intel N100 at 3.4 GHz: its `core_speed` is 1.
"""

from typing import Annotated, Generic, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct, field

T = TypeVar("T")

Tag: TypeAlias = Literal["measured", "datasheet", "literature"]
"""How well a number is known: measured by somebody whose data we read, promised by the vendor,
or recalled from publications (a range rather than a target)."""

Words: TypeAlias = Annotated[str, Meta(min_length=3, max_length=400)]
Name: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,32}$")]
Cores: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
BusyCores: TypeAlias = Annotated[float, Meta(ge=0.0, le=4096.0)]
Speed: TypeAlias = Annotated[float, Meta(gt=0.0, le=1000.0)]
Bytes: TypeAlias = Annotated[int, Meta(ge=1 << 20, le=1 << 50)]
BytesPerSecond: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e12)]
BitsPerSecond: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e12)]
Delay: TypeAlias = Annotated[float, Meta(ge=0.0, le=60.0)]


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything in a profile: immutable, no unknown keys."""


class Quantity(Strict, Generic[T], frozen=True, kw_only=True):
    """A number and where it comes from."""

    value: T
    tag: Tag
    source: Words
    """The public project, run or data sheet, and how the number follows from it."""


class Link(Strict, frozen=True, kw_only=True):
    """Rates and delay of a device's access link, as the payload of TCP sees them."""

    down: Quantity[BitsPerSecond] = field(name="down_bps")
    """Towards the device, bit/s."""
    up: Quantity[BitsPerSecond] = field(name="up_bps")
    """Away from the device, bit/s."""
    delay: Quantity[Delay] = field(name="delay_s")
    """One way, seconds: half a round trip on the idle link."""

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


class LinkProfile(Strict, frozen=True, kw_only=True):
    """`profiles/links/NAME.toml`: a kind of access link."""

    name: Name
    """Not in the file: the file's name without `.toml`."""
    title: Words
    licence: Words
    """Of the sources, and why these numbers may be redistributed."""
    link: Link


class Profile(Strict, frozen=True, kw_only=True):
    """`profiles/devices/NAME.toml`: a kind of device."""

    name: Name
    """Not in the file: the file's name without `.toml`."""
    title: Words
    kind: Literal["board", "phone", "computer"] = field(name="class")
    licence: Words
    """Of the sources, and why these numbers may be redistributed."""
    core_count: Quantity[Cores] = field(name="cores")
    one_core: Quantity[Speed] = field(name="core_speed")
    """Speed of one core in dense training; one Intel N100 core at 3.4 GHz is 1."""
    memory: Quantity[Bytes] = field(name="memory_bytes")
    storage_read: Quantity[BytesPerSecond] = field(name="storage_read_bytes_per_s")
    """Sequential read of the storage that holds the data."""
    busy: Quantity[BusyCores] = field(name="background_load")
    """Cores busy with other work than ours, on average."""
    threads: Quantity[Cores] = field(name="engine_threads")
    """Threads of one training step."""
    link: Link
    """The link of this device unless an experiment names another."""

    def __post_init__(self) -> None:
        if self.engine_threads > self.cores:
            raise ValueError(
                f"engine_threads must be at most the {self.cores} cores, got {self.engine_threads}"
            )
        if self.background_load >= self.cores:
            raise ValueError(
                f"background_load must be less than the {self.cores} cores, "
                f"got {self.background_load}"
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
