"""All messages between coordinator and devices, and the rules for their fields.

An invalid message is never decoded: msgspec checks types and bounds, and `__post_init__` checks
rules that a bound cannot express, on both sides. Messages carry no arrays; arrays are sent as
chunks (`wire.chunks`, `wire.transfer`) that a `Manifest` announces.

Durations are seconds on the clock of the sender; timestamps are never sent. A field with its
default value is omitted. The coordinator uses a codec or sends an `EvaluateRequest` only if the
device names it in its `Capabilities`.

In order: bounds and names, the common base, shared parts, loss query, status, device to
coordinator, coordinator to device, operator to coordinator and back,
viewer to the run and back.
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from math import isfinite
from operator import attrgetter, is_
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from fairbed.wire.printable import is_printable, one_line
from fairbed.wire.scale import MAX_VALUE, Scale, Value, check_order

PROTOCOL_VERSION = 1

MAX_VECTOR_BYTES = 1 << 31
"""The largest blob that a manifest may announce: 2 GiB, more than the memory of an edge device."""

MIN_CHUNK_BYTES = 1 << 10
MAX_CHUNK_BYTES = 960 * 1024
"""With its header a chunk stays below 1 MB, the default payload limit of NATS and EMQX."""

MAX_CORES = 4096.0

MAX_SECONDS = 1e7
"""Longest duration or age: 116 days."""

ABSOLUTE_ZERO_CELSIUS, MAX_CELSIUS = -273.15, 1000.0

MAX_FLOAT = sys.float_info.max

MAX_WATTS = 10_000.0
"""Highest power of a device that is believed."""

MAX_MAGNITUDE = 1e30
"""Largest loss or error: no sum over examples and devices overflows float64. `[limits]` of an
experiment draws a narrower bound."""

SHORT = 90
"""Characters of a reason in `Trouble.text`."""

MAX_CLOCK_S = 1e11
"""Largest difference of two clocks, seconds: that of 1970 and the year 5000."""

MAX_TEXT = 500
"""Characters of a text; longer texts are truncated."""

MAX_LOG_LINES = 8
"""Log lines in one message, so that it is at most 2.1 kB: 0.3 s of a link of 56 kbit/s."""

MAX_LOG_TEXT = 200
"""Characters of one log line."""

LOG_INTERVAL_S = 5.0
"""Shortest time between two messages with log lines of one device."""

MAX_VECTORS = 16
"""Most vectors of a kind that a local rule has: sent, kept or returned."""

DenseCodec: TypeAlias = Literal["float16", "int8"]
"""Codecs of all values of a vector, of a model or an update."""
UpCodec: TypeAlias = Literal["float32", DenseCodec, "top-k"]
"""Codecs of an update."""
DownCodec: TypeAlias = Literal["float32", DenseCodec, "delta"]
"""Codecs of a model."""

CODECS: Final[tuple[str, ...]] = (*get_args(DenseCodec), "top-k", "delta")
"""Codecs that a device announces beside float32. `delta` is a model as int8 changes of the previous
version."""

LOCAL_RULES: Final = ("propfair",)
"""Local rules beside SGD that every device has."""
LOCAL_RULES_GROUP: Final = "fairbed.local_training"
"""Group of entry points of other local rules."""

MAX_PART_BYTES, MAX_PARTS = 128 * 1024, 128
"""Bounds of the parts of a page of rows: short messages let those of devices pass, and 16 MiB are
four times the largest page of a run with 1,000 devices."""

NAME_PATTERN = r"\A[a-z0-9-]{1,32}\Z"

DeviceName: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
Positive: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e15)]
Ratio: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Celsius: TypeAlias = Annotated[float, Meta(ge=ABSOLUTE_ZERO_CELSIUS, le=MAX_CELSIUS)]
Joules: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e9)]
Magnitude: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_MAGNITUDE)]
SignedLoss: TypeAlias = Annotated[float, Meta(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
"""A loss; one below 0 is refused unless the task has such a loss (`TaskSpec.has_signed_loss`)."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 40)]
RoundId: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
BlobId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Sha256: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
ChunkList: TypeAlias = Annotated[list[Annotated[int, Meta(ge=0, le=1 << 22)]], Meta(max_length=64)]
Bitmap: TypeAlias = Annotated[bytes, Meta(max_length=1 << 19)]
CodecName: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]
VectorCount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_VECTORS)]
OptionName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
OptionValue: TypeAlias = (
    bool
    | Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
    | Annotated[float, Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)]
    | Text
)
"""An integer in these bounds is the same number on every device and in every language."""
MAX_OPTIONS = 32
"""Most options of a local rule."""
Word: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]
Measured: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[float, Meta(ge=-1e15, le=1e15)]],
    Meta(max_length=32),
]
"""Numbers of an exchange that a device measures, by column of the coordinator's store; a name that
the coordinator has not is ignored."""
MetricName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Metrics: TypeAlias = Annotated[
    dict[MetricName, Annotated[float, Meta(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]],
    Meta(max_length=64),
]
"""What a client measured, by its own names; all are finite."""
Sums: TypeAlias = Annotated[
    dict[
        MetricName,
        Annotated[
            tuple[Annotated[float, Meta(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)], ...],
            Meta(min_length=2, max_length=512),
        ],
    ],
    Meta(max_length=32),
]
"""Metrics by name: sums over the examples, then as many weights (`wire.named_metrics`)."""
MAX_RECORDS_BYTES = 1 << 16
"""Records in a message: small ones, such as the configuration of a round. Larger ones are in a
blob, after the vector (`Manifest.raw_bytes`)."""
Records: TypeAlias = Annotated[bytes, Meta(max_length=MAX_RECORDS_BYTES)]
"""Records of a client (`wire.records`); empty without any."""
LogLevel: TypeAlias = Literal["info", "warning", "error"]
BlobKind: TypeAlias = Literal["task", "base", "model", "shard", "update", "probe"]


class Message(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="m"
):
    """Base of all messages: immutable, keyword-only, no unknown fields, no NaN.

    Texts are reduced to one printable line, so that a peer cannot control a terminal or a log.
    """

    def __post_init__(self) -> None:
        numbers, others = _checked_fields(type(self))
        if numbers is not None:
            for number in numbers(self):
                if number is not None and not isfinite(number):
                    others = self.__struct_fields__
        for field in others:
            value = getattr(self, field)
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{field} must be a finite number, got {value}")
            kind = type(value)
            if kind is dict:
                for name, found in value.items():
                    for number in found if type(found) is tuple else (found,):
                        if not isfinite(number):
                            raise ValueError(
                                f"{field}.{name} must be a finite number, got {number}"
                            )
            if (kind is str and not (is_printable(value) and len(value) <= MAX_TEXT)) or (
                kind is tuple and value
            ):
                force_setattr(self, field, _shown(value))


@cache
def _checked_fields(kind: type[Message]) -> tuple[Callable[[Message], Any] | None, tuple[str, ...]]:
    """Return what a class of messages checks beyond its types.

    Returns:
        Reads the values of its fields that are numbers with a fraction or None; None without any.
        Its other fields that may be a text, a tuple, numbers by name or such a number.
    """
    numbers, others = list[str](), list[str]()
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        kinds = set(_kinds(hints[name]))
        if kinds - {type(None)} == {float}:
            numbers.append(name)
        elif kinds & {float, str, tuple, dict, Any}:
            others.append(name)
    return attrgetter(*numbers, numbers[0]) if numbers else None, tuple(others)


def _kinds(hint: Any) -> Iterator[Any]:
    """Yield the types that a value may have; none for one of a few words, or a name."""
    origin = get_origin(hint)
    if origin is Annotated:
        of, *metas = get_args(hint)
        if not any(isinstance(meta, Meta) and meta.pattern == NAME_PATTERN for meta in metas):
            yield from _kinds(of)
    elif origin in (Union, UnionType):
        for part in get_args(hint):
            yield from _kinds(part)
    elif origin is not Literal:
        yield hint if origin is None else origin


class Manifest(Message, frozen=True, kw_only=True, tag="manifest"):
    """Announcement of a blob: kind, size and chunk size."""

    id: BlobId
    """First 16 bytes of the sha256; random for an update."""
    kind: BlobKind
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_VECTOR_BYTES)]
    chunk_bytes: Annotated[int, Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)]
    sha256: Sha256 | None = None
    """None for an update, whose hash follows in `UploadDone`; required for other kinds."""
    name: Word | None = None
    """Name of a public blob in its topics, of one blob at a time; None is the id in hexadecimal."""
    raw_bytes: Annotated[int, Meta(ge=0, le=MAX_VECTOR_BYTES)] = 0
    """Bytes at the end of a model or an update that are no vector: records of a client
    (`wire.records`), which no codec changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.size_bytes if self.kind in ("model", "update") else 0
        if self.raw_bytes > most:
            raise ValueError(
                f"raw_bytes must be at most {most} for {self.kind}, got {self.raw_bytes}"
            )
        if (self.sha256 is None) != (self.kind == "update"):
            raise ValueError(f"sha256 must be given for all kinds but update, got kind {self.kind}")
        if self.sha256 is not None and self.id != self.sha256[:16]:
            raise ValueError("id must be the first 16 bytes of sha256 for a download")

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vector, encoded or not, before the raw bytes."""
        return self.size_bytes - self.raw_bytes

    @property
    def chunk_count(self) -> int:
        """Number of chunks; all but the last hold `chunk_bytes`."""
        return -(-self.size_bytes // self.chunk_bytes)

    @property
    def topic_name(self) -> str:
        """Name of a public blob in its topics."""
        return self.id.hex() if self.name is None else self.name


OptimiserName: TypeAlias = Literal["sgd", "adam", "adamw"]

OPTIMISER_SKILL = "optimisers"
"""The device knows `Hyperparameters.optimiser` and `schedule`; one that does not would train plain
SGD."""

AUGMENT_SKILL = "augment"
"""The device knows `Hyperparameters.augment`."""

ALTERNATING_SKILL = "personal-epochs"
"""The device knows `Hyperparameters.personal_epochs`."""

MAX_AUGMENTS = 16

ScheduleKind: TypeAlias = Literal["step", "cosine"]

Beta: TypeAlias = Annotated[float, Meta(ge=0.0, lt=1.0)]


class Schedule(Message, frozen=True, kw_only=True, tag="schedule"):
    """A learning rate that changes with the local steps of a round (`wire.schedule`)."""

    kind: ScheduleKind = "step"
    warm_up: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Steps of the linear warm-up."""
    every: Annotated[int, Meta(ge=1, le=1 << 40)] = 1
    """step: steps after each of which `factor` applies."""
    factor: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    length: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    """cosine: steps until the least rate, with those of the warm-up; None: those of the device in
    the round."""
    least_ratio: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """cosine: the least rate, as a share of `Hyperparameters.learning_rate`."""


class Optimiser(Message, frozen=True, kw_only=True, tag="optimiser"):
    """An optimiser other than SGD with momentum from zero (`device_agent.optimiser`)."""

    name: OptimiserName = "sgd"
    nesterov: bool = False
    """Nesterov's momentum, of sgd."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decays of the two moments of adam and adamw."""
    epsilon: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-8
    """Term of the denominator of adam and adamw."""
    keeps_state: bool = False
    """The device keeps the moments and their step count from round to round."""
    run: Text = ""
    """Run of the kept state; a device begins anew in another run or task."""
    merged: RoundId | None = None
    """Last round in which an update of this device was merged: the state after that round is
    valid. None: it begins at zero."""


class Augment(Message, frozen=True, kw_only=True, tag="augment"):
    """One augmentation of the mini-batches (`wire.augment`)."""

    kind: Text
    """A name, or the path of a function that the owner of the device allows."""
    options: Annotated[
        tuple[tuple[OptionName, OptionValue], ...], Meta(max_length=MAX_OPTIONS)
    ] = ()
    """Names and values of its options."""
    sha256: Sha256 | None = None
    """Hash of the file with the function; None for a name."""


class Hyperparameters(Message, frozen=True, kw_only=True, tag="hyperparameters"):
    """Hyperparameters of local training in one round."""

    epochs: Annotated[int, Meta(ge=1, le=10_000)]
    batch_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    learning_rate: Positive
    """Learning rate of this round, after the decay by the coordinator."""
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    weight_decay: Annotated[float, Meta(ge=0.0, le=1e3)] = 0.0
    proximal: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """FedProx mu; 0 means no proximal term."""
    clip_norm: Positive | None = None
    """L2 bound of one gradient over all parameters; None means no clipping."""
    max_steps: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    """Stop after this many mini-batches; None means all epochs."""
    micro_batch: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    """Examples of a part in which a mini-batch is computed; None computes it at once."""
    optimiser: Optimiser | None = None
    """None: SGD, with momentum from zero. Sent only to devices with the skill `optimisers`."""
    schedule: Schedule | None = None
    """How the learning rate changes within the round; None: it does not. As `optimiser`."""
    augment: Annotated[tuple[Augment, ...], Meta(max_length=MAX_AUGMENTS)] = ()
    """Augmentations of each mini-batch, in order. Sent only to devices with the skill `augment`."""
    personal_epochs: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Passes that train the values that the device keeps (`Layout.local`) alone, before `epochs`
    passes that train the others alone; 0: all are trained together. Sent only to devices with the
    skill `personal-epochs`."""

    @property
    def is_adam(self) -> bool:
        """The optimiser is adam or adamw."""
        return self.optimiser is not None and self.optimiser.name != "sgd"

    @property
    def n_moments(self) -> int:
        """Vectors of the optimiser's state, each as long as the parameters."""
        return 2 if self.is_adam else int(self.momentum > 0.0)

    @property
    def keeps_state(self) -> bool:
        """The device keeps the state of the optimiser from round to round."""
        return self.optimiser is not None and self.optimiser.keeps_state and self.n_moments > 0


Lambda: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e6)]
"""Weight of the distance between a personal and the global model (Ditto)."""

