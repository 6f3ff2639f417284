"""Exports a torch module as a task that trains without torch.

`torch.export` records the loss and its gradient; our own lowering writes them as ONNX. Every
artifact is compared with torch in float64 before it is returned, because two other routes from
torch to ONNX are known to compute wrong gradients without an error.
"""

import copy
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from msgspec import UNSET
from numpy.typing import NDArray
from torch import fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from fairbed.coordinator.task.errors import Unsupported
from fairbed.coordinator.task.lowering import (
    BATCH,
    ELEMENT_TYPES,
    OPSET,
    GraphBuilder,
    Input,
    Lowering,
    Output,
    check_size,
    dtype_of,
    shape_of,
    unsupported,
)
from fairbed.coordinator.task.modules import (
    SELFCHECK_BATCH,
    SELFCHECK_SEED,
    check_adapters,
    frozen_values,
    make_layout,
    unknown_check,
    unused_remark,
    with_kind,
)
from fairbed.coordinator.task.ops import OPERATIONS
from fairbed.coordinator.task.own_functions import with_functions
from fairbed.coordinator.task.random_masks import find_draws, mask_rules
from fairbed.coordinator.task.recording import Recorder, Recording
from fairbed.coordinator.task.selfcheck import (
    ExportFigures,
    TorchReference,
    check_equal_steps,
    stable_check,
    verify,
)
from fairbed.wire.artifact import (
    Artifact,
    ClassesAxis,
    FunctionSource,
    TaskKind,
    TaskSpec,
    XRange,
)
from fairbed.wire.losses import functions_of
from fairbed.wire.tensors import Layout, Tensor


def export_task(
    model: nn.Module,
    name: str,
    model_name: str,
    x_shape: tuple[int, ...],
    classes: int,
    *,
    x_dtype: Literal["float32", "int64"] = "float32",
    x_classes: int = 0,
    kind: TaskKind = "classification",
    y_shape: tuple[int, ...] = (),
    classes_axis: ClassesAxis | None = None,
    x_range: XRange | None = None,
    y_values: Sequence[float] = (),
    fixed: Collection[str] = (),
    twin: nn.Module | None = None,
    base: Layout | None = None,
    loss: FunctionSource | None = None,
    metrics: Sequence[FunctionSource] = (),
    report: Callable[[ExportFigures], None] | None = None,
) -> Artifact:
    """Return the checked artifact of a model.

    Args:
        model: Maps x, shape (B, *x_shape), to logits, shape (B, classes), or to one number per
            example, shape (B,) or (B, 1): the prediction, or the logit of class 1 of two. All its
            float tensors become part of the flat vector; their values only decide how each is
            initialised.
        name: Name of the task, such as `cnn-1x8x8-10`.
        model_name: Name of the model in the experiment file.
        x_shape: Shape of one example.
        classes: Number of classes; 1 for regression.
        x_dtype: Type of x.
        x_classes: Vocabulary size for integer x.
        kind: What the model predicts. With two classes its output decides: one logit, or two.
        y_shape: Shape of the targets of one example. At positions the model returns the logits of
            each, (B, *y_shape, classes) or (B, classes, *y_shape), or numbers (B, *y_shape).
        classes_axis: Where the classes are, if both shapes fit the output.
        x_range: From which the checks draw x; None for normal numbers.
        y_values: From which they draw y; empty for all classes, and for normal numbers.
        fixed: Names of the tensors that are constants of the graphs, besides frozen parameters.
        twin: As for `make_layout`.
        base: Those of `fixed` that are inputs of the graphs, in place of constants; None: none.
        loss: A loss by name or of the user; None: that of the kind.
        metrics: What an evaluation measures beside that of the kind.
        report: Called with what the export took, once it is checked.

    Raises:
        Unsupported: torch cannot record the module, or the lowering lacks one of its operations.
        WrongArtifact: The graphs do not compute what torch computes.
    """
    began_s = time.perf_counter()
    frozen = (label for label, value in model.named_parameters() if not value.requires_grad)
    fixed = {*fixed, *frozen}
    spec = TaskSpec(
        name=name,
        model=model_name,
        layout=make_layout(model, fixed, twin),
        x_shape=x_shape,
        x_dtype=x_dtype,
        x_classes=x_classes,
        classes=classes,
        opset=OPSET,
        selfcheck=unknown_check(x_range, y_values),
        task=UNSET if kind == "classification" else kind,
        positions=y_shape or UNSET,
    )
    if spec.is_scored or spec.y_shape:
        first = Recorder(copy.deepcopy(model), spec)
        spec = with_kind(spec, first.output_shape(takes_first=loss is not None), classes_axis)
    spec = with_functions(spec, model, loss, metrics)
    recorder = Recorder(copy.deepcopy(model), spec)
    reference = TorchReference(
        model,
        spec.layout,
        spec.kind,
        classes_axis=spec.classes_axis,
        own=functions_of(spec),
    )
    try:
        steps_began_s = time.perf_counter()
        check_equal_steps(spec, reference, is_seeded=True)
        steps_s = time.perf_counter() - steps_began_s
        unused = reference.unused()
        check_adapters(unused)
        params = (tensor.name for tensor in spec.layout.tensors if tensor.role == "param")
        program = recorder.training([name for name in params if name not in unused])
        reference.draws = draws = list(find_draws(program.graph).values())
        spec = msgspec.structs.replace(spec, random=tuple(draw.mask for draw in draws) or UNSET)
        train = _training_graph(recorder, program, spec, base)
    except Exception:  # of the module, too; the loss alone has nodes with the name of their layer
        _lowered(recorder, recorder.training_loss(), spec, base, ("x", "y", "w"))
        raise
    evaluate = _evaluation_graph(recorder, recorder.evaluation(), spec, base)
    counts = _counts_graph(recorder, spec) if spec.weighs is True else b""
    exported_s = time.perf_counter()
    artifact = Artifact(
        spec=spec, train=train, evaluate=evaluate, counts=counts, remarks=unused_remark(unused)
    )
    with torch.random.fork_rng(devices=[]):
        of_base = {} if base is None else frozen_values(model, base)
        check = stable_check(artifact, reference, SELFCHECK_SEED, SELFCHECK_BATCH, of_base)
        spec = msgspec.structs.replace(spec, selfcheck=check)
        artifact = msgspec.structs.replace(artifact, spec=spec)
        errors = verify(artifact, reference, of_base)
    if report is not None:
        checked_s = time.perf_counter()
        figures = ExportFigures(
            export_s=exported_s - began_s - steps_s,
            check_s=checked_s - exported_s + steps_s,
            errors=errors,
        )
        report(figures)
    return artifact


