"""Text of the files that people bring: unpacked, decoded, and split into fields.

    containers   gzip, xz, bzip2, zstd, zip with one file
    encodings    UTF-8; UTF-16 and UTF-32 with a byte order mark
    line ends    LF, CRLF, CR
    fields       separated by commas, semicolons, tabs or bars; decimal points or decimal commas

Every reader of tables, traces and logs takes its text from here. A file is recognised by its first
bytes, because names are often wrong. Anything else is refused by a line that names it.
"""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from shlex import quote
from typing import Any, BinaryIO, cast

from fairbed.wire.text import BYTE_ORDER_MARKS, encoding_of

CHUNK_BYTES = 1 << 18
"""Bytes that are unpacked and decoded at a time."""

HEAD_BYTES = 1 << 16
"""Bytes of a table that show how its fields are separated."""

DELIMITERS = ";\t|,"
"""Separators of fields; a comma that is beside another one is a decimal comma."""

ZSTD = b"\x28\xb5\x2f\xfd"

_PACKED: Mapping[bytes, str] = {
    b"\x5d\x00\x00": "an LZMA file",
    b"LZIP": "an lzip file",
    b"\x89LZO": "an lzop file",
    b"\xff\x06\x00\x00sNaPpY": "a Snappy file",
    b"\x78\x01": "a stream of zlib",
    b"\x78\x9c": "a stream of zlib",
    b"\x78\xda": "a stream of zlib",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\x04\x22\x4d\x18": "an LZ4 file",
    b"\x1f\x9d": "a file of compress(1)",
}
"""First bytes of containers that are not unpacked here, and names of them."""

_UNREADABLE: Mapping[bytes, str] = {
    b"\xd4\xc3\xb2\xa1": "a capture of packets",
    b"\x0a\x0d\x0d\x0a": "a capture of packets",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"\x7fELF": "a program",
    b"FEA1": "a Feather file",
    b"Obj\x01": "an Avro file",
    b"MATLAB 5.0": "a file of MATLAB",
    b"{\\rtf": "a document in RTF",
    b"\xd0\xcf\x11\xe0": "a workbook or document of Microsoft Office",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "an array of NumPy",
    b"%PDF": "a PDF document",
}
"""First bytes of files that are no text, and names of them."""

_NO_CONTENT = (
    (rb"\s*<(?:!doctype html|html)", "a web page", "download the file itself, not its page"),
    (
        rb"version https://git-lfs",
        "a pointer of Git LFS",
        "get the file itself: git lfs pull, or download it",
    ),
)
"""Beginnings of files in place of the wanted one, names of them, and what to do."""

TAR_AT, TAR = 257, b"ustar"

MIN_UTF16_BYTES = 4


class TextError(ValueError):
    """A file is no readable text.

    Attributes:
        problem: The broken rule and the value found, with the row if there is one.
        what_to_do: The next step of the user.
    """

    def __init__(self, problem: str, what_to_do: str) -> None:
        super().__init__(f"{problem}; {what_to_do}")
        self.problem = problem
        self.what_to_do = what_to_do


def plain_text(content: bytes, where: str, max_bytes: int) -> bytes:
    """Return the text of a file in UTF-8, without a byte order mark, with LF; equal if it is that.

    Args:
        content: Content of the file, perhaps packed.
        where: Name of the file in advice.
        max_bytes: Maximum size when unpacked.

    Raises:
        TextError: It is not text, or larger.
    """
    if content.isascii() and b"\r" not in content and b"\0" not in content:
        if len(content) > max_bytes:
            raise _too_large(max_bytes)
        return content
    return open_text(io.BytesIO(content), where, max_bytes).read()


def open_text(file: BinaryIO, where: str, max_bytes: int) -> io.BufferedReader:
    """Return a stream of the text of a file in UTF-8, without a byte order mark, with LF.

    Args:
        file: The file, which the stream closes.
        where: Name of the file in advice.
        max_bytes: Maximum size when unpacked; a larger file stops with an error when it is reached.

    Raises:
        TextError: It is not text, or larger; also while the stream is read.
    """
    try:
        return io.BufferedReader(_Text(file, where, max_bytes), CHUNK_BYTES)
    except BaseException:
        file.close()
        raise


