"""Errors of predicted exchange times on live emulated fleets, compared with an oracle.

    fairbed bench estimators [--backend auto] [--only constant,traces] [--rounds N] [--keep DIR]
                             [--replay SEEDS] [--families NAMES] [--set KEY=VALUE ...] [--json]
                             [--write FILE ...]

Two fleets are run, one on constant links (examples/estimators-constant.toml), one on variable
links (examples/estimators-traces.toml). Every estimator predicts each exchange from the earlier
ones, with mu and B as the agents measured them. `known` has the true speed of the device and the
true rates of its link in the last 5 s. Errors are those of the second half of the rounds. `--keep`
keeps the runs; completed runs are not repeated.

`--replay 20` replays them instead, for 20 seeds of their links. This tests not the live system but
the estimators over many links. `--families held-out` replays fleets on recorded links on which no
estimator was tuned, with all devices in every round and with three of nine; `tuned`, `all` and
names of families are the other values. Recordings are read from FAIRBED_DATA.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks._estimators_families import FAMILIES, families_table, replay_families
from benchmarks._estimators_replayed import replay, table
from benchmarks._pages import page, require_place, write_place
from experiments.oracle.errors import KNOWN, errors_of_run
from experiments.replay_fidelity.live import LiveRunError, play_live
from fairbed.coordinator.algorithms.estimation.prequential import Errors
from fairbed.coordinator.report.estimators import estimates_table
from fairbed.coordinator.report.quantities import percent
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FLEETS = {"constant": "estimators-constant.toml", "traces": "estimators-traces.toml"}

TABLE, REPLAYED_TABLE = "estimators table", "replayed estimators table"
FAMILIES_TABLE = "estimators on families of links"
"""Names of the places in a document that `--write` replaces: of live runs, of replays, and of
replays of families."""

SEEDS = 20
"""Seeds of each family unless `--replay` gives another number."""

MAPE_LIMIT = 0.05
WIRE_LEAST = 0.30
KNOWN_FACTOR = 1.15
"""Limits of issue 5."""

MIN_EXCHANGES = 30
"""Exchanges of the second half; with fewer there is no verdict."""


@dataclass(frozen=True, slots=True)
class Check:
    """A number and its limit."""

    fleet: str
    what: str
    achieved: float | None
    rule: Literal["at most", "at least", "below"]
    limit: float | None
    ok: bool | None
    """None if one of the two is unknown, or too few exchanges are valid."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One fleet, run once."""

    fleet: str
    backend: str
    rounds: int
    exchanges: int
    """All exchanges."""
    valid: int
    """Exchanges from which estimators may learn."""
    tau_median_s: float
    wire_median: float
    """Share of the transfers in an exchange time."""
    link_age_median_s: float | None
    """Age of the measured rates when they were used."""
    errors: dict[str, Errors]
    """By estimator, of the second half of the rounds."""
    checks: list[Check]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench estimators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--backend", default="auto", choices=["auto", "namespace", "container", "process"])
    add("--only", default=",".join(FLEETS), help=f"some of {', '.join(FLEETS)}")
    add("--rounds", type=int, help="instead of those of the experiments")
    add("--keep", type=Path, metavar="DIR", help="keep the runs in this folder")
    add("--replay", type=int, metavar="SEEDS", help="replay them for this many seeds instead")
    add(
        "--families",
        metavar="NAMES",
        help=f"replay families of links: tuned, held-out, all, or some of {', '.join(FAMILIES)}",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    add("--json", action="store_true")
    add(
        "--write",
        nargs="+",
        type=page,
        default=[],
        metavar="FILE",
        help="documents to write the table into",
    )
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := [name for name in names if name not in FLEETS]:
        parser.error(f"--only: must be some of {', '.join(FLEETS)}, got {unknown[0]}")
    if options.rounds is not None and options.rounds < 4:
        parser.error(f"--rounds: must be at least 4, got {options.rounds}")
    if options.replay is not None and options.replay < 1:
        parser.error(f"--replay: must be at least 1 seed, got {options.replay}")
    families = [] if options.families is None else _families(options.families)
    if unknown := [name for name in families if name not in FAMILIES]:
        parser.error(
            f"--families: must be tuned, held-out, all or some of {', '.join(FAMILIES)}, got "
            f"{unknown[0]}"
        )
    place = FAMILIES_TABLE if families else TABLE if options.replay is None else REPLAYED_TABLE
    require_place(options.write, place)
    settings = options.settings
    if options.rounds is not None:
        settings = [*settings, f"rounds={options.rounds}"]
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        where = options.keep or Path(folder)
        try:
            if families:
                return _replay_families(families, settings, where, options)
            if options.replay is not None:
                return _replay(names, settings, options.replay, where, options)
            found = [measure(name, where, options.backend, settings) for name in names]
        except (LiveRunError, ExperimentError) as exc:
            raise SystemExit(str(exc)) from exc
    print(msgspec.json.encode(found).decode() if options.json else plain(found))
    for path in options.write:
        write(path, found)
    return 0


def _replay(
    names: Sequence[str],
    settings: Sequence[str],
    seeds: int,
    folder: Path,
    options: argparse.Namespace,
) -> int:
    """Replay the fleets and print the errors; return the exit code."""

    def experiment_of(name: str, seed: int) -> Experiment:
        return load_experiment(EXAMPLES / FLEETS[name], [*settings, "replay.training=false"], seed)

    found = [replay(name, partial(experiment_of, name), seeds, folder) for name in names]
    text = "\n\n".join(table(one, KNOWN_FACTOR) for one in found)
    print(msgspec.json.encode(found).decode() if options.json else text)
    for path in options.write:
        write_place(path, REPLAYED_TABLE, text)
    return 0


def _families(choice: str) -> list[str]:
    """Return the names of the families that `--families` means."""
    groups = {
        "all": list(FAMILIES),
        "tuned": [name for name, family in FAMILIES.items() if family.is_tuned],
        "held-out": [name for name, family in FAMILIES.items() if not family.is_tuned],
    }
    return groups.get(choice, choice.split(","))


def _replay_families(
    names: Sequence[str], settings: Sequence[str], folder: Path, options: argparse.Namespace
) -> int:
    """Replay families of links and print the errors; return the exit code."""
    example, data = EXAMPLES / FLEETS["traces"], Path(os.environ.get("FAIRBED_DATA", "."))
    seeds = SEEDS if options.replay is None else options.replay
    found = replay_families(names, example, settings, data, seeds, folder)
    text = families_table(found)
    print(msgspec.json.encode(found).decode() if options.json else text)
    for path in options.write:
        write_place(path, FAMILIES_TABLE, text)
    return 0


def measure(fleet: str, folder: Path, backend: str, settings: Sequence[str] = ()) -> Measured:
    """Run one fleet under `folder`; return the errors of its predicted exchange times.

    Raises:
        LiveRunError: The run failed.
    """
    settings = [*settings, f'emulation.backend="{backend}"']
    experiment = load_experiment(EXAMPLES / FLEETS[fleet], settings)
    run = play_live(experiment, folder / fleet, lambda line: print(line, file=sys.stderr))
    half = experiment.rounds / 2
    with RunReader(run) as reader:
        exchanges = reader.exchanges()
    errors = errors_of_run(run, counted_after=half)
    valid = [x for x in exchanges if x.outcome == "done" and x.is_valid and x.tau_s]
    wire = _median(valid, _wire_share)
    return Measured(
        fleet=fleet,
        backend=backend,
        rounds=experiment.rounds,
        exchanges=len(exchanges),
        valid=len(valid),
        tau_median_s=_median(valid, lambda x: x.tau_s or 0.0),
        wire_median=wire,
        link_age_median_s=statistics.median(ages)
        if (ages := [x.link_age_s for x in valid if x.link_age_s is not None])
        else None,
        errors=errors,
        checks=checks_of(fleet, errors, wire),
    )


def checks_of(fleet: str, errors: Mapping[str, Errors], wire: float) -> list[Check]:
    """Return the checks of a fleet."""
    return _constant(errors) if fleet == "constant" else _traces(errors, wire)


def _wire_share(x: ExchangeRow) -> float:
    return ((x.download_s or 0.0) + (x.upload_s or 0.0)) / (x.tau_s or 1.0)


def plain(found: Sequence[Measured]) -> str:
    """Return the results for a terminal."""
    return "\n\n".join(
        "\n".join([_headline(one), "", estimates_table(one.errors), "", *map(_line, one.checks)])
        for one in found
    )


def markdown(found: Sequence[Measured]) -> str:
    """Return the tables of a document."""
    parts = []
    for one in found:
        parts += [_headline(one), "", *_errors(one.errors), ""]
        parts += [f"- {_line(check)}" for check in one.checks]
        parts.append("")
    return "\n".join(parts).rstrip()


def _constant(errors: Mapping[str, Errors]) -> list[Check]:
    ridge, phases = errors["ridge"], errors["phases"]
    return [
        _check("constant", "ridge, mean error", ridge.mape, "at most", MAPE_LIMIT, ridge.count),
        _check(
            "constant",
            "phases, mean error, against ridge's",
            phases.mape,
            "at most",
            ridge.mape,
            ridge.count,
        ),
    ]


def _traces(errors: Mapping[str, Errors], wire: float) -> list[Check]:
    phases, known = errors["phases"], errors[KNOWN]
    limit = None if known.median_ape is None else KNOWN_FACTOR * known.median_ape
    checks = [
        _check("traces", "wire time, median", wire, "at least", WIRE_LEAST, known.count),
        _check(
            "traces",
            f"phases, median error, against {KNOWN_FACTOR:g} times known's",
            phases.median_ape,
            "at most",
            limit,
            phases.count,
        ),
    ]
    for name in ("last value", "device mean"):
        checks.append(
            _check(
                "traces",
                f"phases, median error, against that of the {name}",
                phases.median_ape,
                "below",
                errors[name].median_ape,
                phases.count,
            )
        )
    return checks


def _check(
    fleet: str,
    what: str,
    achieved: float | None,
    rule: Literal["at most", "at least", "below"],
    limit: float | None,
    count: int,
) -> Check:
    ok = None
    if achieved is not None and limit is not None and count >= MIN_EXCHANGES:
        ok = {"at most": achieved <= limit, "at least": achieved >= limit}.get(
            rule, achieved < limit
        )
    return Check(fleet, what, achieved, rule, limit, ok)


def _headline(one: Measured) -> str:
    age = "" if one.link_age_median_s is None else f", rates {one.link_age_median_s:.1f} s old"
    return (
        f"{one.fleet}: {one.valid} of {one.exchanges} exchanges in {one.rounds} rounds valid; tau "
        f"{one.tau_median_s:.2f} s, {100 * one.wire_median:.0f} % of it on the wire{age} (medians)"
    )


def _line(check: Check) -> str:
    verdict = {True: "ok", False: "missed", None: "no verdict: too few valid exchanges"}[check.ok]
    return (
        f"{check.what}: {percent(check.achieved)}, {check.rule} {percent(check.limit)}: {verdict}"
    )


def _errors(errors: Mapping[str, Errors]) -> list[str]:
    lines = [
        "| estimator | exchanges | median | mean | p95 | bias |",
        "|---|---|---|---|---|---|",
    ]
    for name, e in errors.items():
        cells = percent(e.median_ape), percent(e.mape), percent(e.p95_ape)
        lines.append(
            f"| {name} | {e.count} | {' | '.join(cells)} | {percent(e.bias, is_signed=True)} |"
        )
    return lines


def _median(exchanges: Sequence[ExchangeRow], number: Callable[[ExchangeRow], float]) -> float:
    return statistics.median(map(number, exchanges)) if exchanges else float("nan")


def _origin(backend: str) -> str:
    day = time.strftime("%d %B %Y", time.gmtime()).lstrip("0")
    python = ".".join(platform.python_version_tuple()[:2])
    return (
        f"`fairbed bench estimators --backend {backend}`, {day}: a virtual machine of "
        f"{os.cpu_count()} cores, {platform.system()}, Python {python}."
    )


def write(path: Path, found: Sequence[Measured]) -> None:
    """Replace the tables of live runs in a document.

    Raises:
        SystemExit: The document has no place for them.
    """
    write_place(path, TABLE, f"{_origin(found[0].backend)}\n\n{markdown(found)}")
