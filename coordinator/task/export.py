"""Exports a torch module as a task that trains without torch.

`torch.export` records the loss and its gradient; our own lowering writes them as ONNX. Every
artifact is compared with torch in float64 before it is returned, because two other routes from
torch to ONNX are known to compute wrong gradients without an error.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec
import torch
from msgspec import UNSET
from numpy.typing import NDArray
from torch import fx, nn
from torch.export import ExportedProgram
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
    dtype_of,
    shape_of,
)
from fairbed.coordinator.task.modules import (
    SELFCHECK_BATCH,
    SELFCHECK_SEED,
    export_problem,
    make_layout,
    unknown_check,
    with_kind,
)
from fairbed.coordinator.task.ops import OPERATIONS
from fairbed.coordinator.task.recording import PREFIX, Recorder
from fairbed.coordinator.task.selfcheck import TorchReference, stable_check, verify
from fairbed.wire.artifact import Artifact, TaskKind, TaskSpec, XRange


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
    x_range: XRange | None = None,
    fixed: Collection[str] = (),
    twin: nn.Module | None = None,
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
        x_range: From which the checks draw x; None for normal numbers.
        fixed: Names of the tensors that are constants of the graphs.
        twin: As for `make_layout`.

    Raises:
        Unsupported: torch cannot record the module, or the lowering lacks one of its operations.
        WrongArtifact: The graphs do not compute what torch computes.
    """
    if problem := export_problem(model):
        raise Unsupported(problem)
    spec = TaskSpec(
        name=name,
        model=model_name,
        layout=make_layout(model, fixed, twin),
        x_shape=x_shape,
        x_dtype=x_dtype,
        x_classes=x_classes,
        classes=classes,
        opset=OPSET,
        selfcheck=unknown_check(x_range),
        task=UNSET if kind == "classification" else kind,
    )
    recorder = Recorder(copy.deepcopy(model), spec)
    if spec.is_scored:
        spec = with_kind(spec, recorder.output_shape())
        recorder = Recorder(copy.deepcopy(model), spec)
    try:
        train = _training_graph(recorder.training(), spec)
    except Unsupported:
        _check_forward(recorder.training_loss(), spec)
        raise
    evaluate = _evaluation_graph(recorder.evaluation(), spec)
    reference = TorchReference(model, spec.layout, spec.kind)
    artifact = Artifact(spec=spec, train=train, evaluate=evaluate)
    check = stable_check(artifact, reference, SELFCHECK_SEED, SELFCHECK_BATCH)
    artifact = Artifact(
        spec=msgspec.structs.replace(spec, selfcheck=check), train=train, evaluate=evaluate
    )
    verify(artifact, reference)
    return artifact


def _check_forward(program: ExportedProgram, spec: TaskSpec) -> None:
    """Fail with the name of a layer, which nodes of the loss alone still contain."""
    nodes = (node for node in program.graph.nodes if node.op == "placeholder")
    for given, node in zip(program.graph_signature.input_specs, nodes, strict=True):
        if given.kind == InputKind.PARAMETER and not node.users:
            raise Unsupported(
                f"{_tensor_name(given.target)}: the loss must depend on every parameter, got one "
                "that it does not depend on; remove it from the model"
            )
    _lowered(program, spec, ("x", "y", "w"))


def _training_graph(program: ExportedProgram, spec: TaskSpec) -> bytes:
    """Write loss, gradients and buffer updates; a buffer without an update is copied."""
    made: dict[str, fx.Node] = {}
    for result, node in zip(program.graph_signature.output_specs, _results(program), strict=True):
        if result.kind == OutputKind.LOSS_OUTPUT:
            made["loss"] = node
        elif result.kind == OutputKind.GRADIENT_TO_PARAMETER:
            made[f"g.{_tensor_name(result.target)}"] = node
        elif result.kind == OutputKind.BUFFER_MUTATION:
            made[f"nb.{_tensor_name(result.target)}"] = node
    lowering = _lowered(program, spec, ("x", "y", "w"))
    number = ELEMENT_TYPES[torch.float32]
    outputs: list[Output] = [("loss", lowering.value(made["loss"]), number, ())]
    for tensor in spec.layout.tensors:
        name = f"{'g' if tensor.role == 'param' else 'nb'}.{tensor.name}"
        value = lowering.value(made[name]) if name in made else f"b.{tensor.name}"
        outputs.append((name, value, number, tensor.shape))
    return lowering.graph.serialise(_inputs(spec, ("x", "y", "w")), outputs)


