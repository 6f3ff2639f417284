"""Memory of one agent process: before its first task, and with the CNN session after training.

    fairbed bench agent-memory [--json]

Before: connected to a broker without a coordinator; resident memory, and its private part (the
rest are mapped library files). With the session: the largest value that one unthrottled agent
reports after training in rounds of the quickstart's CNN, and of the CNN for 28x28 pixels. Last the
quickstart's CNN as a torch module, and the processor time in which a fresh process imports torch
and opens that module, beside that of onnxruntime and its graph.
"""

import argparse
import compileall
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import msgspec
import psutil

from benchmarks._live_run import live_run, save_random_examples
from fairbed import device_agent, wire
from fairbed.coordinator.policy.config import ModelEngine
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.run.broker import start_broker
from fairbed.wire.artifact import encode_artifact

ROUNDS = 20
PICTURES = 1000
"""Examples of 28x28 pixels; a fifth is held out."""

TORCH_CNN = "benchmarks._torch_cnn:make"

OPENINGS = 5
"""Processes whose median processor time counts."""

OPENING = """
import sys, time
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.wire.artifact import decode_artifact
began = time.process_time()
open_own_engine(decode_artifact(open(sys.argv[1], "rb").read()))
print(time.process_time() - began)
"""

SETTLE_S = 2.0
"""Time for the agent to connect and subscribe; its memory does not change afterwards."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench agent-memory", description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    resident, own = anyio.run(_before)
    result = {
        "before_first_task_mib": resident,
        "before_first_task_own_mib": own,
        "with_cnn_session_mib": _with_session(),
        "with_cnn_28x28_session_mib": _with_session((1, 28, 28)),
        "with_cnn_in_torch_mib": _with_session(model=TORCH_CNN, engine="torch"),
        "open_cnn_s": _opening_s("cnn", "onnx"),
        "open_cnn_in_torch_s": _opening_s(TORCH_CNN, "torch"),
    }
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<28}{value:.2f}" if key.endswith("_s") else f"{key:<28}{value:.1f}")
    return 0


async def _before() -> tuple[float, float]:
    for package in (device_agent, wire):  # compilation at the start would keep 4 MiB
        compileall.compile_dir(package.__path__[0], quiet=1)
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        async with start_broker(folder=Path(folder)) as broker:
            command = [sys.executable, "-m", "fairbed.device_agent.cli", "--broker", broker.url]
            command += ["--name", "agent-1", "--cache", folder, "--log-level", "warning"]
            async with await anyio.open_process(guarded(command)) as process:
                await anyio.sleep(SETTLE_S)
                memory = psutil.Process(process.pid).memory_info()
                process.terminate()
            return memory.rss / 2**20, (memory.rss - memory.shared) / 2**20


def _with_session(
    x_shape: tuple[int, ...] | None = None, model: str = "cnn", engine: str = "auto"
) -> float:
    """Return the largest memory of an agent after a round, MiB; None trains on the digits."""
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder, data = Path(name), Path("digits")
        if x_shape is not None:
            data = folder / "random.npz"
            save_random_examples(data, PICTURES, x_shape)
        with live_run(folder, data, agents=1, rounds=ROUNDS, model=model, engine=engine) as run:
            return max(run.rss_mib()["agents"] for k in run.rounds() if k < ROUNDS)


def _opening_s(model: str, engine: ModelEngine) -> float:
    """Return the processor time of a fresh process for the first engine of a task."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(encode_artifact(load_task(model, (1, 8, 8), 10, engine=engine)))
        file.flush()
        times_s = []
        for _ in range(OPENINGS):
            done = subprocess.run(
                [sys.executable, "-c", OPENING, file.name], capture_output=True, check=True
            )
            times_s.append(float(done.stdout))
    return statistics.median(times_s)
