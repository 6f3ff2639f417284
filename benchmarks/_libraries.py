"""Where processes spend their time, by library, from the samples of `perf` (Linux)."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fairbed.testbed.host.guard import guarded

PERF_S = 60.0
"""Longest time in which `perf` ends, or reads its samples."""
HERTZ = 997
WORK = {
    "libcrypto": "sha256",
    "libz": "crc32",
    "onnxruntime": "training step in onnxruntime",
    "_multiarray_umath": "numpy",
    "openblas": "numpy",
    "kernel": "kernel: sockets, wake-ups, pages",
    "libc.": "C library: copies, memory",
    "libpython": "Python",
    "python3": "Python",
}
"""What the processor does in a library whose name has such a part."""
OTHER = "other libraries"


@contextmanager
def sampled(pids: Collection[int], file: Path) -> Iterator[None]:
    """Write samples of processes into a file while the context lasts.

    Raises:
        SystemExit: There is no `perf`, or it may not sample.
    """
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ), "-o", str(file)]
    command += ["-p", ",".join(map(str, pids))]
    with subprocess.Popen(guarded(command), stderr=subprocess.PIPE, encoding="utf-8") as perf:
        try:
            yield
        finally:
            perf.send_signal(signal.SIGINT)
            try:
                _, error = perf.communicate(timeout=PERF_S)
            except subprocess.TimeoutExpired:
                perf.kill()
                raise
    if not file.exists():
        line = (error.strip() or "it wrote nothing").splitlines()[0]
        raise SystemExit(f"perf: must sample processes, got: {line}; install linux-perf")


def work_of(file: Path, kinds: Mapping[int, str]) -> "Counter[tuple[str, str]]":
    """Return the number of samples by (work, kind of process).

    Args:
        file: Written by `sampled`.
        kinds: Of the processes.
    """
    found = subprocess.run(
        ["perf", "script", "-i", str(file), "-F", "pid,ip,dso"],
        capture_output=True,
        encoding="utf-8",
        timeout=PERF_S,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    counts = Counter[tuple[str, str]]()
    for line in found.stdout.splitlines():
        if parts := line.split(maxsplit=2):
            kind = kinds.get(int(parts[0]))
            if kind is not None:
                work = next((work for name, work in WORK.items() if name in parts[2]), OTHER)
                counts[work, kind] += 1
    return counts
