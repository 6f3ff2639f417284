"""The reference of the experiment file, generated from the structs that decode it.

`fairbed schema` prints the JSON Schema, and docs/configuration.md is `reference_page()`: key, valid
values, unit, default and meaning. The meaning of a key is the docstring below its field.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.inspect import (
    CollectionType,
    Metadata,
    StructType,
    TupleType,
    Type,
    UnionType,
    type_info,
)

from fairbed.coordinator.report.tables import meanings
from fairbed.coordinator.store.schema import UNITS
from fairbed.testbed.experiment.file import Experiment, experiment_type

NUMBERS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true, false",
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table of the experiment file."""

    name: str
    values: str
    """Valid values, with their unit."""
    default: str
    """Empty for a key that is not set."""
    meaning: str


@dataclass(frozen=True, slots=True)
class TableReference:
    """One table of the experiment file."""

    heading: str
    """Heading such as `[selection]`; empty for the keys above all tables."""
    meaning: str
    keys: tuple[Key, ...]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of an experiment file, with a description of every key.

    TOML has no null: a key that is not set is left out, so no key has it as a value or default.
    """
    kind = experiment_type()
    schema = msgspec.json.schema(kind)
    classes = {cls.__name__: cls for cls in _structs(type_info(kind))}
    classes[Experiment.__name__] = Experiment  # a table of a room has no docstring
    for name, definition in schema["$defs"].items():
        for key, meaning in meanings(classes[name]).items():
            definition["properties"][key]["description"] = meaning
        definition["properties"] = {
            key: _without_null(value) for key, value in definition["properties"].items()
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Fairbed experiment",
        **schema,
    }


def schema_text() -> str:
    """Return the JSON Schema as the text of a file."""
    return json.dumps(json_schema(), indent=1) + "\n"


def tables() -> Iterator[TableReference]:
    """Yield every table of the experiment file, in the order of the file."""
    schema = json_schema()
    yield from _tables(schema["$defs"], "Experiment", "")


def reference_page() -> str:
    """Return docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "<!-- Written by tools/write_reference.py; change the code, not this page. -->",
        "",
        "An experiment is one TOML file. Only `name` must be given. An unknown key is an error.",
        "",
        "- `fairbed init` writes a commented file.",
        "- `fairbed config EXP` prints every key with its value and where the value comes from.",
        "- `fairbed schema` prints a JSON Schema, with which editors complete and check the file.",
        "- `--set KEY=VALUE` of `fairbed run` and `fairbed replay` sets a key for one run: "
        "`--set selection.V=50`.",
    ]
    for table in tables():
        heading = f"`{table.heading}`" if table.heading else "Keys at the top of the file"
        lines += ["", f"## {heading}", "", table.meaning]
        if table.keys:
            lines += ["", "| key | values | default | meaning |", "|---|---|---|---|"]
        for key in table.keys:
            cells = f"`{key.name}`", key.values, key.default, key.meaning
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _structs(info: Type) -> Iterator[type]:
    """Yield every struct that a type contains."""
    if isinstance(info, StructType):
        yield info.cls
        for field in info.fields:
            yield from _structs(field.type)
    elif isinstance(info, UnionType):
        for each in info.types:
            yield from _structs(each)
    elif isinstance(info, TupleType):
        for each in info.item_types:
            yield from _structs(each)
    elif isinstance(info, CollectionType):
        yield from _structs(info.item_type)
    elif isinstance(info, Metadata):
        yield from _structs(info.type)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if (key, value) != ("default", None)}
    if isinstance(kept.get("default"), dict):
        kept["default"] = {k: v for k, v in kept["default"].items() if v is not None}
    choices = [each for each in kept.pop("anyOf", []) if each != {"type": "null"}]
    if len(choices) == 1:
        return {**choices[0], **kept}
    return {"anyOf": choices, **kept} if choices else kept


def _tables(
    definitions: Mapping[str, Any], name: str, path: str, *, repeats: bool = False
) -> Iterator[TableReference]:
    """Yield a table and then the tables in it."""
    definition = definitions[name]
    keys, inner = [], list[tuple[str, str, bool]]()
    for key, schema in definition["properties"].items():
        if key == "kind" and len(schema.get("enum", [])) == 1:
            continue  # in the heading
        found = list(_references(schema))
        below = f"{path}.{key}".removeprefix(".")
        is_array = schema.get("type") == "array"
        inner += [(each, below, is_array) for each in found]
        if not found:
            keys.append(_key(key, schema, must_be_given=key in definition["required"]))
    heading = "" if not path else f"[[{path}]]" if repeats else f"[{path}]"
    tag = definition["properties"].get("kind", {}).get("enum", [])
    if len(tag) == 1:
        heading = f'{heading} with kind = "{tag[0]}"'
    meaning = definition.get("description", "").removeprefix(f"`{heading}`").lstrip(":. ")
    yield TableReference(heading, _sentence(meaning), tuple(keys))
    for each, below, is_array in inner:
        yield from _tables(definitions, each, below, repeats=is_array)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:]


def _references(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the structs that are valid values."""
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    for each in [*schema.get("anyOf", []), *_items(schema)]:
        yield from _references(each)


def _items(schema: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    items = schema.get("items")
    return [items] if isinstance(items, dict) else []


def _key(name: str, schema: dict[str, Any], *, must_be_given: bool) -> Key:
    unit = next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")
    values = _values(schema) + (f", {unit}" if unit else "")
    default = "must be given" if must_be_given else ""
    if "default" in schema:
        default = f"`{json.dumps(schema['default'])}`"
    return Key(name, values, default, schema.get("description", ""))


def _values(schema: Mapping[str, Any]) -> str:
    """Return valid values in words."""
    if "anyOf" in schema:
        return " or ".join(_values(each) for each in schema["anyOf"])
    if "examples" in schema:
        names = ", ".join(f"`{value}`" for value in schema["examples"])
        return f"{names}, an installed plug-in, or `package.module:Name` of one"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "prefixItems" in schema:
        parts = [_values(each) for each in schema["prefixItems"]]
        return f"list of {len(parts)}: {parts[0]} each"
    if schema.get("type") == "array":
        (item,) = _items(schema)
        return f"list of: {_values(item)}"
    if schema.get("type") == "object":
        return "table"
    limits = [
        f"{sign} {_number(schema[limit])}"
        for limit, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if limit in schema
    ]
    if "pattern" in schema:
        limits.append(f"matching `{schema['pattern']}`")
    return f"{NUMBERS[schema['type']]} {' and '.join(limits)}".strip()


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
