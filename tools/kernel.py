"""Test Fairbed on a kernel with cgroup v2 and netem, under systemd: tools/kernel.py [STEP ...].

The machine that most users have, on one that has neither. The kernel is Debian's User Mode Linux,
which runs as an ordinary process and boots in seconds; its root is a Debian with systemd, read-only
below a layer in memory. The checkout and its .venv are seen inside at their own paths. Steps, all
by default, in this order:

- `doctor`: `fairbed doctor` finds every backend and broker usable, in a service to which a subtree
  of control groups is delegated, and in a service without one;
- `user`: a user without privileges, after a login, learns what works and what does not;
- `run`: the quickstart with three devices, by namespaces, containers and processes;
- `tests`: the tests of the backends and of `fairbed shape`;
- `fidelity`: delay, jitter, loss, outages, rates and traces of emulated links.

The root is kept in a folder (`--folder`); a second run does not build it. The kernel has one
processor, no PSI, and clocks of processor time that tick every 10 ms: it shows whether a thing
works, not how exact the processor's share is. Needs root, Debian 12 or newer on x86-64 and its
package archive. Where something is missing it prints one line and ends with status 0; a step that
fails ends it with status 1.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

SUITE = "bookworm"
"""Debian of the root; programs of .venv need its glibc or an older one."""
PACKAGES = (
    *("bash", "crun", "dbus", "iproute2", "iputils-ping", "kmod", "libpam-systemd", "libstdc++6"),
    *("login", "mosquitto", "nftables", "podman", "procps", "python3", "systemd"),
    *("systemd-sysv", "tmux", "util-linux"),
)
TOOLS = {"linux.uml": "user-mode-linux", "mmdebstrap": "mmdebstrap"}
"""Programs of this machine, and the packages that have them."""
MODULES = Path("/usr/lib/uml/modules")

MEMORY = "4G"
USER = "tester"

BUILD_S = 300.0
"""Longest installation of a package, and building of the root."""
BOOT_S = 60.0
TESTS_S = 2400.0
"""Longest run of the tests: 400 s on a quiet machine."""

PRE_INIT = r"""#!/bin/sh
# The first program of the kernel: puts a layer over the root, which is read-only.
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
release=$(uname -r)
mount -t hostfs none /mnt -o "$modules/$release"
insmod /mnt/kernel/fs/overlayfs/overlay.ko
umount /mnt
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
mkdir -p lib/modules/"$release" mnt/inside mnt/old var/lib/containers home
mount -t hostfs none lib/modules/"$release" -o "$modules/$release"
mount -t hostfs none mnt/inside -o "$folder"
mount -t tmpfs tmpfs var/lib/containers # an overlay cannot be the layer of another one
chmod 755 root
while read -r place; do
    mkdir -p ."$place"
    mount -t hostfs none ."$place" -o "$place"
