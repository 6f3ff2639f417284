"""`fairbed init`, `examples`, `config`, `schema` and completion from the command line."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fairbed.testbed.api.planning import new_id
from fairbed.testbed.cli import EXAMPLES
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import load_experiment, parse_experiment
from tests.coordinator.store.fake_run import fake_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.startswith("fairbed: ")
    assert text.count("\n") == 1
    return text


def npz(path: Path, *shape: int) -> None:
    y = np.arange(shape[0]) % 3
    np.savez(path, x=np.zeros(shape, dtype=np.float32), y=y)


def test_init_writes_an_experiment_with_all_defaults(folder: Path) -> None:
    assert main(["init"]) == 0
    experiment = load_experiment(folder / "experiment.toml")
    assert (experiment.name, experiment.devices) == ("experiment", 12)
    assert [group.count for group in experiment.fleet] == [4, 4, 4]
    first = (folder / "experiment.toml").read_text().splitlines()[0]
    assert (folder / first.removeprefix("#:schema ")).is_file()
    assert json.loads((folder / "fairbed.schema.json").read_text())["$defs"]


@pytest.mark.parametrize(
    ("dataset", "model"),
    [("digits", "cnn"), ("diabetes", "softmax"), ("breast-cancer", "softmax")],
)
def test_init_takes_a_model_that_fits_a_data_set(folder: Path, dataset: str, model: str) -> None:
    assert main(["init", "e.toml", "--dataset", dataset]) == 0
    assert load_experiment(folder / "e.toml").model.name == model


@pytest.mark.parametrize(("shape", "model"), [((40, 12), "mlp"), ((40, 1, 8, 8), "cnn")])
def test_init_takes_own_data_and_a_model_that_fits(
    folder: Path, shape: tuple[int, ...], model: str
) -> None:
    npz(folder / "my.npz", *shape)
    options = ["--dataset", "my.npz", "--devices", "phones-2025,raspberry-pi-4b", "--count", "5"]
    assert main(["init", "my experiment.toml", *options]) == 0
    experiment = load_experiment(folder / "my experiment.toml")
    assert (experiment.name, experiment.model.name) == ("my-experiment", model)
    assert [(g.population, g.profile, g.count) for g in experiment.fleet] == [
        ("phones-2025", None, 3),
        (None, "raspberry-pi-4b", 2),
    ]
    assert experiment.replay.costs_from == "measured"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--dataset", "photos"],
            "dataset must be digits, synthetic, breast-cancer, diabetes, fashion-mnist, ",
        ),
        (["--dataset", "none.npz"], "none.npz"),
        (["--model", "rnn"], "model.name: must be softmax, mlp, cnn"),
        (["--devices", "raspberry-pi-44"], "no such profile; similar names: raspberry-pi-4b"),
        (["--count", "0"], "must be a whole number above 0, got 0"),
    ],
)
def test_init_refuses_what_cannot_run_and_writes_nothing(
    folder: Path, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *arguments]) == 2
    assert problem in error_of(capsys)
    assert list(folder.iterdir()) == []


def test_init_needs_a_model_of_your_own_for_tokens(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "play.txt").write_text("to be or not to be")
    assert main(["init", "--dataset", "play.txt"]) == 2
    assert "init: no model that ships takes tokens, got 1 examples of shape" in error_of(capsys)
    assert main(["init", "--dataset", "play.txt", "--model", "my.mod:Net"]) == 0


def test_init_keeps_a_file_that_exists(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "experiment.toml").write_text("mine")
    assert main(["init"]) == 2
    assert "exists already" in error_of(capsys)
    assert (folder / "experiment.toml").read_text() == "mine"


def test_examples_are_listed_and_copied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0
    listed = capsys.readouterr().out
    files = [path for path in EXAMPLES.rglob("*") if path.suffix in (".toml", ".py", ".ipynb")]
    apps = {path.parent for path in EXAMPLES.glob("*/pyproject.toml")}
    files = [path for path in files if not apps & {*path.parents}]
    shown = [*(path.relative_to(EXAMPLES).as_posix() for path in files), *(x.name for x in apps)]
    assert [line.split()[0] for line in listed.splitlines()[:-2]] == sorted(shown)
    assert main(["examples", "flower-numpy"]) == 0
    copied = {path.relative_to(folder) for path in (folder / "flower-numpy").rglob("*")}
    assert {path.name for path in copied} >= {"pyproject.toml", "client_app.py", "server_app.py"}
    assert main(["examples", "flower-numpy"]) == 2
    assert "flower-numpy: exists already" in error_of(capsys)
    assert main(["examples", "quickstart"]) == 0
    copy, original = folder / "quickstart.toml", EXAMPLES / "quickstart.toml"
    assert load_experiment(copy) == load_experiment(original)
    first = copy.read_text().splitlines()[0]
    assert (folder / first.removeprefix("#:schema ")).is_file()
    assert main(["examples", "notebooks/policies"]) == 0
    notebook = "notebooks/policies.ipynb"
    assert (folder / "policies.ipynb").read_bytes() == (EXAMPLES / notebook).read_bytes()
    capsys.readouterr()
    assert main(["examples", "quickstart"]) == 2
    assert "exists already" in error_of(capsys)
    assert main(["examples", "quickstop"]) == 2
    assert "no example 'quickstop'; there are: " in error_of(capsys)


def test_an_experiment_is_copied_with_its_folder_of_texts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("char-lstm", "transformer"):
        assert main(["examples", name]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "wrote transformer.toml", "texts are kept"
    for text in (EXAMPLES / "shakespeare").iterdir():
        assert (folder / "shakespeare" / text.name).read_bytes() == text.read_bytes()


@pytest.mark.full
def test_a_grid_is_copied_with_its_experiment(folder: Path) -> None:
    assert main(["examples", "grids/rbcs-f-front"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "fairbed.schema.json",
        "rbcs-f-front.toml",
        "rbcs-f-paper.toml",
    ]
    options = ["--seeds", "1", "--jobs", "1", "--no-figures"]
    assert main(["compare", "rbcs-f-front.toml", "--set", "rounds=2", *options]) == 0


def test_two_runs_that_begin_in_one_second_have_two_ids(folder: Path) -> None:
    first = new_id("a run")
    (folder / "runs" / first).mkdir(parents=True)
    second = new_id("a run")
    assert first.startswith("a-run-")
    assert second != first


def test_config_prints_an_experiment_that_can_be_run_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import msgspec

    path = EXAMPLES / "quickstart.toml"
    assert main(["config", str(path), "--set", "selection.V=9", "--seed", "3"]) == 0
    text = capsys.readouterr().out
    experiment = parse_experiment(msgspec.toml.decode(text), "printed")
    assert experiment == load_experiment(path, ["selection.V=9"], 3)
    assert main(["config", str(path), "--set", "selection.W=9"]) == 2
    assert "selection.W: unknown key" in error_of(capsys)
    assert main(["config", str(path), "--set", "selection"]) == 2
    assert "must be KEY=VALUE" in error_of(capsys)


def completions(line: str, cwd: Path) -> list[str]:
    """Return what a shell is offered at the end of a line, by its protocol with argcomplete."""
    answer = cwd / "answer"
    program = Path(sys.executable).with_name("fairbed")
    done = subprocess.run(
        ["sh", "-c", f'exec "{program}" 8>"{answer}" 9>/dev/null >/dev/null 2>&1'],
        cwd=cwd,
        env={
            **os.environ,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        },
        timeout=30,
    )
    assert done.returncode == 0
    return [word.strip() for word in answer.read_text().splitlines()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fairbed ex", ["examples", "export", "export-model"]),
        ("fairbed replay e.toml --set selection.be", ["selection.beta="]),
        ("fairbed show demo", ["demo-1"]),
        ("fairbed profiles show raspberry-pi-4", ["raspberry-pi-4b"]),
        ("fairbed examples quick", ["quickstart.toml"]),
        ("fairbed export demo-1 --table sel", ["selection"]),
        ("fairbed init --devices phones-f", ["phones-fedscale"]),
    ],
)
def test_a_shell_completes(line: str, offered: list[str], tmp_path: Path) -> None:
    fake_run(tmp_path / "runs" / "demo-1", rounds=1, devices=1)
    assert completions(line, tmp_path) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_code(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "fairbed" in code
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=code, text=True, check=True, timeout=30)


def test_what_init_writes_can_be_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The speed of this machine is not measured for replays."""
    assert main(["init", "--dataset", "synthetic", "--count", "4"]) == 0
    (folder / "grid.toml").write_text(
        'experiment = "experiment.toml"\nseeds = 1\n[set]\nrounds = 2\n"replay.training" = false\n'
        '[[arm]]\nname = "rbcs-f"\n[[arm]]\nname = "uniform"\n'
        'set = { "selection.policy" = "uniform" }\n'
    )
    assert main(["compare", "grid.toml", "--jobs", "1", "--no-figures"]) == 0
    assert "uniform" in capsys.readouterr().out


