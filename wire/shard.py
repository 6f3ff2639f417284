"""The examples of a device: a shard as it is sent, and the division into training and test.

A shard is private, sent once, and cached by its content hash.
"""

from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fairbed.wire.codec import Buffer, unpack
from fairbed.wire.errors import DecodeError
from fairbed.wire.evaluation import Targets, unlabelled
from fairbed.wire.tensors import Shape


class Shard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Training examples of one device, and held-out ones if it evaluates a personal model."""

    n: Annotated[int, Meta(ge=1, le=1 << 31)]
    """Number of examples."""
    x_shape: Shape
    """Shape of one example."""
    x_dtype: Literal["float32", "uint8", "int64"]
    """uint8 is pixels, converted to float32 / 255 on the device."""
    x: bytes
    """n examples, little-endian, C order."""
    y: bytes
    """n targets, little-endian, C order: int64 labels or finite float32. With a `y_shape` a label
    may be -1, a position without one; each example has a label at one position or more."""
    held_out: "Shard | None" = None
    """Examples that the device must not train on."""
    y_dtype: Literal["int64", "float32"] = "int64"
    """float32: targets of regression."""
    y_shape: Shape = ()
    """Shape of the target of one example; () is one class or number."""

    def arrays(self) -> tuple[NDArray[np.float32] | NDArray[np.int64], Targets]:
        """Return x, shape (n, *x_shape), and y, shape (n, *y_shape), ready for the engine.

        Raises:
            DecodeError: The bytes do not fit the shapes, or a value cannot be used.
        """
        try:
            x = np.frombuffer(self.x, np.dtype(self.x_dtype).newbyteorder("<"))
            x = x.reshape((self.n, *self.x_shape))
            y = np.frombuffer(self.y, np.dtype(self.y_dtype).newbyteorder("<"))
            y = y.reshape((self.n, *self.y_shape)).astype(self.y_dtype)
        except ValueError as exc:
            raise DecodeError(f"shard: {exc}") from exc
        if self.y_dtype == "float32":
            if not np.isfinite(y).all():
                raise DecodeError("shard: every target must be finite, got NaN or infinity")
        elif y.min() < (least := -1 if self.y_shape else 0):
            raise DecodeError(f"shard: every label must be >= {least}, got {y.min()}")
        elif (row := unlabelled(y)) is not None:
            raise DecodeError(
                "shard: every example must have a label at one position, got -1 at all of "
                f"example {row}"
            )
        if self.x_dtype == "int64":
            return x.astype(np.int64), y
        if self.x_dtype == "uint8":
            pixels = x.astype(np.float32)
            pixels /= np.float32(255.0)
            return pixels, y
        if not np.isfinite(x).all():
            raise DecodeError("shard: every feature must be finite, got NaN or infinity")
        return x.astype(np.float32), y

    def count_positions(self) -> int:
        """Return the number of positions of all examples that have a target.

        0 with one target per example.
        """
        if not self.y_shape:
            return 0
        y = np.frombuffer(self.y, np.dtype(self.y_dtype).newbyteorder("<"))
        return y.size if self.y_dtype == "float32" else int(np.count_nonzero(y >= 0))


_DECODER = msgspec.msgpack.Decoder(Shard)


def make_shard(x: NDArray[np.generic], y: NDArray[np.generic]) -> Shard:
    """Return the shard of examples x, shape (n, ...), and targets y, shape (n, *y_shape).

    Integer y are labels, float y are the targets of regression.

    Raises:
        ValueError: x is not float, uint8 or integer, or x and y differ in length.
    """
    y_kind: Literal["int64", "float32"] = "float32" if y.dtype.kind == "f" else "int64"
    kind = {"f": "float32", "u": "uint8", "i": "int64"}.get(x.dtype.kind)
    if kind is None or (kind == "uint8" and x.dtype != np.uint8) or not 0 < len(x) == len(y):
        raise ValueError(
            "shard: x must be float, uint8 or int, one row per label and at least one, "
            f"got {x.dtype} {x.shape} and {len(y)} labels"
        )
    return Shard(
        n=len(x),
        x_shape=tuple(x.shape[1:]),
        x_dtype=kind,  # type: ignore[arg-type]  # the table above yields only the literals
        x=np.ascontiguousarray(x, np.dtype(kind).newbyteorder("<")).tobytes(),
        y=np.ascontiguousarray(y, np.dtype(y_kind).newbyteorder("<")).tobytes(),
        y_dtype=y_kind,
        y_shape=tuple(y.shape[1:]),
    )


def encode_shard(shard: Shard) -> bytes:
    """Return the bytes of a shard."""
    return msgspec.msgpack.encode(shard)


def decode_shard(blob: Buffer) -> Shard:
    """Return the shard in `blob`.

    Raises:
        DecodeError: The bytes are not a shard.
    """
    return unpack(_DECODER, blob, "shard")


STRATA = 10
"""Equal parts of the ordered targets of regression."""


def strata(y: Targets) -> NDArray[np.int64]:
    """Return a class of each example, shape (n,), for divisions by class.

    Targets of regression have the tenth of their order as class, 0 for the smallest; equal targets
    have equal classes. Of several classes per example, the most frequent one counts, the smallest
    of equally frequent ones; of several targets their mean.
    """
    if y.ndim > 1 and y.dtype.kind != "f":
        return np.array([np.bincount(row[row >= 0]).argmax() for row in y.reshape(len(y), -1)])
    if y.ndim > 1:
        y = y.reshape(len(y), -1).mean(axis=1)
    if y.dtype.kind != "f":
        return y.astype(np.int64, copy=False)
    edges = np.quantile(y, np.arange(1, STRATA) / STRATA)
    return np.unique(np.searchsorted(edges, y, side="right"), return_inverse=True)[1]


def split(
    rows: NDArray[np.int64], y: NDArray[np.int64], test_fraction: float, rng: "np.random.Generator"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide one device's examples into training and test, each class in proportion.

    The test part has round(test_fraction x n) examples, at least one and at most n - 1. The largest
    remainder method divides it over the classes: each is within one of its exact share.

    Args:
        rows: Examples of the device, shape (n,), n >= 2.
        y: Class of each, shape (n,), as `strata` returns it.
        test_fraction: Share that is held out, between 0 and 1.
        rng: Source of randomness.

    Returns:
        Training and test rows, ascending, shapes (n - t,) and (t,).
    """
    n = len(rows)
    is_test = _drawn(y, min(max(1, round(test_fraction * n)), n - 1), rng)
    return np.sort(rows[~is_test]), np.sort(rows[is_test])


