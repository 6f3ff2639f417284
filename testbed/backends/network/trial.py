"""Tests in a temporary namespace which network features this kernel has.

`python -m fairbed.testbed.backends.network.trial PARENT` enters a new namespace without a name,
tries the features, and prints a `TrialResult`. The namespace ends with the process.
"""

import ctypes
import os
import subprocess
import sys

import msgspec

from fairbed.testbed.backends.network.enter import CLONE_NEWNET, identity
from fairbed.testbed.backends.network.tun import TUN_DEVICE, open_tun
from fairbed.testbed.host.guard import die_with_parent

CLONE_NEWUSER = 0x10000000
"""From linux/sched.h."""

PROGRAM_TIMEOUT_S = 30.0

_LINK = "link add try0 type veth peer name try1"
_SHAPER = (
    "qdisc add dev try0 root handle 1: htb default 10",
    "class add dev try0 parent 1: classid 1:10 htb rate 1mbit burst 3200 cburst 3200",
    "qdisc add dev try0 parent 1:10 handle 10: bfifo limit 20000",
    "qdisc replace dev try0 parent 1:10 handle 20: blackhole",
    "filter add dev try0 parent 1: protocol ip prio 1 handle 2: u32 divisor 256",
)
_CELL = (
    "qdisc add dev try0 handle ffff: ingress",
    "filter add dev try0 parent ffff: protocol ip prio 1 u32 match u32 0 0 "
    "action mirred egress redirect dev try3",
)
_NETEM = ("qdisc add dev try1 root netem delay 1ms",)
_CODEL = ("qdisc replace dev try0 parent 1:10 handle 30: fq_codel limit 20 noecn",)
_BBR = (
    "addr add 192.0.2.1/30 dev try0",
    "link set try0 up",
    "route add 192.0.2.8/30 via 192.0.2.2 dev try0 congctl bbr",
)


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Why each feature does not work; empty if it works."""

    unshare: str = ""
    """Network namespaces."""
    link: str = ""
    """veth links."""
    shaper: str = ""
    """HTB with u32 filters."""
    tun: str = ""
    """TUN links."""
    netem: str = ""
    """netem."""
    fq_codel: str = ""
    """The qdisc fq_codel."""
    bbr: str = ""
    """BBR as congestion control of a route."""
    cell: str = ""
    """IFB links, and the redirection of packets to them."""
    has_user_namespaces: bool = False
    """Whether user namespaces work; tested only if network namespaces fail without them."""


def run_trial() -> TrialResult:
    """Try all features; this process stays in the new namespace."""
    before = identity()
    problem = _unshare(CLONE_NEWNET)
    if problem:
        has_user = not _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        return TrialResult(unshare=problem, has_user_namespaces=has_user)
    if identity() == before:
        return TrialResult(unshare="the kernel made no new namespace")
    return TrialResult(
        link=_run("ip", [_LINK]),
        shaper=_run("tc", _SHAPER),
        tun=_try_tun(),
        netem=_run("tc", _NETEM),
        fq_codel=_run("tc", _CODEL),
        bbr=_run("ip", _BBR),
        cell=_run("ip", ["link add try3 type ifb"]) or _run("tc", _CELL),
    )


def _unshare(flags: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    return "" if libc.unshare(flags) == 0 else os.strerror(ctypes.get_errno())


def _run(program: str, lines: tuple[str, ...] | list[str]) -> str:
    done = subprocess.run(
        [program, "-batch", "-"],
        input="\n".join([*lines, ""]),
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    return " ".join(done.stderr.split()) if done.returncode else ""


def _try_tun() -> str:
    try:
        os.close(open_tun("try2"))
    except OSError as exc:
        return f"{TUN_DEVICE}: {exc.strerror}"
    return ""


def main() -> None:
    """Print the `TrialResult` as one line of JSON."""
    die_with_parent(int(sys.argv[1]))
    sys.stdout.buffer.write(msgspec.json.encode(run_trial()))


if __name__ == "__main__":
    main()
