"""The wheelhouse of a lab: wheels of the agent for devices without Internet.

`pip download` resolves for each pair of Python version and processor; nothing is compiled. The
wheel of Fairbed is built from a checkout, or comes from the package index. pip evaluates the
conditions of requirements (`python_version < '3.11'`) for the interpreter that runs it, not for the
one it downloads for, so the few packages that older Pythons need are downloaded for all.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import fairbed
from fairbed.device_agent.installed import agent_version
from fairbed.testbed.errors import LabError, RunError
from fairbed.testbed.lab.folder import Lab

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MACHINES = ("aarch64", "x86_64")

GLIBC = ("2_28", "2_27", "2_17")
"""Versions of manylinux that onnxruntime and numpy are published for; 2_17 is manylinux2014."""

BACKPORTS = ("exceptiongroup", "tomli", "typing_extensions")
"""Pure packages that only older Pythons need, of Fairbed and of anyio."""

Run: TypeAlias = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def run_pip(arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run pip of this environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, encoding="utf-8", errors="replace"
    )


def fill(
    lab: Lab,
    pythons: Sequence[str],
    machines: Sequence[str],
    source: Path | None,
    *,
    write: Callable[[str], object],
    run: Run = run_pip,
) -> list[Path]:
    """Download the wheels into the lab; return all wheels that it then has.

    Wheels of earlier calls stay, so that several calls add up.

    Args:
        lab: The lab.
        pythons: Versions such as `3.11`.
        machines: `aarch64`, `x86_64`.
        source: A checkout of Fairbed, or its wheel; None is the checkout that runs, or else the
            package index.
        write: Receives a line for each step.
        run: Runs pip with arguments.

    Raises:
        LabError: A version, a machine or the checkout cannot be used, or pip is not installed.
        RunError: pip did not find or download a package; nothing is added.
    """
    _check(pythons, machines)
    if importlib.util.find_spec("pip") is None:
        raise LabError(
            f"wheelhouse: pip must be installed, got none; run: {sys.executable} -m ensurepip, or "
            "with uv: uv pip install pip"
        )
    source = source or _checkout()
    with tempfile.TemporaryDirectory(dir=lab.folder, prefix="wheels-") as name:
        folder = Path(name)
        own = _own_wheel(source, folder, run)
        write(f"{own.name}: {'from the package index' if source is None else f'from {source}'}")
        pure = ["download", "--no-deps", "--only-binary=:all:", "-d", name]
        pure += ["--python-version", pythons[0], "--platform", "any", "--abi", "none"]
        _checked(run, [*pure, "pip", *BACKPORTS], "pip and the packages for older Pythons")
        for python in pythons:
            pinned = folder / f"constraints-{python}.txt"
            pinned.write_text(constraints(source, python), "utf-8")
            for machine in machines:
                arguments = download_arguments(python, machine, folder, pinned)
                _checked(run, [*arguments, str(own)], f"Python {python} on {machine}")
                write(f"Python {python} on {machine}: complete")
        for wheel in folder.glob("*.whl"):
            wheel.chmod(0o600)
            wheel.replace(lab.wheels / wheel.name)
    return sorted(lab.wheels.glob("*.whl"))


def download_arguments(python: str, machine: str, folder: Path, pinned: Path) -> list[str]:
    """Return the arguments of `pip download` for a Python version on a machine."""
    tag = f"cp{python.replace('.', '')}"
    platforms = [f"manylinux_{glibc}_{machine}" for glibc in GLIBC] + [f"manylinux2014_{machine}"]
    return [
        *("download", "--only-binary=:all:", "--implementation", "cp", "--python-version", python),
        *(word for abi in (tag, "abi3", "none") for word in ("--abi", abi)),
        *(word for platform in platforms for word in ("--platform", platform)),
        *("--find-links", str(folder), "-c", str(pinned), "-d", str(folder)),
    ]


_CONSTRAINT = re.compile(
    r"(?P<pin>[A-Za-z0-9._-]+==[^\s;]+)\s*"
    r"(;\s*python_version\s*(?P<relation><|>=)\s*[\"'](?P<limit>[\d.]+)[\"'])?"
)


def constraints(source: Path | None, python: str) -> str:
    """Return the pins of a checkout for a Python version; empty without a checkout."""
    path = None if source is None else source / "constraints.txt"
    if path is None or not path.exists():
        return ""
    pins = []
    for line in path.read_text("utf-8").splitlines():
        found = _CONSTRAINT.fullmatch(line.strip())
        if found is None:
            continue
        is_below = found["limit"] is not None and _number(python) < _number(found["limit"])
        if found["limit"] is None or is_below == (found["relation"] == "<"):
            pins.append(found["pin"])
    return "".join(f"{pin}\n" for pin in pins)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _check(pythons: Sequence[str], machines: Sequence[str]) -> None:
    for python in pythons:
        if re.fullmatch(r"3\.\d{1,2}", python) is None or _number(python) < (3, 10):
            raise LabError(f"--python: must be 3.10 or newer, as in 3.11, got {python!r}")
    for machine in machines:
        if machine not in MACHINES:
            raise LabError(
                f"--platform: must be {' or '.join(MACHINES)}, got {machine!r}; onnxruntime has no "
                "package for others"
            )


def _checkout() -> Path | None:
    """Return the checkout that this Fairbed runs from; None if it is an installed package."""
    folder = Path(fairbed.__file__).parents[1]
    return folder if (folder / "pyproject.toml").is_file() else None


def _own_wheel(source: Path | None, folder: Path, run: Run) -> Path:
    if source is None:
        what = f"fairbed=={agent_version()}"
        try:
            _checked(
                run, ["download", "--no-deps", "--only-binary=:all:", "-d", str(folder), what], what
            )
        except RunError as exc:
            raise RunError(
                f"{exc}; this version may be on no package index: give its wheel with --source "
                "FILE.whl, or a checkout with --source DIR"
            ) from exc
    elif source.suffix == ".whl":
        _check_wheel(source)
        shutil.copyfile(source, folder / source.name)
    elif not (source / "pyproject.toml").is_file():
        raise LabError(
            f"--source: must be a checkout of Fairbed, or its wheel, got {source} without a project"
        )
    else:
        arguments = ["wheel", "--no-deps", "-w", str(folder), str(source)]
        if importlib.util.find_spec("hatchling") is not None:
            arguments.insert(1, "--no-build-isolation")
        _checked(run, arguments, f"the wheel of {source}")
    return next(folder.glob("fairbed-*.whl"))


def _check_wheel(path: Path) -> None:
    """Check a wheel of Fairbed that the user names.

    Raises:
        LabError: It is none of this version, which the script of enrolment installs.
    """
    wanted = f"fairbed-{agent_version()}-"
    if not path.is_file():
        raise LabError(f"--source: must be a wheel of Fairbed, got no file {path}")
    if not path.name.startswith(wanted):
        raise LabError(
            f"--source: must be a wheel of this version, {wanted}py3-none-any.whl, got {path.name}"
        )


def _checked(run: Run, arguments: Sequence[str], what: str) -> None:
    done = run(arguments)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason"]
        reason = next((line for line in lines if "No matching distribution" in line), lines[-1])
        raise RunError(f"wheelhouse: {what}: pip must find all wheels, got: {reason.strip()}")
