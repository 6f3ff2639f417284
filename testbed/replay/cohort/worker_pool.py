"""Worker processes that train chunks of a cohort beside the replay's own process.

Threads that train would wait for each other at the interpreter's lock. The examples, the global
model and the trained models are in shared memory, so that a chunk moves a few hundred bytes through
a pipe; the vectors of a local rule and states of the optimiser take the pipe. A worker is
`python -m fairbed.testbed.replay.cohort.worker_pool`.
docs/decisions/0011-a-cohort-trains-in-cache.md compares this with loky.
"""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import ThreadpoolController

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.device_agent.errors import EngineError
from fairbed.device_agent.local_training import GuardedRule, make_rule
from fairbed.testbed.host.guard import die_with_parent
from fairbed.testbed.host.threads import ONE_THREAD
from fairbed.testbed.replay.cohort.base import CohortPart, CohortResult, CohortRule
from fairbed.testbed.replay.cohort.net import DenseNet, train_chunk
from fairbed.testbed.replay.cohort.shards import Examples
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.plugins import PluginError

ADVICE = "--threads 1 needs no other process"
CACHE_LINE_BYTES = 64
"""Shared arrays begin at multiples of this."""
EXIT_TIMEOUT_S = 5.0
"""Limit of the time in which a worker ends after its pipe was closed."""

Layout: TypeAlias = "Mapping[str, tuple[DTypeLike, tuple[int, ...]]]"
"""Type and shape of each array by its name."""

RuleOptions: TypeAlias = Mapping[str, bool | int | float | str]
SentRule: TypeAlias = tuple[str, RuleOptions, Mapping[str, Vector], Mapping[str, Vector]]
"""Name, arguments, and sent and kept vectors of a local rule."""


