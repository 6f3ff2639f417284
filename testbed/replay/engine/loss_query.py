"""Loss queries before a selection, on the virtual clock.

The live coordinator's table decides which replies are in time (`coordinator.state.loss_query`). The
world determines their durations, the model their losses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.selection import LossDemand
from fairbed.coordinator.records.rows import loss_query_rows
from fairbed.coordinator.state.loss_query import LossQuery, QueryOutcome
from fairbed.coordinator.store.tables import LossQueryRow
from fairbed.testbed.replay.engine.in_flight import GONE
from fairbed.testbed.replay.world.world import Exchanges, ModelFault, World
from fairbed.wire.messages import EvaluateReply

NO_LOSS = "the loss of the model must be finite; lower learning_rate"
"""Why a device cannot reply."""


class Losses(Protocol):
    """Computes the loss of the current model on the training data of devices."""

    def queried_losses(self, round_id: int, rows: Ints, examples: int | None) -> Floats:
        """Return the loss that a query finds on each device, nats, shape (K,).

        Args:
            round_id: The round.
            rows: Queried devices, shape (K,).
            examples: Size of the mini-batch that each draws; None is its whole training set.

        Returns:
            The mean loss of the current model; infinite where it is not finite.
        """
        ...


@runtime_checkable
class QueryableWorld(World, Protocol):
    """A world whose devices can be queried for the loss of the model."""

    def loss_query(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the loss queries of devices at `now`, rows (K,), without training and upload.

        `Exchanges.ready_s` is when each device replies.
        """
        ...

    def on_replies(
        self, now: float, queries: Exchanges, rows: Ints, over_s: Floats, has_replied: Bools
    ) -> None:
        """Take note of the end of a loss query.

        Args:
            now: Instant of the query, seconds on the virtual clock.
            queries: The queries as planned.
            rows: Queried devices, shape (K,).
            over_s: From `now` to the reply, or to the end of the wait for it, shape (K,).
            has_replied: Devices that replied, and so have the model, shape (K,).
        """
        ...


@dataclass(frozen=True, slots=True)
class QueriedLosses:
    """Result of the loss query of a round."""

    query: LossQuery
    """The table at its end; the name of a device is its row."""
    lasted_s: float
    """From the query to the selection."""
    sizes: Mapping[str, int]
    """Bytes of the model for each device."""
    faults: Sequence[ModelFault] = ()
    """Queries whose model had an internal error."""

    @property
    def bytes_down(self) -> int:
        """Model bytes sent to the devices that replied."""
        return sum(self.sizes[device] for device in self.query.answered())

    def rows(self, names: Sequence[str]) -> list[LossQueryRow]:
        """Return one row per device."""
        return loss_query_rows(
            self.query, lambda device, _: self.sizes[device], lambda device: names[int(device)]
        )


def query_losses(
    config: CoordinatorConfig,
    world: World,
    demand: LossDemand,
    table: LossQuery,
    examples: Ints,
    now: float,
    losses: Losses | None,
) -> QueriedLosses:
    """Let devices reply to a loss query, or not.

    Args:
        config: Size of a mini-batch.
        world: The devices.
        demand: Which of them are queried.
        table: The query, which is empty.
        examples: Training examples of each device, shape (N,).
        now: Seconds on the virtual clock.
        losses: Computes them; None where nothing is trained.
    """
    assert isinstance(world, QueryableWorld), "an imposed world has no loss queries"
    assert losses is not None, "a replay without training refuses such a selector"
    rows = demand.rows
    size = config.training.batch_size if demand.sample == "batch" else None
    planned = world.loss_query(table.round, now, rows)
    found = losses.queried_losses(table.round, rows, size) if rows.size else np.zeros(0)
    for row in rows.tolist():
        table.add(str(row), now)
    n = examples[rows]
    over_s = _resolve(table, planned, found, n if size is None else np.minimum(n, size), now)
    has_replied = np.array(
        [query.outcome is QueryOutcome.ANSWERED for query in table.devices.values()],
        dtype=np.bool_,
    )
    world.on_replies(now, planned, rows, over_s, has_replied)
    return QueriedLosses(
        query=table,
        lasted_s=float(over_s.max(initial=0.0)),
        sizes=dict(zip(table.devices, planned.bytes_down.tolist(), strict=True)),
        faults=tuple(planned.faults.values()),
    )


def _resolve(table: LossQuery, planned: Exchanges, found: Floats, n: Ints, now: float) -> Floats:
    """Process the events of a query up to its end; return the duration per device, shape (K,).

    Args:
        table: The table, with all devices just queried.
        planned: The queries as planned.
        found: The loss that each device finds, shape (K,).
        n: Examples that each device evaluates, shape (K,).
        now: Instant of the query.
    """
    took_s, gone_s = planned.ready_s, planned.until_gone_s
    over_s: Floats = np.minimum(np.minimum(took_s, gone_s), table.limit_s)
    over_s[list(planned.faults)] = 0.0
    devices = list(table.devices)
    for at in np.argsort(over_s, kind="stable").tolist():
        device = devices[at]
        if at in planned.faults:
            table.end(device, QueryOutcome.FAILED, planned.faults[at].reason)
        elif over_s[at] >= table.limit_s:
            table.pass_limit(now + table.limit_s)
        elif gone_s[at] < took_s[at]:
            table.end(device, QueryOutcome.LOST, GONE)
        elif not np.isfinite(found[at]):
            table.end(device, QueryOutcome.FAILED, NO_LOSS)
        else:
            reply = _reply(table, planned, at, float(found[at]), int(n[at]))
            table.on_reply(device, reply, None, now + float(over_s[at]))
    return over_s


def _reply(table: LossQuery, planned: Exchanges, at: int, loss: float, n: int) -> EvaluateReply:
    return EvaluateReply(
        round=table.round,
        model=bytes(32),
        loss=loss,
        n=n,
        was_cold=bool(planned.was_cold[at]),
        download_s=float(planned.download_s[at]),
        decode_s=float(planned.decode_s[at]),
        load_s=float(planned.load_s[at]),
        evaluate_s=float(planned.evaluate_s[at]),
    )
