"""The self-check: reproducible inputs, and the comparison of results."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fairbed.wire.artifact import SelfCheck, TaskSpec
from fairbed.wire.evaluation import Targets
from fairbed.wire.selfcheck import (
    Examples,
    GradientFunction,
    SelfCheckFailed,
    run_selfcheck,
    selfcheck_inputs,
)
from fairbed.wire.tensors import Layout, Tensor

CHECK = SelfCheck(seed=3, batch=2, loss=2.0, gradient_l2=5.0)


def spec(**changes: object) -> TaskSpec:
    layout = Layout(
        tensors=(
            Tensor(name="w", shape=(2,), offset=0),
            Tensor(name="var", shape=(2,), offset=2, role="buffer"),
        )
    )
    fields: dict[str, object] = {
        "name": "tiny",
        "model": "tiny",
        "layout": layout,
        "x_shape": (3,),
        "classes": 4,
        "opset": 20,
        "selfcheck": CHECK,
    }
    return TaskSpec(**(fields | changes))  # type: ignore[arg-type]  # a test builder


def engine(loss: float, *gradient: float) -> GradientFunction:
    def compute(
        vector: NDArray[np.float32], x: Examples, y: Targets
    ) -> tuple[float, NDArray[np.float32]]:
        return loss, np.array(gradient, np.float32)

    return compute


def test_draws_the_documented_inputs_in_the_documented_order() -> None:
    vector, x, y = selfcheck_inputs(spec(), 3, 2)
    rng = np.random.Generator(np.random.PCG64(3))
    values = (rng.random(4, dtype=np.float32) - np.float32(0.5)) * np.float32(0.35)
    np.testing.assert_array_equal(vector[:2], values[:2])
    np.testing.assert_array_equal(vector[2:], np.abs(values[2:]) + np.float32(0.5))
    np.testing.assert_array_equal(x, rng.standard_normal((2, 3)).astype(np.float32))
    np.testing.assert_array_equal(y, rng.integers(0, 4, 2))
    assert [a.dtype.name for a in (vector, x, y)] == ["float32", "float32", "int64"]


def test_draws_tokens_for_integer_examples() -> None:
    _, x, _ = selfcheck_inputs(spec(x_dtype="int64", x_classes=7), 3, 200)
    assert x.dtype == np.int64
    assert set(np.unique(x)) == set(range(7))


def test_draws_normal_targets_for_regression() -> None:
    _, x, y = selfcheck_inputs(spec(classes=1, task="regression"), 3, 2)
    rng = np.random.Generator(np.random.PCG64(3))
    rng.random(4, dtype=np.float32)
    np.testing.assert_array_equal(x, rng.standard_normal((2, 3)).astype(np.float32))
    np.testing.assert_array_equal(y, rng.standard_normal(2).astype(np.float32))
    assert y.dtype == np.float32


def test_draws_targets_at_positions_of_which_some_have_no_label() -> None:
    changed = spec(positions=(2, 5))
    _, _, y = selfcheck_inputs(changed, 3, 50)
    assert changed.y_shape == y.shape[1:] == (2, 5)
    assert set(np.unique(y)) == {-1, 0, 1, 2, 3}
    assert (y[:, 0, 0] >= 0).all()
    assert 0.15 < (y < 0).mean() < 0.35
    _, _, labels = selfcheck_inputs(spec(task="multi-label", positions=(4,)), 3, 50)
    assert set(np.unique(labels)) == {-1, 0, 1}
    _, _, pixels = selfcheck_inputs(spec(classes=1, task="regression", positions=(3,)), 3, 50)
    assert pixels.shape == (50, 3)
    assert pixels.dtype == np.float32


def test_accepts_an_engine_within_the_tolerances() -> None:
    run_selfcheck(spec(), engine(2.0 * (1 + 5e-5), 3.0, 4.0 * (1 - 5e-4)))


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (engine(2.001, 3.0, 4.0), "self-check loss must be 2 within 0.0001, got 2.001"),
        (engine(2.0, 3.0, 4.1), "self-check gradient norm must be 5 within 0.001, got 5.08"),
        (engine(float("nan"), 3.0, 4.0), "self-check loss must be 2 .* got nan"),
        (engine(2.0, 3.0, float("inf")), "self-check gradient norm must be 5 .* got inf"),
    ],
)
def test_the_error_names_the_wrong_result(compute: GradientFunction, message: str) -> None:
    with pytest.raises(SelfCheckFailed, match=f"tiny: {message}"):
        run_selfcheck(spec(), compute)
