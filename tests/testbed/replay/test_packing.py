"""The cost of unpacking models and packing updates, in a replay and from a run."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from experiments.replay_fidelity.recorded import record_fleet, replayed
from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import PHASES, Estimator, Measured
from fairbed.coordinator.policy.config import ExchangeConfig
from fairbed.coordinator.report.estimators import compare_estimators
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.emulation.work import StepCost, TaskCosts, WorkCosts
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.recording.analysis.from_run import Packing, packing_of
from fairbed.testbed.replay.engine.engine import ReplayEngine, column
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.run_folder import WORK
from tests.testbed.recording.rows import TRAINING, World
from tests.testbed.replay.fleets import COSTS, experiment, replay_rounds
from tests.testbed.replay.test_profile_replay import DEVICE, TRAIN_S

PACKING: dict[str, Any] = {"decode_s": 8e-3, "encode_s": 20e-3}
DECODE_S, ENCODE_S = 0.02, 0.05
"""The same on a core of speed 0.4."""

CODED = {"up": "int8", "down": "int8"}
PACKED_BITS = 8 * (12 + 650 + 4)
"""Size of 650 parameters: a header, a byte each, and one scale per block of up to 1024."""

LATE = {"late": "merge", "deadline_s": 60.0}


@pytest.fixture
def device(tmp_path: Path) -> str:
    """Return the path of a profile."""
    path = tmp_path / "plain.toml"
    path.write_text(DEVICE)
    return str(path)


def packing(*fleet: dict[str, Any], **sections: Any) -> Experiment:
    """Return an experiment whose devices need time to pack and to unpack."""
    costs = {"replay": {"task_costs": COSTS | PACKING}, "exchange": CODED, "rounds": 4}
    return experiment(*fleet, **(costs | sections))


def test_decoding_and_encoding_are_phases_of_an_exchange(device: str) -> None:
    _, rounds = replay_rounds(packing({"profile": device, "count": 2}), 2)
    for one in rounds:
        np.testing.assert_allclose(column(one.exchanges, "decode_s"), DECODE_S)
        np.testing.assert_allclose(column(one.exchanges, "encode_s"), ENCODE_S)
    # Signal, the model, its unpacking, training, packing, the update.
    wire_s = 0.06 * 3 + PACKED_BITS / 400e3 + PACKED_BITS / 100e3
    tau_s = wire_s + 0.02 + TRAIN_S + 0.05
    np.testing.assert_allclose(rounds[1].tau_s, tau_s)
    np.testing.assert_allclose(rounds[1].snapshot.true_tau_s, tau_s, err_msg="as was expected")


def test_packing_without_cost_changes_nothing(device: str) -> None:
    """To the bit: older replays have the same results."""
    fleet = {"profile": device, "count": 3, "link": "lte-driving"}
    of = packing(fleet, replay={"task_costs": COSTS, "noise": 0.2})
    free = packing(fleet, replay={"task_costs": COSTS | PACKING, "noise": 0.2})
    for one, other in zip(replay_rounds(of)[1], replay_rounds(free)[1], strict=True):
        assert not column(one.exchanges, "decode_s").any()
        assert not column(one.exchanges, "encode_s").any()
        np.testing.assert_array_equal(
            column(one.exchanges, "was_cold"), column(other.exchanges, "was_cold")
        )
        both = column(one.exchanges, "load_s"), column(other.exchanges, "load_s")
        np.testing.assert_allclose(*both, rtol=1e-12, err_msg="the same noise as with packing")


def test_only_packed_models_are_unpacked(device: str) -> None:
    of = packing({"profile": device, "count": 2}, exchange={"up": "float32", "down": "delta"})
    _, rounds = replay_rounds(of, 3)
    assert {x.codec_down for x in rounds[0].exchanges} == {"float32"}, (
        "there is nothing to be changes of"
    )
    assert column(rounds[0].exchanges, "decode_s").tolist() == [0.0, 0.0]
    for one in rounds[1:]:
        assert {x.codec_down for x in one.exchanges} == {"delta"}
        np.testing.assert_allclose(column(one.exchanges, "decode_s"), DECODE_S)
        np.testing.assert_allclose(one.snapshot.true_tau_s, one.tau_s)
    whole = packing({"profile": device, "count": 2}, exchange={"up": "int8", "down": "float32"})
    (one,) = replay_rounds(whole, 1)[1]
    assert column(one.exchanges, "decode_s").tolist() == [0.0, 0.0]
    np.testing.assert_allclose(column(one.exchanges, "encode_s"), ENCODE_S)


def test_a_slow_device_packs_slowly(tmp_path: Path) -> None:
    """Half of its only core is busy, and its clock falls to a half: 4 times as long."""
    hot = """
