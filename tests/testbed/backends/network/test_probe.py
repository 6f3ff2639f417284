"""The support that a trial proves, for each feature that a machine may lack."""

import shutil
import subprocess
import sys

import pytest

from fairbed.testbed.backends.network.probe import Support, support_from
from fairbed.testbed.backends.network.trial import TrialResult
from tests import needs

LIMIT_S = 60.0

UNKNOWN = "Error: Specified qdisc kind is unknown."


def _writable() -> str:
    return ""


def _read_only() -> str:
    return "Read-only file system"


@pytest.mark.parametrize(
    ("trial", "problem"),
    [
        (
            TrialResult(unshare="Operation not permitted", has_user_namespaces=True),
            "network namespaces need root, got: Operation not permitted; be root, or put `unshare",
        ),
        (
            TrialResult(unshare="Operation not permitted"),
            "network namespaces need root or user namespaces, got neither",
        ),
        (TrialResult(link="Unknown device type."), "the kernel must have veth"),
        (TrialResult(shaper=UNKNOWN), "the kernel must have HTB and u32"),
    ],
)
def test_a_missing_feature_is_named_with_advice(trial: TrialResult, problem: str) -> None:
    found = support_from(trial, _writable)
    assert found.problem is not None
    assert found.problem.startswith(problem)
    assert "; " in found.problem
    assert "\n" not in found.problem
    assert found.delay is None


def test_a_folder_for_locks_that_cannot_be_written_is_a_problem() -> None:
    found = support_from(TrialResult(), _read_only)
    assert found.problem is not None
    assert found.problem.startswith("/run/fairbed must be writable, got: Read-only file system;")


def test_netem_is_preferred_to_the_relay_except_for_jitter() -> None:
    no_tun = TrialResult(tun="/dev/net/tun: Permission denied")
    assert support_from(TrialResult(), _writable) == Support(None, "netem", "relay")
    assert support_from(TrialResult(netem=UNKNOWN), _writable) == Support(None, "relay", "relay")
    assert support_from(no_tun, _writable) == Support(None, "netem", "netem")


@pytest.mark.parametrize("netem", ["", UNKNOWN])
def test_cells_need_a_redirection_and_nothing_else_does(netem: str) -> None:
    found = support_from(TrialResult(netem=netem, cell="Unknown device type."), _writable)
    assert found.problem is None
    assert found.cell_problem == (
        "a cell needs IFB and mirred, got: Unknown device type.; sudo modprobe -a ifb act_mirred, "
        "or use the process backend, which shapes by proxies"
    )


def test_without_netem_and_tun_links_still_have_rates() -> None:
    found = support_from(
        TrialResult(netem=UNKNOWN, tun="/dev/net/tun: Permission denied"), _writable
    )
    assert (found.problem, found.delay, found.jitter) == (None, None, None)
    assert found.delay_problem is not None
    assert "Permission denied" in found.delay_problem


def test_features_that_the_kernel_lacks_are_named_with_advice() -> None:
    found = support_from(TrialResult(fq_codel=UNKNOWN, bbr="no such algorithm"), _writable)
    assert found.problem is None
    assert found.lacks["fq_codel"] == (
        f'queue = "fq_codel" needs this qdisc in the kernel, got: {UNKNOWN}; '
        'sudo modprobe sch_fq_codel, or set queue = "drop-tail"'
    )
    assert found.lacks["bbr"].startswith('congestion = "bbr" needs it in the kernel, got: no such')


def test_this_machine_answers(support: Support) -> None:
    assert support.problem is None


@needs.program("ip")
def test_a_loopback_that_is_down_is_reported_at_once_by_all_that_need_it() -> None:
    script = """
import anyio
from pathlib import Path
from fairbed.testbed.backends.choice import problem_with
from fairbed.testbed.backends.network.probe import probe
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.host.broker_process import BrokerProcess

async def main():
    print((await probe()).problem)
    print(await problem_with("process"))
    broker = BrokerProcess("mosquitto", ["false"], ("127.0.0.1", 1), "", Path("/dev/null"))
    try:
        await broker.start([])
    except BrokerError as exc:
        print(exc)

anyio.run(main)
"""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if done.stderr.startswith("unshare"):
        pytest.skip(f"no network namespaces here: {done.stderr}")
    problem = "the loopback of this machine must be up, got down; ip link set lo up"
    assert done.stdout.splitlines() == [problem, problem, f"mosquitto: {problem}"]
