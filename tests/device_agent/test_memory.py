"""Modules that an agent process loads only on first use."""

import subprocess
import sys
from importlib import metadata

from fairbed.device_agent.memory import installed_entry_points, installed_version

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


def test_an_agent_loads_no_http_module_before_its_first_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


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
