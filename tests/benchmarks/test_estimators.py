"""The benchmark of estimators: what it asks for, and one small fleet that is really run."""

import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks import estimators
from benchmarks.estimators import MIN_EXCHANGES, Check, Measured
from fairbed.coordinator.algorithms.estimation.prequential import Errors

ERRORS = Errors(
    count=MIN_EXCHANGES,
    mape=0.04,
    median_ape=0.2,
    p95_ape=0.5,
    bias=0.0,
    coverage=None,
    median_ape_from={},
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


@pytest.mark.parametrize("asked", [["--replay", "0"], ["--set", "rounds=no", "--replay", "1"]])
def test_what_cannot_be_replayed_is_refused(asked: list[str]) -> None:
    with pytest.raises(SystemExit):
        estimators.main(asked)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_small_fleet_is_run_and_checked(tmp_path: Path) -> None:
    """On a machine that tests keep busy nothing is said of how good the estimators are."""
    found = estimators.measure("traces", tmp_path / "kept", "process", ["rounds=4"])
    assert found.exchanges == 4 * 8
    assert 0 <= found.valid <= found.exchanges
    assert list(found.errors) == [
        *("ridge", "phases", "last value", "device mean", "global mean"),
        "known",
    ]
    assert len({errors.count for errors in found.errors.values()}) == 1
    assert verdicts(found.checks)[1:] == [None] * 3, "too few exchanges to judge by"
    if found.valid:
        assert 0.0 < found.wire_median < 1.0
        assert 0.1 < found.tau_median_s < 60.0
    again = estimators.measure("traces", tmp_path / "kept", "process", ["rounds=4"])
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
