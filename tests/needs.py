"""What a test needs of the machine, as marks that skip it with the reason."""

import shutil
import socket

import pytest

from fairbed.testbed.host.broker_process import find_mosquitto


def program(name: str) -> pytest.MarkDecorator:
    """Return the mark of a test that runs a program."""
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed")


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
localhost = pytest.mark.skipif(
    not _resolves("localhost"), reason="the name localhost has no address here"
)
