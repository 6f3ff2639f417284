"""The run of rounds: wait for the fleet, choose, play, merge, write down, evaluate, again."""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.to_thread
import msgspec

from coordinator.accounting import (
    Before,
    before,
    exchange_row,
    fleet_rows,
    observation,
    round_row,
    selection_rows,
)
from coordinator.algorithms.arrays import Vector
from coordinator.asker import Asker
from coordinator.blobs import PublicBlobs
from coordinator.coding import Agreement
from coordinator.config import CoordinatorConfig
from coordinator.decisions import Choice, Decisions
from coordinator.fleet import Fleet
from coordinator.grades import metric_rows
from coordinator.inquiry import Inquiry
from coordinator.journal import Journal
from coordinator.lag import LagMeter
from coordinator.merging import Merging
from coordinator.play import Player, slots
from coordinator.ports import Evaluator
from coordinator.round import Round, Stage
from coordinator.store.records import MetricRow, Record, RoundRow
from coordinator.traffic import Traffic
from coordinator.update_store import UpdateStore
from coordinator.versions import Versions
from wire.artifact import TaskSpec
from wire.messages import Manifest, Train

_DRAINING = frozenset({Stage.LATE, Stage.CANCELLED, Stage.LOST})


class FleetMissingError(Exception):
    """Too few devices joined in time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A closed round, for whoever watches."""

    round: RoundRow
    cohort: tuple[str, ...]
    metric: MetricRow | None


