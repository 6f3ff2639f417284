"""The end of a run when a part of its fleet has ended."""

import anyio
import pytest

from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.run.stopping import StopControl

GONE = "x/cpu.max: the limit is gone; start again"


@pytest.mark.parametrize(
    ("ended", "found"),
    [
        (
            HelperEnded("proxy-0", -9, False, False),
            "proxy-0: ended with signal 9; the fleet is lost",
        ),
        (HelperEnded("control groups", 1, False, False, GONE), GONE),
        (HelperEnded("proxy-0", -9, True, False), None),
    ],
)
def test_the_end_of_a_helper_fails_the_run_and_names_the_cause_if_it_is_known(
    ended: HelperEnded, found: str | None
) -> None:
    async def failure() -> Exception | None:
        stop = StopControl()
        stop.on_process_end(ended)
        return stop.failure

    why = anyio.run(failure)
    assert (None if why is None else str(why)) == found
