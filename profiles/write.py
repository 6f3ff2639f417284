"""Write profiles, links and populations as their files: what is read back is the same."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

INLINE_VALUES = 8
"""A longer list gets a line per value, so that a change of one shows as one."""


def to_toml(item: msgspec.Struct, folder: str = "") -> str:
    """Return the file of a profile, a link or a population, without its name.

    Args:
        item: What to write; what is absent in it stays absent.
        folder: Where the file will lie: traces beside it are then named without it.
    """
    raw = {key: value for key, value in msgspec.to_builtins(item).items() if key != "name"}
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    return "\n".join(_table(_present(raw, prefix), "")) + "\n"


def _present(value: Any, prefix: str) -> Any:
    """Return plain data without what is None or empty, and traces by their names in the folder."""
    if isinstance(value, Mapping):
        kept = {key: _present(item, prefix) for key, item in value.items()}
        kept = {key: item for key, item in kept.items() if item is not None and item != []}
        if isinstance(kept.get("trace"), str) and prefix:
            kept["trace"] = kept["trace"].removeprefix(prefix)
        return kept
    if isinstance(value, list | tuple):
        return [_present(item, prefix) for item in value]
    return value


def _table(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the lines of a table: its own values first, then the tables in it."""
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
    """Tell whether a value stands behind its key: all but tables that hold more than plain ones."""
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
