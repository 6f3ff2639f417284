"""A client of the broker that damages chunks, or joins as a device and breaks the protocol.

    python -m benchmarks._chaos.hostile corrupt-chunks|hostile-device RUN SECONDS SEED

It runs in a process of its own. `corrupt-chunks` repeats chunks of updates and models with one
flipped bit, as a network would that damages packets; it has the logins of their senders, because
the broker lets no one else publish them. `hostile-device` has a login of its own, and sends hellos,
contexts, offers, hashes and chunks: valid, damaged, replayed and too many.
"""

import os
import secrets
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import numpy as np

from fairbed.testbed.broker.run_accounts import login_of
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.run.broker import enrol_in_run
from fairbed.testbed.run_folder import Endpoint, read_endpoint
from fairbed.wire.chunks import encode_chunk
from fairbed.wire.codec import encode
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import (
    Capabilities,
    Context,
    Hello,
    Manifest,
    Offer,
    Phases,
    UploadDone,
)
from fairbed.wire.topics import ANY, Topics
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport

NAME = "rogue"
"""Of the device."""

CORRUPTED = 0.5
"""Share of the chunks that are repeated with a flipped bit."""
REMEMBERED = 4096
"""Packets that a client remembers."""
PERIOD_S = 0.01
"""Between two packets of the hostile device."""
MAX_BYTES = 64 * 1024
"""Longest packet of the hostile device: it must not be the disk or the processor that gives in."""

NO_PHASES = Phases(
    download_s=0.0, load_s=0.0, evaluate_s=0.0, train_s=0.0, train_cpu_s=0.0, encode_s=0.0
)


