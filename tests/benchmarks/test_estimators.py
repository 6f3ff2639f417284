"""The benchmark of estimators: what it asks for, and one small fleet that is really run."""

import json
import lzma
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks import estimators
from benchmarks._estimators_families import Recordings, experiment_of
from benchmarks.estimators import MIN_EXCHANGES, Check, Measured
from fairbed.coordinator.algorithms.estimation.prequential import Errors

ERRORS = Errors(
    count=MIN_EXCHANGES,
    mape=0.04,
    median_ape=0.2,
    p95_ape=0.5,
    bias=0.0,
    coverage=None,
    interval=None,
    median_ape_from={},
    count_from={},
)


def verdicts(checks: list[Check]) -> list[bool | None]:
    return [check.ok for check in checks]


def constant(ridge: float, phases: float, count: int = MIN_EXCHANGES) -> list[bool | None]:
    errors = {
        "ridge": replace(ERRORS, mape=ridge, count=count),
        "phases": replace(ERRORS, mape=phases, count=count),
    }
    return verdicts(estimators.checks_of("constant", errors, wire=0.4))


def moving(wire: float = 0.4, **medians: float) -> list[bool | None]:
    names = {"phases": 0.2, "known": 0.2, "last": 0.3, "mean": 0.3, **medians}
    errors = {
        {"last": "last value", "mean": "device mean"}.get(name, name): replace(
            ERRORS, median_ape=median
        )
        for name, median in names.items()
    }
    return verdicts(estimators.checks_of("traces", errors, wire))


def test_constant_links_ask_for_five_percent_and_for_phases_no_worse() -> None:
    assert constant(0.05, 0.04) == [True, True]
    assert constant(0.051, 0.051) == [False, True]
    assert constant(0.04, 0.041) == [True, False]
    assert constant(0.04, 0.04, count=MIN_EXCHANGES - 1) == [None, None]


def test_moving_links_ask_for_what_could_be_known() -> None:
    assert moving() == [True] * 4
    assert moving(phases=0.229) == [True] * 4
    assert moving(phases=0.24) == [True, False, True, True]
    assert moving(wire=0.29) == [False, True, True, True]
    assert moving(last=0.2) == [True, True, False, True], "as good is not better"
    assert moving(mean=0.1) == [True, True, True, False]


def test_replays_over_seeds_keep_the_promise_of_moving_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight draws of the links: of one alone nothing could be said."""
    page = tmp_path / "page.md"
    place = estimators.REPLAYED_TABLE
    page.write_text(f"<!-- {place} -->\n<!-- end of {place} -->\n")
    asked = ["--only", "traces", "--replay", "8", "--write", str(page)]
    assert estimators.main(asked) == 0
    said = capsys.readouterr().out
    assert said.strip() in page.read_text()
    (line,) = (line for line in said.splitlines() if "in errors of known" in line)
    ratio = float(line.split(":")[1].split()[0])
    assert ratio <= estimators.KNOWN_FACTOR
    for other in ("last value", "device mean", "ridge"):
        (line,) = (line for line in said.splitlines() if f"below {other}" in line)
        assert int(line.split()[-3]) >= 7


def test_replays_take_settings_and_print_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--only", "constant", "--replay", "1", "--set", "rounds=12", "--json"]
    assert estimators.main(asked) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["fleet"], one["rounds"], one["seeds"]) == ("constant", 12, 1)
    assert one["errors"]["phases"][0] < 0.05


def test_fleets_on_families_of_links_are_replayed_in_both_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    rows = "".join(f"trace_{n},{t},{1 + (n + t) % 3}\n" for n in range(3) for t in range(120))
    for name in ("norway_hsdpa_3g", "fcc_fixed_broadband"):
        with lzma.open(traces / f"{name}.csv.xz", "wt") as packed:
            packed.write(f"trace,t_s,mbps\n{rows}short,0,1\n")
    monkeypatch.setenv("FAIRBED_DATA", str(tmp_path))
    asked = ["--families", "norway-3g,fixed-us", "--replay", "1", "--set", "rounds=6"]
    assert estimators.main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    rows_of = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    assert list(rows_of)[1:] == [
        *("norway-3g, 8 of 8", "norway-3g, 3 of 9", "fixed-us, 8 of 8", "fixed-us, 3 of 9")
    ]
    assert "| yes |" in rows_of["norway-3g, 8 of 8"]
    assert "| no |" in rows_of["fixed-us, 3 of 9"]


def test_a_recording_without_an_uplink_gets_that_of_another_at_a_quarter(tmp_path: Path) -> None:
    found: Recordings = [(np.full(100, 4.0), None), (np.full(100, 8.0), np.full(100, 3.0))]
    pairs = set[tuple[float, float]]()
    for seed in range(4):
        one = experiment_of(
            *(estimators.EXAMPLES / "estimators-traces.toml", [], "norway-3g", "3 of 9"),
            *(found, tmp_path, seed),
        )
        assert (one.selection.per_round, len(one.fleet)) == (3, 9)
        for group in one.fleet:
            assert group.trace is not None
            row = Path(group.trace).read_text().splitlines()[1].split(",")
            pairs.add((float(row[1]), float(row[2])))
    assert pairs == {(4.0, 1.0), (4.0, 2.0), (8.0, 3.0)}


@pytest.mark.parametrize(
    ("asked", "problem"),
    [("mars", "got mars"), ("norway-3g", "norway_hsdpa_3g.csv.xz, which does not exist")],
)
def test_families_that_cannot_be_replayed_are_refused(
    asked: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAIRBED_DATA", str(tmp_path))
    with pytest.raises(SystemExit) as refused:
        estimators.main(["--families", asked, "--replay", "1"])
    assert problem in f"{refused.value}{capsys.readouterr().err}"


@pytest.mark.parametrize("asked", [["--replay", "0"], ["--set", "rounds=no", "--replay", "1"]])
def test_what_cannot_be_replayed_is_refused(asked: list[str]) -> None:
    with pytest.raises(SystemExit):
        estimators.main(asked)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_small_fleet_is_run_and_checked(tmp_path: Path) -> None:
    """On a machine that tests keep busy nothing is said of how good the estimators are."""
    found = estimators.measure("traces", tmp_path / "kept", "process", ["rounds=2"])
    assert found.exchanges == 2 * 8
    assert 0 <= found.valid <= found.exchanges
    assert list(found.errors) == [
        *("ridge", "phases", "mixture", "last value", "device mean", "global mean"),
        "known",
    ]
    assert len({errors.count for errors in found.errors.values()}) == 1
    assert verdicts(found.checks)[1:] == [None] * 3, "too few exchanges to judge by"
    if found.valid:
        assert 0.0 < found.wire_median < 1.0
        assert 0.1 < found.tau_median_s < 60.0
    again = estimators.measure("traces", tmp_path / "kept", "process", ["rounds=2"])
    assert told(again) == told(found), "the run that is there was taken"
    document = tmp_path / "page.md"
    place = "<!-- estimators table -->\nEarlier words.\n<!-- end of estimators table -->\n"
    document.write_text(place)
    estimators.write(document, [found])
    text = document.read_text()
    assert "Earlier words" not in text
    assert "| known |" in text
    assert "no verdict" in text


def told(found: Measured) -> bytes:
    assert not math.isinf(found.wire_median)
    return msgspec.json.encode(found)
