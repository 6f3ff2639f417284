"""Mini-batches fit into the memory of devices: the line through two steps, and what it permits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.state.memory import SHARE, Fitting, TaskMemory

MIB = 1 << 20
NET = TaskMemory.between((4, 477.0 * MIB), (8, 702.0 * MIB), least=438.0 * MIB)


def fitting(
    batch_size: int = 16, micro_batch: int | str | None = None, example_bytes: int = 600_000
) -> Fitting:
    part = micro_batch if isinstance(micro_batch, int) else batch_size
    return Fitting(NET, example_bytes, batch_size, part, chooses=micro_batch == "auto")


def test_the_line_goes_through_both_steps_and_not_below_the_self_check() -> None:
    assert NET.peak_bytes(4) == pytest.approx(477 * MIB)
    assert NET.peak_bytes(16) == pytest.approx((702 + 8 * 56.25) * MIB)
    assert NET.peak_bytes(1) == 438 * MIB
    assert NET.peak_bytes(4, data_bytes=5.0 * MIB) == pytest.approx(482 * MIB)


def test_noise_makes_no_example_free_of_memory_or_negative() -> None:
    flat = TaskMemory.between((4, 100.0), (8, 90.0))
    assert (flat.fixed_bytes, flat.example_bytes) == (90.0, 0.0)
    steep = TaskMemory.between((4, 10.0), (8, 90.0))
    assert steep.fixed_bytes == pytest.approx(0.0)
    assert steep.peak_bytes(8) == pytest.approx(90.0)


@given(st.integers(1, 64), st.integers(64, 8192), st.integers(1, 500))
def test_the_chosen_part_fits_and_a_larger_one_does_not(batch: int, mib: int, n_k: int) -> None:
    found = fitting(batch, "auto")
    size, data = found.part_size(mib * MIB, n_k), n_k * found.data_bytes
    assert 0 <= size <= batch
    if size:
        assert NET.peak_bytes(size, data) <= SHARE * mib * MIB * (1 + 1e-9)
    if size < batch:
        assert NET.peak_bytes(size + 1, data) > SHARE * mib * MIB * (1 - 1e-9)
    assert bool(found.problem(mib * MIB, n_k)) == (size == 0)


@pytest.mark.parametrize(
    ("micro_batch", "mib", "sent"),
    [(None, 2048, None), (None, 1024, None), ("auto", 1024, 8), ("auto", 4096, None), (4, 1024, 4)],
)
def test_a_device_receives_the_parts_that_fit(
    micro_batch: int | str | None, mib: int, sent: int | None
) -> None:
    assert fitting(16, micro_batch).micro_batch(mib * MIB, 40) == sent


def test_the_refusal_has_the_numbers_and_what_to_do() -> None:
    assert fitting().problem(1024 * MIB, 40) == (
        "training on 16 examples at once must need at most 75% of the 1024 MiB of the device, got "
        "1175 MiB; set training.micro_batch to at most 8"
    )
    assert (
        fitting(16, "auto")
        .problem(512 * MIB, 40)
        .endswith(
            "training on 1 example at once must need at most 75% of the 512 MiB of the device, got "
            "461 MiB; leave it out"
        )
    )
