"""The summary: every number compared with one computed by hand."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET, structs

from fairbed.coordinator.algorithms.sampling_noise import sampling_noise
from fairbed.coordinator.report.quantities import SampleCount
from fairbed.coordinator.report.summary import RunSummary, summarise_run, summary_table
from fairbed.coordinator.report.summary_schema import Positions
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import DeviceMetricRow, ExchangeRow, PersonalScoreRow
from tests.coordinator.store.fake_run import FakeRun, fake_run

CONTRACT = {
    "run_id": None,
    "status": None,
    "rounds_completed": None,
    "wall_s": None,
    "virtual_s": None,
    "devices": None,
    "selected": None,
    "aggregated": None,
    "accuracy": {
        *("mean", "worst10", "best10", "variance", "gini", "gap", "pooled", "worst10_pooled"),
        *("best10_pooled", "std", "variance_of_percent", "jain"),
    },
    "utility": {"M", "average", "product", "log_product", "least"},
    "loss": {"mean", "std"},
    "exchange": {
        "count",
        "invalid",
        "late",
        "failed",
        "median_s",
        "p95_s",
        "unaccounted_ratio",
    },
    "estimator": {"mape_second_half", "median_ape", "bias"},
    "queues": {"total", "largest", "mean_total", "max"},
    "bytes": {"down", "up"},
}
"""Keys that scripts of users rely on."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunReader]:
    with RunReader(fake_run(tmp_path_factory.mktemp("runs") / "run-1")) as reader:
        yield reader


@pytest.fixture(scope="module")
def summary(reader: RunReader) -> RunSummary:
    return summarise_run(reader)


def valid(reader: RunReader) -> list[ExchangeRow]:
    return [row for row in reader.exchanges() if row.outcome == "done" and row.is_valid]


def tau(row: ExchangeRow) -> float:
    assert row.tau_s is not None
    return row.tau_s


def test_the_summary_has_every_documented_key(summary: RunSummary) -> None:
    found = json.loads(msgspec.json.encode(summary))
    for key, inner in CONTRACT.items():
        assert key in found
        assert inner is None or inner <= found[key].keys()


def test_counts_add_up(summary: RunSummary, reader: RunReader) -> None:
    assert (summary.status, summary.rounds_completed, summary.devices) == ("done", 30, 12)
    assert (summary.rounds_void, summary.exchange.late, summary.exchange.failed) == (1, 1, 0)
    assert sum(summary.selected.values()) == summary.exchange.count == len(reader.exchanges())
    assert sum(summary.aggregated.values()) == summary.exchange.count - 1
    assert summary.bytes.down == 40_000 * summary.exchange.count


def test_the_time_axis_is_the_sum_of_the_rounds(summary: RunSummary, reader: RunReader) -> None:
    assert summary.virtual_s == pytest.approx(sum(row.duration_s for row in reader.rounds()))
    assert summary.wall_s >= summary.virtual_s


def test_exchange_times_are_those_of_valid_done_exchanges(
    summary: RunSummary, reader: RunReader
) -> None:
    times = [tau(row) for row in valid(reader)]
    assert summary.exchange.median_s == pytest.approx(median(times))
    assert summary.exchange.p95_s == pytest.approx(np.percentile(times, 95))
    ratios = [(row.unaccounted_s or 0.0) / tau(row) for row in valid(reader)]
    assert summary.exchange.unaccounted_ratio == pytest.approx(median(ratios))


def test_codecs_are_counted_by_actual_use(tmp_path: Path) -> None:
    def change(row: ExchangeRow) -> ExchangeRow:
        packed = replace(row, codec_up="int8", bytes_up=100, coordinator_decode_s=0.25)
        return packed if row.round > 2 else replace(row, coordinator_decode_s=None)

    exchange = changed(tmp_path / "r", change, rounds=4).exchange
    assert (exchange.codecs_down, exchange.codecs_up) == (
        {"float32": 16},
        {"float32": 8, "int8": 8},
    )
    assert exchange.samples["coordinator_decode_median_s"] == SampleCount(8, 8)
    assert (exchange.down_median_bytes, exchange.coordinator_decode_median_s) == (40_000, 0.25)
    assert (exchange.encode_median_s, exchange.decode_median_s) == (0.01, 0.0)
    assert exchange.up_median_bytes == (40_000 + 100) / 2


