"""`fairbed core` on replays of four devices, one of which has wrong labels."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.core_stability import strongest_coalition
from fairbed.testbed.cli.main import main
from fairbed.testbed.core_stability.coalitions import GameModels, coalitions_of, named
from fairbed.testbed.core_stability.finished_runs import Game, game_of, read_all, read_finished
from fairbed.testbed.core_stability.report import CoreOptions, core_report, core_table
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment import file
from fairbed.wire.tensors import vector_to_bytes

EXPERIMENT = """
name = "agents"
rounds = 40
[data]
source = "{data}"
[model]
name = "softmax"
[training]
batch_size = 50
learning_rate = 0.2
[selection]
policy = "uniform"
per_round = 4
[round]
deadline_s = 600.0
[[fleet]]
profile = "raspberry-pi-4b"
name = "pi"
count = 4
"""


def write_agents(path: Path) -> None:
    """Write examples, one of classes 7 and 9 each; labels of the last device are moved by one.

    Only four of the 64 features that the shipped model takes differ from 0: no model separates the
    examples, so that the certificate takes few steps.
    """
    rng = np.random.default_rng(0)
    device = np.repeat(np.arange(4), [40, 40, 40, 240])
    x = np.zeros((len(device), 64), np.float32)
    x[:, :4] = rng.normal(size=(len(device), 4))
    y = (x[:, :4] @ (3.0 * rng.normal(size=(4, 9))) + rng.gumbel(size=(len(x), 9))).argmax(axis=1)
    y = np.where(device == 3, (y + 1) % 9, y)
    y = np.where(y == 7, 6, y)
    y[0], y[1] = 9, 7
    np.savez(path, x=x, y=y, device=device)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Replays of FedAvg, CoreFed and FedAvg of a network, and one without training."""
    folder = tmp_path_factory.mktemp("core")
    write_agents(folder / "agents.npz")
    path = folder / "agents.toml"
    path.write_text(EXPERIMENT.format(data=(folder / "agents.npz").as_posix()), encoding="utf-8")
    for name, settings in {
        "fedavg": [],
        "corefed": ["aggregation.rule=corefed", "aggregation.M=5"],
        "network": ["model.name=mlp", "rounds=2"],
        "other-m": ["aggregation.rule=corefed", "aggregation.M=6", "rounds=1"],
        "other-data": ["data.test_fraction=0.3", "rounds=1"],
        "untrained": ["replay.training=false", "rounds=1"],
    }.items():
        options = [word for setting in settings for word in ("--set", setting)]
        assert main(["replay", str(path), *options, "--out", str(folder / "runs" / name)]) == 0
    return folder / "runs"


Core = Callable[..., dict[str, Any]]


