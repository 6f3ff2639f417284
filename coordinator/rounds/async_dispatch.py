"""Between a campaign and its rounds: the first table, and who is waited for or chosen again."""

from collections.abc import Callable

import anyio

from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.policy.config import CoordinatorConfig, RoundConfig
from fairbed.coordinator.rounds.executor import RoundExecutor
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.state.round import Round

DRAINING = frozenset({ExchangeState.LATE, ExchangeState.CANCELLED, ExchangeState.LOST})
"""Who may still be at work although its exchange is over for us."""


def first_table(config: CoordinatorConfig, round_id: int, attempt: int, slots: int) -> Round:
    """Return the table of the first round of this process; the others are its successors."""
    settings = config.round
    return Round(
        id=round_id,
        attempt=attempt,
        deadline_s=settings.deadline_s,
        slots=slots,
        wanted=config.wanted,
        is_buffered=settings.is_buffered,
        patience_s=settings.patience_s,
        max_staleness=settings.max_staleness,
    )


class ReleasedDevices:
    """Who is through with a version before that of a round; nobody is told twice."""

    def __init__(self, played: Round) -> None:
        self._played = played
        self._seen = 0
        """Of those that have come to an end in the round."""
        self._held: list[Exchange] = []
        """Those seen of whom something is still in memory."""

    def take(self, is_through: Callable[[Exchange], bool]) -> list[Exchange]:
        """Return who has become free since the last call.

        Args:
            is_through: Tells whether nothing of an exchange that is over is in memory any more.
        """
        ended, version = self._played.ended, self._played.version
        fresh = [x for x in ended[self._seen :] if x.version < version]
        free, held = list[Exchange](), list[Exchange]()
        for x in [*self._held, *fresh]:
            (free if is_through(x) else held).append(x)
        self._seen, self._held = len(ended), held
        return free


class AsyncDispatcher:
    """Chooses as many devices as there are places, until the round is over.

    A device that is through with an earlier version may be chosen again at once, one that is
    through with this version only for the next: nobody trains a version twice.

    Args:
        player: Plays the round.
        registry: Of the fleet.
        config: Says how many work at the same time.
        now: Monotonic seconds.
        choose: Chooses so many devices and has them asked; told how often it was called before.
    """

    def __init__(
        self,
        player: RoundExecutor,
        registry: Registry,
        config: CoordinatorConfig,
        now: Callable[[], float],
        choose: Callable[[int, int], None],
    ) -> None:
        self._player = player
        self._registry = registry
        self._config = config
        self._now = now
        self._choose = choose

    async def run(self, played: Round) -> None:
        """Look whenever something has happened, and for new devices every `void_wait_s`."""
        picks, releases = 0, ReleasedDevices(played)
        while True:
            await self._player.wait_moved(self._config.round.void_wait_s)
            if played.is_over:
                return
            self._release(releases)
            free = self._config.asked - played.open_count
            if free > 0 and self._registry.available(self._now()).any():
                picks += 1
                self._choose(free, picks)

    def _release(self, releases: ReleasedDevices) -> None:
        for x in releases.take(self._player.is_through):
            self._registry.release(
                x.device,
                has_trained=x.offer is not None,
                is_draining=x.stage in DRAINING,
            )


async def wait_for_any_device(
    player: RoundExecutor, fleet: Fleet, settings: RoundConfig, played: Round
) -> None:
    """Wait until availability changes, or until a late exchange is over, but not for ever."""
    if played.is_idle:
        await fleet.wait_change(settings.void_wait_s)
        return
    async with anyio.create_task_group() as group:

        async def wait_change() -> None:
            await fleet.wait_change(settings.deadline_s)
            group.cancel_scope.cancel()

        group.start_soon(wait_change)
        await player.wait_end(played)
        group.cancel_scope.cancel()
