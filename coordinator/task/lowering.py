"""Translates a torch FX graph of core ATen operations into an equivalent ONNX graph.

The ONNX graph has short stable names, no duplicates, no unused nodes and no metadata.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import fx

from fairbed.coordinator.task.errors import Unsupported
from fairbed.wire.graphs import check_graph

T = TypeVar("T")

OPSET = 20
IR_VERSION = 10
"""With opset 20 readable by onnxruntime >= 1.18, which is older than our oldest requirement."""

PRODUCER = "fairbed"

MOST_NODES = 50_000
"""Operations of a recorded model, and of a graph: a chain of as many small ones opens in 5 s of
processor on x86-64, and no network for devices needs them."""

Input: TypeAlias = tuple[str, int, Sequence[int | str]]
"""Name, ONNX element type and shape; a name in a shape is a symbolic dimension."""

Output: TypeAlias = tuple[str, str, int, Sequence[int | str]]
"""Name, name of its value, ONNX element type and shape."""


class GraphBuilder:
    """Collects nodes in order; equal nodes and equal constants are added once.

    The same calls give the same bytes: names are numbered, and nothing depends on the machine.
    """

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._count = 0
        self._constants: dict[str, NDArray[Any]] = {}
        self._known: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._shapes: dict[str, Sequence[int | str]] = {}

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
            if len(self._nodes) >= MOST_NODES:
                raise Unsupported(
                    f"the model: a graph must have at most {MOST_NODES:,} operations, got more; "
                    "shorten its sequences, which count once per step, or use fewer layers"
                )
            names = tuple(f"value{self._count + i}" for i in range(outputs))
            self._count += outputs
            self._nodes.append(helper.make_node(kind, list(inputs), list(names), **attributes))
            self._known[key] = names
        return self._known[key]

    def note(self, value: str, shape: Sequence[int | str]) -> None:
        """Note the shape of a value, with names for symbolic sizes."""
        self._shapes[value] = shape

    def serialise(self, inputs: Sequence[Input], outputs: Sequence[Output]) -> bytes:
        """Return the graph without unused nodes, its values numbered in order."""
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
        _write_shapes(model, {renamed.get(name, name): s for name, s in self._shapes.items()})
        onnx.checker.check_model(model)
        blob: bytes = model.SerializeToString(deterministic=True)
        check_graph(blob)  # as devices do
        return blob

    def _needed(self, wanted: set[str]) -> list[onnx.NodeProto]:
        """Return copies of the nodes that compute `wanted`, in order."""
        wanted, kept = set(wanted), []
        for node in reversed(self._nodes):
            if wanted.intersection(node.output):
                wanted.update(node.input)
                kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
        return kept[::-1]


_SHAPED_BY_VALUES = ("Expand", "Range", "Reshape")
"""Operations whose result has a shape that depends on values."""

_ROUNDS = 8
"""How often shapes are derived again after some were written."""


def _write_shapes(model: onnx.ModelProto, noted: Mapping[str, Sequence[int | str]]) -> None:
    """Write the shapes that onnxruntime cannot derive, and from which it derives the others.

    Values of unknown shapes share no memory, and its search for a buffer compares them all: an
    LSTM of 80 steps opened in 9.9 s without three shapes, and in 0.5 s with them.
    """
    most = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in most.value_info}
    known = {**noted, **_derived(most)}
    for at in range(_ROUNDS):
        derived = _derived(onnx.shape_inference.infer_shapes(model).graph)
        lost = [
            name
            for node in model.graph.node
            for name in node.output
            if name in known
            and name not in derived
            and name in types
            and (
                (at == 0 and node.op_type in _SHAPED_BY_VALUES)
                or not any(part in known and part not in derived for part in node.input)
            )
        ]
        if not lost:
            return
        for name in lost:
            shape = list(known[name])
            value = helper.make_tensor_value_info(name, types[name], shape)
            model.graph.value_info.append(value)


def _derived(graph: onnx.GraphProto) -> dict[str, list[int | str]]:
    """Return the known shapes of a graph; a size is a number, or the name of the batch."""
    found: dict[str, list[int | str]] = {c.name: list(c.dims) for c in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shape = value.type.tensor_type.shape
        sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in shape.dim]
        is_known = all(isinstance(size, int) or size == BATCH for size in sizes)
        if value.type.tensor_type.HasField("shape") and is_known:
            found[value.name] = sizes
    return found


BATCH = "batch"
"""Name of the only symbolic dimension."""

Value: TypeAlias = str | tuple[str, ...]
"""Name of an ONNX value, or names of the outputs of an operation with several."""


MOST_SHOWN = 6
"""Operations, and layers of each, that a refusal names."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An operation without a translation."""

    node: fx.Node
    problem: str