[thermal]
sustained_clock_ratio = { value = 0.5, tag = "literature", source = "made up" }
onset_s = { value = 2.0, tag = "literature", source = "made up" }
time_constant_s = { value = 40.0, tag = "literature", source = "made up" }
"""
    path = tmp_path / "hot.toml"
    path.write_text(DEVICE.replace("cores = { value = 4", "cores = { value = 1") + hot)
    of = packing({"profile": str(path), "count": 2}, rounds=30)
    _, rounds = replay_rounds(of, 30)
    first, last = rounds[0].exchanges, rounds[-1].exchanges
    np.testing.assert_allclose(column(first, "decode_s"), 2.0 * DECODE_S)
    np.testing.assert_allclose(column(last, "decode_s"), 4.0 * DECODE_S, rtol=0.05)
    np.testing.assert_allclose(column(last, "encode_s"), 4.0 * ENCODE_S, rtol=0.05)


@pytest.mark.parametrize("settings", [{}, LATE], ids=["rounds", "late"])
def test_rows_and_summary_equal_those_of_a_live_run(
    device: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    of = packing({"profile": device, "count": 4}, round=settings)
    replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        rows, summary = reader.exchanges(), summarise_run(reader)
        assert compare_estimators(reader)["phases"].count > 0
    assert len(rows) == 8
    for row in rows:
        assert row.decode_s == pytest.approx(DECODE_S)
        assert row.encode_s == pytest.approx(ENCODE_S)
        before = row.signal_s, row.download_s, row.decode_s, row.load_s
        parts = *before, row.evaluate_s, row.train_s, row.encode_s, row.upload_s
        assert sum(part or 0.0 for part in parts) == pytest.approx(row.tau_s)
        assert row.unaccounted_s == pytest.approx(0.0, abs=1e-9)
    assert summary.exchange.decode_median_s == pytest.approx(DECODE_S)
    assert summary.exchange.encode_median_s == pytest.approx(ENCODE_S)


class Listening:
    """An estimator that records its observations and passes them to another one."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self.seen: list[Measured] = []
        self.predict = estimator.predict

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Record the observation and pass it on."""
        self.seen.append(measured)
        self._estimator.observe(rows, context, measured)


@pytest.mark.parametrize("settings", [{}, LATE], ids=["rounds", "late"])
def test_estimators_count_packing_as_computing(device: str, settings: dict[str, Any]) -> None:
    of = packing({"profile": device, "count": 2}, round=settings)
    setup = setup_of(of)
    listening = Listening(setup.decisions.estimator)
    setup.decisions.estimator = listening  # type: ignore[assignment]  # its state is not used
    rounds = list(ReplayEngine(setup.decisions, setup.world).replay(2))
    warm = listening.seen[-1]
    np.testing.assert_allclose(np.asarray(warm.tau_s), rounds[-1].tau_s)
    compute_s = warm.phases_s[:, PHASES.index("compute")]
    np.testing.assert_allclose(compute_s, 0.02 + TRAIN_S + 0.05)
    np.testing.assert_allclose(warm.phases_s.sum(axis=1), rounds[-1].tau_s)
    np.testing.assert_allclose(warm.phases_s[:, PHASES.index("rest")], 0.06)


def test_a_loss_query_includes_the_unpacking(device: str, tmp_path: Path) -> None:
    queries = {"policy": "power-of-choice", "variant": "pow-d", "per_round": 2, "candidates": 4}
    trains = {"examples": None, "task_costs": COSTS | PACKING}
    of = packing({"profile": device, "count": 6}, selection=queries, replay=trains)
    replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        queried, exchanges = reader.loss_queries(), reader.exchanges()
    assert len(queried) == 16
    for ask in queried:
        assert ask.decode_s == pytest.approx(DECODE_S)
        laps = ask.download_s, ask.decode_s, ask.load_s, ask.evaluate_s
        assert ask.duration_s == pytest.approx(0.06 + sum(lap or 0.0 for lap in laps))
    for x in exchanges:
        assert (x.download_s, x.decode_s) == (0.0, 0.0), "it has the model since the query"
        assert x.encode_s == pytest.approx(ENCODE_S)


def measured(index: int, **changes: Any) -> ExchangeRow:
    """Return an exchange of a device of 0.4 cores, packed in both directions."""
    coded: dict[str, Any] = {"codec_down": "int8", "codec_up": "int8"}
    laps = {"decode_s": DECODE_S, "encode_s": ENCODE_S}
    return replace(World().exchange(index), **(coded | laps | changes))


WANTED = ExchangeConfig(up="int8", down="int8")


def test_the_phases_of_a_run_give_the_work_of_packing() -> None:
    """0.02 and 0.05 s at 0.4 cores, and the median of three."""
    odd = measured(1, encode_s=9.0), measured(2, decode_s=0.0)
    found = packing_of([measured(0), *odd], [], TRAINING, WANTED)
    assert found.decode_s == pytest.approx(8e-3)
    assert found.encode_s == pytest.approx(20e-3)


def test_a_slow_exchange_gives_the_same_work() -> None:
    train_s = 3.0 * (World().exchange(0).train_s or 0.0)
    slowed = measured(0, train_s=train_s, decode_s=3.0 * DECODE_S, encode_s=3.0 * ENCODE_S)
    found = packing_of([slowed], [], TRAINING, WANTED)
    assert found.decode_s == pytest.approx(8e-3)
    assert found.encode_s == pytest.approx(20e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "late"},
        {"is_valid": False},
        {"is_contended": True},
        {"codec_down": "float32", "codec_up": "float16"},
        {"decode_s": None, "encode_s": None},
        {"train_s": None},
        {"train_s": 0.0},
        {"steps": 13},
    ],
    ids=str,
)
def test_an_exchange_without_a_cost_does_not_count(changes: dict[str, Any]) -> None:
    assert packing_of([measured(0, **changes)], [], TRAINING, WANTED) == Packing(0.0, 0.0)


def test_whole_models_have_no_work_of_unpacking() -> None:
    whole = measured(0, codec_down="float32", codec_up="float32")
    found = packing_of([whole], [], TRAINING, ExchangeConfig())
    assert found.decode_s == 0.0
    assert found.encode_s == pytest.approx(20e-3)


FLEET = {"profile": "raspberry-pi-4b", "count": 3}, {"profile": "raspberry-pi-zero-2w", "count": 3}


def live(folder: Path) -> Experiment:
    """Make a run like a live one: costs in its folder, packing times in its rows."""
    of = packing(*FLEET, rounds=30)
    replay_experiment(of, folder, "run", lambda replayed: None)
    bare = msgspec.structs.replace(of, replay=msgspec.structs.replace(of.replay, task_costs=None))
    (folder / "experiment.toml").write_text(bare.resolved_toml())
    steps = StepCost(fixed_s=COSTS["step_s"], per_example_s=COSTS["example_s"])
    (folder / WORK).write_bytes(msgspec.json.encode(WorkCosts(train=steps, evaluate=steps)))
    return msgspec.structs.replace(
        bare, replay=msgspec.structs.replace(bare.replay, costs_from=str(folder))
    )


def median_s(folder: Path, column: str) -> dict[str, float]:
    """Return the median of a column of cold exchanges, by device."""
    with RunReader(folder) as reader:
        rows = [x for x in reader.exchanges() if x.was_cold]
    found = {x.device: [getattr(y, column) for y in rows if y.device == x.device] for x in rows}
    return {device: float(np.median(values)) for device, values in sorted(found.items())}


def test_a_recorded_run_is_predicted_with_its_packing(tmp_path: Path) -> None:
    of = live(tmp_path / "live")
    planned = plan_fleet(of, os.environ)
    files = record_fleet(tmp_path / "live", planned, tmp_path / "profiles")
    again = replayed(of, planned, files)
    replay_experiment(again, tmp_path / "again", "again", lambda replayed: None)
    seen, costs = (median_s(tmp_path / name, "tau_s") for name in ("live", "again"))
    assert len(seen) == 6
    packs_s = median_s(tmp_path / "live", "encode_s")
    for device, tau_s in seen.items():
        assert packs_s[device] > 0.01 * tau_s, "packing matters"
        assert costs[device] == pytest.approx(tau_s, rel=0.005)
    again_s = median_s(tmp_path / "again", "encode_s")
    assert again_s == pytest.approx(packs_s, rel=0.03)


def costs_of(of: Experiment) -> TaskCosts:
    """Return the costs of a replay."""
    work = setup_of(of).experiment.replay.task_costs
    assert work is not None
    return work


def test_costs_of_a_run_are_those_of_its_codecs(tmp_path: Path) -> None:
    of = live(tmp_path / "live")
    same = costs_of(of)
    assert same.decode_s == pytest.approx(8e-3)
    assert same.encode_s == pytest.approx(20e-3)
    other = costs_of(msgspec.structs.replace(of, exchange=ExchangeConfig(up="int8", down="delta")))
    assert (other.decode_s, other.encode_s) == (0.0, same.encode_s)
    (tmp_path / "live" / "run.db").unlink()
    bare = costs_of(of)
    assert (bare.decode_s, bare.encode_s) == (0.0, 0.0), "not measured"
    assert bare.step_s == same.step_s == COSTS["step_s"]
    (tmp_path / "live" / "run.db").write_text("no store")
    with pytest.raises(ExperimentError, match=r'^replay.costs_from: must be "shipped", .*run.db'):
        costs_of(of)


def test_costs_of_a_replay_are_those_of_its_codecs(tmp_path: Path) -> None:
    of = packing(*FLEET)
    replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    costs = msgspec.structs.replace(of.replay, costs_from=str(tmp_path / "run"), task_costs=None)
    again = msgspec.structs.replace(of, replay=costs)
    assert costs_of(again) == TaskCosts(**COSTS, **PACKING)
    other = msgspec.structs.replace(again, exchange=ExchangeConfig(up="int8"))
    assert costs_of(other) == TaskCosts(**COSTS, encode_s=PACKING["encode_s"])


def test_older_files_are_read_without_a_change(tmp_path: Path) -> None:
    of = experiment(*FLEET)
    text = of.resolved_toml()
    assert "[replay.task_costs]" in text
    assert "code_s" not in text
    before = tmp_path / "experiment.toml"
    before.write_text(text)
    assert load_experiment(before).hash() == of.hash()
    assert costs_of(load_experiment(before)) == TaskCosts(**COSTS)
    assert msgspec.json.decode(msgspec.json.encode(COSTS), type=TaskCosts).encode_s == 0.0
