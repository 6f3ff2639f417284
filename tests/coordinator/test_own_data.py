"""Devices with data of their own test the model after each round: scores, limits, lies, absence."""

import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import msgspec
import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import (
    CoordinatorConfig,
    EvaluationConfig,
    ExchangeConfig,
    PersonalisationConfig,
    RoundConfig,
    SelectionConfig,
)
from fairbed.coordinator.policy.decisions import MAX_LOSS
from fairbed.coordinator.report.quantities import ratio, size
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.rounds.own_data import LATE_TESTS, score_of
from fairbed.coordinator.store.tables import DeviceMetricRow, PersonalScoreRow
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.examples import OwnData
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.labels import Classes
from fairbed.wire.messages import (
    Cancel,
    CoordinatorStatus,
    EvaluateReply,
    EvaluateRequest,
    HeldOut,
    Hello,
)
from tests.coordinator import rogue
from tests.coordinator.builders import CAPABILITIES
from tests.coordinator.lab import ARTIFACT, Lab, lab, make_config
from tests.coordinator.server.test_service import send
from tests.wire.messages import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

HELD_OUT = HeldOut(fraction=0.25, seed=7)
OWN = ("own-0", "own-1")
N = 40
VECTOR_BYTES = ARTIFACT.spec.layout.size_bytes


def own_file(folder: Path, name: str, n: int = N, tests: int = 0) -> Path:
    """Write data of a device; with `tests` test examples in arrays of their own."""
    rng = np.random.default_rng(list(name.encode()))
    x = rng.standard_normal((n + tests, 60)).astype(np.float32)
    y = np.argmax(x[:, :10], axis=1)
    arrays = {"x_test": x[n:], "y_test": y[n:]} if tests else {}
    np.savez(folder / f"{name}.npz", x=x[:n], y=y[:n], **arrays)
    return folder / f"{name}.npz"


def start(place: Lab, folder: Path, names: Sequence[str] = OWN, tests: int = 0) -> None:
    """Start a device with a shard, and devices with own data."""
    place.device_names = ("pi-0", *names)
    place.start_agent("pi-0")
    for name in names:
        place.start_agent(name, own_file(folder, name, tests=tests))


def config(rounds: int = 3, devices: int = 3, **sections: object) -> CoordinatorConfig:
    return make_config(rounds, devices, **({"held_out": HELD_OUT} | sections))


def rows_of(place: Lab) -> dict[tuple[int, str], DeviceMetricRow]:
    """Return the scores of devices by round and name."""
    with place.reader() as reader:
        rounds = [row.round for row in reader.metrics()]
        rows = [row for round_id in rounds for row in reader.device_metrics(round_id)]
    return {(row.round, row.device): row for row in rows}


def events(place: Lab, kind: str, device: str | None = None) -> list[str]:
    with place.reader() as reader:
        found = [e for _, e in reader.events() if e.kind == kind]
    return [e.text for e in found if device in (None, e.device)]


# --- scores --------------------------------------------------------------------------------------


async def test_devices_with_own_data_have_an_accuracy_on_examples_that_they_do_not_train_on(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, agents=0) as place:
        start(place, tmp_path)
        assert await place.run(config(rounds=2)) == "done"
    rows = rows_of(place)
    assert sorted(rows) == [(r, name) for r in (1, 2) for name in (*OWN, "pi-0")]
    with place.reader() as reader:
        final, summary = reader.final_model(), summarise_run(reader)
        trained = {device.name: device.n_k for device in reader.devices()}
        assert [row.devices for row in reader.metrics()] == [3, 3]
    assert final is not None
    engine = OnnxEngine(ARTIFACT)
    for name in OWN:
        own = OwnData(tmp_path / f"{name}.npz", Classes.of(ARTIFACT), HELD_OUT, name)
        held_out = own.held_out()
        assert held_out is not None
        x, y = held_out
        loss_sum, correct, *_ = engine.evaluate(final[1], x, y)
        assert rows[2, name].n == len(y) == 10
        assert rows[2, name].accuracy == correct / len(y)
        assert rows[2, name].loss == pytest.approx(loss_sum / len(y), rel=1e-6)
        assert rows[2, name].bytes_down == VECTOR_BYTES
        assert trained[name] == 30
    assert rows[2, "pi-0"].bytes_down is None
    assert {row.accuracy for row in summary.fleet} == {row.accuracy for row in rows.values()}
    assert summary.evaluation_notes == [
        f"2 of 3 accuracies are reported by devices with own data; their downloads for tests, "
        f"{size(4 * VECTOR_BYTES)} so far, are not part of the traffic"
    ]
    mean = np.mean([rows[2, name].accuracy for name in (*OWN, "pi-0")])
    assert summary.accuracy.mean == pytest.approx(mean)


