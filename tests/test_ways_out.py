"""Texts leave Fairbed through the functions of its exits, which take no text that is not printable.

What writes to an exit is found in the syntax of each module; what those functions take, by mypy.
"""

import ast
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairbed.coordinator.report import export, html, markup
from fairbed.coordinator.tui import attention
from fairbed.coordinator.tui.app import PrintableOnly
from fairbed.testbed.compare import report, table
from fairbed.testbed.metrics import prometheus, tensorboard
from fairbed.testbed.web import server
from fairbed.wire import console
from fairbed.wire.printable import Printable, csv_cell, latex, one_line, printable
from tests.test_architecture import MODULES, ROOT

COMMANDS = (
    *(
        "testbed/cli/",
        "testbed/flower/cli.py",
        "testbed/lab/cli",
        "testbed/packs/cli",
        "testbed/reproduction/cli.py",
        "testbed/web/cli.py",
    ),
    "device_agent/cli.py",
)
"""Modules of the commands. They print, to streams that their `main` has made printable."""

STREAMS = {"__stderr__", "__stdout__", "stderr", "stdout"}

CALLS = {
    "Console": "rich",
    "for_controls": "for_controls",
    "Printable": "Printable",
    "Markup": "Markup",
    "SummaryWriter": "TensorBoard",
    "generate_latest": "Prometheus",
    "basicConfig": "log",
    "StreamHandler": "log",
    "FileHandler": "log",
    "DictWriter": "CSV",
    "isprintable": "own judgement",
    "send_bytes": "page",
    "Notification": "notify",
}
"""Names of what is called, and the way out that it is."""

STREAM = {"stream"}
"""It names a standard stream."""

NAMED = re.compile(rf"\b(?:{'|'.join(['print', 'csv', *STREAMS, *CALLS])})\b")
"""What a module with a way out names; only those are read."""

ALLOWED: dict[str, set[str]] = {
    "wire/printable.py": {"Printable", "own judgement"},
    "wire/console.py": {"stream", "for_controls", "log"},
    "wire/labels.py": {"own judgement"},  # quotes a label that is not printable
    "wire/preparation.py": {"own judgement"},
    "coordinator/report/html.py": {"Markup"},  # its style sheet, its script, its figures
    "coordinator/report/markup.py": {"Markup"},
    "coordinator/store/connection.py": {"own judgement"},  # most texts need no more than a look
    "coordinator/task/ship.py": STREAM,  # `print_line` to standard output
    "coordinator/tui/keys.py": {"own judgement"},  # a key of the keyboard
    "testbed/api/progress.py": STREAM,  # a bar that draws nothing
    "testbed/cli/watch.py": {"for_controls", "stream", "print"},  # a carriage return of its own
    "testbed/compare/table.py": {"CSV", "stream"},  # `rich_console` of standard output
    "testbed/experiment/datasets/function.py": STREAM,  # what the user's function prints
    "device_agent/clients/work.py": {"own judgement"},  # drops metrics by odd names
    # Without Fairbed, in the interpreter of a client or of an app.
    "device_agent/clients/child/own.py": {"own judgement"},
    "device_agent/clients/child/serve.py": STREAM,
    "testbed/notify/settings.py": {"own judgement"},  # refuses an address
    "testbed/metrics/prometheus.py": {"Prometheus"},
    "testbed/metrics/tensorboard.py": {"TensorBoard"},
    "testbed/progress.py": {"for_controls", "stream", "rich"},
    "testbed/replay/costs.py": STREAM,  # `print_line` to standard output
    "testbed/run/amqtt_broker.py": {"log"},  # without Fairbed; its log quotes each message
    "testbed/notify/notifier.py": {"notify", "stream"},
    "testbed/web/server.py": {"page"},
    # They print one line of their own before a program takes their place.
    "testbed/backends/sandbox.py": STREAM,
    "testbed/host/guard.py": STREAM,
    "testbed/host/termination.py": STREAM,
    "testbed/shape/enter.py": STREAM,
    # Processes whose output another one of Fairbed reads.
    "device_agent/example_count.py": STREAM,
    "device_agent/peak_memory.py": STREAM,
    "profiles/text.py": {"CSV"},
    "testbed/backends/launcher.py": STREAM,
    "testbed/backends/network/namespace_setup.py": STREAM,
    "testbed/backends/network/relay.py": STREAM,
    "testbed/backends/network/trial.py": STREAM,
    "testbed/backends/proxy/server.py": STREAM,
    "testbed/cluster/joining.py": STREAM,
    "testbed/host/calibration.py": STREAM,
    "testbed/recording/kernel.py": STREAM,
    "testbed/recording/rates.py": STREAM,
}
"""Ways out that a module has; no other has any."""


