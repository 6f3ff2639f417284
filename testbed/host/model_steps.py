"""Times training steps of a model on this machine: the engine of devices and torch, in turns.

Both run on one thread. A window has one step of each, in changing order, so that other load slows
both; what is read is the ratio within a window.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.testbed.host.calibration import work_clock
from fairbed.wire.artifact import Artifact, initial_vector
from fairbed.wire.selfcheck import selfcheck_inputs

if TYPE_CHECKING:
    from torch import nn

WARM_UP = 2
"""Steps of each engine before the first window."""

FEWEST, MOST = 5, 200
"""Windows of a measurement."""

MEASURE_S = 4.0
"""Time after which no window begins, beyond the fewest, seconds."""


class StepTimes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processor time of a training step on this machine, medians over windows."""

    batch: int
    onnx_s: float
    torch_s: float
    ratio: float
    """onnxruntime / torch, median over windows."""
    low: float
    """First quartile of the ratio."""
    high: float
    """Third quartile of it."""
    windows: int


def step_times(
    artifact: Artifact, module: "nn.Module", batch: int, measure_s: float = MEASURE_S
) -> StepTimes:
    """Return how long a step of a mini-batch takes with each engine.

    Args:
        artifact: The task, with graphs.
        module: Its torch module; it is not changed.
        batch: Examples of a step.
        measure_s: Limit of all windows, seconds; `FEWEST` windows are always measured.

    Raises:
        EngineError: onnxruntime cannot run the task.
    """
    import torch

    from fairbed.coordinator.task.selfcheck import TorchReference
    from fairbed.wire.losses import functions_of

    spec = artifact.spec
    engine = OnnxEngine(artifact)
    reference = TorchReference(
        module,
        spec.layout,
        spec.kind,
        is_double=False,
        classes_axis=spec.classes_axis,
        own=functions_of(spec),
    )
    _, x, y = selfcheck_inputs(spec, seed=0, batch=batch)
    vector = initial_vector(spec, seed=0)
    reference.step(vector, x, y)  # loads the same values
    steps = (lambda: engine.gradient(vector, x, y), lambda: reference.train_step(x, y))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        both_s = in_turns(steps, measure_s)
    finally:
        torch.set_num_threads(threads)
    low, ratio, high = np.quantile(both_s[:, 0] / both_s[:, 1], (0.25, 0.5, 0.75))
    onnx_s, torch_s = np.median(both_s, axis=0)
    return StepTimes(
        batch=batch,
        onnx_s=float(onnx_s),
        torch_s=float(torch_s),
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        windows=len(both_s),
    )


def in_turns(
    steps: tuple[Callable[[], object], Callable[[], object]], measure_s: float
) -> NDArray[np.float64]:
    """Return the processor time of two steps in each window, seconds, shape (windows, 2).

    Args:
        steps: What is timed.
        measure_s: As for `step_times`.
    """
    clock = work_clock()
    for _ in range(WARM_UP):
        for step in steps:
            step()
    found = list[list[float]]()
    end_s = time.monotonic() + measure_s
    while len(found) < FEWEST or (len(found) < MOST and time.monotonic() < end_s):
        times_s = [0.0, 0.0]
        for which in (0, 1) if len(found) % 2 else (1, 0):
            began_s = clock()
            steps[which]()
            times_s[which] = clock() - began_s
        found.append(times_s)
    return np.array(found)
