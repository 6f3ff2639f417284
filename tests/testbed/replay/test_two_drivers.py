"""The two drivers of a round's script tell one story: the same events, decisions, rows, states.

A replay is recorded. Then devices that only repeat it, at the recorded instants and with the
recorded updates, are the fleet of a live coordinator, on a clock that moves by its timers alone.
"""

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.coordinator.policy.config import (
    CoordinatorConfig,
    EvaluationConfig,
    PersonalisationConfig,
    RoundConfig,
    SelectionConfig,
)
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.ports import Score
from fairbed.coordinator.rounds import loop_lag
from fairbed.coordinator.state.exchange import DRAINING
from fairbed.coordinator.store import Checkpoint, NewRun, Store
from fairbed.testbed.replay.checkpointer import Checkpointer
from fairbed.testbed.replay.cohort.base import CohortJob, CohortResult, CohortRule
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.engine.training import PersonalScoreOf
from fairbed.testbed.replay.learning import Learning
from fairbed.testbed.replay.world.linear import LinearLaw, LinearWorld
from fairbed.testbed.replay.world.world import (
    Exchanges,
    FleetSnapshot,
    LastRound,
    ReplayedExchange,
)
from fairbed.wire.artifact import initial_vector
from fairbed.wire.chunks import chunk_slice, encode_chunk
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.errors import Disconnected
from fairbed.wire.evaluation import Quality
from fairbed.wire.messages import (
    DEVICE_PHASES,
    CoordinatorStatus,
    EvaluateReply,
    EvaluateRequest,
    Grant,
    Hello,
    Hyperparameters,
    Manifest,
    Message,
    Offer,
    PersonalScore,
    Phases,
    Train,
    UploadDone,
)
from fairbed.wire.tensors import vector_to_bytes
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from tests.coordinator.builders import CAPABILITIES, context
from tests.coordinator.lab import ARTIFACT, EXAMPLES, NAMES, Lab, NormEvaluator, lab, make_config
from tests.idle_time import StillLoop, busy_threads_counted

SIZE = ARTIFACT.spec.layout.size_bytes
CORES = (1.0, 2.0, 0.5)
"""Free cores of each device."""
RATES_BPS = (8e4, 4e4, 1.6e5)
"""Of its link, both ways."""
CHUNK_BYTES = 32 * 1024
REPORT_S = 0.5
"""Time between two reports of a device; every round is longer."""
OWN = Quality(correct=3)
"""Of a personal model on its held-out examples."""

ROUNDS = 6
RBCS_F = SelectionConfig(policy="rbcs-f", estimator="ridge", per_round=2, beta=0.3)
WHOLE_FLEET = SelectionConfig(policy="uniform", estimator="ridge", per_round=len(NAMES))

RULES: dict[str, Any] = {"min_devices": len(NAMES), "join_timeout_s": 30.0}
CASES: dict[str, dict[str, Any]] = {
    "synchronous": {"selection": RBCS_F, "round": {"deadline_s": 60.0}},
    "over-selected, with a deadline": {
        "selection": structs.replace(RBCS_F, audit=0.3, miss_limit=2),
        "round": {"deadline_s": 4.5, "over_select": 1},
    },
    "late updates": {"selection": WHOLE_FLEET, "round": {"deadline_s": 3.3, "late": "merge"}},
    "asynchronous": {
        "selection": WHOLE_FLEET,
        "round": {"mode": "async", "buffer": 2, "concurrency": 3, "deadline_s": 100.0},
    },
    "loss queries": {
        "selection": SelectionConfig(
            policy="power-of-choice",
            estimator="ridge",
            variant="pow-d",
            per_round=1,
            candidates=3,
            loss_query_timeout_s=2.3,
        ),
        "round": {"deadline_s": 60.0},
    },
    "personal models": {
        "selection": RBCS_F,
        "round": {"deadline_s": 60.0},
        "personalisation": PersonalisationConfig(method="ditto"),
        "evaluation": EvaluationConfig(every=1),
    },
}

