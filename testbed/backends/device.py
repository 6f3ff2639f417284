"""One device of a fleet, as a backend takes it."""

from dataclasses import dataclass, replace

import msgspec

from profiles import Link, Profile
from testbed.emulation.conditions import Shape
from testbed.emulation.device import EmulatedDevice, emulated_device


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device to start."""

    name: str
    device: EmulatedDevice | None = None
    """None is this machine, not slowed."""
    shape: Shape | None = None
    """None is this machine's own link to the broker."""
    is_driven: bool = False
    """Its conditions change while it runs: it has a link of its own, whatever its shape."""

    def dilated(self, dilation: float) -> "DeviceSpec":
        """Return the device as this machine has to emulate it when time is dilated."""
        return replace(
            self,
            device=self.device and self.device.dilated(dilation),
            shape=self.shape and self.shape.dilated(dilation),
        )


def device_spec(
    name: str, profile: Profile | None, link: Link | None = None, host_core_speed: float = 1.0
) -> DeviceSpec:
    """Return the device that a profile describes, on another link if one is given.

    Args:
        name: Of the device.
        profile: Its kind; None is this machine, not slowed, on its own link.
        link: Instead of the profile's own.
        host_core_speed: Speed of one core of this machine, in cores of the reference machine.

    Raises:
        ValueError: `host_core_speed` is not positive.
    """
    if link is None and profile is not None:
        link = profile.link
    return DeviceSpec(
        name=name,
        device=None if profile is None else emulated_device(profile, host_core_speed),
        shape=None if link is None else _shape(link),
    )


def without_loss(spec: DeviceSpec) -> DeviceSpec:
    """Return the same device on a link that loses nothing, for a backend that cannot lose."""
    if spec.shape is None:
        return spec
    return replace(spec, shape=msgspec.structs.replace(spec.shape, loss_ratio=0.0))


def _shape(link: Link) -> Shape:
    return Shape(
        down_bps=link.down_bps,
        up_bps=link.up_bps,
        delay_s=link.delay_s,
        jitter_s=link.jitter_s,
        loss_ratio=link.loss_ratio,
    )
