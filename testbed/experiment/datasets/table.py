"""Load examples from a table: text (CSV) or a `.parquet` file, read by pyarrow in batches."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.profiles.text import (
    COMMA_NUMBER,
    HEAD_BYTES,
    POINT_NUMBER,
    DecimalMarks,
    TextError,
    dialect_of,
    open_text,
    plain_quotes,
)
from fairbed.testbed.experiment.datasets.columns import (
    Choice,
    Columns,
    Texts,
    encode,
    groups_of,
    is_float,
    no_number,
)
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.features import LARGE
from fairbed.testbed.experiment.datasets.own import check_memory, free_bytes, own_dataset
from fairbed.testbed.install import install_command
from fairbed.wire.labels import MISSING

EXPANSION = 4
"""Largest text of a table, in free memory: a number takes several characters, but four bytes."""

BATCH_ROWS = 1 << 16
"""Rows of a Parquet file in memory at a time, besides the examples."""

_OTHER_WIDTH = re.compile(r"Expected \d+ columns?, got \d+")

MISSING_NUMBER = frozenset(
    {"none", "-", "--", ".", "n.a.", "#na", "-nan", "1.#qnan", "-1.#ind", "1.#ind", "#null!", "\\n"}
)
"""Further spellings of a missing value in a column of numbers, in lower case."""


def load_table(
    path: Path,
    label: str,
    device: str | None,
    features: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> Dataset:
    """Return the rows of a table: x float32 of shape (n, columns), in the order of the columns.

    Labels that are whole numbers are classes from 0; other labels are classes in the order of their
    names. A column of categories is one column of x for each category.

    Args:
        path: Text with a header, perhaps packed (`profiles.text`), or a file in .parquet.
        label: Column of the labels.
        device: Column of the users; None if there are none. The other columns may be features.
        features: Names or patterns of the columns that are features, whatever they hold; with `!`
            before it: of those that are none. Without a name: all that `features` finds useful.
        categories: Names or patterns of the columns that are one-hot encoded.

    Raises:
        DatasetError: pyarrow is not installed, or the file cannot be read or breaks a rule.
    """
    with _reading(path):
        table = _open(path)
        names = _features(path, table.names, label, device)
        choice = Choice.of(path, names, features, categories)
        keys = _keys(path, table, [label] if device is None else [label, device], len(choice.used))
        arrays = {"y": _labels(path, label, keys.column(0))}
        if device is not None:
            arrays["device"] = _users(path, device, keys.column(1))
        columns = _read(path, table, choice, keys.num_rows)
        table.check()
        columns.index = table.index
        columns.exact = _exact(table, choice.used, columns)
    encoded = encode(path, choice, columns, groups_of(arrays))
    arrays["x"] = encoded.x
    data = own_dataset(str(path), arrays, name=path.stem, fix="correct this column in the file")
    return replace(data, encoding=encoded.encoding, notes=encoded.notes)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise what may fail in pyarrow, or without it, as an error about data."""
    try:
        import pyarrow as pa
    except ImportError as exc:
        raise DatasetError(
            str(path),
            f"pyarrow must be installed to read {path.suffix}, got none",
            f"run: {install_command('fairbed[analysis]')}",
        ) from exc
    try:
        yield
    except TextError as exc:
        raise DatasetError(str(path), exc.problem, exc.what_to_do) from exc
    except FileNotFoundError as exc:
        raise DatasetError(str(path), "file must exist, got none", "check data.source") from exc
    except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:  # a folder, or damage
        raise _damaged(path, exc) from exc


def read_text_columns(
    path: Path, column: str, label: str | None, device: str | None
) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """Return the texts of a table, and the arrays `y` and `device` of those columns that are given.

    Args:
        path: As in `load_table`.
        column: Of the texts.
        label: Of the labels.
        device: Of the users.

    Raises:
        DatasetError: As in `load_table`.
    """
    with _reading(path):
        table = _open(path)
        wanted = [name for name in (column, label, device) if name is not None]
        for key, name in (("text.column", column), ("label", label), ("device", device)):
            if name is not None and name not in table.names:
                raise DatasetError(
                    str(path),
                    f"data.{key} must be one of its columns ({', '.join(table.names[:10])}), got "
                    f"{name!r}",
                    "correct the name, or add a header",
                )
        if len(set(wanted)) < len(wanted):
            raise DatasetError(
                str(path),
                f"text, label and device must be different columns, got {wanted}",
                "name another column",
            )
        keys = _keys(path, table, wanted, 0)
        arrays = {}
        if label is not None:
            arrays["y"] = _labels(path, label, keys.column(label))
        if device is not None:
            arrays["device"] = _users(path, device, keys.column(device))
        return [text or "" for text in _as_text(keys.column(column)).to_pylist()], arrays


