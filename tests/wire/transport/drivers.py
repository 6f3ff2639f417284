"""Helpers for tests of transports: wait for events, and transfer a blob in a simple way."""

from collections.abc import Callable

import anyio

from fairbed.wire.chunks import chunk_slice, decode_chunk, encode_chunk
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.errors import DecodeError, Disconnected
from fairbed.wire.messages import Grant, Manifest, UploadAck
from fairbed.wire.transfer import Download, Upload, UploadReceiver
from fairbed.wire.transport.base import Incoming, LinkDown, LinkUp, Packet, Transport

WINDOW = 4
GRANT_S = 1.0
"""Without a grant for this long, the sender subscribes again."""


async def up(transport: Transport) -> int:
    """Wait for `LinkUp`; return its count."""
    async for event in transport.events():
        if isinstance(event, LinkUp):
            return event.count
    raise AssertionError("the transport was left")


async def packets(transport: Transport, count: int) -> list[Packet]:
    """Return the next packets; link changes between them are ignored."""
    got: list[Packet] = []
    async for event in transport.events():
        if isinstance(event, Packet):
            got.append(event)
        if len(got) == count:
            return got
    raise AssertionError("the transport was left")


async def next_or_timer(transport: Transport, wake_at: float | None) -> Incoming | None:
    """Return the next event; None when `wake_at` comes first."""
    after_s = None if wake_at is None else max(0.0, wake_at - anyio.current_time())
    with anyio.move_on_after(after_s):
        return await anext(transport.events())
    return None


async def offer(transport: Transport, manifest: Manifest, data: bytes, base: str) -> None:
    """Publish the retained chunks of a blob after each connect; never returns."""
    async for event in transport.events():
        if isinstance(event, LinkUp):
            try:
                for index in range(manifest.chunk_count):
                    body = encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
                    await transport.publish(f"{base}/{index}", body, retain=True)
            except Disconnected:
                continue


async def pull(
    transport: Transport,
    manifest: Manifest,
    base: str,
    on_progress: Callable[[Download], None] = lambda download: None,
) -> Download:
    """Download a blob that is retained at the broker."""
    download = Download(manifest, WINDOW)
    while not download.is_complete:
        event = await next_or_timer(transport, download.wake_at)
        now = anyio.current_time()
        requests: list[int] = []
        done: list[str] = []
        match event:
            case None:
                requests = download.tick(now)
            case LinkUp():
                requests = download.on_link_up(now)
            case LinkDown():
                continue
            case Packet(topic, payload):
                try:
                    requests = download.on_chunk(decode_chunk(payload), now)
                except DecodeError as exc:
                    raise AssertionError("a broker does not alter bytes") from exc
                done = [topic]
        try:
            if requests:
                await transport.subscribe(*(f"{base}/{index}" for index in requests))
            if done:
                await transport.unsubscribe(*done)
        except Disconnected:
            continue
        on_progress(download)
    return download


async def send(transport: Transport, upload: Upload, up_to: str, control: str) -> Upload:
    """Upload a blob, as a device does.

    NATS may lose a retained packet that is published while we subscribe: without a grant we
    subscribe again.
    """
    while not upload.is_acknowledged:
        event = await next_or_timer(transport, upload.wake_at or anyio.current_time() + GRANT_S)
        now = anyio.current_time()
        indices: list[int] = []
        try:
            match event:
                case None if upload.wake_at is None:
                    await transport.subscribe(control, qos=1)
                case None:
                    indices = upload.tick(now)
                case LinkUp():
                    await transport.subscribe(control, qos=1)
                    indices = upload.on_link_up(now)
                case LinkDown():
                    continue
                case Packet(_, payload):
                    match decode_to_device(payload):
                        case Grant(window=window):
                            indices = upload.on_grant(window, now)
                        case UploadAck(received=received):
                            indices = upload.on_ack(received, now)
            for index in indices:
                await transport.publish(up_to, upload.frame(index))
        except Disconnected:
            continue
    return upload


async def receive(
    transport: Transport,
    receivers: dict[str, tuple[UploadReceiver, str]],
    on_progress: Callable[[UploadReceiver], None] = lambda receiver: None,
) -> None:
    """Receive uploads, each on its topic, and acknowledge on its control topic."""
    async for event in transport.events():
        try:
            match event:
                case LinkUp():
                    await transport.subscribe(*receivers)
                    for receiver, control in receivers.values():
                        grant = Grant(round=1, id=receiver.manifest.id, window=WINDOW)
                        await transport.publish(control, encode(grant), qos=1, retain=True)
                case Packet(topic, payload):
                    receiver, control = receivers[topic]
                    if receiver.on_chunk(decode_chunk(payload), anyio.current_time()):
                        ack = UploadAck(id=receiver.manifest.id, received=receiver.bitmap())
                        await transport.publish(control, encode(ack))
                    on_progress(receiver)
        except Disconnected:
            continue
