"""An emulated device in plain numbers, and its sensors.

The testbed sends `EmulatedDevice` to the process of the agent. The sensors report the values of the
profile, less the speed that this machine failed to provide.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from fairbed.testbed.emulation.cpu import RecentShare
from fairbed.testbed.emulation.power import phase_power

if TYPE_CHECKING:  # an agent reads no profile
    from fairbed.profiles import Profile


class EmulatedDevice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hardware that the agent reports."""

    title: str
    """Board name."""
    cores: Annotated[int, Meta(ge=1)]
    memory_bytes: Annotated[int, Meta(ge=1)]
    background_load: Annotated[float, Meta(ge=0.0)]
    """Cores busy with other work."""
    engine_threads: Annotated[int, Meta(ge=1)]
    speed_ratio: Annotated[float, Meta(gt=0.0)]
    """Speed of training relative to one core of this machine; 1 or more is not slowed."""
    evaluation_speed: Annotated[float, Meta(gt=0.0)] = 1.0
    """Speed of an evaluation relative to that of training."""
    storage_read_bytes_per_s: Annotated[float, Meta(gt=0.0)]
    transfer_w: float | None = None
    """Power of the device during download and upload, watts; None is unknown."""
    compute_w: float | None = None
    """Power of the device during the other phases."""
    transfer_range_w: tuple[float, float] | None = None
    """Least and greatest published `transfer_w`; None if one is published."""
    compute_range_w: tuple[float, float] | None = None
    """The same of `compute_w`."""
    dilation: Annotated[float, Meta(ge=1.0)] = 1.0
    """Seconds of this machine per second of the device; speed and storage rate include it."""

    def dilated(self, dilation: float) -> "EmulatedDevice":
        """Return the device that this machine must emulate under time dilation."""
        return structs.replace(
            self,
            speed_ratio=self.speed_ratio / dilation,
            storage_read_bytes_per_s=self.storage_read_bytes_per_s / dilation,
            dilation=self.dilation * dilation,
        )


def emulated_device(profile: "Profile", host_core_speed: float = 1.0) -> EmulatedDevice:
    """Return the emulated device of a profile on this machine.

        q = core_speed * min(engine threads, free cores) / host_core_speed

    Args:
        profile: The device model.
        host_core_speed: Speed of one core of this machine, in cores of the reference machine.

    Raises:
        ValueError: `host_core_speed` is not positive.
    """
    if host_core_speed <= 0.0:
        raise ValueError(
            f"emulation.host_core_speed must be > 0, got {host_core_speed}; "
            "1.0 is one core of an Intel N100"
        )
    power = phase_power(profile)
    return EmulatedDevice(
        title=profile.title,
        cores=profile.cores,
        memory_bytes=profile.memory_bytes,
        background_load=profile.background_load,
        engine_threads=profile.engine_threads,
        speed_ratio=profile.training_speed / host_core_speed,
        storage_read_bytes_per_s=profile.storage_read_bytes_per_s,
        transfer_w=power.transfer_w,
        compute_w=power.compute_w,
        transfer_range_w=power.transfer_range_w,
        compute_range_w=power.compute_range_w,
    )


NOTICED_SHARE = 0.95
"""Below this share of its speed a device reports fewer free cores. A smaller loss is jitter of this
machine, which never decays to zero and would be reported for ever."""


@dataclass(frozen=True, slots=True)
class SensorReadings:
    """The sensor values of a device that change; the others are constant."""

    speed_ratio: float
    """Speed of the processor in cores of this machine; NaN is that of the profile."""
    clock_ratio: float = 1.0
    temperature_celsius: float | None = None
    is_willing: bool = True


@dataclass(slots=True)
class EmulatedSensors:
    """Sensors of one emulated device; satisfies `device_agent.host.Sensors`."""

    device: EmulatedDevice
    share: RecentShare = field(default_factory=RecentShare)
    """Updated by the pace."""
    readings: Callable[[], SensorReadings] | None = None
    """Returns the current values; None is those of the profile."""

    def cores(self) -> int:
        """Return the cores of the profile."""
        return self.device.cores

    def free_cores(self) -> float:
        """Return the cores without background load, fewer under other work or contention."""
        free = self.device.cores - self.device.background_load
        share = self.share.value * self._uncontended_share()
        if share < NOTICED_SHARE:
            free = min(free, float(self.device.engine_threads)) * share
        return free

    def clock_ratio(self) -> float | None:
        """Return the current clock / nominal clock: 1 unless the device is hot."""
        return self._readings().clock_ratio

    def throttled(self) -> tuple[str, ...] | None:
        """Return None: throttling is visible in `clock_ratio`, its causes are not emulated."""
        return None

    def memory_bytes(self) -> int:
        """Return the memory of the profile."""
        return self.device.memory_bytes

    def temperature_celsius(self) -> float | None:
        """Return the current temperature; None where the profile has no thermal limits."""
        return self._readings().temperature_celsius

    def is_willing(self) -> bool:
        """Return whether the owner lets the device take part now."""
        return self._readings().is_willing

    def board(self) -> str:
        """Return the title of the profile."""
        return self.device.title

    def _readings(self) -> SensorReadings:
        return SensorReadings(self.device.speed_ratio) if self.readings is None else self.readings()

    def _uncontended_share(self) -> float:
        """Return the share of the profile's speed that other work leaves, 0 to 1."""
        now = self._readings()
        if not now.speed_ratio < self.device.speed_ratio * now.clock_ratio:  # false for NaN
            return 1.0
        return now.speed_ratio / (self.device.speed_ratio * now.clock_ratio)
