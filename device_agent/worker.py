"""The training thread: it loads, evaluates, trains and encodes beside the event loop.

This is its side of the event loop. `device_agent.training_work` does the work. It is imported for
the first task, in the thread: with numpy it takes as much memory as half of an idle agent.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.errors import NotPrepared, RoundFailed, one_line
from fairbed.device_agent.host import Host
from fairbed.device_agent.jobs import (
    NO_TASK,
    ClientAbout,
    EvaluationJob,
    EvaluationResult,
    OtherTask,
    PersonalResult,
    TrainedUpdate,
    TrainingJob,
)
from fairbed.device_agent.memory import trim_heap
from fairbed.wire.messages import EvaluateRequest, Manifest, Train
from fairbed.wire.scale import Scale

if TYPE_CHECKING:
    from fairbed.device_agent.clients.work import ClientWork
    from fairbed.device_agent.config import AllowedClient
    from fairbed.device_agent.engines.base import OpenEngine
    from fairbed.device_agent.examples import ExampleSource
    from fairbed.device_agent.training_work import TrainingWork
    from fairbed.wire.artifact import Artifact

_log = logging.getLogger(__name__)

R = TypeVar("R")

WATCH_S = 1.0
"""Interval at which a step in progress is looked at."""

STOP_STEP_S = 5.0
"""Longest time of a step after its round has stopped."""

MAX_STEP_S = 600.0
"""Longest time of a step: a mini-batch that needs more would need days for a round."""


class TrainingThread:
    """The training thread of one device.

    Args:
        host: The machine.
        cache: Tasks and data on the disk.
        state: Folder of the vectors that stay on the device, which may not exist yet.
        open_engine: Opens the engine of a task; None opens it by its kind.
        threads: Threads of one training step.
        allowed_rules: Paths of local rules that a coordinator may ask for.
        min_noise_multiplier: Least noise that the owner accepts (`device_agent.privacy`); 0 accepts
            training without noise.
        allowed_models: Python modules with torch models whose code the owner allows to run.
        allowed_clients: Clients whose code the owner allows to run, by name.
    """

    def __init__(
        self,
        host: Host,
        cache: BlobCache,
        state: Path,
        open_engine: "OpenEngine | None" = None,
        threads: int = 1,
        allowed_rules: Collection[str] = (),
        min_noise_multiplier: float = 0.0,
        allowed_models: Collection[str] = (),
        allowed_clients: "Mapping[str, AllowedClient] | None" = None,
    ) -> None:
        self._min_noise_multiplier = min_noise_multiplier

        def make_work() -> "TrainingWork":
            from fairbed.device_agent.training_work import TrainingWork

            return TrainingWork(
                host,
                cache,
                state,
                open_engine,
                threads,
                allowed_rules,
                min_noise_multiplier,
                allowed_models,
            )

        def make_client_work() -> "ClientWork":
            from fairbed.device_agent.clients.work import ClientWork

            return ClientWork(
                host,
                cache,
                state,
                threads,
                allowed_clients or {},
                lambda: self._about,
                self._is_unneeded.is_set,
            )

        self._make_work, self._make_client_work = make_work, make_client_work
        self._work: TrainingWork | ClientWork | None = None
        """None before the first task."""
        self._has_client = False
        """The last task was one with a client."""
        self._about = ClientAbout(device="", number=0, count=1, run="")
        self._is_unneeded = threading.Event()
        """The preparation in progress has ended or was cancelled."""
        self._limiter = anyio.CapacityLimiter(1)

    @property
    def is_prepared(self) -> bool:
        """Task and data are on this device and were checked."""
        return self._work is not None and self._work.task is not None

    @property
    def is_warm(self) -> bool:
        """Session and data are in memory."""
        return self._work is not None and self._work.is_warm

    @property
    def n_k(self) -> int:
        """Training examples of the device; 0 before it is prepared."""
        return 0 if self._work is None or self._work.task is None else self._work.task.n_k

    @property
    def n_test(self) -> int:
        """Test examples of the device; 0 before it is prepared."""
        return 0 if self._work is None or self._work.task is None else self._work.task.n_test

    @property
    def scale(self) -> Scale | None:
        """Scale of the device's own data; None before it is prepared, and without own data."""
        return None if self._work is None or self._work.task is None else self._work.task.scale

    def has_model(self, train: Train) -> bool:
        """Return whether the model of a round is on the device since its loss query."""
        return self._work is not None and self._work.models.has(train)

    def owner_problem(self, request: Train | EvaluateRequest) -> str:
        """Return why the owner of this device forbids a request; empty if it is allowed.

        Raises:
            RoundFailed: The device has had no task.
        """
        self._prepared()
        if not self._min_noise_multiplier:
            return ""
        from fairbed.device_agent.privacy import owner_problem

        return owner_problem(request, self._min_noise_multiplier)

    def drop_evaluated(self) -> None:
        """Drop the model of the last loss query: this device was not selected."""
        if self._work is not None:
            self._work.models.evaluated = None

    def blob_for(self, train: Train | EvaluateRequest) -> Manifest:
        """Return the blob to download for a round: the packed model, or the model itself.

        Raises:
            RoundFailed: The blob does not fit the task.
        """
        return self._prepared().blob_for(train)

    async def prepare(
        self,
        task: Manifest,
        source: "Callable[[Artifact], ExampleSource | None]",
        about: ClientAbout | None = None,
    ) -> None:
        """Check task and data together, then free both: the first round has a cold start.

        Args:
            task: The task, in the cache.
            source: Returns the examples for a task, None without any; called in the thread.
            about: What a client learns of its device; None for other tasks.

        Raises:
            NotPrepared: Task or data cannot be used, or the engine computes wrong results.
        """
        if self._work is not None:
            self._work.task = None
        problem: Exception | None = None
        self._is_unneeded.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(self._await_cancellation)
            try:
                await self._in_thread(lambda: self._prepare(task, source, about), lambda: False)
            except Exception as exc:  # which a task group would wrap
                problem = exc
            finally:
                group.cancel_scope.cancel()
        if problem is not None:
            raise problem

    async def _await_cancellation(self) -> None:
        """Note if a preparation is cancelled: the constructor of a client may have no end."""
        try:
            await anyio.sleep_forever()
        finally:
            self._is_unneeded.set()

    def _prepare(
        self,
        task: Manifest,
        source: "Callable[[Artifact], ExampleSource | None]",
        about: ClientAbout | None,
    ) -> None:
        """Prepare, by the work for tasks with a client or the one for all others."""
        self._about = about or self._about
        work = self._begun()
        try:
            work.prepare(task, source)
        except OtherTask:
            work.close()
            self._has_client = not self._has_client
            self._work = None
            self._begun().prepare(task, source)

    async def drop(self) -> None:
        """Free session and data, and return the memory to the system."""
        if self._work is not None:
            await self._in_thread(self._work.drop)

    async def trim(self) -> None:
        """Stay warm, but return free heap memory to the system."""
        await self._in_thread(trim_heap)

    async def compute(self, job: TrainingJob) -> TrainedUpdate:
        """Verify, decode, load, evaluate, train and encode; the laps are on `job.watch`.

        Raises:
            RoundFailed: A step failed; the message names it.
        """
        work = self._prepared()
        return await self._in_thread(lambda: work.compute(job), job.should_stop)

    async def score(self, should_stop: Callable[[], bool]) -> PersonalResult:
        """Evaluate the personal model of the last round on the held-out examples.

        Raises:
            RoundFailed: The model cannot be evaluated; the message names the reason.
        """
        work = self._prepared()
        return await self._in_thread(lambda: work.score(should_stop), should_stop)

    async def evaluate(self, job: EvaluationJob) -> EvaluationResult:
        """Verify, decode, load and evaluate; the laps are on `job.watch`.

        Raises:
            RoundFailed: A step failed; the message names it.
        """
        work = self._prepared()
        return await self._in_thread(lambda: work.evaluate(job), job.should_stop)

    def close(self) -> None:
        """End the process of a client; nothing runs in the thread any more."""
        if self._work is not None:
            self._work.close()

    def _begun(self) -> "TrainingWork | ClientWork":
        """Return the work of this thread, imported and made for the first task.

        Raises:
            NotPrepared: numpy, or another module that it needs, cannot be imported.
        """
        if self._work is None:
            try:
                self._work = self._make_client_work() if self._has_client else self._make_work()
            except (ImportError, MemoryError) as exc:
                raise NotPrepared(
                    f"agent: numpy and what needs it must be importable, got {one_line(exc)}; "
                    "install the agent again, or free memory"
                ) from exc
        return self._work

    def _prepared(self) -> "TrainingWork | ClientWork":
        """Return the work of this thread, which had a task.

        Raises:
            RoundFailed: It had none.
        """
        if self._work is None:
            raise RoundFailed(NO_TASK)
        return self._work

    async def _in_thread(
        self, work: Callable[[], R], should_stop: Callable[[], bool] | None = None
    ) -> R:
        """Run `work` in the thread; with `should_stop`, end a step that takes too long."""
        # anyio waits for the thread, which stops by itself between mini-batches.
        watch = None if should_stop is None else _Watch(self, should_stop)
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._limiter)
        finally:
            if watch is not None:
                watch.timer.cancel()

    def end_long_step(self, *, is_stopped: bool) -> None:
        """Interrupt a step that goes on after the round has stopped, or that has no end.

        A graph decides how long its step takes, and the coordinator sends the graph.
        """
        engine = None if self._work is None else self._work.engine
        if engine is not None:
            limit_s = STOP_STEP_S if is_stopped else MAX_STEP_S
            if engine.running_s() > limit_s:
                _log.warning("a step takes longer than %g s: it is ended", limit_s)
                engine.interrupt()


class _Watch:
    """Looks at a step in progress at intervals; a timer of the loop, as each round needs one."""

    def __init__(self, thread: TrainingThread, should_stop: Callable[[], bool]) -> None:
        self._thread, self._should_stop = thread, should_stop
        self._loop = asyncio.get_running_loop()
        self.timer = self._loop.call_later(WATCH_S, self._look)

    def _look(self) -> None:
        self.timer = self._loop.call_later(WATCH_S, self._look)
        self._thread.end_long_step(is_stopped=self._should_stop())
