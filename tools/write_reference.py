"""Write the generated pages: python tools/write_reference.py [--check].

docs/configuration.md and docs/experiment.schema.json from the structs of the experiment file,
docs/cli.md from the parsers of `fairbed` and `device-agent`, docs/store.md from the tables of the
run store, docs/keys.md from the keys of the control room, docs/measures.md from the catalogue of
measures, the tables of docs/data-sets.md. `--check` writes nothing and fails if a
page is not what would be written.
"""

import argparse
import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fairbed.coordinator.report.measures.page import measures_page
from fairbed.coordinator.report.tables import columns_of
from fairbed.coordinator.store.schema import MEASURED, RECORDS
from fairbed.coordinator.store.tables import ExchangeRow, Record
from fairbed.coordinator.task.recipes import PRESETS
from fairbed.coordinator.tui.app import ControlRoom  # noqa: F401 - its screens declare their keys
from fairbed.coordinator.tui.keys import keys_page
from fairbed.device_agent.cli import COMMANDS as AGENT_COMMANDS
from fairbed.device_agent.cli import make_parser as agent_parser
from fairbed.testbed.cli.main import make_parser as fairbed_parser
from fairbed.testbed.experiment.published import PUBLISHED
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


def data_sets_page() -> str:
    """Return docs/data-sets.md with its tables of data sets and models."""
    text = (DOCS / "data-sets.md").read_text(encoding="utf-8")
    text = _between(text, "data sets", _data_set_lines())
    return _between(text, "models", _model_lines())


def _between(text: str, mark: str, lines: Iterator[str]) -> str:
    """Return a text with other lines between two marks."""
    start, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    head, _, rest = text.partition(start)
    body = "\n".join(lines)
    return f"{head}{start}\n{body}\n\n{end}{rest.partition(end)[2]}"


def _data_set_lines() -> Iterator[str]:
    yield "| name | rows | x | classes | users | class | source; licence | fetched |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, found in PUBLISHED.items():
        users = f"{found.users} {found.users_are}" if found.users else ""
        shape = "x".join(map(str, found.x_shape)) + (" tokens" if found.is_tokens else "")
        yield (
            f"| `{name}` | {found.rows:,} | {shape} | {found.classes} | {users} | "
            f"{found.licence_class} | {_cell(found.source)} | {'yes' if found.is_fetched else ''} |"
        )
    yield from ("", "| name | limit |", "|---|---|")
    for name, found in PUBLISHED.items():
        if found.limit:
            yield f"| `{name}` | {found.limit} |"


def _model_lines() -> Iterator[str]:
    """Yield a table of the models of published studies, by the docstrings of their factories."""
    module = ast.parse(Path(presets_file()).read_text(encoding="utf-8"))
    texts = {
        node.name: ast.get_docstring(node) or ""
        for node in module.body
        if isinstance(node, ast.FunctionDef)
    }
    yield from ("| name | model | source |", "|---|---|---|")
    for name, path in PRESETS.items():
        what, _, source = texts[path.partition(":")[2]].partition("Source:")
        source = " ".join(source.partition("Deviates:")[0].split())
        what = " ".join(what.removeprefix("Return ").split())
        yield f"| `{name}` | {_cell(what)} | {_cell(source)} |"


def presets_file() -> str:
    """Return the file of the models, which imports torch and is not imported here."""
    spec = importlib.util.find_spec("fairbed.coordinator.task.presets")
    assert spec is not None, "it is part of the tree"
    assert spec.origin is not None, "it is a file"
    return spec.origin


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": reference_page,
    "experiment.schema.json": schema_text,
    "cli.md": cli_page,
    "store.md": store_page,
    "keys.md": partial(keys_page, NOTE),
    "measures.md": partial(measures_page, NOTE),
    "data-sets.md": data_sets_page,
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
