"""The coordinator process: builds the parts of a run, starts its tasks, and ends in order.

It contains no decision: those are in `policy.decisions` and in the tables of `state`. The rounds
are in `rounds.loop`.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio
from anyio.abc import TaskGroup

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement
from fairbed.coordinator.fleet.device_logs import DeviceLogs
from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.fleet.uploads import Uploads
from fairbed.coordinator.messaging.blobs import PrivateBlobs, PublicBlobs, SideTraffic
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.messaging.signatures import FleetSignatures
from fairbed.coordinator.policy.config import ALERTS_OFF, CoordinatorConfig
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.policy.live_settings import (
    SettingError,
    accepted_changes,
    due_now,
    key_of,
    with_changes,
)
from fairbed.coordinator.ports import HostServices, RunWatcher
from fairbed.coordinator.rounds.assignments import Assignments
from fairbed.coordinator.rounds.executor import Receiver, RoundExecutor
from fairbed.coordinator.rounds.loop import RoundProgress, RunServices, TrainingLoop
from fairbed.coordinator.rounds.loop_lag import LagMeter
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.server.lease import CoordinatorLease
from fairbed.coordinator.server.operator_commands import OperatorCommands
from fairbed.coordinator.server.router import Router, Routes
from fairbed.coordinator.state.memory import Fitting
from fairbed.coordinator.state.registry import (
    CLUSTER_SILENT_S,
    SILENT_S,
    Registry,
    reason_lost,
)
from fairbed.coordinator.state.waits import Waits
from fairbed.coordinator.store import Store, StoreError
from fairbed.coordinator.store.event_log import EventLog, Level
from fairbed.wire.artifact import Artifact, encode_artifact
from fairbed.wire.chunks import DEFAULT_CHUNK_BYTES, manifest_of
from fairbed.wire.codec import encode
from fairbed.wire.errors import Refused
from fairbed.wire.messages import MAX_CHUNK_BYTES, CoordinatorStatus, Goodbye, Manifest, Welcome
from fairbed.wire.models import modules_of
from fairbed.wire.signature import Binding
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkDown, LinkUp, Packet, Transport, Will

if TYPE_CHECKING:
    from fairbed.coordinator.records.client_metrics import ClientMetrics
    from fairbed.coordinator.records.named_metrics import NamedMetrics
    from fairbed.coordinator.rounds.raw_updates import RawMerger
    from fairbed.coordinator.state.alerts import AlertChange

GOODBYE_S = 1.0
"""Longest time for the goodbye to devices: a broker that takes longer hangs or is out of reach."""

LEASE_SLOW_S = 5.0
"""Time after which the wait for the topic tree is reported; it takes a round trip."""

CLEARING_S = 3.0
"""Longest time for the removal of blobs from the broker after it; the next coordinator removes what
is left."""

PRESENCE_S = 0.5
"""Time between checks for devices that were lost during an exchange."""

LINK_DOUBT_S = 10.0
"""The broker of a live link answers a ping every `KEEPALIVE_S` / 2 = 7.5 s. After a longer silence
the coordinator's own link may be down, and no device counts as silent for that time. Must be less
than `SILENT_S`."""

REFUSED = "its identity is revoked, expired or renamed: the broker refuses it"

End: TypeAlias = Literal["done", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """The task, its configuration and its initial model."""

    config: CoordinatorConfig
    artifact: Artifact
    vector: Vector
    """The initial model, shape (n_values,); a checkpoint in the store replaces it."""
    raw: bytes = b""
    """Its raw part, which only a client reads; a checkpoint replaces it, too."""
    raw_merger: "RawMerger | None" = None
    """Merges raw parts; None: versions and updates have none."""
    base: memoryview | None = None
    """The frozen part of the model, `Artifact.base`; None: there is none."""
    decisions: Decisions
    attempt: int = 0
    """How often the first round was attempted before: 0 unless the run is resumed."""
    device_names: Sequence[str] = ()
    """Devices in row order; other devices get the next rows as they join."""
    emulated: Collection[str] = ()
    """The emulated ones, for reports only; the others are physical."""
    fitting: Fitting | None = None
    """Fits training into the memory of devices; None: it needs little."""
    loop: Callable[[RunServices, int], TrainingLoop] = TrainingLoop
    """Makes the driver of the rounds: that of an application, if there is one."""
    client_evaluates: bool = False
    """The task has a client, which evaluates the model on the examples of its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSetup:
    """The coordinator's link to the broker, and its topics."""

    transport: Callable[[Will], Transport]
    topics: Topics
    boot: int
    """Random number of this coordinator process."""
    max_chunk_bytes: int = MAX_CHUNK_BYTES
    """Largest chunk that the broker accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunParts:
    """The parts of a run that its tasks use."""

    task_manifest: Manifest
    base_manifest: Manifest | None
    fleet: Fleet
    executor: RoundExecutor
    receivers: Sequence[Receiver]
    loop: TrainingLoop
    watchers: Sequence[RunWatcher]
    commands: OperatorCommands
    router: Router

    @property
    def registry(self) -> Registry:
        """All devices of the run."""
        return self.fleet.registry

    @property
    def waiting(self) -> Sequence[RoundExecutor | Receiver]:
        """What waits for devices."""
        return self.executor, *self.receivers


class Coordinator:
    """Runs one experiment over one transport, from the first round or from a checkpoint."""

    def __init__(
        self,
        setup: TrainingSetup,
        link: LinkSetup,
        store: Store,
        host: HostServices,
        *,
        on_progress: Callable[[RoundProgress], None] = lambda progress: None,
        on_waiting: Callable[[str], None] = lambda line: None,
        on_alert: "Callable[[AlertChange], None]" = lambda change: None,
        now: Callable[[], float] = time.perf_counter,
        stall_alert_s: float | None = None,
    ) -> None:
        self._setup = setup
        self._stall_alert_s = stall_alert_s
        self._config = setup.config
        self._store = store
        self._host = host
        self._topics = link.topics
        self._max_chunk_bytes = link.max_chunk_bytes
        self._on_progress, self._on_waiting, self._on_alert = on_progress, on_waiting, on_alert
        self._event_log = EventLog(store, now, self._fail)
        self._loop_lag = LagMeter(now)
        self._task = encode_artifact(setup.artifact)
        """The encoded task, which each device downloads once."""
        self._binding = Binding(store.run_id, link.boot, sha256(self._task).digest())
        self._transport = link.transport(Will(link.topics.coordinator, encode(self._status("off"))))
        self._signatures = FleetSignatures(self._binding, host.task_key_of)
        self._publisher = Publisher(self._transport, link.topics, self._signatures)
        self._public = PublicBlobs(self._transport, link.topics, link.boot)
        self._lease = CoordinatorLease(self._transport, link.topics, link.boot, on_lost=self._fail)
        self._scope = anyio.CancelScope()
        self._is_stopped = False
        self._failure: Exception | None = None
        self._link_up_since: float | None = None
        """When the link was restored or was last in doubt; None while it is down."""
        self._parts: _RunParts | None = None
        self._accepted: frozenset[str] | None = None
        """Devices whose packets are handled; None is all."""

    async def run(self) -> End:
        """Run the experiment to its end; return how it ended.

        Raises:
            AnotherCoordinatorError: Another coordinator holds the topic tree.
            FleetMissingError: Too few devices joined in time.
            StoreError: The store cannot take rows any more.
            Refused: The broker refused the connection.
        """
        async with self._transport, anyio.create_task_group() as group:
            with self._scope:
                parts = self._parts = self._build(group)
                first_round = self._restore(parts.loop)
                parts.registry.expect(self._setup.device_names)
                if self._accepted is not None:
                    self._drop_refused(parts, self._accepted, None)
                self._start_tasks(group, parts)
                await self._run_rounds(parts, first_round)
                for watcher in parts.watchers:
                    watcher.close()
            self._event_log.report_omitted()
            if self._lease.release():
                await self._send_goodbye()
            group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return "stopped" if self._is_stopped else "done"

    def at_s(self) -> float:
        """Return the seconds since the run was created, by the clock of its rows."""
        return self._event_log.at_s()

    def note(self, kind: str, text: str, level: Level = "info", device: str | None = None) -> None:
        """Write an event of the testbed."""
        self._event_log.event(kind, text, level=level, device=device)

    def stop(self) -> None:
        """End the run at once; its open round is lost."""
        self._stop(True)

    def _stop(self, is_now: bool) -> None:
        self._is_stopped = True
        if is_now:
            self._scope.cancel()

    def _kick(self, name: str, reason: str) -> bool:
        """Cancel what a device does for the coordinator; return whether it did anything."""
        assert self._parts is not None
        is_at_work = False
        for executor in self._parts.waiting:
            if name in executor.open_devices():
                is_at_work = True
                if isinstance(executor, RoundExecutor):
                    executor.exclude(name, reason)
                else:
                    executor.mark_lost(name, reason)
        return is_at_work

    def refuse_all_but(self, accepted: Collection[str]) -> None:
        """End the exchanges of devices that the broker accepts no more, and ignore their packets.

        A device that is accepted again begins anew with its next hello. A device that was never
        accepted is not refused but awaited: it can still be enrolled.

        Args:
            accepted: Names of the devices that the broker accepts.
        """
        before, self._accepted = self._accepted, frozenset(accepted)
        if self._parts is not None:
            self._drop_refused(self._parts, self._accepted, before)

    def _drop_refused(
        self, parts: _RunParts, accepted: Collection[str], before: Collection[str] | None
    ) -> None:
        """Record the devices that were accepted and are so no more.

        Args:
            parts: The parts of the run.
            accepted: Names of the devices that the broker accepts.
            before: Those that it accepted before; without it, every device that has ever joined.
        """
        for device in parts.registry:
            name = device.name
            was_accepted = device.first_seen_s is not None if before is None else name in before
            if name in accepted or not was_accepted:
                continue
            parts.fleet.drop(name, REFUSED)
            for executor in parts.waiting:
                if name in executor.open_devices():
                    executor.mark_lost(name, REFUSED)

    def _is_refused(self, device: str) -> bool:
        return self._accepted is not None and device not in self._accepted

    def _fail(self, failure: Exception) -> None:
        """End the run at once, because it cannot continue."""
        self._failure = self._failure or failure
        self._scope.cancel()

    def _build(self, group: TaskGroup) -> _RunParts:
        """Build the parts of the run; nothing is sent yet."""
        log, side_traffic = self._event_log, SideTraffic()
        artifact = self._setup.artifact
        allowed = " ".join(modules_of(artifact))
        registry = Registry(
            personalises=self._config.personalisation.is_on,
            tests_shards=self._config.model.has_local_values or self._setup.client_evaluates,
            local_rule=self._config.training.rule,
            needed_skills=self._config.training.needed_skills,
            emulated=self._setup.emulated,
            noise_multiplier=self._config.privacy.noise_multiplier,
            engine=artifact.engine,
            module=allowed if artifact.client is None else artifact.client.name,
            fitting=self._setup.fitting,
        )
        chunk_bytes = min(DEFAULT_CHUNK_BYTES, self._max_chunk_bytes)
        task_manifest = self._public.named(manifest_of(self._task, "task", chunk_bytes))
        private = PrivateBlobs(self._transport, self._topics, side_traffic)
        base = self._setup.base
        base_manifest = (
            None if base is None else self._public.named(manifest_of(base, "base", chunk_bytes))
        )
        fleet = self._build_fleet(registry, private, side_traffic, task_manifest, base_manifest)
        _, returned = self._setup.decisions.vector_counts
        layout, predicted = artifact.spec.layout.with_vectors(returned), artifact.predicted
        merger = self._setup.raw_merger
        check_raw = None if merger is None else merger.fault
        uploads = Uploads(layout, log.now, self._config.limits, predicted, check_raw)
        executor = RoundExecutor(
            self._publisher, uploads, log, group, self._host.host_monitor, self._loop_lag.at_s
        )
        services = self._build_services(fleet, executor, side_traffic)
        loop = self._setup.loop(services, self._setup.attempt)
        commands = OperatorCommands(
            loop,
            registry,
            log,
            self._publisher,
            group,
            kick=self._kick,
            stop=self._stop,
            audit=self._host.audit,
            devices=self._host.devices,
            is_read_only=self._config.operator.read_only,
        )
        routes = Routes(
            fleet=fleet,
            logs=DeviceLogs(registry, log),
            executor=executor,
            receivers=services.receivers,
            public=self._public,
            private=private,
            signatures=self._signatures,
            on_command=commands.on_command,
            on_watch=self._host.on_watch,
            is_refused=self._is_refused,
            on_flood=self._host.on_flood,
        )
        return _RunParts(
            task_manifest=task_manifest,
            base_manifest=base_manifest,
            fleet=fleet,
            executor=executor,
            receivers=services.receivers,
            loop=loop,
            watchers=services.watchers,
            commands=commands,
            router=Router(self._topics, routes, log, group),
        )

    def _build_fleet(
        self,
        registry: Registry,
        private: PrivateBlobs,
        side_traffic: SideTraffic,
        task: Manifest,
        base: Manifest | None,
    ) -> Fleet:
        welcome = Welcome(
            boot=self._binding.boot,
            task=task,
            shard=None,
            max_chunk_bytes=self._max_chunk_bytes,
            base=base,
        )
        return Fleet(
            registry,
            self._publisher,
            private,
            self._host.shards,
            self._event_log,
            welcome=welcome,
            side_traffic=side_traffic,
            exchange=self._config.exchange,
            held_out=self._config.held_out,
            limits=self._config.limits,
            signatures=self._signatures,
            earlier_names=self._host.earlier_names,
            places=self._host.places,
            wants_scale=self._setup.artifact.scale is not None and not self._config.privacy.is_on,
        )

    def _build_services(
        self,
        fleet: Fleet,
        executor: RoundExecutor,
        side_traffic: SideTraffic,
    ) -> RunServices:
        config, decisions, log = self._config, self._setup.decisions, self._event_log
        registry, checkpoint = fleet.registry, self._store.last_checkpoint()
        layout = self._setup.artifact.spec.layout
        agreement = CodecAgreement(
            config.exchange, layout, self._store.run_id, decisions.vector_counts
        )
        versions = ModelVersions(
            agreement,
            self._setup.vector if checkpoint is None else checkpoint.model,
            self._public,
            registry,
            log,
            raw=self._setup.raw if checkpoint is None else checkpoint.raw,
            with_vectors=lambda model: decisions.with_vectors(model, layout.n_params),
            max_chunk_bytes=self._max_chunk_bytes,
        )
        waits = Waits(log.now, log.clock)
        watchers: list[RunWatcher] = []
        if config.operator.alerts:
            from fairbed.coordinator.rounds.alert_monitor import AlertMonitor

            monitor = AlertMonitor(
                registry,
                log,
                lambda: decisions.config,
                self._on_alert,
                task_scale=self._setup.artifact.scale,
                is_emulated=bool(self._setup.emulated),
                waits=waits,
                open_devices=executor.open_devices,
                stall_alert_s=self._stall_alert_s,
            )
            watchers.append(monitor)
        else:
            log.event("alerts", ALERTS_OFF, level="warning")
        predicted = self._setup.artifact.predicted
        receivers: list[Receiver] = []
        query_executor = loss_queries = own_data_tests = personal_scores = None
        has_tests = config.held_out is not None
        if self._setup.artifact.client is not None:
            has_tests &= self._setup.client_evaluates
        if decisions.queries_losses or has_tests:
            from fairbed.coordinator.rounds.loss_query import LossQueries, LossQueryExecutor

            query_executor = LossQueryExecutor(self._publisher, log, predicted)
            receivers.append(query_executor)
            if decisions.queries_losses:
                loss_queries = LossQueries(decisions, registry, versions, query_executor, log)
            if has_tests:
                from fairbed.coordinator.rounds.own_data import OwnDataTests

                own_data_tests = OwnDataTests(
                    config, fleet, versions, query_executor, log, predicted
                )
        if config.personalisation.is_on:
            from fairbed.coordinator.rounds.personal_scores import PersonalScores

            personal_scores = PersonalScores(log, predicted, self._named_metrics())
            receivers.append(personal_scores)
        return RunServices(
            decisions=decisions,
            fleet=fleet,
            agreement=agreement,
            versions=versions,
            assignments=Assignments(decisions, registry, versions, self._store.run_id),
            waits=waits,
            receivers=receivers,
            loss_queries=loss_queries,
            personal_scores=personal_scores,
            own_data_tests=own_data_tests,
            query_executor=query_executor,
            executor=executor,
            event_log=log,
            loop_lag=self._loop_lag,
            side_traffic=side_traffic,
            raw_merger=self._setup.raw_merger,
            client_metrics=self._client_metrics(),
            named_metrics=self._named_metrics(),
            watchers=watchers,
            evaluator=self._host.evaluator,
            on_progress=self._on_progress,
            on_waiting=self._on_waiting,
        )

    def _client_metrics(self) -> "ClientMetrics | None":
        if self._setup.artifact.client is None:
            return None
        from fairbed.coordinator.records.client_metrics import ClientMetrics

        return ClientMetrics(self._store.metric_names)

    def _named_metrics(self) -> "NamedMetrics | None":
        metrics = self._setup.artifact.spec.named_metrics
        if not metrics:
            return None
        from fairbed.coordinator.records.named_metrics import NamedMetrics

        return NamedMetrics(metrics, self._setup.config.evaluation.worst)

    def _restore(self, loop: TrainingLoop) -> int:
        """Restore the last checkpoint, if there is one; return the first round to run."""
        checkpoint = self._store.last_checkpoint()
        first_round = 1 if checkpoint is None else checkpoint.round + 1
        changes = self._restore_settings(first_round)
        if checkpoint is None:
            return first_round
        with self._store.restoring():
            loop.restore(checkpoint.state)
        self._event_log.event("resumed", f"continues with round {first_round}{changes}")
        return first_round

    def _restore_settings(self, first_round: int) -> str:
        """Take the settings that operators have changed; return them in words.

        A change that was to begin with the round after the open one begins with this round.

        Raises:
            StoreError: One is out of the bounds of this version.
        """
        rows = self._store.earlier_commands()
        changes = accepted_changes(rows)
        if not changes:
            return ""
        for row in due_now(rows, first_round):
            self._event_log.add(row)
        try:
            config = with_changes(self._config, changes)
        except SettingError as exc:
            raise StoreError(f"{self._store.folder}: command: {exc}") from exc
        self._setup.decisions.reconfigure(config)
        new = {key_of(change.name): change.value for change in changes}
        return "; set while it ran: " + ", ".join(f"{key} = {x:g}" for key, x in new.items())

    def _start_tasks(self, group: TaskGroup, parts: _RunParts) -> None:
        group.start_soon(self._receive, group, parts, name="coordinator.receive")
        group.start_soon(self._renew_status, name="coordinator.lease")
        group.start_soon(self._report_slow_lease, name="coordinator.slow_lease")
        group.start_soon(self._loop_lag.run, name="coordinator.loop_lag")
        for watcher in parts.watchers:
            group.start_soon(watcher.run, name=f"coordinator.{type(watcher).__name__}")
        group.start_soon(parts.executor.watch_deadlines, name="coordinator.deadlines")
        group.start_soon(
            self._watch_presence, parts.waiting, parts.registry, name="coordinator.presence"
        )

    async def _report_slow_lease(self) -> None:
        """Report the wait for the topic tree if it is long: the broker may not forward a topic."""
        await anyio.sleep(LEASE_SLOW_S)
        if not self._lease.is_ours:
            line = (
                f"no answer on topic {self._topics.coordinator} for {LEASE_SLOW_S:g} s; check that "
                "the broker is up, and that its login may read and write there"
            )
            self._event_log.event("waiting", line, level="warning")
            self._on_waiting(line)

    async def _run_rounds(self, parts: _RunParts, first_round: int) -> None:
        """Acquire the lease, publish the task, and run the rounds; a failure ends the run."""
        try:
            # Before the lease is acquired nothing is written to the tree, and devices get no reply.
            await self._lease.acquire()
            await parts.router.subscribe(self._transport)
            await self._on_link_up()
            await self._public.publish(parts.task_manifest, self._task)
            if parts.base_manifest is not None and self._setup.base is not None:
                await self._public.publish(parts.base_manifest, self._setup.base)
            self._store.set_status("running")
            await parts.commands.repeat(self._store.earlier_commands())
            await parts.loop.run(first_round)
        except Exception as exc:  # any error: the broker is cleaned before it is raised
            self._fail(exc)

    async def _receive(self, group: TaskGroup, parts: _RunParts) -> None:
        """Pass on every event of the transport."""
        router = parts.router
        try:
            async for event in self._transport.events():
                match event:
                    case Packet() if event.topic == self._topics.coordinator:
                        self._lease.on_packet(event)
                    case Packet():
                        router.on_packet(event)
                    case LinkUp(count=count):
                        self._link_up_since = self._event_log.now()
                        for watcher in parts.watchers:
                            watcher.set_link(None)
                        router.on_link_up()
                        self._lease.on_link_up()
                        if count > 1:
                            self._event_log.event(
                                "reconnected", "the link to the broker is restored"
                            )
                        if self._lease.is_ours:
                            group.start_soon(self._on_link_up)
                    case LinkDown(reason=reason):
                        self._link_up_since = None
                        for watcher in parts.watchers:
                            watcher.set_link(reason)
                        router.on_link_down()
                        self._event_log.event("disconnected", reason, level="warning")
        except (Refused, StoreError) as exc:
            self._fail(exc)

    async def _on_link_up(self) -> None:
        await self._public.on_link_up()
        await self._publish_on()

    async def _publish_on(self) -> None:
        if self._lease.is_ours:
            await self._publisher.publish_status(self._status("on"))

    async def _renew_status(self) -> None:
        """Publish `on` again after each challenge, and after a status that replaced it."""
        while True:
            if await self._lease.wait_renewal():
                await self._public.on_link_up()
            await self._publish_on()

    async def _watch_presence(
        self,
        waiting: Sequence[RoundExecutor | Receiver],
        registry: Registry,
    ) -> None:
        """End the exchanges, loss queries and scores of devices that are lost."""
        silent_s = SILENT_S if self._transport.node_count == 1 else CLUSTER_SILENT_S
        while True:
            await anyio.sleep(PRESENCE_S)
            if self._link_up_since is not None and self._transport.silent_s > LINK_DOUBT_S:
                self._link_up_since = self._event_log.now()
            up_since = self._link_up_since
            if up_since is None:
                continue
            for executor in waiting:
                for name in executor.open_devices():
                    now = self._event_log.now()
                    reason = reason_lost(registry[name], up_since, now, silent_s)
                    if reason is not None:
                        executor.mark_lost(name, reason)

    async def _send_goodbye(self) -> None:
        with anyio.move_on_after(GOODBYE_S, shield=True) as limit:
            await self._publisher.broadcast(Goodbye(reason="the run is over"))
        if limit.cancelled_caught:
            return
        with anyio.move_on_after(CLEARING_S, shield=True):
            await self._public.clear_all()
            await self._publisher.publish_status(self._status("off"))

    def _status(self, state: Literal["on", "off"]) -> CoordinatorStatus:
        run, boot, task = self._binding
        return CoordinatorStatus(
            state=state, boot=boot, run=self._config.name, run_id=run, task=task
        )
