"""From what happened in a round to the rows that the store keeps. Pure.

From the scores of one evaluation to the rows that the store keeps. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.fairness import summarise
from fairbed.coordinator.fleet.codec_agreement import codecs_of, pulled_blob
from fairbed.coordinator.policy.choice import Choice, LossDemand, Observation, ReportedLosses
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.ports import Score
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.loss_query import LossQuery, QueryOutcome, pulled_in
from fairbed.coordinator.state.registry import Device, cold_start, mu_of
from fairbed.coordinator.state.round import Round
from fairbed.coordinator.store.schema import Columns
from fairbed.coordinator.store.tables import (
    DeviceMetricRow,
    ExchangeRow,
    FleetContextRow,
    LossQueryRow,
    MetricRow,
    RoundRow,
    SelectionRow,
)
from fairbed.wire.messages import EvaluateRequest, Offer, Train

LAG_RATIO_LIMIT = 0.01
"""Loop lag (p99 of the round) above this share of tau makes an exchange invalid (design.md)."""

CONTENDED_RATIO_LIMIT = 0.05
"""A machine that kept a device waiting for more than this share of an exchange did not emulate it:
what was measured is the machine's, not the device's."""

KEPT_DEVICES = 10_000
"""Fleets up to this keep what was known of every device in each round: 40 bytes a device."""

UNACCOUNTED_FLOOR_S = -0.005
"""Phases that exceed tau by more than this cannot be true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What was known of a device when it was selected; frozen before the dispatch."""

    mu_cores: float
    downlink_bps: float | None
    uplink_bps: float | None
    link_age_s: float | None
    context_age_s: float | None
    s_not_previous: int
    s_literal_seed: int
    tau_hat_s: float
    width_s: float


def before(device: Device, choice: Choice, now: float) -> Before:
    """Return what is known of a selected device at this instant."""
    context = device.context
    return Before(
        mu_cores=mu_of(device),
        downlink_bps=context.downlink_bps if context else None,
        uplink_bps=context.uplink_bps if context else None,
        link_age_s=context.link_age_s if context else None,
        context_age_s=now - device.context_at if context else None,
        s_not_previous=cold_start(device, "not_previous"),
        s_literal_seed=cold_start(device, "literal_seed"),
        tau_hat_s=float(choice.prediction.tau_hat_s[device.row]),
        width_s=float(choice.prediction.width_s[device.row]),
    )


_CENSORED = frozenset({ExchangeState.LATE, ExchangeState.CANCELLED})
"""Given up by us: the device might have made it, given more time."""


def phases_s(exchange: Exchange) -> tuple[float, ...] | None:
    """Return the phases of an exchange in the order of `PHASES`; None until an update arrived.

    They add up to tau: what the device and the coordinator have not measured is the last one.
    """
    tau, offer, upload = exchange.tau_s, exchange.offer, exchange.upload_s
    if tau is None or offer is None or upload is None:
        return None
    p = offer.phases
    compute_s = p.decode_s + p.evaluate_s + p.train_s + p.encode_s
    known = p.download_s, p.load_s, compute_s, upload
    return *known, tau - sum(known)


def unaccounted_s(exchange: Exchange) -> float | None:
    """Return what phases and signal leave of tau; None until an update arrived."""
    phases = phases_s(exchange)
    return None if phases is None else phases[-1] - (exchange.signal_s or 0.0)


def starvation(exchange: Exchange) -> str:
    """Return whom the machine that emulates the device kept waiting too long; empty for nobody."""
    contended = exchange.contended
    if contended is None:
        return ""
    waits = {"the device": contended.device_s, "its link or the broker": contended.path_s}
    who, waited_s = max(waits.items(), key=lambda wait: wait[1])
    if waited_s <= CONTENDED_RATIO_LIMIT * contended.watched_s:
        return ""
    share = 100 * waited_s / contended.watched_s
    return f"this machine was too busy: {who} waited for it {share:.0f} % of the time"


def invalid_reason(exchange: Exchange, lag_p99_s: float) -> str:
    """Return why an exchange must not teach the estimator; empty if it may."""
    tau, rest = exchange.tau_s, unaccounted_s(exchange)
    if exchange.stage is not ExchangeState.DONE or tau is None or rest is None:
        return exchange.why or exchange.stage.value
    if exchange.is_disturbed:
        return "the coordinator lost its own link meanwhile"
    if lag_p99_s > LAG_RATIO_LIMIT * tau:
        return f"the coordinator lagged {lag_p99_s * 1e3:.1f} ms, over 1 % of tau"
    if contended := starvation(exchange):
        return contended
    if rest < UNACCOUNTED_FLOOR_S - (exchange.signal_s or 0.0):
        return f"reported phases exceed tau by {-rest:.3f} s"
    return ""


def observation(
    exchange: Exchange, row: int, lag_p99_s: float, context: Floats | None = None
) -> Observation:
    """Return what an exchange teaches, or nothing yet of one that goes on.

    Args:
        exchange: Over, or late and going on.
        row: Of its device.
        lag_p99_s: Of the round in which it came to its end.
        context: What was known when it was chosen, shape (4,), in an earlier round.
    """
    is_valid = not invalid_reason(exchange, lag_p99_s)
    was_called_off = exchange.is_late or exchange.stage is ExchangeState.CANCELLED
    return Observation(
        row=row,
        tau_s=exchange.tau_s if is_valid else None,
        phases_s=phases_s(exchange) if is_valid else None,
        is_aggregated=exchange.stage is ExchangeState.DONE,
        timed_out=exchange.stage is ExchangeState.LATE and not starvation(exchange),
        loss=_loss(exchange.offer),
        at_least_s=exchange.at_least_s
        if was_called_off and exchange.stage in _CENSORED and not starvation(exchange)
        else None,
        context=context,
    )


def _loss(offer: Offer | None) -> float | None:
    if offer is None:
        return None
    return offer.loss_train if offer.loss_before is None else offer.loss_before


def exchange_row(
    exchange: Exchange,
    played: Round,
    known: Before,
    *,
    train: Train,
    dispatched_at_s: float,
    lag_p99_s: float,
    has_answered: bool = False,
) -> ExchangeRow:
    """Return the row of one exchange; `known` is what was known when it was selected.

    One that has answered a question may have pulled the model then.
    """
    offer, contended = exchange.offer, exchange.contended
    companions = exchange.companions
    pulled, codecs = pulled_blob(train, offer), codecs_of(train, offer)
    phases = offer.phases if offer is not None else None
    down = offer.settled if offer is not None else None
    up = exchange.settled
    is_held = has_answered and offer is not None and offer.is_held
    why = invalid_reason(exchange, lag_p99_s)
    return ExchangeRow(
        round=exchange.round,
        attempt=exchange.attempt,
        device=exchange.device,
        outcome=ExchangeState.LATE.value if exchange.goes_on else exchange.stage.value,
        reason=why,
        is_valid=not why,
        dispatched_at_s=dispatched_at_s,
        tau_wall_s=exchange.tau_wall_s,
        queued_s=exchange.queued_s(exchange.granted or exchange.offered or exchange.dispatched),
        tau_s=exchange.tau_s,
        signal_s=exchange.signal_s,
        unaccounted_s=unaccounted_s(exchange),
        download_s=phases.download_s if phases else None,
        load_s=phases.load_s if phases else None,
        evaluate_s=phases.evaluate_s if phases else None,
        train_s=phases.train_s if phases else None,
        train_cpu_s=phases.train_cpu_s if phases else None,
        encode_s=phases.encode_s if phases else None,
        upload_s=exchange.upload_s,
        decode_s=phases.decode_s if phases else None,
        coordinator_decode_s=exchange.decode_s,
        contended_s=max(contended.device_s, contended.path_s) if contended is not None else None,
        is_contended=bool(starvation(exchange)),
        codec_down=codecs[0],
        codec_up=codecs[1],
        bytes_down=pulled.size_bytes if pulled is not None and not is_held else 0,
        bytes_up=exchange.bytes_up,
        rerequests_down=offer.download_rerequests if offer else 0,
        resent_up=exchange.resent_up,
        duplicates_up=exchange.duplicates_up,
        concurrent=len(played.exchanges) - 1 if companions is None else companions,
        n_k=offer.n_k if offer else 0,
        steps=offer.steps if offer else 0,
        was_cold=offer.was_cold if offer else None,
        loss_before=offer.loss_before if offer else None,
        loss_train=offer.loss_train if offer else None,
        mu_cores=known.mu_cores,
        downlink_bps=known.downlink_bps,
        uplink_bps=known.uplink_bps,
        link_age_s=known.link_age_s,
        context_age_s=known.context_age_s,
        s_not_previous=known.s_not_previous,
        s_literal_seed=known.s_literal_seed,
        tau_hat_s=known.tau_hat_s,
        width_s=known.width_s,
        steady_down_bytes=down.n_bytes if down else None,
        steady_down_s=down.lasted_s if down else None,
        steady_up_bytes=up.n_bytes if up else None,
        steady_up_s=up.lasted_s if up else None,
        staleness=exchange.staleness,
        aggregated_round=exchange.aggregated_round,
    )


def round_row(
    played: Round,
    over: Sequence[Exchange],
    dispatched_at_s: float,
    ended_at_s: float,
    closed_at_s: float,
    *,
    is_available: Bools,
    queues: Floats,
    lag_p99_s: float,
    bytes_down: int,
    other_bytes: tuple[int, int],
    model_sha256: str,
    coordinator_encode_s: float | None,
    loss_query_s: float = 0.0,
) -> RoundRow:
    """Return the row of a closed round.

    `over` are the exchanges that came to their end in it, begun in it or before: they count here,
    as do their bytes. Availability at its selection, and the virtual queues after it, have shape
    (N,). A round lasts for `loss_query_s`, if its selection needed losses, then from the dispatch
    to the last arrival of its own (to the end of the wait when a device did not arrive), and
    from there `close_s` until the next model is published. Its bytes are those of the models
    (`bytes_down`) and updates and, since the round before, `other_bytes` (down, up).
    """
    own = [x for x in over if x.round == played.id]
    arrivals = [x.tau_wall_s for x in own if x.tau_wall_s is not None]
    is_complete = len(arrivals) == len(played.exchanges) > 0 and not played.is_buffered
    tau_max_s = max(arrivals) if is_complete else ended_at_s - dispatched_at_s
    duration_s = loss_query_s + closed_at_s - dispatched_at_s
    done = [x for x in over if x.stage is ExchangeState.DONE]
    in_time = [x for x in own if x.stage is ExchangeState.DONE]
    slowest = max(in_time, key=lambda x: x.tau_wall_s or 0.0, default=None)
    return RoundRow(
        round=played.id,
        attempt=played.attempt,
        status="done" if done else "void",
        dispatched_at_s=dispatched_at_s,
        closed_at_s=closed_at_s,
        duration_s=duration_s,
        tau_max_s=tau_max_s,
        close_s=duration_s - loss_query_s - tau_max_s,
        slowest=slowest.device if slowest else None,
        selected=len(played.exchanges),
        aggregated=len(done),
        available=int(is_available.sum()),
        queue_total=float(queues.sum()),
        queue_max=float(queues.max(initial=0.0)),
        lag_p99_s=lag_p99_s,
        bytes_down=bytes_down + other_bytes[0],
        bytes_up=sum(x.bytes_up for x in over) + other_bytes[1],
        model_sha256=model_sha256,
        coordinator_encode_s=coordinator_encode_s,
        loss_query_s=loss_query_s,
        aggregated_late=sum(bool(x.staleness) for x in done),
        dropped_late=sum(x.stage is ExchangeState.LATE for x in over),
        cancelled=sum(x.stage is ExchangeState.CANCELLED for x in over),
    )


def selection_rows(
    choice: Choice,
    names: Sequence[str],
    decisions: Decisions,
    aggregated: set[str],
    rows: Ints | None = None,
) -> Columns[SelectionRow]:
    """Return what was predicted, who was chosen, and the debt afterwards.

    Args:
        choice: Of the round.
        names: By row.
        decisions: Those that chose and have learned.
        aggregated: Whose updates entered the model.
        rows: Of which devices; None is one row for each.
    """
    n = len(choice.is_available)
    rows = np.arange(n, dtype=np.int64) if rows is None else rows
    of_rows = [names[row] for row in rows.tolist()]
    is_selected = np.zeros(n, dtype=np.bool_)
    is_selected[choice.rows] = True
    return Columns(
        SelectionRow,
        len(rows),
        {
            "round": choice.round,
            "device": of_rows,
            "is_available": choice.is_available[rows],
            "is_selected": is_selected[rows],
            "is_aggregated": [name in aggregated for name in of_rows],
            "tau_hat_s": finite_or_nan(choice.prediction.tau_hat_s[rows]),
            "width_s": finite_or_nan(choice.prediction.width_s[rows]),
            "queue": decisions.selector.queues(n)[rows],
            "propensity": choice.propensity[rows],
            "is_audit": rows == (-1 if choice.audit_row is None else choice.audit_row),
        },
    )


def answers_of(question: LossDemand, poll: LossQuery, names: Sequence[str]) -> ReportedLosses:
    """Return what came of a question, in the order of its rows."""
    told = [poll.asked[names[row]].answer for row in question.rows.tolist()]
    loss = np.array([np.nan if answer is None else answer.loss for answer in told])
    return ReportedLosses(question.rows, loss.astype(np.float64))


def ask_rows(poll: LossQuery, asks: Mapping[str, EvaluateRequest]) -> list[LossQueryRow]:
    """Return one row a device that was asked for its loss."""
    rows = []
    for asked in poll.asked.values():
        answer = asked.answer
        pulled = None if answer is None else pulled_in(answer, asks[asked.device])
        rows.append(
            LossQueryRow(
                round=poll.round,
                device=asked.device,
                outcome=(
                    QueryOutcome.LATE if asked.reply is QueryOutcome.OPEN else asked.reply
                ).value,
                reason=asked.why,
                loss=answer.loss if answer else None,
                duration_s=asked.took_s,
                download_s=answer.download_s if answer else None,
                decode_s=answer.decode_s if answer else None,
                load_s=answer.load_s if answer else None,
                evaluate_s=answer.evaluate_s if answer else None,
                was_cold=answer.was_cold if answer else None,
                bytes_down=0 if pulled is None else pulled.size_bytes,
            )
        )
    return rows


def fleet_rows(choice: Choice) -> list[FleetContextRow]:
    """Return what was known of every device at a selection; nothing where there are too many."""
    if len(choice.is_available) > KEPT_DEVICES:
        return []
    known_s = choice.known_s
    return [
        FleetContextRow(
            round=choice.round,
            context=choice.context.astype("<f8").tobytes(),
            expected_tau_s=None if known_s is None else known_s.astype("<f8").tobytes(),
        )
    ]


def finite(value: float) -> float | None:
    """Return a plain number, or None for what no database should hold."""
    return float(value) if np.isfinite(value) else None


def finite_or_nan(column: Floats) -> Floats:
    """Return a column with NaN, which stands for NULL, for what no database should hold."""
    told: Floats = np.where(np.isfinite(column), column, np.nan)
    return told


def metric_rows(
    round_id: int, scores: Mapping[str, Score], at_s: float, evaluate_s: float
) -> tuple[list[DeviceMetricRow], MetricRow | None]:
    """Return one row a device that holds anything out, and the row over all of them."""
    tested = {name: score for name, score in scores.items() if score.n > 0}
    devices = [
        DeviceMetricRow(
            round=round_id,
            device=name,
            n=score.n,
            accuracy=score.correct / score.n,
            loss=finite(score.loss_sum / score.n),
        )
        for name, score in tested.items()
    ]
    if not tested:
        return devices, None
    summary = summarise(
        np.array([score.n for score in tested.values()], dtype=np.int64),
        np.array([score.correct for score in tested.values()], dtype=np.int64),
        np.array([score.loss_sum for score in tested.values()], dtype=np.float64),
    )
    return devices, MetricRow(
        round=round_id,
        at_s=at_s,
        accuracy_mean=summary.accuracy_mean,
        accuracy_pooled=summary.accuracy_pooled,
        accuracy_worst10=summary.accuracy_worst10,
        accuracy_best10=summary.accuracy_best10,
        accuracy_variance=summary.accuracy_variance,
        accuracy_gini=finite(summary.accuracy_gini),
        accuracy_gap=summary.accuracy_gap,
        loss_mean=finite(summary.loss_mean),
        loss_std=finite(summary.loss_std),
        evaluate_s=evaluate_s,
    )
