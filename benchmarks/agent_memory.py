"""Memory of one agent process: before its first task, and with the CNN session after training.

    fairbed bench agent-memory [--json]

Before: joined to a broker on which nobody has spoken yet; resident, and of that its own (the rest
are the libraries' files, as much of them as the system sees fit to map). With the session: what one
unthrottled agent reports last over sixty rounds of the quickstart's CNN.
"""

import argparse
import compileall
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import msgspec
import psutil

import device_agent
import wire
from coordinator.store import RunReader
from testbed.broker import start_broker
from testbed.guard import guarded

EXPERIMENT = """
name = "agent-memory"
rounds = 60
[selection]
policy = "uniform"
per_round = 1
[round]
min_devices = 1
[evaluation]
every = 0
[training]
epochs = 5
[[fleet]]
name = "agent"
count = 1
"""

SETTLE_S = 2.0
"""Time for the agent to connect and subscribe; its memory does not change afterwards."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print what it measured; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench agent-memory", description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    resident, own = anyio.run(_before)
    result = {
        "before_first_task_mib": resident,
        "before_first_task_own_mib": own,
        "with_cnn_session_mib": _with_session(),
    }
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<28}{value:.1f}")
    return 0


async def _before() -> tuple[float, float]:
    for package in (device_agent, wire):  # compiling at the start would leave 4 MiB behind
        compileall.compile_dir(package.__path__[0], quiet=1)
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        async with start_broker(folder=Path(folder)) as broker:
            command = [sys.executable, "-m", "device_agent.cli", "--broker", broker.url]
            command += ["--name", "agent-1", "--cache", folder, "--log-level", "warning"]
            async with await anyio.open_process(guarded(command)) as process:
                await anyio.sleep(SETTLE_S)
                memory = psutil.Process(process.pid).memory_info()
                process.terminate()
            return memory.rss / 2**20, (memory.rss - memory.shared) / 2**20


def _with_session() -> float:
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        (folder / "experiment.toml").write_text(EXPERIMENT, encoding="utf-8")
        command = [sys.executable, "-m", "testbed.cli", "run", str(folder / "experiment.toml")]
        command += ["--headless", "--json", "--out", str(folder / "run")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with RunReader(folder / "run") as reader:
            return max(row.rss_bytes or 0 for _, row in reader.telemetry_latest()) / 2**20
