"""Commands with a network and control groups of their own, on the real kernel."""

import json
import pwd
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fairbed.testbed.backends.network.sweep import NAMESPACES
from tests.testbed.backends.network.conftest import host_view, missing_since
from tests.testbed.shape.conftest import TIMEOUT_S, Shape, Start, problem


@pytest.fixture(autouse=True)
def untouched_machine() -> Iterator[None]:
    """Skip where namespaces do not work; fail a test that changes the host's namespace."""
    if (reason := problem()) is not None:
        pytest.skip(reason)
    before = host_view()
    yield
    assert missing_since(before) == []


@pytest.fixture
def server() -> Iterator[int]:
    """A server outside: echoes what it is sent, up to the end of a connection; its port."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    def answer(peer: socket.socket) -> None:
        with peer:
            size = int.from_bytes(peer.recv(4), "big")
            peer.sendall(bytes(size))

    with socket.create_server(("0.0.0.0", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        port: int = listener.getsockname()[1]
        yield port
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(TIMEOUT_S)


CLIENT = """
import os, socket, sys, time
address, size = (os.environ["FAIRBED_HUB"], int(sys.argv[1])), int(sys.argv[2])
trips = []
for _ in range(5):
    begun = time.monotonic()
    socket.create_connection(address).close()
    trips.append(time.monotonic() - begun)
with socket.create_connection(address) as link:
    link.sendall(size.to_bytes(4, "big"))
    got = len(link.recv(1 << 16))
    begun, first = time.monotonic(), got
    while got < size:
        got += len(link.recv(1 << 16))
    lasted = time.monotonic() - begun
