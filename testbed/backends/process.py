"""The process backend: each device is a process that paces itself, behind a shaping proxy.

    this process --+-- fork server ----- agent, agent, ...   (a process and a log file each)
                   +-- proxy-0 ...                           (the links of 50 devices each)

Works without root and on macOS. All processes end with this process, even if it is killed
(`testbed.host.guard`); for that the backend must be used from the main thread.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from anyio.abc import Process

from fairbed.testbed.backends.agent_pool import AgentPool, Site
from fairbed.testbed.backends.agents import Method
from fairbed.testbed.backends.apply_conditions import ConditionApplier, proxy_problem
from fairbed.testbed.backends.base import DeviceSpec, Usage, cells_of
from fairbed.testbed.backends.helper import OnEnd
from fairbed.testbed.backends.proxy.links import ShapedLinks, shaped_links
from fairbed.testbed.backends.proxy.protocol import Shape
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.wire.transport.address import Address, parse_url, redirected


class ProcessBackend:
    """Runs a fleet as processes of this machine.

    Args:
        broker_url: URL of the broker.
        fleet: The devices.
        folder: Receives `logs/NAME.log` and `cache/NAME/`.
        tenant: Tenant of the coordinator.
        passwords: Password of each device at a broker that knows them by name; None: all devices
            take the login of `broker_url`.
        method: How agents start; auto forks on Linux, where that is safe.
        on_end: Called on the event loop for every process that ends, as requested or not.
        seed: Seed of the jitter of links.
        fork_server: One that runs already; None starts one.

    Raises:
        BackendError: A device name, a link or the broker's URL cannot be used.
    """

    def __init__(
        self,
        broker_url: str,
        fleet: Sequence[DeviceSpec],
        folder: Path,
        *,
        tenant: str = "main",
        passwords: Mapping[str, str] | None = None,
        method: Method = "auto",
        on_end: OnEnd | None = None,
        seed: int = 0,
        fork_server: Process | None = None,
    ) -> None:
        self._pool = AgentPool(fleet, folder, tenant=tenant, passwords=passwords, on_end=on_end)
        self._address = _checked(broker_url, fleet)
        self._url = broker_url
        self._method, self._fork_server = method, fork_server
        self._seed = seed
        self._stack = AsyncExitStack()
        self._links: ShapedLinks | None = None
        self._applier: ConditionApplier | None = None

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the devices that are alive."""
        return self._pool.pids

    def contended_s(self, name: str) -> float | None:
        """Return the time for which a device has waited for this machine; None if unknown."""
        return self._pool.contended_s(name)

    def counted(self, name: str) -> Mapping[str, float]:
        """Return what was counted of a device so far, by column of the exchange."""
        return {} if self._links is None else self._links.counted(name)

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of a device since it was started; None if it is not alive."""
        return self._pool.cpu_s(name)

    def path_pids(self, name: str) -> list[int]:
        """Return the process ids of helpers that relay a device's bytes."""
        return [] if self._links is None else self._links.path(name)

    def log_file(self, name: str) -> Path:
        """Return the file that receives the output of a device."""
        return self._pool.log_file(name)

    async def __aenter__(self) -> "ProcessBackend":
        """Open the links and the fork server; no device runs yet.

        Raises:
            BackendError: A process cannot be started, or a port cannot be opened.
        """
        pool, address = self._pool, self._address
        pool.logs.mkdir(parents=True, exist_ok=True)
        shapes = {
            name: spec.shape or Shape() for name, spec in pool.fleet.items() if _has_own_link(spec)
        }
        log = pool.logs / "proxy.log"
        try:  # in this order: on exit agents disconnect through their links
            self._links = await self._stack.enter_async_context(
                shaped_links(
                    address.host,
                    address.port,
                    shapes,
                    log,
                    pool.on_end,
                    self._seed,
                    cells=cells_of(pool.fleet.values()),
                    other_nodes=address.other_nodes,
                )
            )
            agents = pool.open(self._site, self._method, fork_server=self._fork_server)
            await self._stack.enter_async_context(agents)
            self._applier = ConditionApplier(pool, self._links)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the agents by SIGTERM, then kill all remaining processes."""
        await self._stack.aclose()

    async def start(self, costs: WorkCosts | None = None) -> None:
        """Start all devices at once; return when every process exists.

        Args:
            costs: Costs that emulated devices charge for steps; None charges processor time.

        Raises:
            BackendError: A process cannot be started, or the fork server has ended.
        """
        await self._pool.start(costs)

    async def kill(self, name: str) -> None:
        """Kill a device by SIGKILL, as a power cut does; return when it has ended.

        Raises:
            BackendError: The fleet has no such device, or the fork server has ended.
        """
        await self._pool.kill(name)

    async def restart(self, name: str, spec: DeviceSpec | None = None) -> None:
        """Start a device again, as another one if `spec` is given; kill it first if it is alive.

        Raises:
            BackendError: The fleet has no such device, or its process cannot be started.
        """
        await self._pool.restart(name, spec)

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change the given devices to these conditions in one step; leave the others unchanged.

        Raises:
            BackendError: There is no such device, its conditions cannot be emulated (a TCP proxy
                drops no packets), or a helper process has ended.
        """
        if self._applier is None:
            raise BackendError("backend: must be entered with `async with` before it is used")
        await self._applier.apply(conditions)

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
        return Site(self._url if port is None else redirected(self._url, "127.0.0.1", port))


def _has_own_link(spec: DeviceSpec) -> bool:
    return (
        spec.is_driven or bool(spec.cells) or (spec.shape is not None and not spec.shape.is_plain)
    )


def _checked(broker_url: str, fleet: Sequence[DeviceSpec]) -> Address:
    for spec in fleet:
        if (problem := proxy_problem(spec.name, spec.shape or Shape())) is not None:
            raise BackendError(problem)
    try:
        if any(_has_own_link(spec) for spec in fleet):
            redirected(broker_url, "127.0.0.1", 1)
        return parse_url(broker_url)
    except ValueError as exc:
        raise BackendError(str(exc).replace("broker address", "broker.url", 1)) from exc
