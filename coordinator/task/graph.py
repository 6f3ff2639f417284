"""Builds one ONNX graph: short stable names, no duplicates, nothing unused, no metadata."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET = 20
IR_VERSION = 10
"""With opset 20 readable by onnxruntime >= 1.18, older than the oldest that we install."""

PRODUCER = "fairbed"

Input: TypeAlias = tuple[str, int, Sequence[int | str]]
"""Name, ONNX element type and shape; names in shapes are symbolic dimensions."""

Output: TypeAlias = tuple[str, str, int, Sequence[int | str]]
"""Name, name of the value it takes, ONNX element type and shape."""


class GraphBuilder:
    """Collects nodes in order; equal nodes and equal constants are made once.

    The same calls give the same bytes: names count up, and nothing of the machine is stored.
    """

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, NDArray[Any]] = {}
        self._known: dict[tuple[object, ...], tuple[str, ...]] = {}

    def constant(self, value: NDArray[Any]) -> str:
        """Return the name of a constant."""
        key = ("constant", value.dtype.str, value.shape, value.tobytes())
        if key not in self._known:
            name = f"constant{len(self._constants)}"
            self._constants[name] = value
            self._known[key] = (name,)
        return self._known[key][0]

    def ints(self, values: Sequence[int]) -> str:
        """Return the name of a constant int64 list: axes, a shape, starts."""
        return self.constant(np.array(values, np.int64).reshape(len(values)))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return its name."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Add a node with several outputs and return their names."""
        key = (kind, outputs, inputs, repr(sorted(attributes.items())))
        if key not in self._known:
            start = sum(len(node.output) for node in self._nodes)
            names = tuple(f"value{start + i}" for i in range(outputs))
            self._nodes.append(helper.make_node(kind, list(inputs), list(names), **attributes))
            self._known[key] = names
        return self._known[key]

    def serialise(self, inputs: Sequence[Input], outputs: Sequence[Output]) -> bytes:
        """Return the graph without what no output needs, its values numbered in order."""
        nodes = self._needed({value for _, value, _, _ in outputs})
        made = [name for node in nodes for name in node.output]
        renamed: dict[str, str] = {}
        for name, value, _, _ in outputs:
            if value in made and value not in renamed:
                renamed[value] = name
            else:  # an input, a constant, or a second output of the same value
                nodes.append(helper.make_node("Identity", [value], [name]))
        used = {name for node in nodes for name in node.input}
        constants = [name for name in self._constants if name in used]
        renamed |= {name: f"c{i}" for i, name in enumerate(constants)}
        inner = [name for name in made if name not in renamed]
        renamed |= {name: f"v{i}" for i, name in enumerate(inner)}
        for node in nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        graph = helper.make_graph(
            nodes,
            "task",
            [helper.make_tensor_value_info(n, kind, list(shape)) for n, kind, shape in inputs],
            [helper.make_tensor_value_info(n, kind, list(shape)) for n, _, kind, shape in outputs],
            [numpy_helper.from_array(self._constants[name], renamed[name]) for name in constants],
        )
        model = helper.make_model(
            graph,
            producer_name=PRODUCER,
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        onnx.checker.check_model(model)
        blob: bytes = model.SerializeToString(deterministic=True)
        return blob

    def _needed(self, wanted: set[str]) -> list[onnx.NodeProto]:
        """Return copies of the nodes that lead to `wanted`, in order."""
        wanted, kept = set(wanted), []
        for node in reversed(self._nodes):
            if wanted.intersection(node.output):
                wanted.update(node.input)
                kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
        return kept[::-1]
