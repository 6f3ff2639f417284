"""What an emulated device senses of itself: its profile, less what this machine could not give."""

from collections.abc import Callable
from dataclasses import dataclass, field

from testbed.emulation.cpu import RecentShare
from testbed.emulation.device import EmulatedDevice

NOTICED_SHARE = 0.95
"""A device that had less than this share of its speed senses it. What is missing at other times is
this machine's jitter, which never fades quite: the device would sense it for ever."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What a device is in at this moment; the rest of it never changes."""

    speed_ratio: float
    """Of its processor, in cores of this machine; NaN is that of the profile."""
    clock_ratio: float = 1.0
    temperature_celsius: float | None = None
    is_willing: bool = True


@dataclass(slots=True)
class EmulatedSensors:
    """Sensors of one emulated device; satisfies `device_agent.host.Sensors`."""

    device: EmulatedDevice
    share: RecentShare = field(default_factory=RecentShare)
    """Written by the pacer, read here."""
    weather: Callable[[], Weather] | None = None
    """Looked up for every answer; None is the profile for good."""

    def cores(self) -> int:
        """Cores of the profile."""
        return self.device.cores

    def free_cores(self) -> float:
        """Cores without background load; less when other work or this machine took some."""
        free = self.device.cores - self.device.background_load
        share = self.share.value * self._left_by_others()
        if share < NOTICED_SHARE:
            free = min(free, float(self.device.engine_threads)) * share
        return free

    def clock_ratio(self) -> float | None:
        """The clock of this moment: 1, unless the device is hot."""
        return self._weather().clock_ratio

    def throttled(self) -> tuple[str, ...] | None:
        """Not told: a hot device is known by its clock."""
        return None

    def memory_bytes(self) -> int:
        """Memory of the profile."""
        return self.device.memory_bytes

    def temperature_celsius(self) -> float | None:
        """The temperature of this moment, if the profile knows how the device heats up."""
        return self._weather().temperature_celsius

    def is_willing(self) -> bool:
        """The owner of this moment."""
        return self._weather().is_willing

    def board(self) -> str:
        """Title of the profile."""
        return self.device.title

    def _weather(self) -> Weather:
        return Weather(self.device.speed_ratio) if self.weather is None else self.weather()

    def _left_by_others(self) -> float:
        """Return the share of the profile's speed that is not lost to other work, 0 to 1."""
        now = self._weather()
        if not now.speed_ratio < self.device.speed_ratio * now.clock_ratio:  # false for NaN
            return 1.0
        return now.speed_ratio / (self.device.speed_ratio * now.clock_ratio)