@dataclass(frozen=True, slots=True)
class _Table:
    """A file whose columns can be read in batches."""

    names: list[str]
    batches: Callable[[list[str]], Iterator[Any]]
    """Return the batches of rows (`pyarrow.RecordBatch`) of the columns of these names."""
    check: Callable[[], None] = lambda: None
    """Check what only all columns together show; raises `TextError`."""
    index: frozenset[str] = frozenset()
    """Columns that pandas has written as the index of its table."""


def _open(path: Path) -> _Table:
    return _open_parquet(path) if path.suffix.lower() == ".parquet" else _open_csv(path)


def _open_csv(path: Path) -> _Table:
    """Open a file whose columns all count as text: a type guessed from the first rows may fail."""
    import pyarrow as pa
    from pyarrow import csv

    limit, marks = EXPANSION * free_bytes(), DecimalMarks()

    with open_text(path.open("rb"), str(path), limit) as head:
        dialect = dialect_of(head.read(HEAD_BYTES).decode("utf-8", "ignore"), comments=False)
    if dialect is None:
        raise DatasetError(str(path), "must have a header and rows, got none", "add examples")
    delimiter = dialect.delimiter

    def text() -> Any:
        file = open_text(path.open("rb"), str(path), limit)
        return pa.PythonFile(plain_quotes(file, delimiter), mode="r")

    read = csv.ReadOptions(skip_rows=dialect.row - 1)
    parse = csv.ParseOptions(newlines_in_values=True, delimiter=delimiter)
    with text() as file, csv.open_csv(file, read_options=read, parse_options=parse) as reader:
        raw = list(reader.schema.names)
    names = [name.strip().strip('"') or f"Unnamed: {k}" for k, name in enumerate(raw)]
    read = csv.ReadOptions(skip_rows=dialect.row - 1, column_names=names, skip_rows_after_names=1)

    def batches(columns: list[str]) -> Iterator[Any]:
        convert = csv.ConvertOptions(
            include_columns=columns, column_types=dict.fromkeys(columns, pa.string())
        )
        with (
            text() as file,
            csv.open_csv(
                file, read_options=read, parse_options=parse, convert_options=convert
            ) as reader,
        ):
            for batch in reader:
                found = [_with_points(column, marks) for column in batch.columns]
                yield pa.RecordBatch.from_arrays(found, names=columns)

    return _Table(names, batches, marks.check)


def _with_points(column: Any, marks: DecimalMarks) -> Any:
    """Return text without outer spaces and, if all of it is numbers, with decimal points."""
    import pyarrow as pa
    from pyarrow import compute

    column = compute.utf8_trim_whitespace(column)
    has_comma = compute.match_substring(column, ",")
    if not compute.any(has_comma).as_py():
        found = compute.index(compute.match_substring_regex(column, f"^{POINT_NUMBER}$"), True)
        if found.as_py() >= 0:
            marks.note_point(column[found.as_py()].as_py())
        return column
    is_comma = compute.match_substring_regex(column, f"^{COMMA_NUMBER}$")
    is_missing = compute.equal(column, "")
    others = column.filter(compute.invert(compute.or_(is_comma, is_missing)))
    try:
        compute.cast(others, pa.float64())
    except pa.ArrowInvalid:  # text with commas
        return column
    for value in column:
        marks.with_point(value.as_py())
    return compute.if_else(is_comma, compute.replace_substring(column, ",", "."), column)


def _open_parquet(path: Path) -> _Table:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = list(file.schema_arrow.names)
        written = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
        index = frozenset(name for name in written if isinstance(name, str))

    def batches(columns: list[str]) -> Iterator[Any]:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                yield batch.select(columns)

    return _Table(names, batches, index=index)


def _keys(path: Path, table: _Table, columns: list[str], features: int) -> Any:
    """Return labels and users as a `pyarrow.Table`; stops if the examples will be too large."""
    import pyarrow as pa

    batches, size_bytes = [], 0
    for batch in table.batches(columns):
        batches.append(batch)
        size_bytes += batch.nbytes + batch.num_rows * features * np.dtype(np.float32).itemsize
        check_memory(str(path), size_bytes)
    if not batches:
        raise DatasetError(str(path), "must have rows, got none", "add examples")
    return pa.Table.from_batches(batches)


