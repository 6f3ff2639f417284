"""Guards of plug-ins in an aggregation: each violation of the contract is one line that names it.

A plug-in cannot change the updates or the model: it gets arrays that cannot be written to.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.aggregation.base import LEAST_LIMIT, Updates
from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector
from fairbed.coordinator.algorithms.plugin import Guard
from fairbed.wire.plugins import PluginError, described

PROPORTION_TOLERANCE = 1e-9
"""Largest difference of columns that must be in proportion, relative to the largest value."""

LARGEST_EXPONENT = 1 << 40
"""Bound of binary exponents: far beyond those of float64, and their differences are int64."""

NEEDS = {
    "needs_loss": ("got nan", "needs_loss is False, so losses are NaN"),
    "needs_norms": ("got nan", "needs_norms is False, so squared_norms are NaN"),
    "needs_models": ("'NoneType'", "needs_models is False, so changes is None"),
}
"""Attributes of a weight rule; a word of the fault if one is False by mistake, and the reason."""


class _Guarded(Guard):
    doctor, page = "--aggregator", "own-aggregator.md"

    def _rescales_step(self) -> bool:
        """Return the optional attribute of a rule or a pseudo-gradient.

        Raises:
            PluginError: It is not a boolean.
        """
        value: object = getattr(self.plugin, "rescales_step", False)
        if not isinstance(value, bool):
            self.fail("rescales_step", f"must be True or False, got {value!r}")
        return value

    def _column(self, where: str, returned: object, updates: Updates) -> Floats:
        """Return K numbers, one for each update.

        Raises:
            PluginError: They are not K finite numbers, all at least 0.
        """
        values = self.numbers(where, returned, (len(updates),))
        if (values < 0.0).any():
            at = int(np.argmin(values))
            got = f"{values[at]:g} for device row {updates.rows[at]}"
            self.fail(where, f"must return numbers >= 0, got {got}")
        return values

    def _check_proportion(
        self, where: str, values: Floats, others: Floats, updates: Updates, what: str
    ) -> None:
        """Check that two columns are in proportion, each with a number above 0.

        Raises:
            PluginError: They are not; `what` names `others` in the message.
        """
        largest, total = float(values.max()), float(others.max())
        expected = others * (largest / total) if total > 0.0 else others
        differs = np.abs(values - expected) > PROPORTION_TOLERANCE * largest
        if differs.any():
            at = int(np.argmax(np.abs(values - expected)))
            got = f"{values[at]:g} instead of {expected[at]:g} for device row {updates.rows[at]}"
            self.fail(where, f"must be in proportion to {what}, got {got}")

    def _separate_factors(
        self, where: str, updates: Updates, factors: Callable[[Updates], tuple[Floats, Ints]]
    ) -> tuple[Floats, Ints]:
        """Return mantissas, 0 or in [0.5, 1), and exponents of factors, two arrays of shape (K,).

        Raises:
            PluginError: A factor differs if only half of the updates are given.
        """
        mantissas, exponents = factors(updates)
        half = len(updates) // 2
        if half:
            is_first = np.arange(len(updates)) < half
            first, second = factors(updates.of(is_first)), factors(updates.of(~is_first))
            again = np.concatenate([first[0], second[0]])
            steps = np.concatenate([first[1], second[1]]) - exponents
            differs = np.abs(np.ldexp(again, steps) - mantissas) > PROPORTION_TOLERANCE
            if differs.any():
                row = updates.rows[int(np.argmax(differs))]
                self.fail(
                    where,
                    "must return a factor for each update that does not depend on the other "
                    f"updates, got another one for device row {row} among half of them",
                )
        return mantissas, exponents


class GuardedRule(_Guarded):
    """A plug-in weight rule whose every result is checked."""

    noun = "weight rule"
    verbs: ClassVar[tuple[str, ...]] = ("decide",)

    def __init__(self, name: str, rule: object) -> None:
        super().__init__(name, rule)
        for need in NEEDS:
            value = getattr(rule, need, None)
            if not isinstance(value, bool):
                self.fail(need, f"must be True or False, got {value!r}")
        self.max_devices = self._limit("max_devices")
        self.max_updates = self._limit("max_updates")
        self.rescales_step = self._rescales_step()
        self.needs_loss: bool = self.plugin.needs_loss
        self.needs_norms: bool = self.plugin.needs_norms
        self.needs_models: bool = self.plugin.needs_models

    def _limit(self, name: str) -> int | None:
        limit: object = getattr(self.plugin, name, None)
        if limit is not None and not (type(limit) is int and limit >= LEAST_LIMIT):
            self.fail(name, f"must be an integer >= {LEAST_LIMIT} or None, got {limit!r}")
        return limit

    def decide(self, updates: Updates) -> Floats:
        """Return a_k, shape (K,); all 0 leaves the model unchanged.

        Raises:
            PluginError: The result is not K finite numbers, all at least 0.
        """
        where = f"decide(){_in_round(updates)}"
        given = updates if self.needs_models else replace(updates, changes=None)
        returned = self.call(where, lambda: self.plugin.decide(_read_only(given)))
        return self._column(where, returned, updates)

    def error(self, where: str, what: str) -> PluginError:
        """Return the error of a violation; it names needs that are not declared and may matter."""
        reasons = [
            reason
            for need, (word, reason) in NEEDS.items()
            if word in what and getattr(self.plugin, need, True) is False
        ]
        return super().error(where, what + (f" ({'; '.join(reasons)})" if reasons else ""))


class GuardedSeparableRule(GuardedRule):
    """A plug-in rule with `factors`, whose every result is checked."""

    verbs: ClassVar[tuple[str, ...]] = ("decide", "factors")

    def decide(self, updates: Updates) -> Floats:
        """Return a_k, shape (K,), in proportion to `factors`; all 0 leaves the model unchanged.

        Raises:
            PluginError: The result is not K finite numbers, all at least 0, or not in proportion.
        """
        mantissas, exponents = self.factors(updates)
        a = super().decide(updates)
        if a.any():
            c = np.ldexp(mantissas, exponents - exponents.max())
            self._check_proportion(f"decide(){_in_round(updates)}", a, c, updates, "factors()")
        return a

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return c_k as mantissas, 0 or in [0.5, 1), and exponents, two arrays of shape (K,).

        Raises:
            PluginError: They are not, or a factor depends on the other updates.
        """
        where = f"factors(){_in_round(updates)}"
        return self._separate_factors(where, updates, lambda some: self._factors(where, some))

    def _factors(self, where: str, updates: Updates) -> tuple[Floats, Ints]:
        returned = self.call(where, lambda: self.plugin.factors(_read_only(updates)))
        if not (isinstance(returned, tuple) and len(returned) == 2):
            self.fail(where, f"must return mantissas and exponents, got {described(returned)}")
        mantissas = self._column(f"mantissas of {where}", returned[0], updates)
        exponents = returned[1]
        is_ints = isinstance(exponents, np.ndarray) and exponents.dtype.kind in "iu"
        if not is_ints or exponents.shape != mantissas.shape:
            self.fail(
                f"exponents of {where}",
                f"must be integers of shape {mantissas.shape}, got {described(exponents)}",
            )
        is_far = (exponents < -LARGEST_EXPONENT) | (exponents > LARGEST_EXPONENT)
        if is_far.any():
            got = exponents[int(np.argmax(is_far))]
            self.fail(f"exponents of {where}", f"must be from -2^40 to 2^40, got {got}")
        return _normal(mantissas, exponents.astype(np.int64))


