"""Orders of people to a live run: written down, then carried out; twice the same acts once."""

from collections import deque
from collections.abc import Callable

from fairbed.coordinator.rounds.executor import RoundExecutor
from fairbed.coordinator.rounds.loop import TrainingLoop
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import CommandRow
from fairbed.wire.messages import OperatorCommand

REMEMBERED = 1_000
"""Commands that are known again; a second copy comes within seconds."""


class OperatorCommands:
    """Carries commands out."""

    def __init__(
        self,
        campaign: TrainingLoop,
        player: RoundExecutor,
        registry: Registry,
        journal: EventLog,
        stop: Callable[[], None],
    ) -> None:
        self._campaign = campaign
        self._player = player
        self._registry = registry
        self._journal = journal
        self._stop = stop
        self._seen: deque[bytes] = deque(maxlen=REMEMBERED)

    def on_command(self, command: OperatorCommand) -> None:
        """Carry out a command, unless it was before."""
        if command.id in self._seen:
            return
        self._seen.append(command.id)
        self._journal.add(
            CommandRow(
                id=command.id.hex(),
                at_s=self._journal.at_s(),
                action=command.action,
                device=command.device,
            )
        )
        self._journal.event("command", command.action, device=command.device)
        match command.action:
            case "pause":
                self._campaign.pause()
            case "resume":
                self._campaign.resume()
            case "stop":
                self._stop()
            case "exclude" | "include":
                self._set_excluded(command.device or "", command.action == "exclude")

    def _set_excluded(self, name: str, is_excluded: bool) -> None:
        device = self._registry.get(name)
        if device is None:
            self._journal.complaint("command", f"no device {name!r} is known to this run")
            return
        device.is_excluded = is_excluded
        if is_excluded:
            self._player.exclude(name)
