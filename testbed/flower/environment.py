"""The interpreter of a Flower app: found, checked, or made.

Flower needs other versions of packages than Fairbed (rich < 15, protobuf < 7, packaging < 26), so
it is in an environment of its own.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fairbed.device_agent.config as agent_config
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.flower.reading import (
    DEFAULT_REQUIREMENT,
    FlowerApp,
    check_version,
)
from fairbed.wire.printable import one_line

OLDEST_PYTHON = (3, 10)

PROBE_S, INSTALL_S = 60.0, 3600.0
"""Longest time of one look at an interpreter, and of an installation; seconds."""

_PROBE = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
names = sys.argv[1:]
versions = {name: version(name) for name in names}
print(json.dumps({"python": list(sys.version_info[:3]), "versions": versions}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter in which an app can run."""

    path: Path
    python: str
    """Version of Python."""
    flwr: str
    """Version of Flower."""
    missing: tuple[str, ...] = ()
    """Packages that the app names, and that are not there: an import of one fails."""
    remark: str = ""
    """What to know about its version of Flower; empty for nothing."""


def environment_of(app: FlowerApp | None) -> Path:
    """Return the folder of the environment that `fairbed flower setup` makes for an app."""
    needed = sorted(app.dependencies if app is not None else ())
    digest = hashlib.sha256("\n".join(needed).encode()).hexdigest()[:8]
    name = "".join(c if c.isalnum() else "-" for c in (app.name if app else "flwr"))[:40]
    return agent_config.default_state_folder().parent / "flower" / f"{name}-{digest}"


def find_interpreter(app: FlowerApp, named: str | None = None) -> Interpreter:
    """Return the interpreter of an app, after a look at it.

    Args:
        app: The app.
        named: `[flower] python`; None takes the environment that `fairbed flower setup` made.

    Raises:
        UsageError: There is none, or it cannot run the app; the message has what to do.
    """
    made = environment_of(app) / "bin" / "python"
    path = Path(shutil.which(named) or named).expanduser() if named else made
    if not path.is_file():
        where = "flower.python" if named else "flower"
        raise UsageError(
            f"{where}: must be a Python interpreter with flwr, got "
            f"{path if named else 'none'}; make one with: fairbed flower setup {app.folder}"
        )
    return look_at(path, app)


def look_at(path: Path, app: FlowerApp) -> Interpreter:
    """Return what is in an interpreter; packages that the app lacks are named, not refused.

    Raises:
        UsageError: It does not start, is too old, or has no Flower that fits.
    """
    names = list(dict.fromkeys(["flwr", "flwr-nightly", *filter(None, app.packages)]))
    try:
        ended = subprocess.run(
            [str(path), "-c", _PROBE, *names],
            capture_output=True,
            timeout=PROBE_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
        found = json.loads(ended.stdout)
        python, versions = tuple(found["python"]), dict(found["versions"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as exc:
        why = exc if isinstance(exc, OSError) else "no answer"
        raise UsageError(
            f"flower.python: {path} must be a Python interpreter, got {one_line(str(why), 100)}"
        ) from exc
    version = ".".join(map(str, python))
    if python[:2] < OLDEST_PYTHON:
        raise UsageError(f"flower.python: {path} must be Python 3.10 or later, got {version}")
    flwr = versions.get("flwr") or versions.get("flwr-nightly")
    if flwr is None:
        raise UsageError(
            f"flower.python: {path} must have flwr, got none; run: {path} -m pip install "
            f"'{app.requirement}', or: fairbed flower setup {app.folder}"
        )
    remark = check_version(app, flwr)
    missing = tuple(n for n, v in versions.items() if v is None and not n.startswith("flwr"))
    return Interpreter(path, version, flwr, missing, remark)


def set_up(
    app: FlowerApp | None, python: str | None = None, note: Callable[[str], None] | None = None
) -> Path:
    """Make, or complete, the environment of an app; return its interpreter.

    Args:
        app: The app; None makes an environment with flwr and numpy alone.
        python: Interpreter from which it is made; by default that of this process.
        note: Receives each command before it runs.

    Raises:
        RunError: A command failed; the message has its last line.
    """
    folder = environment_of(app)
    made = folder / "bin" / "python"
    needed = [each for each in (app.dependencies if app else ()) if each]
    if not any(each.startswith("flwr") for each in needed):
        needed.append(DEFAULT_REQUIREMENT)
    commands = [[str(made), "-m", "pip", "install", "--quiet", *needed, "numpy"]]
    if not made.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        commands.insert(0, [python or sys.executable, "-m", "venv", str(folder)])
    for command in commands:
        if note is not None:
            note(" ".join(command))
        _run(command)
    return made


def _run(command: list[str]) -> None:
    try:
        ended = subprocess.run(
            command, capture_output=True, timeout=INSTALL_S, check=False, env=_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise RunError(
            f"flower setup: {command[0]} must run, got {one_line(str(exc), 200)}"
        ) from exc
    if ended.returncode:
        lines = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip().splitlines()
        last = next((x for x in lines if x.startswith("ERROR")), lines[-1] if lines else "nothing")
        raise RunError(
            f"flower setup: {' '.join(command[1:4])} failed: {one_line(last, 300)}; correct it and "
            "run the command again"
        )


def _environment() -> dict[str, str]:
    """Return the variables of another interpreter: the path of this one is not its own."""
    own = ("PYTHONPATH", "PYTHONHOME")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def line_for_experiment(python: Path) -> str:
    """Return the line of an experiment file that names an interpreter."""
    return f"[flower]\npython = {json.dumps(str(python))}"
