"""Selections that need losses: queries to real agents, false replies and silent devices."""

import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import ExchangeConfig, RoundConfig, SelectionConfig
from fairbed.coordinator.policy.decisions import MAX_LOSS
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.rounds.loop import NothingAggregatedError
from fairbed.coordinator.store.tables import LossQueryRow
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.wire.artifact import initial_vector
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.messages import Cancel, CoordinatorStatus, EvaluateReply, EvaluateRequest, Hello
from tests.coordinator import rogue
from tests.coordinator.builders import CAPABILITIES
from tests.coordinator.lab import (
    ARTIFACT,
    EXAMPLES,
    NAMES,
    PATIENT,
    WHOLE_FLEET,
    Lab,
    lab,
    make_config,
)

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

VECTOR_BYTES = ARTIFACT.spec.layout.size_bytes


def pow_d(per_round: int = 1, **changes: object) -> SelectionConfig:
    fields: dict[str, object] = {
        "policy": "power-of-choice",
        "variant": "pow-d",
        "per_round": per_round,
        "candidates": 3,
        "loss_query_timeout_s": 20.0,
    }
    return SelectionConfig(**(fields | changes))  # type: ignore[arg-type]


def prepare(place: Lab) -> None:
    """Start three devices whose rows and data do not depend on the order of joining."""
    place.device_names = NAMES
    for name in NAMES:
        place.shards.shard(name)
        place.start_agent(name)


def queries_of(place: Lab) -> dict[int, list[LossQueryRow]]:
    """Return the queries of each round."""
    with place.reader() as reader:
        rounds: dict[int, list[LossQueryRow]] = {}
        for row in reader.loss_queries():
            rounds.setdefault(row.round, []).append(row)
    return rounds


