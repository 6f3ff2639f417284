"""Builders of store rows: exchanges, rounds, selections, loss queries and metrics. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, PHASES
from fairbed.coordinator.algorithms.selection.base import WORDS
from fairbed.coordinator.fleet.codec_agreement import codecs_of, pulled_blob
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.policy.selection import Selection
from fairbed.coordinator.ports import Score
from fairbed.coordinator.script.ended import Ended
from fairbed.coordinator.script.round import ClosedRound
from fairbed.coordinator.state.exchange import Contention, Exchange, ExchangeState
from fairbed.coordinator.state.registry import Device, clamped_mu, cold_start
from fairbed.coordinator.state.round import Round
from fairbed.coordinator.store.schema import MEASURED, Cells, Columns, accepted
from fairbed.coordinator.store.tables import (
    DeviceMetricRow,
    ExchangeRow,
    FleetContextRow,
    LossQueryRow,
    MetricRow,
    PersonalScoreRow,
    ReleaseRow,
    RoundRow,
    SelectionRow,
    Source,
)
from fairbed.wire.evaluation import (
    Evaluation,
    Quality,
    Spread,
    class_accuracies,
    class_ious,
    mean_defined,
)
from fairbed.wire.messages import (
    COMPUTE_PHASES,
    DEVICE_PHASES,
    MAX_WATTS,
    EvaluateReply,
    Offer,
    Phases,
    Train,
)

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation
    from fairbed.coordinator.state.loss_query import LossQuery

_NETWORK = "the network to the host of the device"
"""A part of the path of an exchange, as reasons name it."""

CONTENDED_RATIO_LIMIT = 0.05
"""Largest contention and lag of a valid exchange, as a share of its time: above it the times are
those of the host and not those of the emulated device."""

PHASE_COLUMNS = tuple(f"{phase}_s" for phase in DEVICE_PHASES)
"""Columns of an exchange that the device measures; None until its offer."""

_compute_phases_s: Callable[[Phases], tuple[float, ...]] = attrgetter(
    *(f"{phase}_s" for phase in COMPUTE_PHASES)
)

TRANSFERS = ("download", "upload")
"""The phases of an exchange in which the link is at work, and not the processor."""

ENERGY_PHASES = (*DEVICE_PHASES, "upload")
"""The phases of an exchange with energy: each is a column `PHASE_j`."""

MAX_FLEET_ROW_DEVICES = 10_000
"""Largest fleet whose contexts are stored in each round: 40 bytes per device."""

UNACCOUNTED_FLOOR_S = -0.005
"""Smallest plausible unaccounted time: reported phases that exceed tau by more are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAtSelection:
    """Columns of an exchange: context and prediction of the device at its selection."""

    mu_cores: float
    downlink_bps: float | None
    uplink_bps: float | None
    link_age_s: float | None
    context_age_s: float | None
    s_not_previous: int
    s_literal_seed: int
    tau_hat_s: float
    width_s: float


KNOWN_COLUMNS = tuple(field.name for field in fields(KnownAtSelection))
"""Columns of an exchange that are known before its dispatch."""
known_values: Callable[[KnownAtSelection], tuple[Any, ...]] = attrgetter(*KNOWN_COLUMNS)
"""Returns them in this order."""


def known_at_selection(device: Device, selection: Selection, now: float) -> KnownAtSelection:
    """Return context and prediction of a selected device at this instant."""
    context = device.context
    return KnownAtSelection(
        mu_cores=clamped_mu(device),
        downlink_bps=context.downlink_bps if context else None,
        uplink_bps=context.uplink_bps if context else None,
        link_age_s=context.link_age_s if context else None,
        context_age_s=now - device.context_at if context else None,
        s_not_previous=cold_start(device, "not_previous"),
        s_literal_seed=cold_start(device, "literal_seed"),
        tau_hat_s=float(selection.prediction.tau_hat_s[device.row]),
        width_s=float(selection.prediction.width_s[device.row]),
    )


_WASTED = frozenset({ExchangeState.LOST, ExchangeState.FAILED, ExchangeState.REJECTED})
"""States of exchanges that gave no update because of the device."""


