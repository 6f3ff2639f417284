"""The arms: the policies of the paper's figures, and the worlds in which they run.

Most numbers are a third party's: docs/selection.md lists what is from the paper.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairbed.testbed.experiment.file import Experiment, load_experiment

EXPERIMENT = Path(__file__).parents[2] / "examples" / "rbcs-f-paper.toml"
LOW_NOISE, HIGH_NOISE = 0.1, 1.0
"""Relative noise of exchange times; the second is that of the third party's re-implementation."""
WEIGHTS = (5.0, 10.0, 20.0, 50.0)
"""V of the curves of the third party's re-implementation, 1/s."""
KNOWN_WEIGHTS = (5.0, 20.0, 50.0)
"""V for which the comparator of the regret is recorded."""
FEDCS_DEADLINE_S = 3.0
"""FedCS(3) of the figures, read as a deadline: spec/algorithms.md, 1.3."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A selection policy of the figures."""

    label: str
    """Name in figures and tables."""
    settings: tuple[str, ...]
    """Overrides of the experiment file."""
    weight: float | None = None
    """V of RBCS-F, 1/s; None for other policies."""


RANDOM = Policy("random", ("selection.policy=uniform",))
FASTEST = Policy("fastest known", ("selection.policy=fastest-known",))
FEDCS = Policy(
    f"FedCS({FEDCS_DEADLINE_S:g})",
    ("selection.policy=fedcs", f"selection.deadline_s={FEDCS_DEADLINE_S}"),
)


def rbcs_f(weight: float) -> Policy:
    """Return RBCS-F with a weight V."""
    settings = ("selection.policy=rbcs-f", f"selection.V={weight}")
    return Policy(f"RBCS-F({weight:g})", settings, weight)


def rbcs_f_known(weight: float) -> Policy:
    """Return RBCS-F with the true expected times: problem P3 of the paper."""
    settings = ("selection.policy=rbcs-f-known", f"selection.V={weight}")
    return Policy(f"known times({weight:g})", settings, weight)


POLICIES = (
    RANDOM,
    *(rbcs_f(weight) for weight in (0.0, *WEIGHTS)),
    FEDCS,
    FASTEST,
    *(rbcs_f_known(weight) for weight in KNOWN_WEIGHTS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A policy in a world."""

    policy: Policy
    noise: float = LOW_NOISE
    coding: str = "not_previous"
    """When a device counts as cold: not selected in the previous round, or the opposite."""

    def experiment(self, rounds: int, seed: int) -> Experiment:
        """Return the arm's experiment.

        Raises:
            ExperimentError: The experiment file is missing or broken.
        """
        settings = (*self.policy.settings, f"selection.cold_start_coding={self.coding}")
        experiment = load_experiment(EXPERIMENT, [*settings, f"rounds={rounds}"], seed)
        fleet = tuple(msgspec.structs.replace(g, noise=self.noise) for g in experiment.fleet)
        return msgspec.structs.replace(experiment, fleet=fleet)


def all_arms() -> tuple[Arm, ...]:
    """Return every arm of the table: all policies in both worlds, the learners in both codings."""
    worlds = (LOW_NOISE, HIGH_NOISE)
    usual = [Arm(policy=policy, noise=noise) for noise in worlds for policy in POLICIES]
    literal = [
        Arm(policy=rbcs_f(weight), noise=noise, coding="literal_seed")
        for noise in worlds
        for weight in WEIGHTS
    ]
    return (*usual, *literal)
