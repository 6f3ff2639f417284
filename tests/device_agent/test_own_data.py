"""Own data of a device: the division into training and test, and tests between rounds."""

from pathlib import Path

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from numpy.typing import NDArray

from fairbed.device_agent.config import OwnerPrivacy
from fairbed.device_agent.errors import DataError
from fairbed.device_agent.examples import OwnData
from fairbed.device_agent.state.link_estimate import MIN_SAMPLE_BYTES
from fairbed.wire.artifact import encode_artifact
from fairbed.wire.labels import Classes
from fairbed.wire.messages import (
    Cancel,
    EvaluateReply,
    EvaluateRequest,
    Failed,
    HeldOut,
    Hello,
    Offer,
    Welcome,
)
from fairbed.wire.tensors import vector_to_bytes
from tests.device_agent.conftest import NAME, AgentSetup
from tests.device_agent.coordinator import FakeCoordinator
from tests.device_agent.softmax import (
    N_VALUES,
    Gate,
    SoftmaxEngine,
    examples,
    softmax_artifact,
    softmax_task,
)

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

TASK = softmax_task()
HELD_OUT = HeldOut(fraction=0.25, seed=5)
CLASSES = Classes("classification", 10**6 + 1)
W = np.random.default_rng(3).normal(size=N_VALUES).astype(np.float32)
ZEROS = np.zeros(N_VALUES, np.float32)


class Storage:
    def step(self, n_examples: int, length: int | None = None) -> None: ...
    def read(self, n_bytes: int) -> None: ...


def write(folder: Path, **arrays: NDArray[np.generic]) -> Path:
    np.savez(folder / "own.npz", allow_pickle=True, **arrays)
    return folder / "own.npz"


def numbered(folder: Path, labels: list[int]) -> Path:
    """Write examples whose first feature is their number."""
    x = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
    return write(folder, x=x, y=np.array(labels))


def rows(data: OwnData) -> tuple[list[int], list[int]]:
    """Return the numbers of training and test examples."""
    (x, _), together = data.load(Storage())
    alone = data.held_out()
    assert (alone is None) == (together is None)
    if alone is not None and together is not None:
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    tests = [] if alone is None else (alone[0][:, 0] / 2).astype(int).tolist()
    return (x[:, 0] / 2).astype(int).tolist(), tests


# --- the division --------------------------------------------------------------------------------


