"""Records this machine: watches it, has it train, asks its storage and its link.

How fast the storage of a folder is read, past the cache of the system.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbed.device_agent.cgroup import read_text
from fairbed.testbed.recording.analysis.findings import Finding, NotMeasured
from fairbed.testbed.recording.analysis.from_machine import Probed, TrainingPace, Watched
from fairbed.testbed.recording.analysis.readings import Reading
from fairbed.testbed.recording.kernel import Window, kernels
from fairbed.testbed.recording.machine import MachineReader, own_s, sample

FILE_BYTES = 64 << 20
"""A card that reads 20 MB/s takes three seconds."""

BLOCK_BYTES = 1 << 20

SPARE_RATIO = 4
"""The disk must have this many times the file free."""

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})

CACHED_RATIO = 0.7
"""Who reads past the cache at more than this share of the cache's own rate did not read past it."""


def read_rate(folder: Path, n_bytes: int = FILE_BYTES, root: Path = Path("/")) -> Finding:
    """Return the sequential read rate, bytes/s, of a file that is written for this and deleted.

    Raises:
        NotMeasured: The folder lies in memory, is full or not writable, or the system keeps the
            file in its cache.
    """
    kind = filesystem(folder.resolve(), root)
    if kind in IN_MEMORY:
        raise NotMeasured(f"{folder} lies in memory ({kind}); take --out on the storage")
    path = folder / f".fairbed-record-{os.getpid()}"
    try:
        if shutil.disk_usage(folder).free < SPARE_RATIO * n_bytes:
            raise NotMeasured(f"{folder} has less than {SPARE_RATIO * n_bytes >> 20} MB free")
        try:
            _write(path, n_bytes)
            past_s = _read_s(path, is_cached=False)
            cached_s = _read_s(path, is_cached=True)
        finally:
            path.unlink(missing_ok=True)
    except OSError as exc:
        raise NotMeasured(f"{folder} must be writable, got: {exc.strerror or exc}") from exc
    if cached_s > CACHED_RATIO * past_s:
        raise NotMeasured(f"the system keeps what is read from {folder} in its cache")
    return Finding(
        n_bytes / past_s, f"{n_bytes >> 20} MB on {kind or 'its file system'}, past the cache"
    )


def filesystem(folder: Path, root: Path = Path("/")) -> str | None:
    """Return the kind of file system that a folder lies on; None if nobody tells."""
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


ALONE_S = 3.0
"""Training on one core, before the device is warm: what `core_speed` is told by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSession:
    """What to do, and for how long."""

    folder: Path
    """Where the profile will be; its storage is measured."""
    watch_s: float
    """While nothing is started: background load, transfers of others, clock, temperature."""
    load_s: float
    """Training on all cores; 0 leaves it out."""
    interface: str | None = None
    """None is that of the default route."""
    probe: Callable[[], Probed] | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the watching itself took."""

    cpu_s: float
    wall_s: float

    @property
    def ratio(self) -> float:
        """Share of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0.0 else 0.0


def record(session: RecordingSession, say: Callable[[str], None]) -> tuple[Watched, Cost]:
    """Return what was seen of this machine, and what the watching cost.

    Args:
        session: What to do.
        say: Told what is going on, a line each.

    Raises:
        ProbeFailed: The link was to be probed and cannot be.
    """
    session.folder.mkdir(parents=True, exist_ok=True)
    probed = None
    if session.probe is not None:  # first: a peer that is not there should cost nobody a minute
        say("probing the link")
        probed = session.probe()
    reader = MachineReader(session.interface)
    say(f"watching for {session.watch_s:g} s")
    cpu_s, wall_s = own_s(), time.monotonic()
    idle = sample(reader, session.watch_s)
    cost = Cost(own_s() - cpu_s, time.monotonic() - wall_s)
    say("reading the storage")
    storage = _storage(session.folder)
    say(f"training on one core for {ALONE_S:g} s")
    alone = _alone(session.folder, reader.began_s)
    load: Sequence[Reading] = ()
    loaded: Sequence[TrainingPace] = ()
    if session.load_s > 0.0 and not isinstance(alone, NotMeasured):
        cores = reader.sensors.cores()
        say(f"training on all {cores} cores for {session.load_s:g} s")
        load, loaded = _loaded(session, reader, cores)
    seen = Watched(
        cores=reader.sensors.cores(),
        memory_bytes=reader.sensors.memory_bytes(),
        idle=idle,
        alone=alone,
        load=load,
        loaded=loaded,
        storage=storage,
        probed=probed,
    )
    return seen, cost


def _storage(folder: Path) -> Finding | NotMeasured:
    try:
        return read_rate(folder)
    except NotMeasured as exc:
        return exc


def _alone(folder: Path, began_s: float) -> Sequence[TrainingPace] | NotMeasured:
    try:
        with kernels(1, ALONE_S, folder) as running:
            while not running.is_over():
                time.sleep(0.05)
            return paces(running.windows(), began_s)
    except NotMeasured as exc:
        return exc


def _loaded(
    session: RecordingSession, reader: MachineReader, cores: int
) -> tuple[Sequence[Reading], Sequence[TrainingPace]]:
    with kernels(cores, session.load_s, session.folder) as running:
        load = sample(reader, float("inf"), is_over=running.is_over)
        try:
            return load, paces(running.windows(), reader.began_s)
        except NotMeasured:
            return load, ()


def paces(windows: Sequence[Window], began_s: float) -> list[TrainingPace]:
    """Return windows of the reference step in seconds of the reference machine."""
    from fairbed.testbed.host.speed import REFERENCE_STEP_S

    return [
        TrainingPace(window.ends_s - began_s, window.steps * REFERENCE_STEP_S, window.cpu_s)
        for window in windows
    ]