done <mnt/inside/places
cat >etc/systemd/system/step.service <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
ExecStart=/bin/sh /mnt/inside/step.sh
UNIT
ln -s ../step.service etc/systemd/system/multi-user.target.wants/step.service
pivot_root . mnt/old
exec chroot . /lib/systemd/systemd
"""

STEP = r"""
modprobe ipv6
modprobe tun
useradd --create-home {user}
{command}
echo "STATUS $?"
python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)'
"""
"""Waits for a command, and halts. The status of a kernel is always 0, so that of the command is a
line of the output."""

SERVICE = "systemd-run --quiet --wait --pipe --collect"
DELEGATED = f"{SERVICE} -p Delegate=yes"
LOGIN = f"{SERVICE} -p PAMName=login -p User={USER}"

TESTS = ("tests/testbed/backends", "tests/testbed/shape")
_ACCURACY = "tests/testbed/backends/network/test_accuracy.py"
DESELECTED = {
    f"{_ACCURACY}::test_a_rate_that_changes_ten_times_a_second_delivers_its_volume": (
        "needs timers that are not late"
    ),
    f"{_ACCURACY}::test_a_message_takes_its_size_divided_by_the_rate[50000000.0-down]": (
        "needs timers that are not late"
    ),
}
"""Tests that the kernel itself fails, and why."""

BACKENDS = ("namespace", "container", "process")
DEVICES, ROUNDS = 3, 3
EXPERIMENT = f"""
name = "kernel"
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
per_round = {DEVICES}
beta = 0.5
[emulation]
dilation = "auto"
[[fleet]]
profile = "raspberry-pi-4b"
count = {DEVICES}
"""

QUANTITIES = "goodput,delay,loss,outage,trace"
MOST_MBPS = 25.0
"""Above, the timers of this kernel are late."""


class StepError(Exception):
    """A step failed; one line."""


class Unavailable(Exception):
    """This machine cannot do it; one line."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A root, and the kernel that boots it."""

    folder: Path

    @property
    def root(self) -> Path:
        """The root of the emulated machine."""
        return self.folder / f"root-{SUITE}"

    @property
    def inside(self) -> Path:
        """What the machine sees as /mnt/inside, and may write."""
        return self.folder / "inside"

    def run(self, script: str, limit_s: float, *, how: str = DELEGATED) -> list[str]:
        """Boot, and run lines of bash in the checkout; return their output.

        Args:
            script: Stops at the first line that fails.
            limit_s: Longest time of the script, seconds.
            how: The command line that starts bash.

        Raises:
            StepError: The script fails, or does not end in time.
        """
        places = [str(ROOT), sys.base_prefix]
        exports = {
            "PATH": f"{ROOT}/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if data := os.environ.get("FAIRBED_DATA"):
            places.append(data)
            exports["FAIRBED_DATA"] = data
        lines = ["set -e", *(f"export {key}={shlex.quote(x)}" for key, x in exports.items())]
        lines += ["export HOME=${HOME:-/root}", f"cd {shlex.quote(str(ROOT))}", script]
        self.inside.mkdir(exist_ok=True)
        (self.inside / "places").write_text("\n".join(places) + "\n")
        (self.inside / "script.sh").write_text("\n".join(lines) + "\n")
        command = f"{how} bash /mnt/inside/script.sh"
        (self.inside / "step.sh").write_text(STEP.format(user=USER, command=command))
        options = ["root=/dev/root", "rootfstype=hostfs", f"rootflags={self.root}", "ro"]
        options += ["init=/pre-init", f"mem={MEMORY}", f"folder={self.inside}"]
        options += [f"modules={MODULES}", "con=null", "con0=null,fd:1", "quiet", "lsm=capability"]
        lines = _boot(options, BOOT_S + limit_s)
        if status := read_status(lines):
            raise StepError(f"ended with status {status}, see above")
        return lines


def _boot(options: Sequence[str], limit_s: float) -> list[str]:
    """Run a kernel to its end with its output on the terminal; return the lines."""
    lines: list[str] = []
    with subprocess.Popen(
        ["linux.uml", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        timer = threading.Timer(limit_s, _kill, [process])
        timer.start()
        try:
            assert process.stdout is not None
            for raw in process.stdout:
                lines.append(raw.decode(errors="replace").rstrip())
                print(f"  {lines[-1]}", flush=True)
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            _kill(process)
    if is_late:
        raise StepError(f"the kernel must end within {limit_s:.0f} s")
    return lines


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a kernel; each process inside is one of this machine, too."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def read_status(lines: Sequence[str]) -> int:
    """Return the status that a kernel's output ends with.

    Raises:
        StepError: There is none.
    """
    found = [match[1] for line in lines if (match := re.fullmatch(r"STATUS (\d+)", line))]
    if not found:
        last = next((line for line in reversed(lines) if line), "no output")
        raise StepError(f"the kernel ended before its step did: {last}")
    return int(found[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    default = Path(tempfile.gettempdir(), "fairbed-kernel")
    parser.add_argument("--folder", type=Path, default=default, help=f"default {default}")
    args = parser.parse_args(arguments)
    unknown = [step for step in args.steps if step not in STEPS]
    if unknown:
        parser.error(f"a step must be one of {', '.join(STEPS)}; got {unknown[0]}")
    try:
        machine = prepare(args.folder.absolute())
    except Unavailable as exc:
        print(f"test-kernel: skipped, {exc}")
        return 0
    results: dict[str, str] = {}
    has_failed = False
    for name in args.steps or STEPS:
        print(f"test-kernel: {name}", flush=True)
        started_s = time.monotonic()
        try:
            results[name] = STEPS[name](machine)
        except StepError as exc:
            results[name] = f"FAILED: {exc}"
            has_failed = True
        results[name] += f" ({time.monotonic() - started_s:.0f} s)"
    for name, result in results.items():
        print(f"test-kernel: {name}: {result}")
    return int(has_failed)


def prepare(folder: Path) -> Machine:
    """Return a machine with its root.

    Raises:
        Unavailable: It cannot be built or used on this machine.
    """
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise Unavailable(f"needs Linux on x86-64, got {sys.platform} on {os.uname().machine}")
    if os.geteuid() != 0:
        raise Unavailable("needs root to make a root file system; type: sudo ./just test-kernel")
    missing = [package for program, package in TOOLS.items() if shutil.which(program) is None]
    if missing:
        if shutil.which("apt-get") is None:
            raise Unavailable(f"needs Debian's {' and '.join(missing)}")
        install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
        if _call(["apt-get", "update", "-q"]) or _call(install):
            raise Unavailable(f"needs {' and '.join(missing)}, which apt-get cannot install")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != 0:
        raise Unavailable(f"{folder}: must belong to root; name another with --folder")
    machine = Machine(folder)
    stamp, wanted = folder / f"root-{SUITE}.txt", " ".join(PACKAGES)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(machine.root, ignore_errors=True)
        options = ["--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        if _call(["mmdebstrap", *options, SUITE, str(machine.root)]):
            raise Unavailable(f"mmdebstrap cannot make a root of {SUITE}, see above")
        stamp.write_text(wanted)
    pre_init = machine.root / "pre-init"
    pre_init.write_text(PRE_INIT)
    pre_init.chmod(0o755)
    return machine


def _call(command: Sequence[str]) -> int:
    """Run a program with its output on the terminal; return its exit status."""
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, timeout=BUILD_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return 124


# The steps


def run_doctor(machine: Machine) -> str:
    """Ask `fairbed doctor` with and without a delegated subtree; return what is usable."""
    found = [
        f"{words}: {check_doctor(_doctor(machine, how))}"
        for how, words in ((DELEGATED, "delegated"), (SERVICE, "not delegated"))
    ]
    return "; ".join(found)


def _doctor(machine: Machine, how: str) -> list[dict[str, Any]]:
    file = machine.inside / "doctor.json"
    file.write_text("")
    file.chmod(0o666)
    machine.run(f"fairbed doctor --json >/mnt/inside/{file.name}", 120.0, how=how)
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return [row for row in rows if row["kind"] in ("backend", "broker")]


def check_doctor(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the names of backends and brokers.

    Raises:
        StepError: One is not usable.
    """
    for row in rows:
        if not row["is_ok"]:
            raise StepError(f"{row['kind']} {row['name']}: {row['found']} {row['what_to_do']}")
    return ", ".join(row["name"] for row in rows)


def run_user(machine: Machine) -> str:
    """Use what a user without privileges can; return the answer of doctor on backends."""
    rows = _doctor(machine, LOGIN)
    check_doctor([row for row in rows if row["name"] in ("mosquitto", "process")])
    machine.run("fairbed shape --backend process --cpu 0.5 -- sleep 1", 60.0, how=LOGIN)
    return "; ".join(
        f"{row['name']}: {'ok' if row['is_ok'] else row['found']}"
        for row in rows
        if row["kind"] == "backend"
    )


def run_fleets(machine: Machine) -> str:
    """Run a fleet of each backend; return its rounds and exchanges."""
    found: list[str] = []
    (machine.inside / "kernel.toml").write_text(EXPERIMENT)
    for backend in BACKENDS:
        command = f"fairbed run /mnt/inside/kernel.toml --set emulation.backend={backend}"
        command += " --headless --json --out /tmp/run >/mnt/inside/run.json 2>/tmp/progress"
        machine.run(f"{command} || {{ tail -n 20 /tmp/progress /tmp/run/logs/*; false; }}", 300.0)
        summary = json.loads((machine.inside / "run.json").read_text())
        found.append(f"{backend} {check_summary(summary)}")
    return "; ".join(found)


def check_summary(summary: Mapping[str, Any]) -> str:
    """Return what a run recorded.

    Raises:
        StepError: A round was void, or an exchange is missing.
    """
    rounds, exchanges = summary["rounds_completed"], summary["exchange"]["count"]
    text = f"{rounds} rounds, {exchanges} exchanges"
    if (rounds, summary["rounds_void"], exchanges) != (ROUNDS, 0, ROUNDS * DEVICES):
        raise StepError(f"must be {ROUNDS} rounds with {DEVICES} exchanges each, got {text}")
    return text


def run_tests(machine: Machine) -> str:
    """Run tests; return how many passed."""
    for test, reason in DESELECTED.items():
        print(f"not run: {test}: {reason}")
    options = ["-v", "--tb=short", "--color=no", "-n0", "--tier=all", "-p", "no:cacheprovider"]
    options += [f"--deselect={test}" for test in DESELECTED]
    lines = machine.run(shlex.join(["pytest", *options, *TESTS]), TESTS_S)
    return next(line for line in reversed(lines) if " passed" in line).strip("= ")


def run_fidelity(machine: Machine) -> str:
    """Measure emulated links; return how many quantities are within their limits."""
    command = f"fairbed bench fidelity --backend namespace --quantity {QUANTITIES} --repeats 2"
    machine.run(f"{command} --attempts 2 --json >/mnt/inside/fidelity.json", 1200.0)
    return check_fidelity(json.loads((machine.inside / "fidelity.json").read_text()))


def check_fidelity(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many rows are within their limits, and how many this kernel cannot judge.

    Raises:
        StepError: A row misses its limit, or no row has one.
    """
    judged = [row for row in rows if not is_beyond(row["quantity"])]
    missed = [row for row in judged if row["ok"] is False]
    if missed or not any(row["ok"] for row in judged):
        texts = [f"{row['quantity']}: {row['achieved']} for {row['target']}" for row in missed]
        raise StepError("; ".join(texts) or "no quantity has a valid window")
    passed = sum(row["ok"] is True for row in judged)
    return f"{passed} quantities within their limits, {len(rows) - passed} not judged"


def is_beyond(quantity: str) -> bool:
    """Return whether a quantity is a rate that this kernel's timers cannot carry."""
    rate = re.search(r"([\d.]+) Mbit/s", quantity)
    return rate is not None and float(rate[1]) > MOST_MBPS


STEPS: dict[str, Callable[[Machine], str]] = {
    "doctor": run_doctor,
    "user": run_user,
    "run": run_fleets,
    "tests": run_tests,
    "fidelity": run_fidelity,
}


if __name__ == "__main__":
    os.nice(19)
    sys.exit(main())
