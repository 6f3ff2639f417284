"""The end of a run: by a signal, or when a part of its fleet has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from fairbed.coordinator.server.service import Coordinator
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.termination import STOPPING, signals_restored
from fairbed.testbed.run.stopping import StopControl, ended_by_signals

GONE = "x/cpu.max: the limit is gone; start again"


@pytest.mark.parametrize(
    ("ended", "found"),
    [
        (
            HelperEnded("proxy-0", -9, False, False),
            "proxy-0: ended with signal 9; the fleet is lost",
        ),
        (HelperEnded("control groups", 1, False, False, GONE), GONE),
        (HelperEnded("proxy-0", -9, True, False), None),
    ],
)
def test_the_end_of_a_helper_fails_the_run_and_names_the_cause_if_it_is_known(
    ended: HelperEnded, found: str | None
) -> None:
    async def failure() -> Exception | None:
        stop = StopControl()
        stop.on_process_end(ended)
        return stop.failure

    why = anyio.run(failure)
    assert (None if why is None else str(why)) == found


def test_the_first_failure_is_the_cause_of_the_others() -> None:
    async def failure() -> Exception | None:
        stop = StopControl()
        for cause in (GONE, "no agent is alive"):
            stop.fail(BackendError(cause))
        return stop.failure

    assert str(anyio.run(failure)) == GONE


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("end", "status"), [("return 'stopped'", 0), ("raise BrokerError('run.db: full')", 1)]
)
def test_a_signal_after_the_end_does_not_change_the_exit_status(
    end: str, status: int, tmp_path: Path
) -> None:
    """Issue #20: a run that a full disk ended, and then SIGTERM, had status -15 once."""
    (tmp_path / "a.toml").write_text('name = "a"\n[[fleet]]\ncount = 4\n', encoding="utf-8")
    command = [sys.executable, "-c", _LATE.format(end=end), "run", "a.toml", "--headless"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60.0, check=False
    )
    assert done.returncode == status, done.stderr
    lines = done.stderr.splitlines()
    assert lines == ["fairbed: run.db: full"] * status + ["the interpreter ends"]


_LATE = """
import atexit, os, signal, sys
from fairbed.testbed.cli import main, run
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.run import supervisor

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)

async def ended(plan, *_):
    plan.folder.mkdir(parents=True, exist_ok=True)
    {end}

def late(do):
    return lambda *arguments, **options: (kill(), do(*arguments, **options))[1]

supervisor._run = ended
supervisor._clean_up = late(lambda *_: None)
main._fail = late(main._fail)
run._close = late(lambda *_, **__: 0)
run.DATABASE = "."  # exists
atexit.register(late(lambda: print("the interpreter ends", file=sys.stderr)))
sys.exit(main.console())
"""


def test_signals_do_afterwards_what_they_did_before() -> None:
    async def run() -> None:
        with ended_by_signals(StopControl(), lambda: None):
            assert callable(signal.getsignal(signal.SIGTERM))

    before = [signal.getsignal(number) for number in STOPPING]
    with signals_restored():
        anyio.run(run)
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in STOPPING] == before


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_the_first_signal_ends_a_run_gracefully_and_the_second_at_once() -> None:
    calls: list[str] = []

    async def run() -> None:
        stop = StopControl()
        stop.coordinator = cast(Coordinator, SimpleNamespace(stop=lambda: calls.append("stopped")))
        with ended_by_signals(stop, lambda: calls.append("interrupted")), stop.scope:
            os.kill(os.getpid(), signal.SIGHUP)
            await anyio.wait_all_tasks_blocked()
            assert calls == ["interrupted", "stopped"]
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep_forever()
        os.kill(os.getpid(), signal.SIGTERM)

    with signals_restored():
        anyio.run(run)
    assert calls == ["interrupted", "stopped", "interrupted"]
