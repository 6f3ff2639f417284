"""The history of one device: exchanges, slowest phase, conditions and problems."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairbed.coordinator.report.device_history import (
    EXCHANGE_PHASES,
    PHASE_TERMS,
    SlowestPhase,
    phases_by_duration,
    read_history,
    round_at,
    slowest_phase,
)
from fairbed.coordinator.report.quantities import SampleCount
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from tests.coordinator.store.fake_run import FakeRun, fake_run


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[ExchangeRow]:
    """Exchanges of one device, in which training takes longest."""
    folder = fake_run(tmp_path_factory.mktemp("runs") / "run")
    with RunReader(folder) as reader:
        return reader.exchanges_of(reader.devices()[1].name)


def test_each_part_of_an_exchange_has_its_words_and_a_letter_of_its_own() -> None:
    assert tuple(PHASE_TERMS) == EXCHANGE_PHASES
    assert len({terms.letter for terms in PHASE_TERMS.values()}) == len(EXCHANGE_PHASES)


def test_the_slowest_phase_has_the_largest_median_of_the_newest_exchanges(
    rows: list[ExchangeRow],
) -> None:
    found = slowest_phase(rows)
    assert isinstance(found, SlowestPhase)
    assert (found.phase, found.sample) == ("train", SampleCount(len(rows), len(rows)))
    ordered = sorted(row.train_s or 0.0 for row in rows)
    assert found.phase_s == pytest.approx((ordered[4] + ordered[5]) / 2.0)
    old = [replace(rows[0], upload_s=900.0, tau_s=1_000.0)] * 21
    new = [replace(rows[0], download_s=7.0, tau_s=9.0)] * 20
    found = slowest_phase([*old, *new])
    assert isinstance(found, SlowestPhase)
    assert (found.phase, found.phase_s, found.tau_s) == ("download", 7.0, 9.0)
    assert found.sample == SampleCount(20, 20)


def test_the_wait_for_a_grant_is_no_slow_phase_and_untimed_exchanges_do_not_count(
    rows: list[ExchangeRow],
) -> None:
    waited = replace(rows[0], queued_s=100.0)
    lost = replace(rows[0], tau_s=None, download_s=50.0)
    untimed = replace(rows[0], is_valid=False, download_s=50.0)
    found = slowest_phase([*[waited] * 5, lost, untimed])
    assert isinstance(found, SlowestPhase)
    assert (found.phase, found.sample) == ("train", SampleCount(5, 7))
    assert slowest_phase([*[waited] * 4, untimed]) == SampleCount(4, 5), "too few"
    assert slowest_phase([*[waited] * 5, *[lost] * 6]) == SampleCount(5, 11), "fewer than half"
    assert slowest_phase([]) == SampleCount(0, 0)


def test_phases_are_ordered_by_duration_without_those_that_take_none(
    rows: list[ExchangeRow],
) -> None:
    assert phases_by_duration(rows)[:3] == ["train", "load", "queued"]
    assert "decode" not in phases_by_duration(rows)
    assert phases_by_duration([]) == []


def test_an_instant_is_a_round_and_the_share_of_it_that_has_passed() -> None:
    ends = [(1, 10.0), (2, 20.0), (4, 60.0)]
    found = [round_at(ends, at_s) for at_s in (-5.0, 0.0, 5.0, 10.0, 12.5, 20.0, 40.0, 60.0, 99.0)]
    assert found == [0.0, 0.0, 0.5, 1.0, 1.25, 2.0, 3.5, 4.0, 4.0]
    assert round_at([], 3.0) == 0.0
    assert round_at([(1, 0.0)], 0.0) == 1.0


def test_the_history_ends_at_a_round(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(4)
    name = run.names[0]
    run.event("failed", "loss became NaN", device=name, level="error")
    end_s = run.now_s
    run.play(6)
    run.event("bad message", "a flood", device=name, level="warning")
    run.event("joined", "again", device=name)
    with RunReader(run.finish()) as reader:
        past = read_history(reader, name, 4, end_s)
        whole = read_history(reader, name, 10, run.now_s)
    assert {row.round for row in past.exchanges} < {row.round for row in whole.exchanges}
    assert max(row.round for row in past.exchanges) <= 4
    assert [number for number, _, _ in past.scores] == [1, 2, 3, 4]
    assert len(whole.scores) == 10
    assert (past.problems, whole.problems) == (1, 2)
    assert past.problem is not None
    assert past.problem.text == "loss became NaN"
    assert past.truth is not None
    assert past.truth.profile == run.profiles[0]
    assert max(at for at, _ in past.contexts) <= 4.0
    assert [means.mu_cores for _, means in whole.contexts] == [1.0] * len(whole.contexts)


def test_many_contexts_become_means_of_spans(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", devices=2)
    for i in range(1_000):
        run.now_s = 2.0 + i
        run.telemetry(1, "idle")
    run.store.flush()
    with RunReader(run.folder) as reader:
        means = reader.context_means(run.names[1], points=10)
        few = reader.context_means(run.names[0], points=10)
    run.store.close()
    assert 10 <= len(means) <= 11
    assert [x.at_s for x in means] == sorted(x.at_s for x in means)
    assert means[5].mu_cores == pytest.approx(0.98)
    assert means[5].temperature_celsius == pytest.approx(48.0)
    assert len(few) == 1
