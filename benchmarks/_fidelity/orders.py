"""What crosses between the benchmark and a measuring end: one line of JSON each.

Every order is answered by one line, when it is carried out. Moments are readings of the machine's
monotonic clock, which all its processes share: they may be compared across ends.
"""

from typing import TypeAlias

from msgspec import Struct

from fairbed.testbed.backends.gauges import GaugeAddress
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.emulation.device import EmulatedDevice


class Order(Struct, frozen=True, kw_only=True, tag=True):
    """Something to do, within bounded time."""


class Listen(Order, frozen=True, kw_only=True):
    """Listen for TCP connections; answered by `Place`."""

    host: str


class Connect(Order, frozen=True, kw_only=True):
    """Open a TCP connection instead of the present one."""

    host: str
    port: int


class Accept(Order, frozen=True, kw_only=True):
    """Take the next TCP connection instead of the present one."""


class Pour(Order, frozen=True, kw_only=True):
    """Send until the other end hangs up, or for so long."""

    limit_s: float


class Drink(Order, frozen=True, kw_only=True):
    """Receive for so long, then hang up; answered by `Arrivals`."""

    lasting_s: float


class Hand(Order, frozen=True, kw_only=True):
    """Send one block; answered by `Moment`, that before the first byte."""

    n_bytes: int


class Take(Order, frozen=True, kw_only=True):
    """Receive one block; answered by `Moment`, that after the last byte."""

    n_bytes: int
    limit_s: float


class Tick(Order, frozen=True, kw_only=True):
    """Send small messages that carry the moment at which they left."""

    count: int
    gap_s: float


class Hear(Order, frozen=True, kw_only=True):
    """Receive such messages; answered by `Delays`."""

    count: int
    limit_s: float


class OpenDatagrams(Order, frozen=True, kw_only=True):
    """Receive datagrams at the address from which `towards` is reached; answered by `Place`."""

    towards: tuple[str, int]


class Shoot(Order, frozen=True, kw_only=True):
    """Send datagrams at an even rate."""

    host: str
    port: int
    count: int
    per_second: float
    n_bytes: int


class Count(Order, frozen=True, kw_only=True):
    """Receive datagrams until none has come for a while; answered by `Arrivals`."""

    silence_s: float
    limit_s: float


class Knead(Order, frozen=True, kw_only=True):
    """Repeat the kernel unthrottled; answered by `Steps`."""

    repetitions: int
    """Of the kernel in one step, by each thread."""
    threads: int
    steps: int


class Burn(Order, frozen=True, kw_only=True):
    """Compute without a pause and without pacing; answered by one of `Steps`."""

    lead_s: float
    """Before what counts: a group that was idle has a slice of time for nothing, 5 ms a core."""
    lasting_s: float
    threads: int


class Paced(Order, frozen=True, kw_only=True):
    """Take steps at the pace of a device, as its agent would; answered by `Steps`."""

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


Orders: TypeAlias = (
    Listen
    | Connect
    | Accept
    | Pour
    | Drink
    | Hand
    | Take
    | Tick
    | Hear
    | OpenDatagrams
    | Shoot
    | Count
    | Knead
    | Burn
    | Paced
)


class Answer(Struct, frozen=True, kw_only=True, tag=True):
    """An order is carried out."""


class Done(Answer, frozen=True, kw_only=True):
    """There is nothing more to say."""


class Failed(Answer, frozen=True, kw_only=True):
    """It could not be carried out."""

    reason: str


class Place(Answer, frozen=True, kw_only=True):
    """Where something listens."""

    host: str
    port: int


class Moment(Answer, frozen=True, kw_only=True):
    """When it happened, seconds."""

    at: float


class Arrivals(Answer, frozen=True, kw_only=True):
    """How much had come by when."""

    times: list[float]
    """Seconds."""
    totals: list[int]
    """Bytes of a stream, or datagrams, that had come by then."""


class Delays(Answer, frozen=True, kw_only=True):
    """How long each message was under way, one way, seconds."""

    seconds: list[float]


class Steps(Answer, frozen=True, kw_only=True):
    """What each step took, seconds."""

    wall_s: list[float]
    cpu_s: list[float]
    begun: float = 0.0
    ended: float = 0.0
    """Moments before the first step and after the last."""


Answers: TypeAlias = Done | Failed | Place | Moment | Arrivals | Delays | Steps
