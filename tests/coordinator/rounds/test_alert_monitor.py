"""The conditions of a live run become alerts in its store."""

import re
from collections.abc import Sized
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from fairbed.coordinator.policy.config import (
    ALERTS_OFF,
    AggregationConfig,
    CoordinatorConfig,
    OperatorConfig,
    SelectionConfig,
)
from fairbed.coordinator.rounds.alert_monitor import DISK_PERIOD_S, AlertMonitor, DiskUse, disk_use
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.state.alerts import AlertChange
from fairbed.coordinator.state.registry import CONTEXT_MAX_AGE_S, OFF_GRACE_S, Registry
from fairbed.coordinator.state.waits import Waits
from fairbed.coordinator.store import RunReader, Store
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import AlertRow, MetricRow
from tests.coordinator.builders import context, hello
from tests.coordinator.lab import NAMES, lab, make_config
from tests.coordinator.store.fake_run import FakeRun, make_store
from tests.idle_time import LoopClock

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

GB = 10**9


class Monitored:
    """A monitor over a store, a fleet of two devices and a disk of the test."""

    def __init__(self, folder: Path, config: CoordinatorConfig) -> None:
        self.clock = LoopClock()
        self.store = Store.reopen(folder) if folder.exists() else make_store(folder)
        self.log = EventLog(self.store, self.clock.now, self.on_failure)
        self.registry = Registry()
        self.registry.expect(["pi-0", "pi-1"])
        self.disk = DiskUse(free_bytes=100 * GB, run_bytes=GB)
        self.changes: list[AlertChange] = []
        self.open: list[str] = []
        """Devices with an open exchange."""
        self.waits = Waits(self.clock.now, self.log.clock)
        self.monitor = AlertMonitor(
            self.registry,
            self.log,
            lambda: config,
            self.changes.append,
            measure_disk=lambda folder: self.disk,
            waits=self.waits,
            open_devices=lambda: self.open,
            stall_alert_s=60.0,
        )

    def on_failure(self, failure: Exception) -> None:
        raise failure

    def report(self, *names: str) -> None:
        """Let devices report that they are ready."""
        for name in names:
            device = self.registry[name]
            if device.capabilities is None:
                self.registry.join(name, hello(), self.clock.now())
            seq = 0 if device.context is None else device.context.seq + 1
            assert self.registry.update_context(name, context(seq=seq), self.clock.now())

    async def watch(self, *names: str, for_s: float) -> None:
        """Let some time pass in which these devices report each second."""
        with anyio.move_on_after(for_s):
            while True:
                self.report(*names)
                await anyio.sleep(1.0)


def lines(changes: list[AlertChange]) -> list[str]:
    """Return the beginnings of the lines of changes."""
    return [change.line[:28] for change in changes]


async def test_a_run_without_a_device_and_without_a_broker_says_so_once_each(
    tmp_path: Path,
) -> None:
    run = Monitored(tmp_path / "run", make_config())
    async with anyio.create_task_group() as group:
        group.start_soon(run.monitor.run)
        await run.watch(for_s=20.0)
        assert run.changes == [], "no device is expected before round 1"
        run.monitor.begin_training()
        await run.watch(for_s=20.0)
        assert lines(run.changes) == ["stalled: missing 1 of pi-0 ("]
        await run.watch("pi-0", for_s=6.0)
        assert run.changes[1].is_over
        run.monitor.set_link("broken pipe")
        await run.watch(for_s=30.0)
        assert lines(run.changes[2:]) == ["broker lost: the link to the"], "devices are unknown"
        run.monitor.set_link(None)
        await run.watch("pi-1", for_s=6.0)
        assert run.changes[-1].kind == "broker lost"
        assert run.changes[-1].is_over
        group.cancel_scope.cancel()
    run.store.close()
    with RunReader(tmp_path / "run") as reader:
        assert [(row.kind, row.end_s is None) for row in reader.alerts()] == [
            ("stalled", False),
            ("broker lost", False),
        ]
        assert reader.standing_alerts() == []
        stalled, lost = reader.alerts()
        assert [row.kind for row in reader.standing_alerts(lost.begin_s + 1.0)] == ["broker lost"]
        assert stalled.end_s is not None
        assert 15.0 < stalled.end_s - stalled.begin_s < 25.0
        events = [(row.kind, row.level) for _, row in reader.events()]
        assert events == [
            ("stalled", "warning"),
            ("stalled", "info"),
            ("broker lost", "warning"),
            ("broker lost", "info"),
        ]


