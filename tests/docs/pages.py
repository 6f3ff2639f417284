"""Runs the commands of a page in docs/, in order, as a reader would.

A page is Markdown. Its code blocks mean:

- `sh`: commands, run by `sh -e` in a folder of the page; each block must end with exit status 0;
- `toml`, `python` or `csv` with a first line `# file: NAME`: a file, written before any command.

A comment on the line above an `sh` block changes that:

- `<!-- not run: REASON -->`: skipped;
- `<!-- stays -->`: a command that runs until the end of the page, or until a later command stops
  it; the next block starts when its run is live, or when it has printed its first line;
- `<!-- exit 2 -->`: another exit status. A `text` block that follows shows the error output.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairbed.coordinator.store import find_runs
from fairbed.coordinator.store.connection import LOCK_FILE

COMMAND_S = 120.0
"""Longest block, seconds."""

START_S = 60.0
"""Longest start of a command that stays, seconds."""

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_FILE = re.compile(r"# file: (\S+)\n")
_EXIT = re.compile(r"exit (\d+)")


class BrokenPage(Exception):
    """A command of a page did not do what the page shows."""


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    kind: str
    """Language: sh, toml, ..."""
    text: str
    mark: str
    """Comment on the line above; empty without one."""
    line: int
    """Line of its first line in the page."""


def read_blocks(page: str) -> list[Block]:
    """Return the code blocks of a page in their order."""
    return [
        Block(
            kind=match["kind"],
            text=match["text"],
            mark=match["mark"] or "",
            line=page.count("\n", 0, match.start("text")) + 1,
        )
        for match in _BLOCK.finditer(page)
    ]


def run_page(page: str, folder: Path, environ: Mapping[str, str]) -> int:
    """Run the commands of a page in `folder`; return the number of blocks that ran.

    Raises:
        BrokenPage: A block ended with another exit status or error text than the page shows.
    """
    blocks = read_blocks(page)
    for block in blocks:
        if block.kind in ("toml", "python", "csv") and (named := _FILE.match(block.text)):
            (folder / named[1]).write_text(block.text[named.end() :], encoding="utf-8")
    count = 0
    with ExitStack() as stack:
        stack.callback(_interrupt_runs, folder / "runs")
        for index, block in enumerate(blocks):
            if block.kind != "sh" or block.mark.startswith("not run: "):
                continue
            count += 1
            if block.mark == "stays":
                stack.enter_context(_staying(block, folder, environ))
                continue
            errors = _run(block, folder, environ)
            shown = _shown_error(block, blocks[index + 1 : index + 2])
            if shown is not None and errors != shown:
                raise BrokenPage(f"line {block.line}: must show the error, got:\n{errors}")
    return count


def _shown_error(block: Block, following: Sequence[Block]) -> str | None:
    """Return the error output that the page shows after a block; None if it shows none."""
    if _EXIT.fullmatch(block.mark) is None:
        return None
    return next((after.text for after in following if after.kind == "text"), None)


def _run(block: Block, folder: Path, environ: Mapping[str, str]) -> str:
    """Run a block and return its error output."""
    expected = _EXIT.fullmatch(block.mark)
    done = subprocess.run(
        ["sh", "-e", "-c", block.text],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    if done.returncode != (int(expected[1]) if expected else 0):
        raise BrokenPage(
            f"line {block.line}: exit status {done.returncode} of\n{block.text}\n"
            f"{done.stdout}\n{done.stderr}"
        )
    return done.stderr


@contextmanager
def _staying(block: Block, folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Run a command that stays; interrupt it at the end, as Ctrl-C does, if it is still there."""
    log = folder / f"line-{block.line}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-e", "-c", block.text],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _await_start(process, block, folder, log)
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise BrokenPage(f"line {block.line}: does not end after Ctrl-C") from None


def _interrupt_runs(runs: Path) -> None:
    """End the runs that a failed page has left alive."""
    for run in find_runs(runs).readable:
        if run.is_alive:
            os.kill(int((run.folder / LOCK_FILE).read_text()), signal.SIGINT)


def _await_start(process: "subprocess.Popen[bytes]", block: Block, folder: Path, log: Path) -> None:
    is_run = block.text.startswith(("fairbed run", "fairbed coordinator"))
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BrokenPage(f"line {block.line}: ended at once:\n{log.read_text()}")
        if is_run and any(run.is_alive for run in find_runs(folder / "runs").readable):
            return
        if not is_run and log.stat().st_size:
            return
        time.sleep(0.05)
    raise BrokenPage(f"line {block.line}: did not start:\n{log.read_text()}")
