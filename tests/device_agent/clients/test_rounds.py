"""An agent whose task has a client, and its coordinator: rounds, tests, state, permission."""

import secrets
import shutil
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from msgspec import structs

from fairbed.device_agent.clients import work
from fairbed.device_agent.config import AllowedClient
from fairbed.testbed.experiment.client_task import client_spec
from fairbed.wire.artifact import encode_artifact
from fairbed.wire.client_folder import files_of
from fairbed.wire.codecs import codec_named, packed_bytes, unpack
from fairbed.wire.messages import (
    Coding,
    EvaluateReply,
    EvaluateRequest,
    Failed,
    Hello,
    Offer,
    Privacy,
    Trouble,
)
from fairbed.wire.shard import encode_shard
from tests.device_agent.clients.client import (
    ALLOWED,
    CODE,
    LAYOUT,
    NAME,
    RAW,
    VECTOR,
    client_artifact,
    client_task,
    config,
    raw_arrays,
    raw_of,
)
from tests.device_agent.clients.test_process import await_end
from tests.device_agent.conftest import AgentSetup
from tests.device_agent.coordinator import FakeCoordinator
from tests.device_agent.softmax import examples, softmax_task

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]


@pytest.fixture
def allowed(setup: AgentSetup) -> AgentSetup:
    """An agent whose owner allows the client of tests."""
    setup.clients = dict(ALLOWED)
    return setup


async def join(coordinator: FakeCoordinator, task: bytes | None = None) -> None:
    coordinator.number = 2
    await coordinator.join(task or client_task(), None)


async def trained(
    coordinator: FakeCoordinator, round_id: int, *, raw: bytes = RAW, **options: Any
) -> tuple[Offer, np.ndarray, bytes]:
    """Return the offer of a round, the vector and the raw part of its update."""
    await coordinator.request_training(round_id, VECTOR, raw=raw, **options)
    offer = await coordinator.expect_offer(round_id)
    await coordinator.grant(offer)
    data = await coordinator.receive_bytes(offer)
    await coordinator.expect_context(is_ready=True, phase="idle")
    at = offer.manifest.vector_bytes
    return offer, np.frombuffer(data[:at], "<f4"), data[at:]


async def failure(coordinator: FakeCoordinator, round_id: int, how: str, **options: Any) -> str:
    """Return why a round failed."""
    await coordinator.request_training(
        round_id,
        VECTOR,
        raw=RAW,
        config=config(how),
        **options,
    )
    failed = await coordinator.expect(Failed)
    assert failed.round == round_id
    return failed.reason


async def test_floats_travel_as_the_vector_and_all_else_raw(allowed: AgentSetup) -> None:
    async with allowed.running() as (_, coordinator):
        await join(coordinator)
        (hello,) = coordinator.seen[Hello]
        assert isinstance(hello, Hello)
        assert hello.capabilities.clients == (NAME,)
        assert coordinator.last_context().n_k == 5  # the attribute of the client
        raw = raw_of(seen=10, trees=b"oak,")
        offer, vector, raw = await trained(coordinator, 1, raw=raw, learning_rate=0.25)
        assert vector.tolist() == [1.0] * 6 + [0.25] * 3
        assert raw_arrays(raw)["seen"].tolist() == [14, 0]
        assert raw_arrays(raw)["trees"] == b"oak,tree,"
        assert offer.manifest.raw_bytes == len(raw)
        assert offer.metrics == {"rounds": 1.0, "number": 2.0}
        assert (offer.n_k, offer.steps, offer.was_cold) == (4, 0, True)
        assert coordinator.last_context().n_k == 4  # what it trained on


async def test_phases_are_those_of_the_clients_work(allowed: AgentSetup) -> None:
    async with allowed.running() as (_, coordinator):
        await join(coordinator)
        cold, _, _ = await trained(coordinator, 1)
        warm, _, _ = await trained(coordinator, 2)
        assert cold.was_cold
        assert not warm.was_cold
        assert warm.phases.load_s < cold.phases.load_s
        # a new interpreter with numpy takes longer than all the rest of this small client
        assert cold.phases.load_s > cold.phases.train_s + cold.phases.decode_s
        assert warm.phases.train_s > 0.0
        assert warm.phases.decode_s > 0.0
        assert warm.phases.encode_s > 0.0


