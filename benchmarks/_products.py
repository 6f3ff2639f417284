"""Times the matrix products and convolutions of a training graph without its other operations."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from fairbed.coordinator.task.selfcheck import GraphRunner
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.testbed.host.model_steps import in_turns
from fairbed.wire.artifact import Artifact, draw_masks, initial_vector
from fairbed.wire.selfcheck import selfcheck_inputs

PRODUCTS = frozenset(("Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul"))
"""Operations of ONNX that are mostly products."""

_ERRORS = 3


def product_share(artifact: Artifact, batch: int, seconds: float) -> float:
    """Return the processor time of the products of a step over that of the step, the median.

    Both run on one thread, in turns; the products, side by side, on the values of a step.
    """
    spec = artifact.spec
    _, x, y = selfcheck_inputs(spec, seed=0, batch=batch)
    vector, engine = initial_vector(spec, seed=0), OnnxEngine(artifact)
    graph = onnx.load_model_from_string(artifact.train).graph
    nodes = [node for node in graph.node if node.op_type in PRODUCTS]
    read = dict.fromkeys(name for node in nodes for name in node.input if name)
    masks = draw_masks(spec.masks, 0, 0, batch)
    _, feeds = GraphRunner(artifact).feeds(vector, x, y, masks)
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    values = {**constants, **feeds}
    inner = [name for name in read if name not in values]
    values |= zip(inner, _values_of(artifact.train, inner, feeds), strict=True)
    for node in nodes:  # none reads what another one computes
        node.input[:] = [name and f"of.{name}" for name in node.input]
    part = helper.make_graph(
        nodes,
        "products",
        [
            helper.make_tensor_value_info(
                f"of.{name}",
                helper.np_dtype_to_tensor_dtype(values[name].dtype),
                values[name].shape,
            )
            for name in read
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for node in nodes
            for name in node.output
            if name
        ],
    )
    like = onnx.load_model_from_string(artifact.train)
    del like.graph.node[:]
    like.graph.CopyFrom(part)
    session = _session(like)
    bound = {f"of.{n}": onnxruntime.OrtValue.ortvalue_from_numpy(values[n]) for n in read}
    both_s = in_turns(
        (
            lambda: session.run_with_ort_values(None, bound),
            lambda: engine.gradient(vector, x, y),
        ),
        seconds,
    )
    return float(np.median(both_s[:, 0] / both_s[:, 1]))


def _values_of(train: bytes, names: list[str], feeds: dict[str, object]) -> list[np.ndarray]:
    """Return inner values of a training graph."""
    model = onnx.load_model_from_string(train)
    has = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in has)
    return list(_session(model).run(names, feeds))


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _ERRORS
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
