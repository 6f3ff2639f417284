"""The peak memory of training a task, measured in fresh processes that work as an agent does.

Only models whose training may need more than `SMALL_BYTES` are measured: all others fit into every
board that runs an agent.
"""

import subprocess
import sys

import msgspec

from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.coordinator.state.memory import Fitting, TaskMemory
from fairbed.device_agent.peak_memory import Peaks, Request
from fairbed.testbed.emulation.work import StepWork
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.host.step_work import step_work
from fairbed.wire.artifact import Artifact, TaskSpec, encode_artifact
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.tensors import Layout

SMALL_BYTES = 192 << 20
"""Three quarters of 256 MiB, the memory of the smallest boards that run an agent."""

AGENT_BYTES = 80 << 20
"""An agent with the runtime and no model (`fairbed bench agent-memory`)."""

MODEL_COPIES = 5
"""Copies of the values of a model in a step: received, before and after, gradient, and update."""

STATE_COPIES = 5
"""Copies of the moments of an optimiser that a device keeps: before and after the last round from
the file, as the step changes them, and both for the file."""

LARGEST_BYTES = 4 << 30
"""Bound of the activations of a measured step on this machine, by `bound_bytes`: they need a
quarter of it or less."""

TIMEOUT_S = 600.0

VALUE_BYTES = 4
"""Size of a value of a model in the memory of a device."""


def state_copies(hyperparameters: Hyperparameters | None) -> int:
    """Return the copies of the values of a model that the state of the optimiser takes, at least 1.

    None is SGD.
    """
    if hyperparameters is None:
        return 1
    copies = STATE_COPIES if hyperparameters.keeps_state else 1
    return copies * max(1, hyperparameters.n_moments)


def bound_bytes(
    layout: Layout,
    work: StepWork,
    n_examples: int,
    hyperparameters: Hyperparameters | None = None,
) -> float:
    """Return an upper bound of the peak memory of a step, from its memory traffic.

    An operation writes each of its outputs, and another one reads it: all outputs together have at
    most half the size of the traffic.
    """
    activations = 0.5 * (work.moved_bytes * n_examples + work.fixed_bytes)
    copies = MODEL_COPIES + state_copies(hyperparameters)
    return AGENT_BYTES + copies * layout.size_bytes + activations


def task_memory(
    artifact: Artifact, encoded: bytes, hyperparameters: Hyperparameters, work: StepWork | None
) -> TaskMemory | None:
    """Return the memory of training a task; None if it is small, or its steps are not counted.

    Args:
        artifact: The task.
        encoded: The task as it is sent.
        hyperparameters: Batch size, parts and the terms of a step.
        work: Memory traffic of a step; None if it is not counted.

    Raises:
        BackendError: A step cannot be measured.
    """
    size = min(hyperparameters.batch_size, hyperparameters.micro_batch or (1 << 20))
    layout = artifact.spec.layout
    if work is None or bound_bytes(layout, work, size, hyperparameters) <= SMALL_BYTES:
        return None
    return measured_memory(encoded, hyperparameters, work)


def measured_memory(encoded: bytes, hyperparameters: Hyperparameters, work: StepWork) -> TaskMemory:
    """Return the memory of training a task from two sizes of a step.

    Raises:
        BackendError: A step cannot be measured.
    """
    size = min(hyperparameters.batch_size, hyperparameters.micro_batch or (1 << 20))
    request = Request(artifact=encoded, hyperparameters=hyperparameters)
    most = int(2.0 * LARGEST_BYTES // max(work.moved_bytes, 1.0))
    large = max(2, min(size, most))
    small = max(1, large // 2)
    low, high = peaks(request, small), peaks(request, large)
    least = max(low.check, high.check)
    return TaskMemory.between((small, low.train), (large, high.train), least)


def memory_here(
    artifact: Artifact, hyperparameters: Hyperparameters
) -> tuple[StepWork | None, TaskMemory | None]:
    """Count the steps of a task; return them, and the memory of training; see `task_memory`."""
    work = step_work(artifact)
    return work, task_memory(artifact, encode_artifact(artifact), hyperparameters, work)


def fitting_of(
    training: TrainingConfig, spec: TaskSpec, memory: TaskMemory | None
) -> Fitting | None:
    """Return what fits training into the memory of devices; None if it needs little."""
    if memory is None:
        return None
    if training.micro_batch == "auto":  # whole mini-batches were measured; parts add a sum
        gradient_bytes = VALUE_BYTES * spec.layout.n_params
        memory = msgspec.structs.replace(memory, fixed_bytes=memory.fixed_bytes + gradient_bytes)
    return Fitting(
        memory,
        data_bytes=spec.example_bytes,
        batch_size=training.batch_size,
        largest_part=training.part_size,
        chooses=training.micro_batch == "auto",
    )


def peaks(request: Request, n_examples: int) -> Peaks:
    """Return the peak memory of a fresh process that trains on this many examples at once.

    Raises:
        BackendError: It cannot be measured.
    """
    command = [sys.executable, "-m", "fairbed.device_agent.peak_memory", str(n_examples)]
    try:
        done = subprocess.run(
            guarded(command),
            input=msgspec.msgpack.encode(request),
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise BackendError(f"memory: a training step must run here, got {exc}") from exc
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise BackendError(
            f"memory: a training step on {n_examples} examples must run here, got: {lines[-1]}"
        )
    return msgspec.json.decode(done.stdout, type=Peaks)
