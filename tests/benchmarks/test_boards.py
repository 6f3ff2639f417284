"""Emulated boards are in the order of the real ones, and about as fast."""

import msgspec
import pytest

from benchmarks import _board_rates, boards
from benchmarks._published_steps import SETS, WORK
from fairbed import profiles
from fairbed.testbed.emulation.step_speed import several_speeds_s


@pytest.fixture(scope="module")
def found() -> boards.Findings:
    return boards.findings({})


def test_no_pair_of_published_times_is_in_the_wrong_order(found: boards.Findings) -> None:
    assert len(found.pairs) > 300
    assert [pair for pair in found.pairs if pair.is_reversed] == []


def test_no_time_is_far_from_the_published_one(found: boards.Findings) -> None:
    assert [row for row in found.rows if not row.ok] == []
    assert {row.kind for row in found.rows if row.is_held_out} == {"train", "forward"}
    assert found.median_factor <= boards.MEDIAN_FACTOR


def test_a_wrong_order_and_a_far_time_are_found() -> None:
    published = next(s for s in SETS if s.model == "resnet-18" and s.kind == "train")
    swapped = dict(zip(published.seconds, [*published.seconds.values()][::-1], strict=True))
    rows = boards.rows_of(msgspec.structs.replace(published, seconds=swapped), {})
    assert [pair.is_reversed for pair in boards.pairs_of(rows)] == [True]
    far = {name: s / 9.0 for name, s in published.seconds.items()}
    rows = boards.rows_of(msgspec.structs.replace(published, seconds=far), {})
    assert [row.ok for row in rows] == [False, False]


@pytest.mark.parametrize("name", profiles.names())
def test_profiles_have_the_rates_of_the_rule(name: str) -> None:
    profile = profiles.load(name)
    rates = {
        "matrix_flops": profile.matrix,
        "core_matrix_flops": profile.core_matrix,
        "memory_bytes_per_s": profile.moved,
    }
    for key, expected in _board_rates.rates(name).items():
        number = rates[key]
        assert number is not None
        assert number.value == pytest.approx(expected.value, rel=0.01)
        assert str(number.tag) == expected.tag


GENERATIONS = (
    "raspberry-pi-zero-w",  # ARM11
    "raspberry-pi-2b",  # Cortex-A7
    "raspberry-pi-3b",  # Cortex-A53, 1.2 GHz
    "raspberry-pi-3b-plus",  # Cortex-A53, 1.4 GHz
    "raspberry-pi-4b",  # Cortex-A72
    "raspberry-pi-5",  # Cortex-A76
)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", ["train", "forward"])
@pytest.mark.parametrize("model", dict.fromkeys(model for model, _ in WORK))
def test_each_generation_of_cores_is_faster_than_the_one_before(
    model: str, kind: str, threads: int
) -> None:
    work = WORK[model, kind]
    boards_ = [boards.on_threads(profiles.load(name), threads) for name in GENERATIONS]
    times = [several_speeds_s(board, work, 16) or 0.0 for board in boards_]
    assert times == sorted(times, reverse=True)
    speeds = [board.training_speed for board in boards_]
    assert speeds == sorted(speeds), "softmax, mlp and cnn have one speed"


@pytest.mark.full
@pytest.mark.parametrize("model", ["resnet-18", "mobilenet-v2", "shakespeare-lstm"])
def test_the_work_of_a_model_is_that_of_its_module(model: str) -> None:
    pytest.importorskip("torch")
    from benchmarks._vision import forward_pass, training_step
    from fairbed.testbed.emulation.work import StepWork
    from fairbed.testbed.host.torch_work import counted

    for kind, function in (("train", training_step), ("forward", forward_pass)):
        one, two = (counted(function(model, n)) for n in (1, 2))
        found = msgspec.structs.asdict(StepWork.between((1, one), (2, two)))
        expected = msgspec.structs.asdict(WORK[model, kind])
        expected["matrix_flops"] += expected.pop("recurrent_flops")
        found.pop("recurrent_flops")
        assert found == pytest.approx(expected, rel=0.01)
