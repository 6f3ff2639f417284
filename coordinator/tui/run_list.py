"""The runs of a folder as lines of a list, and two runs side by side; each read is bounded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fairbed.coordinator.policy.live_settings import accepted_changes, mean_beta
from fairbed.coordinator.report.measures import run_measure
from fairbed.coordinator.report.quality import measure
from fairbed.coordinator.report.quantities import (
    MISSING,
    NO_SAMPLE,
    SampleCount,
    clock,
    energy,
    known_energy,
    of_enough,
    ratio,
    seconds,
)
from fairbed.coordinator.store.connection import DATABASE, is_locked
from fairbed.coordinator.store.errors import OldStoreError, StoreError
from fairbed.coordinator.store.reader import LIVE, KnownEnergy, RunInfo, RunReader, read_settings
from fairbed.coordinator.store.tables import MetricRow, RoundRow
from fairbed.coordinator.tui.filters import Field
from fairbed.coordinator.tui.widgets.plot import Curve

MAX_RUNS = 1_000
"""Runs in the list: those whose stores were written last."""
READ_AT_ONCE = 10
"""Runs that one call reads."""
MAX_POINTS = 2_000
"""Rounds of a run that are compared; of a longer one only every n-th."""
MAX_SETTINGS = 40
"""Settings that two experiments differ in, listed below the results."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of the list."""

    folder: Path
    status: str
    info: RunInfo | None = None
    """None for a store that cannot be read."""
    problem: str = ""
    """Why it cannot be read, in one line."""
    least_rate: float | None = None
    """Every device was selected in this share of the rounds at least, by the bound of the policy:
    mean beta - largest queue / rounds. None without a guarantee or a round."""
    energy: KnownEnergy | None = None
    """Of its exchanges; None if it is unknown, or of too many exchanges."""

    @property
    def name(self) -> str:
        """Id of the run."""
        return self.info.run_id if self.info else self.folder.name

    @property
    def kind(self) -> str:
        """`live` or `replay`; empty if it is unknown."""
        if self.info is None:
            return ""
        return "replay" if self.info.row.clock == "virtual" else "live"

    @property
    def started(self) -> str:
        """Wall-clock time of its start, ISO 8601 in UTC; empty if it is unknown."""
        return self.info.row.created if self.info else ""

    @property
    def energy_sample(self) -> SampleCount:
        """Exchanges whose energy is known, of all."""
        return SampleCount(self.energy.known, self.energy.exchanges) if self.energy else NO_SAMPLE

    @property
    def energy_j(self) -> float | None:
        """Known energy of its exchanges; None if it is of fewer than half."""
        is_stated = self.energy is not None and not self.energy_sample.why_no_total
        return self.energy.total_j if self.energy is not None and is_stated else None

    @property
    def beta(self) -> float | None:
        """Guaranteed selection rate; None without a guarantee."""
        return self.info.plan.beta if self.info else None


def read_line(folder: Path) -> RunLine:
    """Read one run; an unreadable store is a line, too."""
    try:
        with RunReader(folder) as reader:
            info = reader.run()
            newest = reader.columns(RoundRow, ("queue_max",), "ORDER BY round DESC LIMIT 1")
            beta, rounds = info.plan.beta, info.rounds_completed
            least = None
            if newest and beta is not None:
                beta = mean_beta(beta, accepted_changes(reader.commands()), 1, rounds)
                least = beta - newest[0][0] / rounds
            return RunLine(folder, info.status, info, "", least, reader.known_energy())
    except OldStoreError as exc:
        return RunLine(folder, "older format", problem=str(exc))
    except StoreError as exc:
        return RunLine(folder, "unreadable", problem=str(exc))


Signature = tuple[Any, ...]
"""What changes with the files of a run."""


