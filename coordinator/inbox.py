"""Every packet that reaches the coordinator, sorted to whom it concerns.

One consumer, in order. What needs an answer from the broker runs as a task of its own, so that
one slow publish never holds the stopwatch back.
"""

from collections.abc import Callable
from contextlib import suppress

from anyio.abc import TaskGroup

from coordinator.blobs import PrivateBlobs, PublicBlobs
from coordinator.fleet import Fleet
from coordinator.journal import Journal
from coordinator.play import Player
from wire.codec import decode_command, decode_from_device
from wire.errors import DecodeError, Disconnected
from wire.messages import (
    ChunkRequest,
    Command,
    Context,
    Failed,
    FromDevice,
    Hello,
    LinkProbe,
    Offer,
    Pong,
    Status,
    UploadDone,
)
from wire.topics import Topics
from wire.transport.base import Packet, Transport


class Inbox:
    """Decodes packets, drops what breaks the protocol, and hands the rest on."""

    def __init__(
        self,
        topics: Topics,
        fleet: Fleet,
        player: Player,
        public: PublicBlobs,
        private: PrivateBlobs,
        journal: Journal,
        group: TaskGroup,
        on_command: Callable[[Command], None],
    ) -> None:
        self._topics = topics
        self._fleet = fleet
        self._player = player
        self._public = public
        self._private = private
        self._journal = journal
        self._group = group
        self._on_command = on_command
        self._intents = topics.base + "/b/"

    async def subscribe(self, transport: Transport) -> None:
        """Subscribe to all that devices and people write; remembered over reconnects."""
        t = self._topics
        with suppress(Disconnected):
            await transport.subscribe(t.up("+"), t.status("+"), t.command, qos=1)
        with suppress(Disconnected):
            await transport.subscribe(t.telemetry("+"), t.upload("+"), qos=0)

    async def on_packet(self, packet: Packet) -> None:
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
            await self._player.on_frame(device, packet.payload)
            return
        if not packet.payload:
            return
        try:
            message = decode_from_device(packet.payload)
        except DecodeError as exc:
            self._journal.complaint("bad message", str(exc), device=device)
            return
        await self._on_message(device, message)

    async def _on_message(self, device: str, message: FromDevice) -> None:
        start = self._group.start_soon
        match message:
            case Context():
                self._fleet.on_context(device, message)
            case Hello():
                start(self._hello, device, message)
            case Status():
                self._fleet.on_status(device, message)
            case Offer():
                start(self._player.on_offer, device, message)
            case UploadDone():
                start(self._player.on_done, device, message)
            case Failed():
                self._player.on_failed(device, message)
            case Pong():
                self._player.on_pong(device, message)
            case ChunkRequest():
                start(self._private.on_request, device, message)
            case LinkProbe():
                start(self._fleet.on_probe, device, message)

    async def _hello(self, device: str, hello: Hello) -> None:
        is_other_process = await self._fleet.on_hello(device, hello)
        await self._player.on_hello(device, is_other_process)
