"""Everything that computes, in one thread beside the event loop.

The worker keeps the session and the data of a device in memory while it is warm, and really
drops both when it has to be cold, so that `load_s` is what a cold start costs.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import anyio.to_thread
import numpy as np
from numpy.typing import NDArray

from device_agent import trainer
from device_agent.cache import BlobCache
from device_agent.coding import Coder
from device_agent.engines.base import Engine, Examples
from device_agent.engines.errors import EngineError
from device_agent.engines.onnx import OnnxEngine, release_memory, self_check, trim_heap
from device_agent.errors import AgentError, NotPrepared, RoundFailed, one_line
from device_agent.examples import ExampleSource
from device_agent.host import Host, Meter, Section
from device_agent.lifecycle import Event
from device_agent.stopwatch import Stopwatch
from device_agent.trainer import TrainingDiverged
from wire.artifact import Artifact, TaskSpec, decode_artifact
from wire.errors import DecodeError, EncodeError
from wire.messages import Manifest, Train
from wire.tensors import Layout, vector_from_bytes
from wire.transfer import Download

_log = logging.getLogger(__name__)

R = TypeVar("R")

OpenEngine: TypeAlias = Callable[[Artifact, int], Engine]

_EXPECTED = (
    AgentError,
    EngineError,
    TrainingDiverged,
    DecodeError,
    EncodeError,
    ValueError,
    OSError,
    MemoryError,
)
"""What a task, the data, the model or the machine may be guilty of; the rest is a bug."""


@dataclass(frozen=True, slots=True)
class Job:
    """One round's work for the training thread."""

    train: Train
    model: Download
    """Of `train.model`, or of the packed blob that becomes it."""
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
class _Task:
    manifest: Manifest
    spec: TaskSpec
    examples: ExampleSource
    n_k: int


@dataclass(frozen=True, slots=True)
class _Warm:
    engine: Engine
    x: Examples
    y: NDArray[np.int64]


class _Stopped(Exception):
    """The round is not wanted any more."""


class _StoppableMeter:
    """Passes units of work on to the host, and ends the section when the round was given up."""

    def __init__(self, meter: Meter, should_stop: Callable[[], bool]) -> None:
        self._meter = meter
        self._should_stop = should_stop

    def step(self, n_examples: int) -> None:
        self._meter.step(n_examples)
        if self._should_stop():
            raise _Stopped

    def read(self, n_bytes: int) -> None:
        self._meter.read(n_bytes)


