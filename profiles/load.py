"""Find profiles, links and populations by name or file, and decode them strictly.

Every problem of a file is one line.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from fairbed.profiles.errors import ProfileError, TraceError, UnknownProfile
from fairbed.profiles.numbers import numbers
from fairbed.profiles.population import Population
from fairbed.profiles.quantities import DATA, Quantity, Varying
from fairbed.profiles.reads import note
from fairbed.profiles.schema import CellProfile, LinkProfile, Profile
from fairbed.profiles.series import Series
from fairbed.profiles.traces import TraceReader
from fairbed.profiles.traces.trace import COLUMNS
from fairbed.profiles.traces.units import magnitude_faults
from fairbed.wire.text import NotText, TOMLDecodeError, text_of, toml_of

K = TypeVar("K", bound=msgspec.Struct)

ADVICE = "see docs/profiles.md"

MAX_BYTES = 10_000_000
"""Largest profile file; one with long series is still smaller."""

_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_STEP = re.compile(r"[^.\[\]]+|\[\d+\]")
_TYPES = re.compile(r", got (int|str|float|object|array|bool|null|datetime|date|time)$")


def decode_file(path: Path, kind: type[K]) -> tuple[K | None, list[str]]:
    """Return the decoded file and no problems, or None and all its problems, one line each."""
    raw = read_toml(path)
    if isinstance(raw, str):
        return None, [raw]
    _anchor_traces(raw, path.absolute().parent)
    problems = _problems(path, raw, kind)
    if problems:
        return None, problems
    try:
        return msgspec.convert({**raw, "name": path.stem}, kind), []
    except msgspec.ValidationError as error:
        return None, [f"{path}: {_rule(error, kind, [])}; {ADVICE}"]


def read_toml(path: Path) -> dict[str, Any] | str:
    """Return a parsed file, or one line that describes its problem."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            return (
                f"{path}: must be at most {MAX_BYTES // 10**6} MB, got {size / 1e6:.0f} MB; "
                "put long series into a trace beside it"
            )
        content = path.read_bytes()
        note(str(path), content)
        return toml_of(text_of(content))
    except NotText as error:
        return f"{path}: {error}"
    except OSError as error:
        return f"{path}: must be a readable file, got {error}; check the path"
    except TOMLDecodeError as error:
        if path.suffix == ".toml":
            return f"{path}: must be TOML, got {error}; correct that line"
        profile = path.with_suffix(".toml")
        advice = (
            f"this is a series beside its profile; check {profile}"
            if profile.exists()
            else f"fairbed profiles import reads a {path.suffix or 'plain'} file as a trace"
        )
        return f"{path}: must be the TOML file of a profile, got another file; {advice}"


def _anchor_traces(value: Any, folder: Path) -> None:
    """Make paths of traces beside a profile absolute, because a decoded profile has no folder."""
    if isinstance(value, list):
        for item in value:
            _anchor_traces(item, folder)
    if not isinstance(value, dict):
        return
    trace = value.get("trace")
    if isinstance(trace, str) and trace and not trace.startswith(DATA):
        value["trace"] = str(folder / trace)
    for item in value.values():
        _anchor_traces(item, folder)


def _problems(path: Path, raw: dict[str, Any], kind: type[K]) -> list[str]:
    fields = {item.encode_name: item for item in msgspec.structs.fields(kind)}
    name_type = fields.pop("name").type
    problems = [
        f"{path}: {key}: unknown key, got {_short(raw[key])}; use only {', '.join(fields)}"
        for key in raw
        if key not in fields
    ]
    try:
        msgspec.convert(path.stem, name_type)
    except msgspec.ValidationError:
        rule = "the file name must be 1 to 32 of a-z, 0-9 and hyphen"
        problems.append(f"{path}: {rule}, got {path.stem!r}; rename it")
    for key, item in fields.items():
        if key not in raw:
            if item.required:
                problems.append(f"{path}: {key}: must be given, got nothing; add it, {ADVICE}")
            continue
        try:
            msgspec.convert(raw[key], item.type)
        except msgspec.ValidationError as error:
            problems.append(f"{path}: {_explain(error, key, raw[key], item.type)}")
    problems += [
        f'{path}: {where}: must have a source, got tag = "unknown"; leave the key out, {ADVICE}'
        for where in _unknown_numbers(raw, "")
    ]
    return problems


def _unknown_numbers(raw: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict) and value.get("tag") == "unknown":
            yield f"{prefix}{key}"
        elif isinstance(value, dict):
            yield from _unknown_numbers(value, f"{prefix}{key}.")


