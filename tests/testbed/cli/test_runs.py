"""The commands on existing runs."""

import json
import re
import sqlite3
import sys
from contextlib import closing, nullcontext
from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.store import NewRun, Store
from fairbed.coordinator.store.tables import AlertRow, DeviceLogRow
from fairbed.testbed.api import RUNS
from fairbed.testbed.cli.main import main
from fairbed.testbed.cli.runs import live_endpoint
from fairbed.testbed.cli.watch import listed
from fairbed.testbed.errors import RunError
from fairbed.testbed.run_folder import Endpoint, write_endpoint
from tests.coordinator.store.fake_run import FakeRun, as_older, fake_run, make_store

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.toml"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with one finished run."""
    fake_run(tmp_path / "demo-1", rounds=4, devices=3)
    return tmp_path


def test_show_prints_one_object_with_all_documented_keys(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "latest", "--runs", str(runs), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert {
        "run_id",
        "status",
        "rounds_completed",
        "wall_s",
        "virtual_s",
        "devices",
        "selected",
        "aggregated",
        "accuracy",
        "loss",
        "exchange",
        "estimator",
        "queues",
        "bytes",
    } <= summary.keys()
    assert summary["rounds_completed"] == 4


def test_show_prints_a_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--runs", str(runs)]) == 0
    assert "rounds" in capsys.readouterr().out


def test_runs_lists_all_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--runs", str(runs), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["status"] == "done"
    assert main(["runs", "--runs", str(runs / "nothing")]) == 0
    assert "fairbed run examples/quickstart.toml" in capsys.readouterr().out


def test_the_list_of_runs_has_a_head_and_says_what_each_run_is(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = FakeRun(runs / "killed-run-of-a-long-name", devices=2)
    killed.play(2)
    killed.store.flush()
    with closing(sqlite3.connect(runs / "demo-1" / "run.db")) as connection, connection:
        connection.execute("UPDATE run SET clock = 'virtual'")
    killed.store._lock.release()  # as after a kill
    assert main(["runs", "--runs", str(runs)]) == 0
    head, *rows, hint = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "kind", "rounds", "devices", "accuracy"]
    assert sorted(line.split()[:5] for line in rows) == [
        ["demo-1", "done", "replay", "4/4", "3"],
        ["killed-run-of-a-long-name", "interrupted", "live", "2/30", "2"],
    ]
    assert {line.index(line.split()[1]) for line in (head, *rows)} == {head.index("status")}
    folder = runs / "killed-run-of-a-long-name"
    assert hint == (f"{folder.name} was interrupted; continue it with: fairbed run {folder}")
    assert main(["runs", "--runs", str(runs), "--json"]) == 0
    found = {row["run_id"]: row for row in json.loads(capsys.readouterr().out)}
    assert [found[x]["kind"] for x in ("demo-1", folder.name)] == ["replay", "live"]
    assert [found[x]["resume_command"] for x in ("demo-1", folder.name)] == [
        "",
        f"fairbed run {folder}",
    ]
    assert main(["show", folder.name, "--runs", str(runs)]) == 0
    assert f"continue   fairbed run {folder}" in capsys.readouterr().out.splitlines()
    killed.store.close()


def test_show_fits_a_narrow_terminal(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.testbed.cli.runs.output_width", lambda: 80)
    assert main(["show", "--runs", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (first,) = [i for i, line in enumerate(lines) if line.startswith("exchanges")]
    assert lines[first + 1].startswith(" " * 11)
    assert lines[first + 1].strip()
    (heading,) = [line for line in lines if line.startswith("device ")]
    assert {"sel rate", "median s", "accuracy"} <= set(re.split(r"  +", heading))
    assert "profile" not in heading


def test_show_prints_why_devices_were_selected(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_round_2 = ["show", "--runs", str(runs), "--why", "2"]
    assert main([*of_round_2, "--json"]) == 0
    choice = json.loads(capsys.readouterr().out)
    assert (choice["round"], choice["policy"], len(choice["devices"])) == (2, "rbcs-f", 3)
    name = choice["devices"][-1]["device"]
    assert main([*of_round_2, "--device", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "round       2 of demo-1"
    assert [line.split()[0] for line in lines[-2:]] == ["device", name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--why", "9"], "--why: must be a closed round of demo-1, 1 to 4, got 9"),
        (["--why", "0"], "--why: must be a closed round of demo-1, 1 to 4, got 0"),
        (["--why", "2", "--device", "x"], "--device: must be a device of round 2, such as"),
        (["--device", "x"], "--device: must be beside --why ROUND; add it, or remove --device"),
    ],
)
def test_a_mistake_about_a_selection_is_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["show", "--runs", str(runs), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("reason", ["no terminal", "dumb", "headless"])
def test_watch_prints_lines_where_no_screen_can_be_shown(
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    monkeypatch.setattr("fairbed.testbed.cli.watch.low_priority", nullcontext)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: reason != "no terminal", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: reason != "no terminal", raising=False)
    monkeypatch.setenv("TERM", "dumb" if reason == "dumb" else "xterm")
    options = ["--headless"] if reason == "headless" else []
    assert main(["watch", "--runs", str(runs), *options]) == 0
    first, *rounds, last = capsys.readouterr().out.splitlines()
    assert first == f"run demo-1: done, in {runs / 'demo-1'}"
    assert [line.split("  tau")[0] for line in rounds] == [f"round {i}/4" for i in range(1, 5)]
    assert "accuracy 0." in rounds[0]
    assert rounds[0].endswith("cohort jetson-02 raspberry-pi-00 raspberry-pi-01")
    assert last == "done after 4 rounds"


def test_the_keys_of_the_control_room_are_printed_as_a_file_to_edit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["watch", "--keys"]) == 0
    keys = msgspec.toml.decode(capsys.readouterr().out)["keys"]
    assert (keys["pause"], keys["help"], keys["fleet"]) == ("p", "?", "2")


def test_watch_without_a_screen_follows_a_live_run_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FakeRun(tmp_path / "live", devices=3)
    run.event("waiting", "2 of 3 devices are ready for round 1, 7 s left")
    run.play(1)
    run.store.flush()
    steps = iter(
        (
            lambda: run.play(1),
            lambda: run.event("late", "an update was late", device=run.names[1], level="warning"),
            lambda: run.event("joined", "not worth a line"),
            run.finish,
        )
    )

    def step(_seconds: float) -> None:
        next(steps)()
        if run.store._writer.is_open:
            run.store.flush()

    monkeypatch.setattr("fairbed.testbed.cli.watch.low_priority", nullcontext)
    monkeypatch.setattr("fairbed.testbed.cli.watch.time.sleep", step)
    assert main(["watch", "--runs", str(tmp_path), "--headless"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  tau")[0] for line in lines] == [
        f"run live: running, in {tmp_path / 'live'}",
        "waiting: 2 of 3 devices are ready for round 1, 7 s left",
        "round  1/30",
        "round  2/30",
        f"warning: {run.names[1]}: an update was late",
        "done after 2 rounds",
    ]


def test_alerts_are_shown_where_a_run_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A live run shows those that stand; its summary also what was."""
    run = FakeRun(tmp_path / "demo", rounds=4, devices=3)
    run.play(2)
    run.store.add(AlertRow(kind="broker lost", begin_s=1.0, end_s=4.0, text="down"))
    run.store.add(AlertRow(kind="broker lost", begin_s=6.0, end_s=9.5, text="down"))
    run.store.add(AlertRow(kind="disk low", begin_s=7.0, text="1 GB is free"))
    run.event("disk low", "1 GB is free", level="warning")
    run.store.flush()

    def output(*arguments: str) -> str:
        capsys.readouterr()
        assert main([*arguments, "--runs", str(tmp_path)]) == 0
        return capsys.readouterr().out

    assert "demo: disk low: 1 GB is free" in output("runs").splitlines()
    assert json.loads(output("runs", "--json"))[0]["alerts"] == ["disk low: 1 GB is free"]
    shown = output("show", "demo").splitlines()
    assert "alert      disk low since 0:07: 1 GB is free" in shown
    assert "alert      broker lost 2 times, 0:06 in all, over" in shown
    alerts = json.loads(output("show", "demo", "--json"))["alerts"]
    assert [alert["end_s"] for alert in alerts] == [4.0, 9.5, None]
    run.finish("stopped")
    assert "disk low" not in output("runs"), "it is not live any more"
    assert "alert: disk low: 1 GB is free" in output("watch", "demo", "--headless")


def test_an_unknown_run_is_bad_usage_and_lists_the_known(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "nope", "--runs", str(runs)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fairbed: ")
    assert error.count("\n") == 1


def test_a_finished_run_cannot_be_stopped_or_joined(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["stop", "latest"], ["enroll", "pi-1", "--run", "latest"]):
        assert main([*command, "--runs", str(runs)]) == 1
        assert "must be live, got status done" in capsys.readouterr().err


def test_latest_is_the_live_run_where_a_run_is_stopped_or_commanded(tmp_path: Path) -> None:
    """A coordinator that was refused leaves a newer run that is not live."""
    live, second = make_store(tmp_path / "live-1"), make_store(tmp_path / "live-2")
    refused = make_store(tmp_path / "refused")
    refused.set_status("failed", "another coordinator holds the topic tree")
    refused.close()
    endpoint = Endpoint(url="mqtt://127.0.0.1:1", tenant="main")
    try:
        for name in ("live-1", "live-2"):
            write_endpoint(tmp_path / name, endpoint)
        with pytest.raises(RunError, match=r"refused: .*live runs: live-2, live-1$"):
            live_endpoint(tmp_path, "latest")
        second.set_status("stopped")
        second.close()
        assert live_endpoint(tmp_path, "latest")[0].run_id == "live-1"
        with pytest.raises(RunError, match=r"refused: must be live, got status failed; live runs"):
            live_endpoint(tmp_path, "refused")
    finally:
        live.close()


def test_rm_deletes_a_finished_run_but_not_a_live_one(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = Store.create(
        runs / "live-1",
        NewRun(
            run_id="live-1",
            name="live",
            experiment_toml="",
            seed=0,
            config_hash="",
            version="0",
        ),
    )
    try:
        assert main(["rm", "live-1", "--runs", str(runs)]) == 2
        assert "is live; stop it first" in capsys.readouterr().err
    finally:
        live.close()
    assert main(["rm", str(runs / "demo-1"), "--runs", str(runs)]) == 0
    assert not (runs / "demo-1").exists()


def test_runs_of_an_older_format_are_listed_and_removed(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_older(runs / "demo-1")
    assert main(["runs", "--runs", str(runs)]) == 0
    listed = capsys.readouterr().out
    assert "\ndemo-1  older format: " in listed
    assert main(["runs", "--runs", str(runs), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run_id"], row["status"]) == ("demo-1", "older format")
    assert main(["rm", "demo-1", "--runs", str(runs)]) == 0
    assert not (runs / "demo-1").exists()


def test_a_damaged_run_can_be_removed(runs: Path) -> None:
    (runs / "demo-1" / "run.db").write_bytes(b"rubbish" * 1000)
    assert main(["rm", "demo-1", "--runs", str(runs)]) == 0
    assert not (runs / "demo-1").exists()


def test_rm_refuses_a_folder_that_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.db").write_bytes(b"")
    assert main(["rm", str(tmp_path)]) == 2
    assert "must have the file experiment.toml" in capsys.readouterr().err
    assert (tmp_path / "run.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["show", "{folder}"],
        ["show", "{folder}", "--estimators"],
        ["watch", "{folder}"],
        ["stop", "{folder}"],
        ["enroll", "pi-1", "--run", "{folder}"],
        ["run", "{folder}", "--headless"],
        ["replay", "{folder}"],
        ["record", "pi-1", "--run", "{folder}"],
    ],
    ids=" ".join,
)
def test_every_other_command_refuses_an_older_format_with_one_line(
    command: list[str],
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = runs / "demo-1"
    (folder / "experiment.toml").write_bytes(QUICKSTART.read_bytes())
    as_older(folder)
    for stream in (sys.stdin, sys.stdout):  # for the screen
        monkeypatch.setattr(stream, "isatty", lambda: True)
    before = (folder / "run.db").read_bytes()
    assert main([word.format(folder=folder) for word in command]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("fairbed: ")
    assert f"{folder}/run.db: " in error
    assert "an older Fairbed wrote it" in error
    assert (folder / "run.db").read_bytes() == before


def test_logs_of_an_unknown_device_lists_the_known(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = runs / "demo-1" / "logs"
    logs.mkdir()
    (logs / "pi-1.log").write_text("hello\n", encoding="utf-8")
    assert main(["logs", "pi-1", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out == "hello\n"
    assert main(["logs", "../x", "--runs", str(runs)]) == 2
    assert "there are: jetson-02, pi-1, raspberry-pi-00" in capsys.readouterr().err


def test_logs_prints_the_file_of_an_emulated_device_without_control_characters(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = runs / "demo-1" / "logs"
    logs.mkdir()
    (logs / "pi-1.log").write_text("a\tb\x1b[2Jc\n\nd", encoding="utf-8")
    assert main(["logs", "pi-1", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out == "a\tb?[2Jc\n\nd\n"


def test_logs_prints_the_lines_that_a_device_without_a_file_has_sent(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(runs / "demo-1" / "run.db")) as connection:
        connection.execute("UPDATE run SET status = 'stopped'")
        connection.commit()
    store = Store.reopen(runs / "demo-1")
    for number, (at_s, level, text) in enumerate(
        [(-3.0, "info", "joining"), (4.5, "warning", "link lost"), (3723.0, "error", "no memory")]
    ):
        store.add(
            DeviceLogRow(at_s=at_s, device="jetson-02", number=number, level=level, text=text)
        )
    store.close()
    assert main(["logs", "jetson-02", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "  before INFO    joining",
        "    0:04 WARNING link lost",
        " 1:02:03 ERROR   no memory",
    ]
    assert main(["logs", "raspberry-pi-01", "--runs", str(runs)]) == 1
    error = capsys.readouterr().err
    assert "raspberry-pi-01 has sent no line of its log" in error
    assert 'send_log = "off"' in error
    with closing(sqlite3.connect(runs / "demo-1" / "run.db")) as connection:
        connection.execute("UPDATE run SET clock = 'virtual'")
        connection.commit()
    assert main(["logs", "raspberry-pi-01", "--runs", str(runs)]) == 1
    assert "was replayed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["profiles", "list"], ["profiles", "show", "raspberry-pi-4b"], ["data", "list"], ["bench"]],
)
def test_the_library_commands_print_something(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_unknown_names_are_one_line_with_the_valid_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in (["profiles", "show", "pi-99"], ["bench", "nothing"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "raspberry-pi-4b" in error or "round-time" in error


def test_a_run_of_another_experiment_is_not_overwritten(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = runs / "demo-1"
    before = (out / "run.db").read_bytes()
    assert main(["run", str(QUICKSTART), "--headless", "--out", str(out)]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert (out / "run.db").read_bytes() == before


def test_a_wrong_experiment_is_exit_code_2_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.toml"
    for text, line in (
        ("nme = 3", "unknown key"),
        ('name = "x"\n[data]\ndataset = "mnist"\nfolder = "nowhere"', "nowhere"),
        ('name = "x"\n[[fleet]]\nprofile = "pi-99"\ncount=4\n', "pi-99"),
        ('name = "x"\n[[fleet]]\ncount=4\nlink = "smoke-signals"\n', "smoke-signals"),
        ('name = "x"\n[model]\nname = "gpt"\n[[fleet]]\ncount=4\n', "gpt"),
    ):
        path.write_text(text, encoding="utf-8")
        code = main(["run", str(path), "--headless", "--out", str(tmp_path / "out")])
        error = capsys.readouterr().err
        assert code in (1, 2)
        assert line in error.splitlines()[-1]
        assert error.splitlines()[-1].startswith("fairbed: ")
        assert not (tmp_path / "out" / "run.db").exists()


def test_an_installed_package_shows_the_estimators_without_the_oracle(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "experiments", None)  # as if it could not be imported
    assert main(["show", str(runs / "demo-1"), "--estimators", "--json"]) == 0
    assert {"ridge", "last value"} <= json.loads(capsys.readouterr().out).keys()


def test_the_control_room_lists_the_runs_beside_the_one_that_is_shown() -> None:
    assert listed(Path("/data/runs-of-may/r1"), RUNS) == Path("/data/runs-of-may")
    assert listed(RUNS / "r1", RUNS) == RUNS
    assert listed(Path("/data/runs-of-may/r1"), Path("elsewhere")) == Path("elsewhere")
    assert listed(Path(), RUNS) == RUNS
