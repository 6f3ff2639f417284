"""The process backend: every device a process that paces itself, behind a shaping proxy.

    this process --+-- fork server ----- agent, agent, ...   (a process and a log file each)
                   +-- proxy-0 ...                       (the links of 50 devices each)

Works without root and on macOS. Nothing outlives this process, however it ends: see
`testbed.host.guard`, which is also why it has to be used from the main thread.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

from fairbed.testbed.backends.agent_pool import AgentPool, Method, Site
from fairbed.testbed.backends.apply_conditions import ConditionApplier, loss_problem
from fairbed.testbed.backends.base import DeviceSpec, Usage
from fairbed.testbed.backends.helper import OnEnd
from fairbed.testbed.backends.proxy.links import ShapedLinks, shaped_links
from fairbed.testbed.backends.proxy.protocol import Shape
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.wire.transport.address import Address, parse_url, with_client


class ProcessBackend:
    """Runs a fleet as processes of this machine.

    Args:
        broker_url: Where the broker is.
        fleet: The devices.
        folder: Receives `logs/NAME.log` and `cache/NAME/`.
        tenant: Of the coordinator that the devices serve.
        method: How agents start; auto forks where that is safe, on Linux.
        on_end: Called on the event loop for every process that ends, asked or not.
        seed: Of the jitter of links.

    Raises:
        BackendError: A name, a link or the broker's address cannot be used.
    """

    def __init__(
        self,
        broker_url: str,
        fleet: Sequence[DeviceSpec],
        folder: Path,
        *,
        tenant: str = "main",
        method: Method = "auto",
        on_end: OnEnd | None = None,
        seed: int = 0,
    ) -> None:
        self._pool = AgentPool(fleet, folder, tenant=tenant, on_end=on_end)
        self._address = _checked(broker_url, fleet)
        self._url = broker_url
        self._method = method
        self._seed = seed
        self._stack = AsyncExitStack()
        self._links: ShapedLinks | None = None
        self._live: ConditionApplier | None = None

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the devices that are alive."""
        return self._pool.pids

    def contended_s(self, name: str) -> float | None:
        """Return for how long this machine has kept a device waiting; None if unknown."""
        return self._pool.contended_s(name)

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of a device since it was started; None if it is not alive."""
        return self._pool.cpu_s(name)

    @property
    def path_pids(self) -> list[int]:
        """Helper processes that relay the bytes of devices."""
        return [] if self._links is None else self._links.pids

    def log_file(self, name: str) -> Path:
        """Return where a device's output goes."""
        return self._pool.log_file(name)

    async def __aenter__(self) -> "ProcessBackend":
        """Open the links and the fork server; no device runs yet.

        Raises:
            BackendError: The machine refuses a process or a port.
        """
        pool, address = self._pool, self._address
        pool.logs.mkdir(parents=True, exist_ok=True)
        shapes = {
            name: spec.shape or Shape() for name, spec in pool.fleet.items() if _has_own_link(spec)
        }
        log = pool.logs / "proxy.log"
        try:  # in this order: agents leave through their links
            self._links = await self._stack.enter_async_context(
                shaped_links(address.host, address.port, shapes, log, pool.on_end, self._seed)
            )
            await self._stack.enter_async_context(pool.open(self._site, self._method))
            self._live = ConditionApplier(pool, self._links)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the agents, by SIGTERM at first, then all remaining processes."""
        await self._stack.aclose()

    async def start(self, costs: WorkCosts | None = None) -> None:
        """Start all devices at once; return when every process exists.

        Args:
            costs: What emulated devices are charged for steps; None charges processor time.

        Raises:
            BackendError: The machine refused one, or the fork server is gone.
        """
        await self._pool.start(costs)

    async def kill(self, name: str) -> None:
        """Kill a device as a power cut does; return when it is gone.

        Raises:
            BackendError: The fleet has no such device, or the fork server is gone.
        """
        await self._pool.kill(name)

    async def restart(self, name: str) -> None:
        """Start a device again, killing it first if it is alive.

        Raises:
            BackendError: The fleet has no such device, or the machine refused it.
        """
        await self._pool.restart(name)

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change devices to these conditions, all of them in one go; others stay as they are.

        Raises:
            BackendError: There is no such device, its condition cannot be emulated here (a TCP
                proxy drops no packets), or a helper process is gone.
        """
        if self._live is None:
            raise BackendError("backend: must be entered with `async with` before it is used")
        await self._live.apply(conditions)

    async def sample(self) -> dict[str, Usage]:
        """Return the usage of the devices that are alive."""
        used = {name: self._pool.cpu_s(name) for name in self.pids}
        return {
            name: Usage(
                wall_s=self._pool.uptime_s(name),
                cpu_s=used_s,
                throttled_s=None,
                contended_s=self._pool.contended_s(name),
                down_bytes=None,
                up_bytes=None,
                dropped_packets=None,
            )
            for name, used_s in used.items()
            if used_s is not None
        }

    def _site(self, name: str) -> Site:
        assert self._links is not None
        port = self._links.ports.get(name)
        return Site(self._url if port is None else _moved(self._url, port))


def _has_own_link(spec: DeviceSpec) -> bool:
    return spec.is_driven or (spec.shape is not None and not spec.shape.is_plain)


def _checked(broker_url: str, fleet: Sequence[DeviceSpec]) -> Address:
    for spec in fleet:
        if spec.shape is not None and spec.shape.loss_ratio > 0.0:
            raise BackendError(loss_problem(spec.name, spec.shape.loss_ratio))
    try:
        address = parse_url(broker_url)
    except ValueError as exc:
        raise BackendError(str(exc)) from exc
    if address.is_tls and any(_has_own_link(spec) for spec in fleet):
        raise BackendError(
            "broker.url: the process backend cannot shape a TLS link, whose certificate names "
            "another host; use mqtt:// or the embedded broker, or a fleet without links"
        )
    return address


def _moved(url: str, port: int) -> str:
    """Return the address of the proxy on `port`, and the other parts of `url`."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    return with_client(f"mqtt://{user}{at}127.0.0.1:{port}", parse_url(url).client)
