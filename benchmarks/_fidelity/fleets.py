"""A fleet of a hundred devices: cost of set-up, schedule changes and removal."""

import secrets
import time
from pathlib import Path

import anyio

from benchmarks import trace_driver
from benchmarks._fidelity import limits
from benchmarks._fidelity.host_contention import watch
from benchmarks._fidelity.measure import Plan, measured_rows
from benchmarks._fidelity.rows import QuantitySpec, Row
from benchmarks._fidelity.windows import Evidence, Window
from fairbed import profiles
from fairbed.testbed.backends.base import DeviceSpec, device_spec
from fairbed.testbed.backends.choice import BackendName, open_backend
from fairbed.testbed.emulation.conditions import Shape
from fairbed.testbed.run.broker import start_broker
from fairbed.wire.codec import decode
from fairbed.wire.messages import Status
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport

DEVICES = {"namespace": 100, "container": 30, "process": 100}
QUICK_DEVICES = 5

DRIVEN = 100

TENANT = "bench"

CONNECTED_WITHIN_S = 120.0


async def drivers(backend: BackendName, plan: Plan, folder: Path) -> list[Row]:
    """Measure the cost of changing a hundred devices ten times a second."""
    count = QUICK_DEVICES if plan.is_quick else DRIVEN
    name = f"{count} devices at 10 Hz"
    specs = [
        QuantitySpec(
            backend=backend,
            quantity=f"{name}, driver",
            target=None,
            unit="cores",
            limit=limits.DRIVER_CORES,
            is_bound=True,
        ),
        QuantitySpec(
            backend=backend,
            quantity=f"{name}, helpers",
            target=None,
            unit="cores",
            is_bound=True,
        ),
    ]

    async def measure() -> list[Window]:
        with watch([], lambda: 0.0) as contention:
            cost = await trace_driver.measure(backend, count, plan.pick(10.0, 1.0))
        evidence = Evidence(wall_s=contention.wall_s, stolen_s=contention.stolen_s)
        return [Window(cost["driver_cores"], evidence), Window(cost["helper_cores"], evidence)]

    return await measured_rows(plan, specs, measure)


async def set_ups(backend: BackendName, plan: Plan, folder: Path) -> list[Row]:
    """Measure the time until a fleet is set up, connected, and removed."""
    count = QUICK_DEVICES if plan.is_quick else DEVICES[backend]
    limits_s = {
        "namespace": (limits.SET_UP_S, limits.CONNECTED_S, limits.TEAR_DOWN_S),
        "container": (None, limits.CONNECTED_S, None),
        "process": (None, None, None),
    }[backend]
    specs = [
        QuantitySpec(
            backend=backend,
            quantity=f"{count} devices, {what}",
            target=None,
            unit="s",
            limit=limit_s,
            is_bound=True,
        )
        for what, limit_s in zip(("set up", "connected", "taken down"), limits_s, strict=True)
    ]
    fleet = _fleet(count)

    async def measure() -> list[Window]:
        with watch([], lambda: 0.0) as contention:
            took_s = await _life(backend, fleet, folder)
        evidence = Evidence(wall_s=contention.wall_s, stolen_s=contention.stolen_s)
        return [Window(value, evidence) for value in took_s]

    return await measured_rows(plan, specs, measure)


def _fleet(count: int) -> list[DeviceSpec]:
    pi = profiles.load("raspberry-pi-4b")
    shape = Shape(down_bps=10e6, up_bps=10e6)
    names = (f"device-{number}" for number in range(count))
    return [DeviceSpec(name, device_spec(name, pi).device, shape) for name in names]


async def _life(
    backend: BackendName, fleet: list[DeviceSpec], folder: Path
) -> tuple[float, float, float]:
    """Start and remove a fleet; return the duration of each part, seconds."""
    begun = time.monotonic()
    run_id = f"bench-{secrets.token_hex(4)}"
    async with open_backend(backend, fleet, folder, run_id) as stage:
        broker_begun = time.monotonic()
        host = stage.broker_host or "127.0.0.1"
        async with (
            start_broker(folder=folder, host=host) as broker,
            MqttTransport(broker.url, "observer") as observer,
        ):
            broker_s = time.monotonic() - broker_begun
            async with stage.backend(broker.url, tenant=TENANT) as running:
                set_up_s = time.monotonic() - begun - broker_s
                await running.start()
                with anyio.fail_after(CONNECTED_WITHIN_S):
                    await _all_online(observer, len(fleet))
                connected_s = time.monotonic() - begun - broker_s
                ended = time.monotonic()
            down_s = time.monotonic() - ended
        ended = time.monotonic()
    return set_up_s, connected_s, down_s + time.monotonic() - ended


async def _all_online(observer: MqttTransport, count: int) -> None:
    topics, online = Topics(TENANT), set[str]()
    async for event in observer.events():
        if isinstance(event, LinkUp):
            await observer.subscribe(topics.status("+"), qos=1)
        elif isinstance(event, Packet) and isinstance(decode(event.payload), Status):
            online.add(event.topic)
            if len(online) == count:
                return
