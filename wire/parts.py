"""What messages are made of: bounds, names, their common base, and the parts that several share."""

import math
import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

PROTOCOL_VERSION = 1

MAX_VECTOR_BYTES = 1 << 31
"""The largest blob anybody may announce: 2 GiB, beyond what an edge device holds."""

MIN_CHUNK_BYTES = 1 << 10
MAX_CHUNK_BYTES = 960 * 1024
"""With its header a chunk stays below 1 MB, NATS' and EMQX' default payload limit."""

MAX_TEXT = 500
"""Characters of any text; longer ones are cut by whoever builds the message."""

NAME_PATTERN = r"\A[a-z0-9-]{1,32}\Z"

DeviceName: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e7)]
Positive: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e15)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 40)]
RoundId: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
BlobId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Sha256: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
ChunkList: TypeAlias = Annotated[list[Annotated[int, Meta(ge=0, le=1 << 22)]], Meta(max_length=64)]
Bitmap: TypeAlias = Annotated[bytes, Meta(max_length=1 << 19)]
CodecName: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]
Word: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]
BlobKind: TypeAlias = Literal["task", "model", "shard", "update", "probe"]


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="m"):
    """Base of all messages: immutable, keyword-only, no unknown fields, no NaN.

    A text becomes one printable line: what a peer says must not steer a terminal or a log.
    """

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field} must be a finite number, got {value}")
            if isinstance(value, str) and not (value.isprintable() and len(value) <= MAX_TEXT):
                force_setattr(self, field, _one_line(value))


class Manifest(Message, frozen=True, kw_only=True, tag="manifest"):
    """Announce a blob: what it is, how large, how it is cut."""

    id: BlobId
    """For what is downloaded: the first 16 bytes of its sha256. For an update: random."""
    kind: BlobKind
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_VECTOR_BYTES)]
    chunk_bytes: Annotated[int, Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)]
    sha256: Sha256 | None = None
    """None exactly for an update, whose hash follows in `UploadDone`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.sha256 is None) != (self.kind == "update"):
            raise ValueError(f"sha256 must be given exactly for downloads, got kind {self.kind}")
        if self.sha256 is not None and self.id != self.sha256[:16]:
            raise ValueError("id must be the first 16 bytes of sha256 for a download")

    @property
    def chunk_count(self) -> int:
        """Number of chunks; all but the last hold `chunk_bytes`."""
        return -(-self.size_bytes // self.chunk_bytes)


class Hyperparameters(Message, frozen=True, kw_only=True, tag="hyperparameters"):
    """How a device trains in one round."""

    epochs: Annotated[int, Meta(ge=1, le=10_000)]
    batch_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    learning_rate: Positive
    """Already decayed by the coordinator's round schedule."""
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    weight_decay: Annotated[float, Meta(ge=0.0, le=1e3)] = 0.0
    proximal: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """FedProx mu; 0 means no proximal term."""
    clip_norm: Positive | None = None
    """L2 bound of one gradient over all parameters; None means no clipping."""
    max_steps: Annotated[int, Meta(ge=1)] | None = None
    """Stop after this many mini-batches; None means all epochs in full."""


class Packed(Message, frozen=True, kw_only=True, tag="packed"):
    """A smaller blob that becomes the very same model (`wire.codecs`)."""

    manifest: Manifest
    codec: Literal["float16", "int8"]
    base: Sha256 | None = None
    """Hash of the version that its parameters are changes of; None if they are whole."""


class Coding(Message, frozen=True, kw_only=True, tag="coding"):
    """How model and update of one round travel, applied before and after the wire.

    What is encoded of an update is w_k - w_t, of the parameters; buffers travel as they are.
    """

    up: Literal["float32", "float16", "int8", "top-k"] = "float32"
    """float32 is the whole model after local training, as it is."""
    top_k: Annotated[int, Meta(ge=1, le=MAX_VECTOR_BYTES)] | None = None
    """Values that top-k sends; given exactly for it."""
    run: Text = ""
    """The run that a device's unsent rest belongs to; of another run it is forgotten."""
    merged: RoundId | None = None
    """Last round of this device whose update was merged; it owes what that one left out."""
    model: Packed | None = None
    """How a device gets `Train.model` for less; None is by that blob itself."""
    keeps_model: bool = False
    """Hold on to this version: the next may come as changes of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.top_k is not None) != (self.up == "top-k"):
            raise ValueError(f"top_k must be given exactly for top-k, got {self.top_k}")


def _one_line(text: str) -> str:
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return "".join(c if c.isprintable() else " " for c in cut)


def is_device_name(name: str) -> bool:
    """Tell whether `name` may be a device's: 1 to 32 of a-z, 0-9 and hyphen."""
    return re.fullmatch(NAME_PATTERN, name) is not None
