"""Text of others controls nothing that shows it: a mark in every column, field and key.

The columns are those of the store, the fields those of the messages: a new one is marked without a
change here. What is not in such a declaration is named: the commands, the screens, the formats.
"""

import csv
import io
import json
import logging
import re
import sqlite3
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import tomli_w
from textual.strip import Strip

from fairbed.coordinator.report.export import export_run
from fairbed.coordinator.report.html import read_page, report_page
from fairbed.coordinator.report.markup import escaped, tag
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import CONFIG, DATABASE
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.schema import RECORDS, table_of
from fairbed.coordinator.tui.attention import attention
from fairbed.testbed.cli.main import main
from fairbed.testbed.lab.audit import Audit
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.metrics.exporter import Follower
from fairbed.testbed.metrics.prometheus import RunCollector
from fairbed.testbed.metrics.totals import Totals
from fairbed.testbed.notify.notifier import Notification, notification, send, serve
from fairbed.testbed.notify.notify import AlertSeen, Start
from fairbed.wire import codec
from fairbed.wire.enrolment import EnrolRequest, RenewRequest, decode_json
from fairbed.wire.errors import DecodeError
from fairbed.wire.printable import latex
from fairbed.wire.text import toml_of
from tests.coordinator.store.fake_run import fake_run
from tests.coordinator.tui.screen import lines_on, room, settled
from tests.testbed.lab.labs import NOW_S, make_lab
from tests.testbed.notify.test_notify import FACTS, recorder, settings, webhook
from tests.testbed.web.browser import LIMIT_S
from tests.testbed.web.test_watch_web import Command
from tests.wire.messages import MESSAGES

LINE = "zzline"
"""Begins a line of its own where a line end of a stranger was shown."""

MARK = (
    "=zz\x1b]0;title\x07\x1b]52;c;eno=\x1b\\\x1b[2J\x9b31m\x9d0;t\x9c\r\b\u202e\u2066\u200b\u2028"
    f"\x7f\0\n{LINE}<script>zz</script>&\\zz{{%$#_\"'|"
)
"""ESC, OSC, BEL, CSI and OSC of one byte, CR, bidi, NUL, a line end; what HTML, LaTeX and
spreadsheets give a meaning."""

KEPT = "\n\t"


def controls(text: str) -> list[str]:
    """Return the characters of an output that control what shows it, and lines of a stranger."""
    found = [c for c in text if not (c.isprintable() or c in KEPT or c == "\xa0")]
    return found + [line[:20] for line in text.splitlines() if line.startswith(LINE)]


def marked_json(value: Any) -> Any:
    """Return JSON values with the mark in every text and a key of its own."""
    match value:
        case dict():
            return {key: marked_json(one) for key, one in value.items()} | {MARK: MARK}
        case list():
            return [marked_json(one) for one in value]
        case str():
            return f"{MARK}{value}"
    return value


def marked(cell: Any) -> Any:
    """Return a text cell with the mark; inside the texts of JSON, too."""
    if not isinstance(cell, str):
        return cell
    if cell.startswith(("{", "[")):
        with suppress(json.JSONDecodeError):
            return json.dumps(marked_json(json.loads(cell)))
    return f"{MARK}{cell}"


def texts_of_store() -> list[tuple[str, str]]:
    """Return table and column of every text of the store."""
    return [
        (record.TABLE, column.name)
        for record in RECORDS
        for column in table_of(record).columns
        if column.kind is str
    ]


