"""Every packet that reaches the coordinator, sorted to whom it concerns.

One consumer, in order. What has to wait runs as a task of its own, so that it never holds the
stopwatch back; of one device at most `MAX_PENDING` such tasks at a time.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from anyio.abc import TaskGroup

from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.messaging.blobs import PrivateBlobs, PublicBlobs
from fairbed.coordinator.rounds.executor import RoundExecutor
from fairbed.coordinator.rounds.loss_query import LossQueryExecutor
from fairbed.coordinator.store.event_log import EventLog
from fairbed.wire.codec import decode_command, decode_from_device
from fairbed.wire.errors import DecodeError, Disconnected
from fairbed.wire.messages import (
    ChunkRequest,
    Context,
    EvaluateReply,
    Failed,
    FromDevice,
    Hello,
    LinkProbe,
    Offer,
    OperatorCommand,
    Pong,
    Status,
    UploadDone,
)
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Packet, Transport

MessageT = TypeVar("MessageT", Hello, ChunkRequest)

MAX_PENDING = 16
"""Hellos and requests of one device that are dealt with at a time: twice the widest window. More
are dropped, and a device that means well asks again."""


class Router:
    """Decodes packets, drops what breaks the protocol, and hands the rest on."""

    def __init__(
        self,
        topics: Topics,
        fleet: Fleet,
        player: RoundExecutor,
        asker: LossQueryExecutor,
        public: PublicBlobs,
        private: PrivateBlobs,
        journal: EventLog,
        group: TaskGroup,
        on_command: Callable[[OperatorCommand], None],
    ) -> None:
        self._topics = topics
        self._fleet = fleet
        self._player = player
        self._asker = asker
        self._public = public
        self._private = private
        self._journal = journal
        self._group = group
        self._on_command = on_command
        self._pending: Counter[str] = Counter()
        self._intents = topics.base + "/b/"

    async def subscribe(self, transport: Transport) -> None:
        """Subscribe to all that devices and people write; remembered over reconnects."""
        t = self._topics
        with suppress(Disconnected):
            await transport.subscribe(t.up("+"), t.status("+"), t.command, qos=1)
        with suppress(Disconnected):
            await transport.subscribe(t.telemetry("+"), t.upload("+"), qos=0)

    def on_link_up(self) -> None:
        """Our own link is up."""
        self._fleet.on_link_up()
        self._player.on_link_up()
        self._asker.on_link_up()

    def on_link_down(self) -> None:
        """Our own link is gone."""
        self._fleet.on_link_down()
        self._player.on_link_down()
        self._asker.on_link_down()

    def on_packet(self, packet: Packet) -> None:
        """Deal with one packet; whatever it holds, the coordinator goes on."""
        if packet.topic.startswith(self._intents):
            self._group.start_soon(self._public.on_intent, packet)
            return
        try:
            if packet.topic == self._topics.command:
                self._on_command(decode_command(packet.payload))
                return
            device, channel = self._topics.device_of(packet.topic)
        except DecodeError as exc:
            self._journal.complaint("bad message", str(exc))
            return
        self._fleet.registry.heard(device, self._journal.now())
        if channel == "upload":
            self._player.on_frame(device, packet.payload)
            return
        if not packet.payload:
            return
        try:
            message = decode_from_device(packet.payload)
        except DecodeError as exc:
            self._journal.complaint("bad message", str(exc), device=device)
            return
        self._on_message(device, message)

    def _on_message(self, device: str, message: FromDevice) -> None:
        match message:
            case Context(phase=phase):
                if self._fleet.on_context(device, message) and phase == "idle":
                    self._player.on_idle(device)
                    self._asker.on_idle(device)
            case Hello():
                self._start(device, self._hello, message)
            case Status():
                self._fleet.on_status(device, message)
            case Offer():
                self._player.on_offer(device, message)
            case UploadDone():
                self._player.on_done(device, message)
            case EvaluateReply():
                self._asker.on_answer(device, message)
            case Failed():
                if not self._asker.on_failed(device, message):
                    self._player.on_failed(device, message)
            case Pong():
                self._player.on_pong(device, message)
            case ChunkRequest():
                self._start(device, self._request, message)
            case LinkProbe():
                self._fleet.on_probe(device, message)

    async def _hello(self, device: str, hello: Hello) -> None:
        is_other_process = await self._fleet.on_hello(device, hello)
        self._player.on_hello(device, is_other_process)
        self._asker.on_hello(device, is_other_process)

    async def _request(self, device: str, request: ChunkRequest) -> None:
        if not await self._public.on_request(request):
            await self._private.on_request(device, request)

    def _start(
        self, device: str, work: Callable[[str, MessageT], Awaitable[None]], message: MessageT
    ) -> None:
        if self._pending[device] >= MAX_PENDING:
            self._journal.complaint("flood", "asks faster than it is served", device=device)
            return
        self._pending[device] += 1
        name = f"coordinator.{type(message).__name__}[{device}]"
        self._group.start_soon(self._work, device, work, message, name=name)

    async def _work(
        self, device: str, work: Callable[[str, MessageT], Awaitable[None]], message: MessageT
    ) -> None:
        try:
            await work(device, message)
        finally:
            self._pending[device] -= 1
            if not self._pending[device]:
                del self._pending[device]
