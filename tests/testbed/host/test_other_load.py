"""Threads of other programs that run or wait, as Linux counts them."""

from pathlib import Path

import pytest

from fairbed.testbed.host.other_load import runnable_tasks


@pytest.mark.parametrize(
    ("line", "others"),
    [("0.50 0.40 0.30 4/512 1234", 3.0), ("0.50 0.40 0.30 1/512 1234", 0.0), ("nothing", 0.0)],
)
def test_the_caller_does_not_count(line: str, others: float, tmp_path: Path) -> None:
    file = tmp_path / "loadavg"
    file.write_text(line, encoding="ascii")
    assert runnable_tasks(1, file) == others
    assert runnable_tasks(1, tmp_path / "missing") == 0.0
