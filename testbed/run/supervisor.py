"""The supervisor of one run: it starts broker, fleet and coordinator, and ends them."""

import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import anyio
import anyio.to_thread
import msgspec
import numpy as np
from anyio.abc import Process, TaskGroup

from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.ports import (
    Audit,
    DeviceControl,
    HostServices,
    no_earlier_names,
    no_task_key,
)
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.server.lease import check_tree_is_free
from fairbed.coordinator.server.service import Coordinator, End, LinkSetup, TrainingSetup
from fairbed.coordinator.state.alerts import AlertChange
from fairbed.coordinator.state.memory import Fitting
from fairbed.coordinator.store import Calibration, NewRun, Provenance, RunReader, Store, StoreError
from fairbed.coordinator.store.connection import DATABASE, StartLock
from fairbed.coordinator.store.store import check_not_done
from fairbed.device_agent.installed import agent_version
from fairbed.testbed.backends.agents import warm_fork_server
from fairbed.testbed.backends.base import Backend
from fairbed.testbed.backends.choice import BackendChoice, open_backend
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.emulation.work import TaskCosts, WorkCosts
from fairbed.testbed.errors import BackendError, BrokerError, LabError
from fairbed.testbed.experiment.file import EMBEDDED, LAB, Experiment
from fairbed.testbed.experiment.fleet import (
    PlannedDevice,
    fleet_names,
    plan_fleet,
    profile_at_task,
)
from fairbed.testbed.experiment.notify import NotifySettings
from fairbed.testbed.experiment.shards import (
    FleetData,
    StoredShards,
    load_examples,
    task_of,
)
from fairbed.testbed.host.broker_usage import KEPT_S, Usage
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.contention import ContentionMonitor
from fairbed.testbed.host.dilation import dilated
from fairbed.testbed.host.memory import fitting_of, memory_here
from fairbed.testbed.host.slow_steps import named_if_slow
from fairbed.testbed.host.speed import work_costs
from fairbed.testbed.inputs import InputReader, Inputs
from fairbed.testbed.lab.audit import Audit as AuditLog
from fairbed.testbed.lab.folder import Lab, open_lab
from fairbed.testbed.lab.identities import COORDINATOR, user_of
from fairbed.testbed.provenance import difference, provenance
from fairbed.testbed.run.agent_restarts import AgentRestarts
from fairbed.testbed.run.broker import (
    Broker,
    await_broker,
    check_names_are_free,
    external_url,
    find_chunk_limit,
    start_broker,
)
from fairbed.testbed.run.device_control import SteeredFleet
from fairbed.testbed.run.emulated_identities import (
    earlier_names,
    emulated_identities,
    enrolled_task_key,
    not_enrolled,
    watch_identities,
)
from fairbed.testbed.run.evaluation import FleetEvaluator
from fairbed.testbed.run.fleet_schedule import count_unplugged, follow_schedules
from fairbed.testbed.run.memory import check_parts, part_sizes, unknown_memory
from fairbed.testbed.run.notify import Notifier
from fairbed.testbed.run.preflight import (
    PreflightFinding,
    engine_findings,
    preflight_findings,
    source_findings,
)
from fairbed.testbed.run.stopping import StopControl, watch_stdin
from fairbed.testbed.run.viewers import relay_on_demand
from fairbed.testbed.run_accounts import (
    RunAccounts,
    device_passwords,
    enrolled_users,
    parse_user,
)
from fairbed.testbed.run_folder import (
    ENDPOINT_FILE,
    ENROLLED,
    Endpoint,
    clear,
    is_untouched,
    read_endpoint,
    write_endpoint,
)
from fairbed.wire.artifact import Artifact, initial_vector
from fairbed.wire.errors import innermost
from fairbed.wire.messages import MAX_TEXT, OperatorAnswer, OperatorCommand
from fairbed.wire.scale import scale_of
from fairbed.wire.topics import Topics
from fairbed.wire.transport.address import redact, redirected, with_client
from fairbed.wire.transport.base import KEEPALIVE_S, Will
from fairbed.wire.transport.client import MqttTransport

if TYPE_CHECKING:
    from fairbed.testbed.cluster.device_hosts import DeviceHosts
    from fairbed.testbed.cluster.hosts_backend import HostsBackend

BrokerPid: TypeAlias = Callable[[], "int | None"]
"""Process of the broker; None if it is not on this machine, or down."""

