"""Cells: streams of several devices at the same time share a rate.

Each device has an end of its own; the other end of all streams is this process. The streams of a
window begin at the same time and fill their links.
"""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import SocketAttribute, SocketStream

from benchmarks._fidelity import limits
from benchmarks._fidelity.arithmetic import goodput_bps
from benchmarks._fidelity.end_commands import Arrivals, Connect, Done, ReceiveStream, SendStream
from benchmarks._fidelity.end_process import EndPipe, open_end
from benchmarks._fidelity.host_contention import children, watch
from benchmarks._fidelity.measure import Plan, measured_rows
from benchmarks._fidelity.measured_device import DEVICE
from benchmarks._fidelity.rows import QuantitySpec, Row
from benchmarks._fidelity.windows import Evidence, Window
from fairbed.testbed.backends.base import DeviceSpec
from fairbed.testbed.backends.cgroups.fleet import open_groups
from fairbed.testbed.backends.choice import BackendName
from fairbed.testbed.backends.network.enter import identity
from fairbed.testbed.backends.network.network import open_network
from fairbed.testbed.backends.proxy.links import shaped_links
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.emulation.cell import Cell, Direction
from fairbed.testbed.emulation.conditions import Shape

PIECE_BYTES = 1 << 16

OPEN_S = 20.0
"""Time limit to open a connection."""

LOOPBACK = "127.0.0.1"

CELL_BPS = 20e6

WARM_S, FLOW_S, QUICK_S = 1.0, 6.0, 0.7

CASES: Mapping[str, tuple[Cell, Mapping[str, tuple[Shape, int, float]]]] = {
    "4 equal streams": (
        Cell(name="ap", down_bps=CELL_BPS, up_bps=CELL_BPS),
        {f"device-{k}": (Shape(), 0, CELL_BPS / 4) for k in range(4)},
    ),
    "2 streams beside a slow link": (
        Cell(name="ap", down_bps=CELL_BPS, up_bps=CELL_BPS),
        {
            "slow": (Shape(down_bps=2e6, up_bps=2e6), 0, 2e6),
            **{f"device-{k}": (Shape(), 0, 9e6) for k in range(2)},
        },
    ),
    "2 streams of different priority": (
        Cell(name="ap", down_bps=CELL_BPS, up_bps=CELL_BPS, share="priority"),
        {
            "first": (Shape(down_bps=12e6, up_bps=12e6), 0, 12e6),
            "second": (Shape(), 1, 8e6),
        },
    ),
}
"""By name: the cell, and each device with its link, its priority and the rate that it shall have,
bit/s."""


async def shares(backend: BackendName, plan: Plan, folder: Path) -> list[Row]:
    """Measure the rate of each stream in a cell; a row has the one with the largest error."""
    rows = list[Row]()
    if backend == "container":  # its links are those of the namespace backend
        return rows
    directions: tuple[Direction, Direction] = ("down", "up")
    for name, (cell, devices) in CASES.items():
        wanted = {device: bps for device, (_, _, bps) in devices.items()}
        async with _open(backend, folder, cell, devices) as connect:
            for direction in directions:
                spec = QuantitySpec(
                    backend=backend,
                    quantity=f"cell of 20 Mbit/s, {name} {direction}",
                    target=1.0,
                    unit="ratio",
                    limit=limits.SHARE_OF_CELL,
                )

                async def measure(
                    direction: Direction = direction,
                    wanted: Mapping[str, float] = wanted,
                    connect: Connector = connect,
                ) -> list[Window]:
                    return [await _window(plan, direction, wanted, connect)]

                rows += await measured_rows(plan, [spec], measure)
    return rows


