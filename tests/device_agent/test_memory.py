"""What an agent process does not load, and that it is there when somebody needs it."""

import subprocess
import sys
from importlib import metadata

from fairbed.device_agent.memory import installed_version

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


def test_an_agent_loads_no_http_until_somebody_asks_for_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_versions_are_those_of_the_records() -> None:
    for distribution in ("numpy", "onnxruntime", "aiomqtt"):
        assert installed_version(distribution) == metadata.version(distribution)
    assert installed_version("no-such-thing") is None
