"""The agent: receives the messages of one coordinator and acts according to the lifecycle table.

Message handlers run one by one and never wait; longer work runs as a named task of one task group.
An invalid message of the coordinator is logged and ignored; an internal error fails one round.
"""

import logging
import platform
import random
import secrets
import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeAlias

import anyio
from anyio.abc import TaskGroup

from fairbed.device_agent.assignment import CurrentAssignment
from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.errors import AgentRefused
from fairbed.device_agent.example_count import count_examples
from fairbed.device_agent.host import Host, Sensors
from fairbed.device_agent.installed import (
    agent_version,
    engine_version,
    installed_engines,
    known_rules,
)
from fairbed.device_agent.joining import Joining, Preparation
from fairbed.device_agent.link_probe import LinkProber
from fairbed.device_agent.log import RecentLog
from fairbed.device_agent.name_conflict import SIGHTINGS, NameConflict
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.round import RoundContext
from fairbed.device_agent.signatures import DeviceSignatures, binding_of
from fairbed.device_agent.state.lifecycle import Event, IllegalEvent, Phase, step
from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.device_agent.telemetry import Telemetry
from fairbed.device_agent.transfers import Pulls
from fairbed.device_agent.worker import TrainingThread
from fairbed.wire.chunks import decode_chunk
from fairbed.wire.codec import decode_from_coordinator, decode_from_device, encode
from fairbed.wire.errors import DecodeError, Disconnected, Refused
from fairbed.wire.messages import (
    ALTERNATING_SKILL,
    AUGMENT_SKILL,
    CODECS,
    OPTIMISER_SKILL,
    Cancel,
    Capabilities,
    CoordinatorStatus,
    EvaluateRequest,
    FromDevice,
    Goodbye,
    Grant,
    Hello,
    LinkProbeReply,
    Ping,
    Pong,
    Refuse,
    Status,
    ToDevice,
    Train,
    UploadAck,
    UploadResult,
    Welcome,
)
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Incoming, LinkDown, LinkUp, Packet, Transport, Will
from fairbed.wire.transport.client import backoff_s

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

if TYPE_CHECKING:
    from fairbed.device_agent.engines.base import OpenEngine

_log = logging.getLogger(__name__)

TransportFactory: TypeAlias = Callable[[Will], Transport]

SKILLS = (
    ALTERNATING_SKILL,
    AUGMENT_SKILL,
    "base",
    "loss",
    OPTIMISER_SKILL,
    "personal",
    "privacy",
    "test",
)
"""Requests served beside the training of a global model."""

SCALE_SKILL = "scale"
"""The device sends the scale of its own data if the coordinator wants it."""

LOG_SKILL = "log"
"""The device sends lines of its log if the coordinator wants them."""


def capabilities(
    sensors: Sensors,
    engine_threads: int,
    allowed_rules: Collection[str] = (),
    min_noise_multiplier: float = 0.0,
    allowed_models: Collection[str] = (),
    allowed_clients: Collection[str] = (),
    *,
    sends_log: bool = False,
) -> Capabilities:
    """Return the capabilities of this device, sent in its hello.

    Args:
        sensors: The machine.
        engine_threads: Threads of one training step.
        allowed_rules: Paths of local rules that a coordinator may ask for.
        min_noise_multiplier: Least noise that the owner accepts.
        allowed_models: Python modules with torch models that the owner allows.
        allowed_clients: Names of the clients that the owner allows.
        sends_log: The owner lets lines of the log leave the device.

    Raises:
        EngineError: The training engine is not installed.
    """
    return Capabilities(
        cores=sensors.cores(),
        memory_bytes=sensors.memory_bytes(),
        machine=platform.machine(),
        python=platform.python_version(),
        engine=engine_version(),
        engine_threads=engine_threads,
        agent=agent_version(),
        model=sensors.board(),
        codecs=CODECS,
        skills=(
            *SKILLS,
            *((LOG_SKILL,) if sends_log else ()),
            *(() if min_noise_multiplier else (SCALE_SKILL,)),
        ),
        local_rules=known_rules(allowed_rules),
        min_noise_multiplier=min_noise_multiplier,
        engines=installed_engines(),
        models=tuple(sorted(allowed_models)),
        clients=tuple(sorted(allowed_clients)),
    )


