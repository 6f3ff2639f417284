"""What the training thread gets to do, what it returns, and the laps of its phases."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairbed.device_agent.host import Clock, EnergyMeter
from fairbed.device_agent.state.lifecycle import Event
from fairbed.wire.messages import EvaluateRequest, Train
from fairbed.wire.transfer import Download

if TYPE_CHECKING:
    from fairbed.wire.evaluation import Quality


NO_TASK = "task: no longer on this device; the device downloads it again"


class Stopwatch:
    """Measures the phases of one round as laps; each lap begins at the end of the previous one."""

    def __init__(self, clock: Clock, started_s: float, energy: EnergyMeter | None = None) -> None:
        self._clock, self._energy = clock, energy
        self._started_s = started_s
        self.joules: dict[str, float | None] = {}
        """Energy of each lap; empty without a meter."""
        self.measured: dict[str, float] = {}
        """Other numbers of the round, by column of the coordinator's store; the next `Offer` or
        `UploadDone` sends them."""
        self._last_s = started_s
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> float:
        """End a lap and return its duration in seconds."""
        now = self._clock.now()
        self._laps[name] = max(0.0, now - self._last_s)
        self._last_s = now
        if self._energy is not None:
            self.joules[name] = self._energy.lap(name, self._laps[name])
        return self._laps[name]

    def lap_in_parts(self, name: str, before: str, before_ratio: float, ratio: float) -> None:
        """End a lap that has, beside its own work, the end of an earlier lap and a next one.

        Args:
            name: The lap.
            before: An earlier lap, which gets the first part.
            before_ratio: Share of the first part in the time since the last lap.
            ratio: Share of the lap itself; the rest belongs to the next one.
        """
        begun_s, total_s = self._last_s, self.lap(name)
        before_s = min(1.0, max(0.0, before_ratio)) * total_s
        own_s = min(total_s - before_s, max(0.0, ratio) * total_s)
        self._laps[before] += before_s
        self._laps[name] = own_s
        self._last_s = begun_s + before_s + own_s

    def range_j(self, phases: Iterable[str]) -> tuple[float, float] | None:
        """Return the interval of the energy of some laps, joules; None if it is unknown."""
        joules = {phase: self.joules.get(phase) for phase in phases}
        known = {phase: value for phase, value in joules.items() if value is not None}
        if self._energy is None or len(known) < len(joules):
            return None
        return self._energy.range_j(known)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the round began."""
        return self._clock.now() - self._started_s

    def __getitem__(self, name: str) -> float:
        return self._laps[name]


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Work of one round for the training thread."""

    train: Train
    model: Download | None
    """Download of `train.model` or of its packed blob; None if the worker has the model."""
    watch: Stopwatch
    """Running since `Train` arrived."""
    progress: Callable[[Sequence[Event]], None]
    """Called from the training thread before each long phase."""
    should_stop: Callable[[], bool]
    """Called from the training thread between mini-batches."""


@dataclass(frozen=True, slots=True)
class TrainedUpdate:
    """Result of a `TrainingJob`."""

    update: memoryview
    """`[params | buffers]` as little-endian float32, or encoded by the round's codec."""
    model: bytes
    """SHA-256 of the model that was trained."""
    n_k: int
    positions: int | None
    """Positions of the training examples that have a target; None with one each."""
    steps: int
    was_cold: bool
    train_cpu_s: float
    loss_before: float | None
    loss_train: float | None
    raw_bytes: int = 0
    """Bytes at the end of `update` that are no vector (`wire.messages.Manifest.raw_bytes`)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the client of the task measured."""


@dataclass(frozen=True, slots=True)
class PersonalResult:
    """The personal model on held-out examples."""

    n: int
    """Number of examples; 0 if the device has none, or its owner wants noise on all that leaves
    it."""
    loss: float
    """Mean loss per example."""
    quality: "Quality | None"
    """What else was measured; None if nothing was."""


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """Work of one `EvaluateRequest` for the training thread."""

    request: EvaluateRequest
    model: Download
    """Download of `request.model` or of its packed blob."""
    watch: Stopwatch
    """Running since `EvaluateRequest` arrived."""
    should_stop: Callable[[], bool]
    """Called from the training thread between evaluation steps."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Result of an `EvaluationJob`."""

    loss: float
    n: int
    """Number of examples evaluated."""
    was_cold: bool
    model: bytes
    """SHA-256 of the model that was evaluated."""
    quality: "Quality | None" = None
    """What else was measured; None for training examples."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the client of the task measured."""
    records: bytes = b""
    """What the client of the task returned beside the metrics."""


@dataclass(frozen=True, slots=True)
class ClientAbout:
    """What a client learns of its device and run."""

    device: str
    number: int
    """From 0."""
    count: int
    """Devices that are numbered."""
    run: str
    """State of another run is not used."""


class OtherTask(Exception):
    """The task is one for `ClientWork`, or one for `TrainingWork`, and this is the other one."""
