"""Measures the peak memory of an agent that trains a task.

    python -m fairbed.device_agent.peak_memory N        reads a `Request`, writes `Peaks`

A fresh process does the work of a round on parts of N examples, as memory that an earlier step has
freed is used again.
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

import fairbed.device_agent.cli  # noqa: F401  # the modules of an agent
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.base import BucketEngine, self_check
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.memory import release_memory, share_one_heap, trim_heap
from fairbed.wire.artifact import decode_artifact, initial_vector
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.selfcheck import selfcheck_inputs
from fairbed.wire.tensors import vector_from_bytes, vector_to_bytes

STEPS = 2
"""The first step, or part of a mini-batch, allocates; the second one has the memory of all later
ones. Only parts need memory for the sum of their gradients."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The training to measure."""

    artifact: bytes
    hyperparameters: Hyperparameters


class Peaks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak resident memory of a process, bytes."""

    check: int
    """Of the self-check, with that of all before it."""
    train: int
    """Of training."""


class _NoMeter:
    def step(self, n_examples: int, length: int | None = None) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        pass


def peak_resident_bytes(process: str = "self") -> int:
    """Return the largest resident memory that a process has had, bytes.

    Args:
        process: Its id.
    """
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _reset_peak() -> None:
    """Begin a new peak, which Linux alone can; elsewhere the peak of training is that of all."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def work(request: Request, n: int) -> Peaks:
    """Check the engine, then train on n examples at once with the model copies of a round."""
    artifact = decode_artifact(request.artifact)
    engine = open_own_engine(artifact)
    self_check(engine)
    del engine
    release_memory()
    check = peak_resident_bytes()
    _reset_peak()
    spec = artifact.spec
    received = vector_to_bytes(initial_vector(spec, 0))
    x, y = selfcheck_inputs(spec, 0, 1)[1:]
    has_parts = request.hyperparameters.micro_batch is not None
    same = np.zeros(STEPS * n, dtype=np.int64)
    x, y = x[same], y[same]
    engine = open_own_engine(artifact)
    trim_heap()
    hyperparameters = msgspec.structs.replace(
        request.hyperparameters,
        epochs=1,
        batch_size=STEPS * n if has_parts else n,
        learning_rate=1e-6,
        max_steps=None,
        micro_batch=n if has_parts else None,
    )
    start = vector_from_bytes(received, spec.layout.n_values)
    stored, state = _stored_state(hyperparameters, spec.layout.n_params)
    shorter = engine.engines.values() if isinstance(engine, BucketEngine) else ()
    for each in [*shorter][:-1]:  # each length keeps the memory of its own steps
        cut = x[:, : each.spec.x_shape[0]], y[:, : each.spec.y_shape[0]] if each.spec.y_shape else y
        trainer.train(each, start, *cut, hyperparameters, 0, _NoMeter(), lambda: False)
    trained = trainer.train(
        engine, start, x, y, hyperparameters, 0, _NoMeter(), lambda: False, state=state
    )
    if trained.state is not None and stored is not None:
        np.concatenate([stored[0], trained.state])  # as it is written, after the round
    vector_to_bytes(trained.vector)
    return Peaks(check=check, train=peak_resident_bytes())


def _stored_state(
    h: Hyperparameters, n_params: int
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Return what a device reads that keeps the state of its optimiser: all, and what is valid."""
    if not h.keeps_state:
        return None, None
    from fairbed.device_agent.optimiser import state_size

    stored = np.ones((2, state_size(h, n_params)), np.float32)
    return stored, stored[1]


def main() -> int:
    """Train as the request on stdin, and print the peaks."""
    share_one_heap()
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Request)
    found = work(request, int(sys.argv[1]))
    sys.stdout.write(msgspec.json.encode(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