LIVE_ONLY = {
    "round": {
        "close_s",  # instants of two clocks differ in their last bits, so 0 is 1e-16
        "bytes_down",  # with those of contexts and other messages
        "bytes_up",
        "lag_p99_s",
        "model_sha256",  # compared as a vector
    },
    "exchange": {
        "unaccounted_s",  # 0 is 1e-16
        "signal_s",
        "train_cpu_s",
        "contended_s",
        "link_age_s",
        "context_age_s",
        "coordinator_decode_s",
        "lag_s",
        "steps",
    },
    "fleet_context": {"expected_tau_s"},  # only a simulated world has it
    "metric": {"evaluate_s"},
    "loss_query": set[str](),
    "selection": set[str](),
    "personal_score": set[str](),
}
"""Columns that only one of the two has, by table."""

OFFERED = ("n_k", "was_cold", "bytes_up", "loss_train")
"""Columns of an exchange that a live coordinator knows from its offer on."""

INSTANTS = ("at_s", "dispatched_at_s", "closed_at_s")
"""Of clocks that begin at different instants."""


class StubTrainer:
    """A training that depends on its seed alone, and keeps each update by its seed."""

    name, spec = "stub", ARTIFACT.spec

    def __init__(self) -> None:
        self.updates: dict[int, Vector] = {}
        self.losses_by_seed: dict[int, float] = {}

    def train(
        self,
        vector: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None = None,
        rule: CohortRule | None = None,
        states: Vector | None = None,
    ) -> Iterator[CohortResult]:
        """Yield one result of all jobs."""
        noise = [np.random.default_rng(job.seed).standard_normal(vector.size) for job in jobs]
        trained = (0.9 * vector + 0.1 * np.array(noise)).astype(np.float32)
        losses = np.abs(trained).mean(axis=1).astype(np.float64)
        for job, update, loss in zip(jobs, trained, losses.tolist(), strict=True):
            self.updates[job.seed], self.losses_by_seed[job.seed] = update.copy(), loss
        k = len(jobs)
        yield CohortResult(np.arange(k), trained, np.ones(k, dtype=np.int64), losses, ("",) * k)

    def losses(self, vector: Vector, devices: Sequence[int]) -> Floats:
        """Return losses that differ between devices and versions."""
        at = np.array(devices, dtype=np.float64)
        return 2.0 + np.sin(7.0 * at + float(np.abs(vector).sum()))

    def close(self) -> None:
        """Do nothing."""


class StubLearning(Learning):
    """With scores of personal models that depend on round and device."""

    personal_of: dict[tuple[int, int], float]
    trained_now: list[tuple[int, int]]

    def train(self, round_id: int, version: int, batches: Any, needed: Any) -> Any:
        """Note who trains."""
        self.trained_now = [(one.round, row) for one in batches for row in one.rows.tolist()]
        return super().train(round_id, version, batches, needed)

    def score_personal(self) -> None:
        """Score every personal model that was trained."""
        self.personal_scores = [
            PersonalScoreOf(of, row, Score(10, OWN, 10.0 * personal_loss(of, row)))
            for of, row in self.trained_now
        ]


def personal_loss(round_id: int, row: int) -> float:
    return 1.0 + 0.125 * round_id + 0.5 * row


