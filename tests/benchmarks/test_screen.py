"""What the control room costs is measured on one that really shows a run."""

import sys

import pytest

from benchmarks import screen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")


@pytest.mark.timeout(120)
def test_a_room_on_a_terminal_draws_what_happens_and_is_left_by_its_key() -> None:
    cost = screen.measure(3, 3.0, (100, 30), warm_s=4.0)
    assert cost.devices == 3
    assert cost.start_cpu_s > 0.0
    assert 0.0 < cost.core_share < 2.0
    assert cost.bytes_per_s > 0.0


@pytest.mark.parametrize("options", [["--devices", "few"], ["--size", "large"]])
def test_options_that_mean_nothing_are_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        screen.main(options)
    assert refused.value.code == 2