class Corrupter:
    """Repeats chunks with one flipped bit."""

    def __init__(self, endpoint: Endpoint, rng: np.random.Generator, links: AsyncExitStack) -> None:
        self._endpoint, self._rng, self._links = endpoint, rng, links
        self._topics = Topics(endpoint.tenant)
        self._own: deque[bytes] = deque(maxlen=REMEMBERED)
        self._of: dict[str, MqttTransport] = {}
        """The link of each sender; the coordinator's is that of the empty name."""
        self.sent = 0
        """Damaged chunks that the broker got."""

    async def run(self) -> None:
        """Corrupt until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, "", self._topics.upload(ANY))
            group.start_soon(self._read, "pi-1", self._topics.chunk(ANY, ANY))

    async def _read(self, reader: str, topics: str) -> None:
        link = await self._link(reader)
        async for event in link.events():
            if isinstance(event, LinkUp):
                await link.subscribe(topics)
            elif isinstance(event, Packet) and event.payload and self._rng.random() < CORRUPTED:
                payload = bytes(event.payload)
                if payload not in self._own:
                    await self._repeat(event.topic, payload)

    async def _repeat(self, topic: str, payload: bytes) -> None:
        sender = topic.removeprefix(self._topics.upload(""))
        link = await self._link("" if sender == topic else sender)
        damaged = flipped(payload, self._rng)
        self._own.append(damaged)
        with suppress(Disconnected):
            await link.publish(topic, damaged)
            self.sent += 1

    async def _link(self, name: str) -> MqttTransport:
        if name not in self._of:
            url = login_of(self._endpoint, name) if name else self._endpoint.url
            link = MqttTransport(url, f"damage-{secrets.token_hex(8)}")
            self._of[name] = await self._links.enter_async_context(link)
        return self._of[name]


class HostileDevice:
    """Sends packets of all kinds, one each `PERIOD_S`."""

    def __init__(self, link: MqttTransport, topics: Topics, rng: np.random.Generator) -> None:
        self._link, self._topics, self._rng = link, topics, rng
        self._seen: deque[bytes] = deque(maxlen=REMEMBERED)
        """Messages to this device, which it sends back."""
        self.sent = 0
        """Packets that the broker got."""

    async def run(self) -> None:
        """Join as a device and attack until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._attack)
            async for event in self._link.events():
                if isinstance(event, LinkUp):
                    await self._link.subscribe(self._topics.control(NAME), qos=1)
                elif isinstance(event, Packet):
                    self._seen.append(bytes(event.payload))

    async def _attack(self) -> None:
        up, telemetry = self._topics.up(NAME), self._topics.telemetry(NAME)
        seq = 0
        await self._send(up, encode(self._hello()))
        while True:
            seq += 1
            payload = encode(self._message(seq))
            match int(self._rng.integers(8)):
                case 0 | 1:
                    await self._send(telemetry, payload)
                case 2 | 3:
                    await self._send(up, payload)
                case 4:
                    await self._send(up, flipped(payload, self._rng))
                case 5:
                    await self._send(up, payload[: int(self._rng.integers(len(payload)))])
                case 6 if self._seen:  # as if it were a message of a device
                    await self._send(up, self._seen[int(self._rng.integers(len(self._seen)))])
                case _:
                    size = int(self._rng.integers(1, MAX_BYTES))
                    chunk = encode_chunk(os.urandom(16), int(self._rng.integers(100)), bytes(size))
                    await self._send(self._topics.upload(NAME), chunk)
            await anyio.sleep(PERIOD_S)

    def _hello(self) -> Hello:
        return Hello(
            boot=int(self._rng.integers(1, 2**31)),
            capabilities=Capabilities(
                cores=4,
                memory_bytes=1 << 30,
                machine="aarch64",
                python="3.11",
                engine="onnxruntime 1.31.1",
                engine_threads=1,
                agent="0.1.0",
            ),
            n_k=int(self._rng.integers(2**20)),
        )

    def _message(self, seq: int) -> Hello | Context | Offer | UploadDone:
        rng = self._rng
        round_id = int(rng.integers(1, 50))
        match int(rng.integers(4)):
            case 0:
                return self._hello()
            case 1:
                return UploadDone(
                    round=round_id, id=rng.bytes(16), sha256=rng.bytes(32), model=rng.bytes(32)
                )
            case 2:
                return Context(boot=1, seq=seq, mu_cores=4.0, is_ready=True, n_k=2**20)
            case _:
                size = int(rng.integers(4, 2**28))
                manifest = Manifest(
                    id=rng.bytes(16), kind="update", size_bytes=size, chunk_bytes=32 * 1024
                )
                return Offer(
                    round=round_id,
                    manifest=manifest,
                    model=rng.bytes(32),
                    phases=NO_PHASES,
                    n_k=2**20,
                    steps=1,
                    was_cold=False,
                    loss_before=0.0,
                )

    async def _send(self, topic: str, payload: bytes) -> None:
        with suppress(Disconnected):  # the broker may be down, too
            await self._link.publish(topic, payload)
            self.sent += 1


def flipped(payload: bytes, rng: np.random.Generator) -> bytes:
    """Return the payload with one flipped bit."""
    damaged = bytearray(payload)
    damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


async def attack(kind: str, folder: Path, seconds: float, seed: int) -> int:
    """Attack a run for some seconds; return the number of packets."""
    endpoint = read_endpoint(folder)
    if endpoint is None:
        return 0
    rng = np.random.default_rng(seed)
    async with AsyncExitStack() as links:
        attacker: Corrupter | HostileDevice
        if kind == "corrupt-chunks":
            attacker = Corrupter(endpoint, rng, links)
        else:
            url = await enrol_in_run(folder, endpoint, NAME)
            link = MqttTransport(url, f"{NAME}-{secrets.token_hex(8)}")
            await links.enter_async_context(link)
            attacker = HostileDevice(link, Topics(endpoint.tenant), rng)
        with anyio.move_on_after(seconds):
            await attacker.run()
        return attacker.sent


def main(arguments: Sequence[str]) -> None:
    """Attack the run that the arguments name; print the number of packets."""
    kind, folder, seconds, seed = arguments
    with suppress(BrokerError, OSError):  # the broker or the disk may be disturbed, too
        print(anyio.run(attack, kind, Path(folder), float(seconds), int(seed)))


if __name__ == "__main__":
    main(sys.argv[1:])