Suspend: TypeAlias = Callable[[str, float], Coroutine[Any, Any, None]]
"""Disconnects a user of the broker, and refuses it for some seconds."""

SUSPENDED_S = 60.0
"""How long the broker of a run refuses a device that floods."""

ENROL_POLL_S = 0.2
"""Time between two looks for enrolled users, as in a lab."""

BROKER_RESTARTS = 20
"""A broker that dies so often without a round with an update in between ends the run."""


BROKER_RETRY_S = 0.2
"""Time between two attempts to start a broker that does not start, seconds."""


class RestartBudget:
    """How often a broker may be restarted; it recovers whenever the run makes progress."""

    def __init__(self, restarts: int = BROKER_RESTARTS) -> None:
        self.restarts = restarts
        self._left = restarts

    def spend(self) -> bool:
        """Use one restart; return whether there was one left."""
        self._left -= 1
        return self._left >= 0

    def on_round(self, progress: RoundProgress) -> None:
        """Recover after a closed round, unless it is void."""
        if progress.round.status == "done":
            self._left = self.restarts


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
    notify: NotifySettings | None = None
    """How a person gets messages about the run; None: not at all."""
    hosts: "DeviceHosts | None" = None
    """The hosts that emulate the devices; None is this machine."""

    @property
    def knows_fleet(self) -> bool:
        """Whether the names of the devices are known before they join."""
        return self.has_fleet or not self.experiment.has_emulated


async def run_experiment(
    plan: RunPlan,
    listener: Callable[[RoundProgress], None],
    waiting: Callable[[str], None] = lambda line: None,
    *,
    alerted: Callable[[AlertChange], None] = lambda change: None,
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
    alerted: Callable[[AlertChange], None],
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
    with named_if_slow("the data set and the model"):
        data, artifact = await anyio.to_thread.run_sync(_load, plan, awaited, attacks)
    if artifact.module is None:
        devices = [device.without_models() for device in devices]
    costs = await _costs(plan, devices, artifact)
    with named_if_slow("the memory of a training step"):
        fitting, unknown = await _fitting(plan, planned, data, artifact, costs)
    of_task = None if costs is None else TaskCosts.of(costs, _core_speed(devices))
    if of_task is not None:
        devices = [device.at_task(experiment, of_task) for device in devices]
    async with (
        _choose_backend(plan, devices, data, artifact, fork_server) as choice,
        _endpoint(plan, choice, stop, group, budget) as (endpoint, broker_pid, suspend),
        relay_on_demand(plan.folder) as on_watch,
        _fleet(plan, choice, endpoint, stop) as fleet,
    ):
        backend = None if fleet is None else fleet[0]
        with named_if_slow("the hashes of the inputs"):  # while the fork server imports
            inputs, origin = await anyio.to_thread.run_sync(_provenance, plan, reader, data, costs)
        evaluator = FleetEvaluator(data, artifact, threads=min(2, os.cpu_count() or 1))
        if backend is not None:
            with named_if_slow("the processes of the emulated devices"):
                await backend.start(costs)
        with anyio.CancelScope(shield=True):  # a cancelled call would leave the new store open
            with named_if_slow("the store of the run"):
                store, attempt, moved = await anyio.to_thread.run_sync(
                    _open_store, plan, data, origin
                )
        notifier: Notifier | None = None
        try:
            notifier = _start_notifier(plan, stop)
            alerts = alerted if notifier is None else partial(_pass_on, alerted, notifier)
            for device in devices:
                store.add(device.truth_row())
            parts = _Parts(
                data=data,
                artifact=artifact,
                store=store,
                attempt=attempt,
                evaluator=evaluator,
                endpoint=endpoint,
                devices=devices,
                names=names,
                fitting=fitting,
                on_watch=on_watch,
                on_flood=partial(
                    _stop_flood, suspend=suspend, group=group, stop=stop, endpoint=endpoint
                ),
            )
            on_hosts = _on_hosts(plan, backend)
            monitor = _contention_monitor(devices, backend, broker_pid, plan.dilation, on_hosts)
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
                    lambda p: p if of_task is None else profile_at_task(p, experiment, of_task),
                )
            )
            stop.coordinator = _coordinator(
                plan, parts, monitor, _audit_of(plan, stop), steered, on_round, waiting, alerts
            )
            if fleet is not None and steered is not None:
                fleet[1].start_with(steered.start_again)
            if on_hosts is not None:
                on_hosts.record_with(stop.coordinator.note)
            if moved is not None:
                stop.coordinator.note("provenance", moved, "warning")
            if endpoint.lab is not None:
                group.start_soon(
                    watch_identities,
                    Path(endpoint.lab),
                    endpoint.tenant,
                    stop.coordinator.refuse_all_but,
                    name="run.identities",
                )
                await _report_not_enrolled(endpoint, experiment.physical, stop.coordinator, waiting)
            for finding in chain(
                engine_findings(artifact),
                source_findings(inputs),
                unknown,
                preflight_findings(experiment, devices, choice, plan.dilation),
            ):
                stop.coordinator.note(finding.kind, finding.text, finding.level)
            async with follow_schedules(steered, emulated, store, stop, group, plan.dilation):
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
            evaluator.close()
            if notifier is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(_notify_end, notifier, store)
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


