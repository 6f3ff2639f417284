"""A run whose devices are all gone or unwilling uses up no round (issue #20, H2)."""

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Literal

import anyio
import msgspec
import pytest

from fairbed.coordinator.policy.config import CoordinatorConfig, EvaluationConfig, RoundConfig
from fairbed.coordinator.rounds.loop import FleetMissingError, RoundProgress
from fairbed.wire.codec import encode
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from tests.coordinator.builders import context, hello
from tests.coordinator.lab import Lab, lab, make_config
from tests.coordinator.server.test_service import send

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

ROUNDS = RoundConfig(min_devices=2, deadline_s=30.0, join_timeout_s=30.0)


async def run_with_absence(place: Lab, names: tuple[str, ...], min_linked: int) -> None:
    """Run six rounds; after the second one, devices are away for a minute."""
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            for name in names:
                place.kill_agent(name)
            await anyio.sleep(60.0)
            for name in names:
                place.start_agent(name)

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                group.start_soon(leave)

        place.on_progress = on_progress
        config = make_config(rounds=6, round=ROUNDS, min_linked=min_linked)
        assert await place.run(config) == "done"


async def test_a_minute_without_devices_uses_up_at_most_the_open_round(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=2, limit_s=120.0) as place:
        await run_with_absence(place, ("pi-0", "pi-1"), min_linked=1)
    with place.reader() as reader:
        rounds = reader.rounds()
        waits = [event.text for _, event in reader.events() if event.kind == "waiting"]
    assert sum(row.status == "void" for row in rounds) <= 1
    assert rounds[-1].closed_at_s > 60.0
    assert waits[0].startswith("missing 1 of pi-")
    assert "needs 1 device in contact, got 0; see their logs" in waits[0]
    assert len(waits) <= 7
    assert place.waiting[-1] == waits[-1]


async def test_min_devices_counts_for_every_round(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=2, limit_s=120.0) as place:
        await run_with_absence(place, ("pi-1",), min_linked=2)
    with place.reader() as reader:
        rounds = reader.rounds()
    assert sum(row.available < 2 for row in rounds) <= 1, "one round may be open"
    assert rounds[-1].closed_at_s > 60.0


async def test_a_device_that_cannot_come_back_is_not_waited_for(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=2) as place:
        store = place.open_store()
        coordinator = place.coordinator(make_config(rounds=6, round=ROUNDS, min_linked=2), store)

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                coordinator.refuse_all_but(["pi-0"])

        place.on_progress = on_progress
        assert await coordinator.run() == "done"
        store.close()
    with place.reader() as reader:
        assert reader.rounds()[-1].closed_at_s < 60.0


async def be_unwilling(place: Lab) -> None:
    """Stay in contact, but unwilling, until cancelled."""
    async with place.broker.transport("asleep") as link:
        async for event in link.events():
            if isinstance(event, LinkUp):
                await link.subscribe(Topics().coordinator, qos=1)
            elif isinstance(event, Packet) and b"on" in event.payload:
                break
        for seq in range(1, 10_000):
            if seq % 20 == 1:  # each coordinator gets it
                await link.publish(Topics().up("asleep"), encode(hello(n_k=40)), qos=1)
            message = context(seq=seq, is_willing=False)
            await link.publish(Topics().telemetry("asleep"), encode(message))
            await anyio.sleep(0.5)


FEW = RoundConfig(min_devices=1, join_timeout_s=30.0)


