"""Rounds on a virtual clock: who is chosen, when each exchange ends, and what the round teaches.

It drives the decisions of the live coordinator, with devices that answer from a world. Time is an
account, not a clock: nothing waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import CONTEXT
from fairbed.coordinator.policy.choice import Choice, Observations
from fairbed.coordinator.policy.config import RoundConfig
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.ports import Score
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.round import Round
from fairbed.testbed.replay.asking import Inquired, inquire
from fairbed.testbed.replay.errand import Errand
from fairbed.testbed.replay.learned import Cohort, Learned
from fairbed.testbed.replay.settle import LATE, settle
from fairbed.testbed.replay.world import Ended, Exchanges, LastRound, Scene, World


@dataclass(frozen=True, slots=True)
class Position:
    """Where a replay stands between two rounds."""

    round: int
    """The last one that is over; 0 before the first."""
    now: float
    """Seconds on the virtual clock."""
    last: LastRound

    @classmethod
    def start(cls, n: int) -> "Position":
        """Return the beginning, for `n` devices."""
        return cls(0, 0.0, LastRound.nobody(n))


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The coordinator's table at the end of a round whose exchanges may outlive it."""

    table: Round
    over: Sequence[Exchange]
    """Those that came to their end in it, begun in it or before."""
    errands: Mapping[tuple[str, int], Errand]
    """What all in the table were on, by device and round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One round that is over and learned from; columns of the cohort have shape (K,)."""

    choice: Choice
    scene: Scene
    started_s: float
    """On the virtual clock; a question, if there is one, is part of the round."""
    exchanges: Exchanges
    ended: Ended
    losses: Floats
    """Mean training loss that each reported, nats; NaN is none."""
    scores: Mapping[str, Score] | None
    """Of the model after the round; None if it was not evaluated."""
    after: Position
    closed: Closed | None = None
    """None where every exchange ends with its round."""
    inquired: Inquired | None = None
    """None where nobody was asked before the selection."""

    @property
    def concerned(self) -> Ints:
        """Rows of the devices that were chosen, or whose updates entered the model."""
        if self.closed is None:
            return self.choice.rows
        return np.union1d(self.choice.rows, self.merged)

    @property
    def asked_s(self) -> float:
        """How long the question took."""
        return 0.0 if self.inquired is None else self.inquired.lasted_s

    @property
    def asked_bytes(self) -> int:
        """What the model took on its way to who answered."""
        return 0 if self.inquired is None else self.inquired.bytes_down

    @property
    def dispatched_s(self) -> float:
        """When the cohort was asked to train."""
        return self.started_s + self.asked_s

    @property
    def merged(self) -> Ints:
        """Rows of the devices whose updates entered the model."""
        if self.closed is None:
            merged: Ints = self.choice.rows[self.ended.is_merged]
            return merged
        done = [int(x.device) for x in self.closed.over if x.stage is ExchangeState.DONE]
        return np.array(done, dtype=np.int64)

    @property
    def duration_s(self) -> float:
        """Of the round."""
        return self.asked_s + self.ended.end_s

    @property
    def outcome(self) -> tuple[str, ...]:
        """Of each of the cohort: done, late, cancelled or failed."""
        return self.ended.outcome

    @property
    def tau_s(self) -> Floats:
        """Exchange times of the cohort, also of those that nobody waited for.

        NaN where an update never came on its way, `inf` where it never would have arrived.
        """
        tau_s: Floats = self.exchanges.ready_s + self.ended.upload_s
        return tau_s

    @property
    def tau_wall_s(self) -> Floats:
        """The same with the waiting for a grant."""
        wall_s: Floats = self.exchanges.ready_s + self.ended.queued_s + self.ended.upload_s
        return wall_s

    @property
    def was_cold(self) -> Bools:
        """Session and data had to be loaded."""
        return self.exchanges.was_cold

    @property
    def was_selected(self) -> Bools:
        """In the round before."""
        selected: Bools = self.scene.last.is_selected[self.choice.rows]
        return selected


def play(
    decisions: Decisions,
    world: World,
    rules: RoundConfig,
    rounds: int,
    *,
    cohort: Cohort | None = None,
    start: Position | None = None,
) -> Iterator[Played]:
    """Play the rounds up to `rounds` and yield each when it is over and learned from.

    Args:
        decisions: What is studied; it learns.
        world: The devices.
        rules: Deadline, over-selection and the length of a void round.
        rounds: The last one.
        cohort: Trains; None plays times only.
        start: Where to go on; None is the beginning. Decisions, world and cohort must have the
            state of that moment.
    """
    n = len(world)
    at = start or Position.start(n)
    while at.round < rounds:
        round_id, now = at.round + 1, at.now
        scene = world.look(round_id, now, at.last)
        inquired = inquire(decisions, world, scene, round_id, now, cohort)
        if inquired is not None:
            now += inquired.lasted_s
            scene = world.look(round_id, now, at.last)
        choice = decisions.choose(
            round_id,
            scene,
            world.transfer_bits,
            now,
            known_s=scene.known_s,
            answers=None if inquired is None else inquired.answers,
        )
        exchanges = world.exchange(round_id, now, choice.rows)
        ended = settle(exchanges, rules, decisions.config.selection.per_round, world.slots)
        learned = _train(cohort, choice, ended)
        ended, losses = ended.without(learned.has_failed), learned.losses
        decisions.learn(choice, _observations(choice, exchanges, ended, losses))
        world.close(exchanges, choice.rows, ended)
        started_s, last = at.now, _last(n, choice.rows, ended)
        at = Position(round_id, now + ended.end_s, last)
        yield Played(
            choice=choice,
            scene=scene,
            started_s=started_s,
            exchanges=exchanges,
            ended=ended,
            losses=losses,
            scores=None if cohort is None else cohort.evaluate(round_id),
            after=at,
            inquired=inquired,
        )


def _train(cohort: Cohort | None, choice: Choice, ended: Ended) -> Learned:
    """Have a cohort trained and merged."""
    whole, is_trained = Learned.nothing(len(choice.rows)), ended.has_trained
    if cohort is not None and is_trained.any():
        part = cohort.train(choice, choice.rows[is_trained], choice.rows[ended.is_merged])
        whole.losses[is_trained] = part.losses
        whole.has_failed[is_trained] = part.has_failed
    return whole


def _observations(
    choice: Choice, exchanges: Exchanges, ended: Ended, losses: Floats
) -> Observations:
    """Return what the round teaches: the measured times of those who were waited for."""
    compute_s = exchanges.decode_s + exchanges.evaluate_s + exchanges.train_s + exchanges.encode_s
    phases_s = np.stack(
        [exchanges.download_s, exchanges.load_s, compute_s, ended.upload_s, exchanges.signal_s],
        axis=1,
    )
    k, is_done = len(choice.rows), ended.is_done
    return Observations(
        rows=choice.rows,
        tau_s=np.where(is_done, exchanges.ready_s + ended.upload_s, np.nan),
        phases_s=np.where(is_done[:, np.newaxis], phases_s, np.nan),
        is_aggregated=ended.is_merged,
        timed_out=np.array([word == LATE for word in ended.outcome], dtype=np.bool_),
        loss=losses,
        at_least_s=np.full(k, np.nan),
        context=np.full((k, CONTEXT), np.nan),
    )


def _last(n: int, rows: Ints, ended: Ended) -> LastRound:
    last = LastRound.nobody(n)
    last.is_selected[rows] = True
    last.has_trained[rows[ended.has_trained]] = True
    return last
