"""The rooms of the testbed: features whose folder may be absent.

A room is a folder of `testbed/` with a module `door`, and `ROOM` in it is what the room adds, as
names of its own functions. The core finds rooms by their doors and imports none of them: it asks
for what it needs, and a door is read when a command line or an experiment file has something that
is not of the core.

| what a room adds | where it acts |
|---|---|
| commands, options of commands | `testbed/cli/main.py` |
| tables of the experiment file | `testbed/experiment/file.py` |
| brokers that `broker.url` names | `testbed/run/run_broker.py` |
| parts, each for one seam of the core: |
| `watcher` | sends news of a run to a person: `testbed/run/watchers.py` |
| `follower` | exports the numbers of a run: `testbed/cli/following.py` |
| `hosts` | other machines that work for a command: `testbed/api/hosts.py` |
| `elsewhere` | runs on other machines: `testbed/cli/elsewhere.py` |
| `relay` | answers viewers on other machines: `testbed/run/viewers.py` |
| `application` | drives the rounds of a run: `testbed/run/application.py` |
"""

import importlib
import os
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import fairbed.testbed as testbed

Seam: TypeAlias = Literal["watcher", "follower", "hosts", "elsewhere", "relay", "application"]
"""A place of the core where a room can add a part."""

DOOR = "door"
"""Module that makes a folder a room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that a room adds to `fairbed`."""

    help: str
    options: str
    """Function that adds its arguments to a parser, as `package.module:name`."""
    module: str
    """Module whose `main` runs it."""
    hint: str = ""
    """How an argument is given that the command does not take by its place."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """By a wrong word in the place of a command or an action: what may be meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a room adds; each function is named as `package.module:name`."""

    commands: Mapping[str, Command] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """By command of the core: adds options to its parser."""
    takes: Mapping[str, str] = field(default_factory=dict)
    """By command of the core: runs it in place of the core, or returns None."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """By name of a table of the experiment file: its struct."""
    brokers: Mapping[str, str] = field(default_factory=dict)
    """By value of `broker.url`: a `testbed.run.run_broker.NamedBroker`."""
    parts: Mapping[Seam, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the user writes to use a room."""

    commands: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of commands of the core, each with its command: `run --metrics`."""
    tables: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()
    seams: tuple[Seam, ...] = ()


def _options(commands: Iterable[str], *options: str) -> tuple[str, ...]:
    return tuple(f"{command} {option}" for command in commands for option in options)


SHIPPED: Mapping[str, Names] = {
    "cluster": Names(
        options=("run --cluster", "run --plain", "replay --cluster", "compare --cluster"),
        seams=("hosts",),
    ),
    "flower": Names(
        commands=("flower",),
        options=("run --flower",),
        tables=("flower",),
        seams=("application",),
    ),
    "lab": Names(
        commands=("lab", "devices"),
        options=_options(
            ("enroll",),
            *("--all", "--qr", "--minutes", "--expires", "--replace", "--address"),
            *("--tenant", "--upgrade", "--lab", "--json"),
        ),
        brokers=("lab",),
    ),
    "metrics": Names(
        options=_options(("demo", "run", "coordinator", "replay"), "--metrics", "--tensorboard"),
        seams=("follower",),
    ),
    "notify": Names(tables=("notify",), seams=("watcher",)),
    "packs": Names(commands=("pack", "unpack")),
    "remote": Names(seams=("elsewhere", "relay")),
    "reproduction": Names(commands=("reproduce",)),
    "web": Names(
        options=_options(
            ("watch",), "--web", "--steer", "--host", "--port", "--sessions", "--idle", "--plain"
        )
    ),
}
"""The rooms that Fairbed comes with: only for the line that refuses what an absent one added."""


@cache
def present() -> tuple[str, ...]:
    """Return the names of the rooms of this installation, sorted."""
    return tuple(sorted(name for path in testbed.__path__ for name in _rooms_in(path)))


def _rooms_in(path: str) -> Iterator[str]:
    for module in pkgutil.iter_modules([path]):
        if module.ispkg:
            inside = pkgutil.iter_modules([os.path.join(path, module.name)])
            if any(one.name == DOOR for one in inside):
                yield module.name


@cache
def room(name: str) -> Room:
    """Return what a room of this installation adds."""
    door = importlib.import_module(f"fairbed.testbed.{name}.{DOOR}")
    found: Room = door.ROOM
    return found


def rooms() -> tuple[Room, ...]:
    """Return what each room of this installation adds."""
    return tuple(room(name) for name in present())


def load(name: str) -> Any:
    """Return what a room names as `package.module:name`, or a module."""
    path, _, attribute = name.partition(":")
    module = importlib.import_module(path)
    return getattr(module, attribute) if attribute else module


def named(seam: Seam) -> Iterator[str]:
    """Yield what rooms of this installation name at a seam."""
    return (each.parts[seam] for each in rooms() if seam in each.parts)


def parts(seam: Seam) -> Iterator[Any]:
    """Yield the parts that rooms of this installation add at a seam."""
    return map(load, named(seam))


def tables() -> dict[str, type[Any]]:
    """Return the tables of the experiment file that rooms add, each with its struct."""
    return {name: load(path) for each in rooms() for name, path in each.tables.items()}


def broker(url: str) -> str | None:
    """Return what a room names for a value of `broker.url`; None for an address, and `embedded`."""
    if not url.isidentifier() or url == "embedded":
        return None
    return next((each.brokers[url] for each in rooms() if url in each.brokers), None)


def with_tables(names: Collection[str]) -> Iterator[str]:
    """Yield the rooms that add tables of the experiment file."""
    if names:
        yield from (one for one in present() if not set(names).isdisjoint(room(one).tables))


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that concern rooms, by room: `FAIRBED_<ROOM>`."""
    return {
        name: variable
        for variable in environ
        if variable.startswith("FAIRBED_")
        and ((name := variable[len("FAIRBED_") :].lower()) in SHIPPED or name in present())
    }


def lacking(where: str, name: str) -> str:
    """Return the line that refuses what an absent room added.

    Args:
        where: The command, option, key or argument.
        name: The room.
    """
    return (
        f"{where}: must have the room {name} of Fairbed, got an installation without the folder "
        f"{Path('testbed', name)}; install Fairbed with it, or leave {where} out"
    )


def absent(kind: Literal["commands", "options", "tables", "brokers", "seams"], name: str) -> str:
    """Return the absent room that added something; empty if no absent one did."""
    return next(
        (
            shipped
            for shipped, names in SHIPPED.items()
            if name in getattr(names, kind) and shipped not in present()
        ),
        "",
    )
