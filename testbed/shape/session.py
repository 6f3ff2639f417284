"""Runs one command on one device: opens the device, runs the command, makes the report.

If the device cannot be opened, `diagnose` finds the reason.
"""

import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.to_thread import run_sync

from fairbed.testbed.backends.cgroups.fleet import try_groups
from fairbed.testbed.backends.network.probe import probe
from fairbed.testbed.backends.schedule_driver import ScheduleDriver
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.threads import THREAD_VARIABLES
from fairbed.testbed.shape.cleanup_watchdog import MARK_VARIABLE, watched
from fairbed.testbed.shape.command import ShapedProcess
from fairbed.testbed.shape.device import NAME, ShapedDevice, open_device, open_paced
from fairbed.testbed.shape.enter import EntrySpec, entry_argv
from fairbed.testbed.shape.pacer import DEATH_S, Pacer
from fairbed.testbed.shape.plan import ShapePlan
from fairbed.testbed.shape.report import ShapeReport, make_report
from fairbed.testbed.shape.signals import Signals


async def diagnose(plan: ShapePlan) -> str | None:
    """Return why this machine cannot emulate the device, and what to do; None if no cause is found.

    The result is one line.
    """
    if os.geteuid() != 0:
        return (
            f"needs root, got user id {os.geteuid()}; use sudo, or --backend process, which "
            "emulates the processor only"
        )
    if plan.has_link:
        support = await probe()
        if support.problem is not None:
            return without_backend_advice(support.problem)
        if plan.is_delayed and support.delay_problem is not None:
            return support.delay_problem
    if plan.is_limited:
        try:
            await run_sync(try_groups)
        except BackendError as exc:
            return without_backend_advice(str(exc))
    return None


def without_backend_advice(problem: str) -> str:
    """Return a problem without the advice to choose another backend, which does not apply here."""
    first, *advice = problem.split("; ")
    kept = [part.partition(", or use ")[0] for part in advice]
    kept = [part for part in kept if "backend" not in part]
    return "; ".join([first, *(kept or ["be root of this machine"])])


HUB_VARIABLE = "FAIRBED_HUB"
"""Environment variable with the address of this machine across the emulated link."""


@dataclass(frozen=True, slots=True)
class ShapedCommand:
    """The command to run."""

    argv: Sequence[str]
    folder: str
    """Working folder."""
    user: str | None
    """None is the current user."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a session; at least one of the first three fields is set."""

    wait_status: int | None = None
    """Status of the command in the form of `os.waitpid`."""
    interrupted_by: int | None = None
    """Signal that arrived before the command was started."""
    problem: BackendError | None = None
    """Why the device failed."""
    report: ShapeReport | None = None
    """None if the command did not run."""
    has_begun: bool = False
    """Whether the command was started."""


class ShapeSession:
    """Runs one command on one device; `run` it once.

    Args:
        plan: The device.
        command: The command.
        signals: The queue of signals, opened before any thread was started.
    """

    def __init__(self, plan: ShapePlan, command: ShapedCommand, signals: Signals) -> None:
        self._plan, self._command, self._signals = plan, command, signals
        self._process = ShapedProcess(signals)
        self._environ = dict(os.environ)
        self._problem: BackendError | None = None
        self._status: int | None = None
        self._report: ShapeReport | None = None

    async def run(self) -> Outcome:
        """Open the device, run the command, close the device."""
        async with anyio.create_task_group() as group:
            group.start_soon(
                self._process.forward_signals, group.cancel_scope, name="shape.signals"
            )
            try:
                async with self._open() as device:
                    await self._run_command(device)
            except BackendError as exc:
                self._problem = self._problem or await self._diagnosed(exc)
            group.cancel_scope.cancel()
        return Outcome(
            wait_status=self._status,
            interrupted_by=self._process.interrupted_by,
            problem=self._problem,
            report=self._report,
            has_begun=self._process.has_begun,
        )

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ShapedDevice]:
        if not self._plan.is_paced:
            async with watched(), open_device(self._plan) as device:
                yield device
            return
        mark = secrets.token_hex(8)
        self._environ[MARK_VARIABLE] = mark
        async with watched(mark) as watcher, open_paced(self._plan, [watcher]) as device:
            self._process.pacer = device.pacer
            yield device

    async def _diagnosed(self, problem: BackendError) -> BackendError:
        if self._process.has_begun:
            return problem
        found = await diagnose(self._plan)
        return problem if found is None else BackendError(found)

    async def _run_command(self, device: ShapedDevice) -> None:
        argv = entry_argv(
            EntrySpec(
                sandbox=device.sandbox,
                folder=self._command.folder,
                user=self._command.user,
                blocked=tuple(self._signals.mask),
            ),
            self._command.argv,
        )
        self._prepare_environ(device)
        device.begin(self._process.start(argv, self._environ))
        try:
            async with anyio.create_task_group() as group:
                if device.pacer is not None:
                    stop_waiting = group.cancel_scope.cancel
                    group.start_soon(self._pace, device.pacer, stop_waiting, name="shape.pacer")
                if not self._plan.is_steady:
                    group.start_soon(self._drive, device, name="shape.driver")
                if device.group is not None:
                    group.start_soon(self._watch, device, name="shape.watch")
                self._status = await self._process.wait()
                group.cancel_scope.cancel()
        finally:
            self._process.kill()
        if self._status is None:
            return
        self._report = await self._make_report(device, self._status)

    async def _drive(self, device: ShapedDevice) -> None:
        """Apply the schedule of the device; kill the command if that fails."""
        try:
            await ScheduleDriver(device, {NAME: self._plan.follower}).run()
        except BackendError as exc:
            self._problem = exc
            self._process.kill()

    async def _watch(self, device: ShapedDevice) -> None:
        """Watch the device; kill the command if its limits have been removed."""
        try:
            await device.watch()
        except BackendError as exc:
            self._problem = exc
            self._process.kill()

    async def _pace(self, pacer: Pacer, stop_waiting: Callable[[], None]) -> None:
        """Pace the command; kill it if that fails.

        A process that cannot be stopped may be impossible to kill, so the wait for its end is
        bounded.
        """
        try:
            await pacer.run()
        except BackendError as exc:
            self._problem = exc
            self._process.kill()
            await anyio.sleep(DEATH_S)
            stop_waiting()

    async def _make_report(self, device: ShapedDevice, status: int) -> ShapeReport:
        return make_report(
            list(self._command.argv),
            shell_status(status),
            self._plan.memory_bytes,
            device.configured(),
            await device.received(),
        )

    def _prepare_environ(self, device: ShapedDevice) -> None:
        self._environ[HUB_VARIABLE] = device.hub_address
        if self._plan.threads is not None:
            for name in THREAD_VARIABLES:
                self._environ.setdefault(name, str(self._plan.threads))


def shell_status(wait_status: int) -> int:
    """Return the exit status as in a shell: 128 + n if signal n killed the command."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code
