"""The view: a pure fold, independent of how updates are split."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from fairbed.coordinator.report.device_time import device_seconds
from fairbed.coordinator.store import RunReader, Store
from fairbed.coordinator.store.reader import (
    PlannedEvaluation,
    PlannedFleet,
    Quality,
    SelectionCounts,
)
from fairbed.coordinator.store.tables import (
    AlertRow,
    CommandRow,
    DeviceMetricRow,
    EventRow,
    PersonalScoreRow,
)
from fairbed.coordinator.tui.fleet_columns import by_key
from fairbed.coordinator.tui.phase_spans import spans_of
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.screens.device import device_facts
from fairbed.coordinator.tui.screens.overview import (
    accuracy_curves,
    curves_title,
    quality_title,
)
from fairbed.coordinator.tui.view import (
    ROUNDS_KEPT,
    DeviceView,
    RunView,
    Stragglers,
    ViewUpdate,
    banner,
    banner_lines,
    fold,
)
from tests.coordinator.store.fake_run import BETA, LATE_ROUND, VOID_ROUND, FakeRun, fake_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "run")
    yield run
    run.store.close()


@pytest.fixture
def feed(run: FakeRun) -> Iterator[ViewReader]:
    with RunReader(run.folder) as reader:
        yield ViewReader(reader)


def next_view(run: FakeRun, feed: ViewReader, view: RunView) -> RunView:
    run.store.flush()
    return feed.refresh(view) or view


def test_a_run_without_rounds_shows_its_devices(run: FakeRun, feed: ViewReader) -> None:
    view = next_view(run, feed, RunView())
    assert view.task == RunView().task == "classification"
    assert [device.name for device in view.devices] == run.names
    assert view.devices[0].profile == "raspberry-pi-3b-plus"
    assert view.devices[0].state == "idle"
    assert view.devices[0].selection_rate is None
    assert view.rounds == ()


def test_reading_in_parts_equals_reading_at_once(run: FakeRun, feed: ViewReader) -> None:
    view = RunView()
    for _ in range(10):
        run.play(1)
        view = next_view(run, feed, view)
    with RunReader(run.folder) as reader:
        at_once = ViewReader(reader).refresh(RunView())
    assert at_once is not None
    assert view.devices == at_once.devices
    assert view.metrics == at_once.metrics
    assert view.queues == at_once.queues
    assert view.events == at_once.events
    assert view.rounds == at_once.rounds


def test_nothing_is_read_when_nothing_was_written(run: FakeRun, feed: ViewReader) -> None:
    view = next_view(run, feed, RunView())
    assert feed.refresh(view) is None
    run.play(1)
    run.store.flush()
    assert feed.refresh(view) is not None


def test_counts_are_those_of_the_store(run: FakeRun, feed: ViewReader) -> None:
    run.play(5)
    view = next_view(run, feed, RunView())
    run.play(4)
    view = next_view(run, feed, view)
    tallies = {tally.device: tally for tally in feed.reader.selection_counts()}
    for device in view.devices:
        assert (device.selected, device.rounds) == (tallies[device.name].selected, 9)
    assert view.beta == BETA
    assert sum(device.queue or 0.0 for device in view.devices) == pytest.approx(view.queues[-1][1])


def test_the_guarantee_follows_what_operators_set(run: FakeRun, feed: ViewReader) -> None:
    run.play(4)
    run.store.add(
        CommandRow(
            id="1",
            at_s=run.now_s,
            action="set",
            device=None,
            operator="local",
            name="beta",
            value=BETA / 2,
            round=5,
        )
    )
    view = next_view(run, feed, RunView())
    assert view.beta == pytest.approx(BETA)
    run.play(4)
    view = next_view(run, feed, view)
    device = view.devices[0]
    assert view.beta == view.guaranteed(device) == pytest.approx(0.75 * BETA)
    late = structs.replace(device, rounds=4)
    assert view.guaranteed(late) == pytest.approx(BETA / 2)


def test_exchange_quality_is_accumulated(run: FakeRun, feed: ViewReader) -> None:
    run.play(5)
    view = next_view(run, feed, RunView())
    run.play(4)
    view = next_view(run, feed, view)
    assert view.quality == feed.reader.quality()
    by_device = feed.reader.quality_by_device()
    assert {d.name: d.quality for d in view.devices if d.quality.done} == by_device
    assert sum(by_device.values(), Quality()) == view.quality
    assert view.quality.done > 0


def test_clock_and_throttling_are_those_of_the_newest_context(
    run: FakeRun, feed: ViewReader
) -> None:
    view = next_view(run, feed, RunView())
    _, row = feed.reader.telemetry_latest()[0]
    run.store.add(replace(row, clock_ratio=0.5, throttled="temperature"))
    device = next_view(run, feed, view).device(row.device)
    assert device is not None
    assert (device.clock_ratio, device.throttled) == (0.5, "temperature")


def test_energy_is_accumulated_once_per_exchange(run: FakeRun, feed: ViewReader) -> None:
    """One of round 1 is open at the first read, and merged in round 4; one of round 5 is open."""
    run.play(3)
    late = replace(run.exchange(0), round=1, attempt=9, energy_j=7.0)
    waiting = replace(late, outcome="late", busy_s=None, aggregated_round=None)
    run.store.add(replace(late, attempt=8, outcome="failed", aggregated_round=None, energy_j=2.0))
    run.store.add(waiting)
    view = next_view(run, feed, RunView())
    assert view.energy_j == 2.0
    run.store.add(replace(late, outcome="done", aggregated_round=4))
    run.play(1)
    run.store.add(replace(late, round=5, outcome="done", aggregated_round=None))
    view = next_view(run, feed, view)
    assert view.energy_j == 9.0
    run.play(1)
    assert next_view(run, feed, view).energy_j == 16.0


def test_device_seconds_are_accumulated(run: FakeRun, feed: ViewReader) -> None:
    """Among them those of an exchange of round 2 that ended in round 5."""
    run.play(4)
    view = next_view(run, feed, RunView())
    assert view.device_s == pytest.approx(device_seconds(feed.reader)[-1])
    late, began_s = run.exchange(0), 3.0
    busy_s = run.now_s + 0.1 - began_s - late.queued_s
    run.store.add(
        replace(late, round=2, attempt=9, dispatched_at_s=began_s, busy_s=busy_s, outcome="late")
    )
    run.play(1)
    view = next_view(run, feed, view)
    assert view.device_s == pytest.approx(device_seconds(feed.reader)[-1])
    assert view.device_s > busy_s > 5.0


def test_a_void_round_is_on_the_timeline_without_exchanges(run: FakeRun, feed: ViewReader) -> None:
    run.play(VOID_ROUND)
    view = next_view(run, feed, RunView())
    assert view.rounds[-1].status == "void"
    assert view.rounds[-1].exchanges == ()


def test_a_device_without_exchanges_has_no_prediction(run: FakeRun, feed: ViewReader) -> None:
    run.play(1)
    view = next_view(run, feed, RunView())
    assert {device.tau_hat_s for device in view.devices} == {None}
    assert {x.tau_hat_s for x in view.rounds[-1].exchanges} == {None}
    run.play(1)
    view = next_view(run, feed, view)
    assert all(device.tau_hat_s for device in view.devices)


def test_only_the_newest_rounds_are_kept(run: FakeRun, feed: ViewReader) -> None:
    run.play(ROUNDS_KEPT + 5)
    view = next_view(run, feed, RunView())
    assert [r.round for r in view.rounds] == list(range(6, ROUNDS_KEPT + 6))
    assert len(view.queues) == ROUNDS_KEPT + 5


def test_an_open_round_is_followed_by_what_devices_report(run: FakeRun, feed: ViewReader) -> None:
    run.play(2)
    cohort = run.begin_round()
    view = next_view(run, feed, RunView())
    for step, phase in enumerate(["training", "uploading", "idle"]):
        run.now_s += 1.0 + step
        for row in cohort:
            run.telemetry(row, phase)
        view = next_view(run, feed, view)
    newest = view.rounds[-1]
    assert (newest.round, newest.status) == (3, "open")
    assert sorted(x.device for x in newest.exchanges) == sorted(run.names[row] for row in cohort)
    for exchange in newest.exchanges:
        assert [span.phase for span in exchange.spans] == ["train", "upload", ""]
    assert newest.duration_s == pytest.approx(6.0)


def test_a_round_that_closes_replaces_the_open_one(run: FakeRun, feed: ViewReader) -> None:
    run.begin_round()
    view = next_view(run, feed, RunView())
    assert view.rounds[-1].status == "open"
    run.close_round()
    view = next_view(run, feed, view)
    assert [(r.round, r.status) for r in view.rounds] == [(1, "done")]
    assert view.open_since_s is None
    assert {x.outcome for x in view.rounds[-1].exchanges} == {"done"}


def test_an_exchange_that_is_stored_early_is_shown_early(run: FakeRun, feed: ViewReader) -> None:
    row = run.begin_round()[0]
    run.store.add(run.exchange(row))
    view = next_view(run, feed, RunView())
    outcomes = {x.device: x.outcome for x in view.rounds[-1].exchanges}
    assert outcomes[run.names[row]] == "done"
    assert len(outcomes) == 4


def state_of(view: RunView, name: str) -> str:
    device = view.device(name)
    assert device is not None
    return device.state


def test_operator_commands_show_at_once(run: FakeRun, feed: ViewReader) -> None:
    name, view = run.names[3], next_view(run, feed, RunView())
    for number, (action, state) in enumerate([("exclude", "excluded"), ("include", "idle")]):
        run.store.add(
            CommandRow(
                id=str(number), at_s=3.0 + number, action=action, device=name, operator="alice"
            )
        )
        view = next_view(run, feed, view)
        assert state_of(view, name) == state


def test_a_device_shows_the_profile_that_an_operator_gave_it(
    run: FakeRun, feed: ViewReader
) -> None:
    name, other = run.names[3], run.names[4]
    before = next_view(run, feed, RunView())
    for number, (device, is_accepted) in enumerate([(name, True), (other, False)]):
        run.store.add(
            CommandRow(
                id=str(number),
                at_s=3.0,
                action="profile",
                device=device,
                name="jetson-agx",
                operator="alice",
                is_accepted=is_accepted,
            )
        )
    run.event("joined", "again", device=name)
    view = next_view(run, feed, before)
    given, kept = view.device(name), view.device(other)
    assert given is not None
    assert given.profile == "jetson-agx"
    assert kept is not None
    assert kept == before.device(other)


def test_a_device_that_left_or_is_silent_is_marked(run: FakeRun, feed: ViewReader) -> None:
    view = next_view(run, feed, RunView())
    run.now_s += 1.0
    run.event("left", "the device disconnected", device=run.names[0])
    run.now_s += 4.0
    for row in range(2, run.devices):
        run.telemetry(row, "idle")
    view = next_view(run, feed, view)
    assert [state_of(view, name) for name in run.names[:3]] == ["gone", "silent", "idle"]
    run.telemetry(0, "idle")
    run.telemetry(1, "idle")
    view = next_view(run, feed, view)
    assert [state_of(view, name) for name in run.names[:2]] == ["idle", "idle"]


def test_no_device_works_in_a_finished_run(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "run", rounds=2)) as reader:
        view = ViewReader(reader).refresh(RunView())
    assert view is not None
    assert view.info is not None
    assert view.info.status == "done"
    assert {device.state for device in view.devices} == {"ended"}
    assert view.rounds[-1].status == "done"


@pytest.mark.parametrize("is_watched", [True, False])
def test_an_ended_run_shows_which_devices_were_absent(tmp_path: Path, is_watched: bool) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(2)
    run.telemetry(0, "idle")
    run.event("left", "the device disconnected", device=run.names[0])
    run.telemetry(1, "idle")
    run.now_s += 60.0
    for row in range(2, run.devices):
        run.telemetry(row, "idle")
    view = RunView()
    with RunReader(run.folder) as reader:
        feed = ViewReader(reader)
        if is_watched:
            view = next_view(run, feed, view)
        run.now_s += 60.0  # a long evaluation, without devices
        run.finish()
        view = feed.refresh(view) or view
    assert [state_of(view, name) for name in run.names[:3]] == ["gone", "silent", "ended"]


def test_a_run_that_ended_early_names_the_command_that_continues_it(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(2)
    run.store.flush()
    run.store._lock.release()  # as after a kill
    with RunReader(run.folder) as reader:
        info = reader.run()
    assert banner(info) == (
        "interrupted: its process ended without closing it; "
        f"continue with: fairbed run {tmp_path}/run"
    )
    replayed = replace(info, row=replace(info.row, clock="virtual"))
    assert banner(replayed).endswith(f"; continue with: fairbed replay {tmp_path}/run")
    alone = replace(info, has_fleet=False)
    assert banner(alone).endswith(f"; continue with: fairbed coordinator {tmp_path}/run")
    failed = replace(info, status="failed", row=replace(info.row, reason="no device left"))
    assert banner(failed).startswith("failed: no device left; continue with: fairbed run")
    for status in ("done", "running"):
        assert banner(replace(info, status=status, is_alive=status == "running")) == ""
    run.store.close()


@pytest.mark.parametrize(
    ("selected", "aggregated", "texts"), [(15, 14, ("0.15", "!0.14")), (14, 14, ("!0.14", "!0.14"))]
)
def test_a_rate_below_the_guarantee_has_a_mark(
    selected: int, aggregated: int, texts: tuple[str, str]
) -> None:
    device = DeviceView("pi", rounds=100, selected=selected, aggregated=aggregated)
    assert tuple(by_key()[key].marked(device, 0.15) for key in ("rate", "aggregated")) == texts
    assert "!" not in by_key()["rate"].marked(device, None)


def test_the_lap_of_a_personal_model_that_there_is_not_is_no_phase(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.begin_round()
    row = replace(run.exchange(0), personal_s=0.0004)
    run.store.close()
    assert "personal" in {span.phase for span in spans_of(row, 0.0, 1.0)}
    spans = spans_of(row, 0.0, 1.0, is_personal=False)
    assert {span.phase for span in spans} >= {"train", "upload"}
    assert "personal" not in {span.phase for span in spans}


def test_a_resumed_run_forgets_what_became_void(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(2)
    run.begin_round()
    with RunReader(run.folder) as reader:
        feed = ViewReader(reader)
        view = next_view(run, feed, RunView())
        assert view.rounds[-1].status == "open"
        run.store.close()
        store = Store.reopen(run.folder)
        store.add(
            EventRow(
                at_s=9.0, wall="", level="info", kind="x", round=None, device=None, text="again"
            )
        )
        store.flush()
        resumed = feed.refresh(view)
        store.close()
    assert resumed is not None
    assert resumed.cursor.resumes == 1
    assert [device.selected for device in resumed.devices] == [
        device.selected for device in view.devices
    ]
    assert len(resumed.metrics) == 2


def test_folding_does_not_change_the_view_it_is_given(run: FakeRun, feed: ViewReader) -> None:
    run.play(1)
    view = next_view(run, feed, RunView())
    devices, rounds = view.devices, view.rounds
    run.play(1)
    newer = next_view(run, feed, view)
    assert (view.devices, view.rounds) == (devices, rounds)
    assert newer.cursor.round == 2


def test_a_device_shows_the_latest_score_of_its_personal_model(
    run: FakeRun, feed: ViewReader
) -> None:
    def score(round_id: int, accuracy: float) -> PersonalScoreRow:
        name = view.devices[2].name
        return PersonalScoreRow(round=round_id, device=name, n=20, accuracy=accuracy, loss=0.5)

    run.play(3)
    view = next_view(run, feed, RunView())
    assert {device.personal for device in view.devices} == {None}
    run.store.add(score(1, 0.25))  # it arrives two rounds later
    run.play(1)
    view = next_view(run, feed, view)
    assert [device.personal for device in view.devices[:4]] == [None, None, 0.25, None]
    run.store.add(score(4, 0.75))
    run.play(1)
    view = next_view(run, feed, view)
    assert view.devices[2].personal == 0.75
    with RunReader(run.folder) as reader:
        row = reader.devices()[2]
    facts = dict(device_facts(row, view.devices[2], 1.0))
    assert facts["accuracy"].endswith(", personal model 0.750")


def test_rows_of_an_unknown_device_change_nothing(run: FakeRun, feed: ViewReader) -> None:
    run.play(1)
    view = next_view(run, feed, RunView())
    assert view.info is not None
    counts = SelectionCounts("unknown", rounds=1, available=1, selected=1, aggregated=1)
    loss = DeviceMetricRow(round=1, device="unknown", n=4, accuracy=0.5, loss=1.0)
    update = ViewUpdate(
        info=view.info,
        cursor=view.cursor,
        selection_counts=[counts],
        device_metrics=[loss],
        energy_j={"unknown": 3.0},
    )
    assert fold(view, update).devices == view.devices


def test_a_device_without_a_score_in_the_newest_evaluation_shows_no_older_one(
    run: FakeRun, feed: ViewReader
) -> None:
    run.play(1)
    view = next_view(run, feed, RunView())
    assert view.info is not None
    assert all(device.accuracy is not None for device in view.devices)
    metric = replace(view.metrics[-1], round=2, devices=1)
    score = DeviceMetricRow(round=2, device=view.devices[0].name, n=4, accuracy=0.5, loss=1.0)
    update = ViewUpdate(
        info=view.info, cursor=view.cursor, metrics=[metric], device_metrics=[score]
    )
    later = fold(view, update)
    assert [device.accuracy for device in later.devices] == [0.5] + [None] * 11
    assert {device.loss for device in later.devices[1:]} == {None}
    unchanged = fold(later, ViewUpdate(info=view.info, cursor=view.cursor))
    assert unchanged.devices[0].accuracy == 0.5


def test_a_test_set_alone_has_no_curve_of_the_best_and_worst_devices(
    run: FakeRun, feed: ViewReader
) -> None:
    run.play(2)
    view = next_view(run, feed, RunView())
    first, second = view.metrics
    view = replace(view, metrics=(first, replace(second, devices=0, accuracy_best10=math.nan)))
    best, worst, mean = accuracy_curves(view)
    assert [len(curve.points) for curve in (best, worst, mean)] == [1, 1, 2]


def test_the_curves_are_of_the_metric_whose_worst_tenth_the_run_is_about(
    run: FakeRun, feed: ViewReader
) -> None:
    run.play(2)
    view = next_view(run, feed, RunView())
    assert curves_title(view) == "Accuracy"
    first, second = view.metrics
    second = replace(second, metric_mean=4.0, metric_worst10=9.0, metric_best10=2.0)
    assert view.info is not None
    plan = msgspec.structs.replace(view.info.plan, evaluation=PlannedEvaluation(worst="perplexity"))
    view = replace(view, metrics=(first, second), info=replace(view.info, plan=plan))
    assert curves_title(view) == "perplexity"
    assert quality_title(view) == "Accuracy"
    best, worst, mean = accuracy_curves(view)
    assert [curve.points for curve in (best, worst, mean)] == [
        ((2, 2.0),),
        ((2, 9.0),),
        ((2, 4.0),),
    ]


def test_an_open_round_without_its_dispatch_begins_with_the_first_device_at_work(
    run: FakeRun, feed: ViewReader
) -> None:
    view = next_view(run, feed, RunView())
    assert not view.devices[3].is_working
    run.now_s = 7.0
    run.telemetry(3, "training")
    view = next_view(run, feed, view)
    assert view.open_since_s == 7.0
    assert view.devices[3].is_working


def test_a_device_is_aggregated_less_often_than_selected(run: FakeRun, feed: ViewReader) -> None:
    view = next_view(run, feed, RunView())
    assert view.devices[0].aggregation_rate is None
    run.play(LATE_ROUND)
    view = next_view(run, feed, view)
    late = run.names[run.cohort[0]]
    device = view.device(late)
    assert device is not None
    assert device.aggregation_rate is not None
    assert device.selection_rate is not None
    assert device.aggregation_rate < device.selection_rate


def test_stragglers_are_true_when_any_count_is_above_zero() -> None:
    assert not Stragglers()
    assert Stragglers(cancelled=1)


def test_malicious_devices_are_shown_after_the_run_or_on_request(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", malicious={3: "lying-loss"})
    run.play(2)
    run.store.flush()
    with RunReader(run.folder) as reader:
        feed, revealing = ViewReader(reader), ViewReader(reader, reveals=True)
        view, revealed = feed.refresh(RunView()), revealing.refresh(RunView())
        assert view is not None
        assert revealed is not None
        assert not view.reveals
        shown = {device.name: device.malicious for device in revealed.devices if device.malicious}
        assert shown == {run.names[3]: "lying-loss"}
        run.finish()
        over = feed.refresh(view)
    assert over is not None
    assert over.reveals
    assert [device.malicious for device in over.devices] == [
        device.malicious for device in revealed.devices
    ]


def test_the_wait_for_devices_is_shown_until_the_first_round(
    run: FakeRun, feed: ViewReader
) -> None:
    for left in (20, 10):
        run.store.add(
            EventRow(
                at_s=float(-left),
                wall="",
                level="info",
                kind="waiting",
                round=None,
                device=None,
                text=f"1 of 4 devices are ready, {left} s left",
            )
        )
    view = next_view(run, feed, RunView())
    assert view.waiting.split("\n") == [
        "1 of 4 devices are ready, 10 s left",
        "joined: " + ", ".join(f"{name} (idle)" for name in run.names),
        f"add a device by the command that this prints: fairbed enroll NAME --run {run.folder}",
    ]
    assert view.info is not None
    plan = view.info.plan
    lab = structs.replace(plan, broker=structs.replace(plan.broker, url="lab"))
    of_lab = replace(view, info=replace(view.info, plan=lab))
    assert of_lab.waiting.endswith(": fairbed enroll NAME")
    emulated = structs.replace(plan, fleet=(PlannedFleet(),))
    assert "enroll" not in replace(view, info=replace(view.info, plan=emulated)).waiting
    empty = replace(view, devices=())
    assert "joined" not in empty.waiting
    run.play(1)
    assert next_view(run, feed, view).waiting == ""


def test_totals_of_a_device_that_the_view_lacks_are_left_out(
    run: FakeRun, feed: ViewReader
) -> None:
    view = next_view(run, feed, RunView())
    assert view.info is not None
    odd = {"pi-y": Quality()}
    update = ViewUpdate(info=view.info, cursor=view.cursor, quality=odd, energy_j={"pi-x": 1.0})
    assert [device.name for device in fold(view, update).devices] == run.names


def test_a_fleet_is_mixed_with_devices_of_two_kinds(run: FakeRun, feed: ViewReader) -> None:
    view = next_view(run, feed, RunView())
    assert not view.is_mixed
    assert view.info is not None
    row = replace(feed.reader.devices()[1], kind="physical")
    mixed = fold(view, ViewUpdate(info=view.info, cursor=view.cursor, devices=[row]))
    assert mixed.is_mixed
    assert [device.kind for device in mixed.devices[:2]] == ["emulated", "physical"]


def test_a_live_run_has_its_alerts_above_every_screen_and_at_most_three_lines(
    run: FakeRun, feed: ViewReader
) -> None:
    assert banner_lines(None) == []
    view = next_view(run, feed, RunView())
    assert banner_lines(view.info) == []
    for count, kind in enumerate(("host busy", "broker lost", "infeasible", "disk low"), start=1):
        run.store.add(AlertRow(kind=kind, begin_s=float(count), text=f"because {kind}"))
        view = next_view(run, feed, view)
        assert len(banner_lines(view.info)) == min(count, 3)
    assert banner_lines(view.info) == [
        "! broker lost: because broker lost",
        "! disk low: because disk low",
        "! and 2 more: infeasible, host busy",
    ]
    for kind, begin_s in (("broker lost", 2.0), ("infeasible", 3.0)):
        run.store.add(AlertRow(kind=kind, begin_s=begin_s, end_s=9.0, text=""))
    view = next_view(run, feed, view)
    assert [line[:11] for line in banner_lines(view.info)] == ["! disk low:", "! host busy"]


def test_the_time_that_is_left_follows_the_pace_of_the_newest_rounds(
    run: FakeRun, feed: ViewReader
) -> None:
    view = next_view(run, feed, RunView())
    assert view.left_s is None
    assert view.info is not None
    running = replace(view.info, rounds_completed=6)
    ends = (10.0, 12.0, 14.0, 16.0, 100.0, 102.0)  # a pause does not count
    view = replace(view, info=running, closings_s=ends, elapsed_s=102.5)
    assert running.plan.rounds is not None
    assert view.left_s == pytest.approx((running.plan.rounds - 6) * 2.0 - 0.5)
    assert replace(view, elapsed_s=200.0).left_s == pytest.approx((running.plan.rounds - 7) * 2.0)
    slow = replace(running, row=replace(running.row, dilation=4.0))
    assert replace(view, info=slow).left_s == pytest.approx(4.0 * (view.left_s or 0.0))
    assert replace(view, info=replace(running, status="paused")).left_s is None
    assert replace(view, closings_s=ends[:1]).left_s is None
