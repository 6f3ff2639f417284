"""All decisions of a run in one place: choose, merge, learn. Pure; a replay drives the same class.

The shell asks `choose`, plays the round while it feeds `begin_merge`, and tells `learn` what
came of it.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Accumulator, Aggregator, Streaming
from fairbed.coordinator.algorithms.aggregation.gathered import Gathered, Models
from fairbed.coordinator.algorithms.aggregation.staleness import Lateness
from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.coordinator.algorithms.estimation.base import (
    COLD,
    DOWN,
    Estimator,
    Measured,
    Prediction,
)
from fairbed.coordinator.algorithms.random_streams import seeds
from fairbed.coordinator.algorithms.selection.audit import audit
from fairbed.coordinator.algorithms.selection.base import (
    Candidates,
    Outcomes,
    Selector,
    TwoStepSelector,
)
from fairbed.coordinator.algorithms.selection.guarded import PluginError
from fairbed.coordinator.policy.choice import Choice, LossDemand, Observations, ReportedLosses
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.factories import make_aggregator, make_estimator, make_selector

_SELECTION, _ENCODING, _ASKING, _AUDIT = 0, 2, 3, 4
"""Purposes of random streams within a round (spec/algorithms.md, 0.4.8)."""

_TRAINING_SEED, _ASKING_SEED = 1000, 1001
"""Purposes of seeds per device. A replayed fleet has smaller ones, perhaps with the same seed."""

MAX_LOSS = 1e6
"""Nats; a loss above it is taken for it: sums of losses must not overflow."""


class Roster(Protocol):
    """What the decisions want to know of a fleet; a live one is a `Registry`."""

    def contexts(self, down_bits: float | Floats, up_bits: float | Floats, coding: str) -> Floats:
        """Return what is known of each device before the selection, shape (N, 4)."""
        ...

    def available(self, now: float) -> Bools:
        """Return I_{t,n}, shape (N,)."""
        ...

    def n_k(self) -> Ints:
        """Return the training examples of each device, shape (N,)."""
        ...


class Decisions:
    """Selector, estimator and aggregator of a run, and their random streams."""

    def __init__(
        self,
        config: CoordinatorConfig,
        selector: Selector,
        estimator: Estimator,
        aggregator: Aggregator,
    ) -> None:
        self.config = config
        self.selector = selector
        self.estimator = estimator
        self.aggregator = aggregator
        self._registered = 0
        """Devices that the last selection saw."""

    def choose(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        known_s: Floats | None = None,
        answers: ReportedLosses | None = None,
        *,
        asked: int | None = None,
        pick: int = 0,
    ) -> Choice:
        """Return this round's cohort.

        A device that has answered a question has the model, and its data in memory: its exchange
        needs neither download nor cold start, and its context says so.

        Args:
            round_id: The round, which also picks the random stream.
            roster: All devices, N of them.
            transfer_bits: What an exchange takes down and up, bits, each (N,) or one for all.
            now: Monotonic seconds.
            known_s: True expected exchange times, seconds, shape (N,), where somebody knows them.
            answers: What came of this round's `question`; None if there was none.
            asked: How many; None is as many as a round takes.
            pick: How often was chosen for this round before, which picks the random stream, too.

        Raises:
            PluginError: A selector that is not ours breaks the contract.
            ValueError: What the selector needs is not known.
        """
        settings, seed = self.config.selection, self.config.seed_selection
        candidates, context, prediction = self._candidates(
            round_id, roster, transfer_bits, now, known_s, answers
        )
        count = self.config.asked if asked is None else asked
        stream = self._stream(seed, round_id, _SELECTION, pick)
        picked = self.selector.select(candidates, count, stream)
        probability = settings.audit if pick == 0 else 0.0
        if probability:  # without an audit nothing is drawn
            stream = self._stream(seed, round_id, _AUDIT)
        audited = audit(picked, candidates.is_available, probability, stream)
        return Choice(
            round=round_id,
            rows=audited.rows,
            is_available=candidates.is_available,
            context=context,
            prediction=prediction,
            n_k=candidates.n_k,
            propensity=audited.propensity,
            audit_row=audited.audit_row,
            known_s=known_s,
        )

    def question(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        known_s: Floats | None = None,
    ) -> LossDemand | None:
        """Return whose losses have to be known before `choose`; None if it needs none.

        Raises:
            PluginError: A selector that is not ours breaks the contract.
        """
        selector = self.selector
        if not isinstance(selector, TwoStepSelector):
            return None
        candidates, _, _ = self._candidates(round_id, roster, transfer_bits, now, known_s, None)
        stream = self._stream(self.config.seed_selection, round_id, _ASKING)
        rows = selector.candidates(candidates, self.config.asked, stream)
        return LossDemand(round_id, rows, selector.sample)

    def _candidates(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        known_s: Floats | None,
        answers: ReportedLosses | None,
    ) -> tuple[Candidates, Floats, Prediction]:
        """Return the fleet as a selector sees it, with the contexts behind it, shape (N, 4)."""
        context = roster.contexts(*transfer_bits, self.config.selection.cold_start_coding)
        self._registered = len(context)
        is_available, loss = roster.available(now), None
        if answers is not None:
            loss = np.full(len(context), np.nan)
            loss[answers.rows] = np.clip(answers.loss, 0.0, MAX_LOSS)
            is_available = is_available.copy()
            is_available[answers.rows[~np.isfinite(answers.loss)]] = False
            has_answered = np.isfinite(loss)
            context = context.copy()
            context[has_answered, COLD] = context[has_answered, DOWN] = 0.0
        prediction = self.estimator.predict(context)
        candidates = Candidates(
            round=round_id,
            is_available=is_available,
            tau_hat_s=prediction.tau_hat_s,
            width_s=prediction.width_s,
            transfer_hat_s=prediction.transfer_hat_s,
            n_k=roster.n_k(),
            known_s=known_s,
            loss=loss,
        )
        return candidates, context, prediction

    def learn(self, choice: Choice, seen: Observations) -> None:
        """Update queues and estimates from what a round taught."""
        n = len(choice.is_available)
        is_selected = np.zeros(n, dtype=np.bool_)
        is_selected[choice.rows] = True
        is_aggregated = np.zeros(n, dtype=np.bool_)
        is_aggregated[seen.rows[seen.is_aggregated]] = True
        tau_s, loss = np.full(n, np.nan), np.full(n, np.nan)
        tau_s[seen.rows], loss[seen.rows] = seen.tau_s, seen.loss
        self.selector.observe(
            Outcomes(
                round=choice.round,
                is_selected=is_selected,
                is_aggregated=is_aggregated,
                n_k=choice.n_k,
                tau_s=tau_s,
                loss=loss,
            )
        )
        is_of_this_round: Bools = np.logical_and.reduce(np.isnan(seen.context), axis=1)
        self._teach(choice, seen, ~is_of_this_round)
        self._teach(choice, seen, is_of_this_round)

    def _teach(self, choice: Choice, seen: Observations, is_told: Bools) -> None:
        """Let the estimator learn from those told, shape (K,), of each device the last one."""
        time_s = self._time_s(choice, seen)
        places = np.flatnonzero(is_told & ~np.isnan(time_s))
        last = dict(sorted(zip(seen.rows[places].tolist(), places.tolist(), strict=True)))
        if not last:
            return
        rows, at = (np.array(list(column)) for column in (last.keys(), last.values()))
        context = seen.context[at]
        context = np.where(np.isnan(context), choice.context[rows], context)
        phases_s = np.where(np.isnan(seen.tau_s[at, None]), np.nan, seen.phases_s[at])
        self.estimator.observe(rows, context, Measured(time_s[at], phases_s))

    def _time_s(self, choice: Choice, seen: Observations) -> Floats:
        """Return the times that exchanges teach, seconds, shape (K,); NaN for nothing.

        With `on_timeout = "lower_bound"` a missed deadline teaches the deadline. An exchange that
        was cancelled earlier teaches how long it had taken, if that is more than was predicted:
        a bound below the prediction carries no information.
        """
        if self.config.selection.on_timeout == "drop":
            return seen.tau_s
        at_least_s = seen.at_least_s
        deadline_s = np.where(np.isnan(at_least_s), self.config.round.deadline_s, at_least_s)
        tells = at_least_s > choice.prediction.tau_hat_s[seen.rows]
        bound_s = np.where(seen.timed_out, deadline_s, np.where(tells, at_least_s, np.nan))
        time_s: Floats = np.where(np.isnan(seen.tau_s), bound_s, seen.tau_s)
        return time_s

    def frozen(self) -> list[int]:
        """Return the rows whose queues stand still because they failed time and again."""
        rows = getattr(self.selector, "frozen", None)
        return [] if rows is None else [int(row) for row in rows]

    def begin_merge(
        self, round_id: int, vector: Vector, n_params: int, models: Callable[[], Models]
    ) -> Accumulator:
        """Return the empty merge of a round that was sent `vector`, shape (n_values,).

        `models` makes room for a whole round of models, for a rule that cannot do without.
        """
        rule, learning_rate = self.aggregator, self.config.training.learning_rate_at(round_id)
        if isinstance(rule, Streaming):
            return rule.begin(vector, n_params, learning_rate)
        return Gathered(rule, vector, n_params, learning_rate, models(), self._registered)

    def training_seed(self, round_id: int, row: int) -> int:
        """Return the seed of a device's mini-batch orders in a round."""
        return int(self.training_seeds(round_id, np.array([row]))[0])

    def training_seeds(self, round_id: int, rows: Ints) -> Ints:
        """Return the `training_seed` of each row, shape (K,)."""
        return seeds(self.config.seed_training, round_id, rows, _TRAINING_SEED)

    def asking_seed(self, round_id: int, row: int) -> int:
        """Return the seed of the mini-batch that a device evaluates when it is asked."""
        return int(seeds(self.config.seed_training, round_id, np.array([row]), _ASKING_SEED)[0])

    def encoding_stream(self, round_id: int) -> np.random.Generator:
        """Return what rounds the model that a round leaves; 0 is the first one."""
        return self._stream(self.config.seed_training, round_id, _ENCODING)

    def to_state(self) -> dict[str, Any]:
        """Return the state of all three as plain numbers and lists."""
        return {
            "selector": self.selector.to_state(),
            "estimator": self.estimator.to_state(),
            "aggregator": self.aggregator.to_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self.selector.load_state(state["selector"])
        self.estimator.load_state(state["estimator"])
        self.aggregator.load_state(state["aggregator"])

    @property
    def lateness(self) -> Lateness:
        """What an update counts that comes late."""
        settings = self.config.round
        return Lateness(staleness=settings.staleness, exponent=settings.staleness_exponent)

    @staticmethod
    def _stream(seed: int, round_id: int, purpose: int, pick: int = 0) -> np.random.Generator:
        again = [pick] if pick else []
        return np.random.default_rng(np.random.SeedSequence([seed, round_id, purpose, *again]))


def make_decisions(config: CoordinatorConfig) -> Decisions:
    """Return the decisions that a configuration names, without any memory yet.

    Raises:
        PluginError: Its selector is a plug-in that cannot be had, or not with asynchronous rounds.
    """
    selector = make_selector(config.selection)
    if config.round.is_buffered and isinstance(selector, TwoStepSelector):
        raise PluginError(
            f"selector {config.selection.policy}: must select without losses with round.mode = "
            '"async", got one that asks devices for them: nobody can be asked while a round goes '
            "on; leave round.mode out"
        )
    return Decisions(
        config,
        selector,
        make_estimator(config.selection),
        make_aggregator(config.aggregation, config.selection.per_round),
    )
