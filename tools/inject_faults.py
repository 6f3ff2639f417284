"""Inject faults into the product, one at a time, and see which tests catch them.

`python tools/inject_faults.py [--tier fast|all] [--only ID ...] [--checkout DIR]`

A fault is a wrong behaviour, made by replacing one piece of text (`tools/faults.toml`). The tests
run in a copy of the checkout's tracked files; the checkout is only read. A fault is caught if a
test fails with it and passes without it. `DIR` may be the tree of 4e2efb5, where the folders were
not in `fairbed/` yet: then each fault's `before_` fields hold.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FAULTS = Path(__file__).with_name("faults.toml")

TESTS_TIMEOUT_S = 300.0
"""For the tests of one fault; pytest ends a single test after 120 s."""
END_TIMEOUT_S = 30.0
"""For processes of the tests to end after SIGKILL."""
GIT_TIMEOUT_S = 60.0

FAILED_TESTS = 1
"""Exit status of pytest: tests ran, and some failed."""

OLD_MTIME_S = 1_000_000_000
"""Python treats a file with the same time and size as unchanged, so each fault has its own time."""


class FaultError(Exception):
    """A fault cannot be injected, or its tests cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One wrong behaviour, and how to make it in one tree."""

    id: str
    behaviour: str
    """What is wrong, in one sentence."""
    file: str
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Files that are expected to have a test which fails."""

    def injected(self, text: str) -> str:
        """Return the text of the file with the fault.

        Raises:
            FaultError: The old text is not there exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise FaultError(f"{self.id}: {self.file} must hold the old text once, got {count}")
        return text.replace(self.old, self.new)


def read_faults(checkout: Path) -> list[Fault]:
    """Return the faults for a checkout."""
    is_before = not (checkout / "fairbed").exists()
    entries = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return [_fault(entry, is_before=is_before) for entry in entries]


def _fault(entry: dict[str, str | list[str]], *, is_before: bool) -> Fault:
    def text(name: str) -> str:
        value = entry.get(f"before_{name}", entry[name]) if is_before else entry[name]
        assert isinstance(value, str)
        return value

    tests = entry.get("before_tests", entry["tests"]) if is_before else entry["tests"]
    return Fault(
        id=str(entry["id"]),
        behaviour=str(entry["behaviour"]),
        file=text("file"),
        old=text("old"),
        new=text("new"),
        tests=tuple(tests),
    )


def copy_tracked(checkout: Path, copy: Path) -> None:
    """Copy the tracked files of a checkout; links stay links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=checkout,
        capture_output=True,
        check=True,
        timeout=GIT_TIMEOUT_S,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout / name, copy / name, follow_symlinks=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run of pytest returned."""

    status: int
    first_failure: str
    """Node of the first test that failed; empty if none did."""
    output: str


def run_tests(copy: Path, tests: Sequence[str], tier: str) -> Outcome:
    """Run tests in a copy until the first fails.

    Raises:
        FaultError: They took too long.
    """
    options = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider"]
    if (copy / "tests" / "tiers.py").exists():
        options += ["--tier", tier]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        encoding="utf-8",
    )
    try:
        output, _ = process.communicate(timeout=TESTS_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise FaultError(
            f"tests must end within {TESTS_TIMEOUT_S:g} s: {' '.join(tests)}"
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=END_TIMEOUT_S)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", output, re.MULTILINE)
    return Outcome(
        status=process.returncode,
        first_failure=failed.group(1) if failed else "",
        output=output,
    )


def first_catch(fault: Fault, copy: Path, number: int, tier: str) -> str:
    """Return the first test that fails with a fault and passes without it; empty for none.

    Raises:
        FaultError: The fault cannot be injected, or the tests cannot run.
    """
    path = copy / fault.file
    if not path.exists():
        raise FaultError(f"{fault.id}: {fault.file} must exist, got no such file")
    was, text = path.stat(), path.read_text(encoding="utf-8")
    path.write_text(fault.injected(text), encoding="utf-8")
    os.utime(path, (OLD_MTIME_S + number, OLD_MTIME_S + number))
    try:
        outcome = run_tests(copy, fault.tests, tier)
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    if outcome.status == 0:
        return ""
    if outcome.status != FAILED_TESTS or not outcome.first_failure:
        last = outcome.output.strip().splitlines()[-1:]
        raise FaultError(f"{fault.id}: tests must run, got {' '.join(last)}")
    if run_tests(copy, [outcome.first_failure], tier).status != 0:
        raise FaultError(f"{fault.id}: {outcome.first_failure} must pass without the fault")
    return outcome.first_failure


def main() -> int:
    """Print one row per fault; return 1 if one is missed, 2 if one cannot be tried."""
    parser = argparse.ArgumentParser(description="See which tests catch which injected faults.")
    parser.add_argument("--tier", choices=["fast", "all"], default="fast")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these faults")
    parser.add_argument("--checkout", type=Path, default=ROOT, metavar="DIR")
    options = parser.parse_args()
    faults = read_faults(options.checkout)
    unknown = set(options.only or ()) - {fault.id for fault in faults}
    if unknown:
        parser.error(f"--only: must be ids of {FAULTS.name}, got {' '.join(sorted(unknown))}")
    missed = errors = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy = Path(folder)
        copy_tracked(options.checkout, copy)
        for number, fault in enumerate(faults):
            if options.only and fault.id not in options.only:
                continue
            began = time.monotonic()
            try:
                test = first_catch(fault, copy, number, options.tier)
                word, missed = "caught" if test else "missed", missed + (not test)
                test = test or fault.behaviour
            except FaultError as exc:
                word, test, errors = "error", str(exc), errors + 1
            took_s = time.monotonic() - began
            print(f"{fault.id:<22} {word:<7} {took_s:5.1f} s  {test}", flush=True)
    return 2 if errors else int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