LambdaChoice: TypeAlias = Literal["fixed", "local", "dynamic"]


class Personal(Message, frozen=True, kw_only=True, tag="personal"):
    """Training of a personal model v_k beside the global one; v_k never leaves the device.

    Afterwards the device evaluates it on its held-out examples and sends a `PersonalScore`.
    """

    run: Text
    """Run of v_k; the device begins a new v_k in another run or task."""
    init_seed: Count | None = None
    """A new v_k begins at the model before round 1 that has this seed (`artifact.initial_vector`);
    None: at the global model that was sent."""
    hyperparameters: Hyperparameters
    """`proximal` is lambda; its anchor is the global model that was sent."""
    choice: LambdaChoice = "fixed"
    """Where lambda comes from (`device_agent.ditto`)."""
    candidates: Annotated[tuple[Lambda, ...], Meta(max_length=16)] = ()
    """Values of lambda to choose from; a device with too few examples takes `proximal`."""


class LocalTraining(Message, frozen=True, kw_only=True, tag="local-training"):
    """The local rule of a round: a change of local training (`wire.local_training`)."""

    rule: Text
    """One of `Capabilities.local_rules`."""
    options: Annotated[
        tuple[tuple[OptionName, OptionValue], ...], Meta(max_length=MAX_OPTIONS)
    ] = ()
    """Names and values of the rule's arguments."""
    run: Text
    """Run of the vectors that the device keeps; it drops those of another run."""
    merged: RoundId | None = None
    """Last round in which an update of this device was merged: the vectors after that round are
    valid."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.options:
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"options.{name} must be a finite number, got {value}")


class LocalValues(Message, frozen=True, kw_only=True, tag="local-values"):
    """The values of a model that each device keeps for itself (`wire.tensors.Layout.local`).

    A device puts them into each model that it receives, to train or to evaluate it.
    """

    run: Text
    """Run of the values; a device begins anew in another run or task."""
    init_seed: Count | None
    """They begin at those of the model before round 1 that has this seed
    (`artifact.initial_vector`); None: at those of the model that was sent, which a merge leaves."""
    merged: RoundId | None = None
    """Last round in which an update of this device was merged: the values after that round are
    valid. None: it begins."""


class Privacy(Message, frozen=True, kw_only=True, tag="privacy"):
    """Local noise: the device clips its update and adds Gaussian noise before it is encoded.

    With it a device reports no loss, and its update has no vectors of a local rule.
    """

    clip: Annotated[float, Meta(gt=0.0, le=1e9)]
    """C: largest L2 norm of the update, over all values."""
    noise_multiplier: Annotated[float, Meta(gt=0.0, le=1e6)]
    """z: the standard deviation of the noise is z C in each value."""
    scores: bool = False
    """Scores on held-out examples may be sent, although no noise covers them."""


class Packed(Message, frozen=True, kw_only=True, tag="packed"):
    """A smaller blob that decodes to exactly the announced model (`wire.codecs`)."""

    manifest: Manifest
    codec: DenseCodec
    base: Sha256 | None = None
    """Hash of the model version that the parameters are changes of; None if they are no changes."""


class Coding(Message, frozen=True, kw_only=True, tag="coding"):
    """Encoding of the model and the update of one round.

    Of an update, the change w_k - w_t of the parameters is encoded; buffers are sent as float32.
    """

    up: UpCodec = "float32"
    """Codec of the update; float32 is the full model after local training."""
    top_k: Annotated[int, Meta(ge=1, le=MAX_VECTOR_BYTES)] | None = None
    """Number of values that top-k sends; None for other codecs."""
    run: Text = ""
    """Run of the device's top-k residual; the device drops a residual of another run."""
    aggregated: RoundId | None = None
    """Last round in which the update of this device was aggregated: its residual after that round
    is valid."""
    model: Packed | None = None
    """A smaller blob that decodes to `Train.model`; None if there is none."""
    keep_model: bool = False
    """The device keeps this model version: the next one may be sent as changes of it."""
    sent: VectorCount = 0
    """Vectors of the local rule that follow the model, each as long as its parameters."""
    returned: VectorCount = 0
    """Vectors of the local rule that follow the update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.top_k is not None) != (self.up == "top-k"):
            raise ValueError(
                f"top_k must be given for top-k and for no other codec, got {self.top_k}"
            )


def _shown(value: Any) -> Any:
    """Return a text as one line, also inside tuples; the value itself if nothing changes."""
    if isinstance(value, str):
        shown = one_line(value, MAX_TEXT)
        return value if shown == value else str(shown)
    if isinstance(value, tuple):
        parts = tuple(map(_shown, value))
        return value if all(map(is_, parts, value)) else parts
    return value


def is_device_name(name: str) -> bool:
    """Return whether `name` is a valid device name: 1 to 32 of a-z, 0-9 and hyphen."""
    return re.fullmatch(NAME_PATTERN, name) is not None


class HeldOut(Message, frozen=True, kw_only=True, tag="held-out"):
    """How a device divides its own examples into training, validation and test examples."""

    fraction: Annotated[float, Meta(gt=0.0, lt=1.0)]
    """Share of the examples that is for tests, in each class; ignored if the device's file has test
    examples."""
    seed: Count
    """With the name of the device it seeds the draw, so that a restarted device repeats it."""
    validation: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """Share of the examples without those for tests that validate, and are not trained on."""
    fold: Count = 0
    """Which of the folds validates, if they are few (`split_validation`)."""
    evaluates: Literal["test", "validation"] = "test"
    """The part on which models are evaluated; with `validation` test examples are not read."""


class EvaluateRequest(Message, frozen=True, kw_only=True, tag="evaluate-request"):
    """Evaluate a model, and send an `EvaluateReply`.

    On training examples, before the selection of the round: the device keeps the model until the
    next `Train`, `EvaluateRequest` or `Cancel`, so it needs no download if it is selected. Sent
    only to devices that name the skill `loss`.

    On test examples, after the round, so that no measured time includes it: afterwards the device
    is as it was, with the same model, session and link estimate. Sent only to devices with own data
    that name the skill `test`.
    """

    round: RoundId
    attempt: Count = 0
    model: Manifest
    examples: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    """Size of the mini-batch to evaluate; None is the whole training set, or test set."""
    seed: Count
    """Seed that draws the mini-batch."""
    limit_s: Seconds
    """Time that the coordinator waits for the reply; after it the device may stop."""
    coding: Coding = Coding()
    """Encoding of the model; by default float32."""
    split: Literal["train", "test"] = "train"
    """The examples to evaluate."""
    local_values: LocalValues | None = None
    """Which values the device puts into the model; None: it keeps none."""
    config: Records = b""
    """What the client of the task gets beside the model."""


class EvaluateReply(Message, frozen=True, kw_only=True, tag="evaluate-reply"):
    """The result of an `EvaluateRequest`.

    The durations are consecutive laps, from the arrival of `EvaluateRequest` to the reply.
    """

    round: RoundId
    attempt: Count = 0
    """Attempt of the `EvaluateRequest`."""
    model: Sha256
    """Hash of the model version that was evaluated."""
    loss: SignedLoss
    """Mean over the examples, in nats; 0 without examples."""
    n: Count
    """Number of examples evaluated."""
    was_cold: bool
    """Data and session were not in memory and had to be loaded."""
    download_s: Seconds
    decode_s: Seconds
    load_s: Seconds
    evaluate_s: Seconds
    pulled: BlobId | None = None
    """The downloaded blob; None if it was `EvaluateRequest.model`."""
    correct: Count | None = None
    """Test examples that are classified correctly; None for training examples and regression."""
    auroc: Ratio | None = None
    """Of the test examples (`wire.evaluation`); likewise the next two."""
    mae: Magnitude | None = None
    r2: Annotated[float, Meta(ge=-MAX_MAGNITUDE, le=1.0)] | None = None
    positions: Count | None = None
    """Positions of the test examples that have a target, of which `correct` are right and `loss` is
    the mean; None with one each."""
    exact: Count | None = None
    """Test examples that are right at all positions; None with one each, and for regression."""
    iou: Ratio | None = None
    """Mean intersection over union of the classes at positions (`wire.evaluation.Quality`)."""
    class_accuracy: Ratio | None = None
    """Mean of the accuracies of these classes."""
    rmse: Magnitude | None = None
    """Of regression with another loss than half the square; else it follows from the loss."""
    sums: Sums = {}
    """Of the metrics by name, on test examples."""
    metrics: Metrics = {}
    """What the client of the task measured."""
    records: Records = b""
    """What the client of the task returned beside the metrics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts(self.n, self.positions, self.correct, self.exact)


