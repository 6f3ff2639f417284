"""The three steps of an aggregation, and what passes between them.

    a = rule.decide(updates)                        weights of the updates
    d = sum_k b_k D_k,   b = the pseudo-gradient of a       D_k = w_k - w
    w' = server.step(w, d)

`aggregator.Aggregator` composes them. A rule sees numbers about each update; only a rule or a
pseudo-gradient that asks for the models needs all of them at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector


@dataclass(frozen=True, slots=True)
class Report:
    """One verified update."""

    row: int
    """Device row."""
    n_k: int
    """Training examples of the device, or their positions with a target, positive."""
    model: Vector
    """Model after local training, shape (n_values,), `[params | buffers]`, all finite."""
    loss_before: float | None
    """F_k(w_t) before local training, nats; None if the rule does not need it."""


@dataclass(frozen=True, slots=True)
class Stack:
    """K verified updates as the rows of one matrix."""

    rows: Ints
    """Device rows, shape (K,)."""
    n_k: Ints
    """Training examples of each device, shape (K,), all positive."""
    models: Vector
    """Models after local training, shape (K, n_values), `[params | buffers]`."""
    loss_before: Floats | None
    """F_k(w_t) before local training, nats, shape (K,); None if the rule does not need it."""

    @classmethod
    def of(cls, report: Report) -> "Stack":
        """Return a stack of one update."""
        loss = report.loss_before
        return cls(
            rows=np.array([report.row]),
            n_k=np.array([report.n_k]),
            models=report.model[np.newaxis],
            loss_before=None if loss is None else np.array([loss]),
        )


PARTS = 1024
"""Values of K changes whose products are summed at a time, 2^10: 100 changes fit a cache."""

BITS = 21
"""Bits of the integers that a value consists of: a sum of PARTS products is at most 2^52."""


class Changes:
    """D_k = w_k - w of the K updates of a round, each computed when it is read."""

    def __init__(
        self,
        sent: Vector,
        models: Sequence[Vector],
        n_params: int,
        scale: Floats | None = None,
    ) -> None:
        self._sent, self._models, self._scale = sent, models, scale
        self.n_params = n_params
        """Number of parameters; the other values of a change are buffers."""

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[Floats]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, k: int) -> Floats:
        """Return D_k, shape (n_values,), `[params | buffers]`."""
        change: Floats = self._models[k].astype(np.float64)
        change -= self._sent
        if self._scale is not None:
            change *= self._scale[k]
        return change

    def params(self, k: int) -> Floats:
        """Return D_k of the parameters, shape (n_params,)."""
        return self[k][: self.n_params]

    @property
    def n_values(self) -> int:
        """Number of values of a change."""
        return self._sent.size

    def part(self, start: int, stop: int, out: Floats | None = None) -> Floats:
        """Return values `start` to `stop` of all changes, shape (K, stop - start), in `out`."""
        block = np.empty((len(self), stop - start)) if out is None else out
        for k, model in enumerate(self._models):
            block[k] = model[start:stop]
        block -= self._sent[start:stop]
        if self._scale is not None:
            block *= self._scale[:, np.newaxis]
        return block

    def treated(self, at: Ints, scale: Floats) -> "Changes":
        """Return the changes at some positions, each times its factor, both of shape (<= K,)."""
        models = [self._models[k] for k in at.tolist()]
        factors = scale if self._scale is None else scale * self._scale[at]
        return Changes(self._sent, models, self.n_params, factors)

    def inner_products(self) -> Floats:
        """Return <D_i, D_j> over the parameters, shape (K, K).

        The bits do not depend on the number of threads.
        """
        return self._products(is_centred=False)

    def squared_distances(self) -> Floats:
        """Return |D_i - D_j|^2 over the parameters, shape (K, K).

        The bits do not depend on the number of threads. The products are of differences from one
        change: a part that all changes share would otherwise cancel with large errors. The change
        is of median size, so that it is not one that a malicious device has made large.
        """
        products = self._products(is_centred=True)
        norms = np.diag(products)
        distances: Floats = np.maximum(norms[:, None] + norms[None, :] - 2.0 * products, 0.0)
        return distances

    def _products(self, *, is_centred: bool) -> Floats:
        K = len(self)
        products, space = np.zeros((K, K)), np.empty((2, K, min(PARTS, self.n_params)))
        for start in range(0, self.n_params, PARTS):
            stop = min(start + PARTS, self.n_params)
            rows, high = space[:, :, : stop - start]
            self.part(start, stop, out=rows)
            if is_centred:
                order = np.argsort(_largest(rows), kind="stable")
                rows -= rows[order[(K - 1) // 2]].copy()
            products += _exact_products(rows, high)
        return products


def _exact_products(rows: Floats, high: Floats) -> Floats:
    """Return the products of K rows of at most `PARTS` values, shape (K, K).

    The rows change: they become l; `high` is memory for h, of the same shape.

    Each row is the sum of two rows of integers of `BITS` bits, each times a power of two, with an
    error of 2^-43 of its largest value: x = h + l. A sum of products of two of them is at most
    2^53 units, so it is exact in whatever order BLAS adds. Products of two l are left out: their
    sum is at most 2^-32 of the product of the two largest values, and usually far less.

    Source:
        Ozaki et al., Numer. Algorithms 59 (2012): error-free splitting of matrices.
    """
    exponents = np.frexp(_largest(rows))[1][:, np.newaxis]
    _round(rows, exponents - BITS, high)
    rows -= high
    _round(rows, exponents - 2 * BITS - 1, rows)
    crossed = high @ rows.T
    products: Floats = high @ high.T + (crossed + crossed.T)
    return products


def _largest(rows: Floats) -> Floats:
    """Return the largest absolute value of each row, shape (K,)."""
    largest: Floats = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    return largest


def _round(rows: Floats, exponents: Ints, out: Floats) -> None:
    """Round the rows to multiples of 2^exponents, shape (K, 1); each is below 2^51 of them."""
    shift = np.ldexp(1.5, exponents + 52)
    np.add(rows, shift, out=out)
    out -= shift


@dataclass(frozen=True, slots=True)
class Updates:
    """The K usable updates of a round as columns, K >= 1, in the order of their rows."""

    rows: Ints
    """Device rows, shape (K,)."""
    n_k: Ints
    """Training examples of each device, shape (K,), all positive."""
    steps: Ints
    """tau_k: mini-batches of local training, shape (K,), all positive."""
    shares: Floats
    """p_k of `aggregation.weights` up to a common factor, shape (K,), all positive."""
    losses: Floats
    """F_k(w_t) before local training, nats, shape (K,), at least 0; NaN unless `needs_loss`."""
    squared_norms: Floats
    """|D_k|^2 over the parameters, shape (K,); NaN unless `needs_norms`."""
    learning_rate: float
    """Local step size eta_l of this round."""
    registered: int
    """Number of all devices, selected or not; at least 1 + the largest row."""
    changes: Changes | None = None
    """D_k; None unless `needs_models`."""
    round: int = 0
    """Number of the round, from 1; 0 if unknown."""
    not_drawn: Bools | None = None
    """Devices that the round could have drawn and did not, shape (registered,): neither those that
    failed nor those that were away. None: all that do not report."""

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, at: Ints | Bools) -> "Updates":
        """Return the updates at some positions, without their changes."""
        return Updates(
            rows=self.rows[at],
            n_k=self.n_k[at],
            steps=self.steps[at],
            shares=self.shares[at],
            losses=self.losses[at],
            squared_norms=self.squared_norms[at],
            learning_rate=self.learning_rate,
            registered=self.registered,
            round=self.round,
            not_drawn=self.not_drawn,
        )

    def treated(self, at: Ints, scale: Floats) -> "Updates":
        """Return the updates at some positions with their changes, each times its factor."""
        assert self.changes is not None, "a filter needs the changes"
        chosen = self.of(at)
        return replace(
            chosen,
            squared_norms=chosen.squared_norms * np.square(scale),
            changes=self.changes.treated(at, scale),
        )


class Stateful(Protocol):
    """A part of an aggregation that a checkpoint keeps."""

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers, bytes and lists, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        ...


class Stateless:
    """A part of an aggregation without state."""

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""


class WeightRule(Stateful, Protocol):
    """Step 1: decides how much the change of each device counts."""

    needs_loss: bool
    """The rule needs F_k(w_t), evaluated before the first local step."""
    needs_norms: bool
    """The rule needs |D_k|^2."""
    needs_models: bool
    """The rule needs D_k, so that all models are stored until the last one has arrived."""

    def decide(self, updates: Updates) -> Floats:
        """Return a_k, shape (K,), all at least 0, and update the state of the rule.

        All 0 leaves the model unchanged. Called once per round that has a usable update.
        """
        ...


LEAST_LIMIT = 10
"""Smallest limit that a rule may declare: the contract tests rounds of up to 9 devices."""


def max_devices_of(rule: WeightRule) -> int | None:
    """Return the largest fleet that a rule is made for, its `max_devices`; None: any.

    The attribute is optional, and so is `max_updates`.
    """
    limit: int | None = getattr(rule, "max_devices", None)
    return limit


def max_updates_of(rule: WeightRule) -> int | None:
    """Return the largest round that a rule is made for, its `max_updates`; None: any."""
    limit: int | None = getattr(rule, "max_updates", None)
    return limit


Step: TypeAlias = Literal["as-published", "normalised"]
"""Length of the step: as rule and pseudo-gradient are published, or that of the equal-weight mean
of the same updates."""


def rescales_step(part: object) -> bool:
    """Return whether a rule or a pseudo-gradient sets the length of the step, `rescales_step`.

    The attribute is optional. It is True if the weights do not sum to 1, so that the part is
    comparable with others only at a learning rate of its own, or with `Step` "normalised".
    """
    return bool(getattr(part, "rescales_step", False))


@runtime_checkable
class SeparableRule(WeightRule, Protocol):
    """A rule whose a_k are in proportion to factors that each depend on one update only.

    Its updates are added to a running sum as they arrive, so that memory does not grow with the
    cohort.
    """

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return c_k = mantissa_k 2^exponent_k, two arrays of shape (K,); a_k / c_k is constant.

        The state does not change. The exponent prevents overflow; it may be 0 everywhere.
        """
        ...


