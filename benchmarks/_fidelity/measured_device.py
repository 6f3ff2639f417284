"""One emulated device with a measuring end inside, and another end outside of it.

    outside <--- the device's link ---> inside

Links, control groups and pacing are those of the backend; a measuring end replaces the agent.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks._fidelity.end_commands import Accept, Address, Connect, Done, Listen
from benchmarks._fidelity.end_in_container import open_contained_end
from benchmarks._fidelity.end_process import EndPipe, open_end
from benchmarks._fidelity.host_contention import children
from fairbed.testbed.backends.apply_conditions import write_gauges
from fairbed.testbed.backends.base import DeviceSpec
from fairbed.testbed.backends.cgroups.fleet import limit_speed, open_groups
from fairbed.testbed.backends.choice import BackendName
from fairbed.testbed.backends.containers.engine import ContainerEngine, find_engine
from fairbed.testbed.backends.gauges import GaugeAddress, Gauges
from fairbed.testbed.backends.network.enter import identity
from fairbed.testbed.backends.network.network import open_network
from fairbed.testbed.backends.proxy.links import shaped_links
from fairbed.testbed.backends.proxy.protocol import LinkState
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.emulation.device import EmulatedDevice
from fairbed.testbed.host.contention import waits

NAME = "device"

DEVICE = EmulatedDevice(
    title="A device under measurement",
    cores=2,
    memory_bytes=1 << 30,
    background_load=0.0,
    engine_threads=1,
    speed_ratio=1.0,
    storage_read_bytes_per_s=1e9,
)

FREE = Conditions(speed_ratio=None, shape=Shape())
"""Conditions without any limit: the full speed of this machine."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device under measurement; made by `open_measured_device`."""

    backend: BackendName
    inside: EndPipe
    outside: EndPipe
    outside_address: Address
    """Address of the outside end, as seen from the device."""
    gauge: GaugeAddress
    sandbox: Sandbox | None
    apply: Callable[[Conditions], Awaitable[None]]
    """Change the device and its link; returns when the change holds."""
    contended_s: Callable[[], float]
    """Return the time for which the device was ready to run and did not, from the kernel."""

    async def connect(self) -> None:
        """Open a connection from the device to the outside end."""
        address = self.outside_address
        await self.inside.request(Connect(host=address.host, port=address.port), Done)
        await self.outside.request(Accept(), Done)

    def path(self) -> list[int]:
        """Return the processes on the path of the bytes: both ends, proxies, relays."""
        return list({*children(), self.inside.pid})


@asynccontextmanager
async def open_measured_device(
    backend: BackendName, folder: Path, *, is_delayed: bool = False, has_jitter: bool = False
) -> AsyncIterator[MeasuredDevice]:
    """Open a device without limits.

    Args:
        backend: Backend that emulates the device.
        folder: Folder for logs.
        is_delayed: Whether its link can delay and lose packets.
        has_jitter: Whether its link can have jitter.

    Raises:
        BackendError: The backend does not work here, or not with such a link.
    """
    gauges = Gauges(folder / "gauges", [NAME])
    spec = DeviceSpec(NAME, DEVICE, Shape(), is_driven=True, has_jitter=has_jitter)

    open_parts = {"namespace": _namespace, "container": _container, "process": _process}[backend]
    async with AsyncExitStack() as stack:
        inside, outside, address, sandbox, change, contended_s = await open_parts(
            stack, folder, spec, is_delayed
        )

        async def apply(wanted: Conditions) -> None:
            write_gauges(gauges[NAME], spec, wanted)
            await change(wanted)

        measured = MeasuredDevice(
            backend, inside, outside, address, gauges.address(NAME), sandbox, apply, contended_s
        )
        await measured.apply(FREE)
        yield measured


_Parts = tuple[
    EndPipe,
    EndPipe,
    Address,
    Sandbox | None,
    Callable[[Conditions], Awaitable[None]],
    Callable[[], float],
]


async def _namespace(
    stack: AsyncExitStack,
    folder: Path,
    spec: DeviceSpec,
    is_delayed: bool,
    engine: ContainerEngine | None = None,
) -> _Parts:
    network = await stack.enter_async_context(
        open_network(
            f"bench-{secrets.token_hex(4)}",
            {NAME: spec.shape},
            delayed=[NAME] if is_delayed else [],
            jittered=[NAME] if spec.has_jitter else [],
            log=folder / "relay.log",
        )
    )
    path = network.namespace(NAME)
    groups = await stack.enter_async_context(open_groups({NAME: spec}, {NAME: path.name}))
    group = groups[NAME]
    sandbox = msgspec.structs.replace(group.sandbox(), network=str(path), host=identity())
    outside = await stack.enter_async_context(open_end(folder / "outside.log", is_instrument=True))
    address = await outside.request(Listen(host=network.hub_address), Address)
    if engine is None:
        device = await stack.enter_async_context(open_end(folder / "device.log", sandbox))
    else:
        device, sandbox = await stack.enter_async_context(
            open_contained_end(engine, path.name, sandbox, folder)
        )

    async def change(wanted: Conditions) -> None:
        limit_speed(group, NAME, wanted.speed_ratio)
        await network.apply({NAME: wanted})

    return device, outside, address, sandbox, change, lambda: group.usage().contended_s or 0.0


async def _container(
    stack: AsyncExitStack, folder: Path, spec: DeviceSpec, is_delayed: bool
) -> _Parts:
    return await _namespace(stack, folder, spec, is_delayed, await find_engine())


async def _process(
    stack: AsyncExitStack, folder: Path, spec: DeviceSpec, is_delayed: bool
) -> _Parts:
    outside = await stack.enter_async_context(open_end(folder / "outside.log", is_instrument=True))
    place = await outside.request(Listen(host=LOOPBACK), Address)
    links = await stack.enter_async_context(
        shaped_links(
            place.host,
            place.port,
            {NAME: spec.shape or Shape()},
            folder / "proxy.log",
            lambda _: None,
        )
    )
    device = await stack.enter_async_context(open_end(folder / "device.log"))

    async def change(wanted: Conditions) -> None:
        state = LinkState(
            shape=wanted.shape or Shape(),
            is_covered=wanted.outage != "coverage",
            is_plugged=wanted.outage != "unplugged",
        )
        await links.change({NAME: state})

    address = Address(host=LOOPBACK, port=links.ports[NAME])
    return device, outside, address, None, change, lambda: waits(device.pid).seconds
