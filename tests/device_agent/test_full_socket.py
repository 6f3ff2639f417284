"""A download from a real broker over a link that is slower than the broker.

mosquitto 2.0 holds back retained messages of a subscription that it handles while the socket of the
device is full, until the next message or subscription.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.sensors import MonotonicClock
from fairbed.device_agent.transfers import PublicSource, Pull
from fairbed.testbed.run.broker import find_broker, start_broker
from fairbed.wire.chunks import chunk_slice, decode_chunk, encode_chunk, manifest_of
from fairbed.wire.topics import Topics
from fairbed.wire.transfer import Download
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport

CHUNKS, CHUNK_BYTES = 24, 900_000
WINDOW = 12
"""Of chunks, so that they are more than the kernel's buffers hold on loopback."""
READ_BYTES, READ_S = 60_000, 2e-3
"""The socket of the device at the broker stays full."""


@contextmanager
def slow_link(host: str, port: int) -> Iterator[int]:
    """Yield a port that passes one connection on to a broker, with a short queue and slowly."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as broker:
        broker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)

        def up(device: socket.socket) -> None:
            with suppress(OSError):
                while data := device.recv(READ_BYTES):
                    broker.sendall(data)

        def serve() -> None:
            with suppress(OSError):
                device, _ = listener.accept()
                with device:
                    broker.connect((host, port))
                    threading.Thread(target=up, args=(device,), daemon=True).start()
                    while data := broker.recv(READ_BYTES):
                        device.sendall(data)
                        time.sleep(READ_S)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with suppress(OSError):
                broker.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(10.0)


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.anyio
@pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed")
async def test_chunks_that_the_broker_holds_back_arrive_without_a_second_request(
    tmp_path: Path,
) -> None:
    topics, data = Topics(), bytes(CHUNKS * CHUNK_BYTES)
    manifest = manifest_of(data, "model", CHUNK_BYTES)
    async with start_broker("mosquitto", folder=tmp_path) as broker:
        async with MqttTransport(broker.url, "coordinator") as coordinator:
            assert isinstance(await anext(coordinator.events()), LinkUp)
            for index in range(CHUNKS):
                frame = encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
                topic = topics.chunk(manifest.id.hex(), index)
                await coordinator.publish(topic, frame, qos=1, retain=True)
        at = urlsplit(broker.url)
        assert at.hostname is not None
        assert at.port is not None
        with slow_link(at.hostname, at.port) as port, anyio.fail_after(60.0):
            url = broker.url.replace(f":{at.port}", f":{port}")
            async with MqttTransport(url, "pi-1") as link, anyio.create_task_group() as group:
                publisher = DevicePublisher(link, topics, "pi-1", group)
                pull = Pull(
                    Download(manifest, WINDOW),
                    PublicSource(publisher, topics, manifest),
                    MonotonicClock(),
                    lambda: link.large_bytes,
                )
                assert isinstance(await anext(link.events()), LinkUp)

                async def receive() -> None:
                    async for event in link.events():
                        assert isinstance(event, Packet)
                        pull.on_chunk(decode_chunk(event.payload), event.topic)

                group.start_soon(receive)
                await pull.run()
                group.cancel_scope.cancel()
    pull.download.verify()
    assert (pull.download.rerequests, pull.download.duplicates) == (0, 0)
