"""All decisions of a run in one place: select, merge, learn. Pure; a replay uses the same class.

In each round the shell calls `select`, feeds updates into the accumulator of `begin_merge`, and
passes the observations to `learn`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import (
    Accumulator,
    Models,
    WeightRule,
    max_devices_of,
    max_updates_of,
)
from fairbed.coordinator.algorithms.aggregation.staleness import StalenessRule
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
    Reason,
    Selector,
    TwoStepSelector,
)
from fairbed.coordinator.policy.combinations import local_rule_problem, weights_problem
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.factories import (
    make_aggregator,
    make_context_check,
    make_estimator,
    make_local_half,
    make_miss_limit,
    make_query_limit,
    make_selector,
)
from fairbed.coordinator.policy.selection import (
    LossDemand,
    Observations,
    Picked,
    ReportedLosses,
    Roster,
    Selection,
)
from fairbed.wire.messages import LocalTraining
from fairbed.wire.plugins import PluginError

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.estimation.context_check import ContextChange
    from fairbed.coordinator.algorithms.local_training import ServerHalf
    from fairbed.coordinator.algorithms.selection.explanation import Explain, Explanation
    from fairbed.coordinator.algorithms.selection.miss_limit import MissLimit
    from fairbed.coordinator.policy.local_work import LocalWork

_SELECTION, _ENCODING, _QUERY, _AUDIT = 0, 2, 3, 4
"""Purposes of random streams within a round (spec/algorithms.md, 0.4.8)."""

_TRAINING_SEED, _QUERY_SEED = 1000, 1001
"""Purposes of seeds per device; a replayed fleet uses smaller ones, maybe with the same seed."""

MAX_LOSS = 1e6
"""Nats; larger losses are clamped to it, so that sums of losses do not overflow."""

WASTED_RATIO, WASTED_S = 2.0, 1.0
"""An exchange without an update has held its round up if it lasted a second more than twice the
longest one with an update."""


class Decisions:
    """Selector, estimator and aggregator of a run, and their random streams."""

    def __init__(
        self,
        config: CoordinatorConfig,
        selector: Selector,
        estimator: Estimator,
        aggregator: Aggregator,
        local_half: "ServerHalf | None" = None,
    ) -> None:
        self.config = config
        self.selector = selector
        self.estimator = estimator
        self.aggregator = aggregator
        self.local_half = local_half
        """The coordinator's half of a local rule that is a plug-in; None if there is none."""
        self.miss_limit = make_miss_limit(config.selection)
        """Excludes devices that keep missing the deadline; None: there is no limit."""
        self.query_limit = make_query_limit(config.selection, selector)
        """The same for loss queries that devices do not answer; None: there is none."""
        self.context_check = make_context_check(config.selection)
        """Replaces claims that exchanges contradict; None: contexts are used as claimed."""
        self.context_changes: list[ContextChange] = []
        """Claims that the last call of `learn` began or ceased to replace, by row."""
        self.contexts_judged: tuple[int, int] | None = None
        """Exchanges of the last call of `learn` that the check judged, and those that it could not
        judge; None without a check."""
        self.local_work: LocalWork | None = None
        """How long each device trains in a round; None: all alike, as configured."""
        if config.training.draws_work:
            from fairbed.coordinator.policy import local_work

            self.local_work = local_work.LocalWork(config.training, config.seed_training)
            aggregator.steps_in = self.local_work.steps
        self._cores: Floats = np.zeros(0)
        """Cores of each device at the last selection, by its hello, shape (N,); empty before it."""
        self._registered = 0
        """Number of devices at the last selection."""
        self._not_drawn: Bools = np.zeros(0, dtype=np.bool_)
        """Devices that the first selection of the round could have drawn and did not, (N,)."""

    def reconfigure(self, config: CoordinatorConfig) -> None:
        """Continue under another configuration of the same algorithms, with all that they learnt.

        Between two rounds, as a restart from a checkpoint: every part is made anew and gets the
        state of the former one. So a virtual queue keeps its length, and grows by the new beta.

        Raises:
            PluginError: A plug-in cannot be made anew.
            FleetSizeError: The weight rule is made for smaller rounds.
        """
        made = make_decisions(config, self._registered)
        made.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(self.to_state())))
        self.config = config
        self.selector, self.estimator = made.selector, made.estimator
        self.aggregator, self.local_half = made.aggregator, made.local_half
        self.miss_limit, self.query_limit = made.miss_limit, made.query_limit
        self.context_check = made.context_check

    def select(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        true_tau_s: Floats | None = None,
        losses: ReportedLosses | None = None,
        *,
        count: int | None = None,
        selections_before: int = 0,
    ) -> Selection:
        """Return the cohort of a round.

        A device that has reported a loss holds the model and has its data in memory. Its exchange
        needs no download and no cold start, so these two features of its context are 0.

        Args:
            round_id: The round, which also picks the random stream.
            roster: All devices, N of them.
            transfer_bits: Sizes of an exchange down and up, bits, each (N,) or one for all.
            now: Monotonic clock, seconds.
            true_tau_s: True expected exchange times, seconds, shape (N,), where a simulated world
                gives them.
            losses: Reported for this round's `loss_demand`; None if there was none.
            count: Devices to select; None is the configured cohort size.
            selections_before: Number of earlier selections for this round; it also picks the
                random stream.

        Raises:
            PluginError: A third-party selector breaks the contract.
            ValueError: The selector needs a value that is not known.
        """
        settings, seed = self.config.selection, self.config.seed_selection
        candidates, context, prediction = self._candidates(
            round_id, roster, transfer_bits, now, true_tau_s, losses
        )
        is_available = candidates.is_available
        count = self.config.cohort_size if count is None else count
        stream = self._stream(seed, round_id, _SELECTION, selections_before)
        allowed = self._without_excluded(candidates)
        picked = self.selector.select(allowed, count, stream)
        probability = settings.audit if selections_before == 0 else 0.0
        if probability:  # without an audit nothing is drawn
            stream = self._stream(seed, round_id, _AUDIT)
        audited = audit(picked, is_available, probability, stream)
        if selections_before == 0:
            self._not_drawn = allowed.is_available.copy()
            self._not_drawn[audited.rows] = False
        return Selection(
            round=round_id,
            rows=audited.rows,
            is_available=is_available,
            context=context,
            prediction=prediction,
            n_k=candidates.n_k,
            propensity=audited.propensity,
            audit_row=audited.audit_row,
            true_tau_s=true_tau_s,
            picked=Picked(picked, allowed, is_available, count, selections_before),
            absences={} if losses is None else _without_loss(losses),
        )

    def explain(self, selection: Selection) -> "Explanation":
        """Return why each device is in the cohort, or not; to be called before `learn`.

        Joined selections of an asynchronous round are explained by the last of them, without an
        objective, because each fills other places.

        Raises:
            PluginError: A third-party selector breaks the contract.
        """
        from fairbed.coordinator.algorithms.selection.explanation import Explanation

        picked, seed = selection.picked, self.config.seed_selection
        explain: Explain | None = getattr(self.selector, "explain", None)
        why: Explanation | None = None
        if picked is not None and explain is not None:
            stream = self._stream(seed, selection.round, _SELECTION, picked.selections_before)
            why = explain(picked.candidates, picked.rows, picked.k, stream)
        if why is None:
            n = len(selection.is_available)
            unknown = np.full(n, np.nan)
            why = Explanation(np.zeros(n, dtype=np.int64), unknown, unknown)
        if picked is None:
            return why
        reason = why.reason
        if picked.candidates.is_available is not picked.was_available:
            reason[~picked.candidates.is_available] = Reason.MISS_LIMIT
        reason[~picked.was_available] = Reason.UNAVAILABLE
        for row, absence in selection.absences.items():
            reason[row] = absence
        if picked.rows is not selection.rows:
            reason[np.setdiff1d(picked.rows, selection.rows)] = Reason.AUDITED_OUT
            added = np.setdiff1d(selection.rows, picked.rows)
            reason[added] = np.where(added == selection.audit_row, Reason.AUDIT, Reason.EARLIER)
        if picked.selections_before:
            return replace(why, objective=None, alternative=None, exchange=None)
        return why

    @property
    def queries_losses(self) -> bool:
        """Return whether a selection needs losses that devices report before it."""
        return isinstance(self.selector, TwoStepSelector)

    def loss_demand(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        true_tau_s: Floats | None = None,
    ) -> LossDemand | None:
        """Return the devices whose loss `select` needs; None if it needs none.

        Raises:
            PluginError: A third-party selector breaks the contract.
        """
        selector = self.selector
        if not isinstance(selector, TwoStepSelector):
            return None
        candidates, _, _ = self._candidates(round_id, roster, transfer_bits, now, true_tau_s, None)
        stream = self._stream(self.config.seed_selection, round_id, _QUERY)
        fleet = self._without_excluded(candidates)
        if self.query_limit is not None:
            is_available = self.query_limit.candidates(fleet.is_available, round_id, None)
            fleet = replace(fleet, is_available=is_available)
        rows = selector.candidates(fleet, self.config.cohort_size, stream)
        return LossDemand(round_id, rows, selector.sample)

    def learn_replies(self, round_id: int, losses: ReportedLosses) -> None:
        """Count the devices that did not answer the loss query of a round."""
        if self.query_limit is None:
            return
        has_replied = np.isfinite(losses.loss)
        self.query_limit.observe(
            round_id, aggregated=losses.rows[has_replied], missed=losses.rows[~has_replied]
        )

    def _candidates(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        true_tau_s: Floats | None,
        losses: ReportedLosses | None,
    ) -> tuple[Candidates, Floats, Prediction]:
        """Return the input of a selector, the contexts, shape (N, 4), and the prediction."""
        context = roster.contexts(*transfer_bits, self.config.selection.cold_start_coding)
        self._registered = len(context)
        if self.context_check is not None:
            self._cores = roster.cores()
        is_available, loss = roster.available(now), None
        if losses is not None:
            loss = np.full(len(context), np.nan)
            loss[losses.rows] = np.clip(losses.loss, -MAX_LOSS, MAX_LOSS)
            is_available = is_available.copy()
            is_available[losses.rows[~np.isfinite(losses.loss)]] = False
            has_replied = np.isfinite(loss)
            context = context.copy()
            context[has_replied, COLD] = context[has_replied, DOWN] = 0.0
        prediction = self.estimator.predict(self._believed(context, round_id))
        candidates = Candidates(
            round=round_id,
            is_available=is_available,
            tau_hat_s=prediction.tau_hat_s,
            width_s=prediction.width_s,
            transfer_hat_s=prediction.transfer_hat_s,
            n_k=roster.n_k(),
            true_tau_s=true_tau_s,
            loss=loss,
        )
        return candidates, context, prediction

    def _believed(self, context: Floats, round_id: int) -> Floats:
        """Return the contexts that the estimator gets, shape (N, 4), from claimed ones."""
        check = self.context_check
        return context if check is None else check.believed(context, round_id)

    def _without_excluded(self, candidates: Candidates) -> Candidates:
        """Return the candidates without the devices that the miss limit excludes."""
        limit, is_available = self.miss_limit, candidates.is_available
        if limit is None:
            return candidates
        queues = self.selector.queues(len(is_available)) if limit.uses_queues else None
        allowed = limit.candidates(is_available, candidates.round, queues)
        return candidates if allowed is is_available else replace(candidates, is_available=allowed)

    def learn(self, selection: Selection, observed: Observations, left: Sequence[int] = ()) -> None:
        """Update virtual queues and estimates with the observations of a round.

        Args:
            selection: The selection of the round.
            observed: What its exchanges and earlier ones have shown.
            left: Rows of devices that have left the fleet: the round does not count for them.
        """
        n = len(selection.is_available)
        has_left: Bools | None = None
        if left:
            has_left = np.zeros(n, dtype=np.bool_)
            has_left[list(left)] = True
        is_selected = np.zeros(n, dtype=np.bool_)
        is_selected[selection.rows] = True
        is_aggregated = np.zeros(n, dtype=np.bool_)
        is_aggregated[observed.rows[observed.is_aggregated]] = True
        tau_s, loss = np.full(n, np.nan), np.full(n, np.nan)
        tau_s[observed.rows], loss[observed.rows] = observed.tau_s, observed.loss
        time_s, at_least_s = self._time_s(selection, observed), np.full(n, np.nan)
        at_least_s[observed.rows] = np.where(np.isnan(observed.tau_s), time_s, np.nan)
        self.selector.observe(
            Outcomes(
                round=selection.round,
                is_selected=is_selected,
                is_aggregated=is_aggregated,
                n_k=selection.n_k,
                tau_s=tau_s,
                loss=loss,
                at_least_s=at_least_s,
                has_left=has_left,
            )
        )
        if self.miss_limit is not None:
            self.miss_limit.observe(
                selection.round,
                aggregated=observed.rows[observed.is_aggregated],
                missed=observed.rows[_is_missed(observed) & ~observed.is_aggregated],
            )
        self.context_changes = []
        self.contexts_judged = None if self.context_check is None else (0, 0)
        is_of_this_round: Bools = np.logical_and.reduce(np.isnan(observed.context), axis=1)
        self._update_estimator(selection, observed, ~is_of_this_round)
        self._update_estimator(selection, observed, is_of_this_round)

    def _update_estimator(
        self, selection: Selection, observed: Observations, is_included: Bools
    ) -> None:
        """Update the estimator with the last included observation of each device; shape (K,)."""
        time_s = self._time_s(selection, observed)
        places = np.flatnonzero(is_included & ~np.isnan(time_s))
        last = dict(sorted(zip(observed.rows[places].tolist(), places.tolist(), strict=True)))
        if not last:
            return
        rows, at = (np.array(list(column)) for column in (last.keys(), last.values()))
        context = observed.context[at]
        context = np.where(np.isnan(context), selection.context[rows], context)
        if self.context_check is not None:
            from fairbed.coordinator.algorithms.estimation.context_check import Evidence

            coding = self.config.selection.cold_start_coding
            evidence = Evidence(
                claims_cold=observed.was_cold[at],
                is_cold=(context[:, COLD] > 0.0) != (coding == "literal_seed"),
                phases_s=observed.phases_s[at],
                steps=self.local_steps(selection.round, rows, selection.n_k[rows]),
                cores=self._cores[rows] if self._cores.size else np.full(len(rows), np.inf),
            )
            found = self.context_check.observe(rows, context, evidence, selection.round)
            context = found.context
            self.context_changes += found.changes
            judged, unjudged = self.contexts_judged or (0, 0)
            more = int(found.is_judged.sum())
            self.contexts_judged = judged + more, unjudged + len(rows) - more
        is_bound: Bools = np.isnan(observed.tau_s[at])
        self.estimator.observe(rows, context, Measured(time_s[at], observed.phases_s[at], is_bound))

    def _time_s(self, selection: Selection, observed: Observations) -> Floats:
        """Return the times that the estimator learns, seconds, shape (K,); NaN is skipped.

        With `on_timeout = "lower_bound"` an exchange that missed the deadline gives the deadline. A
        cancelled exchange gives the time that it had taken, if it exceeds the prediction: a lower
        bound below the prediction carries no information.
        """
        if self.config.selection.on_timeout == "drop":
            return observed.tau_s
        at_least_s = observed.at_least_s
        deadline_s = np.where(np.isnan(at_least_s), self.config.round.deadline_s, at_least_s)
        is_informative = at_least_s > selection.prediction.tau_hat_s[observed.rows]
        bound_s = np.where(
            observed.timed_out, deadline_s, np.where(is_informative, at_least_s, np.nan)
        )
        time_s: Floats = np.where(np.isnan(observed.tau_s), bound_s, observed.tau_s)
        return time_s

    def frozen(self) -> list[int]:
        """Return the rows whose virtual queue is frozen after too many failures in a row."""
        rows = getattr(self.selector, "frozen", None)
        return [] if rows is None else [int(row) for row in rows]

    @property
    def reached_limits(self) -> list[tuple[int, str]]:
        """Rows of devices that reached a limit in this round for the first time, and the events."""
        found: list[tuple[int, str]] = []
        if self.miss_limit is not None and self.miss_limit.reached.size:
            text = self.miss_limit_text()
            found += [(row, text) for row in self.miss_limit.reached.tolist()]
        if self.query_limit is not None and self.query_limit.reached.size:
            from fairbed.coordinator.algorithms.selection.miss_limit import RETRY_ROUNDS

            text = (
                f"gave no loss {self.query_limit.limit} times in a row; it is queried again after "
                f"{RETRY_ROUNDS} rounds"
            )
            found += [(row, text) for row in self.query_limit.reached.tolist()]
        return found

    def miss_limit_text(self) -> str:
        """Return the text of the event about a device that has reached the miss limit."""
        from fairbed.coordinator.algorithms.selection.miss_limit import RETRY_ROUNDS

        settings = self.config.selection
        text = f"missed the deadline, or held a round up, {settings.miss_limit} times in a row"
        if self.miss_limit is not None and self.miss_limit.uses_queues:
            return f"{text}; until it meets one it is selected only as often as beta requires"
        if settings.has_queues and settings.beta > 0.0:
            text += f", so its updates cannot be aggregated at the rate beta = {settings.beta:g}"
        return f"{text}; it is excluded, and tried again after {RETRY_ROUNDS} rounds"

    def begin_merge(
        self,
        round_id: int,
        vector: Vector,
        n_params: int,
        models: Callable[[], Models],
        local: Ints | None = None,
    ) -> Accumulator:
        """Return the empty accumulator of a round that trains `vector`, shape (n_values,).

        `local` are the places of values that devices keep for themselves: whatever an update has
        there, the next model has what `vector` has.

        `models` opens storage for all models of a round, for a rule that cannot stream. With a
        local rule that returns vectors, they follow each update, and not the next model.

        Raises:
            FleetSizeError: More devices have joined than a rule is made for.
        """
        check_size(self.config, self.aggregator.rule, self._registered)
        if problem := local_rule_problem(self.local_half, self.config, self._registered):
            raise FleetSizeError(problem)
        learning_rate = self.config.training.learning_rate_at(round_id)
        half = self.local_half
        sent = vector if half is None else half.padded(vector, n_params)
        merge = self.aggregator.begin(
            sent, n_params, learning_rate, models, self._registered, round_id, self._not_drawn
        )
        if half is not None:
            from fairbed.coordinator.algorithms.local_training import LocalMerge

            finish = half.finish
            merge = LocalMerge(
                merge,
                lambda done: finish(done, vector, n_params, self._registered, learning_rate),
            )
        if local is None or not local.size:
            return merge
        from fairbed.coordinator.algorithms.local_training import MergeOfOthers

        return MergeOfOthers(merge, vector, local)

    def with_vectors(self, model: Vector, n_params: int) -> Vector:
        """Return a model, shape (n_values,), followed by the vectors that the local rule sends."""
        half = self.local_half
        if half is None or not half.sent:
            return model
        return np.concatenate([model, half.vectors(n_params)])

    @property
    def vector_counts(self) -> tuple[int, int]:
        """Vectors of the local rule that follow a model, and those that follow an update."""
        half = self.local_half
        return (0, 0) if half is None else (len(half.sent), len(half.returned))

    def local_training(self, run: str, merged: int | None) -> LocalTraining | None:
        """Return the local rule for a device; None is SGD.

        Args:
            run: Id of the run.
            merged: Last round in which an update of the device was merged.
        """
        training = self.config.training
        if training.rule == "sgd":
            return None
        options = tuple(training.local_options.items())
        return LocalTraining(rule=training.rule, options=options, run=run, merged=merged)

    def local_steps(self, round_id: int, rows: Ints, n_k: Ints) -> Ints:
        """Return the mini-batches of devices with n_k examples in a round, shape (K,)."""
        if self.local_work is not None:
            return self.local_work.steps(round_id, rows, n_k)
        return self.config.training.local_steps(n_k)

    def training_seed(self, round_id: int, row: int) -> int:
        """Return the seed of a device's mini-batch orders in a round."""
        return int(self.training_seeds(round_id, np.array([row]))[0])

    def training_seeds(self, round_id: int, rows: Ints) -> Ints:
        """Return the `training_seed` of each row, shape (K,)."""
        return seeds(self.config.seed_training, round_id, rows, _TRAINING_SEED)

    def query_seed(self, round_id: int, row: int) -> int:
        """Return the seed of the mini-batch that a device evaluates in a loss query."""
        return int(seeds(self.config.seed_training, round_id, np.array([row]), _QUERY_SEED)[0])

    def encoding_stream(self, round_id: int) -> np.random.Generator:
        """Return the random stream that encodes the model after a round; 0 is the initial model."""
        return self._stream(self.config.seed_training, round_id, _ENCODING)

    def to_state(self) -> dict[str, Any]:
        """Return the state of selector, estimator, aggregator and local rule."""
        return {
            "selector": self.selector.to_state(),
            "estimator": self.estimator.to_state(),
            "aggregator": self.aggregator.to_state(),
            "miss_limit": _state_of(self.miss_limit),
            "query_limit": _state_of(self.query_limit),
            "context_check": None if self.context_check is None else self.context_check.to_state(),
            "local": None if self.local_half is None else self.local_half.to_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Load a state that `to_state` returned."""
        self.selector.load_state(state["selector"])
        self.estimator.load_state(state["estimator"])
        self.aggregator.load_state(state["aggregator"])
        if self.miss_limit is not None:
            self.miss_limit.load_state(state["miss_limit"])
        if self.query_limit is not None:
            self.query_limit.load_state(state["query_limit"])
        if self.context_check is not None:
            self.context_check.load_state(state["context_check"])
        if self.local_half is not None:
            self.local_half.load_state(state["local"])

    @property
    def staleness_rule(self) -> StalenessRule:
        """Weights of late updates."""
        settings = self.config.round
        return StalenessRule(staleness=settings.staleness, exponent=settings.staleness_exponent)

    @staticmethod
    def _stream(seed: int, round_id: int, purpose: int, index: int = 0) -> np.random.Generator:
        suffix = [index] if index else []
        return np.random.default_rng(np.random.SeedSequence([seed, round_id, purpose, *suffix]))


def _is_missed(observed: Observations) -> Bools:
    """Return which exchanges a round waited for in vain, shape (K,).

    They missed the deadline, or the device ended them without an update, `WASTED_S` later than
    `WASTED_RATIO` times the longest exchange with an update.
    """
    done_s = observed.tau_s[observed.is_aggregated & ~np.isnan(observed.tau_s)]
    limit_s = WASTED_RATIO * float(done_s.max(initial=0.0)) + WASTED_S
    is_missed: Bools = observed.timed_out | (observed.wasted_s > limit_s)
    return is_missed


def _without_loss(losses: ReportedLosses) -> dict[int, Reason]:
    rows = losses.rows[~np.isfinite(losses.loss)]
    return dict.fromkeys(rows.tolist(), Reason.NO_LOSS)


class FleetSizeError(ValueError):
    """The fleet, or a round, is larger than the weight rule is made for."""


def check_size(config: CoordinatorConfig, rule: WeightRule, devices: int) -> None:
    """Check that a weight rule is made for a fleet of `devices`, and for its rounds.

    Raises:
        FleetSizeError: It declares fewer devices, or fewer updates per round.
    """
    name, updates = config.aggregation.rule, config.updates_per_version
    most, most_updates = max_devices_of(rule), max_updates_of(rule)
    if most is not None and devices > most:
        raise FleetSizeError(
            f"aggregation.rule must not be {name!r} with more than {most} devices, got {devices}; "
            "use another rule, or fewer devices"
        )
    if most_updates is not None and updates > most_updates:
        raise FleetSizeError(
            f"aggregation.rule must not be {name!r} with more than {most_updates} updates per "
            f"round, got {updates}; use another rule, or lower selection.per_round"
        )


def make_decisions(config: CoordinatorConfig, devices: int = 0) -> Decisions:
    """Return the decisions of a configuration, with empty state, for a fleet of `devices` or more.

    Raises:
        PluginError: A plug-in cannot be loaded, or does not fit the other settings.
        FleetSizeError: The weight rule is made for fewer devices or smaller rounds.
    """
    selector = make_selector(config.selection)
    if config.round.is_buffered and isinstance(selector, TwoStepSelector):
        raise PluginError(
            f"selector {config.selection.policy}: must select without losses with round.mode = "
            '"async", got one that queries devices for them: losses cannot be queried while a '
            "round is open; remove round.mode"
        )
    aggregator = make_aggregator(config.aggregation, config.training, config.selection.per_round)
    rule, updates = aggregator.rule, config.updates_per_version
    check_size(config, rule, devices)
    if problem := weights_problem(config.aggregation, updates, aggregator.pseudo_gradient):
        raise PluginError(problem)
    needs_one_version = rule.needs_loss or rule.needs_norms or rule.needs_models
    if config.round.merges_late_updates and needs_one_version:
        raise PluginError(
            f"weight rule {config.aggregation.rule}: must need neither losses nor norms nor models "
            "where late updates are merged, got one that does: theirs belong to other model "
            'versions; use round.mode = "sync" and round.late = "drop"'
        )
    local_half = make_local_half(config.training)
    if problem := local_rule_problem(local_half, config, devices):
        raise PluginError(problem)
    # A device may begin its next exchange before the round that merges the last one has closed.
    has_vectors = local_half is not None and (
        local_half.sent or local_half.kept or local_half.returned
    )
    if config.round.merges_late_updates and has_vectors:
        raise PluginError(
            f"local rule {config.training.rule}: must have no vectors where late updates are "
            "merged, got one that has: they belong to other model versions; use "
            'round.mode = "sync" and round.late = "drop"'
        )
    if config.model.has_local_values:
        _check_local_values(config, has_vectors=bool(has_vectors))
    if config.model.weights is not None and config.personalisation.method == "local-only":
        raise PluginError(
            'personalisation.method: must be "ditto" with model.weights, got "local-only", whose '
            "models begin at the model before round 1, which a device that joins later never has; "
            "use ditto, with lambda = 0 for a local model"
        )
    if config.privacy.is_on:
        _check_privacy(config, selector, aggregator, local_half)
    training = config.training
    if training.client is not None and aggregator.needs_loss and not training.loss_metric:
        from fairbed.coordinator.policy.client import missing_metric

        raise PluginError(missing_metric(f"weight rule {config.aggregation.rule}"))
    return Decisions(config, selector, make_estimator(config.selection), aggregator, local_half)


def _state_of(limit: "MissLimit | None") -> dict[str, Any]:
    """Return the state of a limit; without one, that of a limit that nothing has reached."""
    if limit is None:
        return {"rows": [], "misses": [], "last": [], "reported": []}
    return limit.to_state()


def _check_local_values(config: CoordinatorConfig, *, has_vectors: bool) -> None:
    """Check that a run is defined in which devices keep values of the model for themselves.

    Raises:
        PluginError: It is not.
    """
    where = f'model.batch_norm: "{config.model.batch_norm}" must have'
    if config.model.personal:
        where = "model.personal must have"
    if config.round.merges_late_updates:
        raise PluginError(
            f"{where} rounds that drop late updates, got round.mode "
            f'"{config.round.mode}" and round.late "{config.round.late}": a device begins its next '
            'exchange before its last update counts; use round.mode = "sync" and round.late = '
            '"drop"'
        )
    if (config.model.batch_norm == "fedbn" or config.model.personal) and has_vectors:
        other = "another rule" if config.model.personal else '"silobn", or another rule'
        raise PluginError(
            f"{where} a local rule without vectors, got {config.training.rule}: its vectors belong "
            f"to all parameters, of which devices keep some; choose {other}"
        )
    if config.evaluation.own_data == "server-test-set":
        raise PluginError(
            f'{where} evaluation.own_data = "devices" or "off", got "server-test-set": without the '
            "values of a device the model is not defined, and the coordinator has none"
        )


def _check_privacy(
    config: CoordinatorConfig,
    selector: Selector,
    aggregator: Aggregator,
    local_half: "ServerHalf | None",
) -> None:
    """Check that noise on updates covers all that a run needs of its devices.

    Raises:
        PluginError: A plug-in needs losses, or returns vectors with the update.
    """
    lossy = ""
    if isinstance(selector, TwoStepSelector):
        lossy = f"selector {config.selection.policy}"
    elif aggregator.needs_loss:
        lossy = f"weight rule {config.aggregation.rule}"
    if lossy:
        raise PluginError(
            f"{lossy}: must need no losses with [privacy], got one that does: no noise covers "
            "them; choose another one, or remove [privacy]"
        )
    if local_half is not None and local_half.returned:
        raise PluginError(
            f"local rule {config.training.rule}: must return no vectors with [privacy], got "
            f"{', '.join(local_half.returned)}: noise covers the update of the model alone; choose "
            "another rule, or remove [privacy]"
        )
