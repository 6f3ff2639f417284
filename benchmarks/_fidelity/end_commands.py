"""What crosses between the benchmark and a measuring end: one line of JSON each.

Every order is answered by one line, when it is carried out. Moments are readings of the machine's
monotonic clock, which all its processes share: they may be compared across ends.
"""

from typing import TypeAlias

from msgspec import Struct

from fairbed.testbed.backends.gauges import GaugeAddress
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.emulation.device import EmulatedDevice


class Command(Struct, frozen=True, kw_only=True, tag=True):
    """Something to do, within bounded time."""


class Listen(Command, frozen=True, kw_only=True):
    """Listen for TCP connections; answered by `Address`."""

    host: str


class Connect(Command, frozen=True, kw_only=True):
    """Open a TCP connection instead of the present one."""

    host: str
    port: int


class Accept(Command, frozen=True, kw_only=True):
    """ReceiveBlock the next TCP connection instead of the present one."""


class SendStream(Command, frozen=True, kw_only=True):
    """Send until the other end hangs up, or for so long."""

    limit_s: float


class ReceiveStream(Command, frozen=True, kw_only=True):
    """Receive for so long, then hang up; answered by `Arrivals`."""

    lasting_s: float


class SendBlock(Command, frozen=True, kw_only=True):
    """Send one block; answered by `Instant`, that before the first byte."""

    n_bytes: int


class ReceiveBlock(Command, frozen=True, kw_only=True):
    """Receive one block; answered by `Instant`, that after the last byte."""

    n_bytes: int
    limit_s: float


class SendMessages(Command, frozen=True, kw_only=True):
    """Send small messages that carry the moment at which they left."""

    count: int
    gap_s: float


class ReceiveMessages(Command, frozen=True, kw_only=True):
    """Receive such messages; answered by `Delays`."""

    count: int
    limit_s: float


class OpenDatagrams(Command, frozen=True, kw_only=True):
    """Receive datagrams at the address from which `towards` is reached; answered by `Address`."""

    towards: tuple[str, int]


class SendDatagrams(Command, frozen=True, kw_only=True):
    """Send datagrams at an even rate."""

    host: str
    port: int
    count: int
    per_second: float
    n_bytes: int


class ReceiveDatagrams(Command, frozen=True, kw_only=True):
    """Receive datagrams until none has come for a while; answered by `Arrivals`."""

    silence_s: float
    limit_s: float


class RunKernel(Command, frozen=True, kw_only=True):
    """Repeat the kernel unthrottled; answered by `Steps`."""

    repetitions: int
    """Of the kernel in one step, by each thread."""
    threads: int
    steps: int


class Compute(Command, frozen=True, kw_only=True):
    """Compute without a pause and without pacing; answered by one of `Steps`."""

    lead_s: float
    """Before what counts: a group that was idle has a slice of time for nothing, 5 ms a core."""
    lasting_s: float
    threads: int


class RunPaced(Command, frozen=True, kw_only=True):
    """ReceiveBlock steps at the pace of a device, as its agent would; answered by `Steps`."""

    device: EmulatedDevice
    gauge: GaugeAddress
    sandbox: Sandbox | None
    steps: int
    """In each section."""
    spin_s: float = 0.0
    """Processor time of a step; 0 is `repetitions` of the kernel instead."""
    repetitions: int = 0
    cost_s: float | None = None
    """What a step is charged; None is the processor time that it takes."""
    idle_s: float = 0.0
    """Before each section."""
    sections: int = 1


Commands: TypeAlias = (
    Listen
    | Connect
    | Accept
    | SendStream
    | ReceiveStream
    | SendBlock
    | ReceiveBlock
    | SendMessages
    | ReceiveMessages
    | OpenDatagrams
    | SendDatagrams
    | ReceiveDatagrams
    | RunKernel
    | Compute
    | RunPaced
)


class Reply(Struct, frozen=True, kw_only=True, tag=True):
    """An order is carried out."""


class Done(Reply, frozen=True, kw_only=True):
    """There is nothing more to say."""


class Failed(Reply, frozen=True, kw_only=True):
    """It could not be carried out."""

    reason: str


class Address(Reply, frozen=True, kw_only=True):
    """Where something listens."""

    host: str
    port: int


class Instant(Reply, frozen=True, kw_only=True):
    """When it happened, seconds."""

    at: float


class Arrivals(Reply, frozen=True, kw_only=True):
    """How much had come by when."""

    times: list[float]
    """Seconds."""
    totals: list[int]
    """Bytes of a stream, or datagrams, that had come by then."""


class Delays(Reply, frozen=True, kw_only=True):
    """How long each message was under way, one way, seconds."""

    seconds: list[float]


class Steps(Reply, frozen=True, kw_only=True):
    """What each step took, seconds."""

    wall_s: list[float]
    cpu_s: list[float]
    begun: float = 0.0
    ended: float = 0.0
    """Moments before the first step and after the last."""


Replies: TypeAlias = Done | Failed | Address | Instant | Arrivals | Delays | Steps