@dataclass(frozen=True, slots=True)
class Treatment:
    """What a filter does to the K updates of a round."""

    is_kept: Bools
    """Updates that may count, shape (K,), at least one."""
    scale: Floats
    """Factor on each change, shape (K,), above 0 and at most 1."""


@runtime_checkable
class Guarantee(Protocol):
    """A defence whose guarantee needs a number of updates."""

    def problem(self, m: int) -> str:
        """Return why a round of `m` updates is too small; empty if it is not."""
        ...


class Filter(Guarantee, Protocol):
    """Step 0, if there is one: leaves out or shortens updates before they are weighted."""

    needs_loss: bool
    """It needs F_k(w_t)."""

    def kept(self, m: int) -> int:
        """Return how many of m updates it leaves, at least 1."""
        ...

    def treat(self, updates: Updates) -> Treatment:
        """Return what happens to each of the K updates, given with changes and norms."""
        ...


class PseudoGradient(Stateful, Protocol):
    """Step 2: combines the changes of the devices into the change of the model.

    One that is no weighted sum needs all changes at once. `uses_weights = False`, an attribute that
    is optional, states that the weights have no effect on it.
    """

    def combine(self, updates: Updates, a: Floats) -> Floats:
        """Return d, shape (n_values,), `[params | buffers]`; the model may become w + d.

        Args:
            updates: The updates with their changes.
            a: Their weights, shape (K,), not all 0.
        """
        ...


