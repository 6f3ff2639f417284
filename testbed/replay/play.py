"""Rounds on a virtual clock: who is chosen, when each exchange ends, and what the round teaches.

It drives the decisions of the live coordinator, with devices that answer from a linear world. Time
is an account, not a clock: nothing waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats, Ints
from coordinator.algorithms.estimation.base import COLD, CONTEXT, INVERSE_MU, UP
from coordinator.config import RoundConfig
from coordinator.decisions import Choice, Decisions, Observation
from testbed.replay.linear import LinearWorld, Weather

DONE, LATE, CANCELLED = "done", "late", "cancelled"


@dataclass(frozen=True, slots=True)
class Played:
    """One round that is over."""

    choice: Choice
    weather: Weather
    started_s: float
    """On the virtual clock."""
    duration_s: float
    parts_s: Floats
    """Training, cold start and transfer of the cohort, seconds, shape (K, 3)."""
    outcome: tuple[str, ...]
    """Of each of the cohort: done, late or cancelled."""
    was_cold: Bools
    """Of each of the cohort, shape (K,)."""
    was_selected: Bools
    """In the round before; of each of the cohort, shape (K,)."""

    @property
    def tau_s(self) -> Floats:
        """Exchange times of the cohort, also of those that nobody waited for, shape (K,)."""
        tau_s: Floats = self.parts_s.sum(axis=1)
        return tau_s


class Roster:
    """What the decisions want to know of a fleet; `coordinator.decisions.Roster`."""

    def __init__(self, world: LinearWorld, weather: Weather, last: "LastRound") -> None:
        self._world, self._weather, self._last = world, weather, last

    def contexts(self, down_bits: float | Floats, up_bits: float | Floats, coding: str) -> Floats:
        """Return c = [1/mu, s, 0, M/B] of each device, shape (N, 4): nothing travels down."""
        context = np.zeros((len(self._world), CONTEXT))
        context[:, INVERSE_MU] = self._weather.inverse_mu
        context[:, COLD] = self._last.is_selected if coding == "seed_literal" else self.is_cold
        context[:, UP] = up_bits / self._weather.bandwidth_bps
        return context

    def available(self, now: float) -> Bools:
        """Return I_{t,n}, shape (N,)."""
        return self._weather.is_available

    def n_k(self) -> Ints:
        """Return one example each, shape (N,): nothing is trained."""
        return np.ones(len(self._world), dtype=np.int64)

    @property
    def is_cold(self) -> Bools:
        """Who did not complete training in the last round, shape (N,)."""
        cold: Bools = ~self._last.has_trained
        return cold


@dataclass(frozen=True, slots=True)
class LastRound:
    """Who took part in the round before, each of shape (N,)."""

    is_selected: Bools
    has_trained: Bools


def play(
    decisions: Decisions, world: LinearWorld, rules: RoundConfig, rounds: int
) -> Iterator[Played]:
    """Play rounds 1 .. `rounds` and yield each when it is over and learned from.

    Args:
        decisions: What is studied; it learns.
        world: The devices.
        rules: Deadline, over-selection and the length of a void round.
        rounds: How many.
    """
    n, now = len(world), 0.0
    last = LastRound(np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_))
    for round_id in range(1, rounds + 1):
        weather = world.weather(round_id)
        roster = Roster(world, weather, last)
        expected_s = world.parts_s(weather, roster.is_cold)
        choice = decisions.choose(
            round_id, roster, (0.0, world.update_bits), now, known_s=expected_s.sum(axis=1)
        )
        rows = choice.rows
        parts_s = expected_s[rows] * weather.deviation[rows, None]
        outcome, duration_s = _settle(parts_s.sum(axis=1), decisions, rules)
        played = Played(
            choice=choice,
            weather=weather,
            started_s=now,
            duration_s=duration_s,
            parts_s=parts_s,
            outcome=outcome,
            was_cold=roster.is_cold[rows],
            was_selected=last.is_selected[rows],
        )
        decisions.learn(choice, _observations(played))
        now += duration_s
        last = _after(n, played)
        yield played


def _settle(
    tau_s: Floats, decisions: Decisions, rules: RoundConfig
) -> tuple[tuple[str, ...], float]:
    """Return what becomes of each exchange, and how long the round lasts."""
    if tau_s.size == 0:
        return (), rules.void_wait_s
    wanted, deadline_s = decisions.config.selection.per_round, rules.deadline_s
    in_time = np.sort(tau_s[tau_s <= deadline_s])
    if in_time.size >= wanted:
        end_s = float(in_time[wanted - 1])
    elif in_time.size == tau_s.size:
        end_s = float(in_time[-1])
    else:
        end_s = deadline_s
    outcome = tuple(
        DONE if tau <= end_s and tau <= deadline_s else LATE if end_s >= deadline_s else CANCELLED
        for tau in tau_s.tolist()
    )
    return outcome, end_s


def _observations(played: Played) -> list[Observation]:
    """Return what the round teaches: the measured times of those who were waited for."""
    tau_s = played.tau_s
    seen = []
    for at, row in enumerate(played.choice.rows.tolist()):
        train_s, load_s, upload_s = played.parts_s[at].tolist()
        is_done = played.outcome[at] == DONE
        seen.append(
            Observation(
                row=row,
                tau_s=float(tau_s[at]) if is_done else None,
                phases_s=(0.0, load_s, train_s, upload_s, 0.0) if is_done else None,
                is_aggregated=is_done,
                timed_out=played.outcome[at] == LATE,
            )
        )
    return seen


def _after(n: int, played: Played) -> LastRound:
    is_selected, has_trained = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    rows = played.choice.rows
    is_selected[rows] = True
    has_trained[rows[[word == DONE for word in played.outcome]]] = True
    return LastRound(is_selected, has_trained)