async def test_the_device_of_the_largest_loss_is_selected(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        prepare(place)
        config = make_config(rounds=4, selection=pow_d(), round=PATIENT)
        assert await place.run(config) == "done"
    losses = queries_of(place)
    assert list(losses) == [1, 2, 3, 4]
    assert all(sorted(row.device for row in rows) == list(NAMES) for rows in losses.values())
    engine, first = OnnxEngine(ARTIFACT), initial_vector(ARTIFACT.spec, config.seed_init)
    for row in losses[1]:
        shard = place.shards.shard(row.device)
        assert shard is not None
        total = engine.evaluate(first, *shard.arrays()).loss_sum
        assert row.loss == pytest.approx(total / EXAMPLES, rel=1e-5)
    with place.reader() as reader:
        for x in reader.exchanges():
            assert x.outcome == "done"
            worst = max(losses[x.round], key=lambda row: row.loss or 0.0)
            assert x.device == worst.device
        assert len(reader.exchanges()) == 4


async def test_the_download_is_counted_in_the_query_and_not_twice(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        prepare(place)
        config = make_config(rounds=3, selection=pow_d(per_round=2), round=PATIENT)
        assert await place.run(config) == "done"
    for rows in queries_of(place).values():
        assert {(row.outcome, row.bytes_down) for row in rows} == {("answered", VECTOR_BYTES)}
    with place.reader() as reader:
        exchanges, rounds = reader.exchanges(), reader.rounds()
        summary = summarise_run(reader)
    assert {x.bytes_down for x in exchanges} == {0}
    assert {x.was_cold for x in exchanges} == {False}
    assert [row.bytes_down >= 3 * VECTOR_BYTES for row in rounds] == [True] * 3
    for row in rounds:
        assert row.loss_query_s > 0.0
        parts = row.loss_query_s + row.tau_max_s + row.close_s
        assert row.duration_s == pytest.approx(parts, abs=1e-9)
        slowest = max(x.duration_s or 0.0 for x in queries_of(place)[row.round])
        assert row.loss_query_s >= slowest
    assert (
        summary.loss_queries.count,
        summary.loss_queries.answered,
        summary.loss_queries.late,
    ) == (9, 9, 0)
    assert summary.loss_queries.total_s == pytest.approx(sum(row.loss_query_s for row in rounds))
    assert "9 of 9 answered, 0 late" in summary_table(summary)


async def test_a_queried_device_trains_the_same_update(tmp_path: Path) -> None:
    """With d = m = N all devices are selected: the models are those of a run without queries."""
    models = []
    for number, selection in enumerate(
        (WHOLE_FLEET, pow_d(per_round=3), pow_d(3, variant="cpow-d"))
    ):
        async with lab(tmp_path / str(number), agents=0) as place:
            prepare(place)
            assert await place.run(make_config(rounds=3, selection=selection, round=PATIENT))
        with place.reader() as reader:
            models.append([row.model_sha256 for row in reader.rounds()])
    assert models[0] == models[1] == models[2]


@pytest.mark.parametrize(("up", "down"), [("int8", "delta"), ("top-k", "float16")])
async def test_an_encoded_model_is_the_same_after_its_evaluation(
    up: str, down: str, tmp_path: Path
) -> None:
    """The query pulls the packed blob, which becomes the base of the next one."""
    models, packed = [], set[int]()
    for number, selection in enumerate((WHOLE_FLEET, pow_d(per_round=3))):
        async with lab(tmp_path / str(number), agents=0) as place:
            prepare(place)
            exchange = ExchangeConfig(up=up, down=down)  # type: ignore[arg-type]
            config = make_config(rounds=4, selection=selection, round=PATIENT, exchange=exchange)
            assert await place.run(config) == "done"
        packed |= {row.bytes_down for rows in queries_of(place).values() for row in rows}
        with place.reader() as reader:
            models.append([row.model_sha256 for row in reader.rounds()])
            assert {x.outcome for x in reader.exchanges()} == {"done"}
    assert models[0] == models[1]
    assert min(packed) < VECTOR_BYTES


async def test_one_mini_batch_gives_another_loss_than_all_data(tmp_path: Path) -> None:
    found = []
    for variant in ("pow-d", "cpow-d"):
        async with lab(tmp_path / variant, agents=0) as place:
            prepare(place)
            selection = pow_d(variant=variant)
            assert await place.run(make_config(rounds=1, selection=selection, round=PATIENT))
        found.append([row.loss or 0.0 for row in queries_of(place)[1]])
    apart = np.abs(np.array(found[0]) - np.array(found[1]))
    assert np.all(apart > 1e-6)
    assert np.all(apart < 1.0)


class ScriptedDevice(rogue.Rogue):
    """A device with replies of its own to loss queries that trains like any other."""

    def __init__(self, script: "Script", skills: tuple[str, ...] = ("loss",)) -> None:
        super().__init__(rogue.behaves, report_s=0.02)
        self._script = script
        self._skills = skills
        self.request: EvaluateRequest
        self.cancels: list[Cancel] = []

    async def _on_packet(self, payload: bytes | memoryview) -> None:
        message = decode_to_device(payload)
        match message:
            case CoordinatorStatus(state="on"):
                capabilities = structs.replace(CAPABILITIES, skills=self._skills)
                await self.send(Hello(boot=1, capabilities=capabilities, n_k=40))
            case EvaluateRequest():
                self.request = message
                await self._script(self)
            case Cancel():
                self.cancels.append(message)
            case _:
                await super()._on_packet(payload)

    def reply(self, loss: float = 1.0, **changes: object) -> EvaluateReply:
        """Return a reply that is valid except for the changes."""
        fields: dict[str, object] = {
            "round": self.request.round,
            "attempt": self.request.attempt,
            "model": self.request.model.sha256,
            "n": 40,
            "was_cold": False,
            "download_s": 0.01,
            "decode_s": 0.0,
            "load_s": 0.0,
            "evaluate_s": 0.01,
        }
        return EvaluateReply(loss=loss, **(fields | changes))  # type: ignore[arg-type]


Script = Callable[[ScriptedDevice], Awaitable[None]]


async def play_with(
    script: Script,
    folder: Path,
    skills: tuple[str, ...] = ("loss",),
    limit_s: float = 2.0,
    rounds: int = 2,
) -> tuple[Lab, ScriptedDevice]:
    """Run rounds of one agent and one scripted device, of which one is selected."""
    device = ScriptedDevice(script, skills)
    async with lab(folder, agents=1) as place, anyio.create_task_group() as group:
        group.start_soon(device.run, place)
        config = make_config(
            rounds=rounds,
            selection=pow_d(loss_query_timeout_s=limit_s),
            round=RoundConfig(min_devices=1 if not skills else 2, join_timeout_s=30.0),
        )
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    return place, device


def events(place: Lab, kind: str) -> list[str]:
    with place.reader() as reader:
        return [e.text for _, e in reader.events() if e.kind == kind and e.device == "rogue"]


def selected(place: Lab) -> set[str]:
    with place.reader() as reader:
        return {x.device for x in reader.exchanges() if x.outcome == "done"}


async def test_a_device_that_reports_a_huge_loss_is_selected_and_the_loss_is_bounded(
    tmp_path: Path,
) -> None:
    async def report_a_huge_loss(device: ScriptedDevice) -> None:
        await device.send(device.reply(1e29))

    place, _ = await play_with(report_a_huge_loss, tmp_path)
    assert selected(place) == {"rogue"}
    assert events(place, "clamped")[0] == f"reports a loss of 1e+29; it counts as {MAX_LOSS:g}"
    raw = [row.loss for rows in queries_of(place).values() for row in rows if row.device == "rogue"]
    assert raw == [1e29, 1e29]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
async def test_a_loss_that_is_not_finite_is_a_bad_message(loss: float, tmp_path: Path) -> None:
    async def report(device: ScriptedDevice) -> None:
        body = encode(device.reply(0.5))
        fields = msgspec.msgpack.decode(body[1:])
        fields["loss"] = loss
        await device.raw(body[:1] + msgspec.msgpack.encode(fields))

    place, _ = await play_with(report, tmp_path)
    assert selected(place) == {"pi-0"}
    assert "loss" in events(place, "bad message")[0]
    outcomes = {row.outcome for rows in queries_of(place).values() for row in rows if row.reason}
    assert outcomes == {"late"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss": -1.0}, "answer: the loss must be at least 0, got -1"),
        ({"n": 0}, "answer: the loss must be of at least 1 example, got 0"),
        ({"pulled": bytes(16)}, "answer: the model must have come in a blob that was announced"),
    ],
)
async def test_a_faulty_reply_is_refused_at_once(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    async def report(device: ScriptedDevice) -> None:
        await device.send(structs.replace(device.reply(99.0), **changes))

    place, _ = await play_with(report, tmp_path, limit_s=30.0)
    assert selected(place) == {"pi-0"}
    rows = [row for rows in queries_of(place).values() for row in rows if row.device == "rogue"]
    assert [(row.outcome, row.reason) for row in rows] == [("refused", reason)] * 2
    with place.reader() as reader:
        assert max(row.loss_query_s for row in reader.rounds()) < 15.0


async def test_a_reply_to_another_query_is_ignored(tmp_path: Path) -> None:
    async def reply_to_others(device: ScriptedDevice) -> None:
        await device.send(device.reply(99.0, round=device.request.round + 7))
        await device.send(device.reply(99.0, attempt=5))

    place, _ = await play_with(reply_to_others, tmp_path)
    assert selected(place) == {"pi-0"}


async def test_silent_devices_cost_the_limit_and_are_cancelled(tmp_path: Path) -> None:
    async def send_nothing(device: ScriptedDevice) -> None: ...

    place, device = await play_with(send_nothing, tmp_path)
    assert selected(place) == {"pi-0"}
    assert set(events(place, "late")) == {"its loss query ended: no answer within 2 s"}
    assert device.cancels[0].round == 1
    late = {t for t, rows in queries_of(place).items() for row in rows if row.outcome == "late"}
    assert 1 in late  # it may still count as at work in the second round
    with place.reader() as reader:
        assert all(2.0 <= row.loss_query_s < 20.0 for row in reader.rounds() if row.round in late)


async def test_a_device_that_answers_no_loss_query_is_asked_three_times(tmp_path: Path) -> None:
    """Each query costs its limit, which no deadline and no estimator sees (issue #20)."""

    async def send_nothing(device: ScriptedDevice) -> None: ...

    place, _ = await play_with(send_nothing, tmp_path, rounds=60)
    asked = [row for rows in queries_of(place).values() for row in rows if row.device == "rogue"]
    assert [row.outcome for row in asked] == ["late"] * 3
    (text,) = events(place, "misses")
    assert text == "gave no loss 3 times in a row; it is queried again after 100 rounds"


async def test_a_device_that_reported_and_was_not_selected_may_drop_the_model(
    tmp_path: Path,
) -> None:
    async def report_no_loss(device: ScriptedDevice) -> None:
        await device.send(device.reply(0.0))

    place, device = await play_with(report_no_loss, tmp_path)
    assert selected(place) == {"pi-0"}
    assert {cancel.reason for cancel in device.cancels} == {"others were selected"}


async def test_an_agent_without_the_skill_is_never_queried_and_has_one_event(
    tmp_path: Path,
) -> None:
    async def fail(device: ScriptedDevice) -> None:
        raise AssertionError("an agent without the skill does not know this message")

    place, _ = await play_with(fail, tmp_path, skills=())
    assert selected(place) == {"pi-0"}
    assert events(place, "skill") == [
        "its agent cannot report a loss, which the selection needs, so it is never selected; "
        "update its agent"
    ]


async def test_without_replies_the_rounds_are_void(tmp_path: Path) -> None:
    async def send_nothing(device: ScriptedDevice) -> None: ...

    async with lab(tmp_path, agents=0) as place, anyio.create_task_group() as group:
        group.start_soon(ScriptedDevice(send_nothing).run, place)
        config = make_config(
            rounds=2,
            selection=pow_d(loss_query_timeout_s=0.3),
            round=RoundConfig(min_devices=1, join_timeout_s=30.0, void_wait_s=0.05),
        )
        with pytest.raises(NothingAggregatedError):
            await place.run(config)
        group.cancel_scope.cancel()
    with place.reader() as reader:
        assert [(row.status, row.selected) for row in reader.rounds()] == [("void", 0)] * 2
        assert all(row.duration_s >= row.loss_query_s for row in reader.rounds())
