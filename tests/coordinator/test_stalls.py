"""A run that waits for a lost device names it, and goes on when it may."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import CoordinatorConfig, RoundConfig
from fairbed.coordinator.server.lease import NoEchoError
from fairbed.coordinator.server.service import Coordinator
from fairbed.coordinator.store.tables import EventRow
from fairbed.wire.codec import encode
from fairbed.wire.messages import Context, Hello, Trouble
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from tests.coordinator.builders import context, hello
from tests.coordinator.lab import Lab, lab, make_config
from tests.coordinator.server.test_operator_commands import Operator, steered
from tests.wire.transport.memory import MemoryTransport

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

Act = Callable[[Operator], Awaitable[object]]


async def nothing(operator: Operator) -> None:
    """Leave the run alone."""


async def exclude(operator: Operator) -> None:
    assert await operator.accepted("exclude", device="pi-2") == "pi-2 is not selected any more"


async def lower(operator: Operator) -> None:
    assert "must be at most the 3 devices" in await operator.refused(
        "set", name="min_devices", value=4.0
    )
    text = await operator.accepted("set", name="min_devices", value=2.0)
    assert text.startswith("round.min_devices is 2 from round ")


async def run_with_a_lost_device(
    place: Lab, act: Act, config: CoordinatorConfig, stays_s: float
) -> list[EventRow]:
    """Run 6 rounds of 3 devices, one of which is lost after round 2, and `act` after `stays_s`."""

    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        place.kill_agent("pi-2")
        await anyio.sleep(stays_s)
        await act(operator)

    await steered(place, config, steer)
    with place.reader() as reader:
        assert reader.run().status == "done"
        return [event for _, event in reader.events()]


@pytest.mark.parametrize(
    ("act", "give_up_after_s"), [(exclude, None), (lower, None), (nothing, 300.0)]
)
async def test_a_run_that_waits_for_a_lost_device_goes_on_when_it_may(
    act: Act, give_up_after_s: float | None, tmp_path: Path
) -> None:
    rounds = RoundConfig(
        min_devices=3, deadline_s=30.0, join_timeout_s=30.0, give_up_after_s=give_up_after_s
    )
    config = make_config(rounds=6, round=rounds, min_linked=3)
    async with lab(tmp_path, agents=3, limit_s=2_000.0) as place:
        events = await run_with_a_lost_device(place, act, config, stays_s=400.0)
    left_s = next(event.at_s for event in events if event.kind == "left")
    stalled = [event for event in events if event.kind == "stalled"]
    assert stalled[0].at_s - left_s <= 5.0
    assert "missing pi-2 (disconnected since " in stalled[0].text
    assert "exclude pi-2, or set min_devices 2" in stalled[0].text
    waits_s = stalled[1].at_s - stalled[0].at_s
    assert waits_s == pytest.approx(give_up_after_s or 400.0, abs=15.0)
    assert place.waiting[-1] == stalled[0].text
    given_up = [event.device for event in events if event.kind == "given up on"]
    assert given_up == ([] if give_up_after_s is None else ["pi-2"])


async def test_rounds_count_on_a_device_again_that_they_gave_up_on(tmp_path: Path) -> None:
    rounds = RoundConfig(min_devices=3, deadline_s=30.0, give_up_after_s=20.0, join_timeout_s=30.0)
    config = make_config(rounds=200, round=rounds, min_linked=3)
    lost, back = anyio.Event(), list[int]()

    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        place.kill_agent("pi-2")
        before = len(place.progress)
        while len(place.progress) < before + 3:  # noqa: ASYNC110
            await anyio.sleep(0.05)
        place.start_agent("pi-2")
        while place.progress[-1].round.available < 3:  # noqa: ASYNC110
            await anyio.sleep(0.05)
        back.append(place.progress[-1].round.round)
        place.kill_agent("pi-2")
        await anyio.sleep(15.0)
        lost.set()
        await operator.accepted("stop")

    async with lab(tmp_path, agents=3, limit_s=2_000.0) as place:
        await steered(place, config, steer)
        assert place.progress[-1].round.round <= back[0] + 2, "it waits for the device again"
    assert lost.is_set()


async def test_an_exclusion_names_what_is_waited_for_still(tmp_path: Path) -> None:
    answers = list[str]()

    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        place.kill_agent("pi-1")
        place.kill_agent("pi-2")
        await anyio.sleep(30.0)
        answers.append(await operator.accepted("exclude", device="pi-2"))
        await operator.accepted("stop")

    config = make_config(rounds=200, min_linked=3)
    async with lab(tmp_path, agents=3, limit_s=2_000.0) as place:
        await steered(place, config, steer)
    assert answers[0].startswith("pi-2 is not selected any more; round ")
    assert answers[0].endswith("needs 2 devices in contact, got 1; missing: pi-1 (disconnected)")


async def be_full(place: Lab) -> None:
    """Join with a wrong clock, fail to prepare, and recover after a minute."""
    async with place.broker.transport("full") as link:
        async for event in link.events():
            if isinstance(event, LinkUp):
                await link.subscribe(Topics().coordinator, qos=1)
            elif isinstance(event, Packet) and b"on" in event.payload:
                break

        async def send(message: Hello | Context | Trouble) -> None:
            topics = Topics()
            is_context = isinstance(message, Context)
            topic = topics.telemetry("full") if is_context else topics.up("full")
            await link.publish(topic, encode(message), qos=0 if is_context else 1)

        yesterday = time.time() - 86_400.0
        await send(structs.replace(hello(n_k=40), clock_s=yesterday))
        for seq in range(1, 300):
            if seq == 10:
                trouble = Trouble(
                    boot=1, kind="disk full", reason="shard: full", path="/cache", free_bytes=512
                )
                await send(structs.replace(hello(n_k=40), clock_s=time.time()))
                await send(trouble)
            await send(context(seq=seq, is_ready=seq > 60))
            await anyio.sleep(1.0)


async def test_the_trouble_of_a_device_is_an_event_an_alert_and_its_state(tmp_path: Path) -> None:
    async with (
        lab(tmp_path, agents=2, limit_s=2_000.0) as place,
        anyio.create_task_group() as group,
    ):
        group.start_soon(be_full, place)
        patient = RoundConfig(min_devices=3, deadline_s=5.0, join_timeout_s=200.0)
        assert await place.run(make_config(rounds=2, round=patient)) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        events = [event for _, event in reader.events() if event.device == "full"]
        alerts = {alert.text: alert for alert in reader.alerts() if alert.kind == "trouble"}
        stalls = [alert.text for alert in reader.alerts() if alert.kind == "stalled"]
        phases = {row.phase for row in reader.telemetry_of("full")}
    texts = [event.text for event in events if event.kind == "trouble"]
    assert [text.partition(" s behind")[0] for text in texts] == [
        "clock 86,400",
        "disk full: /cache has 512 bytes free; shard: full",
    ]
    assert "full: disk full: /cache has 512 bytes free" in alerts
    assert all(alert.end_s is not None for alert in alerts.values())
    assert any("full (disk full: /cache has 512 bytes free since " in text for text in stalls)
    assert "disk full" in phases


async def test_a_start_without_an_answer_of_the_broker_has_a_line(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=3) as place, anyio.create_task_group() as group:

        async def come_back() -> None:
            await anyio.sleep(20.0)
            place.broker.start()

        place.broker.stop()
        group.start_soon(come_back)
        assert await place.run(make_config(rounds=2)) == "done"
    assert place.waiting[0].startswith("no answer on topic ")


async def test_a_broker_that_delivers_nothing_ends_a_start(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=1, limit_s=300.0) as place:
        deliver = place.broker._deliver

        def dropped(client: MemoryTransport, packet: Packet, qos: int) -> None:
            if packet.topic != Topics().coordinator:
                deliver(client, packet, qos)

        place.broker._deliver = dropped  # type: ignore[method-assign]
        with pytest.raises(NoEchoError, match=r"got none of 12 messages in 60 s; let the login"):
            await place.run(make_config(rounds=1))
