"""What selectors are tried on: fleets drawn by a seed, and rounds of them."""

from dataclasses import dataclass, replace

import numpy as np

from coordinator.algorithms.arrays import Floats, Ints
from coordinator.algorithms.selection.base import Asking, Candidates, Outcomes, Selector

COLUMNS = ("is_available", "tau_hat_s", "width_s", "transfer_hat_s", "n_k", "known_s")
"""What a fleet is told to have, but for losses: those are asked for."""


class Broken(Exception):
    """A selector does not have a property; says what it did."""


@dataclass(frozen=True, slots=True)
class World:
    """A fleet at the instant of selection, and the losses that its devices would tell."""

    fleet: Candidates
    loss: Floats
    """Nats, shape (N,)."""

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self.loss)

    def permuted(self, order: Ints) -> "World":
        """Return the same devices in other rows: row i is what row `order[i]` was."""
        fleet = self.fleet
        columns = {
            name: column[order] for name in COLUMNS if (column := getattr(fleet, name)) is not None
        }
        return World(replace(fleet, **columns), self.loss[order])


def world(
    n: int, seed: int, *, absent: float = 0.0, unseen: float = 0.0, round_id: int = 1
) -> World:
    """Return a fleet of `n` devices drawn by a seed.

    Args:
        n: Devices.
        seed: Of all numbers.
        absent: Share that is not available.
        unseen: Share that was never measured: predicted at 0 s.
        round_id: 1 for the first.
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
        known_s=rng.uniform(0.1, 4.0, n),
    )
    return World(fleet, rng.uniform(0.0, 3.0, n))


def outcomes(n: int, chosen: Ints, round_id: int, at: World | None = None) -> Outcomes:
    """Return what became of a cohort of `n` rows: every other one was merged, the others failed.

    Times and losses are those of the devices in `at`, or 1 + row.
    """
    is_selected, is_merged = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    is_selected[chosen] = True
    is_merged[chosen[::2]] = True
    tau_s = np.arange(1.0, n + 1.0) if at is None else at.fleet.tau_hat_s
    loss = np.arange(1.0, n + 1.0) if at is None else at.loss
    return Outcomes(
        round=round_id,
        is_selected=is_selected,
        is_aggregated=is_merged,
        n_k=np.ones(n, dtype=np.int64) if at is None else at.fleet.n_k,
        tau_s=np.where(is_merged, tau_s, np.nan),
        loss=np.where(is_merged, loss, np.nan),
    )


def choose(selector: Selector, at: World, k: int, seed: int) -> Ints:
    """Return what a selector selects; one that asks is told the losses of whom it asks."""
    fleet = at.fleet
    if isinstance(selector, Asking):
        asked = selector.candidates(fleet, k, stream(seed + 1_000_003))
        check_rows(asked, fleet, len(at), "candidates()")
        loss = np.full(len(at), np.nan)
        loss[asked] = at.loss[asked]
        fleet = replace(fleet, loss=loss)
    return selector.select(fleet, k, stream(seed))


def live(selector: Selector, at: World, rounds: int, seed: int, k: int = 3) -> list[list[int]]:
    """Return what a selector selects over some rounds, of each of which it is told the outcome."""
    history = []
    for t in range(1, rounds + 1):
        now = World(replace(at.fleet, round=t), at.loss)
        rows = choose(selector, now, k, seed + t)
        selector.observe(outcomes(len(at), rows, t, at))
        history.append(rows.tolist())
    return history


def stream(seed: int) -> np.random.Generator:
    """Return a random stream."""
    return np.random.default_rng(seed)


def check_rows(rows: Ints, fleet: Candidates, most: int, where: str = "select()") -> None:
    """See that these are at most `most` distinct rows that are available.

    Raises:
        Broken: They are not.
    """
    is_rows = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == np.int64
    if not is_rows:
        raise Broken(f"{where} must return int64 of shape (K,), got {rows!r:.60}")
    if len(set(rows.tolist())) < len(rows):
        raise Broken(f"{where} must return each row once, got {rows.tolist()}")
    available = set(np.flatnonzero(fleet.is_available).tolist())
    if away := sorted(set(rows.tolist()) - available):
        raise Broken(f"{where} must return available rows, got {away[0]}, which is not")
    if len(rows) > most:
        raise Broken(f"{where} must return at most {most} rows, got {len(rows)}")
