"""A live run whose device hangs names it, and goes on at a command."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import AlertRow
from tests.testbed.small_run import LIMIT_S, Running, running, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.full]

NEEDS_ALL = """
[[fleet]]
name = "pi"
count = 3
"""


def stalled(run: Running) -> AlertRow | None:
    """Return the standing alert of a stall that STATUS names, too."""
    with RunReader(run.folder) as reader:
        found = [alert for alert in reader.standing_alerts() if alert.kind == "stalled"]
        return found[0] if found and reader.run().waiting else None


ASYNC = ["--set", "round.mode=async", "--set", "round.concurrency=3", "--set", "round.buffer={}"]
"""Rounds of an updates' buffer of some size; all devices are at work at the same time."""


@pytest.mark.parametrize(
    ("more", "command", "needs"),
    [
        ([], "set", "round"),
        (ASYNC, "exclude", "update"),
    ],
)
def test_a_hung_device_is_named_within_seconds_and_a_command_goes_on(
    more: list[str], command: str, needs: str, tmp_path: Path
) -> None:
    options = [one.format(2 if needs == "round" else 3) for one in more]
    options += ["--set", "round.min_devices=3"] if needs == "round" else []
    # An asynchronous round ends at its deadline, with the updates that it has.
    options += ["--set", f"round.deadline_s={5 if needs == 'round' else 60}"]
    with running(tmp_path, rounds=50_000, fleet=NEEDS_ALL, options=options) as run:
        run.wait_round(3)
        agents = [x for x in run.family() if "fork_server" in " ".join(x.cmdline())]
        agent = max(agents, key=psutil.Process.create_time)
        agent.suspend()
        began = time.monotonic()
        try:
            alert = wait_until(lambda: stalled(run), "the alert")
            assert alert is not None
            # 3 s until it is silent, 5 s of the alert, and this busy machine.
            assert time.monotonic() - began < 15.0
            with RunReader(run.folder) as reader:
                name, closed = reader.run().waiting, len(reader.rounds())
            assert re.search(rf"{name} \(silent since \d\d:\d\d:\d\d\)", alert.text)
            assert f"exclude {name}" in alert.text
            words = ["exclude", name] if command == "exclude" else ["set", "min_devices", "2"]
            argv = [sys.executable, "-m", "fairbed.testbed.cli.main", "command", str(run.folder)]
            subprocess.run([*argv, *words, "--yes"], check=True, timeout=LIMIT_S)
            run.wait_round(closed + 5)
        finally:
            agent.resume()
        run.process.send_signal(signal.SIGTERM)
        code, _, err = run.finish()
    assert code == 0, err
    assert f"alert: {alert.kind}: {alert.text}" in err
