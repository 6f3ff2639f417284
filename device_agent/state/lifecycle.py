"""The lifecycle of an agent, as one table of phase, event and next phase.

    offline ─> waiting ─> joining ─> preparing ─> idle
                                                   │ Train
    idle <─ confirming <─ uploading <─ offering <─ downloading, loading, evaluating,
                                                   training, encoding

A loss query may precede the selection, a test may follow the round: idle ─ EvaluateRequest ─>
answering ─> idle. A lost link
does not stop work: the device continues to prepare or train, and resumes its transfers. Only a
device without work (waiting, joining, idle) goes offline. A new coordinator or a new `Train` ends
the round at once, in any phase.

The table is pure: no time, transport or threads.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias


class Phase(str, Enum):
    """Phase of the agent; its context reports the value."""

    OFFLINE = "offline"
    """No link to the broker."""
    WAITING = "waiting"
    """Linked, but no coordinator is online."""
    JOINING = "joining"
    """Sends `Hello` and waits for `Welcome`."""
    PREPARING = "preparing"
    """Downloads task and data, checks the engine, measures the link."""
    IDLE = "idle"
    """Ready for a `Train`."""
    DOWNLOADING = "downloading"
    LOADING = "loading"
    EVALUATING = "evaluating"
    TRAINING = "training"
    ENCODING = "encoding"
    OFFERING = "offering"
    """Waits for the grant."""
    UPLOADING = "uploading"
    CONFIRMING = "confirming"
    """All chunks are sent; waits for the `UploadResult`."""
    ANSWERING = "answering"
    """Downloads and evaluates a model for an `EvaluateRequest`."""
    STOPPED = "stopped"

    def __str__(self) -> str:
        return self.value

    @property
    def is_working(self) -> bool:
        """A round or a loss query is in progress."""
        return self in _WORKING


class Event(Enum):
    """Event of the lifecycle; the value is its description in messages."""

    LINK_UP = "the link came up"
    LINK_LOST = "the link went down"
    COORDINATOR_SEEN = "a coordinator without our `Hello` is online"
    COORDINATOR_LEFT = "the coordinator went offline"
    WELCOMED = "`Welcome` arrived"
    PREPARED = "task and data are ready"
    UNPREPARED = "task or data cannot be obtained or used"
    TRAIN_REQUESTED = "`Train` arrived"
    EVALUATE_REQUESTED = "`EvaluateRequest` arrived"
    EVALUATE_REPLIED = "`EvaluateReply` was sent"
    DOWNLOADED = "the model is downloaded"
    LOADED = "data and session are in memory"
    EVALUATED = "the loss before training is known or not needed"
    TRAINED = "the local epochs are done"
    ENCODED = "the update is encoded"
    GRANTED = "`Grant` arrived"
    SENT = "every chunk was sent"
    UPLOAD_CONFIRMED = "`UploadResult` arrived"
    ENDED = "the round was cancelled, failed or was late"
    FINISHED = "the run is over, or the agent was refused"


class IllegalEvent(Exception):
    """The table has no row for this event; the phase is unchanged."""


Row: TypeAlias = Mapping[Event, Phase]

_ALWAYS: Row = {Event.FINISHED: Phase.STOPPED}

_REQUESTS: Row = {
    Event.TRAIN_REQUESTED: Phase.DOWNLOADING,
    Event.EVALUATE_REQUESTED: Phase.ANSWERING,
}
"""Requests of the coordinator; the newest one counts."""

_LINKED: Row = {
    **_ALWAYS,
    Event.LINK_LOST: Phase.OFFLINE,
    Event.COORDINATOR_SEEN: Phase.JOINING,
    Event.COORDINATOR_LEFT: Phase.WAITING,
}
"""Rows of phases without work in progress."""


def _busy(phase: Phase) -> Row:
    """Return the row of a phase with work: a lost link keeps it, a new coordinator ends it."""
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
    return {**_busy(phase), **_REQUESTS, Event.ENDED: Phase.IDLE, **progress}


TRANSITIONS: Mapping[Phase, Row] = {
    Phase.OFFLINE: {**_ALWAYS, Event.LINK_UP: Phase.WAITING, Event.LINK_LOST: Phase.OFFLINE},
    Phase.WAITING: {**_LINKED, **_REQUESTS},
    Phase.JOINING: {**_LINKED, **_REQUESTS, Event.WELCOMED: Phase.PREPARING},
    Phase.PREPARING: {
        **_busy(Phase.PREPARING),
        Event.PREPARED: Phase.IDLE,
        Event.UNPREPARED: Phase.JOINING,
    },
    Phase.IDLE: {**_LINKED, **_REQUESTS, Event.WELCOMED: Phase.PREPARING},
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
"""The transition table: phase, event, next phase."""

_WORKING = frozenset(phase for phase, row in TRANSITIONS.items() if Event.ENDED in row)


def step(phase: Phase, event: Event) -> Phase:
    """Return the phase after `event`.

    Raises:
        IllegalEvent: The table has no row for the event. The caller's phase is unchanged.
    """
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise IllegalEvent(
            f"lifecycle: event must be legal in phase {phase}, got '{event.value}'"
        ) from None