def _explain(error: msgspec.ValidationError, key: str, raw: Any, kind: Any) -> str:
    """Return `key path: rule, got value; what to do` of one validation error.

    Args:
        error: The error.
        key: Top-level key of the file.
        raw: Its value.
        kind: The type that the value must have.
    """
    match = _AT.search(str(error))
    steps = _STEP.findall(match.group(1)) if match else []
    value, where = raw, key
    for step in steps:
        if step.startswith("["):
            index = int(step[1:-1])
            value = value[index] if isinstance(value, list) and index < len(value) else value
            where += step
        else:
            value = value.get(step) if isinstance(value, dict) else value
            where += f".{step}"
    rule = _rule(error, kind, steps)
    got = "" if ", got " in rule else f", got {_short(value)}"
    return f"{where}: {rule}{got}; correct it, {ADVICE}"


def _rule(error: msgspec.ValidationError, kind: Any, steps: Sequence[str]) -> str:
    """Return the violated rule, in the form of our messages."""
    of = list(_types_at(inspect.type_info(kind), steps))
    rule = _AT.sub("", str(error)).replace("`", "")
    rule = _TYPES.sub("", rule.replace("Expected", "must be"))
    rule = rule.replace("Object missing required field", "must have the key")
    rule = rule.replace("Object contains unknown field", "must not have the key")
    if rule.startswith("Invalid enum value"):
        words = {word for each in of for word in _words(each)}
        return f"must be one of {', '.join(sorted(words))}"
    tables = [each for each in of if isinstance(each, inspect.StructType)]
    if rule == "must be object" and tables:
        keys = (field.encode_name for field in tables[0].fields if field.required)
        return f"must be a table with {', '.join(keys)}"
    return rule


def _types_at(kind: inspect.Type, steps: Sequence[str]) -> Iterator[inspect.Type]:
    """Yield the types that a value may have which is reached by steps from one of type `kind`."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from _types_at(inner, steps)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _types_at(each, steps)
        case _ if not steps:
            yield kind
        case inspect.StructType(fields=fields):
            for field in fields:
                if field.encode_name == steps[0]:
                    yield from _types_at(field.type, steps[1:])
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _types_at(item, steps[1:])


def _words(kind: inspect.Type) -> Iterator[str]:
    if isinstance(kind, inspect.LiteralType):
        yield from map(str, kind.values)
    elif isinstance(kind, inspect.EnumType):
        yield from (str(each.value) for each in kind.cls)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_HERE = Path(__file__).parent
_FOLDERS = {
    "profile": _HERE / "devices",
    "link": _HERE / "links",
    "population": _HERE / "populations",
    "cell": _HERE / "cells",
}

NEAR = 5
"""Maximum number of similar names suggested."""


def names() -> list[str]:
    """Return the names of all device profiles, sorted."""
    return _names("profile")


def link_names() -> list[str]:
    """Return the names of all links, sorted."""
    return _names("link")


def population_names() -> list[str]:
    """Return the names of all populations, sorted."""
    return _names("population")


def cell_names() -> list[str]:
    """Return the names of all cells, sorted."""
    return _names("cell")


def load(name_or_path: str | Path) -> Profile:
    """Return the device profile with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no profile of this name, and no such file.
        ProfileError: The file violates a rule.
    """
    return _load(name_or_path, "profile", Profile)


def load_link(name_or_path: str | Path) -> LinkProfile:
    """Return the link with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no link of this name, and no such file.
        ProfileError: The file violates a rule.
    """
    return _load(name_or_path, "link", LinkProfile)


def load_population(name_or_path: str | Path) -> Population:
    """Return the population with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no population of this name, and no such file.
        ProfileError: The file violates a rule.
    """
    return _load(name_or_path, "population", Population)


def load_cell(name_or_path: str | Path) -> CellProfile:
    """Return the cell with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no cell of this name, and no such file.
        ProfileError: The file violates a rule.
    """
    return _load(name_or_path, "cell", CellProfile)


def find(name_or_path: str | Path) -> Path:
    """Return the file of a device profile, a link, a population or a cell.

    Raises:
        UnknownProfile: There is no such file.
    """
    text = str(name_or_path)
    for what in _FOLDERS:
        path = _path(text, what)
        if path.is_file():
            return path
    raise _unknown(text, "profile", [name for what in _FOLDERS for name in _names(what)])


Kind: TypeAlias = type[Profile] | type[LinkProfile] | type[Population] | type[CellProfile]


def kind_of(path: Path) -> Kind:
    """Return the kind of a file, by its folder or, elsewhere, by its keys."""
    folder = path.absolute().parent.name
    if folder == "links":
        return LinkProfile
    if folder == "populations":
        return Population
    if folder == "cells":
        return CellProfile
    raw = read_toml(path)
    if isinstance(raw, str):
        return Profile
    link = raw.get("link")
    if "share" in raw:
        return CellProfile
    if link is not None and "class" not in raw and "cores" not in raw:
        return LinkProfile
    numbers = [*raw.values(), *(link.values() if isinstance(link, dict) else ())]
    is_drawn = any(isinstance(number, dict) and "quantiles" in number for number in numbers)
    return Population if is_drawn else Profile


def check(path: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return every problem of a device profile, a link, a population or a cell, one line each.

    Args:
        path: The file.
        environ: Environment with `FAIRBED_DATA`, the folder of published traces; None skips them.
    """
    item: msgspec.Struct | None
    item, problems = decode_file(path, kind_of(path))
    if item is not None:
        problems = [f"{path}: {line}" for line in _trace_problems(item, environ)]
    return problems


