"""The guard and the contract of an estimator: a faulty one for each property, and our own."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.contract import check_contract, check_property
from fairbed.coordinator.algorithms.estimation.base import Estimator, Measured, Prediction
from fairbed.coordinator.algorithms.estimation.contract import PROPERTIES
from fairbed.coordinator.algorithms.estimation.guarded import GuardedEstimator
from fairbed.coordinator.policy.config import ESTIMATORS, SelectionConfig
from fairbed.coordinator.policy.factories import make_estimator
from fairbed.wire.plugins import PluginError


class Last:
    """A correct estimator, which predicts the last time; each class below adds one fault."""

    def __init__(self) -> None:
        self.last_s: dict[int, float] = {}

    def predict(self, context: Floats) -> Prediction:
        tau_s = np.array([self.last_s.get(row, 0.0) for row in range(len(context))])
        return Prediction(tau_s, np.zeros(len(context)), 0.5 * tau_s)

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        self.last_s.update(zip(rows.tolist(), measured.tau_s.tolist(), strict=True))

    def to_state(self) -> dict[str, Any]:
        return {"last_s": list(self.last_s.items())}

    def load_state(self, state: dict[str, Any]) -> None:
        self.last_s = {int(row): float(tau_s) for row, tau_s in state["last_s"]}


class Divides(Last):
    def predict(self, context: Floats) -> Prediction:
        made = super().predict(context)
        return Prediction(made.tau_hat_s / (context[:, 0] > 1.0), made.width_s, made.width_s)


class CountsPredictions(Last):
    def predict(self, context: Floats) -> Prediction:
        self.last_s[0] = self.last_s.get(0, 0.0) + 1.0
        return super().predict(context)


class WritesContexts(Last):
    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        super().observe(rows, context, measured)
        context[:] = 0.0


class OwnDice(Last):
    dice = np.random.default_rng(1)

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        super().observe(rows, context, Measured.whole(self.dice.random(len(rows))))


class Forgets(Last):
    def to_state(self) -> dict[str, Any]:
        return {"last_s": []}


class FixedFleet(Last):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def predict(self, context: Floats) -> Prediction:
        self.n = self.n or len(context)
        made = super().predict(context)
        return Prediction(made.tau_hat_s[: self.n], made.width_s[: self.n], made.width_s[: self.n])


class NeedsAnExchange(Last):
    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        measured.tau_s.max()
        super().observe(rows, context, measured)


class LastOfAll(Last):
    """Predicts the last exchange for all devices, so their order in a round has an effect."""

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        if rows.size:
            self.last_s = dict.fromkeys(range(20), float(measured.tau_s[-1]))


class FirstRowIsSlow(Last):
    def predict(self, context: Floats) -> Prediction:
        made = super().predict(context)
        return Prediction(
            made.tau_hat_s + (np.arange(len(context)) == 0), made.width_s, made.width_s
        )


class NegativeWidth(Last):
    def predict(self, context: Floats) -> Prediction:
        made = super().predict(context)
        return Prediction(made.tau_hat_s, made.width_s - 1.0, made.width_s)


class ReturnsTimes(Last):
    def predict(self, context: Floats) -> Any:
        return super().predict(context).tau_hat_s


class RefusesAll(Last):
    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        raise KeyError("no\nsuch key")


FINITE = "predictions are finite, one per device"
BROKEN: list[tuple[Callable[[], Last], str, str]] = [
    (Divides, FINITE, "predict().tau_hat_s must return finite numbers, got"),
    (NegativeWidth, FINITE, "predict().width_s must return numbers >= 0, got -1 for row 0"),
    (ReturnsTimes, FINITE, "must return a Prediction, got float64 of shape (0,) without tau_hat_s"),
    (CountsPredictions, "predict() changes nothing", "to_state() differs after it"),
    (WritesContexts, "observe() changes no exchange", "but changed contexts"),
    (OwnDice, "the same exchanges, the same predictions", "must give the same predictions, got"),
    (Forgets, "a restored estimator predicts the same", "must be as without a restart, got"),
    (NeedsAnExchange, "no exchange changes nothing", "observe() must not raise, got ValueError"),
    (FixedFleet, "the fleet may grow", "numbers of shape (5,), got float64 of shape (2,)"),
    (LastOfAll, "the order of exchanges has no effect", "must have no effect, got tau_hat_s"),
    (FirstRowIsSlow, "the order of rows has no effect", "must have the same predictions, got"),
    (RefusesAll, "it learns", "observe() must not raise, got KeyError: 'no\\nsuch key'"),
]


@pytest.mark.parametrize(("make", "property_", "why"), BROKEN)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_violated_property_is_found_with_its_reason(
    make: Callable[[], Last], property_: str, why: str
) -> None:
    finding = check_property(PROPERTIES, property_, make, time.perf_counter)
    assert not finding.is_ok
    assert why in finding.found
    assert "\n" not in finding.found


def test_a_slow_estimator_violates_the_last_property() -> None:
    ticks = iter(range(99))
    slow = "a round is fast enough"
    finding = check_property(PROPERTIES, slow, Last, lambda: float(2 * next(ticks)))
    assert "a round of 1,000 devices must take at most 1.0 s, got 2.00" in finding.found
    assert {row[1] for row in BROKEN} | {slow} == set(PROPERTIES)


@pytest.mark.parametrize(
    "make",
    [
        Last,
        lambda: GuardedEstimator("x", Last()),
        *(lambda name=name: make_estimator(SelectionConfig(estimator=name)) for name in ESTIMATORS),
    ],
)
def test_our_estimators_keep_the_contract(make: Callable[[], Estimator]) -> None:
    found = list(check_contract(PROPERTIES, make, time.perf_counter))
    assert [finding.name for finding in found] == list(PROPERTIES)
    assert [finding for finding in found if not finding.is_ok] == []


def test_a_violation_in_a_run_names_the_plug_in_and_the_check() -> None:
    with pytest.raises(PluginError) as caught:
        GuardedEstimator("my.mod:Times", ReturnsTimes()).predict(np.ones((2, 4)))
    assert str(caught.value) == (
        "estimator my.mod:Times: predict() must return a Prediction, got float64 of shape (2,) "
        "without tau_hat_s, width_s, transfer_hat_s; run fairbed doctor --estimator my.mod:Times "
        "to check it"
    )
    with pytest.raises(PluginError, match=r"must have predict\(\), observe\(\), .* but lacks pre"):
        GuardedEstimator("x", object())  # type: ignore[arg-type]  # that is the point
