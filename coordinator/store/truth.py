"""Rows of the run store that the testbed writes: what it configured, for analysis alone."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """What the testbed configured for a device."""

    TABLE: ClassVar[str] = "truth"
    KEY: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    profile: str
    cpu_speed: float
    """Cores of the reference machine that one of its cores is worth."""
    cores: int
    down_bps: float | None
    up_bps: float | None
    delay_s: float
    """One way."""
    details: str
    """JSON: all that was configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """What the testbed configured for a device over a stretch of time, as means that are exact.

    Written for devices whose conditions change, at most once a second each, and kept as long as
    telemetry.
    """

    TABLE: ClassVar[str] = "condition"
    KEY: ClassVar[tuple[str, ...]] = ()

    at_s: float
    """End of the stretch."""
    lasted_s: float
    device: str
    speed_ratio: float | None
    """Of its processor, in cores of the emulating machine, time not dilated; None is not slowed."""
    clock_ratio: float
    """Clock / nominal clock, heat included."""
    temperature_celsius: float | None
    """At the end; None where the profile does not tell."""
    down_bps: float | None
    """Bits that could pass / seconds: an outage counts as 0. None is not limited."""
    up_bps: float | None
    delay_s: float
    jitter_s: float
    loss_ratio: float
    outage_s: float
    """Time without a link, or standing still."""
    unwilling_s: float
    """Time in which its owner did not let it take part."""
