"""A silo that joins late had weight 0 in AAggFF-S, and 0.15 of a fair share in AAggFF-D."""

import re
import runpy
from pathlib import Path

import pytest

GRIDS = Path(__file__).parent / "grids"
LINE = re.compile(
    r"(?P<rule>\S+) \d+->\d+ devices after round \d+, joiner's loss (?P<factor>[\d.]+)x: "
    r"share x m after 1, 50, 200 rounds: (?P<shares>[\d. ]+)  "
)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its open file
def test_the_audit_of_late_joiners_finds_equal_and_rising_shares(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(GRIDS)
    runpy.run_path("late_join_aggregator.py")
    found = list(LINE.finditer(capsys.readouterr().out))
    assert len(found) == 12
    for line in found:
        first, later, last = map(float, line["shares"].split())
        if line["factor"] == "1.0":
            assert (first, later, last) == pytest.approx((1.0, 1.0, 1.0), abs=2e-3), line[0]
        else:
            assert 1.0 <= first < later <= last, line[0]
