"""The devices of a run on one host: what runs there of a fleet over hosts.

    coordinator's machine              each host
    HostsBackend   -- calls -->        HostSupervisor  -->  ProcessBackend  -->  agents
                   <-- reports --

`HostSupervisor` lives in a process of its own on its host. It starts devices with the backend that
emulates them on one machine; devices that are added later, from a lost host, get one more.

Two hosts must never run the same device. A host that is cut off cannot know whether it is given up,
so it ends its devices `FENCE_S` after the last request for a report. That is before the other side
gives the host up, after `LOST_S`.

Clocks of hosts differ: their times of day, and the origins of their monotonic clocks. So durations
and ages leave a host, and no instant.
"""

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from anyio.from_thread import start_blocking_portal
from msgspec import structs

from fairbed.device_agent.sensors import real_host
from fairbed.testbed.backends.base import Conditions, DeviceSpec, Usage
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.backends.process import ProcessBackend
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.contention import PERIOD_S, SchedulerWaits, waits
from fairbed.testbed.host.speed import host_speed, machine_costs_now
from fairbed.testbed.recording.tcp_peer import serve
from fairbed.testbed.run_folder import CA_FILE
from fairbed.wire.artifact import decode_artifact
from fairbed.wire.base_files import BaseMissing, default_bases
from fairbed.wire.models import source_hash
from fairbed.wire.plugins import PluginError
from fairbed.wire.transport.address import with_cafile

LOST_S = 10.0
"""A host without a report for so long is given up, and its devices move; seconds."""

FENCE_S = 6.0
"""A host ends its devices so long after the last request for a report; seconds."""

HEARTBEAT_S = 0.25
"""Longest time between two reports; seconds."""

MIN_NEWS_S = 1e-3
"""A device that waited for so much longer is reported at once; seconds."""

MAX_LOG_BYTES = 256 * 1024
"""End of the log of a device that is kept."""

MAX_ENDED = 10_000
"""Ends of processes that wait for a report."""

MAX_READINGS = 1_000
"""Readings of the processes on the paths that wait for a report: 10 s of one process."""

FOLDER = "fairbed-host-"
"""Begin of the names of folders of supervisors."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host offers."""

    cores: int
    step_s: float
    """Processor time of the reference step on it, seconds."""


@dataclass(frozen=True, slots=True)
class FleetPart:
    """Devices that a host starts."""

    fleet: Sequence[DeviceSpec]
    """In cores of that host."""
    broker_url: str
    tenant: str
    passwords: Mapping[str, str] | None = field(repr=False)
    ca: bytes | None
    """Certificates with which the devices check the broker's; None: the URL names none."""
    costs: WorkCosts | None
    """Costs of steps on that host; None charges processor time."""
    seed: int


@dataclass(frozen=True, slots=True)
class PathReading:
    """A reading of a process that relays the bytes of devices."""

    pid: int
    age_s: float
    """Time from the reading to the report."""
    waits: SchedulerWaits


@dataclass(frozen=True, slots=True)
class HostReport:
    """The devices of a host now, and what has happened since the report before."""

    number: int
    """Of the last end of a process in `ended`, or of an earlier one."""
    ended: tuple[HelperEnded, ...]
    pids: Mapping[str, int]
    contended_s: Mapping[str, float]
    counted: Mapping[str, Mapping[str, float]]
    cpu_s: Mapping[str, float]
    readings: tuple[PathReading, ...]


