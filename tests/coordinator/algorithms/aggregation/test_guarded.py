"""The guards of plug-in weight rules, pseudo-gradients and server steps: one line per violation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.base import (
    LinearPseudoGradient,
    SeparableRule,
    Updates,
)
from fairbed.coordinator.algorithms.aggregation.contract import trial_updates
from fairbed.coordinator.algorithms.aggregation.guarded import (
    GuardedPseudoGradient,
    GuardedServerStep,
    guarded_pseudo_gradient,
    guarded_rule,
)
from fairbed.coordinator.algorithms.arrays import Floats, Vector
from fairbed.wire.plugins import PluginError

UPDATES = trial_updates(3)
"""Updates of round 1."""
K = len(UPDATES)
PARAMS = np.ones(4, dtype=np.float32)


class Fake:
    """A part whose methods return or do what a test sets."""

    needs_loss: Any = True
    needs_norms = needs_models = False

    def __init__(self, **methods: Callable[..., Any] | None) -> None:
        for name, method in methods.items():
            setattr(self, name, method)

    def to_state(self) -> Any:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


def fault(run: Callable[[], object]) -> str:
    """Return the line of the violation, without the advice."""
    with pytest.raises(PluginError) as caught:
        run()
    line = str(caught.value)
    assert "\n" not in line
    assert line.endswith("; run fairbed doctor --aggregator my.mod:Part to check it")
    return line.partition("; run fairbed doctor")[0]


def decided(returned: object) -> Floats:
    return guarded_rule("my.mod:Part", Fake(decide=lambda updates: returned)).decide(UPDATES)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (np.ones(K + 1), f"numbers of shape ({K},), got float64 of shape ({K + 1},)"),
        (np.ones((K, 1)), f"numbers of shape ({K},), got float64 of shape ({K}, 1)"),
        ([1.0] * K, f"numbers of shape ({K},), got list"),
        (None, f"numbers of shape ({K},), got NoneType"),
        (np.ones(K, dtype=bool), f"numbers of shape ({K},), got bool of shape ({K},)"),
        (
            np.where(np.arange(K) == 1, np.nan, 1.0),
            "finite numbers, got nan at 1 (needs_norms is False, so squared_norms are NaN)",
        ),
        (np.full(K, np.inf), "finite numbers, got inf at 0"),
        (
            np.where(np.arange(K) == 1, -0.5, 1.0),
            f"numbers >= 0, got -0.5 for device row {UPDATES.rows[1]}",
        ),
    ],
)
def test_weights_that_cannot_be_used_are_refused(returned: object, why: str) -> None:
    line = fault(lambda: decided(returned))
    assert line == f"weight rule my.mod:Part: decide() of round 1 must return {why}"


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_weights_of_any_number_type_are_taken_and_all_0_too(dtype: Any) -> None:
    assert np.array_equal(decided(np.ones(K, dtype=dtype)), np.ones(K))
    assert np.array_equal(decided(np.zeros(K, dtype=dtype)), np.zeros(K))


def test_the_weights_are_a_copy() -> None:
    kept = np.ones(K)
    returned = decided(kept)
    returned[:] = 7.0
    assert kept.tolist() == [1.0] * K


def test_an_exception_names_the_needs_that_are_not_declared() -> None:
    def decide(updates: Updates) -> object:
        assert updates.changes is None
        return updates.changes[0]  # type: ignore[index]  # that is the point

    rule = guarded_rule("my.mod:Part", Fake(decide=decide))
    assert UPDATES.changes is not None
    found = fault(lambda: rule.decide(UPDATES))
    assert found.startswith(
        "weight rule my.mod:Part: decide() of round 1 must not raise, got TypeError: 'NoneType' "
        "object is not subscriptable (tests/"
    )
    assert found.endswith(") (needs_models is False, so changes is None)")


@pytest.mark.parametrize("column", ["rows", "n_k", "steps", "shares", "losses", "squared_norms"])
def test_updates_cannot_be_changed(column: str) -> None:
    def decide(updates: Updates) -> object:
        getattr(updates, column)[:] = 0
        return np.ones(K)

    rule = guarded_rule("my.mod:Part", Fake(decide=decide))
    assert "got ValueError: assignment destination is read-only" in fault(
        lambda: rule.decide(UPDATES)
    )


def separable(
    factors: Callable[[Updates], object], decide: Callable[[Updates], object] | None = None
) -> SeparableRule:
    rule = guarded_rule(
        "my.mod:Part", Fake(factors=factors, decide=decide or (lambda updates: updates.losses))
    )
    assert isinstance(rule, SeparableRule)
    return rule


def zeros(updates: Updates) -> Any:
    return np.zeros(len(updates), dtype=np.int64)


def test_a_rule_with_factors_is_separable() -> None:
    rule = separable(lambda updates: (updates.losses, zeros(updates)))
    assert np.array_equal(rule.decide(UPDATES), UPDATES.losses)
    mantissas, exponents = rule.factors(UPDATES)
    np.testing.assert_array_equal(np.ldexp(mantissas, exponents), UPDATES.losses)
    assert not isinstance(guarded_rule("x", Fake(decide=zeros)), SeparableRule)


def test_factors_beyond_the_range_of_a_float_are_kept() -> None:
    rule = separable(lambda updates: (updates.losses, 5000 + zeros(updates)))
    assert np.array_equal(rule.decide(UPDATES), UPDATES.losses)
    _, exponents = rule.factors(UPDATES)
    assert exponents.min() > 4000


@pytest.mark.parametrize(
    ("factors", "why"),
    [
        (lambda u: u.losses, "factors() of round 1 must return mantissas and exponents, got"),
        (
            lambda u: (u.losses, np.zeros(len(u))),
            f"exponents of factors() of round 1 must be integers of shape ({K},), got float64",
        ),
        (
            lambda u: (u.losses, zeros(u) + (1 << 50)),
            f"exponents of factors() of round 1 must be from -2^40 to 2^40, got {1 << 50}",
        ),
        (
            lambda u: (-u.losses, zeros(u)),
            "mantissas of factors() of round 1 must return",
        ),
        (
            lambda u: (u.losses / u.losses.sum(), zeros(u)),
            "factors() of round 1 must return a factor for each update that does not depend on the "
            "other updates, got another one for device row",
        ),
        (
            lambda u: (u.losses**2, zeros(u)),
            "decide() of round 1 must be in proportion to factors(), got",
        ),
        (
            lambda u: (0.0 * u.losses, zeros(u)),
            "decide() of round 1 must be in proportion to factors(), got",
        ),
    ],
)
def test_factors_that_give_another_model_are_refused(
    factors: Callable[[Updates], object], why: str
) -> None:
    assert fault(lambda: separable(factors).decide(UPDATES)).startswith(
        f"weight rule my.mod:Part: {why}"
    )


@pytest.mark.parametrize("name", ["max_devices", "max_updates"])
@pytest.mark.parametrize("limit", [9, 12.0, True, "many"])
def test_a_limit_is_an_integer_from_10_or_none(name: str, limit: object) -> None:
    fake = Fake(decide=lambda updates: np.ones(K))
    for allowed in (None, 10):
        setattr(fake, name, allowed)
        assert getattr(guarded_rule("my.mod:Part", fake), name) == allowed
    setattr(fake, name, limit)
    assert fault(lambda: guarded_rule("my.mod:Part", fake)) == (
        f"weight rule my.mod:Part: {name} must be an integer >= 10 or None, got {limit!r}"
    )


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_needs_must_be_declared(value: object) -> None:
    part = Fake(decide=zeros)
    part.needs_loss = value
    assert fault(lambda: guarded_rule("my.mod:Part", part)) == (
        f"weight rule my.mod:Part: needs_loss must be True or False, got {value!r}"
    )


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (
            object(),
            "must have decide(), to_state(), load_state(), but lacks decide, to_state",
        ),
        (Fake(), "but lacks decide; docs/own-aggregator.md has an example"),
        (Fake(decide=zeros, to_state=lambda: 3), "to_state() must return a dict, got int"),
        (Fake(decide=zeros, to_state=lambda: {"a": np.ones(2)}), "must be plain numbers and lists"),
        (Fake(decide=zeros, load_state=None), "but lacks load_state"),
    ],
)
def test_a_part_is_checked_when_it_is_loaded(part: object, why: str) -> None:
    with pytest.raises(PluginError) as caught:
        guarded_rule("my.mod:Part", part)
    assert why in str(caught.value)


def combined(returned: object) -> Floats:
    part = Fake(combine=lambda updates, a: returned)
    gradient = guarded_pseudo_gradient("my.mod:Part", part)
    assert isinstance(gradient, GuardedPseudoGradient)
    return gradient.combine(UPDATES, np.ones(K))


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (np.ones(3), "numbers of shape (7,), got float64 of shape (3,)"),
        (np.full(7, np.nan), "finite numbers, got nan at 0"),
        ("d", "numbers of shape (7,), got str"),
    ],
)
def test_a_change_that_cannot_be_used_is_refused(returned: object, why: str) -> None:
    line = fault(lambda: combined(returned))
    assert line == f"pseudo-gradient my.mod:Part: combine() of round 1 must return {why}"
    assert np.array_equal(combined(np.ones(7)), np.ones(7))


@pytest.mark.parametrize(
    ("factors", "coefficients", "why"),
    [
        (lambda u: 0 * u.steps, None, "factors() of round 1 must return numbers above 0, got 0"),
        (lambda u: u.steps / u.steps.max(), None, "does not depend on the other updates"),
        (lambda u: u.steps, lambda u, a: a, "must be in proportion to the weights times factors()"),
        (lambda u: u.steps, lambda u, a: 0.0 * a, "must return a number above 0, got 0 for each"),
        (lambda u: u.steps, lambda u, a: -a, "must return numbers >= 0, got -1 for device row"),
    ],
)
def test_coefficients_that_give_another_model_are_refused(
    factors: Callable[[Updates], object],
    coefficients: Callable[..., object] | None,
    why: str,
) -> None:
    part = Fake(factors=factors, coefficients=coefficients or (lambda u, a: a))
    gradient = guarded_pseudo_gradient("my.mod:Part", part)
    assert isinstance(gradient, LinearPseudoGradient)
    assert why in fault(lambda: gradient.coefficients(UPDATES, np.ones(K)))


def test_a_linear_pseudo_gradient_needs_no_combine() -> None:
    part = Fake(factors=lambda u: 1.0 / u.steps, coefficients=lambda u, a: a / u.steps)
    gradient = guarded_pseudo_gradient("my.mod:Part", part)
    assert isinstance(gradient, LinearPseudoGradient)
    a = np.arange(1.0, K + 1.0)
    assert gradient.coefficients(UPDATES, a).tolist() == (a / UPDATES.steps).tolist()
    with pytest.raises(PluginError, match="but lacks coefficients"):
        guarded_pseudo_gradient("my.mod:Part", Fake(factors=lambda u: u.steps))


def stepped(step: Callable[..., object]) -> Vector:
    return GuardedServerStep("my.mod:Part", Fake(step=step)).step(PARAMS, np.ones(4))


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda w, d: w[:2], "must return numbers of shape (4,), got float32 of shape (2,)"),
        (lambda w, d: None, "must return numbers of shape (4,), got NoneType"),
        (lambda w, d: w / 0.0, "must return finite numbers, got inf at 0"),
        (lambda w, d: d * 1e300, "must return numbers within float32, got 1e+300 at 0"),
        (lambda w, d: np.add(w, d, out=w), "must not raise, got ValueError: output array is read"),
        (lambda w: w, "must not raise, got TypeError"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_parameters_that_cannot_be_used_are_refused(step: Callable[..., object], why: str) -> None:
    assert fault(lambda: stepped(step)).startswith(f"server step my.mod:Part: step() {why}")


def test_a_step_may_return_float64_and_change_the_pseudo_gradient() -> None:
    def step(params: Any, d: Any) -> object:
        d *= 0.5
        return params + d

    moved = stepped(step)
    assert moved.dtype == np.float32
    assert moved.tolist() == [1.5] * 4
