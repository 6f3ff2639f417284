"""Dispatch in asynchronous rounds, the first table of a process, and the wait of a void round."""

from collections.abc import Callable

import anyio

from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.policy.config import CoordinatorConfig, RoundConfig
from fairbed.coordinator.rounds.executor import RoundExecutor
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.state.round import Round

DRAINING = frozenset({ExchangeState.LATE, ExchangeState.CANCELLED, ExchangeState.LOST})
"""States in which the device may still be at work although its exchange is over."""


def first_table(config: CoordinatorConfig, round_id: int, attempt: int, slots: int) -> Round:
    """Return the table of the first round of this process; all others are its successors."""
    settings = config.round
    return Round(
        id=round_id,
        attempt=attempt,
        deadline_s=settings.deadline_s,
        slots=slots,
        target_updates=config.updates_per_version,
        is_buffered=settings.is_buffered,
        late_limit_s=settings.late_limit_s,
        max_staleness=settings.max_staleness,
    )


class ReleasedDevices:
    """Exchanges of an asynchronous round that ended on an older version, each returned once."""

    def __init__(self, table: Round) -> None:
        self._table = table
        self._examined = 0
        """Number of exchanges of `table.ended` that were examined."""
        self._held: list[Exchange] = []
        """Examined exchanges whose update is still in memory."""

    def take(self, is_released: Callable[[Exchange], bool]) -> list[Exchange]:
        """Return the exchanges that were released since the last call.

        Args:
            is_released: Returns whether the update of an exchange is no longer in memory.
        """
        ended, version = self._table.ended, self._table.version
        fresh = [x for x in ended[self._examined :] if x.version < version]
        released, held = list[Exchange](), list[Exchange]()
        for x in [*self._held, *fresh]:
            (released if is_released(x) else held).append(x)
        self._examined, self._held = len(ended), held
        return released


class AsyncDispatcher:
    """Keeps `concurrency` devices at work until an asynchronous round is over.

    A device that ended on an earlier version may be selected again at once. A device that ended on
    the current version waits for the next one, because no device trains a version twice.

    Args:
        executor: Executes the round.
        registry: The devices of the run.
        config: Sets how many devices work at the same time.
        now: Monotonic clock, seconds.
        dispatch: Selects and dispatches a number of devices (first argument); the second one is
            the number of earlier selections for the round.
    """

    def __init__(
        self,
        executor: RoundExecutor,
        registry: Registry,
        config: CoordinatorConfig,
        now: Callable[[], float],
        dispatch: Callable[[int, int], None],
    ) -> None:
        self._executor = executor
        self._registry = registry
        self._config = config
        self._now = now
        self._dispatch = dispatch

    async def run(self, table: Round) -> None:
        """Dispatch to free devices when the table has changed, and at least every `void_wait_s`."""
        selections, released = 0, ReleasedDevices(table)
        while True:
            await self._executor.wait_changed(self._config.round.void_wait_s)
            if table.is_over:
                return
            self._release(released)
            free = self._config.cohort_size - table.open_count
            if free > 0 and self._registry.available(self._now()).any():
                selections += 1
                self._dispatch(free, selections)

    def _release(self, released: ReleasedDevices) -> None:
        for x in released.take(self._executor.is_released):
            self._registry.release(
                x.device,
                has_trained=x.offer is not None,
                is_draining=x.state in DRAINING,
            )


async def wait_for_any_device(
    executor: RoundExecutor, fleet: Fleet, settings: RoundConfig, table: Round
) -> None:
    """Wait until the availability changes or a late exchange ends, at most for `deadline_s`."""
    if table.is_idle:
        await fleet.wait_change(settings.void_wait_s)
        return
    async with anyio.create_task_group() as group:

        async def wait_change() -> None:
            await fleet.wait_change(settings.deadline_s)
            group.cancel_scope.cancel()

        group.start_soon(wait_change)
        await executor.wait_exchange_end(table)
        group.cancel_scope.cancel()
