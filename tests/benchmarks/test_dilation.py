"""The benchmark of predicted untimed exchanges: constants that fit runs, and wrong settings."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks import dilation
from benchmarks.dilation import Measured
from fairbed.testbed.errors import UsageError

LOADS = [(4, 0.0), (12, 0.0), (4, 6.0), (24, 2.0)]


def a_run(at_once: int, waiting: float) -> Measured:
    """Exchanges whose delays are log-normal around 1 ms + (2 ms m + 0.5 ms r) / 2."""
    median_s = 1e-3 + (2e-3 * at_once + 0.5e-3 * waiting) / 2.0
    delay_s = median_s * np.exp(0.6 * np.random.default_rng(at_once).standard_normal(4001))
    return Measured(
        setting=f"120:{at_once}:auto",
        model="mlp",
        backend="namespace",
        at_once=at_once,
        cores=2.0,
        others=0.5,
        waiting=waiting,
        dilation=8.0,
        cold_s=[0.04, 0.04],
        warm_s=[0.029, 0.031],
        warm_share=0.75,
        untimed=[True, False],
        delay_s=delay_s.tolist(),
        tau_s=[0.032, 0.033, 0.034],
    )


def test_the_constants_that_fit_are_those_of_the_delays() -> None:
    fixed_s, queued_s, others_s, sigma = dilation.fitted([a_run(*load) for load in LOADS])
    assert [fixed_s, queued_s] == pytest.approx([1e-3, 2e-3], rel=0.15)
    assert others_s == pytest.approx(0.5e-3, rel=0.3)
    assert sigma == pytest.approx(0.6, rel=0.05)


def test_a_row_has_the_predicted_beside_the_measured_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    runs = [a_run(4, 6.0), msgspec.structs.replace(a_run(4, 4.0), untimed=[False, False])]
    file.write_bytes(msgspec.json.encode(runs))
    assert dilation.main(["--from", str(file)]) == 0
    _, _, row, *_ = capsys.readouterr().out.splitlines()
    assert row.startswith("| 120, 4, 8 (auto) | mlp, namespace | 2, 4 | 5.0, 0.5 | ")
    assert "% | 0%, 25%, 50% | " in row
    assert row.endswith("| 30, 33 |")


@pytest.mark.parametrize("text", ["4:4", "4:4:fast", "a:4:1"])
def test_a_setting_is_three_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="must be devices:per_round:dilation"):
        dilation.main(["--settings", text])


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must have rows of --json"):
        dilation.main(["--from", str(tmp_path / "none.json")])
