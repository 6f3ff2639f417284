"""From replayed rounds to the rows that every run keeps."""

import json
from collections.abc import Sequence

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.records.rows import finite_or_nan, metric_rows, selection_rows
from fairbed.coordinator.store.schema import Cells, Columns
from fairbed.coordinator.store.tables import (
    DeviceRow,
    ExchangeRow,
    Record,
    RoundRow,
    SelectionRow,
    TruthRow,
)
from fairbed.testbed.replay.books import closed_row, over_rows
from fairbed.testbed.replay.linear import LinearLaw
from fairbed.testbed.replay.play import Played
from fairbed.testbed.replay.settle import CANCELLED, DIVERGED, DONE, FAILED, GONE, LATE, LOST

WHY = {
    DONE: "",
    LATE: "no update within the deadline",
    LOST: GONE,
    CANCELLED: "enough updates had arrived",
    FAILED: DIVERGED,
}


def device_rows(
    names: Sequence[str], groups: Sequence[str], laws: Sequence[LinearLaw], examples: Ints
) -> list[Record]:
    """Return what is known of each device of a linear world, and what is true of it."""
    columns = enumerate(zip(names, groups, laws, examples.tolist(), strict=True))
    return [record for row, one in columns for record in linear_rows(row, *one)]


def linear_rows(row: int, name: str, group: str, law: LinearLaw, n_k: int) -> list[Record]:
    """Return what is known of one device of a linear world, and what is true of it."""
    return [
        DeviceRow(
            name=name,
            row=row,
            first_seen_s=0.0,
            n_k=n_k,
            capabilities=json.dumps({"model": group}),
            has_own_data=False,
        ),
        TruthRow(
            name=name,
            profile=group,
            cpu_speed=1.0 / law.theta[0] if law.theta[0] > 0.0 else 0.0,
            cores=1,
            down_bps=None,
            up_bps=sum(law.bandwidth_bps) / 2.0,
            delay_s=0.0,
            details=json.dumps({"theta": law.theta, "noise": law.noise, "mu": law.mu}),
        ),
    ]


def round_row(played: Played, decisions: Decisions, names: Sequence[str]) -> RoundRow:
    """Return the row of a round that is over and learned from."""
    if played.closed is not None:
        return closed_row(played, played.closed, decisions, names)
    choice, ended = played.choice, played.ended
    queues = decisions.selector.queues(len(names))
    tau_wall_s = np.where(ended.is_merged, played.tau_wall_s, -1.0)
    merged = int(ended.is_merged.sum())
    return RoundRow(
        round=choice.round,
        attempt=0,
        status="done" if merged else "void",
        dispatched_at_s=played.dispatched_s,
        closed_at_s=played.after.now,
        duration_s=played.duration_s,
        tau_max_s=ended.end_s,
        close_s=0.0,
        slowest=names[int(choice.rows[tau_wall_s.argmax()])] if merged else None,
        selected=len(choice.rows),
        aggregated=merged,
        available=int(choice.is_available.sum()),
        queue_total=float(queues.sum()),
        queue_max=float(queues.max(initial=0.0)),
        lag_p99_s=0.0,
        bytes_down=int(played.exchanges.bytes_down.sum()) + played.asked_bytes,
        bytes_up=int(played.exchanges.bytes_up[ended.is_done].sum()),
        model_sha256="",
        coordinator_encode_s=None,
        ask_s=played.asked_s,
        dropped_late=ended.outcome.count(LATE),
        cancelled=ended.outcome.count(CANCELLED),
    )


def chosen_rows(
    played: Played, decisions: Decisions, names: Sequence[str], *, everybody: bool
) -> Columns[SelectionRow]:
    """Return who was chosen and why: a row for each device, or for each of the cohort."""
    merged = {names[row] for row in played.merged.tolist()}
    rows = None if everybody else played.concerned
    return selection_rows(played.choice, names, decisions, merged, rows)


def score_rows(played: Played, evaluate_s: float) -> list[Record]:
    """Return what the model after a round scores; nothing if it was not evaluated.

    Args:
        played: The round.
        evaluate_s: How long the evaluation took, off the record.
    """
    if played.scores is None:
        return []
    at_s = played.started_s + played.duration_s
    devices, metric = metric_rows(played.choice.round, played.scores, at_s, evaluate_s)
    return [*devices, *([] if metric is None else [metric])]


def exchange_rows(played: Played, names: Sequence[str]) -> Columns[ExchangeRow] | list[ExchangeRow]:
    """Return the exchanges of a round: of one that was not waited for, what was known before."""
    if played.closed is not None:
        return over_rows(played.closed, names)
    choice, scene, exchanges, ended = played.choice, played.scene, played.exchanges, played.ended
    rows, is_done = choice.rows, ended.is_done
    zeros_s = np.zeros(len(rows))

    def told(column: Floats) -> Floats:
        return np.where(is_done, column, np.nan)

    return Columns(
        ExchangeRow,
        len(rows),
        {
            "round": choice.round,
            "attempt": 0,
            "device": [names[row] for row in rows.tolist()],
            "outcome": list(ended.outcome),
            "why": [WHY[word] for word in ended.outcome],
            "is_valid": is_done,
            "dispatched_at_s": played.dispatched_s,
            "tau_wall_s": told(played.tau_wall_s),
            "queued_s": ended.queued_s,
            "tau_s": told(played.tau_s),
            "signal_s": told(exchanges.signal_s),
            "unaccounted_s": told(zeros_s),
            "download_s": told(exchanges.download_s),
            "load_s": told(exchanges.load_s),
            "evaluate_s": told(exchanges.evaluate_s),
            "train_s": told(exchanges.train_s),
            "train_cpu_s": None,
            "encode_s": told(exchanges.encode_s),
            "upload_s": told(ended.upload_s),
            "decode_s": told(exchanges.decode_s),
            "coordinator_decode_s": None,
            "starved_s": None,
            "is_starved": False,
            "codec_down": list(exchanges.codec_down),
            "codec_up": exchanges.codec_up,
            "bytes_down": exchanges.bytes_down,
            "bytes_up": np.where(is_done, exchanges.bytes_up, 0),
            "rerequests_down": 0,
            "resent_up": 0,
            "duplicates_up": 0,
            "concurrent": len(rows) - 1,
            "n_k": scene.examples[rows],
            "steps": exchanges.steps,
            "was_cold": exchanges.was_cold,
            "loss_before": None,
            "loss_train": finite_or_nan(played.losses),
            "mu_cores": 1.0 / scene.inverse_mu[rows],
            "downlink_bps": finite_or_nan(scene.down_bps[rows]),
            "uplink_bps": finite_or_nan(scene.up_bps[rows]),
            "link_age_s": _known(scene.link_age_s, rows, None),
            "context_age_s": _known(scene.context_age_s, rows, 0.0),
            "s_not_previous": ~scene.last.has_trained[rows],
            "s_literal_seed": scene.last.is_selected[rows],
            "tau_hat_s": finite_or_nan(choice.prediction.tau_hat_s[rows]),
            "width_s": finite_or_nan(choice.prediction.width_s[rows]),
            "settled_down_bytes": None,
            "settled_down_s": None,
            "settled_up_bytes": None,
            "settled_up_s": None,
            "staleness": [0 if word == DONE else None for word in ended.outcome],
            "merged_round": [choice.round if word == DONE else None for word in ended.outcome],
        },
    )


def _known(column: Floats | None, rows: Ints, otherwise: float | None) -> Cells:
    return otherwise if column is None else finite_or_nan(column[rows])