def forward_graph(model: nn.Module, spec: TaskSpec) -> bytes:
    """Return a network as ONNX, from `x` to `output`, with its values inside.

    Several outputs are `output0`, `output1`, ...

    Args:
        model: The module with its values, in evaluation mode.
        spec: Shape and type of x.

    Raises:
        Unsupported: torch cannot record the module, or the lowering lacks one of its operations.
    """
    recorder = Recorder(copy.deepcopy(model), spec)
    program = recorder.forward()
    plain = msgspec.structs.replace(spec, layout=Layout(tensors=()))
    lowering = _lowered(recorder, program, plain, None, ("x",))
    nodes, outputs = _results(program), list[Output]()
    for at, node in enumerate(nodes):
        shape: list[int | str] = [BATCH, *map(int, shape_of(node)[1:])]
        name = f"output{at}" if len(nodes) > 1 else "output"
        outputs.append((name, lowering.value(node), ELEMENT_TYPES[dtype_of(node)], shape))
    return lowering.graph.serialise(_inputs(plain, None, ("x",)), outputs)


def _training_graph(
    recorder: Recorder, program: Recording, spec: TaskSpec, base: Layout | None
) -> bytes:
    """Write loss, gradients and buffer updates.

    A parameter without a gradient has one of 0, and a buffer without an update is copied.
    """
    made: dict[str, fx.Node] = {}
    for (kind, name), node in zip(program.outputs, _results(program), strict=True):
        if kind == OutputKind.LOSS_OUTPUT:
            made["loss"] = node
        elif kind == OutputKind.GRADIENT_TO_PARAMETER:
            made[f"g.{recorder.name_of(name)}"] = node
        elif kind == OutputKind.BUFFER_MUTATION:
            made[f"nb.{recorder.name_of(name)}"] = node
    lowering = _lowered(recorder, program, spec, base, ("x", "y", "w"))
    number = ELEMENT_TYPES[torch.float32]
    zero = lowering.graph.constant(np.zeros((), np.float32))
    outputs: list[Output] = [("loss", lowering.value(made["loss"]), number, ())]
    for tensor in spec.layout.tensors:
        name = f"{'g' if tensor.role == 'param' else 'nb'}.{tensor.name}"
        if name in made:
            value = lowering.value(made[name])
        elif tensor.role == "buffer":
            value = f"b.{tensor.name}"
        else:
            value = lowering.graph.op("Expand", zero, lowering.graph.ints(tensor.shape))
        outputs.append((name, value, number, tensor.shape))
    return lowering.graph.serialise(_inputs(spec, base, ("x", "y", "w")), outputs)


def _evaluation_graph(
    recorder: Recorder, program: Recording, spec: TaskSpec, base: Layout | None
) -> bytes:
    """Write the outputs of `TaskSpec.evaluation_outputs`."""
    changes = {OutputKind.BUFFER_MUTATION: "a buffer", OutputKind.USER_INPUT_MUTATION: "an input"}
    for kind, target in program.outputs:
        if kind in changes:
            raise Unsupported(
                f"{recorder.name_of(target)}: an evaluation must change nothing, got "
                f"{changes[kind]} that it changes; let forward() leave it as it is"
            )
    lowering = _lowered(recorder, program, spec, base, ("x", "y"))
    results = zip(spec.evaluation_outputs, _results(program), strict=True)
    shapes: dict[str, tuple[int | str, ...]] = {
        "scores": (BATCH, *spec.y_shape),
        "class_counts": (3, spec.classes),
    }
    shapes |= {f"metric.{at}": (2, each.columns) for at, each in enumerate(spec.named_metrics)}
    outputs: list[Output] = [
        (name, lowering.value(node), ELEMENT_TYPES[dtype_of(node)], shapes.get(name, ()))
        for name, node in results
    ]
    return lowering.graph.serialise(_inputs(spec, base, ("x", "y")), outputs)


