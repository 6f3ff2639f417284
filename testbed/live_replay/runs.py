"""What a run, live or replayed, came to, as far as the two can be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordinator.algorithms.arrays import Floats
from coordinator.store import RunReader
from coordinator.store.reader import Tally
from coordinator.store.records import ExchangeRow, RoundRow


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times of one run."""

    tau_s: Mapping[tuple[int, str], float]
    """Exchange times of those that count, by round and device, seconds."""
    round_s: Mapping[int, float]
    """How long each round lasted that is not void, seconds; its number first."""
    is_whole: frozenset[int]
    """Rounds all of whose exchanges count: nobody else has made them longer."""
    rates: Mapping[str, float]
    """In which share of the rounds each device was selected."""
    queue_mean: float
    """Sum of all queues, mean over the rounds."""

    @property
    def taus(self) -> Floats:
        """All exchange times, seconds, shape (K,)."""
        return np.array(list(self.tau_s.values()), dtype=np.float64)

    @property
    def rounds(self) -> Floats:
        """How long the rounds lasted that are whole, seconds, shape (T,)."""
        whole = [round_s for round_id, round_s in self.round_s.items() if round_id in self.is_whole]
        return np.array(whole, dtype=np.float64)

    @property
    def total_s(self) -> float:
        """How long all rounds lasted together, seconds."""
        return sum(self.round_s.values())


def read_times(folder: Path, close_s: float = 0.0) -> RunTimes:
    """Return the times of the run in a folder.

    Args:
        folder: Of the run.
        close_s: What a replay leaves out: from the last arrival of a round to its end, seconds.

    Raises:
        StoreError: It cannot be read.
    """
    with RunReader(folder) as reader, reader.snapshot():
        return times_of(reader.exchanges(), reader.rounds(), reader.tallies(), close_s)


def times_of(
    exchanges: Sequence[ExchangeRow],
    rounds: Sequence[RoundRow],
    tallies: Sequence[Tally],
    close_s: float = 0.0,
) -> RunTimes:
    """Return the times in the rows of a run; an exchange counts if it is done and valid."""
    invalid = {x.round for x in exchanges if not _counts(x)}
    closed = [row for row in rounds if row.status != "void"]
    return RunTimes(
        tau_s={(x.round, x.device): x.tau_s for x in exchanges if _counts(x) and x.tau_s},
        round_s={row.round: row.duration_s + close_s for row in closed},
        is_whole=frozenset(row.round for row in closed) - invalid,
        rates={tally.device: tally.selected / tally.rounds for tally in tallies if tally.rounds},
        queue_mean=float(np.mean([row.queue_total for row in rounds])) if rounds else 0.0,
    )


def _counts(x: ExchangeRow) -> bool:
    return x.outcome == "done" and x.is_valid and not x.is_starved and bool(x.tau_s)
