"""Find and read traces, in any supported format, beside a profile or in `FAIRBED_DATA`.

data:SET/TRACE    FAIRBED_DATA/traces/SET/TRACE, with or without .csv or .xz, otherwise TRACE in
                  the archive of a known set (`SETS`)

Files are read up to a maximum size, also when unpacked.
"""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from fairbed.profiles.errors import TraceError
from fairbed.profiles.quantities import DATA
from fairbed.profiles.reads import note
from fairbed.profiles.series import Series
from fairbed.profiles.text import TextError, open_text
from fairbed.profiles.traces.mahimahi import is_mahimahi, parse_mahimahi
from fairbed.profiles.traces.table import MAX_BYTES, check_text, parse_table
from fairbed.profiles.traces.trace import ONE_WAY, Trace

_ADVICE = "shorten it, or use longer bins: fairbed profiles import --step"


def read_file(path: Path) -> bytes:
    """Return the text of a file, unpacked, in UTF-8 with LF.

    Raises:
        TraceError: It cannot be read, is not text, or has more than `MAX_BYTES`.
    """
    where = str(path)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _too_large(where, size)
        with open_text(path.open("rb"), where, MAX_BYTES) as text:
            content = text.read()
    except TextError as exc:
        raise TraceError(f"{where}: {exc}") from exc
    except (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as exc:
        raise _unreadable(where, exc) from exc
    note(where, content)
    return check_text(content, where)


def read_member(archive: Path, member: str) -> bytes | None:
    """Return the content of one file of a `.tar.xz`; None if there is no such file in it.

    Raises:
        TraceError: The archive cannot be read, or the file has more than `MAX_BYTES`.
    """
    where = f"{archive}/{member}"
    try:
        with tarfile.open(archive, "r:*") as tar:
            for item in tar:
                if item.name == member and item.isfile():
                    if item.size > MAX_BYTES:
                        raise _too_large(where, item.size)
                    file = tar.extractfile(item)
                    content = b"" if file is None else file.read(MAX_BYTES)
                    note(where, content)
                    return content
    except (OSError, tarfile.TarError, lzma.LZMAError, EOFError) as exc:
        raise _unreadable(where, exc) from exc
    return None


def _too_large(where: str, size: int) -> TraceError:
    return TraceError(
        f"{where}: a trace must be at most {MAX_BYTES // 10**6} MB, "
        f"got {size / 1e6:.0f} MB or more; {_ADVICE}"
    )


def _unreadable(where: str, exc: Exception) -> TraceError:
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return TraceError(f"{where}: must be a readable file, got: {reason}; check the path")


Format: TypeAlias = Literal["mahimahi", "iperf3", "tegrastats", "table"]

NAMES: Mapping[Format, str] = {
    "mahimahi": "a trace of mahimahi",
    "iperf3": "JSON of iperf3",
    "tegrastats": "a log of tegrastats",
    "table": "a table",
}
"""Formats of the files with a trace, and names of them."""


def format_of(content: bytes) -> Format:
    """Return the format of a file by its content."""
    from fairbed.profiles.traces.iperf import is_iperf
    from fairbed.profiles.traces.tegrastats import is_tegrastats

    if is_mahimahi(content):
        return "mahimahi"
    if is_iperf(content):
        return "iperf3"
    return "tegrastats" if is_tegrastats(content) else "table"


def read_trace(path: Path, step_s: float = 1.0) -> Trace:
    """Return the trace in a file.

    Args:
        path: A file in our format or mahimahi's, in any encoding and container of `text`.
        step_s: Length of a bin for a mahimahi trace, seconds; our format is not binned.

    Raises:
        TraceError: It cannot be read, or violates a rule.
    """
    return parse_trace(read_file(path), str(path), step_s)


def parse_trace(content: bytes, where: str, step_s: float = 1.0) -> Trace:
    """Return the trace in the content of a file; `where` is its name in errors.

    Raises:
        TraceError: It violates a rule.
    """
    content = check_text(content, where)
    if is_mahimahi(content):
        return parse_mahimahi(content, where, step_s)
    return parse_table(content, where)


VARIABLE = "FAIRBED_DATA"

ENDINGS = tuple(f"{kind}{end}" for end in ("", ".xz", ".gz", ".zst") for kind in ("", ".csv"))


@dataclass(frozen=True, slots=True)
class TraceSet:
    """A set of published traces in one packed file."""

    file: str
    """Name of the file in `FAIRBED_DATA/traces`."""
    kind: Literal["archive", "table"]
    """archive: a tar of files; table: rows of many traces, with the trace's name in column 1."""
    folder: str = ""
    """Folder of the traces within an archive."""


SETS: Mapping[str, TraceSet] = {
    "mahimahi": TraceSet("mahimahi_raw.tar.xz", "archive", "mahimahi"),
    "nyc-2018": TraceSet("nyc_raw.tar.xz", "archive", "nyc2018"),
    "nyc-2019": TraceSet("nyc_raw.tar.xz", "archive", "nyc"),
    "norway-3g": TraceSet("norway_hsdpa_3g.csv.xz", "table"),
    "fcc-fixed": TraceSet("fcc_fixed_broadband.csv.xz", "table"),
}
"""Known sets by their name in profiles."""


@dataclass(slots=True)
class TraceReader:
    """Reads each trace once; call it with the name of a trace and a column.

    Args:
        environ: Environment; only `FAIRBED_DATA` is used.
        step_s: Length of a bin for mahimahi traces, seconds.
    """

    environ: Mapping[str, str]
    step_s: float = 1.0
    _traces: dict[str, Trace] = field(default_factory=dict)
    _series: dict[tuple[str, str], Series] = field(default_factory=dict)

    def __call__(self, name: str, column: str) -> Series:
        """Return one column of the trace with this name.

        Raises:
            TraceError: There is no such trace or column, or it violates a rule.
        """
        key = (name, column)
        if key not in self._series:
            self._series[key] = self.with_column(name, column).series(column)
        return self._series[key]

    def with_column(self, name: str, column: str) -> Trace:
        """Return the trace with this name, after checking that it has this column.

        Raises:
            TraceError: There is no such trace or column, or it violates a rule.
        """
        trace = self.trace(name)
        if not trace.has(column):
            raise TraceError(
                f"{name}: must have a column {column}, got {', '.join(trace.columns)}; "
                "name another trace"
            )
        return trace

    def trace(self, name: str) -> Trace:
        """Return the trace with this name.

        Raises:
            TraceError: There is no such trace, or it violates a rule.
        """
        if name not in self._traces:
            content = self._published(name) if name.startswith(DATA) else read_file(Path(name))
            self._traces[name] = parse_trace(content, name, self.step_s)
        return self._traces[name]

    def _published(self, name: str) -> bytes:
        set_name, _, trace_name = name.removeprefix(DATA).partition("/")
        if ".." in trace_name.split("/"):
            raise TraceError(f"{name}: must not leave its folder; name a trace of the set")
        folder = self._folder(name)
        for ending in ENDINGS:
            path = folder / set_name / f"{trace_name}{ending}"
            if path.is_file():
                return read_file(path)
        packed = SETS.get(set_name)
        if packed is None:
            raise TraceError(
                f"{name}: no such trace in {folder}; add it as {set_name}/{trace_name}.csv, "
                f"or use a set of {', '.join(sorted(SETS))}"
            )
        file = folder / packed.file
        if not file.is_file():
            raise TraceError(
                f"{name}: needs {file}, which does not exist; download it, or set {VARIABLE}"
            )
        if packed.kind == "archive":
            content = read_member(file, f"{packed.folder}/{trace_name}")
        else:
            content = _rows_of(read_file(file), trace_name)
        if content is None:
            raise TraceError(f"{name}: no such trace in {file}; list its contents")
        return content

    def _folder(self, name: str) -> Path:
        root = self.environ.get(VARIABLE, "")
        folder = Path(root) / "traces"
        if not root or not folder.is_dir():
            got = f"no folder {folder}" if root else "nothing"
            raise TraceError(
                f"{name}: {VARIABLE} must name the folder of the data, with traces/ in it, "
                f"got {got}; set it, or use a link without a trace"
            )
        return folder


def _rows_of(content: bytes, trace_name: str) -> bytes | None:
    """Return the rows of one trace of a table of many as a separate table; None without rows."""
    beginning = f"{trace_name},".encode()
    rows = [line[len(beginning) :] for line in content.splitlines() if line.startswith(beginning)]
    return b"\n".join([f"t_s,{ONE_WAY}".replace("bps", "mbps").encode(), *rows]) if rows else None
