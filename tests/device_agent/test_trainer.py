"""The trainer against worked examples, torch and its own docstrings."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from fairbed.device_agent.engines.base import Examples
from fairbed.device_agent.local_training import Proximal
from fairbed.device_agent.trainer import (
    Descent,
    EpochOrders,
    TrainingDiverged,
    TrainResult,
    evaluate,
    train,
)
from fairbed.wire.artifact import SelfCheck, TaskSpec
from fairbed.wire.evaluation import Evaluation, Quality, Targets, positions_of
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.tensors import Layout, Tensor
from tests.tiers import examples

Floats = NDArray[np.float32]
Gradient = Callable[[Floats, Examples, int], list[float]]
"""Maps (vector, x of the mini-batch, number of the call) to the gradient."""


class Formula:
    """An engine whose gradient is a formula; it records its mini-batches."""

    name = "formula 1.0"

    def __init__(
        self, gradient: Gradient, n_params: int = 1, n_buffers: int = 0, loss: float = 1.0
    ) -> None:
        tensors = (
            Tensor(name="w", shape=(n_params,), offset=0),
            Tensor(name="b", shape=(n_buffers,), offset=n_params, role="buffer"),
        )
        self.spec = TaskSpec(
            name="formula",
            model="formula",
            layout=Layout(tensors=tensors),
            x_shape=(),
            classes=10,
            opset=20,
            selfcheck=SelfCheck(seed=0, batch=1, loss=0.0, gradient_l2=0.0),
        )
        self.batches: list[Examples] = []
        self.loss = loss
        self._gradient = gradient
        self.seeds: list[tuple[int, int]] = []

    def running_s(self) -> float:
        return 0.0

    def counts(self, y: Targets) -> NDArray[np.float64]:
        return positions_of(y).astype(np.float64)

    def interrupt(self) -> None:
        pass

    def reseed(self, seed: int, step: int) -> None:
        self.seeds.append((seed, step))

    def gradient(
        self,
        vector: Floats,
        x: Examples,
        y: Targets,
        micro_batch: int | None = None,
        factor: float = 1.0,
    ) -> tuple[float, Floats]:
        self.batches.append(x)
        found = np.array(self._gradient(vector, x, len(self.batches)), np.float32)
        with np.errstate(over="ignore"):
            return self.loss, np.float32(factor) * found

    def evaluate(self, vector: Floats, x: Examples, y: Targets) -> Evaluation:
        self.batches.append(x)
        return Evaluation(float(x.sum()), int((y == 0).sum()))


class CountingMeter:
    """Counts the units of work."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    @property
    def steps(self) -> int:
        return len(self.sizes)

    def step(self, n_examples: int, length: int | None = None) -> None:
        self.sizes.append(n_examples)

    def read(self, n_bytes: int) -> None:
        raise AssertionError("training reads nothing from storage")


def run(
    engine: Formula,
    start: list[float],
    n: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    meter: CountingMeter | None = None,
    *,
    epochs: int = 1,
    batch_size: int = 1,
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    proximal: float = 0.0,
    clip_norm: float | None = None,
    max_steps: int | None = None,
    micro_batch: int | None = None,
    seed: int = 0,
    anchor: list[float] | None = None,
) -> TrainResult:
    x = np.arange(n, dtype=np.float32)
    hyperparameters = Hyperparameters(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        proximal=proximal,
        clip_norm=clip_norm,
        max_steps=max_steps,
        micro_batch=micro_batch,
    )
    return train(
        engine,
        np.array(start, np.float32),
        x,
        np.zeros(n, np.int64),
        hyperparameters,
        seed,
        meter or CountingMeter(),
        should_stop,
        None if anchor is None else np.array(anchor, np.float32),
    )


def constant(*values: float) -> Gradient:
    return lambda vector, x, call: list(values)


def test_takes_the_fedprox_step_of_the_worked_example() -> None:
    # w_t = 1.0; the first gradient leads to w = 1.2, where grad = 0.5 and mu = 0.1 give 1.148.
    engine = Formula(lambda vector, x, call: [-2.0] if call == 1 else [0.5])
    result = run(engine, [1.0], n=2, proximal=0.1)
    assert result.vector[0] == pytest.approx(1.148, abs=1e-6)


