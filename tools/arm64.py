"""Test Fairbed for 64-bit ARM on an x86-64 machine: python tools/arm64.py [STEP ...].

Steps, all by default, in this order:

- `wheels`: resolve the packages of a device for Python 3.10 to 3.13 without a compiler, and weigh
  their download;
- `tests`: the tests of wire, agent and profiles;
- `device`: the line of `fairbed enroll` installs an agent from the wheelhouse of a lab, without the
  package index, and enrols it; it plays rounds with a coordinator of this machine, over mosquitto.

All but the first run in a root of ARM64 (`--suite`: Debian 12 or 13) under qemu-user: its programs
are translated one instruction after the other, but the kernel, its clocks and its network are those
of this machine. So this finds what is wrong with wheels, byte order, alignment, memory order and
instructions of the architecture; it does not measure how fast a board is.

Root and emulator are kept in a temporary folder (`--folder`); a second run builds neither. Needs
root, Debian's package archive and a package index. Where a tool is missing it prints one line and
ends with status 0; a root that cannot be built, and a step that fails, end it with status 1.
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.build_dist import build  # noqa: E402  # this file is run as a program
from tools.roots import (  # noqa: E402
    StepError,
    Unavailable,
    call,
    end,
    find_uv,
    keep_root,
    make_folder,
    make_root,
    new_parser,
    require_machine,
    require_programs,
    run_recipe,
)

RECIPE = "test-arm64"

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MAX_DOWNLOAD_BYTES = 60_000_000
"""Of all wheels of a device, Fairbed's own included."""

PLATFORMS = tuple(f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 26, 17))
"""What a device with glibc 2.28 accepts, of what our dependencies publish."""

SUITES = {"bookworm": "3.11", "trixie": "3.13"}
"""Debian of the root and its Python, as on Raspberry Pis; the first is the default."""
PACKAGES = (
    *("base-files", "ca-certificates", "coreutils", "curl", "dash", "findutils", "gawk", "grep"),
    *("hostname", "libc-bin", "libstdc++6", "mosquitto", "openssl", "procps", "python3"),
    *("python3-venv", "sed"),
)
QEMU_SUITE = "trixie"
"""Debian's first release whose qemu-user runs onnxruntime; bookworm's 7.2 crashes at its import."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

CPU = "cortex-a72"
"""The processor of a Raspberry Pi 4."""

TESTS = ("tests/wire", "tests/device_agent", "tests/profiles")
DESELECTED = {
    "tests/device_agent/engines/test_onnx.py::test_the_telemetry_of_the_runtime_is_disabled": (
        "counts the threads of a process, and qemu-user adds one"
    ),
    "tests/device_agent/test_process.py::"
    "test_needs_little_memory_before_its_first_task_and_stops_at_a_signal": (
        "bounds the memory of a process, and qemu-user keeps translated code in it"
    ),
}
"""Tests that the emulation itself fails, and why."""

NAME, ROUNDS = "emulated-pi", 3
EXPERIMENT = f"""
name = "arm64"
rounds = {ROUNDS}
[data]
dataset = "digits"
partition = {{ kind = "iid" }}
[model]
name = "cnn"
[training]
epochs = 1
batch_size = 50
[selection]
per_round = 1
beta = 0.5
[round]
min_devices = 1
deadline_s = 300.0
[broker]
url = "lab"
"""

TESTS_S, AGAIN_S, DEVICE_S = 900.0, 240.0, 600.0
"""Longest run of all tests, of those that failed again, and command of the last step, such as the
installation or all rounds."""
START_S = 60.0

MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
"""How a program of ARM64 begins, and which bits of it count; qemu's own values."""

