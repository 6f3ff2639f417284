"""A fleet is planned from its file, and refused if it does not fit into this machine."""

from pathlib import Path

import pytest
from msgspec import structs

from fairbed import profiles
from fairbed.coordinator.policy.config import ModelConfig, RoundConfig, SelectionConfig
from fairbed.profiles import LinkQueue, UnknownProfile
from fairbed.profiles.errors import TraceError
from fairbed.profiles.series import Series
from fairbed.testbed.emulation.queues import queue_bytes
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.file import (
    EmulationConfig,
    Experiment,
    ExperimentError,
    FleetConfig,
    SeedsConfig,
    parse_experiment,
)
from fairbed.testbed.experiment.fleet import PlannedDevice, plan_fleet
from fairbed.testbed.run.preflight import choose_dilation, demand_of

FLEET = (
    FleetConfig(profile="raspberry-pi-zero-2w", count=2),  # 0.214 cores of the reference each
    FleetConfig(profile="raspberry-pi-4b"),  # 0.425
)


def experiment(
    per_round: int = 2, fleet: tuple[FleetConfig, ...] = FLEET, **emulation: object
) -> Experiment:
    return Experiment(
        name="fleet",
        fleet=fleet,
        emulation=EmulationConfig(**emulation),  # type: ignore[arg-type]  # keys of the test
        selection=SelectionConfig(per_round=per_round, beta=0.0),
    )


def admitted(plan: Experiment, cores: float, earlier: float | None = None) -> float:
    return choose_dilation(plan, plan_fleet(plan, {}), cores, earlier)


@pytest.mark.parametrize(
    ("per_round", "host_core_speed", "cores"),
    [(1, 1.0, 0.425), (2, 1.0, 0.639), (3, 1.0, 0.853), (2, 2.0, 0.3195)],
)
def test_the_demand_of_a_fleet_is_that_of_its_fastest_cohort(
    per_round: int, host_core_speed: float, cores: float
) -> None:
    plan = experiment(per_round, host_core_speed=host_core_speed)
    assert demand_of(plan, plan_fleet(plan, {})).concurrent_cores == pytest.approx(cores)


def late(per_round: int, max_staleness: int, **emulation: object) -> Experiment:
    """Return an experiment of twelve equal devices in which late devices continue."""
    settings = RoundConfig(late="merge", max_staleness=max_staleness)
    fleet = (FleetConfig(profile="raspberry-pi-4b", count=12),)
    return structs.replace(experiment(per_round, fleet, **emulation), round=settings)


@pytest.mark.parametrize(
    ("per_round", "max_staleness", "devices"), [(2, 1, 4), (2, 3, 8), (3, 3, 12), (4, 5, 12)]
)
def test_late_devices_compute_beside_the_next_rounds(
    per_round: int, max_staleness: int, devices: int
) -> None:
    plan = late(per_round, max_staleness)
    assert demand_of(plan, plan_fleet(plan, {})).concurrent_cores == pytest.approx(0.425 * devices)


@pytest.mark.parametrize(
    ("variant", "candidates", "devices"),
    [("rpow-d", 9, 2), ("pow-d", None, 4), ("pow-d", 9, 9), ("cpow-d", 2, 2)],
)
def test_candidates_of_a_loss_query_compute_at_the_same_time(
    variant: str, candidates: int | None, devices: int
) -> None:
    selection = SelectionConfig(
        policy="power-of-choice",
        per_round=2,
        variant=variant,  # type: ignore[arg-type]  # one of its literals
        candidates=candidates,
    )
    plan = structs.replace(late(2, 1), round=RoundConfig(), selection=selection)
    assert demand_of(plan, plan_fleet(plan, {})).concurrent_cores == pytest.approx(0.425 * devices)


def test_a_fleet_that_has_no_room_for_its_late_devices_is_refused() -> None:
    with pytest.raises(
        ExperimentError,
        match=r"the late devices of 3 earlier rounds need 3\.40 .*; select fewer devices per round "
        r"or lower round\.max_staleness, or set it to 3 or",
    ):
        admitted(late(2, 3), cores=2)
    assert admitted(late(2, 3, dilation=3.0), cores=2) == 3.0
    assert admitted(late(2, 3), cores=5) == 1.0


def test_devices_that_are_not_throttled_have_no_demand() -> None:
    plan = experiment(7, (*FLEET, FleetConfig(count=5)))
    assert demand_of(plan, plan_fleet(plan, {})).concurrent_cores == pytest.approx(0.853)
    assert admitted(plan, cores=2) == 1.0


