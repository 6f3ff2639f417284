"""The coordinator with real agents over a broker in memory."""

import secrets
from pathlib import Path
from typing import get_args

import anyio
import pytest

from fairbed.coordinator.policy.config import (
    APP,
    ORACLE_POLICIES,
    AggregationConfig,
    EvaluationConfig,
    Policy,
    RoundConfig,
    SelectionConfig,
)
from fairbed.coordinator.records.rows import UNACCOUNTED_FLOOR_S
from fairbed.coordinator.rounds.loop import (
    FleetMissingError,
    NothingAggregatedError,
    RoundProgress,
    waiting_line,
)
from fairbed.coordinator.state.registry import Registry
from fairbed.wire.codec import encode
from fairbed.wire.messages import OperatorCommand, RowsRequest
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp
from tests.coordinator.builders import hello
from tests.coordinator.lab import Lab, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]


async def test_a_fleet_trains_and_all_rows_are_stored(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        assert await place.run(make_config(rounds=4)) == "done"
    with place.reader() as reader:
        rounds, exchanges = reader.rounds(), reader.exchanges(0)
        assert [row.round for row in rounds] == [1, 2, 3, 4]
        assert {row.status for row in rounds} == {"done"}
        assert {row.aggregated for row in rounds} == {2}
        assert len(exchanges) == 8
        assert {x.outcome for x in exchanges} == {"done"}
        assert len(reader.devices()) == 3
        assert len(reader.metrics()) == 4
        assert reader.run().status == "done"


@pytest.mark.parametrize(
    "policy", [p for p in get_args(Policy) if p not in (*ORACLE_POLICIES, APP)]
)
async def test_every_policy_gives_a_fleet_its_rounds(tmp_path: Path, policy: Policy) -> None:
    selection = SelectionConfig(policy=policy, per_round=2, beta=0.3)
    async with lab(tmp_path) as place:
        assert await place.run(make_config(rounds=5, selection=selection)) == "done"
    with place.reader() as reader:
        assert {row.aggregated for row in reader.rounds()} == {2}
        assert {x.device for x in reader.exchanges(0)} == {d.name for d in reader.devices()}


async def test_a_round_lasts_the_longest_tau_and_the_closing(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        await place.run(make_config(rounds=3))
    with place.reader() as reader:
        exchanges = reader.exchanges(0)
        for row in reader.rounds():
            longest = max(x.tau_wall_s or 0.0 for x in exchanges if x.round == row.round)
            assert row.duration_s == pytest.approx(longest + row.close_s, abs=1e-9)
            assert row.tau_max_s == pytest.approx(longest, abs=1e-9)


async def test_phases_account_for_the_exchange(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        await place.run(make_config(rounds=4))
    with place.reader() as reader:
        for x in reader.exchanges(0):
            assert x.tau_s is not None
            assert x.unaccounted_s is not None
            assert x.signal_s is not None
            # The signal is measured beside the phases: on a busy machine it may be the longer one.
            assert x.unaccounted_s + x.signal_s >= UNACCOUNTED_FLOOR_S
            assert x.unaccounted_s < x.tau_s
            assert x.tau_s == pytest.approx((x.tau_wall_s or 0.0) - x.queued_s)


async def test_a_device_is_cold_exactly_when_it_missed_the_round_before(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        await place.run(make_config(rounds=8))
    with place.reader() as reader:
        exchanges = reader.exchanges(0)
    trained = {(x.round, x.device) for x in exchanges}
    for x in exchanges:
        assert x.was_cold == ((x.round - 1, x.device) not in trained)
        assert x.s_not_previous == int(x.was_cold)


async def test_reported_processor_states_are_stored(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        await place.run(make_config(rounds=2))
    with place.reader() as reader:
        for device in reader.devices():
            contexts = reader.telemetry_of(device.name)
            assert contexts
            assert [row.at_s for row in contexts] == sorted(row.at_s for row in contexts)
            assert all(row.free_cores is not None and row.free_cores > 0.0 for row in contexts)


async def test_evaluation_changes_no_exchange(tmp_path: Path) -> None:
    histories = []
    for every in (0, 1):
        config = make_config(
            rounds=5,
            evaluation=EvaluationConfig(every=every),
            selection=SelectionConfig(policy="uniform", per_round=2),
        )
        async with lab(tmp_path / str(every)) as place:
            await place.run(config)
            assert place.evaluator.calls == (1 if every == 0 else 5)
        with place.reader() as reader:
            rows = {device.name: device.row for device in reader.devices()}
            histories.append(
                [
                    sorted(
                        (rows[x.device], x.was_cold, x.s_not_previous, x.steps, x.bytes_down)
                        for x in reader.exchanges(0)
                        if x.round == row.round
                    )
                    for row in reader.rounds()
                ]
            )
    assert histories[0] == histories[1]


async def test_evaluation_takes_no_time_of_a_round(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        await place.run(make_config(rounds=5))
    with place.reader() as reader:
        rounds, metrics, exchanges = reader.rounds(), reader.metrics(), reader.exchanges(0)
    assert [metric.round for metric in metrics] == [row.round for row in rounds]
    for row, metric in zip(rounds, metrics, strict=True):
        begun_s = metric.at_s - metric.evaluate_s
        assert metric.evaluate_s > 0.0
        assert begun_s >= row.closed_at_s
        for x in exchanges:
            assert x.tau_wall_s is not None
            is_over = x.dispatched_at_s + x.tau_wall_s <= begun_s
            assert is_over == (x.round <= row.round)
            assert is_over or x.dispatched_at_s >= metric.at_s
    for metric, following in zip(metrics, rounds[1:], strict=False):
        assert following.dispatched_at_s >= metric.at_s


@pytest.mark.parametrize("rule", ["q-fedavg", "afl", "term", "aaggff-s", "aaggff-d", "corefed"])
async def test_a_fair_rule_gets_the_loss_before_training(rule: str, tmp_path: Path) -> None:
    aggregation = AggregationConfig(rule=rule)
    async with lab(tmp_path) as place:
        await place.run(make_config(rounds=2, aggregation=aggregation))
    with place.reader() as reader:
        for x in reader.exchanges(0):
            assert x.loss_before is not None
            assert x.evaluate_s is not None
            assert x.evaluate_s > 0.0


async def test_the_queue_invariant_holds_for_every_device(tmp_path: Path) -> None:
    rounds, beta = 12, 0.3
    async with lab(tmp_path, agents=4) as place:
        config = make_config(rounds=rounds, devices=4)
        await place.run(config)
    with place.reader() as reader:
        rows = [reader.selections(t) for t in range(1, rounds + 1)]
    for i in range(4):
        rate = sum(row[i].is_selected for row in rows) / rounds
        assert rate >= beta - rows[-1][i].queue / rounds - 1e-12


async def test_a_device_without_data_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=2) as place:
        place.shards.limit = 2
        place.start_agent("pi-9")
        await place.run(make_config(rounds=2, devices=2))
    with place.reader() as reader:
        refused = [e for _, e in reader.events() if e.kind == "refused"]
        names = {d.name for d in reader.devices()}
    assert len(names) == 2
    assert not place.refused  # the agent waits for the next run
    assert "--data" in refused[0].text


async def test_a_missing_fleet_is_one_clear_line(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=1) as place:
        hurried = RoundConfig(min_devices=2, join_timeout_s=1.0)
        with pytest.raises(FleetMissingError, match="2 devices must be ready within 1 s, got"):
            await place.run(make_config(round=hurried))


async def test_the_wait_for_round_1_is_counted_down_and_shows_how_to_start_an_agent(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, agents=1) as place:
        patient = RoundConfig(min_devices=2, join_timeout_s=20.4)
        with pytest.raises(FleetMissingError, match=r"lower round\.min_devices, or"):
            await place.run(make_config(round=patient))
    enrol = "start one by the command that this prints: fairbed enroll NAME"
    assert place.waiting == [
        f"1 of 2 devices are ready for round 1, {left_s} s left; {enrol}" for left_s in (17, 7)
    ]
    with place.reader() as reader:
        assert [e.text for _, e in reader.events() if e.kind == "waiting"] == place.waiting


async def test_a_fleet_that_is_ready_soon_is_not_reported_as_waited_for(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=3) as place:
        await place.run(make_config(rounds=1, round=RoundConfig(min_devices=3)))
    assert place.waiting == []


def test_the_wait_for_an_expected_fleet_names_the_first_devices_that_are_not_ready() -> None:
    registry = Registry()
    registry.expect(f"pi-{i}" for i in range(7))
    assert waiting_line(registry, now=0.0, wanted=7, left_s=95.4) == (
        "0 of 7 devices are ready for round 1, 95 s left; not ready: pi-0 awaited, pi-1 awaited, "
        "pi-2 awaited, pi-3 awaited, pi-4 awaited and 2 more"
    )


async def test_an_agent_killed_during_a_run_costs_only_itself(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        place.on_progress = lambda p: place.kill_agent("pi-1") if p.round.round == 2 else None
        assert await place.run(make_config(rounds=6)) == "done"
    with place.reader() as reader:
        later = [row for row in reader.rounds() if row.round > 3]
        assert all(row.aggregated >= 1 for row in later)
        assert any(e.kind == "left" and e.device == "pi-1" for _, e in reader.events())


async def test_the_broker_may_lose_its_state_during_a_run(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        place.on_progress = lambda p: place.broker.restart() if p.round.round == 2 else None
        assert await place.run(make_config(rounds=5)) == "done"
    with place.reader() as reader:
        assert [row.aggregated for row in reader.rounds()] == [2] * 5


async def test_a_broker_that_is_silent_itself_costs_no_device_its_round(tmp_path: Path) -> None:
    """Issue #21: the coordinator cannot know whether devices are silent, or its own link is."""
    silence_s = 25.0  # longer than that of a lost device, shorter than that of a lost link
    async with lab(tmp_path, limit_s=120.0) as place, anyio.create_task_group() as group:

        async def hold_back() -> None:
            place.broker.faults.delay_s = silence_s
            await anyio.sleep(silence_s)
            place.broker.faults.delay_s = 0.0

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                group.start_soon(hold_back)

        place.on_progress = on_progress
        patient = RoundConfig(min_devices=3, deadline_s=60.0, join_timeout_s=30.0)
        assert await place.run(make_config(rounds=4, round=patient)) == "done"
    with place.reader() as reader:
        rounds = reader.rounds()
        assert {x.outcome for x in reader.exchanges(0)} == {"done"}
    assert [row.aggregated for row in rounds] == [2] * 4
    assert rounds[2].duration_s > silence_s - 5.0


async def test_a_stopped_coordinator_resumes_at_the_open_round(tmp_path: Path) -> None:
    config = make_config(rounds=6)
    async with lab(tmp_path) as place:
        store = place.open_store()
        first = place.coordinator(config, store)
        place.on_progress = lambda p: first.stop() if p.round.round == 3 else None
        assert await first.run() == "stopped"
        store.close()
        place.on_progress = lambda p: None
        assert await place.run(config) == "done"
    with place.reader() as reader:
        assert [row.round for row in reader.rounds()] == [1, 2, 3, 4, 5, 6]
        assert any(e.kind == "resumed" for _, e in reader.events())


async def test_a_resumed_coordinator_continues_with_the_moments_of_the_server_step(
    tmp_path: Path,
) -> None:
    """One device: the row of a device, which seeds its training, is its place in the arrivals."""
    config = make_config(
        rounds=5,
        devices=1,
        selection=SelectionConfig(per_round=1, beta=0.3),
        aggregation=AggregationConfig(server="adam", pseudo_gradient="fednova"),
    )
    async with lab(tmp_path / "whole", agents=1) as whole:
        assert await whole.run(config) == "done"
    async with lab(tmp_path / "parts", agents=1) as parts:
        store = parts.open_store()
        first = parts.coordinator(config, store)
        parts.on_progress = lambda p: first.stop() if p.round.round == 2 else None
        assert await first.run() == "stopped"
        store.close()
        parts.on_progress = lambda p: None
        assert await parts.run(config) == "done"
    models = []
    for place in (whole, parts):
        with place.reader() as reader:
            models.append([row.model_sha256 for row in reader.rounds()])
    assert models[0] == models[1]
    assert len(set(models[0])) == 5


async def test_nothing_is_left_in_the_broker(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        await place.run(make_config(rounds=2))
        kept = [topic for topic in place.broker.retained if "/b/" in topic]
    assert kept == []


async def send(place: Lab, action: str, device: str | None = None, twice: bool = False) -> None:
    message = OperatorCommand(id=secrets.token_bytes(16), action=action, device=device)  # type: ignore[arg-type]
    async with place.broker.transport("operator") as operator:
        async for event in operator.events():
            if isinstance(event, LinkUp):
                break
        for _ in range(2 if twice else 1):
            await operator.publish(Topics().command("alice"), encode(message), qos=1)


async def test_an_operator_pauses_excludes_and_resumes(tmp_path: Path) -> None:
    async with lab(tmp_path) as place, anyio.create_task_group() as group:
        config = make_config(rounds=6)
        paused = anyio.Event()

        async def send_commands() -> None:
            await send(place, "pause", twice=True)
            await send(place, "exclude", "pi-1")
            await send(place, "exclude", "pi-9")
            paused.set()

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 1:
                group.start_soon(send_commands)

        place.on_progress = on_progress
        ended: list[str] = []

        async def run() -> None:
            ended.append(await place.run(config))

        group.start_soon(run)
        await paused.wait()
        with place.reader() as reader, anyio.fail_after(20):
            while len(reader.commands()) < 3 or reader.run().status != "paused":  # noqa: ASYNC110
                await anyio.sleep(0.02)
            closed = len(reader.rounds())
        await send(place, "resume")
    assert ended == ["done"]
    assert closed < 6
    with place.reader() as reader:
        later = [x.device for x in reader.exchanges(0) if x.round > closed + 1]
        assert later
        assert "pi-1" not in later
        assert [(row.action, row.operator) for row in reader.commands()] == [
            ("pause", "alice"),
            ("exclude", "alice"),
            ("exclude", "alice"),
            ("resume", "alice"),
        ]
        warnings = [e.text for _, e in reader.events() if e.kind == "command"]
        refused = (
            "exclude pi-9 by alice is refused: no device 'pi-9' is known to this run; there are: "
            "pi-0, pi-1, pi-2"
        )
        assert refused in warnings
        assert any(text.startswith("pause by alice: ") for text in warnings)
    assert [(x.action, operator, answer.is_accepted) for x, operator, answer in place.audited] == [
        ("pause", "alice", True),
        ("exclude", "alice", True),
        ("exclude", "alice", False),
        ("resume", "alice", True),
    ]


async def test_what_the_broker_kept_is_no_command_and_no_message_of_a_device(
    tmp_path: Path,
) -> None:
    stop = OperatorCommand(id=secrets.token_bytes(16), action="stop")
    async with lab(tmp_path) as place:
        async with place.broker.transport("gone") as gone:
            async for event in gone.events():
                if isinstance(event, LinkUp):
                    break
            for topic, message in ((Topics().command("eve"), stop), (Topics().up("gone"), hello())):
                await gone.publish(topic, encode(message), qos=1, retain=True)
        assert await place.run(make_config(rounds=2)) == "done"
        with place.reader() as reader:
            assert reader.commands() == []
            assert "gone" not in {device.name for device in reader.devices()}
            warnings = {e.text.partition(":")[0] for _, e in reader.events() if "kept" in e.text}
    assert len(warnings) == 1  # a kind of warning is not repeated at once
    assert warnings < {Topics().command("eve"), Topics().up("gone")}


async def test_a_request_of_a_viewer_starts_what_answers_it_and_a_kept_one_does_not(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path) as place, place.broker.transport("viewer") as viewer:
        request = encode(RowsRequest(id=bytes(16), schema=bytes(16)))
        async for event in viewer.events():
            if isinstance(event, LinkUp):
                break
        await viewer.publish(Topics().watch("gone"), request, retain=True)

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 1:
                topic = Topics().watch("alice")
                viewer.publish_nowait(topic, request, on_complete=lambda: None)

        place.on_progress = on_progress
        assert await place.run(make_config(rounds=3)) == "done"
        assert place.watched == 1
        with place.reader() as reader:
            assert [e.text for _, e in reader.events() if e.kind == "bad message"] == []


async def test_a_device_that_the_broker_refuses_leaves_at_once_and_may_come_back(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path) as place, place.broker.transport("echo") as echo:
        store = place.open_store()
        config = make_config(rounds=100_000, selection=SelectionConfig(per_round=3, beta=0.3))
        coordinator = place.coordinator(config, store)

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round in (2, 3):  # twice is once
                coordinator.refuse_all_but({"pi-0", "pi-1", "pi-9"})
                late = encode(hello())  # was on its way
                echo.publish_nowait(Topics().up("pi-5"), late, on_complete=lambda: None)
            if progress.round.round == 6:
                coordinator.refuse_all_but({"pi-0", "pi-1", "pi-2"})
            if progress.round.round > 6 and "pi-2" in progress.cohort:  # after its next context
                coordinator.stop()

        place.on_progress = on_progress
        try:
            assert await coordinator.run() == "stopped"
        finally:
            store.close()
        with place.reader() as reader:
            events = [(e.kind, e.device) for _, e in reader.events() if e.kind == "revoked"]
            joined = {device.name for device in reader.devices()}
            rounds = {x.round for x in reader.exchanges() if x.device == "pi-2"}
    assert events == [("revoked", "pi-2")]
    assert joined == {"pi-0", "pi-1", "pi-2"}
    assert rounds & {1, 2}
    assert not rounds & {4, 5, 6}
    assert max(rounds) > 6


async def test_a_refusal_has_its_event_even_after_the_last_will_of_the_device(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path) as place:
        store = place.open_store()
        config = make_config(rounds=8)
        coordinator = place.coordinator(config, store)

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                place.broker.disconnect("pi-2", reconnects=False)
            if progress.round.round in (4, 5):  # twice is once
                coordinator.refuse_all_but({"pi-0", "pi-1"})

        place.on_progress = on_progress
        try:
            assert await coordinator.run() == "done"
        finally:
            store.close()
        with place.reader() as reader:
            kinds = [event.kind for _, event in reader.events() if event.device == "pi-2"]
    assert [kind for kind in kinds if kind in ("left", "revoked")] == ["left", "revoked"]


async def test_a_stop_from_outside_ends_the_run(tmp_path: Path) -> None:
    async with lab(tmp_path) as place, anyio.create_task_group() as group:

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                group.start_soon(send, place, "stop")

        place.on_progress = on_progress
        assert await place.run(make_config(rounds=500)) == "stopped"


async def test_rounds_in_which_nothing_arrives_are_void_and_the_run_fails(
    tmp_path: Path,
) -> None:
    hopeless = RoundConfig(min_devices=3, deadline_s=0.001, join_timeout_s=30.0, void_wait_s=0.05)
    async with lab(tmp_path) as place:
        with pytest.raises(NothingAggregatedError, match="no update was aggregated in 4 rounds"):
            await place.run(make_config(rounds=4, round=hopeless))
    with place.reader() as reader:
        rounds = reader.rounds()
        assert {row.status for row in rounds} == {"void"}
        assert len({row.model_sha256 for row in rounds}) == 1
        outcomes = {x.outcome for x in reader.exchanges(0)}
        assert outcomes == {"late"}
        unselected = [row for row in reader.selections(1) if not row.is_selected]
        assert [row.queue for row in unselected] == [pytest.approx(0.3)]


@pytest.mark.parametrize("policy", ["uniform", "fedcs"])
async def test_other_policies_run_too(policy: str, tmp_path: Path) -> None:
    selection = SelectionConfig(policy=policy, per_round=2)
    async with lab(tmp_path) as place:
        assert await place.run(make_config(rounds=4, selection=selection)) == "done"
    with place.reader() as reader:
        assert all(row.aggregated == 2 for row in reader.rounds())


async def test_over_selection_cancels_the_slow_devices(tmp_path: Path) -> None:
    generous = RoundConfig(min_devices=3, over_select=1, join_timeout_s=30.0)
    async with lab(tmp_path) as place:
        assert await place.run(make_config(rounds=3, round=generous)) == "done"
    with place.reader() as reader:
        assert reader.rounds()[0].selected == 3
        assert all(row.aggregated <= 2 for row in reader.rounds())
