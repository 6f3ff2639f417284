"""The interface of a backend, and the description of a device that it takes.

    DeviceSpec     one device of a fleet, as a backend takes it
    Conditions     what a device is configured to have at this moment: processor, link, coverage
    Usage          what it really had since it was started

A backend starts devices, changes their conditions while they run, and reports their usage. It is
entered with `async with` before it is used; leaving it ends all devices and frees their resources.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec

from fairbed.profiles import Link, Profile
from fairbed.testbed.emulation.conditions import Conditions, Outage, Shape
from fairbed.testbed.emulation.device import EmulatedDevice, emulated_device
from fairbed.testbed.emulation.work import WorkCosts


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
    """Return the same device on a link without loss, for a backend that cannot drop packets."""
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


__all__ = ["Backend", "Conditions", "Outage", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a device had since it was started; None is unknown to the backend."""

    wall_s: float
    cpu_s: float
    """Processor time of all its processes."""
    throttled_s: float | None
    """Held back by its own quota, on purpose."""
    contended_s: float | None
    """Wanted to run, was allowed to, and this machine was busy with something else."""
    down_bytes: int | None
    up_bytes: int | None
    dropped_packets: int | None


class Backend(Protocol):
    """Runs a fleet; satisfied by every backend."""

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the devices that are alive."""
        ...

    @property
    def path_pids(self) -> list[int]:
        """Helper processes that relay the bytes of devices: if they wait, links are slower."""
        ...

    def log_file(self, name: str) -> Path:
        """Return where a device's output goes."""
        ...

    async def start(self, costs: WorkCosts | None = None) -> None:
        """Start all devices at once; return when every process exists.

        Args:
            costs: What emulated devices are charged for steps; None charges processor time.

        Raises:
            BackendError: The machine refused one.
        """
        ...

    async def kill(self, name: str) -> None:
        """Kill a device as a power cut does; return when it is gone."""
        ...

    async def restart(self, name: str) -> None:
        """Start a device again, killing it first if it is alive."""
        ...

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change devices to these conditions, all of them in one go; others stay as they are.

        Raises:
            BackendError: There is no such device, or the backend cannot emulate its condition.
        """
        ...

    def contended_s(self, name: str) -> float | None:
        """Return for how long this machine has kept a device waiting; None if unknown."""
        ...

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of a device since it was started; None if it is not alive."""
        ...

    async def sample(self) -> dict[str, Usage]:
        """Return the usage of the devices that are alive.

        Raises:
            BackendError: A counter cannot be read.
        """
        ...
