"""Runs the training step that defines core speeds, for some time, in a child process.

    python -m fairbed.testbed.recording.kernel PARENT SECONDS > a `Window` in JSON, one a line

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
"""Steps are counted over at least this time."""

CALM_RATE = 1e-6
"""Learning rate that leaves the model where it is."""

EPOCHS = 10_000
BATCHES = 4
"""Of one epoch: as many examples as these take."""

GRACE_S = 60.0
"""To load the training runtime, and to end; a Raspberry Pi Zero takes 20."""


class Window(Struct, frozen=True, kw_only=True):
    """Some steps in a row."""

    ends_s: float
    """On this machine's monotonic clock, which all processes share."""
    wall_s: float
    steps: int
    cpu_s: float
    """Processor time of the training thread."""


class _Counter:
    """A meter that tells of windows, and when the time is over."""

    def __init__(self, duration_s: float, out: IO[bytes]) -> None:
        self._out = out
        self._began = self._ends = time.monotonic()
        self._ends += duration_s
        self._cpu = time.thread_time()
        self._steps = 0

    def step(self, n_examples: int) -> None:
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
    """Have so many processes train side by side; end them all at the end.

    Args:
        processes: How many.
        duration_s: For how long, once the runtime is loaded.
        folder: Takes what they tell, while they run.

    Raises:
        NotMeasured: None can be started.
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


def _start(stack: ExitStack, told: Path, duration_s: float) -> "subprocess.Popen[bytes]":
    """Start one process that tells into a file; the stack ends it and removes the file."""
    stack.callback(told.unlink, missing_ok=True)
    out = stack.enter_context(told.open("wb"))
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
        self, processes: list["subprocess.Popen[bytes]"], told: Path, deadline_s: float
    ) -> None:
        self._processes, self._told, self._deadline_s = processes, told, deadline_s

    def is_over(self) -> bool:
        """Return whether they have ended, or take far too long."""
        has_ended = all(process.poll() is not None for process in self._processes)
        return has_ended or time.monotonic() > self._deadline_s

    def windows(self) -> list[Window]:
        """Return what the first of them has told; call it when `is_over`.

        Raises:
            NotMeasured: It failed.
        """
        first = self._processes[0]
        if first.poll() != 0:
            words = b"" if first.poll() is None or first.stderr is None else first.stderr.read()
            last = (words.decode(errors="replace").strip().splitlines() or ["it took too long"])[-1]
            raise NotMeasured(f"a step of training must run here, got: {last}")
        return [
            msgspec.json.decode(line, type=Window) for line in self._told.read_bytes().splitlines()
        ]


def train(duration_s: float, out: IO[bytes]) -> None:
    """Train for so long, and tell."""
    from fairbed.device_agent import trainer
    from fairbed.device_agent.engines.onnx import OnnxEngine
    from fairbed.testbed.host.speed import BATCH, probe
    from fairbed.wire.artifact import decode_artifact
    from fairbed.wire.selfcheck import selfcheck_inputs

    wanted = probe()
    engine = OnnxEngine(decode_artifact(wanted.artifact))
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=BATCHES * BATCH)
    calm = msgspec.structs.replace(
        wanted.hyperparameters, epochs=EPOCHS, learning_rate=CALM_RATE, max_steps=None
    )
    counter = _Counter(duration_s, out)
    while not counter.is_over():
        trainer.train(engine, vector, x, y, calm, 0, counter, counter.is_over)


def main() -> int:
    """Train for the seconds of the second argument; the first is our parent's process id."""
    die_with_parent(int(sys.argv[1]))
    train(float(sys.argv[2]), sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