def _check_counts(n: int, positions: int | None, correct: int | None, exact: int | None) -> None:
    """Check the counts of an evaluation of `n` examples.

    Raises:
        ValueError: More are right than there are.
    """
    most, of = (n, "n") if positions is None else (positions, "positions")
    if correct is not None and correct > most:
        raise ValueError(f"correct must be at most {of}, got {correct} of {most}")
    if exact is not None and exact > n:
        raise ValueError(f"exact must be at most n, got {exact} of {n}")


# --- status, retained ---------------------------------------------------------------------------


class Status(Message, frozen=True, kw_only=True, tag="status"):
    """Status of a device: retained, and its `off` form is the last will."""

    state: Literal["on", "off"]
    boot: Count
    """Random number of this agent process; a new number means that the agent lost its state."""


class CoordinatorStatus(Message, frozen=True, kw_only=True, tag="coordinator"):
    """Status of the coordinator: retained, and its `off` form is the last will."""

    state: Literal["on", "off"]
    boot: Count
    """Random number of this coordinator process; devices send `Hello` again when it changes."""
    run: Text = ""
    """Name of the experiment."""
    run_id: Text = ""
    """With the boot and the task it is what signatures depend on (`wire.signature.Binding`)."""
    task: Sha256 | None = None
    """Hash of the encoded task; None while there is none."""