def test_prediction_errors_are_of_the_second_half(summary: RunSummary, reader: RunReader) -> None:
    rows = [row for row in valid(reader) if row.round > 15 and row.tau_hat_s is not None]
    errors = [((row.tau_hat_s or 0.0) - tau(row)) / tau(row) for row in rows]
    assert summary.estimator.mape_second_half == pytest.approx(mean(abs(e) for e in errors))
    assert summary.estimator.median_ape == pytest.approx(median(abs(e) for e in errors))
    assert summary.estimator.bias == pytest.approx(mean(errors))
    assert summary.estimator.bias is not None
    assert summary.estimator.bias > 0.0


def test_the_model_is_the_last_one_evaluated(summary: RunSummary, reader: RunReader) -> None:
    last = reader.metrics()[-1]
    assert last.round == 30
    assert summary.accuracy.mean == last.accuracy_mean
    assert summary.loss.std == last.loss_std


def test_fairness_uses_the_exact_bound(summary: RunSummary, reader: RunReader) -> None:
    fair = summary.fairness
    assert fair.beta == 0.15
    assert fair.min_selection_rate == pytest.approx(min(summary.selected.values()) / 30)
    assert fair.min_aggregation_rate == pytest.approx(min(summary.aggregated.values()) / 30)
    assert fair.invariant_holds is True
    assert fair.jain is not None
    assert 0.9 < fair.jain <= 1.0
    assert summary.queues.max == max(row.queue_max for row in reader.rounds())


def test_profiles_can_be_compared_by_the_time_of_a_step(
    summary: RunSummary, reader: RunReader
) -> None:
    slow, fast = summary.profiles["raspberry-pi-3b-plus"], summary.profiles["phone-mid"]
    assert (slow.devices, slow.speed) == (3, 0.06)
    assert slow.step_s_median is not None
    assert fast.step_s_median is not None
    assert slow.step_s_median / fast.step_s_median == pytest.approx(0.25 / 0.06, rel=0.15)


def test_the_table_names_codecs_only_where_there_are_any(summary: RunSummary) -> None:
    assert " down as " not in summary_table(summary)
    coded = structs.replace(
        summary,
        exchange=structs.replace(summary.exchange, codecs_down={"float32": 1, "delta": 9}),
    )
    assert " down as delta and float32, " in summary_table(coded)


def changed(
    path: Path, change: Callable[[ExchangeRow], ExchangeRow], rounds: int = 2
) -> RunSummary:
    """Return the summary of a short run with changed exchanges."""
    run = FakeRun(path, rounds=rounds)
    run.play(rounds)
    run.store.flush()
    with RunReader(path) as reader:
        for row in reader.exchanges():
            run.store.add(change(row))
        run.finish()
        return summarise_run(reader)


@pytest.mark.parametrize("outcome", ["failed", "lost", "rejected"])
def test_lost_and_rejected_exchanges_count_as_failed(tmp_path: Path, outcome: str) -> None:
    summary = changed(tmp_path / "r", lambda row: replace(row, outcome=outcome, tau_s=None))
    assert (summary.exchange.failed, summary.exchange.median_s) == (8, None)


def test_an_invalid_exchange_is_counted_but_measures_nothing(tmp_path: Path) -> None:
    summary = changed(tmp_path / "r", lambda row: replace(row, is_valid=False))
    assert (summary.exchange.count, summary.exchange.invalid) == (8, 8)
    assert summary.exchange.median_s is None
    assert summary.estimator.mape_second_half is None


def test_contended_exchanges_are_counted_separately(tmp_path: Path) -> None:
    def change(row: ExchangeRow) -> ExchangeRow:
        return replace(row, is_valid=row.round != 2, is_contended=row.round == 2)

    summary = changed(tmp_path / "r", change)
    assert (summary.exchange.invalid, summary.exchange.contended) == (4, 4)
    assert "4 untimed (4 because this machine was busy)" in summary_table(summary)