def test_a_fleet_that_does_not_fit_is_refused_with_the_dilation_that_would() -> None:
    plan = experiment(3, host_core_speed=0.1)
    with pytest.raises(ExperimentError, match=r"need 8\.53 cores at once, and this machine has 2,"):
        admitted(plan, cores=2)
    with pytest.raises(ExperimentError, match='fewer devices per round, or set it to 6 or "auto"'):
        admitted(plan, cores=2)
    assert admitted(experiment(3, host_core_speed=0.1, dilation=6.0), cores=2) == 6.0


def test_a_device_faster_than_a_core_is_refused_by_its_thread() -> None:
    plan = experiment(1, host_core_speed=0.3)
    with pytest.raises(ExperimentError, match=r"one thread .* needs 1\.42 cores"):
        admitted(plan, cores=64)


def test_auto_takes_the_least_that_fits_and_nothing_when_it_fits() -> None:
    plan = experiment(3, host_core_speed=0.1, dilation="auto")
    assert admitted(plan, cores=2) == 6.0
    assert admitted(plan, cores=64) == 5.0, "one thread needs 4.25 cores"
    assert admitted(experiment(3, dilation="auto"), cores=2) == 1.0


def test_a_resumed_run_keeps_its_dilation_if_it_is_enough() -> None:
    plan = experiment(3, host_core_speed=0.1, dilation="auto")
    assert admitted(plan, cores=64, earlier=6.0) == 6.0
    assert admitted(plan, cores=1, earlier=6.0) > 6.0


def test_time_cannot_run_slower_for_a_device_that_is_not_throttled() -> None:
    plan = experiment(1, (FleetConfig(name="pc"), *FLEET), dilation=2.0)
    with pytest.raises(ExperimentError, match="give pc-1 a profile"):
        admitted(plan, cores=2)


def test_a_dilated_device_is_slower_by_that_and_its_truth_is_not() -> None:
    (device, *_) = plan_fleet(experiment(), {})
    slow = device.dilated(4.0)
    before, after = device.spec, slow.spec
    assert before.device is not None
    assert after.device is not None
    assert before.shape is not None
    assert after.shape is not None
    assert after.device.speed_ratio == before.device.speed_ratio / 4
    rates = before.device.storage_read_bytes_per_s, after.device.storage_read_bytes_per_s
    assert rates[0] == 4 * rates[1]
    assert (before.shape.down_bps or 0) == 4 * (after.shape.down_bps or 1)
    assert after.shape.delay_s == 4 * before.shape.delay_s
    assert slow.truth_row() == device.truth_row()


def test_a_sampled_fleet_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    fleet = (FleetConfig(population="phones-2025", count=6),)
    one, again = (plan_fleet(Experiment(name="fleet", seed=3, fleet=fleet), {}) for _ in range(2))
    other = plan_fleet(Experiment(name="fleet", seed=4, fleet=fleet), {})
    assert [d.truth_row() for d in one] == [d.truth_row() for d in again]
    assert [d.truth_row().cpu_speed for d in one] != [d.truth_row().cpu_speed for d in other]
    assert [d.tracks for d in one] == [d.tracks for d in again]
    assert len({d.truth_row().cpu_speed for d in one}) == 6


def test_the_seed_of_the_fleet_alone_changes_the_devices() -> None:
    fleet = (FleetConfig(population="phones-2025", count=4),)
    first = Experiment(name="fleet", fleet=fleet)
    second = Experiment(name="fleet", fleet=fleet, seeds=SeedsConfig(traces=9))
    third = Experiment(name="fleet", fleet=fleet, seeds=SeedsConfig(fleet=9))
    speeds = [[d.truth_row().cpu_speed for d in plan_fleet(e, {})] for e in (first, second, third)]
    assert speeds[0] == speeds[1] != speeds[2]


def test_sampled_devices_have_names_and_truth_rows() -> None:
    fleet = (FleetConfig(population="phones-2025", count=4), FleetConfig(population="phones-2025"))
    devices = plan_fleet(Experiment(name="fleet", fleet=fleet), {})
    assert [d.spec.name for d in devices] == [f"phones-2025-{i}" for i in (1, 2, 3, 4, 5)]
    truth = devices[0].truth_row()
    assert truth.profile == "phones-2025"
    assert truth.down_bps == devices[0].link.down_bps if devices[0].link else False
    assert "of phones-2025: download rates" in truth.details