ENTER = """
set -e
mkdir -p "$1"/dev "$1"/proc "$1"/sys "$1"/source "$1"/data "$2"/binfmt
mount -t binfmt_misc binfmt_misc "$2"/binfmt
printf '%s' "$5" >"$2"/binfmt/register
for folder in dev proc sys; do mount --rbind /$folder "$1"/$folder; done
mount --bind "$3" "$1"/source
mount -o remount,bind,ro "$1"/source
[ -z "$4" ] || mount --bind -o ro "$4" "$1"/data
root=$1
shift 5
exec chroot "$root" /usr/bin/env -i "$@"
"""
"""Registers the emulator in a user namespace of its own, so nothing is registered outside; then
enters the root. Arguments: root, work folder, checkout, data or nothing,
the line to register, then a command."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An ARM64 root and the means to run its programs."""

    folder: Path
    """Holds the emulator, the roots, wheels and logs."""
    suite: str
    """Debian's name of the release."""

    @property
    def root(self) -> Path:
        """The root of the emulated machine."""
        return self.folder / f"root-{self.suite}"

    def command(self, *command: str, environ: Mapping[str, str] | None = None) -> list[str]:
        """Return the command line that runs a program of the root."""
        inside = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "QEMU_CPU": CPU,
            **(environ or {}),
        }
        data = os.environ.get("FAIRBED_DATA", "")
        emulator = f":aarch64:M::{MAGIC}:{MASK}:{self.folder / 'qemu-aarch64'}:F"
        places = [str(self.root), str(self.folder), str(ROOT), data, emulator]
        variables = [f"{key}={value}" for key, value in inside.items()]
        unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ENTER, "enter"]
        return [*unshare, *places, *variables, *command]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 1 if one failed."""
    parser = new_parser(RECIPE, __doc__)
    parser.add_argument("--suite", choices=SUITES, default=next(iter(SUITES)), help="Debian inside")
    return run_recipe(RECIPE, parser, arguments, prepare, STEPS)


def prepare(args: argparse.Namespace) -> Machine:
    """Return a machine, with its emulator and its root.

    Raises:
        Unavailable: It cannot be used on this machine.
        StepError: Emulator or root cannot be built.
    """
    require_machine(RECIPE)
    if not KEYRING.exists():
        raise Unavailable(f"needs Debian, for its packages of ARM64: {KEYRING} does not exist")
    require_programs({"mmdebstrap": "mmdebstrap"})
    make_folder(args.folder)
    machine = Machine(args.folder, args.suite)
    emulator = args.folder / "qemu-aarch64"
    if not emulator.exists():
        scratch = args.folder / "qemu"
        make_root(scratch, QEMU_SUITE, ("qemu-user",), *_EXTRACTED, "--architectures=amd64")
        (scratch / "usr" / "bin" / emulator.name).rename(emulator)
        shutil.rmtree(scratch)
    options = (*_EXTRACTED, "--architectures=arm64")
    keep_root(machine.root, args.suite, PACKAGES, *options, finish=_finish)
    (machine.root / "etc" / "hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")
    done = subprocess.run(
        machine.command("uname", "-m"),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.stdout.strip() != "aarch64":
        raise Unavailable(
            "needs binfmt_misc in user namespaces (Linux 6.7 or newer), got: "
            + " ".join((done.stderr or done.stdout).split())
        )
    return machine


_EXTRACTED = ("--variant=extract",)
"""Runs no script of a package: they are for another architecture."""


def _finish(root: Path) -> None:
    """Make what the packages' own scripts would make; none has run."""
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n", encoding="utf-8")
    (root / "etc" / "group").write_text("root:x:0:\n", encoding="utf-8")
    (root / "usr" / "bin" / "awk").symlink_to("gawk")
    certificates = sorted((root / "usr" / "share" / "ca-certificates" / "mozilla").glob("*.crt"))
    bundle = root / "etc" / "ssl" / "certs" / "ca-certificates.crt"
    bundle.write_bytes(b"".join(certificate.read_bytes() for certificate in certificates))


# The wheels


def weigh_wheels(machine: Machine) -> str:
    """Resolve and download the wheels of a device for each Python; return their sizes."""
    own = build(ROOT, machine.folder, "wheel").stat().st_size
    sizes: dict[str, int] = {}
    for python in PYTHONS:
        folder = machine.folder / "wheels" / python
        shutil.rmtree(folder, ignore_errors=True)
        requirements = machine.folder / f"requirements-{python}.txt"
        resolve(python, requirements, "pyproject.toml")
        platforms = [f"--platform={platform}" for platform in PLATFORMS]
        tags = ["--only-binary=:all:", f"--python-version={python}", *platforms]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *tags]
        if call([*pip, "-r", str(requirements), "-d", str(folder)]):
            raise StepError(f"a wheel for Python {python} cannot be downloaded, see above")
        wheels = sorted(folder.iterdir())
        sizes[python] = own + sum(wheel.stat().st_size for wheel in wheels)
        print(f"Python {python}: {len(wheels) + 1} wheels, {sizes[python] / 1e6:.1f} MB")
    return check_sizes(sizes)


