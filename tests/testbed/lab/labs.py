"""Small labs for tests."""

from pathlib import Path

from fairbed.testbed.lab.folder import Lab, LabBroker, LabSettings, free_local_port, init_lab

NOW_S = 1_767_225_600.0
"""2026-01-01, UTC."""


def make_lab(
    folder: Path, broker: LabBroker = "mosquitto", *, addresses: tuple[str, ...] = ("127.0.0.1",)
) -> Lab:
    """Return a new lab in `folder`/lab on free ports; its pointer stays in `folder`."""
    ports = [free_local_port() for _ in range(3)]
    settings = LabSettings(
        broker=broker,
        port=ports[0],
        enrol_port=ports[1],
        local_port=ports[2] if broker == "mosquitto" else None,
        addresses=addresses,
    )
    return init_lab(
        folder / "lab",
        settings,
        now_s=NOW_S,
        environment={"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")},
    )
