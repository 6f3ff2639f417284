"""`fairbed compare` from the command line: real replays, real kills, a real fleet."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow, SelectionRow
from fairbed.testbed.cli.main import main
from fairbed.testbed.compare.cell import state_of
from fairbed.testbed.compare.grid import BUDGETS, load_grid
from fairbed.wire.text import toml_of
from tests.coordinator.store.fake_run import fake_run
from tests.processes import still_running
from tests.testbed.small_run import LIMIT_S, wait_until

EXAMPLES = Path(__file__).parents[3] / "examples"
GRIDS = EXAMPLES / "grids"
FAIRBED = (sys.executable, "-m", "fairbed.testbed.cli.main")
HAS_FIGURES = find_spec("matplotlib") is not None

REPLAY = f"""
experiment = "{EXAMPLES / "rbcs-f-paper.toml"}"
seeds = {{seeds}}
set = {{{{ rounds = {{rounds}} }}}}
[[arm]]
name = "uniform"
set = {{{{ "selection.policy" = "uniform" }}}}
[[arm]]
name = "rbcs-f"
axes = {{{{ "selection.V" = [5, 50] }}}}
"""


def grid_file(folder: Path, seeds: int = 2, rounds: int = 20, text: str = REPLAY) -> Path:
    path = folder / "small.toml"
    path.write_text(text.format(seeds=seeds, rounds=rounds), encoding="utf-8")
    return path


def call(path: Path, out: Path, *more: str) -> int:
    """Compare without figures, which take the most time; return the exit code."""
    return main(["compare", str(path), "--out", str(out), "--no-figures", "--jobs", "1", *more])


def compared(out: Path) -> dict[str, Any]:
    """Return the content of `compare.json`."""
    report: dict[str, Any] = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    return report


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an own folder; return the folder of its grid."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


@pytest.mark.full
def test_the_example_with_a_front_runs(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--out", str(calls), "--set", "rounds=6", "--json"]
    assert main(["compare", str(GRIDS / "rbcs-f-front.toml"), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in report["arms"]][:2] == ["uniform", "rbcs-f_V-0"]
    assert report["warnings"] == []
    assert all(arm["seeds"] == list(range(10)) for arm in report["arms"])
    gap = report["arms"][-1]["differences"]["virtual_s"]
    assert (report["arms"][-1]["name"], gap["judgement"]) == ("fastest-known", "better")
    assert {path.name for path in calls.glob("compare.*")} == {
        "compare.json",
        "compare.csv",
        "compare.tex",
    }
    drawn = {path.name for path in (calls / "figures").glob("*")}
    names = ("front", "queue", "queue-against-V", "time")
    wanted = {f"{name}.{suffix}" for name in names for suffix in ("svg", "pdf", "png")}
    assert drawn == (wanted if HAS_FIGURES else set())


@pytest.mark.full
def test_the_training_example_runs(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(GRIDS / "selection-aggregation.toml")
    arguments = ["--out", str(calls), "--seeds", "2", "--set", "rounds=8", "--json"]
    assert main(["compare", path, *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["has_training"]
    assert [target["rule"].split(" of ")[0] for target in report["targets"]] == ["90 %", "95 %"]
    assert all(0.1 < cell["values"]["accuracy_mean"] < 1.0 for cell in report["cells"])
    assert all(arm["values"][report["targets"][0]["key"]]["n"] == 2 for arm in report["arms"])
    if HAS_FIGURES:
        drawn = {path.stem for path in (calls / "figures").glob("*.svg")}
        assert drawn >= {"accuracy-rounds", "accuracy-time"}


def test_the_example_of_tuned_constants_runs(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine points of each rule; two of them here, then the comparison with what was chosen."""
    path = GRIDS / "tuned-fairness.toml"
    grid = load_grid(path)
    assert [len(arm.points) for arm in grid.arms] == [9, 9]
    raw = toml_of(path.read_text(encoding="utf-8"))
    raw["tune"]["seeds"] = 1
    for space in raw["tune"]["space"]:
        space["axes"] = {key: values[-2:] for key, values in [*space["axes"].items()][:1]}
    few = calls.parent / "few.toml"
    few.write_bytes(msgspec.toml.encode(raw))
    arguments = ["--seeds", "1", "--set", "rounds=4", "--set", "aggregation.q=0.01", "--json"]
    assert call(few, calls, *arguments) == 0
    tuning = json.loads(capsys.readouterr().out)["tuning"]
    assert (tuning["runs"], tuning["of_runs"], tuning["without"]) == (4, 4, 0)
    assert 0 < tuning["folded"] <= tuning["devices"] == 30
    for arm in tuning["arms"]:
        (chosen,) = [point for point in arm["points"] if point["is_chosen"]]
        experiment = (calls / "arms" / f"{arm['name']}.toml").read_text(encoding="utf-8")
        for key, value in chosen["setting"].items():
            assert f"{key.rpartition('.')[2]} = {value}\n" in experiment