def mark_store(folder: Path, columns: Sequence[tuple[str, str]], *, only_last: bool) -> None:
    """Mark columns of a store: in each row, or in the last row of each table."""
    with closing(sqlite3.connect(folder / DATABASE)) as db:
        for table, column in columns:
            where = f'WHERE rowid = (SELECT max(rowid) FROM "{table}")' if only_last else ""
            found = db.execute(f'SELECT rowid, "{column}" FROM "{table}" {where}').fetchall()
            rows = [(marked(cell), row) for row, cell in found]
            db.executemany(f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE rowid = ?', rows)
        db.commit()


def cells_of(path: Path) -> Iterator[str]:
    """Yield the cells of a CSV file that are no numbers."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            for cell in row:
                try:
                    float(cell)
                except ValueError:
                    yield cell


def mark_experiment(folder: Path) -> None:
    """Mark every text of a run's experiment, in a file that is still TOML."""
    path = folder / CONFIG
    document = marked_json(toml_of(path.read_text("utf-8")))
    path.write_text(tomli_w.dumps(document), "utf-8")


FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def shown_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of everything that the commands make of a run.

    A command may refuse what a stranger wrote: its line is an output, too.
    """
    where = ["--runs", str(folder.parent)]
    commands = [
        ["show", folder.name, *where],
        ["show", folder.name, "--json", *where],
        ["runs", *where],
        ["runs", "--json", *where],
        ["watch", folder.name, "--headless", *where],
        ["logs", "client-01", folder.name, *where],
        ["logs", f"{MARK}client-01", folder.name, *where],
    ]
    for command in commands:
        main(command)
        captured = capsys.readouterr()
        shown = captured.out + captured.err
        yield " ".join(command[:3]), shown if "internal error" not in shown else f"{LINE} {shown}"
    with RunReader(folder) as reader:
        with suppress(StoreError):
            yield "report", report_page([read_page(reader, has_figures=False)])
        with suppress(StoreError):
            collector = RunCollector()
            collector.totals = Totals(reader)
            collector.totals.refresh(0.0)
            yield "metrics", collector.text().decode()
        with suppress(StoreError):
            export_run(reader, folder / "csv", "csv")
    for path in sorted((folder / "csv").glob("*.csv")):
        yield path.name, path.read_text("utf-8")
        yield (
            f"cells of {path.name}",
            "\n".join(f"{LINE} {cell}" for cell in cells_of(path) if cell.startswith(FORMULAS)),
        )


@pytest.mark.parametrize("only_last", [True, False])
def test_no_text_of_a_foreign_run_controls_an_output(
    only_last: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fake_run(tmp_path / "runs" / "demo-1", rounds=3, devices=3)
    mark_store(folder, texts_of_store(), only_last=only_last)
    mark_experiment(folder)
    found = {name: controls(text) for name, text in shown_of(folder, capsys)}
    assert {name: bad for name, bad in found.items() if bad} == {}
    assert len(found) >= 10


@pytest.mark.full
def test_no_single_column_of_a_foreign_run_controls_an_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table, column in texts_of_store():
        folder = fake_run(tmp_path / f"{table}-{column}" / "demo-1", rounds=3, devices=3)
        mark_store(folder, [(table, column)], only_last=False)
        for name, text in shown_of(folder, capsys):
            assert controls(text) == [], (table, column, name)


SCREEN_KEYS = ("2", "enter", "escape", "3", "4", "5", "6", "7", "1", "i")


@pytest.mark.anyio
@pytest.mark.full
@pytest.mark.parametrize("only_last", [True, False])
async def test_no_text_of_a_foreign_run_controls_the_control_room(
    only_last: bool, tmp_path: Path
) -> None:
    folder = fake_run(tmp_path / "demo-1", rounds=3, devices=3)
    mark_store(folder, texts_of_store(), only_last=only_last)
    mark_experiment(folder)
    async with room(folder) as (app, pilot):
        for key in ("", *SCREEN_KEYS):
            if key:
                await pilot.press(key)
            await settled(app, pilot)
            assert controls("\n".join(lines_on(app))) == [], key
            for strip in app.screen._compositor.render_strips():  # as the driver gets them
                assert isinstance(strip, Strip)
                assert controls(strip.text) == [], key


TERMINAL = re.compile(
    r"\x1b(?:\[\??\d[\d;]*[hlHmABCD]|\[[HmJ]|\[[<>=][\d;]*u|\[\?\d+\$p|\]22;[a-z]+\x07)|[\r\n]"
)
"""What Textual writes itself. Of the mark's own sequences it has none."""


DRAWN = 3_000
"""Bytes that a new screen of 120 x 40 cells has at least."""


@pytest.mark.full
@pytest.mark.anyio
async def test_no_text_of_a_foreign_run_controls_a_browser(tmp_path: Path) -> None:
    """The bytes that the page gets of the real server, and the title that it shows."""
    folder = fake_run(tmp_path / "demo-1", rounds=3, devices=3)
    mark_store(folder, texts_of_store(), only_last=False)
    mark_experiment(folder)
    command = Command(folder)
    try:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar, headers={"Origin": command.url}) as client:
            async with client.post(f"{command.url}/login", data=command.token) as answer:
                assert answer.status == 204
            async with client.get(f"{command.url}/session") as answer:
                title = (await answer.json())["title"]
            async with client.get(command.url) as answer:
                page = await answer.text()
            async with client.ws_connect(f"{command.url}/ws?width=120&height=40") as socket:
                shown = (await socket.receive_bytes(timeout=LIMIT_S)).decode()
                for key in ("", *"2345671"):
                    if key:
                        await socket.send_json(["stdin", key])
                    before = len(shown)
                    while len(shown) < before + DRAWN:
                        shown += (await socket.receive_bytes(timeout=LIMIT_S)).decode()
    finally:
        command.process.kill()
        command.process.communicate()
    assert controls(title) == []
    assert "zz" not in page
    assert "zz" in shown
    assert controls(TERMINAL.sub("", shown)) == []


