"""Output where a stream cannot encode every character, and files whose encoding is stated."""

import ast
import codecs
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbed.testbed import cli
from fairbed.wire import console
from fairbed.wire.console import ERRORS, in_ascii, name_problem, print_anything, shows, storable

ROOT = Path(__file__).parents[2]

SOURCES = (
    "benchmarks",
    "coordinator",
    "device_agent",
    "examples",
    "experiments",
    "fairbed",
    "profiles",
    "testbed",
    "tools",
    "wire",
)

SHOWN = {
    "±": "+-",
    "→": "->",
    "←": "<-",
    "≤": "<=",
    "≥": ">=",
    "×": "x",
    "…": "...",
    "–": "-",
    "−": "-",
    "µ": "u",
    "μ": "u",
    "τ": "tau",
    "Σ": "Sigma",
    "ς": "sigma",
    "ά": "alpha",
    "²": "2",
    "½": "1/2",
    "─": "-",
    "│": "|",
    "┌": "+",
    "█": "#",
    "▏": "#",
    "●": "*",
    "“": "'",
    "é": "e",
    "Ł": "\\u0141",
    "ß": "\\u00df",
    "中": "\\u4e2d",
    "😀": "\\ud83d\\ude00",
    "\udce9": "\\udce9",
}


@pytest.mark.parametrize(("character", "shown"), SHOWN.items(), ids=ascii)
def test_a_character_has_readable_ascii(character: str, shown: str) -> None:
    assert in_ascii(character) == shown


def test_json_stays_json_on_every_stream() -> None:
    print_anything()
    names = {character: f"pi {character}" for character in SHOWN}
    text = json.dumps(names, ensure_ascii=False)
    for encoding in ("ascii", "latin-1", "cp1252", "koi8-r"):
        written = text.encode(encoding, ERRORS).decode(encoding)
        assert len(json.loads(written)) > 20


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_both_streams_accept_everything(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding=encoding))
    print_anything()
    for stream in (sys.stdout, sys.stderr):
        stream.write("1 → 2 \udce9\n")
        stream.flush()
    arrow = "→" if encoding == "utf-8" else "->"
    assert out.getvalue() == err.getvalue() == f"1 {arrow} 2 \\udce9\n".encode()


