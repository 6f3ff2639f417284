"""Comparisons that printed numbers without what makes them comparable."""

import csv
import json
from pathlib import Path

import pytest

from fairbed.testbed.cli.main import main

GRIDS = Path(__file__).parent / "grids"


def test_seeds_without_the_metric_do_not_vanish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CoreFed with M = 1 has log U(Multi) in one of six seeds, and looked better than FedAvg."""
    monkeypatch.chdir(tmp_path)
    path = str(GRIDS / "missing-seeds.toml")
    arguments = ["compare", path, "--out", "out", "--no-figures", "--jobs", "1"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    why = "the loss of a device is at least aggregation.M = 1"
    lacking = "undefined in 2 of 6 seeds of fedavg, 5 of 6 seeds of corefed"
    assert f"warning: primary: log U(Multi) is {lacking} ({why}); no arm has a verdict" in text
    tables = [line.split() for line in text.splitlines()]
    (fedavg,) = [line for line in tables if line[:1] == ["fedavg"] and line[-1:] == ["4/6"]]
    assert fedavg[1].startswith("-")
    (corefed,) = [line for line in tables if line[:1] == ["corefed"] and "1/6" in line]
    assert corefed[-2:] == ["no", "verdict"]
    assert [line[-1] for line in tables if line[-1:] and line[-1].startswith("n=")] == [
        *("n=4/6", "n=1/6"),
        *("n=4/6", "n=1/6"),  # in the table of metrics that are not tested
    ]

    found = json.loads(Path("out/compare.json").read_text(encoding="utf-8"))
    gaps = found["arms"][1]["differences"]
    assert {gap["judgement"] for gap in gaps.values()} == {"no verdict"}
    assert gaps["utility_log_product"]["n"] == 1
    assert all(lacking in gap["reason"] for gap in gaps.values())
    undefined = [cell["missing"].get("utility_log_product") for cell in found["cells"]]
    assert undefined.count(why) == 7

    rows = csv.DictReader(Path("out/compare.csv").read_text(encoding="utf-8").splitlines())
    counts = {
        row["arm"]: (row["n"], row["seeds"], row["difference_n"], row["undefined"])
        for row in rows
        if row["metric"] == "utility_log_product"
    }
    assert counts == {"fedavg": ("4", "6", "", why), "corefed": ("1", "6", "1", why)}
    tex = Path("out/compare.tex").read_text(encoding="utf-8")
    assert "$n=4/6$" in tex
    assert r"$^{\ddagger}$ Not tested" in tex
