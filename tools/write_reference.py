"""Write the generated pages: python tools/write_reference.py [--check].

docs/configuration.md and docs/experiment.schema.json from the structs of the experiment file,
docs/cli.md from the parsers of `fairbed` and `device-agent`, docs/store.md from the tables of the
run store, docs/keys.md from the keys of the control room, docs/measures.md from the catalogue of
measures. `--check` writes nothing and fails if a
page is not what would be written.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fairbed.coordinator.report.measures.page import measures_page
from fairbed.coordinator.report.tables import columns_of
from fairbed.coordinator.store.schema import MEASURED, RECORDS
from fairbed.coordinator.store.tables import ExchangeRow, Record
from fairbed.coordinator.tui.app import ControlRoom  # noqa: F401 - its screens declare their keys
from fairbed.coordinator.tui.keys import keys_page
from fairbed.device_agent.cli import COMMANDS as AGENT_COMMANDS
from fairbed.device_agent.cli import make_parser as agent_parser
from fairbed.testbed.cli.main import make_parser as fairbed_parser
from fairbed.testbed.experiment.reference import reference_page, schema_text

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Written by tools/write_reference.py; change the code, not this page. -->"


def cli_page() -> str:
    """Return docs/cli.md: every command, argument and option."""
    lines = [
        "# Commands",
        "",
        NOTE,
        "",
        "`fairbed COMMAND --help` prints the same. Exit codes: 0 done, 1 failed, 2 bad usage or "
        "bad input, 130 interrupted.",
    ]
    agent = [agent_parser(command) for command in AGENT_COMMANDS]
    for parser in (fairbed_parser(), *agent):
        lines += _command_lines(parser)
    return "\n".join(lines) + "\n"


def _command_lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    arguments = [
        action
        for action in parser._actions
        if action not in inner and action.help != argparse.SUPPRESS and action.dest != "help"
    ]
    yield from (
        "",
        f"## {parser.prog}",
        "",
        _sentence((parser.description or "").partition("\n\n")[0]),
    )
    if arguments:
        yield from ("", "| argument | meaning |", "|---|---|")
        for action in arguments:
            yield f"| {_argument(action)} | {_cell(_sentence(_help(action)))} |"
    for group in inner:
        for child in group.choices.values():
            yield from _command_lines(child)


def _argument(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    if action.choices and not action.metavar:
        value = ", ".join(map(str, action.choices))
    if not action.option_strings:
        return f"`{action.dest}`" + (f": {_cell(str(value))}" if action.choices else "")
    takes_value = action.nargs != 0
    return f"`{', '.join(action.option_strings)}{f' {_cell(str(value))}' if takes_value else ''}`"


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%(default)s", str(action.default))
    return text.replace("%%", "%")


def store_page() -> str:
    """Return docs/store.md: every table and column of a run's database."""
    lines = [
        "# The run store",
        "",
        NOTE,
        "",
        "A run is one SQLite file, `runs/ID/run.db`. It can be read while the run goes on: "
        "`sqlite3 -readonly runs/ID/run.db`.",
        "",
        "Durations and instants are seconds; instants are on the run's clock, from the creation of "
        "the run. Empty (NULL) is unknown.",
    ]
    for record in RECORDS:
        lines += _table_lines(record)
    return "\n".join(lines) + "\n"


def _table_lines(record: type[Record]) -> Iterator[str]:
    yield from ("", f"## `{record.TABLE}`", "")
    yield " ".join((record.__doc__ or "").split())
    yield from ("", f"Key: {', '.join(f'`{name}`' for name in record.KEY)}." if record.KEY else "")
    measured = {name: c.column.source.value for name, c in MEASURED.items() if c.column is not None}
    by = (" measured by |", "---|") if record is ExchangeRow else ("", "")
    yield from ("", f"| column | type | unit |{by[0]} meaning |", f"|---|---|---|{by[1]}---|")
    for line in columns_of(record):
        source = f" {measured.get(line.column, '')} |" if record is ExchangeRow else ""
        yield (
            f"| `{line.column}` | {line.type}{' or empty' if line.is_optional else ''} | "
            f"{line.unit} |{source} {_cell(line.meaning)} |"
        )


def _sentence(text: str) -> str:
    """Return the text on one line, with a capital letter unless it begins with an address."""
    text = " ".join(text.split())
    return text if "://" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {
    "configuration.md": reference_page,
    "experiment.schema.json": schema_text,
    "cli.md": cli_page,
    "store.md": store_page,
    "keys.md": partial(keys_page, NOTE),
    "measures.md": partial(measures_page, NOTE),
}


def main() -> int:
    """Write the pages, or name those that are out of date."""
    old = [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != page()
    ]
    for name in old:
        if "--check" in sys.argv:
            print(f"docs/{name}: out of date; run: python tools/write_reference.py")
        else:
            (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
            print(f"wrote docs/{name}")
    return 1 if old and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