def test_a_run_without_rounds_is_all_nulls(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "r", rounds=5)
    run.store.close()
    with RunReader(tmp_path / "r") as reader:
        summary = summarise_run(reader)
    assert (summary.status, summary.rounds_completed) == ("interrupted", 0)
    assert summary.accuracy.mean is None
    assert summary.fairness.min_selection_rate is None
    assert "raspberry-pi-00" in summary_table(summary)


def test_the_table_of_a_run_has_the_same_numbers(summary: RunSummary) -> None:
    lines = summary_table(msgspec.structs.replace(summary, measures=UNSET)).splitlines()
    assert lines[0].split() == ["run", "run-1", "done"]
    assert "30 of 30 (1 void)" in lines[1]
    assert lines[3].startswith("spread     variance ")
    assert lines[4].startswith("noise      identical devices would show worst 10 % 0.")
    assert lines[5].startswith("corrected  worst 10 %, shrunken 0.")
    assert lines.pop(6).startswith("note       mostly noise of the test sets: ")
    assert "(115 of 116 timed); 1 late" in lines[6]
    assert "guarantee of 0.15 kept" in lines[8]
    assert lines[9].startswith("fairness   virtual queues: sum ")
    assert lines[10] == "bound      rate >= beta - Z/T holds"
    assert lines[11].startswith("merge      fedavg with weights n, ")
    assert lines[12].startswith("weights    fedavg: 0.83 (phone-03) to 1.25 (")
    assert lines[14] == "provenance fairbed 0.1.0 (git abc1234)"
    assert lines[16].split()[:3] == ["device", "profile", "selected"]
    assert len(lines) == 17 + 12
    row = next(line.split() for line in lines if line.startswith("phone-03"))
    assert row[1:4] == ["phone-mid", str(summary.selected["phone-03"]), "0.300"]
    assert all(len(line) < 150 for line in lines)


def test_the_table_of_a_large_fleet_is_cut(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "r", rounds=1, devices=45)) as reader:
        assert summary_table(summarise_run(reader)).splitlines()[-1] == "and 5 more devices"


@pytest.mark.parametrize(
    ("fair", "text"),
    [
        ({"min_selection_rate": 0.233}, "guarantee of 0.15 kept"),
        ({"min_selection_rate": 0.1}, "below guarantee: 0.100 of 0.15"),
        (
            {"min_selection_rate": 0.1, "highest_rate": 0.1},
            "below guarantee: 0.100 of 0.15 (at most 0.100 possible)",
        ),
        (
            {"queue_counts": "aggregated", "min_aggregation_rate": 0.1},
            "below guarantee: 0.100 of 0.15",
        ),
        ({"beta": None}, "no guarantee"),
    ],
)
def test_the_guarantee_is_what_the_policy_counts(
    summary: RunSummary, fair: dict[str, Any], text: str
) -> None:
    fairness = structs.replace(summary.fairness, **fair)
    lines = summary_table(structs.replace(summary, fairness=fairness)).splitlines()
    assert f"; {text};" in next(line for line in lines if line.startswith("selection "))


def test_the_highest_rate_is_that_of_the_availability_in_the_run(summary: RunSummary) -> None:
    assert summary.fairness.highest_rate is not None
    assert 0.15 < summary.fairness.highest_rate <= 4 / 12


def test_uninformative_numbers_are_left_out(tmp_path: Path) -> None:
    def untaught(row: ExchangeRow) -> ExchangeRow:
        return replace(row, tau_hat_s=0.0, unaccounted_s=-1e-6)

    summary = changed(tmp_path / "r", untaught)
    assert summary.estimator.bias is None
    text = summary_table(summary)
    assert "prediction" not in text
    assert "in no phase" not in text


def test_virtual_time_is_called_so(summary: RunSummary) -> None:
    virtual = structs.replace(summary, clock="virtual")
    assert "of virtual time in rounds, replayed in" in summary_table(virtual)
    assert "of virtual time" not in summary_table(summary)


def evaluated(
    path: Path, change: Callable[[DeviceMetricRow], DeviceMetricRow | None]
) -> RunSummary:
    """Return the summary of a short run with changed rows of its last evaluation."""
    run = FakeRun(path, rounds=2)
    run.play(2)
    run.store.flush()
    with RunReader(path) as reader:
        last, rows = reader.metrics()[-1], reader.device_metrics()
        for row in rows:
            if (new := change(row)) is not None:
                run.store.add(replace(new, round=last.round + 1))
        run.store.add(replace(last, round=last.round + 1))
        run.finish()
        return summarise_run(reader)