@pytest.mark.parametrize("up", ["float16", "int8"])
async def test_codecs_encode_the_vector_alone(allowed: AgentSetup, up: str) -> None:
    async with allowed.running() as (_, coordinator):
        await join(coordinator)
        coding = Coding(up=up)  # type: ignore[arg-type]
        await coordinator.request_training(1, VECTOR, raw=RAW, coding=coding)
        offer = await coordinator.expect_offer(1)
        await coordinator.grant(offer)
        data = await coordinator.receive_bytes(offer)
        at, codec = offer.manifest.vector_bytes, codec_named(up)
        assert codec is not None
        assert at == packed_bytes(codec, LAYOUT)
        assert raw_arrays(data[at:])["trees"] == b"tree,"
        change = unpack(data[:at], codec, LAYOUT, VECTOR)
        assert change == pytest.approx([1.0] * 6 + [0.5] * 3, abs=0.01)


async def test_the_metric_of_the_loss_is_reported(allowed: AgentSetup) -> None:
    async with allowed.running() as (_, coordinator):
        await join(coordinator, client_task(loss_metric="before"))
        offer, _, _ = await trained(coordinator, 1, needs_loss=True, config=config("loss"))
        assert (offer.loss_before, offer.loss_train, offer.steps) == (0.75, 0.5, 12)
        reason = await failure(coordinator, 2, "", needs_loss=True)
        assert reason == (
            "client: fit must return the metric before, a loss from 0 (training.loss_metric), "
            "got none"
        )


async def test_examples_of_a_shard_are_files_that_the_client_maps(allowed: AgentSetup) -> None:
    shard = encode_shard(examples(17))
    async with allowed.running() as (_, coordinator):
        coordinator.number = 0
        context = await coordinator.join(client_task(), shard)
        assert context.n_k == 17
        offer, _, _ = await trained(coordinator, 1)
        assert offer.n_k == 17


