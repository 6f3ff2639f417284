"""The devices that the lab of a run accepts, as the run sees them."""

import time
from pathlib import Path

import anyio
import pytest

from fairbed.testbed.lab import emulated_identities
from fairbed.testbed.lab.emulated_identities import enrolled_task_key, watch_identities
from fairbed.testbed.lab.identities import Identities
from tests.testbed.lab.labs import make_lab

DAY_S = 86_400.0


@pytest.mark.anyio
async def test_a_clock_that_jumps_forward_and_back_refuses_a_device_for_that_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(tmp_path)
    offset_s, seconds = 0.0, time.time
    with Identities(lab.database) as identities:
        identities.create("pi", expires_s=seconds() + 3600.0)
        identities.create("nano")
    monkeypatch.setattr(time, "time", lambda: seconds() + offset_s)
    monkeypatch.setattr(emulated_identities, "WATCH_S", 0.01)
    seen: list[set[str]] = []

    async def until(accepted: set[str]) -> None:
        with anyio.fail_after(10.0):
            while not seen or seen[-1] != accepted:  # noqa: ASYNC110
                await anyio.sleep(0.005)

    async with anyio.create_task_group() as group:
        group.start_soon(
            watch_identities, lab.folder, "main", lambda names: seen.append(set(names))
        )
        await until({"nano", "pi"})
        offset_s = DAY_S
        await until({"nano"})
        offset_s = -DAY_S
        await until({"nano", "pi"})
        group.cancel_scope.cancel()
    assert len(seen) <= 4


def test_the_key_of_a_device_is_that_of_an_accepted_identity_of_the_tenant(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    with Identities(lab.database) as identities:
        identities.create("pi")
        identities.create("other", tenant="lab-2")
        identities.create_many(["emulated"], run="run-1")
        identity = identities.get("pi")
        assert identity is not None
        assert enrolled_task_key(lab.folder, "main", "pi") == lab.task_key(identity)
        identities.revoke("pi", now_s=time.time())
    for name in ("pi", "other", "unknown", "emulated"):
        assert enrolled_task_key(lab.folder, "main", name) is None


def test_a_registry_that_cannot_be_read_is_no_registry_without_a_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LookupError):
        enrolled_task_key(tmp_path, "main", "pi")
    assert "pi: its task key must be readable, got: " in caplog.text
