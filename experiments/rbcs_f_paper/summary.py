"""The results of the replays without training: cells, checks, codings and regret."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.rbcs_f_paper.arms import (
    KNOWN_WEIGHTS,
    MILD,
    WEIGHTS,
    WILD,
    Arm,
    rbcs_f,
    rbcs_f_known,
)
from experiments.rbcs_f_paper.reference import ROUNDS
from experiments.rbcs_f_paper.rounds import TAIL, Trajectory
from experiments.rbcs_f_paper.table import Cell, Check, Played, cells, checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """The two codings of s beside each other, for one V and one world."""

    weight: float
    noise: float
    error_selected: float
    """Mean |tau_hat / E tau - 1| of the selected in the second half, s = not in the last round."""
    error_selected_literal: float
    """The same with the opposite coding, and so on."""
    error_all: float
    error_all_literal: float
    total_s: float
    total_s_literal: float

    @property
    def extra_time_ratio(self) -> float:
        """What the literal coding costs, of the total time."""
        return self.total_s_literal / self.total_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What not knowing the expected times costs, for one V and one world; means over seeds."""

    weight: float
    noise: float
    extra_s: float
    """Total time beyond that of `rbcs-f-known`."""
    extra_ratio: float
    """The same, of the total time of `rbcs-f-known`."""
    extra_error_s: float
    """Standard error of extra_s; the worlds are shared, so the differences are paired."""
    first_s: float
    """(J - min J) / V a round over the first hundred rounds, seconds."""
    last_s: float
    """The same over the last hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything but the figures."""

    seeds: int
    rounds: int
    cells: list[Cell]
    checks: list[Check]
    codings: list[Coding]
    regrets: list[Regret]

    @property
    def missed(self) -> list[Cell]:
        """Numbers that are not near enough to the reference."""
        return [cell for cell in self.cells if cell.is_within is False]

    @property
    def is_reproduced(self) -> bool:
        """All numbers are near enough, and all checks hold."""
        return not self.missed and all(check.holds for check in self.checks)


def summarise(played: Played, seeds: int, rounds: int) -> Summary:
    """Return the summary of all arms that were played."""
    worlds = [(noise, weight) for noise in (MILD, WILD) for weight in WEIGHTS]
    return Summary(
        seeds=seeds,
        rounds=rounds,
        cells=cells(played, has_reference=rounds == ROUNDS),
        checks=checks(played),
        codings=[_coding(played, weight, noise) for noise, weight in worlds],
        regrets=[
            _regret(played, weight, noise) for noise, weight in worlds if weight in KNOWN_WEIGHTS
        ],
    )


def _coding(played: Played, weight: float, noise: float) -> Coding:
    ours = played[Arm(policy=rbcs_f(weight), noise=noise)]
    literal = played[Arm(policy=rbcs_f(weight), noise=noise, coding="literal_seed")]

    def selected(runs: Sequence[Trajectory]) -> float:
        return float(np.mean([run.second_half(run.error_selected) for run in runs]))

    def everybody(runs: Sequence[Trajectory]) -> float:
        return float(np.mean([run.second_half(run.error_all) for run in runs]))

    def total_s(runs: Sequence[Trajectory]) -> float:
        return float(np.mean([run.total_s for run in runs]))

    return Coding(
        weight=weight,
        noise=noise,
        error_selected=selected(ours),
        error_selected_literal=selected(literal),
        error_all=everybody(ours),
        error_all_literal=everybody(literal),
        total_s=total_s(ours),
        total_s_literal=total_s(literal),
    )


def _regret(played: Played, weight: float, noise: float) -> Regret:
    learned = played[Arm(policy=rbcs_f(weight), noise=noise)]
    told = played[Arm(policy=rbcs_f_known(weight), noise=noise)]
    extra_s = np.array([a.total_s - b.total_s for a, b in zip(learned, told, strict=True)])
    known_s = float(np.mean([run.total_s for run in told]))
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