print(sorted(trips)[2], 8 * (got - first) / lasted)
"""
"""Prints the median time of a handshake, and the goodput after the first piece has come."""


@pytest.mark.full
@pytest.mark.alone
def test_a_client_inside_reaches_a_server_outside_at_the_rate_and_delay_of_its_link(
    shape: Shape, server: int, tmp_path: Path
) -> None:
    link = ("--down", "8mbit", "--up", "4mbit", "--delay", "20ms", "--json", "how.json")
    client = (sys.executable, "-c", CLIENT, str(server), "2000000")
    done = shape("--cpu", "0.9", *link, "--", *client)
    assert done.returncode == 0, done.stderr
    trip_s, goodput_bps = map(float, done.stdout.split())
    report = json.loads((tmp_path / "how.json").read_text())
    assert trip_s >= 2 * 0.02
    assert goodput_bps < 1.03 * 8e6
    if report["is_valid"]:  # no contention
        assert trip_s < 1.5 * 2 * 0.02
        assert goodput_bps > 0.9 * 8e6
    assert report["link"]["down_bytes"] > 2_000_000


def test_nothing_else_is_reached_from_inside(shape: Shape, server: int) -> None:
    code = (
        "import socket\n"
        "for where in ('127.0.0.1', '192.0.2.1'):\n"
        f"    try: socket.create_connection((where, {server}), 2.0); print('reached')\n"
        "    except OSError as exc: print(exc.strerror)\n"
    )
    done = shape("--down", "10mbit", "--", sys.executable, "-c", code)
    assert done.stdout == "Connection refused\nNetwork is unreachable\n"


def test_a_profile_is_enough(shape: Shape, tmp_path: Path) -> None:
    done = shape("raspberry-pi-4b", "--json", "how.json", "--", "sh", "-c", "echo $FAIRBED_HUB")
    assert done.returncode == 0, done.stderr
    socket.inet_aton(done.stdout.strip())
    report = json.loads((tmp_path / "how.json").read_text())
    assert report["cpu"]["asked_cores"] == pytest.approx(0.425)
    assert report["link"]["down_bps"] == pytest.approx(108e6)
    assert report["memory_limit_bytes"] == 4 << 30


def test_a_process_that_needs_more_memory_than_the_device_has_is_killed_and_reported(
    shape: Shape,
) -> None:
    hungry = "x = bytearray(300 << 20); print('survived')"
    done = shape("--memory", "64M", "--", sys.executable, "-c", hungry)
    assert (done.returncode, done.stdout) == (-9, "")
    (line,) = done.stderr.splitlines()
    assert line == (
        "fairbed: shape: 1 process was killed because the memory of the device, "
        "64 MiB, was full; set more with --memory"
    )


def test_the_command_may_run_as_another_user(shape: Shape) -> None:
    user = pwd.getpwnam("nobody")
    done = shape("--cpu", "0.5", "--user", "nobody", "--", "sh", "-c", "id -u; id -G; echo $HOME")
    assert done.stdout == f"{user.pw_uid}\n{user.pw_gid}\n{user.pw_dir}\n"


@pytest.mark.full
@pytest.mark.alone
def test_a_trace_changes_the_link_while_the_command_runs(
    shape: Shape, server: int, tmp_path: Path
) -> None:
    (tmp_path / "hills.csv").write_text("t_s,mbps\n0,8\n1,2\n2,8\n3,2\n")
    client = (sys.executable, "-c", CLIENT, str(server), "2500000")
    done = shape("--trace", "hills.csv", "--json", "how.json", "--", *client)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "how.json").read_text())["link"]
    assert 3e6 < report["down_bps"] < 7e6
    _, goodput_bps = map(float, done.stdout.split())
    assert goodput_bps < 7e6


@pytest.mark.full
def test_devices_nest(shape: Shape) -> None:
    inner = (
        sys.executable,
        "-m",
        "fairbed.testbed.cli.main",
        "shape",
        "--cpu",
        "0.25",
        "--down",
        "1mbit",
        "--",
    )
    done = shape("--cpu", "0.5", "--down", "10mbit", "--", *inner, "sh", "-c", "exit 6")
    assert done.returncode == 6, done.stderr


def _leftovers(tag: str) -> list[Path]:
    roots = (NAMESPACES, Path("/run/fairbed"), Path("/sys/fs/cgroup"))
    return [path for root in roots for path in root.rglob(f"*{tag}*")]


def test_after_kill_9_everything_is_removed_at_once(start: Start) -> None:
    script = "cut -d: -f3 /proc/self/cgroup | grep -m1 fairbed.shape; exec sleep 1000"
    process = start("--cpu", "0.5", "--down", "10mbit", "--", "sh", "-c", script)
    assert process.stdout is not None
    tag = process.stdout.readline().strip().split(".")[2]
    assert _leftovers(tag)
    watcher = next(
        child
        for child in psutil.Process(process.pid).children()
        if "fairbed.testbed.shape.cleanup_watchdog" in child.cmdline()
    )
    process.kill()
    watcher.wait(TIMEOUT_S)
    assert _leftovers(tag) == []
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert tag not in links


def test_a_signal_while_the_device_is_made_removes_everything(start: Start) -> None:
    process = start("--cpu", "0.5", "--down", "10mbit", "--", "sh", "-c", "echo no")
    child = None
    while child is None and process.poll() is None:  # it has begun when it has a child
        child = next(iter(psutil.Process(process.pid).children()), None)
    process.terminate()
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode in (-15, 0)
    assert "fault" not in err
    assert out in ("", "no\n")


@pytest.mark.full
def test_the_command_ends_when_its_device_fails(start: Start, tmp_path: Path) -> None:
    (tmp_path / "hills.csv").write_text("t_s,mbps\n0,8\n0.5,2\n")
    process = start("--trace", str(tmp_path / "hills.csv"), "--", "sh", "-c", "echo on; sleep 1000")
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    shaper = next(c for c in psutil.Process(process.pid).children() if c.name() == "tc")
    shaper.kill()
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 125
    (line,) = err.splitlines()
    assert line.startswith("fairbed: shape: network: tc must stay alive")
