"""The lines of `fairbed doctor`."""

from fairbed.testbed.cli.doctor import what_failed
from fairbed.testbed.errors import BackendError


def test_a_test_that_took_too_long_has_a_reason() -> None:
    assert what_failed(TimeoutError()) == (
        "no result in 30 s: this machine is too slow, or too busy now"
    )
    assert what_failed(BackendError("podman: not installed")) == "podman: not installed"
