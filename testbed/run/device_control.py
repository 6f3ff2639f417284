"""Changes of emulated devices by an operator, on top of their schedules.

    throttle   share of the speed, or of the rates of the link, that is left
    link       rates, delay, jitter and loss of another link
    profile    cores, speed, memory, storage and power of another device, which starts again
    fault      an outage, or a power cut, for some seconds

A schedule goes on meanwhile: its speed and rates are multiplied by the shares, and its link is
replaced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import anyio
from anyio.abc import TaskGroup
from msgspec import structs

from fairbed import profiles
from fairbed.coordinator.ports import CommandRefusedError
from fairbed.profiles import Profile
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.backends.base import Backend, DeviceSpec, device_spec
from fairbed.testbed.emulation.conditions import Conditions, Outage, Shape
from fairbed.testbed.emulation.step_speed import AtTask
from fairbed.testbed.errors import BackendError
from fairbed.testbed.run.stopping import StopControl
from fairbed.wire.messages import OperatorCommand

KILLED = "killed"
"""Fault that is no outage: the agent is killed, as by a power cut, and started again."""

FAULTS = (*get_args(Outage), KILLED)

OWN_LINK = "own"
"""Name that gives a device its own link again."""

MAX_FAULT_S = 86_400.0
"""Longest fault."""


@dataclass(frozen=True, slots=True)
class Steered:
    """What an operator changed of one device."""

    cpu: float = 1.0
    """Share of the speed that is left."""
    link: float = 1.0
    """Share of the rates of the link that is left."""
    shape: Shape | None = None
    """Replaces the link, in seconds of this machine; None is the device's own."""
    outage: Outage | None = None

    def applied_to(self, base: Conditions) -> Conditions:
        """Return the conditions of a device whose schedule has the conditions `base`."""
        speed, shape = base.speed_ratio, self.shape or base.shape
        if shape is not None and self.link < 1.0:
            shape = structs.replace(
                shape,
                down_bps=None if shape.down_bps is None else shape.down_bps * self.link,
                up_bps=None if shape.up_bps is None else shape.up_bps * self.link,
            )
        return structs.replace(
            base,
            speed_ratio=None if speed is None else speed * self.cpu,
            shape=shape,
            outage=self.outage or base.outage,
        )


