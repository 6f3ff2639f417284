"""A device is never trusted: a bad message costs only its own round."""

import math
from functools import partial
from pathlib import Path

import anyio
import pytest

from fairbed.coordinator.policy.config import (
    AggregationConfig,
    ExchangeConfig,
    RoundConfig,
    SelectionConfig,
)
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.rounds.loop import NothingAggregatedError
from fairbed.coordinator.store import RunReader
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.messages import Cancel
from fairbed.wire.transport.base import LinkUp, Transport
from tests.coordinator import rogue
from tests.coordinator.builders import hello
from tests.coordinator.lab import lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

REJECTED = [
    (rogue.sends_nan, "vector: every value must be finite, got nan at 3"),
    (rogue.sends_wrong_hash, "sha256"),
    (rogue.offers_wrong_shape, "update: must hold 610 float32 (2440 bytes), got 2436 bytes"),
    (rogue.offers_far_too_much, "update: must hold 610 float32 (2440 bytes), got 1073741824 bytes"),
    (rogue.sends_a_huge_value, "(limits.update_norm), got 3e+38"),
    (rogue.claims_a_year_of_training, "(limits.time_ratio), got 9e+06 s"),
    (rogue.claims_a_huge_loss, "offer: loss_train must be at most 1e+06 (limits.loss), got 1e+29"),
    (rogue.claims_no_examples, "offer: n_k must be at least 1, got 0"),
]

IGNORED = [
    (rogue.offers_another_round, None),
    (rogue.floods, "bad chunk"),
    (rogue.sends_garbage, "bad message"),
    (rogue.pretends_to_be_the_coordinator, "bad message"),
]

IMPATIENT = RoundConfig(min_devices=3, deadline_s=1.5, join_timeout_s=30.0)
WHOLE_FLEET = SelectionConfig(policy="uniform", per_round=3)


LOSSES = [
    (None, "rejected", "offer: loss_before is missing, and the aggregation rule needs it"),
    (math.nan, "bad message", "message: Expected `float` >= -1e+30 - at `$.loss_before`"),
    (math.inf, "bad message", "message: Expected `float` <= 1e+30 - at `$.loss_before`"),
    (-1.0, "rejected", "offer: a loss must be at least 0, got -1"),
]


@pytest.mark.parametrize(("loss", "kind", "text"), LOSSES, ids=["none", "nan", "inf", "negative"])
async def test_a_loss_that_cannot_be_used_costs_its_device_the_round(
    loss: float | None, kind: str, text: str, tmp_path: Path
) -> None:
    async with lab(tmp_path, agents=2) as place, anyio.create_task_group() as group:
        group.start_soon(rogue.Rogue(partial(rogue.reports_loss, loss=loss)).run, place)
        rule = AggregationConfig(rule="corefed")
        config = make_config(rounds=2, round=IMPATIENT, selection=WHOLE_FLEET, aggregation=rule)
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    with RunReader(tmp_path / "run") as reader:
        assert [row.aggregated for row in reader.rounds()] == [2, 2]
        mine = [x for x in reader.exchanges() if x.device == "rogue"]
        assert {x.weight for x in mine} == {None}
        assert text in [event.text for _, event in reader.events() if event.kind == kind]


PACKED = [
    (rogue.packs_garbage, "packed vector: must start with b'FC'"),
    (rogue.packs_infinity, "int8: every scale must be finite and at least 0, got inf"),
    (rogue.sends_nan, "update: must hold 610 values as agreed (626 bytes), got 2440 bytes"),
    (rogue.claims_another_blob, "offer: the model must have come in a blob that was announced"),
]


async def play_with(
    trick: rogue.Trick, folder: Path, exchange: ExchangeConfig | None = None, *codecs: str
) -> None:
    async with lab(folder, agents=2) as place, anyio.create_task_group() as group:
        group.start_soon(rogue.Rogue(trick, codecs).run, place)
        config = make_config(
            rounds=2,
            round=IMPATIENT,
            selection=WHOLE_FLEET,
            exchange=exchange or ExchangeConfig(),
        )
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("trick", "reason"), REJECTED, ids=[t.__name__ for t, _ in REJECTED])
async def test_a_bad_update_is_rejected_with_its_reason(
    trick: rogue.Trick, reason: str, tmp_path: Path
) -> None:
    await play_with(trick, tmp_path)
    with RunReader(tmp_path / "run") as reader:
        exchanges = reader.exchanges(0)
    mine = [x for x in exchanges if x.device == "rogue"]
    others = [x for x in exchanges if x.device != "rogue"]
    assert {x.outcome for x in mine} == {"rejected"}
    assert all(reason in x.reason for x in mine)
    assert [x.outcome for x in others] == ["done"] * 4


