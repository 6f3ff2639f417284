"""Guard of a plug-in selector: each violation of the contract is one line that names it."""

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
"""Methods of a selector."""


class PluginError(Exception):
    """A plug-in selector cannot be loaded or violates the contract; the message states how."""


class GuardedSelector:
    """A plug-in selector whose every result is checked.

    Args:
        name: Its name in the experiment.
        selector: The plug-in.
    """

    def __init__(self, name: str, selector: Selector) -> None:
        missing = [verb for verb in VERBS if not callable(getattr(selector, verb, None))]
        if missing:
            raise PluginError(
                f"selector {name}: must have {', '.join(f'{verb}()' for verb in VERBS)}, but lacks "
                f"{', '.join(missing)}; docs/own-selector.md has an example"
            )
        self._name, self._selector = name, selector

    @property
    def fills_cohort(self) -> bool:
        """It selects min(k, available) devices; a plug-in may set this attribute to False."""
        return bool(getattr(self._selector, "fills_cohort", True))

    @property
    def goes_by_row(self) -> bool:
        """The row of a device affects its selection; a plug-in may set this attribute to True."""
        return bool(getattr(self._selector, "goes_by_row", False))

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the selected rows, ascending, shape (<= k,).

        Raises:
            PluginError: The result is not at most k distinct rows of available devices.
        """
        where = f"select() of round {candidates.round}"
        chosen = self._call(where, lambda: self._selector.select(candidates, k, rng))
        rows = self._rows(where, chosen, candidates)
        if len(rows) > k:
            raise self._fault(where, f"must return at most {k} devices, got {len(rows)}")
        return rows

    def observe(self, outcomes: Outcomes) -> None:
        """Pass the outcome of the selection to the plug-in.

        Raises:
            PluginError: It raised.
        """
        where = f"observe() of round {outcomes.round}"
        self._call(where, lambda: self._selector.observe(outcomes))

    def queues(self, n: int) -> Floats:
        """Return its virtual queues, shape (n,).

        Raises:
            PluginError: They are not n finite numbers.
        """
        z = self._call("queues()", lambda: self._selector.queues(n))
        if not isinstance(z, np.ndarray) or z.shape != (n,) or z.dtype.kind not in "fiu":
            shape = getattr(z, "shape", type(z).__name__)
            raise self._fault("queues()", f"must return {n} numbers, got {shape}")
        if not np.isfinite(z).all():
            raise self._fault("queues()", "must return finite numbers, got NaN or infinity")
        return z.astype(np.float64)

    def to_state(self) -> dict[str, Any]:
        """Return its state.

        Raises:
            PluginError: It cannot be stored in a checkpoint.
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
        """Restore a state that `to_state` returned.

        Raises:
            PluginError: It raised.
        """
        self._call("load_state()", lambda: self._selector.load_state(state))

    def _call(self, where: str, verb: Callable[[], T]) -> T:
        try:
            return verb()
        except PluginError:
            raise
        except Exception as exc:  # a plug-in may raise anything
            line = " ".join(str(exc).split())[:200]
            raise self._fault(where, f"must not raise, got {type(exc).__name__}: {line}") from exc

    def _rows(self, where: str, returned: object, candidates: Candidates) -> Ints:
        """Return the rows ascending, if they are distinct rows of available devices.

        Raises:
            PluginError: They are not.
        """
        if not isinstance(returned, np.ndarray):
            got = str(type(returned))
            raise self._fault(where, f"must return rows, integers of shape (K,), got {got}")
        if returned.ndim != 1 or returned.dtype.kind not in "iu":
            got = f"{returned.dtype} {returned.shape}"
            raise self._fault(where, f"must return rows, integers of shape (K,), got {got}")
        rows = np.sort(returned.astype(np.int64))
        n = len(candidates.is_available)
        unknown = rows[(rows < 0) | (rows >= n)]
        if unknown.size:
            raise self._fault(where, f"must return rows in 0..{n - 1}, got {unknown[0]}")
        twice = rows[1:][rows[1:] == rows[:-1]]
        if twice.size:
            raise self._fault(where, f"must return each row once, got {twice[0]} twice")
        absent = rows[~candidates.is_available[rows]]
        if absent.size:
            raise self._fault(where, f"must return available devices, got row {absent[0]}")
        return rows

    def _fault(self, where: str, what: str) -> PluginError:
        return PluginError(
            f"selector {self._name}: {where} {what}; "
            f"run fairbed doctor --selector {self._name} to check it"
        )


class GuardedTwoStepSelector(GuardedSelector):
    """A plug-in selector that queries losses, whose every result is checked."""

    def __init__(self, name: str, selector: TwoStepSelector) -> None:
        super().__init__(name, selector)
        self._two_step = selector
        if selector.sample not in ("all", "batch"):
            raise self._fault("sample", f"must be 'all' or 'batch', got {selector.sample!r}")

    @property
    def sample(self) -> Sample:
        """Examples that the candidates evaluate."""
        return self._two_step.sample

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the rows to query, ascending.

        Raises:
            PluginError: The result is not distinct rows of available devices.
        """
        where = f"candidates() of round {fleet.round}"
        returned = self._call(where, lambda: self._two_step.candidates(fleet, k, rng))
        return self._rows(where, returned, fleet)


def guarded(name: str, selector: Selector) -> GuardedSelector:
    """Return a plug-in selector with checks.

    Raises:
        PluginError: It lacks a method.
    """
    if isinstance(selector, TwoStepSelector):
        return GuardedTwoStepSelector(name, selector)
    return GuardedSelector(name, selector)
