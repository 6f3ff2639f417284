"""The library of profiles as rows of plain values: what `fairbed profiles list` shows."""

from typing import Literal, TypeAlias

from msgspec import Struct

from profiles import Link, LinkProfile, Population, Profile, Varying, numbers

SortKey: TypeAlias = Literal["name", "speed", "cores", "memory", "down", "up", "delay"]


class DeviceRow(Struct, frozen=True, kw_only=True):
    """One device profile."""

    name: str
    kind: str
    cores: int
    speed: float
    """One training step, in cores of the reference machine."""
    memory_bytes: int
    down_bps: float
    up_bps: float
    delay_s: float
    measured: list[str]
    """Which of `compute` and `link` (both rates) somebody measured."""
    more: list[str]
    """Which of `heat`, `power`, `stays`, `varies` the profile tells of."""


class LinkRow(Struct, frozen=True, kw_only=True):
    """One link."""

    name: str
    down_bps: float
    up_bps: float
    delay_s: float
    jitter_s: float
    loss_ratio: float
    course: str
    """How the downlink moves: constant, series, trace or spread."""
    is_measured: bool


class PopulationRow(Struct, frozen=True, kw_only=True):
    """One population; numbers are medians over its devices."""

    name: str
    speed: float
    memory_bytes: float
    down_bps: float
    up_bps: float
    available: float


def device_row(profile: Profile) -> DeviceRow:
    """Return the row of a device."""
    link = profile.link
    tells = {
        "heat": profile.thermal is not None,
        "power": profile.energy is not None,
        "stays": profile.availability is not None,
        "varies": any(
            isinstance(number, Varying) and not number.is_constant for _, number in numbers(profile)
        ),
    }
    measured = {"compute": profile.one_core.tag == "measured", "link": _is_measured(link)}
    return DeviceRow(
        name=profile.name,
        kind=profile.kind,
        cores=profile.cores,
        speed=profile.training_speed,
        memory_bytes=profile.memory_bytes,
        down_bps=link.down_bps,
        up_bps=link.up_bps,
        delay_s=link.delay_s,
        measured=[name for name, is_so in measured.items() if is_so],
        more=[name for name, is_so in tells.items() if is_so],
    )


def link_row(profile: LinkProfile) -> LinkRow:
    """Return the row of a link."""
    link = profile.link
    courses = [
        name for name in ("series", "trace", "spread") if getattr(link.down, name) is not None
    ]
    return LinkRow(
        name=profile.name,
        down_bps=link.down_bps,
        up_bps=link.up_bps,
        delay_s=link.delay_s,
        jitter_s=link.jitter_s,
        loss_ratio=link.loss_ratio,
        course=courses[0] if courses else "constant",
        is_measured=_is_measured(link),
    )


def population_row(population: Population) -> PopulationRow:
    """Return the row of a population."""
    median = {
        key: float(number.distribution().at(0.5)) for key, number in population.numbers().items()
    }
    return PopulationRow(
        name=population.name,
        speed=median["core_speed"],
        memory_bytes=median["memory_bytes"],
        down_bps=median["link.down_bps"],
        up_bps=median["link.up_bps"],
        available=median.get("availability.available", 1.0),
    )


def sort_key(row: DeviceRow | LinkRow | PopulationRow, key: SortKey) -> tuple[float, str]:
    """Return what rows are sorted by: largest first, of equals the name decides."""
    name = {"memory": "memory_bytes", "down": "down_bps", "up": "up_bps", "delay": "delay_s"}
    value = 0.0 if key == "name" else float(getattr(row, name.get(key, key), 0.0))
    return -value, row.name


def _is_measured(link: Link) -> bool:
    return link.down.tag == link.up.tag == "measured"