def test_metrics_that_the_store_lacks_come_from_the_rows_of_the_devices(
    summary: RunSummary, reader: RunReader
) -> None:
    rows, u = reader.device_metrics(), summary.utility
    losses = [row.loss or 0.0 for row in rows]
    assert u.M == 3.0
    assert u.average == pytest.approx(3.0 - sum(losses) / len(losses))
    assert u.least == pytest.approx(3.0 - max(losses))
    assert u.product == pytest.approx(math.prod(3.0 - loss for loss in losses))
    assert u.log_product == pytest.approx(math.log(u.product or 0.0))
    worst = min(rows, key=lambda row: row.accuracy or 0.0)
    assert summary.accuracy.worst10_pooled == round(40 * (worst.accuracy or 0.0)) / 40
    assert summary.accuracy.std == pytest.approx((summary.accuracy.variance or 0.0) ** 0.5)
    (note,) = summary.evaluation_notes
    assert note.startswith("mostly noise of the test sets: ")


def test_the_noise_of_the_tests_stands_beside_worst_best_and_variance(
    summary: RunSummary, reader: RunReader
) -> None:
    rows, noise, a = reader.device_metrics(), summary.accuracy.noise, summary.accuracy
    assert noise is not None
    counts = np.array([(row.n, round((row.accuracy or 0.0) * row.n)) for row in rows])
    assert noise == sampling_noise(*counts.T)
    shares = {name: f"{100 * (share or 0.0):.0f} %" for name, share in noise.shares.items()}
    text = summary_table(summary)
    assert f"worst 10 % {a.worst10:.3f} (noise {shares['worst 10 %']}), " in text
    assert f"best 10 % {a.best10:.3f} (noise {shares['best 10 %']}), " in text
    assert f"variance {a.variance:.4f} (noise {shares['variance']}), " in text
    assert f"worst 10 % {noise.worst10:.3f} ± {noise.worst10_std:.3f}, best" in text
    assert f"corrected  worst 10 %, shrunken {noise.worst10_shrunken:.3f}; " in text
    shown = msgspec.json.decode(msgspec.json.encode(summary))["accuracy"]["noise"]
    assert shown["variance_corrected"] == noise.variance_corrected
    assert shown["worst10_share"] == noise.worst10_share


def test_many_test_examples_give_no_warning(tmp_path: Path) -> None:
    s = evaluated(tmp_path / "r", lambda row: replace(row, n=100_000))
    assert s.evaluation_notes == []
    assert s.accuracy.noise is not None
    assert s.accuracy.noise.mostly_noise == {}
    assert "; 100000 test examples per device\n" in summary_table(s)


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_accuracies_at_an_end_have_unknown_noise(tmp_path: Path, accuracy: float) -> None:
    s = evaluated(tmp_path / "r", lambda row: replace(row, accuracy=accuracy))
    assert f"noise      of the test sets: not known, every accuracy is {accuracy:g}" in (
        summary_table(s).splitlines()
    )
    assert not any("mostly noise" in note for note in s.evaluation_notes)


def test_one_device_has_no_noise_of_a_spread(tmp_path: Path) -> None:
    s = evaluated(tmp_path / "r", lambda row: row if row.device == "phone-03" else None)
    assert s.accuracy.noise is None
    assert "noise      of the test sets: not known, a spread needs two devices" in summary_table(s)


@pytest.mark.parametrize(
    ("task", "what"), [("classification", "positions"), ("multi-label", "labels")]
)
def test_numbers_of_several_targets_state_what_they_count(
    tmp_path: Path, task: str, what: str
) -> None:
    s = evaluated(tmp_path / "r", lambda row: row)
    text = summary_table(
        structs.replace(
            s,
            task=task,
            accuracy=structs.replace(s.accuracy, noise=None),
            positions=Positions(
                perplexity=7.5,
                exact_match_mean=0.1,
                exact_match_pooled=0.2,
                iou_mean=0.5,
                class_accuracy_of_classes=[0.75, None, 0.25],
            ),
        )
    )
    assert "IoU mean 0.500, over all examples –; accuracy of a class, mean –" in text
    assert "lowest 0.250 (class 2); 1 classes have no label in the tests" in text
    assert f"accuracy   of {what}: mean" in text
    assert f"all {what} right in 10.0 % of the examples" in text
    assert ("; perplexity 7.500" in text) == (what == "positions")
    assert "; by targets: mean" in text
    assert "not known, the targets of an example are not independent" in text