class RunList:
    """Lists the runs of a folder, and reads only those that changed; used by one thread at a time.

    Args:
        root: Folder of all runs; a missing one holds none.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, tuple[Signature, RunLine]] = {}
        self.total = 0
        """Runs in the folder, also those that are not listed."""

    @property
    def lines(self) -> list[RunLine]:
        """The lines read so far."""
        return [line for _, line in self._known.values()]

    def read(self, limit: int = READ_AT_ONCE) -> bool:
        """Read up to `limit` runs that are new or changed; return whether there are more."""
        found = {path.parent: _signature(path) for path in self.root.glob(f"*/{DATABASE}")}
        self.total = len(found)
        newest = sorted(found, key=lambda folder: found[folder], reverse=True)[:MAX_RUNS]
        self._known = {x: known for x, known in self._known.items() if x in found}
        stale = [folder for folder in newest if self._is_stale(folder, found[folder])]
        for folder in stale[:limit]:
            self._known[folder] = (found[folder], read_line(folder))
        return len(stale) > limit

    def _is_stale(self, folder: Path, signature: Signature) -> bool:
        known = self._known.get(folder)
        if known is None or known[0] != signature:
            return True
        return known[1].status in LIVE and not is_locked(folder)  # its process was killed


def _signature(path: Path) -> Signature:
    """Return times and sizes of a store and of its write-ahead log."""
    found: list[int] = []
    for part in (path, path.with_name(f"{path.name}-wal")):
        try:
            stat = part.stat()
        except OSError:
            found += [0, 0]
        else:
            found += [stat.st_mtime_ns, stat.st_size]
    return (max(found[0], found[2]), *found)


@dataclass(frozen=True, slots=True)
class RunColumn:
    """One column of the list."""

    key: str
    title: str
    text: Callable[[RunLine], str]
    value: Callable[[RunLine], str | float | None]
    """To sort by; None is last."""
    meaning: str
    is_number: bool = True


def _of_info(value: Callable[[RunInfo], Any]) -> Callable[[RunLine], Any]:
    return lambda line: None if line.info is None else value(line.info)


def _rounds(line: RunLine) -> str:
    if line.info is None:
        return MISSING
    planned = f"/{line.info.last_round}" if line.info.last_round else ""
    return f"{line.info.rounds_completed}{planned}"


COLUMNS: tuple[RunColumn, ...] = (
    RunColumn("run", "run", lambda x: x.name, lambda x: x.name, "Name of the run.", False),
    RunColumn(
        "status",
        "status",
        lambda x: f"● {x.status}" if x.status in LIVE else x.status,
        lambda x: x.status,
        "State of the run; ● marks one whose process is alive.",
        False,
    ),
    RunColumn(
        "kind",
        "kind",
        lambda x: x.kind or MISSING,
        lambda x: x.kind,
        "live: devices took part in real time; replay: on a virtual clock, without processes.",
        False,
    ),
    RunColumn(
        "started",
        "started, UTC",
        lambda x: x.started[:16].replace("T", " ") or MISSING,
        lambda x: x.started or None,
        "Wall-clock time at which the run began.",
        False,
    ),
    RunColumn(
        "rounds",
        "rounds",
        _rounds,
        _of_info(lambda info: info.rounds_completed),
        "Closed rounds, of those planned.",
    ),
    RunColumn(
        "accuracy",
        "acc",
        lambda x: ratio(x.info.quality if x.info else None),
        _of_info(lambda info: info.quality),
        "Latest accuracy, mean over devices; RMSE of regression.",
    ),
    RunColumn(
        "beta",
        "beta",
        lambda x: ratio(x.beta, 2),
        lambda x: x.beta,
        "Guaranteed selection rate of each device; empty without a guarantee.",
    ),
    RunColumn(
        "rate",
        "rate ≥",
        lambda x: ratio(x.least_rate, 2),
        lambda x: x.least_rate,
        "Rate at which each device was selected, at least: mean beta - largest queue / rounds.",
    ),
    RunColumn(
        "energy",
        "energy",
        lambda x: known_energy(x.energy_j, x.energy_sample),
        lambda x: x.energy_j,
        f"{run_measure('energy_j').meaning}, joules; of how many, unless of all.",
    ),
    RunColumn(
        "devices",
        "devices",
        lambda x: str(x.info.devices) if x.info else MISSING,
        _of_info(lambda info: info.devices),
        "Devices that ever joined.",
    ),
    RunColumn(
        "policy",
        "policy",
        lambda x: (x.info.plan.selection.policy if x.info else None) or MISSING,
        lambda x: x.info.plan.selection.policy if x.info else None,
        "Selection policy.",
        False,
    ),
)
"""The most important first; narrow screens lack the last ones."""

FIELDS: tuple[Field[RunLine], ...] = (
    Field("run", lambda x: x.name, is_searched=True),
    Field("status", lambda x: x.status, is_searched=True),
    Field("kind", lambda x: x.kind, is_searched=True),
    Field("policy", lambda x: x.info.plan.selection.policy if x.info else None, is_searched=True),
    *(Field(column.key, column.value, is_number=True) for column in COLUMNS if column.is_number),
)
"""What a filter can ask of a run."""


def sorted_lines(lines: Sequence[RunLine], key: str, *, is_reversed: bool) -> list[RunLine]:
    """Return lines by a column, the largest first if `is_reversed`; unknown values last."""
    column = next(column for column in COLUMNS if column.key == key)
    by_name = sorted(lines, key=lambda line: line.name)
    known = [line for line in by_name if column.value(line) is not None]
    unknown = [line for line in by_name if column.value(line) is None]
    known.sort(key=lambda line: column.value(line), reverse=is_reversed)  # type: ignore[arg-type, return-value]
    return [*known, *unknown]


@dataclass(frozen=True, slots=True)
class RunSeries:
    """What is compared of a run."""

    line: RunLine
    metrics: Sequence[tuple[int, float, float, float]]
    """Round, run clock in seconds, then mean accuracy (RMSE of regression) and worst 10 %."""
    rounds: Sequence[tuple[int, float]]
    """Round, sum of the queues."""
    round_median_s: float | None
    """Median duration of all rounds that are not void; None of too few."""
    settings: Mapping[str, str]
    """The experiment, flat: values by key, as in `selection.beta`."""


def read_series(folder: Path) -> RunSeries:
    """Read what is compared of a run, at most `MAX_POINTS` rounds and the last one.

    Raises:
        StoreError: The store cannot be read.
    """
    line = read_line(folder)
    with RunReader(folder) as reader:
        newest = reader.newest_round()
        tail = "WHERE round % ? = 0 OR round = ? ORDER BY round"
        values = (max(1, -(-newest // MAX_POINTS)), newest)
        accuracy = ("round", "at_s", "accuracy_mean", "accuracy_worst10")
        error = ("round", "at_s", "rmse_mean", "rmse_worst10")
        measured = error if line.info and line.info.row.task == "regression" else accuracy
        metrics = reader.columns(MetricRow, measured, tail, values)
        rounds = reader.columns(RoundRow, ("round", "queue_total"), tail, values)
        lasted_s = [
            s for (s,) in reader.columns(RoundRow, ("duration_s",), "WHERE status != 'void'")
        ]
        sample = SampleCount(len(lasted_s), newest)
        round_median_s = of_enough(median(lasted_s) if lasted_s else None, sample)
        settings = flat(read_settings(reader.experiment_toml))
    return RunSeries(line, metrics, rounds, round_median_s, settings)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values of nested tables by dotted keys, as texts."""
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for number, part in enumerate(value):
                found |= flat(part, f"{prefix}{key}[{number}].")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found


