"""Store rows of replayed rounds, in the tables that every run has."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.records import rows as records
from fairbed.coordinator.records.rows import (
    ENERGY_PHASES,
    KNOWN_COLUMNS,
    PHASE_COLUMNS,
    TRANSFERS,
    finite_or_nan,
    known_values,
    measured_columns,
    metric_rows,
)
from fairbed.coordinator.state.exchange import ExchangeState
from fairbed.coordinator.store.schema import Columns
from fairbed.coordinator.store.tables import (
    DeviceRow,
    ExchangeRow,
    PersonalScoreRow,
    Record,
    ReleaseRow,
    RoundRow,
    SelectionRow,
    TruthRow,
)
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.emulation.power import UNKNOWN, PhasePower
from fairbed.testbed.replay.engine.engine import ReplayedRound, column, flags
from fairbed.testbed.replay.engine.training import PersonalScoreOf
from fairbed.testbed.replay.world.linear import LinearLaw
from fairbed.testbed.replay.world.world import ReplayedExchange
from fairbed.wire.messages import DEVICE_PHASES

if TYPE_CHECKING:
    from fairbed.coordinator.records.named_metrics import NamedMetrics


def device_rows(
    names: Sequence[str],
    groups: Sequence[str],
    laws: Sequence[LinearLaw],
    examples: Ints,
    attacks: Mapping[int, Attack],
) -> list[Record]:
    """Return the reported and the true values of all devices of a linear world."""
    columns = enumerate(zip(names, groups, laws, examples.tolist(), strict=True))
    return [record for row, one in columns for record in linear_rows(row, *one, attacks.get(row))]


def linear_rows(
    row: int, name: str, group: str, law: LinearLaw, n_k: int, attack: Attack | None
) -> list[Record]:
    """Return the reported and the true values of one device of a linear world."""
    return [
        DeviceRow(
            name=name,
            row=row,
            first_seen_s=0.0,
            n_k=n_k,
            capabilities=json.dumps({"model": group}),
            has_own_data=False,
            kind="replayed",
        ),
        TruthRow(
            name=name,
            profile=group,
            cpu_speed=1.0 / law.theta[0] if law.theta[0] > 0.0 else 0.0,
            cores=1,
            down_bps=None,
            up_bps=sum(law.bandwidth_bps) / 2.0,
            delay_s=0.0,
            malicious=None if attack is None else attack.kind,
            details=json.dumps(
                {
                    "theta": law.theta,
                    "noise": law.noise,
                    "mu": law.mu,
                    "attack": None if attack is None else msgspec.to_builtins(attack),
                }
            ),
        ),
    ]


def round_row(replayed: ReplayedRound, decisions: Decisions, names: Sequence[str]) -> RoundRow:
    """Return the row of a round."""
    times = records.RoundTimes(
        dispatched_at_s=replayed.dispatched_s,
        closed_at_s=replayed.after.now,
        loss_query_s=replayed.query_s,
        tau_max_s=replayed.lasted_s,
        duration_s=replayed.duration_s,
        close_s=0.0,
    )
    return records.round_row(
        replayed.closed,
        times,
        decisions,
        names,
        why=replayed.why,
        queues=decisions.selector.queues(len(names)),
        bytes_down=sum(_bytes_down(x) for x in replayed.over) + replayed.query_bytes,
        bytes_up=sum(x.bytes_up for x in replayed.over if x.is_done),
        name_of=lambda device: names[int(device)],
    )


def selection_rows(
    replayed: ReplayedRound, decisions: Decisions, names: Sequence[str], *, all_devices: bool
) -> Columns[SelectionRow]:
    """Return the selection rows of all devices, or of the participants only."""
    merged = {names[row] for row in replayed.merged.tolist()}
    rows = None if all_devices else replayed.participants
    return records.selection_rows(replayed.choice, names, decisions, merged, replayed.why, rows)


def score_rows(
    replayed: ReplayedRound, evaluate_s: float, named: "NamedMetrics | None" = None
) -> list[Record]:
    """Return the scores of the model after a round; empty if it was not evaluated.

    Args:
        replayed: The round.
        evaluate_s: Duration of the evaluation, off the record.
        named: Makes the rows of metrics by name; None: there are none.
    """
    if replayed.scores is None:
        return []
    at_s = replayed.started_s + replayed.duration_s
    devices, metric = metric_rows(replayed.choice.round, replayed.scores, at_s, evaluate_s)
    if metric is None:
        return [*devices]
    if named is None:
        return [*devices, metric]
    rows = named.rows(replayed.choice.round, replayed.scores)
    return [*devices, *rows, named.of_worst(metric, replayed.scores)]


def personal_rows(
    scores: Sequence[PersonalScoreOf], names: Sequence[str]
) -> list[PersonalScoreRow]:
    """Return the scores of personal models."""
    return [
        records.personal_row(
            one.round,
            names[one.row],
            one.score.n,
            one.score.loss_sum / one.score.positions,
            one.score.quality,
        )
        for one in scores
    ]


def exchange_rows(
    replayed: ReplayedRound,
    names: Sequence[str],
    *,
    needs_loss: bool = False,
    powers: Sequence[PhasePower] = (),
) -> Columns[ExchangeRow]:
    """Return the exchanges that ended in a round, and those of the round that continue late.

    As in a live run, phases are known from the offer on, the exchange time from the arrival on.
    With `needs_loss`, devices report the loss of the model that was sent. `powers` is the power of
    each device, by row; empty if it is unknown.
    """
    late = [x for x in replayed.exchanges if x.entry.is_open_late]
    rows = [*replayed.over, *late]
    has_offered, is_done = flags(rows, "has_offered"), flags(rows, "is_done")
    zeros_s = np.zeros(len(rows))

    def offered(name: str) -> Floats:
        return np.where(has_offered, column(rows, name), np.nan)

    def arrived(values: Floats) -> Floats:
        return np.where(is_done, values, np.nan)

    phases_s = {name: offered(name) for name in PHASE_COLUMNS}
    phases_s["upload_s"] = arrived(column(rows, "upload_s"))
    others = len(replayed.table.exchanges) - 1
    entries, losses = [x.entry for x in rows], finite_or_nan(column(rows, "loss"))
    known = np.array([known_values(x.known) for x in rows], dtype=np.float64)
    known = finite_or_nan(known.reshape(len(rows), len(KNOWN_COLUMNS)))
    return Columns(
        ExchangeRow,
        len(rows),
        {
            "round": [x.round for x in rows],
            "attempt": 0,
            "device": [names[x.row] for x in rows],
            "outcome": [x.outcome for x in rows],
            "reason": [entry.reason for entry in entries],
            "is_valid": is_done,
            "dispatched_at_s": column(rows, "dispatched_at_s"),
            "tau_wall_s": arrived(column(rows, "tau_wall_s")),
            "queued_s": column(rows, "queued_s"),
            "tau_s": arrived(column(rows, "tau_s")),
            "busy_s": finite_or_nan(column(rows, "busy_s")),
            "signal_s": finite_or_nan(column(rows, "signal_s")),
            "unaccounted_s": arrived(zeros_s),
            **phases_s,
            "train_cpu_s": None,
            "contended_s": None,
            "contended_download_s": None,
            "contended_compute_s": None,
            "contended_upload_s": None,
            "lag_s": 0.0,
            "is_contended": False,
            "codec_down": [x.codec_down for x in rows],
            "codec_up": [x.codec_up for x in rows],
            "bytes_down": [_bytes_down(x) for x in rows],
            "bytes_up": [x.bytes_up if x.is_done else 0 for x in rows],
            "duplicates_up": 0,
            "concurrent": [others if e.concurrent is None else e.concurrent for e in entries],
            "n_k": [x.n_k for x in rows],
            "steps": [x.steps for x in rows],
            "was_cold": [x.was_cold for x in rows],
            "loss_before": losses if needs_loss else None,
            "loss_train": None if needs_loss else losses,
            **dict(zip(KNOWN_COLUMNS, known.T, strict=True)),
            "steady_down_bytes": None,
            "steady_down_s": None,
            "steady_up_bytes": None,
            "steady_up_s": None,
            "staleness": [entry.staleness for entry in entries],
            "aggregated_round": [entry.aggregated_round for entry in entries],
            **measured_columns([e.measured for e in entries], has_offered, is_done),
            **_energy(phases_s, [powers[x.row] if powers else UNKNOWN for x in rows]),
        },
    )


def release_rows(replayed: ReplayedRound, names: Sequence[str]) -> list[ReleaseRow]:
    """Return which updates with local noise left their devices, as in a live run."""
    seen = {(x.round, x.row): x for x in (*replayed.over, *replayed.exchanges)}
    return [records.release_row(x.entry, names[x.row]) for x in seen.values()]


def _energy(phases_s: Mapping[str, Floats], powers: Sequence[PhasePower]) -> dict[str, Floats]:
    """Return the energy of exchanges, power x duration of each phase; NaN is unknown.

    Args:
        phases_s: Durations by column, seconds, each of shape (K,).
        powers: Powers of the devices of the exchanges, shape (K,).
    """
    stated = [(power.transfer_w, power.compute_w) for power in powers]
    energy = _phases_j(phases_s, stated)
    at_device = sum((energy[f"{phase}_j"] for phase in DEVICE_PHASES), np.zeros(len(powers)))
    has_arrived = np.isfinite(phases_s["upload_s"])
    energy["energy_j"] = at_device + np.where(has_arrived, energy["upload_j"], 0.0)
    ranges = [(power.transfer_range_w, power.compute_range_w) for power in powers]
    has_range = np.array([each != (None, None) for each in ranges], dtype=np.bool_)
    if has_range.any():
        for at, name in enumerate(("energy_low_j", "energy_high_j")):
            ends = [
                tuple(w if r is None else r[at] for w, r in zip(*each, strict=True))
                for each in zip(stated, ranges, strict=True)
            ]
            of_phases = _phases_j(phases_s, ends).values()
            total = sum(of_phases, np.zeros(len(powers)))
            energy[name] = np.where(has_range, total, np.nan)
    return energy


def _phases_j(
    phases_s: Mapping[str, Floats], watts: Sequence[tuple[float | None, ...]]
) -> dict[str, Floats]:
    """Return the energy of each phase, joules, given the power of transfers and of computing."""
    transfer_w, compute_w = np.array(watts, dtype=np.float64).reshape(-1, 2).T
    return {
        f"{phase}_j": phases_s[f"{phase}_s"] * (transfer_w if phase in TRANSFERS else compute_w)
        for phase in ENERGY_PHASES
    }


def _bytes_down(x: ReplayedExchange) -> int:
    """Return the bytes of the model if the coordinator knows that the device received it."""
    return x.bytes_down if x.has_offered or x.entry.state is ExchangeState.FAILED else 0