class Intent(Message, frozen=True, kw_only=True, tag="intent"):
    """Record of a public blob: retained before its first chunk, cleared after its last chunk."""

    manifest: Manifest
    boot: Count
    """The coordinator process that wrote it; records of other processes are leftovers to clear."""


# --- device to coordinator ----------------------------------------------------------------------


class Capabilities(Message, frozen=True, kw_only=True, tag="capabilities"):
    """Capabilities of a device; constant while the agent runs."""

    cores: Annotated[int, Meta(ge=1, le=4096)]
    memory_bytes: Count
    machine: Text
    """Processor architecture, as in `platform.machine()`."""
    python: Text
    engine: Text
    """Training engine and version, such as `onnxruntime 1.31.1`."""
    engine_threads: Annotated[int, Meta(ge=1, le=4096)]
    agent: Text
    """Agent version."""
    model: Text = ""
    """Board name if known (`Raspberry Pi 4 Model B Rev 1.4`)."""
    codecs: Annotated[tuple[CodecName, ...], Meta(max_length=32)] = ()
    """Codecs beside float32 (`CODECS`); unknown names are ignored."""
    skills: Annotated[tuple[Word, ...], Meta(max_length=32)] = ()
    """Requests served beside the training of a global model: `augment`, `log`, `loss`,
    `optimisers`, `personal`, `privacy`, `scale`, `test`; unknown names are ignored."""
    min_noise_multiplier: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """Least `Privacy.noise_multiplier` that the owner accepts; 0 accepts training without noise."""
    local_rules: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()
    """Local rules beside SGD: built-in ones, installed ones, and paths that the owner allows."""
    engines: Annotated[tuple[Word, ...], Meta(max_length=8)] = ("onnx",)
    """Installed training engines: `onnx`, `torch`; unknown names are ignored."""
    models: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()
    """Python modules with torch models that the owner allows to be imported."""
    clients: Annotated[tuple[Word, ...], Meta(max_length=32)] = ()
    """Names of the folders with clients whose code the owner allows to run."""


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """Request of a device to join; sent after each connect and to each new coordinator."""

    boot: Count
    capabilities: Capabilities
    n_k: Count | None = None
    """Training examples of the device's own data; None requests a shard from the coordinator."""
    nonce: Count = 0
    """Random number of a device with a task key, another one for each coordinator process
    (`wire.signature`)."""
    clock_s: Annotated[float, Meta(ge=0.0, le=MAX_CLOCK_S)] | None = None
    """Wall clock of the device when it made the message, seconds since 1970; None: unknown."""