class Refused(Unsupported):
    """An operation has no translation."""

    def __init__(self, refusal: _Refusal) -> None:
        super().__init__(f"{_layer(refusal.node) or 'the model'}: {refusal.problem}")
        self.refusal = refusal


class Untranslated(Unsupported):
    """Operations of a model have no translation."""

    problems: Sequence[str] = ()
    """Each operation without a rule, with its layers."""


class _UnknownType(Unsupported):
    """A type of tensors that the graphs do not have."""


class _Types(dict[torch.dtype, T]):
    def __missing__(self, dtype: torch.dtype) -> T:
        shown = str(dtype).removeprefix("torch.")
        raise _UnknownType(f"all tensors must be float32, int64 or bool, got {shown}")


ELEMENT_TYPES: Mapping[torch.dtype, int] = _Types(
    {
        torch.float32: TensorProto.FLOAT,
        torch.int64: TensorProto.INT64,
        torch.bool: TensorProto.BOOL,
    }
)

NUMPY_TYPES: Mapping[torch.dtype, type[np.generic]] = _Types(
    {torch.float32: np.float32, torch.int64: np.int64, torch.bool: np.bool_}
)


class Lowering:
    """The state of one translation: the graph built so far and the value of each FX node.

    Args:
        graph: Receives the nodes.
        operations: Handlers by operation name, such as `aten.mm.default`.
    """

    def __init__(self, graph: GraphBuilder, operations: Mapping[str, "Handler"]) -> None:
        self.graph = graph
        self._operations = operations
        self._values: dict[fx.Node, Value] = {}
        self._refused: dict[fx.Node, _Refusal | None] = {}
        self._symbols: set[str] = set()

    def bind(self, node: fx.Node, value: Value) -> None:
        """Set the ONNX value of an FX node."""
        self._values[node] = value

    def bind_examples(self, node: fx.Node, value: str) -> None:
        """Set the ONNX value of an input with a row per example; axis 0 is the batch."""
        self._values[node] = value
        self._symbols.add(str(shape_of(node)[0]))

    def handler(self, node: fx.Node) -> "Handler":
        """Return the rule for the operation of an FX node.

        Raises:
            Unsupported: There is no rule.
        """
        name = operation_name(node)
        try:
            return self._operations[name]
        except KeyError:
            raise _refused(node, f"{name} must have a rule, got none") from None

    def visit(self, node: fx.Node) -> None:
        """Translate one node of the FX graph, if it and all before it have rules."""
        try:
            if any(before in self._refused for before in node.all_input_nodes):
                self._refused[node] = None
                if isinstance(node.meta.get("val"), torch.Tensor):  # not a size, or its check
                    self.handler(node)
                return
            rule = self.handler(node)
            self._values[node] = rule(self, node)
            self._note_shape(node)
        except _UnknownType as exc:
            self._refused[node] = _Refusal(node, str(exc))
        except Refused as exc:
            self._refused[node] = exc.refusal

    def _note_shape(self, node: fx.Node) -> None:
        value, result = self._values[node], node.meta.get("val")
        if not isinstance(value, str) or not isinstance(result, torch.Tensor):
            return
        if {str(size) for size in result.shape if not isinstance(size, int)} <= self._symbols:
            self.graph.note(value, [n if isinstance(n, int) else BATCH for n in result.shape])

    def check(self) -> None:
        """Refuse what has no rule, with all operations and their layers in one line.

        Raises:
            Unsupported: A node, or its arguments, have no rule.
        """
        places: dict[str, dict[str, None]] = {}
        for refusal in self._refused.values():
            if refusal is not None:
                places.setdefault(refusal.problem, {})[_layer(refusal.node)] = None
        if not places:
            return
        lines = [f"{_shown(list(layers))}: {problem}" for problem, layers in places.items()]
        more = f" (and {len(lines) - MOST_SHOWN} more)" if len(lines) > MOST_SHOWN else ""
        refused = Untranslated(
            f"{'; '.join(lines[:MOST_SHOWN])}{more}; use other layers, or let devices train the "
            'model with torch: [model] engine = "torch"'
        )
        refused.problems = lines
        raise refused

    def value(self, node: fx.Node) -> str:
        """Return the ONNX value of an FX node with one output.

        Raises:
            Unsupported: It has several outputs, or one that its rule does not compute.
        """
        value = self._values[node]
        if not isinstance(value, str) or not value:
            raise _refused(node, f"must have one computed value, got {value!r}")
        return value

    def output(self, node: fx.Node, index: int) -> str:
        """Return one ONNX value of an FX node with several outputs; empty if not computed."""
        value = self._values[node]
        if isinstance(value, str):
            raise _refused(node, f"must have several values, got {value}")
        return value[index]

    def tensor(self, arg: Any, dtype: torch.dtype) -> str:
        """Return an argument, an FX node or a number, as a tensor of the dtype."""
        if not isinstance(arg, fx.Node):
            return self.graph.constant(np.array(arg, NUMPY_TYPES[dtype]))
        value = self.value(arg)
        if dtype_of(arg) != dtype:
            return self.graph.op("Cast", value, to=ELEMENT_TYPES[dtype])
        return value

    def sizes(self, dims: Sequence[Any], shape: Sequence[Any]) -> str:
        """Return a shape as an int64 list; symbolic sizes are computed in the graph.

        Args:
            dims: Each size as an int or as the FX node that computes it.
            shape: Each size as an int or as torch's symbol.
        """
        if all(isinstance(size, int) for size in shape):
            return self.graph.ints([int(size) for size in shape])
        parts = [
            self.graph.ints([size])
            if isinstance(size, int)
            else self.graph.op("Unsqueeze", self.value(dim), self.graph.ints([0]))
            for dim, size in zip(dims, shape, strict=True)
        ]
        return self.graph.op("Concat", *parts, axis=0)