def phases_s(exchange: Exchange) -> tuple[float, ...] | None:
    """Return the phases of an exchange in the order of `PHASES`; None until an update arrived.

    Their sum is tau: the last phase is the time that neither the device nor the coordinator
    measured.
    """
    tau, offer, upload = exchange.tau_s, exchange.offer, exchange.upload_s
    if tau is None or offer is None or upload is None:
        return None
    p = offer.phases
    known = p.download_s, p.load_s, sum(_compute_phases_s(p)), upload
    return *known, tau - sum(known)


def seen_phases_s(exchange: Exchange) -> tuple[float, ...] | None:
    """Return the phases of an abandoned exchange that its offer reports; None without an offer.

    The upload and the rest were not seen: NaN.
    """
    if exchange.offer is None or exchange.is_disturbed:
        return None
    p = exchange.offer.phases
    return p.download_s, p.load_s, sum(_compute_phases_s(p)), math.nan, math.nan


def unaccounted_s(exchange: Exchange) -> float | None:
    """Return tau minus its phases and its signal; None until an update arrived."""
    return _rest_s(exchange, phases_s(exchange))


def _rest_s(exchange: Exchange, phases: tuple[float, ...] | None) -> float | None:
    return None if phases is None else phases[-1] - (exchange.signal_s or 0.0)


_NO_CONTENTION = Contention()


def contention_reason(exchange: Exchange) -> str:
    """Return the contention that makes an exchange invalid; empty if there is none."""
    took_s, found = exchange.busy_s, exchange.contention or _NO_CONTENTION
    delay_s = found.download_s + found.compute_s + found.upload_s + found.network_s
    delay_s += exchange.lag_s
    if took_s is None or delay_s <= CONTENDED_RATIO_LIMIT * took_s:
        return ""
    delays_s = {
        "the link and the broker during the download": found.download_s,
        "the device": found.compute_s,
        "the link and the broker during the upload": found.upload_s,
        "the coordinator": exchange.lag_s,
        _NETWORK: found.network_s,
    }
    most = max(delays_s, key=lambda part: delays_s[part])
    share = 100 * delay_s / max(took_s, delay_s)
    cause = f"{_NETWORK} was too slow" if most == _NETWORK else "this machine was too busy"
    return (
        f"{cause}: it delayed the exchange by up to {1e3 * delay_s:.0f} ms, {share:.0f} % of its "
        f"time, most of it {most} ({1e3 * delays_s[most]:.0f} ms)"
    )


def invalid_reason(exchange: Exchange) -> str:
    """Return why the estimator must not learn from an exchange; empty if it may."""
    return _verdict_on(exchange).invalid


class _Verdict(NamedTuple):
    """What is known of an exchange for its row and for the estimator."""

    phases_s: tuple[float, ...] | None
    """See `phases_s`."""
    contention: str
    """See `contention_reason`."""
    invalid: str
    """See `invalid_reason`."""


def _verdict_on(exchange: Exchange) -> _Verdict:
    found, contention, signal_s = (
        phases_s(exchange),
        contention_reason(exchange),
        exchange.signal_s or 0.0,
    )
    rest = _rest_s(exchange, found)
    if exchange.state is not ExchangeState.DONE or rest is None:
        invalid = exchange.reason or exchange.state.value
    elif exchange.is_disturbed:
        invalid = "the coordinator lost its own link during the exchange"
    elif contention:
        invalid = contention
    elif rest < UNACCOUNTED_FLOOR_S - signal_s:
        invalid = f"reported phases exceed tau by {-rest:.3f} s"
    else:
        invalid = ""
    return _Verdict(found, contention, invalid)


