"""Local noise in a replay: its scale after the merge, no losses, and what it refuses."""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import (
    AggregationConfig,
    ExchangeConfig,
    PersonalisationConfig,
    PrivacyConfig,
    SelectionConfig,
    TrainingConfig,
)
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.device_agent.privacy import SeededNoise, privatised
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment
from fairbed.testbed.replay.run import replay_experiment
from fairbed.wire.plugins import PluginError
from fairbed.wire.tensors import Layout, Tensor
from tests.testbed.replay.cohort.fleets import RECIPES, SPLIT_DRIFT, fleet_data
from tests.testbed.replay.fleets import QUICKSTART
from tests.testbed.replay.test_learning import ALL_DEVICES, N, a_learning, an_experiment, train
from tests.testbed.replay.test_resume import cut_off_at

DATA = fleet_data(RECIPES["softmax-60-10"])
NOISE = PrivacyConfig(clip=0.5, noise_multiplier=2.0)
EQUAL = AggregationConfig(weights="equal")
PRIVATE = ["privacy.clip=0.5", "privacy.noise_multiplier=2.0"]


def after_a_round(folder: Path, **sections: Any) -> tuple[Vector, Vector]:
    """Return the model before and after one round of all devices."""
    learning = a_learning(folder, an_experiment(**sections), DATA)
    before = learning.vector.copy()
    learned = train(learning, DATA, ALL_DEVICES, ALL_DEVICES)
    if NOISE in sections.values():
        assert np.isnan(learned.losses).all(), "no loss leaves a device"
    return before, learning.vector


def test_noise_of_the_merged_model_has_the_stated_scale(tmp_path: Path) -> None:
    still = TrainingConfig(learning_rate=1e-30)  # D = 0: the update is noise alone
    before, after = after_a_round(tmp_path, training=still, aggregation=EQUAL, privacy=NOISE)
    noise = after.astype(np.float64) - before
    # The mean of N devices has a standard deviation of z C / sqrt(N) in each value; that of n
    # values has a standard error of 1 / sqrt(2 n), their mean one of 1 / sqrt(n): 4 of each.
    sd, n = 2.0 * 0.5 / np.sqrt(N), noise.size
    assert n == 610
    assert noise.std() / sd == pytest.approx(1.0, abs=4.0 / np.sqrt(2 * n))
    assert abs(noise.mean()) / sd < 4.0 / np.sqrt(n)


def test_a_round_is_that_of_the_formula(tmp_path: Path) -> None:
    experiment = an_experiment(aggregation=EQUAL)
    decisions = make_decisions(experiment.coordinator())
    learning = a_learning(tmp_path, experiment, DATA)
    before, updates = learning.vector.copy(), []
    noise = msgspec.structs.replace(NOISE, clip=0.3)
    request, lengths = noise.request(), []
    assert request is not None
    for row in range(N):  # each alone, without noise
        alone = a_learning(tmp_path, experiment, DATA)
        train(alone, DATA, np.array([row]), np.array([row]))
        seed = decisions.training_seed(1, row)
        updates.append(privatised(before, alone.vector, request, SeededNoise().stream(seed)))
        lengths.append(np.linalg.norm(alone.vector - before))
    assert min(lengths) < 0.3 < max(lengths), "some updates are clipped"
    _, after = after_a_round(tmp_path, aggregation=EQUAL, privacy=noise)
    assert after == pytest.approx(np.mean(updates, axis=0, dtype=np.float64), abs=1e-5)


def test_codecs_encode_the_noisy_update(tmp_path: Path) -> None:
    exact = after_a_round(tmp_path, aggregation=EQUAL, privacy=NOISE)[1]
    coded = after_a_round(
        tmp_path, aggregation=EQUAL, privacy=NOISE, exchange=ExchangeConfig(up="int8")
    )[1]
    assert not np.array_equal(exact, coded)
    # int8 rounds each change to a multiple of its largest / 127, which is below 5 sd here.
    assert np.abs(exact - coded).max() < 5.0 * 2.0 * 0.5 / 127


@pytest.mark.parametrize("scores", [False, True])
def test_scores_of_personal_models_are_sent_only_if_asked(tmp_path: Path, scores: bool) -> None:
    privacy = msgspec.structs.replace(NOISE, scores=scores)
    experiment = an_experiment(
        privacy=privacy, personalisation=PersonalisationConfig(method="ditto")
    )
    learning = a_learning(tmp_path, experiment, DATA)
    train(learning, DATA, ALL_DEVICES, ALL_DEVICES)
    learning.score_personal()
    assert bool(learning.personal_scores) is scores


def quickstart(*settings: str) -> Experiment:
    return load_experiment(QUICKSTART, ["model.name=softmax", "rounds=6", *PRIVATE, *settings])


def released(folder: Path) -> list[tuple[object, ...]]:
    with sqlite3.connect(folder / "run.db") as connection:
        return connection.execute("SELECT * FROM release ORDER BY 1, 2, 3").fetchall()