def ways_out(tree: ast.AST) -> Iterator[str]:
    """Yield the ways out of a module by which a text could pass the function of its exit."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name in STREAMS:
                yield "stream"
            case ast.ImportFrom(module="sys", names=names) if {x.name for x in names} & STREAMS:
                yield "stream"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="csv"), attr="writer")):
                yield "CSV"
            case ast.Call(func=ast.Name(id="print")):
                yield "print"
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in CALLS:
                yield CALLS[name]
            case ast.ClassDef(bases=bases):
                yield from (CALLS[x.id] for x in bases if isinstance(x, ast.Name) and x.id in CALLS)


def test_no_module_writes_past_the_function_of_an_exit() -> None:
    found = dict[str, set[str]]()
    for path in MODULES:
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        ways = set(ways_out(ast.parse(text))) if NAMED.search(text) else set()
        if name.startswith(COMMANDS):
            ways -= {"print", "stream"} if name not in ALLOWED else set()
        if ways:
            found[name] = ways
    assert found == ALLOWED


@pytest.mark.parametrize(
    "code",
    ["print(x)", "import sys\nsys.stdout.write(x)", "import sys\nout = sys.__stderr__.buffer",
     "from sys import stderr", "Console().print(x)", "rich.console.Console(file=f)",
     "class Mine(Console): ...", "csv.writer(f).writerow(x)", "logging.StreamHandler(f)",
     "Markup(x)", "x.isprintable()", "Printable(x)"],
)  # fmt: skip
def test_the_search_finds_each_way_out(code: str) -> None:
    assert NAMED.search(code)
    assert list(ways_out(ast.parse(code)))


@pytest.mark.parametrize("path", [ROOT / "testbed/cli/main.py", ROOT / "device_agent/cli.py"])
def test_a_command_makes_its_streams_printable_before_all_else(path: Path) -> None:
    (main,) = (
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    )
    statements = [node for node in main.body if isinstance(node, ast.Expr)]
    first = next(x for x in statements if not isinstance(x.value, ast.Constant))
    assert ast.unparse(first) == "print_anything()"


WRITERS: dict[Callable[..., object], str] = {
    console._put: "text",
    PrintableOnly._segment: "text",
    attention._sequence: "text",
    markup._text: "text",
    export._quoted: "cell",
    report._row: "first",
    report._typeset: "text",
    report._comment: "name",
    prometheus._encoded: "text",
    tensorboard.Curves._write_text: "text",
    server._send_line: "line",
    server.WebSettings: "title",
}
"""The functions of the exits that write, and the argument that is the text."""


def test_what_writes_at_an_exit_takes_a_printable_text_only() -> None:
    for function, argument in WRITERS.items():
        assert typing.get_type_hints(function)[argument] is Printable, function
    assert typing.get_type_hints(html._write)["page"] is markup.Markup
    assert "Printable" in str(typing.get_type_hints(table._csv_text)["rows"])
    makers = printable, csv_cell, latex, one_line
    assert {typing.get_type_hints(f)["return"] for f in makers} == {Printable}


SNIPPET = """
import sys
from fairbed.coordinator.report import markup
from fairbed.wire import console
from fairbed.wire.printable import csv_cell, latex, one_line, printable

def show(name: str) -> None:
    console._put(sys.stderr, printable(name))
    console._put(sys.stderr, one_line(name, 9))
    markup._text(csv_cell(name) or latex(name))
    console._put(sys.stderr, name)  # refused
    console._put(sys.stderr, str(printable(name)))  # refused
    console._put(sys.stderr, f"{printable(name)}")  # refused
    markup._text(printable(name) + ".")  # refused
"""


@pytest.mark.full
@pytest.mark.timeout(300)  # without the results of an earlier check of all types
def test_mypy_refuses_a_text_that_did_not_come_through_the_sanitiser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mypy import api

    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    monkeypatch.chdir(ROOT)  # with its settings and its cache
    out, problem, _ = api.run([str(path)])
    assert not problem
    found = re.findall(r"snippet\.py:(\d+): error: (.*)", out)
    lines = SNIPPET.splitlines()
    assert [lines[int(number) - 1].partition("  # ")[2] for number, _ in found] == ["refused"] * 4
    for _, text in found:
        assert 'has incompatible type "str"; expected "Printable"' in text
