"""Commands and replies between the benchmark and a measuring end, JSON lines.

Every command has one reply, sent after its execution. Instants are readings of the machine's
monotonic clock, which all its processes share, so they are comparable across ends.
"""

from typing import TypeAlias

from msgspec import Struct

from fairbed.testbed.backends.gauges import GaugeAddress
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.emulation.device import EmulatedDevice


class Command(Struct, frozen=True, kw_only=True, tag=True):
    """A command with bounded duration."""


class Listen(Command, frozen=True, kw_only=True):
    """Listen for TCP connections; answered by `Address`."""

    host: str


class Connect(Command, frozen=True, kw_only=True):
    """Open a TCP connection instead of the present one."""

    host: str
    port: int


class Accept(Command, frozen=True, kw_only=True):
    """Accept the next TCP connection instead of the present one."""


class SendStream(Command, frozen=True, kw_only=True):
    """Send until the other end closes the connection, or until a time limit."""

    limit_s: float


class ReceiveStream(Command, frozen=True, kw_only=True):
    """Receive for a time, then close the connection; answered by `Arrivals`."""

    lasting_s: float


class SendBlock(Command, frozen=True, kw_only=True):
    """Send one block; answered by the `Instant` before the first byte."""

    n_bytes: int


class ReceiveBlock(Command, frozen=True, kw_only=True):
    """Receive one block; answered by the `Instant` after the last byte."""

    n_bytes: int
    limit_s: float


class SendMessages(Command, frozen=True, kw_only=True):
    """Send small messages that contain the instant of sending."""

    count: int
    gap_s: float


class ReceiveMessages(Command, frozen=True, kw_only=True):
    """Receive such messages; answered by `Delays`."""

    count: int
    limit_s: float


class OpenLoad(Command, frozen=True, kw_only=True):
    """Open a second connection and fill the link with it, or drain it, until `CloseLoad`."""

    sends: bool
    towards: tuple[str, int] | None = None
    """None accepts it."""


class CloseLoad(Command, frozen=True, kw_only=True):
    """Close the second connection."""


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
    """Receive datagrams until a silence; answered by `Arrivals`."""

    silence_s: float
    limit_s: float


class RunKernel(Command, frozen=True, kw_only=True):
    """Repeat the kernel unthrottled; answered by `Steps`."""

    repetitions: int
    """Repetitions of the kernel in one step, per thread."""
    threads: int
    steps: int


class Compute(Command, frozen=True, kw_only=True):
    """Compute without a pause and without pacing; answered by one of `Steps`."""

    lead_s: float
    """Unmeasured time before: an idle group has an unused slice of time, 5 ms per core."""
    lasting_s: float
    threads: int


class Burst(Command, frozen=True, kw_only=True):
    """Pause and compute, several times, until the first stop; answered by `Steps`, one of each.

    A stop is a time of at least `STOP_S` in which the thread does not run.
    """

    count: int
    idle_s: float
    limit_s: float
    """Longest processor time of a burst."""


class Passes(Command, frozen=True, kw_only=True):
    """Add two arrays again and again in each thread; answered by `Work`."""

    n_bytes: int
    """Size of each of the three arrays of a thread."""
    threads: int
    lead_s: float
    """Unmeasured time before, as of `Compute`."""
    lasting_s: float


class RunPaced(Command, frozen=True, kw_only=True):
    """Take steps with the pacing of a device, like its agent; answered by `Steps`."""

    device: EmulatedDevice
    gauge: GaugeAddress
    sandbox: Sandbox | None
    steps: int
    """Steps of each section."""
    spin_s: float = 0.0
    """Processor time of a step; 0 uses `repetitions` of the kernel instead."""
    repetitions: int = 0
    cost_s: float | None = None
    """Charge of a step; None charges its processor time."""
    idle_s: float = 0.0
    """Idle time before each section."""
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
    | OpenLoad
    | CloseLoad
    | OpenDatagrams
    | SendDatagrams
    | ReceiveDatagrams
    | RunKernel
    | Compute
    | Burst
    | Passes
    | RunPaced
)


class Reply(Struct, frozen=True, kw_only=True, tag=True):
    """The reply to a command."""


class Done(Reply, frozen=True, kw_only=True):
    """The command is executed."""


class Failed(Reply, frozen=True, kw_only=True):
    """The command failed."""

    reason: str


class Address(Reply, frozen=True, kw_only=True):
    """The address of a listening socket."""

    host: str
    port: int


class Instant(Reply, frozen=True, kw_only=True):
    """The instant of an event, seconds."""

    at: float


class Arrivals(Reply, frozen=True, kw_only=True):
    """Received amounts over time."""

    times: list[float]
    """Seconds."""
    totals: list[int]
    """Bytes of a stream, or datagrams, received until each of these instants."""


class Delays(Reply, frozen=True, kw_only=True):
    """One-way delay of each message, seconds."""

    seconds: list[float]


class Steps(Reply, frozen=True, kw_only=True):
    """Durations of steps, seconds."""

    wall_s: list[float]
    cpu_s: list[float]
    begun: float = 0.0
    ended: float = 0.0
    """Instants before the first step and after the last."""


class Work(Reply, frozen=True, kw_only=True):
    """Work that was done, and the time that it took."""

    passes: int
    """Of all threads."""
    cpu_s: float
    """Processor time of all threads."""


Replies: TypeAlias = Done | Failed | Address | Instant | Arrivals | Delays | Steps | Work
