"""Rows of the metrics of a client, whose names are its own: made printable, and bounded. Pure."""

from collections.abc import Collection, Iterator, Mapping

from fairbed.coordinator.store.tables import ClientMetricRow, MetricPhase
from fairbed.wire.printable import one_line

MAX_NAMES = 64
"""Most names of metrics in a run."""

MAX_NAME = 64
"""Characters of a name."""


class ClientMetrics:
    """Makes the rows; the first `MAX_NAMES` names of a run are stored.

    Args:
        names: Those that the run has stored before.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = set(names)
        self._has_warned = False

    def rows(
        self,
        round_id: int,
        device: str,
        phase: MetricPhase,
        metrics: Mapping[str, float],
        n: int,
    ) -> Iterator[ClientMetricRow]:
        """Yield the rows of what a device, or the strategy of an app, measured on `n` examples."""
        for given, value in metrics.items():
            name = one_line(given, MAX_NAME)
            if name and self._admits(name):
                yield ClientMetricRow(
                    round=round_id, device=device, phase=phase, name=name, value=value, n=n
                )

    def _admits(self, name: str) -> bool:
        if name not in self._names and len(self._names) < MAX_NAMES:
            self._names.add(name)
        return name in self._names

    def warning(self, metrics: Mapping[str, float]) -> str | None:
        """Return one line if a metric has not been stored, once in a process; else None."""
        lost = (name for name in (one_line(x, MAX_NAME) for x in metrics) if name)
        left_out = next((name for name in lost if name not in self._names), None)
        if left_out is None or self._has_warned:
            return None
        self._has_warned = True
        return (
            f"metric {left_out!r} and further ones are not stored: a run has at most {MAX_NAMES} "
            "names; give a metric the same name in each round and on each device"
        )
