"""Measures matrix products and memory traffic of this machine, one child process per core.

    python -m fairbed.testbed.recording.rates PARENT < go > `Rates` in JSON

All processes begin together, so that they share caches, memory and power as the threads of a
training step do; the rate of the machine is their sum.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
from msgspec import Struct

from fairbed.testbed.host.guard import die_with_parent
from fairbed.testbed.recording.analysis.findings import Finding, NotMeasured

SIZE = 512
"""Rows and columns of the matrices, float32: three of them fit into the caches of a board."""

COPIED_BYTES = 32 << 20
"""Larger than the caches of a core."""

MEASURE_S = 1.5
"""Duration of each of the two measurements."""

TIMEOUT_S = 60.0
"""Time to load numpy and to end; a Raspberry Pi Zero takes 10 s."""


class Rates(Struct, frozen=True, kw_only=True):
    """Rates of one process."""

    flops: float
    """Operations of matrix products per second."""
    bytes_per_s: float
    """Bytes that a copy reads and writes, per second."""


def measured_rates(cores: int) -> tuple[Finding, Finding]:
    """Return the rate of matrix products and of memory traffic on all cores together.

    Raises:
        NotMeasured: A process fails, or there is not enough memory.
    """
    single = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, "-m", "fairbed.testbed.recording.rates", str(os.getpid())]
    with ExitStack() as stack:
        try:
            processes = [
                stack.enter_context(_Running(command, {**os.environ, **single}))
                for _ in range(cores)
            ]
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()  # it has loaded numpy
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(b"go\n")
                process.stdin.flush()
            lines = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
            found = [msgspec.json.decode(line, type=Rates) for line in lines]
        except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as exc:
            raise NotMeasured(f"matrix products must run on all cores here: {exc}") from exc
    how = f"{MEASURE_S:g} s on {cores} cores at once"
    return (
        Finding(
            sum(rates.flops for rates in found),
            f"products of float32 matrices of {SIZE} x {SIZE}, {how}",
        ),
        Finding(
            sum(rates.bytes_per_s for rates in found),
            f"copies of {COPIED_BYTES >> 20} MB, read and written, {how}",
        ),
    )


class _Running:
    """A process that is killed at the end."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> "subprocess.Popen[bytes]":
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def rates() -> Rates:
    """Return the rates of this process."""
    import numpy as np

    a = np.full((SIZE, SIZE), 0.5, np.float32)
    product = np.empty_like(a)
    flops = 2.0 * SIZE**3 * _per_second(lambda: np.matmul(a, a, out=product))
    source = np.zeros(COPIED_BYTES, np.uint8)
    copy = np.ones_like(source)
    return Rates(
        flops=flops,
        bytes_per_s=2.0 * COPIED_BYTES * _per_second(lambda: np.copyto(copy, source)),
    )


def _per_second(work: Callable[[], object]) -> float:
    work()
    count, began = 0, time.monotonic()
    while (took_s := time.monotonic() - began) < MEASURE_S:
        work()
        count += 1
    return count / took_s


def main() -> int:
    """Load numpy, wait for a line on stdin, measure; the first argument is the parent's id."""
    import numpy  # noqa: F401  # before the wait, so that all processes begin together

    die_with_parent(int(sys.argv[1]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(msgspec.json.encode(rates()).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
