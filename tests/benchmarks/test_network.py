"""The benchmarks of namespaces, small enough to be quick."""

import json

import anyio
import pytest

from benchmarks import link_fidelity, network_cost
from benchmarks._quiet import WAIT_LIMIT, Window, measure, row
from testbed.backends.network.probe import probe


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


@pytest.mark.usefixtures("network")
def test_link_fidelity_tells_target_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--json", "--repeats", "1", "--patience", "1", "--only", "delay"]
    assert link_fidelity.main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [each["backend"] for each in rows] == ["namespace"] * 6
    assert rows[0].keys() == {
        *("backend", "quantity", "target", "achieved"),
        *("spread", "error", "limit", "repeats", "ok"),
    }


def test_a_row_is_the_median_of_windows_that_count() -> None:
    found = row("goodput", 10.0, [9.9, 10.1, 12.0], 0.03)
    assert (found.achieved, found.spread, found.ok) == (10.1, (9.9, 12.0), True)
    assert found.error == pytest.approx(0.01)
    assert not row("goodput", 10.0, [12.0], 0.03).ok


def test_a_quantity_that_was_never_measured_is_not_ok() -> None:
    found = row("goodput", 10.0, [], 0.03)
    assert (found.achieved, found.ok, found.repeats) == (None, False, 0)


def test_a_window_in_which_someone_waited_does_not_count() -> None:
    assert Window(1.0, WAIT_LIMIT).counts
    assert not Window(1.0, WAIT_LIMIT + 0.01).counts
    assert measure(lambda: 3.5).value == 3.5
