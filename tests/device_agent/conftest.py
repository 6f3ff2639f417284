"""One agent and one scripted coordinator on a broker in memory."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from fairbed.device_agent.agent import Agent
from fairbed.device_agent.config import AgentConfig, AllowedClient, OwnerPrivacy, Timeouts
from fairbed.device_agent.engines.base import OpenEngine
from fairbed.device_agent.host import Host, UnlimitedPace
from fairbed.device_agent.log import RecentLog
from fairbed.device_agent.sensors import MonotonicClock, RealSensors
from fairbed.wire.topics import Topics
from tests.device_agent.coordinator import FakeCoordinator
from tests.device_agent.softmax import open_softmax
from tests.idle_time import LoopClock
from tests.wire.transport.memory import MemoryBroker

NAME = "pi-07"

QUICK = Timeouts(
    hello_s=0.05, refused_s=0.05, resend_s=0.1, probe_s=5.0, prepare_s=20.0, queue_s=20.0
)
"""Short intervals of retries."""


def real_host_for_tests() -> Host:
    """Return this machine as a host without a speed limit."""
    return Host(clock=MonotonicClock(), pace=UnlimitedPace(), sensors=RealSensors())


@dataclass
class AgentSetup:
    """A broker in memory, the settings of one agent, and a scripted coordinator."""

    folder: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    topics: Topics = field(default_factory=Topics)
    host: Host = field(default_factory=real_host_for_tests)
    open_engine: OpenEngine = open_softmax
    timeouts: Timeouts = QUICK
    data: Path | None = None
    once: bool = False
    base: Path | None = None
    """File with the frozen part of a model, put on the device by hand."""
    local_rules: tuple[str, ...] = ()
    """Paths of local rules that the agent may load."""
    clients: dict[str, AllowedClient] = field(default_factory=dict)
    """Clients that the owner allows, by name."""
    privacy: OwnerPrivacy = field(default_factory=OwnerPrivacy)
    task_key: str | None = None
    """Key of the device; None takes unsigned messages."""
    log: RecentLog | None = None
    """Lines of the agent for the coordinator; None sends none."""
    fault: Exception | None = None
    """Error that ended the agent, if any."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    """The agent has returned."""

    def agent(self) -> Agent:
        """Return a new agent, not running."""
        config = AgentConfig(
            broker_url="mqtt://memory",
            name=NAME,
            task_key=self.task_key,
            data=None if self.data is None else str(self.data),
            cache_folder=str(self.folder / "cache"),
            state_folder=str(self.folder / "state"),
            base=None if self.base is None else str(self.base),
            local_training=self.local_rules,
            clients=self.clients,
            telemetry_s=0.05,
            once=self.once,
            timeouts=self.timeouts,
            privacy=self.privacy,
        )
        is_real = isinstance(self.host.clock, MonotonicClock)
        host = replace(self.host, clock=LoopClock()) if is_real else self.host
        return Agent(
            config,
            host,
            lambda will: self.broker.transport(NAME, will),
            self.open_engine,
            log=self.log,
        )

    def coordinator(self, boot: int = 1) -> FakeCoordinator:
        """Return a new coordinator, not running."""
        return FakeCoordinator(
            self.broker.transport("coordinator"), self.topics, device=NAME, boot=boot
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Agent, FakeCoordinator]]:
        """Run agent and coordinator for the duration of a block."""
        agent = self.agent()
        async with anyio.create_task_group() as group, self.coordinator().running() as coordinator:
            group.start_soon(self._run, agent)
            yield agent, coordinator
            group.cancel_scope.cancel()

    async def _run(self, agent: Agent) -> None:
        try:
            await agent.run()
        except Exception as exc:
            self.fault = exc
        self.ended.set()


RunAgent: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[Agent, FakeCoordinator]]]


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    """Return a setup whose settings a test may change before it runs."""
    return AgentSetup(folder=tmp_path)