@pytest.mark.parametrize(
    ("trick", "reason"),
    [
        (
            partial(rogue.measures, offered={"rerequests_down": -1.0}),
            "offer: rerequests_down must be from 0 to 1e+09, got -1",
        ),
        (
            partial(rogue.measures, sent={"resent_up": 0.5}),
            "upload: resent_up must be a whole number, got 0.5",
        ),
    ],
    ids=["offer", "upload"],
)
async def test_a_measured_number_out_of_its_range_costs_the_exchange(
    trick: rogue.Trick, reason: str, tmp_path: Path
) -> None:
    await play_with(trick, tmp_path)
    with RunReader(tmp_path / "run") as reader:
        mine = [x for x in reader.exchanges() if x.device == "rogue"]
    assert {(x.outcome, x.reason) for x in mine} == {("rejected", reason)}


async def test_a_device_measures_its_own_columns_and_no_others(tmp_path: Path) -> None:
    foreign = {"weight_share": 1.0, "of_a_newer_agent": -1.0}
    trick = partial(
        rogue.measures,
        offered=foreign | {"rerequests_down": 2.0, "resent_up": 9.0},
        sent=foreign | {"rerequests_down": 9.0, "resent_up": 3.0},
    )
    await play_with(trick, tmp_path)
    with RunReader(tmp_path / "run") as reader:
        mine = [x for x in reader.exchanges() if x.device == "rogue"]
    assert {(x.outcome, x.rerequests_down, x.resent_up) for x in mine} == {("done", 2, 3)}
    assert all(x.weight_share == pytest.approx(1 / 3) for x in mine)


async def test_what_is_refused_is_counted_for_each_device_and_shown(tmp_path: Path) -> None:
    await play_with(rogue.sends_a_huge_value, tmp_path)
    with RunReader(tmp_path / "run") as reader:
        summary = summarise_run(reader)
        model = reader.final_model()
    assert summary.exchange.refused == {"rogue": 2}
    lines = summary_table(summary).splitlines()
    assert any(line.split() == EXPECTED_LINE.split() for line in lines)
    assert model is not None
    assert abs(model[1]).max() < 100.0


EXPECTED_LINE = "refused 2 updates, of rogue 2; events name the reasons"


async def test_a_silent_device_is_selected_three_times_and_no_more(tmp_path: Path) -> None:
    """Each selection costs a whole deadline: 1.7 rounds a second instead of 7.2."""
    async with lab(tmp_path, agents=2) as place, anyio.create_task_group() as group:
        # It is free again with a context, and 40 rounds of the others may take 0.1 s.
        silent = rogue.Rogue(rogue.offers_another_round, report_s=0.01)
        group.start_soon(silent.run, place)
        policy = SelectionConfig(policy="rbcs-f", per_round=3, beta=0.0)
        assert await place.run(make_config(40, 3, round=IMPATIENT, selection=policy)) == "done"
        group.cancel_scope.cancel()
    with RunReader(tmp_path / "run") as reader:
        exchanges = reader.exchanges(0)
        misses = [event.text for _, event in reader.events() if "3 times in a row" in event.text]
    assert [x.outcome for x in exchanges if x.device == "rogue"] == ["late"] * 3
    assert len(misses) == 1


@pytest.mark.parametrize(
    ("trick", "outcome"), [(rogue.falls_silent, "lost"), (rogue.fails_late, "failed")]
)
async def test_a_device_that_holds_each_round_up_is_selected_three_times(
    trick: rogue.Trick, outcome: str, tmp_path: Path
) -> None:
    """Each selection costs 12 or 15 s, which no deadline and no estimator sees (issue #20)."""
    async with lab(tmp_path, agents=2, limit_s=1000.0) as place, anyio.create_task_group() as group:
        group.start_soon(rogue.Rogue(trick, report_s=0.01).run, place)
        policy = SelectionConfig(policy="rbcs-f", per_round=3, beta=0.0)
        patient = RoundConfig(min_devices=3, deadline_s=60.0, join_timeout_s=30.0)
        assert await place.run(make_config(40, 3, round=patient, selection=policy)) == "done"
        group.cancel_scope.cancel()
    with RunReader(tmp_path / "run") as reader:
        mine = [x.outcome for x in reader.exchanges(0) if x.device == "rogue"]
        duration_s = reader.rounds()[-1].closed_at_s
        misses = [event.text for _, event in reader.events() if event.kind == "misses"]
    assert mine == [outcome] * 3
    assert duration_s < 60.0
    assert len(misses) == 1