class Worker:
    """The training thread of one device and what it holds."""

    def __init__(
        self, host: Host, cache: BlobCache, open_engine: OpenEngine = OnnxEngine, threads: int = 1
    ) -> None:
        self._host = host
        self._cache = cache
        self._open_engine = open_engine
        self._threads = threads
        self._limiter = anyio.CapacityLimiter(1)
        self._task: _Task | None = None
        self._warm: _Warm | None = None
        self._coder = Coder()

    @property
    def is_prepared(self) -> bool:
        """Task and data are on this device and work."""
        return self._task is not None

    @property
    def is_warm(self) -> bool:
        """Session and data are in memory."""
        return self._warm is not None

    @property
    def n_k(self) -> int:
        """Training examples of the device; 0 before it is prepared."""
        return self._task.n_k if self._task is not None else 0

    def blob_for(self, train: Train) -> Manifest:
        """Return what to pull for a round: the model, or a smaller blob that becomes it.

        Raises:
            RoundFailed: It does not fit the task.
        """
        if self._task is None:
            raise RoundFailed("task: not here any more")
        return self._coder.blob_for(train, self._task.spec.layout)

    async def prepare(self, task: Manifest, examples: ExampleSource) -> None:
        """Try task and data together, then let go of both: the first round is a cold one.

        Raises:
            NotPrepared: One of them cannot be used, or the engine computes wrong results.
        """
        self._task = None
        await self._in_thread(lambda: self._prepare(task, examples))

    async def drop(self) -> None:
        """Let go of session and data, and hand the memory back."""
        await self._in_thread(self._drop)

    async def rest(self) -> None:
        """Stay warm, but hand back what the last round left free."""
        await self._in_thread(trim_heap)

    async def compute(self, job: Job) -> Trained:
        """Verify, decode, load, evaluate, train and encode; the laps are on `job.watch`.

        Raises:
            RoundFailed: Something does not work; the message says what.
        """
        return await self._in_thread(lambda: self._compute(job))

    async def _in_thread(self, work: Callable[[], R]) -> R:
        # Shielded: the thread cannot be interrupted, only asked to stop between mini-batches.
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def _prepare(self, manifest: Manifest, examples: ExampleSource) -> None:
        self._warm = None
        try:
            artifact = self._artifact(manifest)
            engine = self._open_engine(artifact, self._threads)
            self_check(engine)
            with self._host.pace.section("load") as meter:
                x, y = examples.load(meter)
            _try_out(engine, x, y)
        except _EXPECTED as exc:
            raise NotPrepared(one_line(exc)) from exc
        self._task = _Task(manifest, artifact.spec, examples, len(y))
        del engine, x, y
        release_memory()

    def _drop(self) -> None:
        self._warm = None
        release_memory()

    def _compute(self, job: Job) -> Trained:
        try:
            return self._round(job)
        except _Stopped:
            raise RoundFailed("stopped: the result is not wanted any more") from None
        except NotPrepared as exc:
            self._task = self._warm = None
            raise RoundFailed(one_line(exc)) from exc
        except _EXPECTED as exc:
            raise RoundFailed(one_line(exc)) from exc
        except Exception as exc:
            # The boundary of the agent: a bug costs this round, not the device.
            _log.exception("unexpected error in round %d", job.train.round)
            raise RoundFailed(f"internal error: {type(exc).__name__}: {one_line(exc)}") from exc

    def _round(self, job: Job) -> Trained:
        task, train, watch = self._task, job.train, job.watch
        if task is None:
            raise NotPrepared("task: not here any more")
        layout = task.spec.layout
        vector = self._model(job, layout)
        # Every word to the event loop wakes the other thread, so short phases are told together.
        untold = [Event.DOWNLOADED]

        was_cold = self._warm is None
        if was_cold:
            job.progress(untold)
            untold = []
        with self._section("load", job) as meter:
            warm = self._loaded(task, meter)
        watch.lap("load")
        untold.append(Event.LOADED)

        loss_before = None
        if train.needs_loss:
            job.progress(untold)
            untold = []
            with self._section("evaluate", job) as meter:
                loss_before, _ = trainer.evaluate(warm.engine, vector, warm.x, warm.y, meter)
        watch.lap("evaluate")
        job.progress([*untold, Event.EVALUATED])

        rng = np.random.Generator(np.random.PCG64(train.seed))
        cpu_s = time.thread_time()
        with self._section("train", job) as meter:
            result = trainer.train(
                warm.engine,
                vector,
                warm.x,
                warm.y,
                train.hyperparameters,
                rng,
                meter,
                job.should_stop,
            )
        cpu_s = time.thread_time() - cpu_s
        if job.should_stop():
            raise _Stopped
        watch.lap("train")
        self._host.sensors.clock_ratio()  # while the processor is still hot

        with self._section("encode", job):
            update = self._coder.encode(train, layout, vector, result.vector)
        return Trained(
            update=update,
            n_k=task.n_k,
            steps=result.steps,
            was_cold=was_cold,
            train_cpu_s=cpu_s,
            loss_before=_not_negative(loss_before),
            loss_train=_not_negative(result.loss_train),
        )

    def _model(self, job: Job, layout: Layout) -> NDArray[np.float32]:
        """Return the model of a round, shape (n_values,), and end two laps."""
        job.model.verify()
        if job.model.manifest.id == job.train.model.id:
            vector = vector_from_bytes(job.model.data, layout.n_values)
            job.watch.lap("download")
        else:
            job.watch.lap("download")
            with self._section("decode", job):
                vector = self._coder.decode(job.train, layout, job.model.data)
        self._coder.keep(job.train, vector)
        job.watch.lap("decode")
        return vector

    @contextmanager
    def _section(self, name: Section, job: Job) -> Iterator[Meter]:
        with self._host.pace.section(name) as meter:
            yield _StoppableMeter(meter, job.should_stop)

    def _loaded(self, task: _Task, meter: Meter) -> _Warm:
        if self._warm is None:
            x, y = task.examples.load(meter)
            artifact = self._artifact(task.manifest)
            self._warm = _Warm(self._open_engine(artifact, self._threads), x, y)
            trim_heap()
        return self._warm

    def _artifact(self, manifest: Manifest) -> Artifact:
        blob = self._cache.get(manifest)
        if blob is None:
            raise NotPrepared("task: missing or corrupt on disk; it is pulled again")
        return decode_artifact(blob)


def _try_out(engine: Engine, x: Examples, y: NDArray[np.int64]) -> None:
    """Find out now whether the data fits the task.

    Raises:
        ValueError: A label is not one of the classes, or a shape or dtype differs.
    """
    classes = engine.spec.classes
    if len(y) == 0 or y.min() < 0 or y.max() >= classes:
        got = f"{y.min()}..{y.max()}" if len(y) else "no examples"
        raise ValueError(f"data: labels must be in 0..{classes - 1}, got {got}")
    if x.dtype != engine.spec.x_dtype or x[0].size != int(np.prod(engine.spec.x_shape)):
        raise ValueError(
            f"data: examples must be {engine.spec.x_dtype} {engine.spec.x_shape}, "
            f"got {x.dtype} {x.shape[1:]}"
        )
    engine.evaluate(np.zeros(engine.spec.layout.n_values, np.float32), x[:1], y[:1])


def _not_negative(loss: float | None) -> float | None:
    """Return a loss as a message may carry it: rounding can leave one just below 0."""
    return None if loss is None else max(0.0, loss)
