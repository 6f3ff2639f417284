"""Checks of the memory of training before the first round of a run or a replay.

check_parts       micro-batches must not change the results of a model without a word
part_sizes        what each planned device computes at once; it must fit into its memory
unknown_memory    a warning if neither can be checked
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.coordinator.state.memory import Fitting, TaskMemory
from fairbed.coordinator.task.recipes import MODELS
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.errors import EngineError
from fairbed.testbed.emulation.work import StepWork
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.run.preflight import PreflightFinding
from fairbed.wire.artifact import Artifact
from fairbed.wire.selfcheck import selfcheck_inputs

TOLERANCE = 3e-2
"""Relative difference of a gradient that rounding can make, as in the check of an exported graph;
other statistics of a batch change it by tens of percents."""

PROBED, PART = 4, 2
"""Examples of a mini-batch that is computed at once and in parts, and of a part."""

NAMED = 8
"""Names of devices that are too small in one line, besides the first."""


def examples_interact(artifact: Artifact) -> bool:
    """Return whether the examples of a mini-batch affect each other, as in batch normalisation.

    Then its parts give other results. A mini-batch is computed at once and in parts; a module that
    draws random numbers is judged by whether it has buffers that training changes.

    Raises:
        EngineError: The engine cannot run the task.
    """
    spec = artifact.spec
    n_params, n_values = spec.layout.n_params, spec.layout.n_values
    if artifact.module is not None and artifact.module.is_random:
        return n_values > n_params
    engine = open_own_engine(artifact)
    vector, x, y = selfcheck_inputs(spec, spec.selfcheck.seed, PROBED)
    found = []
    for size in (None, PART):
        model = vector.copy()
        _, gradient = engine.gradient(model, x, y, size)
        found.append((gradient.astype(np.float64), model[n_params:]))
    (whole, buffers), (summed, other) = found
    differs = np.linalg.norm(summed - whole) > TOLERANCE * np.linalg.norm(whole)
    return bool(differs) or not np.allclose(buffers, other, rtol=TOLERANCE)


def check_parts(experiment: Experiment, artifact: Artifact) -> None:
    """Check that micro-batches give the results of whole mini-batches, or that they need not.

    Raises:
        ExperimentError: They do not.
        EngineError: The engine cannot run the task.
    """
    training = experiment.training
    if not training.has_parts:
        return
    if training.micro_batch_statistics:
        _check_last_part(training, artifact)
    elif examples_interact(artifact):
        raise ExperimentError(
            "training.micro_batch: must be left out for a model whose examples affect each other, "
            f"as in batch normalisation, got {training.micro_batch} for {artifact.spec.name}; set "
            "training.micro_batch_statistics = true to take the statistics of each part, or use "
            "group normalisation"
        )


def _check_last_part(training: TrainingConfig, artifact: Artifact) -> None:
    """Check that a whole mini-batch has no part of one example, if a model needs more for a step.

    Raises:
        ExperimentError: It has.
    """
    size = training.micro_batch
    if not isinstance(size, int) or (size > 1 and training.batch_size % size != 1):
        return
    spec = artifact.spec
    vector, x, y = selfcheck_inputs(spec, spec.selfcheck.seed, 1)
    model = vector.copy()  # with the statistics of the step
    with suppress(EngineError):  # torch refuses statistics of one example
        _, gradient = open_own_engine(artifact).gradient(model, x, y)
        if np.isfinite(gradient).all() and np.isfinite(model).all():
            return
    raise ExperimentError(
        "training.micro_batch: must leave no part of one example, of which batch normalisation has "
        f"no variance, got {size} for mini-batches of {training.batch_size}; set a number of 2 or "
        "more that divides training.batch_size"
    )


def part_sizes(
    experiment: Experiment,
    fitting: Fitting | None,
    names: Sequence[str],
    memory_bytes: Ints,
    n_k: Ints,
) -> Ints:
    """Return the examples that each device computes at once, shape (N,).

    Args:
        experiment: The experiment.
        fitting: Fits training into their memory; None: it needs little.
        names: Name of each device.
        memory_bytes: Memory of each device, shape (N,); 0 is not checked: this machine, or unknown.
        n_k: Training examples of each device, shape (N,).

    Raises:
        ExperimentError: Training does not fit into a device.
    """
    sizes = np.full(len(names), experiment.training.part_size, dtype=np.int64)
    if fitting is None:
        return sizes
    sizes = np.where(memory_bytes > 0, fitting.part_sizes(memory_bytes, n_k), sizes)
    small = np.flatnonzero(sizes == 0).tolist()
    if small:
        first, *others = small
        problem = fitting.problem(int(memory_bytes[first]), int(n_k[first]))
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        likewise = f"; likewise {', '.join(names[row] for row in others[:NAMED])}" if others else ""
        raise ExperimentError(
            "fleet: training must fit into the memory of each device, got "
            f"{len(small):,} of {len(names):,} that are too small: {names[first]}: {problem}"
            f"{likewise}{more}"
        )
    return sizes


def unknown_memory(
    model: str, work: StepWork | None, memory: TaskMemory | None
) -> Iterator[PreflightFinding]:
    """Yield a warning if the memory of training is unknown, so that no device is checked.

    Args:
        model: Name of the model in the experiment; every shipped one needs little.
        work: Arithmetic and memory traffic of a step; None if it is not counted.
        memory: Memory of training; None if it is small, or unknown.
    """
    if work is None and memory is None and model not in MODELS:
        yield PreflightFinding(
            "memory",
            f"the peak memory of training {model} is unknown, as its steps are not counted: no "
            "device is checked, and training.micro_batch = auto computes whole mini-batches",
            "warning",
        )
