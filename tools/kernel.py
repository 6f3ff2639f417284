"""Test Fairbed on a kernel with cgroup v2 and netem, under systemd: tools/kernel.py [STEP ...].

The machine that most users have, on one that has neither. The kernel is Debian's User Mode Linux,
which runs as an ordinary process and boots in seconds; its root is a Debian with systemd, read-only
below a layer in memory. The checkout and its .venv are seen inside at their own paths. Steps, all
by default, in this order:

- `doctor`: `fairbed doctor` finds every backend and broker usable, in a service to which a subtree
  of control groups is delegated, and in a service without one;
- `user`: a user without privileges, after a login; then inside `unshare -Urnm` and a scope;
- `limits`: the processor limit of devices is taken away while they run, by systemd and by force;
- `firewall`: a firewall drops what comes in, until the advice of the error is followed;
- `run`: the quickstart with three devices, by namespaces, containers and processes;
- `clock`: the wall clock is set a day ahead, a day behind and back, during a run;
- `tests`: the tests of the backends and of `fairbed shape`;
- `fidelity`: delay, jitter, loss, outages, rates and traces of emulated links.

The root is kept in a folder (`--folder`); a second run does not build it. The kernel has one
processor, no PSI, and clocks of processor time that tick every 10 ms: it shows whether a thing
works, not how exact the processor's share is. Needs root, Debian 12 or newer on x86-64 and its
package archive. Where a tool is missing it prints one line and ends with status 0; a root that
cannot be built, and a step that fails, end it with status 1.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fairbed.coordinator.store.reader import RunReader  # this file is run as a program
from fairbed.testbed.host.guard import guarded
from tools import wall_clock
from tools.roots import (
    ROOT,
    StepError,
    Unavailable,
    keep_root,
    make_folder,
    new_parser,
    require_machine,
    require_programs,
    run_recipe,
)

RECIPE = "test-kernel"

SUITE = "bookworm"
"""Debian of the root; programs of .venv need its glibc or an older one."""
PACKAGES = (
    *("bash", "crun", "dbus", "iproute2", "iptables", "iputils-ping", "kmod", "libpam-systemd"),
    *("libstdc++6", "login", "mosquitto", "nftables", "podman", "procps", "python3", "systemd"),
    *("systemd-sysv", "tmux", "uidmap", "util-linux"),
)
TOOLS = {"linux.uml": "user-mode-linux", "mmdebstrap": "mmdebstrap"}
"""Programs of this machine, and the packages that have them."""
MODULES = Path("/usr/lib/uml/modules")

MEMORY = "4G"
USER = "tester"

BOOT_S, DOCTOR_S, SHAPE_S, RUN_S, CLOCK_S = 180.0, 300.0, 180.0, 600.0, 1200.0
"""Longest start of the machine, `fairbed doctor`, `fairbed shape`, runs of a fleet, and a run with
a clock that is set."""
FIDELITY_S, TESTS_S = 3600.0, 7200.0
"""Longest measurement of links, and run of the tests: 400 s on a quiet machine."""
TEST_S = 600.0
"""Longest run of one test."""

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

SHOW_LOGS = "trap '[ $? = 0 ] || tail -n 20 /tmp/progress /tmp/{run/,}logs/* 2>/dev/null' EXIT"
"""Prints the ends of the logs of a fleet if a script fails."""

SERVICE = "systemd-run --quiet --wait --pipe --collect"
DELEGATED = f"{SERVICE} -p Delegate=yes"
LOGIN = f"{SERVICE} -p PAMName=login -p User={USER}"

SCOPE = "systemd-run --user --scope --quiet -p Delegate=yes"
UNSHARE = "unshare -Urnm sh -c 'ip link set lo up && mount -t tmpfs none /run && exec \"$@\"' -"
"""What docs/backends.md advises a user: a group, and namespaces."""

SHARE, SHARE_LIMIT, BUSY_S = 0.2, 0.24, 15.0
"""Of an emulated processor, cores: configured, and most; and how long it is busy, seconds."""

TESTS = ("tests/testbed/backends", "tests/testbed/shape")
DESELECTED = {
    "tests/testbed/backends/network/test_accuracy.py": (
        "the step fidelity measures the same, up to the rates that this kernel's timers carry"
    ),
    "tests/testbed/backends/test_launcher.py::test_twice_the_speed_does_twice_the_work": (
        "compares processor times of 75 ms, which tick every 10 ms"
    ),
}
"""Tests that the kernel itself fails, and why."""

BACKENDS = ("namespace", "container", "process")
DEVICES, ROUNDS = 3, 3
TASK = f"""
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
beta = {wall_clock.BETA}
"""
EXPERIMENTS = {
    "kernel": f"""{TASK}