def _features(path: Path, names: list[str], label: str, device: str | None) -> list[str]:
    """Return the columns that are neither labels nor users."""
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DatasetError(
            str(path), f"columns must have different names, got {twice!r} twice", "rename one"
        )
    for key, name in (("label", label), ("device", device)):
        if name is not None and name not in names:
            raise DatasetError(
                str(path),
                f"data.{key} must be one of its columns ({shown}), got {name!r}",
                "correct the name, or add a header",
            )
    features = [name for name in names if name not in (label, device)]
    if label == device or not features:
        raise DatasetError(
            str(path),
            f"must have columns for features besides label and device, got {shown}",
            "add columns, or correct data.label and data.device",
        )
    return features


def _read(path: Path, table: _Table, choice: Choice, n: int) -> Columns:
    """Read the columns, each as numbers or else as text."""
    features = choice.used
    columns = Columns(np.full((n, len(features)), np.nan, np.float32), {})
    late, start = dict[int, Texts](), 0
    for batch in table.batches(features):
        for number, name in enumerate(features):
            column = batch.column(number)
            if number in columns.texts:
                columns.texts[number].add(*_different(column))
            elif number not in late:
                found = _numbers(path, name, column, start)
                if not start and (code := _with_zero(column)):
                    columns.zeros[number] = code
                if found is not None:
                    columns.x[start : start + len(column), number] = found
                elif start:
                    late[number] = Texts(_first_text(column, start))
                else:
                    columns.texts[number] = Texts(_first_text(column, start))
                    columns.texts[number].add(*_different(column))
        start += batch.num_rows
    order = sorted(late)
    for batch in table.batches([features[number] for number in order]) if late else ():
        for place, number in enumerate(order):
            late[number].add(*_different(batch.column(place)))
    columns.texts |= late
    return columns


def _exact(table: _Table, names: list[str], columns: Columns) -> dict[int, Floats]:
    """Return the columns whose whole numbers are too large for float32, in float64."""
    large = np.flatnonzero(((columns.x >= LARGE) | (columns.x <= -LARGE)).any(axis=0))
    numbers = [int(number) for number in large if number not in columns.texts]
    if not numbers:
        return {}
    found: dict[int, list[Floats]] = {number: [] for number in numbers}
    for batch in table.batches([names[number] for number in numbers]):
        for place, number in enumerate(numbers):
            values = _as_floats(batch.column(place))
            assert values is not None, "they were numbers before"
            found[number].append(values)
    return {number: np.concatenate(parts) for number, parts in found.items()}


def _as_text(column: Any) -> Any:
    """Return a column as text without outer spaces."""
    import pyarrow as pa
    from pyarrow import compute

    return compute.utf8_trim_whitespace(compute.cast(column, pa.string()))


def _with_zero(column: Any) -> str:
    """Return a text of digits that begins with a zero; empty if there is none."""
    import pyarrow as pa
    from pyarrow import compute

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return ""
    found = compute.index(compute.match_substring_regex(column, r"^\s*0[0-9]+\s*$"), True).as_py()
    return "" if found < 0 else str(column[found].as_py()).strip()


def _different(column: Any) -> tuple[list[str], Ints]:
    """Return the different texts of a column, and which one each row has; -1 is missing."""
    encoded = _as_text(column).dictionary_encode()
    places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return encoded.dictionary.to_pylist(), places.astype(np.int64)


def _first_text(column: Any, start: int) -> tuple[int, str]:
    """Return row and value of the first text that is no number."""
    texts = enumerate(_as_text(column).to_pylist())
    known = ((start + row, text) for row, text in texts if text and text.lower() not in MISSING)
    return next((found for found in known if not is_float(found[1])), (start, ""))


