"""The benchmarks of traces, small enough to be quick; what they find has to hold."""

import json
import os
from pathlib import Path

import anyio
import pytest

from benchmarks import trace_driver, trace_replay
from benchmarks.trace_replay import Direction, Row, measure, recorded, synthetic
from fairbed.profiles.series import Series

SECONDS = 12


def traces() -> dict[str, dict[Direction, Series]]:
    """Return a synthetic trace and, where they can be read, recorded ones."""
    found = {"synthetic": synthetic(hole_every_s=6.0)}
    root = os.environ.get("FAIRBED_DATA", "")
    if root and (Path(root) / "traces" / "mahimahi_raw.tar.xz").is_file():
        for name in ("ATT-LTE-driving.down", "TMobile-UMTS-driving.down"):
            found[name] = recorded(f"data:mahimahi/{name}")
    return found


@pytest.mark.alone
def test_links_carry_their_traces() -> None:
    """All links at the same time, each with a proxy of its own: most of the time they wait."""
    rows: dict[str, list[Row]] = {}

    async def follow(name: str, rates: dict[Direction, Series]) -> None:
        rows[name] = await measure(rates, SECONDS)

    async def follow_all() -> None:
        async with anyio.create_task_group() as tasks:
            for name, rates in traces().items():
                tasks.start_soon(follow, name, rates)

    anyio.run(follow_all)
    measured = [(name, row) for name, of in rows.items() for row in of if row.achieved is not None]
    if not measured:
        pytest.skip("this machine was never free")
    for name, row in measured:  # while it was free
        assert row.ok, (name, row)


def test_the_synthetic_trace_is_the_same_every_time_and_has_holes() -> None:
    first, second = synthetic(), synthetic()
    assert first == second
    assert first["down"] != first["up"]
    assert first["down"].at(18.0) == 0.0
    assert first["down"].mean > first["up"].mean > 1e6


def test_a_second_in_which_somebody_was_contended_does_not_count() -> None:
    late = [(1.0, 0.0), (2.5, 0.3), (3.0, 0.0)]
    assert trace_replay._free(late, 6).tolist() == [True, False, False, False, True, True]


def test_a_hole_is_as_long_as_its_trace_says() -> None:
    rate = Series((0.0, 2.0, 3.5), (1e6, 0.0, 1e6), 10.0)
    assert trace_replay._holes(rate, 10) == [(2.0, 3.5)]
    holes = trace_replay._holes(synthetic()["down"], 600)
    assert len(holes) == 30 - 1  # the last one ends with the time
    assert all(end - start == pytest.approx(3.0) for start, end in holes)


def test_trace_replay_prints_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace_replay.main(["--seconds", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["quantity"] for row in rows} >= {"volume down, MB", "volume up, MB"}
    assert all(row["backend"] == "process" for row in rows)


@pytest.mark.parametrize("backend", ["none", "process"])
def test_trace_driver_tells_what_following_costs(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--devices", "10", "--seconds", "1", "--backend", backend, "--json"]
    assert trace_driver.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["devices"] == 10
    assert 0.0 < result["changes_per_s"] <= 110.0
    assert 0.0 < result["driver_cores"] < 1.0
    assert (result["helper_cores"] > 0.0) == (backend != "none")


@pytest.mark.alone  # changes that are late are fewer
def test_trace_driver_takes_traces_with_shorter_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace_driver.main(["--devices", "5", "--seconds", "1", "--step", "0.02", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 40.0 < result["changes_per_s"] <= 55.0  # the means of ten ticks a second
    with pytest.raises(SystemExit):
        trace_driver.main(["--step", "0"])
    assert "--step: must be from 0.001 to 60, got 0" in capsys.readouterr().err
