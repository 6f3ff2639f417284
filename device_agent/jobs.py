"""What the training thread gets to do, what it returns, and the laps of its phases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
