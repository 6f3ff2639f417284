"""One emulated device in plain numbers, as it crosses from the testbed to its process."""

from typing import Annotated

from msgspec import Meta, Struct, structs

from profiles import Profile


class EmulatedDevice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the agent shall find when it looks at its machine."""

    title: str
    """Board name."""
    cores: Annotated[int, Meta(ge=1)]
    memory_bytes: Annotated[int, Meta(ge=1)]
    background_load: Annotated[float, Meta(ge=0.0)]
    """Cores busy with other work."""
    engine_threads: Annotated[int, Meta(ge=1)]
    speed_ratio: Annotated[float, Meta(gt=0.0)]
    """Speed of training relative to one core of this machine; 1 or more is not slowed."""
    storage_read_bytes_per_s: Annotated[float, Meta(gt=0.0)]
    dilation: Annotated[float, Meta(ge=1.0)] = 1.0
    """Seconds of this machine in one second of the device; speed and storage are slower by it."""

    def dilated(self, dilation: float) -> "EmulatedDevice":
        """Return the device as this machine has to emulate it when time is dilated."""
        return structs.replace(
            self,
            speed_ratio=self.speed_ratio / dilation,
            storage_read_bytes_per_s=self.storage_read_bytes_per_s / dilation,
            dilation=self.dilation * dilation,
        )


def emulated_device(profile: Profile, host_core_speed: float = 1.0) -> EmulatedDevice:
    """Return what `profile` becomes on this machine.

        q = core_speed * min(engine threads, free cores) / host_core_speed

    Args:
        profile: The kind of device.
        host_core_speed: Speed of one core of this machine, in cores of the reference machine.

    Raises:
        ValueError: `host_core_speed` is not positive.
    """
    if host_core_speed <= 0.0:
        raise ValueError(
            f"emulation.host_core_speed must be > 0, got {host_core_speed}; "
            "1.0 is one core of an Intel N100"
        )
    return EmulatedDevice(
        title=profile.title,
        cores=profile.cores,
        memory_bytes=profile.memory_bytes,
        background_load=profile.background_load,
        engine_threads=profile.engine_threads,
        speed_ratio=profile.training_speed / host_core_speed,
        storage_read_bytes_per_s=profile.storage_read_bytes_per_s,
    )
