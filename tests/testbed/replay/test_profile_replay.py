"""Replays of fleets of profiles: times of the profiles, in the phases of a live run."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed import profiles
from fairbed.coordinator.report.estimators import compare_estimators
from fairbed.coordinator.report.summary import summarise_run, summary_table
from fairbed.coordinator.state.registry import OFF_GRACE_S
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.view import RunView
from fairbed.testbed.cli.main import main
from fairbed.testbed.compare.measures import measure
from fairbed.testbed.emulation.work import StepWork, TaskCosts, WorkCosts
from fairbed.testbed.experiment.file import ExperimentError, load_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.replay.engine.engine import column
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.replay.world.columns import columns_of, link_and_speed_schedules
from fairbed.testbed.replay.world.phases import CohortRequest, PhaseModel, cohort_noise
from fairbed.testbed.replay.world.tcp_links import TcpLinks
from fairbed.testbed.replay.world.work import Sizes, Work
from tests.testbed.paced_machine import Machine
from tests.testbed.replay.fleets import COSTS, EXAMPLES, QUICKSTART, experiment, replay_rounds

SPEED, STORAGE = 0.4, 20e6
DEVICE = """
title = "A device with simple numbers"
class = "board"
licence = "made up"
cores = { value = 4, tag = "literature", source = "made up" }
core_speed = { value = 0.4, tag = "literature", source = "made up" }
memory_bytes = { value = 1_000_000_000, tag = "literature", source = "made up" }
storage_read_bytes_per_s = { value = 20e6, tag = "literature", source = "made up" }
background_load = { value = 0.5, tag = "literature", source = "made up" }
engine_threads = { value = 1, tag = "literature", source = "made up" }
[link]
down_bps = { value = 400e3, tag = "literature", source = "made up" }
up_bps = { value = 100e3, tag = "literature", source = "made up" }
delay_s = { value = 0.03, tag = "literature", source = "made up" }
"""
MODEL_BITS = 8 * 4 * 650
"""Softmax regression of 64 pixels and 10 classes."""
TRAIN_S = 2 * (5 * 22e-3 + 12e-3) / SPEED
"""Two epochs of five batches of 20 examples and one of 10."""
LOAD_S = 110 * (64 * 4 + 8) / STORAGE + 0.5 / SPEED


@pytest.fixture
def device(tmp_path: Path) -> str:
    """Return the path of a profile."""
    path = tmp_path / "plain.toml"
    path.write_text(DEVICE)
    return str(path)


def test_the_phases_of_an_exchange_follow_from_the_profile(device: str) -> None:
    _, rounds = replay_rounds(experiment({"profile": device, "count": 2}), 2)
    cold, warm = (one.exchanges for one in rounds)
    for exchanges in (cold, warm):
        np.testing.assert_allclose(column(exchanges, "signal_s"), 0.06)
        np.testing.assert_allclose(column(exchanges, "download_s"), 0.06 + MODEL_BITS / 400e3)
        np.testing.assert_allclose(column(exchanges, "train_s"), TRAIN_S)
        np.testing.assert_allclose(column(exchanges, "upload_s"), 0.06 + MODEL_BITS / 100e3)
        assert [x.steps for x in exchanges] == [12, 12]
    np.testing.assert_allclose(column(cold, "load_s"), LOAD_S)
    assert all(x.was_cold for x in cold)
    assert not any(x.was_cold for x in warm)
    assert not column(warm, "load_s").any()
    phases_s = 0.06 * 3 + MODEL_BITS / 400e3 + MODEL_BITS / 100e3 + TRAIN_S
    np.testing.assert_allclose(rounds[1].tau_s, phases_s)
    np.testing.assert_allclose(rounds[1].snapshot.true_tau_s, phases_s, err_msg="as was expected")
    assert rounds[1].duration_s == rounds[1].tau_s.max()


def test_an_evaluation_lasts_as_long_as_live() -> None:
    work = StepWork(depthwise_flops=2e6, conv_flops=1e6, moved_bytes=1e5)
    costs = TaskCosts(**COSTS, depthwise_flops=6e6, conv_flops=3e6, evaluation_work=work)
    fleet = experiment({"profile": "raspberry-pi-4b", "count": 2}, aggregation={"rule": "q-fedavg"})
    fleet = msgspec.structs.replace(
        fleet,
        model=msgspec.structs.replace(fleet.model, like="mobilenet-v2"),
        replay=msgspec.structs.replace(fleet.replay, task_costs=costs),
    )
    _, rounds = replay_rounds(fleet, 1)
    exchange, _ = rounds[0].exchanges
    planned, _ = (device.at_task(fleet, costs) for device in plan_fleet(fleet, {}))
    assert planned.spec.device is not None
    assert planned.spec.device.evaluation_speed > 5.0, "that of depthwise convolutions"
    machine = Machine()
    live = WorkCosts(train=costs.train, evaluate=costs.evaluate)
    with machine.pace(planned.spec.device, costs=live).section("evaluate") as meter:
        meter.step(exchange.n_k)
    assert machine.now_s - 1000.0 == pytest.approx(exchange.evaluate_s, rel=1e-9)


def test_a_published_step_of_the_class_of_model_is_the_training_time(tmp_path: Path) -> None:
    known = """
