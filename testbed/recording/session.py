"""Records this machine: idle readings, training, storage and link.

The read rate of the storage is measured without the system's cache.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbed.device_agent.cgroup import read_text
from fairbed.testbed.progress import Bar
from fairbed.testbed.recording.analysis.findings import Finding, NotMeasured
from fairbed.testbed.recording.analysis.from_machine import (
    MachineRecording,
    ProbeResult,
    TrainingSpeed,
)
from fairbed.testbed.recording.analysis.readings import Reading
from fairbed.testbed.recording.kernel import Window, kernels
from fairbed.testbed.recording.machine import MachineReader, own_s, sample
from fairbed.testbed.recording.rates import measured_rates

FILE_BYTES = 64 << 20
"""A card that reads 20 MB/s takes three seconds."""

BLOCK_BYTES = 1 << 20

SPARE_RATIO = 4
"""Free space that the disk must have, in sizes of the file."""

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})

CACHED_RATIO = 0.7
"""An uncached read faster than this share of the cached rate came from the cache."""


def read_rate(folder: Path, n_bytes: int = FILE_BYTES, root: Path = Path("/")) -> Finding:
    """Return the sequential read rate, bytes/s, measured with a temporary file.

    Raises:
        NotMeasured: The folder is in memory, is full or not writable, or the system reads the
            file from its cache.
    """
    kind = filesystem(folder.resolve(), root)
    if kind in IN_MEMORY:
        raise NotMeasured(f"{folder} is in memory ({kind}); set --out to a folder on the storage")
    path = folder / f".fairbed-record-{os.getpid()}"
    try:
        if shutil.disk_usage(folder).free < SPARE_RATIO * n_bytes:
            raise NotMeasured(f"{folder} has less than {SPARE_RATIO * n_bytes >> 20} MB free")
        try:
            _write(path, n_bytes)
            uncached_s = _read_s(path, is_cached=False)
            cached_s = _read_s(path, is_cached=True)
        finally:
            path.unlink(missing_ok=True)
    except OSError as exc:
        raise NotMeasured(f"{folder} must be writable, got: {exc.strerror or exc}") from exc
    if cached_s > CACHED_RATIO * uncached_s:
        raise NotMeasured(f"the system serves reads of {folder} from its cache")
    return Finding(
        n_bytes / uncached_s,
        f"{n_bytes >> 20} MB on {kind or 'its file system'}, without the cache",
    )


def filesystem(folder: Path, root: Path = Path("/")) -> str | None:
    """Return the file system type of a folder; None if unknown."""
    found: tuple[int, str] | None = None
    for line in (read_text(root / "proc/self/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        mount = Path(fields[1])
        if folder.is_relative_to(mount) and (found is None or len(mount.parts) >= found[0]):
            found = (len(mount.parts), fields[2])
    return None if found is None else found[1]


def _write(path: Path, n_bytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(n_bytes // BLOCK_BYTES):
            file.write(os.urandom(BLOCK_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _read_s(path: Path, *, is_cached: bool) -> float:
    block = memoryview(bytearray(BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        if not is_cached and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        while file.readinto(block):
            pass
        return max(time.perf_counter() - began, 1e-9)


SINGLE_CORE_S = 3.0
"""Training on one core before the device heats up, which gives `core_speed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSession:
    """Settings of a recording."""

    folder: Path
    """Folder of the profile; its storage is measured."""
    watch_s: float
    """Duration of idle readings: background load, transfers, clock and temperature."""
    load_s: float
    """Duration of training on all cores; 0 leaves it out."""
    interface: str | None = None
    """Network interface; None is that of the default route."""
    probe: Callable[[], ProbeResult] | None = None


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """Processor time of the idle readings."""

    cpu_s: float
    wall_s: float

    @property
    def ratio(self) -> float:
        """Share of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0.0 else 0.0


def planned_s(session: RecordingSession) -> float:
    """Return the time that a recording observes and trains, seconds."""
    return session.watch_s + SINGLE_CORE_S + session.load_s


def record(session: RecordingSession, bar: Bar) -> tuple[MachineRecording, RecordingCost]:
    """Record this machine; return the recording and the cost of the idle readings.

    Args:
        session: Settings of the recording.
        bar: Shows the steps and the seconds of `planned_s`.

    Raises:
        ProbeFailed: The link cannot be probed.
    """
    session.folder.mkdir(parents=True, exist_ok=True)
    probe = None
    if session.probe is not None:  # first, so that an unreachable peer fails at once
        bar.line("fairbed: probing the link")
        probe = session.probe()
    reader = MachineReader(session.interface)
    bar.line(f"fairbed: recording the idle machine for {session.watch_s:g} s")
    cpu_s, wall_s = own_s(), time.monotonic()
    idle = sample(reader, session.watch_s, is_over=_shown(bar, 0.0, session.watch_s))
    cost = RecordingCost(own_s() - cpu_s, time.monotonic() - wall_s)
    bar.line("fairbed: reading the storage")
    storage = _storage(session.folder)
    bar.line(f"fairbed: training on one core for {SINGLE_CORE_S:g} s")
    single_core = _single_core(session, reader.began_s, bar)
    bar.line("fairbed: multiplying matrices and copying memory on all cores")
    rates = _rates(reader.sensors.cores())
    load: Sequence[Reading] = ()
    all_cores: Sequence[TrainingSpeed] = ()
    if session.load_s > 0.0 and not isinstance(single_core, NotMeasured):
        cores = reader.sensors.cores()
        bar.line(f"fairbed: training on all {cores} cores for {session.load_s:g} s")
        load, all_cores = _all_cores(session, reader, cores, bar)
    recording = MachineRecording(
        cores=reader.sensors.cores(),
        memory_bytes=reader.sensors.memory_bytes(),
        idle=idle,
        single_core=single_core,
        load=load,
        all_cores=all_cores,
        storage=storage,
        rates=rates,
        probe=probe,
    )
    return recording, cost


def _storage(folder: Path) -> Finding | NotMeasured:
    try:
        return read_rate(folder)
    except NotMeasured as exc:
        return exc


def _rates(cores: int) -> tuple[Finding, Finding] | NotMeasured:
    try:
        return measured_rates(cores)
    except NotMeasured as exc:
        return exc


def _shown(
    bar: Bar, first_s: float, duration_s: float, is_over: Callable[[], bool] = lambda: False
) -> Callable[[], bool]:
    """Return `is_over` of a step that begins now; each call shows the time on the bar."""
    began_s = time.monotonic()

    def is_over_shown() -> bool:
        bar.update(first_s + min(time.monotonic() - began_s, duration_s))
        return is_over()

    return is_over_shown


def _single_core(
    session: RecordingSession, began_s: float, bar: Bar
) -> Sequence[TrainingSpeed] | NotMeasured:
    try:
        with kernels(1, SINGLE_CORE_S, session.folder) as running:
            is_over = _shown(bar, session.watch_s, SINGLE_CORE_S, running.is_over)
            while not is_over():
                time.sleep(0.05)
            return training_speeds(running.windows(), began_s)
    except NotMeasured as exc:
        return exc


def _all_cores(
    session: RecordingSession, reader: MachineReader, cores: int, bar: Bar
) -> tuple[Sequence[Reading], Sequence[TrainingSpeed]]:
    with kernels(cores, session.load_s, session.folder) as running:
        before_s = session.watch_s + SINGLE_CORE_S
        is_over = _shown(bar, before_s, session.load_s, running.is_over)
        load = sample(reader, float("inf"), is_over=is_over)
        try:
            return load, training_speeds(running.windows(), reader.began_s)
        except NotMeasured:
            return load, ()


def training_speeds(windows: Sequence[Window], began_s: float) -> list[TrainingSpeed]:
    """Convert windows of reference steps to seconds of the reference machine."""
    from fairbed.testbed.host.speed import REFERENCE_STEP_S

    return [
        TrainingSpeed(window.ends_s - began_s, window.steps * REFERENCE_STEP_S, window.cpu_s)
        for window in windows
    ]
