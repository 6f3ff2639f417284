"""Check the list of branches of pure folders that no test reaches: tools/uncovered_branches.py.

The contract on purity in `pyproject.toml` names the folders. Their fast tests run in this process
under coverage.py. Each branch that they do not reach must be a row of `docs/uncovered-branches.md`
with a reason, and each row must be such a branch; otherwise the exit status is 1. Rows are matched
by file, function and text of the lines, so that line numbers may change.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGE = Path("docs/uncovered-branches.md")
CONTRACT = "Pure folders import no clock, randomness, socket or log"

OTHER_TESTS = (
    "tests/coordinator/test_buffered_round.py",
    "tests/coordinator/test_late_round.py",
    "tests/coordinator/tui/test_view.py",
    "tests/testbed/backends/network/test_text.py",
    "tests/testbed/lab/test_permissions.py",
    "tests/testbed/replay",
    "tests/testbed/test_round_policy.py",
)
"""Tests of pure modules outside the folder of the same name."""
IGNORED_TESTS = (
    "tests/wire/transport/test_*.py",  # sockets; transport/protocol is pure
    "tests/testbed/replay/cohort/*",  # training
    "tests/coordinator/algorithms/test_reference_simulation.py",
    "tests/testbed/replay/test_linear_replay.py",
    "tests/testbed/replay/test_missed_deadlines.py",
)
"""Tests inside such a folder of modules that are not pure, and long ones that reach no more."""

OPTIONS = ("-q", "-p", "no:randomly", "-n", "0", "--tier", "fast")

END = "the end"
NEVER = "never runs"
_ROW = re.compile(r"\| `(?P<file>.+?)` \| (?P<function>.*?) \| (?P<branch>.*) \| (?P<reason>.*) \|")


class Branch(NamedTuple):
    """A branch that no test reaches."""

    file: str
    function: str
    """Qualified name; empty for code outside functions."""
    text: str
    """The lines as the page shows them."""

    @property
    def row(self) -> str:
        """The row of the page without its reason."""
        name = f"`{self.function}`" if self.function else ""
        return f"| `{self.file}` | {name} | {self.text} |"


def pure_files() -> list[str]:
    """Return the files of the contract, relative to the root."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["name"] == CONTRACT)
    ignored = [_pattern(each.partition(" ->")[0]) for each in contract["ignore_imports"]]
    files = [
        path.relative_to(ROOT).as_posix()
        for module in contract["source_modules"]
        for path in _python_files(ROOT / module.removeprefix("fairbed.").replace(".", "/"))
    ]
    return [file for file in files if not any(each.fullmatch(file) for each in ignored)]


def _python_files(module: Path) -> list[Path]:
    return sorted(module.rglob("*.py")) if module.is_dir() else [module.with_suffix(".py")]


def _pattern(module: str) -> re.Pattern[str]:
    """Return the pattern of the files of a module, in which `*` is any one name."""
    path = re.escape(module.removeprefix("fairbed.").replace(".", "/"))
    return re.compile(path.replace(r"\*", "[^/]+") + r"\.py")


def pytest_arguments(files: list[str]) -> list[str]:
    """Return the arguments of pytest: the tests of these files."""
    folders = {f"tests/{Path(file).parent}" for file in files if file.endswith("/__init__.py")}
    names = {name for name in folders if (ROOT / name).is_dir()} | set(OTHER_TESTS)
    outermost = [n for n in sorted(names) if not any(n.startswith(f"{each}/") for each in names)]
    return [*outermost, *(f"--ignore-glob={pattern}" for pattern in IGNORED_TESTS)]


def measure(files: list[str]) -> tuple[int, dict[str, Any]]:
    """Run the tests of these files; return the status of pytest and the report of coverage.py."""
    import coverage
    import pytest

    include = [str(ROOT / file) for file in files]
    measured = coverage.Coverage(data_file=None, config_file=False, branch=True, include=include)
    with measured.collect():
        status = pytest.main(
            ["-q", "-p", "no:randomly", "-n", "0", "--tier", "fast", *pytest_arguments(files)]
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        measured.json_report(outfile=str(path))
        return int(status), json.loads(path.read_text(encoding="utf-8"))


def missed(report: dict[str, Any], root: Path = ROOT) -> Iterator[Branch]:
    """Yield the branches of a report that no test reaches, by file."""
    for name, measured in sorted(report["files"].items()):
        path = (root / name).resolve()
        lines = path.read_text(encoding="utf-8").splitlines()
        for function, region in measured["functions"].items():
            for text in _missed_in(region, lines):
                yield Branch(path.relative_to(root).as_posix(), function, text)


def _missed_in(region: dict[str, Any], lines: list[str]) -> Iterator[str]:
    """Yield the branches of one function, and the first line of other code that never runs."""
    executed, missing = set(region["executed_lines"]), set(region["missing_lines"])
    if missing and not executed:
        yield NEVER
        return
    jumps = [(start, end) for start, end in region["missing_branches"] if start in executed]
    for start, end in jumps:
        yield f"{_code(lines, start)} to {_code(lines, end) if end > 0 else END}"
    reported, was_missing = {end for _, end in jumps}, False
    for line in sorted(executed | missing):
        is_missing = line in missing
        is_first = not was_missing or lines[line - 1].lstrip().startswith("except")
        if is_missing and is_first and line not in reported:
            yield f"{_code(lines, line)} {NEVER}"
        was_missing = is_missing


def _code(lines: list[str], number: int) -> str:
    text = lines[number - 1].strip().replace("|", "\\|")
    return f"`{text}`"


def listed() -> dict[Branch, str]:
    """Return the reasons of the page, by branch."""
    rows = (_ROW.fullmatch(line) for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines())
    return {
        Branch(row["file"], row["function"].strip("`"), row["branch"]): row["reason"].strip()
        for row in rows
        if row is not None
    }


def main() -> int:
    """Compare the branches that no test reaches with the page; return the exit status."""
    files = pure_files()
    status, report = measure(files)
    found, reasons = list(missed(report)), listed()
    unlisted = [branch for branch in found if not reasons.get(branch)]
    stale = [branch for branch in reasons if branch not in found]
    for branch in unlisted:
        print(
            f"{PAGE}: must have a reason for this branch, which no test reaches:\n{branch.row}  |"
        )
    for branch in stale:
        print(
            f"{PAGE}: must not have this row, which a test reaches or which is gone:\n{branch.row}"
        )
    print(f"{len(files)} pure files, {len(found)} branches that no test reaches")
    return 1 if status or unlisted or stale else 0


if __name__ == "__main__":
    sys.exit(main())