@pytest.fixture
def core(runs: Path, capsys: pytest.CaptureFixture[str]) -> Core:
    """Return the object that the command prints for some runs and options."""

    def call(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        threads = [] if "--threads" in words else ["--threads", "1"]
        assert main(["core", *words, *threads, "--runs", str(runs), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert found.pop("train_s") >= 0.0
        return found

    return call


def test_fedavg_is_blocked_by_the_three_devices_with_right_labels(core: Core) -> None:
    found = core("fedavg", "--M", "5")
    (run,) = found["runs"]
    assert found["models"] == 15
    assert (found["M"], found["M_from"], found["epochs"]) == (5.0, "--M", 40)
    assert run["smaller"]["is_blocking"]
    assert run["smaller"]["devices"] == ["pi-1", "pi-2", "pi-3"]
    assert run["smaller"]["needed"] == pytest.approx(4 / 3)
    ratios = run["smaller"]["ratios"].values()
    assert run["smaller"]["margin"] == pytest.approx(min(ratios) * 3 / 4)
    assert run["certificate"]["factor"] + run["certificate"]["gap"] >= run["strongest"]["margin"]
    u = np.array(list(run["utilities"].values()))
    assert run["average"] == pytest.approx(u.mean())
    assert run["product"] == pytest.approx(u.prod())
    assert run["log_product"] == pytest.approx(np.log(u).sum())
    assert run["least"] == u.min()
    assert run["proportionality"] == pytest.approx(
        min(4.0 * run["utilities"][name] / best for name, best in found["best"].items())
    )


def test_runs_are_alternatives_under_the_same_m(core: Core) -> None:
    found = core("fedavg", "corefed", "--coalitions", "none")
    fedavg, corefed = found["runs"]
    assert found["M_from"] == "aggregation.M of corefed"
    assert (found["models"], found["fedavg"]) == (0, None)
    a, b = (np.array(list(run["utilities"].values())) for run in (fedavg, corefed))
    against = corefed["against"]["fedavg"]
    assert against["ratio_sum"] == pytest.approx((a / b).sum())
    assert against["margin"] == pytest.approx(strongest_coalition(b, a[np.newaxis]).margin)
    assert corefed["strongest"]["model"] == "run fedavg"
    assert corefed["strongest"]["margin"] == against["margin"]
    assert corefed["certificate"]["factor"] < fedavg["certificate"]["factor"]
    assert corefed["certificate"]["gap"] < 1e-3


def test_utilities_of_the_held_out_split_are_those_of_the_evaluation(
    core: Core, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = core("corefed", "--split", "test", "--coalitions", "none")
    assert main(["show", "corefed", "--runs", str(runs), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    (run,) = found["runs"]
    for device in summary["fleet"]:
        assert run["utilities"][device["name"]] == pytest.approx(5.0 - device["loss"], abs=1e-5)
    assert run["average"] == pytest.approx(summary["utility"]["average"], abs=1e-5)
    assert run["strongest"] is None
    assert (
        "no model of FedAvg under the same M: no run is one, and none was trained"
        in (found["notes"])
    )


def test_fedavg_is_trained_here_where_no_run_is_one(core: Core) -> None:
    given = core("fedavg", "corefed", "--coalitions", "none")["runs"][0]["utilities"]
    found = core("corefed", "--coalitions", "local", "--epochs", "2")
    assert found["models"] == 4 + 1 + 1
    for name, u in found["fedavg"].items():
        assert u == pytest.approx(given[name], abs=0.3), "other mini-batches, the same rounds"


def test_a_run_is_blocked_up_to_the_m_that_is_reported(core: Core) -> None:
    options = ("fedavg", "corefed", "--epochs", "10", "--M")
    limit = core(*options, "5")["runs"][0]["blocked_up_to_M"]
    assert limit is not None
    for M, is_blocking in ((0.999 * limit, True), (1.001 * limit, False)):
        assert core(*options, str(M))["runs"][0]["strongest"]["is_blocking"] == is_blocking


def test_an_m_that_is_too_large_is_noted(core: Core) -> None:
    options = ("fedavg", "--coalitions", "local", "--M")
    assert not any(note.startswith("M = ") for note in core(*options, "5")["notes"])
    (note,) = (note for note in core(*options, "1e4")["notes"] if note.startswith("M = "))
    assert note.startswith("M = 10000 separates nothing: not even the model of a single device is")
    notes = core("corefed", "fedavg", "--coalitions", "none", "--M", "1e4")["notes"]
    assert any("times the smallest valid one: ratios of utilities are near 1" in n for n in notes)


@pytest.mark.full
def test_weights_are_those_of_definition_6(core: Core) -> None:
    options = ("fedavg", "corefed", "--coalitions", "none", "--weights")
    plain, by_n = core(*options, "equal"), core(*options, "n")
    assert by_n["weights"] == {"pi-1": 32, "pi-2": 32, "pi-3": 32, "pi-4": 192}
    assert core(*options, "pi-1=1,pi-2=1") == plain
    w = np.array(list(by_n["weights"].values()))
    a, b = (np.array(list(run["utilities"].values())) for run in by_n["runs"])
    assert by_n["runs"][0]["strongest"]["margin"] == pytest.approx(
        strongest_coalition(a, b[np.newaxis], w).margin
    )
    assert by_n["runs"][0]["certificate"]["factor"] < plain["runs"][0]["certificate"]["factor"]
    assert core(*options, "pi-4=3")["weights"]["pi-4"] == 3.0


def test_no_number_depends_on_threads_and_a_seed_repeats_them(core: Core) -> None:
    options = ("corefed", "--coalitions", "random:3,pairs", "--epochs", "2")
    first, second, other = (
        core(*options, "--threads", "1"),
        core(*options, "--threads", "2"),
        core(*options, "--seed", "1"),
    )
    assert first == second
    assert other["runs"][0]["strongest"] != first["runs"][0]["strongest"]


def test_a_network_has_a_local_guarantee_and_no_certificate(core: Core) -> None:
    (run,) = core("network", "--coalitions", "none", "--M", "5")["runs"]
    assert run["certificate"] is None
    local = run["local"]
    u = np.array(list(run["utilities"].values()))
    bound = local["gradient_norm"] * local["radius"]
    bound += 0.5 * local["smoothness"] * local["radius"] ** 2 * (1.0 / u).sum()
    assert local["factor"] == pytest.approx(1.0 + bound / 4.0)
    (wider,) = core("network", "--coalitions", "none", "--M", "5", "--radius", "1")["runs"]
    assert wider["local"]["radius"] == 1.0
    assert wider["local"]["factor"] > local["factor"]


def read(runs: Path, name: str) -> tuple[Game, np.ndarray]:
    run = read_finished(runs / name)
    return game_of([run]), run.vector


def test_gradients_and_smoothness_are_those_of_the_losses(runs: Path) -> None:
    game, vector = read(runs, "corefed")
    models = GameModels(game, game.train_rows, [], threads=1)
    gradients = models.gradients(vector)
    rng = np.random.default_rng(0)
    direction = rng.normal(size=vector.size)
    direction *= 0.05 / np.linalg.norm(direction)
    up, down = (models.losses((vector + sign * direction).astype(np.float32)) for sign in (1, -1))
    np.testing.assert_allclose((up - down) / 2.0, gradients @ direction, atol=2e-5)
    smoothness = models.smoothness(vector, 0.5, seed=0)
    for _ in range(5):
        step = rng.normal(size=vector.size)
        step *= 0.5 / np.linalg.norm(step)
        moved = models.losses((vector + step).astype(np.float32))
        bound = models.losses(vector) + gradients @ step + 0.5 * smoothness * 0.25
        assert (moved <= bound + 1e-5).all()
    models.close()


def test_the_table_has_the_numbers(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["core", "fedavg", "corefed", "--runs", str(runs), "--epochs", "40"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "utility    u = M - loss on the training examples of each device"
    assert lines[1].startswith("M          5, from aggregation.M of corefed; the smallest valid M")
    assert "15 models of coalitions (all), 40 epochs each: 92,160 examples in all" in err
    assert any(line.startswith("U(Multi)") for line in lines)
    assert lines.count("fedavg (fedavg, round 40)") == 1
    assert sum(line.startswith("  certificate  no model at all gives") for line in lines) == 2
    assert "examples of class" not in lines[-1]
    words = ["core", "fedavg", "--runs", str(runs), "--epochs", "1", "--split", "test"]
    assert main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("note       no device has held-out examples of classes 7, 9:")


def as_live(source: Path, target: Path) -> None:
    """Make a copy of a replay look like a live run, whose devices joined in another order."""
    shutil.copytree(source, target)
    names = [f"pi-{k + 1}" for k in range(4)]
    (target / "shards.json").write_text(json.dumps(dict(zip(names, range(4), strict=True))))
    change(target, "UPDATE run SET clock = 'real'", "UPDATE device SET row = 10 + row")


def change(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / "run.db") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_live_run_and_its_replay_are_one_game(core: Core, runs: Path) -> None:
    as_live(runs / "fedavg", runs / "live")
    first, second = core("fedavg", "live", "--coalitions", "none", "--M", "5")["runs"]
    assert first["utilities"] == second["utilities"]
    assert not first["strongest"]["is_blocking"]
    assert first["strongest"]["margin"] == pytest.approx(1.0)
    (runs / "live" / "shards.json").unlink()
    with pytest.raises(UsageError, match=r"shards.json: must hold the shard of each device"):
        read_finished(runs / "live")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["fedavg", "--M", "0.1"], "--M 0.1: M must be above every loss of the runs, got M = 0.1"),
        (["fedavg", "fedavg"], "fedavg: must be given once, got it twice"),
        (["fedavg", "network"], "got model.name = mlp instead of softmax"),
        (["fedavg", "other-data"], "got data.test_fraction = 0.3 instead of 0.2"),
        (["corefed", "other-m"], "--M: must be given, as aggregation.M is 5, 6 in these runs"),
        (["untrained"], "the run must have trained a model, got none"),
        (["nothing"], "must name a run, got 'nothing'"),
        (["fedavg", "--weights", "pi-9=1"], "--weights: must be equal, n, or NAME=W"),
        (["fedavg", "--weights", "pi-1=0"], "the weight of pi-1 must be a number > 0, got '0'"),
        (["fedavg", "--coalitions", "triples"], "--coalitions: must be one or more of all, local"),
        (["fedavg", "--coalitions", "random"], "random needs a number: random:20"),
        (["fedavg", "--epochs", "0"], "--epochs: must be from 1 to 10,000, got 0"),
        (["fedavg", "--radius", "-1"], "--radius: must be a number > 0, got -1"),
        (["fedavg", "--seed", "-1"], "--seed: must be at least 0, got -1"),
    ],
)
def test_bad_input_is_one_line(
    runs: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["core", *words, "--runs", str(runs)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert problem in err


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE run SET status = 'stopped'", "must be finished, got status stopped after 40"),
        ("UPDATE device SET has_own_data = 1 WHERE name = 'pi-2'", "got private data on pi-2"),
        (
            "UPDATE device SET n_k = 31 WHERE name = 'pi-1'",
            "pi-1 trained on 31 examples and has 32",
        ),
    ],
)
def test_a_run_that_cannot_be_judged_is_refused(
    runs: Path, tmp_path: Path, statement: str, problem: str
) -> None:
    shutil.copytree(runs / "fedavg", tmp_path / "run")
    change(tmp_path / "run", statement)
    with pytest.raises(UsageError, match=problem):
        game_of([read_finished(tmp_path / "run")])


def test_runs_of_one_name_are_told_apart_by_their_folders(runs: Path, tmp_path: Path) -> None:
    for arm, run in (("a", "fedavg"), ("b", "corefed")):
        shutil.copytree(runs / run, tmp_path / arm / "0")
    found = read_all([tmp_path / "a" / "0", tmp_path / "b" / "0"])
    assert [run.name for run in found] == ["a/0", "b/0"]
    with pytest.raises(UsageError, match="must be given once, got it twice"):
        read_all([tmp_path / "a" / "0", tmp_path / "a" / ".." / "a" / "0"])


def test_malicious_devices_are_named(core: Core, runs: Path) -> None:
    shutil.copytree(runs / "fedavg", runs / "attacked")
    change(runs / "attacked", "UPDATE truth SET malicious = 'label-poisoning' WHERE name = 'pi-4'")
    notes = core("attacked", "fedavg", "--coalitions", "none", "--M", "5")["notes"]
    assert (
        "malicious in attacked: pi-4; utilities and models of coalitions are those of their true "
        "examples"
    ) in notes
    shutil.rmtree(runs / "attacked")


def judged(game: Game, runs: Path, **options: Any) -> str:
    run = read_finished(runs / "fedavg")
    asked = CoreOptions(M=5.0, coalitions=("none",), **options)
    report = core_report([run], game, asked, lambda _: None, lambda *_: None)
    return core_table(report)


def test_devices_without_held_out_examples_are_left_out(runs: Path) -> None:
    game, _ = read(runs, "fedavg")
    none = game.test_rows[0][:0]
    partly = replace(game, test_rows=(none, *game.test_rows[1:]))
    assert "note       without held-out examples, and therefore left out: pi-1" in judged(
        partly, runs, split="test"
    )
    empty = replace(game, test_rows=(none, none, none, game.test_rows[3]))
    with pytest.raises(UsageError, match="at least 2 devices must have such examples, got 1 of 4"):
        judged(empty, runs, split="test")


def test_a_model_that_diverged_and_one_of_another_size_are_refused(
    runs: Path, tmp_path: Path
) -> None:
    game, vector = read(runs, "fedavg")
    run = read_finished(runs / "fedavg")
    diverged = replace(run, vector=np.full_like(vector, np.nan))
    with pytest.raises(UsageError, match="the loss of its model must be finite on every device"):
        core_report([diverged], game, CoreOptions(), lambda _: None, lambda *_: None)
    with pytest.raises(UsageError, match=r"its model must have \d+ values .* got 3"):
        game_of([replace(run, vector=vector[:3])])
    with pytest.raises(UsageError, match="each device must have the same examples"):
        game_of([run, replace(run, shards=dict(run.shards) | {"pi-1": 1, "pi-2": 0})])
    with pytest.raises(UsageError, match="needs at least 2 devices, got 1"):
        game_of([replace(run, shards={"pi-1": 0}, n_k={})])
    assert len(vector_to_bytes(vector)) == 4 * vector.size


def test_trained_models_that_diverge_are_left_out(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game, _ = read(runs, "corefed")
    monkeypatch.setattr(file, "local_step_problem", lambda training: "")  # a file is refused
    steep = msgspec.structs.replace(game.experiment.training, learning_rate=1e15, weight_decay=1e3)
    experiment = msgspec.structs.replace(game.experiment, training=steep)
    run = read_finished(runs / "corefed")
    asked = CoreOptions(coalitions=("local",), epochs=6)
    steep_game = replace(game, experiment=experiment)
    with np.errstate(all="ignore"):
        report = core_report([run], steep_game, asked, lambda _: None, lambda *_: None)
    assert "5 trained models diverged and are left out" in report.notes
    assert report.models == 1, "FedAvg keeps its model in a round in which all devices fail"
    assert report.fedavg is not None
    assert max(report.fedavg.values()) < 0.0
    assert "FedAvg here" in core_table(report)


def test_kinds_of_coalitions() -> None:
    rng = np.random.default_rng(0)

    def of(*kinds: str, n: int = 5) -> list[tuple[int, ...]]:
        found = coalitions_of(kinds, n, rng)
        assert found[-1] == tuple(range(n))
        assert len(set(found)) == len(found)
        return found[:-1]

    assert of("all") == [c for size in range(1, 5) for c in combinations(range(5), size)]
    assert of("local") == [(k,) for k in range(5)]
    assert of("pairs") == list(combinations(range(5), 2))
    assert of("leave-one-out") == list(combinations(range(5), 4))
    assert all(2 <= len(c) < 30 for c in of("random:9", n=30))
    assert len(of("local", "pairs", "local")) == 15
    assert of("random:5", n=2) == []
    assert coalitions_of(("none",), 5, rng) == []
    with pytest.raises(UsageError, match="all must be at most 5,000 models, got 1,048,575 for 20"):
        coalitions_of(("all",), 20, rng)


def test_coalitions_in_words() -> None:
    names = [f"d{k}" for k in range(9)]
    assert named(names, names) == "all 9 devices"
    assert named(names[1:], names) == "all but d0"
    assert named(names[:8:2], names) == "d0, d2, d4, d6"
    assert named(names[:7], names) == "d0, d1, d2, d3, d4, d5 and 1 more"
