"""The time for which a busy machine kept a slowed program waiting, from two bounds. Pure.

    unused    time whose speed the program did not use, though it was not idle
    waited    time in which it was ready and did not run, less the time in which it was throttled

    contended = min(unused, waited)      of what lies close together in time

Neither bound is enough. A program that used all of its speed has lost nothing, however long its
threads waited. A program whose threads did not wait left its speed unused by itself.

The kernel counts a wait when it ends, and throttling when the next period begins. So the bounds of
one window are off at its edges, and the next one makes up for it: what is left of both is carried
to the next window, within limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

HORIZON_S = 0.25
"""How long what was not used stays comparable with a wait that is counted later, seconds. Waits for
other programs of the same priority are shorter."""


@dataclass(slots=True)
class ContentionEstimate:
    """Sums the contended time over windows of any length."""

    contended_s: float = 0.0
    _unused_s: list[float] = field(default_factory=list)
    _waited_s: list[float] = field(default_factory=list)

    def add(
        self, unused_s: Sequence[float], waited_s: Sequence[float], slack_s: float = 0.0
    ) -> float:
        """Add a window; return its contended time, seconds.

        Each bound can be measured in one or several ways, always the same; the largest counts.

        Args:
            unused_s: The first bound in this window; negative if it makes up for an earlier one.
            waited_s: The second bound.
            slack_s: Largest error of a bound at one edge of a window. A window has two edges, so
                a bound may have to make up for twice that.
        """
        unused = _sums(self._unused_s, unused_s)
        waited = _sums(self._waited_s, waited_s)
        contended_s = max(0.0, min(max(unused), max(waited)))
        self.contended_s += contended_s
        least_s = -2.0 * slack_s
        self._unused_s = [min(max(one - contended_s, least_s), HORIZON_S) for one in unused]
        self._waited_s = [min(max(one - contended_s, least_s), slack_s) for one in waited]
        return contended_s


def _sums(carried: Sequence[float], new: Sequence[float]) -> list[float]:
    return [sum(pair) for pair in zip(carried, new, strict=True)] if carried else list(new)
