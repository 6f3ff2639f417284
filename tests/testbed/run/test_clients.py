"""Runs with training code of the user: real broker, emulated devices, processes of clients."""

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.raw import decode_raw
from fairbed.coordinator.report.summary import RunSummary, summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.host.broker_process import find_mosquitto
from tests.processes import still_running
from tests.testbed.small_run import Running, running

CODE = Path(__file__).parents[2] / "cases" / "own_clients"

EXPERIMENT = """
name = "own"
rounds = 3
[training]
learning_rate = 0.5
batch_size = 100_000
{training}
[model]
name = "softmax"
[selection]
policy = "uniform"
per_round = 3
[round]
deadline_s = 30.0
[emulation]
backend = "process"
[[fleet]]
name = "pi"
count = 3
"""

OF_CLIENT = f"""
client = "softmax:Softmax"
client_folder = "{CODE}"
loss_metric = "f_k"
"""

needs_broker = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


def play(folder: Path, training: str = OF_CLIENT, **settings: Any) -> int:
    """Run an experiment; return its exit code."""
    file = folder / "own.toml"
    file.write_text(EXPERIMENT.format(training=training), encoding="utf-8")
    sets = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    options = [part for one in sets for part in ("--set", one)]
    return main(["run", str(file), "--out", str(folder / "run"), "--headless", *options])


def results(folder: Path) -> tuple[RunSummary, np.ndarray, Mapping[str, Any]]:
    """Return the summary, the vector of the last model, and its raw arrays."""
    with RunReader(folder / "run") as reader:
        final = reader.final_model()
        assert final is not None
        return summarise_run(reader), final[1], decode_raw(reader.final_raw())


def settings(**values: Any) -> dict[str, Any]:
    """Return settings whose dots are written as two underscores."""
    return {key.replace("__", "."): value for key, value in values.items()}


@needs_broker
def test_a_client_trains_as_the_native_loop_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native, own = tmp_path / "native", tmp_path / "own"
    native.mkdir()
    own.mkdir()
    assert play(native, "") == 0
    of_native, vector, raw = results(native)
    assert not raw
    assert not of_native.has_client
    raws = settings(aggregation__raw="softmax:merge")
    assert play(own, OF_CLIENT, **raws) == 0
    of_own, own_vector, own_raw = results(own)
    np.testing.assert_allclose(own_vector, vector, rtol=1e-4, atol=1e-6)
    assert of_own.accuracy.mean == pytest.approx(of_native.accuracy.mean, abs=1e-12)
    assert of_own.accuracy.worst10 == pytest.approx(of_native.accuracy.worst10, abs=1e-12)
    assert of_own.loss.mean == pytest.approx(of_native.loss.mean, rel=1e-4)
    examples = {one.name: one.n_k for one in of_own.fleet}
    assert int(own_raw["seen"]) == 3 * sum(examples.values())
    assert own_raw["notes"] == b"0;1;2;" * 3, "in the order of the fleet, in each round"
    assert own_raw["flags"].tolist() == [True, False]
    metrics = {(one.phase, one.name): one for one in of_own.client_metrics or []}
    assert list(metrics) == [
        ("fit", "f_k"),
        ("fit", "rounds"),
        ("fit", "train accuracy"),
        ("evaluate", "accuracy"),
        ("evaluate", "number"),
    ]
    rounds, number = metrics["fit", "rounds"], metrics["evaluate", "number"]
    assert (rounds.round, rounds.devices, rounds.mean) == (3, 3, 3.0), "state lasts"
    assert (number.lowest_device, number.highest_device) == ("pi-1", "pi-3")
    with RunReader(own / "run") as reader:
        sent = {row.model_sha256 for row in reader.rounds()}
        exchanges = reader.exchanges(0)
        fit = [row for row in reader.client_metrics() if row.name == "f_k"]
    assert len(sent) == 3
    vector_bytes = 4 * (640 + 10)
    for x in exchanges:
        assert x.outcome == "done"
        assert x.loss_before is not None
        assert x.bytes_down > vector_bytes < x.bytes_up, "raw parts count"
    assert {(row.round, row.device): row.value for row in fit} == {
        (x.round, x.device): x.loss_before for x in exchanges
    }
    capsys.readouterr()
    assert main(["show", str(own / "run")]) == 0
    shown = capsys.readouterr().out
    assert "train accuracy (fit)" in shown
    assert "fairbed replay" not in shown


