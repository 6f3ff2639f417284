"""Decodes every packet that reaches the coordinator and passes it to its receiver.

Packets are handled in order. A handler that has to wait runs as a task of its own, so that it
never delays the measurement of an exchange; at most `MAX_PENDING` such tasks per device.

Each device has limits of its own for the number of its messages. What is above them is dropped
before it is decoded, and counted in one warning. Chunks of an upload that was granted are not
limited: their window is.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from anyio.abc import TaskGroup

from fairbed.coordinator.fleet.device_logs import DeviceLogs
from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.messaging.blobs import PrivateBlobs, PublicBlobs
from fairbed.coordinator.messaging.signatures import FleetSignatures
from fairbed.coordinator.rounds.executor import Receiver, RoundExecutor
from fairbed.coordinator.state.rate_limit import MAX_KEYS, RateLimit
from fairbed.coordinator.store.event_log import EventLog
from fairbed.wire.codec import decode_command, decode_from_agent
from fairbed.wire.errors import DecodeError, Disconnected
from fairbed.wire.messages import (
    BaseArrived,
    ChunkRequest,
    Context,
    DataScale,
    EvaluateReply,
    Failed,
    FromDevice,
    Hello,
    LinkProbe,
    LogLines,
    Offer,
    OperatorCommand,
    PersonalScore,
    Pong,
    Signed,
    Status,
    Trouble,
    UploadDone,
)
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Packet, Transport

MessageT = TypeVar("MessageT", Hello, ChunkRequest)

TOO_MANY = "sends more messages than any device needs; the rest is dropped"

MAX_PENDING = 16
"""Hellos and chunk requests of one device that are handled at the same time: twice the largest
window. More are dropped; a device repeats them."""

MESSAGES = 200.0, 1_000
"""Messages of a device per second, and at once. A device in ten rounds a second sends 100: five
phases in contexts, an offer, a hash, requests."""

HELLOS = 1.0, 20
"""Hellos: a device repeats one every 2 s until it is welcome."""

PROBES = 1.0, 20
"""Link probes, which each cost 64 KiB both ways: a device sends three, then pauses for a minute."""

COMMANDS = 10.0, 100
"""Commands of an operator: each is a row in store and audit log."""

FLOOD_MESSAGES = 2_000
"""A device that sends so many messages above its limits floods: see `Routes.on_flood`."""

MUTED_S = 60.0
"""How long a device that floods is ignored; the broker of a run refuses it for as long."""

FLOODS = 1.0 / MUTED_S, 1
"""How often that is reported of a device; messages still arrive when the broker refuses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The receivers of packets."""

    fleet: Fleet
    logs: DeviceLogs
    executor: RoundExecutor
    receivers: Sequence[Receiver]
    """Parts of the run beside its rounds that wait for messages of devices."""
    public: PublicBlobs
    private: PrivateBlobs
    signatures: FleetSignatures
    on_command: Callable[[OperatorCommand, str], None]
    """Takes the command and the name of its operator."""
    on_watch: Callable[[], None] = lambda: None
    """Called when a viewer asks for rows, which another process answers."""
    is_refused: Callable[[str], bool] = lambda device: False
    """Whether no packet of a device is handled any more."""
    on_flood: Callable[[str], None] = lambda device: None
    """Called when a device floods, at most once a minute."""


class Router:
    """Decodes packets and passes each to its receiver."""

    def __init__(
        self, topics: Topics, routes: Routes, event_log: EventLog, group: TaskGroup
    ) -> None:
        self._topics = topics
        self._fleet = routes.fleet
        self._logs = routes.logs
        self._executor = routes.executor
        self._receivers = routes.receivers
        self._public = routes.public
        self._private = routes.private
        self._signatures = routes.signatures
        self._on_command = routes.on_command
        self._on_watch = routes.on_watch
        self._is_refused = routes.is_refused
        self._event_log = event_log
        self._group = group
        self._pending: Counter[str] = Counter()
        self._on_flood = routes.on_flood
        self._messages, self._hellos = RateLimit(*MESSAGES), RateLimit(*HELLOS)
        self._probes, self._commands = RateLimit(*PROBES), RateLimit(*COMMANDS)
        self._floods = RateLimit(*FLOODS)
        self._dropped: Counter[str] = Counter()
        """Messages above the limits, of each device that sent some."""
        self._muted: dict[str, float] = {}
        """Topics of devices that flood, and until when their messages are ignored."""
        self._sources: dict[str, tuple[str, str]] = {}
        """Device and channel of the topics of devices, at most `MAX_KEYS`."""
        self._intents, self._watches = topics.base + "/b/", topics.watch("")

    async def subscribe(self, transport: Transport) -> None:
        """Subscribe to messages of devices, operators and viewers, now and after reconnects."""
        t = self._topics
        with suppress(Disconnected):
            await transport.subscribe(t.up("+"), t.status("+"), t.command("+"), qos=1)
        with suppress(Disconnected):
            await transport.subscribe(t.telemetry("+"), t.upload("+"), t.watch("+"), qos=0)

    def on_link_up(self) -> None:
        """Notify the receivers that the coordinator's link is up."""
        self._fleet.on_link_up()
        self._executor.on_link_up()
        for receiver in self._receivers:
            receiver.on_link_up()

    def on_link_down(self) -> None:
        """Notify the receivers that the coordinator's link is down."""
        self._fleet.on_link_down()
        self._executor.on_link_down()
        for receiver in self._receivers:
            receiver.on_link_down()

    def on_packet(self, packet: Packet) -> None:
        """Handle one packet; a bad packet becomes a warning, not an error."""
        if packet.topic in self._muted and self._is_muted(packet.topic):
            return
        source = self._sources.get(packet.topic)
        try:
            if source is None:
                source = self._source_of(packet)
                if source is None:
                    return
            device, channel = source
            if channel != "status":
                _check_is_live(packet)
        except DecodeError as exc:
            self._event_log.warn("bad message", str(exc))
            return
        if self._is_refused(device):
            return
        now = self._event_log.now()
        self._fleet.registry.record_packet(device, now)
        if channel == "upload" and self._executor.expects_frame(device):
            self._executor.on_frame(device, packet.payload)
            return
        if not self._messages.take(device, now):
            self._on_excess(device)
            return
        if channel == "upload":  # of an upload that is over, or was never granted
            return
        if not packet.payload:
            return
        try:
            received = decode_from_agent(packet.payload)
            message = self._signatures.opened(device, received)
        except DecodeError as exc:
            self._event_log.warn("bad message", str(exc), device=device)
            return
        if message is not None:
            self._on_message(device, message, received if isinstance(received, Signed) else None)

    def _source_of(self, packet: Packet) -> tuple[str, str] | None:
        """Return device and channel of a topic; handle a packet that is of no device.

        Raises:
            DecodeError: The topic is of none of them, or a command is not valid.
        """
        topic = packet.topic
        if topic.startswith(self._intents):
            self._group.start_soon(self._public.on_intent, packet)
            return None
        if topic.startswith(self._watches):
            if not packet.retained:
                self._on_watch()
            return None
        operator = self._topics.operator_of(topic)
        if operator is not None:
            _check_is_live(packet)
            if not self._commands.take(operator, self._event_log.now()):
                self._event_log.warn("flood", f"operator {operator}: {TOO_MANY}")
                return None
            self._on_command(decode_command(packet.payload), operator)
            return None
        if len(self._sources) >= MAX_KEYS:
            self._sources.clear()
        found = self._sources[topic] = self._topics.device_of(topic)
        return found

    def _on_message(self, device: str, message: FromDevice, signed: Signed | None) -> None:
        """Pass on a message; `signed` is that in which it came, None if it is not signed."""
        now = self._event_log.now()
        match message:
            case Hello() if not self._hellos.take(device, now):
                self._on_excess(device)
            case LinkProbe() if not self._probes.take(device, now):
                self._on_excess(device)
            case Context(phase=phase):
                if self._fleet.on_context(device, message) and phase == "idle":
                    self._executor.on_idle(device)
                    for receiver in self._receivers:
                        receiver.on_idle(device)
            case Hello():
                self._start(device, partial(self._on_hello, signed=signed), message)
            case Status():
                self._fleet.on_status(device, message)
            case Offer():
                self._executor.on_offer(device, message)
            case UploadDone():
                self._executor.on_done(device, message)
            case EvaluateReply() | PersonalScore():
                for receiver in self._receivers:
                    receiver.on_message(device, message)
            case Failed():
                if not any([x.on_failed(device, message) for x in self._receivers]):
                    self._executor.on_failed(device, message)
            case DataScale():
                self._fleet.on_scale(device, message)
            case BaseArrived():
                self._fleet.on_base(device, message)
            case Trouble():
                self._fleet.on_trouble(device, message)
            case LogLines():
                self._logs.on_lines(device, message)
            case Pong():
                self._executor.on_pong(device, message)
            case ChunkRequest():
                self._start(device, self._on_chunk_request, message)
            case LinkProbe():
                self._fleet.on_probe(device, message)

    def _on_excess(self, device: str) -> None:
        """Count a message above the limits of a device."""
        self._event_log.warn("flood", TOO_MANY, device=device)
        if device not in self._dropped and len(self._dropped) >= MAX_KEYS:
            self._dropped.clear()
        self._dropped[device] += 1
        is_flood = self._dropped[device] % FLOOD_MESSAGES == 0
        if is_flood and self._floods.take(device, self._event_log.now()):
            self._mute(device)
            self._on_flood(device)

    def _mute(self, device: str) -> None:
        """Ignore a device for a while: hundreds of thousands of messages may wait at the broker."""
        t, until = self._topics, self._event_log.now() + MUTED_S
        for topic in (t.up(device), t.telemetry(device), t.status(device), t.upload(device)):
            self._muted[topic] = until

    def _is_muted(self, topic: str) -> bool:
        if self._event_log.now() < self._muted[topic]:
            return True
        del self._muted[topic]
        return False

    async def _on_hello(self, device: str, hello: Hello, signed: Signed | None) -> None:
        is_other_process = await self._fleet.on_hello(device, hello, signed)
        self._executor.on_hello(device, is_other_process)
        for receiver in self._receivers:
            receiver.on_hello(device, is_other_process)

    async def _on_chunk_request(self, device: str, request: ChunkRequest) -> None:
        if not await self._public.on_request(request):
            await self._private.on_request(device, request)

    def _start(
        self, device: str, handler: Callable[[str, MessageT], Awaitable[None]], message: MessageT
    ) -> None:
        if self._pending[device] >= MAX_PENDING:
            self._event_log.warn(
                "flood", "sends requests faster than they are served", device=device
            )
            return
        self._pending[device] += 1
        name = f"coordinator.{type(message).__name__}[{device}]"
        self._group.start_soon(self._handle, device, handler, message, name=name)

    async def _handle(
        self, device: str, handler: Callable[[str, MessageT], Awaitable[None]], message: MessageT
    ) -> None:
        try:
            await handler(device, message)
        finally:
            self._pending[device] -= 1
            if not self._pending[device]:
                del self._pending[device]


def _check_is_live(packet: Packet) -> None:
    """Check that a message is not one that the broker kept, perhaps of a revoked identity.

    Raises:
        DecodeError: It is.
    """
    if packet.retained:
        raise DecodeError(f"{packet.topic}: must not be retained, got a kept message; remove it")
