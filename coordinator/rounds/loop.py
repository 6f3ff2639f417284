"""The run of rounds: wait for the fleet, choose, play, merge, write down, evaluate, again.

The model of now on everybody's held-out data, off the record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
import anyio.to_thread
import msgspec

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.codec_agreement import Agreement
from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.messaging.blobs import PublicBlobs, SideTraffic
from fairbed.coordinator.policy.choice import Choice, Observations, Picks
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.ports import Evaluator
from fairbed.coordinator.records.rows import (
    exchange_row,
    fleet_rows,
    metric_rows,
    observation,
    round_row,
    selection_rows,
)
from fairbed.coordinator.rounds.assignments import Assignments, pulled_blobs
from fairbed.coordinator.rounds.async_dispatch import (
    DRAINING,
    AsyncDispatcher,
    first_table,
    wait_for_any_device,
)
from fairbed.coordinator.rounds.executor import RoundExecutor
from fairbed.coordinator.rounds.loop_lag import LagMeter
from fairbed.coordinator.rounds.loss_query import LossQueries, LossQueryExecutor
from fairbed.coordinator.rounds.merging import Merging
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.rounds.update_store import UpdateStore
from fairbed.coordinator.state.exchange import Exchange, ExchangeState, slots
from fairbed.coordinator.state.round import Round
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import MetricRow, Record, RoundRow
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.messages import Manifest, Train


async def evaluate_fleet(
    evaluator: Evaluator, journal: EventLog, round_id: int, vector: Vector
) -> MetricRow | None:
    """Evaluate `vector`, shape (n_values,), and write down what came of it.

    None if it could not be evaluated: whatever went wrong, the training goes on.
    """
    started = journal.now()
    try:
        scores = await anyio.to_thread.run_sync(evaluator.evaluate, vector, abandon_on_cancel=True)
    except Exception as exc:  # off the record
        said = f"{type(exc).__name__}: {exc}"
        journal.event("not evaluated", said, level="warning", round_id=round_id)
        return None
    took_s = journal.now() - started
    devices, metric = metric_rows(round_id, scores, journal.at_s(), took_s)
    for row in devices:
        journal.add(row)
    if metric is not None:
        journal.add(metric)
    return metric


class FleetMissingError(Exception):
    """Too few devices joined in time."""


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """A closed round, for whoever watches."""

    round: RoundRow
    cohort: tuple[str, ...]
    metric: MetricRow | None


class TrainingLoop:
    """Plays the rounds of one run; pausing acts between rounds, stopping at once."""

    def __init__(
        self,
        config: CoordinatorConfig,
        task: TaskSpec,
        vector: Vector,
        decisions: Decisions,
        fleet: Fleet,
        *,
        player: RoundExecutor,
        asker: LossQueryExecutor,
        public: PublicBlobs,
        journal: EventLog,
        lag: LagMeter,
        traffic: SideTraffic,
        evaluator: Evaluator | None,
        listener: Callable[[RoundProgress], None],
        attempt: int,
        max_chunk_bytes: int,
    ) -> None:
        self._config = config
        self._task = task
        self._decisions = decisions
        self._fleet = fleet
        self._registry = fleet.registry
        self._player = player
        self._journal = journal
        self._lag = lag
        self._traffic = traffic
        self._evaluator = evaluator
        self._listener = listener
        self._attempt = attempt
        self._agreement = Agreement(config.exchange, task.layout, journal.store.run_id)
        self._versions = ModelVersions(
            self._agreement,
            vector,
            public,
            fleet.registry,
            journal,
            max_chunk_bytes=max_chunk_bytes,
        )
        self._inquiry = LossQueries(
            config, decisions, fleet.registry, self._versions, asker, journal
        )
        self._assignments = Assignments(
            config, decisions, fleet.registry, self._versions, journal.now
        )
        self._picks: Picks
        """Who was chosen for the round that is open."""
        self._closed: float | None = None
        """When the last round was over; None before."""
        self._open: tuple[Round, Merging] | None = None
        """The table that the last round has handed over, and where its updates go."""
        self._frozen: set[str] = set()
        self._may_run = anyio.Event()
        self._may_run.set()

    def pause(self) -> None:
        """Begin no further round."""
        if self._may_run.is_set():
            self._may_run = anyio.Event()
            self._journal.store.set_status("paused")

    def resume(self) -> None:
        """Go on."""
        if not self._may_run.is_set():
            self._may_run.set()
            self._journal.store.set_status("running")

    async def run(self, first_round: int) -> None:
        """Play rounds `first_round` .. `config.rounds`.

        Raises:
            FleetMissingError: Too few devices joined in time.
        """
        await self._wait_for_fleet()
        # A checkpoint's model was a version already: it goes out as it is.
        rng = self._decisions.encoding_stream(0) if first_round == 1 else None
        await self._versions.publish(self._versions.vector, rng)
        for round_id in range(first_round, self._config.rounds + 1):
            await self._fleet.wait_settled()
            while not self._may_run.is_set():
                await self._may_run.wait()
                await self._fleet.wait_settled()
            await self._play(round_id)
            self._attempt = 0

    async def _wait_for_fleet(self) -> None:
        wanted, limit = self._config.round.min_devices, self._config.round.join_timeout_s
        deadline = self._journal.now() + limit
        while (ready := int(self._registry.available(self._journal.now()).sum())) < wanted:
            left = deadline - self._journal.now()
            if left <= 0:
                raise FleetMissingError(
                    f"fleet: {wanted} devices must be ready within {limit:g} s, got {ready} ready "
                    f"of {self._registry.joined} joined; look at their logs, or raise "
                    "round.join_timeout_s"
                )
            await self._fleet.wait_change(left)

    async def _play(self, round_id: int) -> None:
        """Choose, dispatch, and wait for what comes back."""
        answers = await self._inquiry.run(round_id, self._attempt)
        if answers is not None:
            await self._fleet.wait_settled()  # our own link may have been down meanwhile
        played, merging = self._opened(round_id)
        begun = self._journal.now()
        self._begin_merge(round_id, merging)
        count = self._config.asked - played.open_count if played.is_buffered else None
        trains, choice = self._assignments.choose(
            played, count, answers=answers, answered=self._inquiry.answered
        )
        self._picks = Picks(choice)
        self._inquiry.dismiss(round_id, list(trains))
        self._lag.start()
        if trains:
            self._journal.event("dispatched", " ".join(trains), round_id=round_id)
        if played.is_buffered:
            await self._play_buffered(played, trains, merging, begun)
        elif trains:
            await self._player.play(played, trains, merging, self._versions.vector)
            begun = next(iter(played.exchanges.values())).dispatched
        else:
            self._journal.event("void", "no device was available", round_id=round_id)
            await wait_for_any_device(self._player, self._fleet, self._config.round, played)
        if played.is_buffered and self._closed is not None:
            begun = self._closed  # devices work between rounds, too: no time may be left out
        await self._close(self._picks.whole(), played, begun, merging)

    async def _play_buffered(
        self, played: Round, trains: Mapping[str, Train], merging: Merging, now: float
    ) -> None:
        """Play until enough updates have come; whenever a device is through, choose another."""
        played.begin(now)

        def choose(count: int, pick: int) -> None:
            trains, more = self._assignments.choose(played, count, pick)
            self._picks.add(more)
            if trains:
                self._journal.event("refilled", " ".join(trains), round_id=played.id)
                self._player.ask(played, trains, self._versions.vector)

        async with anyio.create_task_group() as group:
            refill = AsyncDispatcher(
                self._player, self._registry, self._config, self._journal.now, choose
            )
            group.start_soon(refill.run, played, name="coordinator.async_dispatch")
            await self._player.play(played, trains, merging, self._versions.vector)
            group.cancel_scope.cancel()
        if played.is_void:
            self._journal.event("void", "no device was available", round_id=played.id)
            await self._fleet.wait_change(self._config.round.void_wait_s)

    def _opened(self, round_id: int) -> tuple[Round, Merging]:
        """Return the table of a round and its merge, as the round before has left them."""
        if self._open is None:
            room = slots(self._agreement.memory_bytes)
            played = first_table(self._config, round_id, self._attempt, room)
            self._open = played, Merging(None, self._registry)
            self._player.open(*self._open)
        return self._open

    def _hand_over(self, played: Round) -> tuple[list[Exchange], set[str]]:
        """Close a table and open the next; return what is over, and whose updates are merged.

        Nothing may be waited for in between: what arrives is in the one or in the other.
        """
        if played.id == self._config.rounds:
            self._player.give_up("the run is over")
        over = [x for x in played.everybody() if x.is_over]
        merged = {x.device for x in over if x.stage is ExchangeState.DONE}
        self._open = played.successor(played.version + bool(merged)), Merging(None, self._registry)
        self._player.open(*self._open)
        return over, merged

    async def _close(
        self, choice: Choice, played: Round, dispatched: float, merging: Merging
    ) -> None:
        """Merge, learn, write down, evaluate."""
        ended, lag = self._journal.now(), self._lag.p99_s()
        over, aggregated = self._hand_over(played)
        asked = self._assignments.close(over)
        pulled = pulled_blobs(asked, played)
        if aggregated:
            merged = (await merging.finish()).vector
            await self._versions.publish(merged, self._decisions.encoding_stream(played.id), pulled)
        else:
            await self._versions.retire_all_but(pulled)
        if played.exchanges and not aggregated:
            self._journal.event(
                "void", "no update arrived; the model stays", level="warning", round_id=played.id
            )
        closed = self._closed = self._journal.now()
        self._decisions.learn(
            choice,
            Observations.of(
                [
                    observation(
                        x,
                        self._registry[x.device].row,
                        lag,
                        asked[x.device, x.round].context_before(played.id),
                    )
                    for x in over
                ]
            ),
        )
        self._name_frozen(played.id)
        self._registry.close_round(
            played.exchanges,
            trained=[x.device for x in over if x.offer is not None],
            draining=[x.device for x in over if x.stage in DRAINING],
            over=[x.device for x in over if played.find(x.device) is x],
        )
        selections = selection_rows(choice, self._registry.names(), self._decisions, aggregated)
        rows = [
            exchange_row(
                x,
                played,
                asked[x.device, x.round].known,
                train=asked[x.device, x.round].train,
                dispatched_at_s=self._journal.at_s(x.dispatched),
                lag_p99_s=lag,
                has_answered=asked[x.device, x.round].has_answered,
            )
            for x in [*over, *(x for x in played.exchanges.values() if x.goes_on)]
        ]
        row = round_row(
            played,
            over,
            self._journal.at_s(dispatched),
            self._journal.at_s(ended),
            self._journal.at_s(closed),
            is_available=choice.is_available,
            queues=self._decisions.selector.queues(len(choice.is_available)),
            lag_p99_s=lag,
            bytes_down=sum(row.bytes_down for row in rows[: len(over)]) + self._inquiry.bytes_down,
            other_bytes=self._traffic.take(),
            model_sha256=_hash_of(self._versions.manifest),
            coordinator_encode_s=self._versions.encode_s if aggregated else None,
            loss_query_s=self._inquiry.lasted_s(dispatched),
        )
        more: list[Record] = [*fleet_rows(choice), *self._inquiry.rows]
        for extra in more:
            self._journal.add(extra)
        model = self._versions.vector
        await anyio.to_thread.run_sync(
            self._journal.store.close_round, row, selections, rows, self.checkpoint(), model
        )
        metric = None
        is_due = self._config.evaluation.is_due(played.id, self._config.rounds)
        if self._evaluator is not None and is_due:
            metric = await evaluate_fleet(
                self._evaluator, self._journal, played.id, self._versions.vector
            )
        self._listener(RoundProgress(round=row, cohort=tuple(played.exchanges), metric=metric))

    def _name_frozen(self, round_id: int) -> None:
        frozen = {self._registry.names()[row] for row in self._decisions.frozen()}
        for name in sorted(frozen - self._frozen):
            self._journal.event(
                "frozen",
                "fails time and again; its queue stands still until it succeeds",
                level="warning",
                device=name,
                round_id=round_id,
            )
        self._frozen = frozen

    def checkpoint(self) -> bytes:
        """Return what a restarted coordinator needs beside the model."""
        return msgspec.msgpack.encode(
            {"decisions": self._decisions.to_state(), "registry": self._registry.to_state()}
        )

    def restore(self, state: bytes) -> None:
        """Take over a checkpoint."""
        kept = msgspec.msgpack.decode(state)
        self._registry.load_state(kept["registry"])
        self._decisions.load_state(kept["decisions"])

    def _begin_merge(self, round_id: int, merging: Merging) -> None:
        layout, now = self._task.layout, self._versions.vector
        accumulator = self._decisions.begin_merge(
            round_id,
            now,
            layout.n_params,
            lambda: UpdateStore(self._journal.store.folder, layout.n_values),
        )
        merging.begin(accumulator, now, layout.n_params, self._decisions.lateness)


def _hash_of(manifest: Manifest) -> str:
    return manifest.sha256.hex() if manifest.sha256 is not None else ""