class HostSupervisor:
    """Runs devices on its host; its methods are called from threads, several at a time.

    Args:
        address: Address of this host, at which the network to it is measured.
        now: Monotonic clock of this host, seconds.
    """

    def __init__(self, address: str, now: Callable[[], float] = time.perf_counter) -> None:
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(_scratch_folder())
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._address, self._now = address, now
        self._backends: list[ProcessBackend] = []
        self._backend_of: dict[str, ProcessBackend] = {}
        self._lock = threading.Lock()
        """Of all that follows."""
        self._ended: deque[tuple[int, HelperEnded]] = deque(maxlen=MAX_ENDED)
        self._n_ended = 0
        self._readings: deque[tuple[float, int, SchedulerWaits]] = deque(maxlen=MAX_READINGS)
        self._reported_s: dict[str, float] = {}
        self._requested_at = now()
        self._is_over = threading.Event()
        threading.Thread(target=self._fence, name="host.fence", daemon=True).start()

    def facts(self) -> HostFacts:
        """Return cores and speed of this host; the latter is measured unless it is known.

        Raises:
            BackendError: The speed cannot be measured.
        """
        step_s = host_speed(os.environ).step_s
        return HostFacts(cores=real_host().sensors.cores(), step_s=step_s)

    def costs(self, probe: Probe, base: bytes | None = None) -> WorkCosts:
        """Return the costs of a task on this host; they are measured unless they are known.

        Args:
            probe: The task.
            base: Frozen part of its model, which this host keeps in the cache of its user.

        Raises:
            BackendError: They cannot be measured.
            PluginError: The local rule cannot be loaded, or breaks its contract.
        """
        if base is not None:
            expected = decode_artifact(probe.artifact).base
            assert expected is not None, "a task has the base that is sent with it"
            try:
                default_bases(os.environ).receive(expected, memoryview(base))
            except (BaseMissing, OSError) as exc:
                raise BackendError(f"the frozen part of the model: {exc}") from exc
        return structs.replace(machine_costs_now(probe, os.environ), measured_at=None)

    def listen(self) -> int:
        """Serve probes of the network to this host; return the port."""
        port: int
        future, port = self._portal.start_task(serve, self._address, 0, name="host.probes")
        self._stack.callback(future.cancel)
        return port

    def differing(self, sources: Mapping[str, bytes]) -> list[str]:
        """Return the modules of a user that this host lacks, or has with another content.

        Args:
            sources: Hash of the source file of each module, by its path.
        """
        found = list[str]()
        for path, wanted in sources.items():
            try:
                is_same = source_hash(path) == wanted
            except PluginError:
                is_same = False
            if not is_same:
                found.append(path)
        return found

    def add(self, part: FleetPart) -> Mapping[str, Sequence[int]]:
        """Start devices; return the processes that relay the bytes of each.

        Raises:
            BackendError: A process cannot be started.
        """
        self._check_open()
        folder = self._folder / f"part-{len(self._backends)}"
        folder.mkdir()
        url = part.broker_url
        if part.ca is not None:
            (folder / CA_FILE).write_bytes(part.ca)
            url = with_cafile(url, str(folder / CA_FILE))
        backend = ProcessBackend(
            url,
            part.fleet,
            folder,
            tenant=part.tenant,
            passwords=part.passwords,
            on_end=self._on_end,
            seed=part.seed,
        )
        self._backends.append(backend)
        self._stack.enter_context(self._portal.wrap_async_context_manager(backend))
        self._portal.call(backend.start, part.costs)
        names = [spec.name for spec in part.fleet]
        with self._lock:
            self._backend_of.update(dict.fromkeys(names, backend))
            self._requested_at = self._now()
        return {name: backend.path_pids(name) for name in names}

    def kill(self, name: str) -> None:
        """Do what the same method of a backend does, as the next three."""
        self._portal.call(self._backend(name).kill, name)

    def restart(self, name: str, spec: DeviceSpec | None) -> None:
        """Start a device again."""
        self._portal.call(self._backend(name).restart, name, spec)

    def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change the conditions of devices."""
        for backend in list(self._backends):
            own = {
                name: wanted
                for name, wanted in conditions.items()
                if self._backend_of.get(name) is backend
            }
            if own:
                self._portal.call(backend.apply, own)

    def sample(self) -> dict[str, Usage]:
        """Return the usage of the devices that are alive."""
        found = dict[str, Usage]()
        for backend in list(self._backends):
            found.update(self._portal.call(backend.sample))
        return found

    def report(self, seen: int) -> HostReport:
        """Return a report, at once if there is news, else after `HEARTBEAT_S`.

        Args:
            seen: Number of the report before, whose news are dropped; 0 if there is none.
        """
        self._check_open()
        with self._lock:
            self._requested_at = self._now()
            while self._ended and self._ended[0][0] <= seen:
                self._ended.popleft()
        give_up = self._now() + HEARTBEAT_S
        while not self._is_over.wait(PERIOD_S):
            self._read_paths()
            if self._now() >= give_up or self._has_news():
                break
        return self._report()

    def logs(self) -> dict[str, bytes]:
        """Return the end of each log, by the name of its file."""
        files = sorted(self._folder.glob("part-*/logs/*.log"))
        found = dict[str, bytes]()
        for file in files:
            found[file.name] = (found.get(file.name, b"") + file.read_bytes())[-MAX_LOG_BYTES:]
        return found

    def close(self) -> None:
        """End all devices, and remove their files."""
        with self._lock:
            if self._is_over.is_set():
                return
            self._is_over.set()
        self._stack.close()

    def _backend(self, name: str) -> ProcessBackend:
        self._check_open()
        try:
            return self._backend_of[name]
        except KeyError:
            raise BackendError(f"{name}: must be a device of this host, got none") from None

    def _check_open(self) -> None:
        if self._is_over.is_set():
            raise BackendError(
                f"host {self._address}: has ended its devices, because no request arrived for "
                f"{FENCE_S:g} s; look at the network to it"
            )

    def _on_end(self, ended: HelperEnded) -> None:
        with self._lock:
            self._n_ended += 1
            self._ended.append((self._n_ended, ended))

    def _has_news(self) -> bool:
        if self._ended:
            return True
        return any(
            waited_s > self._reported_s.get(name, 0.0) + MIN_NEWS_S
            for name, waited_s in self._contended_s().items()
        )

    def _contended_s(self) -> dict[str, float]:
        found = {name: backend.contended_s(name) for name, backend in self._devices()}
        return {name: waited_s for name, waited_s in found.items() if waited_s is not None}

    def _devices(self) -> list[tuple[str, ProcessBackend]]:
        with self._lock:
            return list(self._backend_of.items())

    def _read_paths(self) -> None:
        pids = {pid for name, backend in self._devices() for pid in backend.path_pids(name)}
        for pid in pids:
            self._readings.append((self._now(), pid, waits(pid)))

    def _report(self) -> HostReport:
        devices = self._devices()
        self._reported_s = self._contended_s()
        cpu_s = {name: backend.cpu_s(name) for name, backend in devices}
        pids = {name: pid for backend in list(self._backends) for name, pid in backend.pids.items()}
        with self._lock:
            ended = tuple(one for _, one in self._ended)
            number = self._n_ended
            now, readings = self._now(), list(self._readings)
            self._readings.clear()
        return HostReport(
            number=number,
            ended=ended,
            pids=pids,
            contended_s=self._reported_s,
            counted={name: backend.counted(name) for name, backend in devices},
            cpu_s={name: s for name, s in cpu_s.items() if s is not None},
            readings=tuple(PathReading(pid, now - at, found) for at, pid, found in readings),
        )

    def _fence(self) -> None:
        """End the devices when no report is requested any more."""
        while not self._is_over.wait(FENCE_S / 10.0):
            with self._lock:
                is_cut_off = self._now() - self._requested_at > FENCE_S
            if self._backend_of and is_cut_off:
                self.close()


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """Yield a new folder, removed at the end; remove those of supervisors that were killed.

    The kernel frees the lock of a folder when its owner ends, whatever the cause.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with suppress(OSError), _locked(left):  # not of another user, nor of a live supervisor
            shutil.rmtree(left)
    with ExitStack() as lock:
        folder = _new_folder(lock)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _new_folder(lock: ExitStack) -> Path:
    """Return a new folder, locked; another one if a supervisor removed it before it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER))
        with suppress(BlockingIOError, FileNotFoundError):
            lock.enter_context(_locked(folder))
            if folder.exists():
                return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        OSError: Another process or supervisor has it, or there is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
