"""Devices keep their levels, exchanges have factors of their own; live and replay share levels."""

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.experiment.noise import (
    NoiseConfig,
    PartNoise,
    device_levels,
    exchange_factors,
)
from fairbed.testbed.replay.engine.engine import column
from fairbed.testbed.replay.vector_fleet import vector_fleet_of
from fairbed.testbed.replay.world.columns import columns_of
from tests.testbed.replay.fleets import experiment, replay_rounds

ROWS = np.arange(20_000)
QUANTILES = ((0.0, 0.5), (0.5, 1.0), (1.0, 4.0))


def test_a_spread_is_the_sigma_of_the_logarithm_or_quantiles() -> None:
    noise = NoiseConfig(download=PartNoise(device=0.3), compute=PartNoise(device=QUANTILES))
    download, compute, upload = device_levels(noise, 7, ROWS)
    assert np.log(download).mean() == pytest.approx(0.0, abs=0.01)
    assert np.log(download).std() == pytest.approx(0.3, rel=0.02)
    assert np.quantile(compute, [0.25, 0.5, 0.75]) == pytest.approx([0.75, 1.0, 2.5], rel=0.03)
    assert (upload == 1.0).all()
    assert abs(np.corrcoef(download, compute)[0, 1]) < 0.02


def test_exchanges_of_one_device_differ_and_do_not_depend_on_the_cohort() -> None:
    noise = NoiseConfig(upload=PartNoise(exchange=0.2))
    assert noise.varies_exchanges
    assert not NoiseConfig(upload=PartNoise(device=0.2)).varies_exchanges
    per_round = np.array([exchange_factors(noise, 7, t, np.array([3, 5])) for t in range(2000)])
    assert (per_round[:, :2] == 1.0).all()
    assert np.log(per_round[:, 2]).std() == pytest.approx(0.2, rel=0.05)
    assert abs(np.corrcoef(per_round[:, 2].T)[0, 1]) < 0.05
    alone = exchange_factors(noise, 7, 11, np.array([5]))
    assert alone[2, 0] == per_round[11, 2, 1]


def phases(**noise: object) -> dict[str, Floats]:
    """Return phases of all devices in warm rounds, shape (rounds, devices)."""
    of = experiment(
        {"profile": "raspberry-pi-4b", "count": 6},
        rounds=41,
        selection={"per_round": 6},
        noise=noise,
    )
    _, rounds = replay_rounds(of)
    names = ("download_s", "train_s", "upload_s")
    found = {}
    for name in names:
        by_round = []
        for one in rounds[1:]:
            rows = column(one.exchanges, "row")
            values = dict(zip(rows, column(one.exchanges, name), strict=True))
            by_round.append([values[row] for row in range(6)])
        found[name] = np.array(by_round)
    return found


def test_a_replay_has_levels_that_persist_and_factors_of_each_exchange() -> None:
    plain = phases()
    levels = phases(compute={"device": 0.4}, upload={"device": 0.3})
    assert (levels["train_s"] == levels["train_s"][0]).all()  # the same in every round
    ratio = levels["train_s"][0] / plain["train_s"][0]
    assert 0.15 < np.log(ratio).std() < 0.8
    assert (levels["download_s"] == plain["download_s"]).all()
    assert len(set(levels["upload_s"][0].tolist())) == 6
    factors = phases(compute={"exchange": 0.1})
    scatter = np.log(factors["train_s"] / plain["train_s"])
    assert scatter.std() == pytest.approx(0.1, rel=0.2)
    assert (factors["upload_s"] == plain["upload_s"]).all()


def test_live_devices_and_replayed_ones_have_the_same_levels() -> None:
    noise = {part: {"device": 0.3} for part in ("download", "compute", "upload")}
    group = {"profile": "raspberry-pi-4b", "link": "lte-driving", "count": 4}
    plain, noisy = (
        plan_fleet(experiment(group, noise=n, emulation={"host_core_speed": 2.0}), {})
        for n in ({}, noise)
    )
    config = NoiseConfig(**{part: PartNoise(device=0.3) for part in noise})
    levels = device_levels(config, 0, np.arange(4))
    for at, (before, after) in enumerate(zip(plain, noisy, strict=True)):
        down, compute, up = levels[:, at]
        old, new = before.schedule.conditions(5.0), after.schedule.conditions(5.0)
        assert old.shape is not None
        assert new.shape is not None
        assert new.speed_ratio == pytest.approx((old.speed_ratio or 0.0) / compute)
        assert new.shape.down_bps == pytest.approx((old.shape.down_bps or 0.0) / down)
        assert new.shape.up_bps == pytest.approx((old.shape.up_bps or 0.0) / up)
        assert after.spec.device is not None
        assert before.spec.device is not None
        assert after.spec.device.speed_ratio == pytest.approx(
            before.spec.device.speed_ratio / compute
        )
        assert after.truth_row().cpu_speed == pytest.approx(before.truth_row().cpu_speed / compute)
    means, _ = columns_of(noisy)
    old_means, _ = columns_of(plain)
    assert means.per_core == pytest.approx(old_means.per_core / levels[1])
    assert means.down_bps == pytest.approx(old_means.down_bps / levels[0])


def test_a_vector_fleet_has_the_levels_of_its_rows() -> None:
    group = {"population": "phones-2025", "count": 20_000}
    noise = {"compute": {"device": 0.3}}
    plain, noisy = (vector_fleet_of(experiment(group, noise=n)) for n in ({}, noise))
    config = NoiseConfig(compute=PartNoise(device=0.3))
    levels = device_levels(config, 0, ROWS)
    assert noisy.means.per_core == pytest.approx(plain.means.per_core / levels[1])
    assert (noisy.means.up_bps == plain.means.up_bps).all()


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ({"compute": {"device": -0.1}}, "noise.compute.device"),
        ({"compute": {"device": [[0.5, 1.0], [0.2, 2.0]]}}, "shares must increase"),
        ({"compute": {"exchange": [[0.5, 0.0]]}}, "noise.compute.exchange"),
        ({"training": {"device": 0.1}}, "training"),
    ],
)
def test_bad_noise_is_refused(noise: dict[str, object], words: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        experiment({"profile": "raspberry-pi-4b", "count": 2}, noise=noise)
    assert words in str(caught.value)


def test_linear_devices_have_noise_of_their_own() -> None:
    linear = {"model": "linear", "theta": [1, 1, 1], "count": 2}
    with pytest.raises(ExperimentError, match='noise must not be set with model = "linear"'):
        experiment(linear, noise={"compute": {"device": 0.1}})