@given(
    labels=st.lists(st.sampled_from([0, 1, 7, 10**6]), min_size=1, max_size=40),
    fraction=st.floats(0.01, 0.99),
)
def test_each_example_is_for_training_or_for_tests(
    labels: list[int], fraction: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = numbered(tmp_path_factory.mktemp("own"), labels)
    training, tests = rows(OwnData(path, CLASSES, HeldOut(fraction=fraction, seed=1), "pi-7"))
    assert sorted(training + tests) == list(range(len(labels)))
    n = len(labels)
    assert len(tests) == (min(max(1, round(fraction * n)), n - 1) if n > 1 else 0)
    assert training == sorted(training)


def test_the_division_depends_on_seed_and_device_alone(tmp_path: Path) -> None:
    path = numbered(tmp_path, [0, 1] * 20)

    def tests(seed: int, name: str) -> list[int]:
        return rows(OwnData(path, CLASSES, HeldOut(fraction=0.25, seed=seed), name))[1]

    assert tests(5, "pi-7") == tests(5, "pi-7")
    assert len({tuple(tests(seed, name)) for seed in (5, 6) for name in ("pi-7", "pi-8")}) == 4


def test_each_class_is_held_out_in_proportion(tmp_path: Path) -> None:
    path = numbered(tmp_path, [0] * 12 + [1] * 28)
    _, tests = rows(OwnData(path, CLASSES, HELD_OUT, "pi-7"))
    assert sum(row < 12 for row in tests) == 3
    assert len(tests) == 10


def test_without_a_request_nothing_is_held_out(tmp_path: Path) -> None:
    assert rows(OwnData(numbered(tmp_path, [0, 1, 2]), CLASSES)) == ([0, 1, 2], [])


def test_test_examples_of_the_file_are_taken(tmp_path: Path) -> None:
    x = np.zeros((8, 2), np.float32)
    path = write(tmp_path, x=x, y=np.zeros(8, int), x_test=x[:3] + 1, y_test=np.ones(3, int))
    for held_out in (None, HELD_OUT):
        data = OwnData(path, CLASSES, held_out, "pi-7")
        (_, y), together = data.load(Storage())
        assert len(y) == data.count() == 8
        assert together is None, "they are not read for a training"
        found = data.held_out()
        assert found is not None
        assert (found[0][:, 0].tolist(), found[1].tolist()) == ([1, 1, 1], [1, 1, 1])


def test_validation_examples_are_no_training_examples_and_tests_stay(tmp_path: Path) -> None:
    path = numbered(tmp_path, [0, 1] * 20)
    training, tests = rows(OwnData(path, CLASSES, HELD_OUT, "pi-7"))
    parts = structs.replace(HELD_OUT, validation=0.4)
    trained, tested = rows(OwnData(path, CLASSES, parts, "pi-7"))
    chooses = structs.replace(parts, evaluates="validation")
    again, validated = rows(OwnData(path, CLASSES, chooses, "pi-7"))
    assert tested == tests
    assert again == trained
    assert sorted(trained + validated) == training
    assert len(validated) == 12


def test_a_file_with_tests_has_validation_examples_among_the_others(tmp_path: Path) -> None:
    x = np.zeros((8, 2), np.float32)
    path = write(tmp_path, x=x, y=np.zeros(8, int), x_test=x[:3] + 1, y_test=np.ones(3, int))
    parts = structs.replace(HELD_OUT, validation=0.25)
    (_, y), _ = OwnData(path, CLASSES, parts, "pi-7").load(Storage())
    tests = OwnData(path, CLASSES, parts, "pi-7").held_out()
    chooses = structs.replace(parts, evaluates="validation")
    validated = OwnData(path, CLASSES, chooses, "pi-7").held_out()
    assert tests is not None
    assert validated is not None
    assert (len(y), len(tests[1]), len(validated[1])) == (6, 3, 2)
    assert not validated[1].any(), "none is a test example"


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x_test": np.zeros((0, 2)), "y_test": np.zeros(0, int)}, "n >= 1, got .* remove both"),
        ({"x_test": np.zeros((3, 2)), "y_test": np.zeros(2, int)}, "x_test must be"),
        ({"x_test": np.zeros((3, 2))}, "must hold arrays x_test and y_test, got x, x_test, y"),
        ({"y_test": np.zeros(3, int)}, "must hold arrays x_test and y_test, got x, y, y_test"),
        ({"x_test": np.full((1, 2), np.nan), "y_test": np.zeros(1, int)}, "finite"),
    ],
    ids=["empty", "lengths", "no labels", "no examples", "nan"],
)
def test_test_examples_that_break_a_rule_are_one_line(
    arrays: dict[str, NDArray[np.generic]], problem: str, tmp_path: Path
) -> None:
    path = write(tmp_path, x=np.zeros((4, 2)), y=np.zeros(4, int), **arrays)
    with pytest.raises(DataError, match=problem) as caught:
        OwnData(path).count()
    assert "\n" not in str(caught.value)


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> str:
    """Return the first line of the log with this text."""
    with anyio.fail_after(10.0):
        while not any(text in line for line in caplog.messages):  # noqa: ASYNC110
            await anyio.sleep(0.05)
    return next(line for line in caplog.messages if text in line)


# --- tests between rounds ------------------------------------------------------------------------


async def join(coordinator: FakeCoordinator, task: bytes = TASK) -> Hello:
    """Welcome a device with own data that holds out a share of it."""
    hello = await coordinator.expect(Hello)
    manifest = await coordinator.publish_blob("task", task)
    await coordinator.send(
        Welcome(boot=coordinator.boot, task=manifest, shard=None, held_out=HELD_OUT)
    )
    await coordinator.expect_context(is_ready=True)
    return hello


def own(setup: AgentSetup, n: int = 40) -> None:
    x, y = examples(n).arrays()
    setup.data = write(setup.folder, x=x, y=y)


async def ask(
    coordinator: FakeCoordinator, round_id: int, attempt: int = 0, vector: NDArray[np.float32] = W
) -> EvaluateRequest:
    model = await coordinator.publish_blob("model", bytes(vector_to_bytes(vector)))
    request = EvaluateRequest(
        round=round_id, attempt=attempt, model=model, seed=0, limit_s=10.0, split="test"
    )
    await coordinator.send(request)
    return request


async def test_a_device_tests_the_model_on_what_it_does_not_train_on(setup: AgentSetup) -> None:
    own(setup)
    async with setup.running() as (_, coordinator):
        hello = await join(coordinator)
        offer, _ = await coordinator.run_round(1, ZEROS)
        await ask(coordinator, 1)
        reply = await coordinator.expect(EvaluateReply)
    assert setup.data is not None
    held_out = OwnData(setup.data, CLASSES, HELD_OUT, NAME).held_out()
    assert held_out is not None
    loss_sum, correct, *_ = SoftmaxEngine(softmax_artifact().spec).evaluate(W, *held_out)
    assert (hello.n_k, offer.n_k, reply.n) == (40, 30, 10)
    assert reply.correct == correct
    assert reply.loss == pytest.approx(loss_sum / 10)
    assert not reply.was_cold


