"""The contract of an estimator, checked with random exchanges that are drawn by a seed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.contract import Broken, Clock, Properties, check_speed
from fairbed.coordinator.algorithms.estimation.base import (
    CONTEXT,
    PHASES,
    Estimator,
    Measured,
    Prediction,
)
from fairbed.coordinator.algorithms.estimation.guarded import COLUMNS, GuardedEstimator

SEEDS = range(10)
"""Seeds of the random runs."""
LARGE = 1000
"""Devices of the timed round, all of which are predicted and observed."""


@dataclass(frozen=True, slots=True)
class TrialExchanges:
    """Contexts of a fleet, and the exchanges of some of its devices."""

    context: Floats
    """Shape (N, 4)."""
    rows: Ints
    """Devices with an exchange, each once, shape (K,)."""
    measured: Measured

    def of(self, at: Ints) -> "TrialExchanges":
        """Return some of the exchanges, in the order of `at`."""
        measured = self.measured
        is_bound = None if measured.is_bound is None else measured.is_bound[at]
        some = Measured(measured.tau_s[at], measured.phases_s[at], is_bound)
        return TrialExchanges(self.context, self.rows[at], some)

    def renamed(self, row_of: Ints) -> "TrialExchanges":
        """Return the same exchanges of a fleet whose device n is in row `row_of[n]`."""
        context = np.empty_like(self.context)
        context[row_of] = self.context
        return TrialExchanges(context, row_of[self.rows], self.measured)


def trial_exchanges(seed: int, n: int | None = None, k: int | None = None) -> TrialExchanges:
    """Return exchanges drawn by a seed: some missed the deadline, some have unknown phases.

    Args:
        seed: Seed of all random numbers.
        n: Devices; not given: 2 to 9.
        k: Devices with an exchange; not given: 1 to n.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 10)) if n is None else n
    k = int(rng.integers(1, n + 1)) if k is None else k
    context = np.stack(
        [
            1.0 / rng.uniform(0.2, 4.0, n),
            rng.integers(0, 2, n).astype(np.float64),
            rng.uniform(0.01, 2.0, n),
            rng.uniform(0.01, 2.0, n),
        ],
        axis=1,
    )
    phases_s = rng.uniform(0.01, 1.0, (k, len(PHASES)))
    tau_s: Floats = phases_s.sum(axis=1)
    is_bound = rng.random(k) < 0.2
    phases_s[is_bound, 2:] = np.nan
    measured = Measured(tau_s, phases_s, is_bound if is_bound.any() else None)
    return TrialExchanges(context, rng.permutation(n)[:k].astype(np.int64), measured)


def trial_run(seed: int, count: int = 4) -> list[TrialExchanges]:
    """Return the exchanges of some rounds of one fleet."""
    n = int(np.random.default_rng(seed).integers(2, 10))
    return [trial_exchanges(1000 * seed + t, n) for t in range(count)]


Make: TypeAlias = Callable[[], Estimator]


def _made(make: Make) -> GuardedEstimator:
    estimator = make()
    if isinstance(estimator, GuardedEstimator):
        return estimator
    return GuardedEstimator("of this test", estimator)


def _learn(estimator: Estimator, exchanges: TrialExchanges) -> None:
    at = exchanges.rows
    estimator.observe(at, exchanges.context[at], exchanges.measured)


def _compare(what: str, expected: Prediction, got: Prediction, tolerance: float = 0.0) -> None:
    for name in COLUMNS:
        one, other = getattr(expected, name), getattr(got, name)
        if not np.allclose(one, other, rtol=tolerance, atol=tolerance):
            raise Broken(f"{what}, got {name} {other.tolist()} instead of {one.tolist()}")


def _state(estimator: Estimator) -> bytes:
    return msgspec.msgpack.encode(estimator.to_state())


def _finite(make: Make, clock: Clock) -> str:
    lowest = 0.0
    for seed in SEEDS:
        estimator = _made(make)
        estimator.predict(np.zeros((0, CONTEXT)))
        for exchanges in trial_run(seed):
            for context in (exchanges.context, *UNUSUAL):
                lowest = min(lowest, estimator.predict(context).tau_hat_s.min(initial=0.0))
            _learn(estimator, exchanges)
    return f"lowest tau_hat: {lowest:.3g} s" if lowest < 0.0 else "tau_hat is at least 0"


UNUSUAL = (
    np.array([[1e3, 1.0, 1e5, 1e5], [1.0 / 64.0, 0.0, 0.0, 0.0]]),
    np.array([[1.0, 0.0, 1e-6, 1e-6], [1.0, 1.0, 1e5, 1e-6]]),
)
"""Contexts of very slow and very fast processors and links."""


