"""The artifact of a task: two ONNX graphs and their description, all that a device needs to train.

A model that cannot be exported has no graphs: its artifact names a torch module (`ModuleSource`).

`train` computes the loss and its gradient, `evaluate` what an evaluation measures. Parameters are
inputs of both graphs: a graph is a few kB, and the model is sent separately as one flat vector.

    train:    inputs `p.<name>`.. `b.<name>`.. `f.<name>`.. x y w `m.<i>`..
              outputs loss, `g.<name>`.., `nb.<name>`..
    evaluate: inputs `p.<name>`.. `b.<name>`.. `f.<name>`.. x y
              outputs of `TaskSpec.evaluation_outputs`
    counts:   input y                                   output c, shape (B,)

The loss of example i is a sum l_i over its c_i positions: one position, or those of `y_shape` that
have a label. `train` computes sum_i w_i l_i. The weights w, shape (B,), are 1 / sum_j c_j each for
a mean over the positions of a mini-batch; any batch size B >= 1 works. `m.<i>` are the random masks
of a training step, such as those of dropout (`RandomMask`, `draw_masks`). A loss of the user may
have other weights c: `counts` computes them from the targets.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from fairbed.wire.codec import Buffer, unpack
from fairbed.wire.evaluation import OF_CLIENT, Predicted
from fairbed.wire.messages import (
    MAX_TEXT,
    MAX_VECTOR_BYTES,
    NAME_PATTERN,
    OptionName,
    OptionValue,
    Sha256,
)
from fairbed.wire.preparation import Preparation
from fairbed.wire.scale import Scale
from fairbed.wire.tensors import Layout, Shape

MAX_COUNTED = 256
"""Most classes at positions that are counted one by one: more are words, not kinds of things."""

MAX_CLASSES = 1 << 20
"""Most classes that have labels; more labels of a data set are identifiers, not classes."""

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Label = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
TensorBytes = Annotated[bytes, Meta(max_length=MAX_VECTOR_BYTES)]
Pattern = Annotated[str, Meta(min_length=1, max_length=256)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=256)]
Length = Annotated[int, Meta(ge=1, le=1 << 31)]
MAX_REMARKS = 64
MAX_BUCKETS = 32
"""Most lengths to which sequences are padded: each has graphs of its own."""

Number = Annotated[float, Meta(ge=-1e12, le=1e12)]
Magnitude = Annotated[float, Meta(ge=0.0, le=1e12)]
Signed = Annotated[float, Meta(ge=-1e12, le=1e12)]

TaskKind: TypeAlias = Literal["classification", "binary", "regression", "multi-label"]
"""classification: one logit per class, cross-entropy; binary: one logit, that of class 1, binary
cross-entropy; regression: one number, half the squared error; multi-label: one logit per label, of
which any number may be set, binary cross-entropy of each. All but the last are at each position of
`TaskSpec.y_shape`."""

ClassesAxis: TypeAlias = Literal["first", "last"]
"""Where the classes are in an output at positions: (B, classes, *y_shape), or at the end."""


class XRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The range of the values of x in some data."""

    low: Number
    high: Number
    is_whole: bool
    """All values are whole numbers, as those of tokens and pixels are."""


MAX_Y_VALUES = 512


