"""Server steps and q-FedAvg against Flower's, recorded by `tools/record_flwr.py`."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.aggregation.q_ffl import QFedAvg
from fairbed.coordinator.algorithms.aggregation.server_step import FedOpt, Optimiser
from fairbed.coordinator.algorithms.arrays import Floats, Vector
from tests.coordinator.algorithms.aggregation.rounds import merged, reports

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "flwr.json").read_text(encoding="utf-8")
)
START = np.array(RECORDED["start"], dtype=np.float32)
ETA, BETA1, BETA2 = 0.1, 0.9, 0.99
ADAPTIVE: tuple[Optimiser, ...] = ("adagrad", "adam", "yogi")


def after_round(rule: Aggregator, w: Vector, round_id: int, losses: Any = None) -> Vector:
    """Return the model after the recorded changes of a round, from 1."""
    given = RECORDED["rounds"][round_id - 1]
    models = (w.astype(np.float64) + given["changes"]).tolist()
    losses = given["losses"] if losses is None else losses
    round_ = reports(
        models, n_k=given["n_k"], losses=losses, learning_rate=RECORDED["learning_rate"]
    )
    return merged(rule, w, len(w), round_).vector


def step_of(kind: Optimiser, rate: float = ETA) -> FedOpt:
    return FedOpt(kind, rate, 0.0 if kind == "adagrad" else BETA1, BETA2, 1e-3)


def flower_rate(kind: Optimiser, round_id: int) -> float:
    """Flower's FedAdam corrects the bias of its moments, with the number of the next round."""
    if kind != "adam":
        return ETA
    t = round_id + 1
    return ETA * math.sqrt(1.0 - BETA2**t) / (1.0 - BETA1**t)


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_adaptive_steps_are_flowers_from_its_v_and_with_its_rate(kind: Optimiser) -> None:
    zero = np.zeros(len(START), dtype=np.float32).tobytes()
    state: dict[str, Any] = {"m": None if kind == "adagrad" else zero, "v": zero}
    w = START
    for round_id, expected in enumerate(RECORDED[kind], start=1):
        step = step_of(kind, flower_rate(kind, round_id))
        step.load_state(state)
        w = after_round(Aggregator(FedAvg(), server=step), w, round_id)
        np.testing.assert_allclose(w, expected, rtol=0.0, atol=1e-6)
        state = step.to_state()


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_flower_starts_v_at_0_and_the_paper_at_tau_squared(kind: Optimiser) -> None:
    """Reddi et al., Algorithm 2: the first step of both, from the definitions alone."""
    given = RECORDED["rounds"][0]
    d = np.average(given["changes"], axis=0, weights=given["n_k"])
    gain = 1.0 if kind == "adagrad" else 1.0 - BETA1
    decay, part = (1.0, 1.0) if kind == "adagrad" else (BETA2, 1.0 - BETA2)
    if kind == "yogi":
        decay = 1.0

    def first_step(v: float, rate: float) -> Floats:
        root: Floats = np.sqrt(decay * v + part * np.square(d)) + 1e-3
        return START + rate * gain * d / root

    assert np.square(d).min() > 1e-6, "otherwise Yogi's sign differs"
    theirs = np.array(RECORDED[kind][0])
    np.testing.assert_allclose(first_step(0.0, flower_rate(kind, 1)), theirs, atol=1e-6)
    ours = after_round(Aggregator(FedAvg(), server=step_of(kind)), START, 1)
    np.testing.assert_allclose(ours, first_step(1e-6, ETA), atol=1e-6)
    assert np.abs(ours - theirs).max() > 1e-6
    if kind == "adam":
        assert flower_rate(kind, 1) / ETA == pytest.approx(0.742, abs=1e-3)


def test_momentum_is_flowers() -> None:
    step = FedOpt("momentum", 0.5, 0.9)
    w = START
    for round_id, expected in enumerate(RECORDED["momentum"], start=1):
        w = after_round(Aggregator(FedAvg(), server=step), w, round_id)
        np.testing.assert_allclose(w, expected, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("q", RECORDED["q-fedavg"])
def test_q_fedavg_is_that_of_flower_serverapp(q: str) -> None:
    """Given F_k(w_t) as the metric that it reads, and equal weights."""
    ours = after_round(Aggregator(QFedAvg(float(q)), "equal"), START, 1)
    np.testing.assert_allclose(ours, RECORDED["q-fedavg"][q], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("q", RECORDED["q-fedavg"])
def test_q_fedavg_of_flower_server_has_one_loss_for_all_devices(q: str) -> None:
    """Its devices have equal weights for every q: it is not fair, only a shorter step."""
    legacy = RECORDED["q-fedavg of flwr.server"]
    theirs, loss = np.array(legacy["after"][q]), legacy["loss"]
    rule = Aggregator(QFedAvg(float(q)), "equal")
    shared = after_round(rule, START, 1, [loss] * len(RECORDED["rounds"][0]["n_k"]))
    np.testing.assert_allclose(shared, theirs, rtol=0.0, atol=1e-6)
    mean = np.mean(RECORDED["rounds"][0]["changes"], axis=0)
    share = (theirs - RECORDED["start"]) / mean
    np.testing.assert_allclose(share, share[0], rtol=1e-5)
    assert share[0] == pytest.approx(1.0, abs=1e-6) if q == "0.0" else share[0] < 0.9
    ours = after_round(rule, START, 1)
    assert q == "0.0" or np.abs(ours - theirs).max() > 0.01
