"""The results of the replays without training: cells, checks, codings and regret."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.rbcs_f_paper.arms import (
    HIGH_NOISE,
    KNOWN_WEIGHTS,
    LOW_NOISE,
    WEIGHTS,
    Arm,
    rbcs_f,
    rbcs_f_known,
)
from experiments.rbcs_f_paper.reference import ROUNDS
from experiments.rbcs_f_paper.rounds import TAIL, Trajectory
from experiments.rbcs_f_paper.table import Cell, Check, Replays, cells, checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """Results of the two codings of s, for one V and one noise level."""

    weight: float
    noise: float
    error_selected: float
    """Mean |tau_hat / E tau - 1| of the cohorts in the second half, s = not in the last round."""
    error_selected_literal: float
    """The same with the opposite coding, as all `_literal` fields."""
    error_all: float
    error_all_literal: float
    total_s: float
    total_s_literal: float

    @property
    def extra_time_ratio(self) -> float:
        """Extra time of the literal coding, relative to the total time."""
        return self.total_s_literal / self.total_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """The cost of learning the times, for one V and one noise level; means over seeds."""

    weight: float
    noise: float
    extra_s: float
    """Total time beyond that of `rbcs-f-known`."""
    extra_ratio: float
    """The same, relative to the total time of `rbcs-f-known`."""
    extra_error_s: float
    """Standard error of extra_s; both run in the same worlds, so the differences are paired."""
    first_s: float
    """(J - min J) / V per round over the first hundred rounds, seconds."""
    last_s: float
    """The same over the last hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All results except the figures."""

    seeds: int
    rounds: int
    cells: list[Cell]
    checks: list[Check]
    codings: list[Coding]
    regrets: list[Regret]

    @property
    def missed(self) -> list[Cell]:
        """Numbers that differ too much from the reference."""
        return [cell for cell in self.cells if cell.is_within is False]

    @property
    def is_reproduced(self) -> bool:
        """Whether no number differs too much and all checks hold."""
        return not self.missed and all(check.holds for check in self.checks)


def summarise(replays: Replays, seeds: int, rounds: int) -> Summary:
    """Return the summary of all replayed arms."""
    worlds = [(noise, weight) for noise in (LOW_NOISE, HIGH_NOISE) for weight in WEIGHTS]
    return Summary(
        seeds=seeds,
        rounds=rounds,
        cells=cells(replays, has_reference=rounds == ROUNDS),
        checks=checks(replays),
        codings=[_coding(replays, weight, noise) for noise, weight in worlds],
        regrets=[
            _regret(replays, weight, noise) for noise, weight in worlds if weight in KNOWN_WEIGHTS
        ],
    )


def _coding(replays: Replays, weight: float, noise: float) -> Coding:
    usual = replays[Arm(policy=rbcs_f(weight), noise=noise)]
    literal = replays[Arm(policy=rbcs_f(weight), noise=noise, coding="literal_seed")]

    def selected(runs: Sequence[Trajectory]) -> float:
        return float(np.mean([run.second_half(run.error_selected) for run in runs]))

    def all_devices(runs: Sequence[Trajectory]) -> float:
        return float(np.mean([run.second_half(run.error_all) for run in runs]))

    def total_s(runs: Sequence[Trajectory]) -> float:
        return float(np.mean([run.total_s for run in runs]))

    return Coding(
        weight=weight,
        noise=noise,
        error_selected=selected(usual),
        error_selected_literal=selected(literal),
        error_all=all_devices(usual),
        error_all_literal=all_devices(literal),
        total_s=total_s(usual),
        total_s_literal=total_s(literal),
    )


def _regret(replays: Replays, weight: float, noise: float) -> Regret:
    learned = replays[Arm(policy=rbcs_f(weight), noise=noise)]
    known = replays[Arm(policy=rbcs_f_known(weight), noise=noise)]
    extra_s = np.array([a.total_s - b.total_s for a, b in zip(learned, known, strict=True)])
    known_s = float(np.mean([run.total_s for run in known]))
    n = len(extra_s)
    gaps_s = np.array([run.regret_s for run in learned])
    return Regret(
        weight=weight,
        noise=noise,
        extra_s=float(extra_s.mean()),
        extra_ratio=float(extra_s.mean()) / known_s,
        extra_error_s=float(extra_s.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan"),
        first_s=float(gaps_s[:, :TAIL].mean()),
        last_s=float(gaps_s[:, -TAIL:].mean()),
    )