def check_sizes(sizes: Mapping[str, int]) -> str:
    """Return the sizes as text.

    Args:
        sizes: Bytes of all wheels for each Python.

    Raises:
        StepError: A download is too large.
    """
    text = ", ".join(f"{python} {size / 1e6:.1f} MB" for python, size in sizes.items())
    if max(sizes.values()) > MAX_DOWNLOAD_BYTES:
        raise StepError(f"a download must be at most {MAX_DOWNLOAD_BYTES / 1e6:.0f} MB, got {text}")
    return f"{text}, at most {MAX_DOWNLOAD_BYTES / 1e6:.0f} MB"


def resolve(python: str, into: Path, *sources: str) -> None:
    """Write the versions that a device with this Python gets, as requirements.

    uv, as pip reads the markers of the Python that it runs on, not of the one it resolves for.
    """
    options = ["--only-binary=:all:", f"--python-version={python}"]
    options += ["--python-platform=aarch64-manylinux_2_28", "-c", "constraints.txt"]
    if call([find_uv(), "pip", "compile", "-q", *options, *sources, "-o", str(into)], cwd=ROOT):
        raise StepError(f"the packages for Python {python} cannot be resolved, see above")


# The tests


def run_tests(machine: Machine) -> str:
    """Run tests in the root; return how many passed."""
    install(machine)
    for test, reason in DESELECTED.items():
        print(f"not run: {test}: {reason}")
    first = _pytest(machine, ["-n", str(min(os.cpu_count() or 1, 8)), *TESTS], TESTS_S)
    if not first.failed:
        return f"{first}, {len(DESELECTED)} not run because of the emulation"
    print("test-arm64: tests that failed, again, one at a time", flush=True)
    again = _pytest(machine, ["--last-failed", "--last-failed-no-failures=none", *TESTS], AGAIN_S)
    if again.failed or again.passed != first.failed:
        raise StepError(f"{first}; run again: {again}")
    return (
        f"{first}, which passed when they ran alone: they have limits in seconds; "
        f"{len(DESELECTED)} not run because of the emulation"
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Results of tests."""

    passed: int
    failed: int
    skipped: int

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def _pytest(machine: Machine, arguments: Sequence[str], timeout_s: float) -> Counts:
    report = machine.root / "tmp" / "tests.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "--tier=fast", "-o", "cache_dir=/tmp/pytest-cache"]
    options += ["--junit-xml=/tmp/tests.xml", *(f"--deselect={test}" for test in DESELECTED)]
    pytest = ["python3", "-m", "pytest", *options, *arguments]
    command = machine.command("env", "-C", "/source", *pytest, environ=site_environ())
    call(command, timeout_s=timeout_s)
    if not report.exists():
        raise StepError("pytest did not end, see above")
    return read_counts(report.read_text(encoding="utf-8"))


def read_counts(report: str) -> Counts:
    """Return the counts of a report of pytest in JUnit's format."""
    found = {key: int(number) for key, number in _COUNT.findall(report.partition("<testcase")[0])}
    failed, skipped = found["errors"] + found["failures"], found["skipped"]
    return Counts(found["tests"] - failed - skipped, failed, skipped)


_COUNT = re.compile(r'\b(tests|errors|failures|skipped)="(\d+)"')


def install(machine: Machine) -> None:
    """Put the packages of a device, the tools of the tests and Fairbed's wheel into the root."""
    site = machine.root / "site"
    shutil.rmtree(site, ignore_errors=True)
    wheel = build(ROOT, machine.folder, "wheel")
    platform = [
        "--python-platform=aarch64-manylinux_2_28",
        f"--python-version={SUITES[machine.suite]}",
    ]
    pip = [find_uv(), "pip", "install", "-q", "--target", str(site), "--only-binary=:all:"]
    pip += [*platform, "-c", "constraints.txt", str(wheel), "--group", "test"]
    if call(pip, cwd=ROOT):
        raise StepError("the packages cannot be installed into the root, see above")


def site_environ() -> dict[str, str]:
    """Return variables for a program of the root that uses `install`'s packages."""
    environ = {"PYTHONPATH": "/site", "PYTHONDONTWRITEBYTECODE": "1"}
    if "FAIRBED_DATA" in os.environ:
        environ["FAIRBED_DATA"] = "/data"
    return environ


# A device


def play_device(machine: Machine) -> str:
    """Enrol an agent in the root at a lab here; return what a coordinator here recorded of it."""
    if shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        raise StepError("needs mosquitto; type: apt-get install mosquitto")
    folder = machine.folder / "device"
    for old in (folder, machine.root / "opt" / "fairbed", machine.root / "root" / ".config"):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir()
    (folder / "arm64.toml").write_text(EXPERIMENT, encoding="utf-8")
    fairbed = [sys.executable, "-m", "fairbed.testbed.cli.main"]
    ports = [f"--port={_free_port()}", f"--enrol-port={_free_port()}"]
    init = [*fairbed, "lab", "init", "lab", "--broker=mosquitto", "--address=127.0.0.1", *ports]
    machine_of_wheels = ["--platform=aarch64", f"--python={SUITES[machine.suite]}"]
    _output(init, folder, "init")
    _output([*fairbed, "lab", "wheelhouse", *machine_of_wheels], folder, "wheelhouse")
    with _started([*fairbed, "lab", "up"], folder, "lab"):
        _await_line(folder / "lab.out", "is up")
        (invitation,) = json.loads(_output([*fairbed, "enroll", NAME, "--json"], folder, "enroll"))
        no_index = {"PIP_INDEX_URL": "https://127.0.0.1:9/"}
        line = machine.command("sh", "-c", invitation["line"], environ=no_index)
        output = _output(line, folder, "install")
        print(output, end="")
        found = re.search(r"start the agent with: (.*)", output)
        if found is None:
            raise StepError(f"the line must print how to start the agent, see {folder}")
        coordinator = [*fairbed, "coordinator", "arm64.toml", "--out=run", "--headless", "--json"]
        with _started(machine.command(*found[1].split()), folder, "agent"):
            summary = json.loads(_output(coordinator, folder, "coordinator"))
            print(_output([*fairbed, "devices"], folder, "devices"), end="")
            doctor = machine.command("/opt/fairbed/venv/bin/device-agent", "doctor")
            print(_output(doctor, folder, "doctor"), end="")
    return check_summary(summary)


def _await_line(path: Path, text: str) -> None:
    deadline = time.monotonic() + START_S
    while text not in path.read_text(encoding="utf-8"):
        if time.monotonic() > deadline:
            raise StepError(f"{path} must have {text!r} within {START_S:.0f} s")
        time.sleep(0.1)


def _output(command: Sequence[str], folder: Path, name: str) -> str:
    """Run a program; return its output.

    Raises:
        StepError: It fails, or takes too long.
    """
    with _started(command, folder, name) as process:
        try:
            status = process.wait(DEVICE_S)
        except subprocess.TimeoutExpired:
            raise StepError(f"{name}: must end within {DEVICE_S:.0f} s, see {folder}") from None
    if status:
        log = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip()
        last = log.splitlines()[-1] if log else "no message"
        raise StepError(f"{name} ended with status {status}, see {folder}: {last}")
    return (folder / f"{name}.out").read_text(encoding="utf-8")


def check_summary(summary: Mapping[str, Any]) -> str:
    """Return what a run recorded.

    Raises:
        StepError: A round was void, or an exchange had no reliable time.
    """
    rounds, exchange = summary["rounds_completed"], summary["exchange"]
    text = f"{rounds} rounds, {exchange['count']} exchanges, {exchange['invalid']} untimed"
    if (rounds, summary["rounds_void"], exchange["count"], exchange["invalid"]) != (
        *(ROUNDS, 0),
        *(ROUNDS, 0),
    ):
        raise StepError(f"must be {ROUNDS} rounds with a timed exchange each, got {text}")
    accuracy = summary["accuracy"]["mean"]
    return f"{text}, {summary['virtual_s']:.1f} s in rounds, accuracy {accuracy:.2f}"


@contextmanager
def _started(command: Sequence[str], folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the duration of a block; its output is in NAME.out and NAME.log."""
    environ = {
        "PATH": f"{os.environ['PATH']}:/usr/sbin",
        "PYTHONPATH": str(ROOT),
        "FAIRBED_LAB": str(folder / "lab"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


STEPS: dict[str, Callable[[Machine], str]] = {
    "wheels": weigh_wheels,
    "tests": run_tests,
    "device": play_device,
}


if __name__ == "__main__":
    os.nice(19)
    sys.exit(main())
