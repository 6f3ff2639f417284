"""Tests whether this machine supports shaped networks; each problem is one line."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from fairbed.testbed.backends.network.owner import FOLDER
from fairbed.testbed.backends.network.programs import run_module
from fairbed.testbed.backends.network.trial import TrialResult
from fairbed.testbed.emulation.conditions import LinkFeature
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.loopback import loopback_problem

_USE_PROCESS = "or use the process backend, which shapes by proxies"


@dataclass(frozen=True, slots=True)
class Support:
    """Which network features this machine supports."""

    problem: str | None
    """Why networks do not work, and what to do; None if they work."""
    delay: Literal["netem", "relay"] | None = None
    """How packets are delayed and dropped: by the kernel or by a relay; None if neither works."""
    jitter: Literal["netem", "relay"] | None = None
    """The same on links with jitter. A relay is preferred: netem draws the delay of each packet
    independently and keeps their order, so that each waits for the most delayed before it, and a
    dense stream has the largest delays (docs/decisions/0008)."""
    delay_problem: str | None = None
    """Why neither works, and what to do."""
    lacks: Mapping[LinkFeature, str] = field(default_factory=dict)
    """Why a feature of links does not work, and what to do."""
    cell_problem: str | None = None
    """Why devices cannot share a cell, and what to do; None if they can."""


async def probe() -> Support:
    """Try the features in a temporary namespace, and return which of them work."""
    if sys.platform != "linux":
        return Support(
            f"network namespaces need Linux, got {sys.platform}; use the process backend"
        )
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return Support(
            f"{' and '.join(missing)} must be on the PATH; sudo apt-get install -y iproute2"
        )
    if (problem := loopback_problem()) is not None:
        return Support(problem)
    try:
        trial = msgspec.json.decode(
            await run_module("fairbed.testbed.backends.network.trial"), type=TrialResult
        )
    except BackendError as exc:
        return Support(f"network namespaces must be testable, got: {exc}")
    return support_from(trial, _try_run_folder)


def support_from(trial: TrialResult, try_run_folder: Callable[[], str]) -> Support:
    """Return the support that a trial proves.

    Args:
        trial: The result of the trial.
        try_run_folder: Returns why lock files cannot be made; empty if they can.
    """
    if trial.unshare:
        return Support(_no_namespace(trial))
    if trial.link:
        return Support(f"the kernel must have veth, got: {trial.link}; sudo modprobe veth")
    if trial.shaper:
        return Support(
            f"the kernel must have HTB and u32, got: {trial.shaper}; "
            f"sudo modprobe -a sch_htb cls_u32, {_USE_PROCESS}"
        )
    folder_problem = try_run_folder()
    if folder_problem:
        return Support(
            f"{FOLDER} must be writable, got: {folder_problem}; be root, or in a user namespace "
            "mount a /run of its own: mount -t tmpfs none /run"
        )
    lacks, cell_problem = dict(_missing(trial)), None
    if trial.cell:
        cell_problem = (
            f"a cell needs IFB and mirred, got: {trial.cell}; sudo modprobe -a ifb act_mirred, "
            f"{_USE_PROCESS}"
        )
    by: list[Literal["netem", "relay"]] = []
    if not trial.netem:
        by.append("netem")
    if not trial.tun:
        by.append("relay")
    if by:
        return Support(None, by[0], by[-1], lacks=lacks, cell_problem=cell_problem)
    return Support(
        None,
        delay_problem=f"delay and loss need netem or a TUN device, got: {trial.netem}; "
        f"{trial.tun}; sudo modprobe sch_netem, or give this machine /dev/net/tun",
        lacks=lacks,
        cell_problem=cell_problem,
    )


def _missing(trial: TrialResult) -> Iterator[tuple[LinkFeature, str]]:
    if trial.fq_codel:
        yield (
            "fq_codel",
            f'queue = "fq_codel" needs this qdisc in the kernel, got: {trial.fq_codel}; '
            'sudo modprobe sch_fq_codel, or set queue = "drop-tail"',
        )
    if trial.bbr:
        yield (
            "bbr",
            f'congestion = "bbr" needs it in the kernel, got: {trial.bbr}; '
            'sudo modprobe tcp_bbr, or set congestion = "cubic"',
        )


def _no_namespace(trial: TrialResult) -> str:
    if trial.has_user_namespaces:
        return (
            f"network namespaces need root, got: {trial.unshare}; be root, or put `unshare -Urnm "
            "sh -c 'ip link set lo up && mount -t tmpfs none /run && exec \"$@\"' -` in front of "
            "the command"
        )
    return (
        f"network namespaces need root or user namespaces, got neither: {trial.unshare}; "
        f"be root, {_USE_PROCESS}"
    )


def _try_run_folder() -> str:
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / "lock").open("ab"):
            return ""
    except OSError as exc:
        return exc.strerror or str(exc)
