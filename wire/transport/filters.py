"""MQTT topic filters, and the set of them that a client has subscribed to."""

from collections.abc import Iterable


class Filters:
    """The filters of one client and their QoS; quick for many plain topics and few patterns."""

    def __init__(self) -> None:
        self.qos: dict[str, int] = {}
        """QoS by filter, oldest first."""
        self._patterns: list[str] = []

    def add(self, filters: Iterable[str], qos: int) -> None:
        """Subscribe, or change the QoS."""
        self.qos.update(dict.fromkeys(filters, qos))
        self._sort_out()

    def discard(self, filters: Iterable[str]) -> None:
        """Unsubscribe; what is not subscribed is passed over."""
        for name in filters:
            self.qos.pop(name, None)
        self._sort_out()

    def qos_of(self, topic: str) -> int | None:
        """Return the highest QoS at which `topic` is subscribed; None when it is not."""
        found = [self.qos[p] for p in self._patterns if matches(p, topic)]
        if topic in self.qos:
            found.append(self.qos[topic])
        return max(found, default=None)

    def _sort_out(self) -> None:
        self._patterns = [name for name in self.qos if "+" in name or "#" in name]


def matches(pattern: str, topic: str) -> bool:
    """Tell whether a topic filter covers `topic` (MQTT 3.1.1, section 4.7)."""
    wanted, given = pattern.split("/"), topic.split("/")
    if given[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    for i, level in enumerate(wanted):
        if level == "#":
            return True
        if i >= len(given) or level not in ("+", given[i]):
            return False
    return len(wanted) == len(given)
