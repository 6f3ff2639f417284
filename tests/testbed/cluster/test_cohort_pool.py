"""Cohorts that are trained on several hosts: the same bits, also when a host is lost."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from fairbed.coordinator.task.catalogue import build_task
from fairbed.coordinator.task.changes import ModelChanges
from fairbed.device_agent.errors import EngineError
from fairbed.device_agent.local_training import make_rule
from fairbed.testbed.cluster.api import TrainingHosts
from fairbed.testbed.cluster.cohort_pool import SentData, device_pool, make_device_training
from fairbed.testbed.cluster.hosts import Host
from fairbed.testbed.experiment.file import CohortEngine, ExperimentError
from fairbed.testbed.replay.cohort.base import CohortRule, Trainer
from fairbed.testbed.replay.cohort.choose import make_trainer
from fairbed.wire import plugins
from fairbed.wire.artifact import Adaptation
from fairbed.wire.base_files import BaseMissing, default_bases
from fairbed.wire.messages import LOCAL_RULES_GROUP
from tests.testbed.cluster.fake import FakeCluster
from tests.testbed.replay.cohort.fleets import (
    EVERYTHING,
    PLAIN,
    RECIPES,
    SIZES,
    SplitDrift,
    fleet_data,
    jobs_of,
    one_by_one,
    shipped,
    split_drift,
    start_of,
)

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster

NAMES = ["mlp-784-318-10", "cnn-1x8x8-10"]
"""One for each kind of worker: many devices at a time, and one after the other."""


@pytest.fixture
def make() -> Iterator[Callable[..., Trainer]]:
    """Makes trainers, which are closed at the end."""
    made = list[Trainer]()

    def of(name: str, cluster: FakeCluster | None, engine: CohortEngine = "auto") -> Trainer:
        recipe = RECIPES[name]
        helpers = None if cluster is None else TrainingHosts(cast("Cluster", cluster))
        made.append(make_trainer(shipped(recipe), fleet_data(recipe), engine, 2, helpers))
        return made[-1]

    yield of
    for trainer in made:
        trainer.close()


def bits(trainer: Trainer, rule: CohortRule | None = None) -> list[tuple[object, ...]]:
    """Return all numbers of a cohort of every device, with models of their own."""
    jobs, vector = jobs_of(len(SIZES)), start_of(shipped(RECIPES[trainer.spec.name]))
    if rule is None:
        starts = (vector + 0.01 * vector[::-1])[np.newaxis].repeat(len(jobs), axis=0)
        found = one_by_one(trainer.train(vector, jobs, EVERYTHING, starts))
    else:
        found = one_by_one(trainer.train(vector, jobs, PLAIN, None, rule))
    return [(a.at, a.vector.tobytes(), a.steps, a.loss_train, a.problem) for a in found]


@pytest.mark.parametrize("name", NAMES)
def test_the_hosts_train_with_the_same_bits(name: str, make: Callable[..., Trainer]) -> None:
    calls = list[str]()
    cluster = FakeCluster(1, 2)
    cluster.on_call = lambda host, method: calls.append(f"{host.name} {method}")
    trainer = make(name, cluster)
    truth = bits(make(name, None))
    while not any("train" in call for call in calls):  # the first chunks may find no process ready
        assert bits(trainer) == truth
    assert sorted(host for host, _ in cluster.started) == ["host-1", "host-1"]


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_host_changes_no_bit(name: str, make: Callable[..., Trainer]) -> None:
    cluster = FakeCluster(1, 1)
    trainer = make(name, cluster)

    def lose(host: Host, method: str) -> None:
        if method == "train":
            cluster.lost.add(host)

    cluster.on_call = lose
    truth = bits(make(name, None))
    while not cluster.lost:
        assert bits(trainer) == truth
    assert bits(trainer) == truth


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_goes_along(name: str, make: Callable[..., Trainer]) -> None:
    rule = split_drift(start_of(shipped(RECIPES[name])), len(SIZES))
    calls = list[str]()
    cluster = FakeCluster(1, 1)
    cluster.on_call = lambda host, method: calls.append(method)
    trainer, truth = make(name, cluster), bits(make(name, None), rule)
    while "train" not in calls:  # the first jobs may find no process ready
        assert bits(trainer, rule) == truth


def test_a_registered_rule_stays_here(
    make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins._registered, LOCAL_RULES_GROUP, {})
    plugins.register(LOCAL_RULES_GROUP, "mine", SplitDrift)
    calls = list[str]()
    cluster = FakeCluster(1, 1)
    cluster.on_call = lambda host, method: calls.append(method)
    for name in NAMES:
        given = split_drift(start_of(shipped(RECIPES[name])), len(SIZES))
        bits(make(name, cluster), replace(given, rule=make_rule("mine", given.options)))
    assert set(calls) == {"begin"}


def test_the_frozen_part_of_a_model_goes_to_hosts_that_lack_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    head = ModelChanges(weights="module", adaptation=Adaptation(trainable=("head.*",)))
    model = "tests.cases.fine_tuning.networks:Pictures"
    artifact = build_task(model, (1, 8, 8), 10, engine="torch", changes=head)
    assert artifact.base is not None
    blob = bytes(default_bases(os.environ).blob(artifact.base))
    data = fleet_data(RECIPES["cnn-1x8x8-10"])
    sent = SentData(data.dataset, data.train_rows)
    cluster = FakeCluster(1, 1)
    pool = device_pool(cast("Cluster", cluster), artifact, data)
    pool.close()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "host"))
    with pytest.raises(EngineError, match="got no file with this hash"):
        make_device_training(artifact, sent)
    with pytest.raises(BaseMissing, match="must have the hash of the task"):
        make_device_training(artifact, sent, blob[::-1])
    assert not list((tmp_path / "host").rglob("base-*"))
    make_device_training(artifact, sent, blob)
    [file] = (tmp_path / "host").rglob("base-*")
    assert file.stat().st_size == artifact.base.layout.size_bytes


def test_torch_is_refused_on_a_cluster(make: Callable[..., Trainer]) -> None:
    with pytest.raises(ExperimentError, match=r"replay.engine: must be auto, batched or device on"):
        make("cnn-1x8x8-10", FakeCluster(1, 1), "torch")