def overlaid(runs: Sequence[RunSeries]) -> dict[str, tuple[Curve, ...]]:
    """Return the curves of each plot, one for each run, by the id of the plot."""
    styles = ("main", "low")

    def curves(points: Callable[[RunSeries], Sequence[tuple[float, float]]]) -> tuple[Curve, ...]:
        return tuple(
            Curve(label, style, tuple(points(run)))
            for label, style, run in zip("AB", styles, runs, strict=True)
        )

    return {
        "over-rounds": curves(lambda run: [(t, mean) for t, _, mean, _ in run.metrics]),
        "over-time": curves(lambda run: [(at_s, mean) for _, at_s, mean, _ in run.metrics]),
        "worst": curves(lambda run: [(t, worst) for t, _, _, worst in run.metrics]),
        "queues": curves(lambda run: list(run.rounds)),
    }


def quality_name(first: RunSeries, second: RunSeries) -> str:
    """Return what the qualities of two runs are: accuracy, RMSE, or one of each."""
    tasks = [run.line.info.row.task for run in (first, second) if run.line.info]
    return " and ".join(dict.fromkeys(map(measure, tasks))) or measure("classification")


def differences(first: RunSeries, second: RunSeries) -> list[tuple[str, str, str, str]]:
    """Return label, text of both runs and difference: of the results, and of the settings."""
    quality = quality_name(first, second)
    rows = [
        _compared("closed rounds", first, second, _last_round, lambda x: f"{x:g}"),
        _compared(quality, first, second, lambda run: _last(run.metrics, 2), ratio),
        _compared("worst 10 %", first, second, lambda run: _last(run.metrics, 3), ratio),
        _compared("run clock", first, second, _elapsed_s, clock),
        _compared(_name("round_median_s"), first, second, lambda run: run.round_median_s, _seconds),
        _compared(_name("queue_total"), first, second, lambda run: _last(run.rounds, 1), _queue),
        _compared("rate ≥", first, second, lambda run: run.line.least_rate, ratio),
        _compared("energy", first, second, lambda run: run.line.energy_j, energy),
    ]
    keys = [key for key in first.settings if key in second.settings]
    keys += [key for key in {**first.settings, **second.settings} if key not in keys]
    differing = [
        (key, first.settings.get(key, MISSING), second.settings.get(key, MISSING), "")
        for key in keys
        if first.settings.get(key) != second.settings.get(key)
    ]
    more = len(differing) - MAX_SETTINGS
    rest = [(f"and {more} more settings", "", "", "")] if more > 0 else []
    return [*rows, *differing[:MAX_SETTINGS], *rest]


def _compared(
    label: str,
    first: RunSeries,
    second: RunSeries,
    value: Callable[[RunSeries], float | None],
    text: Callable[[float], str],
) -> tuple[str, str, str, str]:
    one, other = value(first), value(second)
    texts = [MISSING if x is None else text(x) for x in (one, other)]
    if one is None or other is None:
        return (label, *texts, "")  # type: ignore[return-value]
    sign = "+" if other > one else "-" if other < one else ""
    return (label, texts[0], texts[1], f"{sign}{text(abs(other - one))}")


def _name(key: str) -> str:
    return run_measure(key).name


def _last(rows: Sequence[tuple[Any, ...]], column: int) -> float | None:
    return rows[-1][column] if rows else None


def _last_round(run: RunSeries) -> float | None:
    return run.line.info.rounds_completed if run.line.info else None


def _elapsed_s(run: RunSeries) -> float | None:
    return run.line.info.elapsed_s if run.line.info else None


def _seconds(value: float) -> str:
    return f"{seconds(value)} s"


def _queue(value: float) -> str:
    return ratio(value, 2)
