"""Round numbers for the axes of a plot."""

import math

_STEPS = (1.0, 2.0, 5.0, 10.0)


def ticks(low: float, high: float, count: int, *, is_whole: bool = False) -> list[float]:
    """Return at most `count` + 1 multiples of a round step within [low, high].

    Args:
        low: Lower end of the axis.
        high: Upper end, not below `low`.
        count: Steps that fit on the axis, at least 1.
        is_whole: Only whole numbers.
    """
    wanted = (high - low) / count
    if wanted <= 0.0:
        return [low]
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(power * s for s in _STEPS if power * s >= wanted * (1 - 1e-9))
    step = max(step, 1.0) if is_whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def label(value: float) -> str:
    """Write a tick: `3`, `0.5`, `0.25`."""
    return f"{value:.6g}"