class Context(Message, frozen=True, kw_only=True, tag="context"):
    """Measurements and state of a device, sent at 1 Hz in a run and on change, QoS 0."""

    boot: Count
    seq: Count
    mu_cores: Annotated[float, Meta(gt=0.0, le=MAX_CORES)]
    """min(free cores, engine threads) x clock / nominal clock, in cores of this device."""
    downlink_bps: Positive | None = None
    """Rate measured by the device's own transfers, bit/s; None before the first one."""
    uplink_bps: Positive | None = None
    link_age_s: Seconds | None = None
    """Age of the older of the two rates; None before both are measured."""
    is_willing: bool = True
    is_ready: bool = False
    """Task and data are on the device: it can accept a `Train`."""
    n_k: Count = 0
    is_warm: bool = False
    """Session and data are in memory."""
    phase: Text = "idle"
    cpu_ratio: Annotated[float, Meta(ge=0.0, le=MAX_CORES)] | None = None
    """CPU use of the agent since the last context, in cores."""
    rss_bytes: Count | None = None
    temperature_celsius: Annotated[float, Meta(ge=ABSOLUTE_ZERO_CELSIUS, le=MAX_CELSIUS)] | None = (
        None
    )
    free_cores: Annotated[float, Meta(ge=0.0, le=MAX_CORES)] | None = None
    """Cores that are idle or used by the agent, averaged."""
    clock_ratio: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    """Clock under load / nominal clock; None where it cannot be read."""
    throttled: Annotated[tuple[Word, ...], Meta(max_length=16)] | None = None
    """Causes of processor throttling, one word each; None where they cannot be read."""


DEVICE_PHASES = ("download", "decode", "load", "evaluate", "train", "personal", "encode")
"""The phases that a device measures, in the order of an exchange. Each is the field `PHASE_s` of
`Phases`, of a row of the store and of a replayed exchange, and a lap of the device's stopwatch."""

COMPUTE_PHASES = ("decode", "evaluate", "train", "personal", "encode")
"""Those in which the processor works on the round; loading depends on the cold start."""


class PhaseEnergy(Message, frozen=True, kw_only=True, tag="phase-energy"):
    """Energy of the whole device in each phase of one round, as the device measures it."""

    download_j: Joules
    decode_j: Joules
    load_j: Joules
    evaluate_j: Joules
    train_j: Joules
    personal_j: Joules
    encode_j: Joules


