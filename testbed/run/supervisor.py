"""The supervisor of one run: it starts broker, fleet and coordinator, and ends them."""

import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread
import msgspec
import numpy as np
from anyio.abc import Process, TaskGroup

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.ports import DeviceControl, HostServices, no_earlier_names
from fairbed.coordinator.rounds.loop import RoundProgress, RunServices, TrainingLoop
from fairbed.coordinator.server.service import Coordinator, End, LinkSetup, TrainingSetup
from fairbed.coordinator.state.memory import Fitting
from fairbed.coordinator.store import Calibration, NewRun, Provenance, RunReader, Store, StoreError
from fairbed.coordinator.store.connection import DATABASE, StartLock
from fairbed.coordinator.store.store import check_not_done, stored_checkpoint
from fairbed.device_agent.installed import agent_version
from fairbed.device_agent.sensors import real_host
from fairbed.testbed.backends.agents import warm_fork_server
from fairbed.testbed.backends.base import Backend
from fairbed.testbed.backends.choice import BackendChoice, open_backend
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.emulation.step_speed import AtTask
from fairbed.testbed.emulation.work import TaskCosts, WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import EMBEDDED, Experiment
from fairbed.testbed.experiment.fleet import (
    PlannedDevice,
    device_at_task,
    fleet_names,
    plan_fleet,
)
from fairbed.testbed.experiment.shards import (
    FleetData,
    Places,
    StoredPlaces,
    StoredShards,
    first_model,
    load_examples,
    task_of,
)
from fairbed.testbed.experiment.task_file import check_same_base, write_task
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.contention import ContentionMonitor
from fairbed.testbed.host.dilation import dilated
from fairbed.testbed.host.memory import fitting_of, memory_here
from fairbed.testbed.host.slow_steps import named_if_slow
from fairbed.testbed.host.speed import work_costs
from fairbed.testbed.inputs import InputReader, Inputs
from fairbed.testbed.provenance import difference, provenance
from fairbed.testbed.run.agent_restarts import AgentRestarts
from fairbed.testbed.run.device_control import SteeredFleet
from fairbed.testbed.run.evaluation import FleetEvaluator
from fairbed.testbed.run.fleet_hosts import FleetHosts, RemoteFleet
from fairbed.testbed.run.fleet_schedule import count_unplugged, follow_schedules
from fairbed.testbed.run.memory import check_parts, part_sizes, unknown_memory
from fairbed.testbed.run.preflight import (
    PreflightFinding,
    engine_findings,
    preflight_findings,
    source_findings,
    untimed_findings,
)
from fairbed.testbed.run.run_broker import (
    OwnBroker,
    RestartBudget,
    RunBroker,
    named_broker,
    open_broker,
    stop_flood,
)
from fairbed.testbed.run.stopping import StopControl, watch_stdin
from fairbed.testbed.run.viewers import relay_on_demand
from fairbed.testbed.run.watchers import Watcher, Watching
from fairbed.testbed.run_folder import ENDPOINT_FILE, ENROLLED, clear, is_untouched
from fairbed.wire.artifact import Artifact
from fairbed.wire.errors import innermost
from fairbed.wire.messages import MAX_TEXT
from fairbed.wire.scale import scale_of
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import KEEPALIVE_S, Will
from fairbed.wire.transport.client import MqttTransport

if TYPE_CHECKING:
    from fairbed.coordinator.rounds.raw_updates import RawMerger
    from fairbed.coordinator.state.alerts import AlertChange
    from fairbed.device_agent.clients.process import ClientServer
    from fairbed.testbed.emulation.machine_delay import ExchangeTimes
    from fairbed.testbed.emulation.malicious import Attack
    from fairbed.testbed.run.application import Application


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """What the choice of a dilation has loaded, so that the run loads it no second time."""

    dataset: Dataset
    artifact: Artifact


class Predict(Protocol):
    """Predicts the exchanges of a run, as a replay has them."""

    def __call__(
        self, experiment: Experiment, data: FleetData, artifact: Artifact, costs: TaskCosts, /
    ) -> "ExchangeTimes | None":
        """Return their times; None if no device has a profile."""
        ...


