"""`fairbed profiles import`: a link of a trace of mahimahi or of a CSV."""

import argparse
import re
import tempfile
from pathlib import Path

import profiles
from profiles.importing import Imported, Words, import_link
from profiles.traces import Trace, read_trace
from testbed.commands import DONE, UsageError
from testbed.units import duration_s, rate_bps

NAME = re.compile(r"[a-z0-9-]{1,32}")

MAHIMAHI_STEP_S = 1.0


def import_trace(options: argparse.Namespace) -> int:
    """Write a link and the traces beside it, and print what was found; return the exit code."""
    name = options.name or _name_of(options.down)
    if NAME.fullmatch(name) is None:
        raise UsageError(f"--name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}; rename it")
    step_s = None if options.step is None else _number("--step", options.step)
    if step_s is not None and step_s <= 0.0:
        raise UsageError(f"--step: must be more than 0, got {options.step}; 1s is usual")
    down = _read(options.down, step_s)
    up = None if options.up is None else _read(options.up, step_s)
    imported = _imported(options, name, down, up)
    path = options.to / f"{name}.toml"
    _check(path, imported)
    _write(options.to, imported, force=options.force)
    for line in imported.found:
        print(line)
    print(f"wrote {path}; use it as: link = {str(path)!r}")
    return DONE


def _imported(options: argparse.Namespace, name: str, down: Trace, up: Trace | None) -> Imported:
    up_rate = None if options.up_rate is None else _number("--up-rate", options.up_rate)
    files = " and ".join(path.name for path in (options.down, options.up) if path is not None)
    words = Words(
        title=options.title or f"Link imported from {files}",
        source=options.source or f"imported from {files}",
        licence=options.licence or "not stated by whoever imported it: ask before you publish it",
    )
    delay_s = None if options.delay is None else _number("--delay", options.delay)
    try:
        return import_link(name, down, up, words, up_rate, delay_s)
    except ValueError as exc:
        hint = "give the uplink as a second file or with --up-rate"
        raise UsageError(f"{options.down}: {exc}; {hint}") from exc


def _read(path: Path, step_s: float | None) -> Trace:
    trace = read_trace(path, step_s or MAHIMAHI_STEP_S)
    try:
        return trace if step_s is None else trace.binned(step_s)
    except ValueError as exc:
        raise UsageError(f"{path}: {exc}") from exc


def _check(path: Path, imported: Imported) -> None:
    """See that what would be written loads, before anything is."""
    with tempfile.TemporaryDirectory(prefix="fairbed-import-") as folder:
        _write(Path(folder), imported, force=True)
        problems = profiles.check(Path(folder) / path.name)
    if problems:
        raise UsageError(problems[0].replace(folder, str(path.parent)))


def _write(folder: Path, imported: Imported, *, force: bool) -> None:
    taken = [folder / file for file in imported.files if (folder / file).exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]}: is there already; take another --name or --to, or --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in imported.files.items():
            (folder / file).write_text(content, encoding="utf-8")
    except OSError as exc:
        raise UsageError(
            f"--to {folder}: must be a folder to write to, got: {exc.strerror}"
        ) from exc


def _name_of(path: Path) -> str:
    stem = path.name.lower()
    for ending in (".xz", ".csv", ".down", ".up", ".log", ".txt"):
        stem = stem.removesuffix(ending)
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:32].strip("-") or "link"


def _number(option: str, text: str) -> float:
    try:
        return rate_bps(text) if option == "--up-rate" else duration_s(text)
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}") from exc