class SteeredFleet:
    """Applies schedules and commands of operators to a backend.

    Args:
        backend: Runs the devices.
        specs: The devices as this machine emulates them, time dilation included.
        dilation: Seconds of this machine in one second of the fleet.
        host_core_speed: Speed of one core of this machine, in cores of the reference machine.
        group: Ends faults when their time has passed.
        stop: Ends the run if a fault cannot be ended.
        at_task: Returns a device with the speeds that it has at the task of the run.
    """

    def __init__(
        self,
        backend: Backend,
        specs: Sequence[DeviceSpec],
        dilation: float,
        host_core_speed: float,
        group: TaskGroup,
        stop: StopControl,
        at_task: Callable[[Profile], AtTask] = AtTask,
    ) -> None:
        self._backend, self._at_task = backend, at_task
        self._dilation, self._host_core_speed = dilation, host_core_speed
        self._specs = {spec.name: spec for spec in specs}
        self._group = group
        self._stop = stop
        self._base = {
            spec.name: Conditions(
                None if spec.device is None else spec.device.speed_ratio, spec.shape
            )
            for spec in specs
        }
        self._changes: dict[str, Steered] = {}
        self._faults: dict[str, str] = {}
        """Fault of each device that has one."""

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change devices to conditions of their schedules, with the changes of operators.

        Raises:
            BackendError: The backend cannot emulate them.
        """
        self._base.update(conditions)
        await self._backend.apply({name: self._now(name) for name in conditions})

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of a device since its last start; None if it is not alive."""
        return self._backend.cpu_s(name)

    async def start_again(self, device: str) -> None:
        """Start the agent of a device again, unless it is alive or a fault keeps it away.

        Raises:
            BackendError: Its process cannot be started.
        """
        if device in self._backend.pids or self._faults.get(device) == KILLED:
            return
        await self._backend.restart(device)
        now = self._now(device)
        if now.outage is not None:  # such as frozen, which holds for a process
            await self._backend.apply({device: now})

    async def execute(self, command: OperatorCommand) -> str:
        """Execute a throttle, profile, link or fault; return what was done, in one line.

        Raises:
            CommandRefusedError: The device is not emulated, or its backend cannot do it.
        """
        device, name = command.device or "", command.name or ""
        if device not in self._base:
            raise CommandRefusedError(
                f"{device} is not emulated by this run; only emulated devices can be changed"
            )
        match command.action:
            case "throttle":
                return await self._throttle(device, name, command.value or 0.0)
            case "link":
                return await self._link(device, name)
            case "fault":
                return await self._fault(device, name, command.value or 0.0)
            case "profile":
                return await self._profile(device, name)
            case _:
                raise AssertionError(command.action)

    async def _throttle(self, device: str, part: str, share: float) -> str:
        if part not in ("cpu", "link"):
            raise CommandRefusedError(f"throttle: must be of cpu or link, got {part!r}")
        if not 0.0 < share <= 1.0:
            raise CommandRefusedError(
                f"throttle: the share that is left must be above 0 and at most 1, got {share:g}; "
                "1 is the whole"
            )
        now = self._now(device)
        if part == "cpu" and now.speed_ratio is None:
            raise CommandRefusedError(f"{device} has no profile, so its speed is not emulated")
        rates = () if now.shape is None else (now.shape.down_bps, now.shape.up_bps)
        if part == "link" and all(rate is None for rate in rates):
            raise CommandRefusedError(f"{device} has no link with a rate, so none can be reduced")
        before = self._changes.get(device, Steered())
        new = replace(before, cpu=share) if part == "cpu" else replace(before, link=share)
        await self._change(device, new)
        what = "speed" if part == "cpu" else "link"
        return f"{device} has {100.0 * share:g} % of its {what}"

    async def _link(self, device: str, name: str) -> str:
        shape = None
        if name != OWN_LINK:
            if name not in profiles.link_names():  # a path would be read on this machine
                raise CommandRefusedError(
                    f"link: must be {OWN_LINK} or one of {', '.join(profiles.link_names())}, "
                    f"got {name!r}"
                )
            try:
                shape = device_spec(device, None, profiles.load_link(name).link).shape
            except ProfileError as exc:
                raise CommandRefusedError(str(exc)) from exc
            shape = shape and shape.dilated(self._dilation)
        await self._change(device, replace(self._changes.get(device, Steered()), shape=shape))
        what = "its own link" if shape is None else f"the link {name} at its mean rates"
        return f"{device} has {what}"

    async def _profile(self, device: str, name: str) -> str:
        spec, base = self._specs[device], self._base[device]
        if name not in profiles.names():  # a path would be read on this machine
            raise CommandRefusedError(
                f"profile: must be one of {', '.join(profiles.names())}, got {name!r}"
            )
        if spec.device is None:
            raise CommandRefusedError(f"{device} has no profile, so its speed is not emulated")
        if spec.is_driven:
            raise CommandRefusedError(
                f"{device} keeps its profile: its conditions follow a schedule that was made for "
                "it; use throttle and link, or a device without a schedule"
            )
        if device in self._faults:
            raise CommandRefusedError(f"{device} is {self._faults[device]}; wait for its end")
        try:
            found = self._at_task(profiles.load(name))
            made = device_spec(device, found.profile, None, self._host_core_speed)
        except ProfileError as exc:
            raise CommandRefusedError(str(exc)) from exc
        emulated = made.dilated(self._dilation).device
        assert emulated is not None
        emulated = structs.replace(emulated, evaluation_speed=found.evaluation_speed)
        new = replace(spec, device=emulated)
        try:
            await self._backend.restart(device, new)
            self._specs[device] = new
            self._base[device] = structs.replace(base, speed_ratio=emulated.speed_ratio)
            await self._backend.apply({device: self._now(device)})
        except BackendError as exc:
            raise CommandRefusedError(str(exc)) from exc
        return f"{device} starts again as {name}; its link stays"

    async def _fault(self, device: str, fault: str, duration_s: float) -> str:
        if fault not in FAULTS:
            raise CommandRefusedError(f"fault: must be one of {', '.join(FAULTS)}, got {fault!r}")
        if not 0.0 < duration_s <= MAX_FAULT_S:
            raise CommandRefusedError(
                f"fault: must last above 0 and at most {MAX_FAULT_S:g} s, got {duration_s:g}"
            )
        if device in self._faults:
            raise CommandRefusedError(f"{device} is {self._faults[device]} already; wait")
        self._faults[device] = fault
        try:
            if fault == KILLED:
                await self._backend.kill(device)
            else:
                await self._change(device, self._with_outage(device, fault))
        except BackendError as exc:
            del self._faults[device]
            raise CommandRefusedError(str(exc)) from exc
        except CommandRefusedError:
            del self._faults[device]
            raise
        self._group.start_soon(self._end_fault, device, duration_s, name=f"run.fault[{device}]")
        return f"{device} is {fault} for {duration_s:g} s"

    async def _end_fault(self, device: str, duration_s: float) -> None:
        await anyio.sleep(duration_s)
        fault = self._faults.pop(device)
        try:
            if fault == KILLED:
                await self._backend.restart(device)
            else:
                await self._change(device, self._with_outage(device, None))
        except (BackendError, CommandRefusedError) as exc:
            self._stop.fail(BackendError(str(exc)))
            return
        if self._stop.coordinator is not None:
            self._stop.coordinator.note("fault", f"{device} is not {fault} any more", device=device)

    def _with_outage(self, device: str, fault: str | None) -> Steered:
        outage = next((kind for kind in get_args(Outage) if kind == fault), None)
        return replace(self._changes.get(device, Steered()), outage=outage)

    async def _change(self, device: str, new: Steered) -> None:
        """Apply a change of an operator; restore the former one if the backend refuses it.

        Raises:
            CommandRefusedError: The backend cannot emulate the conditions.
        """
        before = self._changes.get(device, Steered())
        self._changes[device] = new
        try:
            await self._backend.apply({device: self._now(device)})
        except BackendError as exc:
            self._changes[device] = before
            raise CommandRefusedError(str(exc)) from exc

    def _now(self, device: str) -> Conditions:
        return self._changes.get(device, Steered()).applied_to(self._base[device])