async def run_beside_an_unwilling_device(
    place: Lab, mode: Literal["sync", "async"] = "sync"
) -> list[RoundProgress]:
    """Run eight rounds; after the third one, the only willing device is away for a minute."""
    closed = list[RoundProgress]()
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            place.kill_agent("pi-0")
            await anyio.sleep(60.0)
            place.start_agent("pi-0")

        def on_progress(progress: RoundProgress) -> None:
            closed.append(progress)
            if progress.round.round == 3:
                group.start_soon(leave)

        place.on_progress = on_progress
        group.start_soon(be_unwilling, place)
        rounds = msgspec.structs.replace(FEW, mode=mode)
        evaluation = EvaluationConfig(every=0)
        config = make_config(rounds=8, devices=1, round=rounds, evaluation=evaluation)
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    return closed


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_minute_of_unwilling_devices_moves_the_queues_but_uses_up_no_round(
    mode: Literal["sync", "async"], tmp_path: Path
) -> None:
    async with lab(tmp_path, agents=1, limit_s=120.0) as place:
        closed = await run_beside_an_unwilling_device(place, mode)
    with place.reader() as reader:
        rounds, info = reader.rounds(), reader.run()
        events = [event for _, event in reader.events() if event.kind in ("void", "waiting")]
        evaluated = [row.round for row in reader.metrics()]
    empty = [row for row in rounds if row.is_empty]
    assert len(empty) >= 50
    assert sum(not row.is_empty for row in rounds) == 8
    assert sum(row.selected > 0 for row in rounds) == 8
    assert [row.round for row in rounds] == list(range(1, len(rounds) + 1))
    assert all(row.duration_s >= 0.99 for row in empty[:-1]), "void_wait_s"
    grown = [b.queue_total - a.queue_total for a, b in pairwise(empty)]
    assert grown == pytest.approx([grown[0]] * len(grown))
    assert grown[0] > 0.0
    assert info.rounds_empty == rounds[-1].rounds_empty == len(empty)
    assert evaluated == [len(rounds)], "the last model"
    assert [event.text for event in events if event.kind == "void"] in (
        ["no device was available"],
        ["no update arrived; the model is unchanged", "no device was available"],
    )
    waits = [event.text for event in events if event.kind == "waiting" and event.round]
    assert 4 <= len(waits) <= 8
    assert waits[-1].startswith("no device can be selected for round ")
    assert "1 unwilling" in waits[-1]
    assert place.waiting[-1] == waits[-1]
    shown = [one.line(8) for one in closed if not one.is_repeated]
    assert len(shown) == 9, "one line for the whole stretch"
    assert shown[-1].startswith(f"round {len(rounds)}/{len(rounds)}  tau ")


async def test_a_resumed_run_ends_with_the_round_of_an_uninterrupted_one(tmp_path: Path) -> None:
    config = make_config(rounds=4, devices=1, round=FEW)
    async with lab(tmp_path, agents=1, limit_s=200.0) as place, anyio.create_task_group() as group:
        store = place.open_store()
        first = place.coordinator(config, store)

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                place.kill_agent("pi-0")
            if progress.round.rounds_empty == 3:
                first.stop()

        place.on_progress = on_progress
        group.start_soon(be_unwilling, place)
        await first.run()
        store.close()
        place.on_progress = lambda progress: None

        async def come_back() -> None:
            await anyio.sleep(2 * config.join_timeout_s)
            place.start_agent("pi-0")

        group.start_soon(come_back)
        assert await place.run(config) == "done", "the unwilling device is enough to go on"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        rounds = reader.rounds()
    assert sum(row.selected > 0 for row in rounds) == 4
    assert rounds[-1].rounds_empty == sum(row.is_empty for row in rounds) >= 50


async def test_a_run_can_be_stopped_while_all_devices_are_unwilling(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=1) as place, anyio.create_task_group() as group:

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                place.kill_agent("pi-0")
            if progress.round.rounds_empty == 3:
                group.start_soon(send, place, "stop-after-round")

        place.on_progress = on_progress
        group.start_soon(be_unwilling, place)
        await place.run(make_config(rounds=30, devices=1, round=FEW))
        group.cancel_scope.cancel()
    with place.reader() as reader:
        rounds = reader.rounds()
    assert rounds[-1].is_empty
    assert len(rounds) < 30