@needs_broker
@pytest.mark.parametrize("rule", ["q-fedavg", "afl", "term", "aaggff-s"])
@pytest.mark.full
def test_rules_that_need_losses_get_those_of_the_metric(rule: str, tmp_path: Path) -> None:
    extra = settings(aggregation__rule=rule, aggregation__raw="largest", rounds=2)
    extra |= settings(selection__policy="oort")
    assert play(tmp_path, OF_CLIENT, **extra) == 0
    summary, vector, _ = results(tmp_path)
    assert summary.rounds_completed == 2
    assert np.isfinite(vector).all()


@needs_broker
@pytest.mark.parametrize(
    ("how", "reason"),
    [("raise", "ValueError: no such batch"), ("exit", "status 3"), ("nan", "w: every value")],
)
def test_a_failing_client_fails_its_exchange_and_others_go_on(
    how: str, reason: str, tmp_path: Path
) -> None:
    extra = settings(training__client_options__how=how, aggregation__raw="largest", rounds=2)
    assert play(tmp_path, OF_CLIENT, **extra) == 0
    with RunReader(tmp_path / "run") as reader:
        of_first = [x for x in reader.exchanges(0) if x.device == "pi-1"]
        others = [x for x in reader.exchanges(0) if x.device != "pi-1"]
        raw = decode_raw(reader.final_raw())
    assert {x.outcome for x in of_first} == {"failed"}
    assert all(reason in x.reason for x in of_first), of_first[0].reason
    assert {x.outcome for x in others} == {"done"}
    assert raw["notes"] in (b"1;" * 2, b"2;" * 2), "largest"


@needs_broker
def test_a_client_without_floats_data_or_evaluation_merges_its_integers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = f'client = "softmax:OwnData"\nclient_folder = "{CODE}"'
    extra = settings(data__dataset="none", aggregation__raw="sum", rounds=2)
    assert play(tmp_path, training, **extra) == 0
    summary, vector, raw = results(tmp_path)
    assert vector.shape == (0,)
    assert raw["0"].tolist() == [12, 12, 12, 0], "3 devices with 3, then with one of 6"
    assert {one.n_k for one in summary.fleet} == {5}
    assert summary.accuracy.mean is None
    assert "not known: no device evaluated" in capsys.readouterr().out


