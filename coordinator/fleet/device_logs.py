"""Lines of the agents' logs: taken at a bounded rate, and stored under the name of their sender."""

from dataclasses import dataclass

from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import DeviceLogRow
from fairbed.wire.messages import LOG_INTERVAL_S, LogLines

BURST = 4
"""Messages of a device that may arrive at once, after a pause of its link."""


@dataclass(slots=True)
class _Sender:
    boot: int
    """Agent process of the last message."""
    next_number: int = 0
    """Number of the first line that did not arrive yet."""
    paid_until_s: float = float("-inf")
    """Each message costs `LOG_INTERVAL_S`, paid from the present on."""


class DeviceLogs:
    """Stores the log lines of the devices of a run; more than agreed are dropped.

    Args:
        registry: The devices; lines of others are ignored.
        event_log: Clock and store.
    """

    def __init__(self, registry: Registry, event_log: EventLog) -> None:
        self._registry = registry
        self._event_log = event_log
        self._senders: dict[str, _Sender] = {}

    def on_lines(self, name: str, message: LogLines) -> None:
        """Store the lines of a device, unless they have arrived before."""
        device = self._registry.get(name)
        if device is None or device.boot != message.boot:
            return
        sender = self._senders.get(name)
        if sender is None:
            sender = self._senders[name] = _Sender(message.boot)
        log, now = self._event_log, self._event_log.now()
        paid_until_s = max(sender.paid_until_s, now)
        if paid_until_s - now > (BURST - 1) * LOG_INTERVAL_S:
            log.warn("flood", "sends its log faster than agreed; lines are dropped", device=name)
            return
        sender.paid_until_s = paid_until_s + LOG_INTERVAL_S
        if sender.boot != message.boot:
            sender.boot, sender.next_number = message.boot, 0
        if message.first < sender.next_number:
            return
        sender.next_number = message.first + len(message.lines)
        for number, line in enumerate(message.lines, message.first):
            log.add(
                DeviceLogRow(
                    at_s=log.at_s(now - line.age_s),
                    device=name,
                    number=number,
                    level=line.level,
                    text=line.text,
                )
            )
