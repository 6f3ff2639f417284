"""The process backend: every device a process that paces itself, behind a shaping proxy.

    this process --+-- nursery ----- agent, agent, ...   (a process and a log file each)
                   +-- proxy-0 ...                       (the links of 50 devices each)

Works without root and on macOS. Nothing outlives this process, however it ends: see
`testbed.guard`, which is also why it has to be used from the main thread.
"""

import math
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from device_agent.config import AgentConfig
from testbed.backends.agents import Agents, open_agents
from testbed.backends.device import DeviceSpec
from testbed.backends.errors import BackendError
from testbed.backends.gauges import STARVED_S, Gauges
from testbed.backends.helper import Ended, OnEnd
from testbed.backends.shaping import shaped_ports
from testbed.emulation.work import WorkCosts
from testbed.launcher import Launch
from testbed.run_folder import GAUGES
from wire.messages import is_device_name
from wire.transport.address import Address, parse_url


class ProcessBackend:
    """Runs a fleet as processes of this machine.

    Args:
        broker_url: Where the broker is.
        fleet: The devices.
        folder: Receives `logs/NAME.log` and `cache/NAME/`.
        tenant: Of the coordinator that the devices serve.
        once: Agents stop when the run is over.
        log_level: Of the agents.
        method: How agents start; auto forks where that is safe, on Linux.
        on_end: Called on the event loop for every process that ends, asked or not.

    Raises:
        BackendError: A name or the broker's address cannot be used.
    """

    def __init__(
        self,
        broker_url: str,
        fleet: Sequence[DeviceSpec],
        folder: Path,
        *,
        tenant: str = "main",
        once: bool = False,
        log_level: Literal["debug", "info", "warning", "error"] = "info",
        method: Literal["auto", "fork", "spawn"] = "auto",
        on_end: OnEnd | None = None,
    ) -> None:
        self._address = _checked(broker_url, fleet)
        self._url = broker_url
        self._fleet = {spec.name: spec for spec in fleet}
        self._folder = folder.absolute()
        self._logs, self._caches = self._folder / "logs", self._folder / "cache"
        self._tenant, self._once, self._log_level = tenant, once, log_level
        self._method = method
        self._on_end: OnEnd = on_end or _ignore
        self._stack = AsyncExitStack()
        self._agents: Agents | None = None
        self._ports: dict[str, int] = {}
        self._costs: WorkCosts | None = None
        self._gauges: Gauges | None = None

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the devices that are alive."""
        return {} if self._agents is None else self._agents.pids

    def starved_s(self, name: str) -> float | None:
        """Return for how long this machine has kept a device waiting; None if it cannot tell."""
        waited_s = math.nan if self._gauges is None else self._gauges[name][STARVED_S]
        return None if math.isnan(waited_s) else waited_s

    def log_file(self, name: str) -> Path:
        """Return where a device's output goes."""
        return self._logs / f"{name}.log"

    async def __aenter__(self) -> "ProcessBackend":
        """Open the links and the nursery; no device runs yet.

        Raises:
            BackendError: The machine refuses a process or a port.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        self._gauges = Gauges(self._folder / GAUGES, self._fleet)
        self._stack.callback((self._folder / GAUGES).unlink, missing_ok=True)
        safe: Literal["fork", "spawn"] = "fork" if sys.platform == "linux" else "spawn"
        method = safe if self._method == "auto" else self._method
        shapes = {
            name: spec.shape
            for name, spec in self._fleet.items()
            if spec.shape is not None and not spec.shape.is_plain
        }
        try:  # in this order: agents say goodbye through their links
            self._ports = await self._stack.enter_async_context(
                shaped_ports(
                    self._address.host,
                    self._address.port,
                    shapes,
                    self._logs / "proxy.log",
                    self._on_end,
                )
            )
            self._agents = await self._stack.enter_async_context(
                open_agents(self._logs / "nursery.log", method, self._on_end)
            )
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End everything: agents politely at first, then all that is left."""
        await self._stack.aclose()

    async def start(self, costs: WorkCosts | None = None) -> None:
        """Start all devices at once; return when every process exists.

        Args:
            costs: What emulated devices are charged for steps; None charges processor time.

        Raises:
            BackendError: The machine refused one, or the nursery is gone.
        """
        self._costs = costs
        await self._running.start([self._launch(name) for name in self._fleet])

    async def kill(self, name: str) -> None:
        """Kill a device as a power cut does; return when it is gone.

        Raises:
            BackendError: The fleet has no such device, or the nursery is gone.
        """
        self._known(name)
        await self._running.end([name], signal.SIGKILL)

    async def restart(self, name: str) -> None:
        """Start a device again, killing it first if it is alive.

        Raises:
            BackendError: The fleet has no such device, or the machine refused it.
        """
        await self.kill(name)
        await self._running.start([self._launch(name)])

    @property
    def _running(self) -> Agents:
        if self._agents is None:
            raise BackendError("backend: must be entered with `async with` before it is used")
        return self._agents

    def _known(self, name: str) -> None:
        if name not in self._fleet:
            raise BackendError(f"{name}: no such device; the fleet is {', '.join(self._fleet)}")

    def _launch(self, name: str) -> Launch:
        device = self._fleet[name].device
        url = self._url
        if name in self._ports:
            url = _moved(url, self._ports[name])
        return Launch(
            agent=AgentConfig(
                broker_url=url,
                name=name,
                tenant=self._tenant,
                cache_folder=str(self._caches / name),
                once=self._once,
                engine_threads=1 if device is None else device.engine_threads,
                log_level=self._log_level,
            ),
            device=device,
            costs=None if device is None else self._costs,
            gauge=None if self._gauges is None else self._gauges.address(name),
            log_file=str(self.log_file(name)),
        )


def _checked(broker_url: str, fleet: Sequence[DeviceSpec]) -> Address:
    for name, count in Counter(spec.name for spec in fleet).items():
        if not is_device_name(name):
            raise BackendError(
                f"fleet: a name must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}; rename it"
            )
        if count > 1:
            raise BackendError(f"fleet: names must differ, got {name!r} {count} times; rename one")
    try:
        address = parse_url(broker_url)
    except ValueError as exc:
        raise BackendError(str(exc)) from exc
    if address.is_tls and any(spec.shape and not spec.shape.is_plain for spec in fleet):
        raise BackendError(
            "broker.url: the process backend cannot shape a TLS link, whose certificate names "
            "another host; use mqtt:// or the embedded broker, or a fleet without links"
        )
    return address


def _moved(url: str, port: int) -> str:
    """Return the address of the proxy on `port`, with the user and password of `url`."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    return f"mqtt://{user}{at}127.0.0.1:{port}"


def _ignore(ended: Ended) -> None:
    pass
