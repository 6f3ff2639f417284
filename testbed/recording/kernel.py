"""Runs the training step that defines core speeds in a child process, for a given time.

    python -m fairbed.testbed.recording.kernel PARENT SECONDS > `Window`s in JSON, one per line

The step and the training loop are those of `testbed.host.speed`, so that recorded and calibrated
speeds are comparable.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from fairbed.testbed.host.guard import die_with_parent
from fairbed.testbed.recording.analysis.findings import NotMeasured

WINDOW_S = 0.25
"""Shortest time over which steps are counted."""

TINY_LEARNING_RATE = 1e-6
"""A learning rate with which the model hardly changes."""

EPOCHS = 10_000
BATCHES = 4
"""Mini-batches of one epoch, which give the number of examples."""

GRACE_S = 60.0
"""Time to load the training runtime and to end; a Raspberry Pi Zero takes 20 s."""


class Window(Struct, frozen=True, kw_only=True):
    """Consecutive training steps."""

    ends_s: float
    """On this machine's monotonic clock, which all processes share."""
    wall_s: float
    steps: int
    cpu_s: float
    """Processor time of the training thread."""


class _WindowMeter:
    """A meter that writes windows until the time is over."""

    def __init__(self, duration_s: float, out: IO[bytes]) -> None:
        self._out = out
        self._began = self._ends = time.monotonic()
        self._ends += duration_s
        self._cpu = time.thread_time()
        self._steps = 0

    def step(self, n_examples: int, length: int | None = None) -> None:
        self._steps += 1
        now = time.monotonic()
        if now - self._began < WINDOW_S:
            return
        cpu = time.thread_time()
        window = Window(
            ends_s=now, wall_s=now - self._began, steps=self._steps, cpu_s=cpu - self._cpu
        )
        self._out.write(msgspec.json.encode(window) + b"\n")
        self._out.flush()
        self._began, self._cpu, self._steps = now, cpu, 0

    def read(self, n_bytes: int) -> None:
        pass

    def is_over(self) -> bool:
        return self._began >= self._ends


@contextmanager
def kernels(processes: int, duration_s: float, folder: Path) -> Iterator["Kernels"]:
    """Run training processes at the same time; end all of them at the end.

    Args:
        processes: Number of processes.
        duration_s: Duration of training, once the runtime is loaded.
        folder: Folder for their output while they run.

    Raises:
        NotMeasured: A process cannot be started.
    """
    with ExitStack() as stack:
        try:
            started = [
                _start(stack, folder / f"kernel-{number}", duration_s)
                for number in range(processes)
            ]
        except OSError as exc:
            raise NotMeasured(f"training cannot be started here: {exc.strerror or exc}") from exc
        yield Kernels(started, folder / "kernel-0", time.monotonic() + duration_s + GRACE_S)


def _start(stack: ExitStack, output: Path, duration_s: float) -> "subprocess.Popen[bytes]":
    """Start one process that writes to `output`; the stack ends it and removes the file."""
    stack.callback(output.unlink, missing_ok=True)
    out = stack.enter_context(output.open("wb"))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fairbed.testbed.recording.kernel",
            str(os.getpid()),
            f"{duration_s:g}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
    )
    stack.callback(_end, process)
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()


class Kernels:
    """Processes that train; made by `kernels`."""

    def __init__(
        self, processes: list["subprocess.Popen[bytes]"], output: Path, deadline_s: float
    ) -> None:
        self._processes, self._output, self._deadline_s = processes, output, deadline_s

    def is_over(self) -> bool:
        """Return whether all processes have ended, or have missed the deadline."""
        has_ended = all(process.poll() is not None for process in self._processes)
        return has_ended or time.monotonic() > self._deadline_s

    def windows(self) -> list[Window]:
        """Return the windows of the first process; call it when `is_over`.

        Raises:
            NotMeasured: The process failed.
        """
        first = self._processes[0]
        if first.poll() != 0:
            stderr = b"" if first.poll() is None or first.stderr is None else first.stderr.read()
            errors = stderr.decode(errors="replace").strip().splitlines()
            last = errors[-1] if errors else "it took too long"
            raise NotMeasured(f"a step of training must run here, got: {last}")
        return [
            msgspec.json.decode(line, type=Window)
            for line in self._output.read_bytes().splitlines()
        ]


def train(duration_s: float, out: IO[bytes]) -> None:
    """Train for `duration_s`, and write windows to `out`."""
    from fairbed.device_agent import trainer
    from fairbed.device_agent.engines.onnx import OnnxEngine
    from fairbed.testbed.host.calibration import BATCH
    from fairbed.testbed.host.speed import reference_probe
    from fairbed.wire.artifact import decode_artifact
    from fairbed.wire.selfcheck import selfcheck_inputs

    task = reference_probe()
    engine = OnnxEngine(decode_artifact(task.artifact))
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=BATCHES * BATCH)
    hyperparameters = msgspec.structs.replace(
        task.hyperparameters, epochs=EPOCHS, learning_rate=TINY_LEARNING_RATE, max_steps=None
    )
    meter = _WindowMeter(duration_s, out)
    while not meter.is_over():
        trainer.train(engine, vector, x, y, hyperparameters, 0, meter, meter.is_over)


def main() -> int:
    """Train for the seconds of the second argument; the first is the process id of the parent."""
    die_with_parent(int(sys.argv[1]))
    train(float(sys.argv[2]), sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
