"""Server steps: the worked examples, state that persists, and any weights."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.aaggff import AAggFF
from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.aggregation.server_step import LARGEST, FedOpt, Optimiser, Plain
from fairbed.coordinator.policy.config import RULES, AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator, make_server_step
from fairbed.testbed.experiment.file import ExperimentError, load_experiment
from tests.coordinator.algorithms.aggregation.rounds import merged, reports, vector

KINDS: tuple[Optimiser, ...] = ("momentum", "adagrad", "adam", "yogi")
every_kind = pytest.mark.parametrize("kind", KINDS)


def stepped(step: FedOpt, d: list[float]) -> list[float]:
    """Return the parameter after each pseudo-gradient, from 1."""
    w, path = vector(1.0), list[float]()
    for value in d:
        w = step.step(w, np.array([value]))
        path.append(float(w[0]))
    return path


def moments(step: FedOpt) -> dict[str, list[float] | None]:
    state = step.to_state()
    return {
        key: None if data is None else np.frombuffer(data, dtype=np.float32).tolist()
        for key, data in state.items()
    }


@pytest.mark.parametrize(
    ("kind", "w", "v"),
    [
        ("adagrad", [0.900499, 0.855977], 0.050001),
        ("adam", [0.904874, 0.784666], 0.00049698),
        ("yogi", [0.904875, 0.785130], 0.000501),
    ],
)
def test_worked_example(kind: Optimiser, w: list[float], v: float) -> None:
    step = FedOpt(kind, 0.1, beta1=0.0 if kind == "adagrad" else 0.9)
    assert stepped(step, [-0.2, -0.1]) == pytest.approx(w, abs=1e-6)
    state = moments(step)
    assert state["v"] == pytest.approx([v], abs=1e-8)
    assert state["m"] == (None if kind == "adagrad" else pytest.approx([-0.028], abs=1e-8))


def test_momentum_sums_decaying_changes() -> None:
    """Moments: -0.2, then 0.9 (-0.2) - 0.1 = -0.28."""
    step = FedOpt("momentum", 0.5)
    assert stepped(step, [-0.2, -0.1]) == pytest.approx([0.9, 0.76], abs=1e-6)
    assert moments(step) == {"m": pytest.approx([-0.28]), "v": None}


def test_aaggff_with_fedadam_is_two_keys() -> None:
    """AAggFF as a plug-in, worked example: the weights of the rule, the step of the server."""
    config = AggregationConfig(rule="aaggff-d", server="adam", server_learning_rate=0.1)
    rule = make_aggregator(config, per_round=2)
    assert isinstance(rule.rule, AAggFF)
    given_ = reports([[0.8, 5.0], [1.1, 9.0]], losses=[1.0, 3.0], rows=[0, 2], registered=4)
    merge = merged(rule, vector(1, 0), 1, given_)
    assert merge.weights.tolist() == pytest.approx([0.456276, 0.543724], abs=1e-6)
    assert merge.vector[0] == pytest.approx(0.923482, abs=1e-6)
    assert merge.vector[1] == pytest.approx(5.0 + 4.0 * 0.543724, abs=1e-5), "buffers: averaged"
    assert isinstance(rule.server, FedOpt)
    assert moments(rule.server)["m"] == pytest.approx([-0.00368828], abs=1e-8)
    assert moments(rule.server)["v"] == pytest.approx([1.459341e-5], abs=1e-10)


@pytest.mark.parametrize("rule", RULES)
@every_kind
def test_steps_by_the_weights_of_any_rule(rule: str, kind: Optimiser) -> None:
    config = AggregationConfig(rule=rule, server=kind)
    aggregator, alone = make_aggregator(config), make_server_step(config)
    w = vector(0.5, -1.0, 2.0, 7.0)
    for at in range(3):
        given_ = reports([[1, 2, at, 4], [0, 1, 0, 8]], losses=[1.0, 2.0 + at], n_k=[1, 3])
        merge = merged(aggregator, w, 3, given_)
        changes = np.array(given_.models, dtype=np.float64)[:, :3] - w[:3]
        expected = alone.step(w[:3], merge.weights @ changes)
        np.testing.assert_allclose(merge.vector[:3], expected, rtol=1e-6, atol=1e-7)
        share = merge.weights / merge.weights.sum()
        assert merge.vector[3] == pytest.approx(share @ [4.0, 8.0], rel=1e-6)
        w = merge.vector


@every_kind
@given(data=st.data())
def test_a_restored_step_continues_with_the_same_bits(kind: Optimiser, data: st.DataObject) -> None:
    change = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3)
    path = data.draw(st.lists(change, min_size=2, max_size=6), "pseudo-gradients")
    original, resumed = FedOpt(kind, 0.1), FedOpt(kind, 0.1)
    w = vector(1, 2, 3)
    for at, d in enumerate(path):
        if at == len(path) // 2:
            state = msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state()))
            resumed.load_state(state)
        mine = original.step(w, np.array(d))
        if at >= len(path) // 2:
            np.testing.assert_array_equal(resumed.step(w, np.array(d)), mine)
        w = mine
    assert original.to_state() == resumed.to_state()


@every_kind
def test_a_void_round_keeps_the_moments(kind: Optimiser) -> None:
    rule = Aggregator(FedAvg(), server=FedOpt(kind, 0.1))
    w = merged(rule, vector(1), 1, reports([[2.0]])).vector
    state = rule.to_state()
    for void in (reports([]), reports([[np.nan]])):
        np.testing.assert_array_equal(merged(rule, w, 1, void).vector, w)
    assert rule.to_state() == state


@every_kind
def test_a_step_without_a_finite_pseudo_gradient_changes_nothing(kind: Optimiser) -> None:
    step = FedOpt(kind, 0.1)
    stepped(step, [-0.2])
    state = step.to_state()
    for bad in (np.nan, np.inf, -np.inf):
        assert step.step(vector(3.0), np.array([bad])).tolist() == [3.0]
    assert step.to_state() == state


@every_kind
def test_moments_stay_finite_whatever_devices_send(kind: Optimiser) -> None:
    step = FedOpt(kind, 1e3)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        after = stepped(step, [6e38, -6e38, 6e38, 1e-300])
    state = moments(step)
    assert all(np.isfinite(m).all() for m in state.values() if m is not None)
    assert state["v"] is None or state["v"] == [LARGEST] or kind != "adagrad"
    assert not any(np.isnan(after))


def test_the_parts_of_a_long_vector_step_alike() -> None:
    rng = np.random.default_rng(3)
    w, d = rng.standard_normal(40_000).astype(np.float32), rng.standard_normal(40_000)
    for kind in KINDS:
        step = FedOpt(kind, 0.1)
        whole = step.step(w, d.copy())
        for at in (0, 16_384, 39_999):
            alone = FedOpt(kind, 0.1).step(w[at : at + 1], d[at : at + 1].copy())
            assert whole[at] == alone[0]


def test_the_defaults_are_those_of_the_papers() -> None:
    path = [-0.2, -0.1]
    for kind, rate in (("momentum", 1.0), ("adagrad", 0.01), ("adam", 0.01), ("yogi", 0.01)):
        made = make_server_step(AggregationConfig(server=kind))
        assert isinstance(made, FedOpt)
        expected = FedOpt(kind, rate, 0.0 if kind == "adagrad" else 0.9, 0.99, 1e-3)  # type: ignore[arg-type]
        assert stepped(made, path) == stepped(expected, path)
    plain = make_server_step(AggregationConfig())
    assert isinstance(plain, Plain)
    assert plain.learning_rate == 1.0


QUICKSTART = Path(__file__).parents[4] / "examples" / "quickstart.toml"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ["server_beta2=0.9"],
            "server_beta2 must be for server 'adam' or 'yogi', got 0.9 with 'plain'; remove it, "
            "or set server",
        ),
        (
            ["server=adagrad", "server_beta2=0.9"],
            "server_beta2 must be for server 'adam' or 'yogi', got 0.9 with 'adagrad'; remove it, "
            "or set server",
        ),
        (
            ["server=momentum", "server_tau=0.1"],
            "server_tau must be for server 'adagrad' or 'adam' or 'yogi', got 0.1 with "
            "'momentum'; remove it, or set server",
        ),
        (["server=sgd"], "server: must be one of"),
        (["server=adam", "server_tau=0"], "server_tau: must be float >= 1e-15"),
        (["server=adam", "server_beta1=1.0"], "server_beta1: must be"),
        (
            ["pseudo_gradient=fednova", "rule=q-fedavg"],
            "pseudo_gradient must be \"average\" with rule 'q-fedavg', got 'fednova': this rule "
            "sets the length of the step itself; remove one of the two",
        ),
        (
            ["rule=fednova"],
            "aggregation.rule: must be a rule of weights, got 'fednova'; write rule = \"fedavg\" "
            '(or another one) and pseudo_gradient = "fednova"',
        ),
        (["rule=FedAdam"], 'write rule = "fedavg" (or another one) and server = "adam"'),
        (["rule=fedprox"], "and proximal = 0.01 in [training]"),
    ],
)
def test_a_wrong_combination_is_refused_in_one_line(settings: list[str], line: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        load_experiment(QUICKSTART, [f"aggregation.{setting}" for setting in settings])
    assert line in str(refused.value).replace("a number", "float")
    assert "\n" not in str(refused.value)


def test_a_proximal_term_that_overshoots_does_not_fit_fednova() -> None:
    with pytest.raises(ExperimentError, match="proximal must be at most 1 / learning_rate"):
        load_experiment(QUICKSTART, ["aggregation.pseudo_gradient=fednova", "training.proximal=21"])


def test_the_resolved_experiment_is_equal() -> None:
    settings = ["aggregation.server=yogi", "aggregation.server_tau=0.01"]
    experiment = load_experiment(QUICKSTART, settings)
    assert experiment.aggregation == replace_defaults(server="yogi", server_tau=0.01)


def replace_defaults(**keys: object) -> AggregationConfig:
    return msgspec.structs.replace(AggregationConfig(), **keys)


def test_reports_that_do_not_move_leave_the_first_step_where_it_is() -> None:
    still = replace(reports([[1.0], [1.0]], n_k=[1, 9]), learning_rate=0.3)
    for kind in KINDS:
        rule = Aggregator(FedAvg(), server=FedOpt(kind, 0.1))
        assert merged(rule, vector(1), 1, still).vector.tolist() == [1.0]