def open_unpacked(file: BinaryIO, where: str, max_bytes: int) -> BinaryIO:
    """Return a stream of the content of a file that may be packed.

    Args:
        file: The file; of a pipe, at most `max_bytes` and one more are read.
        where: Name of the file in advice.
        max_bytes: Maximum size of the content of a pipe.

    Raises:
        TextError: It is an archive of several files, or packed in another way.
    """
    if not file.seekable():
        file = io.BytesIO(file.read(max_bytes + 1))
    head = file.read(TAR_AT + len(TAR))
    file.seek(0)
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return _zip_member(file, where)
    for magic, unpack in _CONTAINERS.items():
        if head.startswith(magic):
            return cast(BinaryIO, unpack(file, where))
    return file


def _zip_member(file: BinaryIO, where: str) -> BinaryIO:
    with _readable():
        archive = zipfile.ZipFile(file)
        names = [
            entry.filename
            for entry in archive.infolist()
            if not entry.is_dir() and not entry.filename.startswith("__MACOSX/")
        ]
        if "[Content_Types].xml" in names:
            raise TextError("must be text, got a workbook of Excel", "save it as CSV UTF-8")
        if len(names) != 1:
            raise TextError(
                f"a zip archive must have one file, got {len(names)}"
                f"{': ' if names else ''}{', '.join(names[:5])}",
                f"unpack it, and give one of them: unzip {quote(where)}",
            )
        member: Any = archive.open(names[0])
        return cast(BinaryIO, member)


def _zstd(file: BinaryIO, where: str) -> BinaryIO:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        try:
            from pyarrow import CompressedInputStream
        except ImportError:
            raise TextError(
                "must not be packed by zstd without Python 3.14 or pyarrow, got such a file",
                f"unpack it: zstd -d {quote(where)}",
            ) from None
        return cast(BinaryIO, CompressedInputStream(file, "zstd"))
    return cast(BinaryIO, zstd.ZstdFile(file))


_CONTAINERS: Mapping[bytes, Callable[[Any, str], Any]] = {
    b"\x1f\x8b": lambda file, _: gzip.GzipFile(fileobj=file),
    b"\xfd7zXZ\0": lambda file, _: lzma.LZMAFile(file),  # noqa: SIM115  # the stream closes it
    b"BZh": lambda file, _: bz2.BZ2File(file),
    ZSTD: _zstd,
}
"""Containers of one file by their first bytes."""