class GuardedPseudoGradient(_Guarded):
    """A plug-in pseudo-gradient whose every result is checked."""

    noun = "pseudo-gradient"
    verbs: ClassVar[tuple[str, ...]] = ("combine",)

    def __init__(self, name: str, gradient: object) -> None:
        super().__init__(name, gradient)
        self.rescales_step = self._rescales_step()
        uses_weights: object = getattr(gradient, "uses_weights", True)
        if not isinstance(uses_weights, bool):
            self.fail("uses_weights", f"must be True or False, got {uses_weights!r}")
        self.uses_weights: bool = uses_weights

    def combine(self, updates: Updates, a: Floats) -> Floats:
        """Return d, shape (n_values,).

        Raises:
            PluginError: It is not n_values finite numbers.
        """
        assert updates.changes is not None
        where = f"combine(){_in_round(updates)}"
        weights = _read_only_column(a)
        d = self.call(where, lambda: self.plugin.combine(_read_only(updates), weights))
        return self.numbers(where, d, updates.changes[0].shape)


class GuardedLinearPseudoGradient(_Guarded):
    """A plug-in pseudo-gradient sum_k b_k D_k, whose every result is checked."""

    noun = "pseudo-gradient"
    verbs: ClassVar[tuple[str, ...]] = ("factors", "coefficients")

    def __init__(self, name: str, gradient: object) -> None:
        super().__init__(name, gradient)
        self.rescales_step = self._rescales_step()

    def factors(self, updates: Updates) -> Floats:
        """Return f_k, shape (K,), all positive.

        Raises:
            PluginError: They are not, or a factor depends on the other updates.
        """
        where = f"factors(){_in_round(updates)}"
        mantissas, exponents = self._separate_factors(
            where, updates, lambda some: self._factors(where, some)
        )
        return np.ldexp(mantissas, exponents)

    def coefficients(self, updates: Updates, a: Floats) -> Floats:
        """Return b_k, shape (K,), in proportion to a_k f_k.

        Raises:
            PluginError: They are not K finite numbers, all at least 0, or not in proportion.
        """
        where = f"coefficients(){_in_round(updates)}"
        f, weights = self.factors(updates), _read_only_column(a)
        returned = self.call(where, lambda: self.plugin.coefficients(_read_only(updates), weights))
        b = self._column(where, returned, updates)
        if not b.any():
            self.fail(where, "must return a number above 0, got 0 for each device")
        self._check_proportion(where, b, a * f, updates, "the weights times factors()")
        return b

    def _factors(self, where: str, updates: Updates) -> tuple[Floats, Ints]:
        returned = self.call(where, lambda: self.plugin.factors(_read_only(updates)))
        f = self._column(where, returned, updates)
        if not f.all():
            row = updates.rows[int(np.argmin(f))]
            self.fail(where, f"must return numbers above 0, got 0 for device row {row}")
        return _normal(f, np.zeros(len(f), dtype=np.int64))


