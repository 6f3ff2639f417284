"""A whole run in one process: the real coordinator, real agents, a broker in memory."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import anyio
import numpy as np
from anyio.abc import TaskGroup
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import (
    AggregationConfig,
    CoordinatorConfig,
    EvaluationConfig,
    ModelConfig,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
)
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.ports import DeviceControl, HostServices, Places, Score
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.server.service import Coordinator, End, LinkSetup, TrainingSetup
from fairbed.coordinator.state.memory import Fitting
from fairbed.coordinator.store import NewRun, RunReader, Store
from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent.agent import Agent
from fairbed.device_agent.config import AgentConfig, AllowedClient, OwnerPrivacy, Timeouts
from fairbed.device_agent.errors import AgentRefused
from fairbed.device_agent.host import Host
from fairbed.device_agent.sensors import real_host
from fairbed.wire.artifact import Artifact, initial_vector
from fairbed.wire.evaluation import Quality
from fairbed.wire.messages import MAX_CHUNK_BYTES, OperatorAnswer, OperatorCommand
from fairbed.wire.shard import Shard, make_shard
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Transport, Will
from tests.idle_time import LoopClock
from tests.wire.transport.memory import MemoryBroker

ARTIFACT = load_task("softmax", (60,), 10)
EXAMPLES = 40

NAMES = ("pi-0", "pi-1", "pi-2")
WHOLE_FLEET = SelectionConfig(policy="uniform", per_round=len(NAMES))
PATIENT = RoundConfig(min_devices=len(NAMES), deadline_s=30.0, join_timeout_s=30.0)
"""For runs whose results must be equal under any fault: no device is missing or late."""


@dataclass
class Shards:
    """Random data, for at most `limit` devices."""

    limit: int = 100
    width: int = 60
    """Features of an example."""
    given: list[str] = field(default_factory=list)
    held_out: int = 0
    """Held-out examples of a device."""

    def shard(self, device: str) -> Shard | None:
        if device not in self.given:
            if len(self.given) == self.limit:
                return None
            self.given.append(device)
        rng = np.random.default_rng(self.given.index(device))
        x = rng.standard_normal((EXAMPLES + self.held_out, self.width)).astype(np.float32)
        y = np.argmax(x[:, :10], axis=1)
        shard = make_shard(x[:EXAMPLES], y[:EXAMPLES])
        if not self.held_out:
            return shard
        return structs.replace(shard, held_out=make_shard(x[EXAMPLES:], y[EXAMPLES:]))


class NormEvaluator:
    """Scores a model by a number that depends on the model only."""

    def __init__(self) -> None:
        self.calls = 0

    def evaluate(self, vector: Vector) -> Mapping[str, Score]:
        self.calls += 1
        return {
            "pi-0": Score(n=10, quality=Quality(correct=7), loss_sum=float(np.abs(vector).sum()))
        }

    def test(self, vector: Vector) -> Score:
        return Score(n=100, quality=Quality(correct=61), loss_sum=100.0)


def make_config(rounds: int = 3, devices: int = 3, **sections: object) -> CoordinatorConfig:
    """A short run over a small fleet."""
    defaults: dict[str, object] = {
        "model": ModelConfig(name="softmax"),
        "training": TrainingConfig(),
        "selection": SelectionConfig(per_round=2, beta=0.3),
        "aggregation": AggregationConfig(),
        "round": RoundConfig(min_devices=devices, deadline_s=30.0, join_timeout_s=30.0),
        "evaluation": EvaluationConfig(),
    }
    return CoordinatorConfig(
        name="lab",
        seed_init=1,
        seed_selection=2,
        seed_training=3,
        rounds=rounds,
        **(defaults | sections),  # type: ignore[arg-type]
    )


class Links(Protocol):
    """A source of links for agents and coordinators: a broker in memory, or a real one."""

    def transport(self, client_id: str, will: Will | None = None) -> Transport:
        """Return a client's link."""
        ...

    def disconnect(self, client_id: str, *, reconnects: bool = True) -> None:
        """Break a client's link without a goodbye."""
        ...


