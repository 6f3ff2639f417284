"""The artifact of a task: two ONNX graphs and their description, all that a device needs to train.

A model that cannot be exported has no graphs: its artifact names a torch module (`ModuleSource`).

`train` computes the loss and its gradient, `evaluate` what an evaluation measures. Parameters are
inputs of both graphs: a graph is a few kB, and the model is sent separately as one flat vector.

    train:    inputs `p.<name>`.. `b.<name>`.. x y w    outputs loss, `g.<name>`.., `nb.<name>`..
    evaluate: inputs `p.<name>`.. `b.<name>`.. x y      outputs loss_sum, correct_sum, scores

`evaluate` has no `correct_sum` for regression, and no `scores` for three classes or more
(`wire.evaluation`).

`w` are per-example weights, shape (B,), 1/B each for a mean; any batch size B >= 1 works.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from fairbed.wire.codec import Buffer, unpack
from fairbed.wire.messages import MAX_TEXT, MAX_VECTOR_BYTES, Sha256
from fairbed.wire.scale import Scale
from fairbed.wire.tensors import Layout, Shape

MAX_CLASSES = 1 << 20
"""Most classes that have labels; more labels of a data set are identifiers, not classes."""

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Label = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
TensorBytes = Annotated[bytes, Meta(max_length=MAX_VECTOR_BYTES)]
MAX_REMARKS = 64
Number = Annotated[float, Meta(ge=-1e12, le=1e12)]
Magnitude = Annotated[float, Meta(ge=0.0, le=1e12)]

TaskKind: TypeAlias = Literal["classification", "binary", "regression"]
"""classification: one logit per class, cross-entropy; binary: one logit, that of class 1, binary
cross-entropy; regression: one number, half the squared error."""


class XRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The range of the values of x in some data."""

    low: Number
    high: Number
    is_whole: bool
    """All values are whole numbers, as those of tokens and pixels are."""


