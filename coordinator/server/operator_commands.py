"""Operator commands to a live run: checked, executed, recorded and answered.

The operator is taken from the topic, because the broker of a lab checks it. A command that arrives
twice takes effect once, and its answer is sent again.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

import numpy as np
from anyio.abc import TaskGroup

from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.policy.decisions import FleetSizeError, make_decisions
from fairbed.coordinator.policy.live_settings import (
    SettingError,
    changed,
    key_of,
    value_of,
)
from fairbed.coordinator.ports import Audit, CommandRefusedError, DeviceControl
from fairbed.coordinator.rounds.loop import TrainingLoop
from fairbed.coordinator.state.registry import Device, Registry
from fairbed.coordinator.store.event_log import EventLog, Level
from fairbed.coordinator.store.tables import CommandRow
from fairbed.wire.messages import OperatorAnswer, OperatorCommand
from fairbed.wire.plugins import PluginError

REMEMBERED = 1_000
"""Number of answers kept to recognise duplicates, which arrive within seconds."""

OF_EMULATED_DEVICES = ("throttle", "profile", "link", "fault")
"""Actions that the testbed executes."""

NAMED = 10
"""Devices that a refusal names."""

LASTING = ("throttle", "profile", "link")
"""Those of them that a resumed run repeats."""

INFO: Level = "info"
WARNING: Level = "warning"

OTHER_RUN = "it is for run {}, which has ended; {} runs there now"
READ_ONLY = (
    "this run takes no commands (operator.read_only); where it runs, Ctrl-C or SIGTERM ends it"
)


class OperatorCommands:
    """Executes operator commands.

    Args:
        loop: The training loop.
        registry: The devices.
        event_log: Clock, store and log.
        publisher: Sends the answers.
        group: Owns the commands that take time.
        kick: Cancels what a device does, with a reason; returns whether there was something.
        stop: Ends the run at once, or, with False, when the open round has closed.
        audit: Notes each command and its answer outside of the run.
        devices: Changes emulated devices; None if there are none.
        is_read_only: Refuse every command.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        registry: Registry,
        event_log: EventLog,
        publisher: Publisher,
        group: TaskGroup,
        *,
        kick: Callable[[str, str], bool],
        stop: Callable[[bool], None],
        audit: Audit,
        devices: DeviceControl | None,
        is_read_only: bool,
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._event_log = event_log
        self._publisher = publisher
        self._group = group
        self._kick = kick
        self._stop = stop
        self._audit = audit
        self._devices = devices
        self._is_read_only = is_read_only
        self._answers: OrderedDict[bytes, OperatorAnswer | None] = OrderedDict()
        """By number of the command; None while it is executed."""

    def on_command(self, command: OperatorCommand, operator: str) -> None:
        """Execute and answer a command of an operator; answer a duplicate again.

        A trial is answered each time, and leaves no trace.
        """
        if command.is_trial:
            self._publisher.answer(operator, self._trial(command))
            return
        if command.id in self._answers:
            if (answer := self._answers[command.id]) is not None:
                self._publisher.answer(operator, answer)
            return
        self._answers[command.id] = None
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        is_ours = command.run in ("", self._event_log.store.run_id)
        if command.action in OF_EMULATED_DEVICES and not self._is_read_only and is_ours:
            name = f"coordinator.command[{command.line}]"
            self._group.start_soon(self._change_device, command, operator, name=name)
            return
        before: float | None = None
        first_round: int | None = None
        try:
            self._check_allowed(command)
            if command.action == "set":
                before = value_of(self._loop.next_config, command.name or "")
                first_round = self._loop.next_round
            text, is_accepted = self._execute(command, operator), True
        except (CommandRefusedError, SettingError) as exc:
            text, is_accepted, before, first_round = str(exc), False, None, None
        self._finish(command, operator, text, is_accepted, before, first_round)

    def _check_allowed(self, command: OperatorCommand) -> None:
        run_id = self._event_log.store.run_id
        if command.run not in ("", run_id):
            raise CommandRefusedError(OTHER_RUN.format(command.run, run_id))
        if self._is_read_only:
            raise CommandRefusedError(READ_ONLY)

    def _trial(self, command: OperatorCommand) -> OperatorAnswer:
        """Return whether the run takes a command, as far as that is known before it."""
        try:
            self._check_allowed(command)
            if command.device is not None:
                self._device(command.device)
            if command.action in OF_EMULATED_DEVICES:
                self._control()
        except CommandRefusedError as exc:
            return OperatorAnswer(id=command.id, is_accepted=False, text=str(exc))
        return OperatorAnswer(id=command.id, is_accepted=True, text="the run would take it")

    async def repeat(self, rows: Sequence[CommandRow]) -> None:
        """Execute the lasting commands of an earlier process of this run again."""
        self._restore_exclusions(rows)
        last: dict[tuple[str, str | None, str | None], CommandRow] = {}
        for row in rows:
            if row.is_accepted and row.action in LASTING:
                part = row.name if row.action == "throttle" else None
                last.pop((row.action, row.device, part), None)
                last[row.action, row.device, part] = row
        for row in last.values():
            command = OperatorCommand(
                id=bytes.fromhex(row.id),
                action=row.action,  # type: ignore[arg-type]  # one of `LASTING`
                device=row.device,
                name=row.name,
                value=row.value,
            )
            try:
                text = await self._control().execute(command)
                self._event_log.event("command", f"again: {text}", device=row.device)
            except CommandRefusedError as exc:
                text = f"{command.line} is not repeated: {exc}"
                self._event_log.event("command", text, level="warning", device=row.device)

    def _restore_exclusions(self, rows: Sequence[CommandRow]) -> None:
        """Exclude the devices that an operator excluded after the last checkpoint."""
        for row in rows:
            device = self._registry.get(row.device or "")
            if row.is_accepted and row.action in ("exclude", "include") and device is not None:
                device.is_excluded = row.action == "exclude"

    async def _change_device(self, command: OperatorCommand, operator: str) -> None:
        try:
            text, is_accepted = await self._control().execute(command), True
        except CommandRefusedError as exc:
            text, is_accepted = str(exc), False
        self._finish(command, operator, text, is_accepted)

    def _control(self) -> DeviceControl:
        if self._devices is None:
            raise CommandRefusedError("no device of this run is emulated, so none can be changed")
        return self._devices

    def _execute(self, command: OperatorCommand, operator: str) -> str:
        """Execute a command; return what the run does.

        Raises:
            CommandRefusedError: It cannot be executed.
            SettingError: The setting cannot have this value.
        """
        match command.action:
            case "pause":
                self._loop.pause()
                return "no further round begins; the open one ends as usual"
            case "resume":
                self._loop.resume()
                return "rounds begin again"
            case "stop":
                self._stop(True)
                return "the run ends now; its open round is lost"
            case "stop-after-round":
                return self._stop_after_round()
            case "exclude" | "include":
                return self._exclude(command.device or "", command.action == "exclude")
            case "kick":
                device = self._device(command.device or "")
                is_at_work = self._kick(device.name, f"cancelled by operator {operator}")
                what = "its exchange is cancelled" if is_at_work else "it had no open exchange"
                return f"{device.name}: {what}; it may be selected again"
            case "note":
                self._event_log.event("note", f"{command.text} ({operator})")
                return "noted"
            case "set":
                return self._set(command.name or "", command.value or 0.0)
            case _:
                raise AssertionError(command.action)

    def _stop_after_round(self) -> str:
        last = self._loop.stop_after_round()
        self._stop(last is None)
        if last is None:
            return "no round is open: the run ends now"
        return f"the run ends after round {last}"

    def _exclude(self, name: str, is_excluded: bool) -> str:
        device = self._device(name)
        device.is_excluded = is_excluded
        if not is_excluded:
            return f"{name} may be selected again"
        self._kick(name, "excluded by an operator")
        return f"{name} is not selected any more{self._loop.still_waits()}"

    def _device(self, name: str) -> Device:
        device = self._registry.get(name)
        if device is None:
            known = sorted(self._registry.names())
            names = f"{', '.join(known[:NAMED])}{', ...' if len(known) > NAMED else ''}"
            raise CommandRefusedError(
                f"no device {name!r} is known to this run; there are: {names or 'none'}"
            )
        return device

    def _set(self, name: str, value: float) -> str:
        config = self._loop.next_config
        before = value_of(config, name)
        # The availability of a live device is unknown, as it is before a run.
        devices = sum(not device.is_excluded for device in self._registry)
        new = changed(config, name, value, np.ones(devices))
        try:
            make_decisions(new, len(self._registry))
        except (PluginError, FleetSizeError) as exc:
            raise SettingError(str(exc)) from exc
        self._loop.change(new)
        return (
            f"{key_of(name)} is {value:g} from round {self._loop.next_round} on, before {before:g}"
        )

    def _finish(
        self,
        command: OperatorCommand,
        operator: str,
        text: str,
        is_accepted: bool,
        before: float | None = None,
        first_round: int | None = None,
    ) -> None:
        """Record a command that was executed or refused, and answer it."""
        log = self._event_log
        answer = OperatorAnswer(id=command.id, is_accepted=is_accepted, text=text)
        log.add(
            CommandRow(
                id=command.id.hex(),
                at_s=log.at_s(),
                wall=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
                action=command.action,
                device=command.device,
                operator=operator,
                name=command.name,
                value=command.value,
                text=command.text,
                round=first_round,
                before=before,
                is_accepted=is_accepted,
                answer=answer.text,
            )
        )
        refused, level = ("", INFO) if is_accepted else (" is refused", WARNING)
        line = f"{command.line} by {operator}{refused}: {text}"
        log.event("command", line, level=level, device=command.device)
        self._audit(command, operator, answer)
        self._answers[command.id] = answer
        self._publisher.answer(operator, answer)