async def test_a_silent_device_that_the_next_round_needs_is_named_within_5_s(
    tmp_path: Path,
) -> None:
    run = Monitored(tmp_path / "run", make_config())
    run.waits.min_linked, run.waits.next_round = 2, 5
    async with anyio.create_task_group() as group:
        group.start_soon(run.monitor.run)
        run.monitor.begin_training()
        await run.watch("pi-0", "pi-1", for_s=10.0)
        assert run.changes == []
        silent_s = run.log.at_s(run.registry["pi-1"].context_at) + CONTEXT_MAX_AGE_S
        await run.watch("pi-0", for_s=9.0)
        (begin,) = run.changes
        assert re.fullmatch(
            r"stalled: missing pi-1 \(silent since \d\d:\d\d:\d\d\): round 5 needs 2 devices in "
            r"contact, got 1; exclude pi-1, or set min_devices 1",
            begin.line,
        )
        run.store.flush()
        with RunReader(tmp_path / "run") as reader:
            (event,) = (row for _, row in reader.events() if row.kind == "stalled")
            assert silent_s <= event.at_s <= silent_s + 5.0
            assert reader.run().waiting == "pi-1"
        await run.watch("pi-0", for_s=120.0)
        (message,) = run.changes[1:]
        assert message.is_long
        assert message.text == begin.text
        await run.watch("pi-0", "pi-1", for_s=4.0)
        assert [change.is_over for change in run.changes[2:]] == [True]
        run.store.flush()
        with RunReader(tmp_path / "run") as reader:
            assert reader.run().waiting == ""
        group.cancel_scope.cancel()
    run.store.close()


async def test_a_silent_device_that_alone_is_at_work_is_named_within_5_s(tmp_path: Path) -> None:
    """Asynchronous rounds end in it, too: the others have trained this version."""
    run = Monitored(tmp_path / "run", make_config())
    run.waits.next_round = 5
    async with anyio.create_task_group() as group:
        group.start_soon(run.monitor.run)
        run.monitor.begin_training()
        await run.watch("pi-0", "pi-1", for_s=10.0)
        run.open = ["pi-0", "pi-1"]
        silent_s = run.log.at_s(run.registry["pi-1"].context_at) + CONTEXT_MAX_AGE_S
        await run.watch("pi-0", for_s=20.0)
        assert run.changes == [], "the other one may finish"
        run.open = ["pi-1"]
        waits_s = run.log.at_s()
        assert waits_s > silent_s
        await run.watch("pi-0", for_s=6.0)
        (begin,) = run.changes
        assert begin.begin_s - waits_s <= 5.0
        assert re.fullmatch(
            r"missing pi-1 \(silent since \d\d:\d\d:\d\d\): round 4 waits for updates of devices "
            r"out of contact, at most round\.deadline_s; to go on at once, exclude pi-1",
            begin.text,
        )
        run.open = []
        await run.watch("pi-0", for_s=4.0)
        assert run.changes[-1].is_over
        run.open = ["pi-1"]
        run.registry.mark_off("pi-1", 1, run.clock.now())
        await run.watch("pi-0", for_s=OFF_GRACE_S + 2.0)
        assert len(run.changes) == 2, "the exchange of a device that left ends by itself"
        run.store.flush()
        with RunReader(tmp_path / "run") as reader:
            assert reader.run().waiting == "pi-1"
        group.cancel_scope.cancel()
    run.store.close()


async def test_a_wait_for_answers_of_devices_is_named(tmp_path: Path) -> None:
    run = Monitored(tmp_path / "run", make_config())
    run.monitor.begin_training()
    run.report("pi-0", "pi-1")
    async with anyio.create_task_group() as group:
        group.start_soon(run.monitor.run)
        with run.waits.waiting("losses", 3, lambda: ["pi-1"]):
            await run.watch("pi-0", "pi-1", for_s=20.0)
            (change,) = run.changes
            assert re.fullmatch(
                r"missing pi-1 \(.+ since \d\d:\d\d:\d\d\): round 3 waits for losses before "
                r"its selection, at most selection\.loss_query_timeout_s; to go on at once, "
                r"exclude pi-1",
                change.text,
            )
            run.store.flush()
            with RunReader(tmp_path / "run") as reader:
                assert reader.run().waiting == "pi-1"
        await run.watch("pi-0", "pi-1", for_s=4.0)
        assert run.changes[-1].is_over
        group.cancel_scope.cancel()
    run.store.close()