class MeasuredWorld(LinearWorld):
    """Devices whose contexts do not change, and that have measured their links."""

    def __init__(self) -> None:
        laws = [
            LinearLaw(
                theta=(1.6, 0.7, 0.25),
                mu=(cores, cores),
                bandwidth_bps=(rate, rate),
                availability=1.0,
                noise=0.35,
            )
            for cores, rate in zip(CORES, RATES_BPS, strict=True)
        ]
        examples = np.full(len(laws), EXAMPLES, dtype=np.int64)
        super().__init__(laws, 8.0 * SIZE, 5, examples, query_ratio=0.5)
        self._free_at: Floats = np.full(len(laws), -np.inf)

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """Sizes of the model both ways."""
        return 8.0 * SIZE, 8.0 * SIZE

    def observe(self, round_id: int, now: float, last: LastRound) -> FleetSnapshot:
        """Return the fleet with the measured rates."""
        fleet, rates = super().observe(round_id, now, last), np.array(RATES_BPS)
        is_available = fleet.is_available & (now >= self._free_at)
        return replace(fleet, is_available=is_available, down_bps=rates, up_bps=rates)

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Wait for the next report of devices that may still be at work."""
        for x in exchanges:
            if x.entry.state in DRAINING:
                self._free_at[x.row] = x.started_s + x.over_s + REPORT_S

    def on_replies(
        self, now: float, queries: Exchanges, rows: Ints, over_s: Floats, has_replied: Bools
    ) -> None:
        """Wait for the next report of devices whose reply is late, too."""
        super().on_replies(now, queries, rows, over_s, has_replied)
        late = rows[~has_replied]
        self._free_at[late] = now + over_s[~has_replied] + REPORT_S

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return exchanges of the model."""
        return self._of_model(super().exchange(round_id, now, rows))

    def loss_query(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return queries for which devices download the model."""
        return self._of_model(super().loss_query(round_id, now, rows))

    @staticmethod
    def _of_model(planned: Exchanges) -> Exchanges:
        size = np.full(len(planned.was_cold), SIZE, dtype=np.int64)
        chunk = np.full(len(size), CHUNK_BYTES, dtype=np.int64)
        return replace(
            planned, is_upload_seen=True, bytes_down=size, bytes_up=size, chunk_bytes=chunk
        )


@dataclass
class Recording:
    """What each device did in a replay."""

    exchanges: dict[tuple[int, str], ReplayedExchange] = field(default_factory=dict)
    """By round and device."""
    replies: dict[tuple[int, str], tuple[float, EvaluateReply]] = field(default_factory=dict)
    """Duration and reply of each loss query."""
    trainer: StubTrainer = field(default_factory=StubTrainer)


class QueryRecorder(MeasuredWorld):
    """Records the durations of loss queries, also of those without a reply in time."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: dict[tuple[int, int], Exchanges] = {}

    def loss_query(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Record the queries."""
        planned = super().loss_query(round_id, now, rows)
        for at, row in enumerate(rows.tolist()):
            self.queries[round_id, row] = replace(
                planned,
                **{
                    f"{phase}_s": getattr(planned, f"{phase}_s")[[at]]
                    for phase in ("signal", *DEVICE_PHASES)
                },
                was_cold=planned.was_cold[[at]],
            )
        return planned


def replayed(folder: Path, config: CoordinatorConfig) -> tuple[Recording, Path]:
    """Replay an experiment into a store; return what its devices did, and the folder."""
    recording, decisions, world = Recording(), make_decisions(config), QueryRecorder()
    found_losses: dict[tuple[int, int], float] = {}

    class Recorded(StubLearning):
        def queried_losses(self, round_id: int, rows: Ints, examples: int | None) -> Floats:
            losses = super().queried_losses(round_id, rows, examples)
            found_losses.update(
                ((round_id, row), loss)
                for row, loss in zip(rows.tolist(), losses.tolist(), strict=True)
            )
            return losses

    vector = initial_vector(ARTIFACT.spec, config.seed_init)
    learning = Recorded(decisions, recording.trainer, NormEvaluator(), vector, folder)
    engine = ReplayEngine(decisions, world, cohort=learning, explains=True)
    new = NewRun(
        run_id="r",
        name="r",
        experiment_toml="",
        seed=1,
        config_hash="",
        version="0",
        clock="virtual",
    )
    store = Store.create(folder / "replay", new)
    with closing(store):
        checkpointer = Checkpointer(store, NAMES, engine, checkpoint_s=0.0)
        for one in engine.replay(config.rounds):
            checkpointer.write(one)
            for x in one.exchanges:
                recording.exchanges[x.round, NAMES[x.row]] = x
        checkpointer.finish()
    for (round_id, row), planned in world.queries.items():
        recording.replies[round_id, NAMES[row]] = (
            float(planned.ready_s[0]),
            EvaluateReply(
                round=round_id,
                model=bytes(32),
                loss=found_losses[round_id, row],
                n=EXAMPLES,
                was_cold=bool(planned.was_cold[0]),
                download_s=float(planned.download_s[0]),
                decode_s=float(planned.decode_s[0]),
                load_s=float(planned.load_s[0]),
                evaluate_s=float(planned.evaluate_s[0]),
            ),
        )
    return recording, folder / "replay"


class Repeater:
    """A device that repeats what it did in a replay."""

    def __init__(self, name: str, recording: Recording) -> None:
        self.name, self.row = name, NAMES.index(name)
        self._recording, self._topics = recording, Topics()
        self._uploads: dict[bytes, tuple[Train, Manifest, bytes, float]] = {}

    async def run(self, place: Lab) -> None:
        """Join, report the same context every second, and handle packets."""
        self.link = place.links.transport(self.name)
        async with self.link, anyio.create_task_group() as group:
            group.start_soon(self._report)
            async for event in self.link.events():
                if isinstance(event, LinkUp):
                    mine = (self._topics.control(self.name), self._topics.coordinator)
                    await self.link.subscribe(*mine, qos=1)
                elif isinstance(event, Packet):
                    group.start_soon(self._on_message, decode_to_device(event.payload))

    async def _send(self, message: Message) -> None:
        await self.link.publish(self._topics.up(self.name), encode(message), qos=1)

    async def _report(self) -> None:
        seq, rate = 0, RATES_BPS[self.row]
        while True:
            seq += 1
            message = context(
                seq, mu_cores=CORES[self.row], downlink_bps=rate, uplink_bps=rate, n_k=EXAMPLES
            )
            with suppress(Disconnected):
                await self.link.publish(self._topics.telemetry(self.name), encode(message))
            await anyio.sleep(REPORT_S)

    async def _on_message(self, message: object) -> None:
        match message:
            case CoordinatorStatus(state="on"):
                capabilities = structs.replace(CAPABILITIES, skills=("loss", "personal"))
                await self._send(Hello(boot=1, capabilities=capabilities))
            case EvaluateRequest():
                took_s, reply = self._recording.replies[message.round, self.name]
                await anyio.sleep(took_s)
                model = message.model.sha256
                assert model is not None
                await self._send(structs.replace(reply, attempt=message.attempt, model=model))
            case Train():
                await self._train(message)
            case Grant():
                await self._upload(message)

    async def _train(self, train: Train) -> None:
        x = self._recording.exchanges[train.round, self.name]
        if x.ready_s == np.inf:
            return
        await anyio.sleep(x.ready_s)
        trainer = self._recording.trainer
        if train.seed not in trainer.updates:
            return  # its update did not count, so that the replay did not compute it
        data = bytes(vector_to_bytes(trainer.updates[train.seed]))
        update = Manifest(
            id=hashlib.sha256(data).digest()[:16],
            kind="update",
            size_bytes=len(data),
            chunk_bytes=CHUNK_BYTES,
        )
        self._uploads[update.id] = train, update, data, x.upload_s
        phases = {f"{phase}_s": getattr(x, f"{phase}_s") for phase in DEVICE_PHASES}
        assert train.model.sha256 is not None
        await self._send(
            Offer(
                round=train.round,
                attempt=train.attempt,
                manifest=update,
                model=train.model.sha256,
                phases=Phases(**phases, train_cpu_s=0.0),
                n_k=EXAMPLES,
                steps=1,
                was_cold=x.was_cold,
                loss_train=trainer.losses_by_seed[train.seed],
            )
        )
        if train.wants_score:
            loss = personal_loss(train.round, self.row)
            await self._send(PersonalScore(round=train.round, n=10, correct=3, loss=loss))

    async def _upload(self, grant: Grant) -> None:
        train, update, data, upload_s = self._uploads[grant.id]
        await anyio.sleep(upload_s)
        for index in range(update.chunk_count):
            frame = encode_chunk(update.id, index, data[chunk_slice(update, index)])
            await self.link.publish(self._topics.upload(self.name), frame)
        assert train.model.sha256 is not None
        await self._send(
            UploadDone(
                round=train.round,
                id=update.id,
                sha256=hashlib.sha256(data).digest(),
                model=train.model.sha256,
            )
        )


def lived(folder: Path, config: CoordinatorConfig, recording: Recording) -> Path:
    """Run the same experiment live, with devices that repeat the replay; return its folder."""

    async def run() -> None:
        async with lab(folder, agents=0, limit_s=1e6) as place, anyio.create_task_group() as group:
            place.device_names = NAMES
            for name in NAMES:
                place.shards.shard(name)
                group.start_soon(Repeater(name, recording).run, place)
            assert await place.run(config) == "done"
            group.cancel_scope.cancel()

    with busy_threads_counted():
        anyio.run(run, backend_options={"loop_factory": StillLoop})
    return folder / "run"


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, by name of the column."""
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]
    return sorted(rows, key=lambda row: [str(row.get(key)) for key in ("round", "device")])


def checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint of a run."""
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.execute("UPDATE run SET status = 'stopped'")
        connection.commit()
    with closing(Store.reopen(folder)) as store:
        found = store.last_checkpoint()
    assert found is not None
    return found


def comparable(rows: Sequence[Mapping[str, Any]], left_out: set[str]) -> list[dict[str, Any]]:
    """Return rows without some columns, and with instants from that of the first row on."""
    first: dict[str, float] = {}
    kept: list[dict[str, Any]] = []
    for row in rows:
        one = {key: numbers(value) for key, value in row.items() if key not in left_out}
        for key in INSTANTS:
            if one.get(key) is not None:
                one[key] -= first.setdefault(key, one[key])
        if one.get("is_available") == 0:
            one["reason"] = "absent"  # a live coordinator knows more about it
        if "steady_up_s" in one and one["download_s"] is None:
            for key in OFFERED:
                del one[key]
        kept.append(one)
    return kept


def numbers(value: Any) -> Any:
    """Return a value with its columns of numbers as lists."""
    if isinstance(value, bytes) and value and len(value) % 8 == 0:
        return np.frombuffer(value, dtype=np.float64).tolist()
    if isinstance(value, list):
        return [numbers(one) for one in value]
    if isinstance(value, dict):
        return {key: numbers(one) for key, one in value.items()}
    return value


def nearly(value: Any) -> Any:
    """Return what equals a value of another clock, whose last bits differ."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-7, abs=1e-9, nan_ok=True)
    if isinstance(value, list):
        return [nearly(one) for one in value]
    if isinstance(value, dict):
        return {key: nearly(one) for key, one in value.items()}
    return value


@pytest.mark.parametrize("case", CASES)
def test_both_drivers_make_the_same_of_the_same_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    # A thread samples the lag in real time, which a clock that jumps would make large.
    monkeypatch.setattr(loop_lag, "PERIOD_S", 1e6)
    settings = dict(CASES[case])
    rules = RoundConfig(**RULES, **settings.pop("round"))
    config = make_config(ROUNDS, round=rules, **settings)
    recording, virtual = replayed(tmp_path, config)
    live = lived(tmp_path, config, recording)
    for name, left_out in LIVE_ONLY.items():
        expected, found = (comparable(table(of, name), left_out) for of in (virtual, live))
        assert found == nearly(expected), name
    mine, yours = checkpoint(virtual), checkpoint(live)
    assert mine.model.tobytes() == yours.model.tobytes(), "bit for bit"
    expected, found = (numbers(msgspec.msgpack.decode(one.state)) for one in (mine, yours))
    for key in ("decisions", "rounds_empty"):
        assert found[key] == nearly(expected[key])
    virtual_state = msgspec.msgpack.decode(mine.state)
    for here, there in (("selected_last", "is_selected"), ("trained_last", "has_trained")):
        of_registry = [device[here] for device in found["registry"]]
        assert of_registry == np.frombuffer(virtual_state[there], dtype=np.bool_).tolist()
