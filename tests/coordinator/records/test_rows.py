"""Rows and observations of exchanges."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation.base import PHASES, Prediction
from fairbed.coordinator.policy.selection import Selection
from fairbed.coordinator.ports import Predictions, Score
from fairbed.coordinator.records.rows import (
    MAX_FLEET_ROW_DEVICES,
    ended_columns,
    exchange_row,
    fleet_rows,
    invalid_reason,
    known_at_selection,
    measured_columns,
    metric_rows,
    phases_s,
    release_row,
    unaccounted_s,
)
from fairbed.coordinator.report.quality import counted_tests, noise_of
from fairbed.coordinator.state.exchange import Contention, Exchange, ExchangeState
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.state.round import Arrived, Checked, DeviceFailed, Offered, Round, Tick
from fairbed.coordinator.store.tables import ExchangeRow, ReleaseRow
from fairbed.wire.evaluation import Evaluation, Quality, Spread
from fairbed.wire.messages import MAX_WATTS, Offer, PhaseEnergy
from tests.coordinator.builders import TRAIN, Observation, context, hello, offer

TAU_S = 1.31 + 0.5
"""Phases of `offer()` (download, load, train, encode) and half a second of upload."""


def measured_round(*, silence_s: float = 0.02, signal_s: float = 0.02) -> Round:
    """A round whose only device has `silence_s` outside all phases."""
    table = Round(id=3, attempt=0, deadline_s=60.0, slots=1, target_updates=1)
    table.dispatch("pi-1", now=10.0)
    table.on(Offered("pi-1", offer(3)), 10.0 + silence_s + 1.31)
    table.on(Arrived("pi-1", 10.0 + silence_s + TAU_S, 400, 0), 12.0)
    table.on(Checked("pi-1", None), 12.0)
    table.exchanges["pi-1"].signal_s = signal_s
    return table


def observation(exchange: Exchange) -> Observation:
    """Return what is learned from one exchange."""
    seen = ended_columns([exchange], [0], [None]).observations()

    def known(column: Floats) -> float | None:
        return None if np.isnan(column[0]) else float(column[0])

    return Observation(
        row=int(seen.rows[0]),
        tau_s=known(seen.tau_s),
        phases_s=None if np.isnan(seen.phases_s).all() else tuple(seen.phases_s[0].tolist()),
        is_aggregated=bool(seen.is_aggregated[0]),
        timed_out=bool(seen.timed_out[0]),
        at_least_s=known(seen.at_least_s),
        wasted_s=known(seen.wasted_s),
    )


def selection() -> Selection:
    return Selection(
        round=3,
        rows=np.array([0]),
        is_available=np.array([True]),
        context=np.array([[1.0, 1.0, 2.0, 1.0]]),
        prediction=Prediction(np.array([1.5]), np.array([0.2]), np.array([1.0])),
        n_k=np.array([100]),
        propensity=np.array([1.0]),
    )


def test_time_outside_phases_and_signal_is_unaccounted() -> None:
    exchange = measured_round(silence_s=0.05, signal_s=0.02).exchanges["pi-1"]
    assert unaccounted_s(exchange) == pytest.approx(0.03)


JOULES = PhaseEnergy(
    download_j=0.5,
    decode_j=0.0,
    load_j=0.25,
    evaluate_j=0.0,
    train_j=3.0,
    personal_j=0.0,
    encode_j=0.125,
)


def with_energy(sent: Offer) -> Offer:
    """Return an offer with the energy of its phases."""
    return structs.replace(sent, phases=structs.replace(sent.phases, energy=JOULES))


def row_of(exchange: Exchange, table: Round) -> ExchangeRow:
    """Return the row of an exchange."""
    registry = Registry()
    registry.join("pi-1", hello(), now=1.0)
    known = known_at_selection(registry["pi-1"], selection(), now=9.5)
    return exchange_row(exchange, table, known, train=TRAIN, dispatched_at_s=10.0)


@pytest.mark.parametrize(
    ("upload_j", "energy"),
    [
        (1.5, (3.0, 1.5, 0.5 + 0.25 + 3.0 + 0.125 + 1.5)),
        (None, (3.0, None, None)),
        (0.5 * MAX_WATTS + 1.0, (3.0, None, None)),
    ],
    ids=["measured", "not measured", "more than any device takes in half a second"],
)
def test_the_energy_of_an_exchange_is_what_its_device_reports(
    upload_j: float | None, energy: tuple[float | None, ...]
) -> None:
    table = measured_round()
    exchange = table.exchanges["pi-1"]
    assert exchange.offer is not None
    exchange.granted = 10.0 + 0.02 + 1.31
    exchange.offer = with_energy(exchange.offer)
    if upload_j is not None:
        exchange.measured["upload_j"] = upload_j
    row = row_of(exchange, table)
    assert (row.train_j, row.upload_j, row.energy_j) == energy


@pytest.mark.parametrize(
    ("low_j", "high_j", "is_kept"), [(4.0, 7.0, True), (5.5, 7.0, False), (None, 7.0, False)]
)
def test_an_interval_of_energy_contains_the_sum_or_is_unknown(
    low_j: float | None, high_j: float, is_kept: bool
) -> None:
    table = measured_round()
    exchange = table.exchanges["pi-1"]
    assert exchange.offer is not None
    exchange.granted = 10.0 + 0.02 + 1.31
    exchange.offer = with_energy(exchange.offer)
    exchange.measured |= {"upload_j": 1.5, "energy_high_j": high_j}
    if low_j is not None:
        exchange.measured["energy_low_j"] = low_j
    row = row_of(exchange, table)
    assert row.energy_j == 5.375
    assert (row.energy_low_j, row.energy_high_j) == ((low_j, high_j) if is_kept else (None, None))
    exchange.arrived = None
    row = row_of(exchange, table)
    assert (row.energy_low_j, row.energy_high_j) == (None, None)


def test_without_an_arrival_the_energy_is_that_before_the_upload() -> None:
    table = measured_round()
    exchange = table.exchanges["pi-1"]
    assert exchange.offer is not None
    exchange.offer = with_energy(exchange.offer)
    exchange.arrived = None
    row = row_of(exchange, table)
    assert (row.upload_j, row.energy_j) == (None, 0.5 + 0.25 + 3.0 + 0.125)


def test_an_exchange_without_energy_has_none() -> None:
    table = measured_round()
    assert row_of(table.exchanges["pi-1"], table).energy_j is None


def test_decoding_is_a_phase_of_the_device() -> None:
    exchange = measured_round(silence_s=0.05, signal_s=0.02).exchanges["pi-1"]
    assert exchange.offer is not None
    slower = structs.replace(exchange.offer.phases, decode_s=0.01)
    exchange.offer = structs.replace(exchange.offer, phases=slower)
    assert unaccounted_s(exchange) == pytest.approx(0.02)


def test_the_phases_of_an_exchange_add_up_to_its_tau() -> None:
    exchange = measured_round(silence_s=0.05).exchanges["pi-1"]
    assert exchange.offer is not None
    reported, phases = exchange.offer.phases, phases_s(exchange)
    assert phases is not None
    assert len(phases) == len(PHASES)
    assert sum(phases) == pytest.approx(exchange.tau_s)
    by_name = dict(zip(PHASES, phases, strict=True))
    assert by_name["download"] == reported.download_s
    assert (
        by_name["compute"]
        == reported.decode_s + reported.evaluate_s + reported.train_s + reported.encode_s
    )
    assert by_name["rest"] == pytest.approx(0.05)
    assert observation(exchange).phases_s == phases


def test_a_valid_exchange_gives_its_tau() -> None:
    exchange = measured_round().exchanges["pi-1"]
    assert invalid_reason(exchange) == ""
    seen = observation(exchange)
    assert seen.tau_s == pytest.approx(TAU_S + 0.02)
    assert seen.is_aggregated


def test_lag_when_messages_were_handled_makes_an_exchange_invalid_but_still_merged() -> None:
    exchange = measured_round().exchanges["pi-1"]
    exchange.lag_s = 0.2
    assert "most of it the coordinator (200 ms)" in invalid_reason(exchange)
    seen = observation(exchange)
    assert (seen.tau_s, seen.is_aggregated) == (None, True)


def test_phases_that_exceed_tau_make_an_exchange_invalid() -> None:
    exchange = measured_round(silence_s=-0.2).exchanges["pi-1"]
    assert "reported phases exceed tau" in invalid_reason(exchange)


def test_a_missed_deadline_is_a_lower_bound_and_a_failure_is_not() -> None:
    late = Round(id=3, attempt=0, deadline_s=60.0, slots=1, target_updates=1)
    late.dispatch("pi-1", now=0.0)
    late.on(Tick(), 60.0)
    failed = Round(id=3, attempt=0, deadline_s=60.0, slots=1, target_updates=1)
    failed.dispatch("pi-1", now=0.0)
    failed.on(DeviceFailed("pi-1", "training: out of memory"), 1.0)
    assert observation(late.exchanges["pi-1"]).timed_out
    assert not observation(failed.exchanges["pi-1"]).timed_out
    assert invalid_reason(failed.exchanges["pi-1"]) == "training: out of memory"


@pytest.mark.parametrize(
    ("state", "is_late", "learned"),
    [
        (ExchangeState.LATE, False, (True, None, None)),
        (ExchangeState.LATE, True, (True, 40.0, None)),
        (ExchangeState.CANCELLED, False, (False, 40.0, None)),
        (ExchangeState.LOST, False, (False, None, 40.0)),
        (ExchangeState.FAILED, True, (False, None, 40.0)),
        (ExchangeState.REJECTED, False, (False, None, 40.0)),
    ],
)
def test_each_end_without_an_update_is_learned_as_what_it_is(
    state: ExchangeState, is_late: bool, learned: tuple[bool, float | None, float | None]
) -> None:
    exchange = Exchange("pi-1", 10.0, state=state, is_late=is_late, ended=50.0)
    seen = observation(exchange)
    assert (seen.timed_out, seen.at_least_s, seen.wasted_s) == learned
    assert (seen.tau_s, seen.is_aggregated) == (None, False)
    exchange.contention = Contention(compute_s=30.0)
    seen = observation(exchange)
    assert (seen.timed_out, seen.at_least_s, seen.wasted_s) == (False, None, None), "a busy host"


def test_a_link_that_the_coordinator_lost_wastes_no_time_of_the_device() -> None:
    exchange = Exchange("pi-1", 10.0, state=ExchangeState.LOST, ended=50.0, is_disturbed=True)
    assert observation(exchange).wasted_s is None


def test_the_phases_that_an_offer_reported_before_the_deadline_are_seen() -> None:
    table = Round(id=3, attempt=0, deadline_s=60.0, slots=1, target_updates=1)
    table.dispatch("pi-1", now=0.0)
    table.on(Offered("pi-1", offer(3)), 50.0)
    table.on(Tick(), 60.0)
    exchange = table.exchanges["pi-1"]
    seen = observation(exchange)
    assert (seen.tau_s, seen.timed_out) == (None, True)
    assert seen.phases_s is not None
    complete = phases_s(measured_round().exchanges["pi-1"])
    assert complete is not None
    assert seen.phases_s[:3] == complete[:3]
    assert np.isnan(seen.phases_s[3:]).all()
    exchange.contention = Contention(compute_s=9.0)
    assert observation(exchange).phases_s is None


def test_a_device_is_busy_until_its_update_arrived_or_was_abandoned() -> None:
    done = measured_round().exchanges["pi-1"]
    assert done.busy_s == done.tau_s == pytest.approx(TAU_S + 0.02)
    table = Round(id=3, attempt=0, deadline_s=60.0, slots=1, target_updates=4)
    for device in ("late", "failed", "uploads", "waits"):
        table.dispatch(device, now=0.0)
    assert table.exchanges["late"].busy_s is None
    table.on(DeviceFailed("failed", "training: out of memory"), 7.0)
    table.on(Offered("uploads", offer(3)), 20.0)
    table.on(Offered("waits", offer(3)), 30.0)
    table.on(Tick(), 60.0)
    table.end_all("the run ends", 65.0)
    assert {name: x.busy_s for name, x in table.exchanges.items()} == {
        "late": 60.0,
        "failed": 7.0,
        "uploads": 60.0,
        "waits": 35.0,  # without the 30 s until the slot was free
    }


def test_the_row_keeps_the_context_known_before_selection() -> None:
    registry = Registry()
    registry.join("pi-1", hello(n_k=100), now=0.0)
    registry.update_context("pi-1", context(mu_cores=2.0), now=8.0)
    known = known_at_selection(registry["pi-1"], selection(), now=9.5)
    registry.update_context("pi-1", context(seq=2, mu_cores=0.1), now=11.0)
    table = measured_round()
    row = exchange_row(
        table.exchanges["pi-1"],
        table,
        known,
        train=TRAIN,
        dispatched_at_s=10.0,
    )
    assert (row.mu_cores, row.context_age_s, row.s_not_previous) == (2.0, 1.5, 1)
    assert (row.tau_hat_s, row.width_s, row.is_valid) == (1.5, 0.2, True)
    assert row.outcome == "done"
    assert row.tau_wall_s == pytest.approx(row.tau_s)
    assert row.busy_s == row.tau_s


def contended_exchange(**delays_s: float) -> Exchange:
    exchange = measured_round().exchanges["pi-1"]
    exchange.contention = Contention(**delays_s)
    return exchange


@pytest.mark.parametrize(
    ("delay", "part"),
    [
        ("download_s", "the link and the broker during the download"),
        ("compute_s", "the device"),
        ("upload_s", "the link and the broker during the upload"),
    ],
)
def test_a_contended_exchange_is_merged_but_invalid(delay: str, part: str) -> None:
    exchange = contended_exchange(**{delay: 0.25 * (TAU_S + 0.02)})
    why = invalid_reason(exchange)
    assert "by up to 458 ms, 25 % of its time" in why
    assert f"most of it {part} (458 ms)" in why
    seen = observation(exchange)
    assert (seen.tau_s, seen.is_aggregated) == (None, True)


def test_delays_of_a_twentieth_in_all_are_allowed() -> None:
    exchange = contended_exchange(download_s=0.03, compute_s=0.02, upload_s=0.02)
    assert invalid_reason(exchange) == ""
    exchange.lag_s = 0.03
    assert "this machine was too busy" in invalid_reason(exchange)


def test_the_row_has_the_delay_of_each_phase() -> None:
    table = measured_round()
    exchange = table.exchanges["pi-1"]
    exchange.contention = Contention(download_s=0.01, compute_s=0.02, upload_s=0.04)
    exchange.lag_s = 0.08
    row = row_of(exchange, table)
    assert row.contended_s == pytest.approx(0.07)
    assert (row.contended_download_s, row.contended_compute_s) == (0.01, 0.02)
    assert (row.contended_upload_s, row.lag_s) == (0.04, 0.08)
    assert row.is_contended


def test_a_contended_device_that_is_late_gives_no_lower_bound() -> None:
    late = Round(id=3, attempt=0, deadline_s=60.0, slots=1, target_updates=1)
    late.dispatch("pi-1", now=0.0)
    late.on(Tick(), 60.0)
    late.exchanges["pi-1"].contention = Contention(compute_s=30.0)
    assert not observation(late.exchanges["pi-1"]).timed_out


def test_an_exchange_during_an_outage_is_invalid() -> None:
    exchange = measured_round().exchanges["pi-1"]
    exchange.is_disturbed = True
    assert "lost its own link" in invalid_reason(exchange)


def test_the_contexts_of_a_very_large_fleet_are_not_stored() -> None:
    small = selection()
    (row,) = fleet_rows(small)
    assert np.frombuffer(row.context).tolist() == small.context[0].tolist()
    available = np.ones(MAX_FLEET_ROW_DEVICES + 1, dtype=np.bool_)
    assert fleet_rows(replace(small, is_available=available)) == []


def test_devices_without_held_out_data_have_no_metric() -> None:
    assert metric_rows(1, {"pi-1": Score(0, Quality(correct=0), 0.0)}, 9.0, 0.1) == ([], None)
    devices, summary = metric_rows(
        1,
        {"pi-1": Score(0, Quality(correct=0), 0.0), "pi-2": Score(4, Quality(correct=3), 2.0)},
        9.0,
        0.1,
    )
    assert [(row.device, row.accuracy, row.loss) for row in devices] == [("pi-2", 0.75, 0.5)]
    assert summary is not None
    assert summary.accuracy_mean == 0.75


def a_score(y: list[float], scores: list[float], *, is_own: bool = False) -> Score:
    """Return the score of regression for float y, else of two classes by their logit."""
    target = np.array(y, np.float32 if isinstance(y[0], float) else np.int64)
    found = np.array(scores, np.float32)
    is_regression = target.dtype == np.float32
    losses = 0.5 * (found - target) ** 2 if is_regression else np.log1p(np.exp(-found))
    losses_sum, correct = float(losses.sum()), int(((found > 0) == target).sum())
    quality = Quality.of(target, Evaluation(losses_sum, correct, found))
    predictions = None if is_own else Predictions(target, found)
    return Score(len(y), quality, losses_sum, predictions=predictions)


def test_regression_has_errors_and_no_accuracy() -> None:
    scores = {"b": a_score([1.0, 3.0], [2.0, 2.0]), "a": a_score([0.0], [3.0])}
    devices, metric = metric_rows(4, scores, 9.0, 0.1)
    assert metric is not None
    assert {row.device: (row.accuracy, row.rmse, row.mae, row.r2) for row in devices} == {
        "b": (None, 1.0, 1.0, 0.0),
        "a": (None, 3.0, 3.0, None),
    }
    assert (metric.accuracy_mean, metric.accuracy_gap, metric.auroc_mean) == (None, None, None)
    assert (metric.rmse_mean, metric.rmse_worst10, metric.rmse_best10) == (2.0, 3.0, 1.0)
    assert (metric.rmse_gap, metric.rmse_std, metric.mae_mean) == (2.0, 1.0, 2.0)
    assert metric.rmse_pooled == pytest.approx(np.sqrt(11.0 / 3.0))
    assert metric.r2_pooled == pytest.approx(1.0 - 11.0 / (14.0 / 3.0))
    assert metric.loss_mean == pytest.approx((0.5 + 4.5) / 2.0)
    own = scores | {"c": a_score([0.0], [1.0], is_own=True)}
    other = metric_rows(4, own, 9.0, 0.1)[1]
    assert other is not None
    assert other.rmse_mean == pytest.approx(5.0 / 3.0)
    assert other.r2_pooled is None


def test_two_classes_have_an_auroc_where_both_occur() -> None:
    scores = {
        "a": a_score([0, 1, 1], [0.5, 0.5, 2.0]),
        "b": a_score([1, 1], [-1.0, 1.0]),
        "c": a_score([0, 1], [1.0, -1.0]),
    }
    devices, metric = metric_rows(4, scores, 9.0, 0.1)
    assert metric is not None
    assert [row.auroc for row in devices] == [0.75, None, 0.0]
    assert (metric.auroc_mean, metric.auroc_worst10) == (0.375, 0.0)
    # Of 5 x 2 pairs of scores against 0.5 and 1: 0.5 ties once, 2 wins twice, 1 wins and ties.
    assert metric.auroc_pooled == (0.5 + 2.0 + 1.5) / 10.0
    assert metric.accuracy_mean is not None
    assert metric.rmse_mean is None


def test_a_diverged_model_of_regression_has_no_error() -> None:
    devices, metric = metric_rows(1, {"a": a_score([1.0], [np.inf])}, 9.0, 0.1)
    assert metric is not None
    assert (devices[0].rmse, devices[0].mae, devices[0].loss) == (None, None, None)
    assert (metric.accuracy_mean, metric.rmse_mean, metric.mae_mean) == (None, None, None)


def test_a_test_set_for_all_devices_has_no_spread() -> None:
    _, metric = metric_rows(1, {}, 9.0, 0.1, a_score([1.0, 3.0], [2.0, 2.0]))
    assert metric is not None
    assert (metric.test_rmse, metric.rmse_mean, metric.rmse_pooled) == (1.0, 1.0, 1.0)
    assert (metric.rmse_worst10, metric.rmse_gap, metric.loss_std) == (None, None, None)
    _, metric = metric_rows(1, {}, 9.0, 0.1, a_score([0, 1], [-1.0, 1.0]))
    assert metric is not None
    assert (metric.test_auroc, metric.auroc_mean, metric.accuracy_mean) == (1.0, 1.0, 1.0)
    assert (metric.auroc_worst10, metric.accuracy_worst10) == (None, None)


def test_an_open_exchange_has_no_lower_bound_of_its_time() -> None:
    opened = Round(id=3, attempt=0, deadline_s=60.0, slots=1, target_updates=1)
    opened.dispatch("pi-1", now=10.0)
    assert opened.exchanges["pi-1"].at_least_s is None
    opened.on(Tick(), 70.0)
    assert opened.exchanges["pi-1"].at_least_s == 60.0


@pytest.mark.parametrize(
    ("state", "granted", "has_offer", "is_released"),
    [
        (ExchangeState.DISPATCHED, None, False, True),  # until it has ended it may be sent
        (ExchangeState.DONE, 2.0, True, True),
        (ExchangeState.REJECTED, 2.0, True, True),
        (ExchangeState.LATE, 2.0, True, True),
        (ExchangeState.CANCELLED, 2.0, True, True),
        (ExchangeState.LOST, 2.0, True, True),
        (ExchangeState.LATE, None, True, False),  # it waited for its grant
        (ExchangeState.LATE, None, False, False),
        (ExchangeState.FAILED, None, False, False),
        (ExchangeState.FAILED, 2.0, False, False),  # a replay: the training diverged
    ],
)
def test_an_update_counts_from_its_grant_on_whatever_becomes_of_it(
    state: ExchangeState, granted: float | None, has_offer: bool, is_released: bool
) -> None:
    x = Exchange("pi-0", 0.0, round=3, attempt=1, state=state, granted=granted)
    x.offer = offer(3) if has_offer else None
    expected = ReleaseRow(round=3, attempt=1, device="pi-0", is_released=is_released)
    assert release_row(x, "pi-0") == expected


def test_classes_at_positions_have_numbers_of_positions_and_of_whole_examples() -> None:
    def score(n: int, positions: int, correct: int, exact: int, loss_sum: float) -> Score:
        return Score(n, Quality(correct=correct, positions=positions, exact=exact), loss_sum)

    scores = {"a": score(2, 8, 6, 1, 4.0), "b": score(4, 10, 5, 0, 20.0)}
    devices, metric = metric_rows(4, scores, 9.0, 0.1)
    found = {row.device: (row.n, row.positions, row.accuracy, row.exact_match) for row in devices}
    assert found == {"a": (2, 8, 0.75, 0.5), "b": (4, 10, 0.5, 0.0)}
    assert [row.loss for row in devices] == [0.5, 2.0]
    assert metric is not None
    assert metric.accuracy_mean == 0.625
    assert metric.accuracy_pooled == pytest.approx(11 / 18)
    assert metric.loss_mean == 1.25
    assert metric.perplexity == pytest.approx(np.exp(24.0 / 18.0))
    assert metric.exact_match_mean == 0.25
    assert metric.exact_match_pooled == pytest.approx(1 / 6)
    diverged = {"a": score(2, 8, 6, 1, float("inf"))}
    assert metric_rows(4, diverged, 9.0, 0.1)[1].perplexity is None  # type: ignore[union-attr]
    test_set = metric_rows(4, {}, 9.0, 0.1, test_set=scores["b"])[1]
    assert test_set is not None
    assert (test_set.test_accuracy, test_set.test_loss) == (0.5, 2.0)
    assert test_set.perplexity == pytest.approx(np.exp(2.0))
    assert noise_of(counted_tests(devices)) is None


def test_the_error_of_numbers_at_positions_is_over_positions() -> None:
    quality = Quality(mae=0.5, r2=0.9, positions=12)
    devices, metric = metric_rows(4, {"a": Score(3, quality, 6.0)}, 9.0, 0.1)
    assert (devices[0].rmse, devices[0].mae, devices[0].positions) == (1.0, 0.5, 12)
    assert metric is not None
    assert (metric.rmse_pooled, metric.exact_match_mean, metric.perplexity) == (1.0, None, None)


def test_classes_at_positions_have_numbers_of_each_class() -> None:
    def score(counts: list[list[int]], iou: float, accuracy: float) -> Score:
        quality = Quality(correct=5, positions=8, exact=1, iou=iou, class_accuracy=accuracy)
        return Score(2, quality, 4.0, class_counts=np.array(counts))

    a = score([[2, 0, 0], [4, 0, 0], [2, 2, 0]], 0.25, 0.5)
    b = score([[0, 3, 0], [0, 4, 0], [1, 3, 0]], 0.375, 0.5)
    devices, metric = metric_rows(4, {"a": a, "b": b}, 9.0, 0.1)
    assert [(row.iou, row.class_accuracy) for row in devices] == [(0.25, 0.5), (0.375, 0.5)]
    assert metric is not None
    assert (metric.iou_mean, metric.class_accuracy_mean) == (0.3125, 0.5)
    assert metric.iou_of_classes == "[0.4,0.5,null]"
    assert metric.class_accuracy_of_classes == f"[{2 / 3},0.6,null]"
    assert metric.iou_pooled == pytest.approx(0.45)
    assert metric.class_accuracy_pooled == pytest.approx((2 / 3 + 0.6) / 2)
    own = Score(2, b.quality, 4.0)  # a device tested the model on examples of its own
    _, metric = metric_rows(4, {"a": a, "b": own}, 9.0, 0.1)
    assert metric is not None
    assert metric.iou_mean == 0.3125
    assert (metric.iou_pooled, metric.iou_of_classes, metric.class_accuracy_pooled) == (None,) * 3


def test_r2_of_numbers_at_positions_is_over_all_examples() -> None:
    rng = np.random.default_rng(3)
    y = rng.standard_normal((5, 2, 2)).astype(np.float32)
    parts = [y[:2], y[2:]]
    quality = Quality(mae=0.5, r2=0.9, positions=8)
    scores = {
        name: Score(len(part), quality, 0.5 * 0.09 * part.size, spread=Spread.of(part))
        for name, part in zip("ab", parts, strict=True)
    }
    _, metric = metric_rows(4, scores, 9.0, 0.1)
    assert metric is not None
    spread = float(np.square(y.astype(np.float64) - y.mean(axis=0, dtype=np.float64)).sum())
    assert metric.r2_pooled == pytest.approx(1.0 - 0.09 * y.size / spread)
    _, metric = metric_rows(4, {**scores, "c": Score(3, quality, 1.0)}, 9.0, 0.1)
    assert metric is not None
    assert metric.r2_pooled is None


def test_replayed_columns_are_known_when_a_live_coordinator_knows_them() -> None:
    measured = {"rerequests_down": 2, "resent_up": 3, "cell_wait_s": 0.5, "weight": 1.0}
    columns = measured_columns(
        [measured, measured, measured, {}],
        has_offered=np.array([False, True, True, True]),
        is_done=np.array([False, False, True, True]),
    )
    assert columns["rerequests_down"] == [0, 2, 2, 0]
    assert columns["resent_up"] == [0, 0, 3, 0]
    assert columns["cell_wait_s"] == [0.5, 0.5, 0.5, None]
    assert columns["weight"] == [1.0, 1.0, 1.0, None]
    assert columns["coordinator_decode_s"] is None