@pytest.mark.full
def test_no_text_of_a_foreign_run_controls_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    folder = fake_run(tmp_path / "demo-1", rounds=3, devices=3)
    mark_store(folder, texts_of_store(), only_last=True)
    for is_toml in (True, False):
        if is_toml:
            mark_experiment(folder)
        else:
            (folder / CONFIG).write_text(f"# {MARK}", "utf-8")
        follower = Follower(folder, None, tmp_path / "tb", 1)
        follower.refresh(is_last=True)
        follower.close()
        (path,) = (tmp_path / "tb").iterdir()
        found = list[str]()
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.append(value.tag)
                found += [text.decode() for text in value.tensor.string_val]
        assert any("zz" in text for text in found)
        assert [bad for text in found for bad in controls(text)] == []


def test_a_message_to_a_person_is_printable_whatever_it_is_made_of() -> None:
    facts = msgspec.structs.asdict(FACTS)
    for name in (name for name, value in facts.items() if isinstance(value, str)):
        message = Notification(**(facts | {name: MARK}))
        found = list(texts_in([message, message.environment()]))
        assert sum("zz" in text for text in found) == 2, name
        assert [bad for text in found for bad in controls(text)] == []


@pytest.mark.full
def test_no_text_of_a_run_controls_what_a_message_to_a_person_reaches(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A command gets arguments, variables and JSON; a webhook JSON. Its errors are an output."""
    folder = fake_run(tmp_path / "demo-1", rounds=3, devices=3)
    mark_store(folder, texts_of_store(), only_last=True)
    mark_experiment(folder)
    got = list[str]()
    with webhook(204) as (url, bodies):
        way = settings(command=recorder(tmp_path / "got"), url=url)
        with RunReader(folder) as reader:
            made = [
                notification(reader),
                notification(reader, AlertSeen(MARK, MARK, is_over=False)),
                notification(reader, AlertSeen(MARK, MARK, is_over=False, is_long=True)),
            ]
        texts = [
            name for name in made[0].__struct_fields__ if isinstance(getattr(made[1], name), str)
        ]
        facts = msgspec.structs.asdict(made[1])
        made += [Notification(**(facts | {name: MARK})) for name in texts]
        for message in made:
            assert send(way, message, 30.0, (0.0,)) == ""
            body, variables, arguments = json.loads((tmp_path / "got").read_text())
            got += texts_in([body, variables, arguments, json.loads(bodies[-1])])
    assert len(bodies) == len(made) >= 10
    assert sum("zz" in text for text in got) >= 3 * len(texts)
    assert [bad for text in got for bad in controls(text)] == []
    assert not any("\n" in text for text in got)
    fails = (sys.executable, "-c", f"import sys; sys.exit({MARK!r})")
    serve(
        iter([msgspec.json.encode(Start(str(folder), settings(command=fails))) + b"\n"]),
        io.BytesIO(),
    )
    shown = capfd.readouterr().err
    assert "fairbed: no notification: " in shown
    assert controls(shown) == []


def test_the_control_room_shows_no_control_character_that_a_widget_gives_it(tmp_path: Path) -> None:
    from rich.segment import Segment
    from textual.color import Color

    from fairbed.coordinator.tui.app import PRINTABLE_ONLY

    (shown,) = PRINTABLE_ONLY.apply([Segment(MARK)], Color(0, 0, 0))
    assert controls(shown.text) == []
    control = Segment("\x1b[H", None, [(0,)])  # type: ignore[list-item]  # a code of Textual's own
    assert PRINTABLE_ONLY.apply([control], Color(0, 0, 0)) == [control]


def texts_in(value: object) -> Iterator[str]:
    """Yield all texts in a message, at any depth."""
    match value:
        case str():
            yield value
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from texts_in(getattr(value, name))
        case tuple() | list() | frozenset() | set():
            for one in value:
                yield from texts_in(one)
        case dict():
            yield from texts_in([*value.keys(), *value.values()])


def texts_or_problem(decode: Callable[[bytes], object], data: bytes) -> list[str]:
    """Return the texts of what was decoded, or the line of the refusal."""
    try:
        return list(texts_in(decode(data)))
    except DecodeError as exc:
        return [str(exc)]


def with_marks(message: Any) -> Iterator[Any]:
    """Yield builtin forms of a message with the mark in one text of it, at any depth."""
    match message:
        case str():
            yield f"{MARK}{message}"
        case dict():
            for key, value in message.items():
                yield from ({**message, key: one} for one in with_marks(value))
        case list() | tuple():
            for i, value in enumerate(message):
                yield from ([*message[:i], one, *message[i + 1 :]] for one in with_marks(value))


def filled(kind: Any, depth: int = 0) -> Any:
    """Return a builtin value of a type with a text in every place for one, or None without one."""
    origin, given = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return filled(given[0], depth)
    if kind is str:
        return "a"
    if origin in (tuple, list) and given:
        inner = [filled(one, depth) for one in given if one is not ...]
        return None if None in inner else inner
    if origin is not None:
        return next((one for one in map(lambda x: filled(x, depth), given) if one), None)
    return None


@pytest.mark.parametrize("name", MESSAGES)
def test_no_text_of_a_message_controls_an_output(name: str) -> None:
    message = MESSAGES[name]
    plain = msgspec.to_builtins(message, builtin_types=(bytes,))
    hints = typing.get_type_hints(type(message), include_extras=True)
    absent = {
        field: value
        for field in message.__struct_fields__
        if field not in plain and (value := filled(hints[field])) is not None
    }
    version = codec.encode(message)[:1]
    for form in with_marks({**plain, **absent}):
        for one in (form, {k: v for k, v in form.items() if k not in absent or MARK in str(v)}):
            for text in texts_or_problem(codec.decode, version + msgspec.msgpack.encode(one)):
                assert controls(text) == [], (name, text)
                assert "\n" not in text


@pytest.mark.parametrize("kind", [EnrolRequest, RenewRequest])
def test_no_text_of_a_request_to_the_lab_controls_an_output(kind: type[msgspec.Struct]) -> None:
    plain = {"token": "a" * 32, "password": "a" * 32, "name": "pi", "host_name": "pi",
             "agent": "1", "machine": "x", "python": "3"}  # fmt: skip
    given = {name: plain[name] for name in kind.__struct_fields__ if name in plain}
    for name in given:
        data = msgspec.json.encode({**given, name: f"{MARK}{given[name]}"})
        for text in texts_or_problem(partial(decode_json, kind=kind), data):
            assert controls(text) == [], name
            assert "\n" not in text


def test_the_audit_log_holds_no_character_that_controls_a_terminal(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit.write(MARK, at_s=0.0, name=MARK, role=MARK, by=MARK, address=MARK, detail=MARK)
    assert controls((tmp_path / "audit.jsonl").read_text("utf-8")) == []
    (row,) = audit.rows()
    assert controls("".join(texts_in(row))) == []


def test_no_text_of_a_device_controls_the_list_of_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(tmp_path)
    with Identities(lab.database) as identities:
        token = identities.new_token("pi", now_s=NOW_S, lifetime_s=900.0)
        identities.redeem(token, None, now_s=NOW_S)
        identities.saw("pi", at_s=NOW_S, address=MARK, agent=MARK, state="online")
    for more in ([], ["--json"]):
        assert main(["devices", "--lab", str(lab.folder), *more]) == 0
        captured = capsys.readouterr()
        assert "zz" in captured.out
        assert controls(captured.out + captured.err) == []


EXPERIMENT = 'name = "a"\nrounds = 2\n'


def marked_files(folder: Path) -> Iterator[list[str]]:
    """Yield commands that read a file with the mark in a key, a value, a heading or its name."""
    key = json.dumps(MARK)  # a string of JSON is one of TOML
    texts = [
        f"{EXPERIMENT}{key} = 1\n",
        f"{EXPERIMENT}[{key}]\na = 1\n",
        f"{EXPERIMENT}[selection]\n{key} = 1\n",
        f"name = {key}\n",
        f"{EXPERIMENT}[data]\nsource = {key}\n",
        f"{EXPERIMENT}{MARK}",
    ]
    for number, text in enumerate(texts):
        path = folder / f"e{number}.toml"
        path.write_text(text.replace("\0", ""), "utf-8")
        yield ["config", str(path)]
        yield ["profiles", "check", str(path)]
        yield ["compare", str(path)]
    trace = folder / "t.csv"
    trace.write_text(f"{MARK},down_bps\n1,{MARK}\n".replace("\0", ""), "utf-8")
    yield ["profiles", "check", str(trace)]
    yield ["data", "check", str(trace)]
    yield ["show", MARK, "--runs", str(folder)]
    yield ["profiles", "show", MARK.replace("\0", "")]


@pytest.mark.full
def test_no_text_of_a_file_controls_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in marked_files(tmp_path):
        with suppress(SystemExit):  # of argparse
            main(command)
        captured = capsys.readouterr()
        assert controls(captured.out + captured.err) == [], command


def test_what_a_process_prints_and_logs_controls_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fairbed.wire.console import log_lines, print_anything

    print_anything()
    print(f"a {MARK.replace(chr(10), '')}\tb")  # noqa: T201  # what the test is about
    sys.stderr.writelines([MARK.replace("\n", ""), "\n"])
    root, log = logging.getLogger(), logging.getLogger("test")
    before = root.handlers[:], root.level
    try:
        log_lines("info", "%(levelname)s %(message)s", anew=True)
        log.info("device %s", MARK)
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
    captured = capsys.readouterr()
    assert controls(captured.out + captured.err) == []
    assert "\tb\n" in captured.out
    assert captured.err.count("\n") == 2
    assert "zz</script>" in captured.err


def test_html_latex_and_csv_give_no_character_a_meaning(tmp_path: Path) -> None:
    from fairbed.testbed.compare.table import csv_of

    assert controls(tag("td", MARK, title=MARK)) == []
    assert "<script" not in tag("td", MARK, title=MARK)
    assert controls(escaped(MARK)) == []
    shown = latex(MARK)
    assert controls(shown) == []
    assert r"\textbackslash{}zz\{\%\$\#\_" in shown
    text = csv_of([("arm", 1.5, -2.5, None, MARK, "@a", "-0.5", "-a", "+1,000.5", "-1e-5")])
    assert next(csv.reader(io.StringIO(text)))[1:4] == ["1.5", "-2.5", ""]
    cells = next(csv.reader(io.StringIO(text)))
    assert [cell[:2] for cell in cells[4:]] == ["'=", "'@", "-0", "'-", "+1", "-1"]
    assert controls(text) == []


def test_a_notification_of_the_terminal_ends_where_it_must() -> None:
    sent = attention(MARK, MARK, {"TERM": "xterm"})
    assert sent.count("\x1b") == 2
    assert sent.count("\x07") == 1
    assert controls(sent.replace("\x1b", "").replace("\x07", "")) == []
