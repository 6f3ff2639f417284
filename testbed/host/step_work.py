"""Counts the arithmetic and the memory traffic of a step, from its graph or by running a module.

The package onnx derives the shapes of all values of a graph at two sizes of the batch; nothing
runs, so the counts depend on no machine. What an operation is for follows from the flow of values:

- a convolution, or a product with parameters, is that of a layer; one group per channel is
  depthwise;
- a product of two values that both depend on the examples is one of attention;
- a product with parameters whose other operand depends on an earlier product with the same
  parameters is recurrent;
- the gradient of the parameters of a layer counts as much as its forward pass, whatever the graph
  computes it by: a graph takes larger products with zeros where these are faster. So it does for
  depthwise convolutions on small maps, which count as convolutions.

Operations that move no data (views) count for nothing, and so do products of parameters alone.
Pools that the exporter writes as products or convolutions with constants count as these. A module
runs under a dispatch mode of torch, with one count for all convolutions and one for all products.
"""

import importlib.util
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairbed.testbed.emulation.work import StepWork
from fairbed.wire.artifact import Artifact

COUNTED = 2, 4
"""Examples of the two steps; with a single one some layers cannot be trained."""

_SIZES = frozenset({"Shape", "Size"})
_VIEWS = _SIZES | {"Reshape", "Squeeze", "Unsqueeze", "Identity"}

_RECURRENT = frozenset({"GRU", "LSTM"})
"""Layers of all steps. Their backward pass is written as products; it computes the gates once more,
which counts in place of the gradient of the parameters."""

_CONVOLUTIONS, _PRODUCTS = frozenset({"Conv", "ConvTranspose"}), frozenset({"MatMul", "Gemm"})

_ITEM_BYTES = {1: 4, 7: 8, 9: 1}
"""Bytes of an element by type of ONNX: float32, int64, bool."""


class UnknownShape(Exception):
    """The shape of a value does not follow from the graph."""


def step_work(artifact: Artifact) -> StepWork | None:
    """Return the work of a training step of a task per example.

    Returns:
        None if it cannot be counted: the package onnx is missing, or a shape is unknown.
    """
    return step_and_frozen_work(artifact)[0]


def step_and_frozen_work(artifact: Artifact) -> tuple[StepWork | None, StepWork | None]:
    """Return the work of a training step, and the part of it below all layers that are trained.

    That part is a forward pass alone: no gradient passes through it.

    Returns:
        None for work that cannot be counted; no frozen part also for a module, whose forward pass
        is PyTorch's, and if it has neither a product nor a convolution.
    """
    if artifact.module is not None:
        return _module_work(artifact), None
    return _graph_work(artifact.train) or (None, None)


def evaluation_work(artifact: Artifact) -> StepWork | None:
    """Return the same of an evaluation; None for a module, too."""
    found = None if artifact.module is not None else _graph_work(artifact.evaluate)
    return None if found is None else found[0]


def _graph_work(graph: bytes) -> tuple[StepWork, StepWork | None] | None:
    if importlib.util.find_spec("onnx") is None:
        return None
    try:
        small, large = (_Shapes.of(graph, n) for n in COUNTED)
    except UnknownShape:
        return None
    forward = _forward_nodes(large.nodes)
    frozen = _frozen_nodes(large.nodes, forward)
    of_all, of_frozen = _flops(small, large, forward, frozen)
    return (
        _between(small, large, of_all, range(len(large.nodes))),
        _between(small, large, of_frozen, frozen) if any(of_frozen.values()) else None,
    )


def _between(
    small: "_Shapes", large: "_Shapes", flops: Mapping[str, float], places: Iterable[int]
) -> StepWork:
    """Return the work per example of the nodes at some places."""
    at = list(places)
    few, many = (sum(shapes.moved_bytes[place] for place in at) for shapes in (small, large))
    return StepWork.between(
        (COUNTED[0], StepWork(moved_bytes=few)),
        (COUNTED[1], StepWork(**flops, moved_bytes=many)),
    )


