"""Rounds whose exchanges may outlive them: late updates that are merged, asynchronous rounds.

It does what the live campaign does (`coordinator.rounds.loop`), with its tables and its books; only
that nothing waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.choice import Observations, Picks
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.records.rows import observation
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.testbed.replay.asking import Inquired, inquire
from fairbed.testbed.replay.errand import errands_of
from fairbed.testbed.replay.learned import Cohort, Vintage
from fairbed.testbed.replay.play import Closed, Played, Position
from fairbed.testbed.replay.settle import DIVERGED
from fairbed.testbed.replay.under_way import Lasting, UnderWay
from fairbed.testbed.replay.world import Ended, Exchanges, LastRound, Scene, joined

OVER = "the run is over"
"""Why the last round ends whatever still goes on."""


def play_lasting(
    decisions: Decisions,
    under_way: UnderWay,
    rounds: int,
    *,
    cohort: Cohort | None = None,
    start: Position | None = None,
) -> Iterator[Played]:
    """Play the rounds up to `rounds` and yield each when it is over and learned from.

    Args:
        decisions: What is studied; it learns.
        under_way: The exchanges of all devices.
        rounds: The last one.
        cohort: Trains; None plays times only.
        start: Where to go on; None is the beginning. All others must have the state of that moment.
    """
    world = under_way.world
    at = start or Position.start(len(world))
    while at.round < rounds:
        opened = _Opened(decisions, world, under_way, at.round + 1, at.last, cohort)
        opened.play()
        if opened.id == rounds:
            under_way.give_up(OVER)
        played = opened.close()
        at = played.after
        yield played


@dataclass(slots=True)
class _Opened:
    """The round that is open."""

    decisions: Decisions
    world: Lasting
    under_way: UnderWay
    id: int
    last: LastRound
    """Of the devices as they are chosen: who is through with an earlier version has trained."""
    cohort: Cohort | None
    begun: float = field(init=False)
    inquired: Inquired | None = None
    scene: Scene = field(init=False)
    """Of the first choice."""
    picks: Picks = field(init=False)
    """All choices so far."""
    exchanges: list[Exchanges] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun = self.under_way.now

    def play(self) -> None:
        """Play until the round is over."""
        self.under_way.take_over()
        self.scene = self._look()
        if self.decisions.config.round.is_buffered:
            self._play_buffered()
        else:
            self._play_sync()

    def close(self) -> Played:
        """Merge, learn and hand over what goes on."""
        over, table, cohort = self.under_way.over(), self.under_way.table, self.cohort
        if cohort is not None:
            self._train(cohort, over)
        merged, choice = [x for x in over if x.stage is ExchangeState.DONE], self.picks.whole()
        version = table.version + bool(merged)
        self.decisions.learn(
            choice,
            Observations.of([observation(x, int(x.device), 0.0, self._context(x)) for x in over]),
        )
        trained = [x for x in over if self.under_way.has_trained(x)]
        rows = np.array([int(x.device) for x in trained], dtype=np.int64)
        versions = np.array([x.version for x in trained], dtype=np.int64)
        self.world.on_version(rows, versions, version)
        last = LastRound.nobody(len(self.world))
        last.is_selected[choice.rows] = True
        last.has_trained[rows] = True
        own = list(table.exchanges.values())
        errands = {(x.device, x.round): self.under_way.errand(x) for x in table.everybody()}
        ended = self._ended(own)
        self.under_way.hand_over(over, version)
        return Played(
            choice=choice,
            scene=self.scene,
            started_s=self.begun,
            exchanges=joined(self.exchanges),
            ended=ended,
            losses=_losses(own),
            scores=None if cohort is None else cohort.evaluate(self.id),
            after=Position(self.id, self.under_way.now, last),
            closed=Closed(table=table, over=over, errands=errands),
            inquired=self.inquired,
        )

    def _play_sync(self) -> None:
        self._inquire()
        self._choose(self.scene, None)
        if not self.under_way.table.exchanges:
            self._wait_for_anybody()
        while not self.under_way.table.is_over:
            self.under_way.step(np.inf)

    def _inquire(self) -> None:
        """Ask before the selection, if the selector wants to know; what goes on goes on."""
        now = self.under_way.now
        self.inquired = inquire(self.decisions, self.world, self.scene, self.id, now, self.cohort)
        if self.inquired is not None:
            while self.under_way.step(now + self.inquired.lasted_s):
                pass
            self.scene = self._look()

    def _play_buffered(self) -> None:
        """Play until enough updates have come; whenever a device is through, choose another."""
        config, table = self.decisions.config, self.under_way.table
        table.begin(self.begun)
        self._choose(self.scene, config.asked - table.open_count)
        picks = 0
        while not table.is_over:
            picks += self._refill(picks + 1)
        if table.is_void:
            self.under_way.step(self.under_way.now + config.round.void_wait_s)

    def _refill(self, pick: int) -> bool:
        """Wait for what happens next; choose for the free places then, and tell whether it did.

        Where there are some, it looks for new devices every `void_wait_s` even if nothing happens.
        """
        config, table = self.decisions.config, self.under_way.table
        waits_s = config.round.void_wait_s if table.open_count < config.asked else np.inf
        self.under_way.step(self.under_way.now + waits_s)
        if table.is_over:
            return False
        self._release()
        free = config.asked - table.open_count
        scene = self._look() if free > 0 else None
        if scene is None or not scene.is_available.any():
            return False
        self._choose(scene, free, pick)
        return True

    def _wait_for_anybody(self) -> None:
        """Wait until somebody is there, or until a late exchange is over, but not for ever."""
        under_way, rules = self.under_way, self.decisions.config.round
        if under_way.table.is_idle:
            under_way.step(under_way.now + rules.void_wait_s)
            return
        over, end = len(under_way.over()), under_way.now + rules.deadline_s
        while under_way.now < end and len(under_way.over()) == over:
            something = under_way.step(min(under_way.now + rules.void_wait_s, end))
            if not something and self._look().is_available.any():
                return

    def _look(self) -> Scene:
        """Return the fleet at this instant; who is at work is not available."""
        scene = self.world.look(self.id, self.under_way.now, self.last)
        busy = self.under_way.busy(len(self.world))
        return replace(scene, is_available=scene.is_available & ~busy)

    def _choose(self, scene: Scene, count: int | None, pick: int = 0) -> None:
        """Choose devices and send them on their way."""
        now, world = self.under_way.now, self.world
        choice = self.decisions.choose(
            self.id,
            scene,
            world.transfer_bits,
            now,
            known_s=scene.known_s,
            answers=None if self.inquired is None else self.inquired.answers,
            asked=count,
            pick=pick,
        )
        exchanges = world.exchange(self.id, now, choice.rows)
        self.under_way.ask(errands_of(exchanges, choice, scene, now))
        if pick:
            self.picks.add(choice)
        else:
            self.picks = Picks(choice)
        self.exchanges.append(exchanges)

    def _release(self) -> None:
        for x in self.under_way.release():
            has_trained = self.last.has_trained.copy()
            has_trained[int(x.device)] = self.under_way.has_trained(x)
            self.last = replace(self.last, has_trained=has_trained)

    def _train(self, cohort: Cohort, over: Sequence[Exchange]) -> None:
        """Have all trained that have come to an end, and merged what is; note what they report."""
        trained = sorted(
            (x for x in over if self.under_way.has_trained(x)),
            key=lambda x: (x.round, int(x.device)),
        )
        groups = [list(group) for _, group in groupby(trained, key=lambda x: x.round)]
        table = self.under_way.table
        needed = {x.version for x in table.everybody() if not x.is_over}
        vintages = [self._vintage(group) for group in groups]
        reports = cohort.train_vintages(self.id, table.version, vintages, needed)
        for group, learned in zip(groups, reports, strict=True):
            losses, failed = learned.losses.tolist(), learned.has_failed.tolist()
            for x, loss, has_failed in zip(group, losses, failed, strict=True):
                if has_failed:
                    x.stage, x.why, x.offer = ExchangeState.FAILED, DIVERGED, None
                    x.staleness = x.merged_round = None
                elif x.offer is not None and np.isfinite(loss):
                    x.offer = structs.replace(x.offer, loss_train=loss)

    def _vintage(self, group: Sequence[Exchange]) -> Vintage:
        errands = [self.under_way.errand(x) for x in group]
        return Vintage(
            round=group[0].round,
            version=group[0].version,
            rows=np.array([errand.row for errand in errands], dtype=np.int64),
            n_k=np.array([errand.n_k for errand in errands], dtype=np.int64),
            is_merged=np.array([x.stage is ExchangeState.DONE for x in group], dtype=np.bool_),
        )

    def _context(self, x: Exchange) -> Floats | None:
        """Return what was known when a device was chosen in an earlier round."""
        if x.round == self.id:
            return None
        return np.array(self.under_way.errand(x).context, dtype=np.float64)

    def _ended(self, own: Sequence[Exchange]) -> Ended:
        """Return how the exchanges that were begun in this round stand now."""
        now = self.under_way.now
        lasted_s = 0.0 if self.inquired is None else self.inquired.lasted_s
        has_trained = [self.under_way.has_trained(x) for x in own]
        uploaded_s = [np.nan if x.upload_s is None else x.upload_s for x in own]
        return Ended(
            outcome=tuple(ExchangeState.LATE.value if x.goes_on else x.stage.value for x in own),
            end_s=now - self.begun - lasted_s,
            queued_s=np.array([x.queued_s(now) for x in own], dtype=np.float64),
            upload_s=np.array(uploaded_s, dtype=np.float64),
            has_trained=np.array(has_trained, dtype=np.bool_),
            is_merged=np.array([x.stage is ExchangeState.DONE for x in own], dtype=np.bool_),
        )


def _losses(own: Sequence[Exchange]) -> Floats:
    told = [None if x.offer is None else x.offer.loss_train for x in own]
    return np.array([np.nan if loss is None else loss for loss in told], dtype=np.float64)
