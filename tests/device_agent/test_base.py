"""The frozen part of a model on a device: downloaded once, put there by hand, or without room."""

from pathlib import Path

import pytest

from fairbed.device_agent import joining
from fairbed.wire.messages import BaseArrived, Trouble
from fairbed.wire.shard import encode_shard
from tests.device_agent.conftest import AgentSetup
from tests.device_agent.softmax import examples, softmax_task

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

TASK = softmax_task()
SHARD = encode_shard(examples(40))
BASE = bytes(range(256)) * 64


def folder(setup: AgentSetup) -> Path:
    return setup.folder / "cache" / "bases"


async def test_a_base_is_downloaded_once_and_reported_with_its_time(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        coordinator.base = BASE
        await coordinator.join(TASK, SHARD)
        report = await coordinator.expect(BaseArrived)
    assert report.size_bytes == len(BASE)
    assert report.download_s is not None
    (file,) = folder(setup).iterdir()
    assert file.read_bytes() == BASE
    async with setup.running() as (_, coordinator):
        coordinator.base = BASE
        await coordinator.join(TASK, SHARD)
        again = await coordinator.expect(BaseArrived)
    assert again.download_s is None, "it was on the device"


async def test_a_base_put_there_by_hand_is_not_downloaded(setup: AgentSetup) -> None:
    setup.base = setup.folder / "base.bin"
    setup.base.write_bytes(BASE)
    async with setup.running() as (_, coordinator):
        coordinator.base = BASE
        await coordinator.join(TASK, SHARD)
        report = await coordinator.expect(BaseArrived)
    assert report.download_s is None
    assert not folder(setup).exists()


async def test_another_file_put_there_by_hand_is_ignored(setup: AgentSetup) -> None:
    setup.base = setup.folder / "base.bin"
    setup.base.write_bytes(BASE[:-1] + b"?")
    async with setup.running() as (_, coordinator):
        coordinator.base = BASE
        await coordinator.join(TASK, SHARD)
        report = await coordinator.expect(BaseArrived)
    assert report.download_s is not None


async def test_a_device_without_room_says_what_it_needs(
    setup: AgentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_free_bytes", lambda folder: 1000)
    async with setup.running() as (_, coordinator):
        coordinator.base = BASE
        await coordinator.welcome(TASK, SHARD)
        trouble = await coordinator.expect(Trouble)
    assert trouble.kind == "disk full"
    assert f"must have {len(BASE):,} bytes free for the frozen part" in trouble.reason
    assert "got 1,000; free some, or set base_folder" in trouble.reason


async def test_a_task_without_a_base_reports_none(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        assert not coordinator.seen[BaseArrived]