class SelfCheck(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Expected results of a correct engine on a seeded batch; a device verifies its engine.

    Inputs: `rng = np.random.Generator(np.random.PCG64(seed))`; the vector is
    `0.1 * rng.standard_normal(n_values)` (buffers: their absolute value plus 0.5); x is
    `rng.standard_normal((batch, *x_shape))` (for integer x: `rng.integers(0, x_classes, ...)`);
    y is `rng.integers(0, classes, batch)`, for regression `rng.standard_normal(batch)`; drawn in
    this order, then cast to float32 / int64. A check with a range `x` draws x from it:
    `rng.integers(low, high + 1, ...)` for whole numbers, `rng.uniform(low, high, ...)` for others.
    """

    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    batch: Annotated[int, Meta(ge=1, le=1 << 12)]
    loss: Magnitude
    """Mean loss, computed in float64."""
    gradient_l2: Magnitude
    """L2 norm of the gradient over all parameters, computed in float64."""
    x: XRange | UnsetType = UNSET
    """Range of x, for a model that accepts no other values; left out for normal numbers."""


class TaskSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of a model, without its parameters."""

    format: Literal[1] = 1
    name: Text
    """Model and shape, such as `cnn-1x8x8-10`."""
    model: Text
    """Name of the model in the experiment file: softmax, mlp, cnn, ..."""
    layout: Layout
    x_shape: Shape
    """Shape of one example."""
    x_dtype: Literal["float32", "int64"] = "float32"
    x_classes: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    """Vocabulary size for integer x; 0 otherwise."""
    classes: Annotated[int, Meta(ge=1, le=1 << 31)]
    """Number of classes; 1 for regression."""
    opset: Annotated[int, Meta(ge=1, le=1000)]
    selfcheck: SelfCheck
    task: TaskKind | UnsetType = UNSET
    """See `kind`; classification leaves it out."""

    @property
    def kind(self) -> TaskKind:
        """What the model predicts."""
        return "classification" if self.task is UNSET else self.task

    @property
    def is_scored(self) -> bool:
        """An evaluation returns one score per example: two classes, or regression."""
        return self.kind == "regression" or self.classes == 2

    @property
    def y_dtype(self) -> Literal["float32", "int64"]:
        """Type of the targets."""
        return "float32" if self.kind == "regression" else "int64"

    @property
    def evaluation_outputs(self) -> list[str]:
        """Names of the outputs of the evaluation graph."""
        correct = [] if self.kind == "regression" else ["correct_sum"]
        return ["loss_sum", *correct, *(["scores"] if self.is_scored else [])]

    def __post_init__(self) -> None:
        needed = {"binary": 2, "regression": 1}.get(self.kind)
        if needed is not None and self.classes != needed:
            raise ValueError(f"classes must be {needed} for {self.kind}, got {self.classes}")
        if (self.x_classes > 0) != (self.x_dtype == "int64"):
            raise ValueError(
                f"x_classes must be positive for int64 x and 0 otherwise, got {self.x_classes}"
            )


EngineName: TypeAlias = Literal["onnx", "torch"]

BatchNorm: TypeAlias = Literal["merged", "silobn", "fedbn", "frozen"]
"""What becomes of batch normalisation. merged: its values are merged as all others are; silobn:
each device keeps its running statistics; fedbn: it keeps scale and shift, too; frozen: the layers
are in evaluation mode in training, too, and their statistics keep the values of the module.

Source:
    silobn: Andreux et al., DART 2020 (arXiv:2008.07424); fedbn: Li et al., ICLR 2021
    (arXiv:2102.07623).
"""


class ModuleSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A torch module that a device imports; its code is not sent."""

    path: Text
    """`package.module:factory`, as in `wire.models`."""
    sha256: Sha256
    """Of the source file of `package.module`, which must be the same on the device."""
    is_random: bool = False
    """It draws random numbers in training mode, as dropout does. Its self-check is computed in
    evaluation mode."""
    reason: Text = ""
    """Why there are no graphs: what the exporter refused; empty if the experiment chose torch."""


class Artifact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A task as it is sent to devices."""

    spec: TaskSpec
    train: bytes
    """ONNX graph, serialised; empty with a module."""
    evaluate: bytes
    """ONNX graph, serialised; empty with a module."""
    module: ModuleSource | None = None
    """The torch module that replaces the graphs; None with graphs."""
    fixed: Annotated[dict[Text, TensorBytes], Meta(max_length=1 << 16)] = {}
    """The tensors of the module that are no part of the vector, by name: little-endian bytes of the
    type that they have in the module. A device overwrites those of its own copy."""
    remarks: Annotated[list[Text], Meta(max_length=MAX_REMARKS)] = []
    """What training does otherwise than the module states; a line each."""
    scale: Scale | None = None
    """Of the data set of the run; None for tokens."""
    columns: Text = ""
    """What the values of x are, in their order, if the run's data are a table: own data of a device
    must be the same. Empty otherwise."""
    batch_norm: BatchNorm = "merged"
    """A device freezes the layers of a module itself; graphs were recorded with frozen layers."""
    labels: Annotated[tuple[Label, ...], Meta(max_length=MAX_CLASSES)] = ()
    """Label of each class in the data set of the run; empty: the numbers 0, 1, ..."""

    def __post_init__(self) -> None:
        if self.module is not None and (self.train or self.evaluate):
            raise ValueError("train and evaluate must be empty with a module")
        names = self.labels
        if names and not len(names) == len(set(names)) == self.spec.classes:
            raise ValueError(
                f"labels must be {self.spec.classes} different names, got {len(names)}, "
                f"{len(set(names))} different"
            )

    @property
    def engine(self) -> EngineName:
        """The engine that runs this task on devices."""
        return "onnx" if self.module is None else "torch"


_DECODER = msgspec.msgpack.Decoder(Artifact)


def initial_vector(spec: TaskSpec, seed: int) -> NDArray[np.float32]:
    """Return the model before round 1, shape (n_values,), which depends on the seed only.

    Each tensor is initialised as its layout defines; weights and biases of the shipped models are
    uniform in +-1/sqrt(fan_in), as in torch.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    vector = np.zeros(spec.layout.n_values, np.float32)
    for tensor in spec.layout.tensors:
        part = vector[tensor.offset : tensor.offset + tensor.size]
        if tensor.init == "ones":
            part[:] = 1.0
        elif tensor.init == "constant":
            part[:] = 0.0 if tensor.init_value is UNSET else tensor.init_value
        elif tensor.init == "uniform":
            part[:] = rng.uniform(-tensor.init_bound, tensor.init_bound, tensor.size)
    return vector


def encode_artifact(artifact: Artifact) -> bytes:
    """Return the bytes of a task."""
    return msgspec.msgpack.encode(artifact)


def decode_artifact(blob: Buffer) -> Artifact:
    """Return the task in `blob`.

    Raises:
        DecodeError: The bytes are not a task, or are of another format.
    """
    return unpack(_DECODER, blob, "task")
