"""From a request to the plan of a device, without a machine."""

from pathlib import Path

import pytest

from fairbed import profiles
from fairbed.profiles import LinkQueue
from fairbed.profiles.errors import ProfileError, TraceError
from fairbed.profiles.traces import TraceReader
from fairbed.testbed.backends.network.plan.htb import UNLIMITED_BPS
from fairbed.testbed.emulation.conditions import Shape
from fairbed.testbed.shape.plan import ShapePlan, make_plan
from fairbed.testbed.shape.request import DeviceRequest, RequestError

CORES, MEMORY_BYTES = 2.0, 8 << 30


def plan(request: DeviceRequest) -> ShapePlan:
    return make_plan(request, TraceReader({}), CORES, MEMORY_BYTES)


def shape_of(made: ShapePlan) -> Shape:
    shape = made.follower.conditions(0.0).shape
    assert shape is not None
    return shape


def test_a_profile_gives_processor_memory_and_link() -> None:
    pi = profiles.load("raspberry-pi-4b")
    found = plan(DeviceRequest(profile="raspberry-pi-4b"))
    now = found.follower.conditions(0.0)
    assert now.speed_ratio == pytest.approx(pi.training_speed)
    assert now.shape is not None
    assert (now.shape.down_bps, now.shape.up_bps) == (pi.link.down_bps, pi.link.up_bps)
    assert found.memory_bytes == pi.memory_bytes
    assert found.threads == pi.engine_threads
    assert found.is_steady


def test_options_override_the_profile_one_by_one() -> None:
    found = plan(
        DeviceRequest(profile="raspberry-pi-4b", cpu=0.1, up_bps=1e6, memory_bytes=1 << 30)
    )
    now = found.follower.conditions(0.0)
    assert now.speed_ratio == pytest.approx(0.1)
    assert now.shape is not None
    assert now.shape.up_bps == 1e6
    assert now.shape.down_bps == profiles.load("raspberry-pi-4b").link.down_bps
    assert found.memory_bytes == 1 << 30


def test_more_threads_get_more_cores_of_the_profile() -> None:
    one = plan(DeviceRequest(profile="raspberry-pi-4b")).follower.conditions(0.0)
    two = plan(DeviceRequest(profile="raspberry-pi-4b", threads=2)).follower.conditions(0.0)
    assert one.speed_ratio is not None
    assert two.speed_ratio == pytest.approx(2 * one.speed_ratio)


def test_a_device_needs_a_smaller_share_of_a_faster_host() -> None:
    slow = plan(DeviceRequest(profile="raspberry-pi-4b")).follower.conditions(0.0)
    fast = plan(DeviceRequest(profile="raspberry-pi-4b", host_core_speed=2.0)).follower.conditions(
        0.0
    )
    assert slow.speed_ratio is not None
    assert fast.speed_ratio == pytest.approx(slow.speed_ratio / 2)


def test_without_link_options_the_network_is_that_of_this_machine() -> None:
    assert not plan(DeviceRequest(cpu=0.5)).has_link
    assert not plan(DeviceRequest(profile="raspberry-pi-4b", link="host")).has_link
    assert plan(DeviceRequest(link="3g")).has_link


def test_one_rate_leaves_the_other_direction_unlimited() -> None:
    shape = plan(DeviceRequest(down_bps=1e6)).follower.conditions(0.0).shape
    assert shape is not None
    assert (shape.down_bps, shape.up_bps) == (1e6, UNLIMITED_BPS)


def test_limits_of_a_profile_can_be_removed() -> None:
    found = plan(DeviceRequest(profile="raspberry-pi-4b", cpu="none", memory_bytes="none"))
    assert not found.is_limited
    assert found.has_link


