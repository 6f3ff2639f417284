"""What an agent is doing, as one table; everything that changes it is in this file.

    offline ─> waiting ─> joining ─> preparing ─> idle
                                                   │ Asked
    idle <─ confirming <─ uploading <─ offering <─ downloading, loading, evaluating,
                                                   training, encoding

Before a selection it may be asked for the loss of a model: idle ─ Questioned ─> answering ─> idle.
A lost link does not stop work: a device keeps preparing or training and resumes its transfers.
Only who waits for the coordinator (waiting, joining, idle) goes offline. A coordinator that is
new, or another `Train`, ends the round at once, whatever its phase.

The table does not know time, transport or threads; the agent feeds it and logs what it returns.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias


class Phase(str, Enum):
    """What the agent is doing; the value is what it reports in its context."""

    OFFLINE = "offline"
    """No link to the broker."""
    WAITING = "waiting"
    """Linked, but no coordinator is there."""
    JOINING = "joining"
    """Has said hello."""
    PREPARING = "preparing"
    """Pulls task and data, tries the engine, measures the link."""
    IDLE = "idle"
    """Can take a `Train`."""
    DOWNLOADING = "downloading"
    LOADING = "loading"
    EVALUATING = "evaluating"
    TRAINING = "training"
    ENCODING = "encoding"
    OFFERING = "offering"
    """Waits for the grant."""
    UPLOADING = "uploading"
    CONFIRMING = "confirming"
    """All chunks are sent; waits for the coordinator's last word."""
    ANSWERING = "answering"
    """Pulls a model and evaluates it, because a selection depends on its loss."""
    STOPPED = "stopped"

    def __str__(self) -> str:
        return self.value

    @property
    def is_working(self) -> bool:
        """A round is under way."""
        return self in _WORKING


class Event(Enum):
    """What can happen to an agent."""

    LINK_UP = "the link came up"
    LINK_LOST = "the link went down"
    COORDINATOR_SEEN = "a coordinator is on that we have to greet"
    COORDINATOR_LEFT = "the coordinator went off"
    WELCOMED = "the coordinator took us in"
    PREPARED = "task and data are here and work"
    UNPREPARED = "task or data cannot be had or do not work"
    TRAIN_REQUESTED = "`Train` arrived"
    EVALUATE_REQUESTED = "`EvaluateRequest` arrived"
    EVALUATE_REPLIED = "`EvaluateReply` was sent"
    DOWNLOADED = "the model is here"
    LOADED = "data and session are in memory"
    EVALUATED = "the loss before training is known, or nobody asked for it"
    TRAINED = "the local epochs are done"
    ENCODED = "the update is ready to go"
    GRANTED = "the coordinator lets us upload"
    SENT = "every chunk was sent"
    UPLOAD_CONFIRMED = "`UploadResult` arrived"
    ENDED = "the round was cancelled, failed or came too late"
    FINISHED = "the run is over, or we are not wanted"


class IllegalEvent(Exception):
    """The table has no row for this event; the phase is unchanged."""


Row: TypeAlias = Mapping[Event, Phase]

_ALWAYS: Row = {Event.FINISHED: Phase.STOPPED}

_ORDERS: Row = {Event.TRAIN_REQUESTED: Phase.DOWNLOADING, Event.EVALUATE_REQUESTED: Phase.ANSWERING}
"""What the coordinator may want of a device; the newest order is the one that counts."""

_LINKED: Row = {
    **_ALWAYS,
    Event.LINK_LOST: Phase.OFFLINE,
    Event.COORDINATOR_SEEN: Phase.JOINING,
    Event.COORDINATOR_LEFT: Phase.WAITING,
}
"""Rows of those who have no work to save."""


def _busy(phase: Phase) -> Row:
    """Return the row of who has work to save: it survives the link, not a new coordinator."""
    return {
        **_ALWAYS,
        Event.LINK_UP: phase,
        Event.LINK_LOST: phase,
        Event.COORDINATOR_LEFT: phase,
        Event.COORDINATOR_SEEN: Phase.JOINING,
        Event.WELCOMED: phase,
    }


def _working(phase: Phase, progress: Row) -> Row:
    """Return the row of a phase of a round."""
    return {**_busy(phase), **_ORDERS, Event.ENDED: Phase.IDLE, **progress}


TRANSITIONS: Mapping[Phase, Row] = {
    Phase.OFFLINE: {**_ALWAYS, Event.LINK_UP: Phase.WAITING, Event.LINK_LOST: Phase.OFFLINE},
    Phase.WAITING: {**_LINKED, **_ORDERS},
    Phase.JOINING: {**_LINKED, **_ORDERS, Event.WELCOMED: Phase.PREPARING},
    Phase.PREPARING: {
        **_busy(Phase.PREPARING),
        Event.PREPARED: Phase.IDLE,
        Event.UNPREPARED: Phase.JOINING,
    },
    Phase.IDLE: {**_LINKED, **_ORDERS, Event.WELCOMED: Phase.PREPARING},
    Phase.ANSWERING: _working(Phase.ANSWERING, {Event.EVALUATE_REPLIED: Phase.IDLE}),
    Phase.DOWNLOADING: _working(Phase.DOWNLOADING, {Event.DOWNLOADED: Phase.LOADING}),
    Phase.LOADING: _working(Phase.LOADING, {Event.LOADED: Phase.EVALUATING}),
    Phase.EVALUATING: _working(Phase.EVALUATING, {Event.EVALUATED: Phase.TRAINING}),
    Phase.TRAINING: _working(Phase.TRAINING, {Event.TRAINED: Phase.ENCODING}),
    Phase.ENCODING: _working(Phase.ENCODING, {Event.ENCODED: Phase.OFFERING}),
    Phase.OFFERING: _working(
        Phase.OFFERING, {Event.GRANTED: Phase.UPLOADING, Event.UPLOAD_CONFIRMED: Phase.IDLE}
    ),
    Phase.UPLOADING: _working(
        Phase.UPLOADING, {Event.SENT: Phase.CONFIRMING, Event.UPLOAD_CONFIRMED: Phase.IDLE}
    ),
    Phase.CONFIRMING: _working(Phase.CONFIRMING, {Event.UPLOAD_CONFIRMED: Phase.IDLE}),
    Phase.STOPPED: {},
}
"""The whole behaviour: phase, event, next phase."""

_WORKING = frozenset(phase for phase, row in TRANSITIONS.items() if Event.ENDED in row)


def step(phase: Phase, event: Event) -> Phase:
    """Return the phase after `event`.

    Raises:
        IllegalEvent: The table has no such row. The caller's phase is unchanged.
    """
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise IllegalEvent(
            f"lifecycle: must not happen while {phase}, got '{event.value}'"
        ) from None