async def test_a_disk_that_the_rounds_to_come_fill_is_an_alert_until_space_is_made(
    tmp_path: Path,
) -> None:
    run = Monitored(tmp_path / "run", make_config(rounds=100))
    async with anyio.create_task_group() as group:
        group.start_soon(run.monitor.run)
        for round_id in range(1, 8):
            run.monitor.close_round(round_id, [])
            run.disk = replace(run.disk, run_bytes=run.disk.run_bytes + 2 * GB)
            await run.watch("pi-0", "pi-1", for_s=DISK_PERIOD_S)
        (change,) = run.changes
        assert "enough for about 49 of 94 rounds at 2.0 GB each" in change.text
        run.disk = replace(run.disk, free_bytes=1000 * GB)
        await run.watch("pi-0", "pi-1", for_s=DISK_PERIOD_S + 1.0)
        assert run.changes[-1].is_over
        group.cancel_scope.cancel()
    run.store.close()


def test_the_size_of_a_run_is_that_of_its_files_without_the_write_ahead_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/1.safetensors").write_bytes(bytes(1000))
    (tmp_path / "run.db").write_bytes(bytes(200))
    (tmp_path / "run.db-wal").write_bytes(bytes(50_000))
    use = disk_use(tmp_path)
    assert use.run_bytes == 1200
    assert use.free_bytes > 0


async def test_a_guarantee_that_the_fleet_cannot_have_is_an_alert_from_the_first_round(
    tmp_path: Path,
) -> None:
    selection = SelectionConfig(per_round=1, beta=0.6)
    async with lab(tmp_path, agents=2) as place:
        await place.run(make_config(rounds=2, devices=2, selection=selection))
    with place.reader() as reader:
        (row,) = reader.standing_alerts()
        assert row.kind == "infeasible"
        assert row.end_s is None
        assert "selection.beta 0.6 cannot be guaranteed: the 2 least available of 2" in row.text
        found = [event for _, event in reader.events() if event.kind == "infeasible"]
        assert [event.level for event in found] == ["warning"], "once, not in each round"


async def test_a_device_that_stays_away_makes_the_rate_infeasible_until_it_is_excluded(
    tmp_path: Path,
) -> None:
    run = Monitored(tmp_path / "run", make_config(selection=SelectionConfig(per_round=1, beta=0.2)))
    run.report("pi-0", "pi-1")
    run.monitor.begin_training()
    rounds = 0
    while not run.changes and rounds < 50:
        rounds += 1
        await run.watch("pi-0", for_s=4.0)
        run.monitor.close_round(rounds, [])
    assert rounds == 16, "z^2 / (n + z^2) < 0.2 from n = 16 on"
    assert "bring back pi-1" in run.changes[0].text
    run.registry["pi-1"].is_excluded = True
    run.monitor.close_round(rounds + 1, [])
    assert run.changes[-1].is_over
    run.store.close()


async def test_exchanges_that_this_machine_delayed_are_an_alert(tmp_path: Path) -> None:
    selection = SelectionConfig(policy="uniform", per_round=1)
    run = Monitored(tmp_path / "run", make_config(selection=selection))
    made = FakeRun(tmp_path / "made")
    made.begin_round()
    row = replace(made.exchange(0), outcome="done", tau_s=2.0)
    run.monitor.close_round(1, [replace(row, outcome="failed", is_contended=True)] * 9)
    assert run.changes == []
    run.monitor.close_round(2, [replace(row, is_contended=True)] * 3 + [row])
    assert run.changes == []
    run.monitor.close_round(3, [replace(row, is_contended=True)] * 2)
    assert [change.line[:31] for change in run.changes] == ["host busy: this machine delayed"]
    run.monitor.close_round(4, [row] * 19)
    assert run.changes[-1].is_over
    run.store.close()
    made.store.close()


def metric(round_id: int, loss: float | None) -> MetricRow:
    return MetricRow(
        round=round_id,
        at_s=float(round_id),
        accuracy_mean=0.5,
        accuracy_pooled=0.5,
        accuracy_worst10=0.5,
        accuracy_best10=0.5,
        accuracy_variance=0.0,
        accuracy_gini=0.0,
        accuracy_gap=0.0,
        loss_mean=loss,
        loss_std=None,
        evaluate_s=0.1,
    )


