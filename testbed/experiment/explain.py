"""Describe a configuration error in one line, and set single keys of a parsed document.

A line has the key path, the rule, the value and what to do.
"""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import msgspec
from msgspec import inspect

from fairbed.wire.text import as_it_must_be, kinds_in_words

_AT = re.compile(r"^(?P<message>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


def explain(error: msgspec.ValidationError, raw: Any, kind: type) -> str:
    """Return one line about the error of validating `raw` as a `kind`."""
    match = _AT.match(str(error))
    assert match is not None
    message, steps = match["message"], _steps(match["path"] or "$")
    if match["path"] and match["path"].endswith("[...]"):
        steps[-1] = _key_at_fault(str(error), raw, kind, steps[:-1])
    where = _dotted(steps)
    if unknown := _UNKNOWN.match(message):
        names = sorted(_fields(inspect.type_info(kind), steps))
        name = unknown["name"]
        return f"{_join(where, name)}: unknown key; {_suggest(name, names)}"
    if missing := _MISSING.match(message):
        return f"{_join(where, missing['name'])}: must be given, got nothing; add it"
    value = _lookup(raw, steps)
    rule = _rule(message)
    names = _choices(inspect.type_info(kind), steps)
    if names:
        rule = f"must be one of {', '.join(map(repr, names))}"
    got = "" if isinstance(value, dict | list) else f", got {_short(value)}"
    advice = ""
    if message.startswith("Expected "):
        items = _types_at(inspect.type_info(kind), [*steps, 0])
        of_texts = all(isinstance(item, inspect.StrType | inspect.LiteralType) for item in items)
        advice = as_it_must_be(where, rule, value, of_texts=of_texts)
        advice = advice or _as_table(where, value, _types_at(inspect.type_info(kind), steps), items)
    return f"{where}: {rule}{got}{advice}" if where else rule


def _as_table(
    where: str, value: Any, kinds: Sequence[inspect.Type], items: Sequence[inspect.Type]
) -> str:
    """Return how a value is written that must be a table, or tables; or nothing."""
    if isinstance(value, dict | list):
        return ""
    tables = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    if tagged := next((x for x in tables if x.tag == value and x.tag_field), None):
        name = where.rpartition(".")[2]
        return f'; write it so: {name} = {{ {tagged.tag_field} = "{value}" }}'
    if tables:
        return f"; its keys follow a line [{where}]"
    if any(isinstance(item, inspect.StructType) for item in items):
        return f"; the keys of each follow a line [[{where}]]"
    return ""


def _key_at_fault(error: str, raw: Any, kind: type, steps: list[str | int]) -> str | int:
    """Return the key of a table of any keys whose value is wrong; the decoder does not name it."""
    table = _lookup(raw, steps)
    if not isinstance(table, dict):
        return 0
    for key, value in table.items():
        alone = deepcopy(raw)
        parent = _lookup(alone, steps)
        parent.clear()
        parent[key] = value
        try:
            msgspec.convert(alone, kind)
        except msgspec.ValidationError as exc:
            if str(exc) == error:
                return str(key)
    return 0


def first_not_finite(raw: Any, where: str = "") -> str | None:
    """Return one line about the first infinite number or NaN in a document; None if none."""
    if isinstance(raw, float) and not math.isfinite(raw):
        return f"{where}: must be a finite number, got {raw}"
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(raw, dict):
        items = ((_join(where, key), value) for key, value in raw.items())
    elif isinstance(raw, list):
        items = ((f"{where}[{i}]", value) for i, value in enumerate(raw))
    return next(filter(None, (first_not_finite(value, path) for path, value in items)), None)


def override(raw: dict[str, Any], setting: str) -> None:
    """Apply one `a.b=value` to a parsed document; the value is TOML, or else plain text.

    `fleet.0.count=5` sets a key in the first of several tables `[[fleet]]`.

    Raises:
        ValueError: The setting has no `=`, or its path leads through a value that is not a table.
    """
    path, separator, text = setting.partition("=")
    if not separator or not all(path.strip().split(".")):
        raise ValueError(f"must be KEY=VALUE such as selection.V=50, got {setting!r}")
    try:
        value = msgspec.toml.decode(f"v = {text}")["v"]
    except msgspec.DecodeError:
        value = text.strip()
    assign(raw, path, value)


def part_options(settings: Sequence[str]) -> dict[str, Any]:
    """Return the options of a part from the values of `--option`, each `a.b=value`.

    Raises:
        ValueError: As `override`; the message names `--option` and the setting.
    """
    options: dict[str, Any] = {}
    for setting in settings:
        try:
            override(options, setting)
        except ValueError as exc:
            raise ValueError(f"--option {setting}: {exc}") from exc
    return options


def assign(raw: dict[str, Any], path: str, value: Any) -> None:
    """Set the key `a.b` of a parsed document; `0` is the first of several tables.

    Raises:
        ValueError: The path has an empty part, or leads through a value that is not a table.
    """
    keys = path.strip().split(".")
    if not all(keys):
        raise ValueError(f"must be a key such as selection.V, got {path!r}")
    table: Any = raw
    for key in keys[:-1]:
        table = _child(table, key)
        if not isinstance(table, dict | list):
            raise ValueError(f"{key!r} is not a table; only keys of tables can be set")
    if isinstance(table, list):
        raise ValueError(f"{keys[-1]!r} must follow the index of a table, as in fleet.0.count")
    table[keys[-1]] = value


def _child(table: Any, key: str) -> Any:
    """Return the value of a key; the key of one of several tables is its index."""
    if not isinstance(table, list):
        return table.setdefault(key, {})
    if not (key.isdigit() and int(key) < len(table)):
        raise ValueError(f"{key!r} must be the index of one of {len(table)} tables, from 0")
    return table[int(key)]


def _steps(path: str) -> list[str | int]:
    found = _STEP.findall(path.removeprefix("$"))
    return [name or (int(index) if index.isdigit() else 0) for name, index in found]


def _dotted(steps: Iterable[str | int]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _lookup(raw: Any, steps: list[str | int]) -> Any:
    for step in steps:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _types_at(info: inspect.Type, steps: list[str | int]) -> list[inspect.Type]:
    """Return the types that are valid at the end of a path."""
    kinds = [info]
    for step in steps:
        following: list[inspect.Type] = []
        for kind in _flat(kinds):
            if isinstance(kind, inspect.StructType):
                following += [f.type for f in kind.fields if f.encode_name == step]
            elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
                following.append(kind.item_type)
        kinds = following
    return list(_flat(kinds))


def _flat(kinds: Iterable[inspect.Type]) -> Iterable[inspect.Type]:
    for kind in kinds:
        if isinstance(kind, inspect.UnionType):
            yield from _flat(kind.types)
        elif isinstance(kind, inspect.Metadata):
            yield from _flat([kind.type])
        else:
            yield kind


def _fields(info: inspect.Type, steps: list[str | int]) -> set[str]:
    return {
        field.encode_name
        for kind in _types_at(info, steps)
        if isinstance(kind, inspect.StructType)
        for field in kind.fields
    }


def _choices(info: inspect.Type, steps: list[str | int]) -> list[Any]:
    """Return the valid values at a path if they are a fixed list of words, else none."""
    kinds = _types_at(info, steps)
    if kinds and all(isinstance(k, inspect.LiteralType | inspect.NoneType) for k in kinds):
        return [v for k in kinds if isinstance(k, inspect.LiteralType) for v in k.values]
    parents = _types_at(info, steps[:-1]) if steps else []
    structs = [kind for kind in parents if isinstance(kind, inspect.StructType)]
    return [struct.tag for struct in structs if struct.tag_field == steps[-1]]


def _suggest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid here: {', '.join(names)}"


def _rule(message: str) -> str:
    message = message.replace("`", "").rstrip(".")
    message = re.sub(r"^Invalid (enum )?value .*$", "must be a known name", message)
    if not message.startswith("Expected "):
        return message  # the message of a `__post_init__`
    message = re.sub(r"^Expected (.*?)(, got .*)?$", r"must be \1", message)
    if pattern := re.match(r"must be str matching regex '(.*)'$", message):
        return f"must be a text that matches {pattern[1]}"
    return re.sub(r"(\d)\.0\b", r"\1", kinds_in_words(message))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
