"""The requested device, decoded from the command line into plain units."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from fairbed.profiles import Discipline, LinkQueue
from fairbed.testbed import units

T = TypeVar("T")

Unlimited: TypeAlias = Literal["none"]
NONE: Final = "none"
"""Value of an option that removes the limit of the profile."""

HOST_LINK: Final = "host"
"""Name of this machine's own network as a link."""


class RequestError(Exception):
    """The requested device cannot be emulated; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """The requested device; None is an option that was not given."""

    profile: str | None = None
    cpu: float | Unlimited | None = None
    """Cores of this machine."""
    threads: int | None = None
    """Threads of the command that are busy at the same time."""
    host_core_speed: float | Literal["auto"] = 1.0
    """Speed of one core of this machine, in cores of the reference machine; `auto` measures it."""
    memory_bytes: int | Unlimited | None = None
    link: str | None = None
    down_bps: float | None = None
    up_bps: float | None = None
    delay_s: float | None = None
    jitter_s: float | None = None
    loss_ratio: float | None = None
    queue: LinkQueue | None = None
    """Has the depth."""
    discipline: Discipline | None = None
    trace: str | None = None
    seed: int = 0
    is_paced: bool = False
    """Emulate only the processor, without control groups."""

    @property
    def link_options(self) -> list[str]:
        """The given options that change the link, except `--link`."""
        given = {
            "--down": self.down_bps,
            "--up": self.up_bps,
            "--delay": self.delay_s,
            "--jitter": self.jitter_s,
            "--loss": self.loss_ratio,
            "--queue": self.queue,
            "--queue-discipline": self.discipline,
            "--trace": self.trace,
        }
        return [option for option, value in given.items() if value is not None]


def device_request(options: argparse.Namespace) -> DeviceRequest:
    """Convert the parsed options to plain units.

    Raises:
        RequestError: The value of an option is invalid.
    """
    return DeviceRequest(
        profile=options.profile,
        cpu=_or_none("--cpu", options.cpu, _cores),
        threads=_threads(options.threads),
        host_core_speed=_read("--host-core-speed", options.host_core_speed, _speed),
        memory_bytes=_or_none("--memory", options.memory, units.size_bytes),
        link=options.link,
        down_bps=_unless_absent("--down", options.down, units.rate_bps),
        up_bps=_unless_absent("--up", options.up, units.rate_bps),
        delay_s=_unless_absent("--delay", options.delay, units.duration_s),
        jitter_s=_unless_absent("--jitter", options.jitter, units.duration_s),
        loss_ratio=_unless_absent("--loss", options.loss, units.ratio),
        queue=_unless_absent("--queue", options.queue, units.queue_depth),
        discipline=options.queue_discipline,
        trace=options.trace,
        seed=_seed(options.seed),
        is_paced=options.backend == "process",
    )


def _read(option: str, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except ValueError as exc:
        raise RequestError(f"{option}: {exc}") from exc


def _unless_absent(option: str, text: str | None, read: Callable[[str], T]) -> T | None:
    return None if text is None else _read(option, text, read)


def _or_none(option: str, text: str | None, read: Callable[[str], T]) -> T | Unlimited | None:
    return NONE if text == NONE else _unless_absent(option, text, read)


def _cores(text: str) -> float:
    return _positive(text, "cores of this machine such as 0.25, or none")


def _speed(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    return _positive(text, "a number such as 1.0, which is one core of an Intel N100, or auto")


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ValueError(f"must be {what}, got {text!r}")
    return value


def _threads(number: int | None) -> int | None:
    if number is not None and number < 1:
        raise RequestError(f"--threads: must be at least 1, got {number}")
    return number


def _seed(number: int) -> int:
    if number < 0:
        raise RequestError(f"--seed: must be a whole number from 0, got {number}")
    return number