[emulation]
dilation = "auto"
[[fleet]]
profile = "raspberry-pi-4b"
count = {DEVICES}
""",
    "lab": f"""{TASK}
[round]
min_devices = {DEVICES}
[broker]
url = "lab"
[[fleet]]
physical = {json.dumps([*wall_clock.ENROLLED, wall_clock.NEWCOMER])}
""",
}
"""An emulated fleet, and devices that are enrolled in a lab; by the names of their files."""

QUANTITIES = "goodput,delay,loss,outage,trace"
MOST_MBPS = 25.0
"""Above, the timers of this kernel are late."""
MOST_WAITED_RATIO = 0.05
"""Above, they are late at any rate: the kernel waited for a processor of a busy machine."""
TOO_SLOW = "too slow, or too busy now"
"""What `fairbed doctor` prints of a backend without a result in time."""


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

    @property
    def _out(self) -> Path:
        return self.inside / "out.json"

    def result(self) -> Any:
        """Return the JSON that the last script wrote to $OUT."""
        return json.loads(self._out.read_text(encoding="utf-8"))

    def read(self, script: str, limit_s: float, *, how: str = DELEGATED) -> Any:
        """Run a script; return the JSON that it wrote to $OUT.

        Raises:
            StepError: As `run`.
        """
        self.run(script, limit_s, how=how)
        return self.result()

    def run(self, script: str, limit_s: float, *, how: str = DELEGATED) -> list[str]:
        """Boot, and run lines of bash in the checkout; return their output.

        Args:
            script: Stops at the first line that fails. $OUT is a file for `result`.
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
            "OUT": f"/mnt/inside/{self._out.name}",
        }
        if data := os.environ.get("FAIRBED_DATA"):
            places.append(data)
            exports["FAIRBED_DATA"] = data
        lines = ["set -e", *(f"export {key}={shlex.quote(x)}" for key, x in exports.items())]
        lines += ["export HOME=${HOME:-/root}", f"cd {shlex.quote(str(ROOT))}"]
        self.inside.mkdir(exist_ok=True)
        self._out.write_text("", encoding="utf-8")
        self._out.chmod(0o666)
        for name, text in EXPERIMENTS.items():
            (self.inside / f"{name}.toml").write_text(text, encoding="utf-8")
        (self.inside / "places").write_text("\n".join(places) + "\n", encoding="utf-8")
        (self.inside / "script.sh").write_text(
            "\n".join([*lines, SHOW_LOGS, script, ""]), encoding="utf-8"
        )
        command = f"{how} bash /mnt/inside/script.sh"
        (self.inside / "step.sh").write_text(
            STEP.format(user=USER, command=command), encoding="utf-8"
        )
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
    started_s = time.monotonic()
    with subprocess.Popen(
        guarded(["linux.uml", *options]),
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
                if lines[-1].startswith("STATUS "):
                    waited_s = _waited_s(process.pid)
                    lines.append(f"WAITED {waited_s / (time.monotonic() - started_s):.2f}")
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            _kill(process)
    if is_late:
        raise StepError(f"the kernel must end within {limit_s:.0f} s")
    return lines


def _waited_s(pid: int) -> float:
    """Return how long a process has waited for a processor; 0 if this machine does not count it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()[1]) * 1e-9
    except OSError:
        return 0.0


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


def read_waited(lines: Sequence[str]) -> float:
    """Return the share of its time for which a kernel waited for a processor of this machine."""
    return float(next(line for line in lines if line.startswith("WAITED ")).split()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 1 if one failed."""
    return run_recipe(RECIPE, new_parser(RECIPE, __doc__), arguments, prepare, STEPS)


def prepare(args: argparse.Namespace) -> Machine:
    """Return a machine with its root.

    Raises:
        Unavailable: It cannot be used on this machine.
        StepError: The root cannot be built.
    """
    require_machine(RECIPE)
    require_programs(TOOLS)
    make_folder(args.folder)
    machine = Machine(args.folder)
    keep_root(machine.root, SUITE, PACKAGES, "--variant=minbase")
    pre_init = machine.root / "pre-init"
    pre_init.write_text(PRE_INIT, encoding="utf-8")
    pre_init.chmod(0o755)
    return machine


# The steps


def run_doctor(machine: Machine) -> str:
    """Run `fairbed doctor` with and without a delegated subtree; return what is usable."""
    found = [
        f"{words}: {check_doctor(_doctor(machine, how))}"
        for how, words in ((DELEGATED, "delegated"), (SERVICE, "not delegated"))
    ]
    return "; ".join(found)


def _doctor(machine: Machine, how: str, before: str = "") -> list[dict[str, Any]]:
    """Return the rows of backends and brokers.

    Raises:
        Unavailable: One had no result in time, on a machine that was too busy.
        StepError: The command fails.
    """
    lines = machine.run(f"{before} fairbed doctor --json >$OUT", DOCTOR_S, how=how)
    rows = [row for row in machine.result() if row["kind"] in ("backend", "broker")]
    check_busy(rows, read_waited(lines))
    return rows


def check_busy(rows: Sequence[Mapping[str, Any]], waited_ratio: float) -> None:
    """Check that rows without a result in time are not the fault of a busy machine.

    Raises:
        Unavailable: One is.
    """
    for row in rows:
        if TOO_SLOW in row["found"] and waited_ratio > MOST_WAITED_RATIO:
            waited = f"the kernel waited {waited_ratio:.0%} of its time"
            raise Unavailable(f"{waited}: {row['kind']} {row['name']}: {row['found']}")


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
    """Use what a user without privileges can, after a login; return what works where.

    Each error must name the next part of the line in docs/backends.md, with which namespaces work.
    """
    found = {
        "login": _doctor(machine, LOGIN),
        "unshare": _doctor(machine, LOGIN, UNSHARE),
        "scope": _doctor(machine, LOGIN, f"{SCOPE} {UNSHARE}"),
    }
    check_advice(found["login"], "unshare -Urnm")
    check_advice(found["unshare"], "systemd-run --user --scope -p Delegate=yes")
    for words in ("login", "unshare"):
        check_doctor([row for row in found[words] if row["name"] in ("mosquitto", "process")])
    check_doctor([row for row in found["scope"] if row["name"] != "container"])
    machine.run("fairbed shape --backend process --cpu 0.5 -- sleep 1", SHAPE_S, how=LOGIN)
    shaped = f"{SCOPE} {UNSHARE} {_shape()}"
    results = [
        *(f"{words}: {_backends(rows)}" for words, rows in found.items()),
        f"share {check_share(machine.read(shaped, SHAPE_S, how=LOGIN))} in a scope",
        _run_fleet(machine, "namespace", f"{SCOPE} {UNSHARE}", how=LOGIN),
    ]
    return "; ".join(results)


def _backends(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{row['name']} {'ok' if row['is_ok'] else 'refused: ' + row['found']}"
        for row in rows
        if row["kind"] == "backend"
    )


def check_advice(rows: Sequence[Mapping[str, Any]], advice: str) -> None:
    """Check that the namespace backend is refused with an advice.

    Raises:
        StepError: It works, or the advice is another one.
    """
    (row,) = (row for row in rows if row["name"] == "namespace")
    text = f"{row['found']} {row['what_to_do']}"
    if row["is_ok"] or advice not in text:
        raise StepError(f"namespaces must be refused with {advice!r}, got {text}")


def run_limits(machine: Machine) -> str:
    """Take the processor limit of devices away in mid-run; return what was seen.

    systemd does so when it ends the last service that needed the controller: that must have no
    effect. A program that does so by force must end the run with an error.
    """
    share = check_share(machine.read(_without_other(_shape(), 1), SHAPE_S, how=SERVICE))
    fleet = _without_other(_fleet("namespace"), DEVICES)
    exchanges = check_summary(machine.read(fleet, RUN_S, how=SERVICE))
    lines = machine.run(
        f"""{_OTHER}
        if {_fleet("namespace", "--set rounds=1000")}; then exit 1; fi &
        {_await_groups(DEVICES)}
        for group in $groups; do echo -cpu >$group/cgroup.subtree_control; done
        echo -cpu >$(dirname $group)/cgroup.subtree_control
        wait $!
        grep "limit is gone" /tmp/progress
        """,
        RUN_S,
        how=SERVICE,
    )
    notice = next(line for line in reversed(lines) if "limit is gone" in line)
    return f"share {share}, {exchanges} while another service ended; by force: {notice}"


def _without_other(command: str, devices: int) -> str:
    """Return a script that ends another service while a command with devices runs."""
    stop = [
        "systemctl stop other",
        "kill -0 $!",
        "for group in $groups; do cat $group/cpu.max; done",
    ]
    return "\n".join([_OTHER, f"{command} &", _await_groups(devices), *stop, "wait $!"])


def run_firewall(machine: Machine) -> str:
    """Drop what comes in, then follow the advice of the error; return it."""
    fleet = _fleet("namespace")
    lines = machine.run(
        f"""if nft add table inet guard; then
            nft add chain inet guard input "{{ type filter hook input priority 0; policy drop; }}"
            nft add rule inet guard input iif lo accept
        else  # a kernel without nftables
            update-alternatives --set iptables /usr/sbin/iptables-legacy
            iptables --append INPUT --in-interface lo --jump ACCEPT
            iptables --policy INPUT DROP
        fi
        if {fleet}; then exit 1; fi
        advice=$(sed -n "s/.*accept them: //p" /tmp/progress)
        echo "ADVICE $advice"
        rm -rf /tmp/run
        bash -c "${{advice//sudo /}}"
        {fleet}
        """,
        RUN_S,
    )
    advice = next(line for line in lines if line.startswith("ADVICE "))
    return f"{check_summary(machine.result())} after {advice.removeprefix('ADVICE ')}"


def run_fleets(machine: Machine) -> str:
    """Run a fleet of each backend; return its rounds and exchanges."""
    return "; ".join(_run_fleet(machine, backend) for backend in BACKENDS)


def run_clock(machine: Machine) -> str:
    """Set the wall clock in mid-run; return what a fleet, and agents of a lab, had meanwhile.

    No exchange may be lost, no duration may be of the wall clock, and logins must stay valid: those
    of a run's own broker, and those of a lab, with certificates and with an end after two days.
    """
    fleet = wall_clock.script(f"{_fleet('namespace', '--set rounds=1000')} &\nrun=$!")
    lab = wall_clock.script(wall_clock.START_LAB, wall_clock.ENROLL_NEWCOMER)
    found = {"fleet": _run_and_set_clock(machine, fleet), "lab": _run_and_set_clock(machine, lab)}
    return "; ".join(f"{name}: {text}" for name, text in found.items())


def _run_and_set_clock(machine: Machine, script: str) -> str:
    started_s = time.monotonic()
    machine.run(script, CLOCK_S)
    up_s = time.monotonic() - started_s
    with RunReader(machine.inside / "run") as reader:
        return wall_clock.check(wall_clock.Seen.read(reader), up_s)


def _run_fleet(machine: Machine, backend: str, before: str = "", *, how: str = DELEGATED) -> str:
    summary = machine.read(_fleet(backend, before=before), RUN_S, how=how)
    return f"{backend} {check_summary(summary)}"


def _fleet(backend: str, options: str = "", before: str = "") -> str:
    """Return the command that runs a fleet; its errors are in /tmp/progress."""
    run = f"fairbed run /mnt/inside/kernel.toml --set emulation.backend={backend} {options}"
    return f"{before} {run} --headless --json --out /tmp/run >$OUT 2>/tmp/progress"


def _shape() -> str:
    """Return the command that keeps an emulated device busy."""
    busy = f"end=$((SECONDS + {BUSY_S:.0f})); while ((SECONDS < end)); do :; done"
    return f"fairbed shape --cpu {SHARE} --json $OUT -- bash -c {shlex.quote(busy)}"


def check_share(report: Mapping[str, Any]) -> str:
    """Return the share of a busy command, in cores: less than configured on a busy machine.

    Raises:
        StepError: It is more, or less than half.
    """
    used = report["cpu"]["used_cores"]
    if used is None or not SHARE / 2 < used < SHARE_LIMIT:
        raise StepError(f"a busy command must have {SHARE} of a core, got {used}")
    return f"{used:.2f} for {SHARE}"


_OTHER = "systemd-run --quiet --unit=other -p Delegate=yes sleep 1000"
"""A service for which systemd enables controllers in its slice, where groups of devices are."""


def _await_groups(devices: int) -> str:
    """Return a script that waits until all groups of devices have processes.

    Their folders are in `groups` then. A controller cannot be taken away above a group that still
    hands it on, so none may be missed.
    """
    return rf"""
    until [ "$(wc -w <<<"$groups")" -ge {devices} ]; do
        kill -0 $!
        sleep 0.2
        groups=$(find /sys/fs/cgroup -path '*/fairbed*/processes/cgroup.procs' \
            -exec grep -q . {{}} \; -printf '%h\n' | xargs -r dirname)
    done
    sleep 2
    """


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
    """Run tests; return how many passed. Those that fail run again: some have limits in time."""
    for test, reason in DESELECTED.items():
        print(f"not run: {test}: {reason}")
    options = ["-v", "--tb=short", "--color=no", "-n0", "--tier=all", f"--timeout={TEST_S:.0f}"]
    options += ["-o", "cache_dir=/tmp/pytest", *(f"--deselect={test}" for test in DESELECTED)]
    pytest = shlex.join(["pytest", *options, *TESTS])
    again = f"{pytest} --last-failed --last-failed-no-failures=none"
    lines = machine.run(f"{pytest} || {again}", TESTS_S)
    counts = [line.strip("= ") for line in lines if re.search(r"=.* \d+ passed", line)]
    return "; again: ".join(counts)


def run_fidelity(machine: Machine) -> str:
    """Measure emulated links; return how many quantities are within their limits."""
    command = f"fairbed bench fidelity --backend namespace --quantity {QUANTITIES} --repeats 2"
    lines = machine.run(f"{command} --attempts 2 --json >$OUT", FIDELITY_S)
    return check_fidelity(machine.result(), read_waited(lines))


def check_fidelity(rows: Sequence[Mapping[str, Any]], waited_ratio: float) -> str:
    """Return how many rows are within their limits, and how many this kernel cannot judge.

    Args:
        rows: Of `fairbed bench fidelity`, which does not see the load of the machine outside.
        waited_ratio: Share of the time for which the kernel waited for a processor.

    Raises:
        Unavailable: A row misses its limit on a machine that was too busy to keep it.
        StepError: A row misses its limit, or no row has one.
    """
    judged = [row for row in rows if not is_beyond(row["quantity"])]
    missed = [row for row in judged if row["ok"] is False]
    if missed or not any(row["ok"] for row in judged):
        texts = [f"{row['quantity']}: {row['achieved']} for {row['target']}" for row in missed]
        text = "; ".join(texts) or "no quantity has a valid window"
        if waited_ratio > MOST_WAITED_RATIO:
            raise Unavailable(f"the kernel waited {waited_ratio:.0%} of its time: {text}")
        raise StepError(text)
    passed = sum(row["ok"] is True for row in judged)
    return f"{passed} quantities within their limits, {len(rows) - passed} not judged"


def is_beyond(quantity: str) -> bool:
    """Return whether a quantity is a rate that this kernel's timers cannot carry."""
    rate = re.search(r"([\d.]+) Mbit/s", quantity)
    return rate is not None and float(rate[1]) > MOST_MBPS


STEPS: dict[str, Callable[[Machine], str]] = {
    "doctor": run_doctor,
    "user": run_user,
    "limits": run_limits,
    "firewall": run_firewall,
    "run": run_fleets,
    "clock": run_clock,
    "tests": run_tests,
    "fidelity": run_fidelity,
}


if __name__ == "__main__":
    os.nice(19)
    sys.exit(main())