class Lab:
    """Broker, agents and coordinators of one test."""

    def __init__(self, folder: Path, group: TaskGroup, links: Links, artifact: Artifact) -> None:
        self.folder = folder
        self.artifact = artifact
        self.max_chunk_bytes = MAX_CHUNK_BYTES
        self.links = links
        self.device_names: Sequence[str] = ()
        self.local_rules: tuple[str, ...] = ()
        """Paths of local rules that agents may load."""
        self.models: tuple[str, ...] = ()
        """Python modules with torch models that agents may import."""
        self.clients: dict[str, AllowedClient] = {}
        """Clients that agents may run."""
        self.setup: dict[str, Any] = {}
        """Further parts of the setup of a coordinator, or others in their place."""
        self.shards = Shards(width=artifact.spec.x_shape[0])
        self.has_shards = True
        self.places: Places | None = None
        self.evaluator = NormEvaluator()
        self.has_evaluator = True
        self.progress: list[RoundProgress] = []
        self.waiting: list[str] = []
        """Reports of the wait for round 1."""
        self.audited: list[tuple[OperatorCommand, str, OperatorAnswer]] = []
        """Commands, their operators and the answers."""
        self.watched = 0
        """Requests of viewers."""
        self.devices: DeviceControl | None = None
        self.task_keys: dict[str, str] = {}
        """Of devices that take signed messages only, as the coordinator knows them."""
        self.former: dict[str, list[str]] = {}
        """Former names of renamed devices."""
        self.refused: dict[str, str] = {}
        self.on_progress: Callable[[RoundProgress], None] = lambda progress: None
        self._group = group
        self._agents: dict[str, anyio.CancelScope] = {}
        self._boots = 0
        self.fitting: Fitting | None = None

    @property
    def broker(self) -> MemoryBroker:
        """The broker in memory."""
        assert isinstance(self.links, MemoryBroker)
        return self.links

    def start_agent(
        self,
        name: str,
        data: Path | None = None,
        host: Host | None = None,
        min_noise_multiplier: float = 0.0,
        task_key: str | None = None,
    ) -> None:
        """Start a real agent on its own cache, on this machine or on another host."""
        config = AgentConfig(
            broker_url="mqtt://memory",
            name=name,
            task_key=task_key,
            cache_folder=str(self.folder / name),
            state_folder=str(self.folder / f"{name}-state"),
            data=None if data is None else str(data),
            local_training=self.local_rules,
            allow_models=self.models,
            clients=self.clients,
            privacy=OwnerPrivacy(min_noise_multiplier=min_noise_multiplier),
            timeouts=Timeouts(hello_s=0.5, resend_s=0.5),
        )
        here = replace(host or real_host(), clock=LoopClock())
        agent = Agent(config, here, lambda will: self.links.transport(name, will))
        self._agents[name] = anyio.CancelScope()
        self._group.start_soon(self._run_agent, name, agent)

    def kill_agent(self, name: str) -> None:
        """Kill an agent, without a goodbye."""
        self.links.disconnect(name, reconnects=False)
        self._agents[name].cancel()

    def on_watch(self) -> None:
        self.watched += 1

    def coordinator(
        self,
        config: CoordinatorConfig,
        store: Store,
        attempt: int = 0,
        client_id: str = "coordinator",
    ) -> Coordinator:
        """Return a coordinator over this broker."""
        self._boots += 1
        parts: dict[str, Any] = {
            "config": config,
            "artifact": self.artifact,
            "vector": initial_vector(self.artifact.spec, config.seed_init),
            "decisions": make_decisions(config),
            "attempt": attempt,
            "device_names": self.device_names,
            "fitting": self.fitting,
        }
        setup = TrainingSetup(**(parts | self.setup))
        link = LinkSetup(
            transport=lambda will: self.links.transport(client_id, will),
            topics=Topics(),
            boot=self._boots,
            max_chunk_bytes=self.max_chunk_bytes,
        )
        ports = HostServices(
            shards=self.shards if self.has_shards else None,
            places=self.places,
            evaluator=self.evaluator if self.has_evaluator else None,
            audit=lambda *noted: self.audited.append(noted),
            on_watch=self.on_watch,
            devices=self.devices,
            task_key_of=self.task_keys.get,
            earlier_names=lambda name: self.former.get(name, []),
        )
        return Coordinator(
            setup,
            link,
            store,
            ports,
            on_progress=self._on_progress,
            on_waiting=self.waiting.append,
            now=LoopClock().now,
        )

    def open_store(self, name: str = "run", run_id: str = "lab") -> Store:
        """Create a run's store, or reopen it, as if it had been stopped if it is done."""
        run = self.folder / name
        if (run / "run.db").exists():
            with closing(sqlite3.connect(run / "run.db")) as connection:
                connection.execute("UPDATE run SET status = 'stopped' WHERE status = 'done'")
                connection.commit()
            return Store.reopen(run)
        return Store.create(
            run,
            NewRun(
                run_id=run_id,
                name="lab",
                experiment_toml="",
                seed=1,
                config_hash="",
                version="0",
            ),
        )

    async def run(self, config: CoordinatorConfig) -> End:
        """Run an experiment to its end."""
        store = self.open_store()
        try:
            end = await self.coordinator(config, store).run()
            store.set_status(end)
            return end
        finally:
            store.close()

    def reader(self) -> RunReader:
        """Return a reader of the run."""
        return RunReader(self.folder / "run")

    def _on_progress(self, progress: RoundProgress) -> None:
        self.progress.append(progress)
        self.on_progress(progress)

    async def _run_agent(self, name: str, agent: Agent) -> None:
        with self._agents[name]:
            try:
                await agent.run()
            except AgentRefused as exc:
                self.refused[name] = str(exc)


@asynccontextmanager
async def lab(
    folder: Path,
    agents: int = 3,
    limit_s: float = 60.0,
    broker: Links | None = None,
    artifact: Artifact = ARTIFACT,
    local_rules: tuple[str, ...] = (),
) -> AsyncIterator[Lab]:
    """Yield a lab with agents pi-0, pi-1, ...; it ends after `limit_s` at the latest."""
    with anyio.fail_after(limit_s):
        async with anyio.create_task_group() as group:
            place = Lab(folder, group, broker or MemoryBroker(), artifact)
            place.local_rules = local_rules
            for i in range(agents):
                place.start_agent(f"pi-{i}")
            yield place
            group.cancel_scope.cancel()
