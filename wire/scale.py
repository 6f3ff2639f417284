"""The scale of examples: range, mean and spread of all values of x, and how far two are apart.

A model that devices train together needs x on one scale. The numbers are of the values as the
engine gets them, over all features; they do not reveal an example.
"""

import math
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_VALUE = 3.5e38
"""Bound of a float32."""

Value = Annotated[float, Meta(ge=-MAX_VALUE, le=MAX_VALUE)]

RANGE_SHARE = 0.9
"""Values outside another range by this share of it are far; data in -1..1 beside 0..1 are."""
NEGATIVE_SHARE = 0.1
"""Values below 0 by this share of the range are far where the run has none."""
SPREAD_RATIO = 2.2
"""Spreads that differ by this factor are far: those of single classes of pictures differ less."""
SIZE_RATIO = 4.0
"""Largest values that differ by this factor have another unit."""
UNIT_TOLERANCE = 0.35
"""Relative error up to which a ratio of largest values names a unit."""
LARGE = 20.0
"""Largest value above which x counts as not scaled: normalised data rarely have such a value."""

BLOCK = 1 << 16
"""Values that are counted at a time: half a MiB as float64."""

UNITS = {255.0: "255", 100.0: "100", 16.0: "16", 1000.0: "1000"}
"""Usual factors between units: pixels, percent, digits of scikit-learn, milli."""


class Scale(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Range, mean and spread of the values of x of one set of examples."""

    low: Value
    high: Value
    mean: Value
    spread: Annotated[float, Meta(ge=0.0, le=MAX_VALUE)]
    """Standard deviation."""

    def __post_init__(self) -> None:
        check_order(self.low, self.high, self.mean, self.spread)

    @property
    def size(self) -> float:
        """Largest absolute value."""
        return max(abs(self.low), abs(self.high))

    @property
    def text(self) -> str:
        """The numbers in words."""
        return f"{self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}, spread {self.spread:.4g}"


def check_order(low: float, high: float, mean: float, spread: float) -> None:
    """Check that the numbers can be of one set of values.

    Raises:
        ValueError: They cannot.
    """
    slack = 1e-5 * max(abs(low), abs(high))
    if not low - slack <= mean <= high + slack:
        raise ValueError(f"mean must be in low..high, got {mean:g} with {low:g}..{high:g}")
    if spread > (high - low) / 2 + slack:
        raise ValueError(
            f"spread must be at most half of high - low, got {spread:g} with {low:g}..{high:g}"
        )


def scale_of(x: "NDArray[Any]") -> Scale | None:
    """Return the scale of examples, shape (n, ...); None for tokens, and for NaN or infinity.

    uint8 counts as pixels, which are divided by 255 before training.

    Source:
        Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances", COMPSTAT 1982.
    """
    import numpy as np  # an agent that waits for its first task has no memory for it

    if x.size == 0 or (x.dtype.kind != "f" and x.dtype != np.uint8):
        return None
    factor = 255.0 if x.dtype == np.uint8 else 1.0
    low, high, mean, total = math.inf, -math.inf, 0.0, 0.0
    flat = x.reshape(-1)
    for start in range(0, flat.size, BLOCK):  # once through the memory, each block in the cache
        block = flat[start : start + BLOCK]
        lowest, highest = float(block.min()), float(block.max())
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            return None
        low, high = min(low, lowest), max(high, highest)
        part = block.astype(np.float64)
        of_part = float(part.mean())
        part -= of_part
        apart, share = of_part - mean, part.size / (start + part.size)
        squares = float(np.einsum("i,i", part, part))  # a BLAS would share each block with threads
        total += squares + apart * apart * start * share
        mean += apart * share
    low, high = low / factor, high / factor
    mean = min(max(mean / factor, low), high)
    spread = min(math.sqrt(total / flat.size) / factor, (high - low) / 2)
    return Scale(low=low, high=high, mean=mean, spread=spread)


def other_scale(own: Scale, task: Scale) -> str:
    """Return how the scale of a device differs from that of a run, and what to do; empty if not.

    The text has a rounded factor at most, no value of the device's data. Coarse: features are not
    looked at one by one.

    Args:
        own: Of the device.
        task: Of the data set of the run.
    """
    width = max(task.high - task.low, 1e-30)
    is_outside = max(task.low - own.low, own.high - task.high) > RANGE_SHARE * width
    more, less = (SPREAD_RATIO * s for s in (task.spread, own.spread))
    is_spread = own.spread > more or task.spread > less
    is_moved = abs(own.mean - task.mean) > max(own.spread, task.spread)
    is_negative = own.low < -NEGATIVE_SHARE * width and task.low >= 0
    if not (is_outside or is_spread or is_moved or is_negative):
        return ""
    is_standard = abs(task.mean) < 0.5 * task.spread and 0.4 < task.spread < 2.5 and task.low < 0
    larger = own.size / max(task.size, 1e-30)
    factor = larger if larger >= 1 else 1 / max(larger, 1e-30)
    unit = next((u for u in UNITS if abs(factor / u - 1) <= UNIT_TOLERANCE), None)
    pixels = own.low >= 0 and 128 <= own.high <= 256
    if larger >= SIZE_RATIO and pixels and (task.high <= 8 or unit == 255):
        rest = ", then normalise it as the run's" if is_standard else ", or store it as uint8"
        return f"x is not divided by 255; divide it by 255{rest}"
    if is_standard and (is_spread or is_outside or is_moved):
        return (
            "x is not normalised as the data of the run; subtract their mean, and divide by their "
            "standard deviation"
        )
    if larger >= SIZE_RATIO and own.spread > more:
        by = UNITS[unit] if unit else f"about {factor:.2g}"
        return f"x has larger values than the data of the run; divide it by {by}"
    if larger <= 1 / SIZE_RATIO and task.spread > less:
        by = UNITS[unit] if unit else f"about {factor:.2g}"
        return (
            f"x has smaller values than the data of the run; multiply it by {by}: perhaps it was "
            "divided twice, or uint8 pixels are meant"
        )
    if is_negative:
        return "x has negative values, and the data of the run have none; undo its normalisation"
    return (
        "x has another mean or spread than the data of the run; prepare it as the run's data: the "
        "same units, the same mean and spread"
    )


def unscaled(scale: Scale | None) -> str:
    """Return what to do about x with values far from 1; empty if there are none."""
    if scale is None or scale.size <= LARGE:
        return ""
    return (
        f"x has values beyond {LARGE:g}: scale them first, to -1..1 or to mean 0 and spread 1 "
        "(pixels as float: divide x by 255)"
    )
