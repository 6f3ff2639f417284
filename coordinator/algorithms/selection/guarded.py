"""A selector of a stranger: whatever it does wrong becomes one line that names it."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import (
    Candidates,
    Outcomes,
    Sample,
    Selector,
    TwoStepSelector,
)

T = TypeVar("T")

VERBS = ("select", "observe", "queues", "to_state", "load_state")
"""What every selector can do."""


class PluginError(Exception):
    """A selector that is not ours cannot be had, or breaks the contract; says which and how."""


class GuardedSelector:
    """A selector whose every answer is looked at before it is believed.

    Args:
        name: How the experiment names it.
        selector: The stranger's.
    """

    def __init__(self, name: str, selector: Selector) -> None:
        missing = [verb for verb in VERBS if not callable(getattr(selector, verb, None))]
        if missing:
            raise PluginError(
                f"selector {name}: must have {', '.join(f'{verb}()' for verb in VERBS)}, got none "
                f"of {', '.join(missing)}; docs/plugins.md has an example"
            )
        self._name, self._selector = name, selector

    @property
    def fills_cohort(self) -> bool:
        """It selects as many devices as it may; one that does not says so by this attribute."""
        return bool(getattr(self._selector, "fills_cohort", True))

    @property
    def goes_by_row(self) -> bool:
        """It tells devices apart by their rows; one that does says so by this attribute."""
        return bool(getattr(self._selector, "goes_by_row", False))

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return what it selects, ascending, shape (<= k,).

        Raises:
            PluginError: Too many, twice the same, a stranger, not available, or not rows at all.
        """
        where = f"select() of round {candidates.round}"
        chosen = self._call(where, lambda: self._selector.select(candidates, k, rng))
        rows = self._rows(where, chosen, candidates)
        if len(rows) > k:
            raise self._fault(where, f"must return at most {k} devices, got {len(rows)}")
        return rows

    def observe(self, outcomes: Outcomes) -> None:
        """Tell it what became of its selection.

        Raises:
            PluginError: It raised.
        """
        where = f"observe() of round {outcomes.round}"
        self._call(where, lambda: self._selector.observe(outcomes))

    def queues(self, n: int) -> Floats:
        """Return its fairness debts, shape (n,).

        Raises:
            PluginError: They are not n finite numbers.
        """
        said = self._call("queues()", lambda: self._selector.queues(n))
        if not isinstance(said, np.ndarray) or said.shape != (n,) or said.dtype.kind not in "fiu":
            shape = getattr(said, "shape", type(said).__name__)
            raise self._fault("queues()", f"must return {n} numbers, got {shape}")
        if not np.isfinite(said).all():
            raise self._fault("queues()", "must return finite numbers, got NaN or infinity")
        return said.astype(np.float64)

    def to_state(self) -> dict[str, Any]:
        """Return its state.

        Raises:
            PluginError: A checkpoint cannot hold it.
        """
        state = self._call("to_state()", self._selector.to_state)
        if not isinstance(state, dict):
            raise self._fault("to_state()", f"must return a dict, got {type(state).__name__}")
        try:
            msgspec.msgpack.encode(state)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise self._fault("to_state()", f"must be plain numbers and lists, got: {exc}") from exc
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Give it a state that it has returned.

        Raises:
            PluginError: It raised.
        """
        self._call("load_state()", lambda: self._selector.load_state(state))

    def _call(self, where: str, verb: Callable[[], T]) -> T:
        try:
            return verb()
        except PluginError:
            raise
        except Exception as exc:  # a stranger's code may raise anything
            line = " ".join(str(exc).split())[:200]
            raise self._fault(where, f"must not raise, got {type(exc).__name__}: {line}") from exc

    def _rows(self, where: str, said: object, candidates: Candidates) -> Ints:
        """Return rows that somebody may be asked, ascending, or refuse them."""
        if not isinstance(said, np.ndarray) or said.ndim != 1 or said.dtype.kind not in "iu":
            got = f"{said.dtype} {said.shape}" if isinstance(said, np.ndarray) else type(said)
            raise self._fault(where, f"must return rows, integers of shape (K,), got {got}")
        rows = np.sort(said.astype(np.int64))
        n = len(candidates.is_available)
        strangers = rows[(rows < 0) | (rows >= n)]
        if strangers.size:
            raise self._fault(where, f"must return rows in 0..{n - 1}, got {strangers[0]}")
        twice = rows[1:][rows[1:] == rows[:-1]]
        if twice.size:
            raise self._fault(where, f"must return each row once, got {twice[0]} twice")
        away = rows[~candidates.is_available[rows]]
        if away.size:
            raise self._fault(where, f"must return available devices, got row {away[0]}")
        return rows

    def _fault(self, where: str, what: str) -> PluginError:
        return PluginError(
            f"selector {self._name}: {where} {what}; "
            f"fairbed doctor --selector {self._name} checks it"
        )


class GuardedTwoStepSelector(GuardedSelector):
    """The same for one in two steps."""

    def __init__(self, name: str, selector: TwoStepSelector) -> None:
        super().__init__(name, selector)
        self._asking = selector
        if selector.sample not in ("all", "batch"):
            raise self._fault("sample", f"must be 'all' or 'batch', got {selector.sample!r}")

    @property
    def sample(self) -> Sample:
        """What the devices evaluate."""
        return self._asking.sample

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return whom it asks, ascending.

        Raises:
            PluginError: Twice the same, a stranger, not available, or not rows at all.
        """
        where = f"candidates() of round {fleet.round}"
        said = self._call(where, lambda: self._asking.candidates(fleet, k, rng))
        return self._rows(where, said, fleet)


def guarded(name: str, selector: Selector) -> GuardedSelector:
    """Return a stranger's selector under guard.

    Raises:
        PluginError: It lacks a verb.
    """
    if isinstance(selector, TwoStepSelector):
        return GuardedTwoStepSelector(name, selector)
    return GuardedSelector(name, selector)
