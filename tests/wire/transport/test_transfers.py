"""Transfers of blobs over every transport, also while the broker is killed."""

import anyio
import numpy as np
import pytest

from fairbed.wire.chunks import manifest_of
from fairbed.wire.messages import Manifest
from fairbed.wire.transfer import Upload, UploadReceiver
from tests.wire.transport.broker_control import BrokerControl
from tests.wire.transport.drivers import offer, pull, receive, send

pytestmark = pytest.mark.anyio

TIMEOUT_S = 60.0
"""Far above the duration of any test: a test that hangs must fail, not block the suite."""

RECEIVERS = 8
MEGABYTE = 1_000_000


def megabyte(seed: int) -> tuple[bytes, Manifest]:
    data = np.random.Generator(np.random.PCG64(seed)).bytes(MEGABYTE)
    return data, manifest_of(data, "model", 32 * 1024)


async def test_many_clients_download_the_same_blob(shared: BrokerControl, topic: str) -> None:
    data, manifest = megabyte(1)
    with anyio.fail_after(TIMEOUT_S):
        async with shared.link("source") as source, anyio.create_task_group() as tasks:
            tasks.start_soon(offer, source, manifest, data, topic)
            await _pull_all(shared, manifest, topic)
            tasks.cancel_scope.cancel()


async def test_a_download_survives_a_killed_broker(killable: BrokerControl, topic: str) -> None:
    data, manifest = megabyte(2)
    halfway = anyio.Event()
    with anyio.fail_after(TIMEOUT_S):
        async with killable.link("source") as source, anyio.create_task_group() as tasks:
            tasks.start_soon(offer, source, manifest, data, topic)
            tasks.start_soon(_restart_when, killable, halfway)
            await _pull_all(killable, manifest, topic, halfway)
            tasks.cancel_scope.cancel()


async def test_many_senders_upload_under_a_credit_window(shared: BrokerControl, topic: str) -> None:
    with anyio.fail_after(TIMEOUT_S):
        await _upload_all(shared, topic)


@pytest.mark.full
async def test_an_upload_survives_a_killed_broker(killable: BrokerControl, topic: str) -> None:
    halfway = anyio.Event()
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_restart_when, killable, halfway)
            await _upload_all(killable, topic, halfway)


async def _restart_when(world: BrokerControl, moment: anyio.Event) -> None:
    await moment.wait()
    await world.kill()
    await world.start()


async def _pull_all(
    world: BrokerControl, manifest: Manifest, topic: str, halfway: anyio.Event | None = None
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


async def _upload_all(world: BrokerControl, topic: str, halfway: anyio.Event | None = None) -> None:
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
