"""Devices with own data report their scale to a run; the alert, and what privacy leaves out."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.policy.config import PrivacyConfig
from fairbed.coordinator.state.registry import Registry
from fairbed.wire.messages import Hello
from fairbed.wire.scale import Scale
from tests.coordinator.builders import CAPABILITIES
from tests.coordinator.lab import ARTIFACT, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

TASK = msgspec.structs.replace(ARTIFACT, scale=Scale(low=0.0, high=1.0, mean=0.5, spread=0.29))
NOISE = PrivacyConfig(clip=0.5, noise_multiplier=2.0)


def own_file(folder: Path, factor: float) -> Path:
    rng = np.random.default_rng(4)
    x = rng.random((40, 60)).astype(np.float32) * np.float32(factor)
    np.savez(folder / f"{factor:g}.npz", x=x, y=np.arange(40) % 10)
    return folder / f"{factor:g}.npz"


async def alerts(
    tmp_path: Path,
    *,
    factor: float = 255.0,
    privacy: PrivacyConfig | None = None,
    owner: float = 0.0,
) -> list[str]:
    """Return the alerts of a run with two shards and own data times `factor`."""
    async with lab(tmp_path, agents=2, artifact=TASK) as place:
        place.device_names = ("pi-0", "pi-1", "own")
        data = own_file(tmp_path, factor)
        place.start_agent("own", data, min_noise_multiplier=owner)
        config = make_config(3, 3, **({} if privacy is None else {"privacy": privacy}))
        assert await place.run(config) == "done"
    with place.reader() as reader:
        return [row.text for row in reader.alerts() if row.kind == "other scale"]


async def test_own_data_on_another_scale_are_an_alert_with_the_cause(tmp_path: Path) -> None:
    [text] = await alerts(tmp_path)
    assert text.startswith("own: x is not divided by 255; divide it by 255")


async def test_own_data_on_the_scale_of_the_run_are_none(tmp_path: Path) -> None:
    assert await alerts(tmp_path, factor=1.0) == []


async def test_no_scale_leaves_a_device_in_a_run_with_noise(tmp_path: Path) -> None:
    assert await alerts(tmp_path, privacy=NOISE) == []


async def test_no_scale_leaves_a_device_whose_owner_demands_noise(tmp_path: Path) -> None:
    assert await alerts(tmp_path, privacy=NOISE, owner=1.0) == []


@pytest.mark.parametrize(
    ("n_k", "skills", "counts"), [(5, ("scale",), True), (None, ("scale",), False), (5, (), False)]
)
def test_only_a_device_with_own_data_and_the_skill_is_believed(
    n_k: int | None, skills: tuple[str, ...], counts: bool
) -> None:
    capabilities = msgspec.structs.replace(CAPABILITIES, skills=skills)
    hello = Hello(boot=1, capabilities=capabilities, n_k=n_k)
    assert Registry().join("pi-0", hello, 0.0).can_send_scale is counts
