"""What a run knows of one device: exchanges, conditions over rounds, scores, problems."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from fairbed.coordinator.report.quantities import SampleCount
from fairbed.coordinator.store.reader import ContextMeans, RunReader
from fairbed.coordinator.store.tables import ClientMetricRow, EventRow, ExchangeRow, TruthRow
from fairbed.wire.messages import DEVICE_PHASES

EXCHANGE_PHASES = (*DEVICE_PHASES, "queued", "upload")
"""Parts of an exchange that have a duration, in their order."""


@dataclass(frozen=True, slots=True)
class PhaseTerms:
    """How views name a part of an exchange."""

    letter: str
    """Where colours cannot distinguish the parts."""
    noun: str
    sentence: str


PHASE_TERMS: Mapping[str, PhaseTerms] = {
    "download": PhaseTerms("d", "the download of the model", "The device downloads the model."),
    "decode": PhaseTerms(
        "c", "the decoding of the model", "It decodes the model from what was transferred."
    ),
    "load": PhaseTerms(
        "l",
        "loading data and session",
        "It loads model and data that are not in its memory yet.",
    ),
    "evaluate": PhaseTerms(
        "v",
        "the evaluation of the received model",
        "It evaluates the model on its examples before training, if the policy asks.",
    ),
    "train": PhaseTerms("t", "local training", "It trains the model on its examples."),
    "personal": PhaseTerms(
        "p", "the training of the personal model", "It trains its personal model."
    ),
    "encode": PhaseTerms(
        "e", "the encoding of the update", "It encodes the update for the transfer."
    ),
    "queued": PhaseTerms(
        "q",
        "waiting for the upload",
        "It waits for the grant to upload; this is no part of the exchange time.",
    ),
    "upload": PhaseTerms("u", "the upload of the update", "It uploads the update."),
}
"""By part of `EXCHANGE_PHASES`."""

RECENT = 20
"""Newest exchanges of which the medians are shown."""

Point = tuple[float, float]
"""Round and value; a round that is under way is a fraction."""


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """One device up to a round."""

    exchanges: Sequence[ExchangeRow]
    """The newest ones, oldest first."""
    scores: Sequence[tuple[int, float, float]]
    """Round, accuracy and loss of the global model on its examples."""
    problems: int
    """Warnings and errors about it."""
    problem: EventRow | None
    """The newest of them."""
    truth: TruthRow | None
    """As the testbed configured it; None for a physical device."""
    contexts: Sequence[tuple[float, ContextMeans]]
    """Round, and means of its contexts."""
    metrics: Sequence[ClientMetricRow] = ()
    """What its client measured, in the order of rounds."""


def read_history(
    reader: RunReader, device: str, until_round: int | None = None, until_s: float = inf
) -> DeviceHistory:
    """Read the history of a device, up to a round if one is given.

    Args:
        reader: Reads the run.
        device: Name of the device.
        until_round: Newest round of its exchanges.
        until_s: Instant of the run clock until which events and contexts count.
    """
    problems, problem = reader.problems_of(device, until_s)
    closed_at_s = reader.closing_times(until_round)
    return DeviceHistory(
        exchanges=reader.exchanges_of(device, until_round=until_round),
        scores=reader.scores_of(device, until_round),
        problems=problems,
        problem=problem,
        truth=reader.truth_of(device),
        contexts=[
            (round_at(closed_at_s, means.at_s), means)
            for means in reader.context_means(device, until_s)
        ],
        metrics=reader.client_metrics(until_round=until_round, device=device),
    )


def round_at(closed_at_s: Sequence[tuple[int, float]], at_s: float) -> float:
    """Return the round at an instant of the run clock, with the share of it that has passed.

    A whole number is the end of that round; before round 1 and after the last one it is 0 and the
    last number.

    Args:
        closed_at_s: Numbers and ends of rounds, in order.
        at_s: The instant, seconds.
    """
    at = bisect_left(closed_at_s, at_s, key=lambda row: row[1])
    if at == len(closed_at_s):
        return float(closed_at_s[-1][0]) if closed_at_s else 0.0
    number, end_s = closed_at_s[at]
    begin_s = closed_at_s[at - 1][1] if at else 0.0
    share = (at_s - begin_s) / (end_s - begin_s) if end_s > begin_s else 1.0
    return number - 1 + min(max(share, 0.0), 1.0)


def phase_seconds(row: ExchangeRow, phase: str) -> float | None:
    """Return the duration of a phase of an exchange, seconds."""
    value: float | None = getattr(row, f"{phase}_s")
    return value


@dataclass(frozen=True, slots=True)
class SlowestPhase:
    """The phase that takes most of the exchanges of a device: medians, seconds."""

    phase: str
    phase_s: float
    tau_s: float
    sample: SampleCount
    """Timed exchanges of which these are the medians, of all of the newest ones."""


def slowest_phase(rows: Sequence[ExchangeRow]) -> SlowestPhase | SampleCount:
    """Return the slowest phase of the newest `RECENT` exchanges, or of how few it would be.

    The wait for an upload grant is the coordinator's time, and no phase of the device.

    Args:
        rows: Exchanges of one device, oldest first.
    """
    newest = rows[-RECENT:]
    measured = [x for x in newest if x.outcome == "done" and x.is_valid and x.tau_s is not None]
    sample = SampleCount(len(measured), len(newest))
    if sample.why_none:
        return sample
    medians = {
        phase: median(phase_seconds(row, phase) or 0.0 for row in measured)
        for phase in EXCHANGE_PHASES
        if phase != "queued"
    }
    phase = max(medians, key=medians.__getitem__)
    return SlowestPhase(phase, medians[phase], median(row.tau_s or 0.0 for row in measured), sample)


def phases_by_duration(rows: Sequence[ExchangeRow], least_share: float = 0.001) -> list[str]:
    """Return the phases of some exchanges, longest first, without those that hardly take time.

    Args:
        rows: Exchanges of one device.
        least_share: Least share of all phases together that a phase must take.
    """
    total_s = {
        phase: sum(phase_seconds(row, phase) or 0.0 for row in rows) for phase in EXCHANGE_PHASES
    }
    least_s = least_share * sum(total_s.values())
    named = sorted(EXCHANGE_PHASES, key=lambda phase: -total_s[phase])
    return [phase for phase in named if total_s[phase] > least_s]
