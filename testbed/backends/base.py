"""The interface of a backend.

    DeviceSpec     one device to start
    Conditions     configured conditions of a device at one moment: processor, link, outage
    Usage          measured usage of a device since its start

A backend starts devices, changes their conditions while they run, and reports their usage. Enter it
with `async with` before use; leaving it ends all devices and frees their resources.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from fairbed.profiles import Link, Profile
from fairbed.testbed.emulation.cell import Cell, DeviceCells
from fairbed.testbed.emulation.conditions import Conditions, Congestion, LinkFeature, Outage, Shape
from fairbed.testbed.emulation.device import EmulatedDevice, emulated_device
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.emulation.queues import codel_target_s, depth_bytes
from fairbed.testbed.emulation.work import WorkCosts

if TYPE_CHECKING:
    from fairbed.device_agent.config import AllowedClient


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device to start."""

    name: str
    device: EmulatedDevice | None = None
    """None is this machine, not slowed."""
    shape: Shape | None = None
    """None is this machine's own link to the broker."""
    is_driven: bool = False
    """Whether a schedule changes its conditions; the device then gets a link of its own."""
    has_jitter: bool = False
    """Whether its schedule gives its link jitter."""
    attack: Attack | None = None
    """Malicious behaviour; None is honest."""
    local_rules: tuple[str, ...] = ()
    """Paths of local rules that its agent may load."""
    models: tuple[str, ...] = ()
    """Python modules with torch models that its agent may import."""
    clients: "tuple[tuple[str, AllowedClient], ...]" = ()
    """Names of the clients whose code its agent may run, and where it is."""
    cells: tuple[Cell, ...] = ()
    """The cell whose rate it shares with other devices, and the cells in front of that one."""
    priority: int = 0
    """In a cell with priorities: 0 is first."""
    congestion: Congestion = "cubic"
    """Congestion control of its uploads."""
    shared_bytes: int = 0
    """Memory that all devices of this machine map and have once, the frozen part of the model; its
    limit is smaller by that, as if the memory were its own."""
    client_server: str | None = None
    """Socket of the server that forks clients for all devices of this machine; None without one."""

    def dilated(self, dilation: float) -> "DeviceSpec":
        """Return the device that this machine must emulate under time dilation."""
        return replace(
            self,
            device=self.device and self.device.dilated(dilation),
            shape=self.shape and self.shape.dilated(dilation),
            cells=tuple(cell.dilated(dilation) for cell in self.cells),
        )


def cells_of(fleet: Iterable[DeviceSpec]) -> DeviceCells:
    """Return the cells and priorities of the devices that have a cell."""
    return {spec.name: (spec.cells, spec.priority) for spec in fleet if spec.cells}


def device_spec(
    name: str, profile: Profile | None, link: Link | None = None, host_core_speed: float = 1.0
) -> DeviceSpec:
    """Return the device of a profile, on another link if one is given.

    Args:
        name: Name of the device.
        profile: Device model; None is this machine, not slowed, on its own link.
        link: Replaces the link of the profile.
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


def without(spec: DeviceSpec, lacking: Collection[LinkFeature]) -> DeviceSpec:
    """Return the same device without features that its backend lacks."""
    if "bbr" in lacking:
        spec = replace(spec, congestion="cubic")
    shape = spec.shape
    if shape is not None and "loss" in lacking:
        shape = msgspec.structs.replace(shape, loss_ratio=0.0)
    if shape is not None and "fq_codel" in lacking:
        shape = msgspec.structs.replace(shape, codel_target_s=None)
    return replace(spec, shape=shape)


def _shape(link: Link) -> Shape:
    queue = link.queue
    return Shape(
        down_bps=link.down_bps,
        up_bps=link.up_bps,
        delay_s=link.delay_s,
        jitter_s=link.jitter_s,
        loss_ratio=link.loss_ratio,
        down_queue_bytes=depth_bytes(queue, link.down.highest),
        up_queue_bytes=depth_bytes(queue, link.up.highest),
        codel_target_s=codel_target_s(queue),
    )


__all__ = ["Backend", "Conditions", "Outage", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a device since it was started; None if the backend does not measure it."""

    wall_s: float
    cpu_s: float
    """Processor time of all its processes."""
    throttled_s: float | None
    """Time for which its quota stopped it, on purpose."""
    contended_s: float | None
    """Time for which it was ready and allowed to run, but this machine was busy."""
    down_bytes: int | None
    up_bytes: int | None
    dropped_packets: int | None


class Backend(Protocol):
    """Runs a fleet; satisfied by every backend."""

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the devices that are alive."""
        ...

    def path_pids(self, name: str) -> list[int]:
        """Return the process ids of helpers that relay a device's bytes: their delays slow it."""
        ...

    def log_file(self, name: str) -> Path:
        """Return the file that receives the output of a device."""
        ...

    async def start(self, costs: WorkCosts | None = None) -> None:
        """Start all devices at once; return when every process exists.

        Args:
            costs: Costs that emulated devices charge for steps; None charges processor time.

        Raises:
            BackendError: A process cannot be started.
        """
        ...

    async def kill(self, name: str) -> None:
        """Kill a device by SIGKILL, as a power cut does; return when it has ended."""
        ...

    async def restart(self, name: str, spec: DeviceSpec | None = None) -> None:
        """Start a device again, as another one if `spec` is given; kill it first if it is alive.

        Raises:
            BackendError: The fleet has no such device, or its process cannot be started.
        """
        ...

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change the given devices to these conditions in one step; leave the others unchanged.

        Raises:
            BackendError: There is no such device, or the backend cannot emulate its conditions.
        """
        ...

    def contended_s(self, name: str) -> float | None:
        """Return the time for which a device has waited for this machine; None if unknown."""
        ...

    def counted(self, name: str) -> Mapping[str, float]:
        """Return what was counted of a device so far, by column of the exchange.

        Each is declared with `Source.HOST` in `coordinator/store/tables.py` and only grows; one
        that is not measured is absent.
        """
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