@needs_broker
@pytest.mark.full
def test_a_killed_coordinator_resumes_with_raw_arrays_and_states(tmp_path: Path) -> None:
    fleet = """
[data]
dataset = "digits"
[emulation]
backend = "process"
[aggregation]
raw = "softmax:merge"
[[fleet]]
name = "pi"
count = 3
"""
    options = [
        part
        for key, value in (
            ("training.client", "softmax:Softmax"),
            ("training.client_folder", str(CODE)),
            ("selection.per_round", 3),
        )
        for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    with running(tmp_path, rounds=12, fleet=fleet, options=options) as run:
        run.wait_round(4)
        family = run.family()
        os.kill(run.process.pid, signal.SIGKILL)
        run.finish()
        assert still_running(family, 10.0) == []
        closed = run.rounds()
    assert 4 <= closed < 12
    with RunReader(run.folder) as reader:
        before = decode_raw(reader.final_raw())
        kept = [row.model_sha256 for row in reader.rounds()]
    assert before["notes"] == b"0;1;2;" * closed
    code, _, err = Running(tmp_path, rounds=12, fleet=fleet, resume=True).finish()
    assert code == 0, err
    with RunReader(run.folder) as reader:
        after = decode_raw(reader.final_raw())
        assert [row.model_sha256 for row in reader.rounds()][:closed] == kept
        counted = [row for row in reader.client_metrics() if row.name == "rounds"]
    assert after["notes"] == b"0;1;2;" * 12
    assert {row.value for row in counted if row.round == 12} <= {12.0, 13.0}, "a killed round"


@needs_broker
def test_a_run_is_not_resumed_with_other_code_or_other_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    shutil.copytree(CODE, code)
    file = code / "softmax.py"
    size = 'int(__import__("os").environ.get("SIZE_OF_TEST", "4"))'
    text = file.read_text(encoding="utf-8").replace('config.get("size", 4)', size)
    file.write_text(text, encoding="utf-8")
    training = f'client = "softmax:OwnData"\nclient_folder = "{code}"'
    extra = settings(data__dataset="none", aggregation__raw="sum", rounds=2)
    assert play(tmp_path, training, **extra) == 0
    with closing(sqlite3.connect(tmp_path / "run" / "run.db")) as store, store:
        store.execute("UPDATE run SET status = 'stopped'")
    file.write_text(f"{text}\n# a remark\n", encoding="utf-8")
    capsys.readouterr()
    assert main(["run", str(tmp_path / "run"), "--headless"]) == 2
    (err,) = capsys.readouterr().err.splitlines()
    assert f"{code}: must have the code with which the run began, sha256 " in err
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("SIZE_OF_TEST", "5")
    assert main(["run", str(tmp_path / "run"), "--headless"]) != 0
    err = capsys.readouterr().err
    assert "initial must return the arrays that it returned when the run began" in err
    monkeypatch.delenv("SIZE_OF_TEST")
    assert main(["run", str(tmp_path / "run"), "--headless"]) == 0


@needs_broker
def test_a_merge_of_the_user_that_raises_ends_the_run_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(tmp_path, OF_CLIENT, **settings(aggregation__raw="softmax:broken_merge")) != 0
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "raw merge softmax:broken_merge (aggregation.raw): merge() must not raise, got" in err
    with RunReader(tmp_path / "run") as reader:
        assert reader.run().status == "failed"


WRONG: list[tuple[dict[str, Any], str]] = [
    (settings(training__client="nowhere:Client"), "nowhere must be a module in"),
    (settings(training__client="softmax:Absent"), "softmax must have the class Absent; it has"),
    (settings(training__client="softmax"), "training.client must be package.module:Class"),
    (settings(training__client_folder="nothing-here"), "training.client_folder: must be the fol"),
    (settings(training__client_python="/no/python"), "training.client_python: its interpreter"),
    (settings(aggregation__raw="median"), "aggregation.raw must be mean, largest, first, sum"),
    (settings(aggregation__raw="softmax:absent"), "raw merge softmax:absent"),
    (settings(), "aggregation.raw must be 'largest' or 'first', or a function"),
    (settings(training__loss_metric="", aggregation__rule="afl"), "training.loss_metric must na"),
    (settings(training__loss_metric="", selection__policy="oort"), "training.loss_metric must"),
    (settings(training__micro_batch=2), "training.micro_batch must be left out with training.cl"),
    (settings(personalisation__method="ditto"), "personalisation.method must be"),
    (settings(model__batch_norm="fedbn"), "model.batch_norm must be"),
    (settings(aggregation__pseudo_gradient="fednova"), 'must not be "fednova"'),
    (settings(evaluation__own_data="server-test-set"), "evaluation.own_data must be"),
    (
        settings(privacy__clip=1.0, privacy__noise_multiplier=1.0, aggregation__raw="first"),
        "must have floats only with [privacy]",
    ),
    (
        settings(
            training__client="softmax:Blind",
            selection__policy="power-of-choice",
            selection__variant="pow-d",
            selection__candidates=3,
            aggregation__raw="first",
        ),
        "must have evaluate(arrays, config) with selection.policy 'power-of-choice'",
    ),
]

BROKEN = {
    "raises": "RuntimeError: no such file",
    "exits": "status 7",
    "objects": "got dtype object",
    "text": "must return a list or a dict",
    "empty": "at least one array",
    "no value": "an array of floats must have a value",
    "nan": "must be finite",
    "bytes": "aggregation.raw must be",
    "name": "a name must be 1 to 200 characters",
}


@needs_broker
@pytest.mark.parametrize(("extra", "problem"), WRONG, ids=[text for _, text in WRONG])
def test_a_client_that_cannot_be_used_is_refused_at_the_start(
    extra: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = play(tmp_path, OF_CLIENT, **extra)
    err = capsys.readouterr().err
    assert code != 0
    assert "Traceback" not in err
    assert problem in err.splitlines()[-1]


@needs_broker
@pytest.mark.parametrize("how", BROKEN)
def test_a_first_model_that_cannot_be_sent_is_refused(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = settings(training__client="softmax:Broken", training__client_options__how=how)
    assert play(tmp_path, OF_CLIENT, **extra) != 0
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert BROKEN[how] in err.splitlines()[-1]
    assert not (tmp_path / "run" / "run.db").exists()


@pytest.mark.parametrize(
    ("training", "problem"),
    [
        ('loss_metric = "f_k"', "training.loss_metric must be set with training.client only"),
        ('client_options = {"a" = 1}', "training.client_options must be set with training.client"),
    ],
)
def test_keys_of_a_client_need_one(
    training: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(tmp_path, training) != 0
    assert problem in capsys.readouterr().err


def test_data_may_be_missing_for_a_client_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(tmp_path, "", **settings(data__dataset="none")) != 0
    assert 'data.dataset must not be "none" without training.client' in capsys.readouterr().err


@needs_broker
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("Softmax", settings(aggregation__raw="largest")),
        ("OwnData", settings(aggregation__raw="sum", data__dataset="none")),
    ],
)
def test_a_replay_of_the_selection_takes_sizes_and_times_of_a_live_run(
    name: str, others: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = f'client = "softmax:{name}"\nclient_folder = "{CODE}"'
    live, out = tmp_path / "run", tmp_path / "replay"
    extra = settings(fleet__0__profile="raspberry-pi-4b", rounds=2) | others
    assert play(tmp_path, client, **extra) == 0
    command = ["replay", str(live / "experiment.toml"), "--no-training", "--out", str(out)]
    more = ["--set", f"replay.costs_from={live}", "--set", "rounds=20"]
    capsys.readouterr()
    assert main([*command, *more, "--set", "fleet.0.count=4"]) == 0
    line = (
        f"nothing is trained: the times of softmax:{name} are medians of 6 exchanges of 3 devices"
    )
    assert line in capsys.readouterr().err
    with RunReader(live) as reader, RunReader(out) as replay:
        measured, replayed = reader.exchanges(), replay.exchanges()
        last = {x.bytes_up for x in measured if x.round == 2}
        assert line in [e.text.partition(" in ")[0] for _, e in replay.events()]
    assert len(replayed) == 60
    assert {x.bytes_up for x in replayed} == {x.bytes_down for x in replayed} == last
    n_k = {x.device: x.n_k for x in measured}
    assert {x.device: x.n_k for x in replayed if x.device in n_k} == n_k
    cost_s = np.median([(x.train_cpu_s or 0.0) / x.n_k for x in measured])
    of_one = [(x.train_s or 0.0) / x.n_k for x in replayed]
    assert of_one == pytest.approx([of_one[0]] * 60), "one cost per example, of one profile"
    costs = load_experiment(out / "experiment.toml").replay.task_costs
    assert costs is not None
    assert costs.example_s == pytest.approx(cost_s)
    assert costs.load_s > 0.0


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ("absent", "must be a live run of softmax:Softmax on emulated devices, got"),
        ("shipped", "training.client: must be left out of a replay that trains, got 'softmax:So"),
    ],
)
def test_a_replay_without_a_run_of_its_client_is_refused(
    run: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.toml"
    text = EXPERIMENT.format(training=OF_CLIENT) + 'profile = "raspberry-pi-4b"\n'
    file.write_text(text, encoding="utf-8")
    options = ["--no-training", "--set", f"replay.costs_from={run}"]
    assert main(["replay", str(file), "--out", str(tmp_path / "run"), *options]) != 0
    assert problem in capsys.readouterr().err


def test_a_replay_has_no_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.toml"
    file.write_text(EXPERIMENT.format(training=OF_CLIENT), encoding="utf-8")
    assert main(["replay", str(file), "--out", str(tmp_path / "run")]) != 0
    assert "training.client: must be left out of a replay" in capsys.readouterr().err