@pytest.mark.full
def test_the_example_of_a_literal_world_runs(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its devices are slower after a selection; knowing that is worth time."""
    arguments = ["--out", str(calls), "--seeds", "6", "--set", "rounds=60", "--json"]
    path = str(GRIDS / "literal-world.toml")
    assert main(["compare", path, "--no-figures", *arguments]) == 0
    arms = {arm["name"]: arm for arm in json.loads(capsys.readouterr().out)["arms"]}
    assert list(arms) == ["random", "literal", "not-previous", "known-times"]
    for name in ("literal", "known-times"):
        assert arms[name]["differences"]["virtual_s"]["judgement"] == "better"


@pytest.mark.full
def test_the_example_of_equal_weights_runs(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With equal weights, plain FedAvg is as accurate over devices as two fair rules."""
    arguments = ["--out", str(calls), "--seeds", "2", "--set", "rounds=40", "--json"]
    path = str(GRIDS / "equal-weights.toml")
    assert main(["compare", path, "--no-figures", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    accuracy = {arm["name"]: arm["values"]["accuracy_mean"]["mean"] for arm in report["arms"]}
    assert list(accuracy) == ["fedavg-n", "fedavg-equal", "aaggff-d", "corefed"]
    assert accuracy["fedavg-n"] < accuracy["fedavg-equal"] - 0.1
    for rule in ("aaggff-d", "corefed"):
        assert accuracy[rule] == pytest.approx(accuracy["fedavg-equal"], abs=0.1)


@pytest.mark.full
def test_the_example_of_fair_rules_runs(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(GRIDS / "fair.toml")
    arguments = ["--out", str(calls), "--no-figures", "--seeds", "1", "--set", "rounds=2", "--json"]
    assert main(["compare", path, *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["primary"] == "accuracy_worst10"
    assert len(report["arms"]) == 2 + 2 * 7 * 2
    assert all(0.0 <= cell["values"]["accuracy_mean"] < 1.0 for cell in report["cells"])
    weights = {arm["name"]: arm["weights"] for arm in report["arms"]}
    assert weights.pop("by-examples_policy-uniform") == "n"
    assert weights.pop("by-examples_policy-rbcs-f") == "n"
    assert set(weights.values()) == {"equal"}


@pytest.mark.full
def test_the_example_of_malicious_devices_runs(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each defence keeps the accuracy of benign devices that a model replacement destroys."""
    arguments = ["--out", str(calls), "--set", "rounds=12", "--no-figures", "--json"]
    assert main(["compare", str(GRIDS / "robust.toml"), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    arms = {arm["name"]: arm["values"] for arm in report["arms"]}
    assert (report["primary"], len(arms)) == ("benign_accuracy_mean", 48)
    defended = ("clip", "k-norm", "multi-krum", "median", "trimmed-mean")
    attacked = {arm: arms[f"{arm}_kind-model-replacement"] for arm in ("none", *defended)}
    accuracy = {arm: values["benign_accuracy_mean"]["mean"] for arm, values in attacked.items()}
    assert all(accuracy[arm] > accuracy["none"] + 0.3 for arm in defended)
    assert attacked["multi-krum"]["malicious_weight"]["mean"] == 0.0
    assert attacked["none"]["malicious_selections"]["mean"] == 0.2


@pytest.mark.full
def test_the_example_of_lying_contexts_runs(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A false context gains selections where ridge predicts the times, and none otherwise."""
    arguments = ["--out", str(calls), "--seeds", "1", "--no-figures", "--json"]
    assert main(["compare", str(GRIDS / "lying-contexts.toml"), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    share = {arm["name"]: arm["values"]["malicious_selections"]["mean"] for arm in report["arms"]}
    assert share["rbcs-f-ridge_speed-10.0"] > 2.0 * share["rbcs-f-ridge_speed-1.0"]
    assert share["rbcs-f-ridge-later"] > 2.0 * share["rbcs-f-ridge_speed-1.0"]
    for arm in ("fedcs-phases", "rbcs-f-phases", "oort"):
        honest = share[f"{arm}_speed-1.0"]
        assert share[f"{arm}_speed-10.0"] == pytest.approx(honest, abs=0.005)
        assert share[f"{arm}-later"] == pytest.approx(honest, abs=0.04)
    for arm in ("fedcs-ridge", "fedcs-phases", "rbcs-f-ridge", "rbcs-f-phases", "oort"):
        honest = share[f"{arm}_speed-1.0"]
        assert share[f"{arm}-checked_speed-1.0"] == honest, (
            "the check finds no fault with the truth"
        )
        assert share[f"{arm}-checked_speed-10.0"] == pytest.approx(honest, abs=0.03)
        assert share[f"{arm}-later-checked"] == pytest.approx(honest, abs=0.03)


@pytest.mark.full
def test_the_example_of_personal_models_runs(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ditto is better than local training and than the global model, which all arms share."""
    arguments = ["--out", str(calls), "--seeds", "1", "--no-figures", "--json"]
    assert main(["compare", str(GRIDS / "ditto.toml"), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    arms = {arm["name"]: arm["values"] for arm in report["arms"]}
    own = {name: values["personal_accuracy_mean"]["mean"] for name, values in arms.items()}
    assert report["primary"] == "personal_accuracy_mean"
    assert len({values["accuracy_mean"]["mean"] for values in arms.values()}) == 1
    assert own["ditto_lambda-1.0"] > own["local-only"] + 0.03
    assert own["ditto_lambda-0.01"] == pytest.approx(own["local-only"], abs=0.02)
    for choice in ("local", "dynamic"):
        assert own[f"chosen_lambda_choice-{choice}"] > own["local-only"] + 0.03


@pytest.mark.full
def test_the_example_of_local_training_runs(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SCAFFOLD and FedDyn are better than SGD for devices with two classes each."""
    arguments = ["--out", str(calls), "--seeds", "1", "--no-figures", "--json"]
    assert main(["compare", str(GRIDS / "local-training.toml"), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    values = {arm["name"]: arm["values"] for arm in report["arms"]}
    for name in ("scaffold", "feddyn_alpha-0.01", "feddyn_alpha-0.1", "feddyn_alpha-1.0"):
        for metric in ("accuracy_mean", "accuracy_worst10"):
            assert values[name][metric]["mean"] > values["sgd"][metric]["mean"] + 0.03


@pytest.mark.full
def test_the_example_of_local_noise_runs(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More noise is a smaller epsilon and less accuracy, on the same cohorts."""
    arguments = ["--out", str(calls), "--seeds", "1", "--no-figures", "--json"]
    assert main(["compare", str(GRIDS / "privacy.toml"), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    values = {arm["name"]: arm["values"] for arm in report["arms"]}
    noisy = [values[f"noise_noise_multiplier-{z}"] for z in ("0.25", "1.0", "4.0")]
    accuracy = [v["accuracy_mean"]["mean"] for v in (values["none"], *noisy)]
    epsilon = [v["epsilon_max"]["mean"] for v in noisy]
    assert "epsilon_max" not in values["none"]
    assert accuracy == sorted(accuracy, reverse=True)
    assert accuracy[0] > accuracy[1] - 0.03 > 0.8
    assert epsilon == sorted(epsilon, reverse=True)
    assert 10.0 < epsilon[2] < 20.0
    assert len({v["jain"]["mean"] for v in values.values()}) == 1


def test_every_example_has_its_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in text for path in GRIDS.glob("*.toml"))


def test_without_a_terminal_the_table_is_plain_text(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = grid_file(calls.parent, seeds=1)
    assert main(["compare", str(path), "--jobs", "1", "--no-figures"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "small: means over seeds" in out
    assert "warning: seeds: a comparison needs at least 6, got 1: there is no interval" in out
    assert "all files are in comparisons/small" in out


@pytest.mark.full
def test_without_matplotlib_the_table_stays_and_a_line_names_the_package(
    calls: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = grid_file(calls.parent, seeds=1)
    assert main(["compare", str(path), "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert "small: means over seeds" in out
    assert "fairbed: no figures were drawn: they need matplotlib; run: " in err
    assert "'fairbed[figures]'" in err


@pytest.mark.full
def test_arms_share_their_random_draws_and_seeds_do_not(calls: Path) -> None:
    assert call(grid_file(calls.parent), calls) == 0

    def draws(arm: str, seed: int) -> tuple[list[Any], dict[Any, Any]]:
        with RunReader(calls / "runs" / arm / str(seed)) as reader:
            available = reader.columns(SelectionRow, ("round", "device", "is_available"))
            rows = reader.columns(
                ExchangeRow, ("round", "device", "mu_cores", "uplink_bps", "train_s", "upload_s")
            )
        return sorted(available), {row[:2]: row[2:] for row in rows}

    available, uniform = draws("uniform", 0)
    available_too, rbcs_f = draws("rbcs-f_V-5", 0)
    other_seed, _ = draws("uniform", 1)
    assert available == available_too
    assert available != other_seed
    both = uniform.keys() & rbcs_f.keys()
    assert len(both) > 10
    assert {key: uniform[key] for key in both} == {key: rbcs_f[key] for key in both}


@pytest.mark.full
def test_finished_cells_are_not_run_again_and_a_grid_may_grow(calls: Path) -> None:
    path = grid_file(calls.parent)
    assert call(path, calls) == 0
    database = calls / "runs" / "uniform" / "1" / "run.db"
    before, first = database.stat().st_mtime_ns, compared(calls)
    assert call(path, calls, "--seeds", "3") == 0
    assert database.stat().st_mtime_ns == before
    assert len(compared(calls)["cells"]) == 9
    again = [cell for cell in compared(calls)["cells"] if cell["seed"] < 2]
    for cell in (*again, *first["cells"]):
        for key in BUDGETS:  # a longer grid may have a smaller budget
            del cell["values"][key]
    assert again == first["cells"]


@pytest.mark.full
def test_a_changed_grid_is_refused(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = grid_file(calls.parent, rounds=3)
    assert call(path, calls) == 0
    for change, words in (
        (("--set", "rounds=21"), "arm 'uniform', seed 0 with another experiment"),
        (("--seeds", "1"), "arm 'uniform', seed 1 removed"),
    ):
        assert call(path, calls, *change) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert words in line
        assert "choose another folder" in line
    other = REPLAY.replace("[[arm]]", 'baseline = "uniform"\n[target]\nshare = [0.5]\n[[arm]]', 1)
    assert call(grid_file(calls.parent, rounds=3, text=other), calls) == 2
    assert "target must be unchanged since the grid began" in capsys.readouterr().err


def test_a_failed_cell_is_one_line_and_affects_no_other(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = grid_file(calls.parent, rounds=3)
    (calls / "runs" / "uniform").mkdir(parents=True)
    (calls / "runs" / "uniform" / "1").write_text("in the way", encoding="utf-8")
    assert call(path, calls) == 2, "not the folder of a grid"
    (calls / "runs" / "uniform" / "1").unlink()
    (calls / "runs" / "uniform").rmdir()
    (calls / "runs").rmdir()
    assert call(path, calls, "--seeds", "1") == 0
    (calls / "runs" / "uniform" / "1").write_text("in the way", encoding="utf-8")
    capsys.readouterr()
    assert call(path, calls) == 1
    out = capsys.readouterr()
    failed = [line for line in out.err.splitlines() if "failed" in line]
    assert len(failed) == 1
    assert "uniform, seed 1: failed: " in failed[0]
    assert "warning: seeds without a result: uniform 1/2" in out.out
    (calls / "runs" / "uniform" / "1").unlink()
    assert call(path, calls) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            'model = { name = "mlp" }',
            "arm 'uniform': replay.costs_from: must be a run that trained",
        ),
        ('model = { name = "no_such:Model" }', "arm 'uniform': model.name"),
        ('replay = { costs_from = "nowhere" }', "arm 'uniform': replay.costs_from: must be"),
    ],
)
def test_a_grid_of_which_every_cell_would_fail_fails_before_the_first(
    calls: Path, change: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{at / 40:.3f},{at % 7},{at % 3},{at % 2}" for at in range(40)]
    (calls.parent / "own.csv").write_text(
        "\n".join(["a,b,c,label", *rows]) + "\n", encoding="utf-8"
    )
    path = calls.parent / "own.toml"
    text = REPLAY.replace(f'experiment = "{EXAMPLES / "rbcs-f-paper.toml"}"\n', "")
    path.write_text(
        f"""{text.format(seeds=2, rounds=3)}
[experiment]
data = {{ source = "own.csv", label = "label" }}
{change}
selection = {{ per_round = 2 }}
[[experiment.fleet]]
profile = "raspberry-pi-4b"
count = 4
""",
        encoding="utf-8",
    )
    assert call(path, calls) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not calls.exists()


class Started:
    """A `fairbed compare` in its own process, with the processes that it started."""

    def __init__(self, path: Path, out: Path) -> None:
        self.out = out
        self.process = subprocess.Popen(
            [*FAIRBED, "compare", str(path), "--out", str(out), "--no-figures"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def done(self) -> set[Path]:
        return {path for path in self.out.glob("runs/*/*") if is_done(path)}

    def wait_until_some_are_done(self) -> None:
        wait_until(lambda: len(self.done()) >= 2, "two cells")
        assert self.process.poll() is None, "the grid must be too long to be over by now"


def is_done(folder: Path) -> bool:
    try:
        return state_of(folder) == "done"
    except Exception:  # another process uses it
        return False


@contextmanager
def started(path: Path, out: Path) -> Iterator[Started]:
    grid = Started(path, out)
    try:
        yield grid
    finally:
        if grid.process.poll() is None:
            grid.process.kill()
        grid.process.communicate()


@pytest.mark.full
def test_a_killed_grid_resumes_and_ends_the_same(calls: Path) -> None:
    path = grid_file(calls.parent, seeds=6, rounds=60)
    with started(path, calls) as grid:
        grid.wait_until_some_are_done()
        workers = grid.workers()
        os.kill(grid.process.pid, signal.SIGKILL)
        grid.process.wait()
        assert still_running(workers, LIMIT_S) == [], "workers end with the grid"
        kept = {run: (run / "run.db").stat().st_mtime_ns for run in grid.done()}
    assert 2 <= len(kept) < 18
    assert call(path, calls) == 0
    assert {run: (run / "run.db").stat().st_mtime_ns for run in kept} == kept
    whole = calls.with_name("whole")
    assert call(path, whole) == 0
    assert (calls / "compare.json").read_bytes() == (whole / "compare.json").read_bytes()


@pytest.mark.full
def test_ctrl_c_ends_the_workers_and_the_next_call_resumes(calls: Path) -> None:
    path = grid_file(calls.parent, seeds=6, rounds=60)
    with started(path, calls) as grid:
        grid.wait_until_some_are_done()
        workers = grid.workers()
        os.kill(grid.process.pid, signal.SIGINT)
        assert grid.process.wait(LIMIT_S) == 130
        assert grid.process.stderr is not None
        assert "stopped; the same command resumes the grid" in grid.process.stderr.read()
        assert not [one for one in workers if one.is_running()]
    assert not (calls / "compare.json").exists()
    assert call(path, calls) == 0


@pytest.mark.full
def test_a_dead_worker_fails_its_cell_and_no_other(calls: Path) -> None:
    path = grid_file(calls.parent, seeds=6, rounds=60)
    with started(path, calls) as grid:
        grid.wait_until_some_are_done()
        os.kill(grid.workers()[0].pid, signal.SIGKILL)
        assert grid.process.wait(LIMIT_S) == 1
        assert grid.process.stderr is not None
        lines = [line for line in grid.process.stderr if "failed" in line]
        assert len(lines) == 1
        assert "worker process ended with signal 9" in lines[0]
    report = compared(calls)
    assert len([cell for cell in report["cells"] if cell["problem"]]) == 1
    assert call(path, calls) == 0


@pytest.mark.full
def test_only_one_process_at_a_time_uses_a_grid(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = grid_file(calls.parent, seeds=6, rounds=60)
    with started(path, calls) as grid:
        wait_until(lambda: (calls / "runs").exists(), "the first cell")
        assert call(path, calls) == 2
        grid.process.send_signal(signal.SIGTERM)
        assert grid.process.wait(LIMIT_S) == 130
    assert "another process uses this grid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope.toml"], "nope.toml: there is no such file"),
        (["small.toml", "--jobs", "0"], "--jobs: must be from 1"),
        (["small.toml", "--seeds", "0"], "--seeds: must be from 1"),
        (["small.toml", "--set", "selection.v=1"], "selection.v: unknown key; valid here: V"),
        (["small.toml", "--out", "taken"], "must be a new or empty folder, or that of this grid"),
        (["primary.toml"], "primary: must be a metric of this grid, got 'acc'; there are: virt"),
        (["live.toml"], "arm 'rbcs-f': selection.policy: must not need true exchange times"),
    ],
)
def test_an_unusable_command_line_is_one_line(
    calls: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grid_file(calls.parent)
    (calls.parent / "taken").mkdir()
    (calls.parent / "taken" / "thesis.tex").write_text("dear", encoding="utf-8")
    live = (GRIDS / "live-digits.toml").read_text(encoding="utf-8")
    named = f'primary = "acc"\n{REPLAY.format(seeds=2, rounds=3)}'
    (calls.parent / "primary.toml").write_text(named, encoding="utf-8")
    known = live.replace('policy" = "rbcs-f"', 'policy" = "rbcs-f-known"')
    (calls.parent / "live.toml").write_text(known, encoding="utf-8")
    assert main(["compare", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (calls.parent / "comparisons").exists()


@pytest.mark.full
def test_failed_live_cells_report_the_reason(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = GRIDS / "live-digits.toml"
    assert call(path, calls, "--seeds", "1", "--set", 'data={source="nowhere.npz"}') == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "failed: " in line]
    assert len(lines) == 2
    assert all("nowhere.npz" in line and "(exit status 2; " in line for line in lines)


@pytest.mark.full
@pytest.mark.broker
def test_the_live_example_runs_and_resumes(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--out", str(calls), "--seeds", "1", "--set", "rounds=2", "--json")
    live = ["compare", str(GRIDS / "live-digits.toml"), *arguments]
    assert main(live) == 0
    report = json.loads(capsys.readouterr().out)
    assert [arm["seeds"] for arm in report["arms"]] == [[0], [0]]
    assert report["has_training"]
    assert all(cell["values"]["accuracy_mean"] > 0.1 for cell in report["cells"])
    before = (calls / "runs" / "uniform" / "0" / "run.db").stat().st_mtime_ns
    assert main([*live, "--no-figures"]) == 0
    assert (calls / "runs" / "uniform" / "0" / "run.db").stat().st_mtime_ns == before


def test_runs_that_exist_are_compared_like_a_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    for name, seed, policy in (("a", 1, "rbcs-f"), ("b", 1, "uniform"), ("c", 2, "rbcs-f")):
        path = fake_run(runs / name, rounds=3, devices=4) / "experiment.toml"
        text = path.read_text().replace("seed = 7", f"seed = {seed}")
        path.write_text(text.replace('"rbcs-f"', f'"{policy}"'))
    out = tmp_path / "out"
    options = ["--runs", str(runs), "--out", str(out), "--no-figures"]
    assert main(["compare", "a", "b", "c", *options, "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in comparison["arms"]] == ["policy-rbcs-f", "policy-uniform"]
    assert comparison["arms"][1]["differences"]["virtual_s"]["n"] == 1
    assert {path.name for path in out.iterdir()} >= {"compare.json", "compare.csv", "compare.tex"}
    assert main(["compare", "a", "b", "c", *options]) == 0
    assert f"all files are in {out}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "gone"], ["must name a run", "'gone'"]),
        (["a", "a"], ["distinct seeds"]),
        (["a", "b", "--seeds", "3"], ["--seeds", "for a grid"]),
        (["{runs}/a"], ["must be a grid file or at least two runs"]),
        (["a", "{runs}/a/experiment.toml"], ["one grid file or several runs"]),
    ],
)
def test_runs_that_cannot_be_compared_are_one_line(
    tmp_path: Path, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    for name in ("a", "b"):
        fake_run(runs / name, rounds=1, devices=4)
    given = [argument.format(runs=runs) for argument in arguments]
    out = ["--runs", str(runs), "--out", str(tmp_path / "out")]
    assert main(["compare", *given, *out]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words), line
    assert not (tmp_path / "out").exists()
