"""The training runs of Figs. 5 and 6: their size, model and settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from experiments.rbcs_f_paper.arms import EXPERIMENT, FEDCS, LOW_NOISE, RANDOM, Policy, rbcs_f
from fairbed.testbed.experiment.file import Experiment, load_experiment

Figure: TypeAlias = Literal[5, 6]

DATASETS = ("fashion-mnist", "cifar10")
MIXTURES = (1.0, 10.0, math.inf)
"""gamma_1: concentration of the classes at a device; infinite gives all devices the same mix."""
EVENNESS = (0.1, 0.5, 1.0, 10.0)
"""gamma_2: concentration of the selection probabilities."""
STRATEGIES = (RANDOM, rbcs_f(5.0), rbcs_f(20.0), rbcs_f(50.0), FEDCS)
MODELS = {
    "softmax": "softmax",
    "small-cnn": "experiments.rbcs_f_paper.networks:small_cnn",
    "cnn": "cnn",
}
"""Values of `--model`, and their names in an experiment file."""
LEARNING_RATES = {
    ("softmax", "fashion-mnist"): 0.05,
    ("softmax", "cifar10"): 0.01,
    ("softmax", "digits"): 0.05,
    ("small-cnn", "fashion-mnist"): 0.1,
    ("small-cnn", "cifar10"): 0.05,
    ("small-cnn", "digits"): 0.1,
    ("cnn", "fashion-mnist"): 0.05,
    ("cnn", "cifar10"): 0.05,
}
"""Softmax regression at 0.05 does not converge on CIFAR-10, whose examples have more features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The extent of the training runs."""

    rounds: int
    every: int
    """Rounds between two evaluations."""
    seeds: int
    max_examples: int | None
    """Examples of the data set, before their division over forty devices; None takes all."""
    model: str
    """A key of MODELS."""
    datasets: tuple[str, ...] = DATASETS
    mixtures: tuple[float, ...] = MIXTURES


SIZES = {
    "softmax": Size(rounds=100, every=5, seeds=5, max_examples=6_000, model="softmax"),
    "small-cnn": Size(rounds=100, every=5, seeds=5, max_examples=6_000, model="small-cnn"),
    "cnn": Size(rounds=500, every=10, seeds=5, max_examples=None, model="cnn"),
}
"""By `--model`. The first two take minutes on two cores; the third takes days: the paper's rounds
on all examples, with a network of the usual size."""
QUICK = Size(
    rounds=4,
    every=2,
    seeds=1,
    max_examples=1_000,
    model="softmax",
    datasets=("digits",),
    mixtures=(1.0,),
)
"""A run of some seconds, with data that are always available: for tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One training run: a data set, its division, a policy, a seed."""

    dataset: str
    mixture: float
    policy: Policy
    evenness: float | None = None
    """gamma_2 of a policy with fixed probabilities; None for other policies."""
    seed: int

    def experiment(self, size: Size) -> Experiment:
        """Return the experiment of the run.

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
            partition,
            f"model.name={MODELS[size.model]}",
            "training.epochs=1",
            "training.batch_size=20",
            f"training.learning_rate={LEARNING_RATES[size.model, self.dataset]}",
            f"evaluation.every={size.every}",
        ]
        if size.max_examples is not None:
            settings.append(f"data.max_examples={size.max_examples}")
        if self.evenness is not None:
            settings.append(f"selection.weights={self._weights(self.evenness)}")
        experiment = load_experiment(EXPERIMENT, settings, self.seed)
        fleet = tuple(msgspec.structs.replace(g, noise=LOW_NOISE) for g in experiment.fleet)
        return msgspec.structs.replace(experiment, fleet=fleet)

    def _weights(self, evenness: float) -> list[float]:
        """Return p ~ Dirichlet(gamma_2 1_N), the same for every data set and mixture."""
        devices = load_experiment(EXPERIMENT).devices
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, round(1000 * evenness)]))
        shares: list[float] = rng.dirichlet(np.full(devices, evenness)).tolist()
        return shares


def fixed(evenness: float) -> Policy:
    """Return the policy with fixed selection probabilities of this evenness."""
    return Policy(f"gamma_2 = {evenness:g}", ("selection.policy=weighted",))


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a panel, over all seeds."""

    policy: Policy
    evenness: float | None = None

    def setting(self, dataset: str, mixture: float, seed: int) -> Setting:
        """Return the run of this curve with a seed."""
        return Setting(
            dataset=dataset, mixture=mixture, policy=self.policy, evenness=self.evenness, seed=seed
        )


def lines_of(figure: Figure) -> list[Line]:
    """Return the curves of a panel of Fig. 5 or 6."""
    if figure == 5:
        return [Line(fixed(evenness), evenness) for evenness in EVENNESS]
    return [Line(policy) for policy in STRATEGIES]


def settings_of(figures: Sequence[Figure], size: Size) -> list[Setting]:
    """Return all runs of Figs. 5 or 6, seed by seed: interrupted work has complete seeds."""
    return [
        line.setting(dataset, mixture, seed)
        for dataset in size.datasets
        for seed in range(size.seeds)
        for mixture in size.mixtures
        for figure in figures
        for line in lines_of(figure)
    ]
