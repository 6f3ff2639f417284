"""The benchmarks of namespaces, small enough to be quick."""

import json

import anyio
import pytest

from benchmarks import network_cost
from benchmarks._valid_windows import WAIT_LIMIT, Window, measure
from fairbed.testbed.backends.network.probe import probe


@pytest.fixture
def network() -> None:
    """Skip where there are no networks."""
    problem = anyio.run(probe).problem
    if problem is not None:
        pytest.skip(problem)


@pytest.mark.usefixtures("network")
def test_network_cost_tells_what_devices_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert network_cost.main(["--devices", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["devices"] == 3
    assert all(result[name] > 0.0 for name in ("set_up_s", "change_us", "teardown_s"))


def test_a_window_in_which_someone_waited_does_not_count() -> None:
    assert Window(1.0, WAIT_LIMIT).is_valid
    assert not Window(1.0, WAIT_LIMIT + 0.01).is_valid
    assert measure(lambda: 3.5).value == 3.5
