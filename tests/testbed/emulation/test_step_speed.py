"""A device has several speeds: a larger model takes longer on it than one speed per core says."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed import profiles
from fairbed.profiles import Profile, Quantity, StepTime
from fairbed.testbed.emulation.step_speed import (
    INFERENCE,
    TRAINING,
    AtTask,
    Shares,
    at_task,
    evaluation_s,
    matrix_rate,
    one_speed_s,
    several_speeds_s,
    step_s,
    thread_efficiency,
)
from fairbed.testbed.emulation.work import StepCost, StepWork, TaskCosts, WorkCosts


def number(value: float) -> Quantity[float]:
    return Quantity(value=value, tag="literature", source="made for a test")


def board(**changes: object) -> Profile:
    """Return a board of 4 cores at half the speed of the reference, whose steps use 2 of them."""
    plain = profiles.load("visionfive-2")
    settings: dict[str, object] = {
        "one_core": number(0.5),
        "core_count": Quantity(value=4, tag="literature", source="made for a test"),
        "threads": Quantity(value=2, tag="literature", source="made for a test"),
        "matrix": number(20e9),
        "moved": number(4e9),
        "scaling": None,
        "core_matrix": None,
        "train_s": (),
    }
    return msgspec.structs.replace(plain, **(settings | changes))


WORK = StepWork(conv_flops=51e6, matrix_flops=9e6, moved_bytes=1e6, fixed_bytes=8e6)


def test_worked_example() -> None:
    # 2 of 4 cores: 10 GFLOPS; 16 examples: 816 MFLOP / 5 G + 144 MFLOP / 9 G + 24 MB / 2 GB/s
    shares = Shares(
        convolution=0.5, grouped=0.2, depthwise=0.1, matrix=0.9, recurrent=0.3, memory=0.5
    )
    took_s = 0.1632 + 0.016 + 0.012
    assert several_speeds_s(board(), WORK, 16, shares) == pytest.approx(took_s)
    assert one_speed_s(board(), 0.05) == pytest.approx(0.05)
    depthwise = StepWork(depthwise_flops=1e6, grouped_flops=2e6)
    assert several_speeds_s(board(), depthwise, 16, shares) == pytest.approx(0.016 + 0.016)
    recurrent = StepWork(recurrent_flops=3e6, attention_flops=9e6)
    assert several_speeds_s(board(), recurrent, 16, shares) == pytest.approx(0.016 + 0.016)


def test_threads_share_the_rate_of_all_cores() -> None:
    fast = board(core_matrix=number(8e9))
    assert [matrix_rate(fast, k) for k in (1, 4)] == [8e9, 20e9]
    two = matrix_rate(fast, 2)
    assert two is not None
    assert 10e9 < two < 16e9
    assert matrix_rate(board(), 1) == 5e9
    assert matrix_rate(board(matrix=None), 1) is None


def test_a_forward_pass_of_an_inference_library_is_faster() -> None:
    trained, inferred = (several_speeds_s(board(), WORK, 1, s) for s in (TRAINING, INFERENCE))
    assert trained is not None
    assert inferred is not None
    assert inferred < trained / 2


def costs_of(
    train_s: float,
    work: StepWork | None,
    evaluate_s: float = 0.0,
    *,
    evaluation_work: StepWork | None = None,
    frozen_work: StepWork | None = None,
) -> TaskCosts:
    """Return the costs of a task whose steps take these times whatever their examples."""
    train, evaluate = (StepCost(fixed_s=s, per_example_s=0.0) for s in (train_s, evaluate_s))
    costs = WorkCosts(
        train=train,
        evaluate=evaluate,
        work=work,
        evaluation_work=evaluation_work,
        frozen_work=frozen_work,
    )
    return TaskCosts.of(costs, 1.0)


DEPTHWISE = StepWork(conv_flops=10e6, depthwise_flops=20e6, moved_bytes=2e6)


def test_an_evaluation_has_the_rates_of_a_forward_pass_and_training_keeps_its_own() -> None:
    costs = costs_of(0.05, DEPTHWISE, 0.02, evaluation_work=DEPTHWISE)
    there = at_task(board(), costs, 16, 32)
    step, evaluation = (
        several_speeds_s(board(), DEPTHWISE, n, s) for n, s in ((16, TRAINING), (32, INFERENCE))
    )
    assert step is not None
    assert evaluation is not None
    assert 0.05 / there.profile.training_speed == pytest.approx(step)
    assert 0.02 / (there.profile.training_speed * there.evaluation_speed) == pytest.approx(
        evaluation
    )
    assert evaluation == evaluation_s(board(), 0.02, DEPTHWISE, 32)
    assert evaluation < step / 2, "of twice as many examples"


def test_an_evaluation_takes_at_least_what_one_speed_says() -> None:
    assert evaluation_s(board(), 5.0, WORK, 16) == pytest.approx(5.0)
    assert evaluation_s(board(matrix=None), 0.3, WORK, 16) == pytest.approx(0.3)


def test_an_evaluation_that_is_not_counted_has_the_speed_of_training() -> None:
    assert at_task(board(), costs_of(0.05, WORK, 0.02), 16, 32).evaluation_speed == 1.0
    free = costs_of(0.05, WORK, evaluation_work=WORK)
    assert at_task(board(), free, 16, 32).evaluation_speed == 1.0


def test_layers_below_all_trained_ones_have_the_rates_of_a_forward_pass() -> None:
    head = StepWork(matrix_flops=1e6, moved_bytes=1e4)
    whole = StepWork(conv_flops=10e6, depthwise_flops=20e6, matrix_flops=1e6, moved_bytes=2.01e6)
    assert whole.without(DEPTHWISE) == head
    parts = several_speeds_s(board(), head, 16), several_speeds_s(board(), DEPTHWISE, 16, INFERENCE)
    took_s = step_s(board(), 0.001, whole, 16, frozen=DEPTHWISE)
    assert took_s == pytest.approx(sum(part or 0.0 for part in parts))
    assert took_s < step_s(board(), 0.001, whole, 16) / 5
    found = at_task(board(), costs_of(0.001, whole, frozen_work=DEPTHWISE), 16, 32)
    assert 0.001 / found.profile.training_speed == pytest.approx(took_s)


def test_a_step_takes_at_least_what_one_speed_says() -> None:
    assert step_s(board(), 0.3, WORK, 16) == pytest.approx(0.3)


def test_a_profile_without_the_numbers_keeps_its_one_speed() -> None:
    plain = board(matrix=None, moved=None)
    costs = costs_of(0.05, WORK)
    assert at_task(plain, costs, 16, 32).profile is plain
    assert at_task(board(), costs_of(0.05, None), 16, 32) == AtTask(board())
    assert several_speeds_s(board(moved=None), WORK, 16) == pytest.approx(0.130836, rel=1e-4)


def test_all_threads_together_are_slower_than_as_many_single_ones() -> None:
    scaled = board(scaling=number(0.7))
    assert thread_efficiency(scaled) == pytest.approx(0.9)
    assert one_speed_s(scaled, 0.05) == pytest.approx(0.05 / 0.9)
    alone = Quantity(value=1, tag="literature", source="made for a test")
    assert thread_efficiency(board(scaling=number(0.7), threads=alone)) == 1.0


def test_a_published_step_of_the_class_is_used_as_it_is() -> None:
    known = StepTime(model="resnet-18", batch_size=16, threads=4, step=number(10.92))
    published = board(train_s=(known,))
    assert step_s(published, 0.05, WORK, 16, "resnet-18") == 10.92
    assert step_s(published, 0.05, WORK, 8, "resnet-18") == 5.46
    assert step_s(published, 0.05, WORK, 16, "resnet-34") == step_s(published, 0.05, WORK, 16)


@given(
    reference_s=st.floats(1e-4, 10.0),
    batch_size=st.integers(1, 512),
    flops=st.floats(0.0, 1e10),
    moved=st.floats(0.0, 1e9),
)
def test_the_speed_at_a_task_gives_the_time_of_its_step(
    reference_s: float, batch_size: int, flops: float, moved: float
) -> None:
    work = StepWork(conv_flops=flops, moved_bytes=moved)
    there = at_task(board(), costs_of(reference_s, work), batch_size, 32).profile
    assert reference_s / there.training_speed == pytest.approx(
        step_s(board(), reference_s, work, batch_size)
    )
    assert there.core_speed <= 0.5


def test_the_work_of_an_example_comes_from_two_steps() -> None:
    small = StepWork(conv_flops=40.0, matrix_flops=8.0, moved_bytes=110.0)
    large = StepWork(conv_flops=80.0, matrix_flops=16.0, moved_bytes=150.0)
    assert StepWork.between((4, small), (8, large)) == StepWork(
        conv_flops=10.0, matrix_flops=2.0, moved_bytes=10.0, fixed_bytes=70.0
    )


def test_a_replay_keeps_the_work_of_the_run_that_it_takes_its_costs_from() -> None:
    cost = StepCost(fixed_s=0.001, per_example_s=0.0001)
    costs = WorkCosts(
        train=cost, evaluate=cost, work=WORK, evaluation_work=DEPTHWISE, frozen_work=DEPTHWISE
    )
    of_task = TaskCosts.of(costs, 2.0)
    assert of_task.work == WORK
    assert of_task.evaluation_work == of_task.frozen_work == DEPTHWISE
    assert TaskCosts.of(msgspec.structs.replace(costs, work=None), 2.0).work is None
    again = msgspec.json.decode(msgspec.json.encode(of_task), type=TaskCosts)
    assert again == of_task
