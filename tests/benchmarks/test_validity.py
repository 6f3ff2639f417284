"""The benchmark of untimed exchanges: exchanges are compared with quiet ones of their device."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks import validity
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.errors import UsageError
from tests.coordinator.store.fake_run import FakeRun

ROUNDS = 6


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> ExchangeRow:
    """An exchange of 2 s: 0.5 s download, 1 s computing, 0.5 s upload."""
    made = FakeRun(tmp_path_factory.mktemp("run"))
    made.begin_round()
    found = made.exchange(0)
    made.store.close()
    return replace(
        found,
        outcome="done",
        was_cold=False,
        tau_s=2.0,
        download_s=0.5,
        load_s=0.0,
        evaluate_s=0.0,
        train_s=1.0,
        personal_s=0.0,
        encode_s=0.0,
        decode_s=0.0,
    )


def a_run(row: ExchangeRow) -> list[ExchangeRow]:
    """Rounds of one device: quiet, then beside one program, which delays two of them."""
    rows = [replace(row, round=number + 1) for number in range(2 * ROUNDS)]
    rows[0] = replace(rows[0], tau_s=9.0)  # the first one loads the shard
    rows[6] = replace(rows[6], tau_s=5.0)  # the load begins
    rows[8] = replace(rows[8], tau_s=2.3, train_s=1.3)
    late = replace(rows[9], tau_s=2.3, train_s=1.3, is_valid=False, reason="busy")
    rows[9] = replace(late, contended_compute_s=0.29, lag_s=0.01)
    rows[10] = replace(rows[10], is_valid=False, contended_upload_s=0.2)
    return [*rows, replace(row, round=12, device="other", tau_s=7.0)]


def test_exchanges_are_compared_with_the_quiet_ones_of_their_device(row: ExchangeRow) -> None:
    found = validity.compare(a_run(row), ["quiet", "1"], ROUNDS)
    assert [one.load for one in found] == ["quiet"] * 5 + ["1"] * 5
    assert [round(one.error, 3) for one in found] == [0.0] * 6 + [0.15, 0.15, 0.0, 0.0]
    assert found[7].delay_s == pytest.approx({"download": 0.0, "compute": 0.3, "upload": 0.0})
    assert found[7].charged_s == {"download": 0.0, "compute": 0.29, "upload": 0.01}


def test_devices_with_few_quiet_exchanges_do_not_count(row: ExchangeRow) -> None:
    rows = [replace(one, was_cold=one.round % 2 == 0) for one in a_run(row)]
    found = validity.compare(rows, ["quiet", "1"], ROUNDS)
    assert len(found) == 3 + 3  # warm ones; only two quiet ones were not the first, and cold


def test_the_tables_count_wrong_and_rightly_untimed_exchanges(
    row: ExchangeRow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    found = validity.compare(a_run(row), ["quiet", "1"], ROUNDS)
    file.write_bytes(msgspec.json.encode(found))
    assert validity.main(["--from", str(file), str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| quiet | 10 | 10 | 0 | 0 | 0 | 0.0%, 0.0%, 0.0% |"
    assert lines[3] == "| 1 | 10 | 6 | 2 | 4 | 2 | 0.0%, 15.0%, 15.0% |"
    assert "| 1 | compute | 0, 300, 300 | 0, 290, 290 |" in lines
    assert "| 1 | upload | 0, 0, 0 | 0, 200, 200 |" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loads", "1"], "must begin with quiet, got 1"),
        (["--loads", "quiet,some"], "a number of programs or bursts, got 'some'"),
        (["--rounds", "1"], "must be at least 2, got 1"),
        (["--from", "/dev/null"], "must have rows of --json"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        validity.main(arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_a_fleet_is_measured_beside_a_busy_loop(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--backend", "process", "--loads", "quiet,1", "--rounds", "4", "--json"]
    fleet = "fleet=[{ profile = 'raspberry-pi-4b', count = 2 }]"
    settings = ["selection.per_round=2", "training.epochs=1", "selection.beta=0.0", fleet]
    for setting in settings:
        arguments += ["--set", setting]
    assert validity.main(arguments) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=list[validity.Compared])
    assert {one.load for one in found} <= {"quiet", "1"}
    assert all(one.tau_s > 0.0 for one in found)
    assert all(one.charged_s.keys() == one.delay_s.keys() for one in found)