def _counts_graph(recorder: Recorder, spec: TaskSpec) -> bytes:
    """Write the weights c of examples in the loss."""
    program = recorder.counts()
    lowering = _lowered(recorder, program, spec, None, ("y",))
    [node] = _results(program)
    number = ELEMENT_TYPES[torch.float32]
    output: Output = ("c", lowering.value(node), number, (BATCH,))
    inputs = [each for each in _inputs(spec, None, ("y",)) if each[0] == "y"]
    return lowering.graph.serialise(inputs, [output])


def _lowered(
    recorder: Recorder,
    program: Recording,
    spec: TaskSpec,
    base: Layout | None,
    names: Sequence[str],
) -> Lowering:
    """Lower a recorded program; its parameters and changing buffers are inputs of the graph.

    So are the tensors of the base and, in training, the random masks.
    """
    check_size(spec.name, program.graph)
    draws = find_draws(program.graph) if "w" in names else {}
    masks = {node: f"m.{i}" for i, node in enumerate(draws)}
    rules = {**OPERATIONS, **mask_rules(masks, draws), _ITEM: _item}
    lowering = Lowering(GraphBuilder(), rules)
    state = {tensor.name: f"{tensor.role[0]}.{tensor.name}" for tensor in spec.layout.tensors}
    state |= {tensor.name: f"f.{tensor.name}" for tensor in _tensors_of(base)}
    examples = iter(names)
    nodes = (node for node in program.graph.nodes if node.op == "placeholder")
    for (kind, target), node in zip(program.inputs, nodes, strict=True):
        if kind == InputKind.USER_INPUT and isinstance(shape_of(node)[0], int):
            raise Unsupported(
                f"{spec.name}: the model must accept batches of any size, got an operation whose "
                f"recording fixes the batch to {shape_of(node)[0]}; use another one"
            )
        if kind == InputKind.USER_INPUT:
            lowering.bind_examples(node, next(examples))
        elif (name := recorder.name_of(target)) in state:
            lowering.bind(node, state[name])
        else:  # a constant, or a counter, which does not change
            lowering.bind(node, lowering.graph.constant(_constant(program, target)))
    for node in program.graph.nodes:
        if node.op == "call_function":
            lowering.visit(node)
        elif node.op == "get_attr":
            lowering.bind(node, lowering.graph.constant(_constant(program, node.target)))
    lowering.check()
    return lowering


_ITEM = "aten._local_scalar_dense.default"


def _item(lowering: Lowering, node: fx.Node) -> str:
    raise unsupported(
        node, "must not occur, got a number of Python, as of .item() or float(tensor)"
    )


def _constant(program: Recording, target: str | None) -> NDArray[Any]:
    """Return a constant tensor, its type widened or rounded to one that graphs have."""
    value = program.tensors[str(target)].detach()
    if value.is_floating_point():
        value = value.float()
    elif value.dtype != torch.bool and not value.is_complex():
        value = value.long()
    array: NDArray[Any] = value.numpy()
    return array


def _results(program: Recording) -> list[fx.Node]:
    results: Any = program.graph.output_node().args[0]
    return list(results)


def _tensors_of(base: Layout | None) -> tuple[Tensor, ...]:
    return () if base is None else base.tensors


def _inputs(spec: TaskSpec, base: Layout | None, names: Sequence[str]) -> list[Input]:
    number = ELEMENT_TYPES[torch.float32]
    x_type = number if spec.x_dtype == "float32" else ELEMENT_TYPES[torch.int64]
    examples: dict[str, tuple[int, Sequence[int | str]]] = {
        "x": (x_type, (BATCH, *spec.x_shape)),
        "y": (ELEMENT_TYPES[getattr(torch, spec.y_dtype)], (BATCH, *spec.y_shape)),
        "w": (number, (BATCH,)),
    }
    state = [(f"{t.role[0]}.{t.name}", number, t.shape) for t in spec.layout.tensors]
    masks: list[Input] = [
        (
            f"m.{i}",
            ELEMENT_TYPES[torch.bool],
            (BATCH, *mask.shape) if mask.is_per_example else mask.shape,
        )
        for i, mask in enumerate(spec.masks if "w" in names else ())
    ]
    frozen = [(f"f.{t.name}", number, t.shape) for t in _tensors_of(base)]
    return [*state, *frozen, *((name, *examples[name]) for name in names), *masks]
