"""Replays with training, for Figs. 5 and 6: who is selected, and what the model becomes."""

import math
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks._paper.arms import EXPERIMENT, FEDCS, MILD, RANDOM, Policy, rbcs_f
from coordinator.algorithms.arrays import Floats
from coordinator.ports import Score
from testbed.experiment import Experiment, load_experiment
from testbed.replay.learning import make_learning
from testbed.replay.play import play
from testbed.replay.stage import stage_of

DATASETS = ("fashion-mnist", "cifar10")
MIXTURES = (1.0, 10.0, math.inf)
"""gamma_1: concentration of the classes at a device; infinite is the same for all."""
EVENNESS = (0.1, 0.5, 1.0, 10.0)
"""gamma_2: concentration of the probabilities by which devices are drawn."""
LEARNING_RATES = {"fashion-mnist": 0.05, "cifar10": 0.01, "digits": 0.05}
"""Of the softmax regression; at 0.05 it does not settle on CIFAR-10, whose examples are longer."""
STRATEGIES = (RANDOM, rbcs_f(5.0), rbcs_f(20.0), rbcs_f(50.0), FEDCS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is trained."""

    rounds: int
    every: int
    """Rounds between two evaluations."""
    seeds: int
    max_examples: int
    """Of the data set, before they are divided over forty devices."""
    model: str
    datasets: tuple[str, ...] = DATASETS
    mixtures: tuple[float, ...] = MIXTURES


USUAL = Size(rounds=100, every=5, seeds=2, max_examples=6_000, model="softmax")
"""A few minutes on two cores."""
FULL = Size(rounds=500, every=10, seeds=5, max_examples=60_000, model="cnn")
"""The paper's length, with a network like its own: hours."""
QUICK = Size(
    rounds=4,
    every=2,
    seeds=1,
    max_examples=1_000,
    model="softmax",
    datasets=("digits",),
    mixtures=(1.0,),
)
"""Seconds, with data that are always there: for tests."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What one run of training came to."""

    rounds: list[int]
    """Evaluated after these."""
    time_s: list[float]
    """On the virtual clock, when each of them was over."""
    accuracy: list[float]
    """Mean over the devices' held-out examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run of training: a data set, a way to divide it, a way to select, a seed."""

    dataset: str
    mixture: float
    policy: Policy
    evenness: float | None = None
    """gamma_2 of a policy that draws by fixed probabilities; None for the others."""
    seed: int

    def experiment(self, size: Size) -> Experiment:
        """Return its experiment.

        Raises:
            ExperimentError: The experiment file is missing or broken.
        """
        partition = (
            'data.partition={kind="iid"}'
            if math.isinf(self.mixture)
            else f'data.partition={{kind="class-mix", gamma={self.mixture}}}'
        )
        settings = [
            *self.policy.settings,
            f"name=rbcs-f-paper-{self.dataset}",
            f"rounds={size.rounds}",
            f"data.dataset={self.dataset}",
            f"data.max_examples={size.max_examples}",
            partition,
            f"model.name={size.model}",
            "training.epochs=1",
            "training.batch_size=20",
            f"training.learning_rate={LEARNING_RATES[self.dataset]}",
            f"evaluation.every={size.every}",
        ]
        if self.evenness is not None:
            settings.append(f"selection.weights={self._weights(self.evenness)}")
        experiment = load_experiment(EXPERIMENT, settings, self.seed)
        fleet = tuple(msgspec.structs.replace(g, noise=MILD) for g in experiment.fleet)
        return msgspec.structs.replace(experiment, fleet=fleet)

    def _weights(self, evenness: float) -> list[float]:
        """Return p ~ Dirichlet(gamma_2 1_N), the same for every data set and mixture."""
        devices = load_experiment(EXPERIMENT).devices
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, round(1000 * evenness)]))
        shares: list[float] = rng.dirichlet(np.full(devices, evenness)).tolist()
        return shares


def fixed(evenness: float) -> Policy:
    """Return the policy that draws by fixed probabilities of this evenness."""
    return Policy(f"gamma_2 = {evenness:g}", ("selection.policy=weighted",))


def settings_of(figure: int, size: Size) -> list[Setting]:
    """Return all runs of Fig. 5 or 6."""
    return [
        Setting(dataset=dataset, mixture=mixture, policy=policy, evenness=evenness, seed=seed)
        for dataset in size.datasets
        for mixture in size.mixtures
        for policy, evenness in curves_of(figure)
        for seed in range(size.seeds)
    ]


def curves_of(figure: int) -> list[tuple[Policy, float | None]]:
    """Return the curves of a panel of Fig. 5 or 6."""
    if figure == 5:
        return [(fixed(evenness), evenness) for evenness in EVENNESS]
    return [(policy, None) for policy in STRATEGIES]


def train_all(
    settings: Sequence[Setting], size: Size, folder: Path, workers: int | None = None
) -> dict[Setting, Curve]:
    """Return the curve of every run; those that `folder` holds already are not run again.

    Args:
        settings: All different.
        size: How much is trained.
        folder: Keeps one file a curve.
        workers: Processes; None takes one a core.

    Raises:
        ExperimentError: A run cannot be replayed.
        DataError: Its data cannot be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(setting, size, folder) for setting in settings]
    curves = list(_in_parallel(jobs, workers or os.cpu_count() or 1))
    return dict(zip(settings, curves, strict=True))


def train(setting: Setting, size: Size, folder: Path) -> Curve:
    """Return the curve of one run, from its file if there is one."""
    experiment = setting.experiment(size)
    path = folder / f"{experiment.hash()[:16]}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Curve)
    curve = _train(experiment)
    draft = path.with_suffix(".part")
    draft.write_bytes(msgspec.json.encode(curve))
    draft.replace(path)
    return curve


def _train(experiment: Experiment) -> Curve:
    stage, curve = stage_of(experiment), Curve([], [], [])
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as scratch:
        learning = make_learning(stage, Path(scratch), threads=1)
        try:
            for played in play(
                stage.decisions,
                stage.world,
                experiment.round,
                experiment.rounds,
                cohort=learning,
            ):
                if played.scores is not None:
                    curve.rounds.append(played.choice.round)
                    curve.time_s.append(played.started_s + played.duration_s)
                    curve.accuracy.append(_accuracy(played.scores))
        finally:
            learning.close()
    return curve


def _accuracy(scores: Mapping[str, Score]) -> float:
    """Return the mean over devices of their shares of correct answers."""
    return float(np.mean([score.correct / score.n for score in scores.values() if score.n]))


def accuracies(curves: Sequence[Curve]) -> Floats:
    """Return the accuracy of each seed at each evaluation, shape (seeds, evaluations)."""
    return np.array([curve.accuracy for curve in curves], dtype=np.float64)


def _in_parallel(jobs: Sequence[tuple[Setting, Size, Path]], workers: int) -> Iterator[Curve]:
    if workers == 1:
        yield from (train(*job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(train, *zip(*jobs, strict=True))