class ClosedPipe(io.StringIO):
    """A stream that its reader has closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class OpenStream(io.StringIO):
    """A stream that can be read after `close`."""

    def close(self) -> None:
        pass


def test_a_reader_that_stops_early_gets_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OpenStream()
    monkeypatch.setattr(sys, "stdout", ClosedPipe())
    monkeypatch.setattr(sys, "stderr", error)
    assert main(["examples"]) == 1
    assert error.getvalue() == ""


def test_init_takes_a_table_and_a_function(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{k % 7},{k % 5},{'ab'[k % 2]},{k % 3}" for k in range(60)]
    (folder / "my.csv").write_text("\n".join(["a,b,tree,user", *rows]))
    options = ["--dataset", "my.csv", "--label", "tree", "--device", "user"]
    assert main(["init", "table.toml", *options]) == 0
    experiment = load_experiment(folder / "table.toml")
    data = experiment.data
    assert (data.source, data.label, data.device) == ("my.csv", "tree", "user")
    assert (experiment.model.name, experiment.replay.costs_from) == ("mlp", "measured")

    (folder / "own_pictures.py").write_text(
        "def load(folder):\n    return [[[[0.0] * 8] * 8]] * 40, [0, 1] * 20\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    options = ["--dataset", "own_pictures:load", "--folder", "here", "--model", "my.mod:Net"]
    assert main(["init", "function.toml", *options]) == 0
    experiment = load_experiment(folder / "function.toml")
    assert (experiment.data.source, experiment.data.folder) == ("own_pictures:load", "here")
    assert experiment.model.name == "my.mod:Net"

    capsys.readouterr()
    assert main(["init", "fails.toml", "--dataset", "my.csv"]) == 2
    assert "init: label must name the column of the labels in my.csv" in error_of(capsys)
    assert main(["init", "fails.toml", "--dataset", "my.csv", "--label", "leaf"]) == 2
    assert "must be one of its columns (a, b, tree, user), got 'leaf'" in error_of(capsys)


def test_data_are_shown_and_verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npz(folder / "my.npz", 40, 12)
    (folder / "my.csv").write_text("a,tree\n" + "1,ash\n2,oak\n3,ash\n1,oak\n" * 10)
    (folder / "my.toml").write_text('name = "mine"\n[data]\nsource = "my.npz"\n')
    options = ["my.csv", "--label", "tree"]
    assert main(["data", "list", "digits", *options]) == 0
    digits, table = capsys.readouterr().out.splitlines()
    assert digits.startswith("ok       digits          1797 examples, ")
    assert table.startswith("ok       my.csv          40 examples of shape (1,), 2 classes (my.csv")
    assert main(["data", "verify", "my.toml"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(
        "ok       my.npz          40 examples of shape (12,), 3 classes (my.npz,"
    )
    (folder / "my.csv").write_text("a,tree\n1,ash\ntall,oak\n")
    assert main(["data", "verify", *options]) == 1
    assert capsys.readouterr().out == (
        "failed   my.csv          column 'a' must hold a finite number in every row, got "
        "'tall' in row 2; replace it (an empty field is a missing value), remove the row, or leave "
        'the column out by data.features = ["!a"]\n'
    )
    assert main(["data", "verify", "my.csv"]) == 2
    assert "data verify: label must name the column" in error_of(capsys)