def _predict_is_pure(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        estimator, (first, second, *_) = _made(make), trial_run(seed)
        _learn(estimator, first)
        state = _state(estimator)
        expected = estimator.predict(second.context)
        got = estimator.predict(second.context)
        if _state(estimator) != state:
            raise Broken("predict() must change no state: to_state() differs after it")
        _compare("a second predict() must return the same", expected, got)


def _observe_is_pure(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        given = trial_run(seed)[0]
        before, context = given.of(np.arange(len(given.rows))), given.context[given.rows]
        _made(make).observe(given.rows, context, given.measured)
        for name, one, other in (
            ("rows", before.rows, given.rows),
            ("contexts", given.context[before.rows], context),
            ("tau_s", before.measured.tau_s, given.measured.tau_s),
            ("phases_s", before.measured.phases_s, given.measured.phases_s),
        ):
            if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
                raise Broken(f"observe() must not change what it is given, but changed {name}")


def _deterministic(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        first, second = _made(make), _made(make)
        for exchanges in trial_run(seed):
            for estimator in (first, second):
                _learn(estimator, exchanges)
            context = exchanges.context
            what = "the same exchanges must give the same predictions"
            _compare(what, first.predict(context), second.predict(context))


def _order(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        first, second = _made(make), _made(make)
        for exchanges in trial_run(seed):
            _learn(first, exchanges)
            _learn(second, exchanges.of(np.arange(len(exchanges.rows))[::-1]))
            context = exchanges.context
            what = "the order of the devices of a round must have no effect"
            _compare(what, first.predict(context), second.predict(context), TOLERANCE)


def _renamed(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        first, second, run = _made(make), _made(make), trial_run(seed)
        row_of = np.random.default_rng(seed).permutation(len(run[0].context)).astype(np.int64)
        for exchanges in run:
            renamed = exchanges.renamed(row_of)
            _learn(first, exchanges)
            _learn(second, renamed)
            got = second.predict(renamed.context)
            back = Prediction(*(getattr(got, name)[row_of] for name in COLUMNS))
            what = "the same devices in other rows must have the same predictions"
            _compare(what, first.predict(exchanges.context), back, TOLERANCE)


TOLERANCE = 1e-6
"""Of predictions, relative, and absolute in seconds, where sums have another order."""


def _resumes(make: Make, clock: Clock) -> str:
    size = 0
    for seed in SEEDS:
        original, resumed, (before, *after) = _made(make), _made(make), trial_run(seed)
        _learn(original, before)
        state = _state(original)
        for other in after[: seed % 3]:
            _learn(resumed, other)  # a memory of its own, which the state replaces
        resumed.load_state(msgspec.msgpack.decode(state))
        for exchanges in after:
            what = "after load_state() the predictions must be as without a restart"
            context = exchanges.context
            _compare(what, original.predict(context), resumed.predict(context), 1e-12)
            for estimator in (original, resumed):
                _learn(estimator, exchanges)
        size = max(size, len(state))
    return f"largest state: {size} bytes"


def _grows(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        estimator = _made(make)
        for n in (2, 7, 12):
            exchanges = trial_exchanges(seed, n)
            estimator.predict(exchanges.context)
            _learn(estimator, exchanges)
            estimator.predict(trial_exchanges(seed, n + 3).context)


def _nothing(make: Make, clock: Clock) -> None:
    for seed in SEEDS:
        estimator, exchanges = _made(make), trial_run(seed)[0]
        _learn(estimator, exchanges)
        expected = estimator.predict(exchanges.context)
        _learn(estimator, exchanges.of(np.zeros(0, dtype=np.int64)))
        what = "observe() without exchanges must change no prediction"
        _compare(what, expected, estimator.predict(exchanges.context), TOLERANCE)


def _learns(make: Make, clock: Clock) -> str:
    estimator, context = _made(make), np.array([[1.0, 0.0, 0.5, 0.5]])
    phases_s = np.array([[0.6, 0.0, 1.5, 0.8, 0.1]])
    before_s = float(estimator.predict(context).tau_hat_s[0])
    for _ in range(20):
        estimator.observe(np.array([0]), context, Measured(phases_s.sum(axis=1), phases_s))
    after_s = float(estimator.predict(context).tau_hat_s[0])
    return f"an exchange of 3 s is predicted at {before_s:.3g} s, after twenty at {after_s:.3g} s"


def _is_fast(make: Make, clock: Clock) -> str:
    exchanges = trial_exchanges(7, LARGE, LARGE)

    def run(estimator: Estimator) -> None:
        estimator.predict(exchanges.context)
        _learn(estimator, exchanges)
        estimator.predict(exchanges.context)

    return check_speed(lambda: _made(make), run, clock, f"a round of {LARGE:,} devices")


PROPERTIES: Properties[Estimator] = {
    "predictions are finite, one per device": _finite,
    "predict() changes nothing": _predict_is_pure,
    "observe() changes no exchange": _observe_is_pure,
    "the same exchanges, the same predictions": _deterministic,
    "a restored estimator predicts the same": _resumes,
    "no exchange changes nothing": _nothing,
    "the fleet may grow": _grows,
    "the order of exchanges has no effect": _order,
    "the order of rows has no effect": _renamed,
    "it learns": _learns,
    "a round is fast enough": _is_fast,
}
"""The contract of an estimator."""
