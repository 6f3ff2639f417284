"""The contracts of the parts of an aggregation: a faulty part for each property, and our own."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.base import Updates
from fairbed.coordinator.algorithms.aggregation.contract import (
    PSEUDO_GRADIENT_PROPERTIES,
    RULE_PROPERTIES,
    SERVER_STEP_PROPERTIES,
)
from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.contract import check_contract, check_property
from fairbed.coordinator.policy.config import PSEUDO_GRADIENTS, RULES, SERVER_STEPS, TrainingConfig
from fairbed.coordinator.policy.config import AggregationConfig as Config
from fairbed.coordinator.policy.factories import (
    make_pseudo_gradient,
    make_rule,
    make_server_step,
)

FAST = "a round is fast enough"


class Honest:
    """A correct rule by losses; each class below adds one fault."""

    needs_loss = True
    needs_norms = needs_models = False

    def __init__(self) -> None:
        self.rounds = 0

    def decide(self, updates: Updates) -> Floats:
        self.rounds += 1
        c = updates.shares * (1.0 + updates.losses)
        return np.asarray(c / c.sum())

    def to_state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Separable(Honest):
    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        c = updates.shares * (1.0 + updates.losses)
        return c, np.zeros(len(c), dtype=np.int64)


class OwnDice(Honest):
    dice = np.random.default_rng(1)

    def decide(self, updates: Updates) -> Floats:
        return self.dice.random(len(updates))


class Forgets(Honest):
    """Its weights depend on the number of rounds, which its state lacks."""

    def decide(self, updates: Updates) -> Floats:
        return super().decide(updates) / (1.0 + self.rounds)

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class CountsFactors(Separable):
    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        self.rounds += 1
        return super().factors(updates)


class LowRowsFirst(Honest):
    def decide(self, updates: Updates) -> Floats:
        return super().decide(updates) / (1.0 + updates.rows)


class FixedFleet(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def decide(self, updates: Updates) -> Floats:
        self.size = self.size or updates.registered
        kept = np.zeros(self.size)
        kept[updates.rows] = updates.losses
        return super().decide(updates)


class Compares(Honest):
    """Divides by the spread of the losses, which one device does not have."""

    def decide(self, updates: Updates) -> Floats:
        if len(updates) == 1:
            raise ZeroDivisionError("no spread")
        return super().decide(updates)


class Unnormalised(Honest):
    def decide(self, updates: Updates) -> Floats:
        return updates.shares / 1e3


class Halves(Honest):
    def decide(self, updates: Updates) -> Floats:
        return 0.5 * super().decide(updates)


class Overflows(Honest):
    def decide(self, updates: Updates) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            c = updates.shares * np.exp(updates.losses)
            return np.asarray(c / c.sum())


class Squares(Honest):
    def decide(self, updates: Updates) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            c = updates.losses**2 + 1.0
            return np.asarray(c / c.sum())


class ByBatch(Separable):
    """Its factors are normalised, except in large rounds."""

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        c, zeros = super().factors(updates)
        return (c / c.max() if len(c) < 3 else c), zeros


class DoubleAlone(Separable):
    """Its factor is twice as large for an update that arrives alone."""

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        c, zeros = super().factors(updates)
        return (2.0 * c if len(c) == 1 else c), zeros


class WritesRows(Honest):
    def decide(self, updates: Updates) -> Floats:
        updates.losses[:] = 1.0
        return super().decide(updates)


class StaysAtZero(Honest):
    def decide(self, updates: Updates) -> Floats:
        return np.zeros(len(updates))


BROKEN_RULES: list[tuple[Callable[[], Honest], str, str]] = [
    (OwnDice, "the same updates, the same model", "the same updates must give the same bits, got"),
    (Forgets, "a restored part continues the same", "after load_state() the model must be as"),
    (CountsFactors, "an abandoned round has no effect", "to_state() differs after it"),
    (WritesRows, "the updates are not changed", "ValueError: assignment destination is read-only"),
    (StaysAtZero, "scale", "must move the model, got no change"),
    (
        LowRowsFirst,
        "the rows of devices have no effect",
        "in other rows must have the same weights",
    ),
    (Compares, "one update alone", "decide() of round 1 must not raise, got ZeroDivisionError"),
    (FixedFleet, "the fleet may grow", "must not raise, got IndexError"),
    (Overflows, "unusual losses", "with losses all 1e6: decide() of round 1 must return finite"),
    (Squares, "unusual losses", "with losses 1e-300 to 1e300: decide() of round 1 must return"),
    (Unnormalised, "a common factor of shares has no effect", "all shares times 1e-06 must give"),
    (
        OwnDice,
        "the order of arrival changes no bit",
        "the order of arrival must change no bit, got",
    ),
    (OwnDice, "faulty updates are left out", "faulty updates must be left out, got"),
    (DoubleAlone, "factors do not depend on other updates", "must not depend on the other updates"),
    (Halves, "the length of the step is declared", "rescales_step must be True, because the weig"),
    (ByBatch, "factors do not depend on other updates", "that does not depend on the other"),
]


@pytest.mark.parametrize(("make", "property_", "why"), BROKEN_RULES)
def test_a_violated_property_of_a_rule_is_found_with_its_reason(
    make: Callable[[], Honest], property_: str, why: str
) -> None:
    finding = check_property(RULE_PROPERTIES, property_, make, time.perf_counter)
    assert not finding.is_ok
    assert why in finding.found
    assert "\n" not in finding.found


class Sum:
    """A correct pseudo-gradient."""

    def combine(self, updates: Updates, a: Floats) -> Floats:
        assert updates.changes is not None
        return np.asarray(sum(a_k * d for a_k, d in zip(a, updates.changes, strict=True)))

    def to_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class Pushes(Sum):
    def combine(self, updates: Updates, a: Floats) -> Floats:
        return 0.1 + super().combine(updates, a)


class Stays(Sum):
    def combine(self, updates: Updates, a: Floats) -> Floats:
        return 0.0 * super().combine(updates, a)


class FirstRow(Sum):
    """Returns the change of the device in the lowest row."""

    def combine(self, updates: Updates, a: Floats) -> Floats:
        assert updates.changes is not None
        return updates.changes[0]


@pytest.mark.parametrize(
    ("make", "property_", "why"),
    [
        (Pushes, "unchanged models leave the model", "must leave it where it is, got"),
        (Stays, "scale", "must move the model, got no change"),
        (FirstRow, "the rows of devices have no effect", "in other rows must give the same model"),
    ],
)
def test_a_violated_property_of_a_pseudo_gradient_is_found(
    make: Callable[[], Sum], property_: str, why: str
) -> None:
    finding = check_property(PSEUDO_GRADIENT_PROPERTIES, property_, make, time.perf_counter)
    assert not finding.is_ok
    assert why in finding.found


class Step:
    """A correct server step with a momentum; each class below adds one fault."""

    def __init__(self) -> None:
        self.velocity: Any = 0.0

    def step(self, params: Any, d: Floats) -> Any:
        self.velocity = 0.9 * self.velocity + d
        return params + self.velocity

    def to_state(self) -> dict[str, Any]:
        return {"velocity": np.asarray(self.velocity).tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.velocity = np.array(state["velocity"])


class ForgetsVelocity(Step):
    def to_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class WritesParameters(Step):
    def step(self, params: Any, d: Floats) -> Any:
        params += d
        return params


class WritesBehindTheView(Step):
    def step(self, params: Any, d: Floats) -> Any:
        moved = super().step(params, d)
        while params.base is not None:
            params = params.base
        params[:] = 0.0
        return moved


class Decays(Step):
    def step(self, params: Any, d: Floats) -> Any:
        return super().step(params, d) * 0.5


class Diverges(Step):
    def step(self, params: Any, d: Floats) -> Any:
        return super().step(params, d) * np.nan


@pytest.mark.parametrize(
    ("make", "property_", "why"),
    [
        (
            ForgetsVelocity,
            "a restored part continues the same",
            "after load_state() the model must",
        ),
        (WritesParameters, "the updates are not changed", "step() must not raise, got ValueError"),
        (WritesBehindTheView, "the updates are not changed", "but the model that was sent changed"),
        (Diverges, "scale", "step() must return finite numbers, got nan at 0"),
        (Diverges, "a pseudo-gradient of 0", "step() must return finite numbers, got nan at 0"),
    ],
)
def test_a_violated_property_of_a_server_step_is_found(
    make: Callable[[], Step], property_: str, why: str
) -> None:
    finding = check_property(SERVER_STEP_PROPERTIES, property_, make, time.perf_counter)
    assert not finding.is_ok
    assert why in finding.found


@pytest.mark.parametrize(
    ("properties", "make"),
    [
        (RULE_PROPERTIES, Honest),
        (RULE_PROPERTIES, Separable),
        (PSEUDO_GRADIENT_PROPERTIES, Sum),
        (SERVER_STEP_PROPERTIES, Step),
        (SERVER_STEP_PROPERTIES, Decays),
    ],
)
def test_a_correct_part_has_every_property(properties: Any, make: Callable[[], object]) -> None:
    found = list(check_contract(properties, make, time.perf_counter))
    assert [finding.name for finding in found] == list(properties)
    assert [finding for finding in found if not finding.is_ok] == []


class Counts(Sum):
    """Weights have no effect, as it declares."""

    uses_weights = False

    def combine(self, updates: Updates, a: Floats) -> Floats:
        return super().combine(updates, np.full(len(a), 1.0 / len(a)))


class CountsInSilence(Counts):
    uses_weights = True


class Claims(Sum):
    uses_weights = False


def test_a_pseudo_gradient_declares_whether_weights_count() -> None:
    name = "weights count, or are declared to have no effect"

    def finding(make: Callable[[], Sum]) -> Any:
        return check_property(PSEUDO_GRADIENT_PROPERTIES, name, make, time.perf_counter)

    assert finding(Sum).found == "weights count"
    assert finding(Counts).found == "weights have no effect: a rule for them is refused"
    silent, claims = finding(CountsInSilence), finding(Claims)
    assert not silent.is_ok
    assert silent.found.endswith("got the same bits; declare uses_weights = False")
    assert not claims.is_ok
    assert claims.found.endswith("got another model; remove the attribute")


def test_remarks_say_what_a_part_does() -> None:
    def remark(properties: Any, name: str, make: Callable[[], object]) -> str:
        return check_property(properties, name, make, time.perf_counter).found

    assert remark(SERVER_STEP_PROPERTIES, "a pseudo-gradient of 0", Decays).startswith(
        "a pseudo-gradient of 0 moves a parameter by up to"
    )
    unusual = remark(
        RULE_PROPERTIES, "unusual losses", lambda: make_rule(Config(rule="q-fedavg"), 2)
    )
    assert unusual.startswith("all 0: the model stays; all 1e6: sum 1;")


@pytest.mark.parametrize(
    ("properties", "name", "make"),
    [
        (RULE_PROPERTIES, FAST, Honest),
        (PSEUDO_GRADIENT_PROPERTIES, FAST, Sum),
        (SERVER_STEP_PROPERTIES, "a step is fast enough", Step),
    ],
)
def test_a_slow_part_violates_the_last_property(
    properties: Any, name: str, make: Callable[[], object]
) -> None:
    ticks = iter(range(99))
    finding = check_property(properties, name, make, lambda: float(2 * next(ticks)))
    assert not finding.is_ok
    assert "must take at most 1.0 s, got 2.00" in finding.found


def test_a_rule_is_timed_with_no_more_updates_than_it_declares() -> None:
    class OfTwelve(Honest):
        max_updates = 12

        def decide(self, updates: Updates) -> Floats:
            assert len(updates) <= self.max_updates
            return super().decide(updates)

    finding = check_property(RULE_PROPERTIES, FAST, OfTwelve, lambda: 0.0)
    assert finding.is_ok
    assert finding.found.endswith("for a round of 12 updates, the most that it declares")


def test_every_property_of_a_rule_has_one_that_violates_it() -> None:
    others = {FAST, "unchanged models leave the model"}  # tested with a pseudo-gradient
    assert {row[1] for row in BROKEN_RULES} | others == set(RULE_PROPERTIES)


@pytest.mark.parametrize("name", RULES)
def test_our_rules_keep_the_contract(name: str) -> None:
    config = Config(rule=name)
    found = check_contract(RULE_PROPERTIES, lambda: make_rule(config, 2), time.perf_counter)
    assert [finding for finding in found if not finding.is_ok] == []


@pytest.mark.parametrize("name", PSEUDO_GRADIENTS)
def test_our_pseudo_gradients_keep_the_contract(name: str) -> None:
    config = Config(pseudo_gradient=name)
    found = check_contract(
        PSEUDO_GRADIENT_PROPERTIES,
        lambda: make_pseudo_gradient(config, TrainingConfig()),
        time.perf_counter,
    )
    assert [finding for finding in found if not finding.is_ok] == []


@pytest.mark.parametrize("name", SERVER_STEPS)
def test_our_server_steps_keep_the_contract(name: str) -> None:
    config = Config(server=name)
    found = check_contract(
        SERVER_STEP_PROPERTIES, lambda: make_server_step(config), time.perf_counter
    )
    assert [finding for finding in found if not finding.is_ok] == []
