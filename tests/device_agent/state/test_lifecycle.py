"""The lifecycle table: its transitions, and that all other events are illegal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.device_agent.state.lifecycle import TRANSITIONS, Event, IllegalEvent, Phase, step

ROUND = [
    (Event.TRAIN_REQUESTED, Phase.DOWNLOADING),
    (Event.DOWNLOADED, Phase.LOADING),
    (Event.LOADED, Phase.EVALUATING),
    (Event.EVALUATED, Phase.TRAINING),
    (Event.TRAINED, Phase.ENCODING),
    (Event.ENCODED, Phase.OFFERING),
    (Event.GRANTED, Phase.UPLOADING),
    (Event.SENT, Phase.CONFIRMING),
    (Event.UPLOAD_CONFIRMED, Phase.IDLE),
]
JOINING = [
    (Event.LINK_UP, Phase.WAITING),
    (Event.COORDINATOR_SEEN, Phase.JOINING),
    (Event.WELCOMED, Phase.PREPARING),
    (Event.PREPARED, Phase.IDLE),
]
QUESTION = [(Event.EVALUATE_REQUESTED, Phase.ANSWERING), (Event.EVALUATE_REPLIED, Phase.IDLE)]
WORKING = [*(phase for _, phase in ROUND[:-1]), Phase.ANSWERING]


def walk(phase: Phase, *events: Event) -> Phase:
    for event in events:
        phase = step(phase, event)
    return phase


def test_goes_from_offline_through_a_round_back_to_idle() -> None:
    phase = Phase.OFFLINE
    for event, expected in JOINING + ROUND + QUESTION + ROUND:
        phase = step(phase, event)
        assert phase is expected


@pytest.mark.parametrize("phase", WORKING)
def test_a_lost_link_does_not_stop_work(phase: Phase) -> None:
    assert walk(phase, Event.LINK_LOST, Event.LINK_UP, Event.COORDINATOR_LEFT) is phase


@pytest.mark.parametrize("phase", [*WORKING, Phase.IDLE, Phase.PREPARING])
def test_a_new_coordinator_ends_everything(phase: Phase) -> None:
    assert step(phase, Event.COORDINATOR_SEEN) is Phase.JOINING


@pytest.mark.parametrize("phase", WORKING)
def test_another_round_replaces_the_current_one(phase: Phase) -> None:
    assert step(phase, Event.TRAIN_REQUESTED) is Phase.DOWNLOADING


@pytest.mark.parametrize("phase", WORKING)
def test_another_loss_query_replaces_the_current_work(phase: Phase) -> None:
    assert step(phase, Event.EVALUATE_REQUESTED) is Phase.ANSWERING


@pytest.mark.parametrize("phase", WORKING)
def test_a_round_may_end_in_any_phase(phase: Phase) -> None:
    assert phase.is_working
    assert step(phase, Event.ENDED) is Phase.IDLE


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.JOINING, Phase.IDLE])
def test_a_device_without_work_goes_offline_with_the_link(phase: Phase) -> None:
    assert not phase.is_working
    assert step(phase, Event.LINK_LOST) is Phase.OFFLINE


@pytest.mark.parametrize("phase", Phase)
def test_every_event_without_a_row_is_illegal_and_keeps_the_phase(phase: Phase) -> None:
    for event in set(Event) - set(TRANSITIONS[phase]):
        before = phase
        with pytest.raises(IllegalEvent, match=f"event must be legal in phase {phase}"):
            step(phase, event)
        assert phase is before


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.STOPPED])
def test_the_agent_can_be_finished_in_every_phase(phase: Phase) -> None:
    assert step(phase, Event.FINISHED) is Phase.STOPPED


def test_a_stopped_agent_has_no_legal_event() -> None:
    assert not TRANSITIONS[Phase.STOPPED]


@given(st.lists(st.sampled_from(list(Event))))
def test_a_new_coordinator_always_leads_back_to_idle(events: list[Event]) -> None:
    phase = Phase.OFFLINE
    for event in events:
        if event in TRANSITIONS[phase]:
            phase = step(phase, event)
    if phase is Phase.OFFLINE:
        phase = step(phase, Event.LINK_UP)
    if phase is not Phase.STOPPED:
        assert walk(phase, Event.COORDINATOR_SEEN, Event.WELCOMED, Event.PREPARED) is Phase.IDLE