[[train_s]]
model = "resnet-18"
batch_size = 20
threads = 4
step_s = { value = 3.0, tag = "literature", source = "made up" }
"""
    path = tmp_path / "known.toml"
    path.write_text(DEVICE + known)
    fleet = experiment({"profile": str(path), "count": 2})
    model = msgspec.structs.replace(fleet.model, like="resnet-18")
    _, rounds = replay_rounds(msgspec.structs.replace(fleet, model=model), 1)
    # A full batch takes 3.0 s instead of 22 ms / 0.4, and the rest of the epoch as much more.
    np.testing.assert_allclose(
        column(rounds[0].exchanges, "train_s"), TRAIN_S * 3.0 / (22e-3 / SPEED)
    )
    (_, other) = replay_rounds(fleet, 1)
    np.testing.assert_allclose(column(other[0].exchanges, "train_s"), TRAIN_S)


POWERED = (
    DEVICE
    + """
[energy]
idle_w = { value = 2.0, tag = "literature", source = "made up" }
train_w = { value = 6.0, tag = "literature", source = "made up" }
"""
)
COMPUTE_W = 2.0 + (6.0 - 2.0) / 4
"""One of four cores is busy."""


@pytest.fixture
def powered(tmp_path: Path) -> str:
    """Return the path of a profile with the power of the device."""
    path = tmp_path / "powered.toml"
    path.write_text(POWERED)
    return str(path)


def test_the_energy_of_an_exchange_is_power_times_time_in_each_phase(
    powered: str, tmp_path: Path
) -> None:
    fleet = experiment({"profile": powered, "count": 3})
    replay_experiment(fleet, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        exchanges, energy = reader.exchanges(), summarise_run(reader).energy
    first = exchanges[0]
    assert first.train_j == pytest.approx(COMPUTE_W * TRAIN_S)
    assert first.load_j == pytest.approx(COMPUTE_W * LOAD_S)
    assert first.download_s is not None
    assert first.upload_s is not None
    assert first.download_j == pytest.approx(2.0 * first.download_s)
    assert first.upload_j == pytest.approx(2.0 * first.upload_s)
    assert first.energy_j == pytest.approx(
        COMPUTE_W * (TRAIN_S + LOAD_S) + 2.0 * (first.download_s + first.upload_s)
    )
    assert energy is not None
    assert (energy.exchanges, energy.is_complete, energy.wasted_j) == (60, True, 0.0)
    assert energy.total_j == pytest.approx(sum(x.energy_j or 0.0 for x in exchanges))
    assert sum(energy.phases_j.values()) == pytest.approx(energy.total_j)
    assert energy.phases_j["train"] == pytest.approx(60 * COMPUTE_W * TRAIN_S)
    assert measure(tmp_path / "run").values["energy_j"] == energy.total_j


def test_an_exchange_that_arrives_has_the_interval_of_its_energy(tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text(POWERED.replace("value = 6.0,", "value = 6.0, low = 4.0, high = 10.0,"))
    fleet = experiment({"profile": str(path), "count": 2}, rounds=2)
    replay_experiment(fleet, tmp_path / "run", "run", lambda replayed: None)
    late = msgspec.structs.replace(fleet.round, deadline_s=LOAD_S + TRAIN_S + 0.3)
    fleet = msgspec.structs.replace(fleet, round=late)
    replay_experiment(fleet, tmp_path / "late", "late", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader, RunReader(tmp_path / "late") as other:
        exchanges, measures = reader.exchanges(), summarise_run(reader).measures
        assert {(x.energy_low_j, x.energy_high_j) for x in other.exchanges()} == {(None, None)}
    for x in exchanges:
        assert x.energy_j is not None
        assert x.download_j is not None
        assert x.upload_j is not None
        transfers_j = x.download_j + x.upload_j
        computed_s = (x.energy_j - transfers_j) / COMPUTE_W
        assert x.energy_low_j == pytest.approx(transfers_j + computed_s * 2.5)
        assert x.energy_high_j == pytest.approx(transfers_j + computed_s * 4.0)
    assert isinstance(measures, dict)
    total_j = sum(x.energy_low_j or 0.0 for x in exchanges)
    assert measures["energy_low_j_sum"].value == pytest.approx(total_j)


def test_the_energy_of_a_late_exchange_is_wasted_and_lacks_its_upload(
    powered: str, tmp_path: Path
) -> None:
    """The deadline is between the offer and the arrival; download and upload take 0.6 s."""
    fleet = experiment(
        {"profile": powered, "count": 2}, round={"deadline_s": LOAD_S + TRAIN_S + 0.3}, rounds=2
    )
    replay_experiment(fleet, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        exchanges, summary = reader.exchanges(), summarise_run(reader)
    late = [x for x in exchanges if x.outcome == "late"]
    assert late
    for x in late:
        assert x.upload_j is None
        assert x.download_s is not None
        assert x.load_s is not None
        worked_j = COMPUTE_W * (TRAIN_S + x.load_s) + 2.0 * x.download_s
        assert x.energy_j == pytest.approx(worked_j)
    assert summary.energy is not None
    assert summary.energy.wasted_j == pytest.approx(sum(x.energy_j or 0.0 for x in late))


def test_the_energy_of_devices_without_power_is_unknown(
    powered: str, device: str, tmp_path: Path
) -> None:
    mixed = experiment({"profile": device, "count": 1}, {"profile": powered, "count": 1}, rounds=2)
    replay_experiment(mixed, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        exchanges, summary = reader.exchanges(), summarise_run(reader)
    known = {x.device: x.energy_j is not None for x in exchanges}
    assert known == {"plain-1": False, "powered-1": True}
    assert summary.energy is not None
    assert (summary.energy.exchanges, summary.energy.is_complete) == (2, False)
    assert " J in 2 of 4 exchanges, whose power is known; " in summary_table(summary)
    assert measure(tmp_path / "run").values["energy_j"] is None


def test_contexts_equal_the_measurements_of_an_agent(device: str) -> None:
    _, rounds = replay_rounds(experiment({"profile": device, "count": 3}), 20)
    for one in rounds:
        snapshot = one.snapshot
        np.testing.assert_allclose(snapshot.inverse_mu, 1.0)
        np.testing.assert_allclose(snapshot.down_bps, 400e3, rtol=1e-6)
        np.testing.assert_allclose(snapshot.up_bps, 100e3, rtol=1e-6)
        assert snapshot.context_age_s is not None
        assert snapshot.context_age_s.max() < 1.0
        assert snapshot.link_age_s is not None
        assert snapshot.link_age_s.max() <= 60.0
        assert snapshot.is_available.all()


def test_a_rule_that_needs_the_loss_evaluates_it_before_training(device: str) -> None:
    queries = experiment({"profile": device, "count": 2}, aggregation={"rule": "q-fedavg"})
    _, rounds = replay_rounds(queries, 1)
    np.testing.assert_allclose(
        column(rounds[0].exchanges, "evaluate_s"), (1e-3 + 110 * 5e-4) / SPEED
    )


def test_codecs_reduce_the_bytes(device: str) -> None:
    coded = {"up": "int8", "down": "delta"}
    _, rounds = replay_rounds(experiment({"profile": device, "count": 2}, exchange=coded), 3)
    first, second = rounds[0].exchanges, rounds[1].exchanges
    assert {x.codec_down for x in first} == {"float32"}, "there is no previous version"
    assert {x.codec_down for x in second} == {"delta"}
    assert {x.bytes_down for x in first} == {MODEL_BITS / 8}
    assert all(x.bytes_down < 0.4 * MODEL_BITS / 8 for x in second)
    assert {x.codec_up for x in second} == {"int8"}
    assert all(x.bytes_up < 0.4 * MODEL_BITS / 8 for x in second)


def test_integrating_constant_conditions_gives_the_closed_form() -> None:
    """Both computations must agree."""
    devices = plan_fleet(load_experiment(QUICKSTART, ["emulation.host_core_speed=1.0"]), {})
    means, varying = columns_of(devices)
    assert not varying.links
    both = [link_and_speed_schedules(device) for device in devices]
    integrating = replace(
        varying,
        links={row: link for row, (link, _) in enumerate(both)},
        speeds={row: speed for row, (_, speed) in enumerate(both)},
    )
    n = len(devices)
    config = load_experiment(QUICKSTART).coordinator()
    layout = load_task("cnn", (1, 8, 8), 10).spec.layout
    work = Work.of(
        config,
        TaskCosts(**COSTS, decode_s=8e-3, encode_s=20e-3),
        np.arange(50, 50 + n),
        np.full(n, 9_999),
        needs_loss=True,
    )
    noise_factors, delay_noise = cohort_noise(7, 3, np.arange(n), noise=0.3)
    request = CohortRequest(
        now=100.0,
        rows=np.arange(n),
        is_cold=np.arange(n) % 2 == 0,
        is_packed=np.arange(n) % 4 < 2,
        has_model=np.arange(n) % 3 == 0,
        up_bps=means.up_bps,
        noise_factors=noise_factors,
        delay_noise=delay_noise,
        tcp_seeds=np.arange(n),
    )
    sizes = Sizes.of(config, layout)
    models = [
        PhaseModel(means, one, sizes, work, 1e3, TcpLinks(one)) for one in (varying, integrating)
    ]
    closed, integrated = (model.exchanges(request, {}) for model in models)
    for phase in ("signal", "download", "decode", "load", "evaluate", "train", "encode", "upload"):
        name = f"{phase}_s"
        assert getattr(closed, name).any()
        np.testing.assert_allclose(getattr(integrated, name), getattr(closed, name), rtol=1e-9)
    assert models[1].upload_s(request, {}, 99.0) == pytest.approx(closed.upload_s[0])


def test_an_outage_delays_an_exchange_and_prevents_selection(device: str) -> None:
    outage = {"kind": "coverage", "start_s": 10.0, "duration_s": 20.0}
    fleet = [{"profile": device, "count": 1, "name": "here"}]
    fleet.append({"profile": device, "count": 1, "name": "away", "outage": [outage]})
    _, rounds = replay_rounds(experiment(*fleet, round={"deadline_s": 3.0}), 40)
    for one in rounds:
        start_s = one.started_s
        if 14.5 < start_s < 29.0:
            assert one.snapshot.is_available.tolist() == [True, False]
        if start_s < 10.0 or start_s > 31.0:
            assert one.snapshot.is_available.all()
        if start_s < 10.0 < start_s + TRAIN_S:
            assert one.outcome == ("done", "late"), "it waits for the end of the outage"
            assert start_s + one.tau_s[1] > 30.0
    assert any(14.5 < one.started_s < 29.0 for one in rounds)


@pytest.mark.full
def test_a_large_fleet_has_summary_rows_instead_of_a_row_per_device(
    device: str, tmp_path: Path
) -> None:
    of = experiment(
        {"profile": device, "count": 1_200},
        selection={"policy": "rbcs-f", "per_round": 30, "beta": 0.02},
        rounds=50,
    )
    replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        summary, tallies = summarise_run(reader), reader.selection_counts()
        kept = sum(len(reader.selections(t)) for t in range(1, 50))
        last = reader.selections(50)
    assert (kept, len(last), len(tallies)) == (49 * 30, 1_200, 1_200)
    assert {tally.rounds for tally in tallies} == {50}
    assert sum(tally.selected for tally in tallies) == 50 * 30
    assert summary.fairness.invariant_holds
    assert summary.fairness.min_selection_rate == pytest.approx(0.02)
    assert summary.queues.max is not None


def test_a_device_unplugged_at_work_is_lost_before_the_deadline(
    device: str,
) -> None:
    pulled = {"kind": "unplugged", "start_s": 0.5, "duration_s": 1e3}
    fleet = [{"profile": device, "count": 2}]
    fleet.append({"profile": device, "count": 1, "name": "pulled", "outage": [pulled]})
    _, rounds = replay_rounds(experiment(*fleet, selection={"per_round": 3}), 3)
    assert rounds[0].outcome == ("done", "done", "lost")
    assert rounds[0].duration_s == pytest.approx(0.5 + OFF_GRACE_S, abs=1e-3)
    assert [one.choice.rows.tolist() for one in rounds[1:]] == [[0, 1], [0, 1]]


def test_the_control_room_shows_a_replay(device: str, tmp_path: Path) -> None:
    of = experiment({"profile": device, "count": 4})
    replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        view = ViewReader(reader).refresh(RunView())
    assert view is not None
    assert (len(view.devices), view.rounds[-1].round) == (4, of.rounds)


def test_a_frozen_device_pauses(device: str) -> None:
    frozen = {"kind": "frozen", "start_s": 0.5, "duration_s": 5.0}
    still = experiment({"profile": device, "count": 2, "outage": [frozen]})
    plain = experiment({"profile": device, "count": 2})
    (_, [one]), (_, [other]) = replay_rounds(still, 1), replay_rounds(plain, 1)
    np.testing.assert_allclose(one.tau_s, other.tau_s + 5.0)


def test_without_devices_rounds_are_void_and_queues_grow(device: str, tmp_path: Path) -> None:
    outage = {"kind": "unplugged", "start_s": 0.0, "duration_s": 10.5}
    of = experiment(
        {"profile": device, "count": 4, "outage": [outage]},
        selection={"policy": "rbcs-f", "beta": 0.5},
        rounds=2,
    )
    replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        rounds, summary = reader.rounds(), summarise_run(reader)
    empty = rounds[:-2]
    assert [row.is_empty for row in rounds] == [True] * len(empty) + [False] * 2
    assert {row.duration_s for row in empty} == {1.0}
    assert 11 <= len(empty) <= 13, "10.5 s, and the next context"
    assert [row.queue_max for row in empty] == pytest.approx(
        [0.5 * t + 0.5 for t in range(len(empty))]
    )
    assert (summary.rounds_completed, summary.rounds_void) == (len(empty) + 2, len(empty))


def test_max_steps_limits_the_work(device: str) -> None:
    of = experiment({"profile": device, "count": 2}, training={"max_steps": 5})
    _, (first,) = replay_rounds(of, 1)
    assert [x.steps for x in first.exchanges] == [5, 5]
    np.testing.assert_allclose(column(first.exchanges, "train_s"), 5 * 22e-3 / SPEED, rtol=0.1)


@pytest.mark.parametrize("varies", [False, True], ids=["constant", "integrated"])
def test_a_device_trains_for_as_long_as_it_has_drawn(device: str, varies: bool) -> None:
    """Also where conditions vary over time, and in what an oracle knows before the selection."""
    fleet: dict[str, object] = {"profile": device, "count": 12}
    if varies:
        fleet["outage"] = [{"kind": "coverage", "start_s": 1e6, "duration_s": 1.0}]
    training = {"epochs": 9, "least_epochs": 2, "batch_size": 20}
    of = experiment(fleet, training=training, selection={"per_round": 12})
    _, rounds = replay_rounds(of, 3)
    steps = np.array([[x.steps for x in one.exchanges] for one in rounds])
    assert {*steps.ravel().tolist()} <= {6 * epochs for epochs in range(2, 10)}
    assert len({*steps.ravel().tolist()}) > 4
    assert (steps[0] != steps[1]).any()
    for one in rounds:
        train_s = column(one.exchanges, "train_s")
        work_s = np.array([x.steps for x in one.exchanges]) / 12 * TRAIN_S
        np.testing.assert_allclose(train_s, work_s, rtol=1e-6)
    known = rounds[2].snapshot.true_tau_s
    taken = rounds[2].exchanges
    rows = [x.row for x in taken]
    total = np.array([x.signal_s + x.download_s + x.train_s + x.upload_s for x in taken])
    gaps = known[rows] - total
    assert np.ptp(gaps) < 0.02, "the oracle knows what each device has drawn"


def test_a_hot_device_is_slower_and_reports_fewer_cores(tmp_path: Path) -> None:
    hot = """
