"""The summary in words says what the numbers say."""

from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.policy.config import ALERTS_OFF
from fairbed.coordinator.report.findings import Finding, findings, read_round_time
from fairbed.coordinator.report.html import read_page
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_schema import RunWarning
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import AlertRow
from tests.coordinator.store.fake_run import LATE_ROUND, VOID_ROUND, FakeRun, fake_run


def by_topic(found: list[Finding]) -> dict[str, Finding]:
    return {finding.topic: finding for finding in found}


def read(folder: Path) -> dict[str, Finding]:
    with RunReader(folder) as reader:
        return by_topic(read_page(reader, has_figures=False).findings)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "demo-1", rounds=12)


def test_the_numbers_of_the_sentences_are_those_of_the_summary(run: Path) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    s, found = page.summary, by_topic(page.findings)
    assert "12 emulated devices" in found["Run"].text
    assert "12 of 12 rounds" in found["Run"].text
    assert f"{s.accuracy.mean:.3f}" in found["Accuracy"].text
    assert f"{s.accuracy.worst10:.3f}" in found["Accuracy"].text
    assert f"{s.fairness.min_selection_rate:.3f}" in found["Guarantee"].text
    worst = min(s.fleet, key=lambda device: (device.accuracy or 0.0, device.name))
    assert f"{worst.name} has the lowest accuracy, {worst.accuracy:.3f}" in found["Worst off"].text


def test_rounds_wait_for_their_slowest_exchange(run: Path) -> None:
    with RunReader(run) as reader:
        time = read_round_time(reader)
        rounds = [row for row in reader.rounds() if row.status != "void"]
        exchanges = reader.exchanges()
    assert time.rounds == len(rounds) == 11
    assert time.total_s == pytest.approx(sum(row.duration_s for row in rounds))
    assert time.exchange_s + time.query_s + time.close_s == pytest.approx(time.total_s)
    assert sum(count for _, count in time.waits) == len(rounds)
    trained_s = 0.0
    for row in rounds:
        of_round = [x for x in exchanges if x.round == row.round and x.outcome == "done"]
        trained_s += max(of_round, key=lambda x: (x.tau_s or 0.0, x.device)).train_s or 0.0
    assert time.phases_s["train"] == pytest.approx(trained_s)
    assert list(time.phases_s.values()) == sorted(time.phases_s.values(), reverse=True)


def test_a_round_without_an_update_and_late_exchanges_are_problems(run: Path) -> None:
    assert VOID_ROUND <= 12
    assert LATE_ROUND <= 12
    problems = read(run)["Problems"]
    assert problems.is_bad
    assert "1 round of 12 had no update." in problems.text
    assert "missed the deadline" in problems.text


@pytest.mark.parametrize(
    ("contended", "sentence"),
    [
        (0, "45 exchange times did not count."),
        (7, "45 exchange times did not count, 7 of them because the machine of the run was busy."),
        (45, "45 exchange times did not count, because the machine of the run was busy."),
    ],
)
def test_times_that_a_busy_machine_spoilt_are_named(
    run: Path, contended: int, sentence: str
) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    exchange = msgspec.structs.replace(page.summary.exchange, invalid=45, contended=contended)
    s = msgspec.structs.replace(page.summary, exchange=exchange)
    found = by_topic(findings(s, page.info.plan, page.time, []))
    assert sentence in found["Problems"].text


def test_nothing_that_went_wrong_is_said_in_words(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "short", rounds=3)) as reader:
        page = read_page(reader, has_figures=False)
    s = msgspec.structs.replace(page.summary, evaluation_notes=[])
    (problems,) = [x for x in findings(s, page.info.plan, page.time, []) if x.topic == "Problems"]
    assert not problems.is_bad
    assert problems.text.startswith("None:")
    off = RunWarning(kind="alerts", count=1, text=ALERTS_OFF)
    s = msgspec.structs.replace(s, warnings=[off])
    (problems,) = [x for x in findings(s, page.info.plan, page.time, []) if x.topic == "Problems"]
    assert problems.text == f"Alerts: {ALERTS_OFF}."


def test_noise_of_the_test_sets_is_said_in_words(run: Path) -> None:
    with RunReader(run) as reader:
        noise = summarise_run(reader).accuracy.noise
    assert noise is not None
    found = read(run)
    assert f"the worst tenth of identical devices would have {noise.worst10:.3f}" in (
        found["Accuracy"].text
    )
    assert f"the worst tenth has {noise.worst10_shrunken:.3f} and the" in found["Accuracy"].text
    assert "Mostly noise of the test sets: worst 10 % " in found["Problems"].text


def test_a_rate_below_the_guarantee_is_bad_and_says_what_was_possible(run: Path) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    fair = msgspec.structs.replace(
        page.summary.fairness, beta=0.9, highest_rate=0.33, invariant_holds=True
    )
    s = msgspec.structs.replace(page.summary, fairness=fair)
    (found,) = [x for x in findings(s, page.info.plan, page.time, []) if x.topic == "Guarantee"]
    assert found.is_bad
    assert found.text.startswith("Not kept")
    assert "At most 0.330 was possible" in found.text
    broken = msgspec.structs.replace(fair, invariant_holds=False)
    s = msgspec.structs.replace(page.summary, fairness=broken)
    (found,) = [x for x in findings(s, page.info.plan, page.time, []) if x.topic == "Guarantee"]
    assert "is violated" in found.text


def test_devices_that_were_never_selected_are_named(run: Path) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    fair = msgspec.structs.replace(page.summary.fairness, beta=5e-5, min_selection_rate=0.0)
    s = msgspec.structs.replace(page.summary, fairness=fair, devices=1_000_000)
    found = by_topic(findings(s, page.info.plan, page.time, []))
    assert found["Guarantee"].text.startswith("Not kept: a device was never selected; 5e-05 is")
    assert found["Worst off"].text.startswith("999,988 of 1,000,000 devices were never selected")


def test_a_replay_without_training_merges_nothing(run: Path) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    s = msgspec.structs.replace(page.summary, clock="virtual")
    replay = msgspec.structs.replace(page.info.plan.replay, training=False)
    plan = msgspec.structs.replace(page.info.plan, replay=replay)
    found = by_topic(findings(s, plan, page.time, []))
    assert "selected 4 per round, without training." in found["Run"].text


def test_a_run_without_rounds_says_so_and_has_no_other_sentence(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "empty")
    found = read(run.finish("stopped"))
    assert set(found) == {"Run", "Problems"}
    assert "No round of 30 has been completed" in found["Run"].text
    assert "continue it with" in found["Problems"].text


def test_an_alert_is_a_problem(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", rounds=2)
    run.play(2)
    run.store.add(AlertRow(kind="disk low", begin_s=3.0, text="free some space"))
    found = read(run.finish())
    assert "Disk low since 0:03: free some space" in found["Problems"].text


def test_local_training_without_evaluation_has_no_sentence_about_accuracy(run: Path) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    found = by_topic(findings(page.summary, page.info.plan, page.time, []))
    assert "Accuracy" not in found
