"""Malicious devices of an experiment file: which ones, with which labels, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.loading import load
from fairbed.testbed.experiment.file import Experiment, ExperimentError, parse_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.run.preflight import settings_findings

PI = "raspberry-pi-4b"


def an_experiment(*malicious: dict[str, Any] | None, count: int = 10, **keys: Any) -> Experiment:
    fleet = [
        {"profile": PI, "name": f"pi{n}", "count": count} | ({"malicious": one} if one else {})
        for n, one in enumerate(malicious)
    ]
    raw = {"name": "small", "fleet": fleet, "selection": {"per_round": 4}} | keys
    return parse_experiment(raw, "small.toml")


def attacks(experiment: Experiment) -> dict[str, Attack]:
    specs = [device.spec for device in plan_fleet(experiment, {})]
    return {spec.name: spec.attack for spec in specs if spec.attack is not None}


@pytest.mark.parametrize(
    ("devices", "share", "size"),
    [(23, 0.5, 11), (500, 0.5, 250), (10, 0.3, 3), (10, 0.0, 0), (10, 1.0, 10), (4, 0.2, 0)],
)
def test_a_share_of_the_devices_is_rounded_down(devices: int, share: float, size: int) -> None:
    found = attacks(an_experiment({"kind": "A1", "share": share}, count=devices))
    assert len(found) == size


def test_the_set_depends_on_its_own_seed_and_the_group_alone() -> None:
    def drawn(*groups: dict[str, Any] | None, **keys: Any) -> set[str]:
        return set(attacks(an_experiment(*groups, **keys)))

    half = {"kind": "A2", "share": 0.5}
    first = drawn(half)
    assert first == drawn(half, seeds={"data": 5, "fleet": 5, "traces": 5, "selection": 5})
    assert first == drawn(half, seed=9, seeds={"malicious": 0})
    assert first != drawn(half, seeds={"malicious": 1})
    assert first == {name for name in drawn(half, half) if name.startswith("pi0-")}
    assert drawn({"kind": "A2", "share": 0.2}) < first < drawn({"kind": "nan", "share": 0.8})
    second = {name.replace("pi1", "pi0") for name in drawn(None, half)}
    assert second != first, "each group has a stream of its own"


def test_devices_can_be_counted_or_named() -> None:
    assert len(attacks(an_experiment({"kind": "free-rider", "count": 4}))) == 4
    named = attacks(an_experiment({"kind": "nan", "names": ["pi0-2", "pi0-7"]}))
    assert set(named) == {"pi0-2", "pi0-7"}


@pytest.mark.parametrize(
    ("options", "attack"),
    [
        ({"kind": "A1"}, Attack(kind="label-poisoning", scale=4.0, loss=1e6, speed=10.0)),
        ({"kind": "A3"}, Attack(kind="model-replacement", scale=4.0, loss=1e6, speed=10.0)),
        (
            {"kind": "model-replacement", "scale": 2.5},
            Attack(kind="model-replacement", scale=2.5, loss=1e6, speed=10.0),
        ),
        (
            {"kind": "lying-loss", "loss": 0.0},
            Attack(kind="lying-loss", scale=4.0, loss=0.0, speed=10.0),
        ),
        (
            {"kind": "lying-context", "claims_cold": True},
            Attack(kind="lying-context", scale=4.0, loss=1e6, speed=1.0, claims_cold=True),
        ),
    ],
)
def test_options_have_the_defaults_of_their_kind(options: dict[str, Any], attack: Attack) -> None:
    assert set(attacks(an_experiment(options | {"count": 1})).values()) == {attack}


def test_model_replacement_multiplies_by_the_updates_of_a_version() -> None:
    one = {"kind": "A3", "count": 1}
    rounds = {"mode": "async", "buffer": 3, "concurrency": 6}
    (attack,) = attacks(an_experiment(one, round=rounds)).values()
    assert attack.scale == 3.0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"kind": "A4", "share": 0.2},
            "small.toml: fleet[0].malicious.kind: must be one of 'A1', 'A2', 'A3', ",
        ),
        ({"kind": "A1", "share": 1.2}, "small.toml: fleet[0].malicious.share: "),
        ({"kind": "A1", "share": -0.1}, "small.toml: fleet[0].malicious.share: "),
        ({"kind": "A1"}, "malicious must have one of share, count and names, got none"),
        (
            {"kind": "A1", "share": 0.2, "count": 3},
            "malicious must have one of share, count and names, got share and count",
        ),
        (
            {"kind": "A1", "share": 0.2, "scale": 3.0},
            'malicious.scale must be given with kind = "model-replacement" only, got kind "A1"',
        ),
        (
            {"kind": "nan", "share": 0.2, "honest_exchanges": 3},
            'malicious.honest_exchanges must be given with kind = "lying-context" only, got kind '
            '"nan"',
        ),
        ({"kind": "A1", "share": 0.2, "loss": 0.0}, "malicious.loss must be given with kind"),
        ({"kind": "lying-loss", "count": 1, "loss": -1.0}, "fleet[0].malicious.loss: "),
        ({"kind": "lying-context", "count": 1, "speed": 0.0}, "fleet[0].malicious.speed: "),
        (
            {"kind": "A1", "names": ["pi0-11"]},
            "fleet[0].malicious.names: must be devices of this group, got 'pi0-11'; the group has "
            "pi0-1, pi0-2",
        ),
        (
            {"kind": "A1", "count": 11},
            "fleet[0].malicious.count: must be at most the 10 devices of the group, got 11",
        ),
    ],
)
def test_a_bad_setting_is_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ExperimentError) as error:
        attacks(an_experiment(options))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("partition", ["iid", "by-class"])
def test_only_the_training_labels_of_a_poisoned_shard_change(partition: str) -> None:
    config = parse_experiment(
        {"name": "small", "data": {"partition": {"kind": partition}}}, "small.toml"
    ).data
    dataset = load(config, 3, {})

    def fleet(*poisoned: int, seed: int = 0) -> FleetData:
        names = [f"pi-{k}" for k in range(8)]
        return FleetData(
            dataset,
            config,
            devices=8,
            seed=3,
            names=names,
            poisoned=poisoned,
            poison_seed=seed,
        )

    honest, data = fleet(), fleet(2, 5)
    held_out = np.concatenate(data.test_rows)
    assert (data.dataset.y[held_out] == dataset.y[held_out]).all()
    for k, rows in enumerate(data.train_rows):
        assert (rows == honest.train_rows[k]).all(), "the partition is that of the true labels"
        shard, true = data.shard(f"pi-{k}"), dataset.y[rows]
        assert shard is not None
        labels = shard.arrays()[1]
        assert (labels == data.dataset.y[rows]).all(), "replays train on the same labels"
        unchanged = float((labels == true).mean())
        assert unchanged == (1.0 if k not in (2, 5) else pytest.approx(0.1, abs=0.06))
    alone, again = fleet(5), fleet(5, seed=1)
    rows = data.train_rows[5]
    assert (alone.dataset.y[rows] == data.dataset.y[rows]).all(), "each shard has its own stream"
    assert (again.dataset.y[rows] != data.dataset.y[rows]).any()


def test_two_classes_are_flipped() -> None:
    x = np.arange(40, dtype=np.float32).reshape(40, 1)
    dataset = replace(load(DataConfig(), 0, {}), x=x, y=np.arange(40) % 2, classes=2)
    data = FleetData(dataset, DataConfig(), devices=2, seed=0, poisoned=[1])
    rows = data.train_rows[1]
    assert (data.dataset.y[rows] == 1 - dataset.y[rows]).all()


@pytest.mark.parametrize(
    ("malicious", "warns"),
    [
        ([{"kind": "A1", "share": 1.0}, {"kind": "A1", "share": 1.0}], True),
        ([{"kind": "A1", "share": 1.0}, {"kind": "A1", "share": 0.9}], False),
        ([{"kind": "A1", "share": 1.0}, None], False),
    ],
)
def test_a_fleet_without_benign_devices_gives_a_warning(
    malicious: list[dict[str, Any] | None], warns: bool
) -> None:
    experiment = an_experiment(*malicious)
    found = [f for f in settings_findings(experiment, trains=True) if f.kind == "all-malicious"]
    assert [(f.level, f.text) for f in found] == (
        [
            (
                "warning",
                "fleet.malicious: all 20 devices are malicious, so metrics on benign devices are "
                "unknown; lower share or count to have some",
            )
        ]
        if warns
        else []
    )


@pytest.mark.parametrize(
    ("aggregation", "line"),
    [
        ({"defence": "krum"}, ""),
        (
            {"defence": "krum", "malicious_share": 0.4},
            "aggregation: krum needs at least 2 f + 3 updates per round, got 4 with f = 1",
        ),
        (
            {"defence": "multi-krum", "malicious_share": 0.4},
            "aggregation: multi-krum needs at least 2 f + 3 updates per round, got 4 with f = 1",
        ),
        (
            {"pseudo_gradient": "trimmed-mean", "malicious_share": 0.5},
            "aggregation: trimmed-mean needs at least 2 f + 1 updates per round, got 4 with f = 2",
        ),
        ({"defence": "k-norm", "malicious_share": 0.9}, ""),
        ({"defence": "k-loss", "malicious_share": 1.0}, "aggregation.malicious_share: "),
    ],
)
def test_rounds_that_are_too_small_for_a_defence_are_refused(
    aggregation: dict[str, Any], line: str
) -> None:
    """Rounds of four updates."""
    if not line:
        an_experiment(None, aggregation=aggregation)
        return
    with pytest.raises(ExperimentError) as caught:
        an_experiment(None, aggregation=aggregation)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