class _readable:
    """Turns the errors of damaged containers into `TextError`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        damage = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError)
        if isinstance(exc, damage):
            reason = " ".join(str(exc).split())[:200] or type(exc).__name__
            raise TextError(
                f"must be a readable file, got: {reason}", "check the file, or get it again"
            ) from exc


class _Text(io.RawIOBase):
    """The stream of `open_text`."""

    def __init__(self, file: BinaryIO, where: str, max_bytes: int) -> None:
        self._where = where
        self._max_bytes = max_bytes
        self._file = file
        self._stream = open_unpacked(file, where, max_bytes)
        self._n_bytes = 0
        self._rows = 1
        with _readable():
            head = self._stream.read(CHUNK_BYTES)
        _check_plain(head, where, is_packed=self._stream is not file)
        encoding = encoding_of(head)
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._newlines = io.IncrementalNewlineDecoder(None, translate=True)
        self._encoding = encoding.removesuffix("-sig").upper()
        self._ready = self._text(head)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._is_at_end:
            with _readable():
                chunk = self._stream.read(CHUNK_BYTES)
            self._ready = self._text(chunk)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._file.close()
        super().close()

    def _text(self, chunk: bytes) -> memoryview:
        """Return the text of the next bytes; no bytes end it."""
        self._is_at_end = not chunk
        self._n_bytes += len(chunk)
        if self._n_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        try:
            text = self._newlines.decode(self._decoder.decode(chunk, self._is_at_end))
        except UnicodeDecodeError as exc:
            raise self._undecodable(exc) from exc
        text = self._newlines.decode("", final=True) + text if self._is_at_end else text
        if (place := text.find("\0")) >= 0:
            row = self._rows + text.count("\n", 0, place)
            raise TextError(f"row {row}: must be text, got a zero byte", "save it as UTF-8")
        self._rows += text.count("\n")
        return memoryview(text.encode())

    def _undecodable(self, exc: UnicodeDecodeError) -> TextError:
        if self._encoding != "UTF-8":
            return TextError(
                f"must be {self._encoding} text, as its first bytes state, got: {exc.reason}",
                "save it as UTF-8",
            )
        before = exc.object[: exc.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return TextError(
            f"row {self._rows + before.count(10)}: must be UTF-8 text, "
            f"got byte 0x{exc.object[exc.start]:02x}",
            "save it as UTF-8, or convert it from the encoding of Windows: "
            + _converted("CP1252", self._where),
        )


def _converted(encoding: str, where: str) -> str:
    return f"iconv -f {encoding} -t UTF-8 {quote(where)} > utf8.csv"


def _too_large(max_bytes: int) -> TextError:
    return TextError(
        f"must be at most {max_bytes / 1e6:.0f} MB of text, got more", "use a shorter part of it"
    )


def _check_plain(head: bytes, where: str, *, is_packed: bool) -> None:
    """Refuse content that is known not to be text, and UTF-16 that does not state its order."""
    packed = next((magic for magic in (*_CONTAINERS, b"PK\3\4") if head.startswith(magic)), None)
    if packed and is_packed:
        raise TextError("must be packed once, got a packed file in it", "unpack it once")
    found = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
    if found is not None:
        raise TextError(f"must be text, got {found}", "unpack it, and give the file in it")
    found = next((name for magic, name in _UNREADABLE.items() if head.startswith(magic)), None)
    if head[TAR_AT : TAR_AT + len(TAR)] == TAR:
        raise TextError("must be one file, got a tar archive", f"unpack it: tar xf {quote(where)}")
    if found is not None:
        raise TextError(f"must be text, got {found}", "export it as CSV UTF-8")
    for start, name, what_to_do in _NO_CONTENT:
        if re.match(start, head, re.IGNORECASE):
            raise TextError(f"must be a table or a log, got {name}", what_to_do)
    if any(head.startswith(mark) for mark in BYTE_ORDER_MARKS) or len(head) < MIN_UTF16_BYTES:
        return
    start = head[:256]
    for first, name in ((1, "UTF-16LE"), (0, "UTF-16BE")):
        zeros, others = start[first::2], start[1 - first :: 2]
        if 2 * zeros.count(0) > len(zeros) and not others.count(0):
            what = "unpack it, save it as UTF-8" if is_packed else _converted(name, where)
            raise TextError(
                f"must be UTF-8, or UTF-16 with a byte order mark, got {name} without one",
                f"convert it: {what}",
            )


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the fields of a table are separated."""

    header: tuple[str, ...]
    """Names of the columns, without outer spaces."""
    row: int
    """Row of the header, from 1."""
    delimiter: str


def dialect_of(head: str, *, comments: bool) -> Dialect | None:
    r"""Return the dialect of a table by its first rows; None if there is no header.

    The delimiter is one by which the first rows have the same number of fields, two or more; a
    comma only if no other is, because numbers and names have commas, too. A first line
    `sep=;`, as Excel writes it, states it.

    Args:
        head: First rows, LF between them; the last may be cut.
        comments: Lines before the header that begin with `#` are comments.
    """
    lines = head.split("\n")
    if len(head) >= HEAD_BYTES and len(lines) > 2:
        lines = lines[:-1]
    stated = re.fullmatch(r"\s*\"?sep=(.)\"?\s*", lines[0])
    skipped = 1 if stated else 0
    for row, line in enumerate(lines[skipped:], skipped + 1):
        if not line.strip() or (comments and line.lstrip().startswith("#")):
            continue
        rows = lines[row - 1 : row + 20]
        delimiter = stated.group(1) if stated else max(DELIMITERS, key=lambda d: _fit(rows, d))
        names = next(iter(csv.reader([line], delimiter=delimiter, skipinitialspace=True)))
        return Dialect(tuple(name.strip() for name in names), row, delimiter)
    return None


def _fit(lines: list[str], delimiter: str) -> tuple[bool, bool, int]:
    """Return whether all lines have the same number of fields, which delimiter, and the number."""
    try:
        found = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return False, False, 0
    widths = {len(fields) for fields in found if fields}
    first = len(found[0]) if found else 0
    is_fit = len(widths) == 1 and first > 1
    return is_fit, is_fit and delimiter != ",", first