@runtime_checkable
class LinearPseudoGradient(Stateful, Protocol):
    """Step 2 as a weighted sum: d = sum_k b_k D_k of the parameters.

    b_k / a_k follows from the numbers of update k, up to a common factor, so that updates can be
    added as they arrive. Buffers are averaged with the weights a_k / sum a.
    """

    def factors(self, updates: Updates) -> Floats:
        """Return f_k, shape (K,), all positive: b_k / (a_k f_k) is constant."""
        ...

    def coefficients(self, updates: Updates, a: Floats) -> Floats:
        """Return b_k, shape (K,)."""
        ...


def uses_weights_of(gradient: PseudoGradient | LinearPseudoGradient) -> bool:
    """Return whether the weights of the updates have an effect on a pseudo-gradient."""
    uses_weights: bool = getattr(gradient, "uses_weights", True)
    return uses_weights


class ServerStep(Stateful, Protocol):
    """Step 3: moves the parameters by the pseudo-gradient."""

    def step(self, params: Vector, d: Floats) -> Vector:
        """Return the next parameters, shape (n_params,).

        Args:
            params: w, shape (n_params,); not changed.
            d: Pseudo-gradient, shape (n_params,); may be changed.
        """
        ...


MAX_NAMED = 3
"""Most devices that a note names."""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact about a merged round that its event log states as a warning."""

    kind: str
    """Kind of the event."""
    text: str
    rows: tuple[int, ...] = ()
    """Rows of the devices that it concerns; none if it concerns the round."""

    def about(self, names: Sequence[str]) -> str:
        """Return the text and the names of its devices; `names` has that of each row."""
        if not self.rows:
            return self.text
        named = ", ".join(names[row] for row in self.rows[:MAX_NAMED])
        more = len(self.rows) - MAX_NAMED
        return f"{self.text} ({named}{f' and {more} more' if more > 0 else ''})"


@runtime_checkable
class Noting(Protocol):
    """A rule that may have something to state about a round."""

    def notes(self, updates: Updates) -> list[Note]:
        """Return the notes on a round, usually none; the state does not change."""
        ...


def notes_of(rule: WeightRule, updates: Updates) -> list[Note]:
    """Return what a rule states about a round; nothing if it cannot."""
    return rule.notes(updates) if isinstance(rule, Noting) else []


@dataclass(frozen=True, slots=True)
class Merge:
    """Result of merging one round."""

    vector: Vector
    """The next global model, shape (n_values,)."""
    weights: Floats
    """a_k of each report, shape (K,), in the order of arrival; 0 for one that was not usable."""
    n_k: Ints
    """Training examples of each report, shape (K,); 0 for one that was not usable."""
    scale: Floats
    """Factor of the filter on each change, shape (K,): 0 if it was left out, 1 without a filter."""
    notes: tuple[Note, ...] = ()
    """What the event log of the round states: a defence without its guarantee, large losses."""

    @property
    def shares(self) -> Floats:
        """a_k / sum a, shape (K,); 0 if all weights are 0."""
        total = float(self.weights.sum())
        return self.weights / total if total > 0.0 else self.weights

    @property
    def n_shares(self) -> Floats:
        """n_k / sum n, shape (K,): the shares if examples alone counted."""
        return self.n_k / max(int(self.n_k.sum()), 1)

    @property
    def columns(self) -> dict[str, Floats]:
        """Numbers of each report for its exchange, by column of the store, each of shape (K,)."""
        return {
            "weight": self.weights,
            "weight_share": self.shares,
            "n_share": self.n_shares,
            "defence_scale": self.scale,
        }


class Models(Protocol):
    """Storage of models until the last update has arrived."""

    def append(self, model: Vector) -> None:
        """Store a copy of a model, shape (n_values,)."""
        ...

    def all(self) -> Sequence[Vector]:
        """Return the stored models in the order of arrival."""
        ...


class Accumulator(Protocol):
    """The merge of one round, which takes updates as they arrive.

    Nothing outside it changes before `finish`, so an abandoned round has no effect.
    """

    def add(self, report: Report) -> None:
        """Add an update to the merge; `report.model` may be reused afterwards.

        Raises:
            ValueError: The rule needs a loss and the report has none.
        """
        ...

    def add_all(self, stack: Stack) -> None:
        """Add updates to the merge, as `add` does."""
        ...

    def finish(self) -> Merge:
        """Return the next model; call it once."""
        ...
