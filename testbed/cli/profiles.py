"""`fairbed profiles`: list, show, check, plot, import or fit devices, links and populations."""

import argparse
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from fairbed import profiles
from fairbed.profiles import (
    CellProfile,
    Link,
    LinkProfile,
    LinkQueue,
    Population,
    Profile,
    ProfileError,
    Varying,
    numbers,
    schedule_text,
)
from fairbed.profiles.exchange_log import (
    TOTAL,
    ExchangeLog,
    check_usual,
    format_exchange_log,
    parse_log_columns,
    read_exchange_log,
)
from fairbed.profiles.importing import (
    PARTS,
    SHARES,
    Description,
    Imported,
    has_link,
    import_link,
    import_parts,
)
from fairbed.profiles.load import kind_of
from fairbed.profiles.quantities import Floats
from fairbed.profiles.traces import Trace
from fairbed.profiles.traces.columns import (
    Column,
    parse_columns,
)
from fairbed.profiles.traces.files import NAMES, Format, format_of, read_file
from fairbed.profiles.traces.trace import ONE_WAY
from fairbed.testbed.cli import DONE, FAILED
from fairbed.testbed.cli.profile_drives import (
    check_name,
    drives_of_file,
    of_label,
    optional,
    read_trace,
)
from fairbed.testbed.emulation.queues import depth_bytes, depth_s
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import matching_links
from fairbed.testbed.units import queue_depth
from fairbed.wire.printable import printable


def import_trace(options: argparse.Namespace) -> int:
    """Write links or devices and their traces, print what was imported; return the exit code."""
    name = options.name or _name_of(options.down)
    check_name(name)
    step_s = optional("--step", options.step)
    if step_s is not None and step_s <= 0.0:
        raise UsageError(f"--step: must be more than 0, got {options.step}; 1s is usual")
    columns = _columns(options.columns)
    gap_s = optional("--gap", options.gap)
    if options.split is not None and options.up is not None:
        raise UsageError(f"--split: takes one file, got {options.up} too; import each by itself")
    files = [path for path in (options.down, options.up) if path is not None]
    _check_formats(options, {path: format_of(read_file(path)) for path in files})
    drives = drives_of_file(options, step_s, columns, gap_s)
    up_notes: list[str] = []
    up = None
    if options.up is not None:
        up = read_trace(options.up, options, step_s, columns, gap_s, up_notes)
    imports: dict[str, Imported] = {}
    skipped: list[str] = []
    numbered = [name] if options.split is None else _numbered(name, len(drives))
    for each, (label, down, notes) in zip(numbered, drives, strict=True):
        try:
            imports[each] = _imported(options, each, label, down, up, notes, up_notes)
        except UsageError as exc:
            if len(drives) == 1:
                raise
            skipped.append(f"{each}{of_label(label)}: left out: {exc}")
    if not imports:
        raise UsageError(skipped[0])
    for each, imported in imports.items():
        _check_imported(options.to / f"{each}.toml", imported, as_is=options.as_is)
    every = {file: text for one in imports.values() for file, text in one.files.items()}
    _write(options.to, Imported(files=every, found=()), force=options.force)
    labels = dict(zip(numbered, (label for label, _, _ in drives), strict=True))
    for each, imported in imports.items():
        for line in imported.found:
            print(f"{line}{of_label(labels[each])}")
    for line in dict.fromkeys(line for _, _, notes in drives for line in (*notes, *up_notes)):
        print(line)
    for line in skipped:
        print(line)
    if options.split is not None:
        print(f"wrote {len(imports)} of {len(drives)} drives to {options.to}")
    first = next(iter(imports))
    path = options.to / f"{first}.toml"
    if path.name not in imports[first].files:
        print(
            f"wrote {options.to / first}.csv; make a device of it with --profile, or add the lines"
        )
    elif options.profile is not None:
        print(f"wrote {path}; use it as: profile = {_toml(str(path))}")
    elif options.split is None:
        print(f"wrote {path}; use it as: link = {_toml(str(path))}")
    else:
        _print_draw(options.to, [f"{each}.toml" for each in imports])
    return DONE


