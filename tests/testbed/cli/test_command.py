"""`fairbed command`: from words to a command, and a live run that is steered."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import CommandRow
from fairbed.testbed.api.replay import changed_live
from fairbed.testbed.cli.command import confirm
from fairbed.testbed.cli.main import main
from fairbed.testbed.errors import UsageError
from fairbed.wire.command_line import parse_command
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.testbed.small_run import LIMIT_S, running

ID = bytes(16)


class Typed(io.StringIO):
    """A terminal on which a line was typed."""

    def isatty(self) -> bool:
        return True


def test_asks_before_work_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kick = parse_command(["kick", "pi-7"], ID)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match=r"add --yes"):
        confirm(kick, "demo")
    monkeypatch.setattr(sys, "stdin", Typed("y\n"))
    confirm(kick, "demo")
    assert capsys.readouterr().err == (
        "demo: kick pi-7: the work of the device in this round is lost. Do it? [y/N] "
    )
    monkeypatch.setattr(sys, "stdin", Typed("\n"))
    with pytest.raises(UsageError, match=r"^kick pi-7: not sent$"):
        confirm(kick, "demo")


def test_a_finished_run_takes_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run(tmp_path / "demo-1", rounds=2, devices=2)
    assert main(["command", "demo", "pause", "--runs", str(tmp_path)]) == 1
    assert "demo-1: must be live, got status done" in capsys.readouterr().err
    assert main(["command", "other", "pause", "--runs", str(tmp_path)]) == 2


def test_a_replay_names_what_was_changed_in_the_run_of_its_file(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "demo-1", devices=2)
    run.store.add(
        CommandRow(
            id="1",
            at_s=3.0,
            action="set",
            operator="alice",
            device=None,
            name="beta",
            value=0.2,
            before=0.15,
            round=4,
        )
    )
    run.store.add(CommandRow(id="2", at_s=4.0, action="kick", device="pi-1", operator="alice"))
    run.store.flush()
    assert changed_live(run.folder) == [
        "selection.beta 0.15 to 0.2 from round 4 on, by alice at 3.00 s"
    ]
    run.store.close()
    assert changed_live(tmp_path) == []


UNKNOWN = (
    "fairbed: kick pi-55 is refused: no device 'pi-55' is known to this run; there are: pi-1, "
    "pi-2, pi-3\n"
)
"""It is refused before the question."""


def fairbed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fairbed.testbed.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
def test_a_live_run_is_steered_from_another_terminal(tmp_path: Path) -> None:
    with running(tmp_path, rounds=5_000) as run:
        folder = str(run.folder)
        run.wait_round(2)
        done = fairbed("command", folder, "set", "per_round", "1", "--json")
        found = json.loads(done.stdout)
        assert found["is_accepted"], found
        assert found["command"] == "set per_round 1"
        refused = fairbed("command", folder, "set", "per_round", "9")
        assert refused.returncode == 1
        assert refused.stderr == (
            "fairbed: set per_round 9 is refused: selection.per_round: must be at most the 3 "
            "devices of this run, got 9\n"
        )
        assert fairbed("command", folder, "kick", "pi-1").returncode == 2
        unknown = fairbed("command", folder, "kick", "pi-55")
        assert (unknown.returncode, unknown.stderr) == (1, UNKNOWN)
        assert fairbed("command", folder, "exclude", "pi-1", "--yes").returncode == 0
        assert fairbed("command", folder, "note", "a", "note").stdout == "noted\n"
        run.wait_round(run.rounds() + 3)
        ended = fairbed("command", folder, "stop-after-round")
        code, out, err = run.finish()
    assert code == 0, err
    summary = json.loads(out)
    last = summary["rounds_completed"]
    assert ended.stdout in (
        f"the run ends after round {last}\n",
        "no round is open: the run ends now\n",
    )
    assert summary["status"] == "stopped"
    first = summary["changes"][0]["round"]
    assert [(x["what"], x["value"], x["operator"]) for x in summary["changes"]] == [
        ("selection.per_round", 1.0, "local"),
        ("exclude pi-1", None, "local"),
    ]
    with RunReader(run.folder) as reader:
        assert {row.selected for row in reader.rounds() if row.round > first} == {1}