def test_what_an_evaluation_could_not_measure_is_one_line_each(tmp_path: Path) -> None:
    def change(row: DeviceMetricRow) -> DeviceMetricRow | None:
        is_left_out = row.device == "phone-03"
        return None if is_left_out else replace(row, accuracy=0.0, loss=None)

    summary = evaluated(tmp_path / "r", change)
    assert summary.evaluation_notes == [
        "1 of 12 devices have no accuracy in the latest evaluation (no held-out examples, or no "
        "result in time): phone-03",
        "every accuracy is 0: its Gini coefficient and Jain index are not defined",
        "the model has diverged: the loss of a device is not finite",
    ]
    assert (summary.accuracy.jain, summary.utility.product) == (None, None)
    assert "note       1 of 12 devices have no accuracy in the" in summary_table(summary)


def test_the_table_has_the_steps_of_the_aggregation_and_device_seconds(tmp_path: Path) -> None:
    run = FakeRun(
        tmp_path / "r",
        aggregation='rule = "aaggff-d"\npseudo_gradient = "fednova"\nserver = "adam"\n'
        'defence = "clip"\nstep = "normalised"\n',
    )
    run.play(4)
    run.store.flush()
    with RunReader(run.folder) as reader:
        summary, plan = summarise_run(reader), reader.plan
    assert structs.asdict(summary.aggregation) == {
        "rule": "aaggff-d",
        "weights": "equal",
        "defence": "clip",
        "pseudo_gradient": "fednova",
        "server": "adam",
        "step": "normalised",
    }
    assert plan.aggregation.steps == plan.steps == "aaggff-d, clip, fednova, adam, normalised"
    table = summary_table(summary)
    assert (
        "\nmerge      defence clip, aaggff-d with weights equal, pseudo-gradient fednova, server "
        "step adam, step length normalised\n" in table
    )
    assert f" in total; {summary.device_s:.1f} device-seconds\n" in table
    large = structs.replace(summary, device_s=1_204_310.7, clock="virtual")
    assert " s; 1,204,311 device-seconds\n" in summary_table(large)


def test_the_table_of_fedavg_names_its_steps(summary: RunSummary) -> None:
    line = (
        "\nmerge      fedavg with weights n, pseudo-gradient average, server step plain, "
        "step length as-published\n"
    )
    assert line in summary_table(summary)
    assert "local rule" not in summary_table(summary)
    changed = structs.replace(summary, local_rule="scaffold:Scaffold")
    assert "\ntraining   local rule scaffold:Scaffold\n" in summary_table(changed)
    unnamed = structs.replace(summary.aggregation, rule=None)
    assert "\nmerge" not in summary_table(structs.replace(summary, aggregation=unnamed))


@pytest.mark.parametrize("rule", ["corefed", "propfair"])
def test_the_table_of_a_rule_with_utilities_has_them(summary: RunSummary, rule: str) -> None:
    assert "utility" not in summary_table(summary)
    with_m = structs.replace(summary, aggregation=structs.replace(summary.aggregation, rule=rule))
    assert "\nutility    3 - loss: mean " in summary_table(with_m)
    unknown = structs.replace(summary.utility, average=None, product=None, least=None)
    invalid = structs.replace(with_m, utility=unknown)
    assert "\nutility    3 - loss: unknown: a loss is 3 or more\n" in summary_table(invalid)


TWO = {1: "nan", 4: "model-replacement"}