def _print_draw(folder: Path, files: list[str]) -> None:
    """Print the key with which each device draws one of some links of a folder."""
    pattern = str(folder / f"{files[0].rpartition('-')[0]}-*.toml")
    print(f"use them as: link = {_toml(pattern)}; each device draws one")
    others = sorted({Path(path).name for path in matching_links(pattern)} - set(files))
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        print(
            f"{pattern}: matches {len(others)} files of earlier imports, too: "
            f"{', '.join(others[:3])}{more}; remove them, or name the links in a list"
        )


def _toml(text: str) -> str:
    """Return a text as a value of TOML."""
    return f"'{text}'" if "'" not in text else msgspec.json.encode(text).decode()


_USED_BY: dict[str, tuple[Format, ...]] = {
    "columns": ("table",),
    "split": ("table", "iperf3"),
    "gap": ("table", "iperf3", "tegrastats"),
    "gaps": ("table", "iperf3", "tegrastats"),
    "nominal": ("tegrastats",),
    "interval": ("tegrastats",),
}
"""Formats whose files use an option of the import; all files use the other options."""

_OF_LINKS = ("up_rate", "down_rate", "delay", "queue", "queue_discipline", "up")
"""Options of the import that only a link has, and the second file."""


def _check_formats(options: argparse.Namespace, formats: dict[Path, Format]) -> None:
    """Check that each given option is used by a file.

    Raises:
        UsageError: One is not.
    """
    for option, users in _USED_BY.items():
        if getattr(options, option) is not None and not set(users) & set(formats.values()):
            path, got = next(iter(formats.items()))
            raise UsageError(
                f"{path}: --{option} is for {' or '.join(map(NAMES.__getitem__, users))}, got "
                f"{NAMES[got]}; remove it"
            )


def _is_link(trace: Trace) -> bool:
    """Return whether a trace is that of a link, and not of a device alone."""
    return has_link(trace) or not PARTS.keys() & trace.columns.keys()


def _check_used(options: argparse.Namespace, down: Trace, up: Trace | None) -> None:
    """Check that each given option changes what is written.

    Raises:
        ValueError: One does not.
    """
    got = ", ".join(down.columns)
    if options.profile is not None and not PARTS.keys() & down.columns.keys():
        raise ValueError(
            f"--profile takes a clock, load or availability, got {got}; remove it, and name the "
            "link in the experiment"
        )
    if options.profile is not None or not _is_link(down):
        given = [name for name in _OF_LINKS if getattr(options, name) is not None]
        given += ["title"] if options.title is not None and options.profile is None else []
        if given:
            name = "the second file" if given[0] == "up" else f"--{given[0].replace('_', '-')}"
            kind = "device" if options.profile is not None else "trace of a device"
            raise ValueError(
                f"a {kind} has no link, so {name} must not be given, got {got}; remove it"
                if given[0] != "title"
                else f"a trace has no title, so --title must not be given, got {got}; remove it"
            )
        return
    if options.delay is not None and down.has("delay_s"):
        raise ValueError("--delay must not be given beside a column for delay_s; remove one")
    for name in ("up_rate", "down_rate"):
        if up is not None and getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} must not be given beside {options.up}; remove one")


def _unused(
    options: argparse.Namespace, down: Trace, up: Trace | None, paths: list[Path]
) -> list[str]:
    """Return a line for each file with columns that are not used."""
    if options.profile is not None:
        unused = {paths[0]: [name for name in down.columns if name not in PARTS]}
        advice = "a device has the link of its profile; import the link by itself"
    elif not _is_link(down):
        return []
    else:
        given = {"down_bps": options.down_rate, "up_bps": options.up_rate or up}
        unused = {
            paths[0]: [
                name for name in down.columns if name in PARTS or given.get(name) is not None
            ]
        }
        if up is not None:
            unused[paths[1]] = [name for name in up.columns if name not in ("up_bps", ONE_WAY)]
        advice = "a link does not have them, or has others instead"
    return [
        f"{path.name}: {', '.join(names)}: not used; {advice}"
        for path, names in unused.items()
        if names
    ]


def _numbered(name: str, count: int) -> list[str]:
    """Return a name per drive, within the length of names."""
    longest = MAX_NAME - 1 - len(str(count))
    return [f"{name[:longest].rstrip('-')}-{number}" for number in range(1, count + 1)]