@dataclass(frozen=True, slots=True)
class _Shapes:
    """A graph at one size of the batch."""

    nodes: list[Any]
    shapes: Mapping[str, tuple[int, ...]]
    constants: frozenset[str]
    """Values that no example changes, as sizes of the batch."""
    moved_bytes: list[float]
    """Bytes that each node reads and writes."""

    @classmethod
    def of(cls, graph: bytes, batch: int) -> "_Shapes":
        """Return the shapes of all values.

        Raises:
            UnknownShape: One does not follow from the graph.
        """
        import onnx

        model = onnx.load_model_from_string(graph)
        for value in (*model.graph.input, *model.graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_value = batch
        for _ in range(len(model.graph.node)):  # each pass but the last resolves a shape
            known = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
            types = {
                value.name: value.type.tensor_type
                for value in (*known.value_info, *known.input)
                if value.type.tensor_type.HasField("shape")
            }
            types = {
                name: found
                for name, found in types.items()
                if all(dim.HasField("dim_value") for dim in found.shape.dim)
            }
            shapes = {name: tuple(d.dim_value for d in t.shape.dim) for name, t in types.items()}
            if not _resolve_sizes(model.graph, shapes):
                break
        sizes = {name: _ITEM_BYTES.get(t.elem_type, 4) for name, t in types.items()}
        for tensor in model.graph.initializer:
            shapes[tensor.name] = tuple(tensor.dims)
            sizes[tensor.name] = _ITEM_BYTES.get(tensor.data_type, 4)
        for value in model.graph.output:  # inference keeps the symbolic size that is declared
            tensor = value.type.tensor_type
            declared = (dim.dim_value or batch for dim in tensor.shape.dim)
            shapes.setdefault(value.name, tuple(declared))
            sizes.setdefault(value.name, _ITEM_BYTES.get(tensor.elem_type, 4))
        nodes = list(model.graph.node)
        moved = []
        for node in nodes:
            names = [name for name in (*node.input, *node.output) if name]
            for name in names:
                if name not in shapes:
                    raise UnknownShape(f"{node.op_type}: {name}")
            n_bytes = sum(sizes[name] * math.prod(shapes[name]) for name in names)
            moved.append(0.0 if node.op_type in _VIEWS else float(n_bytes))
        return cls(nodes, shapes, frozenset(t.name for t in model.graph.initializer), moved)


def _resolve_sizes(graph: Any, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Replace what is computed from known shapes alone by constants, as far as inference does not.

    Returns:
        Whether there was anything to replace.
    """
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    constants = {t.name: t for t in graph.initializer}
    values = dict[str, Any]()
    for node in list(graph.node):
        if node.op_type in _SIZES and node.input[0] in shapes:
            feeds = {node.input[0]: np.broadcast_to(np.int64(0), shapes[node.input[0]])}
        elif any(name in values for name in node.input) and all(
            name in values or name in constants for name in node.input
        ):
            feeds = {
                name: values[name] if name in values else numpy_helper.to_array(constants[name])
                for name in node.input
            }
        else:
            continue
        found: Any = ReferenceEvaluator(node).run(None, feeds)
        values.update(zip(node.output, found, strict=True))
        graph.node.remove(node)
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()
    )
    return bool(values)


@dataclass(slots=True)
class _Flow:
    """What the values of a graph depend on."""

    parameters: dict[str, frozenset[str]] = field(default_factory=dict)
    """The parameters of a value that depends on these alone, by its name; none for a constant."""
    products: dict[str, int] = field(default_factory=dict)
    """Bits of the parameters with which a value was multiplied on its way."""
    bits: dict[frozenset[str], int] = field(default_factory=dict)

    def bit(self, parameters: frozenset[str]) -> int:
        return self.bits.setdefault(parameters, 1 << len(self.bits))


def _flops(
    small: _Shapes, large: _Shapes, forward: Collection[int], frozen: Collection[int]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the operations of a step at the larger batch, by field of `StepWork`.

    Args:
        small: The graph at the smaller batch.
        large: The graph at the larger one.
        forward: Places of the nodes of the forward pass.
        frozen: Those of them below all layers that are trained.

    Returns:
        Of the step, and of its frozen nodes.
    """
    flow, back = _Flow(dict.fromkeys(large.constants, frozenset())), _Flow()
    gradients = {n[2:] for node in large.nodes for n in node.output if n.startswith("g.")}
    grows = {name for name, shape in large.shapes.items() if small.shapes.get(name) != shape}
    summed = _summed(large.nodes, grows)
    made = {name: node for node in large.nodes for name in node.output}
    recurrent = set[frozenset[str]]()
    found = list[tuple[str, frozenset[str], float, bool]]()
    for at, node in enumerate(large.nodes):
        is_forward = at in forward
        products = flow if is_forward else back  # the backward pass multiplies by each once more
        names = [name for name in node.input if name]
        is_fixed = not any(_is_data(name, flow) for name in names)
        if is_fixed:
            roots = [flow.parameters.get(name, _roots(name)) for name in names]
            for name in node.output:
                flow.parameters[name] = frozenset().union(*roots)
        passed = 0
        for name in names:
            passed |= products.products.get(name, 0)
        if node.op_type in _RECURRENT:
            for of_step, name in enumerate(node.input[1:3]):  # by x, and by the state before
                weight = flow.parameters.get(name, _roots(name))
                flops = 2.0 * math.prod(large.shapes[node.input[0]][:2])
                flops *= math.prod(large.shapes[name])
                found.append(("matrix_flops", weight, flops, at in frozen))
                if of_step:
                    recurrent.add(weight)
        kind, weight = _kind(node, flow, large.shapes)
        if kind and not is_fixed and node.output[0] in grows and node.output[0] not in summed:
            flops = _multiplied(node, large.shapes) * _filled(node, made, large.shapes)
            if of_kernel := _spread(node, made, large.shapes, is_forward=is_forward):
                kind, flops = "depthwise_flops", of_kernel
            if weight:
                if kind == "matrix_flops" and passed & products.bit(weight):
                    recurrent.add(weight)
                passed |= products.bit(weight)
                if is_forward and weight & gradients:
                    found.append((kind, weight, flops, False))
            found.append((kind, weight, flops, at in frozen))
        for name in node.output:
            products.products[name] = passed
    of_all, of_frozen = defaultdict[str, float](float), defaultdict[str, float](float)
    for kind, weight, flops, is_frozen in found:
        is_recurrent = kind == "matrix_flops" and weight in recurrent
        name = "recurrent_flops" if is_recurrent else kind
        of_all[name] += flops
        if is_frozen:
            of_frozen[name] += flops
    return of_all, of_frozen


def _is_data(name: str, flow: _Flow) -> bool:
    """Return whether a value depends on the examples."""
    is_state = name.startswith(("p.", "b.", "f."))
    return not is_state and name not in flow.parameters


def _roots(name: str) -> frozenset[str]:
    return frozenset({name[2:]}) if name.startswith(("p.", "f.")) else frozenset()


def _forward_nodes(nodes: list[Any]) -> set[int]:
    """Return the places of the nodes on which the loss depends; all of an evaluation."""
    if not any("loss" in node.output for node in nodes):
        return set(range(len(nodes)))
    wanted, places = {"loss"}, set[int]()
    for at in reversed(range(len(nodes))):
        if wanted.intersection(nodes[at].output):
            wanted.update(nodes[at].input)
            places.add(at)
    return places


def _frozen_nodes(nodes: list[Any], forward: Collection[int]) -> set[int]:
    """Return the places of the forward nodes that depend on no trained parameter.

    None in a graph without gradients, as that of an evaluation.
    """
    gradients = {n[2:] for node in nodes for n in node.output if n.startswith("g.")}
    trained, places = {f"p.{name}" for name in gradients}, set[int]()
    for at, node in enumerate(nodes):
        if not trained.isdisjoint(node.input):
            trained.update(name for name in node.output if name)
        elif at in forward and gradients:
            places.add(at)
    return places


def _summed(nodes: list[Any], grows: set[str]) -> set[str]:
    """Return the values of which only sums over the batch are used."""
    users = defaultdict[str, list[Any]](list)
    for node in nodes:
        for name in node.input:
            users[name].append(node)
    return {
        name
        for name, after in users.items()
        if name in grows
        and all(n.op_type == "ReduceSum" and n.output[0] not in grows for n in after)
    }


def _kind(
    node: Any, flow: _Flow, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, frozenset[str]]:
    """Return the field of `StepWork` for an operation, and the parameters that it multiplies by.

    The field is empty for an operation that is neither a product nor a convolution.
    """
    is_mean = node.op_type == "MatMul" and shapes[node.input[1]][1:] == (1,)  # of a layer norm
    if is_mean or node.op_type not in _CONVOLUTIONS | _PRODUCTS:
        return "", frozenset()
    weights = [
        flow.parameters.get(name, _roots(name))
        for name in node.input[:2]
        if not _is_data(name, flow)
    ]
    weight = weights[0] if weights else frozenset()
    if node.op_type in _PRODUCTS:
        return ("matrix_flops" if weights else "attention_flops"), weight
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    if groups == 1:
        return "conv_flops", weight
    return ("depthwise_flops" if shapes[node.input[1]][1] == 1 else "grouped_flops"), weight


def _multiplied(node: Any, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Return the operations of a node; a multiplication with its addition counts as two."""
    first, second = (shapes[name] for name in node.input[:2])
    out = shapes[node.output[0]]
    if node.op_type == "Conv":
        return 2.0 * math.prod(out) * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return 2.0 * math.prod(first) * math.prod(second[1:])
    if node.op_type == "MatMul":
        return 2.0 * math.prod(out) * first[-1]
    return 2.0 * math.prod(first) * out[1]


def _filled(node: Any, made: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Return the share of the rows of a convolution that are not zeros between joined pictures."""
    if node.op_type not in _CONVOLUTIONS or shapes[node.input[0]][0] > 1:
        return 1.0
    joined = made.get(node.input[0])
    if joined is None or joined.op_type != "Reshape":
        return 1.0
    apart = made.get(joined.input[0])
    if apart is None or apart.op_type != "Pad":
        return 1.0
    return math.prod(shapes[apart.input[0]]) / math.prod(shapes[apart.output[0]])


def _spread(
    node: Any,
    made: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    is_forward: bool,
) -> float:
    """Return the operations of a depthwise convolution that is written as a product.

    Its first operand is the product of the kernel and of the places of each offset, which are a
    constant of booleans. In the gradient, its columns are the positions of the result. 0 for
    another node.
    """
    above = _above(node, made, 0)
    is_transposed = above is not None and above.op_type == "Transpose"
    spread = _above(above, made, 0) if is_transposed else above
    kernel = _above(spread, made, 0)
    places = _above(kernel, made, 1)
    chain = [None if each is None else each.op_type for each in (node, spread, kernel, places)]
    if places is None or chain != ["MatMul", "Reshape", "MatMul", "Cast"]:
        return 0.0
    groups, rows, columns = shapes[node.input[0]]
    results = groups * (rows if is_forward else columns) * shapes[node.output[0]][-1]
    return 2.0 * results * shapes[places.output[0]][0]


def _above(node: Any, made: Mapping[str, Any], operand: int) -> Any:
    """Return the node that computes an operand of a node; None if there is none."""
    has = node is not None and len(node.input) > operand
    return made.get(node.input[operand]) if has else None


def _module_work(artifact: Artifact) -> StepWork:
    from fairbed.testbed.host.torch_work import module_step

    small, large = ((n, module_step(artifact, n)) for n in COUNTED)
    return StepWork.between(small, large)
