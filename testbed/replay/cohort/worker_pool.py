"""Worker processes that train chunks of a cohort beside the replay's own process.

Processes, because threads that train wait for each other at the interpreter's lock. loky, which
comes with joblib, starts and feeds them. The examples, the global model and the trained models lie
in memory that all processes share: one chunk moves a few hundred bytes between them. See
docs/decisions/0011-a-cohort-trains-in-cache.md for what that costs.
"""

import mmap
import os
import re
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.reduction import DupFd
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
from joblib.externals.loky import BrokenProcessPool, Future, ProcessPoolExecutor
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import ThreadpoolController

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.device_agent.engines.base import EngineError
from fairbed.testbed.host.guard import die_with_parent
from fairbed.testbed.host.threads import ONE_THREAD
from fairbed.testbed.replay.cohort.base import CohortJob, CohortResult
from fairbed.testbed.replay.cohort.net import DenseNet, train_chunk
from fairbed.testbed.replay.cohort.shards import Examples
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.messages import Hyperparameters

ADVICE = "--threads 1 needs no other process"
CACHE_LINE_BYTES = 64
"""Shared arrays begin at multiples of this."""
EXIT_CODES = re.compile(r"exit codes of the workers are \{(.*)\}")
"""In the message of loky's error."""

Layout: TypeAlias = "Mapping[str, tuple[DTypeLike, tuple[int, ...]]]"
"""Type and shape of each array by its name."""


