"""Processes that help a replay to train, seen from the replay."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.device_agent.engines.base import EngineError
from fairbed.testbed.host.threads import ONE_THREAD
from fairbed.testbed.replay.cohort.base import Job, Trained
from fairbed.testbed.replay.cohort.helper import Order, Report, SetUp
from fairbed.testbed.replay.cohort.shards import Examples
from fairbed.testbed.replay.cohort.shared import lay_out, make_memory, see
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.messages import Hyperparameters

GRACE_S = 5.0
"""For a helper to end once nobody can order anything any more."""

ADVICE = "--threads 1 needs no other process"


class Helper:
    """One process.

    Args:
        set_up: What it needs to know.
        memory: Descriptor of what all share.
        answer: Where it leaves models, shape (most of a chunk, n_values).

    Raises:
        OSError: The machine refuses one more.
    """

    def __init__(self, set_up: SetUp, memory: int, answer: Vector) -> None:
        ours, its = socket.socketpair()
        with ours, its:
            fds = (its.fileno(), memory)
            numbers = map(str, (os.getpid(), *fds))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fairbed.testbed.replay.cohort.helper", *numbers],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,  # a Ctrl-C is for the replay, which then ends its helpers
            )
            self._orders = Connection(ours.detach())
        self._answer = answer
        self._is_ready = False
        self._send(msgspec.msgpack.encode(set_up))

    def is_ready(self) -> bool:
        """Tell whether it has loaded what it needs; does not wait for it."""
        if not self._is_ready and self._orders.poll():
            self._receive()
            self._is_ready = True
        return self._is_ready

    def train(
        self, at: Sequence[int], jobs: Sequence[Job], hyperparameters: Hyperparameters
    ) -> Trained:
        """Have a chunk trained; see `train_chunk`.

        Raises:
            EngineError: It has ended.
        """
        devices, seeds = [job.device for job in jobs], [job.seed for job in jobs]
        self._send(msgspec.msgpack.encode(Order(devices, seeds, hyperparameters)))
        report = msgspec.msgpack.decode(self._receive(), type=Report)
        return Trained(
            at=np.array(at, dtype=np.int64),
            vectors=self._answer[: len(jobs)].copy(),
            steps=np.array(report.steps, dtype=np.int64),
            loss_train=np.array(report.loss_train),
            problems=report.problems,
        )

    def close(self) -> None:
        """Let it end."""
        self._orders.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: bytes) -> None:
        try:
            self._orders.send_bytes(message)
        except OSError:
            raise self._death() from None

    def _receive(self) -> bytes:
        try:
            return self._orders.recv_bytes()
        except (EOFError, OSError):
            raise self._death() from None

    def _death(self) -> EngineError:
        try:
            status = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return EngineError(f"replay: a process that trains does not answer; {ADVICE}")
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return EngineError(
            f"replay: a process that trains ended with {how}; the same command goes on from the "
            f"last checkpoint, {ADVICE}"
        )


class Crew:
    """Helpers, lent to whoever has a chunk to train.

    They load what they need while the replay goes on; nobody waits for it.

    Args:
        spec: What is trained.
        examples: The training data; all helpers share one copy of it.
        most: Devices of a chunk at the most.
        size: Helpers; 0 for none.

    Raises:
        EngineError: The machine has no room for them.
    """

    def __init__(self, spec: TaskSpec, examples: Examples, most: int, size: int) -> None:
        self._lock = threading.Lock()
        self._helpers: list[Helper] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            try:
                if size:
                    self._start(spec, examples, most, size)
            except OSError as exc:
                problem = f"replay: cannot start a process to train: {exc}; {ADVICE}"
                raise EngineError(problem) from exc
            undo.pop_all()
        self._idle = list(self._helpers)

    def begin_at(self, vector: Vector) -> None:
        """Have all that is ordered from now on begin at `vector`, shape (n_values,)."""
        if self._helpers:
            self._vector[:] = vector

    @contextmanager
    def helper(self) -> Iterator[Helper | None]:
        """Lend a helper, or nothing where none is free; any thread may ask."""
        with self._lock:
            found = next((helper for helper in self._idle if helper.is_ready()), None)
            if found is not None:
                self._idle.remove(found)
        try:
            yield found
        finally:
            if found is not None:
                with self._lock:
                    self._idle.append(found)

    def close(self) -> None:
        """Let all end."""
        helpers, self._helpers, self._idle = self._helpers, [], []
        for helper in helpers:
            helper.close()

    def _start(self, spec: TaskSpec, examples: Examples, most: int, size: int) -> None:
        x, y, rows = examples.x, examples.y, examples.train_rows
        ends = np.cumsum([len(of_one) for of_one in rows])
        n_values = spec.layout.n_values
        answers = [f"answer-{number}" for number in range(size)]
        sheets = lay_out(
            {
                "vector": (np.float32, (n_values,)),
                "x": (x.dtype, x.shape),
                "y": (y.dtype, y.shape),
                "rows": (np.int64, (int(ends[-1]),)),
                "ends": (np.int64, ends.shape),
                **dict.fromkeys(answers, (np.float32, (most, n_values))),
            }
        )
        memory = make_memory(sheets)
        try:
            arrays = see(memory, sheets)
            for name, values in {"x": x, "y": y, "ends": ends}.items():
                arrays[name][...] = values
            np.concatenate(rows, out=arrays["rows"])
            self._vector = arrays["vector"]
            for answer in answers:
                set_up = SetUp(spec, sheets, answer)
                self._helpers.append(Helper(set_up, memory, arrays[answer]))
        finally:
            os.close(memory)
