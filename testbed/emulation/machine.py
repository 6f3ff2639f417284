"""What an emulated device senses of itself: its profile, less what this machine could not give."""

from dataclasses import dataclass, field

from testbed.emulation.cpu import RecentShare
from testbed.emulation.device import EmulatedDevice


@dataclass(slots=True)
class EmulatedSensors:
    """Sensors of one emulated device; satisfies `device_agent.host.Sensors`."""

    device: EmulatedDevice
    share: RecentShare = field(default_factory=RecentShare)
    """Written by the pacer, read here."""

    def cores(self) -> int:
        """Cores of the profile."""
        return self.device.cores

    def free_cores(self) -> float:
        """Cores without background load; less when training was starved of this machine."""
        free = self.device.cores - self.device.background_load
        if self.share.value < 1.0:
            free = min(free, float(self.device.engine_threads)) * self.share.value
        return free

    def clock_ratio(self) -> float | None:
        """Always the nominal clock: the speed of the profile holds for it."""
        return 1.0

    def memory_bytes(self) -> int:
        """Memory of the profile."""
        return self.device.memory_bytes

    def temperature_celsius(self) -> float | None:
        """Not emulated."""
        return None

    def board(self) -> str:
        """Title of the profile."""
        return self.device.title
