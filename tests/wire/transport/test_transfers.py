"""Whole blobs over every transport, also while the broker dies."""

import anyio
import numpy as np
import pytest

from fairbed.wire.chunks import manifest_of
from fairbed.wire.messages import Manifest
from fairbed.wire.transfer import Upload, UploadReceiver
from tests.wire.transport.drivers import offer, pull, receive, send
from tests.wire.transport.worlds import World

pytestmark = pytest.mark.anyio

GIVE_UP_S = 60.0
"""Far beyond what any of this takes: a test that hangs should fail, not stop the suite."""

RECEIVERS = 8
MEGABYTE = 1_000_000


def megabyte(seed: int) -> tuple[bytes, Manifest]:
    data = np.random.Generator(np.random.PCG64(seed)).bytes(MEGABYTE)
    return data, manifest_of(data, "model", 32 * 1024)


async def test_many_receivers_pull_the_same_blob(shared: World, topic: str) -> None:
    data, manifest = megabyte(1)
    with anyio.fail_after(GIVE_UP_S):
        async with shared.link("source") as source, anyio.create_task_group() as tasks:
            tasks.start_soon(offer, source, manifest, data, topic)
            await _pull_all(shared, manifest, topic)
            tasks.cancel_scope.cancel()


async def test_a_pull_survives_the_death_of_the_broker(mortal: World, topic: str) -> None:
    data, manifest = megabyte(2)
    halfway = anyio.Event()
    with anyio.fail_after(GIVE_UP_S):
        async with mortal.link("source") as source, anyio.create_task_group() as tasks:
            tasks.start_soon(offer, source, manifest, data, topic)
            tasks.start_soon(_restart_when, mortal, halfway)
            await _pull_all(mortal, manifest, topic, halfway)
            tasks.cancel_scope.cancel()


async def test_many_senders_upload_under_a_credit_window(shared: World, topic: str) -> None:
    with anyio.fail_after(GIVE_UP_S):
        await _upload_all(shared, topic)


async def test_an_upload_survives_the_death_of_the_broker(mortal: World, topic: str) -> None:
    halfway = anyio.Event()
    with anyio.fail_after(GIVE_UP_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_restart_when, mortal, halfway)
            await _upload_all(mortal, topic, halfway)


async def _restart_when(world: World, moment: anyio.Event) -> None:
    await moment.wait()
    await world.kill()
    await world.start()


async def _pull_all(
    world: World, manifest: Manifest, topic: str, halfway: anyio.Event | None = None
) -> None:
    async def one(number: int) -> None:
        async with world.link(f"sink-{number}") as sink:
            download = await pull(
                sink,
                manifest,
                topic,
                lambda d: (
                    halfway.set()
                    if halfway and d.received_bytes > manifest.size_bytes // 2
                    else None
                ),
            )
            download.verify()

    async with anyio.create_task_group() as tasks:
        for number in range(RECEIVERS):
            tasks.start_soon(one, number)


async def _upload_all(world: World, topic: str, halfway: anyio.Event | None = None) -> None:
    blobs = [megabyte(10 + number) for number in range(RECEIVERS)]
    receivers = {
        f"{topic}/up/{number}": (UploadReceiver(manifest, 4), f"{topic}/ctl/{number}")
        for number, (_, manifest) in enumerate(blobs)
    }

    async def one(number: int) -> None:
        data, manifest = blobs[number]
        async with world.link(f"device-{number}") as device:
            await send(
                device, Upload(manifest, data), f"{topic}/up/{number}", f"{topic}/ctl/{number}"
            )

    def on_progress(receiver: UploadReceiver) -> None:
        if halfway and receiver.received_bytes > MEGABYTE // 2:
            halfway.set()

    async with world.link("sink") as sink, anyio.create_task_group() as receiving:
        receiving.start_soon(receive, sink, receivers, on_progress)
        async with anyio.create_task_group() as sending:
            for number in range(RECEIVERS):
                sending.start_soon(one, number)
        receiving.cancel_scope.cancel()
    for receiver, _ in receivers.values():
        assert receiver.manifest.sha256 is not None
        receiver.verify(receiver.manifest.sha256)