class SelfCheck(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Expected results of a correct engine on a seeded batch; a device verifies its engine.

    Inputs: `rng = np.random.Generator(np.random.PCG64(seed))`; the vector is
    `0.35 * (rng.random(n_values, dtype=float32) - 0.5)` (buffers: their absolute value plus 0.5);
    x is `rng.standard_normal((batch, *x_shape))` (for integer x: `rng.integers(0, x_classes, ...)`,
    and the first of an example is at least 1, as 0 may be masked padding);
    y is `rng.integers(0, classes, (batch, *y_shape))` (multi-label: of 2), for regression
    `rng.standard_normal((batch, *y_shape))`; drawn in this order, then cast to float32 / int64.
    Classes at positions lose their label (-1) where `rng.random((batch, *y_shape)) < 0.25`, but not
    at the first position of an example. A check with a range `x` draws x from it:
    `rng.integers(low, high + 1, ...)` for whole numbers, `rng.uniform(low, high, ...)` for others.
    One with values `y` draws `values[rng.integers(0, len(values), (batch, *y_shape))]`.
    Random masks are `draw_masks(masks, seed, 0, batch)`.
    """

    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    batch: Annotated[int, Meta(ge=1, le=1 << 12)]
    loss: Signed
    """Mean loss, computed in float64."""
    gradient_l2: Magnitude
    """L2 norm of the gradient over all parameters, computed in float64."""
    x: XRange | UnsetType = UNSET
    """Range of x, for a model that accepts no other values; left out for normal numbers."""
    y: Annotated[tuple[Number, ...], Meta(min_length=1, max_length=MAX_Y_VALUES)] | UnsetType = (
        UNSET
    )
    """Values of y, for a loss or metrics that accept no others; left out for all classes, and for
    normal numbers."""


CHANCES = 1 << 16
"""Steps of a probability: a mask draws 16 bits for each of its elements."""

MAX_MASKS, MAX_MASK_SIZE = 1 << 12, 1 << 24
"""Masks of a task, and elements of a mask, in each example: they bound the memory of a step."""


class RandomMask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A random mask of the training graph, such as that of a dropout layer."""

    shape: Shape
    """Of one example; the graph's input has the batch before it, if `is_per_example`."""
    keep: Annotated[int, Meta(ge=0, le=CHANCES)]
    """Probability that an element is True, in 1/65536."""
    is_per_example: bool = True
    """False: one mask for all examples of a mini-batch, as that of dropped weights."""

    def __post_init__(self) -> None:
        size = math.prod(self.shape)
        if size > MAX_MASK_SIZE:
            raise ValueError(f"a mask must have at most {MAX_MASK_SIZE} elements, got {size}")


PerClass: TypeAlias = Annotated[tuple[Number, ...], Meta(max_length=MAX_CLASSES)]


class FunctionSource(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A loss or a metric: a built-in one, or a function of the user, whose code is not sent.

    Graphs contain what it computes. A device that trains a module imports it, as the module.
    """

    path: Text
    """Name of a built-in one, or `package.module:function`."""
    sha256: Annotated[bytes, Meta(max_length=32)] = b""
    """Of the source file of `package.module`; empty for a built-in one."""
    options: Annotated[
        tuple[tuple[OptionName, OptionValue | PerClass], ...], Meta(max_length=64)
    ] = ()
    """Its arguments by name."""
    bounded_by: Text = ""
    """Of a loss: key and value of a part of the run that takes it as at least 0. Empty: one of the
    user may be below 0."""

    @property
    def is_own(self) -> bool:
        """It is code of the user."""
        return ":" in self.path


MAX_METRICS = 32
"""Metrics by name of a task."""

Better: TypeAlias = Literal["more", "less"]
Scaling: TypeAlias = Literal["ratio", "exp", "sqrt"]


class NamedMetric(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A metric that adds up: sum / weight, each summed over examples, batches and devices."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    source: FunctionSource
    better: Better = "more"
    """Whether more of it is better, or less."""
    scaling: Scaling = "ratio"
    """Its value is the ratio, exp(ratio) or sqrt(ratio)."""
    columns: Annotated[int, Meta(ge=1, le=MAX_COUNTED)] = 1
    """Ratios whose mean the value is, such as one per class; those without a weight are left out.
    """


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
    """Number of classes, or of labels for multi-label; 1 for regression."""
    opset: Annotated[int, Meta(ge=1, le=1000)]
    selfcheck: SelfCheck
    task: TaskKind | UnsetType = UNSET
    """See `kind`; classification leaves it out."""
    positions: Shape | UnsetType = UNSET
    """See `y_shape`; one target per example leaves it out."""
    classes_axis: Literal["first"] | UnsetType = UNSET
    """Axis of the classes in the output of a model with positions: `first` is
    (B, classes, *y_shape); left out for (B, *y_shape, classes)."""
    random: (
        Annotated[tuple[RandomMask, ...], Meta(min_length=1, max_length=MAX_MASKS)] | UnsetType
    ) = UNSET
    """See `masks`; left out if there are none."""
    lengths: (
        Annotated[tuple[Length, ...], Meta(min_length=2, max_length=MAX_BUCKETS)] | UnsetType
    ) = UNSET
    """See `buckets`; left out if there is one length."""
    loss: FunctionSource | UnsetType = UNSET
    """A loss by name or of the user; left out for that of `TaskKind`."""
    weighs: Literal[True] | UnsetType = UNSET
    """This loss weighs examples by other numbers than their positions (`Artifact.counts`)."""
    metrics: (
        Annotated[tuple[NamedMetric, ...], Meta(min_length=1, max_length=MAX_METRICS)] | UnsetType
    ) = UNSET
    """See `named_metrics`; left out if there are none."""

    @property
    def masks(self) -> tuple[RandomMask, ...]:
        """Inputs `m.0`, `m.1`, ... of the training graph, in the order of torch's draws."""
        return () if self.random is UNSET else self.random

    @property
    def named_metrics(self) -> tuple[NamedMetric, ...]:
        """What an evaluation measures beside that of its kind."""
        return () if self.metrics is UNSET else self.metrics

    @property
    def has_own_loss(self) -> bool:
        """Its loss is not that of its kind."""
        return self.loss is not UNSET

    @property
    def has_signed_loss(self) -> bool:
        """Its loss may be below 0."""
        return self.loss is not UNSET and self.loss.is_own and not self.loss.bounded_by

    @property
    def kind(self) -> TaskKind:
        """What the model predicts."""
        return "classification" if self.task is UNSET else self.task

    @property
    def y_shape(self) -> Shape:
        """Shape of the target of one example; () is one class or number.

        A class of -1 at a position is no label, as at padding; it counts nowhere.
        """
        return () if self.positions is UNSET else self.positions

    @property
    def buckets(self) -> tuple[int, ...]:
        """Lengths to which sequences of tokens are padded (`wire.buckets`), ascending.

        The last is that of x_shape; empty if all have that one.
        """
        return () if self.lengths is UNSET else self.lengths

    @property
    def labels_tokens(self) -> bool:
        """Each token of x has a class, so that y is as long as x."""
        is_classes = self.kind in ("classification", "binary")
        return is_classes and bool(self.y_shape) and self.y_shape[:1] == self.x_shape[:1]

    def of_length(self, length: int) -> "TaskSpec":
        """Return the task for sequences of another length, without buckets of its own."""
        y_shape = (length, *self.y_shape[1:]) if self.labels_tokens else self.y_shape
        return msgspec.structs.replace(
            self,
            x_shape=(length, *self.x_shape[1:]),
            positions=y_shape or UNSET,
            lengths=UNSET,
        )

    @property
    def predicted(self) -> Predicted:
        """What the model predicts, for the reports of devices."""
        names = tuple((each.name, 2 * each.columns) for each in self.named_metrics)
        is_signed = self.has_signed_loss
        return Predicted(self.kind, self.y_shape, self.has_own_loss, names, is_signed)

    @property
    def is_scored(self) -> bool:
        """An evaluation returns a score of each target: two classes or regression, or labels."""
        if self.kind == "multi-label":
            return True
        return not self.y_shape and (self.kind == "regression" or self.classes == 2)

    @property
    def counts_classes(self) -> bool:
        """An evaluation counts the positions of each class."""
        is_classes = self.kind in ("classification", "binary")
        return is_classes and bool(self.y_shape) and self.classes <= MAX_COUNTED

    @property
    def y_dtype(self) -> Literal["float32", "int64"]:
        """Type of the targets."""
        return "float32" if self.kind == "regression" else "int64"

    @property
    def example_bytes(self) -> int:
        """Size of one example with its targets in the memory of a device."""
        sizes = (np.dtype(self.x_dtype).itemsize, np.dtype(self.y_dtype).itemsize)
        return sizes[0] * math.prod(self.x_shape) + sizes[1] * math.prod(self.y_shape)

    @property
    def evaluation_outputs(self) -> list[str]:
        """Names of the outputs of the evaluation graph (`wire.evaluation.Evaluation`)."""
        counts = ["correct_sum", *(["exact_sum"] if self.y_shape else [])]
        if self.kind == "regression":
            counts = ["absolute_sum"] if self.y_shape else []
        counts += ["class_counts"] if self.counts_classes else []
        found = ["loss_sum", *counts, *(["scores"] if self.is_scored else [])]
        found += ["count_sum"] if self.weighs is True else []
        found += ["square_sum"] if self.has_own_loss and self.kind == "regression" else []
        return [*found, *(f"metric.{at}" for at in range(len(self.named_metrics)))]

    def __post_init__(self) -> None:
        needed = {"binary": 2, "regression": 1}.get(self.kind)
        if needed is not None and self.classes != needed:
            raise ValueError(f"classes must be {needed} for {self.kind}, got {self.classes}")
        if self.kind == "multi-label" and self.y_shape != (self.classes,):
            raise ValueError(
                f"positions must be ({self.classes},) for multi-label, got {self.y_shape}"
            )
        if self.classes_axis is not UNSET and not (self.y_shape and self.kind == "classification"):
            raise ValueError(
                f"classes_axis must be left out for {self.kind} with targets of shape "
                f"{self.y_shape}, got {self.classes_axis!r}"
            )
        if (self.x_classes > 0) != (self.x_dtype == "int64"):
            raise ValueError(
                f"x_classes must be positive for int64 x and 0 otherwise, got {self.x_classes}"
            )
        if (ends := self.buckets) and (
            self.x_dtype != "int64" or ends[-1:] != self.x_shape[:1] or sorted(set(ends)) != [*ends]
        ):
            raise ValueError(
                f"lengths must increase up to that of int64 x, got {list(ends)} for "
                f"{self.x_dtype} x of shape {self.x_shape}"
            )


EngineName: TypeAlias = Literal["onnx", "torch", "client"]

BatchNorm: TypeAlias = Literal["merged", "silobn", "fedbn", "frozen"]
"""What becomes of batch normalisation. merged: its values are merged as all others are; silobn:
each device keeps its running statistics; fedbn: it keeps scale and shift, too; frozen: the layers
are in evaluation mode in training, too, and their statistics keep the values of the module.

Source:
    silobn: Andreux et al., DART 2020 (arXiv:2008.07424); fedbn: Li et al., ICLR 2021
    (arXiv:2102.07623).
"""


class Base(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The frozen parameters of a model: one blob that does not change, sent beside the task.

    It holds the tensors of its layout as little-endian float32. The graphs have an input
    `f.<name>` for each, after those of the vector.
    """

    layout: Layout
    sha256: Sha256
    """Of the blob (`wire.base_files`)."""


class Lora(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters of low rank, `model.lora`."""

    rank: Annotated[int, Meta(ge=1, le=4096)]
    """Rank of each adapter."""
    on: Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=256)]
    """Patterns of names of layers, such as `*.attention.*`: each linear layer, convolution or
    `torch.nn.MultiheadAttention` whose name fits one gets an adapter."""
    alpha: Annotated[float, Meta(gt=0.0, le=1e6)] | None = None
    """Scale: an adapter adds alpha / rank times the product; not set: the rank, so 1 times."""

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class Adaptation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What of a module is trained; a device that imports the module does the same with it."""

    trainable: Patterns = ()
    """Patterns of names of trained parameters; empty: those that the module leaves trainable, or,
    with adapters, the adapters alone."""
    lora: Lora | None = None


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


class ClientArray(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One array of a client. Floats are tensors of the layout, all others travel raw."""

    name: Label
    dtype: Annotated[str, Meta(pattern=r"\A(float|int|uint)(8|16|32|64)\Z|\Abool\Z|\Abytes\Z")]
    """`bytes` is an object of bytes of any length."""
    shape: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=MAX_VECTOR_BYTES)], ...], Meta(max_length=8)
    ] = ()