async def test_names_train_the_classes_that_the_run_has_for_them(setup: AgentSetup) -> None:
    """The device lacks ash: in its own list of names elm and oak are 0 and 1."""
    x, y = examples(40).arrays()
    x, y = x[y > 0], y[y > 0]
    names = ("ash", "elm", "oak")
    updates = []
    for labels in (y, np.array(names)[y]):
        setup.data = write(setup.folder, x=x, y=labels)
        task = structs.replace(softmax_artifact(), labels=() if labels is y else names)
        async with setup.running() as (_, coordinator):
            await join(coordinator, encode_artifact(task))
            updates.append((await coordinator.run_round(1, ZEROS))[1])
            await ask(coordinator, 1)
            updates.append(np.array([(await coordinator.expect(EvaluateReply)).correct]))
    np.testing.assert_array_equal(updates[0], updates[2])
    np.testing.assert_array_equal(updates[1], updates[3])
    assert np.abs(updates[0]).max() > 0.0


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (["yew"] * 10, "y must be classes of the run, 'ash', 'elm', 'oak', got 'yew' in row 0;"),
        ([0] * 10, "y must be names, 'ash', 'elm', 'oak', as the data of the run have, got 0"),
    ],
)
async def test_a_label_that_the_run_lacks_is_one_line(
    labels: list[object], line: str, setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    x, _ = examples(10).arrays()
    setup.data = write(setup.folder, x=x, y=np.array(labels))
    task = structs.replace(softmax_artifact(), labels=("ash", "elm", "oak"))
    async with setup.running() as (_, coordinator):
        await coordinator.welcome(encode_artifact(task), None)
        assert line in await logged(caplog, "preparation failed")


async def test_labels_that_may_count_from_1_are_logged_once(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = examples(40).arrays()
    setup.data = write(setup.folder, x=x[y > 0], y=y[y > 0])
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        await coordinator.run_round(1, ZEROS)
    assert [line for line in caplog.messages if "no example has label 0" in line] == [
        "data: no example has label 0; if the labels count from 1, subtract 1 from y"
    ]


async def test_a_cold_device_stays_cold_and_a_warm_one_warm(setup: AgentSetup) -> None:
    own(setup)
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        cold = []
        for round_id in (1, 2, 4):  # round 3 is without this device
            cold.append((await coordinator.run_round(round_id, ZEROS))[0].was_cold)
            for tested in (round_id, 3) if round_id == 2 else (round_id,):
                await ask(coordinator, tested)
                await coordinator.expect(EvaluateReply)
                await coordinator.expect_context(is_ready=True, phase="idle")
    assert cold == [True, False, True]


async def test_a_warm_device_does_not_read_its_file_again(setup: AgentSetup) -> None:
    own(setup)
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        await coordinator.run_round(1, ZEROS)
        assert setup.data is not None
        setup.data.unlink()
        await ask(coordinator, 1)
        assert (await coordinator.expect(EvaluateReply)).n == 10


async def test_a_test_before_the_first_round_keeps_nothing_in_memory(setup: AgentSetup) -> None:
    own(setup)
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        await ask(coordinator, 0)
        assert (await coordinator.expect(EvaluateReply)).was_cold
        context = await coordinator.expect_context(is_ready=True, phase="idle")
        assert not context.is_warm
        offer, _ = await coordinator.run_round(1, W)
    assert offer.was_cold
    assert not offer.had_model, "the model of the test is not kept"


async def test_a_test_waits_for_the_end_of_the_round(setup: AgentSetup) -> None:
    own(setup)
    gate = Gate()
    setup.open_engine = gate.open_engine
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        await coordinator.request_training(1, ZEROS)
        await coordinator.expect_context(is_ready=True, phase="training")
        await ask(coordinator, 1)
        gate.opened.set()
        offer = await coordinator.expect(Offer)
        assert not coordinator.seen[EvaluateReply]
        await coordinator.grant(offer)
        await coordinator.receive(offer)
        assert (await coordinator.expect(EvaluateReply)).round == 1


async def test_a_newer_round_ends_a_test(setup: AgentSetup) -> None:
    own(setup)
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        await coordinator.run_round(1, ZEROS)
        request = await ask(coordinator, 1)
        missing = structs.replace(request.model, id=bytes(16), sha256=bytes(32))
        await coordinator.expect(EvaluateReply)
        await coordinator.send(structs.replace(request, round=2, model=missing))
        await coordinator.expect_context(is_ready=True, phase="answering")
        offer, _ = await coordinator.run_round(3, ZEROS)
        assert offer.round == 3
        await coordinator.send(request)  # a late duplicate
        await coordinator.run_round(4, ZEROS)
        assert len(coordinator.seen[EvaluateReply]) == 1
        assert not coordinator.seen[Failed]


async def test_a_repeated_request_gets_the_same_reply(setup: AgentSetup) -> None:
    own(setup)
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        request = await ask(coordinator, 1)
        first = await coordinator.expect(EvaluateReply)
        await coordinator.send(request)
        assert await coordinator.expect(EvaluateReply) == first


async def test_a_cancelled_test_leaves_the_device_idle(setup: AgentSetup) -> None:
    own(setup)
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        request = await ask(coordinator, 1)
        await coordinator.expect(EvaluateReply)
        missing = structs.replace(request.model, id=bytes(16), sha256=bytes(32))
        await coordinator.send(structs.replace(request, round=2, model=missing))
        await coordinator.expect_context(is_ready=True, phase="answering")
        await coordinator.send(Cancel(round=2))
        await coordinator.expect_context(is_ready=True, phase="idle")
        offer, _ = await coordinator.run_round(3, ZEROS)
    assert offer.round == 3


async def test_a_test_that_takes_too_long_is_reported(setup: AgentSetup) -> None:
    own(setup)
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        request = await ask(coordinator, 1)
        missing = structs.replace(request.model, id=bytes(16), sha256=bytes(32))
        await coordinator.send(structs.replace(request, round=2, model=missing))
        assert (await coordinator.expect(Failed)).reason == "no result within 10 s"


async def test_a_test_does_not_change_the_estimate_of_the_link(setup: AgentSetup) -> None:
    features = 2000  # a model that is large enough to measure a rate
    vector = np.zeros(3 * features + 3, np.float32)
    assert vector.nbytes >= MIN_SAMPLE_BYTES
    rng = np.random.default_rng(1)
    x = rng.standard_normal((20, features)).astype(np.float32)
    setup.data = write(setup.folder, x=x, y=rng.integers(0, 3, 20))
    async with setup.running() as (_, coordinator):
        await join(coordinator, softmax_task(features))
        rates = []
        for round_id in (1, 2):
            await coordinator.run_round(round_id, vector + round_id)
            rates.append(coordinator.last_context().downlink_bps)
            for number in range(3):
                await ask(coordinator, round_id, number, vector + 10 * round_id + number)
                await coordinator.expect(EvaluateReply)
                await coordinator.expect_context(is_ready=True, phase="idle")
            assert coordinator.last_context().downlink_bps == rates[-1]
    assert rates[0] is not None
    assert rates[0] != rates[1], "a round does change it"


async def test_an_owner_who_demands_noise_lets_no_score_leave(setup: AgentSetup) -> None:
    own(setup)
    setup.privacy = OwnerPrivacy(min_noise_multiplier=2.0)
    async with setup.running() as (_, coordinator):
        await join(coordinator)
        await ask(coordinator, 1)
        reason = (await coordinator.expect(Failed)).reason
    assert "wants a noise_multiplier of at least 2, which no loss has" in reason
    assert 'evaluation.own_data can be "server-test-set" or "off"' in reason


@pytest.mark.parametrize(
    ("x_test", "y_test", "problem"),
    [
        (np.zeros((2, 5), np.float32), [0, 1], "test data: examples must be float32 (6,), got"),
        (
            np.zeros((2, 6), np.float32),
            [0, 9],
            "y_test must be classes of the run, 0 .. 2, got 9 in",
        ),
        (np.zeros((2, 6), np.int64), [0, 1], "test data: examples must be float32 (6,), got int64"),
    ],
    ids=["shape", "classes", "dtype"],
)
async def test_test_examples_that_do_not_fit_the_task_are_one_line(
    x_test: NDArray[np.generic],
    y_test: list[int],
    problem: str,
    setup: AgentSetup,
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, y = examples(10).arrays()
    setup.data = write(setup.folder, x=x, y=y, x_test=x_test, y_test=np.array(y_test))
    async with setup.running() as (_, coordinator):
        await coordinator.welcome(TASK, None)
        assert problem in await logged(caplog, "preparation failed")
