"""A live run with local noise: who takes part, what is counted, and what survives a restart."""

from pathlib import Path

import pytest

from fairbed.coordinator.policy.config import PrivacyConfig
from fairbed.coordinator.store.tables import ReleaseRow
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
