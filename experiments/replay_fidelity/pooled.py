"""All pairs of live runs and their imposed replays as one statement. Pure.

A pair is an exchange of a live run and the same exchange of the replay with that run's cohorts and
instants. The pairs of one run share its instants, its losses and what a connection remembers, so
the repeats are clusters: the interval of the ratio comes from the medians of the runs.

    ratio     exp(mean m_i),   m_i = median of log(replay / live) over the pairs of run i
    interval  exp(mean m_i +- t(0.975, N - 1) sd(m_i) / sqrt(N)),   N runs

A loss window is a time in which the loss of one device's link does not change. `[seeds] traces`
draws the windows, so all repeats have the same ones, and the interval does not hold for others.

Source:
    Ibragimov, Müller, Journal of Business & Economic Statistics 28 (2010): t over estimates by
    cluster. With few clusters intervals from a bootstrap of them are too narrow (Cameron, Gelbach,
    Miller, Review of Economics and Statistics 90, 2008).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.profiles.series import Series
from fairbed.wire.messages import DEVICE_PHASES

LEVEL = 0.95
"""Of the interval."""

FEW_WINDOWS = 100
"""With fewer, the times of a run are mostly those of its windows: the median of n draws has a
standard error of 1.25 / sqrt(n) of their deviation, an eighth at 100."""

PARTS = ("signal", "download", "compute", "upload")
"""Parts of an exchange; signal is all that the other three leave of it."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One valid exchange; seconds."""

    at_s: float
    """Instant of the dispatch, on the run's clock."""
    tau_s: float
    parts_s: tuple[float, ...]
    """In the order of `PARTS`."""


Exchanges = Mapping[tuple[int, str], Timed]
"""Valid exchanges of a run, by round and device."""


@dataclass(frozen=True, slots=True)
class RunPairs:
    """One live run beside the replay with its cohorts."""

    name: str
    """Of the live run."""
    pairs: int
    live_s: float
    """Median exchange time of the live run, over the pairs."""
    replay_s: float
    ratio: float
    """Median of replay / live over the pairs."""
    windows: int | None
    """Loss windows in which it had an exchange; None if no loss changes."""


@dataclass(frozen=True, slots=True)
class PartTimes:
    """One part of the exchanges: means over all pairs, seconds."""

    name: str
    live_s: float
    replay_s: float


@dataclass(frozen=True, slots=True)
class Pooled:
    """All pairs of all repeats."""

    runs: list[RunPairs]
    pairs: int
    ratio: float | None
    """Replay / live: above 1 if the replay is too long. None without a pair."""
    low: float | None
    """End of the interval; None with fewer than two runs."""
    high: float | None
    mean_ratio: float | None
    """Mean exchange time of the replays / that of the live runs."""
    parts: list[PartTimes]
    windows: int | None
    """Different loss windows that the runs met together; None if no loss changes."""
    has_few_windows: bool


def timed(exchanges: Iterable[ExchangeRow]) -> dict[tuple[int, str], Timed]:
    """Return the valid exchanges of a run."""
    return {(x.round, x.device): _timed(x, x.tau_s) for x in exchanges if is_valid(x) and x.tau_s}


def is_valid(x: ExchangeRow) -> bool:
    """Return whether the time of an exchange counts."""
    return x.outcome == "done" and x.is_valid and not x.is_contended and bool(x.tau_s)


def _timed(x: ExchangeRow, tau_s: float) -> Timed:
    computing = (phase for phase in DEVICE_PHASES if phase != "download")
    compute_s = sum(getattr(x, f"{phase}_s") or 0.0 for phase in computing)
    download_s, upload_s = x.download_s or 0.0, x.upload_s or 0.0
    rest_s = tau_s - download_s - compute_s - upload_s
    return Timed(x.dispatched_at_s, tau_s, (rest_s, download_s, compute_s, upload_s))


def pooled(
    runs: Sequence[tuple[str, Exchanges, Exchanges]], losses: Mapping[str, Series]
) -> Pooled:
    """Return the statement about all repeats.

    Args:
        runs: Name, exchanges of the live run, and those of the replay with its cohorts.
        losses: Loss of each device's link over the run's clock.
    """
    changes = any(not series.is_constant for series in losses.values())
    found, seen = list[RunPairs](), set[tuple[str, int]]()
    both = list[tuple[Timed, Timed]]()
    for name, live, replay in runs:
        keys = [key for key in live if key in replay]
        if not keys:
            continue
        windows = {
            window
            for key in keys
            for window in loss_windows(key[1], losses, live[key].at_s, live[key].tau_s)
        }
        pairs = [(live[key], replay[key]) for key in keys]
        found.append(_of_run(name, pairs, len(windows) if changes else None))
        seen |= windows
        both += pairs
    low, high = _interval([one.ratio for one in found])
    live_s, replay_s = (float(np.mean([p[way].tau_s for p in both] or [0.0])) for way in (0, 1))
    return Pooled(
        runs=found,
        pairs=len(both),
        ratio=float(np.exp(np.mean(np.log([one.ratio for one in found])))) if found else None,
        low=low,
        high=high,
        mean_ratio=replay_s / live_s if live_s else None,
        parts=_parts(both),
        windows=len(seen) if changes else None,
        has_few_windows=changes and len(seen) < FEW_WINDOWS,
    )


def _of_run(name: str, pairs: Sequence[tuple[Timed, Timed]], windows: int | None) -> RunPairs:
    live_s = np.array([live.tau_s for live, _ in pairs], dtype=np.float64)
    replay_s = np.array([replay.tau_s for _, replay in pairs], dtype=np.float64)
    return RunPairs(
        name=name,
        pairs=len(pairs),
        live_s=float(np.median(live_s)),
        replay_s=float(np.median(replay_s)),
        ratio=float(np.exp(np.median(np.log(replay_s / live_s)))),
        windows=windows,
    )


def _interval(ratios: Sequence[float]) -> tuple[float | None, float | None]:
    if len(ratios) < 2:
        return None, None
    logs = np.log(np.array(ratios, dtype=np.float64))
    half = float(student.ppf(0.5 + LEVEL / 2.0, len(logs) - 1) * logs.std(ddof=1))
    half /= len(logs) ** 0.5
    middle = float(logs.mean())
    return float(np.exp(middle - half)), float(np.exp(middle + half))


def _parts(pairs: Sequence[tuple[Timed, Timed]]) -> list[PartTimes]:
    return [
        PartTimes(
            name,
            float(np.mean([live.parts_s[at] for live, _ in pairs])),
            float(np.mean([replay.parts_s[at] for _, replay in pairs])),
        )
        for at, name in enumerate(PARTS if pairs else ())
    ]


def loss_windows(
    device: str, losses: Mapping[str, Series], at_s: float, lasted_s: float
) -> set[tuple[str, int]]:
    """Return the loss windows of a device that a time meets: its name, and their end in ms."""
    series = losses.get(device)
    if series is None or series.is_constant:
        return set()
    found, t = set[tuple[str, int]](), at_s
    while t < at_s + lasted_s:
        t = series.held(t)[1]
        found.add((device, round(1e3 * t)))
    return found