def ended_columns(
    exchanges: Sequence[Exchange], rows: Sequence[int], contexts: Sequence[Floats | None]
) -> Ended:
    """Return exchanges that ended, or late ones that are open, as columns.

    Args:
        exchanges: The exchanges, K of them.
        rows: Rows of their devices.
        contexts: Context of each at its selection, shape (4,), if that was in an earlier round.
    """
    is_trusted, phases = list[bool](), list[tuple[float, ...]]()
    for x in exchanges:
        verdict, is_done = _verdict_on(x), x.state is ExchangeState.DONE
        is_disturbed = x.state in _WASTED and x.is_disturbed
        is_trusted.append(not (verdict.invalid if is_done else verdict.contention or is_disturbed))
        phases.append((verdict.phases_s if is_done else seen_phases_s(x)) or _NO_PHASES)
    at_least_s = _column([x.at_least_s for x in exchanges])
    return Ended(
        rows=np.array(rows, dtype=np.int64),
        states=[x.state for x in exchanges],
        is_late=np.array([x.is_late for x in exchanges], dtype=np.bool_),
        is_trusted=np.array(is_trusted, dtype=np.bool_),
        tau_s=_column([x.tau_s for x in exchanges]),
        phases_s=np.array(phases, dtype=np.float64).reshape(-1, len(_NO_PHASES)),
        at_least_s=at_least_s,
        wasted_s=at_least_s,
        loss=_column([_loss(x.offer) for x in exchanges]),
        was_cold=np.array([x.offer is not None and x.offer.was_cold for x in exchanges], np.bool_),
        context=np.array(
            [_NO_CONTEXT if context is None else context for context in contexts]
        ).reshape(-1, CONTEXT),
    )


_NO_PHASES, _NO_CONTEXT = (math.nan,) * len(PHASES), np.full(CONTEXT, np.nan)