@pytest.mark.parametrize("down", ["float32", "delta"])
async def test_a_test_changes_neither_models_nor_downloads_nor_cold_starts(
    down: str, tmp_path: Path
) -> None:
    seen = []
    for number, held_out in enumerate((HELD_OUT, None)):
        folder = tmp_path / str(number)
        async with lab(folder, agents=0) as place:
            folder.mkdir(exist_ok=True)
            start(place, folder, tests=12)  # the same training examples with and without tests
            exchange = ExchangeConfig(up="int8", down=down)  # type: ignore[arg-type]
            selection = SelectionConfig(policy="uniform", per_round=1)
            run = config(6, held_out=held_out, exchange=exchange, selection=selection)
            assert await place.run(run) == "done"
        with place.reader() as reader:
            models = [(row.model_sha256, row.bytes_down) for row in reader.rounds()]
            exchanges = [
                (x.round, x.device, x.was_cold, x.codec_down, x.bytes_down, x.loss_train)
                for x in reader.exchanges()
            ]
        seen.append((models, exchanges))
        assert {device for _, device in rows_of(place)} == ({*OWN} if held_out else set()) | {
            "pi-0"
        }
    assert seen[0] == seen[1]


async def test_the_gap_is_no_part_of_a_round(tmp_path: Path) -> None:
    """A device that never replies costs the limit after each round, and nothing in it."""

    async def send_nothing(device: "ScriptedDevice") -> None: ...

    place, device = await play_with(send_nothing, tmp_path, limit_s=20.0)
    with place.reader() as reader:
        rounds, exchanges, metrics = reader.rounds(), reader.exchanges(), reader.metrics()
    assert [row.evaluate_s >= 20.0 for row in metrics] == [True, True]
    assert max(row.duration_s for row in rounds) < 10.0
    assert max(x.tau_s for x in exchanges if x.tau_s is not None) < 10.0
    assert {x.device for x in exchanges if x.round == 2} == {"own-0", "rogue"}, "it is available"
    assert sorted(rows_of(place)) == [(1, "own-0"), (2, "own-0")]
    assert events(place, "late", "rogue") == ["its test ended: no answer within 20 s"] * 2
    assert [cancel.round for cancel in device.cancels] == [1, 2]
    with place.reader() as reader:
        summary = summarise_run(reader)
    assert {row.name: row.accuracy is None for row in summary.fleet}["rogue"]


async def test_a_device_that_is_late_again_and_again_is_left_out(tmp_path: Path) -> None:
    async def send_nothing(device: "ScriptedDevice") -> None: ...

    place, device = await play_with(send_nothing, tmp_path, rounds=LATE_TESTS + 2)
    assert {request.round for request in device.requests} == set(range(1, LATE_TESTS + 1))
    (text,) = events(place, "not evaluated", "rogue")
    assert "late or lost 3 times in a row" in text
    assert "raise evaluation.timeout_s, got 2" in text


async def test_a_device_that_claims_a_restart_after_each_late_test_has_one_more_chance(
    tmp_path: Path,
) -> None:
    async def send_nothing(device: "ScriptedDevice") -> None: ...

    _, device = await play_with(send_nothing, tmp_path, rounds=LATE_TESTS + 4, restarts=True)
    assert {request.round for request in device.requests} == set(range(1, LATE_TESTS + 2))


async def test_without_the_skill_a_device_is_named_once_and_gets_no_unknown_field(
    tmp_path: Path,
) -> None:
    async def fail(device: "ScriptedDevice") -> None:
        raise AssertionError("an older agent does not know this message")

    place, device = await play_with(fail, tmp_path, skills=("loss",))
    assert events(place, "skill", "rogue") == [
        "its agent cannot test the model on its own data, so it has no accuracy; update its agent"
    ]
    assert sorted(rows_of(place)) == [(1, "own-0"), (2, "own-0")]
    assert all(b"held" not in payload for payload in device.packets)