def check_size(name: str, recorded: fx.Graph) -> None:
    """Check that a recording is not too large.

    Raises:
        Unsupported: It is.
    """
    count = sum(node.op == "call_function" for node in recorded.nodes)
    if count > MOST_NODES:
        raise Unsupported(
            f"{name}: a recording of the model must have at most {MOST_NODES:,} operations, "
            f"got {count:,}; use fewer layers or shorter sequences"
        )


Handler: TypeAlias = Callable[[Lowering, fx.Node], Value]


def arguments(node: fx.Node) -> list[Any]:
    """Return the positional arguments of an FX node, in the order of the operation's schema."""
    return list(node.args)


def operation_name(node: fx.Node) -> str:
    """Return the name of the operation of an FX node, such as `aten.mm.default`."""
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else _plain(node)


def _plain(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def meta(node: fx.Node) -> torch.Tensor:
    """Return a tensor with the shape, dtype and strides that torch derived for an FX node."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise _refused(node, f"must be a tensor, got {type(value).__name__}")
    return value


def dtype_of(node: fx.Node) -> torch.dtype:
    """Return the dtype of the result of an FX node: a tensor, or a number for the batch."""
    if isinstance(node.meta["val"], torch.SymInt | int):
        return torch.int64
    if isinstance(node.meta["val"], torch.SymFloat | float):
        return torch.float32
    return meta(node).dtype


def shape_of(node: fx.Node) -> list[int | torch.SymInt]:
    """Return the shape of the result of an FX node: ints, and a symbol for the batch."""
    return list(meta(node).shape)


def static_shape(node: fx.Node, first: int = 0) -> list[int]:
    """Return the sizes from axis `first` on, which must not depend on the batch.

    Raises:
        Unsupported: A size depends on the batch.
    """
    sizes = shape_of(node)[first:]
    if not all(isinstance(size, int) for size in sizes):
        raise _refused(node, f"only axis 0 may depend on the batch, got {sizes}")
    return [int(size) for size in sizes]


def unsupported(node: fx.Node, rule: str) -> Unsupported:
    """Return the error for arguments without a translation."""
    return _refused(node, f"{operation_name(node)} {rule}")


def _refused(node: fx.Node, problem: str) -> "Refused":
    return Refused(_Refusal(node, problem))


def _layer(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values() if path]
    return paths[-1] if paths else ""


def _shown(layers: Sequence[str]) -> str:
    named = [layer for layer in layers if layer] or ["the model"]
    more = f" and {len(named) - MOST_SHOWN} more layers" if len(named) > MOST_SHOWN else ""
    return ", ".join(named[:MOST_SHOWN]) + more
