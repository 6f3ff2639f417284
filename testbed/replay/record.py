"""From replayed rounds to the rows that every run keeps."""

import json
from collections.abc import Sequence

import numpy as np

from coordinator.accounting import finite, selection_rows
from coordinator.decisions import Decisions
from coordinator.store.records import (
    DeviceRow,
    ExchangeRow,
    Record,
    RoundRow,
    TruthRow,
)
from testbed.replay.linear import LinearLaw
from testbed.replay.play import DONE, LATE, Played


def device_rows(
    names: Sequence[str], groups: Sequence[str], laws: Sequence[LinearLaw]
) -> list[Record]:
    """Return what is known of each device, and what is true of it."""
    rows: list[Record] = []
    for row, (name, group, law) in enumerate(zip(names, groups, laws, strict=True)):
        rows.append(
            DeviceRow(
                name=name,
                row=row,
                first_seen_s=0.0,
                n_k=1,
                capabilities=json.dumps({"model": group}),
                has_own_data=False,
            )
        )
        rows.append(
            TruthRow(
                name=name,
                profile=group,
                cpu_speed=1.0 / law.theta[0] if law.theta[0] > 0.0 else 0.0,
                cores=1,
                down_bps=None,
                up_bps=sum(law.bandwidth_bps) / 2.0,
                delay_s=0.0,
                details=json.dumps({"theta": law.theta, "noise": law.noise, "mu": law.mu}),
            )
        )
    return rows


def round_rows(played: Played, decisions: Decisions, names: Sequence[str]) -> list[Record]:
    """Return the rows of a round that is over and learned from."""
    choice = played.choice
    chosen = choice.rows.tolist()
    done = {row for row, word in zip(chosen, played.outcome, strict=True) if word == DONE}
    queues = decisions.selector.queues(len(names))
    merged = {names[row] for row in done}
    selections = selection_rows(choice, names, decisions, merged)
    exchanges = [_exchange(played, at, names[row]) for at, row in enumerate(chosen)]
    tau_s = played.tau_s
    is_done = np.array([word == DONE for word in played.outcome], dtype=np.bool_)
    slowest = names[chosen[int(np.where(is_done, tau_s, -1.0).argmax())]] if done else None
    row = RoundRow(
        round=choice.round,
        attempt=0,
        status="done" if done else "void",
        dispatched_at_s=played.started_s,
        closed_at_s=played.started_s + played.duration_s,
        duration_s=played.duration_s,
        tau_max_s=played.duration_s,
        close_s=0.0,
        slowest=slowest,
        selected=len(chosen),
        aggregated=len(done),
        available=int(choice.is_available.sum()),
        queue_total=float(queues.sum()),
        queue_max=float(queues.max(initial=0.0)),
        lag_p99_s=0.0,
        bytes_down=0,
        bytes_up=sum(x.bytes_up for x in exchanges),
        model_sha256="",
        coordinator_encode_s=None,
    )
    return [row, *selections, *exchanges]


def _exchange(played: Played, at: int, name: str) -> ExchangeRow:
    choice, row = played.choice, int(played.choice.rows[at])
    word = played.outcome[at]
    is_done = word == DONE
    train_s, load_s, upload_s = played.parts_s[at].tolist()
    tau_s = float(played.tau_s[at]) if is_done else None
    why = {DONE: "", LATE: "no update within the deadline"}.get(word, "enough updates had arrived")
    cold = int(played.was_cold[at])
    return ExchangeRow(
        round=choice.round,
        attempt=0,
        device=name,
        outcome=word,
        why=why,
        is_valid=is_done,
        dispatched_at_s=played.started_s,
        tau_wall_s=tau_s,
        queued_s=0.0,
        tau_s=tau_s,
        signal_s=0.0 if is_done else None,
        unaccounted_s=0.0 if is_done else None,
        download_s=0.0 if is_done else None,
        load_s=load_s if is_done else None,
        evaluate_s=0.0 if is_done else None,
        train_s=train_s if is_done else None,
        train_cpu_s=None,
        encode_s=0.0 if is_done else None,
        upload_s=upload_s if is_done else None,
        decode_s=0.0 if is_done else None,
        coordinator_decode_s=None,
        starved_s=None,
        is_starved=False,
        codec_down="float32",
        codec_up="float32",
        bytes_down=0,
        bytes_up=0,
        rerequests_down=0,
        resent_up=0,
        duplicates_up=0,
        concurrent=len(played.outcome) - 1,
        n_k=1,
        steps=0,
        was_cold=bool(cold),
        loss_before=None,
        loss_train=None,
        mu_cores=float(1.0 / played.weather.inverse_mu[row]),
        downlink_bps=None,
        uplink_bps=float(played.weather.bandwidth_bps[row]),
        link_age_s=None,
        context_age_s=0.0,
        s_not_previous=cold,
        s_seed_literal=int(played.was_selected[at]),
        tau_hat_s=finite(choice.prediction.tau_hat_s[row]),
        width_s=finite(choice.prediction.width_s[row]),
    )