@pytest.mark.parametrize("settings", [(), ("round.late=merge", "round.deadline_s=1.5")])
def test_a_resumed_replay_counts_what_an_uninterrupted_one_counts(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    of = quickstart(*settings)
    replay_experiment(of, tmp_path / "whole", "run", lambda replayed: None)
    cut_off_at(3, of, tmp_path / "parts")
    replay_experiment(of, tmp_path / "parts", "run", lambda replayed: None)
    assert released(tmp_path / "parts") == released(tmp_path / "whole") != []
    with RunReader(tmp_path / "parts") as reader:
        resumed, exchanges = summarise_run(reader), reader.exchanges()
    with RunReader(tmp_path / "whole") as reader:
        assert summarise_run(reader).privacy == resumed.privacy
    assert resumed.privacy is not None
    sent = {d.name: d.releases for d in resumed.fleet}
    arrived = {name: sum(x.device == name and x.bytes_up > 0 for x in exchanges) for name in sent}
    assert all((sent[name] or 0) >= arrived[name] for name in sent)
    if not settings:
        assert sent == arrived, "each update that was sent arrived"


NEEDS = r"needs losses of devices, which no noise covers"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["selection.policy=oort"], rf"selection.policy must not be 'oort'.*{NEEDS}"),
        (["selection.policy=power-of-choice"], rf"must not be 'power-of-choice'.*{NEEDS}"),
        (
            ["selection.policy=power-of-choice", "selection.variant=pow-d"],
            rf"must not be 'power-of-choice'.*{NEEDS}; choose rbcs-f, fedcs",
        ),
        (["aggregation.defence=k-loss"], rf"defence must not be 'k-loss'.*{NEEDS}; choose k-norm"),
        *(
            ([f"aggregation.rule={rule}"], rf"aggregation.rule must not be '{rule}'.*{NEEDS}")
            for rule in ("q-fedavg", "afl", "term", "propfair", "corefed", "aaggff-s", "aaggff-d")
        ),
        (
            ["aggregation.rule=afl", "selection.policy=uniform"],
            r"choose fedavg or fedmgda\+, or remove \[privacy\]$",
        ),
        (["privacy.clip=0"], r"privacy.clip: must be .*above 0|privacy.clip"),
        (["privacy.delta=1"], r"privacy.delta"),
    ],
)
def test_what_noise_does_not_cover_is_refused_in_one_line(
    settings: list[str], problem: str
) -> None:
    with pytest.raises(ExperimentError, match=problem) as caught:
        quickstart(*settings)
    assert "\n" not in str(caught.value)


def test_clip_and_noise_are_set_together() -> None:
    with pytest.raises(ExperimentError, match=r"privacy.*noise_multiplier must be set with"):
        load_experiment(QUICKSTART, ["privacy.clip=0.5"])
    with pytest.raises(ExperimentError, match=r"privacy.*clip must be set with the other"):
        load_experiment(QUICKSTART, ["privacy.noise_multiplier=0.5"])


@pytest.mark.parametrize("rule", ["fedavg", "fedmgda+"])
def test_rules_without_losses_are_accepted(rule: str) -> None:
    make_decisions(quickstart(f"aggregation.rule={rule}").coordinator())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["aggregation.rule=examples.term:Term"], "weight rule examples.term:Term: must need no"),
        (
            [f'training.rule="{SPLIT_DRIFT}"', "training.rule_options={share=0.5}"],
            r"local rule .*SplitDrift: must return no vectors with \[privacy\], got change",
        ),
    ],
)
def test_plugins_that_noise_does_not_cover_are_refused(settings: list[str], problem: str) -> None:
    with pytest.raises(PluginError, match=problem):
        make_decisions(quickstart(*settings).coordinator())


def test_a_selector_that_queries_losses_is_refused() -> None:
    config = quickstart().coordinator()
    selection = SelectionConfig(policy="power-of-choice", variant="pow-d", per_round=2)
    with pytest.raises(PluginError, match="selector power-of-choice: must need no losses"):
        make_decisions(msgspec.structs.replace(config, selection=selection))


@pytest.mark.parametrize(("scores", "tests"), [("false", False), ("true", True)])
def test_devices_with_own_data_test_the_model_only_if_asked(scores: str, tests: bool) -> None:
    config = quickstart(f"privacy.scores={scores}").coordinator()
    assert (config.held_out is not None) is tests


def test_a_model_with_buffers_is_refused() -> None:
    tensors = (
        Tensor(name="w", shape=(3,), offset=0),
        Tensor(name="mean", shape=(2,), offset=3, role="buffer"),
    )
    with pytest.raises(ExperimentError, match=r"model.name 'softmax': privacy: every value"):
        quickstart().check_layout(Layout(tensors=tensors))
    load_experiment(QUICKSTART).check_layout(Layout(tensors=tensors))