class Phases(Message, frozen=True, kw_only=True, tag="phases"):
    """Durations of the phases of one round on the device's clock.

    The phases are consecutive laps, from the arrival of `Train` to the publishing of `Offer`.
    """

    download_s: Seconds
    """From the arrival of `Train` to the verified blob."""
    load_s: Seconds
    """Reading the data and opening the session; about 0 when warm."""
    evaluate_s: Seconds
    """Evaluation of F_k(w_t) over the whole training set; 0 unless `Train.needs_loss`."""
    train_s: Seconds
    train_cpu_s: Seconds
    """CPU time of the training thread during `train_s`."""
    encode_s: Seconds
    decode_s: Seconds = 0.0
    """From the verified blob to the model vector, between `download_s` and `load_s`."""
    personal_s: Seconds = 0.0
    """Training and saving of the personal model, between `train_s` and `encode_s`; about 0 unless
    `Train.personal`."""
    energy: PhaseEnergy | None = None
    """None if the device cannot measure its power."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.energy is None:
            return
        for phase in DEVICE_PHASES:
            joules = getattr(self.energy, f"{phase}_j")
            limit_j = MAX_WATTS * getattr(self, f"{phase}_s")
            if joules > limit_j:
                raise ValueError(
                    f"energy.{phase}_j must be at most {MAX_WATTS:g} W x {phase}_s = {limit_j:g}, "
                    f"got {joules:g}"
                )


class SteadyTransfer(Message, frozen=True, kw_only=True, tag="steady-transfer"):
    """The part of a transfer after its first chunk, when TCP has reached the rate of the link."""

    n_bytes: Count
    """Payload bytes."""
    duration_s: Seconds


class Offer(Message, frozen=True, kw_only=True, tag="offer"):
    """A device has trained and requests to upload its update."""

    round: RoundId
    attempt: Count = 0
    """Attempt of the `Train`."""
    manifest: Manifest
    model: Sha256
    """Hash of the model version that was trained."""
    phases: Phases
    n_k: Count
    """Training examples of the device."""
    steps: Count
    """Number of mini-batches."""
    was_cold: bool
    """Data and session were not in memory and had to be loaded in this round."""
    loss_before: SignedLoss | None = None
    """F_k(w_t) before the first local step, in nats; None unless `Train.needs_loss`."""
    loss_train: SignedLoss | None = None
    """Mean loss of the last local epoch, in nats."""
    measured: Measured = {}
    """What else the device measured until the offer."""
    downlink_bps: Positive | None = None
    steady: SteadyTransfer | None = None
    """Steady part of the model download; None for a single chunk or after repeated requests."""
    pulled: BlobId | None = None
    """The downloaded blob; None if it was `Train.model`."""
    had_model: bool = False
    """The device had the model from `EvaluateRequest`: nothing was downloaded."""
    positions: Count | None = None
    """Positions of the training examples that have a target, the weight of the update; None with
    one each: the weight is `n_k`."""
    metrics: Metrics = {}
    """What the client of the task measured."""


class UploadDone(Message, frozen=True, kw_only=True, tag="upload-done"):
    """Every chunk of an update has been sent; carries the hash of the update."""

    round: RoundId
    id: BlobId
    sha256: Sha256
    model: Sha256
    """Hash of the model version that was trained, as in the `Offer`."""
    measured: Measured = {}
    """What the device measured since the offer."""


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """A device cannot finish a round; states the phase and the reason."""

    round: RoundId
    phase: Text
    reason: Text


class PersonalScore(Message, frozen=True, kw_only=True, tag="personal-score"):
    """Evaluation of the personal model of a round, computed after the `Offer`.

    No phase of an exchange includes it.
    """

    round: RoundId
    attempt: Count = 0
    """Attempt of the `Train`."""
    n: Count
    """Held-out examples of the device; 0 if it has none, or could not evaluate."""
    correct: Count = 0
    """Examples that are classified correctly; without meaning for regression."""
    loss: SignedLoss = 0.0
    """Mean over the examples."""
    auroc: Ratio | None = None
    """Of the held-out examples (`wire.evaluation`); likewise the next two."""
    mae: Magnitude | None = None
    r2: Annotated[float, Meta(ge=-MAX_MAGNITUDE, le=1.0)] | None = None
    positions: Count | None = None
    """Positions of the held-out examples; as in `EvaluateReply`, likewise the next one."""
    exact: Count | None = None
    iou: Ratio | None = None
    """Of the held-out positions; as in `EvaluateReply`, likewise all that follow."""
    class_accuracy: Ratio | None = None
    rmse: Magnitude | None = None
    sums: Sums = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts(self.n, self.positions, self.correct, self.exact)


class LogLine(Message, frozen=True, kw_only=True, tag="log-line"):
    """One line of the agent's log, without time of day and name of the device."""

    level: LogLevel
    age_s: Seconds
    """Time since it was logged."""
    text: Annotated[str, Meta(max_length=MAX_LOG_TEXT)]


class LogLines(Message, frozen=True, kw_only=True, tag="log-lines"):
    """The oldest lines of the agent's log that were not sent yet.

    Sent only after `Welcome.wants_log`, between two exchanges, at most every `LOG_INTERVAL_S`.
    """

    boot: Count
    first: Count
    """Number of the first line, counted from 0 in each agent process; the others follow. A gap
    means that lines were lost."""
    lines: Annotated[tuple[LogLine, ...], Meta(min_length=1, max_length=MAX_LOG_LINES)]


TroubleKind: TypeAlias = Literal[
    "disk full", "clock off", "bad data", "no engine", "no memory", "not prepared"
]


