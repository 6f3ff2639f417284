"""Operator commands to a live run: recorded, then executed; duplicates are ignored.

The operator is taken from the topic, because the broker of a lab checks it.
"""

from collections import deque
from collections.abc import Callable

from fairbed.coordinator.rounds.executor import RoundExecutor
from fairbed.coordinator.rounds.loop import TrainingLoop
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import CommandRow
from fairbed.wire.messages import OperatorCommand

REMEMBERED = 1_000
"""Number of command ids kept to recognise duplicates, which arrive within seconds."""


class OperatorCommands:
    """Executes operator commands."""

    def __init__(
        self,
        loop: TrainingLoop,
        executor: RoundExecutor,
        registry: Registry,
        event_log: EventLog,
        stop: Callable[[], None],
        audit: Callable[[OperatorCommand, str], None],
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._registry = registry
        self._event_log = event_log
        self._stop = stop
        self._audit = audit
        self._seen: deque[bytes] = deque(maxlen=REMEMBERED)

    def on_command(self, command: OperatorCommand, operator: str) -> None:
        """Execute a command of an operator, unless it is a duplicate."""
        if command.id in self._seen:
            return
        self._seen.append(command.id)
        self._event_log.add(
            CommandRow(
                id=command.id.hex(),
                at_s=self._event_log.at_s(),
                action=command.action,
                device=command.device,
                operator=operator,
            )
        )
        self._event_log.event("command", f"{command.action} by {operator}", device=command.device)
        self._audit(command, operator)
        match command.action:
            case "pause":
                self._loop.pause()
            case "resume":
                self._loop.resume()
            case "stop":
                self._stop()
            case "exclude" | "include":
                self._set_excluded(command.device or "", command.action == "exclude")

    def _set_excluded(self, name: str, is_excluded: bool) -> None:
        device = self._registry.get(name)
        if device is None:
            self._event_log.warn("command", f"no device {name!r} is known to this run")
            return
        device.is_excluded = is_excluded
        if is_excluded:
            self._executor.exclude(name)
