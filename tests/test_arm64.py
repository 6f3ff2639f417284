"""`just test-arm64`: what it decides. The rest of it runs where its recipe runs."""

import os
from pathlib import Path

import pytest

from tools import arm64, roots

ROOT = Path(__file__).parent.parent


def test_a_machine_that_cannot_do_it_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert arm64.main(["--folder", str(tmp_path / "arm64")]) == 0
    assert capsys.readouterr().out.startswith("test-arm64: skipped, needs ")
    assert not list(tmp_path.iterdir())


def test_a_step_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arm64.main(["weels"])
    assert "a step must be one of wheels, tests, device" in capsys.readouterr().err


def test_tests_that_the_emulation_fails_exist() -> None:
    for test in arm64.DESELECTED:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_a_download_above_the_bound_is_refused() -> None:
    assert arm64.check_sizes({"3.10": 38_800_000, "3.11": 60_000_000}) == (
        "3.10 38.8 MB, 3.11 60.0 MB, at most 60 MB"
    )
    with pytest.raises(roots.StepError, match=r"at most 60 MB, got 3\.10 60\.1 MB"):
        arm64.check_sizes({"3.10": 60_100_000})


def test_counts_come_from_the_report_of_pytest() -> None:
    suite = '<testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10" time="9.1">'
    counts = arm64.read_counts(f'{suite}<testcase name="failures="7""/>')
    assert str(counts) == "4 passed, 3 failed, 3 skipped"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"rounds_completed": 2}, "got 2 rounds, 3 exchanges, 0 untimed"),
        ({"rounds_void": 1}, "got 3 rounds, 3 exchanges, 0 untimed"),
        ({"exchange": {"count": 3, "invalid": 1}}, "3 exchanges, 1 untimed"),
    ],
)
def test_rounds_count_if_each_has_a_timed_exchange(
    change: dict[str, object], problem: str | None
) -> None:
    good = {"count": 3, "invalid": 0}
    summary = {
        "rounds_completed": 3,
        "rounds_void": 0,
        "virtual_s": 27.06,
        "exchange": good,
        "accuracy": {"mean": 0.571},
    }
    if problem is None:
        text = "3 rounds, 3 exchanges, 0 untimed, 27.1 s in rounds, accuracy 0.57"
        assert arm64.check_summary(summary | change) == text
    else:
        with pytest.raises(roots.StepError, match=problem):
            arm64.check_summary(summary | change)