def test_malicious_devices_are_reported_after_the_run(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "r", malicious=TWO)
    run.play(12)
    run.store.flush()
    with RunReader(run.folder) as reader:
        live, revealed = summarise_run(reader), summarise_run(reader, reveals=True)
        exchanges, counts = reader.exchanges(), reader.selection_counts()
        metrics = reader.device_metrics()
    assert live.status == "running"
    assert live.attackers is None
    assert {device.malicious for device in live.fleet} == {None}
    assert "malicious" not in summary_table(live)
    run.finish()
    with RunReader(run.folder) as reader:
        summary = summarise_run(reader)
    a = summary.attackers
    assert a is not None
    assert a == revealed.attackers
    names = {run.names[row] for row in TWO}
    assert a.kinds == {"nan": 1, "model-replacement": 1}
    benign = [row for row in metrics if row.device not in names]
    accuracies = np.array([round((row.accuracy or 0.0) * row.n) / row.n for row in benign])
    losses = np.array([row.loss for row in benign], dtype=np.float64)
    assert len(benign) == 10
    assert a.accuracy_mean == pytest.approx(accuracies.mean())
    assert a.accuracy_worst10 == pytest.approx(accuracies.min())
    assert a.accuracy_variance == pytest.approx(accuracies.var())
    assert a.accuracy_std == pytest.approx(accuracies.std())
    assert (a.loss_mean, a.loss_std) == pytest.approx((losses.mean(), losses.std()))
    assert a.device_share == 2 / 12
    selected = {count.device: count.selected for count in counts}
    assert a.selection_share == pytest.approx(
        sum(selected[name] for name in names) / sum(selected.values())
    )
    weights: dict[int, float] = {}
    merged = [x for x in exchanges if x.weight_share is not None]
    for x in merged:
        assert x.aggregated_round is not None
        assert x.weight_share is not None
        share = x.weight_share if x.device in names else 0.0
        weights[x.aggregated_round] = weights.get(x.aggregated_round, 0.0) + share
    assert a.weight_share == pytest.approx(mean(weights.values()))
    assert 0.0 < mean(weights.values()) < 1.0
    assert a.aggregated == sum(x.device in names for x in merged)
    assert a.left_out == sum(x.device in names and x.defence_scale == 0.0 for x in merged)
    assert {d.name: d.malicious for d in summary.fleet if d.malicious} == {
        run.names[row]: kind for row, kind in TWO.items()
    }
    lines = summary_table(summary).splitlines()
    (line,) = [line for line in lines if line.startswith("malicious  ")]
    assert line.startswith("malicious  1 model-replacement and 1 nan: 16.7 % of the devices, ")
    (line,) = [line for line in lines if line.startswith("benign     accuracy: mean ")]
    assert f"mean {accuracies.mean():.3f}" in line
    assert sum(line.endswith("  nan") for line in lines) == 1
    assert sum(line.endswith("  model-replacement") for line in lines) == 1


def test_a_fleet_without_benign_devices_has_no_benign_metrics(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "r", malicious=dict.fromkeys(range(12), "free-rider"))
    run.play(3)
    with RunReader(run.finish()) as reader:
        a = summarise_run(reader).attackers
    assert a is not None
    assert (a.device_share, a.selection_share) == (1.0, 1.0)
    assert a.weight_share == pytest.approx(1.0)
    assert (a.accuracy_mean, a.accuracy_worst10, a.loss_mean) == (None, None, None)


def test_personal_models_are_summarised_by_their_latest_scores(tmp_path: Path) -> None:
    def score(round_id: int, device: str, accuracy: float) -> PersonalScoreRow:
        return PersonalScoreRow(round=round_id, device=device, n=20, accuracy=accuracy, loss=0.5)

    run = FakeRun(tmp_path / "r", rounds=3)
    run.play(3)
    run.store.flush()
    with RunReader(tmp_path / "r") as reader:
        names = [device.name for device in reader.devices()][:3]
    run.store.add_all([score(1, names[0], 0.1), score(3, names[0], 0.9)])
    run.store.add_all([score(2, names[1], 0.5), score(2, names[2], 0.4)])
    run.finish()
    with RunReader(tmp_path / "r") as reader:
        summary = summarise_run(reader)
        metrics = {
            row.device: round(40 * (row.accuracy or 0.0)) / 40 for row in reader.device_metrics()
        }
    p = summary.personal
    assert p is not None
    assert (p.devices, p.accuracy_worst10) == (3, 0.4)
    assert p.accuracy_mean == pytest.approx(0.6)
    assert p.accuracy_variance == pytest.approx((0.3**2 + 0.1**2 + 0.2**2) / 3)
    assert p.global_mean == pytest.approx(sum(metrics[name] for name in names) / 3)
    latest = dict(zip(names, (0.9, 0.5, 0.4), strict=True))
    assert p.better == sum(latest[name] > metrics[name] for name in names)
    own = {device.name: device.personal_accuracy for device in summary.fleet}
    assert own == dict.fromkeys(own) | latest
    assert "\npersonal   mean 0.600, worst 10 % 0.400" in summary_table(summary)
    assert "the global model on these 3 of 12 devices: mean" in summary_table(summary)


