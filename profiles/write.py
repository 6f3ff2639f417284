"""Write profiles, links and populations as TOML; reading the file gives an equal object."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

INLINE_VALUES = 8
"""A longer list has one line per value, so that a diff shows single changes."""


def to_toml(item: msgspec.Struct, folder: str = "") -> str:
    """Return the TOML file of a profile, a link or a population, without its name.

    Args:
        item: The object to write; absent fields stay absent.
        folder: Folder of the file; it is removed from the paths of traces beside the file.
    """
    raw = {key: value for key, value in msgspec.to_builtins(item).items() if key != "name"}
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    return "\n".join(_table(_present(raw, prefix), "")) + "\n"


def _present(value: Any, prefix: str) -> Any:
    """Return plain data without None, empty lists and unknown numbers.

    Trace paths lose `prefix`.
    """
    if isinstance(value, Mapping):
        kept = {
            key: _present(item, prefix)
            for key, item in value.items()
            if not (isinstance(item, Mapping) and item.get("tag") == "unknown")
        }
        kept = {key: item for key, item in kept.items() if item not in (None, [], {})}
        if isinstance(kept.get("trace"), str) and prefix:
            kept["trace"] = kept["trace"].removeprefix(prefix)
        return kept
    if isinstance(value, list | tuple):
        return [_present(item, prefix) for item in value]
    return value


def _table(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the lines of a table: first its values, then its nested tables."""
    nested = {key: value for key, value in table.items() if not _is_inline(value)}
    for key, value in table.items():
        if key not in nested:
            yield f"{key} = {_inline(value)}"
    for key, value in nested.items():
        where = f"{path}{key}"
        if isinstance(value, Mapping):
            yield f"\n[{where}]"
            yield from _table(value, f"{where}.")
        else:
            for part in value:
                yield f"\n[[{where}]]"
                yield from _table(part, f"{where}.")


def _is_inline(value: Any) -> bool:
    """Return whether a value is written on the line of its key: not for tables with nested ones."""
    if isinstance(value, Mapping):
        return "tag" in value and not any(isinstance(v, Mapping | list) for v in value.values())
    return not (isinstance(value, list) and value and isinstance(value[0], Mapping))


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        items = [_inline(item) for item in value]
        if len(items) <= INLINE_VALUES and not any(isinstance(item, list) for item in value):
            return f"[{', '.join(items)}]"
        return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