class GuardedServerStep(_Guarded):
    """A plug-in server step whose every result is checked."""

    noun = "server step"
    verbs: ClassVar[tuple[str, ...]] = ("step",)

    def step(self, params: Vector, d: Floats) -> Vector:
        """Return the next parameters, shape (n_params,).

        Raises:
            PluginError: They are not n_params finite numbers.
        """
        where = "step()"
        returned = self.call(where, lambda: self.plugin.step(_read_only_column(params), d))
        values = self.numbers(where, returned, params.shape)
        with np.errstate(over="ignore"):
            moved = values.astype(np.float32)
        is_finite = np.isfinite(moved)
        if not is_finite.all():
            at = int(np.argmin(is_finite))
            self.fail(where, f"must return numbers within float32, got {values[at]:g} at {at}")
        return moved


def guarded_rule(name: str, rule: Any) -> GuardedRule:
    """Return a plug-in weight rule with checks.

    Raises:
        PluginError: It lacks a method or an attribute.
    """
    return (GuardedSeparableRule if hasattr(rule, "factors") else GuardedRule)(name, rule)


def guarded_pseudo_gradient(
    name: str, gradient: Any
) -> GuardedPseudoGradient | GuardedLinearPseudoGradient:
    """Return a plug-in pseudo-gradient with checks.

    Raises:
        PluginError: It lacks a method.
    """
    is_linear = hasattr(gradient, "factors") or hasattr(gradient, "coefficients")
    return (GuardedLinearPseudoGradient if is_linear else GuardedPseudoGradient)(name, gradient)


T = TypeVar("T", bound=np.generic)


def _read_only_column(column: NDArray[T]) -> NDArray[T]:
    view: NDArray[T] = column.view()
    view.flags.writeable = False
    return view


def _read_only(updates: Updates) -> Updates:
    return replace(
        updates,
        rows=_read_only_column(updates.rows),
        n_k=_read_only_column(updates.n_k),
        steps=_read_only_column(updates.steps),
        shares=_read_only_column(updates.shares),
        losses=_read_only_column(updates.losses),
        squared_norms=_read_only_column(updates.squared_norms),
        not_drawn=None if updates.not_drawn is None else _read_only_column(updates.not_drawn),
    )


def _normal(mantissas: Floats, exponents: Ints) -> tuple[Floats, Ints]:
    """Return the same numbers with mantissas that are 0 or in [0.5, 1)."""
    normal, steps = np.frexp(mantissas)
    return normal, exponents + steps


def _in_round(updates: Updates) -> str:
    return f" of round {updates.round}" if updates.round else ""
