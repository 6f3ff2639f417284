"""A resolved experiment as TOML, with the origin of every value."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fairbed.testbed.experiment.explain import override
from fairbed.testbed.experiment.file import Experiment, parse_experiment

ORIGIN_COLUMN = 48
"""Column of the comments, after shorter values."""


def resolved_lines(
    document: dict[str, Any], where: str, settings: Sequence[str], seed: int | None
) -> Iterator[str]:
    """Yield the lines of a TOML file with every key, each with the origin of its value.

    The file decodes to the same experiment. A key without a value is a comment.

    Args:
        document: The parsed experiment file, without overrides; is changed.
        where: Name of the file, in errors and as an origin.
        settings: Overrides such as `selection.V=50`, applied in order.
        seed: Overrides `seed`.

    Raises:
        ExperimentError: The document breaks a rule.
        ValueError: An override cannot be applied.
    """
    resolved, origin = _resolve(document, where, settings, seed)
    yield from _table_lines(resolved, "", "", origin)


def resolved_values(
    document: dict[str, Any], where: str, settings: Sequence[str], seed: int | None
) -> dict[str, dict[str, Any]]:
    """Return value and origin of every key, as in `resolved_lines`; a key is `fleet.0.count`."""
    resolved, origin = _resolve(document, where, settings, seed)
    return {
        path: {"value": value, "origin": origin(path, value)} for path, value in _values(resolved)
    }


def _resolve(
    document: dict[str, Any], where: str, settings: Sequence[str], seed: int | None
) -> tuple[dict[str, Any], Callable[[str, Any], str]]:
    """Return the whole experiment, and the function that returns the origin of a key."""
    origins = dict.fromkeys(_paths(document), where)
    for setting in settings:
        override(document, setting)
        origins[setting.partition("=")[0].strip()] = "--set"
    if seed is not None:
        document["seed"] = seed
        origins["seed"] = "--seed"
    given = set(_paths(document))
    experiment = parse_experiment(document, where)
    defaults = dict(_values(msgspec.to_builtins(Experiment(name=experiment.name))))

    def origin(path: str, value: Any) -> str:
        if path in given:
            return origins.get(path, "--set")
        key = ".".join(step for step in path.split(".") if not step.isdigit())
        return "default" if key not in defaults or defaults[key] == value else "derived"

    return msgspec.to_builtins(experiment), origin


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each key that is not a table: `fleet.0.count`, 3."""
    for key, child in _children(value):
        below = f"{path}.{key}".removeprefix(".")
        if _is_table(child):
            yield from _values(child, below)
        else:
            yield below, child


def _paths(document: Mapping[str, Any]) -> Iterator[str]:
    return (path for path, _ in _values(document))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    else:
        yield from ((str(index), child) for index, child in enumerate(value))


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def _table_lines(table: Mapping[str, Any], path: str, heading: str, origin: Any) -> Iterator[str]:
    """Yield the keys of a table, then the tables in it."""
    prefix = f"{path}." if path else ""
    for key, value in table.items():
        if _is_table(value):
            continue
        note = origin(f"{prefix}{key}", value)
        text = f"# {key}: not set" if value is None else _assignment(key, value)
        yield f"{text:<{ORIGIN_COLUMN - 1}} # {note}"
    for key, value in table.items():
        name = f"{heading}.{key}".removeprefix(".")
        if isinstance(value, Mapping):
            yield from ("", f"[{name}]")
            yield from _table_lines(value, f"{prefix}{key}", name, origin)
        elif _is_table(value):
            for index, item in enumerate(value):
                yield from ("", f"[[{name}]]")
                yield from _table_lines(item, f"{prefix}{key}.{index}", name, origin)


def _assignment(key: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        items = ", ".join(_assignment("v", item).removeprefix("v = ") for item in value)
        return f"{key} = [{items}]"
    return msgspec.toml.encode({key: value}).decode().strip()
