"""Every command on every page is one that `fairbed` and `device-agent` accept."""

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fairbed.device_agent.cli import COMMANDS, RUN
from fairbed.device_agent.cli import make_parser as make_agent_parser
from fairbed.testbed.cli.main import make_parser
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.shape.options import split_command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:sudo )?fairbed [^`]+)`")
PLACEHOLDER = re.compile(r"[A-Z]{3,}|\.\.\.|[<\[|*]")
"""What stands for something else: FILE, <id>, [options]."""


agent_parser, fairbed_parser = cache(make_agent_parser), cache(make_parser)
"""To make a parser takes much longer than to use it."""

INCOMPLETE = ("the following arguments are required", "expected one argument")


def commands(page: Path) -> Iterator[str]:
    """Yield the command lines of a page, without comments and continuations."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip()
    yield from (line for line in INLINE.findall(text) if not PLACEHOLDER.search(line))


def fairbed_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in commands(page):
            words = line.removeprefix("sudo ")
            if words.startswith(("fairbed ", "device-agent ")):
                yield page.relative_to(ROOT).as_posix(), words


ALL = sorted(set(fairbed_commands()))


def test_the_pages_have_commands() -> None:
    assert len(ALL) > 100


@pytest.mark.parametrize(("page", "line"), ALL, ids=[f"{page}:{line}" for page, line in ALL])
def test_a_command_is_accepted(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line, comments=True)
    words = words[: next((at for at, word in enumerate(words) if word in "|>&;"), len(words))]
    is_agent = words[0] == "device-agent"
    own = words[1:] if is_agent else split_command(words[1:])[0]
    named = own.pop(0) if is_agent and own and own[0] in COMMANDS else RUN
    parser = agent_parser(named) if is_agent else fairbed_parser()
    options, code = argparse.Namespace(command=None), 0
    try:
        options = parser.parse_args(own)
    except SystemExit as exc:
        code = int(exc.code or 0)
    problem = capsys.readouterr().err
    is_mention = any(text in problem for text in INCOMPLETE)  # `fairbed run`, in a sentence
    assert code == 0 or is_mention, f"{page}: {line}\n{problem}"
    if getattr(options, "command", None) == "bench" and options.name is not None:
        module = ROOT / "benchmarks" / f"{options.name.replace('-', '_')}.py"
        assert module.exists(), f"{page}: {line}: no such benchmark"
    path = getattr(options, "experiment", None)
    if path is not None and path.parts[0] == "examples":
        load_experiment(ROOT / path, getattr(options, "set", ()))
