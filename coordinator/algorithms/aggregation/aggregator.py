"""The aggregation of a run: weights of the updates, pseudo-gradient, server step.

An update enters in two ways. If rule and pseudo-gradient are separable, each update is added to a
running sum when it arrives (`RunningMerge`); otherwise the models are stored until the last one has
arrived (`StoredMerge`). In both, the order of arrival changes no bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import (
    Accumulator,
    Changes,
    Filter,
    Guarantee,
    LinearPseudoGradient,
    Merge,
    Models,
    Note,
    PseudoGradient,
    Report,
    SeparableRule,
    ServerStep,
    Stack,
    Step,
    Updates,
    WeightRule,
    notes_of,
)
from fairbed.coordinator.algorithms.aggregation.guard import usable
from fairbed.coordinator.algorithms.aggregation.pseudo_gradient import Average
from fairbed.coordinator.algorithms.aggregation.running_sum import (
    RunningSum,
    add_scaled,
    squared_distance,
    total_of,
    weighted_sum,
    with_length_of,
)
from fairbed.coordinator.algorithms.aggregation.server_step import Plain
from fairbed.coordinator.algorithms.aggregation.weighting import Weighting, Weights
from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.coordinator.algorithms.columns import grown

HEADROOM = 512
"""Most powers of two by which a coefficient may exceed the unit of its sum; float64 has 1023."""

SUM_TOLERANCE = 1e-12
"""Weights whose sum is this near 1 are an average, which the model that was sent does not enter."""


class Aggregator:
    """Merges the updates of each round into the next model.

    Args:
        rule: Step 1, the weights of the updates.
        weights: p_k of the devices before their losses count.
        pseudo_gradient: Step 2; not given: the weighted sum of the changes.
        server: Step 3; not given: the model moves by the pseudo-gradient.
        local_steps: Returns tau_k, the mini-batches of local training, from n_k, both of shape
            (K,). Devices' own counts are not used, because a device that understated them would
            count more; not given: 1 each.
        defence: Leaves out or shortens updates before they are weighted; not given: all count.
        step: "normalised" gives step 2 the length of the equal-weight mean of the updates that
            count, d' = d |mean_k D_k| / |d| over the parameters, whatever the sum of the weights. A
            d without a direction stays. Buffers are averages and stay, too.
    """

    def __init__(
        self,
        rule: WeightRule,
        weights: Weights = "n",
        pseudo_gradient: PseudoGradient | LinearPseudoGradient | None = None,
        server: ServerStep | None = None,
        local_steps: Callable[[Ints], Ints] = np.ones_like,
        defence: Filter | None = None,
        step: Step = "as-published",
    ) -> None:
        self.rule = rule
        self.pseudo_gradient: PseudoGradient | LinearPseudoGradient = pseudo_gradient or Average()
        self.server: ServerStep = server or Plain()
        self.weighting = Weighting(weights)
        self.local_steps = local_steps
        self.steps_in: Callable[[int, Ints, Ints], Ints] | None = None
        """tau_k of a round, given its number, rows and n_k, where devices draw their steps; None:
        `local_steps`."""
        self.defence = defence
        self.is_normalised = step == "normalised"
        is_linear = isinstance(self.pseudo_gradient, LinearPseudoGradient)
        is_separable = isinstance(rule, SeparableRule) and not rule.needs_models
        self.is_streaming = is_linear and is_separable and defence is None
        """Each update is read once, so that memory does not grow with the cohort."""

    @property
    def needs_loss(self) -> bool:
        """Devices must report F_k(w_t), evaluated before the first local step."""
        return self.rule.needs_loss or (self.defence is not None and self.defence.needs_loss)

    def begin(
        self,
        vector: Vector,
        n_params: int,
        learning_rate: float,
        models: Callable[[], Models],
        registered: int = 0,
        round_id: int = 0,
        not_drawn: Bools | None = None,
    ) -> Accumulator:
        """Return the empty merge of a round.

        Args:
            vector: The model that is sent, w, shape (n_values,).
            n_params: Number of its parameters; the other values are buffers.
            learning_rate: Local step size eta_l.
            models: Opens storage for all models of the round; called if the merge cannot stream.
            registered: Number of all devices, selected or not; 0 if unknown.
            round_id: Number of the round, from 1; 0 if unknown.
            not_drawn: Devices that the round could have drawn and did not, shape (registered,);
                None: all that do not report.
        """
        begun = _Begun(vector, n_params, learning_rate, registered, round_id, not_drawn)
        return (
            RunningMerge(self, begun) if self.is_streaming else StoredMerge(self, begun, models())
        )

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers, bytes and lists, for the checkpoint."""
        return {
            "weighting": self.weighting.to_state(),
            "rule": self.rule.to_state(),
            "pseudo_gradient": self.pseudo_gradient.to_state(),
            "server": self.server.to_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self.weighting.load_state(state["weighting"])
        self.rule.load_state(state["rule"])
        self.pseudo_gradient.load_state(state["pseudo_gradient"])
        self.server.load_state(state["server"])


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is known of a round before its updates."""

    sent: Vector
    n_params: int
    learning_rate: float
    registered: int
    round: int
    not_drawn: Bools | None


class _Arrivals:
    """The numbers of the updates of a round, in the order of arrival."""

    def __init__(self, parts: Aggregator, begun: _Begun) -> None:
        self._parts, self._begun = parts, begun
        self._columns: list[tuple[Updates, Bools]] = []

    def add(self, stack: Stack) -> tuple[Updates, Bools]:
        """Add K reports; return the usable ones as columns, and which are usable, shape (K,)."""
        begun, parts = self._begun, self._parts
        is_usable = usable(begun.sent, stack, needs_loss=parts.needs_loss)
        rows, n_k = stack.rows[is_usable], stack.n_k[is_usable]
        losses, norms = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        if parts.needs_loss and stack.loss_before is not None:
            losses = stack.loss_before[is_usable]
        if parts.rule.needs_norms or parts.defence is not None:
            params = begun.sent[: begun.n_params]
            norms = np.array(
                [
                    squared_distance(params, model[: begun.n_params])
                    for model in stack.models[is_usable]
                ]
            )
        updates = Updates(
            rows=rows,
            n_k=n_k,
            steps=parts.local_steps(n_k)
            if parts.steps_in is None
            else parts.steps_in(begun.round, rows, n_k),
            shares=parts.weighting.of(rows, n_k),
            losses=losses,
            squared_norms=norms,
            learning_rate=begun.learning_rate,
            registered=begun.registered,
            round=begun.round,
        )
        self._columns.append((updates, is_usable))
        return updates, is_usable

    def all(self) -> tuple[Updates | None, Ints, Bools]:
        """Return the usable updates by row, their order of arrival, and which reports are usable.

        The updates are None if there are none.
        """
        is_usable = np.concatenate(
            [np.zeros(0, np.bool_), *(usable for _, usable in self._columns)]
        )
        if not is_usable.any():
            return None, np.zeros(0, dtype=np.int64), is_usable
        parts = [updates for updates, _ in self._columns]
        rows = np.concatenate([part.rows for part in parts])
        order = np.argsort(rows, kind="stable")
        registered = max(self._begun.registered, int(rows.max()) + 1)
        not_drawn = self._begun.not_drawn
        together = Updates(
            rows=rows,
            n_k=np.concatenate([part.n_k for part in parts]),
            steps=np.concatenate([part.steps for part in parts]),
            shares=np.concatenate([part.shares for part in parts]),
            losses=np.concatenate([part.losses for part in parts]),
            squared_norms=np.concatenate([part.squared_norms for part in parts]),
            learning_rate=self._begun.learning_rate,
            registered=registered,
            round=self._begun.round,
            not_drawn=None if not_drawn is None else grown(not_drawn, registered),
        )
        return together.of(order), order, is_usable

    def observe(self, updates: Updates) -> None:
        """Count a round that is merged, for weights by the rate of participation."""
        self._parts.weighting.observe(updates)


class RunningMerge:
    """One round whose updates are added to a sum when they arrive.

    The coefficients c_k are in units of 2^unit. The unit grows when one arrives that would overflow
    it; as it is a power of two, the change causes no rounding. Buffers have the coefficients of the
    rule alone. A normalised step needs a second sum, that of the models with equal weights.
    """

    def __init__(self, parts: Aggregator, begun: _Begun) -> None:
        assert isinstance(parts.rule, SeparableRule)
        assert isinstance(parts.pseudo_gradient, LinearPseudoGradient)
        self._rule, self._gradient = parts.rule, parts.pseudo_gradient
        self._parts, self._begun = parts, begun
        self._arrivals = _Arrivals(parts, begun)
        self._params = RunningSum(begun.n_params)
        self._buffers = RunningSum(begun.sent.size - begun.n_params)
        self._equal = RunningSum(begun.n_params) if parts.is_normalised else None
        self._unit: int | None = None

    def add(self, report: Report) -> None:
        """Add an update to the sum, with weight 0 if it is not usable.

        Raises:
            ValueError: The rule needs a loss and the report has none.
        """
        self.add_all(Stack.of(report))

    def add_all(self, stack: Stack) -> None:
        """Add updates to the sum, as `add` does."""
        updates, is_usable = self._arrivals.add(stack)
        if not len(updates):
            return
        mantissas, exponents = self._rule.factors(updates)
        largest = int(exponents.max())
        if self._unit is None:
            self._unit = largest
        elif largest > self._unit + HEADROOM:
            self._params.shift(self._unit - largest)
            self._buffers.shift(self._unit - largest)
            self._unit = largest
        models = stack.models if is_usable.all() else stack.models[is_usable]
        c = np.ldexp(mantissas, exponents - self._unit)
        n_params = self._begun.n_params
        self._params.add_all(c * self._gradient.factors(updates), models[:, :n_params])
        if models.shape[1] > n_params:
            self._buffers.add_all(c, models[:, n_params:])
        if self._equal is not None:
            self._equal.add_all(np.ones(len(models)), models[:, :n_params])

    def finish(self) -> Merge:
        """Return the next model; the same one if no update is usable or all weights are 0."""
        updates, order, is_usable = self._arrivals.all()
        if updates is None:
            return _unchanged(self._begun, is_usable)
        assert self._unit is not None
        mantissas, exponents = self._rule.factors(updates)
        c = np.ldexp(mantissas, exponents - self._unit)
        total_c = total_of(c * self._gradient.factors(updates))
        notes = notes_of(self._parts.rule, updates)
        # After the factors, which may depend on the state that it changes:
        a = self._parts.rule.decide(updates)
        self._arrivals.observe(updates)
        vector = self._begun.sent.copy()
        if a.any():
            total_b = total_of(self._gradient.coefficients(updates, a))
            params = self._next_params(total_c, total_b, len(updates))
            vector = np.concatenate([params, self._buffers.divided_by(total_of(c))])
        return _merge(vector, is_usable, order, a, updates.n_k, np.ones(len(updates)), notes)

    def _next_params(self, total_c: float, total_b: float, n_updates: int) -> Vector:
        """Return the next parameters, shape (n_params,).

        d = sum_k b_k (w_k - w) with b_k = c_k `total_b` / `total_c`; `total_c` is sum c.
        """
        server, sent = self._parts.server, self._begun.sent[: self._begun.n_params]
        if self._equal is not None:
            self._params.add(-total_c, sent)
            self._equal.add(-float(n_updates), sent)
            d, mean = self._params.scaled(total_b / total_c), self._equal.scaled(1.0 / n_updates)
            return server.step(sent, with_length_of(d, mean, total_b))
        if _replaces(server):
            # w + d without the difference, which would round: (sum c_k w_k + (H - C) w) / H.
            divisor = total_c / total_b
            if abs(total_b - 1.0) > SUM_TOLERANCE:
                self._params.add(divisor - total_c, sent)
            return self._params.divided_by(divisor)
        self._params.add(-total_c, sent)
        return server.step(sent, self._params.scaled(total_b / total_c))


def _replaces(server: ServerStep) -> bool:
    """Return whether the step is w' = w + d, which needs no difference from w."""
    return isinstance(server, Plain) and server.learning_rate == 1.0


class StoredMerge:
    """One round whose models are stored until the last one has arrived."""

    def __init__(self, parts: Aggregator, begun: _Begun, models: Models) -> None:
        self._parts, self._begun, self._models = parts, begun, models
        self._arrivals = _Arrivals(parts, begun)

    def add(self, report: Report) -> None:
        """Store an update unless it is not usable.

        Raises:
            ValueError: The rule needs a loss and the report has none.
        """
        self.add_all(Stack.of(report))

    def add_all(self, stack: Stack) -> None:
        """Store updates, as `add` does."""
        _, is_usable = self._arrivals.add(stack)
        for at in np.flatnonzero(is_usable):
            self._models.append(stack.models[at])

    def finish(self) -> Merge:
        """Return the next model; the same one if no update is usable or all weights are 0."""
        begun, parts = self._begun, self._parts
        updates, order, is_usable = self._arrivals.all()
        if updates is None:
            return _unchanged(begun, is_usable)
        stored, all_n_k, notes = self._models.all(), updates.n_k, list[Note]()
        models = [stored[at] for at in order.tolist()]
        updates = replace(updates, changes=Changes(begun.sent, models, begun.n_params))
        scale, kept = np.ones(len(updates)), np.arange(len(updates))
        for part in (parts.defence, parts.pseudo_gradient):
            if isinstance(part, Guarantee) and (problem := part.problem(len(updates))):
                notes.append(Note("defence", problem))
        if parts.defence is not None:
            treatment = parts.defence.treat(updates)
            kept = np.flatnonzero(treatment.is_kept)
            scale = np.where(treatment.is_kept, treatment.scale, 0.0)
            updates = updates.treated(kept, scale[kept])
        notes += notes_of(parts.rule, updates)
        a = parts.rule.decide(updates)
        self._arrivals.observe(updates)
        vector = begun.sent.copy()
        if a.any():
            vector = self._moved(updates, a, [models[k] for k in kept.tolist()], scale[kept])
        weights = np.zeros(len(scale))
        weights[kept] = a
        return _merge(vector, is_usable, order, weights, all_n_k, scale, notes)

    def _moved(
        self, updates: Updates, a: Floats, models: Sequence[Vector], scale: Floats
    ) -> Vector:
        """Return the next model, shape (n_values,), from the updates that count."""
        begun, parts, gradient = self._begun, self._parts, self._parts.pseudo_gradient
        n_params = begun.n_params
        if isinstance(gradient, LinearPseudoGradient):
            b = gradient.coefficients(updates, a) * scale
            params = self._next_params(models, b, scale)
            c = a * scale
            buffers = weighted_sum(c, [model[n_params:] for model in models])
            buffers /= total_of(c)
        else:
            d = gradient.combine(updates, a)
            if parts.is_normalised:
                with_length_of(d[:n_params], self._mean_change(models, scale), 1.0)
            params = parts.server.step(begun.sent[:n_params], d[:n_params])
            buffers = begun.sent[n_params:] + d[n_params:]
        return np.concatenate([params, buffers.astype(np.float32)])

    def _next_params(self, models: Sequence[Vector], b: Floats, scale: Floats) -> Vector:
        """Return the next parameters, shape (n_params,), of d = sum_k b_k (w_k - w).

        The order of the models is that of their rows, so a plain sum does not depend on arrivals.
        """
        server, sent = self._parts.server, self._begun.sent[: self._begun.n_params]
        if self._parts.is_normalised:
            mean = self._mean_change(models, scale)
            d = with_length_of(self._change(models, b), mean, total_of(b))
            return server.step(sent, d)
        if not _replaces(server):
            return server.step(sent, self._change(models, b))
        d, total = weighted_sum(b, [model[: len(sent)] for model in models]), total_of(b)
        if abs(total - 1.0) > SUM_TOLERANCE:
            add_scaled(d, 1.0 - total, sent)
        else:
            d /= total
        with np.errstate(over="ignore"):  # diverged models are sent as such
            return d.astype(np.float32)

    def _mean_change(self, models: Sequence[Vector], scale: Floats) -> Floats:
        """Return the equal-weight mean of the changes times their factors, shape (n_params,)."""
        return self._change(models, scale / len(scale))

    def _change(self, models: Sequence[Vector], b: Floats) -> Floats:
        """Return sum_k b_k (w_k - w) of the parameters, shape (n_params,)."""
        sent = self._begun.sent[: self._begun.n_params]
        d = weighted_sum(b, [model[: len(sent)] for model in models])
        add_scaled(d, -total_of(b), sent)
        return d


def _unchanged(begun: _Begun, is_usable: Bools) -> Merge:
    """Return the merge of a round without a usable update."""
    k = len(is_usable)
    return Merge(begun.sent.copy(), np.zeros(k), np.zeros(k, dtype=np.int64), np.ones(k))


def _merge(
    vector: Vector,
    is_usable: Bools,
    order: Ints,
    a: Floats,
    n_k: Ints,
    scale: Floats,
    notes: Sequence[Note],
) -> Merge:
    """Return a merge whose columns are in the order of arrival, from columns by row."""
    k, places = len(is_usable), np.flatnonzero(is_usable)[order]
    merge = Merge(vector, np.zeros(k), np.zeros(k, dtype=np.int64), np.ones(k), tuple(notes))
    merge.weights[places], merge.n_k[places], merge.scale[places] = a, n_k, scale
    return merge
