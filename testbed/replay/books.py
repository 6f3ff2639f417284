"""Rows of rounds whose exchanges may outlive them: the coordinator's own books, on virtual time."""

from collections.abc import Sequence
from dataclasses import replace

from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.records.rows import exchange_row, finite
from fairbed.coordinator.records.rows import round_row as live_row
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.store.tables import ExchangeRow, RoundRow
from fairbed.testbed.replay.errand import Errand
from fairbed.testbed.replay.play import Closed, Played
from fairbed.wire.messages import Hyperparameters, Manifest, Train

_TRAIN = Train(
    round=1,
    model=Manifest(id=bytes(16), kind="model", size_bytes=1, chunk_bytes=1024, sha256=bytes(32)),
    hyperparameters=Hyperparameters(epochs=1, batch_size=1, learning_rate=1.0),
    seed=0,
    needs_loss=False,
    deadline_s=1.0,
)
"""Stands for what was said over a wire: nothing was. What it would tell is told by the errand."""


def closed_row(
    played: Played, closed: Closed, decisions: Decisions, names: Sequence[str]
) -> RoundRow:
    """Return the row of a round that is over and learned from."""
    dispatched_s, ended_s = played.dispatched_s, played.after.now
    row = live_row(
        closed.table,
        closed.over,
        dispatched_s,
        ended_s,
        ended_s,
        is_available=played.choice.is_available,
        queues=decisions.selector.queues(len(names)),
        lag_p99_s=0.0,
        bytes_down=sum(_bytes_down(x, _errand(closed, x)) for x in closed.over)
        + played.asked_bytes,
        other_bytes=(0, 0),
        model_sha256="",
        coordinator_encode_s=None,
        ask_s=played.asked_s,
    )
    slowest = None if row.slowest is None else names[int(row.slowest)]
    tau_max_s = row.duration_s - row.ask_s
    return replace(row, tau_max_s=tau_max_s, close_s=0.0, slowest=slowest)


def over_rows(closed: Closed, names: Sequence[str]) -> list[ExchangeRow]:
    """Return the exchanges that came to their end in a round, and its own that are late."""
    late = [x for x in closed.table.exchanges.values() if x.goes_on]
    return [_row(x, closed, names) for x in [*closed.over, *late]]


def _row(x: Exchange, closed: Closed, names: Sequence[str]) -> ExchangeRow:
    errand = _errand(closed, x)
    row = exchange_row(
        x, closed.table, errand.known, train=_TRAIN, dispatched_at_s=x.dispatched, lag_p99_s=0.0
    )
    return replace(
        row,
        device=names[errand.row],
        train_cpu_s=None,
        codec_down=errand.codec_down,
        codec_up=errand.codec_up,
        bytes_down=_bytes_down(x, errand),
        n_k=errand.n_k,
        steps=errand.steps,
        was_cold=errand.was_cold,
        tau_hat_s=finite(errand.known.tau_hat_s),
        width_s=finite(errand.known.width_s),
    )


def _errand(closed: Closed, x: Exchange) -> Errand:
    return closed.errands[x.device, x.round]


def _bytes_down(x: Exchange, errand: Errand) -> int:
    """Return what the model took on its way to a device that has had it."""
    has_model = x.offer is not None or x.stage is ExchangeState.FAILED
    return errand.bytes_down if has_model else 0
