"""The contract of a selector, checked with random fleets and rounds that are drawn by a seed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.contract import Broken, Clock, Properties, check_speed
from fairbed.coordinator.algorithms.selection.base import (
    Candidates,
    Outcomes,
    Reason,
    Selector,
    TwoStepSelector,
)

COLUMNS = ("is_available", "tau_hat_s", "width_s", "transfer_hat_s", "n_k", "true_tau_s")
"""Columns of `Candidates` that every selector gets; losses are queried."""


@dataclass(frozen=True, slots=True)
class TrialFleet:
    """A fleet at the time of a selection, and the losses that its devices would report."""

    fleet: Candidates
    loss: Floats
    """Nats, shape (N,)."""

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self.loss)

    def permuted(self, order: Ints) -> "TrialFleet":
        """Return the same devices in another order: row i is the old row `order[i]`."""
        fleet = self.fleet
        columns = {
            name: column[order] for name in COLUMNS if (column := getattr(fleet, name)) is not None
        }
        return TrialFleet(replace(fleet, **columns), self.loss[order])


def trial_fleet(
    n: int, seed: int, *, absent: float = 0.0, unseen: float = 0.0, round_id: int = 1
) -> TrialFleet:
    """Return a fleet of `n` devices drawn by a seed.

    Args:
        n: Devices.
        seed: Seed of all random numbers.
        absent: Share of devices that are not available.
        unseen: Share of devices never measured, which are predicted at 0 s.
        round_id: Number of the round, 1 for the first.
    """
    rng = stream(seed)
    tau_s = np.where(rng.random(n) < unseen, 0.0, rng.uniform(0.1, 4.0, n))
    fleet = Candidates(
        round=round_id,
        is_available=rng.random(n) >= absent,
        tau_hat_s=tau_s,
        width_s=rng.uniform(0.0, 1.0, n),
        transfer_hat_s=0.5 * tau_s,
        n_k=rng.integers(1, 500, n),
        true_tau_s=rng.uniform(0.1, 4.0, n),
    )
    return TrialFleet(fleet, rng.uniform(0.0, 3.0, n))


def outcomes(n: int, chosen: Ints, round_id: int, at: TrialFleet | None = None) -> Outcomes:
    """Return outcomes of a round of `n` devices: every other one of `chosen` is aggregated.

    Times and losses are those of the devices in `at`, or 1 + row.
    """
    is_selected, is_aggregated = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    is_selected[chosen] = True
    is_aggregated[chosen[::2]] = True
    tau_s = np.arange(1.0, n + 1.0) if at is None else at.fleet.tau_hat_s
    loss = np.arange(1.0, n + 1.0) if at is None else at.loss
    return Outcomes(
        round=round_id,
        is_selected=is_selected,
        is_aggregated=is_aggregated,
        n_k=np.ones(n, dtype=np.int64) if at is None else at.fleet.n_k,
        tau_s=np.where(is_aggregated, tau_s, np.nan),
        loss=np.where(is_aggregated, loss, np.nan),
    )


def choose(selector: Selector, at: TrialFleet, k: int, seed: int) -> Ints:
    """Return the rows selected; a two-step selector gets the losses of its candidates."""
    return selector.select(with_losses(selector, at, k, seed), k, stream(seed))


def with_losses(selector: Selector, at: TrialFleet, k: int, seed: int) -> Candidates:
    """Return the fleet, for a two-step selector with the losses of its candidates."""
    if not isinstance(selector, TwoStepSelector):
        return at.fleet
    queried = selector.candidates(at.fleet, k, stream(seed + 1_000_003))
    check_rows(queried, at.fleet, len(at), "candidates()")
    loss = np.full(len(at), np.nan)
    loss[queried] = at.loss[queried]
    return replace(at.fleet, loss=loss)


def run_rounds(
    selector: Selector, at: TrialFleet, rounds: int, seed: int, k: int = 3
) -> list[list[int]]:
    """Return the rows selected in each of some rounds; the selector observes each outcome."""
    history = []
    for t in range(1, rounds + 1):
        now = TrialFleet(replace(at.fleet, round=t), at.loss)
        rows = choose(selector, now, k, seed + t)
        selector.observe(outcomes(len(at), rows, t, at))
        history.append(rows.tolist())
    return history


def stream(seed: int) -> np.random.Generator:
    """Return a random stream."""
    return np.random.default_rng(seed)


def check_rows(rows: Ints, fleet: Candidates, most: int, where: str = "select()") -> None:
    """Check that `rows` are at most `most` distinct rows of available devices.

    Raises:
        Broken: They are not; `where` is the method in the message.
    """
    is_rows = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == np.int64
    if not is_rows:
        raise Broken(f"{where} must return int64 of shape (K,), got {rows!r:.60}")
    if len(set(rows.tolist())) < len(rows):
        raise Broken(f"{where} must return each row once, got {rows.tolist()}")
    available = set(np.flatnonzero(fleet.is_available).tolist())
    if absent := sorted(set(rows.tolist()) - available):
        raise Broken(f"{where} must return available rows, got {absent[0]}, which is not")
    if len(rows) > most:
        raise Broken(f"{where} must return at most {most} rows, got {len(rows)}")


Make: TypeAlias = Callable[[], Selector]

TRIALS = 60
"""Random fleets of up to 13 devices, some of them absent, some never measured."""
DRAWS = 600
"""Selections from the same fleet, where frequencies are compared."""
LARGE, COHORT = 100_000, 100
"""Devices and cohort of the timed round."""


def _trials() -> Iterator[tuple[TrialFleet, int, int]]:
    """Yield fleets, cohort sizes and seeds; some are empty, devices may be absent or unmeasured."""
    for seed in range(TRIALS):
        rng = stream(seed)
        n, k = int(rng.integers(0, 14)), int(rng.integers(0, 14))
        yield trial_fleet(n, seed, absent=0.4, unseen=0.3, round_id=1 + seed), k, seed


def _only_available(make: Make, clock: Clock) -> None:
    for at, k, seed in _trials():
        check_rows(choose(make(), at, k, seed), at.fleet, k)


def _right_number(make: Make, clock: Clock) -> str:
    is_exact = getattr(make(), "fills_cohort", True)
    for at, k, seed in _trials():
        most = min(k, int(at.fleet.is_available.sum()))
        got = len(choose(make(), at, k, seed))
        if got > most or got < (most if is_exact else min(1, most)):
            least = "" if is_exact else "1 to "
            raise Broken(f"must return {least}{most} of k = {k} rows, got {got}")
    return "min(k, available)" if is_exact else "1 to min(k, available): fills_cohort is False"


def _select_is_pure(make: Make, clock: Clock) -> None:
    for at, k, seed in _trials():
        selector, before = make(), _copies(at.fleet)
        run_rounds(selector, at, 2, seed)
        state = msgspec.msgpack.encode(selector.to_state())
        choose(selector, at, k, seed)
        if msgspec.msgpack.encode(selector.to_state()) != state:
            raise Broken("select() must change no state: to_state() differs after it")
        for name, column in before.items():
            if not np.array_equal(getattr(at.fleet, name), column, equal_nan=True):
                raise Broken(f"select() must not change its candidates, but changed {name}")


def _copies(fleet: Candidates) -> dict[str, Any]:
    return {name: np.copy(getattr(fleet, name)).astype(np.float64) for name in COLUMNS}


def _explains(make: Make, clock: Clock) -> str:
    from fairbed.coordinator.algorithms.selection.explanation import ExplainingSelector

    if not isinstance(make(), ExplainingSelector):
        return NO_REASONS
    for at, k, seed in _trials():
        selector = make()
        run_rounds(selector, at, 2, seed)
        state = msgspec.msgpack.encode(selector.to_state())
        fleet, chosen = with_losses(selector, at, k, seed), choose(selector, at, k, seed)
        assert isinstance(selector, ExplainingSelector)
        why = selector.explain(fleet, chosen, k, stream(seed))
        if why is None:
            return NO_REASONS
        if msgspec.msgpack.encode(selector.to_state()) != state:
            raise Broken("explain() must change no state: to_state() differs after it")
        is_chosen = np.isin(np.arange(len(at)), chosen)
        for row in np.flatnonzero(fleet.is_available).tolist():
            reason = Reason(int(why.reason[row]))
            if reason is not Reason.UNSTATED and reason.is_in_cohort != is_chosen[row]:
                place = "in the cohort" if is_chosen[row] else "not in the cohort"
                raise Broken(f"explain() must give a reason of a device {place}, got {reason.word}")
        if (why.margin[fleet.is_available] < 0.0).any():
            raise Broken(f"explain() must return margins >= 0, got {np.nanmin(why.margin):g}")
    return "each reason agrees with the selection"


NO_REASONS = "it has no explain(): the control room shows no reasons"


def _observe_is_pure(make: Make, clock: Clock) -> None:
    given = outcomes(5, np.array([0, 2, 3]), 1)
    before = {
        name: np.copy(getattr(given, name))
        for name in ("is_selected", "is_aggregated", "n_k", "tau_s", "loss")
    }
    make().observe(given)
    for name, column in before.items():
        if not np.array_equal(getattr(given, name), column, equal_nan=column.dtype.kind == "f"):
            raise Broken(f"observe() must not change its outcomes, but changed {name}")


def _deterministic(make: Make, clock: Clock) -> None:
    for at, _, seed in _trials():
        first, second = (run_rounds(make(), at, 4, seed) for _ in range(2))
        if first != second:
            raise Broken(f"the same streams must select the same rows, got {first} and {second}")


def _resumes(make: Make, clock: Clock) -> str:
    size = 0
    for at, _, seed in _trials():
        original, resumed = make(), make()
        run_rounds(original, at, 4, seed)
        state = msgspec.msgpack.encode(original.to_state())
        resumed.load_state(msgspec.msgpack.decode(state))
        ahead = [run_rounds(selector, at, 5, seed + 50) for selector in (original, resumed)]
        if ahead[0] != ahead[1]:
            raise Broken(
                "after load_state() the selector must select the same rows as without a restart, "
                f"got {ahead[1]} instead of {ahead[0]}"
            )
        size = max(size, len(state))
    return f"largest state: {size} bytes"


def _grows(make: Make, clock: Clock) -> None:
    selector, small, large = make(), trial_fleet(2, 1), trial_fleet(6, 2)
    run_rounds(selector, small, 3, 0)
    is_new = np.arange(6) >= 2
    only_new = TrialFleet(replace(large.fleet, is_available=is_new, round=4), large.loss)
    rows = choose(selector, only_new, 3, 0)
    check_rows(rows, only_new.fleet, 3)
    selector.observe(outcomes(6, rows, 4))
    _check_queues(selector, 9)


def _none_available(make: Make, clock: Clock) -> None:
    selector, at = make(), trial_fleet(4, 3, absent=1.0)
    run_rounds(selector, trial_fleet(4, 4), 2, 0)
    rows = choose(selector, at, 3, 0)
    if rows.size:
        raise Broken(f"no device is available, so no row may be selected, got {rows.tolist()}")
    selector.observe(outcomes(4, rows, 3))
    _check_queues(selector, 4)


def _queues(make: Make, clock: Clock) -> None:
    selector = make()
    run_rounds(selector, trial_fleet(5, 5), 3, 0)
    _check_queues(selector, 5)
    before = selector.queues(5).tolist()
    selector.queues(5)[:] = 99.0
    if selector.queues(5).tolist() != before:
        raise Broken("queues() must return a copy: writing to it changed the queues")


def _check_queues(selector: Selector, n: int) -> None:
    queues = selector.queues(n)
    if queues.shape != (n,) or not np.isfinite(queues).all() or (queues < 0.0).any():
        raise Broken(f"queues({n}) must be {n} finite numbers >= 0, got {queues.tolist()}")


def _nan(make: Make, clock: Clock) -> str:
    remark = "selects other devices"
    for seed in range(10):
        at = trial_fleet(6, seed)
        for name in ("tau_hat_s", "width_s", "transfer_hat_s", "true_tau_s"):
            column: Floats = np.where(np.arange(6) == 2, np.nan, getattr(at.fleet, name))
            unknown = with_column(at.fleet, name, column)
            absent = replace(unknown, is_available=np.arange(6) != 2)
            check_rows(choose(make(), TrialFleet(absent, at.loss), 3, seed), absent, 3)
            try:
                check_rows(choose(make(), TrialFleet(unknown, at.loss), 3, seed), unknown, 3)
            except ValueError:
                remark = "refuses an available device with a ValueError"
    return remark


def with_column(fleet: Candidates, name: str, column: Floats) -> Candidates:
    """Return the same fleet with one column replaced."""
    changes: dict[str, Any] = {name: column}
    return replace(fleet, **changes)


def _nan_loss(make: Make, clock: Clock) -> str:
    if not isinstance(make(), TwoStepSelector):
        return "queries no losses"
    for seed in range(10):
        at = trial_fleet(6, seed)
        at.loss[[1, 4]] = np.nan, np.inf
        rows = choose(make(), at, 6, seed)
        if set(rows.tolist()) & {1, 4}:
            raise Broken(
                f"a device without a finite loss must not be selected, got {rows.tolist()}"
            )
        at.loss[:] = np.nan
        rows = choose(make(), at, 6, seed)
        if rows.size:
            raise Broken(f"no device reported a loss, so none may be selected, got {rows.tolist()}")
    return "devices with a loss of NaN or infinity are not selected"


BY_ROW = "not required: goes_by_row is True"


def _ties(make: Make, clock: Clock) -> str:
    if getattr(make(), "goes_by_row", False):
        return BY_ROW
    n, k = 6, 2
    alike = Candidates(
        round=1,
        is_available=np.ones(n, dtype=np.bool_),
        tau_hat_s=np.zeros(n),
        width_s=np.zeros(n),
        transfer_hat_s=np.zeros(n),
        n_k=np.ones(n, dtype=np.int64),
        true_tau_s=np.zeros(n),
    )
    share = _shares(make, TrialFleet(alike, np.ones(n)), k)
    lowest, highest = 0.75 * share.mean(), 1.25 * share.mean()
    if share.min() < lowest or share.max() > highest:
        raise Broken(
            f"equal devices must be selected equally often, at random and not by row; got shares "
            f"{np.round(share, 2).tolist()} of {DRAWS} draws"
        )
    return f"shares of {DRAWS} draws from {share.min():.2f} to {share.max():.2f}"


def _equivariant(make: Make, clock: Clock) -> str:
    if getattr(make(), "goes_by_row", False):
        return BY_ROW
    at, order = trial_fleet(7, 11), np.arange(7)[::-1].copy()
    history = [np.array([0, 3, 5]), np.array([1, 2, 6]), np.array([0, 4, 6])]
    shares = _shares(make, at, 3, history)
    reverse = [np.sort(6 - rows) for rows in history]
    permuted = _shares(make, at.permuted(order), 3, reverse)[order]
    difference = float(np.abs(shares - permuted).max())
    tolerance = 5.0 * np.sqrt(2 * 0.25 / DRAWS)
    if difference > tolerance:
        raise Broken(
            f"the same devices in other rows must be selected as often, got shares "
            f"{np.round(shares, 2).tolist()} and {np.round(permuted, 2).tolist()} of {DRAWS} draws"
        )
    return f"shares of {DRAWS} draws differ by at most {difference:.3f}"


def _shares(make: Make, at: TrialFleet, k: int, history: list[Ints] | None = None) -> Floats:
    """Return the share of draws that select each device after a given history, shape (N,)."""
    selector = make()
    for t, rows in enumerate(history or [], start=1):
        selector.observe(_all_aggregated(at, rows, t))
    now = TrialFleet(replace(at.fleet, round=1 + len(history or [])), at.loss)
    counts = np.zeros(len(at))
    for seed in range(DRAWS):
        counts[choose(selector, now, k, seed)] += 1.0
    return counts / DRAWS


def _all_aggregated(at: TrialFleet, rows: Ints, round_id: int) -> Outcomes:
    is_aggregated = np.isin(np.arange(len(at)), rows)
    return replace(
        outcomes(len(at), rows, round_id, at),
        is_aggregated=is_aggregated,
        tau_s=np.where(is_aggregated, at.fleet.tau_hat_s, np.nan),
        loss=np.where(is_aggregated, at.loss, np.nan),
    )


def _is_fast(make: Make, clock: Clock) -> str:
    at = trial_fleet(LARGE, 7, absent=0.3, unseen=0.1)

    def run(selector: Selector) -> None:
        selector.observe(outcomes(LARGE, choose(selector, at, COHORT, 0), 1, at))

    return check_speed(make, run, clock, f"a round of {LARGE:,} devices")


PROPERTIES: Properties[Selector] = {
    "only available devices, each once": _only_available,
    "the right number": _right_number,
    "select() changes nothing": _select_is_pure,
    "explain() agrees with select()": _explains,
    "observe() changes no outcome": _observe_is_pure,
    "the same streams, the same selection": _deterministic,
    "a restored selector selects the same": _resumes,
    "the fleet may grow": _grows,
    "no device available": _none_available,
    "queues are finite and a copy": _queues,
    "estimates that are not finite": _nan,
    "losses that are not finite": _nan_loss,
    "ties are broken at random, not by row": _ties,
    "the order of rows has no effect": _equivariant,
    "a round is fast enough": _is_fast,
}
"""The contract of a selector."""
