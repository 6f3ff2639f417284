"""Runs of training: kept, gone on with, and the same as a replay of the same experiment."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from experiments.rbcs_f_paper.settings import DATASETS, QUICK, SIZES, Setting, settings_of
from experiments.rbcs_f_paper.training import Curve, DamagedFile, curves_of, train, training_data
from fairbed.coordinator.algorithms.fairness import jain
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.learning import make_learning
from fairbed.testbed.replay.setup import setup_of

LONGER = replace(QUICK, rounds=12)


def fair_run() -> Setting:
    """Return a run of RBCS-F, which remembers most."""
    return next(one for one in settings_of([6], LONGER) if one.policy.label == "RBCS-F(20)")


def test_what_was_trained_before_is_not_trained_again(tmp_path: Path) -> None:
    setting = settings_of([6], QUICK)[0]
    first = train(setting, QUICK, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(msgspec.json.encode(Curve(first.rounds, first.time_s, [0.5, 0.75])))
    assert train(setting, QUICK, tmp_path).accuracy == [0.5, 0.75]


def test_a_run_is_the_replay_of_its_experiment(tmp_path: Path) -> None:
    experiment = fair_run().experiment(LONGER)
    setup = setup_of(experiment)
    learning = make_learning(setup, tmp_path, threads=1)
    rounds = ReplayEngine(setup.decisions, setup.world, cohort=learning).replay(experiment.rounds)
    replayed = [
        (one.after.now, float(np.mean([s.correct / s.n for s in one.scores.values()])))
        for one in rounds
        if one.scores is not None
    ]
    learning.close()
    curve = train(fair_run(), LONGER, tmp_path)
    assert list(zip(curve.time_s, curve.accuracy, strict=True)) == replayed


def test_a_run_that_was_cut_off_goes_on_bit_for_bit(tmp_path: Path) -> None:
    experiment = fair_run().experiment(LONGER)
    source, draft = training_data("digits", "softmax"), tmp_path / "run.draft"
    *_, whole = curves_of(experiment, source, tmp_path / "none.draft")
    cut = curves_of(experiment, source, draft, checkpoint_s=0.0)
    for _ in range(1 + 7):
        next(cut)
    cut.close()
    begun = msgspec.msgpack.decode(draft.read_bytes())
    assert begun["round"] == 7
    assert begun["curve"]["rounds"] == [2, 4, 6]
    first, *rest = curves_of(experiment, source, draft)
    assert len(rest) == LONGER.rounds - 7
    assert first == whole


def test_nothing_is_left_of_a_draft_when_the_run_is_done(tmp_path: Path) -> None:
    setting = fair_run()
    experiment = setting.experiment(LONGER)
    draft = tmp_path / f"{experiment.hash()[:16]}.draft"
    cut = curves_of(experiment, training_data("digits", "softmax"), draft, checkpoint_s=0.0)
    for _ in range(1 + LONGER.rounds):  # to the end, but not as far as the curve's file
        next(cut)
    cut.close()
    assert draft.exists()
    assert train(setting, LONGER, tmp_path).rounds == [2, 4, 6, 8, 10, 12]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


@pytest.mark.parametrize("suffix", ["json", "draft"])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str) -> None:
    setting = settings_of([5], QUICK)[0]
    path = tmp_path / f"{setting.experiment(QUICK).hash()[:16]}.{suffix}"
    path.write_bytes(b"{")
    with pytest.raises(DamagedFile, match=rf"^{path}: must be a file of an earlier call, got: "):
        train(setting, QUICK, tmp_path)


def test_the_less_even_the_draws_the_more_a_few_devices_come_up() -> None:
    evenness = [
        jain(np.array(setting.experiment(QUICK).selection.weights))
        for setting in settings_of([5], QUICK)
    ]
    assert evenness == sorted(evenness)
    assert evenness[0] < 0.3
    assert evenness[-1] > 0.8


def test_every_run_has_a_file_of_its_own_and_seeds_come_one_after_another() -> None:
    size = replace(SIZES["softmax"], seeds=2)
    settings = settings_of([5, 6], size)
    assert len(settings) == len(DATASETS) * 2 * 3 * (4 + 5)
    assert len({setting.experiment(size).hash() for setting in settings}) == len(settings)
    seeds = [one.seed for one in settings if one.dataset == "cifar10"]
    assert seeds == sorted(seeds)


def test_the_small_network_has_the_size_it_says() -> None:
    torch = pytest.importorskip("torch", reason="needs fairbed[torch]")
    from experiments.rbcs_f_paper.networks import small_cnn

    for shape, size in (((1, 28, 28), 9_098), ((3, 32, 32), 11_642)):
        module = small_cnn(shape, 10)
        assert module(torch.zeros(2, *shape)).shape == (2, 10)
        assert sum(parameter.numel() for parameter in module.parameters()) == size
