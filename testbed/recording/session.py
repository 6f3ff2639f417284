"""Records this machine: watches it, has it train, asks its storage and its link."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.recording.findings import Finding, NotMeasured
from testbed.recording.from_machine import Pace, Probed, Watched
from testbed.recording.kernel import Window, kernels
from testbed.recording.machine import MachineReader, own_s, sample
from testbed.recording.reading import Reading
from testbed.recording.storage import read_rate

ALONE_S = 3.0
"""Training on one core, before the device is warm: what `core_speed` is told by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
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


def record(session: Session, say: Callable[[str], None]) -> tuple[Watched, Cost]:
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
    loaded: Sequence[Pace] = ()
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


def _alone(folder: Path, began_s: float) -> Sequence[Pace] | NotMeasured:
    try:
        with kernels(1, ALONE_S, folder) as running:
            while not running.is_over():
                time.sleep(0.05)
            return paces(running.windows(), began_s)
    except NotMeasured as exc:
        return exc


def _loaded(
    session: Session, reader: MachineReader, cores: int
) -> tuple[Sequence[Reading], Sequence[Pace]]:
    with kernels(cores, session.load_s, session.folder) as running:
        load = sample(reader, float("inf"), is_over=running.is_over)
        try:
            return load, paces(running.windows(), reader.began_s)
        except NotMeasured:
            return load, ()


def paces(windows: Sequence[Window], began_s: float) -> list[Pace]:
    """Return windows of the reference step in seconds of the reference machine."""
    from testbed.host_speed import REFERENCE_STEP_S

    return [
        Pace(window.ends_s - began_s, window.steps * REFERENCE_STEP_S, window.cpu_s)
        for window in windows
    ]