@pytest.mark.parametrize("rounds", [2, 4])
async def test_an_evaluation_that_a_kill_prevented_is_made_up_for(
    rounds: int, tmp_path: Path
) -> None:
    """Issue #20, M2: after the last round the final model was never evaluated."""
    async with lab(tmp_path, agents=3) as place:
        store = place.open_store()
        first = place.coordinator(make_config(rounds=rounds), store)
        place.on_progress = lambda p: first.stop() if p.round.round == 2 else None
        await first.run()
        store.close()
        place.on_progress = lambda p: None
        with closing(sqlite3.connect(place.folder / "run/run.db", isolation_level=None)) as run:
            expected = run.execute("SELECT round, loss_mean FROM metric WHERE round = 2").fetchone()
            for table in ("metric", "device_metric"):
                run.execute(f"DELETE FROM {table} WHERE round = 2")
        if rounds == 2:  # all rounds are closed, so no device is needed
            for name in ("pi-0", "pi-1", "pi-2"):
                place.kill_agent(name)
        assert await place.run(make_config(rounds=rounds)) == "done"
    with place.reader() as reader:
        metrics = reader.metrics()
    assert [row.round for row in metrics] == list(range(1, rounds + 1))
    assert (2, metrics[1].loss_mean) == expected


LIST_AT_S = [None, 0.01]
"""When a run gets the list of accepted devices: before it begins, or this long after."""


async def run_with_list(
    place: Lab, config: CoordinatorConfig, accepted: list[str], at_s: float | None
) -> str:
    """Run with a list of accepted devices from `at_s` on; return why no fleet came, if so."""
    store = place.open_store()
    coordinator = place.coordinator(config, store)

    async def pass_on(after_s: float) -> None:
        await anyio.sleep(after_s)
        coordinator.refuse_all_but(accepted)

    try:
        async with anyio.create_task_group() as group:
            if at_s is None:
                coordinator.refuse_all_but(accepted)
            else:
                group.start_soon(pass_on, at_s)
            try:
                await coordinator.run()
            except FleetMissingError as exc:
                return str(exc)
    finally:
        store.close()
    return ""


@pytest.mark.parametrize("at_s", LIST_AT_S)
async def test_a_device_that_is_not_enrolled_yet_is_waited_for(
    at_s: float | None, tmp_path: Path
) -> None:
    async with lab(tmp_path, agents=1) as place:
        place.device_names = ("pi-0", "pi-1")
        hurried = RoundConfig(min_devices=2, join_timeout_s=5.0)
        missing = await run_with_list(place, make_config(round=hurried), ["pi-0"], at_s)
    assert missing.startswith("fleet: 2 devices must be ready within 5 s, got 1 ready of 1 joined")
    with place.reader() as reader:
        assert "revoked" not in {event.kind for _, event in reader.events()}


@pytest.mark.parametrize("at_s", LIST_AT_S)
async def test_a_device_revoked_between_two_starts_of_a_run_is_not_waited_for(
    at_s: float | None, tmp_path: Path
) -> None:
    async with lab(tmp_path, agents=2) as place:
        await place.run(make_config(rounds=2, devices=2))
        place.kill_agent("pi-1")
        assert not await run_with_list(place, make_config(rounds=4, round=ROUNDS), ["pi-0"], at_s)
    with place.reader() as reader:
        assert reader.rounds()[-1].closed_at_s < 30.0, "the limit of the wait"
        refused = [event.device for _, event in reader.events() if event.kind == "revoked"]
    assert refused == ["pi-1"]


async def test_a_device_revoked_before_it_ever_came_ends_the_wait_for_it_at_once(
    tmp_path: Path,
) -> None:
    """Issue #21: the wait went on until its next report, up to 10 s."""
    revoked_s = 5.0
    async with lab(tmp_path, agents=1) as place, anyio.create_task_group() as group:
        place.device_names = ("pi-0", "pi-1")
        store = place.open_store()
        coordinator = place.coordinator(make_config(rounds=1, devices=2, round=ROUNDS), store)
        coordinator.refuse_all_but(["pi-0", "pi-1"])

        async def revoke() -> None:
            await anyio.sleep(revoked_s)
            coordinator.refuse_all_but(["pi-0"])

        group.start_soon(revoke)
        try:
            assert await coordinator.run() == "done"
        finally:
            store.close()
    with place.reader() as reader:
        (row,) = reader.rounds()
    assert revoked_s <= row.closed_at_s < revoked_s + 2.0
