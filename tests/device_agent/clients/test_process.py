"""The process of a client: its end with the agent, its output, its memory; other interpreters."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbed.device_agent.clients.child.frames import FrameError, parts_of, size_of
from fairbed.device_agent.clients.child.processes import descendants
from fairbed.device_agent.clients.process import (
    MAX_LINE,
    MAX_LINES,
    ClientCode,
    ClientFailed,
    ClientProcess,
    ClientServer,
    ClientStopped,
    Lines,
)
from tests.device_agent.clients.client import ARRAYS, CODE, RAW, VECTOR, config

LIMIT_S = 30.0

ABOUT: dict[str, Any] = {
    "do": "open",
    "device": "pi-07",
    "number": 0,
    "count": 1,
    "run": "a",
    "folder": "",
    "options": {},
    "is_list": False,
    "examples": {},
    "arrays": [[array.name, array.dtype, list(array.shape)] for array in ARRAYS],
}


def never() -> bool:
    return False


def after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


def code(path: str = "behaving:Client", **changed: Any) -> ClientCode:
    return ClientCode(**{"kind": "class", "folder": str(CODE), "path": path, **changed})


@pytest.fixture
def server() -> Iterator[ClientServer]:
    """A server of the clients of tests."""
    made = ClientServer(code())
    yield made
    made.close()


def opened(server: ClientServer, **about: Any) -> ClientProcess:
    process = ClientProcess(server.address)
    process.await_fork(never, server)
    process.request({**ABOUT, **about}, {"state": b""}, never, 0.0)
    return process


def fit(
    process: ClientProcess, how: str = "", should_stop: Callable[[], bool] = never
) -> dict[str, Any]:
    header = {"do": "fit", "round": 1, "seed": 1, "deadline_s": 9.0}
    header["hyperparameters"] = {"learning_rate": 0.5}
    parts = {"vector": VECTOR.tobytes(), "raw": RAW, "config": config(how)}
    return process.request(header, parts, should_stop, 0.1)[0]


def await_end(pids: list[int]) -> None:
    until = time.monotonic() + LIMIT_S
    while alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, f"alive: {alive}"
        time.sleep(0.02)


AGENT = """
import sys, time
from tests.device_agent.clients import test_process as test
server = test.ClientServer(test.code())
process = test.opened(server, folder=sys.argv[1])
print(server.pid, process.pid, flush=True)
test.fit(process, "hang")
"""


def test_nothing_of_a_client_outlives_an_agent_that_is_killed(tmp_path: Path) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    with agent, agent.stdout as output:
        server, client = map(int, output.readline().split())
        until = time.monotonic() + LIMIT_S
        while not (tmp_path / "pids").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        started = list(descendants(server))
        assert len(started) >= 5  # server, client, two commands, and a daemon of it
        assert client in started
        agent.kill()
        await_end(started)


def test_clients_end_with_a_server_that_is_killed(server: ClientServer, tmp_path: Path) -> None:
    process = opened(server, folder=str(tmp_path))
    started: list[int] = []

    def kill() -> bool:
        if not started and (tmp_path / "pids").exists():
            started.extend(descendants(server.pid))
            os.kill(started[1], signal.SIGKILL)
        return False

    with pytest.raises(ClientFailed, match="its process must go on, but"):
        fit(process, "hang", kill)
    assert len(started) >= 6  # watcher, server, client, two commands, and a daemon of it
    assert process.pid in started
    await_end(started[1:])


@pytest.mark.parametrize("path", ["lasting:Client", "lasting_in_c:Client"])
def test_an_import_without_an_end_ends_with_its_agent(tmp_path: Path, path: str) -> None:
    starts = "import subprocess\nsubprocess.Popen(['sleep', '987'], start_new_session=True)\n"
    (tmp_path / "lasting.py").write_text(f"{starts}import time\ntime.sleep(987)\n")
    (tmp_path / "lasting_in_c.py").write_text(f"{starts}sum(range(10**12))\n")
    made = ClientServer(code(path, folder=str(tmp_path)))
    process = ClientProcess(made.address)
    until = time.monotonic() + LIMIT_S
    with pytest.raises(ClientStopped):
        process.await_fork(
            lambda: len(list(descendants(made.pid))) == 3 or time.monotonic() > until, made
        )
    started = list(descendants(made.pid))
    assert len(started) == 3, "what watches the server, the server, and what the import has started"
    begun = time.monotonic()
    made.close()
    assert time.monotonic() - begun < LIMIT_S
    await_end(started)


def test_clients_are_forks_of_one_import_and_share_its_memory(server: ClientServer) -> None:
    first, second = opened(server), opened(server)
    assert first.import_cpu_s == second.import_cpu_s > 0.0
    assert first.pid != second.pid
    assert private_bytes(second.pid) < 0.5 * resident_bytes(second.pid)
    first.close()
    assert fit(second)["n"] == 4
    second.close()


def test_a_socket_takes_more_than_usual_at_a_time(server: ClientServer) -> None:
    process = opened(server)
    usual, other = socket.socketpair()
    with usual, other:
        sizes = [
            link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for link in (process._link, usual)
        ]
    assert sizes[0] >= 2 * sizes[1]
    process.close()


def private_bytes(pid: int) -> int:
    return _smaps(pid, "Private_Dirty:") + _smaps(pid, "Private_Clean:")


def resident_bytes(pid: int) -> int:
    return _smaps(pid, "Rss:")


def _smaps(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024


def test_a_client_of_a_stopped_agent_is_stopped(server: ClientServer, tmp_path: Path) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    with agent, agent.stdout as output:
        _, client = map(int, output.readline().split())
        agent.send_signal(signal.SIGSTOP)
        await_state(client, "T")
        agent.send_signal(signal.SIGCONT)
        await_state(client, "S")
        agent.kill()
        await_end([client])


def await_state(pid: int, state: str) -> None:
    until = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_hundred_megabytes_of_output_take_no_memory(server: ClientServer) -> None:
    process = opened(server)
    before = resident_bytes(os.getpid())
    with pytest.raises(ClientFailed) as caught:
        fit(process, "print")
    assert resident_bytes(os.getpid()) - before < 20_000_000
    assert "the end" in caught.value.lines
    assert all(len(line) <= MAX_LINE for line in caught.value.lines)


def test_output_is_kept_by_line_and_printable() -> None:
    lines = Lines()
    lines.add(b"first\nsec")
    lines.add(b"ond\x1b[31m red\x1b[0m\x1b[2J\nlast")
    assert lines.last() == ["first", "second red?[2J", "last"], "colours are left out"
    for number in range(1000):
        lines.add(b"%d\n" % number)
    assert lines.last(1000) == [str(number) for number in range(1000 - MAX_LINES, 1000)]


def test_interpreters_without_fairbed_run_a_client(tmp_path: Path) -> None:
    """The child's files import nothing but the standard library and numpy."""
    script = (
        "import sys, runpy\n"
        "class Refused:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('msgspec', 'anyio', 'onnxruntime'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refused())\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    (tmp_path / "start.py").write_text(script)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{tmp_path}/start.py" "$@"\n')
    python.chmod(0o755)
    made = ClientServer(code(python=str(python)))
    try:
        process = opened(made)
        assert fit(process)["n"] == 4
        process.close()
    finally:
        made.close()


@pytest.mark.parametrize(
    "sizes",
    [None, [["a"]], [["a", 1.0]], [["a", -1]], [["a", 60], ["b", 60]], [["a", True]], [[1, 1]]],
)
def test_a_frame_of_wrong_parts_is_refused(sizes: Any) -> None:
    with pytest.raises(FrameError):
        size_of(sizes, 100)


def test_parts_are_views_of_the_payload() -> None:
    payload = memoryview(bytearray(b"abcde"))
    sizes = [["a", 2], ["b", 3]]
    assert size_of(sizes, 5) == 5
    parts = parts_of(sizes, payload)
    payload[:] = b"vwxyz"
    assert {name: bytes(part) for name, part in parts.items()} == {"a": b"vw", "b": b"xyz"}