class Campaign:
    """Plays the rounds of one run; pausing acts between rounds, stopping at once."""

    def __init__(
        self,
        config: CoordinatorConfig,
        task: TaskSpec,
        vector: Vector,
        decisions: Decisions,
        fleet: Fleet,
        *,
        player: Player,
        asker: Asker,
        public: PublicBlobs,
        journal: Journal,
        lag: LagMeter,
        traffic: Traffic,
        evaluator: Evaluator | None,
        listener: Callable[[Progress], None],
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
        self._versions = Versions(
            self._agreement,
            vector,
            public,
            fleet.registry,
            journal,
            max_chunk_bytes=max_chunk_bytes,
        )
        self._inquiry = Inquiry(config, decisions, fleet.registry, self._versions, asker, journal)
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
        now = self._journal.now()
        choice = self._decisions.choose(
            round_id, self._registry, self._versions.transfer_bits(), now, answers=answers
        )
        names = [self._registry.names()[row] for row in choice.rows.tolist()]
        self._inquiry.dismiss(round_id, names)
        known = {name: before(self._registry[name], choice, now) for name in names}
        played = Round(
            id=round_id,
            attempt=self._attempt,
            deadline_s=self._config.round.deadline_s,
            slots=slots(self._agreement.memory_bytes),
            wanted=self._config.selection.per_round,
        )
        merging, trains = self._begin_merge(round_id), self._trains(choice, names)
        self._registry.open_round(names, round_id)
        self._lag.start()
        if names:
            self._journal.event("dispatched", " ".join(names), round_id=round_id)
            await self._player.play(played, trains, merging, self._versions.vector)
            now = next(iter(played.exchanges.values())).dispatched
        else:
            self._journal.event("void", "no device was available", round_id=round_id)
            await self._fleet.wait_change(self._config.round.void_wait_s)
        await self._close(choice, played, known, trains, now, merging)

    async def _close(
        self,
        choice: Choice,
        played: Round,
        known: dict[str, Before],
        trains: dict[str, Train],
        dispatched: float,
        merging: Merging,
    ) -> None:
        """Merge, learn, write down, evaluate."""
        ended, lag = self._journal.now(), self._lag.p99_s()
        exchanges = list(played.exchanges.values())
        aggregated = {x.device for x in exchanges if x.stage is Stage.DONE}
        self._note_versions(played)
        if aggregated:
            merged = (await merging.finish()).vector
            await self._versions.publish(merged, self._decisions.encoding_stream(played.id))
        elif exchanges:
            self._journal.event(
                "void", "no update arrived; the model stays", level="warning", round_id=played.id
            )
        closed = self._journal.now()
        self._decisions.learn(
            choice, [observation(x, self._registry[x.device].row, lag) for x in exchanges]
        )
        self._name_frozen(played.id)
        self._registry.close_round(
            known,
            trained=[x.device for x in exchanges if x.offer is not None],
            draining=[x.device for x in exchanges if x.stage in _DRAINING],
        )
        selections = selection_rows(choice, self._registry.names(), self._decisions, aggregated)
        rows = [
            exchange_row(
                x,
                played,
                known[x.device],
                train=trains[x.device],
                dispatched_at_s=self._journal.at_s(x.dispatched),
                lag_p99_s=lag,
                has_answered=x.device in self._inquiry.answered,
            )
            for x in exchanges
        ]
        row = round_row(
            played,
            self._journal.at_s(dispatched),
            self._journal.at_s(ended),
            self._journal.at_s(closed),
            selections=selections,
            lag_p99_s=lag,
            bytes_down=sum(x.bytes_down for x in rows) + self._inquiry.bytes_down,
            other_bytes=self._traffic.take(),
            model_sha256=_hash_of(self._versions.manifest),
            coordinator_encode_s=self._versions.encode_s if aggregated else None,
            ask_s=self._inquiry.lasted_s(dispatched),
        )
        self._player.finish()
        more: list[Record] = [*fleet_rows(choice), *self._inquiry.rows]
        for extra in more:
            self._journal.add(extra)
        model = self._versions.vector
        await anyio.to_thread.run_sync(
            self._journal.store.close_round, row, selections, rows, self.checkpoint(), model
        )
        metric = await self._evaluate(played.id)
        self._listener(Progress(round=row, cohort=tuple(known), metric=metric))

    def _note_versions(self, played: Round) -> None:
        """Remember who has this version, and whose update enters the next."""
        for exchange in played.exchanges.values():
            device = self._registry[exchange.device]
            if exchange.offer is not None:
                device.holds = self._versions.manifest.sha256
            if exchange.stage is Stage.DONE:
                device.merged_round = played.id

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

    def _trains(self, choice: Choice, names: list[str]) -> dict[str, Train]:
        hyperparameters = self._config.training.hyperparameters(choice.round)
        return {
            name: Train(
                round=choice.round,
                attempt=self._attempt,
                model=self._versions.manifest,
                hyperparameters=hyperparameters,
                seed=self._decisions.training_seed(choice.round, self._registry[name].row),
                needs_loss=self._decisions.aggregator.needs_loss,
                deadline_s=self._config.round.deadline_s,
                coding=self._versions.coding(self._registry[name]),
            )
            for name in names
        }

    def _begin_merge(self, round_id: int) -> Merging:
        layout = self._task.layout
        accumulator = self._decisions.begin_merge(
            round_id,
            self._versions.vector,
            layout.n_params,
            lambda: UpdateStore(self._journal.store.folder, layout.n_values),
        )
        return Merging(accumulator, self._registry)

    async def _evaluate(self, round_id: int) -> MetricRow | None:
        is_due = self._config.evaluation.is_due(round_id, self._config.rounds)
        if self._evaluator is None or not is_due:
            return None
        started = self._journal.now()
        try:
            scores = await anyio.to_thread.run_sync(
                self._evaluator.evaluate, self._versions.vector, abandon_on_cancel=True
            )
        except Exception as exc:  # off the record: whatever went wrong, the training goes on
            self._journal.event(
                "not evaluated",
                f"{type(exc).__name__}: {exc}",
                level="warning",
                round_id=round_id,
            )
            return None
        took_s = self._journal.now() - started
        devices, metric = metric_rows(round_id, scores, self._journal.at_s(), took_s)
        for row in devices:
            self._journal.add(row)
        if metric is not None:
            self._journal.add(metric)
        return metric


def _hash_of(manifest: Manifest) -> str:
    return manifest.sha256.hex() if manifest.sha256 is not None else ""
