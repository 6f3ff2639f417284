"""A run signs its messages to the devices that demand it (issue #20, C2)."""

import logging
from pathlib import Path

import anyio
import pytest

from fairbed.wire.signature import task_key
from tests.coordinator.lab import Lab, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

KEY = task_key("secret of the lab", "pi-1")


async def devices_of(place: Lab) -> set[str]:
    """Run an experiment of at least one device; return the devices with an update."""
    assert await place.run(make_config(3, 1)) == "done"
    with place.reader() as reader:
        return {x.device for x in reader.exchanges() if x.outcome == "done"}


async def test_devices_with_and_without_a_key_serve_one_run(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=1) as place:
        place.task_keys["pi-1"] = KEY
        place.start_agent("pi-1", task_key=KEY)
        assert await place.run(make_config(3, 2)) == "done"
        with place.reader() as reader:
            done = [x.device for x in reader.exchanges() if x.outcome == "done"]
    assert sorted(set(done)) == ["pi-0", "pi-1"]
    assert len(done) == 6


async def test_the_end_of_a_run_reaches_devices_with_and_without_a_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with lab(tmp_path, agents=1) as place:
        place.task_keys["pi-1"] = KEY
        place.start_agent("pi-1", task_key=KEY)
        assert await place.run(make_config(1, 2)) == "done"
        await anyio.sleep(1.0)
    ends = [line for line in caplog.messages if "the coordinator ended the run" in line]
    assert sorted(ends) == [
        f"{name}: the coordinator ended the run: the run is over" for name in ("pi-0", "pi-1")
    ]


@pytest.mark.parametrize("known", [None, task_key("another lab", "pi-1")])
async def test_a_device_whose_key_the_run_lacks_does_not_take_part(
    tmp_path: Path, known: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with lab(tmp_path, agents=1) as place:
        if known is not None:
            place.task_keys["pi-1"] = known
        place.start_agent("pi-1", task_key=KEY)
        assert await devices_of(place) == {"pi-0"}
        with place.reader() as reader:
            texts = {x.text for _, x in reader.events() if x.device == "pi-1"}
    is_refused = any(
        "takes signed messages only, and this run has no key" in text for text in texts
    )
    assert is_refused == (known is None)
    assert len([x for x in caplog.messages if "pi-1: ignored, now and later" in x]) == 1
