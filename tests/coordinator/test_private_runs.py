"""A live run with local noise: who takes part, what is counted, and what survives a restart."""

from pathlib import Path

import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import PrivacyConfig
from fairbed.coordinator.records.rows import release_row
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.registry import Device
from fairbed.coordinator.store.tables import ReleaseRow
from fairbed.wire.messages import Capabilities
from tests.coordinator.builders import CAPABILITIES, offer
from tests.coordinator.lab import NAMES, PATIENT, WHOLE_FLEET, lab, make_config

NOISE = PrivacyConfig(clip=0.5, noise_multiplier=2.0)


@pytest.mark.anyio
@pytest.mark.idle_time_skipped
async def test_a_restart_keeps_the_count_of_a_round_that_never_closed(tmp_path: Path) -> None:
    config = make_config(3, len(NAMES), selection=WHOLE_FLEET, round=PATIENT, privacy=NOISE)
    async with lab(tmp_path) as place:
        store = place.open_store()
        first = place.coordinator(config, store)
        place.on_progress = lambda p: first.stop() if p.round.round == 2 else None
        try:
            assert await first.run() == "stopped"
            # Round 3 was dispatched, and the coordinator was killed.
            for name in NAMES:
                store.add(ReleaseRow(round=3, attempt=0, device=name, is_released=True))
        finally:
            store.close()
        place.on_progress = lambda p: None
        store = place.open_store()
        try:
            assert await place.coordinator(config, store, attempt=1).run() == "done"
        finally:
            store.close()
        with place.reader() as reader:
            assert reader.releases() == dict.fromkeys(NAMES, 4), "3 rounds, and one repeated"
            exchanges = reader.exchanges()
    assert {(x.loss_before, x.loss_train) for x in exchanges} == {(None, None)}


@pytest.mark.anyio
@pytest.mark.idle_time_skipped
@pytest.mark.parametrize(("privacy", "got"), [(NOISE, "2"), (PrivacyConfig(), "no noise")])
async def test_a_device_whose_owner_demands_more_noise_is_never_selected(
    tmp_path: Path, privacy: PrivacyConfig, got: str
) -> None:
    config = make_config(3, 2, privacy=privacy)
    async with lab(tmp_path, agents=2) as place:
        place.start_agent("pi-2", min_noise_multiplier=2.5)
        assert await place.run(config) == "done"
        with place.reader() as reader:
            (event,) = [x for _, x in reader.events() if x.kind == "skill"]
            assert {x.device for x in reader.exchanges()} <= {"pi-0", "pi-1"}
    assert event.device == "pi-2"
    assert event.text == (
        f"its owner wants a privacy.noise_multiplier of at least 2.5, got {got}, so it is never "
        "selected"
    )


@pytest.mark.anyio
@pytest.mark.idle_time_skipped
async def test_without_noise_nothing_is_counted(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        assert await place.run(make_config(2)) == "done"
        with place.reader() as reader:
            assert reader.releases() == {}


@pytest.mark.parametrize(
    ("state", "granted", "has_offer", "is_released"),
    [
        (ExchangeState.DISPATCHED, None, False, True),  # until it has ended it may be sent
        (ExchangeState.DONE, 2.0, True, True),
        (ExchangeState.REJECTED, 2.0, True, True),
        (ExchangeState.LATE, 2.0, True, True),
        (ExchangeState.CANCELLED, 2.0, True, True),
        (ExchangeState.LOST, 2.0, True, True),
        (ExchangeState.LATE, None, True, False),  # it waited for its grant
        (ExchangeState.LATE, None, False, False),
        (ExchangeState.FAILED, None, False, False),
        (ExchangeState.FAILED, 2.0, False, False),  # a replay: the training diverged
    ],
)
def test_an_update_counts_from_its_grant_on_whatever_becomes_of_it(
    state: ExchangeState, granted: float | None, has_offer: bool, is_released: bool
) -> None:
    x = Exchange("pi-0", 0.0, round=3, attempt=1, state=state, granted=granted)
    x.offer = offer(3) if has_offer else None
    expected = ReleaseRow(round=3, attempt=1, device="pi-0", is_released=is_released)
    assert release_row(x, "pi-0") == expected


def capable(**fields: object) -> Capabilities:
    return structs.replace(CAPABILITIES, **fields)


@pytest.mark.parametrize(
    ("fields", "noise_multiplier", "accepts"),
    [
        ({}, None, True),
        ({}, 1.0, False),  # an old agent
        ({"skills": ("privacy",)}, 1.0, True),
        ({"skills": ("privacy",), "min_noise_multiplier": 1.0}, 1.0, True),
        ({"skills": ("privacy",), "min_noise_multiplier": 1.5}, 1.0, False),
        ({"skills": ("privacy",), "min_noise_multiplier": 1.5}, None, False),
    ],
)
def test_a_device_takes_part_if_it_can_and_its_owner_lets_it(
    fields: dict[str, object], noise_multiplier: float | None, accepts: bool
) -> None:
    device = Device(name="pi-0", row=0, capabilities=capable(**fields))
    assert device.accepts_noise(noise_multiplier) is accepts
    assert Device(name="pi-1", row=1).accepts_noise(None)
    assert not Device(name="pi-1", row=1).accepts_noise(1.0)