@pytest.mark.parametrize(
    ("lam", "v"),
    [(0.0, [0.95, 0.02]), (0.1, [0.94, 0.02]), (1.0, [0.85, 0.02]), (2.0, [0.75, 0.02])],
)
def test_takes_the_ditto_step_of_the_worked_example(lam: float, v: list[float]) -> None:
    engine = Formula(constant(0.5, -0.2), n_params=2)
    result = run(engine, [1.0, 0.0], proximal=lam, anchor=[0.0, 0.0])
    np.testing.assert_allclose(result.vector, v, atol=1e-6)


@pytest.mark.parametrize("mu", [1e-3, 0.7, 5.0, 30.0])
def test_a_step_with_a_proximal_term_alone_is_that_of_its_rule(mu: float) -> None:
    rng = np.random.default_rng(0)
    start, anchor = rng.normal(size=(2, 50)).astype(np.float32)
    h = Hyperparameters(epochs=1, batch_size=1, learning_rate=0.1, proximal=mu)
    folded, ruled, exact = start.copy(), start.copy(), start.astype(np.float64)
    one = Descent(folded, h, anchor)
    two = Descent(ruled, replace(h, proximal=0.0), anchor, Proximal(mu))
    assert one.is_plain
    assert not two.is_plain
    for _ in range(30):
        gradient = rng.normal(size=50).astype(np.float32)
        exact -= 0.1 * (gradient + mu * (exact - anchor))
        one.step(gradient.copy())
        two.apply_rules(gradient, np.array(0.0), start[:0], lambda w: (np.array(0.0), w))
        two.step(gradient)
    np.testing.assert_allclose(folded, exact, rtol=2e-6, atol=2e-6 * np.abs(exact).max())
    np.testing.assert_allclose(ruled, exact, rtol=2e-6, atol=2e-6 * np.abs(exact).max())


def test_momentum_adds_up_to_the_norm_of_the_worked_example() -> None:
    # rho = 0.9 and three steps: the coefficients 1, 1.9, 2.71 sum to 5.61.
    result = run(Formula(constant(1.0)), [0.0], n=3, momentum=0.9)
    assert result.vector[0] == pytest.approx(-0.1 * 5.61, abs=1e-6)


def test_momentum_starts_at_zero_in_each_round() -> None:
    engine = Formula(constant(1.0))
    first = run(engine, [0.0], n=3, momentum=0.9)
    second = run(engine, first.vector.tolist(), n=3, momentum=0.9)
    assert second.vector[0] == pytest.approx(2 * first.vector[0], abs=1e-6)


def test_the_proximal_term_follows_its_recursion() -> None:
    # With a constant gradient 1 the update is -eta A, A <- A (1 - eta mu) + 1.
    coefficient = 0.0
    for _ in range(5):
        coefficient = coefficient * (1 - 0.1 * 0.5) + 1
    result = run(Formula(constant(1.0)), [3.0], n=5, proximal=0.5)
    assert result.vector[0] == pytest.approx(3.0 - 0.1 * coefficient, abs=1e-6)


def test_clipping_bounds_the_norm_over_all_parameters() -> None:
    result = run(Formula(constant(3.0, 4.0), n_params=2), [0.0, 0.0], clip_norm=1.0)
    np.testing.assert_allclose(result.vector, [-0.06, -0.08], atol=1e-7)


def test_clipping_keeps_a_small_gradient() -> None:
    result = run(Formula(constant(0.3, 0.4), n_params=2), [0.0, 0.0], clip_norm=1.0)
    np.testing.assert_allclose(result.vector, [-0.03, -0.04], atol=1e-7)


def test_only_parameters_decay_and_change() -> None:
    engine = Formula(constant(0.0), n_params=1, n_buffers=2)
    result = run(engine, [1.0, 5.0, 6.0], weight_decay=0.5, proximal=1.0, momentum=0.9)
    np.testing.assert_allclose(result.vector, [0.95, 5.0, 6.0], atol=1e-6)