class SharedArrays:
    """Arrays in anonymous memory, which is freed with the last process that maps it.

    Args:
        layout: Layout of the arrays; all are zero at first.
        memory: Descriptor of memory with these arrays; None to create it.

    Raises:
        OSError: The machine has too little memory.
    """

    def __init__(self, layout: Layout, memory: int | None = None) -> None:
        starts, size = dict[str, int](), 0
        for name, (dtype, shape) in layout.items():
            starts[name] = size
            n_bytes = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
            size += -(-n_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        self.memory = _make_memory(size) if memory is None else memory
        """The descriptor."""
        whole = mmap.mmap(self.memory, size)
        self._arrays = {
            name: np.ndarray(shape, np.dtype(dtype), whole, starts[name])
            for name, (dtype, shape) in layout.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = self._arrays[name]
        return array

    def close(self) -> None:
        """Close the descriptor; arrays that are in use remain valid."""
        os.close(self.memory)


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


class _Worker:
    """One worker process, as the replay controls it.

    Args:
        spec: The task.
        layout: Layout of the shared arrays.
        memory: Descriptor of the shared memory.
        slot: Index of its models in `trained`.

    Raises:
        OSError: The machine cannot start one more process.
    """

    def __init__(self, spec: TaskSpec, layout: Layout, memory: int, slot: int) -> None:
        self.slot = slot
        own_end, worker_end = socket.socketpair()
        with own_end, worker_end:
            arguments = map(str, (os.getpid(), worker_end.fileno(), memory))
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=(worker_end.fileno(), memory),
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,  # Ctrl-C ends the replay, which then ends its workers
            )
            self._pipe = Connection(own_end.detach())
        self._is_ready = False
        self._pipe.send((spec, layout, slot))

    def is_ready(self) -> bool:
        """Return whether the process has loaded its modules; does not wait."""
        if not self._is_ready and self._pipe.poll():
            with suppress(EOFError, OSError):  # `call` reports the death
                self._pipe.recv()
            self._is_ready = True
        return self._is_ready

    def call(self, part: CohortPart) -> Any:
        """Return steps, losses, problems, vectors of the local rule, and states of a chunk.

        Its models are in `trained[slot]`. If the part has models of its own, they begin at the
        values that are there, and else at the global model.

        Raises:
            EngineError: The process has ended.
            PluginError: The rule breaks its contract.
        """
        jobs = replace(part, starts=None, rule=None)
        try:
            self._pipe.send((jobs, part.starts is not None, sent_rule(part.rule)))
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise EngineError(self._death()) from None
        if isinstance(answer, PluginError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _death(self) -> str:
        try:
            status = self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"replay: a process that trains has closed its pipe; {ADVICE}"
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return (
            f"replay: a process that trains ended with {how}; the same command resumes from the "
            f"last checkpoint, {ADVICE}"
        )


class WorkerPool:
    """Worker processes; as many threads as workers may call `train` at a time.

    The workers load their modules while the replay goes on; until then `is_ready` is False.

    Args:
        spec: The task.
        examples: The training data; all processes share one copy.
        most: Largest number of devices in a chunk.
        size: Number of processes, and of threads that call `train`; at least 1.

    Raises:
        EngineError: The machine cannot start the processes, or has too little memory.
    """

    def __init__(self, spec: TaskSpec, examples: Examples, most: int, size: int) -> None:
        self._workers: list[_Worker] = []
        self._readiness = Lock()
        layout = _layout(spec, examples, most, size)
        with ExitStack() as undo:
            undo.callback(self.close)
            try:
                self._shared = _share(layout, examples)
                undo.callback(self._shared.close)
                for slot in range(size):
                    self._workers.append(_Worker(spec, layout, self._shared.memory, slot))
            except OSError as exc:
                problem = f"replay: cannot start a process to train: {exc}; {ADVICE}"
                raise EngineError(problem) from exc
            undo.pop_all()
        self._shared.close()  # the workers have the memory, and this process has it mapped
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self._workers)

    def is_ready(self) -> bool:
        """Return whether every process has loaded its modules; any thread may call it."""
        with self._readiness:  # two threads must not read the same message
            return all([worker.is_ready() for worker in self._workers])

    def begin_at(self, vector: Vector) -> None:
        """Set the global model w_t of all later training, shape (n_values,)."""
        self._shared["vector"][:] = vector

    def train(self, part: CohortPart) -> CohortResult:
        """Train a chunk in a worker; see `HelperPool` and `train_chunk`."""
        worker = self._idle.get()
        try:
            slot = self._shared["trained"][worker.slot, : len(part.jobs)]
            if part.starts is not None:
                slot[:] = part.starts
            steps, loss_train, problems, *vectors_of = worker.call(part)
            vectors = slot.copy()
        finally:
            self._idle.put(worker)
        places = np.array(part.at, dtype=np.int64)
        return CohortResult(places, vectors, steps, loss_train, problems, *vectors_of)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()


def _layout(spec: TaskSpec, examples: Examples, most: int, size: int) -> Layout:
    """Return the layout of the shared arrays.

    `rows` has the rows of all devices, device after device, and `ends` the end of each device's
    rows; `trained` has a slot for the models of each worker.
    """
    n_rows = sum(len(rows) for rows in examples.train_rows)
    return {
        "vector": (np.float32, (spec.layout.n_values,)),
        "x": (examples.x.dtype, examples.x.shape),
        "y": (examples.y.dtype, examples.y.shape),
        "rows": (np.int64, (n_rows,)),
        "ends": (np.int64, (len(examples.train_rows),)),
        "trained": (np.float32, (size, most, spec.layout.n_values)),
    }


def _share(layout: Layout, examples: Examples) -> SharedArrays:
    shared = SharedArrays(layout)
    shared["x"][...], shared["y"][...] = examples.x, examples.y
    shared["ends"][...] = np.cumsum([len(rows) for rows in examples.train_rows])
    np.concatenate(examples.train_rows, out=shared["rows"])
    return shared


def main() -> None:
    """Train chunks until the replay closes the pipe.

    Arguments: the replay's process id, a socket and the descriptor of the shared memory.
    """
    parent, pipe_fd, memory = map(int, sys.argv[1:])
    die_with_parent(parent)
    with suppress(EOFError, OSError), Connection(pipe_fd) as pipe:
        spec, layout, slot = pipe.recv()
        shared = SharedArrays(layout, memory)
        rows = tuple(np.split(shared["rows"], shared["ends"][:-1]))
        net, examples = DenseNet(spec), Examples(shared["x"], shared["y"], rows)
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            pipe.send(None)
            while True:
                part, has_starts, sent = pipe.recv()
                params, vector = shared["trained"][slot, : len(part.jobs)], shared["vector"]
                if not has_starts:
                    params[:] = vector
                try:
                    part = replace(part, rule=received_rule(sent))
                    done = train_chunk(net, examples, vector, part, params)
                except PluginError as exc:
                    pipe.send(exc)
                else:
                    found = done.steps, done.loss_train, done.problems
                    pipe.send((*found, done.kept, done.returned, done.states))


def sent_rule(rule: CohortRule | None) -> SentRule | None:
    """Return a local rule and its vectors as another process receives them."""
    return None if rule is None else (rule.rule.name, rule.options, rule.sent, rule.kept)


def received_rule(sent: SentRule | None) -> CohortRule | None:
    """Return the local rule of a chunk in this process.

    Raises:
        PluginError: It cannot be loaded here, or breaks its contract.
    """
    if sent is None:
        return None
    name, options, with_model, kept = sent
    return CohortRule(_rule(name, tuple(options.items())), options, with_model, kept)


@lru_cache(maxsize=1)
def _rule(name: str, options: tuple[tuple[str, bool | int | float | str], ...]) -> GuardedRule:
    return make_rule(name, dict(options))


if __name__ == "__main__":
    main()
