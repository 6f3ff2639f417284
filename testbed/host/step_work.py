"""Counts the arithmetic and the memory traffic of a training step, by running one.

A graph runs under the profiler of onnxruntime, a module under a dispatch mode of torch; both have
the shapes of every operation. Operations that move no data (views) count for nothing.
"""

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairbed.device_agent.engines.onnx import load_runtime
from fairbed.testbed.emulation.step_speed import StepWork
from fairbed.wire.artifact import Artifact, draw_masks
from fairbed.wire.selfcheck import selfcheck_inputs

COUNTED = 2, 4
"""Examples of the two steps; with a single one some layers cannot be trained."""

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity", "Shape"})

_ITEM_BYTES = {"float": 4, "int64": 8, "int32": 4, "bool": 1, "double": 8}

_Shapes = Sequence[dict[str, list[int]]]


def step_work(artifact: Artifact) -> StepWork:
    """Return the work of a training step of a task per example, from two small steps."""
    count = _graph_step if artifact.module is None else _module_step
    small, large = ((n, count(artifact, n)) for n in COUNTED)
    return StepWork.between(small, large)


def _graph_step(artifact: Artifact, n: int) -> StepWork:
    runtime, spec = load_runtime(), artifact.spec
    vector, x, y = selfcheck_inputs(spec, seed=0, batch=n)
    views = spec.layout.views(vector)
    feeds: dict[str, Any] = {
        f"{'p' if tensor.role == 'param' else 'b'}.{tensor.name}": views[tensor.name]
        for tensor in spec.layout.tensors
    }
    x = x.reshape((n, *spec.x_shape))
    feeds |= {"x": x, "y": y, "w": np.full(n, 1.0 / n, np.float32)}
    masks = draw_masks(spec.masks, seed=0, step=0, batch=n)
    feeds |= {f"m.{i}": mask for i, mask in enumerate(masks)}
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_profiling = True
    # Beyond this level convolutions have layouts that hide their shapes.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="fairbed-count-") as folder:
        options.profile_file_prefix = str(Path(folder) / "step")
        session = runtime.InferenceSession(
            artifact.train, options, providers=["CPUExecutionProvider"]
        )
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    conv = matrix = moved = 0.0
    for event in events:
        arguments = event.get("args", {})
        if "output_type_shape" not in arguments or arguments.get("op_name") in _VIEWS:
            continue
        inputs, outputs = arguments["input_type_shape"], arguments["output_type_shape"]
        name = arguments["op_name"]
        moved += _bytes(inputs) + _bytes(outputs)
        shapes = [shape for part in inputs for shape in part.values()]
        found = [shape for part in outputs for shape in part.values()]
        if name == "Conv":
            conv += 2.0 * math.prod(found[0]) * math.prod(shapes[1][1:])
        elif name == "ConvTranspose":
            conv += 2.0 * math.prod(shapes[0]) * math.prod(shapes[1][1:])
        elif name in ("MatMul", "Gemm"):
            summed = shapes[0][-1] if name == "MatMul" else math.prod(shapes[0]) / found[0][0]
            matrix += 2.0 * math.prod(found[0]) * summed
    return StepWork(conv_flops=conv, matrix_flops=matrix, moved_bytes=moved)


def _bytes(tensors: _Shapes) -> float:
    return float(
        sum(
            _ITEM_BYTES.get(kind, 4) * math.prod(shape)
            for tensor in tensors
            for kind, shape in tensor.items()
        )
    )


def _module_step(artifact: Artifact, n: int) -> StepWork:
    from fairbed.testbed.host.torch_work import module_step

    return module_step(artifact, n)
