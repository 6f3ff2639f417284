"""What a device is: said once, in its hello."""

import platform

from device_agent.engines.onnx import engine_version
from device_agent.host import Sensors
from device_agent.lean import installed_version
from wire.codecs import CODECS
from wire.messages import Capabilities

DISTRIBUTION = "fairbed"

SKILLS = ("loss",)
"""What this agent can be asked beside training."""


def capabilities(sensors: Sensors, engine_threads: int) -> Capabilities:
    """Return what this device is.

    Raises:
        EngineError: The training engine is not installed.
    """
    return Capabilities(
        cores=sensors.cores(),
        memory_bytes=sensors.memory_bytes(),
        machine=platform.machine(),
        python=platform.python_version(),
        engine=engine_version(),
        engine_threads=engine_threads,
        agent=agent_version(),
        model=sensors.board(),
        codecs=CODECS,
        skills=SKILLS,
    )


def agent_version() -> str:
    """Return the version of this package, or `unknown` when it is not installed."""
    return installed_version(DISTRIBUTION) or "unknown"