def _column(values: Sequence[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _loss(offer: Offer | None) -> float | None:
    if offer is None:
        return None
    return offer.loss_train if offer.loss_before is None else offer.loss_before


def exchange_row(
    exchange: Exchange,
    table: Round,
    known: KnownAtSelection,
    *,
    train: Train,
    dispatched_at_s: float,
    has_reported_loss: bool = False,
) -> ExchangeRow:
    """Return the row of one exchange.

    With `has_reported_loss` the device may have downloaded the model for the loss query, whose
    row counts those bytes.
    """
    offer, contention, others = exchange.offer, exchange.contention, exchange.concurrent
    pulled, codecs = pulled_blob(train, offer), codecs_of(train, offer)
    phases = offer.phases if offer is not None else None
    down = offer.steady if offer is not None else None
    up = exchange.steady
    is_held = has_reported_loss and offer is not None and offer.had_model
    found_s, contended, why = _verdict_on(exchange)
    phases_s: dict[str, Any] = {name: getattr(phases, name, None) for name in PHASE_COLUMNS}
    measured: dict[str, Any] = dict(exchange.measured)
    if offer is not None and offer.measured:
        measured |= accepted(offer.measured, Source.OFFER)
    return ExchangeRow(
        round=exchange.round,
        attempt=exchange.attempt,
        device=exchange.device,
        outcome=ExchangeState.LATE.value if exchange.is_open_late else exchange.state.value,
        reason=why,
        is_valid=not why,
        dispatched_at_s=dispatched_at_s,
        tau_wall_s=exchange.tau_wall_s,
        queued_s=exchange.queued_s(exchange.granted or exchange.offered or exchange.dispatched),
        tau_s=exchange.tau_s,
        busy_s=exchange.busy_s,
        signal_s=exchange.signal_s,
        unaccounted_s=_rest_s(exchange, found_s),
        train_cpu_s=phases.train_cpu_s if phases else None,
        upload_s=exchange.upload_s,
        **phases_s,
        contended_s=None if contention is None else contention.total_s,
        contended_download_s=None if contention is None else contention.download_s,
        contended_compute_s=None if contention is None else contention.compute_s,
        contended_upload_s=None if contention is None else contention.upload_s,
        lag_s=exchange.lag_s,
        is_contended=bool(contended),
        codec_down=codecs[0],
        codec_up=codecs[1],
        bytes_down=pulled.size_bytes if pulled is not None and not is_held else 0,
        bytes_up=exchange.bytes_up,
        duplicates_up=exchange.duplicates_up,
        concurrent=len(table.exchanges) - 1 if others is None else others,
        n_k=offer.n_k if offer else 0,
        steps=offer.steps if offer else 0,
        was_cold=offer.was_cold if offer else None,
        loss_before=offer.loss_before if offer else None,
        loss_train=offer.loss_train if offer else None,
        **dict(zip(KNOWN_COLUMNS, known_values(known), strict=True)),
        steady_down_bytes=down.n_bytes if down else None,
        steady_down_s=down.duration_s if down else None,
        steady_up_bytes=up.n_bytes if up else None,
        steady_up_s=up.duration_s if up else None,
        staleness=exchange.staleness,
        aggregated_round=exchange.aggregated_round,
        **(measured | _energy(exchange)),
    )


_NOT_MEASURED: Mapping[str, Cells] = {name: spec.default for name, spec in MEASURED.items()}
_NOTHING = frozenset[str]()


def measured_columns(
    exchanges: Sequence[Mapping[str, float]], has_offered: Bools, is_done: Bools
) -> dict[str, Cells]:
    """Return the measured columns of replayed exchanges, as the coordinator of a live run has them.

    Args:
        exchanges: The numbers of each exchange, by column.
        has_offered: The device has offered its update, shape (K,): its numbers are known.
        is_done: The update has arrived, shape (K,).
    """
    columns, present = dict(_NOT_MEASURED), _NOTHING.union(*exchanges)
    if not present:
        return columns
    seen = {Source.OFFER: has_offered.tolist(), Source.UPLOAD: is_done.tolist()}
    always = [True] * len(exchanges)
    for name in present:
        spec = MEASURED[name]
        assert spec.column is not None, "a measured column is declared"
        columns[name] = [
            numbers.get(name, spec.default) if is_seen else spec.default
            for numbers, is_seen in zip(
                exchanges, seen.get(spec.column.source, always), strict=True
            )
        ]
    return columns


def release_row(exchange: Exchange, device: str) -> ReleaseRow:
    """Return whether an exchange with local noise may have released its update.

    A device uploads only after a grant; so does an exchange that is still open, perhaps.
    """
    was_granted = exchange.granted is not None and exchange.offer is not None
    return ReleaseRow(
        round=exchange.round,
        attempt=exchange.attempt,
        device=device,
        is_released=exchange.state.is_open or was_granted,
    )


def _energy(exchange: Exchange) -> dict[str, Any]:
    """Return the energy columns of an exchange, as its device reports them.

    The energy of an upload is unknown if no device could have taken so much in that time, and so is
    an interval that does not contain the sum.
    """
    no_interval = {"energy_low_j": None, "energy_high_j": None}
    reported = None if exchange.offer is None else exchange.offer.phases.energy
    if reported is None:
        return no_interval | {"upload_j": None}
    energy = {f"{phase}_j": getattr(reported, f"{phase}_j") for phase in DEVICE_PHASES}
    at_device_j = sum(energy.values())
    upload_s, upload_j = exchange.upload_s, exchange.measured.get("upload_j")
    if upload_s is None:
        return energy | no_interval | {"upload_j": None, "energy_j": at_device_j}
    if upload_j is None or upload_j > MAX_WATTS * upload_s:
        return energy | no_interval | {"upload_j": None}
    energy |= {"upload_j": upload_j, "energy_j": (energy_j := at_device_j + upload_j)}
    low_j, high_j = (exchange.measured.get(name) for name in no_interval)
    slack_j = 1e-9 * energy_j
    if low_j is None or high_j is None or not low_j - slack_j <= energy_j <= high_j + slack_j:
        return energy | no_interval
    return energy


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """The times of a round; instants are on the run's clock, seconds."""

    dispatched_at_s: float
    closed_at_s: float
    """Publication of the next model."""
    loss_query_s: float
    """Duration of the loss query; 0 without one."""
    tau_max_s: float
    """Time until the last of its own updates arrived, or until collecting ended."""
    duration_s: float
    close_s: float
    """Time from there until the next model is published."""


def round_times(
    closed: ClosedRound,
    *,
    dispatched_at_s: float,
    ended_at_s: float,
    closed_at_s: float,
    loss_query_s: float,
) -> RoundTimes:
    """Return the times of a live round.

    Its duration has three parts: `loss_query_s`; the time until the last of its own updates
    arrives, or until collecting ends if one is missing; and `close_s` until the next model is
    published.

    Args:
        closed: The round.
        dispatched_at_s: Instant of the dispatch; it and the next two are on the run's clock.
        ended_at_s: End of collecting.
        closed_at_s: Publication of the next model.
        loss_query_s: Duration of the loss query; 0 without one.
    """
    table = closed.table
    own = (x.tau_wall_s for x in closed.ended if x.round == table.id)
    arrivals = [wall_s for wall_s in own if wall_s is not None]
    is_complete = len(arrivals) == len(table.exchanges) > 0 and not table.is_buffered
    tau_max_s = max(arrivals) if is_complete else ended_at_s - dispatched_at_s
    duration_s = loss_query_s + closed_at_s - dispatched_at_s
    return RoundTimes(
        dispatched_at_s=dispatched_at_s,
        closed_at_s=closed_at_s,
        loss_query_s=loss_query_s,
        tau_max_s=tau_max_s,
        duration_s=duration_s,
        close_s=duration_s - loss_query_s - tau_max_s,
    )


def round_row(
    closed: ClosedRound,
    times: RoundTimes,
    decisions: Decisions,
    names: Sequence[str],
    *,
    why: "Explanation | None",
    queues: Floats,
    bytes_down: int,
    bytes_up: int,
    name_of: Callable[[str], str] = str,
    lag_p99_s: float = 0.0,
    model_sha256: str = "",
    coordinator_encode_s: float | None = None,
) -> RoundRow:
    """Return the row of a closed round.

    Args:
        closed: The round.
        times: Its times.
        decisions: The decisions, after they have learned from the round.
        names: Names of all devices, by row.
        why: The explanation of the selection; None: it is not stored.
        queues: Virtual queues after the round, shape (N,).
        bytes_down: Bytes to the devices, of models and others.
        bytes_up: Bytes from them, of updates and others.
        name_of: Returns the name of a device of the table.
        lag_p99_s: Lag of the coordinator's event loop.
        model_sha256: Hash of the next model.
        coordinator_encode_s: Time to encode the next model; None if it was not encoded.
    """
    table, ended = closed.table, closed.ended
    done = [x for x in ended if x.state is ExchangeState.DONE]
    in_time = [x for x in done if x.round == table.id]
    slowest = max(in_time, key=lambda x: x.tau_wall_s or 0.0, default=None)
    states = Counter([x.state for x in ended])
    judged, unjudged = decisions.contexts_judged or (None, None)
    return RoundRow(
        round=table.id,
        attempt=table.attempt,
        status="done" if done else "void",
        dispatched_at_s=times.dispatched_at_s,
        closed_at_s=times.closed_at_s,
        duration_s=times.duration_s,
        tau_max_s=times.tau_max_s,
        close_s=times.close_s,
        slowest=None if slowest is None else name_of(slowest.device),
        selected=len(table.exchanges),
        aggregated=len(done),
        available=int(closed.selection.is_available.sum()),
        queue_total=float(queues.sum()),
        queue_max=float(queues.max(initial=0.0)),
        lag_p99_s=lag_p99_s,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        model_sha256=model_sha256,
        coordinator_encode_s=coordinator_encode_s,
        loss_query_s=times.loss_query_s,
        aggregated_late=sum([bool(x.staleness) for x in done]),
        dropped_late=states[ExchangeState.LATE],
        cancelled=states[ExchangeState.CANCELLED],
        rounds_empty=closed.rounds_empty,
        contexts_judged=judged,
        contexts_unjudged=unjudged,
        **choice_columns(why, names),
    )


def selection_rows(
    selection: Selection,
    names: Sequence[str],
    decisions: Decisions,
    aggregated: set[str],
    why: "Explanation | None",
    rows: Ints | None = None,
) -> Columns[SelectionRow]:
    """Return the selection rows of a round: predictions, cohort, virtual queues afterwards.

    Args:
        selection: The selection of the round.
        names: Names of all devices, by row.
        decisions: The decisions, after they have learned from the round.
        aggregated: Devices whose update was merged.
        why: The explanation of the selection, made before they have learned; None: it is not
            stored.
        rows: Rows of the devices to return; None: all devices.
    """
    n = len(selection.is_available)
    rows = np.arange(n, dtype=np.int64) if rows is None else rows
    of_rows = [names[row] for row in rows.tolist()]
    is_selected = np.zeros(n, dtype=np.bool_)
    is_selected[selection.rows] = True
    return Columns(
        SelectionRow,
        len(rows),
        {
            "round": selection.round,
            "device": of_rows,
            "is_available": selection.is_available[rows],
            "is_selected": is_selected[rows],
            "is_aggregated": [name in aggregated for name in of_rows],
            "tau_hat_s": finite_or_nan(selection.prediction.tau_hat_s[rows]),
            "width_s": finite_or_nan(selection.prediction.width_s[rows]),
            "queue": decisions.selector.queues(n)[rows],
            "propensity": selection.propensity[rows],
            "is_audit": rows == (-1 if selection.audit_row is None else selection.audit_row),
            "reason": "" if why is None else WORDS[why.reason[rows]].tolist(),
            "score": None if why is None else finite_or_nan(why.score[rows]),
            "margin": None if why is None else finite_or_nan(why.margin[rows]),
        },
    )


def choice_columns(why: "Explanation | None", names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a round about the cohort and its best alternative."""
    if why is None:
        return {}
    leaves, enters = (None, None) if why.exchange is None else why.exchange
    return {
        "objective": why.objective,
        "alternative": why.alternative,
        "alternative_out": None if leaves is None else names[leaves],
        "alternative_in": None if enters is None else names[enters],
    }


def loss_query_rows(
    query: "LossQuery",
    bytes_down: Callable[[str, EvaluateReply], int],
    name_of: Callable[[str], str] = str,
) -> list[LossQueryRow]:
    """Return one row for each queried device.

    Args:
        query: A query that is over.
        bytes_down: Returns the bytes of the model that a device received before its reply.
        name_of: Returns the name of a device of the query.
    """
    from fairbed.coordinator.state.loss_query import QueryOutcome

    rows = []
    for device in query.devices.values():
        reply = device.reply
        rows.append(
            LossQueryRow(
                round=query.round,
                device=name_of(device.device),
                outcome=(
                    QueryOutcome.LATE if device.outcome is QueryOutcome.OPEN else device.outcome
                ).value,
                reason=device.reason,
                loss=reply.loss if reply else None,
                duration_s=device.took_s,
                download_s=reply.download_s if reply else None,
                decode_s=reply.decode_s if reply else None,
                load_s=reply.load_s if reply else None,
                evaluate_s=reply.evaluate_s if reply else None,
                was_cold=reply.was_cold if reply else None,
                bytes_down=0 if reply is None else bytes_down(device.device, reply),
            )
        )
    return rows


def fleet_rows(selection: Selection) -> list[FleetContextRow]:
    """Return the contexts of all devices at a selection; empty for a very large fleet."""
    if len(selection.is_available) > MAX_FLEET_ROW_DEVICES:
        return []
    true_tau_s = selection.true_tau_s
    return [
        FleetContextRow(
            round=selection.round,
            context=selection.context.astype("<f8").tobytes(),
            expected_tau_s=None if true_tau_s is None else true_tau_s.astype("<f8").tobytes(),
        )
    ]


def finite(value: float) -> float | None:
    """Return a plain number; None if the value is infinite or NaN."""
    return float(value) if np.isfinite(value) else None


def finite_or_nan(column: Floats) -> Floats:
    """Return a column with NaN, which the store writes as NULL, for each infinite value."""
    finite_column: Floats = np.where(np.isfinite(column), column, np.nan)
    return finite_column


def metric_rows(
    round_id: int,
    scores: Mapping[str, Score],
    at_s: float,
    evaluate_s: float,
    test_set: Score | None = None,
) -> tuple[list[DeviceMetricRow], MetricRow | None]:
    """Return one row per device with held-out data, and the row over all of them.

    Args:
        round_id: The round.
        scores: Of each device.
        at_s: Instant, on the run's clock.
        evaluate_s: Duration of the evaluation.
        test_set: Score on the server's test set; None if that is not used.
    """
    tested = {name: score for name, score in scores.items() if score.n > 0}
    devices = [
        DeviceMetricRow(
            round=round_id,
            device=name,
            n=score.n,
            loss=finite(score.loss_sum / score.positions),
            bytes_down=score.bytes_down,
            r2=score.quality.r2,
            **quality_columns(score.n, score.loss_sum / score.positions, score.quality),
        )
        for name, score in tested.items()
    ]
    measured = list(tested.values()) or ([] if test_set is None else [test_set])
    if not measured:
        return devices, None
    from fairbed.coordinator.algorithms.fairness import summarise

    summary = summarise(
        np.array([score.positions for score in measured], dtype=np.int64),
        np.array([score.correct for score in measured], dtype=np.int64),
        np.array([score.loss_sum for score in measured], dtype=np.float64),
    )
    loss_mean, loss_std = summary.loss_mean, summary.loss_std
    if measured[0].has_own_loss:
        losses = np.array([x.loss_sum / x.positions for x in measured if x.is_in_loss] or [np.nan])
        loss_mean, loss_std = float(losses.mean()), float(losses.std())
    of_test_set, mean = dict[str, Any](), np.nan
    if test_set is not None:
        mean = test_set.loss_sum / test_set.positions
        of_test_set = quality_columns(test_set.n, mean, test_set.quality)
    accuracies = dict.fromkeys(_ACCURACIES)
    if all(score.quality.correct is not None for score in measured):
        accuracies = {name: finite(getattr(summary, name)) for name in _ACCURACIES}
    columns = accuracies | _auroc_columns(measured) | _error_columns(measured)
    columns |= _position_columns(measured) | _class_columns(measured)
    if not tested:  # the spread over devices is unknown
        columns = {name: value for name, value in columns.items() if name.endswith(_OF_TEST_SET)}
        columns = dict.fromkeys(_ACCURACIES) | columns
    return devices, MetricRow(
        round=round_id,
        at_s=at_s,
        loss_mean=finite(loss_mean),
        loss_std=finite(loss_std) if tested else None,
        evaluate_s=evaluate_s,
        devices=len(tested),
        test_n=None if test_set is None else test_set.n,
        test_accuracy=of_test_set.get("accuracy"),
        test_loss=None if test_set is None else finite(mean),
        test_auroc=of_test_set.get("auroc"),
        test_rmse=of_test_set.get("rmse"),
        **columns,
    )


_ACCURACIES = (
    "accuracy_mean",
    "accuracy_pooled",
    "accuracy_worst10",
    "accuracy_best10",
    "accuracy_variance",
    "accuracy_gini",
    "accuracy_gap",
)
_OF_TEST_SET = ("_mean", "_pooled", "_of_classes", "perplexity")
"""Endings of columns that are also known of one test set for all devices."""


def quality_columns(n: int, loss: float, quality: Quality) -> dict[str, Any]:
    """Return the columns of one evaluation that depend on the task.

    Args:
        n: Number of examples, at least 1.
        loss: Mean loss.
        quality: What else was measured.
    """
    is_regression = quality.mae is not None
    positions = n if quality.positions is None else quality.positions
    return {
        "positions": quality.positions,
        "exact_match": None if quality.exact is None else quality.exact / n,
        "iou": quality.iou,
        "class_accuracy": quality.class_accuracy,
        "accuracy": None if quality.correct is None else quality.correct / positions,
        "auroc": quality.auroc,
        "rmse": _rmse(loss, quality) if is_regression else None,
        "mae": None if quality.mae is None else finite(quality.mae),
    }


def _rmse(loss: float, quality: Quality) -> float | None:
    """Return the root mean squared error, given the mean loss, of which it follows by default."""
    if quality.rmse is not None:
        return finite(quality.rmse)
    return finite(math.sqrt(2.0 * loss)) if loss >= 0.0 else None


def personal_row(
    round_id: int, device: str, n: int, loss: float, quality: Quality
) -> PersonalScoreRow:
    """Return the row of a personal model that was scored on `n` examples, with its mean loss."""
    return PersonalScoreRow(
        round=round_id, device=device, n=n, loss=loss, **quality_columns(n, loss, quality)
    )


def _auroc_columns(measured: Sequence[Score]) -> dict[str, float | None]:
    """Return the columns of two classes; empty if no device has an AUROC."""
    known = [score.quality.auroc for score in measured if score.quality.auroc is not None]
    pooled = _pooled_quality(measured)
    if not known and pooled.auroc is None:
        return {}
    from fairbed.coordinator.algorithms.fairness import mean_and_worst10

    mean, worst10 = mean_and_worst10(np.array(known)) if known else (None, None)
    return {"auroc_mean": mean, "auroc_worst10": worst10, "auroc_pooled": pooled.auroc}


def _error_columns(measured: Sequence[Score]) -> dict[str, float | None]:
    """Return the columns of regression; empty for another task."""
    errors = [score.quality.mae for score in measured if score.quality.mae is not None]
    if not errors:
        return {}
    from fairbed.coordinator.algorithms.fairness import summarise_errors

    found = summarise_errors(
        np.array([score.positions for score in measured], dtype=np.int64),
        np.array([_half_squares(score) for score in measured], dtype=np.float64),
    )
    columns = {name: finite(value) for name, value in asdict(found).items()}
    mae_mean = finite(float(np.mean(errors)))
    r2 = _pooled_quality(measured).r2
    spreads = [score.spread for score in measured if score.spread is not None]
    if len(spreads) == len(measured):
        r2 = Spread.joined(spreads).r_squared(2.0 * sum(_half_squares(x) for x in measured))
    return columns | {"mae_mean": mae_mean, "r2_pooled": r2}


def _half_squares(score: Score) -> float:
    """Return half the sum of the squared errors: the loss of regression, unless it is another."""
    rmse = score.quality.rmse
    return score.loss_sum if rmse is None else 0.5 * rmse * rmse * score.positions


def _class_columns(measured: Sequence[Score]) -> dict[str, Any]:
    """Return the columns of each class at positions; empty if no device has them.

    Those over all examples are unknown if a device tested the model itself.
    """
    columns = dict[str, Any]()
    for name in ("iou", "class_accuracy"):
        values = [getattr(score.quality, name) for score in measured]
        known = [value for value in values if value is not None]
        if known:
            columns[f"{name}_mean"] = float(np.mean(known))
    counts = [score.class_counts for score in measured if score.class_counts is not None]
    if not columns or len(counts) < len(measured):
        return columns
    total = np.sum(counts, axis=0)
    for name, of_classes in (("iou", class_ious), ("class_accuracy", class_accuracies)):
        found = of_classes(total)
        columns[f"{name}_pooled"] = mean_defined(found)
        columns[f"{name}_of_classes"] = json_of([finite(value) for value in found.tolist()])
    return columns


def json_of(values: list[float | None]) -> str:
    """Return numbers as JSON, null where there is none."""
    return msgspec.json.encode(values).decode()


def _position_columns(measured: Sequence[Score]) -> dict[str, float | None]:
    """Return the columns of classes at positions; empty for another task."""
    exact = [score.quality.exact for score in measured if score.quality.exact is not None]
    if not exact:
        return {}
    n = [score.n for score in measured]
    loss_sum = sum(score.loss_sum for score in measured)
    loss = loss_sum / sum(score.positions for score in measured)
    is_known = loss < MAX_PERPLEXITY_LOSS and not any(score.has_own_loss for score in measured)
    return {
        "perplexity": math.exp(loss) if is_known else None,
        "exact_match_mean": float(np.mean(np.array(exact) / np.array(n))),
        "exact_match_pooled": sum(exact) / sum(n),
    }


MAX_PERPLEXITY_LOSS = 700.0
"""exp of a larger loss is no float64."""


def _pooled_quality(measured: Sequence[Score]) -> Quality:
    """Return the measures over all examples; unknown if a device tested the model itself."""
    known = [score.predictions for score in measured if score.predictions is not None]
    if len(known) < len(measured):
        return Quality()
    y = np.concatenate([predictions.y for predictions in known])
    scores = np.concatenate([predictions.scores for predictions in known])
    return Quality.of(y, Evaluation(0.0, 0, scores))