MAX_NAME = 32
"""Characters of the name of a link or a profile."""


def _imported(
    options: argparse.Namespace,
    name: str,
    label: str,
    down: Trace,
    up: Trace | None,
    notes: list[str],
    up_notes: list[str],
) -> Imported:
    """Return the files of one drive, and append what is not used of it to `notes`."""
    paths = [path for path in (options.down, options.up) if path is not None]
    if up is not None and not down.has("down_bps") and up.has("down_bps"):
        down, up, paths = up, down, paths[::-1]
    try:
        _check_used(options, down, up)
    except ValueError as exc:
        raise UsageError(f"{options.down}: {exc}") from exc
    notes += _unused(options, down, up, paths)
    files = " and ".join(path.name for path in (options.down, options.up) if path is not None)
    profile = None if options.profile is None else profiles.load(options.profile)
    kind = "Link" if profile is None else "Device"
    description = Description(
        title=options.title or f"{kind} imported from {files}{of_label(label)}",
        source="; ".join(
            [options.source or f"imported from {files}{of_label(label)}", *notes, *up_notes]
        ),
        licence=options.licence or "not stated at import: ask the owner before publishing",
    )
    try:
        if profile is None and _is_link(down):
            return import_link(
                name,
                down,
                up,
                description,
                optional("--up-rate", options.up_rate),
                optional("--delay", options.delay),
                _queue(options),
                optional("--down-rate", options.down_rate),
            )
        return import_parts(name, down, description, profile, None)
    except ValueError as exc:
        raise UsageError(f"{options.down}: {exc}") from exc


def _queue(options: argparse.Namespace) -> LinkQueue:
    try:
        queue = LinkQueue() if options.queue is None else queue_depth(options.queue)
    except ValueError as exc:
        raise UsageError(f"--queue: {exc}") from exc
    return replace(queue, discipline=options.queue_discipline or "drop-tail")


def _columns(text: str | None) -> dict[str, Column] | None:
    try:
        return None if text is None else parse_columns(text)
    except ValueError as exc:
        raise UsageError(f"--columns: {exc}") from exc