async def test_a_model_that_diverges_is_an_alert_until_it_recovers(tmp_path: Path) -> None:
    run = Monitored(tmp_path / "run", make_config())
    for round_id, loss in enumerate((2.0, 21.0, None, 9.0), start=1):
        run.monitor.evaluate(metric(round_id, loss))
    begin, end = run.changes
    assert begin.line.startswith("diverged: the loss of the global model is 21 (10.5 times) after")
    assert end.is_over
    run.store.flush()
    with RunReader(tmp_path / "run") as reader:
        (alert,) = reader.alerts()
        assert "is not finite after round 3" in alert.text
        events = [(e.kind, e.level) for _, e in reader.events()]
        assert events == [("diverged", "warning"), ("diverged", "info")]
    run.store.close()


async def test_a_live_run_that_diverges_goes_on_with_an_alert(tmp_path: Path) -> None:
    aggregation = AggregationConfig(server="momentum", server_learning_rate=900.0)
    async with lab(tmp_path) as place:
        assert await place.run(make_config(rounds=3, aggregation=aggregation)) == "done"
    with place.reader() as reader:
        (alert,) = [row for row in reader.standing_alerts() if row.kind == "diverged"]
        found = reader.divergence()
        assert found is not None
        assert alert.text == found.text


async def test_a_resumed_run_compares_with_the_first_loss_of_the_run(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(2)
    run.finish("failed")
    with RunReader(tmp_path / "run") as reader:
        first = reader.metrics()[0].loss_mean
    assert first is not None
    resumed = Monitored(tmp_path / "run", make_config())
    resumed.monitor.evaluate(metric(3, 10.1 * first))
    (change,) = resumed.changes
    assert f"its first value, {first:.4g} after round 1, from round 3 on" in change.text
    resumed.store.close()


def test_an_alert_ends_at_the_latest_when_its_run_is_resumed(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(2)
    run.store.add(AlertRow(kind="disk low", begin_s=1.5, text="1 GB is free"))
    run.finish("failed")
    with RunReader(tmp_path / "run") as reader:
        assert [row.kind for row in reader.standing_alerts()] == ["disk low"]
    Store.reopen(tmp_path / "run").close()
    with RunReader(tmp_path / "run") as reader:
        assert reader.standing_alerts() == []
        (row,) = reader.alerts()
        assert row.end_s == pytest.approx(run.now_s)


async def test_a_run_that_loses_its_broker_and_its_devices_records_both(tmp_path: Path) -> None:
    async def break_link() -> None:
        place.broker.disconnect("coordinator", reconnects=False)
        await anyio.sleep(6.0)
        place.broker.reconnect("coordinator")

    async def kill_all() -> None:
        for name in NAMES:
            place.kill_agent(name)
        await anyio.sleep(20.0)
        for name in NAMES:
            place.start_agent(name)

    faults = {2: break_link, 4: kill_all}
    async with lab(tmp_path, limit_s=300.0) as place, anyio.create_task_group() as group:

        def begin(progress: RoundProgress) -> None:
            if fault := faults.get(progress.round.round):
                group.start_soon(fault)

        place.on_progress = begin
        assert await place.run(make_config(rounds=60)) == "done"
    with place.reader() as reader:
        found = {row.kind: row for row in reader.alerts()}
    assert set(found) - {"host busy"} == {"broker lost", "stalled"}
    lost, gone = found["broker lost"], found["stalled"]
    assert lost.end_s is not None
    assert gone.end_s is not None
    assert 5.0 < lost.end_s - lost.begin_s < 8.0
    assert 10.0 < gone.end_s - gone.begin_s < 40.0
    assert re.search(r"missing 1 of pi-\d \(disconnected since .* got 0; see", gone.text)


async def test_a_run_without_alerts_and_reasons_states_it(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        place.on_progress = lambda progress: place.kill_agent("pi-0")
        config = make_config(rounds=2, operator=OperatorConfig(alerts=False, reasons=False))
        await place.run(config)
        with place.reader() as reader:
            assert not reader.alerts()
            stated = [event.text for _, event in reader.events() if event.kind == "alerts"]
            assert stated == [ALERTS_OFF]
            assert {row.reason for row in reader.selections(1)} == {""}
            assert len(reader.selections(1)) == len(NAMES)


async def test_alerts_see_the_end_of_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[tuple[int, int]] = []

    def noted(self: AlertMonitor, round_id: int, exchanges: Sized, rounds_empty: int) -> None:
        closed.append((round_id, len(exchanges)))

    monkeypatch.setattr(AlertMonitor, "close_round", noted)
    async with lab(tmp_path) as place:
        await place.run(make_config(rounds=2))
    assert closed == [(1, 2), (2, 2)]
