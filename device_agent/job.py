"""What the training thread is given to do, and what it leaves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from device_agent.lifecycle import Event
from device_agent.stopwatch import Stopwatch
from wire.messages import Ask, Train
from wire.transfer import Download


@dataclass(frozen=True, slots=True)
class Job:
    """One round's work for the training thread."""

    train: Train
    model: Download | None
    """Of `train.model`, or of the packed blob that becomes it; None where the worker holds it."""
    watch: Stopwatch
    """Running since `Train` arrived."""
    progress: Callable[[Sequence[Event]], None]
    """Called from the training thread, before it sets about something that takes long."""
    should_stop: Callable[[], bool]
    """Asked from the training thread between mini-batches."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What one round's work leaves."""

    update: memoryview
    """`[params | buffers]` as little-endian float32, or as the round's codec wants it."""
    n_k: int
    steps: int
    was_cold: bool
    train_cpu_s: float
    loss_before: float | None
    loss_train: float | None


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question's work for the training thread."""

    ask: Ask
    model: Download
    """Of `ask.model`, or of the packed blob that becomes it."""
    watch: Stopwatch
    """Running since `Ask` arrived."""
    should_stop: Callable[[], bool]
    """Asked from the training thread between evaluation steps."""


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer says."""

    loss: float
    n: int
    """Examples evaluated."""
    was_cold: bool