def _evaluation_graph(program: ExportedProgram, spec: TaskSpec) -> bytes:
    """Write the outputs of `TaskSpec.evaluation_outputs`."""
    changes = {OutputKind.BUFFER_MUTATION: "a buffer", OutputKind.USER_INPUT_MUTATION: "an input"}
    for result in program.graph_signature.output_specs:
        if result.kind in changes:
            raise Unsupported(
                f"{_tensor_name(result.target)}: an evaluation must change nothing, got "
                f"{changes[result.kind]} that it changes; let forward() leave it as it is"
            )
    lowering = _lowered(program, spec, ("x", "y"))
    results = zip(spec.evaluation_outputs, _results(program), strict=True)
    outputs: list[Output] = [
        (
            name,
            lowering.value(node),
            ELEMENT_TYPES[dtype_of(node)],
            (BATCH,) if name == "scores" else (),
        )
        for name, node in results
    ]
    return lowering.graph.serialise(_inputs(spec, ("x", "y")), outputs)


def _lowered(program: ExportedProgram, spec: TaskSpec, names: Sequence[str]) -> Lowering:
    """Lower a recorded program; its parameters and float buffers are inputs of the graph."""
    lowering = Lowering(GraphBuilder(), OPERATIONS)
    state = {tensor.name: f"{tensor.role[0]}.{tensor.name}" for tensor in spec.layout.tensors}
    examples = iter(names)
    nodes = (node for node in program.graph.nodes if node.op == "placeholder")
    for given, node in zip(program.graph_signature.input_specs, nodes, strict=True):
        if given.kind == InputKind.USER_INPUT and isinstance(shape_of(node)[0], int):
            raise Unsupported(
                f"{spec.name}: the model must accept batches of any size, got an operation whose "
                f"recording fixes the batch to {shape_of(node)[0]}; use another one"
            )
        if given.kind == InputKind.USER_INPUT:
            lowering.bind_examples(node, next(examples))
        elif (name := _tensor_name(given.target)) in state:
            lowering.bind(node, state[name])
        else:  # a constant, or a counter, which does not change
            lowering.bind(node, lowering.graph.constant(_constant(program, given.target)))
    for node in program.graph.nodes:
        if node.op == "call_function":
            lowering.visit(node)
    lowering.check()
    return lowering


def _constant(program: ExportedProgram, target: str | None) -> NDArray[Any]:
    values = {**program.state_dict, **program.constants}
    array: NDArray[Any] = values[str(target)].detach().numpy()
    return array


def _results(program: ExportedProgram) -> list[fx.Node]:
    return list(program.graph.output_node().args[0])


def _tensor_name(target: str | None) -> str:
    return str(target).removeprefix(PREFIX)


def _inputs(spec: TaskSpec, names: Sequence[str]) -> list[Input]:
    number = ELEMENT_TYPES[torch.float32]
    x_type = number if spec.x_dtype == "float32" else ELEMENT_TYPES[torch.int64]
    examples: dict[str, tuple[int, Sequence[int | str]]] = {
        "x": (x_type, (BATCH, *spec.x_shape)),
        "y": (ELEMENT_TYPES[getattr(torch, spec.y_dtype)], (BATCH,)),
        "w": (number, (BATCH,)),
    }
    state = [(f"{t.role[0]}.{t.name}", number, t.shape) for t in spec.layout.tensors]
    return [*state, *((name, *examples[name]) for name in names)]