def _start_notifier(plan: RunPlan, stop: StopControl) -> Notifier | None:
    """Start what sends messages to a person, if the run has it."""
    if plan.notify is None:
        return None
    return Notifier(plan.notify, plan.folder, partial(stop.note, "not notified"))


def _notify_end(notifier: Notifier, store: Store) -> None:
    """Send the end of the run, which the store must have before the notifier reads it."""
    with suppress(StoreError):  # the run has failed because of it
        store.flush()
    notifier.end()


def _pass_on(
    alerted: Callable[[AlertChange], None], notifier: Notifier, change: AlertChange
) -> None:
    """Report an alert on the output of the run and to a person."""
    if not change.is_long:  # its begin was shown
        alerted(change)
    notifier.alert(change)


@asynccontextmanager
async def _choose_backend(
    plan: RunPlan,
    devices: list[PlannedDevice],
    data: FleetData,
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
        seed=experiment.seed_for("traces"),
        congestion=experiment.emulation.congestion,
        fork_server=fork_server,
    ) as choice:
        if plan.hosts is not None:
            from fairbed.testbed.cluster.hosts_backend import agent_bytes, choose_hosts

            is_slowed = any(device.profile is not None for device in devices)
            choice = await choose_hosts(
                plan.hosts,
                choice,
                n_concurrent=experiment.coordinator().max_computing,
                memory_bytes=agent_bytes(
                    artifact.spec.layout.size_bytes,
                    artifact.spec.example_bytes * data.dataset.n // experiment.shards,
                ),
                probe=Probe.of(artifact, experiment.training) if is_slowed else None,
                dilation=plan.dilation,
            )
        yield choice


