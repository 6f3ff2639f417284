"""Rounds of a client: real coordinator and agents, processes of clients, a broker in memory."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.raw import RawRule, decode_raw
from fairbed.coordinator.policy.config import (
    CoordinatorConfig,
    ExchangeConfig,
    LimitsConfig,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
)
from fairbed.coordinator.records.client_metrics import MAX_NAMES, ClientMetrics
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.rounds.raw_updates import RuleMerger
from fairbed.device_agent.config import AllowedClient
from tests.coordinator.lab import Lab, lab, make_config
from tests.device_agent.clients.client import (
    ALLOWED,
    ARRAYS,
    NAME,
    RAW,
    VECTOR,
    client_artifact,
)

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]


class Numbers:
    """The number of a device is that in its name."""

    count = 3

    def number(self, device: str) -> int | None:
        number = int(device.removeprefix("pi-"))
        return number if number < self.count else None


@asynccontextmanager
async def clients(
    folder: Path,
    rule: str = "largest",
    allowed: Any = ALLOWED,
    names: Any = ("pi-0", "pi-1"),
    **options: str | int,
) -> AsyncIterator[Lab]:
    """Yield a lab whose task has the client of tests, with agents that may run it."""
    artifact = client_artifact(options=tuple(options.items()))
    async with lab(folder, agents=0, artifact=artifact) as place:
        place.has_evaluator, place.has_shards, place.places = False, False, Numbers()
        place.setup = {
            "vector": VECTOR,
            "raw": RAW,
            "raw_merger": RuleMerger(RawRule(rule, ARRAYS)),
            "client_evaluates": True,
        }
        place.clients = dict(allowed)
        for name in names:
            place.start_agent(name)
        yield place


def settings(devices: int = 2, **sections: object) -> CoordinatorConfig:
    chosen: dict[str, object] = {
        "training": TrainingConfig(client="behaving:Client", learning_rate=0.25),
        "selection": SelectionConfig(policy="uniform", per_round=devices),
        "round": RoundConfig(min_devices=devices, deadline_s=30.0, join_timeout_s=30.0),
    }
    return make_config(3, devices, **(chosen | sections))


async def test_floats_merge_by_the_rule_and_raw_arrays_by_theirs(tmp_path: Path) -> None:
    async with clients(tmp_path, "first") as place:
        assert await place.run(settings()) == "done"
    with place.reader() as reader:
        final, raw, rounds = reader.final_model(), decode_raw(reader.final_raw()), reader.rounds()
        exchanges, devices = reader.exchanges(), reader.devices()
        metrics, summary = reader.client_metrics(), summarise_run(reader)
    assert final is not None
    assert final[1].tolist() == [3.0] * 6 + [0.75] * 3
    assert raw["seen"].tolist() == [12, 0], "one device counts, in each of three rounds"
    assert raw["trees"] == b"tree,tree,tree,"
    assert len({row.model_sha256 for row in rounds}) == 3
    assert {x.outcome for x in exchanges} == {"done"}
    up = {x.round: x.bytes_up for x in exchanges}
    down = {x.round: x.bytes_down for x in exchanges}
    assert up[1] >= down[1] + len(b"tree,"), "the raw part counts, and grows"
    assert (down[2], down[3]) == (up[1], up[2])
    assert {device.n_k for device in devices} <= {4, 5}, "what it trained on, or will"
    counted = Counter((row.phase, row.name) for row in metrics)
    assert counted == {("fit", "rounds"): 6, ("fit", "number"): 6}
    assert {(row.device, row.value) for row in metrics if row.name == "number"} == {
        ("pi-0", 0.0),
        ("pi-1", 1.0),
    }
    assert summary.accuracy.mean is None, "no test was asked for"


async def test_an_update_above_the_limit_is_not_received_and_others_go_on(tmp_path: Path) -> None:
    limits = LimitsConfig(raw_bytes=100_000)
    async with clients(tmp_path, how="large", only=1) as place:
        assert await place.run(settings(limits=limits)) == "done"
    with place.reader() as reader:
        exchanges, raw = reader.exchanges(), decode_raw(reader.final_raw())
    found = {(x.device, x.outcome, x.bytes_up > 100_000) for x in exchanges}
    assert found == {("pi-0", "done", False), ("pi-1", "rejected", False)}
    assert {
        "update: must have at most 100000 raw bytes (limits.raw_bytes), got 150" in str(x.reason)
        for x in exchanges
        if x.device == "pi-1"
    } == {True}
    assert raw["trees"] == b"tree,tree,tree,"


async def test_a_device_whose_owner_does_not_allow_the_client_is_refused_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with clients(tmp_path, names=("pi-0", "pi-1")) as place:
        place.clients = {}
        place.start_agent("pi-2")
        assert await place.run(settings()) == "done"
    problem = (
        f"its owner does not allow the client {NAME} of this run; start its agent with "
        f"--allow-client {NAME}=FOLDER, where FOLDER has the same code"
    )
    with place.reader() as reader:
        assert {x.device for x in reader.exchanges()} == {"pi-0", "pi-1"}
        (event,) = [e for _, e in reader.events() if e.kind == "skill"]
    assert (event.device, event.text) == ("pi-2", problem)
    assert f"pi-2: refused by the coordinator: {problem}" in caplog.text


async def test_a_device_with_other_code_cannot_prepare_and_others_go_on(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "behaving.py").write_text("class Client: pass\n")
    async with clients(tmp_path) as place:
        place.clients = {NAME: AllowedClient(folder=str(other))}
        place.start_agent("pi-2")
        assert await place.run(settings()) == "done"
    with place.reader() as reader:
        assert {x.device for x in reader.exchanges()} == {"pi-0", "pi-1"}
        troubles = [e.text for _, e in reader.events() if e.kind == "trouble"]
    assert any("must have the code of the run" in text for text in troubles)


async def test_a_device_without_a_number_is_refused(tmp_path: Path) -> None:
    async with clients(tmp_path, names=("pi-0", "pi-1", "pi-3")) as place:
        assert await place.run(settings()) == "done"
    with place.reader() as reader:
        assert {x.device for x in reader.exchanges()} == {"pi-0", "pi-1"}
        (text,) = {e.text for _, e in reader.events() if e.kind == "refused"}
    assert text == "all devices of this run have joined, and it has no number left"


@pytest.mark.parametrize(
    ("up", "down"), [("int8", "float16"), ("top-k", "delta"), ("float16", "int8")]
)
async def test_codecs_change_the_vector_alone(up: Any, down: Any, tmp_path: Path) -> None:
    exchange = ExchangeConfig(up=up, down=down, top_k=1.0)
    async with clients(tmp_path, "first") as place:
        assert await place.run(settings(exchange=exchange)) == "done"
    with place.reader() as reader:
        final, raw = reader.final_model(), decode_raw(reader.final_raw())
        assert {(x.codec_down, x.codec_up) for x in reader.exchanges() if x.round == 3} == {
            (down, up)
        }
    assert final is not None
    np.testing.assert_allclose(final[1], [3.0] * 6 + [0.75] * 3, atol=0.1)
    assert raw["seen"].tolist() == [12, 0]
    assert raw["trees"] == b"tree,tree,tree,"


async def test_losses_are_asked_of_the_client(tmp_path: Path) -> None:
    selection = SelectionConfig(
        policy="power-of-choice", variant="pow-d", per_round=1, candidates=2
    )
    async with clients(tmp_path) as place:
        assert await place.run(settings(selection=selection)) == "done"
    with place.reader() as reader:
        queries = reader.loss_queries()
        exchanges = reader.exchanges()
    assert [(row.round, row.outcome) for row in queries] == [
        (number, "answered") for number in (1, 1, 2, 2, 3, 3)
    ]
    assert [x.outcome for x in exchanges] == ["done"] * 3


async def test_asynchronous_rounds_merge_raw_arrays_too(tmp_path: Path) -> None:
    round_ = RoundConfig(
        mode="async", buffer=1, concurrency=2, min_devices=2, deadline_s=30.0, join_timeout_s=30.0
    )
    async with clients(tmp_path, "largest") as place:
        assert await place.run(settings(round=round_)) == "done"
    with place.reader() as reader:
        raw = decode_raw(reader.final_raw())
        assert [row.aggregated for row in reader.rounds()] == [1, 1, 1]
    assert 4 <= raw["seen"][0] <= 12


def test_a_run_stores_a_bounded_number_of_printable_names() -> None:
    rows = ClientMetrics(["known"])
    many = {f"m{i}": 1.0 for i in range(MAX_NAMES + 5)}
    stored = list(rows.rows(1, "pi", "fit", {"known": 2.0, "a\x1b[2Jb": 3.0, **many}, 7))
    assert len(stored) == MAX_NAMES
    assert [row.value for row in stored[:2]] == [2.0, 3.0]
    assert "\x1b" not in stored[1].name
    assert stored[0].n == 7
    assert str(rows.warning(many)).startswith(f"metric 'm{MAX_NAMES - 2}' and further ones are")
    assert rows.warning(many) is None, "once"
    assert ClientMetrics(["known"]).warning({"known": 1.0}) is None