def _as_floats(column: Any) -> Floats | None:
    """Return a column as float64, NaN where a value is missing; None if it holds other text.

    Raises:
        pa.ArrowException: It holds neither numbers nor text.
    """
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = _as_text(column)
        kind = column.type
    try:
        values = compute.cast(column, pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if not pa.types.is_string(kind):
            raise
        lower = compute.utf8_lower(column)
        is_gap = compute.is_in(lower, pa.array(sorted(MISSING | MISSING_NUMBER)))
        is_gap = compute.or_(is_gap, compute.is_null(column))
        rest = compute.if_else(is_gap, pa.scalar(None, pa.string()), lower)
        try:
            values = compute.cast(rest, pa.float64())
        except pa.ArrowInvalid:
            known = rest.drop_null()
            if not compute.all(compute.is_in(known, pa.array(["true", "false"]))).as_py():
                return None
            values = compute.cast(compute.equal(rest, "true"), pa.float64())
    found: Floats = values.to_numpy(zero_copy_only=False)
    return found


def _numbers(path: Path, name: str, column: Any, start: int) -> NDArray[np.float32] | None:
    """Return a batch of a feature, None if it is text; `start` is the row of its first value."""
    import pyarrow as pa

    try:
        values = _as_floats(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        row = next((k for k, value in enumerate(column) if not _is_number(value)), 0)
        raise no_number(path, name, _short(column[row]), start + row) from exc
    if values is None:
        return None
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    wrong = np.flatnonzero(np.isinf(numbers))
    if len(wrong):
        raise no_number(path, name, _short(column[int(wrong[0])]), start + int(wrong[0]))
    return numbers


def _is_number(value: Any) -> bool:
    import pyarrow as pa

    try:
        value.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _labels(path: Path, name: str, column: Any) -> NDArray[Any]:
    """Return labels as integers or floats if all are such numbers, and else as text."""
    column = _text_or_numbers(path, name, column)
    for row, value in enumerate(column.to_pylist()):
        if str(value).lower() in MISSING:
            raise DatasetError(
                str(path),
                f"column {name!r} must have a value in every row, got {value!r} in row {row + 1}",
                "add it, or remove the row",
            )
    numbers = _as_numbers(column)
    if numbers is not None:
        return numbers
    distinct = column.unique()
    parsed = [value for value in distinct if _is_number(value)]
    if parsed:
        text = next(value for value in distinct if not _is_number(value))
        row = column.index(text).as_py()
        raise DatasetError(
            str(path),
            f"column {name!r} must hold numbers or names, not both, got {_short(parsed[0])} and, "
            f"in row {row + 1}, {_short(text)}",
            "correct the labels",
        )
    return np.array(column.to_pylist(), np.str_)


def _users(path: Path, name: str, column: Any) -> NDArray[Any]:
    """Return users as integers if all are whole numbers, and else numbers of their names."""
    column = _text_or_numbers(path, name, column)
    numbers = _as_numbers(column)
    return _numbered(column) if numbers is None or numbers.dtype.kind == "f" else numbers


def _text_or_numbers(path: Path, name: str, column: Any) -> Any:
    """Return a column that has a value in every row: numbers, or text without outer spaces."""
    import pyarrow as pa
    from pyarrow import compute

    is_missing = compute.is_null(column)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        try:
            column = compute.utf8_trim_whitespace(compute.cast(column, pa.string()))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            raise DatasetError(
                str(path),
                f"column {name!r} must hold numbers or text, got {column.type}",
                "convert it",
            ) from exc
        is_missing = compute.or_kleene(is_missing, compute.equal(column, ""))
    missing = np.flatnonzero(is_missing.to_numpy())
    if len(missing):
        raise DatasetError(
            str(path),
            f"column {name!r} must have a value in every row, got none in row {missing[0] + 1}",
            "add it, or remove the row",
        )
    return column


def _as_numbers(column: Any) -> NDArray[Any] | None:
    """Return a column as int64 or float64; None if it holds text."""
    import pyarrow as pa
    from pyarrow import compute

    is_float = pa.types.is_floating(column.type)
    for kind in (pa.float64(),) if is_float else (pa.int64(), pa.float64()):
        try:
            numbers: NDArray[Any] = compute.cast(column, kind).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        return numbers
    return None


def _numbered(column: Any) -> NDArray[Any]:
    """Return the number of each value in the order of the values."""
    import pyarrow as pa
    from pyarrow import compute

    distinct = pa.array(sorted(column.unique().to_pylist()), column.type)
    found: NDArray[Any] = compute.index_in(column, distinct).to_numpy()
    return found.astype(np.int64)


def _short(value: Any) -> str:
    text = repr(value.as_py())
    return text if len(text) <= 40 else f"{text[:37]}..."


def _damaged(path: Path, exc: Exception) -> DatasetError:
    reason = getattr(exc, "strerror", None) or " ".join(str(exc).split())[:200]
    what_to_do = "check the file"
    if _OTHER_WIDTH.search(reason):
        what_to_do = "name every column in the header, and give each row as many values"
    return DatasetError(
        str(path), f"must be a readable {path.suffix} file, got: {reason}", what_to_do
    )