def _drawn(y: NDArray[np.int64], count: int, rng: "np.random.Generator") -> NDArray[np.bool_]:
    """Draw `count` of some examples, each class in proportion; return which, shape (n,)."""
    n, sizes = len(y), np.bincount(y)
    exact = sizes * (count / n)
    quota = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(-(exact - quota), kind="stable")
    quota[by_remainder[: count - quota.sum()]] += 1
    grouped = _by_class(y, rng)
    rank_in_class = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_drawn = np.zeros(n, np.bool_)
    is_drawn[grouped[rank_in_class < np.repeat(quota, sizes)]] = True
    return is_drawn


def _by_class(y: NDArray[np.int64], rng: "np.random.Generator") -> NDArray[np.int64]:
    """Return the places of some examples, class by class and shuffled in each, shape (n,)."""
    shuffled = rng.permutation(len(y))
    return shuffled[np.argsort(y[shuffled], kind="stable")]


LEAST_VALIDATION = 10
"""A smaller validation part is one of several folds, so that all examples validate in turn."""


def split_validation(
    rows: NDArray[np.int64],
    y: NDArray[np.int64],
    share: float,
    fold: int,
    rng: "np.random.Generator",
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide what the test part has left of one device into training and validation examples.

    The validation part has round(share x n) examples, at least one and at most n - 1. With
    `LEAST_VALIDATION` or more it is drawn as `split` draws the test part. A smaller one is a fold
    of round(n / size) folds, each class in proportion: consecutive values of `fold` take each of
    them in turn.

    Args:
        rows: Examples without the test part, shape (n,).
        y: Class of each, shape (n,), as `strata` returns it.
        share: Share of these examples, between 0 and 1.
        fold: Number of the fold, at least 0; larger ones than the folds begin again.
        rng: Source of randomness; equal for all folds.

    Returns:
        Training and validation rows, ascending; all are for training if there are fewer than two.
    """
    n = len(rows)
    if n < 2:
        return rows, rows[:0]
    count = min(max(1, round(share * n)), n - 1)
    if count >= LEAST_VALIDATION:
        is_validation = _drawn(y, count, rng)
    else:
        folds = min(max(2, round(n / count)), n)
        is_validation = np.zeros(n, np.bool_)
        is_validation[_by_class(y, rng)[fold % folds :: folds]] = True
    return np.sort(rows[~is_validation]), np.sort(rows[is_validation])