@dataclass(frozen=True, slots=True)
class RunPlan:
    """An experiment and the folder of its run."""

    experiment: Experiment
    folder: Path
    run_id: str
    has_fleet: bool = True
    """Start the emulated devices of `[[fleet]]`; otherwise all devices join by themselves."""
    listen_host: str = "127.0.0.1"
    """Address of the embedded broker."""
    listen_port: int | None = None
    """None takes a free port."""
    dilation: float = 1.0
    """Seconds of this machine in one second of the fleet, and of the event loop of the run."""
    origin: Path = Path()
    """Folder of the experiment file."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """What set each key of the experiment that is not a default."""
    watchers: Sequence[Watcher] = ()
    """What follows the run for a person."""
    hosts: FleetHosts | None = None
    """The hosts that emulate the devices; None is this machine."""
    application: "Application | None" = None
    """What drives the rounds and has their task; None: the experiment has."""
    remarks: Sequence[str] = ()
    """What the user must know before the run, in lines."""
    predict: "Predict | None" = None
    """Predicts the exchanges of its emulated devices; None if they cannot be predicted."""
    prepared: PreparedTask | None = None
    """Data set and task, if they are loaded already."""

    @property
    def rounds(self) -> int | None:
        """Planned rounds; None: only an application knows them."""
        is_own = self.application is None or self.application.rounds is not None
        return self.experiment.rounds if is_own else None

    @property
    def knows_fleet(self) -> bool:
        """Whether the names of the devices are known before they join."""
        return self.has_fleet or not self.experiment.has_emulated


async def run_experiment(
    plan: RunPlan,
    listener: Callable[[RoundProgress], None],
    waiting: Callable[[str], None] = lambda line: None,
    *,
    alerted: "Callable[[AlertChange], None]" = lambda change: None,
    is_attached: bool = False,
    stop: StopControl | None = None,
    signals: Callable[[StopControl], AbstractContextManager[None]] = lambda stop: nullcontext(),
) -> End:
    """Run an experiment, or resume the run whose checkpoint is in the folder.

    The end of standard input ends an attached run gracefully, unless `DETACH` was read first.
    `waiting` receives a line from time to time while too few devices are ready for round 1,
    `alerted` each alert that begins or ends. A caller that ends the run by itself passes `stop`; a
    command, whose signals are its own, passes `signals` (`ended_by_signals`).

    Raises:
        Exception: A one-line error of a package: data, profile, broker, store, ...
    """
    is_new = is_untouched(plan.folder)
    stop = stop or StopControl()
    with signals(stop):  # before the first file is written, so that Ctrl-C leaves no file behind
        async with anyio.create_task_group() as group:
            if is_attached:
                group.start_soon(watch_stdin, stop, name="run.stdin")
            end: End = "stopped"
            failure: Exception | None = None
            claim: StartLock | None = None
            with stop.scope:
                try:
                    plan.folder.mkdir(parents=True, exist_ok=True)
                    claim = StartLock(plan.folder)
                    check_not_done(plan.folder)  # another process may have run it meanwhile
                    async with AsyncExitStack() as early:
                        end = await _run(plan, listener, waiting, alerted, stop, group, early)
                except Exception as exc:  # raised below, outside the group, which would wrap it
                    failure = innermost(exc)
            group.cancel_scope.cancel()
    if claim is not None:  # without it, the files are those of another process
        _clean_up(plan.folder, is_new, end if failure is None else "failed")
        claim.release()
    if failure is not None:
        raise failure
    return end


async def _run(
    plan: RunPlan,
    listener: Callable[[RoundProgress], None],
    waiting: Callable[[str], None],
    alerted: "Callable[[AlertChange], None]",
    stop: StopControl,
    group: TaskGroup,
    early: AsyncExitStack,
) -> End:
    experiment = plan.experiment
    reader = InputReader(experiment)
    with reader.reading():
        planned = plan_fleet(experiment, os.environ) if plan.knows_fleet else []
    devices = [device.dilated(plan.dilation) for device in planned if not device.is_physical]
    fork_server = await _warm_fork_server(plan, devices, early)
    names = [device.spec.name for device in planned]
    attacks = [device.spec.attack for device in planned]
    budget = RestartBudget()

    def on_round(progress: RoundProgress) -> None:
        budget.on_round(progress)
        listener(progress)

    awaited = names if plan.knows_fleet else fleet_names(experiment)
    client_server = _client_server(plan, early)
    if client_server is not None:
        devices = [device.served_by(client_server.address) for device in devices]
    with named_if_slow("the data set and the model"):
        loaded = await _load(plan, awaited, attacks, client_server, early)
    data, artifact = loaded.data, loaded.artifact
    if loaded.rounds is not None:
        experiment = msgspec.structs.replace(experiment, rounds=loaded.rounds)
        plan = replace(plan, experiment=experiment)
    if artifact.module is None:
        devices = [device.without_models() for device in devices]
    devices = [device.with_base(artifact) for device in devices]
    costs = None if artifact.client else await _costs(plan, devices, artifact)
    fitting, unknown = None, list[PreflightFinding]()
    if data is not None and artifact.client is None:
        with named_if_slow("the memory of a training step"):
            fitting, unknown = await _fitting(plan, planned, data, artifact, costs)
    of_task = None if costs is None else TaskCosts.of(costs, _core_speed(devices))
    if of_task is not None:
        devices = [device.at_task(experiment, of_task) for device in devices]
    admitted = await _admitted(plan, data, artifact, of_task)
    async with (
        _choose_backend(plan, devices, data, artifact, fork_server) as choice,
        open_broker(
            experiment.broker,
            _own_broker(plan, choice),
            plan.folder,
            plan.run_id,
            emulated=[] if choice is None else [spec.name for spec in choice.fleet],
            physical=experiment.physical,
            stop=stop,
            group=group,
            budget=budget,
        ) as broker,
        relay_on_demand(plan.folder, stop.note) as on_watch,
        _fleet(plan, choice, broker, stop) as fleet,
    ):
        backend = None if fleet is None else fleet[0]
        with named_if_slow("the hashes of the inputs"):  # while the fork server imports
            inputs, origin = await anyio.to_thread.run_sync(_provenance, plan, reader, data, costs)
        evaluator = None
        if data is not None and artifact.client is None:
            evaluator = FleetEvaluator(data, artifact, threads=min(2, os.cpu_count() or 1))
        if backend is not None:
            with named_if_slow("the processes of the emulated devices"):
                await backend.start(costs)
        with anyio.CancelScope(shield=True):  # a cancelled call would leave the new store open
            with named_if_slow("the store of the run"):
                store, attempt, moved = await anyio.to_thread.run_sync(
                    _open_store, plan, loaded, origin
                )
        watching: Sequence[Watching] = ()
        try:
            watching = [
                watcher.watch(plan.folder, partial(stop.note, "not notified"))
                for watcher in plan.watchers
            ]
            alerts = partial(_pass_on, alerted, watching) if watching else alerted
            checkpoint = store.last_checkpoint()
            if artifact.client is not None and checkpoint is not None and plan.application is None:
                from fairbed.testbed.run.clients import check_resumed

                check_resumed(artifact.client, artifact.spec.layout.n_values, checkpoint)
            for device in devices:
                store.add(device.truth_row())
            parts = _Parts(
                loaded=loaded,
                store=store,
                attempt=attempt,
                evaluator=evaluator,
                broker=broker,
                devices=devices,
                names=names,
                fitting=fitting,
                on_watch=on_watch,
                on_flood=partial(stop_flood, broker=broker, group=group, stop=stop),
            )
            remote = None
            if plan.hosts is not None and backend is not None:
                remote = plan.hosts.fleet_of(backend)
            monitor = _contention_monitor(devices, backend, broker, plan.dilation, remote)
            emulated = _as_emulated(devices, choice)
            specs = [device.spec for device in emulated]
            steered = (
                None
                if backend is None
                else SteeredFleet(
                    backend,
                    specs,
                    plan.dilation,
                    _core_speed(emulated),
                    group,
                    stop,
                    lambda p: (
                        AtTask(p) if of_task is None else device_at_task(p, experiment, of_task)
                    ),
                )
            )
            stop.coordinator = _coordinator(
                plan, parts, monitor, stop, steered, on_round, waiting, alerts
            )
            if fleet is not None and steered is not None:
                fleet[1].start_with(steered.start_again)
            if remote is not None:
                remote.record_with(stop.coordinator.note)
            if moved is not None:
                stop.coordinator.note("provenance", moved, "warning")
            await broker.watch(stop.coordinator, experiment.physical, waiting, group)
            for finding in chain(
                engine_findings(artifact),
                source_findings(inputs),
                unknown,
                preflight_findings(experiment, devices, choice, plan.dilation),
                admitted,
            ):
                stop.coordinator.note(finding.kind, finding.text, finding.level)
            run_clock = stop.coordinator.at_s
            async with follow_schedules(
                steered, emulated, store, stop, group, plan.dilation, run_clock
            ):
                with nullcontext() if monitor is None else monitor.reading():
                    end = await stop.coordinator.run()
            if stop.failure is not None:
                raise stop.failure
            await anyio.to_thread.run_sync(store.set_status, end)
            return end
        except BaseException as exc:
            is_error = isinstance(exc, Exception)  # a cancellation is not
            if is_error and stop.coordinator is not None:
                stop.coordinator.note("failed", str(exc), "error")
            store.set_status("failed" if is_error else "stopped", str(exc) if is_error else "")
            raise
        finally:
            if evaluator is not None:
                evaluator.close()
            if watching:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(_end_watching, watching, store)
            store.close()


async def _warm_fork_server(
    plan: RunPlan, devices: Sequence[PlannedDevice], early: AsyncExitStack
) -> Process | None:
    """Start the fork server of the agents here: it imports while the data are loaded.

    Args:
        plan: The run.
        devices: The emulated devices.
        early: Ends it.

    Returns:
        None if the devices are on hosts or in containers, or if there are none.
    """
    if not devices or plan.hosts is not None or plan.experiment.emulation.backend == "container":
        return None
    return await early.enter_async_context(warm_fork_server(plan.folder / "logs"))


def _end_watching(watching: Sequence[Watching], store: Store) -> None:
    """Pass on the end of the run, which the store must have before a watcher reads it."""
    with suppress(StoreError):  # the run has failed because of it
        store.flush()
    for one in watching:
        one.end()


def _pass_on(
    alerted: "Callable[[AlertChange], None]", watching: Sequence[Watching], change: "AlertChange"
) -> None:
    """Report an alert on the output of the run and to all that follow it."""
    if not change.is_long:  # its begin was shown
        alerted(change)
    for one in watching:
        one.alert(change)


def _own_broker(plan: RunPlan, choice: BackendChoice | None) -> OwnBroker:
    """Return how the run starts a broker of its own."""
    host = (choice and choice.broker_host) or plan.listen_host
    return OwnBroker(
        host=host,
        is_virtual=host != plan.listen_host,
        port=plan.listen_port,
        keeps_logins=not plan.has_fleet,
    )


@asynccontextmanager
async def _choose_backend(
    plan: RunPlan,
    devices: list[PlannedDevice],
    data: FleetData | None,
    artifact: Artifact,
    fork_server: Process | None,
) -> AsyncIterator[BackendChoice | None]:
    """Choose the backend of the emulated devices, on hosts or here; None if there are none."""
    if not devices:
        yield None
        return
    experiment = plan.experiment
    async with open_backend(
        experiment.emulation.backend if plan.hosts is None else "process",
        [device.spec for device in devices],
        plan.folder,
        plan.run_id,
        image=experiment.emulation.image,
        seed=experiment.seed_for("packets"),
        congestion=experiment.emulation.congestion,
        fork_server=fork_server,
    ) as choice:
        if plan.hosts is not None:
            is_slowed = any(device.profile is not None for device in devices)
            choice = await plan.hosts.choose(
                choice,
                n_concurrent=experiment.coordinator().max_computing,
                vector_bytes=artifact.spec.layout.size_bytes,
                shard_bytes=(0 if data is None else data.dataset.n)
                * artifact.spec.example_bytes
                // experiment.shards,
                probe=Probe.of(artifact, experiment.training) if is_slowed else None,
                dilation=plan.dilation,
            )
        yield choice


@asynccontextmanager
async def _fleet(
    plan: RunPlan, choice: BackendChoice | None, broker: RunBroker, stop: StopControl
) -> AsyncIterator[tuple[Backend, AgentRestarts] | None]:
    """Open the backend of the emulated devices while the context lasts; None if there are none.

    Yields:
        The backend, and what starts killed agents again.
    """
    if choice is None:
        yield None
        return
    is_alone = plan.experiment.broker.url == EMBEDDED and not plan.experiment.physical
    backend: Backend | None = None

    def check_alive() -> None:
        if backend is None or backend.pids or restarts.is_pending:
            return
        if is_alone and stop.coordinator is not None:
            stop.fail(
                BackendError(
                    "fleet: an emulated agent must be alive, got none and no device that could "
                    "join; read their logs: fairbed logs NAME, then resume the run"
                )
            )

    def on_end(ended: HelperEnded) -> None:
        stop.on_process_end(ended, restarts.on_end(ended))
        if ended.is_device and not ended.was_requested:
            check_alive()

    restarts = AgentRestarts(stop.note, check_alive)

    async with AsyncExitStack() as stack:
        passwords = await stack.enter_async_context(
            broker.logins([spec.name for spec in choice.fleet])
        )
        backend = await stack.enter_async_context(
            choice.backend(
                broker.endpoint.url if plan.hosts is None else broker.url_at(plan.hosts.address),
                tenant=broker.endpoint.tenant,
                passwords=passwords,
                on_end=on_end,
            )
        )
        await stack.enter_async_context(restarts.running())  # ends before the backend
        yield backend, restarts


def _as_emulated(devices: list[PlannedDevice], choice: BackendChoice | None) -> list[PlannedDevice]:
    """Return the devices as their backend emulates them: a TCP proxy cannot drop packets."""
    if choice is None or not choice.lacks:
        return devices
    return [device.without(choice.lacks) for device in devices]


async def _costs(
    plan: RunPlan, devices: list[PlannedDevice], artifact: Artifact
) -> WorkCosts | None:
    """Return the measured costs of training steps; None if no device has a profile."""
    if all(device.profile is None for device in devices):
        return None
    return await work_costs(plan.folder, Probe.of(artifact, plan.experiment.training))


async def _fitting(
    plan: RunPlan,
    planned: Sequence[PlannedDevice],
    data: FleetData,
    artifact: Artifact,
    costs: WorkCosts | None,
) -> tuple[Fitting | None, list[PreflightFinding]]:
    """Return what fits training into the memory of devices; None if it needs little, or is unknown.

    The memory of a physical device is known when it joins.

    Returns:
        It, and a warning if it is unknown.

    Raises:
        ExperimentError: Training does not fit into an emulated device.
        BackendError: The memory of training cannot be measured.
    """
    memory, unknown = None, list[PreflightFinding]()
    if costs is not None:
        memory = costs.memory
        unknown = [*unknown_memory(artifact.spec.model, costs.work, memory)]
    elif plan.experiment.physical or not plan.knows_fleet:
        training = plan.experiment.training.hyperparameters(1)
        work, memory = await anyio.to_thread.run_sync(memory_here, artifact, training)
        unknown = [*unknown_memory(artifact.spec.model, work, memory)]
    fitting = fitting_of(plan.experiment.training, artifact.spec, memory)
    names, sizes = [d.spec.name for d in planned], [_checked_bytes(d) for d in planned]
    n_k = np.array([len(rows) for rows in data.train_rows], dtype=np.int64)
    part_sizes(plan.experiment, fitting, names, np.array(sizes, dtype=np.int64), n_k)
    return fitting, unknown


async def _admitted(
    plan: RunPlan, data: FleetData | None, artifact: Artifact, costs: TaskCosts | None
) -> list[PreflightFinding]:
    """Return how many exchanges will likely be untimed.

    Empty if it is unknown: on hosts, without profiles, and for the training of a client.
    """
    if plan.predict is None or plan.hosts is not None or data is None or costs is None:
        return []
    predict = partial(plan.predict, plan.experiment, data, artifact, costs)
    times = await anyio.to_thread.run_sync(predict)
    if times is None:
        return []
    from fairbed.testbed.host.other_load import runnable_tasks

    others = await anyio.to_thread.run_sync(runnable_tasks)
    cores = real_host().sensors.cores()
    return [*untimed_findings(plan.experiment, times, plan.dilation, cores, others)]


def _checked_bytes(device: PlannedDevice) -> int:
    """Return the memory of an emulated device; 0 if it is that of a machine."""
    return 0 if device.is_physical or device.profile is None else device.profile.memory_bytes


def _calibration(plan: RunPlan, costs: WorkCosts | None) -> Calibration | None:
    """Return what a run states about its calibration; None if it is unknown."""
    if costs is None or costs.spread_ratio is None or costs.measured_at is None:
        return None
    batch_size = plan.experiment.training.part_size
    return Calibration(
        batch_size=batch_size,
        step_s=costs.train.seconds(batch_size),
        spread_ratio=costs.spread_ratio,
        age_s=max(0.0, time.time() - costs.measured_at),
    )


def _core_speed(devices: Sequence[PlannedDevice]) -> float:
    """Return the speed of one core of this machine, in cores of the reference machine."""
    return devices[0].host_core_speed if devices else 1.0


def _contention_monitor(
    devices: list[PlannedDevice],
    backend: Backend | None,
    broker: RunBroker,
    dilation: float,
    remote: RemoteFleet | None,
) -> ContentionMonitor | None:
    """Return the monitor of this machine's contention; None if no device is emulated."""
    emulated = [device.spec.name for device in devices if device.profile is not None]
    if backend is None or not emulated:
        return None

    def path(name: str) -> list[int]:
        pid = broker.pid
        return [*([] if pid is None else [pid]), *backend.path_pids(name)]

    return ContentionMonitor(
        emulated,
        backend.contended_s,
        path,
        dilation=dilation,
        counted=backend.counted,
        remote=remote,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The opened parts of a run that its coordinator uses."""

    loaded: "_Loaded"
    store: Store
    attempt: int
    """Number of earlier starts of the run."""
    evaluator: FleetEvaluator | None
    broker: RunBroker
    devices: list[PlannedDevice]
    """The emulated ones."""
    names: list[str]
    """Names of all devices of `[[fleet]]`, in its order."""
    fitting: Fitting | None
    """Fits training into the memory of devices; None: it needs little."""
    on_watch: Callable[[], None]
    """Called when a viewer on another machine asks for rows."""
    on_flood: Callable[[str], None]
    """Called when a device sends far more than it may."""


def _coordinator(
    plan: RunPlan,
    parts: _Parts,
    monitor: ContentionMonitor | None,
    stop: StopControl,
    control: DeviceControl | None,
    listener: Callable[[RoundProgress], None],
    waiting: Callable[[str], None],
    alerted: "Callable[[AlertChange], None]",
) -> Coordinator:
    store, broker, loaded = parts.store, parts.broker, parts.loaded
    endpoint = broker.endpoint
    config = plan.experiment.coordinator(
        starts_fleet=plan.knows_fleet,
        absent=count_unplugged(parts.devices, store.resume_offset_s()),
    )
    boot = secrets.randbits(40)
    # Not the boot, which every device knows: a client of the same id would end the connection.
    client_id = f"coordinator-{secrets.token_hex(16)}"

    def transport(will: Will) -> MqttTransport:
        keepalive_s = round(KEEPALIVE_S * plan.dilation)
        return MqttTransport(endpoint.url, client_id, will=will, keepalive_s=keepalive_s)

    setup = TrainingSetup(
        config=config,
        artifact=loaded.artifact,
        vector=loaded.vector,
        raw=loaded.raw,
        raw_merger=loaded.raw_merger,
        base=_base_blob(loaded.artifact),
        client_evaluates=loaded.client_evaluates,
        loop=loaded.loop,
        decisions=make_decisions(config),
        attempt=parts.attempt,
        device_names=parts.names,
        emulated=frozenset(device.spec.name for device in parts.devices),
        fitting=parts.fitting,
    )
    link = LinkSetup(
        transport=transport,
        topics=Topics(endpoint.tenant),
        boot=boot,
        max_chunk_bytes=endpoint.max_chunk_bytes,
    )
    shards = None if loaded.data is None else StoredShards(loaded.data, plan.folder)
    places = None
    if loaded.artifact.client is not None:
        places = shards or StoredPlaces(loaded.places, plan.folder)
    ports = HostServices(
        shards=shards,
        places=places,
        evaluator=None if config.model.has_local_values else parts.evaluator,
        host_monitor=monitor,
        audit=broker.audit(plan.run_id, partial(stop.note, "audit")),
        devices=control,
        on_watch=parts.on_watch,
        on_flood=parts.on_flood,
        earlier_names=broker.earlier_names,
        task_key_of=broker.task_key_of,
    )
    return Coordinator(
        setup,
        link,
        store,
        ports,
        on_progress=listener,
        on_waiting=waiting,
        on_alert=alerted,
        now=dilated(time.perf_counter, plan.dilation),
        stall_alert_s=min((one.stall_alert_s for one in plan.watchers), default=None),
    )


def _clean_up(folder: Path, is_new: bool, end: str) -> None:
    """Remove files that no reader and no resumed run needs."""
    if is_new and not (folder / DATABASE).exists():
        clear(folder)
    elif end == "done":
        for name in ("cache", "state", ENROLLED):  # of the devices
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / ENDPOINT_FILE).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The data, the task, and the model before round 1."""

    places: Places
    """Numbers of the devices."""
    data: FleetData | None
    """None: the client of the run has data of its own."""
    artifact: Artifact
    vector: Vector
    """Shape (n_values,)."""
    raw: bytes = b""
    raw_merger: "RawMerger | None" = None
    """None: the model has floats only."""
    client_evaluates: bool = False
    loop: Callable[[RunServices, int], TrainingLoop] = TrainingLoop
    """Makes the driver of the rounds."""
    rounds: int | None = None
    """Rounds of an application; None: it states none, or the experiment does."""


def _client_server(plan: RunPlan, early: AsyncExitStack) -> "ClientServer | None":
    """Start the server of the clients on this machine; it imports while the data are loaded.

    Args:
        plan: The run.
        early: Ends it.

    Returns:
        None if the experiment has no client.

    Raises:
        ExperimentError: Its interpreter cannot be started.
    """
    if plan.experiment.training.client is None:
        return None
    from fairbed.testbed.run.clients import open_server

    kind = "class" if plan.application is None else plan.application.kind
    return early.enter_context(open_server(plan.experiment, kind))


async def _load(
    plan: RunPlan,
    names: list[str],
    attacks: "list[Attack | None]",
    client_server: "ClientServer | None",
    early: AsyncExitStack,
) -> _Loaded:
    """Load the data and the task in threads, or start the application, which `early` ends."""
    places, data = await anyio.to_thread.run_sync(_load_data, plan, names, attacks)
    if plan.application is not None:
        checkpoint = await anyio.to_thread.run_sync(stored_checkpoint, plan.folder)
        started = await early.enter_async_context(
            plan.application.running(plan.folder, plan.run_id, checkpoint)
        )
        return _Loaded(
            places,
            None,
            started.artifact,
            started.vector,
            started.raw,
            started.raw_merger,
            client_evaluates=True,
            loop=started.loop,
            rounds=started.rounds,
        )
    if client_server is not None:
        from fairbed.testbed.run.clients import load_task

        task, merger = await load_task(plan.experiment, client_server, data)
        artifact = task.artifact if data is None else _described(task.artifact, data)
        return _Loaded(places, data, artifact, task.vector, task.raw, merger, task.has_evaluate)
    assert data is not None, "only a client can do without"
    artifact = await anyio.to_thread.run_sync(_native_task, plan, data)
    vector = await anyio.to_thread.run_sync(first_model, plan.experiment, artifact)
    return _Loaded(places, data, artifact, vector)


def _load_data(
    plan: RunPlan, names: list[str], attacks: "list[Attack | None]"
) -> tuple[Places, FleetData | None]:
    experiment = plan.experiment
    stays = named_broker(experiment.broker.url)
    places = Places(
        experiment.shards,
        experiment.seed_for("data"),
        names=names if plan.knows_fleet else (),
        planned=names,
        earlier_names=no_earlier_names if stays is None else stays.earlier_names,
        assignments=StoredPlaces.read(plan.folder),
    )
    if experiment.data.has_none:
        return places, None
    keeps_values = experiment.personalisation.is_on or experiment.model.has_local_values
    return places, FleetData(
        load_examples(experiment, os.environ) if plan.prepared is None else plan.prepared.dataset,
        experiment.data,
        devices=experiment.shards,
        seed=experiment.seed_for("data"),
        fold=experiment.validation_fold,
        places=places,
        poisoned=[k for k, attack in enumerate(attacks) if attack and attack.poisons_labels],
        poison_seed=experiment.seed_for("malicious"),
        sends_held_out=keeps_values or experiment.training.client is not None,
    )


def _base_blob(artifact: Artifact) -> memoryview | None:
    """Return the frozen part of a model, mapped from the cache of this user; None without one."""
    if artifact.base is None:
        return None
    from fairbed.wire.base_files import default_bases

    return default_bases(os.environ).blob(artifact.base)


def _native_task(plan: RunPlan, data: FleetData) -> Artifact:
    experiment, prepared = plan.experiment, plan.prepared
    artifact = task_of(experiment, data.dataset) if prepared is None else prepared.artifact
    experiment.check_layout(artifact.spec.layout)
    check_parts(experiment, artifact)
    if experiment.training.augment:
        from fairbed.testbed.run.augment import check_augment

        check_augment(experiment, artifact)
    return _described(artifact, data)


def _described(artifact: Artifact, data: FleetData) -> Artifact:
    """Return the task with what devices with own data compare them with."""
    dataset = data.dataset
    return msgspec.structs.replace(
        artifact,
        scale=scale_of(dataset.x),
        columns="" if dataset.encoding is None else dataset.encoding.columns_of_x(MAX_TEXT),
        labels=tuple(map(str, dataset.labels)),
        preparation=dataset.preparation,
        is_autoencoder=dataset.is_autoencoder,
    )


def _provenance(
    plan: RunPlan, reader: InputReader, data: FleetData | None, costs: WorkCosts | None
) -> tuple[Inputs, Provenance]:
    """Return the inputs of the run, and where it comes from."""
    inputs = reader.read(None if data is None else data.dataset)
    found = provenance(plan.origin, data, plan.origins, inputs.hashes)
    return inputs, msgspec.structs.replace(found, calibration=_calibration(plan, costs))


def _stored_toml(plan: RunPlan, loaded: _Loaded) -> str:
    """Return the experiment as it is stored; without rounds if only an application knows them."""
    toml = plan.experiment.resolved_toml()
    if plan.application is None or loaded.rounds is not None:
        return toml
    return re.sub(r"^rounds = [0-9]+\n", "", toml, count=1, flags=re.MULTILINE)


def _open_store(plan: RunPlan, loaded: _Loaded, found: Provenance) -> tuple[Store, int, str | None]:
    """Return the run's store, the number of earlier starts, and what differs from the first."""
    if not (plan.folder / DATABASE).exists():
        if loaded.artifact.client is None:
            write_task(plan.folder, loaded.artifact)
        return (
            Store.create(
                plan.folder,
                NewRun(
                    run_id=plan.run_id,
                    name=plan.experiment.name,
                    experiment_toml=_stored_toml(plan, loaded),
                    seed=plan.experiment.seed,
                    config_hash=plan.experiment.hash(),
                    version=agent_version(),
                    provenance=found,
                    dilation=plan.dilation,
                    task=loaded.artifact.spec.kind,
                ),
            ),
            0,
            None,
        )
    check_same_base(plan.folder, loaded.artifact)
    store = Store.reopen(plan.folder)
    with RunReader(plan.folder) as reader:
        row = reader.run().row
    before = msgspec.json.decode(row.provenance, type=Provenance)
    return store, row.resumes, difference(before, found)