@pytest.mark.parametrize(("trick", "reason"), PACKED, ids=[t.__name__ for t, _ in PACKED])
async def test_a_bad_packed_update_is_rejected_with_its_reason(
    trick: rogue.Trick, reason: str, tmp_path: Path
) -> None:
    await play_with(trick, tmp_path, ExchangeConfig(up="int8"), "int8")
    with RunReader(tmp_path / "run") as reader:
        exchanges = reader.exchanges(0)
    mine = [x for x in exchanges if x.device == "rogue"]
    assert {x.outcome for x in mine} == {"rejected"}
    assert all(reason in x.reason for x in mine)
    assert [x.outcome for x in exchanges if x.device != "rogue"] == ["done"] * 4


@pytest.mark.parametrize("codecs", [(), ("of-tomorrow",)], ids=["silent", "stranger"])
async def test_a_device_without_the_codecs_of_the_run_is_served_float32(
    codecs: tuple[str, ...], tmp_path: Path
) -> None:
    await play_with(rogue.behaves, tmp_path, ExchangeConfig(up="int8", down="float16"), *codecs)
    with RunReader(tmp_path / "run") as reader:
        exchanges = reader.exchanges(0)
        lines = [e.text for _, e in reader.events() if e.kind == "codec" and e.device == "rogue"]
    used = {(x.device == "rogue", x.codec_down, x.codec_up) for x in exchanges}
    assert used == {(True, "float32", "float32"), (False, "float16", "int8")}
    assert {x.outcome for x in exchanges} == {"done"}
    assert lines == ["its agent has no codec float16, int8: it gets float32; update its agent"]


@pytest.mark.parametrize(("trick", "kind"), IGNORED, ids=[t.__name__ for t, _ in IGNORED])
async def test_garbage_is_ignored_with_one_line_and_the_deadline_passes(
    trick: rogue.Trick, kind: str | None, tmp_path: Path
) -> None:
    await play_with(trick, tmp_path)
    with RunReader(tmp_path / "run") as reader:
        exchanges = reader.exchanges(0)
        events = [event for _, event in reader.events() if event.device == "rogue"]
    assert {x.outcome for x in exchanges if x.device == "rogue"} == {"late"}
    assert [x.outcome for x in exchanges if x.device != "rogue"] == ["done"] * 4
    assert kind is None or 1 <= sum(event.kind == kind for event in events) <= 2
    assert all("\n" not in event.text for event in events)


async def test_a_device_with_a_bad_name_is_named_in_one_line(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        stranger = place.broker.transport("stranger")
        async with stranger:
            async for event in stranger.events():
                if isinstance(event, LinkUp):
                    break
            place.on_progress = lambda p: None
            async with anyio.create_task_group() as group:
                group.start_soon(send_under_a_bad_name, stranger)
                await place.run(make_config(rounds=3))
                group.cancel_scope.cancel()
    with place.reader() as reader:
        texts = [event.text for _, event in reader.events() if event.kind == "bad message"]
        names = {device.name for device in reader.devices()}
    assert texts[0] == "device name: must be 1 to 32 of a-z, 0-9 and hyphen, got 'Pi_4'"
    assert names == {"pi-0", "pi-1", "pi-2"}


async def send_under_a_bad_name(link: Transport) -> None:
    while True:
        await link.publish("fairbed/main/d/Pi_4/up", encode(hello()), qos=1)
        await anyio.sleep(0.05)


class RepeatingRogue(rogue.Rogue):
    """Repeats a rejected offer, as if the verdict had been lost."""

    def __init__(self) -> None:
        super().__init__(rogue.offers_wrong_shape)
        self.verdicts: list[Cancel] = []

    async def _on_packet(self, payload: bytes | memoryview) -> None:
        message = decode_to_device(payload)
        if isinstance(message, Cancel):
            self.verdicts.append(message)
            if len(self.verdicts) < 3:
                await rogue.offers_wrong_shape(self)
            return
        await super()._on_packet(payload)


async def test_a_device_that_lost_its_rejection_gets_it_again(tmp_path: Path) -> None:
    one_of_two = RoundConfig(min_devices=2, deadline_s=1.5, join_timeout_s=30.0)
    async with lab(tmp_path, agents=0) as place, anyio.create_task_group() as group:
        repeating, silent = RepeatingRogue(), rogue.Rogue(rogue.offers_another_round)
        silent.name = "silent"
        for device in (repeating, silent):
            group.start_soon(device.run, place)
        with pytest.raises(NothingAggregatedError):
            await place.run(make_config(rounds=1, round=one_of_two, selection=WHOLE_FLEET))
        group.cancel_scope.cancel()
    reason = "update: must hold 610 float32 (2440 bytes), got 2436 bytes"
    assert [verdict.reason for verdict in repeating.verdicts] == [reason] * 3
