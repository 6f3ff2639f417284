"""The examples of weight rules, FedNova, FedAdam and FedProx, replayed and with real agents."""

from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.algorithms.aggregation.aaggff import AAggFF
from fairbed.coordinator.algorithms.aggregation.afl import Afl
from fairbed.coordinator.algorithms.aggregation.corefed import CoreFed
from fairbed.coordinator.algorithms.aggregation.fedmgda import FedMgda
from fairbed.coordinator.algorithms.aggregation.max_weight import MaxWeight
from fairbed.coordinator.algorithms.aggregation.propfair import PropFair
from fairbed.coordinator.algorithms.aggregation.pseudo_gradient import FedNova
from fairbed.coordinator.algorithms.aggregation.q_ffl import QFedAvg
from fairbed.coordinator.algorithms.aggregation.server_step import FedOpt
from fairbed.coordinator.algorithms.aggregation.term import Term
from fairbed.coordinator.policy.config import RoundConfig
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.run import replay_experiment
from tests.coordinator.lab import lab
from tests.testbed.replay.fleets import EXAMPLES
from tests.tiers import some_in_fast

OFF = {
    "q-fedavg": "aggregation.q=0",
    "corefed": "aggregation.rule=fedavg",
    "aaggff": "aggregation.rule=fedavg",
    "afl": "aggregation.gamma=0",
    "term": "aggregation.tilt=0",
    "propfair": "aggregation.rule=fedavg",
    "fedmgda": "aggregation.epsilon=0",
    "fednova": "aggregation.pseudo_gradient=average",
    "fedadam": "aggregation.server=yogi",
    "fedprox": "training.proximal=0",
}
"""What replaces the method of an example."""
pytestmark = pytest.mark.anyio
every_example = pytest.mark.parametrize("name", some_in_fast(OFF, "q-fedavg", "fednova", "fedprox"))


def replayed(name: str, settings: list[str], folder: Path) -> tuple[list[bytes], float]:
    """Return the models of a short replay, and the last mean accuracy."""
    experiment = load_experiment(EXAMPLES / f"{name}.toml", ["rounds=15", *settings])
    replay_experiment(experiment, folder, "run", lambda replayed: None)
    with RunReader(folder) as reader:
        accuracy = reader.metrics()[-1].accuracy_mean
    assert accuracy is not None
    return [path.read_bytes() for path in sorted((folder / "models").iterdir())], accuracy


@every_example
def test_a_replay_learns_and_the_method_changes_the_model(name: str, tmp_path: Path) -> None:
    models, accuracy = replayed(name, [], tmp_path / "on")
    assert accuracy > 0.6
    assert replayed(name, [], tmp_path / "again") == (models, accuracy)
    assert replayed(name, [OFF[name]], tmp_path / "off")[0] != models


@every_example
async def test_a_live_run_merges_every_round(name: str, tmp_path: Path) -> None:
    config = load_experiment(EXAMPLES / f"{name}.toml", ["rounds=2", "selection.per_round=3"])
    rounds = RoundConfig(min_devices=3, join_timeout_s=30.0)
    async with lab(tmp_path) as place:
        live = msgspec.structs.replace(config.coordinator(), round=rounds)
        assert await place.run(live) == "done"
    with place.reader() as reader:
        assert [row.aggregated for row in reader.rounds()] == [3, 3]
        assert len({row.model_sha256 for row in reader.rounds()}) == 2


def test_the_examples_name_what_their_comments_say() -> None:
    experiments = {name: load_experiment(EXAMPLES / f"{name}.toml") for name in OFF}
    parts = {name: make_decisions(of.coordinator()).aggregator for name, of in experiments.items()}
    assert isinstance(parts["q-fedavg"].rule, QFedAvg)
    assert isinstance(parts["corefed"].rule, CoreFed)
    assert isinstance(parts["aaggff"].rule, AAggFF)
    assert experiments["aaggff"].selection.per_round == experiments["aaggff"].devices
    assert isinstance(parts["afl"].rule, MaxWeight)
    assert isinstance(parts["afl"].rule.rule, Afl)
    assert isinstance(parts["term"].rule, Term)
    assert isinstance(parts["propfair"].rule, PropFair)
    assert isinstance(parts["fedmgda"].rule, FedMgda)
    assert isinstance(parts["fednova"].pseudo_gradient, FedNova)
    assert isinstance(parts["fedadam"].rule, AAggFF)
    assert isinstance(parts["fedadam"].server, FedOpt)
    assert experiments["fedprox"].training.proximal == 0.1
