"""Set-up of namespaces from inside: errors are one line, and the host's namespace is refused."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fairbed.testbed.backends.network.enter import OWN, identity
from fairbed.testbed.backends.network.namespace_setup import NamespaceSetup, NamespaceSetups

pytestmark = pytest.mark.usefixtures("untouched_host")

TIMEOUT_S = 30.0


def _set_up(setup: NamespaceSetup, host: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "fairbed.testbed.backends.network.namespace_setup",
            str(os.getpid()),
            host,
        ],
        input=msgspec.json.encode(NamespaceSetups(namespaces=[setup])).decode(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_the_hosts_namespace_is_refused_before_anything_is_done() -> None:
    wanted = NamespaceSetup(namespace=str(OWN), settings={}, lines=["link add oops type dummy"])
    done = _set_up(wanted, identity())
    assert done.returncode == 1
    assert "must not be the host's network namespace" in done.stderr


def test_a_line_that_ip_refuses_is_reported(scratch: Path) -> None:
    wanted = NamespaceSetup(namespace=str(scratch), settings={}, lines=["link set nowhere up"])
    done = _set_up(wanted, identity())
    assert done.returncode == 1
    assert 'Cannot find device "nowhere"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_host_that_does_not_answer_is_reported_on_stdout(scratch: Path) -> None:
    wanted = NamespaceSetup(
        namespace=str(scratch),
        settings={},
        lines=["link set lo up"],
        must_reach=("10.255.255.1", 9),
    )
    done = _set_up(wanted, identity())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[Errno 101] Network is unreachable"


def test_settings_and_lines_are_applied(scratch: Path) -> None:
    wanted = NamespaceSetup(
        namespace=str(scratch),
        settings={"net/ipv4/ip_forward": "1"},
        lines=["link set lo up", "addr add 10.255.255.1/32 dev lo"],
    )
    assert _set_up(wanted, identity()).returncode == 0
    look = ["nsenter", f"--net={scratch}", "cat", "/proc/sys/net/ipv4/ip_forward"]
    seen = subprocess.run(look, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert seen.stdout == "1\n"
    show = ["nsenter", f"--net={scratch}", "ip", "-br", "addr"]
    seen = subprocess.run(show, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert "10.255.255.1/32" in seen.stdout
