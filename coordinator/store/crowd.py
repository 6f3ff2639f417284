"""The row of a fleet that is too large for rows of its devices; one of `records`."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdRow:
    """A replayed fleet that is too large for a row of each device, after one round."""

    TABLE: ClassVar[str] = "crowd"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    devices: int
    chosen: int
    """Devices that were ever selected: those of the device table."""
    min_rate: float
    """Lowest selections / rounds."""
    min_merged_rate: float
    """Lowest merged updates / rounds."""
    jain: float | None
    """Of the selections; None before the first."""
    slack: float
    """Least of rate - (beta - Z / T) over the devices."""