async def test_a_run_without_data_does_not_read_those_of_the_device(
    allowed: AgentSetup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are of other classes, and another device of the run has none."""
    allowed.data = tmp_path / "own.npz"
    np.savez(allowed.data, x=np.zeros((30, 4), np.float32), y=np.arange(30))
    artifact = client_artifact()
    spec = client_spec("behaving:Client", LAYOUT, None)
    async with allowed.running() as (_, coordinator):
        await join(coordinator, encode_artifact(structs.replace(artifact, spec=spec)))
        offer, _, _ = await trained(coordinator, 1)
        assert offer.n_k == 4, "as without examples"
    assert "(--data) is not read; for a client set clients.behaving.data" in caplog.text


# Failures.


FAILURES = {
    "raise": "client: fit raised ValueError: no labels",
    "exit": "client: its process must go on, but exited with status 3",
    "sys.exit": "client: must not exit, got sys.exit(4)",
    "abort": "client: its process must go on, but was ended by SIGABRT",
    "print": "client: fit raised ValueError: too much",
    "nan": "client: fit: array w: every value must be finite as float32, got nan at (1, 2)",
    "shape": "client: fit: array w: must have the shape (2, 3), got (6,)",
    "dtype": "client: fit: array seen: must be int64, got float64",
    "missing": "client: fit: must have the arrays that fit was given, but 'b' is missing",
    "pickle": "client: fit: array w: must be an array of floats, integers or booleans, got dtype "
    "object",
    "large": "client: its arrays must have at most 100,000 bytes, got 150,",
    "huge": "client: payload: must have at most 202000 bytes, got 300",
    "large state": "client: its state must have at most 2,000 bytes, got 3,",
    "object in state": "client: state: values.model: must be a number, a text or bytes, or a list "
    "of these, got object",
}


async def test_each_failure_costs_one_exchange(
    allowed: AgentSetup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_VECTOR_BYTES", 100_000)
    async with allowed.running() as (_, coordinator):
        await join(coordinator, client_task(state_bytes=2000))
        round_id = 0
        for how, line in FAILURES.items():
            round_id += 2
            reason = await failure(coordinator, round_id - 1, how)
            assert reason.startswith(line), how
            assert "\n" not in reason
            offer, _, _ = await trained(coordinator, round_id, keep_warm=True)
            assert offer.was_cold, how  # another process
            # only rounds that were good have changed the state
            assert offer.metrics["rounds"] == round_id / 2, how
    lines = [line.removeprefix("client: | ") for line in caplog.messages if "client: |" in line]
    assert "giving up" in lines
    assert "epoch 1 of 3" in lines
    assert "ValueError: no" in lines
    assert max(map(len, lines)) <= 300


async def test_what_a_client_has_started_ends_with_it_at_the_deadline(
    allowed: AgentSetup, tmp_path: Path
) -> None:
    allowed.clients[NAME] = structs.replace(ALLOWED[NAME], data=str(tmp_path))
    async with allowed.running() as (_, coordinator):
        mark = secrets.randbelow(10**9)
        await join(coordinator, client_task(options=(("mark", mark),)))
        await trained(coordinator, 1)
        reason = await failure(coordinator, 2, "hang", deadline_s=2.5)
        assert reason == "the deadline of 2.5 s has passed"
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 3
        await_end(pids)
        await_end(running(f"sleep 987.{mark}"))
        offer, _, _ = await trained(coordinator, 3)
        assert offer.metrics["rounds"] == 2.0


async def test_a_client_that_stops_at_the_deadline_has_not_trained(
    allowed: AgentSetup, tmp_path: Path
) -> None:
    allowed.clients[NAME] = structs.replace(ALLOWED[NAME], data=str(tmp_path))
    async with allowed.running() as (_, coordinator):
        await join(coordinator, client_task(grace_s=20.0))
        await trained(coordinator, 1)
        reason = await failure(coordinator, 2, "until stopped", deadline_s=2.0)
        assert reason == "the deadline of 2 s has passed"
        offer, _, _ = await trained(coordinator, 3, keep_warm=True)
        assert offer.metrics["rounds"] == 2.0


async def test_a_constructor_without_an_end_is_named_and_ends_with_the_agent(
    allowed: AgentSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed.clients[NAME] = structs.replace(ALLOWED[NAME], data=str(tmp_path))
    task = client_task(options=(("constructor", "hang"),))
    with monkeypatch.context() as short:
        short.setattr(work, "PREPARE_S", 1.0)
        async with allowed.running() as (_, coordinator):
            await coordinator.welcome(task, None)
            reason = (await coordinator.expect(Trouble)).reason
    assert reason == "client: must start within 1 s; correct what its constructor waits for"
    noted = tmp_path / "pids"
    noted.unlink(missing_ok=True)
    async with allowed.running() as (_, coordinator):
        await coordinator.welcome(task, None)
        with anyio.fail_after(30.0):
            while not noted.exists():  # noqa: ASYNC110 - of another process
                await anyio.sleep(0.01)
    await_end([int(noted.read_text())])


async def test_a_bomb_of_processes_is_ended(allowed: AgentSetup) -> None:
    allowed.clients[NAME] = structs.replace(ALLOWED[NAME], processes=40)
    async with allowed.running() as (_, coordinator):
        mark = secrets.randbelow(10**9)
        await join(coordinator, client_task(options=(("mark", mark),)))
        reason = await failure(coordinator, 1, "processes")
        assert reason.startswith("client: its process must go on, but was ended by SIGKILL")
        await_end(running(f"sleep 987.{mark}"))


def running(command: str) -> list[int]:
    """Return the processes that run a command."""
    found = list[int]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if " ".join(words).strip() == command:
            found.append(int(path.parent.name))
    return found


# State.


async def test_state_outlasts_the_agent_and_a_damaged_file_begins_again(
    allowed: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    file = allowed.folder / "state" / "client-state"
    for attempt in (1, 2, 3):
        async with allowed.running() as (_, coordinator):
            await join(coordinator)
            offer, _, _ = await trained(coordinator, 1)
            assert offer.metrics["rounds"] == (1, 2, 1)[attempt - 1]
        if attempt == 2:
            file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert "client state: its checksum must match" in caplog.text


async def test_a_file_that_a_client_writes_is_not_in_the_folder_of_its_code(
    allowed: AgentSetup, tmp_path: Path
) -> None:
    """There it would change the hash, and the next start would be refused."""
    code = tmp_path / "code"
    shutil.copytree(CODE, code, ignore=shutil.ignore_patterns("__pycache__"))
    allowed.clients = {NAME: AllowedClient(folder=str(code))}
    before = files_of(code)
    for round_id in (1, 2):
        async with allowed.running() as (_, coordinator):
            await join(coordinator)
            await trained(coordinator, round_id, config=config("write"))
    assert files_of(code) == before
    assert (allowed.folder / "state" / "client-files" / "left.txt").read_text() == "left\nleft\n"


async def test_another_run_has_another_state(allowed: AgentSetup) -> None:
    for run_id, rounds in (("a", 1.0), ("a", 2.0), ("b", 1.0)):
        async with allowed.running() as (_, coordinator):
            coordinator.status_on = structs.replace(coordinator.status_on, run_id=run_id)
            await coordinator.announce()
            await join(coordinator)
            offer, _, _ = await trained(coordinator, 1)
            assert offer.metrics["rounds"] == rounds, run_id


# Tests of the model.


def request(train: object, split: str, round_id: int = 1) -> EvaluateRequest:
    return EvaluateRequest(
        round=round_id,
        model=train.model,  # type: ignore[attr-defined]
        examples=10,
        seed=1,
        limit_s=30.0,
        split=split,  # type: ignore[arg-type]
    )


async def test_a_test_measures_by_the_names_of_the_client(allowed: AgentSetup) -> None:
    async with allowed.running() as (_, coordinator):
        await join(coordinator)
        train = await coordinator.request_training(1, VECTOR + 2.0, raw=RAW)
        offer = await coordinator.expect_offer(1)
        await coordinator.grant(offer)
        await coordinator.receive_bytes(offer)
        await coordinator.send(request(train, "test"))
        reply = await coordinator.expect(EvaluateReply)
        assert (reply.loss, reply.n, reply.correct) == (2.0, 8, 6)
        assert reply.metrics == {"accuracy": 0.75}


async def test_a_test_leaves_a_cold_device_cold(allowed: AgentSetup) -> None:
    async with allowed.running() as (_, coordinator):
        await join(coordinator)
        model = await coordinator.publish_blob("model", VECTOR.tobytes() + RAW)
        model = structs.replace(model, raw_bytes=len(RAW))
        ask = EvaluateRequest(round=1, model=model, examples=1, seed=1, limit_s=30.0, split="test")
        await coordinator.send(ask)
        assert (await coordinator.expect(EvaluateReply)).was_cold
        offer, _, _ = await trained(coordinator, 2)
        assert offer.was_cold


# Permission.


async def test_a_client_without_permission_is_refused_with_what_to_do(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.welcome(client_task(), None)
        trouble = await coordinator.expect(Trouble)
        assert trouble.reason == (
            "client behaving: must be allowed by the owner of this device, which allows none; copy "
            "its folder here and start the agent with --allow-client behaving=FOLDER"
        )


@pytest.mark.parametrize(
    ("client", "task", "line"),
    [
        ({"folder": "/nowhere"}, {}, "/nowhere: must be a folder with the code of a client"),
        ({}, {"sha256": bytes(32)}, "must have the code of the run, sha256 000000000000, got"),
        ({"sha256": "0" * 64}, {}, "must have the pinned sha256 000000000000, got"),
        ({"python": "/nowhere/python"}, {}, "its interpreter /nowhere/python must run, got No su"),
        ({}, {"path": "absent:Client"}, "absent must be a module in"),
        ({}, {"path": "behaving:Klient"}, "behaving must have the class Klient; it has Client, Si"),
        ({}, {"path": "broken:Client"}, "the import of broken must end, got KeyError: 'memory'"),
        ({}, {"path": "aborting:Client"}, "its process ended: signal SIGABRT"),
        ({}, {"path": "lacking:Client"}, "needs the package surely_not_installed, which "),
        ({}, {"options": (("constructor", "raise"),)}, "the constructor raised RuntimeError: no c"),
    ],
)
async def test_what_cannot_start_is_named_before_the_first_round(
    allowed: AgentSetup, client: dict[str, str], task: dict[str, object], line: str
) -> None:
    allowed.clients[NAME] = structs.replace(ALLOWED[NAME], **client)
    async with allowed.running() as (_, coordinator):
        await coordinator.welcome(client_task(**task), None)  # type: ignore[arg-type]
        reason = (await coordinator.expect(Trouble)).reason
        assert line in reason
        assert reason.startswith("client")


async def test_a_device_goes_on_with_a_task_without_a_client(allowed: AgentSetup) -> None:
    async with allowed.running() as (_, coordinator):
        await join(coordinator)
        await trained(coordinator, 1)
    async with allowed.running() as (_, coordinator):
        await coordinator.join(softmax_task(), encode_shard(examples(10)))
        offer, _ = await coordinator.run_round(1, np.zeros(21, np.float32))
        assert offer.n_k == 10


async def test_noise_covers_floats_only(allowed: AgentSetup) -> None:
    noise = Privacy(clip=1.0, noise_multiplier=1.0)
    async with allowed.running() as (_, coordinator):
        await join(coordinator)
        await coordinator.request_training(1, VECTOR, raw=RAW, privacy=noise)
        assert (await coordinator.expect(Failed)).reason == (
            "privacy: every array of a client must be of floats, got seen, without noise"
        )
