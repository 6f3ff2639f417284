"""Steps that run on a root of Debian: what kernel.py, arm64.py and pythons.py share.

What this machine lacks, a tool or a right, is a reason to skip: one line and status 0. A root that
cannot be built although its tools are there, and a step that fails, end a recipe with status 1.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fairbed.testbed.host.termination import unwound_by_signals

ROOT = Path(__file__).resolve().parent.parent

BUILD_S = 1200.0
"""Longest installation of packages, and building of a root."""
STOP_S = 20.0
"""Longest wait for a program after each signal that ends it."""

Machine = TypeVar("Machine")


class StepError(Exception):
    """A step, or the building of its root, failed; one line."""


class Unavailable(Exception):
    """This machine cannot do it; one line."""


def new_parser(recipe: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of a recipe's options."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    default = Path(tempfile.gettempdir(), recipe.replace("test", "fairbed", 1))
    parser.add_argument("--folder", type=Path, default=default, help=f"default {default}")
    return parser


def run_recipe(
    recipe: str,
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    prepare: Callable[[argparse.Namespace], Machine],
    steps: Mapping[str, Callable[[Machine], str]],
    *,
    noun: str = "step",
) -> int:
    """Run the steps that the command line names, or all; print the result of each.

    Args:
        recipe: Name in the Justfile.
        parser: Of its options; the names of steps are added.
        arguments: The command line; None is that of this process.
        prepare: Returns the machine of the steps; its options are absolute paths.
        steps: Each returns its result, or raises `StepError` or `Unavailable`.
        noun: What a step is called.

    Returns:
        Exit status: 1 if a step failed or the machine could not be built, also if others passed.
    """
    parser.add_argument("steps", nargs="*", metavar=noun.upper(), help=", ".join(steps))
    args = parser.parse_args(arguments)
    for name in args.steps:
        if name not in steps:
            parser.error(f"a {noun} must be one of {', '.join(steps)}; got {name}")
    args.folder = args.folder.absolute()
    with unwound_by_signals():  # ends what a step started
        try:
            machine = prepare(args)
        except Unavailable as exc:
            print(f"{recipe}: skipped, {exc}")
            return 0
        except StepError as exc:
            print(f"{recipe}: FAILED: {exc}")
            return 1
        return _run_steps(recipe, machine, {name: steps[name] for name in args.steps or steps})


def _run_steps(recipe: str, machine: Machine, steps: Mapping[str, Callable[[Machine], str]]) -> int:
    """Run steps and print their results; return the exit status."""
    results: dict[str, str] = {}
    has_failed = False
    for name, step in steps.items():
        print(f"{recipe}: {name}", flush=True)
        started_s = time.monotonic()
        try:
            result = step(machine)
        except Unavailable as exc:
            result = f"skipped, {exc}"
        except StepError as exc:
            result = f"FAILED: {exc}"
            has_failed = True
        results[name] = f"{result} ({time.monotonic() - started_s:.0f} s)"
    for name, result in results.items():
        print(f"{recipe}: {name}: {result}")
    return int(has_failed)


def require_machine(recipe: str) -> None:
    """Check that this process may build and run roots of x86-64.

    Raises:
        Unavailable: It is on another machine, or not root.
    """
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise Unavailable(f"needs Linux on x86-64, got {sys.platform} on {os.uname().machine}")
    if os.geteuid() != 0:
        raise Unavailable(f"needs root to make a root file system; type: sudo ./just {recipe}")


def require_programs(packages: Mapping[str, str]) -> None:
    """Install the programs that are missing.

    Args:
        packages: Debian's package of each program.

    Raises:
        Unavailable: One is missing and cannot be installed.
    """
    missing = [package for program, package in packages.items() if shutil.which(program) is None]
    if not missing:
        return
    words = " and ".join(missing)
    if shutil.which("apt-get") is None:
        raise Unavailable(f"needs {words} of Debian")
    install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
    environ = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        status = call(["apt-get", "update", "-q"]) or call(install, environ=environ)
    except StepError as exc:
        raise Unavailable(f"needs {words}: {exc}") from exc
    if status:
        raise Unavailable(f"needs {words}, which apt-get cannot install")


def make_folder(folder: Path) -> None:
    """Make the folder of the roots, for this user only.

    Raises:
        Unavailable: It belongs to another user: root must not run what others can change.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise Unavailable(f"{folder}: must belong to this user; name another with --folder")


def keep_root(
    root: Path,
    suite: str,
    packages: Sequence[str],
    *options: str,
    finish: Callable[[Path], object] = lambda root: None,
) -> None:
    """Make a root, unless one with these packages is there.

    A file beside a root names its packages, so one that was not finished is made again.

    Args:
        root: The folder.
        suite: Debian's name of the release.
        packages: In addition to those of the variant.
        options: Of mmdebstrap.
        finish: Called with a root that was just made.

    Raises:
        StepError: It cannot be built.
    """
    stamp, wanted = root.with_name(f"{root.name}.txt"), " ".join(packages)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    stamp.unlink(missing_ok=True)
    make_root(root, suite, packages, *options)
    finish(root)
    stamp.write_text(wanted, encoding="utf-8")


def make_root(root: Path, suite: str, packages: Sequence[str], *options: str) -> None:
    """Make a root, in place of what is there.

    Raises:
        StepError: It cannot be built.
    """
    shutil.rmtree(root, ignore_errors=True)
    build = ["mmdebstrap", "--quiet", "--mode=root", f"--include={','.join(packages)}", *options]
    if call([*build, suite, str(root)]):
        raise StepError(f"mmdebstrap cannot make a root of {suite}, see above")


def find_uv() -> str:
    """Return the path of uv, installed if it is not there.

    Raises:
        StepError: It cannot be installed.
    """
    venv = ROOT / ".venv-supply"
    uv = shutil.which("uv") or str(venv / "bin" / "uv")
    if not Path(uv).exists() and call(["sh", "tools/setup.sh", "supply", venv.name], cwd=ROOT):
        raise StepError("uv cannot be installed, see above")
    return uv


def call(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = BUILD_S,
) -> int:
    """Run a program with its output on the terminal; return its exit status.

    Raises:
        StepError: It does not end in time; it is ended.
    """
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=os.environ | (environ or {}),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            end(process)
            raise StepError(f"{command[0]}: must end within {timeout_s:.0f} s") from None
        except BaseException:
            end(process)
            raise


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program and its children, which have a session of their own: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
