"""The command that installs a missing package into the environment that runs Fairbed."""

import shutil
import sys
from pathlib import Path

EXTRAS = {
    **dict.fromkeys(
        (
            "argcomplete",
            "plotext",
            "safetensors",
            "scipy",
            "sklearn",
            "textual",
            "textual_plotext",
            "threadpoolctl",
            "tomli_w",
        ),
        "testbed",
    ),
    **dict.fromkeys(("bcrypt", "cryptography", "segno"), "lab"),
    **dict.fromkeys(("aiohttp", "textual_serve"), "web"),
    **dict.fromkeys(("pandas", "pyarrow"), "analysis"),
    "PIL": "testbed",
    "backports": "testbed",
    "amqtt": "broker",
    **dict.fromkeys(("prometheus_client", "tensorboardX"), "metrics"),
    "matplotlib": "figures",
    "onnx": "torch",
    "ray": "cluster",
    "torch": "torch",
}
"""The extra that contains a module, by the name of the module."""


def what_to_install(exc: ModuleNotFoundError) -> str | None:
    """Return what to do about a missing package; None if no extra contains it."""
    missing = (exc.name or "").partition(".")[0]
    if missing not in EXTRAS:
        return None
    command = install_command(f"fairbed[{EXTRAS[missing]}]")
    return f"the package {missing} must be installed, got none; run: {command}"


def install_command(requirement: str) -> str:
    """Return the command, which works where the system's Python refuses `pip install` (PEP 668)."""
    prefix = Path(sys.prefix)
    quoted = f"'{requirement}'" if "[" in requirement else requirement
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx runpip {prefix.name} install {quoted}"
    if (prefix / "uv-receipt.toml").is_file():
        return f"uv pip install --python {prefix} {quoted}"
    pip = shutil.which("pip")
    if pip is not None and Path(pip).parent == Path(sys.executable).parent:
        return f"pip install {quoted}"
    return f"{sys.executable} -m pip install {quoted}"
