"""Signals that end a command before its work began."""

import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

from fairbed.testbed.cli import NOT_BEGUN
from fairbed.testbed.cli.main import main
from fairbed.testbed.host.termination import STOPPING

QUICKSTART = Path(__file__).parents[3] / "fairbed" / "examples" / "quickstart.toml"

TIMEOUT_S = 30.0


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("command", ["run", "coordinator"])
def test_a_signal_during_a_start_ends_it_with_status_0(
    command: str,
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [signal.getsignal(one) for one in STOPPING]

    def planned(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("fairbed.testbed.cli.run.plan_run", planned)
    out = tmp_path / "run"
    assert main([command, str(QUICKSTART), "--headless", "--out", str(out)]) == 0
    assert capsys.readouterr().err == f"fairbed: {NOT_BEGUN}\n"
    assert not out.exists()
    assert [signal.getsignal(one) for one in STOPPING] == before


def test_a_signal_while_a_class_is_made_ends_a_start_with_status_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    def planned(*_: object, **__: object) -> None:
        type("Owner", (), {"field": Field()})

    monkeypatch.setattr("fairbed.testbed.cli.run.plan_run", planned)
    assert main(["run", str(QUICKSTART), "--headless", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err == f"fairbed: {NOT_BEGUN}\n"


def test_a_signal_during_an_import_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nis_whole = True\n"
    (tmp_path / "met_by_a_signal.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def planned(*_: object, **__: object) -> None:
        imported.append(import_module("met_by_a_signal").is_whole)
        threading.Event().wait(TIMEOUT_S)

    monkeypatch.setattr("fairbed.testbed.cli.run.plan_run", planned)
    assert main(["run", str(QUICKSTART), "--headless", "--out", str(tmp_path / "run")]) == 0
    assert imported == [True]
    assert capsys.readouterr().err == f"fairbed: {NOT_BEGUN}\n"


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_any_time_of_a_start_end_it_with_status_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "run", str(QUICKSTART)]
    first_s = 0.3 * STOPPING.index(number)
    for attempt in range(3):
        out = tmp_path / str(attempt)
        process = subprocess.Popen(
            [*command, "--headless", "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            # From there on the handlers are set; before, Python itself is loaded.
            has_begun = Path(f"/proc/{process.pid}/status")
            while not catches(has_begun, number):
                time.sleep(0.005)
            time.sleep(first_s + 0.6 * attempt)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, (attempt, errors)
        assert "Traceback" not in errors
        assert (out / "run.db").exists() or not out.exists()


def catches(status: Path, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal, SIGTERM to begin with."""
    caught = next(x for x in status.read_text().splitlines() if x.startswith("SigCgt"))
    mask = int(caught.split()[1], 16)
    return bool(mask >> (signal.SIGTERM - 1) & 1) and bool(mask >> (number - 1) & 1)