def _check_imported(path: Path, imported: Imported, *, as_is: bool) -> None:
    """Check that the new files can be loaded, before they are written.

    Raises:
        UsageError: They cannot, or have a given rate or delay that is likely of another unit.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-import-") as folder:
        _write(Path(folder), imported, force=True)
        if path.name not in imported.files:
            return
        problems = profiles.check(Path(folder) / path.name)
        if not problems and not as_is:
            advice = ", or add --as-is if it is right"
            problems = [line + advice for line in profiles.warnings(Path(folder) / path.name)]
    if problems:
        raise UsageError(problems[0].replace(folder, str(path.parent)))


def _write(folder: Path, imported: Imported, *, force: bool) -> None:
    existing = [folder / file for file in imported.files if (folder / file).exists()]
    if existing and not force:
        raise UsageError(
            f"{existing[0]}: exists already; choose another --name or --to, or use --force"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in imported.files.items():
            (folder / file).write_text(content, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"--to {folder}: must be a writable folder, got: {exc.strerror}") from exc


def _name_of(path: Path) -> str:
    stem = path.name.lower()
    for ending in (
        ".xz",
        ".gz",
        ".bz2",
        ".zst",
        ".zip",
        ".csv",
        ".tsv",
        ".down",
        ".up",
        ".log",
        ".txt",
        ".json",
    ):
        stem = stem.removesuffix(ending)
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:32].strip("-") or "link"


def import_log(options: argparse.Namespace) -> int:
    """Write a log of exchanges in our format, and print what it has; return the exit code."""
    name = options.name or _name_of(options.log)
    check_name(name)
    try:
        columns = None if options.columns is None else parse_log_columns(options.columns)
    except ValueError as exc:
        raise UsageError(f"--columns: {exc}") from exc
    log = read_exchange_log(read_file(options.log), str(options.log), columns)
    if not options.as_is:
        check_usual(log, str(options.log))
    notes = {
        "title": options.title or f"Exchanges imported from {options.log.name}",
        "source": f"{options.source or f'imported from {options.log.name}'}: {log}",
        "licence": options.licence or "not stated at import: ask the owner before publishing",
    }
    imported = Imported(files={f"{name}.csv": format_exchange_log(log, notes)}, found=())
    _write(options.to, imported, force=options.force)
    print(log)
    for key, values in log.durations_s.items():
        print(_duration_line(log, key, values))
    path = options.to / f"{name}.csv"
    print(f"wrote {path}; use it in a replay as: exchange_times = {str(path)!r}")
    return DONE


def _duration_line(log: ExchangeLog, key: str, values: Floats) -> str:
    """Return the mean, the quantiles and the spread between devices of one duration."""
    sums = np.bincount(log.device, weights=values)
    means = sums / np.bincount(log.device)
    shares = np.quantile(values, SHARES)
    quantiles = ", ".join(
        f"p{round(100 * share)} {value:.4g}" for share, value in zip(SHARES, shares, strict=True)
    )
    return (
        f"{key if key == TOTAL else f'{key}_s'}: mean {values.mean():.4g} s, {quantiles}; "
        f"means of devices {means.min():.4g} to {means.max():.4g} s"
    )


SortKey: TypeAlias = Literal["name", "speed", "cores", "memory", "down", "up", "delay"]


class ProfileListRow(Struct, frozen=True, kw_only=True):
    """One device profile."""

    name: str
    kind: str
    cores: int
    speed: float
    """Speed of one training step, in cores of the reference machine."""
    memory_bytes: int
    down_bps: float
    up_bps: float
    delay_s: float
    measured: list[str]
    """Measured parts, of `compute` and `link` (both rates)."""
    more: list[str]
    """Other parts of the profile, of `heat`, `power`, `availability`, `varies`."""


class LinkRow(Struct, frozen=True, kw_only=True):
    """One link."""

    name: str
    down_bps: float
    up_bps: float
    delay_s: float
    jitter_s: float
    loss_ratio: float
    queue_s: float | None
    """Time in which a full queue is sent at the fastest rate downwards; None is not stated."""
    queue: str
    """Discipline of the queues."""
    schedule: str
    """Schedule of the downlink rate: constant, series, trace or spread."""
    is_measured: bool


class PopulationRow(Struct, frozen=True, kw_only=True):
    """One population; numbers are medians over its devices."""

    name: str
    speed: float
    memory_bytes: float
    down_bps: float
    up_bps: float
    available: float


class CellRow(Struct, frozen=True, kw_only=True):
    """One cell."""

    name: str
    down_bps: float
    up_bps: float
    share: str


def device_row(profile: Profile) -> ProfileListRow:
    """Return the row of a device."""
    link = profile.link
    parts = {
        "heat": profile.thermal is not None,
        "power": profile.energy is not None,
        "availability": profile.availability is not None,
        "varies": any(
            isinstance(number, Varying) and not number.is_constant for _, number in numbers(profile)
        ),
    }
    measured = {"compute": profile.one_core.tag == "measured", "link": _is_measured(link)}
    return ProfileListRow(
        name=profile.name,
        kind=profile.kind,
        cores=profile.cores,
        speed=profile.training_speed,
        memory_bytes=profile.memory_bytes,
        down_bps=link.down_bps,
        up_bps=link.up_bps,
        delay_s=link.delay_s,
        measured=[name for name, is_measured in measured.items() if is_measured],
        more=[name for name, is_present in parts.items() if is_present],
    )


def link_row(profile: LinkProfile) -> LinkRow:
    """Return the row of a link."""
    link = profile.link
    schedules = [
        name for name in ("series", "trace", "spread") if getattr(link.down, name) is not None
    ]
    return LinkRow(
        name=profile.name,
        down_bps=link.down_bps,
        up_bps=link.up_bps,
        delay_s=link.delay_s,
        jitter_s=link.jitter_s,
        loss_ratio=link.loss_ratio,
        queue_s=None
        if link.queue_depth is None and link.queue_size is None
        else depth_s(depth_bytes(link.queue, link.down.highest), link.down.highest),
        queue=link.queue.discipline,
        schedule=schedules[0] if schedules else "constant",
        is_measured=_is_measured(link),
    )


def population_row(population: Population) -> PopulationRow:
    """Return the row of a population."""
    median = {
        key: float(number.distribution().at(0.5)) for key, number in population.numbers().items()
    }
    return PopulationRow(
        name=population.name,
        speed=median["core_speed"],
        memory_bytes=median["memory_bytes"],
        down_bps=median["link.down_bps"],
        up_bps=median["link.up_bps"],
        available=median.get("availability.available", 1.0),
    )


def cell_row(profile: CellProfile) -> CellRow:
    """Return the row of a cell."""
    return CellRow(
        name=profile.name,
        down_bps=profile.down_bps,
        up_bps=profile.up_bps,
        share=profile.share,
    )


def sort_key(
    row: ProfileListRow | LinkRow | PopulationRow | CellRow, key: SortKey
) -> tuple[float, str]:
    """Return the key that sorts rows: largest first, equal values by name."""
    name = {"memory": "memory_bytes", "down": "down_bps", "up": "up_bps", "delay": "delay_s"}
    value = 0.0 if key == "name" else float(getattr(row, name.get(key, key), 0.0))
    return -value, row.name


def _is_measured(link: Link) -> bool:
    return link.down.tag == link.up.tag == "measured"


NAME_WIDTH = 26


def main(options: argparse.Namespace) -> int:
    """Run one of the actions; return the exit code."""
    try:
        if options.action == "list":
            return _list(options)
        if options.action == "show":
            return _show(options)
        if options.action == "check":
            return _check(options.what, as_json=options.json)
        if options.action == "plot":
            from fairbed.testbed.cli.profiles_plot import plot

            return plot(options)
        if options.action == "fit":
            from fairbed.testbed.cli.profiles_fit import fit_link

            return fit_link(options)
        return import_log(options) if options.action == "import-log" else import_trace(options)
    except ProfileError as exc:
        raise UsageError(str(exc)) from exc


def _list(options: argparse.Namespace) -> int:
    found = [_load(name) for name in options.what] if options.what else _all()
    devices = [device_row(item) for item in found if isinstance(item, Profile)]
    links = [link_row(item) for item in found if isinstance(item, LinkProfile)]
    populations = [population_row(item) for item in found if isinstance(item, Population)]
    cells = [cell_row(item) for item in found if isinstance(item, CellProfile)]
    for rows in (devices, links, populations, cells):
        rows.sort(key=lambda row: sort_key(row, options.sort))
    if options.json:
        content = {"devices": devices, "links": links, "populations": populations, "cells": cells}
        print(msgspec.json.encode(content).decode())
        return DONE
    tables = [
        _device_lines(devices),
        _link_lines(links),
        _population_lines(populations),
        _cell_lines(cells),
    ]
    tables = [table for table in tables if table]
    print("\n\n".join("\n".join(table) for table in tables))
    print("\nspeed: one training step, in cores of the reference machine; rates in Mbit/s")
    return DONE


def _device_lines(rows: list[ProfileListRow]) -> list[str]:
    head = f"{'device':<{NAME_WIDTH}}{'class':<10}{'cores':>5}{'speed':>7}{'memory':>10}"
    head += f"{'down':>8}{'up':>8}{'delay':>9}  {'measured':<13}more"
    return [head.rstrip()] * bool(rows) + [
        f"{row.name:<{NAME_WIDTH}}{row.kind:<10}{row.cores:>5}{row.speed:>7.2f}"
        f"{_gib(row.memory_bytes):>10}{_mbit(row.down_bps):>8}{_mbit(row.up_bps):>8}"
        f"{_ms(row.delay_s):>9}  {' '.join(row.measured):<13}{' '.join(row.more)}".rstrip()
        for row in rows
    ]


def _link_lines(rows: list[LinkRow]) -> list[str]:
    head = f"{'link':<{NAME_WIDTH}}{'down':>8}{'up':>8}{'delay':>9}{'jitter':>9}{'loss':>7}"
    head += f"{'queue':>9}"
    return [f"{head}  {'schedule':<11}rates"] * bool(rows) + [
        f"{row.name:<{NAME_WIDTH}}{_mbit(row.down_bps):>8}{_mbit(row.up_bps):>8}"
        f"{_ms(row.delay_s):>9}{_ms(row.jitter_s) if row.jitter_s else '-':>9}"
        f"{f'{row.loss_ratio:.1%}' if row.loss_ratio else '-':>7}"
        f"{'-' if row.queue_s is None else _ms(row.queue_s):>9}  {row.schedule:<11}"
        f"{'measured' if row.is_measured else ''}".rstrip()
        for row in rows
    ]


def _population_lines(rows: list[PopulationRow]) -> list[str]:
    head = f"{'population (medians)':<{NAME_WIDTH}}{'speed':>8}{'memory':>10}{'down':>8}{'up':>8}"
    return [f"{head}{'available':>11}"] * bool(rows) + [
        f"{row.name:<{NAME_WIDTH}}{row.speed:>8.2f}{_gib(row.memory_bytes):>10}"
        f"{_mbit(row.down_bps):>8}{_mbit(row.up_bps):>8}{row.available:>11.0%}"
        for row in rows
    ]


def _cell_lines(rows: list[CellRow]) -> list[str]:
    head = f"{'cell':<{NAME_WIDTH}}{'down':>8}{'up':>8}  share"
    return [head] * bool(rows) + [
        f"{row.name:<{NAME_WIDTH}}{_mbit(row.down_bps):>8}{_mbit(row.up_bps):>8}  {row.share}"
        for row in rows
    ]


def _show(options: argparse.Namespace) -> int:
    found = [_load(name) for name in options.what]
    if options.json:
        print(msgspec.json.encode([msgspec.to_builtins(item) for item in found]).decode())
        return DONE
    for item in found:
        kind = "cell" if isinstance(item, CellProfile) else "link"
        kind = item.kind if isinstance(item, Profile | Population) else kind
        print(f"{item.name}: {item.title} ({kind}); {item.licence}")
        for key, number in numbers(item):
            value = getattr(number, "value", None)
            schedule = schedule_text(number)
            print(f"  {key:<32}{_value(value):<14}{number.tag:<12}{number.source}")
            if schedule:
                print(f"  {'':<32}{schedule}")
    return DONE


def _check(names: list[str], *, as_json: bool) -> int:
    paths = [_path(name) for name in names] if names else [profiles.find(name) for name in _names()]
    problems = [problem for path in paths for problem in profiles.check(path, _environ(names))]
    warned = [line for path in paths for line in profiles.warnings(path, _environ(names))]
    if as_json:
        found = {"checked": len(paths), "problems": problems, "warnings": warned}
        print(msgspec.json.encode(found).decode())
        return FAILED if problems else DONE
    for line in (*problems, *(f"warning: {line}" for line in warned)):
        print(printable(line))
    if not problems:
        more = f", {len(warned)} warning{'s' * (len(warned) > 1)}" if warned else ""
        print(f"{len(paths)} checked, no problems{more}")
    return FAILED if problems else DONE


def _environ(names: list[str]) -> dict[str, str] | None:
    """Return the environment with the folder of downloaded traces; None reads no traces."""
    return dict(os.environ) if names or "FAIRBED_DATA" in os.environ else None


def _path(text: str) -> Path:
    path = Path(text)
    return path if path.suffix or path.is_file() else profiles.find(text)


def _load(name: str) -> Profile | LinkProfile | Population | CellProfile:
    path = profiles.find(name)
    kind = kind_of(path)
    if kind is LinkProfile:
        return profiles.load_link(path)
    if kind is CellProfile:
        return profiles.load_cell(path)
    return profiles.load_population(path) if kind is Population else profiles.load(path)


def _names() -> list[str]:
    return [
        *profiles.names(),
        *profiles.link_names(),
        *profiles.population_names(),
        *profiles.cell_names(),
    ]


def _all() -> Iterable[Profile | LinkProfile | Population | CellProfile]:
    return [_load(name) for name in _names()]


def _value(value: Any) -> str:
    return "" if value is None else str(value) if isinstance(value, int | str) else f"{value:g}"


def _mbit(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e6:.3g}" if bits_per_s < 1e6 else f"{bits_per_s / 1e6:.1f}"


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f} GB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
