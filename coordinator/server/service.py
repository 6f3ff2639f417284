"""The coordinator's shell: one task group, one inbox, one campaign.

It carries out what the tables and the decisions say, and contains no decision of its own.
"""

import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import anyio
from anyio.abc import TaskGroup

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.fleet.uploads import Uploads
from fairbed.coordinator.messaging.blobs import PrivateBlobs, PublicBlobs, SideTraffic
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.ports import Evaluator, HostWatch, ShardSource
from fairbed.coordinator.rounds.executor import RoundExecutor
from fairbed.coordinator.rounds.loop import RoundProgress, TrainingLoop
from fairbed.coordinator.rounds.loop_lag import LagMeter
from fairbed.coordinator.rounds.loss_query import LossQueryExecutor
from fairbed.coordinator.server.lease import CoordinatorLease
from fairbed.coordinator.server.operator_commands import OperatorCommands
from fairbed.coordinator.server.router import Router
from fairbed.coordinator.state.registry import Registry, why_gone
from fairbed.coordinator.store import Store, StoreError
from fairbed.coordinator.store.event_log import EventLog, Level
from fairbed.wire.artifact import Artifact, encode_artifact
from fairbed.wire.chunks import DEFAULT_CHUNK_BYTES, manifest_of
from fairbed.wire.codec import encode
from fairbed.wire.errors import Refused
from fairbed.wire.messages import MAX_CHUNK_BYTES, CoordinatorStatus, Goodbye
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet, Transport, Will

FAREWELL_S = 5.0
"""How long saying goodbye and clearing the broker may take."""

PRESENCE_S = 0.5
"""Time between looks for devices that vanished in the middle of a round."""

End: TypeAlias = Literal["done", "failed", "stopped"]


