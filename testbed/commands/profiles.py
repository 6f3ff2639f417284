"""`fairbed profiles`: list, show, check, plot, import."""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import profiles
from profiles import LinkProfile, Population, Profile, ProfileError, course_of, numbers
from profiles.load import kind_of
from testbed.commands import DONE, FAILED, UsageError
from testbed.profile_rows import (
    DeviceRow,
    LinkRow,
    PopulationRow,
    device_row,
    link_row,
    population_row,
    sort_key,
)

NAME_WIDTH = 26


def main(options: argparse.Namespace) -> int:
    """Carry one of the actions out; return the exit code."""
    try:
        if options.action == "list":
            return _list(options)
        if options.action == "show":
            return _show(options)
        if options.action == "check":
            return _check(options.what)
        if options.action == "plot":
            from testbed.commands.profiles_plot import plot

            return plot(options)
        from testbed.commands.profiles_import import import_trace

        return import_trace(options)
    except ProfileError as exc:
        raise UsageError(str(exc)) from exc


def _list(options: argparse.Namespace) -> int:
    found = [_load(name) for name in options.what] if options.what else _all()
    devices = [device_row(item) for item in found if isinstance(item, Profile)]
    links = [link_row(item) for item in found if isinstance(item, LinkProfile)]
    populations = [population_row(item) for item in found if isinstance(item, Population)]
    for rows in (devices, links, populations):
        rows.sort(key=lambda row: sort_key(row, options.sort))
    if options.json:
        content = {"devices": devices, "links": links, "populations": populations}
        print(msgspec.json.encode(content).decode())
        return DONE
    tables = [table for table in (_devices(devices), _links(links), _drawn(populations)) if table]
    print("\n\n".join("\n".join(table) for table in tables))
    print("\nspeed: one training step, in cores of the reference machine; rates in Mbit/s")
    return DONE


def _devices(rows: list[DeviceRow]) -> list[str]:
    head = f"{'device':<{NAME_WIDTH}}{'class':<10}{'cores':>5}{'speed':>7}{'memory':>10}"
    head += f"{'down':>8}{'up':>8}{'delay':>9}  {'measured':<13}more"
    return [head.rstrip()] * bool(rows) + [
        f"{row.name:<{NAME_WIDTH}}{row.kind:<10}{row.cores:>5}{row.speed:>7.2f}"
        f"{_gib(row.memory_bytes):>10}{_mbit(row.down_bps):>8}{_mbit(row.up_bps):>8}"
        f"{_ms(row.delay_s):>9}  {' '.join(row.measured):<13}{' '.join(row.more)}".rstrip()
        for row in rows
    ]


def _links(rows: list[LinkRow]) -> list[str]:
    head = f"{'link':<{NAME_WIDTH}}{'down':>8}{'up':>8}{'delay':>9}{'jitter':>9}{'loss':>7}"
    return [f"{head}  {'course':<10}rates"] * bool(rows) + [
        f"{row.name:<{NAME_WIDTH}}{_mbit(row.down_bps):>8}{_mbit(row.up_bps):>8}"
        f"{_ms(row.delay_s):>9}{_ms(row.jitter_s) if row.jitter_s else '-':>9}"
        f"{f'{row.loss_ratio:.1%}' if row.loss_ratio else '-':>7}  {row.course:<10}"
        f"{'measured' if row.is_measured else ''}".rstrip()
        for row in rows
    ]


def _drawn(rows: list[PopulationRow]) -> list[str]:
    head = f"{'population (medians)':<{NAME_WIDTH}}{'speed':>8}{'memory':>10}{'down':>8}{'up':>8}"
    return [f"{head}{'there':>8}"] * bool(rows) + [
        f"{row.name:<{NAME_WIDTH}}{row.speed:>8.2f}{_gib(row.memory_bytes):>10}"
        f"{_mbit(row.down_bps):>8}{_mbit(row.up_bps):>8}{row.available:>8.0%}"
        for row in rows
    ]


def _show(options: argparse.Namespace) -> int:
    found = [_load(name) for name in options.what]
    if options.json:
        print(msgspec.json.encode([msgspec.to_builtins(item) for item in found]).decode())
        return DONE
    for item in found:
        kind = item.kind if isinstance(item, Profile | Population) else "link"
        print(f"{item.name}: {item.title} ({kind}); {item.licence}")
        for key, number in numbers(item):
            value = getattr(number, "value", None)
            course = course_of(number)
            print(f"  {key:<32}{_value(value):<14}{number.tag:<12}{number.source}")
            if course:
                print(f"  {'':<32}{course}")
    return DONE


def _check(what: list[str]) -> int:
    paths = [_path(name) for name in what] if what else [profiles.find(name) for name in _names()]
    problems = [problem for path in paths for problem in profiles.check(path, _environ(what))]
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(paths)} checked, nothing wrong")
    return FAILED if problems else DONE


def _environ(what: list[str]) -> dict[str, str] | None:
    """Return where traces of others are; None leaves them unread where nobody asked for them."""
    return dict(os.environ) if what or "FAIRBED_DATA" in os.environ else None


def _path(text: str) -> Path:
    path = Path(text)
    return path if path.suffix or path.is_file() else profiles.find(text)


def _load(name: str) -> Profile | LinkProfile | Population:
    path = profiles.find(name)
    kind = kind_of(path)
    if kind is LinkProfile:
        return profiles.load_link(path)
    return profiles.load_population(path) if kind is Population else profiles.load(path)


def _names() -> list[str]:
    return [*profiles.names(), *profiles.link_names(), *profiles.population_names()]


def _all() -> Iterable[Profile | LinkProfile | Population]:
    return [_load(name) for name in _names()]


def _value(value: Any) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:g}"


def _mbit(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e6:.3g}" if bits_per_s < 1e6 else f"{bits_per_s / 1e6:.1f}"


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f} GB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
