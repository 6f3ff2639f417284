"""Decode the files of profiles strictly; every problem is one line."""

import re
import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from profiles.quantities import DATA

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

K = TypeVar("K", bound=msgspec.Struct)

ADVICE = "see docs/profiles.md"

MAX_BYTES = 10_000_000
"""Of a profile: one with long series is still smaller."""

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
        return None, [f"{path}: {_rule(error)}; {ADVICE}"]


def read_toml(path: Path) -> dict[str, Any] | str:
    """Return a parsed file, or else one line that says what is wrong with it."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            return (
                f"{path}: must be at most {MAX_BYTES // 10**6} MB, got {size / 1e6:.0f} MB; "
                "put long series into a trace beside it"
            )
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: must be a readable UTF-8 file, got {error}; check the path"
    except tomllib.TOMLDecodeError as error:
        return f"{path}: must be TOML, got {error}; correct that line"
    except RecursionError:
        return f"{path}: must be TOML, got one nested too deeply; {ADVICE}"


def _anchor_traces(value: Any, folder: Path) -> None:
    """Make the traces that lie beside a profile absolute: the decoded one knows no folder."""
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
            problems.append(f"{path}: {_explain(error, key, raw[key])}")
    return problems


def _explain(error: msgspec.ValidationError, key: str, raw: Any) -> str:
    """Return `key path: rule, got value; what to do` of one validation error."""
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
    rule = _rule(error)
    got = "" if ", got " in rule else f", got {_short(value)}"
    return f"{where}: {rule}{got}; correct it, {ADVICE}"


def _rule(error: msgspec.ValidationError) -> str:
    """Return the rule that was broken, in our words."""
    rule = _AT.sub("", str(error)).replace("`", "")
    rule = _TYPES.sub("", rule.replace("Expected", "must be"))
    rule = rule.replace("Object missing required field", "must have the key")
    rule = rule.replace("Object contains unknown field", "must not have the key")
    return re.sub(r"^Invalid enum value .*", "must be one of the words that the schema lists", rule)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