class ClientSource(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Training code of the user that replaces model, trainer and engine; its code is not sent.

    A device runs it in a process of its own if the owner allows a folder of this name and hash.
    """

    kind: Literal["class", "flower"] = "class"
    """class: `fit(arrays, config)`, as docs/own-client.md states; flower: a Flower ClientApp."""
    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    """Name of the folder with the code, by which the owner allows it."""
    sha256: Sha256
    """Of the folder (`wire.client_folder`), which must be the same on the device."""
    path: Text
    """`package.module:Class`, or `package.module:app` of a ClientApp, relative to the folder."""
    arrays: Annotated[tuple[ClientArray, ...], Meta(max_length=1 << 16)] = ()
    """All arrays in the order of the client; empty for records that only the client reads."""
    is_list: bool = False
    """The client gets a list of arrays, not a dictionary."""
    options: Annotated[tuple[tuple[OptionName, OptionValue], ...], Meta(max_length=64)] = ()
    """Hyperparameters of the client, or the run configuration of a Flower app."""
    loss_metric: Text = ""
    """Metric of `fit` that is F_k(w_t); empty if no rule needs it."""
    weighted_by: Text = ""
    """Key of the metric with the number of examples, of a Flower app; empty for a class."""
    state_bytes: Annotated[int, Meta(ge=0, le=MAX_VECTOR_BYTES)] = 1 << 28
    """Most bytes of state that the client may keep on the device."""
    grace_s: Annotated[float, Meta(ge=0.0, le=600.0)] = 2.0
    """Time between the deadline and the end of the client's process, seconds."""


class Artifact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A task as it is sent to devices."""

    spec: TaskSpec
    train: bytes
    """ONNX graph, serialised; empty with a module."""
    evaluate: bytes
    """ONNX graph, serialised; empty with a module."""
    counts: Annotated[bytes, Meta(max_length=1 << 24)] = b""
    """ONNX graph of the weights c of examples, from y alone; empty unless `TaskSpec.weighs`, and
    with a module."""
    module: ModuleSource | None = None
    """The torch module that replaces the graphs; None with graphs."""
    client: ClientSource | None = None
    """The training code that replaces graphs and module; None without. Of `spec` its layout counts,
    the floats of the client."""
    fixed: Annotated[dict[Text, TensorBytes], Meta(max_length=1 << 16)] = {}
    """The tensors of the module that are no part of the vector, by name: little-endian bytes of the
    type that they have in the module. A device overwrites those of its own copy."""
    base: Base | None = None
    """Frozen parameters beside the task; None: there are none, or they are so small that they are
    constants of the graphs, or `fixed`."""
    adaptation: Adaptation | None = None
    """What of the module is trained; a device changes its own copy of the module in the same way.
    Graphs have it already. None: all that the module leaves trainable."""
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
    preparation: Preparation | None = None
    """How files of text, pictures with masks or audio become x and y; None for other data."""
    is_autoencoder: bool = False
    """y are x: own data of a device need no labels."""
    shorter: "Annotated[tuple[Artifact, ...], Meta(max_length=MAX_BUCKETS)]" = ()
    """The task for each of `TaskSpec.buckets` but the last: its own graphs, masks and self-check,
    with the same layout. All other fields are those of this task."""

    def __post_init__(self) -> None:
        if len(self.shorter) != len(self.spec.buckets[:-1]):
            raise ValueError(
                f"shorter must have a task for each of the lengths {self.spec.buckets[:-1]}, got "
                f"{len(self.shorter)}"
            )
        for length, each in zip(self.spec.buckets, self.shorter, strict=False):
            of = self.spec.of_length(length)
            wanted = of.layout, of.x_shape, of.y_shape, of.kind
            if wanted != (each.spec.layout, each.spec.x_shape, each.spec.y_shape, each.spec.kind):
                raise ValueError(f"shorter must have the task for {length} tokens, got another one")
        if self.base is not None and self.client is not None:
            raise ValueError("base must be left out with a client")
        is_own = self.module is not None or self.client is not None
        if is_own and (self.train or self.evaluate):
            raise ValueError("train and evaluate must be empty with a module or a client")
        if self.client is None and not self.spec.layout.tensors:
            raise ValueError("spec.layout must have at least one tensor, got none")
        if self.client is not None and self.module is not None:
            raise ValueError("module must be left out with a client")
        names = self.labels
        if names and not len(names) == len(set(names)) == self.spec.classes:
            raise ValueError(
                f"labels must be {self.spec.classes} different names, got {len(names)}, "
                f"{len(set(names))} different"
            )

    @property
    def predicted(self) -> Predicted:
        """What the model predicts, for the reports of devices."""
        return self.spec.predicted if self.client is None else OF_CLIENT

    @property
    def engine(self) -> EngineName:
        """The engine that runs this task on devices."""
        if self.client is not None:
            return "client"
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


def draw_masks(
    masks: Sequence[RandomMask], seed: int, step: int, batch: int
) -> list[NDArray[np.bool_]]:
    """Return the random masks of one step, shape (batch, *shape) each.

    Mask i is True where 16 bits of its stream are below `keep`. Philox is a counter: equal seeds
    and steps give equal bits on any machine. The masks of an example depend on its place in the
    mini-batch, and not on the size of the mini-batch.

    Args:
        masks: Those of the task.
        seed: Seed of the device and round.
        step: Number of the mini-batch, from 0.
        batch: Examples of the mini-batch.

    Source:
        Salmon et al., SC 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox 4x64-10).
    """
    key = np.array([seed, step], np.uint64)
    drawn: list[NDArray[np.bool_]] = []
    for at, mask in enumerate(masks):
        shape = (batch, *mask.shape) if mask.is_per_example else mask.shape
        size = math.prod(shape)
        stream = np.random.Philox(key=key, counter=np.array([0, 0, 0, at], np.uint64))
        words = np.atleast_1d(stream.random_raw(-(-size // 4)))
        chances = words.astype("<u8", copy=False).view("<u2")[:size]
        found = chances < mask.keep if mask.keep < CHANCES else np.ones(size, np.bool_)
        drawn.append(found.reshape(shape))
    return drawn


def encode_artifact(artifact: Artifact) -> bytes:
    """Return the bytes of a task."""
    return msgspec.msgpack.encode(artifact)


def decode_artifact(blob: Buffer) -> Artifact:
    """Return the task in `blob`.

    Raises:
        DecodeError: The bytes are not a task, or are of another format.
    """
    return unpack(_DECODER, blob, "task")