class Trouble(Message, frozen=True, kw_only=True, tag="trouble"):
    """Why a device cannot join or prepare; the next context with `is_ready` ends it."""

    boot: Count
    kind: TroubleKind
    reason: Text
    """One line, as in the log of the device."""
    path: Text = ""
    """Folder on the full disk."""
    free_bytes: Count | None = None
    """Free on it."""
    off_s: Annotated[float, Meta(ge=-MAX_CLOCK_S, le=MAX_CLOCK_S)] | None = None
    """Clock of the device less that of the other side, seconds."""

    @property
    def text(self) -> str:
        """The trouble in a few words."""
        if self.kind == "disk full" and self.path:
            free = "" if self.free_bytes is None else f" has {self.free_bytes:,} bytes free"
            return f"disk full: {self.path}{free}"
        if self.kind == "clock off" and self.off_s is not None:
            side = "ahead" if self.off_s > 0 else "behind"
            return f"clock {abs(self.off_s):,.0f} s {side}"
        reason = self.reason if len(self.reason) <= SHORT else f"{self.reason[: SHORT - 1]}…"
        return f"{self.kind}: {reason}"


class DataScale(Message, frozen=True, kw_only=True, tag="data-scale"):
    """Range, mean and spread of all values of x of a device's own data, as the engine gets them.

    Sent only after `Welcome.wants_scale`, once the device is prepared.
    """

    boot: Count
    low: Value
    high: Value
    mean: Value
    spread: Annotated[float, Meta(ge=0.0, le=MAX_VALUE)]
    """Standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self.low, self.high, self.mean, self.spread)

    @property
    def scale(self) -> Scale:
        """The numbers without the boot."""
        return Scale(low=self.low, high=self.high, mean=self.mean, spread=self.spread)


class ChunkRequest(Message, frozen=True, kw_only=True, tag="chunk-request"):
    """A device requests chunks of a private blob, or missing chunks of a public blob."""

    id: BlobId
    chunks: ChunkList


class LinkProbe(Message, frozen=True, kw_only=True, tag="link-probe"):
    """Measurement of the link: `payload` goes up, and the reply carries `reply_bytes` down."""

    seq: Count
    payload: Annotated[bytes, Meta(max_length=1 << 16)] = b""
    reply_bytes: Annotated[int, Meta(ge=0, le=1 << 16)] = 0


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    """The reply to `Ping`, sent at once, QoS 0."""

    seq: Count


# --- coordinator to device ----------------------------------------------------------------------


class BaseArrived(Message, frozen=True, kw_only=True, tag="base-arrived"):
    """The frozen part of the model is on the device, which is prepared (`Welcome.base`)."""

    boot: Count
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_VECTOR_BYTES)]
    download_s: Seconds | None = None
    """How long this agent has downloaded it; None: it was on the device already."""


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """A device has joined: it downloads task and shard, then reports `is_ready`."""

    boot: Count
    """Boot number of the coordinator."""
    task: Manifest
    shard: Manifest | None
    """Private data to download; None for a device with its own data."""
    max_chunk_bytes: Annotated[int, Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)] = MAX_CHUNK_BYTES
    """The largest chunk that the broker accepts, as measured by the coordinator."""
    held_out: HeldOut | None = None
    """How a device with own data holds out test examples; None: it trains on all of them. Sent only
    to devices that name the skill `test`."""
    wants_log: bool = False
    """The device sends its `LogLines`; set only for devices that name the skill `log`."""
    wants_scale: bool = False
    """The device sends the `DataScale` of its own data; set only for devices that name the skill
    `scale`."""
    number: Count | None = None
    """Number of the device, from 0, for a client that divides data itself; None for other tasks."""
    count: Count | None = None
    """Devices that are numbered; None for other tasks."""
    base: Manifest | None = None
    """Frozen part of the model; sent only to devices that name the skill `base`."""


class Train(Message, frozen=True, kw_only=True, tag="train"):
    """Train the model for one round."""

    round: RoundId
    attempt: Count = 0
    """Number of restarts of the round; identifies a late reply to an earlier attempt."""
    model: Manifest
    hyperparameters: Hyperparameters
    seed: Count
    """Key of the Philox generator that orders the mini-batches, see `trainer.EpochOrders`."""
    needs_loss: bool
    """Evaluate F_k(w_t) over the whole training set before the first local step."""
    deadline_s: Seconds
    """Time that the coordinator waits from dispatch; after it the device may stop."""
    keep_warm: bool = False
    """Keep session and data in memory even after a missed round."""
    coding: Coding = Coding()
    """Encoding of model and update; by default float32."""
    personal: Personal | None = None
    """Also train a personal model; sent only to devices that name the skill `personal`."""
    local: LocalTraining | None = None
    """The local rule; None is SGD."""
    privacy: Privacy | None = None
    """Noise on the update; sent only to devices that name the skill `privacy`."""
    local_values: LocalValues | None = None
    """Which values the device puts into the model; None: it keeps none."""
    config: Records = b""
    """What the client of the task gets beside the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.privacy is not None and self.needs_loss:
            raise ValueError("needs_loss must be false with privacy: no noise covers a loss")
        if self.privacy is not None and self.coding.returned:
            raise ValueError(
                "coding.returned must be 0 with privacy: noise covers the model alone, "
                f"got {self.coding.returned}"
            )

    @property
    def wants_score(self) -> bool:
        """The device sends a `PersonalScore` after its offer."""
        may_send = self.privacy is None or self.privacy.scores
        return self.personal is not None and may_send


class Grant(Message, frozen=True, kw_only=True, tag="grant"):
    """Permission to upload with at most `window` unacknowledged chunks at a time."""

    round: RoundId
    id: BlobId
    window: Annotated[int, Meta(ge=1, le=8)]


class UploadAck(Message, frozen=True, kw_only=True, tag="upload-ack"):
    """Bitmap of the arrived chunks of an upload; QoS 0, at least every half window."""

    id: BlobId
    received: Bitmap
    """Bit i % 8 (least significant first) of byte i // 8 is set if chunk i has arrived."""


class UploadResult(Message, frozen=True, kw_only=True, tag="upload-result"):
    """Acceptance or rejection of an upload: the end of an exchange."""

    round: RoundId
    id: BlobId
    accepted: bool
    reason: Text = ""


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Stop the work on a round; its result is no longer needed."""

    round: RoundId
    reason: Text = ""


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Reply at once with `Pong`: measures the control round trip."""

    seq: Count