class SharedArrays:
    """Arrays in anonymous memory, which ends with the last process that maps it.

    They can be pickled only as an argument of a process that is being started.

    Args:
        layout: What to make room for; all zero at first.
        memory: Descriptor of memory that has these arrays; None to make it.

    Raises:
        OSError: The machine has too little memory.
    """

    def __init__(self, layout: Layout, memory: int | None = None) -> None:
        self._layout = layout
        starts, size = dict[str, int](), 0
        for name, (dtype, shape) in layout.items():
            starts[name] = size
            n_bytes = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
            size += -(-n_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        self._memory = _make_memory(size) if memory is None else memory
        whole = mmap.mmap(self._memory, size)
        self._arrays = {
            name: np.ndarray(shape, np.dtype(dtype), whole, starts[name])
            for name, (dtype, shape) in layout.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = self._arrays[name]
        return array

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self._layout, DupFd(self._memory))

    def close(self) -> None:
        """Give the descriptor back; arrays that are still in use stay."""
        os.close(self._memory)


def _attach(layout: Layout, memory: Any) -> SharedArrays:
    return SharedArrays(layout, memory.detach())


def _make_memory(size: int) -> int:
    """Return the descriptor of new memory, all zero."""
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("fairbed-cohort")
    else:  # macOS
        with tempfile.TemporaryFile() as file:
            memory = os.dup(file.fileno())
    try:
        os.ftruncate(memory, size)
    except OSError:
        os.close(memory)
        raise
    return memory


class WorkerPool:
    """Worker processes; any thread may have one chunk trained at a time.

    They load what they need while the replay goes on: until then `is_ready` is False.

    Args:
        spec: The task.
        examples: The training data; all processes share one copy.
        most: Devices of the largest chunk.
        size: Number of processes, and of threads that call `train`; at least 1.

    Raises:
        EngineError: The machine has too little room.
    """

    def __init__(self, spec: TaskSpec, examples: Examples, most: int, size: int) -> None:
        with ExitStack() as undo:
            try:
                self._shared = _share(spec, examples, most, size)
                undo.callback(self._shared.close)
                known = (os.getpid(), spec, self._shared)
                self._executor = ProcessPoolExecutor(
                    size, initializer=_begin, initargs=known, env=ONE_THREAD
                )
                undo.callback(self._executor.shutdown, kill_workers=True)
                with _blocked_interrupts():
                    self._ready: Future[None] = self._executor.submit(_nothing)
            except OSError as exc:
                problem = f"replay: cannot start a process to train: {exc}; {ADVICE}"
                raise EngineError(problem) from exc
            self._undo = undo.pop_all()
        self._slots: SimpleQueue[int] = SimpleQueue()
        for slot in range(size):
            self._slots.put(slot)

    def is_ready(self) -> bool:
        """Tell whether a process has loaded what it needs; does not wait."""
        return bool(self._ready.done())

    def begin_at(self, vector: Vector) -> None:
        """Let all that is trained from here on begin at `vector`, shape (n_values,)."""
        self._shared["vector"][:] = vector

    def train(
        self, at: Sequence[int], jobs: Sequence[CohortJob], hyperparameters: Hyperparameters
    ) -> CohortResult:
        """Have a worker train a chunk; see `train_chunk`.

        Raises:
            EngineError: A worker has ended.
        """
        slot = self._slots.get()
        try:
            future = self._executor.submit(_train, slot, jobs, hyperparameters)
            steps, loss_train, problems = future.result()
            vectors = self._shared["trained"][slot, : len(jobs)].copy()
        except BrokenProcessPool as exc:
            codes = EXIT_CODES.search(str(exc))
            how = f" with {codes[1]}" if codes else ""
            raise EngineError(
                f"replay: a process that trains ended{how}; the same command goes on from the "
                f"last checkpoint, {ADVICE}"
            ) from exc
        finally:
            self._slots.put(slot)
        return CohortResult(np.array(at, dtype=np.int64), vectors, steps, loss_train, problems)

    def close(self) -> None:
        """End all processes."""
        self._undo.close()


def _share(spec: TaskSpec, examples: Examples, most: int, size: int) -> SharedArrays:
    """Return the arrays that all processes see.

    `rows` are those of all devices, one device after the other, and `ends` where each one's end;
    in `trained` every call of `train` has a slot for its models.
    """
    ends = np.cumsum([len(rows) for rows in examples.train_rows])
    shared = SharedArrays(
        {
            "vector": (np.float32, (spec.layout.n_values,)),
            "x": (examples.x.dtype, examples.x.shape),
            "y": (examples.y.dtype, examples.y.shape),
            "rows": (np.int64, (int(ends[-1]),)),
            "ends": (np.int64, ends.shape),
            "trained": (np.float32, (size, most, spec.layout.n_values)),
        }
    )
    for name, values in {"x": examples.x, "y": examples.y, "ends": ends}.items():
        shared[name][...] = values
    np.concatenate(examples.train_rows, out=shared["rows"])
    return shared


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Start processes that no Ctrl-C reaches: it ends the replay, which then ends them."""
    resource_tracker.ensure_running()  # loky starts it, too, and its start unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """What a worker process knows."""

    def __init__(self, spec: TaskSpec, shared: SharedArrays) -> None:
        rows = tuple(np.split(shared["rows"], shared["ends"][:-1]))
        self.net, self.examples = DenseNet(spec), Examples(shared["x"], shared["y"], rows)
        self.vector, self.trained = shared["vector"], shared["trained"]
        self.blas = ThreadpoolController().limit(limits=1, user_api="blas")


_worker: _Worker
"""Of this process, if it is a worker: loky hands no state of its own to a call."""


def _begin(parent: int, spec: TaskSpec, shared: SharedArrays) -> None:
    """Begin a worker process. Without the guard loky's workers outlive a parent that is killed."""
    global _worker
    die_with_parent(parent)
    _worker = _Worker(spec, shared)


def _nothing() -> None:
    """Be done when a worker is ready."""


def _train(
    slot: int, jobs: Sequence[CohortJob], hyperparameters: Hyperparameters
) -> tuple[Any, Any, tuple[str, ...]]:
    """Train a chunk in a worker; return steps, losses and problems of a `CohortResult`."""
    params = _worker.trained[slot, : len(jobs)]
    params[:] = _worker.vector
    got = train_chunk(_worker.net, _worker.examples, params, (), jobs, hyperparameters)
    return got.steps, got.loss_train, got.problems