def warnings(path: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the numbers of a file that are likely those of another unit, one line each.

    Args:
        path: The file; one with problems has no warnings.
        environ: As of `check`.
    """
    item, _ = decode_file(path, kind_of(path))
    read = TraceReader({} if environ is None else environ)
    lines = list[str]()
    for key, number in () if item is None else numbers(item):
        column, where = key.rpartition(".")[2], f"{path}: {key}"
        if column not in COLUMNS or not isinstance(number, Quantity):
            continue
        series = Series.constant(float(number.value))
        is_trace = isinstance(number, Varying) and number.trace is not None
        if isinstance(number, Varying) and number.series is not None:
            series = number.series.series()
        elif isinstance(number, Varying) and number.trace is not None:
            if environ is None and number.trace.startswith(DATA):
                continue
            try:
                series = read.with_column(number.trace, column).series(column)
            except TraceError:  # a problem
                continue
            where += f": {number.trace}"
        faults = magnitude_faults(column, series, has_rows=is_trace)
        lines += [f"{where}: {fault}; check the unit" for fault in faults]
    return lines


def _trace_problems(item: msgspec.Struct, environ: Mapping[str, str] | None) -> Iterator[str]:
    read = TraceReader({} if environ is None else environ)
    for key, number in numbers(item):
        if not isinstance(number, Varying) or number.trace is None:
            continue
        if environ is None and number.trace.startswith(DATA):
            continue
        try:
            read.with_column(number.trace, key.rpartition(".")[2])
        except TraceError as exc:
            yield f"{key}: {exc}"


def _names(what: str) -> list[str]:
    return sorted(path.stem for path in _FOLDERS[what].glob("*.toml"))


def _path(text: str, what: str) -> Path:
    return Path(text) if text.endswith(".toml") else _FOLDERS[what] / f"{text}.toml"


def _load(name_or_path: str | Path, what: str, kind: type[K]) -> K:
    text = str(name_or_path)
    path = _path(text, what)
    if not path.is_file():
        raise _unknown(text, what, _names(what))
    decoded, problems = decode_file(path, kind)
    if decoded is None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ProfileError(problems[0] + more)
    return decoded


def _unknown(text: str, what: str, known: Sequence[str]) -> UnknownProfile:
    near = near_names(text, known)
    if near:
        hint = f"similar names: {', '.join(near)}; fairbed profiles list shows all"
    else:
        hint = f"use one of {', '.join(known)}, or a .toml file"
    return UnknownProfile(f"{text}: no such {what}; {hint}")


def near_names(text: str, known: Sequence[str]) -> list[str]:
    """Return the names similar to `text`, best first.

    A name is similar if its spelling is close, or if it contains all letters of `text` in order;
    of the latter, those with most letters at the start of words come first (`pi4` is similar to
    `raspberry-pi-4b`).
    """
    wanted = text.lower().removesuffix(".toml")
    letters = "".join(letter for letter in wanted if letter.isalnum())
    alike = difflib.get_close_matches(wanted, known, n=NEAR, cutoff=0.6)
    within = [name for name in known if letters and _has_in_order(name, letters)]
    within.sort(key=lambda name: (-_words_begun(name, letters), len(name)))
    return list(dict.fromkeys([*alike, *within]))[:NEAR]


def _has_in_order(name: str, letters: str) -> bool:
    rest = iter(name)
    return all(letter in rest for letter in letters)


def _words_begun(name: str, letters: str) -> int:
    """Return the number of matching blocks with `letters` that begin a word of the name."""
    blocks = difflib.SequenceMatcher(None, name, letters, autojunk=False).get_matching_blocks()
    return sum(block.size > 0 and f"-{name}"[block.a] == "-" for block in blocks)
