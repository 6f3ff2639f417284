"""The device screen explains the absence of a device, as far as the coordinator knows."""

import pytest

from fairbed.coordinator.tui.screens.device import state_text
from fairbed.coordinator.tui.view import DeviceView


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (DeviceView("pi", state="training", last_context_s=99.0), "training"),
        (
            DeviceView("pi", state="unwilling", last_context_s=99.0),
            "unwilling: its owner or its schedule does not allow training",
        ),
        (
            DeviceView("pi", state="silent", last_context_s=30.0),
            "silent: outage or frozen process; last context 1:10 ago",
        ),
        (DeviceView("pi", state="gone"), "gone: disconnected"),
    ],
)
def test_only_states_of_absence_are_explained(device: DeviceView, words: str) -> None:
    assert state_text(device, 100.0) == words
