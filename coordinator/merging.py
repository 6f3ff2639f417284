"""The merge of one round, done off the loop while other updates still arrive."""

import anyio
import anyio.to_thread

from coordinator.algorithms.aggregation.base import Accumulator, Merge, Report
from coordinator.algorithms.arrays import Vector
from coordinator.registry import Registry
from coordinator.round import Exchange


class Merging:
    """Takes accepted updates one at a time, each in a worker thread.

    Whoever holds `turn` decides about one update and adds it. An update that waits for its turn
    is still being checked, so it keeps its upload slot: what is in memory is at most one vector a
    slot and the one being added, however quickly the devices upload.
    """

    def __init__(self, accumulator: Accumulator, registry: Registry) -> None:
        self._accumulator = accumulator
        self._registry = registry
        self.turn = anyio.Lock()

    async def add(self, exchange: Exchange, model: Vector) -> None:
        """Add the verified update of an exchange that is done; its turn must be held.

        A device cannot weigh more than the examples it is registered with.
        """
        device, offer = self._registry[exchange.device], exchange.offer
        assert offer is not None
        report = Report(
            row=device.row,
            n_k=min(offer.n_k, device.n_registered or offer.n_k),
            model=model,
            loss_before=offer.loss_before,
        )
        await anyio.to_thread.run_sync(self._accumulator.add, report)

    async def finish(self) -> Merge:
        """Return the next model once the last accepted update has been added."""
        async with self.turn:
            return await anyio.to_thread.run_sync(self._accumulator.finish)
