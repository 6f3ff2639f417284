"""The file of exchange times: its columns, its reader with checks, its writer."""

import csv
import io
import lzma
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from fairbed.coordinator.store.tables import ExchangeRow, TruthRow
from fairbed.testbed.errors import UsageError
from fairbed.wire.printable import one_line

KEYS = ("run", "fleet", "link", "model", "codec")
"""Columns of text that name the fleet: one value of `run` is one fleet with a clock of its own."""

DEVICE = ("profile", "cpu_speed")
"""Columns of the device as it was configured."""

TEXT = ("device", "outcome")
TIMES = (
    *("dispatched_at_s", "tau_s", "queued_s", "signal_s", "download_s", "decode_s", "load_s"),
    *("evaluate_s", "train_s", "encode_s", "upload_s", "unaccounted_s", "contended_s"),
)
CONTEXT = ("mu_cores", "downlink_bps", "uplink_bps", "link_age_s", "context_age_s", "tau_hat_s")
COUNTS = ("round", "bytes_down", "bytes_up", "concurrent", "n_k", "steps", "s_not_previous")
TRUTHS = ("is_valid", "was_cold")
NUMBERS = (*TIMES, *CONTEXT)
COLUMNS = (*KEYS, *TEXT, *COUNTS, *DEVICE, *TRUTHS, *NUMBERS)
"""All columns, in the order of the file; those after `codec` are the store's, but for `DEVICE`."""

SIGNED = frozenset({"unaccounted_s"})
"""Differences of two clocks, which may be below 0."""

REQUIRED = frozenset({*KEYS, *TEXT, *COUNTS, *DEVICE, "is_valid", "dispatched_at_s"})
OUTCOMES = frozenset({"done", "late", "failed", "lost", "rejected", "cancelled"})
SHOWN = 80
"""Most characters of a refused value in a message."""

MAX_BYTES = 500_000_000
"""Most that a file may hold after unpacking."""


@dataclass(frozen=True, slots=True)
class LoggedExchange:
    """One row of the file."""

    key: Mapping[str, str]
    """The columns `KEYS` and `profile`."""
    row: ExchangeRow
    """The exchange; columns that are not in the file are 0 or None."""


def rows_of(
    key: Mapping[str, str], exchanges: Iterable[ExchangeRow], truths: Sequence[TruthRow]
) -> list[list[str]]:
    """Return the lines of the exchanges of one run, in the order of their rounds."""
    device = {truth.name: truth for truth in truths}
    lines = list[list[str]]()
    for x in exchanges:
        truth = device[x.device]
        line = [key[name] for name in KEYS]
        line += [getattr(x, name) for name in TEXT] + [str(getattr(x, name)) for name in COUNTS]
        line += [truth.profile, f"{truth.cpu_speed:.5g}"]
        for name in TRUTHS:
            value = getattr(x, name)
            line.append("" if value is None else str(int(value)))
        for name in NUMBERS:
            value = getattr(x, name)
            digits = 8 if name == "dispatched_at_s" else 5
            line.append("" if value is None else f"{value:.{digits}g}")
        lines.append(line)
    return lines


def write_rows(path: Path, lines: Iterable[Sequence[str]]) -> None:
    """Write a packed file at once: a killed writer leaves the file as it was."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(lines)
    part = path.with_name(path.name + ".part")
    part.write_bytes(lzma.compress(text.getvalue().encode(), preset=9))
    part.replace(path)


def lines_of(path: Path) -> list[list[str]]:
    """Return the lines of a file below its header.

    Raises:
        UsageError: The file cannot be read, is truncated, or has other columns.
    """
    try:
        with lzma.open(path) as packed:
            data = packed.read(MAX_BYTES + 1)
        text = data.decode()
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"{path}: must be a whole .csv.xz file, got one that cannot be read "
            f"({one_line(str(exc), SHOWN)}); copy it again"
        ) from exc
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: must unpack to at most {MAX_BYTES} bytes, got more; split it")
    header, *lines = [*csv.reader(io.StringIO(text))] or [list[str]()]
    if tuple(header) != COLUMNS:
        other = sorted(set(COLUMNS) ^ set(header))
        got = one_line(", ".join(other), 2 * SHOWN) if other else "another order"
        raise UsageError(
            f"{path}: must have the columns of docs/exchange-times.md, differs in {got}; "
            "collect it with `fairbed bench exchange-times`"
        )
    return lines


def read_exchanges(path: Path) -> list[LoggedExchange]:
    """Return the exchanges of a file, in its order.

    Raises:
        UsageError: A line has another length, a value that is no number, negative, or missing, or
            the rounds of a run are out of order; the message names the line.
    """
    found = []
    rounds: dict[str, int] = {}
    seen: set[tuple[str, int, str]] = set()
    for at, line in enumerate(lines_of(path), start=2):
        where = f"{path}: line {at}"
        if len(line) != len(COLUMNS):
            raise UsageError(
                f"{where}: must have {len(COLUMNS)} values, got {len(line)}; copy the file again"
            )
        exchange = _exchange(dict(zip(COLUMNS, line, strict=True)), where)
        run, row = exchange.key["run"], exchange.row
        if row.round < rounds.get(run, 0):
            raise UsageError(
                f"{where}: rounds of a run must not fall, got {row.round} after {rounds[run]}; "
                "sort by run and round"
            )
        rounds[run] = row.round
        if (run, row.round, row.device) in seen:
            raise UsageError(
                f"{where}: a device must occur once in a round, got "
                f"{one_line(row.device, SHOWN)} again; "
                "remove one of the lines"
            )
        seen.add((run, row.round, row.device))
        found.append(exchange)
    if not found:
        raise UsageError(f"{path}: must have at least one exchange, got none; collect some")
    return found


_BLANK = {
    field.name: "" if field.type is str else 0 if field.type in (int, float, bool) else None
    for field in fields(ExchangeRow)
    if field.default is MISSING
}


def _exchange(cells: Mapping[str, str], where: str) -> LoggedExchange:
    values: dict[str, object] = dict(_BLANK)
    for name, text in cells.items():
        if not text:
            if name in REQUIRED:
                raise UsageError(f"{where}: {name} must not be empty, got nothing; leave it out")
            continue
        if name in TEXT:
            values[name] = text
        elif name not in KEYS and name != "profile":
            number = _number(name, text, where)
            if name in COUNTS:
                values[name] = int(number)
            elif name in TRUTHS:
                values[name] = bool(number)
            elif name not in DEVICE:
                values[name] = number
    if cells["outcome"] not in OUTCOMES:
        raise UsageError(
            f"{where}: outcome must be one of {', '.join(sorted(OUTCOMES))}, got "
            f"{one_line(cells['outcome'], SHOWN)}; correct it"
        )
    key = {name: cells[name] for name in (*KEYS, "profile")}
    return LoggedExchange(key, ExchangeRow(**values))  # type: ignore[arg-type]  # by name


def _number(name: str, text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    is_whole = name not in (*COUNTS, *TRUTHS) or number == round(number if number == number else 0)
    if not math.isfinite(number) or not is_whole or (name in TRUTHS and number not in (0, 1)):
        raise UsageError(
            f"{where}: {name} must be a number, got {one_line(text, SHOWN)}; correct it"
        )
    if number < 0.0 and name not in SIGNED:
        raise UsageError(f"{where}: {name} must be >= 0, got {number:g}; leave the exchange out")
    return number