[thermal]
sustained_clock_ratio = { value = 0.5, tag = "literature", source = "made up" }
onset_s = { value = 2.0, tag = "literature", source = "made up" }
time_constant_s = { value = 40.0, tag = "literature", source = "made up" }
"""
    path = tmp_path / "hot.toml"
    path.write_text(DEVICE.replace("cores = { value = 4", "cores = { value = 1") + hot)
    of = experiment({"profile": str(path), "count": 2})
    setup, rounds = replay_rounds(of, 30)
    mu = np.array([1.0 / one.snapshot.inverse_mu for one in rounds])
    trained = np.array([column(one.exchanges, "train_s") for one in rounds])
    assert mu[0].tolist() == pytest.approx([0.5, 0.5]), "half of its core is busy"
    assert mu[-1].tolist() == pytest.approx([0.25, 0.25])
    assert trained[-1].tolist() == pytest.approx([4.0 * TRAIN_S] * 2, rel=0.05)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(setup.world.to_state()))
    resumed = setup_of(of).world
    resumed.load_state(state)
    assert resumed.to_state() == setup.world.to_state()


@pytest.mark.parametrize("link", ["lte-driving", "lte-city"])
def test_policies_share_traces_and_noise(device: str, link: str) -> None:
    def rounds(policy: str) -> list[dict[int, float]]:
        of = experiment(
            {"profile": device, "count": 6, "link": link},
            selection={"policy": policy, "per_round": 3},
            replay={"noise": 0.2},
        )
        return [
            dict(
                zip(
                    one.choice.rows.tolist(), column(one.exchanges, "train_s").tolist(), strict=True
                )
            )
            for one in replay_rounds(of, 15)[1]
        ]

    pairs = [
        (one[row], other[row])
        for one, other in zip(rounds("uniform"), rounds("rbcs-f"), strict=True)
        for row in one.keys() & other.keys()
    ]
    assert len(pairs) > 10
    assert all(one == pytest.approx(other, rel=1e-12) for one, other in pairs)


def test_noise_changes_the_spread_of_times_only(device: str) -> None:
    def ratios(noise: float) -> list[float]:
        of = experiment({"profile": device, "count": 4}, replay={"noise": noise})
        trained = np.concatenate(
            [column(one.exchanges, "train_s") for one in replay_rounds(of, 200)[1]]
        )
        return [float(ratio) for ratio in np.log(trained / TRAIN_S)]

    assert np.std(ratios(0.0)) < 1e-12
    assert np.std(ratios(0.3)) == pytest.approx(0.3, rel=0.1)
    assert abs(np.mean(ratios(0.3))) < 0.05


def test_the_same_seed_gives_the_same_bits_and_another_one_another_fleet() -> None:
    def taus(seed: int) -> list[list[float]]:
        of = load_experiment(EXAMPLES / "phones.toml", ["rounds=20"], seed)
        return [one.tau_s.tolist() for one in replay_rounds(of)[1]]

    assert taus(1) == taus(1)
    assert taus(1) != taus(2)


def test_a_replay_of_profiles_is_stored_and_summarised_like_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    out = ["--out", str(folder), "--json", "--set", "rounds=60", "--no-training"]
    assert main(["replay", str(QUICKSTART), *out]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["status"], summary["rounds_completed"], summary["devices"]) == ("done", 60, 12)
    assert summary["rounds_per_s"] > 0.0
    assert summary["bytes"]["down"] > 0
    assert set(summary["profiles"]) == {
        "raspberry-pi-zero-2w",
        "raspberry-pi-3b-plus",
        "raspberry-pi-4b",
        "phone-low",
    }
    assert summary["estimator"]["median_ape"] < 0.1
    with RunReader(folder) as reader:
        found = compare_estimators(reader)
        rows = reader.exchanges()
    done = [row for row in rows if row.outcome == "done"]
    assert found["phases"].count == len(done) - 12, "a device's first has no prediction"
    for row in rows:
        parts = (row.signal_s, row.download_s, row.load_s, row.train_s, row.upload_s)
        assert sum(part or 0.0 for part in parts) == pytest.approx(row.tau_s)
    assert main(["show", str(folder), "--estimators", "--json"]) == 0
    errors = json.loads(capsys.readouterr().out)
    assert errors["known"]["mape"] < 1e-9, "without noise and traces the times are exact"
    assert errors["ridge"]["mape"] > errors["known"]["mape"]


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        ({"count": 3}, r"fleet\[0\].profile: must be given for a replay"),
        ({"profile": "raspbery-pi-4b", "count": 3}, "raspberry-pi-4b"),
    ],
)
def test_an_unknown_profile_is_refused(fleet: dict[str, object], words: str) -> None:
    with pytest.raises((ExperimentError, profiles.ProfileError), match=words):
        setup_of(experiment(fleet))


def test_the_cold_start_of_a_profile_is_not_configurable(device: str) -> None:
    literal = experiment(
        {"profile": device, "count": 2}, replay={"cold_start_coding": "literal_seed"}
    )
    with pytest.raises(ExperimentError, match=r"replay\.cold_start_coding: must be"):
        setup_of(literal)


def test_unknown_costs_are_refused(device: str, tmp_path: Path) -> None:
    unknown = experiment({"profile": device, "count": 2}, replay={"costs_from": str(tmp_path)})
    raw = unknown.replay
    assert raw.task_costs is not None
    of = msgspec.structs.replace(unknown, replay=msgspec.structs.replace(raw, task_costs=None))
    with pytest.raises(ExperimentError, match='must be "shipped", "measured" or'):
        setup_of(of)
