"""Times at which a device sends its context."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import anyio
import pytest

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.host import Host, UnlimitedPace
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.sensors import RealSensors
from fairbed.device_agent.state.lifecycle import Phase
from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.device_agent.telemetry import MIN_GAP_S, WAITING_S, Telemetry
from fairbed.device_agent.worker import TrainingThread
from fairbed.wire.codec import decode_from_device, encode
from fairbed.wire.messages import MAX_CORES
from fairbed.wire.topics import Topics
from tests.device_agent.clock import ManualClock
from tests.wire.transport.memory import MemoryBroker

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]


class CountingBroker(MemoryBroker):
    """Counts published messages."""

    published = 0

    def route(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        self.published += 1
        super().route(topic, payload, qos, retain)


@asynccontextmanager
async def running_telemetry(
    folder: Path, period_s: float = 60.0, phase: Phase = Phase.IDLE
) -> AsyncIterator[tuple[Telemetry, ManualClock, CountingBroker]]:
    """Run the telemetry of a device that has just sent its first context."""
    broker, clock = CountingBroker(), ManualClock()
    host = Host(clock=clock, pace=UnlimitedPace(), sensors=RealSensors())
    async with broker.transport("pi-1") as link, anyio.create_task_group() as group:
        await anyio.wait_all_tasks_blocked()
        telemetry = Telemetry(
            host,
            DevicePublisher(link, Topics(), "pi-1", group),
            TrainingThread(host, BlobCache(folder, 1_000), folder),
            LinkEstimate(),
            boot=1,
            engine_threads=1,
            period_s=period_s,
            state=lambda: (phase, True),
        )
        group.start_soon(telemetry.run)
        await anyio.wait_all_tasks_blocked()
        assert broker.published == 1
        yield telemetry, clock, broker
        group.cancel_scope.cancel()


async def test_changes_unknown_to_the_coordinator_are_sent_at_once(tmp_path: Path) -> None:
    async with running_telemetry(tmp_path) as (telemetry, _, broker):
        for count in (2, 3):
            telemetry.send_now()
            await anyio.wait_all_tasks_blocked()
            assert broker.published == count


async def test_the_confirmed_end_of_a_round_waits_for_the_shortest_interval(
    tmp_path: Path,
) -> None:
    async with running_telemetry(tmp_path) as (telemetry, clock, broker):
        clock.now_s += 0.9 * MIN_GAP_S
        telemetry.send_next()
        await anyio.wait_all_tasks_blocked()
        assert broker.published == 1
    async with running_telemetry(tmp_path) as (telemetry, clock, broker):
        clock.now_s += MIN_GAP_S
        telemetry.send_next()
        await anyio.wait_all_tasks_blocked()
        assert broker.published == 2


async def test_a_new_phase_is_sent_after_a_delay_and_the_shortest_interval(tmp_path: Path) -> None:
    async with running_telemetry(tmp_path) as (telemetry, clock, broker):
        clock.now_s += MIN_GAP_S
        telemetry.send_soon()
        await anyio.wait_all_tasks_blocked()
        assert broker.published == 1


@pytest.mark.parametrize(
    ("phase", "interval_s"),
    [(Phase.IDLE, 1.0), (Phase.WAITING, WAITING_S), (Phase.OFFLINE, WAITING_S)],
)
async def test_without_a_coordinator_contexts_are_rare(
    tmp_path: Path, phase: Phase, interval_s: float
) -> None:
    async with running_telemetry(tmp_path, 1.0, phase) as (telemetry, clock, _):
        assert telemetry.next_s == clock.now_s + interval_s


async def test_a_broken_sensor_leaves_the_context_valid(tmp_path: Path) -> None:
    """The coordinator refuses a message with one value out of bounds, so with all of them."""
    async with running_telemetry(tmp_path) as (telemetry, clock, _):
        for celsius, sent in ((65_535.0, None), (-300.0, None), (41.5, 41.5)):
            with mock.patch.object(RealSensors, "temperature_celsius", return_value=celsius):
                context = telemetry.context()
            assert context.temperature_celsius == sent
        clock.now_s += 1e-3
        with mock.patch("time.process_time", return_value=1e9):
            context = telemetry.context()
    assert context.cpu_ratio == MAX_CORES
    assert decode_from_device(encode(context)) == context
