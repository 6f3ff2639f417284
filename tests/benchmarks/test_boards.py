"""Emulated boards train large models about as fast as the real ones, by their published numbers."""

import pytest

from benchmarks import boards
from fairbed.testbed.emulation.work import StepWork

pytestmark = pytest.mark.full


@pytest.mark.parametrize("model", ["resnet-18", "mobilenet-v2"])
def test_models_that_chose_no_constant_are_within_a_factor_of_one_and_a_half(model: str) -> None:
    pytest.importorskip("torch")
    from benchmarks._vision import training_step
    from fairbed.testbed.host.torch_work import counted

    one, two = (counted(training_step(model, n)) for n in (1, 2))
    for row in boards.rows_of(model, 0.01, StepWork.between((1, one), (2, two))):
        assert row.is_held_out
        assert row.one_speed_s < 0.1, "one speed is far too fast"
        assert row.ok, row
