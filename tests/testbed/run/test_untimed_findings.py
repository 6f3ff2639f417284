"""Before its first round a run states which share of exchanges will be untimed, and a remedy."""

import os
import sys

import numpy as np
import pytest
from msgspec import structs

from fairbed.testbed.api.admission import PreparedDilation
from fairbed.testbed.api.planning import predictor_of
from fairbed.testbed.emulation.machine_delay import LARGEST_AUTO, ExchangeTimes
from fairbed.testbed.experiment.file import Experiment, parse_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.experiment.shards import FleetData, load_examples, task_of
from fairbed.testbed.replay.costs import SHIPPED_COSTS
from fairbed.testbed.replay.expected import expected_exchanges
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.run.preflight import choose_dilation, untimed_findings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FLEET = """
name = "short"
rounds = 3
[data]
dataset = "digits"
[model]
name = "mlp"
[selection]
policy = "uniform"
per_round = 2
[emulation]
dilation = "auto"
[[fleet]]
profile = "raspberry-pi-4b"
count = 6
"""


def experiment(text: str = FLEET) -> Experiment:
    return parse_experiment(tomllib.loads(text), "short.toml")


def predicted(plan: Experiment) -> ExchangeTimes:
    dataset = load_examples(plan, os.environ)
    names = [device.spec.name for device in plan_fleet(plan, os.environ)]
    seed = plan.seed_for("data")
    data = FleetData(dataset, plan.data, devices=plan.shards, seed=seed, names=names)
    costs = SHIPPED_COSTS["mlp-64-64-10"]
    times = expected_exchanges(plan, data, task_of(plan, dataset), costs)
    assert times is not None
    return times


def times_of(seconds: float) -> ExchangeTimes:
    return ExchangeTimes(np.full((1, 2), seconds), np.full((1, 2), seconds), 0.0)


def test_predicted_exchanges_are_those_of_the_replay() -> None:
    plan = experiment()
    replay, times = setup_of(plan), predicted(plan)
    rows = np.arange(6)
    exchanges = replay.world.exchange(1, 0.0, rows)
    np.testing.assert_array_equal(times.cold_s[0], exchanges.ready_s + exchanges.upload_s)
    kept_s = times.cold_s[0] - times.warm_s[0] - exchanges.load_s
    assert (kept_s > 0.0).all(), "a connection in use has no slow start"
    assert times.warm_share == pytest.approx(2 / 6)
    assert 0.01 < times.shortest_s < 0.1


def test_a_device_in_a_cell_and_one_without_a_profile_have_no_predicted_time() -> None:
    cell = FLEET + 'cell = "station"\n[[cell]]\nname = "station"\ndown_bps = 1e7\nup_bps = 1e7\n'
    assert not predicted(experiment(cell)).is_known
    assert predictor_of(experiment(FLEET.partition("[[fleet]]")[0])) is None


def test_many_untimed_exchanges_are_a_warning_with_the_dilation_that_helps() -> None:
    (found,) = untimed_findings(experiment(), times_of(0.03), 1.0, cores=2.0)
    assert found.level == "warning"
    assert found.kind == "untimed-expected"
    assert found.text.startswith("about ")
    assert "the shortest takes 0.03 s, so that it may be delayed by 1.5 ms" in found.text
    k = int(found.text.partition("emulation.dilation=")[2].split()[0])
    (enough,) = untimed_findings(experiment(), times_of(0.03), float(k), cores=2.0)
    assert enough.level == "info"
    (less,) = untimed_findings(experiment(), times_of(0.03), float(k - 1), cores=2.0)
    assert less.level == "warning"


def test_physical_devices_and_endless_needs_get_other_advice() -> None:
    mixed = experiment(FLEET + '[[fleet]]\nphysical = ["pi-1"]\n')
    (found,) = untimed_findings(mixed, times_of(0.03), 1.0, cores=2.0)
    assert "emulation.dilation=" not in found.text
    assert "select fewer devices" in found.text
    (found,) = untimed_findings(experiment(), times_of(1e-4), 1.0, cores=2.0)
    assert f"emulation.dilation={LARGEST_AUTO} leaves about " in found.text
    (found,) = untimed_findings(experiment(), times_of(1e-4), float(LARGEST_AUTO), cores=2.0)
    assert "emulation.dilation=" not in found.text
    unknown = ExchangeTimes(np.full((1, 1), np.nan), np.full((1, 1), np.nan), 0.0)
    assert not list(untimed_findings(experiment(), unknown, 1.0, cores=2.0))


def test_auto_raises_the_dilation_for_short_exchanges_and_a_number_stays() -> None:
    plan, requested = experiment(), list[int]()

    def sufficient(least: int) -> int:
        requested.append(least)
        return 7

    devices = plan_fleet(plan, {})
    assert choose_dilation(plan, devices, 64.0, sufficient=sufficient) == 7.0
    assert choose_dilation(plan, devices, 64.0, 3.0, sufficient=sufficient) == 3.0, "resumed"
    emulation = structs.replace(plan.emulation, dilation=2.0)
    fixed = structs.replace(plan, emulation=emulation)
    assert choose_dilation(fixed, devices, 64.0, sufficient=sufficient) == 2.0
    assert requested == [1]


def test_auto_dilates_no_fleet_with_devices_whose_time_cannot_be_slowed() -> None:
    plain = experiment(FLEET + '[[fleet]]\nname = "pc"\n')
    never = predicted  # would fail: a fleet with such devices needs no prediction
    assert choose_dilation(plain, plan_fleet(plain, {}), 64.0, sufficient=never) == 1.0  # type: ignore[arg-type]  # never called


def test_the_choice_keeps_what_it_loaded_for_the_run() -> None:
    plan = experiment()
    plan = structs.replace(plan, emulation=structs.replace(plan.emulation, host_core_speed=1.0))
    predict = predictor_of(plan)
    assert predict is not None
    chosen = PreparedDilation(plan, predict, cores=2.0)
    k = chosen.sufficient(1)
    assert 2 <= k <= LARGEST_AUTO
    assert chosen.task is not None
    assert chosen.task.dataset.n == 1797