class Coordinator:
    """Runs one experiment over one transport, from the first round or from a checkpoint."""

    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        artifact: Artifact,
        vector: Vector,
        decisions: Decisions,
        store: Store,
        shards: ShardSource,
        evaluator: Evaluator | None,
        watch: HostWatch | None = None,
        transport: Callable[[Will], Transport],
        topics: Topics,
        boot: int,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
        attempt: int = 0,
        roster: Sequence[str] = (),
        listener: Callable[[RoundProgress], None] = lambda progress: None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._artifact = artifact
        self._store = store
        self._shards = shards
        self._evaluator = evaluator
        self._host_watch = watch
        self._topics = topics
        self._boot = boot
        self._max_chunk_bytes = max_chunk_bytes
        self._attempt = attempt
        self._roster = roster
        self._listener = listener
        self._vector = vector
        self._decisions = decisions
        self._journal = EventLog(store, now, self._fail)
        self._lag = LagMeter(now)
        gone = CoordinatorStatus(state="off", boot=boot, run=config.name)
        self._transport = transport(Will(topics.coordinator, encode(gone)))
        self._claim = CoordinatorLease(self._transport, topics, boot, on_lost=self._fail)
        self._scope = anyio.CancelScope()
        self._is_stopped = False
        self._failure: Exception | None = None
        self._link_up_since: float | None = None

    async def run(self) -> End:
        """Play the experiment to its end; return how it ended.

        Raises:
            AnotherCoordinatorError: The topic tree is another coordinator's.
            FleetMissingError: Too few devices joined in time.
            StoreError: The run cannot be written down any more.
            Refused: The broker refused us.
        """
        async with self._transport, anyio.create_task_group() as group:
            post = Publisher(self._transport, self._topics)
            public = PublicBlobs(self._transport, self._topics, self._boot)
            with self._scope:
                await self._serve(group, post, public)
            if self._claim.give_up():
                with anyio.move_on_after(FAREWELL_S, shield=True):
                    await self._farewell(post, public)
            group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return "stopped" if self._is_stopped else "done"

    def note(self, kind: str, text: str, level: Level = "info", device: str | None = None) -> None:
        """Write down what the testbed noticed."""
        self._journal.event(kind, text, level=level, device=device)

    def stop(self) -> None:
        """End the run now; its open round is given up."""
        self._is_stopped = True
        self._scope.cancel()

    def _fail(self, why: Exception) -> None:
        """End the run now: it cannot go on."""
        self._failure = self._failure or why
        self._scope.cancel()

    async def _serve(self, group: TaskGroup, post: Publisher, public: PublicBlobs) -> None:
        traffic = SideTraffic()
        private = PrivateBlobs(self._transport, self._topics, traffic)
        task = encode_artifact(self._artifact)
        task_manifest = manifest_of(task, "task", min(DEFAULT_CHUNK_BYTES, self._max_chunk_bytes))
        fleet = Fleet(
            Registry(),
            post,
            private,
            self._shards,
            self._journal,
            traffic,
            task=task_manifest,
            boot=self._boot,
            exchange=self._config.exchange,
            max_chunk_bytes=self._max_chunk_bytes,
        )
        uploads = Uploads(self._artifact.spec.layout, self._journal.now)
        player = RoundExecutor(post, uploads, self._journal, group, self._host_watch)
        asker = LossQueryExecutor(post, self._journal)
        checkpoint = self._store.last_checkpoint()
        campaign = TrainingLoop(
            self._config,
            self._artifact.spec,
            self._vector if checkpoint is None else checkpoint.model,
            self._decisions,
            fleet,
            player=player,
            asker=asker,
            public=public,
            journal=self._journal,
            lag=self._lag,
            traffic=traffic,
            evaluator=self._evaluator,
            listener=self._listener,
            attempt=self._attempt,
            max_chunk_bytes=self._max_chunk_bytes,
        )
        first_round = 1
        if checkpoint is not None:
            with self._store.restoring():
                campaign.restore(checkpoint.state)
            first_round = checkpoint.round + 1
            self._journal.event("resumed", f"goes on with round {first_round}")
        fleet.registry.expect(self._roster)
        inbox = Router(
            self._topics,
            fleet,
            player,
            asker,
            public,
            private,
            self._journal,
            group,
            OperatorCommands(campaign, player, fleet.registry, self._journal, self.stop).on_command,
        )
        group.start_soon(self._pump, group, inbox, post, public, name="coordinator.pump")
        group.start_soon(self._insist, post, public, name="coordinator.lease")
        group.start_soon(self._lag.run, name="coordinator.loop_lag")
        group.start_soon(player.keep_time, name="coordinator.deadlines")
        group.start_soon(self._watch, (player, asker), fleet.registry, name="coordinator.presence")
        try:
            # Until the tree is ours nothing is written to it, and nobody is answered.
            await self._claim.take()
            await inbox.subscribe(self._transport)
            await self._on_link_up(post, public)
            await public.publish(task_manifest, task)
            self._store.set_status("running")
            await campaign.run(first_round)
        except Exception as exc:  # whatever it is, the broker is left clean
            self._fail(exc)

    async def _pump(
        self, group: TaskGroup, inbox: Router, post: Publisher, public: PublicBlobs
    ) -> None:
        try:
            async for event in self._transport.events():
                match event:
                    case Packet() if event.topic == self._topics.coordinator:
                        self._claim.on_packet(event)
                    case Packet():
                        inbox.on_packet(event)
                    case LinkUp(count=count):
                        self._link_up_since = self._journal.now()
                        inbox.on_link_up()
                        self._claim.on_link_up()
                        if count > 1:
                            self._journal.event("reconnected", "the broker is back")
                        if self._claim.is_ours:
                            group.start_soon(self._on_link_up, post, public)
                    case LinkDown(reason=reason):
                        self._link_up_since = None
                        inbox.on_link_down()
                        self._journal.event("disconnected", reason, level="warning")
        except (Refused, StoreError) as exc:
            self._fail(exc)

    async def _on_link_up(self, post: Publisher, public: PublicBlobs) -> None:
        await public.on_link_up()
        await self._say_on(post)

    async def _say_on(self, post: Publisher) -> None:
        if self._claim.is_ours:
            on = CoordinatorStatus(state="on", boot=self._boot, run=self._config.name)
            await post.announce(on)

    async def _insist(self, post: Publisher, public: PublicBlobs) -> None:
        """Say that we are on, whenever somebody asks or another status hides it."""
        while True:
            if await self._claim.doubted():
                await public.on_link_up()
            await self._say_on(post)

    async def _watch(
        self, waiting: Sequence[RoundExecutor | LossQueryExecutor], registry: Registry
    ) -> None:
        while True:
            await anyio.sleep(PRESENCE_S)
            up_since = self._link_up_since
            if up_since is None:
                continue
            for who in waiting:
                for name in who.open_devices():
                    why = why_gone(registry[name], up_since, self._journal.now())
                    if why is not None:
                        who.vanish(name, why)

    async def _farewell(self, post: Publisher, public: PublicBlobs) -> None:
        await post.tell_all(Goodbye(reason="the run is over"))
        await public.clear_all()
        await post.announce(CoordinatorStatus(state="off", boot=self._boot, run=self._config.name))
