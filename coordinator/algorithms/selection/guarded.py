"""Guard of a plug-in selector: each violation of the contract is one line that names it."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.plugin import Guard
from fairbed.coordinator.algorithms.selection.base import (
    Candidates,
    Outcomes,
    Reason,
    Sample,
    Selector,
    TwoStepSelector,
)
from fairbed.wire.plugins import described

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


class GuardedSelector(Guard):
    """A plug-in selector whose every result is checked."""

    noun, doctor, page = "selector", "--selector", "own-selector.md"
    verbs = ("select", "observe", "queues")

    def __init__(self, name: str, selector: Selector) -> None:
        super().__init__(name, selector)
        self._selector = selector

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
        chosen = self.call(where, lambda: self._selector.select(candidates, k, rng))
        rows = self._rows(where, chosen, candidates)
        if len(rows) > k:
            self.fail(where, f"must return at most {k} devices, got {len(rows)}")
        return rows

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation | None":
        """Return why the plug-in chose this cohort; None if it has no `explain`.

        Raises:
            PluginError: The result is not an `Explanation` of all devices.
        """
        from fairbed.coordinator.algorithms.selection.explanation import (
            ExplainingSelector,
            Explanation,
        )

        plugin, where = self._selector, f"explain() of round {candidates.round}"
        if not isinstance(plugin, ExplainingSelector):
            return None
        why: object = self.call(where, lambda: plugin.explain(candidates, chosen, k, rng))
        if why is None:
            return None
        if not isinstance(why, Explanation):
            self.fail(where, f"must return an Explanation or None, got {described(why)}")
        shape = candidates.is_available.shape
        for name in ("reason", "score", "margin"):
            column = getattr(why, name)
            if not isinstance(column, np.ndarray) or column.shape != shape:
                got = described(column)
                self.fail(where, f"must return a {name} for each device, {shape}, got {got}")
        is_known = np.isin(why.reason, [*Reason])
        if not is_known.all():
            got = why.reason[~is_known][0]
            self.fail(where, f"must return reasons from 0 to {max(Reason)}, got {got}")
        is_candidate = candidates.is_available
        return replace(
            why,
            reason=why.reason.astype(np.int64),
            score=np.where(is_candidate, why.score, np.nan),
            margin=np.where(is_candidate, why.margin, np.nan),
        )

    def observe(self, outcomes: Outcomes) -> None:
        """Pass the outcome of the selection to the plug-in.

        Raises:
            PluginError: It raised.
        """
        where = f"observe() of round {outcomes.round}"
        self.call(where, lambda: self._selector.observe(outcomes))

    def queues(self, n: int) -> Floats:
        """Return its virtual queues, shape (n,).

        Raises:
            PluginError: They are not n finite numbers.
        """
        return self.numbers(
            "queues()", self.call("queues()", lambda: self._selector.queues(n)), (n,)
        )

    def _rows(self, where: str, returned: object, candidates: Candidates) -> Ints:
        """Return the rows ascending, if they are distinct rows of available devices.

        Raises:
            PluginError: They are not.
        """
        is_rows = isinstance(returned, np.ndarray) and returned.dtype.kind in "iu"
        if not (is_rows and isinstance(returned, np.ndarray) and returned.ndim == 1):
            got = described(returned)
            self.fail(where, f"must return rows, integers of shape (K,), got {got}")
        rows = np.sort(returned.astype(np.int64))
        n = len(candidates.is_available)
        unknown = rows[(rows < 0) | (rows >= n)]
        if unknown.size:
            self.fail(where, f"must return rows in 0..{n - 1}, got {unknown[0]}")
        twice = rows[1:][rows[1:] == rows[:-1]]
        if twice.size:
            self.fail(where, f"must return each row once, got {twice[0]} twice")
        absent = rows[~candidates.is_available[rows]]
        if absent.size:
            self.fail(where, f"must return available devices, got row {absent[0]}")
        return rows


class GuardedTwoStepSelector(GuardedSelector):
    """A plug-in selector that queries losses, whose every result is checked."""

    def __init__(self, name: str, selector: TwoStepSelector) -> None:
        super().__init__(name, selector)
        self._two_step = selector
        if selector.sample not in ("all", "batch"):
            self.fail("sample", f"must be 'all' or 'batch', got {selector.sample!r}")

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
        returned = self.call(where, lambda: self._two_step.candidates(fleet, k, rng))
        return self._rows(where, returned, fleet)


def guarded(name: str, selector: Selector) -> GuardedSelector:
    """Return a plug-in selector with checks.

    Raises:
        PluginError: It lacks a method.
    """
    if isinstance(selector, TwoStepSelector):
        return GuardedTwoStepSelector(name, selector)
    return GuardedSelector(name, selector)
