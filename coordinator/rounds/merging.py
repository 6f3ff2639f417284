"""The merge of one round, done off the loop while other updates still arrive."""

from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread

from fairbed.coordinator.algorithms.aggregation.base import Accumulator, Merge, Report
from fairbed.coordinator.algorithms.aggregation.staleness import Lateness
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.state.exchange import Exchange
from fairbed.coordinator.state.registry import Registry


class RoundMerge:
    """Adds accepted updates to an accumulator one at a time, each in a worker thread.

    The holder of `turn` decides about one update and adds it. An update that waits for its turn
    is still being checked and keeps its upload slot. So memory holds at most one vector per slot
    and the one being added, however fast the devices upload.

    An update of an earlier version may arrive before the merge has begun: it waits.
    """

    def __init__(self, accumulator: Accumulator | None, registry: Registry) -> None:
        self._accumulator = accumulator
        self._registry = registry
        self._rebase: Callable[..., Vector] | None = None
        self._has_begun = anyio.Event()
        if accumulator is not None:
            self._has_begun.set()
        self.turn = anyio.Lock()

    def begin(
        self, accumulator: Accumulator, now: Vector, n_params: int, lateness: Lateness
    ) -> None:
        """Begin the merge of a round.

        Args:
            accumulator: Empty.
            now: The version that the round's devices train, shape (n_values,).
            n_params: Parameters in it; the rest are buffers.
            lateness: How much updates of earlier versions count.
        """
        self._accumulator = accumulator
        self._rebase = partial(lateness.rebased, now=now, n_params=n_params)
        self._has_begun.set()

    async def wait_begun(self) -> None:
        """Wait for `begin`."""
        await self._has_begun.wait()

    async def add(self, exchange: Exchange, model: Vector, base: Vector | None = None) -> None:
        """Add the verified update of an exchange that is done; `turn` must be held.

        Its weight is bounded by the number of examples that the device has registered.

        Args:
            exchange: Gives the staleness of the update.
            model: The model that the device has trained, shape (n_values,).
            base: The version that it trained from, shape (n_values,); None is the current one.
        """
        device, offer = self._registry[exchange.device], exchange.offer
        accumulator, staleness = self._accumulator, exchange.staleness or 0
        assert offer is not None
        assert accumulator is not None, "only a merge that has begun takes updates"

        def add() -> None:
            rebased = model
            if staleness and base is not None and self._rebase is not None:
                rebased = self._rebase(model, base=base, staleness=staleness)
            accumulator.add(
                Report(
                    row=device.row,
                    n_k=min(offer.n_k, device.n_registered or offer.n_k),
                    model=rebased,
                    loss_before=offer.loss_before,
                )
            )

        await anyio.to_thread.run_sync(add)

    async def finish(self) -> Merge:
        """Return the next model, once the last accepted update has been added."""
        async with self.turn:
            assert self._accumulator is not None, "only a merge that has begun can be finished"
            return await anyio.to_thread.run_sync(self._accumulator.finish)