@asynccontextmanager
async def _fleet(
    plan: RunPlan, choice: BackendChoice | None, endpoint: Endpoint, stop: StopControl
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
        passwords: Mapping[str, str] | None = None
        if endpoint.lab is not None:
            passwords = await stack.enter_async_context(
                emulated_identities(
                    Path(endpoint.lab),
                    endpoint.url,
                    [spec.name for spec in choice.fleet],
                    tenant=endpoint.tenant,
                    run_id=plan.run_id,
                )
            )
        elif endpoint.secret is not None:
            passwords = device_passwords(endpoint.secret, [spec.name for spec in choice.fleet])
        backend = await stack.enter_async_context(
            choice.backend(
                url_for_devices(plan, endpoint),
                tenant=endpoint.tenant,
                passwords=passwords,
                on_end=on_end,
            )
        )
        await stack.enter_async_context(restarts.running())  # ends before the backend
        yield backend, restarts


def url_for_devices(plan: RunPlan, endpoint: Endpoint) -> str:
    """Return the address of the broker, for other hosts the one at which they reach a lab."""
    if plan.hosts is None or endpoint.lab is None:
        return endpoint.url
    lab = open_lab(Path(endpoint.lab))
    url = f"mqtts://127.0.0.1:{lab.settings.port}?cafile={quote(str(lab.ca))}"
    return redirected(url, plan.hosts.address, lab.settings.port)


async def _report_not_enrolled(
    endpoint: Endpoint,
    physical: Sequence[str],
    coordinator: Coordinator,
    waiting: Callable[[str], None],
) -> None:
    """Report physical devices that cannot join before they are enrolled."""
    assert endpoint.lab is not None
    missing = await anyio.to_thread.run_sync(
        not_enrolled, Path(endpoint.lab), physical, endpoint.tenant, time.time()
    )
    for name in missing:
        line = f"{name} is not enrolled in the lab; run: fairbed enroll {name}"
        coordinator.note("not-enrolled", line, "warning", name)
        waiting(line)


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


def _on_hosts(plan: RunPlan, backend: Backend | None) -> "HostsBackend | None":
    """Return the backend if the hosts of a cluster emulate the devices."""
    if plan.hosts is None:
        return None
    from fairbed.testbed.cluster.hosts_backend import HostsBackend

    return backend if isinstance(backend, HostsBackend) else None


def _contention_monitor(
    devices: list[PlannedDevice],
    backend: Backend | None,
    broker_pid: BrokerPid,
    dilation: float,
    on_hosts: "HostsBackend | None",
) -> ContentionMonitor | None:
    """Return the monitor of this machine's contention; None if no device is emulated."""
    emulated = [device.spec.name for device in devices if device.profile is not None]
    if backend is None or not emulated:
        return None

    def path(name: str) -> list[int]:
        pid = broker_pid()
        return [*([] if pid is None else [pid]), *backend.path_pids(name)]

    return ContentionMonitor(
        emulated,
        backend.contended_s,
        path,
        dilation=dilation,
        counted=backend.counted,
        remote=on_hosts,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The opened parts of a run that its coordinator uses."""

    data: FleetData
    artifact: Artifact
    store: Store
    attempt: int
    """Number of earlier starts of the run."""
    evaluator: FleetEvaluator
    endpoint: Endpoint
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
    audit: Audit,
    control: DeviceControl | None,
    listener: Callable[[RoundProgress], None],
    waiting: Callable[[str], None],
    alerted: Callable[[AlertChange], None],
) -> Coordinator:
    store, endpoint, artifact = parts.store, parts.endpoint, parts.artifact
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
        artifact=artifact,
        vector=initial_vector(artifact.spec, config.seed_init),
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
    ports = HostServices(
        shards=StoredShards(parts.data, plan.folder),
        evaluator=None if config.model.has_local_values else parts.evaluator,
        host_monitor=monitor,
        audit=audit,
        devices=control,
        on_watch=parts.on_watch,
        on_flood=parts.on_flood,
        earlier_names=no_earlier_names if endpoint.lab is None else earlier_names,
        task_key_of=no_task_key
        if endpoint.lab is None
        else partial(enrolled_task_key, Path(endpoint.lab), endpoint.tenant),
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
        stall_alert_s=None if plan.notify is None else plan.notify.stall_alert_s,
    )


@asynccontextmanager
async def _endpoint(
    plan: RunPlan,
    choice: BackendChoice | None,
    stop: StopControl,
    group: TaskGroup,
    budget: RestartBudget,
) -> AsyncIterator[tuple[Endpoint, BrokerPid, Suspend | None]]:
    """Start the broker, or check an external one; devices of a resumed run find the old address."""
    broker = plan.experiment.broker
    if broker.url != EMBEDDED:
        lab: Lab | None = None
        if broker.url == LAB:
            from fairbed.testbed.lab.service import open_running_lab, pid_of_broker

            lab = open_running_lab()
        earlier = read_endpoint(plan.folder)
        url = (
            external_url(broker.url, None if earlier is None else earlier.url)
            if lab is None
            else lab.url(user_of(*COORDINATOR))
        )
        url = with_client(url, broker.client)
        topics = Topics(broker.tenant)
        with named_if_slow(f"the broker at {redact(url)}"):
            await await_broker(url)
        await check_tree_is_free(MqttTransport(url, f"look-{secrets.token_hex(4)}"), topics)
        if lab is None:
            if choice is not None:
                names = {spec.name for spec in choice.fleet}
                await check_names_are_free(url, topics, names)
            limit = await find_chunk_limit(url, topics)
            endpoint = Endpoint(
                url=url, tenant=broker.tenant, run_id=plan.run_id, max_chunk_bytes=limit
            )
            write_endpoint(plan.folder, endpoint)
            yield endpoint, lambda: None, None
        else:
            endpoint = Endpoint(
                url=url, tenant=broker.tenant, run_id=plan.run_id, lab=str(lab.folder)
            )
            write_endpoint(plan.folder, msgspec.structs.replace(endpoint, url=redact(url)))
            yield endpoint, partial(pid_of_broker, lab), None
        return
    host = (choice and choice.broker_host) or plan.listen_host
    earlier = read_endpoint(plan.folder)
    port, secret = plan.listen_port, None
    if earlier is not None and not plan.has_fleet:
        port, secret = port or earlier.port, earlier.secret
    fleet = () if choice is None else (spec.name for spec in choice.fleet)
    accounts = RunAccounts(broker.tenant, secret, (*fleet, *plan.experiment.physical))
    accounts.add(enrolled_users(plan.folder))
    for left in plan.folder.glob("broker-*"):  # by a start of this run that was killed
        shutil.rmtree(left, ignore_errors=True)
    async with start_broker(
        broker.kind,
        folder=plan.folder,
        host=host,
        is_virtual=host != plan.listen_host,
        port=port,
        accounts=accounts,
    ) as started:
        endpoint = Endpoint(
            url=with_client(started.url, broker.client),
            tenant=broker.tenant,
            run_id=plan.run_id,
            host=host,
            port=started.port,
            secret=accounts.secret,
        )
        write_endpoint(plan.folder, endpoint)
        scopes = restart_scope, enrol_scope = anyio.CancelScope(), anyio.CancelScope()
        on_growth = partial(
            refuse_excess, accounts=accounts, suspend=started.suspend, group=group, stop=stop
        )
        group.start_soon(
            keep_broker, started, restart_scope, stop, budget, on_growth, name="run.broker"
        )
        group.start_soon(
            enrol_on_demand, started, accounts, plan.folder, enrol_scope, stop, name="run.enrol"
        )
        try:
            yield endpoint, lambda: started.pid, started.suspend
        finally:
            for scope in scopes:
                scope.cancel()


def _stop_flood(
    device: str, suspend: Suspend | None, group: TaskGroup, stop: StopControl, endpoint: Endpoint
) -> None:
    """Have the broker of the run refuse a device for a while, or name what an operator can do."""
    if suspend is not None:
        text = f"floods the broker, which refuses it for {SUSPENDED_S:g} s"
        group.start_soon(
            suspend_user, suspend, device, SUSPENDED_S, stop, name=f"run.suspend[{device}]"
        )
    elif endpoint.lab is not None:
        text = f"floods the broker; take it out with: fairbed devices revoke {device}"
    else:
        text = "floods the broker; take its user out there"
    if stop.coordinator is not None:
        stop.coordinator.note("flood", text, "warning", device)


async def suspend_user(suspend: Suspend, user: str, for_s: float, stop: StopControl) -> None:
    """Have the broker of the run refuse a user for a while; a full disk does not end the run."""
    try:
        await suspend(user, for_s)
    except BrokerError as exc:
        stop.note("broker", f"it does not refuse {user}: {exc}")


def refuse_excess(
    usage: Mapping[str, Usage],
    accounts: RunAccounts,
    suspend: Suspend,
    group: TaskGroup,
    stop: StopControl,
) -> None:
    """Have the broker of the run refuse each user that keeps too much in its memory."""
    for user, kept in usage.items():
        found = parse_user(user)
        if found is None or user in accounts.suspended:  # a coordinator, or refused already
            continue
        name, role = found
        problem = kept.excess(role)
        if problem is None:
            continue
        subject = "" if role == "device" else f"{role} {name} "
        text = f"{subject}{problem}; the broker refuses it for {KEPT_S // 60} minutes"
        stop.note("flood", text, name if role == "device" else None)
        group.start_soon(suspend_user, suspend, user, KEPT_S, stop, name=f"run.suspend[{user}]")


def _audit_of(plan: RunPlan, stop: StopControl) -> Audit:
    """Return what notes operator commands in the audit log of the lab, if the run has one."""
    if plan.experiment.broker.url != LAB:
        return lambda command, operator, answer: None
    audit = AuditLog(open_lab().audit)

    def note(command: OperatorCommand, operator: str, answer: OperatorAnswer) -> None:
        verdict = "" if answer.is_accepted else f" (refused: {answer.text})"
        try:
            audit.write(
                "command",
                at_s=time.time(),
                name=command.device or "",
                role="device" if command.device else "",
                by=f"operator_{operator}",
                detail=f"{command.line} {plan.run_id}{verdict}",
            )
        except LabError as exc:  # a full disk must not end the run
            stop.note("audit", str(exc))

    return note


async def keep_broker(
    broker: Broker,
    scope: anyio.CancelScope,
    stop: StopControl,
    budget: RestartBudget,
    on_growth: Callable[[Mapping[str, Usage]], None],
) -> None:
    """Restart the broker whenever it dies, also while it starts, until the budget is spent.

    Args:
        broker: It has been started.
        scope: Ends this.
        stop: Of the run.
        budget: Of the restarts.
        on_growth: Receives what each user keeps in its memory, whenever that has grown.
    """
    with scope:
        while True:
            why = await broker.wait(on_growth)
            stop.note("broker", f"{broker.kind} died and is restarted; {why}")
            problem = BrokerError(
                f"{broker.kind}: died {budget.restarts + 1} times without a round with an update "
                f"in between; see {broker.log}"
            )
            is_up = False
            while not is_up:
                if not budget.spend():
                    stop.fail(problem)
                    return
                try:
                    await broker.restart()
                    is_up = True
                except BrokerError as exc:
                    problem = exc
                    await anyio.sleep(BROKER_RETRY_S)


async def enrol_on_demand(
    broker: Broker, accounts: RunAccounts, folder: Path, scope: anyio.CancelScope, stop: StopControl
) -> None:
    """Let the broker accept each user that `fairbed enroll NAME --run` adds to the folder."""
    problem = ""
    with scope:
        while True:
            users = await anyio.to_thread.run_sync(enrolled_users, folder)
            new = [user for user in users if user not in accounts]
            try:
                await broker.enrol(new)
                problem = ""
            except BrokerError as exc:  # tried again until the disk has space
                if str(exc) != problem:
                    stop.note("broker", str(exc))
                problem = str(exc)
            await anyio.sleep(ENROL_POLL_S)


def _clean_up(folder: Path, is_new: bool, end: str) -> None:
    """Remove files that no reader and no resumed run needs."""
    if is_new and not (folder / DATABASE).exists():
        clear(folder)
    elif end == "done":
        for name in ("cache", "state", ENROLLED):  # of the devices
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / ENDPOINT_FILE).unlink(missing_ok=True)


def _load(
    plan: RunPlan, names: list[str], attacks: list[Attack | None]
) -> tuple[FleetData, Artifact]:
    experiment = plan.experiment
    seed = experiment.seed_for("data")
    dataset = load_examples(experiment, os.environ)
    data = FleetData(
        dataset,
        experiment.data,
        devices=experiment.shards,
        seed=seed,
        names=names if plan.knows_fleet else (),
        planned=names,
        earlier_names=earlier_names if plan.experiment.broker.url == LAB else no_earlier_names,
        assignments=StoredShards.read(plan.folder),
        poisoned=[k for k, attack in enumerate(attacks) if attack and attack.poisons_labels],
        poison_seed=experiment.seed_for("malicious"),
        sends_held_out=experiment.personalisation.is_on or experiment.model.has_local_values,
    )
    dataset = data.dataset
    artifact = task_of(experiment.model, dataset)
    experiment.check_layout(artifact.spec.layout)
    check_parts(experiment, artifact)
    columns = "" if dataset.encoding is None else dataset.encoding.columns_of_x(MAX_TEXT)
    labels = tuple(map(str, dataset.labels))
    return data, msgspec.structs.replace(
        artifact,
        scale=scale_of(dataset.x),
        columns=columns,
        labels=labels,
        preparation=dataset.preparation,
        is_autoencoder=dataset.is_autoencoder,
    )


def _provenance(
    plan: RunPlan, reader: InputReader, data: FleetData, costs: WorkCosts | None
) -> tuple[Inputs, Provenance]:
    """Return the inputs of the run, and where it comes from."""
    inputs = reader.read(data.dataset)
    found = provenance(plan.origin, data, plan.origins, inputs.hashes)
    return inputs, msgspec.structs.replace(found, calibration=_calibration(plan, costs))


def _open_store(plan: RunPlan, data: FleetData, found: Provenance) -> tuple[Store, int, str | None]:
    """Return the run's store, the number of earlier starts, and what differs from the first."""
    if not (plan.folder / DATABASE).exists():
        return (
            Store.create(
                plan.folder,
                NewRun(
                    run_id=plan.run_id,
                    name=plan.experiment.name,
                    experiment_toml=plan.experiment.resolved_toml(),
                    seed=plan.experiment.seed,
                    config_hash=plan.experiment.hash(),
                    version=agent_version(),
                    provenance=found,
                    dilation=plan.dilation,
                    task=data.dataset.kind,
                ),
            ),
            0,
            None,
        )
    store = Store.reopen(plan.folder)
    with RunReader(plan.folder) as reader:
        row = reader.run().row
    before = msgspec.json.decode(row.provenance, type=Provenance)
    return store, row.resumes, difference(before, found)
