"""Loss queries before a selection, on the virtual clock.

The coordinator's own table decides which replies are in time (`coordinator.state.loss_query`).
The world gives their durations, the model their losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.policy.selection import LossDemand, ReportedLosses
from fairbed.coordinator.records.rows import loss_query_rows
from fairbed.coordinator.state.loss_query import LossQuery, QueryOutcome
from fairbed.coordinator.store.tables import LossQueryRow
from fairbed.testbed.replay.engine.in_flight import GONE
from fairbed.testbed.replay.world.world import Exchanges, Scene, World
from fairbed.wire.messages import EvaluateReply, EvaluateRequest, Manifest

NO_LOSS = "the loss of the model must be finite; lower learning_rate"
"""Why a device cannot answer."""


class Losses(Protocol):
    """Knows the model, and how it does on the training data of devices."""

    def asked(self, round_id: int, rows: Ints, examples: int | None) -> Floats:
        """Return what each device finds when it is asked in a round, nats, shape (K,).

        Args:
            round_id: The round.
            rows: Who is asked, shape (K,).
            examples: Size of the mini-batch that each draws; None is its whole training set.

        Returns:
            The mean loss of the model of now; infinite where it is not finite.
        """
        ...


@runtime_checkable
class Answering(World, Protocol):
    """A world whose devices can be asked for the loss of the model."""

    def question(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return what devices do that are asked `now`, rows (K,); they train and upload nothing.

        `Exchanges.ready_s` is when each answers.
        """
        ...

    def on_answers(
        self, now: float, asked: Exchanges, rows: Ints, over_s: Floats, answered: Bools
    ) -> None:
        """Take note of what came of a question.

        Args:
            now: When it was asked, seconds on the virtual clock.
            asked: What the devices did, or were about to do.
            rows: Who was asked, shape (K,).
            over_s: How long after that each was through, or was not waited for any more, (K,).
            answered: Who has the model now, shape (K,).
        """
        ...


@dataclass(frozen=True, slots=True)
class QueriedLosses:
    """Result of the loss query of a round."""

    answers: ReportedLosses
    lasted_s: float
    """From the query to the selection."""
    rows: Sequence[LossQueryRow]
    """One per device; its name is its row, as text."""

    @property
    def bytes_down(self) -> int:
        """Model bytes sent to the devices that answered."""
        return sum(row.bytes_down for row in self.rows)

    def named(self, names: Sequence[str]) -> list[LossQueryRow]:
        """Return the rows with the names of the devices."""
        return [replace(row, device=names[int(row.device)]) for row in self.rows]


def query_losses(
    decisions: Decisions,
    world: World,
    scene: Scene,
    round_id: int,
    now: float,
    losses: Losses | None,
) -> QueriedLosses | None:
    """Query the losses that the selector needs; None where it needs none.

    Args:
        decisions: Its selector names the devices.
        world: The devices.
        scene: The fleet at this instant.
        round_id: The round.
        now: Seconds on the virtual clock.
        losses: Computes them; None where nothing is trained.
    """
    question = decisions.loss_demand(round_id, scene, world.transfer_bits, now, scene.known_s)
    if question is None:
        return None
    assert isinstance(world, Answering), "only a world that imitates a live run is none"
    assert losses is not None, "a stage without training refuses to ask"
    config, rows = decisions.config, question.rows
    examples = config.training.batch_size if question.sample == "batch" else None
    asked = world.question(round_id, now, rows)
    found = losses.asked(round_id, rows, examples) if rows.size else np.zeros(0)
    poll = LossQuery(round_id, 0, config.selection.loss_query_timeout_s)
    for row in rows.tolist():
        poll.add(str(row), now)
    n = scene.examples[rows]
    over_s = _play(poll, asked, found, n if examples is None else np.minimum(n, examples), now)
    queries = [poll.devices[str(row)] for row in rows.tolist()]
    loss = [np.nan if query.reply is None else query.reply.loss for query in queries]
    answered = np.array(
        [query.outcome is QueryOutcome.ANSWERED for query in queries], dtype=np.bool_
    )
    world.on_answers(now, asked, rows, over_s, answered)
    return QueriedLosses(
        answers=ReportedLosses(rows, np.array(loss, dtype=np.float64)),
        lasted_s=float(over_s.max(initial=0.0)),
        rows=loss_query_rows(poll, _asks(question, asked, poll)),
    )


def _play(poll: LossQuery, asked: Exchanges, found: Floats, n: Ints, now: float) -> Floats:
    """Play a poll to its end; return how long each was asked, shape (K,).

    Args:
        poll: The table; everybody has just been asked.
        asked: What they do.
        found: The loss that each finds, shape (K,).
        n: Examples that it looks at, shape (K,).
        now: When they were asked.
    """
    took_s, gone_s = asked.ready_s, asked.until_gone_s
    over_s: Floats = np.minimum(np.minimum(took_s, gone_s), poll.limit_s)
    devices = list(poll.devices)
    for at in np.argsort(over_s, kind="stable").tolist():
        device = devices[at]
        if over_s[at] >= poll.limit_s:
            poll.pass_limit(now + poll.limit_s)
        elif gone_s[at] < took_s[at]:
            poll.end(device, QueryOutcome.LOST, GONE)
        elif not np.isfinite(found[at]):
            poll.end(device, QueryOutcome.FAILED, NO_LOSS)
        else:
            answer = _answer(poll, asked, at, float(found[at]), int(n[at]))
            poll.on_reply(device, answer, None, now + float(over_s[at]))
    return over_s


def _answer(poll: LossQuery, asked: Exchanges, at: int, loss: float, n: int) -> EvaluateReply:
    return EvaluateReply(
        round=poll.round,
        loss=loss,
        n=n,
        was_cold=bool(asked.was_cold[at]),
        download_s=float(asked.download_s[at]),
        decode_s=float(asked.decode_s[at]),
        load_s=float(asked.load_s[at]),
        evaluate_s=float(asked.evaluate_s[at]),
    )


def _asks(question: LossDemand, asked: Exchanges, poll: LossQuery) -> dict[str, EvaluateRequest]:
    """Return what would be said to each; nothing of it counts but the size of the model."""
    sizes = asked.bytes_down.tolist()
    return {
        str(row): EvaluateRequest(
            round=poll.round,
            model=Manifest(
                id=bytes(16), kind="model", size_bytes=size, chunk_bytes=1024, sha256=bytes(32)
            ),
            seed=0,
            limit_s=poll.limit_s,
        )
        for row, size in zip(question.rows.tolist(), sizes, strict=True)
    }