def test_a_sampled_device_may_have_another_link_and_be_always_there() -> None:
    group = FleetConfig(population="phones-2025", count=4, link="lte-m", always_available=True)
    for device in plan_fleet(Experiment(name="fleet", fleet=(group,)), {}):
        assert device.spec.shape is not None
        assert device.spec.shape.up_bps == 0.3e6
        assert device.tracks.available == Series.constant(1.0)


def test_a_profile_and_a_population_exclude_each_other() -> None:
    raw = {"name": "x", "fleet": [{"profile": "n100", "population": "phones-2025", "count": 4}]}
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(raw, "x.toml")
    assert str(caught.value) == (
        "x.toml: fleet[0]: profile and population exclude each other, got 'n100' and "
        "'phones-2025'; remove one"
    )


def test_an_unknown_population_lists_similar_names() -> None:
    fleet = (FleetConfig(population="phone-2025", count=4),)
    with pytest.raises(
        UnknownProfile, match=r"^phone-2025: no such population; similar names: phones-"
    ):
        plan_fleet(Experiment(name="fleet", fleet=fleet), {})


def test_devices_on_one_trace_are_at_moments_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "walk.toml"
    (tmp_path / "walk.csv").write_text("t_s,mbps\n0,1\n1,2\n2,3\n3,4\n4,5\n", encoding="utf-8")
    number = '_bps = { value = 3e6, trace = "walk.csv", tag = "measured", source = "made up" }\n'
    path.write_text(
        'title = "A walk"\nlicence = "made up"\n[link]\n'
        f"down{number}up{number}"
        'delay_s = { value = 0.01, tag = "measured", source = "made up" }\n',
        encoding="utf-8",
    )
    fleet = (FleetConfig(profile="n100", link=str(path), count=4),)
    devices = plan_fleet(Experiment(name="fleet", fleet=fleet), {})
    links = [device.tracks.link for device in devices if device.tracks.link is not None]
    assert len({link.down_bps for link in links}) == 4
    assert all(link.down_bps == link.up_bps for link in links)
    assert all(link.down_bps.mean == pytest.approx(3e6) for link in links)


TRACE = "# period_s = 4\nt_s,down_mbps,up_mbps\n0,8,2\n1,0,0\n2,4,1\n"


def planned(*groups: FleetConfig, **emulation: object) -> list[PlannedDevice]:
    return plan_fleet(experiment(1, groups, **emulation), {})


def test_a_trace_gives_a_link_its_rates_and_leaves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "moving.csv"
    path.write_text(TRACE, encoding="utf-8")
    group = FleetConfig(profile="raspberry-pi-4b", link="wifi-board", trace=str(path), count=3)
    devices = planned(group)
    starts = set()
    for device in devices:
        assert device.spec.is_driven
        assert device.tracks.link is not None
        assert device.tracks.link.down_bps.mean == pytest.approx(4e6)
        assert device.tracks.link.up_bps.mean == pytest.approx(1e6)
        assert device.link is not None
        assert device.link.delay_s == 0.0025  # of the WiFi
        first = device.schedule.conditions(0.0)
        starts.add(device.schedule.next_change(0.0))
        assert first.outage in (None, "coverage")
    assert len(starts) == 3  # they do not march in step


def test_a_link_that_will_have_jitter_is_known_before_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / "moving.csv"
    path.write_text(TRACE, encoding="utf-8")
    for link, has_jitter in (("5g-driving", True), ("wifi-board", False)):
        (device,) = planned(FleetConfig(link=link, trace=str(path)))
        assert device.spec.has_jitter == has_jitter


def test_a_trace_without_a_link_has_no_delay(tmp_path: Path) -> None:
    path = tmp_path / "moving.csv"
    path.write_text(TRACE, encoding="utf-8")
    (device,) = planned(FleetConfig(trace=str(path)))
    assert device.spec.is_driven
    assert not device.spec.has_jitter
    assert device.spec.shape is not None
    assert device.spec.shape.delay_s == 0.0
    assert device.schedule.conditions(0.0).speed_ratio is None