async def test_own_data_off_asks_nobody_and_trains_on_all_examples(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        start(place, tmp_path)
        assert await place.run(config(rounds=1, held_out=None)) == "done"
    assert sorted(rows_of(place)) == [(1, "pi-0")]
    with place.reader() as reader:
        assert {row.name: row.n_k for row in reader.devices()} == dict.fromkeys((*OWN, "pi-0"), N)


SERVER = EvaluationConfig(own_data="server-test-set")


async def test_the_server_test_set_stands_for_devices_if_none_is_measured(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        place.evaluator.evaluate = lambda vector: {}  # type: ignore[method-assign]
        start(place, tmp_path)
        assert await place.run(config(1, held_out=None, evaluation=SERVER)) == "done"
    with place.reader() as reader:
        (metric,), summary = reader.metrics(), summarise_run(reader)
    assert (metric.test_n, metric.test_accuracy, metric.test_loss) == (100, 0.61, 1.0)
    assert (metric.devices, metric.accuracy_mean, metric.accuracy_pooled) == (0, 0.61, 0.61)
    known = summary.accuracy
    spread = (known.worst10, known.best10, known.variance, known.std, known.gini, known.gap)
    assert spread == (None,) * 6, "one test set has no spread over devices"
    assert (known.mean, known.test_set) == (0.61, 0.61)
    assert all(row.accuracy is None for row in summary.fleet)
    assert summary.evaluation_notes == [
        "3 of 3 devices have no accuracy in the latest evaluation (no held-out examples, or no "
        "result in time): pi-0 own-0 own-1",
        "accuracy on the server's test set of 100 examples, for all devices together: 0.610",
    ]
    unknown = ratio(None)
    line = f"accuracy   mean 0.610, worst 10 % {unknown}, best 10 % {unknown}, Gini {unknown}"
    assert line in summary_table(summary)


async def test_the_server_test_set_stands_beside_measured_devices(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        start(place, tmp_path)
        assert await place.run(config(1, held_out=None, evaluation=SERVER)) == "done"
    with place.reader() as reader:
        (metric,), summary = reader.metrics(), summarise_run(reader)
    assert (metric.devices, metric.accuracy_mean, metric.test_accuracy) == (1, 0.7, 0.61)
    assert summary.evaluation_notes[1] == (
        "accuracy on the server's test set of 100 examples, beside that of the devices: 0.610"
    )


async def test_only_due_rounds_are_tested(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        start(place, tmp_path)
        assert await place.run(config(5, evaluation=EvaluationConfig(every=2))) == "done"
    assert {round_id for round_id, _ in rows_of(place)} == {2, 4, 5}


async def test_asynchronous_rounds_are_tested_after_the_last(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        start(place, tmp_path)
        rounds = RoundConfig(
            mode="async", buffer=1, concurrency=3, min_devices=3, join_timeout_s=30.0
        )
        assert await place.run(config(4, round=rounds)) == "done"
    rows = rows_of(place)
    assert {r for r, name in rows if name in OWN} == {4}
    assert {name for r, name in rows if r == 4} == {*OWN, "pi-0"}


async def test_a_loss_query_and_a_test_follow_each_other(tmp_path: Path) -> None:
    selection = SelectionConfig(
        policy="power-of-choice", variant="pow-d", per_round=1, candidates=3
    )
    async with lab(tmp_path, agents=0) as place:
        start(place, tmp_path)
        assert await place.run(config(3, selection=selection)) == "done"
    assert len(rows_of(place)) == 9
    with place.reader() as reader:
        assert [x.outcome for x in reader.loss_queries()] == ["answered"] * 9
        assert {(x.was_cold, x.bytes_down) for x in reader.exchanges()} == {(False, 0)}


async def test_personal_models_are_scored_on_the_same_examples(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        start(place, tmp_path)
        selection = SelectionConfig(policy="uniform", per_round=3)
        ditto = PersonalisationConfig(method="ditto")
        run = config(2, selection=selection, personalisation=ditto)
        assert await place.run(run) == "done"
    with place.reader() as reader:
        scores = reader.columns(PersonalScoreRow, ("round", "device", "n"))
    assert sorted(scores) == [(r, name, 10) for r in (1, 2) for name in OWN]
    assert len(rows_of(place)) == 6


async def test_an_excluded_device_is_not_asked(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place, anyio.create_task_group() as group:
        start(place, tmp_path)

        def exclude(progress: RoundProgress) -> None:
            if progress.round.round == 1:
                group.start_soon(send, place, "exclude", "own-1")

        place.on_progress = exclude
        assert await place.run(config(6)) == "done"
    rows = rows_of(place)
    assert (1, "own-1") in rows
    assert {name for r, name in rows if r == 6} == {"own-0", "pi-0"}


async def test_a_device_that_leaves_during_its_test_has_no_score(tmp_path: Path) -> None:
    async def leave(device: "ScriptedDevice") -> None:
        device.leave.cancel()

    place, _ = await play_with(leave, tmp_path, limit_s=60.0)
    assert (1, "rogue") not in rows_of(place)
    assert (2, "own-0") in rows_of(place)
    (text,) = events(place, "lost", "rogue")
    assert text.startswith("its test ended: ")


async def test_a_run_stopped_during_a_test_makes_up_for_it(tmp_path: Path) -> None:
    async def stop_once(device: "ScriptedDevice") -> None:
        if len(device.requests) == 1:
            first.stop()
        else:
            await device.send(device.reply())

    device = ScriptedDevice(stop_once, ("test",))
    async with lab(tmp_path, agents=0) as place, anyio.create_task_group() as group:
        start(place, tmp_path, ["own-0"])
        group.start_soon(device.run, place)
        store = place.open_store()
        first = place.coordinator(config(3), store)
        assert await first.run() == "stopped"
        store.close()
        assert await place.run(config(3)) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        assert [row.round for row in reader.rounds()] == [1, 2, 3]
    assert {r for r, _ in rows_of(place)} == {1, 2, 3}
    assert {name for _, name in rows_of(place)} == {"own-0", "rogue", "pi-0"}


async def test_one_example_alone_is_for_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with lab(tmp_path, agents=0) as place:
        start(place, tmp_path, names=())
        place.start_agent("own-0", own_file(tmp_path, "own-0", n=1))
        assert await place.run(config(3, devices=2)) == "done"
    assert {name for _, name in rows_of(place)} == {"pi-0"}
    (text,) = events(place, "not evaluated", "own-0")
    assert text.startswith("it has no accuracy: its data must have 2 examples or more")
    (line,) = (x for x in caplog.messages if "no test example" in x)
    assert line.startswith("own-0: data: no test example, so the model has no accuracy")


# --- scripted devices ----------------------------------------------------------------------------


class ScriptedDevice(rogue.Rogue):
    """A device with own data that replies to tests by a script and trains like any other."""

    def __init__(
        self, script: "Script", skills: tuple[str, ...], *, restarts: bool = False
    ) -> None:
        super().__init__(rogue.behaves)
        self._script = script
        self._skills = skills
        self._restarts = restarts
        """It claims a restart after each test that was cancelled."""
        self.leave = anyio.CancelScope()
        self.requests: list[EvaluateRequest] = []
        self.cancels: list[Cancel] = []
        self.packets: list[bytes] = []

    async def run(self, lab: Lab) -> None:
        with self.leave:
            await super().run(lab)

    async def _on_packet(self, payload: bytes | memoryview) -> None:
        self.packets.append(bytes(payload))
        message = decode_to_device(payload)
        match message:
            case CoordinatorStatus(state="on"):
                await self._send_hello()
            case EvaluateRequest():
                self.requests.append(message)
                await self._script(self)
            case Cancel():
                self.cancels.append(message)
                if self._restarts:
                    self.boot += 1
                    await self._send_hello()
            case _:
                await super()._on_packet(payload)

    async def _send_hello(self) -> None:
        capabilities = structs.replace(CAPABILITIES, skills=self._skills)
        await self.send(Hello(boot=self.boot, capabilities=capabilities, n_k=N))

    def reply(self, **changes: object) -> EvaluateReply:
        """Return a reply that is valid except for the changes."""
        fields: dict[str, object] = {
            "round": self.requests[-1].round,
            "attempt": self.requests[-1].attempt,
            "model": self.requests[-1].model.sha256,
            "loss": 1.0,
            "n": 10,
            "correct": 5,
            "was_cold": False,
            "download_s": 0.01,
            "decode_s": 0.0,
            "load_s": 0.0,
            "evaluate_s": 0.01,
        }
        return EvaluateReply(**(fields | changes))  # type: ignore[arg-type]


Script = Callable[[ScriptedDevice], Awaitable[None]]


async def play_with(
    script: Script,
    folder: Path,
    skills: tuple[str, ...] = ("test",),
    limit_s: float = 2.0,
    rounds: int = 2,
    *,
    restarts: bool = False,
) -> tuple[Lab, ScriptedDevice]:
    """Run rounds of an agent with own data and a scripted device, which are both selected."""
    device = ScriptedDevice(script, skills, restarts=restarts)
    async with lab(folder, agents=0) as place, anyio.create_task_group() as group:
        place.evaluator.evaluate = lambda vector: {}  # type: ignore[method-assign]
        place.start_agent("own-0", own_file(folder, "own-0"))
        group.start_soon(device.run, place)
        run = config(
            rounds,
            devices=2,
            selection=SelectionConfig(policy="uniform", per_round=2),
            evaluation=EvaluationConfig(timeout_s=limit_s),
        )
        assert await place.run(run) == "done"
        group.cancel_scope.cancel()
    return place, device


@pytest.mark.parametrize(
    ("changes", "expected", "text"),
    [
        (
            {"n": 1 << 40, "correct": 1 << 39},
            (N, 0.5, 1.0),
            f"reports 1099511627776 test examples; they count as {N}",
        ),
        ({"loss": 1e29}, (10, 0.5, MAX_LOSS), "reports a loss of 1e+29; it counts as 1e+06"),
    ],
    ids=["examples", "loss"],
)
async def test_a_lie_is_bounded(
    changes: dict[str, object], expected: tuple[int, float, float], text: str, tmp_path: Path
) -> None:
    async def lie(device: ScriptedDevice) -> None:
        await device.send(device.reply(**changes))

    place, _ = await play_with(lie, tmp_path)
    row = rows_of(place)[2, "rogue"]
    assert (row.n, row.accuracy, row.loss) == expected
    assert text in events(place, "clamped", "rogue")


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("loss", math.nan, "bad message"),
        ("loss", -1.0, "refused"),
        ("correct", 11, "bad message"),
        ("correct", None, "refused"),
        ("pulled", bytes(16), "refused"),
        ("round", 9, None),
        ("attempt", 1, None),
    ],
)
async def test_a_reply_that_breaks_a_rule_is_no_score(
    field: str, value: object, kind: str | None, tmp_path: Path
) -> None:
    async def reply(device: ScriptedDevice) -> None:
        body = encode(device.reply())
        fields = msgspec.msgpack.decode(body[1:])
        fields[field] = value
        await device.raw(body[:1] + msgspec.msgpack.encode(fields))

    place, _ = await play_with(reply, tmp_path)
    assert sorted(rows_of(place)) == [(1, "own-0"), (2, "own-0")]
    assert kind is None or events(place, kind, "rogue")


async def test_a_reply_is_counted_once(tmp_path: Path) -> None:
    async def reply_twice(device: ScriptedDevice) -> None:
        await device.send(device.reply(correct=5))
        await device.send(device.reply(correct=10))

    place, _ = await play_with(reply_twice, tmp_path)
    assert rows_of(place)[1, "rogue"].accuracy == 0.5


REQUEST = EvaluateRequest(round=3, model=MODEL, seed=0, limit_s=30.0, split="test")


@pytest.mark.parametrize(
    ("n", "correct", "most", "expected"), [(10, 7, 40, (10, 7)), (1000, 301, 10, (10, 3))]
)
def test_the_weight_of_a_score_is_bounded(
    n: int, correct: int, most: int, expected: tuple[int, int]
) -> None:
    reply = EvaluateReply(
        round=3,
        model=bytes(32),
        loss=2.0,
        n=n,
        correct=correct,
        was_cold=False,
        download_s=0.0,
        decode_s=0.0,
        load_s=0.0,
        evaluate_s=0.0,
    )
    score = score_of(reply, REQUEST, most)
    assert (score.n, score.correct) == expected
    assert score.loss_sum == 2.0 * score.n