OFF_STATUS_TIMEOUT_S = 1.0
"""Longest wait for the broker to take the `off` status at exit."""

STATUS_CAP_S = 30.0
"""Longest wait between two subscriptions to the status of a coordinator while there is none."""


class Agent:
    """The agent of one device.

    Args:
        config: Configuration from flags and file.
        host: The machine, real or emulated.
        transport_factory: Returns the link to the broker, with the last will of this agent.
        open_engine: Opens the training engine of a task; None opens it by its kind.
        log: Lines that the coordinator may have; None if it gets none.
    """

    def __init__(
        self,
        config: AgentConfig,
        host: Host,
        transport_factory: TransportFactory,
        open_engine: "OpenEngine | None" = None,
        log: RecentLog | None = None,
    ) -> None:
        self._config = config
        self._host = host
        self._transport_factory = transport_factory
        self._open_engine = open_engine
        self._log = log
        self._name = config.name
        self._topics = Topics(config.tenant)
        self._boot = secrets.randbits(40)
        self._random = random.Random()
        self._name_conflict = NameConflict(self._boot)
        self._phase = Phase.OFFLINE
        self._fault: AgentRefused | None = None
        self._coordinator: CoordinatorStatus | None = None
        """The last coordinator that was on."""
        self._is_linked = False
        self._is_coordinator_on = False
        self._wants_log = False
        """The coordinator wants lines of the log."""
        self._chunk_topics = (f"{self._topics.base}/b/", self._topics.data(self._name))

    @property
    def phase(self) -> Phase:
        """Current phase of the lifecycle."""
        return self._phase

    @property
    def is_ready(self) -> bool:
        """Task and data are on the device: it can accept a `Train`."""
        has_joined = self._phase is Phase.IDLE or self._phase.is_working
        return has_joined and self._worker.is_prepared

    async def run(self) -> None:
        """Serve coordinators until cancelled, refused for good, or (with `once`) a run is over.

        An agent that is refused for one run, or by a broker whose transport waits, waits.

        A cancelled agent still publishes its `off` status, which arrives earlier than the last
        will.

        Raises:
            DataError: The device's own data cannot be used.
            EngineError: The training engine is not installed.
            AgentRefused: The coordinator or the broker refused this device for good.
        """
        own_data = self._config.data_path
        n_k = await count_examples(own_data) if own_data else None
        hello = Hello(
            boot=self._boot,
            n_k=n_k,
            capabilities=capabilities(
                self._host.sensors,
                self._config.engine_threads,
                self._config.local_training,
                self._config.privacy.min_noise_multiplier,
                self._config.allow_models,
                self._config.clients,
                sends_log=self._log is not None,
            ),
        )
        self._signatures = DeviceSignatures(
            self._name, self._config.task_key, hello, self._on_coordinator_proved
        )
        off = Status(state="off", boot=self._boot)
        transport = self._transport_factory(Will(self._topics.status(self._name), encode(off)))
        self._scope = anyio.CancelScope()
        async with anyio.create_task_group() as watch:
            watch.start_soon(self._leave_when_cancelled, name=f"agent[{self._name}].cancelled")
            # A cancellation must not end the tasks of the link before the `off` status is sent.
            with anyio.CancelScope(shield=True):
                await self._serve(transport, off)
            watch.cancel_scope.cancel()
        if self._fault is not None:
            raise self._fault

    async def _serve(self, transport: Transport, off: Status) -> None:
        with ExitStack() as closing:
            await self._serve_until(transport, off, closing)

    async def _serve_until(self, transport: Transport, off: Status, closing: ExitStack) -> None:
        async with transport, anyio.create_task_group() as group:
            self._build(transport, group)
            closing.callback(self._worker.close)  # when its thread has ended, too
            try:
                with self._scope:
                    group.start_soon(self._telemetry.run, name=f"agent[{self._name}].telemetry")
                    if self._host.energy is not None:
                        group.start_soon(self._host.energy.run, name=f"agent[{self._name}].energy")
                    group.start_soon(self._joining.send_hellos, name=f"agent[{self._name}].hello")
                    group.start_soon(
                        self._refresh_coordinator_status, name=f"agent[{self._name}].status"
                    )
                    group.start_soon(self._prober.run, name=f"agent[{self._name}].probe")
                    await self._receive(transport)
            finally:
                self._rounds.stop("the agent stops")
                with anyio.move_on_after(OFF_STATUS_TIMEOUT_S, shield=True):
                    await self._publisher.send(off)
                group.cancel_scope.cancel()

    def _run_id(self) -> str:
        """Return the run of the coordinator; empty if it names none."""
        return "" if self._coordinator is None else self._coordinator.run_id

    async def _leave_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._scope.cancel()

    def _build(self, transport: Transport, group: TaskGroup) -> None:
        """Create the parts that belong to one call of `run`."""
        config, clock = self._config, self._host.clock
        self._group = group
        self._publisher = DevicePublisher(
            transport,
            self._topics,
            self._name,
            group,
            self._host.behaviour,
            self._signatures.signed,
        )
        self._link = LinkEstimate()
        self._pulls = Pulls(self._publisher, self._topics, clock, self._link)
        cache = BlobCache(
            config.cache_path,
            config.cache_bytes,
            config.base_folder_path,
            config.base_path,
            config.base_links_path,
        )
        self._worker = TrainingThread(
            self._host,
            cache,
            config.state_path,
            self._open_engine,
            config.engine_threads,
            config.local_training,
            config.privacy.min_noise_multiplier,
            config.allow_models,
            config.clients,
        )
        context = RoundContext(
            name=self._name,
            clock=clock,
            publisher=self._publisher,
            pulls=self._pulls,
            worker=self._worker,
            link=self._link,
            timeouts=config.timeouts,
            energy=self._host.energy,
        )
        self._rounds = CurrentAssignment(
            context, group, lambda: self._phase, self._step, self._apply_deferred
        )
        self._prober = LinkProber(
            self._name,
            self._publisher,
            self._link,
            clock,
            config.timeouts.probe_s,
            lambda: self._phase in (Phase.IDLE, Phase.PREPARING),
        )
        self._joining = Joining(
            context,
            group,
            Preparation(context, cache, self._prober, config.data_path, self._run_id),
            lambda: self._signatures.hello,
            lambda: self._phase,
            self._step,
            self._apply_deferred,
        )
        self._telemetry = Telemetry(
            self._host,
            self._publisher,
            self._worker,
            self._link,
            boot=self._boot,
            engine_threads=config.engine_threads,
            period_s=config.telemetry_s,
            state=lambda: (self._phase, self.is_ready),
            on_sent=self._send_log,
        )

    async def _refresh_coordinator_status(self) -> None:
        """Subscribe again to the coordinator's status while no coordinator is known.

        A broker may lose a retained message that is published during a subscription (NATS 2.15
        did in 10 of 300 tries); a second subscription delivers it.
        """
        base_s = self._config.timeouts.hello_s
        tries = 0
        while True:
            cap_s = max(base_s, STATUS_CAP_S)
            await anyio.sleep(backoff_s(tries, self._random.random(), base_s, cap_s))
            if self._phase is Phase.WAITING:
                self._publisher.subscribe(self._topics.coordinator, qos=1)
                tries += 1
            else:
                tries = 0

    async def _receive(self, transport: Transport) -> None:
        topics, name = self._topics, self._name
        with suppress(Disconnected):  # the filters take effect after the reconnect
            await transport.subscribe(
                topics.control(name), topics.control_all, topics.coordinator, qos=1
            )
        with suppress(Disconnected):
            await transport.subscribe(topics.data(name), qos=0)
        try:
            async for event in transport.events():
                self._on_incoming(event)
        except Refused as exc:
            self._finish(AgentRefused(str(exc)))

    def _on_incoming(self, event: Incoming) -> None:
        match event:
            case Packet():
                self._on_packet(event)
            case LinkUp():
                self._on_link_up()
            case LinkDown(reason=reason):
                self._on_link_down(reason)

    def _on_link_up(self) -> None:
        self._is_linked = True
        self._name_conflict.on_link_up(self._host.clock.now())
        self._step(Event.LINK_UP)
        self._publisher.publish(Status(state="on", boot=self._boot))
        self._pulls.on_link_up()
        self._rounds.on_link_up()
        self._prober.wake()
        self._telemetry.send_now()

    def _on_link_down(self, reason: str) -> None:
        _log.warning("%s: link lost: %s", self._name, reason)
        if self._name_conflict.on_link_down(self._host.clock.now()):
            self._publisher.subscribe(self._topics.status(self._name), qos=1)
        self._is_linked = self._is_coordinator_on = False
        self._pulls.on_link_down()
        self._rounds.pause()
        self._step(Event.LINK_LOST)

    def _on_packet(self, packet: Packet) -> None:
        """Handle one packet; a malformed one is logged and ignored."""
        arrived_s = self._host.clock.now()
        if not packet.payload:  # a retained topic was cleared
            return
        try:
            if packet.topic.startswith(self._chunk_topics):
                self._pulls.on_chunk(decode_chunk(packet.payload), packet.topic)
            elif packet.topic == self._topics.status(self._name):
                self._on_own_status(decode_from_device(packet.payload))
            else:
                message = self._signatures.opened(decode_from_coordinator(packet.payload))
                if message is not None:
                    self._on_message(message, arrived_s)
        except DecodeError as exc:
            _log.warning("%s: ignored a packet on %s: %s", self._name, packet.topic, exc)

    def _on_own_status(self, status: FromDevice) -> None:
        """Handle a status on the own topic: of this agent, or of another one of its name."""
        if not isinstance(status, Status) or status.boot == self._boot:
            return
        problem = f"{self._name}: another agent of this name is connected to the broker"
        before = self._name_conflict.sightings
        if self._name_conflict.on_status(status.boot):
            self._finish(AgentRefused(f"{problem}; stop it, or start this one with another --name"))
        elif before < SIGHTINGS == self._name_conflict.sightings:
            _log.warning("%s and disconnects this one; stop it, or give it another name", problem)

    def _on_message(self, message: ToDevice, arrived_s: float) -> None:
        match message:
            case Ping(seq=seq):
                self._publisher.publish(Pong(seq=seq), qos=0)
            case Train():
                self._rounds.on_train(message, arrived_s)
            case EvaluateRequest():
                self._rounds.on_evaluate_request(message, arrived_s)
            case Grant() | UploadAck() | UploadResult():
                self._rounds.on_message(message)
            case Cancel():
                self._rounds.on_cancel(message)
            case Welcome():
                self._on_welcome(message)
            case LinkProbeReply():
                self._prober.on_reply(message)
            case CoordinatorStatus():
                self._on_coordinator(message)
            case Refuse():
                self._on_refuse(message)
            case Goodbye():
                self._on_goodbye(message)
            case _:
                assert_never(message)

    def _on_coordinator(self, status: CoordinatorStatus) -> None:
        known = self._coordinator
        if status.state == "off":
            is_known = known is not None and status.boot == known.boot
            if is_known and self._is_coordinator_on:
                self._is_coordinator_on = False
                self._rounds.pause()
                self._step(Event.COORDINATOR_LEFT)
            return
        is_known = known is not None and binding_of(status) == binding_of(known)
        if not is_known and self._signatures.are_demanded and self._phase.is_working:
            hello = self._signatures.expect(status)
            if hello is not None:
                self._publisher.publish(hello)
            return
        was_on = self._is_coordinator_on
        if is_known:
            self._signatures.forget_expected()
            self._rounds.resume()
            self._is_coordinator_on = True
        else:
            self._begin_with(status)
        if not is_known or self._phase is Phase.WAITING:
            self._step(Event.COORDINATOR_SEEN)
            self._joining.hello_now()
        elif not was_on:
            # The link was lost meanwhile: send `Hello` and the last message again.
            self._joining.repeat_hello()
            self._rounds.repeat()

    def _begin_with(self, status: CoordinatorStatus) -> None:
        """Leave the last coordinator for another one."""
        self._signatures.begin(status)
        self._is_coordinator_on, self._coordinator = True, status
        self._wants_log = False
        self._rounds.resume()
        self._rounds.stop("another coordinator is online")
        self._rounds.forget()
        self._joining.stop()

    def _on_coordinator_proved(self, status: CoordinatorStatus) -> None:
        """Leave the work for the last coordinator: its successor has signed a `Welcome`."""
        self._begin_with(status)
        self._step(Event.COORDINATOR_SEEN)

    def _on_welcome(self, welcome: Welcome) -> None:
        known = self._coordinator
        if known is None or welcome.boot != known.boot:
            return
        if known.task in (None, welcome.task.sha256):
            self._link.max_chunk_bytes = welcome.max_chunk_bytes
            self._wants_log = welcome.wants_log
            self._joining.on_welcome(welcome)

    def _on_refuse(self, refuse: Refuse) -> None:
        problem = f"refused by the coordinator: {refuse.reason}"
        if refuse.is_final or self._config.once:  # there is no later run to wait for
            self._finish(AgentRefused(f"{self._name}: {problem}"))
        else:
            self._joining.hello_later(problem)

    def _on_goodbye(self, goodbye: Goodbye) -> None:
        _log.info("%s: the coordinator ended the run: %s", self._name, goodbye.reason)
        if self._config.once:
            self._finish(None)
        elif self._phase.is_working:
            self._rounds.stop("the run is over")
            self._step(Event.ENDED)
            self._apply_deferred()

    def _finish(self, fault: AgentRefused | None) -> None:
        self._fault = fault
        self._step(Event.FINISHED)
        self._scope.cancel()

    def _apply_deferred(self) -> None:
        """Apply changes of link and coordinator that were deferred during the work."""
        expected = self._signatures.expected
        if not self._is_linked:
            self._step(Event.LINK_LOST)
        elif expected is not None:
            self._on_coordinator(expected)
        elif not self._is_coordinator_on:
            self._step(Event.COORDINATOR_LEFT)
        elif self._phase is Phase.IDLE and not self._worker.is_prepared:
            self._step(Event.COORDINATOR_SEEN)
            self._joining.hello_now()
        self._prober.wake()

    def _send_log(self) -> None:
        """Send lines of the log, if nothing is measured meanwhile: no exchange, no link."""
        if self._log is None or not self._wants_log or not self._is_coordinator_on:
            return
        if self._phase in (Phase.JOINING, Phase.IDLE):
            lines = self._log.take(self._boot)
            if lines is not None:
                self._publisher.publish(lines)

    def _step(self, event: Event) -> None:
        try:
            phase = step(self._phase, event)
        except IllegalEvent as exc:
            _log.warning("%s: %s", self._name, exc)
            return
        if phase is self._phase:
            return
        was_ready, self._phase = self.is_ready, phase
        level = logging.DEBUG if self._phase.is_working else logging.INFO
        _log.log(level, "%s round %s: %s", self._name, self._rounds.round_id or "-", self._phase)
        self._send_log()
        if self.is_ready != was_ready:
            self._telemetry.send_now()
        elif self._phase is not Phase.IDLE:
            self._telemetry.send_soon()
        elif event is Event.UPLOAD_CONFIRMED:
            self._telemetry.send_next()
        else:
            self._telemetry.send_now()
