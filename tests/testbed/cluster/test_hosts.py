"""Hosts with other software are refused with one line, before any work."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairbed.testbed.cluster import hosts
from fairbed.testbed.cluster.hosts import difference, difference_in, facts_here, processors_line
from fairbed.testbed.cluster.joining import check_joinable, split_address
from fairbed.testbed.errors import ClusterError

OURS = {
    "python": "3.12.3",
    "ray": "2.60.0",
    "fairbed": "0.1.0",
    "numpy": "2.4.6",
    "torch": "2.13.0",
    "code": "0123456789ab",
    "processor": "A",
}


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        (
            {"python": "3.11.2"},
            "host b: Python must be 3.12.3 as on this machine, got 3.11.2; install Python 3.12.3 "
            "there",
        ),
        (
            {"ray": "2.59.0"},
            "host b: Ray must be 2.60.0 as on this machine, got 2.59.0; install Ray 2.60.0 there",
        ),
        (
            {"fairbed": None},
            "host b: Fairbed must be 0.1.0 as on this machine, got none; install Fairbed 0.1.0 "
            "there",
        ),
        (
            {"scipy": "1.0"},
            "host b: scipy must be absent as on this machine, got 1.0; install scipy 1.0 here",
        ),
        (
            {"code": "ba9876543210"},
            "host b: the files of Fairbed must be those of this machine, got other ones in version "
            "0.1.0 (ba9876543210 there, 0123456789ab here); install the same build there",
        ),
        ({"torch": None}, None),
        ({"processor": "B"}, None),
        ({}, None),
    ],
)
def test_the_first_difference_is_one_line(theirs: dict[str, str | None], line: str | None) -> None:
    facts = {name: value for name, value in {**OURS, **theirs}.items() if value is not None}
    assert difference("b", facts, OURS) == line


def test_ray_refuses_other_versions_with_our_line() -> None:
    error = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.11.2\n"
        "This process on node 10.0.0.2 was started with:\n    Ray: 2.60.0\n    Python: 3.12.3\n"
    )
    line = "host h:1: Python must be 3.12.3 as on this machine, got 3.11.2; install Python 3.12.3"
    assert difference_in(error, "h:1") == f"{line} there"
    assert difference_in("no version", "h:1") is None


def test_other_processors_are_a_warning() -> None:
    assert processors_line({"a": "X", "b": "X"}) is None
    line = processors_line({"a": "X", "b": "Y"})
    assert line is not None
    assert "(a: X; b: Y)" in line


def test_a_host_without_fairbed_can_report(tmp_path: Path) -> None:
    """Its function is sent by value."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    sent = tmp_path / "function"
    sent.write_bytes(cloudpickle.dumps(hosts.reporter()))
    code = (
        "import pickle, sys; sys.modules['fairbed'] = None; "
        f"print(*pickle.load(open({str(sent)!r}, 'rb'))())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"python", "processor", "numpy"} <= set(done.stdout.split())
    assert "code" not in done.stdout.split()
    assert {"python", "processor", "numpy", "fairbed", "code"} <= facts_here().keys()


@pytest.mark.parametrize("text", ["", ":1", "host:", "host:x", "host:70000", "ray://host:10001"])
def test_an_address_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="must be local, or HOST:PORT of the head"):
        split_address(text)


def test_an_address_may_leave_the_port_out() -> None:
    assert split_address("head") == ("head", 6379)
    assert split_address("[::1]:7") == ("::1", 7)


def test_a_dead_address_is_one_line() -> None:
    with pytest.raises(ClusterError, match=r"--cluster 127.0.0.1:1: a Ray cluster must answer the"):
        check_joinable("127.0.0.1:1")
