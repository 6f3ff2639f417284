"""The agents of a fleet on this machine: the part that all backends share.

A backend provides the `Site` of each device. `AgentPool` starts, kills and restarts agents there,
and keeps their logs and gauges. An `AgentLauncher`, which is a fork server or a container engine,
creates the processes.

`Freezer` stops devices on purpose, by SIGSTOP and SIGCONT. The clock continues for a stopped
process, so its gauge counts the frozen time, which the device does not count as lateness.
"""

import math
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from anyio.abc import Process

from fairbed.device_agent.config import AgentConfig
from fairbed.testbed.backends.agents import Method, open_agents, warm_fork_server
from fairbed.testbed.backends.base import DeviceSpec
from fairbed.testbed.backends.cpu_time import cpu_s
from fairbed.testbed.backends.gauges import CONTENDED_S, FROZEN_S, Gauges
from fairbed.testbed.backends.helper import HelperEnded, OnEnd
from fairbed.testbed.backends.launcher import Launch
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.testbed.run_folder import GAUGES
from fairbed.wire.messages import is_device_name
from fairbed.wire.transport.address import with_login

SHARED_BASES = ".bases"
"""Folder with one file of each frozen part of a model, to which the devices of this machine keep
links; no device has this name."""


class AgentLauncher(Protocol):
    """Starts and ends agent processes; satisfied by `AgentProcesses` and by `Containers`."""

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the agents that are alive."""
        ...

    async def start(self, launches: Sequence[Launch]) -> None:
        """Start agents, all at once; return when every process exists."""
        ...

    async def end(self, names: Iterable[str], number: int) -> None:
        """Send a signal to the agents that are alive; return when they have ended."""
        ...

    async def signal(self, names: Iterable[str], number: int) -> None:
        """Send a signal to the agents that are alive; return at once."""
        ...


class Freezer:
    """Freezes and thaws devices."""

    def __init__(self, agents: AgentLauncher, gauges: Gauges) -> None:
        self._agents, self._gauges = agents, gauges
        self._frozen_at: dict[str, float] = {}

    async def freeze(self, names: Iterable[str]) -> None:
        """Stop devices; skip those that are not alive or already stopped.

        Raises:
            BackendError: The fork server has ended.
        """
        alive = self._agents.pids
        freezing = [name for name in names if name in alive and name not in self._frozen_at]
        self._frozen_at.update(dict.fromkeys(freezing, time.monotonic()))
        await self._agents.signal(freezing, signal.SIGSTOP)

    async def thaw(self, names: Iterable[str]) -> None:
        """Continue stopped devices; skip the others.

        Raises:
            BackendError: The fork server has ended.
        """
        now = time.monotonic()
        thawing = [name for name in names if name in self._frozen_at]
        for name in thawing:  # before SIGCONT, as the devices then read the clock
            self._gauges[name][FROZEN_S] += now - self._frozen_at.pop(name)
        await self._agents.signal(thawing, signal.SIGCONT)

    async def thaw_all(self) -> None:
        """Continue all stopped devices.

        Raises:
            BackendError: The fork server has ended.
        """
        await self.thaw(list(self._frozen_at))


@dataclass(frozen=True, slots=True)
class Site:
    """The broker address and the sandbox of one device."""

    broker_url: str
    """The URL at which the device reaches the broker."""
    sandbox: Sandbox | None = None
    """None is the namespace and control groups of this process."""


class AgentPool:
    """The agents of a fleet; use it inside `open`.

    Args:
        fleet: The devices.
        folder: Receives `logs/NAME.log` and `cache/NAME/`.
        tenant: Tenant of the coordinator.
        passwords: Password of each device at a broker that knows them by name; None: all devices
            take the login of their site.
        on_end: Called on the event loop for every process that ends, as requested or not.

    Raises:
        BackendError: A device name is invalid or occurs twice.
    """

    def __init__(
        self,
        fleet: Sequence[DeviceSpec],
        folder: Path,
        *,
        tenant: str = "main",
        passwords: Mapping[str, str] | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        _check_names(fleet)
        self.fleet = {spec.name: spec for spec in fleet}
        self.logs = folder.absolute() / "logs"
        self.on_end: OnEnd = on_end or _ignore
        self.folder = folder.absolute()
        self._tenant, self._passwords = tenant, passwords
        self._agents: AgentLauncher | None = None
        self._gauges: Gauges | None = None
        self._freezer: Freezer | None = None
        self._started_at: dict[str, float] = {}
        self._site: Callable[[str], Site] | None = None
        self._costs: WorkCosts | None = None

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the agents that are alive."""
        return {} if self._agents is None else self._agents.pids

    @property
    def agents(self) -> AgentLauncher:
        """The launcher of the agents' processes.

        Raises:
            BackendError: The pool is not open.
        """
        if self._agents is None:
            raise BackendError("backend: must be entered with `async with` before it is used")
        return self._agents

    @property
    def gauges(self) -> Gauges:
        """The numbers that are shared with the agents.

        Raises:
            BackendError: The pool is not open.
        """
        if self._gauges is None:
            raise BackendError("backend: must be entered with `async with` before it is used")
        return self._gauges

    @property
    def freezer(self) -> Freezer:
        """The freezer of the agents.

        Raises:
            BackendError: The pool is not open.
        """
        if self._freezer is None:
            raise BackendError("backend: must be entered with `async with` before it is used")
        return self._freezer

    def uptime_s(self, name: str) -> float:
        """Return the seconds since an agent was started; 0 before that."""
        now = time.monotonic()
        return now - self._started_at.get(name, now)

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of an agent since it was started; None if it is not alive."""
        pid = self.pids.get(name)
        return None if pid is None else cpu_s(pid)

    def contended_s(self, name: str) -> float | None:
        """Return the time for which a device has waited for this machine; None if unknown."""
        waited_s = math.nan if self._gauges is None else self._gauges[name][CONTENDED_S]
        return None if math.isnan(waited_s) else waited_s

    def log_file(self, name: str) -> Path:
        """Return the file that receives the output of a device."""
        return self.logs / f"{name}.log"

    @asynccontextmanager
    async def open(
        self,
        site: Callable[[str], Site],
        method: Method = "auto",
        launcher: AbstractAsyncContextManager[AgentLauncher] | None = None,
        fork_server: Process | None = None,
    ) -> AsyncIterator[None]:
        """Open the launcher; leaving ends all agents, by SIGTERM, then by SIGKILL.

        Args:
            site: Returns the site of a device; called at every start of the device.
            method: How a new fork server starts agents.
            launcher: Starts the processes; None is a fork server.
            fork_server: One that runs already; None starts one.

        Raises:
            BackendError: A process cannot be started.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        self._site = site
        self._gauges = Gauges(self.folder / GAUGES, self.fleet)
        async with AsyncExitStack() as stack:
            stack.callback((self.folder / GAUGES).unlink, missing_ok=True)
            if launcher is None:
                if fork_server is None:
                    warm = warm_fork_server(self.logs, method)
                    fork_server = await stack.enter_async_context(warm)
                launcher = open_agents(fork_server, self.on_end)
            async with launcher as self._agents:
                self._freezer = Freezer(self._agents, self._gauges)
                try:
                    yield
                finally:  # a stopped agent cannot handle SIGTERM
                    with suppress(BackendError):
                        await self._freezer.thaw_all()

    async def start(self, costs: WorkCosts | None) -> None:
        """Start all agents at once; return when every process exists.

        Raises:
            BackendError: A process cannot be started, or the fork server has ended.
        """
        self._costs = costs
        await self._start(list(self.fleet))

    async def kill(self, name: str) -> None:
        """Kill an agent by SIGKILL, as a power cut does; return when it has ended.

        Raises:
            BackendError: The fleet has no such device, or the fork server has ended.
        """
        self.spec(name)
        await self.freezer.thaw([name])
        await self.agents.end([name], signal.SIGKILL)

    async def restart(self, name: str, spec: DeviceSpec | None = None) -> None:
        """Start an agent again, on another device if `spec` is given; kill it first if it is alive.

        Raises:
            BackendError: The fleet has no such device, or its process cannot be started.
        """
        await self.kill(name)
        if spec is not None:
            self.fleet[name] = spec
        await self._start([name])

    def spec(self, name: str) -> DeviceSpec:
        """Return the device of this name.

        Raises:
            BackendError: The fleet has no such device.
        """
        if name not in self.fleet:
            raise BackendError(f"{name}: no such device; the fleet has {', '.join(self.fleet)}")
        return self.fleet[name]

    async def _start(self, names: Sequence[str]) -> None:
        self._started_at.update(dict.fromkeys(names, time.monotonic()))
        await self.agents.start([self._launch(name) for name in names])

    def _launch(self, name: str) -> Launch:
        assert self._site is not None
        spec, site = self.fleet[name], self._site(name)
        url = site.broker_url
        device = spec.device
        if self._passwords is not None:
            url = with_login(url, name, self._passwords[name])
        return Launch(
            agent=AgentConfig(
                broker_url=url,
                name=name,
                tenant=self._tenant,
                cache_folder=str(self.folder / "cache" / name),
                base_links=str(self.folder / "cache" / SHARED_BASES),
                state_folder=str(self.folder / "state" / name),
                engine_threads=1 if device is None else device.engine_threads,
                local_training=spec.local_rules,
                allow_models=spec.models,
                clients=dict(spec.clients),
            ),
            device=device,
            attack=spec.attack,
            costs=None if device is None else self._costs,
            gauge=self.gauges.address(name),
            sandbox=site.sandbox,
            client_server=spec.client_server,
            log_file=str(self.log_file(name)),
        )


def _check_names(fleet: Sequence[DeviceSpec]) -> None:
    for name, count in Counter(spec.name for spec in fleet).items():
        if not is_device_name(name):
            raise BackendError(
                f"fleet: a name must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}; rename it"
            )
        if count > 1:
            raise BackendError(f"fleet: names must differ, got {name!r} {count} times; rename one")


def _ignore(ended: HelperEnded) -> None:
    pass
