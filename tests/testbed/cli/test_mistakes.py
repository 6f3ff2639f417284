"""A wrong command line gives one line with a remedy, and changes nothing."""

import json
import os
import socket
import socketserver
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from fairbed.coordinator.policy.config import ORACLE_POLICIES
from fairbed.testbed.api.planning import new_id
from fairbed.testbed.cli.main import main
from fairbed.testbed.run.broker import find_broker
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.coordinator.task.test_catalogue import needs_torch

SMALL = """
name = "small"
rounds = 1
[model]
name = "softmax"
[selection]
per_round = 1
[[fleet]]
count = 1
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def replayable(tmp_path: Path) -> Path:
    """An experiment of three devices that a replay accepts."""
    path = tmp_path / "replayable.toml"
    text = SMALL.replace("count = 1", 'count = 3\nprofile = "raspberry-pi-4b"')
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with one finished run."""
    fake_run(tmp_path / "runs" / "demo-1", rounds=2, devices=3)
    return tmp_path / "runs"


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the last line on stderr, the only one about the mistake."""
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("fairbed: ")
    assert "fault in fairbed" not in line
    return line


def test_a_folder_with_other_files_is_refused(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("dear", encoding="utf-8")
    out = tmp_path / "thesis"
    assert main(["run", str(experiment), "--headless", "--out", str(out)]) == 2
    assert "must be a new or empty folder, got one with chapter.tex" in error_of(capsys)
    assert [path.name for path in out.iterdir()] == ["chapter.tex"]


def test_a_file_is_refused_as_the_folder_of_a_run(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("", encoding="utf-8")
    for out in (taken, taken / "below"):
        assert main(["run", str(experiment), "--headless", "--out", str(out)]) == 2
        assert f"--out {out}: must be a folder, got: Not a directory" in error_of(capsys)


def test_a_folder_without_a_run_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tmp_path), "--headless"]) == 2
    assert "got a folder without experiment.toml; fairbed runs" in error_of(capsys)


def test_a_run_with_an_edited_experiment_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cut"
    run = FakeRun(folder, devices=3, rounds=4)
    run.play(2)
    run.store.close()
    (folder / "experiment.toml").write_text(SMALL, encoding="utf-8")
    assert main(["run", str(folder), "--headless"]) == 2
    assert "must be unchanged since the run began, got a change" in error_of(capsys)


def test_a_run_with_a_damaged_store_is_refused(
    runs: Path, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "demo-1" / "run.db").write_bytes(b"garbage" * 100)
    out = str(runs / "demo-1")
    assert main(["run", str(experiment), "--headless", "--out", out]) == 1
    assert "run.db: the store must be usable" in error_of(capsys)


def test_a_broker_that_does_not_answer_stops_the_run_before_it_begins(
    experiment: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairbed.testbed.run.broker.ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        url = f"mqtt://user:secret@127.0.0.1:{bound.getsockname()[1]}"
        bound.listen(0)
        arguments = ["--set", f"broker.url={url}", "--headless", "--out", str(tmp_path / "out")]
        assert main(["run", str(experiment), *arguments]) == 1
    line = error_of(capsys)
    assert "broker.url: an MQTT broker at mqtt://user:***@127.0.0.1" in line
    assert "must answer within 0.5 s, got: no answer; start the broker" in line
    assert "start the broker, correct the address" in line
    assert not (tmp_path / "out").exists()


def test_a_broker_address_of_another_server_is_one_line(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Http(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(1)
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Http) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"mqtt://127.0.0.1:{server.server_address[1]}"
        arguments = ["--set", f"broker.url={url}", "--headless", "--out", str(tmp_path / "out")]
        code = main(["run", str(experiment), *arguments])
        server.shutdown()
    errors = capsys.readouterr().err.splitlines()
    assert (code, len(errors)) == (1, 1)
    assert f"{url}: must be an MQTT 3.1.1 broker, got another protocol (mqtt: " in errors[0]
    assert errors[0].endswith("correct host and port, or start a broker there")
    assert not (tmp_path / "out").exists()


def test_a_listen_address_needs_a_host(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for listen in ("", ":1883"):
        arguments = ["coordinator", str(experiment), "--headless", "--listen", listen]
        assert main(arguments) == 2
        assert "--listen: must be HOST or HOST:PORT" in error_of(capsys)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]:1883", "192.168.1.20:1883", "lab.local"])
def test_a_plain_broker_beyond_this_machine_must_be_asked_for(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    out = tmp_path / "out"
    arguments = ["coordinator", str(experiment), "--headless", "--out", str(out)]
    assert main([*arguments, "--listen", host]) == 2
    error = error_of(capsys)
    assert "--listen: must be a loopback address" in error
    assert "fairbed lab init" in error
    assert 'broker.url = "lab"' in error
    assert "--plain" in error
    assert not out.exists()


@pytest.mark.skipif(find_broker("amqtt") is None, reason="amqtt is not installed")
def test_amqtt_serves_this_machine_alone(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--listen", "0.0.0.0", "--plain", "--set", "broker.kind=amqtt", "--out", str(out)]
    assert main(["coordinator", str(experiment), "--headless", *arguments]) == 1
    assert "broker: must be mosquitto or nats beyond this machine, got amqtt" in error_of(capsys)
    assert not out.exists()


def test_debug_adds_the_traceback_and_changes_nothing_else(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "nope", "--runs", str(runs), "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("fairbed: ")


def test_rm_needs_the_name_of_the_run(runs: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["rm", "--runs", str(runs)])
    assert left.value.code == 2
    assert (runs / "demo-1" / "run.db").exists()


@pytest.mark.parametrize("action", ["list", "verify"])
def test_an_unknown_data_set_is_bad_usage(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", action, "imagenet"]) == 2
    assert "'imagenet'" in (line := error_of(capsys))
    assert "fashion-mnist" in line


def test_a_closed_pipe_is_no_internal_error(
    runs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None:
            pass

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdout", Closed())
    monkeypatch.setattr(sys, "stderr", err := open(runs / "err", "w"))  # noqa: SIM115 - main closes it
    assert main(["show", "--runs", str(runs)]) == 1
    err.close()
    assert (runs / "err").read_text(encoding="utf-8") == ""


@pytest.mark.full
def test_the_doctor_names_the_data_of_an_experiment_once(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(experiment), "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    (digits,) = [line for line in lines if (line["kind"], line["name"]) == ("data", "digits")]
    assert digits["is_needed"]
    assert main(["doctor", "--json"]) == 0
    assert not [line for line in json.loads(capsys.readouterr().out) if line["is_needed"]]


@pytest.mark.parametrize("policy", ORACLE_POLICIES)
def test_a_policy_with_true_times_is_refused_by_a_live_run(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    out, chosen = tmp_path / "out", f"selection.policy={policy}"
    assert main(["run", str(experiment), "--headless", "--out", str(out), "--set", chosen]) == 2
    assert f"true exchange times in a live run, got '{policy}'; use" in error_of(capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            ["selection.policy=weighted", "selection.weights=[1.0, 2.0]"],
            "selection.weights must have one number for each of the 3 devices of the fleet, got 2",
        ),
        (
            ["selection.policy=power-of-choice", "selection.per_round=2", "selection.candidates=1"],
            "selection: candidates must be at least the 2 devices of per_round, got 1",
        ),
        (["selection.ridge_lambda=1e-300"], "selection.ridge_lambda: must be a number >= 1e-06"),
        (
            ["training.learning_rate=1e30"],
            "training.learning_rate: must be a number <= 1000000000000000",
        ),
        (["training.learning_rate=1e-300"], "training.learning_rate: must be a number >= 1e-30"),
        ([f"training.max_steps={10**30}"], "training.max_steps: must be a whole number <= 1"),
        (["aggregation.rule=q-fedavg", "aggregation.q=1e30"], "aggregation.q: must be a number"),
        (["rounds=1e20"], "rounds: must be a whole number, got 1e+20"),
        (["rounds=10_000_001"], "rounds: must be a whole number <= 10000000, got 10000001"),
        ([f"rounds={10**30}"], "rounds: must be a whole number <= 10000000, got 1000000"),
    ],
)
def test_an_experiment_that_makes_no_sense_is_refused(
    replayable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    problem: str,
) -> None:
    out = tmp_path / "out"
    flags = [flag for setting in settings for flag in ("--set", setting)]
    assert main(["replay", str(replayable), "--out", str(out), *flags]) == 2
    assert problem in error_of(capsys)
    assert not out.exists()


@pytest.mark.parametrize("threads", [0, -3, 10**9])
def test_a_replay_needs_a_positive_number_of_threads(
    replayable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], threads: int
) -> None:
    out = tmp_path / "out"
    assert main(["replay", str(replayable), "--out", str(out), f"--threads={threads}"]) == 2
    assert f"--threads: must be from 1 to 1,000, got {threads}; or leave it" in error_of(capsys)
    assert not out.exists()


def test_a_recording_needs_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "pi-7", "--for", "0s", "--out", str(tmp_path / "out")]) == 2
    assert "--for must be at least 1s, got '0s'; 60s is usual" in error_of(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "replay"])
def test_a_name_that_the_file_system_does_not_accept_is_bad_usage(
    replayable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    out = tmp_path / ("x" * 300)
    flags = ["--headless"] if command == "run" else []
    assert main([command, str(replayable), *flags, "--out", str(out)]) == 2
    assert ": must be a folder, got: File name too long; choose another" in error_of(capsys)
    assert main([command, str(out), *flags]) == 2
    assert ": there is no such experiment file or run; `fairbed runs`" in error_of(capsys)


def test_a_finished_run_is_not_replayed_but_its_experiment_is(
    replayable: Path, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, live = tmp_path / "done", runs / "demo-1"
    assert main(["replay", str(replayable), "--out", str(done)]) == 0
    (live / "experiment.toml").write_text(replayable.read_text(), encoding="utf-8")
    capsys.readouterr()
    assert main(["replay", str(done)]) == 2
    assert error_of(capsys).endswith(
        f"{done}: this run is done, nothing is left to resume; see it with: fairbed show {done}; "
        f"repeat it with: fairbed replay {done}/experiment.toml"
    )
    assert main(["replay", str(replayable), "--out", str(done)]) == 2
    assert f"{done}: this run is done; choose another --out, or" in error_of(capsys)
    assert main(["run", str(done), "--headless"]) == 2
    assert f"got a replay; start it anew with: fairbed run {done}/exp" in error_of(capsys)
    assert main(["replay", str(live)]) == 2
    assert f"got a live run; start it anew with: fairbed replay {live}/exp" in error_of(capsys)


@pytest.mark.parametrize("command", ["run", "replay"])
def test_a_run_that_was_deleted_says_so(
    replayable: Path, runs: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    gone, folder = runs / "gone", runs / "demo-1"
    flags = ["--headless"] if command == "run" else []
    assert main([command, str(gone), *flags]) == 2
    assert f"{gone}: there is no such experiment file or run; `fairbed runs`" in error_of(capsys)
    (folder / "run.db").unlink()
    (folder / "experiment.toml").write_text(replayable.read_text(), encoding="utf-8")
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    assert main([command, str(folder), *flags]) == 2
    assert (
        f"{folder}: must be the folder of a run, got one without run.db; start its experiment "
        f"with: fairbed {command} {folder}/experiment.toml"
    ) in error_of(capsys)
    assert not (folder / "run.db").exists()
    assert main(["show", str(folder), "--runs", str(runs)]) == 2
    assert f"{folder}: must be the folder of a run, got one without run.db" in error_of(capsys)
    assert main(["rm", str(folder), "--runs", str(runs)]) == 2
    assert f"{folder}: must be the folder of a run, got one without run.db" in error_of(capsys)
    assert (folder / "notes.txt").exists()


@needs_torch
@pytest.mark.parametrize("command", ["run", "replay"])
@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (None, "no_model:make must name an importable module, got none named 'no_model'; correct"),
        ("import not_there", "got ModuleNotFoundError: No module named 'not_there' ("),
        ("1 / 0", "got ZeroDivisionError: division by zero ("),
        ("", "no_model:make must name a factory in the module no_model, got no such name; corr"),
    ],
)
def test_a_model_that_cannot_be_imported_says_why(
    replayable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    module: str | None,
    problem: str,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "no_model", raising=False)
    if module is not None:
        (tmp_path / "no_model.py").write_text(module, encoding="utf-8")
    flags = ["--headless"] if command == "run" else []
    out = ["--out", str(tmp_path / "out"), "--set", "model.name=no_model:make"]
    assert main([command, str(replayable), *flags, *out]) == 2
    assert problem in error_of(capsys)
    assert not (tmp_path / "out" / "run.db").exists()


@pytest.mark.parametrize("command", ["run", "replay"])
def test_data_of_another_shape_need_torch(
    replayable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 7)).astype(np.float32), np.arange(90) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y)
    monkeypatch.setitem(sys.modules, "torch", None)
    flags = ["--headless"] if command == "run" else []
    out = ["--out", str(tmp_path / "out"), "--set", f"data={{source = '{tmp_path / 'own.npz'}'}}"]
    assert main([command, str(replayable), *flags, *out]) == 2
    line = error_of(capsys)
    assert "softmax for examples of shape 7 in 3 classes must be exported with torch" in line
    assert line.endswith("install fairbed[torch]")


def test_a_run_of_another_user_is_not_deleted_and_loses_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with tempfile.TemporaryDirectory() as place:  # outside of `tmp_path`, which is private
        Path(place).chmod(0o755)
        folder = Path(place) / "demo-1"
        fake_run(folder, rounds=1, devices=1)
        before = sorted(folder.rglob("*"))
        user = os.geteuid()
        locked = folder if user == 0 else folder / "models"
        try:
            if user == 0:
                os.seteuid(65534)  # nobody, as the administrator may delete everything
            else:
                locked.chmod(0o555)
            assert main(["rm", "demo-1", "--runs", place]) == 1
        finally:
            os.seteuid(user)
            locked.chmod(0o755)
        assert "must be writable to delete the run, got: Permission denied; " in error_of(capsys)
        assert sorted(folder.rglob("*")) == before


def test_two_replays_in_one_second_are_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ids = set()
    for _ in range(3):
        ids.add(run_id := new_id("small"))
        (tmp_path / "runs" / run_id).mkdir(parents=True)
    assert len(ids) == 3
