"""Modules that an agent process loads only on first use."""

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.errors import NotPrepared, RoundFailed
from fairbed.device_agent.host import Host, UnlimitedPace
from fairbed.device_agent.installed import installed_entry_points, installed_version, known_rules
from fairbed.device_agent.sensors import RealSensors
from fairbed.device_agent.worker import TrainingThread
from fairbed.wire.messages import LOCAL_RULES_GROUP, Manifest, Train
from tests.device_agent.clock import ManualClock

SCRIPT = """
import sys
from fairbed.device_agent.memory import defer_urllib
defer_urllib()
import fairbed.device_agent.process
assert "http.client" not in sys.modules, "http.client"
assert "email.message" not in sys.modules, "email"
import urllib.request
assert urllib.request.getproxies() is not None
assert "http.client" in sys.modules
"""


HEAPS = """
import ctypes, sys, threading
from fairbed.device_agent.memory import share_one_heap

if sys.argv[1] == "one":
    share_one_heap()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
all_run = threading.Barrier(3)

def allocate():
    libc.malloc(1000)
    all_run.wait()

for _ in range(2):
    threading.Thread(target=allocate).start()
all_run.wait()
libc.malloc_info(0, ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w")))
libc.fflush(None)
"""


def test_an_agent_loads_no_http_module_before_its_first_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.anyio
async def test_a_device_whose_training_cannot_be_imported_is_not_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(clock=ManualClock(), pace=UnlimitedPace(), sensors=RealSensors())
    thread = TrainingThread(host, BlobCache(tmp_path, 1_000), tmp_path)
    monkeypatch.setitem(sys.modules, "fairbed.device_agent.training_work", None)
    with pytest.raises(NotPrepared, match=r"numpy .* must be importable, got"):
        await thread.prepare(mock.Mock(spec=Manifest), mock.Mock())
    assert not thread.is_prepared
    with pytest.raises(RoundFailed, match="no longer on this device"):
        thread.blob_for(mock.Mock(spec=Train))


def test_installed_versions_equal_those_of_the_metadata() -> None:
    for distribution in ("numpy", "onnxruntime", "aiomqtt"):
        assert installed_version(distribution) == metadata.version(distribution)
    assert installed_version("no-such-thing") is None


def test_installed_entry_points_equal_those_of_the_metadata() -> None:
    for group in ("console_scripts", "pytest11", "hypothesis"):
        expected = {point.name for point in metadata.entry_points(group=group)}
        assert installed_entry_points(group) == sorted(expected)
    assert installed_entry_points("pytest11") != []
    assert installed_entry_points("no.such.group") == []


def test_what_is_installed_is_read_once_for_all_agents_of_a_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "rules_of_mine-1.5.dist-info"
    record.mkdir()
    text = f"[{LOCAL_RULES_GROUP}]\nMine = a:B\n# no = a:B\n[other]\nyours = a:C\n"
    (record / "entry_points.txt").write_text(text)
    (tmp_path / "broken-1.dist-info").mkdir()
    (tmp_path / "broken-1.dist-info" / "entry_points.txt").write_bytes(b"\xff")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "no-such-folder"), str(tmp_path)])
    (tmp_path / "of_debian-1.24.2-py3.11.egg-info").write_text("Metadata-Version: 2.1")
    assert installed_version("rules-of-mine") == "1.5"
    assert installed_version("of_debian") == "1.24.2"
    assert known_rules(()) == ("Mine", "propfair")
    with mock.patch("os.listdir") as listed, mock.patch("pathlib.Path.read_text") as read:
        assert known_rules(["x:Y"]) == ("Mine", "propfair", "x:Y")
        assert installed_version("no-such-thing") is None
    assert not listed.called
    assert not read.called


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(("whose", "heaps"), [("one", 1), ("each", 3)])
def test_threads_share_one_heap(whose: str, heaps: int) -> None:
    command = [sys.executable, "-c", HEAPS, whose]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60.0)
    assert found.stdout.count("<heap nr=") == heaps
