"""Device-seconds: sums by hand, of arrived, abandoned and queried devices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.report.device_time import device_seconds
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.testbed.replay.run import replay_experiment
from tests.coordinator.store.fake_run import fake_run


def replayed(folder: Path, **sections: dict[str, Any]) -> RunReader:
    """Replay four devices without cold starts and noise: 1, 2, 3 and 50 s of training."""
    fleet = [
        {
            "model": "linear",
            "theta": [seconds, 0.0, 0.0],
            "mu": [1.0, 1.0],
            "noise": 0.0,
            "availability": 1.0,
            "name": f"of-{seconds:g}",
        }
        for seconds in (1.0, 2.0, 3.0, 50.0)
    ]
    raw: dict[str, Any] = {
        "name": "four",
        "rounds": 3,
        "selection": {"policy": "uniform", "per_round": 4},
        "round": {"deadline_s": 10.0},
        "fleet": fleet,
    }
    for key, section in sections.items():
        raw[key] = {**raw.get(key, {}), **section}
    replay_experiment(parse_experiment(raw, "test"), folder, "run", lambda replayed: None)
    reader = RunReader(folder)
    assert reader.device_s(0, 3) == pytest.approx(device_seconds(reader)[-1])  # the control room's
    return reader


def test_a_late_device_was_busy_until_the_deadline(tmp_path: Path) -> None:
    with replayed(tmp_path / "run") as reader:
        assert device_seconds(reader).tolist() == pytest.approx([16.0, 32.0, 48.0])
        exchanges = {x.device: x for x in reader.exchanges()}
        assert summarise_run(reader).device_s == pytest.approx(48.0)
    done, late = exchanges["of-3-1"], exchanges["of-50-1"]
    assert (done.outcome, late.outcome) == ("done", "late")
    assert (done.busy_s, late.busy_s) == pytest.approx((3.0, 10.0))


def test_a_cancelled_device_was_busy_until_enough_others_had_arrived(tmp_path: Path) -> None:
    fastest = {"per_round": 2}
    with replayed(tmp_path / "run", selection=fastest, round={"over_select": 2}) as reader:
        # 1 + 2 s, and twice 2 s until the second update
        assert device_seconds(reader).tolist() == pytest.approx([7.0, 14.0, 21.0])


def test_an_exchange_that_outlives_its_round_counts_when_it_ends(tmp_path: Path) -> None:
    late = {"late": "merge", "deadline_s": 2.5}
    with replayed(tmp_path / "run", selection={"per_round": 3}, round=late) as reader:
        total = device_seconds(reader)
        ended = [x.busy_s for x in reader.exchanges() if x.busy_s is not None]
        rounds = reader.rounds()
        arrived = [
            sum(
                x.busy_s
                for x in reader.exchanges()
                if x.busy_s is not None and x.dispatched_at_s + x.busy_s <= row.closed_at_s + 1e-6
            )
            for row in rounds
        ]
    assert total.tolist() == pytest.approx(arrived)
    assert total[-1] == pytest.approx(sum(ended))


def test_the_wait_for_a_grant_is_not_the_devices(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "run")) as reader:
        exchanges, total = reader.exchanges(), device_seconds(reader)
    assert total[-1] == pytest.approx(sum(x.busy_s or 0.0 for x in exchanges))
    assert all(x.tau_s is None or x.busy_s == x.tau_s for x in exchanges)
    assert np.all(np.diff(total) >= 0.0)


def test_a_run_without_rounds_has_none(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "run", rounds=0)) as reader:
        assert device_seconds(reader).size == 0
        assert summarise_run(reader).device_s == 0.0