def test_a_trace_sets_the_rates_and_options_override_it(tmp_path: Path) -> None:
    path = tmp_path / "hills.csv"
    path.write_text("t_s,down_mbps,up_mbps\n0,8,2\n1,4,1\n", encoding="utf-8")
    found = plan(DeviceRequest(trace=str(path), up_bps=3e6, delay_s=0.01))
    first, then = found.follower.conditions(0.0).shape, found.follower.conditions(1.0).shape
    assert first is not None
    assert then is not None
    assert (first.down_bps, then.down_bps) == (8e6, 4e6)
    assert (first.up_bps, then.up_bps) == (3e6, 3e6)
    assert first.delay_s == 0.01
    assert (found.is_delayed, found.has_jitter) == (True, False)
    assert not found.is_steady


def test_a_link_with_jitter_is_known_before_it_is_made() -> None:
    assert plan(DeviceRequest(down_bps=1e6, delay_s=0.01, jitter_s=0.002)).has_jitter


def test_a_link_that_varies_is_drawn_with_the_seed() -> None:
    def rates(seed: int) -> list[float | None]:
        follower = plan(DeviceRequest(link="lte-driving", seed=seed)).follower
        shapes = [follower.conditions(float(t)).shape for t in range(30)]
        return [None if shape is None else shape.down_bps for shape in shapes]

    assert rates(1) == rates(1)
    assert rates(1) != rates(2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DeviceRequest(), "nothing to emulate"),
        (DeviceRequest(cpu="none"), "nothing to emulate"),
        (DeviceRequest(cpu=0.005), "--cpu: must be at least 0.01 of a core"),
        (DeviceRequest(cpu=2.5), "--cpu: must be at most the 2 cores of this machine, got 2.5"),
        (
            DeviceRequest(profile="phone-flagship-2023"),
            "must not be faster than a core of this machine",
        ),
        (DeviceRequest(profile="raspberry-pi-4b", threads=5), "must be at most the 4 cores"),
        (DeviceRequest(cpu=0.5, threads=2), "--threads: needs a profile"),
        (DeviceRequest(link="host", down_bps=1e6), "--link: host is not shaped .* got --down"),
        (DeviceRequest(down_bps=10.0), "--down: must be at least"),
        (DeviceRequest(delay_s=100.0), "--delay: must be at most 60 s"),
        (DeviceRequest(cpu=0.5, memory_bytes=1 << 50), "--memory: must be at most"),
        (DeviceRequest(profile="raspberry-pi-4b", is_paced=True), "a link and a memory limit"),
        (DeviceRequest(cpu=0.5, down_bps=1e6, is_paced=True), "got a link too"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(options: DeviceRequest, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        plan(options)
    assert "\n" not in str(caught.value)


def test_similar_names_are_listed_for_an_unknown_profile() -> None:
    with pytest.raises(ProfileError, match="similar names: raspberry-pi-4b"):
        plan(DeviceRequest(profile="raspbery-pi-4"))


@pytest.mark.parametrize(
    "rows",
    ["", "t_s,down_mbps\n0,-1\n", "t_s,down_mbps\n0,nan\n", "t_s,down_mbps\n1,1\n0,1\n"],
)
def test_a_bad_trace_is_refused(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(rows, encoding="utf-8")
    with pytest.raises(TraceError):
        plan(DeviceRequest(trace=str(path)))


def test_a_trace_of_zeros_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dead.csv"
    path.write_text("t_s,mbps\n0,0\n1,0\n", encoding="utf-8")
    with pytest.raises(TraceError, match="above 0 at some time"):
        plan(DeviceRequest(trace=str(path)))


def test_options_state_the_queues_of_the_link() -> None:
    shape = shape_of(plan(DeviceRequest(down_bps=8e6, up_bps=8e5, queue=LinkQueue(depth_s=0.3))))
    assert (shape.down_queue_bytes, shape.up_queue_bytes) == (313_674, 31_367)
    assert shape.codel_target_s is None
    fair = plan(DeviceRequest(profile="raspberry-pi-4b", cpu="none", discipline="fq_codel"))
    assert shape_of(fair).codel_target_s == 0.005


def test_a_queue_needs_a_rate() -> None:
    with pytest.raises(RequestError, match="--queue: needs a rate, got a link without limits; add"):
        plan(DeviceRequest(delay_s=0.02, queue=LinkQueue(depth_s=0.3)))