def test_a_trace_of_zeros_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "silent.csv"
    path.write_text("t_s,mbps\n0,0\n1,0\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"silent\.csv: down_bps must be above 0 somewhere, got"):
        planned(FleetConfig(trace=str(path)))


def test_a_missing_trace_is_refused() -> None:
    with pytest.raises(TraceError, match=r"^nowhere\.csv: "):
        planned(FleetConfig(trace="nowhere.csv"))


def test_devices_with_constant_numbers_are_not_driven() -> None:
    assert not any(
        device.spec.is_driven
        for device in planned(
            FleetConfig(profile="raspberry-pi-4b", link="gigabit-ethernet"), FleetConfig()
        )
        if device.tracks.thermal is None
    )


def test_a_device_that_heats_up_is_driven() -> None:
    (device,) = planned(FleetConfig(profile="raspberry-pi-3b", link="gigabit-ethernet"))
    assert device.spec.is_driven
    assert device.follower(0.0).needs_cpu_time(0.0)


def test_a_board_heats_up_in_a_closed_case_or_in_warm_air() -> None:
    def throttles(**case: float) -> bool:
        group = FleetConfig(profile="raspberry-pi-4b", link="gigabit-ethernet", **case)  # type: ignore[arg-type]  # floats only
        (device,) = planned(group)
        return device.tracks.thermal is not None

    assert not throttles()
    assert not throttles(case_resistance=0.5)
    assert throttles(case_resistance=1.5)
    assert throttles(ambient_celsius=35.0)
    without = FleetConfig(profile="jetson-tx2", ambient_celsius=35.0)
    with pytest.raises(ExperimentError, match="jetson-tx2, got none"):
        planned(without)


def test_dilation_and_a_backend_without_loss_keep_the_truth(tmp_path: Path) -> None:
    link = """
title = "A link that loses"
licence = "made up for this test"
[link]
down_bps = { value = 2e6, tag = "measured", source = "made up" }
up_bps = { value = 1e6, tag = "measured", source = "made up" }
delay_s = { value = 0.02, tag = "measured", source = "made up" }
loss_ratio = { value = 0.01, tag = "measured", source = "made up" }
"""
    path = tmp_path / "lossy.toml"
    path.write_text(link, encoding="utf-8")
    (device,) = planned(FleetConfig(profile="raspberry-pi-4b", link=str(path)))
    shape = device.schedule.conditions(1.0).shape
    assert shape is not None
    assert shape.loss_ratio == 0.01
    clean = device.without(["loss"]).dilated(4.0)
    shape = clean.schedule.conditions(1.0).shape
    assert shape is not None
    assert (shape.loss_ratio, shape.down_bps) == (0.0, 2e6)
    assert clean.spec.shape is not None
    assert (clean.spec.shape.loss_ratio, clean.spec.shape.down_bps) == (0.0, 5e5)
    assert clean.truth_row() == device.truth_row()


def test_an_outage_of_a_group_comes_at_its_time_by_the_clock_of_the_run() -> None:
    plan = parse_experiment(
        {
            "name": "holes",
            "fleet": [
                {
                    "profile": "raspberry-pi-4b",
                    "link": "gigabit-ethernet",
                    "count": 4,
                    "outage": [{"start_s": 10, "duration_s": 5, "kind": "frozen"}],
                }
            ],
        },
        "holes.toml",
    )
    for device in plan_fleet(plan, {}):
        assert device.spec.is_driven
        moments = (9.9, 10.0, 14.9, 15.0)
        outages = [device.schedule.conditions(t).outage for t in moments]
        assert outages == [None, "frozen", "frozen", None]


@pytest.mark.parametrize(
    ("outage", "message"),
    [
        ({"start_s": -1, "duration_s": 5}, r"fleet\[0\]\.outage\[0\]\.start_s: "),
        ({"start_s": 1, "duration_s": 0}, r"fleet\[0\]\.outage\[0\]\.duration_s: "),
        (
            {"start_s": 1, "duration_s": 1, "kind": "rain"},
            r"fleet\[0\]\.outage\[0\]\.kind: .*coverage",
        ),
    ],
)
def test_a_bad_outage_is_one_line(outage: dict[str, object], message: str) -> None:
    raw = {"name": "holes", "fleet": [{"outage": [outage]}]}
    with pytest.raises(ExperimentError, match=message):
        parse_experiment(raw, "holes.toml")


def test_a_group_may_state_the_queues_of_its_link() -> None:
    (timed,) = planned(
        FleetConfig(
            profile="raspberry-pi-4b", link="gigabit-ethernet", queue_ms=5, queue="fq_codel"
        )
    )
    assert timed.link is not None
    assert timed.link.queue == LinkQueue(0.005, None, "fq_codel")
    assert timed.link.delay == profiles.load_link("gigabit-ethernet").link.delay
    shape = timed.schedule.conditions(0.0).shape
    assert shape == timed.spec.shape
    assert shape is not None
    assert (shape.down_queue_bytes, shape.codel_target_s) == (614_278, 0.005)
    (sized,) = planned(FleetConfig(profile="raspberry-pi-4b", queue_bytes=64_000))
    shape = sized.schedule.conditions(0.0).shape
    assert shape is not None
    assert (shape.down_queue_bytes, shape.up_queue_bytes) == (64_000, 64_000)


def test_a_backend_without_fq_codel_and_bbr_has_the_same_depth_and_the_default() -> None:
    group = FleetConfig(profile="raspberry-pi-4b", queue_ms=5, queue="fq_codel", congestion="bbr")
    (device,) = planned(group)
    assert device.spec.congestion == "bbr"
    plain = device.without(["fq_codel", "bbr"])
    shape = plain.schedule.conditions(0.0).shape
    assert shape == plain.spec.shape
    assert shape is not None
    assert shape.codel_target_s is None
    assert device.spec.shape is not None
    assert shape.down_queue_bytes == device.spec.shape.down_queue_bytes
    assert plain.spec.congestion == "cubic"
    assert plain.truth_row() == device.truth_row()


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        (
            {"profile": "raspberry-pi-4b", "queue_ms": 100, "queue_bytes": 20_000},
            "queue_ms and queue_bytes exclude each other, got 100 ms and 20000 bytes; remove one",
        ),
        ({"profile": "raspberry-pi-4b", "queue_ms": 0}, "queue_ms"),
        ({"profile": "raspberry-pi-4b", "queue_bytes": 1000}, "queue_bytes"),
        ({"profile": "raspberry-pi-4b", "queue": "codel"}, "queue"),
        ({"profile": "raspberry-pi-4b", "congestion": "reno"}, "congestion"),
        (
            {"model": "linear", "theta": [1.0, 1.0, 0.1], "queue_ms": 100},
            "model excludes queue_ms, queue_bytes and queue, got both",
        ),
    ],
)
def test_a_queue_that_no_group_can_have_is_refused(keys: dict[str, object], rule: str) -> None:
    with pytest.raises(ExperimentError, match=rule):
        parse_experiment({"name": "queues", "fleet": [keys]}, "queues.toml")