def test_personal_models_of_malicious_devices_do_not_count(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "r", malicious=TWO)
    run.play(3)
    run.store.flush()
    with RunReader(run.folder) as reader:
        names = [device.name for device in reader.devices()]
    accuracies = {name: (4 + at) / 20 for at, name in enumerate(names)}
    for name, accuracy in accuracies.items():
        run.store.add(PersonalScoreRow(round=3, device=name, n=20, accuracy=accuracy, loss=0.5))
    with RunReader(run.finish()) as reader:
        summary = summarise_run(reader)
    benign = [device.name for device in summary.fleet if device.malicious is None]
    assert summary.personal is not None
    assert summary.personal.devices == len(benign) == len(names) - 2
    expected = sum(accuracies[name] for name in benign) / len(benign)
    assert summary.personal.accuracy_mean == pytest.approx(expected)


def test_a_run_without_personal_models_has_none(summary: RunSummary) -> None:
    assert summary.personal is None
    assert "personal" not in summary_table(summary)


def test_a_mixed_fleet_is_listed_by_kind_with_the_energy_of_each_device(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "mixed", devices=3, physical=frozenset({1}), watts=2.5)
    run.play(6)
    with RunReader(run.finish()) as reader:
        summary = summarise_run(reader)
        energies = reader.energy_j(0, 99)
    assert [device.kind for device in summary.fleet] == ["emulated", "physical", "emulated"]
    assert summary.energy is not None
    assert {d.name: d.energy_j for d in summary.fleet if d.energy_j is not None} == energies
    assert sum(energies.values()) == pytest.approx(summary.energy.total_j)
    head, _, kitchen, _ = summary_table(summary).splitlines()[-4:]
    assert head.split()[:3] == ["device", "kind", "profile"]
    assert head.endswith("energy")
    assert kitchen.split()[1] == "physical"


def test_a_fleet_of_one_kind_without_energy_has_neither_column(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "plain", devices=3)
    run.play(3)
    with RunReader(run.finish()) as reader:
        head = summary_table(summarise_run(reader)).splitlines()[-5]
    assert head.startswith("device")
    assert "kind" not in head
    assert "energy" not in head


@pytest.mark.parametrize(
    ("training", "text"),
    [
        ({}, ""),
        ({"momentum": 0.9}, "sgd with momentum 0.9"),
        (
            {"momentum": 0.9, "nesterov": True, "optimiser_state": "kept"},
            "sgd with Nesterov's momentum 0.9, state kept between rounds",
        ),
        (
            {"optimiser": "adamw", "weight_decay": 0.01, "schedule": "cosine", "warm_up": 2},
            "adamw, weight decay 0.01, cosine schedule by round after a warm-up of 2",
        ),
        ({"learning_rate_decay": 0.5}, "step schedule by round"),
    ],
)
def test_the_optimiser_is_stated_unless_it_is_plain_sgd(
    training: dict[str, Any], text: str, tmp_path: Path
) -> None:
    folder = fake_run(tmp_path, rounds=2, devices=3)
    rows = "".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else json.dumps(value)}\n"
        for key, value in training.items()
    )
    (folder / "experiment.toml").write_text(f"[training]\n{rows}", encoding="utf-8")
    with RunReader(folder) as reader:
        lines = summary_table(summarise_run(reader)).splitlines()
    found = [line for line in lines if line.startswith("optimiser")]
    assert found == ([f"optimiser  {text}"] if text else [])
