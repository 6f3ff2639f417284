"""Phases of an exchange as time spans: from a stored row, or from telemetry while it is open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fairbed.coordinator.report.device_history import EXCHANGE_PHASES, PHASE_TERMS
from fairbed.coordinator.store.tables import ExchangeRow

PHASES = EXCHANGE_PHASES
"""Phases of an exchange in their order."""
MISSED = "missed"
"""Rest of the round after an exchange that was not done."""

LETTERS: Mapping[str, str] = {
    **{phase: PHASE_TERMS[phase].letter for phase in PHASES},
    MISSED: "x",
}
"""Letter of each phase, where colours cannot distinguish them."""

WORDS: Mapping[str, str] = {
    **{phase: PHASE_TERMS[phase].sentence for phase in PHASES},
    MISSED: "The rest of the round after an exchange that was late, lost or failed.",
}
"""What happens in each phase."""

OVER = ""
"""The device no longer works on the exchange."""

PHASE_OF_STATE: Mapping[str, str] = {
    "downloading": "download",
    "loading": "load",
    "evaluating": "evaluate",
    "training": "train",
    "encoding": "encode",
    "offering": "queued",
    "uploading": "upload",
    "confirming": "upload",
}
"""Phase of each reported state of a working device."""


@dataclass(frozen=True, slots=True)
class Span:
    """Time span of one phase, seconds since the dispatch of its round."""

    phase: str
    start_s: float
    end_s: float


def spans_of(
    row: ExchangeRow, round_start_s: float, round_s: float, *, is_personal: bool = True
) -> tuple[Span, ...]:
    """Return the phases of a closed exchange, without gaps.

    Half of the time in no phase (mostly control messages in transit) is placed before the first.

    Args:
        row: The exchange.
        round_start_s: Dispatch of its round, seconds of the run clock.
        round_s: Duration of its round, seconds.
        is_personal: Devices train personal models; otherwise the lap of that phase, which then is
            below a millisecond, is not drawn.
    """
    names = [phase for phase in PHASES if is_personal or phase != "personal"]
    known = [getattr(row, f"{phase}_s") or 0.0 for phase in names]
    at_s = max(row.dispatched_at_s - round_start_s, 0.0)
    if row.tau_wall_s is not None:
        at_s += max(row.tau_wall_s - sum(known), 0.0) / 2.0
    spans = []
    for phase, value in zip(names, known, strict=True):
        if value > 0.0:
            spans.append(Span(phase, at_s, at_s + value))
            at_s += value
    if row.outcome != "done" and round_s > at_s:
        spans.append(Span(MISSED, at_s, round_s))
    return tuple(spans)


def extend(spans: Sequence[Span], state: str, now_s: float) -> tuple[Span, ...]:
    """Return the spans of an open exchange after one more report.

    Args:
        spans: Spans before the report.
        state: State reported by the device.
        now_s: Time since the dispatch of the round, seconds.
    """
    phase = PHASE_OF_STATE.get(state, OVER)
    if not spans:
        return () if phase == OVER else (Span(phase, 0.0, max(now_s, 0.0)),)
    last = spans[-1]
    if last.phase == phase == OVER:
        return tuple(spans)
    ended = replace(last, end_s=max(now_s, last.end_s))
    if last.phase == phase:
        return (*spans[:-1], ended)
    return (*spans[:-1], ended, Span(phase, ended.end_s, ended.end_s))