def test_a_queue_needs_a_link() -> None:
    with pytest.raises(ExperimentError, match=r"^fleet\[0\]: a queue needs a link, got none; give"):
        planned(FleetConfig(queue_ms=100))


def test_a_device_starts_with_the_queues_of_its_schedule() -> None:
    fleet = (FleetConfig(profile="raspberry-pi-4b", link="lte-driving"),)
    (drawn,) = plan_fleet(experiment(1, fleet), {})
    shape = drawn.schedule.conditions(0.0).shape
    assert shape is not None
    assert drawn.spec.shape is not None
    assert drawn.tracks.link is not None
    assert shape.down_queue_bytes == drawn.spec.shape.down_queue_bytes
    assert shape.down_queue_bytes == queue_bytes(drawn.tracks.link, "down")


def test_a_model_of_ones_own_has_the_speeds_of_the_device() -> None:
    boards = ("raspberry-pi-4b", "visionfive-2")
    fleet = tuple(FleetConfig(profile=board, count=2) for board in boards)
    costs = TaskCosts(
        step_s=0.01,
        example_s=0.0,
        evaluation_step_s=0.0,
        evaluation_example_s=0.0,
        conv_flops=1e9,
        moved_bytes=1e6,
    )

    def planned(**model: str) -> list[PlannedDevice]:
        experiment = Experiment(name="speeds", fleet=fleet, model=ModelConfig(**model))  # type: ignore[arg-type]
        return [device.at_task(experiment, costs) for device in plan_fleet(experiment, {})]

    shipped, *_ = planned(name="cnn")
    own, _, without, _ = planned(name="my.models:Net")
    assert own.profile is not None
    assert shipped.profile is not None
    assert without.profile is not None
    assert own.spec.device is not None
    assert shipped.spec.device is not None
    slower = own.profile.core_speed / shipped.profile.core_speed
    assert slower < 0.1
    assert own.spec.device.speed_ratio == pytest.approx(slower * shipped.spec.device.speed_ratio)
    assert without.profile.core_speed < own.profile.core_speed / 5, "its memory is far slower"
    published, *_ = planned(name="cnn", like="resnet-18")
    assert published.truth_row().cpu_speed == pytest.approx(0.01 / (10.92 * 20 / 16), rel=1e-6)