def plain_quotes(file: io.BufferedReader, delimiter: str) -> io.BufferedReader:
    """Return the text of a table without spaces between a separator and a quote.

    Strict readers take such a quote as a part of the value: `1, "a, b"`.

    Args:
        file: Text of the table, of `open_text`.
        delimiter: Separator of its fields.

    Raises:
        TextError: The first such quote is behind the first rows; while the stream is read.
    """
    stream = _Quotes(file, delimiter)
    return io.BufferedReader(stream, CHUNK_BYTES)


class _Quotes(io.RawIOBase):
    """The stream of `plain_quotes`."""

    def __init__(self, file: io.BufferedReader, delimiter: str) -> None:
        self._file = file
        at = re.escape(delimiter)
        self._spaced = re.compile(rf'(?:^|{at})[ ]+"(?![{at}"\n])'.encode(), re.MULTILINE)
        self._rows: Any = None
        self._ready: bytes = b""
        self._delimiter = delimiter
        self._n_rows = 0
        if self._spaced.search(file.peek(HEAD_BYTES)):
            text = io.TextIOWrapper(file, "utf-8", newline="")
            self._rows = csv.reader(text, delimiter=delimiter, skipinitialspace=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            self._ready = self._file.read1(CHUNK_BYTES) if self._rows is None else self._written()
            if self._rows is None and (found := self._spaced.search(self._ready)):
                row = self._n_rows + self._ready.count(b"\n", 0, found.end()) + 1
                raise TextError(
                    f"row {row}: must have no space between a separator and a quote, as the rows "
                    "before it, got one",
                    "remove the space",
                )
            self._n_rows += self._ready.count(b"\n")
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _written(self) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter=self._delimiter, lineterminator="\n")
        try:
            writer.writerows(islice(self._rows, ROWS_AT_ONCE))
        except csv.Error as exc:
            raise TextError(f"must be a table, got: {exc}", "correct it") from exc
        return text.getvalue().encode()

    def close(self) -> None:
        self._file.close()
        super().close()


ROWS_AT_ONCE = 1000
"""Rows of a table that are written again at a time."""

COMMA_NUMBER = r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?"
"""A number with one comma, which is a decimal comma or a separator of thousands."""

GROUPED_NUMBER = r"[-+]?[1-9]\d{0,2},\d{3}"
"""A number of `COMMA_NUMBER` whose comma may separate thousands."""

POINT_NUMBER = r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?"

_COMMA, _GROUPED, _POINT = map(re.compile, (COMMA_NUMBER, GROUPED_NUMBER, POINT_NUMBER))


class DecimalMarks:
    """Reads decimal commas, and refuses a table in which they may be separators of thousands.

    `0,5` and `12,75` are certain. `1,234` counts as 1.234 if the table has a certain one, and no
    decimal point.
    """

    def __init__(self) -> None:
        self._grouped: str | None = None
        self._certain: str | None = None
        self._point: str | None = None

    def with_point(self, text: str) -> str:
        """Return a field with a decimal point; text that is no such number as it is."""
        if "," in text:
            if not _COMMA.fullmatch(text):
                return text
            self.note(text, grouped=_GROUPED.fullmatch(text) is not None)
            return text.replace(",", ".")
        if self._point is None and "." in text and _POINT.fullmatch(text):
            self._point = text
        return text

    def note(self, text: str, *, grouped: bool) -> None:
        """Note a number with a comma."""
        if grouped:
            self._grouped = self._grouped or text
        else:
            self._certain = self._certain or text

    def note_point(self, text: str) -> None:
        """Note a number with a decimal point."""
        self._point = self._point or text

    def check(self) -> None:
        """Check that all commas were decimal commas.

        Raises:
            TextError: They may separate thousands.
        """
        comma = self._certain or self._grouped
        if comma is None:
            return
        if self._point is not None:
            raise TextError(
                f"must have decimal points or decimal commas, got {comma!r} and {self._point!r}",
                "save it with decimal points, and without separators of thousands",
            )
        if self._certain is None:
            raise TextError(
                f"commas of numbers must be decimal commas, got {comma!r}, which may be "
                f"{comma.replace(',', '')} or {comma.replace(',', '.')}",
                "save it with decimal points, and without separators of thousands",
            )
