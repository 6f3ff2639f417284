"""Checks of the memory of training before the first round of a run or a replay.

check_parts       micro-batches must not change the results of a model without a word
part_sizes        what each planned device computes at once; it must fit into its memory
fitting_of        what fits training into the memory of the devices
"""

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.state.memory import Fitting, TaskMemory
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.profiles import Profile
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.selfcheck import selfcheck_inputs

TOLERANCE = 3e-2
"""Relative difference of a gradient that rounding can make, as in the check of an exported graph;
other statistics of a batch change it by tens of percents."""

PROBED, PART = 4, 2
"""Examples of a mini-batch that is computed at once and in parts, and of a part."""

VALUE_BYTES = 4
"""Size of a value of a model in the memory of a device."""


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
    if not training.has_parts or training.micro_batch_statistics:
        return
    if examples_interact(artifact):
        raise ExperimentError(
            "training.micro_batch: must be left out for a model whose examples affect each other, "
            f"as in batch normalisation, got {training.micro_batch} for {artifact.spec.name}; set "
            "training.micro_batch_statistics = true to take the statistics of each part, or use "
            "group normalisation"
        )


def fitting_of(experiment: Experiment, spec: TaskSpec, memory: TaskMemory | None) -> Fitting | None:
    """Return what fits training into the memory of devices; None if it needs little."""
    if memory is None:
        return None
    training = experiment.training
    if training.micro_batch == "auto":  # whole mini-batches were measured; parts add a sum
        gradient_bytes = VALUE_BYTES * spec.layout.n_params
        memory = structs.replace(memory, fixed_bytes=memory.fixed_bytes + gradient_bytes)
    return Fitting(
        memory,
        data_bytes=spec.example_bytes,
        batch_size=training.batch_size,
        largest_part=training.part_size,
        chooses=training.micro_batch == "auto",
    )


def part_sizes(
    experiment: Experiment,
    fitting: Fitting | None,
    devices: Sequence[tuple[str, Profile | None]],
    n_k: Ints,
) -> Ints:
    """Return the examples that each device computes at once, shape (N,).

    Args:
        experiment: The experiment.
        fitting: Fits training into their memory; None: it needs little.
        devices: Name and profile of each device; None is this machine, which is not checked.
        n_k: Training examples of each device, shape (N,).

    Raises:
        ExperimentError: Training does not fit into a device.
    """
    sizes = np.full(len(devices), experiment.training.part_size, dtype=np.int64)
    problems = list[str]()
    for row, (name, profile) in enumerate(devices):
        if fitting is None or profile is None:
            continue
        sizes[row] = fitting.part_size(profile.memory_bytes, int(n_k[row]))
        if problem := fitting.problem(profile.memory_bytes, int(n_k[row])):
            problems.append(f"{name}: {problem}")
    if problems:
        names = ", ".join(problem.partition(":")[0] for problem in problems[1:])
        others = f"; likewise {names}" if names else ""
        raise ExperimentError(
            f"fleet: training must fit into the memory of each device, got "
            f"{len(problems)} of {len(devices)} that are too small: {problems[0]}{others}"
        )
    return sizes
