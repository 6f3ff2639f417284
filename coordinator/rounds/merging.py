"""The merge of one round, which runs off the event loop while other updates arrive."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from fairbed.coordinator.algorithms.aggregation.base import Accumulator, Merge, Report
from fairbed.coordinator.algorithms.aggregation.staleness import StalenessRule
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.state.exchange import Exchange
from fairbed.coordinator.state.registry import Registry

if TYPE_CHECKING:
    from fairbed.coordinator.rounds.raw_updates import RawMerge

NO_RAW: Final = memoryview(b"")


class RoundMerge:
    """Adds accepted updates to an accumulator one at a time, each in a worker thread.

    `lock` is held while one update is decided on and added. An update that waits for the lock is
    still in the state CHECKING and keeps its upload slot. So memory holds at most one vector per
    slot and the one being added, at any upload rate.

    An update of an earlier version that arrives before the merge has begun waits for `begin`.
    """

    def __init__(self, accumulator: Accumulator | None, registry: Registry) -> None:
        self._accumulator = accumulator
        self._registry = registry
        self._rebase: Callable[..., Vector] | None = None
        self._added: list[Exchange] = []
        """Exchanges of the updates, in the order of arrival."""
        self._failure: Exception | None = None
        """Error of an update that could not be added; `finish` raises it."""
        self._raw: RawMerge | None = None
        self.raw: bytes | None = None
        """The next raw part, once the merge is finished; None without one."""
        self._has_begun = anyio.Event()
        if accumulator is not None:
            self._has_begun.set()
        self.lock = anyio.Lock()

    def begin(
        self,
        accumulator: Accumulator,
        current: Vector,
        n_params: int,
        staleness_rule: StalenessRule,
        raw: "RawMerge | None" = None,
    ) -> None:
        """Begin the merge of a round.

        Args:
            accumulator: An empty accumulator.
            current: The version that the devices of the round train, shape (n_values,).
            n_params: Number of its parameters; the other values are buffers.
            staleness_rule: Weights of updates of earlier versions.
            raw: Merges their raw parts; None: they have none.
        """
        self._accumulator, self._raw = accumulator, raw
        self._rebase = partial(staleness_rule.rebased, now=current, n_params=n_params)
        self._has_begun.set()

    async def wait_begun(self) -> None:
        """Wait for `begin`."""
        await self._has_begun.wait()

    async def add(
        self,
        exchange: Exchange,
        model: Vector,
        base: Vector | None = None,
        raw: memoryview = NO_RAW,
    ) -> None:
        """Add the verified update of a done exchange; `lock` must be held.

        Its weight, its examples or their positions, is bounded by what the device registered.

        Args:
            exchange: Its exchange, with the staleness of the update.
            model: The model that the device has trained, shape (n_values,).
            base: The version that it started from, shape (n_values,); None is the current one.
            raw: The raw part of the update, which the caller reuses afterwards.
        """
        device, offer = self._registry[exchange.device], exchange.offer
        accumulator, staleness = self._accumulator, exchange.staleness or 0
        assert offer is not None
        assert accumulator is not None, "only a merge that has begun can add updates"
        n_k = min(offer.n_k, device.n_registered or offer.n_k)
        weight = n_k
        if offer.positions is not None:
            reported = offer.positions * n_k // offer.n_k
            weight = min(reported, device.positions_registered or reported)

        def add() -> None:
            rebased = model
            if staleness and base is not None and self._rebase is not None:
                rebased = self._rebase(model, base=base, staleness=staleness)
            accumulator.add(
                Report(
                    row=device.row,
                    n_k=weight,
                    model=rebased,
                    loss_before=offer.loss_before,
                )
            )
            if self._raw is not None:
                self._raw.add(device.name, device.row, weight, raw)

        try:
            await anyio.to_thread.run_sync(add)
        except Exception as exc:  # any error, also of a plug-in; here it would end the run abruptly
            self._failure = self._failure or exc
        self._added.append(exchange)

    async def finish(self) -> Merge:
        """Return the next model after the last accepted update; measure each one's part in it.

        Raises:
            Exception: An update could not be added, or the aggregation failed.
        """
        async with self.lock:
            if self._failure is not None:
                raise self._failure
            assert self._accumulator is not None, "only a merge that has begun can be finished"
            merge = await anyio.to_thread.run_sync(self._finish, self._accumulator)
        for exchange, measured in zip(self._added, measured_in(merge), strict=True):
            exchange.measured.update(measured)
        return merge

    def _finish(self, accumulator: Accumulator) -> Merge:
        merge = accumulator.finish()
        if self._raw is None:
            return merge
        counts = (merge.weights * merge.scale > 0.0).tolist()
        self.raw, notes = self._raw.finish(counts)
        return replace(merge, notes=(*merge.notes, *notes))


def measured_in(merge: Merge) -> list[dict[str, float]]:
    """Return the columns of each update of a merge, in the order of arrival."""
    columns = merge.columns
    values = (column.tolist() for column in columns.values())
    return [dict(zip(columns, one, strict=True)) for one in zip(*values, strict=True)]
