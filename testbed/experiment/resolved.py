"""A resolved experiment as TOML, with the origin of every value."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fairbed.testbed import rooms
from fairbed.testbed.experiment.explain import override
from fairbed.testbed.experiment.file import Experiment, Settings, parse_experiment

SET = "--set"
"""Origin of an override."""

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
    resolved, origins = _resolve(document, where, settings, seed)
    yield from _table_lines(resolved, "", "", lambda path: origins.get(path, "default"))


def resolved_values(
    document: dict[str, Any], where: str, settings: Sequence[str], seed: int | None
) -> dict[str, dict[str, Any]]:
    """Return value and origin of every key, as in `resolved_lines`; a key is `fleet.0.count`."""
    resolved, origins = _resolve(document, where, settings, seed)
    return {
        path: {"value": value, "origin": origins.get(path, "default")}
        for path, value in _values(resolved)
    }


def _resolve(
    document: dict[str, Any], where: str, settings: Sequence[str], seed: int | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the whole experiment, and the origin of each key that is not a default."""
    given = set_by(document, where, settings, seed)
    for setting in settings:
        override(document, setting)
    if seed is not None:
        document["seed"] = seed
    experiment = parse_experiment(document, where)
    values = msgspec.to_builtins(experiment)
    for name, kind in rooms.tables().items():  # every key, also of a table that is not used
        values.setdefault(name, msgspec.to_builtins(kind()))
    return values, origins_of(experiment, given)


def set_by(
    document: Mapping[str, Any], where: str, settings: Settings, seed: int | None
) -> dict[str, str]:
    """Return what set each key that is not left at its default, by its path: `fleet.0.count`.

    Args:
        document: The parsed experiment file, without overrides.
        where: Its name.
        settings: Overrides.
        seed: Overrides `seed`.
    """
    origins = dict.fromkeys(_paths(document), where)
    for setting in settings:
        origins[setting.partition("=")[0].strip()] = SET
    if seed is not None:
        origins["seed"] = "--seed"
    return origins


def origins_of(
    experiment: Experiment, given: Mapping[str, str], other: str = "derived"
) -> dict[str, str]:
    """Return the origin of each key of an experiment that is not a default, by its path.

    Args:
        experiment: The experiment.
        given: What set some keys or tables, by path.
        other: What set the other keys that differ from their defaults.
    """
    defaults = dict(_values(msgspec.to_builtins(type(experiment)(name=experiment.name))))
    found = {}
    for path, value in _values(msgspec.to_builtins(experiment)):
        steps = path.split(".")
        above = (".".join(steps[:count]) for count in range(len(steps), 0, -1))
        origin = next((given[one] for one in above if one in given), None)
        key = ".".join(step for step in steps if not step.isdigit())
        if origin is not None:
            found[path] = origin
        elif key in defaults and defaults[key] != value:
            found[path] = other
    return found


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


def _table_lines(
    table: Mapping[str, Any], path: str, heading: str, origin: Callable[[str], str]
) -> Iterator[str]:
    """Yield the keys of a table, then the tables in it."""
    prefix = f"{path}." if path else ""
    for key, value in table.items():
        if _is_table(value):
            continue
        note = origin(f"{prefix}{key}")
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
