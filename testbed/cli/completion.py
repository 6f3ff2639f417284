"""Completion of `fairbed` in bash, zsh and fish: commands, runs, keys, profiles, examples, tables.

`fairbed completion bash` prints shell code that calls `fairbed` at each Tab. argcomplete computes
the completions.
"""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from fairbed.testbed.api import RUNS
from fairbed.testbed.cli import DONE, EXAMPLES

PROGRAM = "fairbed"


def main(options: argparse.Namespace) -> int:
    """Print the shell code that completes `fairbed`."""
    from argcomplete.shell_integration import shellcode

    print(shellcode([PROGRAM], shell=options.shell))
    return DONE


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the completions for the shell and end the process, for `fairbed completion`."""
    import argcomplete

    for action in _actions(parser):
        completer = _COMPLETERS.get(action.dest)
        if completer is not None and not action.choices:
            action.completer = completer  # type: ignore[attr-defined]  # argcomplete's interface
    argcomplete.autocomplete(parser)


def _actions(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)


def _runs(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    folder: Path = getattr(parsed_args, "runs", None) or RUNS
    return ["latest", *sorted(path.parent.name for path in folder.glob("*/run.db"))]


def _keys(**_: object) -> list[str]:
    from fairbed.testbed.experiment.reference import tables

    headings = {table.heading: table.heading.strip("[]") for table in tables()}
    return [
        f"{path.replace('fleet', 'fleet.0')}.{key.name}=".lstrip(".")
        for table in tables()
        if " " not in (path := headings[table.heading])
        for key in table.keys
    ]


def _profiles(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    from fairbed.profiles.load import link_names, names, population_names

    if parsed_args.command == "data":
        from fairbed.testbed.experiment.data import NAMES

        return list(NAMES)
    return [*names(), *link_names(), *population_names()]


def _examples(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    if parsed_args.command != "examples":
        return []
    files = (*EXAMPLES.rglob("*.toml"), *EXAMPLES.rglob("*.py"))
    return sorted(path.relative_to(EXAMPLES).as_posix() for path in files)


def _tables(**_: object) -> list[str]:
    from fairbed.coordinator.report.tables import TABLES

    return list(TABLES)


_COMPLETERS: dict[str, Callable[..., list[str]]] = {
    "run": _runs,
    "set": _keys,
    "what": _profiles,
    "like": _profiles,
    "devices": _profiles,
    "name": _examples,
    "table": _tables,
}
"""Completers by the `dest` of an argument."""