def test_keeps_the_buffers_of_the_engine() -> None:
    def moves_buffer(vector: Floats, x: Examples, call: int) -> list[float]:
        vector[1] += 1.0
        return [0.0]

    result = run(Formula(moves_buffer, n_buffers=1), [0.0, 10.0], n=4, batch_size=2)
    assert result.vector[1] == 12.0


def test_does_not_change_the_global_model() -> None:
    start = np.ones(1, np.float32)
    train(
        Formula(constant(1.0)),
        start,
        np.zeros(3, np.float32),
        np.zeros(3, np.int64),
        Hyperparameters(epochs=1, batch_size=1, learning_rate=0.1),
        0,
        CountingMeter(),
        lambda: False,
    )
    assert start[0] == 1.0


@given(n=st.integers(1, 40), batch_size=st.integers(1, 45), epochs=st.integers(1, 3))
@settings(max_examples=examples(30), deadline=None)
def test_every_epoch_visits_every_example_once(n: int, batch_size: int, epochs: int) -> None:
    engine, meter = Formula(constant(0.0)), CountingMeter()
    result = run(engine, [0.0], n=n, batch_size=batch_size, epochs=epochs, meter=meter)
    per_epoch = -(-n // batch_size)
    assert result.steps == meter.steps == epochs * per_epoch
    for epoch in range(epochs):
        seen = np.concatenate(engine.batches[epoch * per_epoch : (epoch + 1) * per_epoch])
        np.testing.assert_array_equal(np.sort(seen), np.arange(n))


def test_the_order_of_each_epoch_is_new_and_depends_on_the_seed_alone() -> None:
    first, again, other = (Formula(constant(0.0)) for _ in range(3))
    run(first, [0.0], n=20, batch_size=20, epochs=2, seed=1)
    run(again, [0.0], n=20, batch_size=20, epochs=2, seed=1)
    run(other, [0.0], n=20, batch_size=20, epochs=2, seed=2)
    assert not np.array_equal(first.batches[0], first.batches[1])
    np.testing.assert_array_equal(np.array(first.batches), np.array(again.batches))
    assert not np.array_equal(first.batches[0], other.batches[0])


@given(seed=st.integers(0, (1 << 40) - 1), epoch=st.integers(0, 5), n=st.integers(1, 300))
def test_an_order_depends_on_seed_and_epoch_alone(seed: int, epoch: int, n: int) -> None:
    orders = EpochOrders()
    orders.draw(seed + 1, epoch, 7)
    philox = np.random.Philox(key=seed, counter=[0, 0, 0, epoch])
    expected = np.random.Generator(philox).permutation(n)
    np.testing.assert_array_equal(orders.draw(seed, epoch, n), expected)


def test_orders_are_uniform_and_independent_between_epochs_and_devices() -> None:
    stats = pytest.importorskip("scipy.stats", reason="compares with a chi-squared law")
    orders, n = EpochOrders(), 5
    first, second = (
        np.array([orders.draw(seed, epoch, n) for seed in range(4000)]) for epoch in (0, 1)
    )
    for drawn in (first, second):
        counts = [np.bincount(drawn[:, place], minlength=n) for place in range(n)]
        assert stats.chisquare(np.ravel(counts), ddof=2 * n - 2).pvalue > 0.01
    for one, other in ((first, second), (first[1:], first[:-1])):
        both = np.bincount(n * one[:, 0] + other[:, 0], minlength=n * n)
        assert stats.chisquare(both).pvalue > 0.01


def test_max_steps_ends_training_in_the_middle_of_an_epoch() -> None:
    assert run(Formula(constant(1.0)), [0.0], n=10, epochs=3, max_steps=12).steps == 12


def test_stops_before_the_next_mini_batch_on_request() -> None:
    engine = Formula(constant(1.0))
    result = run(engine, [0.0], n=10, should_stop=lambda: len(engine.batches) == 4)
    assert result.steps == 4
    assert result.vector[0] == pytest.approx(-0.4, abs=1e-6)


def test_reports_no_loss_when_stopped_before_the_first_mini_batch() -> None:
    result = run(Formula(constant(1.0)), [0.0], n=10, should_stop=lambda: True)
    assert result.loss_train is None
    assert result.steps == 0


def test_charges_each_part_of_a_mini_batch() -> None:
    class InParts(Formula):
        def gradient(
            self,
            vector: Floats,
            x: Examples,
            y: Targets,
            micro_batch: int | None = None,
            factor: float = 1.0,
        ) -> tuple[float, Floats]:
            assert micro_batch == 4
            return super().gradient(vector, x, y, factor=factor)

    engine, meter = InParts(constant(0.0)), CountingMeter()
    result = run(engine, [0.0], n=15, batch_size=10, micro_batch=4, meter=meter)
    assert [len(x) for x in engine.batches] == [10, 5]
    assert meter.sizes == [4, 4, 2, 4, 1]
    assert result.steps == 2


def test_reports_the_mean_loss_of_the_last_epoch_per_example() -> None:
    losses = iter([9.0, 9.0, 1.0, 4.0])

    class Improving(Formula):
        def gradient(
            self,
            vector: Floats,
            x: Examples,
            y: Targets,
            micro_batch: int | None = None,
            factor: float = 1.0,
        ) -> tuple[float, Floats]:
            self.loss = next(losses)
            return super().gradient(vector, x, y, factor=factor)

    result = run(Improving(constant(0.0)), [0.0], n=3, batch_size=2, epochs=2)
    assert result.loss_train == pytest.approx((2 * 1.0 + 1 * 4.0) / 3)


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_divergence_names_the_step(loss: float) -> None:
    with pytest.raises(TrainingDiverged, match=r"the loss must be finite, got (nan|inf) at step 1"):
        run(Formula(constant(1.0), loss=loss), [0.0])


def test_finds_a_parameter_that_overflows_in_the_last_step() -> None:
    with pytest.raises(TrainingDiverged, match="every parameter must be finite, got -inf"):
        run(Formula(constant(3e38)), [0.0], learning_rate=100.0)


def test_refuses_a_device_without_examples() -> None:
    with pytest.raises(ValueError, match="at least one example, got 0"):
        run(Formula(constant(0.0)), [0.0], n=0)


@pytest.mark.parametrize("label", [-1, 10])
def test_refuses_a_label_out_of_range(label: int) -> None:
    y = np.array([0, label])
    with pytest.raises(ValueError, match=r"every label must be in 0\.\.9"):
        evaluate(
            Formula(constant(0.0)),
            np.zeros(1, np.float32),
            np.zeros(2, np.float32),
            y,
            CountingMeter(),
        )


def test_evaluates_all_examples_in_counted_batches() -> None:
    meter, engine = CountingMeter(), Formula(constant(0.0))
    x, y = np.ones(600, np.float32), np.repeat([0, 1], [150, 450])
    loss, quality = evaluate(engine, np.zeros(1, np.float32), x, y, meter)
    assert (loss, quality) == (1.0, Quality(correct=150))
    assert meter.sizes == [256, 256, 88]
    assert len(engine.batches) == 3


def test_refuses_to_report_a_loss_that_is_not_finite() -> None:
    x = np.array([np.inf], np.float32)
    with pytest.raises(TrainingDiverged, match="evaluation: the loss must be finite"):
        evaluate(
            Formula(constant(0.0)),
            np.zeros(1, np.float32),
            x,
            np.zeros(1, np.int64),
            CountingMeter(),
        )


def test_takes_the_same_steps_as_torch() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch.optim.SGD")
    curvature = np.array([1.0, 0.3, 2.0], np.float32)
    engine = Formula(lambda vector, x, call: (curvature * vector * call).tolist(), n_params=3)
    start = [1.0, -2.0, 0.5]
    result = run(
        engine, start, n=7, batch_size=2, epochs=2, learning_rate=0.05, momentum=0.9,
        weight_decay=0.01, proximal=0.2, clip_norm=0.8,
    )  # fmt: skip
    w = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    w_t = w.detach().clone()
    optimiser = torch.optim.SGD([w], lr=0.05, momentum=0.9, weight_decay=0.01)
    for call in range(1, 9):
        w.grad = torch.tensor(curvature, dtype=torch.float64) * w.detach() * call
        w.grad += 0.2 * (w.detach() - w_t)
        torch.nn.utils.clip_grad_norm_([w], 0.8)
        optimiser.step()
    np.testing.assert_allclose(result.vector, w.detach().numpy(), atol=1e-5)
