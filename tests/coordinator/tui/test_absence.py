"""The device screen explains the absence of a device, as far as the coordinator knows."""

import pytest

from fairbed.coordinator.tui.screens.device import state_words
from fairbed.coordinator.tui.view import DeviceView


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (DeviceView("pi", state="training", last_context_s=99.0), "training"),
        (
            DeviceView("pi", state="unwilling", last_context_s=99.0),
            "unwilling: its owner or its schedule keeps it out",
        ),
        (
            DeviceView("pi", state="silent", last_context_s=30.0),
            "silent: no context, in an outage or frozen; heard 1:10 ago",
        ),
        (DeviceView("pi", state="gone"), "gone: disconnected"),
    ],
)
def test_only_states_of_absence_are_explained(device: DeviceView, words: str) -> None:
    assert state_words(device, 100.0) == words
