"""Why a device cannot be emulated, in the words of `fairbed shape`."""

import pytest

from fairbed.testbed.backends.cgroups.places import USE_SCOPE
from fairbed.testbed.shape.session import without_backend_advice


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (
            f"control groups: must delegate cpu; {USE_SCOPE}",
            "control groups: must delegate cpu; put `systemd-run --user --scope -p Delegate=yes` "
            "in front of the command",
        ),
        (
            "the kernel must have HTB; sudo modprobe -a sch_htb, or use the process backend, "
            "which shapes by proxies",
            "the kernel must have HTB; sudo modprobe -a sch_htb",
        ),
        (
            "network namespaces need Linux; use the process backend",
            "network namespaces need Linux; be root of this machine",
        ),
    ],
)
def test_advice_to_choose_another_backend_is_left_out(problem: str, expected: str) -> None:
    assert without_backend_advice(problem) == expected