def test_a_terminal_without_utf_8_gets_lines_and_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO()))
    for encoding, is_shown in (("utf-8", True), ("latin-1", False), ("ascii", False)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", Terminal(io.BytesIO(), encoding=encoding))
            assert cli.shows_screens() is is_shown
            assert shows(sys.stdout) is is_shown
    assert capsys.readouterr().err.count("must have a terminal with UTF-8, got") == 2


def test_the_name_of_a_file_is_stored_as_text() -> None:
    for name in ("é.toml", "pi.toml", b"\xc3\xa9.toml".decode("ascii", "surrogateescape")):
        assert storable(name) in ("é.toml", "pi.toml")
    assert storable(b"\xe9.toml".decode("utf-8", "surrogateescape")) == "\\xe9.toml"


@pytest.mark.parametrize("command", ["replay", "report", "device-agent"])
def test_a_name_that_is_no_text_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "pi.toml").write_text(EXPERIMENT, encoding="utf-8")
    words = {
        "replay": (b"replay", b"pi.toml", b"--out", b"out \xf6"),
        "report": (b"report", b"out \xf6"),
        "device-agent": (b"run", b"--config", b"\xf6.toml"),
    }
    module = "device_agent.cli" if command == "device-agent" else "testbed.cli.main"
    done = subprocess.run(
        [sys.executable, "-m", f"fairbed.{module}", *words[command]],
        cwd=tmp_path,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(b"\n") == 1
    assert b"\\xf6" in done.stderr or b"\\udcf6" in done.stderr
    assert not list(tmp_path.glob("out*"))


def test_an_error_about_a_name_shows_the_name_alone() -> None:
    name = os.fsdecode(b"x" * 100 + b"\xf6")
    with pytest.raises(UnicodeEncodeError) as raised:
        name.encode()
    assert f"got {'x' * 30 + chr(92) * 2}xf6'".replace("got ", "got '") in name_problem(
        raised.value
    )
    assert not name_problem(UnicodeEncodeError("ascii", "\xe9", 0, 1, "ordinal not in range(128)"))


def test_the_handler_leaves_other_errors_alone() -> None:
    print_anything()
    assert codecs.lookup_error(ERRORS) is console._replace
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", ERRORS)


def unstated(source: bytes) -> Iterator[int]:
    """Yield the lines that open a text file, or read a program, in the encoding of the locale."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function, given = node.func, {word.arg: word.value for word in node.keywords}
        name, owner = getattr(function, "id", ""), ""
        if isinstance(function, ast.Attribute):
            name, owner = function.attr, getattr(function.value, "id", "?")
        words = [
            part.value for part in [*node.args, *given.values()] if isinstance(part, ast.Constant)
        ]
        modes = {w for w in words if isinstance(w, str) and w and set(w) <= set("rwaxbt+")}
        is_binary = any("b" in mode for mode in modes)
        is_unstated = {
            "open": not is_binary
            if owner in ("", "io")
            else owner in ("gzip", "lzma", "bz2") and bool(modes) and not is_binary,
            "fdopen": not is_binary,
            "NamedTemporaryFile": bool(modes) and not is_binary,
            "TemporaryFile": bool(modes) and not is_binary,
            "TextIOWrapper": len(node.args) < 2,
            "read_text": not node.args,
            "write_text": len(node.args) < 2,
            "FileHandler": len(node.args) < 3,
        }.get(name, "text" in given and name in ("run", "Popen", "check_output"))
        if "encoding" not in given and (is_unstated or "universal_newlines" in given):
            yield node.lineno


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("open(path)", True),
        ("open(path, 'w')", True),
        ("open(path, 'rb')", False),
        ("open(path, encoding='utf-8')", False),
        ("os.open(path, flags)", False),
        ("os.fdopen(fd, 'w')", True),
        ("os.fdopen(fd, 'wb')", False),
        ("lzma.open(path)", False),
        ("gzip.open(path, 'rt')", True),
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.write_text(text)", True),
        ("path.write_text(text, 'utf-8')", False),
        ("subprocess.run(c, text=True)", True),
        ("subprocess.run(c, text=True, encoding='utf-8')", False),
        ("logging.FileHandler(path)", True),
        ("tempfile.NamedTemporaryFile('w')", True),
        ("tempfile.NamedTemporaryFile()", False),
    ],
)
def test_the_check_of_encodings_finds_what_it_must(line: str, is_found: bool) -> None:
    assert bool(list(unstated(line.encode()))) is is_found


def test_no_text_file_is_opened_in_the_encoding_of_the_locale() -> None:
    assert all((ROOT / folder).is_dir() for folder in SOURCES)
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in unstated(path.read_bytes())
    ]
    assert found == []


EXPERIMENT = """
name = "digits"
rounds = 2
[data]
dataset = "digits"
[model]
name = "softmax"
[training]
batch_size = 20
[selection]
per_round = 2
[[fleet]]
profile = "raspberry-pi-4b"
count = 4
"""

LOCALES = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONIOENCODING": ""},
}


@pytest.mark.parametrize(("mode", "starts"), [("0", 2), ("1", 1)])
def test_a_program_reads_names_as_utf_8_in_the_c_locale(
    tmp_path: Path, mode: str, starts: int
) -> None:
    program = tmp_path / "starts.py"
    program.write_text(
        "import os, sys\n"
        "from fairbed.wire.console import print_anything, read_names_as_utf_8\n"
        "print(os.getpid(), flush=True)\n"
        "read_names_as_utf_8()\n"
        "print_anything()\n"
        "print(ascii(sys.argv[1]), sys.argv[1], sys.stdout.encoding)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, program, "ö"],
        env=os.environ | LOCALES["C"] | {"PYTHONUTF8": mode},
        capture_output=True,
        check=True,
    )
    *processes, shown = done.stdout.decode().splitlines()
    assert (len(processes), len(set(processes))) == (starts, 1)
    assert shown == ("'\\xf6' o ascii" if mode == "0" else "'\\xf6' ö utf-8")


@pytest.mark.parametrize("command", ["fairbed.testbed.cli.main", "fairbed.device_agent.cli"])
def test_a_command_names_a_file_in_the_c_locale(tmp_path: Path, command: str) -> None:
    words = ["replay", "ö.toml"] if "testbed" in command else ["run", "--config", "ö.toml"]
    done = subprocess.run(
        [sys.executable, "-m", command, *words],
        cwd=tmp_path,
        env=os.environ | LOCALES["C"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    line = done.stderr.decode("ascii")
    assert "o.toml" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("locale", LOCALES)
def test_a_run_ends_well_in_a_locale_without_utf_8(tmp_path: Path, locale: str) -> None:
    (tmp_path / "é.toml").write_text(EXPERIMENT, encoding="utf-8")

    def fairbed(*words: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [sys.executable, "-m", "fairbed.testbed.cli.main", *words],
            cwd=tmp_path,
            env=os.environ | LOCALES[locale],
            capture_output=True,
            check=False,
        )

    done = fairbed("replay", "é.toml", "--out", "é")
    assert (done.returncode, b"Unicode" in done.stderr) == (0, False), done.stderr
    assert (b"\xb1" if locale == "latin-1" else b"+-") in done.stdout
    shown = fairbed("show", "é", "--json")
    assert json.loads(shown.stdout.decode("latin-1"))["rounds_completed"] == 2, shown.stderr