class LinkProbeReply(Message, frozen=True, kw_only=True, tag="link-probe-reply"):
    """The reply to `LinkProbe`."""

    seq: Count
    payload: Annotated[bytes, Meta(max_length=1 << 16)] = b""


class Refuse(Message, frozen=True, kw_only=True, tag="refuse"):
    """The device may not join, or its message is invalid; the reason includes what to do."""

    reason: Text
    is_final: bool = False
    """Every run would refuse this device: the agent stops. Otherwise it waits, for this run or the
    next; with `--once` it stops."""


class Goodbye(Message, frozen=True, kw_only=True, tag="goodbye"):
    """The run is over; agents started with `--once` stop, others wait for the next coordinator."""

    reason: Text = ""


class Signed(Message, frozen=True, kw_only=True, tag="signed"):
    """A message to or from a device with a task key (`wire.signature`)."""

    body: Annotated[bytes, Meta(min_length=1, max_length=1 << 20)]
    """The encoded message."""
    signature: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """HMAC-SHA256 of `body` by the key of this session and direction."""


# --- operator to coordinator, and back ------------------------------------------------------------


Action: TypeAlias = Literal[
    "pause",
    "resume",
    "stop",
    "stop-after-round",
    "exclude",
    "include",
    "kick",
    "set",
    "note",
    "throttle",
    "profile",
    "link",
    "fault",
]

FIELDS_OF_ACTION: dict[Action, tuple[str, ...]] = {
    "pause": (),
    "resume": (),
    "stop": (),
    "stop-after-round": (),
    "exclude": ("device",),
    "include": ("device",),
    "kick": ("device",),
    "set": ("name", "value"),
    "note": ("text",),
    "throttle": ("device", "name", "value"),
    "profile": ("device", "name"),
    "link": ("device", "name"),
    "fault": ("device", "name", "value"),
}
"""The fields that an action has, and no others."""


class OperatorCommand(Message, frozen=True, kw_only=True, tag="command"):
    """A command of an operator to a live run (TUI, `fairbed command`, `fairbed stop`)."""

    id: BlobId
    """Random; a command that arrives twice takes effect once."""
    action: Action
    """pause: begin no further round; stop: end the run at once; stop-after-round: end it when the
    open round has closed; exclude, include: select a device no more, or again; kick: end its
    exchange now; set: change a setting at the next round; note: write an event; throttle, profile,
    link, fault: change an emulated device."""
    device: DeviceName | None = None
    """The device."""
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """The setting (set), the part (throttle: cpu or link), the profile, the link or the fault."""
    value: Annotated[float, Meta(ge=-1e15, le=1e15)] | None = None
    """New value of a setting; share that is left of the speed (throttle); seconds (fault)."""
    text: Text = ""
    """The note, one line."""
    run: Text = ""
    """Id of the run that it is for, as another one may have begun; empty: whichever is there."""
    is_trial: bool = False
    """Answer whether the run knows what the command names, and change nothing. A person is asked
    about a command by which work is lost only after that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = FIELDS_OF_ACTION[self.action]
        for field in ("device", "name", "value", "text"):
            got = getattr(self, field)
            if (got not in (None, "")) != (field in wanted):
                rule = "must be given" if field in wanted else "must not be given"
                raise ValueError(f"{field} {rule} for action {self.action!r}, got {got!r}")

    @property
    def line(self) -> str:
        """The command on one line, as in `set beta 0.2`."""
        value = None if self.value is None else f"{self.value:g}"
        parts = (self.action, self.device, self.name, value, self.text)
        return " ".join(part for part in parts if part)


class OperatorAnswer(Message, frozen=True, kw_only=True, tag="answer"):
    """What became of a command, to its operator."""

    id: BlobId
    """Of the command."""
    is_accepted: bool
    text: Text
    """What the run does, or why it refuses."""


# --- viewer to the machine of the run, and back ---------------------------------------------------


class RowsRequest(Message, frozen=True, kw_only=True, tag="rows-request"):
    """A viewer asks for the rows of a run's store that it does not have.

    It is also the viewer's lease: the run publishes rows only as answers.
    """

    id: BlobId
    """Random; the parts of the answer have it."""
    schema: Annotated[bytes, Meta(min_length=16, max_length=16)]
    """Hash of the tables that the viewer knows."""
    after: Annotated[bytes, Meta(max_length=512)] = b""
    """The cursor of the last page; empty asks for a snapshot."""


class RowsPart(Message, frozen=True, kw_only=True, tag="rows"):
    """A part of one page of rows, or why there is none."""

    id: BlobId
    """Of the request."""
    part: Annotated[int, Meta(ge=0, lt=MAX_PARTS)] = 0
    parts: Annotated[int, Meta(ge=1, le=MAX_PARTS)] = 1
    """Number of parts, which together are the compressed page."""
    body: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)] = b""
    problem: Text = ""
    """Why the viewer gets no rows, and what to do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part >= self.parts:
            raise ValueError(f"part must be below parts, got {self.part} of {self.parts}")


FromDevice: TypeAlias = (
    Hello
    | Context
    | Offer
    | UploadDone
    | PersonalScore
    | Failed
    | LogLines
    | DataScale
    | BaseArrived
    | Trouble
    | ChunkRequest
    | LinkProbe
    | Pong
    | Status
    | EvaluateReply
)
ToDevice: TypeAlias = (
    Welcome
    | Train
    | EvaluateRequest
    | Grant
    | UploadAck
    | UploadResult
    | Cancel
    | Ping
    | LinkProbeReply
    | Refuse
    | Goodbye
    | CoordinatorStatus
)
AnyMessage: TypeAlias = (
    FromDevice
    | ToDevice
    | Signed
    | Intent
    | OperatorCommand
    | OperatorAnswer
    | RowsRequest
    | RowsPart
)