async def _window(
    plan: Plan, direction: Direction, wanted: Mapping[str, float], connect: "Connector"
) -> Window:
    """Return the ratio of a rate to the wanted one that is the farthest from 1."""
    lasting_s = WARM_S + plan.pick(FLOW_S, QUICK_S)
    found: dict[str, Arrivals] = {}

    async def stream(name: str, inside: EndPipe, outside: SocketStream) -> None:
        async with outside:
            if direction == "down":
                receive = ReceiveStream(lasting_s=lasting_s)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_send, outside)
                    found[name] = await inside.request(receive, Arrivals, lasting_s + 60.0)
                    tasks.cancel_scope.cancel()
            else:
                async with anyio.create_task_group() as tasks:
                    send = SendStream(limit_s=lasting_s + 2.0)
                    tasks.start_soon(inside.request, send, Done, lasting_s + 60.0)
                    found[name] = await _receive(outside, lasting_s)
                    await outside.aclose()

    streams = {name: await connect(name) for name in wanted}
    with watch(children(), lambda: 0.0) as contention:
        async with anyio.create_task_group() as tasks:
            for name, ends in streams.items():
                tasks.start_soon(stream, name, *ends)
    ratios = [
        goodput_bps(found[name].times, found[name].totals, WARM_S) / bps
        for name, bps in wanted.items()
    ]
    worst = max(ratios, key=lambda ratio: abs(ratio - 1.0))
    evidence = Evidence(
        wall_s=contention.wall_s, stolen_s=contention.stolen_s, waited_s=contention.waited_s
    )
    return Window(worst, evidence)


async def _send(outside: SocketStream) -> None:
    """Send as fast as the link permits, until the other end has closed."""
    piece = bytes(PIECE_BYTES)
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await outside.send(piece)


async def _receive(outside: SocketStream, lasting_s: float) -> Arrivals:
    """Receive for a time in which all streams of the window send."""
    times, totals, total = list[float](), list[int](), 0
    with anyio.move_on_after(lasting_s):
        while True:
            total += len(await outside.receive(PIECE_BYTES))
            times.append(time.monotonic())
            totals.append(total)
    return Arrivals(times=times, totals=totals)


Connector: TypeAlias = Callable[[str], Awaitable[tuple[EndPipe, SocketStream]]]
"""Opens a connection from a device, by name; returns its ends inside and outside."""


@asynccontextmanager
async def _open(
    backend: BackendName,
    folder: Path,
    cell: Cell,
    devices: Mapping[str, tuple[Shape, int, float]],
) -> AsyncIterator["Connector"]:
    """Open a cell with a measuring end in each device."""
    shapes = {name: shape for name, (shape, *_) in devices.items()}
    cells = {name: ((cell,), priority) for name, (_, priority, _) in devices.items()}
    accepted, streams = anyio.create_memory_object_stream[SocketStream](len(devices))
    ends = dict[str, EndPipe]()
    async with AsyncExitStack() as stack:
        stack.enter_context(accepted)
        stack.enter_context(streams)
        host, sandboxes = LOOPBACK, dict[str, Sandbox | None].fromkeys(devices)
        if backend == "namespace":
            network = await stack.enter_async_context(
                open_network(f"bench-{secrets.token_hex(4)}", shapes, cells=cells)
            )
            paths = {name: network.namespace(name) for name in devices}
            specs = {name: DeviceSpec(name, DEVICE, shape) for name, shape in shapes.items()}
            groups = await stack.enter_async_context(
                open_groups(specs, {name: path.name for name, path in paths.items()})
            )
            host = network.hub_address
            for name, path in paths.items():
                sandbox = groups[name].sandbox()
                sandboxes[name] = msgspec.structs.replace(
                    sandbox, network=str(path), host=identity()
                )
        listener = await anyio.create_tcp_listener(local_host=host)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(listener.serve, accepted.send)
        stack.push_async_callback(listener.aclose)
        port = int(listener.extra(SocketAttribute.local_port))
        ports = dict.fromkeys(devices, port)
        if backend == "process":
            links = await stack.enter_async_context(
                shaped_links(host, port, shapes, folder / "proxy.log", lambda _: None, cells=cells)
            )
            ports = links.ports
        for name in devices:
            ends[name] = await stack.enter_async_context(
                open_end(folder / f"{name}.log", sandboxes[name])
            )

        async def connect(name: str) -> tuple[EndPipe, SocketStream]:
            await ends[name].request(Connect(host=host, port=ports[name]), Done)
            with anyio.fail_after(OPEN_S):
                return ends[name], await streams.receive()

        yield connect
        tasks.cancel_scope.cancel()
