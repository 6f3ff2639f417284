"""A model as one flat float32 vector `[params | buffers]`, and its layout."""

import math
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import MAX_TEXT, MAX_VECTOR_BYTES

BYTES_PER_VALUE = 4

Shape: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=1, le=MAX_VECTOR_BYTES)], ...], Meta(max_length=8)
]


def batch_text(shape: tuple[int, ...]) -> str:
    """Return the shape of a mini-batch in print: `(B, 3, 32, 32)`."""
    return f"({', '.join(map(str, ('B', *shape)))})" if shape else "(B,)"


class Tensor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One named tensor and its position in the flat vector."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    shape: Shape
    offset: Annotated[int, Meta(ge=0, le=MAX_VECTOR_BYTES)]
    """Index of its first value in the flat vector."""
    role: Literal["param", "buffer"] = "param"
    init: Literal["zeros", "ones", "constant", "uniform"] = "zeros"
    """Initial values, set by the coordinator before round 1."""
    init_bound: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """Half-width of the uniform distribution, for `uniform`."""
    init_value: Annotated[float, Meta(ge=-1e6, le=1e6)] | UnsetType = UNSET
    """All initial values, for `constant`."""
    is_local: Literal[True] | UnsetType = UNSET
    """Each device keeps its own values (`Layout.local`); left out for values that are merged."""

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """All tensors of a model: parameters first, then buffers, without gaps.

    Its sums are computed once: a round reads them for each device.
    """

    tensors: Annotated[tuple[Tensor, ...], Meta(max_length=1 << 16)]
    """None for a client whose arrays only itself reads."""

    def __post_init__(self) -> None:
        end, roles = 0, []
        for tensor in self.tensors:
            if tensor.offset != end:
                raise ValueError(f"{tensor.name}: offset must be {end}, got {tensor.offset}")
            end += tensor.size
            roles.append(tensor.role)
        if roles != sorted(roles, reverse=True):
            raise ValueError("layout: all parameters must come before all buffers")
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            raise ValueError("layout: every tensor must have a unique name")
        if end * BYTES_PER_VALUE > MAX_VECTOR_BYTES:
            raise ValueError(f"layout: must fit into {MAX_VECTOR_BYTES} bytes, got {end} values")

    @cached_property
    def n_values(self) -> int:
        """Length of the flat vector."""
        return sum(t.size for t in self.tensors)

    @cached_property
    def n_params(self) -> int:
        """Length of the parameter part; norms, clipping and aggregation rules use only these."""
        return sum(t.size for t in self.tensors if t.role == "param")

    @cached_property
    def local(self) -> NDArray[np.intp]:
        """Places in the flat vector of the values that each device keeps for itself, ascending.

        The vector that travels has such places, too. They have the values of the model that was
        sent, and nothing reads them: a device puts its own values there, and a merge leaves them.
        """
        places = [
            np.arange(t.offset, t.offset + t.size) for t in self.tensors if t.is_local is True
        ]
        found = np.concatenate(places) if places else np.zeros(0, np.intp)
        found.flags.writeable = False
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes of the flat vector on the wire."""
        return self.n_values * BYTES_PER_VALUE

    def with_vectors(self, count: int) -> "Layout":
        """Return the layout of a model that `count` vectors follow, as long as its parameters."""
        n_params, end = self.n_params, self.n_values
        added = [
            Tensor(
                name=f"local vector {i}",
                shape=(n_params,),
                offset=end + i * n_params,
                role="buffer",
            )
            for i in range(count)
        ]
        return self if not added else Layout(tensors=(*self.tensors, *added))

    def views(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return each tensor as a shaped view into `vector`, shape (n_values,)."""
        return {t.name: vector[t.offset : t.offset + t.size].reshape(t.shape) for t in self.tensors}


def vector_to_bytes(vector: NDArray[np.float32]) -> memoryview:
    """Return the little-endian bytes of a flat vector, shape (n,), without a copy if possible."""
    return np.ascontiguousarray(vector, dtype="<f4").view(np.uint8).data


def vector_from_bytes(data: bytes | bytearray | memoryview, n_values: int) -> NDArray[np.float32]:
    """Return the flat vector in `data`, shape (n_values,), as a view.

    Raises:
        DecodeError: The size is wrong, or a value is not finite.
    """
    if len(data) != n_values * BYTES_PER_VALUE:
        raise DecodeError(
            f"vector: must hold {n_values} float32 ({n_values * BYTES_PER_VALUE} bytes), "
            f"got {len(data)} bytes"
        )
    vector = np.frombuffer(data, dtype="<f4")
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise DecodeError(f"vector: every value must be finite, got {vector[at]} at {at}")
    return vector.astype(np.float32, copy=False)


def with_values(
    vector: NDArray[np.float32], places: NDArray[np.intp], values: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return a vector with other values in some places; itself if there are none."""
    if not places.size:
        return vector
    changed: NDArray[np.float32] = vector.copy()
    changed[places] = values
    return changed
